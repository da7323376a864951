/* berth validate: the real engine and the simulator on the same requests. */
#include "cli/backends.h"
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/metrics_json.h"
#include "cli/real.h"
#include "cli/record.h"
#include "cli/scenario_opts.h"
#include "cli/simulate.h"
#include "cli/step_diff.h"
#include "db/store.h"
#include "engine/clock.h"
#include "engine/core/order.h"
#include "engine/cpu/host.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_MAX = 32, METRICS_MAX = 8 };

static const struct metric {
    const char *name, *unit;
} metrics[METRICS_MAX] = {
    {"ttft_s.p50", "s"},
    {"ttft_s.p95", "s"},
    {"tpot_s.p50", "s"},
    {"tpot_s.p95", "s"},
    {"e2e_s.p50", "s"},
    {"e2e_s.p95", "s"},
    {"throughput_req_per_s", "requests/s"},
    {"throughput_out_tok_per_s", "tokens/s"},
};

struct row {
    double predicted, measured;
    double noise; /* relative; NAN: unknown */
    double error; /* relative */
    bool within;
};

struct validate {
    struct bt_cli *cli;
    const char *path; /* of the scenario or trace */
    bool is_scenario;
    struct bt_scenario scenario;
    struct bt_world world;
    struct bt_config config;
    struct bt_run_opts run;
    double warmup;
    double limit;       /* relative error that is within */
    int32_t n_runs;     /* of the engine */
    int64_t against;    /* run of the store that stands for the engine; 0: none */
    const char *report; /* file; NULL: none */
    bool follow_speed;  /* the simulator's steps take what the machine's did, on the whole */
    double slowness; /* time of the engine's steps over what was predicted of them; NAN: unknown */
    double measured[METRICS_MAX][RUNS_MAX];
    struct bt_simulation engine, sim; /* the engine's last run, and the simulator's */
    bool has_engine, has_sim;
    struct bt_step_diff steps;
    struct row rows[METRICS_MAX];
};

/* ---- input ---- */

static enum bt_code open_scenario(struct validate *v, struct bt_error *err)
{
    BT_TRY(bt_scenario_open(v->cli, v->path, &v->scenario, err));
    int64_t n = bt_scenario_n_configs(&v->scenario);
    if (n != 1) {
        BT_FAIL(err, BT_ERR_INPUT, n,
                "%s: spans %lld configurations; one is validated (--set KEY=VALUE)", v->path,
                (long long)n);
    }
    char label[256];
    bt_scenario_config(&v->scenario, 0, &v->config, label, sizeof label);
    return BT_OK;
}

static enum bt_code take_workload(struct validate *v, struct bt_error *err)
{
    v->warmup = isnan(v->run.warmup) ? 0 : v->run.warmup;
    if (v->is_scenario) {
        BT_TRY(bt_world_use_scenario(&v->world, v->cli, &v->scenario, err));
        bt_scenario_run_opts(v->cli, &v->scenario, &v->run, &v->warmup);
        return BT_OK;
    }
    struct bt_trace_opts opts;
    BT_TRY(bt_trace_opts_read(&v->cli->args, &opts, err));
    return bt_world_use_trace(&v->world, v->path, &opts, err);
}

static enum bt_code check(struct validate *v, struct bt_error *err)
{
    if (v->config.model[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0, "--model is missing: a folder with a checkpoint");
    }
    if (v->follow_speed && (v->run.executor == BT_EXECUTOR_CUDA || v->against != 0)) {
        BT_FAIL(
            err, BT_ERR_ARG, 0,
            "--follow-speed: takes the engine's runs on this machine's processor (no --against, "
            "--executor cpu)");
    }
    if (v->against != 0 && (bt_args_given(&v->cli->args, "runs"))) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--against: the engine does not run; --runs has no meaning");
    }
    if (v->run.executor == BT_EXECUTOR_CUDA) {
        return BT_OK; /* what is known of the card is in the store, or ships with the program */
    }
    const struct bt_gpu *host = bt_local_host(&v->world.local);
    if (host == NULL) {
        BT_FAIL(err, BT_ERR_MISSING, 0,
                "this machine is not calibrated: berth calibrate --model %s", v->config.model);
    }
    char here[BT_HOST_TEXT_BYTES];
    bt_host_describe(v->run.jobs, here);
    if (strcmp(here, host->product) != 0) {
        bt_cli_note(v->cli, "calibrated on %s, runs on %s", host->product, here);
    }
    return BT_OK;
}

