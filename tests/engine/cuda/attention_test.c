/* Attention on the GPU against bt_cpu_attend over the same pool bytes. Slots beyond a sequence's
 * context, and every block that no table names, hold NaN; block tables end in rubbish; outputs are
 * poisoned. */
#include "engine/cpu/attention.h"
#include "engine/cuda/attention.h"
#include "engine/model/dtype.h"
#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 40, LAYERS = 2, GUARD = 4096, RUBBISH = 0x7fffffff };

struct segment {
    int32_t rows, ctx; /* ctx: tokens, the rows' own included */
    int32_t kv_class;
};

struct shape {
    const char *name;
    int32_t n_heads, n_kv_heads, head_dim;
    enum bt_kv_format kv, wide; /* wide: of the 16-bit class; default: there is none */
    enum bt_act_format compute;
    int32_t block_tokens;
    int32_t window; /* of layer 1; layer 0 sees all */
    bool decode;
    int32_t pad_rows, pad_segments;
    struct segment segments[MAX_SEGMENTS];
};

/* A batch in host and device memory. */
struct batch {
    const struct shape *c;
    struct bt_rng rng;
    struct bt_cuda_arena arena;
    struct bt_arch arch;
    struct bt_kv_pool pool; /* host */
    struct bt_cuda_kv kv;   /* device */
    int64_t pool_bytes;
    int32_t n_live, n_segments, n_rows_live, n_rows, max_blocks, max_len;
    int32_t first_row[MAX_SEGMENTS + 9];
    int32_t pos0[MAX_SEGMENTS + 8];
    int32_t kv_class[MAX_SEGMENTS + 8];
    int32_t *blocks;
    int32_t *plan;
    int32_t plan_words;
    uint16_t *q; /* [n_rows, q_stride] */
    int32_t q_stride;
    float *q32; /* [n_rows, n_heads * head_dim] */
    struct bt_cuda_batch device;
    void *device_q;
    uint8_t *device_out; /* GUARD bytes before and after */
    int64_t out_bytes;
    struct bt_cuda_attn *attn;
};

static enum bt_dtype type_of(const struct shape *c)
{
    return c->compute == BT_ACT_BF16 ? BT_DTYPE_BF16 : BT_DTYPE_F16;
}

static void *host(size_t bytes)
{
    void *p = malloc(bytes == 0 ? 1 : bytes);
    cr_assert_not_null(p);
    return p;
}

static void count(struct batch *b)
{
    const struct shape *c = b->c;
    while (b->n_live < MAX_SEGMENTS && c->segments[b->n_live].rows > 0) {
        b->n_live++;
    }
    for (int32_t i = 0; i < b->n_live; i++) {
        b->n_rows_live += c->segments[i].rows;
        b->max_len = c->segments[i].ctx > b->max_len ? c->segments[i].ctx : b->max_len;
    }
    b->n_segments = b->n_live + c->pad_segments;
    b->n_rows = b->n_rows_live + c->pad_rows;
}

static void make_pool(struct batch *b)
{
    const struct shape *c = b->c;
    struct bt_error err = {0};
    cr_assert_eq(
        bt_block_layout_init(&b->pool.layout[0], &b->arch, NULL, c->kv, c->block_tokens, &err),
        BT_OK, "%s", err.msg);
    if (c->wide != BT_KV_DEFAULT) {
        cr_assert_eq(
            bt_block_layout_init_16bit(&b->pool.layout[1], &b->pool.layout[0], c->wide, &err),
            BT_OK, "%s", err.msg);
    }
    int32_t n = 3;
    b->max_blocks = 1;
    for (int32_t i = 0; i < b->n_live; i++) {
        int32_t slots = b->pool.layout[c->segments[i].kv_class].block_tokens;
        int32_t mine = (c->segments[i].ctx + slots - 1) / slots;
        n += mine;
        b->max_blocks = mine > b->max_blocks ? mine : b->max_blocks;
    }
    b->max_blocks++;
    b->pool.n_blocks = n;
    b->pool_bytes = n * b->pool.layout[0].block_bytes;
    b->pool.blocks = host((size_t)b->pool_bytes);
    memset(b->pool.blocks, 0xff, (size_t)b->pool_bytes); /* NaN in every format, scales included */
    b->kv = (struct bt_cuda_kv){.layout = {b->pool.layout[0], b->pool.layout[1]}, .n_blocks = n};
    b->kv.blocks = rig_take(&b->arena, b->pool_bytes);
}

