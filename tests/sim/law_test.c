/* Cost models from measured surfaces: steps against their operations, trust, and what changes it.
 */
#include "db/calibrations/calibrations.h"
#include "engine/core/rng.h"
#include "sim/cost/roofline.h"
#include "sim/cost/surface_law.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { TEXTS_MAX = 96 };

static struct bt_surface_library *library_of(const struct bt_embedded *texts)
{
    struct bt_gpu gpus[] = {fixture_h200(), fixture_a100(), fixture_l40s()};
    struct bt_surface_library_opts o = {.texts = texts, .gpus = gpus, .n_gpus = 3};
    struct bt_surface_library *l = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_surface_library_create(&o, &l, &err), BT_OK, "%s", err.msg);
    return l;
}

/* The shipped texts but for those whose name holds `without`. */
static const struct bt_embedded *texts_without(struct bt_embedded out[TEXTS_MAX],
                                               const char *without)
{
    int32_t n = 0;
    for (const struct bt_embedded *e = bt_calibration_texts; e->name != NULL; e++) {
        if (strstr(e->name, without) == NULL) {
            cr_assert_lt(n, TEXTS_MAX - 1);
            out[n++] = *e;
        }
    }
    out[n] = (struct bt_embedded){0};
    return out;
}

struct asked {
    const char *stack;
    struct bt_gpu gpu;
    enum bt_weight_format weights;
    int32_t tp;
};

static struct bt_cost cost_of(struct bt_surface_library *l, const struct asked *a)
{
    struct bt_arch arch = fixture_8b();
    arch.max_position = 131072;
    struct bt_step_opts o = {.target = {.arch = &arch, .weights = a->weights},
                             .gpu = &a->gpu,
                             .tp = a->tp,
                             .fused = true};
    struct bt_cost c;
    struct bt_error err = {0};
    cr_assert_eq(bt_surface_cost_create(l, a->stack, BT_SOURCE_WITHOUT_NOTHING, &o, &c, &err),
                 BT_OK, "%s", err.msg);
    return c;
}

static double step_ps(const struct bt_cost *c, const struct bt_batch *b)
{
    struct bt_cost_parts p;
    c->ops->step(c->self, b, &p);
    return (double)p.time_ps;
}

Test(law, step_is_the_sum_of_its_operations)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked a = {"vllm-0.24", fixture_h200(), BT_WEIGHT_FP8, 1};
    struct bt_cost c = cost_of(l, &a);
    for (int32_t n = 1; n <= 256; n *= 2) {
        struct bt_batch b = fixture_decodes(n, 100 + 37 * n);
        struct bt_step_row rows[BT_STEP_ROWS_MAX];
        int32_t n_rows = bt_step_cost_explain(&c, &b, rows);
        double sum = 0;
        for (int32_t i = 0; i < n_rows; i++) {
            sum += rows[i].time_ps;
        }
        cr_expect_float_eq(sum, step_ps(&c, &b), 4, "%d sequences", n);
    }
    bt_cost_fini(&c);
    bt_surface_library_destroy(l);
}

/* A row of the explanation, its launches taken off. */
static double row_ps(const struct bt_cost *c, const struct bt_batch *b, enum bt_step_op op)
{
    const double node_ps = 500e3;
    struct bt_step_row rows[BT_STEP_ROWS_MAX];
    int32_t n = bt_step_cost_explain(c, b, rows);
    for (int32_t i = 0; i < n; i++) {
        if (rows[i].op == op) {
            return rows[i].time_ps - rows[i].launches * node_ps;
        }
    }
    return NAN;
}

Test(law, operations_are_what_the_surface_says)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked a = {"vllm-0.24", fixture_h200(), BT_WEIGHT_FP8, 1};
    struct bt_cost c = cost_of(l, &a);
    struct bt_source_query q = {.op = BT_OP_GEMM,
                                .format = {BT_NUM_FP8, BT_NUM_FP8, BT_NUM_NONE},
                                .gpu = "h200",
                                .stack = bt_stack_name_of("vllm-0.24")};
    const struct bt_op_source *s = NULL;
    cr_assert_eq(bt_surface_library_find(l, &q, &s, NULL), BT_OK);
    cr_assert_not_null(s);
    cr_expect_eq(s->level, BT_TRUST_IMPORTED);
    cr_expect_str_eq(s->text, "vllm 0.24.0");
    static const int32_t tokens[] = {1, 3, 8, 100, 256};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct bt_batch b = fixture_decodes(tokens[i], 512);
        struct bt_op_shape qkv = {.m = tokens[i], .n = 6144, .k = 4096};
        struct bt_op_shape down = {.m = tokens[i], .n = 4096, .k = 14336};
        cr_expect_float_eq(row_ps(&c, &b, BT_STEP_QKV) / (32e3 * bt_op_source_ns(s, &qkv, NULL)), 1,
                           0.002, "qkv of %d", tokens[i]);
        cr_expect_float_eq(row_ps(&c, &b, BT_STEP_DOWN) / (32e3 * bt_op_source_ns(s, &down, NULL)),
                           1, 0.002, "down of %d", tokens[i]);
    }
    bt_cost_fini(&c);
    bt_surface_library_destroy(l);
}

