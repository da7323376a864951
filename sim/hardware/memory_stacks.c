#include "sim/hardware/memory_impl.h"

#include <string.h>

#define MIB (INT64_C(1) << 20)

/* CUDA context, cuBLAS and driver heap: total less free memory of an empty process, measured on an
 * H200 with driver 580 (150,109,880,320 - 149,557,477,376 B). */
static const int64_t cuda_context_bytes = 552402944;

enum {
    ATTENTION_SPLITS = 8, /* partial results a sequence that split-KV attention may keep */
    HOPPER_CC = 90,
};

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

int32_t bt_account_draft_tp(const struct bt_account *a)
{
    return bt_arch_check_tp(a->o.draft, a->o.tp, NULL) == BT_OK ? a->o.tp : 1;
}

int64_t bt_account_draft(const struct bt_account *a)
{
    int64_t bytes = 0;
    int64_t h = a->o.arch->hidden;
    if (a->o.draft != NULL) {
        struct bt_weight_opts w = {.format = a->o.draft_weights, .tp = bt_account_draft_tp(a)};
        struct bt_weight_bytes parts = bt_arch_weight_bytes(a->o.draft, &w);
        bytes += parts.total;
        if (a->o.draft_is_head) {
            bytes += 2 * h * h * 2 - parts.embeddings - parts.lm_head;
        }
    }
    bytes += a->o.medusa_heads * (h * h + h) * 2;
    return bytes;
}

/* ---- berth ---- */

static int64_t berth_weights(const struct bt_account *a, const struct bt_memory_plan *p)
{
    (void)a;
    return p->weight_parts.total;
}

static int64_t berth_workspace(const struct bt_account *a)
{
    const struct bt_arch *m = a->o.arch;
    struct bt_arch_shard s = bt_arch_shard(m, a->o.tp);
    enum bt_act_format act = bt_act_format_resolve(a->o.activations, m);
    int64_t b = bt_act_format_bits(m->compute) / 8;
    int64_t r = m->wide_residual ? 4 : b;
    int64_t seqs = a->o.max_seqs;
    int64_t t = max64(a->o.max_batched_tokens, seqs);
    int64_t attn = 2 * (int64_t)s.q_dim + 2 * (int64_t)s.kv_dim;
    int64_t mlp = 3 * (int64_t)s.intermediate;
    int64_t bytes = t * (m->hidden * (r + b) + max64(attn, mlp) * b);
    if (bt_act_format_bits(act) == 8) {
        bytes += t * (max64(m->hidden, max64(s.q_dim, s.intermediate)) + 4);
    }
    bytes += seqs * (1 + (int64_t)a->o.lookahead_tokens) * m->vocab * 4;
    bytes += seqs * s.n_heads * ((int64_t)m->head_dim + 2) * 4 * ATTENTION_SPLITS;
    bytes += seqs * ceil_div(a->o.max_model_len, a->o.block_tokens) * 4;
    return bytes;
}

static void berth_overheads(const struct bt_account *a, struct bt_memory_plan *p)
{
    int64_t share = p->usable_bytes - (int64_t)((double)p->usable_bytes * a->o.mem_fraction);
    bool cpu = a->o.gpu->family == BT_GPU_CPU;
    p->reserved_bytes = max64(share, cpu ? 0 : cuda_context_bytes);
    p->draft_bytes = bt_account_draft(a);
    p->workspace_bytes = cpu ? bt_account_cpu_workspace(a) : berth_workspace(a);
}

const struct bt_account_ops bt_account_berth = {.weights = berth_weights,
                                                .overheads = berth_overheads};

/* ---- what PyTorch engines share ---- */

/* What PyTorch's caching allocator takes for a tensor of 10 MiB or more beyond its bytes: segments
 * come in 2 MiB, and a rest of up to 1 MiB is not split off. */
static int64_t allocator_rest(int64_t bytes)
{
    int64_t rest = ceil_div(bytes, 2 * MIB) * 2 * MIB - bytes;
    return bytes >= 10 * MIB && rest <= MIB ? rest : 0;
}

