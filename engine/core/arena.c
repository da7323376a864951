#include "engine/core/arena.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 64, ARENA_CHUNK_BYTES = 64 * 1024 };

struct bt_arena_chunk {
    struct bt_arena_chunk *next; /* owned */
    size_t size_bytes;           /* usable bytes after the header */
    size_t used_bytes;
    unsigned char *base; /* inside this allocation, aligned */
};

void bt_arena_init(struct bt_arena *a, size_t cap_bytes)
{
    *a = (struct bt_arena){.cap_bytes = cap_bytes};
}

void bt_arena_fini(struct bt_arena *a)
{
    struct bt_arena_chunk *c = a->head;
    while (c != NULL) {
        struct bt_arena_chunk *next = c->next;
        free(c);
        c = next;
    }
    *a = (struct bt_arena){0};
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

void *bt_arena_take(struct bt_arena *a, size_t bytes)
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
        c = chunk_new(need > ARENA_CHUNK_BYTES ? need : ARENA_CHUNK_BYTES);
        if (c == NULL) {
            return NULL;
        }
        c->next = a->head;
        a->head = c;
    }
    void *p = c->base + c->used_bytes;
    c->used_bytes += need;
    a->used_bytes += need;
    return p;
}

/* Chunks are zeroed once and never handed out twice, so there is nothing to clear. */
void *bt_arena_take_zeroed(struct bt_arena *a, size_t n, size_t size)
{
    if (size != 0 && n > SIZE_MAX / size) {
        return NULL;
    }
    return bt_arena_take(a, n * size);
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
