#include "sim/hardware/memory.h"
#include "sim/hardware/stack.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

static const struct bt_gpu h100 = {.name = "h100-sxm",
                                   .family = BT_GPU_HOPPER,
                                   .cc = 90,
                                   .memory_bytes = INT64_C(80) << 30,
                                   .usable_bytes = INT64_C(85021163520)};
static const struct bt_gpu a100 = {.name = "a100-80-sxm",
                                   .family = BT_GPU_AMPERE,
                                   .cc = 80,
                                   .memory_bytes = INT64_C(80) << 30,
                                   .usable_bytes = INT64_C(85040000000)};
static const struct bt_gpu rtx4090 = {.name = "rtx4090",
                                      .family = BT_GPU_ADA,
                                      .cc = 89,
                                      .memory_bytes = INT64_C(24) << 30,
                                      .usable_bytes = INT64_C(25250627584)};

static const struct bt_arch llama31_8b = {
    .name = "llama-3.1-8b",
    .hidden = 4096,
    .n_layers = 32,
    .n_heads = 32,
    .n_kv_heads = 8,
    .head_dim = 128,
    .intermediate = 14336,
    .vocab = 128256,
    .max_position = 131072,
    .mlp_gated = true,
    .rope = {.theta = 500000, .factor = 1},
    .rms_eps = 1e-5,
    .checkpoint = BT_WEIGHT_BF16,
    .compute = BT_ACT_BF16,
};

static struct bt_config config_of(const char *stack)
{
    struct bt_config c;
    struct bt_error err = {0};
    bt_config_init(&c);
    cr_assert_eq(bt_config_set(&c, bt_config_find("stack"), stack, NULL, &err), BT_OK);
    return c;
}

static struct bt_memory_plan account(const struct bt_memory_opts *o)
{
    struct bt_memory_plan p;
    struct bt_error err = {0};
    cr_assert_eq(bt_memory_account(o, &p, &err), BT_OK, "%s", err.msg);
    return p;
}

