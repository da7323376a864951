#include "sim/cost/step.h"

#include "sim/cost/step_model.h"

#include <stdlib.h>

enum { PS_PER_NS = 1000 };

/* Defaults, with their sources in docs/COST_MODEL.md. */
enum {
    GRAPH_NODE_PS = 500 * PS_PER_NS,
    LAUNCH_PS = 3500 * PS_PER_NS,
    HOST_BASE_NS = 50000,
    HOST_PER_SEQ_NS = 400,
    TABLE_TOKENS_DEFAULT = 2048,
    TABLE_SEQS_DEFAULT = 256,
    TABLE_TOKENS_MAX = 32768, /* 256 KiB a table; larger steps are computed */
};
static const double DEVICE_COPY_SHARE = 0.9;
/* A copy over the link without a measured curve: a fixed time, then this share of the standard's
 * rate. */
static const double LINK_FIXED_S = 2e-6;
static const double LINK_SHARE = 0.87;

struct step_cost {
    struct bt_model_cost target;
    struct bt_model_cost draft; /* BT_SPEC_DRAFT and BT_SPEC_SELF */
    struct bt_law law;          /* owned */
    struct bt_law draft_law;    /* owned; ops NULL: none */
    enum bt_spec_kind spec;
    int64_t launch_ps;
    int64_t host_base_ns, host_per_seq_ns;
    int64_t overhead_ps;      /* of a step */
    int64_t block_copy_ps[3]; /* by enum bt_copy_kind */
    int64_t cow_fixed_ps;
};

static int64_t linear_ps(const struct bt_model_cost *m, int64_t tokens)
{
    if (tokens < m->n_linear) {
        return m->linear_ps[tokens];
    }
    struct bt_op_rows rows;
    bt_model_linear_rows(m, tokens, &rows);
    return bt_op_rows_ps(&rows, m->node_ps);
}

static int64_t logits_ps(const struct bt_model_cost *m, int64_t n)
{
    if (n < m->n_logits) {
        return m->logits_ps[n];
    }
    struct bt_op_rows rows;
    bt_model_logits_rows(m, n, &rows);
    return bt_op_rows_ps(&rows, m->node_ps);
}

/* KV that a step of decodes reads, by class and by kind of layer, in context tokens. */
struct reads {
    int64_t full, slide, full_16bit, slide_16bit;
};

static struct reads reads_of(const struct bt_model_cost *m, int64_t n, int64_t ctx, int64_t n_16bit,
                             int64_t ctx_16bit)
{
    return (struct reads){
        .full = ctx - ctx_16bit,
        .slide = bt_model_slide_ctx(m, n - n_16bit, ctx - ctx_16bit),
        .full_16bit = ctx_16bit,
        .slide_16bit = bt_model_slide_ctx(m, n_16bit, ctx_16bit),
    };
}

static const struct bt_decode_knot *knot_below(const struct bt_decode_row *row, int64_t ctx)
{
    int32_t i = row->n_knots - 1;
    while (i > 0 && row->knots[i].ctx > ctx) {
        i--;
    }
    return &row->knots[i];
}

/* Time of the layers without a window, of those with one, and what an uneven batch adds. */
struct curve_ps {
    int64_t full, slide, skew;
};

static struct curve_ps curve_at(const struct bt_decode_row *row, int64_t ctx)
{
    const struct bt_decode_knot *k = knot_below(row, ctx);
    int64_t beyond = ctx - k->ctx;
    return (struct curve_ps){
        .full = k->full_ps + k->full_slope_ps * beyond,
        .slide = k->slide_ps + k->slide_slope_ps * beyond,
        .skew = k->skew_ps + k->skew_slope_ps * beyond,
    };
}

/* The pool's class by the row's curve; `longest` is the batch's longest context. */
static int64_t curve_ps_of(const struct bt_decode_row *row, const struct reads *r, int64_t n,
                           int64_t longest)
{
    struct curve_ps mean = curve_at(row, r->full);
    int64_t ps = mean.full;
    if (row->knots[0].slide_ps > 0) {
        ps += curve_at(row, r->slide).slide;
    }
    int64_t most = n * longest;
    if (row->skew > 0 && most > r->full) {
        ps += row->skew * (curve_at(row, most).skew - mean.skew);
    }
    return ps;
}

