#include "engine/model/config.h"

#include "engine/model/config_reader.h"
#include "engine/model/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_BYTES = 16 << 20 }; /* a config.json is a few KB */

struct family {
    const char *model_type;
    const char *architecture;
};

static const struct family families[] = {
    {"llama", "LlamaForCausalLM"},
    {"mistral", "MistralForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
};

enum { LLAMA, MISTRAL, QWEN2, QWEN3, N_FAMILIES };

#define CONFIG_FAIL(r, ...) BT_FAIL((r)->err, BT_ERR_INPUT, 0, __VA_ARGS__)

static enum bt_code find_family(const struct bt_config_reader *r, int32_t *family)
{
    const json_t *list = bt_config_key(r, "architectures");
    const char *architecture = json_string_value(json_array_get(list, 0));
    const char *type = NULL;
    BT_TRY(bt_config_string(r, "model_type", &type));
    for (int32_t i = 0; i < N_FAMILIES; i++) {
        bool named = architecture != NULL && strcmp(architecture, families[i].architecture) == 0;
        bool typed =
            architecture == NULL && type != NULL && strcmp(type, families[i].model_type) == 0;
        if (named || typed) {
            *family = i;
            return BT_OK;
        }
    }
    CONFIG_FAIL(r,
                "%s: %s: \"%s\" is not supported (LlamaForCausalLM, MistralForCausalLM, "
                "Qwen2ForCausalLM, Qwen3ForCausalLM)",
                r->file, architecture != NULL ? "architectures[0]" : "model_type",
                architecture != NULL ? architecture
                : type != NULL       ? type
                                     : "");
}

static enum bt_code read_shape(const struct bt_config_reader *r, struct bt_arch *a)
{
    BT_TRY(bt_config_need_int(r, "hidden_size", 1, 1 << 20, &a->hidden));
    BT_TRY(bt_config_need_int(r, "num_hidden_layers", 1, BT_ARCH_MAX_LAYERS, &a->n_layers));
    BT_TRY(bt_config_need_int(r, "num_attention_heads", 1, 1 << 16, &a->n_heads));
    a->n_kv_heads = a->n_heads;
    BT_TRY(bt_config_int(r, "num_key_value_heads", 1, a->n_heads, &a->n_kv_heads));
    if (a->n_heads % a->n_kv_heads != 0) {
        CONFIG_FAIL(r, "%s: num_key_value_heads: %d must divide num_attention_heads, %d", r->file,
                    a->n_kv_heads, a->n_heads);
    }
    BT_TRY(bt_config_int(r, "head_dim", 2, 1 << 16, &a->head_dim));
    if (a->head_dim == 0) {
        if (a->hidden % a->n_heads != 0) {
            CONFIG_FAIL(r,
                        "%s: hidden_size: %d is no multiple of num_attention_heads, %d, and "
                        "there is no head_dim",
                        r->file, a->hidden, a->n_heads);
        }
        a->head_dim = a->hidden / a->n_heads;
    }
    if (a->head_dim % 2 != 0) {
        CONFIG_FAIL(r, "%s: head_dim: %d must be even", r->file, a->head_dim);
    }
    BT_TRY(bt_config_need_int(r, "intermediate_size", 1, 1 << 24, &a->intermediate));
    BT_TRY(bt_config_need_int(r, "vocab_size", 1, 1 << 28, &a->vocab));
    BT_TRY(bt_config_need_int(r, "max_position_embeddings", 1, INT32_MAX / 2, &a->max_position));
    a->rms_eps = 1e-6;
    BT_TRY(bt_config_real(r, "rms_norm_eps", 0, 0.1, &a->rms_eps));
    BT_TRY(bt_config_bool(r, "tie_word_embeddings", &a->tie_embeddings));
    a->mlp_gated = true;
    const char *act = "silu";
    BT_TRY(bt_config_string(r, "hidden_act", &act));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) {
        CONFIG_FAIL(r, "%s: hidden_act: \"%s\" is not supported (silu)", r->file, act);
    }
    double rotary = 1;
    BT_TRY(bt_config_real(r, "partial_rotary_factor", 0, 1, &rotary));
    if (rotary != 1) {
        CONFIG_FAIL(r, "%s: partial_rotary_factor: %g is not supported (1)", r->file, rotary);
    }
    return BT_OK;
}

