/* Figures: the tables byte for byte, the scripts beside them, pictures when gnuplot is here, and
 * what is said when it is not. */
#include "cli/cmd.h"
#include "cli/plot.h"
#include "cli/spawn.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static void make_root(void)
{
    (void)snprintf(root, sizeof root, "%s/plot-XXXXXX", BT_TEST_BINARY_DIR);
    cr_assert_not_null(mkdtemp(root));
}

static void remove_root(void)
{
    char *const argv[] = {"/bin/rm", "-rf", root, NULL};
    char said[BT_SPAWN_SAID_BYTES];
    int status = 0;
    cr_expect(bt_spawn(argv, &status, said, NULL) == BT_OK && status == 0);
}

TestSuite(plot, .init = make_root, .fini = remove_root);

static bool has_gnuplot(void)
{
    char *const argv[] = {"gnuplot", "--version", NULL};
    char said[BT_SPAWN_SAID_BYTES];
    int status = 0;
    struct bt_error err = {0};
    return bt_spawn(argv, &status, said, &err) == BT_OK && status == 0;
}

static void hide_gnuplot(void)
{
    cr_assert_eq(setenv("PATH", root, 1), 0);
}

/* Text of "<root>/<name>"; the caller frees it. */
static char *read_text(const char *name)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    char *text = NULL;
    size_t cap = 0;
    cr_assert_geq(getdelim(&text, &cap, '\0', f), 0, "%s", path);
    fclose(f);
    return text;
}

static bool exists(const char *name)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    return access(path, F_OK) == 0;
}

static void expect_text(const char *name, const char *want)
{
    char *got = read_text(name);
    cr_expect_str_eq(got, want, "%s:\n%s\nexpected:\n%s", name, got, want);
    free(got);
}

/* A picture is there, is of its kind, and holds more than an empty frame. */
static void expect_picture(const char *name)
{
    static const char svg[] = "<?xml", png[] = "\x89PNG\r\n\x1a\n";
    const char *magic = strstr(name, ".svg") != NULL ? svg : png;
    char path[1024], start[8] = "";
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    cr_expect_eq(fread(start, 1, sizeof start, f), sizeof start);
    cr_expect_eq(fseek(f, 0, SEEK_END), 0);
    long n_bytes = ftell(f);
    fclose(f);
    cr_expect_eq(memcmp(start, magic, strlen(magic)), 0, "%s does not start as it should", name);
    cr_expect_gt(n_bytes, 5000, "%s has %ld bytes", name, n_bytes);
}

/* Both pictures when gnuplot is here; none when it is not. */
static void expect_pictures(const struct bt_plots *p, const char *dir, const char *name)
{
    static const char *const suffixes[] = {"svg", "png"};
    for (size_t i = 0; i < 2; i++) {
        char file[512];
        (void)snprintf(file, sizeof file, "%s/%s.%s", dir, name, suffixes[i]);
        if (p->no_gnuplot) {
            cr_expect(!exists(file), "%s", file);
        } else {
            expect_picture(file);
        }
    }
}

static struct bt_plots open_in(const char *name)
{
    struct bt_plots p;
    struct bt_error err = {0};
    char dir[1024];
    (void)snprintf(dir, sizeof dir, "%s/%s", root, name);
    cr_assert_eq(bt_plots_open(&p, dir, &err), BT_OK, "%s", err.msg);
    return p;
}

/* ---- inputs ---- */

static const struct bt_slo slos[] = {
    {BT_SLO_E2E, BT_STAT_P95, 1500000000},
    {BT_SLO_TTFT, BT_STAT_MAX, 500000000},
};

static struct bt_max_rate sample_rate(void)
{
    struct bt_max_rate r = {.rate_req_per_s = 20, .first_bad_req_per_s = 22.5, .n_probes = 3};
    r.probes[0] = (struct bt_rate_probe){.rate_req_per_s = 10,
                                         .holds = true,
                                         .slo_value_s = {0.75, 0.125},
                                         .bottleneck = BT_BOTTLENECK_ARRIVALS};
    r.probes[1] = (struct bt_rate_probe){.rate_req_per_s = 20,
                                         .holds = true,
                                         .slo_value_s = {1.25, 0.25},
                                         .bottleneck = BT_BOTTLENECK_BANDWIDTH};
    r.probes[2] = (struct bt_rate_probe){.rate_req_per_s = 22.5,
                                         .holds = false,
                                         .slo_value_s = {40, NAN},
                                         .bottleneck = BT_BOTTLENECK_KV};
    return r;
}

