/* A whole file in memory. */
#ifndef BT_CLI_READ_FILE_H
#define BT_CLI_READ_FILE_H

#include "engine/core/error.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* *text is owned by the caller (free) and followed by a zero byte that *n_bytes does not count.
 * BT_ERR_IO; BT_ERR_NOMEM also for a file of more than max_bytes. */
BT_NODISCARD enum bt_code bt_read_file(const char *path, size_t max_bytes, char **text,
                                       size_t *n_bytes, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