/* Biases and head norms follow from the architecture, not always from a key. */
static enum bt_code read_biases(const struct bt_config_reader *r, int32_t family, struct bt_arch *a)
{
    bool attention_bias = false;
    if (family == LLAMA || family == QWEN3) {
        BT_TRY(bt_config_bool(r, "attention_bias", &attention_bias));
    }
    a->qkv_bias = attention_bias || family == QWEN2;
    a->o_bias = attention_bias;
    if (family == LLAMA) {
        BT_TRY(bt_config_bool(r, "mlp_bias", &a->mlp_bias));
    }
    a->qk_norm = family == QWEN3;
    a->wide_residual = family == QWEN2;
    return BT_OK;
}

static enum bt_code read_rope_type(const struct bt_config_reader *r, enum bt_rope_scaling *out)
{
    const char *key = bt_config_key(r, "rope_type") != NULL ? "rope_type" : "type";
    const char *type = "default";
    BT_TRY(bt_config_string(r, key, &type));
    for (int32_t i = 0; i < BT_ROPE_SCALINGS; i++) {
        if (strcmp(type, bt_rope_scaling_name((enum bt_rope_scaling)i)) == 0) {
            *out = (enum bt_rope_scaling)i;
            return BT_OK;
        }
    }
    CONFIG_FAIL(r, "%s: %s%s: \"%s\" is not supported (default, linear, dynamic, llama3, yarn)",
                r->file, r->prefix, key, type);
}

static enum bt_code read_yarn(const struct bt_config_reader *r, struct bt_arch *a)
{
    a->rope.beta_fast = 32;
    a->rope.beta_slow = 1;
    BT_TRY(bt_config_real(r, "beta_fast", 0, 1e6, &a->rope.beta_fast));
    BT_TRY(bt_config_real(r, "beta_slow", 0, 1e6, &a->rope.beta_slow));
    BT_TRY(bt_config_real(r, "attention_factor", 0, 1e6, &a->rope.attention_factor));
    static const char *const unsupported[] = {"mscale", "mscale_all_dim"};
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        if (bt_config_key(r, unsupported[i]) != NULL) {
            CONFIG_FAIL(r, "%s: %s%s is not supported (attention_factor)", r->file, r->prefix,
                        unsupported[i]);
        }
    }
    bool truncate = true;
    BT_TRY(bt_config_bool(r, "truncate", &truncate));
    if (!truncate) {
        CONFIG_FAIL(r, "%s: %struncate: false is not supported (true)", r->file, r->prefix);
    }
    /* max_position_embeddings names the length before YaRN in some checkpoints, after it in others.
     */
    double longest = a->rope.factor * (double)a->rope.original_max_position;
    if (longest > (double)a->max_position && longest < (double)(1 << 30)) {
        a->max_position = (int32_t)longest;
    }
    return BT_OK;
}

