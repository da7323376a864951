/* Finds the coarse clock of a trace: times that are all multiples of one tick, several rows each.
 */
#ifndef BT_SIM_WORKLOAD_TICK_H
#define BT_SIM_WORKLOAD_TICK_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_TICK_MAX_GAPS = 4096,   /* different gaps kept; a fine clock has more and is no tick */
    BT_TICK_MIN_GAPS = 10,     /* fewer gaps than this tell nothing */
    BT_TICK_MIN_NS = 10000000, /* 10 ms: a finer clock does not disturb TTFT */
};

struct bt_tick_finder {
    int64_t n_times;
    int64_t n_equal;      /* rows whose time another row has too */
    int64_t n_equal_most; /* rows of the commonest time */
    int64_t last_ns;
    int64_t run; /* rows of the current time */
    int64_t n_gaps;
    bool too_many;
    int32_t n_kinds; /* different gaps */
    struct {
        int64_t gap_ns; /* 0: a free place */
        int64_t n;
    } kinds[2 * BT_TICK_MAX_GAPS];
};

/* Starts afresh. */
void bt_tick_init(struct bt_tick_finder *f);

/* Adds the next time, which is not before the last one. O(1). */
void bt_tick_add(struct bt_tick_finder *f, int64_t time_ns);

/* The tick in ns, or 0 when there is none: gaps must all be multiples of it within 0.5% of a tick
 * (Mooncake's 3 s ticks come 2,999 to 3,003 ms apart), and some time must have several rows. */
int64_t bt_tick_find(const struct bt_tick_finder *f);

#ifdef __cplusplus
}
#endif

#endif
