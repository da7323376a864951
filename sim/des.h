/* The event queue and the virtual clock of a discrete-event simulation.
 *
 * Events come out in the total order (t_ns, priority, order of scheduling), so that a run is the
 * same every time. An event is {kind, handle}: the loop that owns the queue switches over the kind
 * and knows what the handle names. There is no cancelling: an event whose reason has gone is
 * ignored by its receiver (a generation in the handle tells).
 *
 * A 4-ary heap that grows by doubling up to a stated capacity. Scheduling and taking are O(log n).
 * Threading: one thread a queue.
 */
#ifndef BT_SIM_DES_H
#define BT_SIM_DES_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_event {
    int64_t t_ns;
    uint64_t seq;     /* order of scheduling, given by the queue */
    uint64_t handle;  /* the receiver's */
    int32_t priority; /* of events at one time, the lowest comes first */
    int32_t kind;     /* the receiver's */
};

struct bt_des {
    struct bt_event *heap; /* owned */
    int64_t n;
    int64_t capacity;
    int64_t capacity_max;
    int64_t now_ns;     /* time of the event taken last */
    int64_t n_taken;    /* events taken so far */
    int64_t events_max; /* most events to take; 0: no limit */
    uint64_t next_seq;
};

/* An empty queue at time 0 that holds up to capacity_max (> 0) events at once and gives out up to
 * events_max (0: any number). BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_des_init(struct bt_des *d, int64_t capacity_max, int64_t events_max,
                                      struct bt_error *err);

void bt_des_fini(struct bt_des *d);

/* Schedules an event; t_ns >= the time now (asserted: the past cannot be changed). BT_ERR_LIMIT
 * when the queue is full, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_des_schedule(struct bt_des *d, int64_t t_ns, int32_t priority,
                                          int32_t kind, uint64_t handle, struct bt_error *err);

/* Time of the next event; INT64_MAX when there is none. */
int64_t bt_des_next_ns(const struct bt_des *d);

/* Takes the next event and moves the clock to it. *out is untouched and *got false when the queue
 * is empty. BT_ERR_LIMIT when events_max have been taken. */
BT_NODISCARD enum bt_code bt_des_take(struct bt_des *d, struct bt_event *out, bool *got,
                                      struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
