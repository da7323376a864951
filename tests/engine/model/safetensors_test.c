#include "engine/core/rng.h"
#include "engine/model/safetensors.h"
#include "tests/engine/model/files.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ONE_F32 "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"

static struct bt_error err;

Test(dtype, halves_agree_with_arithmetic_for_every_bit_pattern)
{
    for (uint32_t h = 0; h < 65536; h++) {
        int exponent = (int)(h >> 10) & 31;
        double mag = exponent == 0 ? ldexp((double)(h & 1023), -24)
                                   : ldexp((double)(1024 + (h & 1023)), exponent - 25);
        float want = (float)((h & 0x8000) != 0 ? -mag : mag);
        float got = bt_f16_to_f32((uint16_t)h);
        if (exponent == 31) {
            cr_assert((h & 1023) == 0 ? isinf(got) : isnan(got), "%04x", h);
            cr_assert_eq(signbit(got) != 0, (h & 0x8000) != 0);
        } else {
            cr_assert_eq(bt_f32_to_bits(got), bt_f32_to_bits(want), "%04x", h);
        }
        if (!isnan(got)) {
            cr_assert_eq(bt_f32_to_f16(got), h, "%04x", h);
        }
        float wide = bt_bf16_to_f32((uint16_t)h);
        if (!isnan(wide)) {
            cr_assert_eq(bt_f32_to_bf16(wide), h, "%04x", h);
        }
    }
}

