/* One simulation asked as a question: does this deployment, with so many replicas, hold the SLOs?
 *
 * A percentile limit is held when the statistic keeps it AND the same share of all requests that
 * arrived did so: what was rejected, timed out, failed or cut by the horizon has missed. A limit on
 * a mean or maximum is held when the statistic keeps it and at most 1% went unserved.
 */
#ifndef BT_SIM_PLAN_TRIAL_H
#define BT_SIM_PLAN_TRIAL_H

#include "sim/plan/plan.h"
#include "sim/plan/stream.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_trial {
    const struct bt_deploy *deploy;         /* borrowed */
    const struct bt_deploy *degrade_deploy; /* borrowed; NULL: none */
    const struct bt_stream *stream;         /* borrowed */
    int32_t replicas;                       /* that the whole stream is shared among */
    bool one_share;                         /* simulate one of them on its share only */
    double rate_scale;
    double step_scale;
    uint64_t seed;
    struct bt_step_mix *mix; /* borrowed: receives the steps of the run; NULL: not wanted */
    bool to_the_end;         /* do not stop when the answer is certain to be no */
    struct bt_arena *memory; /* borrowed: where the simulation lives; NULL: memory of its own */
};

struct bt_trial_result {
    bool holds;
    bool stopped;       /* early: the answer was certain, the statistics are partial */
    int32_t broken_slo; /* first that is not held; -1: none, or memory headroom */
    bool headroom_broken;
    double slo_value_s[BT_MAX_SLOS];
    double met_fraction[BT_MAX_SLOS]; /* of all that arrived after the warm-up */
    double unservable_fraction; /* as met_fraction: over the length, or more KV than the pool; at
                                   least so many where the run was stopped */
    bool hopeless;              /* .. and they alone break the first broken limit */
    enum bt_bottleneck bottleneck;
    double kv_peak_fraction;
    double crowd; /* requests on a replica, running or waiting, time-averaged */
};

/* Runs it. `summary` may be NULL. Errors are those of bt_sim_run. */
BT_NODISCARD enum bt_code bt_trial_run(const struct bt_plan_spec *spec,
                                       const struct bt_plan_env *env, const struct bt_trial *trial,
                                       struct bt_trial_result *out, struct bt_summary *summary,
                                       struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
