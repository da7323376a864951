/* Quantised matrices as GPTQ, AWQ and compressed-tensors lay them in files, unpacked into
 * bt_qweight. N outputs, K inputs, G groups.
 */
#include "engine/model/model_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 128,               /* outputs unpacked together */
    NIBBLES = 8,              /* 4-bit values in a 32-bit word */
    GPTQ_SYM_V1 = 0x77777777, /* zero 8, stored minus one */
    GPTQ_ONES = 0x11111111,   /* what version 1 lacks in every word of qzeros */
    ZERO4 = 8,                /* the middle of unsigned 4-bit values */
};

static const uint32_t GPTQ_SYM_V2 = 0x88888888u;

/* Nibble i of an AWQ word holds column AWQ_COLUMN[i] of its eight. */
static const int32_t AWQ_COLUMN[NIBBLES] = {0, 2, 4, 6, 1, 3, 5, 7};

static enum bt_code expect(const struct bt_st_tensor *t, enum bt_dtype dtype, int64_t rows,
                           int64_t cols, struct bt_error *err)
{
    const int64_t shape[] = {rows, cols};
    if (t->dtype != dtype) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: dtype %s, expected %s", t->file, t->name,
                bt_dtype_name(t->dtype), bt_dtype_name(dtype));
    }
    return bt_st_tensor_expect(t, 2, shape, err);
}

/* The whole tensor in memory from malloc. */
static enum bt_code slurp(const struct model_reader *r, const struct bt_st_tensor *t, void **out,
                          struct bt_error *err)
{
    *out = malloc((size_t)t->n_bytes + 1);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: %s: no memory for %lld bytes", t->file, t->name,
                (long long)t->n_bytes);
    }
    enum bt_code code = bt_safetensors_read(r->st, t, *out, err);
    if (code != BT_OK) {
        free(*out);
        *out = NULL;
    }
    return code;
}

static bool is_scale_type(enum bt_dtype t)
{
    return t == BT_DTYPE_F16 || t == BT_DTYPE_BF16 || t == BT_DTYPE_F32;
}

/* Puts scales into [N, G] order; by_group says that the file has [G, N]. */
static enum bt_code read_scales(const struct model_reader *r, const struct bt_st_tensor *t,
                                bool by_group, struct bt_qweight *w, struct bt_error *err)
{
    void *raw;
    size_t size = bt_dtype_bytes(w->scale_dtype);
    size_t n_out = w->scale_stride == 0 ? 1 : (size_t)w->n_out;
    size_t n_groups = w->scale_stride == 0 ? 1 : (size_t)w->n_groups;
    BT_TRY(slurp(r, t, &raw, err));
    for (size_t n = 0; n < n_out; n++) {
        for (size_t g = 0; g < n_groups; g++) {
            size_t from = by_group ? g * n_out + n : n * n_groups + g;
            memcpy((char *)w->scale + (n * n_groups + g) * size, (char *)raw + from * size, size);
        }
    }
    free(raw);
    for (size_t n = 0; n < n_out; n++) {
        for (size_t g = 0; g < n_groups; g++) {
            float s = bt_qweight_scale(w, (int32_t)n, (int32_t)g);
            if (!isfinite(s)) {
                BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: scale of row %zu, group %zu is not finite",
                        t->file, t->name, n, g);
            }
        }
    }
    return BT_OK;
}

static enum bt_code new_zeros(struct model_reader *r, struct bt_qweight *w, struct bt_error *err)
{
    w->zero = bt_arena_take_zeroed(&r->m->arena, (size_t)w->n_out * (size_t)w->n_groups, 1);
    if (w->zero == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for zero points", r->path);
    }
    return BT_OK;
}

/* Zero points that are all in the middle are none. */
static void drop_middle_zeros(struct bt_qweight *w)
{
    size_t n = (size_t)w->n_out * (size_t)w->n_groups;
    for (size_t i = 0; w->zero != NULL && i < n; i++) {
        if (w->zero[i] != 0) {
            return;
        }
    }
    w->zero = NULL; /* stays in the arena until the model goes */
}

