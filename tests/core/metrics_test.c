#include "engine/core/metrics.h"
#include "engine/core/order.h"
#include "engine/core/rng.h"

#include <criterion/criterion.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define SEC INT64_C(1000000000)
#define MS  INT64_C(1000000)

static struct bt_arena arena;

static void setup(void)
{
    bt_arena_init(&arena, 0);
}

static void teardown(void)
{
    bt_arena_fini(&arena);
}

TestSuite(metrics, .init = setup, .fini = teardown);

static struct bt_metrics *create(struct bt_metrics_opts opts)
{
    struct bt_error err = {0};
    struct bt_metrics *m = NULL;
    opts.n_replicas = opts.n_replicas > 0 ? opts.n_replicas : 1;
    cr_assert_eq(bt_metrics_create(&arena, &opts, &m, &err), BT_OK, "%s", err.msg);
    return m;
}

static struct bt_summary *finish(struct bt_metrics *m, int64_t horizon_ns, int64_t running,
                                 int64_t waiting)
{
    struct bt_summary *s = bt_arena_take(&arena, sizeof *s);
    cr_assert_not_null(s);
    bt_metrics_finish(m, horizon_ns, running, waiting, s);
    return s;
}

/* A finished request with one token every `gap_ns` after the first. */
static struct bt_req_record record(int64_t arrival_ns, int64_t queue_ns, int64_t prefill_ns,
                                   int64_t gap_ns, int32_t n_output)
{
    struct bt_req_record r = {.arrival_ns = arrival_ns,
                              .scheduled_ns = arrival_ns + queue_ns,
                              .first_token_ns = arrival_ns + queue_ns + prefill_ns,
                              .n_prompt = 100,
                              .n_output = n_output,
                              .gap_max_ns = n_output > 1 ? gap_ns : -1};
    r.last_token_ns = r.first_token_ns + (n_output - 1) * gap_ns;
    r.end_ns = r.last_token_ns;
    return r;
}

static struct bt_req_record ended(int64_t arrival_ns, int64_t end_ns, enum bt_outcome outcome)
{
    return (struct bt_req_record){
        .arrival_ns = arrival_ns,
        .scheduled_ns = -1,
        .first_token_ns = -1,
        .last_token_ns = -1,
        .end_ns = end_ns,
        .gap_max_ns = -1,
        .n_prompt = 100,
        .outcome = outcome,
        .reject = outcome == BT_OUTCOME_REJECTED ? BT_REJECT_QUEUE_FULL : BT_REJECT_NONE,
    };
}

static void add(struct bt_metrics *m, struct bt_req_record r)
{
    bt_metrics_arrive(m, r.arrival_ns);
    bt_metrics_end(m, &r);
}

