/* Reading the store back: lists, one run, differences, whole tables, verification. */
#include "db/sha256.h"
#include "db/store_impl.h"
#include "engine/core/suggest.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 40 };

struct table {
    const char *name;
    bool of_run;
    const char *order;
};

static const struct table tables[] = {
#define X(name, of_run, order) {#name, of_run, order},
    BT_STORE_TABLES(X)
#undef X
};

static const char *const table_names[] = {
#define X(name, of_run, order) #name,
    BT_STORE_TABLES(X)
#undef X
        NULL,
};

/* ---- rows to callers ---- */

struct reader {
    const char *section;
    bt_store_row_fn row;
    void *ctx;
    int64_t n;
    bool stopped;
};

static bool pass_row(void *ctx, sqlite3_stmt *stmt)
{
    struct reader *r = ctx;
    struct bt_value values[COLUMNS_MAX];
    int32_t n = sqlite3_column_count(stmt);
    BT_ASSERT(n <= COLUMNS_MAX);
    for (int32_t i = 0; i < n; i++) {
        struct bt_value *v = &values[i];
        *v = (struct bt_value){.name = sqlite3_column_name(stmt, i)};
        switch (sqlite3_column_type(stmt, i)) {
        case SQLITE_INTEGER:
            v->type = BT_VALUE_INT;
            v->i = sqlite3_column_int64(stmt, i);
            break;
        case SQLITE_FLOAT:
            v->type = BT_VALUE_REAL;
            v->real = sqlite3_column_double(stmt, i);
            break;
        case SQLITE_NULL:
            break;
        default:
            v->type = BT_VALUE_TEXT;
            v->text = (const char *)sqlite3_column_text(stmt, i);
            break;
        }
    }
    r->n++;
    r->stopped = !r->row(r->ctx, r->section, values, n);
    return !r->stopped;
}

enum bt_code bt_store_list_runs(struct bt_store *s, const char *command, int32_t limit,
                                bt_store_row_fn row, void *ctx, struct bt_error *err)
{
    struct reader r = {.section = "run", .row = row, .ctx = ctx};
    return STORE_QUERY(s, BT_STMT_LIST_RUNS, pass_row, &r, err, BIND_TEXT("command", command),
                       BIND_INT("limit", limit));
}

static enum bt_code list_named(struct bt_store *s, enum bt_store_list what, const char *name,
                               struct reader *r, struct bt_error *err)
{
    static const struct {
        enum bt_statement statement;
        const char *section;
    } lists[] = {
        [BT_LIST_FITS] = {BT_STMT_LIST_FITS, "fit"},
        [BT_LIST_IMPORTS] = {BT_STMT_LIST_IMPORTS, "import"},
        [BT_LIST_BENCHMARKS] = {BT_STMT_LIST_BENCHMARKS, "benchmark"},
    };
    r->section = lists[what].section;
    return STORE_QUERY(s, lists[what].statement, pass_row, r, err, BIND_TEXT("name", name));
}

enum bt_code bt_store_list(struct bt_store *s, enum bt_store_list what, const char *name,
                           bt_store_row_fn row, void *ctx, struct bt_error *err)
{
    struct reader r = {.row = row, .ctx = ctx};
    return list_named(s, what, name, &r, err);
}

enum bt_code bt_store_show_named(struct bt_store *s, const char *name, bt_store_row_fn row,
                                 void *ctx, struct bt_error *err)
{
    struct reader r = {.row = row, .ctx = ctx};
    for (enum bt_store_list i = BT_LIST_FITS; r.n == 0 && i <= BT_LIST_BENCHMARKS; i++) {
        BT_TRY(list_named(s, i, name, &r, err));
    }
    if (r.n == 0) {
        BT_FAIL(err, BT_ERR_NOTFOUND, 0,
                "store: no fit, import or benchmark \"%s\"; `berth db list fits`, `imports` or "
                "`benchmarks` shows them",
                name);
    }
    r.section = "figure";
    return STORE_QUERY(s, BT_STMT_LIST_FIGURES, pass_row, &r, err, BIND_TEXT("name", name));
}

