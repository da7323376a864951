#include "sim/config.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

Test(config, defaults_are_the_documented_ones)
{
    struct bt_config c;
    bt_config_init(&c);
    cr_expect_str_eq(c.stack, "berth");
    cr_expect_eq(c.tp, 1);
    cr_expect_eq(c.max_seqs, 256);
    cr_expect_eq(c.max_batched_tokens, 2048);
    cr_expect_eq(c.host_memory_bytes, INT64_C(64) << 30);
    cr_expect_eq(c.spec.kind, BT_SPEC_NONE);
    cr_expect_eq(c.route, BT_ROUTE_LEAST_LOADED);
    cr_expect_float_eq(c.mem_fraction, 0.9, 1e-12);
}

/* Every field's text form gives the same value back. */
Test(config, get_and_set_round_trip)
{
    static const struct {
        const char *path, *text;
    } rows[] = {
        {"model", "llama-2-13b"},
        {"replicas", "auto"},
        {"weights", "int4-g128"},
        {"kv.block_tokens", "8"},
        {"gpu_memory", "25769803776"},
        {"batching.max_seqs", "auto"},
        {"batching.window_ms", "2..10"},
        {"batching.window_ms", "2.5"},
        {"fused", "off"},
        {"policy.timeout_s", "12.5"},
        {"mem_fraction", "0.85"},
        {"spec", "none"},
        {"spec", "draft=tinyllama-1.1b,k=4,acceptance=0.72:0.7,adaptive=on,off-above=8"},
        {"spec", "self=2,k=4,temperature=0.7,text=docs"},
        {"spec", "self=8,k=2"},
        {"spec", "medusa=3,k=3"},
    };
    struct bt_config c;
    bt_config_init(&c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct bt_config_field *f = bt_config_find(rows[i].path);
        cr_assert_not_null(f, "%s", rows[i].path);
        struct bt_error err = {0};
        cr_assert_eq(bt_config_set(&c, f, rows[i].text, NULL, &err), BT_OK, "%s", err.msg);
        char text[512];
        bt_config_get(&c, f, text, sizeof text);
        cr_expect_str_eq(text, rows[i].text);
    }
}

Test(config, bad_values_name_the_key_the_value_and_what_is_allowed)
{
    static const struct {
        const char *path, *text, *message;
    } rows[] = {
        {"kv.block_tokens", "x", "kv.block_tokens: expected integer 1..1048576 tokens, got \"x\""},
        {"kv.block_tokens", "0", "kv.block_tokens: expected integer 1..1048576 tokens, got \"0\""},
        {"tp", "2.5", "tp: expected integer 1..64 GPUs, got \"2.5\""},
        {"mem_fraction", "1.2", "mem_fraction: expected number 0.05..1, got \"1.2\""},
        {"preempt", "drop", "preempt: expected recompute, swap or auto, got \"drop\""},
        {"fused", "maybe", "fused: expected on or off, got \"maybe\""},
        {"batching.max_seqs", "-1",
         "batching.max_seqs: expected integer 1..65536 sequences or auto, got \"-1\""},
        {"batching.window_ms", "10..2",
         "batching.window_ms: expected number or range 0..60000 ms (\"5\" or \"2..10\"), got "
         "\"10..2\""},
        {"gpu_memory", "24 gigs",
         "gpu_memory: expected a size such as 24GiB (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), "
         "got \"24 gigs\""},
        {"spec", "draft=a",
         "spec: k (draft tokens a verification, 1..32) is missing in "
         "\"draft=a\""},
        {"spec", "k=4", "spec: \"k=4\" says neither draft, self nor medusa"},
        {"spec", "draft=a,k=99", "spec: k: expected integer 1..32, got \"99\""},
        {"spec", "draft=a,k=2,acceptance=1.5",
         "spec: acceptance: expected up to 32 numbers 0..1 divided by \":\", got \"1.5\""},
        {"spec", "draft=a,k=2,fast=1",
         "spec: unknown key \"fast\"; allowed: draft, self, medusa, k, acceptance, temperature, "
         "text, adaptive, off-above"},
        {"spec", "self=2,k=4,temperature=-1",
         "spec: temperature: expected a number >= 0, got \"-1\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_config c;
        bt_config_init(&c);
        struct bt_error err = {0};
        cr_expect_eq(bt_config_set(&c, bt_config_find(rows[i].path), rows[i].text, NULL, &err),
                     BT_ERR_ARG);
        cr_expect_str_eq(err.msg, rows[i].message);
    }
}

Test(config, sizes_take_decimal_and_binary_units)
{
    int64_t v = 0;
    cr_expect_eq(bt_parse_size("24GiB", &v, NULL), BT_OK);
    cr_expect_eq(v, INT64_C(24) << 30);
    cr_expect_eq(bt_parse_size("1.5 GB", &v, NULL), BT_OK);
    cr_expect_eq(v, 1500000000);
    cr_expect_eq(bt_parse_size("4096", &v, NULL), BT_OK);
    cr_expect_eq(v, 4096);
    cr_expect_eq(bt_parse_size("-1", &v, NULL), BT_ERR_ARG);
    cr_expect_eq(bt_parse_size("1XB", &v, NULL), BT_ERR_ARG);
}

Test(config, values_that_exclude_each_other_are_refused)
{
    struct bt_config c;
    bt_config_init(&c);
    struct bt_error err = {0};
    cr_expect_eq(bt_config_check(&c, &err), BT_ERR_ARG);
    memcpy(c.model, "llama-2-7b", sizeof "llama-2-7b");
    memcpy(c.gpu, "h200", sizeof "h200");
    cr_expect_eq(bt_config_check(&c, NULL), BT_OK);
    c.max_batched_tokens = 100;
    err = (struct bt_error){0};
    cr_expect_eq(bt_config_check(&c, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, "batching.max_batched_tokens: expected at least batching.max_seqs "
                              "(256), got 100");
}
