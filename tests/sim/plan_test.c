/* The capacity search against direct simulations of what it answers. */
#include "sim/plan/bound.h"
#include "sim/plan/plan.h"
#include "sim/plan/rate.h"
#include "sim/plan/stream.h"
#include "sim/plan/trial.h"
#include "sim/workload/spec.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CANDIDATES = 24 };

/* Two GPUs, three weight formats, two KV formats, two block sizes. */
struct world {
    double rate_per_s;
    double cv;             /* > 0: Gamma arrivals */
    int32_t max_model_len; /* 0: the model's */
    uint64_t calm_seed;    /* > 0: any other has `rush` times the rate */
    double rush;
    bool int8_unknown; /* accuracy of int8 weights is not known */
    bool no_int4_on_a100;
};

static void config_at(void *ctx, int64_t i, struct bt_config *c)
{
    static const char *const gpus[] = {"h200", "a100"};
    bt_config_init(c);
    c->max_model_len = ((const struct world *)ctx)->max_model_len;
    snprintf(c->model, sizeof c->model, "llama-2-7b");
    snprintf(c->gpu, sizeof c->gpu, "%s", gpus[i % 2]);
    static const int32_t weights[] = {BT_WEIGHT_FP16, BT_WEIGHT_INT8, BT_WEIGHT_INT4_G128};
    c->weights = weights[i / 2 % 3];
    c->kv_dtype = i / 6 % 2 == 0 ? BT_KV_FP16 : BT_KV_INT8;
    c->kv_block_tokens = i / 12 % 2 == 0 ? 16 : 32;
    c->replicas = BT_AUTO;
    c->max_seqs = 64;
}

static enum bt_code find_model(void *ctx, const char *name, struct bt_arch *out,
                               struct bt_error *err)
{
    (void)ctx;
    if (strcmp(name, "llama-2-7b") != 0) {
        BT_FAIL(err, BT_ERR_NOTFOUND, 0, "model: \"%s\" is not known", name);
    }
    *out = fixture_7b();
    return BT_OK;
}

static enum bt_code find_gpu(void *ctx, const char *name, struct bt_gpu *out, struct bt_error *err)
{
    (void)ctx;
    (void)err;
    *out = strcmp(name, "h200") == 0 ? fixture_h200() : fixture_a100();
    return BT_OK;
}

static double gpu_price(void *ctx, const char *gpu)
{
    (void)ctx;
    return strcmp(gpu, "h200") == 0 ? 3.5 : 1.4;
}

static bool supported(void *ctx, const char *stack, const struct bt_gpu *gpu,
                      enum bt_weight_format w, enum bt_act_format a, enum bt_kv_format kv,
                      char *reason, size_t reason_bytes)
{
    (void)stack;
    (void)a;
    (void)kv;
    const struct world *world = ctx;
    bool no = world->no_int4_on_a100 && w == BT_WEIGHT_INT4_G128 && gpu->family == BT_GPU_AMPERE;
    if (no) {
        snprintf(reason, reason_bytes, "int4 is not there");
    }
    return !no;
}

static double accuracy_drop(void *ctx, const struct bt_arch *arch, enum bt_weight_format w,
                            enum bt_act_format a, enum bt_kv_format kv, char *source, size_t n)
{
    (void)arch;
    (void)a;
    (void)kv;
    const struct world *world = ctx;
    snprintf(source, n, "the test");
    return w == BT_WEIGHT_FP16                          ? 0
           : w == BT_WEIGHT_INT8 && world->int8_unknown ? NAN
           : w == BT_WEIGHT_INT8                        ? 0.2
                                                        : 2.0;
}

static struct bt_workload_spec workload_of(double rate_per_s)
{
    return (struct bt_workload_spec){
        .kind = BT_WORKLOAD_GENERATED,
        .arrival = BT_ARRIVAL_POISSON,
        .rate_per_s = rate_per_s,
        .duration_s = 12,
        .prompt = {.kind = BT_DIST_EXPONENTIAL, .mean = 300, .clamp_max = 2000},
        .output = {.kind = BT_DIST_EXPONENTIAL, .mean = 60, .clamp_max = 500},
    };
}

