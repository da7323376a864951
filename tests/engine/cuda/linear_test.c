/* Every kernel of the linear layers against a sum in double and against the CPU's, on random data.
 */
#include "engine/cpu/linear.h"
#include "engine/cuda/linear.h"
#include "engine/cuda/ops.h"
#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_PARTS = 3, GUARD_BYTES = 256, MAX_ROWS = 300 };

/* What is loaded. */
struct format {
    const char *name;
    enum bt_weight_format weights; /* BF16: dense */
    int32_t group;                 /* another than the format's; 0: the format's */
    enum bt_act_format act;
    bool zero, perm, bias;
    enum bt_dtype scales;
    enum bt_act_format compute;
};

static const struct format formats[] = {
    {"bf16", BT_WEIGHT_BF16, 0, BT_ACT_DEFAULT, false, false, true, 0, BT_ACT_BF16},
    {"fp16", BT_WEIGHT_FP16, 0, BT_ACT_DEFAULT, false, false, false, 0, BT_ACT_FP16},
    {"fp32 as bf16", BT_WEIGHT_FP32, 0, BT_ACT_DEFAULT, false, false, true, 0, BT_ACT_BF16},
    {"w8a16 bf16", BT_WEIGHT_INT8, 0, BT_ACT_DEFAULT, false, false, true, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w8a16 fp16 one scale", BT_WEIGHT_INT8_TENSOR, 0, BT_ACT_DEFAULT, false, false, false,
     BT_DTYPE_F32, BT_ACT_FP16},
    {"w8a16 groups zero order", BT_WEIGHT_INT8, 48, BT_ACT_DEFAULT, true, true, false, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w8a8", BT_WEIGHT_INT8, 0, BT_ACT_INT8_DYNAMIC, false, false, true, BT_DTYPE_BF16,
     BT_ACT_BF16},
    {"w8a8 static fp16", BT_WEIGHT_INT8, 0, BT_ACT_INT8_STATIC, false, false, false, BT_DTYPE_F16,
     BT_ACT_FP16},
    {"w8a8 groups order", BT_WEIGHT_INT8, 40, BT_ACT_INT8_DYNAMIC, false, true, false, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w4a16 g128 bf16", BT_WEIGHT_INT4_G128, 0, BT_ACT_DEFAULT, false, false, true, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w4a16 g128 fp16 order", BT_WEIGHT_INT4_G128, 0, BT_ACT_DEFAULT, false, true, false,
     BT_DTYPE_F16, BT_ACT_FP16},
    {"w4a16 g64 zero bf16", BT_WEIGHT_INT4_G64, 0, BT_ACT_DEFAULT, true, false, false, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w4a16 g32 zero fp16", BT_WEIGHT_INT4_G32, 0, BT_ACT_DEFAULT, true, false, true, BT_DTYPE_F16,
     BT_ACT_FP16},
    {"w4a16 one scale", BT_WEIGHT_INT4_TENSOR, 0, BT_ACT_DEFAULT, false, false, false, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w4a16 g48", BT_WEIGHT_INT4_G32, 48, BT_ACT_DEFAULT, true, false, false, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w4a16 fp32 scales", BT_WEIGHT_INT4_G32, 0, BT_ACT_DEFAULT, false, false, false, BT_DTYPE_F32,
     BT_ACT_BF16},
    {"w4a8 g128", BT_WEIGHT_INT4_G128, 0, BT_ACT_INT8_DYNAMIC, false, false, true, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w4a8 g64 zero static", BT_WEIGHT_INT4_G64, 0, BT_ACT_INT8_STATIC, true, false, false,
     BT_DTYPE_F16, BT_ACT_FP16},
    {"w4a8 g32 order", BT_WEIGHT_INT4_G32, 0, BT_ACT_INT8_DYNAMIC, true, true, false, BT_DTYPE_F16,
     BT_ACT_BF16},
    {"w4a8 g48", BT_WEIGHT_INT4_G32, 48, BT_ACT_INT8_DYNAMIC, true, false, false, BT_DTYPE_F16,
     BT_ACT_BF16},
};

enum { FORMATS = sizeof formats / sizeof formats[0] };

struct size {
    int32_t n, k;
};

