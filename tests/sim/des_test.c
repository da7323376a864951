#include "engine/core/rng.h"
#include "sim/des.h"

#include <criterion/criterion.h>

#include <signal.h>

static struct bt_des des;

static void schedule(int64_t t_ns, int32_t priority, uint64_t handle)
{
    struct bt_error err = {0};
    cr_assert_eq(bt_des_schedule(&des, t_ns, priority, 0, handle, &err), BT_OK, "%s", err.msg);
}

static struct bt_event take(void)
{
    struct bt_error err = {0};
    struct bt_event e = {0};
    bool got = false;
    cr_assert_eq(bt_des_take(&des, &e, &got, &err), BT_OK, "%s", err.msg);
    cr_assert(got);
    return e;
}

static void init(int64_t capacity_max, int64_t events_max)
{
    cr_assert_eq(bt_des_init(&des, capacity_max, events_max, NULL), BT_OK);
}

Test(des, order_is_time_then_priority_then_scheduling)
{
    init(16, 0);
    schedule(20, 0, 0);
    schedule(10, 2, 1);
    schedule(10, 1, 2);
    schedule(10, 1, 3);
    schedule(10, 0, 4);
    const uint64_t expected[] = {4, 2, 3, 1, 0};
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(take().handle, expected[i], "event %d", i);
    }
    cr_expect_eq(des.now_ns, 20);
    cr_expect_eq(bt_des_next_ns(&des), INT64_MAX);
    bt_des_fini(&des);
}

Test(des, random_schedules_come_out_sorted_and_complete)
{
    struct bt_rng rng;
    bt_rng_init(&rng, 3, "des", 0);
    init(100000, 0);
    int64_t scheduled = 0, taken = 0, sum_in = 0, sum_out = 0;
    struct bt_event before = {0};
    for (int round = 0; round < 200000; round++) {
        bool push = des.n == 0 || (bt_rng_below(&rng, 100) < 52 && scheduled < 100000);
        if (push) {
            uint64_t handle = bt_rng_u64(&rng) >> 32;
            schedule(des.now_ns + (int64_t)bt_rng_below(&rng, 50), (int32_t)bt_rng_below(&rng, 3),
                     handle);
            sum_in += (int64_t)handle;
            scheduled++;
            continue;
        }
        int64_t next_ns = bt_des_next_ns(&des);
        struct bt_event e = take();
        cr_assert_eq(e.t_ns, next_ns);
        cr_assert(e.t_ns >= before.t_ns);
        /* An event of lower priority number may be scheduled for the running moment later on. */
        if (e.t_ns == before.t_ns && e.priority == before.priority) {
            cr_assert(e.seq > before.seq);
        }
        sum_out += (int64_t)e.handle;
        taken++;
        before = e;
    }
    while (des.n > 0) {
        sum_out += (int64_t)take().handle;
        taken++;
    }
    cr_expect_eq(taken, scheduled);
    cr_expect_eq(sum_in, sum_out);
    cr_expect_eq(des.n_taken, taken);
    bt_des_fini(&des);
}

Test(des, scheduling_in_the_past_asserts, .signal = SIGABRT)
{
    init(4, 0);
    schedule(10, 0, 0);
    take();
    schedule(9, 0, 0);
}

Test(des, full_queue_is_a_limit_error)
{
    struct bt_error err = {0};
    init(70, 0);
    for (int i = 0; i < 70; i++) {
        schedule(i, 0, 0);
    }
    cr_expect_eq(bt_des_schedule(&des, 1, 0, 0, 0, &err), BT_ERR_LIMIT);
    cr_expect_str_eq(err.msg, "event queue: more than 70 events wait at once");
    bt_des_fini(&des);
}

Test(des, event_limit_stops_the_run)
{
    struct bt_error err = {0};
    struct bt_event e;
    bool got = true;
    init(4, 2);
    for (int i = 0; i < 3; i++) {
        schedule(1000000000, 0, 0);
    }
    take();
    take();
    cr_expect_eq(bt_des_take(&des, &e, &got, &err), BT_ERR_LIMIT);
    cr_expect_not(got);
    cr_expect_str_eq(err.msg, "simulation: stopped after 2 events, at 1.000 s of virtual time");
    bt_des_fini(&des);
}