static int64_t reads_ps(const struct bt_decode_row *row, const struct reads *r)
{
    if (row->n_knots > 0) {
        return row->full_16bit_ps * r->full_16bit + row->slide_16bit_ps * r->slide_16bit;
    }
    return row->full_ps * r->full + row->slide_ps * r->slide + row->full_16bit_ps * r->full_16bit +
           row->slide_16bit_ps * r->slide_16bit;
}

static int64_t reads_bytes(const struct bt_model_cost *m, const struct reads *r)
{
    return m->full_bytes * r->full + m->slide_bytes * r->slide +
           m->full_16bit_bytes * r->full_16bit + m->slide_16bit_bytes * r->slide_16bit;
}

static int64_t reads_flops(const struct bt_model_cost *m, const struct reads *r)
{
    return m->full_flops * (r->full + r->full_16bit) + m->slide_flops * (r->slide + r->slide_16bit);
}

static const struct bt_decode_row *decode_row(const struct bt_model_cost *m, int64_t n,
                                              int64_t tokens, struct bt_decode_row *scratch)
{
    /* A curve is of one query token a sequence: verification takes more (bt_model_verify_ps). */
    if (n < m->n_decode && (tokens == n || m->decode[n].n_knots > 0)) {
        return &m->decode[n];
    }
    bt_model_decode_row(m, n, tokens, scratch);
    return scratch;
}

/* Decode attention: of n sequences of which those in the pool's class have `longest` at most. */
static int64_t decode_ps(const struct bt_decode_row *row, const struct reads *r, int64_t n_pool,
                         int64_t longest)
{
    int64_t ps = row->fixed_ps + reads_ps(row, r);
    return row->n_knots > 0 && n_pool > 0 ? ps + curve_ps_of(row, r, n_pool, longest) : ps;
}

/* Decode attention of a batch, which may verify draft tokens. */
static int64_t batch_decode_ps(const struct bt_model_cost *m, const struct bt_batch *b,
                               const struct reads *r)
{
    struct bt_decode_row scratch;
    const struct bt_decode_row *row = decode_row(m, b->n_decode, b->n_decode_tokens, &scratch);
    int64_t ps = decode_ps(row, r, b->n_decode - b->n_16bit, b->decode_ctx_long);
    if (row->n_knots > 0 && b->n_decode_tokens > b->n_decode) {
        ps = bt_model_verify_ps(m, b->n_decode, b->n_decode_tokens, row, ps);
    }
    return ps;
}

/* One token each of n sequences through the whole model: a draft's pass. */
static void add_pass(const struct bt_model_cost *m, int64_t n, int64_t ctx,
                     struct bt_cost_parts *out)
{
    struct bt_decode_row scratch;
    const struct bt_decode_row *row = decode_row(m, n, n, &scratch);
    struct reads r = reads_of(m, n, ctx, 0, 0);
    out->time_ps += linear_ps(m, n) + logits_ps(m, n) + decode_ps(row, &r, n, 0);
    out->flops += n * (m->linear_flops + m->head_flops) + reads_flops(m, &r);
    out->bytes +=
        m->weight_bytes + m->head_bytes + n * (m->token_bytes + m->row_bytes) + reads_bytes(m, &r);
}

/* Prompt tokens that the draft has not seen yet, all sequences in one pass. The batch does not say
 * how they are spread: each is taken to see the mean context. */
static void add_catchup(const struct bt_model_cost *m, const struct bt_batch *b,
                        struct bt_cost_parts *out)
{
    int64_t tokens = b->n_catchup_tokens;
    int64_t n = b->n_decode < tokens ? b->n_decode : tokens;
    int64_t mean_ctx = b->decode_ctx / b->n_decode;
    int64_t pairs = tokens * mean_ctx;
    int64_t ctx = n * mean_ctx;
    out->time_ps += linear_ps(m, tokens) + bt_model_prefill_ps(m, n, tokens, pairs, ctx);
    out->flops += tokens * m->linear_flops + pairs * (m->full_flops + m->slide_flops);
    out->bytes +=
        m->weight_bytes + tokens * m->token_bytes + ctx * (m->full_bytes + m->slide_bytes);
}