/* ---- numbers ---- */

static double number_at(const json_t *doc, const char *path)
{
    const json_t *x = bt_out_at(doc, path);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

static void take_metrics(const json_t *doc, double *out, size_t stride)
{
    for (int32_t i = 0; i < METRICS_MAX; i++) {
        out[(size_t)i * stride] = number_at(doc, metrics[i].name);
    }
}

static void take_summary(const struct bt_simulation *s, double *out, size_t stride)
{
    json_t *doc = bt_metrics_json(&s->result->summary, NAN, false);
    take_metrics(doc, out, stride);
    json_decref(doc);
}

/* ---- the engine ---- */

static enum bt_code serve_once(struct validate *v, struct bt_real *real,
                               struct bt_recording *recording, struct bt_error *err)
{
    struct bt_simulation_opts opts = {.config = &v->config,
                                      .run = &v->run,
                                      .warmup = v->warmup,
                                      .records_max = BT_STORE_REQUESTS_MAX,
                                      .label = "engine"};
    if (v->has_engine) {
        bt_simulation_fini(&v->engine);
        v->has_engine = false;
    }
    BT_TRY(bt_real_serve(real, v->cli, &v->world, &opts, recording, &v->engine, err));
    v->has_engine = true;
    return BT_OK;
}

/* The deployment whose cost model is judged: with the acceptance that the engine showed. */
static void learn_acceptance(struct validate *v)
{
    struct bt_spec_config *spec = &v->config.spec;
    if (spec->kind == BT_SPEC_NONE || spec->n_acceptance > 0) {
        return;
    }
    const double *seen = v->engine.result->summary.acceptance_conditional;
    for (int32_t i = 0; i < bt_config_lookahead_tokens(&v->config) && !isnan(seen[i]); i++) {
        spec->acceptance[spec->n_acceptance++] = seen[i];
    }
    if (spec->n_acceptance == 0) {
        spec->acceptance[spec->n_acceptance++] = 0; /* nothing was ever verified */
    }
}

static enum bt_code run_engine(struct validate *v, struct bt_real *real, struct bt_error *err)
{
    for (int32_t i = 0; i < v->n_runs; i++) {
        struct bt_recording recording = {0};
        enum bt_code code = serve_once(v, real, &recording, err);
        if (code == BT_OK) {
            take_summary(&v->engine, &v->measured[0][i], RUNS_MAX);
            learn_acceptance(v);
            struct bt_deploy d = {0};
            code = bt_real_deploy(&v->world, &v->config, &d, err);
            code = code == BT_OK ? bt_step_diff_add(&v->steps, &recording, &d.cost, err) : code;
            bt_deploy_fini(&d);
        }
        bt_recording_fini(&recording);
        BT_TRY(code);
    }
    return BT_OK;
}

struct stored {
    json_t *metrics; /* owned; NULL: none found */
};

static bool take_stored(void *ctx, const char *section, const struct bt_value *values,
                        int32_t n_values)
{
    struct stored *s = ctx;
    for (int32_t i = 0; i < n_values && strcmp(section, "summary") == 0 && s->metrics == NULL;
         i++) {
        if (strcmp(values[i].name, "metrics_json") == 0 && values[i].type == BT_VALUE_TEXT) {
            s->metrics = json_loads(values[i].text, 0, NULL);
        }
    }
    return true;
}

/* A run of the store in place of the engine: nothing is known of its noise. */
static enum bt_code read_against(struct validate *v, struct bt_error *err)
{
    struct bt_store *store = NULL;
    struct bt_store_opts so = {.path = v->cli->db_path, .read_only = true};
    struct stored stored = {0};
    BT_TRY(bt_store_open(&so, &store, err));
    enum bt_code code = bt_store_show_run(store, v->against, take_stored, &stored, err);
    bt_store_close(store);
    if (code == BT_OK && stored.metrics == NULL) {
        code = bt_error_set(err, BT_ERR_NOTFOUND, v->against, __FILE__, __LINE__,
                            "--against: run %lld has no metrics", (long long)v->against);
    }
    if (code == BT_OK) {
        take_metrics(stored.metrics, &v->measured[0][0], RUNS_MAX);
        v->n_runs = 1;
    }
    json_decref(stored.metrics);
    return code;
}

static enum bt_code measure(struct validate *v, struct bt_error *err)
{
    if (v->against != 0) {
        return read_against(v, err);
    }
    struct bt_real real;
    BT_TRY(bt_real_open(v->cli, &v->world, &v->config, &v->run, &real, err));
    if (!real.fits) {
        BT_FAIL(err, BT_ERR_UNFIT, 0, "%s", real.unfit.msg);
    }
    enum bt_code code = run_engine(v, &real, err);
    bt_real_close(&real);
    return code;
}

/* ---- the comparison ---- */

/* How much longer than predicted the engine's steps took, all together. */
static double slowness_of(const struct bt_step_diff *d)
{
    double measured_s = 0, predicted_s = 0;
    for (int32_t i = 0; i < BT_STEP_KINDS; i++) {
        measured_s += d->kinds[i].measured_s;
        predicted_s += d->kinds[i].predicted_s;
    }
    return predicted_s > 0 ? measured_s / predicted_s : NAN;
}

static void scale_calibration(struct bt_local *l, double factor)
{
    for (int64_t i = 0; i < l->host.samples.n_samples; i++) {
        struct bt_cost_sample *s = &l->host.samples.samples[i];
        int64_t ns = (int64_t)((double)s->time_ns * factor + 0.5);
        s->time_ns = ns > 0 ? ns : 1;
    }
}

static enum bt_code simulate(struct validate *v, struct bt_error *err)
{
    v->slowness = slowness_of(&v->steps);
    if (v->follow_speed && v->slowness > 0) {
        scale_calibration(&v->world.local, v->slowness);
    }
    struct bt_run_opts run = v->run;
    run.executor = BT_EXECUTOR_SIM;
    struct bt_simulation_opts opts = {.config = &v->config,
                                      .run = &run,
                                      .warmup = v->warmup,
                                      .records_max = BT_STORE_REQUESTS_MAX,
                                      .label = "simulator"};
    BT_TRY(bt_simulation_run(v->cli, &v->world, &opts, &v->sim, err));
    v->has_sim = true;
    if (!v->sim.fits) {
        BT_FAIL(err, BT_ERR_UNFIT, 0, "%s", v->sim.unfit.msg);
    }
    return BT_OK;
}

/* Twice the standard deviation of n runs, relative to their median: of the engine's own runs one in
 * twenty lies farther from their mean. Unlike the distance of the extremes it does not grow with n.
 */
static double noise_of(const double *runs, int32_t n, double median)
{
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += runs[i];
    }
    for (int32_t i = 0; i < n; i++) {
        squares += (runs[i] - sum / n) * (runs[i] - sum / n);
    }
    return n > 1 ? 2 * sqrt(squares / (n - 1)) / median : NAN;
}

