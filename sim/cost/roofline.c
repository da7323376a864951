#include "sim/cost/roofline.h"

#include "sim/cost/step_trust.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Kernel classes of a matrix product: which unit multiplies, what is read. */
enum gemm_class {
    GEMM_FP32,
    GEMM_W16A16,
    GEMM_W8A16,
    GEMM_W4A16,
    GEMM_W8A8,
    GEMM_W4A8,
    GEMM_FP8,
    GEMM_CLASSES,
};

enum { SHARE_POINTS = 4 };
/* Tokens at which the bandwidth share below is given; linear in log2(m) between them. */
static const double share_m[SHARE_POINTS] = {1, 8, 32, 128};

struct gemm_efficiency {
    double rate;                /* of the dense rate, for many tokens */
    double share[SHARE_POINTS]; /* of memory bandwidth, at share_m tokens */
};

/* Fitted to the H200 tables (16-bit and int8 by cuBLAS, int4 by TensorRT's weight-only kernel). */
static const struct gemm_efficiency gemm_efficiency[GEMM_CLASSES] = {
    [GEMM_FP32] = {0.85, {0.89, 0.89, 0.89, 0.89}},
    [GEMM_W16A16] = {0.80, {0.89, 0.89, 0.89, 0.89}},
    [GEMM_W8A16] = {0.78, {0.75, 0.72, 0.70, 0.60}},
    [GEMM_W4A16] = {0.78, {0.62, 0.40, 0.31, 0.26}},
    [GEMM_W8A8] = {0.72, {0.82, 0.70, 0.68, 0.55}},
    [GEMM_W4A8] = {0.55, {0.62, 0.40, 0.31, 0.26}},
    [GEMM_FP8] = {0.68, {0.82, 0.80, 0.78, 0.70}},
};

static const double GEMM_FIXED_PS = 4.0e6; /* ramp-up and drain of a product's waves */
static const double GEMM_HALF_TOKENS = 16; /* rate efficiency is halved at so many tokens */
static const double POINTWISE_FIXED_PS = 1.5e6;
static const double POINTWISE_SHARE = 0.75;
static const double DECODE_FIXED_PS = 9.5e6; /* split-KV attention with its combination */
static const double DECODE_SHARE = 0.89;
static const double DECODE_SHARE_8BIT = 0.75; /* scales and conversion in the inner loop */
static const double DECODE_RATE = 0.40;       /* 16-bit rate at one row of queries a tile */
static const double PREFILL_FIXED_PS = 13.0e6;
static const double PREFILL_RATE = 0.66;
static const double PREFILL_HALF_TOKENS = 256;
static const double SCORE_BYTES = 8;        /* unfused: written, read, written, read, FP16 */
static const double SCORE_FIXED_PS = 4.0e6; /* unfused: two more kernels */

struct roofline {
    struct bt_gpu gpu;
    bool cpu; /* no kernels to launch, no ramps */
};

static enum gemm_class class_of(enum bt_weight_format weights, enum bt_act_format activations)
{
    int32_t w = bt_weight_format_bits(weights);
    int32_t a = bt_act_format_bits(activations);
    if (weights == BT_WEIGHT_FP8) {
        return GEMM_FP8;
    }
    if (a == 8) {
        return w == 4 ? GEMM_W4A8 : w == 8 ? GEMM_W8A8 : GEMM_W16A16;
    }
    if (w == 4 || w == 8) {
        return w == 4 ? GEMM_W4A16 : GEMM_W8A16;
    }
    return w == 32 || a == 32 ? GEMM_FP32 : GEMM_W16A16;
}

static double class_rate(const struct bt_gpu *gpu, enum gemm_class class)
{
    switch (class) {
    case GEMM_FP32:
        return gpu->fp32_flops_per_s;
    case GEMM_W16A16:
    case GEMM_W8A16:
    case GEMM_W4A16:
        return gpu->fp16_flops_per_s;
    case GEMM_W8A8:
    case GEMM_W4A8:
        return gpu->int8_ops_per_s;
    case GEMM_FP8:
        /* Without an FP8 unit the weights are widened and multiplied in 16 bits. */
        return gpu->fp8_flops_per_s > 0 ? gpu->fp8_flops_per_s : gpu->fp16_flops_per_s;
    case GEMM_CLASSES:
        break;
    }
    BT_ASSERT(!"a GEMM class");
    return 0;
}

