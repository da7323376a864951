/* What no scheduler can beat: lower bounds on replicas and latency, from the cost model alone.
 *
 * Replicas: the work of the whole stream (FLOPs at the peak rate, KV bytes read at the peak
 * bandwidth, KV tokens held for the shortest possible time) against what one replica can do from
 * the first arrival to the last plus the slack that the SLOs leave. Latency: each request alone on
 * an idle replica, with its shared prefix cached and every draft token accepted. Both are
 * optimistic by construction: what they exclude, a simulation would exclude too.
 */
#ifndef BT_SIM_PLAN_BOUND_H
#define BT_SIM_PLAN_BOUND_H

#include "sim/plan/plan.h"
#include "sim/plan/stream.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_bound {
    int32_t replicas;    /* at least so many; 1 in a closed loop */
    const char *binding; /* what asks for them: "compute", "KV bandwidth" or "KV memory" */
    int32_t slo;         /* first SLO that even lone requests miss; -1: none */
    double alone_s;      /* their statistic for it, or for the first SLO */
};

void bt_bound_compute(const struct bt_plan_spec *spec, const struct bt_deploy *deploy,
                      const struct bt_stream *stream, struct bt_bound *out);

/* Conditional acceptance at which speculation neither gains nor loses at this decode batch: the
 * root a of (1 - a^(k+1)) / (1 - a) = t_spec / t_plain. NAN when even a = 1 loses, or there is no
 * speculation; 0 when it always gains.
 * Source: Leviathan et al. 2023, theorem 3.8, with measured or modelled step times for 1 + k c. */
double bt_break_even_acceptance(const struct bt_deploy *deploy, double batch, double context);

#ifdef __cplusplus
}
#endif

#endif
