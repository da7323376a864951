#include "engine/model/model.h"
#include "engine/model/model_write.h"
#include "tests/engine/model/files.h"
#include "tests/engine/model/toy.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bt_error err;

static void load(struct bt_model *m, const char *dir, const struct bt_model_opts *opts)
{
    bt_error_clear(&err);
    cr_assert_eq(bt_model_load(m, dir, opts, &err), BT_OK, "%s", err.msg);
}

Test(model, loads_shards_with_tied_embeddings_and_generation_config)
{
    struct bt_model m;
    load(&m, bt_test_model("berth-12m"), NULL);
    cr_expect_eq(m.config.arch.n_layers, 6);
    cr_expect(m.head_is_embed);
    cr_expect_eq(m.lm_head.w.p, m.embed.w.p);
    cr_expect_eq(m.embed.w.dtype, BT_DTYPE_BF16);
    cr_expect_eq(m.config.n_eos, 1);
    cr_expect_eq(m.config.eos_ids[0], 0);
    cr_expect_eq(m.n_notes, 0);
    struct bt_weight_bytes want = bt_arch_weight_bytes(&m.config.arch, NULL);
    cr_expect_eq(bt_model_weight_bytes(&m), want.total);
    cr_expect_lt((double)m.arena.used_bytes, 1.001 * (double)want.total);
    bt_model_fini(&m);
    cr_expect_null(m.layers);
}

Test(model, loads_the_other_architectures)
{
    static const struct {
        const char *dir;
        bool qkv_bias;
        bool qk_norm;
        bool tied;
    } rows[] = {
        {"tiny-llama-mha", false, false, false},   {"tiny-llama3-rope", false, false, false},
        {"tiny-mistral-swa", false, false, false}, {"tiny-qwen2", true, false, true},
        {"tiny-qwen3", false, true, false},        {"berth-1m", false, false, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_model m;
        load(&m, bt_test_model(rows[i].dir), NULL);
        const struct bt_layer *layer = &m.layers[m.config.arch.n_layers - 1];
        cr_expect_eq(layer->linear[BT_LINEAR_K].bias.p != NULL, rows[i].qkv_bias, "%s",
                     rows[i].dir);
        cr_expect_eq(layer->q_norm.p != NULL, rows[i].qk_norm, "%s", rows[i].dir);
        cr_expect_eq(m.head_is_embed, rows[i].tied, "%s", rows[i].dir);
        cr_expect_eq(bt_model_weight_bytes(&m), bt_arch_weight_bytes(&m.config.arch, NULL).total,
                     "%s", rows[i].dir);
        bt_model_fini(&m);
    }
}

Test(model, converts_dense_weights_and_expands_quantised_ones)
{
    struct bt_model_opts opts = {.weights = BT_WEIGHT_FP32};
    struct bt_model plain;
    struct bt_model wide;
    float a[1024];
    float b[1024];
    load(&plain, bt_test_model("berth-1m"), NULL);
    load(&wide, bt_test_model("berth-1m"), &opts);
    bt_linear_row_f32(&plain.layers[1].linear[BT_LINEAR_DOWN], 5, a);
    bt_linear_row_f32(&wide.layers[1].linear[BT_LINEAR_DOWN], 5, b);
    cr_expect_arr_eq(a, b, (size_t)plain.layers[1].linear[BT_LINEAR_DOWN].n_in * sizeof *a);
    cr_expect_eq(wide.config.arch.checkpoint, BT_WEIGHT_FP32);
    cr_expect_eq(bt_model_weight_bytes(&wide), 2 * bt_model_weight_bytes(&plain));
    bt_model_fini(&plain);
    bt_model_fini(&wide);
    load(&plain, bt_test_model("quantised/tiny-gptq-v1-asym"), NULL);
    load(&wide, bt_test_model("quantised/tiny-gptq-v1-asym"), &opts);
    const struct bt_linear *l = &wide.layers[1].linear[BT_LINEAR_UP];
    cr_expect(!l->quantised && l->w.dtype == BT_DTYPE_F32);
    bt_linear_row_f32(&plain.layers[1].linear[BT_LINEAR_UP], 7, a);
    bt_linear_row_f32(l, 7, b);
    cr_expect_arr_eq(a, b, (size_t)l->n_in * sizeof *a);
    cr_expect_eq(wide.config.quant.layout, BT_QUANT_NONE);
    bt_model_fini(&plain);
    bt_model_fini(&wide);
}

static const enum bt_weight_format FORMATS[] = {
    BT_WEIGHT_FP32,     BT_WEIGHT_FP16,        BT_WEIGHT_BF16,
    BT_WEIGHT_INT8,     BT_WEIGHT_INT8_TENSOR, BT_WEIGHT_INT4_G128,
    BT_WEIGHT_INT4_G64, BT_WEIGHT_INT4_G32,    BT_WEIGHT_INT4_TENSOR,
};

Test(model, takes_the_bytes_that_arithmetic_predicts_in_every_format)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        for (int head = 0; head < 2; head++) {
            struct bt_model_opts opts = {.weights = FORMATS[i], .lm_head = head == 1};
            struct bt_model loaded;
            struct bt_model random;
            load(&loaded, bt_test_model("berth-1m"), &opts);
            struct bt_arch arch = loaded.config.arch;
            arch.tie_embeddings = loaded.head_is_embed;
            struct bt_weight_opts wo = {.format = FORMATS[i], .quantise_lm_head = head == 1};
            int64_t want = bt_arch_weight_bytes(&arch, &wo).total;
            const char *name = bt_weight_format_name(FORMATS[i]);
            cr_expect_eq(bt_model_weight_bytes(&loaded), want, "%s: %lld, not %lld", name,
                         (long long)bt_model_weight_bytes(&loaded), (long long)want);
            cr_expect_lt(fabs((double)loaded.arena.used_bytes / (double)want - 1), 0.01, "%s",
                         name);
            cr_assert_eq(bt_model_random(&random, &loaded.config.arch, &opts, 1, &err), BT_OK, "%s",
                         err.msg);
            cr_expect_eq(bt_model_weight_bytes(&random), want, "%s: random", name);
            bt_model_fini(&loaded);
            bt_model_fini(&random);
        }
    }
}