double bt_roofline_rate(const struct bt_gpu *gpu, enum bt_weight_format weights,
                        enum bt_act_format activations)
{
    return class_rate(gpu, class_of(weights, activations));
}

/* Rows that the tensor cores compute for m tokens: tiles of 16 and 32, then multiples of 64. */
static double tile_tokens(int64_t m)
{
    if (m <= 16) {
        return 16;
    }
    return m <= 32 ? 32 : (double)((m + 63) / 64 * 64);
}

static double bandwidth_share(const struct gemm_efficiency *e, int64_t m)
{
    if ((double)m >= share_m[SHARE_POINTS - 1]) {
        return e->share[SHARE_POINTS - 1];
    }
    int32_t i = 0;
    while ((double)m >= share_m[i + 1]) {
        i++;
    }
    double at = log2((double)m / share_m[i]) / log2(share_m[i + 1] / share_m[i]);
    return e->share[i] + (e->share[i + 1] - e->share[i]) * at;
}

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static double gemm_ps(const void *self, const struct bt_law_gemm *g)
{
    const struct roofline *r = self;
    enum gemm_class class = class_of(g->weights, g->activations);
    const struct gemm_efficiency *e = &gemm_efficiency[class];
    double in_bytes = (double)bt_act_format_bits(g->activations) / 8;
    double out_bytes = class == GEMM_FP32 ? 4 : 2;
    double bytes = (double)bt_weight_matrix_bytes(g->n, g->k, g->weights) +
                   (double)g->m * ((double)g->k * in_bytes + (double)g->n * out_bytes);
    double rows = r->cpu ? (double)g->m : tile_tokens(g->m);
    double rate = class_rate(&r->gpu, class) * e->rate;
    rate *= r->cpu ? 1 : rows / (rows + GEMM_HALF_TOKENS);
    double memory_s = bytes / (r->gpu.mem_bytes_per_s * bandwidth_share(e, g->m));
    double compute_s = 2 * rows * (double)g->n * (double)g->k / rate;
    return (r->cpu ? 0 : GEMM_FIXED_PS) + 1e12 * max_of(memory_s, compute_s);
}

static double pointwise_ps(const void *self, enum bt_step_op op, int64_t m, int64_t width,
                           int64_t bytes)
{
    const struct roofline *r = self;
    (void)op;
    (void)m;
    (void)width;
    double s = (double)bytes / (r->gpu.mem_bytes_per_s * POINTWISE_SHARE);
    return (r->cpu ? 0 : POINTWISE_FIXED_PS) + 1e12 * s;
}

/* Bytes of K and V of one token in one layer on one rank, scales included. */
static double kv_token_bytes(const struct bt_law_attention *a)
{
    double scale = a->kv == BT_KV_INT8 ? 2 : 0;
    return 2.0 * a->n_kv_heads * ((double)a->head_dim * bt_kv_format_bits(a->kv) / 8 + scale);
}

static double attention_rate(const struct roofline *r, const struct bt_law_attention *a)
{
    return a->kv == BT_KV_FP32 ? r->gpu.fp32_flops_per_s : r->gpu.fp16_flops_per_s;
}

static void decode_ps(const void *self, const struct bt_law_attention *a, double *fixed_ps,
                      double *per_ctx_ps)
{
    const struct roofline *r = self;
    double queries = (double)a->tokens / (double)a->n_seqs;
    double bytes = kv_token_bytes(a);
    double flops = 4.0 * a->n_heads * a->head_dim * queries;
    double fixed = DECODE_FIXED_PS;
    if (!a->flash) {
        bytes += SCORE_BYTES * a->n_heads * queries;
        fixed += SCORE_FIXED_PS;
    }
    double share = bt_kv_format_bits(a->kv) == 8 ? DECODE_SHARE_8BIT : DECODE_SHARE;
    double memory_s = bytes / (r->gpu.mem_bytes_per_s * share);
    double compute_s = flops / (attention_rate(r, a) * DECODE_RATE);
    *fixed_ps = r->cpu ? 0 : fixed;
    *per_ctx_ps = 1e12 * max_of(memory_s, compute_s);
}

