#include "engine/cuda/linear_gemm.cuh"
#include "engine/cuda/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

static enum bt_code blas_fail(cublasStatus_t rc, const char *call, int line, struct bt_error *err)
{
    return bt_error_set(err, BT_ERR_CUDA, (int64_t)rc, __FILE__, line, "cublas: %s: %s", call,
                        cublasGetStatusString(rc));
}

#define BLAS_TRY(call, err)                                                                        \
    do {                                                                                           \
        cublasStatus_t blas_rc_ = (call);                                                          \
        if (blas_rc_ != CUBLAS_STATUS_SUCCESS) {                                                   \
            return blas_fail(blas_rc_, #call, __LINE__, (err));                                    \
        }                                                                                          \
    } while (0)

static enum bt_code create_parts(struct bt_cuda_gemm *g, struct bt_error *err)
{
    BLAS_TRY(cublasCreate(&g->blas), err);
    /* By default a split K may be added up in 16 bits. */
    BLAS_TRY(cublasSetMathMode(g->blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION), err);
    BT_TRY(bt_cuda_arena_take(g->o.arena, CUBLAS_BYTES, &g->blas_workspace, err));
    struct linear_skinny_place *at = &g->place;
    at->cc = g->o.device->cc;
    at->n_sms = g->o.device->n_sms;
    at->smem_block = g->o.device->smem_optin;
    at->partial_bytes = (int64_t)at->n_sms * 2 * BLOCK_PARTIAL;
    at->n_arrived = MAX_TILES;
    BT_TRY(bt_cuda_arena_take(g->o.arena, at->partial_bytes, &at->partial, err));
    void *arrived = NULL;
    BT_TRY(bt_cuda_arena_take(g->o.arena, MAX_TILES * 4, &arrived, err));
    BT_CUDA_TRY(cudaMemset(arrived, 0, MAX_TILES * 4), err);
    at->arrived = (int32_t *)arrived;
    for (int32_t i = 0; i < 2; i++) {
        BT_CUDA_TRY(cudaMallocHost(&g->staging[i], STAGING_BYTES), err);
        BT_CUDA_TRY(cudaEventCreateWithFlags(&g->staged[i], cudaEventDisableTiming), err);
    }
    return BT_OK;
}

enum bt_code bt_cuda_gemm_create(const struct bt_cuda_gemm_opts *o, struct bt_cuda_gemm **out,
                                 struct bt_error *err)
{
    *out = NULL;
    if (o->compute != BT_ACT_BF16 && o->compute != BT_ACT_FP16) {
        BT_FAIL(err, BT_ERR_ARG, o->compute, "gemm: compute: %s is not supported (fp16, bf16)",
                bt_act_format_name(o->compute));
    }
    if (o->max_rows < 1 || o->max_rows > 1 << 22) {
        BT_FAIL(err, BT_ERR_ARG, o->max_rows, "gemm: max_rows: %d must be 1..%d", o->max_rows,
                1 << 22);
    }
    struct bt_cuda_gemm *g = (struct bt_cuda_gemm *)calloc(1, sizeof *g);
    if (g != NULL) {
        g->shapes = (struct shape *)calloc(SHAPES, sizeof *g->shapes);
    }
    if (g == NULL || g->shapes == NULL) {
        free(g);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "gemm: no memory");
    }
    g->o = *o;
    g->bf16 = o->compute == BT_ACT_BF16;
    enum bt_code rc = create_parts(g, err);
    if (rc != BT_OK) {
        bt_cuda_gemm_destroy(g);
        return rc;
    }
    *out = g;
    return BT_OK;
}

void bt_cuda_gemm_destroy(struct bt_cuda_gemm *g)
{
    if (g == NULL) {
        return;
    }
    for (int32_t i = 0; i < 2; i++) {
        if (g->staged[i] != NULL) {
            (void)cudaEventDestroy(g->staged[i]);
        }
        if (g->staging[i] != NULL) {
            (void)cudaFreeHost(g->staging[i]);
        }
    }
    if (g->blas != NULL) {
        (void)cublasDestroy(g->blas);
    }
    free(g->shapes);
    free(g);
}

/* ---- shapes ---- */

