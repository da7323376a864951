#include "sim/cost/step_model.h"

#include <stdlib.h>
#include <string.h>

static void add(const struct bt_model_cost *m, struct bt_op_rows *rows, enum bt_step_op op,
                int32_t launches, double ps)
{
    rows->ps[op] += ps * m->scale;
    rows->launches[op] += launches;
}

static bool quantises(const struct bt_model_cost *m)
{
    return bt_act_format_bits(m->activations) == 8;
}

static void add_gemm(const struct bt_model_cost *m, struct bt_op_rows *rows, enum bt_step_op op,
                     int64_t tokens, int64_t out, int64_t in)
{
    struct bt_law_gemm g = {.op = op,
                            .m = tokens,
                            .n = out,
                            .k = in,
                            .weights = m->weights,
                            .activations = m->activations};
    if (op == BT_STEP_LM_HEAD) {
        /* Its input is never quantised: the step's last norm writes 16 bits. */
        g.weights = m->head_weights;
        g.activations = quantises(m) ? BT_ACT_FP16 : m->activations;
    }
    add(m, rows, op, 1, m->law.ops->gemm_ps(m->law.self, &g));
}

static void add_pointwise(const struct bt_model_cost *m, struct bt_op_rows *rows,
                          enum bt_step_op op, int64_t tokens, int64_t width, int64_t bytes)
{
    add(m, rows, op, 1, m->law.ops->pointwise_ps(m->law.self, op, tokens, width, bytes));
}

/* A norm before a matrix product: with the residual's addition, and with the quantisation. */
static void add_norm(const struct bt_model_cost *m, struct bt_op_rows *rows, int64_t tokens)
{
    int64_t h = m->arch.hidden;
    int64_t a = m->act_bytes;
    if (m->fused) {
        int64_t out = quantises(m) ? 1 : a;
        add_pointwise(m, rows, BT_STEP_NORM, tokens, h, tokens * h * (3 * a + out));
        return;
    }
    add_pointwise(m, rows, BT_STEP_ADD, tokens, h, tokens * h * 3 * a);
    add_pointwise(m, rows, BT_STEP_NORM, tokens, h, tokens * h * 2 * a);
    if (quantises(m)) {
        add_pointwise(m, rows, BT_STEP_QUANTISE, tokens, h, tokens * h * (a + 1));
    }
}

static int64_t kv_layer_bytes(const struct bt_model_cost *m, enum bt_kv_format kv)
{
    return bt_arch_kv_bytes_per_token(&m->arch, kv, m->tp) / m->arch.n_layers;
}

/* RoPE and the KV write: in the epilogue of the QKV product when fused (only the cache's traffic is
 * left), else in kernels of their own. */
static void add_rope_and_write(const struct bt_model_cost *m, struct bt_op_rows *rows,
                               int64_t tokens)
{
    int64_t qk = m->shard.q_dim + m->shard.kv_dim;
    int64_t kv = 2 * (int64_t)m->shard.kv_dim;
    int64_t a = m->act_bytes;
    int64_t write = tokens * kv_layer_bytes(m, m->kv);
    if (m->separate) {
        if (m->arch.qk_norm) {
            add_pointwise(m, rows, BT_STEP_QK_NORM, tokens, qk, tokens * qk * 2 * a);
        }
        add_pointwise(m, rows, BT_STEP_ROPE, tokens, qk, tokens * qk * 2 * a);
        return; /* attention's measured time has the write in it */
    }
    if (m->fused) {
        double fixed = m->law.ops->pointwise_ps(m->law.self, BT_STEP_KV_WRITE, tokens, kv, 0);
        double all = m->law.ops->pointwise_ps(m->law.self, BT_STEP_KV_WRITE, tokens, kv, write);
        add(m, rows, BT_STEP_KV_WRITE, 0, all - fixed);
        return;
    }
    if (m->arch.qk_norm) {
        add_pointwise(m, rows, BT_STEP_QK_NORM, tokens, qk, tokens * qk * 2 * a);
    }
    add_pointwise(m, rows, BT_STEP_ROPE, tokens, qk, tokens * qk * 2 * a);
    add_pointwise(m, rows, BT_STEP_KV_WRITE, tokens, kv, tokens * kv * a + write);
}

