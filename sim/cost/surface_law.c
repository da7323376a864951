#include "sim/cost/surface_law.h"

#include "sim/cost/curve.h"
#include "sim/cost/roofline.h"
#include "sim/cost/stack_speed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KV_CLASSES = 2, /* the pool's format and its 16-bit class */
    MESSAGE_MIN_BYTES = 256,
    MESSAGE_MAX_BYTES = 1 << 30,
    TOKENS_MAX = 1 << 17,
};

static const double PS_PER_NS = 1000;

/* A number format that stands in for another (an FP8 cache for an int8 one, one scale a channel for
 * groups) widens the bound by so much: the bytes of scales, and kernels that differ. */
static const double STAND_IN_LOG = 0.0953101798043249; /* log 1.1 */

/* One operation that runs over its main coordinate at fixed other ones. */
struct op_curve {
    const struct bt_op_source *source; /* NULL: the roofline answers */
    struct bt_op_shape shape;          /* of the fixed coordinates */
    double most_flops;                 /* FLOP/s that products hold in serving; 0: no limit */
    double scale;                      /* of the source's time; 0: 1 */
    struct bt_curve curve;
};

struct attention {
    enum bt_kv_format kv;
    const struct bt_op_source *decode, *prefill; /* NULL: the roofline answers */
    const struct bt_skew *skew;                  /* borrowed from the library; NULL: none */
    struct bt_affine affine;
    struct bt_plane decodes; /* ps by context of each sequence and sequences */
    struct bt_plane chunks;  /* ps by query tokens and sequences, no KV before them */
};

struct surface_law {
    struct bt_law roofline; /* owned */
    struct bt_arch_shard shard;
    int32_t head_dim, tp;
    struct op_curve ops[BT_STEP_OPS]; /* attention apart */
    struct op_curve second;           /* collectives: the library beside the stack's own kernel */
    int32_t n_attention;
    struct attention attention[KV_CLASSES];
    struct bt_op_origin origins[BT_STEP_OPS];
};

/* Making it. */
struct maker {
    const struct bt_surface_law_opts *o;
    struct surface_law *law;
    const struct bt_arch *arch;
    enum bt_weight_format weights, head_weights;
    enum bt_act_format activations;
    struct bt_stack_name stack;
    struct bt_error *err;
};

static bool is_16(int32_t bits)
{
    return bits == 16;
}

/* Formats of a product as kernels are measured; false: in none. */
static bool gemm_format(const struct bt_gpu *gpu, enum bt_weight_format w, enum bt_act_format a,
                        struct bt_op_format *out)
{
    int32_t act_bits = bt_act_format_bits(a);
    *out = (struct bt_op_format){.weights = bt_num_from_weight(w), .activations = BT_NUM_BF16};
    if (w == BT_WEIGHT_FP8) {
        bool unit = gpu->fp8_flops_per_s > 0;
        /* Without the unit weights are widened, as 8-bit integers are. */
        out->weights = unit ? BT_NUM_FP8 : BT_NUM_INT8;
        out->activations = unit ? BT_NUM_FP8 : BT_NUM_BF16;
        return true;
    }
    if (is_16(bt_weight_format_bits(w))) {
        out->weights = BT_NUM_BF16;
        return act_bits != 32;
    }
    if (act_bits == 8) {
        out->activations = BT_NUM_INT8;
    }
    return bt_weight_format_bits(w) < 16 && act_bits != 32;
}

static bool kv_format(enum bt_kv_format kv, struct bt_op_format *out)
{
    int32_t bits = bt_kv_format_bits(kv);
    *out = (struct bt_op_format){.activations = BT_NUM_BF16,
                                 .kv = bits == 8 ? BT_NUM_FP8 : BT_NUM_BF16};
    return bits != 32;
}

static enum bt_code find(struct maker *m, enum bt_op op, const struct bt_op_format *f,
                         const char *stack, const struct bt_op_source **out)
{
    struct bt_source_query q = {
        .op = op,
        .format = *f,
        .gpu = m->o->gpu->name,
        .stack = stack == NULL ? m->stack : bt_stack_name_of(stack),
        .heads = m->law->shard.n_heads,
        .kv_heads = m->law->shard.n_kv_heads,
        .head_dim = m->arch->head_dim,
        .without = m->o->without,
    };
    return bt_surface_library_find(m->o->library, &q, out, m->err);
}

