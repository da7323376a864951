#include "engine/model/model_write.h"

#include "engine/model/json_file.h"
#include "engine/model/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
    NAME_BYTES = 160,
    PER_LINEAR = 8, /* most tensors of one linear layer */
    PER_LAYER = 4 + PER_LINEAR * BT_LINEARS,
};

struct writer {
    const struct bt_model *m;
    struct bt_arena arena; /* names and packed weights until the file is written */
    struct bt_st_entry *entries;
    int32_t n;
    int32_t cap;
};

static enum bt_code no_memory(struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_NOMEM, 0, "writing a checkpoint: no memory");
}

static enum bt_code add(struct writer *w, const char *base, const char *suffix, enum bt_dtype dtype,
                        int32_t n_dims, int64_t rows, int64_t cols, const void *bytes,
                        struct bt_error *err)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%s", base, suffix);
    char *kept = bt_arena_strdup(&w->arena, name);
    if (kept == NULL) {
        return no_memory(err);
    }
    BT_ASSERT(w->n < w->cap);
    struct bt_st_entry *e = &w->entries[w->n++];
    *e = (struct bt_st_entry){.name = kept, .dtype = dtype, .n_dims = n_dims, .bytes = bytes};
    e->shape[0] = n_dims == 1 ? cols : rows;
    e->shape[1] = cols;
    return BT_OK;
}

static enum bt_code add_tensor(struct writer *w, const char *base, const char *suffix, bool vector,
                               const struct bt_tensor *t, struct bt_error *err)
{
    if (t->p == NULL) {
        return BT_OK;
    }
    return add(w, base, suffix, t->dtype, vector ? 1 : 2, t->rows, t->cols, t->p, err);
}

static void *scratch(struct writer *w, size_t n, size_t size)
{
    return bt_arena_take_zeroed(&w->arena, n, size);
}

/* weight_packed i32 [N, ceil(K/8)] in the order of inputs, each value + 8, low nibble first. */
static enum bt_code add_packed(struct writer *w, const char *base, const struct bt_qweight *q,
                               struct bt_error *err)
{
    size_t words_per_row = ((size_t)q->n_in + 7) / 8;
    uint32_t *words = scratch(w, (size_t)q->n_out * words_per_row, sizeof *words);
    int64_t *shape = scratch(w, 2, sizeof *shape);
    if (words == NULL || shape == NULL) {
        return no_memory(err);
    }
    for (int32_t n = 0; n < q->n_out; n++) {
        uint32_t *row = words + (size_t)n * words_per_row;
        for (int32_t j = 0; j < q->n_in; j++) {
            int32_t k = q->perm == NULL ? j : q->perm[j];
            row[k / 8] |= (uint32_t)(bt_qweight_at(q, n, j) + 8) << 4 * (k % 8);
        }
    }
    shape[0] = q->n_out;
    shape[1] = q->n_in;
    BT_TRY(add(w, base, ".weight_packed", BT_DTYPE_I32, 2, q->n_out, (int64_t)words_per_row, words,
               err));
    return add(w, base, ".weight_shape", BT_DTYPE_I64, 1, 1, 2, shape, err);
}

/* weight_zero_point i32 [ceil(N/8), G], eight outputs a word, zero + 8. */
static enum bt_code add_zeros(struct writer *w, const char *base, const struct bt_qweight *q,
                              struct bt_error *err)
{
    size_t rows = ((size_t)q->n_out + 7) / 8;
    size_t n_groups = (size_t)q->n_groups;
    uint32_t *words = scratch(w, rows * n_groups, sizeof *words);
    if (words == NULL) {
        return no_memory(err);
    }
    for (size_t n = 0; n < (size_t)q->n_out; n++) {
        for (size_t g = 0; g < n_groups; g++) {
            int32_t zero = q->zero == NULL ? 0 : q->zero[n * n_groups + g];
            words[n / 8 * n_groups + g] |= (uint32_t)(zero + 8) << 4 * (n % 8);
        }
    }
    return add(w, base, ".weight_zero_point", BT_DTYPE_I32, 2, (int64_t)rows, q->n_groups, words,
               err);
}

