/* One forward pass as the kernels see it: rows (tokens) of segments (consecutive tokens of one
 * sequence), all of it in device memory at fixed addresses, so that a captured graph serves any
 * batch of its size.
 *
 * A graph's batch is padded: rows from the live ones on have position -1 and segment -1, segments
 * from the live ones on are empty. Padded rows write nothing to the KV pool, and what they compute
 * is never read.
 */
#ifndef BT_ENGINE_CUDA_BATCH_H
#define BT_ENGINE_CUDA_BATCH_H

#include "engine/block_layout.h"
#include "engine/core/arch.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CUDA_KV_CLASSES = BT_KV_CLASSES };

/* The pool; by value to kernels. */
struct bt_cuda_kv {
    struct bt_block_layout layout[BT_KV_CLASSES]; /* [1].block_tokens 0: no 16-bit class */
    uint8_t *blocks;                              /* device, [n_blocks][block_bytes] */
    int32_t n_blocks;
};

struct bt_cuda_batch {
    int32_t n_rows;           /* padded */
    int32_t n_segments;       /* padded */
    int32_t max_blocks;       /* columns of `blocks` */
    const int32_t *ids;       /* [n_rows] token ids; padded rows 0 */
    const int32_t *position;  /* [n_rows]; -1: padded */
    const int32_t *segment;   /* [n_rows]; -1: padded */
    const int32_t *first_row; /* [n_segments + 1]: rows first_row[i] .. first_row[i + 1] - 1 */
    const int32_t *pos0;      /* [n_segments]: position of the segment's first row */
    const int32_t *kv_class;  /* [n_segments] */
    const int32_t *blocks;    /* [n_segments, max_blocks] pool indices in token order */
    const int32_t *attn_plan; /* what bt_cuda_attn_plan wrote, uploaded */
};

#ifdef __cplusplus
}
#endif

#endif
