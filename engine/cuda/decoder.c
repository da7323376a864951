#include "engine/cuda/decoder.h"

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* The largest extents of the models that share the workspaces. */
struct extents {
    int32_t hidden, q_dim, kv_dim, intermediate;
};

static void stretch(struct extents *e, const struct bt_arch *a)
{
    if (a == NULL) {
        return;
    }
    e->hidden = max32(e->hidden, a->hidden);
    e->q_dim = max32(e->q_dim, a->n_heads * a->head_dim);
    e->kv_dim = max32(e->kv_dim, a->n_kv_heads * a->head_dim);
    e->intermediate = max32(e->intermediate, a->intermediate);
}

enum bt_code bt_cuda_work_init(struct bt_cuda_work *w, struct bt_cuda_arena *arena,
                               const struct bt_arch *target, const struct bt_arch *draft,
                               int32_t max_rows, struct bt_error *err)
{
    *w = (struct bt_cuda_work){.max_rows = max_rows};
    struct extents e = {0};
    stretch(&e, target);
    stretch(&e, draft);
    int64_t rows = max_rows;
    int32_t widest = max32(max32(e.hidden, e.q_dim), e.intermediate);
    void *p = NULL;
    BT_TRY(bt_cuda_arena_take(arena, 4 * rows * e.hidden, &w->residual, err));
    BT_TRY(bt_cuda_arena_take(arena, 2 * rows * e.hidden, &w->h, err));
    BT_TRY(bt_cuda_arena_take(arena, rows * widest, &p, err));
    w->x8 = p;
    BT_TRY(bt_cuda_arena_take(arena, 4 * rows, &p, err));
    w->x_scale = p;
    BT_TRY(bt_cuda_arena_take(arena, 2 * rows * (e.q_dim + 2 * e.kv_dim), &w->qkv, err));
    BT_TRY(bt_cuda_arena_take(arena, 2 * rows * e.q_dim, &w->attended, err));
    BT_TRY(bt_cuda_arena_take(arena, 2 * rows * e.hidden, &w->y, err));
    BT_TRY(bt_cuda_arena_take(arena, 4 * rows * e.intermediate, &w->gate_up, err));
    return bt_cuda_arena_take(arena, 2 * rows * e.intermediate, &w->activated, err);
}

/* ---- one pass ---- */

struct pass {
    struct bt_cuda_decoder *d;
    const struct bt_cuda_batch *b;
    struct CUstream_st *stream;
    uint32_t parts;
    bool decode;
};

static bool wanted(const struct pass *p, enum bt_step_part part)
{
    return (p->parts & BT_CUDA_PART(part)) != 0;
}

/* Where a row operation puts what a linear layer reads: in the form the layer reads it in. Unfused:
 * 16-bit, and rounded afterwards. */
static struct bt_cuda_out out_for(const struct pass *p, const struct bt_cuda_linear *l, void *out16)
{
    struct bt_cuda_work *w = p->d->work;
    if (l == NULL || !l->int8_x || p->d->unfused) {
        return (struct bt_cuda_out){.out16 = out16};
    }
    return (struct bt_cuda_out){.out8 = w->x8, .out_scale = w->x_scale, .static_scale = l->x_scale};
}

static void quantise(const struct pass *p, const struct bt_cuda_linear *l, const void *x16)
{
    struct bt_cuda_work *w = p->d->work;
    if (l->int8_x && wanted(p, BT_PART_QUANTISE)) {
        struct bt_cuda_out out = {
            .out8 = w->x8, .out_scale = w->x_scale, .static_scale = l->x_scale};
        bt_cuda_quantise(p->d->types, x16, p->b->n_rows, l->n_in, out, p->stream);
    }
}

/* What the row operation before it has not done. */
static void quantise_unfused(const struct pass *p, const struct bt_cuda_linear *l, const void *x16)
{
    if (p->d->unfused) {
        quantise(p, l, x16);
    }
}

static enum bt_code linear(const struct pass *p, const struct bt_cuda_linear *l, const void *x16,
                           void *y, enum bt_step_part part, struct bt_error *err)
{
    struct bt_cuda_work *w = p->d->work;
    if (!wanted(p, part)) {
        return BT_OK;
    }
    struct bt_cuda_x x = {.x16 = x16};
    if (l->int8_x) {
        x = (struct bt_cuda_x){.x8 = w->x8, .x_scale = w->x_scale};
    }
    return bt_cuda_linear_run(p->d->gemm, l, &x, p->b->n_rows, y, BT_CUDA_Y_COMPUTE, p->stream,
                              err);
}

/* residual += y (NULL: nothing), then the norm before layer `next` (NULL: the 16-bit states). */
static void add_norm(const struct pass *p, const void *y, const void *weight,
                     const struct bt_cuda_linear *next, enum bt_step_part part)
{
    const struct bt_cuda_decoder *d = p->d;
    const struct bt_arch *a = &d->model->arch;
    struct bt_cuda_work *w = d->work;
    int32_t rows = p->b->n_rows;
    if (d->unfused && y != NULL) {
        if (wanted(p, BT_PART_ADD)) {
            bt_cuda_add(d->types, w->residual, y, rows, a->hidden, p->stream);
        }
        y = NULL;
    }
    if (wanted(p, part)) {
        bt_cuda_add_norm(d->types, w->residual, y, weight, (float)a->rms_eps, rows, a->hidden,
                         out_for(p, next, w->h), p->stream);
    }
    if (next != NULL) {
        quantise_unfused(p, next, w->h);
    }
}

