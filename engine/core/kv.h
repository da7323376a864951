/* The KV block pool and its prefix cache.
 *
 * A pool of n_blocks equal device blocks and n_host_blocks host blocks, known by index only: what
 * lies in them is the executor's business. A device block is FREE, USED (reference count > 0) or
 * CACHED (count 0, but its content is known by key and may be used again until it is evicted, least
 * recently used first). USED -> CACHED or FREE [release], FREE or CACHED -> USED [acquire, or a
 * lookup for CACHED].
 *
 * Content keys: a full block of prompt tokens is named by (key, parent key), a chained hash of
 * every token up to its end; a hit compares both, so 128 bits must agree. Blocks of different KV
 * dtype never share (the key is salted with the class). What a preempted sequence had computed
 * beyond its keyed prompt is named by the request, which finds what is left of it.
 *
 * Complexity: every call is O(blocks touched). Memory: taken from the arena once, nothing later.
 * Threading: one thread.
 */
#ifndef BT_ENGINE_CORE_KV_H
#define BT_ENGINE_CORE_KV_H

#include "engine/core/arena.h"
#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_KV_NONE = -1 };

struct bt_kv_key {
    uint64_t own;    /* hash of the prefix that ends with this block; 0 is not a key */
    uint64_t parent; /* own key of the block before; a salt for the first */
};

struct bt_kv_opts {
    int32_t n_blocks;      /* 1 .. BT_MAX_BLOCKS */
    int32_t n_host_blocks; /* 0 .. BT_MAX_BLOCKS */
    bool prefix_cache;     /* false: lookups miss, nothing is kept */
};

struct bt_kv;

/* Takes a pool from the arena: 36 to 44 bytes a block (8 without the prefix cache), 4 a host
 * block. BT_ERR_ARG for a bad count, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_kv_create(struct bt_arena *arena, const struct bt_kv_opts *opts,
                                       struct bt_kv **out, struct bt_error *err);

/* Blocks that bt_kv_acquire could give now: free plus cached. */
int32_t bt_kv_n_available(const struct bt_kv *kv);
int32_t bt_kv_n_used(const struct bt_kv *kv);
int32_t bt_kv_n_cached(const struct bt_kv *kv);
int32_t bt_kv_n_host_available(const struct bt_kv *kv);

/* Gives n private blocks (count 1, no key), free ones first, then the least recently used cached
 * ones, whose keys are forgotten. All or nothing: false when fewer are available. */
BT_NODISCARD bool bt_kv_acquire(struct bt_kv *kv, int32_t n, int32_t *out);

/* One more reference to a used block. */
void bt_kv_retain(struct bt_kv *kv, int32_t block);

/* One reference less; the last one makes the block CACHED if it has a key, else FREE. To keep the
 * front of a prefix longest, release a sequence's blocks from its last to its first. */
void bt_kv_release(struct bt_kv *kv, int32_t block);

/* Releases a block table of n blocks from its last to its first. */
void bt_kv_release_n(struct bt_kv *kv, const int32_t *blocks, int32_t n);

int32_t bt_kv_ref_count(const struct bt_kv *kv, int32_t block);

/* The block that holds this content, with one more reference, or BT_KV_NONE. */
int32_t bt_kv_lookup(struct bt_kv *kv, struct bt_kv_key key);

/* As bt_kv_lookup without taking a reference or touching the LRU order. *cached tells whether
 * taking it would use up an available block. */
int32_t bt_kv_peek(const struct bt_kv *kv, struct bt_kv_key key, bool *cached);

/* Names the content of a used block. When the content is known in another block already the older
 * one stays the known one and nothing changes: returns false. A block that has another key already
 * is a programmer's error; the same key again is true. */
bool bt_kv_publish(struct bt_kv *kv, int32_t block, struct bt_kv_key key);

/* Host blocks for swap: all or nothing. Releasing one that is not in use asserts. */
BT_NODISCARD bool bt_kv_host_acquire(struct bt_kv *kv, int32_t n, int32_t *out);
void bt_kv_host_release(struct bt_kv *kv, const int32_t *blocks, int32_t n);

/* Forgets every cached block (its content is lost); used ones lose their keys. */
void bt_kv_cache_clear(struct bt_kv *kv);

/* Asserts every invariant: each block in exactly one state and list, counts add up, each key found
 * by lookup. O(n_blocks). */
void bt_kv_check(const struct bt_kv *kv);

#ifdef __cplusplus
}
#endif

#endif
