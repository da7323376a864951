/* The time of one step on the CUDA executor, and of its parts, in a batch of a given shape; what
 * the GPU itself can do; and a sequence's scores.
 *
 * Steps are the executor's own, two in flight as in service. A part is timed by itself: the part of
 * every layer, one after the other, so that weights are as cold in L2 as they are in a step.
 *
 * Ownership: a session owns its executor; the model is borrowed during creation but for its config.
 * Threading: one call at a time.
 */
#ifndef BT_ENGINE_CUDA_MEASURE_H
#define BT_ENGINE_CUDA_MEASURE_H

#include "engine/core/gpu.h"
#include "engine/cuda/executor_cuda.h"
#include "engine/meter.h"
#include "engine/score.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Errors as bt_cuda_executor_create; bt_meter_destroy ends it. */
BT_NODISCARD enum bt_code bt_cuda_meter_create(const struct bt_meter_opts *opts,
                                               struct bt_meter **out, struct bt_error *err);

/* As bt_cpu_meter_run; step_ns is the time from one step's end to the next one's. */
BT_NODISCARD enum bt_code bt_cuda_meter_run(struct bt_meter *meter,
                                            const struct bt_step_shape *shape, int32_t min_repeats,
                                            int64_t budget_ns, struct bt_step_time *out,
                                            struct bt_error *err);

/* Measures the GPU: memory, memory bandwidth (reading), 16-bit and INT8 products by the fastest
 * library kernels, copies over PCIe by size, both ways and both at once. product is the device's
 * name; name and family are left to the caller. Takes about a second. */
BT_NODISCARD enum bt_code bt_cuda_measure_gpu(struct bt_gpu *out, struct bt_error *err);

/* As engine/cpu/session.h. */
BT_NODISCARD enum bt_code bt_cuda_session_create(const struct bt_session_opts *opts,
                                                 struct bt_session **out, struct bt_error *err);
void bt_cuda_session_destroy(struct bt_session *s);
BT_NODISCARD enum bt_code bt_cuda_session_run(struct bt_session *s, const int32_t *ids, int32_t n,
                                              int32_t from, int32_t first, float *logits,
                                              struct bt_error *err);
BT_NODISCARD enum bt_code bt_cuda_session_score(struct bt_session *s, const int32_t *ids, int32_t n,
                                                struct bt_score *out, double *nll_of,
                                                struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
