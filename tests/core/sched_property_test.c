/* Random configurations under random workloads: nothing leaks, nothing is lost, nothing starves. */
#include "tests/core/sched_rig.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static int32_t draw(struct bt_rng *r, int32_t low, int32_t high)
{
    return low + (int32_t)bt_rng_below(r, (uint64_t)(high - low + 1));
}

static bool chance(struct bt_rng *r, int32_t percent)
{
    return draw(r, 1, 100) <= percent;
}

static void draw_memory(struct bt_rng *r, struct bt_sched_opts *o)
{
    static const int32_t sizes[] = {1, 2, 4, 8, 16};
    o->block_tokens = sizes[draw(r, 0, 4)];
    int32_t pool_tokens = draw(r, 24, 160);
    o->n_blocks = pool_tokens / o->block_tokens + 1;
    o->n_host_blocks = chance(r, 25) ? 0 : draw(r, 1, 2 * o->n_blocks);
    o->block_bytes = 1000;
    o->prefix_cache = chance(r, 70);
    o->watermark_blocks = chance(r, 50) ? 0 : draw(r, 0, o->n_blocks / 4);
    if (chance(r, 15)) {
        o->block_tokens_16bit = o->block_tokens > 1 ? o->block_tokens / 2 : 1;
        o->long_above_tokens = draw(r, 8, 60);
    }
    o->preempt = (enum bt_preempt)draw(r, 0, 2);
    o->preempt_goal = (enum bt_preempt_goal)draw(r, 0, 2);
    o->victim = (enum bt_victim)draw(r, 0, 2);
    o->preempt_cost = (struct bt_preempt_cost){.recompute_ns_per_token = 100.0,
                                               .recompute_ns_per_token2 = 1.0,
                                               .swap_out_ns_per_block = 400.0,
                                               .swap_in_ns_per_block = 300.0,
                                               .swap_fixed_ns = 1000.0};
}

static void draw_opts(struct bt_rng *r, struct bt_sched_opts *o)
{
    *o = (struct bt_sched_opts){0};
    draw_memory(r, o);
    o->batching = chance(r, 15) ? BT_BATCHING_STATIC : BT_BATCHING_CONTINUOUS;
    o->max_seqs = draw(r, 1, 12);
    o->max_seqs_auto = chance(r, 25);
    o->chunked_prefill = chance(r, 70);
    o->max_batched_tokens = draw(r, o->max_seqs, chance(r, 50) ? 16 : 64);
    if (o->max_batched_tokens < o->max_seqs) {
        o->max_batched_tokens = o->max_seqs;
    }
    o->max_model_len = draw(r, 32, 120);
    o->over_length = (enum bt_over_length)draw(r, 0, 2);
    o->order = (enum bt_order)draw(r, 0, 2);
    o->priority_preempts = chance(r, 50);
    o->max_requests = 64;
    o->max_waiting = chance(r, 10) ? draw(r, 1, 6) : 0;
    if (chance(r, 25)) {
        o->window_low_ns = draw(r, 0, 3000);
        o->window_high_ns = o->window_low_ns + draw(r, 0, 6000);
    }
    o->inflight_max = draw(r, 1, 3);
    if (chance(r, 35)) {
        o->spec = (struct bt_spec_opts){.k = draw(r, 1, 5),
                                        .k_adaptive = chance(r, 50),
                                        .draft_cost_ratio = 0.1,
                                        .off_above_batch = chance(r, 60) ? draw(r, 1, 8) : 0,
                                        .has_draft_kv = chance(r, 70)};
    }
    if (chance(r, 10)) {
        o->degrade = (struct bt_degrade_opts){.at_waiting = 2, .max_new_tokens = 3};
    }
}

