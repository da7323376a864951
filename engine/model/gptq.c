/* GPTQ: columns are rounded one after the other, and the error of each is made up for by those not
 * rounded yet, in the least squares sense of the calibration inputs.
 *
 * Source: Frantar et al. 2022, algorithm 1 (with its lazy batch updates), on H = XᵀX + damping.
 */
#include "engine/model/quantize.h"

#include <lapacke.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 128, /* columns between two updates of all that follow; a multiple of every group */
    MAX_DAMPINGS = 10, /* each ten times the last */
};

static const double DEFAULT_DAMPING = 0.01;

struct column {
    double importance; /* diagonal of H */
    int32_t k;
};

struct gptq {
    const struct bt_tensor *dense;
    const struct bt_calib_stats *stats;
    const struct bt_quant_scheme *scheme;
    const char *what;
    struct bt_qweight *q;
    int32_t n_in;
    int32_t n_out;
    int32_t *order;  /* [K] the input rounded as i-th */
    int32_t *column; /* [K] the stored column of the i-th */
    float *factor;   /* [K, K] upper Cholesky factor of the inverse of H, rows in order */
    float *w;        /* [N, K] weights in order, corrected as rounding goes on */
    float *err_of;   /* [N, BLOCK] scaled errors of the block's columns */
    float *row;      /* [2 K] a row in the order of inputs, and H's diagonal in that order */
};

static int by_importance(const void *a, const void *b)
{
    const struct column *x = a;
    const struct column *y = b;
    if (x->importance != y->importance) {
        return x->importance > y->importance ? -1 : 1;
    }
    return x->k < y->k ? -1 : 1;
}

static enum bt_code no_memory(const struct gptq *g, struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for GPTQ of [%d, %d]", g->what, g->n_out, g->n_in);
}

static enum bt_code choose_order(struct gptq *g, struct bt_error *err)
{
    struct column *columns = malloc((size_t)g->n_in * sizeof *columns);
    if (columns == NULL) {
        return no_memory(g, err);
    }
    for (int32_t k = 0; k < g->n_in; k++) {
        size_t kk = (size_t)k;
        columns[k] = (struct column){g->stats->xtx[kk * (size_t)g->n_in + kk], k};
    }
    if (g->scheme->act_order != BT_ACT_ORDER_NONE) {
        qsort(columns, (size_t)g->n_in, sizeof *columns, by_importance);
    }
    for (int32_t i = 0; i < g->n_in; i++) {
        g->order[i] = columns[i].k;
        g->column[i] = columns[i].k;
    }
    free(columns);
    return BT_OK;
}

/* With groups in the order of rounding, the i-th column belongs to group i / group. */
static enum bt_code scatter_groups(struct gptq *g, struct bt_arena *arena, struct bt_error *err)
{
    int32_t *group_of = malloc((size_t)g->n_in * sizeof *group_of);
    if (group_of == NULL) {
        return no_memory(g, err);
    }
    for (int32_t i = 0; i < g->n_in; i++) {
        group_of[g->order[i]] = i / g->q->group;
    }
    enum bt_code code = bt_qweight_set_groups(g->q, arena, group_of, g->what, err);
    for (int32_t j = 0; j < g->n_in && code == BT_OK && g->q->perm != NULL; j++) {
        group_of[g->q->perm[j]] = j; /* now: where input k is stored */
    }
    for (int32_t i = 0; i < g->n_in && code == BT_OK && g->q->perm != NULL; i++) {
        g->column[i] = group_of[g->order[i]];
    }
    free(group_of);
    return code;
}

/* H in order, damped; its lower triangle by rows, which is LAPACK's upper one by columns. */
static void fill_hessian(const struct gptq *g, double damping, double *h)
{
    size_t k = (size_t)g->n_in;
    const double *xtx = g->stats->xtx;
    double mean = 0;
    for (size_t i = 0; i < k; i++) {
        mean += xtx[i * k + i] / (double)k;
    }
    mean = mean > 0 ? mean : 1.0;
    for (size_t i = 0; i < k; i++) {
        size_t a = (size_t)g->order[i];
        for (size_t j = 0; j < i; j++) {
            size_t b = (size_t)g->order[j];
            h[i * k + j] = a > b ? xtx[a * k + b] : xtx[b * k + a];
        }
        double d = xtx[a * k + a];
        h[i * k + i] = (d > 0 ? d : mean) + damping * mean; /* an input never seen stays as it is */
    }
}

