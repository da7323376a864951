/* Attention over the paged KV pool: prompt chunks and single tokens by the same code.
 *
 * A query at position p sees keys lo .. p, lo = 0 or p - window + 1; the scores are exact dot
 * products scaled by 1 / sqrt(head_dim), the softmax subtracts its maximum, sums run over keys in
 * order. The result depends on the sequence's tokens alone: block size, chunk and batch change no
 * bit. Source: Vaswani et al. 2017; paging as Kwon et al. 2023.
 */
#ifndef BT_ENGINE_CPU_ATTENTION_H
#define BT_ENGINE_CPU_ATTENTION_H

#include "engine/core/arena.h"
#include "engine/cpu/kv_pool.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Consecutive tokens of one sequence in a batch: rows first_row .. first_row + n_rows - 1 at
 * positions pos0 .. The keys of all of them are in the pool. */
struct bt_cpu_segment {
    int32_t first_row;
    int32_t n_rows;
    int32_t pos0;
    int32_t kv_class;
    const int32_t *blocks; /* borrowed: block table in token order */
};

/* Scratch for the keys, values and scores of one head; n_threads of them. */
struct bt_cpu_attn_work {
    int32_t n_threads;
    int32_t max_ctx;  /* tokens of context */
    int32_t head_pad; /* floats of a key, padded */
    float *keys;      /* [n_threads][max_ctx, head_pad] */
    float *values;    /* [n_threads][max_ctx, head_pad] */
    float *scores;    /* [n_threads][4, max_ctx padded] */
    float *queries;   /* [n_threads][4, head_pad] */
};

BT_NODISCARD enum bt_code bt_cpu_attn_work_init(struct bt_cpu_attn_work *w, struct bt_arena *arena,
                                                int32_t max_ctx, int32_t max_head_dim,
                                                int32_t n_threads, struct bt_error *err);

struct bt_cpu_attn {
    const struct bt_kv_pool *pool;
    enum bt_kv_part_id part;
    int32_t layer;
    int32_t n_heads; /* query heads; a multiple of the part's KV heads */
    int32_t window;  /* tokens seen, the query's own included; 0: all */
    const float *q;  /* [rows, n_heads, head_dim] */
    float *out;      /* [rows, n_heads, head_dim] */
};

/* Attends every segment. */
void bt_cpu_attend(struct bt_cpu_attn_work *w, const struct bt_cpu_attn *a,
                   const struct bt_cpu_segment *segments, int32_t n_segments);

#ifdef __cplusplus
}
#endif

#endif
