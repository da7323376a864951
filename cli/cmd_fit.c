/* berth fit: a stack's step overhead and efficiency from a user's own benchmark. */
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/fit_file.h"
#include "cli/fit_target.h"
#include "cli/plot.h"
#include "cli/simulate.h"
#include "db/sha256.h"
#include "db/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double OVERHEAD_MAX_S = 0.2;
static const double EFFICIENCY_MIN = 0.2, EFFICIENCY_MAX = 2;
/* Steps of finite differences: larger than what a simulation's event order jitters by. */
static const double OVERHEAD_STEP_S = 200e-6, EFFICIENCY_STEP = 0.01;
/* A fit to a handful of requests claims no more than this. */
static const double LEAST_STEP_ERROR = 0.01;
/* The efficiency takes the overhead's place when it leaves less than this share of its squares. */
static const double EXPLAINS_MORE = 0.5;
/* A fit that leaves more than this had the wrong parameter. */
static const double POOR_ERROR = 0.05;

enum figure { FIGURE_TTFT, FIGURE_TPOT, FIGURE_E2E, FIGURES };

/* Times of a request, seconds; NAN where there is none. */
struct times {
    double of[FIGURES];
};

struct fitting {
    const struct bt_cli *cli;
    struct bt_world world;
    struct bt_config config;
    struct bt_run_opts run;
    struct bt_fit_target target;
    bool overhead, efficiency; /* what is fitted */
    bool may_choose;           /* one of them, the overhead unless it explains too little */
    bool no_overhead, chose_efficiency;
    struct bt_fit fit;
    char model[BT_ARCH_NAME_BYTES];

    int64_t n;               /* requests; 1 for a summary, whose figures are means */
    int64_t n_fit;           /* the first so many are fitted, the rest scored */
    struct times *measured;  /* owned, by request */
    struct times *predicted; /* owned: of the last simulation */
    double measured_req_per_s, predicted_req_per_s;
};

/* ---- one simulation ---- */

static void take_records(struct fitting *f, const struct bt_simulation *s)
{
    for (int64_t i = 0; i < f->n; i++) {
        f->predicted[i] = (struct times){{NAN, NAN, NAN}};
    }
    for (int64_t i = 0; i < s->kept.n_records; i++) {
        const struct bt_req_record *r = &s->kept.records[i];
        if (r->outcome == BT_OUTCOME_FINISHED && (int64_t)r->user < f->n) {
            struct times *t = &f->predicted[r->user];
            t->of[FIGURE_TTFT] = (double)(r->first_token_ns - r->arrival_ns) / 1e9;
            t->of[FIGURE_E2E] = (double)(r->end_ns - r->arrival_ns) / 1e9;
            t->of[FIGURE_TPOT] = r->n_output > 1 ? (double)(r->last_token_ns - r->first_token_ns) /
                                                       1e9 / (r->n_output - 1)
                                                 : NAN;
        }
    }
}

static enum bt_code simulate(struct fitting *f, const struct bt_fit *fit, struct bt_error *err)
{
    struct bt_cli quiet = *f->cli;
    quiet.quiet = true;
    struct bt_simulation_opts opts = {
        .config = &f->config, .run = &f->run, .records_max = INT64_MAX, .label = "fit"};
    struct bt_simulation s;
    f->world.env.fit = fit;
    BT_TRY(bt_simulation_run(&quiet, &f->world, &opts, &s, err));
    if (!s.fits) {
        *err = s.unfit;
        bt_simulation_fini(&s);
        return BT_ERR_ARG;
    }
    const struct bt_summary *m = &s.result->summary;
    memcpy(f->model, s.deploy.arch.name, sizeof f->model);
    memcpy(f->fit.stack, s.deploy.config.stack, sizeof f->fit.stack);
    (void)snprintf(f->fit.gpu, sizeof f->fit.gpu, "%s", s.deploy.gpu.name);
    f->predicted_req_per_s = m->throughput_req_per_s;
    if (f->target.per_request) {
        take_records(f, &s);
    } else {
        f->predicted[0] = (struct times){{m->ttft.mean_s, m->tpot.mean_s, m->e2e.mean_s}};
    }
    bt_simulation_fini(&s);
    return BT_OK;
}

