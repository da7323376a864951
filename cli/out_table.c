#include "cli/grid.h"
#include "cli/out_forms.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512 };

/* ---- cells ---- */

static const char *last_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot == NULL ? path : dot + 1;
}

static bool is_scalar(const json_t *value)
{
    return !json_is_object(value) && !json_is_array(value);
}

static void print_scalar(FILE *f, const json_t *value, const char *name, enum bt_unit unit)
{
    char number[BT_OUT_NUMBER_BYTES];
    if (value == NULL || json_is_null(value)) {
        fputc('-', f);
    } else if (json_is_string(value)) {
        (void)fputs(json_string_value(value), f);
    } else if (json_is_boolean(value)) {
        (void)fputs(json_is_true(value) ? "yes" : "no", f);
    } else if (json_is_number(value)) {
        bt_unit_format(number, json_number_value(value),
                       unit == BT_UNIT_AUTO ? bt_unit_by_suffix(name) : unit);
        (void)fputs(number, f);
    } else {
        (void)fputs("...", f);
    }
}

/* A scalar, or the scalars of a list separated by commas; the caller frees. */
static char *cell_text(const json_t *value, const char *name, enum bt_unit unit)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *f = open_memstream(&text, &n_bytes);
    BT_ASSERT(f != NULL);
    size_t n_items = json_array_size(value);
    if (!json_is_array(value) || n_items == 0) {
        print_scalar(f, json_is_array(value) ? NULL : value, name, unit);
    }
    for (size_t i = 0; i < n_items; i++) {
        (void)fputs(i == 0 ? "" : ", ", f);
        print_scalar(f, json_array_get(value, i), name, unit);
    }
    BT_ASSERT(fclose(f) == 0);
    return text;
}

/* Numbers of a column line up at their right; those of a list of fields have nothing in common. */
static void add_cell(struct bt_grid *g, const json_t *value, const char *name, enum bt_unit unit)
{
    char *text = cell_text(value, name, unit);
    bt_grid_add(g, text, json_is_number(value));
    free(text);
}

static void add_field(struct bt_grid *g, const char *title, const json_t *value, const char *name,
                      enum bt_unit unit)
{
    char *text = cell_text(value, name, unit);
    bt_grid_add(g, title, false);
    bt_grid_add(g, text, false);
    free(text);
}

static bool is_rows(const json_t *value)
{
    return json_is_array(value) && json_is_object(json_array_get(value, 0));
}

/* ---- blocks ---- */

struct writer {
    FILE *f;
    bool started; /* something was printed: a blank line comes before the next block */
};

static void start_block(struct writer *w, const char *title)
{
    if (w->started) {
        fputc('\n', w->f);
    }
    w->started = true;
    if (title != NULL) {
        fprintf(w->f, "%s\n", title);
    }
}

static void print_grid(struct writer *w, struct bt_grid *g, const char *title, bool heading)
{
    if (g->n_cells > 0) {
        start_block(w, title);
        bt_grid_print(g, w->f, title == NULL ? 0 : 2, heading);
    }
    bt_grid_fini(g);
}

/* The plain members of the rows, in the order of their first appearance, as an object. */
static json_t *columns_of(const json_t *rows)
{
    json_t *columns = bt_out_object();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        for (void *it = json_object_iter(row); it != NULL; it = json_object_iter_next(row, it)) {
            const json_t *value = json_object_iter_value(it);
            const char *key = json_object_iter_key(it);
            bool fits = !json_is_object(value) && !is_rows(value);
            if (fits && json_object_get(columns, key) == NULL) {
                bt_out_set(columns, key, json_null());
            }
        }
    }
    return columns;
}

static void print_all_rows(struct writer *w, const json_t *rows, const char *title)
{
    json_t *columns = columns_of(rows);
    if (json_object_size(columns) == 0) {
        json_decref(columns);
        return;
    }
    struct bt_grid g;
    bt_grid_init(&g, (int32_t)json_object_size(columns));
    for (void *it = json_object_iter(columns); it != NULL;
         it = json_object_iter_next(columns, it)) {
        bt_grid_add(&g, json_object_iter_key(it), false);
    }
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        for (void *it = json_object_iter(columns); it != NULL;
             it = json_object_iter_next(columns, it)) {
            const char *key = json_object_iter_key(it);
            add_cell(&g, json_object_get(row, key), key, BT_UNIT_AUTO);
        }
    }
    json_decref(columns);
    print_grid(w, &g, title, true);
}

static const char *title_of(const struct bt_out_column *column)
{
    return column->title == NULL ? column->path : column->title;
}

static void print_rows(struct writer *w, const json_t *rows, const struct bt_out_part *part)
{
    if (json_array_size(rows) == 0) {
        return;
    }
    if (part->n_columns == 0) {
        print_all_rows(w, rows, part->title);
        return;
    }
    struct bt_grid g;
    bt_grid_init(&g, part->n_columns);
    for (int32_t c = 0; c < part->n_columns; c++) {
        bt_grid_add(&g, title_of(&part->columns[c]), false);
    }
    for (size_t i = 0; i < json_array_size(rows); i++) {
        for (int32_t c = 0; c < part->n_columns; c++) {
            const struct bt_out_column *column = &part->columns[c];
            add_cell(&g, bt_out_at(json_array_get(rows, i), column->path), last_name(column->path),
                     column->unit);
        }
    }
    print_grid(w, &g, part->title, true);
}

/* ---- objects ---- */

static bool is_scalar_object(const json_t *value)
{
    if (!json_is_object(value) || json_object_size(value) < 2) {
        return false;
    }
    json_t *walked = (json_t *)value;
    for (void *it = json_object_iter(walked); it != NULL; it = json_object_iter_next(walked, it)) {
        if (!is_scalar(json_object_iter_value(it))) {
            return false;
        }
    }
    return true;
}