/* Tables of shuffled blocks, rubbish behind them. */
static void make_tables(struct batch *b)
{
    int32_t *order = host((size_t)b->pool.n_blocks * sizeof *order);
    for (int32_t i = 0; i < b->pool.n_blocks; i++) {
        int32_t j = (int32_t)bt_rng_below(&b->rng, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    size_t n = (size_t)b->n_segments * (size_t)b->max_blocks;
    b->blocks = host(n * sizeof *b->blocks);
    for (size_t i = 0; i < n; i++) {
        b->blocks[i] = RUBBISH;
    }
    int32_t used = 0;
    for (int32_t i = 0; i < b->n_live; i++) {
        const struct segment *s = &b->c->segments[i];
        int32_t slots = b->pool.layout[s->kv_class].block_tokens;
        for (int32_t j = 0; j < (s->ctx + slots - 1) / slots; j++) {
            b->blocks[i * b->max_blocks + j] = order[used++];
        }
    }
    free(order);
}

/* Keys, values and queries anew. One dimension of keys is far from zero, as models have them. */
static void fill(struct batch *b)
{
    const struct shape *c = b->c;
    int32_t width = c->n_kv_heads * c->head_dim;
    float *row = host((size_t)width * sizeof *row);
    for (int32_t i = 0; i < b->n_live; i++) {
        const struct segment *s = &c->segments[i];
        int32_t slots = b->pool.layout[s->kv_class].block_tokens;
        for (int32_t t = 0; t < s->ctx * LAYERS * 2; t++) {
            int32_t token = t / (2 * LAYERS);
            int32_t v = t % 2;
            for (int32_t d = 0; d < width; d++) {
                row[d] =
                    (float)bt_rng_normal(&b->rng) + (v == 0 && d % c->head_dim == 5 ? 20.0f : 0.0f);
            }
            bt_kv_pool_write(&b->pool, s->kv_class, BT_KV_PART_TARGET, t / 2 % LAYERS, v,
                             b->blocks[i * b->max_blocks + token / slots], token % slots, row);
        }
    }
    free(row);
    int32_t width_q = c->n_heads * c->head_dim;
    for (int32_t r = 0; r < b->n_rows; r++) {
        float *x = b->q32 + (size_t)r * (size_t)width_q;
        uint16_t *to = b->q + (size_t)r * (size_t)b->q_stride;
        for (int32_t d = 0; d < width_q; d++) {
            x[d] = 1.5f * (float)bt_rng_normal(&b->rng);
        }
        memset(to, 0xff, (size_t)b->q_stride * sizeof *to);
        bt_dtype_from_f32(type_of(c), x, to, (size_t)width_q);
        bt_dtype_to_f32(type_of(c), to, x, (size_t)width_q);
    }
    rig_write(b->kv.blocks, b->pool.blocks, b->pool_bytes);
    rig_write(b->device_q, b->q, (int64_t)b->n_rows * b->q_stride * 2);
}

static void place(struct batch *b)
{
    const struct shape *c = b->c;
    int32_t row = 0;
    for (int32_t i = 0; i < b->n_segments; i++) {
        b->first_row[i] = row;
        b->pos0[i] = i < b->n_live ? c->segments[i].ctx - c->segments[i].rows : 0;
        b->kv_class[i] = i < b->n_live ? c->segments[i].kv_class : 0;
        row += i < b->n_live ? c->segments[i].rows : 0;
    }
    b->first_row[b->n_segments] = row;
}

static void make_plan(struct batch *b)
{
    struct bt_cuda_attn_segment segments[MAX_SEGMENTS + 8] = {{0}};
    for (int32_t i = 0; i < b->n_live; i++) {
        segments[i].n_rows = b->c->segments[i].rows;
        segments[i].pos0 = b->pos0[i];
        segments[i].kv_class = b->kv_class[i];
    }
    memset(b->plan, RIG_POISON, (size_t)b->plan_words * sizeof *b->plan);
    bt_cuda_attn_plan(b->attn, segments, b->n_rows, b->n_segments, b->c->decode, b->plan);
}

static void setup(struct batch *b, const struct shape *c, const struct bt_rng *rng)
{
    memset(b, 0, sizeof *b);
    b->c = c;
    b->rng = *rng;
    bt_cuda_arena_init(&b->arena, "test");
    (void)snprintf(b->arch.name, sizeof b->arch.name, "%s", c->name);
    b->arch.n_layers = LAYERS;
    b->arch.n_heads = c->n_heads;
    b->arch.n_kv_heads = c->n_kv_heads;
    b->arch.head_dim = c->head_dim;
    if (c->window > 0) {
        b->arch.sliding_window = c->window;
        bt_arch_slide_layers(&b->arch, 1, LAYERS);
    }
    count(b);
    make_pool(b);
    make_tables(b);
    place(b);
    struct bt_cuda_attn_opts o = {
        .device = rig_device(),
        .kv = &b->kv,
        .part = BT_KV_PART_TARGET,
        .arch = &b->arch,
        .compute = c->compute,
        .max_rows = b->n_rows,
        .max_segments = b->n_segments,
        .max_model_len = b->max_len,
        .arena = &b->arena,
    };
    struct bt_error err = {0};
    cr_assert_eq(bt_cuda_attn_create(&o, &b->attn, &err), BT_OK, "%s", err.msg);
    b->plan_words = bt_cuda_attn_plan_words(b->attn, b->n_rows, b->n_segments);
    b->plan = host((size_t)b->plan_words * sizeof *b->plan);
    make_plan(b);
    b->q_stride = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    b->q = host((size_t)b->n_rows * (size_t)b->q_stride * sizeof *b->q);
    b->q32 = host((size_t)(b->n_rows * c->n_heads * c->head_dim) * sizeof *b->q32);
    b->device_q = rig_take(&b->arena, (int64_t)b->n_rows * b->q_stride * 2);
    b->out_bytes = (int64_t)b->n_rows * c->n_heads * c->head_dim * 2;
    b->device_out = rig_take(&b->arena, b->out_bytes + 2 * (int64_t)GUARD);
    int32_t n = b->n_segments;
    b->device = (struct bt_cuda_batch){
        .n_rows = b->n_rows,
        .n_segments = n,
        .max_blocks = b->max_blocks,
        .first_row = rig_upload(&b->arena, b->first_row, 4 * ((int64_t)n + 1)),
        .pos0 = rig_upload(&b->arena, b->pos0, 4 * (int64_t)n),
        .kv_class = rig_upload(&b->arena, b->kv_class, 4 * (int64_t)n),
        .blocks = rig_upload(&b->arena, b->blocks, 4 * (int64_t)n * b->max_blocks),
        .attn_plan = rig_upload(&b->arena, b->plan, 4 * (int64_t)b->plan_words),
    };
    fill(b);
}

static void teardown(struct batch *b)
{
    bt_cuda_attn_destroy(b->attn);
    bt_cuda_arena_fini(&b->arena);
    free(b->pool.blocks);
    free(b->blocks);
    free(b->plan);
    free(b->q);
    free(b->q32);
}

/* One layer's result, [GUARD, out, GUARD] bytes; the caller frees it. */
static uint8_t *attend(struct batch *b, int32_t layer)
{
    rig_poison(b->device_out, b->out_bytes + 2 * (int64_t)GUARD);
    struct bt_error err = {0};
    cr_assert_eq(bt_cuda_attn_run(b->attn, &b->device, layer, b->c->decode, b->device_q,
                                  b->q_stride, b->device_out + GUARD, NULL, &err),
                 BT_OK, "%s", err.msg);
    uint8_t *out = host((size_t)b->out_bytes + 2 * (size_t)GUARD);
    rig_download(out, b->device_out, b->out_bytes + 2 * (int64_t)GUARD);
    return out;
}

static float *twin(struct batch *b, int32_t layer)
{
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct bt_cpu_attn_work w;
    struct bt_error err = {0};
    cr_assert_eq(bt_cpu_attn_work_init(&w, &arena, b->max_len, b->c->head_dim, 8, &err), BT_OK,
                 "%s", err.msg);
    float *out = host((size_t)(b->n_rows * b->c->n_heads * b->c->head_dim) * sizeof *out);
    struct bt_cpu_segment segments[MAX_SEGMENTS];
    for (int32_t i = 0; i < b->n_live; i++) {
        segments[i] = (struct bt_cpu_segment){
            .first_row = b->first_row[i],
            .n_rows = b->c->segments[i].rows,
            .pos0 = b->pos0[i],
            .kv_class = b->kv_class[i],
            .blocks = b->blocks + i * b->max_blocks,
        };
    }
    struct bt_cpu_attn a = {
        .pool = &b->pool,
        .part = BT_KV_PART_TARGET,
        .layer = layer,
        .n_heads = b->c->n_heads,
        .window = layer == 1 ? b->c->window : 0,
        .q = b->q32,
        .out = out,
    };
    bt_cpu_attend(&w, &a, segments, b->n_live);
    bt_arena_fini(&arena);
    return out;
}

static void expect_poison(const struct shape *c, const uint8_t *bytes, int64_t n, const char *where)
{
    for (int64_t i = 0; i < n; i++) {
        if (bytes[i] != RIG_POISON) {
            cr_expect(false, "%s: %s were written, byte %lld", c->name, where, (long long)i);
            return;
        }
    }
}

/* What weights, products and results of 16 bits may cost: relative, root mean square. FP16 has 3
 * bits more than BF16; chunks round INT8 times its scale to FP16. */
static double budget(const struct shape *c)
{
    if (c->compute == BT_ACT_BF16 || c->kv == BT_KV_BF16 || c->wide == BT_KV_BF16) {
        return 5e-3;
    }
    return c->kv == BT_KV_INT8 ? 1.5e-3 : 7e-4;
}

static void compare(struct batch *b, int32_t layer, const uint8_t *out, const float *want)
{
    const struct shape *c = b->c;
    int32_t width = c->n_heads * c->head_dim;
    float *got = host((size_t)(b->n_rows * width) * sizeof *got);
    bt_dtype_to_f32(type_of(c), out + GUARD, got, (size_t)(b->n_rows * width));
    double worst = 0.0;
    int32_t worst_segment = -1;
    for (int32_t i = 0; i < b->n_live; i++) {
        double error = 0.0;
        double norm = 0.0;
        for (int32_t x = b->first_row[i] * width; x < b->first_row[i + 1] * width; x++) {
            double d = (double)got[x] - (double)want[x];
            error += d * d;
            norm += (double)want[x] * (double)want[x];
        }
        double relative = sqrt(error / norm);
        if (!(relative <= worst)) {
            worst = relative;
            worst_segment = i;
        }
    }
    cr_expect(worst <= budget(c), "%s: layer %d: segment %d is off by %.2e of %.1e", c->name, layer,
              worst_segment, worst, budget(c));
    printf("%-44s layer %d: %.2e of %.1e\n", c->name, layer, worst, budget(c));
    expect_poison(c, out, GUARD, "bytes before the result");
    int64_t live = (int64_t)b->n_rows_live * width * 2;
    expect_poison(c, out + GUARD + live, b->out_bytes - live + GUARD, "padded rows");
    free(got);
}

static void check(struct batch *b)
{
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        uint8_t *out = attend(b, layer);
        float *want = twin(b, layer);
        compare(b, layer, out, want);
        uint8_t *again = attend(b, layer);
        cr_expect(memcmp(out, again, (size_t)b->out_bytes + 2 * (size_t)GUARD) == 0,
                  "%s: layer %d: another run gave other bits", b->c->name, layer);
        free(out);
        free(again);
        free(want);
    }
}

#define BF    BT_KV_BF16, BT_KV_DEFAULT, BT_ACT_BF16
#define FP    BT_KV_FP16, BT_KV_DEFAULT, BT_ACT_FP16
#define I8    BT_KV_INT8, BT_KV_DEFAULT, BT_ACT_BF16
#define I8_FP BT_KV_INT8, BT_KV_DEFAULT, BT_ACT_FP16

/* Segments of several shapes. */
/* clang-format off */
#define CHUNKS_AND_DECODES                                                                         \
    {{1, 90, 0}, {64, 64, 0}, {1, 3, 0}, {17, 200, 0}, {16, 40, 0}, {130, 190, 0}}
#define MANY_DECODES                                                                               \
    {{1, 1500, 0}, {1, 3, 0}, {1, 900, 0}, {1, 64, 0}, {1, 65, 0}, {1, 63, 0}, {1, 2048, 0},       \
     {1, 17, 0}, {1, 500, 0}, {1, 501, 0}, {1, 502, 0}, {1, 1, 0}, {1, 128, 0}, {1, 1000, 0}}
/* clang-format on */

static const struct shape small[] = {
    {"mha one token", 4, 4, 128, BF, 16, 0, true, 0, 0, {{1, 1, 0}}},
    {"mha two segments", 4, 4, 128, FP, 16, 0, true, 0, 0, {{1, 33, 0}, {1, 100, 0}}},
    {"gqa 4 odd lengths padded",
     8,
     2,
     128,
     BF,
     16,
     0,
     true,
     3,
     3,
     {{1, 17, 0}, {1, 64, 0}, {1, 129, 0}, {1, 2, 0}, {1, 31, 0}}},
    {"gqa 7 block 7", 14, 2, 64, FP, 7, 0, true, 1, 1, {{1, 50, 0}, {1, 8, 0}, {1, 201, 0}}},
    {"gqa 8 block 1 int8", 16, 2, 128, I8, 1, 0, true, 0, 0, {{1, 77, 0}, {1, 15, 0}}},
    {"int8 block 7 rows on odd bytes", 6, 3, 64, I8, 7, 0, true, 0, 1, {{1, 77, 0}, {3, 15, 0}}},
    {"int8 block 7 chunk rows on odd bytes", 6, 3, 128, I8, 7, 0, false, 0, 0, {{40, 77, 0}}},
    {"fp16 in bf16 pool",
     4,
     4,
     64,
     BT_KV_BF16,
     BT_KV_DEFAULT,
     BT_ACT_FP16,
     8,
     0,
     true,
     0,
     0,
     {{1, 40, 0}, {2, 70, 0}}},
    {"bf16 in fp16 pool",
     4,
     2,
     128,
     BT_KV_FP16,
     BT_KV_DEFAULT,
     BT_ACT_BF16,
     8,
     0,
     false,
     0,
     0,
     {{1, 40, 0}, {90, 170, 0}}},
    {"verification 5 mha int8", 4, 4, 128, I8_FP, 16, 0, true, 5, 1, {{5, 100, 0}, {5, 5, 0}}},
    {"verification 16 gqa 8", 16, 2, 64, BF, 32, 0, true, 0, 0, {{16, 300, 0}, {16, 16, 0}}},
    {"verification mixed gqa 7",
     7,
     1,
     128,
     FP,
     16,
     0,
     true,
     2,
     2,
     {{1, 99, 0}, {4, 130, 0}, {7, 70, 0}, {16, 65, 0}}},
    {"window decode", 8, 2, 128, BF, 16, 20, true, 1, 1, {{1, 150, 0}, {1, 19, 0}, {5, 61, 0}}},
    {"window decode int8", 4, 4, 64, I8, 16, 33, true, 1, 1, {{1, 150, 0}, {1, 19, 0}, {5, 61, 0}}},
    {"two classes",
     4,
     4,
     128,
     BT_KV_INT8,
     BT_KV_BF16,
     BT_ACT_BF16,
     16,
     0,
     true,
     1,
     1,
     {{1, 150, 0}, {1, 49, 1}, {3, 61, 1}, {2, 99, 0}}},
    {"two classes fp16 mixed",
     8,
     4,
     64,
     BT_KV_INT8,
     BT_KV_FP16,
     BT_ACT_FP16,
     32,
     40,
     false,
     0,
     0,
     {{1, 150, 0}, {1, 49, 1}, {61, 261, 1}, {90, 99, 0}}},
    {"two classes odd bytes",
     3,
     1,
     64,
     BT_KV_INT8,
     BT_KV_BF16,
     BT_ACT_BF16,
     3,
     0,
     false,
     1,
     1,
     {{1, 50, 0}, {1, 49, 1}, {30, 61, 1}, {20, 29, 0}}},
    {"chunk from nothing", 4, 4, 128, BF, 16, 0, false, 0, 0, {{200, 200, 0}}},
    {"chunk from nothing fp16", 4, 4, 64, FP, 16, 0, false, 5, 0, {{129, 129, 0}}},
    {"chunk after a prefix gqa 4", 8, 2, 128, BF, 16, 0, false, 0, 2, {{77, 300, 0}}},
    {"chunk int8 gqa 7 block 7", 14, 2, 64, I8, 8, 0, false, 0, 0, {{77, 300, 0}, {30, 30, 0}}},
    {"chunks and decodes", 8, 4, 128, FP, 32, 0, false, 9, 3, CHUNKS_AND_DECODES},
    {"chunks and decodes int8", 8, 2, 128, I8_FP, 16, 0, false, 9, 3, CHUNKS_AND_DECODES},
    {"window chunks", 8, 2, 128, BF, 16, 50, false, 0, 0, {{150, 400, 0}, {20, 20, 0}, {1, 70, 0}}},
    {"window of one", 4, 4, 64, I8, 16, 1, false, 0, 0, {{70, 90, 0}, {3, 20, 0}}},
};

static const struct shape large[] = {
    {"splits mha bf16", 40, 40, 128, BF, 16, 0, true, 0, 0, {{1, 3001, 0}}},
    {"splits gqa bf16 one head", 8, 1, 128, BF, 16, 0, true, 0, 0, {{1, 20011, 0}}},
    {"splits int8 mha", 5, 5, 128, I8, 32, 0, true, 3, 3, {{1, 5000, 0}, {1, 1, 0}, {1, 777, 0}}},
    {"splits int8 gqa 8 verification",
     32,
     4,
     128,
     I8_FP,
     16,
     0,
     true,
     0,
     0,
     {{4, 4000, 0}, {4, 100, 0}}},
    {"splits window", 8, 2, 64, FP, 16, 700, true, 0, 1, {{1, 5000, 0}, {9, 1500, 0}}},
    {"many decodes bf16 gqa 4", 32, 8, 128, BF, 16, 0, true, 4, 4, MANY_DECODES},
    {"many decodes int8 mha", 12, 12, 128, I8, 16, 0, true, 4, 4, MANY_DECODES},
    {"prompt 2048", 8, 8, 128, BF, 16, 0, false, 0, 0, {{2048, 2048, 0}}},
    {"prompt 1500 gqa 4 int8 after 1000", 8, 2, 128, I8, 16, 0, false, 0, 0, {{1500, 2500, 0}}},
    {"prompts and decodes window",
     8,
     2,
     64,
     FP,
     16,
     600,
     false,
     7,
     2,
     {{1000, 1900, 0}, {1, 2000, 0}, {500, 500, 0}, {1, 1, 0}, {333, 1999, 0}}},
};

static void check_all(const struct shape *shapes, size_t n, const char *name)
{
    (void)rig_device();
    struct bt_rng rng;
    rig_rng(&rng, name);
    for (size_t i = 0; i < n; i++) {
        struct batch b;
        setup(&b, &shapes[i], &rng);
        check(&b);
        rng = b.rng;
        teardown(&b);
    }
}

Test(cuda_attention, small_shapes_are_the_cpu_s)
{
    check_all(small, sizeof small / sizeof *small, "small_shapes_are_the_cpu_s");
}

Test(cuda_attention, long_contexts_are_the_cpu_s)
{
    check_all(large, sizeof large / sizeof *large, "long_contexts_are_the_cpu_s");
}

/* With the lengths the plan stays, and with the plan every bit of the first segment. */
Test(cuda_attention, other_segments_change_no_bit)
{
    static const struct shape shapes[] = {
        {"decode", 8, 2, 128, BF, 16, 0, true, 0, 1, {{1, 3000, 0}, {1, 500, 0}, {2, 77, 0}}},
        {"mixed", 8, 8, 64, I8, 16, 0, false, 0, 1, {{100, 300, 0}, {1, 500, 0}, {40, 77, 0}}},
    };
    (void)rig_device();
    struct bt_rng rng;
    rig_rng(&rng, "other_segments_change_no_bit");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct batch b;
        setup(&b, &shapes[i], &rng);
        uint8_t *out = attend(&b, 0);
        size_t mine = (size_t)(b.first_row[1] * b.c->n_heads * b.c->head_dim) * 2;
        int64_t others = (int64_t)(b.n_rows - b.first_row[1]) * b.q_stride * 2;
        rig_poison((uint8_t *)b.device_q + (int64_t)b.first_row[1] * b.q_stride * 2, others);
        uint8_t *again = attend(&b, 0);
        cr_expect(memcmp(out + GUARD, again + GUARD, mine) == 0, "%s: other bits", b.c->name);
        free(out);
        free(again);
        teardown(&b);
    }
}

