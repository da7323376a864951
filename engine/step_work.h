/* What executors share about a step: useful work, and where an answer ends. Pure. */
#ifndef BT_ENGINE_STEP_WORK_H
#define BT_ENGINE_STEP_WORK_H

#include "engine/block_layout.h"
#include "engine/core/executor.h"
#include "engine/gen.h"
#include "engine/model/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Useful work, as the cost model counts it, into result->flops and bytes. */
void bt_step_count_work(const struct bt_arch *target, int64_t weight_bytes,
                        const struct bt_block_layout *layout, const struct bt_step_plan *plan,
                        struct bt_step_result *result);

/* Appends a token to an answer that has room; true when it ends the answer. */
bool bt_gen_emit(const struct bt_model_config *model, struct bt_gen_request *r,
                 struct bt_result_seq *rs, int32_t token);

/* Counts a verification whose tokens have been emitted; the judged draft tokens count as they are
 * judged. */
void bt_gen_count_verification(struct bt_gen_request *r, int32_t k_spec,
                               const struct bt_result_seq *rs);

#ifdef __cplusplus
}
#endif

#endif
