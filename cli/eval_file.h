/* Scores of windows in a file, so that many quantisations are compared with a baseline that is
 * scored once.
 *
 * JSON: {"window_tokens": N, "windows": [{"tokens": HASH, "nll": X, "accuracy": Y}, ..]} with the
 * hash of the window's N + 1 token ids, sixteen hexadecimal digits. Threading: no state.
 */
#ifndef BT_CLI_EVAL_FILE_H
#define BT_CLI_EVAL_FILE_H

#include "cli/eval_windows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ids [n * n_tokens + 1]: what was scored. BT_ERR_IO, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_eval_file_write(const char *path, const struct bt_eval_windows *w,
                                             const int32_t *ids, struct bt_error *err);

/* Reads the first n windows of n_tokens predictions. BT_ERR_IO: cannot be read; BT_ERR_INPUT: not
 * such a file, or of other windows or tokens than ids; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_eval_file_read(const char *path, int32_t n, int32_t n_tokens,
                                            const int32_t *ids, struct bt_eval_windows *out,
                                            struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