Test(stack, versions_fall_into_families)
{
    static const struct {
        const char *name;
        const char *family;
    } cases[] = {
        {"berth", "berth"},
        {"", "berth"},
        {"vllm-0.2.4", "vLLM 0.1 to 0.2.4"},
        {"vllm-0.2.5", "vLLM 0.2.5 and 0.2.6"},
        {"vllm-0.2.7", "vLLM 0.2.7 to 0.5.3"},
        {"vllm-0.5.3", "vLLM 0.2.7 to 0.5.3"},
        {"vllm-0.5.4", "vLLM 0.5.4 to 0.6.2"},
        {"vllm-0.6.2", "vLLM 0.5.4 to 0.6.2"},
        {"vllm-0.6.3", "vLLM 0.6.3 to 0.6.6 (V0)"},
        {"vllm-0.7", "vLLM 0.7 to 0.10 (V0)"},
        {"vllm-0.8", "vLLM 0.8 to 0.13"},
        {"vllm-0.8-v0", "vLLM 0.7 to 0.10 (V0)"},
        {"vllm-0.8.5-v1", "vLLM 0.8 to 0.13"},
        {"vllm-0.14.0", "vLLM 0.14 to 0.16"},
        {"vllm-0.16", "vLLM 0.14 to 0.16"},
        {"vllm-0.17", "vLLM 0.17 to 0.20"},
        {"vllm-0.19", "vLLM 0.17 to 0.20"},
        {"vllm-0.20.2", "vLLM 0.17 to 0.20"},
        {"vllm-0.29", "vLLM 0.21 to 0.30"},
        {"trtllm-0.9", "TensorRT-LLM before 1.0 (engines)"},
        {"trtllm-1.0", "TensorRT-LLM 1.0 to 1.4"},
        {"sglang-0.3", "SGLang 0.3"},
        {"sglang-0.4.6", "SGLang 0.4"},
        {"sglang-0.5.3", "SGLang 0.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_stack s;
        struct bt_error err = {0};
        cr_expect_eq(bt_stack_find(cases[i].name, &s, &err), BT_OK, "%s: %s", cases[i].name,
                     err.msg);
        cr_expect_str_eq(s.family->name, cases[i].family, "%s", cases[i].name);
    }
}

Test(stack, what_is_not_a_stack_is_named)
{
    static const char *const bad[] = {"vllm",         "vllm-",       "vllm-zero",
                                      "vllm-0.19-v0", "vllm-0.6-v1", "sglang-0.5-v0",
                                      "tgi-2.0",      "vllm-0.19x",  "vllm-9.99"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct bt_stack s;
        struct bt_error err = {0};
        cr_expect_eq(bt_stack_find(bad[i], &s, &err), BT_ERR_ARG, "%s", bad[i]);
        cr_expect(strstr(err.msg, bad[i]) != NULL, "%s", err.msg);
    }
}

Test(stack, every_listed_name_is_found)
{
    for (const char *const *name = bt_stack_names(); *name != NULL; name++) {
        struct bt_stack s;
        cr_expect_eq(bt_stack_find(*name, &s, NULL), BT_OK, "%s", *name);
    }
}

Test(stack, defaults_go_by_the_card)
{
    struct bt_config large = config_of("vllm-0.19");
    struct bt_config small = large;
    struct bt_config ampere = large;
    cr_assert_eq(bt_stack_apply(&large, &h100, 131072, NULL), BT_OK);
    cr_assert_eq(bt_stack_apply(&small, &rtx4090, 131072, NULL), BT_OK);
    cr_assert_eq(bt_stack_apply(&ampere, &a100, 131072, NULL), BT_OK);
    cr_expect_eq(large.max_batched_tokens, 8192);
    cr_expect_eq(large.max_seqs, 1024);
    cr_expect_eq(small.max_batched_tokens, 2048);
    cr_expect_eq(small.max_seqs, 256);
    cr_expect_eq(ampere.max_seqs, 256, "the A100 keeps the small budget");
    cr_expect_eq(large.inflight, 2, "asynchronous scheduling is on since 0.14");
    cr_expect_float_eq(large.watermark, 0, 1e-12);
}

Test(stack, what_is_given_stays)
{
    struct bt_config c = config_of("vllm-0.19");
    cr_assert_eq(bt_config_set(&c, bt_config_find("batching.max_seqs"), "128", NULL, NULL), BT_OK);
    cr_assert_eq(bt_config_set(&c, bt_config_find("mem_fraction"), "0.9", NULL, NULL), BT_OK);
    cr_assert_eq(bt_config_set(&c, bt_config_find("watermark"), "0.01", NULL, NULL), BT_OK);
    cr_assert_eq(bt_stack_apply(&c, &h100, 131072, NULL), BT_OK);
    struct bt_config once = c;
    cr_assert_eq(bt_stack_apply(&c, &h100, 131072, NULL), BT_OK);
    cr_expect_eq(c.max_seqs, 128);
    cr_expect_eq(c.max_batched_tokens, 8192);
    cr_expect_float_eq(c.watermark, 0.01, 1e-12, "given, although it is berth's default");
    cr_expect_eq(memcmp(&c, &once, sizeof c), 0, "twice is once");
    cr_expect_not(bt_config_is_default(&c, bt_config_find("watermark")));
}

Test(stack, berth_is_left_alone)
{
    struct bt_config c = config_of("berth");
    struct bt_config before = c;
    cr_assert_eq(bt_stack_apply(&c, &h100, 131072, NULL), BT_OK);
    cr_expect_eq(memcmp(&c, &before, sizeof c), 0);
}

Test(stack, more_sequences_than_tokens_is_an_error)
{
    struct bt_config c = config_of("vllm-0.19");
    struct bt_error err = {0};
    cr_assert_eq(bt_config_set(&c, bt_config_find("batching.max_seqs"), "4096", NULL, NULL), BT_OK);
    cr_expect_eq(bt_stack_apply(&c, &rtx4090, 131072, &err), BT_ERR_ARG);
    cr_expect(strstr(err.msg, "4096") != NULL);
    cr_expect(strstr(err.msg, "2048") != NULL);
}

/* V0 profiles the model's whole length, unless that passes 32k and turns chunks on: KV memory is
 * not monotonic in the length. */
Test(stack, v0_profiles_the_whole_length_up_to_32k)
{
    struct bt_memory_opts o = {.arch = &llama31_8b, .gpu = &rtx4090, .stack = "vllm-0.6.4"};
    o.max_model_len = 20000;
    int64_t at_20k = account(&o).kv_tokens_total;
    o.max_model_len = 29000;
    int64_t at_29k = account(&o).kv_tokens_total;
    o.max_model_len = 35000;
    int64_t at_35k = account(&o).kv_tokens_total;
    cr_expect_gt(at_20k, at_29k);
    cr_expect_gt(at_35k, at_29k);
}

Test(stack, v0_swap_space_is_per_rank)
{
    struct bt_config c = config_of("vllm-0.6.4");
    c.tp = 2;
    cr_assert_eq(bt_stack_apply(&c, &h100, 131072, NULL), BT_OK);
    cr_expect_eq(c.host_memory_bytes, INT64_C(8) << 30);
    struct bt_memory_opts o = bt_memory_opts_of(&c, &llama31_8b, NULL, &h100);
    cr_expect_eq(account(&o).host_blocks_total, 4096, "1 MiB a block and rank");
}

Test(stack, graphs_are_inside_the_utilisation_since_0_21)
{
    struct bt_memory_opts o = {
        .arch = &llama31_8b, .gpu = &rtx4090, .stack = "vllm-0.20", .mem_fraction = 0.90};
    int64_t before = account(&o).kv_pool_bytes;
    o.stack = "vllm-0.21";
    int64_t after = account(&o).kv_pool_bytes;
    double gib = (double)(before - after) / 1073741824.0;
    cr_expect(gib > 0.4 && gib < 0.75, "%g GiB for 86 graphs", gib);
    o.max_seqs = 8;
    int64_t few = account(&o).kv_pool_bytes;
    cr_expect_gt(few, after);
}

Test(stack, graphs_are_counted_as_vllm_captures_them)
{
    struct bt_stack s;
    cr_assert_eq(bt_stack_find("vllm-0.21", &s, NULL), BT_OK);
    cr_expect_eq(bt_stack_graphs(&s, 256), 51 + 35);
    cr_expect_eq(bt_stack_graphs(&s, 8), 5 + 4);
    cr_assert_eq(bt_stack_find("vllm-0.6", &s, NULL), BT_OK);
    cr_expect_eq(bt_stack_graphs(&s, 256), 0);
}

Test(stack, trtllm_takes_a_share_of_what_is_free_and_rounds_up)
{
    struct bt_memory_opts o = {
        .arch = &llama31_8b, .gpu = &h100, .stack = "trtllm-1.0", .mem_fraction = 0.5};
    struct bt_memory_plan half = account(&o);
    o.mem_fraction = 1.0;
    struct bt_memory_plan all = account(&o);
    cr_expect_float_eq((double)half.kv_pool_bytes / (double)all.kv_pool_bytes, 0.5, 1e-3,
                       "the fraction is of free memory, weights do not matter");
    cr_expect_eq(half.kv_tokens_total % 32, 0);
    cr_expect_leq(half.remainder_bytes, 0, "the last block passes the pool's end");
    cr_expect_gt(half.remainder_bytes, -half.block_bytes);
}

Test(stack, sglang_leaves_activations_to_the_rest)
{
    struct bt_memory_opts o = {
        .arch = &llama31_8b, .gpu = &h100, .stack = "sglang-0.5", .mem_fraction = 0.8};
    int64_t few = account(&o).kv_pool_bytes;
    o.max_batched_tokens = 65536;
    cr_expect_eq(account(&o).kv_pool_bytes, few, "the chunk does not change the pool");
    o.mem_fraction = 0.9;
    int64_t more = account(&o).kv_pool_bytes;
    cr_expect_float_eq((double)(more - few) / (double)h100.usable_bytes, 0.1, 0.002);
}

/* Logs of Llama-3.1-8B on an H100 said 444,500 tokens in January 2025 and 442,750 in March. */
Test(stack, sglang_0_4_gives_a_share_by_ranks)
{
    struct bt_stack s;
    cr_assert_eq(bt_stack_find("sglang-0.4", &s, NULL), BT_OK);
    static const struct {
        int32_t tp;
        double share;
    } shares[] = {{1, 0.88}, {2, 0.87}, {4, 0.85}, {8, 0.81}, {16, 0.79}};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        cr_expect_float_eq(bt_stack_mem_fraction(&s, &h100, 8192, shares[i].tp), shares[i].share,
                           1e-12, "tp %d", shares[i].tp);
    }
    struct bt_memory_opts o = {.arch = &llama31_8b, .gpu = &h100, .stack = "sglang-0.4"};
    cr_expect_float_eq((double)account(&o).kv_tokens_total, 444500, 2500);
    cr_expect_eq(bt_stack_batched_tokens(&s, &rtx4090, 8192), 2048);
    cr_expect_eq(bt_stack_batched_tokens(&s, &h100, 8192), 8192);
}