/* A graph captured with one batch serves another one that is padded to the same size. */
Test(cuda_attention, a_captured_graph_serves_other_batches_of_its_size)
{
    static const struct shape shapes[] = {
        {"first", 8, 2, 128, I8, 16, 0, true, 2, 2, {{1, 10, 0}, {1, 2000, 0}}},
        {"second",
         8,
         2,
         128,
         I8,
         16,
         0,
         true,
         0,
         0,
         {{1, 3000, 0}, {1, 5, 0}, {1, 64, 0}, {1, 1999, 0}}},
    };
    (void)rig_device();
    struct bt_rng rng;
    rig_rng(&rng, "a_captured_graph_serves_other_batches_of_its_size");
    struct batch a;
    struct batch b;
    setup(&a, &shapes[0], &rng);
    setup(&b, &shapes[1], &rng);
    /* a's launches, with b's memory. */
    struct bt_cuda_batch device = a.device;
    device.max_blocks = b.max_blocks;
    device.first_row = b.device.first_row;
    device.pos0 = b.device.pos0;
    device.kv_class = b.device.kv_class;
    device.blocks = b.device.blocks;
    device.attn_plan = b.device.attn_plan;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    struct bt_error err = {0};
    cr_assert_eq(cudaStreamCreate(&stream), cudaSuccess);
    cr_assert_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    cr_assert_eq(bt_cuda_attn_run(b.attn, &device, 0, true, b.device_q, b.q_stride,
                                  b.device_out + GUARD, stream, &err),
                 BT_OK, "%s", err.msg);
    cr_assert_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cr_assert_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    uint8_t *want = attend(&b, 0);
    rig_poison(b.device_out, b.out_bytes + 2 * (int64_t)GUARD);
    cr_assert_eq(cudaGraphLaunch(exec, stream), cudaSuccess);
    uint8_t *got = host((size_t)b.out_bytes + 2 * (size_t)GUARD);
    rig_download(got, b.device_out, b.out_bytes + 2 * (int64_t)GUARD);
    cr_expect(memcmp(got, want, (size_t)b.out_bytes + 2 * (size_t)GUARD) == 0);
    free(want);
    free(got);
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(stream);
    teardown(&a);
    teardown(&b);
}