static int32_t bucket_of(const struct bt_cuda_gemm *g, int32_t m)
{
    int32_t b = 0;
    while (1 << b < m) {
        b++;
    }
    BT_ASSERT(b < BUCKETS && m <= g->o.max_rows);
    return b;
}

/* The largest m of a bucket. */
static int32_t bucket_rows(const struct bt_cuda_gemm *g, int32_t b)
{
    return 1 << b < g->o.max_rows ? 1 << b : g->o.max_rows;
}

/* Warps of linear_skinny that share out K; 0: another kernel. */
static int32_t skinny_wk(enum kernel k)
{
    return k == KERNEL_WIDE ? 1 : k == KERNEL_SQUARE ? 2 : k == KERNEL_DEEP ? 4 : 0;
}

/* Halves of linear_wgmma; 0: another kernel. */
static int32_t wgmma_halves(enum kernel k)
{
    return k == KERNEL_WGMMA_1 || k == KERNEL_CLUSTER_1   ? 1
           : k == KERNEL_WGMMA_2 || k == KERNEL_CLUSTER_2 ? 2
                                                          : 0;
}

static bool is_cluster(enum kernel k)
{
    return k == KERNEL_CLUSTER_1 || k == KERNEL_CLUSTER_2;
}

/* Outputs of a tile of linear_tiles; 0: another kernel. */
static int32_t tile_outputs(enum kernel k)
{
    return k == KERNEL_TILES_160 ? 160 : k == KERNEL_TILES_256 ? 256 : 0;
}

static bool can_run(const struct bt_cuda_gemm *g, enum kernel k, const struct bt_cuda_linear *l,
                    int32_t m)
{
    struct linear_y y;
    memset(&y, 0, sizeof y);
    switch (k) {
    case KERNEL_CUBLAS:
        return true;
    case KERNEL_GENERAL:
        return l->int8_x && !l->packed;
    case KERNEL_WIDE:
    case KERNEL_SQUARE:
    case KERNEL_DEEP:
        return linear_is_skinny(l) &&
               linear_skinny(l, g->bf16, skinny_wk(k), NULL, NULL, m, y, &g->place, true, 0);
    case KERNEL_WGMMA_1:
    case KERNEL_WGMMA_2:
    case KERNEL_CLUSTER_1:
    case KERNEL_CLUSTER_2:
        return linear_wgmma(l, g->bf16, wgmma_halves(k), is_cluster(k), NULL, m, y, &g->place, true,
                            0);
    case KERNEL_TILES_160:
    case KERNEL_TILES_256:
        return linear_tiles(l, g->bf16, tile_outputs(k), NULL, NULL, m, y, &g->place, true, 0);
    case KERNELS:
        break;
    }
    return false;
}

/* The choice without measurements: what the H200 chose, roughly. */
static enum kernel by_rule(const struct bt_cuda_gemm *g, const struct bt_cuda_linear *l, int32_t m)
{
    int32_t up_to = l->weights == BT_CUDA_W16 ? 0 : l->weights == BT_CUDA_W8 ? 16 : 128;
    enum kernel k = l->n_out < 8192 && m <= 16 ? KERNEL_DEEP : KERNEL_WIDE;
    if (m <= 256 && can_run(g, KERNEL_WGMMA_2, l, m)) {
        return m > 32 ? KERNEL_CLUSTER_1 : KERNEL_WGMMA_2;
    }
    if (m <= up_to && can_run(g, k, l, m)) {
        return k;
    }
    if (m > 256 && l->int8_x && can_run(g, KERNEL_TILES_160, l, m)) {
        return KERNEL_TILES_160;
    }
    return m <= 16 && can_run(g, KERNEL_GENERAL, l, m) ? KERNEL_GENERAL : KERNEL_CUBLAS;
}

static bool alike(const struct bt_cuda_linear *a, const struct bt_cuda_linear *b)
{
    return a->n_out == b->n_out && a->n_in == b->n_in && a->weights == b->weights &&
           a->group == b->group && a->int8_x == b->int8_x && a->packed == b->packed &&
           a->packed_zero == b->packed_zero && (a->zero == NULL) == (b->zero == NULL) &&
           (a->perm == NULL) == (b->perm == NULL);
}