/* Without its order a matrix quantised by activation order would be read as another matrix. */
static enum bt_code check_order(const struct model_reader *r, const char *name,
                                struct bt_error *err)
{
    if (r->quant.desc_act) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: %s: missing or not set, though quantization_config has an order of "
                "activations (desc_act, actorder)",
                r->path, name);
    }
    return BT_OK;
}

/* The groups of inputs, where a tensor says them. */
static enum bt_code read_group_index(struct model_reader *r, const char *base, const char *suffix,
                                     struct bt_qweight *w, struct bt_error *err)
{
    const struct bt_st_tensor *t = model_find(r, base, suffix);
    const int64_t shape[] = {w->n_in};
    void *raw;
    if (t == NULL) {
        char name[MODEL_NAME_BYTES];
        (void)snprintf(name, sizeof name, "%s%s", base, suffix);
        return check_order(r, name, err);
    }
    if (t->dtype != BT_DTYPE_I32) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: dtype %s, expected I32", t->file, t->name,
                bt_dtype_name(t->dtype));
    }
    BT_TRY(bt_st_tensor_expect(t, 1, shape, err));
    BT_TRY(slurp(r, t, &raw, err));
    const int32_t *group_of = raw;
    bool unset = true; /* compressed-tensors fills it with -1 where no order was used */
    for (int32_t k = 0; k < w->n_in && unset; k++) {
        unset = group_of[k] == -1;
    }
    enum bt_code code = unset ? check_order(r, t->name, err) : BT_OK;
    if (!unset) {
        char what[MODEL_NAME_BYTES + BT_MODEL_DIR_BYTES];
        (void)snprintf(what, sizeof what, "%s: %s", t->file, t->name);
        code = bt_qweight_set_groups(w, &r->m->arena, group_of, what, err);
    }
    free(raw);
    return code;
}

/* Stored columns follow perm; file columns are inputs. */
static int32_t input_of(const struct bt_qweight *w, int32_t j)
{
    return w->perm == NULL ? j : w->perm[j];
}

static bool all_words(const uint32_t *words, size_t n, uint32_t value)
{
    for (size_t i = 0; i < n; i++) {
        if (words[i] != value) {
            return false;
        }
    }
    return true;
}

/* Tools mislabel the two versions. Symmetric checkpoints give themselves away: their zero points
 * are all 8, so the words are 0x77777777 in version 1 and 0x88888888 in version 2. */
static bool gptq_is_v1(struct model_reader *r, const struct bt_st_tensor *t, const uint32_t *words,
                       size_t n)
{
    bool labelled = r->quant.layout == BT_QUANT_GPTQ_V1;
    if (!r->quant.symmetric) {
        return labelled;
    }
    bool v1 = all_words(words, n, GPTQ_SYM_V1);
    bool v2 = all_words(words, n, GPTQ_SYM_V2);
    if (!v1 && !v2) {
        if (!r->told_zeros) {
            bt_model_note(r->m, "%s: says sym, but has zero points; they are used", t->name);
            r->told_zeros = true;
        }
        return labelled;
    }
    if (v1 != labelled && !r->told_version) {
        bt_model_note(r->m, "%s: labelled GPTQ version %d, but the zero points are version %d's",
                      t->name, labelled ? 1 : 2, v1 ? 1 : 2);
        r->told_version = true;
    }
    return v1;
}

/* qzeros i32 [G, N/8]. Version 1 subtracted 0x11111111 from whole words, so that is added back to
 * whole words: a zero point of 0 borrowed from its neighbour, and the carry returns it. */
