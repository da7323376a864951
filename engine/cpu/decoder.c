#include "engine/cpu/decoder.h"

#include <string.h>

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* The largest extents of the models that share the scratch. */
struct extents {
    int32_t hidden, q_dim, kv_dim, intermediate, head_dim;
};

static void stretch(struct extents *e, const struct bt_model *m)
{
    if (m == NULL) {
        return;
    }
    const struct bt_arch *a = &m->config.arch;
    e->hidden = max32(e->hidden, a->hidden);
    e->q_dim = max32(e->q_dim, a->n_heads * a->head_dim);
    e->kv_dim = max32(e->kv_dim, a->n_kv_heads * a->head_dim);
    e->intermediate = max32(e->intermediate, a->intermediate);
    e->head_dim = max32(e->head_dim, a->head_dim);
}

enum bt_code bt_cpu_scratch_init(struct bt_cpu_scratch *s, struct bt_arena *arena,
                                 const struct bt_cpu_scratch_opts *o, struct bt_error *err)
{
    BT_ASSERT(o->max_rows > 0 && o->max_ctx > 0);
    *s = (struct bt_cpu_scratch){.max_rows = o->max_rows};
    struct extents e = {0};
    stretch(&e, o->model);
    stretch(&e, o->draft);
    int32_t max_in = max32(max32(e.hidden, e.q_dim), e.intermediate);
    int64_t rows = o->max_rows;
    BT_TRY(bt_cpu_work_init(&s->work, arena, o->max_rows, max_in, o->n_threads, err));
    BT_TRY(bt_cpu_attn_work_init(&s->attn, arena, o->max_ctx, e.head_dim, s->work.n_threads, err));
    BT_ARENA_ARRAY(arena, s->x, rows * e.hidden, err);
    BT_ARENA_ARRAY(arena, s->h, rows * max32(e.hidden, e.q_dim), err);
    BT_ARENA_ARRAY(arena, s->y, rows * e.hidden, err);
    BT_ARENA_ARRAY(arena, s->q, rows * e.q_dim, err);
    BT_ARENA_ARRAY(arena, s->k, rows * e.kv_dim, err);
    BT_ARENA_ARRAY(arena, s->v, rows * e.kv_dim, err);
    BT_ARENA_ARRAY(arena, s->gate, rows * e.intermediate, err);
    BT_ARENA_ARRAY(arena, s->up, rows * e.intermediate, err);
    BT_ARENA_ARRAY(arena, s->angles, rows * e.head_dim, err);
    BT_ARENA_ARRAY(arena, s->segments, rows, err);
    return BT_OK;
}

/* Norm vectors as floats: for each layer attention, MLP, query and key, then the final one. */
struct norm_shape {
    int64_t layer, mlp, q, k, total;
};

static struct norm_shape norms_of(const struct bt_arch *a)
{
    int64_t heads = a->qk_norm ? a->head_dim : 0;
    struct norm_shape s = {.mlp = a->hidden, .q = 2 * (int64_t)a->hidden};
    s.k = s.q + heads;
    s.layer = s.k + heads;
    s.total = s.layer * a->n_layers + a->hidden;
    return s;
}

enum bt_code bt_decoder_init(struct bt_decoder *d, struct bt_arena *arena,
                             const struct bt_model *model, const struct bt_kv_pool *pool,
                             struct bt_cpu_scratch *scratch, enum bt_kv_part_id part,
                             enum bt_act_format compute, struct bt_error *err)
{
    const struct bt_arch *a = &model->config.arch;
    if (!a->mlp_gated) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: an MLP without a gate is not supported", a->name);
    }
    if (compute != BT_ACT_FP32 && compute != BT_ACT_FP16 && compute != BT_ACT_BF16) {
        BT_FAIL(err, BT_ERR_ARG, compute, "compute type: \"%s\" is not one of fp32, fp16, bf16",
                bt_act_format_name(compute));
    }
    *d = (struct bt_decoder){
        .model = model,
        .pool = pool,
        .scratch = scratch,
        .part = part,
        .round = compute,
        .residual = compute == BT_ACT_FP16 && a->wide_residual ? BT_ACT_FP32 : compute,
    };
    float *inv_freq;
    BT_ARENA_ARRAY(arena, inv_freq, a->head_dim / 2, err);
    bt_cpu_rope_init(&d->rope, a, inv_freq);
    struct norm_shape s = norms_of(a);
    BT_ARENA_ARRAY(arena, d->norms, s.total, err);
    for (int32_t i = 0; i < a->n_layers; i++) {
        const struct bt_layer *l = &model->layers[i];
        float *at = d->norms + s.layer * i;
        bt_tensor_row_f32(&l->attn_norm, 0, at);
        bt_tensor_row_f32(&l->mlp_norm, 0, at + s.mlp);
        if (a->qk_norm) {
            bt_tensor_row_f32(&l->q_norm, 0, at + s.q);
            bt_tensor_row_f32(&l->k_norm, 0, at + s.k);
        }
    }
    bt_tensor_row_f32(&model->final_norm, 0, d->norms + s.layer * a->n_layers);
    return BT_OK;
}

