/* Another stack's steps from its imported profile, and what a fit to a run of it changes. */
#include "db/calibrations/calibrations.h"
#include "sim/cost/step.h"
#include "sim/run.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <stdio.h>

static struct bt_gpu rtxpro6000(void)
{
    return (struct bt_gpu){
        .name = "rtxpro6000",
        .family = BT_GPU_BLACKWELL,
        .cc = 120,
        .memory_bytes = 103079215104,
        .usable_bytes = 102649742950,
        .mem_bytes_per_s = 1792e9,
        .fp32_flops_per_s = 120e12,
        .fp16_flops_per_s = 467.8e12,
        .int8_ops_per_s = 935.6e12,
        .fp8_flops_per_s = 935.6e12,
        .pcie_gen = 5,
        .pcie_bytes_per_s = 63e9,
    };
}

static struct bt_surface_library *library(void)
{
    struct bt_gpu gpus[] = {rtxpro6000(), fixture_h200()};
    struct bt_surface_library_opts o = {
        .texts = bt_calibration_texts, .skews = bt_skew_texts, .gpus = gpus, .n_gpus = 2};
    struct bt_surface_library *l = NULL;
    cr_assert_eq(bt_surface_library_create(&o, &l, NULL), BT_OK);
    return l;
}

static struct bt_deploy deploy(struct bt_surface_library *l)
{
    struct bt_config c;
    bt_config_init(&c);
    (void)snprintf(c.model, sizeof c.model, "llama-3.1-8b");
    (void)snprintf(c.gpu, sizeof c.gpu, "rtxpro6000");
    struct bt_error err = {0};
    (void)snprintf(c.stack, sizeof c.stack, "vllm-0.19");
    struct bt_arch arch = fixture_8b();
    arch.max_position = 131072;
    struct bt_gpu gpu = rtxpro6000();
    struct bt_deploy d;
    cr_assert_eq(bt_deploy_init(&d, &c, &arch, NULL, &gpu, l, &err), BT_OK, "%s", err.msg);
    return d;
}

static int64_t step_ps(const struct bt_deploy *d, const struct bt_batch *b)
{
    struct bt_cost_parts p;
    d->cost.ops->step(d->cost.self, b, &p);
    return p.time_ps;
}

static struct bt_batch batch(int32_t decodes, int64_t ctx, int32_t chunk)
{
    struct bt_batch b = fixture_decodes(decodes, ctx);
    if (chunk > 0) {
        b.n_prefill = 1;
        b.n_prefill_tokens = chunk;
        b.prefill_pairs = (int64_t)chunk * (chunk + 1) / 2;
        b.prefill_ctx = chunk;
        b.n_logits++;
    }
    return b;
}

/* The profile's own figures, us: 32 layers of (norm, qkv, rope, attention, o, norm, gate_up, act,
 * down) and the ends, as vLLM 0.19 ran them on this card. */
Test(stack_cost, a_decode_step_is_what_the_profile_adds_up_to)
{
    struct bt_surface_library *l = library();
    struct bt_deploy d = deploy(l);
    cr_expect_eq(d.cost.trust, BT_TRUST_IMPORTED, "%s", d.cost.weakest);
    /* 16 GB of weights at 1,792 GB/s are 8.9 ms; a step of 128 with a thousand tokens each was
     * served in about 30 ms (tests/data/measured/vllm019). */
    struct bt_batch one = batch(1, 100, 0), full = batch(128, 1000, 0);
    cr_expect(step_ps(&d, &one) > 9.0e9 && step_ps(&d, &one) < 11.5e9, "%lld",
              (long long)step_ps(&d, &one));
    cr_expect(step_ps(&d, &full) > 18e9 && step_ps(&d, &full) < 32e9, "%lld",
              (long long)step_ps(&d, &full));
    bt_deploy_fini(&d);
    bt_surface_library_destroy(l);
}

/* Whole steps of our own engine on an H200, ms (docs/KERNELS.md): decodes at context 1024, and
 * prompts of 2048 tokens one after another. */