static enum bt_code read_gptq_zeros(struct model_reader *r, const struct bt_st_tensor *t,
                                    struct bt_qweight *w, struct bt_error *err)
{
    size_t words_per_row = (size_t)w->n_out / NIBBLES;
    size_t n_words = (size_t)w->n_groups * words_per_row;
    void *raw;
    BT_TRY(new_zeros(r, w, err));
    BT_TRY(slurp(r, t, &raw, err));
    uint32_t *words = raw;
    uint32_t add = gptq_is_v1(r, t, words, n_words) ? GPTQ_ONES : 0;
    for (size_t i = 0; i < n_words; i++) {
        uint32_t word = words[i] + add;
        size_t g = i / words_per_row;
        for (size_t b = 0; b < NIBBLES; b++) {
            size_t n = i % words_per_row * NIBBLES + b;
            w->zero[n * (size_t)w->n_groups + g] = (int8_t)((int32_t)(word >> 4 * b & 15) - ZERO4);
        }
    }
    free(raw);
    drop_middle_zeros(w);
    return BT_OK;
}

static enum bt_code check_divisible(const struct model_reader *r, const char *base,
                                    const struct bt_linear *l, bool inputs, struct bt_error *err)
{
    if (l->n_out % NIBBLES != 0 || (inputs && l->n_in % NIBBLES != 0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: [%d, %d] is not a multiple of %d: cannot be packed",
                r->path, base, l->n_out, l->n_in, NIBBLES);
    }
    return BT_OK;
}

static enum bt_code scale_type(const struct bt_st_tensor *t, struct bt_error *err)
{
    if (!is_scale_type(t->dtype)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: dtype %s, expected F16, BF16 or F32", t->file,
                t->name, bt_dtype_name(t->dtype));
    }
    return BT_OK;
}

/* qweight i32 [K/8, N]: eight inputs a word, low nibble first. In tiles of outputs, so that both
 * sides are walked nearly in order. */
static enum bt_code unpack_gptq(const struct model_reader *r, const struct bt_st_tensor *qweight,
                                struct bt_qweight *w, struct bt_error *err)
{
    void *raw;
    int32_t *stored = malloc((size_t)w->n_in * sizeof *stored); /* column of input k */
    if (stored == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: %s: no memory", qweight->file, qweight->name);
    }
    for (int32_t j = 0; j < w->n_in; j++) {
        stored[input_of(w, j)] = j;
    }
    enum bt_code code = slurp(r, qweight, &raw, err);
    if (code != BT_OK) {
        free(stored);
        return code;
    }
    const uint32_t *words = raw;
    for (int32_t first = 0; first < w->n_out; first += TILE) {
        int32_t last = w->n_out - first < TILE ? w->n_out : first + TILE;
        for (int32_t k = 0; k < w->n_in; k += NIBBLES) {
            for (int32_t n = first; n < last; n++) {
                uint32_t word = words[(size_t)(k / NIBBLES) * (size_t)w->n_out + (size_t)n];
                for (int32_t b = 0; b < NIBBLES; b++) {
                    bt_qweight_set(w, n, stored[k + b], (int32_t)(word >> 4 * b & 15) - ZERO4);
                }
            }
        }
    }
    free(raw);
    free(stored);
    return BT_OK;
}

static enum bt_code read_gptq(struct model_reader *r, const char *base,
                              const struct bt_st_tensor *qweight, struct bt_linear *l,
                              struct bt_error *err)
{
    const struct bt_st_tensor *scales;
    const struct bt_st_tensor *qzeros;
    struct bt_qweight *w = &l->q;
    BT_TRY(check_divisible(r, base, l, true, err));
    BT_TRY(model_need(r, base, ".scales", &scales, err));
    BT_TRY(model_need(r, base, ".qzeros", &qzeros, err));
    BT_TRY(scale_type(scales, err));
    BT_TRY(
        bt_qweight_init(w, &r->m->arena, r->quant.weights, l->n_out, l->n_in, scales->dtype, err));
    BT_TRY(expect(qweight, BT_DTYPE_I32, l->n_in / NIBBLES, l->n_out, err));
    BT_TRY(expect(scales, scales->dtype, w->n_groups, l->n_out, err));
    BT_TRY(expect(qzeros, BT_DTYPE_I32, w->n_groups, l->n_out / NIBBLES, err));
    BT_TRY(read_scales(r, scales, true, w, err));
    BT_TRY(read_gptq_zeros(r, qzeros, w, err));
    BT_TRY(read_group_index(r, base, ".g_idx", w, err));
    return unpack_gptq(r, qweight, w, err);
}