Test(metrics, create_names_the_bad_option)
{
    static const struct bt_slo no_limit = {.metric = BT_SLO_E2E, .limit_ns = 0};
    const struct {
        struct bt_metrics_opts opts;
        const char *msg;
    } cases[] = {
        {{.n_replicas = 0}, "metrics.n_replicas: 0 must be in 1..65536"},
        {{.n_replicas = 1, .exact_max = -1}, "metrics.exact_max: -1 must be in 0..4294967296"},
        {{.n_replicas = 1, .itl_exact_max = -1},
         "metrics.itl_exact_max: -1 must be in 0..4294967296"},
        {{.n_replicas = 1, .warmup_until_ns = -5},
         "metrics.warmup_until_ns: -5 must be in 0..9223372036854775807"},
        {{.n_replicas = 1, .window_ns = -1},
         "metrics.window_ns: -1 must be in 0..1125899906842624"},
        {{.n_replicas = 1, .n_slos = 17}, "metrics.n_slos: 17 must be in 0..16"},
        {{.n_replicas = 1, .peak_flops_per_s = -1},
         "metrics.peak_flops_per_s: -1 must be finite and >= 0"},
        {{.n_replicas = 1, .peak_bytes_per_s = INFINITY},
         "metrics.peak_bytes_per_s: inf must be finite and >= 0"},
        {{.n_replicas = 1, .slos = &no_limit, .n_slos = 1},
         "metrics.slos[0]: limit 0 ns must be > 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_error err = {0};
        struct bt_metrics *m = NULL;
        cr_expect_eq(bt_metrics_create(&arena, &cases[i].opts, &m, &err), BT_ERR_ARG);
        cr_expect_null(m);
        cr_expect_str_eq(err.msg, cases[i].msg);
    }
}

Test(metrics, every_refused_allocation_is_reported)
{
    struct bt_metrics_opts opts = {.n_replicas = 2, .exact_max = 10, .itl_exact_max = 10};
    for (int32_t at = 1;; at++) {
        struct bt_error err = {0};
        struct bt_metrics *m = NULL;
        arena.failnext = at;
        enum bt_code code = bt_metrics_create(&arena, &opts, &m, &err);
        if (code == BT_OK) {
            cr_expect_eq(at, 1 + 1 + 5 * 2 + 1 + 2 + 1, "failed before allocation %d", at);
            break;
        }
        cr_assert_eq(code, BT_ERR_NOMEM);
        cr_expect_null(m);
        cr_expect_not_null(strstr(err.msg, "no memory"));
    }
}

Test(metrics, a_run_without_requests_is_empty)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    struct bt_gauge g = {.kv_blocks_total = 10};
    bt_metrics_gauge(m, 0, 0, &g);
    struct bt_summary *s = finish(m, 5 * SEC, 0, 0);
    cr_expect_eq(s->arrived, 0);
    cr_expect_eq(s->n_windows, 0);
    cr_expect_eq(s->bottleneck, BT_BOTTLENECK_ARRIVALS);
    cr_expect(isnan(s->ttft.mean_s) && isnan(s->itl.p99_s) && isnan(s->slo_attainment_fraction));
    cr_expect_eq(s->throughput_req_per_s, 0.0);
    cr_expect_eq(s->kv_blocks_total, 10);
}

Test(metrics, latencies_follow_the_definitions)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    add(m, record(1 * SEC, 100 * MS, 50 * MS, 20 * MS, 11));
    add(m, record(2 * SEC, 300 * MS, 50 * MS, 0, 1)); /* no TPOT */
    struct bt_summary *s = finish(m, 4 * SEC, 0, 0);
    cr_expect_float_eq(s->queue.mean_s, 0.2, 1e-12);
    cr_expect_float_eq(s->ttft.p50_s, 0.15, 1e-12);
    cr_expect_float_eq(s->ttft.max_s, 0.35, 1e-12);
    cr_expect_eq(s->tpot.n, 1);
    cr_expect_float_eq(s->tpot.p99_s, 0.02, 1e-12);
    cr_expect_float_eq(s->e2e.max_s, 0.35, 1e-12);
    cr_expect_float_eq(s->e2e.mean_s, 0.35, 1e-12);
    cr_expect_float_eq(s->duration_s, 1.35, 1e-12);
    cr_expect_float_eq(s->throughput_req_per_s, 2 / 1.35, 1e-12);
    cr_expect_float_eq(s->throughput_out_tok_per_s, 12 / 1.35, 1e-12);
    cr_expect_float_eq(s->throughput_total_tok_per_s, 212 / 1.35, 1e-12);
    cr_expect_eq(s->ttft.rel_error, 0.0);
}

/* Percentiles of E2E against a sort, exact and from the histogram; warm-up and unfinished requests
 * are left out. */
