/* One request: its state machine and what is remembered of it from submit to end.
 *
 *            submit              admit                    end, nothing in flight
 *   FREE ─────────────► WAITING ───────────► RUNNING ──────────────────────────► FREE
 *                        ▲  ▲               │  │  ▲
 *                        │  └── recompute ──┘  │  └───────────── copy done ── SWAPPING_IN
 *                        │                     │                                 ▲
 *                        │ steps back          ├─ swap ─► SWAPPING_OUT            │ resume
 *                        │                     │               │ copy done        │
 *                     DRAINING ◄── end or ─────┘               └────────► SWAPPED ┘
 *                        │        recompute
 *                        └─ steps and copy back ─► FREE
 *
 * Edges (A -> B [who]):
 *   FREE         -> WAITING       [bt_sched_submit]
 *   WAITING      -> RUNNING       [bt_sched_admit]
 *   WAITING      -> FREE          [bt_sched_end_req: timeout, cancel]
 *   RUNNING      -> WAITING       [bt_sched_preempt, recompute, no step in flight]
 *   RUNNING      -> DRAINING      [bt_sched_preempt or bt_sched_end_req, steps in flight]
 *   RUNNING      -> SWAPPING_OUT  [bt_sched_preempt, swap]
 *   RUNNING      -> FREE          [bt_sched_end_req, no step in flight]
 *   DRAINING     -> WAITING       [bt_sched_drain: preempted for recompute]
 *   DRAINING     -> FREE          [bt_sched_drain: ended]
 *   SWAPPING_OUT -> SWAPPED       [copy_done]
 *   SWAPPING_OUT -> DRAINING      [bt_sched_end_req]
 *   SWAPPED      -> SWAPPING_IN   [bt_sched_resume_swapped]
 *   SWAPPED      -> FREE          [bt_sched_end_req: timeout, cancel]
 *   SWAPPING_IN  -> RUNNING       [copy_done]
 *   SWAPPING_IN  -> DRAINING      [bt_sched_end_req]
 *
 * Invariants by state are asserted by bt_req_check. Internal to the scheduler.
 */
#ifndef BT_ENGINE_CORE_REQ_H
#define BT_ENGINE_CORE_REQ_H

#include "engine/core/metrics.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_req_state {
    BT_REQ_FREE,
    BT_REQ_WAITING,
    BT_REQ_RUNNING,
    BT_REQ_SWAPPING_OUT,
    BT_REQ_SWAPPED,
    BT_REQ_SWAPPING_IN,
    BT_REQ_DRAINING,
    BT_N_REQ_STATES,
};

struct bt_req {
    /* The first cache line is what each delivery touches. */
    alignas(64) enum bt_req_state state;
    int32_t n_delivered; /* tokens given to the caller */
    int32_t max_new_tokens;
    int32_t n_prompt;
    uint64_t user;
    int64_t arrival_ns;
    int64_t first_token_ns, last_token_ns; /* -1: not yet */
    int64_t gap_max_ns;                    /* between deliveries; -1: fewer than two */
    uint32_t generation;                   /* of the place; counts its uses */
    bool ended;    /* record delivered; the place waits for steps or a copy */
    bool admitted; /* has been resident before */
    bool degraded;
    uint8_t priority;

    uint64_t key;           /* place in the order: smaller runs first; unique among the living */
    int64_t deadline_ns;    /* INT64_MAX: none */
    int64_t scheduled_ns;   /* -1: not yet */
    const uint64_t *hashes; /* borrowed until the end; NULL: unique content */
    int32_t n_hashes, hash_tokens;
    int32_t n_keyed;  /* tokens in whole blocks that have a content key */
    int32_t n_cached; /* of the first admission */
    int32_t n_preempt_swap, n_preempt_recompute;
    int32_t slot;              /* row of the resident sequence; -1: not resident */
    int32_t host_head, n_host; /* chain of host blocks, token order; -1 and 0: none */
    int32_t saved_ctx;         /* tokens whose KV is in the host blocks */
    int32_t saved_draft_ctx;   /* of those, with draft KV */
    int32_t lost_ctx;          /* tokens whose KV a recompute preemption threw away */
    int32_t queue_pos;         /* in the waiting or the swapped heap; -1: in none */
    int32_t deadline_pos;      /* in the deadline heap; -1: not in it */
    int32_t next_free;         /* chain of free places */
    uint8_t kv_class;
};

/* "WAITING"; never NULL. */
const char *bt_req_state_name(enum bt_req_state state);

/* Whether the table of edges has from -> to. */
bool bt_req_edge_legal(enum bt_req_state from, enum bt_req_state to);

/* Takes an edge; asserts that it is legal. The one place that writes `state`. */
void bt_req_transition(struct bt_req *r, enum bt_req_state to);

/* Asserts what must hold of a request by itself in its state. */
void bt_req_check(const struct bt_req *r);

#ifdef __cplusplus
}
#endif

#endif
