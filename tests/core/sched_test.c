/* One rule a test: batching, admission, order, lengths, timeouts, windows. */
#include "tests/core/sched_rig.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <string.h>

static struct rig rig;

static struct bt_sched_opts base_opts(void)
{
    return (struct bt_sched_opts){
        .max_seqs = 8,
        .max_batched_tokens = 64,
        .chunked_prefill = true,
        .max_model_len = 256,
        .n_blocks = 64,
        .block_tokens = 16,
        .block_bytes = 1024,
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

/* Plans; NULL when nothing is to be run. */
static const struct bt_step_plan *plan(void)
{
    const struct bt_step_plan *p;
    int64_t wake_ns;
    rig_plan(&rig, &p, &wake_ns);
    return p;
}

static const struct bt_req_record *record(int32_t user)
{
    return &rig.users[user].record;
}

static void run_all(void)
{
    cr_assert(rig_run(&rig, 10000));
    rig_check_ends(&rig);
}

static int32_t add_now(int32_t n_prompt, int32_t max_new)
{
    int32_t user = rig_add(&rig, rig.now_ns, n_prompt, max_new, max_new);
    rig_submit(&rig, user);
    return user;
}

Test(core_sched, one_request_prefills_in_chunks_then_decodes)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    rig_add(&rig, 0, 100, 5, 5);
    run_all();
    cr_expect_eq(rig.n_steps, 6); /* 64 + 36 tokens, then four decodes */
    cr_expect_eq(record(0)->outcome, BT_OUTCOME_FINISHED);
    cr_expect_eq(record(0)->first_token_ns, 2 * RIG_STEP_NS);
    cr_expect_eq(record(0)->end_ns, 6 * RIG_STEP_NS);
    cr_expect_eq(record(0)->gap_max_ns, RIG_STEP_NS);
    rig_fini(&rig);
}

Test(core_sched, decodes_come_first_and_chunks_take_the_rest_of_the_budget)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    add_now(10, 20);
    plan();
    rig_complete(&rig);
    add_now(100, 5);
    add_now(30, 5);
    const struct bt_step_plan *p = plan();
    cr_assert_eq(p->n_seqs, 2);
    cr_expect_eq(p->n_decode_seqs, 1);
    cr_expect_eq(p->seqs[0].user, 0);
    cr_expect_eq(p->seqs[1].user, 1);
    cr_expect_eq(p->seqs[1].n_tokens, 63);
    cr_expect_eq(state().block, BT_BLOCK_TOKENS);
    rig_complete(&rig);
    p = plan();
    cr_assert_eq(p->n_seqs, 3);
    cr_expect_eq(p->seqs[1].n_tokens, 37);
    cr_expect_eq(p->seqs[2].user, 2);
    cr_expect_eq(p->seqs[2].n_tokens, 26);
    rig_complete(&rig);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, whole_prompts_run_without_decodes_and_a_large_one_alone)
{
    struct bt_sched_opts o = base_opts();
    o.chunked_prefill = false;
    start(&o);
    add_now(30, 10);
    add_now(30, 10);
    add_now(100, 10); /* over the budget */
    add_now(20, 10);
    const struct bt_step_plan *p = plan();
    cr_expect_eq(p->n_seqs, 2);
    cr_expect_eq(p->n_prefill_tokens, 60);
    cr_expect_eq(state().block, BT_BLOCK_TOKENS);
    rig_complete(&rig);
    p = plan();
    cr_assert_eq(p->n_seqs, 1);
    cr_expect_eq(p->seqs[0].n_tokens, 100);
    rig_complete(&rig);
    p = plan();
    cr_assert_eq(p->n_seqs, 1);
    cr_expect_eq(p->seqs[0].user, 3);
    rig_complete(&rig);
    p = plan();
    cr_expect_eq(p->n_decode_seqs, 4);
    cr_expect_eq(p->n_seqs, 4);
    rig_complete(&rig);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, static_batch_admits_nobody_until_it_is_over)
{
    struct bt_sched_opts o = base_opts();
    o.batching = BT_BATCHING_STATIC;
    o.max_seqs = 2;
    start(&o);
    add_now(10, 3);
    add_now(10, 9);
    add_now(10, 3);
    while (record(0)->n_output == 0) {
        const struct bt_step_plan *p = plan();
        cr_expect_eq(p->n_seqs, 2);
        rig_complete(&rig);
    }
    const struct bt_step_plan *p = plan();
    cr_assert_eq(p->n_seqs, 1);
    cr_expect_eq(p->seqs[0].user, 1);
    cr_expect_eq(state().block, BT_BLOCK_WINDOW);
    rig_complete(&rig);
    run_all();
    cr_expect_geq(record(2)->scheduled_ns, record(1)->end_ns);
    rig_fini(&rig);
}