static void add_all_reduce(const struct bt_model_cost *m, struct bt_op_rows *rows, int64_t tokens)
{
    if (m->tp > 1) {
        int64_t bytes = tokens * m->arch.hidden * m->act_bytes;
        add(m, rows, BT_STEP_ALL_REDUCE, 1,
            m->law.ops->collective_ps(m->law.self, BT_STEP_ALL_REDUCE, bytes, m->tp));
    }
}

static void layer_rows(const struct bt_model_cost *m, int64_t tokens, struct bt_op_rows *rows)
{
    const struct bt_arch_shard *s = &m->shard;
    int64_t h = m->arch.hidden;
    int64_t a = m->act_bytes;
    int64_t up = (m->arch.mlp_gated ? 2 : 1) * (int64_t)s->intermediate;
    add_norm(m, rows, tokens);
    add_gemm(m, rows, BT_STEP_QKV, tokens, s->q_dim + 2 * (int64_t)s->kv_dim, h);
    add_rope_and_write(m, rows, tokens);
    if (quantises(m) && !m->fused) {
        add_pointwise(m, rows, BT_STEP_QUANTISE, tokens, s->q_dim, tokens * s->q_dim * (a + 1));
    }
    add_gemm(m, rows, BT_STEP_O, tokens, h, s->q_dim);
    add_all_reduce(m, rows, tokens);
    add_norm(m, rows, tokens);
    add_gemm(m, rows, BT_STEP_GATE_UP, tokens, up, h);
    if (!m->fused || m->separate) {
        add_pointwise(m, rows, BT_STEP_ACTIVATION, tokens, s->intermediate,
                      tokens * (up + s->intermediate) * a);
        if (quantises(m) && !m->fused) {
            add_pointwise(m, rows, BT_STEP_QUANTISE, tokens, s->intermediate,
                          tokens * s->intermediate * (a + 1));
        }
    }
    add_gemm(m, rows, BT_STEP_DOWN, tokens, h, s->intermediate);
    add_all_reduce(m, rows, tokens);
}

void bt_model_linear_rows(const struct bt_model_cost *m, int64_t tokens, struct bt_op_rows *rows)
{
    BT_DEBUG_ASSERT(tokens > 0);
    int64_t h = m->arch.hidden;
    memset(rows, 0, sizeof *rows);
    layer_rows(m, tokens, rows);
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        rows->ps[op] *= m->arch.n_layers;
        rows->launches[op] *= m->arch.n_layers;
    }
    add_pointwise(m, rows, BT_STEP_EMBED, tokens, h, tokens * h * 2 * m->act_bytes);
}

void bt_model_logits_rows(const struct bt_model_cost *m, int64_t n, struct bt_op_rows *rows)
{
    BT_DEBUG_ASSERT(n > 0);
    int64_t h = m->arch.hidden;
    memset(rows, 0, sizeof *rows);
    add_pointwise(m, rows, BT_STEP_NORM, n, h, n * h * 4 * m->act_bytes);
    add_gemm(m, rows, BT_STEP_LM_HEAD, n, m->shard.vocab, h);
    /* Logits are FP32, read twice: the maximum with its sum, and the draw. */
    add_pointwise(m, rows, BT_STEP_SAMPLE, n, m->shard.vocab, n * m->shard.vocab * 8);
    if (m->tp > 1) {
        /* Each rank offers its best candidates, not its logits. */
        add(m, rows, BT_STEP_ALL_GATHER, 1,
            m->law.ops->collective_ps(m->law.self, BT_STEP_ALL_GATHER, n * m->tp * 64, m->tp));
    }
}

int64_t bt_op_rows_ps(const struct bt_op_rows *rows, int64_t node_ps)
{
    double sum = 0;
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        sum += rows->ps[op];
    }
    return (int64_t)(sum + 0.5) + bt_op_rows_launches(rows) * node_ps;
}

int32_t bt_op_rows_launches(const struct bt_op_rows *rows)
{
    int32_t n = 0;
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        n += rows->launches[op];
    }
    return n;
}

