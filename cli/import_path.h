/* What the path of a measurement table says of it: card, stack, version, model, tensor parallelism,
 * number format. Folders as in aiconfigurator (h200_sxm/vllm/0.24.0/gemm_perf.txt), LLMServingSim
 * (RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1/dense.csv, with a meta.yaml above) and Vidur
 * (compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv), or the same in a file's name
 * (h200_sxm__vllm-0.24.0__gemm.csv, RTX4090_Llama-3.1-8B_bf16_tp1_dense.csv). Threading: no state.
 */
#ifndef BT_CLI_IMPORT_PATH_H
#define BT_CLI_IMPORT_PATH_H

#include "db/catalog.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_IMPORT_STACK_BYTES = 64, BT_IMPORT_DTYPE_BYTES = 8 };

struct bt_import_path {
    const struct bt_catalog_gpu *gpu;     /* borrowed from the catalog; NULL: not told */
    const struct bt_catalog_model *model; /* likewise */
    char stack[BT_IMPORT_STACK_BYTES];    /* "vllm-0.24.0"; "": not told */
    char dtype[BT_IMPORT_DTYPE_BYTES];    /* "bf16", "fp16", "fp32"; "": not told */
    int32_t tp;                           /* 0: not told */
};

/* Reads the path; what stands nearest to the file's own name wins. */
void bt_import_path_read(const char *path, const struct bt_catalog *catalog,
                         struct bt_import_path *out);

#ifdef __cplusplus
}
#endif

#endif
