#include "engine/sample.h"

#include "engine/core/rng.h"

#include <math.h>

double bt_sample_uniform(uint64_t seed, enum bt_draw purpose, int64_t position)
{
    return bt_rng_at(bt_hash_combine(bt_hash_u64(seed), (uint64_t)purpose), (uint64_t)position);
}

enum bt_code bt_sampler_init(struct bt_sampler *s, struct bt_arena *arena, int32_t vocab,
                             struct bt_error *err)
{
    BT_ASSERT(vocab > 0);
    *s = (struct bt_sampler){.vocab = vocab};
    BT_ARENA_ARRAY(arena, s->order, vocab, err);
    return BT_OK;
}

int32_t bt_sample_argmax(const float *logits, int32_t vocab)
{
    int32_t best = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i])) {
            return -1;
        }
        best = logits[i] > logits[best] ? i : best;
    }
    return isfinite(logits[best]) ? best : -1;
}

/* a before b: likelier, or as likely with the lower id. */
static bool before(const float *p, int32_t a, int32_t b)
{
    return p[a] > p[b] || (p[a] == p[b] && a < b);
}

static void sift_down(int32_t *heap, int32_t n, int32_t i, const float *p)
{
    int32_t item = heap[i];
    for (int32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && before(p, heap[child + 1], heap[child])) {
            child++;
        }
        if (!before(p, heap[child], item)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

/* Keeps the likeliest tokens, one by one from a heap, until k are kept or their sum reaches p;
 * the rest become 0. O(V + kept log V). */
static void keep_likeliest(struct bt_sampler *s, float *probs, int32_t k, double p)
{
    int32_t n = s->vocab;
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) {
        s->order[i] = i;
        total += (double)probs[i];
    }
    for (int32_t i = n / 2 - 1; i >= 0; i--) {
        sift_down(s->order, n, i, probs);
    }
    double kept = 0.0;
    for (int32_t n_kept = 0; n > 0 && n_kept < k && kept < p * total; n_kept++) {
        kept += (double)probs[s->order[0]];
        s->order[0] = s->order[--n];
        sift_down(s->order, n, 0, probs);
    }
    for (int32_t i = 0; i < n; i++) {
        probs[s->order[i]] = 0.0f;
    }
}

static void normalise(float *probs, int32_t vocab)
{
    double sum = 0.0;
    for (int32_t i = 0; i < vocab; i++) {
        sum += (double)probs[i];
    }
    for (int32_t i = 0; i < vocab; i++) {
        probs[i] = (float)((double)probs[i] / sum);
    }
}

bool bt_sample_probs(struct bt_sampler *s, const float *logits, const struct bt_sampling *how,
                     float *probs)
{
    BT_ASSERT(how->temperature > 0.0f);
    int32_t best = bt_sample_argmax(logits, s->vocab);
    if (best < 0) {
        return false;
    }
    for (int32_t i = 0; i < s->vocab; i++) {
        double z = ((double)logits[i] - (double)logits[best]) / (double)how->temperature;
        probs[i] = (float)exp(z);
    }
    bool cut_k = how->top_k > 0 && how->top_k < s->vocab;
    bool cut_p = how->top_p > 0.0f && how->top_p < 1.0f;
    if (cut_k) {
        keep_likeliest(s, probs, how->top_k, 2.0);
    }
    if (cut_p) {
        keep_likeliest(s, probs, s->vocab, (double)how->top_p);
    }
    normalise(probs, s->vocab);
    return true;
}

int32_t bt_sample_at(const float *probs, int32_t vocab, double u)
{
    double sum = 0.0;
    int32_t last = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (probs[i] <= 0.0f) {
            continue;
        }
        last = i;
        sum += (double)probs[i];
        if (u < sum) {
            return i;
        }
    }
    return last; /* u lies in what rounding left of the sum */
}

int32_t bt_sample_token(struct bt_sampler *s, const float *logits, const struct bt_sampling *how,
                        int64_t position, float *probs)
{
    if (how->temperature == 0.0f) {
        return bt_sample_argmax(logits, s->vocab);
    }
    if (!bt_sample_probs(s, logits, how, probs)) {
        return -1;
    }
    return bt_sample_at(probs, s->vocab, bt_sample_uniform(how->seed, BT_DRAW_TOKEN, position));
}

bool bt_sample_accepts(const float *p, const float *q, int32_t d, double u)
{
    return u * (double)q[d] < (double)p[d];
}

int32_t bt_sample_residual(const float *p, const float *q, int32_t vocab, double u)
{
    double total = 0.0;
    for (int32_t i = 0; i < vocab; i++) {
        total += p[i] > q[i] ? (double)p[i] - (double)q[i] : 0.0;
    }
    if (total <= 0.0) {
        return bt_sample_at(p, vocab, u);
    }
    double sum = 0.0;
    int32_t last = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (p[i] <= q[i]) {
            continue;
        }
        last = i;
        sum += (double)p[i] - (double)q[i];
        if (u * total < sum) {
            break;
        }
    }
    return last;
}
