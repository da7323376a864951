/* Models, GPUs and batches of the simulator's tests: published shapes and data-sheet figures. */
#ifndef BT_TESTS_SIM_FIXTURES_H
#define BT_TESTS_SIM_FIXTURES_H

#include "engine/core/arch.h"
#include "engine/core/gpu.h"
#include "sim/cost/cost.h"

#include <string.h>

static inline struct bt_arch fixture_arch(const char *name, int32_t hidden, int32_t n_layers,
                                          int32_t n_heads, int32_t n_kv_heads, int32_t head_dim,
                                          int32_t intermediate, int32_t vocab)
{
    struct bt_arch a = {
        .vocab_family = "llama-2",
        .hidden = hidden,
        .n_layers = n_layers,
        .n_heads = n_heads,
        .n_kv_heads = n_kv_heads,
        .head_dim = head_dim,
        .intermediate = intermediate,
        .vocab = vocab,
        .max_position = 4096,
        .mlp_gated = true,
        .rope = {.theta = 10000, .factor = 1},
        .rms_eps = 1e-5,
        .checkpoint = BT_WEIGHT_FP16,
        .compute = BT_ACT_FP16,
    };
    strncpy(a.name, name, sizeof a.name - 1);
    return a;
}

static inline struct bt_arch fixture_7b(void)
{
    return fixture_arch("llama-2-7b", 4096, 32, 32, 32, 128, 11008, 32000);
}

static inline struct bt_arch fixture_13b(void)
{
    return fixture_arch("llama-2-13b", 5120, 40, 40, 40, 128, 13824, 32000);
}

static inline struct bt_arch fixture_8b(void)
{
    return fixture_arch("llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256);
}

static inline struct bt_arch fixture_tinyllama(void)
{
    return fixture_arch("tinyllama-1.1b", 2048, 22, 32, 4, 64, 5632, 32000);
}

static inline struct bt_gpu fixture_h200(void)
{
    return (struct bt_gpu){
        .name = "h200",
        .family = BT_GPU_HOPPER,
        .cc = 90,
        .memory_bytes = 150109880320,
        .usable_bytes = 149557477376,
        .mem_bytes_per_s = 4800e9,
        .fp32_flops_per_s = 67e12,
        .fp16_flops_per_s = 989e12,
        .int8_ops_per_s = 1978e12,
        .fp8_flops_per_s = 1978e12,
        .pcie_gen = 5,
        .pcie_bytes_per_s = 63e9,
        .nvlink_bytes_per_s = 900e9,
        .pcie = {.n_points = 4,
                 .points = {{16384, 5.6e9, 7.9e9},
                            {327680, 38.3e9, 41.7e9},
                            {1048576, 48.7e9, 50e9},
                            {1073741824, 55.4e9, 55.3e9}},
                 .duplex_bytes_per_s = 101e9,
                 .trust = BT_TRUST_MEASURED},
    };
}

static inline struct bt_gpu fixture_a100(void)
{
    return (struct bt_gpu){
        .name = "a100-80-sxm",
        .family = BT_GPU_AMPERE,
        .cc = 80,
        .memory_bytes = 85899345920,
        .usable_bytes = 85040000000,
        .mem_bytes_per_s = 2039e9,
        .fp32_flops_per_s = 19.5e12,
        .fp16_flops_per_s = 312e12,
        .int8_ops_per_s = 624e12,
        .pcie_gen = 4,
        .pcie_bytes_per_s = 31.5e9,
        .nvlink_bytes_per_s = 600e9,
    };
}

static inline struct bt_gpu fixture_l40s(void)
{
    return (struct bt_gpu){
        .name = "l40s",
        .family = BT_GPU_ADA,
        .cc = 89,
        .memory_bytes = 51539607552,
        .usable_bytes = 47700000000,
        .mem_bytes_per_s = 864e9,
        .fp32_flops_per_s = 91.6e12,
        .fp16_flops_per_s = 362e12,
        .int8_ops_per_s = 733e12,
        .fp8_flops_per_s = 733e12,
        .pcie_gen = 4,
        .pcie_bytes_per_s = 31.5e9,
    };
}

/* n sequences that decode a token each, with a context of ctx tokens, the new one included. */
static inline struct bt_batch fixture_decodes(int32_t n, int64_t ctx)
{
    return (struct bt_batch){.n_decode = n,
                             .n_decode_tokens = n,
                             .decode_ctx = n * ctx,
                             .decode_ctx_long = ctx,
                             .n_logits = n};
}

/* n prompts of so many tokens, each whole. */
static inline struct bt_batch fixture_prompts(int32_t n, int64_t tokens)
{
    return (struct bt_batch){.n_prefill = n,
                             .n_prefill_tokens = (int32_t)(n * tokens),
                             .prefill_pairs = n * (tokens * (tokens + 1) / 2),
                             .prefill_ctx = n * tokens,
                             .n_logits = n};
}

#endif
