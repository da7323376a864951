/* Checks a table that somebody else may have written before gnuplot, whose messages point nowhere,
 * gets to see it. */
#include "cli/plot.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct check {
    const struct bt_plot_figure *figure;
    const char *path;
    int64_t line;
    int32_t table;   /* whose rows are being read; -1: none yet */
    int64_t n_first; /* rows of the first table */
};

/* Cuts the next field off a line; NULL when there is none left. */
static char *next_field(char **at)
{
    char *field = *at;
    if (field != NULL) {
        char *tab = strchr(field, '\t');
        *at = tab == NULL ? NULL : tab + 1;
        if (tab != NULL) {
            *tab = '\0';
        }
    }
    return field;
}

static bool names_match(const struct bt_plot_table *table, const char *names)
{
    for (int32_t i = 0; i < table->n_columns; i++) {
        size_t n = strlen(table->columns[i].name);
        if (strncmp(names, table->columns[i].name, n) != 0) {
            return false;
        }
        names += n;
        if (*names != (i + 1 < table->n_columns ? '\t' : '\0')) {
            return false;
        }
        names += *names == '\t';
    }
    return true;
}

static enum bt_code expect_names(const struct check *c, const struct bt_plot_table *table,
                                 struct bt_error *err)
{
    char names[BT_ERROR_MSG_BYTES / 2] = "";
    for (int32_t i = 0; i < table->n_columns; i++) {
        size_t used = strlen(names);
        (void)snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ",
                       table->columns[i].name);
    }
    BT_FAIL(
        err, BT_ERR_INPUT, c->line,
        "%s:%lld: expected the columns of figure %s, \"# \" and then with tabs between them: %s",
        c->path, (long long)c->line, c->figure->name, names);
}

/* A line of column names opens the table that has them. */
static enum bt_code check_names(struct check *c, const char *names, struct bt_error *err)
{
    int32_t from = c->table < 0 ? 0 : c->table;
    for (int32_t i = from; i < c->figure->n_tables; i++) {
        if (names_match(&c->figure->tables[i], names)) {
            c->table = i;
            return BT_OK;
        }
    }
    return expect_names(c, &c->figure->tables[from], err);
}

static enum bt_code check_value(const struct check *c, const struct bt_plot_column *column,
                                const char *value, struct bt_error *err)
{
    if (value == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, c->line, "%s:%lld: %s is missing: expected %d columns", c->path,
                (long long)c->line, column->name, c->figure->tables[c->table].n_columns);
    }
    if (column->is_text) {
        if (strchr(value, '"') != NULL) {
            BT_FAIL(err, BT_ERR_INPUT, c->line,
                    "%s:%lld: %s: expected a name without double quotes, got %s", c->path,
                    (long long)c->line, column->name, value);
        }
        return BT_OK;
    }
    char *end = NULL;
    double x = strtod(value, &end);
    bool is_number = end != value && *end == '\0' && isfinite(x);
    if (!is_number && strcmp(value, "NaN") != 0) {
        BT_FAIL(err, BT_ERR_INPUT, c->line, "%s:%lld: %s: expected a number or NaN, got '%s'",
                c->path, (long long)c->line, column->name, value);
    }
    return BT_OK;
}

static enum bt_code check_row(struct check *c, char *line, struct bt_error *err)
{
    if (c->table < 0) {
        return expect_names(c, &c->figure->tables[0], err);
    }
    const struct bt_plot_table *table = &c->figure->tables[c->table];
    char *at = line;
    for (int32_t i = 0; i < table->n_columns; i++) {
        BT_TRY(check_value(c, &table->columns[i], next_field(&at), err));
    }
    if (at != NULL) {
        BT_FAIL(err, BT_ERR_INPUT, c->line, "%s:%lld: expected %d columns, got more: '%s'", c->path,
                (long long)c->line, table->n_columns, at);
    }
    c->n_first += c->table == 0;
    return BT_OK;
}

static enum bt_code check_line(struct check *c, char *line, struct bt_error *err)
{
    line[strcspn(line, "\r\n")] = '\0';
    if (line[0] == '\0') {
        return BT_OK;
    }
    if (strncmp(line, "# ", 2) == 0) {
        return check_names(c, line + 2, err);
    }
    return check_row(c, line, err);
}

enum bt_code bt_plot_check(const struct bt_plot_figure *figure, const char *path,
                           struct bt_error *err)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot be read: %s", path, strerror(errno));
    }
    struct check c = {.figure = figure, .path = path, .table = -1};
    enum bt_code code = BT_OK;
    char *line = NULL;
    size_t cap = 0;
    errno = 0;
    while (code == BT_OK && getline(&line, &cap, f) >= 0) {
        c.line++;
        code = check_line(&c, line, err);
    }
    int error = ferror(f) ? errno : 0;
    free(line);
    (void)fclose(f);
    if (code == BT_OK && error != 0) {
        BT_FAIL(err, BT_ERR_IO, error, "%s: cannot be read: %s", path, strerror(error));
    }
    if (code == BT_OK && c.n_first == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: expected rows for figure %s, found none", path,
                figure->name);
    }
    return code;
}
