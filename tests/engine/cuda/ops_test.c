/* The small operations against engine/cpu. Where no sum over a row is involved the bits are equal;
 * norms may differ by the order of their sums. Every output is poisoned first and has a guard
 * behind it. */
#include "engine/cpu/kv_pool.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/ops.h"
#include "engine/cuda/ops.h"
#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };

static const struct types {
    const char *name;
    struct bt_cuda_types t;
} all_types[] = {
    {"bf16", {BT_ACT_BF16, BT_ACT_BF16}},
    {"bf16, residual fp32", {BT_ACT_BF16, BT_ACT_FP32}},
    {"fp16", {BT_ACT_FP16, BT_ACT_FP16}},
    {"fp16, residual fp32", {BT_ACT_FP16, BT_ACT_FP32}},
};
enum { N_TYPES = sizeof all_types / sizeof *all_types };

static const int32_t widths[] = {1, 8, 63, 1000, 4096, 5120, 9000, 16384, 17003};
enum { N_WIDTHS = sizeof widths / sizeof *widths, ROWS = 3 };

static struct bt_cuda_arena arena;
static struct bt_rng rng;

static void start(const char *name)
{
    (void)rig_device();
    rig_rng(&rng, name);
    bt_cuda_arena_init(&arena, name);
}

static void *take_host(size_t bytes)
{
    void *p = calloc(bytes + 1, 1);
    cr_assert_not_null(p);
    return p;
}

static enum bt_dtype dtype_of(enum bt_act_format f)
{
    return f == BT_ACT_BF16 ? BT_DTYPE_BF16 : f == BT_ACT_FP16 ? BT_DTYPE_F16 : BT_DTYPE_F32;
}

/* n random numbers that the type holds exactly, on the host as floats and on the device. */
struct numbers {
    float *host;
    void *device;
    int64_t n, bytes;
    enum bt_act_format type;
};

static struct numbers draw(enum bt_act_format type, int64_t n, double spread)
{
    struct numbers x = {.n = n, .type = type};
    x.bytes = n * (int64_t)bt_dtype_bytes(dtype_of(type));
    x.host = take_host((size_t)n * sizeof *x.host);
    for (int64_t i = 0; i < n; i++) {
        x.host[i] = (float)(bt_rng_normal(&rng) * spread);
    }
    bt_cpu_round(x.host, n, type);
    uint8_t *raw = take_host((size_t)x.bytes);
    bt_dtype_from_f32(dtype_of(type), x.host, raw, (size_t)n);
    x.device = rig_upload(&arena, raw, x.bytes);
    free(raw);
    return x;
}

/* An output of the device, to be compared with floats. */
static struct numbers expect_here(enum bt_act_format type, int64_t n)
{
    struct numbers x = {.n = n, .type = type};
    x.bytes = n * (int64_t)bt_dtype_bytes(dtype_of(type));
    x.host = take_host((size_t)n * sizeof *x.host);
    x.device = rig_take(&arena, x.bytes + GUARD);
    return x;
}

static void drop(struct numbers *x)
{
    free(x->host);
}

static void expect_guard(const uint8_t *behind, const char *what)
{
    for (int32_t i = 0; i < GUARD; i++) {
        cr_assert_eq(behind[i], RIG_POISON, "%s: written %d bytes behind its end", what, i);
    }
}

/* Units in the last place between two values of a type, as that type counts them. */
static int64_t ulps(enum bt_act_format type, float a, float b)
{
    int64_t m[2];
    float v[2] = {a, b};
    for (int32_t i = 0; i < 2; i++) {
        uint32_t bits = bt_f32_to_bits(v[i]);
        if (type != BT_ACT_FP32) {
            bits = type == BT_ACT_BF16 ? bt_f32_to_bf16(v[i]) : bt_f32_to_f16(v[i]);
        }
        uint32_t sign = type == BT_ACT_FP32 ? 0x80000000u : 0x8000u;
        m[i] = (bits & sign) != 0 ? -(int64_t)(bits & ~sign) : (int64_t)bits;
    }
    return llabs(m[0] - m[1]);
}

/* Reads the device's numbers into a new array. */
static float *read_numbers(const struct numbers *x, bool guarded, const char *what)
{
    uint8_t *raw = take_host((size_t)x->bytes + GUARD);
    rig_download(raw, x->device, x->bytes + (guarded ? GUARD : 0));
    if (guarded) {
        expect_guard(raw + x->bytes, what);
    }
    float *got = take_host((size_t)x->n * sizeof *got);
    bt_dtype_to_f32(dtype_of(x->type), raw, got, (size_t)x->n);
    free(raw);
    return got;
}