static int64_t matrix_rest(int64_t out, int64_t in, enum bt_weight_format f)
{
    return allocator_rest(bt_weight_matrix_bytes(out, in, f));
}

/* Published weights, the table of rotary angles over all positions, and the allocator's rests. */
static int64_t torch_weights(const struct bt_account *a, const struct bt_memory_plan *p)
{
    const struct bt_arch *m = a->o.arch;
    struct bt_arch_shard s = bt_arch_shard(m, a->o.tp);
    int64_t b = bt_act_format_bits(m->compute) / 8;
    int64_t layer =
        matrix_rest(s.q_dim + 2 * (int64_t)s.kv_dim, m->hidden, p->weights) +
        matrix_rest(m->hidden, s.q_dim, p->weights) +
        matrix_rest((m->mlp_gated ? 2 : 1) * (int64_t)s.intermediate, m->hidden, p->weights) +
        matrix_rest(m->hidden, s.intermediate, p->weights);
    int64_t ends = allocator_rest((int64_t)s.vocab * m->hidden * b) * (m->tie_embeddings ? 1 : 2);
    return p->weight_parts.total + (int64_t)m->max_position * m->head_dim * b +
           layer * m->n_layers + ends;
}

static int64_t cublas_workspace(const struct bt_account *a)
{
    return a->o.gpu->cc >= HOPPER_CC ? 32 * MIB : 8 * MIB + MIB / 8;
}

/* The widest point of a layer: the MLP's two or three tensors, or Q, K, V and the attention's
 * output, beside so many copies of the hidden states. */
static int64_t layer_peak(const struct bt_account *a, int32_t hidden_copies)
{
    const struct bt_arch *m = a->o.arch;
    struct bt_arch_shard s = bt_arch_shard(m, a->o.tp);
    int64_t b = bt_act_format_bits(m->compute) / 8;
    int64_t mlp = (m->mlp_gated ? 3 : 2) * (int64_t)s.intermediate;
    int64_t attn = 2 * (int64_t)s.q_dim + 2 * (int64_t)s.kv_dim;
    return a->o.max_batched_tokens * (max64(mlp, attn) + (int64_t)hidden_copies * m->hidden) * b;
}

/* ---- vLLM ---- */

static const double GRAPH_BASE_BYTES = 0.09 * 1024 * 1024 * 1024;
static const double GRAPH_BYTES = 5.6 * 1024 * 1024;

/* The profile run: all tokens of the budget through the layers, then the sampler, top-k and top-p
 * included, on a row for each sequence. */
static int64_t vllm_activation(const struct bt_account *a)
{
    const struct bt_arch *m = a->o.arch;
    const struct bt_stack_family *f = a->stack.family;
    int64_t b = bt_act_format_bits(m->compute) / 8;
    int64_t rows = min64(a->o.max_seqs, a->o.max_batched_tokens);
    int64_t hidden = (int64_t)a->o.max_batched_tokens * m->hidden * b;
    int64_t sampler =
        rows * m->vocab * f->sampler_bytes_per_logit + f->sampler_fixed_bytes + hidden;
    int64_t peak = max64(layer_peak(a, f->hidden_copies), sampler) + cublas_workspace(a);
    if (f->all_reduce_keeps && a->o.tp > 1) {
        peak += 2 * m->n_layers * hidden;
    }
    return peak;
}

/* Cards that drive displays: memory that other programs take while the engine looks at the card
 * counts as the engine's. */
static bool is_desktop_card(const struct bt_gpu *gpu)
{
    static const char brand[] = "GeForce";
    return strncmp(gpu->product, brand, sizeof brand - 1) == 0;
}

static void vllm_overheads(const struct bt_account *a, struct bt_memory_plan *p)
{
    const struct bt_stack_family *f = a->stack.family;
    p->reserved_bytes = p->usable_bytes - (int64_t)((double)p->usable_bytes * a->o.mem_fraction);
    p->draft_bytes = bt_account_draft(a);
    p->workspace_bytes = vllm_activation(a);
    if (f->reading != BT_VLLM_ALLOCATED) {
        p->workspace_bytes += f->context_bytes + (a->o.tp > 1 ? f->rank_bytes : 0) +
                              (is_desktop_card(a->o.gpu) ? f->desktop_bytes : 0);
    }
    if (f->graphs_inside) {
        double graphs = bt_stack_graphs(&a->stack, a->o.max_seqs);
        p->workspace_bytes += (int64_t)(GRAPH_BASE_BYTES + graphs * GRAPH_BYTES);
    }
}

