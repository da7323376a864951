/* Quantised checkpoints: the test packs known integers, zero points, scales and group orders as
 * each format describes them, and what is loaded must be (q - zero) * scale to the bit. */
#include "engine/model/model.h"
#include "engine/model/model_write.h"
#include "tests/engine/model/files.h"
#include "tests/engine/model/toy.h"

#include <criterion/criterion.h>
#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bt_error err;

enum format { GPTQ, AWQ, CT };

enum order {
    ORDER_ABSENT,  /* no g_idx tensor */
    ORDER_TRIVIAL, /* g_idx[k] = k / group */
    ORDER_ACT,     /* a random order: g_idx is not monotone */
    ORDER_UNSET,   /* -1 everywhere */
};

struct variant {
    const char *name;
    const char *config;
    enum format format;
    int32_t group;
    int32_t add;      /* what the file's zero points lack: 1 in GPTQ version 1 */
    bool symmetric;   /* zero points are all 8 */
    bool zero_tensor; /* compressed-tensors: weight_zero_point is there */
    enum order order;
    enum bt_dtype scale;
    const char *note; /* part of the note that loading leaves; NULL: none */
};

/* What the matrices are: unsigned q and zero in 0..15, as the descriptions have them. */
struct truth {
    int32_t n_out;
    int32_t n_in;
    int32_t group;
    int32_t n_groups;
    int32_t *q;        /* [K, N] */
    int32_t *zero;     /* [G, N] */
    float *scale;      /* [G, N], exact in its type */
    int32_t *group_of; /* [K] */
};

static void make_order(struct toy *t, enum order order, struct truth *w)
{
    for (int32_t k = 0; k < w->n_in; k++) {
        w->group_of[k] = k / w->group;
    }
    for (int32_t k = w->n_in - 1; k > 0 && order == ORDER_ACT; k--) {
        int32_t other = (int32_t)bt_rng_below(&t->rng, (uint64_t)k + 1);
        int32_t swap = w->group_of[k];
        w->group_of[k] = w->group_of[other];
        w->group_of[other] = swap;
    }
}

static struct truth make_truth(struct toy *t, const struct variant *v, int32_t n_out, int32_t n_in)
{
    struct truth w = {.n_out = n_out, .n_in = n_in, .group = v->group};
    w.n_groups = (n_in + v->group - 1) / v->group;
    int32_t n_scales = w.n_groups * n_out;
    w.q = toy_take(t, (size_t)n_in * (size_t)n_out, sizeof *w.q);
    w.zero = toy_take(t, (size_t)n_scales, sizeof *w.zero);
    w.scale = toy_take(t, (size_t)n_scales, sizeof *w.scale);
    w.group_of = toy_take(t, (size_t)n_in, sizeof *w.group_of);
    for (int32_t i = 0; i < n_in * n_out; i++) {
        w.q[i] = (int32_t)bt_rng_below(&t->rng, 16);
    }
    for (int32_t i = 0; i < n_scales; i++) {
        float s = (float)(0.001 + 0.01 * bt_rng_uniform(&t->rng));
        w.zero[i] = v->symmetric ? 8 : 1 + (int32_t)bt_rng_below(&t->rng, 15);
        w.scale[i] = v->scale == BT_DTYPE_BF16  ? bt_bf16_to_f32(bt_f32_to_bf16(s))
                     : v->scale == BT_DTYPE_F16 ? bt_f16_to_f32(bt_f32_to_f16(s))
                                                : s;
    }
    make_order(t, v->order, &w);
    return w;
}

static void add_named(struct toy *t, const char *base, const char *suffix, enum bt_dtype dtype,
                      int64_t rows, int64_t cols, const void *bytes)
{
    char name[192];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    toy_add(t, name, dtype, rows, cols, bytes);
}

