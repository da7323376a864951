/* The reference executor: runs the scheduler's step plans with real arithmetic on the CPU.
 *
 * One step at a time, finished when submit returns. Copies are memcpy and end with the step that
 * starts them: swap-outs first, then swap-ins, then copies on write, then the compute.
 *
 * Speculation, when plans ask for it (k_spec > 0), in one of three ways, chosen at creation:
 *   draft model   its own layers in the same blocks; catches up as draft_catchup says
 *   self          the first N layers of the target with the final norm and lm_head; they read and
 *                 write the target's own KV, which the verification writes again
 *   Medusa        heads on the last hidden state, kept for each slot
 * The target verifies all draft tokens in one pass. Rejected ones need no undoing: their KV lies
 * beyond the context and is written over. Greedy requests accept what the argmax would have said,
 * sampled ones by the rejection rule (sample.h), whose outcome has exactly the target's
 * distribution.
 *
 * A shared prefix is verified when a sequence starts: the ids whose KV lies in its blocks must be
 * the request's own, else the request fails. So a hash collision is seen.
 *
 * Ownership: the executor owns its pool; models and the table of requests are borrowed and outlive
 * it. Threading: one thread; OpenMP inside.
 */
#ifndef BT_ENGINE_CPU_EXECUTOR_CPU_H
#define BT_ENGINE_CPU_EXECUTOR_CPU_H

#include "engine/block_layout.h"
#include "engine/core/executor.h"
#include "engine/core/sched.h"
#include "engine/cpu/profile.h"
#include "engine/executor_opts.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens computed at a time unless max_rows says otherwise: larger batches run in pieces of them.
 */
enum { BT_CPU_PIECE_ROWS = 256 };

/* Errors of bt_executor_opts_check; BT_ERR_ARG for a model that is only a shape; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_cpu_executor_create(const struct bt_executor_opts *opts,
                                                 struct bt_executor *out, struct bt_error *err);

/* Bytes by purpose. */
void bt_cpu_executor_memory(const struct bt_executor *e, struct bt_executor_memory *out);

/* What static activation scales have met so far. */
struct bt_clip_counts bt_cpu_executor_clipped(const struct bt_executor *e);

/* For measuring. The target's passes add to the profile, which outlives the executor; and plausible
 * keys and values go to every block, so that contexts need no prefill. */
void bt_cpu_executor_profile(const struct bt_executor *e, struct bt_cpu_profile *profile);
void bt_cpu_executor_fill_kv(const struct bt_executor *e);

/* Fills what scheduler and executor must agree on: rows, blocks, classes, context, draft tokens and
 * steps in flight. max_batched_tokens is raised to max_seqs where it is less. */
void bt_cpu_executor_fit_sched(const struct bt_executor *e, struct bt_sched_opts *sched);

#ifdef __cplusplus
}
#endif

#endif
