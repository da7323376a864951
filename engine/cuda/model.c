#include "engine/cuda/model.h"

#include "engine/core/rng.h"
#include "engine/cpu/ops.h"
#include "engine/cuda/check.cuh"
#include "engine/model/shard.h"

#include <stdlib.h>

struct loader {
    const struct bt_cuda_model_opts *o;
    struct bt_cuda_model *m;
    enum bt_dtype dtype;    /* of the compute type */
    struct bt_arena shares; /* of the matrix being loaded */
};

enum bt_code bt_cuda_upload(void *dst, const void *src, int64_t bytes, struct bt_error *err)
{
    BT_CUDA_TRY(cudaMemcpy(dst, src, (size_t)bytes, cudaMemcpyHostToDevice), err);
    return BT_OK;
}

/* ---- vectors and the embedding ---- */

/* A vector of the model in the compute type; all ones where there is only its shape. */
static enum bt_code load_vector(struct loader *l, const struct bt_tensor *t, int32_t n, void **out,
                                struct bt_error *err)
{
    float *row = malloc((size_t)n * sizeof *row);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    enum bt_code code = BT_OK;
    if (row == NULL || half == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, n, __FILE__, __LINE__, "cuda: no memory");
    } else {
        for (int32_t i = 0; i < n; i++) {
            row[i] = 1.0f;
        }
        if (t != NULL) {
            BT_ASSERT(t->cols == n);
            bt_tensor_row_f32(t, 0, row);
        }
        bt_dtype_from_f32(l->dtype, row, half, (size_t)n);
        code = bt_cuda_arena_take(&l->m->arena, 2 * (int64_t)n, out, err);
    }
    if (code == BT_OK) {
        code = bt_cuda_upload(*out, half, 2 * (int64_t)n, err);
    }
    free(row);
    free(half);
    return code;
}

/* Rows as 16-bit numbers, through one staging buffer. */
static enum bt_code upload_rows(struct loader *l, const struct bt_linear *w, void *dst,
                                struct bt_error *err)
{
    enum { ROWS = 256 };
    size_t k = (size_t)w->n_in;
    float *row = malloc(k * sizeof *row);
    uint16_t *stage = NULL;
    enum bt_code code = BT_OK;
    if (row == NULL || cudaMallocHost((void **)&stage, ROWS * k * sizeof *stage) != cudaSuccess) {
        code = bt_error_set(err, BT_ERR_NOMEM, w->n_in, __FILE__, __LINE__, "cuda: no memory");
    }
    for (int32_t i = 0; i < w->n_out && code == BT_OK; i += ROWS) {
        int32_t n = w->n_out - i < ROWS ? w->n_out - i : ROWS;
        for (int32_t r = 0; r < n; r++) {
            bt_linear_row_f32(w, i + r, row);
            bt_dtype_from_f32(l->dtype, row, stage + (size_t)r * k, k);
        }
        code = bt_cuda_upload((uint16_t *)dst + (size_t)i * k, stage,
                              (int64_t)((size_t)n * k * sizeof *stage), err);
    }
    (void)cudaFreeHost(stage);
    free(row);
    return code;
}

/* Int8 rows with an FP16 scale each stay as they are; every other table is 16-bit. */
static enum bt_code load_embed(struct loader *l, struct bt_error *err)
{
    struct bt_cuda_model *m = l->m;
    const struct bt_linear *w = &l->o->model->embed;
    int64_t n = (int64_t)w->n_out * w->n_in;
    if (w->quantised && w->q.bits == 8 && w->q.scale_stride == 1 && w->q.n_groups == 1 &&
        w->q.scale_dtype == BT_DTYPE_F16 && w->q.zero == NULL && w->q.perm == NULL) {
        BT_TRY(bt_cuda_arena_take(&m->arena, n, &m->embed, err));
        BT_TRY(bt_cuda_arena_take(&m->arena, 2 * (int64_t)w->n_out, &m->embed_scale, err));
        BT_TRY(bt_cuda_upload(m->embed, w->q.q, n, err));
        return bt_cuda_upload(m->embed_scale, w->q.scale, 2 * (int64_t)w->n_out, err);
    }
    BT_TRY(bt_cuda_arena_take(&m->arena, 2 * n, &m->embed, err));
    return upload_rows(l, w, m->embed, err);
}

