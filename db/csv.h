/* CSV as RFC 4180 has it: a header, quoted cells, CRLF or LF, a missing last newline. Lines that
 * begin with '#' and empty lines are passed over. Read whole; cells are found by column name.
 *
 * Threading: a table is immutable once read.
 */
#ifndef BT_DB_CSV_H
#define BT_DB_CSV_H

#include "engine/core/arena.h"
#include "engine/core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_csv {
    const char *label; /* in messages; borrowed */
    int32_t n_columns;
    int32_t n_rows;
    const char **header; /* [n_columns] */
    const char **cells;  /* [n_rows * n_columns] */
    int32_t *lines;      /* [n_rows] line of the row, from 1 */
};

/* Reads n_bytes of text; everything is taken from the arena. BT_ERR_INPUT with label:line for a row
 * of another width than the header, an open quote or text after a closing one. */
BT_NODISCARD enum bt_code bt_csv_read(struct bt_arena *arena, const char *text, size_t n_bytes,
                                      const char *label, struct bt_csv *out, struct bt_error *err);

/* Column by name, -1 when there is none. */
int32_t bt_csv_column(const struct bt_csv *csv, const char *name);

/* Row-wise reading: the first failure is kept in `err`, and what follows gives zeros. */
struct bt_csv_row {
    const struct bt_csv *csv;
    int32_t row;
    struct bt_error *err;
    enum bt_code code; /* of the first failure */
};

/* Cell by column name, "" when empty; never NULL. A column that does not exist fails. */
const char *bt_csv_text(struct bt_csv_row *r, const char *column);

/* Number in [min, max]; empty gives `empty`. */
double bt_csv_real(struct bt_csv_row *r, const char *column, double min, double max, double empty);
int64_t bt_csv_int(struct bt_csv_row *r, const char *column, int64_t min, int64_t max,
                   int64_t empty);

/* 1 or yes, 0, no or empty. */
bool bt_csv_bool(struct bt_csv_row *r, const char *column);

/* Copies a cell; fails when it does not fit with its zero. */
void bt_csv_copy(struct bt_csv_row *r, const char *column, char *out, size_t out_bytes);

/* Fails the row: "label:line: column: message". */
void bt_csv_fail(struct bt_csv_row *r, const char *column, const char *message);

#ifdef __cplusplus
}
#endif

#endif
