#include "cli/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BARS = 10, SUBJECT_BYTES = 256, N_BLOCKS = 4, N_PREEMPTS = 3 };

static const double RATE_WIDTH = 0.05;

static void close_folder(const struct bt_cli *cli, const struct bt_plots *p)
{
    if (!cli->quiet) {
        bt_plots_note(p, stderr);
        bt_cli_note(cli, "%d figures in %s", p->n_figures, p->dir);
    }
}

static void subject_of(char out[SUBJECT_BYTES], const struct bt_simulation *s)
{
    const struct bt_config *c = &s->deploy.config;
    (void)snprintf(out, SUBJECT_BYTES, "%s on %d x %s, weights %s, KV %s", s->deploy.arch.name,
                   (c->replicas == BT_AUTO ? 1 : c->replicas) * c->tp, s->deploy.gpu.name,
                   bt_weight_format_name(s->deploy.weights), bt_kv_format_name(s->deploy.kv));
}

static enum bt_code draw_cdf(struct bt_plots *p, const char *subject,
                             const struct bt_simulation *const *sims, const char *const *labels,
                             int32_t n, const struct bt_run_opts *run, struct bt_error *err)
{
    struct bt_plot_run *runs = calloc((size_t)n + 1, sizeof *runs);
    if (runs == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plots: no memory for %d runs", n);
    }
    enum bt_code code = BT_OK;
    int32_t n_runs = 0;
    for (int32_t i = 0; i < n && code == BT_OK; i++) {
        if (sims[i]->fits) {
            code = bt_plot_run_init(&runs[n_runs], labels[i], sims[i]->kept.records,
                                    sims[i]->kept.n_records,
                                    sims[i]->result->summary.warmup_requests, err);
            n_runs += code == BT_OK;
        }
    }
    struct bt_plot_opts opts = {.subject = subject};
    if (code == BT_OK) {
        code = bt_plot_cdf(p, &opts, runs, n_runs, run->slos, run->n_slos, err);
    }
    for (int32_t i = 0; i < n_runs; i++) {
        bt_plot_run_fini(&runs[i]);
    }
    free(runs);
    return code;
}

static enum bt_code draw_time(struct bt_plots *p, const char *name, const char *subject,
                              const struct bt_simulation *s, struct bt_error *err)
{
    struct bt_plot_opts opts = {.name = name, .subject = subject};
    return bt_plot_timeseries(p, &opts, s->kept.samples, s->kept.n_samples,
                              s->result->summary.windows, s->result->summary.n_windows, err);
}

enum bt_code bt_figures_run(const struct bt_cli *cli, const char *dir,
                            const struct bt_simulation *s, const struct bt_run_opts *run,
                            struct bt_error *err)
{
    struct bt_plots p;
    BT_TRY(bt_plots_open(&p, dir, err));
    char subject[SUBJECT_BYTES];
    subject_of(subject, s);
    const char *label = s->deploy.gpu.name;
    BT_TRY(draw_cdf(&p, subject, &s, &label, 1, run, err));
    BT_TRY(draw_time(&p, NULL, subject, s, err));
    struct bt_plot_bar bar = {.label = label, .plan = &s->deploy.memory};
    struct bt_plot_opts opts = {.subject = subject};
    BT_TRY(bt_plot_memory(&p, &opts, &bar, 1, err));
    close_folder(cli, &p);
    return BT_OK;
}

enum bt_code bt_figures_rate(const struct bt_cli *cli, const char *dir, const char *subject,
                             const struct bt_max_rate *rate, const struct bt_run_opts *run,
                             struct bt_error *err)
{
    struct bt_plots p;
    BT_TRY(bt_plots_open(&p, dir, err));
    struct bt_plot_opts opts = {.subject = subject};
    BT_TRY(bt_plot_rate(&p, &opts, rate, run->slos, run->n_slos, err));
    close_folder(cli, &p);
    return BT_OK;
}

enum bt_code bt_figures_runs(const struct bt_cli *cli, const char *dir,
                             const struct bt_simulation *const *sims, const char *const *labels,
                             int32_t n, const struct bt_run_opts *run, struct bt_error *err)
{
    struct bt_plots p;
    BT_TRY(bt_plots_open(&p, dir, err));
    BT_TRY(draw_cdf(&p, NULL, sims, labels, n, run, err));
    struct bt_plot_bar bars[MAX_BARS];
    int32_t n_bars = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!sims[i]->fits) {
            continue;
        }
        char name[32];
        (void)snprintf(name, sizeof name, n > 1 ? "timeseries-%d" : "timeseries", i + 1);
        BT_TRY(draw_time(&p, name, labels[i], sims[i], err));
        if (n_bars < MAX_BARS) {
            bars[n_bars++] =
                (struct bt_plot_bar){.label = labels[i], .plan = &sims[i]->deploy.memory};
        }
    }
    struct bt_plot_opts opts = {0};
    BT_TRY(bt_plot_memory(&p, &opts, bars, n_bars, err));
    close_folder(cli, &p);
    return BT_OK;
}

/* ---- plan ---- */

