/* Files by their names: what a name stands for, and whole files in memory. Threading: no state. */
#ifndef BT_CLI_FILES_H
#define BT_CLI_FILES_H

#include "engine/core/error.h"
#include "engine/model/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_FILE_MAX_BYTES = 1 << 30 }; /* of a file that is read whole */

bool bt_ends_with(const char *text, const char *end);

/* Whether there is a folder of that name. */
bool bt_is_folder(const char *path);

/* Makes a folder and those above it where they are missing. BT_ERR_IO names what is in the way: a
 * file, a folder that cannot be made or written into, a name that is empty or too long. */
BT_NODISCARD enum bt_code bt_make_folder(const char *path, struct bt_error *err);

/* A whole file; "-" is stdin. *text is owned by the caller (free) and followed by a zero byte that
 * *n_bytes does not count. BT_ERR_IO; BT_ERR_LIMIT for more than BT_FILE_MAX_BYTES; BT_ERR_NOMEM.
 */
BT_NODISCARD enum bt_code bt_read_file(const char *path, char **text, size_t *n_bytes,
                                       struct bt_error *err);

/* Token ids of a file that holds nothing else, a little-endian uint16 each; free with bt_ids_fini.
 * Errors as bt_read_file; BT_ERR_INPUT for no tokens or half a one. */
BT_NODISCARD enum bt_code bt_read_token_file(const char *path, struct bt_ids *out,
                                             struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
