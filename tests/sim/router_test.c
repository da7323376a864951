#include "sim/router.h"

#include <criterion/criterion.h>

Test(router, round_robin_takes_turns_without_looking)
{
    struct bt_router r = {.rule = BT_ROUTE_ROUND_ROBIN, .n_replicas = 3};
    cr_expect_not(bt_router_reads_states(&r));
    for (int32_t i = 0; i < 7; i++) {
        cr_expect_eq(bt_router_pick(&r, NULL, NULL), i % 3);
    }
}

Test(router, least_loaded_counts_waiting_and_held_tokens)
{
    struct bt_router r = {.rule = BT_ROUTE_LEAST_LOADED, .n_replicas = 3};
    struct bt_sched_state s[3] = {{.tokens_waiting = 100, .kv_tokens = 50},
                                  {.tokens_waiting = 0, .kv_tokens = 140},
                                  {.tokens_waiting = 145, .kv_tokens = 0}};
    cr_expect(bt_router_reads_states(&r));
    cr_expect_not(bt_router_reads_cache(&r));
    cr_expect_eq(bt_router_pick(&r, s, NULL), 1);
    s[1].kv_tokens = 1000;
    cr_expect_eq(bt_router_pick(&r, s, NULL), 2);
}

Test(router, equals_take_turns)
{
    struct bt_router r = {.rule = BT_ROUTE_LEAST_LOADED, .n_replicas = 3};
    struct bt_sched_state s[3] = {{0}};
    for (int32_t i = 0; i < 6; i++) {
        cr_expect_eq(bt_router_pick(&r, s, NULL), i % 3);
    }
}

Test(router, a_cached_prefix_attracts_until_its_replica_is_too_loaded)
{
    struct bt_router r = {.rule = BT_ROUTE_PREFIX, .n_replicas = 2};
    struct bt_sched_state s[2] = {{0}};
    const int32_t cached[2] = {0, 500};
    cr_expect(bt_router_reads_cache(&r));
    cr_expect_eq(bt_router_pick(&r, s, cached), 1);
    s[1].kv_tokens = 1999; /* four resident tokens weigh one cached */
    cr_expect_eq(bt_router_pick(&r, s, cached), 1);
    s[1].kv_tokens = 2001;
    cr_expect_eq(bt_router_pick(&r, s, cached), 0);
    s[1] = (struct bt_sched_state){.tokens_waiting = 501};
    cr_expect_eq(bt_router_pick(&r, s, cached), 0);
}
