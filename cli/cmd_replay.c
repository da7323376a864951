/* berth replay: a trace against one configuration. */
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/figures.h"
#include "cli/metrics_json.h"
#include "cli/real.h"
#include "cli/record.h"
#include "cli/replay_compare.h"
#include "cli/run_table.h"
#include "cli/scenario_opts.h"
#include "cli/simulate.h"
#include "db/store.h"

#include <math.h>

static const double RATE_WIDTH = 0.02;

struct replay {
    struct bt_world world;
    struct bt_config config;
    struct bt_run_opts run;
    const char *trace_path;
};

/* ---- --max-rate ---- */

static json_t *probe_rows(const struct bt_max_rate *m, const struct bt_run_opts *run)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < m->n_probes; i++) {
        const struct bt_rate_probe *p = &m->probes[i];
        json_t *row = bt_out_object();
        bt_out_set(row, "rate_req_per_s", bt_out_real(p->rate_req_per_s));
        bt_out_set(row, "holds", json_boolean(p->holds));
        for (int32_t k = 0; k < run->n_slos; k++) {
            char name[48];
            (void)snprintf(name, sizeof name, "%s_%s_s", bt_slo_metric_name(run->slos[k].metric),
                           bt_stat_name(run->slos[k].stat));
            bt_out_set(row, name, bt_out_real(p->slo_value_s[k]));
            (void)snprintf(name, sizeof name, "%s_met_fraction",
                           bt_slo_metric_name(run->slos[k].metric));
            bt_out_set(row, name, bt_out_real(p->met_fraction[k]));
        }
        bt_out_set(row, "bottleneck", bt_out_text(bt_bottleneck_name(p->bottleneck)));
        bt_out_append(rows, row);
    }
    return rows;
}

static json_t *broken_name(const struct bt_max_rate *m, const struct bt_run_opts *run)
{
    if (m->broken_slo < 0) {
        return json_null();
    }
    char name[48];
    const struct bt_slo *slo = &run->slos[m->broken_slo];
    (void)snprintf(name, sizeof name, "%s.%s", bt_slo_metric_name(slo->metric),
                   bt_stat_name(slo->stat));
    return bt_out_text(name);
}

static const struct bt_out_part RATE_PARTS[] = {
    {.kind = BT_OUT_FIELDS, .path = "max_rate"},
    {.kind = BT_OUT_ROWS, .path = "probes", .title = "What was tried"},
    {.kind = BT_OUT_LINES, .path = "remarks"},
};
static const struct bt_out_view RATE_VIEW = {
    .parts = RATE_PARTS, .n_parts = 3, .csv_rows = "probes"};

/* What the numbers do not say of themselves. */
static json_t *rate_remarks(const struct bt_max_rate *m)
{
    json_t *lines = bt_out_list();
    char line[320];
    if (m->hopeless) {
        (void)snprintf(line, sizeof line,
                       "No rate can hold: a percentile counts all requests, and %.1f%% are longer "
                       "than max_model_len or the KV pool; see --over-length and --max-model-len.",
                       100 * m->unservable_fraction);
        bt_out_append(lines, bt_out_text(line));
    }
    return lines;
}

static enum bt_code max_rate_of(struct bt_cli *cli, struct replay *r, const struct bt_deploy *d,
                                const struct bt_deploy *degrade, struct bt_error *err)
{
    struct bt_plan_spec spec = {.seed = r->run.seed,
                                .warmup_fraction = isnan(r->run.warmup) ? 0 : r->run.warmup,
                                .slos = r->run.slos,
                                .n_slos = r->run.n_slos,
                                .jobs = r->run.jobs};
    struct bt_max_rate m;
    BT_TRY(bt_plan_max_rate(&spec, &r->world.env, d,
                            r->config.degrade_model[0] != '\0' ? degrade : NULL, r->config.replicas,
                            RATE_WIDTH, &m, err));
    json_t *doc = bt_out_answer("replay");
    bt_out_set(doc, "config", bt_config_json(&d->config));
    bt_out_set(doc, "stack", bt_out_text(d->config.stack));
    bt_out_set(doc, "trust", bt_trust_json(&d->cost));
    json_t *o = bt_out_object();
    bt_out_set(o, "rate_req_per_s", bt_out_real(m.rate_req_per_s));
    bt_out_set(o, "first_bad_req_per_s", bt_out_real(m.first_bad_req_per_s));
    bt_out_set(o, "breaks_first", broken_name(&m, &r->run));
    bt_out_set(o, "bottleneck", bt_out_text(bt_bottleneck_name(m.bottleneck)));
    bt_out_set(doc, "max_rate", o);
    bt_out_set(doc, "probes", probe_rows(&m, &r->run));
    bt_out_set(doc, "remarks", rate_remarks(&m));
    cli->answer_is_no = m.rate_req_per_s <= 0;
    enum bt_code code = bt_cli_write(cli, doc, &RATE_VIEW, err);
    json_decref(doc);
    const char *plots = bt_args_text(&cli->args, "plots");
    if (code == BT_OK && plots != NULL) {
        code = bt_figures_rate(cli, plots, r->config.model, &m, &r->run, err);
    }
    return code;
}

