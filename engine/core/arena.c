#include "engine/core/arena.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    ARENA_ALIGN = 64,
    ARENA_CHUNK_BYTES = 64 * 1024,
    SPARE_LIVES = 16,         /* lives in a row without use after which a chunk is freed */
    RUBBISH_BYTES = 4 * 1024, /* written to fresh memory by debug builds */
    RUBBISH = 0xa5,
};

struct bt_arena_chunk {
    struct bt_arena_chunk *next; /* owned */
    size_t size_bytes;           /* usable bytes after the header */
    size_t used_bytes;
    size_t dirty_bytes;  /* handed out in earlier lives; what lies after them is still zero */
    int32_t n_idle;      /* lives in a row without use */
    unsigned char *base; /* inside this allocation, aligned */
};

void bt_arena_init(struct bt_arena *a, size_t cap_bytes)
{
    *a = (struct bt_arena){.cap_bytes = cap_bytes};
}

static void free_chunks(struct bt_arena_chunk *c)
{
    while (c != NULL) {
        struct bt_arena_chunk *next = c->next;
        free(c);
        c = next;
    }
}

void bt_arena_fini(struct bt_arena *a)
{
    free_chunks(a->head);
    free_chunks(a->spare);
    *a = (struct bt_arena){0};
}

void bt_arena_reset(struct bt_arena *a)
{
    struct bt_arena_chunk *idle = a->spare;
    a->spare = NULL;
    while (idle != NULL) {
        struct bt_arena_chunk *next = idle->next;
        if (++idle->n_idle >= SPARE_LIVES) {
            free(idle);
        } else {
            idle->next = a->spare;
            a->spare = idle;
        }
        idle = next;
    }
    while (a->head != NULL) {
        struct bt_arena_chunk *c = a->head;
        a->head = c->next;
        c->dirty_bytes = c->used_bytes > c->dirty_bytes ? c->used_bytes : c->dirty_bytes;
        c->used_bytes = 0;
        c->n_idle = 0;
        c->next = a->spare;
        a->spare = c;
    }
    a->used_bytes = 0;
}

/* calloc leaves large chunks as untouched zero pages, so zeroed arrays cost nothing until used. */
static struct bt_arena_chunk *chunk_new(size_t size_bytes)
{
    if (size_bytes > SIZE_MAX - sizeof(struct bt_arena_chunk) - ARENA_ALIGN) {
        return NULL;
    }
    struct bt_arena_chunk *c = calloc(1, sizeof *c + ARENA_ALIGN + size_bytes);
    if (c == NULL) {
        return NULL;
    }
    uintptr_t start = (uintptr_t)(c + 1);
    uintptr_t pad = (ARENA_ALIGN - start % ARENA_ALIGN) % ARENA_ALIGN;
    c->base = (unsigned char *)(c + 1) + pad;
    c->size_bytes = size_bytes;
    return c;
}

/* Takes the smallest spare chunk of so many bytes out of the list; NULL when there is none. */
static struct bt_arena_chunk *spare_take(struct bt_arena *a, size_t size_bytes)
{
    struct bt_arena_chunk **best = NULL;
    for (struct bt_arena_chunk **c = &a->spare; *c != NULL; c = &(*c)->next) {
        bool fits = (*c)->size_bytes >= size_bytes;
        if (fits && (best == NULL || (*c)->size_bytes < (*best)->size_bytes)) {
            best = c;
        }
    }
    if (best == NULL) {
        return NULL;
    }
    struct bt_arena_chunk *c = *best;
    *best = c->next;
    return c;
}

/* Takes bytes from the head chunk, a new one if need be; *n_dirty of them, the first, may hold
 * something. */
static unsigned char *take(struct bt_arena *a, size_t bytes, size_t *n_dirty)
{
    if (a->failnext > 0 && --a->failnext == 0) {
        return NULL;
    }
    if (bytes > SIZE_MAX - ARENA_ALIGN) {
        return NULL;
    }
    size_t need = bytes == 0 ? ARENA_ALIGN : (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (a->cap_bytes != 0 && (need > a->cap_bytes || a->used_bytes > a->cap_bytes - need)) {
        return NULL;
    }
    struct bt_arena_chunk *c = a->head;
    if (c == NULL || c->size_bytes - c->used_bytes < need) {
        size_t size_bytes = need > ARENA_CHUNK_BYTES ? need : ARENA_CHUNK_BYTES;
        c = spare_take(a, size_bytes);
        c = c != NULL ? c : chunk_new(size_bytes);
        if (c == NULL) {
            return NULL;
        }
        c->next = a->head;
        a->head = c;
    }
    unsigned char *p = c->base + c->used_bytes;
    size_t dirty = c->dirty_bytes > c->used_bytes ? c->dirty_bytes - c->used_bytes : 0;
    *n_dirty = dirty < bytes ? dirty : bytes;
    c->used_bytes += need;
    a->used_bytes += need;
    return p;
}

void *bt_arena_take(struct bt_arena *a, size_t bytes)
{
    size_t n_dirty = 0;
    unsigned char *p = take(a, bytes, &n_dirty);
#ifndef NDEBUG
    if (p != NULL) {
        memset(p, RUBBISH, bytes < RUBBISH_BYTES ? bytes : RUBBISH_BYTES);
    }
#endif
    return p;
}

void *bt_arena_take_array(struct bt_arena *a, size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / size) {
        return NULL;
    }
    return bt_arena_take(a, n * size);
}

/* Never handed out before means zero. */
void *bt_arena_take_zeroed(struct bt_arena *a, size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / size) {
        return NULL;
    }
    size_t n_dirty = 0;
    unsigned char *p = take(a, n * size, &n_dirty);
    if (p != NULL && n_dirty > 0) {
        memset(p, 0, n_dirty);
    }
    return p;
}

char *bt_arena_strdup(struct bt_arena *a, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = bt_arena_take(a, bytes);
    if (copy != NULL) {
        memcpy(copy, text, bytes);
    }
    return copy;
}