static enum bt_code add_group_index(struct writer *w, const char *base, const struct bt_qweight *q,
                                    struct bt_error *err)
{
    int32_t *group_of = scratch(w, (size_t)q->n_in, sizeof *group_of);
    if (group_of == NULL) {
        return no_memory(err);
    }
    for (int32_t j = 0; j < q->n_in; j++) {
        group_of[q->perm == NULL ? j : q->perm[j]] = j / q->group;
    }
    return add(w, base, ".weight_g_idx", BT_DTYPE_I32, 1, 1, q->n_in, group_of, err);
}

static enum bt_code add_quantised(struct writer *w, const char *base, const struct bt_linear *l,
                                  struct bt_error *err)
{
    const struct bt_qweight *q = &l->q;
    bool one = q->scale_stride == 0;
    if (q->bits == 8 && (q->zero != NULL || q->perm != NULL)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: int8 with zero points or g_idx cannot be written", base);
    }
    if (q->bits == 8) {
        BT_TRY(add(w, base, ".weight", BT_DTYPE_I8, 2, q->n_out, q->n_in, q->q, err));
    } else {
        BT_TRY(add_packed(w, base, q, err));
    }
    BT_TRY(add(w, base, ".weight_scale", q->scale_dtype, one ? 1 : 2, one ? 1 : q->n_out,
               one ? 1 : q->n_groups, q->scale, err));
    if (!w->m->config.quant.symmetric) {
        BT_TRY(add_zeros(w, base, q, err));
    }
    if (w->m->config.quant.desc_act) {
        BT_TRY(add_group_index(w, base, q, err));
    }
    if (l->act == BT_ACT_INT8_STATIC) {
        BT_TRY(add(w, base, ".input_scale", BT_DTYPE_F32, 1, 1, 1, &l->act_scale, err));
    }
    return BT_OK;
}

static enum bt_code add_linear(struct writer *w, const char *base, const struct bt_linear *l,
                               struct bt_error *err)
{
    if (l->n_out == 0) {
        return BT_OK;
    }
    if (l->quantised) {
        BT_TRY(add_quantised(w, base, l, err));
    } else {
        BT_TRY(add_tensor(w, base, ".weight", false, &l->w, err));
    }
    return add_tensor(w, base, ".bias", true, &l->bias, err);
}

static enum bt_code add_layer(struct writer *w, int32_t i, struct bt_error *err)
{
    const struct bt_layer *layer = &w->m->layers[i];
    char base[NAME_BYTES];
    (void)snprintf(base, sizeof base, "model.layers.%d", i);
    BT_TRY(add_tensor(w, base, ".input_layernorm.weight", true, &layer->attn_norm, err));
    BT_TRY(add_tensor(w, base, ".post_attention_layernorm.weight", true, &layer->mlp_norm, err));
    BT_TRY(add_tensor(w, base, ".self_attn.q_norm.weight", true, &layer->q_norm, err));
    BT_TRY(add_tensor(w, base, ".self_attn.k_norm.weight", true, &layer->k_norm, err));
    for (int id = 0; id < BT_LINEARS; id++) {
        bt_linear_path(i, (enum bt_linear_id)id, base, sizeof base);
        BT_TRY(add_linear(w, base, &layer->linear[id], err));
    }
    return BT_OK;
}

