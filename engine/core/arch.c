#include "engine/core/arch.h"

#include <stdio.h>
#include <string.h>

static const char *const weight_names[BT_WEIGHT_FORMATS] = {
    [BT_WEIGHT_DEFAULT] = "default",
    [BT_WEIGHT_FP32] = "fp32",
    [BT_WEIGHT_FP16] = "fp16",
    [BT_WEIGHT_BF16] = "bf16",
    [BT_WEIGHT_INT8] = "int8",
    [BT_WEIGHT_INT8_TENSOR] = "int8-tensor",
    [BT_WEIGHT_INT4_G128] = "int4-g128",
    [BT_WEIGHT_INT4_G64] = "int4-g64",
    [BT_WEIGHT_INT4_G32] = "int4-g32",
    [BT_WEIGHT_INT4_TENSOR] = "int4-tensor",
    [BT_WEIGHT_FP8] = "fp8",
};

static const char *const act_names[BT_ACT_FORMATS] = {
    [BT_ACT_DEFAULT] = "default",
    [BT_ACT_FP32] = "fp32",
    [BT_ACT_FP16] = "fp16",
    [BT_ACT_BF16] = "bf16",
    [BT_ACT_INT8_DYNAMIC] = "int8-dynamic",
    [BT_ACT_INT8_STATIC] = "int8-static",
};

static const char *const kv_names[BT_KV_FORMATS] = {
    [BT_KV_DEFAULT] = "default", [BT_KV_FP32] = "fp32", [BT_KV_FP16] = "fp16",
    [BT_KV_BF16] = "bf16",       [BT_KV_INT8] = "int8", [BT_KV_FP8] = "fp8",
};

static const char *const rope_names[BT_ROPE_SCALINGS] = {
    [BT_ROPE_DEFAULT] = "default", [BT_ROPE_LINEAR] = "linear", [BT_ROPE_DYNAMIC] = "dynamic",
    [BT_ROPE_LLAMA3] = "llama3",   [BT_ROPE_YARN] = "yarn",
};

enum { SCALE_BYTES = 2 };

/* Index of text among names[1..n), or 0 with the allowed names in err. */
static int32_t parse_name(const char *text, const char *what, const char *const *names, int32_t n,
                          struct bt_error *err)
{
    char allowed[BT_ERROR_MSG_BYTES / 2] = "";
    size_t used = 0;
    for (int32_t i = 1; i < n; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
        int w =
            snprintf(allowed + used, sizeof allowed - used, "%s%s", i > 1 ? ", " : "", names[i]);
        BT_ASSERT(w > 0 && used + (size_t)w < sizeof allowed);
        used += (size_t)w;
    }
    (void)bt_error_set(err, BT_ERR_ARG, 0, __FILE__, __LINE__, "%s: \"%s\" is not one of %s", what,
                       text, allowed);
    return 0;
}

const char *bt_weight_format_name(enum bt_weight_format f)
{
    BT_ASSERT((uint32_t)f < BT_WEIGHT_FORMATS);
    return weight_names[f];
}

const char *bt_act_format_name(enum bt_act_format f)
{
    BT_ASSERT((uint32_t)f < BT_ACT_FORMATS);
    return act_names[f];
}

const char *bt_kv_format_name(enum bt_kv_format f)
{
    BT_ASSERT((uint32_t)f < BT_KV_FORMATS);
    return kv_names[f];
}

const char *bt_rope_scaling_name(enum bt_rope_scaling s)
{
    BT_ASSERT((uint32_t)s < BT_ROPE_SCALINGS);
    return rope_names[s];
}

enum bt_code bt_weight_format_parse(const char *text, const char *what, enum bt_weight_format *out,
                                    struct bt_error *err)
{
    int32_t i = parse_name(text, what, weight_names, BT_WEIGHT_FORMATS, err);
    if (i == 0) {
        return BT_ERR_ARG;
    }
    *out = (enum bt_weight_format)i;
    return BT_OK;
}

