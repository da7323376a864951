/* Private to sim/cost/step.c: the operations of one model (target or draft) and their tables. */
#ifndef BT_SIM_COST_STEP_MODEL_H
#define BT_SIM_COST_STEP_MODEL_H

#include "sim/cost/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels and their device time by operation, launch apart. */
struct bt_op_rows {
    double ps[BT_STEP_OPS];
    int32_t launches[BT_STEP_OPS];
};

/* A broken line in integers, so that a span of steps is the exact sum of its steps: the knot at or
 * below a context, and so much for each context token beyond it. */
struct bt_decode_knot {
    int64_t ctx;
    int64_t full_ps, full_slope_ps;   /* all layers without a window */
    int64_t slide_ps, slide_slope_ps; /* all sliding layers */
    int64_t skew_ps, skew_slope_ps;   /* full layers, in ps / BT_SKEW_ONE */
};

enum { BT_SKEW_ONE = 1024 };

/* Decode attention of n sequences in integer ps: fixed + slope * context tokens, or, where the law
 * has a curve, fixed + the curve. */
struct bt_decode_row {
    int32_t n_knots; /* 0: no curve */
    int64_t skew;    /* of BT_SKEW_ONE */
    struct bt_decode_knot knots[BT_LAW_KNOTS];
    int64_t fixed_ps;      /* all layers, launches included */
    int64_t full_ps;       /* a context token in all layers without a window */
    int64_t slide_ps;      /* a context token in all sliding layers */
    int64_t full_16bit_ps; /* the same of the 16-bit class */
    int64_t slide_16bit_ps;
};

/* What a model computes on one rank, with its tables. Flops and bytes are of all ranks. */
struct bt_model_cost {
    struct bt_arch arch;
    struct bt_arch_shard shard;
    enum bt_weight_format weights, head_weights;
    enum bt_act_format activations;
    enum bt_kv_format kv, kv_16bit;
    bool fused;
    bool separate; /* RoPE, q/k norms and activation in kernels of their own */
    double scale;  /* of every operation's time */
    int32_t tp;
    int64_t act_bytes; /* of an activation at rest: 4 or 2 */
    struct bt_law law;
    int64_t node_ps;

    int32_t n_linear, n_logits, n_decode;
    int64_t *linear_ps;           /* owned: by tokens 0 .. n_linear-1 */
    int64_t *logits_ps;           /* owned: by rows 0 .. n_logits-1 */
    struct bt_decode_row *decode; /* owned: by sequences 0 .. n_decode-1 */
    int32_t linear_launches, logits_launches, attention_launches;

    int64_t linear_flops;     /* a token */
    int64_t head_flops;       /* a row of logits */
    int64_t full_flops;       /* a query-key pair, layers without a window */
    int64_t slide_flops;      /* .. and sliding ones */
    int64_t weight_bytes;     /* read once a step, lm_head apart */
    int64_t head_bytes;       /* lm_head */
    int64_t token_bytes;      /* activations and KV written, a token */
    int64_t row_bytes;        /* a row of logits */
    int64_t full_bytes;       /* a context token read, layers without a window .. */
    int64_t slide_bytes;      /* .. and sliding ones */
    int64_t full_16bit_bytes; /* .. of the 16-bit class */
    int64_t slide_16bit_bytes;
};

struct bt_model_cost_opts {
    const struct bt_step_model *model;
    int32_t n_layers; /* the first so many; 0: all */
    int32_t tp;
    bool fused;
    bool separate;
    double scale; /* 0: 1 */
    int64_t node_ps;
    int32_t max_tokens, max_rows, max_seqs; /* of the tables */
};

/* Borrows the law. BT_ERR_NOMEM leaves the model zeroed. */
BT_NODISCARD enum bt_code bt_model_cost_init(struct bt_model_cost *m,
                                             const struct bt_model_cost_opts *opts,
                                             struct bt_law law, struct bt_error *err);
void bt_model_cost_fini(struct bt_model_cost *m);

/* Everything but attention and logits for `tokens` > 0 tokens. */
void bt_model_linear_rows(const struct bt_model_cost *m, int64_t tokens, struct bt_op_rows *rows);
/* Final norm, lm_head and sampling of `n` > 0 rows. */
void bt_model_logits_rows(const struct bt_model_cost *m, int64_t n, struct bt_op_rows *rows);
/* Decode attention of n_seqs > 0 sequences with `tokens` query tokens in all; of one each where the
 * row has a curve. */
void bt_model_decode_row(const struct bt_model_cost *m, int64_t n_seqs, int64_t tokens,
                         struct bt_decode_row *out);
/* What `ps` of a row with a curve, which is of one query token a sequence, becomes when n_seqs
 * sequences verify `tokens` in all: as much more as decode_ps of the law says. */
int64_t bt_model_verify_ps(const struct bt_model_cost *m, int64_t n_seqs, int64_t tokens,
                           const struct bt_decode_row *row, int64_t ps);
/* Prefill attention of all layers, launches included. */
int64_t bt_model_prefill_ps(const struct bt_model_cost *m, int64_t n_seqs, int64_t tokens,
                            int64_t pairs, int64_t ctx);

/* Attention of chunks and decodes in one kernel, all layers; the law has mixed_ps. */
int64_t bt_model_mixed_ps(const struct bt_model_cost *m, const struct bt_batch *b);

/* Sum of the rows, launches included. */
int64_t bt_op_rows_ps(const struct bt_op_rows *rows, int64_t node_ps);
int32_t bt_op_rows_launches(const struct bt_op_rows *rows);

/* Context tokens that n_seqs sequences read in a sliding layer. */
int64_t bt_model_slide_ctx(const struct bt_model_cost *m, int64_t n_seqs, int64_t ctx);

#ifdef __cplusplus
}
#endif

#endif