static struct bt_law_attention attention_of(const struct bt_model_cost *m, int64_t n_seqs,
                                            int64_t tokens)
{
    return (struct bt_law_attention){
        .n_heads = m->shard.n_heads,
        .n_kv_heads = m->shard.n_kv_heads,
        .head_dim = m->arch.head_dim,
        .kv = m->kv,
        .flash = m->fused,
        .n_seqs = n_seqs,
        .tokens = tokens,
    };
}

/* Lines between the knots of a curve, for so many layers each. */
static void lay_knots(const struct bt_law_curve *curve, double scale, int32_t full, int32_t slide,
                      struct bt_decode_row *row)
{
    BT_ASSERT(curve->n >= 2 && curve->n <= BT_LAW_KNOTS);
    row->n_knots = curve->n;
    row->skew = (int64_t)(curve->skew * BT_SKEW_ONE + 0.5);
    double slope = 0;
    for (int32_t i = 0; i < curve->n; i++) {
        double ps = curve->ps[i] * scale;
        if (i + 1 < curve->n) {
            slope = (curve->ps[i + 1] - curve->ps[i]) * scale /
                    (double)(curve->ctx[i + 1] - curve->ctx[i]);
        }
        row->knots[i] = (struct bt_decode_knot){
            .ctx = curve->ctx[i],
            .full_ps = (int64_t)(ps * full + 0.5),
            .full_slope_ps = (int64_t)(slope * full + 0.5),
            .slide_ps = (int64_t)(ps * slide + 0.5),
            .slide_slope_ps = (int64_t)(slope * slide + 0.5),
            .skew_ps = (int64_t)(ps * full / BT_SKEW_ONE + 0.5),
            .skew_slope_ps = (int64_t)(slope * full / BT_SKEW_ONE + 0.5),
        };
    }
}

void bt_model_decode_row(const struct bt_model_cost *m, int64_t n_seqs, int64_t tokens,
                         struct bt_decode_row *out)
{
    BT_DEBUG_ASSERT(n_seqs > 0 && tokens >= n_seqs);
    struct bt_law_attention a = attention_of(m, n_seqs, n_seqs);
    struct bt_law_curve curve;
    bool curved =
        m->law.ops->decode_curve != NULL && m->law.ops->decode_curve(m->law.self, &a, &curve);
    a.tokens = curved ? n_seqs : tokens;
    double fixed, per_ctx, fixed_16bit, per_ctx_16bit;
    m->law.ops->decode_ps(m->law.self, &a, &fixed, &per_ctx);
    a.kv = m->kv_16bit;
    m->law.ops->decode_ps(m->law.self, &a, &fixed_16bit, &per_ctx_16bit);
    int32_t slide = m->arch.n_sliding_layers;
    int32_t full = m->arch.n_layers - slide;
    per_ctx *= m->scale;
    per_ctx_16bit *= m->scale;
    int64_t launches_ps = m->attention_launches * m->node_ps;
    *out = (struct bt_decode_row){
        .fixed_ps = (int64_t)(fixed * m->scale * m->arch.n_layers + 0.5) + launches_ps,
        .full_ps = (int64_t)(per_ctx * full + 0.5),
        .slide_ps = (int64_t)(per_ctx * slide + 0.5),
        .full_16bit_ps = (int64_t)(per_ctx_16bit * full + 0.5),
        .slide_16bit_ps = (int64_t)(per_ctx_16bit * slide + 0.5),
    };
    if (curved) {
        lay_knots(&curve, m->scale, full, slide, out);
        out->fixed_ps = launches_ps;
    }
}

int64_t bt_model_verify_ps(const struct bt_model_cost *m, int64_t n_seqs, int64_t tokens,
                           const struct bt_decode_row *row, int64_t ps)
{
    struct bt_law_attention a = attention_of(m, n_seqs, n_seqs);
    double fixed, slope, plain_fixed, plain_slope;
    m->law.ops->decode_ps(m->law.self, &a, &plain_fixed, &plain_slope);
    a.tokens = tokens;
    m->law.ops->decode_ps(m->law.self, &a, &fixed, &slope);
    int64_t none = row->fixed_ps + row->knots[0].full_ps + row->knots[0].slide_ps;
    double more = (fixed - plain_fixed) * m->scale * m->arch.n_layers;
    if (plain_slope > 0) {
        more += (double)(ps > none ? ps - none : 0) * (slope / plain_slope - 1);
    }
    return ps + (int64_t)(more + 0.5);
}