/* At most `limit` units off, and only `share` of the numbers off at all. */
static void expect_close(const struct numbers *want, bool guarded, int64_t limit, double share,
                         const char *op, const char *types, int32_t n)
{
    float *got = read_numbers(want, guarded, op);
    int64_t off = 0;
    for (int64_t i = 0; i < want->n; i++) {
        int64_t d = ulps(want->type, got[i], want->host[i]);
        off += d != 0;
        cr_assert_leq(d, limit, "%s, %s, n %d: [%lld] is %.9g, not %.9g", op, types, n,
                      (long long)i, (double)got[i], (double)want->host[i]);
    }
    cr_expect_leq((double)off, share * (double)want->n + 1.0, "%s, %s, n %d: %lld of %lld differ",
                  op, types, n, (long long)off, (long long)want->n);
    free(got);
}

static void expect_same(const struct numbers *want, bool guarded, const char *op, const char *types,
                        int32_t n)
{
    expect_close(want, guarded, 0, 0.0, op, types, n);
}

/* An output of rows in both forms. */
struct rows_out {
    struct numbers y;
    struct bt_cuda_out out;
};

static struct rows_out take_out(enum bt_act_format type, int32_t rows, int32_t n, bool want16,
                                bool want8, float static_scale)
{
    struct rows_out o = {.y = expect_here(type, (int64_t)rows * n)};
    o.out.out16 = want16 ? o.y.device : NULL;
    o.out.static_scale = static_scale;
    if (want8) {
        o.out.out8 = rig_take(&arena, (int64_t)rows * n + GUARD);
        o.out.out_scale = rig_take(&arena, rows * 4 + GUARD);
    }
    return o;
}

/* The INT8 form is bt_cpu_quantise_row of the rows given. */
static void expect_int8(const struct rows_out *o, const float *x, int32_t rows, int32_t n,
                        const char *op)
{
    int64_t count = (int64_t)rows * n;
    int8_t *q = take_host((size_t)count + GUARD);
    float scales[ROWS + GUARD / 4];
    rig_download(q, o->out.out8, count + GUARD);
    expect_guard((const uint8_t *)q + count, op);
    rig_download(scales, o->out.out_scale, rows * 4 + GUARD);
    expect_guard((const uint8_t *)(scales + rows), op);
    int16_t *want = take_host((size_t)n * sizeof *want);
    for (int32_t i = 0; i < rows; i++) {
        float scale = bt_cpu_quantise_row(x + (size_t)i * (size_t)n, n, o->out.static_scale, want);
        if (o->out.static_scale == 0.0f) {
            cr_assert_eq(bt_f32_to_bits(scales[i]), bt_f32_to_bits(scale),
                         "%s, n %d: scale of row %d is %.9g, not %.9g", op, n, i, (double)scales[i],
                         (double)scale);
        }
        for (int32_t j = 0; j < n; j++) {
            int32_t have = q[(size_t)i * (size_t)n + (size_t)j];
            cr_assert_eq(have, want[j], "%s, n %d: [%d, %d], %.9g by %.9g, is %d, not %d", op, n, i,
                         j, (double)x[(size_t)i * (size_t)n + (size_t)j], (double)scale, have,
                         want[j]);
        }
    }
    free(want);
    free(q);
}

/* ---- rows ---- */

static void check_norm(const struct types *ty, int32_t n, bool with_add, bool want16, float fixed)
{
    struct bt_cuda_types t = ty->t;
    int64_t count = (int64_t)ROWS * n;
    struct numbers x = draw(t.residual, count, 2.0);
    struct numbers add = draw(t.compute, count, 1.0);
    struct numbers w = draw(t.compute, n, 1.0);
    bool want8 = !want16 || fixed > 0.0f;
    struct rows_out o = take_out(t.compute, ROWS, n, true, want8, fixed);
    bt_cuda_add_norm(t, x.device, with_add ? add.device : NULL, w.device, 1e-5f, ROWS, n, o.out,
                     NULL);
    if (with_add) {
        bt_cpu_add(x.host, add.host, count, t.residual);
    }
    bt_cpu_rms_norm(x.host, ROWS, n, w.host, 1e-5f, t.compute, o.y.host);
    expect_same(&x, false, "residual of add_norm", ty->name, n);
    /* A normal value off by one unit in the last place, times a weight: two. */
    expect_close(&o.y, true, 2, 0.01, "add_norm", ty->name, n);
    if (want8) {
        float *got = read_numbers(&o.y, true, "add_norm");
        expect_int8(&o, got, ROWS, n, "add_norm");
        /* Without the 16-bit form the same numbers come out. */
        struct rows_out alone = take_out(t.compute, ROWS, n, false, true, fixed);
        bt_cuda_add_norm(t, x.device, NULL, w.device, 1e-5f, ROWS, n, alone.out, NULL);
        expect_int8(&alone, got, ROWS, n, "add_norm, INT8 alone");
        free(got);
        drop(&alone.y);
    }
    drop(&x);
    drop(&add);
    drop(&w);
    drop(&o.y);
    bt_cuda_arena_fini(&arena);
}

