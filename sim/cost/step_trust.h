/* What a step's time is worth, from what its operations' times are worth.
 *
 * Level: the weakest operation decides, among those that take at least a tenth of one of the steps
 * that matter; it is named. Smaller ones count in the bound alone.
 *
 * Bound: an operation's error weighs by its share of the step. Errors of one source (one surface,
 * one law) add, because what the source misses it misses for all; different sources are independent
 * and combine in quadrature. Before a run the bound is the worst of the steps that matter: decode
 * batches of 1 to 256 at 1,024 and 4,096 tokens of context, prefills of 512 to 8,192 tokens; after
 * it, that of the steps it was made of.
 */
#ifndef BT_SIM_COST_STEP_TRUST_H
#define BT_SIM_COST_STEP_TRUST_H

#include "engine/core/trust.h"
#include "sim/cost/step.h"
#include "sim/cost/step_mix.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_ORIGIN_TEXT_BYTES = 96 };

/* Where the time of one operation comes from. */
struct bt_op_origin {
    const void *source; /* equal pointers: one source. NULL: the operation itself is the source */
    enum bt_trust level;
    double log_error; /* its time is within exp(+-log_error), nine times in ten */
    char text[BT_ORIGIN_TEXT_BYTES];
};

/* Fills trust, weakest and step_error of a model made by bt_step_cost_create from the origins of
 * its operations; draft NULL: none. Batches beyond max_seqs are left out. */
void bt_step_trust_fill(struct bt_cost *cost, const struct bt_op_origin target[BT_STEP_OPS],
                        const struct bt_op_origin *draft, int32_t max_seqs, int32_t draft_steps);

/* Relative bound of the time of all steps of a mix together: an operation weighs by its share of
 * the whole. -1 for a mix without steps. Arguments as above. */
double bt_step_mix_error(const struct bt_cost *cost, const struct bt_step_mix *mix,
                         const struct bt_op_origin target[BT_STEP_OPS],
                         const struct bt_op_origin *draft);

/* What whole runs are off by beyond their kernels: P90 of TPOT on an H200 (docs/SILICON.md). Part
 * of every model's step_error, in quadrature. */
#define BT_STEP_ASSEMBLY_ERROR 0.10

/* Bound of the ratio of two models' times of one step (two formats of one model, say), relative:
 * a source that both have errs alike in both, and only the difference of its shares counts. */
double bt_step_ratio_error(const struct bt_cost *a,
                           const struct bt_op_origin origins_a[BT_STEP_OPS],
                           const struct bt_cost *b,
                           const struct bt_op_origin origins_b[BT_STEP_OPS],
                           const struct bt_batch *batch);

#ifdef __cplusplus
}
#endif

#endif