/* ---- residuals ---- */

/* The overhead shows in the time between tokens alone; how fast the operations are, in waiting and
 * prefill too. */
static bool counts(const struct fitting *f, enum figure figure)
{
    return figure == FIGURE_TPOT || (f->efficiency && figure == FIGURE_E2E) ||
           (!f->target.per_request && figure == FIGURE_TTFT && f->efficiency);
}

static int64_t n_residuals(const struct fitting *f)
{
    int64_t n = 0;
    for (int64_t i = 0; i < f->n_fit; i++) {
        for (int32_t k = 0; k < FIGURES; k++) {
            n += counts(f, (enum figure)k) && f->measured[i].of[k] > 0;
        }
    }
    return n;
}

static struct bt_fit candidate(const struct fitting *f, const double *x)
{
    struct bt_fit fit = f->fit;
    int32_t at = 0;
    fit.step_overhead_s = f->overhead ? x[at++] : fit.step_overhead_s;
    fit.efficiency = f->efficiency ? x[at] : 1;
    return fit;
}

static enum bt_code residuals(void *ctx, const double *x, double *out, struct bt_error *err)
{
    struct fitting *f = ctx;
    struct bt_fit fit = candidate(f, x);
    BT_TRY(simulate(f, &fit, err));
    int64_t at = 0;
    for (int64_t i = 0; i < f->n_fit; i++) {
        for (int32_t k = 0; k < FIGURES; k++) {
            double measured = f->measured[i].of[k];
            if (!counts(f, (enum figure)k) || !(measured > 0)) {
                continue;
            }
            double predicted = f->predicted[i].of[k];
            if (!(predicted > 0)) {
                BT_FAIL(err, BT_ERR_INPUT, i,
                        "fit: request %lld was served in the benchmark, but not in the simulation "
                        "(--over-length, --max-model-len or --kv-blocks differ?)",
                        (long long)i);
            }
            out[at++] = log(predicted / measured);
        }
    }
    return BT_OK;
}

/* ---- what was measured ---- */

static double seconds(int64_t ns)
{
    return ns >= 0 ? (double)ns / 1e9 : NAN;
}

static void measured_of_trace(struct fitting *f)
{
    double first = INFINITY;
    double last = -INFINITY;
    for (int64_t i = 0; i < f->n; i++) {
        struct bt_measured m = {-1, -1, -1};
        struct bt_request r;
        bt_trace_get(f->world.trace, i, &r);
        (void)bt_trace_measured(f->world.trace, r.id, &m);
        f->measured[r.id] =
            (struct times){{seconds(m.ttft_ns), seconds(m.tpot_ns), seconds(m.e2e_ns)}};
        double arrival = (double)r.arrival_ns / 1e9;
        first = fmin(first, arrival);
        last = fmax(last, arrival + (m.e2e_ns >= 0 ? (double)m.e2e_ns / 1e9 : 0));
    }
    f->measured_req_per_s = last > first ? (double)f->n / (last - first) : NAN;
}

static enum bt_code take_measured(struct fitting *f, struct bt_error *err)
{
    f->n = f->target.per_request ? bt_trace_n(f->world.trace) : 1;
    f->measured = calloc((size_t)f->n, sizeof *f->measured);
    f->predicted = calloc((size_t)f->n, sizeof *f->predicted);
    if (f->measured == NULL || f->predicted == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "fit: no memory for %lld requests", (long long)f->n);
    }
    if (f->target.per_request) {
        measured_of_trace(f);
    } else {
        const struct bt_bench_run *b = &f->target.bench;
        f->measured[0] = (struct times){{b->ttft.mean_s, b->tpot.mean_s, b->e2e.mean_s}};
        f->measured_req_per_s = b->throughput_req_per_s;
    }
    int64_t first = bt_args_int(&f->cli->args, "fit-first", f->n);
    f->n_fit = first < f->n ? first : f->n;
    return BT_OK;
}

/* ---- the answer ---- */

