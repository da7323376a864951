#include "db/csv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text being read, copied into the arena so that cells can be cut in place. */
struct cursor {
    char *at;
    char *end;
    int32_t line;
    const char *label;
    struct bt_error *err;
};

enum ending { END_CELL, END_ROW, END_TEXT };

/* Unquotes the cell at the cursor in place and cuts it. */
static enum bt_code take_quoted(struct cursor *c, char **cell)
{
    int32_t first = c->line;
    char *to = ++c->at;
    *cell = to;
    for (;;) {
        if (c->at == c->end) {
            BT_FAIL(c->err, BT_ERR_INPUT, first, "%s:%d: a quote is opened and never closed",
                    c->label, first);
        }
        if (*c->at == '"') {
            if (c->at + 1 < c->end && c->at[1] == '"') {
                c->at++;
            } else {
                break;
            }
        }
        c->line += *c->at == '\n';
        *to++ = *c->at++;
    }
    c->at++;
    *to = '\0';
    if (c->at < c->end && *c->at != ',' && *c->at != '\n' && *c->at != '\r') {
        BT_FAIL(c->err, BT_ERR_INPUT, c->line, "%s:%d: text after a closing quote", c->label,
                c->line);
    }
    return BT_OK;
}

static enum bt_code take_cell(struct cursor *c, char **cell, enum ending *ending)
{
    char *stop = NULL;
    if (c->at < c->end && *c->at == '"') {
        BT_TRY(take_quoted(c, cell));
    } else {
        *cell = c->at;
        while (c->at < c->end && *c->at != ',' && *c->at != '\n' && *c->at != '\r') {
            c->at++;
        }
        stop = c->at;
    }
    bool crlf = c->end - c->at >= 2 && c->at[0] == '\r' && c->at[1] == '\n';
    if (c->at == c->end) {
        *ending = END_TEXT;
    } else if (*c->at == ',') {
        *ending = END_CELL;
        c->at++;
    } else {
        *ending = END_ROW;
        c->at += crlf ? 2 : 1;
        c->line++;
    }
    if (stop != NULL) {
        *stop = '\0';
    }
    return BT_OK;
}

/* Passes over empty lines and comments. */
static void skip_blank(struct cursor *c)
{
    while (c->at < c->end && (*c->at == '#' || *c->at == '\n' || *c->at == '\r')) {
        while (c->at < c->end && *c->at != '\n') {
            c->at++;
        }
        if (c->at < c->end) {
            c->at++;
            c->line++;
        }
    }
}

static enum bt_code read_header(struct bt_arena *arena, struct cursor *c, struct bt_csv *out)
{
    skip_blank(c);
    int64_t most = 1;
    for (const char *p = c->at; p < c->end && *p != '\n'; p++) {
        most += *p == ',';
    }
    BT_ARENA_ARRAY(arena, out->header, most, c->err);
    enum ending ending = c->at < c->end ? END_CELL : END_TEXT;
    while (ending == END_CELL) {
        char *cell = NULL;
        BT_TRY(take_cell(c, &cell, &ending));
        out->header[out->n_columns++] = cell;
    }
    if (out->n_columns == 0) {
        BT_FAIL(c->err, BT_ERR_INPUT, 0, "%s:1: empty; expected a header line", c->label);
    }
    return BT_OK;
}

static enum bt_code read_row(struct cursor *c, struct bt_csv *out)
{
    enum ending ending = END_CELL;
    int32_t line = c->line;
    int32_t n = 0;
    out->lines[out->n_rows] = line;
    while (ending == END_CELL) {
        char *cell = NULL;
        BT_TRY(take_cell(c, &cell, &ending));
        if (n < out->n_columns) {
            out->cells[(int64_t)out->n_rows * out->n_columns + n] = cell;
        }
        n++;
    }
    if (n != out->n_columns) {
        BT_FAIL(c->err, BT_ERR_INPUT, line, "%s:%d: %d cells; the header has %d", c->label, line, n,
                out->n_columns);
    }
    out->n_rows++;
    return BT_OK;
}

