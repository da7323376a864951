/* Single operations against plain definitions. */
#include "engine/core/rng.h"
#include "engine/cpu/decoder.h"
#include "engine/cpu/kv_pool.h"
#include "engine/sample.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float draw(struct bt_rng *rng)
{
    return (float)bt_rng_normal(rng);
}

/* ---- linear ---- */

struct shape {
    const char *name;
    int32_t n_out, n_in, m;
    enum bt_weight_format format; /* FP32, FP16, BF16: dense */
    enum bt_act_format act;
    bool zeros, perm;
};

static const struct shape shapes[] = {
    {"fp32", 33, 64, 5, BT_WEIGHT_FP32, BT_ACT_DEFAULT, false, false},
    {"fp32 odd", 7, 37, 3, BT_WEIGHT_FP32, BT_ACT_DEFAULT, false, false},
    {"fp16", 16, 48, 9, BT_WEIGHT_FP16, BT_ACT_DEFAULT, false, false},
    {"bf16 one", 1, 1, 1, BT_WEIGHT_BF16, BT_ACT_DEFAULT, false, false},
    {"bf16", 50, 130, 4, BT_WEIGHT_BF16, BT_ACT_DEFAULT, false, false},
    {"bf16, int8 input", 20, 70, 4, BT_WEIGHT_BF16, BT_ACT_INT8_DYNAMIC, false, false},
    {"int8", 21, 65, 6, BT_WEIGHT_INT8, BT_ACT_DEFAULT, false, false},
    {"int8 tensor", 21, 64, 2, BT_WEIGHT_INT8_TENSOR, BT_ACT_DEFAULT, false, false},
    {"int8 long", 5, 700, 2, BT_WEIGHT_INT8, BT_ACT_DEFAULT, true, false},
    {"int4 g32", 19, 96, 3, BT_WEIGHT_INT4_G32, BT_ACT_DEFAULT, false, false},
    {"int4 g64, zeros", 19, 128, 3, BT_WEIGHT_INT4_G64, BT_ACT_DEFAULT, true, false},
    {"int4 g128, order", 19, 256, 3, BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, true, true},
    {"int4 g128, short group", 9, 200, 3, BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, false, false},
    {"int4 tensor", 9, 301, 3, BT_WEIGHT_INT4_TENSOR, BT_ACT_DEFAULT, false, false},
    {"w8a8 dynamic", 21, 130, 6, BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC, false, false},
    {"w8a8 static", 21, 130, 6, BT_WEIGHT_INT8, BT_ACT_INT8_STATIC, false, false},
    {"w4a8", 21, 192, 6, BT_WEIGHT_INT4_G64, BT_ACT_INT8_DYNAMIC, true, true},
    {"w4a8 static", 3, 160, 6, BT_WEIGHT_INT4_G32, BT_ACT_INT8_STATIC, false, false},
};

enum { MAX_M = 16, MAX_K = 1024, MAX_N = 64 };

static void make_linear(struct bt_linear *l, const struct shape *s, struct bt_arena *arena,
                        struct bt_rng *rng)
{
    struct bt_error err = {0};
    *l = (struct bt_linear){.n_out = s->n_out, .n_in = s->n_in, .act = s->act, .act_scale = 0.02f};
    cr_assert_eq(bt_tensor_init(&l->bias, arena, BT_DTYPE_F32, 1, s->n_out, &err), BT_OK);
    for (int32_t n = 0; n < s->n_out; n++) {
        ((float *)l->bias.p)[n] = draw(rng);
    }
    bool dense = s->format <= BT_WEIGHT_BF16;
    if (dense) {
        enum bt_dtype t = s->format == BT_WEIGHT_FP32   ? BT_DTYPE_F32
                          : s->format == BT_WEIGHT_FP16 ? BT_DTYPE_F16
                                                        : BT_DTYPE_BF16;
        cr_assert_eq(bt_tensor_init(&l->w, arena, t, s->n_out, s->n_in, &err), BT_OK);
        for (int32_t i = 0; i < s->n_out * s->n_in; i++) {
            float v = draw(rng);
            bt_dtype_from_f32(t, &v, (char *)l->w.p + (size_t)i * bt_dtype_bytes(t), 1);
        }
        return;
    }
    struct bt_qweight *q = &l->q;
    l->quantised = true;
    cr_assert_eq(bt_qweight_init(q, arena, s->format, s->n_out, s->n_in, BT_DTYPE_F32, &err),
                 BT_OK);
    int32_t half = q->bits == 4 ? 8 : 128;
    for (int32_t n = 0; n < s->n_out; n++) {
        for (int32_t k = 0; k < s->n_in; k++) {
            bt_qweight_set(q, n, k, (int32_t)bt_rng_below(rng, (uint64_t)(2 * half)) - half);
        }
    }
    int32_t n_scales = q->scale_stride == 0 ? 1 : s->n_out * q->n_groups;
    for (int32_t i = 0; i < n_scales; i++) {
        ((float *)q->scale)[i] = 0.01f + 0.01f * (float)bt_rng_uniform(rng);
    }
    if (s->zeros) {
        q->zero = bt_arena_take(arena, (size_t)s->n_out * (size_t)q->n_groups);
        for (int32_t i = 0; i < s->n_out * q->n_groups; i++) {
            q->zero[i] = (int8_t)(bt_rng_below(rng, 15) - 7);
        }
    }
    if (s->perm) {
        int32_t group_of[MAX_K];
        for (int32_t k = 0; k < s->n_in; k++) {
            group_of[k] = k % q->n_groups;
        }
        cr_assert_eq(bt_qweight_set_groups(q, arena, group_of, "test", &err), BT_OK, "%s", err.msg);
        cr_assert_not_null(q->perm);
    }
}