/* A piece of a batch: up to max_rows of its rows. */
struct piece {
    int32_t n_rows;
    int32_t n_segments;
    const int32_t *ids;
    const int32_t *out_row;
};

static void tell_tap(const struct bt_decoder *d, const struct piece *p, int32_t layer,
                     enum bt_calib_point point, const float *x, int32_t n)
{
    if (d->tap == NULL) {
        return;
    }
    for (int32_t i = 0; i < p->n_segments; i++) {
        const struct bt_cpu_segment *seg = &d->scratch->segments[i];
        d->tap(d->tap_user, layer, point, x + (size_t)seg->first_row * (size_t)n, seg->n_rows,
               seg->pos0);
    }
}

static void embed(struct bt_decoder *d, const struct piece *p)
{
    const struct bt_arch *a = &d->model->config.arch;
    struct bt_cpu_scratch *s = d->scratch;
    for (int32_t i = 0; i < p->n_rows; i++) {
        BT_ASSERT(p->ids[i] >= 0 && p->ids[i] < a->vocab);
        bt_linear_row_f32(&d->model->embed, p->ids[i], s->x + (size_t)i * (size_t)a->hidden);
    }
    bt_cpu_round(s->x, (int64_t)p->n_rows * a->hidden, d->residual);
}

static void find_angles(struct bt_decoder *d, const struct piece *p)
{
    const struct bt_arch *a = &d->model->config.arch;
    struct bt_cpu_scratch *s = d->scratch;
    for (int32_t i = 0; i < p->n_segments; i++) {
        const struct bt_cpu_segment *seg = &s->segments[i];
        for (int32_t j = 0; j < seg->n_rows; j++) {
            float *cos_row = s->angles + (size_t)(seg->first_row + j) * (size_t)a->head_dim;
            bt_cpu_rope_at(&d->rope, seg->pos0 + j, cos_row, cos_row + a->head_dim / 2);
        }
    }
}

static void linear(struct bt_decoder *d, const struct bt_linear *l, const float *x, int32_t m,
                   float *y)
{
    bt_cpu_linear(&d->scratch->work, l, x, m, y);
    bt_cpu_round(y, (int64_t)m * l->n_out, d->round);
}

/* Queries and keys: the norms of Qwen3, then RoPE. */
static void place_heads(const struct bt_decoder *d, int32_t m, float *x, int32_t n_heads,
                        const float *norm)
{
    const struct bt_arch *a = &d->model->config.arch;
    const float *angles = d->scratch->angles;
    if (a->qk_norm) {
        bt_cpu_rms_norm(x, m * n_heads, a->head_dim, norm, (float)a->rms_eps, d->round, x);
    }
    for (int32_t i = 0; i < m; i++) {
        const float *cos_row = angles + (size_t)i * (size_t)a->head_dim;
        float *row = x + (size_t)i * (size_t)(n_heads * a->head_dim);
        bt_cpu_rope_apply(row, n_heads, a->head_dim, cos_row, cos_row + a->head_dim / 2);
    }
    bt_cpu_round(x, (int64_t)m * n_heads * a->head_dim, d->round);
}

static void write_kv(const struct bt_decoder *d, const struct piece *p, int32_t layer)
{
    const struct bt_arch *a = &d->model->config.arch;
    const struct bt_cpu_scratch *s = d->scratch;
    size_t kv_dim = (size_t)(a->n_kv_heads * a->head_dim);
    for (int32_t i = 0; i < p->n_segments; i++) {
        const struct bt_cpu_segment *seg = &s->segments[i];
        int32_t block_tokens = d->pool->layout[seg->kv_class].block_tokens;
        for (int32_t j = 0; j < seg->n_rows; j++) {
            int32_t pos = seg->pos0 + j;
            int32_t block = seg->blocks[pos / block_tokens];
            size_t at = (size_t)(seg->first_row + j) * kv_dim;
            bt_kv_pool_write(d->pool, seg->kv_class, d->part, layer, 0, block, pos % block_tokens,
                             s->k + at);
            bt_kv_pool_write(d->pool, seg->kv_class, d->part, layer, 1, block, pos % block_tokens,
                             s->v + at);
        }
    }
}

