#include "engine/model/qweight.h"

#include <stdlib.h>
#include <string.h>

int32_t bt_qweight_group_of(enum bt_weight_format format, int32_t n_in)
{
    int32_t group = bt_weight_format_group(format);
    return group > 0 ? group : n_in;
}

enum bt_code bt_tensor_init(struct bt_tensor *t, struct bt_arena *arena, enum bt_dtype dtype,
                            int32_t rows, int32_t cols, struct bt_error *err)
{
    BT_ASSERT(dtype == BT_DTYPE_F32 || dtype == BT_DTYPE_F16 || dtype == BT_DTYPE_BF16);
    size_t bytes = (size_t)rows * (size_t)cols * bt_dtype_bytes(dtype);
    *t = (struct bt_tensor){.dtype = dtype, .rows = rows, .cols = cols};
    t->p = bt_arena_take(arena, bytes);
    if (t->p == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "weights: no memory for %zu bytes", bytes);
    }
    return BT_OK;
}

enum bt_code bt_qweight_init(struct bt_qweight *w, struct bt_arena *arena,
                             enum bt_weight_format format, int32_t n_out, int32_t n_in,
                             enum bt_dtype scale_dtype, struct bt_error *err)
{
    int32_t bits = bt_weight_format_bits(format);
    BT_ASSERT((bits == 4 || bits == 8) && format != BT_WEIGHT_FP8);
    BT_ASSERT(n_out > 0 && n_in > 0);
    bool one = format == BT_WEIGHT_INT8_TENSOR || format == BT_WEIGHT_INT4_TENSOR;
    int32_t group = bt_qweight_group_of(format, n_in);
    *w = (struct bt_qweight){.n_out = n_out, .n_in = n_in, .bits = bits, .group = group};
    w->n_groups = (n_in + group - 1) / group;
    w->scale_stride = one ? 0 : w->n_groups;
    w->scale_dtype = scale_dtype;
    size_t q_bytes = (size_t)n_out * bt_qweight_row_bytes(w);
    size_t n_scales = one ? 1 : (size_t)n_out * (size_t)w->n_groups;
    w->q = bt_arena_take(arena, q_bytes);
    w->scale = bt_arena_take(arena, n_scales * bt_dtype_bytes(scale_dtype));
    if (w->q == NULL || w->scale == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "weights: no memory for %zu bytes", q_bytes);
    }
    memset(w->q, bits == 4 ? BT_QWEIGHT_ZERO4 : 0, q_bytes);
    return BT_OK;
}

enum bt_weight_format bt_qweight_format(const struct bt_qweight *w)
{
    if (w->scale_stride == 0) {
        return w->bits == 8 ? BT_WEIGHT_INT8_TENSOR : BT_WEIGHT_INT4_TENSOR;
    }
    if (w->bits == 8) {
        return w->n_groups == 1 ? BT_WEIGHT_INT8 : BT_WEIGHT_DEFAULT;
    }
    return w->group == 128  ? BT_WEIGHT_INT4_G128
           : w->group == 64 ? BT_WEIGHT_INT4_G64
           : w->group == 32 ? BT_WEIGHT_INT4_G32
                            : BT_WEIGHT_DEFAULT;
}

/* Columns [start, end) of one group, in stored order. */
static void expand_group(const struct bt_qweight *w, const uint8_t *row, int32_t start, int32_t end,
                         int32_t zero, float scale, float *dst)
{
    if (w->bits == 8) {
        for (int32_t j = start; j < end; j++) {
            dst[j] = (float)((int8_t)row[j] - zero) * scale;
        }
        return;
    }
    for (int32_t j = start; j < end; j++) {
        int32_t half = row[j / 2] >> 4 * (j % 2) & 15;
        dst[j] = (float)(half - 8 - zero) * scale;
    }
}

void bt_qweight_row_stored_f32(const struct bt_qweight *w, int32_t n, float *dst)
{
    BT_ASSERT(n >= 0 && n < w->n_out);
    const uint8_t *row = w->q + (size_t)n * bt_qweight_row_bytes(w);
    for (int32_t g = 0; g < w->n_groups; g++) {
        int32_t zero = w->zero == NULL ? 0 : w->zero[(size_t)n * (size_t)w->n_groups + (size_t)g];
        int32_t end = w->n_in - g * w->group < w->group ? w->n_in : (g + 1) * w->group;
        expand_group(w, row, g * w->group, end, zero, bt_qweight_scale(w, n, g), dst);
    }
}

