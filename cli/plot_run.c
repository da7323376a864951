#include "cli/plot_run.h"

#include "cli/out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_BYTES = 192, MAX_CURVES = 8 };

/* One configuration of the run, with what was kept of it. */
struct part {
    int64_t summary_index;
    char label[LABEL_BYTES];
    json_t *metrics;               /* owned */
    struct bt_req_record *records; /* owned */
    int64_t n_records, cap_records;
    struct bt_sim_sample *samples; /* owned */
    int64_t n_samples, cap_samples;
};

struct candidate {
    char label[LABEL_BYTES];
    char detail[LABEL_BYTES];
    char verdict[16];
    double cost_usd_per_h;
    json_t *metrics; /* owned; NULL: not simulated */
};

struct recorded {
    char subject[LABEL_BYTES];
    struct part *parts; /* owned, by summary_index */
    int64_t n_parts, cap_parts;
    int64_t last_part;            /* that a row belonged to: rows come in the order of parts */
    struct candidate *candidates; /* owned, by rank */
    int64_t n_candidates, cap_candidates;
    enum bt_code code; /* of the rows read so far */
    struct bt_error *err;
};

/* Room for one more item; false, with the error set, when there is no memory. */
static bool grow(struct recorded *r, void **items, int64_t n, int64_t *cap, size_t item_bytes)
{
    if (n < *cap) {
        return true;
    }
    int64_t more = *cap == 0 ? 64 : 2 * *cap;
    void *moved = realloc(*items, (size_t)more * item_bytes);
    if (moved == NULL) {
        r->code = bt_error_set(r->err, BT_ERR_NOMEM, 0, __FILE__, __LINE__,
                               "figures of a run: no memory for %lld rows", (long long)more);
        return false;
    }
    *items = moved;
    *cap = more;
    return true;
}

#define GROW(r, items, n, cap) grow((r), (void **)&(items), (n), &(cap), sizeof *(items))

/* ---- columns by name ---- */

struct row {
    const struct bt_value *values;
    int32_t n_values;
};

static const struct bt_value *column(const struct row *row, const char *name)
{
    for (int32_t i = 0; i < row->n_values; i++) {
        if (strcmp(row->values[i].name, name) == 0) {
            return &row->values[i];
        }
    }
    BT_ASSERT(name == NULL);
    return NULL;
}

static int64_t column_int(const struct row *row, const char *name, int64_t missing)
{
    const struct bt_value *v = column(row, name);
    return v->type == BT_VALUE_INT ? v->i : missing;
}

static double column_real(const struct row *row, const char *name)
{
    const struct bt_value *v = column(row, name);
    return v->type == BT_VALUE_REAL ? v->real : v->type == BT_VALUE_INT ? (double)v->i : NAN;
}

static const char *column_text(const struct row *row, const char *name)
{
    const struct bt_value *v = column(row, name);
    return v->type == BT_VALUE_TEXT ? v->text : "";
}

/* A column that holds a document; NULL without one. */
static json_t *column_json(const struct row *row, const char *name)
{
    return json_loads(column_text(row, name), 0, NULL);
}

static double member_real(const json_t *o, const char *path)
{
    const json_t *v = o == NULL ? NULL : bt_out_at(o, path);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int64_t member_ns(const json_t *o, const char *path)
{
    double s = member_real(o, path);
    return isnan(s) ? -1 : llround(s * 1e9);
}

/* ---- reading ---- */

static bool take_run(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)section;
    struct recorded *r = ctx;
    const struct row row = {values, n};
    (void)snprintf(r->subject, sizeof r->subject, "%s %s, run %lld", column_text(&row, "command"),
                   column_text(&row, "name"), (long long)column_int(&row, "run_id", 0));
    return true;
}

static bool take_summary(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)section;
    struct recorded *r = ctx;
    const struct row row = {values, n};
    if (!GROW(r, r->parts, r->n_parts, r->cap_parts)) {
        return false;
    }
    struct part *part = &r->parts[r->n_parts++];
    *part = (struct part){.summary_index = column_int(&row, "summary_index", 0),
                          .metrics = column_json(&row, "metrics_json")};
    const char *label = column_text(&row, "label");
    (void)snprintf(part->label, sizeof part->label, "%s",
                   label[0] == '\0' ? column_text(&row, "gpu") : label);
    return true;
}

