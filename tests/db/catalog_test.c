#include "db/catalog.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bt_catalog *open_catalog(void)
{
    struct bt_error err = {0};
    struct bt_catalog *c = NULL;
    cr_assert_eq(bt_catalog_open(NULL, 0, &c, &err), BT_OK, "%s", err.msg);
    return c;
}

Test(catalog, holds_what_the_contract_names)
{
    static const char *const gpus[] = {
        "h200",    "h100-sxm", "h100-pcie",   "h100-nvl",   "a100-80-sxm", "a100-80-pcie",
        "l40s",    "a40",      "a100-40-sxm", "a10",        "a10g",        "l4",
        "rtx3090", "rtx4090",  "rtx5090",     "rtxpro6000", "b200",        "mi300x"};
    static const char *const models[] = {
        "llama-2-7b",    "llama-2-13b",  "llama-2-70b",   "llama-3-8b",       "llama-3.1-8b",
        "llama-3.1-70b", "llama-3.2-1b", "llama-3.2-3b",  "tinyllama-1.1b",   "sheared-llama-2.7b",
        "mistral-7b",    "qwen2.5-0.5b", "qwen2.5-7b",    "qwen2.5-72b",      "qwen3-0.6b",
        "qwen3-8b",      "qwen3-32b",    "llama-3.3-70b", "mistral-nemo-12b", "codellama-34b"};
    struct bt_catalog *c = open_catalog();
    struct bt_error err = {0};
    cr_expect_eq(bt_catalog_n_gpus(c), 18);
    cr_expect_geq(bt_catalog_n_models(c), 25);
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        const struct bt_catalog_gpu *g = NULL;
        cr_assert_eq(bt_catalog_find_gpu(c, gpus[i], "gpu", &g, &err), BT_OK, "%s", err.msg);
        cr_expect_str_eq(g->gpu.name, gpus[i]);
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct bt_catalog_model *m = NULL;
        cr_assert_eq(bt_catalog_find_model(c, models[i], "model", &m, &err), BT_OK, "%s", err.msg);
        cr_expect_str_eq(m->arch.name, models[i]);
    }
    bt_catalog_close(c);
}

/* The parameter counts are the published ones: the architecture fields must give them exactly. */
Test(catalog, architecture_fields_give_the_published_parameters)
{
    struct bt_catalog *c = open_catalog();
    for (int32_t i = 0; i < bt_catalog_n_models(c); i++) {
        const struct bt_catalog_model *m = bt_catalog_model_at(c, i);
        cr_expect_eq(bt_arch_params(&m->arch).total, m->params, "%s: %lld", m->arch.name,
                     (long long)bt_arch_params(&m->arch).total);
        cr_expect(*m->source != '\0' && *m->date != '\0' && *m->hf_id != '\0', "%s", m->arch.name);
        cr_expect(m->arch.vocab_family[0] != '\0', "%s", m->arch.name);
    }
    bt_catalog_close(c);
}

Test(catalog, gpus_are_plausible_and_sourced)
{
    struct bt_catalog *c = open_catalog();
    for (int32_t i = 0; i < bt_catalog_n_gpus(c); i++) {
        const struct bt_catalog_gpu *r = bt_catalog_gpu_at(c, i);
        const struct bt_gpu *g = &r->gpu;
        cr_expect(*r->source != '\0' && *r->date != '\0', "%s", g->name);
        cr_expect(g->usable_bytes <= g->memory_bytes, "%s", g->name);
        cr_expect((double)g->usable_bytes > 0.9 * (double)g->memory_bytes, "%s", g->name);
        cr_expect(g->usable_estimated == (strstr(r->notes, "usable memory estimated") != NULL),
                  "%s: an estimate says so", g->name);
        /* Dense rates: INT8 is twice FP16, up to four times where FP16 accumulates slower. */
        double ratio = g->int8_ops_per_s / g->fp16_flops_per_s;
        cr_expect(ratio > 1.9 && ratio < 4.1, "%s: %g", g->name, ratio);
        cr_expect(g->pcie.n_points > 0, "%s", g->name);
        cr_expect_eq(g->pcie.trust == BT_TRUST_MEASURED, strcmp(g->name, "h200") == 0);
        double rate = bt_pcie_rate(&g->pcie, 1e9, BT_COPY_TO_DEVICE);
        cr_expect(rate < g->pcie_bytes_per_s && rate > 0.8 * g->pcie_bytes_per_s, "%s", g->name);
        cr_expect((g->cc >= 80) == (g->family != BT_GPU_CDNA3), "%s", g->name);
    }
    const struct bt_catalog_gpu *h200 = NULL;
    cr_assert_eq(bt_catalog_find_gpu(c, "h200", "gpu", &h200, NULL), BT_OK);
    cr_expect(llabs(h200->gpu.usable_bytes - 150109880320) < 100000);
    cr_expect_float_eq(bt_pcie_rate(&h200->gpu.pcie, 327680, BT_COPY_TO_HOST), 41.7e9, 1);
    bt_catalog_close(c);
}

