/* The requests alive in a simulation: read from the source and not yet ended. Memory follows the
 * most that are alive at once, not the length of the trace.
 *
 * A place in the pool is the `user` by which the scheduler and the executor know the request; it is
 * used again after the request's end. Threading: one thread.
 */
#ifndef BT_SIM_LIVE_H
#define BT_SIM_LIVE_H

#include "engine/core/error.h"
#include "sim/executor_sim.h"
#include "sim/workload/request.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_live_request {
    struct bt_request request; /* its hashes point to `hashes` */
    uint64_t *hashes;          /* owned */
    int32_t hashes_capacity;
    int32_t next_free;
    bool degraded;
};

struct bt_live {
    struct bt_sim_truth *truth;       /* owned, by place */
    struct bt_live_request *requests; /* owned, by place */
    int32_t capacity, capacity_max;
    int32_t n_touched; /* places used so far */
    int32_t n;         /* alive */
    int32_t free_head; /* -1: none below n_touched */
};

/* An empty pool of at most capacity_max places. Cannot fail. */
void bt_live_init(struct bt_live *l, int32_t capacity_max);
void bt_live_fini(struct bt_live *l);

/* A place for a copy of the request, hashes included. BT_ERR_LIMIT when too many are alive,
 * BT_ERR_NOMEM. Pointers into the pool are void after. */
BT_NODISCARD enum bt_code bt_live_add(struct bt_live *l, const struct bt_request *request,
                                      uint64_t key, int32_t *place, struct bt_error *err);

void bt_live_remove(struct bt_live *l, int32_t place);

#ifdef __cplusplus
}
#endif

#endif
