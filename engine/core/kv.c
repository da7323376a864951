#include "engine/core/kv.h"

#include "engine/core/limits.h"

#include <assert.h>
#include <string.h>

/* Block states, told by two arrays (there is no state field that could disagree with them):
 *
 *              acquire                    release, last reference
 *     FREE ───────────────► USED ─────────────────────────────────► FREE    no key
 *       ▲                   ▲  │
 *       │ evict, clear      │  │ release, last reference                    key known
 *       │                   │  ▼
 *       └──────────────── CACHED     CACHED -> USED [lookup: content kept; acquire: key forgotten]
 *
 *     FREE    ref == 0, no key, in the free list (next; a stack, so that warm blocks come back), or
 *             never touched: n_touched and above, taken in order when the list is empty.
 *     USED    ref  > 0, in no list; key optional.
 *     CACHED  ref == 0, key, in the LRU list (prev, next): head is evicted first.
 *
 * The table maps a key to its block by open addressing: linear probing from a multiplicative hash
 * of key.own, at most half full, deletion by backward shift, so there are no tombstones and a probe
 * ends at the first empty slot. An entry is block + 1; 0 is empty. */
struct bt_kv {
    int32_t n_blocks;
    int32_t n_free;
    int32_t n_cached;
    int32_t n_keys;    /* entries in the table */
    int32_t n_touched; /* blocks used so far: next, prev and keys of the others are rubbish */
    int32_t free_head;
    int32_t lru_head, lru_tail;
    bool prefix_cache;
    uint32_t table_mask;
    uint32_t table_shift;
    int32_t *ref;           /* [n_blocks] */
    int32_t *next;          /* [n_blocks] of the free list or the LRU list */
    int32_t *prev;          /* [n_blocks] of the LRU list */
    struct bt_kv_key *keys; /* [n_blocks]; own == 0: none */
    uint32_t *table;        /* [table_mask + 1] */
    int32_t n_host;
    int32_t n_host_free;
    int32_t n_host_touched;
    int32_t host_head;
    int32_t *host_next; /* [n_host]: next free one, or HOST_USED */
};

/* Distinct from every index and from BT_KV_NONE, which ends the host list. */
enum { HOST_USED = -2 };

static_assert(2 * (int64_t)BT_MAX_BLOCKS <= INT64_C(1) << 31, "table indices are uint32");

enum bt_code bt_kv_create(struct bt_arena *arena, const struct bt_kv_opts *opts, struct bt_kv **out,
                          struct bt_error *err)
{
    *out = NULL;
    if (opts->n_blocks <= 0 || opts->n_blocks > BT_MAX_BLOCKS) {
        BT_FAIL(err, BT_ERR_ARG, opts->n_blocks, "kv.n_blocks: %d must be in 1..%d", opts->n_blocks,
                BT_MAX_BLOCKS);
    }
    if (opts->n_host_blocks < 0 || opts->n_host_blocks > BT_MAX_BLOCKS) {
        BT_FAIL(err, BT_ERR_ARG, opts->n_host_blocks, "kv.n_host_blocks: %d must be in 0..%d",
                opts->n_host_blocks, BT_MAX_BLOCKS);
    }
    struct bt_kv *kv;
    BT_ARENA_ARRAY(arena, kv, 1, err);
    kv->n_blocks = opts->n_blocks;
    kv->n_free = opts->n_blocks;
    kv->n_host = opts->n_host_blocks;
    kv->n_host_free = opts->n_host_blocks;
    kv->prefix_cache = opts->prefix_cache;
    kv->lru_head = kv->lru_tail = BT_KV_NONE;
    uint32_t bits = 1;
    while ((INT64_C(1) << bits) < 2 * (int64_t)opts->n_blocks) {
        bits++;
    }
    kv->table_mask = (uint32_t)((UINT64_C(1) << bits) - 1);
    kv->table_shift = 64 - bits;
    BT_ARENA_ARRAY(arena, kv->ref, kv->n_blocks, err);
    BT_ARENA_ARRAY_RAW(arena, kv->next, kv->n_blocks, err);
    if (kv->prefix_cache) {
        BT_ARENA_ARRAY_RAW(arena, kv->prev, kv->n_blocks, err);
        BT_ARENA_ARRAY_RAW(arena, kv->keys, kv->n_blocks, err);
        BT_ARENA_ARRAY(arena, kv->table, (int64_t)kv->table_mask + 1, err);
    }
    BT_ARENA_ARRAY_RAW(arena, kv->host_next, kv->n_host, err);
    kv->free_head = kv->host_head = BT_KV_NONE;
    *out = kv;
    return BT_OK;
}

