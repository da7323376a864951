/* Linear layers come to the device: packed for their kernels and uploaded through pinned memory, or
 * made of random numbers there. */
#include "engine/cuda/linear_gemm.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum bt_code take(struct bt_cuda_arena *arena, int64_t bytes, void *out,
                         struct bt_cuda_linear *l, struct bt_error *err)
{
    void *p = NULL;
    BT_TRY(bt_cuda_arena_take(arena, bytes, &p, err));
    memcpy(out, &p, sizeof p);
    l->bytes += bytes;
    return BT_OK;
}

/* Workspaces that only some layers need. */
static enum bt_code take_workspaces(struct bt_cuda_gemm *g, const struct bt_cuda_linear *l,
                                    struct bt_error *err)
{
    if (l->weights != BT_CUDA_W16 && g->panel == NULL) {
        BT_TRY(bt_cuda_arena_take(g->o.arena, PANEL_BYTES, &g->panel, err));
    }
    if (l->int8_x && g->acc == NULL) {
        BT_TRY(bt_cuda_arena_take(g->o.arena, ACC_BYTES, &g->acc, err));
    }
    int64_t row = (int64_t)l->n_in * ((l->perm != NULL ? 2 : 0) + (l->int8_x ? 2 : 0));
    int64_t need = row * g->o.max_rows;
    if (need > g->rows_bytes) {
        void *p = NULL;
        BT_TRY(bt_cuda_arena_take(g->o.arena, need, &p, err));
        g->rows = (uint8_t *)p;
        g->rows_bytes = need;
    }
    return BT_OK;
}

/* The next pinned buffer, when the copy that used it last is done. */
static enum bt_code next_staging(struct bt_cuda_gemm *g, int32_t *i, struct bt_error *err)
{
    *i = g->next_staging;
    g->next_staging = 1 - *i;
    BT_CUDA_TRY(cudaEventSynchronize(g->staged[*i]), err);
    return BT_OK;
}

static enum bt_code send_staging(struct bt_cuda_gemm *g, int32_t i, void *dst, size_t bytes,
                                 struct bt_error *err)
{
    BT_CUDA_TRY(cudaMemcpyAsync(dst, g->staging[i], bytes, cudaMemcpyHostToDevice, 0), err);
    BT_CUDA_TRY(cudaEventRecord(g->staged[i], 0), err);
    return BT_OK;
}

static enum bt_code upload(struct bt_cuda_gemm *g, void *dst, const void *src, size_t bytes,
                           struct bt_error *err)
{
    for (size_t at = 0; at < bytes; at += STAGING_BYTES) {
        size_t n = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        int32_t i = 0;
        BT_TRY(next_staging(g, &i, err));
        memcpy(g->staging[i], (const char *)src + at, n);
        BT_TRY(send_staging(g, i, (char *)dst + at, n, err));
    }
    return BT_OK;
}

/* n elements of any float type as 16-bit or float ones. */
static enum bt_code upload_as(struct bt_cuda_gemm *g, enum bt_dtype to, void *dst,
                              enum bt_dtype from, const void *src, size_t n, struct bt_error *err)
{
    if (from == to) {
        return upload(g, dst, src, n * bt_dtype_bytes(to), err);
    }
    enum { PART = 4096 };
    float part[PART];
    size_t per = STAGING_BYTES / bt_dtype_bytes(to);
    for (size_t at = 0; at < n; at += per) {
        size_t count = n - at < per ? n - at : per;
        int32_t s = 0;
        BT_TRY(next_staging(g, &s, err));
        for (size_t i = 0; i < count; i += PART) {
            size_t k = count - i < PART ? count - i : PART;
            bt_dtype_to_f32(from, (const char *)src + (at + i) * bt_dtype_bytes(from), part, k);
            bt_dtype_from_f32(to, part, (char *)g->staging[s] + i * bt_dtype_bytes(to), k);
        }
        BT_TRY(send_staging(g, s, (char *)dst + at * bt_dtype_bytes(to), count * bt_dtype_bytes(to),
                            err));
    }
    return BT_OK;
}

