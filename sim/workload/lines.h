/* Text files line by line: plain, gzip or Zstandard, told apart by their first bytes.
 *
 * A UTF-8 mark at the start and a carriage return at the end of a line are taken off; a missing
 * last newline is no matter. Memory: one buffer that grows to the longest line, BT_LINE_MAX_BYTES
 * at most.
 */
#ifndef BT_SIM_WORKLOAD_LINES_H
#define BT_SIM_WORKLOAD_LINES_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_LINE_MAX_BYTES = 64 << 20 }; /* 191,000 tokens in hash-blocks of 16 are below 1 MiB */

struct bt_lines;

/* Fails with BT_ERR_IO (not there, a directory), BT_ERR_MISSING (.zst without Zstandard),
 * BT_ERR_INPUT (UTF-16), BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_lines_open(const char *path, struct bt_lines **out,
                                        struct bt_error *err);

/* The next line in *text, NUL-terminated, writable, borrowed until the next call; NULL at the end.
 * With csv_quotes a newline within double quotes does not end the line. Fails with BT_ERR_INPUT
 * (a NUL byte, a line too long, damaged compression) or BT_ERR_IO. */
BT_NODISCARD enum bt_code bt_lines_next(struct bt_lines *l, bool csv_quotes, char **text,
                                        int64_t *n_bytes, struct bt_error *err);

/* 1-based number of the line given last. */
int64_t bt_lines_number(const struct bt_lines *l);
const char *bt_lines_path(const struct bt_lines *l);

void bt_lines_close(struct bt_lines *l);

#ifdef __cplusplus
}
#endif

#endif