static const struct size sizes[] = {
    {1, 1},      {5, 24},     {33, 37},    {64, 128},   {100, 200}, {200, 320},
    {130, 1000}, {530, 1168}, {768, 4112}, {17000, 64}, /* more tiles than a GPU holds at once */
};

enum { SIZES = sizeof sizes / sizeof sizes[0] };

static const int32_t rows_tried[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 130, MAX_ROWS};

enum { ROWS_TRIED = sizeof rows_tried / sizeof rows_tried[0] };

/* ---- random layers ---- */

static struct bt_rng rng;

static uint32_t random_u32(void)
{
    return (uint32_t)(bt_rng_u64(&rng) >> 32);
}

static float random_f32(float bound)
{
    return ((float)(random_u32() & 0xffffff) / (float)0x800000 - 1.0f) * bound;
}

static void random_quantised(const struct format *f, struct bt_arena *arena, int32_t n, int32_t k,
                             const int32_t *perm, struct bt_qweight *q)
{
    struct bt_error err = {0};
    cr_assert_eq(bt_qweight_init(q, arena, f->weights, n, k, f->scales, &err), BT_OK, "%s",
                 err.msg);
    if (f->group > 0) {
        q->group = f->group;
        q->n_groups = (k + f->group - 1) / f->group;
        q->scale_stride = q->n_groups;
        q->scale = bt_arena_take_array(arena, (size_t)(n * q->n_groups), bt_dtype_bytes(f->scales));
    }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < k; j++) {
            int32_t levels = 1 << q->bits;
            bt_qweight_set(q, i, j, (int32_t)(random_u32() % (uint32_t)levels) - levels / 2);
        }
    }
    int32_t n_scales = q->scale_stride == 0 ? 1 : n * q->n_groups;
    for (int32_t i = 0; i < n_scales; i++) {
        float scale = 0.01f + random_f32(0.008f);
        bt_dtype_from_f32(f->scales, &scale,
                          (char *)q->scale + (size_t)i * bt_dtype_bytes(f->scales), 1);
    }
    if (f->zero) {
        q->zero = bt_arena_take_array(arena, (size_t)(n * q->n_groups), 1);
        for (int32_t i = 0; i < n * q->n_groups; i++) {
            q->zero[i] = (int8_t)((int32_t)(random_u32() % 17) - 8);
        }
    }
    if (f->perm) {
        q->perm = bt_arena_take_array(arena, (size_t)k, sizeof *q->perm);
        memcpy(q->perm, perm, (size_t)k * sizeof *perm);
    }
}

static void random_tensor(struct bt_arena *arena, enum bt_dtype dtype, int32_t rows, int32_t cols,
                          float bound, struct bt_tensor *t)
{
    struct bt_error err = {0};
    cr_assert_eq(bt_tensor_init(t, arena, dtype, rows, cols, &err), BT_OK, "%s", err.msg);
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        float v = random_f32(bound);
        bt_dtype_from_f32(dtype, &v, (char *)t->p + (size_t)i * bt_dtype_bytes(dtype), 1);
    }
}

static enum bt_dtype dtype_of(enum bt_weight_format w)
{
    return w == BT_WEIGHT_FP32 ? BT_DTYPE_F32 : w == BT_WEIGHT_FP16 ? BT_DTYPE_F16 : BT_DTYPE_BF16;
}

static const float STATIC_SCALE = 1.0f / 100.0f;

static void random_layer(const struct format *f, struct bt_arena *arena, int32_t n, int32_t k,
                         const int32_t *perm, struct bt_linear *l)
{
    *l = (struct bt_linear){.n_out = n, .n_in = k, .act = f->act};
    l->quantised = bt_weight_format_bits(f->weights) < 16;
    l->act_scale = f->act == BT_ACT_INT8_STATIC ? STATIC_SCALE : 0.0f;
    if (l->quantised) {
        random_quantised(f, arena, n, k, perm, &l->q);
    } else {
        random_tensor(arena, dtype_of(f->weights), n, k, 0.1f, &l->w);
    }
    if (f->bias) {
        random_tensor(arena, BT_DTYPE_F16, 1, n, 1.0f, &l->bias);
    }
}

/* ---- one layer under test ---- */