/* The engine's answer is the median of its runs. */
static void compare(struct validate *v)
{
    double predicted[METRICS_MAX];
    take_summary(&v->sim, predicted, 1);
    for (int32_t i = 0; i < METRICS_MAX; i++) {
        struct row *r = &v->rows[i];
        double *runs = v->measured[i];
        int32_t n = v->n_runs;
        qsort(runs, (size_t)n, sizeof *runs, bt_compare_doubles);
        r->predicted = predicted[i];
        r->measured = (runs[n / 2] + runs[(n - 1) / 2]) / 2;
        r->noise = noise_of(runs, n, r->measured);
        r->error = r->predicted / r->measured - 1;
        bool missing =
            isnan(r->predicted) && isnan(r->measured); /* no request of two tokens, say */
        r->within = missing || fabs(r->error) <= v->limit || fabs(r->error) <= r->noise;
        v->cli->answer_is_no = v->cli->answer_is_no || !r->within;
    }
}

/* ---- the answer ---- */

static const struct bt_out_column ROW_COLUMNS[] = {
    {"metric", NULL, BT_UNIT_AUTO},
    {"predicted", NULL, BT_UNIT_NONE},
    {"measured", NULL, BT_UNIT_NONE},
    {"unit", NULL, BT_UNIT_AUTO},
    {"error_fraction", "error", BT_UNIT_FRACTION},
    {"noise_fraction", "engine's noise", BT_UNIT_FRACTION},
    {"within", NULL, BT_UNIT_AUTO},
};
static const struct bt_out_column STEP_COLUMNS[] = {
    {"kind", "step", BT_UNIT_AUTO},
    {"steps", "steps", BT_UNIT_NONE},
    {"tokens_mean", "tokens", BT_UNIT_NONE},
    {"measured_s", "measured", BT_UNIT_SECONDS},
    {"predicted_s", "predicted", BT_UNIT_SECONDS},
    {"error_fraction", "error", BT_UNIT_FRACTION},
    {"abs_error_fraction", "each step's error", BT_UNIT_FRACTION},
};
static const struct bt_out_part PARTS[] = {
    BT_OUT_ROWS_PART("rows", "Simulator against engine", ROW_COLUMNS),
    BT_OUT_ROWS_PART("steps", "Mean time of a step", STEP_COLUMNS),
    {.kind = BT_OUT_LINES, .path = "remarks"},
};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 3, .csv_rows = "rows"};

