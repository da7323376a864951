/* A trace as a compact table: columns of its requests in order of arrival. */
#include "engine/core/order.h"
#include "engine/core/rng.h"
#include "sim/workload/internal.h"
#include "sim/workload/tick.h"
#include "sim/workload/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bt_trace {
    enum bt_trace_format format;
    struct bt_trace_counts counts;
    double rate_scale;
    int64_t default_timeout_ns;
    int64_t n;     /* requests in the columns */
    int64_t begin; /* after from, to and limit: requests [begin, end) are given out */
    int64_t end;
    int64_t from_ns; /* taken off arrival times */
    /* Columns, owned, n items each; those that the trace lacks are NULL. */
    int64_t *time_ns; /* from the trace's first row; spread */
    int32_t *row;
    int32_t *n_prompt;
    int32_t *n_output;
    int8_t *priority;
    int32_t *session;
    int64_t *timeout_ns;
    int64_t *hash_at; /* first hash in `hashes`; -1: none */
    int32_t *n_hashes;
    uint64_t *hashes; /* owned: of all requests */
    int32_t hash_tokens;
    struct bt_measured *measured; /* owned: by row of the file; NULL when nothing is measured */
    int64_t n_measured;
    /* Capacities while loading. */
    int64_t cap[9], hashes_cap, measured_cap, n_hashes_all;
};

enum {
    CAP_TIME,
    CAP_ROW,
    CAP_PROMPT,
    CAP_OUTPUT,
    CAP_PRIORITY,
    CAP_SESSION,
    CAP_TIMEOUT,
    CAP_HASH,
    CAP_N_HASHES
};

void bt_trace_destroy(struct bt_trace *t)
{
    if (t == NULL) {
        return;
    }
    free(t->time_ns);
    free(t->row);
    free(t->n_prompt);
    free(t->n_output);
    free(t->priority);
    free(t->session);
    free(t->timeout_ns);
    free(t->hash_at);
    free(t->n_hashes);
    free(t->hashes);
    free(t->measured);
    free(t);
}

/* Gives item i of an optional column a value; the column is made when a value differs from its
 * default for the first time. */
#define SET_OPTIONAL(t, column, cap_i, value, default_value, err)                                  \
    do {                                                                                           \
        if ((t)->column != NULL || (value) != (default_value)) {                                   \
            bool is_new_ = (t)->column == NULL;                                                    \
            BT_TRY(bt_array_grow((void **)&(t)->column, &(t)->cap[cap_i], (t)->n + 1,              \
                                 sizeof *(t)->column, (err)));                                     \
            for (int64_t i_ = is_new_ ? 0 : (t)->n; i_ < (t)->n; i_++) {                           \
                (t)->column[i_] = (default_value);                                                 \
            }                                                                                      \
            (t)->column[(t)->n] = (value);                                                         \
        }                                                                                          \
    } while (0)

#define SET(t, column, cap_i, value, err)                                                          \
    do {                                                                                           \
        BT_TRY(bt_array_grow((void **)&(t)->column, &(t)->cap[cap_i], (t)->n + 1,                  \
                             sizeof *(t)->column, (err)));                                         \
        (t)->column[(t)->n] = (value);                                                             \
    } while (0)

int32_t bt_trace_trim_hashes(const struct bt_trace_row *row)
{
    if (row->n_hashes == 0) {
        return 0;
    }
    int32_t whole = row->n_prompt / row->hash_tokens + (row->n_prompt % row->hash_tokens != 0);
    return row->n_hashes < whole ? row->n_hashes : whole;
}

bool bt_trace_count_row(struct bt_trace_counts *c, const struct bt_trace_row *row, int64_t *last_ns)
{
    if (c->rows == 0) {
        c->sorted = true;
        c->first_time_ns = c->last_time_ns = row->time_ns;
    } else if (row->time_ns < *last_ns) {
        c->unsorted++;
        c->sorted = false;
    }
    c->rows++;
    *last_ns = row->time_ns;
    c->first_time_ns = row->time_ns < c->first_time_ns ? row->time_ns : c->first_time_ns;
    c->last_time_ns = row->time_ns > c->last_time_ns ? row->time_ns : c->last_time_ns;
    if (row->n_output == 0) {
        c->failed_in_trace++;
        return false;
    }
    if (row->n_prompt == 0) {
        c->zero_prompt++;
        return false;
    }
    c->single_token += row->n_output == 1;
    c->hash_trimmed += bt_trace_trim_hashes(row) < row->n_hashes;
    c->max_prompt = row->n_prompt > c->max_prompt ? row->n_prompt : c->max_prompt;
    c->max_output = row->n_output > c->max_output ? row->n_output : c->max_output;
    return true;
}