static double mean_of(const struct times *t, const struct times *where, int64_t from, int64_t until,
                      enum figure figure)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = from; i < until; i++) {
        if (where[i].of[figure] > 0 && t[i].of[figure] > 0) {
            sum += t[i].of[figure];
            n++;
        }
    }
    return n > 0 ? sum / (double)n : NAN;
}

static void add_score(json_t *rows, const char *of, const char *metric, const char *unit,
                      double measured, double before, double after)
{
    if (!isfinite(measured) || !isfinite(after)) {
        return;
    }
    json_t *row = bt_out_object();
    bt_out_set(row, "requests", bt_out_text(of));
    bt_out_set(row, "metric", bt_out_text(metric));
    bt_out_set(row, "unit", bt_out_text(unit));
    bt_out_set(row, "measured", bt_out_real(measured));
    bt_out_set(row, "unfitted", bt_out_real(before));
    bt_out_set(row, "fitted", bt_out_real(after));
    bt_out_set(row, "error_fraction", bt_out_real(after / measured - 1));
    bt_out_append(rows, row);
}

struct scores {
    double mean[2][FIGURES]; /* [fitted requests, the rest] */
    double req_per_s;
};

static struct scores score(const struct fitting *f)
{
    struct scores s = {.req_per_s = f->predicted_req_per_s};
    for (int32_t k = 0; k < FIGURES; k++) {
        s.mean[0][k] = mean_of(f->predicted, f->measured, 0, f->n_fit, (enum figure)k);
        s.mean[1][k] = mean_of(f->predicted, f->measured, f->n_fit, f->n, (enum figure)k);
    }
    return s;
}

static json_t *score_rows(const struct fitting *f, const struct scores *before,
                          const struct scores *after)
{
    static const char *const names[FIGURES] = {"ttft mean", "tpot mean", "e2e mean"};
    json_t *rows = bt_out_list();
    for (int32_t part = 0; part < 2; part++) {
        int64_t from = part == 0 ? 0 : f->n_fit;
        int64_t until = part == 0 ? f->n_fit : f->n;
        const char *of = f->n_fit == f->n ? "all" : part == 0 ? "fitted" : "held out";
        for (int32_t k = 0; k < FIGURES && from < until; k++) {
            double measured = mean_of(f->measured, f->predicted, from, until, (enum figure)k);
            add_score(rows, of, names[k], "s", measured, before->mean[part][k],
                      after->mean[part][k]);
        }
    }
    add_score(rows, "all", "throughput", "1/s", f->measured_req_per_s, before->req_per_s,
              after->req_per_s);
    return rows;
}

static void add_parameter(json_t *rows, const char *name, const char *unit, double value,
                          double low, double high, bool at_bound, bool has_spread)
{
    json_t *row = bt_out_object();
    bt_out_set(row, "parameter", bt_out_text(name));
    bt_out_set(row, "value", bt_out_real(value));
    json_t *ci = bt_out_list();
    bt_out_append(ci, bt_out_real(has_spread ? low : NAN));
    bt_out_append(ci, bt_out_real(has_spread ? high : NAN));
    bt_out_set(row, "ci95", ci);
    bt_out_set(row, "unit", bt_out_text(unit));
    bt_out_set(row, "at_bound", json_boolean(at_bound));
    bt_out_append(rows, row);
}

static json_t *parameter_rows(const struct fitting *f, const struct bt_fit_answer *a)
{
    json_t *rows = bt_out_list();
    int32_t at = 0;
    bool spread = f->n_fit >= 10;
    if (f->overhead) {
        add_parameter(rows, "step_overhead", "s", a->value[0], a->low[0], a->high[0],
                      a->at_bound[0], spread);
        at = 1;
    } else if (f->may_choose) {
        add_parameter(rows, "step_overhead", "s", 0, 0, 0, f->no_overhead, false);
    }
    if (f->efficiency) {
        add_parameter(rows, "efficiency", "1", a->value[at], a->low[at], a->high[at],
                      a->at_bound[at], spread);
    }
    return rows;
}

