#include "sim/cost/sample.h"

#include <stdlib.h>
#include <string.h>

static const char *const op_names[BT_OPS] = {
    [BT_OP_GEMM] = "gemm",
    [BT_OP_ATTN_PREFILL] = "attn-prefill",
    [BT_OP_ATTN_DECODE] = "attn-decode",
    [BT_OP_ATTN_MIXED] = "attn-mixed",
    [BT_OP_ALLREDUCE] = "allreduce",
    [BT_OP_ALLGATHER] = "allgather",
    [BT_OP_REDUCESCATTER] = "reducescatter",
    [BT_OP_ALLTOALL] = "alltoall",
    [BT_OP_QUANTIZE] = "quantize",
    [BT_OP_NORM] = "norm",
    [BT_OP_ACTIVATION] = "activation",
    [BT_OP_ROPE] = "rope",
    [BT_OP_ADD] = "add",
    [BT_OP_EMBEDDING] = "embedding",
    [BT_OP_KV_WRITE] = "kv-write",
    [BT_OP_SAMPLE] = "sample",
    [BT_OP_HOST] = "host",
};

static const char *const num_names[BT_NUMS] = {
    [BT_NUM_NONE] = "-",
    [BT_NUM_FP32] = "fp32",
    [BT_NUM_FP16] = "fp16",
    [BT_NUM_BF16] = "bf16",
    [BT_NUM_INT8] = "int8",
    [BT_NUM_INT8_TENSOR] = "int8-tensor",
    [BT_NUM_INT4_CHANNEL] = "int4-channel",
    [BT_NUM_INT4_G128] = "int4-g128",
    [BT_NUM_INT4_G64] = "int4-g64",
    [BT_NUM_INT4_G32] = "int4-g32",
    [BT_NUM_INT4_TENSOR] = "int4-tensor",
    [BT_NUM_FP8] = "fp8",
    [BT_NUM_FP8_BLOCK] = "fp8-block",
};

void bt_sample_set_init(struct bt_sample_set *s)
{
    memset(s, 0, sizeof *s);
    bt_arena_init(&s->strings, 0);
}

void bt_sample_set_fini(struct bt_sample_set *s)
{
    free(s->samples);
    free(s->interned);
    bt_arena_fini(&s->strings);
    memset(s, 0, sizeof *s);
}

const char *bt_sample_set_intern(struct bt_sample_set *s, const char *text)
{
    BT_ASSERT(text != NULL);
    for (int32_t i = s->n_interned; i > 0; i--) { /* the newest is the likeliest */
        if (strcmp(s->interned[i - 1], text) == 0) {
            return s->interned[i - 1];
        }
    }
    if (s->n_interned == s->interned_capacity) {
        int32_t capacity = s->interned_capacity == 0 ? 32 : 2 * s->interned_capacity;
        const char **grown = realloc(s->interned, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        s->interned = grown;
        s->interned_capacity = capacity;
    }
    char *copy = bt_arena_strdup(&s->strings, text);
    if (copy != NULL) {
        s->interned[s->n_interned++] = copy;
    }
    return copy;
}

enum bt_code bt_sample_set_add(struct bt_sample_set *s, const struct bt_cost_sample *sample,
                               struct bt_error *err)
{
    BT_ASSERT(sample->time_ns > 0);
    BT_ASSERT(sample->gpu != NULL && sample->stack != NULL && sample->kernel != NULL);
    if (s->n_samples == s->capacity) {
        int64_t capacity = s->capacity == 0 ? 1024 : 2 * s->capacity;
        struct bt_cost_sample *grown = realloc(s->samples, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "samples: no memory for %lld", (long long)capacity);
        }
        s->samples = grown;
        s->capacity = capacity;
    }
    s->samples[s->n_samples++] = *sample;
    return BT_OK;
}

const char *bt_op_name(enum bt_op op)
{
    BT_ASSERT((uint32_t)op < BT_OPS);
    return op_names[op];
}

const char *bt_num_name(enum bt_num f)
{
    BT_ASSERT((uint32_t)f < BT_NUMS);
    return num_names[f];
}

