#include "cli/calib_text.h"

#include "cli/files.h"
#include "engine/model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* All tokens of a file: ids of a .bin, else a text's. */
static enum bt_code read_ids(const char *path, const char *model_dir, struct bt_ids *out,
                             struct bt_error *err)
{
    if (bt_ends_with(path, ".bin")) {
        return bt_read_token_file(path, out, err);
    }
    char *text = NULL;
    size_t n_bytes = 0;
    BT_TRY(bt_read_file(path, &text, &n_bytes, err));
    struct bt_tokenizer *tokenizer = NULL;
    enum bt_code code = bt_tokenizer_load_dir(model_dir, &tokenizer, err);
    if (code == BT_OK) {
        struct bt_encode_opts o = {.skip_template = true};
        code = bt_tokenizer_encode(tokenizer, text, n_bytes, &o, out, err);
    }
    bt_tokenizer_destroy(tokenizer);
    free(text);
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
    struct bt_ids all = {0};
    enum bt_code code = read_ids(path, model_dir, &all, err);
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
