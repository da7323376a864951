/* Times on a GPU that nobody measured, from surfaces of GPUs that somebody did.
 *
 * A two-term law an operation and format: t = fixed + work / (efficiency x roof). The efficiency is
 * the share of its roof that the relative reaches on its largest work; what its time exceeds that
 * by is the fixed part (launch, pipeline fill, kernels that fill no machine, dequantisation), which
 * is counted in clock cycles and does not shrink with bandwidth or tensor rate. So 20 us that a
 * relative of five times the bandwidth needs for a small INT4 matrix become about 20 us here too,
 * not 100. A relative of less bandwidth than the target hides its fixed part under its memory time:
 * there the mean of that and of its overall law (surface.h) is taken. Relatives are averaged in the
 * logarithm, nearest first: the same architecture family weighs most.
 *
 * Times are those of a serving step: weights and the KV of earlier tokens come from memory, on the
 * relatives and on the target, even where a benchmark found them in a cache.
 *
 * The bound is earned: every measured GPU in turn is predicted from the others, and the interval is
 * the worst GPU's 95th percentile, widened for how few there are and for how far the target's
 * bandwidth lies outside of theirs. Immutable after creation: threads may share it.
 */
#ifndef BT_SIM_COST_TRANSFER_H
#define BT_SIM_COST_TRANSFER_H

#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "sim/cost/surface.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_TRANSFER_RELATIVES_MAX = 16,
};

/* A measured surface and the GPU that it was measured on; both outlive what is made of them. */
struct bt_relative {
    const struct bt_surface *surface; /* borrowed */
    const struct bt_gpu *gpu;         /* borrowed */
};

struct bt_transfer {
    int32_t n_relatives;
    struct bt_relative relatives[BT_TRANSFER_RELATIVES_MAX];
    double weight[BT_TRANSFER_RELATIVES_MAX]; /* sum to 1 */
    /* Of its roofs that the relative reaches: memory, arithmetic. */
    double memory_share[BT_TRANSFER_RELATIVES_MAX], rate_share[BT_TRANSFER_RELATIVES_MAX];
    int32_t nearest;             /* index of the weightiest */
    const struct bt_gpu *target; /* borrowed */

    int32_t n_left_out; /* GPUs that were predicted from the others; 0: the bound is a default */
    double log_bound;   /* the true time is within exp(+-log_bound) of the prediction, 90% */
    double median;      /* the worst GPU's median error when left out, 0.15: 15%; 0: none was */
};

struct bt_transfer_point {
    double time_ns;
    double low_ns; /* of the interval */
    double high_ns;
    bool inside; /* within every relative's measured range */
};

/* Prepares a prediction for `target` from n >= 1 surfaces of one operation and format (several of
 * one GPU may be given; those of the target itself are left aside). BT_ERR_ARG when operations or
 * formats differ; BT_ERR_NOTFOUND when no other GPU (with the same
 * kind of links, for collectives) is among them, or the target has no unit for
 * the format (FP8 on an A100); BT_ERR_LIMIT; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_transfer_init(struct bt_transfer *t,
                                           const struct bt_relative *relatives, int32_t n,
                                           const struct bt_gpu *target, struct bt_error *err);

/* As bt_transfer_init, without the bound: log_bound, median and n_left_out are left at 0. */
BT_NODISCARD enum bt_code bt_transfer_init_point(struct bt_transfer *t,
                                                 const struct bt_relative *relatives, int32_t n,
                                                 const struct bt_gpu *target, struct bt_error *err);

/* Prediction with its interval. */
struct bt_transfer_point bt_transfer_eval(const struct bt_transfer *t,
                                          const struct bt_op_shape *shape);

/* Prediction error on the measured nodes of `truth`, a surface of the target: estimate against
 * measurement, which `cold` raises to what its cold bytes take (bt_op_cold_bytes); *covered (may be
 * NULL) receives the share of nodes inside the interval. */
BT_NODISCARD enum bt_code bt_transfer_error(const struct bt_transfer *t,
                                            const struct bt_surface *truth, bool cold,
                                            struct bt_lattice_error *out, double *covered,
                                            struct bt_error *err);

/* Clock of a GPU's processors that its data-sheet rates assume, Hz; by name, else its family's. */
double bt_transfer_clock(const struct bt_gpu *g);

#ifdef __cplusplus
}
#endif

#endif