Test(stack_cost, our_own_steps_add_up_to_what_the_engine_took)
{
    static const int32_t batches[] = {1, 8, 32, 128};
    struct bt_arch archs[] = {fixture_13b(), fixture_8b()};
    static const double measured[][5] = {{7.67, 9.25, 13.9, 32.6, 91.5},
                                         {4.67, 5.05, 6.06, 9.35, 48.1}};
    struct bt_surface_library *l = library();
    struct bt_gpu gpu = fixture_h200();
    for (int32_t i = 0; i < 2; i++) {
        struct bt_config c;
        bt_config_init(&c);
        (void)snprintf(c.model, sizeof c.model, "%s", archs[i].name);
        (void)snprintf(c.gpu, sizeof c.gpu, "h200");
        struct bt_error err = {0};
        struct bt_deploy d;
        cr_assert_eq(bt_deploy_init(&d, &c, &archs[i], NULL, &gpu, l, &err), BT_OK, "%s", err.msg);
        cr_expect_eq(d.cost.trust, BT_TRUST_MEASURED, "%s", d.cost.weakest);
        for (int32_t k = 0; k < 5; k++) {
            struct bt_batch b = k < 4 ? batch(batches[k], 1024, 0) : batch(0, 0, 2048);
            double ms = (double)step_ps(&d, &b) * 1e-9;
            cr_expect_float_eq(ms / measured[i][k], 1, 0.12, "%s, step %d: %.3f ms, measured %.3f",
                               archs[i].name, k, ms, measured[i][k]);
        }
        bt_deploy_fini(&d);
    }
    bt_surface_library_destroy(l);
}

Test(stack_cost, a_chunk_beside_decodes_adds_what_it_asks_for)
{
    struct bt_surface_library *l = library();
    struct bt_deploy d = deploy(l);
    struct bt_batch decodes = batch(64, 1000, 0);
    int64_t before = step_ps(&d, &decodes);
    for (int32_t chunk = 16; chunk <= 1024; chunk *= 4) {
        struct bt_batch mixed = batch(64, 1000, chunk), alone = batch(0, 0, chunk);
        int64_t ps = step_ps(&d, &mixed);
        cr_expect_gt(ps, before, "%d tokens", chunk);
        cr_expect_lt(ps, step_ps(&d, &decodes) + step_ps(&d, &alone), "%d tokens", chunk);
        before = ps;
    }
    bt_deploy_fini(&d);
    bt_surface_library_destroy(l);
}

Test(stack_cost, uneven_batches_take_longer_where_the_profile_says_so)
{
    struct bt_surface_library *l = library();
    const struct bt_skew *skew = NULL;
    cr_assert_eq(bt_surface_library_skew(l, "rtxpro6000", "vllm", &skew, NULL), BT_OK);
    cr_assert_not_null(skew);
    const struct bt_skew *again = NULL;
    cr_assert_eq(bt_surface_library_skew(l, "rtxpro6000", "vllm", &again, NULL), BT_OK);
    cr_expect_eq(again, skew, "read once");
    cr_assert_eq(bt_surface_library_skew(l, "h200", "vllm", &again, NULL), BT_OK);
    cr_expect_null(again);
    cr_assert_eq(bt_surface_library_skew(l, "rtxpro6000", "trtllm", &again, NULL), BT_OK);
    cr_expect_null(again);
    struct bt_deploy d = deploy(l);
    struct bt_batch even = batch(64, 1000, 0), uneven = even;
    uneven.decode_ctx_long = 8000;
    double alpha = bt_skew_alpha(skew, 0, 64, BT_SKEW_USUAL_SHARE);
    cr_assert_gt(alpha, 0);
    cr_expect_gt(step_ps(&d, &uneven), step_ps(&d, &even));
    bt_deploy_fini(&d);
    bt_surface_library_destroy(l);
}