Test(metrics, percentiles_agree_with_a_sort)
{
    enum { N = 5000 };
    for (int exact = 0; exact < 2; exact++) {
        struct bt_metrics *m = create(
            (struct bt_metrics_opts){.warmup_until_ns = 10 * SEC, .exact_max = exact ? N : 100});
        struct bt_rng r;
        bt_rng_init(&r, 11, "metrics", 0);
        int64_t *e2e = malloc(N * sizeof *e2e);
        int64_t n = 0;
        int64_t n_warmup = 0;
        for (int64_t i = 0; i < N; i++) {
            int64_t arrival_ns = i * 20 * MS;
            struct bt_req_record rec = record(arrival_ns, (int64_t)(1e8 * bt_rng_exponential(&r)),
                                              30 * MS, 10 * MS, 1 + (int32_t)bt_rng_below(&r, 200));
            rec.outcome = bt_rng_below(&r, 10) == 0 ? BT_OUTCOME_TIMED_OUT : BT_OUTCOME_FINISHED;
            add(m, rec);
            n_warmup += arrival_ns < 10 * SEC;
            if (rec.outcome == BT_OUTCOME_FINISHED && arrival_ns >= 10 * SEC) {
                e2e[n++] = rec.end_ns - rec.arrival_ns;
            }
        }
        struct bt_summary *s = finish(m, 200 * SEC, 0, 0);
        qsort(e2e, (size_t)n, sizeof *e2e, bt_compare_int64);
        static const double ps[] = {50, 90, 95, 99, 100};
        const double got[] = {s->e2e.p50_s, s->e2e.p90_s, s->e2e.p95_s, s->e2e.p99_s, s->e2e.max_s};
        cr_expect_eq(s->e2e.n, n);
        cr_expect_eq(s->warmup_requests, n_warmup);
        cr_expect_eq(n_warmup, 500);
        cr_expect_eq(s->e2e.rel_error, exact ? 0.0 : 1.0 / 1024);
        for (int i = 0; i < 5; i++) {
            double want_s = (double)e2e[(n * (int64_t)ps[i] + 99) / 100 - 1] * 1e-9;
            cr_expect(got[i] >= want_s * (1 - 1e-12) &&
                          got[i] <= want_s * (1 + s->e2e.rel_error + 1e-12),
                      "p%g %.9f against %.9f", ps[i], got[i], want_s);
        }
        free(e2e);
    }
}

Test(metrics, a_delivery_of_several_tokens_is_one_gap_then_zeros)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){.warmup_until_ns = SEC});
    bt_metrics_arrive(m, 0);
    bt_metrics_arrive(m, SEC);
    bt_metrics_deliver(m, 0, 70 * MS, 1, 5);    /* warm-up */
    bt_metrics_deliver(m, SEC, -1, 1, 1);       /* the first: no gap */
    bt_metrics_deliver(m, SEC, 30 * MS, 3, 1);  /* 30 ms, 0, 0 */
    bt_metrics_deliver(m, SEC, 20 * MS, 1, 17); /* 17 steps at once */
    struct bt_summary *s = finish(m, 2 * SEC, 2, 0);
    cr_expect_eq(s->itl.n, 20);
    cr_expect_float_eq(s->itl.mean_s, (0.03 + 17 * 0.02) / 20, 1e-12);
    cr_expect_float_eq(s->itl.p50_s, 0.02, 1e-12);
    cr_expect_float_eq(s->itl.p95_s, 0.02, 1e-12);
    cr_expect_float_eq(s->itl.p99_s, 0.03, 1e-12);
}

