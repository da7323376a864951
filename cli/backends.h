/* The real engine's executors that this program has, by the words of --executor. */
#ifndef BT_CLI_BACKENDS_H
#define BT_CLI_BACKENDS_H

#include "cli/run_opts.h"
#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* BT_ERR_MISSING when this program has no CUDA engine, or this machine no GPU for it. kind is CPU
 * or CUDA. */
BT_NODISCARD enum bt_code bt_backend_find(enum bt_executor_kind kind, const struct bt_backend **out,
                                          struct bt_error *err);

/* That of the --executor option of a command whose options say "cpu|cuda". */
BT_NODISCARD enum bt_code bt_backend_of_args(const struct bt_args *args,
                                             const struct bt_backend **out, struct bt_error *err);

/* CUDA where there is a GPU and an engine for it, else CPU. */
const struct bt_backend *bt_backend_best(void);

/* The name of the first GPU, "" where there is none. */
const char *bt_backend_gpu_product(void);

#ifdef __cplusplus
}
#endif

#endif