const struct bt_account_ops bt_account_vllm = {.weights = torch_weights,
                                               .overheads = vllm_overheads};

/* Layers in groups of one kind and one size, that pages of any group fit any other: the smaller
 * kind's number, or the larger one's when they differ by less than a quarter. */
static int64_t group_size(int64_t n_full, int64_t n_slide)
{
    int64_t low = min64(n_full, n_slide);
    int64_t high = max64(n_full, n_slide);
    return 4 * high < 5 * low ? high : low;
}

double bt_account_hybrid_concurrency(const struct bt_account *a, const struct bt_memory_plan *p,
                                     int64_t bytes)
{
    const struct bt_arch *m = a->o.arch;
    int64_t n_slide = m->n_sliding_layers;
    int64_t n_full = m->n_layers - n_slide;
    int64_t size = n_full > 0 ? group_size(n_full, n_slide) : n_slide;
    int64_t block = a->o.block_tokens;
    int64_t span = (int64_t)a->o.max_model_len + a->o.lookahead_tokens;
    int64_t page_bytes = p->kv_bytes_per_token / m->n_layers * size * block;
    int64_t window = min64(m->sliding_window - 1 + (int64_t)a->o.max_batched_tokens, span);
    int64_t pages = ceil_div(n_full, size) * ceil_div(span, block) +
                    ceil_div(n_slide, size) * (ceil_div(window, block) + 1);
    return (double)(max64(bytes, 0) / page_bytes) / (double)pages;
}

/* ---- TensorRT-LLM ---- */

/* The pool is a share of what is free once weights, activations and runtime buffers are there. */
static void trtllm_overheads(const struct bt_account *a, struct bt_memory_plan *p)
{
    const struct bt_stack_family *f = a->stack.family;
    int64_t context = f->context_bytes + (a->o.tp > 1 ? f->rank_bytes : 0);
    const struct bt_arch *m = a->o.arch;
    struct bt_arch_shard s = bt_arch_shard(m, a->o.tp);
    int64_t b = bt_act_format_bits(m->compute) / 8;
    /* gate and up are multiplied in place: two tensors, not three. */
    int64_t layer = a->o.max_batched_tokens *
                    (2 * (int64_t)s.intermediate + (int64_t)f->hidden_copies * m->hidden) * b;
    int64_t decoder = (int64_t)a->o.max_seqs * m->vocab * f->sampler_bytes_per_logit;
    p->draft_bytes = bt_account_draft(a);
    p->workspace_bytes = layer + decoder + cublas_workspace(a);
    int64_t free_bytes =
        p->usable_bytes - context - p->weights_bytes - p->draft_bytes - p->workspace_bytes;
    p->reserved_bytes =
        context + max64(free_bytes - (int64_t)((double)free_bytes * a->o.mem_fraction), 0);
}

const struct bt_account_ops bt_account_trtllm = {
    .weights = torch_weights, .overheads = trtllm_overheads, .rounds_up = true};

/* ---- SGLang ---- */

/* The static share of what was free before loading holds weights and the pool; activations and
 * graphs have to do with the rest. */
static void sglang_overheads(const struct bt_account *a, struct bt_memory_plan *p)
{
    const struct bt_stack_family *f = a->stack.family;
    int64_t context = f->context_bytes + (a->o.tp > 1 ? f->rank_bytes : 0);
    int64_t start = p->usable_bytes - context;
    p->draft_bytes = bt_account_draft(a);
    p->workspace_bytes = 0;
    p->reserved_bytes = context + start - (int64_t)((double)start * a->o.mem_fraction);
}

const struct bt_account_ops bt_account_sglang = {.weights = torch_weights,
                                                 .overheads = sglang_overheads};
