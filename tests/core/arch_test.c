#include "engine/core/arch.h"

#include <criterion/criterion.h>

#include <string.h>

static const struct bt_arch llama2_13b = {
    .name = "llama-2-13b",
    .hidden = 5120,
    .n_layers = 40,
    .n_heads = 40,
    .n_kv_heads = 40,
    .head_dim = 128,
    .intermediate = 13824,
    .vocab = 32000,
    .max_position = 4096,
    .mlp_gated = true,
    .rope = {.theta = 10000, .factor = 1},
    .rms_eps = 1e-5,
    .checkpoint = BT_WEIGHT_FP16,
    .compute = BT_ACT_FP16,
};

static const struct bt_arch qwen25_7b = {
    .name = "qwen2.5-7b",
    .hidden = 3584,
    .n_layers = 28,
    .n_heads = 28,
    .n_kv_heads = 4,
    .head_dim = 128,
    .intermediate = 18944,
    .vocab = 152064,
    .max_position = 32768,
    .qkv_bias = true,
    .mlp_gated = true,
    .rope = {.theta = 1e6, .factor = 1},
    .rms_eps = 1e-6,
    .checkpoint = BT_WEIGHT_BF16,
    .compute = BT_ACT_BF16,
};

Test(arch, parameter_counts_are_the_published_ones)
{
    struct bt_arch_params p = bt_arch_params(&llama2_13b);
    cr_expect_eq(p.total, 13015864320, "%lld", (long long)p.total);
    cr_expect_eq(p.attn_qkv + p.attn_o + p.mlp, 12687769600, "%lld",
                 (long long)(p.attn_qkv + p.attn_o + p.mlp));
    p = bt_arch_params(&qwen25_7b);
    cr_expect_eq(p.total, 7615616512, "%lld", (long long)p.total);
}

Test(arch, weight_bytes_of_13b)
{
    struct bt_weight_opts o = {.format = BT_WEIGHT_INT4_G128};
    struct bt_weight_bytes b = bt_arch_weight_bytes(&llama2_13b, &o);
    cr_expect(b.total > 6800000000 && b.total < 7400000000, "%lld", (long long)b.total);
    int64_t body = 12687769600;
    int64_t plain = 2 * (13015864320 - body);
    cr_expect_eq(b.total, body / 2 + body / 128 * 2 + plain);
    cr_expect_eq(b.attn_qkv + b.attn_o + b.mlp, body / 2 + body / 64);
    cr_expect_eq(bt_arch_weight_bytes(&llama2_13b, NULL).total, 2 * INT64_C(13015864320));
    o.quantise_lm_head = true;
    cr_expect_eq(bt_arch_weight_bytes(&llama2_13b, &o).lm_head,
                 INT64_C(32000) * 5120 / 2 + 32000 * 40 * 2);
    o = (struct bt_weight_opts){.format = BT_WEIGHT_FP32};
    cr_expect_eq(bt_arch_weight_bytes(&llama2_13b, &o).total, 4 * INT64_C(13015864320));
}

