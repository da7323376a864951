/* Loads tokenizer.json: vocabulary, merges, added tokens; the steps around them are tok_steps.c's.
 */
#include "engine/model/tokenizer.h"

#include "engine/core/rng.h"
#include "engine/model/json_file.h"
#include "engine/model/tok_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOK_MAX_FILE_BYTES = 256 * 1000 * 1000,
    TOK_MAX_MERGES = 1 << 23,
    TOK_MAX_TOKEN_BYTES = 1 << 16,
};

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static enum bt_code no_memory(const struct bt_tokenizer *t, struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory", t->path);
}

static enum bt_code check_id(const struct bt_tokenizer *t, const char *where, const char *token,
                             const json_t *id, struct bt_error *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= BT_TOK_MAX_IDS) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: \"%.64s\": expected an id 0..%d", t->path, where,
                token, BT_TOK_MAX_IDS - 1);
    }
    return BT_OK;
}

static enum bt_code count_ids(struct bt_tokenizer *t, json_t *vocab, const json_t *added,
                              struct bt_error *err)
{
    const char *token;
    json_t *id;
    json_int_t n = 0;
    if (!json_is_object(vocab)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.vocab: expected an object, got %s", t->path,
                bt_json_type_name(vocab));
    }
    json_object_foreach(vocab, token, id)
    {
        BT_TRY(check_id(t, "model.vocab", token, id, err));
        n = json_integer_value(id) >= n ? json_integer_value(id) + 1 : n;
    }
    if (added != NULL && !json_is_array(added)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: added_tokens: expected an array, got %s", t->path,
                bt_json_type_name(added));
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *aid = json_object_get(json_array_get(added, i), "id");
        const char *content =
            json_string_value(json_object_get(json_array_get(added, i), "content"));
        BT_TRY(check_id(t, "added_tokens", content == NULL ? "" : content, aid, err));
        n = json_integer_value(aid) >= n ? json_integer_value(aid) + 1 : n;
    }
    if (n == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.vocab: empty", t->path);
    }
    t->n_ids = (int32_t)n;
    return BT_OK;
}

/* Gives the id its text; both must be free. */
static enum bt_code define(struct bt_tokenizer *t, const char *where, const char *token, int32_t id,
                           struct bt_error *err)
{
    size_t n = strlen(token);
    if (n > TOK_MAX_TOKEN_BYTES) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: a token of %zu bytes, at most %d are allowed",
                t->path, where, n, TOK_MAX_TOKEN_BYTES);
    }
    if (t->tokens[id] != NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: id %d is both \"%.64s\" and \"%.64s\"", t->path,
                where, id, t->tokens[id], token);
    }
    char *copy = bt_arena_strdup(&t->arena, token);
    if (copy == NULL) {
        return no_memory(t, err);
    }
    if (!tok_map_add(&t->vocab, copy, n, id)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: \"%.64s\" has two ids", t->path, where, token);
    }
    t->tokens[id] = copy;
    return BT_OK;
}

static enum bt_code load_vocab(struct bt_tokenizer *t, json_t *vocab, const json_t *added,
                               struct bt_error *err)
{
    const char *token;
    json_t *id;
    BT_TRY(count_ids(t, vocab, added, err));
    BT_ARENA_ARRAY(&t->arena, t->tokens, t->n_ids, err);
    BT_ARENA_ARRAY(&t->arena, t->bytes, t->n_ids, err);
    BT_ARENA_ARRAY(&t->arena, t->n_bytes, t->n_ids, err);
    BT_ARENA_ARRAY(&t->arena, t->flags, t->n_ids, err);
    size_t n = json_object_size(vocab) + json_array_size(added);
    BT_TRY(tok_map_init(&t->vocab, &t->arena, n, err));
    json_object_foreach(vocab, token, id)
    {
        BT_TRY(define(t, "model.vocab", token, (int32_t)json_integer_value(id), err));
    }
    return BT_OK;
}

/* The two halves of a merge: "a b" or ["a", "b"]. The string form cannot hold spaces inside. */
static bool merge_halves(const json_t *merge, const char **a, size_t *n_a, const char **b,
                         size_t *n_b)
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        const char *space = strchr(text, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) {
            return false;
        }
        *a = text;
        *n_a = (size_t)(space - text);
        *b = space + 1;
        *n_b = strlen(space + 1);
        return true;
    }
    *a = json_string_value(json_array_get(merge, 0));
    *b = json_string_value(json_array_get(merge, 1));
    if (json_array_size(merge) != 2 || *a == NULL || *b == NULL) {
        return false;
    }
    *n_a = json_string_length(json_array_get(merge, 0));
    *n_b = json_string_length(json_array_get(merge, 1));
    return true;
}

