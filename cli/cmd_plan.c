/* berth plan: the cheapest deployment that meets the SLOs. */
#include "cli/cmd.h"
#include "cli/figures.h"
#include "cli/plan_json.h"
#include "cli/plan_question.h"
#include "cli/progress.h"
#include "cli/record.h"
#include "cli/scenario_opts.h"
#include "cli/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct planning {
    struct bt_world world;
    struct bt_scenario scenario;
    struct bt_run_opts run;
    double warmup;
    struct bt_progress progress;
};

static void candidate_config(void *ctx, int64_t i, struct bt_config *out)
{
    const struct bt_world *w = ctx;
    char label[256];
    bt_scenario_config(w->scenario, i, out, label, sizeof label);
}

static void on_progress(void *ctx, double done, int32_t n_done, int32_t n_candidates)
{
    (void)done;
    struct planning *p = ctx;
    bt_progress_update(&p->progress, n_done, n_candidates);
}

/* The scenario: a file, or one made from the options around a trace. */
static enum bt_code open_scenario(struct bt_cli *cli, struct planning *p, struct bt_error *err)
{
    const char *path = cli->args.positional[0];
    if (bt_scenario_path(path)) {
        return bt_scenario_open(cli, path, &p->scenario, err);
    }
    char *text = NULL;
    BT_TRY(bt_plan_question(cli, p->world.catalog, &p->run, &text, err));
    enum bt_code code = bt_scenario_parse(text, strlen(text), "plan.lua", &p->scenario, err);
    free(text);
    return code;
}

/* Writes the plan as a scenario of its own: the same workload and limits, one configuration. */
static enum bt_code write_scenario(const struct planning *p, const struct bt_plan_candidate *best,
                                   const char *path, struct bt_error *err)
{
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    struct bt_config c = best->config;
    c.replicas = best->replicas;
    fprintf(f, "-- The plan found for \"%s\": %s.\n", p->scenario.name, best->reason);
    fprintf(f, "local w, slo = require \"berth.workload\", require \"berth.slo\"\nreturn {\n");
    fprintf(f, "  name = \"planned\", seed = %llu, warmup = %.15g,\n",
            (unsigned long long)p->scenario.seed, p->warmup);
    bt_config_print_lua(f, &c);
    bt_scenario_print_workload(f, &p->scenario);
    fprintf(f, "}\n");
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    return BT_OK;
}

static enum bt_code answer(struct bt_cli *cli, struct planning *p, const struct bt_plan_spec *spec,
                           const struct bt_plan_answer *a, struct bt_error *err)
{
    const char *scenario = bt_args_text(&cli->args, "write-scenario");
    if (scenario != NULL && a->best >= 0) {
        BT_TRY(write_scenario(p, &a->candidates[a->best], scenario, err));
    }
    int32_t rows = (int32_t)bt_args_int(&cli->args, "rows", 12);
    json_t *doc = cli->format == BT_OUT_TABLE ? bt_plan_table(&p->scenario, spec, a, rows)
                                              : bt_plan_json(&p->scenario, spec, a);
    cli->answer_is_no = a->best < 0;
    enum bt_code code = bt_cli_write(cli, doc, &bt_plan_view, err);
    json_decref(doc);
    return code;
}

