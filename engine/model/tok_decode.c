/* Ids to bytes: each token's bytes are found once at load, so that decoding is concatenation. */
#include "engine/model/tok_internal.h"

#include <stdio.h>
#include <string.h>

static enum bt_code replace_text(const char *text, size_t n, const char *pattern,
                                 const char *content, struct bt_bytes *out, struct bt_error *err)
{
    size_t n_pattern = strlen(pattern);
    size_t i = 0;
    while (i < n) {
        if (n - i >= n_pattern && memcmp(text + i, pattern, n_pattern) == 0) {
            BT_TRY(tok_bytes_append(out, content, strlen(content), err));
            i += n_pattern;
        } else {
            BT_TRY(tok_bytes_append(out, text + i, 1, err));
            i++;
        }
    }
    return BT_OK;
}

/* A token with a character outside the byte-level alphabet stands for its own text. */
static enum bt_code unspell_bytes(const char *text, size_t n, struct bt_bytes *out,
                                  struct bt_error *err)
{
    size_t start = out->n;
    size_t i = 0;
    while (i < n) {
        size_t len;
        int32_t b = tok_char_to_byte(tok_utf8_decode(text + i, n - i, &len));
        if (b < 0) {
            out->n = start;
            return tok_bytes_append(out, text, n, err);
        }
        char c = (char)(uint8_t)b;
        BT_TRY(tok_bytes_append(out, &c, 1, err));
        i += len;
    }
    return BT_OK;
}

static int32_t hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of "<0xXX>", or -1. */
static int32_t fallback_byte(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    int32_t high = hex_digit(text[3]);
    int32_t low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

static enum bt_code strip_ends(const struct tok_dec *d, const char *text, size_t n,
                               struct bt_bytes *out, struct bt_error *err)
{
    size_t len = strlen(d->pattern);
    for (int32_t i = 0; i < d->start && n >= len && memcmp(text, d->pattern, len) == 0; i++) {
        text += len;
        n -= len;
    }
    for (int32_t i = 0; i < d->stop && n >= len && memcmp(text + n - len, d->pattern, len) == 0;
         i++) {
        n -= len;
    }
    return tok_bytes_append(out, text, n, err);
}

static enum bt_code run_decoder(const struct tok_dec *d, const char *text, size_t n, bool first,
                                struct bt_bytes *out, struct bt_error *err)
{
    switch (d->kind) {
    case TOK_DEC_BYTE_LEVEL:
        return unspell_bytes(text, n, out, err);
    case TOK_DEC_REPLACE:
        return replace_text(text, n, d->pattern, d->content, out, err);
    case TOK_DEC_BYTE_FALLBACK: {
        int32_t b = fallback_byte(text, n);
        char c = (char)(uint8_t)(b < 0 ? 0 : b);
        return b < 0 ? tok_bytes_append(out, text, n, err) : tok_bytes_append(out, &c, 1, err);
    }
    case TOK_DEC_STRIP:
        return strip_ends(d, text, n, out, err);
    case TOK_DEC_METASPACE:
        return replace_text(text, n, d->pattern, first && d->strip_first ? "" : " ", out, err);
    }
    return BT_OK;
}

/* Runs the decoders over one token's text and appends the result to *out; first: it begins the
 * whole text; spelled: it is written in the byte-level alphabet where there is one. */
static enum bt_code decode_text(const struct bt_tokenizer *t, const char *text, bool first,
                                bool spelled, struct bt_bytes *out, struct bt_error *err)
{
    struct bt_bytes buf[2] = {{0}, {0}};
    size_t n = strlen(text);
    enum bt_code code = BT_OK;
    for (int32_t i = 0; i < t->n_decs && code == BT_OK; i++) {
        if (t->decs[i].kind == TOK_DEC_BYTE_LEVEL && !spelled) {
            continue;
        }
        struct bt_bytes *to = text == buf[0].p ? &buf[1] : &buf[0];
        to->n = 0;
        code = run_decoder(&t->decs[i], text, n, first, to, err);
        text = to->p;
        n = to->n;
    }
    if (code == BT_OK) {
        code = tok_bytes_append(out, text, n, err);
    }
    bt_bytes_fini(&buf[0]);
    bt_bytes_fini(&buf[1]);
    return code;
}

static enum bt_code keep_decoded(struct bt_tokenizer *t, int32_t id, const struct bt_bytes *text,
                                 struct bt_error *err)
{
    char *copy = bt_arena_take(&t->arena, text->n);
    if (copy == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for tokens", t->path);
    }
    if (text->n > 0) {
        memcpy(copy, text->p, text->n);
    }
    t->bytes[id] = copy;
    t->n_bytes[id] = (uint32_t)text->n;
    return BT_OK;
}

/* An added token is its own text, whatever the decoders would make of it; one that was matched in
 * normalised text gives back what its match took (a space before it, say). */
static enum bt_code decode_added(const struct bt_tokenizer *t, const struct tok_added *a,
                                 struct bt_bytes *out, struct bt_error *err)
{
    if (strcmp(a->match, a->content) == 0) {
        return tok_bytes_append(out, a->content, a->n_content, err);
    }
    return decode_text(t, a->match, false, false, out, err);
}

enum bt_code tok_build_decoded(struct bt_tokenizer *t, struct bt_error *err)
{
    struct bt_bytes text = {0};
    enum bt_code code = BT_OK;
    for (int32_t id = 0; id < t->n_ids && code == BT_OK; id++) {
        if (t->tokens[id] == NULL || (t->flags[id] & TOK_ID_ADDED) != 0) {
            continue;
        }
        text.n = 0;
        code = decode_text(t, t->tokens[id], false, true, &text, err);
        if (code == BT_OK) {
            code = keep_decoded(t, id, &text, err);
        }
    }
    for (int32_t i = 0; i < t->n_added && code == BT_OK; i++) {
        text.n = 0;
        code = decode_added(t, &t->added[i], &text, err);
        if (code == BT_OK) {
            code = keep_decoded(t, t->added[i].id, &text, err);
        }
    }
    bt_bytes_fini(&text);
    return code;
}

static bool first_token_differs(const struct bt_tokenizer *t)
{
    for (int32_t i = 0; i < t->n_decs; i++) {
        if (t->decs[i].kind == TOK_DEC_METASPACE && t->decs[i].strip_first) {
            return true;
        }
    }
    return false;
}

void bt_decode_stream_init(struct bt_decode_stream *s, const struct bt_tokenizer *t,
                           bool skip_special)
{
    *s = (struct bt_decode_stream){
        .tokenizer = t, .skip_special = skip_special, .strip_left = t->strip_left};
}

/* How many bytes at the end begin a UTF-8 character that more bytes could complete. */
static size_t open_tail(const char *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char lead = (unsigned char)p[n - k];
        if ((lead & 0xc0) == 0x80) {
            continue;
        }
        size_t need = lead >= 0xf0 && lead <= 0xf4   ? 4
                      : lead >= 0xe0 && lead <= 0xef ? 3
                      : lead >= 0xc2 && lead <= 0xdf ? 2
                                                     : 1;
        if (need <= k) {
            return 0;
        }
        /* The second byte decides whether the character can still become valid. */
        char full[4] = {p[n - k], '\x80', '\x80', '\x80'};
        if (k >= 2) {
            full[1] = p[n - k + 1];
        } else if (lead == 0xe0) {
            full[1] = '\xa0';
        } else if (lead == 0xf0) {
            full[1] = '\x90';
        }
        return tok_utf8_length(full, need) == need ? k : 0;
    }
    return 0;
}

