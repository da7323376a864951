/* A model's weights on the device, laid out for the kernels: q, k and v as one matrix, gate and up
 * as one; loaded from a bt_model, or made there at random from its shape.
 *
 * With several ranks of tensor parallelism a rank holds its heads and its share of the MLP; norms,
 * embeddings and lm_head are whole on every rank.
 *
 * Ownership: a bt_cuda_model owns its device memory. Threading: immutable once loaded.
 */
#ifndef BT_ENGINE_CUDA_MODEL_H
#define BT_ENGINE_CUDA_MODEL_H

#include "engine/cuda/linear.h"
#include "engine/cuda/ops.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_cuda_layer {
    struct bt_cuda_linear qkv, o, gate_up, down;
    void *attn_norm, *mlp_norm; /* [hidden] of the compute type */
    void *q_norm, *k_norm;      /* [head_dim]; NULL: none */
};

struct bt_cuda_model {
    struct bt_arch arch; /* of this rank: its heads and its intermediate size */
    struct bt_cuda_arena arena;
    void *embed;                  /* [vocab, hidden] of the compute type, or int8 */
    void *embed_scale;            /* [vocab] FP16 when it is int8; else NULL */
    struct bt_cuda_layer *layers; /* owned, malloc: [n_layers] */
    void *final_norm;
    struct bt_cuda_linear lm_head;
    struct bt_cuda_rope rope;
};

struct bt_cuda_model_opts {
    const struct bt_model *model; /* borrowed during the call; a shape: random weights */
    struct bt_cuda_gemm *gemm;    /* borrowed */
    enum bt_act_format compute;   /* BF16 or FP16 */
    int32_t max_position;         /* positions of the RoPE table */
    int32_t n_ranks, rank;        /* 1, 0: all of it */
    uint64_t seed;                /* of random weights */
    const char *what;             /* for messages: "weights", "draft" */
};

/* BT_ERR_ARG for what has no form on the device; BT_ERR_NOMEM. On failure *m is zeroed. */
BT_NODISCARD enum bt_code bt_cuda_model_load(const struct bt_cuda_model_opts *o,
                                             struct bt_cuda_model *m, struct bt_error *err);
void bt_cuda_model_fini(struct bt_cuda_model *m);

/* Bytes of weights that a pass reads: all but tables of which it reads a few rows. */
int64_t bt_cuda_model_read_bytes(const struct bt_cuda_model *m);

/* Host memory to the device, at once. */
BT_NODISCARD enum bt_code bt_cuda_upload(void *dst, const void *src, int64_t bytes,
                                         struct bt_error *err);

/* n numbers of the compute type, uniform with standard deviation 0.02, in stream order of the
 * default stream. */
void bt_cuda_fill_random(enum bt_act_format compute, uint64_t seed, void *out, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