static void plot_rate(struct bt_plots *p, const struct bt_plot_opts *opts)
{
    struct bt_max_rate rate = sample_rate();
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_rate(p, opts, &rate, slos, 2, &err), BT_OK, "%s", err.msg);
}

static const char RATE_TABLE[] =
    "# statistic\trate_req_per_s\tlatency_s\tlimit_s\tholds\tbottleneck\n"
    "e2e.p95\t10.0\t0.75\t1.5\t1\tarrivals\n"
    "e2e.p95\t20.0\t1.25\t1.5\t1\tbandwidth\n"
    "e2e.p95\t22.5\t40.0\t1.5\t0\tkv\n"
    "\n\n"
    "ttft.max\t10.0\t0.125\t0.5\t1\tarrivals\n"
    "ttft.max\t20.0\t0.25\t0.5\t1\tbandwidth\n"
    "ttft.max\t22.5\tNaN\t0.5\t0\tkv\n";

/* ---- tables and pictures ---- */

Test(plot, rate)
{
    struct bt_plots p = open_in("out");
    plot_rate(&p, NULL);
    expect_text("out/rate.tsv", RATE_TABLE);
    expect_pictures(&p, "out", "rate");
    cr_expect(exists("out/rate.gp"));
    cr_expect(exists("out/style.gp"));
    cr_expect_eq(p.n_figures, 1);
}

Test(plot, cdf_of_two_runs)
{
    static const int64_t ttft[] = {100000000, 200000000, 200000000, 400000000};
    static const int64_t e2e[] = {1000000000, 3000000000};
    const struct bt_plot_run runs[] = {
        {.name = "a \"quoted\"\tname", .ttft_ns = ttft, .n_ttft = 4, .e2e_ns = e2e, .n_e2e = 2},
        {.name = "#b_{2}^3 & <x>", .ttft_ns = ttft, .n_ttft = 2},
    };
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_cdf(&p, NULL, runs, 2, slos, 2, &err), BT_OK, "%s", err.msg);
    expect_text("out/cdf.tsv", "# run\tmetric\tlatency_s\tfraction\tlimit_s\tlimit_fraction\n"
                               "a 'quoted' name\tttft\t0.1\t0.0\t0.5\tNaN\n"
                               "a 'quoted' name\tttft\t0.1\t0.25\t0.5\tNaN\n"
                               "a 'quoted' name\tttft\t0.2\t0.5\t0.5\tNaN\n"
                               "a 'quoted' name\tttft\t0.2\t0.75\t0.5\tNaN\n"
                               "a 'quoted' name\tttft\t0.4\t1.0\t0.5\tNaN\n"
                               "\n\n"
                               "a 'quoted' name\te2e\t1.0\t0.0\t1.5\t0.95\n"
                               "a 'quoted' name\te2e\t1.0\t0.5\t1.5\t0.95\n"
                               "a 'quoted' name\te2e\t3.0\t1.0\t1.5\t0.95\n"
                               "\n\n"
                               " b_{2}^3 & <x>\tttft\t0.1\t0.0\t0.5\tNaN\n"
                               " b_{2}^3 & <x>\tttft\t0.1\t0.5\t0.5\tNaN\n"
                               " b_{2}^3 & <x>\tttft\t0.2\t1.0\t0.5\tNaN\n");
    expect_pictures(&p, "out", "cdf");
    if (!p.no_gnuplot) {
        char *svg = read_text("out/cdf.svg");
        cr_expect_not_null(strstr(svg, "b_{2}^3 &amp; &lt;x>"), "names are not mark-up");
        cr_expect_not_null(strstr(svg, "a 'quoted' name"));
        free(svg);
    }
}