Test(core_sched, head_of_the_line_is_not_overtaken)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 8;
    start(&o);
    add_now(60, 40);
    plan();
    add_now(80, 20); /* needs 6 of the 4 left */
    add_now(5, 5);   /* would fit */
    rig_complete(&rig);
    const struct bt_step_plan *p = plan();
    cr_expect_eq(p->n_seqs, 1);
    cr_expect_eq(state().block, BT_BLOCK_KV);
    rig_complete(&rig);
    run_all();
    cr_expect_leq(record(1)->scheduled_ns, record(2)->scheduled_ns);
    rig_fini(&rig);
}

Test(core_sched, block_reason_tells_rows_from_memory)
{
    struct bt_sched_opts o = base_opts();
    o.max_seqs = 2;
    start(&o);
    add_now(10, 30);
    add_now(10, 30);
    add_now(10, 30);
    plan();
    cr_expect_eq(state().block, BT_BLOCK_SEQS);
    cr_expect_eq(state().n_waiting, 1);
    rig_complete(&rig);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, watermark_keeps_blocks_free_but_not_from_the_only_one)
{
    struct bt_sched_opts o = base_opts();
    o.n_blocks = 8;
    o.max_batched_tokens = 128;
    o.watermark_blocks = 3;
    start(&o);
    add_now(100, 10); /* 7 blocks of 8: alone it may */
    const struct bt_step_plan *p = plan();
    cr_assert_not_null(p);
    rig_complete(&rig);
    run_all();
    add_now(16, 4);
    add_now(50, 4); /* 4 more of the 7 left: leaves 3 */
    add_now(1, 4);  /* 1 more: leaves 2 */
    p = plan();
    cr_expect_eq(p->n_seqs, 2);
    cr_expect_eq(state().block, BT_BLOCK_KV);
    rig_complete(&rig);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, shortest_prompt_goes_first)
{
    struct bt_sched_opts o = base_opts();
    o.order = BT_ORDER_SHORTEST;
    o.max_seqs = 1;
    start(&o);
    add_now(30, 2);
    add_now(20, 2);
    add_now(10, 2);
    run_all();
    cr_expect_lt(record(2)->end_ns, record(1)->end_ns);
    cr_expect_lt(record(1)->end_ns, record(0)->end_ns);
    rig_fini(&rig);
}

/* The worst case: slots full of long decodes of the least urgent class, and pool full too. */
Test(core_sched, urgent_request_waits_for_the_step_in_flight_alone)
{
    struct bt_sched_opts o = base_opts();
    o.order = BT_ORDER_PRIORITY;
    o.priority_preempts = true;
    o.max_seqs = 4;
    o.n_blocks = 12;
    start(&o);
    for (int32_t i = 0; i < 6; i++) {
        int32_t user = rig_add(&rig, 0, 40, 100, 100);
        rig.users[user].spec.priority = 5;
        rig_submit(&rig, user);
    }
    for (int32_t i = 0; i < 5; i++) {
        plan();
        rig_complete(&rig);
    }
    plan();
    int32_t urgent = rig_add(&rig, rig.now_ns, 60, 4, 4);
    rig_submit(&rig, urgent);
    rig_complete(&rig);
    const struct bt_step_plan *p = plan();
    cr_expect_eq(record(urgent)->n_output, 0);
    bool planned = false;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        planned = planned || p->seqs[i].user == (uint64_t)urgent;
    }
    cr_expect(planned);
    rig_complete(&rig);
    run_all();
    cr_expect_leq(record(urgent)->first_token_ns - record(urgent)->arrival_ns, 3 * RIG_STEP_NS);
    rig_fini(&rig);
}