Test(catalog, names_are_found_in_common_spellings)
{
    static const struct {
        const char *given, *name;
    } models[] = {
        {"Llama-2-13B", "llama-2-13b"},
        {"llama2_13b", "llama-2-13b"},
        {"meta-llama/Llama-2-13b-chat-hf", "llama-2-13b"},
        {"meta-llama/Llama-2-13b-hf", "llama-2-13b"},
        {"meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"},
        {"Qwen/Qwen2.5-7B", "qwen2.5-7b"},
        {"qwen/qwen3-8b", "qwen3-8b"},
        {"TinyLlama", "tinyllama-1.1b"},
        {"mistralai/Mistral-7B-v0.3", "mistral-7b"},
        {"vicuna-13b-v1.5", "llama-2-13b"},
    };
    static const struct {
        const char *given, *name;
    } gpus[] = {
        {"RTX 4090", "rtx4090"},
        {"NVIDIA H200", "h200"},
        {"H100", "h100-sxm"},
        {"NVIDIA A100-SXM4-80GB", "a100-80-sxm"},
        {"a100_80_pcie", "a100-80-pcie"},
        {"NVIDIA H100 80GB HBM3", "h100-sxm"},
        {"L40S", "l40s"},
    };
    struct bt_catalog *c = open_catalog();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct bt_catalog_model *m = NULL;
        struct bt_error err = {0};
        cr_assert_eq(bt_catalog_find_model(c, models[i].given, "model", &m, &err), BT_OK, "%s",
                     err.msg);
        cr_expect_str_eq(m->arch.name, models[i].name);
    }
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        const struct bt_catalog_gpu *g = NULL;
        struct bt_error err = {0};
        cr_assert_eq(bt_catalog_find_gpu(c, gpus[i].given, "gpu", &g, &err), BT_OK, "%s", err.msg);
        cr_expect_str_eq(g->gpu.name, gpus[i].name);
    }
    bt_catalog_close(c);
}

Test(catalog, names_are_known_without_their_owner)
{
    static const char *const names[][2] = {
        {"Meta-Llama-3-8B-Instruct", "llama-3-8b"},
        {"Meta-Llama-3.1-405B-Instruct", "llama-3.1-405b"},
        {"Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"},
        {"DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1-distill-qwen-32b"},
        {"Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b-2507"},
    };
    struct bt_catalog *c = open_catalog();
    const struct bt_catalog_model *m = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct bt_error err = {0};
        cr_assert_eq(bt_catalog_find_model(c, names[i][0], "model", &m, &err), BT_OK, "%s",
                     err.msg);
        cr_expect_str_eq(m->arch.name, names[i][1]);
    }
    cr_expect_eq(bt_catalog_find_model(c, "meta-llama/8b", "model", &m, NULL), BT_ERR_NOTFOUND);
    cr_expect_eq(bt_catalog_find_model(c, "nobody/Llama-3.1-8B", "model", &m, NULL),
                 BT_ERR_NOTFOUND, "a folder's path is no catalog name");
    bt_catalog_close(c);
}

/* Every alias leads to the row that holds it: no two rows share a spelling. */
Test(catalog, aliases_are_unambiguous)
{
    struct bt_catalog *c = open_catalog();
    for (int32_t i = 0; i < bt_catalog_n_models(c); i++) {
        const struct bt_catalog_model *m = bt_catalog_model_at(c, i);
        char text[1024];
        (void)snprintf(text, sizeof text, "%s|%s|%s", m->arch.name, m->hf_id, m->aliases);
        for (char *alias = strtok(text, "|"); alias != NULL; alias = strtok(NULL, "|")) {
            const struct bt_catalog_model *found = NULL;
            cr_assert_eq(bt_catalog_find_model(c, alias, "model", &found, NULL), BT_OK);
            cr_expect_eq(found, m, "%s is %s, not %s", alias, found->arch.name, m->arch.name);
        }
    }
    for (int32_t i = 0; i < bt_catalog_n_gpus(c); i++) {
        const struct bt_catalog_gpu *g = bt_catalog_gpu_at(c, i);
        char text[1024];
        (void)snprintf(text, sizeof text, "%s|%s|%s", g->gpu.name, g->gpu.product, g->aliases);
        for (char *alias = strtok(text, "|"); alias != NULL; alias = strtok(NULL, "|")) {
            const struct bt_catalog_gpu *found = NULL;
            cr_assert_eq(bt_catalog_find_gpu(c, alias, "gpu", &found, NULL), BT_OK, "%s", alias);
            cr_expect_eq(found, g, "%s is %s, not %s", alias, found->gpu.name, g->gpu.name);
        }
    }
    bt_catalog_close(c);
}

