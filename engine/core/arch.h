/* What a decoder-only transformer looks like, as plain data, and the arithmetic that follows from
 * it: parameters, weight bytes, KV bytes, FLOPs. The catalog and the config.json reader fill it;
 * the simulator and the engine read it.
 *
 * Supported: pre-norm decoders of the Llama family (Llama, Mistral, Qwen2, Qwen3): RMSNorm,
 * rotate-half RoPE, MHA/GQA, SiLU MLP. Everything here is pure and thread-safe.
 */
#ifndef BT_ENGINE_CORE_ARCH_H
#define BT_ENGINE_CORE_ARCH_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zero of each format enum means "not said": bt_*_resolve turns it into the documented default. */
enum bt_weight_format {
    BT_WEIGHT_DEFAULT = 0, /* the checkpoint's own */
    BT_WEIGHT_FP32,
    BT_WEIGHT_FP16,
    BT_WEIGHT_BF16,
    BT_WEIGHT_INT8,        /* symmetric, one FP16 scale an output channel */
    BT_WEIGHT_INT8_TENSOR, /* symmetric, one scale a matrix */
    BT_WEIGHT_INT4_G128,   /* symmetric, one FP16 scale for 128 weights along the input axis */
    BT_WEIGHT_INT4_G64,
    BT_WEIGHT_INT4_G32,
    BT_WEIGHT_INT4_TENSOR, /* symmetric, one scale a matrix */
    BT_WEIGHT_FP8,         /* E4M3, one FP16 scale an output channel; simulator only */
    BT_WEIGHT_FORMATS,     /* how many */
};

enum bt_act_format {
    BT_ACT_DEFAULT = 0, /* the checkpoint's compute type */
    BT_ACT_FP32,
    BT_ACT_FP16,
    BT_ACT_BF16,
    BT_ACT_INT8_DYNAMIC, /* one scale a token, found at run time */
    BT_ACT_INT8_STATIC,  /* one calibrated scale a tensor */
    BT_ACT_FORMATS,
};

enum bt_kv_format {
    BT_KV_DEFAULT = 0, /* the checkpoint's compute type */
    BT_KV_FP32,
    BT_KV_FP16,
    BT_KV_BF16,
    BT_KV_INT8, /* symmetric, one FP16 scale for each token and KV head, of K and of V */
    BT_KV_FP8,  /* E4M3, no scales in the cache */
    BT_KV_FORMATS,
};

enum bt_rope_scaling {
    BT_ROPE_DEFAULT = 0, /* no scaling */
    BT_ROPE_LINEAR,
    BT_ROPE_DYNAMIC,
    BT_ROPE_LLAMA3,
    BT_ROPE_YARN,
    BT_ROPE_SCALINGS,
};

enum {
    BT_ARCH_NAME_BYTES = 64,
    BT_ARCH_FAMILY_BYTES = 32,
    /* Attention heads times their size; Llama-3.1-405B has 2^14. A token's KV is then at most
     * 2^31 bytes, and that of 2^30 tokens 2^61. */
    BT_ARCH_MAX_WIDTH = 1 << 19,
    BT_ARCH_MAX_LAYERS = 256, /* bits of the sliding-window mask; the deepest known dense is 126 */
};

struct bt_rope {
    double theta; /* > 0 */
    enum bt_rope_scaling scaling;
    double factor;                 /* linear, dynamic, llama3, yarn; 1 otherwise */
    double low_freq_factor;        /* llama3 */
    double high_freq_factor;       /* llama3 */
    double attention_factor;       /* yarn; 0: 0.1 ln(factor) + 1 */
    double beta_fast;              /* yarn */
    double beta_slow;              /* yarn */
    int32_t original_max_position; /* dynamic, llama3, yarn: tokens of the unscaled training */
};

