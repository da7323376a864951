/* Statistics of activations for the quantisers. */
#include "engine/model/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_TOKENS = 8 };

enum bt_code bt_calib_init(struct bt_calib_stats *s, int32_t n_in, bool with_xtx,
                           struct bt_error *err)
{
    BT_ASSERT(n_in > 0);
    size_t k = (size_t)n_in;
    *s = (struct bt_calib_stats){.n_in = n_in};
    s->abs_sum = calloc(k, sizeof *s->abs_sum);
    s->abs_max = calloc(k, sizeof *s->abs_max);
    s->magnitudes = calloc(BT_CALIB_MAGNITUDES, sizeof *s->magnitudes);
    s->xtx = with_xtx ? calloc(k * k, sizeof *s->xtx) : NULL;
    if (s->abs_sum == NULL || s->abs_max == NULL || s->magnitudes == NULL ||
        (with_xtx && s->xtx == NULL)) {
        bt_calib_fini(s);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory for statistics of %d inputs", n_in);
    }
    return BT_OK;
}

void bt_calib_fini(struct bt_calib_stats *s)
{
    free(s->xtx);
    free(s->magnitudes);
    free(s->abs_sum);
    free(s->abs_max);
    *s = (struct bt_calib_stats){0};
}

/* row += sum over eight tokens of a[t] * x[t][0..n): products are summed in float before they join
 * the double sum, which keeps the loop in wide registers and loses nothing that matters. */
BT_CLONES static void add_products(double *restrict row, const float *restrict a,
                                   const float *restrict x, size_t stride, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        float s = a[0] * x[j] + a[1] * x[stride + j] + a[2] * x[2 * stride + j] +
                  a[3] * x[3 * stride + j] + a[4] * x[4 * stride + j] + a[5] * x[5 * stride + j] +
                  a[6] * x[6 * stride + j] + a[7] * x[7 * stride + j];
        row[j] += (double)s;
    }
}

static void add_block(struct bt_calib_stats *s, const float *x)
{
    size_t k = (size_t)s->n_in;
    for (size_t i = 0; i < k; i++) {
        float a[BLOCK_TOKENS];
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            a[t] = x[t * k + i];
        }
        add_products(s->xtx + i * k, a, x, k, i + 1);
    }
}

BT_CLONES static void add_magnitudes(double *restrict sum, float *restrict greatest,
                                     const float *restrict x, size_t k)
{
    for (size_t i = 0; i < k; i++) {
        float a = fabsf(x[i]);
        sum[i] += (double)a;
        greatest[i] = a > greatest[i] ? a : greatest[i];
    }
}

static const int32_t magnitude_shift = 17; /* of a float's bits, less the sign, to its bin */

static void count_magnitudes(int64_t *counts, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        counts[(bits & INT32_MAX) >> magnitude_shift]++;
    }
}

