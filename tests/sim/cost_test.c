#include "engine/core/rng.h"
#include "sim/cost/roofline.h"
#include "sim/cost/step.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <math.h>

static struct bt_cost create(const struct bt_step_opts *o)
{
    struct bt_cost cost;
    struct bt_error err = {0};
    cr_assert_eq(bt_roofline_create(o, &cost, &err), BT_OK, "%s", err.msg);
    return cost;
}

static struct bt_cost_parts step_of(const struct bt_cost *cost, const struct bt_batch *b)
{
    struct bt_cost_parts p;
    cost->ops->step(cost->self, b, &p);
    return p;
}

/* Published kernels on an H200, us at m = 1 / 8 / 32 / 128 / 2048: cuBLAS (bf16, int8) measured on
 * the project's card, and the best kernels of the aiconfigurator tables (int4: TensorRT). */
static const struct {
    const char *name;
    enum bt_weight_format weights;
    enum bt_act_format acts;
    int64_t n, k;
    double us[5];
} gemm_anchors[] = {
    {"13B qkv bf16 cublas",
     BT_WEIGHT_BF16,
     BT_ACT_BF16,
     15360,
     5120,
     {47.7, 47.9, 48.5, 50.6, 375}},
    {"13B gate_up bf16 cublas",
     BT_WEIGHT_BF16,
     BT_ACT_BF16,
     27648,
     5120,
     {76.1, 75.4, 80, 86.8, 671}},
    {"13B down bf16 cublas",
     BT_WEIGHT_BF16,
     BT_ACT_BF16,
     5120,
     13824,
     {45.9, 46.2, 46.8, 53.5, 335}},
    {"8B gate_up bf16 cublas",
     BT_WEIGHT_BF16,
     BT_ACT_BF16,
     28672,
     4096,
     {63.4, 63.7, 65.1, 73.9, 569}},
    {"8B qkv bf16 cublas", BT_WEIGHT_BF16, BT_ACT_BF16, 6144, 4096, {23.2, 23, 23.7, 24.9, 135}},
    {"13B qkv int8 cublas",
     BT_WEIGHT_INT8,
     BT_ACT_INT8_DYNAMIC,
     15360,
     5120,
     {28.6, 34.6, 34.7, 37.3, 193}},
    {"13B gate_up int8 cublas",
     BT_WEIGHT_INT8,
     BT_ACT_INT8_DYNAMIC,
     27648,
     5120,
     {52.5, 47.6, 58.4, 58, 337}},
    {"13B down int8 cublas",
     BT_WEIGHT_INT8,
     BT_ACT_INT8_DYNAMIC,
     5120,
     13824,
     {41, 37.8, 33, 39.1, 193}},
    {"8B gate_up int8 cublas",
     BT_WEIGHT_INT8,
     BT_ACT_INT8_DYNAMIC,
     28672,
     4096,
     {39.7, 40.1, 51.9, 51.6, 286}},
    {"13B qkv bf16", BT_WEIGHT_BF16, BT_ACT_BF16, 15360, 5120, {39.4, 39.2, 40.1, 43.2, 396}},
    {"13B o bf16", BT_WEIGHT_BF16, BT_ACT_BF16, 5120, 5120, {15.6, 15.2, 15.8, 17.8, 131}},
    {"8B o bf16", BT_WEIGHT_BF16, BT_ACT_BF16, 4096, 4096, {12.5, 12.4, 12.9, 13.9, 84}},
    {"8B lm_head bf16", BT_WEIGHT_BF16, BT_ACT_BF16, 128256, 4096, {259, 252, 256, 274, 2739}},
    {"13B qkv int8", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC, 15360, 5120, {25, 27.2, 28.6, 39.9, 337}},
    {"13B gate_up int8",
     BT_WEIGHT_INT8,
     BT_ACT_INT8_DYNAMIC,
     27648,
     5120,
     {39.2, 42.4, 44.6, 57, 603}},
    {"13B qkv int4", BT_WEIGHT_INT4_G128, BT_ACT_BF16, 15360, 5120, {20, 28.3, 37.5, 45.8, 388}},
    {"13B gate_up int4",
     BT_WEIGHT_INT4_G128,
     BT_ACT_BF16,
     27648,
     5120,
     {29, 41.7, 51.8, 67.4, 678}},
    {"13B down int4", BT_WEIGHT_INT4_G128, BT_ACT_BF16, 5120, 13824, {17.3, 31.9, 32.4, 77.8, 335}},
    {"8B lm_head int4", BT_WEIGHT_INT4_G128, BT_ACT_BF16, 128256, 4096, {85, 141, 145, 211, 2492}},
};