/* Medusa: each head is a hidden x hidden product, then one lm_head over the rows of all heads. */
static void add_medusa(const struct bt_model_cost *m, int64_t n, int64_t heads,
                       struct bt_cost_parts *out)
{
    int64_t h = m->arch.hidden;
    struct bt_law_gemm g = {.op = BT_STEP_MEDUSA,
                            .m = n,
                            .n = h,
                            .k = h,
                            .weights =
                                m->weights == BT_WEIGHT_FP32 ? BT_WEIGHT_FP32 : BT_WEIGHT_FP16,
                            .activations = m->act_bytes == 4 ? BT_ACT_FP32 : BT_ACT_FP16};
    double head_ps = m->law.ops->gemm_ps(m->law.self, &g);
    out->time_ps += heads * ((int64_t)(head_ps + 0.5) + m->node_ps) + logits_ps(m, heads * n);
    out->flops += heads * n * (2 * h * h + m->head_flops);
    out->bytes += heads * h * h * m->act_bytes + m->head_bytes + heads * n * m->row_bytes;
}

static void add_speculation(const struct step_cost *c, const struct bt_batch *b,
                            struct bt_cost_parts *out)
{
    if (b->n_decode == 0) {
        return;
    }
    if (c->spec == BT_SPEC_MEDUSA) {
        if (b->n_draft_steps > 0) {
            add_medusa(&c->target, b->n_decode, b->n_draft_steps, out);
        }
        return;
    }
    if (b->n_catchup_tokens > 0) {
        add_catchup(&c->draft, b, out);
    }
    /* The draft's context grows by a token a pass, up to what the verification reads. */
    int64_t ctx = b->decode_ctx - b->n_decode_tokens;
    for (int32_t i = 0; i < b->n_draft_steps; i++) {
        ctx += b->n_decode;
        add_pass(&c->draft, b->n_decode, ctx, out);
    }
}

/* Chunks and decodes share one attention kernel, and the law knows its time. */
static bool attends_at_once(const struct bt_model_cost *m, const struct bt_batch *b)
{
    return b->n_prefill_tokens > 0 && m->law.ops->mixed_ps != NULL && b->n_16bit == 0;
}

static void add_prefill(const struct step_cost *c, const struct bt_batch *b, int32_t launches,
                        struct bt_cost_parts *out)
{
    const struct bt_model_cost *m = &c->target;
    int64_t window_pairs = (int64_t)b->n_prefill_tokens * m->arch.sliding_window;
    int64_t slide_pairs = b->prefill_pairs < window_pairs ? b->prefill_pairs : window_pairs;
    out->time_ps += attends_at_once(m, b)
                        ? bt_model_mixed_ps(m, b)
                        : bt_model_prefill_ps(m, b->n_prefill, b->n_prefill_tokens,
                                              b->prefill_pairs, b->prefill_ctx);
    out->flops += m->full_flops * b->prefill_pairs + m->slide_flops * slide_pairs;
    out->bytes += (m->full_bytes + m->slide_bytes) * b->prefill_ctx;
    /* Not a recorded graph: the host launches each kernel, and may be what the device waits for. */
    int64_t launch_ps = (launches + m->attention_launches) * c->launch_ps;
    if (out->time_ps < launch_ps) {
        out->time_ps = launch_ps;
    }
}