static bool is_int8(enum bt_act_format act)
{
    return act == BT_ACT_INT8_DYNAMIC || act == BT_ACT_INT8_STATIC;
}

static float static_scale(const struct bt_linear *p)
{
    return p->act == BT_ACT_INT8_STATIC ? p->act_scale : 0.0f;
}

static bool same_perm(const struct bt_linear *a, const struct bt_linear *b)
{
    const int32_t *p = a->quantised ? a->q.perm : NULL;
    const int32_t *q = b->quantised ? b->q.perm : NULL;
    if (p == NULL || q == NULL) {
        return p == q;
    }
    return memcmp(p, q, (size_t)a->n_in * sizeof *p) == 0;
}

static enum bt_code check_parts(const struct bt_linear *const *parts, int32_t n_parts,
                                struct bt_error *err)
{
    BT_ASSERT(n_parts >= 1 && n_parts <= 3);
    const struct bt_linear *a = parts[0];
    for (int32_t i = 0; i < n_parts; i++) {
        const struct bt_linear *b = parts[i];
        bool format = a->quantised == b->quantised &&
                      (!a->quantised || (a->q.bits == b->q.bits && a->q.group == b->q.group));
        if (a->n_in != b->n_in || !format || static_scale(a) != static_scale(b) ||
            is_int8(a->act) != is_int8(b->act) || !same_perm(a, b)) {
            BT_FAIL(err, BT_ERR_ARG, i,
                    "gemm: layer %d of %d side by side differs from the first in inputs, format, "
                    "activations or act-order",
                    i + 1, n_parts);
        }
        if (!b->quantised && is_int8(b->act)) {
            BT_FAIL(err, BT_ERR_ARG, i,
                    "gemm: INT8 activations need INT8 or INT4 weights; the layer's are %s",
                    bt_dtype_name(b->w.dtype));
        }
    }
    return BT_OK;
}

/* Scales and zero points of a part in host memory, [rows, G]. */
static void read_scales(const struct bt_qweight *q, float *scale, int8_t *zero)
{
    size_t n_groups = (size_t)q->n_groups;
    for (int32_t n = 0; n < q->n_out; n++) {
        for (int32_t g = 0; g < q->n_groups; g++) {
            scale[(size_t)n * n_groups + (size_t)g] = bt_qweight_scale(q, n, g);
        }
    }
    if (zero != NULL && q->zero != NULL) {
        memcpy(zero, q->zero, (size_t)q->n_out * n_groups);
    }
}

/* Scales and zero points of all parts in host memory; freed by the caller. */
struct host_scales {
    float *scale; /* [N, G] */
    int8_t *zero; /* [N, G]; NULL: symmetric */
};

static enum bt_code gather_scales(const struct bt_linear *const *parts, int32_t n_parts,
                                  const struct bt_cuda_linear *l, struct host_scales *h,
                                  struct bt_error *err)
{
    size_t n = (size_t)l->n_out * (size_t)l->n_groups;
    bool has_zero = false;
    for (int32_t i = 0; i < n_parts; i++) {
        has_zero = has_zero || parts[i]->q.zero != NULL;
    }
    h->scale = (float *)malloc(n * sizeof *h->scale);
    h->zero = has_zero ? (int8_t *)calloc(n, 1) : NULL;
    if (h->scale == NULL || (has_zero && h->zero == NULL)) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "gemm: no memory for %zu scales", n);
    }
    size_t at = 0;
    for (int32_t i = 0; i < n_parts; i++) {
        read_scales(&parts[i]->q, h->scale + at, has_zero ? h->zero + at : NULL);
        at += (size_t)parts[i]->n_out * (size_t)l->n_groups;
    }
    return BT_OK;
}

/* Whether the packed layout holds the numbers without loss: FP16 scales, zero points near the
 * middle. */