Test(model, random_weights_follow_the_seed)
{
    struct bt_arch arch = toy_arch();
    struct bt_model m[3];
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(bt_model_random(&m[i], &arch, NULL, i < 2 ? 7 : 8, &err), BT_OK);
    }
    const struct bt_tensor *w[3];
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        w[i] = &m[i].layers[0].linear[BT_LINEAR_GATE].w;
    }
    size_t bytes = (size_t)bt_tensor_bytes(w[0]);
    cr_expect_arr_eq(w[0]->p, w[1]->p, bytes);
    cr_expect_arr_neq(w[0]->p, w[2]->p, bytes);
    for (int i = 0; i < 96 * 64; i++) {
        double v = (double)((const float *)w[0]->p)[i];
        sum += v * v;
    }
    cr_expect_float_eq(sqrt(sum / (96 * 64)), 0.02, 0.001);
    for (int i = 0; i < 3; i++) {
        bt_model_fini(&m[i]);
    }
}

Test(model, options_that_do_not_fit_are_refused)
{
    static const struct {
        const char *dir;
        struct bt_model_opts opts;
        const char *message;
    } rows[] = {
        {"berth-1m", {.weights = BT_WEIGHT_FP8}, "weights fp8: only simulated"},
        {"berth-1m", {.activations = BT_ACT_INT8_DYNAMIC}, "need int8 or int4 weights"},
        {"berth-1m",
         {.weights = BT_WEIGHT_INT8, .activations = BT_ACT_INT8_STATIC},
         "has no calibrated scale"},
        {"quantised/tiny-ct-w4a16",
         {.weights = BT_WEIGHT_INT8},
         "is quantised as int4-g64 already"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_model m;
        bt_error_clear(&err);
        cr_expect_eq(bt_model_load(&m, bt_test_model(rows[i].dir), &rows[i].opts, &err),
                     BT_ERR_ARG);
        cr_expect_not_null(strstr(err.msg, rows[i].message), "%s", err.msg);
    }
}

Test(model, activations_follow_the_options)
{
    struct bt_model_opts dynamic = {.activations = BT_ACT_INT8_DYNAMIC};
    struct bt_model_opts plain = {.activations = BT_ACT_BF16};
    struct bt_model m;
    load(&m, bt_test_model("quantised/tiny-ct-w4a16"), &dynamic);
    cr_expect_eq(m.layers[0].linear[BT_LINEAR_O].act, BT_ACT_INT8_DYNAMIC);
    cr_expect_eq(m.lm_head.act, BT_ACT_DEFAULT);
    bt_model_fini(&m);
    load(&m, bt_test_model("quantised/tiny-ct-w8a8"), &plain);
    cr_expect_eq(m.layers[0].linear[BT_LINEAR_O].act, BT_ACT_DEFAULT);
    bt_model_fini(&m);
}

struct flaw {
    const char *name;
    const char *remove;
    const char *add; /* a vector of `rows` F32 zeros, or ones when `ones` */
    int64_t rows;
    bool ones;
    const char *reshape; /* its first dimension loses one row */
    const char *retype;  /* becomes I32 */
    const char *message;
};

static const struct flaw FLAWS[] = {
    {"no embeddings", "model.embed_tokens.weight", NULL, 0, false, NULL, NULL,
     "tensor model.embed_tokens.weight is missing"},
    {"no final norm", "model.norm.weight", NULL, 0, false, NULL, NULL,
     "tensor model.norm.weight is missing"},
    {"no lm_head", "lm_head.weight", NULL, 0, false, NULL, NULL,
     "tensor lm_head.weight is missing"},
    {"no layer norm", "model.layers.0.input_layernorm.weight", NULL, 0, false, NULL, NULL,
     "tensor model.layers.0.input_layernorm.weight is missing"},
    {"no matrix", "model.layers.0.mlp.up_proj.weight", NULL, 0, false, NULL, NULL,
     "tensor model.layers.0.mlp.up_proj.weight is missing"},
    {"wrong shape", NULL, NULL, 0, false, "model.layers.0.mlp.up_proj.weight", NULL,
     "model.layers.0.mlp.up_proj.weight: shape [95, 64], expected [96, 64]"},
    {"wrong vector", NULL, NULL, 0, false, "model.norm.weight", NULL,
     "model.norm.weight: shape [63], expected [64]"},
    {"wrong vocabulary", NULL, NULL, 0, false, "model.embed_tokens.weight", NULL,
     "model.embed_tokens.weight: shape [31, 64], expected [32, 64]"},
    {"wrong type", NULL, NULL, 0, false, NULL, "model.layers.0.mlp.up_proj.weight",
     "model.layers.0.mlp.up_proj.weight: dtype I32, expected F32, F16 or BF16"},
    {"a layer too many", NULL, "model.layers.1.input_layernorm.weight", 64, false, NULL, NULL,
     "tensor model.layers.1.input_layernorm.weight has no place in this architecture"},
    {"a norm the architecture lacks", NULL, "model.layers.0.self_attn.q_norm.weight", 16, false,
     NULL, NULL, "q_norm.weight has no place"},
    {"a bias the architecture lacks", NULL, "model.layers.0.self_attn.q_proj.bias", 64, true, NULL,
     NULL, "q_proj.bias: not zero, but the architecture has no such bias"},
};

Test(model, names_what_is_missing_left_over_or_misshapen)
{
    for (size_t i = 0; i < sizeof FLAWS / sizeof *FLAWS; i++) {
        const struct flaw *f = &FLAWS[i];
        struct toy t;
        struct bt_model m;
        toy_init(&t, 1);
        toy_add_frame(&t);
        toy_add_dense(&t);
        if (f->remove != NULL) {
            toy_remove(&t, f->remove);
        }
        if (f->add != NULL) {
            float *p = toy_take(&t, (size_t)f->rows, sizeof *p);
            p[f->rows - 1] = f->ones ? 1.0f : 0.0f;
            toy_add(&t, f->add, BT_DTYPE_F32, f->rows, 0, p);
        }
        if (f->reshape != NULL) {
            toy_find(&t, f->reshape)->shape[0]--;
        }
        if (f->retype != NULL) {
            toy_find(&t, f->retype)->dtype = BT_DTYPE_I32;
        }
        bt_error_clear(&err);
        cr_expect_eq(bt_model_load(&m, toy_write(&t, ""), NULL, &err), BT_ERR_INPUT, "%s", f->name);
        cr_expect_not_null(strstr(err.msg, f->message), "%s: %s", f->name, err.msg);
        toy_fini(&t);
    }
}

Test(model, ignores_what_is_known_to_be_harmless)
{
    struct toy t;
    struct bt_model m;
    toy_init(&t, 1);
    toy_add_frame(&t);
    toy_add_dense(&t);
    toy_add(&t, "model.layers.0.self_attn.rotary_emb.inv_freq", BT_DTYPE_F32, 8, 0,
            toy_take(&t, 8, sizeof(float)));
    toy_add(&t, "model.layers.0.self_attn.q_proj.bias", BT_DTYPE_F32, 64, 0,
            toy_take(&t, 64, sizeof(float)));
    load(&m, toy_write(&t, ""), NULL);
    cr_expect_null(m.layers[0].linear[BT_LINEAR_Q].bias.p);
    bt_model_fini(&m);
    toy_fini(&t);
}

Test(model, writes_dense_weights_that_read_back)
{
    struct bt_model m;
    struct bt_model again;
    char out[512];
    snprintf(out, sizeof out, "%s/out", bt_test_dir());
    load(&m, bt_test_model("tiny-qwen2"), NULL);
    cr_assert_eq(bt_model_write(&m, out, &err), BT_OK, "%s", err.msg);
    load(&again, out, NULL);
    const struct bt_linear *a = &m.layers[1].linear[BT_LINEAR_K];
    const struct bt_linear *b = &again.layers[1].linear[BT_LINEAR_K];
    cr_expect_arr_eq(a->w.p, b->w.p, (size_t)bt_tensor_bytes(&a->w));
    cr_expect_arr_eq(a->bias.p, b->bias.p, (size_t)bt_tensor_bytes(&a->bias));
    cr_expect(again.head_is_embed);
    bt_model_fini(&again);
    cr_expect_eq(bt_model_write(&m, bt_test_model("tiny-qwen2"), &err), BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "is the model's own folder"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_model_write(&m, "/nonexistent/x/y", &err), BT_ERR_IO);
    bt_model_fini(&m);
}

Test(model, compacting_keeps_everything)
{
    struct bt_model m;
    struct bt_model same;
    load(&m, bt_test_model("quantised/tiny-gptq-v1-asym"), NULL);
    load(&same, bt_test_model("quantised/tiny-gptq-v1-asym"), NULL);
    bt_model_note(&m, "a note of %d words", 5);
    cr_assert_eq(bt_model_compact(&m, &err), BT_OK);
    float a[256];
    float b[256];
    for (int id = 0; id < BT_LINEARS; id++) {
        bt_linear_row_f32(&m.layers[1].linear[id], 3, a);
        bt_linear_row_f32(&same.layers[1].linear[id], 3, b);
        cr_expect_arr_eq(a, b, (size_t)m.layers[1].linear[id].n_in * sizeof *a);
    }
    cr_expect_str_eq(m.notes[0], "a note of 5 words");
    cr_expect_eq(bt_model_weight_bytes(&m), bt_model_weight_bytes(&same));
    bt_model_fini(&m);
    bt_model_fini(&same);
}

Test(model, medusa_heads_load)
{
    struct bt_medusa h;
    cr_assert_eq(bt_medusa_load(&h, bt_test_model("berth-12m-medusa"), 384, &err), BT_OK, "%s",
                 err.msg);
    cr_expect_eq(h.n_heads, 3);
    cr_expect_eq(h.heads[2].w.rows, 384);
    cr_expect_eq(h.heads[2].bias.cols, 384);
    bt_medusa_fini(&h);
    cr_expect_eq(bt_medusa_load(&h, bt_test_model("berth-12m-medusa"), 128, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "shape [384, 384], expected [128, 128]"), "%s", err.msg);
}