int64_t bt_model_mixed_ps(const struct bt_model_cost *m, const struct bt_batch *b)
{
    int32_t slide = m->arch.n_sliding_layers;
    struct bt_law_attention p = attention_of(m, b->n_prefill, b->n_prefill_tokens);
    struct bt_law_attention d = attention_of(m, b->n_decode, b->n_decode_tokens);
    p.pairs = b->prefill_pairs;
    p.ctx = b->prefill_ctx;
    d.ctx = b->decode_ctx;
    double ps = m->law.ops->mixed_ps(m->law.self, &p, &d) * (m->arch.n_layers - slide);
    if (slide > 0) {
        int64_t window = m->arch.sliding_window;
        int64_t most = p.tokens + p.n_seqs * window;
        p.pairs = p.pairs < p.tokens * window ? p.pairs : p.tokens * window;
        p.ctx = p.ctx < most ? p.ctx : most;
        d.ctx = bt_model_slide_ctx(m, d.n_seqs, d.ctx);
        ps += m->law.ops->mixed_ps(m->law.self, &p, &d) * slide;
    }
    return (int64_t)(ps * m->scale + 0.5) + m->attention_launches * m->node_ps;
}

int64_t bt_model_slide_ctx(const struct bt_model_cost *m, int64_t n_seqs, int64_t ctx)
{
    int64_t most = n_seqs * m->arch.sliding_window;
    return ctx < most ? ctx : most;
}

int64_t bt_model_prefill_ps(const struct bt_model_cost *m, int64_t n_seqs, int64_t tokens,
                            int64_t pairs, int64_t ctx)
{
    struct bt_law_attention a = attention_of(m, n_seqs, tokens);
    a.pairs = pairs;
    a.ctx = ctx;
    int32_t slide = m->arch.n_sliding_layers;
    double ps = m->law.ops->prefill_ps(m->law.self, &a) * (m->arch.n_layers - slide);
    if (slide > 0) {
        int64_t window = m->arch.sliding_window;
        a.pairs = pairs < tokens * window ? pairs : tokens * window;
        a.ctx = ctx < tokens + n_seqs * window ? ctx : tokens + n_seqs * window;
        ps += m->law.ops->prefill_ps(m->law.self, &a) * slide;
    }
    return (int64_t)(ps * m->scale + 0.5) + m->attention_launches * m->node_ps;
}

/* Work by which utilisation is counted. */
static void count_work(struct bt_model_cost *m, const struct bt_step_model *model)
{
    const struct bt_arch *a = &m->arch;
    struct bt_weight_opts w = {
        .format = m->weights, .tp = m->tp, .quantise_lm_head = model->quantise_lm_head};
    struct bt_weight_bytes b = bt_arch_weight_bytes(a, &w);
    int64_t slide = a->n_sliding_layers;
    int64_t full = a->n_layers - slide;
    int64_t kv = kv_layer_bytes(m, m->kv) * m->tp;
    int64_t kv_16bit = kv_layer_bytes(m, m->kv_16bit) * m->tp;
    int64_t pair = 4 * (int64_t)a->n_heads * a->head_dim;
    m->linear_flops = (int64_t)bt_arch_linear_flops(a);
    m->head_flops = (int64_t)bt_arch_lm_head_flops(a);
    m->full_flops = pair * full;
    m->slide_flops = pair * slide;
    m->weight_bytes = (b.attn_qkv + b.attn_o + b.mlp + b.norms) * m->tp;
    m->head_bytes = (a->tie_embeddings ? b.embeddings : b.lm_head) * m->tp;
    /* Each product reads its input and writes its output once. */
    int64_t layer = 3 * (int64_t)a->hidden + 2 * (int64_t)m->shard.q_dim +
                    2 * (int64_t)m->shard.kv_dim + 3 * (int64_t)m->shard.intermediate;
    m->token_bytes = (layer * m->act_bytes * m->tp + kv) * a->n_layers;
    m->row_bytes = (int64_t)a->hidden * m->act_bytes * m->tp + (int64_t)a->vocab * 4;
    m->full_bytes = kv * full;
    m->slide_bytes = kv * slide;
    m->full_16bit_bytes = kv_16bit * full;
    m->slide_16bit_bytes = kv_16bit * slide;
}