static enum bt_code make_source(void *ctx, uint64_t seed, struct bt_source **out,
                                struct bt_error *err)
{
    const struct world *world = ctx;
    bool rush = world->calm_seed > 0 && seed != world->calm_seed;
    struct bt_workload_spec w = workload_of(world->rate_per_s * (rush ? world->rush : 1));
    if (world->cv > 0) {
        w.arrival = BT_ARRIVAL_GAMMA;
        w.cv = world->cv;
    }
    return bt_source_create(&w, seed, out, err);
}

static struct bt_plan_env env_of(struct world *w)
{
    return (struct bt_plan_env){.ctx = w,
                                .config = config_at,
                                .find_model = find_model,
                                .find_gpu = find_gpu,
                                .gpu_price = gpu_price,
                                .supported = supported,
                                .accuracy_drop = accuracy_drop,
                                .make_source = make_source};
}

static const struct bt_slo SLOS[] = {
    {.metric = BT_SLO_E2E, .stat = BT_STAT_P95, .limit_ns = 4000000000},
    {.metric = BT_SLO_TTFT, .stat = BT_STAT_P90, .limit_ns = 500000000},
};

static struct bt_plan_spec spec_of(void)
{
    return (struct bt_plan_spec){.n_candidates = N_CANDIDATES,
                                 .seed = 3,
                                 .warmup_fraction = 0.1,
                                 .slos = SLOS,
                                 .n_slos = 2,
                                 .accuracy_drop_points = NAN,
                                 .budget_usd_per_h = NAN,
                                 .jobs = 2,
                                 .seeds_max = 4,
                                 .seeds_vary = true};
}

static struct bt_plan_answer search(const struct bt_plan_spec *spec, struct world *w)
{
    struct bt_plan_env env = env_of(w);
    struct bt_plan_answer a;
    struct bt_error err = {0};
    cr_assert_eq(bt_plan_search(spec, &env, &a, &err), BT_OK, "%s", err.msg);
    return a;
}

/* The workload's requests under the first seed. */
static struct bt_stream stream_of(const struct bt_plan_spec *spec, struct world *w)
{
    struct bt_source *source = NULL;
    struct bt_stream stream;
    cr_assert_eq(make_source(w, spec->seed, &source, NULL), BT_OK);
    cr_assert_eq(bt_stream_read(source, &stream, NULL), BT_OK);
    bt_source_destroy(source);
    return stream;
}

/* One share, central step times, first seed: what the search asked. */
static bool holds(const struct bt_plan_spec *spec, struct world *w, const struct bt_config *config,
                  int32_t replicas)
{
    struct bt_plan_env env = env_of(w);
    struct bt_stream stream = stream_of(spec, w);
    struct bt_deploy d, degrade;
    cr_assert_eq(bt_plan_deploy(&env, config, &d, &degrade, NULL), BT_OK);
    struct bt_trial t = {.deploy = &d,
                         .stream = &stream,
                         .replicas = replicas,
                         .one_share = true,
                         .rate_scale = 1,
                         .step_scale = 1,
                         .seed = spec->seed};
    struct bt_trial_result r;
    cr_assert_eq(bt_trial_run(spec, &env, &t, &r, NULL, NULL), BT_OK);
    bt_deploy_fini(&d);
    bt_stream_fini(&stream);
    return r.holds;
}

