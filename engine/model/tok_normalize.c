/* Normalizers: what happens to the text before it is cut. */
#include "engine/model/tok_internal.h"

#include <utf8proc.h>

#include <stdlib.h>
#include <string.h>

static enum bt_code replace_all(const struct tok_norm *norm, const char *text, size_t n,
                                struct bt_bytes *out, struct bt_error *err)
{
    size_t done = 0;
    size_t from = 0;
    while (from <= n) {
        bool found;
        size_t start = 0;
        size_t end = 0;
        BT_TRY(tok_pattern_match(&norm->pattern, text, n, from, &found, &start, &end, err));
        if (!found) {
            break;
        }
        BT_TRY(tok_bytes_append(out, text + done, start - done, err));
        BT_TRY(tok_bytes_append(out, norm->content, strlen(norm->content), err));
        done = end;
        if (end > start) {
            from = end;
        } else {
            size_t len = end < n ? tok_utf8_length(text + end, n - end) : 1;
            from = end + (len > 0 ? len : 1);
        }
    }
    return tok_bytes_append(out, text + done, n - done, err);
}

static enum bt_code compose(enum tok_norm_kind kind, const char *text, size_t n,
                            struct bt_bytes *out, struct bt_error *err)
{
    unsigned options = UTF8PROC_STABLE;
    options |=
        kind == TOK_NORM_NFC || kind == TOK_NORM_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    options |= kind == TOK_NORM_NFKC || kind == TOK_NORM_NFKD ? UTF8PROC_COMPAT : 0u;
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                        &mapped, (utf8proc_option_t)options);
    if (len < 0) {
        enum bt_code code = len == UTF8PROC_ERROR_NOMEM ? BT_ERR_NOMEM : BT_ERR_INPUT;
        BT_FAIL(err, code, len, "tokenizer: Unicode normalisation: %s", utf8proc_errmsg(len));
    }
    enum bt_code code = tok_bytes_append(out, mapped, (size_t)len, err);
    free(mapped);
    return code;
}

static bool is_ascii(const char *text, size_t n)
{
    unsigned char any = 0;
    for (size_t i = 0; i < n; i++) {
        any |= (unsigned char)text[i];
    }
    return any < 0x80;
}

static enum bt_code apply(const struct tok_norm *norm, const char *text, size_t n, bool prefix,
                          struct bt_bytes *out, bool *changed, struct bt_error *err)
{
    *changed = true;
    out->n = 0;
    switch (norm->kind) {
    case TOK_NORM_PREPEND:
        *changed = prefix && n > 0;
        if (*changed) {
            BT_TRY(tok_bytes_append(out, norm->content, strlen(norm->content), err));
            BT_TRY(tok_bytes_append(out, text, n, err));
        }
        return BT_OK;
    case TOK_NORM_REPLACE:
        return replace_all(norm, text, n, out, err);
    case TOK_NORM_NFC:
    case TOK_NORM_NFD:
    case TOK_NORM_NFKC:
    case TOK_NORM_NFKD:
        *changed = !is_ascii(text, n);
        return *changed ? compose(norm->kind, text, n, out, err) : BT_OK;
    }
    return BT_OK;
}

enum bt_code tok_normalize(struct bt_tokenizer *t, const char *text, size_t n, bool prefix,
                           const char **out, size_t *n_out, struct bt_error *err)
{
    int32_t next = 0;
    *out = text;
    *n_out = n;
    for (int32_t i = 0; i < t->n_norms; i++) {
        struct bt_bytes *buf = &t->scratch.normal[next];
        bool changed = false;
        BT_TRY(apply(&t->norms[i], *out, *n_out, prefix, buf, &changed, err));
        if (changed) {
            *out = buf->p;
            *n_out = buf->n;
            next = 1 - next;
        }
    }
    return BT_OK;
}