static enum bt_code load_merge(struct bt_tokenizer *t, const json_t *merge, int32_t rank,
                               struct bt_bytes *joined, struct bt_error *err)
{
    const char *a;
    const char *b;
    size_t n_a;
    size_t n_b;
    if (!merge_halves(merge, &a, &n_a, &b, &n_b)) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: model.merges[%d]: expected \"left right\" or [\"left\", \"right\"]", t->path,
                rank);
    }
    joined->n = 0;
    BT_TRY(tok_bytes_append(joined, a, n_a, err));
    BT_TRY(tok_bytes_append(joined, b, n_b, err));
    int32_t left = tok_map_find(&t->vocab, a, n_a);
    int32_t right = tok_map_find(&t->vocab, b, n_b);
    int32_t id = tok_map_find(&t->vocab, joined->p, joined->n);
    if (left < 0 || right < 0 || id < 0) {
        const char *missing = left < 0 ? a : right < 0 ? b : joined->p;
        size_t n = left < 0 ? n_a : right < 0 ? n_b : joined->n;
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.merges[%d]: \"%.*s\" is not in the vocabulary",
                t->path, rank, (int)(n < 64 ? n : 64), missing);
    }
    tok_merges_add(&t->merges, left, right, rank, id);
    return BT_OK;
}

static enum bt_code load_merges(struct bt_tokenizer *t, const json_t *merges, struct bt_error *err)
{
    size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n > TOK_MAX_MERGES) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.merges: expected an array of at most %d, got %s",
                t->path, TOK_MAX_MERGES, bt_json_type_name(merges));
    }
    BT_TRY(tok_merges_init(&t->merges, &t->arena, n, err));
    struct bt_bytes joined = {0};
    enum bt_code code = BT_OK;
    for (size_t i = 0; i < n && code == BT_OK; i++) {
        code = load_merge(t, json_array_get(merges, i), (int32_t)i, &joined, err);
    }
    bt_bytes_fini(&joined);
    return code;
}

static enum bt_code model_flag(const struct bt_tokenizer *t, const json_t *model, const char *key,
                               bool *out, struct bt_error *err)
{
    const json_t *v = json_object_get(model, key);
    if (v != NULL && !json_is_boolean(v) && !json_is_null(v)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.%s: expected true or false, got %s", t->path, key,
                bt_json_type_name(v));
    }
    *out = json_is_true(v);
    return BT_OK;
}

static enum bt_code check_model(struct bt_tokenizer *t, const json_t *model, struct bt_error *err)
{
    BT_TRY(tok_check_keys(t, model, "model",
                          KEYS("type", "vocab", "merges", "unk_token", "dropout", "fuse_unk",
                               "byte_fallback", "ignore_merges", "continuing_subword_prefix",
                               "end_of_word_suffix"),
                          err));
    const json_t *type = json_object_get(model, "type");
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.type: %s is not supported; supported: BPE",
                t->path, json_is_string(type) ? json_string_value(type) : bt_json_type_name(type));
    }
    static const char *const unused[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
        const json_t *v = json_object_get(model, unused[i]);
        bool empty = v == NULL || json_is_null(v) || json_string_length(v) == 0;
        if (!empty || (v != NULL && !json_is_null(v) && !json_is_string(v))) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.%s: only null or \"\" is supported", t->path,
                    unused[i]);
        }
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout != NULL && !json_is_null(dropout) && json_number_value(dropout) != 0.0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.dropout: only null or 0 is supported", t->path);
    }
    BT_TRY(model_flag(t, model, "fuse_unk", &t->fuse_unk, err));
    BT_TRY(model_flag(t, model, "byte_fallback", &t->byte_fallback, err));
    return model_flag(t, model, "ignore_merges", &t->ignore_merges, err);
}

static enum bt_code find_unknown(struct bt_tokenizer *t, const json_t *model, struct bt_error *err)
{
    const json_t *unk = json_object_get(model, "unk_token");
    t->unk_id = -1;
    if (unk == NULL || json_is_null(unk)) {
        return BT_OK;
    }
    if (json_is_string(unk)) {
        t->unk_id = tok_map_find(&t->vocab, json_string_value(unk), json_string_length(unk));
    }
    if (t->unk_id < 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: model.unk_token: not a token of the vocabulary",
                t->path);
    }
    return BT_OK;
}

