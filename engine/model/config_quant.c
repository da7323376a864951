/* quantization_config of a checkpoint: GPTQ, AWQ, compressed-tensors, FP8. */
#include "engine/model/config_reader.h"

#include <string.h>

#define QUANT_FAIL(r, ...) BT_FAIL((r)->err, BT_ERR_INPUT, 0, __VA_ARGS__)

static enum bt_code int4_format(const struct bt_config_reader *r, const char *key,
                                struct bt_quant_config *q)
{
    switch (q->group_size) {
    case 32:
        q->weights = BT_WEIGHT_INT4_G32;
        return BT_OK;
    case 64:
        q->weights = BT_WEIGHT_INT4_G64;
        return BT_OK;
    case 128:
        q->weights = BT_WEIGHT_INT4_G128;
        return BT_OK;
    default:
        QUANT_FAIL(r, "%s: %s%s: %d is not supported (32, 64, 128)", r->file, r->prefix, key,
                   q->group_size);
    }
}

static enum bt_code need_bits(const struct bt_config_reader *r, const char *key,
                              struct bt_quant_config *q)
{
    BT_TRY(bt_config_need_int(r, key, 1, 16, &q->bits));
    if (q->bits != 4) {
        QUANT_FAIL(r, "%s: %s%s: %d is not supported (4)", r->file, r->prefix, key, q->bits);
    }
    return BT_OK;
}

static enum bt_code read_gptq(const struct bt_config_reader *r, struct bt_quant_config *q)
{
    BT_TRY(need_bits(r, "bits", q));
    BT_TRY(bt_config_need_int(r, "group_size", -1, 1 << 20, &q->group_size));
    BT_TRY(int4_format(r, "group_size", q));
    q->symmetric = true;
    BT_TRY(bt_config_bool(r, "sym", &q->symmetric));
    BT_TRY(bt_config_bool(r, "desc_act", &q->desc_act));
    BT_TRY(bt_config_bool(r, "lm_head", &q->lm_head));
    const char *format = "gptq";
    BT_TRY(bt_config_string(r, "checkpoint_format", &format));
    if (strcmp(format, "gptq") == 0) {
        q->layout = BT_QUANT_GPTQ_V1;
    } else if (strcmp(format, "gptq_v2") == 0) {
        q->layout = BT_QUANT_GPTQ_V2;
    } else {
        QUANT_FAIL(r, "%s: %scheckpoint_format: \"%s\" is not supported (gptq, gptq_v2)", r->file,
                   r->prefix, format);
    }
    return BT_OK;
}

static enum bt_code read_awq(const struct bt_config_reader *r, struct bt_quant_config *q)
{
    bool old = bt_config_key(r, "bits") == NULL && bt_config_key(r, "w_bit") != NULL;
    const char *group = old ? "q_group_size" : "group_size";
    BT_TRY(need_bits(r, old ? "w_bit" : "bits", q));
    BT_TRY(bt_config_need_int(r, group, -1, 1 << 20, &q->group_size));
    BT_TRY(int4_format(r, group, q));
    bool zero_point = true;
    BT_TRY(bt_config_bool(r, "zero_point", &zero_point));
    q->symmetric = !zero_point;
    const char *version = "gemm";
    BT_TRY(bt_config_string(r, "version", &version));
    if (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0) {
        QUANT_FAIL(r, "%s: %sversion: \"%s\" is not supported (gemm)", r->file, r->prefix, version);
    }
    q->layout = BT_QUANT_AWQ_GEMM;
    return BT_OK;
}

