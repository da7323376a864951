#include "cli/grid.h"

#include "engine/core/error.h"

#include <utf8proc.h>

#include <stdlib.h>
#include <string.h>

void bt_grid_init(struct bt_grid *g, int32_t n_columns)
{
    BT_ASSERT(n_columns > 0);
    *g = (struct bt_grid){.n_columns = n_columns};
}

void bt_grid_fini(struct bt_grid *g)
{
    for (int32_t i = 0; i < g->n_cells; i++) {
        free(g->cells[i].text);
    }
    free(g->cells);
    *g = (struct bt_grid){0};
}

void bt_grid_add(struct bt_grid *g, const char *text, bool right)
{
    BT_ASSERT(g->n_columns > 0);
    if (g->n_cells == g->cap_cells) {
        g->cap_cells = g->cap_cells == 0 ? 64 : 2 * g->cap_cells;
        g->cells = realloc(g->cells, (size_t)g->cap_cells * sizeof *g->cells);
        BT_ASSERT(g->cells != NULL);
    }
    size_t n_bytes = strlen(text) + 1;
    char *copy = malloc(n_bytes);
    BT_ASSERT(copy != NULL);
    for (size_t i = 0; i < n_bytes; i++) {
        bool is_control = (text[i] > 0 && text[i] < ' ') || text[i] == 0x7f;
        copy[i] = is_control ? ' ' : text[i];
    }
    g->cells[g->n_cells++] = (struct bt_grid_cell){.text = copy, .right = right};
}

int32_t bt_text_width(const char *text)
{
    int32_t width = 0;
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text;
    while (*at != 0) {
        utf8proc_int32_t point = 0;
        utf8proc_ssize_t n = utf8proc_iterate(at, -1, &point);
        if (n <= 0) {
            width++;
            at++;
        } else {
            width += utf8proc_charwidth(point);
            at += n;
        }
    }
    return width;
}

static int32_t column_width(const struct bt_grid *g, int32_t column)
{
    int32_t width = 0;
    for (int32_t i = column; i < g->n_cells; i += g->n_columns) {
        int32_t w = bt_text_width(g->cells[i].text);
        width = w > width ? w : width;
    }
    return width;
}

/* Whether the cells under a heading are numbers: the first that is not a dash says. */
static bool is_right_column(const struct bt_grid *g, int32_t column)
{
    for (int32_t i = column + g->n_columns; i < g->n_cells; i += g->n_columns) {
        if (strcmp(g->cells[i].text, "-") != 0) {
            return g->cells[i].right;
        }
    }
    return false;
}

static void print_spaces(FILE *f, int32_t n)
{
    fprintf(f, "%*s", (int)n, "");
}

void bt_grid_print(const struct bt_grid *g, FILE *f, int32_t indent, bool heading)
{
    BT_ASSERT(g->n_columns > 0);
    BT_ASSERT(g->n_cells % g->n_columns == 0);
    int32_t *widths = malloc((size_t)g->n_columns * sizeof *widths);
    bool *rights = malloc((size_t)g->n_columns * sizeof *rights);
    BT_ASSERT(widths != NULL);
    BT_ASSERT(rights != NULL);
    for (int32_t c = 0; c < g->n_columns; c++) {
        widths[c] = column_width(g, c);
        rights[c] = heading && is_right_column(g, c);
    }
    for (int32_t i = 0; i < g->n_cells; i += g->n_columns) {
        int32_t pending = indent;
        for (int32_t c = 0; c < g->n_columns; c++) {
            const struct bt_grid_cell *cell = &g->cells[i + c];
            bool right = cell->right || rights[c];
            int32_t pad = widths[c] - bt_text_width(cell->text);
            pending += right ? pad : 0;
            if (cell->text[0] != '\0') {
                print_spaces(f, pending);
                (void)fputs(cell->text, f);
                pending = 0;
            }
            pending += (right ? 0 : pad) + 2;
        }
        fputc('\n', f);
    }
    free(widths);
    free(rights);
}