Test(law, decode_attention_is_affine_within_its_stated_residual)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct bt_arch arch = fixture_8b();
    arch.max_position = 131072;
    struct bt_gpu gpu = fixture_h200();
    struct bt_step_model model = {.arch = &arch};
    struct bt_surface_law_opts o = {
        .library = l, .gpu = &gpu, .stack = "vllm-0.24", .model = &model};
    struct bt_law law;
    cr_assert_eq(bt_surface_law_create(&o, &law, NULL), BT_OK);
    double residual = bt_surface_law_affine_error(&law);
    cr_expect_gt(residual, 0);
    cr_expect_lt(residual, 0.15);
    struct bt_source_query q = {.op = BT_OP_ATTN_DECODE,
                                .format = {BT_NUM_NONE, BT_NUM_BF16, BT_NUM_BF16},
                                .gpu = "h200",
                                .stack = bt_stack_name_of("vllm-0.24"),
                                .heads = 32,
                                .kv_heads = 8,
                                .head_dim = 128};
    const struct bt_op_source *s = NULL;
    cr_assert_eq(bt_surface_library_find(l, &q, &s, NULL), BT_OK);
    int32_t within = 0, n = 0;
    for (int32_t batch = 1; batch <= 256; batch *= 2) {
        for (int64_t ctx = 256; ctx <= 16384; ctx *= 2) {
            struct bt_law_attention ask = {.n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_dim = 128,
                                           .kv = BT_KV_FP16,
                                           .flash = true,
                                           .n_seqs = batch,
                                           .tokens = batch};
            double fixed, slope;
            law.ops->decode_ps(law.self, &ask, &fixed, &slope);
            struct bt_op_shape shape = {
                .batch = batch, .ctx = ctx, .heads = 32, .kv_heads = 8, .head_dim = 128};
            double truth = 1000 * bt_op_source_ns(s, &shape, NULL);
            double estimate = fixed + slope * (double)(batch * ctx);
            within += fabs(estimate / truth - 1) <= residual + 1e-9;
            n++;
        }
    }
    cr_expect_geq(within, n * 8 / 10, "%d of %d within %g", within, n, residual);
    law.ops->destroy(law.self);
    bt_surface_library_destroy(l);
}

Test(law, span_is_the_sum_of_steps)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked a = {"berth", fixture_l40s(), BT_WEIGHT_INT4_G128, 1};
    struct bt_cost c = cost_of(l, &a);
    struct bt_rng rng;
    bt_rng_init(&rng, 11, "spans", 0);
    for (int32_t i = 0; i < 200; i++) {
        int32_t n = 1 + (int32_t)(bt_rng_u64(&rng) % 300);
        int32_t steps = 1 + (int32_t)(bt_rng_u64(&rng) % 100);
        struct bt_batch b = fixture_decodes(n, 1 + (int64_t)(bt_rng_u64(&rng) % 5000));
        struct bt_cost_parts whole;
        c.ops->span(c.self, &b, steps, &whole);
        int64_t sum = 0;
        for (int32_t k = 0; k < steps; k++) {
            struct bt_cost_parts one;
            c.ops->step(c.self, &b, &one);
            sum += one.time_ps;
            b.decode_ctx += n;
            b.decode_ctx_long++;
        }
        cr_assert_eq(sum, whole.time_ps, "%d steps of %d", steps, n);
    }
    bt_cost_fini(&c);
    bt_surface_library_destroy(l);
}