enum bt_code bt_op_parse(const char *text, const char *what, enum bt_op *out, struct bt_error *err)
{
    for (int32_t i = 0; i < BT_OPS; i++) {
        if (strcmp(text, op_names[i]) == 0) {
            *out = (enum bt_op)i;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "%s: \"%s\" is not an operation (gemm, attn-prefill, attn-decode, attn-mixed, "
            "allreduce, quantize, norm, activation, rope, embedding, sample, ...)",
            what, text);
}

enum bt_code bt_num_parse(const char *text, const char *what, enum bt_num *out,
                          struct bt_error *err)
{
    for (int32_t i = 0; i < BT_NUMS; i++) {
        if (strcmp(text, num_names[i]) == 0) {
            *out = (enum bt_num)i;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "%s: \"%s\" is not a number format (-, fp32, fp16, bf16, int8, int8-tensor, "
            "int4-channel, int4-g128, int4-g64, int4-g32, int4-tensor, fp8, fp8-block)",
            what, text);
}

double bt_num_bits(enum bt_num f)
{
    switch (f) {
    case BT_NUM_NONE:
        return 0;
    case BT_NUM_FP32:
        return 32;
    case BT_NUM_FP16:
    case BT_NUM_BF16:
        return 16;
    case BT_NUM_INT8:
    case BT_NUM_INT8_TENSOR:
    case BT_NUM_FP8:
    case BT_NUM_FP8_BLOCK:
        return 8; /* a scale a channel is under 1/1000 of the matrix */
    case BT_NUM_INT4_CHANNEL:
    case BT_NUM_INT4_TENSOR:
        return 4;
    case BT_NUM_INT4_G128:
        return 4 + 16.0 / 128;
    case BT_NUM_INT4_G64:
        return 4 + 16.0 / 64;
    case BT_NUM_INT4_G32:
        return 4 + 16.0 / 32;
    case BT_NUMS:
        break;
    }
    BT_ASSERT(!"number format");
    return 0;
}

bool bt_num_is_int8(enum bt_num f)
{
    return f == BT_NUM_INT8 || f == BT_NUM_INT8_TENSOR;
}

bool bt_num_is_fp8(enum bt_num f)
{
    return f == BT_NUM_FP8 || f == BT_NUM_FP8_BLOCK;
}

bool bt_num_is_int4(enum bt_num f)
{
    return f == BT_NUM_INT4_CHANNEL || f == BT_NUM_INT4_G128 || f == BT_NUM_INT4_G64 ||
           f == BT_NUM_INT4_G32 || f == BT_NUM_INT4_TENSOR;
}

bool bt_num_is_float(enum bt_num f)
{
    return f == BT_NUM_FP32 || f == BT_NUM_FP16 || f == BT_NUM_BF16;
}

enum bt_num bt_num_from_weight(enum bt_weight_format w)
{
    switch (w) {
    case BT_WEIGHT_FP32:
        return BT_NUM_FP32;
    case BT_WEIGHT_FP16:
        return BT_NUM_FP16;
    case BT_WEIGHT_BF16:
        return BT_NUM_BF16;
    case BT_WEIGHT_INT8:
        return BT_NUM_INT8;
    case BT_WEIGHT_INT8_TENSOR:
        return BT_NUM_INT8_TENSOR;
    case BT_WEIGHT_INT4_G128:
        return BT_NUM_INT4_G128;
    case BT_WEIGHT_INT4_G64:
        return BT_NUM_INT4_G64;
    case BT_WEIGHT_INT4_G32:
        return BT_NUM_INT4_G32;
    case BT_WEIGHT_INT4_TENSOR:
        return BT_NUM_INT4_TENSOR;
    case BT_WEIGHT_FP8:
        return BT_NUM_FP8;
    case BT_WEIGHT_DEFAULT:
    case BT_WEIGHT_FORMATS:
        break;
    }
    BT_ASSERT(!"weight format is resolved");
    return BT_NUM_NONE;
}

enum bt_num bt_num_from_act(enum bt_act_format a)
{
    switch (a) {
    case BT_ACT_FP32:
        return BT_NUM_FP32;
    case BT_ACT_FP16:
        return BT_NUM_FP16;
    case BT_ACT_BF16:
        return BT_NUM_BF16;
    case BT_ACT_INT8_DYNAMIC:
        return BT_NUM_INT8;
    case BT_ACT_INT8_STATIC:
        return BT_NUM_INT8_TENSOR;
    case BT_ACT_DEFAULT:
    case BT_ACT_FORMATS:
        break;
    }
    BT_ASSERT(!"activation format is resolved");
    return BT_NUM_NONE;
}

enum bt_num bt_num_from_kv(enum bt_kv_format kv)
{
    switch (kv) {
    case BT_KV_FP32:
        return BT_NUM_FP32;
    case BT_KV_FP16:
        return BT_NUM_FP16;
    case BT_KV_BF16:
        return BT_NUM_BF16;
    case BT_KV_INT8:
        return BT_NUM_INT8;
    case BT_KV_FP8:
        return BT_NUM_FP8;
    case BT_KV_DEFAULT:
    case BT_KV_FORMATS:
        break;
    }
    BT_ASSERT(!"KV format is resolved");
    return BT_NUM_NONE;
}

enum bt_num bt_num_as_bf16(enum bt_num f)
{
    return f == BT_NUM_FP16 ? BT_NUM_BF16 : f;
}

/* One sequence attending causally with q query tokens after `prefix` others, times `count`. */
static struct bt_op_work attn_work(const struct bt_op_shape *s, enum bt_num kv, double count,
                                   double q, double prefix)
{
    double heads = (double)s->heads;
    double dim = (double)s->head_dim;
    double pairs = q * prefix + q * (q + 1) / 2;
    double kv_bytes = (q + prefix) * (double)s->kv_heads * dim * 2 * bt_num_bits(kv) / 8;
    double qo_bytes = q * heads * dim * 2 * 2; /* Q in, output out, 16 bits each */
    return (struct bt_op_work){
        .flops = count * 4 * pairs * heads * dim,
        .bytes = count * (kv_bytes + qo_bytes),
    };
}

/* Elements of 16 bits that cross memory for one output element of the op. */
static double elementwise_traffic(enum bt_op op)
{
    if (op == BT_OP_ACTIVATION || op == BT_OP_ADD || op == BT_OP_NORM) {
        return 3; /* gate and up (or both summands, or x and residual) in, one out */
    }
    return op == BT_OP_SAMPLE ? 1 : 2;
}

struct bt_op_work bt_op_work(enum bt_op op, const struct bt_op_format *f,
                             const struct bt_op_shape *s)
{
    double m = (double)s->m;
    double n = (double)s->n;
    double k = (double)s->k;
    double ranks = (double)s->ranks;
    switch (op) {
    case BT_OP_GEMM:
        return (struct bt_op_work){
            .flops = 2 * m * n * k,
            .bytes = (n * k * bt_num_bits(f->weights) + m * k * bt_num_bits(f->activations)) / 8 +
                     2 * m * n,
        };
    case BT_OP_ATTN_PREFILL:
        return attn_work(s, f->kv, (double)s->batch, (double)s->q_len, (double)s->prefix);
    case BT_OP_ATTN_DECODE:
        return attn_work(s, f->kv, (double)s->batch, 1, (double)(s->ctx - 1));
    case BT_OP_ATTN_MIXED: {
        struct bt_op_work w = {0};
        if (s->q_len > 0) {
            w = attn_work(s, f->kv, 1, (double)s->q_len, (double)s->prefix);
        }
        if (s->batch > 0) {
            struct bt_op_work d =
                attn_work(s, f->kv, (double)s->batch, 1, (double)(s->ctx > 0 ? s->ctx - 1 : 0));
            w.flops += d.flops;
            w.bytes += d.bytes;
        }
        return w;
    }
    case BT_OP_ALLREDUCE: /* a ring: every byte leaves a rank 2 (r - 1) / r times */
        return (struct bt_op_work){.bytes = 2 * (ranks - 1) / ranks * (double)s->bytes};
    case BT_OP_ALLGATHER:
    case BT_OP_REDUCESCATTER:
    case BT_OP_ALLTOALL:
        return (struct bt_op_work){.bytes = (ranks - 1) / ranks * (double)s->bytes};
    case BT_OP_QUANTIZE:
    case BT_OP_NORM:
    case BT_OP_ACTIVATION:
    case BT_OP_ROPE:
    case BT_OP_ADD:
    case BT_OP_EMBEDDING:
    case BT_OP_KV_WRITE:
    case BT_OP_SAMPLE:
        return (struct bt_op_work){.bytes = 2 * m * n * elementwise_traffic(op)};
    case BT_OP_HOST:
        return (struct bt_op_work){.flops = m};
    case BT_OPS:
        break;
    }
    BT_ASSERT(!"operation");
    return (struct bt_op_work){0};
}

double bt_op_cold_bytes(enum bt_op op, const struct bt_op_format *f, const struct bt_op_shape *s)
{
    double token = 2 * (double)s->kv_heads * (double)s->head_dim * bt_num_bits(f->kv) / 8;
    double earlier = (double)(s->ctx > 0 ? s->ctx - 1 : 0);
    switch (op) {
    case BT_OP_GEMM:
        return (double)s->n * (double)s->k * bt_num_bits(f->weights) / 8;
    case BT_OP_ATTN_PREFILL:
        return token * (double)s->batch * (double)s->prefix;
    case BT_OP_ATTN_DECODE:
        return token * (double)s->batch * earlier;
    case BT_OP_ATTN_MIXED:
        return token * ((double)s->batch * earlier + (double)s->prefix);
    case BT_OP_ALLREDUCE:
    case BT_OP_ALLGATHER:
    case BT_OP_REDUCESCATTER:
    case BT_OP_ALLTOALL:
    case BT_OP_QUANTIZE:
    case BT_OP_NORM:
    case BT_OP_ACTIVATION:
    case BT_OP_ROPE:
    case BT_OP_ADD:
    case BT_OP_EMBEDDING:
    case BT_OP_KV_WRITE:
    case BT_OP_SAMPLE:
    case BT_OP_HOST:
        return 0;
    case BT_OPS:
        break;
    }
    BT_ASSERT(!"operation");
    return 0;
}
