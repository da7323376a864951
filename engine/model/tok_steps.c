/* Reads the normalizer, pre_tokenizer, post_processor and decoder of tokenizer.json. */
#include "engine/model/json_file.h"
#include "engine/model/tok_internal.h"

#include <stdio.h>
#include <string.h>

#define GPT2_REGEX                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

typedef enum bt_code (*step_fn)(struct bt_tokenizer *t, const json_t *j, const char *where,
                                const char *type, struct bt_error *err);

enum bt_code tok_check_keys(const struct bt_tokenizer *t, const json_t *j, const char *where,
                            const char *const *names, struct bt_error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(j)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected an object, got %s", t->path, where,
                bt_json_type_name(j));
    }
    json_object_foreach((json_t *)j, key, value)
    {
        bool known = false;
        for (int i = 0; names[i] != NULL && !known; i++) {
            known = strcmp(names[i], key) == 0;
        }
        if (!known) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.%s: this key is not supported", t->path, where,
                    key);
        }
    }
    return BT_OK;
}

/* Runs fn over the object, or over the members of a "Sequence" under `list`. */
static enum bt_code for_each_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                  const char *list, step_fn fn, struct bt_error *err)
{
    if (j == NULL || json_is_null(j)) {
        return BT_OK;
    }
    const char *type = json_string_value(json_object_get(j, "type"));
    if (type == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.type: expected a string", t->path, where);
    }
    if (strcmp(type, "Sequence") != 0) {
        return fn(t, j, where, type, err);
    }
    BT_TRY(tok_check_keys(t, j, where, KEYS("type", list), err));
    const json_t *steps = json_object_get(j, list);
    if (!json_is_array(steps)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.%s: expected an array, got %s", t->path, where, list,
                bt_json_type_name(steps));
    }
    for (size_t i = 0; i < json_array_size(steps); i++) {
        char at[TOK_WHERE_BYTES];
        (void)snprintf(at, sizeof at, "%s.%s[%zu]", where, list, i);
        const json_t *step = json_array_get(steps, i);
        type = json_string_value(json_object_get(step, "type"));
        if (type == NULL) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.type: expected a string", t->path, at);
        }
        BT_TRY(fn(t, step, at, type, err));
    }
    return BT_OK;
}

static enum bt_code too_many(const struct bt_tokenizer *t, const char *where, struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: more than %d steps", t->path, where, TOK_MAX_STEPS);
}

static enum bt_code get_text(struct bt_tokenizer *t, const json_t *j, const char *where,
                             const char *key, const char **out, struct bt_error *err)
{
    const char *text = json_string_value(json_object_get(j, key));
    if (text == NULL || strlen(text) != json_string_length(json_object_get(j, key))) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.%s: expected a string without NUL, got %s", t->path,
                where, key, bt_json_type_name(json_object_get(j, key)));
    }
    *out = bt_arena_strdup(&t->arena, text);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory", t->path);
    }
    return BT_OK;
}

static enum bt_code get_bool(const struct bt_tokenizer *t, const json_t *j, const char *where,
                             const char *key, bool missing, bool *out, struct bt_error *err)
{
    const json_t *v = json_object_get(j, key);
    *out = missing;
    if (v == NULL) {
        return BT_OK;
    }
    if (!json_is_boolean(v)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.%s: expected true or false, got %s", t->path, where,
                key, bt_json_type_name(v));
    }
    *out = json_is_true(v);
    return BT_OK;
}

static enum bt_code get_count(const struct bt_tokenizer *t, const json_t *j, const char *where,
                              const char *key, int32_t *out, struct bt_error *err)
{
    const json_t *v = json_object_get(j, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1024) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.%s: expected an integer 0..1024", t->path, where,
                key);
    }
    *out = (int32_t)json_integer_value(v);
    return BT_OK;
}

/* {"String": "x"} or {"Regex": "x"}. */
static enum bt_code get_pattern(struct bt_tokenizer *t, const json_t *j, const char *where,
                                struct tok_pattern *out, struct bt_error *err)
{
    char at[TOK_WHERE_BYTES];
    const json_t *pattern = json_object_get(j, "pattern");
    (void)snprintf(at, sizeof at, "%s.pattern", where);
    BT_TRY(tok_check_keys(t, pattern, at, KEYS("String", "Regex"), err));
    if (json_object_size(pattern) != 1) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected one of String and Regex", t->path, at);
    }
    if (json_object_get(pattern, "String") != NULL) {
        BT_TRY(get_text(t, pattern, at, "String", &out->literal, err));
        out->n_literal = strlen(out->literal);
        return BT_OK;
    }
    const char *regex;
    BT_TRY(get_text(t, pattern, at, "Regex", &regex, err));
    return tok_regex_new(regex, at, &out->regex, err);
}

