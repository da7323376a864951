/* berth bench: the engine's speed, and with --sim the simulator's own. */
#include "cli/bench_engine.h"
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/simulate.h"
#include "engine/core/order.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { REPEATS_MAX = 25 };

struct timing {
    double median_s, spread_s;
};

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Serves the workload `repeats` times from its source on, as replay does without files and store.
 */
static enum bt_code measure(const struct bt_world *w, const struct bt_deploy *d, int32_t replicas,
                            int32_t repeats, struct bt_sim_result *result, struct timing *timing,
                            struct bt_error *err)
{
    double seconds[REPEATS_MAX];
    uint64_t hash = 0;
    for (int32_t i = 0; i < repeats; i++) {
        double start_s = now_s();
        struct bt_source *source = NULL;
        BT_TRY(w->env.make_source(w->env.ctx, 1, &source, err));
        struct bt_sim_opts opts = {
            .deploy = d, .replicas = replicas, .source = source, .seed = 1, .step_scale = 1};
        enum bt_code code = bt_sim_run(&opts, result, err);
        bt_source_destroy(source);
        if (code != BT_OK) {
            return code;
        }
        seconds[i] = now_s() - start_s;
        if (i > 0 && hash != result->plan_hash) {
            BT_FAIL(err, BT_ERR_INTERNAL, 0, "bench: two runs of one workload differ");
        }
        hash = result->plan_hash;
    }
    qsort(seconds, (size_t)repeats, sizeof *seconds, bt_compare_doubles);
    *timing = (struct timing){seconds[repeats / 2], seconds[repeats - 1] - seconds[0]};
    return BT_OK;
}

static json_t *row_of(const char *name, const struct bt_sim_result *r, const struct timing *t)
{
    const struct bt_summary *s = &r->summary;
    int64_t served = s->arrived - s->running - s->waiting;
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    json_t *row = bt_out_object();
    bt_out_set(row, "case", bt_out_text(name));
    bt_out_set(row, "requests", bt_out_int(served));
    bt_out_set(row, "wall_s", bt_out_real(t->median_s));
    bt_out_set(row, "spread_s", bt_out_real(t->spread_s));
    bt_out_set(row, "requests_per_s", bt_out_real((double)served / t->median_s));
    bt_out_set(row, "steps", bt_out_int(r->steps));
    bt_out_set(row, "ns_per_step", bt_out_real(t->median_s * 1e9 / (double)r->steps));
    bt_out_set(row, "peak_memory_bytes", bt_out_int((int64_t)usage.ru_maxrss * 1024));
    return row;
}

static const struct bt_out_column COLUMNS[] = {
    {"case", "", BT_UNIT_AUTO},
    {"requests", "requests", BT_UNIT_NONE},
    {"wall_s", "wall time", BT_UNIT_SECONDS},
    {"spread_s", "spread", BT_UNIT_SECONDS},
    {"requests_per_s", "requests/s", BT_UNIT_NONE},
    {"steps", "steps", BT_UNIT_NONE},
    {"ns_per_step", "ns a step", BT_UNIT_NONE},
    {"peak_memory_bytes", "peak memory", BT_UNIT_BYTES},
};
static const struct bt_out_part PARTS[] = {
    BT_OUT_ROWS_PART("rows", NULL, COLUMNS),
};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 1, .csv_rows = "rows"};

/* The workload: a trace when one is given, else an hour of Poisson traffic like a production one.
 */
static enum bt_code open_workload(const struct bt_cli *cli, struct bt_world *w,
                                  struct bt_error *err)
{
    if (cli->args.n_positional > 0) {
        struct bt_trace_opts opts;
        BT_TRY(bt_trace_opts_read(&cli->args, &opts, err));
        return bt_world_use_trace(w, cli->args.positional[0], &opts, err);
    }
    w->workload = (struct bt_workload_spec){
        .kind = BT_WORKLOAD_GENERATED,
        .arrival = BT_ARRIVAL_POISSON,
        .rate_per_s = 5.5,
        .duration_s = 3600,
        .prompt = {.kind = BT_DIST_LOGNORMAL, .mean = 1150, .p95 = 3500, .clamp_max = 7000},
        .output = {.kind = BT_DIST_LOGNORMAL, .mean = 210, .p95 = 450, .clamp_max = 1000},
    };
    return BT_OK;
}

