/* Choosing tokens: greedy, temperature, top-k, top-p, and the rejection rule of speculation.
 *
 * Random numbers come by counter: the draw for a purpose at a position is a function of (seed,
 * purpose, position) alone, so that an answer depends neither on the batch nor on the slot, nor on
 * preemption. Ties go to the lower id. Pure; threading: scratch belongs to one thread.
 */
#ifndef BT_ENGINE_SAMPLE_H
#define BT_ENGINE_SAMPLE_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/gen.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_draw {
    BT_DRAW_TOKEN = 0, /* the target's own token, bonus tokens too */
    BT_DRAW_DRAFT,     /* a draft token */
    BT_DRAW_ACCEPT,    /* whether the draft token is accepted */
    BT_DRAW_RESIDUAL,  /* the token in place of a rejected one */
};

/* Uniform in [0, 1) for the token at `position` (of prompt and answer) of a request. */
double bt_sample_uniform(uint64_t seed, enum bt_draw purpose, int64_t position);

struct bt_sampler {
    int32_t vocab;
    int32_t *order; /* [vocab] scratch */
};

BT_NODISCARD enum bt_code bt_sampler_init(struct bt_sampler *s, struct bt_arena *arena,
                                          int32_t vocab, struct bt_error *err);

/* The index of the greatest logit, -1 when one is NaN or the greatest is not finite. */
int32_t bt_sample_argmax(const float *logits, int32_t vocab);

/* The distribution that a request samples from: softmax(logits / temperature), cut to the top k,
 * then to the smallest set of the likeliest that reaches top p, and normalised. temperature > 0.
 * False when a logit is NaN or the greatest is not finite: probs is not set then. */
BT_NODISCARD bool bt_sample_probs(struct bt_sampler *s, const float *logits,
                                  const struct bt_sampling *how, float *probs);

/* The token at u in [0, 1) of the cumulative distribution, in order of ids; probs need not sum to
 * exactly one. */
int32_t bt_sample_at(const float *probs, int32_t vocab, double u);

/* One token from logits, as the request says; -1 when they are not finite. probs: scratch [vocab],
 * not used when greedy. */
int32_t bt_sample_token(struct bt_sampler *s, const float *logits, const struct bt_sampling *how,
                        int64_t position, float *probs);

/* Whether draft token d, drawn from q, stands in for a draw from p: with probability
 * min(1, p[d] / q[d]). Source: Leviathan et al. 2023, Chen et al. 2023. */
bool bt_sample_accepts(const float *p, const float *q, int32_t d, double u);

/* The token in place of a rejected one: from max(p - q, 0), normalised; then the pair of steps
 * draws from p exactly. p and q equal (rounding aside) leaves p itself. */
int32_t bt_sample_residual(const float *p, const float *q, int32_t vocab, double u);

#ifdef __cplusplus
}
#endif

#endif