/* Likewise, but the stack's own surface in exactly this format; NULL: it has none. */
static enum bt_code find_own(struct maker *m, enum bt_op op, const struct bt_op_format *f,
                             const struct bt_op_source **out)
{
    BT_TRY(find(m, op, f, NULL, out));
    const struct bt_op_source *s = *out;
    if (s != NULL &&
        (s->surface == NULL || !s->same_format || strcmp(s->surface->stack, m->stack.stack) != 0)) {
        *out = NULL;
    }
    return BT_OK;
}

/* Whether a product's matrix is on the surface's grid along n and k. */
static bool matrix_is_measured(const struct bt_surface *s, int64_t n, int64_t k)
{
    const struct bt_lattice *g = &s->grid;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (g->measured[i] && g->at[1][i / g->stride[1] % g->side[1]] == n &&
            g->at[2][i / g->stride[2] % g->side[2]] == k) {
            return true;
        }
    }
    return false;
}

/* Operations that the roofline answers for alike are wrong together. */
static const void *roofline_source(enum bt_step_op op)
{
    static const char products, collectives, elementwise, decode, prefill;
    switch (op) {
    case BT_STEP_QKV:
    case BT_STEP_O:
    case BT_STEP_GATE_UP:
    case BT_STEP_DOWN:
    case BT_STEP_LM_HEAD:
    case BT_STEP_MEDUSA:
        return &products;
    case BT_STEP_ALL_REDUCE:
    case BT_STEP_ALL_GATHER:
        return &collectives;
    case BT_STEP_ATTN_DECODE:
        return &decode;
    case BT_STEP_ATTN_PREFILL:
        return &prefill;
    case BT_STEP_EMBED:
    case BT_STEP_NORM:
    case BT_STEP_ADD:
    case BT_STEP_QUANTISE:
    case BT_STEP_QK_NORM:
    case BT_STEP_ROPE:
    case BT_STEP_KV_WRITE:
    case BT_STEP_ACTIVATION:
    case BT_STEP_SAMPLE:
    case BT_STEP_OPS:
        break;
    }
    return &elementwise;
}

static void note(struct maker *m, enum bt_step_op op, const struct bt_op_source *s,
                 double more_log_error)
{
    struct bt_op_origin *o = &m->law->origins[op];
    if (s == NULL) {
        enum bt_weight_format w = op == BT_STEP_LM_HEAD ? m->head_weights : m->weights;
        *o = (struct bt_op_origin){.source = roofline_source(op),
                                   .level = BT_TRUST_ROOFLINE,
                                   .log_error = bt_roofline_log_error(op, w, m->activations)};
        (void)snprintf(o->text, sizeof o->text, "data sheet");
        return;
    }
    double stand_in = s->same_format ? 0 : STAND_IN_LOG;
    *o = (struct bt_op_origin){.source = s, .level = s->level};
    o->log_error = sqrt(s->log_error * s->log_error + stand_in * stand_in) + more_log_error;
    (void)snprintf(o->text, sizeof o->text, "%s", s->text);
}

/* A whole operation at a value of its main coordinate. */
static double curve_point(const void *ctx, int64_t x)
{
    const struct op_curve *c = ctx;
    struct bt_op_shape shape = c->shape;
    *bt_op_main_coordinate(c->source->op, &shape) = x;
    double ps =
        PS_PER_NS * bt_op_source_ns(c->source, &shape, NULL) * (c->scale > 0 ? c->scale : 1);
    if (c->most_flops > 0) {
        double flops = bt_op_work(c->source->op, &c->source->format, &shape).flops;
        ps = fmax(ps, flops / c->most_flops * 1e12);
    }
    return ps;
}