int32_t bt_kv_n_available(const struct bt_kv *kv)
{
    return kv->n_free + kv->n_cached;
}

int32_t bt_kv_n_used(const struct bt_kv *kv)
{
    return kv->n_blocks - kv->n_free - kv->n_cached;
}

int32_t bt_kv_n_cached(const struct bt_kv *kv)
{
    return kv->n_cached;
}

int32_t bt_kv_n_host_available(const struct bt_kv *kv)
{
    return kv->n_host_free;
}

/* The key table. */

static uint32_t table_home(const struct bt_kv *kv, uint64_t own)
{
    return (uint32_t)((own * UINT64_C(0x9e3779b97f4a7c15)) >> kv->table_shift);
}

/* Slot that holds the key, or the empty slot where it belongs. */
static uint32_t table_find(const struct bt_kv *kv, struct bt_kv_key key)
{
    uint32_t i = table_home(kv, key.own);
    while (kv->table[i] != 0) {
        const struct bt_kv_key *k = &kv->keys[kv->table[i] - 1];
        if (k->own == key.own && k->parent == key.parent) {
            break;
        }
        i = (i + 1) & kv->table_mask;
    }
    return i;
}

/* Removes the key of `block`, which has one. */
static void key_forget(struct bt_kv *kv, int32_t block)
{
    uint32_t hole = table_find(kv, kv->keys[block]);
    BT_ASSERT(kv->table[hole] == (uint32_t)block + 1);
    uint32_t i = hole;
    for (;;) {
        i = (i + 1) & kv->table_mask;
        if (kv->table[i] == 0) {
            break;
        }
        /* An entry may move back into the hole unless its home lies after the hole. */
        uint32_t home = table_home(kv, kv->keys[kv->table[i] - 1].own);
        if (((i - home) & kv->table_mask) >= ((i - hole) & kv->table_mask)) {
            kv->table[hole] = kv->table[i];
            hole = i;
        }
    }
    kv->table[hole] = 0;
    kv->keys[block] = (struct bt_kv_key){0};
    kv->n_keys--;
}

/* The lists. */

static int32_t free_pop(struct bt_kv *kv)
{
    int32_t block = kv->free_head;
    if (block != BT_KV_NONE) {
        kv->free_head = kv->next[block];
        return block;
    }
    block = kv->n_touched++;
    if (kv->prefix_cache) {
        kv->keys[block] = (struct bt_kv_key){0};
    }
    return block;
}

static void free_push(struct bt_kv *kv, int32_t block)
{
    kv->next[block] = kv->free_head;
    kv->free_head = block;
    kv->n_free++;
}

static void lru_append(struct bt_kv *kv, int32_t block)
{
    kv->prev[block] = kv->lru_tail;
    kv->next[block] = BT_KV_NONE;
    if (kv->lru_tail == BT_KV_NONE) {
        kv->lru_head = block;
    } else {
        kv->next[kv->lru_tail] = block;
    }
    kv->lru_tail = block;
    kv->n_cached++;
}

static void lru_remove(struct bt_kv *kv, int32_t block)
{
    int32_t prev = kv->prev[block];
    int32_t next = kv->next[block];
    if (prev == BT_KV_NONE) {
        BT_DEBUG_ASSERT(kv->lru_head == block);
        kv->lru_head = next;
    } else {
        kv->next[prev] = next;
    }
    if (next == BT_KV_NONE) {
        BT_DEBUG_ASSERT(kv->lru_tail == block);
        kv->lru_tail = prev;
    } else {
        kv->prev[next] = prev;
    }
    kv->n_cached--;
}