Test(plot, cdf_keeps_a_thousand_samples_and_the_extremes)
{
    enum { N = 123457 };
    int64_t *ns = calloc(N, sizeof *ns);
    cr_assert_not_null(ns);
    for (int64_t i = 0; i < N; i++) {
        ns[i] = (i + 1) * 1000000;
    }
    const struct bt_plot_run run = {.name = "r", .e2e_ns = ns, .n_e2e = N};
    hide_gnuplot();
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_cdf(&p, NULL, &run, 1, NULL, 0, &err), BT_OK, "%s", err.msg);
    free(ns);
    char *text = read_text("out/cdf.tsv");
    int n_rows = 0, n_tail = 0;
    double last_x = 0, last_share = -1;
    for (const char *at = strchr(text, '\n') + 1; *at != '\0'; at = strchr(at, '\n') + 1) {
        double x = 0, share = 0;
        cr_assert_eq(sscanf(at, "r\te2e\t%lf\t%lf\t", &x, &share), 2);
        cr_assert(x >= last_x && share > last_share);
        cr_assert(n_rows == 0 || fabs(share - x * 1000 / N) < 1e-9, "a real sample at its rank");
        n_tail += share > 0.9;
        n_rows++;
        last_x = x;
        last_share = share;
    }
    free(text);
    cr_expect_eq(n_rows, 1001);
    cr_expect(n_tail >= 499 && n_tail <= 501, "%d", n_tail);
    cr_expect_float_eq(last_x, N / 1000.0, 1e-9);
    cr_expect_eq(last_share, 1);
}

static void fill_run(struct bt_sim_sample *samples, int64_t n, struct bt_window *windows,
                     int32_t n_windows)
{
    for (int64_t i = 0; i < n; i++) {
        samples[i] = (struct bt_sim_sample){.t_ns = i * 1000000000,
                                            .running = (int32_t)(i % 7),
                                            .waiting = (int32_t)(i % 3),
                                            .kv_blocks_used = i % 11,
                                            .kv_blocks_cached = 2,
                                            .kv_blocks_total = 16,
                                            .preempts = i / 4};
    }
    for (int32_t i = 0; i < n_windows; i++) {
        windows[i] =
            (struct bt_window){.start_ns = i * 2000000000LL,
                               .end_ns = (i + 1) * 2000000000LL,
                               .busy_fraction = 0.5,
                               .flops_utilization = NAN,
                               .bandwidth_utilization = 0.25,
                               .ttft_max_ns = -1,
                               .e2e_max_ns = 1500000000,
                               .bottleneck = i == 0 ? BT_BOTTLENECK_KV : BT_BOTTLENECK_ARRIVALS};
    }
}

Test(plot, timeseries)
{
    struct bt_sim_sample samples[4];
    struct bt_window windows[2];
    fill_run(samples, 4, windows, 2);
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_timeseries(&p, NULL, samples, 4, windows, 2, &err), BT_OK, "%s", err.msg);
    expect_text("out/timeseries.tsv",
                "# t_s\trunning\twaiting\tswapped\tkv_used_fraction\tkv_cached_fraction\tpreempts\n"
                "0.0\t0\t0\t0\t0.0\t0.125\t0\n"
                "1.0\t1\t1\t0\t0.0625\t0.125\t0\n"
                "2.0\t2\t2\t0\t0.125\t0.125\t0\n"
                "3.0\t3\t0\t0\t0.1875\t0.125\t0\n"
                "\n\n"
                "# start_s\tend_s\tbusy_fraction\tflops_utilization\tbandwidth_utilization\t"
                "ttft_max_s\te2e_max_s\tbottleneck\n"
                "0.0\t2.0\t0.5\tNaN\t0.25\tNaN\t1.5\tkv\n"
                "2.0\t4.0\t0.5\tNaN\t0.25\tNaN\t1.5\tarrivals\n");
    expect_pictures(&p, "out", "timeseries");
    cr_assert_eq(
        bt_plot_timeseries(&p, &(struct bt_plot_opts){.name = "bare"}, samples, 4, NULL, 0, &err),
        BT_OK, "%s", err.msg);
    expect_pictures(&p, "out", "bare");
}

Test(plot, timeseries_keeps_peaks)
{
    enum { N = 50001 };
    struct bt_sim_sample *samples = calloc(N, sizeof *samples);
    cr_assert_not_null(samples);
    fill_run(samples, N, NULL, 0);
    samples[31007].kv_blocks_used = 16;
    samples[31009].waiting = 999;
    hide_gnuplot();
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_timeseries(&p, NULL, samples, N, NULL, 0, &err), BT_OK, "%s", err.msg);
    free(samples);
    char *text = read_text("out/timeseries.tsv");
    cr_expect_not_null(strstr(text, "\n31007.0\t4\t2\t0\t1.0\t"));
    cr_expect_not_null(strstr(text, "\n31009.0\t6\t999\t"));
    cr_expect_not_null(strstr(text, "\n50000.0\t"));
    int n_lines = 0;
    double last = -1;
    for (const char *at = strchr(text, '\n') + 1; *at != '\0'; at = strchr(at, '\n') + 1) {
        double t_s = strtod(at, NULL);
        cr_assert_gt(t_s, last);
        last = t_s;
        n_lines++;
    }
    free(text);
    cr_expect(n_lines > 1000 && n_lines <= 2000, "%d", n_lines);
}