static enum bt_code add_hashes(struct bt_trace *t, const struct bt_trace_row *row, const char *path,
                               struct bt_error *err)
{
    int32_t n = bt_trace_trim_hashes(row);
    if (n > 0) {
        if (t->hash_tokens != 0 && t->hash_tokens != row->hash_tokens) {
            BT_FAIL(err, BT_ERR_INPUT, row->line,
                    "%s:%lld: hash-blocks of %d tokens; expected %d as in the rows before", path,
                    (long long)row->line, row->hash_tokens, t->hash_tokens);
        }
        t->hash_tokens = row->hash_tokens;
        BT_TRY(bt_array_grow((void **)&t->hashes, &t->hashes_cap, t->n_hashes_all + n,
                             sizeof *t->hashes, err));
        memcpy(t->hashes + t->n_hashes_all, row->hashes, (size_t)n * sizeof *t->hashes);
    }
    SET_OPTIONAL(t, n_hashes, CAP_N_HASHES, n, 0, err);
    SET_OPTIONAL(t, hash_at, CAP_HASH, n > 0 ? t->n_hashes_all : -1, -1, err);
    t->n_hashes_all += n;
    return BT_OK;
}

static enum bt_code add_row(struct bt_trace *t, const struct bt_trace_row *row, const char *path,
                            struct bt_error *err)
{
    if (row->row > INT32_MAX) {
        BT_FAIL(err, BT_ERR_INPUT, row->line, "%s:%lld: more than 2^31 - 1 rows", path,
                (long long)row->line);
    }
    SET(t, time_ns, CAP_TIME, row->time_ns, err);
    SET(t, row, CAP_ROW, (int32_t)row->row, err);
    SET(t, n_prompt, CAP_PROMPT, row->n_prompt, err);
    SET(t, n_output, CAP_OUTPUT, row->n_output, err);
    SET_OPTIONAL(t, priority, CAP_PRIORITY, (int8_t)row->priority, 0, err);
    SET_OPTIONAL(t, session, CAP_SESSION, row->session, -1, err);
    SET_OPTIONAL(t, timeout_ns, CAP_TIMEOUT, row->timeout_ns, 0, err);
    BT_TRY(add_hashes(t, row, path, err));
    t->n++;
    return BT_OK;
}

static enum bt_code add_measured(struct bt_trace *t, const struct bt_trace_row *row,
                                 struct bt_error *err)
{
    BT_TRY(bt_array_grow((void **)&t->measured, &t->measured_cap, row->row + 1, sizeof *t->measured,
                         err));
    t->measured[row->row] = row->measured;
    t->n_measured = row->row + 1;
    return BT_OK;
}

struct key {
    int64_t time_ns;
    int64_t i;
};

static int compare_keys(const void *a, const void *b)
{
    const struct key *x = a;
    const struct key *y = b;
    if (x->time_ns != y->time_ns) {
        return x->time_ns < y->time_ns ? -1 : 1;
    }
    return (x->i > y->i) - (x->i < y->i);
}