/* Scales [G, N], or [N, G] for compressed-tensors. */
static void add_scales(struct toy *t, const struct variant *v, const char *base,
                       const struct truth *w)
{
    bool by_row = v->format == CT;
    float *flat = toy_take(t, (size_t)w->n_groups * (size_t)w->n_out, sizeof *flat);
    char *bytes = toy_take(t, (size_t)w->n_groups * (size_t)w->n_out, sizeof *flat);
    for (int32_t g = 0; g < w->n_groups; g++) {
        for (int32_t n = 0; n < w->n_out; n++) {
            flat[by_row ? n * w->n_groups + g : g * w->n_out + n] = w->scale[g * w->n_out + n];
        }
    }
    bt_dtype_from_f32(v->scale, flat, bytes, (size_t)(w->n_groups * w->n_out));
    add_named(t, base, by_row ? ".weight_scale" : ".scales", v->scale,
              by_row ? w->n_out : w->n_groups, by_row ? w->n_groups : w->n_out, bytes);
}

static void add_order(struct toy *t, const struct variant *v, const char *base,
                      const struct truth *w)
{
    int32_t *group_of = toy_take(t, (size_t)w->n_in, sizeof *group_of);
    for (int32_t k = 0; k < w->n_in; k++) {
        group_of[k] = v->order == ORDER_UNSET ? -1 : w->group_of[k];
    }
    if (v->order != ORDER_ABSENT) {
        add_named(t, base, v->format == CT ? ".weight_g_idx" : ".g_idx", BT_DTYPE_I32, w->n_in, 0,
                  group_of);
    }
}

static void pack_gptq(struct toy *t, const struct variant *v, const char *base,
                      const struct truth *w)
{
    int32_t n8 = w->n_out / 8;
    uint32_t *q = toy_take(t, (size_t)w->n_in / 8 * (size_t)w->n_out, sizeof *q);
    uint32_t *z = toy_take(t, (size_t)w->n_groups * (size_t)n8, sizeof *z);
    for (int32_t k = 0; k < w->n_in; k++) {
        for (int32_t n = 0; n < w->n_out; n++) {
            q[k / 8 * w->n_out + n] |= (uint32_t)w->q[k * w->n_out + n] << 4 * (k % 8);
        }
    }
    for (int32_t g = 0; g < w->n_groups; g++) {
        for (int32_t n = 0; n < w->n_out; n++) {
            z[g * n8 + n / 8] |= (uint32_t)(w->zero[g * w->n_out + n] - v->add) << 4 * (n % 8);
        }
    }
    add_named(t, base, ".qweight", BT_DTYPE_I32, w->n_in / 8, w->n_out, q);
    add_named(t, base, ".qzeros", BT_DTYPE_I32, w->n_groups, n8, z);
}

static void pack_awq(struct toy *t, const char *base, const struct truth *w)
{
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    int32_t n8 = w->n_out / 8;
    uint32_t *q = toy_take(t, (size_t)w->n_in * (size_t)n8, sizeof *q);
    uint32_t *z = toy_take(t, (size_t)w->n_groups * (size_t)n8, sizeof *z);
    for (int32_t c = 0; c < n8; c++) {
        for (int i = 0; i < 8; i++) {
            int32_t n = 8 * c + order[i];
            for (int32_t k = 0; k < w->n_in; k++) {
                q[k * n8 + c] |= (uint32_t)w->q[k * w->n_out + n] << 4 * i;
            }
            for (int32_t g = 0; g < w->n_groups; g++) {
                z[g * n8 + c] |= (uint32_t)w->zero[g * w->n_out + n] << 4 * i;
            }
        }
    }
    add_named(t, base, ".qweight", BT_DTYPE_I32, w->n_in, n8, q);
    add_named(t, base, ".qzeros", BT_DTYPE_I32, w->n_groups, n8, z);
}

static void pack_ct(struct toy *t, const struct variant *v, const char *base, const struct truth *w)
{
    int32_t k8 = w->n_in / 8;
    uint32_t *q = toy_take(t, (size_t)w->n_out * (size_t)k8, sizeof *q);
    uint32_t *z = toy_take(t, (size_t)w->n_out / 8 * (size_t)w->n_groups, sizeof *z);
    int64_t *shape = toy_take(t, 2, sizeof *shape);
    shape[0] = w->n_out;
    shape[1] = w->n_in;
    for (int32_t n = 0; n < w->n_out; n++) {
        for (int32_t k = 0; k < w->n_in; k++) {
            q[n * k8 + k / 8] |= (uint32_t)w->q[k * w->n_out + n] << 4 * (k % 8);
        }
        for (int32_t g = 0; g < w->n_groups; g++) {
            z[n / 8 * w->n_groups + g] |= (uint32_t)w->zero[g * w->n_out + n] << 4 * (n % 8);
        }
    }
    add_named(t, base, ".weight_packed", BT_DTYPE_I32, w->n_out, k8, q);
    add_named(t, base, ".weight_shape", BT_DTYPE_I64, 2, 0, shape);
    if (v->zero_tensor) {
        add_named(t, base, ".weight_zero_point", BT_DTYPE_I32, w->n_out / 8, w->n_groups, z);
    }
}