static double prefill_ps(const void *self, const struct bt_law_attention *a)
{
    const struct roofline *r = self;
    double chunk = (double)a->tokens / (double)a->n_seqs;
    double rate = attention_rate(r, a) * PREFILL_RATE;
    rate *= r->cpu ? 1 : chunk / (chunk + PREFILL_HALF_TOKENS);
    double bytes =
        kv_token_bytes(a) * (double)a->ctx + 4.0 * a->n_heads * a->head_dim * (double)a->tokens;
    double fixed = PREFILL_FIXED_PS;
    if (!a->flash) {
        bytes += SCORE_BYTES * a->n_heads * (double)a->pairs;
        fixed += SCORE_FIXED_PS;
    }
    double memory_s = bytes / (r->gpu.mem_bytes_per_s * DECODE_SHARE);
    double compute_s = 4.0 * a->n_heads * a->head_dim * (double)a->pairs / rate;
    return (r->cpu ? 0 : fixed) + 1e12 * max_of(memory_s, compute_s);
}

/* A ring all-reduce moves 2 (n-1)/n of the message over each rank's link, an all-gather half. */
static double collective_ps(const void *self, enum bt_step_op op, int64_t bytes, int32_t ranks)
{
    const struct roofline *r = self;
    double n = ranks;
    double moved = (double)bytes * (n - 1) / n * (op == BT_STEP_ALL_REDUCE ? 2 : 1);
    if (r->gpu.nvlink_bytes_per_s > 0) {
        double fixed_s = (4.0 + 0.1 * n) * 1e-6;
        return 1e12 * (fixed_s + moved / (r->gpu.nvlink_bytes_per_s / 2 * 0.55));
    }
    double link = r->gpu.pcie_bytes_per_s > 0 ? r->gpu.pcie_bytes_per_s : r->gpu.mem_bytes_per_s;
    /* All ranks share the host's bridge: each doubling of ranks costs four times the bandwidth. */
    double share = 0.63 * (2 / n) * (2 / n);
    return 1e12 * (3.0e-6 * n + moved / (link * share));
}

static void destroy(void *self)
{
    free(self);
}

static const struct bt_law_ops roofline_ops = {
    .name = "roofline",
    .gemm_ps = gemm_ps,
    .pointwise_ps = pointwise_ps,
    .decode_ps = decode_ps,
    .prefill_ps = prefill_ps,
    .collective_ps = collective_ps,
    .destroy = destroy,
};

enum bt_code bt_roofline_law_create(const struct bt_gpu *gpu, struct bt_law *out,
                                    struct bt_error *err)
{
    *out = (struct bt_law){0};
    if (!(gpu->mem_bytes_per_s > 0) || !(gpu->fp16_flops_per_s > 0 || gpu->fp32_flops_per_s > 0)) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "%s: memory bandwidth %g bytes/s and 16-bit rate %g flops/s must be > 0", gpu->name,
                gpu->mem_bytes_per_s, gpu->fp16_flops_per_s);
    }
    struct roofline *r = calloc(1, sizeof *r);
    if (r == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "roofline of %s: no memory", gpu->name);
    }
    r->gpu = *gpu;
    r->cpu = gpu->family == BT_GPU_CPU;
    if (!(gpu->fp16_flops_per_s > 0)) {
        r->gpu.fp16_flops_per_s = gpu->fp32_flops_per_s; /* widened and multiplied in FP32 */
    }
    *out = (struct bt_law){.ops = &roofline_ops, .self = r};
    return BT_OK;
}

/* Errors of the law, by class of product: P90 of |log(measured / roofline)| over the steps of the
 * worst measured GPU (bt_law_report, first table), times 1 + 1/n for n GPUs. Nobody has measured
 * FP32 or W4A8: the widest stands for them. */
static const double step_log_errors[GEMM_CLASSES] = {
    [GEMM_FP32] = 0.81, [GEMM_W16A16] = 0.27, [GEMM_W8A16] = 0.36, [GEMM_W4A16] = 0.81,
    [GEMM_W8A8] = 0.44, [GEMM_W4A8] = 0.81,   [GEMM_FP8] = 0.31,
};
/* The same of one operation's part of those steps (second table), at most a factor of 4. */
static const double gemm_log_errors[GEMM_CLASSES] = {
    [GEMM_FP32] = 1.13, [GEMM_W16A16] = 0.37, [GEMM_W8A16] = 0.47, [GEMM_W4A16] = 1.13,
    [GEMM_W8A8] = 0.57, [GEMM_W4A8] = 1.13,   [GEMM_FP8] = 0.41,
};
static const double DECODE_LOG_ERROR = 0.63;
static const double PREFILL_LOG_ERROR = 0.64;
static const double POINTWISE_LOG_ERROR = 1.27;
static const double COLLECTIVE_LOG_ERROR = 1.39;

