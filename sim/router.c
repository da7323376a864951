#include "sim/router.h"

#include <stddef.h>

enum { KV_TOKENS_PER_CACHED = 4 };

bool bt_router_reads_states(const struct bt_router *r)
{
    return r->n_replicas > 1 && r->rule != BT_ROUTE_ROUND_ROBIN;
}

bool bt_router_reads_cache(const struct bt_router *r)
{
    return r->n_replicas > 1 && r->rule == BT_ROUTE_PREFIX;
}

/* Smaller is better. */
static int64_t load_of(const struct bt_router *r, const struct bt_sched_state *s, int32_t cached)
{
    if (r->rule == BT_ROUTE_PREFIX) {
        return KV_TOKENS_PER_CACHED * (s->tokens_waiting - cached) + s->kv_tokens;
    }
    return s->tokens_waiting + s->kv_tokens;
}

int32_t bt_router_pick(struct bt_router *r, const struct bt_sched_state *states,
                       const int32_t *cached_tokens)
{
    BT_ASSERT(r->n_replicas > 0 && r->next >= 0 && r->next < r->n_replicas);
    int32_t best = r->next;
    if (bt_router_reads_states(r)) {
        BT_ASSERT(states != NULL);
        BT_ASSERT(cached_tokens != NULL || !bt_router_reads_cache(r));
        int64_t least = INT64_MAX;
        for (int32_t i = 0; i < r->n_replicas; i++) {
            int32_t at = (r->next + i) % r->n_replicas;
            int32_t cached = cached_tokens != NULL ? cached_tokens[at] : 0;
            int64_t load = load_of(r, &states[at], cached);
            if (load < least) {
                least = load;
                best = at;
            }
        }
    }
    r->next = (best + 1) % r->n_replicas;
    return best;
}
