#include "engine/score.h"

#include <math.h>

void bt_score_row(const float *logits, int32_t vocab, int32_t right, struct bt_score *out,
                  double *nll)
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
    *nll = log(sum) - ((double)logits[right] - (double)logits[best]);
    out->nll += *nll;
    out->n_correct += best == right;
    out->n_predictions++;
}
