#include "engine/core/limits.h"
#include "engine/core/rng.h"
#include "sim/workload/columns.h"
#include "sim/workload/dist.h"
#include "sim/workload/internal.h"
#include "sim/workload/keymap.h"
#include "sim/workload/lines.h"
#include "sim/workload/text.h"
#include "sim/workload/trace.h"

#include <jansson.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bt_trace_reader {
    struct bt_lines *lines; /* owned */
    enum bt_trace_format format;
    bool json;
    char sep;
    int32_t n_fields;       /* CSV: of the header */
    struct bt_text *fields; /* owned: BT_MAX_COLUMNS */
    struct bt_columns columns;
    bool zone_known, has_zone;
    json_t *object;      /* owned: the current row */
    bool object_pending; /* the first object, read on opening */
    int64_t next_row;
    int64_t line; /* of the current row */
    struct bt_keymap sessions;
    int32_t n_sessions;
    uint64_t *hashes; /* owned: of the current row */
    int64_t hashes_cap;
};

/* Times lie within this of their clock's zero, so that no difference of two overflows: 146 years.
 */
static const int64_t TIME_MAX_NS = INT64_MAX / 2;

enum cell_kind { CELL_MISSING, CELL_TEXT, CELL_WHOLE, CELL_REAL, CELL_OTHER };

/* A value of the current row. */
struct cell {
    enum cell_kind kind;
    struct bt_text text;
    int64_t whole;
    double real;
    json_t *json; /* borrowed */
};

static struct cell get_cell(const struct bt_trace_reader *r, enum bt_role role)
{
    const struct bt_column *col = &r->columns.role[role];
    struct cell c = {.kind = CELL_MISSING};
    if (!col->given) {
        return c;
    }
    if (!r->json) {
        c.text = r->fields[col->index];
        c.kind = c.text.n == 0 ? CELL_MISSING : CELL_TEXT;
        return c;
    }
    json_t *v = json_object_get(r->object, col->name);
    c.json = v;
    switch (v == NULL ? JSON_NULL : json_typeof(v)) {
    case JSON_NULL:
        break;
    case JSON_STRING:
        c.kind = CELL_TEXT;
        /* jansson gives const, and nothing writes through the text of a cell. */
        c.text.s = (char *)(uintptr_t)json_string_value(v);
        c.text.n = (int32_t)json_string_length(v);
        break;
    case JSON_INTEGER:
        c.kind = CELL_WHOLE;
        c.whole = json_integer_value(v);
        break;
    case JSON_REAL:
        c.kind = CELL_REAL;
        c.real = json_real_value(v);
        break;
    case JSON_OBJECT:
    case JSON_ARRAY:
    case JSON_TRUE:
    case JSON_FALSE:
        c.kind = CELL_OTHER;
        break;
    }
    return c;
}

/* An error at the current row: "file:line: column NAME: value "x": expected ...". */
static enum bt_code fail_cell(const struct bt_trace_reader *r, enum bt_role role,
                              const struct cell *c, const char *expected, struct bt_error *err)
{
    char value[80];
    switch (c->kind) {
    case CELL_MISSING:
        snprintf(value, sizeof value, "no value");
        break;
    case CELL_TEXT:
        snprintf(value, sizeof value, "value \"%.*s\"", c->text.n < 60 ? c->text.n : 60, c->text.s);
        break;
    case CELL_WHOLE:
        snprintf(value, sizeof value, "value %lld", (long long)c->whole);
        break;
    case CELL_REAL:
        snprintf(value, sizeof value, "value %.17g", c->real);
        break;
    case CELL_OTHER:
        snprintf(value, sizeof value, "value of another type");
        break;
    }
    BT_FAIL(err, BT_ERR_INPUT, r->line, "%s:%lld: column %s: %s: expected %s",
            bt_lines_path(r->lines), (long long)r->line, r->columns.role[role].name, value,
            expected);
}