static enum bt_code need_run(struct bt_store *s, int64_t run_id, struct bt_error *err)
{
    const struct bt_bind binds[] = {BIND_INT("run_id", run_id)};
    int64_t found = 0;
    int64_t newest = 0;
    BT_TRY(bt_store_count(s, BT_STMT_FIND_RUN, binds, 1, &found, err));
    if (found != 0) {
        return BT_OK;
    }
    BT_TRY(bt_store_count(s, BT_STMT_NEWEST_RUN, NULL, 0, &newest, err));
    if (newest == 0) {
        BT_FAIL(err, BT_ERR_NOTFOUND, run_id, "run %lld is not in %s, which has no runs yet",
                (long long)run_id, s->path);
    }
    BT_FAIL(err, BT_ERR_NOTFOUND, run_id, "run %lld is not in %s; the newest is %lld",
            (long long)run_id, s->path, (long long)newest);
}

static enum bt_code read_rows(struct bt_store *s, const struct table *t, int64_t run_id,
                              struct reader *r, struct bt_error *err)
{
    char sql[512];
    char where[64] = "";
    if (run_id != 0) {
        (void)snprintf(where, sizeof where, " WHERE run_id = %lld", (long long)run_id);
    }
    int n = snprintf(sql, sizeof sql, "SELECT * FROM %s%s ORDER BY %s", t->name, where, t->order);
    BT_ASSERT(n > 0 && (size_t)n < sizeof sql);
    return bt_store_each(s, sql, pass_row, r, err);
}

static const struct table *find_table(const char *name)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (strcmp(tables[i].name, name) == 0) {
            return &tables[i];
        }
    }
    return NULL;
}

static enum bt_code need_table(struct bt_store *s, const char *name, int64_t run_id,
                               const struct table **out, struct bt_error *err)
{
    enum { N = sizeof tables / sizeof *tables };
    const struct table *t = find_table(name);
    if (t == NULL) {
        char list[BT_ERROR_MSG_BYTES - 128] = "";
        size_t used = 0;
        for (int32_t i = 0; i < N; i++) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                     table_names[i]);
            BT_ASSERT(used < sizeof list);
        }
        const char *near = bt_suggest(name, table_names, N);
        BT_FAIL(err, BT_ERR_NOTFOUND, 0, "table \"%.40s\" is not known%s%s%s (known: %s)", name,
                near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                near != NULL ? "?" : "", list);
    }
    if (run_id != 0 && !t->of_run) {
        BT_FAIL(err, BT_ERR_ARG, run_id, "table %s does not belong to runs", name);
    }
    if (run_id != 0) {
        BT_TRY(need_run(s, run_id, err));
    }
    *out = t;
    return BT_OK;
}

enum bt_code bt_store_read_table(struct bt_store *s, const char *table, int64_t run_id,
                                 bt_store_row_fn row, void *ctx, struct bt_error *err)
{
    const struct table *t = NULL;
    struct reader r = {.section = table, .row = row, .ctx = ctx};
    BT_TRY(need_table(s, table, run_id, &t, err));
    return read_rows(s, t, run_id, &r, err);
}

enum bt_code bt_store_show_run(struct bt_store *s, int64_t run_id, bt_store_row_fn row, void *ctx,
                               struct bt_error *err)
{
    static const struct {
        const char *section, *table;
    } parts[] = {
        {"run", "runs"},
        {"summary", "summaries"},
        {"plan", "plans"},
        {"candidate", "plan_candidates"},
        {"validation", "validations"},
    };
    BT_TRY(need_run(s, run_id, err));
    struct reader r = {.row = row, .ctx = ctx};
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !r.stopped; i++) {
        r.section = parts[i].section;
        BT_TRY(read_rows(s, find_table(parts[i].table), run_id, &r, err));
    }
    return BT_OK;
}

