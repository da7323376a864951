/* The decoder's small operations on the GPU, fused and not. What each computes is
 * engine/cpu/ops.h with `round` = compute; rows are independent of each other to the bit.
 *
 * `compute` is BF16 or FP16, the type of every pointer called x16, weight, table or out16; the
 * residual stream is of the type `residual` (compute, or FP32 where FP16 would overflow). In stream
 * order; all may be captured. A launch that fails is told by the caller's check of the stream's
 * last error (bt_cuda_check_launch).
 */
#ifndef BT_ENGINE_CUDA_OPS_H
#define BT_ENGINE_CUDA_OPS_H

#include "engine/cuda/batch.h"
#include "engine/cuda/device.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_cuda_types {
    enum bt_act_format compute;  /* BF16 or FP16 */
    enum bt_act_format residual; /* compute or FP32 */
};

/* Where a row operation puts its result: 16-bit, or rounded to INT8 by token. */
struct bt_cuda_out {
    void *out16;        /* [rows, n] of the compute type; NULL: not wanted */
    int8_t *out8;       /* [rows, n]; NULL: not wanted */
    float *out_scale;   /* [rows]: max|x| / 127 of the row; written when static_scale is 0 */
    float static_scale; /* > 0: the one scale of every row */
};

/* BT_OK, or BT_ERR_CUDA naming `what` and CUDA's error. */
BT_NODISCARD enum bt_code bt_cuda_check_launch(const char *what, struct bt_error *err);

/* residual [n_rows, hidden] = table[ids]; table [vocab, hidden] 16-bit, or int8 with one FP16 scale
 * a row when table_scale is not NULL. */
void bt_cuda_embed(struct bt_cuda_types t, const int32_t *ids, int32_t n_rows, const void *table,
                   const void *table_scale, int32_t hidden, void *residual,
                   struct CUstream_st *stream);

/* residual += add (when add is not NULL), then out = rms_norm(residual) * weight. */
void bt_cuda_add_norm(struct bt_cuda_types t, void *residual, const void *add, const void *weight,
                      float eps, int32_t n_rows, int32_t n, struct bt_cuda_out out,
                      struct CUstream_st *stream);

/* residual += add. Unfused form of the former's first half. */
void bt_cuda_add(struct bt_cuda_types t, void *residual, const void *add, int32_t n_rows, int32_t n,
                 struct CUstream_st *stream);

/* out = x16 rounded to INT8 by token. Unfused form of what the others can do on the way. */
void bt_cuda_quantise(struct bt_cuda_types t, const void *x16, int32_t n_rows, int32_t n,
                      struct bt_cuda_out out, struct CUstream_st *stream);

/* cos and sin of every position, float: table [max_position][2, head_dim / 2], made on the host by
 * bt_cpu_rope_at's rule and uploaded at creation. */
struct bt_cuda_rope {
    const float *table; /* device */
    int32_t max_position;
};

/* For each row of packed projections qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]: norms of
 * queries and keys (when q_norm and k_norm are not NULL, [head_dim]), RoPE, queries written back in
 * place, keys and values written to the pool (rounded to INT8 with one FP16 scale a head where the
 * segment's class says so). Rows with position -1 write nothing. `write_q` and `write_kv` allow
 * each half alone, which is the unfused form. */
void bt_cuda_rope_kv(struct bt_cuda_types t, const struct bt_cuda_kv *kv, enum bt_kv_part_id part,
                     int32_t layer, const struct bt_cuda_batch *b, struct bt_cuda_rope rope,
                     const void *q_norm, const void *k_norm, float eps, int32_t n_heads, void *qkv,
                     bool write_q, bool write_kv, struct CUstream_st *stream);

/* out [n_rows, n] = silu(gate) * up of gate_up [n_rows, 2 n]: gate first, then up. */
void bt_cuda_silu_mul(struct bt_cuda_types t, const void *gate_up, int32_t n_rows, int32_t n,
                      struct bt_cuda_out out, struct CUstream_st *stream);

/* out = x + silu(y): a Medusa head's residual block; x, y, out [n_rows, n] of the compute type. */
void bt_cuda_medusa_add(struct bt_cuda_types t, const void *x, const void *y, int32_t n_rows,
                        int32_t n, void *out, struct CUstream_st *stream);

/* out[i] = x[rows[i]] for n_rows rows of n 16-bit numbers; rows[i] < 0: out[i] is zeros. */
void bt_cuda_gather(const void *x16, const int32_t *rows, int32_t n_rows, int32_t n, void *out16,
                    struct CUstream_st *stream);

/* ids[i] = source[i] >= 0 ? ids[i] : last[-1 - source[i]]: tokens that the step before made and the
 * host has not seen. ids, source [n_rows]; last: one token a slot. */
void bt_cuda_take_ids(int32_t *ids, const int32_t *source, const int32_t *last, int32_t n_rows,
                      struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