struct fixture {
    const struct format *f;
    int32_t n, k, m; /* m: rows of x and of the reference */
    struct bt_arena arena;
    struct bt_linear parts[MAX_PARTS];
    int32_t n_parts;
    float *x;      /* [m, K] as the kernels read them */
    uint16_t *x16; /* [m, K] of the compute type */
    int8_t *x8;
    float *x_scale;
    double *ref;  /* [m, N] */
    double *size; /* [m, N]: root of the sum of squared products */
    float *bias;  /* [N] */
    struct bt_cuda_arena device;
    struct bt_cuda_gemm *gemm;
    struct bt_cuda_linear layer;
    struct bt_cuda_x dx;
    uint8_t *dy;
};

static bool is_int8(const struct format *f)
{
    return f->act == BT_ACT_INT8_DYNAMIC || f->act == BT_ACT_INT8_STATIC;
}

/* Rows from..to - 1 get new values. */
static void random_rows(struct fixture *t, int32_t from, int32_t to)
{
    enum bt_dtype type = t->f->compute == BT_ACT_BF16 ? BT_DTYPE_BF16 : BT_DTYPE_F16;
    int16_t *q = malloc((size_t)t->k * sizeof *q);
    for (int32_t i = from; i < to; i++) {
        size_t at = (size_t)i * (size_t)t->k;
        float *x = t->x + at;
        for (int32_t j = 0; j < t->k; j++) {
            x[j] = random_f32(1.3f);
        }
        bt_dtype_from_f32(type, x, t->x16 + at, (size_t)t->k);
        bt_dtype_to_f32(type, t->x16 + at, x, (size_t)t->k);
        t->x_scale[i] =
            bt_cpu_quantise_row(x, t->k, t->f->act == BT_ACT_INT8_STATIC ? STATIC_SCALE : 0.0f, q);
        for (int32_t j = 0; j < t->k; j++) {
            t->x8[at + (size_t)j] = (int8_t)q[j];
        }
    }
    free(q);
}

static void upload_rows(struct fixture *t)
{
    int64_t n = (int64_t)t->m * t->k;
    rig_write((void *)t->dx.x16, t->x16, n * 2);
    rig_write((void *)t->dx.x8, t->x8, n);
    rig_write((void *)t->dx.x_scale, t->x_scale, (int64_t)t->m * 4);
}

/* Row i of x, as the kernels read it, times w [K]; and the root of the products' squares. */
static void dot(const struct fixture *t, int32_t i, const float *w, double *product, double *size)
{
    size_t at = (size_t)i * (size_t)t->k;
    bool int8 = is_int8(t->f);
    enum { LANES = 8 };
    double sum[LANES] = {0};
    double squares[LANES] = {0};
    for (int32_t j = 0; j < t->k; j++) {
        double v = int8 ? (double)t->x8[at + (size_t)j] : (double)t->x[at + (size_t)j];
        v *= (double)w[j];
        sum[j % LANES] += v;
        squares[j % LANES] += v * v;
    }
    for (int32_t j = 1; j < LANES; j++) {
        sum[0] += sum[j];
        squares[0] += squares[j];
    }
    double scale = int8 ? (double)t->x_scale[i] : 1.0;
    *product = sum[0] * scale;
    *size = sqrt(squares[0]) * scale;
}

static void reference(struct fixture *t)
{
    float *w = malloc((size_t)t->k * sizeof *w);
    int32_t n0 = 0;
    for (int32_t p = 0; p < t->n_parts; p++) {
        const struct bt_linear *l = &t->parts[p];
        for (int32_t n = 0; n < l->n_out; n++) {
            bt_linear_row_f32(l, n, w);
            for (int32_t j = 0; j < t->k && !l->quantised; j++) {
                /* What the layer holds of it. */
                uint16_t h;
                bool bf16 = t->f->compute == BT_ACT_BF16;
                bt_dtype_from_f32(bf16 ? BT_DTYPE_BF16 : BT_DTYPE_F16, &w[j], &h, 1);
                w[j] = bf16 ? bt_bf16_to_f32(h) : bt_f16_to_f32(h);
            }
            float bias = 0.0f;
            if (l->bias.p != NULL) {
                bias = bt_f16_to_f32(((const uint16_t *)l->bias.p)[n]);
            }
            for (int32_t i = 0; i < t->m; i++) {
                size_t at = (size_t)i * (size_t)t->n + (size_t)(n0 + n);
                dot(t, i, w, &t->ref[at], &t->size[at]);
                t->ref[at] += (double)bias;
                t->bias[n0 + n] = bias;
            }
        }
        n0 += l->n_out;
    }
    free(w);
}

