/* The tables of the figures, from results. */
#include "cli/plot_files.h"
#include "engine/core/order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rate ---- */

enum bt_code bt_plot_rate(struct bt_plots *p, const struct bt_plot_opts *opts,
                          const struct bt_max_rate *rate, const struct bt_slo *slos, int32_t n_slos,
                          struct bt_error *err)
{
    BT_ASSERT(n_slos > 0 && n_slos <= BT_MAX_SLOS);
    struct bt_plot_rows t;
    if (rate->n_probes == 0) {
        return BT_OK;
    }
    BT_TRY(bt_rows_begin(&t, p, "rate", opts, err));
    bt_rows_names(&t, "rate", 0);
    for (int32_t s = 0; s < n_slos; s++) {
        if (s > 0) {
            bt_rows_end_block(&t);
        }
        char statistic[BT_STATISTIC_BYTES];
        bt_plot_statistic(statistic, &slos[s]);
        for (int32_t i = 0; i < rate->n_probes; i++) {
            const struct bt_rate_probe *probe = &rate->probes[i];
            bt_rows_text(&t, statistic);
            bt_rows_real(&t, probe->rate_req_per_s);
            bt_rows_real(&t, probe->slo_value_s[s]);
            bt_rows_ns(&t, slos[s].limit_ns);
            bt_rows_int(&t, probe->holds);
            bt_rows_text(&t, bt_bottleneck_name(probe->bottleneck));
            bt_rows_end_row(&t);
        }
    }
    return bt_rows_finish(&t, p, "rate", opts, err);
}

/* ---- cdf ---- */

/* Arrival of the first request after the warm-up; INT64_MIN without one. */
static int64_t warmup_end(const struct bt_req_record *records, int64_t n, int64_t n_warmup,
                          int64_t *scratch)
{
    if (n_warmup <= 0) {
        return INT64_MIN;
    }
    if (n_warmup >= n) {
        return INT64_MAX;
    }
    for (int64_t i = 0; i < n; i++) {
        scratch[i] = records[i].arrival_ns;
    }
    qsort(scratch, (size_t)n, sizeof scratch[0], bt_compare_int64);
    return scratch[n_warmup];
}

enum bt_code bt_plot_run_init(struct bt_plot_run *run, const char *name,
                              const struct bt_req_record *records, int64_t n, int64_t n_warmup,
                              struct bt_error *err)
{
    *run = (struct bt_plot_run){.name = name};
    if (n == 0) {
        return BT_OK;
    }
    int64_t *ttft = calloc(2 * (size_t)n, sizeof ttft[0]);
    if (ttft == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "figure cdf: no memory for %lld requests", (long long)n);
    }
    int64_t *e2e = ttft + n;
    int64_t from_ns = warmup_end(records, n, n_warmup, ttft);
    for (int64_t i = 0; i < n; i++) {
        const struct bt_req_record *r = &records[i];
        if (r->outcome == BT_OUTCOME_FINISHED && r->arrival_ns >= from_ns) {
            ttft[run->n_ttft++] = r->first_token_ns - r->arrival_ns;
            e2e[run->n_e2e++] = r->end_ns - r->arrival_ns;
        }
    }
    qsort(ttft, (size_t)run->n_ttft, sizeof ttft[0], bt_compare_int64);
    qsort(e2e, (size_t)run->n_e2e, sizeof e2e[0], bt_compare_int64);
    run->memory = ttft;
    run->ttft_ns = ttft;
    run->e2e_ns = e2e;
    return BT_OK;
}

void bt_plot_run_fini(struct bt_plot_run *run)
{
    free(run->memory);
    *run = (struct bt_plot_run){0};
}

enum { CURVE_POINTS = 1000 };

/* Index of the k-th of n_points samples that stand for n: all when they are few, else half of the
 * points below the top tenth and half in it, the last being the largest. */