Test(plot, memory)
{
    const struct bt_memory_plan fits = {.fits = true,
                                        .weights_bytes = 7100000000,
                                        .workspace_bytes = 500000000,
                                        .reserved_bytes = 2500000000,
                                        .kv_pool_bytes = 14900000000,
                                        .remainder_bytes = 1000,
                                        .usable_bytes = 25000001000};
    const struct bt_memory_plan unfit = {.weights_bytes = 26000000000,
                                         .workspace_bytes = 500000000,
                                         .reserved_bytes = 2500000000,
                                         .remainder_bytes = -4000000000,
                                         .usable_bytes = 25000000000};
    const struct bt_plot_bar bars[] = {{"rtx4090, int4_g128", &fits}, {"rtx4090, fp16", &unfit}};
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_memory(&p, NULL, bars, 2, &err), BT_OK, "%s", err.msg);
    expect_text(
        "out/memory.tsv",
        "# label\treserved_bytes\tweights_bytes\tdraft_bytes\tworkspace_bytes\tkv_bytes\t"
        "unused_bytes\tusable_bytes\n"
        "rtx4090, int4_g128\t2500000000\t7100000000\t0\t500000000\t14900000000\t1000\t25000001000\n"
        "rtx4090, fp16\t2500000000\t26000000000\t0\t500000000\t0\t0\t25000000000\n");
    expect_pictures(&p, "out", "memory");
    if (!p.no_gnuplot) {
        char *svg = read_text("out/memory.svg");
        cr_expect_not_null(strstr(svg, "does not fit: 4 GB too much"));
        free(svg);
    }
}

Test(plot, map)
{
    static const char *const blocks[] = {"8", "16"}, *const policies[] = {"recompute", "swap"};
    static const double values[] = {1.5, 1.25, 12345, NAN};
    static const char *const texts[] = {NULL, NULL, NULL, "does not fit"};
    const struct bt_plot_map map = {.column_name = "KV block (tokens)",
                                    .row_name = "preemption",
                                    .value_name = "e2e.p99 (s)",
                                    .n_columns = 2,
                                    .n_rows = 2,
                                    .columns = blocks,
                                    .rows = policies,
                                    .values = values,
                                    .texts = texts};
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_map(&p, NULL, &map, &err), BT_OK, "%s", err.msg);
    expect_text("out/map.tsv",
                "# column_name\trow_name\tvalue_name\tcolumn\trow\tvalue\ttext\n"
                "KV block (tokens)\tpreemption\te2e.p99 (s)\t8\trecompute\t1.5\t1.5\n"
                "KV block (tokens)\tpreemption\te2e.p99 (s)\t16\trecompute\t1.25\t1.25\n"
                "KV block (tokens)\tpreemption\te2e.p99 (s)\t8\tswap\t12345.0\t12345\n"
                "KV block (tokens)\tpreemption\te2e.p99 (s)\t16\tswap\tNaN\tdoes not fit\n");
    expect_pictures(&p, "out", "map");
}