static void setup(struct fixture *t, const struct format *f, struct size s, int32_t m)
{
    memset(t, 0, sizeof *t);
    t->f = f;
    t->n = s.n;
    t->k = s.k;
    t->m = m;
    bt_arena_init(&t->arena, 0);
    struct bt_error err = {0};
    int32_t *perm = malloc((size_t)s.k * sizeof *perm);
    for (int32_t j = 0; j < s.k; j++) {
        int32_t other = (int32_t)(random_u32() % (uint32_t)(j + 1));
        perm[j] = j;
        perm[j] = perm[other];
        perm[other] = j;
    }
    t->n_parts = s.n < MAX_PARTS ? 1 : 1 + (int32_t)(random_u32() % MAX_PARTS);
    const struct bt_linear *parts[MAX_PARTS];
    for (int32_t p = 0, n0 = 0; p < t->n_parts; p++) {
        int32_t n = p + 1 == t->n_parts ? s.n - n0 : s.n / t->n_parts;
        random_layer(f, &t->arena, n, s.k, perm, &t->parts[p]);
        parts[p] = &t->parts[p];
        n0 += n;
    }
    free(perm);
    size_t rows_in = (size_t)m * (size_t)s.k;
    size_t rows_out = (size_t)m * (size_t)s.n;
    t->x = bt_arena_take_array(&t->arena, rows_in, sizeof *t->x);
    t->x16 = bt_arena_take_array(&t->arena, rows_in, sizeof *t->x16);
    t->x8 = bt_arena_take_array(&t->arena, rows_in, sizeof *t->x8);
    t->x_scale = bt_arena_take_array(&t->arena, (size_t)m, sizeof *t->x_scale);
    t->ref = bt_arena_take_array(&t->arena, rows_out, sizeof *t->ref);
    t->size = bt_arena_take_array(&t->arena, rows_out, sizeof *t->size);
    t->bias = bt_arena_take_array(&t->arena, (size_t)s.n, sizeof *t->bias);
    random_rows(t, 0, m);
    reference(t);

    bt_cuda_arena_init(&t->device, "test");
    struct bt_cuda_gemm_opts o = {
        .device = rig_device(), .compute = f->compute, .max_rows = m, .arena = &t->device};
    cr_assert_eq(bt_cuda_gemm_create(&o, &t->gemm, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_cuda_linear_load(t->gemm, &t->device, parts, t->n_parts, &t->layer, &err),
                 BT_OK, "%s", err.msg);
    t->dx.x16 = rig_upload(&t->device, t->x16, (int64_t)rows_in * 2);
    t->dx.x8 = rig_upload(&t->device, t->x8, (int64_t)rows_in);
    t->dx.x_scale = rig_upload(&t->device, t->x_scale, (int64_t)m * 4);
    t->dy = rig_take(&t->device, (int64_t)rows_out * 4 + GUARD_BYTES);
}

static void teardown(struct fixture *t)
{
    bt_cuda_gemm_destroy(t->gemm);
    bt_cuda_arena_fini(&t->device);
    bt_arena_fini(&t->arena);
}

/* Runs a kernel into poisoned memory; y [m * N] bytes as they are, the guard checked. The caller
 * frees it. */
static uint8_t *run(struct fixture *t, int32_t kernel, int32_t m, enum bt_cuda_y type)
{
    size_t bytes = (size_t)m * (size_t)t->n * (type == BT_CUDA_Y_F32 ? 4 : 2);
    uint8_t *y = malloc(bytes + GUARD_BYTES);
    struct bt_error err = {0};
    rig_poison(t->dy, (int64_t)bytes + GUARD_BYTES);
    cr_assert_eq(
        bt_cuda_linear_run_with(t->gemm, kernel, &t->layer, &t->dx, m, t->dy, type, NULL, &err),
        BT_OK, "%s", err.msg);
    rig_download(y, t->dy, (int64_t)bytes + GUARD_BYTES);
    for (size_t i = bytes; i < bytes + GUARD_BYTES; i++) {
        cr_assert_eq(y[i], RIG_POISON, "%s: %s: N %d K %d m %d: written past the end", t->f->name,
                     bt_cuda_linear_kernel_name(t->gemm, kernel, &t->layer, m), t->n, t->k, m);
    }
    return y;
}

static double value_at(const struct fixture *t, const uint8_t *y, enum bt_cuda_y type, size_t i)
{
    float v = 0.0f;
    if (type == BT_CUDA_Y_F32) {
        memcpy(&v, y + i * 4, 4);
        return (double)v;
    }
    uint16_t h;
    memcpy(&h, y + i * 2, 2);
    return (double)(t->f->compute == BT_ACT_BF16 ? bt_bf16_to_f32(h) : bt_f16_to_f32(h));
}

/* Worst error over what is allowed: half a unit in the last place of y and of the bias, doubled,
 * and of the sum itself the products' random walk times `sum`. */
static double worst(const struct fixture *t, const uint8_t *y, int32_t m, enum bt_cuda_y type,
                    double sum)
{
    double last = type == BT_CUDA_Y_F32 ? 0x1p-22 : t->f->compute == BT_ACT_BF16 ? 0x1p-7 : 0x1p-10;
    double max = 0.0;
    for (size_t i = 0; i < (size_t)m * (size_t)t->n; i++) {
        double off = fabs(value_at(t, y, type, i) - t->ref[i]);
        double scale = fabs(t->ref[i]) + fabs((double)t->bias[i % (size_t)t->n]);
        double part = off / (last * scale + sum * t->size[i] + 1e-7);
        max = part <= max ? max : part; /* NaN counts */
        if (isnan(part)) {
            return INFINITY;
        }
    }
    return max;
}

/* Weights that are rounded to 16 bits once; else only float sums are inexact. */
static double sum_budget(const struct fixture *t, const char *kernel, int32_t m)
{
    bool folds = m > 64 && (strcmp(kernel, "wgmma-256") == 0 || strcmp(kernel, "cluster-256") == 0);
    if (strcmp(kernel, "expand+cublas") != 0 && !folds) {
        return 4e-5;
    }
    return is_int8(t->f) || t->f->compute == BT_ACT_FP16 ? 4 * 0x1p-11 : 4 * 0x1p-8;
}

static void check_kernel(struct fixture *t, int32_t kernel)
{
    for (int32_t r = 0; r < ROWS_TRIED && rows_tried[r] <= t->m; r++) {
        int32_t m = rows_tried[r];
        const char *name = bt_cuda_linear_kernel_name(t->gemm, kernel, &t->layer, m);
        if (name == NULL) {
            continue;
        }
        double sum = sum_budget(t, name, m);
        enum bt_cuda_y type = r % 3 == 1 ? BT_CUDA_Y_F32 : BT_CUDA_Y_COMPUTE;
        uint8_t *y = run(t, kernel, m, type);
        double off = worst(t, y, m, type, sum);
        cr_expect_leq(off, 1.0, "%s: %s: N %d K %d m %d %s: error is %.3g of what is allowed",
                      t->f->name, name, t->n, t->k, m, type == BT_CUDA_Y_F32 ? "f32" : "16-bit",
                      off);
        uint8_t *again = run(t, kernel, m, type);
        size_t bytes = (size_t)m * (size_t)t->n * (type == BT_CUDA_Y_F32 ? 4 : 2);
        cr_expect_arr_eq(y, again, bytes, "%s: %s: N %d K %d m %d: another run differs", t->f->name,
                         name, t->n, t->k, m);
        free(y);
        free(again);
    }
}

static int32_t most_rows(struct size s)
{
    return (int64_t)s.n * s.k > 2000000 ? 33 : MAX_ROWS;
}

/* Every size and kernel of the formats of one kind of weights: bits 16 for dense ones. */
static void check_formats(int32_t bits, bool int8)
{
    rig_rng(&rng, "linear");
    for (int32_t f = 0; f < FORMATS; f++) {
        int32_t of = bt_weight_format_bits(formats[f].weights);
        if ((of < 16 ? of : 16) != bits || is_int8(&formats[f]) != int8) {
            continue;
        }
        for (int32_t s = 0; s < SIZES; s++) {
            struct fixture t;
            setup(&t, &formats[f], sizes[s], most_rows(sizes[s]));
            for (int32_t k = 0; k < bt_cuda_linear_kernels(); k++) {
                check_kernel(&t, k);
            }
            teardown(&t);
        }
    }
}

Test(linear, kernels_of_16_bit_weights_are_within_their_budget, .timeout = 300)
{
    check_formats(16, false);
}

Test(linear, kernels_of_int8_weights_are_within_their_budget, .timeout = 300)
{
    check_formats(8, false);
}

Test(linear, kernels_of_int8_weights_and_inputs_are_within_their_budget, .timeout = 300)
{
    check_formats(8, true);
}

Test(linear, kernels_of_int4_weights_are_within_their_budget, .timeout = 300)
{
    check_formats(4, false);
}

Test(linear, kernels_of_int4_weights_and_int8_inputs_are_within_their_budget, .timeout = 300)
{
    check_formats(4, true);
}

Test(linear, the_reference_is_the_cpus, .timeout = 120)
{
    (void)rig_device();
    rig_rng(&rng, "linear");
    for (int32_t f = 0; f < FORMATS; f++) {
        if (formats[f].weights == BT_WEIGHT_FP32) {
            continue; /* the GPU rounds these weights, the CPU does not */
        }
        struct fixture t;
        setup(&t, &formats[f], (struct size){100, 200}, 5);
        struct bt_cpu_work work;
        struct bt_error err = {0};
        cr_assert_eq(bt_cpu_work_init(&work, &t.arena, t.m, t.k, 1, &err), BT_OK, "%s", err.msg);
        for (int32_t p = 0, n0 = 0; p < t.n_parts; n0 += t.parts[p].n_out, p++) {
            const struct bt_linear *l = &t.parts[p];
            float *y = malloc((size_t)t.m * (size_t)l->n_out * sizeof *y);
            bt_cpu_linear(&work, l, t.x, t.m, y);
            for (int32_t i = 0; i < t.m * l->n_out; i++) {
                size_t at = (size_t)(i / l->n_out) * (size_t)t.n + (size_t)(n0 + i % l->n_out);
                cr_expect_float_eq((double)y[i], t.ref[at], 1e-5 * (1.0 + t.size[at]), "%s",
                                   formats[f].name);
            }
            free(y);
        }
        teardown(&t);
    }
}

Test(linear, a_row_does_not_depend_on_the_others, .timeout = 300)
{
    rig_rng(&rng, "linear");
    for (int32_t f = 0; f < FORMATS; f++) {
        struct fixture t;
        setup(&t, &formats[f], (struct size){200, 320}, 66);
        for (int32_t k = 0; k < bt_cuda_linear_kernels(); k++) {
            for (int32_t r = 1; r < ROWS_TRIED && rows_tried[r] <= t.m; r++) {
                int32_t m = rows_tried[r];
                const char *name = bt_cuda_linear_kernel_name(t.gemm, k, &t.layer, m);
                if (name == NULL) {
                    continue;
                }
                int32_t keep = m / 2;
                size_t row = (size_t)t.n * 2;
                uint8_t *y = run(&t, k, m, BT_CUDA_Y_COMPUTE);
                random_rows(&t, 0, keep);
                random_rows(&t, keep + 1, t.m);
                upload_rows(&t);
                uint8_t *other = run(&t, k, m, BT_CUDA_Y_COMPUTE);
                cr_expect_arr_eq(y + (size_t)keep * row, other + (size_t)keep * row, row,
                                 "%s: %s: m %d", formats[f].name, name, m);
                free(y);
                free(other);
            }
        }
        teardown(&t);
    }
}

/* Products and norms in turn, as a decoder has them: each reads what the one before it wrote. */
struct chain {
    struct fixture t;
    void *residual, *weight;
    uint8_t *start; /* host: what the residual begins with */
    int64_t bytes;  /* of the residual */
    cudaStream_t stream;
};

enum { CHAIN = 24, CHAIN_REPLAYS = 4 };

static void chain_run(struct chain *c, int32_t kernel, int32_t m, bool wait)
{
    struct fixture *t = &c->t;
    struct bt_cuda_types types = {t->f->compute, t->f->compute};
    struct bt_cuda_out out = {.out16 = (void *)t->dx.x16};
    if (is_int8(t->f)) {
        out = (struct bt_cuda_out){.out8 = (int8_t *)t->dx.x8, .out_scale = (float *)t->dx.x_scale};
    }
    struct bt_error err = {0};
    for (int32_t i = 0; i < CHAIN; i++) {
        bt_cuda_add_norm(types, c->residual, i == 0 ? NULL : t->dy, c->weight, 1e-5f, m, t->k, out,
                         c->stream);
        if (wait) {
            cr_assert_eq(cudaStreamSynchronize(c->stream), cudaSuccess);
        }
        cr_assert_eq(bt_cuda_linear_run_with(t->gemm, kernel, &t->layer, &t->dx, m, t->dy,
                                             BT_CUDA_Y_COMPUTE, c->stream, &err),
                     BT_OK, "%s", err.msg);
        if (wait) {
            cr_assert_eq(cudaStreamSynchronize(c->stream), cudaSuccess);
        }
    }
}

static void check_chain(struct chain *c, int32_t kernel, int32_t m, const char *name)
{
    uint8_t *expected = malloc((size_t)c->bytes);
    uint8_t *got = malloc((size_t)c->bytes);
    rig_write(c->residual, c->start, c->bytes);
    chain_run(c, kernel, m, true);
    rig_download(expected, c->residual, c->bytes);
    cr_expect_neq(memcmp(expected, c->start, (size_t)c->bytes), 0, "%s: nothing was added", name);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cr_assert_eq(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    chain_run(c, kernel, m, false);
    cr_assert_eq(cudaStreamEndCapture(c->stream, &graph), cudaSuccess);
    cr_assert_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int32_t i = 0; i < CHAIN_REPLAYS; i++) {
        rig_write(c->residual, c->start, c->bytes);
        cr_assert_eq(cudaGraphLaunch(exec, c->stream), cudaSuccess);
        rig_download(got, c->residual, c->bytes);
        cr_expect_arr_eq(got, expected, (size_t)c->bytes, "%s: %s: m %d", c->t.f->name, name, m);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    free(expected);
    free(got);
}

Test(linear, a_chain_in_a_graph_is_the_same_as_launch_by_launch, .timeout = 120)
{
    static const int32_t chained[] = {0, 3, 6, 9, 11, 16};
    static const int32_t rows[] = {1, 8, 33};
    rig_rng(&rng, "linear");
    for (size_t f = 0; f < sizeof chained / sizeof *chained; f++) {
        struct chain c;
        setup(&c.t, &formats[chained[f]], (struct size){1024, 1024}, 33);
        c.bytes = (int64_t)c.t.m * c.t.k * 2;
        c.start = malloc((size_t)c.bytes);
        memcpy(c.start, c.t.x16, (size_t)c.bytes);
        c.residual = rig_take(&c.t.device, c.bytes);
        c.weight = rig_upload(&c.t.device, c.t.x16, (int64_t)c.t.k * 2);
        cr_assert_eq(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking), cudaSuccess);
        for (int32_t k = 0; k < bt_cuda_linear_kernels(); k++) {
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                const char *name = bt_cuda_linear_kernel_name(c.t.gemm, k, &c.t.layer, rows[r]);
                if (name != NULL) {
                    check_chain(&c, k, rows[r], name);
                }
            }
        }
        (void)cudaStreamDestroy(c.stream);
        free(c.start);
        teardown(&c.t);
    }
}