Test(dtype, narrowing_rounds_to_nearest_even)
{
    static const struct {
        float in;
        uint16_t f16;
        uint16_t bf16;
    } rows[] = {
        {1.0f + 0x1p-11f, 0x3c00, 0x3f80},   /* a tie goes to the even neighbour below */
        {1.0f + 0x3p-11f, 0x3c02, 0x3f80},   /* a tie goes to the even neighbour above */
        {1.0f + 0x1.1p-11f, 0x3c01, 0x3f80}, /* above the tie */
        {1.0f + 0x1p-8f, 0x3c04, 0x3f80},    /* a tie for BF16 */
        {1.0f + 0x3p-8f, 0x3c0c, 0x3f82},    /**/
        {65519.0f, 0x7bff, 0x4780},          /* the last that does not overflow F16 */
        {65520.0f, 0x7c00, 0x4780},          /**/
        {0x1p-24f, 0x0001, 0x3380},          /* the least subnormal */
        {0x1p-25f, 0x0000, 0x3300},          /* half of it: a tie, to zero */
        {0x1.8p-25f, 0x0001, 0x3340},        /**/
        {-0.0f, 0x8000, 0x8000},             /**/
        {0x1.ff8p-15f, 0x03ff, 0x3880},      /* the greatest subnormal */
        {0x1.ffcp-15f, 0x0400, 0x3880},      /* a tie, to the least normal */
        {3.4028235e38f, 0x7c00, 0x7f80},     /* FLT_MAX rounds to infinity in BF16 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(bt_f32_to_f16(rows[i].in), rows[i].f16, "%a: %04x", rows[i].in,
                     bt_f32_to_f16(rows[i].in));
        cr_expect_eq(bt_f32_to_bf16(rows[i].in), rows[i].bf16, "%a: %04x", rows[i].in,
                     bt_f32_to_bf16(rows[i].in));
    }
    cr_expect(isnan(bt_bf16_to_f32(bt_f32_to_bf16(bt_bits_to_f32(0x7f800001u)))));
    cr_expect(isnan(bt_f16_to_f32(bt_f32_to_f16(bt_bits_to_f32(0x7f800001u)))));
}

Test(dtype, e4m3_reaches_448_and_has_no_infinity)
{
    cr_expect_eq(bt_f8_e4m3_to_f32(0x7e), 448.0f);
    cr_expect_eq(bt_f8_e4m3_to_f32(0xfe), -448.0f);
    cr_expect(isnan(bt_f8_e4m3_to_f32(0x7f)));
    cr_expect_eq(bt_f8_e4m3_to_f32(0x01), 0x1p-9f);
    cr_expect_eq(bt_f8_e4m3_to_f32(0x08), 0x1p-6f);
    cr_expect_eq(bt_f8_e4m3_to_f32(0x38), 1.0f);
}

Test(safetensors, opens_shards_through_the_index)
{
    struct bt_safetensors *st;
    cr_assert_eq(bt_safetensors_open_dir(bt_test_model("berth-12m"), &st, &err), BT_OK, "%s",
                 err.msg);
    cr_expect_eq(bt_safetensors_count(st), 56);
    const struct bt_st_tensor *t = bt_safetensors_find(st, "model.layers.5.mlp.down_proj.weight");
    cr_assert_not_null(t);
    const int64_t shape[] = {384, 1024};
    cr_expect_eq(bt_st_tensor_expect(t, 2, shape, &err), BT_OK);
    cr_expect_eq(t->dtype, BT_DTYPE_BF16);
    cr_expect_null(bt_safetensors_find(st, "lm_head.weight"));
    float *norm = malloc(384 * sizeof *norm);
    t = bt_safetensors_find(st, "model.norm.weight");
    cr_assert_eq(bt_safetensors_read_f32(st, t, norm, &err), BT_OK);
    double sum = 0;
    for (int i = 0; i < 384; i++) {
        sum += norm[i];
    }
    cr_expect(sum > 0 && isfinite(sum));
    free(norm);
    bt_safetensors_close(st);
}

Test(safetensors, names_both_shapes_when_they_differ)
{
    struct bt_safetensors *st;
    const char *path = bt_test_write_st("a.safetensors", ONE_F32, 8);
    cr_assert_eq(bt_safetensors_open(path, &st, &err), BT_OK, "%s", err.msg);
    const int64_t shape[] = {2, 1};
    cr_expect_eq(bt_st_tensor_expect(bt_safetensors_at(st, 0), 2, shape, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "a: shape [2], expected [2, 1]"), "%s", err.msg);
    bt_safetensors_close(st);
}

Test(safetensors, accepts_scalars_empty_tensors_and_padding)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"e\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}    ";
    struct bt_safetensors *st;
    cr_assert_eq(bt_safetensors_open(bt_test_write_st("ok.safetensors", header, 11), &st, &err),
                 BT_OK, "%s", err.msg);
    cr_expect_eq(bt_safetensors_count(st), 3);
    cr_expect_eq(bt_safetensors_find(st, "s")->n_elements, 1);
    cr_expect_eq(bt_safetensors_find(st, "e")->n_bytes, 0);
    cr_expect_str_eq(bt_safetensors_metadata(st, "format"), "pt");
    cr_expect_null(bt_safetensors_metadata(st, "other"));
    bt_safetensors_close(st);
}

static const struct {
    const char *name;
    const char *header;
    size_t n_data;
    const char *message; /* part of the error */
} BAD[] = {
    {"not JSON", "{\"a\":", 0, "header: byte"},
    {"not an object", "[]", 0, "expected an object, got an array"},
    {"entry not an object", "{\"a\":3}", 0, "a: expected an object, got an integer"},
    {"unknown dtype", "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8,
     "a: dtype F64: expected F32"},
    {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "a: dtype nothing"},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "a: shape"},
    {"unknown key", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
     "a: unknown key \"x\""},
    {"negative dimension", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
     "shape[0]: expected an integer >= 0"},
    {"real dimension", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8,
     "shape[0]"},
    {"too many dimensions",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "9 dimensions, at most 8"},
    {"elements overflow",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
     "number of elements overflows"},
    {"bytes overflow",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
     "number of bytes overflows"},
    {"integer too big",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0,
     "too big integer"},
    {"offsets descend", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
     "not an ascending range"},
    {"offsets negative", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8,
     "not an ascending range"},
    {"one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8,
     "expected two integers"},
    {"shape and bytes differ", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}",
     8, "8 bytes, but F32 [3] takes 12"},
    {"truncated data", ONE_F32, 7, "a: data_offsets [0, 8): the file is truncated, it holds 7"},
    {"bytes left over", ONE_F32, 9, "1 bytes after the last tensor"},
    {"overlap",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
     12, "b: data_offsets start at 4 inside a, which ends at 8"},
    {"hole",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}",
     16, "bytes from 8 on belong to no tensor"},
    {"hole at the start", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
     "bytes from 0 on belong to no tensor"},
    {"duplicate name",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "duplicate object key"},
    {"metadata not text", "{\"__metadata__\":{\"n\":1}}", 0, "__metadata__.n: expected a string"},
};