static json_t *rows_json(const struct validate *v)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < METRICS_MAX; i++) {
        const struct row *r = &v->rows[i];
        json_t *row = bt_out_object();
        bt_out_set(row, "metric", bt_out_text(metrics[i].name));
        bt_out_set(row, "predicted", bt_out_real(r->predicted));
        bt_out_set(row, "measured", bt_out_real(r->measured));
        bt_out_set(row, "error_fraction", bt_out_real(r->error));
        bt_out_set(row, "noise_fraction", bt_out_real(r->noise));
        bt_out_set(row, "unit", bt_out_text(metrics[i].unit));
        bt_out_set(row, "within", json_boolean(r->within));
        bt_out_append(rows, row);
    }
    return rows;
}

static json_t *remarks_json(const struct validate *v)
{
    char line[320];
    json_t *lines = bt_out_list();
    (void)snprintf(line, sizeof line,
                   "%s: an error is within when it is at most %.0f%%, or at most the engine's own "
                   "noise (two standard deviations of %d runs)",
                   v->cli->answer_is_no ? "Over the limit" : "Within the limit", 100 * v->limit,
                   v->n_runs);
    bt_out_append(lines, bt_out_text(line));
    (void)snprintf(line, sizeof line,
                   "load: device busy %.0f%% of the time, %.1f running, %.1f waiting",
                   100 * v->sim.result->summary.gpu_busy_fraction,
                   v->sim.result->summary.running_mean, v->sim.result->summary.waiting_mean);
    bt_out_append(lines, bt_out_text(line));
    if (v->slowness > 0) {
        (void)snprintf(line, sizeof line,
                       "machine: its steps took %.2f times what calibration says; %s", v->slowness,
                       v->follow_speed ? "the simulator's do too"
                                       : "--follow-speed predicts with that");
        bt_out_append(lines, bt_out_text(line));
    }
    if (!isnan(bt_clock_slowness())) {
        (void)snprintf(line, sizeof line,
                       "clock: a second of work took %.2f seconds of the thread's time",
                       bt_clock_slowness());
        bt_out_append(lines, bt_out_text(line));
    }
    return lines;
}

static json_t *document(const struct validate *v)
{
    json_t *doc = bt_out_answer("validate");
    bt_out_set(doc, "config", bt_config_json(&v->config));
    bt_out_set(doc, "stack", bt_out_text(v->config.stack));
    bt_out_set(doc, "trust", bt_trust_json(&v->sim.deploy.cost));
    bt_out_set(doc, "limit_fraction", bt_out_real(v->limit));
    bt_out_set(doc, "runs", bt_out_int(v->n_runs));
    bt_out_set(doc, "requests", bt_out_int(v->sim.result->summary.arrived));
    bt_out_set(doc, "slowness", bt_out_real(v->slowness));
    bt_out_set(doc, "follows_speed", json_boolean(v->follow_speed));
    bt_out_set(doc, "clock_slowness", bt_out_real(bt_clock_slowness()));
    bt_out_set(doc, "rows", rows_json(v));
    bt_out_set(doc, "steps", bt_step_diff_json(&v->steps));
    if (v->cli->format == BT_OUT_TABLE) {
        bt_out_set(doc, "remarks", remarks_json(v));
    }
    return doc;
}

/* ---- the report ---- */

static void report_percent(FILE *f, double x)
{
    if (isnan(x)) {
        fprintf(f, " | -");
    } else {
        fprintf(f, " | %+.1f%%", 100 * x);
    }
}

