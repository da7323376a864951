/* The time of one step on the CPU executor, operation by operation, in a batch of a given shape.
 *
 * The steps are the executor's own, with random tokens and a filled KV pool, so that caches are as
 * warm as they are in service. Threading: one call at a time; OpenMP inside.
 */
#ifndef BT_ENGINE_CPU_MEASURE_H
#define BT_ENGINE_CPU_MEASURE_H

#include "engine/cpu/executor_cpu.h"
#include "engine/meter.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Errors as bt_cpu_executor_create; bt_meter_destroy ends it. */
BT_NODISCARD enum bt_code bt_cpu_meter_create(const struct bt_meter_opts *opts,
                                              struct bt_meter **out, struct bt_error *err);

/* Runs the step once to warm up, then until budget_ns is spent, at least min_repeats and at most
 * BT_STEP_REPEATS_MAX times. The shape fits. Errors of the executor. */
BT_NODISCARD enum bt_code bt_cpu_meter_run(struct bt_meter *meter,
                                           const struct bt_step_shape *shape, int32_t min_repeats,
                                           int64_t budget_ns, struct bt_step_time *out,
                                           struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
