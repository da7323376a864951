/* Loads a Hugging Face folder into a bt_model. */
#include "engine/model/json_file.h"
#include "engine/model/model_reader.h"
#include "engine/model/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct bt_st_tensor *model_find(struct model_reader *r, const char *base, const char *suffix)
{
    char name[MODEL_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%s", base, suffix);
    const struct bt_st_tensor *t = bt_safetensors_find(r->st, name);
    if (t != NULL) {
        r->used[t - bt_safetensors_at(r->st, 0)] = true;
    }
    return t;
}

enum bt_code model_need(struct model_reader *r, const char *base, const char *suffix,
                        const struct bt_st_tensor **out, struct bt_error *err)
{
    *out = model_find(r, base, suffix);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: tensor %s%s is missing", r->path, base, suffix);
    }
    return BT_OK;
}

/* The type of dense tensors in memory: what the options ask for, else as stored. */
static enum bt_dtype dense_type(const struct model_reader *r, enum bt_dtype stored)
{
    enum bt_weight_format f = r->opts.weights;
    return f == BT_WEIGHT_FP32   ? BT_DTYPE_F32
           : f == BT_WEIGHT_FP16 ? BT_DTYPE_F16
           : f == BT_WEIGHT_BF16 ? BT_DTYPE_BF16
                                 : stored;
}

static enum bt_code read_converted(struct model_reader *r, const struct bt_st_tensor *t,
                                   struct bt_tensor *out, struct bt_error *err)
{
    if (out->dtype == t->dtype) {
        return bt_safetensors_read(r->st, t, out->p, err);
    }
    enum { CHUNK = 4096 };
    float values[CHUNK];
    unsigned char raw[CHUNK * sizeof(float)];
    int64_t from_bytes = (int64_t)bt_dtype_bytes(t->dtype);
    int64_t to_bytes = (int64_t)bt_dtype_bytes(out->dtype);
    for (int64_t i = 0; i < t->n_elements; i += CHUNK) {
        int64_t n = t->n_elements - i < CHUNK ? t->n_elements - i : CHUNK;
        BT_TRY(bt_safetensors_read_part(r->st, t, i * from_bytes, n * from_bytes, raw, err));
        bt_dtype_to_f32(t->dtype, raw, values, (size_t)n);
        bt_dtype_from_f32(out->dtype, values, (char *)out->p + i * to_bytes, (size_t)n);
    }
    return BT_OK;
}

enum bt_code model_read_dense(struct model_reader *r, struct bt_arena *arena,
                              const struct bt_st_tensor *t, int32_t rows, int32_t cols, bool vector,
                              struct bt_tensor *out, struct bt_error *err)
{
    const int64_t shape[] = {rows, cols};
    if (t->dtype != BT_DTYPE_F32 && t->dtype != BT_DTYPE_F16 && t->dtype != BT_DTYPE_BF16) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: dtype %s, expected F32, F16 or BF16", t->file,
                t->name, bt_dtype_name(t->dtype));
    }
    BT_TRY(bt_st_tensor_expect(t, vector ? 1 : 2, vector ? shape + 1 : shape, err));
    BT_TRY(bt_tensor_init(out, arena, dense_type(r, t->dtype), rows, cols, err));
    return read_converted(r, t, out, err);
}

static enum bt_code read_vector(struct model_reader *r, const char *base, const char *suffix,
                                int32_t n, struct bt_tensor *out, struct bt_error *err)
{
    const struct bt_st_tensor *t;
    BT_TRY(model_need(r, base, suffix, &t, err));
    return model_read_dense(r, &r->m->arena, t, 1, n, true, out, err);
}

static bool is_integer_format(enum bt_weight_format f)
{
    return f != BT_WEIGHT_DEFAULT && f != BT_WEIGHT_FP8 && bt_weight_format_bits(f) <= 8;
}

/* A dense matrix read and rounded at once: only one of them is ever in memory unquantised. */
static enum bt_code read_rounded(struct model_reader *r, const struct bt_st_tensor *t,
                                 enum bt_weight_format format, struct bt_linear *l,
                                 struct bt_error *err)
{
    struct bt_arena scratch;
    struct bt_tensor dense;
    bt_arena_init(&scratch, 0);
    enum bt_code code = model_read_dense(r, &scratch, t, l->n_out, l->n_in, false, &dense, err);
    if (code == BT_OK) {
        code = bt_quantise_rtn(&r->m->arena, &dense, format, false, NULL, t->name, &l->q, err);
    }
    bt_arena_fini(&scratch);
    l->quantised = code == BT_OK;
    return code;
}