static void step(const void *self, const struct bt_batch *b, struct bt_cost_parts *out)
{
    const struct step_cost *c = self;
    const struct bt_model_cost *m = &c->target;
    int64_t tokens = (int64_t)b->n_decode_tokens + b->n_prefill_tokens;
    BT_DEBUG_ASSERT(tokens > 0 && b->ctx_16bit <= b->decode_ctx);
    *out = (struct bt_cost_parts){
        .time_ps = linear_ps(m, tokens) + c->overhead_ps,
        .flops = tokens * m->linear_flops + b->n_logits * m->head_flops,
        .bytes = m->weight_bytes + tokens * m->token_bytes + b->n_logits * m->row_bytes,
        .host_ns = c->host_base_ns + c->host_per_seq_ns * (b->n_decode + b->n_prefill),
    };
    int32_t launches = m->linear_launches;
    if (b->n_logits > 0) {
        out->time_ps += logits_ps(m, b->n_logits);
        out->bytes += m->head_bytes;
        launches += m->logits_launches;
    }
    if (b->n_decode > 0) {
        struct reads r = reads_of(m, b->n_decode, b->decode_ctx, b->n_16bit, b->ctx_16bit);
        if (!attends_at_once(m, b)) {
            out->time_ps += batch_decode_ps(m, b, &r);
        }
        int64_t flops = reads_flops(m, &r);
        if (b->n_decode_tokens > b->n_decode) {
            /* When verifying, each query token of a sequence sees its context. */
            flops = flops / b->n_decode * b->n_decode_tokens;
        }
        out->flops += flops;
        out->bytes += reads_bytes(m, &r);
        launches += attends_at_once(m, b) ? 0 : m->attention_launches;
    }
    if (b->n_prefill_tokens > 0) {
        add_prefill(c, b, launches, out);
    }
    if (b->n_draft_steps > 0 || b->n_catchup_tokens > 0) {
        add_speculation(c, b, out);
    }
}

/* sum of ctx + i * n for i = 0 .. steps-1 */
static int64_t sum_full(int64_t ctx, int64_t n, int64_t steps)
{
    return steps * ctx + n * (steps * (steps - 1) / 2);
}

/* sum of min(ctx + i * n, n * window) for i = 0 .. steps-1 */
static int64_t sum_slide(const struct bt_model_cost *m, int64_t ctx, int64_t n, int64_t steps)
{
    if (n == 0) {
        return 0;
    }
    int64_t most = n * m->arch.sliding_window;
    int64_t below = ctx < most ? (most - ctx + n - 1) / n : 0;
    below = below < steps ? below : steps;
    return sum_full(ctx, n, below) + (steps - below) * most;
}

/* Sum of curve_at(ctx + i * n) for i = 0 .. steps-1: closed form from knot to knot. */
static struct curve_ps sum_curve(const struct bt_decode_row *row, int64_t ctx, int64_t n,
                                 int64_t steps)
{
    struct curve_ps sum = {0};
    while (steps > 0) {
        const struct bt_decode_knot *k = knot_below(row, ctx);
        bool last = k == &row->knots[row->n_knots - 1];
        int64_t here = last ? steps : (k[1].ctx - ctx + n - 1) / n;
        here = here < steps ? here : steps;
        int64_t beyond = sum_full(ctx - k->ctx, n, here);
        sum.full += here * k->full_ps + k->full_slope_ps * beyond;
        sum.slide += here * k->slide_ps + k->slide_slope_ps * beyond;
        sum.skew += here * k->skew_ps + k->skew_slope_ps * beyond;
        ctx += here * n;
        steps -= here;
    }
    return sum;
}

/* Sum of curve_ps_of over a span of steps of n sequences whose contexts grow by one each. */
static int64_t sum_curve_ps(const struct bt_model_cost *m, const struct bt_decode_row *row,
                            int64_t ctx, int64_t n, int64_t longest, int64_t steps)
{
    struct curve_ps mean = sum_curve(row, ctx, n, steps);
    int64_t ps = mean.full;
    if (row->knots[0].slide_ps > 0) {
        int64_t most = n * m->arch.sliding_window;
        int64_t below = ctx < most ? (most - ctx + n - 1) / n : 0;
        below = below < steps ? below : steps;
        ps += sum_curve(row, ctx, n, below).slide + (steps - below) * curve_at(row, most).slide;
    }
    if (row->skew > 0 && n * longest > ctx) {
        ps += row->skew * (sum_curve(row, n * longest, n, steps).skew - mean.skew);
    }
    return ps;
}