/* What is left: the held-out requests' mean TPOT, else the fitted ones' scatter. */
static double error_left(const struct fitting *f, const struct scores *after,
                         const struct bt_fit_answer *a)
{
    double error = fabs(a->rms) / sqrt((double)(f->n_fit > 1 ? f->n_fit : 1)) * 2;
    for (int32_t part = 0; part < 2; part++) {
        double measured = mean_of(f->measured, f->predicted, part == 0 ? 0 : f->n_fit,
                                  part == 0 ? f->n_fit : f->n, FIGURE_TPOT);
        if (isfinite(measured) && isfinite(after->mean[part][FIGURE_TPOT])) {
            error = fmax(error, fabs(after->mean[part][FIGURE_TPOT] / measured - 1));
        }
    }
    return fmax(error, LEAST_STEP_ERROR);
}

static const struct bt_out_column PARAMETERS[] = {
    {"parameter", "", BT_UNIT_AUTO},  {"value", "value", BT_UNIT_NONE},
    {"ci95.0", "from", BT_UNIT_NONE}, {"ci95.1", "to (95%)", BT_UNIT_NONE},
    {"unit", "", BT_UNIT_AUTO},
};
static const struct bt_out_column SCORES[] = {
    {"requests", "requests", BT_UNIT_AUTO}, {"metric", "", BT_UNIT_AUTO},
    {"measured", "measured", BT_UNIT_NONE}, {"unfitted", "without fit", BT_UNIT_NONE},
    {"fitted", "with fit", BT_UNIT_NONE},   {"error_fraction", "error", BT_UNIT_FRACTION},
};
static const struct bt_out_part PARTS[] = {
    {.kind = BT_OUT_ROWS, .path = "rows", .columns = PARAMETERS, .n_columns = 5},
    {.kind = BT_OUT_ROWS,
     .path = "scores",
     .title = "How it does",
     .columns = SCORES,
     .n_columns = 6},
    {.kind = BT_OUT_LINES, .path = "remarks"},
};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 3, .csv_rows = "rows"};

/* Largest relative error of the requests' means that the fit has left. */
static double worst_left(const struct fitting *f, const struct scores *after)
{
    double worst = 0;
    for (int32_t k = 0; k < FIGURES; k++) {
        int32_t part = f->n_fit < f->n ? 1 : 0;
        double measured =
            mean_of(f->measured, f->predicted, part == 0 ? 0 : f->n_fit, f->n, (enum figure)k);
        if (isfinite(measured) && isfinite(after->mean[part][k])) {
            worst = fmax(worst, fabs(after->mean[part][k] / measured - 1));
        }
    }
    return worst;
}

static json_t *remarks(const struct fitting *f, const struct scores *after,
                       const struct bt_fit_answer *a, const char *name)
{
    json_t *lines = bt_out_list();
    char line[1024];
    if (f->no_overhead || (f->overhead && a->at_bound[0] && a->value[0] <= 0)) {
        bt_out_append(lines, bt_out_text("the operations' own times explain the run: no overhead "
                                         "of a step is left to fit"));
    } else if (f->chose_efficiency) {
        bt_out_append(lines, bt_out_text("the operations' efficiency explains the fitted requests "
                                         "far better than a fixed time of every step"));
    }
    double left = worst_left(f, after);
    if (left > POOR_ERROR && !f->may_choose && !(f->overhead && f->efficiency)) {
        (void)snprintf(line, sizeof line,
                       "means are still off by up to %.0f%%: --parameters %s may explain more",
                       100 * left, f->overhead ? "efficiency" : "overhead");
        bt_out_append(lines, bt_out_text(line));
    }
    if (!f->target.per_request) {
        bt_out_append(lines,
                      bt_out_text("the benchmark gives means alone (no --save-detailed): lengths "
                                  "and arrivals are taken to be even, and there is no interval"));
    }
    (void)snprintf(line, sizeof line,
                   "holds for stack %s on %s; give it to replay, simulate or plan as --fit %s",
                   f->fit.stack, f->fit.gpu, name);
    bt_out_append(lines, bt_out_text(line));
    return lines;
}