static enum bt_code normalizer_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                    const char *type, struct bt_error *err)
{
    static const struct {
        const char *name;
        enum tok_norm_kind kind;
    } forms[] = {{"NFC", TOK_NORM_NFC},
                 {"NFD", TOK_NORM_NFD},
                 {"NFKC", TOK_NORM_NFKC},
                 {"NFKD", TOK_NORM_NFKD}};
    if (t->n_norms == TOK_MAX_STEPS) {
        return too_many(t, where, err);
    }
    struct tok_norm *norm = &t->norms[t->n_norms++];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(type, forms[i].name) == 0) {
            norm->kind = forms[i].kind;
            return tok_check_keys(t, j, where, KEYS("type"), err);
        }
    }
    if (strcmp(type, "Prepend") == 0) {
        norm->kind = TOK_NORM_PREPEND;
        BT_TRY(tok_check_keys(t, j, where, KEYS("type", "prepend"), err));
        return get_text(t, j, where, "prepend", &norm->content, err);
    }
    if (strcmp(type, "Replace") == 0) {
        norm->kind = TOK_NORM_REPLACE;
        BT_TRY(tok_check_keys(t, j, where, KEYS("type", "pattern", "content"), err));
        BT_TRY(get_text(t, j, where, "content", &norm->content, err));
        return get_pattern(t, j, where, &norm->pattern, err);
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "%s: %s.type: \"%s\" is not supported; supported: Sequence, NFC, NFD, NFKC, NFKD, "
            "Prepend, Replace",
            t->path, where, type);
}

enum bt_code tok_parse_normalizer(struct bt_tokenizer *t, const json_t *j, struct bt_error *err)
{
    return for_each_step(t, j, "normalizer", "normalizers", normalizer_step, err);
}

static enum bt_code split_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                               struct tok_pre *pre, struct bt_error *err)
{
    static const struct {
        const char *name;
        enum tok_behavior behavior;
    } rows[] = {{"Removed", TOK_REMOVED},
                {"Isolated", TOK_ISOLATED},
                {"MergedWithPrevious", TOK_MERGED_WITH_PREVIOUS},
                {"MergedWithNext", TOK_MERGED_WITH_NEXT},
                {"Contiguous", TOK_CONTIGUOUS}};
    BT_TRY(tok_check_keys(t, j, where, KEYS("type", "pattern", "behavior", "invert"), err));
    BT_TRY(get_pattern(t, j, where, &pre->pattern, err));
    BT_TRY(get_bool(t, j, where, "invert", false, &pre->invert, err));
    const char *name = json_string_value(json_object_get(j, "behavior"));
    for (size_t i = 0; name != NULL && i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            pre->behavior = rows[i].behavior;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "%s: %s.behavior: %s: expected Removed, Isolated, MergedWithPrevious, MergedWithNext "
            "or Contiguous",
            t->path, where, name == NULL ? "not a string" : name);
}

static enum bt_code metaspace_prepend(const struct bt_tokenizer *t, const json_t *j,
                                      const char *where, enum tok_prepend *out,
                                      struct bt_error *err)
{
    static const struct {
        const char *name;
        enum tok_prepend prepend;
    } rows[] = {
        {"always", TOK_PREPEND_ALWAYS}, {"first", TOK_PREPEND_FIRST}, {"never", TOK_PREPEND_NEVER}};
    const json_t *scheme = json_object_get(j, "prepend_scheme");
    if (scheme == NULL) { /* the older spelling */
        bool add = true;
        BT_TRY(get_bool(t, j, where, "add_prefix_space", true, &add, err));
        *out = add ? TOK_PREPEND_ALWAYS : TOK_PREPEND_NEVER;
        return BT_OK;
    }
    const char *name = json_string_value(scheme);
    for (size_t i = 0; name != NULL && i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *out = rows[i].prepend;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.prepend_scheme: %s: expected always, first or never",
            t->path, where, name == NULL ? "not a string" : name);
}

static enum bt_code metaspace_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                   const char **replacement, enum tok_prepend *prepend, bool *split,
                                   struct bt_error *err)
{
    BT_TRY(tok_check_keys(
        t, j, where,
        KEYS("type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"),
        err));
    BT_TRY(get_text(t, j, where, "replacement", replacement, err));
    size_t n = strlen(*replacement);
    if (n == 0 || tok_utf8_length(*replacement, n) != n) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.replacement: expected one character, got \"%s\"",
                t->path, where, *replacement);
    }
    BT_TRY(get_bool(t, j, where, "split", true, split, err));
    return metaspace_prepend(t, j, where, prepend, err);
}