static void draw_users(struct bt_rng *r, struct rig *rig, int32_t n_users)
{
    int64_t t = 0;
    int32_t spread = chance(r, 50) ? 500 : 20000;
    int32_t long_prompts = chance(r, 40) ? 100 : 30;
    bool shares = chance(r, 60);
    for (int32_t i = 0; i < n_users; i++) {
        t += (int64_t)bt_rng_below(r, (uint64_t)spread);
        int32_t max_new = draw(r, 1, 24);
        int32_t out = chance(r, 60) ? max_new : draw(r, 1, max_new);
        int32_t user = rig_add(rig, t, draw(r, 1, long_prompts), max_new, out);
        struct bt_req_spec *spec = &rig->users[user].spec;
        spec->priority = draw(r, 0, 3);
        spec->timeout_ns = chance(r, 15) ? draw(r, 1, 60000) : 0;
        rig->users[user].cancel_ns = chance(r, 8) ? t + draw(r, 1, 60000) : 0;
        if (shares) {
            rig_share(rig, user, (uint64_t)draw(r, 1, 2), draw(r, 0, 64), draw(r, 2, 12));
        }
    }
}

/* Whether a comes before b in the order of the configuration. */
static bool before(const struct rig *rig, int32_t a, int32_t b)
{
    const struct bt_req_record *ra = &rig->users[a].record, *rb = &rig->users[b].record;
    int32_t class_a = 0, class_b = 0;
    if (rig->opts.order == BT_ORDER_PRIORITY) {
        class_a = ra->priority;
        class_b = rb->priority;
    } else if (rig->opts.order == BT_ORDER_SHORTEST) {
        class_a = ra->n_prompt;
        class_b = rb->n_prompt;
    }
    return class_a != class_b ? class_a < class_b : a < b;
}

/* The first of the order is never preempted. */
static void check_first(const struct rig *rig)
{
    int32_t first = 0;
    for (int32_t i = 1; i < rig->n_users; i++) {
        first = before(rig, i, first) ? i : first;
    }
    const struct bt_req_record *r = &rig->users[first].record;
    cr_assert(r->n_preempt_recompute + r->n_preempt_swap == 0, "seed %llu: user %d is the first",
              (unsigned long long)rig->seed, first);
}

static volatile uint64_t current_seed;