/* Quantised weights written out as floats of the type asked for. */
static enum bt_code expand(struct model_reader *r, struct bt_linear *l, struct bt_error *err)
{
    struct bt_qweight q = l->q;
    float *row = malloc((size_t)l->n_in * sizeof *row);
    if (row == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a row", r->path);
    }
    enum bt_code code =
        bt_tensor_init(&l->w, &r->m->arena, dense_type(r, BT_DTYPE_F32), l->n_out, l->n_in, err);
    size_t row_bytes = (size_t)l->n_in * bt_dtype_bytes(l->w.dtype);
    for (int32_t n = 0; n < l->n_out && code == BT_OK; n++) {
        bt_qweight_row_f32(&q, n, row);
        bt_dtype_from_f32(l->w.dtype, row, (char *)l->w.p + (size_t)n * row_bytes, (size_t)l->n_in);
    }
    free(row);
    l->q = (struct bt_qweight){0};
    l->quantised = false;
    return code;
}

/* What the options make of a matrix that is quantised in the file. */
static enum bt_code settle_quantised(struct model_reader *r, const char *base, struct bt_linear *l,
                                     struct bt_error *err)
{
    enum bt_weight_format asked = r->opts.weights;
    if (asked == BT_WEIGHT_DEFAULT || asked == bt_qweight_format(&l->q)) {
        return BT_OK;
    }
    if (is_integer_format(asked)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "weights %s: %s: %s is quantised as %s already",
                bt_weight_format_name(asked), r->path, base,
                bt_weight_format_name(bt_qweight_format(&l->q)));
    }
    return expand(r, l, err);
}

/* A bias that the architecture does not have is ignored only when it is zero: AutoGPTQ writes one
 * for every layer. */
static enum bt_code read_bias(struct model_reader *r, const char *base, bool expected,
                              struct bt_linear *l, struct bt_error *err)
{
    const struct bt_st_tensor *t = model_find(r, base, ".bias");
    if (expected && t == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: tensor %s.bias is missing", r->path, base);
    }
    if (t == NULL) {
        return BT_OK;
    }
    BT_TRY(model_read_dense(r, &r->m->arena, t, 1, l->n_out, true, &l->bias, err));
    if (expected) {
        return BT_OK;
    }
    struct bt_tensor none = {0};
    const unsigned char *p = l->bias.p;
    for (int64_t i = 0; i < bt_tensor_bytes(&l->bias); i++) {
        if (p[i] != 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: not zero, but the architecture has no such bias",
                    t->file, t->name);
        }
    }
    l->bias = none;
    return BT_OK;
}

static void note_dense(struct model_reader *r, const char *base)
{
    if (r->quant.layout != BT_QUANT_NONE && !r->told_dense) {
        bt_model_note(r->m, "%s: not quantised, unlike others; kept dense", base);
        r->told_dense = true;
    }
}

/* format: what a dense matrix is rounded to; DEFAULT: it stays dense. */
static enum bt_code read_matrix(struct model_reader *r, const char *base,
                                enum bt_weight_format format, struct bt_linear *l,
                                struct bt_error *err)
{
    bool found = false;
    const struct bt_st_tensor *t;
    BT_TRY(model_read_quantised(r, base, l, &found, err));
    if (found) {
        return settle_quantised(r, base, l, err);
    }
    BT_TRY(model_need(r, base, ".weight", &t, err));
    if (format != BT_WEIGHT_DEFAULT) {
        return read_rounded(r, t, format, l, err);
    }
    return model_read_dense(r, &r->m->arena, t, l->n_out, l->n_in, false, &l->w, err);
}

static bool has_bias(const struct bt_arch *a, enum bt_linear_id id)
{
    switch (id) {
    case BT_LINEAR_Q:
    case BT_LINEAR_K:
    case BT_LINEAR_V:
        return a->qkv_bias;
    case BT_LINEAR_O:
        return a->o_bias;
    case BT_LINEAR_GATE:
    case BT_LINEAR_UP:
    case BT_LINEAR_DOWN:
        return a->mlp_bias;
    case BT_LINEARS:
        break;
    }
    return false;
}