static void find_bytes(struct bt_tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char name[8];
        if (t->byte_level) {
            char c = (char)(uint8_t)b;
            struct bt_bytes key = {.p = name, .cap = sizeof name};
            struct bt_error none = {0};
            BT_ASSERT(tok_spell_bytes(&c, 1, &key, &none) == BT_OK);
            t->byte_ids[b] = tok_map_find(&t->vocab, key.p, key.n);
        } else {
            int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
            t->byte_ids[b] = tok_map_find(&t->vocab, name, (size_t)n);
        }
    }
}

/* Words may be encoded one by one where no token runs from another character into a space mark. */
static bool words_are_independent(const struct bt_tokenizer *t)
{
    const size_t n_mark = sizeof TOK_SPACE_MARK - 1;
    if (t->byte_level || tok_map_find(&t->vocab, TOK_SPACE_MARK, n_mark) < 0) {
        return false;
    }
    for (uint32_t i = 0; i <= t->merges.mask; i++) {
        const struct tok_merge *m = &t->merges.slots[i];
        if (m->left < 0) {
            continue;
        }
        const char *text = t->tokens[m->id];
        const char *mark = text;
        while (strncmp(mark, TOK_SPACE_MARK, n_mark) == 0) {
            mark += n_mark;
        }
        if (strstr(mark, TOK_SPACE_MARK) != NULL) {
            return false;
        }
    }
    return true;
}

static enum bt_code added_flag(const struct bt_tokenizer *t, const json_t *j, size_t i,
                               const char *key, bool missing, bool *out, struct bt_error *err)
{
    const json_t *v = json_object_get(j, key);
    if (v != NULL && !json_is_boolean(v)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: added_tokens[%zu].%s: expected true or false, got %s",
                t->path, i, key, bt_json_type_name(v));
    }
    *out = v == NULL ? missing : json_is_true(v);
    return BT_OK;
}

static enum bt_code load_added_token(struct bt_tokenizer *t, const json_t *j, size_t i,
                                     struct tok_added *a, struct bt_error *err)
{
    char where[TOK_WHERE_BYTES];
    (void)snprintf(where, sizeof where, "added_tokens[%zu]", i);
    BT_TRY(tok_check_keys(
        t, j, where,
        KEYS("id", "content", "special", "lstrip", "rstrip", "single_word", "normalized"), err));
    const json_t *content = json_object_get(j, "content");
    if (json_string_length(content) == 0 ||
        json_string_length(content) != strlen(json_string_value(content))) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.content: expected a string that is not empty",
                t->path, where);
    }
    BT_TRY(added_flag(t, j, i, "special", false, &a->special, err));
    BT_TRY(added_flag(t, j, i, "lstrip", false, &a->lstrip, err));
    BT_TRY(added_flag(t, j, i, "rstrip", false, &a->rstrip, err));
    BT_TRY(added_flag(t, j, i, "single_word", false, &a->single_word, err));
    BT_TRY(added_flag(t, j, i, "normalized", !a->special, &a->normalized, err));
    a->id = (int32_t)json_integer_value(json_object_get(j, "id"));
    const char *text = json_string_value(content);
    int32_t known = tok_map_find(&t->vocab, text, strlen(text));
    if (known < 0) {
        BT_TRY(define(t, where, text, a->id, err));
    } else if (known != a->id || (t->flags[known] & TOK_ID_ADDED) != 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: \"%.64s\" has id %d already", t->path, where, text,
                known);
    }
    t->flags[a->id] = (uint8_t)(TOK_ID_ADDED | (a->special ? TOK_ID_SPECIAL : 0));
    a->content = t->tokens[a->id];
    a->n_content = strlen(a->content);
    return BT_OK;
}

static enum bt_code load_added(struct bt_tokenizer *t, const json_t *list, struct bt_error *err)
{
    size_t n = json_array_size(list);
    BT_ARENA_ARRAY(&t->arena, t->added, n, err);
    for (size_t i = 0; i < n; i++) {
        BT_TRY(load_added_token(t, json_array_get(list, i), i, &t->added[i], err));
        t->n_added++;
    }
    return BT_OK;
}

static int by_first_byte_longest(const void *pa, const void *pb)
{
    const struct tok_added *a = *(const struct tok_added *const *)pa;
    const struct tok_added *b = *(const struct tok_added *const *)pb;
    if (a->match[0] != b->match[0]) {
        return (uint8_t)a->match[0] < (uint8_t)b->match[0] ? -1 : 1;
    }
    if (a->n_match != b->n_match) {
        return a->n_match > b->n_match ? -1 : 1;
    }
    return a->id < b->id ? -1 : a->id > b->id;
}

