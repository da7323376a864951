/* The simulator's own speed: requests a second of wall time on one core.
 *
 *   sim_bench TRACE
 *
 * trace: replays the trace on four A100s with Llama-2-7B. mm1: two million customers through a
 * server of one at 70% load. cost: one step of the roofline model. Each is checked while it is
 * timed. Prints a JSON object a case: median of the repeats and their spread, and the largest
 * resident memory of the process so far.
 */
#include "engine/core/order.h"
#include "sim/run.h"
#include "sim/workload/trace.h"
#include "tests/sim/fixtures.h"
#include "tests/sim/given.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { REPEATS = 5 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double peak_rss_mb(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss / 1024;
}

static void die(const struct bt_error *err)
{
    fprintf(stderr, "sim_bench: %s\n", err->msg);
    exit(1);
}

static struct bt_deploy acceptance_deploy(void)
{
    struct bt_error err = {0};
    struct bt_config c;
    bt_config_init(&c);
    snprintf(c.model, sizeof c.model, "llama-2-7b");
    snprintf(c.gpu, sizeof c.gpu, "a100-80-sxm");
    c.replicas = 4;
    c.weights = BT_WEIGHT_FP16;
    c.max_seqs = 128;
    c.max_batched_tokens = 512;
    c.over_length = BT_OVER_ALLOW;
    struct bt_arch arch = fixture_7b();
    struct bt_gpu gpu = fixture_a100();
    struct bt_deploy d;
    if (bt_deploy_init(&d, &c, &arch, NULL, &gpu, NULL, &err) != BT_OK) {
        die(&err);
    }
    return d;
}

struct timing {
    double median_s, spread_s;
};

static struct timing timing_of(double *seconds)
{
    qsort(seconds, REPEATS, sizeof *seconds, bt_compare_doubles);
    return (struct timing){seconds[REPEATS / 2], seconds[REPEATS - 1] - seconds[0]};
}

static struct bt_sim_result result;

static void bench_trace(const char *path)
{
    struct bt_error err = {0};
    struct bt_deploy d = acceptance_deploy();
    double seconds[REPEATS];
    uint64_t hash = 0;
    for (int32_t i = 0; i < REPEATS; i++) {
        struct bt_source *source;
        struct bt_trace_opts trace = {0};
        double start_s = now_s();
        if (bt_source_create_trace(path, &trace, &source, &err) != BT_OK) {
            die(&err);
        }
        struct bt_sim_opts o = {.deploy = &d, .replicas = 4, .source = source, .seed = 1};
        if (bt_sim_run(&o, &result, &err) != BT_OK) {
            die(&err);
        }
        bt_source_destroy(source);
        seconds[i] = now_s() - start_s;
        if (result.summary.finished != result.summary.arrived ||
            (i > 0 && result.plan_hash != hash)) {
            fprintf(stderr, "sim_bench: %lld of %lld requests finished, plan hash %016llx\n",
                    (long long)result.summary.finished, (long long)result.summary.arrived,
                    (unsigned long long)result.plan_hash);
            exit(1);
        }
        hash = result.plan_hash;
    }
    struct timing t = timing_of(seconds);
    const struct bt_summary *s = &result.summary;
    printf("{\"case\": \"trace\", \"requests\": %lld, \"seconds\": %.4f, \"spread_s\": %.4f, "
           "\"requests_per_s\": %.0f, \"steps\": %lld, \"ns_per_step\": %.1f, \"events\": %lld, "
           "\"peak_rss_mb\": %.1f, \"ttft_p50_s\": %.6f, \"e2e_p95_s\": %.6f}\n",
           (long long)s->finished, t.median_s, t.spread_s, (double)s->finished / t.median_s,
           (long long)result.steps, t.median_s * 1e9 / (double)result.steps,
           (long long)result.events, peak_rss_mb(), s->ttft.p50_s, s->e2e.p95_s);
    bt_deploy_fini(&d);
}

static void bench_mm1(void)
{
    enum { CUSTOMERS = 2000000 };
    struct bt_error err = {0};
    struct given_cost cost = {.prefill_token_ps = 100000};
    struct bt_deploy d = given_deploy(&cost, 1, 2, 1 << 20);
    struct drawn_source s = {
        .seed = 2, .n = CUSTOMERS, .gap_ns = 1e6 / 0.7, .prompt_mean = 10000, .output = 1};
    double seconds[REPEATS];
    for (int32_t i = 0; i < REPEATS; i++) {
        struct bt_sim_opts o = {.deploy = &d, .replicas = 1, .source = drawn_start(&s)};
        double start_s = now_s();
        if (bt_sim_run(&o, &result, &err) != BT_OK) {
            die(&err);
        }
        seconds[i] = now_s() - start_s;
    }
    struct timing t = timing_of(seconds);
    printf("{\"case\": \"mm1\", \"requests\": %d, \"seconds\": %.4f, \"spread_s\": %.4f, "
           "\"requests_per_s\": %.0f, \"mean_wait_ms\": %.4f, \"closed_form_ms\": %.4f, "
           "\"peak_rss_mb\": %.1f}\n",
           CUSTOMERS, t.median_s, t.spread_s, CUSTOMERS / t.median_s,
           result.summary.queue.mean_s * 1e3, 0.7 / 0.3, peak_rss_mb());
}

static void bench_cost(void)
{
    enum { STEPS = 10000000 };
    struct bt_deploy d = acceptance_deploy();
    double seconds[REPEATS];
    double sum_ms = 0;
    for (int32_t i = 0; i < REPEATS; i++) {
        double start_s = now_s();
        for (int32_t j = 0; j < STEPS; j++) {
            int32_t n = 1 + j % 128;
            struct bt_batch b = {.n_decode = n,
                                 .n_decode_tokens = n,
                                 .decode_ctx = 1000 * (int64_t)n + j % 1000,
                                 .n_logits = n};
            struct bt_cost_parts p;
            d.cost.ops->step(d.cost.self, &b, &p);
            sum_ms += (double)p.time_ps * 1e-9;
        }
        seconds[i] = now_s() - start_s;
    }
    struct timing t = timing_of(seconds);
    printf("{\"case\": \"cost\", \"steps\": %d, \"ns_per_step\": %.2f, \"spread_ns\": %.2f, "
           "\"mean_step_ms\": %.4f}\n",
           STEPS, t.median_s / STEPS * 1e9, t.spread_s / STEPS * 1e9, sum_ms / REPEATS / STEPS);
    bt_deploy_fini(&d);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: sim_bench TRACE\n");
        return 2;
    }
    bench_trace(argv[1]);
    bench_mm1();
    bench_cost();
    return 0;
}
