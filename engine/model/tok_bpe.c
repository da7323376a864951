/* Byte-pair encoding of one pre-token: of all adjacent pairs that have a merge, the one of lowest
 * rank, leftmost first, until none is left. A heap of candidates and a linked list of symbols make
 * it O(n log n); a candidate whose symbols have changed since is recognised when it is taken.
 */
#include "engine/core/rng.h"
#include "engine/model/tok_internal.h"

#include <stdlib.h>
#include <string.h>

static bool before(const struct tok_candidate *a, const struct tok_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void sift_down(struct tok_candidate *heap, size_t n, size_t i)
{
    struct tok_candidate moving = heap[i];
    for (size_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &moving)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static void sift_up(struct tok_candidate *heap, size_t i)
{
    struct tok_candidate moving = heap[i];
    while (i > 0 && before(&moving, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = moving;
}

static struct tok_candidate heap_take(struct tok_candidate *heap, size_t *n)
{
    struct tok_candidate top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 0) {
        sift_down(heap, *n, 0);
    }
    return top;
}

/* Puts the pair that begins at symbol pos behind the heap when it has a merge. Each symbol starts
 * at most one pair and each merge makes at most two, so 3 n candidates are enough. */
static bool add_candidate(const struct bt_tokenizer *t, struct tok_candidate *heap, size_t *n,
                          int32_t pos)
{
    const struct tok_symbol *symbols = t->scratch.symbols;
    if (pos < 0 || symbols[pos].next < 0) {
        return false;
    }
    const struct tok_merge *m =
        tok_merges_find(&t->merges, symbols[pos].id, symbols[symbols[pos].next].id);
    if (m == NULL) {
        return false;
    }
    heap[(*n)++] = (struct tok_candidate){.rank = m->rank, .pos = pos, .id = m->id};
    return true;
}

static bool still_valid(const struct bt_tokenizer *t, const struct tok_candidate *c)
{
    const struct tok_symbol *symbols = t->scratch.symbols;
    const struct tok_symbol *s = &symbols[c->pos];
    if (s->id < 0 || s->next < 0) {
        return false;
    }
    const struct tok_merge *m = tok_merges_find(&t->merges, s->id, symbols[s->next].id);
    return m != NULL && m->id == c->id;
}

static void merge_symbols(struct bt_tokenizer *t, int32_t n_symbols)
{
    struct tok_symbol *symbols = t->scratch.symbols;
    struct tok_candidate *heap = t->scratch.heap;
    size_t n = 0;
    for (int32_t i = 0; i + 1 < n_symbols; i++) {
        (void)add_candidate(t, heap, &n, i);
    }
    for (size_t i = n / 2; i-- > 0;) {
        sift_down(heap, n, i);
    }
    while (n > 0) {
        struct tok_candidate top = heap_take(heap, &n);
        if (!still_valid(t, &top)) {
            continue;
        }
        struct tok_symbol *left = &symbols[top.pos];
        struct tok_symbol *right = &symbols[left->next];
        left->id = top.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) {
            symbols[left->next].prev = top.pos;
        }
        if (add_candidate(t, heap, &n, left->prev)) {
            sift_up(heap, n - 1);
        }
        if (add_candidate(t, heap, &n, top.pos)) {
            sift_up(heap, n - 1);
        }
    }
}

static enum bt_code reserve(struct tok_scratch *s, size_t n_bytes, struct bt_error *err)
{
    if (n_bytes > s->cap_symbols) {
        size_t cap = 2 * n_bytes + 64;
        struct tok_symbol *symbols = realloc(s->symbols, cap * sizeof *symbols);
        if (symbols == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "tokenizer: no memory for %zu symbols", cap);
        }
        s->symbols = symbols;
        s->cap_symbols = cap;
    }
    if (3 * n_bytes > s->cap_heap) {
        size_t cap = 3 * s->cap_symbols;
        struct tok_candidate *heap = realloc(s->heap, cap * sizeof *heap);
        if (heap == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "tokenizer: no memory for %zu merges", cap);
        }
        s->heap = heap;
        s->cap_heap = cap;
    }
    return BT_OK;
}

static void add_symbol(struct tok_symbol *symbols, int32_t *n, int32_t id)
{
    symbols[*n] = (struct tok_symbol){.id = id, .prev = *n - 1, .next = -1};
    if (*n > 0) {
        symbols[*n - 1].next = *n;
    }
    (*n)++;
}

/* The symbols of a character without a token: its bytes, or the unknown token. */
static enum bt_code add_unknown(struct bt_tokenizer *t, const char *c, size_t len, int32_t *n,
                                struct bt_error *err)
{
    struct tok_symbol *symbols = t->scratch.symbols;
    bool all = t->byte_fallback || t->byte_level;
    for (size_t i = 0; i < len && all; i++) {
        all = t->byte_ids[(uint8_t)c[i]] >= 0;
    }
    if (all) {
        for (size_t i = 0; i < len; i++) {
            add_symbol(symbols, n, t->byte_ids[(uint8_t)c[i]]);
        }
        return BT_OK;
    }
    if (t->unk_id < 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: the vocabulary has neither a token nor bytes nor an unk_token for \"%.*s\" "
                "(first byte 0x%02X)",
                t->path, (int)len, c, (unsigned)(uint8_t)c[0]);
    }
    if (!t->fuse_unk || *n == 0 || symbols[*n - 1].id != t->unk_id) {
        add_symbol(symbols, n, t->unk_id);
    }
    return BT_OK;
}