/* 2,588 blocks, as the engine printed; a card of the same size without displays has more. */
Test(stack, what_displays_take_counts_on_a_desktop_card)
{
    struct bt_gpu card = rtx4090;
    struct bt_memory_opts o = {.arch = &llama31_8b,
                               .gpu = &card,
                               .stack = "vllm-0.19",
                               .max_seqs = 256,
                               .max_batched_tokens = 2048,
                               .max_model_len = 32768};
    int64_t headless = account(&o).kv_blocks_total;
    (void)snprintf(card.product, sizeof card.product, "GeForce RTX 4090");
    int64_t desktop = account(&o).kv_blocks_total;
    cr_expect_eq(headless - desktop, 200, "400 MiB in blocks of 2 MiB");
    cr_expect(desktop > 2588 - 26 && desktop < 2588 + 26, "%lld", (long long)desktop);
    o.stack = "vllm-0.10";
    int64_t sorting = account(&o).kv_blocks_total;
    card.product[0] = '\0';
    cr_expect_eq(account(&o).kv_blocks_total, sorting, "not seen before 0.17");
}

Test(stack, kv_heads_are_replicated_beyond_their_number)
{
    struct bt_memory_opts o = {.arch = &llama31_8b, .gpu = &h100, .stack = "vllm-0.19"};
    o.tp = 8;
    int64_t at_8 = account(&o).kv_bytes_per_token;
    o.tp = 16;
    cr_expect_eq(account(&o).kv_bytes_per_token, at_8, "8 KV heads on 16 ranks: one each");
}