static bool factorise(double *h, lapack_int k)
{
    return LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'U', k, h, k) == 0 &&
           LAPACKE_dpotri(LAPACK_COL_MAJOR, 'U', k, h, k) == 0 &&
           LAPACKE_dpotrf(LAPACK_COL_MAJOR, 'U', k, h, k) == 0;
}

static enum bt_code invert_hessian(struct gptq *g, struct bt_error *err)
{
    size_t k = (size_t)g->n_in;
    double damping = g->scheme->damping > 0 ? g->scheme->damping : DEFAULT_DAMPING;
    double *h = malloc(k * k * sizeof *h);
    if (h == NULL) {
        return no_memory(g, err);
    }
    bool done = false;
    for (int i = 0; i < MAX_DAMPINGS && !done; i++, damping *= 10) {
        fill_hessian(g, damping, h);
        done = factorise(h, (lapack_int)g->n_in);
    }
    for (size_t i = 0; i < k && done; i++) {
        for (size_t j = i; j < k; j++) {
            g->factor[i * k + j] = (float)h[j * k + i];
        }
    }
    free(h);
    if (!done) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: the calibration inputs' XᵀX cannot be inverted",
                g->what);
    }
    return BT_OK;
}

static void store_scale(struct bt_qweight *q, int32_t n, int32_t group, float scale)
{
    ((uint16_t *)q->scale)[(size_t)n * (size_t)q->scale_stride + (size_t)group] =
        bt_f32_to_f16(scale);
}

/* Scales of groups that lie as they are, from the weights before any correction. */
static void static_scales(struct gptq *g, int32_t n)
{
    for (int32_t group = 0; group < g->q->n_groups; group++) {
        int32_t start = group * g->q->group;
        int32_t len = g->n_in - start < g->q->group ? g->n_in - start : g->q->group;
        const float *diagonal = g->row + g->n_in + start;
        store_scale(g->q, n, group,
                    bt_quant_group_scale(g->row + start, diagonal, len, g->scheme->clip, 4));
    }
}

static enum bt_code load_weights(struct gptq *g, struct bt_error *err)
{
    for (size_t k = 0; k < (size_t)g->n_in; k++) {
        g->row[(size_t)g->n_in + k] = (float)g->stats->xtx[k * (size_t)g->n_in + k];
    }
    for (int32_t n = 0; n < g->n_out; n++) {
        bt_tensor_row_f32(g->dense, n, g->row);
        for (int32_t i = 0; i < g->n_in; i++) {
            float w = g->row[g->order[i]];
            if (!isfinite(w)) {
                BT_FAIL(err, BT_ERR_INPUT, n, "%s: weight [%d, %d] is not finite", g->what, n,
                        g->order[i]);
            }
            g->w[(size_t)n * (size_t)g->n_in + (size_t)i] = w;
        }
        if (g->scheme->act_order == BT_ACT_ORDER_STATIC) {
            static_scales(g, n);
        }
    }
    return BT_OK;
}

/* The scale of the group that begins with the i-th column, from the weights as corrected so far. */
static void running_scale(struct gptq *g, int32_t n, int32_t i, int32_t end)
{
    float weight_of[BLOCK];
    int32_t len = end - i < g->q->group ? end - i : g->q->group;
    for (int32_t j = 0; j < len; j++) {
        weight_of[j] = g->row[g->n_in + g->order[i + j]];
    }
    const float *w = g->w + (size_t)n * (size_t)g->n_in + (size_t)i;
    store_scale(g->q, n, g->column[i] / g->q->group,
                bt_quant_group_scale(w, weight_of, len, g->scheme->clip, 4));
}