enum bt_code linear_add_shape(struct bt_cuda_gemm *g, struct bt_cuda_linear *l,
                              struct bt_error *err)
{
    int32_t i = 0;
    while (i < g->n_shapes && !alike(&g->shapes[i].layers[0], l)) {
        i++;
    }
    if (i == SHAPES) {
        BT_FAIL(err, BT_ERR_LIMIT, i, "gemm: more than %d shapes of linear layers", SHAPES);
    }
    struct shape *s = &g->shapes[i];
    l->shape = i;
    if (i == g->n_shapes) {
        g->n_shapes++;
        for (int32_t b = 0; b < BUCKETS; b++) {
            s->choice[b] = by_rule(g, l, 1 << b);
        }
    }
    if (s->n_layers < SHAPE_LAYERS) {
        s->layers[s->n_layers++] = *l;
    }
    return BT_OK;
}

/* ---- products ---- */

struct job {
    const struct bt_cuda_linear *l;
    const void *x16;
    const int8_t *x8;
    const float *x_scale; /* NULL: the layer's */
    int32_t m;
    struct linear_y y;
    cudaStream_t stream;
};

static cudaDataType_t type_16(bool bf16)
{
    return bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

static size_t y_bytes(const struct job *j, int64_t elements)
{
    return (size_t)elements * (j->y.f32 ? 4 : 2);
}

/* y[:, n0 .. n0 + rows - 1] = x wᵀ for w [rows, K] of the compute type. */
static enum bt_code blas_16(struct bt_cuda_gemm *g, const struct job *j, int32_t n0, int32_t rows,
                            const void *w, struct bt_error *err)
{
    const struct bt_cuda_linear *l = j->l;
    float one = 1.0f;
    float zero = 0.0f;
    cudaDataType_t t = type_16(g->bf16);
    BLAS_TRY(cublasGemmEx(g->blas, CUBLAS_OP_T, CUBLAS_OP_N, rows, j->m, l->n_in, &one, w, t,
                          l->n_in, j->x16, t, l->n_in, &zero, (char *)j->y.p + y_bytes(j, n0),
                          j->y.f32 ? CUDA_R_32F : t, l->n_out, CUBLAS_COMPUTE_32F,
                          CUBLAS_GEMM_DEFAULT),
             err);
    return BT_OK;
}

static int32_t at_most(int64_t rows, int32_t n)
{
    BT_ASSERT(rows > 0);
    /* Whole tiles where there is a choice. */
    rows = rows > 256 ? rows / 256 * 256 : rows;
    return rows < n ? (int32_t)rows : n;
}

static void add_bias(const struct job *j)
{
    if (j->l->bias != NULL) {
        linear_add_bias(j->l->bias, j->m, j->y, j->stream);
    }
}

/* 16-bit x. */
static enum bt_code run_blas_16(struct bt_cuda_gemm *g, const struct job *j, struct bt_error *err)
{
    const struct bt_cuda_linear *l = j->l;
    if (l->weights == BT_CUDA_W16) {
        BT_TRY(blas_16(g, j, 0, l->n_out, l->w, err));
        add_bias(j);
        return BT_OK;
    }
    int32_t step = at_most(PANEL_BYTES / ((int64_t)l->n_in * 2), l->n_out);
    for (int32_t n0 = 0; n0 < l->n_out; n0 += step) {
        int32_t rows = l->n_out - n0 < step ? l->n_out - n0 : step;
        linear_expand(l, g->bf16, n0, rows, g->panel, j->stream);
        BT_TRY(blas_16(g, j, n0, rows, g->panel, err));
    }
    add_bias(j);
    return BT_OK;
}

/* Whether cuBLAS can multiply the bytes as they are. */
static bool is_plain_int8(const struct bt_cuda_linear *l)
{
    return l->weights == BT_CUDA_W8 && l->n_groups == 1 && l->zero == NULL && l->n_in % 4 == 0;
}

/* INT8 x: INT8 products where the weights allow it; else both sides as FP16, in which x is exact
 * and a weight is rounded once. */
static enum bt_code run_blas_8(struct bt_cuda_gemm *g, const struct job *j, struct bt_error *err)
{
    const struct bt_cuda_linear *l = j->l;
    bool ints = is_plain_int8(l);
    int64_t fit = ACC_BYTES / ((int64_t)j->m * 4);
    int64_t fit_panel = PANEL_BYTES / ((int64_t)l->n_in * 2);
    int32_t step = at_most(ints || fit < fit_panel ? fit : fit_panel, l->n_out);
    uint8_t *x16 = g->rows + (l->perm != NULL ? (int64_t)g->o.max_rows * l->n_in * 2 : 0);
    if (!ints) {
        linear_widen(j->x8, (int64_t)j->m * l->n_in, false, x16, j->stream);
    }
    for (int32_t n0 = 0; n0 < l->n_out; n0 += step) {
        int32_t rows = l->n_out - n0 < step ? l->n_out - n0 : step;
        if (ints) {
            int32_t one = 1;
            int32_t zero = 0;
            BLAS_TRY(cublasGemmEx(g->blas, CUBLAS_OP_T, CUBLAS_OP_N, rows, j->m, l->n_in, &one,
                                  (const int8_t *)l->w + (int64_t)n0 * l->n_in, CUDA_R_8I, l->n_in,
                                  j->x8, CUDA_R_8I, l->n_in, &zero, g->acc, CUDA_R_32I, rows,
                                  CUBLAS_COMPUTE_32I, CUBLAS_GEMM_DEFAULT),
                     err);
        } else {
            float one = 1.0f;
            float zero = 0.0f;
            linear_expand(l, false, n0, rows, g->panel, j->stream);
            BLAS_TRY(cublasGemmEx(g->blas, CUBLAS_OP_T, CUBLAS_OP_N, rows, j->m, l->n_in, &one,
                                  g->panel, CUDA_R_16F, l->n_in, x16, CUDA_R_16F, l->n_in, &zero,
                                  g->acc, CUDA_R_32F, rows, CUBLAS_COMPUTE_32F,
                                  CUBLAS_GEMM_DEFAULT),
                     err);
        }
        linear_finish(g->acc, !ints, j->m, n0, rows, j->x_scale, l->x_scale, ints ? l->scale : NULL,
                      l->bias, j->y, j->stream);
    }
    return BT_OK;
}

static enum bt_code run_kernel(struct bt_cuda_gemm *g, enum kernel k, const struct job *j,
                               struct bt_error *err)
{
    if (skinny_wk(k) > 0) {
        const void *x = j->l->int8_x ? (const void *)j->x8 : j->x16;
        bool done = linear_skinny(j->l, g->bf16, skinny_wk(k), x, j->x_scale, j->m, j->y, &g->place,
                                  false, j->stream);
        BT_ASSERT(done);
        BT_CUDA_TRY(cudaGetLastError(), err);
        return BT_OK;
    }
    if (wgmma_halves(k) > 0) {
        bool done = linear_wgmma(j->l, g->bf16, wgmma_halves(k), is_cluster(k), j->x16, j->m, j->y,
                                 &g->place, false, j->stream);
        BT_ASSERT(done);
        BT_CUDA_TRY(cudaGetLastError(), err);
        return BT_OK;
    }
    if (tile_outputs(k) > 0) {
        const void *x = j->l->int8_x ? (const void *)j->x8 : j->x16;
        bool done = linear_tiles(j->l, g->bf16, tile_outputs(k), x, j->x_scale, j->m, j->y,
                                 &g->place, false, j->stream);
        BT_ASSERT(done);
        BT_CUDA_TRY(cudaGetLastError(), err);
        return BT_OK;
    }
    if (k == KERNEL_GENERAL) {
        linear_general_int8(j->l, j->x8, j->x_scale, j->m, j->y, j->stream);
    } else if (j->l->int8_x) {
        BT_TRY(run_blas_8(g, j, err));
    } else {
        BT_TRY(run_blas_16(g, j, err));
    }
    BT_CUDA_TRY(cudaGetLastError(), err);
    return BT_OK;
}

/* cuBLAS forgets its workspace when its stream is set. */
static enum bt_code use_stream(struct bt_cuda_gemm *g, cudaStream_t stream, struct bt_error *err)
{
    if (!g->has_stream || g->stream != stream) {
        BLAS_TRY(cublasSetStream(g->blas, stream), err);
        BLAS_TRY(cublasSetWorkspace(g->blas, g->blas_workspace, CUBLAS_BYTES), err);
        g->stream = stream;
        g->has_stream = true;
    }
    return BT_OK;
}

int32_t bt_cuda_linear_kernels(void)
{
    return KERNELS;
}

const char *bt_cuda_linear_kernel_name(const struct bt_cuda_gemm *g, int32_t kernel,
                                       const struct bt_cuda_linear *l, int32_t m)
{
    BT_ASSERT(kernel >= 0 && kernel < KERNELS);
    enum kernel k = (enum kernel)kernel;
    if (!can_run(g, k, l, m)) {
        return NULL;
    }
    switch (k) {
    case KERNEL_CUBLAS:
        return l->weights == BT_CUDA_W16       ? "cublas"
               : l->int8_x && is_plain_int8(l) ? "cublas-int8"
                                               : "expand+cublas";
    case KERNEL_GENERAL:
        return "general";
    case KERNEL_WIDE:
        return "skinny-4x1";
    case KERNEL_SQUARE:
        return "skinny-2x2";
    case KERNEL_DEEP:
        return "skinny-1x4";
    case KERNEL_WGMMA_1:
        return "wgmma-128";
    case KERNEL_WGMMA_2:
        return "wgmma-256";
    case KERNEL_CLUSTER_1:
        return "cluster-128";
    case KERNEL_CLUSTER_2:
        return "cluster-256";
    case KERNEL_TILES_160:
        return "tiles-256x160";
    case KERNEL_TILES_256:
        return "tiles-128x256";
    case KERNELS:
        break;
    }
    return NULL;
}

enum bt_code bt_cuda_linear_run_with(struct bt_cuda_gemm *g, int32_t kernel,
                                     const struct bt_cuda_linear *l, const struct bt_cuda_x *x,
                                     int32_t m, void *y, enum bt_cuda_y y_type,
                                     struct CUstream_st *stream, struct bt_error *err)
{
    BT_ASSERT(m > 0 && m <= g->o.max_rows);
    BT_ASSERT(l->int8_x ? x->x8 != NULL : x->x16 != NULL);
    BT_ASSERT(!l->int8_x || l->x_scale > 0.0f || x->x_scale != NULL);
    BT_ASSERT(kernel >= 0 && kernel < KERNELS);
    struct job j;
    memset(&j, 0, sizeof j);
    j.l = l;
    j.x16 = x->x16;
    j.x8 = x->x8;
    j.x_scale = l->x_scale > 0.0f ? NULL : x->x_scale;
    j.m = m;
    j.y.p = y;
    j.y.ld = l->n_out;
    j.y.f32 = y_type == BT_CUDA_Y_F32;
    j.y.bf16 = g->bf16;
    j.y.fours = l->n_out % 4 == 0 && (uintptr_t)y % 16 == 0;
    j.stream = stream;
    BT_TRY(use_stream(g, stream, err));
    if (l->perm != NULL) {
        const void *from = l->int8_x ? (const void *)x->x8 : x->x16;
        linear_gather(from, l->perm, m, l->n_in, l->int8_x ? 1 : 2, g->rows, stream);
        j.x8 = (const int8_t *)g->rows;
        j.x16 = g->rows;
    }
    return run_kernel(g, (enum kernel)kernel, &j, err);
}

enum bt_code bt_cuda_linear_run(struct bt_cuda_gemm *g, const struct bt_cuda_linear *l,
                                const struct bt_cuda_x *x, int32_t m, void *y,
                                enum bt_cuda_y y_type, struct CUstream_st *stream,
                                struct bt_error *err)
{
    enum kernel k = g->shapes[l->shape].choice[bucket_of(g, m)];
    return bt_cuda_linear_run_with(g, (int32_t)k, l, x, m, y, y_type, stream, err);
}

bool bt_cuda_linear_fuses_silu(const struct bt_cuda_gemm *g, const struct bt_cuda_linear *l,
                               int32_t m)
{
    struct linear_y none = {};
    return linear_tiles_silu(l, g->bf16, NULL, m, none, &g->place, true, 0);
}

enum bt_code bt_cuda_linear_silu(struct bt_cuda_gemm *g, const struct bt_cuda_linear *l,
                                 const void *x16, int32_t m, void *y, struct CUstream_st *stream,
                                 struct bt_error *err)
{
    BT_ASSERT(m > 0 && m <= g->o.max_rows);
    struct linear_y to = {};
    to.p = y;
    to.ld = l->n_out / 2;
    to.bf16 = g->bf16;
    to.fours = l->n_out % 8 == 0 && (uintptr_t)y % 16 == 0;
    bool done = linear_tiles_silu(l, g->bf16, x16, m, to, &g->place, false, stream);
    BT_ASSERT(done);
    BT_CUDA_TRY(cudaGetLastError(), err);
    return BT_OK;
}

/* ---- choice by measurement ---- */

/* Inputs and outputs for measurements, a stream that can be captured, and what empties the L2
 * between two runs. */
struct bench {
    struct bt_cuda_arena arena;
    struct bt_cuda_x x;
    int8_t *x8; /* x's, to be written */
    float *x_scale;
    void *y;
    int64_t y_bytes;
    void *flush;
    int64_t flush_bytes;
    cudaStream_t stream;
    cudaEvent_t start, stop;
};

enum { BENCH_Y_BYTES = 256 << 20, BENCH_RUNS = 8 };

static const float LEAST_US = 0.1f; /* a product that hides behind the operation before it */
/* What a kernel that begins late loses in a whole step beyond what the graph here shows: 3 us on an
 * H200 (8B in INT8, one sequence). */
static const float LATE_US = 2.0f;

static enum bt_code bench_init(struct bt_cuda_gemm *g, struct bench *b, struct bt_error *err)
{
    int64_t k = 0;
    int64_t n = 0;
    for (int32_t i = 0; i < g->n_shapes; i++) {
        const struct bt_cuda_linear *l = &g->shapes[i].layers[0];
        k = l->n_in > k ? l->n_in : k;
        n = l->n_out > n ? l->n_out : n;
    }
    int64_t rows = g->o.max_rows;
    b->y_bytes = rows * n * 2 < BENCH_Y_BYTES ? rows * n * 2 : BENCH_Y_BYTES;
    b->flush_bytes = 2 * g->o.device->l2_bytes;
    void *x16 = NULL;
    void *x8 = NULL;
    void *scale = NULL;
    BT_TRY(bt_cuda_arena_take(&b->arena, rows * k * 2, &x16, err));
    BT_TRY(bt_cuda_arena_take(&b->arena, rows * k, &x8, err));
    BT_TRY(bt_cuda_arena_take(&b->arena, rows * 4, &scale, err));
    BT_TRY(bt_cuda_arena_take(&b->arena, b->y_bytes, &b->y, err));
    BT_TRY(bt_cuda_arena_take(&b->arena, b->flush_bytes, &b->flush, err));
    linear_random_16(x16, rows * k, g->bf16, 1.0f, 1, 0);
    BT_CUDA_TRY(cudaGetLastError(), err);
    BT_CUDA_TRY(cudaDeviceSynchronize(), err);
    b->x.x16 = x16;
    b->x.x8 = b->x8 = (int8_t *)x8;
    b->x.x_scale = b->x_scale = (float *)scale;
    BT_CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), err);
    BT_CUDA_TRY(cudaEventCreate(&b->start), err);
    BT_CUDA_TRY(cudaEventCreate(&b->stop), err);
    return BT_OK;
}