/* What is left of the trust when surfaces are taken away, one after another. */
Test(law, trust_falls_with_every_surface_removed)
{
    struct asked a = {"vllm-0.24", fixture_h200(), BT_WEIGHT_FP8, 1};
    struct bt_embedded texts[TEXTS_MAX];
    static const struct {
        const char *without;
        enum bt_trust trust;
        const char *from; /* of the products */
    } cases[] = {
        {"no such text", BT_TRUST_IMPORTED, "vllm 0.24.0"},
        {"h200__vllm", BT_TRUST_TRANSFERRED, "vllm from l40s"},
        {"__gemm", BT_TRUST_ROOFLINE, "data sheet"},
        {"__", BT_TRUST_ROOFLINE, "data sheet"},
    };
    double before = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_surface_library *l = library_of(texts_without(texts, cases[i].without));
        struct bt_cost c = cost_of(l, &a);
        cr_expect_eq(c.trust, cases[i].trust, "without %s: %s", cases[i].without,
                     bt_trust_name(c.trust));
        cr_expect_gt(c.step_error, 0);
        cr_expect(c.step_error > before, "without %s: %g after %g", cases[i].without, c.step_error,
                  before);
        cr_expect(i > 1 || strstr(c.weakest, cases[i].from) != NULL ||
                      strstr(c.weakest, "attention") != NULL,
                  "without %s: %s", cases[i].without, c.weakest);
        before = i < 2 ? c.step_error : 0.2; /* what is left after products differs little */
        bt_cost_fini(&c);
        bt_surface_library_destroy(l);
    }
}

Test(law, another_stack_of_the_same_gpu_is_transferred)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked own = {"vllm-0.24", fixture_h200(), BT_WEIGHT_FP8, 1};
    struct asked other = {"sglang-0.5", fixture_h200(), BT_WEIGHT_FP8, 1};
    struct bt_cost a = cost_of(l, &own);
    struct bt_cost b = cost_of(l, &other);
    cr_expect_eq(a.trust, BT_TRUST_IMPORTED);
    cr_expect_eq(b.trust, BT_TRUST_TRANSFERRED);
    cr_expect(strstr(b.weakest, "for sglang") != NULL, "%s", b.weakest);
    cr_expect_gt(b.step_error, a.step_error);
    struct bt_batch batch = fixture_decodes(32, 1000);
    cr_expect_float_eq(step_ps(&a, &batch) / step_ps(&b, &batch), 1, 1e-3, "the same surfaces");
    bt_cost_fini(&a);
    bt_cost_fini(&b);
    bt_surface_library_destroy(l);
}

/* Tables of our own stack in which every format has its own time. */
static const struct bt_embedded own_tables[] = {
    {"h200__berth-0.1.0__attn-decode.cal",
     "# berth calibration 1\ngpu h200\nstack berth\nversion 0.1.0\nop attn-decode\nsource s\n"
     "licence Apache-2.0\n"
     "section - bf16 bf16\nfixed head_dim 128\ncolumns ctx 64 1024 4096\n"
     "rows batch heads kv_heads\n1 32 8 50000 60000 90000\n"
     "section - bf16 int8\nfixed head_dim 128\ncolumns ctx 64 1024 4096\n"
     "rows batch heads kv_heads\n1 32 8 30000 30000 30000\n",
     0},
    {"h200__berth-0.1.0__attn-prefill.cal",
     "# berth calibration 1\ngpu h200\nstack berth\nversion 0.1.0\nop attn-prefill\nsource s\n"
     "licence Apache-2.0\n"
     "section - bf16 int8\nfixed head_dim 128\ncolumns q_len 64 1024 4096\n"
     "rows batch heads kv_heads\n1 32 8 30000 30000 30000\n",
     0},
    {"h200__berth-0.1.0__norm.cal",
     "# berth calibration 1\ngpu h200\nstack berth\nversion 0.1.0\nop norm\nsource s\n"
     "licence Apache-2.0\n"
     "section - bf16 -\ncolumns m 1 64 4096\nrows n\n4096 10000 10000 10000\n"
     "section - int8 -\ncolumns m 1 64 4096\nrows n\n4096 20000 20000 20000\n",
     0},
    {"h200__berth-0.1.0__rope.cal",
     "# berth calibration 1\ngpu h200\nstack berth\nversion 0.1.0\nop rope\nsource s\n"
     "licence Apache-2.0\n"
     "section - bf16 bf16\ncolumns m 1 64 4096\nrows n\n5120 10000 10000 10000\n"
     "section - bf16 int8\ncolumns m 1 64 4096\nrows n\n5120 40000 40000 40000\n",
     0},
    {0},
};

/* A norm that rounds for INT8 products, RoPE that writes an INT8 cache, and attention over it are
 * other kernels than those of 16 bits. */
