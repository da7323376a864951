/* The CUDA executor: runs the scheduler's step plans on one GPU.
 *
 * submit enqueues a step and returns; wait blocks for the oldest. Two steps may be in flight:
 * tokens of the step before that the host has not seen are taken on the device. A step is one copy
 * of its metadata to the device, its kernels, and one copy of the tokens back. Steps of decodes
 * alone are one CUDA graph for each padded batch size; their first one of a size runs by itself.
 *
 * Swaps run on two streams of their own, beside compute: outward ones after the steps in flight.
 * Host memory for them is pinned piece by piece as it is needed.
 *
 * Speculation and the verification of prefixes: as engine/cpu/executor_cpu.h says, sampling as
 * engine/cuda/sampler.h. Whatever the batch, a token's arithmetic differs by rounding alone.
 *
 * Ownership: the executor owns its device memory; models are borrowed during creation only but for
 * their config, the table of requests outlives it. Threading: one thread.
 */
#ifndef BT_ENGINE_CUDA_EXECUTOR_CUDA_H
#define BT_ENGINE_CUDA_EXECUTOR_CUDA_H

#include "engine/core/executor.h"
#include "engine/core/sched.h"
#include "engine/cuda/device.h"
#include "engine/executor_opts.h"
#include "engine/meter.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CUDA_INFLIGHT_MAX = 2, BT_CUDA_PIECE_ROWS = 2048 };

/* Errors of bt_executor_opts_check; BT_ERR_ARG for formats that have no kernels; BT_ERR_MISSING
 * without a GPU; BT_ERR_NOMEM with what does not fit. */
BT_NODISCARD enum bt_code bt_cuda_executor_create(const struct bt_executor_opts *opts,
                                                  struct bt_executor *out, struct bt_error *err);

/* Bytes by purpose. */
void bt_cuda_executor_memory(const struct bt_executor *x, struct bt_executor_memory *out);

/* Fills what scheduler and executor must agree on. Steps in flight stay as they are where they are
 * 1 or 2, else they are 2. */
void bt_cuda_executor_fit_sched(const struct bt_executor *x, struct bt_sched_opts *sched);

/* For measuring: plausible keys and values in every block. */
BT_NODISCARD enum bt_code bt_cuda_executor_fill_kv(const struct bt_executor *x,
                                                   struct bt_error *err);

/* For measuring: device time of one part of a plan's pass (all layers of it), the other parts left
 * out, in the form that service runs it in (a graph where the plan is one of decodes). n_repeats
 * times into ns. The plan writes KV as a step does. */
BT_NODISCARD enum bt_code bt_cuda_executor_time_part(const struct bt_executor *x,
                                                     const struct bt_step_plan *plan,
                                                     enum bt_step_part part, int32_t n_repeats,
                                                     int64_t *ns, struct bt_error *err);

/* For scoring: runs a plan of one sequence and gives the logits [n_tokens - first, vocab], host, of
 * its tokens from `first` on. */
BT_NODISCARD enum bt_code bt_cuda_executor_logits(const struct bt_executor *x,
                                                  const struct bt_step_plan *plan, int32_t first,
                                                  float *logits, struct bt_error *err);

/* Prints the kernels chosen for each matrix. */
void bt_cuda_executor_explain(const struct bt_executor *x, FILE *f);

#ifdef __cplusplus
}
#endif

#endif