/* Each request breaks exactly one limit, by 1 ns; the twin that meets it is good. */
Test(metrics, attainment_counts_each_limit_and_everyone_who_arrived)
{
    struct bt_slo slos[] = {
        {BT_SLO_TTFT, BT_STAT_P99, 150 * MS}, {BT_SLO_TPOT, BT_STAT_MEAN, 20 * MS},
        {BT_SLO_ITL, BT_STAT_P99, 40 * MS},   {BT_SLO_E2E, BT_STAT_P95, 400 * MS},
        {BT_SLO_E2E, BT_STAT_MAX, 900 * MS},  {BT_SLO_QUEUE, BT_STAT_MAX, 100 * MS},
    };
    struct bt_metrics *m =
        create((struct bt_metrics_opts){.slos = slos, .n_slos = 6, .warmup_until_ns = SEC});
    add(m, record(0, 0, MS, MS, 2)); /* good, in the warm-up */
    struct bt_req_record good = record(SEC, 100 * MS, 50 * MS, 20 * MS, 11);
    good.gap_max_ns = 40 * MS;
    good.end_ns = SEC + 400 * MS;
    add(m, good);
    add(m, record(SEC, 0, 0, 0, 1)); /* one token: no TPOT, no gap, good */
    struct bt_req_record bad = record(SEC, 100 * MS, 50 * MS + 1, 20 * MS, 11);
    add(m, bad); /* TTFT */
    bad = record(SEC, 0, 0, 20 * MS + 1, 2);
    add(m, bad); /* TPOT */
    bad = good;
    bad.gap_max_ns++;
    add(m, bad); /* gap */
    bad = good;
    bad.end_ns++;
    add(m, bad); /* E2E */
    bad = record(SEC, 100 * MS + 1, 0, 0, 1);
    add(m, bad); /* queue */
    bad = good;
    bad.outcome = BT_OUTCOME_TIMED_OUT;
    add(m, bad);
    add(m, ended(SEC, SEC, BT_OUTCOME_REJECTED));
    add(m, ended(SEC, SEC, BT_OUTCOME_CANCELLED));
    add(m, ended(SEC, SEC, BT_OUTCOME_FAILED));
    bt_metrics_arrive(m, SEC); /* still running */
    struct bt_summary *s = finish(m, 2 * SEC, 1, 0);
    cr_expect_float_eq(s->slo_attainment_fraction, 2.0 / 12, 1e-12);
    cr_expect_eq(s->finished, 8);
    cr_expect_eq(s->timed_out, 1);
    cr_expect_eq(s->rejected, 1);
    cr_expect_eq(s->rejected_by[BT_REJECT_QUEUE_FULL], 1);
    cr_expect_eq(s->cancelled, 1);
    cr_expect_eq(s->failed, 1);
    cr_expect_eq(s->running, 1);
    cr_expect_float_eq(s->duration_s, 1.4 + 1e-9, 1e-12);
    cr_expect_float_eq(s->goodput_req_per_s, 3 / s->duration_s, 1e-12);
    cr_expect_eq(s->slo_value_s[0], s->ttft.p99_s);
    cr_expect_eq(s->slo_value_s[1], s->tpot.mean_s);
    cr_expect_eq(s->slo_value_s[3], s->e2e.p95_s);
    cr_expect_eq(s->slo_value_s[4], s->e2e.max_s);
}

Test(metrics, a_lost_request_breaks_conservation, .signal = SIGABRT)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    bt_metrics_arrive(m, 0);
    finish(m, SEC, 0, 0);
}

Test(metrics, an_end_without_arrival_asserts, .signal = SIGABRT)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    bt_metrics_arrive(m, 0);
    struct bt_req_record r = record(0, 0, MS, MS, 2);
    bt_metrics_end(m, &r);
    bt_metrics_end(m, &r);
}

Test(metrics, a_finished_request_without_tokens_asserts, .signal = SIGABRT)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    add(m, ended(0, SEC, BT_OUTCOME_FINISHED));
}

Test(metrics, a_gauge_back_in_time_asserts, .signal = SIGABRT)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    struct bt_gauge g = {0};
    bt_metrics_gauge(m, 0, SEC, &g);
    bt_metrics_gauge(m, 0, SEC - 1, &g);
}

/* Integrals are exact: one replica's gauge is a staircase of known area, over windows that double
 * many times. */