/* The source's own bends within low .. high, with both ends, and powers of two beyond them. */
static int32_t knots_of(const struct bt_op_source *s, int64_t low, int64_t high,
                        int64_t out[BT_CURVE_NODES_MAX])
{
    enum { DOUBLINGS_MAX = 40 };
    int64_t own[BT_CURVE_NODES_MAX - DOUBLINGS_MAX];
    int32_t n_own = bt_op_source_knots(s, own, BT_CURVE_NODES_MAX - DOUBLINGS_MAX);
    int32_t n = 0;
    out[n++] = low;
    for (int32_t i = 0; i < n_own; i++) {
        if (own[i] > out[n - 1] && own[i] < high) {
            out[n++] = own[i];
        }
    }
    while (out[n - 1] * 2 < high && n < BT_CURVE_NODES_MAX - 1) {
        out[n] = out[n - 1] * 2;
        n++;
    }
    out[n++] = high;
    return n;
}

static enum bt_code compile(struct maker *m, struct op_curve *c, int64_t low, int64_t high)
{
    int64_t knots[BT_CURVE_NODES_MAX];
    int32_t n = knots_of(c->source, low, high, knots);
    return bt_curve_init(&c->curve, knots, n, curve_point, c, m->err);
}

/* What serving makes of a product's measured time. */
static void limit_product(const struct maker *m, struct op_curve *c, const struct bt_op_format *f)
{
    struct bt_stack_speed speed = bt_stack_speed_of(m->o->stack, m->o->gpu);
    if (bt_num_is_fp8(f->weights)) {
        c->most_flops = speed.most_flops_fp8;
        c->scale = c->source->level == BT_TRUST_TRANSFERRED ? speed.fp8_stand_in : 1;
    } else if (!bt_num_is_int8(f->activations)) { /* weight-only formats multiply in 16 bits */
        c->most_flops = speed.most_flops_16bit;
    }
}

static enum bt_code make_gemm(struct maker *m, enum bt_step_op op, int64_t n, int64_t k)
{
    struct op_curve *c = &m->law->ops[op];
    enum bt_weight_format w = op == BT_STEP_LM_HEAD ? m->head_weights : m->weights;
    enum bt_act_format a = m->activations;
    if (op == BT_STEP_MEDUSA) {
        w = bt_weight_format_bits(w) == 32 ? BT_WEIGHT_FP32 : BT_WEIGHT_FP16;
    }
    if ((op == BT_STEP_LM_HEAD || op == BT_STEP_MEDUSA) && bt_act_format_bits(a) == 8) {
        a = BT_ACT_FP16;
    }
    struct bt_op_format f;
    c->shape = (struct bt_op_shape){.n = n, .k = k};
    if (gemm_format(m->o->gpu, w, a, &f)) {
        BT_TRY(find(m, BT_OP_GEMM, &f, NULL, &c->source));
    }
    double more = 0;
    if (c->source != NULL) {
        const struct bt_surface *s = c->source->surface;
        limit_product(m, c, &f);
        if (s != NULL && !matrix_is_measured(s, n, k) && s->grid.off_rest.n > 0) {
            more = fmax(log1p(s->grid.off_rest.p90) - log1p(s->grid.along.p90), 0);
        }
        BT_TRY(compile(m, c, 1, TOKENS_MAX));
    }
    note(m, op, c->source, more);
    return BT_OK;
}

/* What else the stack's own kernel does: the norm and the activation round for an INT8 product,
 * RoPE writes the cache. */
static struct bt_op_format own_format(const struct maker *m, enum bt_op op)
{
    struct bt_op_format f = {.activations = BT_NUM_BF16};
    bool rounds = op == BT_OP_NORM || op == BT_OP_ACTIVATION;
    if (rounds && bt_act_format_bits(m->activations) == 8) {
        f.activations = BT_NUM_INT8;
    }
    if (op == BT_OP_ROPE) {
        f.kv = bt_num_from_kv(bt_kv_format_resolve(m->o->model->kv, m->arch));
    }
    return f;
}

static enum bt_code make_pointwise(struct maker *m, enum bt_step_op op, enum bt_op measured,
                                   int64_t width)
{
    struct op_curve *c = &m->law->ops[op];
    struct bt_op_format f = {.activations = BT_NUM_BF16}, own = own_format(m, measured);
    c->shape = (struct bt_op_shape){.n = width};
    if (bt_act_format_bits(m->activations) != 32) {
        BT_TRY(find_own(m, measured, &own, &c->source));
        if (c->source == NULL) {
            BT_TRY(find(m, measured, &f, NULL, &c->source));
        }
    }
    if (c->source != NULL) {
        BT_TRY(compile(m, c, 1, TOKENS_MAX));
    }
    note(m, op, c->source, 0);
    return BT_OK;
}