static bool is_packable(const struct bt_cuda_linear *l, const struct host_scales *h)
{
    if (l->weights != BT_CUDA_W4 || linear_packed_group(l) == 0) {
        return false;
    }
    size_t n = (size_t)l->n_out * (size_t)l->n_groups;
    for (size_t i = 0; i < n; i++) {
        bool zero = h->zero == NULL || (h->zero[i] >= -16 && h->zero[i] <= 15);
        if (!zero || bt_f16_to_f32(bt_f32_to_f16(h->scale[i])) != h->scale[i]) {
            return false;
        }
    }
    return true;
}

static enum bt_code upload_rows(struct bt_cuda_gemm *g, const struct bt_linear *const *parts,
                                int32_t n_parts, void *dst, struct bt_error *err)
{
    char *w = (char *)dst;
    for (int32_t i = 0; i < n_parts; i++) {
        size_t bytes = bt_qweight_row_bytes(&parts[i]->q) * (size_t)parts[i]->n_out;
        BT_TRY(upload(g, w, parts[i]->q.q, bytes, err));
        w += bytes;
    }
    return BT_OK;
}

/* By way of device memory that is given back. */
static enum bt_code load_packed(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                                struct bt_cuda_arena *passing, const struct bt_linear *const *parts,
                                int32_t n_parts, const struct host_scales *h,
                                struct bt_cuda_linear *l, struct bt_error *err)
{
    int32_t group = linear_packed_group(l);
    int64_t n_scales = (int64_t)l->n_out * l->n_groups;
    bool has_zero = h->zero != NULL;
    void *q = NULL;
    void *scale = NULL;
    void *zero = NULL;
    BT_TRY(bt_cuda_arena_take(passing, (int64_t)l->n_out * l->n_in / 2, &q, err));
    BT_TRY(bt_cuda_arena_take(passing, n_scales * 4, &scale, err));
    BT_TRY(upload_rows(g, parts, n_parts, q, err));
    BT_TRY(upload(g, scale, h->scale, (size_t)n_scales * 4, err));
    if (has_zero) {
        BT_TRY(bt_cuda_arena_take(passing, n_scales, &zero, err));
        BT_TRY(upload(g, zero, h->zero, (size_t)n_scales, err));
    }
    BT_TRY(take(arena, linear_packed_bytes(l->n_out, l->n_in, group, has_zero), &l->w, l, err));
    linear_pack(l, (const uint8_t *)q, (const float *)scale, (const int8_t *)zero, l->w, 0);
    BT_CUDA_TRY(cudaGetLastError(), err);
    BT_CUDA_TRY(cudaStreamSynchronize(0), err);
    l->group = group;
    l->packed = true;
    l->packed_zero = has_zero;
    return BT_OK;
}

static enum bt_code load_quantised(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                                   const struct bt_linear *const *parts, int32_t n_parts,
                                   const struct host_scales *h, struct bt_cuda_linear *l,
                                   struct bt_error *err)
{
    if (is_packable(l, h)) {
        struct bt_cuda_arena passing;
        bt_cuda_arena_init(&passing, "weights being packed");
        enum bt_code rc = load_packed(g, arena, &passing, parts, n_parts, h, l, err);
        bt_cuda_arena_fini(&passing);
        return rc;
    }
    int64_t n_scales = (int64_t)l->n_out * l->n_groups;
    int64_t row_bytes = (int64_t)bt_qweight_row_bytes(&parts[0]->q);
    BT_TRY(take(arena, row_bytes * l->n_out, &l->w, l, err));
    BT_TRY(upload_rows(g, parts, n_parts, l->w, err));
    BT_TRY(take(arena, n_scales * 4, &l->scale, l, err));
    BT_TRY(upload(g, l->scale, h->scale, (size_t)n_scales * 4, err));
    if (h->zero != NULL) {
        BT_TRY(take(arena, n_scales, &l->zero, l, err));
        BT_TRY(upload(g, l->zero, h->zero, (size_t)n_scales, err));
    }
    return BT_OK;
}