Test(linear, tuning_keeps_results_and_explains_them, .timeout = 120)
{
    rig_rng(&rng, "linear");
    struct fixture t;
    setup(&t, &formats[9], (struct size){768, 1024}, 64);
    struct bt_error err = {0};
    cr_assert_eq(bt_cuda_gemm_tune(t.gemm, &err), BT_OK, "%s", err.msg);
    for (int32_t r = 0; r < ROWS_TRIED && rows_tried[r] <= t.m; r++) {
        int32_t m = rows_tried[r];
        cr_assert_eq(
            bt_cuda_linear_run(t.gemm, &t.layer, &t.dx, m, t.dy, BT_CUDA_Y_COMPUTE, NULL, &err),
            BT_OK, "%s", err.msg);
        uint8_t *y = malloc((size_t)m * (size_t)t.n * 2);
        rig_download(y, t.dy, (int64_t)m * t.n * 2);
        cr_expect_leq(worst(&t, y, m, BT_CUDA_Y_COMPUTE, 5 * 0x1p-9), 1.0);
        free(y);
    }
    char text[8192] = {0};
    FILE *out = fmemopen(text, sizeof text, "w");
    bt_cuda_gemm_explain(t.gemm, out);
    (void)fclose(out);
    cr_expect_not_null(strstr(text, "W4A16"), "%s", text);
    cr_expect_null(strstr(text, " - "), "%s", text);
    teardown(&t);
}

