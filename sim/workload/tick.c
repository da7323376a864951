#include "sim/workload/tick.h"

#include "engine/core/error.h"
#include "engine/core/rng.h"

#include <math.h>
#include <string.h>

enum { N_PLACES = 2 * BT_TICK_MAX_GAPS };

static const double TOLERANCE = 0.005; /* of a tick */

void bt_tick_init(struct bt_tick_finder *f)
{
    memset(f, 0, sizeof *f);
}

static void add_gap(struct bt_tick_finder *f, int64_t gap_ns)
{
    f->n_gaps++;
    if (f->too_many) {
        return;
    }
    int32_t i = (int32_t)(bt_hash_u64((uint64_t)gap_ns) % N_PLACES);
    while (f->kinds[i].gap_ns != 0 && f->kinds[i].gap_ns != gap_ns) {
        i = (i + 1) % N_PLACES;
    }
    if (f->kinds[i].gap_ns == 0) {
        if (f->n_kinds == BT_TICK_MAX_GAPS) {
            f->too_many = true;
            return;
        }
        f->n_kinds++;
        f->kinds[i].gap_ns = gap_ns;
    }
    f->kinds[i].n++;
}

void bt_tick_add(struct bt_tick_finder *f, int64_t time_ns)
{
    BT_ASSERT(f->n_times == 0 || time_ns >= f->last_ns);
    if (f->n_times > 0 && time_ns == f->last_ns) {
        f->run++;
        f->n_equal += f->run == 2 ? 2 : 1;
    } else {
        if (f->n_times > 0) {
            add_gap(f, time_ns - f->last_ns);
        }
        f->run = 1;
    }
    if (f->run > f->n_equal_most) {
        f->n_equal_most = f->run;
    }
    f->last_ns = time_ns;
    f->n_times++;
}

int64_t bt_tick_find(const struct bt_tick_finder *f)
{
    if (f->too_many || f->n_gaps < BT_TICK_MIN_GAPS || f->n_equal == 0) {
        return 0;
    }
    int64_t least = INT64_MAX;
    for (int32_t i = 0; i < N_PLACES; i++) {
        if (f->kinds[i].gap_ns != 0 && f->kinds[i].gap_ns < least) {
            least = f->kinds[i].gap_ns;
        }
    }
    if (least < BT_TICK_MIN_NS) {
        return 0;
    }
    /* The mean tick, each gap counted as the whole number of least gaps nearest to it. */
    double sum_ns = 0.0;
    double sum_ticks = 0.0;
    for (int32_t i = 0; i < N_PLACES; i++) {
        double n = (double)f->kinds[i].n;
        sum_ns += n * (double)f->kinds[i].gap_ns;
        sum_ticks += n * round((double)f->kinds[i].gap_ns / (double)least);
    }
    const double ms = 1e6;
    double tick = round(sum_ns / sum_ticks / ms) * ms;
    for (int32_t i = 0; i < N_PLACES; i++) {
        double gap = (double)f->kinds[i].gap_ns;
        if (gap != 0.0 && fabs(gap - round(gap / tick) * tick) > TOLERANCE * tick) {
            return 0;
        }
    }
    return (int64_t)tick;
}