Test(core_sched, without_priority_preemption_the_urgent_one_is_only_first_in_line)
{
    struct bt_sched_opts o = base_opts();
    o.order = BT_ORDER_PRIORITY;
    o.max_seqs = 1;
    start(&o);
    for (int32_t i = 0; i < 3; i++) {
        int32_t user = rig_add(&rig, 0, 10, 10, 10);
        rig.users[user].spec.priority = 2 - i;
        rig_submit(&rig, user);
        plan();
    }
    run_all();
    cr_expect_eq(record(0)->n_preempt_recompute, 0);
    cr_expect_lt(record(0)->end_ns, record(2)->end_ns);
    cr_expect_lt(record(2)->end_ns, record(1)->end_ns);
    rig_fini(&rig);
}

Test(core_sched, eos_is_seen_one_step_late_and_the_wasted_token_dropped)
{
    struct bt_sched_opts o = base_opts();
    o.inflight_max = 2;
    start(&o);
    rig_add(&rig, 0, 10, 50, 5);
    run_all();
    cr_expect_eq(record(0)->n_output, 5);
    cr_expect_eq(record(0)->end_ns, 5 * RIG_STEP_NS);
    cr_expect_eq(rig.n_steps, 6); /* the sixth was in flight at the end */
    rig_fini(&rig);
    /* An answer that ends by its length is known by counts. */
    start(&o);
    rig_add(&rig, 0, 10, 5, 50);
    run_all();
    cr_expect_eq(record(0)->n_output, 5);
    cr_expect_eq(rig.n_steps, 5);
    rig_fini(&rig);
}

Test(core_sched, timeout_ends_wherever_the_request_is_with_what_it_has)
{
    struct bt_sched_opts o = base_opts();
    o.max_seqs = 1;
    start(&o);
    for (int32_t i = 0; i < 2; i++) {
        int32_t user = rig_add(&rig, 0, 10, 100, 100);
        rig.users[user].spec.timeout_ns = 5 * RIG_STEP_NS + 500000 + i;
    }
    run_all();
    cr_expect_eq(record(0)->outcome, BT_OUTCOME_TIMED_OUT);
    cr_expect_eq(record(0)->n_output, 5);
    cr_expect_eq(record(0)->end_ns, 5 * RIG_STEP_NS + 500000);
    cr_expect_eq(record(1)->outcome, BT_OUTCOME_TIMED_OUT);
    cr_expect_eq(record(1)->n_output, 0);
    cr_expect_eq(record(1)->scheduled_ns, -1);
    rig_fini(&rig);
}

Test(core_sched, tokens_that_arrive_after_the_deadline_are_not_delivered)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    int32_t late = rig_add(&rig, 0, 10, 3, 3);
    int32_t in_time = rig_add(&rig, 0, 10, 3, 3);
    rig.users[late].spec.timeout_ns = 3 * RIG_STEP_NS - 1;
    rig.users[in_time].spec.timeout_ns = 3 * RIG_STEP_NS;
    rig_submit(&rig, late);
    rig_submit(&rig, in_time);
    for (int32_t i = 0; i < 3; i++) {
        plan();
        rig_complete(&rig); /* nobody wakes the scheduler at the deadline itself */
    }
    cr_expect_eq(record(late)->outcome, BT_OUTCOME_TIMED_OUT);
    cr_expect_eq(record(late)->n_output, 2);
    cr_expect_eq(record(in_time)->outcome, BT_OUTCOME_FINISHED);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, wake_time_is_the_next_deadline)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    for (int32_t i = 0; i < 3; i++) {
        int32_t user = rig_add(&rig, 0, 10, 10, 10);
        rig.users[user].spec.timeout_ns = i == 1 ? 700 : 900;
        rig_submit(&rig, user);
    }
    const struct bt_step_plan *p;
    int64_t wake_ns;
    cr_expect_eq(rig_plan(&rig, &p, &wake_ns), BT_PLAN_READY);
    cr_expect_eq(wake_ns, 700);
    cr_expect_eq(rig_plan(&rig, &p, &wake_ns), BT_PLAN_WAIT);
    rig.now_ns = 700;
    cr_expect_eq(rig_plan(&rig, &p, &wake_ns), BT_PLAN_WAIT);
    cr_expect_eq(rig.users[1].n_ends, 1);
    cr_expect_eq(wake_ns, 900);
    rig.now_ns = 900;
    cr_expect_eq(rig_plan(&rig, &p, &wake_ns), BT_PLAN_IDLE);
    cr_expect_eq(wake_ns, INT64_MAX);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, cancel_ends_once)
{
    struct bt_sched_opts o = base_opts();
    o.max_seqs = 1;
    o.inflight_max = 2;
    start(&o);
    add_now(10, 50);
    add_now(10, 50);
    plan();
    plan();
    cr_expect(bt_sched_cancel(rig.sched, rig.users[1].handle, rig.now_ns)); /* waiting */
    cr_expect_not(bt_sched_cancel(rig.sched, rig.users[1].handle, rig.now_ns));
    rig_complete(&rig);
    cr_expect(bt_sched_cancel(rig.sched, rig.users[0].handle, rig.now_ns)); /* in flight */
    cr_expect_not(bt_sched_cancel(rig.sched, rig.users[0].handle, rig.now_ns));
    bt_sched_check(rig.sched);
    cr_expect_eq(record(0)->n_output, 1);
    cr_expect_eq(record(0)->outcome, BT_OUTCOME_CANCELLED);
    cr_expect_gt(state().kv_blocks_used, 0); /* until its last step is back */
    rig_complete(&rig);
    cr_expect_eq(state().kv_blocks_used, 0);
    int32_t next = add_now(10, 2);
    cr_expect_not(bt_sched_cancel(rig.sched, rig.users[0].handle, rig.now_ns)); /* place reused */
    run_all();
    cr_expect_eq(record(next)->outcome, BT_OUTCOME_FINISHED);
    rig_fini(&rig);
}

