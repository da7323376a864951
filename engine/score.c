#include "engine/score.h"

#include <math.h>

enum bt_code bt_session_check(const int32_t *ids, int32_t n, int32_t from, int32_t max_ctx,
                              int32_t vocab, struct bt_error *err)
{
    BT_ASSERT(n > 0 && from >= 0);
    if (n > max_ctx - from) {
        BT_FAIL(err, BT_ERR_ARG, n, "sequence: %lld tokens exceed the session's %d",
                (long long)from + n, max_ctx);
    }
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab) {
            BT_FAIL(err, BT_ERR_ARG, ids[i], "token %d: id %d is outside the vocabulary 0..%d",
                    from + i, ids[i], vocab - 1);
        }
    }
    return BT_OK;
}

/* One prediction; returns its nats. */
static double score_row(const float *logits, int32_t vocab, int32_t right, struct bt_score *out)
{
    int32_t best = 0;
    for (int32_t i = 0; i < vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
        out->finite = out->finite && isfinite(logits[i]);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < vocab; i++) {
        sum += exp((double)logits[i] - (double)logits[best]);
    }
    double nll = log(sum) - ((double)logits[right] - (double)logits[best]);
    out->nll += nll;
    out->n_correct += best == right;
    out->n_predictions++;
    return nll;
}

void bt_score_rows(const float *logits, int32_t n, int32_t vocab, const int32_t *right,
                   struct bt_score *out, double *nll_of)
{
    for (int32_t i = 0; i < n; i++) {
        double nll = score_row(logits + (size_t)i * (size_t)vocab, vocab, right[i], out);
        if (nll_of != NULL) {
            nll_of[i] = nll;
        }
    }
}
