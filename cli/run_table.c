#include "cli/run_table.h"

#include "cli/metrics_json.h"

#include <math.h>
#include <stdio.h>

static void add_latency(json_t *rows, const char *name, const struct bt_dist *d)
{
    json_t *row = bt_out_object();
    bt_out_set(row, "metric", bt_out_text(name));
    bt_out_set(row, "mean_s", bt_out_real(d->mean_s));
    bt_out_set(row, "p50_s", bt_out_real(d->p50_s));
    bt_out_set(row, "p90_s", bt_out_real(d->p90_s));
    bt_out_set(row, "p95_s", bt_out_real(d->p95_s));
    bt_out_set(row, "p99_s", bt_out_real(d->p99_s));
    bt_out_set(row, "max_s", bt_out_real(d->max_s));
    bt_out_append(rows, row);
}

static json_t *latencies(const struct bt_summary *s)
{
    json_t *rows = bt_out_list();
    add_latency(rows, "TTFT", &s->ttft);
    add_latency(rows, "TPOT", &s->tpot);
    add_latency(rows, "ITL", &s->itl);
    add_latency(rows, "E2E", &s->e2e);
    add_latency(rows, "queue", &s->queue);
    return rows;
}

static json_t *slo_rows(const struct bt_summary *s, const struct bt_slo *slos, int32_t n)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < n; i++) {
        char name[48];
        (void)snprintf(name, sizeof name, "%s.%s", bt_slo_metric_name(slos[i].metric),
                       bt_stat_name(slos[i].stat));
        double limit_s = (double)slos[i].limit_ns / 1e9;
        json_t *row = bt_out_object();
        bt_out_set(row, "slo", bt_out_text(name));
        bt_out_set(row, "value_s", bt_out_real(s->slo_value_s[i]));
        bt_out_set(row, "limit_s", bt_out_real(limit_s));
        bt_out_set(row, "held", bt_out_text(s->slo_value_s[i] <= limit_s ? "yes" : "NO"));
        bt_out_append(rows, row);
    }
    return rows;
}

static json_t *served(const struct bt_simulation *sim)
{
    const struct bt_summary *s = &sim->result->summary;
    json_t *o = bt_out_object();
    bt_out_set(o, "arrived", bt_out_int(s->arrived));
    bt_out_set(o, "finished", bt_out_int(s->finished));
    struct {
        const char *name;
        int64_t n;
    } rest[] = {{"timed out", s->timed_out},
                {"rejected", s->rejected},
                {"cancelled", s->cancelled},
                {"failed", s->failed},
                {"still running", s->running + s->waiting},
                {"degraded", s->degraded}};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        if (rest[i].n > 0) {
            bt_out_set(o, rest[i].name, bt_out_int(rest[i].n));
        }
    }
    bt_out_set(o, "throughput_req_per_s", bt_out_real(s->throughput_req_per_s));
    bt_out_set(o, "throughput_out_tok_per_s", bt_out_real(s->throughput_out_tok_per_s));
    if (!isnan(s->slo_attainment_fraction)) {
        bt_out_set(o, "slo_attainment_fraction", bt_out_real(s->slo_attainment_fraction));
    }
    bt_out_set(o, "running_mean", bt_out_real(s->running_mean));
    bt_out_set(o, "kv_blocks_peak", bt_out_int(s->kv_blocks_peak));
    bt_out_set(o, "kv_blocks_total", bt_out_int(s->kv_blocks_total));
    if (s->preempt_swap + s->preempt_recompute > 0) {
        bt_out_set(o, "preempt_swap", bt_out_int(s->preempt_swap));
        bt_out_set(o, "preempt_recompute", bt_out_int(s->preempt_recompute));
    }
    if (s->prefix_hit_fraction > 0) {
        bt_out_set(o, "prefix_hit_fraction", bt_out_real(s->prefix_hit_fraction));
    }
    if (s->spec_verifications > 0) {
        bt_out_set(o, "accepted_len", bt_out_real(s->accepted_len));
        bt_out_set(o, "acceptance_rate", bt_out_real(s->acceptance_rate));
    }
    if (!isnan(sim->usd_per_h)) {
        bt_out_set(o, "cost_usd_per_h", bt_out_real(sim->usd_per_h));
        double tok_per_h = s->throughput_out_tok_per_s * 3600;
        bt_out_set(o, "cost_usd_per_mtok", bt_out_real(sim->usd_per_h / tok_per_h * 1e6));
    }
    return o;
}

json_t *bt_run_table(const char *title, const struct bt_simulation *s, const struct bt_slo *slos,
                     int32_t n_slos)
{
    json_t *doc = bt_out_object();
    bt_out_set(doc, "title", bt_out_text(title));
    bt_out_set(doc, "latency", latencies(&s->result->summary));
    bt_out_set(doc, "slo", slo_rows(&s->result->summary, slos, n_slos));
    bt_out_set(doc, "served", served(s));
    bt_out_set(doc, "remarks", bt_run_remarks(&s->deploy, &s->result->summary));
    return doc;
}