Test(roofline, h200_products_are_near_the_published_tables)
{
    /* Two tables of one operation differ by up to 1.8 (int8 at m = 2048), and single rows stand out
     * of their own table (int4 down at m = 128 takes twice what its neighbours do), so a row is
     * allowed more than the mean. */
    const double most = 2.1, mean_most = 1.20;
    const int64_t m[5] = {1, 8, 32, 128, 2048};
    struct bt_gpu gpu = fixture_h200();
    struct bt_law law;
    cr_assert_eq(bt_roofline_law_create(&gpu, &law, NULL), BT_OK);
    double sum = 0;
    int32_t rows = 0;
    for (size_t i = 0; i < sizeof gemm_anchors / sizeof *gemm_anchors; i++) {
        for (int32_t j = 0; j < 5; j++) {
            struct bt_law_gemm g = {.op = BT_STEP_QKV,
                                    .m = m[j],
                                    .n = gemm_anchors[i].n,
                                    .k = gemm_anchors[i].k,
                                    .weights = gemm_anchors[i].weights,
                                    .activations = gemm_anchors[i].acts};
            double us = law.ops->gemm_ps(law.self, &g) * 1e-6 + 0.5;
            double factor = us / gemm_anchors[i].us[j];
            factor = factor < 1 ? 1 / factor : factor;
            cr_expect(factor < most, "%s m=%d: %.1f us, published %.1f", gemm_anchors[i].name,
                      (int)m[j], us, gemm_anchors[i].us[j]);
            sum += log(factor);
            rows++;
        }
    }
    double mean = exp(sum / rows);
    cr_log_info("geometric mean factor %.3f over %d rows", mean, rows);
    cr_expect(mean < mean_most, "geometric mean factor %.3f", mean);
    law.ops->destroy(law.self);
}

/* Decode attention on an H200, us a layer. */
static const struct {
    const char *name;
    enum bt_kv_format kv;
    int32_t heads, kv_heads, batch, ctx;
    double us;
} decode_anchors[] = {
    {"32/8 B1 S1024", BT_KV_BF16, 32, 8, 1, 1024, 11.8},
    {"32/8 B1 S8192", BT_KV_BF16, 32, 8, 1, 8192, 16.2},
    {"32/8 B1 S32768", BT_KV_BF16, 32, 8, 1, 32768, 43.4},
    {"32/8 B8 S4096", BT_KV_BF16, 32, 8, 8, 4096, 42.2},
    {"32/8 B32 S4096", BT_KV_BF16, 32, 8, 32, 4096, 131},
    {"32/8 B128 S1024", BT_KV_BF16, 32, 8, 128, 1024, 138},
    {"32/8 B128 S4096", BT_KV_BF16, 32, 8, 128, 4096, 490},
    {"40/40 B1 S1024", BT_KV_BF16, 40, 40, 1, 1024, 14.1},
    {"40/40 B8 S4096", BT_KV_BF16, 40, 40, 8, 4096, 178},
    {"40/40 B32 S4096", BT_KV_BF16, 40, 40, 32, 4096, 607},
    {"40/40 B128 S1024", BT_KV_BF16, 40, 40, 128, 1024, 622},
    {"32/8 8-bit B32 S4096", BT_KV_INT8, 32, 8, 32, 4096, 74.3},
    {"32/8 8-bit B128 S4096", BT_KV_INT8, 32, 8, 128, 4096, 254},
    {"32/8 8-bit B8 S4096", BT_KV_INT8, 32, 8, 8, 4096, 31.1},
};

static const struct {
    const char *name;
    int32_t heads, kv_heads, tokens;
    double us;
} prefill_anchors[] = {
    {"32/8 S512", 32, 8, 512, 18},      {"32/8 S1024", 32, 8, 1024, 29},
    {"32/8 S2048", 32, 8, 2048, 81},    {"32/8 S4096", 32, 8, 4096, 266},
    {"32/8 S8192", 32, 8, 8192, 888},   {"32/8 S16384", 32, 8, 16384, 3370},
    {"40/40 S2048", 40, 40, 2048, 123}, {"40/40 S8192", 40, 40, 8192, 1210},
};