static void span(const void *self, const struct bt_batch *b, int32_t n, struct bt_cost_parts *out)
{
    const struct step_cost *c = self;
    const struct bt_model_cost *m = &c->target;
    BT_ASSERT(n >= 1 && b->n_prefill_tokens == 0 && b->n_draft_steps == 0);
    BT_ASSERT(b->n_decode > 0 && b->n_decode_tokens == b->n_decode);
    struct bt_batch empty = *b;
    empty.decode_ctx = 0;
    empty.decode_ctx_long = 0;
    empty.ctx_16bit = 0;
    step(self, &empty, out);
    struct bt_decode_row scratch;
    const struct bt_decode_row *row = decode_row(m, b->n_decode, b->n_decode_tokens, &scratch);
    int64_t n_pool = b->n_decode - b->n_16bit;
    int64_t pool = b->decode_ctx - b->ctx_16bit;
    struct reads sum = {
        .full = sum_full(pool, n_pool, n),
        .slide = sum_slide(m, pool, n_pool, n),
        .full_16bit = sum_full(b->ctx_16bit, b->n_16bit, n),
        .slide_16bit = sum_slide(m, b->ctx_16bit, b->n_16bit, n),
    };
    out->time_ps = n * out->time_ps + reads_ps(row, &sum);
    if (row->n_knots > 0 && n_pool > 0) {
        struct reads none = {0};
        out->time_ps -= n * curve_ps_of(row, &none, n_pool, 0);
        out->time_ps += sum_curve_ps(m, row, pool, n_pool, b->decode_ctx_long, n);
    }
    out->flops = n * out->flops + reads_flops(m, &sum);
    out->bytes = n * out->bytes + reads_bytes(m, &sum);
    out->host_ns *= n;
}

static int64_t copy_ps(const void *self, enum bt_copy_kind kind, int32_t n_blocks)
{
    const struct step_cost *c = self;
    BT_ASSERT(n_blocks >= 0);
    int64_t ps = c->block_copy_ps[kind] * n_blocks;
    return kind == BT_COPY_COW && n_blocks > 0 ? ps + c->cow_fixed_ps : ps;
}

static void destroy_law(struct bt_law *law)
{
    if (law->ops != NULL) {
        law->ops->destroy(law->self);
    }
}

static void destroy(void *self)
{
    struct step_cost *c = self;
    bt_model_cost_fini(&c->target);
    bt_model_cost_fini(&c->draft);
    destroy_law(&c->law);
    destroy_law(&c->draft_law);
    free(c);
}

static const struct bt_cost_ops step_cost_ops = {
    .name = "step", .step = step, .span = span, .copy_ps = copy_ps, .destroy = destroy};

static int64_t value_or(int64_t given, int64_t fallback)
{
    return given == 0 ? fallback : given < 0 ? 0 : given;
}

/* Time of one block over the link, which depends on its size: a block of all layers is one copy. */
static int64_t link_block_ps(const struct bt_gpu *gpu, int64_t pcie_bytes_per_s, int64_t bytes,
                             enum bt_copy_dir dir)
{
    struct bt_pcie pcie = gpu->pcie;
    double size = (double)bytes;
    if (pcie.n_points > 0) {
        if (pcie_bytes_per_s > 0) {
            bt_pcie_set_rate(&pcie, (double)pcie_bytes_per_s);
        }
        return (int64_t)(size / bt_pcie_rate(&pcie, size, dir) * 1e12 + 0.5);
    }
    double rate =
        pcie_bytes_per_s > 0 ? (double)pcie_bytes_per_s : gpu->pcie_bytes_per_s * LINK_SHARE;
    if (rate <= 0) {
        rate = gpu->mem_bytes_per_s; /* a CPU: host memory is its memory */
    }
    return (int64_t)((LINK_FIXED_S + size / rate) * 1e12 + 0.5);
}