/* What the options make of the activations of a layer: the checkpoint's choice is in l->act. */
static enum bt_code settle_activations(const struct model_reader *r, const char *base,
                                       struct bt_linear *l, struct bt_error *err)
{
    switch (r->opts.activations) {
    case BT_ACT_DEFAULT:
        break;
    case BT_ACT_FP32:
    case BT_ACT_FP16:
    case BT_ACT_BF16:
        l->act = BT_ACT_DEFAULT;
        break;
    case BT_ACT_INT8_DYNAMIC:
        l->act = l->quantised ? BT_ACT_INT8_DYNAMIC : BT_ACT_DEFAULT;
        break;
    case BT_ACT_INT8_STATIC:
        if (l->quantised && l->act_scale == 0.0f) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "activations int8-static: %s: %s has no calibrated scale (quantize --scheme "
                    "w8a8-static makes them)",
                    r->path, base);
        }
        l->act = l->quantised ? BT_ACT_INT8_STATIC : BT_ACT_DEFAULT;
        break;
    case BT_ACT_FORMATS:
        BT_ASSERT(!"an activation format");
    }
    return BT_OK;
}

static enum bt_code read_linear(struct model_reader *r, int32_t layer, enum bt_linear_id id,
                                struct bt_error *err)
{
    const struct bt_arch *a = &r->m->config.arch;
    struct bt_linear *l = &r->m->layers[layer].linear[id];
    char base[MODEL_NAME_BYTES];
    enum bt_weight_format f = r->opts.weights;
    l->n_out = bt_linear_n_out(a, id);
    l->n_in = bt_linear_n_in(a, id);
    if (l->n_out == 0) {
        return BT_OK;
    }
    bt_linear_path(layer, id, base, sizeof base);
    BT_TRY(read_matrix(r, base, is_integer_format(f) ? f : BT_WEIGHT_DEFAULT, l, err));
    if (!l->quantised && f == BT_WEIGHT_DEFAULT) {
        note_dense(r, base);
    }
    BT_TRY(read_bias(r, base, has_bias(a, id), l, err));
    return settle_activations(r, base, l, err);
}

static enum bt_code read_layer(struct model_reader *r, int32_t i, struct bt_error *err)
{
    const struct bt_arch *a = &r->m->config.arch;
    struct bt_layer *layer = &r->m->layers[i];
    char base[MODEL_NAME_BYTES];
    (void)snprintf(base, sizeof base, "model.layers.%d", i);
    BT_TRY(read_vector(r, base, ".input_layernorm.weight", a->hidden, &layer->attn_norm, err));
    BT_TRY(
        read_vector(r, base, ".post_attention_layernorm.weight", a->hidden, &layer->mlp_norm, err));
    if (a->qk_norm) {
        BT_TRY(read_vector(r, base, ".self_attn.q_norm.weight", a->head_dim, &layer->q_norm, err));
        BT_TRY(read_vector(r, base, ".self_attn.k_norm.weight", a->head_dim, &layer->k_norm, err));
    }
    for (int id = 0; id < BT_LINEARS; id++) {
        BT_TRY(read_linear(r, i, (enum bt_linear_id)id, err));
    }
    return BT_OK;
}

static enum bt_code read_head(struct model_reader *r, struct bt_error *err)
{
    struct bt_model *m = r->m;
    const struct bt_arch *a = &m->config.arch;
    enum bt_weight_format f = r->opts.weights;
    bool rounded = is_integer_format(f) && r->opts.lm_head;
    m->lm_head.n_out = a->vocab;
    m->lm_head.n_in = a->hidden;
    if (!a->tie_embeddings) {
        BT_TRY(read_matrix(r, "lm_head", rounded ? f : BT_WEIGHT_DEFAULT, &m->lm_head, err));
        return settle_activations(r, "lm_head", &m->lm_head, err);
    }
    if (model_find(r, "lm_head", ".weight") != NULL) {
        bt_model_note(m, "lm_head.weight: ignored, the embeddings are tied");
    }
    if (!rounded) {
        m->lm_head = m->embed;
        m->head_is_embed = true;
        return BT_OK;
    }
    const struct bt_st_tensor *t;
    BT_TRY(model_need(r, "model.embed_tokens", ".weight", &t, err));
    return read_rounded(r, t, f, &m->lm_head, err);
}