static void bench_fini(struct bt_cuda_gemm *g, struct bench *b)
{
    if (b->stream != NULL) {
        (void)cudaStreamSynchronize(b->stream);
        (void)cudaStreamDestroy(b->stream);
        g->has_stream = false;
    }
    if (b->start != NULL) {
        (void)cudaEventDestroy(b->start);
    }
    if (b->stop != NULL) {
        (void)cudaEventDestroy(b->stop);
    }
    bt_cuda_arena_fini(&b->arena);
}

/* `n` runs of a kernel over the shape's layers from *at on, each after a row operation on its
 * inputs, as in a step; of the row operation alone where k is KERNELS. */
static enum bt_code enqueue_runs(struct bt_cuda_gemm *g, struct bench *b, const struct shape *s,
                                 enum kernel k, int32_t m, int32_t n, int32_t *at,
                                 struct bt_error *err)
{
    const struct bt_cuda_types types = {g->o.compute, g->o.compute};
    struct bt_cuda_out out = {};
    out.out8 = b->x8;
    out.out_scale = b->x_scale;
    for (int32_t r = 0; r < n; r++) {
        const struct bt_cuda_linear *l = &s->layers[(*at)++ % s->n_layers];
        bt_cuda_quantise(types, b->x.x16, m, l->n_in, out, b->stream);
        if (k != KERNELS) {
            BT_TRY(bt_cuda_linear_run_with(g, (int32_t)k, l, &b->x, m, b->y, BT_CUDA_Y_COMPUTE,
                                           b->stream, err));
        }
    }
    return bt_cuda_check_launch("tuning", err);
}

