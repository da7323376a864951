/* berth plot, as the built program answers: from tables, and from a store with two runs. */
#include "engine/core/metrics.h"
#include "tests/db/store_fixture.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMMAND_BYTES = 4096, OUTPUT_BYTES = 1 << 16 };

static char output[OUTPUT_BYTES];

/* Runs "ENV berth plot ARGS --db STORE" in the test's folder; returns the exit status. */
static int plot(const char *env, const char *args)
{
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command, "cd '%s' && %s '%s/berth' plot %s --db a.db 2>&1",
                   bt_store_test_dir(), env, BT_TEST_BINARY_DIR, args);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t n = fread(output, 1, sizeof output - 1, pipe);
    output[n] = '\0';
    int status = pclose(pipe);
    cr_assert(WIFEXITED(status), "%s", args);
    return WEXITSTATUS(status);
}

static void expect(const char *args, int status, const char *part)
{
    cr_expect_eq(plot("", args), status, "%s: %s", args, output);
    cr_expect_not_null(strstr(output, part), "%s gave:\n%s", args, output);
}

static bool has_gnuplot(void)
{
    return system("gnuplot --version >/dev/null 2>&1") == 0;
}

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(bt_store_test_path(name), "w");
    cr_assert_not_null(f);
    cr_assert_geq(fputs(text, f), 0);
    cr_assert_eq(fclose(f), 0);
}

static char *read_file(const char *name)
{
    FILE *f = fopen(bt_store_test_path(name), "r");
    cr_assert_not_null(f, "%s", name);
    char *text = NULL;
    size_t cap = 0;
    cr_assert_geq(getdelim(&text, &cap, '\0', f), 0, "%s", name);
    fclose(f);
    return text;
}

static bool exists(const char *name)
{
    return access(bt_store_test_path(name), F_OK) == 0;
}

static void add_summary(struct bt_store *s, int64_t run_id, int32_t i, const char *label)
{
    static const struct bt_summary numbers;
    const struct bt_store_summary summary = {
        .summary_index = i,
        .label = label,
        .model = "m",
        .gpu = "g",
        .trust = "roofline",
        .config_json = "{}",
        .metrics_json = "{\"warmup_requests\": 1, \"windows\": [{\"start_s\": 0.0, \"end_s\": 2.5, "
                        "\"bottleneck\": \"kv\", \"gpu_busy_fraction\": 0.5, "
                        "\"flops_utilization\": null, \"bandwidth_utilization\": 0.25, "
                        "\"ttft_max_s\": 0.125, \"e2e_max_s\": null}]}",
        .summary = &numbers,
        .cost_usd_per_h = NAN};
    struct bt_error err = {0};
    cr_assert_eq(bt_store_add_summary(s, run_id, &summary, &err), BT_OK, "%s", err.msg);
}