/* Memory of the confirmed candidates, each GPU and weight format once. */
static enum bt_code draw_plan_memory(struct bt_plots *p, const struct bt_plan_answer *a,
                                     struct bt_error *err)
{
    struct bt_plot_bar bars[MAX_BARS];
    char labels[MAX_BARS][BT_NAME_BYTES + 32];
    int32_t n = 0;
    for (int32_t i = 0; i < a->n_candidates && n < MAX_BARS; i++) {
        const struct bt_plan_candidate *c = &a->candidates[i];
        if (!c->simulated) {
            continue;
        }
        (void)snprintf(labels[n], sizeof labels[n], "%s%s %s", c->config.gpu,
                       c->config.tp > 1 ? " tp" : "", bt_weight_format_name(c->memory.weights));
        bool seen = false;
        for (int32_t k = 0; k < n; k++) {
            seen = seen || strcmp(labels[k], labels[n]) == 0;
        }
        if (!seen) {
            bars[n] = (struct bt_plot_bar){.label = labels[n], .plan = &c->memory};
            n++;
        }
    }
    struct bt_plot_opts opts = {0};
    return n == 0 ? BT_OK : bt_plot_memory(p, &opts, bars, n, err);
}

struct map_cells {
    char blocks[N_BLOCKS][16];
    double values[N_PREEMPTS * N_BLOCKS];
};

/* P99 of E2E of the plan with other block sizes and preemption policies. */
static enum bt_code fill_map(const struct bt_cli *cli, const struct bt_world *w,
                             const struct bt_config *base, const struct bt_run_opts *run,
                             double warmup, struct map_cells *m, struct bt_error *err)
{
    static const int32_t blocks[N_BLOCKS] = {8, 16, 32, 128};
    for (int32_t k = 0; k < N_PREEMPTS * N_BLOCKS; k++) {
        struct bt_config c = *base;
        c.kv_block_tokens = blocks[k % N_BLOCKS];
        c.preempt = k / N_BLOCKS;
        (void)snprintf(m->blocks[k % N_BLOCKS], sizeof m->blocks[0], "%d", c.kv_block_tokens);
        struct bt_simulation_opts opts = {
            .config = &c, .run = run, .warmup = warmup, .label = "map"};
        struct bt_simulation s;
        BT_TRY(bt_simulation_run(cli, w, &opts, &s, err));
        m->values[k] = s.fits ? s.result->summary.e2e.p99_s : NAN;
        bt_simulation_fini(&s);
    }
    return BT_OK;
}

static enum bt_code draw_map(struct bt_plots *p, const struct bt_cli *cli, const struct bt_world *w,
                             const struct bt_config *base, const struct bt_run_opts *run,
                             double warmup, const char *subject, struct bt_error *err)
{
    static const char *const preempts[N_PREEMPTS] = {"recompute", "swap", "auto"};
    struct map_cells m;
    BT_TRY(fill_map(cli, w, base, run, warmup, &m, err));
    const char *blocks[N_BLOCKS];
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        blocks[i] = m.blocks[i];
    }
    struct bt_plot_map map = {.column_name = "KV block (tokens)",
                              .row_name = "preemption by",
                              .value_name = "P99 of E2E (s)",
                              .n_columns = N_BLOCKS,
                              .n_rows = N_PREEMPTS,
                              .columns = blocks,
                              .rows = preempts,
                              .values = m.values};
    struct bt_plot_opts opts = {.subject = subject};
    return bt_plot_map(p, &opts, &map, err);
}

/* Figures of one plan: a run of it with everything kept, and its highest rate. */
static enum bt_code draw_best(struct bt_plots *p, const struct bt_cli *cli,
                              const struct bt_world *w, const struct bt_plan_spec *spec,
                              const struct bt_run_opts *run, const struct bt_plan_candidate *best,
                              struct bt_error *err)
{
    struct bt_config c = best->config;
    c.replicas = best->replicas;
    struct bt_simulation_opts opts = {.config = &c,
                                      .run = run,
                                      .warmup = spec->warmup_fraction,
                                      .records_max = INT64_MAX,
                                      .keep_samples = true,
                                      .label = "figures"};
    struct bt_simulation s;
    BT_TRY(bt_simulation_run(cli, w, &opts, &s, err));
    char subject[SUBJECT_BYTES];
    subject_of(subject, &s);
    const struct bt_simulation *sims = &s;
    const char *label = "first plan";
    enum bt_code code = draw_cdf(p, subject, &sims, &label, 1, run, err);
    if (code == BT_OK) {
        code = draw_time(p, NULL, subject, &s, err);
    }
    struct bt_max_rate rate = {0};
    if (code == BT_OK && best->capacity_req_per_s > 0) {
        code = bt_plan_max_rate(spec, &w->env, &s.deploy,
                                c.degrade_model[0] != '\0' ? &s.degrade : NULL, c.replicas,
                                RATE_WIDTH, &rate, err);
    }
    if (code == BT_OK) {
        struct bt_plot_opts o = {.subject = subject};
        code = bt_plot_rate(p, &o, &rate, spec->slos, spec->n_slos, err);
    }
    if (code == BT_OK) {
        code = draw_map(p, cli, w, &c, run, spec->warmup_fraction, subject, err);
    }
    bt_simulation_fini(&s);
    return code;
}

enum bt_code bt_figures_plan(const struct bt_cli *cli, const char *dir, const struct bt_world *w,
                             const struct bt_plan_spec *spec, const struct bt_run_opts *run,
                             const struct bt_plan_answer *a, struct bt_error *err)
{
    struct bt_plots p;
    BT_TRY(bt_plots_open(&p, dir, err));
    struct bt_plot_opts opts = {0};
    BT_TRY(bt_plot_pareto(&p, &opts, a, spec->slos, spec->n_slos, err));
    BT_TRY(draw_plan_memory(&p, a, err));
    if (a->best >= 0) {
        BT_TRY(draw_best(&p, cli, w, spec, run, &a->candidates[a->best], err));
    }
    close_folder(cli, &p);
    return BT_OK;
}
