/* Quantisation to nearest, and the names of schemes. */
#include "engine/model/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLIP_STEPS = 20, /* scales tried between CLIP_LEAST and 1 */
};

static const float CLIP_LEAST = 0.5f;
static const float F16_MAX = 65504.0f;
static const float F16_LEAST = 0x1p-24f;

float bt_quant_scale(float max_abs, int32_t q_max)
{
    float scale = max_abs / (float)q_max;
    if (scale == 0.0f) {
        return 1.0f; /* every q is 0 whatever the scale */
    }
    if (scale > F16_MAX) {
        return F16_MAX;
    }
    float rounded = bt_f16_to_f32(bt_f32_to_f16(scale));
    return rounded > 0.0f ? rounded : F16_LEAST;
}

struct grid {
    int32_t lo;
    int32_t hi; /* also the divisor of max|w| */
};

static struct grid grid_of(int32_t bits)
{
    return bits == 4 ? (struct grid){-8, 7} : (struct grid){-127, 127};
}

static float max_abs(const float *w, int32_t n)
{
    float m = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        float a = fabsf(w[i]);
        m = a > m ? a : m;
    }
    return m;
}

enum { SPAN = 256 }; /* weights rounded together; a multiple of every group */

BT_CLONES static void round_span(const float *restrict w, float scale, int32_t lo, int32_t hi,
                                 int32_t n, int8_t *restrict q)
{
    for (int32_t i = 0; i < n; i++) {
        q[i] = (int8_t)bt_quant_round(w[i], scale, lo, hi);
    }
}

static double clip_loss(const float *w, const float *weight_of, int32_t n, float scale,
                        struct grid grid)
{
    int8_t q[SPAN];
    double loss = 0;
    for (int32_t at = 0; at < n; at += SPAN) {
        int32_t len = n - at < SPAN ? n - at : SPAN;
        round_span(w + at, scale, grid.lo, grid.hi, len, q);
        for (int32_t i = 0; i < len; i++) {
            double d = (double)((float)q[i] * scale - w[at + i]);
            loss += d * d * (weight_of == NULL ? 1.0 : (double)weight_of[at + i]);
        }
    }
    return loss;
}

float bt_quant_group_scale(const float *w, const float *weight_of, int32_t n, bool clip,
                           int32_t bits)
{
    struct grid grid = grid_of(bits);
    float m = max_abs(w, n);
    float best = bt_quant_scale(m, grid.hi);
    if (!clip || m == 0.0f) {
        return best;
    }
    double least = clip_loss(w, weight_of, n, best, grid);
    for (int step = 1; step < CLIP_STEPS; step++) {
        float ratio = 1.0f - (1.0f - CLIP_LEAST) * (float)step / (float)CLIP_STEPS;
        float scale = bt_quant_scale(m * ratio, grid.hi);
        double loss = clip_loss(w, weight_of, n, scale, grid);
        if (loss < least) {
            least = loss;
            best = scale;
        }
    }
    return best;
}

static void store_scale(struct bt_qweight *q, int32_t n, int32_t g, float scale)
{
    ((uint16_t *)q->scale)[(size_t)n * (size_t)q->scale_stride + (size_t)g] = bt_f32_to_f16(scale);
}

/* Puts n values from stored column j on, which is even, into row n. */
static void store_span(struct bt_qweight *w, int32_t n, int32_t j, const int8_t *q, int32_t count)
{
    uint8_t *row = w->q + (size_t)n * bt_qweight_row_bytes(w);
    if (w->bits == 8) {
        memcpy(row + j, q, (size_t)count);
        return;
    }
    for (int32_t i = 0; i + 1 < count; i += 2) {
        row[(j + i) / 2] = (uint8_t)((q[i] + 8) | (q[i + 1] + 8) << 4);
    }
    if (count % 2 != 0) {
        bt_qweight_set(w, n, j + count - 1, q[count - 1]);
    }
}

static void round_row(struct bt_qweight *w, int32_t n, const float *values, struct grid grid)
{
    int8_t q[SPAN];
    int32_t len;
    for (int32_t j = 0; j < w->n_in; j += len) {
        int32_t group = j / w->group;
        int32_t end = w->n_in - group * w->group < w->group ? w->n_in : (group + 1) * w->group;
        len = end - j < SPAN ? end - j : SPAN;
        round_span(values + j, bt_qweight_scale(w, n, group), grid.lo, grid.hi, len, q);
        store_span(w, n, j, q, len);
    }
}

static enum bt_code check_finite(const float *w, int32_t n, int32_t row, const char *what,
                                 struct bt_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite(w[i])) {
            BT_FAIL(err, BT_ERR_INPUT, row, "%s: weight [%d, %d] is not finite", what, row, i);
        }
    }
    return BT_OK;
}

static enum bt_code rtn(const struct bt_tensor *dense, bool clip, const float *weight_of,
                        const char *what, float *w, struct bt_qweight *q, struct bt_error *err)
{
    struct grid grid = grid_of(q->bits);
    bool one = q->scale_stride == 0;
    float greatest = 0.0f;
    for (int32_t n = 0; n < dense->rows; n++) {
        bt_tensor_row_f32(dense, n, w);
        BT_TRY(check_finite(w, dense->cols, n, what, err));
        float m = max_abs(w, dense->cols);
        greatest = m > greatest ? m : greatest;
    }
    if (one) {
        store_scale(q, 0, 0, bt_quant_scale(greatest, grid.hi));
    }
    for (int32_t n = 0; n < dense->rows; n++) {
        bt_tensor_row_f32(dense, n, w);
        for (int32_t g = 0; g < q->n_groups && !one; g++) {
            int32_t start = g * q->group;
            int32_t len = q->n_in - start < q->group ? q->n_in - start : q->group;
            const float *weights = weight_of == NULL ? NULL : weight_of + start;
            store_scale(q, n, g, bt_quant_group_scale(w + start, weights, len, clip, q->bits));
        }
        round_row(q, n, w, grid);
    }
    return BT_OK;
}