#define PERMUTE(t, column, order, scratch)                                                         \
    do {                                                                                           \
        if ((t)->column != NULL) {                                                                 \
            memcpy((scratch), (t)->column, (size_t)(t)->n * sizeof *(t)->column);                  \
            for (int64_t i_ = 0; i_ < (t)->n; i_++) {                                              \
                memcpy(&(t)->column[i_],                                                           \
                       (const char *)(scratch) + (size_t)(order)[i_].i * sizeof *(t)->column,      \
                       sizeof *(t)->column);                                                       \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* Stable sort of all columns by time. */
static enum bt_code sort_table(struct bt_trace *t, struct bt_error *err)
{
    struct key *order = malloc((size_t)t->n * sizeof *order);
    void *scratch = malloc((size_t)t->n * sizeof(int64_t));
    if (order == NULL || scratch == NULL) {
        free(order);
        free(scratch);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "trace: no memory to sort %lld rows", (long long)t->n);
    }
    for (int64_t i = 0; i < t->n; i++) {
        order[i] = (struct key){.time_ns = t->time_ns[i], .i = i};
    }
    qsort(order, (size_t)t->n, sizeof *order, compare_keys);
    PERMUTE(t, time_ns, order, scratch);
    PERMUTE(t, row, order, scratch);
    PERMUTE(t, n_prompt, order, scratch);
    PERMUTE(t, n_output, order, scratch);
    PERMUTE(t, priority, order, scratch);
    PERMUTE(t, session, order, scratch);
    PERMUTE(t, timeout_ns, order, scratch);
    PERMUTE(t, hash_at, order, scratch);
    PERMUTE(t, n_hashes, order, scratch);
    free(order);
    free(scratch);
    return BT_OK;
}

/* Spreads each group of rows of one time uniformly (order statistics of uniform draws, so that a
 * Poisson stream logged in ticks is one again) over the tick that begins there. */
static enum bt_code spread_table(struct bt_trace *t, uint64_t seed, struct bt_error *err)
{
    double *u = malloc((size_t)t->counts.equal_times_most * sizeof *u);
    if (u == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "trace: no memory to spread ticks");
    }
    struct bt_rng rng;
    bt_rng_init(&rng, seed, "workload.tick", 0);
    for (int64_t i = 0; i < t->n;) {
        int64_t at = t->time_ns[i];
        int64_t j = i;
        while (j < t->n && t->time_ns[j] == at) {
            u[j - i] = bt_rng_uniform(&rng);
            j++;
        }
        int64_t width = t->counts.tick_ns;
        if (j < t->n && t->time_ns[j] - at < width) {
            width = t->time_ns[j] - at; /* the clock jitters: keep the order */
        }
        qsort(u, (size_t)(j - i), sizeof *u, bt_compare_doubles);
        for (int64_t k = i; k < j; k++) {
            t->time_ns[k] = at + (int64_t)(u[k - i] * (double)width);
        }
        i = j;
    }
    free(u);
    t->counts.spread = true;
    return BT_OK;
}

void bt_trace_counts_finish(struct bt_trace_counts *c, const struct bt_tick_finder *f)
{
    c->equal_times = f->n_equal;
    c->equal_times_most = f->n_equal_most;
    c->tick_ns = bt_tick_find(f);
}

/* Index of the first request at or after t. */
static int64_t lower_bound(const struct bt_trace *t, int64_t time_ns)
{
    int64_t lo = 0;
    int64_t hi = t->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (t->time_ns[mid] < time_ns) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Order, clock and cuts, once all rows are in. */
static enum bt_code finish_table(struct bt_trace *t, const struct bt_trace_opts *opts,
                                 struct bt_error *err)
{
    if (!t->counts.sorted && t->n > 0) {
        BT_TRY(sort_table(t, err));
    }
    struct bt_tick_finder *finder = malloc(sizeof *finder);
    if (finder == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "trace: no memory to find ticks");
    }
    bt_tick_init(finder);
    for (int64_t i = 0; i < t->n; i++) {
        bt_tick_add(finder, t->time_ns[i]);
        t->time_ns[i] -= t->counts.first_time_ns;
    }
    bt_trace_counts_finish(&t->counts, finder);
    free(finder);
    if (t->counts.tick_ns > 0 && !opts->keep_ticks) {
        BT_TRY(spread_table(t, opts->seed, err));
    }
    t->from_ns = bt_ns_of_s(opts->from_s);
    t->begin = lower_bound(t, t->from_ns);
    t->end = opts->to_s > 0.0 ? lower_bound(t, bt_ns_of_s(opts->to_s)) : t->n;
    if (opts->limit > 0 && t->end - t->begin > opts->limit) {
        t->end = t->begin + opts->limit;
    }
    return BT_OK;
}

static enum bt_code read_table(struct bt_trace *t, struct bt_trace_reader *r, const char *path,
                               const struct bt_trace_opts *opts, struct bt_error *err)
{
    t->format = bt_trace_reader_format(r);
    bool measured = bt_trace_reader_has_measured(r);
    int64_t last_ns = 0;
    for (;;) {
        struct bt_trace_row row;
        bool end;
        BT_TRY(bt_trace_reader_next(r, &row, &end, err));
        if (end) {
            break;
        }
        if (bt_trace_count_row(&t->counts, &row, &last_ns)) {
            BT_TRY(add_row(t, &row, path, err));
        }
        if (measured) {
            BT_TRY(add_measured(t, &row, err));
        }
    }
    t->counts.sessions = bt_trace_reader_n_sessions(r);
    return finish_table(t, opts, err);
}

enum bt_code bt_trace_check_opts(const struct bt_trace_opts *o, struct bt_error *err)
{
    if (!(o->rate_scale >= 0.0 && o->rate_scale <= 1e9)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "rate_scale: expected > 0 and <= 1e9, got %.15g",
                o->rate_scale);
    }
    if (!(o->from_s >= 0.0 && o->from_s <= BT_TIME_MAX_S)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "from: expected 0 to %g s, got %.15g", BT_TIME_MAX_S,
                o->from_s);
    }
    if (o->to_s != 0.0 && !(o->to_s > o->from_s && o->to_s <= BT_TIME_MAX_S)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "to: expected more than from (%.15g s), got %.15g", o->from_s,
                o->to_s);
    }
    if (o->limit < 0) {
        BT_FAIL(err, BT_ERR_ARG, 0, "limit: expected >= 0, got %lld", (long long)o->limit);
    }
    return BT_OK;
}