/* The middle of a bin. */
static double magnitude_at(int32_t bin)
{
    uint32_t bits = ((uint32_t)bin << magnitude_shift) | 1u << (magnitude_shift - 1);
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Summed squares of what a scale loses; a value is the middle of its bin, rounding uniform. */
static double lost_by(const struct bt_calib_stats *s, double scale, int64_t *n_clipped)
{
    double sum = 0;
    *n_clipped = 0;
    for (int32_t i = 0; i < BT_CALIB_MAGNITUDES; i++) {
        double x = magnitude_at(i), n = (double)s->magnitudes[i];
        if (s->magnitudes[i] == 0) {
            continue;
        }
        if (x > 127.5 * scale) {
            sum += n * (x - 127 * scale) * (x - 127 * scale);
            *n_clipped += s->magnitudes[i];
        } else {
            sum += n * (x < scale / 2 ? x * x : scale * scale / 12);
        }
    }
    return sum;
}

float bt_calib_static_scale(const struct bt_calib_stats *s, int64_t *n_clipped)
{
    enum { PER_OCTAVE = 32, STEPS = 12 * PER_OCTAVE }; /* down from the greatest */
    *n_clipped = 0;
    if (s->max_abs == 0.0f) {
        return 1.0f;
    }
    double best = (double)s->max_abs / 127, least = INFINITY;
    for (int32_t i = 0; i <= STEPS; i++) {
        double scale = (double)s->max_abs / 127 * exp2(-(double)i / PER_OCTAVE);
        int64_t clipped;
        double lost = lost_by(s, scale, &clipped);
        if (lost < least) {
            least = lost;
            best = scale;
            *n_clipped = i == 0 ? 0 : clipped; /* the middle of the last bin is not its greatest */
        }
    }
    return (float)best;
}

static enum bt_code add_outer_products(struct bt_calib_stats *s, const float *x, int32_t n_tokens,
                                       struct bt_error *err)
{
    size_t k = (size_t)s->n_in;
    int32_t whole = n_tokens / BLOCK_TOKENS * BLOCK_TOKENS;
    size_t rest = (size_t)(n_tokens - whole);
    float *padded = NULL;
    if (rest > 0) {
        padded = calloc(BLOCK_TOKENS * k, sizeof *padded);
        if (padded == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory");
        }
        memcpy(padded, x + (size_t)whole * k, rest * k * sizeof *x);
    }
    for (int32_t t = 0; t < whole; t += BLOCK_TOKENS) {
        add_block(s, x + (size_t)t * k);
    }
    if (rest > 0) {
        add_block(s, padded);
    }
    free(padded);
    return BT_OK;
}

enum bt_code bt_calib_add(struct bt_calib_stats *s, const float *x, int32_t n_tokens,
                          int32_t position, struct bt_error *err)
{
    BT_ASSERT(n_tokens >= 0 && position >= 0);
    size_t k = (size_t)s->n_in;
    size_t n = (size_t)n_tokens * k;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "calibration: input %zu of token %zu is not finite",
                    i % k, (size_t)position + i / k);
        }
    }
    if (s->xtx != NULL) {
        BT_TRY(add_outer_products(s, x, n_tokens, err));
    }
    for (size_t t = 0; t < (size_t)n_tokens; t++) {
        add_magnitudes(s->abs_sum, s->abs_max, x + t * k, k);
    }
    count_magnitudes(s->magnitudes, x, n);
    for (size_t i = 0; i < k; i++) {
        s->max_abs = s->abs_max[i] > s->max_abs ? s->abs_max[i] : s->max_abs;
    }
    s->n_tokens += n_tokens;
    s->max_tokens = position + n_tokens > s->max_tokens ? position + n_tokens : s->max_tokens;
    return BT_OK;
}

/* Eight partial sums, so that the order of additions is the same in registers of any width. */
BT_CLONES static double dot(const double *restrict a, const float *restrict b, size_t n)
{
    enum { LANES = 8 };
    double part[LANES] = {0};
    size_t whole = n / LANES * LANES;
    for (size_t j = 0; j < whole; j += LANES) {
        for (size_t l = 0; l < LANES; l++) {
            part[l] += a[j + l] * (double)b[j + l];
        }
    }
    for (size_t j = whole; j < n; j++) {
        part[0] += a[j] * (double)b[j];
    }
    return ((part[0] + part[4]) + (part[1] + part[5])) +
           ((part[2] + part[6]) + (part[3] + part[7]));
}

/* d XᵀX dᵀ for one row d [K], from the lower triangle. */
static double quadratic(const double *xtx, const float *d, size_t k)
{
    double sum = 0;
    for (size_t i = 0; i < k; i++) {
        const double *row = xtx + i * k;
        if (d[i] != 0.0f) {
            sum += (double)d[i] * (2 * dot(row, d, i) + row[i] * (double)d[i]);
        }
    }
    return sum;
}

double bt_calib_quadratic(const struct bt_calib_stats *s, const float *d)
{
    BT_ASSERT(s->xtx != NULL);
    return quadratic(s->xtx, d, (size_t)s->n_in);
}

enum bt_code bt_quant_output_error(const struct bt_tensor *dense, const struct bt_qweight *q,
                                   const struct bt_calib_stats *stats, double *out,
                                   struct bt_error *err)
{
    BT_ASSERT(dense->cols == stats->n_in && q->n_in == dense->cols && q->n_out == dense->rows);
    size_t k = (size_t)dense->cols;
    float *w = malloc(2 * k * sizeof *w);
    if (w == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "quantise: no memory for a row of %zu", k);
    }
    double lost = 0;
    double whole = 0;
    for (int32_t n = 0; n < dense->rows; n++) {
        bt_tensor_row_f32(dense, n, w);
        bt_qweight_row_f32(q, n, w + k);
        whole += bt_calib_quadratic(stats, w);
        for (size_t i = 0; i < k; i++) {
            w[k + i] -= w[i];
        }
        lost += bt_calib_quadratic(stats, w + k);
    }
    free(w);
    *out = whole > 0 ? lost / whole : 0;
    return BT_OK;
}
