/* Which replica serves a request.
 *
 *   rr            in turn
 *   least-loaded  least load = prompt tokens not yet computed + KV tokens held
 *   prefix        least (prompt tokens not yet computed + KV tokens held / 4 - cached tokens): a
 *                 prompt token served from a replica's prefix cache is worth one that need not be
 *                 computed, and outweighs an imbalance of four resident tokens
 * Among equals the turn goes round, so that an idle group is used evenly.
 * Threading: one thread a router.
 */
#ifndef BT_SIM_ROUTER_H
#define BT_SIM_ROUTER_H

#include "engine/core/sched.h"
#include "sim/config.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_router {
    enum bt_route rule;
    int32_t n_replicas; /* > 0 */
    int32_t next;       /* whose turn it is */
};

/* Whether bt_router_pick reads states and cached tokens; gathering them costs. */
bool bt_router_reads_states(const struct bt_router *r);
bool bt_router_reads_cache(const struct bt_router *r);

/* The replica for the next request, 0 .. n_replicas-1. states and cached have one row a replica;
 * either may be NULL when it is not read. */
int32_t bt_router_pick(struct bt_router *r, const struct bt_sched_state *states,
                       const int32_t *cached_tokens);

#ifdef __cplusplus
}
#endif

#endif