/* input_activations of compressed-tensors: none, int8 per token, int8 per tensor. */
static enum bt_code read_ct_activations(const struct bt_config_reader *r, struct bt_quant_config *q)
{
    if (r->object == NULL) {
        return BT_OK;
    }
    int32_t bits = 8;
    bool dynamic = false;
    const char *type = "int";
    const char *strategy = "tensor";
    BT_TRY(bt_config_int(r, "num_bits", 1, 16, &bits));
    BT_TRY(bt_config_string(r, "type", &type));
    BT_TRY(bt_config_string(r, "strategy", &strategy));
    BT_TRY(bt_config_bool(r, "dynamic", &dynamic));
    if (bits == 8 && strcmp(type, "float") == 0) {
        return BT_OK; /* FP8 products: the weights' format says it */
    }
    if (bits == 8 && strcmp(type, "int") == 0 && strcmp(strategy, "token") == 0 && dynamic) {
        q->activations = BT_ACT_INT8_DYNAMIC;
    } else if (bits == 8 && strcmp(type, "int") == 0 && strcmp(strategy, "tensor") == 0 &&
               !dynamic) {
        q->activations = BT_ACT_INT8_STATIC;
    } else {
        QUANT_FAIL(r,
                   "%s: %sstrategy: %d-bit %s activations by %s (%s) are not supported (8-bit int: "
                   "dynamic by token, static by tensor)",
                   r->file, r->prefix, bits, type, strategy, dynamic ? "dynamic" : "static");
    }
    return BT_OK;
}

static enum bt_code read_ct_weights(const struct bt_config_reader *r, struct bt_quant_config *q)
{
    const char *type = "int";
    const char *strategy = "tensor";
    q->symmetric = true;
    BT_TRY(bt_config_need_int(r, "num_bits", 1, 16, &q->bits));
    BT_TRY(bt_config_string(r, "type", &type));
    BT_TRY(bt_config_string(r, "strategy", &strategy));
    BT_TRY(bt_config_bool(r, "symmetric", &q->symmetric));
    const char *order = NULL;
    if (!json_is_false(bt_config_key(r, "actorder"))) {
        BT_TRY(bt_config_string(r, "actorder", &order));
    }
    q->desc_act = order != NULL && strcmp(order, "group") == 0;
    if (q->bits == 8 && strcmp(type, "float") == 0) {
        q->weights = BT_WEIGHT_FP8;
        q->layout = BT_QUANT_FP8;
        return BT_OK;
    }
    if (strcmp(type, "int") == 0 && q->bits == 4 && q->layout == BT_QUANT_CT_PACKED &&
        strcmp(strategy, "group") == 0) {
        BT_TRY(bt_config_need_int(r, "group_size", -1, 1 << 20, &q->group_size));
        return int4_format(r, "group_size", q);
    }
    if (strcmp(type, "int") == 0 && q->bits == 4 && q->layout == BT_QUANT_CT_PACKED &&
        strcmp(strategy, "tensor") == 0) {
        q->weights = BT_WEIGHT_INT4_TENSOR;
        return BT_OK;
    }
    if (strcmp(type, "int") == 0 && q->bits == 8) {
        if (strcmp(strategy, "channel") == 0) {
            q->weights = BT_WEIGHT_INT8;
            return BT_OK;
        }
        if (strcmp(strategy, "tensor") == 0) {
            q->weights = BT_WEIGHT_INT8_TENSOR;
            return BT_OK;
        }
    }
    QUANT_FAIL(
        r,
        "%s: %sstrategy: %d-bit %s weights by %s are not supported (pack-quantized: 4-bit int "
        "by group or tensor, 8-bit int by channel or tensor; int-quantized: 8-bit int by channel "
        "or tensor; float-quantized: 8-bit)",
        r->file, r->prefix, q->bits, type, strategy);
}

/* Whether lm_head is absent from the list of modules left as they were. */
static bool ct_quantises_lm_head(const struct bt_config_reader *r)
{
    const json_t *ignore = bt_config_key(r, "ignore");
    size_t i;
    json_t *v;
    json_array_foreach(ignore, i, v)
    {
        const char *name = json_string_value(v);
        if (name != NULL && strstr(name, "lm_head") != NULL) {
            return false;
        }
    }
    return true;
}