static enum bt_code write_weights(struct writer *w, const char *out_dir, struct bt_error *err)
{
    const struct bt_model *m = w->m;
    char path[BT_PATH_BYTES];
    w->cap = m->config.arch.n_layers * PER_LAYER + 2 * PER_LINEAR + 1;
    BT_ARENA_ARRAY(&w->arena, w->entries, w->cap, err);
    if (m->embed.quantised) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "%s: quantised embeddings cannot be written; they can be asked for when loading",
                out_dir);
    }
    BT_TRY(add_tensor(w, "model.embed_tokens", ".weight", false, &m->embed.w, err));
    for (int32_t i = 0; i < m->config.arch.n_layers; i++) {
        BT_TRY(add_layer(w, i, err));
    }
    BT_TRY(add_tensor(w, "model.norm", ".weight", true, &m->final_norm, err));
    if (!m->head_is_embed) {
        BT_TRY(add_linear(w, "lm_head", &m->lm_head, err));
    }
    BT_TRY(bt_path_join(path, sizeof path, out_dir, "model.safetensors", err));
    return bt_safetensors_write(path, w->entries, w->n, err);
}

static json_t *activations_json(enum bt_act_format act)
{
    if (act != BT_ACT_INT8_DYNAMIC && act != BT_ACT_INT8_STATIC) {
        return json_null();
    }
    bool dynamic = act == BT_ACT_INT8_DYNAMIC;
    return json_pack("{s:i,s:s,s:b,s:s,s:b}", "num_bits", 8, "type", "int", "symmetric", 1,
                     "strategy", dynamic ? "token" : "tensor", "dynamic", dynamic);
}

/* Modules that stayed dense. */
static json_t *ignored_json(const struct bt_model *m)
{
    json_t *list = json_array();
    if (!m->lm_head.quantised) {
        (void)json_array_append_new(list, json_string("lm_head"));
    }
    for (int32_t i = 0; i < m->config.arch.n_layers; i++) {
        for (int id = 0; id < BT_LINEARS; id++) {
            const struct bt_linear *l = &m->layers[i].linear[id];
            char path[NAME_BYTES];
            if (l->n_out > 0 && !l->quantised) {
                bt_linear_path(i, (enum bt_linear_id)id, path, sizeof path);
                (void)json_array_append_new(list, json_string(path));
            }
        }
    }
    return list;
}

static json_t *quantization_json(const struct bt_model *m)
{
    const struct bt_quant_config *q = &m->config.quant;
    bool group = q->group_size > 0;
    bool one = q->weights == BT_WEIGHT_INT8_TENSOR || q->weights == BT_WEIGHT_INT4_TENSOR;
    json_t *weights =
        json_pack("{s:i,s:s,s:b,s:s,s:o,s:b,s:o}", "num_bits", (int)q->bits, "type", "int",
                  "symmetric", (int)q->symmetric, "strategy",
                  group ? "group"
                  : one ? "tensor"
                        : "channel",
                  "group_size", group ? json_integer(q->group_size) : json_null(), "dynamic", 0,
                  "actorder", q->desc_act ? json_string("group") : json_null());
    /* In the group too: readers take int8 weights without int8 activations for packed otherwise. */
    const char *format = q->bits == 4 ? "pack-quantized" : "int-quantized";
    json_t *groups = json_pack("{s:{s:s,s:[s],s:o,s:o,s:n}}", "group_0", "format", format,
                               "targets", "Linear", "weights", weights, "input_activations",
                               activations_json(q->activations), "output_activations");
    return json_pack("{s:s,s:s,s:s,s:o,s:n,s:o}", "quant_method", "compressed-tensors", "format",
                     format, "quantization_status", "compressed", "ignore", ignored_json(m),
                     "kv_cache_scheme", "config_groups", groups);
}