static void report_steps(FILE *f, const json_t *steps)
{
    fprintf(f, "\n| step | steps | tokens | measured, ms | predicted, ms | error |\n"
               "| --- | ---: | ---: | ---: | ---: | ---: |\n");
    size_t i;
    const json_t *s;
    json_array_foreach(steps, i, s)
    {
        fprintf(f, "| %s | %lld | %.1f | %.3f | %.3f",
                json_string_value(json_object_get(s, "kind")), (long long)number_at(s, "steps"),
                number_at(s, "tokens_mean"), 1e3 * number_at(s, "measured_s"),
                1e3 * number_at(s, "predicted_s"));
        report_percent(f, number_at(s, "error_fraction"));
        fprintf(f, " |\n");
    }
}

/* A Markdown section: what ran, the table of metrics, the table of steps. */
static enum bt_code write_report(const struct validate *v, const json_t *doc, struct bt_error *err)
{
    FILE *f = fopen(v->report, "w");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", v->report, strerror(errno));
    }
    const struct bt_summary *s = &v->sim.result->summary;
    const char *slash = strrchr(v->path, '/');
    const char *product = v->run.executor == BT_EXECUTOR_CUDA
                              ? bt_backend_gpu_product()
                              : bt_local_host(&v->world.local)->product;
    fprintf(f, "### %s\n\n%s on %s, %s clock: %lld requests at %.2f a second, device busy %.0f%%, ",
            slash == NULL ? v->path : slash + 1, v->sim.deploy.arch.name, product,
            v->run.clock == BT_CLOCK_WORK ? "work" : "wall", (long long)s->arrived,
            s->throughput_req_per_s, 100 * s->gpu_busy_fraction);
    fprintf(f, "%.1f running, %.1f waiting; %d engine run%s", s->running_mean, s->waiting_mean,
            v->n_runs, v->n_runs == 1 ? "" : "s");
    if (v->slowness > 0) {
        fprintf(f, "; its steps took %.3f times what calibration says%s", v->slowness,
                v->follow_speed ? ", and so do the simulator's" : "");
    }
    if (!isnan(bt_clock_slowness())) {
        fprintf(f, "; a second of the clock was %.2f of the thread's time", bt_clock_slowness());
    }
    fprintf(f, ".\n\n");
    fprintf(f, "| metric | predicted | measured | error | engine's noise | within |\n"
               "| --- | ---: | ---: | ---: | ---: | --- |\n");
    for (int32_t i = 0; i < METRICS_MAX; i++) {
        const struct row *r = &v->rows[i];
        fprintf(f, "| %s, %s | %.4g | %.4g", metrics[i].name, metrics[i].unit, r->predicted,
                r->measured);
        report_percent(f, r->error);
        if (isnan(r->noise)) {
            fprintf(f, " | -");
        } else {
            fprintf(f, " | %.1f%%", 100 * r->noise);
        }
        fprintf(f, " | %s |\n", r->within ? "yes" : "NO");
    }
    report_steps(f, bt_out_at(doc, "steps"));
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", v->report, strerror(errno));
    }
    return BT_OK;
}

static void record(const struct validate *v)
{
    struct bt_record r;
    struct bt_store_validation rows[METRICS_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < METRICS_MAX; i++) {
        if (!isnan(v->rows[i].predicted) && !isnan(v->rows[i].measured)) {
            rows[n++] = (struct bt_store_validation){.metric = metrics[i].name,
                                                     .unit = metrics[i].unit,
                                                     .predicted = v->rows[i].predicted,
                                                     .measured = v->rows[i].measured,
                                                     .noise = v->rows[i].noise};
        }
    }
    bt_record_begin(&r, v->cli, &v->world, &v->run, v->is_scenario ? v->scenario.name : "",
                    v->is_scenario ? v->scenario.workload.file : v->path, v->config.stack);
    if (v->has_engine) {
        bt_record_simulation(&r, 0, "engine", &v->engine);
    }
    bt_record_simulation(&r, 1, "simulator", &v->sim);
    bt_record_validations(&r, rows, n);
    bt_record_end(&r, true);
}

