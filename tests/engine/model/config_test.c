#include "engine/model/config.h"
#include "tests/engine/model/files.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

/* A Llama in the spelling of transformers 4, with `extra` keys before the rest. */
static enum bt_code parse_llama(const char *extra, struct bt_model_config *c, struct bt_error *err)
{
    char text[2048];
    int n = snprintf(text, sizeof text,
                     "{%s\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64,\n"
                     "\"num_hidden_layers\": 2, \"num_attention_heads\": 4,\n"
                     "\"intermediate_size\": 96, \"vocab_size\": 100,\n"
                     "\"max_position_embeddings\": 1024}",
                     extra);
    *err = (struct bt_error){0};
    return bt_model_config_parse(text, (size_t)n, "m/config.json", c, err);
}

static void read_model(const char *name, struct bt_model_config *c)
{
    struct bt_error err = {0};
    cr_assert_eq(bt_model_config_read(bt_test_model(name), c, &err), BT_OK, "%s: %s", name,
                 err.msg);
    cr_expect_eq(bt_arch_check(&c->arch, &err), BT_OK, "%s: %s", name, err.msg);
}

Test(config, every_shipped_model_is_read)
{
    static const struct {
        const char *folder;
        const char *type;
        int32_t n_kv_heads, head_dim, window;
        bool tied, qkv_bias, qk_norm;
        enum bt_weight_format checkpoint;
    } rows[] = {
        {"berth-12m", "llama", 2, 64, 0, true, false, false, BT_WEIGHT_BF16},
        {"berth-1m", "llama", 1, 64, 0, true, false, false, BT_WEIGHT_BF16},
        {"tiny-llama-mha", "llama", 4, 32, 0, false, false, false, BT_WEIGHT_FP32},
        {"tiny-llama3-rope", "llama", 2, 32, 0, false, false, false, BT_WEIGHT_FP32},
        {"tiny-qwen2", "qwen2", 2, 32, 0, true, true, false, BT_WEIGHT_FP32},
        {"tiny-qwen3", "qwen3", 2, 64, 0, false, false, true, BT_WEIGHT_FP32},
        {"tiny-mistral-swa", "mistral", 2, 32, 32, false, false, false, BT_WEIGHT_FP32},
        {"quantised/tiny-gptq-v1-sym", "llama", 2, 32, 0, false, false, false, BT_WEIGHT_INT4_G64},
        {"quantised/tiny-gptq-v1-asym", "llama", 2, 32, 0, false, false, false, BT_WEIGHT_INT4_G64},
        {"quantised/tiny-awq", "llama", 2, 32, 0, false, false, false, BT_WEIGHT_INT4_G64},
        {"quantised/tiny-ct-w4a16", "llama", 2, 32, 0, false, false, false, BT_WEIGHT_INT4_G64},
        {"quantised/tiny-ct-w8a8", "llama", 2, 32, 0, false, false, false, BT_WEIGHT_INT8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_model_config c;
        read_model(rows[i].folder, &c);
        cr_expect_str_eq(c.model_type, rows[i].type);
        const char *slash = strrchr(rows[i].folder, '/');
        cr_expect_str_eq(c.arch.name, slash != NULL ? slash + 1 : rows[i].folder);
        cr_expect_eq(c.arch.n_kv_heads, rows[i].n_kv_heads, "%s", rows[i].folder);
        cr_expect_eq(c.arch.head_dim, rows[i].head_dim, "%s", rows[i].folder);
        cr_expect_eq(c.arch.sliding_window, rows[i].window, "%s", rows[i].folder);
        cr_expect_eq(c.arch.n_sliding_layers, rows[i].window > 0 ? 2 : 0, "%s", rows[i].folder);
        cr_expect_eq(c.arch.tie_embeddings, rows[i].tied, "%s", rows[i].folder);
        cr_expect_eq(c.arch.qkv_bias, rows[i].qkv_bias, "%s", rows[i].folder);
        cr_expect_eq(c.arch.qk_norm, rows[i].qk_norm, "%s", rows[i].folder);
        cr_expect_eq(c.arch.checkpoint, rows[i].checkpoint, "%s", rows[i].folder);
    }
}

Test(config, the_12m_model_has_its_parameters_and_tokens)
{
    struct bt_model_config c;
    read_model("berth-12m", &c);
    cr_expect_eq(bt_arch_params(&c.arch).total, 12587904, "%lld",
                 (long long)bt_arch_params(&c.arch).total);
    cr_expect_eq(c.bos_id, 0);
    cr_expect_eq(c.n_eos, 1);
    cr_expect_eq(c.eos_ids[0], 0);
    cr_expect_eq(c.quant.layout, BT_QUANT_NONE);
    cr_expect_eq(c.arch.compute, BT_ACT_BF16);
    cr_expect_float_eq(c.arch.rms_eps, 1e-5, 1e-12);

    char path[4096];
    (void)snprintf(path, sizeof path, "%s/config.json", bt_test_model("berth-12m"));
    struct bt_error err = {0};
    struct bt_model_config d;
    cr_assert_eq(bt_model_config_read(path, &d, &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(d.arch.name, "berth-12m");
    (void)snprintf(path, sizeof path, "%s//", bt_test_model("berth-12m"));
    cr_assert_eq(bt_model_config_read(path, &d, &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(d.arch.name, "berth-12m");
}

Test(config, rope_in_both_spellings)
{
    struct bt_model_config c;
    struct bt_error err = {0};
    read_model("tiny-llama3-rope", &c);
    cr_expect_eq(c.arch.rope.scaling, BT_ROPE_LLAMA3);
    cr_expect_float_eq(c.arch.rope.theta, 500000, 1e-6);
    cr_expect_float_eq(c.arch.rope.factor, 8, 1e-9);
    cr_expect_float_eq(c.arch.rope.high_freq_factor, 4, 1e-9);
    cr_expect_float_eq(c.arch.rope.low_freq_factor, 1, 1e-9);
    cr_expect_eq(c.arch.rope.original_max_position, 64);

    cr_assert_eq(parse_llama("\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"linear\", "
                             "\"factor\": 4.0},",
                             &c, &err),
                 BT_OK, "%s", err.msg);
    cr_expect_eq(c.arch.rope.scaling, BT_ROPE_LINEAR);
    cr_expect_float_eq(c.arch.rope.factor, 4, 1e-9);
    cr_expect_float_eq(c.arch.rope.theta, 5e5, 1e-6);
    cr_expect_eq(c.arch.max_position, 1024);

    cr_assert_eq(parse_llama("\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
                             "\"original_max_position_embeddings\": 1024},",
                             &c, &err),
                 BT_OK, "%s", err.msg);
    cr_expect_eq(c.arch.rope.scaling, BT_ROPE_YARN);
    cr_expect_eq(c.arch.max_position, 4096);
    cr_expect_float_eq(c.arch.rope.beta_fast, 32, 1e-9);
    cr_expect_float_eq(c.arch.rope.beta_slow, 1, 1e-9);

    cr_assert_eq(parse_llama("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2},", &c, &err),
                 BT_OK);
    cr_expect_eq(c.arch.rope.original_max_position, 1024);
    cr_assert_eq(parse_llama("\"rope_scaling\": null, \"head_dim\": null, "
                             "\"num_key_value_heads\": null,",
                             &c, &err),
                 BT_OK);
    cr_expect_eq(c.arch.rope.scaling, BT_ROPE_DEFAULT);
    cr_expect_eq(c.arch.head_dim, 16);
    cr_expect_eq(c.arch.n_kv_heads, 4);
    cr_expect_eq(c.arch.compute, BT_ACT_FP32);
}

Test(config, windows_of_qwen)
{
    static const char qwen[] =
        "{\"model_type\": \"qwen2\", \"hidden_size\": 64, \"num_hidden_layers\": 4,"
        "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 100,"
        "\"max_position_embeddings\": 1024, \"sliding_window\": 128, \"torch_dtype\": "
        "\"float16\", %s}";
    char text[1024];
    struct bt_model_config c;
    struct bt_error err = {0};
    int n = snprintf(text, sizeof text, qwen, "\"use_sliding_window\": false");
    cr_assert_eq(bt_model_config_parse(text, (size_t)n, "q", &c, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(c.arch.sliding_window, 0);
    cr_expect(c.arch.wide_residual && c.arch.qkv_bias && !c.arch.o_bias);
    cr_expect_eq(c.arch.compute, BT_ACT_FP16);
    n = snprintf(text, sizeof text, qwen, "\"use_sliding_window\": true, \"max_window_layers\": 3");
    cr_assert_eq(bt_model_config_parse(text, (size_t)n, "q", &c, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(c.arch.sliding_window, 128);
    cr_expect_eq(c.arch.n_sliding_layers, 1);
    cr_expect(bt_arch_layer_slides(&c.arch, 3) && !bt_arch_layer_slides(&c.arch, 2));
    n = snprintf(text, sizeof text, qwen,
                 "\"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", "
                 "\"full_attention\", \"sliding_attention\", \"full_attention\"]");
    cr_assert_eq(bt_model_config_parse(text, (size_t)n, "q", &c, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(c.arch.sliding_mask[0], 5);
    /* No layer reaches max_window_layers: no window at all. */
    n = snprintf(text, sizeof text, qwen, "\"use_sliding_window\": true");
    cr_assert_eq(bt_model_config_parse(text, (size_t)n, "q", &c, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(c.arch.sliding_window, 0);
}

Test(config, quantised_checkpoints)
{
    static const struct {
        const char *folder;
        enum bt_quant_layout layout;
        enum bt_act_format act;
        bool symmetric;
        int32_t group;
    } rows[] = {
        {"quantised/tiny-gptq-v1-sym", BT_QUANT_GPTQ_V1, BT_ACT_DEFAULT, true, 64},
        {"quantised/tiny-gptq-v1-asym", BT_QUANT_GPTQ_V1, BT_ACT_DEFAULT, false, 64},
        {"quantised/tiny-awq", BT_QUANT_AWQ_GEMM, BT_ACT_DEFAULT, false, 64},
        {"quantised/tiny-ct-w4a16", BT_QUANT_CT_PACKED, BT_ACT_DEFAULT, true, 64},
        {"quantised/tiny-ct-w8a8", BT_QUANT_CT_INT, BT_ACT_INT8_DYNAMIC, true, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_model_config c;
        read_model(rows[i].folder, &c);
        cr_expect_eq(c.quant.layout, rows[i].layout, "%s", rows[i].folder);
        cr_expect_eq(c.quant.activations, rows[i].act, "%s", rows[i].folder);
        cr_expect_eq(c.quant.symmetric, rows[i].symmetric, "%s", rows[i].folder);
        cr_expect_eq(c.quant.group_size, rows[i].group, "%s", rows[i].folder);
        cr_expect(!c.quant.lm_head);
        cr_expect_eq(c.arch.compute, BT_ACT_FP32);
    }
    struct bt_model_config c;
    struct bt_error err = {0};
    cr_assert_eq(parse_llama("\"torch_dtype\": \"bfloat16\", \"quantization_config\": "
                             "{\"quant_method\": \"fp8\"},",
                             &c, &err),
                 BT_OK, "%s", err.msg);
    cr_expect_eq(c.arch.checkpoint, BT_WEIGHT_FP8);
    cr_expect_eq(c.arch.compute, BT_ACT_BF16);
}

Test(config, files_beside_it_are_heard)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 1,"
        "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 100,"
        "\"max_position_embeddings\": 64, \"eos_token_id\": 2, \"bos_token_id\": 1}";
    static const char generation[] = "{\"eos_token_id\": [7, 8, 9]}";
    static const char quantize[] = "{\"bits\": 4, \"group_size\": 32, \"sym\": true}";
    bt_test_write("config.json", config, sizeof config - 1);
    bt_test_write("generation_config.json", generation, sizeof generation - 1);
    bt_test_write("quantize_config.json", quantize, sizeof quantize - 1);
    struct bt_model_config c;
    struct bt_error err = {0};
    cr_assert_eq(bt_model_config_read(bt_test_dir(), &c, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(c.n_eos, 3);
    cr_expect_eq(c.eos_ids[2], 9);
    cr_expect_eq(c.bos_id, 1);
    cr_expect_eq(c.arch.checkpoint, BT_WEIGHT_INT4_G32);
    cr_expect_eq(c.quant.layout, BT_QUANT_GPTQ_V1);
    bt_test_write("generation_config.json", "{\n\n\"eos\": }", 11);
    cr_expect_eq(bt_model_config_read(bt_test_dir(), &c, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "generation_config.json:3"), "%s", err.msg);
}

Test(config, bad_keys_are_named_with_value_and_range)
{
    static const struct {
        const char *extra;
        const char *msg;
    } rows[] = {
        {"\"num_key_value_heads\": 3,",
         "m/config.json: num_key_value_heads: 3 must divide num_attention_heads, 4"},
        {"\"num_key_value_heads\": \"8\",",
         "m/config.json: num_key_value_heads: expected an integer 1..4, got \"8\""},
        {"\"head_dim\": 7,", "m/config.json: head_dim: 7 must be even"},
        {"\"hidden_act\": \"gelu\",",
         "m/config.json: hidden_act: \"gelu\" is not supported (silu)"},
        {"\"tie_word_embeddings\": 1,",
         "m/config.json: tie_word_embeddings: expected true or false, got 1"},
        {"\"rope_scaling\": {\"type\": \"longrope\"},",
         "m/config.json: rope_scaling.type: \"longrope\" is not supported (default, linear, "
         "dynamic, llama3, yarn)"},
        {"\"rope_parameters\": {\"rope_type\": \"linear\"},",
         "m/config.json: rope_parameters.factor: missing; expected a number 1..1e+06"},
        {"\"rope_scaling\": 4,", "m/config.json: rope_scaling: expected an object, got 4"},
        {"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8},",
         "m/config.json: rope_scaling.original_max_position_embeddings: missing; expected an "
         "integer 1..1073741824"},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"mscale\": 1},",
         "m/config.json: rope_scaling.mscale is not supported (attention_factor)"},
        {"\"torch_dtype\": \"float64\",",
         "m/config.json: torch_dtype: \"float64\" is not supported (float32, float16, bfloat16)"},
        {"\"eos_token_id\": [1, \"x\"],",
         "m/config.json: eos_token_id: expected a token id >= 0 or a list of them"},
        {"\"partial_rotary_factor\": 0.5,",
         "m/config.json: partial_rotary_factor: 0.5 is not supported (1)"},
        {"\"quantization_config\": {\"quant_method\": \"bitsandbytes\"},",
         "m/config.json: quantization_config.quant_method: \"bitsandbytes\" is not supported "
         "(gptq, "
         "awq, compressed-tensors, fp8)"},
        {"\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 3},",
         "m/config.json: quantization_config.bits: 3 is not supported (4)"},
        {"\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 256},",
         "m/config.json: quantization_config.group_size: 256 is not supported (32, 64, 128)"},
        {"\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64, "
         "\"version\": \"gemv\"},",
         "m/config.json: quantization_config.version: \"gemv\" is not supported (gemm)"},
        {"\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
         "\"int-quantized\", \"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}},",
         "m/config.json: quantization_config.sparsity_config.format: \"sparse-24-bitmask\" is not "
         "supported (dense)"},
        {"\"hidden_size\": 3,", "m/config.json:1: duplicate object key"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_model_config c;
        struct bt_error err;
        cr_expect_eq(parse_llama(rows[i].extra, &c, &err), BT_ERR_INPUT, "%s", rows[i].extra);
        cr_expect(strncmp(err.msg, rows[i].msg, strlen(rows[i].msg)) == 0, "%s\n%s", rows[i].msg,
                  err.msg);
    }
}

Test(config, what_is_not_a_supported_model_says_what_is)
{
    static const struct {
        const char *text;
        enum bt_code code;
        const char *msg;
    } rows[] = {
        {"{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\"}", BT_ERR_INPUT,
         "x: architectures[0]: \"MixtralForCausalLM\" is not supported (LlamaForCausalLM, "
         "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)"},
        {"{\"model_type\": \"gemma3\"}", BT_ERR_INPUT,
         "x: model_type: \"gemma3\" is not supported"},
        {"{}", BT_ERR_INPUT, "x: model_type: \"\" is not supported"},
        {"[1]", BT_ERR_INPUT, "x: expected an object at the top"},
        {"{\n\"a\": tru}", BT_ERR_INPUT, "x:2: "},
        {"{\"model_type\": \"llama\"}", BT_ERR_INPUT,
         "x: hidden_size: missing; expected an integer 1..1048576"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_model_config c;
        struct bt_error err = {0};
        cr_expect_eq(bt_model_config_parse(rows[i].text, strlen(rows[i].text), "x", &c, &err),
                     rows[i].code, "%s", rows[i].text);
        cr_expect(strncmp(err.msg, rows[i].msg, strlen(rows[i].msg)) == 0, "%s\n%s", rows[i].msg,
                  err.msg);
    }
    struct bt_model_config c;
    struct bt_error err = {0};
    cr_expect_eq(bt_model_config_read("/nowhere/at/all", &c, &err), BT_ERR_NOTFOUND);
    cr_expect_str_eq(err.msg, "/nowhere/at/all: No such file or directory");
    bt_error_clear(&err);
    cr_expect_eq(bt_model_config_read(bt_test_model("berth-12m-medusa"), &c, &err), BT_ERR_INPUT);
}