static void init_copies(struct step_cost *c, const struct bt_step_opts *o)
{
    double share = o->device_copy_share > 0 ? o->device_copy_share : DEVICE_COPY_SHARE;
    double size = (double)o->block_bytes;
    if (o->block_bytes == 0) {
        return;
    }
    c->block_copy_ps[BT_COPY_SWAP_OUT] =
        link_block_ps(o->gpu, o->pcie_bytes_per_s, o->block_bytes, BT_COPY_TO_HOST);
    c->block_copy_ps[BT_COPY_SWAP_IN] =
        link_block_ps(o->gpu, o->pcie_bytes_per_s, o->block_bytes, BT_COPY_TO_DEVICE);
    c->block_copy_ps[BT_COPY_COW] =
        (int64_t)(2 * size / (o->gpu->mem_bytes_per_s * share) * 1e12 + 0.5);
    c->cow_fixed_ps = c->launch_ps;
}

static double duplex_share(const struct bt_gpu *gpu)
{
    const struct bt_pcie *p = &gpu->pcie;
    if (p->n_points == 0 || p->duplex_bytes_per_s <= 0) {
        return 1;
    }
    const struct bt_pcie_point *last = &p->points[p->n_points - 1];
    double share =
        p->duplex_bytes_per_s / (last->to_device_bytes_per_s + last->to_host_bytes_per_s);
    return share < 0.5 ? 0.5 : share > 1 ? 1 : share;
}

static enum bt_code check(const struct bt_step_opts *o, const struct bt_law *draft_law,
                          struct bt_error *err)
{
    const struct bt_arch *a = o->target.arch;
    BT_ASSERT(a != NULL && o->gpu != NULL && o->block_bytes >= 0);
    if (!(o->gpu->mem_bytes_per_s > 0)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: memory bandwidth: %g bytes/s must be > 0", o->gpu->name,
                o->gpu->mem_bytes_per_s);
    }
    if (o->spec == BT_SPEC_SELF && (o->self_layers < 1 || o->self_layers > a->n_layers)) {
        BT_FAIL(err, BT_ERR_ARG, o->self_layers,
                "spec: self-speculation with %d layers; %s allows 1..%d", o->self_layers, a->name,
                a->n_layers);
    }
    BT_ASSERT(o->spec != BT_SPEC_DRAFT || (o->draft.arch != NULL && draft_law->ops != NULL));
    return bt_arch_check_tp(a, o->tp > 0 ? o->tp : 1, err);
}

int32_t bt_step_draft_tp(const struct bt_step_opts *o)
{
    return o->tp > 1 && bt_arch_check_tp(o->draft.arch, o->tp, NULL) == BT_OK ? o->tp : 1;
}

static enum bt_code init_models(struct step_cost *c, const struct bt_step_opts *o,
                                struct bt_error *err)
{
    int64_t seqs = o->max_seqs > 0 ? o->max_seqs : TABLE_SEQS_DEFAULT;
    int64_t rows = seqs * (1 + (int64_t)o->spec_k);
    int64_t tokens = o->max_tokens > 0 ? o->max_tokens : TABLE_TOKENS_DEFAULT;
    tokens = tokens < rows ? rows : tokens;
    struct bt_model_cost_opts mo = {
        .model = &o->target,
        .tp = o->tp > 0 ? o->tp : 1,
        .fused = o->fused,
        .separate = o->separate,
        .scale = o->time_scale,
        .node_ps = value_or(o->graph_node_ps, GRAPH_NODE_PS),
        .max_tokens = (int32_t)(tokens < TABLE_TOKENS_MAX ? tokens : TABLE_TOKENS_MAX),
        .max_rows = (int32_t)(rows < TABLE_TOKENS_MAX ? rows : TABLE_TOKENS_MAX),
        .max_seqs = (int32_t)seqs,
    };
    BT_TRY(bt_model_cost_init(&c->target, &mo, c->law, err));
    if (o->spec != BT_SPEC_DRAFT && o->spec != BT_SPEC_SELF) {
        return BT_OK;
    }
    struct bt_law law = c->law;
    mo.max_tokens = (int32_t)seqs;
    mo.max_rows = (int32_t)seqs;
    if (o->spec == BT_SPEC_SELF) {
        mo.n_layers = o->self_layers;
    } else {
        mo.model = &o->draft;
        mo.tp = bt_step_draft_tp(o);
        law = c->draft_law;
    }
    return bt_model_cost_init(&c->draft, &mo, law, err);
}

