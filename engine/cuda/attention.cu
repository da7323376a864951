#include "engine/cuda/attention_kernels.cuh"
#include "engine/cuda/check.cuh"

#include <math.h>
#include <new>

struct bt_cuda_attn {
    struct bt_attn_shape shape;
    struct bt_cuda_kv kv;
    enum bt_kv_part_id part;
    const struct bt_arch *arch; /* borrowed */
    int32_t head_dim;
    int32_t n_heads;
    int32_t max_rows, max_segments;
    bool bf16;
    const attn_family *families[BT_CUDA_KV_CLASSES];
    bool aligned[BT_CUDA_KV_CLASSES];
    bool wgmma[BT_CUDA_KV_CLASSES];
    float *partial;     /* device */
    float2 *partial_ml; /* device */
    int32_t *finished;  /* device */
};

static const attn_family *family_of(enum bt_kv_format f)
{
    switch (f) {
    case BT_KV_BF16:
        return &attn_bf16;
    case BT_KV_FP16:
        return &attn_fp16;
    case BT_KV_INT8:
        return &attn_int8;
    default:
        return NULL;
    }
}

static enum bt_code check_opts(const struct bt_cuda_attn_opts *o, struct bt_error *err)
{
    const struct bt_arch *arch = o->arch;
    if (arch->head_dim != 64 && arch->head_dim != 128) {
        BT_FAIL(err, BT_ERR_ARG, arch->head_dim,
                "%s: head_dim %d has no CUDA kernel (64 and 128 have); --executor cpu runs it",
                arch->name, arch->head_dim);
    }
    if (o->compute != BT_ACT_BF16 && o->compute != BT_ACT_FP16) {
        BT_FAIL(err, BT_ERR_ARG, o->compute,
                "cuda: attention does not compute in %s (bf16 and fp16); --executor cpu does",
                bt_act_format_name(o->compute));
    }
    for (int32_t c = 0; c < BT_CUDA_KV_CLASSES; c++) {
        const struct bt_block_layout *l = &o->kv->layout[c];
        if (l->block_tokens > 0 && family_of(l->format) == NULL) {
            BT_FAIL(err, BT_ERR_ARG, l->format,
                    "kv: \"%s\" has no CUDA kernel (bf16, fp16 and int8 have); --executor cpu runs "
                    "it",
                    bt_kv_format_name(l->format));
        }
    }
    return BT_OK;
}

/* Whether every row of the part starts at a multiple of 16 bytes. */
static bool is_aligned(const struct bt_block_layout *l, enum bt_kv_part_id part)
{
    const struct bt_kv_part *p = &l->parts[part];
    return l->block_bytes % 16 == 0 && p->offset_bytes % 16 == 0 && p->plane_bytes % 16 == 0;
}

static enum bt_code find_shape(struct bt_cuda_attn *a, const struct bt_cuda_attn_opts *o,
                               struct bt_error *err)
{
    struct bt_attn_shape *s = &a->shape;
    s->group = o->arch->n_heads / o->arch->n_kv_heads;
    s->n_kv_heads = o->kv->layout[0].parts[o->part].n_kv_heads;
    s->window = o->arch->n_sliding_layers > 0 ? o->arch->sliding_window : 0;
    s->n_classes = o->kv->layout[1].block_tokens > 0 ? 2 : 1;
    for (int32_t c = 0; c < s->n_classes; c++) {
        const struct bt_block_layout *l = &o->kv->layout[c];
        a->families[c] = family_of(l->format);
        a->aligned[c] = is_aligned(l, o->part);
        s->narrow = s->narrow || !a->aligned[c];
        s->no_chunks[c] = !a->aligned[c];
        s->step[c] = a->head_dim == 64 ? a->families[c]->step_64 : a->families[c]->step_128;
        BT_CUDA_TRY(a->families[c]->ready(a->head_dim, &a->wgmma[c]), err);
        for (int32_t i = 0; i < 2; i++) {
            int blocks = 0;
            BT_CUDA_TRY(a->families[c]->resident(a->head_dim, 8 << i, a->aligned[c], &blocks), err);
            int32_t all = blocks * o->device->n_sms;
            s->resident[i] = c == 0 || all < s->resident[i] ? all : s->resident[i];
        }
    }
    return BT_OK;
}

static enum bt_code take_workspaces(struct bt_cuda_attn *a, struct bt_cuda_arena *arena,
                                    struct bt_error *err)
{
    const struct bt_attn_shape *s = &a->shape;
    int64_t rows = (int64_t)bt_attn_max_partials(s) * s->n_kv_heads * 16;
    int64_t counts = (int64_t)bt_attn_max_split_tiles(s) * s->n_kv_heads * (int64_t)sizeof(int32_t);
    void *p = NULL;
    BT_TRY(bt_cuda_arena_take(arena, rows * a->head_dim * (int64_t)sizeof(float), &p, err));
    a->partial = (float *)p;
    BT_TRY(bt_cuda_arena_take(arena, rows * (int64_t)sizeof(float2), &p, err));
    a->partial_ml = (float2 *)p;
    BT_TRY(bt_cuda_arena_take(arena, counts, &p, err));
    a->finished = (int32_t *)p;
    BT_CUDA_TRY(cudaMemset(a->finished, 0, (size_t)counts), err);
    return BT_OK;
}