static enum bt_code read_scaling(const struct bt_config_reader *top,
                                 const struct bt_config_reader *r, struct bt_arch *a)
{
    BT_TRY(read_rope_type(r, &a->rope.scaling));
    BT_TRY(bt_config_real(r, "rope_theta", 1e-6, 1e15, &a->rope.theta));
    if (a->rope.scaling == BT_ROPE_DEFAULT) {
        return BT_OK;
    }
    BT_TRY(bt_config_need_real(r, "factor", 1, 1e6, &a->rope.factor));
    int32_t original = a->max_position;
    BT_TRY(bt_config_int(top, "original_max_position_embeddings", 1, 1 << 30, &original));
    BT_TRY(bt_config_int(r, "original_max_position_embeddings", 1, 1 << 30, &original));
    switch (a->rope.scaling) {
    case BT_ROPE_DYNAMIC:
        a->rope.original_max_position = original;
        return BT_OK;
    case BT_ROPE_LLAMA3:
        BT_TRY(bt_config_need_int(r, "original_max_position_embeddings", 1, 1 << 30,
                                  &a->rope.original_max_position));
        BT_TRY(bt_config_need_real(r, "low_freq_factor", 1e-6, 1e6, &a->rope.low_freq_factor));
        BT_TRY(bt_config_need_real(r, "high_freq_factor", 1e-6, 1e6, &a->rope.high_freq_factor));
        if (a->rope.high_freq_factor <= a->rope.low_freq_factor) {
            CONFIG_FAIL(r, "%s: %shigh_freq_factor: %g must be above low_freq_factor, %g", r->file,
                        r->prefix, a->rope.high_freq_factor, a->rope.low_freq_factor);
        }
        return BT_OK;
    case BT_ROPE_YARN:
        a->rope.original_max_position = original;
        return read_yarn(r, a);
    case BT_ROPE_DEFAULT:
    case BT_ROPE_LINEAR:
    case BT_ROPE_SCALINGS:
        break;
    }
    return BT_OK;
}

static enum bt_code read_rope(const struct bt_config_reader *r, struct bt_arch *a)
{
    a->rope = (struct bt_rope){.theta = 10000, .factor = 1};
    BT_TRY(bt_config_real(r, "rope_theta", 1e-6, 1e15, &a->rope.theta));
    struct bt_config_reader sub;
    BT_TRY(bt_config_object(r, "rope_parameters", "rope_parameters.", &sub));
    if (sub.object == NULL) {
        BT_TRY(bt_config_object(r, "rope_scaling", "rope_scaling.", &sub));
    }
    if (sub.object == NULL) {
        return BT_OK;
    }
    static const char *const layer_types[] = {"full_attention", "sliding_attention"};
    for (size_t i = 0; i < sizeof layer_types / sizeof *layer_types; i++) {
        if (bt_config_key(&sub, layer_types[i]) != NULL) {
            CONFIG_FAIL(r, "%s: %s%s: rotary parameters by layer type are not supported", r->file,
                        sub.prefix, layer_types[i]);
        }
    }
    return read_scaling(r, &sub, a);
}

static enum bt_code read_layer_types(const struct bt_config_reader *r, const json_t *types,
                                     struct bt_arch *a)
{
    if (!json_is_array(types) || json_array_size(types) != (size_t)a->n_layers) {
        CONFIG_FAIL(r, "%s: layer_types: expected a list of %d, one a layer", r->file, a->n_layers);
    }
    for (int32_t i = 0; i < a->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (type != NULL && strcmp(type, "sliding_attention") == 0) {
            bt_arch_slide_layers(a, i, i + 1);
        } else if (type == NULL || strcmp(type, "full_attention") != 0) {
            CONFIG_FAIL(r,
                        "%s: layer_types[%d]: \"%s\" is not supported (full_attention, "
                        "sliding_attention)",
                        r->file, i, type != NULL ? type : "");
        }
    }
    return BT_OK;
}

static enum bt_code read_window(const struct bt_config_reader *r, int32_t family, struct bt_arch *a)
{
    if (family == LLAMA) {
        return BT_OK;
    }
    bool use = family == MISTRAL;
    int32_t window = 0;
    if (family != MISTRAL) {
        BT_TRY(bt_config_bool(r, "use_sliding_window", &use));
    }
    if (use) {
        BT_TRY(bt_config_int(r, "sliding_window", 1, 1 << 30, &window));
    }
    if (window == 0 || window >= a->max_position) {
        return BT_OK; /* a window as long as the model's context hides nothing */
    }
    const json_t *types = bt_config_key(r, "layer_types");
    if (types != NULL) {
        BT_TRY(read_layer_types(r, types, a));
    } else if (family == MISTRAL) {
        bt_arch_slide_layers(a, 0, a->n_layers);
    } else {
        int32_t first = 28; /* Qwen2Config's default */
        BT_TRY(bt_config_int(r, "max_window_layers", 0, 1 << 16, &first));
        bt_arch_slide_layers(a, first < a->n_layers ? first : a->n_layers, a->n_layers);
    }
    a->sliding_window = a->n_sliding_layers > 0 ? window : 0;
    return BT_OK;
}

