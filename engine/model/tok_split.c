/* Pre-tokenizers: cutting normalised text into the words that merges never cross. */
#include "engine/model/tok_internal.h"

#include <string.h>

struct cutter {
    const struct tok_pre *step;
    struct tok_pieces *out;
    size_t first_piece; /* of this text in out: earlier ones belong to other pieces */
    bool last_is_match; /* of the last run added */
};

/* Adds the run [start, end), a match of the pattern or a gap between matches, as `behavior` says.
 * Only Contiguous and MergedWithPrevious change what was added before. */
static enum bt_code add_run(struct cutter *c, size_t start, size_t end, bool is_match,
                            struct bt_error *err)
{
    bool has_last = c->out->n > c->first_piece;
    bool was_match = c->last_is_match;
    c->last_is_match = is_match;
    switch (c->step->behavior) {
    case TOK_REMOVED:
        return is_match ? BT_OK : tok_pieces_append(c->out, start, end, err);
    case TOK_ISOLATED:
        return tok_pieces_append(c->out, start, end, err);
    case TOK_CONTIGUOUS:
        if (has_last && was_match == is_match) {
            c->out->p[c->out->n - 1].end = end;
            return BT_OK;
        }
        return tok_pieces_append(c->out, start, end, err);
    case TOK_MERGED_WITH_PREVIOUS:
        if (is_match && has_last && !was_match) {
            c->out->p[c->out->n - 1].end = end;
            return BT_OK;
        }
        return tok_pieces_append(c->out, start, end, err);
    case TOK_MERGED_WITH_NEXT:
        /* A match opens a piece that the next gap completes; a match after a match opens another.
         */
        if (!is_match && has_last && was_match) {
            c->out->p[c->out->n - 1].end = end;
            return BT_OK;
        }
        return tok_pieces_append(c->out, start, end, err);
    }
    return BT_OK;
}

static enum bt_code add_nonempty(struct cutter *c, size_t start, size_t end, bool is_match,
                                 struct bt_error *err)
{
    return start < end ? add_run(c, start, end, is_match != c->step->invert, err) : BT_OK;
}

static enum bt_code split_piece(const struct tok_pre *step, const char *text,
                                struct tok_piece piece, struct tok_pieces *out,
                                struct bt_error *err)
{
    struct cutter c = {.step = step, .out = out, .first_piece = out->n};
    const char *base = text + piece.start;
    size_t n = piece.end - piece.start;
    size_t done = 0;
    size_t from = 0;
    while (from < n) {
        bool found;
        size_t start = 0;
        size_t end = 0;
        BT_TRY(tok_pattern_match(&step->pattern, base, n, from, &found, &start, &end, err));
        if (!found) {
            break;
        }
        if (end == start) {
            size_t len = tok_utf8_length(base + end, n - end);
            from = end + (len > 0 ? len : 1);
            continue;
        }
        BT_TRY(add_nonempty(&c, piece.start + done, piece.start + start, false, err));
        BT_TRY(add_nonempty(&c, piece.start + start, piece.start + end, true, err));
        done = end;
        from = end;
    }
    return add_nonempty(&c, piece.start + done, piece.end, false, err);
}

/* Copies a piece into buf, with `prefix` before it unless it starts with it; returns its place. */
static enum bt_code copy_prefixed(const char *text, struct tok_piece piece, const char *prefix,
                                  bool wanted, struct bt_bytes *buf, struct tok_pieces *out,
                                  struct bt_error *err)
{
    size_t n = piece.end - piece.start;
    size_t n_prefix = strlen(prefix);
    size_t start = buf->n;
    bool has = n >= n_prefix && memcmp(text + piece.start, prefix, n_prefix) == 0;
    if (wanted && !has && n > 0) {
        BT_TRY(tok_bytes_append(buf, prefix, n_prefix, err));
    }
    BT_TRY(tok_bytes_append(buf, text + piece.start, n, err));
    return tok_pieces_append(out, start, buf->n, err);
}