Test(plan, the_answer_does_not_depend_on_the_number_of_threads)
{
    struct world w = {.rate_per_s = 60};
    struct bt_plan_spec spec = spec_of();
    spec.jobs = 1;
    struct bt_plan_answer one = search(&spec, &w);
    spec.jobs = 5;
    struct bt_plan_answer five = search(&spec, &w);
    cr_assert_eq(one.n_candidates, five.n_candidates);
    cr_expect_eq(one.simulations, five.simulations);
    for (int32_t i = 0; i < one.n_candidates; i++) {
        const struct bt_plan_candidate *a = &one.candidates[i], *b = &five.candidates[i];
        cr_expect_str_eq(a->reason, b->reason);
        cr_expect_eq(a->replicas, b->replicas);
        cr_expect_eq(a->verdict, b->verdict);
        cr_expect_eq(memcmp(a->ci, b->ci, sizeof a->ci), 0);
    }
    bt_plan_answer_fini(&one);
    bt_plan_answer_fini(&five);
}

/* Exhaustive search is the brute force: per group it must find no fewer replicas than the quick
 * one's best, and each size must be the least that holds. */
Test(plan, each_group_best_is_the_least_that_holds, .timeout = 60)
{
    struct world w = {.rate_per_s = 90};
    struct bt_plan_spec spec = spec_of();
    spec.seeds_max = 1;
    struct bt_plan_answer quick = search(&spec, &w);
    spec.exhaustive = true;
    struct bt_plan_answer full = search(&spec, &w);
    for (int32_t g = 0; g < 2; g++) {
        for (int32_t f = 0; f < 3; f++) {
            struct bt_config key;
            config_at(&w, g + 2 * f, &key);
            int32_t least_quick = INT32_MAX, least_full = INT32_MAX;
            for (int32_t i = 0; i < N_CANDIDATES; i++) {
                const struct bt_plan_candidate *a = &quick.candidates[i], *b = &full.candidates[i];
                bool ka = strcmp(a->config.gpu, key.gpu) == 0 && a->config.weights == key.weights;
                bool kb = strcmp(b->config.gpu, key.gpu) == 0 && b->config.weights == key.weights;
                if (ka && a->stage != BT_STAGE_MEMORY && a->verdict != BT_INFEASIBLE &&
                    !a->simulated && a->replicas < least_quick) {
                    least_quick = a->replicas;
                }
                if (kb && !b->simulated && b->verdict != BT_INFEASIBLE) {
                    cr_expect(holds(&spec, &w, &b->config, b->replicas));
                    cr_expect(b->replicas == 1 || !holds(&spec, &w, &b->config, b->replicas - 1),
                              "%s weights %d: %d replicas are not the least", key.gpu, key.weights,
                              b->replicas);
                    least_full = b->replicas < least_full ? b->replicas : least_full;
                }
            }
            if (least_quick != INT32_MAX && least_full != INT32_MAX) {
                cr_expect_leq(least_full, least_quick);
            }
        }
    }
    bt_plan_answer_fini(&quick);
    bt_plan_answer_fini(&full);
}

Test(plan, nothing_is_ever_over_the_budget)
{
    struct world w = {.rate_per_s = 80};
    for (int32_t k = 0; k < 6; k++) {
        struct bt_plan_spec spec = spec_of();
        spec.seeds_max = 1;
        spec.budget_usd_per_h = k < 3 ? 1 + 3.0 * k : NAN;
        spec.budget_cards = k < 3 ? 0 : k - 2;
        struct bt_plan_answer a = search(&spec, &w);
        for (int32_t i = 0; i < a.n_candidates; i++) {
            const struct bt_plan_candidate *c = &a.candidates[i];
            if (c->verdict != BT_INFEASIBLE) {
                cr_expect(isnan(spec.budget_usd_per_h) ||
                          c->cost_usd_per_h <= spec.budget_usd_per_h + 1e-9);
                cr_expect(spec.budget_cards == 0 || c->cards <= spec.budget_cards);
                cr_expect_float_eq(c->cost_usd_per_h, c->cards * gpu_price(&w, c->config.gpu),
                                   1e-9);
            }
            cr_expect_neq(c->reason[0], '\0', "candidate %d has no reason", i);
        }
        bt_plan_answer_fini(&a);
    }
}

