/* Text in aligned columns: cells are added row by row and printed once all widths are known.
 *
 * Widths are those of a terminal (East Asian wide characters count two). The grid owns copies of
 * its cells; memory refused is fatal (abort), as in cli/out.h. Threading: one thread at a time.
 */
#ifndef BT_CLI_GRID_H
#define BT_CLI_GRID_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_grid_cell {
    char *text; /* owned */
    bool right; /* aligned to the right: numbers */
};

struct bt_grid {
    struct bt_grid_cell *cells; /* owned, n_columns a row */
    int32_t n_cells, cap_cells;
    int32_t n_columns;
};

/* Starts an empty grid of n_columns > 0 columns. */
void bt_grid_init(struct bt_grid *g, int32_t n_columns);

/* Frees the cells and zeroes the grid. */
void bt_grid_fini(struct bt_grid *g);

/* Adds the next cell, rows being filled from left to right. Control characters become spaces: a
 * name must neither break a row nor drive the terminal. */
void bt_grid_add(struct bt_grid *g, const char *text, bool right);

/* Prints every row, two spaces between columns and `indent` spaces before, none at line ends. The
 * last row must be full. A column heading (first row, when `heading`) is aligned as the cells below
 * it are. */
void bt_grid_print(const struct bt_grid *g, FILE *f, int32_t indent, bool heading);

/* Columns that a terminal needs for UTF-8 text; a byte that is not UTF-8 counts one. */
int32_t bt_text_width(const char *text);

#ifdef __cplusplus
}
#endif

#endif