Test(cuda_ops, residual_and_norm)
{
    start("norm");
    for (int32_t i = 0; i < N_TYPES; i++) {
        for (int32_t j = 0; j < N_WIDTHS; j++) {
            check_norm(&all_types[i], widths[j], false, true, 0.0f);
            check_norm(&all_types[i], widths[j], true, false, 0.0f);
            check_norm(&all_types[i], widths[j], true, true, 0.03f);
        }
    }
}

static void check_rows(const struct types *ty, int32_t n, float fixed)
{
    struct bt_cuda_types t = ty->t;
    int64_t count = (int64_t)ROWS * n;
    struct numbers x = draw(t.residual, count, 2.0);
    struct numbers y = draw(t.compute, count, 3.0);
    struct numbers gate_up = draw(t.compute, 2 * count, 6.0);
    bt_cuda_add(t, x.device, y.device, ROWS, n, NULL);
    bt_cpu_add(x.host, y.host, count, t.residual);
    expect_same(&x, false, "add", ty->name, n);

    struct rows_out q = take_out(t.compute, ROWS, n, false, true, fixed);
    bt_cuda_quantise(t, y.device, ROWS, n, q.out, NULL);
    expect_int8(&q, y.host, ROWS, n, "quantise");

    for (int32_t want8 = 0; want8 < 2; want8++) {
        struct rows_out o = take_out(t.compute, ROWS, n, true, want8 == 1, fixed);
        bt_cuda_silu_mul(t, gate_up.device, ROWS, n, o.out, NULL);
        for (int32_t i = 0; i < ROWS; i++) {
            float *to = o.y.host + (size_t)i * (size_t)n;
            const float *from = gate_up.host + (size_t)i * 2 * (size_t)n;
            memcpy(to, from, (size_t)n * sizeof *to);
            bt_cpu_silu_mul(to, from + n, n, t.compute);
        }
        expect_same(&o.y, true, "silu_mul", ty->name, n);
        if (want8 == 1) {
            expect_int8(&o, o.y.host, ROWS, n, "silu_mul");
        }
        drop(&o.y);
    }

    struct numbers h = draw(t.compute, count, 1.0);
    struct numbers sum = expect_here(t.compute, count);
    bt_cuda_medusa_add(t, h.device, y.device, ROWS, n, sum.device, NULL);
    memcpy(sum.host, y.host, (size_t)count * sizeof *sum.host);
    bt_cpu_silu(sum.host, count, t.compute);
    bt_cpu_add(sum.host, h.host, count, t.compute);
    expect_same(&sum, true, "medusa_add", ty->name, n);

    drop(&x);
    drop(&y);
    drop(&gate_up);
    drop(&q.y);
    drop(&h);
    drop(&sum);
    bt_cuda_arena_fini(&arena);
}

Test(cuda_ops, operations_on_rows)
{
    start("rows");
    for (int32_t i = 0; i < N_TYPES; i++) {
        for (int32_t j = 0; j < N_WIDTHS; j++) {
            check_rows(&all_types[i], widths[j], j % 2 == 0 ? 0.0f : 0.05f);
        }
    }
}

Test(cuda_ops, int8_of_extreme_rows)
{
    start("extremes");
    enum { N = 512 };
    static const float fill[] = {0.0f, 1e-30f, 3e38f};
    for (int32_t i = 0; i < 3; i++) {
        struct numbers x = draw(BT_ACT_BF16, N, 0.0);
        uint16_t raw[N];
        for (int32_t j = 0; j < N; j++) {
            x.host[j] = bt_bf16_to_f32(bt_f32_to_bf16(j % 3 == 0 ? -fill[i] : fill[i] / 7.0f));
            raw[j] = bt_f32_to_bf16(x.host[j]);
        }
        rig_write(x.device, raw, sizeof raw);
        struct rows_out q = take_out(BT_ACT_BF16, 1, N, false, true, 0.0f);
        bt_cuda_quantise(all_types[0].t, x.device, 1, N, q.out, NULL);
        expect_int8(&q, x.host, 1, N, "quantise");
        drop(&x);
        drop(&q.y);
    }
    bt_cuda_arena_fini(&arena);
}

