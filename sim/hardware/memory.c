#include "sim/hardware/memory.h"

#include <stdio.h>
#include <string.h>

/* CUDA context, cuBLAS and driver heap: total less free memory of an empty process, measured on an
 * H200 with driver 580 (150,109,880,320 - 149,557,477,376 B). */
static const int64_t cuda_context_bytes = 552402944;

enum {
    DEFAULT_BLOCK_TOKENS = 16,
    DEFAULT_MAX_SEQS = 256,
    DEFAULT_MAX_BATCHED_TOKENS = 2048,
    ATTENTION_SPLITS = 8, /* partial results a sequence that split-KV attention may keep */
    MAX_SEQS_AUTO = 1024, /* where `auto` stops growing: the most that engines take */
};

/* Options with their defaults filled in and checked. */
struct account {
    struct bt_memory_opts o;
    bool max_model_len_given;
};

/* How one stack accounts: fills reserved_bytes, workspace_bytes and draft_bytes of a plan whose
 * usable and weight bytes are known. */
struct stack {
    const char *name;
    void (*overheads)(const struct account *a, struct bt_memory_plan *p);
};

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t blocks_for_tokens(int64_t tokens, int64_t block_tokens)
{
    return (tokens + block_tokens - 1) / block_tokens;
}

/* The draft is sharded like the target when it can be, else each rank holds all of it. */
static int32_t draft_tp(const struct account *a)
{
    return bt_arch_check_tp(a->o.draft, a->o.tp, NULL) == BT_OK ? a->o.tp : 1;
}

static int64_t berth_draft(const struct account *a)
{
    int64_t bytes = 0;
    if (a->o.draft != NULL) {
        struct bt_weight_opts w = {.format = a->o.draft_weights, .tp = draft_tp(a)};
        bytes += bt_arch_weight_bytes(a->o.draft, &w).total;
    }
    int64_t h = a->o.arch->hidden;
    bytes += a->o.medusa_heads * (h * h + h) * 2;
    return bytes;
}

static int64_t berth_workspace(const struct account *a)
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
    bytes += seqs * blocks_for_tokens(a->o.max_model_len, a->o.block_tokens) * 4;
    return bytes;
}

static void berth_overheads(const struct account *a, struct bt_memory_plan *p)
{
    int64_t share = p->usable_bytes - (int64_t)((double)p->usable_bytes * a->o.mem_fraction);
    int64_t context = a->o.gpu->family == BT_GPU_CPU ? 0 : cuda_context_bytes;
    p->reserved_bytes = max64(share, context);
    p->draft_bytes = berth_draft(a);
    p->workspace_bytes = berth_workspace(a);
}

static const struct stack stacks[] = {
    {"berth", berth_overheads},
};

enum { N_STACKS = sizeof stacks / sizeof *stacks };

static const char *const stack_names[N_STACKS + 1] = {"berth", NULL};

const char *const *bt_memory_stacks(void)
{
    return stack_names;
}

static enum bt_code find_stack(const char *name, const struct stack **out, struct bt_error *err)
{
    for (size_t i = 0; i < N_STACKS; i++) {
        if (strcmp(name, stacks[i].name) == 0) {
            *out = &stacks[i];
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0, "stack: \"%s\" has no memory accounting; known: %s", name,
            stack_names[0]);
}

static enum bt_code check_range(const char *what, int64_t value, int64_t min, int64_t max,
                                struct bt_error *err)
{
    if (value < min || value > max) {
        BT_FAIL(err, BT_ERR_ARG, value, "%s: %lld is not in %lld..%lld", what, (long long)value,
                (long long)min, (long long)max);
    }
    return BT_OK;
}

static enum bt_code fill_defaults(const struct bt_memory_opts *opts, struct account *a,
                                  struct bt_error *err)
{
    BT_ASSERT(opts->arch != NULL && opts->gpu != NULL);
    a->o = *opts;
    struct bt_memory_opts *o = &a->o;
    o->stack = o->stack != NULL ? o->stack : "berth";
    o->tp = o->tp != 0 ? o->tp : 1;
    o->block_tokens = o->block_tokens != 0 ? o->block_tokens : DEFAULT_BLOCK_TOKENS;
    o->max_seqs = o->max_seqs != 0 ? o->max_seqs : DEFAULT_MAX_SEQS;
    o->max_batched_tokens =
        o->max_batched_tokens != 0 ? o->max_batched_tokens : DEFAULT_MAX_BATCHED_TOKENS;
    if (o->mem_fraction == 0) {
        o->mem_fraction = 0.90;
    }
    a->max_model_len_given = o->max_model_len != 0;
    if (!a->max_model_len_given) {
        o->max_model_len = o->arch->max_position;
    }
    BT_TRY(bt_arch_check_tp(o->arch, o->tp, err));
    BT_TRY(check_range("block", o->block_tokens, 1, BT_MAX_BLOCK_TOKENS, err));
    BT_TRY(check_range("max-model-len", o->max_model_len, 1, INT32_MAX / 2, err));
    BT_TRY(check_range("max-seqs", o->max_seqs, 1, BT_MAX_SEQS, err));
    BT_TRY(check_range("max-batched-tokens", o->max_batched_tokens, 1, INT32_MAX / 2, err));
    BT_TRY(check_range("look-ahead tokens", o->lookahead_tokens, 0, BT_MAX_SPEC_K, err));
    BT_TRY(check_range("medusa heads", o->medusa_heads, 0, BT_MAX_SPEC_K, err));
    BT_TRY(check_range("kv-blocks", o->kv_blocks, 0, INT32_MAX, err));
    BT_TRY(check_range("gpu-memory", o->gpu_memory_bytes, 0, INT64_MAX, err));
    if (!(o->mem_fraction > 0 && o->mem_fraction <= 1)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "mem-fraction: %g is not in (0, 1]", o->mem_fraction);
    }
    return BT_OK;
}