static void attention_block(struct bt_decoder *d, const struct piece *p, int32_t layer,
                            const float *norms)
{
    const struct bt_arch *a = &d->model->config.arch;
    const struct bt_layer *l = &d->model->layers[layer];
    struct bt_cpu_scratch *s = d->scratch;
    struct norm_shape shape = norms_of(a);
    int32_t m = p->n_rows;
    bt_cpu_rms_norm(s->x, m, a->hidden, norms, (float)a->rms_eps, d->round, s->h);
    bt_cpu_mark(d->profile, BT_PART_NORM);
    tell_tap(d, p, layer, BT_CALIB_ATTN_IN, s->h, a->hidden);
    linear(d, &l->linear[BT_LINEAR_Q], s->h, m, s->q);
    linear(d, &l->linear[BT_LINEAR_K], s->h, m, s->k);
    linear(d, &l->linear[BT_LINEAR_V], s->h, m, s->v);
    bt_cpu_mark(d->profile, BT_PART_QKV);
    place_heads(d, m, s->q, a->n_heads, norms + shape.q);
    place_heads(d, m, s->k, a->n_kv_heads, norms + shape.k);
    bt_cpu_mark(d->profile, BT_PART_ROPE);
    write_kv(d, p, layer);
    bt_cpu_mark(d->profile, BT_PART_KV_WRITE);
    struct bt_cpu_attn attn = {
        .pool = d->pool,
        .part = d->part,
        .layer = layer,
        .n_heads = a->n_heads,
        .window = bt_arch_layer_slides(a, layer) ? a->sliding_window : 0,
        .q = s->q,
        .out = s->h,
    };
    bt_cpu_attend(&s->attn, &attn, s->segments, p->n_segments);
    bt_cpu_round(s->h, (int64_t)m * a->n_heads * a->head_dim, d->round);
    bt_cpu_mark(d->profile, BT_PART_ATTENTION);
    tell_tap(d, p, layer, BT_CALIB_O_IN, s->h, a->n_heads * a->head_dim);
    linear(d, &l->linear[BT_LINEAR_O], s->h, m, s->y);
    bt_cpu_mark(d->profile, BT_PART_O);
    bt_cpu_add(s->x, s->y, (int64_t)m * a->hidden, d->residual);
    bt_cpu_mark(d->profile, BT_PART_ADD);
}

static void mlp_block(struct bt_decoder *d, const struct piece *p, int32_t layer, const float *norm)
{
    const struct bt_arch *a = &d->model->config.arch;
    const struct bt_layer *l = &d->model->layers[layer];
    struct bt_cpu_scratch *s = d->scratch;
    int32_t m = p->n_rows;
    bt_cpu_rms_norm(s->x, m, a->hidden, norm, (float)a->rms_eps, d->round, s->h);
    bt_cpu_mark(d->profile, BT_PART_NORM);
    tell_tap(d, p, layer, BT_CALIB_MLP_IN, s->h, a->hidden);
    linear(d, &l->linear[BT_LINEAR_GATE], s->h, m, s->gate);
    linear(d, &l->linear[BT_LINEAR_UP], s->h, m, s->up);
    bt_cpu_mark(d->profile, BT_PART_GATE_UP);
    bt_cpu_silu_mul(s->gate, s->up, (int64_t)m * a->intermediate, d->round);
    bt_cpu_mark(d->profile, BT_PART_ACTIVATION);
    tell_tap(d, p, layer, BT_CALIB_DOWN_IN, s->gate, a->intermediate);
    linear(d, &l->linear[BT_LINEAR_DOWN], s->gate, m, s->y);
    bt_cpu_mark(d->profile, BT_PART_DOWN);
    bt_cpu_add(s->x, s->y, (int64_t)m * a->hidden, d->residual);
    bt_cpu_mark(d->profile, BT_PART_ADD);
}

