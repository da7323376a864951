/* A bump allocator: memory taken once, handed out aligned, given back all at once.
 *
 * An arena made by bt_arena_init owns chunks from malloc and grows by chunks up to cap_bytes; every
 * object in it dies with bt_arena_fini. bt_arena_reset ends the objects but keeps the chunks, so
 * that who builds the same things over and over maps and clears no pages for them.
 * This is the only file of engine/core that allocates.
 * Threading: one thread at a time.
 */
#ifndef BT_ENGINE_CORE_ARENA_H
#define BT_ENGINE_CORE_ARENA_H

#include "engine/core/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_arena_chunk;

struct bt_arena {
    struct bt_arena_chunk *head;  /* owned, newest first */
    struct bt_arena_chunk *spare; /* owned; of earlier lives, not in use */
    size_t used_bytes;            /* handed out, padding included */
    size_t cap_bytes;             /* most that may be handed out */
    int32_t failnext;             /* tests: > 0 makes the failnext-th next allocation fail */
};

/* Initialises an empty arena that hands out at most cap_bytes (0: no limit). Cannot fail. */
void bt_arena_init(struct bt_arena *a, size_t cap_bytes);

/* Frees everything and leaves the arena zeroed. */
void bt_arena_fini(struct bt_arena *a);

/* Ends every object and keeps the memory for what is taken next. Chunks that several lives in a row
 * had no use for are freed. */
void bt_arena_reset(struct bt_arena *a);

/* Takes `bytes` aligned to 64 B, not initialised (large pieces stay untouched pages until used;
 * debug builds fill the beginning with rubbish). Returns NULL when the cap or the system refuses;
 * bytes == 0 gives a valid unique pointer. */
void *bt_arena_take(struct bt_arena *a, size_t bytes);

/* As bt_arena_take, for n items of size bytes, zeroed; NULL also when n * size overflows. */
void *bt_arena_take_zeroed(struct bt_arena *a, size_t n, size_t size);

/* As bt_arena_take, for n items of size bytes; NULL also when n * size overflows. */
void *bt_arena_take_array(struct bt_arena *a, size_t n, size_t size);

/* A copy of the string in the arena; NULL when refused. */
char *bt_arena_strdup(struct bt_arena *a, const char *text);

/* A new array of n items of *p's type in *p, zeroed; fails with BT_ERR_NOMEM naming `what`. */
#define BT_ARENA_ARRAY(arena, p, n, err) BT_ARENA_ARRAY_BY(bt_arena_take_zeroed, arena, p, n, err)

/* The same, not initialised: for what is written before it is read, as few items as that may be. */
#define BT_ARENA_ARRAY_RAW(arena, p, n, err)                                                       \
    BT_ARENA_ARRAY_BY(bt_arena_take_array, arena, p, n, err)

#define BT_ARENA_ARRAY_BY(take, arena, p, n, err)                                                  \
    do {                                                                                           \
        *(void **)&(p) = take((arena), (size_t)(n), sizeof *(p));                                  \
        if ((p) == NULL) {                                                                         \
            BT_FAIL((err), BT_ERR_NOMEM, 0, #p ": no memory for %lld items of %zu bytes",          \
                    (long long)(n), sizeof *(p));                                                  \
        }                                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