enum bt_code bt_quantise_rtn(struct bt_arena *arena, const struct bt_tensor *dense,
                             enum bt_weight_format format, bool clip, const float *weight_of,
                             const char *what, struct bt_qweight *out, struct bt_error *err)
{
    float *w = malloc((size_t)dense->cols * sizeof *w);
    if (w == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a row of %d", what, dense->cols);
    }
    enum bt_code code =
        bt_qweight_init(out, arena, format, dense->rows, dense->cols, BT_DTYPE_F16, err);
    if (code == BT_OK) {
        code = rtn(dense, clip, weight_of, what, w, out, err);
    }
    free(w);
    return code;
}

static void round_norm(struct bt_tensor *t)
{
    if (t->p == NULL) {
        return;
    }
    size_t size = bt_dtype_bytes(t->dtype);
    float m = 0.0f;
    for (int pass = 0; pass < 2; pass++) {
        float scale = bt_quant_scale(m, 127);
        for (int32_t i = 0; i < t->cols; i++) {
            float v;
            char *at = (char *)t->p + (size_t)i * size;
            bt_dtype_to_f32(t->dtype, at, &v, 1);
            if (pass == 0) {
                m = fabsf(v) > m ? fabsf(v) : m;
            } else {
                v = (float)bt_quant_round(v, scale, -127, 127) * scale;
                bt_dtype_from_f32(t->dtype, &v, at, 1);
            }
        }
    }
}

void bt_model_round_norms(struct bt_model *m)
{
    for (int32_t i = 0; i < m->config.arch.n_layers; i++) {
        round_norm(&m->layers[i].attn_norm);
        round_norm(&m->layers[i].mlp_norm);
        round_norm(&m->layers[i].q_norm);
        round_norm(&m->layers[i].k_norm);
    }
    round_norm(&m->final_norm);
}

static const struct {
    const char *name;
    enum bt_weight_format weights;
    enum bt_act_format activations;
    enum bt_quant_method method;
    bool groups; /* -g32, -g64 or -g128 may follow */
} SCHEMES[] = {
    {"int8", BT_WEIGHT_INT8, BT_ACT_DEFAULT, BT_METHOD_RTN, false},
    {"int8-tensor", BT_WEIGHT_INT8_TENSOR, BT_ACT_DEFAULT, BT_METHOD_RTN, false},
    {"int4-rtn", BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, BT_METHOD_RTN, true},
    {"int4-gptq", BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, BT_METHOD_GPTQ, true},
    {"int4-awq", BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, BT_METHOD_AWQ, true},
    {"int4-tensor", BT_WEIGHT_INT4_TENSOR, BT_ACT_DEFAULT, BT_METHOD_RTN, false},
    {"w8a8", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC, BT_METHOD_RTN, false},
    {"w8a8-static", BT_WEIGHT_INT8, BT_ACT_INT8_STATIC, BT_METHOD_RTN, false},
    {"w4a8-rtn", BT_WEIGHT_INT4_G128, BT_ACT_INT8_DYNAMIC, BT_METHOD_RTN, true},
    {"w4a8-gptq", BT_WEIGHT_INT4_G128, BT_ACT_INT8_DYNAMIC, BT_METHOD_GPTQ, true},
    {"w4a8-awq", BT_WEIGHT_INT4_G128, BT_ACT_INT8_DYNAMIC, BT_METHOD_AWQ, true},
};

static const struct {
    const char *suffix;
    enum bt_weight_format weights;
} GROUPS[] = {{"", BT_WEIGHT_INT4_G128},
              {"-g128", BT_WEIGHT_INT4_G128},
              {"-g64", BT_WEIGHT_INT4_G64},
              {"-g32", BT_WEIGHT_INT4_G32}};

enum bt_code bt_quant_scheme_parse(const char *text, struct bt_quant_scheme *out,
                                   struct bt_error *err)
{
    for (size_t i = 0; i < sizeof SCHEMES / sizeof *SCHEMES; i++) {
        size_t n = strlen(SCHEMES[i].name);
        size_t n_groups = SCHEMES[i].groups ? sizeof GROUPS / sizeof *GROUPS : 1;
        for (size_t g = 0; g < n_groups; g++) {
            if (strncmp(text, SCHEMES[i].name, n) == 0 && strcmp(text + n, GROUPS[g].suffix) == 0) {
                *out = (struct bt_quant_scheme){
                    .weights = SCHEMES[i].groups ? GROUPS[g].weights : SCHEMES[i].weights,
                    .activations = SCHEMES[i].activations,
                    .method = SCHEMES[i].method,
                };
                out->clip = out->method != BT_METHOD_RTN;
                return BT_OK;
            }
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "scheme \"%s\": expected int8, int8-tensor, int4-tensor, int4-rtn, int4-gptq, "
            "int4-awq, w8a8, w8a8-static, w4a8-rtn, w4a8-gptq or w4a8-awq; those with int4 or w4 "
            "and a method may end with -g32, -g64 or -g128",
            text);
}

bool bt_quant_scheme_needs_calib(const struct bt_quant_scheme *s)
{
    return s->method != BT_METHOD_RTN || s->activations == BT_ACT_INT8_STATIC;
}