static bool same_keys(const json_t *a, const json_t *b)
{
    if (json_object_size(a) != json_object_size(b)) {
        return false;
    }
    json_t *walked = (json_t *)a;
    for (void *it = json_object_iter(walked); it != NULL; it = json_object_iter_next(walked, it)) {
        if (json_object_get(b, json_object_iter_key(it)) == NULL) {
            return false;
        }
    }
    return true;
}

static void add_matrix_row(struct bt_grid *g, const char *name, const json_t *keys,
                           const json_t *values)
{
    bt_grid_add(g, name, false);
    json_t *walked = (json_t *)keys;
    for (void *it = json_object_iter(walked); it != NULL; it = json_object_iter_next(walked, it)) {
        add_cell(g, json_object_get(values, json_object_iter_key(it)), name, BT_UNIT_AUTO);
    }
}

/* Members that are objects of the same scalars (ttft_s and e2e_s, each {mean, p50, ...}) make one
 * table. Returns the iterator after the last of them; `it` stands at the first. */
static void *print_matrix(struct writer *w, json_t *object, void *it)
{
    const json_t *keys = json_object_iter_value(it);
    struct bt_grid g;
    bt_grid_init(&g, 1 + (int32_t)json_object_size(keys));
    bt_grid_add(&g, "", false);
    json_t *walked = (json_t *)keys;
    for (void *key = json_object_iter(walked); key != NULL;
         key = json_object_iter_next(walked, key)) {
        bt_grid_add(&g, json_object_iter_key(key), false);
    }
    while (it != NULL && is_scalar_object(json_object_iter_value(it)) &&
           same_keys(keys, json_object_iter_value(it))) {
        add_matrix_row(&g, json_object_iter_key(it), keys, json_object_iter_value(it));
        it = json_object_iter_next(object, it);
    }
    print_grid(w, &g, NULL, true);
    return it;
}

static bool starts_matrix(json_t *object, void *it)
{
    const json_t *value = json_object_iter_value(it);
    void *next = json_object_iter_next(object, it);
    return next != NULL && is_scalar_object(value) &&
           is_scalar_object(json_object_iter_value(next)) &&
           same_keys(value, json_object_iter_value(next));
}

/* The fields collected since the last table are printed before the next one. */
static void flush_fields(struct writer *w, struct bt_grid *fields, const char *title)
{
    if (fields->n_cells > 0) {
        start_block(w, title);
        bt_grid_print(fields, w->f, title == NULL ? 0 : 2, false);
    }
    bt_grid_fini(fields);
    bt_grid_init(fields, 2);
}

/* Every member in order; nested objects with their path as the title. */
static void print_members(struct writer *w, const json_t *object, const char *title)
{
    json_t *walked = (json_t *)object;
    struct bt_grid fields;
    bt_grid_init(&fields, 2);
    void *it = json_object_iter(walked);
    while (it != NULL) {
        const char *key = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        if (starts_matrix(walked, it)) {
            flush_fields(w, &fields, title);
            it = print_matrix(w, walked, it);
            continue;
        }
        if (is_rows(value)) {
            flush_fields(w, &fields, title);
            print_all_rows(w, value, key);
        } else if (json_is_object(value)) {
            char path[PATH_BYTES];
            flush_fields(w, &fields, title);
            (void)snprintf(path, sizeof path, "%s%s%s", title == NULL ? "" : title,
                           title == NULL ? "" : ".", key);
            print_members(w, value, path);
        } else {
            add_field(&fields, key, value, key, BT_UNIT_AUTO);
        }
        it = json_object_iter_next(walked, it);
    }
    flush_fields(w, &fields, title);
    bt_grid_fini(&fields);
}

static void print_fields(struct writer *w, const json_t *object, const struct bt_out_part *part)
{
    if (part->n_columns == 0) {
        print_members(w, object, part->title);
        return;
    }
    struct bt_grid g;
    bt_grid_init(&g, 2);
    for (int32_t c = 0; c < part->n_columns; c++) {
        const struct bt_out_column *column = &part->columns[c];
        const json_t *value = bt_out_at(object, column->path);
        if (value != NULL) {
            add_field(&g, title_of(column), value, last_name(column->path), column->unit);
        }
    }
    print_grid(w, &g, part->title, false);
}

static void print_lines(struct writer *w, const json_t *value, const char *title)
{
    if (json_is_string(value)) {
        const char *text = json_string_value(value);
        size_t n = strlen(text);
        while (n > 0 && text[n - 1] == '\n') {
            n--;
        }
        start_block(w, title);
        (void)fwrite(text, 1, n, w->f);
        fputc('\n', w->f);
    } else if (json_array_size(value) > 0) {
        start_block(w, title);
        for (size_t i = 0; i < json_array_size(value); i++) {
            const char *line = json_string_value(json_array_get(value, i));
            fprintf(w->f, "%s%s\n", title == NULL ? "" : "  ", line == NULL ? "-" : line);
        }
    }
}

void bt_out_table(FILE *f, const json_t *doc, const struct bt_out_view *view)
{
    struct writer w = {.f = f};
    if (view == NULL) {
        print_members(&w, doc, NULL);
        return;
    }
    for (int32_t i = 0; i < view->n_parts; i++) {
        const struct bt_out_part *part = &view->parts[i];
        const json_t *value = bt_out_at(doc, part->path);
        if (value == NULL) {
            continue;
        }
        switch (part->kind) {
        case BT_OUT_FIELDS:
            print_fields(&w, value, part);
            break;
        case BT_OUT_ROWS:
            print_rows(&w, value, part);
            break;
        case BT_OUT_LINES:
            print_lines(&w, value, part->title);
            break;
        }
    }
}