static enum bt_code build_matcher(struct bt_tokenizer *t, struct tok_matcher *m, bool normalized,
                                  struct bt_error *err)
{
    int32_t n = 0;
    BT_ARENA_ARRAY(&t->arena, m->tokens, t->n_added, err);
    for (int32_t i = 0; i < t->n_added; i++) {
        if (t->added[i].normalized == normalized && t->added[i].n_match > 0) {
            m->tokens[n++] = &t->added[i];
        }
    }
    qsort(m->tokens, (size_t)n, sizeof *m->tokens, by_first_byte_longest);
    int32_t at = 0;
    for (int b = 0; b < 256; b++) {
        m->first[b] = at;
        while (at < n && (uint8_t)m->tokens[at]->match[0] == b) {
            at++;
        }
    }
    m->first[256] = n;
    return BT_OK;
}

/* Normalised tokens are looked for in normalised text, so they are normalised too. */
static enum bt_code build_matchers(struct bt_tokenizer *t, struct bt_error *err)
{
    for (int32_t i = 0; i < t->n_added; i++) {
        struct tok_added *a = &t->added[i];
        a->match = a->content;
        a->n_match = a->n_content;
        if (!a->normalized) {
            continue;
        }
        const char *text;
        size_t n;
        BT_TRY(tok_normalize(t, a->content, a->n_content, true, &text, &n, err));
        char *copy = bt_arena_take_zeroed(&t->arena, n + 1, 1);
        if (copy == NULL) {
            return no_memory(t, err);
        }
        memcpy(copy, text, n);
        a->match = copy;
        a->n_match = n;
    }
    BT_TRY(build_matcher(t, &t->raw, false, err));
    return build_matcher(t, &t->normalized, true, err);
}

static enum bt_code load_root(struct bt_tokenizer *t, const json_t *root, struct bt_error *err)
{
    /* truncation and padding are left over from training scripts; serving decides lengths. */
    BT_TRY(tok_check_keys(t, root, "tokenizer.json",
                          KEYS("version", "truncation", "padding", "added_tokens", "normalizer",
                               "pre_tokenizer", "post_processor", "decoder", "model"),
                          err));
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    BT_TRY(check_model(t, model, err));
    BT_TRY(load_vocab(t, json_object_get(model, "vocab"), added, err));
    BT_TRY(load_merges(t, json_object_get(model, "merges"), err));
    BT_TRY(find_unknown(t, model, err));
    BT_TRY(load_added(t, added, err));
    BT_TRY(tok_parse_normalizer(t, json_object_get(root, "normalizer"), err));
    BT_TRY(tok_parse_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), err));
    BT_TRY(tok_parse_post_processor(t, json_object_get(root, "post_processor"), err));
    BT_TRY(tok_parse_decoder(t, json_object_get(root, "decoder"), err));
    find_bytes(t);
    t->cut_at_spaces = words_are_independent(t);
    BT_TRY(build_matchers(t, err));
    return tok_build_decoded(t, err);
}

enum bt_code bt_tokenizer_load(const char *path, struct bt_tokenizer **out, struct bt_error *err)
{
    *out = NULL;
    json_t *root;
    BT_TRY(bt_json_load_object(path, TOK_MAX_FILE_BYTES, &root, err));
    struct bt_tokenizer *t = calloc(1, sizeof *t);
    enum bt_code code = BT_OK;
    if (t != NULL) {
        bt_arena_init(&t->arena, 0);
        t->bos_id = -1;
        t->eos_id = -1;
        t->path = bt_arena_strdup(&t->arena, path);
    }
    if (t == NULL || t->path == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "%s: no memory", path);
    } else {
        code = load_root(t, root, err);
    }
    json_decref(root);
    if (code != BT_OK) {
        bt_tokenizer_destroy(t);
        return code;
    }
    *out = t;
    return BT_OK;
}

/* bos_token and friends are a string, or an object with the string as content. */
static enum bt_code config_token(const struct bt_tokenizer *t, const char *path, const json_t *root,
                                 const char *key, int32_t *out, struct bt_error *err)
{
    const json_t *v = json_object_get(root, key);
    if (v == NULL || json_is_null(v)) {
        return BT_OK;
    }
    const char *token = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    *out = token == NULL ? -1 : bt_tokenizer_find(t, token);
    if (*out < 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: %s is not a token of %s", path, key,
                token == NULL ? bt_json_type_name(v) : token, t->path);
    }
    return BT_OK;
}

