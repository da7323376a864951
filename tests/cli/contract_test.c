/* Every JSON name that the contract gives for memory, replay, simulate, plan, compare and trace
 * describe is there in what the built program prints, with the kind of value it should have. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#define TRACE  "scenarios/traces/AzureLLMInferenceTrace_conv.csv"
#define REPLAY "replay " TRACE " --model llama-2-7b --gpu a100-80-sxm --limit 200 "

/* Kinds of values: n number, N number or null, t text, b boolean, o object, l list. */
struct name {
    const char *path;
    char kind;
};

static bool is_kind(const json_t *v, char kind)
{
    switch (kind) {
    case 'n':
        return json_is_number(v);
    case 'N':
        return json_is_number(v) || json_is_null(v);
    case 't':
        return json_is_string(v);
    case 'b':
        return json_is_boolean(v);
    case 'o':
        return json_is_object(v);
    case 'l':
        return json_is_array(v);
    default:
        return false;
    }
}

static void expect_names(const json_t *doc, const struct name *names, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        cr_expect(is_kind(json_at(doc, names[i].path), names[i].kind), "%s: %s is not a %c", what,
                  names[i].path, names[i].kind);
    }
}

#define EXPECT(doc, names, what) expect_names(doc, names, sizeof names / sizeof *names, what)

static const struct name METRICS[] = {
    {"throughput_req_per_s", 'n'},
    {"throughput_out_tok_per_s", 'n'},
    {"goodput_req_per_s", 'n'},
    {"slo_attainment_fraction", 'n'},
    {"preempt_swap", 'n'},
    {"preempt_recompute", 'n'},
    {"swap_bytes", 'n'},
    {"kv_blocks_total", 'n'},
    {"kv_blocks_peak", 'n'},
    {"kv_waste_fraction", 'n'},
    {"gpu_busy_fraction", 'n'},
    {"flops_utilization", 'n'},
    {"bandwidth_utilization", 'n'},
    {"batch_fill", 'n'},
    {"kv_blocked_fraction", 'n'},
    {"seqs_blocked_fraction", 'n'},
    {"swap_stall_fraction", 'n'},
    {"prefix_hit_fraction", 'n'},
    {"bottleneck", 't'},
    {"arrived", 'n'},
    {"finished", 'n'},
    {"timed_out", 'n'},
    {"rejected", 'n'},
    {"cancelled", 'n'},
    {"failed", 'n'},
    {"running", 'n'},
    {"waiting", 'n'},
    {"degraded", 'n'},
    {"acceptance_rate", 'N'},
    {"accepted_len", 'N'},
    {"acceptance_conditional", 'l'},
    {"cost_usd_per_h", 'n'},
    {"cost_usd_per_mtok", 'n'},
};

static void expect_metrics(const json_t *metrics, const char *what)
{
    static const char *const latencies[] = {"ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"};
    static const struct name stats[] = {{"mean", 'n'}, {"p50", 'n'}, {"p90", 'n'},
                                        {"p95", 'n'},  {"p99", 'n'}, {"max", 'n'}};
    EXPECT(metrics, METRICS, what);
    for (size_t i = 0; i < sizeof latencies / sizeof *latencies; i++) {
        EXPECT(json_at(metrics, latencies[i]), stats, latencies[i]);
    }
    double sum = json_number_at(metrics, "finished") + json_number_at(metrics, "timed_out") +
                 json_number_at(metrics, "rejected") + json_number_at(metrics, "cancelled") +
                 json_number_at(metrics, "failed") + json_number_at(metrics, "running") +
                 json_number_at(metrics, "waiting");
    cr_expect_eq(sum, json_number_at(metrics, "arrived"), "%s: conservation", what);
}

static void expect_run(const json_t *run, const char *command)
{
    static const struct name names[] = {
        {"command", 't'}, {"version", 't'},     {"config", 'o'},        {"stack", 't'},
        {"trust", 'o'},   {"trust.level", 't'}, {"trust.weakest", 't'}, {"trust.step_error", 'N'},
        {"metrics", 'o'}};
    EXPECT(run, names, command);
    cr_expect_str_eq(json_text_at(run, "command"), command);
    expect_metrics(json_at(run, "metrics"), command);
}

/* A small scenario with a limit. */
static const char *small_scenario(void)
{
    return program_write(
        "small.lua",
        "local w = require 'berth.workload'\n"
        "return { name = 'small', model = 'llama-2-7b', gpu = 'a100-80-sxm', replicas = 'auto',\n"
        "  weights = { 'fp16', 'int8' }, slo = { e2e_s = { p95 = 5 } },\n"
        "  workload = w.poisson { rate_per_s = 2, duration_s = 20, prompt = 200, output = 20 } "
        "}\n");
}

