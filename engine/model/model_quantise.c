/* Quantises a whole model, layer by layer and point by point. */
#include "engine/model/quantize.h"

#include <math.h>
#include <string.h>

enum { PATH_BYTES = 128, LAYER_POINTS = 4 };

/* Linear layers that read a point, as a range of ids: they were numbered in this order. */
static const struct {
    enum bt_linear_id first;
    enum bt_linear_id last;
} READERS[LAYER_POINTS] = {
    [BT_CALIB_ATTN_IN] = {BT_LINEAR_Q, BT_LINEAR_V},
    [BT_CALIB_O_IN] = {BT_LINEAR_O, BT_LINEAR_O},
    [BT_CALIB_MLP_IN] = {BT_LINEAR_GATE, BT_LINEAR_UP},
    [BT_CALIB_DOWN_IN] = {BT_LINEAR_DOWN, BT_LINEAR_DOWN},
};

/* What AWQ found at one point. */
struct awq_point {
    float *scale;     /* [K]; in the layer's scratch arena; NULL without AWQ */
    float *weight_of; /* [K] mean x^2, of the scaled input in the end */
    float *abs_max;   /* [K] greatest |x| before scaling */
    float max_abs;    /* of the scaled input */
};

struct quantiser {
    struct bt_model *m;
    const struct bt_quant_scheme *s;
    const struct bt_calib_source *calib;
    struct bt_arena scratch;     /* of the layer in work */
    int64_t n_static, n_clipped; /* inputs of static scales, and beyond their range */
    struct awq_point awq[LAYER_POINTS];
};

static enum bt_code stats_at(struct quantiser *z, int32_t layer, enum bt_calib_point point,
                             int32_t n_in, const struct bt_calib_stats **out, struct bt_error *err)
{
    bool with_xtx = z->s->method != BT_METHOD_RTN && point != BT_CALIB_HEAD_IN;
    *out = NULL;
    if (!bt_quant_scheme_needs_calib(z->s)) {
        return BT_OK;
    }
    BT_TRY(z->calib->get(z->calib->user, z->m, layer, point, with_xtx, out, err));
    BT_ASSERT(*out != NULL && (*out)->n_in == n_in);
    BT_ASSERT(!with_xtx || (*out)->xtx != NULL);
    if ((*out)->n_tokens == 0) {
        BT_FAIL(err, BT_ERR_INPUT, layer, "calibration: no tokens reached layer %d", layer);
    }
    if (!isfinite((*out)->max_abs)) {
        BT_FAIL(err, BT_ERR_INPUT, layer, "calibration: activations of layer %d are not finite",
                layer);
    }
    struct bt_calib_cover *cover = &z->m->cover;
    cover->n_tokens = (*out)->n_tokens > cover->n_tokens ? (*out)->n_tokens : cover->n_tokens;
    cover->max_tokens =
        (*out)->max_tokens > cover->max_tokens ? (*out)->max_tokens : cover->max_tokens;
    return BT_OK;
}

/* stats: of the layer's input as it is; NULL: only its greatest is known (AWQ scales it). */
static void set_activations(struct quantiser *z, struct bt_linear *l,
                            const struct bt_calib_stats *stats, float max_abs)
{
    l->act = z->s->activations == BT_ACT_INT8_DYNAMIC || z->s->activations == BT_ACT_INT8_STATIC
                 ? z->s->activations
                 : BT_ACT_DEFAULT;
    if (l->act != BT_ACT_INT8_STATIC) {
        return;
    }
    if (stats == NULL) {
        l->act_scale = max_abs > 0.0f ? max_abs / 127.0f : 1.0f;
        return;
    }
    int64_t n_clipped;
    l->act_scale = bt_calib_static_scale(stats, &n_clipped);
    z->n_static += stats->n_tokens * stats->n_in;
    z->n_clipped += n_clipped;
    z->m->cover.clipped_fraction = (double)z->n_clipped / (double)z->n_static;
}