static enum bt_code get_whole(const struct bt_trace_reader *r, enum bt_role role, int64_t min,
                              int64_t max, int64_t *out, struct bt_error *err)
{
    struct cell c = get_cell(r, role);
    bool ok = false;
    if (c.kind == CELL_WHOLE) {
        *out = c.whole;
        ok = true;
    } else if (c.kind == CELL_TEXT) {
        ok = bt_parse_whole(c.text.s, c.text.n, out);
    } else if (c.kind == CELL_REAL && c.real == floor(c.real) && fabs(c.real) < 1e15) {
        *out = (int64_t)c.real;
        ok = true;
    }
    if (!ok || *out < min || *out > max) {
        char expected[80];
        snprintf(expected, sizeof expected, "a whole number %lld to %lld", (long long)min,
                 (long long)max);
        return fail_cell(r, role, &c, expected, err);
    }
    return BT_OK;
}

/* A date, whose zone must be given in all rows or in none. */
static enum bt_code get_date(struct bt_trace_reader *r, enum bt_role role, const struct cell *c,
                             int64_t *out_ns, struct bt_error *err)
{
    bool has_zone;
    if (c->kind != CELL_TEXT || !bt_parse_iso(c->text.s, c->text.n, out_ns, &has_zone) ||
        *out_ns > TIME_MAX_NS || *out_ns < -TIME_MAX_NS) {
        return fail_cell(r, role, c,
                         "a time YYYY-MM-DD HH:MM:SS[.fraction of up to 9 digits][zone]", err);
    }
    if (r->zone_known && has_zone != r->has_zone) {
        return fail_cell(
            r, role, c,
            r->has_zone ? "a zone, as in the rows before" : "no zone, as in the rows before", err);
    }
    r->zone_known = true;
    r->has_zone = has_zone;
    return BT_OK;
}

/* A number of a unit: S, MS, US, NS. */
static enum bt_code get_span(const struct bt_trace_reader *r, enum bt_role role,
                             const struct cell *c, int64_t *out_ns, struct bt_error *err)
{
    enum bt_time_unit unit = r->columns.role[role].unit;
    bool ok = false;
    char text[32];
    if (c->kind == CELL_TEXT) {
        ok = bt_parse_time(c->text.s, c->text.n, unit, out_ns);
    } else if (c->kind == CELL_WHOLE || c->kind == CELL_REAL) {
        int n = c->kind == CELL_WHOLE ? snprintf(text, sizeof text, "%lld", (long long)c->whole)
                                      : snprintf(text, sizeof text, "%.17g", c->real);
        ok = bt_parse_time(text, (int32_t)n, unit, out_ns);
    }
    if (!ok || *out_ns > TIME_MAX_NS || *out_ns < -TIME_MAX_NS) {
        char expected[80];
        snprintf(expected, sizeof expected, "a number of %s within 146 years", bt_unit_name(unit));
        return fail_cell(r, role, c, expected, err);
    }
    return BT_OK;
}

/* The unit of a moment that nothing has named: a date, or the size of Unix time today. */
static enum bt_code find_unit(struct bt_trace_reader *r, enum bt_role role, const struct cell *c,
                              struct bt_error *err)
{
    struct bt_column *col = &r->columns.role[role];
    double v = 0.0;
    int64_t ns;
    bool zone;
    bool number = true;
    if (c->kind == CELL_TEXT) {
        number = bt_parse_real(c->text.s, c->text.n, &v);
        if (!number && bt_parse_iso(c->text.s, c->text.n, &ns, &zone)) {
            col->unit = BT_TIME_ISO;
            return BT_OK;
        }
    } else if (c->kind == CELL_WHOLE) {
        v = (double)c->whole;
    } else if (c->kind == CELL_REAL) {
        v = c->real;
    } else {
        number = false;
    }
    /* 2001 to 2128: the four scales do not overlap. */
    static const struct {
        double scale;
        enum bt_time_unit unit;
    } epochs[] = {{1.0, BT_TIME_S}, {1e3, BT_TIME_MS}, {1e6, BT_TIME_US}, {1e9, BT_TIME_NS}};
    for (size_t i = 0; number && i < sizeof epochs / sizeof *epochs; i++) {
        if (v >= 1e9 * epochs[i].scale && v < 5e9 * epochs[i].scale) {
            col->unit = epochs[i].unit;
            return BT_OK;
        }
    }
    char expected[200];
    snprintf(expected, sizeof expected,
             number ? "a known unit; say columns %s=%.80s:s (or ms, us, ns)"
                    : "a time: a date or a number (%s=%.80s)",
             bt_role_name(role), col->name);
    return fail_cell(r, role, c, expected, err);
}