enum bt_code bt_step_cost_create(const struct bt_step_opts *opts, struct bt_law law,
                                 struct bt_law draft_law, struct bt_cost *out, struct bt_error *err)
{
    *out = (struct bt_cost){0};
    struct step_cost *c = calloc(1, sizeof *c);
    if (c == NULL) {
        destroy_law(&law);
        destroy_law(&draft_law);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "cost model: no memory");
    }
    c->law = law;
    c->draft_law = draft_law;
    c->spec = opts->spec;
    c->launch_ps = value_or(opts->launch_ps, LAUNCH_PS);
    c->overhead_ps = opts->step_overhead_ns * PS_PER_NS;
    c->host_base_ns = value_or(opts->host_base_ns, HOST_BASE_NS);
    c->host_per_seq_ns = value_or(opts->host_per_seq_ns, HOST_PER_SEQ_NS);
    enum bt_code code = check(opts, &draft_law, err);
    if (code == BT_OK) {
        code = init_models(c, opts, err);
    }
    if (code != BT_OK) {
        destroy(c);
        return code;
    }
    init_copies(c, opts);
    int32_t tp = opts->tp > 0 ? opts->tp : 1;
    *out = (struct bt_cost){
        .ops = &step_cost_ops,
        .self = c,
        .peak_flops_per_s = opts->peak_flops_per_s * tp,
        .peak_bytes_per_s = opts->gpu->mem_bytes_per_s * tp,
        .duplex_share = duplex_share(opts->gpu),
        .step_error = -1,
    };
    return BT_OK;
}

static int32_t push_rows(const struct bt_op_rows *rows, bool draft, int64_t node_ps,
                         struct bt_step_row *out)
{
    int32_t n = 0;
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        if (rows->ps[op] > 0 || rows->launches[op] > 0) {
            out[n++] = (struct bt_step_row){
                .op = (enum bt_step_op)op,
                .draft = draft,
                .launches = rows->launches[op],
                .time_ps = rows->ps[op] + (double)(rows->launches[op] * node_ps),
            };
        }
    }
    return n;
}

static void add_rows(struct bt_op_rows *sum, const struct bt_op_rows *more)
{
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        sum->ps[op] += more->ps[op];
        sum->launches[op] += more->launches[op];
    }
}

/* Adds tokens, logits and decode attention of one pass. */
static void explain_pass(const struct bt_model_cost *m, const struct bt_batch *b,
                         struct bt_op_rows *sum)
{
    struct bt_op_rows rows;
    bt_model_linear_rows(m, (int64_t)b->n_decode_tokens + b->n_prefill_tokens, &rows);
    add_rows(sum, &rows);
    if (b->n_logits > 0) {
        bt_model_logits_rows(m, b->n_logits, &rows);
        add_rows(sum, &rows);
    }
    int64_t node = m->attention_launches * m->node_ps;
    if (attends_at_once(m, b)) {
        sum->ps[BT_STEP_ATTN_PREFILL] += (double)(bt_model_mixed_ps(m, b) - node);
        sum->launches[BT_STEP_ATTN_PREFILL] += m->attention_launches;
        return;
    }
    if (b->n_decode > 0) {
        struct reads r = reads_of(m, b->n_decode, b->decode_ctx, b->n_16bit, b->ctx_16bit);
        int64_t ps = batch_decode_ps(m, b, &r);
        sum->ps[BT_STEP_ATTN_DECODE] += (double)(ps - node);
        sum->launches[BT_STEP_ATTN_DECODE] += m->attention_launches;
    }
    if (b->n_prefill_tokens > 0) {
        int64_t ps = bt_model_prefill_ps(m, b->n_prefill, b->n_prefill_tokens, b->prefill_pairs,
                                         b->prefill_ctx);
        sum->ps[BT_STEP_ATTN_PREFILL] += (double)(ps - node);
        sum->launches[BT_STEP_ATTN_PREFILL] += m->attention_launches;
    }
}