static enum bt_code quantise_linear(struct quantiser *z, int32_t layer, enum bt_calib_point point,
                                    enum bt_linear_id id, const struct bt_calib_stats *stats,
                                    struct bt_error *err)
{
    struct bt_linear *l = &z->m->layers[layer].linear[id];
    char what[PATH_BYTES];
    if (l->n_out == 0) {
        return BT_OK;
    }
    bt_linear_path(layer, id, what, sizeof what);
    if (z->s->method == BT_METHOD_GPTQ) {
        BT_TRY(bt_quantise_gptq(&z->m->arena, &l->w, stats, z->s, what, &l->q, err));
    } else {
        BT_TRY(bt_quantise_rtn(&z->m->arena, &l->w, z->s->weights, z->s->clip,
                               z->awq[point].weight_of, what, &l->q, err));
    }
    l->w = (struct bt_tensor){0};
    l->quantised = true;
    bool scaled = z->awq[point].scale != NULL;
    set_activations(z, l, scaled ? NULL : stats, z->awq[point].max_abs);
    return BT_OK;
}

/* ---- AWQ's folding ---- */

static enum bt_code floats(struct quantiser *z, int32_t n, float **out, struct bt_error *err)
{
    *out = bt_arena_take_zeroed(&z->scratch, (size_t)n, sizeof **out);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "AWQ: no memory for %d inputs", n);
    }
    return BT_OK;
}

/* The layer's matrices as floats in the scratch arena, to be scaled without rounding. */
static enum bt_code widen(struct quantiser *z, struct bt_layer *layer, struct bt_error *err)
{
    for (int id = 0; id < BT_LINEARS; id++) {
        struct bt_linear *l = &layer->linear[id];
        struct bt_tensor wide;
        if (l->n_out == 0) {
            continue;
        }
        BT_TRY(bt_tensor_init(&wide, &z->scratch, BT_DTYPE_F32, l->n_out, l->n_in, err));
        bt_dtype_to_f32(l->w.dtype, l->w.p, wide.p, (size_t)l->n_out * (size_t)l->n_in);
        l->w = wide;
    }
    return BT_OK;
}

static void scale_columns(struct bt_linear *l, const float *scale)
{
    float *w = l->w.p;
    for (int32_t n = 0; n < l->n_out; n++) {
        for (int32_t k = 0; k < l->n_in; k++) {
            w[(size_t)n * (size_t)l->n_in + (size_t)k] *= scale[k];
        }
    }
}

/* Row n (and its bias) divided by scale[n]. The bias becomes float, so that nothing is rounded. */
static enum bt_code divide_rows(struct quantiser *z, struct bt_linear *l, const float *scale,
                                struct bt_error *err)
{
    float *w = l->w.p;
    for (int32_t n = 0; n < l->n_out; n++) {
        for (int32_t k = 0; k < l->n_in; k++) {
            w[(size_t)n * (size_t)l->n_in + (size_t)k] /= scale[n];
        }
    }
    if (l->bias.p == NULL) {
        return BT_OK;
    }
    struct bt_tensor wide;
    BT_TRY(bt_tensor_init(&wide, &z->m->arena, BT_DTYPE_F32, 1, l->n_out, err));
    bt_dtype_to_f32(l->bias.dtype, l->bias.p, wide.p, (size_t)l->n_out);
    for (int32_t n = 0; n < l->n_out; n++) {
        ((float *)wide.p)[n] /= scale[n];
    }
    l->bias = wide;
    return BT_OK;
}

/* The norm's weight divided by the scales. It is rounded to its own type, and the scales become
 * what that rounding did, so that the product of norm and matrices is unchanged. */
static void divide_norm(struct bt_tensor *norm, float *scale)
{
    size_t size = bt_dtype_bytes(norm->dtype);
    for (int32_t k = 0; k < norm->cols; k++) {
        char *at = (char *)norm->p + (size_t)k * size;
        float old;
        float divided;
        bt_dtype_to_f32(norm->dtype, at, &old, 1);
        divided = old / scale[k];
        bt_dtype_from_f32(norm->dtype, &divided, at, 1);
        bt_dtype_to_f32(norm->dtype, at, &divided, 1);
        float ratio = old / divided;
        if (divided == 0.0f || !isfinite(ratio)) {
            bt_dtype_from_f32(norm->dtype, &old, at, 1);
            ratio = 1.0f;
        }
        scale[k] = ratio;
    }
}

/* The value channel that feeds each input of o: query heads of a group read one KV head. */
static enum bt_code value_channels(struct quantiser *z, int32_t **out, struct bt_error *err)
{
    const struct bt_arch *a = &z->m->config.arch;
    int32_t n = a->n_heads * a->head_dim;
    int32_t per_kv = a->n_heads / a->n_kv_heads;
    *out = bt_arena_take_zeroed(&z->scratch, (size_t)n, sizeof **out);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "AWQ: no memory for %d inputs", n);
    }
    for (int32_t i = 0; i < n; i++) {
        (*out)[i] = i / a->head_dim / per_kv * a->head_dim + i % a->head_dim;
    }
    return BT_OK;
}