static void pack(struct toy *t, const struct variant *v, struct truth truths[BT_LINEARS])
{
    struct bt_arch a = toy_arch();
    toy_add_frame(t);
    for (int i = 0; i < BT_LINEARS; i++) {
        enum bt_linear_id id = (enum bt_linear_id)i;
        char base[128];
        bt_linear_path(0, id, base, sizeof base);
        truths[i] = make_truth(t, v, bt_linear_n_out(&a, id), bt_linear_n_in(&a, id));
        if (v->format == GPTQ) {
            pack_gptq(t, v, base, &truths[i]);
        } else if (v->format == AWQ) {
            pack_awq(t, base, &truths[i]);
        } else {
            pack_ct(t, v, base, &truths[i]);
        }
        add_scales(t, v, base, &truths[i]);
        add_order(t, v, base, &truths[i]);
    }
}

static int32_t count_wrong(const struct bt_linear *l, const struct truth *w)
{
    int32_t wrong = 0;
    float *row = malloc((size_t)w->n_in * sizeof *row);
    for (int32_t n = 0; n < w->n_out; n++) {
        bt_linear_row_f32(l, n, row);
        for (int32_t k = 0; k < w->n_in; k++) {
            int32_t at = w->group_of[k] * w->n_out + n;
            float want = (float)(w->q[k * w->n_out + n] - w->zero[at]) * w->scale[at];
            wrong += row[k] != want;
        }
    }
    free(row);
    return wrong;
}