/* qweight i32 [K, N/8] and qzeros i32 [G, N/8]: eight outputs a word in AWQ's order; zero points
 * are stored as they are. */
static enum bt_code read_awq(struct model_reader *r, const char *base,
                             const struct bt_st_tensor *qweight, struct bt_linear *l,
                             struct bt_error *err)
{
    const struct bt_st_tensor *scales;
    const struct bt_st_tensor *qzeros;
    struct bt_qweight *w = &l->q;
    BT_TRY(check_divisible(r, base, l, false, err));
    BT_TRY(model_need(r, base, ".scales", &scales, err));
    BT_TRY(model_need(r, base, ".qzeros", &qzeros, err));
    BT_TRY(scale_type(scales, err));
    BT_TRY(
        bt_qweight_init(w, &r->m->arena, r->quant.weights, l->n_out, l->n_in, scales->dtype, err));
    BT_TRY(expect(qweight, BT_DTYPE_I32, l->n_in, l->n_out / NIBBLES, err));
    BT_TRY(expect(scales, scales->dtype, w->n_groups, l->n_out, err));
    BT_TRY(expect(qzeros, BT_DTYPE_I32, w->n_groups, l->n_out / NIBBLES, err));
    BT_TRY(read_scales(r, scales, true, w, err));
    BT_TRY(new_zeros(r, w, err));
    size_t words_per_row = (size_t)l->n_out / NIBBLES;
    void *raw;
    BT_TRY(slurp(r, qzeros, &raw, err));
    const uint32_t *words = raw;
    for (size_t i = 0; i < (size_t)w->n_groups * words_per_row; i++) {
        for (int32_t b = 0; b < NIBBLES; b++) {
            size_t n = i % words_per_row * NIBBLES + (size_t)AWQ_COLUMN[b];
            w->zero[n * (size_t)w->n_groups + i / words_per_row] =
                (int8_t)((int32_t)(words[i] >> 4 * b & 15) - ZERO4);
        }
    }
    free(raw);
    drop_middle_zeros(w);
    BT_TRY(slurp(r, qweight, &raw, err));
    words = raw;
    for (size_t first = 0; first < words_per_row; first += TILE / NIBBLES) {
        size_t last =
            words_per_row - first < TILE / NIBBLES ? words_per_row : first + TILE / NIBBLES;
        for (int32_t k = 0; k < l->n_in; k++) {
            for (size_t c = first; c < last; c++) {
                uint32_t word = words[(size_t)k * words_per_row + c];
                for (int32_t b = 0; b < NIBBLES; b++) {
                    bt_qweight_set(w, (int32_t)c * NIBBLES + AWQ_COLUMN[b], k,
                                   (int32_t)(word >> 4 * b & 15) - ZERO4);
                }
            }
        }
    }
    free(raw);
    return BT_OK;
}

/* weight_shape i64 [2] must agree with the architecture. */
static enum bt_code check_weight_shape(struct model_reader *r, const char *base,
                                       const struct bt_linear *l, struct bt_error *err)
{
    const struct bt_st_tensor *t = model_find(r, base, ".weight_shape");
    int64_t shape[2];
    const int64_t two[] = {2};
    if (t == NULL) {
        return BT_OK;
    }
    if (t->dtype != BT_DTYPE_I64) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: dtype %s, expected I64", t->file, t->name,
                bt_dtype_name(t->dtype));
    }
    BT_TRY(bt_st_tensor_expect(t, 1, two, err));
    BT_TRY(bt_safetensors_read(r->st, t, shape, err));
    if (shape[0] != l->n_out || shape[1] != l->n_in) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: says [%lld, %lld], expected [%d, %d]", t->file,
                t->name, (long long)shape[0], (long long)shape[1], l->n_out, l->n_in);
    }
    return BT_OK;
}

