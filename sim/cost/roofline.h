/* The cost model from data-sheet rates alone: every operation takes a fixed time plus the longer of
 * its bytes over bandwidth and its operations over the rate, each with an efficiency.
 *
 *   time = fixed + max(bytes / (bandwidth * share), ops(tile(m)) / (rate * efficiency(m)))
 *
 * Constants are set by the H200's published operation tables and hold for every GPU alike: trust is
 * `roofline`, and the error bound is what measured steps of other cards differ by. Every formula
 * and source: docs/COST_MODEL.md.
 */
#ifndef BT_SIM_COST_ROOFLINE_H
#define BT_SIM_COST_ROOFLINE_H

#include "sim/cost/law.h"
#include "sim/cost/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The law of one GPU. BT_ERR_ARG when the data sheet lacks the memory bandwidth or the 16-bit rate;
 * BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_roofline_law_create(const struct bt_gpu *gpu, struct bt_law *out,
                                                 struct bt_error *err);

/* Dense rate, operations a second, at which products of these formats run on this GPU: 16-bit for
 * weights that are dequantised (W8A16, W4A16), int8 for int8 activations, fp8 where the GPU has it.
 * 0 when the GPU lacks the unit. */
double bt_roofline_rate(const struct bt_gpu *gpu, enum bt_weight_format weights,
                        enum bt_act_format activations);

/* The target's rate (bt_roofline_rate of its formats) on one rank. */
double bt_roofline_peak(const struct bt_step_opts *opts);

/* BT_ERR_ARG when the GPU has no unit for the target's or draft's formats. */
BT_NODISCARD enum bt_code bt_roofline_check_units(const struct bt_step_opts *opts,
                                                  struct bt_error *err);

/* What the law is worth, from comparing it with measured surfaces (bt_law_report prints the tables
 * of docs/COST_MODEL.md): nine in ten steps of these formats take between 1 / (1 + error) and
 * 1 + error times what the law says; and the same of one operation, as a logarithm. */
double bt_roofline_step_error(enum bt_weight_format weights, enum bt_act_format activations);
double bt_roofline_log_error(enum bt_step_op op, enum bt_weight_format weights,
                             enum bt_act_format activations);

/* A roofline cost model; opts->peak_flops_per_s 0: the rate of the target's formats. BT_ERR_ARG
 * when the GPU has no unit for the formats. */
BT_NODISCARD enum bt_code bt_roofline_create(const struct bt_step_opts *opts, struct bt_cost *out,
                                             struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
