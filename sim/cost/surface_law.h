/* The law of measured operations (sim/cost/law.h): each from the surface that answers for it on a
 * GPU and stack, from a relative GPU, or from the roofline where nobody measured it.
 *
 * What a model asks for is compiled when the law is made: curves of each matrix product,
 * elementwise operation and collective over their main coordinate, decode attention as an affine
 * law of total context for each number of sequences, prefill attention as a table of chunk and
 * sequences. So a law is quick to ask, and it is immutable. Rules and tables: docs/COST_MODEL.md.
 */
#ifndef BT_SIM_COST_SURFACE_LAW_H
#define BT_SIM_COST_SURFACE_LAW_H

#include "sim/cost/law.h"
#include "sim/cost/library.h"
#include "sim/cost/step.h"
#include "sim/cost/step_trust.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_surface_law_opts {
    struct bt_surface_library *library; /* borrowed: outlives the law */
    const struct bt_gpu *gpu;           /* borrowed during creation */
    const char *stack;                  /* "vllm-0.19"; NULL: berth */
    const struct bt_step_model *model;  /* borrowed during creation */
    int32_t tp;                         /* ranks; 0: 1 */
    bool medusa;                        /* Medusa heads are asked for */
    enum bt_source_without without;     /* for comparisons */
};

/* BT_ERR_ARG when the data sheet lacks what the roofline needs; BT_ERR_INPUT, BT_ERR_LIMIT,
 * BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_surface_law_create(const struct bt_surface_law_opts *opts,
                                                struct bt_law *out, struct bt_error *err);

/* Where each operation's time comes from: BT_STEP_OPS of them, owned by the law. */
const struct bt_op_origin *bt_surface_law_origins(const struct bt_law *law);

/* Most that affine decode attention differs from the surface it was fitted to, nine times in ten of
 * the batches and contexts that it was fitted over; 0: nothing was fitted. */
double bt_surface_law_affine_error(const struct bt_law *law);

/* A cost model from surfaces for a stack, with its trust and bound. BT_ERR_ARG as
 * bt_roofline_create; BT_ERR_INPUT, BT_ERR_LIMIT, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_surface_cost_create(struct bt_surface_library *library,
                                                 const char *stack, enum bt_source_without without,
                                                 const struct bt_step_opts *opts,
                                                 struct bt_cost *out, struct bt_error *err);

/* Relative bound of the time of a run's steps together: cost->step_error where the model's
 * operations do not tell (a fit, this machine's processor) or the mix is empty. */
double bt_surface_cost_mix_error(const struct bt_cost *cost, const struct bt_step_mix *mix);

/* bt_step_ratio_error of two models made by bt_surface_cost_create. */
double bt_surface_cost_ratio_error(const struct bt_cost *a, const struct bt_cost *b,
                                   const struct bt_batch *batch);

#ifdef __cplusplus
}
#endif

#endif