Test(plot, scatter)
{
    static const double measured[] = {0.5, 1, NAN, 2}, predicted[] = {0.5, 1.25, 3, NAN};
    static const double small[] = {0.03125}, near[] = {0.0625};
    const struct bt_plot_pairs pairs[] = {
        {"ttft", "fitted", measured, predicted, 2},
        {"ttft", "held out", measured + 2, predicted + 2, 2},
        {"tpot", "held out", small, near, 1},
    };
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_scatter(&p, NULL, pairs, 3, &err), BT_OK, "%s", err.msg);
    expect_text("out/scatter.tsv", "# metric\tpart\tmeasured_s\tpredicted_s\n"
                                   "ttft\tfitted\t0.5\t0.5\n"
                                   "ttft\tfitted\t1.0\t1.25\n\n\n"
                                   "tpot\theld out\t0.03125\t0.0625\n");
    expect_pictures(&p, "out", "scatter");
    cr_assert_eq(bt_plot_scatter(&p, NULL, pairs + 1, 1, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(p.n_figures, 1, "nothing to draw, nothing written");
}

static struct bt_plan_candidate sample_candidate(const char *gpu, enum bt_verdict verdict,
                                                 double cost, double latency, bool simulated)
{
    static struct bt_summary
        summary; /* that there is one is what counts; its numbers are not asked */
    struct bt_plan_candidate c = {.verdict = verdict,
                                  .cards = 2,
                                  .cost_usd_per_h = cost,
                                  .simulated = simulated,
                                  .summary = simulated ? &summary : NULL};
    (void)snprintf(c.config.gpu, sizeof c.config.gpu, "%s", gpu);
    c.config.tp = 1;
    c.config.kv_block_tokens = 16;
    c.config.preempt = BT_PREEMPT_SWAP;
    c.memory.weights = BT_WEIGHT_INT8;
    c.memory.kv = BT_KV_FP16;
    c.ci[0] = (struct bt_plan_ci){
        .mean_s = latency, .low_s = latency - 0.25, .high_s = latency + 0.25, .n_seeds = 4};
    return c;
}

Test(plot, pareto)
{
    struct bt_plan_candidate candidates[] = {
        sample_candidate("l40s", BT_FEASIBLE, 2, 1.25, true),
        sample_candidate("h200", BT_FEASIBLE, 4, 0.75, true),
        sample_candidate("a100-80-sxm", BT_MARGINAL, 3, 1.375, true),
        sample_candidate("mi300x", BT_UNVERIFIED, NAN, 0.5, true),
        sample_candidate("l4", BT_INFEASIBLE, 1, 5, true),
        sample_candidate("a10", BT_INFEASIBLE, 1, 9, false),
    };
    candidates[1].config.tp = 2;
    candidates[1].config.spec.kind = BT_SPEC_DRAFT;
    candidates[1].config.spec.k = 4;
    candidates[2].ci[0].n_seeds = 1;
    const struct bt_plan_answer answer = {.n_candidates = 6, .candidates = candidates};
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_pareto(&p, NULL, &answer, slos, 2, &err), BT_OK, "%s", err.msg);
    expect_text(
        "out/pareto.tsv",
        "# rank\tlabel\tdetail\tverdict\tcost_usd_per_h\tlatency_s\tlatency_low_s\tlatency_high_s\t"
        "statistic\tlimit_s\n"
        "1\t2 × l40s, int8, KV fp16\tblock 16, swap\tfeasible\t2.0\t1.25\t1.0\t1.5\te2e.p95\t1.5\n"
        "2\t2 × h200, int8, KV fp16\tTP 2, block 16, swap, draft "
        "k4\tfeasible\t4.0\t0.75\t0.5\t1.0\te2e.p95\t1.5\n"
        "3\t2 × a100-80-sxm, int8, KV fp16\tblock 16, "
        "swap\tmarginal\t3.0\t1.375\tNaN\tNaN\te2e.p95\t1.5\n"
        "5\t2 × l4, int8, KV fp16\tblock 16, swap\tinfeasible\t1.0\t5.0\t4.75\t5.25\te2e.p95\t1.5\n"
        "\n\n"
        "# front_cost_usd_per_h\tfront_latency_s\n"
        "1.0\t5.0\n"
        "2.0\t1.25\n"
        "4.0\t0.75\n");
    expect_pictures(&p, "out", "pareto");
    const struct bt_plan_answer unpriced = {.n_candidates = 1, .candidates = &candidates[3]};
    cr_assert_eq(bt_plot_pareto(&p, NULL, &unpriced, slos, 2, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(p.n_figures, 1, "nothing to draw");
}

Test(plot, latencies_of_finished_requests_after_the_warm_up)
{
    static const struct bt_req_record records[] = {
        {.arrival_ns = 50, .first_token_ns = 59, .end_ns = 80, .outcome = BT_OUTCOME_FINISHED},
        {.arrival_ns = 10, .first_token_ns = 11, .end_ns = 90, .outcome = BT_OUTCOME_FINISHED},
        {.arrival_ns = 30, .first_token_ns = 33, .end_ns = 95, .outcome = BT_OUTCOME_TIMED_OUT},
        {.arrival_ns = 40, .first_token_ns = 44, .end_ns = 99, .outcome = BT_OUTCOME_FINISHED},
    };
    struct bt_plot_run run;
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_run_init(&run, "r", records, 4, 1, &err), BT_OK);
    cr_assert(run.n_ttft == 2 && run.n_e2e == 2);
    cr_expect(run.ttft_ns[0] == 4 && run.ttft_ns[1] == 9);
    cr_expect(run.e2e_ns[0] == 30 && run.e2e_ns[1] == 59);
    bt_plot_run_fini(&run);
    cr_assert_eq(bt_plot_run_init(&run, "r", records, 4, 0, &err), BT_OK);
    cr_expect_eq(run.n_ttft, 3);
    bt_plot_run_fini(&run);
    cr_assert_eq(bt_plot_run_init(&run, "r", records, 4, 4, &err), BT_OK);
    cr_expect_eq(run.n_ttft, 0);
    bt_plot_run_fini(&run);
}

/* ---- odd inputs ---- */

Test(plot, same_input_gives_the_same_pictures)
{
    if (!has_gnuplot()) {
        cr_skip_test("no gnuplot here");
    }
    struct bt_plots a = open_in("a"), b = open_in("b");
    plot_rate(&a, NULL);
    plot_rate(&b, NULL);
    char *svg_a = read_text("a/rate.svg"), *svg_b = read_text("b/rate.svg");
    cr_expect_str_eq(svg_a, svg_b);
    free(svg_a);
    free(svg_b);
}

Test(plot, one_probe_none_holds_and_one_row)
{
    struct bt_max_rate rate = {.n_probes = 1};
    rate.probes[0] = (struct bt_rate_probe){.rate_req_per_s = 5,
                                            .holds = false,
                                            .slo_value_s = {NAN, 3},
                                            .bottleneck = BT_BOTTLENECK_COMPUTE};
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_rate(&p, NULL, &rate, slos, 2, &err), BT_OK, "%s", err.msg);
    expect_pictures(&p, "out", "rate");
    static const int64_t one[] = {1000};
    const struct bt_plot_run run = {.name = "", .ttft_ns = one, .n_ttft = 1};
    cr_assert_eq(bt_plot_cdf(&p, NULL, &run, 1, NULL, 0, &err), BT_OK, "%s", err.msg);
    expect_pictures(&p, "out", "cdf");
    const struct bt_sim_sample sample = {.t_ns = 0};
    cr_assert_eq(bt_plot_timeseries(&p, NULL, &sample, 1, NULL, 0, &err), BT_OK, "%s", err.msg);
    expect_pictures(&p, "out", "timeseries");
    static const char *const label[] = {"x"};
    static const double nothing[] = {NAN};
    const struct bt_plot_map map = {"a", "b", "c", 1, 1, label, label, nothing, NULL};
    cr_assert_eq(bt_plot_map(&p, NULL, &map, &err), BT_OK, "%s", err.msg);
    expect_pictures(&p, "out", "map");
}