/* --plots: each metric, the fitted requests and the rest. */
static enum bt_code draw(const struct fitting *f, const char *dir, struct bt_error *err)
{
    static const char *const metrics[FIGURES] = {"ttft", "tpot", "e2e"};
    double *columns = calloc((size_t)f->n * 2 * FIGURES, sizeof *columns);
    if (columns == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "fit: no memory for a figure of %lld requests",
                (long long)f->n);
    }
    struct bt_plot_pairs pairs[2 * FIGURES];
    for (int32_t k = 0; k < FIGURES; k++) {
        double *measured = columns + 2 * k * f->n;
        double *predicted = measured + f->n;
        for (int64_t i = 0; i < f->n; i++) {
            measured[i] = f->measured[i].of[k];
            predicted[i] = f->predicted[i].of[k];
        }
        pairs[2 * k] = (struct bt_plot_pairs){metrics[k], "fitted", measured, predicted, f->n_fit};
        pairs[2 * k + 1] = (struct bt_plot_pairs){metrics[k], "held out", measured + f->n_fit,
                                                  predicted + f->n_fit, f->n - f->n_fit};
    }
    char subject[512];
    (void)snprintf(subject, sizeof subject, "%s on %s, %s", f->model, f->fit.gpu, f->fit.stack);
    struct bt_plots p;
    struct bt_plot_opts opts = {.subject = subject};
    enum bt_code code = bt_plots_open(&p, dir, err);
    if (code == BT_OK) {
        code = bt_plot_scatter(&p, &opts, pairs, 2 * FIGURES, err);
    }
    free(columns);
    if (code == BT_OK && !f->cli->quiet) {
        bt_plots_note(&p, stderr);
        bt_cli_note(f->cli, "%d figures in %s", p.n_figures, p.dir);
    }
    return code;
}

/* Into the store under --name; a store that cannot be written costs a warning. */
static void record(const struct fitting *f, const char *path, const char *name)
{
    char source[512], hash[BT_SHA256_HEX_BYTES] = "";
    const char *slash = strrchr(path, '/');
    (void)snprintf(source, sizeof source, "berth fit: %.300s, %s", slash != NULL ? slash + 1 : path,
                   f->overhead && f->efficiency ? "overhead and efficiency"
                   : f->overhead                ? "overhead"
                                                : "efficiency");
    (void)bt_sha256_file(path, hash);
    struct bt_store_fit row = {
        .name = name,
        .stack = f->fit.stack,
        .gpu = f->fit.gpu,
        .model = f->model,
        .step_overhead_s = f->fit.step_overhead_s,
        .efficiency = f->fit.efficiency,
        .step_error = f->fit.step_error,
        .requests = f->target.per_request ? f->n_fit : f->target.bench.completed,
        .provenance = {.kind = "fitted", .source = source, .content_sha256 = hash},
    };
    struct bt_error err = {0};
    struct bt_store *store = NULL;
    struct bt_store_opts opts = {.path = f->cli->db_path, .catalog = f->world.catalog};
    enum bt_code code = bt_store_open(&opts, &store, &err);
    if (code == BT_OK) {
        code = bt_store_put_fit(store, &row, &err);
        bt_store_close(store);
    }
    if (code != BT_OK) {
        bt_cli_note(f->cli, "the fit is not stored: %s", err.msg);
    }
}

static enum bt_code write_answer(struct bt_cli *cli, struct fitting *f, const char *path,
                                 const struct bt_fit_answer *a, const struct scores *before,
                                 struct bt_error *err)
{
    struct scores after = score(f);
    f->fit.step_error = error_left(f, &after, a);
    json_t *doc = bt_out_answer("fit");
    bt_out_set(doc, "rows", parameter_rows(f, a));
    bt_out_set(doc, "scores", score_rows(f, before, &after));
    bt_out_set(doc, "simulations", bt_out_int(a->evaluations));
    char usual[2 * BT_FIT_NAME_BYTES + 2];
    (void)snprintf(usual, sizeof usual, "%s@%s", f->fit.stack, f->fit.gpu);
    bool named = bt_args_given(&cli->args, "name");
    const char *name = named ? bt_args_text(&cli->args, "name") : usual;
    record(f, path, name);
    bt_out_set(doc, "name", bt_out_text(name));
    const char *slash = strrchr(path, '/');
    json_t *fit = bt_fit_json(&f->fit, f->model, slash != NULL ? slash + 1 : path,
                              f->target.per_request ? f->n_fit : f->target.bench.completed);
    bt_out_set(doc, "fit", fit);
    if (cli->format == BT_OUT_TABLE) {
        bt_out_set(doc, "remarks", remarks(f, &after, a, name));
    }
    const char *out = bt_args_text(&cli->args, "out");
    enum bt_code code = out != NULL ? bt_fit_write(fit, out, err) : BT_OK;
    const char *plots = bt_args_text(&cli->args, "plots");
    if (code == BT_OK && plots != NULL) {
        code = draw(f, plots, err);
    }
    if (code == BT_OK) {
        code = bt_cli_write(cli, doc, &VIEW, err);
    }
    json_decref(doc);
    return code;
}