/* weight_scale [N, G]; one scale a matrix is [1] or [1, 1], one a row may be [N]. */
static enum bt_code read_ct_scales(struct model_reader *r, const char *base, struct bt_linear *l,
                                   struct bt_error *err)
{
    const struct bt_st_tensor *t;
    struct bt_qweight *w = &l->q;
    BT_TRY(model_need(r, base, ".weight_scale", &t, err));
    BT_TRY(scale_type(t, err));
    BT_TRY(bt_qweight_init(w, &r->m->arena, r->quant.weights, l->n_out, l->n_in, t->dtype, err));
    int64_t shape[] = {w->scale_stride == 0 ? 1 : l->n_out, w->n_groups};
    bool flat = t->n_dims < 2 && w->n_groups == 1 && t->n_elements == shape[0];
    if (!flat) {
        BT_TRY(bt_st_tensor_expect(t, 2, shape, err));
    }
    return read_scales(r, t, false, w, err);
}

/* weight_zero_point: packed i32 [N/8, G], eight outputs a word, zero + 8. An int8 one [N, 1] must
 * be zero everywhere: asymmetric int8 is not supported. */
static enum bt_code read_ct_zeros(struct model_reader *r, const char *base, struct bt_qweight *w,
                                  struct bt_error *err)
{
    const struct bt_st_tensor *t = model_find(r, base, ".weight_zero_point");
    void *raw;
    if (t == NULL && !r->quant.symmetric) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.weight_zero_point: missing, though not symmetric",
                r->path, base);
    }
    if (t == NULL) {
        return BT_OK;
    }
    if (w->bits == 8 || t->dtype == BT_DTYPE_I8) {
        BT_TRY(slurp(r, t, &raw, err));
        bool zero = true;
        for (int64_t i = 0; i < t->n_bytes; i++) {
            zero = zero && ((const char *)raw)[i] == 0;
        }
        free(raw);
        if (!zero) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: zero points in this form are not supported",
                    t->file, t->name);
        }
        return BT_OK;
    }
    int64_t rows = (w->n_out + NIBBLES - 1) / NIBBLES;
    BT_TRY(expect(t, BT_DTYPE_I32, rows, w->n_groups, err));
    BT_TRY(new_zeros(r, w, err));
    BT_TRY(slurp(r, t, &raw, err));
    const uint32_t *words = raw;
    for (int32_t n = 0; n < w->n_out; n++) {
        for (int32_t g = 0; g < w->n_groups; g++) {
            uint32_t word = words[(size_t)(n / NIBBLES) * (size_t)w->n_groups + (size_t)g];
            w->zero[(size_t)n * (size_t)w->n_groups + (size_t)g] =
                (int8_t)((int32_t)(word >> 4 * (n % NIBBLES) & 15) - ZERO4);
        }
    }
    free(raw);
    drop_middle_zeros(w);
    return BT_OK;
}

/* input_scale: the static scale of the activations, one number. */
static enum bt_code read_ct_input_scale(struct model_reader *r, const char *base,
                                        struct bt_linear *l, struct bt_error *err)
{
    const struct bt_st_tensor *t = model_find(r, base, ".input_scale");
    const struct bt_st_tensor *zero = model_find(r, base, ".input_zero_point");
    if (zero != NULL && zero->n_elements == 1) {
        float z;
        BT_TRY(bt_safetensors_read_f32(r->st, zero, &z, err));
        if (z != 0.0f) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: %g: only 0 is supported", zero->file, zero->name,
                    (double)z);
        }
    }
    if (t == NULL) {
        if (r->quant.activations == BT_ACT_INT8_STATIC) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s.input_scale: missing", r->path, base);
        }
        return BT_OK;
    }
    if (t->n_elements != 1 || !is_scale_type(t->dtype)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected one F16, BF16 or F32 number", t->file,
                t->name);
    }
    BT_TRY(bt_safetensors_read_f32(r->st, t, &l->act_scale, err));
    if (!(l->act_scale > 0.0f) || !isfinite(l->act_scale)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: %g: expected a finite number > 0", t->file, t->name,
                (double)l->act_scale);
    }
    return BT_OK;
}