/* Run 1: two configurations, with requests and states. Run 2: a plan. Run 3: nothing. */
static void make_store(void)
{
    struct bt_store *s = bt_store_test_open("a.db");
    struct bt_error err = {0};
    cr_assert_eq(bt_store_test_run(s, "return {}"), 1);
    for (int32_t i = 0; i < 2; i++) {
        add_summary(s, 1, i, i == 0 ? "kv fp16" : "kv int8");
        struct bt_req_record records[3];
        const struct bt_store_sample samples[] = {{.t_ns = 0, .kv_blocks_total = 4},
                                                  {.t_ns = 1000000000,
                                                   .running = 3,
                                                   .waiting = 1,
                                                   .kv_blocks_used = 2,
                                                   .kv_blocks_total = 4,
                                                   .preempts = 5}};
        bt_store_test_records(records, 3);
        cr_assert_eq(bt_store_add_requests(s, 1, i, records, 3, &err), BT_OK, "%s", err.msg);
        cr_assert_eq(bt_store_add_timeseries(s, 1, i, samples, 2, &err), BT_OK, "%s", err.msg);
    }
    cr_assert_eq(bt_store_end_run(s, 1, BT_RUN_DONE, &err), BT_OK);
    cr_assert_eq(bt_store_test_run(s, "return {}"), 2);
    const char config[] = "{\"weights\": \"int8\", \"preempt\": \"swap\", \"kv\": {\"dtype\": "
                          "\"fp16\", \"block_tokens\": 16}}";
    const struct bt_store_candidate candidates[] = {
        {.verdict = "feasible",
         .reason = "",
         .model = "m",
         .gpu = "l40s",
         .replicas = 2,
         .cards = 2,
         .cost_usd_per_h = 2,
         .capacity_req_per_s = NAN,
         .trust = "roofline",
         .config_json = config,
         .metrics_json = "{\"ci95\": {\"e2e.p95\": {\"limit_s\": 1.5, \"mean_s\": 1.25, \"low_s\": "
                         "1.0, \"high_s\": 1.375, \"n_seeds\": 4}}}"},
        {.verdict = "infeasible",
         .reason = "does not fit",
         .model = "m",
         .gpu = "l4",
         .cost_usd_per_h = NAN,
         .capacity_req_per_s = NAN,
         .trust = "roofline",
         .config_json = config},
    };
    cr_assert_eq(bt_store_add_plan(s, 2, "{}", candidates, 2, 0, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_end_run(s, 2, BT_RUN_DONE, &err), BT_OK);
    cr_assert_eq(bt_store_test_run(s, "return {}"), 3);
    cr_assert_eq(bt_store_end_run(s, 3, BT_RUN_DONE, &err), BT_OK);
    bt_store_close(s);
}

Test(plot_run, draws_what_the_run_holds)
{
    int drawn = has_gnuplot() ? 0 : 4;
    make_store();
    cr_expect_eq(plot("", "1 --out out --slo ttft.p99=0.5"), drawn, "%s", output);
    char *cdf = read_file("out/cdf.tsv");
    cr_expect_not_null(strstr(cdf, "\nkv fp16\tttft\t"));
    cr_expect_not_null(strstr(cdf, "\nkv int8\te2e\t"));
    cr_expect_not_null(strstr(cdf, "\t0.5\t0.99\n"), "the limit is marked");
    cr_expect_null(strstr(cdf, "\t0.3333333333333333\t"), "one of three is warm-up");
    free(cdf);
    char *series = read_file("out/timeseries-2.tsv");
    cr_expect_not_null(strstr(series, "\n1.0\t3\t1\t0\t0.5\t0.0\t5\n"));
    cr_expect_not_null(strstr(series, "\n0.0\t2.5\t0.5\tNaN\t0.25\t0.125\tNaN\tkv\n"));
    free(series);
    cr_expect(!exists("out/pareto.tsv"));
    cr_expect_eq(exists("out/cdf.svg") && exists("out/timeseries.png"), drawn == 0);
    cr_expect_eq(plot("", "2 pareto --out plan"), drawn, "%s", output);
    char *pareto = read_file("plan/pareto.tsv");
    cr_expect_not_null(strstr(pareto, "\n1\t2 × l40s, int8, KV fp16\tblock 16, "
                                      "swap\tfeasible\t2.0\t1.25\t1.0\t1.375\te2e.p95\t1.5\n"),
                       "%s", pareto);
    cr_expect_null(strstr(pareto, "l4,"));
    free(pareto);
}

Test(plot_run, says_what_is_wrong)
{
    make_store();
    expect("9 --out out", 3, "run 9 is not in");
    expect("3 --out out", 3, "run 3 has no requests, time series or candidates to draw");
    expect("1 pareto --out out", 3, "run 1 has nothing recorded for this figure");
    expect("1 rate --out out", 2, "figure rate is not drawn from a recorded run");
    expect("1 cfd --out out", 2, "did you mean 'cdf'?");
    expect("1", 2, "--out is missing");
    expect("1 cdf x.svg --out out", 2, "'x.svg' is one argument too many");
    expect("1 --out out --slo e2e=1", 2, "e2e");
    expect("1 --out a.db", 3, "it is a file");
    cr_expect_eq(plot("PATH=/nowhere", "1 cdf --out bare"), 4, "%s", output);
    cr_expect_not_null(strstr(output, "install gnuplot-nox"), "%s", output);
    cr_expect(exists("bare/cdf.tsv") && exists("bare/cdf.gp"));
}

Test(plot_run, draws_a_table)
{
    write_file("m.tsv", "# label\treserved_bytes\tweights_bytes\tdraft_bytes\tworkspace_bytes\t"
                        "kv_bytes\tunused_bytes\tusable_bytes\n"
                        "a_b\t1e9\t2e9\t0\t1e9\t4e9\t0\t8e9\n");
    write_file("bad.tsv", "# label\treserved_bytes\tweights_bytes\tdraft_bytes\tworkspace_bytes\t"
                          "kv_bytes\tunused_bytes\tusable_bytes\n"
                          "a\tmuch\t2e9\t0\t1e9\t4e9\t0\t8e9\n");
    if (has_gnuplot()) {
        cr_expect_eq(plot("", "memory m.tsv out.svg --subject 'one \"card\"'"), 0, "%s", output);
        cr_expect_str_eq(output, "");
        char *svg = read_file("out.svg");
        cr_expect_not_null(strstr(svg, "a_b"));
        cr_expect_not_null(strstr(svg, "card"));
        free(svg);
        expect("memory m.tsv nowhere/out.svg", 3, "nowhere/out.svg");
    }
    expect("memory bad.tsv x.svg", 3,
           "bad.tsv:2: reserved_bytes: expected a number or NaN, got 'much'");
    expect("memory none.tsv x.svg", 3, "none.tsv: cannot be read");
    expect("memory m.tsv out.pdf", 2, "ends in .svg or .png");
    expect("memory m.tsv", 2, "an argument is missing: berth plot memory DATA.tsv OUT.svg|OUT.png");
    expect("memroy m.tsv x.svg", 2, "did you mean 'memory'?");
    cr_expect_eq(plot("PATH=/nowhere", "memory m.tsv x.svg"), 4, "%s", output);
    cr_expect_not_null(strstr(output, "install gnuplot-nox"), "%s", output);
    cr_expect(!exists("x.svg"));
}