static enum bt_code search_point(struct quantiser *z, int32_t layer, enum bt_calib_point point,
                                 const int32_t *tie_of, struct bt_error *err)
{
    const struct bt_tensor *matrices[BT_LINEARS];
    const struct bt_calib_stats *stats;
    struct awq_point *p = &z->awq[point];
    int32_t n = 0;
    for (enum bt_linear_id id = READERS[point].first; id <= READERS[point].last; id++) {
        if (z->m->layers[layer].linear[id].n_out > 0) {
            matrices[n++] = &z->m->layers[layer].linear[id].w;
        }
    }
    int32_t k = matrices[0]->cols;
    BT_TRY(stats_at(z, layer, point, k, &stats, err));
    BT_TRY(floats(z, k, &p->scale, err));
    BT_TRY(floats(z, k, &p->weight_of, err));
    BT_TRY(bt_awq_search(matrices, n, stats, z->s->weights, tie_of, p->scale, err));
    for (int32_t i = 0; i < k; i++) {
        size_t kk = (size_t)i;
        p->weight_of[i] = (float)(stats->xtx[kk * (size_t)k + kk] / (double)stats->n_tokens);
    }
    BT_TRY(floats(z, k, &p->abs_max, err));
    memcpy(p->abs_max, stats->abs_max, (size_t)k * sizeof *p->abs_max);
    return BT_OK;
}

/* Once the scales are final: what the scaled input looks like. */
static void finish_point(struct awq_point *p, int32_t k)
{
    for (int32_t i = 0; i < k; i++) {
        float scaled = p->abs_max[i] / p->scale[i];
        p->max_abs = scaled > p->max_abs ? scaled : p->max_abs;
        p->weight_of[i] /= p->scale[i] * p->scale[i];
    }
}

/* Scales of o's inputs, one a value channel, as rows of v. */
static enum bt_code fold_values(struct quantiser *z, struct bt_layer *layer, const int32_t *tie_of,
                                struct bt_error *err)
{
    const struct bt_linear *o = &layer->linear[BT_LINEAR_O];
    struct bt_linear *v = &layer->linear[BT_LINEAR_V];
    float *rows;
    BT_TRY(floats(z, v->n_out, &rows, err));
    for (int32_t i = 0; i < o->n_in; i++) {
        rows[tie_of[i]] = z->awq[BT_CALIB_O_IN].scale[i];
    }
    return divide_rows(z, v, rows, err);
}

static enum bt_code awq_layer(struct quantiser *z, int32_t index, struct bt_error *err)
{
    struct bt_layer *layer = &z->m->layers[index];
    int32_t *tie_of;
    BT_TRY(value_channels(z, &tie_of, err));
    BT_TRY(widen(z, layer, err));
    for (int p = 0; p < LAYER_POINTS; p++) {
        BT_TRY(search_point(z, index, (enum bt_calib_point)p, p == BT_CALIB_O_IN ? tie_of : NULL,
                            err));
    }
    divide_norm(&layer->attn_norm, z->awq[BT_CALIB_ATTN_IN].scale);
    divide_norm(&layer->mlp_norm, z->awq[BT_CALIB_MLP_IN].scale);
    BT_TRY(fold_values(z, layer, tie_of, err));
    BT_TRY(divide_rows(z, &layer->linear[BT_LINEAR_UP], z->awq[BT_CALIB_DOWN_IN].scale, err));
    for (int p = 0; p < LAYER_POINTS; p++) {
        for (enum bt_linear_id id = READERS[p].first; id <= READERS[p].last; id++) {
            if (layer->linear[id].n_out > 0) {
                scale_columns(&layer->linear[id], z->awq[p].scale);
            }
        }
        finish_point(&z->awq[p], layer->linear[READERS[p].last].n_in);
    }
    return BT_OK;
}

static enum bt_code quantise_layer(struct quantiser *z, int32_t index, struct bt_error *err)
{
    memset(z->awq, 0, sizeof z->awq);
    if (z->s->method == BT_METHOD_AWQ) {
        BT_TRY(awq_layer(z, index, err));
    }
    for (int p = 0; p < LAYER_POINTS; p++) {
        const struct bt_calib_stats *stats = NULL;
        enum bt_calib_point point = (enum bt_calib_point)p;
        if (z->s->method != BT_METHOD_AWQ) {
            int32_t k = z->m->layers[index].linear[READERS[p].last].n_in;
            BT_TRY(stats_at(z, index, point, k, &stats, err));
        }
        for (enum bt_linear_id id = READERS[p].first; id <= READERS[p].last; id++) {
            BT_TRY(quantise_linear(z, index, point, id, stats, err));
        }
    }
    return BT_OK;
}