enum bt_code bt_csv_read(struct bt_arena *arena, const char *text, size_t n_bytes,
                         const char *label, struct bt_csv *out, struct bt_error *err)
{
    *out = (struct bt_csv){.label = label};
    char *copy = bt_arena_take(arena, n_bytes + 1);
    if (copy == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %zu bytes", label, n_bytes);
    }
    memcpy(copy, text, n_bytes);
    copy[n_bytes] = '\0';
    int64_t rows = 1;
    for (size_t i = 0; i < n_bytes; i++) {
        rows += copy[i] == '\n';
    }
    struct cursor c = {.at = copy, .end = copy + n_bytes, .line = 1, .label = label, .err = err};
    BT_TRY(read_header(arena, &c, out));
    BT_ARENA_ARRAY(arena, out->cells, rows * out->n_columns, err);
    BT_ARENA_ARRAY(arena, out->lines, rows, err);
    for (skip_blank(&c); c.at < c.end; skip_blank(&c)) {
        BT_TRY(read_row(&c, out));
    }
    return BT_OK;
}

int32_t bt_csv_column(const struct bt_csv *csv, const char *name)
{
    for (int32_t i = 0; i < csv->n_columns; i++) {
        if (strcmp(csv->header[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

void bt_csv_fail(struct bt_csv_row *r, const char *column, const char *message)
{
    if (r->code != BT_OK) {
        return;
    }
    int32_t line = r->csv->lines[r->row];
    r->code = bt_error_set(r->err, BT_ERR_INPUT, line, __FILE__, __LINE__, "%s:%d: %s: %s",
                           r->csv->label, line, column, message);
}

const char *bt_csv_text(struct bt_csv_row *r, const char *column)
{
    BT_ASSERT(r->row >= 0 && r->row < r->csv->n_rows);
    int32_t c = bt_csv_column(r->csv, column);
    if (c < 0) {
        bt_csv_fail(r, column, "there is no such column");
        return "";
    }
    return r->csv->cells[(int64_t)r->row * r->csv->n_columns + c];
}

double bt_csv_real(struct bt_csv_row *r, const char *column, double min, double max, double empty)
{
    const char *text = bt_csv_text(r, column);
    if (*text == '\0') {
        return empty;
    }
    char *end = NULL;
    errno = 0;
    double x = strtod(text, &end);
    if (*end != '\0' || errno != 0 || !(x >= min && x <= max)) {
        char message[128];
        (void)snprintf(message, sizeof message, "expected a number %g..%g, got \"%.40s\"", min, max,
                       text);
        bt_csv_fail(r, column, message);
        return 0;
    }
    return x;
}

int64_t bt_csv_int(struct bt_csv_row *r, const char *column, int64_t min, int64_t max,
                   int64_t empty)
{
    const char *text = bt_csv_text(r, column);
    if (*text == '\0') {
        return empty;
    }
    char *end = NULL;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0 || x < min || x > max) {
        char message[128];
        (void)snprintf(message, sizeof message,
                       "expected an integer %" PRId64 "..%" PRId64 ", got \"%.40s\"", min, max,
                       text);
        bt_csv_fail(r, column, message);
        return 0;
    }
    return x;
}

bool bt_csv_bool(struct bt_csv_row *r, const char *column)
{
    const char *text = bt_csv_text(r, column);
    bool yes = strcmp(text, "1") == 0 || strcmp(text, "yes") == 0;
    if (!yes && *text != '\0' && strcmp(text, "0") != 0 && strcmp(text, "no") != 0) {
        bt_csv_fail(r, column, "expected 0 or 1");
    }
    return yes;
}

void bt_csv_copy(struct bt_csv_row *r, const char *column, char *out, size_t out_bytes)
{
    const char *text = bt_csv_text(r, column);
    if (strlen(text) >= out_bytes) {
        bt_csv_fail(r, column, "too long");
        *out = '\0';
        return;
    }
    memcpy(out, text, strlen(text) + 1);
}