Test(roofline, h200_attention_is_near_the_published_tables)
{
    const double most = 1.45;
    struct bt_gpu gpu = fixture_h200();
    struct bt_law law;
    cr_assert_eq(bt_roofline_law_create(&gpu, &law, NULL), BT_OK);
    for (size_t i = 0; i < sizeof decode_anchors / sizeof *decode_anchors; i++) {
        struct bt_law_attention a = {.n_heads = decode_anchors[i].heads,
                                     .n_kv_heads = decode_anchors[i].kv_heads,
                                     .head_dim = 128,
                                     .kv = decode_anchors[i].kv,
                                     .flash = true,
                                     .n_seqs = decode_anchors[i].batch,
                                     .tokens = decode_anchors[i].batch};
        double fixed, slope;
        law.ops->decode_ps(law.self, &a, &fixed, &slope);
        double ctx = (double)decode_anchors[i].batch * decode_anchors[i].ctx;
        double factor = (0.5 + (fixed + slope * ctx) * 1e-6) / decode_anchors[i].us;
        cr_expect(factor < most && factor > 1 / most, "%s: factor %.2f", decode_anchors[i].name,
                  factor);
    }
    for (size_t i = 0; i < sizeof prefill_anchors / sizeof *prefill_anchors; i++) {
        int64_t t = prefill_anchors[i].tokens;
        struct bt_law_attention a = {.n_heads = prefill_anchors[i].heads,
                                     .n_kv_heads = prefill_anchors[i].kv_heads,
                                     .head_dim = 128,
                                     .kv = BT_KV_BF16,
                                     .flash = true,
                                     .n_seqs = 1,
                                     .tokens = t,
                                     .pairs = t * (t + 1) / 2,
                                     .ctx = t};
        double factor = (0.5 + law.ops->prefill_ps(law.self, &a) * 1e-6) / prefill_anchors[i].us;
        cr_expect(factor < most && factor > 1 / most, "%s: factor %.2f", prefill_anchors[i].name,
                  factor);
    }
    law.ops->destroy(law.self);
}

/* Sums of the best published kernels, ms a step at context 1024, and 2048-token prefills. */
Test(roofline, h200_steps_are_near_the_sum_of_the_best_kernels)
{
    const double most = 1.25;
    struct bt_gpu gpu = fixture_h200();
    struct bt_arch b13 = fixture_13b(), b8 = fixture_8b();
    const struct {
        const char *name;
        const struct bt_arch *arch;
        enum bt_weight_format weights;
        enum bt_act_format acts;
        enum bt_kv_format kv;
        int32_t batch; /* 0: prefill of 2048 tokens */
        double ms;
    } rows[] = {
        {"13B bf16 B1", &b13, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 1, 7.23},
        {"13B bf16 B8", &b13, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 8, 8.88},
        {"13B bf16 B32", &b13, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 32, 13.56},
        {"13B bf16 B128", &b13, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 128, 32.26},
        {"13B W8A8 KV8 B1", &b13, BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC, BT_KV_INT8, 1, 4.70},
        {"13B W4A16 KV16 B1", &b13, BT_WEIGHT_INT4_G128, BT_ACT_BF16, BT_KV_BF16, 1, 3.77},
        {"13B W4A16 KV16 B8", &b13, BT_WEIGHT_INT4_G128, BT_ACT_BF16, BT_KV_BF16, 8, 7.22},
        {"13B W4A16 KV16 B32", &b13, BT_WEIGHT_INT4_G128, BT_ACT_BF16, BT_KV_BF16, 32, 12.9},
        {"8B bf16 B1", &b8, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 1, 4.46},
        {"8B bf16 B32", &b8, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 32, 5.55},
        {"8B bf16 B128", &b8, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 128, 8.94},
        {"13B bf16 prefill", &b13, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 0, 69.1},
        {"8B bf16 prefill", &b8, BT_WEIGHT_BF16, BT_ACT_BF16, BT_KV_BF16, 0, 39.0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_step_opts o = {.target = {.arch = rows[i].arch,
                                            .weights = rows[i].weights,
                                            .activations = rows[i].acts,
                                            .kv = rows[i].kv},
                                 .gpu = &gpu,
                                 .fused = true};
        struct bt_cost cost = create(&o);
        struct bt_batch b =
            rows[i].batch > 0 ? fixture_decodes(rows[i].batch, 1024) : fixture_prompts(1, 2048);
        double ms = (double)step_of(&cost, &b).time_ps * 1e-9;
        double factor = ms / rows[i].ms;
        cr_expect(factor < most && factor > 1 / most, "%s: %.2f ms, published %.2f", rows[i].name,
                  ms, rows[i].ms);
        bt_cost_fini(&cost);
    }
}

Test(roofline, all_reduce_is_near_the_measured_one)
{
    /* us by ranks and bytes: H200 NVLink (vLLM custom, in a graph), L40S PCIe (NCCL). */
    const struct {
        bool l40s;
        int32_t ranks;
        int64_t bytes;
        double us;
    } rows[] = {
        {false, 2, 16384, 4.55},   {false, 2, 1048576, 8.43},  {false, 2, 8388608, 43.0},
        {false, 4, 1048576, 12.1}, {false, 8, 8388608, 48.4},  {true, 2, 16384, 7.54},
        {true, 2, 1048576, 74.8},  {true, 4, 8388608, 2458.8}, {true, 8, 8388608, 9987.8},
    };
    struct bt_gpu h200 = fixture_h200(), l40s = fixture_l40s();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_law law;
        cr_assert_eq(bt_roofline_law_create(rows[i].l40s ? &l40s : &h200, &law, NULL), BT_OK);
        double us = 1e-6 * law.ops->collective_ps(law.self, BT_STEP_ALL_REDUCE, rows[i].bytes,
                                                  rows[i].ranks);
        double factor = us / rows[i].us;
        cr_expect(factor < 1.5 && factor > 1 / 1.5, "%s x%d %lld B: %.1f us, measured %.1f",
                  rows[i].l40s ? "l40s" : "h200", rows[i].ranks, (long long)rows[i].bytes, us,
                  rows[i].us);
        law.ops->destroy(law.self);
    }
}