enum bt_code bt_act_format_parse(const char *text, const char *what, enum bt_act_format *out,
                                 struct bt_error *err)
{
    int32_t i = parse_name(text, what, act_names, BT_ACT_FORMATS, err);
    if (i == 0) {
        return BT_ERR_ARG;
    }
    *out = (enum bt_act_format)i;
    return BT_OK;
}

enum bt_code bt_kv_format_parse(const char *text, const char *what, enum bt_kv_format *out,
                                struct bt_error *err)
{
    int32_t i = parse_name(text, what, kv_names, BT_KV_FORMATS, err);
    if (i == 0) {
        return BT_ERR_ARG;
    }
    *out = (enum bt_kv_format)i;
    return BT_OK;
}

enum bt_weight_format bt_weight_format_resolve(enum bt_weight_format f, const struct bt_arch *a)
{
    return f == BT_WEIGHT_DEFAULT ? a->checkpoint : f;
}

enum bt_act_format bt_act_format_resolve(enum bt_act_format f, const struct bt_arch *a)
{
    return f == BT_ACT_DEFAULT ? a->compute : f;
}

enum bt_kv_format bt_kv_format_resolve(enum bt_kv_format f, const struct bt_arch *a)
{
    if (f != BT_KV_DEFAULT) {
        return f;
    }
    switch (a->compute) {
    case BT_ACT_FP32:
        return BT_KV_FP32;
    case BT_ACT_BF16:
        return BT_KV_BF16;
    case BT_ACT_FP16:
    case BT_ACT_DEFAULT:
    case BT_ACT_INT8_DYNAMIC:
    case BT_ACT_INT8_STATIC:
    case BT_ACT_FORMATS:
        break;
    }
    return BT_KV_FP16;
}

int32_t bt_weight_format_bits(enum bt_weight_format f)
{
    switch (f) {
    case BT_WEIGHT_FP32:
        return 32;
    case BT_WEIGHT_FP16:
    case BT_WEIGHT_BF16:
        return 16;
    case BT_WEIGHT_INT8:
    case BT_WEIGHT_INT8_TENSOR:
    case BT_WEIGHT_FP8:
        return 8;
    case BT_WEIGHT_INT4_G128:
    case BT_WEIGHT_INT4_G64:
    case BT_WEIGHT_INT4_G32:
    case BT_WEIGHT_INT4_TENSOR:
        return 4;
    case BT_WEIGHT_DEFAULT:
    case BT_WEIGHT_FORMATS:
        break;
    }
    BT_ASSERT(!"a weight format that is resolved");
    return 0;
}

int32_t bt_weight_format_group(enum bt_weight_format f)
{
    switch (f) {
    case BT_WEIGHT_INT4_G128:
        return 128;
    case BT_WEIGHT_INT4_G64:
        return 64;
    case BT_WEIGHT_INT4_G32:
        return 32;
    case BT_WEIGHT_FP32:
    case BT_WEIGHT_FP16:
    case BT_WEIGHT_BF16:
    case BT_WEIGHT_INT8:
    case BT_WEIGHT_INT8_TENSOR:
    case BT_WEIGHT_INT4_TENSOR:
    case BT_WEIGHT_FP8:
    case BT_WEIGHT_DEFAULT:
    case BT_WEIGHT_FORMATS:
        break;
    }
    return 0;
}

int32_t bt_act_format_bits(enum bt_act_format f)
{
    switch (f) {
    case BT_ACT_FP32:
        return 32;
    case BT_ACT_FP16:
    case BT_ACT_BF16:
        return 16;
    case BT_ACT_INT8_DYNAMIC:
    case BT_ACT_INT8_STATIC:
        return 8;
    case BT_ACT_DEFAULT:
    case BT_ACT_FORMATS:
        break;
    }
    BT_ASSERT(!"an activation format that is resolved");
    return 0;
}

