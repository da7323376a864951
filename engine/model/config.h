/* Any Hugging Face config.json of a supported architecture, as a struct bt_arch and the few things
 * beside it that an engine needs: special tokens and how the checkpoint is quantised.
 *
 * Supported: Llama, Mistral, Qwen2 and Qwen3 (dense), in the spellings of transformers 4 and 5
 * (rope_scaling / rope_parameters, torch_dtype / dtype), and checkpoints packed by GPTQ, AWQ
 * (gemm), compressed-tensors and FP8. What cannot be represented exactly is an error that names the
 * key: "m/config.json: rope_scaling.rope_type: "longrope" is not supported (default, ...)".
 *
 * Threading: no shared state.
 */
#ifndef BT_ENGINE_MODEL_CONFIG_H
#define BT_ENGINE_MODEL_CONFIG_H

#include "engine/core/arch.h"
#include "engine/core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_MODEL_EOS_MAX = 16 };

/* How the weights lie in the files. */
enum bt_quant_layout {
    BT_QUANT_NONE = 0, /* plain tensors of the compute type */
    BT_QUANT_GPTQ_V1,  /* qzeros hold zero - 1 */
    BT_QUANT_GPTQ_V2,  /* qzeros hold zero */
    BT_QUANT_AWQ_GEMM,
    BT_QUANT_CT_PACKED, /* compressed-tensors pack-quantized: weight_packed, weight_scale */
    BT_QUANT_CT_INT,    /* compressed-tensors int-quantized: int8 weight, weight_scale */
    BT_QUANT_FP8,       /* F8_E4M3 weight: the simulator knows it, the engine does not */
};

struct bt_quant_config {
    enum bt_quant_layout layout;
    enum bt_weight_format weights;  /* BT_WEIGHT_DEFAULT when layout is BT_QUANT_NONE */
    enum bt_act_format activations; /* BT_ACT_DEFAULT: 16-bit */
    enum bt_kv_format kv;           /* BT_KV_DEFAULT unless the checkpoint carries KV scales */
    int32_t bits;
    int32_t group_size; /* weights that share a scale along the input axis; 0: not group-wise */
    bool symmetric;
    bool desc_act; /* GPTQ g_idx is not monotone */
    bool lm_head;  /* lm_head is quantised too */
};

struct bt_model_config {
    struct bt_arch arch;
    char model_type[32]; /* "llama", "mistral", "qwen2", "qwen3" */
    int32_t bos_id;      /* -1: none */
    int32_t n_eos;
    int32_t eos_ids[BT_MODEL_EOS_MAX];
    struct bt_quant_config quant;
};

/* Reads a config.json, or the one in a folder. Beside it generation_config.json, where there is
 * one, wins for bos and eos, and quantize_config.json stands in for a missing quantization_config.
 * arch.name becomes the folder's name. Returns BT_ERR_NOTFOUND or
 * BT_ERR_IO when it cannot be read, BT_ERR_INPUT with
 * file:line or file and key path, the value and what is allowed. */
BT_NODISCARD enum bt_code bt_model_config_read(const char *path, struct bt_model_config *out,
                                               struct bt_error *err);

/* Parses the text of a config.json (n_bytes, need not end with zero); `label` stands for the file
 * in messages and arch.name. */
BT_NODISCARD enum bt_code bt_model_config_parse(const char *text, size_t n_bytes, const char *label,
                                                struct bt_model_config *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