/* The short formulas decide as the CPU does for every number of the type. */
Test(cuda_ops, silu_of_every_number)
{
    start("every silu");
    enum { N = 1 << 16 };
    static uint16_t raw[2 * N];
    for (int32_t i = 0; i < N_TYPES; i += 2) {
        struct bt_cuda_types t = all_types[i].t;
        bool bf16 = t.compute == BT_ACT_BF16;
        struct rows_out o = take_out(t.compute, 1, N, true, false, 0.0f);
        for (int32_t j = 0; j < N; j++) {
            /* An infinity or a NaN gives no number to compare: 1 in its place. */
            float gate = bf16 ? bt_bf16_to_f32((uint16_t)j) : bt_f16_to_f32((uint16_t)j);
            gate = isfinite(gate) ? gate : 1.0f;
            raw[j] = bf16 ? bt_f32_to_bf16(gate) : bt_f32_to_f16(gate);
            raw[N + j] = bf16 ? bt_f32_to_bf16(1.0f) : bt_f32_to_f16(1.0f);
            o.y.host[j] = gate;
        }
        bt_cuda_silu_mul(t, rig_upload(&arena, raw, sizeof raw), 1, N, o.out, NULL);
        bt_cpu_silu(o.y.host, N, t.compute);
        expect_same(&o.y, true, "silu of every number", all_types[i].name, N);
        drop(&o.y);
    }
    bt_cuda_arena_fini(&arena);
}

/* Numbers at and beside half steps, where a reciprocal in place of a division would show. */
Test(cuda_ops, int8_of_half_steps)
{
    start("half steps");
    enum { N = 4096, TRIES = 40 };
    for (int32_t i = 0; i < TRIES; i++) {
        struct numbers x = draw(BT_ACT_FP16, N, 0.0);
        uint16_t raw[N];
        float max = (float)ldexp(1.0 + bt_rng_uniform(&rng), (int)bt_rng_below(&rng, 12) - 6);
        max = i < 10 ? (float)(i + 1) : max;
        for (int32_t j = 0; j < N; j++) {
            float half_steps = (float)((int32_t)bt_rng_below(&rng, 255) - 127);
            x.host[j] = j == 0 ? max : max * half_steps / 254.0f;
            int32_t beside = half_steps != 0.0f && j > 0 ? j % 3 - 1 : 0;
            raw[j] = (uint16_t)(bt_f32_to_f16(x.host[j]) + beside);
            x.host[j] = bt_f16_to_f32(raw[j]);
        }
        rig_write(x.device, raw, sizeof raw);
        struct rows_out q = take_out(BT_ACT_FP16, 1, N, false, true, i % 4 == 3 ? max / 97 : 0.0f);
        bt_cuda_quantise(all_types[2].t, x.device, 1, N, q.out, NULL);
        expect_int8(&q, x.host, 1, N, "quantise");
        drop(&x);
        drop(&q.y);
    }
    bt_cuda_arena_fini(&arena);
}

/* Many rows are shared out among the multiprocessors in another way than few. */
Test(cuda_ops, int8_of_many_rows)
{
    start("many rows");
    enum { N = 13824, MANY = 200 };
    struct numbers gate_up = draw(BT_ACT_BF16, (int64_t)2 * MANY * N, 3.0);
    struct rows_out few = take_out(BT_ACT_BF16, ROWS, N, true, true, 0.0f);
    struct rows_out many = take_out(BT_ACT_BF16, MANY, N, true, true, 0.0f);
    bt_cuda_silu_mul(all_types[0].t, gate_up.device, ROWS, N, few.out, NULL);
    bt_cuda_silu_mul(all_types[0].t, gate_up.device, MANY, N, many.out, NULL);
    int8_t *a = take_host((size_t)ROWS * N);
    int8_t *b = take_host((size_t)ROWS * N);
    rig_download(a, few.out.out8, ROWS * N);
    rig_download(b, many.out.out8, ROWS * N);
    cr_expect_arr_eq(a, b, ROWS * N, "a row depends on how many there are");
    float *got = read_numbers(&many.y, true, "silu_mul");
    int8_t *q = take_host((size_t)MANY * N);
    float scales[MANY];
    int16_t want[N];
    rig_download(q, many.out.out8, MANY * N);
    rig_download(scales, many.out.out_scale, MANY * 4);
    for (int32_t i = 0; i < MANY; i++) {
        float scale = bt_cpu_quantise_row(got + i * N, N, 0.0f, want);
        cr_assert_eq(scales[i], scale, "row %d", i);
        for (int32_t j = 0; j < N; j++) {
            cr_assert_eq(q[i * N + j], want[j], "[%d, %d]", i, j);
        }
    }
    free(a);
    free(b);
    free(q);
    free(got);
    drop(&gate_up);
    drop(&few.y);
    drop(&many.y);
    bt_cuda_arena_fini(&arena);
}