Test(plan, accuracy_and_kernels_decide_verdicts)
{
    struct world w = {.rate_per_s = 30, .int8_unknown = true, .no_int4_on_a100 = true};
    struct bt_plan_spec spec = spec_of();
    spec.accuracy_drop_points = 1.5;
    struct bt_plan_answer a = search(&spec, &w);
    for (int32_t i = 0; i < a.n_candidates; i++) {
        const struct bt_plan_candidate *c = &a.candidates[i];
        if (c->config.weights == BT_WEIGHT_INT4_G128) {
            cr_expect_eq(c->verdict, BT_INFEASIBLE);
            bool a100 = strcmp(c->config.gpu, "a100") == 0;
            cr_expect_eq(c->stage, a100 ? BT_STAGE_KERNEL : BT_STAGE_ACCURACY);
            cr_expect_str_eq(c->reason,
                             a100 ? "no such kernel: int4 is not there"
                                  : "loses 2.00 points of accuracy, 1.50 allowed (the test)");
        }
        if (c->config.weights == BT_WEIGHT_INT8) {
            cr_expect_neq(c->verdict, BT_FEASIBLE, "unknown accuracy must not be feasible");
        }
    }
    bt_plan_answer_fini(&a);
}

Test(plan, what_is_confirmed_has_intervals_costs_and_metrics)
{
    struct world w = {.rate_per_s = 60};
    struct bt_plan_spec spec = spec_of();
    struct bt_plan_answer a = search(&spec, &w);
    const struct bt_plan_candidate *c = &a.candidates[0];
    cr_assert(c->simulated);
    cr_assert_not_null(c->summary);
    cr_expect_geq(c->ci[0].n_seeds, 3);
    cr_expect_leq(c->ci[0].low_s, c->ci[0].mean_s);
    cr_expect_geq(c->ci[0].high_s, c->ci[0].mean_s);
    cr_expect_leq(c->ci[0].mean_s, 4.0);
    cr_expect_gt(c->capacity_req_per_s, 0.9 * a.rate_req_per_s);
    cr_expect_gt(c->cost_usd_per_mtok, 0);
    cr_expect_gt(a.n_sensitivity, 4);
    /* Costs per request and hour agree. */
    double per_h = c->cost_usd_per_1k_req / 1e3 * c->summary->throughput_req_per_s * 3600;
    cr_expect_float_eq(per_h, c->cost_usd_per_h, 1e-9 * per_h);
    bt_plan_answer_fini(&a);
}

/* The bound must never exclude what a simulation holds. */
Test(plan, the_bound_is_optimistic)
{
    struct world w = {.rate_per_s = 120};
    struct bt_plan_env env = env_of(&w);
    struct bt_plan_spec spec = spec_of();
    struct bt_source *source = NULL;
    struct bt_stream stream;
    cr_assert_eq(make_source(&w, 3, &source, NULL), BT_OK);
    cr_assert_eq(bt_stream_read(source, &stream, NULL), BT_OK);
    bt_source_destroy(source);
    for (int64_t i = 0; i < N_CANDIDATES; i++) {
        struct bt_config c;
        config_at(&w, i, &c);
        struct bt_deploy d, degrade;
        cr_assert_eq(bt_plan_deploy(&env, &c, &d, &degrade, NULL), BT_OK);
        struct bt_bound b;
        bt_bound_compute(&spec, &d, &stream, &b);
        cr_expect_eq(b.slo, -1);
        cr_expect_geq(b.replicas, 1);
        if (b.replicas > 1) {
            cr_expect_not(holds(&spec, &w, &c, b.replicas - 1), "candidate %lld at %d",
                          (long long)i, b.replicas - 1);
        }
        bt_deploy_fini(&d);
    }
    bt_stream_fini(&stream);
}