/* The definition in double: x rounded to int8 where the layer says so. */
static double linear_by_definition(const struct bt_linear *l, const float *x, int32_t n)
{
    float w[MAX_K];
    bt_linear_row_f32(l, n, w);
    double scale = (double)l->act_scale;
    if (l->act == BT_ACT_INT8_DYNAMIC) {
        scale = 0.0;
        for (int32_t k = 0; k < l->n_in; k++) {
            scale = fabs((double)x[k]) > scale ? fabs((double)x[k]) : scale;
        }
        scale = (double)(float)(scale / 127.0);
    }
    double sum = (double)((const float *)l->bias.p)[n];
    for (int32_t k = 0; k < l->n_in; k++) {
        double v = (double)x[k];
        if (l->act != BT_ACT_DEFAULT) {
            v = rint((double)(x[k] / (float)scale));
            v = (v > 127.0 ? 127.0 : v < -127.0 ? -127.0 : v) * scale;
        }
        sum += v * (double)w[k];
    }
    return sum;
}

Test(cpu_ops, linear_layers_are_their_definition_and_rows_do_not_depend_on_each_other)
{
    struct bt_error err = {0};
    struct bt_rng rng;
    bt_rng_init(&rng, 5, "linear", 0);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        struct bt_arena arena;
        bt_arena_init(&arena, 0);
        struct bt_linear l;
        make_linear(&l, s, &arena, &rng);
        struct bt_cpu_work one;
        struct bt_cpu_work two;
        cr_assert_eq(bt_cpu_work_init(&one, &arena, MAX_M, MAX_K, 1, &err), BT_OK);
        cr_assert_eq(bt_cpu_work_init(&two, &arena, MAX_M, MAX_K, 2, &err), BT_OK);
        float x[MAX_M * MAX_K];
        float y[MAX_M * MAX_N + 1];
        float z[MAX_M * MAX_N];
        for (int32_t j = 0; j < s->m * s->n_in; j++) {
            x[j] = draw(&rng);
        }
        y[s->m * s->n_out] = 12345.0f;
        bt_cpu_linear(&one, &l, x, s->m, y);
        cr_assert_eq(y[s->m * s->n_out], 12345.0f, "%s: wrote past the end", s->name);
        for (int32_t j = 0; j < s->m * s->n_out; j++) {
            double want = linear_by_definition(&l, x + j / s->n_out * s->n_in, j % s->n_out);
            double limit = 2e-6 * s->n_in + 1e-5 * fabs(want);
            cr_assert_lt(fabs((double)y[j] - want), limit, "%s [%d]: %.7f, expected %.7f", s->name,
                         j, (double)y[j], want);
        }
        for (int32_t j = 0; j < s->m; j++) {
            bt_cpu_linear(&two, &l, x + j * s->n_in, 1, z + j * s->n_out);
        }
        cr_assert_eq(memcmp(y, z, (size_t)(s->m * s->n_out) * sizeof *y), 0,
                     "%s: a row alone, by two threads, is another one", s->name);
        bt_arena_fini(&arena);
    }
}

/* ---- element-wise ---- */