Test(cost, span_is_exactly_the_sum_of_its_steps)
{
    struct bt_rng rng;
    bt_rng_init(&rng, 11, "span", 0);
    struct bt_gpu gpu = fixture_h200();
    for (int32_t variant = 0; variant < 4; variant++) {
        struct bt_arch arch = variant % 2 == 0 ? fixture_13b() : fixture_8b();
        if (variant >= 2) {
            arch.sliding_window = 700;
            bt_arch_slide_layers(&arch, 0, arch.n_layers / 2);
        }
        struct bt_step_opts o = {.target = {.arch = &arch, .kv = BT_KV_INT8},
                                 .gpu = &gpu,
                                 .fused = variant != 1,
                                 .max_seqs = 64,
                                 .max_tokens = 128};
        struct bt_cost cost = create(&o);
        for (int32_t round = 0; round < 300; round++) {
            int32_t n = 1 + (int32_t)bt_rng_below(&rng, 100); /* past the table too */
            struct bt_batch b = fixture_decodes(n, 0);
            b.n_16bit = (int32_t)bt_rng_below(&rng, (uint64_t)n + 1);
            b.ctx_16bit = b.n_16bit == 0 ? 0 : b.n_16bit + (int64_t)bt_rng_below(&rng, 200000);
            b.decode_ctx =
                b.ctx_16bit + (b.n_16bit == n ? 0 : n + (int64_t)bt_rng_below(&rng, 100000));
            int32_t steps = 1 + (int32_t)bt_rng_below(&rng, 2000);
            struct bt_cost_parts span, sum = {0};
            cost.ops->span(cost.self, &b, steps, &span);
            for (int32_t i = 0; i < steps; i++) {
                struct bt_cost_parts one = step_of(&cost, &b);
                sum.time_ps += one.time_ps;
                sum.flops += one.flops;
                sum.bytes += one.bytes;
                sum.host_ns += one.host_ns;
                b.decode_ctx += n;
                b.ctx_16bit += b.n_16bit;
            }
            cr_assert_eq(span.time_ps, sum.time_ps, "variant %d round %d", variant, round);
            cr_assert_eq(span.flops, sum.flops);
            cr_assert_eq(span.bytes, sum.bytes);
            cr_assert_eq(span.host_ns, sum.host_ns);
        }
        bt_cost_fini(&cost);
    }
}