/* Turns what is left into blocks. */
static void divide_pool(const struct account *a, int64_t left, struct bt_memory_plan *p)
{
    int64_t token = p->kv_bytes_per_token + p->draft_kv_bytes_per_token;
    int64_t span = (int64_t)a->o.max_model_len + a->o.lookahead_tokens;
    p->max_model_len = a->o.max_model_len;
    bool contiguous = a->o.layout == BT_KV_CONTIGUOUS;
    if (contiguous && !a->max_model_len_given && !p->kv_blocks_given && left < span * token &&
        left / token > a->o.lookahead_tokens) {
        span = left / token;
        p->max_model_len = (int32_t)span - a->o.lookahead_tokens;
        p->max_model_len_lowered = true;
    }
    p->block_tokens = contiguous ? (int32_t)span : a->o.block_tokens;
    p->block_bytes = token * p->block_tokens;
    p->kv_blocks_total = p->kv_blocks_given ? a->o.kv_blocks : max64(left, 0) / p->block_bytes;
    p->kv_pool_bytes = p->kv_blocks_total * p->block_bytes;
    p->remainder_bytes = p->kv_blocks_given ? 0 : left - p->kv_pool_bytes;
    p->kv_tokens_total = p->kv_blocks_total * (contiguous ? p->max_model_len : p->block_tokens);
    if (!contiguous && !a->max_model_len_given && p->kv_tokens_total > a->o.lookahead_tokens &&
        p->kv_tokens_total < span) {
        p->max_model_len = (int32_t)(p->kv_tokens_total - a->o.lookahead_tokens);
        p->max_model_len_lowered = true;
        span = p->kv_tokens_total;
    }
    int64_t need = contiguous ? 1 : blocks_for_tokens(span, p->block_tokens);
    p->max_concurrency = (double)p->kv_blocks_total / (double)need;
    if (a->max_model_len_given && !p->kv_blocks_given) {
        p->fits = p->kv_blocks_total >= need;
    } else {
        p->fits = p->kv_blocks_total > 0;
    }
}

/* The plan without its texts. */
static enum bt_code account_once(const struct account *a, struct bt_memory_plan *p,
                                 struct bt_error *err)
{
    const struct bt_arch *m = a->o.arch;
    const struct stack *stack = NULL;
    BT_TRY(find_stack(a->o.stack, &stack, err));
    *p = (struct bt_memory_plan){
        .tp = a->o.tp,
        .weights = bt_weight_format_resolve(a->o.weights, m),
        .activations = bt_act_format_resolve(a->o.activations, m),
        .kv = bt_kv_format_resolve(a->o.kv, m),
        .usable_bytes = a->o.gpu_memory_bytes > 0 ? a->o.gpu_memory_bytes : a->o.gpu->usable_bytes,
        .kv_blocks_given = a->o.kv_blocks > 0,
    };
    struct bt_weight_opts w = {
        .format = p->weights, .tp = a->o.tp, .quantise_lm_head = a->o.quantise_lm_head};
    p->weight_parts = bt_arch_weight_bytes(m, &w);
    p->weights_bytes = p->weight_parts.total;
    stack->overheads(a, p);
    p->kv_bytes_per_token = bt_arch_kv_bytes_per_token(m, p->kv, a->o.tp);
    enum bt_kv_format wide = bt_kv_format_resolve(BT_KV_DEFAULT, m);
    int64_t wide_token = bt_arch_kv_bytes_per_token(m, wide, a->o.tp);
    if (a->o.draft != NULL) {
        p->draft_kv_bytes_per_token = bt_arch_kv_bytes_per_token(a->o.draft, a->o.kv, draft_tp(a));
        wide_token += bt_arch_kv_bytes_per_token(a->o.draft, wide, draft_tp(a));
    }
    int64_t left = p->usable_bytes - p->reserved_bytes - p->weights_bytes - p->draft_bytes -
                   p->workspace_bytes;
    divide_pool(a, left, p);
    p->block_tokens_16bit = (int32_t)(p->block_bytes / wide_token);
    return BT_OK;
}

