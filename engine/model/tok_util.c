/* Hash tables, growing arrays and characters of the tokenizer. */
#include "engine/core/rng.h"
#include "engine/model/tok_internal.h"

#include <utf8proc.h>

#include <stdlib.h>
#include <string.h>

/* A power of two of at least 2 n + 2 slots: half empty, so that probes stay short. */
static uint32_t slots_for(size_t n)
{
    uint32_t slots = 4;
    while (slots < 2 * n + 2) {
        slots *= 2;
    }
    return slots;
}

enum bt_code tok_map_init(struct tok_map *m, struct bt_arena *arena, size_t n, struct bt_error *err)
{
    uint32_t slots = slots_for(n);
    BT_ARENA_ARRAY(arena, m->slots, slots, err);
    m->mask = slots - 1;
    return BT_OK;
}

static struct tok_map_slot *map_slot(const struct tok_map *m, const char *key, size_t n_bytes)
{
    uint32_t i = (uint32_t)bt_hash_bytes(key, n_bytes, 0) & m->mask;
    while (m->slots[i].key != NULL &&
           (m->slots[i].n_bytes != n_bytes || memcmp(m->slots[i].key, key, n_bytes) != 0)) {
        i = (i + 1) & m->mask;
    }
    return &m->slots[i];
}

bool tok_map_add(struct tok_map *m, const char *key, size_t n_bytes, int32_t id)
{
    struct tok_map_slot *slot = map_slot(m, key, n_bytes);
    if (slot->key != NULL) {
        return false;
    }
    *slot = (struct tok_map_slot){.key = key, .n_bytes = (uint32_t)n_bytes, .id = id};
    return true;
}

int32_t tok_map_find(const struct tok_map *m, const char *key, size_t n_bytes)
{
    const struct tok_map_slot *slot = map_slot(m, key, n_bytes);
    return slot->key == NULL ? -1 : slot->id;
}

enum bt_code tok_merges_init(struct tok_merges *m, struct bt_arena *arena, size_t n,
                             struct bt_error *err)
{
    uint32_t slots = slots_for(n);
    BT_ARENA_ARRAY(arena, m->slots, slots, err);
    for (uint32_t i = 0; i < slots; i++) {
        m->slots[i].left = -1;
    }
    m->mask = slots - 1;
    return BT_OK;
}

static struct tok_merge *merge_slot(const struct tok_merges *m, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = (uint32_t)bt_hash_u64(key) & m->mask;
    while (m->slots[i].left >= 0 && (m->slots[i].left != left || m->slots[i].right != right)) {
        i = (i + 1) & m->mask;
    }
    return &m->slots[i];
}

void tok_merges_add(struct tok_merges *m, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    *merge_slot(m, left, right) =
        (struct tok_merge){.left = left, .right = right, .rank = rank, .id = id};
}

const struct tok_merge *tok_merges_find(const struct tok_merges *m, int32_t left, int32_t right)
{
    const struct tok_merge *slot = merge_slot(m, left, right);
    return slot->left < 0 ? NULL : slot;
}

void bt_ids_fini(struct bt_ids *v)
{
    free(v->ids);
    *v = (struct bt_ids){0};
}

void bt_bytes_fini(struct bt_bytes *v)
{
    free(v->p);
    *v = (struct bt_bytes){0};
}

enum bt_code tok_bytes_append(struct bt_bytes *v, const void *p, size_t n, struct bt_error *err)
{
    if (n > v->cap - v->n) {
        size_t cap = 2 * v->cap + n + 64;
        char *grown = realloc(v->p, cap);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "tokenizer: no memory for %zu bytes of text", cap);
        }
        v->p = grown;
        v->cap = cap;
    }
    if (n > 0) {
        memcpy(v->p + v->n, p, n);
    }
    v->n += n;
    return BT_OK;
}

enum bt_code tok_ids_append(struct bt_ids *v, int32_t id, struct bt_error *err)
{
    if (v->n == v->cap) {
        int64_t cap = 2 * v->cap + 64;
        int32_t *grown = realloc(v->ids, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "tokenizer: no memory for %lld ids", (long long)cap);
        }
        v->ids = grown;
        v->cap = cap;
    }
    v->ids[v->n++] = id;
    return BT_OK;
}

enum bt_code tok_pieces_append(struct tok_pieces *v, size_t start, size_t end, struct bt_error *err)
{
    if (v->n == v->cap) {
        size_t cap = 2 * v->cap + 64;
        struct tok_piece *grown = realloc(v->p, cap * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "tokenizer: no memory for %zu pre-tokens", cap);
        }
        v->p = grown;
        v->cap = cap;
    }
    v->p[v->n++] = (struct tok_piece){.start = start, .end = end};
    return BT_OK;
}

size_t tok_utf8_length(const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    if (n == 0) {
        return 0;
    }
    if (u[0] < 0x80) {
        return 1;
    }
    size_t len = u[0] >= 0xc2 && u[0] < 0xe0 ? 2 : u[0] >= 0xe0 && u[0] < 0xf0 ? 3 : 4;
    if (u[0] < 0xc2 || u[0] > 0xf4 || n < len) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((u[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool bad = (u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f) ||
               (u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] > 0x8f);
    return bad ? 0 : len;
}

int32_t tok_utf8_decode(const char *p, size_t n, size_t *n_char)
{
    const unsigned char *u = (const unsigned char *)p;
    size_t len = tok_utf8_length(p, n);
    if (len <= 1) {
        *n_char = 1;
        return len == 1 ? u[0] : -1;
    }
    int32_t c = u[0] & (0xff >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        c = c << 6 | (u[i] & 0x3f);
    }
    *n_char = len;
    return c;
}

size_t tok_utf8_before(const char *p, size_t n)
{
    BT_ASSERT(n > 0);
    size_t at = n - 1;
    while (at > 0 && n - at < 4 && ((unsigned char)p[at] & 0xc0) == 0x80) {
        at--;
    }
    return tok_utf8_length(p + at, n - at) == n - at ? at : n - 1;
}

/* Unicode's White_Space. */
bool tok_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Unicode's word characters (UTS 18): alphabetic, marks, decimal digits, connectors, joiners. */
bool tok_is_word(int32_t c)
{
    if (c < 0) {
        return false;
    }
    if (c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
        (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
        (c >= 0x1f170 && c <= 0x1f189)) {
        return true;
    }
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC;
}

/* GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards. */
static bool byte_is_itself(int b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

int32_t tok_byte_to_char(uint8_t b)
{
    if (byte_is_itself(b)) {
        return b;
    }
    return b <= 0x20 ? 0x100 + b : b <= 0xa0 ? 0x121 + (b - 0x7f) : 0x143;
}

int32_t tok_char_to_byte(int32_t c)
{
    if (c >= 0 && c < 0x100) {
        return byte_is_itself(c) ? c : -1;
    }
    if (c >= 0x100 && c <= 0x120) {
        return c - 0x100;
    }
    if (c > 0x120 && c <= 0x142) {
        return c - 0x121 + 0x7f;
    }
    return c == 0x143 ? 0xad : -1;
}

enum bt_code tok_spell_bytes(const char *p, size_t n, struct bt_bytes *out, struct bt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        utf8proc_uint8_t buf[4];
        utf8proc_ssize_t len = utf8proc_encode_char(tok_byte_to_char((uint8_t)p[i]), buf);
        BT_TRY(tok_bytes_append(out, buf, (size_t)len, err));
    }
    return BT_OK;
}
