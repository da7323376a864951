#include "cli/eval_file.h"

#include "engine/core/rng.h"

#include <jansson.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { HASH_BYTES = 17 };

static void hash_of(const int32_t *ids, int32_t n, char out[HASH_BYTES])
{
    uint64_t h = (uint64_t)n;
    for (int32_t i = 0; i < n; i++) {
        h = bt_hash_combine(h, (uint64_t)(uint32_t)ids[i]);
    }
    (void)snprintf(out, HASH_BYTES, "%016" PRIx64, h);
}

enum bt_code bt_eval_file_write(const char *path, const struct bt_eval_windows *w,
                                const int32_t *ids, struct bt_error *err)
{
    json_t *rows = json_array();
    for (int32_t i = 0; i < w->n; i++) {
        char hash[HASH_BYTES];
        hash_of(ids + (int64_t)i * w->n_tokens, w->n_tokens + 1, hash);
        (void)json_array_append_new(rows, json_pack("{s:s,s:f,s:f}", "tokens", hash, "nll",
                                                    w->nll[i], "accuracy", w->accuracy[i]));
    }
    json_t *doc = json_pack("{s:i,s:o}", "window_tokens", (int)w->n_tokens, "windows", rows);
    if (doc == NULL || json_array_size(rows) != (size_t)w->n) {
        json_decref(doc);
        BT_FAIL(err, BT_ERR_NOMEM, w->n, "%s: no memory for %d windows", path, w->n);
    }
    int failed = json_dump_file(doc, path, JSON_INDENT(1));
    int why = errno;
    json_decref(doc);
    if (failed != 0) {
        BT_FAIL(err, BT_ERR_IO, why, "%s: cannot write: %s", path, strerror(why));
    }
    return BT_OK;
}

static enum bt_code read_rows(const char *path, const json_t *doc, const int32_t *ids,
                              struct bt_eval_windows *w, struct bt_error *err)
{
    const json_t *rows = json_object_get(doc, "windows");
    json_int_t n_tokens = json_integer_value(json_object_get(doc, "window_tokens"));
    if (!json_is_array(rows) || n_tokens != w->n_tokens || json_array_size(rows) < (size_t)w->n) {
        BT_FAIL(err, BT_ERR_INPUT, n_tokens,
                "%s: %zu windows of %lld tokens; the comparison needs %d of %d", path,
                json_array_size(rows), (long long)n_tokens, w->n, w->n_tokens);
    }
    for (int32_t i = 0; i < w->n; i++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        const char *tokens = json_string_value(json_object_get(row, "tokens"));
        const json_t *nll = json_object_get(row, "nll");
        const json_t *accuracy = json_object_get(row, "accuracy");
        char hash[HASH_BYTES];
        hash_of(ids + (int64_t)i * w->n_tokens, w->n_tokens + 1, hash);
        if (tokens == NULL || strcmp(tokens, hash) != 0) {
            BT_FAIL(err, BT_ERR_INPUT, i, "%s: window %d is of another text", path, i);
        }
        if (!json_is_number(nll) || !json_is_number(accuracy)) {
            BT_FAIL(err, BT_ERR_INPUT, i, "%s: window %d has no numbers nll and accuracy", path, i);
        }
        w->nll[i] = json_number_value(nll);
        w->accuracy[i] = json_number_value(accuracy);
    }
    return BT_OK;
}

enum bt_code bt_eval_file_read(const char *path, int32_t n, int32_t n_tokens, const int32_t *ids,
                               struct bt_eval_windows *out, struct bt_error *err)
{
    json_error_t why;
    json_t *doc = json_load_file(path, 0, &why);
    if (doc == NULL) {
        bool unread = json_error_code(&why) == json_error_cannot_open_file;
        BT_FAIL(err, unread ? BT_ERR_IO : BT_ERR_INPUT, why.line, "%s: %s", path, why.text);
    }
    enum bt_code code = bt_eval_windows_init(out, n, n_tokens, err);
    if (code == BT_OK) {
        code = read_rows(path, doc, ids, out, err);
        if (code != BT_OK) {
            bt_eval_windows_fini(out);
        }
    }
    json_decref(doc);
    return code;
}