enum bt_code bt_cuda_attn_create(const struct bt_cuda_attn_opts *o, struct bt_cuda_attn **out,
                                 struct bt_error *err)
{
    *out = NULL;
    BT_TRY(check_opts(o, err));
    struct bt_cuda_attn *a = new (std::nothrow) bt_cuda_attn();
    if (a == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, (int64_t)sizeof *a, "cuda: no host memory for attention");
    }
    a->kv = *o->kv;
    a->part = o->part;
    a->arch = o->arch;
    a->head_dim = o->arch->head_dim;
    a->max_rows = o->max_rows;
    a->max_segments = o->max_segments;
    a->bf16 = o->compute == BT_ACT_BF16;
    enum bt_code code = find_shape(a, o, err);
    a->n_heads = a->shape.group * a->shape.n_kv_heads;
    code = code == BT_OK ? take_workspaces(a, o->arena, err) : code;
    if (code != BT_OK) {
        delete a;
        return code;
    }
    *out = a;
    return BT_OK;
}

void bt_cuda_attn_destroy(struct bt_cuda_attn *a)
{
    delete a;
}

int32_t bt_cuda_attn_plan_words(const struct bt_cuda_attn *a, int32_t n_rows, int32_t n_segments)
{
    return bt_attn_plan_words(&a->shape, n_rows, n_segments);
}

int32_t bt_cuda_attn_max_plan_words(const struct bt_cuda_attn *a)
{
    return bt_attn_max_plan_words(&a->shape, a->max_rows, a->max_segments);
}

void bt_cuda_attn_plan(const struct bt_cuda_attn *a, const struct bt_cuda_attn_segment *segments,
                       int32_t n_rows, int32_t n_segments, bool decode, int32_t *plan)
{
    BT_ASSERT(n_rows <= a->max_rows && n_segments <= a->max_segments);
    bt_attn_plan_make(&a->shape, segments, n_rows, n_segments, decode, plan);
}

static struct attn_args args_of(const struct bt_cuda_attn *a, const struct bt_cuda_batch *b,
                                int32_t layer, int32_t kv_class)
{
    const struct bt_block_layout *l = &a->kv.layout[kv_class];
    const struct bt_kv_part *p = &l->parts[a->part];
    bool slides = a->shape.window > 0 && bt_arch_layer_slides(a->arch, layer);
    int32_t list = (slides ? BT_CUDA_KV_CLASSES : 0) + kv_class;
    struct bt_attn_list_at at = bt_attn_list_at(&a->shape, b->n_rows, b->n_segments, list);
    const struct bt_attn_plan *plan = (const struct bt_attn_plan *)b->attn_plan;
    struct attn_args x = {};
    x.keys = a->kv.blocks + bt_kv_plane_offset(p, layer, 0);
    x.keys_to_values = p->plane_bytes;
    x.block_bytes = l->block_bytes;
    x.scales = bt_kv_scale_offset(l, p, 0, 0);
    x.block_tokens = l->block_tokens;
    x.n_kv_heads = a->shape.n_kv_heads;
    x.n_heads = a->n_heads;
    x.group = a->shape.group;
    x.window = slides ? a->shape.window : 0;
    x.scale_log2 = (float)(1.4426950408889634 / sqrt((double)a->head_dim));
    x.bf16 = a->bf16;
    x.block_heads = bt_attn_block_heads(&a->shape);
    x.max_blocks = b->max_blocks;
    x.blocks = b->blocks;
    x.shares = b->attn_plan + at.shares;
    x.n_chunks = &plan->n_chunks[list];
    x.items = (const struct bt_attn_item *)(b->attn_plan + at.items);
    x.chunks = (const struct bt_attn_chunk *)(b->attn_plan + at.chunks);
    x.partial = a->partial;
    x.partial_ml = a->partial_ml;
    x.finished = a->finished;
    return x;
}

enum bt_code bt_cuda_attn_run(struct bt_cuda_attn *a, const struct bt_cuda_batch *b, int32_t layer,
                              bool decode, const void *q, int32_t q_stride, void *out,
                              struct CUstream_st *stream, struct bt_error *err)
{
    BT_ASSERT(q_stride % 8 == 0);
    const struct bt_attn_shape *s = &a->shape;
    int32_t rows = bt_attn_tile_rows(s, b->n_rows, b->n_segments);
    int32_t n_blocks = bt_attn_n_shares(s, rows) * (s->n_kv_heads / bt_attn_block_heads(s));
    int32_t n_chunks = decode ? 0 : bt_attn_max_chunks(s, b->n_rows, b->n_segments);
    for (int32_t c = 0; c < s->n_classes; c++) {
        struct attn_args x = args_of(a, b, layer, c);
        x.decode = decode;
        x.q = (const uint16_t *)q;
        x.q_stride = q_stride;
        x.out = (uint16_t *)out;
        if (n_chunks > 0 && !s->no_chunks[c]) {
            a->families[c]->chunks(x, a->head_dim, a->wgmma[c], n_chunks * s->n_kv_heads, stream);
        }
        a->families[c]->stream(x, a->head_dim, rows, a->aligned[c], n_blocks, stream);
    }
    BT_CUDA_TRY(cudaGetLastError(), err);
    return BT_OK;
}