Test(law, our_own_kernels_are_asked_for_in_the_formats_they_were_timed_in)
{
    struct bt_embedded texts[TEXTS_MAX] = {{0}};
    for (int32_t i = 0; own_tables[i].name != NULL; i++) {
        texts[i] = own_tables[i];
        texts[i].size_bytes = strlen(texts[i].text);
    }
    struct bt_surface_library *l = library_of(texts);
    struct bt_arch arch = fixture_8b();
    arch.max_position = 131072;
    struct bt_gpu gpu = fixture_h200();
    const struct {
        enum bt_act_format activations;
        enum bt_kv_format kv;
        double norm_us, rope_us;
    } cases[] = {
        {BT_ACT_BF16, BT_KV_BF16, 10, 10},
        {BT_ACT_BF16, BT_KV_INT8, 10, 40},
        {BT_ACT_INT8_DYNAMIC, BT_KV_BF16, 20, 10},
        {BT_ACT_INT8_DYNAMIC, BT_KV_INT8, 20, 40},
    };
    struct bt_batch b = fixture_decodes(1, 1024);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_step_opts o = {.target = {.arch = &arch,
                                            .weights = BT_WEIGHT_INT8,
                                            .activations = cases[i].activations,
                                            .kv = cases[i].kv},
                                 .gpu = &gpu,
                                 .tp = 1,
                                 .fused = true,
                                 .separate = true};
        struct bt_cost c;
        struct bt_error err = {0};
        cr_assert_eq(bt_surface_cost_create(l, "berth", BT_SOURCE_WITHOUT_NOTHING, &o, &c, &err),
                     BT_OK, "%s", err.msg);
        cr_expect_float_eq(row_ps(&c, &b, BT_STEP_NORM), (2 * 32 + 1) * cases[i].norm_us * 1e6, 1e6,
                           "%zu: %g", i, row_ps(&c, &b, BT_STEP_NORM));
        cr_expect_float_eq(row_ps(&c, &b, BT_STEP_ROPE), 32 * cases[i].rope_us * 1e6, 1e6,
                           "%zu: %g", i, row_ps(&c, &b, BT_STEP_ROPE));
        double attends = row_ps(&c, &b, BT_STEP_ATTN_DECODE) / 32e6;
        cr_expect_float_eq(attends, cases[i].kv == BT_KV_INT8 ? 30 : 60, 0.5, "%zu: %g", i,
                           attends);
        const struct bt_op_origin *from = bt_surface_law_origins(bt_step_cost_law(&c));
        cr_expect_eq(from[BT_STEP_ATTN_DECODE].level, BT_TRUST_MEASURED);
        bt_cost_fini(&c);
    }
    bt_surface_library_destroy(l);
}

Test(law, without_any_surface_it_is_the_roofline)
{
    static const struct bt_embedded none[] = {{0}};
    struct bt_surface_library *l = library_of(none);
    struct asked a = {"berth", fixture_a100(), BT_WEIGHT_INT8, 2};
    struct bt_cost c = cost_of(l, &a);
    struct bt_arch arch = fixture_8b();
    arch.max_position = 131072;
    struct bt_step_opts o = {.target = {.arch = &arch, .weights = BT_WEIGHT_INT8},
                             .gpu = &a.gpu,
                             .tp = 2,
                             .fused = true};
    struct bt_cost roof;
    cr_assert_eq(bt_roofline_create(&o, &roof, NULL), BT_OK);
    for (int32_t n = 1; n <= 512; n *= 4) {
        struct bt_batch b = fixture_decodes(n, 900);
        cr_expect_float_eq(step_ps(&c, &b), step_ps(&roof, &b), 0.5);
    }
    struct bt_batch chunk = {.n_prefill = 1,
                             .n_prefill_tokens = 1024,
                             .prefill_pairs = 1024 * 1025 / 2 + 1024 * 512,
                             .prefill_ctx = 1536};
    cr_expect_float_eq(step_ps(&c, &chunk), step_ps(&roof, &chunk), 0.5);
    cr_expect_eq(c.trust, BT_TRUST_ROOFLINE);
    bt_cost_fini(&c);
    bt_cost_fini(&roof);
    bt_surface_library_destroy(l);
}

