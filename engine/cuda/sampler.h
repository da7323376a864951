/* Choosing tokens on the GPU, by the rules and the random numbers of engine/sample.h: greedy,
 * temperature, top-k, top-p without sorting the vocabulary, and the acceptance of draft tokens.
 * Ties go to the lower id. Logits are float.
 *
 * Every sequence of a step has a row of bt_cuda_choice, at a fixed device address, so that a
 * captured graph serves any batch. Draws are functions of (seed, purpose, position) alone, computed
 * on the device to the bit as bt_sample_uniform does.
 */
#ifndef BT_ENGINE_CUDA_SAMPLER_H
#define BT_ENGINE_CUDA_SAMPLER_H

#include "engine/cuda/device.h"
#include "engine/sample.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How one sequence chooses; plain data, uploaded with the step. */
struct bt_cuda_choice {
    int32_t first_row; /* of its 1 + k rows of logits; -1: it emits nothing */
    int32_t k;         /* draft tokens to judge */
    int32_t position;  /* of the first token it may emit, in prompt and answer */
    int32_t slot;      /* where the last token goes for the next step; -1: nowhere */
    float temperature; /* 0: greedy */
    int32_t top_k;
    float top_p;
    float force; /* >= 0: draft tokens are accepted with this conditional probability, by the
                    draw of BT_DRAW_ACCEPT, whatever the logits say; < 0: the true rule */
    uint64_t seed;
};

/* What came out. */
struct bt_cuda_chosen {
    int32_t n_tokens;   /* 1 .. 1 + k; 0: it emits nothing */
    int32_t n_accepted; /* of the draft tokens */
    int32_t failed; /* a logit was NaN, or the greatest not finite: the tokens before it stand */
    int32_t tokens[BT_MAX_SPEC_K + 1];
};

struct bt_cuda_sampler; /* scratch */

/* Scratch for steps of max_seqs sequences and max_k draft tokens each. Returns BT_ERR_ARG for a
 * vocabulary of more than 2^20 tokens, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_cuda_sampler_create(struct bt_cuda_arena *arena, int32_t vocab,
                                                 int32_t max_seqs, int32_t max_k,
                                                 struct bt_cuda_sampler **out,
                                                 struct bt_error *err);
void bt_cuda_sampler_destroy(struct bt_cuda_sampler *s);

/* Target's side: judges drafts [n_seqs, max_k] (NULL when no sequence has k > 0) by logits
 * [rows, vocab], appends the bonus or the replacement, writes chosen [n_seqs] and last[slot]. q is
 * what bt_cuda_sample_draft kept. A sampled row's logits become its probabilities. A replacement
 * of a draft token that was forced out is the target's own token. greedy: the caller knows that no
 * choice has a temperature above 0; nothing is launched for probabilities then. In stream order;
 * may be captured. */
void bt_cuda_sample(struct bt_cuda_sampler *s, float *logits, const struct bt_cuda_choice *choices,
                    int32_t n_seqs, bool greedy, const int32_t *drafts, const float *q,
                    struct bt_cuda_chosen *chosen, int32_t *last, struct CUstream_st *stream);

/* Draft's side: token j of each sequence with k > j from its row of logits [n_seqs, vocab] to
 * drafts [n_seqs, max_k]; a sampled one's distribution goes to q [n_seqs, max_k, vocab] (may be
 * NULL when all are greedy or forced). A forced sequence's draft tokens are the likeliest. Logits
 * that are no numbers propose token 0 with certainty, as on the CPU. */
void bt_cuda_sample_draft(struct bt_cuda_sampler *s, const float *logits,
                          const struct bt_cuda_choice *choices, int32_t n_seqs, bool greedy,
                          int32_t j, int32_t *drafts, float *q, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
