#include "cli/replay_compare.h"

#include "engine/core/metrics.h"
#include "engine/core/order.h"

#include <math.h>
#include <stdlib.h>

enum { N_METRICS = 3 };

struct series {
    const char *name;
    double *measured, *predicted; /* owned, n of each; seconds */
    int64_t n;
};

static double mean_of(const double *v, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += v[i];
    }
    return sum / (double)n;
}

static double percentile_of(const double *sorted, int64_t n, double p)
{
    int64_t rank = (int64_t)ceil(p * (double)n);
    return sorted[rank < 1 ? 0 : rank - 1];
}

static void add_row(json_t *rows, const char *metric, const char *stat, double measured,
                    double predicted)
{
    json_t *row = bt_out_object();
    bt_out_set(row, "metric", bt_out_text(metric));
    bt_out_set(row, "stat", bt_out_text(stat));
    bt_out_set(row, "measured_s", bt_out_real(measured));
    bt_out_set(row, "predicted_s", bt_out_real(predicted));
    bt_out_set(row, "error_fraction", bt_out_real(predicted / measured - 1));
    bt_out_append(rows, row);
}

static void add_series(json_t *rows, struct series *s)
{
    static const struct {
        const char *name;
        double p;
    } stats[] = {{"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1}};
    if (s->n == 0) {
        return;
    }
    add_row(rows, s->name, "mean", mean_of(s->measured, s->n), mean_of(s->predicted, s->n));
    double absolute = 0;
    for (int64_t i = 0; i < s->n; i++) {
        absolute += fabs(s->predicted[i] - s->measured[i]);
    }
    qsort(s->measured, (size_t)s->n, sizeof *s->measured, bt_compare_doubles);
    qsort(s->predicted, (size_t)s->n, sizeof *s->predicted, bt_compare_doubles);
    for (size_t k = 0; k < sizeof stats / sizeof *stats; k++) {
        add_row(rows, s->name, stats[k].name, percentile_of(s->measured, s->n, stats[k].p),
                percentile_of(s->predicted, s->n, stats[k].p));
    }
    /* Percentiles may agree while requests do not: the mean distance of each from its own. */
    json_t *row = bt_out_object();
    bt_out_set(row, "metric", bt_out_text(s->name));
    bt_out_set(row, "stat", bt_out_text("mean |difference| of a request"));
    bt_out_set(row, "measured_s", bt_out_real(mean_of(s->measured, s->n)));
    bt_out_set(row, "predicted_s", bt_out_real(absolute / (double)s->n));
    bt_out_set(row, "error_fraction",
               bt_out_real(absolute / (double)s->n / mean_of(s->measured, s->n)));
    bt_out_append(rows, row);
}

static const struct bt_out_column COLUMNS[] = {
    {"metric", "", BT_UNIT_AUTO},
    {"stat", "", BT_UNIT_AUTO},
    {"measured_s", "measured", BT_UNIT_SECONDS},
    {"predicted_s", "predicted", BT_UNIT_SECONDS},
    {"error_fraction", "error", BT_UNIT_FRACTION},
};
static const struct bt_out_part PARTS[] = {
    {.kind = BT_OUT_LINES, .path = "title"},
    {.kind = BT_OUT_ROWS, .path = "compare", .columns = COLUMNS, .n_columns = 5},
    {.kind = BT_OUT_FIELDS, .path = "served"},
    {.kind = BT_OUT_LINES, .path = "remarks"},
};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 4, .csv_rows = "compare"};

static void put(struct series *s, int64_t measured_ns, int64_t predicted_ns)
{
    if (measured_ns >= 0 && predicted_ns >= 0) {
        s->measured[s->n] = (double)measured_ns / 1e9;
        s->predicted[s->n++] = (double)predicted_ns / 1e9;
    }
}

static void collect(const struct bt_trace *trace, const struct bt_simulation *sim,
                    struct series series[N_METRICS])
{
    for (int64_t i = 0; i < sim->kept.n_records; i++) {
        const struct bt_req_record *r = &sim->kept.records[i];
        struct bt_measured m;
        if (r->outcome != BT_OUTCOME_FINISHED || !bt_trace_measured(trace, (int64_t)r->user, &m)) {
            continue;
        }
        put(&series[0], m.ttft_ns, r->first_token_ns - r->arrival_ns);
        put(&series[1], m.tpot_ns,
            r->n_output > 1 ? (r->last_token_ns - r->first_token_ns) / (r->n_output - 1) : -1);
        put(&series[2], m.e2e_ns, r->end_ns - r->arrival_ns);
    }
}

enum bt_code bt_replay_compare(const struct bt_trace *trace, const struct bt_simulation *sim,
                               json_t *doc, const struct bt_out_view **view, struct bt_error *err)
{
    struct series series[N_METRICS] = {{.name = "ttft"}, {.name = "tpot"}, {.name = "e2e"}};
    size_t n = (size_t)sim->kept.n_records + 1;
    double *values = calloc(n, 2 * N_METRICS * sizeof *values);
    if (values == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "--compare: no memory for %zu requests", n);
    }
    for (int32_t k = 0; k < N_METRICS; k++) {
        series[k].measured = values + (size_t)(2 * k) * n;
        series[k].predicted = values + (size_t)(2 * k + 1) * n;
    }
    collect(trace, sim, series);
    json_t *rows = bt_out_list();
    int64_t found = 0;
    for (int32_t k = 0; k < N_METRICS; k++) {
        found += series[k].n;
        add_series(rows, &series[k]);
    }
    free(values);
    bt_out_set(doc, "compare", rows);
    *view = &VIEW;
    if (found == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "--compare: the trace has no measured value for any request that finished");
    }
    return BT_OK;
}
