/* The steps that a run was made of, in classes: so that what a step's time is worth can be asked of
 * the batches that were served, not of all there might be. Plain data; one thread at a time.
 */
#ifndef BT_SIM_COST_STEP_MIX_H
#define BT_SIM_COST_STEP_MIX_H

#include "sim/cost/cost.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* With and without a prefill, by the power of two of the number of decodes. */
enum { BT_STEP_MIX_SIZES = 16, BT_STEP_MIX_CLASSES = 2 * BT_STEP_MIX_SIZES };

struct bt_step_mix {
    struct bt_step_sum {
        int64_t n_steps;
        int64_t n_decode, n_decode_tokens, decode_ctx, decode_ctx_long;
        int64_t n_prefill, n_prefill_tokens, prefill_pairs, prefill_ctx;
        int64_t n_logits, n_draft_steps, n_catchup_tokens;
    } classes[BT_STEP_MIX_CLASSES];
};

/* Counts one step. */
void bt_step_mix_add(struct bt_step_mix *mix, const struct bt_batch *b);

/* The mean batch of a class that has steps. */
struct bt_batch bt_step_mix_mean(const struct bt_step_sum *sum);

#ifdef __cplusplus
}
#endif

#endif
