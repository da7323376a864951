#include "sim/cost/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cuts the field at *p in place; leaves *p behind its separator. Returns the field; *ended tells
 * that it was the line's last. Quotes are removed. */
static char *cut_field(char **p, bool *ended)
{
    char *read = *p;
    char *start = read;
    char *write = read;
    bool quoted = *read == '"';
    if (quoted) {
        read++;
        while (*read != '\0' && !(read[0] == '"' && read[1] != '"')) {
            if (read[0] == '"') {
                read++;
            }
            *write++ = *read++;
        }
        if (*read == '"') {
            read++;
        }
    }
    while (*read != ',' && *read != '\n' && *read != '\0') {
        if (*read != '\r') {
            *write++ = *read;
        }
        read++;
    }
    *ended = *read != ',';
    *p = *read == '\0' ? read : read + 1;
    *write = '\0';
    return start;
}

/* Lines that a quoted field may hide are not expected in these formats: one line, one row. */
static int32_t cut_line(struct bt_table *t, char **fields)
{
    int32_t n = 0;
    bool ended = false;
    while (!ended) {
        char *field = cut_field(&t->cursor, &ended);
        if (n < BT_TABLE_COLUMNS_MAX) {
            fields[n] = field;
        }
        n++;
    }
    return n;
}

static void skip_to_row(struct bt_table *t, bool comments)
{
    for (;;) {
        char *p = t->cursor;
        while (*p == ' ' || *p == '\r') {
            p++;
        }
        bool comment = comments && *p == '#';
        if (*p != '\n' && !comment) {
            return;
        }
        while (*p != '\n' && *p != '\0') {
            p++;
        }
        if (*p == '\0') {
            t->cursor = p;
            return;
        }
        t->cursor = p + 1;
        t->next_line++;
    }
}

enum bt_code bt_table_open(struct bt_table *t, const char *text, size_t size_bytes,
                           const char *name, struct bt_error *err)
{
    BT_ASSERT(text != NULL && name != NULL);
    memset(t, 0, sizeof *t);
    t->name = name;
    t->text = malloc(size_bytes + 1);
    if (t->text == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %zu bytes", name, size_bytes);
    }
    memcpy(t->text, text, size_bytes);
    t->text[size_bytes] = '\0';
    t->cursor = t->text;
    t->next_line = 1;
    if (size_bytes >= 3 && memcmp(t->text, "\xef\xbb\xbf", 3) == 0) {
        t->cursor += 3; /* byte order mark of spreadsheets */
    }
    enum bt_code code = BT_OK;
    skip_to_row(t, true);
    t->line = t->next_line++;
    if (*t->cursor == '\0') {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                            "%s: empty, expected a header line", name);
    } else {
        t->n_columns = cut_line(t, t->columns);
    }
    if (t->n_columns > BT_TABLE_COLUMNS_MAX) {
        code = bt_error_set(err, BT_ERR_INPUT, t->line, __FILE__, __LINE__,
                            "%s:%d: %d columns, at most %d are read", name, t->line, t->n_columns,
                            BT_TABLE_COLUMNS_MAX);
    }
    for (int32_t i = 0; code == BT_OK && i < t->n_columns; i++) {
        if (bt_table_find(t, t->columns[i]) != i) {
            code = bt_error_set(err, BT_ERR_INPUT, t->line, __FILE__, __LINE__,
                                "%s:%d: column \"%s\" appears twice", name, t->line, t->columns[i]);
        }
    }
    if (code != BT_OK) {
        bt_table_close(t);
    }
    return code;
}

void bt_table_close(struct bt_table *t)
{
    free(t->text);
    memset(t, 0, sizeof *t);
}

int32_t bt_table_find(const struct bt_table *t, const char *column)
{
    for (int32_t i = 0; i < t->n_columns; i++) {
        if (strcmp(t->columns[i], column) == 0) {
            return i;
        }
    }
    return -1;
}

enum bt_code bt_table_require(const struct bt_table *t, const char *column, int32_t *out,
                              struct bt_error *err)
{
    *out = bt_table_find(t, column);
    if (*out < 0) {
        BT_FAIL(err, BT_ERR_INPUT, t->line, "%s:%d: column \"%s\" is missing", t->name, t->line,
                column);
    }
    return BT_OK;
}

enum bt_code bt_table_check_columns(const struct bt_table *t, const char *const *known,
                                    struct bt_error *err)
{
    for (int32_t i = 0; i < t->n_columns; i++) {
        int32_t k = 0;
        while (known[k] != NULL && strcmp(known[k], t->columns[i]) != 0) {
            k++;
        }
        if (known[k] != NULL) {
            continue;
        }
        char list[256];
        size_t used = 0;
        list[0] = '\0';
        for (k = 0; known[k] != NULL; k++) {
            size_t length = strlen(known[k]);
            if (used + length + 3 < sizeof list) {
                memcpy(list + used, k == 0 ? "" : ", ", k == 0 ? 0 : 2);
                used += k == 0 ? 0 : 2;
                memcpy(list + used, known[k], length + 1);
                used += length;
            }
        }
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: unknown column \"%s\"; this format has %s (times in ms are \"latency\", in "
                "us \"time_us\")",
                t->name, t->line, t->columns[i], list);
    }
    return BT_OK;
}

enum bt_code bt_table_next(struct bt_table *t, bool *more, struct bt_error *err)
{
    BT_ASSERT(t->text != NULL);
    skip_to_row(t, false);
    *more = *t->cursor != '\0';
    if (!*more) {
        return BT_OK;
    }
    t->line = t->next_line++;
    int32_t n = cut_line(t, t->fields);
    if (n != t->n_columns) {
        BT_FAIL(err, BT_ERR_INPUT, t->line, "%s:%d: %d fields, the header has %d", t->name, t->line,
                n, t->n_columns);
    }
    return BT_OK;
}

const char *bt_table_text(const struct bt_table *t, int32_t column)
{
    BT_ASSERT(column >= 0 && column < t->n_columns);
    return t->fields[column];
}

enum bt_code bt_table_real(const struct bt_table *t, int32_t column, double *out,
                           struct bt_error *err)
{
    const char *text = bt_table_text(t, column);
    char *end = NULL;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*out)) {
        BT_FAIL(err, BT_ERR_INPUT, t->line, "%s:%d: %s: \"%s\" is not a finite number", t->name,
                t->line, t->columns[column], text);
    }
    return BT_OK;
}

enum bt_code bt_table_int(const struct bt_table *t, int32_t column, int64_t min, int64_t max,
                          int64_t *out, struct bt_error *err)
{
    double value = 0;
    BT_TRY(bt_table_real(t, column, &value, err));
    if (value != floor(value) || value < (double)min || value > (double)max) {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: %s: \"%s\", expected a whole number %lld .. %lld", t->name, t->line,
                t->columns[column], bt_table_text(t, column), (long long)min, (long long)max);
    }
    *out = (int64_t)value;
    return BT_OK;
}