static enum bt_code write_unfit(struct bt_cli *cli, const struct bt_config *config,
                                const struct bt_simulation *s, struct bt_error *err)
{
    json_t *doc = bt_simulation_unfit_json("replay", s, config);
    cli->answer_is_no = true;
    if (cli->format == BT_OUT_TABLE) {
        json_decref(doc);
        doc = bt_out_object();
        bt_out_set(doc, "reason", bt_out_text(s->unfit.msg));
    }
    enum bt_code code = bt_cli_write(cli, doc, NULL, err);
    json_decref(doc);
    return code;
}

static enum bt_code max_rate(struct bt_cli *cli, struct replay *r, struct bt_error *err)
{
    if (r->run.n_slos == 0) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--max-rate: needs --slo, such as --slo e2e.p95=1.5");
    }
    struct bt_simulation s = {0};
    enum bt_code code = bt_plan_deploy(&r->world.env, &r->config, &s.deploy, &s.degrade, &s.unfit);
    if (code == BT_ERR_UNFIT) {
        return write_unfit(cli, &r->config, &s, err);
    }
    if (code != BT_OK) {
        *err = s.unfit;
        return code;
    }
    code = bt_world_check_kernels(&r->world, &s.deploy, err);
    if (code == BT_OK) {
        code = max_rate_of(cli, r, &s.deploy, &s.degrade, err);
    }
    bt_deploy_fini(&s.deploy);
    bt_deploy_fini(&s.degrade);
    return code;
}

/* ---- one run ---- */

static json_t *trace_json(const struct bt_trace *t)
{
    const struct bt_trace_counts *c = bt_trace_counts(t);
    json_t *o = bt_out_object();
    bt_out_set(o, "format", bt_out_text(bt_trace_format_name(bt_trace_format_of(t))));
    bt_out_set(o, "requests", bt_out_int(bt_trace_n(t)));
    bt_out_set(o, "failed_in_trace", bt_out_int(c->failed_in_trace));
    bt_out_set(o, "zero_prompt", bt_out_int(c->zero_prompt));
    bt_out_set(o, "spread_tick_s", bt_out_real(c->spread ? (double)c->tick_ns / 1e9 : 0));
    return o;
}

static enum bt_code write_run(struct bt_cli *cli, const struct replay *r,
                              const struct bt_simulation *s, struct bt_error *err)
{
    json_t *doc = NULL;
    const struct bt_out_view *view = NULL;
    if (cli->format == BT_OUT_TABLE) {
        char title[320];
        (void)snprintf(title, sizeof title, "%s on %d x %s (tp %d), stack %s: %lld requests",
                       s->deploy.arch.name, r->config.replicas * r->config.tp, s->deploy.gpu.name,
                       r->config.tp, r->config.stack, (long long)bt_trace_n(r->world.trace));
        doc = bt_run_table(title, s, r->run.slos, r->run.n_slos);
        view = &bt_run_view;
    } else {
        doc = bt_run_json("replay", &s->deploy, &s->result->summary, s->usd_per_h, true);
        bt_out_set(doc, "trace", trace_json(r->world.trace));
    }
    enum bt_code code = BT_OK;
    if (bt_args_given(&cli->args, "compare")) {
        code = bt_replay_compare(r->world.trace, s, doc, &view, err);
    }
    if (code == BT_OK) {
        code = bt_cli_write(cli, doc, view, err);
    }
    json_decref(doc);
    return code;
}

static enum bt_code one_run(struct bt_cli *cli, struct replay *r, struct bt_error *err)
{
    struct bt_simulation_opts opts = {
        .config = &r->config,
        .run = &r->run,
        .warmup = isnan(r->run.warmup) ? 0 : r->run.warmup,
        .records_max = r->run.per_request != NULL || bt_args_given(&cli->args, "compare")
                           ? INT64_MAX
                           : BT_STORE_REQUESTS_MAX,
        .keep_samples = r->run.timeseries != NULL || bt_args_given(&cli->args, "plots"),
        .recording = bt_args_text(&cli->args, "recording"),
        .label = "replay"};
    struct bt_simulation s;
    BT_TRY(bt_simulation_run(cli, &r->world, &opts, &s, err));
    enum bt_code code = BT_OK;
    if (!s.fits) {
        code = write_unfit(cli, &r->config, &s, err);
    } else {
        if (r->run.per_request != NULL) {
            code = bt_simulation_write_requests(&s, r->run.per_request, err);
        }
        if (code == BT_OK && r->run.timeseries != NULL) {
            code = bt_simulation_write_samples(&s, r->run.timeseries, err);
        }
        if (code == BT_OK) {
            code = write_run(cli, r, &s, err);
        }
        const char *plots = bt_args_text(&cli->args, "plots");
        if (code == BT_OK && plots != NULL) {
            code = bt_figures_run(cli, plots, &s, &r->run, err);
        }
        if (code == BT_OK) {
            struct bt_record record;
            bt_record_begin(&record, cli, &r->world, &r->run, "", r->trace_path, r->config.stack);
            bt_record_simulation(&record, 0, "", &s);
            bt_record_end(&record, true);
        }
    }
    bt_simulation_fini(&s);
    return code;
}