static enum bt_code capture_runs(struct bt_cuda_gemm *g, struct bench *b, const struct shape *s,
                                 enum kernel k, int32_t m, int32_t n, cudaGraphExec_t *out,
                                 struct bt_error *err)
{
    int32_t at = 0;
    BT_CUDA_TRY(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), err);
    enum bt_code code = enqueue_runs(g, b, s, k, m, n, &at, err);
    cudaGraph_t graph = NULL;
    cudaError_t rc = cudaStreamEndCapture(b->stream, &graph);
    if (code == BT_OK && rc == cudaSuccess) {
        rc = cudaGraphInstantiate(out, graph, 0);
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    if (code == BT_OK && rc != cudaSuccess) {
        code = bt_cuda_fail(rc, "graph of a linear layer", __FILE__, __LINE__, err);
    }
    return code;
}

static enum bt_code time_graph(struct bench *b, cudaGraphExec_t exec, bool flush, float *us,
                               struct bt_error *err)
{
    if (flush) {
        BT_CUDA_TRY(cudaMemsetAsync(b->flush, 1, (size_t)b->flush_bytes, b->stream), err);
    }
    BT_CUDA_TRY(cudaEventRecord(b->start, b->stream), err);
    BT_CUDA_TRY(cudaGraphLaunch(exec, b->stream), err);
    BT_CUDA_TRY(cudaEventRecord(b->stop, b->stream), err);
    BT_CUDA_TRY(cudaEventSynchronize(b->stop), err);
    float ms = 0.0f;
    BT_CUDA_TRY(cudaEventElapsedTime(&ms, b->start, b->stop), err);
    *us = ms * 1e3f;
    return BT_OK;
}