static enum bt_code get_moment(struct bt_trace_reader *r, enum bt_role role, int64_t *out_ns,
                               struct bt_error *err)
{
    struct cell c = get_cell(r, role);
    if (r->columns.role[role].unit == BT_TIME_AUTO) {
        BT_TRY(find_unit(r, role, &c, err));
    }
    if (r->columns.role[role].unit == BT_TIME_ISO) {
        return get_date(r, role, &c, out_ns, err);
    }
    return get_span(r, role, &c, out_ns, err);
}

/* A duration that may be missing: then -1. */
static enum bt_code get_duration(struct bt_trace_reader *r, enum bt_role role, int64_t *out_ns,
                                 struct bt_error *err)
{
    struct cell c = get_cell(r, role);
    *out_ns = -1;
    if (c.kind == CELL_MISSING) {
        return BT_OK;
    }
    BT_TRY(get_span(r, role, &c, out_ns, err));
    if (*out_ns < 0) {
        return fail_cell(r, role, &c, "a duration >= 0", err);
    }
    return BT_OK;
}

static bool cell_key(const struct cell *c, uint64_t *key)
{
    if (c->kind == CELL_WHOLE) {
        char text[32];
        int n = snprintf(text, sizeof text, "%lld", (long long)c->whole);
        *key = bt_hash_bytes(text, (uint64_t)n, 0);
        return true;
    }
    if (c->kind == CELL_TEXT) {
        *key = bt_hash_bytes(c->text.s, (uint64_t)c->text.n, 0);
        return true;
    }
    return false;
}

/* The dense number of the row's session: by name, or in Qwen-Bailian that of the parent turn. */
static enum bt_code get_session(struct bt_trace_reader *r, int32_t *out, struct bt_error *err)
{
    struct cell c = get_cell(r, BT_ROLE_SESSION);
    *out = -1;
    if (c.kind == CELL_MISSING) {
        return BT_OK;
    }
    uint64_t key;
    if (!cell_key(&c, &key)) {
        return fail_cell(r, BT_ROLE_SESSION, &c, "a whole number or a name", err);
    }
    struct cell parent = get_cell(r, BT_ROLE_PARENT);
    uint64_t parent_key;
    bool has_parent =
        cell_key(&parent, &parent_key) && !(parent.kind == CELL_WHOLE && parent.whole < 0);
    int32_t session = bt_keymap_find(&r->sessions, has_parent ? parent_key : key);
    if (session < 0 && r->n_sessions == INT32_MAX) {
        return fail_cell(r, BT_ROLE_SESSION, &c, "at most 2^31 - 1 sessions", err);
    }
    if (session < 0) {
        session = r->n_sessions++;
    } else if (!has_parent) {
        *out = session;
        return BT_OK;
    }
    BT_TRY(bt_keymap_put(&r->sessions, key, session, err));
    *out = session;
    return BT_OK;
}

static enum bt_code add_hash(struct bt_trace_reader *r, int32_t n, uint64_t h, struct bt_error *err)
{
    BT_TRY(bt_array_grow((void **)&r->hashes, &r->hashes_cap, n + 1, sizeof *r->hashes, err));
    r->hashes[n] = h;
    return BT_OK;
}

static enum bt_code get_json_hashes(struct bt_trace_reader *r, const struct cell *c, int32_t *n,
                                    struct bt_error *err)
{
    if (!json_is_array(c->json)) {
        return fail_cell(r, BT_ROLE_HASHES, c, "an array of block hashes", err);
    }
    size_t i;
    json_t *v;
    json_array_foreach(c->json, i, v)
    {
        uint64_t h;
        if (json_is_integer(v)) {
            h = (uint64_t)json_integer_value(v);
        } else if (json_is_string(v)) {
            h = bt_hash_bytes(json_string_value(v), json_string_length(v), 0);
        } else {
            return fail_cell(r, BT_ROLE_HASHES, c, "whole numbers or names in the array", err);
        }
        BT_TRY(add_hash(r, *n, h, err));
        ++*n;
    }
    return BT_OK;
}