/* The trace's own measured columns are columns of its reading: --compare adds them to --columns. */
static enum bt_code trace_opts(struct bt_cli *cli, struct bt_trace_opts *out, char *columns,
                               size_t columns_bytes, struct bt_error *err)
{
    BT_TRY(bt_trace_opts_read(&cli->args, out, err));
    const char *compare = bt_args_text(&cli->args, "compare");
    if (compare != NULL) {
        bool has = out->columns != NULL && out->columns[0] != '\0';
        int n = snprintf(columns, columns_bytes, "%s%s%s", has ? out->columns : "", has ? "," : "",
                         compare);
        if (n < 0 || (size_t)n >= columns_bytes) {
            BT_FAIL(err, BT_ERR_ARG, 0, "--compare: longer than %zu bytes with --columns",
                    columns_bytes - 1);
        }
        out->columns = columns;
    }
    return BT_OK;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct replay r = {.trace_path = cli->args.positional[0]};
    bt_config_init(&r.config);
    BT_TRY(bt_config_apply(&cli->args, &r.config, err));
    BT_TRY(bt_run_opts_read(&cli->args, &r.run, err));
    if (bt_scenario_path(r.trace_path)) {
        BT_FAIL(
            err, BT_ERR_INPUT, 0,
            "%s: is a scenario, not a trace: `berth simulate` runs it, `berth plan` searches it",
            r.trace_path);
    }
    struct bt_trace_opts opts;
    char columns[1024];
    BT_TRY(trace_opts(cli, &opts, columns, sizeof columns, err));
    if (r.config.replicas == BT_AUTO) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--replicas: expected a number, got auto (berth plan finds the number)");
    }
    bool real = r.run.executor != BT_EXECUTOR_SIM;
    if (real && bt_args_given(&cli->args, "max-rate")) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--max-rate: many runs of the trace; a simulation makes them");
    }
    if (!real && bt_args_given(&cli->args, "recording")) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--recording: is of a real run (--executor cpu)");
    }
    BT_TRY(bt_world_open(cli, &r.world, err));
    bt_real_default_gpu(&r.world, &r.run, &r.config);
    enum bt_code code = bt_config_check(&r.config, err);
    if (code == BT_OK) {
        code = bt_world_use_trace(&r.world, r.trace_path, &opts, err);
    }
    if (code == BT_OK) {
        code = bt_real_configure(&r.world, &r.run, &r.config, err);
    }
    if (code == BT_OK) {
        code =
            bt_args_given(&cli->args, "max-rate") ? max_rate(cli, &r, err) : one_run(cli, &r, err);
    }
    bt_world_close(&r.world);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "plots", .kind = BT_OPT_TEXT, .value = "DIR", .help = "draw the figures there"},
    {.name = "max-rate",
     .kind = BT_OPT_FLAG,
     .help = "find the rate at which the SLOs break, with time compressed copies of the trace"},
    {.name = "recording",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "real engine: write every call of the scheduler and every step's result"},
    {.name = "compare",
     .kind = BT_OPT_TEXT,
     .value = "MAP",
     .help = "set the trace's own measured columns beside the prediction: ttft=COL,e2e=COL"},
};

static const struct bt_example EXAMPLES[] = {
    {"replay scenarios/traces/AzureLLMInferenceTrace_conv.csv --model llama-2-7b --gpu a100-80-sxm "
     "--replicas 4",
     "an hour of production traffic on four A100s"},
    {"replay t.csv --model llama-3.1-8b --gpu h200 --slo ttft.p99=0.5,e2e.p95=10 --max-rate",
     "the rate at which that configuration breaks"},
    {"replay t.csv --model llama-2-13b --gpu l40s --weights int8 --kv int8 --preempt swap "
     "--per-request out.csv",
     "one row a request for a look of your own"},
    {"replay t.csv --model models/llama-3.2-1b --executor cpu --limit 50 --rate-scale 0.1",
     "the trace's first 50 requests served for real on this machine, ten times as slowly"},
};

const struct bt_command bt_cmd_replay = {
    .name = "replay",
    .arguments = "TRACE --model M --gpu G",
    .summary = "serve a recorded trace with one configuration and report what users would see",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_config = true,
    .takes_trace = true,
    .takes_run = true,
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