static enum bt_code search(struct bt_cli *cli, struct planning *p, struct bt_error *err)
{
    bt_scenario_run_opts(cli, &p->scenario, &p->run, &p->warmup);
    if (p->run.n_slos == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: slo: a plan needs at least one limit on latency, such as slo { e2e_s = { p95 "
                "= 1.5 } } or --slo e2e.p95=1.5",
                p->scenario.path);
    }
    int64_t n_candidates = bt_scenario_n_configs(&p->scenario);
    if (n_candidates > BT_PLAN_MAX_CANDIDATES) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: spans %lld configurations, at most %d are searched: shorten its lists",
                p->scenario.path, (long long)n_candidates, BT_PLAN_MAX_CANDIDATES);
    }
    struct bt_plan_spec spec = {
        .n_candidates = n_candidates,
        .seed = p->run.seed,
        .warmup_fraction = p->warmup,
        .slos = p->run.slos,
        .n_slos = p->run.n_slos,
        .memory_headroom = p->scenario.memory_headroom,
        .accuracy_drop_points = p->scenario.accuracy_drop_points,
        .budget_usd_per_h = bt_args_real(&cli->args, "budget", p->scenario.budget_usd_per_h),
        .budget_cards = (int32_t)bt_args_int(&cli->args, "budget-cards", p->scenario.budget_cards),
        .jobs = p->run.jobs,
        .seeds_max = (int32_t)bt_args_int(&cli->args, "seeds", 0),
        .finalists_max = (int32_t)bt_args_int(&cli->args, "finalists", 0),
        .seeds_vary = p->world.workload.kind != BT_WORKLOAD_TRACE,
        .exhaustive = bt_args_given(&cli->args, "exhaustive"),
        .on_progress = on_progress,
        .progress_ctx = p,
    };
    p->world.env.config = candidate_config;
    bt_progress_start(&p->progress, "plan", "candidates", cli->quiet);
    struct bt_plan_answer a;
    enum bt_code code = bt_plan_search(&spec, &p->world.env, &a, err);
    bt_progress_finish(&p->progress);
    if (code == BT_OK) {
        code = answer(cli, p, &spec, &a, err);
        const char *plots = bt_args_text(&cli->args, "plots");
        if (code == BT_OK && plots != NULL) {
            code = bt_figures_plan(cli, plots, &p->world, &spec, &p->run, &a, err);
        }
        struct bt_record record;
        bt_record_begin(&record, cli, &p->world, &p->run, p->scenario.name,
                        p->scenario.workload.file, p->scenario.base.stack);
        bt_record_plan(&record, &spec, &a);
        bt_record_end(&record, true);
        bt_plan_answer_fini(&a);
    }
    return code;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct planning p = {0};
    BT_TRY(bt_run_opts_read(&cli->args, &p.run, err));
    BT_TRY(bt_run_opts_only_sim(&p.run, err));
    BT_TRY(bt_world_open(cli, &p.world, err));
    enum bt_code code = open_scenario(cli, &p, err);
    if (code == BT_OK) {
        code = bt_world_use_scenario(&p.world, cli, &p.scenario, err);
        if (code == BT_OK) {
            code = search(cli, &p, err);
        }
        bt_scenario_fini(&p.scenario);
        code = bt_scenario_error(code, err);
    }
    bt_world_close(&p.world);
    return code;
}

static const struct bt_opt OPTS[] = {
    BT_SCENARIO_OPT_SET,
    {.name = "plots", .kind = BT_OPT_TEXT, .value = "DIR", .help = "draw the figures there"},
    {.name = "write-scenario",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "write the best plan as a scenario of its own"},
    {.name = "budget",
     .kind = BT_OPT_REAL,
     .value = "USD",
     .min = 1e-6,
     .max = 1e9,
     .unit = "USD/h",
     .help = "never above this cost"},
    {.name = "budget-cards",
     .kind = BT_OPT_INT,
     .value = "N",
     .min = 1,
     .max = 65536,
     .unit = "GPUs",
     .help = "never more GPUs than this"},
    {.name = "finalists",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "12",
     .min = 1,
     .max = 1000,
     .help = "candidates that are confirmed with all replicas"},
    {.name = "seeds",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "8",
     .min = 1,
     .max = 64,
     .help = "most repetitions of a finalist"},
    {.name = "rows",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "12",
     .min = 1,
     .max = 1000,
     .help = "rows of the ranking in the table"},
    {.name = "exhaustive",
     .kind = BT_OPT_FLAG,
     .help = "find the least replicas of every candidate, not only of each group's best"},
};

static const struct bt_example EXAMPLES[] = {
    {"plan scenarios/support_13b.lua --plots plots",
     "the cheapest way to serve customer support on a 13B model, with figures"},
    {"plan trace.csv --model llama-3.1-8b --slo ttft.p95=1,tpot.p95=0.05 --budget 20",
     "GPUs and formats for last week's traffic within $20 an hour"},
    {"plan scenarios/support_13b.lua --set gpu=h200 --write-scenario best.lua",
     "with one GPU given; keep the plan as a scenario"},
};

const struct bt_command bt_cmd_plan = {
    .name = "plan",
    .arguments = "SCENARIO.lua | TRACE --model M --slo S",
    .summary = "find the cheapest deployment that meets the SLOs, and say why the others lose",
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