static enum bt_code digits_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                struct tok_pre *pre, struct bt_error *err)
{
    bool individual = false;
    BT_TRY(tok_check_keys(t, j, where, KEYS("type", "individual_digits"), err));
    BT_TRY(get_bool(t, j, where, "individual_digits", false, &individual, err));
    pre->behavior = TOK_ISOLATED;
    return tok_regex_new(individual ? "\\p{N}" : "\\p{N}+", where, &pre->pattern.regex, err);
}

static enum bt_code byte_level_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                    struct tok_pre *pre, struct bt_error *err)
{
    bool use_regex = true;
    BT_TRY(tok_check_keys(t, j, where,
                          KEYS("type", "add_prefix_space", "trim_offsets", "use_regex"), err));
    BT_TRY(get_bool(t, j, where, "add_prefix_space", true, &pre->add_prefix_space, err));
    BT_TRY(get_bool(t, j, where, "use_regex", true, &use_regex, err));
    t->byte_level = true;
    pre->kind = TOK_PRE_BYTE_LEVEL;
    pre->behavior = TOK_ISOLATED;
    return use_regex ? tok_regex_new(GPT2_REGEX, where, &pre->pattern.regex, err) : BT_OK;
}

static enum bt_code pre_tokenizer_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                       const char *type, struct bt_error *err)
{
    if (t->n_pres == TOK_MAX_STEPS) {
        return too_many(t, where, err);
    }
    if (t->byte_level) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.type: \"%s\" after ByteLevel is not supported",
                t->path, where, type);
    }
    struct tok_pre *pre = &t->pres[t->n_pres++];
    pre->kind = TOK_PRE_SPLIT;
    if (strcmp(type, "Split") == 0) {
        return split_step(t, j, where, pre, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return byte_level_step(t, j, where, pre, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        pre->kind = TOK_PRE_METASPACE;
        return metaspace_step(t, j, where, &pre->replacement, &pre->prepend, &pre->split, err);
    }
    if (strcmp(type, "Digits") == 0) {
        return digits_step(t, j, where, pre, err);
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "%s: %s.type: \"%s\" is not supported; supported: Sequence, Split, ByteLevel, "
            "Metaspace, Digits",
            t->path, where, type);
}

enum bt_code tok_parse_pre_tokenizer(struct bt_tokenizer *t, const json_t *j, struct bt_error *err)
{
    return for_each_step(t, j, "pre_tokenizer", "pretokenizers", pre_tokenizer_step, err);
}

static enum bt_code template_ids(struct bt_tokenizer *t, const json_t *special, const char *name,
                                 const char *where, int32_t *ids, int32_t *n, struct bt_error *err)
{
    const json_t *list = json_object_get(json_object_get(special, name), "ids");
    if (!json_is_array(list)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.special_tokens: no ids for \"%s\"", t->path, where,
                name);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= t->n_ids || t->tokens[json_integer_value(id)] == NULL) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.special_tokens.%s.ids[%zu]: not a token's id",
                    t->path, where, name, i);
        }
        if (*n == TOK_MAX_TEMPLATE_IDS) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: more than %d special tokens", t->path, where,
                    TOK_MAX_TEMPLATE_IDS);
        }
        ids[(*n)++] = (int32_t)json_integer_value(id);
    }
    return BT_OK;
}

static enum bt_code template_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                  struct bt_error *err)
{
    BT_TRY(tok_check_keys(t, j, where, KEYS("type", "single", "pair", "special_tokens"), err));
    const json_t *items = json_object_get(j, "single");
    const json_t *special = json_object_get(j, "special_tokens");
    bool seen_text = false;
    if (!json_is_array(items)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.single: expected an array, got %s", t->path, where,
                bt_json_type_name(items));
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        const json_t *text = json_object_get(item, "Sequence");
        const char *name =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        if ((text == NULL) == (name == NULL) || (text != NULL && seen_text)) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: %s.single[%zu]: expected special tokens around one Sequence", t->path,
                    where, i);
        }
        if (text != NULL) {
            seen_text = true;
        } else if (seen_text) {
            BT_TRY(template_ids(t, special, name, where, t->suffix_ids, &t->n_suffix_ids, err));
        } else {
            BT_TRY(template_ids(t, special, name, where, t->prefix_ids, &t->n_prefix_ids, err));
        }
    }
    if (!seen_text) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.single: no Sequence in it", t->path, where);
    }
    return BT_OK;
}

static enum bt_code post_processor_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                        const char *type, struct bt_error *err)
{
    if (strcmp(type, "ByteLevel") == 0) { /* moves offsets only, which are not reported */
        return tok_check_keys(t, j, where,
                              KEYS("type", "add_prefix_space", "trim_offsets", "use_regex"), err);
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (t->n_prefix_ids + t->n_suffix_ids > 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: a second template is not supported", t->path,
                    where);
        }
        return template_step(t, j, where, err);
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "%s: %s.type: \"%s\" is not supported; supported: Sequence, ByteLevel, "
            "TemplateProcessing",
            t->path, where, type);
}

