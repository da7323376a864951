/* The real engine's executors behind one table, so that commands are written once: making one,
 * scoring texts, measuring steps.
 *
 * Ownership: what a create gives is ended by its destroy (an executor by its own ops, a meter by
 * bt_meter_destroy). Threading: as the executors say.
 */
#ifndef BT_ENGINE_BACKEND_H
#define BT_ENGINE_BACKEND_H

#include "engine/core/executor.h"
#include "engine/core/gpu.h"
#include "engine/core/sched.h"
#include "engine/executor_opts.h"
#include "engine/meter.h"
#include "engine/score.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_backend {
    const char *name; /* "cpu", "cuda" */
    int32_t inflight_max;
    bool makes_weights; /* a model may be only a shape: random weights */
    int32_t piece_rows; /* tokens computed at a time unless options say otherwise */

    bt_executor_create_fn *create;
    void (*memory)(const struct bt_executor *x, struct bt_executor_memory *out);
    /* Fills what scheduler and executor must agree on: rows, blocks, classes, context, draft tokens
     * and steps in flight. max_batched_tokens is raised to max_seqs where it is less. */
    void (*fit_sched)(const struct bt_executor *x, struct bt_sched_opts *sched);

    /* One sequence on a model; see engine/cpu/session.h. */
    enum bt_code (*session_create)(const struct bt_session_opts *opts, struct bt_session **out,
                                   struct bt_error *err);
    enum bt_code (*session_run)(struct bt_session *s, const int32_t *ids, int32_t n, int32_t from,
                                int32_t first, float *logits, struct bt_error *err);
    enum bt_code (*session_score)(struct bt_session *s, const int32_t *ids, int32_t n,
                                  struct bt_score *out, double *nll_of, struct bt_error *err);
    /* What static activation scales have met so far, in a session and in an executor; NULL: not
     * counted. */
    struct bt_clip_counts (*session_clipped)(const struct bt_session *s);
    struct bt_clip_counts (*clipped)(const struct bt_executor *x);
    void (*session_destroy)(struct bt_session *s); /* NULL is allowed */

    /* The time of a step and its parts; see engine/meter.h and engine/cpu/measure.h. */
    enum bt_code (*meter_create)(const struct bt_meter_opts *opts, struct bt_meter **out,
                                 struct bt_error *err);
    enum bt_code (*meter_run)(struct bt_meter *m, const struct bt_step_shape *s,
                              int32_t min_repeats, int64_t budget_ns, struct bt_step_time *out,
                              struct bt_error *err);
    /* Which kernels run an executor's matrices, and why; may be NULL. */
    void (*explain)(const struct bt_executor *x, FILE *f);

    /* The machine itself: rates, memory, links; see engine/cpu/host.h and engine/cuda/measure.h. */
    enum bt_code (*measure)(int32_t n_threads, struct bt_gpu *out, struct bt_error *err);
};

#ifdef __cplusplus
}
#endif

#endif