static enum bt_code split_symbols(struct bt_tokenizer *t, const char *word, size_t n_bytes,
                                  int32_t *n, struct bt_error *err)
{
    size_t i = 0;
    while (i < n_bytes) {
        size_t len = t->byte_level ? 1 : tok_utf8_length(word + i, n_bytes - i);
        int32_t id = t->byte_level ? t->byte_ids[(uint8_t)word[i]]
                     : len == 0    ? -1
                                   : tok_map_find(&t->vocab, word + i, len);
        len = len == 0 ? 1 : len;
        if (id >= 0) {
            add_symbol(t->scratch.symbols, n, id);
        } else {
            BT_TRY(add_unknown(t, word + i, len, n, err));
        }
        i += len;
    }
    return BT_OK;
}

/* With ignore_merges a pre-token that is a token as a whole is taken whole. */
static enum bt_code whole_token(struct bt_tokenizer *t, const char *word, size_t n_bytes,
                                int32_t *id, struct bt_error *err)
{
    *id = -1;
    if (!t->ignore_merges) {
        return BT_OK;
    }
    if (!t->byte_level) {
        *id = tok_map_find(&t->vocab, word, n_bytes);
        return BT_OK;
    }
    struct bt_bytes *key = &t->scratch.key;
    key->n = 0;
    BT_TRY(tok_spell_bytes(word, n_bytes, key, err));
    *id = tok_map_find(&t->vocab, key->p, key->n);
    return BT_OK;
}

static enum bt_code encode_word(struct bt_tokenizer *t, const char *word, size_t n_bytes,
                                struct bt_ids *out, struct bt_error *err)
{
    int32_t whole;
    BT_TRY(whole_token(t, word, n_bytes, &whole, err));
    if (whole >= 0) {
        return tok_ids_append(out, whole, err);
    }
    int32_t n = 0;
    BT_TRY(reserve(&t->scratch, n_bytes, err));
    BT_TRY(split_symbols(t, word, n_bytes, &n, err));
    merge_symbols(t, n);
    for (int32_t i = 0; i >= 0 && n > 0; i = t->scratch.symbols[i].next) {
        BT_TRY(tok_ids_append(out, t->scratch.symbols[i].id, err));
    }
    return BT_OK;
}

static enum bt_code encode_cached(struct bt_tokenizer *t, const char *word, size_t n_bytes,
                                  struct bt_ids *out, struct bt_error *err)
{
    struct tok_scratch *s = &t->scratch;
    if (n_bytes > TOK_CACHE_KEY_BYTES || n_bytes == 0) {
        return encode_word(t, word, n_bytes, out, err);
    }
    if (s->cache == NULL) {
        s->cache = calloc(TOK_CACHE_SLOTS, sizeof *s->cache);
        if (s->cache == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "tokenizer: no memory for the cache");
        }
    }
    uint64_t hash = bt_hash_bytes(word, n_bytes, 0);
    struct tok_cache_slot *slot = &s->cache[hash % TOK_CACHE_SLOTS];
    if (slot->n_key == n_bytes && memcmp(slot->key, word, n_bytes) == 0) {
        for (int32_t i = 0; i < slot->n_ids; i++) {
            BT_TRY(tok_ids_append(out, slot->ids[i], err));
        }
        return BT_OK;
    }
    int64_t first = out->n;
    BT_TRY(encode_word(t, word, n_bytes, out, err));
    if (out->n - first <= TOK_CACHE_IDS) {
        slot->n_key = (uint32_t)n_bytes;
        slot->n_ids = (int32_t)(out->n - first);
        memcpy(slot->key, word, n_bytes);
        memcpy(slot->ids, out->ids + first, (size_t)slot->n_ids * sizeof *slot->ids);
    }
    return BT_OK;
}

/* Where a word of a text with visible spaces ends: before a mark that follows another character. */
static size_t word_end(const char *text, size_t n)
{
    const size_t n_mark = sizeof TOK_SPACE_MARK - 1;
    size_t i = 0;
    while (n - i >= n_mark && memcmp(text + i, TOK_SPACE_MARK, n_mark) == 0) {
        i += n_mark;
    }
    while (i < n) {
        const char *at = memchr(text + i, TOK_SPACE_MARK[0], n - i);
        if (at == NULL || n - (size_t)(at - text) < n_mark) {
            return n;
        }
        i = (size_t)(at - text);
        if (i > 0 && memcmp(at, TOK_SPACE_MARK, n_mark) == 0) {
            return i;
        }
        i++;
    }
    return n;
}

enum bt_code tok_bpe(struct bt_tokenizer *t, const char *word, size_t n, struct bt_ids *out,
                     struct bt_error *err)
{
    if (!t->cut_at_spaces) {
        return encode_cached(t, word, n, out, err);
    }
    while (n > 0) {
        size_t end = word_end(word, n);
        BT_TRY(encode_cached(t, word, end, out, err));
        word += end;
        n -= end;
    }
    return BT_OK;
}
