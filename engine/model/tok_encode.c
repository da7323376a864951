/* Text to ids: added tokens are cut out, the rest is normalised, cut into pre-tokens and merged. */
#include "engine/model/tok_internal.h"

#include <string.h>

struct encoder {
    struct bt_tokenizer *t;
    struct bt_ids *out;
    bool plain_text;
};

struct added_match {
    const struct tok_added *token; /* NULL: none left */
    size_t start;
    size_t end;
};

/* Longest added token that begins at p[0..n), or NULL. */
static const struct tok_added *token_at(const struct tok_matcher *m, const char *p, size_t n)
{
    uint8_t b = (uint8_t)p[0];
    for (int32_t i = m->first[b]; i < m->first[b + 1]; i++) {
        const struct tok_added *a = m->tokens[i];
        if (a->n_match <= n && memcmp(a->match, p, a->n_match) == 0) {
            return a;
        }
    }
    return NULL;
}

static bool word_before(const char *text, size_t at)
{
    size_t len;
    if (at == 0) {
        return false;
    }
    size_t start = tok_utf8_before(text, at);
    return tok_is_word(tok_utf8_decode(text + start, at - start, &len));
}

static bool word_after(const char *text, size_t at, size_t n)
{
    size_t len;
    return at < n && tok_is_word(tok_utf8_decode(text + at, n - at, &len));
}