Test(plot, nothing_to_draw_writes_nothing)
{
    const struct bt_max_rate rate = {0};
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_expect_eq(bt_plot_rate(&p, NULL, &rate, slos, 1, &err), BT_OK);
    cr_expect_eq(bt_plot_cdf(&p, NULL, NULL, 0, NULL, 0, &err), BT_OK);
    cr_expect_eq(bt_plot_timeseries(&p, NULL, NULL, 0, NULL, 0, &err), BT_OK);
    cr_expect_eq(bt_plot_memory(&p, NULL, NULL, 0, &err), BT_OK);
    cr_expect_eq(p.n_figures, 0);
    cr_expect(!exists("out/rate.tsv") && !exists("out/style.gp"));
}

Test(plot, odd_folders_and_subjects)
{
    static const char dir[] = "it's \"a\" $(touch x) `folder`/-below";
    struct bt_plots p = open_in(dir);
    plot_rate(&p, &(struct bt_plot_opts){.name = "what if", .subject = "\"$HOME\" 'q' {/:Bold_b}"});
    expect_pictures(&p, dir, "what if");
    cr_expect(!exists("x"));
    if (!p.no_gnuplot) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/what if.svg", dir);
        char *svg = read_text(path);
        cr_expect_not_null(strstr(svg, "$HOME"));
        cr_expect_not_null(strstr(svg, "{/:Bold_b}"));
        free(svg);
    }
}