#define Q(text) ",\"quantization_config\":{" text "}"
#define GPTQ_CONFIG(group, sym, act, format)                                                       \
    Q("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":" #group ",\"sym\":" #sym               \
      ",\"desc_act\":" #act ",\"checkpoint_format\":\"" format "\"")
#define AWQ_CONFIG(group)                                                                          \
    Q("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":" #group                                 \
      ",\"zero_point\":true,\"version\":\"gemm\"")
#define CT_CONFIG(group, sym, order)                                                               \
    Q("\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":["         \
      "\"lm_head\"],\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{"        \
      "\"num_bits\":4,\"type\":\"int\",\"symmetric\":" #sym ",\"strategy\":\"group\","             \
      "\"group_size\":" #group ",\"actorder\":" order ",\"dynamic\":false}}}")

static const struct variant VARIANTS[] = {
    {"GPTQ v1 sym", GPTQ_CONFIG(32, true, false, "gptq"), GPTQ, 32, 1, true, true, ORDER_TRIVIAL,
     BT_DTYPE_F16, NULL},
    {"GPTQ v1 asym", GPTQ_CONFIG(32, false, false, "gptq"), GPTQ, 32, 1, false, true, ORDER_TRIVIAL,
     BT_DTYPE_F16, NULL},
    {"GPTQ v2 sym", GPTQ_CONFIG(32, true, false, "gptq_v2"), GPTQ, 32, 0, true, true, ORDER_TRIVIAL,
     BT_DTYPE_F16, NULL},
    {"GPTQ v2 asym", GPTQ_CONFIG(64, false, false, "gptq_v2"), GPTQ, 64, 0, false, true,
     ORDER_TRIVIAL, BT_DTYPE_F16, NULL},
    {"GPTQ v1 with act-order", GPTQ_CONFIG(32, true, true, "gptq"), GPTQ, 32, 1, true, true,
     ORDER_ACT, BT_DTYPE_F16, NULL},
    {"GPTQ v1 asym with act-order and a short group", GPTQ_CONFIG(64, false, true, "gptq"), GPTQ,
     64, 1, false, true, ORDER_ACT, BT_DTYPE_F16, NULL},
    {"GPTQ v2 asym with act-order", GPTQ_CONFIG(32, false, true, "gptq_v2"), GPTQ, 32, 0, false,
     true, ORDER_ACT, BT_DTYPE_BF16, NULL},
    {"GPTQ without g_idx", GPTQ_CONFIG(32, true, false, "gptq"), GPTQ, 32, 1, true, true,
     ORDER_ABSENT, BT_DTYPE_F16, NULL},
    {"GPTQ v2 labelled v1", GPTQ_CONFIG(32, true, false, "gptq"), GPTQ, 32, 0, true, true,
     ORDER_TRIVIAL, BT_DTYPE_F16, "labelled GPTQ version 1, but the zero points are version 2's"},
    {"GPTQ v1 labelled v2", GPTQ_CONFIG(32, true, true, "gptq_v2"), GPTQ, 32, 1, true, true,
     ORDER_ACT, BT_DTYPE_F16, "labelled GPTQ version 2, but the zero points are version 1's"},
    {"GPTQ v1 asym labelled sym", GPTQ_CONFIG(32, true, false, "gptq"), GPTQ, 32, 1, false, true,
     ORDER_TRIVIAL, BT_DTYPE_F16, "says sym, but has zero points"},
    {"AWQ", AWQ_CONFIG(32), AWQ, 32, 0, false, true, ORDER_ABSENT, BT_DTYPE_F16, NULL},
    {"AWQ with a short group", AWQ_CONFIG(64), AWQ, 64, 0, false, true, ORDER_ABSENT, BT_DTYPE_F16,
     NULL},
    {"compressed-tensors sym", CT_CONFIG(32, true, "null"), CT, 32, 0, true, false, ORDER_ABSENT,
     BT_DTYPE_F16, NULL},
    {"compressed-tensors sym, BF16 scales", CT_CONFIG(32, true, "\"weight\""), CT, 32, 0, true,
     false, ORDER_ABSENT, BT_DTYPE_BF16, NULL},
    {"compressed-tensors sym, F32 scales", CT_CONFIG(64, true, "null"), CT, 64, 0, true, false,
     ORDER_UNSET, BT_DTYPE_F32, NULL},
    {"compressed-tensors asym", CT_CONFIG(32, false, "null"), CT, 32, 0, false, true, ORDER_ABSENT,
     BT_DTYPE_F16, NULL},
    {"compressed-tensors asym with g_idx", CT_CONFIG(32, false, "\"group\""), CT, 32, 0, false,
     true, ORDER_ACT, BT_DTYPE_F16, NULL},
    {"compressed-tensors sym with g_idx", CT_CONFIG(64, true, "\"group\""), CT, 64, 0, true, false,
     ORDER_ACT, BT_DTYPE_F16, NULL},
};

Test(qformat, every_layout_gives_its_numbers_to_the_bit)
{
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) {
        const struct variant *v = &VARIANTS[i];
        struct truth truths[BT_LINEARS];
        struct toy t;
        struct bt_model m;
        toy_init(&t, i + 1);
        pack(&t, v, truths);
        bt_error_clear(&err);
        cr_assert_eq(bt_model_load(&m, toy_write(&t, v->config), NULL, &err), BT_OK, "%s: %s",
                     v->name, err.msg);
        for (int id = 0; id < BT_LINEARS; id++) {
            const struct bt_linear *l = &m.layers[0].linear[id];
            cr_expect(l->quantised, "%s", v->name);
            cr_expect_eq(count_wrong(l, &truths[id]), 0, "%s: %s: %d wrong", v->name,
                         bt_linear_name((enum bt_linear_id)id), count_wrong(l, &truths[id]));
            cr_expect_eq(l->q.perm != NULL, v->order == ORDER_ACT && l->q.n_groups > 1, "%s",
                         v->name);
            cr_expect_eq(l->q.zero == NULL, v->symmetric, "%s", v->name);
        }
        cr_expect_eq(m.n_notes, v->note == NULL ? 0 : 1, "%s", v->name);
        if (v->note != NULL && m.n_notes == 1) {
            cr_expect_not_null(strstr(m.notes[0], v->note), "%s: %s", v->name, m.notes[0]);
        }
        bt_model_fini(&m);
        toy_fini(&t);
    }
}

/* Every variant written as compressed-tensors and read back is the same matrix. */
Test(qformat, what_is_written_reads_back_to_the_bit)
{
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) {
        const struct variant *v = &VARIANTS[i];
        struct truth truths[BT_LINEARS];
        struct toy t;
        struct bt_model m;
        struct bt_model again;
        char out[512];
        toy_init(&t, i + 1);
        pack(&t, v, truths);
        bt_error_clear(&err);
        cr_assert_eq(bt_model_load(&m, toy_write(&t, v->config), NULL, &err), BT_OK, "%s", err.msg);
        snprintf(out, sizeof out, "%s/out", bt_test_dir());
        cr_assert_eq(bt_model_write(&m, out, &err), BT_OK, "%s: %s", v->name, err.msg);
        cr_assert_eq(bt_model_load(&again, out, NULL, &err), BT_OK, "%s: %s", v->name, err.msg);
        for (int id = 0; id < BT_LINEARS; id++) {
            cr_expect_eq(count_wrong(&again.layers[0].linear[id], &truths[id]), 0, "%s", v->name);
        }
        cr_expect_eq(again.config.quant.layout, BT_QUANT_CT_PACKED);
        bt_model_fini(&m);
        bt_model_fini(&again);
        toy_fini(&t);
    }
}

/* Version 1 subtracted from whole words: a zero point of 0 borrows from its neighbour. */
Test(qformat, gptq_v1_zero_points_of_zero_borrow)
{
    struct variant v = VARIANTS[1];
    struct truth truths[BT_LINEARS];
    struct toy t;
    struct bt_model m;
    v.add = 0;
    toy_init(&t, 99);
    pack(&t, &v, truths);
    struct bt_st_entry *e = toy_find(&t, "model.layers.0.self_attn.q_proj.qzeros");
    uint32_t *words = (uint32_t *)(uintptr_t)e->bytes;
    for (int i = 0; i < 8; i++) { /* the first word has zero points 0, 3, 0, 0, 5, 15, 0, 1 */
        static const int32_t zeros[8] = {0, 3, 0, 0, 5, 15, 0, 1};
        truths[BT_LINEAR_Q].zero[i] = zeros[i];
        words[0] = i == 0 ? 0 : words[0];
        words[0] |= (uint32_t)zeros[i] << 4 * i;
    }
    for (int i = 0; i < BT_LINEARS; i++) {
        char base[128];
        char name[160];
        snprintf(name, sizeof name, "%s.qzeros",
                 bt_linear_path(0, (enum bt_linear_id)i, base, sizeof base));
        e = toy_find(&t, name);
        words = (uint32_t *)(uintptr_t)e->bytes;
        for (int64_t k = 0; k < e->shape[0] * e->shape[1]; k++) {
            words[k] -= 0x11111111u;
        }
    }
    cr_assert_eq(bt_model_load(&m, toy_write(&t, v.config), NULL, &err), BT_OK, "%s", err.msg);
    for (int id = 0; id < BT_LINEARS; id++) {
        cr_expect_eq(count_wrong(&m.layers[0].linear[id], &truths[id]), 0);
    }
    bt_model_fini(&m);
    toy_fini(&t);
}

static uint64_t fnv(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ b[i]) * 0x100000001b3u;
    }
    return h;
}