static void assert_used(const struct bt_kv *kv, int32_t block)
{
    BT_ASSERT(block >= 0 && block < kv->n_blocks);
    BT_ASSERT(kv->ref[block] > 0);
}

bool bt_kv_acquire(struct bt_kv *kv, int32_t n, int32_t *out)
{
    BT_ASSERT(n >= 0);
    if (n > bt_kv_n_available(kv)) {
        return false;
    }
    int32_t from_free = n < kv->n_free ? n : kv->n_free;
    for (int32_t i = 0; i < from_free; i++) {
        int32_t block = free_pop(kv);
        BT_DEBUG_ASSERT(kv->ref[block] == 0);
        kv->ref[block] = 1;
        out[i] = block;
    }
    kv->n_free -= from_free;
    for (int32_t i = from_free; i < n; i++) {
        int32_t block = kv->lru_head;
        BT_DEBUG_ASSERT(kv->ref[block] == 0);
        lru_remove(kv, block);
        key_forget(kv, block);
        kv->ref[block] = 1;
        out[i] = block;
    }
    return true;
}

void bt_kv_retain(struct bt_kv *kv, int32_t block)
{
    assert_used(kv, block);
    BT_ASSERT(kv->ref[block] < INT32_MAX);
    kv->ref[block]++;
}

void bt_kv_release(struct bt_kv *kv, int32_t block)
{
    assert_used(kv, block);
    if (--kv->ref[block] > 0) {
        return;
    }
    if (kv->prefix_cache && kv->keys[block].own != 0) {
        lru_append(kv, block);
    } else {
        free_push(kv, block);
    }
}

void bt_kv_release_n(struct bt_kv *kv, const int32_t *blocks, int32_t n)
{
    BT_ASSERT(n >= 0);
    for (int32_t i = n - 1; i >= 0; i--) {
        bt_kv_release(kv, blocks[i]);
    }
}

int32_t bt_kv_ref_count(const struct bt_kv *kv, int32_t block)
{
    BT_ASSERT(block >= 0 && block < kv->n_blocks);
    return kv->ref[block];
}

int32_t bt_kv_lookup(struct bt_kv *kv, struct bt_kv_key key)
{
    BT_ASSERT(key.own != 0);
    if (!kv->prefix_cache) {
        return BT_KV_NONE;
    }
    uint32_t entry = kv->table[table_find(kv, key)];
    if (entry == 0) {
        return BT_KV_NONE;
    }
    int32_t block = (int32_t)(entry - 1);
    if (kv->ref[block] == 0) {
        lru_remove(kv, block);
    }
    kv->ref[block]++;
    return block;
}

int32_t bt_kv_peek(const struct bt_kv *kv, struct bt_kv_key key, bool *cached)
{
    BT_ASSERT(key.own != 0);
    *cached = false;
    uint32_t entry = kv->prefix_cache ? kv->table[table_find(kv, key)] : 0;
    if (entry == 0) {
        return BT_KV_NONE;
    }
    int32_t block = (int32_t)(entry - 1);
    *cached = kv->ref[block] == 0;
    return block;
}

bool bt_kv_publish(struct bt_kv *kv, int32_t block, struct bt_kv_key key)
{
    assert_used(kv, block);
    BT_ASSERT(key.own != 0);
    if (!kv->prefix_cache) {
        return false;
    }
    uint32_t slot = table_find(kv, key);
    if (kv->table[slot] != 0) {
        return kv->table[slot] == (uint32_t)block + 1;
    }
    BT_ASSERT(kv->keys[block].own == 0); /* a block's content never changes while it is used */
    kv->keys[block] = key;
    kv->table[slot] = (uint32_t)block + 1;
    kv->n_keys++;
    return true;
}

bool bt_kv_host_acquire(struct bt_kv *kv, int32_t n, int32_t *out)
{
    BT_ASSERT(n >= 0);
    if (n > kv->n_host_free) {
        return false;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t block = kv->host_head;
        if (block != BT_KV_NONE) {
            kv->host_head = kv->host_next[block];
        } else {
            block = kv->n_host_touched++;
        }
        kv->host_next[block] = HOST_USED;
        out[i] = block;
    }
    kv->n_host_free -= n;
    return true;
}

