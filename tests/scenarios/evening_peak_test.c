/* scenarios/evening_peak.lua: a full KV pool and a limit on sequences look alike from outside and
 * are told apart; more KV cures the first. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <string.h>

enum { QUIET_END_S = 300, PEAK_START_S = 520, PEAK_END_S = 800 };

/* Windows of a run that lie within a span. */
struct span {
    int n_windows, n_named; /* named: whose bottleneck is the given one */
    double ttft_max_s, flops_max, bandwidth_max, waiting_mean;
};

static struct span look(const json_t *run, double from_s, double to_s, const char *bottleneck)
{
    struct span s = {0};
    size_t i;
    const json_t *w;
    json_array_foreach(json_at(run, "metrics.windows"), i, w)
    {
        if (json_number_at(w, "start_s") < from_s || json_number_at(w, "end_s") > to_s) {
            continue;
        }
        s.n_windows++;
        s.n_named += strcmp(json_text_at(w, "bottleneck"), bottleneck) == 0;
        const json_t *ttft = json_at(w, "ttft_max_s");
        double ttft_s = json_is_number(ttft) ? json_number_value(ttft) : 0;
        double flops = json_number_at(w, "flops_utilization");
        double bandwidth = json_number_at(w, "bandwidth_utilization");
        s.ttft_max_s = ttft_s > s.ttft_max_s ? ttft_s : s.ttft_max_s;
        s.flops_max = flops > s.flops_max ? flops : s.flops_max;
        s.bandwidth_max = bandwidth > s.bandwidth_max ? bandwidth : s.bandwidth_max;
        s.waiting_mean += json_number_at(w, "waiting_mean");
    }
    s.waiting_mean /= s.n_windows;
    return s;
}

static json_t *simulated(void)
{
    return program_json("simulate scenarios/evening_peak.lua", 0);
}

Test(evening_peak, the_tail_explodes_while_flops_and_bandwidth_stay_moderate)
{
    json_t *doc = simulated();
    const json_t *full = run_labelled(doc, "kv-full");
    struct span quiet = look(full, 0, QUIET_END_S, "kv");
    struct span peak = look(full, PEAK_START_S, PEAK_END_S, "kv");
    cr_assert_gt(quiet.n_windows, 20);
    cr_assert_gt(peak.n_windows, 20);
    cr_expect_lt(quiet.ttft_max_s, 0.6);
    cr_expect_gt(peak.ttft_max_s, 20 * quiet.ttft_max_s);
    cr_expect_gt(run_metric(doc, "kv-full", "ttft_s.p99"), 10);
    cr_expect_lt(peak.flops_max, 0.5, "%g", peak.flops_max);
    cr_expect_lt(peak.bandwidth_max, 0.5, "%g", peak.bandwidth_max);
    json_decref(doc);
}

Test(evening_peak, kv_is_named_in_the_peaks_windows_and_only_there)
{
    json_t *doc = simulated();
    const json_t *full = run_labelled(doc, "kv-full");
    struct span quiet = look(full, 0, QUIET_END_S, "kv");
    struct span peak = look(full, PEAK_START_S, PEAK_END_S, "kv");
    cr_expect_eq(quiet.n_named, 0);
    cr_expect_geq(peak.n_named, peak.n_windows * 8 / 10, "%d of %d", peak.n_named, peak.n_windows);
    cr_expect_str_eq(json_text_at(full, "metrics.bottleneck"), "kv");
    cr_expect_eq(json_number_at(full, "metrics.kv_blocks_peak"),
                 json_number_at(full, "metrics.kv_blocks_total"));
    json_decref(doc);
}

Test(evening_peak, the_twin_looks_the_same_from_outside_and_is_told_apart)
{
    json_t *doc = simulated();
    const json_t *full = run_labelled(doc, "kv-full"), *twin = run_labelled(doc, "max-seqs");
    /* From outside: throughput equal, tails within a quarter, queues in the peak. */
    double a = run_metric(doc, "kv-full", "ttft_s.p95"),
           b = run_metric(doc, "max-seqs", "ttft_s.p95");
    cr_expect_float_eq(a / b, 1, 0.25, "%g against %g s", a, b);
    a = run_metric(doc, "kv-full", "throughput_req_per_s");
    b = run_metric(doc, "max-seqs", "throughput_req_per_s");
    cr_expect_float_eq(a / b, 1, 0.01, "%g against %g requests/s", a, b);
    struct span peak_full = look(full, PEAK_START_S, PEAK_END_S, "max_seqs");
    struct span peak = look(twin, PEAK_START_S, PEAK_END_S, "max_seqs");
    cr_expect_gt(peak_full.waiting_mean, 10);
    cr_expect_gt(peak.waiting_mean, 10);
    /* From inside. */
    cr_expect_eq(run_metric(doc, "kv-full", "seqs_blocked_fraction"), 0);
    cr_expect_eq(peak_full.n_named, 0);
    cr_expect_geq(peak.n_named, peak.n_windows * 8 / 10, "%d of %d", peak.n_named, peak.n_windows);
    cr_expect_eq(look(twin, 0, 1e9, "kv").n_named, 0);
    cr_expect_str_eq(json_text_at(twin, "metrics.bottleneck"), "max_seqs");
    cr_expect_eq(run_metric(doc, "max-seqs", "kv_blocked_fraction"), 0);
    cr_expect_lt(run_metric(doc, "max-seqs", "kv_blocks_peak"),
                 0.6 * run_metric(doc, "max-seqs", "kv_blocks_total"));
    json_decref(doc);
}

Test(evening_peak, more_kv_cures_it)
{
    json_t *doc = simulated();
    /* 819,200 B a token against 416,000 with scales. */
    cr_expect_float_eq(run_metric(doc, "int8-kv", "kv_blocks_total") /
                           run_metric(doc, "kv-full", "kv_blocks_total"),
                       819200.0 / 416000.0, 0.01);
    cr_expect_lt(run_metric(doc, "int8-kv", "ttft_s.p99"), 1.0);
    cr_expect_gt(run_metric(doc, "int8-kv", "slo_attainment_fraction"), 0.99);
    cr_expect_lt(run_metric(doc, "kv-full", "slo_attainment_fraction"), 0.6);
    const json_t *cured = run_labelled(doc, "int8-kv");
    cr_expect_eq(look(cured, 0, 1e9, "kv").n_named, 0);
    json_decref(doc);
}
