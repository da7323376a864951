/* What a run did, as a document with DESIGN section 5's names. Threading: no state. */
#ifndef BT_CLI_METRICS_JSON_H
#define BT_CLI_METRICS_JSON_H

#include "cli/out.h"
#include "engine/core/metrics.h"
#include "sim/cost/cost.h"
#include "sim/run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every metric of a run; `usd_per_h` of all its GPUs (NAN: unpriced) gives the costs. The windows
 * are a list, and left out when `windows` is false. */
json_t *bt_metrics_json(const struct bt_summary *s, double usd_per_h, bool windows);

/* {level, weakest, step_error} of a cost model. */
json_t *bt_trust_json(const struct bt_cost *cost);

/* The document of one run: command, version, config, stack, trust, metrics. */
json_t *bt_run_json(const char *command, const struct bt_deploy *deploy,
                    const struct bt_summary *summary, double usd_per_h, bool windows);

/* Lines that say what a run's numbers mean, for the table form: bottleneck, trust. */
json_t *bt_run_remarks(const struct bt_deploy *deploy, const struct bt_summary *summary);

#ifdef __cplusplus
}
#endif

#endif