/* silu(gate) * up of the reference's sums, gate first. What is allowed: gate's rounding by silu's
 * slope, those of silu, up and the result, and what the sums' own errors make of it. */
static void check_silu(const struct format *f, struct size s, int32_t m)
{
    struct fixture t;
    setup(&t, f, s, m);
    if (!bt_cuda_linear_fuses_silu(t.gemm, &t.layer, m)) {
        cr_expect(rig_device()->cc != 90, "N %d K %d m %d: not fused", s.n, s.k, m);
        teardown(&t);
        return;
    }
    int32_t n = s.n / 2;
    size_t bytes = (size_t)m * (size_t)n * 2;
    uint8_t *y = malloc(bytes + GUARD_BYTES);
    struct bt_error err = {0};
    rig_poison(t.dy, (int64_t)bytes + GUARD_BYTES);
    cr_assert_eq(bt_cuda_linear_silu(t.gemm, &t.layer, t.dx.x16, m, t.dy, NULL, &err), BT_OK, "%s",
                 err.msg);
    rig_download(y, t.dy, (int64_t)bytes + GUARD_BYTES);
    double half = f->compute == BT_ACT_BF16 ? 0x1p-8 : 0x1p-11; /* a unit in the last place */
    double max = 0.0;
    for (int32_t i = 0; i < m; i++) {
        for (int32_t j = 0; j < n; j++) {
            size_t at = (size_t)i * (size_t)s.n + (size_t)j;
            double gate = t.ref[at];
            double up = t.ref[at + (size_t)n];
            double sigmoid = 1.0 / (1.0 + exp(-gate));
            double silu = gate * sigmoid;
            double slope = sigmoid + silu * (1.0 - sigmoid);
            double sums =
                4e-5 * (t.size[at] * fabs(slope * up) + t.size[at + (size_t)n] * fabs(silu));
            double rounded = half * (fabs(gate * slope * up) + 3.0 * fabs(silu * up));
            double off =
                value_at(&t, y, BT_CUDA_Y_COMPUTE, (size_t)i * (size_t)n + (size_t)j) - silu * up;
            double part = fabs(off) / (1.05 * rounded + sums + 1e-6);
            max = part <= max ? max : isnan(part) ? INFINITY : part;
        }
    }
    cr_expect_leq(max, 1.0, "%s: N %d K %d m %d: %g of the budget", f->name, s.n, s.k, m, max);
    for (size_t i = bytes; i < bytes + GUARD_BYTES; i++) {
        cr_assert_eq(y[i], RIG_POISON, "%s: N %d K %d m %d: written past the end", f->name, s.n,
                     s.k, m);
    }
    free(y);
    teardown(&t);
}

Test(linear, gate_and_up_leave_one_kernel_multiplied, .timeout = 300)
{
    static const struct size pairs[] = {{512, 128}, {400, 72}, {2 * 137, 200}, {8, 1032}};
    rig_rng(&rng, "gate and up");
    for (int32_t i = 0; i < 4; i++) {
        for (int32_t k = 0; k < 2; k++) {
            struct format f = formats[k];
            f.bias = false;
            check_silu(&f, pairs[i], i % 2 == 0 ? 1024 : 1031);
        }
    }
}

Test(linear, layers_that_differ_are_refused_side_by_side)
{
    rig_rng(&rng, "linear");
    struct fixture t;
    setup(&t, &formats[9], (struct size){64, 128}, 1);
    struct bt_linear other;
    random_layer(&formats[0], &t.arena, 64, 128, NULL, &other);
    const struct bt_linear *parts[] = {&t.parts[0], &other};
    struct bt_error err = {0};
    struct bt_cuda_linear l;
    cr_assert_eq(bt_cuda_linear_load(t.gemm, &t.device, parts, 2, &l, &err), BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "layer 2 of 2"), "%s", err.msg);
    teardown(&t);
}