Test(metrics, gauges_are_integrated_exactly_across_windows)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){.n_replicas = 2, .window_ns = MS});
    struct bt_rng r;
    bt_rng_init(&r, 3, "metrics", 0);
    int64_t first_ns = 5 * MS + 123;
    struct bt_gauge g[2] = {{.kv_blocks_total = 100, .max_seqs = 8, .max_seqs_config = 8},
                            {.kv_blocks_total = 50, .max_seqs = 8, .max_seqs_config = 8}};
    int64_t t_ns[2] = {0, 0};
    bt_metrics_gauge(m, 0, 0, &g[0]);
    bt_metrics_gauge(m, 1, 0, &g[1]);
    bt_metrics_arrive(m, first_ns);
    double running = 0, waiting = 0, used = 0, total = 0, slots = 0, tokens = 0, blocked = 0;
    for (int i = 0; i < 4000; i++) {
        int k = (int)bt_rng_below(&r, 2);
        int64_t to_ns = t_ns[k] + (int64_t)bt_rng_below(&r, i % 50 == 0 ? 3 * SEC : 5 * MS);
        double dt =
            (double)(to_ns > first_ns ? to_ns - (t_ns[k] > first_ns ? t_ns[k] : first_ns) : 0);
        running += g[k].n_running * dt;
        waiting += g[k].n_waiting * dt;
        used += g[k].kv_blocks_used * dt;
        total += g[k].kv_blocks_total * dt;
        slots += (double)g[k].kv_slots_used * dt;
        tokens += (double)g[k].kv_tokens * dt;
        blocked += g[k].block == BT_BLOCK_KV ? dt : 0.0;
        t_ns[k] = to_ns;
        g[k].n_running = (int32_t)bt_rng_below(&r, 9);
        g[k].n_waiting = (int32_t)bt_rng_below(&r, 3);
        g[k].kv_blocks_used = (int32_t)bt_rng_below(&r, (uint64_t)g[k].kv_blocks_total + 1);
        g[k].kv_slots_used = 16 * g[k].kv_blocks_used;
        g[k].kv_tokens = (int64_t)bt_rng_below(&r, (uint64_t)g[k].kv_slots_used + 1);
        g[k].block = g[k].n_waiting > 0 ? BT_BLOCK_KV : BT_BLOCK_NONE;
        bt_metrics_gauge(m, k, to_ns, &g[k]);
    }
    int64_t horizon_ns = t_ns[0] > t_ns[1] ? t_ns[0] : t_ns[1];
    for (int k = 0; k < 2; k++) {
        double dt = (double)(horizon_ns - t_ns[k]);
        running += g[k].n_running * dt;
        waiting += g[k].n_waiting * dt;
        used += g[k].kv_blocks_used * dt;
        total += g[k].kv_blocks_total * dt;
        slots += (double)g[k].kv_slots_used * dt;
        tokens += (double)g[k].kv_tokens * dt;
        blocked += g[k].block == BT_BLOCK_KV ? dt : 0.0;
    }
    struct bt_summary *s = finish(m, horizon_ns, 1, 0);
    double span = (double)(horizon_ns - first_ns);
    cr_expect_float_eq(s->running_mean, running / span, 1e-9);
    cr_expect_float_eq(s->waiting_mean, waiting / span, 1e-9);
    cr_expect_float_eq(s->kv_used_fraction, used / total, 1e-9);
    cr_expect_float_eq(s->kv_waste_fraction, 1 - tokens / slots, 1e-9);
    cr_expect_float_eq(s->kv_blocked_fraction, blocked / span / 2, 1e-9);
    cr_expect_eq(s->kv_blocks_total, 150);

    cr_expect(s->n_windows > BT_MAX_WINDOWS / 2 - 2 && s->n_windows <= BT_MAX_WINDOWS);
    double area = 0, blocked_area = 0;
    for (int i = 0; i < s->n_windows; i++) {
        const struct bt_window *w = &s->windows[i];
        int64_t start_ns = w->start_ns > first_ns ? w->start_ns : first_ns;
        cr_assert(i == 0 || w->start_ns == s->windows[i - 1].end_ns);
        cr_assert(w->end_ns > start_ns);
        area += w->running_mean * (double)(w->end_ns - start_ns);
        blocked_area += w->kv_blocked_fraction * 2 * (double)(w->end_ns - start_ns);
    }
    cr_expect_eq(s->windows[s->n_windows - 1].end_ns, horizon_ns);
    cr_expect_float_eq(area / running, 1.0, 1e-9);
    cr_expect_float_eq(blocked_area / blocked, 1.0, 1e-9);
}

