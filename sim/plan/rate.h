/* The search for a rate, inside the planner (bt_plan_max_rate is its public face). */
#ifndef BT_SIM_PLAN_RATE_H
#define BT_SIM_PLAN_RATE_H

#include "sim/plan/trial.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Highest rate that the trial's deployment holds; its rate_scale is what is searched. The edge is
 * known to relative_width, e.g. 0.02. */
BT_NODISCARD enum bt_code bt_rate_search(const struct bt_plan_spec *spec,
                                         const struct bt_plan_env *env,
                                         const struct bt_trial *trial, double relative_width,
                                         struct bt_max_rate *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