static int64_t kept_sample(int64_t k, int64_t n, int64_t n_points)
{
    if (n == n_points) {
        return k;
    }
    int64_t half = n_points / 2, n_body = n - n / 10;
    return k < half ? (k + 1) * n_body / half - 1
                    : n_body - 1 + (k + 1 - half) * (n - n_body) / half;
}

/* Share of the requests that a statistic is about; NAN for mean and maximum. */
static double stat_share(enum bt_stat s)
{
    switch (s) {
    case BT_STAT_P50:
        return 0.5;
    case BT_STAT_P90:
        return 0.9;
    case BT_STAT_P95:
        return 0.95;
    case BT_STAT_P99:
        return 0.99;
    case BT_STAT_MEAN:
    case BT_STAT_MAX:
    case BT_N_STATS:
        return NAN;
    }
    return NAN;
}

static void put_cdf_row(struct bt_plot_rows *t, const char *run, enum bt_slo_metric metric,
                        int64_t ns, double fraction, const struct bt_slo *slo)
{
    bt_rows_text(t, run);
    bt_rows_text(t, bt_slo_metric_name(metric));
    bt_rows_ns(t, ns);
    bt_rows_real(t, fraction);
    bt_rows_ns(t, slo == NULL ? -1 : slo->limit_ns);
    bt_rows_real(t, slo == NULL ? NAN : stat_share(slo->stat));
    bt_rows_end_row(t);
}

static void put_curve(struct bt_plot_rows *t, const char *run, enum bt_slo_metric metric,
                      const int64_t *ns, int64_t n, const struct bt_slo *slos, int32_t n_slos)
{
    if (n == 0) {
        return;
    }
    const struct bt_slo *slo = NULL;
    for (int32_t i = 0; i < n_slos && slo == NULL; i++) {
        slo = slos[i].metric == metric ? &slos[i] : NULL;
    }
    if (ftell(t->f) > 0) {
        bt_rows_end_block(t);
    } else {
        bt_rows_names(t, "cdf", 0);
    }
    put_cdf_row(t, run, metric, ns[0], 0, slo);
    int64_t n_points = n > CURVE_POINTS ? CURVE_POINTS : n;
    for (int64_t k = 0; k < n_points; k++) {
        int64_t i = kept_sample(k, n, n_points);
        BT_ASSERT(i >= 0 && i < n && (i == 0 || ns[i] >= ns[i - 1]));
        put_cdf_row(t, run, metric, ns[i], (double)(i + 1) / (double)n, slo);
    }
}

enum bt_code bt_plot_cdf(struct bt_plots *p, const struct bt_plot_opts *opts,
                         const struct bt_plot_run *runs, int32_t n_runs, const struct bt_slo *slos,
                         int32_t n_slos, struct bt_error *err)
{
    int64_t n_requests = 0;
    for (int32_t i = 0; i < n_runs; i++) {
        n_requests += runs[i].n_ttft + runs[i].n_e2e;
    }
    struct bt_plot_rows t;
    if (n_requests == 0) {
        return BT_OK;
    }
    BT_TRY(bt_rows_begin(&t, p, "cdf", opts, err));
    for (int32_t i = 0; i < n_runs; i++) {
        const struct bt_plot_run *r = &runs[i];
        put_curve(&t, r->name, BT_SLO_TTFT, r->ttft_ns, r->n_ttft, slos, n_slos);
        put_curve(&t, r->name, BT_SLO_E2E, r->e2e_ns, r->n_e2e, slos, n_slos);
    }
    return bt_rows_finish(&t, p, "cdf", opts, err);
}

/* ---- timeseries ---- */

enum { MAX_SAMPLES = 2000 };

static void put_sample(struct bt_plot_rows *t, const struct bt_sim_sample *s)
{
    double total = s->kv_blocks_total > 0 ? (double)s->kv_blocks_total : NAN;
    bt_rows_ns(t, s->t_ns);
    bt_rows_int(t, s->running);
    bt_rows_int(t, s->waiting);
    bt_rows_int(t, s->swapped);
    bt_rows_real(t, (double)s->kv_blocks_used / total);
    bt_rows_real(t, (double)s->kv_blocks_cached / total);
    bt_rows_int(t, s->preempts);
    bt_rows_end_row(t);
}

