#include "cli/config_opts.h"
#include "cli/out.h"

#include <criterion/criterion.h>

#include <string.h>

static enum bt_code apply(struct bt_config *c, int argc, char *const *argv, struct bt_error *err)
{
    struct bt_opt_table table = bt_config_opt_table();
    struct bt_args args;
    bt_config_init(c);
    BT_TRY(bt_args_parse(&args, &table, 1, argc, argv, err));
    enum bt_code code = bt_config_apply(&args, c, err);
    bt_args_fini(&args);
    return code;
}

Test(config_opts, every_field_with_an_option_is_one)
{
    struct bt_opt_table table = bt_config_opt_table();
    int32_t n = 0;
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        if (f->option != NULL) {
            cr_expect_str_eq(table.opts[n].name, f->option);
            cr_expect_gt(strlen(table.opts[n].help), 0, "%s", f->option);
            n++;
        }
    }
    cr_expect_eq(n, table.n_opts);
    cr_expect_gt(n, 30);
}

Test(config_opts, defaults_pass_their_own_checks)
{
    struct bt_opt_table table = bt_config_opt_table();
    for (int32_t i = 0; i < table.n_opts; i++) {
        if (table.opts[i].default_text != NULL) {
            struct bt_error err = {0};
            cr_expect_eq(bt_opt_check(&table.opts[i], table.opts[i].default_text, &err), BT_OK,
                         "%s", err.msg);
        }
    }
}

Test(config_opts, options_set_their_fields)
{
    char *argv[] = {"--model",   "llama-2-13b", "--gpu=h200",  "--kv",    "int8",
                    "--block",   "32",          "--max-seqs",  "auto",    "--host-memory",
                    "1GiB",      "--window-ms", "2..10",       "--fused", "off",
                    "--weights", "int4-g128",   "--timeout-s", "1.5"};
    struct bt_config c;
    struct bt_error err = {0};
    cr_assert_eq(apply(&c, sizeof argv / sizeof argv[0], argv, &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(c.model, "llama-2-13b");
    cr_expect_str_eq(c.gpu, "h200");
    cr_expect_eq(c.kv_dtype, BT_KV_INT8);
    cr_expect_eq(c.kv_block_tokens, 32);
    cr_expect_eq(c.max_seqs, BT_AUTO);
    cr_expect_eq(c.host_memory_bytes, 1 << 30);
    cr_expect_eq(c.window_high_ns, 10000000);
    cr_expect_not(c.fused);
    cr_expect_eq(c.weights, BT_WEIGHT_INT4_G128);
    cr_expect_eq(c.timeout_ns, 1500000000);
    cr_expect_eq(c.tp, 1);
}

Test(config_opts, mistakes_name_the_option)
{
    static const struct {
        const char *option, *value, *message;
    } cases[] = {
        {"--tp", "0", "--tp: '0' is not a whole number from 1 to 64 GPUs"},
        {"--kv", "int",
         "--kv: 'int' is not one of default|fp32|fp16|bf16|int8|fp8; did you mean "
         "int8?"},
        {"--prefix-cache", "yes", "--prefix-cache: 'yes' is not one of on|off"},
        {"--max-seqs", "many",
         "--max-seqs: expected integer 1..65536 sequences or auto, got "
         "\"many\""},
        {"--gpu-memory", "24 potatoes",
         "--gpu-memory: expected a size such as 24GiB (B, KB, MB, GB,"
         " TB, KiB, MiB, GiB, TiB), got \"24 potatoes\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *argv[] = {(char *)cases[i].option, (char *)cases[i].value};
        struct bt_config c;
        struct bt_error err = {0};
        cr_expect_eq(apply(&c, 2, argv, &err), BT_ERR_ARG);
        cr_expect_str_eq(err.msg, cases[i].message, "got %s", err.msg);
    }
}

Test(config_opts, set_takes_key_paths_and_option_names)
{
    struct bt_config c;
    bt_config_init(&c);
    cr_assert_eq(bt_config_apply_set("kv.block_tokens=8", &c, NULL), BT_OK);
    cr_expect_eq(c.kv_block_tokens, 8);
    cr_assert_eq(bt_config_apply_set("block=64", &c, NULL), BT_OK);
    cr_expect_eq(c.kv_block_tokens, 64);
    cr_assert_eq(bt_config_apply_set("spec=draft=tinyllama-1.1b,k=4,acceptance=0.7", &c, NULL),
                 BT_OK);
    cr_expect_eq(c.spec.k, 4);
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"kv.block_tokns=8",
         "--set: unknown key 'kv.block_tokns'; did you mean 'kv.block_tokens'?"},
        {"zzzzzz=1", "--set: unknown key 'zzzzzz'"},
        {"block", "--set: 'block' is not KEY=VALUE"},
        {"=1", "--set: '=1' is not KEY=VALUE"},
        {"tp=0", "--set tp: expected integer 1..64 GPUs, got \"0\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_error err = {0};
        cr_expect_eq(bt_config_apply_set(cases[i].text, &c, &err), BT_ERR_ARG);
        cr_expect_str_eq(err.msg, cases[i].message, "got %s", err.msg);
    }
}

Test(config_opts, document_is_nested_and_typed)
{
    struct bt_config c;
    bt_config_init(&c);
    cr_assert_eq(bt_config_apply_set("batching.max_seqs=auto", &c, NULL), BT_OK);
    json_t *doc = bt_config_json(&c);
    cr_expect_eq(json_integer_value(bt_out_at(doc, "kv.block_tokens")), 16);
    cr_expect_str_eq(json_string_value(bt_out_at(doc, "batching.max_seqs")), "auto");
    cr_expect(json_is_true(bt_out_at(doc, "prefix_cache")));
    cr_expect_eq(json_real_value(bt_out_at(doc, "mem_fraction")), 0.9);
    cr_expect_eq(json_integer_value(bt_out_at(doc, "host_memory")), 64LL << 30);
    cr_expect(json_is_null(bt_out_at(doc, "degrade.model")));
    cr_expect_str_eq(json_string_value(bt_out_at(doc, "spec")), "none");
    json_decref(doc);
}