/* A failed BT_ASSERT does not know the seed. Only ever followed by the end of the process. */
static void print_seed(int sig)
{
    fprintf(stderr, "seed %llu\n", (unsigned long long)current_seed);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Runs one workload to its end; returns the hash of all plans. */
static uint64_t run_workload(uint64_t seed, int64_t *n_steps)
{
    static struct rig rig;
    current_seed = seed;
    struct bt_rng r;
    bt_rng_init(&r, seed, "workload", 0);
    struct bt_sched_opts o;
    draw_opts(&r, &o);
    rig_init(&rig, &o, seed);
    rig.check = true;
    rig.random = true;
    rig.trace = getenv("BT_SCHED_TRACE") != NULL ? stderr : NULL;
    rig.accept_percent = draw(&r, 0, 100);
    draw_users(&r, &rig, draw(&r, 1, 12));
    cr_assert(rig_run(&rig, 20000), "seed %llu: livelock", (unsigned long long)seed);
    rig_check_ends(&rig);
    check_first(&rig);
    struct bt_sched_state state;
    bt_sched_get_state(rig.sched, &state);
    cr_assert(state.n_waiting + state.n_running + state.n_swapped == 0 && state.n_inflight == 0 &&
                  state.kv_blocks_used == 0 && state.kv_tokens == 0 && state.tokens_waiting == 0,
              "seed %llu: something is left", (unsigned long long)seed);
    static struct bt_summary summary;
    bt_metrics_finish(rig.metrics, rig.now_ns, 0, 0, &summary);
    cr_assert(summary.little_error < 1e-9 && summary.little_gauge_error < 1e-9, "seed %llu: %g %g",
              (unsigned long long)seed, summary.little_error, summary.little_gauge_error);
    uint64_t hash = bt_sched_plan_hash(rig.sched);
    *n_steps += rig.n_steps;
    rig_fini(&rig);
    return hash;
}

/* An urgent request under a full load of less urgent ones: it waits for the steps in flight, for
 * its own prompt in chunks, and for the blocks of its victims to come free (steps or copies). */
static void run_inversion(uint64_t seed)
{
    static struct rig rig;
    current_seed = seed;
    struct bt_rng r;
    bt_rng_init(&r, seed, "inversion", 0);
    struct bt_sched_opts o;
    draw_opts(&r, &o);
    o.batching = BT_BATCHING_CONTINUOUS;
    o.chunked_prefill = true;
    o.order = BT_ORDER_PRIORITY;
    o.priority_preempts = true;
    o.window_low_ns = o.window_high_ns = 0;
    o.max_waiting = 0;
    o.over_length = BT_OVER_ALLOW;
    o.spec.k = chance(&r, 70) ? 0 : o.spec.k;
    o.max_batched_tokens = o.max_seqs + draw(&r, 4, 40);
    rig_init(&rig, &o, seed);
    rig.check = true;
    rig.trace = getenv("BT_SCHED_TRACE") != NULL ? stderr : NULL;
    int32_t pool_tokens =
        o.n_blocks * (o.long_above_tokens > 0 ? o.block_tokens_16bit : o.block_tokens);
    for (int32_t i = 0; i < 14; i++) {
        int32_t user = rig_add(&rig, i * RIG_STEP_NS / 2, draw(&r, 1, pool_tokens / 2), 60, 60);
        rig.users[user].spec.priority = draw(&r, 1, 3);
    }
    int32_t urgent = rig_add(&rig, draw(&r, 1, 40) * RIG_STEP_NS / 2 + 1,
                             draw(&r, 1, pool_tokens / 3 + 1), 3, 3);
    cr_assert(rig_run(&rig, 20000), "seed %llu: livelock", (unsigned long long)seed);
    rig_check_ends(&rig);
    const struct rig_user *u = &rig.users[urgent];
    if (u->record.outcome == BT_OUTCOME_FINISHED) {
        int32_t chunk = o.max_batched_tokens - o.max_seqs;
        chunk = o.spec.k > 0 ? (chunk + 1) / 2 : chunk;
        int64_t chunks = (u->spec.n_prompt + chunk - 1) / chunk;
        int64_t bound = 2 * o.inflight_max + chunks + (o.preempt == BT_PREEMPT_RECOMPUTE ? 1 : 6);
        cr_assert(u->first_step - u->submit_step <= bound, "seed %llu: %lld steps, bound %lld",
                  (unsigned long long)seed, (long long)(u->first_step - u->submit_step),
                  (long long)bound);
        cr_assert(u->record.n_preempt_swap + u->record.n_preempt_recompute == 0);
    }
    rig_fini(&rig);
}

/* BT_SCHED_WORKLOADS raises the number of workloads, BT_SCHED_SEED starts elsewhere. */
static uint64_t from_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static void print_seed_on_signals(void)
{
    signal(SIGABRT, print_seed);
    signal(SIGSEGV, print_seed);
    signal(SIGFPE, print_seed);
}

Test(core_sched_property, priority_inversion_is_bounded, .timeout = 0)
{
    uint64_t n = from_env("BT_SCHED_WORKLOADS", 10000) / 10;
    uint64_t first = from_env("BT_SCHED_SEED", 1);
    print_seed_on_signals();
    for (uint64_t i = 0; i < n; i++) {
        run_inversion(first + i);
    }
}

Test(core_sched_property, random_workloads_keep_every_invariant, .timeout = 0)
{
    uint64_t n = from_env("BT_SCHED_WORKLOADS", 10000);
    uint64_t first = from_env("BT_SCHED_SEED", 1);
    int64_t n_steps = 0;
    print_seed_on_signals();
    for (uint64_t i = 0; i < n; i++) {
        uint64_t hash = run_workload(first + i, &n_steps);
        if (i % 16 == 0) {
            cr_assert_eq(hash, run_workload(first + i, &n_steps), "seed %llu: not repeatable",
                         (unsigned long long)(first + i));
        }
    }
    cr_log_info("%llu workloads, %lld steps", (unsigned long long)n, (long long)n_steps);
}