Test(cost, explained_rows_add_up_to_the_step)
{
    struct bt_gpu gpu = fixture_h200();
    struct bt_arch arch = fixture_13b(), draft = fixture_tinyllama();
    for (int32_t fused = 0; fused < 2; fused++) {
        struct bt_step_opts o = {.target = {.arch = &arch,
                                            .weights = BT_WEIGHT_INT8,
                                            .activations = BT_ACT_INT8_DYNAMIC},
                                 .draft = {.arch = &draft},
                                 .gpu = &gpu,
                                 .tp = 2,
                                 .fused = fused,
                                 .spec = BT_SPEC_DRAFT,
                                 .spec_k = 4};
        struct bt_cost cost = create(&o);
        struct bt_batch b = fixture_decodes(8, 500);
        b.n_decode_tokens = 40;
        b.n_logits = 41;
        b.n_draft_steps = 4;
        b.n_catchup_tokens = 30;
        b.n_prefill = 1;
        b.n_prefill_tokens = 512;
        b.prefill_pairs = 512 * 513 / 2;
        b.prefill_ctx = 512;
        struct bt_step_row rows[BT_STEP_ROWS_MAX];
        int32_t n = bt_step_cost_explain(&cost, &b, rows);
        double sum = 0;
        for (int32_t i = 0; i < n; i++) {
            sum += rows[i].time_ps;
        }
        double time_ps = (double)step_of(&cost, &b).time_ps;
        cr_expect(fabs(sum - time_ps) < 1000, "fused %d: rows %.0f, step %.0f", fused, sum,
                  time_ps);
        bt_cost_fini(&cost);
    }
}

Test(cost, tables_agree_with_what_is_computed_beyond_them)
{
    struct bt_gpu gpu = fixture_a100();
    struct bt_arch arch = fixture_7b();
    struct bt_step_opts small = {
        .target = {.arch = &arch}, .gpu = &gpu, .fused = true, .max_tokens = 4, .max_seqs = 2};
    struct bt_step_opts large = small;
    large.max_tokens = 4096;
    large.max_seqs = 512;
    struct bt_cost a = create(&small), b = create(&large);
    for (int32_t n = 1; n <= 512; n += 17) {
        struct bt_batch batch = fixture_decodes(n, 100 + n);
        cr_expect_eq(step_of(&a, &batch).time_ps, step_of(&b, &batch).time_ps, "n = %d", n);
    }
    bt_cost_fini(&a);
    bt_cost_fini(&b);
}

static double decode_ms(struct bt_step_opts o, int32_t n, int64_t ctx)
{
    struct bt_cost cost = create(&o);
    struct bt_batch b = fixture_decodes(n, ctx);
    double ms = (double)step_of(&cost, &b).time_ps * 1e-9;
    bt_cost_fini(&cost);
    return ms;
}

Test(cost, knobs_move_the_step_the_right_way)
{
    struct bt_gpu gpu = fixture_h200(), l40s = fixture_l40s();
    struct bt_arch arch = fixture_13b();
    struct bt_step_opts o = {.target = {.arch = &arch}, .gpu = &gpu, .fused = true};
    double base = decode_ms(o, 8, 1000);

    struct bt_step_opts v = o;
    v.fused = false;
    cr_expect(decode_ms(v, 8, 1000) > 1.02 * base, "fusion saves time");
    v = o;
    v.tp = 2;
    double tp2 = decode_ms(v, 8, 1000);
    cr_expect(tp2 < 0.7 * base && tp2 > 0.5 * base, "two ranks: %.2f of %.2f ms", tp2, base);
    v = o;
    v.gpu = &l40s;
    double card = decode_ms(v, 8, 1000);
    v.tp = 4;
    double card4 = decode_ms(v, 8, 1000);
    cr_expect(card4 > 0.25 * card, "PCIe all-reduce costs something");
    v = o;
    v.target.kv = BT_KV_INT8;
    cr_expect(decode_ms(v, 64, 2000) < decode_ms(o, 64, 2000));
    v = o;
    v.target.weights = BT_WEIGHT_INT8;
    v.target.activations = BT_ACT_INT8_DYNAMIC;
    cr_expect(decode_ms(v, 1, 100) < 0.65 * decode_ms(o, 1, 100));

    /* W4A16 gains at batch 1 and not in a large prefill. */
    v = o;
    v.target.weights = BT_WEIGHT_INT4_G128;
    cr_expect(decode_ms(v, 1, 100) < 0.6 * decode_ms(o, 1, 100));
    struct bt_cost w16 = create(&o), w4 = create(&v);
    struct bt_batch b = fixture_prompts(1, 2048);
    double ratio = (double)step_of(&w4, &b).time_ps / (double)step_of(&w16, &b).time_ps;
    cr_expect(ratio > 0.95 && ratio < 1.1, "W4A16 prefill is %.2f of bf16", ratio);
    bt_cost_fini(&w16);
    bt_cost_fini(&w4);
}

