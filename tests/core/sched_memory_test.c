/* KV memory: prefix cache, preemption, swap, and the patterns of trouble that real engines have
 * reported when memory is full. */
#include "tests/core/sched_rig.h"

#include <criterion/criterion.h>

static struct rig rig;

static struct bt_sched_opts base_opts(void)
{
    return (struct bt_sched_opts){
        .max_seqs = 8,
        .max_batched_tokens = 256,
        .chunked_prefill = true,
        .max_model_len = 256,
        .n_blocks = 64,
        .block_tokens = 16,
        .block_bytes = 1024,
        .prefix_cache = true,
        .inflight_max = 1,
        .max_requests = 64,
    };
}

static void start(const struct bt_sched_opts *o)
{
    rig_init(&rig, o, 1);
    rig.check = true;
}

static struct bt_sched_state state(void)
{
    struct bt_sched_state st;
    bt_sched_get_state(rig.sched, &st);
    return st;
}

static const struct bt_step_plan *plan(void)
{
    const struct bt_step_plan *p;
    int64_t wake_ns;
    rig_plan(&rig, &p, &wake_ns);
    return p;
}

static void step(void)
{
    cr_assert_not_null(plan());
    rig_complete(&rig);
}

static const struct bt_req_record *record(int32_t user)
{
    return &rig.users[user].record;
}

static void run_all(void)
{
    cr_assert(rig_run(&rig, 20000));
    rig_check_ends(&rig);
    cr_expect_eq(state().kv_blocks_used, 0);
}

static int32_t add(int32_t n_prompt, int32_t max_new)
{
    return rig_add(&rig, rig.now_ns, n_prompt, max_new, max_new);
}

static int32_t add_now(int32_t n_prompt, int32_t max_new)
{
    int32_t user = add(n_prompt, max_new);
    rig_submit(&rig, user);
    return user;
}

static int32_t add_shared(int32_t n_prompt, int32_t n_shared, int32_t max_new)
{
    int32_t user = add(n_prompt, max_new);
    rig_share(&rig, user, 5, n_shared, 16);
    rig_submit(&rig, user);
    return user;
}

Test(core_sched_memory, shared_prefix_is_computed_once)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    add_shared(100, 64, 4);
    step();
    int32_t second = add_shared(90, 64, 4);
    const struct bt_step_plan *p = plan();
    cr_assert_eq(p->n_seqs, 2);
    cr_expect_eq(p->seqs[1].ctx, 64);
    cr_expect_eq(p->seqs[1].n_tokens, 26);
    cr_expect_eq(p->seqs[0].blocks[3], p->seqs[1].blocks[3]);
    cr_expect_neq(p->seqs[0].blocks[4], p->seqs[1].blocks[4]);
    rig_complete(&rig);
    run_all();
    cr_expect_eq(record(second)->n_cached, 64);
    cr_expect_eq(state().kv_blocks_cached, 7); /* 6 whole blocks of the first, 1 of the second */
    rig_fini(&rig);
}

Test(core_sched_memory, whole_prompt_cached_and_aligned_copies_the_last_block)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    add_shared(64, 64, 8);
    step();
    int32_t twin = add_shared(64, 64, 8);
    cr_expect_eq(bt_sched_cached_tokens(rig.sched, &rig.users[twin].spec), 63);
    const struct bt_step_plan *p = plan();
    cr_assert_eq(p->n_copies, 1);
    cr_expect_eq(p->copies[0].kind, BT_COPY_COW);
    cr_assert_eq(p->n_decode_seqs, 2); /* one token left: as a decode */
    cr_expect_eq(p->seqs[1].ctx, 63);
    cr_expect_eq(p->copies[0].src[0], p->seqs[0].blocks[3]);
    cr_expect_eq(p->copies[0].dst[0], p->seqs[1].blocks[3]);
    rig_complete(&rig);
    run_all();
    cr_expect_eq(record(twin)->n_cached, 63);
    rig_fini(&rig);
}

Test(core_sched_memory, twins_in_flight_do_not_see_each_other)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    add_shared(64, 64, 4);
    add_shared(64, 64, 4);
    const struct bt_step_plan *p = plan();
    cr_expect_eq(p->n_prefill_tokens, 128); /* nothing is published before it is computed */
    rig_complete(&rig);
    run_all();
    rig_fini(&rig);
}