int32_t bt_kv_format_bits(enum bt_kv_format f)
{
    switch (f) {
    case BT_KV_FP32:
        return 32;
    case BT_KV_FP16:
    case BT_KV_BF16:
        return 16;
    case BT_KV_INT8:
    case BT_KV_FP8:
        return 8;
    case BT_KV_DEFAULT:
    case BT_KV_FORMATS:
        break;
    }
    BT_ASSERT(!"a KV format that is resolved");
    return 0;
}

enum bt_code bt_arch_check(const struct bt_arch *a, struct bt_error *err)
{
    const struct {
        const char *name;
        int32_t value;
        int32_t max;
    } counts[] = {
        {"hidden size", a->hidden, 1 << 20},      {"layers", a->n_layers, BT_ARCH_MAX_LAYERS},
        {"attention heads", a->n_heads, 1 << 16}, {"KV heads", a->n_kv_heads, a->n_heads},
        {"head dim", a->head_dim, 1 << 16},       {"intermediate size", a->intermediate, 1 << 24},
        {"vocabulary size", a->vocab, 1 << 28},   {"max positions", a->max_position, INT32_MAX / 2},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].value < 1 || counts[i].value > counts[i].max) {
            BT_FAIL(err, BT_ERR_ARG, counts[i].value, "%s: %s: %d is not in 1..%d", a->name,
                    counts[i].name, counts[i].value, counts[i].max);
        }
    }
    if ((int64_t)a->n_heads * a->head_dim > BT_ARCH_MAX_WIDTH) {
        BT_FAIL(err, BT_ERR_ARG, a->n_heads,
                "%s: %d attention heads of %d: their product is not in 1..%d", a->name, a->n_heads,
                a->head_dim, BT_ARCH_MAX_WIDTH);
    }
    if (a->n_heads % a->n_kv_heads != 0) {
        BT_FAIL(err, BT_ERR_ARG, a->n_kv_heads, "%s: KV heads: %d must divide the %d heads",
                a->name, a->n_kv_heads, a->n_heads);
    }
    if (a->head_dim % 2 != 0) {
        BT_FAIL(err, BT_ERR_ARG, a->head_dim, "%s: head dim: %d must be even", a->name,
                a->head_dim);
    }
    if (a->sliding_window < 0 || (a->sliding_window == 0) != (a->n_sliding_layers == 0)) {
        BT_FAIL(err, BT_ERR_ARG, a->sliding_window,
                "%s: sliding window: %d tokens for %d layers; both must be 0 or both > 0", a->name,
                a->sliding_window, a->n_sliding_layers);
    }
    if (!(a->rope.theta > 0) || !(a->rms_eps >= 0 && a->rms_eps < 1)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: rope theta %g must be > 0 and RMS epsilon %g in [0, 1)",
                a->name, a->rope.theta, a->rms_eps);
    }
    if (a->rope.scaling != BT_ROPE_DEFAULT && !(a->rope.factor >= 1)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: rope %s factor: %g must be >= 1", a->name,
                bt_rope_scaling_name(a->rope.scaling), a->rope.factor);
    }
    BT_ASSERT(a->checkpoint != BT_WEIGHT_DEFAULT);
    BT_ASSERT(a->compute >= BT_ACT_FP32 && a->compute <= BT_ACT_BF16);
    return BT_OK;
}

enum bt_code bt_arch_check_tp(const struct bt_arch *a, int32_t tp, struct bt_error *err)
{
    if (tp < 1) {
        BT_FAIL(err, BT_ERR_ARG, tp, "tp: %d must be >= 1", tp);
    }
    if (a->n_heads % tp != 0) {
        BT_FAIL(err, BT_ERR_ARG, tp, "tp: %d does not divide the %d attention heads of %s", tp,
                a->n_heads, a->name);
    }
    if (a->n_kv_heads % tp != 0 && tp % a->n_kv_heads != 0) {
        BT_FAIL(err, BT_ERR_ARG, tp,
                "tp: %d neither divides nor is a multiple of the %d KV heads "
                "of %s",
                tp, a->n_kv_heads, a->name);
    }
    if (a->intermediate % tp != 0) {
        BT_FAIL(err, BT_ERR_ARG, tp, "tp: %d does not divide the intermediate size %d of %s", tp,
                a->intermediate, a->name);
    }
    return BT_OK;
}