static enum bt_code load_dense(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                               const struct bt_linear *const *parts, int32_t n_parts,
                               struct bt_cuda_linear *l, struct bt_error *err)
{
    enum bt_dtype to = g->bf16 ? BT_DTYPE_BF16 : BT_DTYPE_F16;
    BT_TRY(take(arena, (int64_t)l->n_out * l->n_in * 2, &l->w, l, err));
    char *w = (char *)l->w;
    for (int32_t i = 0; i < n_parts; i++) {
        size_t n = (size_t)parts[i]->n_out * (size_t)l->n_in;
        BT_TRY(upload_as(g, to, w, parts[i]->w.dtype, parts[i]->w.p, n, err));
        w += n * 2;
    }
    return BT_OK;
}

static enum bt_code load_bias(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                              const struct bt_linear *const *parts, int32_t n_parts,
                              struct bt_cuda_linear *l, struct bt_error *err)
{
    bool any = false;
    for (int32_t i = 0; i < n_parts; i++) {
        any = any || parts[i]->bias.p != NULL;
    }
    if (!any) {
        return BT_OK;
    }
    BT_TRY(take(arena, (int64_t)l->n_out * 4, &l->bias, l, err));
    float *bias = l->bias;
    for (int32_t i = 0; i < n_parts; i++) {
        size_t n = (size_t)parts[i]->n_out;
        if (parts[i]->bias.p == NULL) {
            BT_CUDA_TRY(cudaMemsetAsync(bias, 0, n * 4, 0), err);
        } else {
            BT_TRY(
                upload_as(g, BT_DTYPE_F32, bias, parts[i]->bias.dtype, parts[i]->bias.p, n, err));
        }
        bias += n;
    }
    return BT_OK;
}

static enum bt_code load_parts(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                               const struct bt_linear *const *parts, int32_t n_parts,
                               struct bt_cuda_linear *l, struct bt_error *err)
{
    if (!parts[0]->quantised) {
        BT_TRY(load_dense(g, arena, parts, n_parts, l, err));
    } else {
        struct host_scales h = {NULL, NULL};
        enum bt_code rc = gather_scales(parts, n_parts, l, &h, err);
        if (rc == BT_OK) {
            rc = load_quantised(g, arena, parts, n_parts, &h, l, err);
        }
        free(h.scale);
        free(h.zero);
        BT_TRY(rc);
        const int32_t *perm = parts[0]->q.perm;
        if (perm != NULL) {
            void *p = NULL;
            BT_TRY(take(arena, (int64_t)l->n_in * 4, &p, l, err));
            BT_TRY(upload(g, p, perm, (size_t)l->n_in * 4, err));
            l->perm = (const int32_t *)p;
        }
    }
    BT_TRY(load_bias(g, arena, parts, n_parts, l, err));
    BT_CUDA_TRY(cudaStreamSynchronize(0), err);
    return BT_OK;
}

enum bt_code bt_cuda_linear_load(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                                 const struct bt_linear *const *parts, int32_t n_parts,
                                 struct bt_cuda_linear *out, struct bt_error *err)
{
    BT_TRY(check_parts(parts, n_parts, err));
    const struct bt_linear *first = parts[0];
    struct bt_cuda_linear l;
    memset(&l, 0, sizeof l);
    for (int32_t i = 0; i < n_parts; i++) {
        l.n_out += parts[i]->n_out;
    }
    l.n_in = first->n_in;
    l.int8_x = is_int8(first->act);
    l.x_scale = static_scale(first);
    l.weights = BT_CUDA_W16;
    if (first->quantised) {
        l.weights = first->q.bits == 8 ? BT_CUDA_W8 : BT_CUDA_W4;
        l.group = first->q.group;
        l.n_groups = first->q.n_groups;
    }
    BT_TRY(load_parts(g, arena, parts, n_parts, &l, err));
    BT_TRY(take_workspaces(g, &l, err));
    BT_TRY(linear_add_shape(g, &l, err));
    *out = l;
    return BT_OK;
}

/* ---- random weights ---- */

static const float RANDOM_STD = 0.02f;

