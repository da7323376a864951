/* Scoring texts: what a session of one sequence on a model is made from, and what comes out. */
#ifndef BT_ENGINE_SCORE_H
#define BT_ENGINE_SCORE_H

#include "engine/model/model.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_session_opts {
    const struct bt_model *model; /* borrowed, outlives the session */
    enum bt_act_format compute;   /* FP32, FP16, BF16; default: FP32 */
    enum bt_kv_format kv;         /* FP32, FP16, BF16, INT8; default: FP32 */
    int32_t max_ctx;              /* tokens; 0: the model's */
    int32_t block_tokens;         /* 0: 16 */
    int32_t max_rows;             /* tokens computed at a time; 0: 256 */
    int32_t n_threads;            /* 0: all that OpenMP would use */
};

struct bt_score {
    int32_t n_predictions; /* n - 1 */
    int32_t n_correct;     /* the likeliest token was the right one; ties to the lower id */
    double nll;            /* summed over predictions, nats */
    bool finite;           /* no logit was NaN or infinite */
};

/* Adds one prediction, whose right answer is `right`, by its logits [vocab]; *nll: its own share.
 */
void bt_score_row(const float *logits, int32_t vocab, int32_t right, struct bt_score *out,
                  double *nll);

#ifdef __cplusplus
}
#endif

#endif
