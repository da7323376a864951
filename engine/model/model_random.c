/* Random weights of an architecture: for benchmarks, where the numbers do not matter but their
 * spread does. Every matrix has its own stream, so that shapes may change one by one. */
#include "engine/core/rng.h"
#include "engine/model/model.h"
#include "engine/model/quantize.h"

#include <string.h>

/* Uniform with this half width has standard deviation 0.02, as checkpoints are initialised. */
static const float HALF_WIDTH = 0.034641016f;

struct maker {
    struct bt_model *m;
    uint64_t seed;
    enum bt_dtype dense;
    enum bt_weight_format weights; /* of the layers' matrices */
    enum bt_act_format act;        /* of quantised layers */
};

static void fill_dense(struct bt_tensor *t, struct bt_rng *rng)
{
    enum { CHUNK = 1024, PER_DRAW = 4 };
    float values[CHUNK];
    size_t n = (size_t)t->rows * (size_t)t->cols;
    size_t size = bt_dtype_bytes(t->dtype);
    for (size_t at = 0; at < n; at += CHUNK) {
        for (size_t i = 0; i < CHUNK; i += PER_DRAW) {
            uint64_t bits = bt_rng_u64(rng);
            for (size_t b = 0; b < PER_DRAW; b++) {
                int32_t v = (int32_t)(bits >> 16 * b & 0xffff);
                values[i + b] = ((float)v + 0.5f - 32768.0f) * (HALF_WIDTH / 32768.0f);
            }
        }
        size_t count = n - at < CHUNK ? n - at : CHUNK;
        bt_dtype_from_f32(t->dtype, values, (char *)t->p + at * size, count);
    }
}

static void fill_quantised(struct bt_qweight *q, struct bt_rng *rng)
{
    size_t bytes = (size_t)q->n_out * bt_qweight_row_bytes(q);
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t bits = bt_rng_u64(rng);
        size_t count = bytes - at < sizeof bits ? bytes - at : sizeof bits;
        memcpy(q->q + at, &bits, count);
    }
    /* A padding half-byte is 8, the zero. */
    for (int32_t n = 0; n < q->n_out && q->bits == 4 && q->n_in % 2 != 0; n++) {
        uint8_t *last = q->q + ((size_t)n + 1) * bt_qweight_row_bytes(q) - 1;
        *last = (uint8_t)((*last & 0x0f) | (BT_QWEIGHT_ZERO4 & 0xf0));
    }
    float scale = bt_quant_scale(HALF_WIDTH, q->bits == 4 ? 7 : 127);
    size_t n = q->scale_stride == 0 ? 1 : (size_t)q->n_out * (size_t)q->n_groups;
    for (size_t i = 0; i < n; i++) {
        ((uint16_t *)q->scale)[i] = bt_f32_to_f16(scale);
    }
}

static enum bt_code make_matrix(const struct maker *k, const char *name, enum bt_weight_format f,
                                struct bt_linear *l, struct bt_error *err)
{
    struct bt_rng rng;
    bt_rng_init(&rng, k->seed, name, 0);
    if (bt_weight_format_bits(f) <= 8) {
        BT_TRY(bt_qweight_init(&l->q, &k->m->arena, f, l->n_out, l->n_in, BT_DTYPE_F16, err));
        l->quantised = true;
        l->act = k->act;
        fill_quantised(&l->q, &rng);
        return BT_OK;
    }
    BT_TRY(bt_tensor_init(&l->w, &k->m->arena, k->dense, l->n_out, l->n_in, err));
    fill_dense(&l->w, &rng);
    return BT_OK;
}

static enum bt_code make_vector(const struct maker *k, int32_t n, float value, struct bt_tensor *t,
                                struct bt_error *err)
{
    BT_TRY(bt_tensor_init(t, &k->m->arena, k->dense, 1, n, err));
    for (int32_t i = 0; i < n; i++) {
        bt_dtype_from_f32(k->dense, &value, (char *)t->p + (size_t)i * bt_dtype_bytes(k->dense), 1);
    }
    return BT_OK;
}