struct bt_arch {
    char name[BT_ARCH_NAME_BYTES];           /* "llama-2-13b"; a folder's name for a config.json */
    char vocab_family[BT_ARCH_FAMILY_BYTES]; /* drafts must share it; "" unknown */
    int32_t hidden;
    int32_t n_layers;
    int32_t n_heads;
    int32_t n_kv_heads; /* divides n_heads */
    int32_t head_dim;   /* even; may differ from hidden / n_heads */
    int32_t intermediate;
    int32_t vocab;        /* rows of the embedding */
    int32_t max_position; /* tokens */
    bool tie_embeddings;  /* lm_head is the embedding matrix */
    bool qkv_bias;
    bool o_bias;
    bool mlp_bias;
    bool qk_norm;             /* RMSNorm of each query and key head before RoPE */
    bool mlp_gated;           /* gate, up and down; else up and down */
    bool wide_residual;       /* the residual stream leaves FP16's range: keep it in BF16 or FP32 */
    int32_t sliding_window;   /* tokens a sliding layer looks back, itself included; 0 none */
    int32_t n_sliding_layers; /* how many bits of sliding_mask are set */
    uint64_t sliding_mask[BT_ARCH_MAX_LAYERS / 64]; /* bit i: layer i uses the window */
    struct bt_rope rope;
    double rms_eps;
    enum bt_weight_format checkpoint; /* format of the published weights */
    enum bt_act_format compute;       /* FP32, FP16 or BF16: the checkpoint's torch_dtype */
};

/* Parameters of the whole model by part, in elements. */
struct bt_arch_params {
    int64_t embeddings;
    int64_t lm_head; /* 0 when tied */
    int64_t attn_qkv;
    int64_t attn_o;
    int64_t mlp;
    int64_t norms; /* RMSNorm vectors, q/k norms included */
    int64_t biases;
    int64_t total;
};

/* Weight bytes on one tensor-parallel rank by part, scales included in their part. */
struct bt_weight_bytes {
    int64_t embeddings;
    int64_t lm_head; /* 0 when tied */
    int64_t attn_qkv;
    int64_t attn_o;
    int64_t mlp;
    int64_t norms; /* and biases */
    int64_t total;
};

struct bt_weight_opts {
    enum bt_weight_format format; /* default: the checkpoint's */
    int32_t tp;                   /* ranks; 0 means 1 */
    bool quantise_lm_head;        /* else lm_head stays 16-bit, as embeddings and norms always do */
};

/* What one tensor-parallel rank holds of each layer. KV heads are replicated when tp exceeds them.
 */
struct bt_arch_shard {
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t q_dim;  /* n_heads * head_dim */
    int32_t kv_dim; /* n_kv_heads * head_dim */
    int32_t intermediate;
    int32_t vocab; /* rows of embedding and lm_head, rounded up */
};

/* Name as users write it ("int4-g128"); "default" for the zero. Never NULL. */
const char *bt_weight_format_name(enum bt_weight_format f);
const char *bt_act_format_name(enum bt_act_format f);
const char *bt_kv_format_name(enum bt_kv_format f);
const char *bt_rope_scaling_name(enum bt_rope_scaling s);

/* Reads a name ("int4-g128"; case-sensitive). Returns BT_ERR_ARG, naming the value and all that is
 * allowed; *out is untouched then. `what` is the option or key path in the message. */
BT_NODISCARD enum bt_code bt_weight_format_parse(const char *text, const char *what,
                                                 enum bt_weight_format *out, struct bt_error *err);
BT_NODISCARD enum bt_code bt_act_format_parse(const char *text, const char *what,
                                              enum bt_act_format *out, struct bt_error *err);
BT_NODISCARD enum bt_code bt_kv_format_parse(const char *text, const char *what,
                                             enum bt_kv_format *out, struct bt_error *err);

/* The format itself, or what its zero stands for: the checkpoint's weights, the checkpoint's
 * compute type for activations and KV. */