/* Microseconds of one of enqueue_runs' runs in a graph, weights cold in L2: the layers of the shape
 * in turn where together they exceed it twice, else one whose weights other data has driven out.
 * The least of some replays; the first run is plain, as modules load and cuBLAS decides then. */
static enum bt_code measure(struct bt_cuda_gemm *g, struct bench *b, const struct shape *s,
                            enum kernel k, int32_t m, float *us, struct bt_error *err)
{
    bool rotate = s->n_layers * s->layers[0].bytes >= 2 * g->o.device->l2_bytes;
    int32_t n = rotate ? BENCH_RUNS : 1;
    int32_t at = 0;
    BT_TRY(enqueue_runs(g, b, s, k, m, 1, &at, err));
    cudaGraphExec_t exec = NULL;
    BT_TRY(capture_runs(g, b, s, k, m, n, &exec, err));
    enum bt_code code = BT_OK;
    float best = 0.0f;
    for (int32_t i = 0; i < (rotate ? 3 : BENCH_RUNS) && code == BT_OK; i++) {
        float one = 0.0f;
        code = time_graph(b, exec, !rotate, &one, err);
        best = i == 1 || (i > 1 && one < best) ? one : best;
    }
    (void)cudaGraphExecDestroy(exec);
    *us = best / (float)n;
    return code;
}