bool bt_arch_layer_slides(const struct bt_arch *a, int32_t layer)
{
    BT_ASSERT(layer >= 0 && layer < a->n_layers);
    return (a->sliding_mask[layer / 64] >> (layer % 64) & 1U) != 0;
}

void bt_arch_slide_layers(struct bt_arch *a, int32_t first, int32_t last)
{
    BT_ASSERT(first >= 0 && last <= a->n_layers && a->n_layers <= BT_ARCH_MAX_LAYERS);
    for (int32_t i = first; i < last; i++) {
        uint64_t bit = UINT64_C(1) << (i % 64);
        a->n_sliding_layers += (a->sliding_mask[i / 64] & bit) == 0;
        a->sliding_mask[i / 64] |= bit;
    }
}

struct bt_arch_shard bt_arch_shard(const struct bt_arch *a, int32_t tp)
{
    BT_ASSERT(tp >= 1);
    int32_t heads = (a->n_heads + tp - 1) / tp;
    int32_t kv_heads = (a->n_kv_heads + tp - 1) / tp;
    return (struct bt_arch_shard){
        .n_heads = heads,
        .n_kv_heads = kv_heads,
        .q_dim = heads * a->head_dim,
        .kv_dim = kv_heads * a->head_dim,
        .intermediate = (a->intermediate + tp - 1) / tp,
        .vocab = (a->vocab + tp - 1) / tp,
    };
}

static int64_t norm_elements(const struct bt_arch *a)
{
    int64_t layer = 2 * (int64_t)a->hidden + (a->qk_norm ? 2 * (int64_t)a->head_dim : 0);
    return layer * a->n_layers + a->hidden;
}

static int64_t bias_elements(const struct bt_arch *a, const struct bt_arch_shard *s)
{
    int64_t layer = 0;
    layer += a->qkv_bias ? s->q_dim + 2 * (int64_t)s->kv_dim : 0;
    layer += a->o_bias ? a->hidden : 0;
    layer += a->mlp_bias ? (a->mlp_gated ? 2 : 1) * (int64_t)s->intermediate + a->hidden : 0;
    return layer * a->n_layers;
}

struct bt_arch_params bt_arch_params(const struct bt_arch *a)
{
    struct bt_arch_shard s = bt_arch_shard(a, 1);
    int64_t h = a->hidden;
    struct bt_arch_params p = {
        .embeddings = (int64_t)a->vocab * h,
        .lm_head = a->tie_embeddings ? 0 : (int64_t)a->vocab * h,
        .attn_qkv = a->n_layers * h * (s.q_dim + 2 * (int64_t)s.kv_dim),
        .attn_o = a->n_layers * h * s.q_dim,
        .mlp = a->n_layers * h * s.intermediate * (a->mlp_gated ? 3 : 2),
        .norms = norm_elements(a),
        .biases = bias_elements(a, &s),
    };
    p.total = p.embeddings + p.lm_head + p.attn_qkv + p.attn_o + p.mlp + p.norms + p.biases;
    return p;
}

int64_t bt_weight_matrix_bytes(int64_t out, int64_t in, enum bt_weight_format f)
{
    BT_ASSERT(out > 0 && in > 0);
    int64_t bits = bt_weight_format_bits(f);
    /* Each row is padded to whole bytes. */
    int64_t bytes = out * ((in * bits + 7) / 8);
    int64_t group = bt_weight_format_group(f);
    if (group > 0) {
        return bytes + out * ((in + group - 1) / group) * SCALE_BYTES;
    }
    switch (f) {
    case BT_WEIGHT_INT8:
    case BT_WEIGHT_FP8:
        return bytes + out * SCALE_BYTES;
    case BT_WEIGHT_INT8_TENSOR:
    case BT_WEIGHT_INT4_TENSOR:
        return bytes + SCALE_BYTES;
    case BT_WEIGHT_FP32:
    case BT_WEIGHT_FP16:
    case BT_WEIGHT_BF16:
    case BT_WEIGHT_INT4_G128:
    case BT_WEIGHT_INT4_G64:
    case BT_WEIGHT_INT4_G32:
    case BT_WEIGHT_DEFAULT:
    case BT_WEIGHT_FORMATS:
        break;
    }
    return bytes;
}