Test(core_sched, window_gathers_arrivals_and_leaves_decodes_alone)
{
    struct bt_sched_opts o = base_opts();
    o.window_low_ns = o.window_high_ns = 4500000;
    start(&o);
    rig_add(&rig, 0, 10, 20, 20);
    rig_add(&rig, 1000000, 10, 20, 20);
    rig_add(&rig, 5000000, 10, 20, 20); /* after the first window has opened at 4.5 ms */
    rig_add(&rig, 6200000, 10, 20, 20);
    run_all();
    cr_expect_eq(record(0)->scheduled_ns, 4500000);
    cr_expect_eq(record(1)->scheduled_ns, 4500000);
    /* The next window runs from the first arrival after it; planned at the next step's end. */
    cr_expect_eq(record(2)->scheduled_ns, 9500000);
    cr_expect_eq(record(3)->scheduled_ns, 9500000);
    cr_expect_eq(record(0)->gap_max_ns, RIG_STEP_NS);
    rig_fini(&rig);
}

Test(core_sched, over_length_rules)
{
    static const struct {
        const char *name;
        enum bt_over_length rule;
        int32_t n_prompt, max_new;
        enum bt_reject reject;
        int32_t seen_prompt, seen_output;
    } cases[] = {
        {"reject at the limit", BT_OVER_REJECT, 90, 10, BT_REJECT_NONE, 90, 10},
        {"reject over it", BT_OVER_REJECT, 91, 10, BT_REJECT_OVER_LENGTH, 91, 0},
        {"truncate the prompt", BT_OVER_TRUNCATE, 150, 10, BT_REJECT_NONE, 90, 10},
        {"truncate both", BT_OVER_TRUNCATE, 150, 200, BT_REJECT_NONE, 1, 99},
        {"allow", BT_OVER_ALLOW, 150, 10, BT_REJECT_NONE, 150, 10},
        {"allow what the pool holds", BT_OVER_ALLOW, 255, 2, BT_REJECT_NONE, 255, 2},
        {"allow no more than it", BT_OVER_ALLOW, 256, 2, BT_REJECT_NEVER_FITS, 256, 0},
        {"the last token needs no room", BT_OVER_ALLOW, 256, 1, BT_REJECT_NONE, 256, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_sched_opts o = base_opts();
        o.max_model_len = 100;
        o.n_blocks = 16;
        o.over_length = cases[i].rule;
        start(&o);
        rig_add(&rig, 0, cases[i].n_prompt, cases[i].max_new, 1000);
        run_all();
        cr_expect_eq(record(0)->reject, cases[i].reject, "%s", cases[i].name);
        cr_expect_eq(record(0)->n_prompt, cases[i].seen_prompt, "%s", cases[i].name);
        cr_expect_eq(record(0)->n_output, cases[i].seen_output, "%s: %d", cases[i].name,
                     record(0)->n_output);
        rig_fini(&rig);
    }
}

Test(core_sched, lone_sequence_that_outgrows_the_pool_fails_with_its_tokens)
{
    struct bt_sched_opts o = base_opts();
    o.over_length = BT_OVER_ALLOW;
    o.n_blocks = 2;
    for (o.inflight_max = 1; o.inflight_max <= 2; o.inflight_max++) {
        start(&o);
        add_now(20, 100);
        add_now(8, 4);
        run_all();
        cr_expect_eq(record(0)->outcome, BT_OUTCOME_FAILED);
        cr_expect_eq(record(0)->n_output, 13); /* 32 tokens with KV, and the one after */
        cr_expect_eq(record(1)->outcome, BT_OUTCOME_FINISHED);
        rig_fini(&rig);
    }
}

Test(core_sched, admission_limits_and_degradation)
{
    struct bt_sched_opts o = base_opts();
    o.max_seqs = 1;
    o.max_waiting = 4;
    o.degrade = (struct bt_degrade_opts){.at_waiting = 2, .max_new_tokens = 3};
    start(&o);
    for (int32_t i = 0; i < 6; i++) {
        add_now(10, 20);
        if (i == 0) {
            plan();
        }
    }
    run_all();
    static const int32_t outputs[] = {20, 20, 20, 20, 3, 0};
    for (int32_t i = 0; i < 6; i++) {
        cr_expect_eq(record(i)->n_output, outputs[i], "%d: %d", i, record(i)->n_output);
        cr_expect_eq(record(i)->degraded, i >= 4, "%d", i);
    }
    cr_expect_eq(record(5)->reject, BT_REJECT_QUEUE_FULL);
    rig_fini(&rig);
    o = base_opts();
    o.max_requests = 3;
    start(&o);
    for (int32_t i = 0; i < 4; i++) {
        add_now(10, 2);
    }
    cr_expect_eq(record(3)->reject, BT_REJECT_QUEUE_FULL);
    run_all();
    add_now(10, 2);
    run_all();
    cr_expect_eq(record(4)->outcome, BT_OUTCOME_FINISHED);
    rig_fini(&rig);
}

Test(core_sched, executor_failure_ends_one_request)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    add_now(10, 5);
    add_now(10, 5);
    plan();
    rig.results[0][0].failed = true;
    rig_complete(&rig);
    cr_expect_eq(record(0)->outcome, BT_OUTCOME_FAILED);
    run_all();
    cr_expect_eq(record(1)->outcome, BT_OUTCOME_FINISHED);
    rig_fini(&rig);
}