enum bt_code bt_store_diff_runs(struct bt_store *s, int64_t a, int64_t b, bt_store_row_fn row,
                                void *ctx, struct bt_error *err)
{
    BT_TRY(need_run(s, a, err));
    BT_TRY(need_run(s, b, err));
    struct reader r = {.section = "config", .row = row, .ctx = ctx};
    BT_TRY(
        STORE_QUERY(s, BT_STMT_DIFF_CONFIG, pass_row, &r, err, BIND_INT("a", a), BIND_INT("b", b)));
    if (r.stopped) {
        return BT_OK;
    }
    r.section = "metric";
    return STORE_QUERY(s, BT_STMT_DIFF_METRICS, pass_row, &r, err, BIND_INT("a", a),
                       BIND_INT("b", b));
}

/* ---- verification ---- */

struct verifier {
    bt_store_row_fn row;
    void *ctx;
    int32_t n;
    const char *check;
    bool notice;
};

static bool report(struct verifier *v, const char *detail)
{
    const struct bt_value values[] = {
        {.name = "check", .type = BT_VALUE_TEXT, .text = v->check},
        {.name = "detail", .type = BT_VALUE_TEXT, .text = detail},
    };
    v->n += !v->notice;
    return v->row(v->ctx, v->notice ? "notice" : "problem", values, 2);
}

static bool check_integrity(void *ctx, sqlite3_stmt *row)
{
    const char *text = (const char *)sqlite3_column_text(row, 0);
    return strcmp(text, "ok") == 0 || report(ctx, text);
}

static bool check_foreign_key(void *ctx, sqlite3_stmt *row)
{
    char detail[192];
    (void)snprintf(detail, sizeof detail, "a row of %.60s refers to a row of %.60s that is missing",
                   (const char *)sqlite3_column_text(row, 0),
                   (const char *)sqlite3_column_text(row, 2));
    return report(ctx, detail);
}

static bool check_scenario(void *ctx, sqlite3_stmt *row)
{
    char hash[BT_SHA256_HEX_BYTES];
    bt_sha256_text(sqlite3_column_text(row, 1), (size_t)sqlite3_column_bytes(row, 1), hash);
    if (strcmp(hash, (const char *)sqlite3_column_text(row, 2)) == 0) {
        return true;
    }
    char detail[96];
    (void)snprintf(detail, sizeof detail, "run %lld: the scenario's text does not have its hash",
                   (long long)sqlite3_column_int64(row, 0));
    return report(ctx, detail);
}

static bool check_cut_off(void *ctx, sqlite3_stmt *row)
{
    char detail[160];
    (void)snprintf(detail, sizeof detail, "run %lld (%.40s, %.40s) has not ended",
                   (long long)sqlite3_column_int64(row, 0),
                   (const char *)sqlite3_column_text(row, 1),
                   (const char *)sqlite3_column_text(row, 2));
    return report(ctx, detail);
}

static bool check_counts(void *ctx, sqlite3_stmt *row)
{
    char detail[96];
    (void)snprintf(detail, sizeof detail, "run %lld: %lld rows are recorded, %lld are there",
                   (long long)sqlite3_column_int64(row, 0), (long long)sqlite3_column_int64(row, 1),
                   (long long)sqlite3_column_int64(row, 2));
    return report(ctx, detail);
}

static bool check_json(void *ctx, sqlite3_stmt *row)
{
    char detail[96];
    (void)snprintf(detail, sizeof detail, "run %lld: a result is no valid JSON",
                   (long long)sqlite3_column_int64(row, 0));
    return report(ctx, detail);
}

enum bt_code bt_store_verify(struct bt_store *s, bt_store_row_fn row, void *ctx, int32_t *n,
                             struct bt_error *err)
{
    static const struct {
        const char *check;
        enum bt_statement id;
        bt_store_step_fn step;
        bool notice;
    } checks[] = {
        {"scenario hash", BT_STMT_CHECK_SCENARIOS, check_scenario, false},
        {"requests kept", BT_STMT_CHECK_COUNTS, check_counts, false},
        {"plan candidates", BT_STMT_CHECK_PLANS, check_counts, false},
        {"json", BT_STMT_CHECK_JSON, check_json, false},
        {"runs cut off", BT_STMT_CHECK_CUT_OFF, check_cut_off, true},
    };
    struct verifier v = {.row = row, .ctx = ctx, .check = "integrity"};
    BT_TRY(bt_store_each(s, "PRAGMA integrity_check", check_integrity, &v, err));
    v.check = "foreign keys";
    BT_TRY(bt_store_each(s, "PRAGMA foreign_key_check", check_foreign_key, &v, err));
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        v.check = checks[i].check;
        v.notice = checks[i].notice;
        BT_TRY(bt_store_query(s, checks[i].id, NULL, 0, checks[i].step, &v, err));
    }
    *n = v.n;
    return BT_OK;
}

