/* replay --compare: what was measured where the trace was taken, beside the prediction. */
#ifndef BT_CLI_REPLAY_COMPARE_H
#define BT_CLI_REPLAY_COMPARE_H

#include "cli/out.h"
#include "cli/simulate.h"
#include "sim/workload/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds "compare" to the document: a row a metric and statistic with measured_s, predicted_s and
 * error_fraction, over the requests that both sides finished; and sets the view that shows it.
 * BT_ERR_INPUT when the trace has no measured values. */
BT_NODISCARD enum bt_code bt_replay_compare(const struct bt_trace *trace,
                                            const struct bt_simulation *s, json_t *doc,
                                            const struct bt_out_view **view, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