static enum bt_code make_collective(struct maker *m, enum bt_step_op op)
{
    struct surface_law *l = m->law;
    struct op_curve *c = &l->ops[op];
    struct bt_op_format f = {.activations = BT_NUM_BF16};
    c->shape = (struct bt_op_shape){.ranks = l->tp};
    if (l->tp > 1) {
        /* A few bytes of candidates: an all-gather takes an all-reduce's latency. */
        BT_TRY(find(m, BT_OP_ALLREDUCE, &f, NULL, &c->source));
    }
    if (c->source != NULL) {
        BT_TRY(compile(m, c, MESSAGE_MIN_BYTES, MESSAGE_MAX_BYTES));
    }
    if (op == BT_STEP_ALL_REDUCE && c->source != NULL && l->second.source == NULL) {
        /* Engines send large messages by NCCL and small ones by a kernel of their own. */
        l->second.shape = c->shape;
        BT_TRY(find(m, BT_OP_ALLREDUCE, &f, "nccl", &l->second.source));
        bool nccl = l->second.source != NULL && l->second.source->surface != NULL &&
                    l->second.source != c->source;
        if (nccl) {
            BT_TRY(compile(m, &l->second, MESSAGE_MIN_BYTES, MESSAGE_MAX_BYTES));
        } else {
            l->second.source = NULL;
        }
    }
    note(m, op, c->source, 0);
    return BT_OK;
}

/* What the fits ask. */
struct attention_ask {
    const struct bt_op_source *source;
    struct bt_op_shape heads;
};

static double decode_point(const void *ctx, int64_t seqs, int64_t context)
{
    const struct attention_ask *a = ctx;
    struct bt_op_shape shape = a->heads;
    shape.batch = seqs;
    shape.ctx = context;
    return PS_PER_NS * bt_op_source_ns(a->source, &shape, NULL);
}

static double decode_plane_point(const void *ctx, int64_t context, int64_t seqs)
{
    return decode_point(ctx, seqs, context);
}

static double chunk_point(const void *ctx, int64_t tokens, int64_t seqs)
{
    const struct attention_ask *a = ctx;
    struct bt_op_shape shape = a->heads;
    shape.batch = seqs;
    shape.q_len = tokens;
    return PS_PER_NS * bt_op_source_ns(a->source, &shape, NULL);
}

static const int64_t seqs_nodes[] = {1,  2,  4,   8,   12,  16,  24,  32,  48,
                                     64, 96, 128, 192, 256, 384, 512, 768, 1024};
enum { SEQS_NODES = sizeof seqs_nodes / sizeof *seqs_nodes };

/* Contexts between which decode attention is taken to be straight. */
static const int64_t knot_ctx[BT_LAW_KNOTS] = {1,     32,    64,    128,   256,   512,   768,
                                               1024,  1536,  2048,  3072,  4096,  6144,  8192,
                                               12288, 16384, 24576, 32768, 65536, 131072};

/* Contexts over which decode attention is made affine, where a curve is not asked for: what most
 * requests have, in equal steps of the logarithm, up to what the model allows. */
static int32_t fit_contexts(const struct bt_arch *arch, int64_t out[16])
{
    const int64_t least = 256;
    const int64_t most = 16384;
    int32_t n = 0;
    for (int64_t c = least; c <= most && (c <= arch->max_position || n < 2); c *= 2) {
        out[n++] = c;
    }
    return n;
}

/* One kernel for chunks and decodes, measured together. */
static bool is_mixed(const struct bt_op_source *s)
{
    return s != NULL && s->surface != NULL && s->surface->op == BT_OP_ATTN_MIXED;
}