Test(metrics, the_kv_peak_is_of_one_moment)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){.n_replicas = 2});
    bt_metrics_arrive(m, 0);
    struct bt_gauge g = {.kv_blocks_total = 10, .kv_blocks_used = 7};
    bt_metrics_gauge(m, 0, 0, &g);
    g.kv_blocks_used = 1;
    bt_metrics_gauge(m, 0, 1, &g);
    g.kv_blocks_used = 8;
    bt_metrics_gauge(m, 1, 1, &g);
    struct bt_summary *s = finish(m, SEC, 0, 1);
    cr_expect_eq(s->kv_blocks_peak, 9);
    cr_expect_eq(s->kv_blocks_total, 20);
}

/* Steps: work spread over the windows they span, utilisations of the whole time, fill by busy. */
Test(metrics, steps_are_spread_over_the_windows_they_span)
{
    struct bt_metrics *m =
        create((struct bt_metrics_opts){.peak_flops_per_s = 1e12, .peak_bytes_per_s = 1e11});
    bt_metrics_arrive(m, 0);
    struct bt_gauge g = {.n_running = 4, .max_seqs = 8, .max_seqs_config = 8};
    bt_metrics_gauge(m, 0, 0, &g);
    struct bt_step_usage u = {.start_ns = SEC / 2,
                              .done_ns = 5 * SEC / 2,
                              .busy_ns = SEC,
                              .host_ns = SEC / 2,
                              .flops = 400000000000,
                              .bytes = 80000000000,
                              .n_seqs = 4,
                              .n_prefill_tokens = 10,
                              .n_decode_tokens = 3};
    bt_metrics_step(m, 0, &u);
    struct bt_step_usage many = {.start_ns = 3 * SEC,
                                 .done_ns = 4 * SEC,
                                 .busy_ns = SEC,
                                 .n_seqs = 8,
                                 .n_steps = 50,
                                 .n_decode_tokens = 400};
    bt_metrics_step(m, 0, &many);
    struct bt_summary *s = finish(m, 4 * SEC, 1, 0);
    cr_expect_eq(s->steps, 51);
    cr_expect_eq(s->prefill_tokens, 10);
    cr_expect_eq(s->decode_tokens, 403);
    cr_expect_float_eq(s->gpu_busy_fraction, 0.5, 1e-12);
    cr_expect_float_eq(s->flops_utilization, 0.1, 1e-12);
    cr_expect_float_eq(s->bandwidth_utilization, 0.2, 1e-12);
    cr_expect_float_eq(s->host_fraction, 0.2, 1e-12);
    cr_expect_float_eq(s->batch_fill, 0.75, 1e-12);
    cr_assert_eq(s->n_windows, 4);
    static const double busy[] = {0.25, 0.5, 0.25, 1.0};
    for (int i = 0; i < 4; i++) {
        cr_expect_float_eq(s->windows[i].busy_fraction, busy[i], 1e-12);
        cr_expect_float_eq(s->windows[i].flops_utilization, i < 3 ? busy[i] * 0.4 : 0.0, 1e-12);
    }
}

Test(metrics, unknown_peaks_give_no_utilisation)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    bt_metrics_arrive(m, 0);
    struct bt_summary *s = finish(m, SEC, 1, 0);
    cr_expect(isnan(s->flops_utilization) && isnan(s->bandwidth_utilization));
    cr_expect(isnan(s->windows[0].flops_utilization));
}