Test(core_sched, contiguous_layout_is_a_block_a_sequence)
{
    struct bt_sched_opts o = base_opts();
    o.block_tokens = o.max_model_len;
    o.n_blocks = 3;
    start(&o);
    for (int32_t i = 0; i < 5; i++) {
        add_now(10, 40);
    }
    plan();
    cr_expect_eq(state().kv_blocks_used, 3);
    cr_expect_eq(state().n_waiting, 2);
    cr_expect_eq(state().block, BT_BLOCK_KV);
    cr_expect_eq(state().kv_tokens, 30);
    rig_complete(&rig);
    run_all();
    static struct bt_summary sum;
    bt_metrics_finish(rig.metrics, rig.now_ns, 0, 0, &sum);
    cr_expect_gt(sum.kv_waste_fraction, 0.8);
    cr_expect_eq(sum.preempt_recompute, 0);
    rig_fini(&rig);
}

Test(core_sched, automatic_max_seqs_grows_to_memory_and_shrinks_on_preemption)
{
    struct bt_sched_opts o = base_opts();
    o.max_seqs = 32;
    o.max_seqs_auto = true;
    o.n_blocks = 40;
    start(&o);
    cr_expect_eq(state().max_seqs, 8);
    for (int32_t i = 0; i < 60; i++) {
        rig_add(&rig, 0, 8, 60, 60);
    }
    int32_t most = 0;
    bool shrunk = false;
    int32_t last = 8;
    for (int32_t i = 0; i < 60; i++) {
        rig_submit(&rig, i);
    }
    while (state().n_waiting + state().n_running > 0) {
        cr_assert_not_null(plan());
        rig_complete(&rig);
        int32_t now = state().max_seqs;
        shrunk = shrunk || now < last;
        most = now > most ? now : most;
        last = now;
    }
    cr_expect_gt(most, 8);
    cr_expect(shrunk);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, fixed_max_seqs_stays_through_preemptions)
{
    struct bt_sched_opts o = base_opts();
    o.max_seqs = 48; /* more than blocks: memory alone binds */
    o.n_blocks = 40;
    start(&o);
    int32_t fixed = state().max_seqs;
    for (int32_t i = 0; i < 60; i++) {
        rig_add(&rig, 0, 8, 60, 60);
        rig_submit(&rig, i);
    }
    while (state().n_waiting + state().n_running > 0) {
        cr_assert_not_null(plan());
        rig_complete(&rig);
        cr_assert_eq(state().max_seqs, fixed);
        cr_assert_neq(state().block, BT_BLOCK_SEQS);
    }
    cr_expect_gt(state().n_preempts, 0);
    run_all();
    rig_fini(&rig);
}