/* A relative path that starts with "<" is a file, not a command for gnuplot to run. */
Test(plot, a_path_is_never_a_pipe)
{
    if (!has_gnuplot()) {
        cr_skip_test("no gnuplot here");
    }
    cr_assert_eq(chdir(root), 0);
    struct bt_plots p;
    struct bt_error err = {0};
    cr_assert_eq(bt_plots_open(&p, "|touch x", &err), BT_OK, "%s", err.msg);
    plot_rate(&p, NULL);
    cr_expect(exists("|touch x/rate.svg"));
    FILE *f = fopen("< touch x", "w");
    cr_assert_not_null(f);
    cr_assert_geq(fputs(RATE_TABLE, f), 0);
    cr_assert_eq(fclose(f), 0);
    const struct bt_plot_figure *figure = NULL;
    cr_assert_eq(bt_plot_find("rate", &figure, &err), BT_OK);
    cr_expect_eq(bt_plot_draw(figure, "< touch x", "|cat.png", NULL, &err), BT_OK, "%s", err.msg);
    expect_picture("|cat.png");
    cr_expect(!exists("x"));
}

Test(plot, folder_in_the_way)
{
    struct bt_plots p;
    struct bt_error err = {0};
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/file", root);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fclose(f);
    cr_expect_eq(bt_plots_open(&p, path, &err), BT_ERR_IO);
    cr_expect_not_null(strstr(err.msg, "it is a file"), "%s", err.msg);
    bt_error_clear(&err);
    (void)snprintf(path, sizeof path, "%s/file/below", root);
    cr_expect_eq(bt_plots_open(&p, path, &err), BT_ERR_IO);
    bt_error_clear(&err);
    cr_expect_eq(bt_plots_open(&p, "", &err), BT_ERR_IO);
}

/* ---- gnuplot absent, gnuplot failing ---- */

Test(plot, without_gnuplot_data_and_scripts_are_written)
{
    hide_gnuplot();
    struct bt_plots p = open_in("out");
    plot_rate(&p, NULL);
    plot_rate(&p, &(struct bt_plot_opts){.name = "again"});
    cr_expect(p.no_gnuplot);
    cr_expect_eq(p.n_figures, 2);
    expect_text("out/rate.tsv", RATE_TABLE);
    cr_expect(exists("out/rate.gp") && exists("out/style.gp"));
    expect_pictures(&p, "out", "rate");
    char *line = NULL;
    size_t n_bytes = 0;
    FILE *f = open_memstream(&line, &n_bytes);
    bt_plots_note(&p, f);
    fclose(f);
    cr_expect_not_null(strstr(line, "install gnuplot-nox"), "%s", line);
    cr_expect_eq(strchr(line, '\n'), line + strlen(line) - 1, "one line: %s", line);
    free(line);
}

Test(plot, draw_without_gnuplot_says_what_to_install)
{
    struct bt_plots p = open_in("out");
    plot_rate(&p, NULL);
    hide_gnuplot();
    const struct bt_plot_figure *figure = NULL;
    struct bt_error err = {0};
    char data[1024], out[1024];
    (void)snprintf(data, sizeof data, "%s/out/rate.tsv", root);
    (void)snprintf(out, sizeof out, "%s/x.svg", root);
    cr_assert_eq(bt_plot_find("rate", &figure, &err), BT_OK);
    cr_expect_eq(bt_plot_draw(figure, data, out, NULL, &err), BT_ERR_MISSING);
    cr_expect_not_null(strstr(err.msg, "gnuplot-nox"), "%s", err.msg);
    cr_expect(!exists("x.svg"));
}

Test(plot, a_failing_gnuplot_is_heard)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/gnuplot", root);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    cr_assert_geq(fputs("#!/bin/sh\necho first\necho 'no such terminal' >&2\necho\nexit 3\n", f),
                  0);
    cr_assert_eq(fclose(f), 0);
    cr_assert_eq(chmod(path, 0755), 0);
    hide_gnuplot();
    struct bt_plots p = open_in("out");
    struct bt_max_rate rate = sample_rate();
    struct bt_error err = {0};
    cr_expect_eq(bt_plot_rate(&p, NULL, &rate, slos, 1, &err), BT_ERR_IO);
    cr_expect_not_null(strstr(err.msg, "rate.svg: no such terminal"), "%s", err.msg);
    cr_expect_eq(err.detail, 3);
}

