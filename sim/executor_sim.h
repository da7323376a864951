/* The executor in virtual time: a cost model says how long each step takes.
 *
 * One replica's machine is four serial resources:
 *   host    plans and launches a step: host_ns of the cost model, from the moment of submission
 *   device  runs steps one after another: step t+1 starts when its host work is done and t has
 * ended out,in  the two directions of the host link, each first come first served. A swap-out
 * starts when the steps in flight before it have ended; a copy that meets the other direction busy
 * is slowed so that both together reach the link's duplex rate. With one step in flight host and
 * device take turns; with two or more, host work hides behind the device. Device picoseconds are
 * carried along, so that no time is lost to rounding.
 *
 * Answers end where the truth says, which the scheduler never sees. Whether a draft token is
 * accepted is drawn per (request, position in the answer), so that no policy moves a draw.
 *
 * submit() always answers BT_SUBMIT_DONE: done_ns lies ahead, and results are due in order. A copy
 * that ends at or before a step's done_ns is told by that step's result.
 */
#ifndef BT_SIM_EXECUTOR_SIM_H
#define BT_SIM_EXECUTOR_SIM_H

#include "engine/core/error.h"
#include "engine/core/executor.h"
#include "engine/core/limits.h"
#include "sim/cost/step_mix.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a request's answer really is. */
struct bt_sim_truth {
    uint64_t key;     /* of the request: acceptance draws */
    int32_t n_output; /* tokens, > 0 */
};

struct bt_sim_executor_opts {
    const struct bt_cost *cost; /* borrowed */
    /* *truth is the row of user 0; it may move between calls. Borrowed. */
    const struct bt_sim_truth *const *truth;
    struct bt_step_mix *mix; /* borrowed: where steps are counted; NULL: nowhere */
    int32_t inflight_max;    /* 1 .. BT_MAX_INFLIGHT */
    int32_t max_copies;      /* rows of a result's copies_done */
    double step_scale;       /* device time of steps is multiplied by it; 0: 1; to four decimals */
    uint64_t seed;           /* of acceptance */
    int32_t n_acceptance;    /* conditional acceptance by position; the last one holds beyond */
    double acceptance[BT_MAX_SPEC_K];
};

/* BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_sim_executor_create(const struct bt_sim_executor_opts *opts,
                                                 struct bt_executor *out, struct bt_error *err);

/* The key of request number `id` in a run with this seed. */
uint64_t bt_sim_truth_key(uint64_t seed, int64_t id);

/* Sums of a plan as the cost model wants them. */
void bt_sim_batch(const struct bt_step_plan *plan, struct bt_batch *out);

#ifdef __cplusplus
}
#endif

#endif