static enum bt_code read_ct(const struct bt_config_reader *r, struct bt_quant_config *q)
{
    const char *format = "";
    BT_TRY(bt_config_string(r, "format", &format));
    if (strcmp(format, "pack-quantized") == 0) {
        q->layout = BT_QUANT_CT_PACKED;
    } else if (strcmp(format, "int-quantized") == 0) {
        q->layout = BT_QUANT_CT_INT;
    } else if (strcmp(format, "float-quantized") == 0 || strcmp(format, "naive-quantized") == 0) {
        q->layout = BT_QUANT_FP8;
    } else {
        QUANT_FAIL(r,
                   "%s: %sformat: \"%s\" is not supported (pack-quantized, int-quantized, "
                   "float-quantized)",
                   r->file, r->prefix, format);
    }
    struct bt_config_reader sparsity;
    const char *sparse = "dense";
    BT_TRY(
        bt_config_object(r, "sparsity_config", "quantization_config.sparsity_config.", &sparsity));
    if (sparsity.object != NULL) {
        BT_TRY(bt_config_string(&sparsity, "format", &sparse));
    }
    if (strcmp(sparse, "dense") != 0) {
        QUANT_FAIL(r, "%s: %sformat: \"%s\" is not supported (dense)", r->file, sparsity.prefix,
                   sparse);
    }
    struct bt_config_reader groups;
    struct bt_config_reader group;
    struct bt_config_reader part;
    BT_TRY(bt_config_object(r, "config_groups", "quantization_config.config_groups.", &groups));
    if (groups.object == NULL || json_object_size(groups.object) != 1) {
        QUANT_FAIL(r, "%s: %sconfig_groups: expected one group, got %zu", r->file, r->prefix,
                   groups.object != NULL ? json_object_size(groups.object) : 0);
    }
    const char *name = json_object_iter_key(json_object_iter((json_t *)groups.object));
    BT_TRY(bt_config_object(&groups, name, "quantization_config.config_groups.*.", &group));
    if (group.object == NULL) {
        QUANT_FAIL(r, "%s: %sconfig_groups.%s: expected an object, got null", r->file, r->prefix,
                   name);
    }
    BT_TRY(
        bt_config_object(&group, "weights", "quantization_config.config_groups.*.weights.", &part));
    if (part.object == NULL) {
        QUANT_FAIL(r, "%s: %sconfig_groups.%s.weights: missing", r->file, r->prefix, name);
    }
    BT_TRY(read_ct_weights(&part, q));
    BT_TRY(bt_config_object(&group, "input_activations",
                            "quantization_config.config_groups.*.input_activations.", &part));
    BT_TRY(read_ct_activations(&part, q));
    q->lm_head = ct_quantises_lm_head(r);
    struct bt_config_reader kv;
    BT_TRY(bt_config_object(r, "kv_cache_scheme", "quantization_config.kv_cache_scheme.", &kv));
    if (kv.object != NULL) {
        const char *type = "int";
        BT_TRY(bt_config_string(&kv, "type", &type));
        q->kv = strcmp(type, "float") == 0 ? BT_KV_FP8 : BT_KV_INT8;
    }
    return BT_OK;
}

enum bt_code bt_config_quantization(const struct bt_config_reader *r, struct bt_quant_config *q)
{
    *q = (struct bt_quant_config){0};
    const char *method = NULL;
    BT_TRY(bt_config_string(r, "quant_method", &method));
    if (method == NULL && bt_config_key(r, "bits") != NULL) {
        method = "gptq"; /* a quantize_config.json of AutoGPTQ names no method */
    }
    if (method == NULL) {
        QUANT_FAIL(r, "%s: %squant_method: missing; expected gptq, awq, compressed-tensors or fp8",
                   r->file, r->prefix);
    }
    if (strcmp(method, "gptq") == 0) {
        return read_gptq(r, q);
    }
    if (strcmp(method, "awq") == 0) {
        return read_awq(r, q);
    }
    if (strcmp(method, "compressed-tensors") == 0) {
        return read_ct(r, q);
    }
    if (strcmp(method, "fp8") == 0 || strcmp(method, "fbgemm_fp8") == 0) {
        *q = (struct bt_quant_config){
            .layout = BT_QUANT_FP8, .weights = BT_WEIGHT_FP8, .bits = 8, .symmetric = true};
        return BT_OK;
    }
    QUANT_FAIL(r,
               "%s: %squant_method: \"%s\" is not supported (gptq, awq, compressed-tensors, fp8)",
               r->file, r->prefix, method);
}