/* ---- tables ---- */

static void check_embed(const struct types *ty, int32_t n)
{
    enum { VOCAB = 37, N_IDS = 5 };
    struct bt_cuda_types t = ty->t;
    static const int32_t ids[N_IDS] = {0, 36, 7, 7, 1};
    struct numbers table = draw(t.compute, (int64_t)VOCAB * n, 1.0);
    int32_t *ids_here = rig_upload(&arena, ids, sizeof ids);
    struct numbers x = expect_here(t.residual, (int64_t)N_IDS * n);
    bt_cuda_embed(t, ids_here, N_IDS, table.device, NULL, n, x.device, NULL);
    for (int32_t i = 0; i < N_IDS; i++) {
        memcpy(x.host + (size_t)i * (size_t)n, table.host + (size_t)ids[i] * (size_t)n,
               (size_t)n * sizeof *x.host);
    }
    expect_same(&x, true, "embed", ty->name, n);

    int8_t *q = take_host((size_t)VOCAB * (size_t)n);
    uint16_t scales[VOCAB];
    for (int32_t i = 0; i < VOCAB; i++) {
        scales[i] = bt_f32_to_f16((float)(0.001 + 0.01 * bt_rng_uniform(&rng)));
        for (int32_t j = 0; j < n; j++) {
            q[i * n + j] = (int8_t)((int32_t)bt_rng_below(&rng, 255) - 127);
        }
    }
    void *q_here = rig_upload(&arena, q, (int64_t)VOCAB * n);
    void *scales_here = rig_upload(&arena, scales, sizeof scales);
    rig_poison(x.device, x.bytes);
    bt_cuda_embed(t, ids_here, N_IDS, q_here, scales_here, n, x.device, NULL);
    for (int32_t i = 0; i < N_IDS; i++) {
        for (int32_t j = 0; j < n; j++) {
            x.host[i * n + j] = (float)q[ids[i] * n + j] * bt_f16_to_f32(scales[ids[i]]);
        }
    }
    bt_cpu_round(x.host, x.n, t.residual);
    expect_same(&x, true, "embed of int8 rows", ty->name, n);

    static const int32_t rows[] = {4, -1, 36, 4};
    int32_t *rows_here = rig_upload(&arena, rows, sizeof rows);
    struct numbers y = expect_here(t.compute, (int64_t)4 * n);
    bt_cuda_gather(table.device, rows_here, 4, n, y.device, NULL);
    for (int32_t i = 0; i < 4; i++) {
        for (int32_t j = 0; j < n; j++) {
            y.host[i * n + j] = rows[i] < 0 ? 0.0f : table.host[rows[i] * n + j];
        }
    }
    expect_same(&y, true, "gather", ty->name, n);
    free(q);
    drop(&table);
    drop(&x);
    drop(&y);
    bt_cuda_arena_fini(&arena);
}

Test(cuda_ops, rows_of_tables)
{
    start("tables");
    for (int32_t i = 0; i < N_TYPES; i++) {
        for (int32_t j = 0; j < N_WIDTHS; j++) {
            check_embed(&all_types[i], widths[j]);
        }
    }
}

Test(cuda_ops, ids_of_the_step_before)
{
    start("ids");
    enum { N = 301, SLOTS = 16 };
    int32_t ids[N];
    int32_t source[N];
    int32_t want[N];
    int32_t last[SLOTS];
    for (int32_t i = 0; i < SLOTS; i++) {
        last[i] = 1000 + i;
    }
    for (int32_t i = 0; i < N; i++) {
        int32_t slot = (int32_t)bt_rng_below(&rng, SLOTS);
        ids[i] = i;
        source[i] = i % 3 == 0 ? -1 - slot : i;
        want[i] = i % 3 == 0 ? last[slot] : i;
    }
    int32_t *ids_here = rig_upload(&arena, ids, sizeof ids);
    bt_cuda_take_ids(ids_here, rig_upload(&arena, source, sizeof source),
                     rig_upload(&arena, last, sizeof last), N, NULL);
    rig_download(ids, ids_here, sizeof ids);
    for (int32_t i = 0; i < N; i++) {
        cr_expect_eq(ids[i], want[i], "[%d] is %d, not %d", i, ids[i], want[i]);
    }
    bt_cuda_arena_fini(&arena);
}