/* Block hashes of a CSV field: whole numbers separated by blanks. */
static enum bt_code get_text_hashes(struct bt_trace_reader *r, const struct cell *c, int32_t *n,
                                    struct bt_error *err)
{
    const char *s = c->text.s;
    const char *end = s + c->text.n;
    while (s < end) {
        const char *word = s;
        while (s < end && *s != ' ') {
            s++;
        }
        int64_t h;
        if (s == word || !bt_parse_whole(word, (int32_t)(s - word), &h)) {
            return fail_cell(r, BT_ROLE_HASHES, c, "whole numbers separated by single blanks", err);
        }
        BT_TRY(add_hash(r, *n, (uint64_t)h, err));
        ++*n;
        s += s < end;
    }
    return BT_OK;
}

static enum bt_code get_hashes(struct bt_trace_reader *r, struct bt_trace_row *row,
                               struct bt_error *err)
{
    struct cell c = get_cell(r, BT_ROLE_HASHES);
    row->n_hashes = 0;
    row->hash_tokens = 0;
    row->hashes = NULL;
    if (c.kind == CELL_MISSING) {
        return BT_OK;
    }
    if (r->json) {
        BT_TRY(get_json_hashes(r, &c, &row->n_hashes, err));
    } else {
        BT_TRY(get_text_hashes(r, &c, &row->n_hashes, err));
    }
    if (row->n_hashes == 0) {
        return BT_OK;
    }
    int64_t hash_tokens = r->columns.hash_tokens;
    if (hash_tokens == 0) {
        BT_TRY(get_whole(r, BT_ROLE_HASH_TOKENS, 1, BT_MAX_TOKENS, &hash_tokens, err));
    }
    row->hash_tokens = (int32_t)hash_tokens;
    row->hashes = r->hashes;
    return BT_OK;
}

/* first_token and last_token as durations, where no column gives these directly. */
static enum bt_code derive_measured(struct bt_trace_reader *r, struct bt_trace_row *row,
                                    struct bt_error *err)
{
    struct bt_measured *m = &row->measured;
    int64_t first_ns = 0;
    int64_t last_ns = 0;
    struct cell first = get_cell(r, BT_ROLE_FIRST_TOKEN);
    struct cell last = get_cell(r, BT_ROLE_LAST_TOKEN);
    if (first.kind != CELL_MISSING) {
        BT_TRY(get_moment(r, BT_ROLE_FIRST_TOKEN, &first_ns, err));
        if (first_ns < row->time_ns) {
            return fail_cell(r, BT_ROLE_FIRST_TOKEN, &first, "a moment not before the arrival",
                             err);
        }
        if (m->ttft_ns < 0) {
            m->ttft_ns = first_ns - row->time_ns;
        }
    }
    if (last.kind != CELL_MISSING) {
        BT_TRY(get_moment(r, BT_ROLE_LAST_TOKEN, &last_ns, err));
        if (last_ns < row->time_ns || (first.kind != CELL_MISSING && last_ns < first_ns)) {
            return fail_cell(r, BT_ROLE_LAST_TOKEN, &last,
                             "a moment not before the arrival and the first token", err);
        }
        if (m->e2e_ns < 0) {
            m->e2e_ns = last_ns - row->time_ns;
        }
    }
    if (m->tpot_ns < 0 && m->ttft_ns >= 0 && m->e2e_ns >= m->ttft_ns && row->n_output > 1) {
        m->tpot_ns = (m->e2e_ns - m->ttft_ns) / (row->n_output - 1);
    }
    return BT_OK;
}

