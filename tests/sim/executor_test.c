#include "sim/executor_sim.h"
#include "tests/sim/harness.h"

#include <string.h>

static struct given_cost given;
static struct bt_cost cost;
static struct bt_sim_truth truth_rows[4];
static const struct bt_sim_truth *truth = truth_rows;
static struct bt_executor executor;
static struct bt_result_seq result_seqs[8];
static uint32_t tickets[8];

static void create(struct given_cost g, double duplex_share, struct bt_sim_executor_opts o)
{
    given = g;
    cost = (struct bt_cost){.ops = &given_ops, .self = &given, .duplex_share = duplex_share};
    o.cost = &cost;
    o.truth = &truth;
    o.max_copies = 8;
    o.inflight_max = o.inflight_max > 0 ? o.inflight_max : 1;
    cr_assert_eq(bt_sim_executor_create(&o, &executor, NULL), BT_OK);
}

static struct bt_step_result submit(const struct bt_step_plan *plan, int64_t now_ns)
{
    struct bt_step_result r = {.seqs = result_seqs, .copies_done = tickets};
    cr_assert_eq(executor.ops->submit(executor.self, plan, now_ns, &r, NULL), BT_SUBMIT_DONE);
    cr_assert_eq(r.step_id, plan->step_id);
    return r;
}

static void destroy(void)
{
    executor.ops->destroy(executor.self);
}

/* One decoding sequence. */
static struct bt_plan_seq decode_seq(int32_t n_generated, int32_t k)
{
    return (struct bt_plan_seq){.n_prompt = 10,
                                .n_generated = n_generated,
                                .ctx = 9 + n_generated,
                                .n_tokens = 1 + k,
                                .k_spec = k,
                                .flags = BT_SEQ_EMITS};
}

static struct bt_step_plan plan_of(const struct bt_plan_seq *s, int32_t n)
{
    return (struct bt_step_plan){.n_seqs = n, .seqs = s, .n_decode_seqs = n};
}

Test(executor_sim, picoseconds_are_carried_to_whole_nanoseconds)
{
    create((struct given_cost){.step_ps = 10300}, 1, (struct bt_sim_executor_opts){0});
    truth_rows[0].n_output = 1000;
    int64_t now_ns = 0;
    for (int32_t i = 1; i <= 100; i++) {
        struct bt_plan_seq s = decode_seq(i, 0);
        struct bt_step_plan p = plan_of(&s, 1);
        struct bt_step_result r = submit(&p, now_ns);
        now_ns = r.done_ns;
        cr_assert_eq(now_ns, i * 10300 / 1000);
        cr_assert_eq(r.done_ns - r.start_ns, r.busy_ns);
    }
    destroy();
}

Test(executor_sim, step_scale_stretches_device_time_alone)
{
    create((struct given_cost){.step_ps = 1000000, .host_ns = 100}, 1,
           (struct bt_sim_executor_opts){.step_scale = 1.0375});
    truth_rows[0].n_output = 1000;
    struct bt_plan_seq s = decode_seq(1, 0);
    struct bt_step_plan p = plan_of(&s, 1);
    struct bt_step_result a = submit(&p, 0);
    struct bt_step_result b = submit(&p, a.done_ns);
    cr_expect_eq(a.done_ns, 100 + 1037); /* 1037.5: the half is carried */
    cr_expect_eq(b.done_ns, a.done_ns + 100 + 1038);
    destroy();
}

Test(executor_sim, host_time_hides_behind_a_step_in_flight)
{
    create((struct given_cost){.step_ps = 10000000, .host_ns = 4000}, 1,
           (struct bt_sim_executor_opts){.inflight_max = 2});
    truth_rows[0].n_output = 1000;
    struct bt_plan_seq s = decode_seq(1, 0);
    struct bt_step_plan p = plan_of(&s, 1);
    struct bt_step_result a = submit(&p, 0);
    struct bt_step_result b = submit(&p, 0);
    cr_expect_eq(a.start_ns, 4000);
    cr_expect_eq(a.done_ns, 14000);
    cr_expect_eq(a.host_ns, 4000);
    cr_expect_eq(b.start_ns, 14000); /* its host work ended at 8,000 */
    cr_expect_eq(b.done_ns, 24000);
    cr_expect_eq(b.host_ns, 0);
    struct bt_step_result c = submit(&p, a.done_ns);
    cr_expect_eq(c.done_ns, 34000);
    /* After a pause the host's time shows again. */
    struct bt_step_result d = submit(&p, 100000);
    cr_expect_eq(d.start_ns, 104000);
    cr_expect_eq(d.host_ns, 4000);
    destroy();
}

Test(executor_sim, a_slow_host_is_the_bottleneck_however_many_steps_are_in_flight)
{
    create((struct given_cost){.step_ps = 1000000, .host_ns = 5000}, 1,
           (struct bt_sim_executor_opts){.inflight_max = 2});
    truth_rows[0].n_output = 1000;
    struct bt_plan_seq s = decode_seq(1, 0);
    struct bt_step_plan p = plan_of(&s, 1);
    cr_expect_eq(submit(&p, 0).done_ns, 6000);
    cr_expect_eq(submit(&p, 0).done_ns, 11000);
    struct bt_step_result r = submit(&p, 6000);
    cr_expect_eq(r.done_ns, 16000);
    cr_expect_eq(r.host_ns, 4000);
    destroy();
}

