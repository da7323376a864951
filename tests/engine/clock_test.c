/* The work clock: what it counts, and what not. */
#include "engine/clock.h"

#include <criterion/criterion.h>

#include <math.h>
#include <time.h>

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile double sink;

static void toil(int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        sink = sink * 0.5 + 1;
    }
}

Test(clock, counts_the_threads_work_over_its_slowness)
{
    cr_expect(isnan(bt_clock_slowness()));
    int64_t began_ns = bt_clock_ns(BT_CLOCK_WORK), last_ns = began_ns;
    double from_s = thread_s();
    int32_t reads = 0;
    for (; thread_s() - from_s < 0.2; reads++) {
        toil(20000);
        int64_t now_ns = bt_clock_ns(BT_CLOCK_WORK);
        cr_assert_geq(now_ns, last_ns);
        last_ns = now_ns;
    }
    cr_assert_gt(reads, 100);
    double slowness = bt_clock_slowness();
    cr_assert_gt(slowness, 0);
    /* The rest is what it takes to look at the core's speed, which is not on the clock. */
    double counted_s = 1e-9 * (double)(last_ns - began_ns) * slowness;
    cr_expect_lt(counted_s, 0.201);
    cr_expect_gt(counted_s, 0.1);
}

Test(clock, stands_still_while_the_thread_waits)
{
    int64_t work_ns = bt_clock_ns(BT_CLOCK_WORK), wall_ns = bt_clock_ns(BT_CLOCK_WALL);
    struct timespec t = {.tv_nsec = 50000000};
    nanosleep(&t, NULL);
    wall_ns = bt_clock_ns(BT_CLOCK_WALL) - wall_ns;
    work_ns = bt_clock_ns(BT_CLOCK_WORK) - work_ns;
    cr_expect_geq(wall_ns, 50000000);
    cr_expect_lt(work_ns, wall_ns / 10);
}