/* Five layers of six slide over 1024 tokens: layers come in groups of one kind and size, and
 * capacity is what a sequence of the whole length takes of them. */
Test(stack, sliding_layers_have_block_tables_of_their_own)
{
    struct bt_arch hybrid = llama31_8b;
    hybrid.n_layers = 36;
    hybrid.sliding_window = 1024;
    for (int32_t i = 0; i < 36; i++) {
        if (i % 6 != 5) {
            bt_arch_slide_layers(&hybrid, i, i + 1);
        }
    }
    struct bt_memory_opts o = {.arch = &hybrid,
                               .gpu = &h100,
                               .stack = "vllm-0.19",
                               .max_batched_tokens = 2048,
                               .max_model_len = 65536};
    struct bt_memory_plan p = account(&o);
    struct bt_arch full = hybrid;
    full.n_sliding_layers = 0;
    full.sliding_window = 0;
    memset(full.sliding_mask, 0, sizeof full.sliding_mask);
    o.arch = &full;
    struct bt_memory_plan q = account(&o);
    int64_t full_pages = 65536 / 16;
    int64_t slide_pages = (1023 + 2048 + 15) / 16 + 1;
    double per_seq = (double)(full_pages + 5 * slide_pages) * 6 * 4096 * 16;
    double expected = (double)(p.kv_pool_bytes + p.remainder_bytes) / per_seq;
    cr_expect_float_eq((double)p.kv_tokens_total / 65536.0, expected, 0.01 * expected);
    cr_expect_gt(p.kv_tokens_total, 4 * q.kv_tokens_total);
    o.stack = "vllm-0.7";
    o.arch = &hybrid;
    int64_t v0 = account(&o).kv_tokens_total;
    cr_expect_lt(v0, 2 * q.kv_tokens_total, "V0 keeps every token of every layer");
}

Test(stack, reported_weights_take_the_derived_ones_place)
{
    struct bt_memory_opts o = {.arch = &llama31_8b, .gpu = &h100, .stack = "vllm-0.19"};
    int64_t derived = account(&o).weights_bytes;
    cr_expect_float_eq((double)derived / 1073741824.0, 14.9888, 0.0001, "as engines print it");
    o.weights_bytes = derived + (INT64_C(1) << 30);
    cr_expect_eq(account(&o).weights_bytes, derived + (INT64_C(1) << 30));
}

/* A sampler that sorts 128,256 logits of 1,024 sequences takes gigabytes. */
Test(stack, logits_of_many_sequences_cost_memory)
{
    struct bt_memory_opts o = {.arch = &llama31_8b, .gpu = &h100, .stack = "vllm-0.10"};
    o.max_seqs = 256;
    int64_t few = account(&o).workspace_bytes;
    o.max_seqs = 1024;
    int64_t many = account(&o).workspace_bytes;
    cr_expect_eq(many - few, INT64_C(768) * 128256 * 38);
}