static enum bt_code make_attention(struct maker *m, enum bt_kv_format kv, bool names)
{
    struct surface_law *l = m->law;
    struct attention *a = &l->attention[l->n_attention];
    struct bt_op_format f;
    *a = (struct attention){.kv = kv};
    bool fp8_stands_in = false;
    if (kv == BT_KV_INT8) {
        f = (struct bt_op_format){.activations = BT_NUM_BF16, .kv = BT_NUM_INT8};
        BT_TRY(find_own(m, BT_OP_ATTN_DECODE, &f, &a->decode));
        BT_TRY(find_own(m, BT_OP_ATTN_PREFILL, &f, &a->prefill));
        fp8_stands_in = a->decode == NULL || a->prefill == NULL;
    }
    if ((kv != BT_KV_INT8 || fp8_stands_in) && kv_format(kv, &f)) {
        BT_TRY(find(m, BT_OP_ATTN_DECODE, &f, NULL, &a->decode));
        BT_TRY(find(m, BT_OP_ATTN_PREFILL, &f, NULL, &a->prefill));
    }
    l->n_attention++;
    struct attention_ask ask = {.source = a->decode,
                                .heads = {.heads = l->shard.n_heads,
                                          .kv_heads = l->shard.n_kv_heads,
                                          .head_dim = l->head_dim}};
    double stand_in = fp8_stands_in ? STAND_IN_LOG : 0;
    if (a->decode != NULL) {
        int64_t contexts[16];
        int32_t n = fit_contexts(m->arch, contexts);
        bt_affine_fit(&a->affine, seqs_nodes, SEQS_NODES, contexts, n, decode_point, &ask);
        BT_TRY(bt_plane_init(&a->decodes, knot_ctx, BT_LAW_KNOTS, seqs_nodes, SEQS_NODES,
                             decode_plane_point, &ask, m->err));
        if (is_mixed(a->decode)) {
            BT_TRY(bt_surface_library_skew(m->o->library, m->o->gpu->name,
                                           a->decode->surface->stack, &a->skew, m->err));
        }
    }
    if (a->prefill != NULL) {
        static const int64_t seqs[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256};
        int64_t tokens[BT_PLANE_SIDE_MAX];
        int32_t n = 0;
        for (int64_t t = 1; t <= TOKENS_MAX && n + 1 < BT_PLANE_SIDE_MAX; t *= 2) {
            tokens[n++] = t;
            if (t > 1) {
                tokens[n++] = t + t / 2;
            }
        }
        ask.source = a->prefill;
        BT_TRY(bt_plane_init(&a->chunks, tokens, n, seqs, sizeof seqs / sizeof *seqs, chunk_point,
                             &ask, m->err));
    }
    if (names) {
        note(m, BT_STEP_ATTN_DECODE, a->decode, stand_in);
        note(m, BT_STEP_ATTN_PREFILL, a->prefill, stand_in);
        if (fp8_stands_in) {
            for (int32_t op = BT_STEP_ATTN_DECODE; op <= BT_STEP_ATTN_PREFILL; op++) {
                l->origins[op].level = bt_trust_min(l->origins[op].level, BT_TRUST_TRANSFERRED);
            }
        }
    }
    return BT_OK;
}

static enum bt_code make_all(struct maker *m)
{
    const struct bt_arch_shard *s = &m->law->shard;
    int64_t h = m->arch->hidden;
    int64_t up = (m->arch->mlp_gated ? 2 : 1) * (int64_t)s->intermediate;
    BT_TRY(make_gemm(m, BT_STEP_QKV, s->q_dim + 2 * (int64_t)s->kv_dim, h));
    BT_TRY(make_gemm(m, BT_STEP_O, h, s->q_dim));
    BT_TRY(make_gemm(m, BT_STEP_GATE_UP, up, h));
    BT_TRY(make_gemm(m, BT_STEP_DOWN, h, s->intermediate));
    BT_TRY(make_gemm(m, BT_STEP_LM_HEAD, s->vocab, h));
    if (m->o->medusa) {
        BT_TRY(make_gemm(m, BT_STEP_MEDUSA, h, h));
    }
    BT_TRY(make_pointwise(m, BT_STEP_NORM, BT_OP_NORM, h));
    BT_TRY(make_pointwise(m, BT_STEP_ADD, BT_OP_ADD, h));
    BT_TRY(make_pointwise(m, BT_STEP_ROPE, BT_OP_ROPE, (int64_t)s->q_dim + s->kv_dim));
    BT_TRY(make_pointwise(m, BT_STEP_ACTIVATION, BT_OP_ACTIVATION, s->intermediate));
    BT_TRY(make_pointwise(m, BT_STEP_EMBED, BT_OP_EMBEDDING, h));
    BT_TRY(make_pointwise(m, BT_STEP_SAMPLE, BT_OP_SAMPLE, s->vocab));
    BT_TRY(make_collective(m, BT_STEP_ALL_REDUCE));
    BT_TRY(make_collective(m, BT_STEP_ALL_GATHER));
    enum bt_kv_format kv = bt_kv_format_resolve(m->o->model->kv, m->arch);
    BT_TRY(make_attention(m, kv, true));
    if (bt_kv_format_bits(kv) == 8) {
        BT_TRY(make_attention(m, BT_KV_FP16, false));
    }
    return BT_OK;
}