/* Log squares that the last simulation leaves on the fitted requests, whatever was fitted. */
static double misfit(const struct fitting *f)
{
    double sum = 0;
    for (int64_t i = 0; i < f->n_fit; i++) {
        for (int32_t k = f->target.per_request ? FIGURE_TPOT : FIGURE_TTFT; k < FIGURES; k++) {
            double measured = f->measured[i].of[k];
            double predicted = f->predicted[i].of[k];
            if (measured > 0 && predicted > 0) {
                sum += log(predicted / measured) * log(predicted / measured);
            }
        }
    }
    return sum;
}

/* Fits what f says, and leaves the simulation with the answer behind. */
static enum bt_code fit_once(struct fitting *f, const char *path, struct bt_fit_answer *a,
                             struct bt_error *err)
{
    f->fit.step_overhead_s = 0;
    f->fit.efficiency = 1;
    struct bt_fit_problem p = {.n = n_residuals(f), .residuals = residuals, .ctx = f};
    double start[BT_FIT_PARAMS] = {0};
    if (f->overhead) {
        p.upper[p.n_params] = OVERHEAD_MAX_S;
        p.step[p.n_params++] = OVERHEAD_STEP_S;
    }
    if (f->efficiency) {
        start[p.n_params] = 1;
        p.lower[p.n_params] = EFFICIENCY_MIN;
        p.upper[p.n_params] = EFFICIENCY_MAX;
        p.step[p.n_params++] = EFFICIENCY_STEP;
    }
    int64_t needed = f->target.per_request ? 10 : 1;
    if (p.n < needed) {
        BT_FAIL(err, BT_ERR_INPUT, p.n,
                "%s: %lld measured times between tokens; a fit needs at least %lld", path,
                (long long)p.n, (long long)needed);
    }
    if (p.n <= p.n_params) {
        BT_FAIL(err, BT_ERR_INPUT, p.n,
                "%s: %lld figures do not tell %d parameters; --parameters efficiency, or a "
                "benchmark with --save-detailed",
                path, (long long)p.n, p.n_params);
    }
    BT_TRY(bt_fit_solve(&p, start, a, err));
    f->fit = candidate(f, a->value);
    return simulate(f, &f->fit, err);
}

/* Where no overhead is left, or the efficiency leaves less than half as much, the efficiency. */
static enum bt_code choose(struct fitting *f, const char *path, struct bt_fit_answer *a,
                           struct bt_error *err)
{
    struct fitting of_overhead = *f;
    struct bt_fit_answer overhead = *a;
    double left = misfit(f);
    f->overhead = false;
    f->efficiency = true;
    BT_TRY(fit_once(f, path, a, err));
    int32_t evaluations = a->evaluations + overhead.evaluations;
    f->no_overhead = overhead.value[0] <= 0;
    f->chose_efficiency = f->no_overhead || misfit(f) < EXPLAINS_MORE * left;
    if (!f->chose_efficiency) {
        f->overhead = true;
        f->efficiency = false;
        f->fit = of_overhead.fit;
        *a = overhead;
        BT_TRY(simulate(f, &f->fit, err));
    }
    a->evaluations = evaluations;
    return BT_OK;
}