Test(plan, a_limit_that_even_lone_requests_miss_is_excluded_without_simulation)
{
    struct world w = {.rate_per_s = 5};
    struct bt_plan_spec spec = spec_of();
    static const struct bt_slo hard[] = {
        {.metric = BT_SLO_E2E, .stat = BT_STAT_P50, .limit_ns = 1000000}};
    spec.slos = hard;
    spec.n_slos = 1;
    struct bt_plan_answer a = search(&spec, &w);
    cr_expect_eq(a.best, -1);
    cr_expect_eq(a.simulations, 0);
    for (int32_t i = 0; i < a.n_candidates; i++) {
        cr_expect_eq(a.candidates[i].stage, BT_STAGE_BOUND);
    }
    bt_plan_answer_fini(&a);
}

Test(plan, the_highest_rate_holds_and_the_next_does_not, .timeout = 60)
{
    struct world w = {.rate_per_s = 20};
    struct bt_plan_env env = env_of(&w);
    struct bt_plan_spec spec = spec_of();
    struct bt_config c;
    config_at(&w, 0, &c);
    c.replicas = 2;
    struct bt_deploy d, degrade;
    cr_assert_eq(bt_plan_deploy(&env, &c, &d, &degrade, NULL), BT_OK);
    struct bt_max_rate m;
    struct bt_error err = {0};
    cr_assert_eq(bt_plan_max_rate(&spec, &env, &d, NULL, 2, 0.03, &m, &err), BT_OK, "%s", err.msg);
    cr_expect_gt(m.rate_req_per_s, 20);
    cr_expect_gt(m.first_bad_req_per_s, m.rate_req_per_s);
    cr_expect_leq(m.first_bad_req_per_s, 1.031 * m.rate_req_per_s);
    for (int32_t i = 0; i < m.n_probes; i++) {
        cr_expect(i == 0 || m.probes[i].rate_req_per_s > m.probes[i - 1].rate_req_per_s);
        cr_expect_eq(m.probes[i].holds, m.probes[i].rate_req_per_s <= m.rate_req_per_s);
    }
    cr_expect_geq(m.broken_slo, 0);
    bt_deploy_fini(&d);
}