/* ---- heads ---- */

enum { BATCH_ROWS = 9, BATCH_SEGMENTS = 5, TABLE = 8, POOL_BLOCKS = 32, MAX_POS = 64, LAYERS = 2 };

static const struct heads {
    const char *name;
    int32_t n_heads, n_kv_heads, head_dim;
    bool qk_norm;
    enum bt_act_format compute;
    enum bt_kv_format kv;
    bool two_classes; /* the second segment is of the 16-bit class */
    enum bt_kv_part_id part;
} all_heads[] = {
    {"mha bf16", 4, 4, 128, false, BT_ACT_BF16, BT_KV_BF16, false, BT_KV_PART_TARGET},
    {"mha int8", 4, 4, 128, false, BT_ACT_BF16, BT_KV_INT8, true, BT_KV_PART_TARGET},
    {"gqa int8 fp16", 8, 2, 64, false, BT_ACT_FP16, BT_KV_INT8, true, BT_KV_PART_DRAFT},
    {"gqa fp16 in bf16", 7, 1, 128, false, BT_ACT_BF16, BT_KV_FP16, false, BT_KV_PART_TARGET},
    {"odd heads int8", 3, 1, 80, false, BT_ACT_BF16, BT_KV_INT8, true, BT_KV_PART_TARGET},
    {"small heads", 2, 1, 2, false, BT_ACT_FP16, BT_KV_FP16, false, BT_KV_PART_DRAFT},
    {"wide heads", 2, 2, 256, false, BT_ACT_BF16, BT_KV_INT8, false, BT_KV_PART_TARGET},
    {"norms", 8, 4, 128, true, BT_ACT_BF16, BT_KV_BF16, false, BT_KV_PART_TARGET},
    {"norms int8", 4, 2, 64, true, BT_ACT_FP16, BT_KV_INT8, true, BT_KV_PART_TARGET},
};

/* Segments of 4, 1, 1, 0 and 0 rows (the last two padded), then 3 padded rows. */
static const int32_t first_row[BATCH_SEGMENTS + 1] = {0, 4, 5, 6, 6, 6};
static const int32_t pos0[BATCH_SEGMENTS] = {6, 37, 0, 0, 0};

struct heads_case {
    struct bt_arch arch;
    struct bt_kv_pool pool; /* the twin's */
    struct bt_cuda_kv kv;
    struct bt_cuda_batch batch;
    int32_t kv_class[BATCH_SEGMENTS];
    int32_t blocks[BATCH_SEGMENTS * TABLE];
    struct numbers qkv, q_norm, k_norm;
    struct bt_cuda_rope rope;
    float *angles; /* [MAX_POS][head_dim] */
    int64_t pool_bytes;
};

static void make_pools(struct heads_case *c, const struct heads *h)
{
    struct bt_error err = {0};
    struct bt_arch other = c->arch;
    other.n_layers = 1;
    other.n_kv_heads = 3;
    other.head_dim = 64;
    bool draft = h->part == BT_KV_PART_DRAFT;
    struct bt_block_layout *l = c->pool.layout;
    cr_assert_eq(bt_block_layout_init(&l[0], draft ? &other : &c->arch, draft ? &c->arch : &other,
                                      h->kv, 8, &err),
                 BT_OK, "%s", err.msg);
    if (h->two_classes) {
        enum bt_kv_format f = h->compute == BT_ACT_BF16 ? BT_KV_BF16 : BT_KV_FP16;
        cr_assert_eq(bt_block_layout_init_16bit(&l[1], &l[0], f, &err), BT_OK, "%s", err.msg);
    }
    c->pool_bytes = POOL_BLOCKS * l[0].block_bytes;
    c->pool.n_blocks = POOL_BLOCKS;
    c->pool.blocks = take_host((size_t)c->pool_bytes);
    memset(c->pool.blocks, RIG_POISON, (size_t)c->pool_bytes);
    c->kv = (struct bt_cuda_kv){.n_blocks = POOL_BLOCKS};
    memcpy(c->kv.layout, l, sizeof c->kv.layout);
    c->kv.blocks = rig_take(&arena, c->pool_bytes);
}