Test(contract, memory_is_flat)
{
    static const struct name names[] = {{"fits", 'b'},
                                        {"weights_bytes", 'n'},
                                        {"draft_bytes", 'n'},
                                        {"workspace_bytes", 'n'},
                                        {"reserved_bytes", 'n'},
                                        {"kv_bytes_per_token", 'n'},
                                        {"draft_kv_bytes_per_token", 'n'},
                                        {"kv_pool_bytes", 'n'},
                                        {"kv_blocks_total", 'n'},
                                        {"kv_tokens_total", 'n'},
                                        {"max_concurrency", 'n'}};
    json_t *doc = program_json("memory --model llama-2-13b --gpu rtx4090 --weights int4-g128", 0);
    EXPECT(doc, names, "memory");
    json_decref(doc);
    doc = program_json("memory --model llama-2-13b --gpu rtx4090", 1);
    cr_expect(json_is_false(json_at(doc, "fits")));
    cr_expect_not_null(strstr(json_text_at(doc, "reason"), "26.0 GB of weights in 24 GB"));
    json_decref(doc);
}

Test(contract, replay_is_one_run)
{
    json_t *doc = program_json(REPLAY "--slo ttft.p95=1", 0);
    expect_run(doc, "replay");
    json_decref(doc);
}

Test(contract, speculation_has_its_numbers)
{
    json_t *doc =
        program_json(REPLAY "--slo e2e.p95=5 --spec draft=tinyllama-1.1b,k=3,acceptance=0.7", 0);
    expect_run(doc, "replay");
    cr_expect(json_is_number(json_at(doc, "metrics.acceptance_rate")));
    cr_expect(json_is_number(json_at(doc, "metrics.accepted_len")));
    cr_expect_eq(json_array_size(json_at(doc, "metrics.acceptance_conditional")), 3);
    json_decref(doc);
}

Test(contract, simulate_has_runs)
{
    char args[1200];
    (void)snprintf(args, sizeof args, "simulate '%s'", small_scenario());
    json_t *doc = program_json(args, 0);
    const json_t *run;
    size_t i;
    json_array_foreach(json_at(doc, "runs"), i, run)
    {
        expect_run(run, "simulate");
    }
    cr_expect_eq(i, 2);
    json_decref(doc);
}

Test(contract, plan_has_best_and_candidates)
{
    static const struct name names[] = {{"config", 'o'},
                                        {"verdict", 't'},
                                        {"reason", 't'},
                                        {"replicas", 'N'},
                                        {"capacity_req_per_s", 'N'},
                                        {"metrics", 'o'},
                                        {"cost_usd_per_h", 'N'},
                                        {"headroom", 'N'},
                                        {"trust", 'o'}};
    char args[1200];
    (void)snprintf(args, sizeof args, "plan '%s'", small_scenario());
    json_t *doc = program_json(args, -1);
    const json_t *best = json_at(doc, "best"), *c;
    cr_expect(json_is_object(best) || json_is_null(best) || json_is_integer(best));
    cr_expect_eq(json_array_size(json_at(doc, "candidates")), 2);
    size_t i;
    bool any_metrics = false;
    json_array_foreach(json_at(doc, "candidates"), i, c)
    {
        EXPECT(c, names, "candidate");
        const char *v = json_text_at(c, "verdict");
        cr_expect(strcmp(v, "feasible") == 0 || strcmp(v, "marginal") == 0 ||
                      strcmp(v, "infeasible") == 0 || strcmp(v, "unverified") == 0,
                  "%s", v);
        (void)json_at(c, "bottleneck");
        if (json_object_size(json_at(c, "metrics")) > 0) {
            any_metrics = true;
            expect_metrics(json_at(c, "metrics"), "plan");
            (void)json_at(c, "metrics.ci95");
        }
    }
    cr_expect(any_metrics);
    json_decref(doc);
}

static void expect_rows(const json_t *doc, const char *name_key)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_at(doc, "rows"), i, row)
    {
        cr_expect(json_is_string(json_at(row, name_key)), "row %zu", i);
        cr_expect(json_is_string(json_at(row, "unit")), "row %zu", i);
    }
    cr_expect_gt(i, 10);
}

Test(contract, compare_and_describe_have_rows)
{
    cr_assert_eq(program_run(REPLAY).status, 0);
    cr_assert_eq(program_run(REPLAY "--kv int8").status, 0);
    json_t *doc = program_json("compare 1 2", 0);
    expect_rows(doc, "metric");
    cr_expect(json_is_number(json_at(doc, "rows.0.a")));
    cr_expect(json_is_number(json_at(doc, "rows.0.b")));
    json_decref(doc);
    doc = program_json("trace describe " TRACE, 0);
    expect_rows(doc, "field");
    cr_expect_eq(json_number_at(doc, "rows.0.value"), 19366);
    json_decref(doc);
}

Test(contract, stdout_says_nothing_of_the_run_itself)
{
    /* No run id, time, path or thread count: equal work, equal bytes. */
    char first[1 << 16], args[1200];
    (void)snprintf(args, sizeof args, "simulate '%s' --json --jobs 1", small_scenario());
    struct outcome o = program_run(args);
    cr_assert_eq(o.status, 0);
    cr_assert_lt(strlen(o.out), sizeof first);
    (void)snprintf(first, sizeof first, "%s", o.out);
    cr_expect_not_null(strstr(o.err, "recorded as run 1"), "%s", o.err);
    (void)snprintf(args, sizeof args, "simulate '%s' --json --jobs 3", small_scenario());
    o = program_run(args);
    cr_expect_not_null(strstr(o.err, "recorded as run 2"), "%s", o.err);
    cr_expect_str_eq(o.out, first);
}