Test(cuda_attention, what_is_not_served_is_named)
{
    struct bt_cuda_arena arena;
    bt_cuda_arena_init(&arena, "test");
    struct bt_arch arch = {.name = "odd", .n_layers = 1, .n_heads = 2, .n_kv_heads = 2};
    struct bt_cuda_device device = {.n_sms = 1};
    static const struct {
        int32_t head_dim;
        enum bt_kv_format kv;
        enum bt_act_format compute;
        const char *says;
    } cases[] = {
        {80, BT_KV_BF16, BT_ACT_BF16, "odd: head_dim 80 has no CUDA kernel (64 and 128 have)"},
        {64, BT_KV_FP32, BT_ACT_BF16, "kv: \"fp32\" has no CUDA kernel"},
        {64, BT_KV_BF16, BT_ACT_FP32, "attention does not compute in fp32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_error err = {0};
        struct bt_cuda_kv kv = {.n_blocks = 1};
        arch.head_dim = cases[i].head_dim;
        cr_assert_eq(bt_block_layout_init(&kv.layout[0], &arch, NULL, cases[i].kv, 16, &err),
                     BT_OK);
        struct bt_cuda_attn_opts o = {.device = &device,
                                      .kv = &kv,
                                      .arch = &arch,
                                      .compute = cases[i].compute,
                                      .max_rows = 1,
                                      .max_segments = 1,
                                      .max_model_len = 16,
                                      .arena = &arena};
        struct bt_cuda_attn *a = NULL;
        cr_expect_eq(bt_cuda_attn_create(&o, &a, &err), BT_ERR_ARG);
        cr_expect_null(a);
        cr_expect_not_null(strstr(err.msg, cases[i].says), "%s", err.msg);
    }
    bt_cuda_arena_fini(&arena);
}
