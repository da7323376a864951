#include "sim/cost/roofline.h"
#include "sim/run.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct bt_config config_of(const char *model, const char *gpu)
{
    struct bt_config c;
    bt_config_init(&c);
    snprintf(c.model, sizeof c.model, "%s", model);
    snprintf(c.gpu, sizeof c.gpu, "%s", gpu);
    return c;
}

static struct bt_deploy deploy_of(const struct bt_config *c, const struct bt_arch *arch,
                                  const struct bt_arch *draft, const struct bt_gpu *gpu)
{
    struct bt_deploy d;
    struct bt_error err = {0};
    cr_assert_eq(bt_deploy_init(&d, c, arch, draft, gpu, NULL, &err), BT_OK, "%s", err.msg);
    return d;
}

static void expect_error(const struct bt_config *c, const struct bt_arch *arch,
                         const struct bt_arch *draft, const struct bt_gpu *gpu, enum bt_code code,
                         const char *text)
{
    struct bt_deploy d;
    struct bt_error err = {0};
    cr_expect_eq(bt_deploy_init(&d, c, arch, draft, gpu, NULL, &err), code, "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, text), "\"%s\" lacks \"%s\"", err.msg, text);
    cr_expect_null(d.cost.ops);
    cr_expect_eq(d.sched.n_blocks, 0);
}

Test(deploy, defaults_are_resolved_and_the_pool_is_the_memory_plans)
{
    struct bt_config c = config_of("llama-2-7b", "a100-80-sxm");
    struct bt_arch arch = fixture_7b();
    struct bt_gpu gpu = fixture_a100();
    struct bt_deploy d = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect_eq(d.weights, BT_WEIGHT_FP16);
    cr_expect_eq(d.activations, BT_ACT_FP16);
    cr_expect_eq(d.kv, BT_KV_FP16);
    cr_expect_eq(d.max_model_len, 4096);
    cr_expect_eq(d.sched.n_blocks, d.memory.kv_blocks_total);
    cr_expect(d.sched.n_blocks > 5000 && d.sched.n_blocks < 8500);
    cr_expect_eq(d.sched.block_tokens, 16);
    cr_expect_eq(d.sched.block_bytes, 16 * 524288);
    cr_expect_eq(d.sched.n_host_blocks, 0); /* recompute needs none */
    cr_expect_eq(d.sched.watermark_blocks, (int32_t)ceil(c.watermark * d.sched.n_blocks));
    cr_expect_eq(d.sched.spec.k, 0);
    cr_expect_eq(d.cost.trust, BT_TRUST_ROOFLINE);
    cr_expect_float_eq(d.cost.peak_flops_per_s, 312e12, 1);
    bt_deploy_fini(&d);
}