/* Numbers of every format with that deviation and mean 0. */
static enum bt_code random_weights(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                                   uint64_t seed, struct bt_cuda_linear *l, struct bt_error *err)
{
    int64_t n = (int64_t)l->n_out * l->n_in;
    int64_t n_scales = (int64_t)l->n_out * l->n_groups;
    /* As a checkpoint would hold it. */
    float variance = l->weights == BT_CUDA_W4 ? 17.5f : 255.0f * 255.0f / 12.0f;
    float scale = bt_f16_to_f32(bt_f32_to_f16(RANDOM_STD / sqrtf(variance)));
    switch (l->weights) {
    case BT_CUDA_W16:
        BT_TRY(take(arena, n * 2, &l->w, l, err));
        linear_random_16(l->w, n, g->bf16, RANDOM_STD * sqrtf(3.0f), seed, 0);
        return BT_OK;
    case BT_CUDA_W8:
        BT_TRY(take(arena, n, &l->w, l, err));
        linear_random_int8((int8_t *)l->w, n, seed, 0);
        break;
    case BT_CUDA_W4: {
        int32_t group = linear_packed_group(l);
        l->packed = group > 0;
        l->group = l->packed ? group : l->group;
        int64_t bytes = l->packed ? linear_packed_bytes(l->n_out, l->n_in, group, false)
                                  : (int64_t)l->n_out * ((l->n_in + 1) / 2);
        BT_TRY(take(arena, bytes, &l->w, l, err));
        if (l->packed) {
            linear_random_packed(l->w, bytes, group, scale, seed, 0);
            return BT_OK;
        }
        linear_random_int4(l->w, bytes, seed, 0);
        break;
    }
    }
    BT_TRY(take(arena, n_scales * 4, &l->scale, l, err));
    linear_fill_f32(l->scale, n_scales, scale, 0);
    return BT_OK;
}

enum bt_code bt_cuda_linear_random(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                                   int32_t n_out, int32_t n_in, enum bt_weight_format format,
                                   enum bt_act_format act, bool bias, uint64_t seed,
                                   struct bt_cuda_linear *out, struct bt_error *err)
{
    BT_ASSERT(n_out > 0 && n_in > 0);
    struct bt_cuda_linear l;
    memset(&l, 0, sizeof l);
    l.n_out = n_out;
    l.n_in = n_in;
    l.int8_x = act == BT_ACT_INT8_DYNAMIC;
    bool dense = format == BT_WEIGHT_FP16 || format == BT_WEIGHT_BF16;
    bool int4 = bt_weight_format_group(format) > 0;
    if (!dense && format != BT_WEIGHT_INT8 && !int4) {
        BT_FAIL(err, BT_ERR_ARG, format,
                "gemm: random weights: %s is not supported (fp16, bf16, int8, int4-g128, int4-g64, "
                "int4-g32)",
                bt_weight_format_name(format));
    }
    if (act == BT_ACT_INT8_STATIC || (dense && l.int8_x)) {
        BT_FAIL(err, BT_ERR_ARG, act, "gemm: random weights: %s with activations %s",
                bt_weight_format_name(format), bt_act_format_name(act));
    }
    l.weights = dense ? BT_CUDA_W16 : int4 ? BT_CUDA_W4 : BT_CUDA_W8;
    if (!dense) {
        l.group = bt_qweight_group_of(format, n_in);
        l.n_groups = (n_in + l.group - 1) / l.group;
    }
    BT_TRY(random_weights(g, arena, seed, &l, err));
    if (bias) {
        BT_TRY(take(arena, (int64_t)n_out * 4, &l.bias, &l, err));
        linear_fill_f32(l.bias, n_out, RANDOM_STD, 0);
    }
    BT_CUDA_TRY(cudaGetLastError(), err);
    BT_CUDA_TRY(cudaStreamSynchronize(0), err);
    BT_TRY(take_workspaces(g, &l, err));
    BT_TRY(linear_add_shape(g, &l, err));
    *out = l;
    return BT_OK;
}
