/* The law of this machine's processor ("host"): operations of the CPU executor as they were
 * measured inside its steps (berth calibrate).
 *
 * A product or elementwise operation is a broken line over tokens, linear between measured points
 * and in pieces of the last one beyond it, as the executor cuts batches; of a shape that was not
 * measured, the nearest measured one by its share of the work. Decode attention is a broken line
 * over context for each number of sequences; prefill attention is fixed x sequences + a x KV tokens
 * read + b x query tokens + c x query-key pairs fitted to the measured chunks. What was not
 * measured at all is the roofline's. Samples carry bt_op names; a host sample (BT_OP_HOST) is what
 * a step of m sequences takes beside its operations. Fusion does not exist here: a fused step costs
 * the sum of its parts.
 */
#ifndef BT_SIM_COST_HOST_LAW_H
#define BT_SIM_COST_HOST_LAW_H

#include "sim/cost/law.h"
#include "sim/cost/sample.h"
#include "sim/cost/step.h"
#include "sim/cost/step_trust.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_host_calibration {
    struct bt_sample_set samples;    /* owned */
    enum bt_trust level;             /* measured, or less where this is not quite the machine */
    char text[BT_ORIGIN_TEXT_BYTES]; /* "this machine", ".. with 2 threads, not 1" */
};

void bt_host_calibration_init(struct bt_host_calibration *h);
void bt_host_calibration_fini(struct bt_host_calibration *h);

/* The law for one model. The calibration is borrowed during creation. BT_ERR_ARG as
 * bt_roofline_law_create; BT_ERR_NOMEM, BT_ERR_LIMIT. */
BT_NODISCARD enum bt_code bt_host_law_create(const struct bt_host_calibration *h,
                                             const struct bt_gpu *gpu,
                                             const struct bt_step_model *model, bool fused,
                                             struct bt_law *out, struct bt_error *err);

/* Where each operation's time comes from: BT_STEP_OPS of them, owned by the law. */
const struct bt_op_origin *bt_host_law_origins(const struct bt_law *law);

/* The cost model of the host. Errors as bt_host_law_create. */
BT_NODISCARD enum bt_code bt_host_cost_create(const struct bt_host_calibration *h,
                                              const struct bt_step_opts *opts, struct bt_cost *out,
                                              struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