static struct bt_step_plan with_copies(struct bt_step_plan p, const struct bt_plan_copy *c,
                                       int32_t n)
{
    p.copies = c;
    p.n_copies = n;
    return p;
}

Test(executor_sim, swap_out_starts_after_the_steps_in_flight_and_is_told_when_it_has_ended)
{
    create((struct given_cost){.step_ps = 10000000, .copy_block_ps = 3000000}, 1,
           (struct bt_sim_executor_opts){0});
    truth_rows[0].n_output = 1000;
    struct bt_plan_seq s = decode_seq(1, 0);
    struct bt_step_plan p = plan_of(&s, 1);
    cr_expect_eq(submit(&p, 0).done_ns, 10000);
    /* 5 blocks out from 10,000 to 25,000, beside the steps to 20,000 and 30,000. */
    struct bt_plan_copy out = {.kind = BT_COPY_SWAP_OUT, .ticket = 7, .n_blocks = 5};
    struct bt_step_plan swap = with_copies(p, &out, 1);
    struct bt_step_result r = submit(&swap, 10000);
    cr_expect_eq(r.done_ns, 20000);
    cr_expect_eq(r.n_copies_done, 0);
    r = submit(&p, 20000);
    cr_expect_eq(r.done_ns, 30000);
    cr_assert_eq(r.n_copies_done, 1);
    cr_expect_eq(r.copies_done[0], 7);
    cr_expect_eq(submit(&p, 30000).n_copies_done, 0);
    destroy();
}

Test(executor_sim, directions_are_queues_of_their_own_and_a_waiting_plan_ends_with_the_first_copy)
{
    create((struct given_cost){.copy_block_ps = 1000000}, 1, (struct bt_sim_executor_opts){0});
    const struct bt_plan_copy copies[] = {
        {.kind = BT_COPY_SWAP_OUT, .ticket = 1, .n_blocks = 10},
        {.kind = BT_COPY_SWAP_OUT, .ticket = 2, .n_blocks = 10},
        {.kind = BT_COPY_SWAP_IN, .ticket = 3, .n_blocks = 15},
    };
    struct bt_step_plan p = {.wait_copies = true, .n_copies = 3, .copies = copies};
    struct bt_step_result r = submit(&p, 100);
    cr_expect_eq(r.done_ns, 10100);
    cr_expect_eq(r.busy_ns, 0);
    cr_assert_eq(r.n_copies_done, 1);
    cr_expect_eq(r.copies_done[0], 1);
    struct bt_step_plan wait = {.wait_copies = true, .step_id = 1};
    r = submit(&wait, r.done_ns);
    cr_expect_eq(r.done_ns, 15100);
    cr_expect_eq(r.copies_done[0], 3);
    r = submit(&wait, r.done_ns);
    cr_expect_eq(r.done_ns, 20100);
    cr_expect_eq(r.copies_done[0], 2);
    destroy();
}

Test(executor_sim, both_directions_at_once_share_the_duplex_rate)
{
    create((struct given_cost){.copy_block_ps = 1000000}, 0.75, (struct bt_sim_executor_opts){0});
    const struct bt_plan_copy copies[] = {
        {.kind = BT_COPY_SWAP_OUT, .ticket = 1, .n_blocks = 10},
        {.kind = BT_COPY_SWAP_IN, .ticket = 2, .n_blocks = 10},
    };
    struct bt_step_plan p = {.wait_copies = true, .n_copies = 2, .copies = copies};
    cr_expect_eq(submit(&p, 0).done_ns, 10000);
    /* While both ran, 10,000 ns, the later one had 2 x 0.75 - 1 = half its rate: 5,000 are left. */
    struct bt_step_plan wait = {.wait_copies = true, .step_id = 1};
    cr_expect_eq(submit(&wait, 10000).done_ns, 15000);
    destroy();
}

Test(executor_sim, copy_on_write_is_device_time_of_its_step)
{
    create((struct given_cost){.step_ps = 5000000}, 1, (struct bt_sim_executor_opts){0});
    truth_rows[0].n_output = 1000;
    struct bt_plan_seq s = decode_seq(1, 0);
    struct bt_plan_copy cow = {.kind = BT_COPY_COW, .n_blocks = 3000};
    struct bt_step_plan p = with_copies(plan_of(&s, 1), &cow, 1);
    cr_expect_eq(submit(&p, 0).done_ns, 5000 + 3000);
    destroy();
}

