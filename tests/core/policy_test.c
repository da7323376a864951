/* The parts of the scheduler that stand alone: edges of the request, heap, rules of arithmetic. */
#include "engine/core/policy.h"
#include "engine/core/queue.h"
#include "engine/core/req.h"
#include "engine/core/rng.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

Test(core_policy, request_edges_are_those_of_the_diagram)
{
    static const char *const legal[] = {
        "FREE WAITING",     "WAITING RUNNING",      "WAITING FREE",          "RUNNING WAITING",
        "RUNNING DRAINING", "RUNNING SWAPPING_OUT", "RUNNING FREE",          "DRAINING WAITING",
        "DRAINING FREE",    "SWAPPING_OUT SWAPPED", "SWAPPING_OUT DRAINING", "SWAPPED SWAPPING_IN",
        "SWAPPED FREE",     "SWAPPING_IN RUNNING",  "SWAPPING_IN DRAINING",
    };
    size_t n = 0;
    for (int32_t from = 0; from < BT_N_REQ_STATES; from++) {
        for (int32_t to = 0; to < BT_N_REQ_STATES; to++) {
            if (!bt_req_edge_legal((enum bt_req_state)from, (enum bt_req_state)to)) {
                continue;
            }
            char text[64];
            snprintf(text, sizeof text, "%s %s", bt_req_state_name((enum bt_req_state)from),
                     bt_req_state_name((enum bt_req_state)to));
            bool found = false;
            for (size_t i = 0; i < sizeof legal / sizeof *legal; i++) {
                found = found || strcmp(legal[i], text) == 0;
            }
            cr_expect(found, "%s", text);
            n++;
        }
    }
    cr_expect_eq(n, sizeof legal / sizeof *legal);
}

Test(core_policy, illegal_edge_asserts, .signal = SIGABRT)
{
    struct bt_req r = {.state = BT_REQ_WAITING};
    bt_req_transition(&r, BT_REQ_SWAPPED);
}

Test(core_policy, broken_request_is_found, .signal = SIGABRT)
{
    struct bt_req r = {.state = BT_REQ_WAITING,
                       .n_prompt = 1,
                       .max_new_tokens = 1,
                       .first_token_ns = -1,
                       .last_token_ns = -1,
                       .scheduled_ns = -1,
                       .host_head = -1,
                       .slot = 3};
    bt_req_check(&r);
}

struct member {
    char before[5];
    int32_t pos;
};

Test(core_policy, heap_agrees_with_a_list)
{
    enum { N = 64 };
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    static struct member members[N];
    uint64_t keys[N];
    for (int32_t i = 0; i < N; i++) {
        members[i].pos = -1;
    }
    struct bt_queue q;
    struct bt_error err = {0};
    cr_assert_eq(bt_queue_init(&q, &arena, N, &members[0].pos, sizeof members[0], &err), BT_OK);
    struct bt_rng r;
    bt_rng_init(&r, 3, "heap", 0);
    int32_t n = 0;
    for (int32_t turn = 0; turn < 20000; turn++) {
        uint32_t id = (uint32_t)bt_rng_below(&r, N);
        if (members[id].pos < 0) {
            keys[id] = bt_rng_below(&r, 40);
            bt_queue_push(&q, keys[id], id);
            n++;
        } else {
            id = turn % 2 == 0 ? bt_queue_top(&q).id : id;
            bt_queue_remove(&q, id);
            cr_assert_eq(members[id].pos, -1);
            n--;
        }
        bt_queue_check(&q);
        cr_assert_eq(q.n, n);
        for (int32_t i = 0; i < N && n > 0; i++) {
            cr_assert(members[i].pos < 0 || bt_queue_top(&q).key <= keys[i]);
        }
    }
    bt_arena_fini(&arena);
}

Test(core_policy, heap_holds_a_member_once, .signal = SIGABRT)
{
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct member m = {.pos = -1};
    struct bt_queue q;
    struct bt_error err = {0};
    cr_assert_eq(bt_queue_init(&q, &arena, 2, &m.pos, sizeof m, &err), BT_OK);
    bt_queue_push(&q, 1, 0);
    bt_queue_push(&q, 1, 0);
}