/* weight_packed i32 [N, ceil(K / per word)], low bits first, each value + half the range. */
static enum bt_code read_ct_packed(struct model_reader *r, const struct bt_st_tensor *packed,
                                   struct bt_linear *l, struct bt_error *err)
{
    struct bt_qweight *w = &l->q;
    int32_t per_word = 32 / w->bits;
    int32_t words_per_row = (l->n_in + per_word - 1) / per_word;
    uint32_t mask = (1u << w->bits) - 1;
    BT_TRY(expect(packed, BT_DTYPE_I32, l->n_out, words_per_row, err));
    void *raw;
    BT_TRY(slurp(r, packed, &raw, err));
    for (int32_t n = 0; n < l->n_out; n++) {
        const uint32_t *row = (const uint32_t *)raw + (size_t)n * (size_t)words_per_row;
        for (int32_t j = 0; j < l->n_in; j++) {
            int32_t k = input_of(w, j);
            uint32_t v = row[k / per_word] >> w->bits * (k % per_word) & mask;
            bt_qweight_set(w, n, j, (int32_t)v - (1 << (w->bits - 1)));
        }
    }
    free(raw);
    return BT_OK;
}

static enum bt_code read_ct(struct model_reader *r, const char *base, const struct bt_st_tensor *t,
                            struct bt_linear *l, struct bt_error *err)
{
    BT_TRY(check_weight_shape(r, base, l, err));
    BT_TRY(read_ct_scales(r, base, l, err));
    BT_TRY(read_ct_zeros(r, base, &l->q, err));
    BT_TRY(read_ct_input_scale(r, base, l, err));
    BT_TRY(read_group_index(r, base, ".weight_g_idx", &l->q, err));
    if (r->quant.layout == BT_QUANT_CT_PACKED) {
        return read_ct_packed(r, t, l, err);
    }
    BT_TRY(expect(t, BT_DTYPE_I8, l->n_out, l->n_in, err));
    return bt_safetensors_read(r->st, t, l->q.q, err);
}

enum bt_code model_read_quantised(struct model_reader *r, const char *base, struct bt_linear *l,
                                  bool *found, struct bt_error *err)
{
    const struct bt_st_tensor *t = NULL;
    *found = false;
    switch (r->quant.layout) {
    case BT_QUANT_NONE:
        return BT_OK;
    case BT_QUANT_GPTQ_V1:
    case BT_QUANT_GPTQ_V2:
    case BT_QUANT_AWQ_GEMM:
        t = model_find(r, base, ".qweight");
        break;
    case BT_QUANT_CT_PACKED:
        t = model_find(r, base, ".weight_packed");
        break;
    case BT_QUANT_CT_INT: {
        char name[MODEL_NAME_BYTES];
        (void)snprintf(name, sizeof name, "%s.weight", base);
        const struct bt_st_tensor *plain = bt_safetensors_find(r->st, name);
        t = plain != NULL && plain->dtype == BT_DTYPE_I8 ? model_find(r, base, ".weight") : NULL;
        break;
    }
    case BT_QUANT_FP8:
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: fp8 checkpoints cannot be executed (supported: GPTQ, AWQ gemm, "
                "compressed-tensors pack-quantized and int-quantized)",
                r->path);
    }
    if (t == NULL) {
        return BT_OK;
    }
    *found = true;
    l->quantised = true;
    l->act = r->quant.activations;
    if (r->quant.layout == BT_QUANT_AWQ_GEMM) {
        return read_awq(r, base, t, l, err);
    }
    if (r->quant.layout == BT_QUANT_GPTQ_V1 || r->quant.layout == BT_QUANT_GPTQ_V2) {
        return read_gptq(r, base, t, l, err);
    }
    return read_ct(r, base, t, l, err);
}