static void make_batch(struct heads_case *c, const struct heads *h)
{
    int32_t position[BATCH_ROWS];
    int32_t segment[BATCH_ROWS];
    int32_t next = 0;
    for (int32_t i = 0; i < BATCH_ROWS; i++) {
        position[i] = segment[i] = -1;
    }
    for (int32_t s = 0; s < BATCH_SEGMENTS; s++) {
        c->kv_class[s] = h->two_classes && s == 1;
        for (int32_t i = 0; i < TABLE; i++) {
            c->blocks[s * TABLE + i] = s < 3 ? (7 * next++ + 3) % POOL_BLOCKS : -1;
        }
        for (int32_t r = first_row[s]; r < first_row[s + 1]; r++) {
            position[r] = pos0[s] + r - first_row[s];
            segment[r] = s;
        }
    }
    c->batch = (struct bt_cuda_batch){
        .n_rows = BATCH_ROWS,
        .n_segments = BATCH_SEGMENTS,
        .max_blocks = TABLE,
        .position = rig_upload(&arena, position, sizeof position),
        .segment = rig_upload(&arena, segment, sizeof segment),
        .first_row = rig_upload(&arena, first_row, sizeof first_row),
        .pos0 = rig_upload(&arena, pos0, sizeof pos0),
        .kv_class = rig_upload(&arena, c->kv_class, sizeof c->kv_class),
        .blocks = rig_upload(&arena, c->blocks, sizeof c->blocks),
    };
}

static void make_angles(struct heads_case *c)
{
    float inv_freq[128];
    struct bt_cpu_rope rope;
    int32_t half = c->arch.head_dim / 2;
    bt_cpu_rope_init(&rope, &c->arch, inv_freq);
    c->angles = take_host(sizeof(float) * MAX_POS * 2 * (size_t)half);
    for (int32_t i = 0; i < MAX_POS; i++) {
        bt_cpu_rope_at(&rope, i, c->angles + 2 * i * half, c->angles + (2 * i + 1) * half);
    }
    c->rope.max_position = MAX_POS;
    c->rope.table = rig_upload(&arena, c->angles, (int64_t)sizeof(float) * MAX_POS * 2 * half);
}

/* The heads [head_dim] from `from` on, of the twin: norm, RoPE, rounding. */
static void place(const struct heads_case *c, float *x, int32_t n_heads, const float *norm,
                  int32_t position, enum bt_act_format round)
{
    int32_t d = c->arch.head_dim;
    const float *cosine = c->angles + position * d;
    if (norm != NULL) {
        bt_cpu_rms_norm(x, n_heads, d, norm, (float)c->arch.rms_eps, round, x);
    }
    bt_cpu_rope_apply(x, n_heads, d, cosine, cosine + d / 2);
    bt_cpu_round(x, (int64_t)n_heads * d, round);
}

static void run_twin(struct heads_case *c, const struct heads *h, int32_t layer)
{
    int32_t d = h->head_dim;
    int32_t row_heads = h->n_heads + 2 * h->n_kv_heads;
    for (int32_t s = 0; s < 3; s++) {
        for (int32_t r = first_row[s]; r < first_row[s + 1]; r++) {
            int32_t pos = pos0[s] + r - first_row[s];
            float *q = c->qkv.host + r * row_heads * d;
            float *k = malloc((size_t)(h->n_kv_heads * d) * sizeof *k);
            memcpy(k, q + h->n_heads * d, (size_t)(h->n_kv_heads * d) * sizeof *k);
            place(c, q, h->n_heads, h->qk_norm ? c->q_norm.host : NULL, pos, h->compute);
            place(c, k, h->n_kv_heads, h->qk_norm ? c->k_norm.host : NULL, pos, h->compute);
            int32_t tokens = c->pool.layout[c->kv_class[s]].block_tokens;
            int32_t block = c->blocks[s * TABLE + pos / tokens];
            bt_kv_pool_write(&c->pool, c->kv_class[s], h->part, layer, 0, block, pos % tokens, k);
            bt_kv_pool_write(&c->pool, c->kv_class[s], h->part, layer, 1, block, pos % tokens,
                             q + (h->n_heads + h->n_kv_heads) * d);
            free(k);
        }
    }
}

/* Two units of the last place of the largest numbers that come of a norm here (below 16), or two
 * steps of their INT8. */
#define NORM_SLACK 0.15f