static enum bt_code write_config(const struct bt_model *m, const char *out_dir,
                                 struct bt_error *err)
{
    char from[BT_PATH_BYTES];
    char to[BT_PATH_BYTES];
    json_t *root;
    BT_TRY(bt_path_join(from, sizeof from, m->dir, "config.json", err));
    BT_TRY(bt_path_join(to, sizeof to, out_dir, "config.json", err));
    BT_TRY(bt_json_load_object(from, 16 << 20, &root, err));
    bool ok = true;
    if (m->config.quant.layout == BT_QUANT_NONE) {
        (void)json_object_del(root, "quantization_config");
    } else {
        ok = json_object_set_new(root, "quantization_config", quantization_json(m)) == 0;
    }
    if (ok && m->config.arch.tie_embeddings && !m->head_is_embed) {
        ok = json_object_set_new(root, "tie_word_embeddings", json_false()) == 0;
    }
    enum bt_code code = ok ? bt_json_save(to, root, err) : no_memory(err);
    json_decref(root);
    return code;
}

static enum bt_code copy_file(const char *from, const char *to, struct bt_error *err)
{
    FILE *in = fopen(from, "rb");
    FILE *out = in == NULL ? NULL : fopen(to, "wb");
    if (out == NULL) {
        int saved = errno;
        if (in != NULL) {
            (void)fclose(in);
        }
        BT_FAIL(err, BT_ERR_IO, saved, "%s: %s", in == NULL ? from : to, strerror(saved));
    }
    char buf[65536];
    size_t n;
    bool ok = true;
    while (ok && (n = fread(buf, 1, sizeof buf, in)) > 0) {
        ok = fwrite(buf, 1, n, out) == n;
    }
    ok = ok && ferror(in) == 0;
    (void)fclose(in);
    ok = fclose(out) == 0 && ok;
    if (!ok) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: could not be copied to %s", from, to);
    }
    return BT_OK;
}

static enum bt_code copy_companions(const struct bt_model *m, const char *out_dir,
                                    struct bt_error *err)
{
    static const char *const names[] = {
        "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
        "tokenizer.model",         "vocab.json",        "merges.txt",
        "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
        "chat_template.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[BT_PATH_BYTES];
        char to[BT_PATH_BYTES];
        BT_TRY(bt_path_join(from, sizeof from, m->dir, names[i], err));
        BT_TRY(bt_path_join(to, sizeof to, out_dir, names[i], err));
        if (bt_path_exists(from)) {
            BT_TRY(copy_file(from, to, err));
        }
    }
    return BT_OK;
}

static enum bt_code write_cover(const struct bt_model *m, const char *out_dir, struct bt_error *err)
{
    char path[BT_PATH_BYTES];
    if (m->config.quant.activations != BT_ACT_INT8_STATIC) {
        return BT_OK;
    }
    BT_TRY(bt_path_join(path, sizeof path, out_dir, "berth_calibration.json", err));
    json_t *root =
        json_pack("{s:I,s:i,s:f}", "n_tokens", (json_int_t)m->cover.n_tokens, "max_tokens",
                  (int)m->cover.max_tokens, "clipped_fraction", m->cover.clipped_fraction);
    enum bt_code code = root == NULL ? no_memory(err) : bt_json_save(path, root, err);
    json_decref(root);
    return code;
}

static enum bt_code check(const struct bt_model *m, const char *out_dir, struct bt_error *err)
{
    struct stat a;
    struct stat b;
    if (m->dir[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: random weights have no config.json to write", out_dir);
    }
    if (mkdir(out_dir, 0777) != 0 && errno != EEXIST) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", out_dir, strerror(errno));
    }
    if (stat(m->dir, &a) == 0 && stat(out_dir, &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: is the model's own folder", out_dir);
    }
    return BT_OK;
}

enum bt_code bt_model_write(const struct bt_model *m, const char *out_dir, struct bt_error *err)
{
    BT_TRY(check(m, out_dir, err));
    struct writer w = {.m = m};
    bt_arena_init(&w.arena, 0);
    enum bt_code code = write_weights(&w, out_dir, err);
    bt_arena_fini(&w.arena);
    BT_TRY(code);
    BT_TRY(write_config(m, out_dir, err));
    BT_TRY(write_cover(m, out_dir, err));
    return copy_companions(m, out_dir, err);
}