static double gemm_ps(const void *self, const struct bt_law_gemm *g)
{
    const struct surface_law *l = self;
    const struct op_curve *c = &l->ops[g->op];
    if (c->source == NULL || c->shape.n != g->n || c->shape.k != g->k) {
        return l->roofline.ops->gemm_ps(l->roofline.self, g);
    }
    return bt_curve_ps(&c->curve, (double)g->m);
}

/* Bytes that the measured kernel moves: what its profile says (sample.h), and for our own, which
 * were timed as they run, what a fused step asks for. */
static double measured_bytes(const struct op_curve *c, enum bt_step_op op, int64_t m)
{
    struct bt_op_shape shape = c->shape;
    shape.m = m;
    if (c->source->level == BT_TRUST_MEASURED && op == BT_STEP_NORM) {
        double out_bytes = c->source->format.activations == BT_NUM_INT8 ? 1 : 2;
        return (double)m * (double)shape.n * (3 * 2 + out_bytes);
    }
    if (c->source->level == BT_TRUST_MEASURED && op == BT_STEP_SAMPLE) {
        return (double)m * (double)shape.n * 8;
    }
    return bt_op_work(c->source->op, &c->source->format, &shape).bytes;
}

/* A fusion that moves more or less than the measured kernel takes more or less beyond the fixed
 * time. */
static double pointwise_ps(const void *self, enum bt_step_op op, int64_t m, int64_t width,
                           int64_t bytes)
{
    const struct surface_law *l = self;
    const struct op_curve *c = &l->ops[op];
    double bare = l->roofline.ops->pointwise_ps(l->roofline.self, op, m, width, bytes);
    if (c->source == NULL || c->shape.n != width) {
        return bare;
    }
    double usual = measured_bytes(c, op, m);
    double usual_ps = l->roofline.ops->pointwise_ps(l->roofline.self, op, m, width, (int64_t)usual);
    return fmax(bt_curve_ps(&c->curve, (double)m) + bare - usual_ps, 0);
}

static const struct attention *attention_of(const struct surface_law *l,
                                            const struct bt_law_attention *a)
{
    if (a->n_heads != l->shard.n_heads || a->n_kv_heads != l->shard.n_kv_heads ||
        a->head_dim != l->head_dim) {
        return NULL;
    }
    bool is_16_bit = bt_kv_format_bits(a->kv) == 16;
    for (int32_t i = 0; i < l->n_attention; i++) {
        enum bt_kv_format kv = l->attention[i].kv;
        if (kv == a->kv || (is_16_bit && bt_kv_format_bits(kv) == 16)) {
            return &l->attention[i];
        }
    }
    return NULL;
}

/* Verification asks for several query tokens a sequence, and attention without flash moves scores:
 * as much more as the roofline says. */
struct more {
    double fixed_ps; /* added */
    double share;    /* of what grows with context, times */
};

static struct more decode_more(const struct surface_law *l, const struct bt_law_attention *a)
{
    struct more more = {0, 1};
    if (a->tokens > a->n_seqs || !a->flash) {
        struct bt_law_attention plain = *a;
        double fixed = 0, slope = 0, plain_fixed = 0, plain_slope = 0;
        plain.tokens = a->n_seqs;
        plain.flash = true;
        l->roofline.ops->decode_ps(l->roofline.self, a, &fixed, &slope);
        l->roofline.ops->decode_ps(l->roofline.self, &plain, &plain_fixed, &plain_slope);
        more.fixed_ps = fixed - plain_fixed;
        more.share = slope / plain_slope;
    }
    return more;
}