/* dequantised.json was written by dequantise.py, which shares no code with the reader. */
Test(qformat, checkpoints_of_others_dequantise_as_the_independent_reader_says)
{
    json_error_t je;
    json_t *golden =
        json_load_file(BT_TEST_SOURCE_DIR "/tests/engine/model/dequantised.json", 0, &je);
    cr_assert_not_null(golden, "%s", je.text);
    const char *dir;
    json_t *modules;
    int checked = 0;
    json_object_foreach(golden, dir, modules)
    {
        struct bt_model m;
        char path[128];
        snprintf(path, sizeof path, "quantised/%s", dir);
        cr_assert_eq(bt_model_load(&m, bt_test_model(path), NULL, &err), BT_OK, "%s", err.msg);
        cr_expect_eq(m.n_notes, 0);
        for (int32_t layer = 0; layer < m.config.arch.n_layers; layer++) {
            for (int id = 0; id < BT_LINEARS; id++) {
                const struct bt_linear *l = &m.layers[layer].linear[id];
                char base[128];
                bt_linear_path(layer, (enum bt_linear_id)id, base, sizeof base);
                float *row = malloc((size_t)l->n_in * sizeof *row);
                uint64_t h = 0xcbf29ce484222325u;
                char text[32];
                for (int32_t n = 0; n < l->n_out; n++) {
                    bt_linear_row_f32(l, n, row);
                    h = fnv(h, row, (size_t)l->n_in * sizeof *row);
                }
                snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
                const json_t *want = json_array_get(json_object_get(modules, base), 0);
                cr_expect_str_eq(text, json_string_value(want), "%s: %s", dir, base);
                checked++;
                free(row);
            }
        }
        bt_model_fini(&m);
    }
    cr_expect_eq(checked, 5 * 14);
    json_decref(golden);
}