/* Appends the pending bytes and [p, p + n), and takes an unfinished character back to pending. */
static enum bt_code emit(struct bt_decode_stream *s, const char *p, size_t n, struct bt_bytes *out,
                         struct bt_error *err)
{
    while (s->strip_left > 0 && n > 0) {
        if (*p != s->tokenizer->strip_char) {
            s->strip_left = 0;
            break;
        }
        p++;
        n--;
        s->strip_left--;
    }
    size_t start = out->n;
    BT_TRY(tok_bytes_append(out, s->pending, (size_t)s->n_pending, err));
    BT_TRY(tok_bytes_append(out, p, n, err));
    size_t tail = out->n > start ? open_tail(out->p + start, out->n - start) : 0;
    if (tail > 0) {
        memcpy(s->pending, out->p + out->n - tail, tail);
    }
    s->n_pending = (int32_t)tail;
    out->n -= tail;
    return BT_OK;
}

enum bt_code bt_decode_stream_push(struct bt_decode_stream *s, int32_t id, struct bt_bytes *out,
                                   struct bt_error *err)
{
    const struct bt_tokenizer *t = s->tokenizer;
    if (id < 0 || id >= t->n_ids || t->tokens[id] == NULL) {
        BT_FAIL(err, BT_ERR_ARG, id, "%s: token id %d: not in the vocabulary of ids 0..%d", t->path,
                id, t->n_ids - 1);
    }
    if (s->skip_special && (t->flags[id] & TOK_ID_SPECIAL) != 0) {
        return BT_OK;
    }
    bool first = !s->started;
    s->started = true;
    if (first && (t->flags[id] & TOK_ID_ADDED) == 0 && first_token_differs(t)) {
        struct bt_bytes text = {0};
        enum bt_code code = decode_text(t, t->tokens[id], true, true, &text, err);
        if (code == BT_OK) {
            code = emit(s, text.p, text.n, out, err);
        }
        bt_bytes_fini(&text);
        return code;
    }
    return emit(s, t->bytes[id], t->n_bytes[id], out, err);
}

enum bt_code bt_decode_stream_finish(struct bt_decode_stream *s, struct bt_bytes *out,
                                     struct bt_error *err)
{
    BT_TRY(tok_bytes_append(out, s->pending, (size_t)s->n_pending, err));
    s->n_pending = 0;
    return BT_OK;
}

enum bt_code bt_tokenizer_decode(const struct bt_tokenizer *t, const int32_t *ids, int64_t n,
                                 bool skip_special, struct bt_bytes *out, struct bt_error *err)
{
    struct bt_decode_stream s;
    bt_decode_stream_init(&s, t, skip_special);
    for (int64_t i = 0; i < n; i++) {
        BT_TRY(bt_decode_stream_push(&s, ids[i], out, err));
    }
    return bt_decode_stream_finish(&s, out, err);
}