Test(cpu_ops, exp_is_within_two_ulp)
{
    float worst = 0.0f;
    for (int32_t i = -870000; i <= 880000; i += 7) {
        float x[16] = {(float)i * 1e-4f};
        double want = exp((double)x[0]);
        bt_cpu_exp(x, 16);
        float error = (float)(fabs((double)x[0] - want) / want);
        worst = error > worst ? error : worst;
    }
    cr_assert_lt(worst, 2.4e-7f, "relative error %g", (double)worst);
    float edge[4] = {-200.0f, -INFINITY, NAN, 0.0f};
    bt_cpu_exp(edge, 4);
    cr_assert_eq(edge[0], 0.0f);
    cr_assert_eq(edge[1], 0.0f);
    cr_assert(isnan(edge[2]));
    cr_assert_eq(edge[3], 1.0f);
}

Test(cpu_ops, rms_norm_rounds_before_the_weight_as_hugging_face_does)
{
    float x[3] = {1.0f, 2.0f, -3.0f};
    float w[3] = {1.5f, 0.3f, 2.0f};
    float y[3];
    double rms = sqrt((1.0 + 4.0 + 9.0) / 3.0 + 1e-5);
    bt_cpu_rms_norm(x, 1, 3, w, 1e-5f, BT_ACT_FP32, y);
    for (int32_t i = 0; i < 3; i++) {
        cr_assert_float_eq((double)y[i], (double)x[i] / rms * (double)w[i], 1e-6);
    }
    bt_cpu_rms_norm(x, 1, 3, w, 1e-5f, BT_ACT_BF16, y);
    for (int32_t i = 0; i < 3; i++) {
        float n = bt_bf16_to_f32(bt_f32_to_bf16((float)((double)x[i] / rms)));
        cr_assert_eq(y[i], bt_bf16_to_f32(bt_f32_to_bf16(n * w[i])), "element %d", i);
    }
}

/* ---- RoPE ---- */

static void rope_of(const struct bt_rope *rope, int32_t head_dim, int32_t position, float *cos_row,
                    float *sin_row)
{
    struct bt_arch a = {.head_dim = head_dim, .rope = *rope};
    float inv_freq[64];
    struct bt_cpu_rope r;
    bt_cpu_rope_init(&r, &a, inv_freq);
    bt_cpu_rope_at(&r, position, cos_row, sin_row);
}

Test(cpu_ops, rope_scalings_follow_their_rules)
{
    enum { D = 8, HALF = 4 };
    float c[HALF];
    float s[HALF];
    struct bt_rope plain = {.theta = 10000.0, .factor = 1.0};
    rope_of(&plain, D, 3, c, s);
    for (int32_t i = 0; i < HALF; i++) {
        double angle = 3.0 / pow(10000.0, i / 4.0);
        cr_assert_float_eq((double)c[i], cos(angle), 1e-6);
        cr_assert_float_eq((double)s[i], sin(angle), 1e-6);
    }
    struct bt_rope linear = {.theta = 10000.0, .scaling = BT_ROPE_LINEAR, .factor = 4.0};
    rope_of(&linear, D, 12, c, s);
    for (int32_t i = 0; i < HALF; i++) {
        cr_assert_float_eq((double)s[i], sin(3.0 / pow(10000.0, i / 4.0)), 1e-6);
    }
    /* Dynamic: as it was up to the original length, then with a base that grows. */
    struct bt_rope dynamic = {
        .theta = 10000.0, .scaling = BT_ROPE_DYNAMIC, .factor = 2.0, .original_max_position = 100};
    rope_of(&dynamic, D, 99, c, s);
    cr_assert_float_eq((double)s[1], sin(99.0 / 10.0), 1e-5);
    rope_of(&dynamic, D, 149, c, s);
    double theta = 10000.0 * pow(2.0 * 150.0 / 100.0 - 1.0, 8.0 / 6.0);
    cr_assert_float_eq((double)s[1], sin(149.0 / pow(theta, 0.25)), 1e-5);
    /* Llama 3: fast dimensions keep their frequency, slow ones are divided by the factor. */
    struct bt_rope llama3 = {.theta = 500000.0,
                             .scaling = BT_ROPE_LLAMA3,
                             .factor = 8.0,
                             .low_freq_factor = 1.0,
                             .high_freq_factor = 4.0,
                             .original_max_position = 8192};
    rope_of(&llama3, D, 5, c, s);
    cr_assert_float_eq((double)s[0], sin(5.0), 1e-6);
    cr_assert_float_eq((double)s[3], sin(5.0 / pow(500000.0, 0.75) / 8.0), 1e-7);
    /* YaRN: the same at both ends, cos and sin larger by 0.1 ln(factor) + 1. */
    struct bt_rope yarn = {.theta = 10000.0,
                           .scaling = BT_ROPE_YARN,
                           .factor = 4.0,
                           .beta_fast = 32.0,
                           .beta_slow = 1.0,
                           .original_max_position = 2048};
    rope_of(&yarn, D, 7, c, s);
    double magnitude = 0.1 * log(4.0) + 1.0;
    cr_assert_float_eq((double)s[0], magnitude * sin(7.0), 1e-6);
    cr_assert_float_eq((double)s[3], magnitude * sin(7.0 / pow(10000.0, 0.75) / 4.0), 1e-6);
}