static enum bt_code quantise_ends(struct quantiser *z, struct bt_error *err)
{
    struct bt_model *m = z->m;
    if (z->s->lm_head) {
        const struct bt_calib_stats *stats = NULL;
        struct bt_tensor w = m->lm_head.w;
        BT_TRY(
            stats_at(z, m->config.arch.n_layers, BT_CALIB_HEAD_IN, m->lm_head.n_in, &stats, err));
        BT_TRY(bt_quantise_rtn(&m->arena, &w, z->s->weights, z->s->clip, NULL, "lm_head",
                               &m->lm_head.q, err));
        m->lm_head.w = (struct bt_tensor){0};
        m->lm_head.quantised = true;
        m->head_is_embed = false;
        set_activations(z, &m->lm_head, stats, 0.0f);
    }
    if (z->s->embeddings) {
        struct bt_tensor w = m->embed.w;
        BT_TRY(bt_quantise_rtn(&m->arena, &w, BT_WEIGHT_INT8, false, NULL, "model.embed_tokens",
                               &m->embed.q, err));
        m->embed.w = (struct bt_tensor){0};
        m->embed.quantised = true;
        m->lm_head = m->head_is_embed ? m->embed : m->lm_head;
    }
    if (z->s->norms) {
        bt_model_round_norms(m);
    }
    return BT_OK;
}

static enum bt_code check(const struct bt_model *m, const struct bt_quant_scheme *s,
                          const struct bt_calib_source *calib, struct bt_error *err)
{
    enum bt_weight_format f = s->weights;
    bool some = f != BT_WEIGHT_DEFAULT;
    bool integer = some && f != BT_WEIGHT_FP8 && bt_weight_format_bits(f) <= 8;
    bool int8 = s->activations == BT_ACT_INT8_DYNAMIC || s->activations == BT_ACT_INT8_STATIC;
    if (m->layers[0].linear[BT_LINEAR_Q].quantised || m->embed.quantised) {
        BT_FAIL(err, BT_ERR_ARG, 0, "quantise: the model is quantised already (%s)",
                bt_weight_format_name(m->config.arch.checkpoint));
    }
    if (some && !integer) {
        BT_FAIL(err, BT_ERR_ARG, 0, "quantise: weights %s: expected an int8 or int4 format",
                bt_weight_format_name(f));
    }
    if (!some && (int8 || s->lm_head || s->method != BT_METHOD_RTN)) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "quantise: lm_head, int8 activations, GPTQ and AWQ need a weight format");
    }
    if (s->method != BT_METHOD_RTN && bt_weight_format_group(f) == 0) {
        BT_FAIL(err, BT_ERR_ARG, 0, "quantise: weights %s: GPTQ and AWQ make int4 groups only",
                bt_weight_format_name(f));
    }
    if (s->method == BT_METHOD_AWQ && !m->config.arch.mlp_gated) {
        BT_FAIL(err, BT_ERR_ARG, 0, "quantise: AWQ needs a gated MLP to fold its scales into");
    }
    if (bt_quant_scheme_needs_calib(s) && calib == NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0, "quantise: this scheme needs calibration text");
    }
    return BT_OK;
}

enum bt_code bt_model_quantise(struct bt_model *m, const struct bt_quant_scheme *s,
                               const struct bt_calib_source *calib, struct bt_error *err)
{
    struct quantiser z = {.m = m, .s = s, .calib = calib};
    BT_TRY(check(m, s, calib, err));
    for (int32_t i = 0; i < m->config.arch.n_layers && s->weights != BT_WEIGHT_DEFAULT; i++) {
        bt_arena_init(&z.scratch, 0);
        enum bt_code code = quantise_layer(&z, i, err);
        bt_arena_fini(&z.scratch);
        BT_TRY(code);
    }
    BT_TRY(quantise_ends(&z, err));
    if (s->weights != BT_WEIGHT_DEFAULT) {
        bt_model_describe(m, s->weights, s->activations);
    }
    return bt_model_compact(m, err);
}