/* Spaces become the replacement, then one may be put before the piece. */
static enum bt_code mark_spaces(const struct tok_pre *step, const char *text,
                                struct tok_piece piece, bool first, struct bt_bytes *buf,
                                struct tok_pieces *out, struct bt_error *err)
{
    size_t n_mark = strlen(step->replacement);
    size_t start = buf->n;
    size_t n = piece.end - piece.start;
    const char *p = text + piece.start;
    bool has = n > 0 && (p[0] == ' ' || (n >= n_mark && memcmp(p, step->replacement, n_mark) == 0));
    bool wanted =
        step->prepend == TOK_PREPEND_ALWAYS || (step->prepend == TOK_PREPEND_FIRST && first);
    if (wanted && !has && n > 0) {
        BT_TRY(tok_bytes_append(buf, step->replacement, n_mark, err));
    }
    for (size_t i = 0; i < n; i++) {
        bool space = p[i] == ' ';
        BT_TRY(tok_bytes_append(buf, space ? step->replacement : p + i, space ? n_mark : 1, err));
    }
    if (!step->split) {
        return tok_pieces_append(out, start, buf->n, err);
    }
    struct tok_pre cut = {
        .kind = TOK_PRE_SPLIT,
        .pattern = {.literal = step->replacement, .n_literal = n_mark},
        .behavior = TOK_MERGED_WITH_NEXT,
    };
    return split_piece(&cut, buf->p, (struct tok_piece){start, buf->n}, out, err);
}

static enum bt_code cut_all(const struct tok_pre *step, const char *text,
                            const struct tok_pieces *in, struct tok_pieces *out,
                            struct bt_error *err)
{
    for (size_t i = 0; i < in->n; i++) {
        BT_TRY(split_piece(step, text, in->p[i], out, err));
    }
    return BT_OK;
}

/* Runs one step over all pieces. *text moves to buf when the step rewrites the text. */
static enum bt_code run_step(const struct tok_pre *step, bool first, const char **text,
                             struct tok_pieces *in, struct tok_pieces *out, struct bt_bytes *buf,
                             struct bt_error *err)
{
    bool rewrites = step->kind == TOK_PRE_METASPACE ||
                    (step->kind == TOK_PRE_BYTE_LEVEL && step->add_prefix_space);
    out->n = 0;
    if (!rewrites) {
        return cut_all(step, *text, in, out, err);
    }
    buf->n = 0;
    for (size_t i = 0; i < in->n; i++) {
        if (step->kind == TOK_PRE_METASPACE) {
            BT_TRY(mark_spaces(step, *text, in->p[i], first && i == 0, buf, out, err));
        } else {
            BT_TRY(copy_prefixed(*text, in->p[i], " ", true, buf, out, err));
        }
    }
    *text = buf->p;
    if (step->kind == TOK_PRE_BYTE_LEVEL) {
        struct tok_pieces swap = *in;
        *in = *out;
        *out = swap;
        out->n = 0;
        return cut_all(step, *text, in, out, err);
    }
    return BT_OK;
}

enum bt_code tok_pre_tokenize(struct bt_tokenizer *t, const char *text, size_t n, bool first,
                              const char **out, struct bt_error *err)
{
    struct tok_scratch *s = &t->scratch;
    *out = text;
    s->pieces[0].n = 0;
    if (n > 0) {
        BT_TRY(tok_pieces_append(&s->pieces[0], 0, n, err));
    }
    for (int32_t i = 0; i < t->n_pres; i++) {
        struct bt_bytes *buf = *out == s->cut[0].p ? &s->cut[1] : &s->cut[0];
        BT_TRY(run_step(&t->pres[i], first, out, &s->pieces[0], &s->pieces[1], buf, err));
        struct tok_pieces swap = s->pieces[0];
        s->pieces[0] = s->pieces[1];
        s->pieces[1] = swap;
    }
    return BT_OK;
}