static enum bt_code fill_row(struct bt_trace_reader *r, struct bt_trace_row *row,
                             struct bt_error *err)
{
    const struct bt_column *role = r->columns.role;
    int64_t n;
    *row = (struct bt_trace_row){.row = r->next_row, .line = r->line, .session = -1};
    row->measured = (struct bt_measured){-1, -1, -1};
    BT_TRY(get_whole(r, BT_ROLE_PROMPT, 0, BT_MAX_TOKENS, &n, err));
    row->n_prompt = (int32_t)n;
    BT_TRY(get_whole(r, BT_ROLE_OUTPUT, 0, BT_MAX_TOKENS, &n, err));
    row->n_output = (int32_t)n;
    if (role[BT_ROLE_TTFT].given) {
        BT_TRY(get_duration(r, BT_ROLE_TTFT, &row->measured.ttft_ns, err));
    }
    if (role[BT_ROLE_E2E].given) {
        BT_TRY(get_duration(r, BT_ROLE_E2E, &row->measured.e2e_ns, err));
    }
    if (role[BT_ROLE_TPOT].given) {
        BT_TRY(get_duration(r, BT_ROLE_TPOT, &row->measured.tpot_ns, err));
    }
    if (role[BT_ROLE_TIMESTAMP].given) {
        BT_TRY(get_moment(r, BT_ROLE_TIMESTAMP, &row->time_ns, err));
    } else {
        BT_TRY(get_moment(r, BT_ROLE_FINISH, &row->time_ns, err));
        if (row->measured.e2e_ns < 0) {
            struct cell c = get_cell(r, BT_ROLE_E2E);
            return fail_cell(r, BT_ROLE_E2E, &c, "a duration (arrival = finish - e2e)", err);
        }
        row->time_ns -= row->measured.e2e_ns;
        if (row->time_ns < -TIME_MAX_NS) {
            struct cell c = get_cell(r, BT_ROLE_E2E);
            return fail_cell(r, BT_ROLE_E2E, &c, "an arrival (finish - e2e) within 146 years", err);
        }
    }
    if (role[BT_ROLE_PRIORITY].given &&
        !(r->json && get_cell(r, BT_ROLE_PRIORITY).kind == CELL_MISSING)) {
        BT_TRY(get_whole(r, BT_ROLE_PRIORITY, 0, BT_MAX_PRIORITY, &n, err));
        row->priority = (int32_t)n;
    }
    if (role[BT_ROLE_TIMEOUT].given) {
        BT_TRY(get_duration(r, BT_ROLE_TIMEOUT, &row->timeout_ns, err));
        row->timeout_ns = row->timeout_ns < 0 ? 0 : row->timeout_ns;
    }
    if (role[BT_ROLE_SESSION].given) {
        BT_TRY(get_session(r, &row->session, err));
    }
    if (role[BT_ROLE_HASHES].given) {
        BT_TRY(get_hashes(r, row, err));
    }
    return derive_measured(r, row, err);
}

static enum bt_code parse_object(struct bt_trace_reader *r, const char *text, int64_t n,
                                 struct bt_error *err)
{
    json_error_t e;
    json_decref(r->object);
    r->object = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &e);
    if (r->object == NULL || !json_is_object(r->object)) {
        BT_FAIL(err, BT_ERR_INPUT, r->line, "%s:%lld: expected one JSON object a line: %s",
                bt_lines_path(r->lines), (long long)r->line,
                r->object == NULL ? e.text : "another value is there");
    }
    return BT_OK;
}

static bool blank(const char *s)
{
    while (isspace((unsigned char)*s)) {
        s++;
    }
    return *s == '\0';
}

/* The next line that is not blank; NULL at the end. */
static enum bt_code next_line(struct bt_trace_reader *r, char **text, int64_t *n,
                              struct bt_error *err)
{
    do {
        BT_TRY(bt_lines_next(r->lines, !r->json, text, n, err));
    } while (*text != NULL && blank(*text));
    r->line = bt_lines_number(r->lines);
    return BT_OK;
}

