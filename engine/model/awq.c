/* AWQ: input channels with large activations get larger weights, so that rounding hurts them less;
 * their activations are divided to match, in what comes before.
 *
 * Source: Lin et al. 2023, section 3.2: scale = mean|x|^a, a searched over a grid. The paper runs
 * the layer on samples; XᵀX gives the same squared error without them.
 */
#include "engine/model/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    GRID = 20,      /* powers 0, 1/20, ..., 19/20 */
    MAX_ROWS = 128, /* rows of each matrix that vote: enough to rank the powers */
};

static const double LEAST_MEAN = 1e-4;

/* scale = mean|x|^power, centred so that the extremes are reciprocal. */
static void scales_of_power(const struct bt_calib_stats *stats, double power, const int32_t *tie_of,
                            double *tied, float *scale)
{
    int32_t k = stats->n_in;
    double tokens = stats->n_tokens > 0 ? (double)stats->n_tokens : 1.0;
    double lo = INFINITY;
    double hi = 0;
    memset(tied, 0, 2 * (size_t)k * sizeof *tied);
    for (int32_t i = 0; i < k; i++) {
        int32_t to = tie_of == NULL ? i : tie_of[i];
        tied[2 * to] += stats->abs_sum[i] / tokens;
        tied[2 * to + 1] += 1;
    }
    for (int32_t i = 0; i < k; i++) {
        int32_t to = tie_of == NULL ? i : tie_of[i];
        double mean = tied[2 * to] / tied[2 * to + 1];
        double s = pow(mean > LEAST_MEAN ? mean : LEAST_MEAN, power);
        lo = s < lo ? s : lo;
        hi = s > hi ? s : hi;
        scale[i] = (float)s;
    }
    float centre = (float)sqrt(lo * hi);
    for (int32_t i = 0; i < k; i++) {
        scale[i] /= centre;
    }
}

/* The row rounded as it would be with the scales, minus the row. */
static void row_error(const float *w, const float *scale, int32_t k, int32_t group, float *d)
{
    for (int32_t start = 0; start < k; start += group) {
        int32_t end = start + group < k ? start + group : k;
        float greatest = 0.0f;
        for (int32_t i = start; i < end; i++) {
            float a = fabsf(w[i] * scale[i]);
            greatest = a > greatest ? a : greatest;
        }
        float s = bt_quant_scale(greatest, 7);
        for (int32_t i = start; i < end; i++) {
            d[i] = (float)bt_quant_round(w[i] * scale[i], s, -8, 7) * s / scale[i] - w[i];
        }
    }
}

static double loss(const struct bt_tensor *const *matrices, int32_t n,
                   const struct bt_calib_stats *stats, int32_t group, const float *scale,
                   float *buf)
{
    double sum = 0;
    for (int32_t m = 0; m < n; m++) {
        int32_t rows = matrices[m]->rows;
        int32_t step = (rows + MAX_ROWS - 1) / MAX_ROWS;
        double share = 0;
        for (int32_t r = 0; r < rows; r += step) {
            bt_tensor_row_f32(matrices[m], r, buf);
            row_error(buf, scale, stats->n_in, group, buf + stats->n_in);
            share += bt_calib_quadratic(stats, buf + stats->n_in);
        }
        sum += share * step;
    }
    return sum;
}

enum bt_code bt_awq_search(const struct bt_tensor *const *matrices, int32_t n,
                           const struct bt_calib_stats *stats, enum bt_weight_format format,
                           const int32_t *tie_of, float *scale, struct bt_error *err)
{
    size_t k = (size_t)stats->n_in;
    int32_t group = bt_weight_format_group(format);
    BT_ASSERT(stats->xtx != NULL && group > 0);
    float *buf = malloc(3 * k * sizeof *buf); /* a row, its error, the scales being tried */
    double *tied = malloc(2 * k * sizeof *tied);
    if (buf == NULL || tied == NULL) {
        free(buf);
        free(tied);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "AWQ: no memory for %zu inputs", k);
    }
    float *trial = buf + 2 * k;
    double least = INFINITY;
    for (int step = 0; step < GRID; step++) {
        scales_of_power(stats, (double)step / GRID, tie_of, tied, trial);
        double l = loss(matrices, n, stats, group, trial, buf);
        if (l < least) {
            least = l;
            memcpy(scale, trial, k * sizeof *scale);
        }
    }
    free(buf);
    free(tied);
    return BT_OK;
}