static void emit_states(const struct bt_decoder *d, const struct piece *p, const float *final_norm,
                        float *out)
{
    const struct bt_arch *a = &d->model->config.arch;
    struct bt_cpu_scratch *s = d->scratch;
    size_t hidden = (size_t)a->hidden;
    for (int32_t i = 0; i < p->n_rows; i++) {
        float *row = s->h + (size_t)i * hidden;
        if (p->out_row[i] < 0 && d->tap == NULL) {
            continue;
        }
        bt_cpu_rms_norm(s->x + (size_t)i * hidden, 1, a->hidden, final_norm, (float)a->rms_eps,
                        d->round, row);
        if (p->out_row[i] >= 0) {
            memcpy(out + (size_t)p->out_row[i] * hidden, row, hidden * sizeof *row);
        }
    }
    tell_tap(d, p, a->n_layers, BT_CALIB_HEAD_IN, s->h, a->hidden);
}

/* Cuts the next piece from a batch: rows `row` .. of segment *seg_i, of which `done` rows were in
 * earlier pieces. */
static struct piece next_piece(struct bt_decoder *d, const struct bt_cpu_batch *b, int32_t row,
                               int32_t *seg_i, int32_t *done)
{
    struct bt_cpu_scratch *s = d->scratch;
    struct piece p = {.ids = b->ids + row, .out_row = b->out_row + row};
    while (*seg_i < b->n_segments && p.n_rows < s->max_rows) {
        const struct bt_cpu_segment *seg = &b->segments[*seg_i];
        BT_ASSERT(seg->first_row + *done == row + p.n_rows);
        int32_t left = seg->n_rows - *done;
        int32_t n = left < s->max_rows - p.n_rows ? left : s->max_rows - p.n_rows;
        s->segments[p.n_segments++] = (struct bt_cpu_segment){
            .first_row = p.n_rows,
            .n_rows = n,
            .pos0 = seg->pos0 + *done,
            .kv_class = seg->kv_class,
            .blocks = seg->blocks,
        };
        p.n_rows += n;
        *done = n < left ? *done + n : 0;
        *seg_i += n == left;
    }
    return p;
}

void bt_decoder_forward(struct bt_decoder *d, const struct bt_cpu_batch *batch, int32_t n_layers)
{
    const struct bt_arch *a = &d->model->config.arch;
    BT_ASSERT(n_layers > 0 && n_layers <= a->n_layers && batch->first_layer <= n_layers);
    BT_ASSERT(batch->first_layer == 0 || batch->residual != NULL);
    size_t hidden = (size_t)a->hidden;
    struct norm_shape shape = norms_of(a);
    int32_t seg_i = 0;
    int32_t done = 0;
    for (int32_t row = 0; row < batch->n_rows;) {
        struct piece p = next_piece(d, batch, row, &seg_i, &done);
        BT_ASSERT(p.n_rows > 0);
        float *residual = batch->residual == NULL ? NULL : batch->residual + (size_t)row * hidden;
        size_t residual_bytes = (size_t)p.n_rows * hidden * sizeof *residual;
        if (batch->first_layer > 0) {
            memcpy(d->scratch->x, residual, residual_bytes);
        } else {
            embed(d, &p);
        }
        find_angles(d, &p);
        bt_cpu_mark(d->profile, BT_PART_EMBED);
        for (int32_t i = batch->first_layer; i < n_layers; i++) {
            const float *norms = d->norms + shape.layer * i;
            attention_block(d, &p, i, norms);
            mlp_block(d, &p, i, norms + shape.mlp);
        }
        if (residual != NULL) {
            memcpy(residual, d->scratch->x, residual_bytes);
        }
        emit_states(d, &p, d->norms + shape.layer * a->n_layers, batch->out);
        bt_cpu_mark(d->profile, BT_PART_FINAL_NORM);
        row += p.n_rows;
    }
}

void bt_decoder_logits(struct bt_decoder *d, const float *states, int32_t m, float *logits)
{
    const struct bt_linear *head = &d->model->lm_head;
    int32_t max_rows = d->scratch->max_rows;
    for (int32_t i = 0; i < m; i += max_rows) {
        int32_t n = m - i < max_rows ? m - i : max_rows;
        linear(d, head, states + (size_t)i * (size_t)head->n_in, n,
               logits + (size_t)i * (size_t)head->n_out);
    }
    bt_cpu_mark(d->profile, BT_PART_LM_HEAD);
}