/* Adds up the ranks' shares of y. */
static enum bt_code add_ranks(const struct pass *p, struct bt_error *err)
{
    int64_t n = (int64_t)p->b->n_rows * p->d->model->arch.hidden;
    return bt_cuda_comm_add(p->d->comm, p->d->work->y, n, p->d->types.compute, p->stream, err);
}

static enum bt_code attention_block(const struct pass *p, int32_t layer, struct bt_error *err)
{
    struct bt_cuda_decoder *d = p->d;
    const struct bt_arch *a = &d->model->arch;
    const struct bt_cuda_layer *l = &d->model->layers[layer];
    struct bt_cuda_work *w = d->work;
    float eps = (float)a->rms_eps;
    BT_TRY(linear(p, &l->qkv, w->h, w->qkv, BT_PART_QKV, err));
    bool rope = wanted(p, BT_PART_ROPE);
    bool write = d->unfused ? wanted(p, BT_PART_KV_WRITE) : rope;
    if (d->unfused && rope) {
        bt_cuda_rope_kv(d->types, d->kv, d->part, layer, p->b, d->model->rope, l->q_norm, l->k_norm,
                        eps, a->n_heads, w->qkv, true, false, p->stream);
        rope = false;
    }
    if (rope || write) {
        bt_cuda_rope_kv(d->types, d->kv, d->part, layer, p->b, d->model->rope, l->q_norm, l->k_norm,
                        eps, a->n_heads, w->qkv, rope, write, p->stream);
    }
    if (wanted(p, BT_PART_ATTENTION)) {
        BT_TRY(bt_cuda_attn_run(d->attn, p->b, layer, p->decode, w->qkv, l->qkv.n_out, w->attended,
                                p->stream, err));
    }
    quantise(p, &l->o, w->attended);
    BT_TRY(linear(p, &l->o, w->attended, w->y, BT_PART_O, err));
    return add_ranks(p, err);
}

static enum bt_code mlp_block(const struct pass *p, int32_t layer, struct bt_error *err)
{
    struct bt_cuda_decoder *d = p->d;
    const struct bt_cuda_layer *l = &d->model->layers[layer];
    struct bt_cuda_work *w = d->work;
    int32_t rows = p->b->n_rows;
    if (!d->unfused && !l->down.int8_x && bt_cuda_linear_fuses_silu(d->gemm, &l->gate_up, rows)) {
        if (wanted(p, BT_PART_GATE_UP)) {
            BT_TRY(bt_cuda_linear_silu(d->gemm, &l->gate_up, w->h, rows, w->activated, p->stream,
                                       err));
        }
    } else {
        BT_TRY(linear(p, &l->gate_up, w->h, w->gate_up, BT_PART_GATE_UP, err));
        if (wanted(p, BT_PART_ACTIVATION)) {
            bt_cuda_silu_mul(d->types, w->gate_up, rows, d->model->arch.intermediate,
                             out_for(p, &l->down, w->activated), p->stream);
        }
    }
    quantise_unfused(p, &l->down, w->activated);
    BT_TRY(linear(p, &l->down, w->activated, w->y, BT_PART_DOWN, err));
    return add_ranks(p, err);
}

enum bt_code bt_cuda_decoder_forward(struct bt_cuda_decoder *d, const struct bt_cuda_batch *b,
                                     int32_t n_layers, bool decode, uint32_t parts,
                                     struct CUstream_st *stream, struct bt_error *err)
{
    const struct bt_cuda_model *m = d->model;
    BT_ASSERT(n_layers > 0 && n_layers <= m->arch.n_layers);
    BT_ASSERT(b->n_rows > 0 && b->n_rows <= d->work->max_rows);
    struct pass p = {.d = d, .b = b, .stream = stream, .parts = parts, .decode = decode};
    if (wanted(&p, BT_PART_EMBED)) {
        bt_cuda_embed(d->types, b->ids, b->n_rows, m->embed, m->embed_scale, m->arch.hidden,
                      d->work->residual, stream);
    }
    const void *y = NULL;
    for (int32_t i = 0; i < n_layers; i++) {
        const struct bt_cuda_layer *l = &m->layers[i];
        add_norm(&p, y, l->attn_norm, &l->qkv, BT_PART_NORM);
        BT_TRY(attention_block(&p, i, err));
        add_norm(&p, d->work->y, l->mlp_norm, &l->gate_up, BT_PART_NORM);
        BT_TRY(mlp_block(&p, i, err));
        y = d->work->y;
    }
    add_norm(&p, y, m->final_norm, NULL, BT_PART_FINAL_NORM);
    return bt_cuda_check_launch("decoder", err);
}

enum bt_code bt_cuda_decoder_logits(struct bt_cuda_decoder *d, const void *states, int32_t m,
                                    float *logits, struct CUstream_st *stream, struct bt_error *err)
{
    const struct bt_cuda_linear *head = &d->model->lm_head;
    struct bt_cuda_work *w = d->work;
    struct bt_cuda_x x = {.x16 = states};
    for (int32_t i = 0; i < m; i += w->max_rows) {
        int32_t n = m - i < w->max_rows ? m - i : w->max_rows;
        x.x16 = (const uint16_t *)states + (size_t)i * (size_t)head->n_in;
        if (head->int8_x) {
            struct bt_cuda_out out = {
                .out8 = w->x8, .out_scale = w->x_scale, .static_scale = head->x_scale};
            bt_cuda_quantise(d->types, x.x16, n, head->n_in, out, stream);
            x = (struct bt_cuda_x){.x8 = w->x8, .x_scale = w->x_scale};
        }
        BT_TRY(bt_cuda_linear_run(d->gemm, head, &x, n, logits + (size_t)i * (size_t)head->n_out,
                                  BT_CUDA_Y_F32, stream, err));
    }
    return BT_OK;
}
