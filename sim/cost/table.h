/* Rows of a CSV text, read by column name, with errors that name file, line, column, value and what
 * is allowed.
 *
 * Understands CRLF, a missing last newline, quoted fields ("" inside quotes is a quote), blank
 * lines, and comment lines that start with # before the header. The reader owns a copy of the text;
 * fields are valid until the next row. One thread at a time.
 */
#ifndef BT_SIM_COST_TABLE_H
#define BT_SIM_COST_TABLE_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_TABLE_COLUMNS_MAX = 256, /* Frontier's widest profile has about 110 */
};

struct bt_table {
    const char *name; /* borrowed: of the file, for messages */
    char *text;       /* owned, cut into fields in place */
    char *cursor;
    int32_t line; /* of the current row, from 1 */
    int32_t next_line;
    int32_t n_columns;
    char *columns[BT_TABLE_COLUMNS_MAX]; /* into header */
    char *fields[BT_TABLE_COLUMNS_MAX];  /* into text */
};

/* Reads the header. BT_ERR_INPUT when there is none, a name is repeated or columns are too many;
 * BT_ERR_NOMEM. A failed open needs no close. */
BT_NODISCARD enum bt_code bt_table_open(struct bt_table *t, const char *text, size_t size_bytes,
                                        const char *name, struct bt_error *err);
void bt_table_close(struct bt_table *t);

/* Index of a column, -1 when absent. */
int32_t bt_table_find(const struct bt_table *t, const char *column);

/* As bt_table_find; BT_ERR_INPUT names a column that is absent. */
BT_NODISCARD enum bt_code bt_table_require(const struct bt_table *t, const char *column,
                                           int32_t *out, struct bt_error *err);

/* BT_ERR_INPUT when a column is not in `known` (ended by NULL), with the known ones listed. */
BT_NODISCARD enum bt_code bt_table_check_columns(const struct bt_table *t, const char *const *known,
                                                 struct bt_error *err);

/* Next row: *more false at the end. BT_ERR_INPUT when it has another number of fields. */
BT_NODISCARD enum bt_code bt_table_next(struct bt_table *t, bool *more, struct bt_error *err);

/* The field's text; "" when empty. */
const char *bt_table_text(const struct bt_table *t, int32_t column);

/* A whole number in min .. max ("4096", "32.0" too: pandas writes integers of columns with gaps
 * so). BT_ERR_INPUT otherwise. */
BT_NODISCARD enum bt_code bt_table_int(const struct bt_table *t, int32_t column, int64_t min,
                                       int64_t max, int64_t *out, struct bt_error *err);

/* A finite number; BT_ERR_INPUT otherwise. */
BT_NODISCARD enum bt_code bt_table_real(const struct bt_table *t, int32_t column, double *out,
                                        struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