static enum bt_code load_rope(struct loader *l, struct bt_error *err)
{
    const struct bt_arch *a = &l->m->arch;
    int32_t half = a->head_dim / 2;
    size_t row = (size_t)a->head_dim;
    float *table = malloc((size_t)l->o->max_position * row * sizeof *table);
    float *inv_freq = malloc((size_t)half * sizeof *inv_freq);
    void *p = NULL;
    int64_t bytes = (int64_t)((size_t)l->o->max_position * row * sizeof *table);
    enum bt_code code = bt_cuda_arena_take(&l->m->arena, bytes, &p, err);
    if (code == BT_OK && (table == NULL || inv_freq == NULL)) {
        code = bt_error_set(err, BT_ERR_NOMEM, bytes, __FILE__, __LINE__, "cuda: no memory");
    }
    if (code == BT_OK) {
        struct bt_cpu_rope rope;
        bt_cpu_rope_init(&rope, a, inv_freq);
        for (int32_t i = 0; i < l->o->max_position; i++) {
            float *at = table + (size_t)i * row;
            bt_cpu_rope_at(&rope, i, at, at + half);
        }
        code = bt_cuda_upload(p, table, bytes, err);
    }
    l->m->rope = (struct bt_cuda_rope){.table = p, .max_position = l->o->max_position};
    free(table);
    free(inv_freq);
    return code;
}

/* ---- matrices ---- */

/* One matrix from n parts that read the same input, each rank with its share of every part. */
static enum bt_code load_joint(struct loader *l, const struct bt_layer *layer,
                               const enum bt_linear_id *ids, int32_t n, struct bt_cuda_linear *out,
                               struct bt_error *err)
{
    struct bt_linear parts[3];
    const struct bt_linear *at[3];
    for (int32_t i = 0; i < n; i++) {
        struct bt_shard_range r =
            bt_shard_range_of(&l->o->model->config.arch, ids[i], l->o->n_ranks, l->o->rank);
        parts[i] = bt_linear_outputs(&layer->linear[ids[i]], r);
        at[i] = &parts[i];
    }
    return bt_cuda_linear_load(l->o->gemm, &l->m->arena, at, n, out, err);
}

/* A matrix whose inputs are shared out: the ranks' outputs add up. */
static enum bt_code load_added(struct loader *l, const struct bt_layer *layer, enum bt_linear_id id,
                               struct bt_cuda_linear *out, struct bt_error *err)
{
    const struct bt_linear *w = &layer->linear[id];
    struct bt_linear share;
    if (l->o->n_ranks > 1) {
        struct bt_shard_range r =
            bt_shard_range_of(&l->o->model->config.arch, id, l->o->n_ranks, l->o->rank);
        bt_arena_reset(&l->shares);
        BT_TRY(bt_linear_inputs(w, r, &l->shares, &share, err));
        if (l->o->rank == 0) {
            share.bias = w->bias;
        }
        w = &share;
    }
    return bt_cuda_linear_load(l->o->gemm, &l->m->arena, &w, 1, out, err);
}

