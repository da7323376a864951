/* The regular expressions of tokenizer.json, which are written for Oniguruma, run by PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/model/tok_internal.h"

#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

enum {
    REGEX_MAX_BYTES = 1 << 16,
    REGEX_JIT_STACK_START = 32 * 1024,
    REGEX_JIT_STACK_MAX = 4 * 1024 * 1024,
};

struct tok_regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack; /* NULL without JIT */
    bool jit;
};

/* \s is White_Space and \w is letters, marks, decimal digits and connectors in Oniguruma; PCRE2
 * differs in both (U+180E is a space to it, marks are no word characters, all numbers are). */
#define SPACE_SET "\\x09-\\x0d\\x{85}\\p{Z}"
#define WORD_SET  "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"

struct translation {
    const char *pattern;
    const char *where;
    struct bt_bytes out;
    bool in_class;
};

static enum bt_code put(struct translation *tr, const char *text, size_t n, struct bt_error *err)
{
    return tok_bytes_append(&tr->out, text, n, err);
}

static enum bt_code put_set(struct translation *tr, const char *set, bool negated,
                            struct bt_error *err)
{
    if (!tr->in_class) {
        BT_TRY(put(tr, negated ? "[^" : "[", negated ? 2 : 1, err));
    }
    BT_TRY(put(tr, set, strlen(set), err));
    return tr->in_class ? BT_OK : put(tr, "]", 1, err);
}

static enum bt_code unsupported(const struct translation *tr, size_t at, const char *what,
                                struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_INPUT, 0, "%s: regex \"%.160s\": byte %zu: %s is not supported", tr->where,
            tr->pattern, at, what);
}

/* The escape at p[*i] == '\\'; *i moves past it. */
static enum bt_code put_escape(struct translation *tr, size_t *i, struct bt_error *err)
{
    const char *p = tr->pattern;
    char c = p[*i + 1];
    size_t at = *i;
    *i += 2;
    switch (c) {
    case '\0':
        return unsupported(tr, at, "a trailing backslash", err);
    case 's':
        return put_set(tr, SPACE_SET, false, err);
    case 'S':
        return tr->in_class ? put(tr, "\\S", 2, err) : put_set(tr, SPACE_SET, true, err);
    case 'w':
        return put_set(tr, WORD_SET, false, err);
    case 'W':
        return tr->in_class ? unsupported(tr, at, "\\W in a class", err)
                            : put_set(tr, WORD_SET, true, err);
    case 'd':
        return put(tr, "\\p{Nd}", 6, err);
    case 'D':
        return put(tr, "\\P{Nd}", 6, err);
    case 'v':
        return put(tr, "\\x0b", 4, err);
    case 'u':
        if (strspn(p + *i, "0123456789abcdefABCDEF") < 4) {
            return unsupported(tr, at, "\\u without four hexadecimal digits", err);
        }
        BT_TRY(put(tr, "\\x{", 3, err));
        BT_TRY(put(tr, p + *i, 4, err));
        *i += 4;
        return put(tr, "}", 1, err);
    case 'p':
    case 'P':
    case 'x':
        if (p[*i] == '{') { /* copied whole: its brace closes no interval */
            *i += strcspn(p + *i, "}");
            *i += p[*i] == '}' ? 1 : 0;
        }
        return put(tr, p + at, *i - at, err);
    case 'n':
    case 'r':
    case 't':
    case 'f':
        return put(tr, p + at, 2, err);
    default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
            char what[] = {'\\', c, '\0'};
            return unsupported(tr, at, what, err);
        }
        return put(tr, p + at, 2, err);
    }
}

static bool group_is_known(const char *after_mark)
{
    static const char *const known[] = {":", "i:", "i)", "=", "!", "<=", "<!", ">"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(after_mark, known[i], strlen(known[i])) == 0) {
            return true;
        }
    }
    return false;
}

static enum bt_code translate(struct translation *tr, struct bt_error *err)
{
    const char *p = tr->pattern;
    size_t i = 0;
    while (p[i] != '\0') {
        if (p[i] == '\\') {
            BT_TRY(put_escape(tr, &i, err));
            continue;
        }
        if (tr->in_class) {
            if (p[i] == '[') {
                return unsupported(tr, i, "a class inside a class", err);
            }
            if (p[i] == '&' && p[i + 1] == '&') {
                return unsupported(tr, i, "an intersection of classes", err);
            }
            tr->in_class = p[i] != ']';
        } else if (p[i] == '[') {
            tr->in_class = true;
            if (p[i + 1] == '^') {
                BT_TRY(put(tr, p + i++, 1, err));
            }
            if (p[i + 1] == ']') {
                return unsupported(tr, i, "an empty class", err);
            }
        } else if (p[i] == '(' && p[i + 1] == '?' && !group_is_known(p + i + 2)) {
            return unsupported(tr, i, "this kind of group", err);
        } else if (p[i] == '(' && p[i + 1] == '*') {
            return unsupported(tr, i, "(*", err);
        } else if (p[i] == '}' && p[i + 1] == '+') {
            return unsupported(tr, i, "a possessive interval", err);
        }
        BT_TRY(put(tr, p + i, 1, err));
        i++;
    }
    return put(tr, "", 1, err);
}