static void resolve(struct bt_model_cost *m, const struct bt_model_cost_opts *o)
{
    const struct bt_arch *arch = o->model->arch;
    m->arch = *arch;
    if (o->n_layers > 0) {
        BT_ASSERT(o->n_layers <= arch->n_layers);
        m->arch.n_layers = o->n_layers;
        m->arch.n_sliding_layers = 0;
        for (int32_t i = 0; i < o->n_layers; i++) {
            m->arch.n_sliding_layers += bt_arch_layer_slides(arch, i);
        }
    }
    m->tp = o->tp;
    m->fused = o->fused;
    m->separate = o->separate;
    m->scale = o->scale > 0 ? o->scale : 1;
    m->node_ps = o->node_ps;
    m->shard = bt_arch_shard(arch, o->tp);
    m->weights = bt_weight_format_resolve(o->model->weights, arch);
    m->activations = bt_act_format_resolve(o->model->activations, arch);
    m->kv = bt_kv_format_resolve(o->model->kv, arch);
    m->kv_16bit = bt_kv_format_bits(m->kv) == 32 ? m->kv : BT_KV_FP16;
    enum bt_weight_format plain = m->weights == BT_WEIGHT_FP32 ? BT_WEIGHT_FP32 : BT_WEIGHT_FP16;
    m->head_weights = o->model->quantise_lm_head ? m->weights : plain;
    m->act_bytes = m->activations == BT_ACT_FP32 ? 4 : 2;
}

/* Kernels of one layer's attention: flash, or scores, softmax and values. */
static int32_t attention_kernels(const struct bt_model_cost *m)
{
    return m->fused ? 1 : 3;
}

static void fill_tables(struct bt_model_cost *m)
{
    struct bt_op_rows rows;
    bt_model_linear_rows(m, 1, &rows);
    m->linear_launches = bt_op_rows_launches(&rows);
    bt_model_logits_rows(m, 1, &rows);
    m->logits_launches = bt_op_rows_launches(&rows);
    m->attention_launches = attention_kernels(m) * m->arch.n_layers;
    for (int32_t i = 1; i < m->n_linear; i++) {
        bt_model_linear_rows(m, i, &rows);
        m->linear_ps[i] = bt_op_rows_ps(&rows, m->node_ps);
    }
    for (int32_t i = 1; i < m->n_logits; i++) {
        bt_model_logits_rows(m, i, &rows);
        m->logits_ps[i] = bt_op_rows_ps(&rows, m->node_ps);
    }
    for (int32_t i = 1; i < m->n_decode; i++) {
        bt_model_decode_row(m, i, i, &m->decode[i]);
    }
}

enum bt_code bt_model_cost_init(struct bt_model_cost *m, const struct bt_model_cost_opts *opts,
                                struct bt_law law, struct bt_error *err)
{
    *m = (struct bt_model_cost){.law = law,
                                .n_linear = opts->max_tokens + 1,
                                .n_logits = opts->max_rows + 1,
                                .n_decode = opts->max_seqs + 1};
    resolve(m, opts);
    m->linear_ps = calloc((size_t)m->n_linear, sizeof *m->linear_ps);
    m->logits_ps = calloc((size_t)m->n_logits, sizeof *m->logits_ps);
    m->decode = calloc((size_t)m->n_decode, sizeof *m->decode);
    if (m->linear_ps == NULL || m->logits_ps == NULL || m->decode == NULL) {
        int32_t n = m->n_linear;
        bt_model_cost_fini(m);
        BT_FAIL(err, BT_ERR_NOMEM, n, "cost model of %s: no memory for tables of %d tokens",
                opts->model->arch->name, n);
    }
    count_work(m, opts->model);
    fill_tables(m);
    return BT_OK;
}

void bt_model_cost_fini(struct bt_model_cost *m)
{
    free(m->linear_ps);
    free(m->logits_ps);
    free(m->decode);
    *m = (struct bt_model_cost){0};
}