/* ---- KV pool ---- */

Test(cpu_ops, the_pool_gives_back_what_was_written_and_disturbs_nothing_else)
{
    static const struct {
        enum bt_kv_format format;
        double error; /* relative to the head's greatest value */
    } formats[] = {{BT_KV_FP32, 0.0}, {BT_KV_FP16, 5e-4}, {BT_KV_BF16, 4e-3}, {BT_KV_INT8, 4.3e-3}};
    struct bt_arch target = {.n_layers = 2, .n_kv_heads = 3, .head_dim = 10};
    struct bt_arch draft = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 6};
    enum { S = 3, BLOCKS = 2 };
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct bt_error err = {0};
        struct bt_kv_pool p = {.n_blocks = BLOCKS};
        cr_assert_eq(
            bt_block_layout_init(&p.layout[0], &target, &draft, formats[f].format, S, &err), BT_OK);
        int64_t bytes = p.layout[0].block_bytes;
        int64_t token = bt_arch_kv_bytes_per_token(&target, formats[f].format, 1) +
                        bt_arch_kv_bytes_per_token(&draft, formats[f].format, 1);
        cr_assert_eq(bytes, S * token);
        p.blocks = calloc((size_t)(BLOCKS * bytes), 1);
        int32_t table[2] = {1, 0};
        /* Every element of every row has its own value; all are written, then all are read. */
        for (int32_t pass = 0; pass < 2; pass++) {
            for (int32_t part = 0; part < 2; part++) {
                const struct bt_arch *a = part == 0 ? &target : &draft;
                for (int32_t i = 0; i < a->n_layers * 2 * S * BLOCKS; i++) {
                    int32_t layer = i / (2 * S * BLOCKS);
                    int32_t v = i / (S * BLOCKS) % 2;
                    int32_t t = i % (S * BLOCKS);
                    float row[30];
                    for (int32_t j = 0; j < a->n_kv_heads * a->head_dim; j++) {
                        row[j] = (float)(i + 1) * (j % 2 == 0 ? 1.0f : -0.5f) +
                                 (float)(j + 100 * part) * 0.01f;
                    }
                    if (pass == 0) {
                        bt_kv_pool_write(&p, 0, part, layer, v, table[t / S], t % S, row);
                        continue;
                    }
                    for (int32_t h = 0; h < a->n_kv_heads; h++) {
                        float got[10];
                        float max = 0.0f;
                        bt_kv_pool_read(&p, 0, part, layer, v, h, table, t, t + 1, got, 10);
                        for (int32_t j = 0; j < a->head_dim; j++) {
                            float x = fabsf(row[h * a->head_dim + j]);
                            max = x > max ? x : max;
                        }
                        for (int32_t j = 0; j < a->head_dim; j++) {
                            double d = fabs((double)(got[j] - row[h * a->head_dim + j]));
                            cr_assert_leq(d, formats[f].error * (double)max, "%s part %d row %d",
                                          bt_kv_format_name(formats[f].format), part, i);
                        }
                    }
                }
            }
        }
        free(p.blocks);
    }
}

Test(cpu_ops, the_16_bit_class_fits_in_blocks_of_the_same_bytes)
{
    struct bt_error err = {0};
    struct bt_arch a = {.n_layers = 2, .n_kv_heads = 2, .head_dim = 64};
    struct bt_block_layout pool;
    struct bt_block_layout wide;
    cr_assert_eq(bt_block_layout_init(&pool, &a, NULL, BT_KV_INT8, 16, &err), BT_OK);
    cr_assert_eq(bt_block_layout_init_16bit(&wide, &pool, BT_KV_FP16, &err), BT_OK);
    cr_assert_eq(wide.block_bytes, pool.block_bytes);
    cr_assert_eq(wide.block_tokens, 16 * 66 / 128);
    cr_assert_eq(bt_block_layout_init(&pool, &a, NULL, BT_KV_INT8, 1, &err), BT_OK);
    cr_assert_eq(bt_block_layout_init_16bit(&wide, &pool, BT_KV_FP16, &err), BT_ERR_ARG);
}

/* ---- sampling ---- */

enum { V = 6 };
static const float LOGITS[V] = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.0f};