enum bt_code tok_parse_post_processor(struct bt_tokenizer *t, const json_t *j, struct bt_error *err)
{
    return for_each_step(t, j, "post_processor", "processors", post_processor_step, err);
}

/* A Strip after Fuse works on the joined text; only the front can be taken while streaming. */
static enum bt_code strip_joined(struct bt_tokenizer *t, const struct tok_dec *dec,
                                 const char *where, struct bt_error *err)
{
    if (dec->stop != 0 || t->strip_left != 0 || strlen(dec->pattern) != 1) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: %s: after Fuse, only one Strip of one ASCII character at the start is "
                "supported",
                t->path, where);
    }
    t->strip_left = dec->start;
    t->strip_char = dec->pattern[0];
    t->n_decs--;
    return BT_OK;
}

static enum bt_code strip_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                               struct tok_dec *dec, struct bt_error *err)
{
    dec->kind = TOK_DEC_STRIP;
    BT_TRY(tok_check_keys(t, j, where, KEYS("type", "content", "start", "stop"), err));
    BT_TRY(get_text(t, j, where, "content", &dec->pattern, err));
    size_t n = strlen(dec->pattern);
    if (n == 0 || tok_utf8_length(dec->pattern, n) != n) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.content: expected one character, got \"%s\"", t->path,
                where, dec->pattern);
    }
    BT_TRY(get_count(t, j, where, "start", &dec->start, err));
    BT_TRY(get_count(t, j, where, "stop", &dec->stop, err));
    return t->fused ? strip_joined(t, dec, where, err) : BT_OK;
}

static enum bt_code replace_decoder(struct bt_tokenizer *t, const json_t *j, const char *where,
                                    struct tok_dec *dec, struct bt_error *err)
{
    struct tok_pattern pattern = {0};
    dec->kind = TOK_DEC_REPLACE;
    BT_TRY(tok_check_keys(t, j, where, KEYS("type", "pattern", "content"), err));
    BT_TRY(get_text(t, j, where, "content", &dec->content, err));
    BT_TRY(get_pattern(t, j, where, &pattern, err));
    if (pattern.regex != NULL || pattern.n_literal == 0) {
        tok_regex_free(pattern.regex);
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.pattern: only a String is supported in a decoder",
                t->path, where);
    }
    dec->pattern = pattern.literal;
    return BT_OK;
}

static enum bt_code metaspace_decoder(struct bt_tokenizer *t, const json_t *j, const char *where,
                                      struct tok_dec *dec, struct bt_error *err)
{
    enum tok_prepend prepend;
    bool split;
    dec->kind = TOK_DEC_METASPACE;
    BT_TRY(metaspace_step(t, j, where, &dec->pattern, &prepend, &split, err));
    dec->strip_first = prepend != TOK_PREPEND_NEVER;
    return BT_OK;
}

static enum bt_code decoder_step(struct bt_tokenizer *t, const json_t *j, const char *where,
                                 const char *type, struct bt_error *err)
{
    if (t->n_decs == TOK_MAX_STEPS) {
        return too_many(t, where, err);
    }
    if (strcmp(type, "Fuse") == 0) {
        t->fused = true;
        return tok_check_keys(t, j, where, KEYS("type"), err);
    }
    struct tok_dec *dec = &t->decs[t->n_decs++];
    if (strcmp(type, "Strip") == 0) {
        return strip_step(t, j, where, dec, err);
    }
    if (t->fused) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.type: \"%s\" after Fuse is not supported", t->path,
                where, type);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        dec->kind = TOK_DEC_BYTE_LEVEL;
        return tok_check_keys(t, j, where,
                              KEYS("type", "add_prefix_space", "trim_offsets", "use_regex"), err);
    }
    if (strcmp(type, "ByteFallback") == 0) {
        dec->kind = TOK_DEC_BYTE_FALLBACK;
        return tok_check_keys(t, j, where, KEYS("type"), err);
    }
    if (strcmp(type, "Replace") == 0) {
        return replace_decoder(t, j, where, dec, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return metaspace_decoder(t, j, where, dec, err);
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "%s: %s.type: \"%s\" is not supported; supported: Sequence, ByteLevel, ByteFallback, "
            "Replace, Metaspace, Fuse, Strip",
            t->path, where, type);
}

enum bt_code tok_parse_decoder(struct bt_tokenizer *t, const json_t *j, struct bt_error *err)
{
    if (j == NULL || json_is_null(j)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: decoder: null is not supported", t->path);
    }
    return for_each_step(t, j, "decoder", "decoders", decoder_step, err);
}
