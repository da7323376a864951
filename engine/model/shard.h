/* A rank's share of a layer's matrices under tensor parallelism.
 *
 *   q, k, v, gate, up   outputs are shared out: a rank has its heads, its part of the MLP; what the
 *                       ranks compute lies side by side
 *   o, down             inputs are shared out: what the ranks compute adds up; the bias is rank 0's
 *
 * KV heads that are fewer than ranks are on several of them, as bt_arch_shard counts. Pure: sources
 * are only read.
 */
#ifndef BT_ENGINE_MODEL_SHARD_H
#define BT_ENGINE_MODEL_SHARD_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Groups of inputs that a cut may leave: smaller ones would cost more in scales than they save. */
enum { BT_SHARD_MIN_GROUP = 16 };

/* Which outputs, or inputs of o and down, a rank has: from .. from + n - 1. */
struct bt_shard_range {
    int32_t from, n;
};

/* a: the whole model's, which bt_arch_check_tp lets be shared out by n_ranks; 0 <= rank < n_ranks.
 */
struct bt_shard_range bt_shard_range_of(const struct bt_arch *a, enum bt_linear_id id,
                                        int32_t n_ranks, int32_t rank);

/* Outputs of a matrix: a view of it. */
struct bt_linear bt_linear_outputs(const struct bt_linear *w, struct bt_shard_range r);

/* Inputs of a matrix: a copy in the arena (what need not be copied is shared with w), without the
 * bias. A cut inside a group makes smaller groups that repeat its scale. Static activation scales
 * stay; dynamic ones will be of the rank's inputs alone, finer than the whole's. Returns BT_ERR_ARG
 * for act-order, which scatters a group over the ranks, and for a cut that leaves groups below
 * BT_SHARD_MIN_GROUP; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_linear_inputs(const struct bt_linear *w, struct bt_shard_range r,
                                           struct bt_arena *arena, struct bt_linear *out,
                                           struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