Test(qformat, int8_checkpoints_carry_activation_schemes)
{
    struct bt_model m;
    cr_assert_eq(bt_model_load(&m, bt_test_model("quantised/tiny-ct-w8a8"), NULL, &err), BT_OK);
    const struct bt_linear *l = &m.layers[1].linear[BT_LINEAR_DOWN];
    cr_expect_eq(l->act, BT_ACT_INT8_DYNAMIC);
    cr_expect_eq(l->q.bits, 8);
    cr_expect_eq(l->q.n_groups, 1);
    cr_expect_eq(l->q.group, 256);
    cr_expect(!m.lm_head.quantised);
    bt_model_fini(&m);
}

struct broken {
    const char *name;
    const char *config;
    size_t variant;      /* what is packed before it is broken */
    const char *remove;  /* a tensor taken out; NULL: none */
    const char *reshape; /* a tensor whose first dimension loses one row; NULL: none */
    const char *retype;  /* a tensor labelled F32 */
    const char *message;
};

enum { V_GPTQ = 0, V_AWQ = 11, V_CT = 13, V_CT_ASYM = 16 };

#define QP "model.layers.0.self_attn.q_proj"

static const struct broken BROKEN[] = {
    {"no scales", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, QP ".scales", NULL, NULL,
     "tensor " QP ".scales is missing"},
    {"no qzeros", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, QP ".qzeros", NULL, NULL,
     "tensor " QP ".qzeros is missing"},
    {"no qweight", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, QP ".qweight", NULL, NULL,
     "tensor " QP ".weight is missing"},
    {"qweight cut", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, NULL, QP ".qweight", NULL,
     QP ".qweight: shape [7, 64], expected [8, 64]"},
    {"qzeros cut", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, NULL, QP ".qzeros", NULL,
     QP ".qzeros: shape [1, 8], expected [2, 8]"},
    {"scales cut", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, NULL, QP ".scales", NULL,
     QP ".scales: shape [1, 64], expected [2, 64]"},
    {"g_idx cut", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, NULL, QP ".g_idx", NULL,
     QP ".g_idx: shape [63], expected [64]"},
    {"qweight of another type", GPTQ_CONFIG(32, true, false, "gptq"), V_GPTQ, NULL, NULL,
     QP ".qweight", QP ".qweight: dtype F32, expected I32"},
    {"another group size than the file's", GPTQ_CONFIG(64, true, false, "gptq"), V_GPTQ, NULL, NULL,
     NULL, ".scales: shape [2, 64], expected [1, 64]"},
    {"group size not supported", GPTQ_CONFIG(48, true, false, "gptq"), V_GPTQ, NULL, NULL, NULL,
     "group_size"},
    {"AWQ read as GPTQ", GPTQ_CONFIG(32, true, false, "gptq"), V_AWQ, NULL, NULL, NULL,
     ".qweight: shape [64, 8], expected [8, 64]"},
    {"AWQ qweight cut", AWQ_CONFIG(32), V_AWQ, NULL, QP ".qweight", NULL,
     QP ".qweight: shape [63, 8], expected [64, 8]"},
    {"AWQ without qzeros", AWQ_CONFIG(32), V_AWQ, QP ".qzeros", NULL, NULL,
     "tensor " QP ".qzeros is missing"},
    {"packed cut", CT_CONFIG(32, true, "null"), V_CT, NULL, QP ".weight_packed", NULL,
     QP ".weight_packed: shape [63, 8], expected [64, 8]"},
    {"no weight_scale", CT_CONFIG(32, true, "null"), V_CT, QP ".weight_scale", NULL, NULL,
     "tensor " QP ".weight_scale is missing"},
    {"zero points missing", CT_CONFIG(32, false, "null"), V_CT, NULL, NULL, NULL,
     ".weight_zero_point: missing, though not symmetric"},
    {"zero points cut", CT_CONFIG(32, false, "null"), V_CT_ASYM, NULL, QP ".weight_zero_point",
     NULL, QP ".weight_zero_point: shape [7, 2], expected [8, 2]"},
    {"quantised tensors without a config", "", V_CT, NULL, NULL, NULL,
     "tensor " QP ".weight is missing"},
    {"order of activations without g_idx", GPTQ_CONFIG(32, true, true, "gptq"), V_GPTQ, QP ".g_idx",
     NULL, NULL, QP ".g_idx: missing or not set, though quantization_config has"},
    {"order of groups without weight_g_idx", CT_CONFIG(32, true, "\"group\""), V_CT, NULL, NULL,
     NULL, QP ".weight_g_idx: missing or not set, though quantization_config has"},
    {"unknown method", Q("\"quant_method\":\"aqlm\",\"bits\":2"), V_CT, NULL, NULL, NULL,
     "\"aqlm\" is not supported"},
};