static void decode_ps(const void *self, const struct bt_law_attention *a, double *fixed_ps,
                      double *per_ctx_ps)
{
    const struct surface_law *l = self;
    const struct attention *t = attention_of(l, a);
    if (t == NULL || t->decode == NULL) {
        l->roofline.ops->decode_ps(l->roofline.self, a, fixed_ps, per_ctx_ps);
        return;
    }
    struct more more = decode_more(l, a);
    bt_affine_at(&t->affine, (double)a->n_seqs, fixed_ps, per_ctx_ps);
    *fixed_ps += more.fixed_ps;
    *per_ctx_ps *= more.share;
}

/* At equal contexts, a sequence. */
static double even_ps(const struct attention *t, const struct more *more, double seqs, double ctx)
{
    double none = bt_plane_ps(&t->decodes, (double)knot_ctx[0], seqs);
    double ps = bt_plane_ps(&t->decodes, fmax(ctx, 1), seqs);
    return more->fixed_ps + none + (ps - none) * more->share;
}

static bool decode_curve(const void *self, const struct bt_law_attention *a,
                         struct bt_law_curve *out)
{
    const struct surface_law *l = self;
    const struct attention *t = attention_of(l, a);
    if (t == NULL || t->decode == NULL) {
        return false;
    }
    struct more more = decode_more(l, a);
    out->n = BT_LAW_KNOTS;
    for (int32_t i = 0; i < BT_LAW_KNOTS; i++) {
        out->ctx[i] = knot_ctx[i] * a->n_seqs;
        out->ps[i] = even_ps(t, &more, (double)a->n_seqs, (double)knot_ctx[i]);
    }
    out->skew = t->skew != NULL ? bt_skew_alpha(t->skew, 0, a->n_seqs, BT_SKEW_USUAL_SHARE) : 0;
    return true;
}

/* Chunks in one kernel with decodes: each of mean length behind a mean prefix. */
static double mixed_ps(const void *self, const struct bt_law_attention *p,
                       const struct bt_law_attention *d)
{
    const struct surface_law *l = self;
    const struct attention *t = attention_of(l, p);
    BT_ASSERT(t != NULL && is_mixed(t->prefill));
    double chunks = (double)p->n_seqs;
    struct bt_op_shape shape = {.heads = p->n_heads,
                                .kv_heads = p->n_kv_heads,
                                .head_dim = p->head_dim,
                                .batch = d->n_seqs,
                                .q_len = (int64_t)fmax(round((double)p->tokens / chunks), 1),
                                .prefix = (int64_t)round((double)(p->ctx - p->tokens) / chunks)};
    double ps = 0;
    if (d->n_seqs > 0) {
        double ctx = fmax((double)d->ctx / (double)d->n_seqs, 1);
        struct more more = decode_more(l, d);
        ps = even_ps(t, &more, (double)d->n_seqs, ctx);
        shape.ctx = (int64_t)round(ctx);
    }
    return ps + PS_PER_NS * bt_op_source_chunks_ns(t->prefill, &shape, p->n_seqs);
}

/* A chunk behind cached tokens takes the whole prompt's time by its share of query-key pairs, and
 * never less than the chunk alone (docs/SURFACES.md). */
static double prefill_ps(const void *self, const struct bt_law_attention *a)
{
    const struct surface_law *l = self;
    const struct attention *t = attention_of(l, a);
    if (t == NULL || t->prefill == NULL) {
        return l->roofline.ops->prefill_ps(l->roofline.self, a);
    }
    double seqs = (double)a->n_seqs;
    double q = (double)a->tokens / seqs;
    double pairs = (double)a->pairs / seqs;
    double before = fmax(pairs / q - (q + 1) / 2, 0);
    double ps = bt_plane_ps(&t->chunks, q, seqs);
    if (before > 0) {
        double whole = q + before;
        double share = pairs / (whole * (whole + 1) / 2);
        ps = fmax(ps, share * bt_plane_ps(&t->chunks, whole, seqs));
    }
    if (!a->flash) {
        struct bt_law_attention plain = *a;
        plain.flash = true;
        ps += l->roofline.ops->prefill_ps(l->roofline.self, a) -
              l->roofline.ops->prefill_ps(l->roofline.self, &plain);
    }
    return ps;
}