Test(executor_sim, answers_end_at_their_true_length)
{
    create((struct given_cost){.step_ps = 1000}, 1, (struct bt_sim_executor_opts){0});
    truth_rows[0].n_output = 3;
    truth_rows[1].n_output = 1;
    struct bt_plan_seq seqs[] = {decode_seq(1, 0),
                                 decode_seq(2, 0),
                                 decode_seq(5, 0),
                                 {.user = 1, .n_prompt = 8, .n_tokens = 8, .flags = BT_SEQ_EMITS},
                                 {.user = 1, .n_prompt = 80, .n_tokens = 8}};
    struct bt_step_plan p = plan_of(seqs, 5);
    p.n_decode_seqs = 3;
    struct bt_step_result r = submit(&p, 0);
    const struct {
        int32_t n_emitted;
        bool eos;
    } expected[] = {{1, false}, {1, true}, {1, true}, {1, true}, {0, false}};
    for (int32_t i = 0; i < 5; i++) {
        cr_expect_eq(r.seqs[i].n_emitted, expected[i].n_emitted, "sequence %d", i);
        cr_expect_eq(r.seqs[i].eos, expected[i].eos, "sequence %d", i);
    }
    destroy();
}

/* Accepted tokens of a whole answer by position: with any K the same draws are made. */
Test(executor_sim, acceptance_is_drawn_by_request_and_position_alone)
{
    enum { N = 4000 };
    static int8_t drawn[N + 16];
    struct bt_sim_executor_opts o = {.n_acceptance = 1, .acceptance = {0.7}};
    create((struct given_cost){.step_ps = 1000}, 1, o);
    truth_rows[0] = (struct bt_sim_truth){.key = bt_sim_truth_key(5, 17), .n_output = 1 << 20};
    memset(drawn, -1, sizeof drawn);
    int64_t checked = 0;
    for (int32_t k = 1; k <= 8; k++) {
        int64_t accepted = 0, reached = 0;
        for (int32_t at = 0; at < N;) {
            struct bt_plan_seq s = decode_seq(at, k);
            struct bt_step_plan p = plan_of(&s, 1);
            struct bt_step_result r = submit(&p, 0);
            int32_t n = r.seqs[0].n_accepted;
            cr_assert_eq(r.seqs[0].n_emitted, n + 1);
            for (int32_t i = 0; i < (n < k ? n + 1 : k); i++) {
                int8_t yes = i < n;
                cr_assert(drawn[at + i] == -1 || drawn[at + i] == yes, "k %d, position %d", k,
                          at + i);
                checked += drawn[at + i] != -1;
                drawn[at + i] = yes;
                accepted += yes;
                reached++;
            }
            at += n + 1;
        }
        double rate = (double)accepted / (double)reached;
        cr_expect(rate > 0.67 && rate < 0.73, "k %d: conditional acceptance %.3f", k, rate);
    }
    cr_expect(checked > N);
    destroy();
}

Test(executor_sim, acceptance_may_depend_on_the_draft_position)
{
    struct bt_sim_executor_opts o = {.n_acceptance = 3, .acceptance = {1, 1, 0}};
    create((struct given_cost){.step_ps = 1000}, 1, o);
    truth_rows[0] = (struct bt_sim_truth){.n_output = 1000};
    for (int32_t k = 1; k <= 6; k++) {
        struct bt_plan_seq s = decode_seq(10 * k, k);
        struct bt_step_plan p = plan_of(&s, 1);
        cr_expect_eq(submit(&p, 0).seqs[0].n_accepted, k < 2 ? k : 2);
    }
    /* An answer's end cuts the emission, and what lies past it is not counted as accepted. */
    truth_rows[0].n_output = 12;
    struct bt_plan_seq s = decode_seq(10, 4);
    struct bt_step_plan p = plan_of(&s, 1);
    struct bt_step_result r = submit(&p, 0);
    cr_expect_eq(r.seqs[0].n_emitted, 2);
    cr_expect_eq(r.seqs[0].n_accepted, 2);
    cr_expect(r.seqs[0].eos);
    destroy();
}

Test(executor_sim, a_plan_is_summed_into_a_batch)
{
    const struct bt_plan_seq seqs[] = {
        {.ctx = 99, .n_tokens = 5, .k_spec = 4, .draft_catchup = 6, .flags = BT_SEQ_EMITS},
        {.ctx = 199, .n_tokens = 1, .kv_class = 1, .flags = BT_SEQ_EMITS},
        {.ctx = 100, .n_tokens = 10},
        {.ctx = 0, .n_tokens = 4, .flags = BT_SEQ_EMITS},
    };
    struct bt_step_plan p = {.n_seqs = 4, .seqs = seqs, .n_decode_seqs = 2};
    struct bt_batch b;
    bt_sim_batch(&p, &b);
    cr_expect_eq(b.n_decode, 2);
    cr_expect_eq(b.n_decode_tokens, 6);
    cr_expect_eq(b.decode_ctx, 104 + 200);
    cr_expect_eq(b.decode_ctx_long, 200);
    cr_expect_eq(b.n_draft_steps, 4);
    cr_expect_eq(b.n_catchup_tokens, 6);
    cr_expect_eq(b.n_16bit, 1);
    cr_expect_eq(b.ctx_16bit, 200);
    cr_expect_eq(b.n_prefill, 2);
    cr_expect_eq(b.n_prefill_tokens, 14);
    cr_expect_eq(b.prefill_pairs, 10 * 100 + 55 + 10);
    cr_expect_eq(b.prefill_ctx, 114);
    cr_expect_eq(b.n_logits, 7);
}