static enum bt_code load_layer(struct loader *l, int32_t i, struct bt_error *err)
{
    static const enum bt_linear_id qkv[] = {BT_LINEAR_Q, BT_LINEAR_K, BT_LINEAR_V};
    static const enum bt_linear_id gate_up[] = {BT_LINEAR_GATE, BT_LINEAR_UP};
    const struct bt_layer *from = &l->o->model->layers[i];
    const struct bt_arch *a = &l->m->arch;
    struct bt_cuda_layer *to = &l->m->layers[i];
    BT_TRY(load_vector(l, &from->attn_norm, a->hidden, &to->attn_norm, err));
    BT_TRY(load_vector(l, &from->mlp_norm, a->hidden, &to->mlp_norm, err));
    if (a->qk_norm) {
        BT_TRY(load_vector(l, &from->q_norm, a->head_dim, &to->q_norm, err));
        BT_TRY(load_vector(l, &from->k_norm, a->head_dim, &to->k_norm, err));
    }
    BT_TRY(load_joint(l, from, qkv, 3, &to->qkv, err));
    BT_TRY(load_added(l, from, BT_LINEAR_O, &to->o, err));
    BT_TRY(load_joint(l, from, gate_up, 2, &to->gate_up, err));
    return load_added(l, from, BT_LINEAR_DOWN, &to->down, err);
}

static enum bt_code load_weights(struct loader *l, struct bt_error *err)
{
    const struct bt_model *from = l->o->model;
    struct bt_cuda_model *m = l->m;
    for (int32_t i = 0; i < m->arch.n_layers; i++) {
        BT_TRY(load_layer(l, i, err));
    }
    BT_TRY(load_vector(l, &from->final_norm, m->arch.hidden, &m->final_norm, err));
    const struct bt_linear *head = &from->lm_head;
    BT_TRY(bt_cuda_linear_load(l->o->gemm, &m->arena, &head, 1, &m->lm_head, err));
    if (from->head_is_embed && m->lm_head.weights == BT_CUDA_W16) {
        m->embed = m->lm_head.w; /* 16-bit matrices stay [N, K] */
        return BT_OK;
    }
    return load_embed(l, err);
}

/* ---- random weights ---- */

static enum bt_code make_linear(struct loader *l, int32_t n_out, int32_t n_in,
                                enum bt_weight_format f, bool bias, uint64_t stream,
                                struct bt_cuda_linear *out, struct bt_error *err)
{
    enum bt_act_format act = l->o->model->config.quant.activations;
    bool integer = bt_weight_format_bits(f) <= 8;
    return bt_cuda_linear_random(l->o->gemm, &l->m->arena, n_out, n_in, f,
                                 integer ? act : BT_ACT_DEFAULT, bias,
                                 bt_hash_combine(l->o->seed, stream), out, err);
}

static enum bt_code make_layer(struct loader *l, int32_t i, enum bt_weight_format f,
                               struct bt_error *err)
{
    const struct bt_arch *a = &l->m->arch;
    struct bt_cuda_layer *to = &l->m->layers[i];
    int32_t q_dim = a->n_heads * a->head_dim;
    int32_t kv_dim = a->n_kv_heads * a->head_dim;
    uint64_t stream = 4 * (uint64_t)i;
    BT_TRY(load_vector(l, NULL, a->hidden, &to->attn_norm, err));
    BT_TRY(load_vector(l, NULL, a->hidden, &to->mlp_norm, err));
    if (a->qk_norm) {
        BT_TRY(load_vector(l, NULL, a->head_dim, &to->q_norm, err));
        BT_TRY(load_vector(l, NULL, a->head_dim, &to->k_norm, err));
    }
    BT_TRY(make_linear(l, q_dim + 2 * kv_dim, a->hidden, f, a->qkv_bias, stream, &to->qkv, err));
    BT_TRY(make_linear(l, a->hidden, q_dim, f, a->o_bias, stream + 1, &to->o, err));
    BT_TRY(make_linear(l, 2 * a->intermediate, a->hidden, f, a->mlp_bias, stream + 2, &to->gate_up,
                       err));
    return make_linear(l, a->hidden, a->intermediate, f, a->mlp_bias, stream + 3, &to->down, err);
}