Test(qformat, refuses_broken_checkpoints)
{
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) {
        const struct broken *b = &BROKEN[i];
        struct truth truths[BT_LINEARS];
        struct toy t;
        struct bt_model m;
        toy_init(&t, 3);
        pack(&t, &VARIANTS[b->variant], truths);
        if (b->remove != NULL) {
            toy_remove(&t, b->remove);
        }
        if (b->reshape != NULL) {
            toy_find(&t, b->reshape)->shape[0]--;
        }
        if (b->retype != NULL) {
            toy_find(&t, b->retype)->dtype = BT_DTYPE_F32;
        }
        bt_error_clear(&err);
        cr_expect_eq(bt_model_load(&m, toy_write(&t, b->config), NULL, &err), BT_ERR_INPUT, "%s",
                     b->name);
        cr_expect_not_null(strstr(err.msg, b->message), "%s: %s", b->name, err.msg);
        cr_expect_null(m.layers);
        toy_fini(&t);
    }
}

static const struct {
    const char *name;
    int32_t first; /* g_idx[0] becomes this */
    const char *message;
} BAD_ORDER[] = {
    {"group out of range", 2, "q_proj.g_idx[0]: group 2 is outside 0..1"},
    {"negative group", -1, "q_proj.g_idx[0]: group -1 is outside 0..1"},
    {"uneven groups", 1, "q_proj.g_idx: group 0 has 31 inputs, expected 32"},
};

Test(qformat, refuses_group_orders_that_are_none)
{
    for (size_t i = 0; i < sizeof BAD_ORDER / sizeof *BAD_ORDER; i++) {
        struct truth truths[BT_LINEARS];
        struct toy t;
        struct bt_model m;
        toy_init(&t, 3);
        pack(&t, &VARIANTS[0], truths);
        int32_t *group_of = (int32_t *)(uintptr_t)toy_find(&t, QP ".g_idx")->bytes;
        group_of[0] = BAD_ORDER[i].first;
        bt_error_clear(&err);
        cr_expect_eq(bt_model_load(&m, toy_write(&t, VARIANTS[0].config), NULL, &err),
                     BT_ERR_INPUT);
        cr_expect_not_null(strstr(err.msg, BAD_ORDER[i].message), "%s: %s", BAD_ORDER[i].name,
                           err.msg);
        toy_fini(&t);
    }
}

Test(qformat, refuses_scales_that_are_no_numbers)
{
    struct truth truths[BT_LINEARS];
    struct toy t;
    struct bt_model m;
    toy_init(&t, 3);
    pack(&t, &VARIANTS[0], truths);
    uint16_t *scales = (uint16_t *)(uintptr_t)toy_find(&t, QP ".scales")->bytes;
    scales[70] = 0x7e00;
    cr_expect_eq(bt_model_load(&m, toy_write(&t, VARIANTS[0].config), NULL, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "scale of row 6, group 1 is not finite"), "%s", err.msg);
    toy_fini(&t);
}