static void probs_of(struct bt_sampling how, float *p)
{
    struct bt_arena arena;
    struct bt_error err = {0};
    struct bt_sampler s;
    bt_arena_init(&arena, 0);
    cr_assert_eq(bt_sampler_init(&s, &arena, V, &err), BT_OK);
    cr_assert(bt_sample_probs(&s, LOGITS, &how, p));
    bt_arena_fini(&arena);
}

Test(cpu_sample, temperature_top_k_and_top_p_cut_the_softmax)
{
    float p[V];
    double sum = 0.0;
    for (int32_t i = 0; i < V; i++) {
        sum += exp((double)LOGITS[i] / 2.0);
    }
    probs_of((struct bt_sampling){.temperature = 2.0f}, p);
    for (int32_t i = 0; i < V; i++) {
        cr_assert_float_eq((double)p[i], exp((double)LOGITS[i] / 2.0) / sum, 1e-6);
    }
    /* Of equals the lower id is kept. */
    probs_of((struct bt_sampling){.temperature = 1.0f, .top_k = 1}, p);
    cr_assert(p[1] == 1.0f && p[3] == 0.0f);
    probs_of((struct bt_sampling){.temperature = 1.0f, .top_k = 3}, p);
    double three = 2.0 * exp(3.0) + exp(2.0);
    cr_assert_float_eq((double)p[2], exp(2.0) / three, 1e-6);
    cr_assert(p[0] == 0.0f && p[4] == 0.0f && p[5] == 0.0f);
    /* 1 and 3 have 0.389 each: half needs both, 0.38 only the first. */
    probs_of((struct bt_sampling){.temperature = 1.0f, .top_p = 0.5f}, p);
    cr_assert(p[1] == 0.5f && p[3] == 0.5f && p[2] == 0.0f);
    probs_of((struct bt_sampling){.temperature = 1.0f, .top_p = 0.38f}, p);
    cr_assert(p[1] == 1.0f && p[3] == 0.0f);
    /* top-p counts within what top-k left. */
    probs_of((struct bt_sampling){.temperature = 1.0f, .top_k = 3, .top_p = 0.9f}, p);
    cr_assert_gt(p[2], 0.0f);
    probs_of((struct bt_sampling){.temperature = 1.0f, .top_k = 3, .top_p = 0.84f}, p);
    cr_assert_eq(p[2], 0.0f);
}

Test(cpu_sample, a_draw_depends_on_seed_purpose_and_position_alone)
{
    double a = bt_sample_uniform(1, BT_DRAW_TOKEN, 5);
    cr_assert_eq(a, bt_sample_uniform(1, BT_DRAW_TOKEN, 5));
    cr_assert_neq(a, bt_sample_uniform(2, BT_DRAW_TOKEN, 5));
    cr_assert_neq(a, bt_sample_uniform(1, BT_DRAW_ACCEPT, 5));
    cr_assert_neq(a, bt_sample_uniform(1, BT_DRAW_TOKEN, 6));
    /* Neighbouring seeds and positions are not correlated. */
    double sum = 0.0;
    double product = 0.0;
    for (int32_t i = 0; i < 20000; i++) {
        double u = bt_sample_uniform(7, BT_DRAW_TOKEN, i) - 0.5;
        double v = bt_sample_uniform(8, BT_DRAW_TOKEN, i) - 0.5;
        sum += u;
        product += u * v;
    }
    cr_assert_lt(fabs(sum / 20000), 0.01);
    cr_assert_lt(fabs(product / 20000), 0.003);
}

Test(cpu_sample, the_cumulative_distribution_is_walked_in_order_of_ids)
{
    float p[V] = {0.25f, 0.0f, 0.5f, 0.0f, 0.25f, 0.0f};
    cr_assert_eq(bt_sample_at(p, V, 0.0), 0);
    cr_assert_eq(bt_sample_at(p, V, 0.2499), 0);
    cr_assert_eq(bt_sample_at(p, V, 0.25), 2);
    cr_assert_eq(bt_sample_at(p, V, 0.75), 4);
    cr_assert_eq(bt_sample_at(p, V, 0.9999999), 4);
    float less[V] = {0.25f, 0.0f, 0.4999f, 0.0f, 0.0f, 0.0f};
    cr_assert_eq(bt_sample_at(less, V, 0.9999), 2);
}

Test(cpu_sample, what_is_not_a_number_is_told)
{
    float x[V] = {0};
    cr_assert_eq(bt_sample_argmax(LOGITS, V), 1);
    x[4] = NAN;
    cr_assert_eq(bt_sample_argmax(x, V), -1);
    x[4] = INFINITY;
    cr_assert_eq(bt_sample_argmax(x, V), -1);
    x[4] = -INFINITY;
    cr_assert_eq(bt_sample_argmax(x, V), 0);
}