static enum bt_code compile(struct tok_regex *r, const char *pattern, const char *where,
                            struct bt_error *err)
{
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    if (cc == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a regex", where);
    }
    (void)pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE at = 0;
    r->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE, &code,
                            &at, cc);
    pcre2_compile_context_free(cc);
    if (r->code == NULL) {
        PCRE2_UCHAR text[128];
        (void)pcre2_get_error_message(code, text, sizeof text);
        BT_FAIL(err, BT_ERR_INPUT, code, "%s: regex \"%.160s\": byte %zu: %s", where, pattern,
                (size_t)at, (const char *)text);
    }
    r->match = pcre2_match_data_create(1, NULL);
    r->context = pcre2_match_context_create(NULL);
    if (r->match == NULL || r->context == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a regex", where);
    }
    if (pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0) {
        r->jit_stack = pcre2_jit_stack_create(REGEX_JIT_STACK_START, REGEX_JIT_STACK_MAX, NULL);
        r->jit = r->jit_stack != NULL;
    }
    if (r->jit) {
        pcre2_jit_stack_assign(r->context, NULL, r->jit_stack);
    }
    return BT_OK;
}

enum bt_code tok_regex_new(const char *pattern, const char *where, struct tok_regex **out,
                           struct bt_error *err)
{
    *out = NULL;
    if (strlen(pattern) > REGEX_MAX_BYTES) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: regex of %zu bytes, at most %d are allowed", where,
                strlen(pattern), REGEX_MAX_BYTES);
    }
    struct tok_regex *r = calloc(1, sizeof *r);
    if (r == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a regex", where);
    }
    struct translation tr = {.pattern = pattern, .where = where};
    enum bt_code code = translate(&tr, err);
    if (code == BT_OK) {
        code = compile(r, tr.out.p, where, err);
    }
    bt_bytes_fini(&tr.out);
    if (code != BT_OK) {
        tok_regex_free(r);
        return code;
    }
    *out = r;
    return BT_OK;
}

void tok_regex_free(struct tok_regex *r)
{
    if (r == NULL) {
        return;
    }
    pcre2_jit_stack_free(r->jit_stack);
    pcre2_match_context_free(r->context);
    pcre2_match_data_free(r->match);
    pcre2_code_free(r->code);
    free(r);
}

enum bt_code tok_regex_match(const struct tok_regex *r, const char *text, size_t n_bytes,
                             size_t from, bool *found, size_t *start, size_t *end,
                             struct bt_error *err)
{
    int rc = r->jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)text, n_bytes, from, PCRE2_NO_UTF_CHECK,
                                      r->match, r->context)
                    : pcre2_match(r->code, (PCRE2_SPTR)text, n_bytes, from, PCRE2_NO_UTF_CHECK,
                                  r->match, r->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(r->match);
        *start = ovector[0];
        *end = ovector[1];
        return BT_OK;
    }
    if (rc != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR msg[128];
        (void)pcre2_get_error_message(rc, msg, sizeof msg);
        BT_FAIL(err, BT_ERR_LIMIT, rc, "tokenizer: regex at byte %zu of the text: %s", from,
                (const char *)msg);
    }
    return BT_OK;
}

enum bt_code tok_pattern_match(const struct tok_pattern *p, const char *text, size_t n_bytes,
                               size_t from, bool *found, size_t *start, size_t *end,
                               struct bt_error *err)
{
    if (p->regex != NULL) {
        return tok_regex_match(p->regex, text, n_bytes, from, found, start, end, err);
    }
    *found = false;
    const char *at = text + from;
    const char *stop = text + n_bytes;
    while (p->n_literal > 0 && (size_t)(stop - at) >= p->n_literal) {
        size_t room = (size_t)(stop - at) - p->n_literal + 1;
        at = memchr(at, p->literal[0], room);
        if (at == NULL) {
            return BT_OK;
        }
        if (memcmp(at, p->literal, p->n_literal) == 0) {
            *found = true;
            *start = (size_t)(at - text);
            *end = *start + p->n_literal;
            return BT_OK;
        }
        at++;
    }
    return BT_OK;
}
