/* Attention over the paged KV pool on the GPU: prompt chunks on tensor cores, single tokens and
 * verifications (a few query tokens a sequence) by split-KV. A query at position p sees keys lo ..
 * p, lo = 0 or p - window + 1. What it computes is engine/cpu/attention.h; INT8 keys and values are
 * expanded in registers, sums are float.
 *
 * The host plans which block of threads reads which keys, once for all layers of a pass; the plan
 * travels with the batch, so that a captured graph serves every batch of its size.
 *
 * Source: Dao 2023 (FlashAttention-2), Dao et al. 2023 (Flash-Decoding), Kwon et al. 2023 (paging).
 */
#ifndef BT_ENGINE_CUDA_ATTENTION_H
#define BT_ENGINE_CUDA_ATTENTION_H

#include "engine/cuda/batch.h"
#include "engine/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The host's view of a batch, for planning. */
struct bt_cuda_attn_segment {
    int32_t n_rows; /* 0: padded */
    int32_t pos0;
    int32_t kv_class;
};

struct bt_cuda_attn; /* workspaces for partial results */

struct bt_cuda_attn_opts {
    const struct bt_cuda_device *device; /* borrowed */
    const struct bt_cuda_kv *kv;         /* borrowed */
    enum bt_kv_part_id part;
    const struct bt_arch *arch; /* of the part's model; head_dim 64 or 128, else BT_ERR_ARG that
                                   names it and says that the CPU runs it; borrowed */
    enum bt_act_format compute; /* BF16 or FP16: of q and out */
    int32_t max_rows;
    int32_t max_segments;
    int32_t max_model_len;       /* tokens */
    struct bt_cuda_arena *arena; /* borrowed: workspaces */
};

/* Returns BT_ERR_ARG, naming it, for a head_dim, KV format or compute type that is not served. */
BT_NODISCARD enum bt_code bt_cuda_attn_create(const struct bt_cuda_attn_opts *o,
                                              struct bt_cuda_attn **out, struct bt_error *err);
void bt_cuda_attn_destroy(struct bt_cuda_attn *a);

/* int32 words of the plan of a batch padded to n_rows and n_segments, and the most that any batch
 * within the limits given at creation takes. */
int32_t bt_cuda_attn_plan_words(const struct bt_cuda_attn *a, int32_t n_rows, int32_t n_segments);
int32_t bt_cuda_attn_max_plan_words(const struct bt_cuda_attn *a);

/* Writes the plan of a batch to host memory; n_rows and n_segments are the batch's, padded.
 * `decode` promises that no segment has more than 16 rows, as a captured graph needs: then the
 * launches of bt_cuda_attn_run depend on n_rows, n_segments and decode alone. It promises also that
 * keys before a segment's first row were in the pool before any kernel that was launched after the
 * plan's upload: they are read while those run. `a` is only read. */
void bt_cuda_attn_plan(const struct bt_cuda_attn *a, const struct bt_cuda_attn_segment *segments,
                       int32_t n_rows, int32_t n_segments, bool decode, int32_t *plan);

/* out [n_rows, n_heads, head_dim] = attention of q [n_rows, q_stride elements, a multiple of 8];
 * the keys of all rows are in the pool. Rows that are padded are left as they are. b's plan was
 * made with the same `decode`. In stream order; may be captured. Calls of one `a` share its
 * workspaces: they must be ordered. */
BT_NODISCARD enum bt_code bt_cuda_attn_run(struct bt_cuda_attn *a, const struct bt_cuda_batch *b,
                                           int32_t layer, bool decode, const void *q,
                                           int32_t q_stride, void *out, struct CUstream_st *stream,
                                           struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