void bt_kv_host_release(struct bt_kv *kv, const int32_t *blocks, int32_t n)
{
    BT_ASSERT(n >= 0);
    for (int32_t i = n - 1; i >= 0; i--) {
        int32_t block = blocks[i];
        BT_ASSERT(block >= 0 && block < kv->n_host_touched);
        BT_ASSERT(kv->host_next[block] == HOST_USED);
        kv->host_next[block] = kv->host_head;
        kv->host_head = block;
    }
    kv->n_host_free += n;
}

void bt_kv_cache_clear(struct bt_kv *kv)
{
    if (!kv->prefix_cache) {
        return;
    }
    while (kv->lru_tail != BT_KV_NONE) {
        int32_t block = kv->lru_tail;
        lru_remove(kv, block);
        free_push(kv, block);
    }
    memset(kv->keys, 0, (size_t)kv->n_touched * sizeof *kv->keys);
    memset(kv->table, 0, ((size_t)kv->table_mask + 1) * sizeof *kv->table);
    kv->n_keys = 0;
}

/* A list that ends after exactly as many steps as it should have members names none twice. */
static void check_lists(const struct bt_kv *kv)
{
    int32_t n = kv->n_blocks - kv->n_touched;
    for (int32_t b = kv->free_head; b != BT_KV_NONE; b = kv->next[b]) {
        BT_ASSERT(b >= 0 && b < kv->n_touched);
        BT_ASSERT(++n <= kv->n_free);
        BT_ASSERT(kv->ref[b] == 0);
        BT_ASSERT(!kv->prefix_cache || kv->keys[b].own == 0);
    }
    BT_ASSERT(n == kv->n_free);
    n = 0;
    int32_t before = BT_KV_NONE;
    for (int32_t b = kv->lru_head; b != BT_KV_NONE; b = kv->next[b]) {
        BT_ASSERT(b >= 0 && b < kv->n_touched);
        BT_ASSERT(++n <= kv->n_cached);
        BT_ASSERT(kv->prev[b] == before);
        BT_ASSERT(kv->ref[b] == 0);
        BT_ASSERT(kv->keys[b].own != 0);
        before = b;
    }
    BT_ASSERT(n == kv->n_cached);
    BT_ASSERT(kv->lru_tail == before);
    n = kv->n_host - kv->n_host_touched;
    for (int32_t b = kv->host_head; b != BT_KV_NONE; b = kv->host_next[b]) {
        BT_ASSERT(b >= 0 && b < kv->n_host_touched);
        BT_ASSERT(++n <= kv->n_host_free);
    }
    BT_ASSERT(n == kv->n_host_free);
}

void bt_kv_check(const struct bt_kv *kv)
{
    check_lists(kv);
    int32_t n_used = 0;
    int32_t n_keys = 0;
    for (int32_t b = 0; b < kv->n_blocks; b++) {
        BT_ASSERT(kv->ref[b] >= 0);
        BT_ASSERT(b < kv->n_touched || kv->ref[b] == 0);
        n_used += kv->ref[b] > 0;
        if (kv->prefix_cache && b < kv->n_touched && kv->keys[b].own != 0) {
            n_keys++;
            BT_ASSERT(kv->table[table_find(kv, kv->keys[b])] == (uint32_t)b + 1);
        }
    }
    BT_ASSERT(n_used == bt_kv_n_used(kv));
    BT_ASSERT(n_keys == kv->n_keys);
    int32_t n_entries = 0;
    for (int64_t i = 0; kv->prefix_cache && i <= kv->table_mask; i++) {
        n_entries += kv->table[i] != 0;
    }
    BT_ASSERT(n_entries == kv->n_keys);
    int32_t n_host_used = 0;
    for (int32_t b = 0; b < kv->n_host_touched; b++) {
        n_host_used += kv->host_next[b] == HOST_USED;
    }
    BT_ASSERT(n_host_used == kv->n_host - kv->n_host_free);
}