Test(deploy, what_preemption_costs_follows_from_the_cost_model)
{
    struct bt_config c = config_of("llama-2-13b", "h200");
    struct bt_arch arch = fixture_13b();
    struct bt_gpu gpu = fixture_h200();
    c.preempt = BT_PREEMPT_AUTO;
    struct bt_deploy d = deploy_of(&c, &arch, NULL, &gpu);
    const struct bt_preempt_cost *p = &d.sched.preempt_cost;
    /* At 800 TFLOP/s a token is recomputed in 32 us; 819,200 bytes at 50 GB/s take 16.4. */
    cr_expect_float_eq(p->recompute_ns_per_token, 32000, 5000);
    cr_expect(p->recompute_ns_per_token2 > 0 && p->recompute_ns_per_token2 < 2);
    cr_expect_float_eq(p->swap_out_ns_per_block / 16, 16400, 2000);
    cr_expect_float_eq(p->swap_in_ns_per_block / 16, 16400, 2000);
    cr_expect_eq(d.sched.n_host_blocks, (INT64_C(64) << 30) / d.memory.block_bytes);

    /* The law gives back the prefill it came from. */
    int64_t n = 2048;
    struct bt_batch b = {.n_prefill = 1,
                         .n_prefill_tokens = (int32_t)n,
                         .prefill_pairs = n * (n + 1) / 2,
                         .prefill_ctx = n};
    struct bt_cost_parts parts;
    d.cost.ops->step(d.cost.self, &b, &parts);
    double law_ns =
        p->recompute_ns_per_token * (double)n + p->recompute_ns_per_token2 * (double)(n * n);
    cr_expect_float_eq(law_ns / ((double)parts.time_ps * 1e-3), 1, 1e-9);

    /* A slower link, and a cost model put in its place. */
    struct bt_config slow = c;
    slow.pcie_bytes_per_s = 10000000000;
    struct bt_deploy e = deploy_of(&slow, &arch, NULL, &gpu);
    cr_expect(e.sched.preempt_cost.swap_in_ns_per_block > 4 * p->swap_in_ns_per_block);
    struct bt_cost taken = e.cost;
    e.cost = (struct bt_cost){0};
    double fast_ns = p->swap_in_ns_per_block;
    bt_deploy_set_cost(&d, taken);
    cr_expect(d.sched.preempt_cost.swap_in_ns_per_block > 4 * fast_ns);
    bt_deploy_fini(&d);
    bt_deploy_fini(&e);
}

Test(deploy, a_model_too_large_is_an_answer_with_its_arithmetic)
{
    struct bt_config c = config_of("llama-2-13b", "small");
    struct bt_arch arch = fixture_13b();
    struct bt_gpu gpu = fixture_l40s();
    c.gpu_memory_bytes = INT64_C(24) << 30;
    expect_error(&c, &arch, NULL, &gpu, BT_ERR_UNFIT, "does not fit: 26.0 GB of weights");
}

Test(deploy, speculation_needs_an_acceptance_and_one_vocabulary)
{
    struct bt_config c = config_of("llama-2-13b", "h200");
    struct bt_arch arch = fixture_13b(), draft = fixture_tinyllama();
    struct bt_gpu gpu = fixture_h200();
    c.spec = (struct bt_spec_config){.kind = BT_SPEC_DRAFT, .k = 4};
    expect_error(&c, &arch, &draft, &gpu, BT_ERR_ARG, "spec.acceptance: not given");
    c.spec.n_acceptance = 1;
    c.spec.acceptance[0] = 0.72;
    struct bt_arch other = draft;
    memcpy(other.vocab_family, "qwen2", sizeof "qwen2");
    expect_error(&c, &arch, &other, &gpu, BT_ERR_ARG, "has the qwen2 vocabulary");
    other.vocab_family[0] = '\0';
    other.vocab = 32768;
    expect_error(&c, &arch, &other, &gpu, BT_ERR_ARG, "32768 vocabulary entries");
    c.spec.acceptance[0] = 1.2;
    expect_error(&c, &arch, &draft, &gpu, BT_ERR_ARG, "1.2 at position 1 is not in [0, 1]");
    c.spec.acceptance[0] = 0.72;

    struct bt_deploy d = deploy_of(&c, &arch, &draft, &gpu);
    cr_expect_eq(d.sched.spec.k, 4);
    cr_expect(d.sched.spec.has_draft_kv);
    /* 0.085 by bytes; the fixed times of kernels weigh more in a small model. */
    cr_expect(d.sched.spec.draft_cost_ratio > 0.085 && d.sched.spec.draft_cost_ratio < 0.2, "%.3f",
              d.sched.spec.draft_cost_ratio);
    cr_expect(d.memory.draft_bytes > 2000000000);
    bt_deploy_fini(&d);

    c.spec = (struct bt_spec_config){
        .kind = BT_SPEC_SELF, .k = 3, .self_layers = 40, .n_acceptance = 1, .acceptance = {0.5}};
    expect_error(&c, &arch, NULL, &gpu, BT_ERR_ARG, "spec.self: 40 layers");
    c.spec.self_layers = 10;
    d = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect_not(d.sched.spec.has_draft_kv);
    cr_expect_float_eq(d.sched.spec.draft_cost_ratio, 0.27, 0.03);
    bt_deploy_fini(&d);

    c.spec = (struct bt_spec_config){
        .kind = BT_SPEC_MEDUSA, .medusa_heads = 3, .n_acceptance = 1, .acceptance = {0.5}};
    d = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect_eq(d.sched.spec.k, 3);
    bt_deploy_fini(&d);
}