static enum bt_code make_layer(const struct maker *k, int32_t index, struct bt_error *err)
{
    const struct bt_arch *a = &k->m->config.arch;
    struct bt_layer *layer = &k->m->layers[index];
    BT_TRY(make_vector(k, a->hidden, 1.0f, &layer->attn_norm, err));
    BT_TRY(make_vector(k, a->hidden, 1.0f, &layer->mlp_norm, err));
    if (a->qk_norm) {
        BT_TRY(make_vector(k, a->head_dim, 1.0f, &layer->q_norm, err));
        BT_TRY(make_vector(k, a->head_dim, 1.0f, &layer->k_norm, err));
    }
    for (int i = 0; i < BT_LINEARS; i++) {
        enum bt_linear_id id = (enum bt_linear_id)i;
        struct bt_linear *l = &layer->linear[id];
        char name[128];
        l->n_out = bt_linear_n_out(a, id);
        l->n_in = bt_linear_n_in(a, id);
        if (l->n_out == 0) {
            continue;
        }
        BT_TRY(make_matrix(k, bt_linear_path(index, id, name, sizeof name), k->weights, l, err));
        bool bias = id <= BT_LINEAR_V ? a->qkv_bias : id == BT_LINEAR_O ? a->o_bias : a->mlp_bias;
        if (bias) {
            BT_TRY(make_vector(k, l->n_out, 0.0f, &l->bias, err));
        }
    }
    return BT_OK;
}

static enum bt_code make(const struct maker *k, const struct bt_model_opts *o, struct bt_error *err)
{
    struct bt_model *m = k->m;
    const struct bt_arch *a = &m->config.arch;
    bool integer = bt_weight_format_bits(k->weights) <= 8;
    enum bt_weight_format plain = BT_WEIGHT_BF16; /* any dense one: the type is k->dense */
    m->embed.n_out = m->lm_head.n_out = a->vocab;
    m->embed.n_in = m->lm_head.n_in = a->hidden;
    BT_TRY(make_matrix(k, "model.embed_tokens", o->embeddings ? BT_WEIGHT_INT8 : plain, &m->embed,
                       err));
    m->embed.act = BT_ACT_DEFAULT;
    BT_ARENA_ARRAY(&m->arena, m->layers, a->n_layers, err);
    for (int32_t i = 0; i < a->n_layers; i++) {
        BT_TRY(make_layer(k, i, err));
    }
    BT_TRY(make_vector(k, a->hidden, 1.0f, &m->final_norm, err));
    if (a->tie_embeddings && !(integer && o->lm_head)) {
        m->lm_head = m->embed;
        m->head_is_embed = true;
        return BT_OK;
    }
    return make_matrix(k, "lm_head", integer && o->lm_head ? k->weights : plain, &m->lm_head, err);
}

static const struct bt_model_opts default_opts;

enum bt_code bt_model_shape(struct bt_model *m, const struct bt_arch *arch,
                            const struct bt_model_opts *opts, struct bt_error *err)
{
    opts = opts == NULL ? &default_opts : opts;
    *m = (struct bt_model){0};
    BT_TRY(bt_arch_check(arch, err));
    enum bt_weight_format f = bt_weight_format_resolve(opts->weights, arch);
    bool int8 = opts->activations == BT_ACT_INT8_DYNAMIC || opts->activations == BT_ACT_INT8_STATIC;
    if (f == BT_WEIGHT_FP8) {
        BT_FAIL(err, BT_ERR_ARG, 0, "weights fp8: only simulated, not executed");
    }
    if (opts->activations == BT_ACT_INT8_STATIC || (int8 && bt_weight_format_bits(f) > 8)) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "activations %s: random weights have int8-dynamic only, and only with int8 or int4 "
                "weights",
                bt_act_format_name(opts->activations));
    }
    m->config.arch = *arch;
    m->config.arch.checkpoint = f;
    m->config.bos_id = -1;
    if (bt_weight_format_bits(f) <= 8) {
        m->config.quant.weights = f;
        m->config.quant.activations = int8 ? opts->activations : BT_ACT_DEFAULT;
        m->config.quant.lm_head = opts->lm_head;
    }
    return BT_OK;
}

enum bt_code bt_model_random(struct bt_model *m, const struct bt_arch *arch,
                             const struct bt_model_opts *opts, uint64_t seed, struct bt_error *err)
{
    opts = opts == NULL ? &default_opts : opts;
    BT_TRY(bt_model_shape(m, arch, opts, err));
    enum bt_weight_format f = m->config.arch.checkpoint;
    struct maker k = {
        .m = m,
        .seed = seed,
        .weights = f,
        .dense = f == BT_WEIGHT_FP32            ? BT_DTYPE_F32
                 : f == BT_WEIGHT_FP16          ? BT_DTYPE_F16
                 : f == BT_WEIGHT_BF16          ? BT_DTYPE_BF16
                 : arch->compute == BT_ACT_FP32 ? BT_DTYPE_F32
                 : arch->compute == BT_ACT_FP16 ? BT_DTYPE_F16
                                                : BT_DTYPE_BF16,
        .act = m->config.quant.activations,
    };
    bt_arena_init(&m->arena, 0);
    enum bt_code code = make(&k, opts, err);
    if (code != BT_OK) {
        bt_model_fini(m);
        return code;
    }
    if (bt_weight_format_bits(f) <= 8) {
        bt_model_describe(m, f, k.act);
    }
    return BT_OK;
}