Test(core_sched_memory, prefixes_are_shared_within_a_kv_class_only)
{
    struct bt_sched_opts o = base_opts();
    o.block_tokens_16bit = 8;
    o.long_above_tokens = 100;
    start(&o);
    add_shared(64, 64, 4);
    run_all();
    int32_t large = add(64, 60);
    rig_share(&rig, large, 5, 64, 16);
    rig_submit(&rig, large);
    const struct bt_step_plan *p = plan();
    cr_expect_eq(p->seqs[0].kv_class, 1);
    cr_expect_eq(p->seqs[0].ctx, 0);
    cr_expect_eq(p->seqs[0].n_blocks, 8);
    rig_complete(&rig);
    run_all();
    rig_fini(&rig);
}

Test(core_sched_memory, newest_is_preempted_and_comes_back_at_its_place)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 8;
    start(&o);
    add_now(46, 30);
    add_now(46, 30);
    add_now(33, 4); /* three blocks where two are free: waits */
    run_all();
    cr_expect_eq(record(0)->n_preempt_recompute, 0);
    cr_expect_eq(record(1)->n_preempt_recompute, 1);
    cr_expect_geq(record(2)->scheduled_ns, record(0)->end_ns); /* not before the victim is back */
    cr_expect_eq(state().n_preempts, 1);
    rig_fini(&rig);
}

Test(core_sched_memory, published_blocks_of_a_victim_are_found_again)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 9;
    start(&o);
    int32_t first = add_now(46, 60);
    int32_t victim = add_shared(60, 48, 30);
    while (state().n_preempts == 0) {
        step();
    }
    bt_sched_cancel(rig.sched, rig.users[first].handle, rig.now_ns);
    const struct bt_step_plan *p = plan();
    cr_assert_eq(p->n_seqs, 1);
    cr_expect_eq(p->seqs[0].user, (uint64_t)victim);
    cr_expect_gt(p->seqs[0].n_generated, 0);
    /* Its prompt's three blocks and its own fourth: free blocks are taken before cached ones. */
    cr_expect_eq(p->seqs[0].ctx, 64);
    rig_complete(&rig);
    run_all();
    rig_fini(&rig);
}

Test(core_sched_memory, a_victim_of_unique_content_finds_what_is_left_of_its_own)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 8;
    for (int32_t cache = 0; cache < 2; cache++) {
        o.prefix_cache = cache != 0;
        start(&o);
        int32_t first = add_now(46, 60);
        int32_t victim = add_now(46, 30);
        while (state().n_preempts == 0) {
            step();
        }
        bt_sched_cancel(rig.sched, rig.users[first].handle, rig.now_ns);
        const struct bt_step_plan *p = plan();
        cr_assert_eq(p->n_seqs, 1);
        cr_expect_eq(p->seqs[0].user, (uint64_t)victim);
        cr_expect_eq(p->seqs[0].ctx, cache != 0 ? 48 : 0); /* the first took the last */
        rig_complete(&rig);
        run_all();
        cr_expect_eq(record(victim)->n_cached, 0); /* nothing of it was known when it came */
        rig_fini(&rig);
    }
}

/* Who is preempted first. */
static int32_t preempted_user(enum bt_victim victim)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 11;
    o.victim = victim;
    start(&o);
    add_now(31, 30); /* first of the order */
    add_now(20, 30); /* 1: the first in need */
    add_now(50, 30); /* 2: largest */
    step();
    step();
    add_now(20, 30); /* 3: newest, least progress */
    bool planned[4] = {false};
    while (state().n_preempts == 0) {
        const struct bt_step_plan *p = plan();
        for (int32_t i = 0; i < 4; i++) {
            planned[i] = false;
        }
        for (int32_t i = 0; i < p->n_seqs; i++) {
            planned[p->seqs[i].user] = true;
        }
        rig_complete(&rig);
    }
    int32_t user = 0;
    while (planned[user]) {
        user++;
    }
    run_all();
    cr_expect_eq(record(0)->n_preempt_recompute, 0);
    rig_fini(&rig);
    return user;
}

Test(core_sched_memory, victim_by_rule)
{
    cr_expect_eq(preempted_user(BT_VICTIM_NEWEST), 3);
    cr_expect_eq(preempted_user(BT_VICTIM_LARGEST), 2);
    cr_expect_eq(preempted_user(BT_VICTIM_LEAST_PROGRESS), 3);
}

static struct bt_sched_opts swap_opts(void)
{
    struct bt_sched_opts o = base_opts();
    o.preempt = BT_PREEMPT_SWAP;
    o.n_blocks = 8;
    o.n_host_blocks = 16;
    return o;
}