/* Pools within what a norm's order of summation does: read as numbers. */
static void expect_pools_close(const struct heads_case *c, const struct heads *h, uint8_t *got)
{
    struct bt_kv_pool theirs = c->pool;
    theirs.blocks = got;
    float want[256];
    float have[256];
    for (int32_t s = 0; s < 3; s++) {
        int32_t end = pos0[s] + first_row[s + 1] - first_row[s];
        for (int32_t i = 0; i < 2 * h->n_kv_heads; i++) {
            for (int32_t pos = pos0[s]; pos < end; pos++) {
                bt_kv_pool_read(&c->pool, c->kv_class[s], h->part, 1, i % 2, i / 2,
                                c->blocks + s * TABLE, pos, pos + 1, want, 0);
                bt_kv_pool_read(&theirs, c->kv_class[s], h->part, 1, i % 2, i / 2,
                                c->blocks + s * TABLE, pos, pos + 1, have, 0);
                for (int32_t j = 0; j < h->head_dim; j++) {
                    cr_assert_float_eq(have[j], want[j], NORM_SLACK, "%s: %c of head %d at %d [%d]",
                                       h->name, i % 2 == 0 ? 'k' : 'v', i / 2, pos, j);
                }
            }
        }
    }
}

static void expect_pool(const struct heads_case *c, const struct heads *h)
{
    uint8_t *got = take_host((size_t)c->pool_bytes);
    rig_download(got, c->kv.blocks, c->pool_bytes);
    if (h->qk_norm) {
        expect_pools_close(c, h, got);
        int64_t written = 0;
        int64_t by_twin = 0;
        for (int64_t i = 0; i < c->pool_bytes; i++) {
            written += got[i] != RIG_POISON && c->pool.blocks[i] == RIG_POISON;
            by_twin += c->pool.blocks[i] != RIG_POISON;
        }
        cr_expect_leq((double)written, 0.02 * (double)by_twin, "%s: %lld bytes written beside",
                      h->name, (long long)written);
    } else {
        for (int64_t i = 0; i < c->pool_bytes; i++) {
            cr_assert_eq(got[i], c->pool.blocks[i], "%s: byte %lld of block %lld is %d, not %d",
                         h->name, (long long)(i % c->kv.layout[0].block_bytes),
                         (long long)(i / c->kv.layout[0].block_bytes), got[i], c->pool.blocks[i]);
        }
    }
    free(got);
}

static void check_heads(const struct heads *h, bool fused)
{
    struct heads_case c = {
        .arch = {.n_layers = LAYERS,
                 .n_heads = h->n_heads,
                 .n_kv_heads = h->n_kv_heads,
                 .head_dim = h->head_dim,
                 .rms_eps = 1e-6,
                 .rope = {.theta = 10000.0, .factor = 1.0}},
    };
    int32_t row_heads = h->n_heads + 2 * h->n_kv_heads;
    struct bt_cuda_types t = {h->compute, h->compute};
    make_pools(&c, h);
    make_batch(&c, h);
    make_angles(&c);
    c.qkv = draw(h->compute, (int64_t)BATCH_ROWS * row_heads * h->head_dim, 2.0);
    c.q_norm = draw(h->compute, h->head_dim, 1.0);
    c.k_norm = draw(h->compute, h->head_dim, 1.0);
    for (int32_t half = 0; half < (fused ? 1 : 2); half++) {
        bt_cuda_rope_kv(t, &c.kv, h->part, 1, &c.batch, c.rope, h->qk_norm ? c.q_norm.device : NULL,
                        h->qk_norm ? c.k_norm.device : NULL, (float)c.arch.rms_eps, h->n_heads,
                        c.qkv.device, fused || half == 0, fused || half == 1, NULL);
    }
    run_twin(&c, h, 1);
    expect_pool(&c, h);
    if (h->qk_norm) {
        float *got = read_numbers(&c.qkv, false, h->name);
        int64_t off = 0;
        for (int64_t i = 0; i < c.qkv.n; i++) {
            off += got[i] != c.qkv.host[i];
            cr_assert_float_eq(got[i], c.qkv.host[i], NORM_SLACK, "%s: [%lld]", h->name,
                               (long long)i);
        }
        cr_expect_leq((double)off, 0.02 * (double)c.qkv.n, "%s: %lld of %lld differ", h->name,
                      (long long)off, (long long)c.qkv.n);
        free(got);
    } else {
        expect_same(&c.qkv, false, h->name, "queries", h->head_dim);
    }
    drop(&c.qkv);
    drop(&c.q_norm);
    drop(&c.k_norm);
    free(c.angles);
    free(c.pool.blocks);
    bt_cuda_arena_fini(&arena);
}

Test(cuda_ops, heads_to_the_pool)
{
    start("heads");
    for (size_t i = 0; i < sizeof all_heads / sizeof *all_heads; i++) {
        check_heads(&all_heads[i], true);
        check_heads(&all_heads[i], false);
    }
}