Test(catalog, unknown_names_get_a_suggestion_and_the_list)
{
    struct bt_catalog *c = open_catalog();
    const struct bt_catalog_gpu *g = NULL;
    const struct bt_catalog_model *m = NULL;
    struct bt_error err = {0};
    cr_expect_eq(bt_catalog_find_gpu(c, "rtx4900", "--gpu", &g, &err), BT_ERR_NOTFOUND);
    cr_expect(strncmp(err.msg,
                      "--gpu: \"rtx4900\" is not known; did you mean rtx4090? (known: ", 59) == 0,
              "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, "mi300x"), "all GPUs are listed: %s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_catalog_find_model(c, "lama-2-13b", "model", &m, &err), BT_ERR_NOTFOUND);
    cr_expect_not_null(strstr(err.msg, "did you mean llama-2-13b?"), "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, " more"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_catalog_find_model(c, "zzzzzzzzzzzzzzz", "model", &m, &err), BT_ERR_NOTFOUND);
    cr_expect_null(strstr(err.msg, "did you mean"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_catalog_find_gpu(c, "host", "gpu", &g, &err), BT_ERR_NOTFOUND);
    cr_expect_not_null(strstr(err.msg, "calibrate"), "%s", err.msg);
    bt_catalog_close(c);
}

Test(catalog, a_calibrated_host_is_added_and_a_shipped_gpu_replaced)
{
    struct bt_gpu extra[2] = {{.name = "host", .family = BT_GPU_CPU, .mem_bytes_per_s = 2e10},
                              {.name = "l4", .family = BT_GPU_ADA, .mem_bytes_per_s = 2.9e11}};
    struct bt_catalog *c = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_catalog_open(extra, 2, &c, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(bt_catalog_n_gpus(c), 19);
    const struct bt_catalog_gpu *g = NULL;
    cr_assert_eq(bt_catalog_find_gpu(c, "host", "gpu", &g, &err), BT_OK);
    cr_expect_eq(g->gpu.family, BT_GPU_CPU);
    cr_assert_eq(bt_catalog_find_gpu(c, "l4", "gpu", &g, &err), BT_OK);
    cr_expect_float_eq(g->gpu.mem_bytes_per_s, 2.9e11, 1);
    bt_catalog_close(c);
}

Test(catalog, drafts_share_the_vocabulary)
{
    static const struct {
        const char *target, *draft;
        bool same;
    } rows[] = {
        {"llama-2-13b", "tinyllama-1.1b", true},  {"llama-2-13b", "sheared-llama-2.7b", true},
        {"llama-3.1-70b", "llama-3.2-1b", true},  {"llama-2-13b", "open-llama-3b-v2", false},
        {"llama-2-13b", "llama-3.2-1b", false},   {"qwen2.5-72b", "qwen2.5-0.5b", true},
        {"mistral-7b", "mistral-7b-v0.1", false}, {"berth-12m", "berth-1m", true},
    };
    struct bt_catalog *c = open_catalog();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct bt_catalog_model *t = NULL;
        const struct bt_catalog_model *d = NULL;
        cr_assert_eq(bt_catalog_find_model(c, rows[i].target, "model", &t, NULL), BT_OK);
        cr_assert_eq(bt_catalog_find_model(c, rows[i].draft, "model", &d, NULL), BT_OK);
        cr_expect_eq(bt_catalog_same_vocabulary(&t->arch, &d->arch), rows[i].same, "%s %s",
                     rows[i].target, rows[i].draft);
    }
    struct bt_arch unknown = {0};
    cr_expect(!bt_catalog_same_vocabulary(&unknown, &unknown));
    bt_catalog_close(c);
}

Test(catalog, prices_are_of_one_provider)
{
    struct bt_catalog *c = open_catalog();
    struct bt_error err = {0};
    struct bt_price_list p;
    cr_assert_eq(bt_price_list_init(&p, c, NULL, NULL, &err), BT_OK, "%s", err.msg);
    cr_expect_float_eq(bt_price_list_get(&p, "h200"), 3.59, 1e-9);
    cr_expect_float_eq(bt_price_list_get(&p, "a100-80-sxm"), 1.39, 1e-9);
    cr_expect(isnan(bt_price_list_get(&p, "a10")), "unpriced");
    cr_expect(isnan(bt_price_list_get(&p, "a10g")), "another provider's price is not ours");
    cr_expect_str_eq(bt_price_list_row(&p, "h200")->date, "2026-08");
    cr_assert_eq(bt_price_list_override(&p, "A10=0.75", &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_price_list_override(&p, "NVIDIA H200=3", &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_price_list_override(&p, "h200=2.5", &err), BT_OK, "%s", err.msg);
    cr_expect_float_eq(bt_price_list_get(&p, "a10"), 0.75, 1e-9);
    cr_expect_float_eq(bt_price_list_get(&p, "h200"), 2.5, 1e-9);
    cr_expect_null(bt_price_list_row(&p, "h200"));
    cr_expect_eq(p.n_overrides, 2);

    cr_assert_eq(bt_price_list_init(&p, c, "aws", "On-Demand", &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(p.provider, "AWS");
    cr_expect_float_eq(bt_price_list_get(&p, "a10g"), 1.006, 1e-9);
    cr_expect(isnan(bt_price_list_get(&p, "rtx4090")));

    static const char *const bad[] = {"l4", "l4=", "=1", "l4=-1", "l4=1x", "l4=inf"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bt_error_clear(&err);
        cr_expect_eq(bt_price_list_override(&p, bad[i], &err), BT_ERR_ARG, "%s", bad[i]);
    }
    bt_error_clear(&err);
    cr_expect_eq(bt_price_list_override(&p, "l5=1", &err), BT_ERR_NOTFOUND);
    bt_error_clear(&err);
    cr_expect_eq(bt_price_list_init(&p, c, "Runpodd", NULL, &err), BT_ERR_NOTFOUND);
    cr_expect_not_null(strstr(err.msg, "did you mean RunPod?"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_price_list_init(&p, c, NULL, "weekly", &err), BT_ERR_NOTFOUND);
    for (int32_t i = 0; i < bt_catalog_n_prices(c); i++) {
        const struct bt_catalog_gpu *g = NULL;
        bt_error_clear(&err);
        cr_expect_eq(bt_catalog_find_gpu(c, bt_catalog_price_at(c, i)->gpu, "gpu", &g, &err),
                     BT_OK);
        for (int32_t j = 0; j < i; j++) {
            const struct bt_price *a = bt_catalog_price_at(c, i);
            const struct bt_price *b = bt_catalog_price_at(c, j);
            cr_expect(strcmp(a->gpu, b->gpu) != 0 || strcmp(a->provider, b->provider) != 0 ||
                          strcmp(a->term, b->term) != 0,
                      "%s has two prices at %s", a->gpu, a->provider);
        }
    }
    bt_catalog_close(c);
}

Test(catalog, kernel_matrix_says_why_not)
{
    static const struct {
        const char *gpu;
        enum bt_weight_format w;
        enum bt_act_format a;
        bool exists;
        const char *text;
    } rows[] = {
        {"a100-80-sxm", BT_WEIGHT_FP16, BT_ACT_FP16, true, "16-bit mma"},
        {"a100-80-sxm", BT_WEIGHT_INT4_G128, BT_ACT_FP16, true, "W4A16"},
        {"h200", BT_WEIGHT_INT4_G64, BT_ACT_INT8_DYNAMIC, true, "W4A8"},
        {"h200", BT_WEIGHT_INT8, BT_ACT_INT8_STATIC, true, "W8A8"},
        {"rtx4090", BT_WEIGHT_INT8_TENSOR, BT_ACT_BF16, true, "W8A16"},
        {"h200", BT_WEIGHT_FP8, BT_ACT_BF16, false, "no FP8 kernels"},
        {"h200", BT_WEIGHT_BF16, BT_ACT_INT8_DYNAMIC, false, "need int8 or int4 weights"},
        {"h200", BT_WEIGHT_INT8, BT_ACT_FP32, false, "need fp32 weights"},
        {"h200", BT_WEIGHT_FP32, BT_ACT_BF16, false, "need fp32 activations"},
        {"mi300x", BT_WEIGHT_FP16, BT_ACT_FP16, false, "CUDA only"},
    };
    struct bt_catalog *c = open_catalog();
    struct bt_error err = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct bt_catalog_gpu *g = NULL;
        bool exists = !rows[i].exists;
        const char *text = "";
        cr_assert_eq(bt_catalog_find_gpu(c, rows[i].gpu, "gpu", &g, &err), BT_OK);
        cr_assert_eq(
            bt_catalog_kernel(c, "berth", &g->gpu, rows[i].w, rows[i].a, &exists, &text, &err),
            BT_OK, "%s", err.msg);
        cr_expect_eq(exists, rows[i].exists, "%zu %s", i, text);
        cr_expect_not_null(strstr(text, rows[i].text), "%zu %s", i, text);
    }
    /* No combination falls through the tables. */
    struct bt_gpu odd[] = {{.family = BT_GPU_CPU}, {.family = BT_GPU_AMPERE, .cc = 75}};
    for (int32_t i = 0; i < bt_catalog_n_gpus(c) + 2; i++) {
        const struct bt_gpu *g = i < 2 ? &odd[i] : &bt_catalog_gpu_at(c, i - 2)->gpu;
        bool exists = false;
        const char *text = "";
        for (int w = 1; w < BT_WEIGHT_FORMATS; w++) {
            for (int a = 1; a < BT_ACT_FORMATS; a++) {
                cr_expect_eq(bt_catalog_kernel(c, "berth", g, (enum bt_weight_format)w,
                                               (enum bt_act_format)a, &exists, &text, &err),
                             BT_OK);
                cr_expect(*text != '\0');
            }
        }
        for (int kv = 1; kv < BT_KV_FORMATS; kv++) {
            cr_expect_eq(
                bt_catalog_kv_kernel(c, "berth", g, (enum bt_kv_format)kv, &exists, &text, &err),
                BT_OK);
            cr_expect(*text != '\0');
        }
    }
    bool exists = true;
    const char *text = "";
    cr_expect_eq(bt_catalog_kv_kernel(c, "berth", &odd[1], BT_KV_INT8, &exists, &text, &err),
                 BT_OK);
    cr_expect(!exists && strstr(text, "compute capability 8.0") != NULL);
    cr_expect_eq(bt_catalog_kv_kernel(c, "berth", &odd[0], BT_KV_INT8, &exists, &text, &err),
                 BT_OK);
    cr_expect(exists);
    cr_expect_eq(bt_catalog_kv_kernel(c, "tgi-2.0", &odd[0], BT_KV_INT8, &exists, &text, &err),
                 BT_ERR_NOTFOUND);
    cr_expect_not_null(strstr(err.msg, "known: berth"), "%s", err.msg);
    bt_catalog_close(c);
}

Test(catalog, kernels_of_other_stacks_hold_for_their_versions)
{
    struct bt_catalog *c = open_catalog();
    static const struct {
        const char *name;
        const char *stack;
        const char *gpu;
        enum bt_weight_format w;
        enum bt_act_format a;
        bool exists;
    } rows[] = {
        {"16-bit", "vllm-0.19", "h100-sxm", BT_WEIGHT_BF16, BT_ACT_BF16, true},
        {"Marlin", "vllm-0.6.3", "a100-80-sxm", BT_WEIGHT_INT4_G128, BT_ACT_FP16, true},
        {"no INT8 on Blackwell", "vllm-0.19", "rtxpro6000", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC,
         false},
        {"no W4A8", "vllm-0.19", "h200", BT_WEIGHT_INT4_G128, BT_ACT_INT8_DYNAMIC, false},
        {"SmoothQuant", "trtllm-1.0", "l40s", BT_WEIGHT_INT8, BT_ACT_INT8_STATIC, true},
        {"FP8 needs Ada", "trtllm-1.0", "a100-80-sxm", BT_WEIGHT_FP8, BT_ACT_FP16, false},
        {"Marlin", "sglang-0.5.3", "rtx3090", BT_WEIGHT_INT4_G128, BT_ACT_FP16, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct bt_catalog_gpu *gpu = NULL;
        bool exists = false;
        const char *text = "";
        cr_assert_eq(bt_catalog_find_gpu(c, rows[i].gpu, "gpu", &gpu, NULL), BT_OK);
        cr_expect_eq(bt_catalog_kernel(c, rows[i].stack, &gpu->gpu, rows[i].w, rows[i].a, &exists,
                                       &text, NULL),
                     BT_OK, "%s", rows[i].name);
        cr_expect_eq(exists, rows[i].exists, "%s: %s", rows[i].name, text);
    }
    bt_catalog_close(c);
}
