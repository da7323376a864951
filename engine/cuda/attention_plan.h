/* How a batch's attention is shared out among blocks of threads: pure host arithmetic, no CUDA.
 *
 * Query heads of one KV head are packed: row r of a segment is query token r / group, head r %
 * group of its KV head. Two lists are made for each KV class, and for layers with and without a
 * sliding window:
 *   items   up to `tile_rows` packed rows and a range of keys: the streaming kernel (decode,
 *           verification). They are shared out evenly among as many blocks as run at once, for
 *           every group of KV heads alike; a tile cut between two shares is merged by the block
 *           that ends last.
 *   chunks  BT_ATTN_CHUNK_ROWS packed rows and all their keys: the prefill kernel, a block for each
 *           and KV head. Longest first.
 *
 * Pure and thread-safe. Source: Dao et al. 2023 (Flash-Decoding).
 */
#ifndef BT_ENGINE_CUDA_ATTENTION_PLAN_H
#define BT_ENGINE_CUDA_ATTENTION_PLAN_H

#include "engine/cuda/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_ATTN_STREAM_ROWS = 16, /* query tokens of a segment that the streaming kernel takes */
    BT_ATTN_WARPS = 4,        /* of a block */
    BT_ATTN_CHUNK_ROWS = 128, /* packed rows of a chunk */
    BT_ATTN_MAX_SPLITS = 128, /* of a tile: as many as its merge reads in little time */
    BT_ATTN_LISTS = 2 * BT_KV_CLASSES, /* [slides][class] */
};

struct bt_attn_item {
    int32_t segment;
    int32_t first_row; /* of the segment in the batch */
    int32_t n_rows;    /* packed, of the segment */
    int32_t pos0;
    int32_t row0;     /* first packed row */
    int32_t from, to; /* keys, as positions */
    int32_t split;    /* of n_splits */
    int32_t n_splits; /* 1: the block writes the result itself */
    int32_t partial;  /* the tile's first partial result */
    int32_t tile;     /* counts its finished splits */
};

struct bt_attn_chunk {
    int32_t segment;
    int32_t first_row;
    int32_t n_rows; /* packed, of the segment */
    int32_t pos0;
    int32_t row0;
    int32_t n_keys;
};

/* A plan starts with this; bt_attn_list_at says where the lists are. */
struct bt_attn_plan {
    int32_t n_chunks[BT_ATTN_LISTS];
};

/* What plans are made for; fixed at creation. */
struct bt_attn_shape {
    int32_t group; /* query heads a KV head */
    int32_t n_kv_heads;
    int32_t window;      /* of layers that slide; 0: none does */
    int32_t n_classes;   /* KV classes: 1 or 2 */
    int32_t resident[2]; /* blocks of the streaming kernel, of 8 and of 16 rows, that run at once */
    int32_t step[BT_KV_CLASSES];   /* keys that a warp of it takes at once */
    bool narrow;                   /* tiles have 8 rows, always */
    bool no_chunks[BT_KV_CLASSES]; /* the prefill kernel cannot read this class */
};

/* KV heads that a block of the streaming kernel takes, its 4 warps shared out among them: 1, 2
 * or 4. Neighbouring heads lie side by side in memory, scales especially. */
int32_t bt_attn_block_heads(const struct bt_attn_shape *s);

/* Packed rows of a tile of the streaming kernel: 8 or 16. */
int32_t bt_attn_tile_rows(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments);

/* Shares of a list: times groups of KV heads, the blocks of the streaming kernel. */
int32_t bt_attn_n_shares(const struct bt_attn_shape *s, int32_t rows);

/* Most chunks of a list, for a batch padded to n_rows and n_segments. */
int32_t bt_attn_max_chunks(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments);

/* Most partial results of a list, each for all KV heads; and most tiles that are split. */
int32_t bt_attn_max_partials(const struct bt_attn_shape *s);
int32_t bt_attn_max_split_tiles(const struct bt_attn_shape *s);

/* Words before each part of a list in the plan of a batch so padded. */
struct bt_attn_list_at {
    int32_t shares; /* [n_shares + 1]: share i has items shares[i] .. shares[i + 1] - 1 */
    int32_t items;
    int32_t chunks;
    int32_t end;
};
struct bt_attn_list_at bt_attn_list_at(const struct bt_attn_shape *s, int32_t n_rows,
                                       int32_t n_segments, int32_t list);

/* Words of the plan of a batch padded to n_rows and n_segments, and of any no larger. */
int32_t bt_attn_plan_words(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments);
int32_t bt_attn_max_plan_words(const struct bt_attn_shape *s, int32_t max_rows,
                               int32_t max_segments);

/* Writes the plan of a batch; n_rows and n_segments are padded. */
void bt_attn_plan_make(const struct bt_attn_shape *s, const struct bt_cuda_attn_segment *segments,
                       int32_t n_rows, int32_t n_segments, bool decode, int32_t *plan);

#ifdef __cplusplus
}
#endif

#endif