/* The part that a row belongs to; NULL: of none. */
static struct part *part_of(struct recorded *r, const struct row *row)
{
    int64_t summary_index = column_int(row, "summary_index", -1);
    for (int64_t k = 0; k < r->n_parts; k++) {
        int64_t i = (r->last_part + k) % r->n_parts;
        if (r->parts[i].summary_index == summary_index) {
            r->last_part = i;
            return &r->parts[i];
        }
    }
    return NULL;
}

static bool take_request(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)section;
    struct recorded *r = ctx;
    const struct row row = {values, n};
    struct part *part = part_of(r, &row);
    if (part == NULL) {
        return true;
    }
    if (!GROW(r, part->records, part->n_records, part->cap_records)) {
        return false;
    }
    bool finished = strcmp(column_text(&row, "outcome"), bt_outcome_name(BT_OUTCOME_FINISHED)) == 0;
    part->records[part->n_records++] = (struct bt_req_record){
        .arrival_ns = column_int(&row, "arrival_ns", -1),
        .first_token_ns = column_int(&row, "first_token_ns", -1),
        .end_ns = column_int(&row, "end_ns", -1),
        .outcome = finished ? BT_OUTCOME_FINISHED : BT_OUTCOME_FAILED,
    };
    return true;
}

static bool take_sample(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)section;
    struct recorded *r = ctx;
    const struct row row = {values, n};
    struct part *part = part_of(r, &row);
    if (part == NULL) {
        return true;
    }
    if (!GROW(r, part->samples, part->n_samples, part->cap_samples)) {
        return false;
    }
    part->samples[part->n_samples++] = (struct bt_sim_sample){
        .t_ns = column_int(&row, "t_ns", 0),
        .running = (int32_t)column_int(&row, "running", 0),
        .waiting = (int32_t)column_int(&row, "waiting", 0),
        .swapped = (int32_t)column_int(&row, "swapped", 0),
        .kv_blocks_used = column_int(&row, "kv_blocks_used", 0),
        .kv_blocks_cached = column_int(&row, "kv_blocks_cached", 0),
        .kv_blocks_total = column_int(&row, "kv_blocks_total", 0),
        .preempts = column_int(&row, "preempts", 0),
    };
    return true;
}

static const char *config_text(const json_t *config, const char *path)
{
    const json_t *v = config == NULL ? NULL : bt_out_at(config, path);
    return json_is_string(v) ? json_string_value(v) : "-";
}

static bool take_candidate(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)section;
    struct recorded *r = ctx;
    const struct row row = {values, n};
    if (!GROW(r, r->candidates, r->n_candidates, r->cap_candidates)) {
        return false;
    }
    struct candidate *c = &r->candidates[r->n_candidates++];
    *c = (struct candidate){.cost_usd_per_h = column_real(&row, "cost_usd_per_h"),
                            .metrics = column_json(&row, "metrics_json")};
    json_t *config = column_json(&row, "config_json");
    (void)snprintf(c->verdict, sizeof c->verdict, "%s", column_text(&row, "verdict"));
    (void)snprintf(c->label, sizeof c->label, "%lld × %s, %s, KV %s",
                   (long long)column_int(&row, "cards", 0), column_text(&row, "gpu"),
                   config_text(config, "weights"), config_text(config, "kv.dtype"));
    (void)snprintf(c->detail, sizeof c->detail, "block %.0f, %s",
                   member_real(config, "kv.block_tokens"), config_text(config, "preempt"));
    json_decref(config);
    return true;
}

static enum bt_code read_table(struct recorded *r, struct bt_store *store, const char *table,
                               int64_t run_id, bt_store_row_fn take, struct bt_error *err)
{
    BT_TRY(bt_store_read_table(store, table, run_id, take, r, err));
    return r->code;
}

