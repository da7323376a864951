#include "engine/clock.h"

#include <time.h>

int64_t bt_clock_ns(enum bt_clock clock)
{
    struct timespec t;
    (void)clock_gettime(clock == BT_CLOCK_WORK ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