static double gb(int64_t bytes)
{
    return (double)bytes / 1e9;
}

/* The card as it is sold ("24 GB" is 24 GiB of memory), or the pretended size. */
static void card_text(const struct account *a, char *out, size_t out_bytes)
{
    const int64_t gib = INT64_C(1) << 30;
    int64_t bytes = a->o.gpu_memory_bytes > 0 ? a->o.gpu_memory_bytes : a->o.gpu->memory_bytes;
    if (bytes % gib == 0) {
        (void)snprintf(out, out_bytes, "%lld GB", (long long)(bytes / gib));
    } else {
        (void)snprintf(out, out_bytes, "%.1f GB", gb(bytes));
    }
}

/* Whether the same with another weight format, KV format or tp would fit. */
static bool would_fit(const struct account *a, struct bt_memory_plan *p)
{
    return bt_arch_check_tp(a->o.arch, a->o.tp, NULL) == BT_OK &&
           account_once(a, p, NULL) == BT_OK && p->fits;
}

/* The smallest change that fits: fewer bits a weight, then a shorter context where that was asked
 * for, then more GPUs. */
static void suggest(const struct account *a, const struct bt_memory_plan *p, char *out,
                    size_t out_bytes)
{
    static const enum bt_weight_format formats[] = {BT_WEIGHT_FP16, BT_WEIGHT_INT8,
                                                    BT_WEIGHT_INT4_G128};
    struct bt_memory_plan q;
    if (a->max_model_len_given && p->kv_blocks_total > 0) {
        (void)snprintf(out, out_bytes, "max-model-len %lld would fit",
                       (long long)(p->kv_tokens_total - a->o.lookahead_tokens));
        return;
    }
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        struct account b = *a;
        b.o.weights = formats[i];
        if (bt_weight_format_bits(formats[i]) < bt_weight_format_bits(p->weights) &&
            would_fit(&b, &q)) {
            (void)snprintf(out, out_bytes, "%s would leave %.1f GB for KV",
                           bt_weight_format_name(formats[i]), gb(q.kv_pool_bytes));
            return;
        }
    }
    for (int32_t tp = 2 * a->o.tp; tp <= 16; tp *= 2) {
        struct account b = *a;
        b.o.tp = tp;
        if (would_fit(&b, &q)) {
            (void)snprintf(out, out_bytes, "tp %d would leave %.1f GB for KV on each GPU", tp,
                           gb(q.kv_pool_bytes));
            return;
        }
    }
    (void)snprintf(out, out_bytes, "neither fewer bits nor tensor parallelism up to 16 cures it");
}

/* "26.0 GB of weights", or the KV of the one sequence that must fit. */
static void what_is_too_much(const struct account *a, const struct bt_memory_plan *p, int64_t left,
                             char *out, size_t out_bytes)
{
    if (left >= p->block_bytes || (left > 0 && a->o.layout == BT_KV_CONTIGUOUS)) {
        int64_t span = (int64_t)a->o.max_model_len + a->o.lookahead_tokens;
        int64_t token = p->kv_bytes_per_token + p->draft_kv_bytes_per_token;
        (void)snprintf(out, out_bytes,
                       "one sequence of %lld tokens needs %.1f GB of KV, %.1f GB are left",
                       (long long)span, gb(span * token), gb(left));
        return;
    }
    char draft[48] = "";
    char workspace[48] = "";
    if (p->draft_bytes > 0) {
        (void)snprintf(draft, sizeof draft, " and %.1f GB of draft", gb(p->draft_bytes));
    }
    if (p->weights_bytes + p->draft_bytes <= p->usable_bytes - p->reserved_bytes) {
        (void)snprintf(workspace, sizeof workspace, " and %.1f GB of workspace",
                       gb(p->workspace_bytes));
    }
    (void)snprintf(out, out_bytes, "%.1f GB of weights%s%s", gb(p->weights_bytes), draft,
                   workspace);
}