Test(metrics, counters_add_up)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    bt_metrics_arrive(m, 0);
    bt_metrics_prefix(m, 100, 0);
    bt_metrics_prefix(m, 300, 160);
    bt_metrics_preempt(m, SEC / 2, true, 1000);
    bt_metrics_preempt(m, 3 * SEC / 2, false, 0);
    bt_metrics_swap_bytes(m, 800);
    bt_metrics_recompute(m, 77);
    struct bt_req_record r = record(0, 0, MS, MS, 2);
    r.degraded = true;
    bt_metrics_end(m, &r);
    struct bt_summary *s = finish(m, 2 * SEC, 0, 0);
    cr_expect_float_eq(s->prefix_hit_fraction, 0.4, 1e-12);
    cr_expect_eq(s->preempt_swap, 1);
    cr_expect_eq(s->preempt_recompute, 1);
    cr_expect_eq(s->windows[0].preempt_swap, 1);
    cr_expect_eq(s->windows[1].preempt_recompute, 1);
    cr_expect_eq(s->swap_bytes, 1800);
    cr_expect_eq(s->recomputed_tokens, 77);
    cr_expect_eq(s->degraded, 1);
    cr_expect_eq(s->windows[0].finished, 1);
    cr_expect_eq(s->windows[0].arrived, 1);
    cr_expect_eq(s->windows[0].ttft_max_ns, MS);
    cr_expect_eq(s->windows[0].e2e_max_ns, 2 * MS);
    cr_expect_eq(s->windows[1].e2e_max_ns, -1);
}

/* Draws with acceptance a per token: the conditional rates are a at every position, while the
 * acceptance rate falls with k. */
Test(metrics, conditional_acceptance_is_told_from_the_rate)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    struct bt_rng r;
    bt_rng_init(&r, 5, "acceptance", 0);
    const double a = 0.598;
    const int32_t k = 4;
    int64_t n_emitted = 0, n_accepted = 0;
    enum { N = 400000 };
    for (int i = 0; i < N; i++) {
        int32_t acc = 0;
        while (acc < k && bt_rng_uniform(&r) < a) {
            acc++;
        }
        bt_metrics_verify(m, k, acc, acc + 1);
        n_emitted += acc + 1;
        n_accepted += acc;
    }
    struct bt_summary *s = finish(m, SEC, 0, 0);
    cr_expect_eq(s->spec_verifications, N);
    cr_expect_eq(s->spec_proposed, (int64_t)N * k);
    cr_expect_eq(s->spec_accepted, n_accepted);
    cr_expect_eq(s->spec_emitted, n_emitted);
    cr_expect_float_eq(s->acceptance_rate, 0.324, 0.002);
    cr_expect_float_eq(s->accepted_len, (1 - pow(a, k + 1)) / (1 - a), 0.01);
    for (int i = 0; i < k; i++) {
        cr_expect_float_eq(s->acceptance_conditional[i], a, 0.006);
    }
    cr_expect(isnan(s->acceptance_conditional[k]));
}

/* A single server with FIFO queue, gauges at every change: Little's law both ways, also cut off in
 * overload with requests alive. */
Test(metrics, littles_law_holds_to_rounding)
{
    static const double loads[] = {0.5, 0.9, 1.3};
    for (int k = 0; k < 3; k++) {
        struct bt_metrics *m = create((struct bt_metrics_opts){0});
        struct bt_rng r;
        bt_rng_init(&r, 9, "metrics", (uint64_t)k);
        enum { N = 20000 };
        int64_t *arrival = malloc(N * sizeof *arrival);
        int64_t t_ns = 0, free_ns = 0, head = 0;
        int64_t *end = malloc(N * sizeof *end);
        for (int i = 0; i < N; i++) {
            t_ns += (int64_t)(1e8 * bt_rng_exponential(&r) / loads[k]);
            arrival[i] = t_ns;
            int64_t start_ns = free_ns > t_ns ? free_ns : t_ns;
            free_ns = end[i] = start_ns + (int64_t)(1e8 * bt_rng_exponential(&r));
        }
        int64_t horizon_ns = t_ns + 1; /* cut off: the queue is not drained */
        for (int i = 0; i <= N; i++) {
            int64_t until_ns = i < N ? arrival[i] : horizon_ns;
            while (head < i && end[head] <= until_ns) {
                int64_t start_ns =
                    head > 0 && end[head - 1] > arrival[head] ? end[head - 1] : arrival[head];
                struct bt_req_record rec =
                    record(arrival[head], start_ns - arrival[head], end[head] - start_ns, 0, 1);
                bt_metrics_end(m, &rec);
                head++;
                struct bt_gauge g = {.n_running = head < i, .n_waiting = (int32_t)(i - head) - 1};
                g.n_waiting = g.n_waiting < 0 ? 0 : g.n_waiting;
                g.block = g.n_waiting > 0 ? BT_BLOCK_SEQS : BT_BLOCK_NONE;
                bt_metrics_gauge(m, 0, rec.end_ns, &g);
            }
            if (i < N) {
                bt_metrics_arrive(m, until_ns);
                struct bt_gauge g = {.n_running = 1, .n_waiting = (int32_t)(i - head)};
                g.block = g.n_waiting > 0 ? BT_BLOCK_SEQS : BT_BLOCK_NONE;
                bt_metrics_gauge(m, 0, until_ns, &g);
            }
        }
        int64_t alive = N - head;
        struct bt_summary *s = finish(m, horizon_ns, alive > 0, alive > 0 ? alive - 1 : 0);
        cr_expect_lt(s->little_error, 1e-9, "load %g: %g", loads[k], s->little_error);
        cr_expect_lt(s->little_gauge_error, 1e-9, "load %g: %g", loads[k], s->little_gauge_error);
        cr_expect_eq(s->finished + alive, N);
        if (k == 1) { /* M/M/1 at 0.9: L = 9, loosely */
            cr_expect_float_eq(s->running_mean + s->waiting_mean, 9.0, 2.0);
        }
        if (k == 2) {
            cr_expect_gt(alive, N / 10);
        }
        cr_expect_eq(s->bottleneck, BT_BOTTLENECK_MAX_SEQS);
        free(arrival);
        free(end);
    }
}