static size_t spaces_before(const char *text, size_t at, size_t limit)
{
    while (at > limit) {
        size_t len;
        size_t start = tok_utf8_before(text, at);
        if (start < limit || !tok_is_space(tok_utf8_decode(text + start, at - start, &len))) {
            break;
        }
        at = start;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t at, size_t n)
{
    while (at < n) {
        size_t len;
        if (!tok_is_space(tok_utf8_decode(text + at, n - at, &len))) {
            break;
        }
        at += len;
    }
    return at;
}

/* The next added token at or after `from`; it takes the spaces that lstrip and rstrip give it, but
 * none before `from`. */
static struct added_match next_match(const struct encoder *e, const struct tok_matcher *m,
                                     const char *text, size_t n, size_t from)
{
    for (size_t i = from; i < n; i++) {
        uint8_t b = (uint8_t)text[i];
        if (m->first[b] == m->first[b + 1]) {
            continue;
        }
        const struct tok_added *a = token_at(m, text + i, n - i);
        if (a == NULL) {
            continue;
        }
        size_t end = i + a->n_match;
        bool inside_word = a->single_word && (word_before(text, i) || word_after(text, end, n));
        if (inside_word || (e->plain_text && a->special)) {
            i = end - 1;
            continue;
        }
        return (struct added_match){
            .token = a,
            .start = a->lstrip ? spaces_before(text, i, from) : i,
            .end = a->rstrip ? spaces_after(text, end, n) : end,
        };
    }
    return (struct added_match){.token = NULL, .start = n, .end = n};
}

static enum bt_code encode_words(struct encoder *e, const char *text, size_t n, bool first,
                                 struct bt_error *err)
{
    const char *cut;
    BT_TRY(tok_pre_tokenize(e->t, text, n, first, &cut, err));
    const struct tok_pieces *pieces = &e->t->scratch.pieces[0];
    for (size_t i = 0; i < pieces->n; i++) {
        const struct tok_piece *p = &pieces->p[i];
        BT_TRY(tok_bpe(e->t, cut + p->start, p->end - p->start, e->out, err));
    }
    return BT_OK;
}

/* Valid UTF-8 without raw added tokens; section: it begins such a stretch; first: it begins the
 * whole text. */
static enum bt_code encode_run(struct encoder *e, const char *run, size_t n_run, bool section,
                               bool first, struct bt_error *err)
{
    const char *text;
    size_t n;
    size_t at = 0;
    BT_TRY(tok_normalize(e->t, run, n_run, section, &text, &n, err));
    while (at < n) {
        struct added_match m = next_match(e, &e->t->normalized, text, n, at);
        if (m.start > at) {
            BT_TRY(encode_words(e, text + at, m.start - at, first && at == 0, err));
        }
        if (m.token != NULL) {
            BT_TRY(tok_ids_append(e->out, m.token->id, err));
        }
        at = m.end;
    }
    return BT_OK;
}

/* Text between added tokens: runs of UTF-8, and runs of other bytes, which are words of their own.
 */
static enum bt_code encode_section(struct encoder *e, const char *text, size_t n, bool first,
                                   struct bt_error *err)
{
    size_t i = 0;
    while (i < n) {
        size_t start = i;
        size_t len = tok_utf8_length(text + i, n - i);
        while (i < n && len > 0) {
            i += len;
            len = tok_utf8_length(text + i, n - i);
        }
        if (i > start) {
            BT_TRY(encode_run(e, text + start, i - start, start == 0, first && start == 0, err));
        }
        start = i;
        while (i < n && tok_utf8_length(text + i, n - i) == 0) {
            i++;
        }
        if (i > start) {
            BT_TRY(tok_bpe(e->t, text + start, i - start, e->out, err));
        }
    }
    return BT_OK;
}

static enum bt_code encode_text(struct encoder *e, const char *text, size_t n, struct bt_error *err)
{
    size_t at = 0;
    while (at < n) {
        struct added_match m = next_match(e, &e->t->raw, text, n, at);
        if (m.start > at) {
            BT_TRY(encode_section(e, text + at, m.start - at, at == 0, err));
        }
        if (m.token != NULL) {
            BT_TRY(tok_ids_append(e->out, m.token->id, err));
        }
        at = m.end;
    }
    return BT_OK;
}

/* True when ids[0..n) are at p[0..n_p). */
static bool begins_with(const int32_t *p, int64_t n_p, const int32_t *ids, int32_t n)
{
    return n_p >= n && memcmp(p, ids, (size_t)n * sizeof *ids) == 0;
}

static enum bt_code add_prefix(struct encoder *e, int64_t at, struct bt_error *err)
{
    const struct bt_tokenizer *t = e->t;
    int32_t n = t->n_prefix_ids;
    if (n == 0 || begins_with(e->out->ids + at, e->out->n - at, t->prefix_ids, n)) {
        return BT_OK;
    }
    for (int32_t i = 0; i < n; i++) {
        BT_TRY(tok_ids_append(e->out, 0, err));
    }
    size_t moved = (size_t)(e->out->n - n - at);
    memmove(e->out->ids + at + n, e->out->ids + at, moved * sizeof *e->out->ids);
    memcpy(e->out->ids + at, t->prefix_ids, (size_t)n * sizeof *t->prefix_ids);
    return BT_OK;
}

static enum bt_code add_suffix(struct encoder *e, int64_t at, struct bt_error *err)
{
    const struct bt_tokenizer *t = e->t;
    int32_t n = t->n_suffix_ids;
    int64_t have = e->out->n - at;
    if (n == 0 || (have >= n && begins_with(e->out->ids + e->out->n - n, n, t->suffix_ids, n))) {
        return BT_OK;
    }
    for (int32_t i = 0; i < n; i++) {
        BT_TRY(tok_ids_append(e->out, t->suffix_ids[i], err));
    }
    return BT_OK;
}

enum bt_code bt_tokenizer_encode(struct bt_tokenizer *t, const char *text, size_t n_bytes,
                                 const struct bt_encode_opts *opts, struct bt_ids *out,
                                 struct bt_error *err)
{
    if (n_bytes > BT_TOK_MAX_TEXT_BYTES) {
        BT_FAIL(err, BT_ERR_ARG, 0, "text of %zu bytes: at most %d can be encoded at once", n_bytes,
                BT_TOK_MAX_TEXT_BYTES);
    }
    struct encoder e = {.t = t, .out = out, .plain_text = opts != NULL && opts->plain_text};
    int64_t at = out->n;
    BT_TRY(encode_text(&e, text, n_bytes, err));
    if (opts != NULL && opts->skip_template) {
        return BT_OK;
    }
    BT_TRY(add_suffix(&e, at, err));
    return add_prefix(&e, at, err);
}