double bt_roofline_step_error(enum bt_weight_format weights, enum bt_act_format activations)
{
    return expm1(step_log_errors[class_of(weights, activations)]);
}

double bt_roofline_log_error(enum bt_step_op op, enum bt_weight_format weights,
                             enum bt_act_format activations)
{
    switch (op) {
    case BT_STEP_QKV:
    case BT_STEP_O:
    case BT_STEP_GATE_UP:
    case BT_STEP_DOWN:
    case BT_STEP_LM_HEAD:
    case BT_STEP_MEDUSA:
        return gemm_log_errors[class_of(weights, activations)];
    case BT_STEP_ATTN_DECODE:
        return DECODE_LOG_ERROR;
    case BT_STEP_ATTN_PREFILL:
        return PREFILL_LOG_ERROR;
    case BT_STEP_ALL_REDUCE:
    case BT_STEP_ALL_GATHER:
        return COLLECTIVE_LOG_ERROR;
    case BT_STEP_EMBED:
    case BT_STEP_NORM:
    case BT_STEP_ADD:
    case BT_STEP_QUANTISE:
    case BT_STEP_QK_NORM:
    case BT_STEP_ROPE:
    case BT_STEP_KV_WRITE:
    case BT_STEP_ACTIVATION:
    case BT_STEP_SAMPLE:
        return POINTWISE_LOG_ERROR;
    case BT_STEP_OPS:
        break;
    }
    BT_ASSERT(!"an operation");
    return 0;
}

static enum bt_code check_units(const struct bt_step_opts *opts, const struct bt_step_model *m,
                                struct bt_error *err)
{
    enum bt_weight_format w = bt_weight_format_resolve(m->weights, m->arch);
    enum bt_act_format a = bt_act_format_resolve(m->activations, m->arch);
    struct bt_gpu gpu = *opts->gpu;
    if (!(gpu.fp16_flops_per_s > 0)) {
        gpu.fp16_flops_per_s = gpu.fp32_flops_per_s;
    }
    if (!(bt_roofline_rate(&gpu, w, a) > 0)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s has no unit for %s weights with %s activations",
                opts->gpu->name, bt_weight_format_name(w), bt_act_format_name(a));
    }
    return BT_OK;
}

enum bt_code bt_roofline_check_units(const struct bt_step_opts *opts, struct bt_error *err)
{
    BT_TRY(check_units(opts, &opts->target, err));
    return opts->spec == BT_SPEC_DRAFT ? check_units(opts, &opts->draft, err) : BT_OK;
}

double bt_roofline_peak(const struct bt_step_opts *opts)
{
    const struct bt_step_model *t = &opts->target;
    return bt_roofline_rate(opts->gpu, bt_weight_format_resolve(t->weights, t->arch),
                            bt_act_format_resolve(t->activations, t->arch));
}

enum bt_code bt_roofline_create(const struct bt_step_opts *opts, struct bt_cost *out,
                                struct bt_error *err)
{
    *out = (struct bt_cost){0};
    struct bt_step_opts o = *opts;
    struct bt_law law;
    struct bt_law draft = {0};
    BT_TRY(bt_roofline_check_units(opts, err));
    BT_TRY(bt_roofline_law_create(o.gpu, &law, err));
    if (o.spec == BT_SPEC_DRAFT) {
        enum bt_code code = bt_roofline_law_create(o.gpu, &draft, err);
        if (code != BT_OK) {
            law.ops->destroy(law.self);
            return code;
        }
    }
    if (!(o.peak_flops_per_s > 0)) {
        o.peak_flops_per_s = bt_roofline_peak(&o);
    }
    if (o.gpu->family == BT_GPU_CPU) {
        o.graph_node_ps = -1;
        o.launch_ps = -1;
    }
    BT_TRY(bt_step_cost_create(&o, law, draft, out, err));
    out->trust = BT_TRUST_ROOFLINE;
    double kernels =
        bt_roofline_step_error(bt_weight_format_resolve(o.target.weights, o.target.arch),
                               bt_act_format_resolve(o.target.activations, o.target.arch));
    out->step_error = hypot(kernels, BT_STEP_ASSEMBLY_ERROR);
    snprintf(out->weakest, sizeof out->weakest, "every operation");
    return BT_OK;
}