const struct bt_law *bt_step_cost_law(const struct bt_cost *cost)
{
    BT_ASSERT(cost->ops == &step_cost_ops);
    return &((const struct step_cost *)cost->self)->law;
}

const struct bt_law *bt_step_cost_draft_law(const struct bt_cost *cost)
{
    BT_ASSERT(cost->ops == &step_cost_ops);
    const struct step_cost *c = cost->self;
    return c->draft.law.ops != NULL ? &c->draft.law : NULL;
}

int32_t bt_step_cost_explain(const struct bt_cost *cost, const struct bt_batch *b,
                             struct bt_step_row rows[BT_STEP_ROWS_MAX])
{
    BT_ASSERT(cost->ops == &step_cost_ops);
    const struct step_cost *c = cost->self;
    struct bt_op_rows sum = {0};
    explain_pass(&c->target, b, &sum);
    int32_t n = push_rows(&sum, false, c->target.node_ps, rows);
    struct bt_op_rows draft = {0};
    struct bt_batch pass = {.n_decode = b->n_decode,
                            .n_decode_tokens = b->n_decode,
                            .n_logits = b->n_decode,
                            .decode_ctx = b->decode_ctx - b->n_decode_tokens};
    bool has_draft = c->draft.linear_ps != NULL && b->n_decode > 0;
    for (int32_t i = 0; has_draft && i < b->n_draft_steps; i++) {
        pass.decode_ctx += b->n_decode;
        explain_pass(&c->draft, &pass, &draft);
    }
    if (has_draft && b->n_catchup_tokens > 0) {
        struct bt_op_rows linear;
        bt_model_linear_rows(&c->draft, b->n_catchup_tokens, &linear);
        add_rows(&draft, &linear);
        struct bt_cost_parts all = {0};
        add_catchup(&c->draft, b, &all);
        int64_t node = c->draft.attention_launches * c->draft.node_ps;
        draft.ps[BT_STEP_ATTN_PREFILL] +=
            (double)(all.time_ps - linear_ps(&c->draft, b->n_catchup_tokens) - node);
        draft.launches[BT_STEP_ATTN_PREFILL] += c->draft.attention_launches;
    }
    if (c->spec == BT_SPEC_MEDUSA && b->n_decode > 0 && b->n_draft_steps > 0) {
        struct bt_cost_parts heads = {0};
        add_medusa(&c->target, b->n_decode, b->n_draft_steps, &heads);
        draft.ps[BT_STEP_MEDUSA] = (double)heads.time_ps;
    }
    return n + push_rows(&draft, true, c->draft.node_ps, rows + n);
}

const char *bt_step_op_name(enum bt_step_op op)
{
    static const char *const names[BT_STEP_OPS] = {
        [BT_STEP_EMBED] = "embedding",
        [BT_STEP_NORM] = "norm",
        [BT_STEP_ADD] = "residual add",
        [BT_STEP_QUANTISE] = "quantise",
        [BT_STEP_QKV] = "qkv",
        [BT_STEP_QK_NORM] = "q/k norm",
        [BT_STEP_ROPE] = "rope",
        [BT_STEP_KV_WRITE] = "KV write",
        [BT_STEP_ATTN_DECODE] = "attention decode",
        [BT_STEP_ATTN_PREFILL] = "attention prefill",
        [BT_STEP_O] = "o",
        [BT_STEP_GATE_UP] = "gate_up",
        [BT_STEP_ACTIVATION] = "activation",
        [BT_STEP_DOWN] = "down",
        [BT_STEP_ALL_REDUCE] = "all-reduce",
        [BT_STEP_LM_HEAD] = "lm_head",
        [BT_STEP_ALL_GATHER] = "all-gather",
        [BT_STEP_SAMPLE] = "sample",
        [BT_STEP_MEDUSA] = "medusa heads",
    };
    BT_ASSERT((uint32_t)op < BT_STEP_OPS);
    return names[op];
}