/* A gauge that is never told of the running requests is caught. */
Test(metrics, littles_law_catches_wrong_gauges_and_arrivals)
{
    struct bt_metrics *m = create((struct bt_metrics_opts){0});
    struct bt_gauge g = {.n_running = 0};
    bt_metrics_gauge(m, 0, 0, &g);
    bt_metrics_arrive(m, 0);
    struct bt_req_record r = record(0, 0, SEC, MS, 2);
    bt_metrics_end(m, &r);
    struct bt_summary *s = finish(m, 2 * SEC, 0, 0);
    cr_expect_lt(s->little_error, 1e-12);
    cr_expect_gt(s->little_gauge_error, 0.99);

    m = create((struct bt_metrics_opts){0});
    bt_metrics_arrive(m, SEC / 2); /* the record says 0 */
    bt_metrics_end(m, &r);
    s = finish(m, 2 * SEC, 0, 0);
    cr_expect_gt(s->little_error, 0.4);
}

Test(metrics, finish_may_be_called_on_the_way)
{
    struct bt_metrics *a = create((struct bt_metrics_opts){.window_ns = 10 * MS});
    struct bt_metrics *b = create((struct bt_metrics_opts){.window_ns = 10 * MS});
    struct bt_summary *s = NULL;
    for (int i = 0; i < 500; i++) {
        struct bt_gauge g = {.n_running = i % 7, .kv_blocks_total = 9, .kv_blocks_used = i % 9};
        struct bt_metrics *both[] = {a, b};
        for (int k = 0; k < 2; k++) {
            bt_metrics_gauge(both[k], 0, i * 20 * MS, &g);
            add(both[k], record(i * 20 * MS, MS, MS, MS, 1 + i % 5));
            bt_metrics_deliver(both[k], i * 20 * MS, i % 11 * MS, 1, 3);
        }
        if (i % 50 == 0) {
            s = finish(a, i * 20 * MS + 10 * MS, 0, 0);
            cr_expect_eq(s->finished, i + 1);
        }
    }
    s = finish(a, 11 * SEC, 0, 0);
    struct bt_summary *t = finish(b, 11 * SEC, 0, 0);
    cr_expect_eq(s->itl.p95_s, t->itl.p95_s);
    cr_expect_eq(s->e2e.p99_s, t->e2e.p99_s);
    cr_expect_float_eq(s->running_mean, t->running_mean, 1e-12);
    cr_expect_float_eq(s->little_error, 0.0, 1e-9);
    cr_expect_eq(s->n_windows, t->n_windows);
}
