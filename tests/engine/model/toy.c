#include "tests/engine/model/toy.h"

#include "tests/engine/model/files.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#define CONFIG                                                                                     \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,"       \
    "\"intermediate_size\":96,\"num_hidden_layers\":1,\"num_attention_heads\":4,"                  \
    "\"num_key_value_heads\":2,\"head_dim\":16,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"     \
    "\"rope_theta\":10000.0,\"max_position_embeddings\":64,\"vocab_size\":32,"                     \
    "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,"                         \
    "\"torch_dtype\":\"float32\""

struct bt_arch toy_arch(void)
{
    return (struct bt_arch){
        .hidden = 64,
        .n_layers = 1,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .intermediate = 96,
        .vocab = 32,
        .max_position = 64,
        .mlp_gated = true,
        .rms_eps = 1e-5,
        .rope = {.theta = 10000.0, .factor = 1.0},
        .checkpoint = BT_WEIGHT_FP32,
        .compute = BT_ACT_FP32,
    };
}

void toy_init(struct toy *t, uint64_t seed)
{
    *t = (struct toy){0};
    bt_arena_init(&t->arena, 0);
    bt_rng_init(&t->rng, seed, "toy", 0);
}

void toy_fini(struct toy *t)
{
    bt_arena_fini(&t->arena);
}

void *toy_take(struct toy *t, size_t n, size_t size)
{
    void *p = bt_arena_take_zeroed(&t->arena, n, size);
    cr_assert_not_null(p);
    return p;
}

void toy_add(struct toy *t, const char *name, enum bt_dtype dtype, int64_t rows, int64_t cols,
             const void *bytes)
{
    cr_assert_lt(t->n, TOY_MAX_ENTRIES);
    t->entries[t->n++] = (struct bt_st_entry){
        .name = bt_arena_strdup(&t->arena, name),
        .dtype = dtype,
        .n_dims = cols == 0 ? 1 : 2,
        .shape = {rows, cols},
        .bytes = bytes,
    };
}

struct bt_st_entry *toy_find(struct toy *t, const char *name)
{
    for (int32_t i = 0; i < t->n; i++) {
        if (strcmp(t->entries[i].name, name) == 0) {
            return &t->entries[i];
        }
    }
    return NULL;
}

void toy_remove(struct toy *t, const char *name)
{
    struct bt_st_entry *e = toy_find(t, name);
    cr_assert_not_null(e, "%s", name);
    *e = t->entries[--t->n];
}

static float *normals(struct toy *t, int64_t n)
{
    float *p = toy_take(t, (size_t)n, sizeof *p);
    for (int64_t i = 0; i < n; i++) {
        p[i] = (float)bt_rng_normal(&t->rng);
    }
    return p;
}

void toy_add_frame(struct toy *t)
{
    toy_add(t, "model.embed_tokens.weight", BT_DTYPE_F32, 32, 64, normals(t, 32 * 64));
    toy_add(t, "lm_head.weight", BT_DTYPE_F32, 32, 64, normals(t, 32 * 64));
    toy_add(t, "model.norm.weight", BT_DTYPE_F32, 64, 0, normals(t, 64));
    toy_add(t, "model.layers.0.input_layernorm.weight", BT_DTYPE_F32, 64, 0, normals(t, 64));
    toy_add(t, "model.layers.0.post_attention_layernorm.weight", BT_DTYPE_F32, 64, 0,
            normals(t, 64));
}

void toy_add_dense(struct toy *t)
{
    struct bt_arch a = toy_arch();
    for (int i = 0; i < BT_LINEARS; i++) {
        enum bt_linear_id id = (enum bt_linear_id)i;
        char base[128];
        char name[160];
        int32_t n_out = bt_linear_n_out(&a, id);
        int32_t n_in = bt_linear_n_in(&a, id);
        snprintf(name, sizeof name, "%s.weight", bt_linear_path(0, id, base, sizeof base));
        toy_add(t, name, BT_DTYPE_F32, n_out, n_in, normals(t, (int64_t)n_out * n_in));
    }
}

const char *toy_write(struct toy *t, const char *extra)
{
    char config[4096];
    struct bt_error err = {0};
    int n = snprintf(config, sizeof config, "%s%s}", CONFIG, extra);
    bt_test_write("config.json", config, (size_t)n);
    const char *path = bt_test_path(bt_test_dir(), "model.safetensors");
    cr_assert_eq(bt_safetensors_write(path, t->entries, t->n, &err), BT_OK, "%s", err.msg);
    return bt_test_dir();
}
