/* The KV pool in host memory: writing and reading keys and values of one token and head.
 *
 * INT8 is symmetric with one FP16 scale for each token and head, max|x| / 127. Threading: writers
 * of different slots do not disturb each other.
 */
#ifndef BT_ENGINE_CPU_KV_POOL_H
#define BT_ENGINE_CPU_KV_POOL_H

#include "engine/block_layout.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_kv_pool {
    struct bt_block_layout layout[BT_KV_CLASSES]; /* [1].block_tokens 0: no 16-bit class */
    uint8_t *blocks;                              /* [n_blocks][block_bytes]; borrowed */
    int32_t n_blocks;
};

/* Writes the K (v == 0) or V (v == 1) rows [n_kv_heads, head_dim] of a token. */
void bt_kv_pool_write(const struct bt_kv_pool *p, int32_t kv_class, enum bt_kv_part_id part,
                      int32_t layer, int32_t v, int32_t block, int32_t slot, const float *row);

/* Reads one head's vectors of tokens [from, to) of a sequence into dst, stride floats apart. */
void bt_kv_pool_read(const struct bt_kv_pool *p, int32_t kv_class, enum bt_kv_part_id part,
                     int32_t layer, int32_t v, int32_t head, const int32_t *blocks, int32_t from,
                     int32_t to, float *dst, int32_t stride);

#ifdef __cplusplus
}
#endif

#endif