static enum bt_code make_weights(struct loader *l, struct bt_error *err)
{
    struct bt_cuda_model *m = l->m;
    const struct bt_arch *a = &m->arch;
    enum bt_weight_format f = a->checkpoint;
    enum bt_weight_format plain = l->o->compute == BT_ACT_FP16 ? BT_WEIGHT_FP16 : BT_WEIGHT_BF16;
    f = bt_weight_format_bits(f) <= 8 ? f : plain;
    for (int32_t i = 0; i < a->n_layers; i++) {
        BT_TRY(make_layer(l, i, f, err));
    }
    BT_TRY(load_vector(l, NULL, a->hidden, &m->final_norm, err));
    enum bt_weight_format head = l->o->model->config.quant.lm_head ? f : plain;
    uint64_t stream = 4 * (uint64_t)a->n_layers;
    BT_TRY(make_linear(l, a->vocab, a->hidden, head, false, stream, &m->lm_head, err));
    if (a->tie_embeddings && head == plain) {
        m->embed = m->lm_head.w;
        return BT_OK;
    }
    int64_t n = (int64_t)a->vocab * a->hidden;
    BT_TRY(bt_cuda_arena_take(&m->arena, 2 * n, &m->embed, err));
    bt_cuda_fill_random(l->o->compute, bt_hash_combine(l->o->seed, stream + 1), m->embed, n);
    return bt_cuda_check_launch("random embeddings", err);
}

/* ---- load ---- */

static enum bt_code load(struct loader *l, struct bt_error *err)
{
    const struct bt_cuda_model_opts *o = l->o;
    struct bt_cuda_model *m = l->m;
    BT_TRY(bt_arch_check_tp(&m->arch, o->n_ranks, err));
    if (!m->arch.mlp_gated) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: an MLP without a gate is not supported", m->arch.name);
    }
    struct bt_arch_shard share = bt_arch_shard(&m->arch, o->n_ranks);
    m->arch.n_heads = share.n_heads;
    m->arch.n_kv_heads = share.n_kv_heads;
    m->arch.intermediate = share.intermediate;
    m->layers = calloc((size_t)m->arch.n_layers, sizeof *m->layers);
    if (m->layers == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, m->arch.n_layers, "cuda: no memory for a list of layers");
    }
    BT_TRY(load_rope(l, err));
    BT_TRY(bt_model_is_shape(o->model) ? make_weights(l, err) : load_weights(l, err));
    BT_CUDA_TRY(cudaDeviceSynchronize(), err);
    return BT_OK;
}

enum bt_code bt_cuda_model_load(const struct bt_cuda_model_opts *o, struct bt_cuda_model *m,
                                struct bt_error *err)
{
    BT_ASSERT(o->compute == BT_ACT_BF16 || o->compute == BT_ACT_FP16);
    BT_ASSERT(o->n_ranks > 0 && o->rank >= 0 && o->rank < o->n_ranks);
    *m = (struct bt_cuda_model){.arch = o->model->config.arch};
    bt_cuda_arena_init(&m->arena, o->what);
    struct loader l = {
        .o = o, .m = m, .dtype = o->compute == BT_ACT_FP16 ? BT_DTYPE_F16 : BT_DTYPE_BF16};
    bt_arena_init(&l.shares, 0);
    enum bt_code code = load(&l, err);
    bt_arena_fini(&l.shares);
    if (code != BT_OK) {
        bt_cuda_model_fini(m);
    }
    return code;
}

void bt_cuda_model_fini(struct bt_cuda_model *m)
{
    bt_cuda_arena_fini(&m->arena);
    free(m->layers);
    *m = (struct bt_cuda_model){0};
}

int64_t bt_cuda_model_read_bytes(const struct bt_cuda_model *m)
{
    int64_t sum = m->lm_head.bytes + 2 * (int64_t)m->arch.hidden;
    for (int32_t i = 0; i < m->arch.n_layers; i++) {
        const struct bt_cuda_layer *l = &m->layers[i];
        sum += l->qkv.bytes + l->o.bytes + l->gate_up.bytes + l->down.bytes;
        sum += 4 * (int64_t)m->arch.hidden;
    }
    return sum;
}