Test(deploy, auto_max_seqs_stays_below_the_token_budget)
{
    struct bt_config c = config_of("llama-2-7b", "a100-80-sxm");
    struct bt_arch arch = fixture_7b();
    struct bt_gpu gpu = fixture_a100();
    c.max_seqs = BT_AUTO;
    struct bt_deploy d = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect(d.sched.max_seqs_auto);
    cr_expect_eq(d.sched.max_seqs, 1024);
    bt_deploy_fini(&d);
    c.max_batched_tokens = 300;
    d = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect_eq(d.sched.max_seqs, 300);
    bt_deploy_fini(&d);
}

Test(deploy, contiguous_layout_is_a_block_a_sequence)
{
    struct bt_config c = config_of("llama-2-7b", "a100-80-sxm");
    struct bt_arch arch = fixture_7b();
    struct bt_gpu gpu = fixture_a100();
    c.kv_layout = BT_KV_CONTIGUOUS;
    struct bt_deploy d = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect(d.sched.block_tokens >= 4096);
    cr_expect(d.sched.n_blocks > 20 && d.sched.n_blocks < 40, "%d sequences fit", d.sched.n_blocks);
    cr_expect_not(d.sched.prefix_cache);
    cr_expect_eq(d.sched.watermark_blocks, 0);
    bt_deploy_fini(&d);
}

Test(deploy, long_sequences_get_a_16_bit_class_of_an_int8_pool)
{
    struct bt_config c = config_of("llama-2-13b", "h200");
    struct bt_arch arch = fixture_13b();
    struct bt_gpu gpu = fixture_h200();
    c.kv_dtype = BT_KV_INT8;
    c.kv_long_above_tokens = 1500;
    struct bt_deploy d = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect_eq(d.sched.long_above_tokens, 1500);
    cr_expect(d.sched.block_tokens_16bit > 0 &&
              d.sched.block_tokens_16bit <= d.sched.block_tokens / 2 + 1);
    bt_deploy_fini(&d);
}

Test(deploy, tensor_parallel_ranks_share_blocks_and_hosts)
{
    struct bt_config c = config_of("llama-2-13b", "h200");
    struct bt_arch arch = fixture_13b();
    struct bt_gpu gpu = fixture_h200();
    c.preempt = BT_PREEMPT_SWAP;
    struct bt_deploy one = deploy_of(&c, &arch, NULL, &gpu);
    c.tp = 2;
    struct bt_deploy two = deploy_of(&c, &arch, NULL, &gpu);
    cr_expect_eq(two.memory.block_bytes * 2, one.memory.block_bytes);
    cr_expect_eq(two.sched.block_bytes, one.sched.block_bytes);
    cr_expect_eq(two.sched.n_host_blocks, one.sched.n_host_blocks);
    cr_expect(two.sched.n_blocks > 2 * one.sched.n_blocks);
    cr_expect(two.sched.preempt_cost.recompute_ns_per_token <
              0.7 * one.sched.preempt_cost.recompute_ns_per_token);
    c.tp = 7;
    bt_deploy_fini(&one);
    bt_deploy_fini(&two);
    expect_error(&c, &arch, NULL, &gpu, BT_ERR_ARG, "tp: 7 does not divide the 40");
    c.tp = 1;
    c.host_memory_bytes = 1000;
    expect_error(&c, &arch, NULL, &gpu, BT_ERR_ARG, "host-memory: 1000 bytes hold no KV block");
}