Test(core_sched_memory, swapped_sequence_waits_for_its_copies_and_computes_nothing_twice)
{
    struct bt_sched_opts o = swap_opts();
    start(&o);
    add_now(46, 30);
    add_now(46, 30);
    int32_t last = add_now(33, 4);
    const struct bt_step_plan *p;
    do {
        p = plan();
        rig_complete(&rig);
    } while (p->n_copies == 0);
    cr_expect_eq(p->copies[0].kind, BT_COPY_SWAP_OUT);
    cr_expect_eq(p->copies[0].n_blocks, 4);
    cr_expect_eq(p->n_seqs, 0); /* both wanted a block: the first waits for those on their way */
    cr_expect(p->wait_copies);
    run_all();
    cr_expect_eq(record(1)->n_preempt_swap, 1);
    cr_expect_eq(record(1)->n_preempt_recompute, 0);
    cr_expect_geq(record(last)->scheduled_ns, record(0)->end_ns); /* no newcomer before it */
    static struct bt_summary sum;
    bt_metrics_finish(rig.metrics, rig.now_ns, 0, 0, &sum);
    cr_expect_eq(sum.swap_bytes, 2 * 4 * 1024);
    cr_expect_eq(sum.recomputed_tokens, 0);
    cr_expect_eq(sum.prefill_tokens, 46 + 46 + 33);
    rig_fini(&rig);
}

Test(core_sched_memory, full_host_memory_means_recompute)
{
    struct bt_sched_opts o = swap_opts();
    o.n_host_blocks = 3; /* the victim has four */
    start(&o);
    add_now(46, 30);
    add_now(46, 30);
    run_all();
    cr_expect_eq(record(1)->n_preempt_swap, 0);
    cr_expect_eq(record(1)->n_preempt_recompute, 1);
    rig_fini(&rig);
}

Test(core_sched_memory, ends_while_swapped_or_copying_give_everything_back)
{
    for (int32_t at = 0; at < 12; at++) {
        struct bt_sched_opts o = swap_opts();
        start(&o);
        add_now(46, 30);
        add_now(46, 30);
        while (state().n_preempts == 0) {
            step();
        }
        for (int32_t i = 0; i < at && rig.users[0].n_ends == 0; i++) {
            step();
        }
        bool live = bt_sched_cancel(rig.sched, rig.users[1].handle, rig.now_ns);
        cr_expect(live || rig.users[1].n_ends == 1);
        bt_sched_check(rig.sched);
        run_all();
        rig_fini(&rig);
    }
}

static void expect_auto(enum bt_preempt_goal goal, double token_ns, double block_ns, bool swap)
{
    struct bt_sched_opts o = swap_opts();
    o.preempt = BT_PREEMPT_AUTO;
    o.preempt_goal = goal;
    o.preempt_cost = (struct bt_preempt_cost){.recompute_ns_per_token = token_ns,
                                              .swap_out_ns_per_block = block_ns,
                                              .swap_in_ns_per_block = block_ns,
                                              .swap_fixed_ns = 10};
    start(&o);
    add_now(46, 30);
    add_now(46, 30);
    run_all();
    cr_expect_eq(record(1)->n_preempt_swap, swap, "goal %d, token %g, block %g", (int)goal,
                 token_ns, block_ns);
    cr_expect_eq(record(1)->n_preempt_recompute, !swap);
    rig_fini(&rig);
}

Test(core_sched_memory, auto_takes_the_cheaper_by_goal)
{
    /* 65 known tokens in 4 blocks: 65 a against 8 b + 20. */
    expect_auto(BT_GOAL_VICTIM_DELAY, 10, 70, true);
    expect_auto(BT_GOAL_VICTIM_DELAY, 10, 90, false);
    expect_auto(BT_GOAL_GPU_TIME, 10, 1e6, true);
    expect_auto(BT_GOAL_GPU_TIME, 0.1, 0, false);
    expect_auto(BT_GOAL_FREE_TIME, 1e6, 0, false);
}

/* Patterns of data/cases: each engine stopped or crawled here. The rig's limit on turns is the
 * test that ours goes on; the counts say that it does so without thrashing. */

Test(core_sched_memory, long_prompts_are_admitted_whole_or_not_at_all)
{
    /* Four hold 90% of the pool, a fifth does not fit: its first chunk must not let it in. */
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 60;
    o.max_batched_tokens = 32;
    start(&o);
    for (int32_t i = 0; i < 5; i++) {
        add(200, 12);
    }
    run_all();
    cr_expect_eq(state().n_preempts, 0);
    static struct bt_summary sum;
    bt_metrics_finish(rig.metrics, rig.now_ns, 0, 0, &sum);
    cr_expect_eq(sum.prefill_tokens, 5 * 200);
    rig_fini(&rig);
}