Test(safetensors, refuses_malformed_headers)
{
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct bt_safetensors *st = NULL;
        bt_error_clear(&err);
        const char *path = bt_test_write_st("bad.safetensors", BAD[i].header, BAD[i].n_data);
        cr_expect_eq(bt_safetensors_open(path, &st, &err), BT_ERR_INPUT, "%s", BAD[i].name);
        cr_expect_not_null(strstr(err.msg, BAD[i].message), "%s: %s", BAD[i].name, err.msg);
        cr_expect_not_null(strstr(err.msg, "bad.safetensors"), "%s: %s", BAD[i].name, err.msg);
        cr_expect_null(st);
    }
}

Test(safetensors, refuses_files_too_short_and_headers_too_long)
{
    struct bt_safetensors *st;
    cr_expect_eq(bt_safetensors_open(bt_test_write("s", "1234567", 7), &st, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "too short"), "%s", err.msg);
    bt_error_clear(&err);
    static const unsigned char long_header[] = {0x01, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'};
    cr_expect_eq(
        bt_safetensors_open(bt_test_write("s", long_header, sizeof long_header), &st, &err),
        BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "header of 100000001 bytes"), "%s", err.msg);
    bt_error_clear(&err);
    static const unsigned char cut[] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    cr_expect_eq(bt_safetensors_open(bt_test_write("s", cut, sizeof cut), &st, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "truncated at 10 bytes"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_safetensors_open("/nonexistent/x", &st, &err), BT_ERR_IO);
    bt_error_clear(&err);
    cr_expect_eq(bt_safetensors_open(bt_test_dir(), &st, &err), BT_ERR_IO);
    bt_error_clear(&err);
    cr_expect_eq(bt_safetensors_open_dir(bt_test_dir(), &st, &err), BT_ERR_IO);
    cr_expect_not_null(strstr(err.msg, "neither model.safetensors nor"), "%s", err.msg);
}

static const struct {
    const char *name;
    const char *index;
    const char *message;
} BAD_INDEX[] = {
    {"missing shard", "{\"weight_map\":{\"a\":\"p.safetensors\",\"z\":\"gone.safetensors\"}}",
     "gone.safetensors, which is missing"},
    {"tensor not in shard", "{\"weight_map\":{\"a\":\"p.safetensors\",\"z\":\"p.safetensors\"}}",
     "weight_map.z: p.safetensors has no such tensor"},
    {"tensor in the other shard",
     "{\"weight_map\":{\"a\":\"q.safetensors\",\"b\":\"q.safetensors\",\"c\":\"p.safetensors\"}}",
     "has no such tensor"},
    {"tensor in two shards", "{\"weight_map\":{\"a\":\"p.safetensors\",\"a2\":\"r.safetensors\"}}",
     "a: also in"},
    {"path leaves the folder", "{\"weight_map\":{\"a\":\"../p.safetensors\"}}",
     "weight_map.a: expected a file name, got ../p.safetensors"},
    {"not text", "{\"weight_map\":{\"a\":1}}", "expected a file name, got an integer"},
    {"empty map", "{\"weight_map\":{}}", "expected an object with tensors"},
    {"no map", "{}", "weight_map: expected an object with tensors, got nothing"},
    {"not JSON", "{\"weight_map\"", "index.json:1:"},
};

Test(safetensors, refuses_indexes_that_do_not_match_the_shards)
{
    bt_test_write_st("p.safetensors", ONE_F32, 8);
    bt_test_write_st("q.safetensors",
                     "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    bt_test_write_st("r.safetensors", ONE_F32, 8);
    for (size_t i = 0; i < sizeof BAD_INDEX / sizeof *BAD_INDEX; i++) {
        struct bt_safetensors *st = NULL;
        bt_error_clear(&err);
        bt_test_write("model.safetensors.index.json", BAD_INDEX[i].index,
                      strlen(BAD_INDEX[i].index));
        cr_expect_eq(bt_safetensors_open_dir(bt_test_dir(), &st, &err), BT_ERR_INPUT, "%s",
                     BAD_INDEX[i].name);
        cr_expect_not_null(strstr(err.msg, BAD_INDEX[i].message), "%s: %s", BAD_INDEX[i].name,
                           err.msg);
    }
}

/* Whatever the bytes say, opening either fails with a message or yields tensors that can be read.
 */
Test(safetensors, survives_mutated_headers)
{
    static const char base[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                               "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
                               "\"c\":{\"dtype\":\"I8\",\"shape\":[5,1],\"data_offsets\":[32,37]}}";
    static const char alphabet[] = "0123456789[]{},:\"-.eFIBU abc\\n\x80\xff";
    struct bt_rng rng;
    int opened = 0;
    bt_rng_init(&rng, 11, "mutate", 0);
    for (int round = 0; round < 1000; round++) {
        unsigned char file[sizeof base + 8 + 37 - 1] = {0};
        file[0] = (unsigned char)(sizeof base - 1);
        memcpy(file + 8, base, sizeof base - 1);
        size_t n = sizeof file;
        int64_t n_changes = (int64_t)bt_rng_below(&rng, 4);
        for (int64_t c = 0; c < n_changes; c++) {
            size_t at = (size_t)bt_rng_below(&rng, 8 + sizeof base - 1);
            file[at] = at < 8 ? (unsigned char)bt_rng_u64(&rng)
                              : (unsigned char)alphabet[bt_rng_below(&rng, sizeof alphabet - 1)];
        }
        if (bt_rng_below(&rng, 8) == 0) {
            n = (size_t)bt_rng_below(&rng, n);
        }
        struct bt_safetensors *st;
        bt_error_clear(&err);
        enum bt_code code = bt_safetensors_open(bt_test_write("m", file, n), &st, &err);
        if (code != BT_OK) {
            cr_assert(code == BT_ERR_INPUT && err.msg[0] != '\0', "round %d", round);
            continue;
        }
        opened++;
        for (int32_t i = 0; i < bt_safetensors_count(st); i++) {
            const struct bt_st_tensor *t = bt_safetensors_at(st, i);
            float values[64];
            cr_assert(t->n_elements <= 37, "round %d", round);
            cr_assert_eq(bt_safetensors_read_f32(st, t, values, &err), BT_OK, "round %d", round);
        }
        bt_safetensors_close(st);
    }
    cr_expect(opened > 50 && opened < 950, "%d", opened);
}

Test(safetensors, what_is_written_reads_back)
{
    static const float a[] = {1.5f, -2.0f, 0.25f};
    static const int8_t b[] = {1, -2, 3, -128};
    static const int64_t c[] = {384, 1024};
    const struct bt_st_entry entries[] = {
        {"z.bytes", BT_DTYPE_I8, 2, {2, 2}, b},
        {"a", BT_DTYPE_F32, 1, {3}, a},
        {"shape", BT_DTYPE_I64, 1, {2}, c},
        {"empty", BT_DTYPE_F16, 2, {0, 4}, NULL},
    };
    const char *path = bt_test_path(bt_test_dir(), "model.safetensors");
    cr_assert_eq(bt_safetensors_write(path, entries, 4, &err), BT_OK, "%s", err.msg);
    struct bt_safetensors *st;
    cr_assert_eq(bt_safetensors_open_dir(bt_test_dir(), &st, &err), BT_OK, "%s", err.msg);
    float values[4];
    const struct bt_st_tensor *t = bt_safetensors_find(st, "a");
    cr_assert_eq(t->offset_bytes % 4, 0);
    cr_assert_eq(bt_safetensors_read_f32(st, t, values, &err), BT_OK);
    cr_expect_arr_eq(values, a, sizeof a);
    int8_t bytes[4];
    cr_assert_eq(bt_safetensors_read(st, bt_safetensors_find(st, "z.bytes"), bytes, &err), BT_OK);
    cr_expect_arr_eq(bytes, b, sizeof b);
    cr_expect_eq(bt_safetensors_find(st, "shape")->offset_bytes % 8, 0);
    bt_safetensors_close(st);
    const struct bt_st_entry twice[] = {{"a", BT_DTYPE_F32, 1, {3}, a},
                                        {"a", BT_DTYPE_F32, 1, {3}, a}};
    cr_expect_eq(bt_safetensors_write(path, twice, 2, &err), BT_ERR_ARG);
    bt_error_clear(&err);
    cr_expect_eq(bt_safetensors_write("/nonexistent/x", entries, 4, &err), BT_ERR_IO);
}
