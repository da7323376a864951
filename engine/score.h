/* Scoring texts: what a session of one sequence on a model is made from, and what comes out. */
#ifndef BT_ENGINE_SCORE_H
#define BT_ENGINE_SCORE_H

#include "engine/model/model.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One sequence on a model; what it is made of is the executor's. */
struct bt_session;

struct bt_session_opts {
    const struct bt_model *model; /* borrowed, outlives the session */
    enum bt_act_format compute;   /* as bt_executor_opts */
    enum bt_kv_format kv;         /* as bt_executor_opts */
    int32_t max_ctx;              /* tokens; 0: the model's */
    int32_t block_tokens;         /* 0: BT_DEFAULT_BLOCK_TOKENS */
    int32_t max_rows;             /* tokens computed at a time; 0: the session's default */
    int32_t n_threads;            /* of the CPU; 0: all that OpenMP would use */
};

struct bt_score {
    int32_t n_predictions; /* n - 1 */
    int32_t n_correct;     /* the likeliest token was the right one; ties to the lower id */
    double nll;            /* summed over predictions, nats */
    bool finite;           /* no logit was NaN or infinite */
};

/* Checks n tokens that go on at position `from` of a sequence. BT_ERR_ARG for ids outside the
 * vocabulary, or a sequence beyond max_ctx tokens. */
BT_NODISCARD enum bt_code bt_session_check(const int32_t *ids, int32_t n, int32_t from,
                                           int32_t max_ctx, int32_t vocab, struct bt_error *err);

/* Adds n predictions by their logits [n, vocab]; right [n]: the tokens that came, in the
 * vocabulary; nll_of, [n] or NULL, gets each prediction's share. */
void bt_score_rows(const float *logits, int32_t n, int32_t vocab, const int32_t *right,
                   struct bt_score *out, double *nll_of);

#ifdef __cplusplus
}
#endif

#endif