/* A checkpoint that names no type is float32, as transformers takes it. */
static enum bt_code read_dtype(const struct bt_config_reader *r, struct bt_arch *a)
{
    static const struct {
        const char *name;
        enum bt_act_format compute;
        enum bt_weight_format weights;
    } types[] = {
        {"float32", BT_ACT_FP32, BT_WEIGHT_FP32},
        {"float16", BT_ACT_FP16, BT_WEIGHT_FP16},
        {"bfloat16", BT_ACT_BF16, BT_WEIGHT_BF16},
    };
    const char *key = bt_config_key(r, "dtype") != NULL ? "dtype" : "torch_dtype";
    const char *name = "float32";
    BT_TRY(bt_config_string(r, key, &name));
    const char *plain = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(plain, types[i].name) == 0) {
            a->compute = types[i].compute;
            a->checkpoint = types[i].weights;
            return BT_OK;
        }
    }
    CONFIG_FAIL(r, "%s: %s: \"%s\" is not supported (float32, float16, bfloat16)", r->file, key,
                name);
}

/* bos_token_id and eos_token_id; the latter may be a list. Keeps what there is when absent. */
static enum bt_code read_tokens(const struct bt_config_reader *r, struct bt_model_config *c)
{
    BT_TRY(bt_config_int(r, "bos_token_id", 0, INT32_MAX, &c->bos_id));
    const json_t *eos = bt_config_key(r, "eos_token_id");
    if (eos == NULL) {
        return BT_OK;
    }
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    if (n > BT_MODEL_EOS_MAX) {
        CONFIG_FAIL(r, "%s: eos_token_id: %zu ids, at most %d are allowed", r->file, n,
                    BT_MODEL_EOS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(eos) ? json_array_get(eos, i) : eos;
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX) {
            CONFIG_FAIL(r, "%s: eos_token_id: expected a token id >= 0 or a list of them", r->file);
        }
        c->eos_ids[i] = (int32_t)id;
    }
    c->n_eos = (int32_t)n;
    return BT_OK;
}

static void apply_quantization(struct bt_model_config *c)
{
    if (c->quant.weights != BT_WEIGHT_DEFAULT) {
        c->arch.checkpoint = c->quant.weights;
    }
}

static enum bt_code read_root(const struct bt_config_reader *r, struct bt_model_config *c)
{
    int32_t family = LLAMA;
    BT_TRY(find_family(r, &family));
    (void)snprintf(c->model_type, sizeof c->model_type, "%s", families[family].model_type);
    BT_TRY(read_shape(r, &c->arch));
    BT_TRY(read_biases(r, family, &c->arch));
    BT_TRY(read_rope(r, &c->arch));
    BT_TRY(read_window(r, family, &c->arch));
    BT_TRY(read_dtype(r, &c->arch));
    c->bos_id = -1;
    BT_TRY(read_tokens(r, c));
    struct bt_config_reader quant;
    BT_TRY(bt_config_object(r, "quantization_config", "quantization_config.", &quant));
    if (quant.object == NULL) {
        BT_TRY(bt_config_object(r, "compression_config", "compression_config.", &quant));
    }
    if (quant.object != NULL) {
        BT_TRY(bt_config_quantization(&quant, &c->quant));
    }
    apply_quantization(c);
    struct bt_error why = {0};
    if (bt_arch_check(&c->arch, &why) != BT_OK) {
        CONFIG_FAIL(r, "%s: %s", r->file, why.msg);
    }
    return BT_OK;
}