Test(plan, bad_questions_are_named)
{
    struct world w = {.rate_per_s = 5};
    struct bt_plan_env env = env_of(&w);
    struct bt_plan_spec spec = spec_of();
    struct bt_plan_answer a;
    struct bt_error err = {0};
    spec.n_slos = 0;
    cr_expect_eq(bt_plan_search(&spec, &env, &a, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "plan: expected at least one SLO on latency, got none");
    err = (struct bt_error){0};
    spec = spec_of();
    spec.n_candidates = 0;
    cr_expect_eq(bt_plan_search(&spec, &env, &a, &err), BT_ERR_ARG);
}

/* One replica or sixty thousand: what is too long for the model stays refused. */
Test(plan, growing_ends_where_it_cannot_help)
{
    struct world w = {.rate_per_s = 30, .max_model_len = 700};
    struct bt_plan_spec spec = spec_of();
    spec.seeds_max = 1;
    struct bt_plan_answer a = search(&spec, &w);
    cr_expect_eq(a.best, -1);
    cr_expect_leq(a.simulations, 12 * N_CANDIDATES);
    for (int32_t i = 0; i < a.n_candidates; i++) {
        const struct bt_plan_candidate *c = &a.candidates[i];
        cr_expect_eq(c->stage, BT_STAGE_SLO);
        cr_expect_leq(c->replicas, 16);
        cr_expect_not_null(strstr(c->reason, "over max_model_len"), "%s", c->reason);
    }
    bt_plan_answer_fini(&a);
}

/* Limits that a lone request only just misses: its bound allows them, no size holds them. */
Test(plan, growing_ends_where_requests_are_alone, .timeout = 60)
{
    struct world w = {.rate_per_s = 20};
    struct bt_plan_spec spec = spec_of();
    spec.seeds_max = 1;
    for (int32_t ms = 1000; ms <= 1200; ms += 200) {
        const struct bt_slo tight = {
            .metric = BT_SLO_E2E, .stat = BT_STAT_P90, .limit_ns = (int64_t)ms * 1000000};
        spec.slos = &tight;
        spec.n_slos = 1;
        struct bt_plan_answer a = search(&spec, &w);
        for (int32_t i = 0; i < a.n_candidates; i++) {
            cr_expect_leq(a.candidates[i].replicas, 200, "%s", a.candidates[i].reason);
        }
        bt_plan_answer_fini(&a);
    }
}

/* All replicas with routing do better than one of them on every N-th request of a bursty stream,
 * or worse: the size is the least that holds with all of them. */
Test(plan, what_is_confirmed_is_the_least_that_holds_with_routing, .timeout = 60)
{
    struct world w = {.rate_per_s = 60, .cv = 4};
    struct bt_plan_env env = env_of(&w);
    struct bt_plan_spec spec = spec_of();
    spec.seeds_vary = false;
    struct bt_plan_answer a = search(&spec, &w);
    struct bt_stream stream = stream_of(&spec, &w);
    int32_t n_checked = 0;
    for (int32_t i = 0; i < a.n_candidates; i++) {
        const struct bt_plan_candidate *c = &a.candidates[i];
        if (!c->simulated || c->verdict == BT_INFEASIBLE) {
            continue;
        }
        struct bt_deploy d, degrade;
        cr_assert_eq(bt_plan_deploy(&env, &c->config, &d, &degrade, NULL), BT_OK);
        /* Feasible: with slower steps; else as predicted. */
        double scale = c->verdict == BT_FEASIBLE ? 1 + c->step_error : 1;
        for (int32_t n = c->replicas; n >= 1 && n >= c->replicas - 1; n--) {
            struct bt_trial t = {.deploy = &d,
                                 .stream = &stream,
                                 .replicas = n,
                                 .rate_scale = 1,
                                 .step_scale = scale,
                                 .seed = spec.seed};
            struct bt_trial_result r;
            cr_assert_eq(bt_trial_run(&spec, &env, &t, &r, NULL, NULL), BT_OK);
            cr_expect_eq(r.holds, n == c->replicas, "%s: %d replicas of %d: %s", c->config.gpu, n,
                         c->replicas, c->reason);
        }
        bt_deploy_fini(&d);
        n_checked++;
    }
    cr_expect_gt(n_checked, 0);
    bt_stream_fini(&stream);
    bt_plan_answer_fini(&a);
}

/* A limit is blamed only when it is broken, and a seed that fails is heard. */
Test(plan, a_second_seed_that_fails_is_an_answer, .timeout = 60)
{
    struct world w = {.rate_per_s = 20, .calm_seed = 3, .rush = 20};
    struct bt_plan_spec spec = spec_of();
    spec.budget_cards = 1;
    for (int32_t seeds = 2; seeds <= 4; seeds += 2) {
        spec.seeds_max = seeds;
        struct bt_plan_answer a = search(&spec, &w);
        cr_expect_eq(a.best, -1);
        for (int32_t i = 0; i < a.n_candidates; i++) {
            const struct bt_plan_candidate *c = &a.candidates[i];
            if (c->simulated) {
                cr_expect_eq(c->verdict, BT_INFEASIBLE, "%s", c->reason);
                cr_expect_null(strstr(c->reason, "the limits hold"), "%s", c->reason);
            }
        }
        bt_plan_answer_fini(&a);
    }
}

Test(plan, one_seed_of_generated_load_is_no_interval)
{
    struct world w = {.rate_per_s = 20};
    struct bt_plan_spec spec = spec_of();
    spec.seeds_max = 1;
    struct bt_plan_answer a = search(&spec, &w);
    cr_expect_eq(a.candidates[0].verdict, BT_MARGINAL);
    cr_expect_not_null(strstr(a.candidates[0].reason, "1 seed alone has no interval"), "%s",
                       a.candidates[0].reason);
    bt_plan_answer_fini(&a);
}

/* A run that is stopped has not yet served most requests; that is no fault of the other limits. */
Test(plan, the_limit_that_broke_is_the_one_named)
{
    struct world w = {.rate_per_s = 60};
    struct bt_plan_env env = env_of(&w);
    static const struct bt_slo slos[] = {
        {.metric = BT_SLO_TTFT, .stat = BT_STAT_P95, .limit_ns = 60000000000},
        {.metric = BT_SLO_E2E, .stat = BT_STAT_P95, .limit_ns = 100000000},
    };
    struct bt_plan_spec spec = spec_of();
    spec.slos = slos;
    struct bt_source *source = NULL;
    struct bt_stream stream;
    cr_assert_eq(make_source(&w, 3, &source, NULL), BT_OK);
    cr_assert_eq(bt_stream_read(source, &stream, NULL), BT_OK);
    bt_source_destroy(source);
    struct bt_config c;
    config_at(&w, 0, &c);
    struct bt_deploy d, degrade;
    cr_assert_eq(bt_plan_deploy(&env, &c, &d, &degrade, NULL), BT_OK);
    struct bt_trial t = {
        .deploy = &d, .stream = &stream, .replicas = 1, .rate_scale = 1, .step_scale = 1};
    struct bt_trial_result r;
    cr_assert_eq(bt_trial_run(&spec, &env, &t, &r, NULL, NULL), BT_OK);
    cr_expect(r.stopped);
    cr_expect_eq(r.broken_slo, 1);
    bt_deploy_fini(&d);
    bt_stream_fini(&stream);
}

/* Each row of the sensitivity, run again by hand. */
Test(plan, the_sensitivity_says_what_a_run_says, .timeout = 60)
{
    struct world w = {.rate_per_s = 60};
    struct bt_plan_env env = env_of(&w);
    struct bt_plan_spec spec = spec_of();
    spec.seeds_vary = false;
    struct bt_plan_answer a = search(&spec, &w);
    const struct bt_plan_candidate *best = &a.candidates[0];
    cr_assert(best->simulated);
    struct bt_stream stream = stream_of(&spec, &w);
    int32_t n_costed = 0;
    for (int32_t i = 0; i < a.n_sensitivity; i++) {
        const struct bt_plan_sensitivity *row = &a.sensitivity[i];
        struct bt_config c = best->config;
        bool sizes = strcmp(row->field->path, "replicas") == 0;
        int32_t replicas = sizes ? (int32_t)strtol(row->value, NULL, 10) : best->replicas;
        if (!sizes) {
            cr_assert_eq(bt_config_set(&c, row->field, row->value, NULL, NULL), BT_OK);
        }
        struct bt_deploy d, degrade;
        cr_assert_eq(bt_plan_deploy(&env, &c, &d, &degrade, NULL), BT_OK);
        struct bt_trial t = {.deploy = &d,
                             .stream = &stream,
                             .replicas = replicas,
                             .rate_scale = 1,
                             .step_scale = 1,
                             .seed = spec.seed,
                             .to_the_end = true};
        struct bt_trial_result r;
        cr_assert_eq(bt_trial_run(&spec, &env, &t, &r, NULL, NULL), BT_OK);
        cr_expect_eq(r.holds, row->holds, "%s=%s", row->field->path, row->value);
        cr_expect_float_eq(r.slo_value_s[0], row->slo_value_s, 1e-12);
        if (!isnan(row->cost_usd_per_h)) {
            double needed = row->cost_usd_per_h / gpu_price(&w, c.gpu);
            for (int32_t less = 0; less < (row->holds ? 1 : 2); less++) {
                t.replicas = (int32_t)lround(needed) - less;
                cr_assert_eq(bt_trial_run(&spec, &env, &t, &r, NULL, NULL), BT_OK);
                cr_expect_eq(r.holds, less == 0, "%s=%s: %d replicas", row->field->path, row->value,
                             t.replicas);
            }
            n_costed++;
        }
        bt_deploy_fini(&d);
    }
    cr_expect_gt(n_costed, 4);
    bt_stream_fini(&stream);
    bt_plan_answer_fini(&a);
}