static enum bt_code read_config(struct bt_tokenizer *t, const char *path, struct bt_error *err)
{
    json_t *root;
    BT_TRY(bt_json_load_object(path, TOK_MAX_FILE_BYTES, &root, err));
    enum bt_code code = config_token(t, path, root, "bos_token", &t->bos_id, err);
    if (code == BT_OK) {
        code = config_token(t, path, root, "eos_token", &t->eos_id, err);
    }
    json_decref(root);
    return code;
}

enum bt_code bt_tokenizer_load_dir(const char *dir, struct bt_tokenizer **out, struct bt_error *err)
{
    char path[BT_PATH_BYTES];
    struct bt_tokenizer *t = NULL;
    *out = NULL;
    BT_TRY(bt_path_join(path, sizeof path, dir, "tokenizer.json", err));
    BT_TRY(bt_tokenizer_load(path, &t, err));
    enum bt_code code = bt_path_join(path, sizeof path, dir, "tokenizer_config.json", err);
    if (code == BT_OK && bt_path_exists(path)) {
        code = read_config(t, path, err);
    }
    if (code != BT_OK) {
        bt_tokenizer_destroy(t);
        return code;
    }
    *out = t;
    return BT_OK;
}

void bt_tokenizer_destroy(struct bt_tokenizer *t)
{
    if (t == NULL) {
        return;
    }
    for (int32_t i = 0; i < t->n_norms; i++) {
        tok_regex_free(t->norms[i].pattern.regex);
    }
    for (int32_t i = 0; i < t->n_pres; i++) {
        tok_regex_free(t->pres[i].pattern.regex);
    }
    for (int i = 0; i < 2; i++) {
        bt_bytes_fini(&t->scratch.normal[i]);
        bt_bytes_fini(&t->scratch.cut[i]);
        free(t->scratch.pieces[i].p);
    }
    bt_bytes_fini(&t->scratch.key);
    free(t->scratch.symbols);
    free(t->scratch.heap);
    free(t->scratch.cache);
    bt_arena_fini(&t->arena);
    free(t);
}

int32_t bt_tokenizer_n_ids(const struct bt_tokenizer *t)
{
    return t->n_ids;
}

int32_t bt_tokenizer_find(const struct bt_tokenizer *t, const char *token)
{
    return tok_map_find(&t->vocab, token, strlen(token));
}

const char *bt_tokenizer_token(const struct bt_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids ? t->tokens[id] : NULL;
}

bool bt_tokenizer_is_special(const struct bt_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && (t->flags[id] & TOK_ID_SPECIAL) != 0;
}

int32_t bt_tokenizer_bos(const struct bt_tokenizer *t)
{
    return t->bos_id;
}

int32_t bt_tokenizer_eos(const struct bt_tokenizer *t)
{
    return t->eos_id;
}

uint64_t bt_tokenizer_vocab_hash(const struct bt_tokenizer *t)
{
    uint64_t hash = (uint64_t)t->n_ids;
    for (int32_t id = 0; id < t->n_ids; id++) {
        const char *token = t->tokens[id];
        hash = bt_hash_bytes(token == NULL ? "" : token, token == NULL ? 0 : strlen(token), hash);
    }
    return hash;
}

enum bt_code bt_tokenizer_check_vocab(const struct bt_tokenizer *t, int32_t n_vocab,
                                      struct bt_error *err)
{
    for (int32_t id = n_vocab; id < t->n_ids; id++) {
        if (t->tokens[id] != NULL) {
            BT_FAIL(err, BT_ERR_INPUT, id,
                    "%s: token \"%.64s\" has id %d, but the model's vocab_size is %d", t->path,
                    t->tokens[id], id, n_vocab);
        }
    }
    return BT_OK;
}

enum bt_code bt_tokenizer_check_same(const struct bt_tokenizer *target,
                                     const struct bt_tokenizer *draft, struct bt_error *err)
{
    int32_t n = target->n_ids > draft->n_ids ? target->n_ids : draft->n_ids;
    for (int32_t id = 0; id < n; id++) {
        const char *a = bt_tokenizer_token(target, id);
        const char *b = bt_tokenizer_token(draft, id);
        if ((a == NULL) != (b == NULL) || (a != NULL && strcmp(a, b) != 0)) {
            BT_FAIL(err, BT_ERR_INPUT, id,
                    "draft and target have different vocabularies: id %d is \"%.64s\" in %s and "
                    "\"%.64s\" in %s",
                    id, a == NULL ? "" : a, target->path, b == NULL ? "" : b, draft->path);
        }
    }
    return BT_OK;
}