struct bt_weight_bytes bt_arch_weight_bytes(const struct bt_arch *a,
                                            const struct bt_weight_opts *opts)
{
    struct bt_weight_opts o = opts != NULL ? *opts : (struct bt_weight_opts){0};
    enum bt_weight_format f = bt_weight_format_resolve(o.format, a);
    enum bt_weight_format plain = f == BT_WEIGHT_FP32 ? BT_WEIGHT_FP32 : BT_WEIGHT_FP16;
    struct bt_arch_shard s = bt_arch_shard(a, o.tp > 0 ? o.tp : 1);
    int64_t h = a->hidden;
    int64_t plain_bytes = bt_weight_format_bits(plain) / 8;
    struct bt_weight_bytes b = {
        .embeddings = s.vocab * h * plain_bytes,
        .lm_head = a->tie_embeddings
                       ? 0
                       : bt_weight_matrix_bytes(s.vocab, h, o.quantise_lm_head ? f : plain),
        .attn_qkv = a->n_layers * (bt_weight_matrix_bytes(s.q_dim, h, f) +
                                   2 * bt_weight_matrix_bytes(s.kv_dim, h, f)),
        .attn_o = a->n_layers * bt_weight_matrix_bytes(h, s.q_dim, f),
        .mlp =
            a->n_layers * ((a->mlp_gated ? 2 : 1) * bt_weight_matrix_bytes(s.intermediate, h, f) +
                           bt_weight_matrix_bytes(h, s.intermediate, f)),
        .norms = (norm_elements(a) + bias_elements(a, &s)) * plain_bytes,
    };
    b.total = b.embeddings + b.lm_head + b.attn_qkv + b.attn_o + b.mlp + b.norms;
    return b;
}

int64_t bt_arch_kv_bytes_per_token(const struct bt_arch *a, enum bt_kv_format f, int32_t tp)
{
    f = bt_kv_format_resolve(f, a);
    struct bt_arch_shard s = bt_arch_shard(a, tp > 0 ? tp : 1);
    int64_t head = (int64_t)a->head_dim * bt_kv_format_bits(f) / 8;
    head += f == BT_KV_INT8 ? SCALE_BYTES : 0;
    return 2 * (int64_t)a->n_layers * s.n_kv_heads * head;
}

double bt_arch_linear_flops(const struct bt_arch *a)
{
    struct bt_arch_params p = bt_arch_params(a);
    return 2.0 * (double)(p.attn_qkv + p.attn_o + p.mlp);
}

double bt_arch_lm_head_flops(const struct bt_arch *a)
{
    return 2.0 * (double)a->hidden * (double)a->vocab;
}

double bt_arch_attention_flops(const struct bt_arch *a, int64_t context)
{
    BT_ASSERT(context >= 0);
    int64_t window = context;
    if (a->n_sliding_layers > 0 && a->sliding_window < context) {
        window = a->sliding_window;
    }
    double seen = (double)(a->n_layers - a->n_sliding_layers) * (double)context +
                  (double)a->n_sliding_layers * (double)window;
    return 4.0 * (double)a->n_heads * (double)a->head_dim * seen;
}

double bt_arch_flops_per_token(const struct bt_arch *a, int64_t context)
{
    return bt_arch_linear_flops(a) + bt_arch_lm_head_flops(a) + bt_arch_attention_flops(a, context);
}