enum bt_code bt_model_config_parse(const char *text, size_t n_bytes, const char *label,
                                   struct bt_model_config *out, struct bt_error *err)
{
    struct bt_model_config c = {0};
    json_error_t je;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &je);
    if (root == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, je.line, "%s:%d: %s", label, je.line, je.text);
    }
    (void)snprintf(c.arch.name, sizeof c.arch.name, "%s", label);
    enum bt_code code = BT_OK;
    if (!json_is_object(root)) {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                            "%s: expected an object at the top", label);
    } else {
        struct bt_config_reader r = {.file = label, .prefix = "", .object = root, .err = err};
        code = read_root(&r, &c);
    }
    json_decref(root);
    if (code == BT_OK) {
        *out = c;
    }
    return code;
}

/* Last part of a folder's path: "models/berth-12m/" gives "berth-12m". */
static void folder_name(const char *dir, char out[BT_ARCH_NAME_BYTES])
{
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') {
        end--;
    }
    size_t start = end;
    while (start > 0 && dir[start - 1] != '/') {
        start--;
    }
    (void)snprintf(out, BT_ARCH_NAME_BYTES, "%.*s", (int)(end - start), dir + start);
}

/* dir/name as an object, or NULL when there is no such file; path names it. */
static enum bt_code read_beside(const char *dir, const char *name, char path[BT_PATH_BYTES],
                                json_t **out, struct bt_error *err)
{
    *out = NULL;
    BT_TRY(bt_path_join(path, BT_PATH_BYTES, dir, name, err));
    return bt_path_exists(path) ? bt_json_load_object(path, MAX_BYTES, out, err) : BT_OK;
}

/* What generation_config.json and quantize_config.json say beside config.json. */
static enum bt_code read_companions(const char *dir, struct bt_model_config *c,
                                    struct bt_error *err)
{
    char path[BT_PATH_BYTES];
    json_t *root = NULL;
    BT_TRY(read_beside(dir, "generation_config.json", path, &root, err));
    struct bt_config_reader r = {.file = path, .prefix = "", .object = root, .err = err};
    enum bt_code code = root != NULL ? read_tokens(&r, c) : BT_OK;
    json_decref(root);
    BT_TRY(code);
    if (c->quant.layout != BT_QUANT_NONE) {
        return BT_OK;
    }
    BT_TRY(read_beside(dir, "quantize_config.json", path, &root, err));
    r.object = root;
    code = root != NULL ? bt_config_quantization(&r, &c->quant) : BT_OK;
    json_decref(root);
    apply_quantization(c);
    return code;
}

/* Splits into the folder and the config.json in it. */
static enum bt_code locate(const char *path, char dir[BT_PATH_BYTES], char file[BT_PATH_BYTES],
                           struct bt_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        BT_FAIL(err, BT_ERR_NOTFOUND, errno, "%s: %s", path, strerror(errno));
    }
    if (strlen(path) >= BT_PATH_BYTES) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: longer than %d bytes", path, BT_PATH_BYTES - 1);
    }
    if (S_ISDIR(st.st_mode)) {
        (void)snprintf(dir, BT_PATH_BYTES, "%s", path);
        return bt_path_join(file, BT_PATH_BYTES, dir, "config.json", err);
    }
    (void)snprintf(file, BT_PATH_BYTES, "%s", path);
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        (void)snprintf(dir, BT_PATH_BYTES, ".");
    } else {
        (void)snprintf(dir, BT_PATH_BYTES, "%.*s", slash > path ? (int)(slash - path) : 1, path);
    }
    return BT_OK;
}

enum bt_code bt_model_config_read(const char *path, struct bt_model_config *out,
                                  struct bt_error *err)
{
    char dir[BT_PATH_BYTES];
    char file[BT_PATH_BYTES];
    BT_TRY(locate(path, dir, file, err));
    struct bt_model_config c = {0};
    json_t *root = NULL;
    BT_TRY(bt_json_load_object(file, MAX_BYTES, &root, err));
    struct bt_config_reader r = {.file = file, .prefix = "", .object = root, .err = err};
    folder_name(dir, c.arch.name);
    enum bt_code code = read_root(&r, &c);
    json_decref(root);
    BT_TRY(code);
    BT_TRY(read_companions(dir, &c, err));
    *out = c;
    return BT_OK;
}