Test(law, a_chunk_behind_cached_tokens_costs_more_than_alone)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked a = {"vllm-0.24", fixture_h200(), BT_WEIGHT_BF16, 1};
    struct bt_cost c = cost_of(l, &a);
    double before = 0;
    for (int64_t cached = 0; cached <= 16384; cached += 1024) {
        struct bt_batch b = {.n_prefill = 1,
                             .n_prefill_tokens = 1024,
                             .prefill_pairs = 1024 * 1025 / 2 + 1024 * cached,
                             .prefill_ctx = 1024 + cached};
        double t = step_ps(&c, &b);
        cr_expect_geq(t, before * 0.999, "%lld cached", (long long)cached);
        before = t;
    }
    bt_cost_fini(&c);
    bt_surface_library_destroy(l);
}

Test(law, verification_takes_longer_than_plain_decode_and_less_than_as_many_steps)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked a = {"vllm-0.24", fixture_h200(), BT_WEIGHT_BF16, 1};
    struct bt_cost c = cost_of(l, &a);
    struct bt_batch plain = fixture_decodes(8, 2000);
    struct bt_batch verify = plain;
    verify.n_decode_tokens = 8 * 5;
    verify.n_logits = 8 * 5;
    cr_expect_gt(step_ps(&c, &verify), step_ps(&c, &plain));
    cr_expect_lt(step_ps(&c, &verify), 5 * step_ps(&c, &plain));
    bt_cost_fini(&c);
    bt_surface_library_destroy(l);
}

/* Two ranks halve the products and pay for the all-reduce, which is NCCL's or the stack's own. */
Test(law, tensor_parallel_steps_pay_for_their_all_reduce)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked one = {"vllm-0.24", fixture_h200(), BT_WEIGHT_BF16, 1};
    struct asked two = {"vllm-0.24", fixture_h200(), BT_WEIGHT_BF16, 2};
    struct bt_cost a = cost_of(l, &one);
    struct bt_cost b = cost_of(l, &two);
    struct bt_batch batch = fixture_decodes(16, 1000);
    double reduce = row_ps(&b, &batch, BT_STEP_ALL_REDUCE);
    cr_expect_gt(reduce, 64 * 4e6, "64 of at least 4 us");
    cr_expect_lt(reduce, 64 * 12e6);
    double ratio = step_ps(&b, &batch) / step_ps(&a, &batch);
    cr_expect_gt(ratio, 0.5);
    cr_expect_lt(ratio, 0.9);
    bt_cost_fini(&a);
    bt_cost_fini(&b);
    bt_surface_library_destroy(l);
}

/* Errors of one source add, those of different ones combine in quadrature. */
Test(step_trust, one_source_adds_and_many_combine)
{
    struct bt_arch arch = fixture_8b();
    struct bt_gpu gpu = fixture_h200();
    struct bt_step_opts o = {.target = {.arch = &arch}, .gpu = &gpu, .fused = true};
    struct bt_cost c;
    cr_assert_eq(bt_roofline_create(&o, &c, NULL), BT_OK);
    struct bt_op_origin origins[BT_STEP_OPS];
    static const int source = 0;
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        origins[op] = (struct bt_op_origin){
            .source = &source, .level = BT_TRUST_IMPORTED, .log_error = log(1.2), .text = "x"};
    }
    bt_step_trust_fill(&c, origins, NULL, 256, 0);
    cr_expect_float_eq(c.step_error, 0.2, 1e-9, "all of one source: %g", c.step_error);
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        origins[op].source = NULL;
    }
    bt_step_trust_fill(&c, origins, NULL, 256, 0);
    cr_expect_lt(c.step_error, 0.17, "each its own: %g", c.step_error);
    cr_expect_gt(c.step_error, 0.05);
    cr_expect_eq(c.trust, BT_TRUST_IMPORTED);

    /* A weak operation that takes a sliver of every step widens the bound, not the level. */
    origins[BT_STEP_EMBED].level = BT_TRUST_ROOFLINE;
    double before = c.step_error;
    origins[BT_STEP_EMBED].log_error = log(4);
    bt_step_trust_fill(&c, origins, NULL, 256, 0);
    cr_expect_eq(c.trust, BT_TRUST_IMPORTED);
    cr_expect_geq(c.step_error, before);
    origins[BT_STEP_GATE_UP].level = BT_TRUST_TRANSFERRED;
    bt_step_trust_fill(&c, origins, NULL, 256, 0);
    cr_expect_eq(c.trust, BT_TRUST_TRANSFERRED);
    cr_expect(strstr(c.weakest, "gate_up") != NULL, "%s", c.weakest);
    bt_cost_fini(&c);
}