static const struct bt_out_column LATENCY_COLUMNS[] = {
    {"metric", "", BT_UNIT_AUTO},      {"mean_s", "mean", BT_UNIT_SECONDS},
    {"p50_s", "p50", BT_UNIT_SECONDS}, {"p90_s", "p90", BT_UNIT_SECONDS},
    {"p95_s", "p95", BT_UNIT_SECONDS}, {"p99_s", "p99", BT_UNIT_SECONDS},
    {"max_s", "max", BT_UNIT_SECONDS}};
static const struct bt_out_column SLO_COLUMNS[] = {{"slo", "SLO", BT_UNIT_AUTO},
                                                   {"value_s", "value", BT_UNIT_SECONDS},
                                                   {"limit_s", "limit", BT_UNIT_SECONDS},
                                                   {"held", "held", BT_UNIT_AUTO}};
static const struct bt_out_part RUN_PARTS[] = {
    {.kind = BT_OUT_LINES, .path = "title"},
    {.kind = BT_OUT_ROWS, .path = "latency", .columns = LATENCY_COLUMNS, .n_columns = 7},
    {.kind = BT_OUT_ROWS, .path = "slo", .columns = SLO_COLUMNS, .n_columns = 4},
    {.kind = BT_OUT_FIELDS, .path = "served"},
    {.kind = BT_OUT_LINES, .path = "remarks"},
};
const struct bt_out_view bt_run_view = {.parts = RUN_PARTS, .n_parts = 5};

json_t *bt_runs_row(const char *label, const struct bt_simulation *sim)
{
    json_t *row = bt_out_object();
    bt_out_set(row, "label", bt_out_text(label));
    if (!sim->fits) {
        bt_out_set(row, "bottleneck", bt_out_text("does not fit"));
        return row;
    }
    const struct bt_summary *s = &sim->result->summary;
    bt_out_set(row, "ttft_p95_s", bt_out_real(s->ttft.p95_s));
    bt_out_set(row, "tpot_mean_s", bt_out_real(s->tpot.mean_s));
    bt_out_set(row, "e2e_p50_s", bt_out_real(s->e2e.p50_s));
    bt_out_set(row, "e2e_p95_s", bt_out_real(s->e2e.p95_s));
    bt_out_set(row, "e2e_p99_s", bt_out_real(s->e2e.p99_s));
    bt_out_set(row, "throughput_req_per_s", bt_out_real(s->throughput_req_per_s));
    bt_out_set(row, "throughput_out_tok_per_s", bt_out_real(s->throughput_out_tok_per_s));
    bt_out_set(row, "slo_attainment_fraction", bt_out_real(s->slo_attainment_fraction));
    bt_out_set(row, "kv_used_fraction", bt_out_real(s->kv_used_fraction));
    bt_out_set(row, "preemptions", bt_out_int(s->preempt_swap + s->preempt_recompute));
    bt_out_set(row, "gpu_busy_fraction", bt_out_real(s->gpu_busy_fraction));
    bt_out_set(row, "bottleneck", bt_out_text(bt_bottleneck_name(s->bottleneck)));
    bt_out_set(row, "cost_usd_per_h", bt_out_real(sim->usd_per_h));
    return row;
}

static const struct bt_out_column RUNS_COLUMNS[] = {
    {"label", "configuration", BT_UNIT_AUTO},
    {"ttft_p95_s", "TTFT p95", BT_UNIT_SECONDS},
    {"tpot_mean_s", "TPOT", BT_UNIT_SECONDS},
    {"e2e_p50_s", "E2E p50", BT_UNIT_SECONDS},
    {"e2e_p95_s", "E2E p95", BT_UNIT_SECONDS},
    {"e2e_p99_s", "E2E p99", BT_UNIT_SECONDS},
    {"throughput_req_per_s", "req/s", BT_UNIT_NONE},
    {"throughput_out_tok_per_s", "tok/s", BT_UNIT_NONE},
    {"slo_attainment_fraction", "in SLO", BT_UNIT_FRACTION},
    {"kv_used_fraction", "KV used", BT_UNIT_FRACTION},
    {"preemptions", "preempt", BT_UNIT_NONE},
    {"gpu_busy_fraction", "busy", BT_UNIT_FRACTION},
    {"bottleneck", "bottleneck", BT_UNIT_AUTO},
    {"cost_usd_per_h", "$/h", BT_UNIT_USD},
};
static const struct bt_out_part RUNS_PARTS[] = {
    {.kind = BT_OUT_LINES, .path = "title"},
    BT_OUT_ROWS_PART("runs", NULL, RUNS_COLUMNS),
    {.kind = BT_OUT_LINES, .path = "remarks"},
};
const struct bt_out_view bt_runs_view = {.parts = RUNS_PARTS, .n_parts = 3};