static enum bt_code read_weights(struct model_reader *r, struct bt_error *err)
{
    struct bt_model *m = r->m;
    const struct bt_arch *a = &m->config.arch;
    const struct bt_st_tensor *t;
    m->embed.n_out = a->vocab;
    m->embed.n_in = a->hidden;
    BT_TRY(model_need(r, "model.embed_tokens", ".weight", &t, err));
    if (r->opts.embeddings) {
        BT_TRY(read_rounded(r, t, BT_WEIGHT_INT8, &m->embed, err));
    } else {
        BT_TRY(model_read_dense(r, &r->m->arena, t, a->vocab, a->hidden, false, &m->embed.w, err));
    }
    BT_ARENA_ARRAY(&m->arena, m->layers, a->n_layers, err);
    for (int32_t i = 0; i < a->n_layers; i++) {
        BT_TRY(read_layer(r, i, err));
    }
    BT_TRY(read_vector(r, "model.norm", ".weight", a->hidden, &m->final_norm, err));
    return read_head(r, err);
}

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name);
    size_t k = strlen(suffix);
    return n >= k && strcmp(name + n - k, suffix) == 0;
}

/* Tensors without a place are errors, but for those known to be harmless. */
static enum bt_code check_all_used(struct model_reader *r, struct bt_error *err)
{
    static const char *const harmless[] = {".rotary_emb.inv_freq", ".self_attn.k_scale",
                                           ".self_attn.v_scale", ".k_proj.output_scale",
                                           ".v_proj.output_scale"};
    for (int32_t i = 0; i < bt_safetensors_count(r->st); i++) {
        const struct bt_st_tensor *t = bt_safetensors_at(r->st, i);
        bool known = r->used[i];
        for (size_t k = 0; k < sizeof harmless / sizeof *harmless && !known; k++) {
            known = ends_with(t->name, harmless[k]);
        }
        if (!known) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: tensor %s has no place in this architecture",
                    t->file, t->name);
        }
    }
    return BT_OK;
}

/* berth_calibration.json, written beside static activation scales. */
static enum bt_code read_cover(struct bt_model *m, struct bt_error *err)
{
    char path[BT_PATH_BYTES];
    BT_TRY(bt_path_join(path, sizeof path, m->dir, "berth_calibration.json", err));
    if (!bt_path_exists(path)) {
        return BT_OK;
    }
    json_t *root;
    BT_TRY(bt_json_load_object(path, 1 << 20, &root, err));
    const json_t *n = json_object_get(root, "n_tokens");
    const json_t *longest = json_object_get(root, "max_tokens");
    const json_t *clipped = json_object_get(root, "clipped_fraction");
    bool good = json_is_integer(n) && json_integer_value(n) >= 0 && json_is_integer(longest) &&
                json_integer_value(longest) >= 0 && json_integer_value(longest) <= INT32_MAX;
    if (good) {
        m->cover.n_tokens = json_integer_value(n);
        m->cover.max_tokens = (int32_t)json_integer_value(longest);
        m->cover.clipped_fraction = json_number_value(clipped); /* 0 where there is none */
    }
    json_decref(root);
    if (!good) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: expected integers n_tokens and max_tokens >= 0", path);
    }
    return BT_OK;
}

static enum bt_code check_opts(const struct bt_model_opts *o, const struct bt_quant_config *quant,
                               struct bt_error *err)
{
    enum bt_weight_format f = o->weights == BT_WEIGHT_DEFAULT ? quant->weights : o->weights;
    bool int8 = o->activations == BT_ACT_INT8_DYNAMIC || o->activations == BT_ACT_INT8_STATIC;
    if (o->weights == BT_WEIGHT_FP8) {
        BT_FAIL(err, BT_ERR_ARG, 0, "weights fp8: only simulated, not executed");
    }
    if (int8 && !is_integer_format(f)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "activations %s: need int8 or int4 weights",
                bt_act_format_name(o->activations));
    }
    return BT_OK;
}

/* config says what the weights are now, which the options may have changed. */
static void describe(struct bt_model *m, const struct bt_model_opts *o)
{
    const struct bt_quant_config *q = &m->config.quant;
    bool float_asked = o->weights != BT_WEIGHT_DEFAULT && !is_integer_format(o->weights);
    enum bt_act_format act = o->activations == BT_ACT_DEFAULT ? q->activations : o->activations;
    if (float_asked || (o->weights == BT_WEIGHT_DEFAULT && q->layout == BT_QUANT_NONE)) {
        m->config.quant = (struct bt_quant_config){0};
        m->config.arch.checkpoint = float_asked ? o->weights : m->config.arch.checkpoint;
        return;
    }
    bt_model_describe(m, o->weights == BT_WEIGHT_DEFAULT ? q->weights : o->weights, act);
}