Test(cost, more_work_never_takes_less_time)
{
    static const struct {
        enum bt_weight_format weights;
        enum bt_act_format acts;
    } formats[] = {
        {BT_WEIGHT_FP32, BT_ACT_FP32},        {BT_WEIGHT_FP16, BT_ACT_FP16},
        {BT_WEIGHT_INT8, BT_ACT_FP16},        {BT_WEIGHT_INT4_G128, BT_ACT_FP16},
        {BT_WEIGHT_INT4_TENSOR, BT_ACT_BF16}, {BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC},
        {BT_WEIGHT_INT8, BT_ACT_INT8_STATIC}, {BT_WEIGHT_INT4_G32, BT_ACT_INT8_DYNAMIC},
        {BT_WEIGHT_FP8, BT_ACT_BF16},
    };
    struct bt_gpu gpus[] = {fixture_h200(), fixture_a100(), fixture_l40s()};
    struct bt_arch arch = fixture_8b();
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
            struct bt_step_opts o = {.target = {.arch = &arch,
                                                .weights = formats[f].weights,
                                                .activations = formats[f].acts},
                                     .gpu = &gpus[g],
                                     .fused = g != 1,
                                     .max_seqs = 512};
            struct bt_cost cost = create(&o);
            int64_t decode_ps = 0, prefill_ps = 0;
            for (int32_t n = 1; n <= 600; n++) {
                struct bt_batch d = fixture_decodes(n, 500), p = fixture_prompts(1, n);
                int64_t d_ps = step_of(&cost, &d).time_ps, p_ps = step_of(&cost, &p).time_ps;
                cr_assert(d_ps >= decode_ps, "%s, format %d: %d decodes", gpus[g].name, (int)f, n);
                cr_assert(p_ps >= prefill_ps, "%s, format %d: %d tokens", gpus[g].name, (int)f, n);
                decode_ps = d_ps;
                prefill_ps = p_ps;
            }
            bt_cost_fini(&cost);
        }
    }
}

Test(cost, small_models_are_bound_by_launches_in_prefill_only)
{
    struct bt_gpu gpu = fixture_h200();
    struct bt_arch arch = fixture_arch("small", 128, 2, 2, 2, 64, 352, 8192);
    struct bt_step_opts o = {.target = {.arch = &arch}, .gpu = &gpu, .fused = true};
    struct bt_cost graph = create(&o);
    o.launch_ps = 100000000; /* a slow host: 100 us a launch */
    struct bt_cost slow = create(&o);
    struct bt_batch b = fixture_decodes(1, 10);
    cr_expect_eq(step_of(&graph, &b).time_ps, step_of(&slow, &b).time_ps);
    b = fixture_prompts(1, 16);
    /* Per layer two norms, four products and attention; embedding; norm, lm_head, sampling. */
    cr_expect_eq(step_of(&slow, &b).time_ps, (2 * 7 + 1 + 3) * INT64_C(100000000));
    cr_expect(step_of(&graph, &b).time_ps < step_of(&slow, &b).time_ps);
    bt_cost_fini(&graph);
    bt_cost_fini(&slow);
}