void bt_qweight_row_f32(const struct bt_qweight *w, int32_t n, float *dst)
{
    BT_ASSERT(n >= 0 && n < w->n_out);
    if (w->perm == NULL) {
        bt_qweight_row_stored_f32(w, n, dst);
        return;
    }
    for (int32_t j = 0; j < w->n_in; j++) {
        int32_t g = j / w->group;
        int32_t zero = w->zero == NULL ? 0 : w->zero[(size_t)n * (size_t)w->n_groups + (size_t)g];
        dst[w->perm[j]] = (float)(bt_qweight_at(w, n, j) - zero) * bt_qweight_scale(w, n, g);
    }
}

void bt_tensor_row_f32(const struct bt_tensor *t, int32_t r, float *dst)
{
    BT_ASSERT(r >= 0 && r < t->rows);
    size_t row_bytes = (size_t)t->cols * bt_dtype_bytes(t->dtype);
    bt_dtype_to_f32(t->dtype, (const char *)t->p + (size_t)r * row_bytes, dst, (size_t)t->cols);
}

void bt_linear_row_f32(const struct bt_linear *l, int32_t n, float *dst)
{
    if (l->quantised) {
        bt_qweight_row_f32(&l->q, n, dst);
    } else {
        bt_tensor_row_f32(&l->w, n, dst);
    }
}

int64_t bt_tensor_bytes(const struct bt_tensor *t)
{
    return t->p == NULL ? 0 : (int64_t)t->rows * t->cols * (int64_t)bt_dtype_bytes(t->dtype);
}

int64_t bt_qweight_bytes(const struct bt_qweight *w)
{
    int64_t scales = w->scale_stride == 0 ? 1 : (int64_t)w->n_out * w->n_groups;
    int64_t bytes = (int64_t)w->n_out * (int64_t)bt_qweight_row_bytes(w);
    bytes += scales * (int64_t)bt_dtype_bytes(w->scale_dtype);
    bytes += w->zero == NULL ? 0 : (int64_t)w->n_out * w->n_groups;
    bytes += w->perm == NULL ? 0 : (int64_t)w->n_in * (int64_t)sizeof *w->perm;
    return bytes;
}

int64_t bt_linear_bytes(const struct bt_linear *l)
{
    int64_t bytes = l->quantised ? bt_qweight_bytes(&l->q) : bt_tensor_bytes(&l->w);
    return bytes + bt_tensor_bytes(&l->bias);
}

enum bt_code bt_qweight_set_groups(struct bt_qweight *w, struct bt_arena *arena,
                                   const int32_t *group_of, const char *what, struct bt_error *err)
{
    int32_t *next = calloc((size_t)w->n_groups + 1, sizeof *next);
    if (next == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory", what);
    }
    bool sorted = true;
    for (int32_t k = 0; k < w->n_in; k++) {
        if (group_of[k] < 0 || group_of[k] >= w->n_groups) {
            free(next);
            BT_FAIL(err, BT_ERR_INPUT, k, "%s[%d]: group %d is outside 0..%d", what, k, group_of[k],
                    w->n_groups - 1);
        }
        next[group_of[k] + 1]++;
        sorted = sorted && group_of[k] == k / w->group;
    }
    for (int32_t g = 0; g < w->n_groups; g++) {
        int32_t left = w->n_in - g * w->group;
        int32_t want = left < w->group ? left : w->group;
        if (next[g + 1] != want) {
            int32_t got = next[g + 1];
            free(next);
            BT_FAIL(err, BT_ERR_INPUT, g, "%s: group %d has %d inputs, expected %d", what, g, got,
                    want);
        }
    }
    w->perm = NULL;
    if (!sorted) {
        w->perm = bt_arena_take_zeroed(arena, (size_t)w->n_in, sizeof *w->perm);
    }
    if (!sorted && w->perm == NULL) {
        free(next);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory", what);
    }
    for (int32_t g = 0; g < w->n_groups && !sorted; g++) {
        next[g + 1] += next[g];
    }
    for (int32_t k = 0; k < w->n_in && !sorted; k++) {
        w->perm[next[group_of[k]]++] = k;
    }
    free(next);
    return BT_OK;
}