/* The samples of one stretch that stay: fullest KV and longest queue, in order. */
static void put_stretch(struct bt_plot_rows *t, const struct bt_sim_sample *s, int64_t n)
{
    int64_t fullest = 0, longest = 0;
    for (int64_t i = 1; i < n; i++) {
        if (s[i].kv_blocks_used > s[fullest].kv_blocks_used) {
            fullest = i;
        }
        if (s[i].waiting > s[longest].waiting) {
            longest = i;
        }
    }
    put_sample(t, &s[fullest < longest ? fullest : longest]);
    if (fullest != longest) {
        put_sample(t, &s[fullest < longest ? longest : fullest]);
    }
}

static void put_samples(struct bt_plot_rows *t, const struct bt_sim_sample *samples, int64_t n)
{
    if (n <= MAX_SAMPLES) {
        for (int64_t i = 0; i < n; i++) {
            put_sample(t, &samples[i]);
        }
        return;
    }
    /* The first and the last stay: they bound the run, and the last has all preemptions. */
    int64_t n_stretches = MAX_SAMPLES / 2 - 1;
    put_sample(t, &samples[0]);
    for (int64_t k = 0; k < n_stretches; k++) {
        int64_t from = 1 + k * (n - 2) / n_stretches, to = 1 + (k + 1) * (n - 2) / n_stretches;
        put_stretch(t, &samples[from], to - from);
    }
    put_sample(t, &samples[n - 1]);
}

static void put_window(struct bt_plot_rows *t, const struct bt_window *w)
{
    bt_rows_ns(t, w->start_ns);
    bt_rows_ns(t, w->end_ns);
    bt_rows_real(t, w->busy_fraction);
    bt_rows_real(t, w->flops_utilization);
    bt_rows_real(t, w->bandwidth_utilization);
    bt_rows_ns(t, w->ttft_max_ns);
    bt_rows_ns(t, w->e2e_max_ns);
    bt_rows_text(t, bt_bottleneck_name(w->bottleneck));
    bt_rows_end_row(t);
}

enum bt_code bt_plot_timeseries(struct bt_plots *p, const struct bt_plot_opts *opts,
                                const struct bt_sim_sample *samples, int64_t n_samples,
                                const struct bt_window *windows, int32_t n_windows,
                                struct bt_error *err)
{
    struct bt_plot_rows t;
    if (n_samples == 0) {
        return BT_OK;
    }
    BT_TRY(bt_rows_begin(&t, p, "timeseries", opts, err));
    bt_rows_names(&t, "timeseries", 0);
    put_samples(&t, samples, n_samples);
    if (n_windows > 0) {
        bt_rows_end_block(&t);
        bt_rows_names(&t, "timeseries", 1);
    }
    for (int32_t i = 0; i < n_windows; i++) {
        put_window(&t, &windows[i]);
    }
    return bt_rows_finish(&t, p, "timeseries", opts, err);
}

/* ---- memory ---- */

static int64_t part_bytes(const struct bt_memory_part parts[BT_MEMORY_PARTS], const char *name)
{
    for (int32_t i = 0; i < BT_MEMORY_PARTS; i++) {
        if (strcmp(parts[i].name, name) == 0) {
            return parts[i].bytes > 0 ? parts[i].bytes : 0;
        }
    }
    BT_ASSERT(name == NULL);
    return 0;
}