static enum bt_code split_record(struct bt_trace_reader *r, char *text, int64_t n,
                                 struct bt_error *err)
{
    int32_t n_fields = bt_csv_split(text, n, r->sep, r->fields, BT_MAX_COLUMNS);
    if (n_fields < 0) {
        BT_FAIL(err, BT_ERR_INPUT, r->line,
                "%s:%lld: a quoted field is not closed, or followed by text",
                bt_lines_path(r->lines), (long long)r->line);
    }
    if (n_fields > BT_MAX_COLUMNS) {
        BT_FAIL(err, BT_ERR_INPUT, r->line, "%s:%lld: %d fields; at most %d are read",
                bt_lines_path(r->lines), (long long)r->line, n_fields, BT_MAX_COLUMNS);
    }
    if (r->n_fields > 0 && n_fields != r->n_fields) {
        BT_FAIL(err, BT_ERR_INPUT, r->line, "%s:%lld: %d fields; expected %d as in the header",
                bt_lines_path(r->lines), (long long)r->line, n_fields, r->n_fields);
    }
    r->n_fields = n_fields;
    return BT_OK;
}

enum bt_code bt_trace_reader_next(struct bt_trace_reader *r, struct bt_trace_row *row, bool *end,
                                  struct bt_error *err)
{
    *end = false;
    if (r->object_pending) {
        r->object_pending = false;
    } else {
        char *text;
        int64_t n;
        BT_TRY(next_line(r, &text, &n, err));
        if (text == NULL) {
            *end = true;
            return BT_OK;
        }
        if (r->json) {
            BT_TRY(parse_object(r, text, n, err));
        } else {
            BT_TRY(split_record(r, text, n, err));
        }
    }
    BT_TRY(fill_row(r, row, err));
    r->next_row++;
    return BT_OK;
}

static enum bt_code check_format(struct bt_trace_reader *r, enum bt_trace_format asked,
                                 enum bt_trace_format found, struct bt_error *err)
{
    bool asked_json =
        asked == BT_TRACE_MOONCAKE || asked == BT_TRACE_QWEN || asked == BT_TRACE_JSONL;
    if (asked != BT_TRACE_AUTO && asked_json != r->json) {
        BT_FAIL(err, BT_ERR_INPUT, r->line, "%s:%lld: format %s is asked for, but this is %s",
                bt_lines_path(r->lines), (long long)r->line, bt_trace_format_name(asked),
                r->json ? "JSON" : "not JSON");
    }
    r->format = asked != BT_TRACE_AUTO ? asked : found;
    return BT_OK;
}

static enum bt_code bind(struct bt_trace_reader *r, const struct bt_trace_opts *opts,
                         const char *const *names, int32_t n, struct bt_error *err)
{
    char where[600];
    BT_TRY(check_format(r, opts->format, bt_columns_detect(names, n, r->json), err));
    snprintf(where, sizeof where, "%.500s:%lld", bt_lines_path(r->lines), (long long)r->line);
    return bt_columns_bind(&r->columns, r->format, opts, names, n, where, err);
}

/* Reads the header and binds its names; a first row of numbers is no header. */
static enum bt_code open_csv(struct bt_trace_reader *r, const struct bt_trace_opts *opts,
                             char *text, int64_t n, struct bt_error *err)
{
    r->sep = strchr(text, ',') != NULL    ? ','
             : strchr(text, '\t') != NULL ? '\t'
             : strchr(text, ';') != NULL  ? ';'
                                          : ',';
    r->fields = calloc(BT_MAX_COLUMNS, sizeof *r->fields);
    const char **names = calloc(BT_MAX_COLUMNS, sizeof *names);
    enum bt_code code = BT_ERR_NOMEM;
    if (r->fields == NULL || names == NULL) {
        bt_error_set(err, code, 0, __FILE__, __LINE__, "trace: no memory for a header");
        goto done;
    }
    code = split_record(r, text, n, err);
    if (code != BT_OK) {
        goto done;
    }
    int32_t n_numbers = 0;
    for (int32_t i = 0; i < r->n_fields; i++) {
        struct bt_text f = r->fields[i];
        double v;
        n_numbers += bt_parse_real(f.s, f.n, &v);
        while (f.n > 0 && isspace((unsigned char)*f.s)) {
            f.s++;
            f.n--;
        }
        while (f.n > 0 && isspace((unsigned char)f.s[f.n - 1])) {
            f.n--;
        }
        f.s[f.n] = '\0'; /* over the separator, a quote or the line's NUL */
        names[i] = f.s;
    }
    if (n_numbers > r->n_fields / 2) {
        code = bt_error_set(err, BT_ERR_INPUT, r->line, __FILE__, __LINE__,
                            "%s:%lld: expected a header with the columns' names, got numbers "
                            "(ServeGen client models are workloads, not traces)",
                            bt_lines_path(r->lines), (long long)r->line);
        goto done;
    }
    code = bind(r, opts, names, r->n_fields, err);
done:
    free(names);
    return code;
}