static enum bt_code answer(struct validate *v, struct bt_error *err)
{
    compare(v);
    json_t *doc = document(v);
    enum bt_code code = bt_cli_write(v->cli, doc, &VIEW, err);
    if (code == BT_OK && v->report != NULL) {
        code = write_report(v, doc, err);
    }
    json_decref(doc);
    if (code == BT_OK) {
        record(v);
    }
    return code;
}

/* ---- the command ---- */

static enum bt_code work(struct validate *v, struct bt_error *err)
{
    BT_TRY(bt_config_apply(&v->cli->args, &v->config, err));
    bt_real_default_gpu(&v->world, &v->run, &v->config);
    BT_TRY(check(v, err));
    BT_TRY(take_workload(v, err));
    BT_TRY(bt_real_configure(&v->world, &v->run, &v->config, err));
    BT_TRY(measure(v, err));
    BT_TRY(simulate(v, err));
    return answer(v, err);
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct validate *v = calloc(1, sizeof *v);
    BT_ASSERT(v != NULL);
    v->cli = cli;
    v->path = cli->args.positional[0];
    v->is_scenario = bt_scenario_path(v->path);
    v->limit = bt_args_real(&cli->args, "within", 0.1);
    v->n_runs = (int32_t)bt_args_int(&cli->args, "runs", 3);
    v->against = bt_args_int(&cli->args, "against", 0);
    v->report = bt_args_text(&cli->args, "report");
    v->follow_speed = bt_args_given(&cli->args, "follow-speed");
    bt_config_init(&v->config);
    enum bt_code code = bt_run_opts_read(&cli->args, &v->run, err);
    if (code == BT_OK && !bt_args_given(&cli->args, "executor")) {
        v->run.executor = BT_EXECUTOR_CPU;
    }
    if (code == BT_OK && v->run.executor == BT_EXECUTOR_SIM) {
        code = bt_error_set(
            err, BT_ERR_ARG, 0, __FILE__, __LINE__,
            "--executor sim: the simulator is compared with a real engine (cpu, cuda)");
    }
    code = code == BT_OK && v->is_scenario ? open_scenario(v, err) : code;
    code = code == BT_OK ? bt_world_open(cli, &v->world, err) : code;
    if (code == BT_OK) {
        code = work(v, err);
        bt_world_close(&v->world);
    }
    if (v->has_engine) {
        bt_simulation_fini(&v->engine);
    }
    if (v->has_sim) {
        bt_simulation_fini(&v->sim);
    }
    bt_scenario_fini(&v->scenario);
    bool scenario = v->is_scenario;
    free(v);
    return scenario ? bt_scenario_error(code, err) : code;
}

static const struct bt_opt OPTS[] = {
    BT_SCENARIO_OPT_SET,
    {.name = "runs",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "3",
     .min = 2,
     .max = RUNS_MAX,
     .help = "runs of the engine: two of their standard deviations are its noise"},
    {.name = "within",
     .kind = BT_OPT_REAL,
     .value = "F",
     .default_text = "0.1",
     .min = 0,
     .max = 100,
     .help = "relative error that passes (so does one within the engine's noise)"},
    {.name = "against",
     .kind = BT_OPT_INT,
     .value = "RUN",
     .min = 1,
     .max = INFINITY,
     .help = "a real run of the store in place of the engine"},
    {.name = "follow-speed",
     .kind = BT_OPT_FLAG,
     .help = "where other programs change a machine's speed: all predicted steps as much slower or "
             "faster than calibrated as the engine's were on the whole"},
    {.name = "report", .kind = BT_OPT_TEXT, .value = "FILE", .help = "write a section of Markdown"},
};

static const struct bt_example EXAMPLES[] = {
    {"validate t.csv --model models/llama-3.2-1b --limit 100",
     "the error of each metric beside the engine's own noise"},
    {"validate chat.lua --model models/llama-3.2-1b --runs 5 --within 0.05 --report out.md",
     "a scenario's load, five engine runs, a report"},
};

const struct bt_command bt_cmd_validate = {
    .name = "validate",
    .arguments = "SCENARIO.lua|TRACE --model DIR",
    .summary = "run the real engine and the simulator on the same requests and compare",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_config = true,
    .takes_trace = true,
    .takes_run = true,
    .min_positional = 1,
    .max_positional = 1,
    .notes =
        "Without --executor cuda the engine runs on the CPU. Exit status 1: an error over the\n"
        "limit and over the noise.\n",
    .run = run,
};