enum bt_weight_format bt_weight_format_resolve(enum bt_weight_format f, const struct bt_arch *a);
enum bt_act_format bt_act_format_resolve(enum bt_act_format f, const struct bt_arch *a);
enum bt_kv_format bt_kv_format_resolve(enum bt_kv_format f, const struct bt_arch *a);

/* Bits of one stored weight, scales apart: 32, 16, 8 or 4. f is not the default. */
int32_t bt_weight_format_bits(enum bt_weight_format f);

/* Weights along the input axis that share a scale: 32, 64, 128; 0 when scales are not group-wise.
 */
int32_t bt_weight_format_group(enum bt_weight_format f);

/* Bits of one activation as the matrix product reads it: 32, 16 or 8. f is not the default. */
int32_t bt_act_format_bits(enum bt_act_format f);

/* Bits of one cached K or V element, scales apart: 32, 16 or 8. f is not the default. */
int32_t bt_kv_format_bits(enum bt_kv_format f);

/* Checks ranges and divisibility (counts > 0, n_kv_heads divides n_heads, even head_dim, ...).
 * Returns BT_ERR_ARG naming the field, its value and what is allowed. */
BT_NODISCARD enum bt_code bt_arch_check(const struct bt_arch *a, struct bt_error *err);

/* Checks that tp ranks can share the model: tp >= 1 divides n_heads and intermediate, and divides
 * n_kv_heads or is a multiple of it. Returns BT_ERR_ARG with what is allowed. */
BT_NODISCARD enum bt_code bt_arch_check_tp(const struct bt_arch *a, int32_t tp,
                                           struct bt_error *err);

/* Whether layer i (from 0) attends only sliding_window tokens. */
bool bt_arch_layer_slides(const struct bt_arch *a, int32_t layer);

/* Makes layers [first, last) use the sliding window; keeps n_sliding_layers. */
void bt_arch_slide_layers(struct bt_arch *a, int32_t first, int32_t last);

/* What one of tp ranks holds; tp passed bt_arch_check_tp. */
struct bt_arch_shard bt_arch_shard(const struct bt_arch *a, int32_t tp);

/* Parameters by part. */
struct bt_arch_params bt_arch_params(const struct bt_arch *a);

/* Bytes of an [out, in] matrix in format f with its scales: 16-bit scales, one an output channel
 * (int8, fp8), a group (int4-gN; the last group may be short) or a matrix. */
int64_t bt_weight_matrix_bytes(int64_t out, int64_t in, enum bt_weight_format f);

/* Weight bytes of one rank. Norms, biases, embeddings and, unless asked, lm_head are 16-bit (32-bit
 * when the format is fp32). Norms are replicated on each rank. opts may be NULL: all defaults. */
struct bt_weight_bytes bt_arch_weight_bytes(const struct bt_arch *a,
                                            const struct bt_weight_opts *opts);

/* Bytes that one token of context takes in the KV cache of one rank, all layers, scales included:
 * 2 L H_kv (D bits/8 + scale). tp 0 means 1. Sliding layers count in full: a KV block holds all
 * layers of its tokens. */
int64_t bt_arch_kv_bytes_per_token(const struct bt_arch *a, enum bt_kv_format f, int32_t tp);

/* FLOPs (two a multiply-add) of the layers' matrix products for one token, attention apart; whole
 * model over all ranks. */
double bt_arch_linear_flops(const struct bt_arch *a);

/* FLOPs of lm_head for one token. */
double bt_arch_lm_head_flops(const struct bt_arch *a);

/* FLOPs of attention (QK^T and PV, all layers) for one query token that sees `context` tokens,
 * itself included; sliding layers see at most their window. */
double bt_arch_attention_flops(const struct bt_arch *a, int64_t context);

/* FLOPs of one decoded token at `context`: the three above. */
double bt_arch_flops_per_token(const struct bt_arch *a, int64_t context);

#ifdef __cplusplus
}
#endif

#endif
