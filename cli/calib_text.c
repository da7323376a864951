#include "cli/calib_text.h"

#include "cli/read_file.h"
#include "engine/model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_token_file(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".bin") == 0;
}

static enum bt_code take_ids(const char *path, const char *bytes, size_t n_bytes,
                             struct bt_ids *out, struct bt_error *err)
{
    if (n_bytes % 2 != 0) {
        BT_FAIL(err, BT_ERR_INPUT, (int64_t)n_bytes,
                "%s: %zu bytes are no whole number of 16-bit token ids", path, n_bytes);
    }
    out->n = (int64_t)(n_bytes / 2);
    out->ids = malloc((n_bytes / 2 + 1) * sizeof *out->ids);
    if (out->ids == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, out->n, "%s: no memory for %lld tokens", path,
                (long long)out->n);
    }
    const unsigned char *p = (const unsigned char *)bytes;
    for (int64_t i = 0; i < out->n; i++) {
        out->ids[i] = p[2 * i] | p[2 * i + 1] << 8;
    }
    return BT_OK;
}

static enum bt_code encode(const char *text, size_t n_bytes, const char *model_dir,
                           struct bt_ids *out, struct bt_error *err)
{
    struct bt_tokenizer *tokenizer = NULL;
    BT_TRY(bt_tokenizer_load_dir(model_dir, &tokenizer, err));
    struct bt_encode_opts o = {.skip_template = true};
    enum bt_code code = bt_tokenizer_encode(tokenizer, text, n_bytes, &o, out, err);
    bt_tokenizer_destroy(tokenizer);
    return code;
}

static enum bt_code cut(struct bt_calib_text *t, const struct bt_ids *all, const char *path,
                        int32_t vocab, int32_t samples, struct bt_error *err)
{
    int64_t length = t->sample_tokens;
    int64_t most = all->n / length;
    if (most == 0) {
        BT_FAIL(err, BT_ERR_INPUT, all->n,
                "%s: %lld tokens of text; a sample needs %d (--calib-length)", path,
                (long long)all->n, t->sample_tokens);
    }
    t->n_samples = most < samples ? (int32_t)most : samples;
    t->ids = malloc((size_t)t->n_samples * (size_t)length * sizeof *t->ids);
    char *seen = calloc((size_t)vocab, 1);
    if (t->ids == NULL || seen == NULL) {
        free(seen);
        BT_FAIL(err, BT_ERR_NOMEM, t->n_samples, "%s: no memory for %d samples", path,
                t->n_samples);
    }
    int64_t stride = t->n_samples > 1 ? (all->n - length) / (t->n_samples - 1) : 0;
    for (int64_t i = 0; i < t->n_samples; i++) {
        memcpy(t->ids + i * length, all->ids + i * stride, (size_t)length * sizeof *t->ids);
    }
    for (int64_t i = 0; i < t->n_samples * length; i++) {
        int32_t id = t->ids[i];
        if (id < 0 || id >= vocab) {
            free(seen);
            BT_FAIL(err, BT_ERR_INPUT, id, "%s: token id %d is outside the vocabulary 0..%d", path,
                    id, vocab - 1);
        }
        t->n_distinct += seen[id] == 0;
        seen[id] = 1;
    }
    free(seen);
    return BT_OK;
}

enum bt_code bt_calib_text_read(struct bt_calib_text *t, const char *path, const char *model_dir,
                                int32_t vocab, int32_t samples, int32_t sample_tokens,
                                struct bt_error *err)
{
    BT_ASSERT(samples > 0 && sample_tokens > 0 && vocab > 0);
    *t = (struct bt_calib_text){.sample_tokens = sample_tokens};
    char *text = NULL;
    size_t n_bytes = 0;
    BT_TRY(bt_read_file(path, BT_TOK_MAX_TEXT_BYTES, &text, &n_bytes, err));
    struct bt_ids all = {0};
    enum bt_code code = is_token_file(path) ? take_ids(path, text, n_bytes, &all, err)
                                            : encode(text, n_bytes, model_dir, &all, err);
    free(text);
    if (code == BT_OK) {
        t->n_text_tokens = all.n;
        code = cut(t, &all, path, vocab, samples, err);
    }
    bt_ids_fini(&all);
    if (code != BT_OK) {
        bt_calib_text_fini(t);
    }
    return code;
}

void bt_calib_text_fini(struct bt_calib_text *t)
{
    free(t->ids);
    *t = (struct bt_calib_text){0};
}