Test(core_sched_memory, what_can_never_fit_is_no_head_of_line_block)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 8;
    start(&o);
    add(200, 10);
    add(10, 10);
    run_all();
    cr_expect_eq(record(0)->reject, BT_REJECT_NEVER_FITS);
    cr_expect_eq(record(1)->outcome, BT_OUTCOME_FINISHED);
    rig_fini(&rig);
}

Test(core_sched_memory, answer_that_meets_the_wall_of_the_pool_does_not_loop)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 8;
    o.spec.k = 3;
    start(&o);
    add(120, 24);
    add(30, 10);
    run_all();
    cr_expect_eq(record(0)->outcome, BT_OUTCOME_FAILED);
    cr_expect_eq(record(0)->n_output, 9);
    cr_expect_eq(record(0)->n_preempt_recompute, 0);
    cr_expect_eq(record(1)->outcome, BT_OUTCOME_FINISHED);
    rig_fini(&rig);
}

Test(core_sched_memory, preempted_one_resumes_only_when_all_of_it_fits)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 16;
    o.max_batched_tokens = 16; /* the recompute takes several chunks */
    start(&o);
    for (int32_t i = 0; i < 4; i++) {
        add(50, 100);
    }
    run_all();
    for (int32_t i = 0; i < 4; i++) {
        cr_expect_leq(record(i)->n_preempt_recompute, 3, "%d: %d", i,
                      record(i)->n_preempt_recompute);
    }
    rig_fini(&rig);
}

Test(core_sched_memory, swapped_ones_do_not_pile_up_behind_newcomers)
{
    struct bt_sched_opts o = swap_opts();
    o.n_blocks = 16;
    o.n_host_blocks = 64;
    start(&o);
    for (int32_t i = 0; i < 30; i++) {
        rig_add(&rig, i * 2 * RIG_STEP_NS, 40, 60, 60);
    }
    int32_t most = 0;
    for (int32_t i = 0; i < 30; i++) {
        while (rig.now_ns < rig.users[i].submit_ns && plan() != NULL) {
            rig_complete(&rig);
            most = state().n_swapped > most ? state().n_swapped : most;
        }
        if (rig.now_ns < rig.users[i].submit_ns) {
            rig.now_ns = rig.users[i].submit_ns;
        }
        rig_submit(&rig, i);
    }
    run_all();
    cr_expect_leq(most, 3);
    rig_fini(&rig);
}

Test(core_sched_memory, blocks_on_their_way_are_counted_before_more_are_taken)
{
    /* With steps in flight every victim frees its blocks late: one must do, not all. */
    struct bt_sched_opts o = base_opts();
    o.inflight_max = 2;
    o.n_blocks = 16;
    start(&o);
    for (int32_t i = 0; i < 4; i++) {
        add(62, 20); /* all want a block at once */
    }
    run_all();
    cr_expect_leq(state().n_preempts, 3);
    for (int32_t i = 0; i < 4; i++) {
        cr_expect_leq(record(i)->n_preempt_recompute, 1);
    }
    rig_fini(&rig);
}

Test(core_sched_memory, copies_in_do_not_hold_what_the_first_needs)
{
    struct bt_sched_opts o = swap_opts();
    o.inflight_max = 2;
    o.n_blocks = 9;
    start(&o);
    for (int32_t i = 0; i < 6; i++) {
        rig_add(&rig, i * RIG_STEP_NS, 40, 90, 90);
    }
    run_all();
    for (int32_t i = 0; i < 6; i++) {
        cr_expect_eq(record(i)->outcome, BT_OUTCOME_FINISHED);
    }
    cr_expect_eq(record(0)->n_preempt_swap, 0);
    rig_fini(&rig);
}

/* Where memory is short and arrivals go on, few requests are preempted more than once. */
Test(core_sched_memory, hundreds_of_requests_under_pressure_are_preempted_once_or_twice)
{
    struct bt_sched_opts o = base_opts();
    o.max_seqs = 16;
    o.n_blocks = 48;
    o.watermark_blocks = 1;
    start(&o);
    for (int32_t i = 0; i < 90; i++) {
        rig_add(&rig, i * 9 * RIG_STEP_NS, 20 + i * 7 % 50, 120, 40 + i * 13 % 60);
    }
    run_all();
    int32_t more_than_twice = 0;
    for (int32_t i = 0; i < 90; i++) {
        cr_expect_eq(record(i)->outcome, BT_OUTCOME_FINISHED);
        more_than_twice += record(i)->n_preempt_recompute > 2;
    }
    cr_expect_gt(state().n_preempts, 0);
    cr_expect_leq(more_than_twice, 4, "%d", more_than_twice);
    rig_fini(&rig);
}