static void explain(const struct account *a, struct bt_memory_plan *p)
{
    char draft[48] = "";
    if (p->draft_bytes > 0) {
        (void)snprintf(draft, sizeof draft, " - %.2f draft", gb(p->draft_bytes));
    }
    int64_t left = p->kv_pool_bytes + p->remainder_bytes;
    (void)snprintf(p->arithmetic, sizeof p->arithmetic,
                   "%.2f GB usable - %.2f reserved - %.2f weights%s - %.2f workspace = %.2f GB; "
                   "%lld blocks of %d tokens at %lld B a token",
                   gb(p->usable_bytes), gb(p->reserved_bytes), gb(p->weights_bytes), draft,
                   gb(p->workspace_bytes), gb(left), (long long)p->kv_blocks_total, p->block_tokens,
                   (long long)(p->kv_bytes_per_token + p->draft_kv_bytes_per_token));
    if (p->fits) {
        return;
    }
    char card[32];
    char advice[128];
    char what[128];
    char ranks[32] = "";
    card_text(a, card, sizeof card);
    suggest(a, p, advice, sizeof advice);
    what_is_too_much(a, p, left, what, sizeof what);
    if (p->tp > 1) {
        (void)snprintf(ranks, sizeof ranks, "each of %d x ", p->tp);
    }
    (void)snprintf(p->reason, sizeof p->reason, "does not fit: %s in %s%s; %s", what, ranks, card,
                   advice);
}

int32_t bt_config_lookahead_tokens(const struct bt_config *c)
{
    switch (c->spec.kind) {
    case BT_SPEC_NONE:
        return 0;
    case BT_SPEC_DRAFT:
    case BT_SPEC_SELF:
        return c->spec.k;
    case BT_SPEC_MEDUSA:
        return c->spec.medusa_heads;
    }
    BT_ASSERT(!"a kind of speculation");
    return 0;
}

int32_t bt_config_max_seqs(const struct bt_config *c)
{
    if (c->max_seqs != BT_AUTO) {
        return c->max_seqs;
    }
    return c->max_batched_tokens < MAX_SEQS_AUTO ? c->max_batched_tokens : MAX_SEQS_AUTO;
}

struct bt_memory_opts bt_memory_opts_of(const struct bt_config *c, const struct bt_arch *arch,
                                        const struct bt_arch *draft, const struct bt_gpu *gpu)
{
    BT_ASSERT((draft != NULL) == (c->spec.kind == BT_SPEC_DRAFT));
    return (struct bt_memory_opts){
        .arch = arch,
        .draft = draft,
        .gpu = gpu,
        .stack = c->stack[0] != '\0' ? c->stack : NULL,
        .weights = (enum bt_weight_format)c->weights,
        .activations = (enum bt_act_format)c->activations,
        .kv = (enum bt_kv_format)c->kv_dtype,
        .medusa_heads = c->spec.kind == BT_SPEC_MEDUSA ? c->spec.medusa_heads : 0,
        .lookahead_tokens = bt_config_lookahead_tokens(c),
        .tp = c->tp,
        .layout = (enum bt_kv_layout)c->kv_layout,
        .block_tokens = c->kv_block_tokens,
        .kv_blocks = c->kv_blocks,
        .gpu_memory_bytes = c->gpu_memory_bytes,
        .mem_fraction = c->mem_fraction,
        .max_model_len = c->max_model_len,
        .max_seqs = bt_config_max_seqs(c),
        .max_batched_tokens = c->max_batched_tokens,
    };
}

enum bt_code bt_memory_account(const struct bt_memory_opts *opts, struct bt_memory_plan *plan,
                               struct bt_error *err)
{
    struct account a;
    BT_TRY(fill_defaults(opts, &a, err));
    BT_TRY(account_once(&a, plan, err));
    explain(&a, plan);
    return BT_OK;
}

void bt_memory_parts(const struct bt_memory_plan *p, struct bt_memory_part out[BT_MEMORY_PARTS])
{
    const struct bt_memory_part parts[BT_MEMORY_PARTS] = {
        {"weights", p->weights_bytes},     {"draft", p->draft_bytes},
        {"workspace", p->workspace_bytes}, {"kv", p->kv_pool_bytes},
        {"reserved", p->reserved_bytes},   {"unused", max64(p->remainder_bytes, 0)},
    };
    memcpy(out, parts, sizeof parts);
}