static enum bt_code open_json(struct bt_trace_reader *r, const struct bt_trace_opts *opts,
                              const char *text, int64_t n, struct bt_error *err)
{
    r->json = true;
    BT_TRY(parse_object(r, text, n, err));
    r->object_pending = true;
    const char *names[BT_MAX_COLUMNS];
    int32_t n_names = 0;
    const char *key;
    json_t *v;
    json_object_foreach(r->object, key, v)
    {
        if (n_names < BT_MAX_COLUMNS) {
            names[n_names++] = key;
        }
    }
    return bind(r, opts, names, n_names, err);
}

static enum bt_code open_reader(struct bt_trace_reader *r, const char *path,
                                const struct bt_trace_opts *opts, struct bt_error *err)
{
    BT_TRY(bt_lines_open(path, &r->lines, err));
    char *text;
    int64_t n;
    BT_TRY(next_line(r, &text, &n, err));
    if (text == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: the file is empty; expected requests", path);
    }
    const char *s = text;
    while (isspace((unsigned char)*s)) {
        s++;
    }
    if (*s == '[') {
        BT_FAIL(err, BT_ERR_INPUT, r->line,
                "%s:%lld: a JSON array; expected one JSON object a line (JSONL)", path,
                (long long)r->line);
    }
    return *s == '{' ? open_json(r, opts, text, n, err) : open_csv(r, opts, text, n, err);
}

enum bt_code bt_trace_reader_open(const char *path, const struct bt_trace_opts *opts,
                                  struct bt_trace_reader **out, struct bt_error *err)
{
    struct bt_trace_reader *r = calloc(1, sizeof *r);
    if (r == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory to read", path);
    }
    enum bt_code code = open_reader(r, path, opts, err);
    if (code != BT_OK) {
        bt_trace_reader_close(r);
        return code;
    }
    *out = r;
    return BT_OK;
}

void bt_trace_reader_close(struct bt_trace_reader *r)
{
    if (r == NULL) {
        return;
    }
    json_decref(r->object);
    bt_lines_close(r->lines);
    bt_keymap_fini(&r->sessions);
    free(r->fields);
    free(r->hashes);
    free(r);
}

enum bt_trace_format bt_trace_reader_format(const struct bt_trace_reader *r)
{
    return r->format;
}

bool bt_trace_reader_has_measured(const struct bt_trace_reader *r)
{
    const struct bt_column *role = r->columns.role;
    return role[BT_ROLE_TTFT].given || role[BT_ROLE_E2E].given || role[BT_ROLE_TPOT].given ||
           role[BT_ROLE_FIRST_TOKEN].given || role[BT_ROLE_LAST_TOKEN].given;
}

int32_t bt_trace_reader_n_sessions(const struct bt_trace_reader *r)
{
    return r->n_sessions;
}

static const char *const format_names[] = {
    [BT_TRACE_AUTO] = "auto",         [BT_TRACE_AZURE] = "azure", [BT_TRACE_BURSTGPT] = "burstgpt",
    [BT_TRACE_MOONCAKE] = "mooncake", [BT_TRACE_QWEN] = "qwen",   [BT_TRACE_CSV] = "csv",
    [BT_TRACE_JSONL] = "jsonl",
};

const char *bt_trace_format_name(enum bt_trace_format f)
{
    BT_ASSERT((size_t)f < sizeof format_names / sizeof *format_names);
    return format_names[f];
}

enum bt_code bt_trace_format_parse(const char *name, enum bt_trace_format *out,
                                   struct bt_error *err)
{
    for (size_t i = 0; i < sizeof format_names / sizeof *format_names; i++) {
        if (strcmp(name, format_names[i]) == 0) {
            *out = (enum bt_trace_format)i;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "format: expected auto, azure, burstgpt, mooncake, qwen, csv or jsonl, got \"%s\"",
            name);
}
