/* The seam between what a step does and how long each operation takes.
 *
 * sim/cost/step.h assembles a step's operations (which matrix products of which shapes, which
 * attention, what is fused); a law answers how long one of them runs on one rank's device. The
 * roofline is one law; measured surfaces are another. Laws are asked when a cost model is made and
 * for rare shapes later; they are pure, immutable and shared by threads.
 *
 * All times are device time in ps, launch apart.
 */
#ifndef BT_SIM_COST_LAW_H
#define BT_SIM_COST_LAW_H

#include "engine/core/arch.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_step_op {
    BT_STEP_EMBED,    /* rows of the embedding table */
    BT_STEP_NORM,     /* RMSNorm; fused with the residual addition and the quantisation */
    BT_STEP_ADD,      /* residual addition alone */
    BT_STEP_QUANTISE, /* activations to int8 alone */
    BT_STEP_QKV,      /* matrix product of Q, K and V */
    BT_STEP_QK_NORM,  /* RMSNorm of query and key heads alone */
    BT_STEP_ROPE,     /* rotary embedding alone */
    BT_STEP_KV_WRITE, /* K and V to the cache; fused: the extra traffic of the product's epilogue */
    BT_STEP_ATTN_DECODE,
    BT_STEP_ATTN_PREFILL,
    BT_STEP_O,
    BT_STEP_GATE_UP,
    BT_STEP_ACTIVATION, /* SiLU(gate) * up alone */
    BT_STEP_DOWN,
    BT_STEP_ALL_REDUCE, /* over tensor-parallel ranks */
    BT_STEP_LM_HEAD,
    BT_STEP_ALL_GATHER, /* of the logits' best over ranks */
    BT_STEP_SAMPLE,
    BT_STEP_MEDUSA, /* a Medusa head's hidden x hidden product */
    BT_STEP_OPS,
};

/* "qkv", "attention decode", ...; never NULL. */
const char *bt_step_op_name(enum bt_step_op op);

/* out [m, n] = in [m, k] x weight [n, k]. */
struct bt_law_gemm {
    enum bt_step_op op;
    int64_t m, n, k;               /* > 0 */
    enum bt_weight_format weights; /* resolved */
    enum bt_act_format activations;
};

/* One layer's attention on one rank over a group of sequences. */
struct bt_law_attention {
    int32_t n_heads, n_kv_heads, head_dim;
    enum bt_kv_format kv; /* resolved */
    bool flash;           /* false: scores go through memory, in three kernels */
    int64_t n_seqs;       /* > 0 */
    int64_t tokens;       /* query tokens in all, >= n_seqs */
    int64_t pairs;        /* query-key pairs in all; decode asks for a unit of context: unused */
    int64_t ctx;          /* KV tokens read in all; decode: unused */
};

enum { BT_LAW_KNOTS = 20 };

/* Time of decode attention in one layer as a broken line over the batch's context. */
struct bt_law_curve {
    int32_t n;                 /* knots, >= 2 */
    int64_t ctx[BT_LAW_KNOTS]; /* context tokens of all sequences together, rising */
    double ps[BT_LAW_KNOTS];
    double skew; /* 0 .. 1: share of the time at the longest context that an uneven batch takes */
};

struct bt_law_ops {
    const char *name;
    /* Required. */
    double (*gemm_ps)(const void *self, const struct bt_law_gemm *g);
    /* Required. m tokens (or sequences) of `width` elements moving `bytes` through memory. */
    double (*pointwise_ps)(const void *self, enum bt_step_op op, int64_t m, int64_t width,
                           int64_t bytes);
    /* Required. Decode attention is affine in total context: fixed + per_ctx * context tokens. */
    void (*decode_ps)(const void *self, const struct bt_law_attention *a, double *fixed_ps,
                      double *per_ctx_ps);
    /* Required. Attention of prefill chunks. */
    double (*prefill_ps)(const void *self, const struct bt_law_attention *a);
    /* Optional. Decode attention of a->n_seqs sequences of equal context, one query token each;
     * used instead of decode_ps for KV of the pool's class, while more query tokens take as much
     * more as decode_ps says. False: decode_ps is all there is. */
    bool (*decode_curve)(const void *self, const struct bt_law_attention *a,
                         struct bt_law_curve *out);
    /* Optional. Prefill chunks and decodes (n_seqs 0: none; ctx of all together) in one kernel. */
    double (*mixed_ps)(const void *self, const struct bt_law_attention *prefill,
                       const struct bt_law_attention *decode);
    /* Required. An all-reduce of `bytes` a rank, or an all-gather to `bytes`; ranks > 1. */
    double (*collective_ps)(const void *self, enum bt_step_op op, int64_t bytes, int32_t ranks);
    void (*destroy)(void *self); /* Required. */
};

struct bt_law {
    const struct bt_law_ops *ops;
    void *self; /* owned by whoever holds the struct */
};

#ifdef __cplusplus
}
#endif

#endif