static enum bt_code bench(struct bt_cli *cli, struct bt_world *w, const struct bt_config *config,
                          struct bt_error *err)
{
    BT_TRY(open_workload(cli, w, err));
    struct bt_deploy d, degrade;
    BT_TRY(bt_plan_deploy(&w->env, config, &d, &degrade, err));
    struct bt_sim_result *result = calloc(1, sizeof *result);
    BT_ASSERT(result != NULL);
    struct timing timing;
    int32_t repeats = (int32_t)bt_args_int(&cli->args, "repeats", 5);
    enum bt_code code = measure(w, &d, config->replicas, repeats, result, &timing, err);
    if (code == BT_OK) {
        json_t *doc = bt_out_object();
        json_t *rows = bt_out_list();
        bt_out_append(rows,
                      row_of(cli->args.n_positional > 0 ? "trace" : "generated", result, &timing));
        bt_out_set(doc, "rows", rows);
        code = bt_cli_write(cli, doc, &VIEW, err);
        json_decref(doc);
    }
    free(result);
    bt_deploy_fini(&d);
    bt_deploy_fini(&degrade);
    return code;
}

/* What the documented measurement runs on, unless options say otherwise. */
static void default_config(struct bt_config *c)
{
    bt_config_init(c);
    (void)snprintf(c->model, sizeof c->model, "llama-2-7b");
    (void)snprintf(c->gpu, sizeof c->gpu, "a100-80-sxm");
    c->replicas = 4;
    c->max_seqs = 128;
    c->max_batched_tokens = 512;
    c->over_length = BT_OVER_ALLOW;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    if (!bt_args_given(&cli->args, "sim")) {
        return bt_bench_engine(cli, err);
    }
    struct bt_config config;
    default_config(&config);
    BT_TRY(bt_config_apply(&cli->args, &config, err));
    if (config.replicas == BT_AUTO) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--replicas: expected a number, got auto");
    }
    struct bt_world w;
    BT_TRY(bt_world_open(cli, &w, err));
    enum bt_code code = bench(cli, &w, &config, err);
    bt_world_close(&w);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "batches",
     .kind = BT_OPT_TEXT,
     .value = "LIST",
     .default_text = "1,8,32,128",
     .help = "sequences that decode together"},
    {.name = "context",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "1024",
     .min = 1,
     .max = 1 << 24,
     .unit = "tokens",
     .help = "of each, the new one included"},
    {.name = "prefill",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "2048",
     .min = 2,
     .max = 1 << 24,
     .unit = "tokens",
     .help = "length of the prompt"},
    {.name = "quantise-lm-head",
     .kind = BT_OPT_FLAG,
     .help = "an integer --weights is lm_head's too"},
    {.name = "explain", .kind = BT_OPT_FLAG, .help = "tell the kernel that runs each product"},
    {.name = "sim", .kind = BT_OPT_FLAG, .help = "measure the simulator's own speed"},
    {.name = "repeats",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "5",
     .min = 1,
     .max = REPEATS_MAX,
     .help = "runs, whose median is reported"},
};

static const struct bt_example EXAMPLES[] = {
    {"bench --model llama-2-13b --weights int4-g128 --kv int8",
     "prefill and decode over batch sizes on the GPU (or the CPU where there is none)"},
    {"bench --model llama-2-13b --spec draft=tinyllama-1.1b,k=4,acceptance=0.72 --batches 1,4,16",
     "whole answers too, with draft tokens accepted at that rate"},
    {"bench --sim scenarios/traces/AzureLLMInferenceTrace_conv.csv",
     "requests a second of wall time on one core, and peak memory"},
    {"bench --sim --model llama-3.1-70b --gpu h200 --tp 4 --json",
     "another deployment under generated traffic"},
};

const struct bt_command bt_cmd_bench = {
    .name = "bench",
    .arguments = "--model DIR|NAME, or --sim [TRACE]",
    .summary = "how fast the engine, or the simulator, runs on this machine",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_config = true,
    .takes_trace = true,
    .takes_run = true,
    .min_positional = 0,
    .max_positional = 1,
    .notes = "Without --executor the engine runs on the GPU where there is one and a program with\n"
             "its engine, else on the CPU.\n",
    .run = run,
};