Test(core_policy, order_is_class_then_arrival)
{
    cr_expect_lt(bt_order_key(BT_ORDER_FCFS, 9, 9, 1), bt_order_key(BT_ORDER_FCFS, 0, 1, 2));
    cr_expect_lt(bt_order_key(BT_ORDER_PRIORITY, 0, 9, 7),
                 bt_order_key(BT_ORDER_PRIORITY, 1, 1, 2));
    cr_expect_lt(bt_order_key(BT_ORDER_PRIORITY, 1, 9, 2),
                 bt_order_key(BT_ORDER_PRIORITY, 1, 1, 3));
    cr_expect_lt(bt_order_key(BT_ORDER_SHORTEST, 9, 5, 9),
                 bt_order_key(BT_ORDER_SHORTEST, 0, 6, 1));
    cr_expect_lt(bt_order_key(BT_ORDER_SHORTEST, 0, INT32_MAX, 1),
                 bt_order_key(BT_ORDER_SHORTEST, 0, INT32_MAX, 2));
    cr_expect_eq(bt_order_class(bt_order_key(BT_ORDER_PRIORITY, 12, 5, 77)), 12);
    cr_expect_eq(bt_order_class(bt_order_key(BT_ORDER_FCFS, 12, 5, 77)), 0);
}

Test(core_policy, window_grows_with_the_queue)
{
    cr_expect_eq(bt_window_ns(2000, 10000, 0, 8), 2000);
    cr_expect_eq(bt_window_ns(2000, 10000, 4, 8), 6000);
    cr_expect_eq(bt_window_ns(2000, 10000, 8, 8), 10000);
    cr_expect_eq(bt_window_ns(2000, 10000, 800, 8), 10000);
    cr_expect_eq(bt_window_ns(5000, 5000, 3, 8), 5000);
}

Test(core_policy, max_seqs_doubles_then_adds_and_loses_a_quarter)
{
    struct bt_seqs_auto a;
    bt_seqs_auto_init(&a, 100, false);
    cr_expect_eq(a.limit, 100);
    bt_seqs_auto_init(&a, 5, true);
    cr_expect_eq(a.limit, 5);
    bt_seqs_auto_init(&a, 100, true);
    cr_expect_eq(a.limit, 8);
    static const int32_t doubled[] = {16, 32, 64, 100, 100};
    for (size_t i = 0; i < sizeof doubled / sizeof *doubled; i++) {
        bt_seqs_auto_wanted(&a);
        cr_expect_eq(a.limit, doubled[i]);
    }
    bt_seqs_auto_preempted(&a, 60); /* of what was resident, not of the limit */
    cr_expect_eq(a.limit, 45);
    for (int32_t i = 0; i < 8; i++) {
        cr_expect_eq(a.limit, 45);
        bt_seqs_auto_wanted(&a);
    }
    cr_expect_eq(a.limit, 46);
    bt_seqs_auto_preempted(&a, 1);
    bt_seqs_auto_preempted(&a, 1);
    cr_expect_eq(a.limit, 1);
}

Test(core_policy, swap_or_recompute_by_the_stated_goal)
{
    struct bt_preempt_cost c = {.recompute_ns_per_token = 10,
                                .recompute_ns_per_token2 = 0.01,
                                .swap_out_ns_per_block = 100,
                                .swap_in_ns_per_block = 50,
                                .swap_fixed_ns = 1000};
    /* 1000 tokens: 10,000 + 10,000 ns; 100 blocks: 10,000 + 5,000 + 2,000. */
    cr_expect(bt_preempt_prefers_swap(BT_GOAL_VICTIM_DELAY, &c, 1000, 100));
    cr_expect_not(bt_preempt_prefers_swap(BT_GOAL_VICTIM_DELAY, &c, 1000, 121));
    cr_expect(bt_preempt_prefers_swap(BT_GOAL_GPU_TIME, &c, 1000, 10000));
    cr_expect_not(bt_preempt_prefers_swap(BT_GOAL_GPU_TIME, &c, 100, 1));
    cr_expect_not(bt_preempt_prefers_swap(BT_GOAL_FREE_TIME, &c, 100000, 1));
}