static enum bt_code load(struct bt_model *m, const struct bt_model_opts *opts, struct bt_error *err)
{
    struct bt_safetensors *st;
    BT_TRY(bt_model_config_read(m->dir, &m->config, err));
    BT_TRY(check_opts(opts, &m->config.quant, err));
    BT_TRY(bt_safetensors_open_dir(m->dir, &st, err));
    struct model_reader r = {
        .m = m, .st = st, .path = m->dir, .opts = *opts, .quant = m->config.quant};
    r.used = calloc((size_t)bt_safetensors_count(st) + 1, sizeof *r.used);
    enum bt_code code = BT_OK;
    if (r.used == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "%s: no memory", m->dir);
    }
    if (code == BT_OK) {
        code = read_weights(&r, err);
    }
    if (code == BT_OK) {
        code = check_all_used(&r, err);
    }
    free(r.used);
    bt_safetensors_close(st);
    BT_TRY(code);
    describe(m, opts);
    if (opts->norms) {
        bt_model_round_norms(m);
    }
    return read_cover(m, err);
}

enum bt_code bt_model_load(struct bt_model *m, const char *dir, const struct bt_model_opts *opts,
                           struct bt_error *err)
{
    static const struct bt_model_opts defaults;
    *m = (struct bt_model){0};
    opts = opts == NULL ? &defaults : opts;
    if (snprintf(m->dir, sizeof m->dir, "%s", dir) >= (int)sizeof m->dir) {
        *m = (struct bt_model){0};
        BT_FAIL(err, BT_ERR_ARG, 0, "model folder: path longer than %d bytes", BT_MODEL_DIR_BYTES);
    }
    bt_arena_init(&m->arena, 0);
    enum bt_code code = load(m, opts, err);
    if (code != BT_OK) {
        bt_model_fini(m);
    }
    return code;
}

static enum bt_code load_medusa(struct bt_medusa *m, const struct bt_safetensors *st,
                                const char *path, int32_t hidden, struct bt_error *err)
{
    for (; m->n_heads < BT_MEDUSA_MAX_HEADS; m->n_heads++) {
        char name[MODEL_NAME_BYTES];
        const int64_t shape[] = {hidden, hidden};
        struct bt_linear *l = &m->heads[m->n_heads];
        (void)snprintf(name, sizeof name, "medusa.%d.weight", m->n_heads);
        const struct bt_st_tensor *w = bt_safetensors_find(st, name);
        (void)snprintf(name, sizeof name, "medusa.%d.bias", m->n_heads);
        const struct bt_st_tensor *b = bt_safetensors_find(st, name);
        if (w == NULL && b == NULL) {
            break;
        }
        if (w == NULL || b == NULL || !bt_dtype_is_float(w->dtype) || b->dtype != w->dtype ||
            w->dtype == BT_DTYPE_F8_E4M3) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: medusa.%d: expected weight and bias of one type, F32, F16 or BF16", path,
                    m->n_heads);
        }
        BT_TRY(bt_st_tensor_expect(w, 2, shape, err));
        BT_TRY(bt_st_tensor_expect(b, 1, shape, err));
        l->n_out = hidden;
        l->n_in = hidden;
        BT_TRY(bt_tensor_init(&l->w, &m->arena, w->dtype, hidden, hidden, err));
        BT_TRY(bt_tensor_init(&l->bias, &m->arena, w->dtype, 1, hidden, err));
        BT_TRY(bt_safetensors_read(st, w, l->w.p, err));
        BT_TRY(bt_safetensors_read(st, b, l->bias.p, err));
    }
    if (m->n_heads == 0 || bt_safetensors_count(st) != 2 * m->n_heads) {
        BT_FAIL(
            err, BT_ERR_INPUT, 0,
            "%s: expected medusa.0.weight, medusa.0.bias, ... of 1 to %d heads and nothing else",
            path, BT_MEDUSA_MAX_HEADS);
    }
    return BT_OK;
}

enum bt_code bt_medusa_load(struct bt_medusa *m, const char *dir, int32_t hidden,
                            struct bt_error *err)
{
    char path[BT_PATH_BYTES];
    struct bt_safetensors *st;
    *m = (struct bt_medusa){0};
    BT_TRY(bt_path_join(path, sizeof path, dir, "medusa.safetensors", err));
    BT_TRY(bt_safetensors_open(path, &st, err));
    bt_arena_init(&m->arena, 0);
    enum bt_code code = load_medusa(m, st, path, hidden, err);
    bt_safetensors_close(st);
    if (code != BT_OK) {
        bt_medusa_fini(m);
    }
    return code;
}

void bt_medusa_fini(struct bt_medusa *m)
{
    bt_arena_fini(&m->arena);
    *m = (struct bt_medusa){0};
}