Test(cost, speculation_costs_its_draft_passes)
{
    struct bt_gpu gpu = fixture_h200();
    struct bt_arch arch = fixture_13b(), draft = fixture_tinyllama();
    struct bt_step_opts o = {.target = {.arch = &arch},
                             .draft = {.arch = &draft},
                             .gpu = &gpu,
                             .fused = true,
                             .spec = BT_SPEC_DRAFT,
                             .spec_k = 4};
    struct bt_cost cost = create(&o);
    struct bt_batch plain = fixture_decodes(1, 1024);
    struct bt_batch spec = plain;
    spec.n_decode_tokens = 5;
    spec.decode_ctx = 1028;
    spec.n_logits = 5;
    struct bt_batch verify = spec;
    spec.n_draft_steps = 4;
    double verify_ms = (double)step_of(&cost, &verify).time_ps * 1e-9;
    double spec_ms = (double)step_of(&cost, &spec).time_ps * 1e-9;
    double plain_ms = (double)step_of(&cost, &plain).time_ps * 1e-9;
    cr_expect(verify_ms < 1.05 * plain_ms, "five rows cost as one: %.2f, %.2f ms", verify_ms,
              plain_ms);
    double c = (spec_ms - verify_ms) / 4 / plain_ms;
    cr_expect(c > 0.09 && c < 0.2, "a draft pass is %.3f of a target step", c);
    bt_cost_fini(&cost);

    o.spec = BT_SPEC_SELF;
    o.self_layers = 10;
    cost = create(&o);
    double self_ms = (double)step_of(&cost, &spec).time_ps * 1e-9;
    c = (self_ms - verify_ms) / 4 / plain_ms;
    cr_expect(c > 0.25 && c < 0.29, "10 of 40 layers and the head are %.3f of a step", c);
    bt_cost_fini(&cost);

    o.spec = BT_SPEC_MEDUSA;
    cost = create(&o);
    double medusa_ms = (double)step_of(&cost, &spec).time_ps * 1e-9;
    cr_expect(medusa_ms > verify_ms && medusa_ms < verify_ms + 0.25, "heads: %.3f ms",
              medusa_ms - verify_ms);
    bt_cost_fini(&cost);
}

Test(cost, copies_follow_the_curve_of_the_link)
{
    struct bt_gpu gpu = fixture_h200();
    struct bt_arch arch = fixture_13b();
    struct bt_step_opts o = {
        .target = {.arch = &arch}, .gpu = &gpu, .fused = true, .block_bytes = 1048576};
    struct bt_cost cost = create(&o);
    cr_expect_eq(cost.ops->copy_ps(cost.self, BT_COPY_SWAP_IN, 1), 21531335);
    cr_expect_eq(cost.ops->copy_ps(cost.self, BT_COPY_SWAP_OUT, 10), 10 * INT64_C(20971520));
    cr_expect_eq(cost.ops->copy_ps(cost.self, BT_COPY_SWAP_OUT, 0), 0);
    cr_expect_float_eq(cost.duplex_share, 101 / 110.7, 1e-9);
    int64_t cow = cost.ops->copy_ps(cost.self, BT_COPY_COW, 1000);
    cr_expect_float_eq((double)cow, 3.5e6 + 1000 * 2 * 1048576 / 4.32e12 * 1e12, 1000.0);
    bt_cost_fini(&cost);

    /* The same bytes in small blocks take longer; a slower link is slower. */
    o.block_bytes = 16384;
    struct bt_cost small = create(&o);
    cr_expect(small.ops->copy_ps(small.self, BT_COPY_SWAP_IN, 64) > 8 * INT64_C(21531335));
    bt_cost_fini(&small);
    o.block_bytes = 1 << 30;
    o.pcie_bytes_per_s = 10000000000;
    struct bt_cost slow = create(&o);
    cr_expect_float_eq((double)slow.ops->copy_ps(slow.self, BT_COPY_SWAP_IN, 1), (1 << 30) * 100.0,
                       1e6);
    bt_cost_fini(&slow);
}

Test(cost, missing_units_and_bad_shapes_are_named)
{
    struct bt_gpu gpu = fixture_a100();
    struct bt_arch arch = fixture_13b();
    struct bt_cost cost;
    struct bt_error err = {0};
    gpu.int8_ops_per_s = 0;
    struct bt_step_opts o = {
        .target = {.arch = &arch, .weights = BT_WEIGHT_INT8, .activations = BT_ACT_INT8_STATIC},
        .gpu = &gpu};
    cr_expect_eq(bt_roofline_create(&o, &cost, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg,
                     "a100-80-sxm has no unit for int8 weights with int8-static activations");
    bt_error_clear(&err);
    o.target.activations = BT_ACT_FP16;
    o.tp = 3;
    cr_expect_eq(bt_roofline_create(&o, &cost, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "tp: 3 does not divide the 40 attention heads of llama-2-13b");
    cr_expect_null(cost.ops);
    bt_error_clear(&err);
    o.tp = 1;
    o.spec = BT_SPEC_SELF;
    o.self_layers = 41;
    cr_expect_eq(bt_roofline_create(&o, &cost, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "spec: self-speculation with 41 layers; llama-2-13b allows 1..40");
}
