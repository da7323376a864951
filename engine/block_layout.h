/* Where a token's keys and values lie in the KV pool: one layout for all executors.
 *
 *   block = [part][layer][K, V][slot][kv head][head dim]
 *
 * A block holds every layer of its tokens, so that a block is one contiguous copy. A draft model's
 * layers are a second part of the same block. INT8 planes end with their scales, FP16, [slot][kv
 * head]. The pool's 16-bit class (sequences that stay 16-bit in an INT8 pool) uses blocks of the
 * same bytes with fewer slots. Pure and thread-safe.
 */
#ifndef BT_ENGINE_BLOCK_LAYOUT_H
#define BT_ENGINE_BLOCK_LAYOUT_H

#include "engine/core/arch.h"
#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Classes of bt_plan_seq.kv_class: the pool's format, and the 16-bit class. */
enum { BT_KV_CLASSES = 2 };

enum bt_kv_part_id { BT_KV_PART_TARGET = 0, BT_KV_PART_DRAFT, BT_KV_PARTS };

/* One model's share of a block. */
struct bt_kv_part {
    int32_t n_layers; /* 0: there is no such model */
    int32_t n_kv_heads;
    int32_t head_dim;
    int64_t offset_bytes; /* of its first plane in the block */
    int64_t plane_bytes;  /* K, or V, of one layer with its scales */
};

struct bt_block_layout {
    enum bt_kv_format format; /* FP32, FP16, BF16 or INT8 */
    int32_t block_tokens;     /* slots */
    int64_t block_bytes;
    struct bt_kv_part parts[BT_KV_PARTS];
};

/* Layout of blocks with block_tokens slots. draft may be NULL; format must not be the default.
 * Returns BT_ERR_ARG for a block size below 1 or a format that has no executor (fp8). */
BT_NODISCARD enum bt_code bt_block_layout_init(struct bt_block_layout *l,
                                               const struct bt_arch *target,
                                               const struct bt_arch *draft,
                                               enum bt_kv_format format, int32_t block_tokens,
                                               struct bt_error *err);

/* The 16-bit class in blocks of the same bytes: format FP16 or BF16. Returns BT_ERR_ARG when not
 * even one token fits. */
BT_NODISCARD enum bt_code bt_block_layout_init_16bit(struct bt_block_layout *l,
                                                     const struct bt_block_layout *pool,
                                                     enum bt_kv_format format,
                                                     struct bt_error *err);

/* Offset in its block of the K (v == 0) or V (v == 1) plane of a layer. */
static inline int64_t bt_kv_plane_offset(const struct bt_kv_part *p, int32_t layer, int32_t v)
{
    return p->offset_bytes + (2 * (int64_t)layer + v) * p->plane_bytes;
}

/* Elements before (slot, head) in a plane. */
static inline int64_t bt_kv_element(const struct bt_kv_part *p, int32_t slot, int32_t head)
{
    return ((int64_t)slot * p->n_kv_heads + head) * p->head_dim;
}

/* Offset in an INT8 plane of the scale of (slot, head). */
static inline int64_t bt_kv_scale_offset(const struct bt_block_layout *l,
                                         const struct bt_kv_part *p, int32_t slot, int32_t head)
{
    int64_t data = (int64_t)l->block_tokens * p->n_kv_heads * p->head_dim;
    return data + 2 * ((int64_t)slot * p->n_kv_heads + head);
}

#ifdef __cplusplus
}
#endif

#endif