/* ---- checks of tables ---- */

Test(plot, wrong_tables_are_refused_by_line_and_column)
{
#define NAMES "# statistic\trate_req_per_s\tlatency_s\tlimit_s\tholds\tbottleneck\n"
    static const struct {
        const char *name, *text, *message; /* NULL: accepted */
    } cases[] = {
        {"good", NAMES "a\t1\t2\t3\t1\tkv\n\n\nb\t1\tNaN\t3\t0\tkv\n", NULL},
        {"crlf",
         "# statistic\trate_req_per_s\tlatency_s\tlimit_s\tholds\tbottleneck\r\n"
         "a\t1\t2\t3\t1\tkv\r\n",
         NULL},
        {"empty", "", "expected rows for figure rate, found none"},
        {"names only", NAMES, "expected rows for figure rate, found none"},
        {"no names", "a\t1\t2\t3\t1\tkv\n", ":1: expected the columns of figure rate, \"# \" and "},
        {"other names", "# a\tb\n", "tabs between them: statistic, rate_req_per_s, latency_s"},
        {"short row", NAMES "a\t1\t2\t3\t1\n", ":2: bottleneck is missing: expected 6 columns"},
        {"long row", NAMES "a\t1\t2\t3\t1\tkv\tx\n", ":2: expected 6 columns, got more: 'x'"},
        {"word", NAMES "a\t1\tfast\t3\t1\tkv\n",
         ":2: latency_s: expected a number or NaN, got 'fast'"},
        {"endless", NAMES "a\t1\t2\tinf\t1\tkv\n",
         ":2: limit_s: expected a number or NaN, got 'inf'"},
        {"hole", NAMES "a\t\t2\t3\t1\tkv\n",
         ":2: rate_req_per_s: expected a number or NaN, got ''"},
        {"quote", NAMES "a\"b\t1\t2\t3\t1\tkv\n", ":2: statistic: expected a name without double"},
    };
#undef NAMES
    const struct bt_plot_figure *figure = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_find("rate", &figure, &err), BT_OK);
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/t.tsv", root);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *f = fopen(path, "w");
        cr_assert_not_null(f);
        cr_assert_geq(fputs(cases[i].text, f), 0);
        cr_assert_eq(fclose(f), 0);
        bt_error_clear(&err);
        enum bt_code code = bt_plot_check(figure, path, &err);
        if (cases[i].message == NULL) {
            cr_expect_eq(code, BT_OK, "%s: %s", cases[i].name, err.msg);
        } else {
            cr_expect_eq(code, BT_ERR_INPUT, "%s", cases[i].name);
            cr_expect_not_null(strstr(err.msg, cases[i].message), "%s: %s", cases[i].name, err.msg);
        }
    }
    bt_error_clear(&err);
    cr_expect_eq(bt_plot_check(figure, "/nowhere/t.tsv", &err), BT_ERR_IO);
}

Test(plot, what_is_written_is_what_is_expected)
{
    struct bt_sim_sample samples[4];
    struct bt_window windows[2];
    fill_run(samples, 4, windows, 2);
    hide_gnuplot();
    struct bt_plots p = open_in("out");
    struct bt_error err = {0};
    cr_assert_eq(bt_plot_timeseries(&p, NULL, samples, 4, windows, 2, &err), BT_OK);
    const struct bt_plot_figure *figure = NULL;
    cr_assert_eq(bt_plot_find("timeseries", &figure, &err), BT_OK);
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/out/timeseries.tsv", root);
    cr_expect_eq(bt_plot_check(figure, path, &err), BT_OK, "%s", err.msg);
}

Test(plot, names_of_figures)
{
    const struct bt_plot_figure *figure = NULL;
    struct bt_error err = {0};
    cr_expect_eq(bt_plot_find("patero", &figure, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "unknown figure 'patero'; did you mean 'pareto'?");
    bt_error_clear(&err);
    cr_expect_eq(bt_plot_find("histogram", &figure, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "unknown figure 'histogram'; there are: rate, pareto, cdf, "
                              "timeseries, memory, map, scatter");
    for (figure = bt_plot_figures; figure->name != NULL; figure++) {
        char line[256];
        (void)snprintf(line, sizeof line, "  %-12s%s\n", figure->name, figure->summary);
        cr_expect_not_null(strstr(bt_cmd_plot.notes, line), "the help lacks: %s", line);
    }
}