static void recorded_fini(struct recorded *r)
{
    for (int64_t i = 0; i < r->n_parts; i++) {
        json_decref(r->parts[i].metrics);
        free(r->parts[i].records);
        free(r->parts[i].samples);
    }
    for (int64_t i = 0; i < r->n_candidates; i++) {
        json_decref(r->candidates[i].metrics);
    }
    free(r->parts);
    free(r->candidates);
}

/* ---- drawing ---- */

static enum bt_code draw_cdf(struct bt_plots *p, const struct recorded *r,
                             const struct bt_plot_recorded *what, const struct bt_plot_opts *opts,
                             struct bt_error *err)
{
    struct bt_plot_run runs[MAX_CURVES];
    int32_t n = 0;
    enum bt_code code = BT_OK;
    for (int64_t i = 0; i < r->n_parts && n < MAX_CURVES && code == BT_OK; i++) {
        const struct part *part = &r->parts[i];
        double n_warmup = member_real(part->metrics, "warmup_requests");
        if (part->n_records > 0) {
            code = bt_plot_run_init(&runs[n++], part->label, part->records, part->n_records,
                                    n_warmup > 0 ? (int64_t)n_warmup : 0, err);
        }
    }
    if (code == BT_OK) {
        code = bt_plot_cdf(p, opts, runs, n, what->slos, what->n_slos, err);
    }
    for (int32_t i = 0; i < n; i++) {
        bt_plot_run_fini(&runs[i]);
    }
    return code;
}

static enum bt_bottleneck bottleneck_of(const char *name)
{
    for (int b = BT_BOTTLENECK_ARRIVALS; b <= BT_BOTTLENECK_HOST; b++) {
        if (strcmp(bt_bottleneck_name((enum bt_bottleneck)b), name) == 0) {
            return (enum bt_bottleneck)b;
        }
    }
    return BT_BOTTLENECK_ARRIVALS;
}

static int32_t read_windows(const json_t *metrics, struct bt_window windows[BT_MAX_WINDOWS])
{
    const json_t *list = metrics == NULL ? NULL : json_object_get(metrics, "windows");
    size_t n = json_array_size(list);
    n = n < BT_MAX_WINDOWS ? n : BT_MAX_WINDOWS;
    for (size_t i = 0; i < n; i++) {
        const json_t *w = json_array_get(list, i);
        windows[i] = (struct bt_window){
            .start_ns = member_ns(w, "start_s"),
            .end_ns = member_ns(w, "end_s"),
            .busy_fraction = member_real(w, "gpu_busy_fraction"),
            .flops_utilization = member_real(w, "flops_utilization"),
            .bandwidth_utilization = member_real(w, "bandwidth_utilization"),
            .ttft_max_ns = member_ns(w, "ttft_max_s"),
            .e2e_max_ns = member_ns(w, "e2e_max_s"),
            .bottleneck = bottleneck_of(config_text(w, "bottleneck")),
        };
    }
    return (int32_t)n;
}

static enum bt_code draw_timeseries(struct bt_plots *p, const struct recorded *r,
                                    const struct bt_plot_opts *opts, struct bt_error *err)
{
    for (int64_t i = 0; i < r->n_parts; i++) {
        const struct part *part = &r->parts[i];
        char name[32] = "timeseries", subject[2 * LABEL_BYTES];
        if (i > 0) {
            (void)snprintf(name, sizeof name, "timeseries-%lld", (long long)i + 1);
        }
        (void)snprintf(subject, sizeof subject, "%s: %s", opts->subject, part->label);
        const struct bt_plot_opts own = {.name = name, .subject = subject};
        struct bt_window windows[BT_MAX_WINDOWS];
        int32_t n = read_windows(part->metrics, windows);
        BT_TRY(bt_plot_timeseries(p, &own, part->samples, part->n_samples, windows, n, err));
    }
    return BT_OK;
}

/* The first SLO that the candidates' metrics tell of: "ci95" has a member for each. */
static const char *slo_of(const struct recorded *r, double *limit_s)
{
    for (int64_t i = 0; i < r->n_candidates; i++) {
        json_t *ci = json_object_get(r->candidates[i].metrics, "ci95");
        void *first = ci == NULL ? NULL : json_object_iter(ci);
        if (first != NULL) {
            *limit_s = member_real(json_object_iter_value(first), "limit_s");
            return json_object_iter_key(first);
        }
    }
    return NULL;
}