enum bt_code bt_trace_load(const char *path, const struct bt_trace_opts *opts,
                           struct bt_trace **out, struct bt_error *err)
{
    BT_TRY(bt_trace_check_opts(opts, err));
    struct bt_trace_reader *r;
    BT_TRY(bt_trace_reader_open(path, opts, &r, err));
    struct bt_trace *t = calloc(1, sizeof *t);
    enum bt_code code = BT_ERR_NOMEM;
    if (t == NULL) {
        bt_error_set(err, code, 0, __FILE__, __LINE__, "%s: no memory for a trace", path);
    } else {
        t->rate_scale = opts->rate_scale > 0.0 ? opts->rate_scale : 1.0;
        t->default_timeout_ns = opts->timeout_ns;
        code = read_table(t, r, path, opts, err);
    }
    bt_trace_reader_close(r);
    if (code != BT_OK) {
        bt_trace_destroy(t);
        return code;
    }
    *out = t;
    return BT_OK;
}

int64_t bt_trace_n(const struct bt_trace *t)
{
    return t->end - t->begin;
}

/* As bt_trace_get with the arrival's divisor given. */
static void get_scaled(const struct bt_trace *t, int64_t i, double scale, struct bt_request *out)
{
    BT_ASSERT(i >= 0);
    BT_ASSERT(i < t->end - t->begin);
    int64_t at = t->begin + i;
    int64_t timeout_ns = t->timeout_ns != NULL ? t->timeout_ns[at] : 0;
    int32_t n_hashes = t->n_hashes != NULL ? t->n_hashes[at] : 0;
    *out = (struct bt_request){
        .arrival_ns = bt_ns_scaled(t->time_ns[at] - t->from_ns, scale),
        .timeout_ns = timeout_ns > 0 ? timeout_ns : t->default_timeout_ns,
        .id = t->row[at],
        .n_prompt = t->n_prompt[at],
        .n_output = t->n_output[at],
        .priority = t->priority != NULL ? t->priority[at] : 0,
        .session = t->session != NULL ? t->session[at] : -1,
        .hashes = n_hashes > 0 ? t->hashes + t->hash_at[at] : NULL,
        .n_hashes = n_hashes,
        .hash_tokens = n_hashes > 0 ? t->hash_tokens : 0,
    };
}

void bt_trace_get(const struct bt_trace *t, int64_t i, struct bt_request *out)
{
    get_scaled(t, i, t->rate_scale, out);
}

const struct bt_trace_counts *bt_trace_counts(const struct bt_trace *t)
{
    return &t->counts;
}

enum bt_trace_format bt_trace_format_of(const struct bt_trace *t)
{
    return t->format;
}

bool bt_trace_measured(const struct bt_trace *t, int64_t id, struct bt_measured *out)
{
    if (id < 0 || id >= t->n_measured) {
        return false;
    }
    *out = t->measured[id];
    return true;
}

struct table_source {
    struct bt_source base;
    const struct bt_trace *table; /* borrowed, or the same as owned */
    struct bt_trace *owned;       /* owned; NULL when the table is borrowed */
    double scale;
    int64_t next_i;
};

static enum bt_source_status table_next(void *self, struct bt_request *out, struct bt_error *err)
{
    (void)err;
    struct table_source *s = self;
    if (s->next_i == bt_trace_n(s->table)) {
        return BT_SOURCE_END;
    }
    get_scaled(s->table, s->next_i++, s->scale, out);
    return BT_SOURCE_MORE;
}

static enum bt_code table_rewind(void *self, struct bt_error *err)
{
    (void)err;
    ((struct table_source *)self)->next_i = 0;
    return BT_OK;
}

static void table_destroy(void *self)
{
    struct table_source *s = self;
    bt_trace_destroy(s->owned);
    free(s);
}

static const struct bt_source_ops table_ops = {
    .name = "trace", .next = table_next, .rewind = table_rewind, .destroy = table_destroy};

enum bt_code bt_source_create_table(const struct bt_trace *t, double rate_scale,
                                    struct bt_source **out, struct bt_error *err)
{
    BT_ASSERT(rate_scale >= 0.0);
    struct table_source *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for a source");
    }
    s->base = (struct bt_source){.ops = &table_ops, .self = s};
    s->table = t;
    s->scale = t->rate_scale * (rate_scale > 0.0 ? rate_scale : 1.0);
    *out = &s->base;
    return BT_OK;
}

enum bt_code bt_source_create_owned_table(struct bt_trace *t, struct bt_source **out,
                                          struct bt_error *err)
{
    BT_TRY(bt_source_create_table(t, 0.0, out, err));
    ((struct table_source *)(*out)->self)->owned = t;
    return BT_OK;
}
