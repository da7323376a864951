/* What `berth fit --out` writes and `--fit` reads. Threading: no state. */
#ifndef BT_CLI_FIT_FILE_H
#define BT_CLI_FIT_FILE_H

#include "cli/command.h"
#include "cli/out.h"
#include "engine/core/error.h"
#include "sim/cost/fit.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The fit as a document, with what it was made from (may be ""). */
json_t *bt_fit_json(const struct bt_fit *fit, const char *model, const char *source,
                    int64_t n_requests);

/* Writes it. BT_ERR_IO. */
BT_NODISCARD enum bt_code bt_fit_write(const json_t *doc, const char *path, struct bt_error *err);

/* Reads a file that bt_fit_write made. BT_ERR_IO; BT_ERR_INPUT names file, key, value and what is
 * allowed. */
BT_NODISCARD enum bt_code bt_fit_read(const char *path, struct bt_fit *out, struct bt_error *err);

/* What --fit TEXT means: a file that exists, else a fit of that name in the store. Errors as
 * bt_fit_read; BT_ERR_NOTFOUND names the fits there are. */
BT_NODISCARD enum bt_code bt_fit_find(const struct bt_cli *cli, const char *text,
                                      struct bt_fit *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