/* ---- export ---- */

struct exporter {
    FILE *out;
    enum bt_export_format format;
    int64_t n_rows;
    bool failed;
};

static void put_csv_text(FILE *out, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        (void)fputs(text, out);
        return;
    }
    (void)fputc('"', out);
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"') {
            (void)fputc('"', out);
        }
        (void)fputc(*p, out);
    }
    (void)fputc('"', out);
}

static void put_json_text(FILE *out, const char *text)
{
    (void)fputc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\') {
            (void)fprintf(out, "\\%c", *p);
        } else if (*p < 0x20) {
            (void)fprintf(out, "\\u%04x", *p);
        } else {
            (void)fputc(*p, out);
        }
    }
    (void)fputc('"', out);
}

/* The shortest digits that read back as the same number. */
static void put_real(FILE *out, double x)
{
    char text[32];
    int digits = 15;
    do {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
    } while (digits++ < 17 && strtod(text, NULL) != x);
    (void)fputs(text, out);
}

static void put_value(const struct exporter *e, const struct bt_value *v)
{
    bool json = e->format == BT_EXPORT_JSON;
    size_t n = strlen(v->name);
    switch (v->type) {
    case BT_VALUE_NULL:
        (void)fputs(json ? "null" : "", e->out);
        break;
    case BT_VALUE_INT:
        (void)fprintf(e->out, "%lld", (long long)v->i);
        break;
    case BT_VALUE_REAL:
        put_real(e->out, v->real);
        break;
    case BT_VALUE_TEXT:
        if (!json) {
            put_csv_text(e->out, v->text);
        } else if (n > 5 && strcmp(v->name + n - 5, "_json") == 0) {
            (void)fputs(v->text, e->out);
        } else {
            put_json_text(e->out, v->text);
        }
        break;
    }
}

static bool export_row(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)section;
    struct exporter *e = ctx;
    bool json = e->format == BT_EXPORT_JSON;
    for (int32_t i = 0; i < n && !json && e->n_rows == 0; i++) {
        (void)fprintf(e->out, "%s%s", values[i].name, i + 1 < n ? "," : "\n");
    }
    if (json) {
        (void)fputs(e->n_rows == 0 ? "\n  {" : ",\n  {", e->out);
    }
    for (int32_t i = 0; i < n; i++) {
        (void)fputs(i == 0 ? "" : json ? ", " : ",", e->out);
        if (json) {
            (void)fprintf(e->out, "\"%s\": ", values[i].name);
        }
        put_value(e, &values[i]);
    }
    (void)fputs(json ? "}" : "\n", e->out);
    e->n_rows++;
    e->failed = ferror(e->out) != 0;
    return !e->failed;
}

enum bt_code bt_store_export(struct bt_store *s, const char *table, int64_t run_id,
                             enum bt_export_format format, FILE *out, struct bt_error *err)
{
    struct exporter e = {.out = out, .format = format};
    const struct table *t = NULL;
    BT_TRY(need_table(s, table, run_id, &t, err));
    if (format == BT_EXPORT_JSON) {
        (void)fputs("[", out);
    }
    struct reader r = {.section = table, .row = export_row, .ctx = &e};
    BT_TRY(read_rows(s, t, run_id, &r, err));
    if (format == BT_EXPORT_JSON) {
        (void)fputs(e.n_rows > 0 ? "\n]\n" : "]\n", out);
    }
    if (e.failed || fflush(out) != 0) {
        BT_FAIL(err, BT_ERR_IO, 0, "export of %s: the output cannot be written", table);
    }
    return BT_OK;
}