/* Rounds the block's columns of one row; errors spread inside the block at once. */
static void round_block(struct gptq *g, int32_t n, int32_t start, int32_t end)
{
    size_t k = (size_t)g->n_in;
    float *w = g->w + (size_t)n * k;
    float *err_of = g->err_of + (size_t)n * BLOCK;
    bool running = g->scheme->act_order != BT_ACT_ORDER_STATIC;
    for (int32_t i = start; i < end; i++) {
        int32_t group = g->column[i] / g->q->group;
        if (running && i % g->q->group == 0) {
            running_scale(g, n, i, end);
        }
        float scale = bt_qweight_scale(g->q, n, group);
        int32_t q = bt_quant_round(w[i], scale, -8, 7);
        bt_qweight_set(g->q, n, g->column[i], q);
        const float *factor = g->factor + (size_t)i * k;
        float e = (w[i] - (float)q * scale) / factor[i];
        err_of[i - start] = e;
        for (int32_t j = i + 1; j < end; j++) {
            w[j] -= e * factor[j];
        }
    }
}

/* What the block's errors do to all columns after it. */
static void spread_errors(struct gptq *g, int32_t n, int32_t start, int32_t end)
{
    size_t k = (size_t)g->n_in;
    float *restrict w = g->w + (size_t)n * k;
    const float *err_of = g->err_of + (size_t)n * BLOCK;
    for (int32_t i = start; i < end; i++) {
        const float *restrict factor = g->factor + (size_t)i * k;
        float e = err_of[i - start];
        for (size_t j = (size_t)end; j < k; j++) {
            w[j] -= e * factor[j];
        }
    }
}

static enum bt_code run(struct gptq *g, struct bt_arena *arena, struct bt_error *err)
{
    BT_TRY(choose_order(g, err));
    if (g->scheme->act_order == BT_ACT_ORDER_GROUP) {
        BT_TRY(scatter_groups(g, arena, err));
    }
    BT_TRY(invert_hessian(g, err));
    BT_TRY(load_weights(g, err));
    for (int32_t start = 0; start < g->n_in; start += BLOCK) {
        int32_t end = start + BLOCK < g->n_in ? start + BLOCK : g->n_in;
        for (int32_t n = 0; n < g->n_out; n++) {
            round_block(g, n, start, end);
            spread_errors(g, n, start, end);
        }
    }
    return BT_OK;
}

enum bt_code bt_quantise_gptq(struct bt_arena *arena, const struct bt_tensor *dense,
                              const struct bt_calib_stats *stats, const struct bt_quant_scheme *s,
                              const char *what, struct bt_qweight *out, struct bt_error *err)
{
    BT_ASSERT(stats->xtx != NULL && stats->n_in == dense->cols);
    BT_ASSERT(bt_weight_format_group(s->weights) > 0 &&
              BLOCK % bt_weight_format_group(s->weights) == 0);
    size_t k = (size_t)dense->cols;
    size_t n = (size_t)dense->rows;
    struct gptq g = {
        .dense = dense,
        .stats = stats,
        .scheme = s,
        .what = what,
        .q = out,
        .n_in = dense->cols,
        .n_out = dense->rows,
    };
    BT_TRY(bt_qweight_init(out, arena, s->weights, dense->rows, dense->cols, BT_DTYPE_F16, err));
    g.order = malloc(k * sizeof *g.order);
    g.column = malloc(k * sizeof *g.column);
    g.factor = malloc(k * k * sizeof *g.factor);
    g.w = malloc(n * k * sizeof *g.w);
    g.err_of = malloc(n * BLOCK * sizeof *g.err_of);
    g.row = malloc(2 * k * sizeof *g.row);
    bool short_of = g.order == NULL || g.column == NULL || g.factor == NULL || g.w == NULL ||
                    g.err_of == NULL || g.row == NULL;
    enum bt_code code = short_of ? no_memory(&g, err) : run(&g, arena, err);
    free(g.order);
    free(g.column);
    free(g.factor);
    free(g.w);
    free(g.err_of);
    free(g.row);
    return code;
}
