/* Where the time of a decoder's pass goes, by operation.
 *
 * A profile is a row of sums; a pass that has one adds to them at the end of each operation, at the
 * cost of one reading of the clock. What lies between operations belongs to the next one.
 * Threading: one thread at a time.
 */
#ifndef BT_ENGINE_CPU_PROFILE_H
#define BT_ENGINE_CPU_PROFILE_H

#include "engine/clock.h"
#include "engine/meter.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_cpu_profile {
    enum bt_clock clock;
    int64_t last_ns;
    int64_t ns[BT_STEP_PARTS];
    int32_t n[BT_STEP_PARTS]; /* marks */
};

/* Forgets what was summed up and starts now. */
static inline void bt_cpu_profile_start(struct bt_cpu_profile *p, enum bt_clock clock)
{
    memset(p, 0, sizeof *p);
    p->clock = clock;
    p->last_ns = bt_clock_ns(clock);
}

/* The time since the last mark was this operation's. p may be NULL. */
static inline void bt_cpu_mark(struct bt_cpu_profile *p, enum bt_step_part op)
{
    if (p != NULL) {
        int64_t now_ns = bt_clock_ns(p->clock);
        p->ns[op] += now_ns - p->last_ns;
        p->n[op]++;
        p->last_ns = now_ns;
    }
}

#ifdef __cplusplus
}
#endif

#endif