Test(stack_cost, chunks_without_decodes_are_the_surface_itself)
{
    struct bt_surface_library *l = library();
    struct bt_source_query q = {
        .op = BT_OP_ATTN_PREFILL,
        .format = {.activations = BT_NUM_BF16, .kv = BT_NUM_BF16},
        .gpu = "rtxpro6000",
        .stack = bt_stack_name_of("vllm-0.19"),
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
    };
    const struct bt_op_source *s = NULL;
    cr_assert_eq(bt_surface_library_find(l, &q, &s, NULL), BT_OK);
    cr_assert_not_null(s);
    cr_assert_not_null(s->surface);
    cr_assert_eq(s->surface->op, BT_OP_ATTN_MIXED);
    struct bt_op_shape shape = {.q_len = 512, .heads = 32, .kv_heads = 8, .head_dim = 128};
    double own = bt_surface_eval(s->surface, &shape).time_ns;
    cr_expect_float_eq(bt_op_source_chunks_ns(s, &shape, 1), own, 1e-6 * own);
    /* Twice the heads, twice the work beyond the fixed time; two chunks likewise. */
    double two = bt_op_source_chunks_ns(s, &shape, 2);
    shape.heads = 64;
    shape.kv_heads = 16;
    cr_expect_float_eq(bt_op_source_chunks_ns(s, &shape, 1), two, 0.02 * two);
    cr_expect_lt(two, 2 * own);
    /* Beside decodes, which it slows: what the surface has more than for the decodes alone. */
    shape = (struct bt_op_shape){
        .q_len = 512, .batch = 64, .ctx = 1000, .heads = 32, .kv_heads = 8, .head_dim = 128};
    double added = bt_op_source_chunks_ns(s, &shape, 1);
    double both = bt_surface_eval(s->surface, &shape).time_ns;
    shape.q_len = 0;
    cr_expect_float_eq(added, both - bt_surface_eval(s->surface, &shape).time_ns, 1e-6 * both);
    cr_expect_gt(added, 0);
    bt_surface_library_destroy(l);
}

static struct bt_fit a_fit(const char *stack, const char *gpu)
{
    struct bt_fit f = {.step_overhead_s = 0.002, .efficiency = 0.8, .step_error = 0.03};
    (void)snprintf(f.stack, sizeof f.stack, "%s", stack);
    (void)snprintf(f.gpu, sizeof f.gpu, "%s", gpu);
    return f;
}

Test(stack_cost, a_fit_scales_operations_and_adds_to_steps)
{
    struct bt_surface_library *l = library();
    struct bt_deploy d = deploy(l);
    struct bt_batch b = batch(64, 1000, 0);
    int64_t before = step_ps(&d, &b);
    struct bt_fit f = a_fit("vllm-0.19", "rtxpro6000");
    cr_assert_eq(bt_deploy_fit(&d, l, &f, NULL), BT_OK);
    cr_expect_float_eq((double)step_ps(&d, &b), (double)before / 0.8 + 2e9, 1e-5 * (double)before);
    cr_expect_eq(d.cost.trust, BT_TRUST_FITTED);
    cr_expect_eq(d.cost.step_error, 0.03);
    bt_deploy_fini(&d);
    bt_surface_library_destroy(l);
}

Test(stack_cost, a_fit_of_another_stack_or_card_changes_nothing)
{
    struct bt_surface_library *l = library();
    struct bt_deploy d = deploy(l);
    struct bt_batch b = batch(64, 1000, 0);
    int64_t before = step_ps(&d, &b);
    struct bt_fit other[] = {a_fit("vllm-0.18", "rtxpro6000"), a_fit("vllm-0.19", "h200")};
    for (int32_t i = 0; i < 2; i++) {
        cr_assert_eq(bt_deploy_fit(&d, l, &other[i], NULL), BT_OK);
        cr_expect_eq(step_ps(&d, &b), before);
        cr_expect_eq(d.cost.trust, BT_TRUST_IMPORTED);
    }
    bt_deploy_fini(&d);
    bt_surface_library_destroy(l);
}
