#include "cli/run_opts.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static const struct bt_opt trace_opts[] = {
    {.name = "format",
     .kind = BT_OPT_ENUM,
     .value = "WORD",
     .default_text = "auto",
     .allowed = "auto|azure|burstgpt|mooncake|qwen|csv|jsonl",
     .help = "format of the trace"},
    {.name = "columns",
     .kind = BT_OPT_TEXT,
     .value = "MAP",
     .help = "columns of a csv or jsonl trace: timestamp=COL[:UNIT],prompt=COL,output=COL,..."},
    {.name = "rate-scale",
     .kind = BT_OPT_REAL,
     .value = "F",
     .default_text = "1",
     .min = 1e-6,
     .max = 1e6,
     .help = "time compression: arrival times are divided by it"},
    {.name = "from",
     .kind = BT_OPT_REAL,
     .value = "T",
     .default_text = "0",
     .min = 0,
     .max = INFINITY,
     .unit = "s",
     .help = "leave out what arrives before this second of the trace"},
    {.name = "to",
     .kind = BT_OPT_REAL,
     .value = "T",
     .min = 0,
     .max = INFINITY,
     .unit = "s",
     .help = "leave out what arrives from this second on"},
    {.name = "limit",
     .kind = BT_OPT_INT,
     .value = "N",
     .min = 1,
     .max = INFINITY,
     .help = "at most so many requests"},
    {.name = "spread-ticks",
     .kind = BT_OPT_ENUM,
     .value = "HOW",
     .default_text = "uniform",
     .allowed = "uniform|off",
     .help = "spread requests that a coarse clock logged at one time over its tick"},
};

static const struct bt_opt run_opts[] = {
    {.name = "slo",
     .kind = BT_OPT_TEXT,
     .value = "LIMITS",
     .help = "latency limits in seconds, as e2e.p95=1.5,ttft.p99=0.5"},
    {.name = "warmup",
     .kind = BT_OPT_REAL,
     .value = "F",
     .default_text = "<0 for traces, 0.1 for generated load>",
     .min = 0,
     .max = 0.9,
     .help = "share of the time span whose requests are left out of the metrics"},
    {.name = "seed",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "1",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "seed of all random streams"},
    {.name = "jobs",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "<cores>",
     .min = 1,
     .max = 1024,
     .help = "threads; the answer does not depend on it"},
    {.name = "price",
     .kind = BT_OPT_TEXT,
     .value = "GPU=USD",
     .help = "price of a GPU in USD an hour, instead of the catalog's",
     .repeats = true},
    {.name = "per-request",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "write one CSV row a request"},
    {.name = "timeseries",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "write the state over time as CSV"},
    {.name = "fit",
     .kind = BT_OPT_TEXT,
     .value = "NAME|FILE",
     .help =
         "a fit of berth fit by its name in the store, or its file: step overhead and efficiency "
         "of a stack on a GPU"},
    {.name = "executor",
     .kind = BT_OPT_ENUM,
     .value = "WHAT",
     .default_text = "sim",
     .allowed = "sim|cpu|cuda",
     .help = "what runs the steps"},
    {.name = "clock",
     .kind = BT_OPT_ENUM,
     .value = "WHICH",
     .default_text = "wall",
     .allowed = "wall|work",
     .help = "real engine: work counts what its one thread gets done and skips waits, so that a "
             "machine that others keep busy measures as an idle one (--jobs 1)"},
};

struct bt_opt_table bt_trace_opt_table(void)
{
    return (struct bt_opt_table){
        .title = "Trace", .opts = trace_opts, .n_opts = sizeof trace_opts / sizeof trace_opts[0]};
}

struct bt_opt_table bt_run_opt_table(void)
{
    return (struct bt_opt_table){
        .title = "Run", .opts = run_opts, .n_opts = sizeof run_opts / sizeof run_opts[0]};
}

enum bt_code bt_trace_opts_read(const struct bt_args *args, struct bt_trace_opts *out,
                                struct bt_error *err)
{
    *out = (struct bt_trace_opts){0};
    BT_TRY(bt_trace_format_parse(bt_args_text(args, "format"), &out->format, err));
    out->columns = bt_args_text(args, "columns");
    out->rate_scale = bt_args_real(args, "rate-scale", 1);
    out->from_s = bt_args_real(args, "from", 0);
    out->to_s = bt_args_real(args, "to", 0);
    out->limit = bt_args_int(args, "limit", 0);
    out->keep_ticks = strcmp(bt_args_text(args, "spread-ticks"), "off") == 0;
    if (bt_args_given(args, "to") && !(out->to_s > out->from_s)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--to: '%s' is not after --from %.15g",
                bt_args_text(args, "to"), out->from_s);
    }
    return BT_OK;
}

static int32_t core_count(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 1024 ? 1024 : (int32_t)n;
}

enum bt_code bt_run_opts_read(const struct bt_args *args, struct bt_run_opts *out,
                              struct bt_error *err)
{
    *out = (struct bt_run_opts){0};
    const char *slo = bt_args_text(args, "slo");
    if (slo != NULL) {
        struct bt_error why = {0};
        enum bt_code code = bt_slo_parse(slo, out->slos, BT_MAX_SLOS, &out->n_slos, &why);
        if (code != BT_OK) {
            BT_FAIL(err, code, 0, "--slo: %s", why.msg);
        }
    }
    out->warmup = bt_args_real(args, "warmup", NAN);
    out->seed = (uint64_t)bt_args_int(args, "seed", 1);
    out->jobs = (int32_t)bt_args_int(args, "jobs", core_count());
    out->per_request = bt_args_text(args, "per-request");
    out->timeseries = bt_args_text(args, "timeseries");
    out->clock = strcmp(bt_args_text(args, "clock"), "work") == 0 ? BT_CLOCK_WORK : BT_CLOCK_WALL;
    const char *executor = bt_args_text(args, "executor");
    out->executor = strcmp(executor, "sim") == 0   ? BT_EXECUTOR_SIM
                    : strcmp(executor, "cpu") == 0 ? BT_EXECUTOR_CPU
                                                   : BT_EXECUTOR_CUDA;
    return BT_OK;
}

enum bt_code bt_run_opts_only_steps(const struct bt_args *args, struct bt_error *err)
{
    static const char *const others[] = {"slo",         "warmup",     "price",
                                         "per-request", "timeseries", "fit"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (bt_args_given(args, others[i])) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "--%s: steps are measured here, and no requests served; berth replay and "
                    "berth simulate take it",
                    others[i]);
        }
    }
    return BT_OK;
}

enum bt_code bt_run_opts_only_sim(const struct bt_run_opts *run, struct bt_error *err)
{
    if (run->executor != BT_EXECUTOR_SIM) {
        BT_FAIL(err, BT_ERR_MISSING, 0,
                "--executor %s: this command simulates; berth replay and berth simulate take it",
                run->executor == BT_EXECUTOR_CPU ? "cpu" : "cuda");
    }
    return BT_OK;
}