static enum bt_code solve(struct bt_cli *cli, struct fitting *f, const char *path,
                          struct bt_error *err)
{
    BT_TRY(take_measured(f, err));
    if (f->may_choose && !f->target.per_request) { /* means alone do not tell an overhead */
        f->may_choose = f->overhead = false;
        f->efficiency = true;
    }
    f->fit.efficiency = 1;
    BT_TRY(simulate(f, NULL, err)); /* names the stack and the card */
    struct scores before = score(f);
    struct bt_fit_answer a;
    BT_TRY(fit_once(f, path, &a, err));
    if (f->may_choose) {
        BT_TRY(choose(f, path, &a, err));
    }
    return write_answer(cli, f, path, &a, &before, err);
}

/* Options of runs that mean nothing here. */
static enum bt_code refuse(const struct bt_args *args, struct bt_error *err)
{
    static const char *const names[] = {"fit",         "slo",        "warmup",
                                        "per-request", "timeseries", "executor"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (bt_args_given(args, names[i])) {
            BT_FAIL(err, BT_ERR_ARG, 0, "--%s: means nothing to a fit; give it to replay",
                    names[i]);
        }
    }
    return BT_OK;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    BT_TRY(refuse(&cli->args, err));
    struct fitting f = {.cli = cli};
    const char *what = bt_args_text(&cli->args, "parameters");
    f.may_choose = strcmp(what, "one") == 0;
    f.overhead = strcmp(what, "efficiency") != 0;
    f.efficiency = strcmp(what, "efficiency") == 0 || strcmp(what, "both") == 0;
    bt_config_init(&f.config);
    BT_TRY(bt_config_apply(&cli->args, &f.config, err));
    BT_TRY(bt_run_opts_read(&cli->args, &f.run, err));
    BT_TRY(bt_run_opts_only_sim(&f.run, err));
    BT_TRY(bt_config_check(&f.config, err));
    BT_TRY(bt_world_open(cli, &f.world, err));
    const char *path = cli->args.positional[0];
    enum bt_code code = bt_fit_target_open(&f.target, cli, path, &f.world, err);
    if (code == BT_OK) {
        code = solve(cli, &f, path, err);
    }
    free(f.measured);
    free(f.predicted);
    bt_fit_target_fini(&f.target);
    bt_world_close(&f.world);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "parameters",
     .kind = BT_OPT_ENUM,
     .value = "WHAT",
     .default_text = "one",
     .allowed = "one|overhead|efficiency|both",
     .help = "what is fitted: a fixed time of every step, the share of their measured speed that "
             "operations reach, both, or one: the overhead, unless none is left or the efficiency "
             "explains the fitted requests far better"},
    {.name = "fit-first",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "<all>",
     .min = 1,
     .max = 1e15,
     .unit = "requests",
     .help = "fit to the first so many, and score the rest"},
    {.name = "out",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "write the fit to a file too, for --fit FILE"},
    {.name = "name",
     .kind = BT_OPT_TEXT,
     .value = "NAME",
     .default_text = "<STACK@GPU>",
     .help = "of the fit in the store, for --fit NAME; one of that name is replaced"},
    {.name = "plots", .kind = BT_OPT_TEXT, .value = "DIR", .help = "draw the figures there"},
};

static const struct bt_example EXAMPLES[] = {
    {"fit requests.jsonl --model llama-3.1-8b --gpu rtxpro6000 --stack vllm-0.19 --columns "
     "timestamp=queued_ts:s,prompt=input_toks,output=output_toks,first_token=first_token_ts,"
     "last_token=last_token_ts --fit-first 100 --out vllm.fit",
     "a server's own log: fitted to 100 requests, scored on the others"},
    {"fit bench.json --model llama-3.1-8b --gpu h200 --stack vllm-0.19 --parameters both",
     "the JSON of vllm bench serve --save-result --save-detailed"},
};

const struct bt_command bt_cmd_fit = {
    .name = "fit",
    .arguments = "FILE --model M --gpu G --stack S",
    .summary = "fit a stack's step overhead and efficiency to a benchmark of your own",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_config = true,
    .takes_trace = true,
    .takes_run = true,
    .min_positional = 1,
    .max_positional = 1,
    .notes = "Give the configuration that was benchmarked (--tp, --max-seqs, ...). A fit to a\n"
             "stack's own run ranks below somebody's measurement of each operation and above\n"
             "what another GPU says.\n",
    .run = run,
};