static enum bt_code draw_pareto(struct bt_plots *p, const struct recorded *r,
                                const struct bt_plot_opts *opts, struct bt_error *err)
{
    double limit_s = NAN;
    const char *slo = slo_of(r, &limit_s);
    if (slo == NULL) {
        return BT_OK;
    }
    struct bt_plot_point *points = calloc((size_t)r->n_candidates, sizeof points[0]);
    if (points == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "figure pareto: no memory for %lld candidates",
                (long long)r->n_candidates);
    }
    int32_t n = 0;
    for (int64_t i = 0; i < r->n_candidates; i++) {
        const struct candidate *c = &r->candidates[i];
        const json_t *ci = json_object_get(json_object_get(c->metrics, "ci95"), slo);
        double mean = member_real(ci, "mean_s");
        if (isnan(mean) || isnan(c->cost_usd_per_h)) {
            continue;
        }
        bool has_ci = member_real(ci, "n_seeds") > 1;
        points[n++] = (struct bt_plot_point){.rank = (int32_t)i + 1,
                                             .label = c->label,
                                             .detail = c->detail,
                                             .verdict = c->verdict,
                                             .cost_usd_per_h = c->cost_usd_per_h,
                                             .latency_s = mean,
                                             .low_s = has_ci ? member_real(ci, "low_s") : NAN,
                                             .high_s = has_ci ? member_real(ci, "high_s") : NAN};
    }
    int64_t limit_ns = isnan(limit_s) ? -1 : llround(limit_s * 1e9);
    enum bt_code code = bt_plot_points(p, opts, points, n, slo, limit_ns, err);
    free(points);
    return code;
}

static bool wants(const struct bt_plot_recorded *what, const char *figure)
{
    return what->figure == NULL || strcmp(what->figure, figure) == 0;
}

static enum bt_code draw_all(struct bt_plots *p, struct recorded *r, struct bt_store *store,
                             const struct bt_plot_recorded *what, struct bt_error *err)
{
    int64_t id = what->run_id;
    BT_TRY(read_table(r, store, "runs", id, take_run, err));
    BT_TRY(read_table(r, store, "summaries", id, take_summary, err));
    const struct bt_plot_opts opts = {.subject =
                                          what->subject == NULL ? r->subject : what->subject};
    if (wants(what, "cdf")) {
        BT_TRY(read_table(r, store, "requests", id, take_request, err));
        BT_TRY(draw_cdf(p, r, what, &opts, err));
    }
    if (wants(what, "timeseries")) {
        BT_TRY(read_table(r, store, "timeseries", id, take_sample, err));
        BT_TRY(draw_timeseries(p, r, &opts, err));
    }
    if (wants(what, "pareto")) {
        BT_TRY(read_table(r, store, "plan_candidates", id, take_candidate, err));
        BT_TRY(draw_pareto(p, r, &opts, err));
    }
    return BT_OK;
}

enum bt_code bt_plot_recorded_run(struct bt_plots *p, struct bt_store *store,
                                  const struct bt_plot_recorded *what, struct bt_error *err)
{
    if (!wants(what, "cdf") && !wants(what, "timeseries") && !wants(what, "pareto")) {
        BT_FAIL(
            err, BT_ERR_ARG, 0,
            "figure %s is not drawn from a recorded run, which holds cdf, timeseries or pareto; "
            "draw it from its table",
            what->figure);
    }
    struct recorded r = {.err = err};
    int32_t n_before = p->n_figures;
    enum bt_code code = draw_all(p, &r, store, what, err);
    recorded_fini(&r);
    if (code == BT_OK && p->n_figures == n_before) {
        BT_FAIL(err, BT_ERR_NOTFOUND, what->run_id, "run %lld has %s", (long long)what->run_id,
                what->figure == NULL ? "no requests, time series or candidates to draw"
                                     : "nothing recorded for this figure");
    }
    return code;
}