Test(core_sched, plan_hash_is_of_the_plans)
{
    struct bt_sched_opts o = base_opts();
    uint64_t hash[3];
    for (int32_t i = 0; i < 3; i++) {
        start(&o);
        rig_add(&rig, 0, 50, 5, 5);
        rig_add(&rig, 0, 20, i == 2 ? 6 : 5, 9);
        run_all();
        hash[i] = bt_sched_plan_hash(rig.sched);
        rig_fini(&rig);
    }
    cr_expect_eq(hash[0], hash[1]);
    cr_expect_neq(hash[0], hash[2]);
}

Test(core_sched, options_out_of_range_are_named)
{
    static const struct {
        const char *text;
        size_t offset;
        int32_t value;
    } cases[] = {
        {"sched.max_seqs: 0 must be in 1 .. 65536", offsetof(struct bt_sched_opts, max_seqs), 0},
        {"sched.max_batched_tokens: 7 must be in 8 ..",
         offsetof(struct bt_sched_opts, max_batched_tokens), 7},
        {"sched.n_blocks: 0 must be in 1 ..", offsetof(struct bt_sched_opts, n_blocks), 0},
        {"sched.block_tokens: 0 must be in 1 .. 1048576",
         offsetof(struct bt_sched_opts, block_tokens), 0},
        {"sched.watermark_blocks: 65 must be in 0 .. 64",
         offsetof(struct bt_sched_opts, watermark_blocks), 65},
        {"sched.inflight_max: 9 must be in 1 .. 8", offsetof(struct bt_sched_opts, inflight_max),
         9},
        {"sched.spec.k: 33 must be in 0 .. 32", offsetof(struct bt_sched_opts, spec.k), 33},
        {"sched.long_above_tokens: -1 must be in 0 ..",
         offsetof(struct bt_sched_opts, long_above_tokens), -1},
        {"sched.order: 3 must be in 0 .. 2", offsetof(struct bt_sched_opts, order), 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_sched_opts o = base_opts();
        memcpy((char *)&o + cases[i].offset, &cases[i].value, sizeof cases[i].value);
        struct bt_arena arena;
        bt_arena_init(&arena, 0);
        struct bt_error err = {0};
        struct bt_sched *s;
        cr_expect_eq(bt_sched_create(&arena, &o, &s, &err), BT_ERR_ARG);
        cr_expect_null(s);
        cr_expect_eq(strncmp(err.msg, cases[i].text, strlen(cases[i].text)), 0, "%s", err.msg);
        bt_arena_fini(&arena);
    }
}

Test(core_sched, create_reports_each_refused_allocation)
{
    struct bt_sched_opts o = base_opts();
    o.n_host_blocks = 4;
    for (int32_t i = 1;; i++) {
        struct bt_arena arena;
        bt_arena_init(&arena, 0);
        arena.failnext = i;
        struct bt_error err = {0};
        struct bt_sched *s;
        enum bt_code code = bt_sched_create(&arena, &o, &s, &err);
        bt_arena_fini(&arena);
        if (code == BT_OK) {
            cr_expect_gt(i, 20);
            break;
        }
        cr_expect_eq(code, BT_ERR_NOMEM);
        cr_expect_null(s);
    }
}

Test(core_sched, results_must_come_in_order, .signal = SIGABRT)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    add_now(10, 5);
    const struct bt_step_plan *p = plan();
    struct bt_result_seq row = {.n_emitted = 1};
    struct bt_step_result result = {.step_id = p->step_id + 1, .seqs = &row};
    bt_sched_complete(rig.sched, &result, 0);
}

Test(core_sched, time_does_not_go_back, .signal = SIGABRT)
{
    struct bt_sched_opts o = base_opts();
    start(&o);
    rig.now_ns = 10;
    plan();
    rig.now_ns = 9;
    plan();
}