static double collective_ps(const void *self, enum bt_step_op op, int64_t bytes, int32_t ranks)
{
    const struct surface_law *l = self;
    const struct op_curve *c = &l->ops[op];
    if (c->source == NULL || ranks != l->tp) {
        return l->roofline.ops->collective_ps(l->roofline.self, op, bytes, ranks);
    }
    double ps = bt_curve_ps(&c->curve, (double)bytes);
    if (op == BT_STEP_ALL_REDUCE && l->second.source != NULL) {
        ps = fmin(ps, bt_curve_ps(&l->second.curve, (double)bytes));
    }
    return ps;
}

static void destroy(void *self)
{
    struct surface_law *l = self;
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        bt_curve_fini(&l->ops[op].curve);
    }
    bt_curve_fini(&l->second.curve);
    for (int32_t i = 0; i < KV_CLASSES; i++) {
        bt_plane_fini(&l->attention[i].chunks);
        bt_plane_fini(&l->attention[i].decodes);
    }
    if (l->roofline.ops != NULL) {
        l->roofline.ops->destroy(l->roofline.self);
    }
    free(l);
}

static const struct bt_law_ops surface_ops = {
    .name = "surfaces",
    .gemm_ps = gemm_ps,
    .pointwise_ps = pointwise_ps,
    .decode_ps = decode_ps,
    .prefill_ps = prefill_ps,
    .decode_curve = decode_curve,
    .collective_ps = collective_ps,
    .destroy = destroy,
};

/* Where one kernel attends for chunks and decodes together. */
static const struct bt_law_ops mixed_ops = {
    .name = "surfaces",
    .gemm_ps = gemm_ps,
    .pointwise_ps = pointwise_ps,
    .decode_ps = decode_ps,
    .prefill_ps = prefill_ps,
    .decode_curve = decode_curve,
    .mixed_ps = mixed_ps,
    .collective_ps = collective_ps,
    .destroy = destroy,
};

enum bt_code bt_surface_law_create(const struct bt_surface_law_opts *opts, struct bt_law *out,
                                   struct bt_error *err)
{
    *out = (struct bt_law){0};
    struct surface_law *l = calloc(1, sizeof *l);
    if (l == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "surfaces of %s: no memory", opts->gpu->name);
    }
    const struct bt_arch *arch = opts->model->arch;
    l->tp = opts->tp > 0 ? opts->tp : 1;
    l->shard = bt_arch_shard(arch, l->tp);
    l->head_dim = arch->head_dim;
    enum bt_weight_format w = bt_weight_format_resolve(opts->model->weights, arch);
    struct maker m = {
        .o = opts,
        .law = l,
        .arch = arch,
        .weights = w,
        .head_weights = opts->model->quantise_lm_head || w == BT_WEIGHT_FP32 ? w : BT_WEIGHT_FP16,
        .activations = bt_act_format_resolve(opts->model->activations, arch),
        .stack = bt_stack_name_of(opts->stack),
        .err = err,
    };
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        note(&m, (enum bt_step_op)op, NULL, 0);
    }
    enum bt_code code = bt_roofline_law_create(opts->gpu, &l->roofline, err);
    if (code == BT_OK) {
        code = make_all(&m);
    }
    if (code != BT_OK) {
        destroy(l);
        return code;
    }
    bool mixed = is_mixed(l->attention[0].decode) && is_mixed(l->attention[0].prefill);
    *out = (struct bt_law){.ops = mixed ? &mixed_ops : &surface_ops, .self = l};
    return BT_OK;
}

const struct bt_op_origin *bt_surface_law_origins(const struct bt_law *law)
{
    BT_ASSERT(law->ops == &surface_ops || law->ops == &mixed_ops);
    return ((const struct surface_law *)law->self)->origins;
}

double bt_surface_law_affine_error(const struct bt_law *law)
{
    BT_ASSERT(law->ops == &surface_ops || law->ops == &mixed_ops);
    return ((const struct surface_law *)law->self)->attention[0].affine.residual_p90;
}