/* Whether a kernel begins after its predecessor's end where others begin before it. */
static bool begins_late(const struct bt_cuda_gemm *g, enum kernel k)
{
    return g->o.device->cc >= 90 && skinny_wk(k) == 0 && wgmma_halves(k) == 0;
}

static enum bt_code tune_shape(struct bt_cuda_gemm *g, struct bench *b, struct shape *s,
                               struct bt_error *err)
{
    const struct bt_cuda_linear *l = &s->layers[0];
    bool hopeless[KERNELS] = {};
    enum kernel last = s->choice[0];
    for (int32_t i = 0; i <= bucket_of(g, g->o.max_rows); i++) {
        int32_t m = bucket_rows(g, i);
        if ((int64_t)m * l->n_out * 2 > b->y_bytes) {
            s->choice[i] = last;
            continue;
        }
        float us[KERNELS] = {};
        float least = 0.0f;
        float alone = 0.0f;
        BT_TRY(measure(g, b, s, KERNELS, m, &alone, err));
        for (int32_t k = 0; k < KERNELS; k++) {
            if (hopeless[k] || !can_run(g, (enum kernel)k, l, m)) {
                continue;
            }
            BT_TRY(measure(g, b, s, (enum kernel)k, m, &us[k], err));
            float cost = us[k] + (begins_late(g, (enum kernel)k) ? LATE_US : 0.0f);
            if (least == 0.0f || cost < least) {
                least = cost;
                last = (enum kernel)k;
            }
        }
        /* What is far behind at m does not win at 2 m; but for cuBLAS on expanded weights, whose
         * expansion costs the same at every m, and for kernels of whole tiles. */
        const float best = fmaxf(us[last] - alone, LEAST_US);
        for (int32_t k = 0; k < KERNELS; k++) {
            bool may_win = k == KERNEL_CUBLAS || tile_outputs((enum kernel)k) > 0;
            hopeless[k] = hopeless[k] || (!may_win && us[k] - alone > 3.0f * best);
        }
        s->choice[i] = last;
        s->us[i] = best;
    }
    return BT_OK;
}