Test(arch, matrix_bytes_count_scales)
{
    static const struct {
        enum bt_weight_format f;
        int64_t out, in, bytes;
    } rows[] = {
        {BT_WEIGHT_FP32, 3, 5, 60},
        {BT_WEIGHT_BF16, 3, 5, 30},
        {BT_WEIGHT_INT8, 3, 5, 15 + 6},
        {BT_WEIGHT_INT8_TENSOR, 3, 5, 15 + 2},
        {BT_WEIGHT_FP8, 3, 5, 15 + 6},
        {BT_WEIGHT_INT4_TENSOR, 3, 5, 9 + 2},
        {BT_WEIGHT_INT4_G32, 2, 65, 2 * 33 + 2 * 3 * 2},
        {BT_WEIGHT_INT4_G64, 2, 128, 128 + 8},
        {BT_WEIGHT_INT4_G128, 2, 128, 128 + 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(bt_weight_matrix_bytes(rows[i].out, rows[i].in, rows[i].f), rows[i].bytes,
                     "%s", bt_weight_format_name(rows[i].f));
    }
}

Test(arch, kv_bytes_per_token)
{
    cr_expect_eq(bt_arch_kv_bytes_per_token(&llama2_13b, BT_KV_FP16, 1), 819200);
    cr_expect_eq(bt_arch_kv_bytes_per_token(&llama2_13b, BT_KV_DEFAULT, 0), 819200);
    cr_expect_eq(bt_arch_kv_bytes_per_token(&llama2_13b, BT_KV_INT8, 1), 416000);
    cr_expect_eq(bt_arch_kv_bytes_per_token(&llama2_13b, BT_KV_FP8, 1), 409600);
    cr_expect_eq(bt_arch_kv_bytes_per_token(&llama2_13b, BT_KV_FP32, 1), 1638400);
    cr_expect_eq(bt_arch_kv_bytes_per_token(&llama2_13b, BT_KV_FP16, 2), 409600);
    /* Four KV heads on eight ranks: one each, replicated. */
    cr_expect_eq(bt_arch_kv_bytes_per_token(&qwen25_7b, BT_KV_BF16, 1), 57344);
    cr_expect_eq(bt_arch_kv_bytes_per_token(&qwen25_7b, BT_KV_BF16, 4), 14336);
    cr_expect_eq(bt_arch_kv_bytes_per_token(&qwen25_7b, BT_KV_BF16, 28), 14336);
}

Test(arch, tensor_parallel_ranks_share_the_weights)
{
    struct bt_weight_opts o = {.tp = 2};
    struct bt_weight_bytes whole = bt_arch_weight_bytes(&llama2_13b, NULL);
    struct bt_weight_bytes half = bt_arch_weight_bytes(&llama2_13b, &o);
    cr_expect_eq(2 * (half.total - half.norms), whole.total - whole.norms);
    cr_expect_eq(half.norms, whole.norms);

    struct bt_error err = {0};
    cr_expect_eq(bt_arch_check_tp(&llama2_13b, 4, &err), BT_OK);
    cr_expect_eq(bt_arch_check_tp(&llama2_13b, 3, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "tp: 3 does not divide the 40 attention heads of llama-2-13b");
    bt_error_clear(&err);
    cr_expect_eq(bt_arch_check_tp(&llama2_13b, 0, &err), BT_ERR_ARG);
    bt_error_clear(&err);
    cr_expect_eq(bt_arch_check_tp(&qwen25_7b, 7, &err), BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "4 KV heads"));
    cr_expect_eq(bt_arch_check_tp(&qwen25_7b, 28, NULL), BT_ERR_ARG, "18944 % 28 != 0");
}

Test(arch, names_round_trip)
{
    struct bt_error err = {0};
    for (int i = 1; i < BT_WEIGHT_FORMATS; i++) {
        enum bt_weight_format f = BT_WEIGHT_DEFAULT;
        cr_expect_eq(
            bt_weight_format_parse(bt_weight_format_name((enum bt_weight_format)i), "w", &f, &err),
            BT_OK);
        cr_expect_eq((int)f, i);
    }
    for (int i = 1; i < BT_ACT_FORMATS; i++) {
        enum bt_act_format f = BT_ACT_DEFAULT;
        cr_expect_eq(bt_act_format_parse(bt_act_format_name((enum bt_act_format)i), "a", &f, &err),
                     BT_OK);
        cr_expect_eq((int)f, i);
    }
    for (int i = 1; i < BT_KV_FORMATS; i++) {
        enum bt_kv_format f = BT_KV_DEFAULT;
        cr_expect_eq(bt_kv_format_parse(bt_kv_format_name((enum bt_kv_format)i), "k", &f, &err),
                     BT_OK);
        cr_expect_eq((int)f, i);
    }
    enum bt_kv_format kv = BT_KV_INT8;
    cr_expect_eq(bt_kv_format_parse("int4", "kv.dtype", &kv, &err), BT_ERR_ARG);
    cr_expect_eq(kv, BT_KV_INT8);
    cr_expect_str_eq(err.msg, "kv.dtype: \"int4\" is not one of fp32, fp16, bf16, int8, fp8");
    bt_error_clear(&err);
    enum bt_weight_format w = BT_WEIGHT_DEFAULT;
    cr_expect_eq(bt_weight_format_parse("default", "weights", &w, &err), BT_ERR_ARG);
    cr_expect_eq(w, BT_WEIGHT_DEFAULT);
}

Test(arch, flops_follow_parameters_and_context)
{
    double f = bt_arch_linear_flops(&llama2_13b);
    cr_expect_float_eq(f, 2 * 12687769600.0, 1);
    cr_expect_float_eq(bt_arch_lm_head_flops(&llama2_13b), 2.0 * 5120 * 32000, 1);
    cr_expect_float_eq(bt_arch_attention_flops(&llama2_13b, 1000), 4.0 * 40 * 5120 * 1000, 1);
    cr_expect_float_eq(bt_arch_flops_per_token(&llama2_13b, 0), f + 2.0 * 5120 * 32000, 1);

    struct bt_arch a = llama2_13b;
    a.sliding_window = 100;
    bt_arch_slide_layers(&a, 30, 40);
    bt_arch_slide_layers(&a, 35, 40);
    cr_expect_eq(a.n_sliding_layers, 10);
    cr_expect(!bt_arch_layer_slides(&a, 29) && bt_arch_layer_slides(&a, 39));
    cr_expect_float_eq(bt_arch_attention_flops(&a, 1000), 4.0 * 5120 * (30 * 1000 + 10 * 100), 1);
    cr_expect_float_eq(bt_arch_attention_flops(&a, 50), 4.0 * 5120 * 40 * 50, 1);
}

Test(arch, check_names_the_field_and_its_range)
{
    struct bt_error err = {0};
    cr_expect_eq(bt_arch_check(&llama2_13b, &err), BT_OK);
    struct bt_arch a = llama2_13b;
    a.n_layers = 0;
    cr_expect_eq(bt_arch_check(&a, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "llama-2-13b: layers: 0 is not in 1..256");
    bt_error_clear(&err);
    a = llama2_13b;
    a.n_kv_heads = 7;
    cr_expect_eq(bt_arch_check(&a, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "llama-2-13b: KV heads: 7 must divide the 40 heads");
    bt_error_clear(&err);
    a = llama2_13b;
    a.head_dim = 127;
    cr_expect_eq(bt_arch_check(&a, &err), BT_ERR_ARG);
    bt_error_clear(&err);
    a = llama2_13b;
    a.n_heads = a.n_kv_heads = 1 << 16;
    a.head_dim = 16;
    cr_expect_eq(bt_arch_check(&a, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "llama-2-13b: 65536 attention heads of 16: their product is not in "
                              "1..524288");
    bt_error_clear(&err);
    a = llama2_13b;
    a.sliding_window = 4096;
    cr_expect_eq(bt_arch_check(&a, &err), BT_ERR_ARG);
    bt_error_clear(&err);
    a = llama2_13b;
    a.rope.scaling = BT_ROPE_LINEAR;
    a.rope.factor = 0.5;
    cr_expect_eq(bt_arch_check(&a, &err), BT_ERR_ARG);
}
