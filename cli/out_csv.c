#include "cli/out_forms.h"

#include <stdlib.h>
#include <string.h>

/* Columns in the order in which rows first show them: name -> index, kept in a jansson object since
 * that is an insertion-ordered map. */

enum { PATH_BYTES = 512 };

typedef void cell_fn(void *ctx, const char *column, const json_t *value);

static bool holds_objects(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_object(item) || json_is_array(item)) {
            return true;
        }
    }
    return false;
}

static void append_key(char *path, size_t n_path, const char *key)
{
    int n = snprintf(path + n_path, PATH_BYTES - n_path, "%s%s", n_path == 0 ? "" : ".", key);
    BT_ASSERT(n >= 0);
    BT_ASSERT((size_t)n < PATH_BYTES - n_path);
}

/* Calls `visit` for each cell of a row, in order. */
static void each_cell(const json_t *value, char *path, cell_fn *visit, void *ctx)
{
    size_t n_path = strlen(path);
    if (json_is_object(value) && json_object_size(value) > 0) {
        json_t *walked = (json_t *)value;
        for (void *it = json_object_iter(walked); it != NULL;
             it = json_object_iter_next(walked, it)) {
            append_key(path, n_path, json_object_iter_key(it));
            each_cell(json_object_iter_value(it), path, visit, ctx);
            path[n_path] = '\0';
        }
    } else if (json_is_array(value) && json_array_size(value) > 0 && !holds_objects(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            char index[24];
            (void)snprintf(index, sizeof index, "%zu", i);
            append_key(path, n_path, index);
            each_cell(json_array_get(value, i), path, visit, ctx);
            path[n_path] = '\0';
        }
    } else {
        visit(ctx, path, value);
    }
}

static void note_column(void *ctx, const char *column, const json_t *value)
{
    (void)value;
    json_t *columns = ctx;
    if (json_object_get(columns, column) == NULL) {
        bt_out_set(columns, column, json_null());
    }
}

static void keep_cell(void *ctx, const char *column, const json_t *value)
{
    BT_ASSERT(json_object_set(ctx, column, (json_t *)value) == 0);
}

/* Quotes where RFC 4180 asks for it. */
static void write_text(FILE *f, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        (void)fputs(text, f);
        return;
    }
    fputc('"', f);
    for (; *text != '\0'; text++) {
        if (*text == '"') {
            fputc('"', f);
        }
        fputc(*text, f);
    }
    fputc('"', f);
}

static enum bt_code write_nested(FILE *f, const json_t *value, struct bt_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *memory = open_memstream(&text, &n_bytes);
    if (memory == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "no memory for a CSV cell");
    }
    bt_out_json_compact(memory, value);
    if (fclose(memory) != 0) {
        free(text);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "no memory for a CSV cell");
    }
    write_text(f, text);
    free(text);
    return BT_OK;
}

static enum bt_code write_cell(FILE *f, const json_t *value, struct bt_error *err)
{
    if (value == NULL || json_is_null(value)) {
        return BT_OK;
    }
    if (json_is_string(value)) {
        write_text(f, json_string_value(value));
        return BT_OK;
    }
    if (json_is_object(value) || json_is_array(value)) {
        return write_nested(f, value, err);
    }
    bt_out_json_compact(f, value);
    return BT_OK;
}

static void write_header(FILE *f, json_t *columns)
{
    const char *separator = "";
    for (void *it = json_object_iter(columns); it != NULL;
         it = json_object_iter_next(columns, it)) {
        (void)fputs(separator, f);
        write_text(f, json_object_iter_key(it));
        separator = ",";
    }
    fputc('\n', f);
}

static enum bt_code write_row(FILE *f, json_t *columns, const json_t *row, struct bt_error *err)
{
    char path[PATH_BYTES] = "";
    json_t *cells = bt_out_object();
    each_cell(row, path, keep_cell, cells);
    const char *separator = "";
    enum bt_code code = BT_OK;
    for (void *it = json_object_iter(columns); it != NULL && code == BT_OK;
         it = json_object_iter_next(columns, it)) {
        (void)fputs(separator, f);
        separator = ",";
        code = write_cell(f, json_object_get(cells, json_object_iter_key(it)), err);
    }
    fputc('\n', f);
    json_decref(cells);
    return code;
}

/* The list at rows_path, or the first list of objects among the document's members. */
static const json_t *rows_of(const json_t *doc, const char *rows_path)
{
    if (rows_path != NULL) {
        return bt_out_at(doc, rows_path);
    }
    json_t *walked = (json_t *)doc;
    for (void *it = json_object_iter(walked); it != NULL; it = json_object_iter_next(walked, it)) {
        const json_t *value = json_object_iter_value(it);
        if (json_is_array(value) && json_is_object(json_array_get(value, 0))) {
            return value;
        }
    }
    return NULL;
}

enum bt_code bt_out_csv(FILE *f, const json_t *doc, const char *rows_path, struct bt_error *err)
{
    const json_t *rows = rows_of(doc, rows_path);
    size_t n_rows = json_is_array(rows) ? json_array_size(rows) : 1;
    json_t *columns = bt_out_object();
    char path[PATH_BYTES] = "";
    for (size_t i = 0; i < n_rows; i++) {
        each_cell(json_is_array(rows) ? json_array_get(rows, i) : doc, path, note_column, columns);
    }
    enum bt_code code = BT_OK;
    if (json_object_size(columns) > 0) {
        write_header(f, columns);
    }
    for (size_t i = 0; i < n_rows && code == BT_OK; i++) {
        code = write_row(f, columns, json_is_array(rows) ? json_array_get(rows, i) : doc, err);
    }
    json_decref(columns);
    return code;
}