enum bt_code bt_cuda_gemm_tune(struct bt_cuda_gemm *g, struct bt_error *err)
{
    if (g->n_shapes == 0) {
        return BT_OK;
    }
    struct bench b;
    memset(&b, 0, sizeof b);
    bt_cuda_arena_init(&b.arena, "gemm tuning");
    enum bt_code rc = bench_init(g, &b, err);
    for (int32_t i = 0; rc == BT_OK && i < g->n_shapes; i++) {
        rc = tune_shape(g, &b, &g->shapes[i], err);
    }
    bench_fini(g, &b);
    return rc;
}

void bt_cuda_gemm_explain(const struct bt_cuda_gemm *g, FILE *f)
{
    (void)fprintf(f, "%-22s %7s %7s %6s  %-16s %9s %8s %8s\n", "weights", "N", "K", "m", "kernel",
                  "us", "GB/s", "TFLOP/s");
    for (int32_t i = 0; i < g->n_shapes; i++) {
        const struct shape *s = &g->shapes[i];
        const struct bt_cuda_linear *l = &s->layers[0];
        char what[32];
        int32_t bits = l->weights == BT_CUDA_W16 ? 16 : l->weights == BT_CUDA_W8 ? 8 : 4;
        (void)snprintf(what, sizeof what, "W%dA%d%s%s%s", bits, l->int8_x ? 8 : 16,
                       l->zero != NULL || l->packed_zero ? " zero" : "",
                       l->perm != NULL ? " act-order" : "",
                       l->weights == BT_CUDA_W4 && !l->packed ? " plain" : "");
        for (int32_t k = 0; k <= bucket_of(g, g->o.max_rows); k++) {
            int32_t m = bucket_rows(g, k);
            (void)fprintf(f, "%-22s %7d %7d %6d  %-16s", what, l->n_out, l->n_in, m,
                          bt_cuda_linear_kernel_name(g, (int32_t)s->choice[k], l, m));
            if (s->us[k] > 0.0f) {
                double seconds = (double)s->us[k] * 1e-6;
                double flops = 2.0 * m * l->n_out * l->n_in;
                double bytes = (double)l->bytes +
                               (double)m * (2.0 * l->n_out + (l->int8_x ? 1.0 : 2.0) * l->n_in);
                (void)fprintf(f, " %9.1f %8.0f %8.1f\n", (double)s->us[k], bytes / seconds * 1e-9,
                              flops / seconds * 1e-12);
            } else {
                (void)fprintf(f, " %9s %8s %8s\n", "-", "-", "-");
            }
        }
    }
}