enum bt_code bt_plot_memory(struct bt_plots *p, const struct bt_plot_opts *opts,
                            const struct bt_plot_bar *bars, int32_t n_bars, struct bt_error *err)
{
    static const char *const order[BT_MEMORY_PARTS] = {"reserved",  "weights", "draft",
                                                       "workspace", "kv",      "unused"};
    struct bt_plot_rows t;
    if (n_bars == 0) {
        return BT_OK;
    }
    BT_TRY(bt_rows_begin(&t, p, "memory", opts, err));
    bt_rows_names(&t, "memory", 0);
    for (int32_t i = 0; i < n_bars; i++) {
        struct bt_memory_part parts[BT_MEMORY_PARTS];
        bt_memory_parts(bars[i].plan, parts);
        bt_rows_text(&t, bars[i].label);
        for (int32_t k = 0; k < BT_MEMORY_PARTS; k++) {
            bt_rows_int(&t, part_bytes(parts, order[k]));
        }
        bt_rows_int(&t, bars[i].plan->usable_bytes);
        bt_rows_end_row(&t);
    }
    return bt_rows_finish(&t, p, "memory", opts, err);
}

/* ---- map ---- */

static void put_map_cell(struct bt_plot_rows *t, const struct bt_plot_map *map, int32_t row,
                         int32_t column)
{
    int32_t i = row * map->n_columns + column;
    double value = map->values[i];
    char number[32] = "-";
    if (isfinite(value)) {
        (void)snprintf(number, sizeof number, fabs(value) >= 1000 ? "%.0f" : "%.3g", value);
    }
    bt_rows_text(t, map->column_name);
    bt_rows_text(t, map->row_name);
    bt_rows_text(t, map->value_name);
    bt_rows_text(t, map->columns[column]);
    bt_rows_text(t, map->rows[row]);
    bt_rows_real(t, value);
    bt_rows_text(t, map->texts == NULL || map->texts[i] == NULL ? number : map->texts[i]);
    bt_rows_end_row(t);
}

enum bt_code bt_plot_map(struct bt_plots *p, const struct bt_plot_opts *opts,
                         const struct bt_plot_map *map, struct bt_error *err)
{
    BT_ASSERT(map->n_columns >= 1 && map->n_columns <= BT_PLOT_MAP_MAX);
    BT_ASSERT(map->n_rows >= 1 && map->n_rows <= BT_PLOT_MAP_MAX);
    struct bt_plot_rows t;
    BT_TRY(bt_rows_begin(&t, p, "map", opts, err));
    bt_rows_names(&t, "map", 0);
    for (int32_t r = 0; r < map->n_rows; r++) {
        for (int32_t c = 0; c < map->n_columns; c++) {
            put_map_cell(&t, map, r, c);
        }
    }
    return bt_rows_finish(&t, p, "map", opts, err);
}

/* ---- scatter ---- */

static bool is_pair(const struct bt_plot_pairs *p, int64_t i)
{
    return isfinite(p->measured_s[i]) && isfinite(p->predicted_s[i]);
}

static int64_t n_whole(const struct bt_plot_pairs *p)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        n += is_pair(p, i);
    }
    return n;
}

enum bt_code bt_plot_scatter(struct bt_plots *p, const struct bt_plot_opts *opts,
                             const struct bt_plot_pairs *pairs, int32_t n_pairs,
                             struct bt_error *err)
{
    int64_t n = 0;
    for (int32_t k = 0; k < n_pairs; k++) {
        n += n_whole(&pairs[k]);
    }
    if (n == 0) {
        return BT_OK;
    }
    struct bt_plot_rows t;
    BT_TRY(bt_rows_begin(&t, p, "scatter", opts, err));
    bt_rows_names(&t, "scatter", 0);
    bool first = true;
    for (int32_t k = 0; k < n_pairs; k++) {
        const struct bt_plot_pairs *s = &pairs[k];
        if (n_whole(s) == 0) {
            continue;
        }
        if (!first) {
            bt_rows_end_block(&t);
        }
        first = false;
        for (int64_t i = 0; i < s->n; i++) {
            if (is_pair(s, i)) {
                bt_rows_text(&t, s->metric);
                bt_rows_text(&t, s->part);
                bt_rows_real(&t, s->measured_s[i]);
                bt_rows_real(&t, s->predicted_s[i]);
                bt_rows_end_row(&t);
            }
        }
    }
    return bt_rows_finish(&t, p, "scatter", opts, err);
}
