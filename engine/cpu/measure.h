/* The time of one step on the CPU executor, operation by operation, in a batch of a given shape.
 *
 * The steps are the executor's own, with random tokens and a filled KV pool, so that caches are as
 * warm as they are in service. Ownership: a meter owns its executor and borrows the model.
 * Threading: one call at a time; OpenMP inside.
 */
#ifndef BT_ENGINE_CPU_MEASURE_H
#define BT_ENGINE_CPU_MEASURE_H

#include "engine/cpu/executor_cpu.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_cpu_meter;

struct bt_cpu_meter_opts {
    const struct bt_model *model; /* borrowed, outlives the meter */
    enum bt_act_format compute;   /* as bt_cpu_executor_opts */
    enum bt_kv_format kv;
    int32_t block_tokens;
    int32_t max_seqs;      /* of any shape */
    int32_t max_ctx;       /* tokens of a sequence, those of the step included */
    int64_t max_kv_tokens; /* of all sequences of a shape together */
    int32_t n_threads;
    enum bt_clock clock;
};

/* Errors as bt_cpu_executor_create. */
BT_NODISCARD enum bt_code bt_cpu_meter_create(const struct bt_cpu_meter_opts *opts,
                                              struct bt_cpu_meter **out, struct bt_error *err);
/* NULL is allowed. */
void bt_cpu_meter_destroy(struct bt_cpu_meter *m);

/* n_seqs sequences with `ctx` tokens of KV each, which compute n_tokens more and give one token out
 * each. */
struct bt_cpu_step_shape {
    int32_t n_seqs;   /* > 0 */
    int32_t ctx;      /* >= 0 */
    int32_t n_tokens; /* > 0 */
};

/* Whether the shape is within the meter's limits. */
bool bt_cpu_meter_fits(const struct bt_cpu_meter *m, const struct bt_cpu_step_shape *s);

enum { BT_CPU_REPEATS_MAX = 64 };

struct bt_cpu_step_time {
    int32_t n_repeats;
    double op_ns[BT_CPU_OPS];     /* medians of all layers together */
    double op_spread[BT_CPU_OPS]; /* half the interquartile range */
    double rest_ns;               /* median of the step's time outside the operations */
    double rest_spread;
    double step_ns; /* median of the whole step */
};

/* Runs the step once to warm up, then until budget_ns is spent, at least min_repeats and at most
 * BT_CPU_REPEATS_MAX times. The shape fits. Errors of the executor. */
BT_NODISCARD enum bt_code bt_cpu_meter_run(struct bt_cpu_meter *m,
                                           const struct bt_cpu_step_shape *shape,
                                           int32_t min_repeats, int64_t budget_ns,
                                           struct bt_cpu_step_time *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
