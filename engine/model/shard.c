#include "engine/model/shard.h"

#include <string.h>

struct bt_shard_range bt_shard_range_of(const struct bt_arch *a, enum bt_linear_id id,
                                        int32_t n_ranks, int32_t rank)
{
    BT_ASSERT(rank >= 0 && rank < n_ranks);
    struct bt_arch_shard share = bt_arch_shard(a, n_ranks);
    switch (id) {
    case BT_LINEAR_Q:
    case BT_LINEAR_O:
        return (struct bt_shard_range){rank * share.q_dim, share.q_dim};
    case BT_LINEAR_K:
    case BT_LINEAR_V: {
        int32_t head = (int32_t)((int64_t)rank * a->n_kv_heads / n_ranks);
        return (struct bt_shard_range){head * a->head_dim, share.kv_dim};
    }
    case BT_LINEAR_GATE:
    case BT_LINEAR_UP:
    case BT_LINEAR_DOWN:
        return (struct bt_shard_range){rank * share.intermediate, share.intermediate};
    case BT_LINEARS:
        break;
    }
    BT_ASSERT(false);
    return (struct bt_shard_range){0, 0};
}

struct bt_linear bt_linear_outputs(const struct bt_linear *w, struct bt_shard_range r)
{
    BT_ASSERT(r.from >= 0 && r.n > 0 && r.from + r.n <= w->n_out);
    struct bt_linear s = *w;
    s.n_out = r.n;
    if (w->quantised) {
        size_t scale = (size_t)r.from * (size_t)w->q.scale_stride;
        s.q.n_out = r.n;
        s.q.q += (size_t)r.from * bt_qweight_row_bytes(&w->q);
        s.q.scale = (char *)w->q.scale + scale * bt_dtype_bytes(w->q.scale_dtype);
        s.q.zero = w->q.zero == NULL ? NULL : w->q.zero + scale;
    } else {
        size_t row = (size_t)w->n_in * bt_dtype_bytes(w->w.dtype);
        s.w.rows = r.n;
        s.w.p = (char *)w->w.p + (size_t)r.from * row;
    }
    if (w->bias.p != NULL) {
        s.bias.cols = r.n;
        s.bias.p = (char *)w->bias.p + (size_t)r.from * bt_dtype_bytes(w->bias.dtype);
    }
    return s;
}

/* Copies `bytes` of each of n rows that are `stride` apart, from `offset` on. */
static void copy_columns(void *dst, const void *src, int32_t n, size_t stride, size_t offset,
                         size_t bytes)
{
    for (int32_t i = 0; i < n; i++) {
        memcpy((char *)dst + (size_t)i * bytes, (const char *)src + (size_t)i * stride + offset,
               bytes);
    }
}

static void copy_integers(const struct bt_qweight *w, struct bt_shard_range r, struct bt_qweight *s)
{
    if (w->bits == 8 || (r.from % 2 == 0 && r.n % 2 == 0)) {
        size_t offset = (size_t)r.from * (size_t)w->bits / 8;
        copy_columns(s->q, w->q, w->n_out, bt_qweight_row_bytes(w), offset,
                     bt_qweight_row_bytes(s));
        return;
    }
    memset(s->q, BT_QWEIGHT_ZERO4, (size_t)w->n_out * bt_qweight_row_bytes(s));
    for (int32_t n = 0; n < w->n_out; n++) {
        for (int32_t j = 0; j < r.n; j++) {
            bt_qweight_set(s, n, j, bt_qweight_at(w, n, r.from + j));
        }
    }
}

static int32_t common_divisor(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Scales and zero points of the groups that inputs r.from on fall into. */
static enum bt_code copy_groups(const struct bt_qweight *w, struct bt_shard_range r,
                                struct bt_arena *arena, struct bt_qweight *s, struct bt_error *err)
{
    s->group = common_divisor(w->group, r.from);
    if (s->group < BT_SHARD_MIN_GROUP && s->group < w->group) {
        BT_FAIL(err, BT_ERR_ARG, s->group,
                "tp: a cut at input %d of %d leaves groups of %d where the matrix has groups of "
                "%d; at least %d are needed",
                r.from, w->n_in, s->group, w->group, BT_SHARD_MIN_GROUP);
    }
    s->n_groups = (r.n + s->group - 1) / s->group;
    s->scale_stride = s->n_groups;
    size_t size = bt_dtype_bytes(w->scale_dtype);
    size_t n = (size_t)w->n_out * (size_t)s->n_groups;
    s->scale = bt_arena_take(arena, n * size);
    s->zero = w->zero == NULL ? NULL : bt_arena_take(arena, n);
    if (s->scale == NULL || (w->zero != NULL && s->zero == NULL)) {
        BT_FAIL(err, BT_ERR_NOMEM, (int64_t)n, "tp: no memory for %zu scales", n);
    }
    for (int32_t i = 0; i < w->n_out; i++) {
        for (int32_t g = 0; g < s->n_groups; g++) {
            size_t from =
                (size_t)i * (size_t)w->scale_stride + (size_t)((r.from + g * s->group) / w->group);
            size_t to = (size_t)i * (size_t)s->scale_stride + (size_t)g;
            memcpy((char *)s->scale + to * size, (const char *)w->scale + from * size, size);
            if (w->zero != NULL) {
                s->zero[to] = w->zero[from];
            }
        }
    }
    return BT_OK;
}

static enum bt_code quantised_inputs(const struct bt_qweight *w, struct bt_shard_range r,
                                     struct bt_arena *arena, struct bt_qweight *s,
                                     struct bt_error *err)
{
    if (w->perm != NULL) {
        BT_FAIL(err, BT_ERR_ARG, r.n,
                "tp: inputs %d .. %d of a matrix with act-order cannot be shared out, its groups "
                "lie on several ranks; quantise it without",
                r.from, r.from + r.n - 1);
    }
    s->n_in = r.n;
    if (w->n_groups > 1) {
        BT_TRY(copy_groups(w, r, arena, s, err));
    } else {
        s->group = r.n;
    }
    size_t bytes = (size_t)w->n_out * bt_qweight_row_bytes(s);
    s->q = bt_arena_take(arena, bytes);
    if (s->q == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, (int64_t)bytes, "tp: no memory for a share of %zu bytes", bytes);
    }
    copy_integers(w, r, s);
    return BT_OK;
}

enum bt_code bt_linear_inputs(const struct bt_linear *w, struct bt_shard_range r,
                              struct bt_arena *arena, struct bt_linear *out, struct bt_error *err)
{
    BT_ASSERT(r.from >= 0 && r.n > 0 && r.from + r.n <= w->n_in);
    *out = *w;
    out->n_in = r.n;
    out->bias = (struct bt_tensor){0};
    if (w->quantised) {
        return quantised_inputs(&w->q, r, arena, &out->q, err);
    }
    size_t size = bt_dtype_bytes(w->w.dtype);
    out->w.cols = r.n;
    out->w.p = bt_arena_take(arena, (size_t)w->n_out * (size_t)r.n * size);
    if (out->w.p == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, r.n, "tp: no memory for a share of %d inputs", r.n);
    }
    copy_columns(out->w.p, w->w.p, w->n_out, (size_t)w->n_in * size, (size_t)r.from * size,
                 (size_t)r.n * size);
    return BT_OK;
}