Test(library, stack_names_come_apart)
{
    static const struct {
        const char *name, *stack, *version;
    } cases[] = {
        {NULL, "berth", ""},
        {"", "berth", ""},
        {"berth", "berth", ""},
        {"vllm-0.19", "vllm", "0.19"},
        {"vllm-0.8-v0", "vllm", "0.8-v0"},
        {"trtllm-1.2.0rc5", "trtllm", "1.2.0rc5"},
        {"tensorrt-llm-1.0", "trtllm", "1.0"},
        {"sglang-0.5", "sglang", "0.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_stack_name s = bt_stack_name_of(cases[i].name);
        cr_expect_str_eq(s.stack, cases[i].stack);
        cr_expect_str_eq(s.version, cases[i].version);
    }
}

Test(library, an_unknown_gpu_has_no_source)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct bt_source_query q = {.op = BT_OP_GEMM,
                                .format = {BT_NUM_BF16, BT_NUM_BF16, BT_NUM_NONE},
                                .gpu = "no-such-card",
                                .stack = bt_stack_name_of("berth")};
    const struct bt_op_source *s = NULL;
    cr_assert_eq(bt_surface_library_find(l, &q, &s, NULL), BT_OK);
    cr_expect_null(s);
    bt_surface_library_destroy(l);
}

Test(library, fp8_is_not_transferred_to_a_card_without_the_unit)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct bt_source_query q = {.op = BT_OP_GEMM,
                                .format = {BT_NUM_FP8, BT_NUM_FP8, BT_NUM_NONE},
                                .gpu = "a100-80-sxm",
                                .stack = bt_stack_name_of("vllm-0.19")};
    const struct bt_op_source *s = NULL;
    cr_assert_eq(bt_surface_library_find(l, &q, &s, NULL), BT_OK);
    cr_expect_null(s);
    bt_surface_library_destroy(l);
}

static const struct asked asked_at_once[] = {
    {"berth", {.name = ""}, BT_WEIGHT_BF16, 1},
    {"vllm-0.24", {.name = ""}, BT_WEIGHT_FP8, 1},
    {"trtllm-1.0", {.name = ""}, BT_WEIGHT_INT4_G128, 1},
    {"sglang-0.5", {.name = ""}, BT_WEIGHT_INT8, 1},
};
enum { ASKED = sizeof asked_at_once / sizeof *asked_at_once };

struct thread {
    struct bt_surface_library *library;
    int32_t first;
    double time_ps[ASKED], error[ASKED];
};

static void *ask_all(void *arg)
{
    struct thread *t = arg;
    struct bt_batch b = fixture_decodes(24, 777);
    for (int32_t i = 0; i < ASKED; i++) {
        int32_t k = (t->first + i) % ASKED;
        struct asked a = asked_at_once[k];
        a.gpu = fixture_l40s();
        struct bt_cost c = cost_of(t->library, &a);
        t->time_ps[k] = step_ps(&c, &b);
        t->error[k] = c.step_error;
        bt_cost_fini(&c);
    }
    return NULL;
}

/* Threads that ask in different orders get the same answers. */
Test(library, answers_do_not_depend_on_who_asks_first)
{
    enum { THREADS = 3 };
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct thread threads[THREADS];
    pthread_t ids[THREADS];
    for (int32_t i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){.library = l, .first = i};
        cr_assert_eq(pthread_create(&ids[i], NULL, ask_all, &threads[i]), 0);
    }
    for (int32_t i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_join(ids[i], NULL), 0);
    }
    for (int32_t i = 1; i < THREADS; i++) {
        for (int32_t k = 0; k < ASKED; k++) {
            cr_expect_eq(threads[i].time_ps[k], threads[0].time_ps[k]);
            cr_expect_eq(threads[i].error[k], threads[0].error[k]);
        }
    }
    bt_surface_library_destroy(l);
}

/* Larger decode batches and contexts never take less, by the law that has most switches. */
Test(law, more_decodes_never_take_much_less)
{
    struct bt_surface_library *l = library_of(bt_calibration_texts);
    struct asked a = {"berth", fixture_a100(), BT_WEIGHT_BF16, 1};
    struct bt_cost c = cost_of(l, &a);
    double before = 0;
    for (int32_t n = 1; n <= 256; n++) {
        struct bt_batch b = fixture_decodes(n, 1000);
        double t = step_ps(&c, &b);
        cr_expect_geq(t, before * 0.9999, "%d sequences", n);
        before = t;
    }
    bt_cost_fini(&c);
    bt_surface_library_destroy(l);
}
