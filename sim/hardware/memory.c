#include "sim/hardware/memory.h"

#include "sim/hardware/memory_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SEQS_AUTO = 1024 }; /* where `auto` stops growing: the most that engines take */

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t blocks_for_tokens(int64_t tokens, int64_t block_tokens)
{
    return (tokens + block_tokens - 1) / block_tokens;
}

static const struct bt_account_ops *ops_of(enum bt_stack_engine engine)
{
    switch (engine) {
    case BT_STACK_BERTH:
        return &bt_account_berth;
    case BT_STACK_VLLM:
        return &bt_account_vllm;
    case BT_STACK_TRTLLM:
        return &bt_account_trtllm;
    case BT_STACK_SGLANG:
        return &bt_account_sglang;
    }
    BT_ASSERT(!"an engine");
    return NULL;
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

/* Options left at zero are what the stack takes on this card. */
static void fill_stack_defaults(struct bt_account *a)
{
    struct bt_memory_opts *o = &a->o;
    if (o->block_tokens == 0) {
        o->block_tokens = a->stack.family->block_tokens;
    }
    if (o->max_batched_tokens == 0) {
        o->max_batched_tokens = bt_stack_batched_tokens(&a->stack, o->gpu, o->max_model_len);
    }
    if (o->max_seqs == 0) {
        o->max_seqs = bt_stack_max_seqs(&a->stack, o->gpu);
    }
    if (o->mem_fraction == 0) {
        o->mem_fraction = bt_stack_mem_fraction(&a->stack, o->gpu, o->max_batched_tokens, o->tp);
    }
}

/* A given pool's bytes must be countable, whatever the format. */
static enum bt_code check_pool(const struct bt_memory_opts *o, struct bt_error *err)
{
    const double most_bytes = 1e18;
    bool contiguous = o->layout == BT_KV_CONTIGUOUS;
    double block = contiguous ? (double)o->max_model_len + o->lookahead_tokens : o->block_tokens;
    int64_t token = bt_arch_kv_bytes_per_token(o->arch, BT_KV_FP32, 1);
    token += o->draft == NULL ? 0 : bt_arch_kv_bytes_per_token(o->draft, BT_KV_FP32, 1);
    if ((double)o->kv_blocks * block * (double)token > most_bytes) {
        BT_FAIL(err, BT_ERR_ARG, 0, "kv-blocks: %lld blocks of %.0f tokens are over %g bytes",
                (long long)o->kv_blocks, block, most_bytes);
    }
    return BT_OK;
}

static enum bt_code fill_defaults(const struct bt_memory_opts *opts, struct bt_account *a,
                                  struct bt_error *err)
{
    BT_ASSERT(opts->arch != NULL && opts->gpu != NULL);
    a->o = *opts;
    struct bt_memory_opts *o = &a->o;
    BT_TRY(bt_stack_find(o->stack, &a->stack, err));
    a->ops = ops_of(a->stack.family->engine);
    o->tp = o->tp != 0 ? o->tp : 1;
    a->max_model_len_given = o->max_model_len != 0;
    if (!a->max_model_len_given) {
        o->max_model_len = o->arch->max_position;
    }
    fill_stack_defaults(a);
    BT_TRY(bt_arch_check_tp(o->arch, o->tp, err));
    BT_TRY(check_range("block", o->block_tokens, 1, BT_MAX_BLOCK_TOKENS, err));
    BT_TRY(check_range("max-model-len", o->max_model_len, 1, INT32_MAX / 2, err));
    BT_TRY(check_range("max-seqs", o->max_seqs, 1, BT_MAX_SEQS, err));
    BT_TRY(check_range("max-batched-tokens", o->max_batched_tokens, 1, INT32_MAX / 2, err));
    BT_TRY(check_range("look-ahead tokens", o->lookahead_tokens, 0, BT_MAX_SPEC_K, err));
    BT_TRY(check_range("medusa heads", o->medusa_heads, 0, BT_MAX_SPEC_K, err));
    BT_TRY(check_range("kv-blocks", o->kv_blocks, 0, INT32_MAX, err));
    BT_TRY(check_pool(o, err));
    BT_TRY(check_range("gpu-memory", o->gpu_memory_bytes, 0, INT64_MAX, err));
    if (!(o->mem_fraction > 0 && o->mem_fraction <= 1)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "mem-fraction: %g is not in (0, 1]", o->mem_fraction);
    }
    return BT_OK;
}

/* Turns what is left into blocks. */
static void divide_pool(const struct bt_account *a, int64_t left, struct bt_memory_plan *p)
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
    bool hybrid = !contiguous && a->stack.family->hybrid_groups && a->o.draft == NULL &&
                  a->o.arch->n_sliding_layers > 0;
    if (p->kv_blocks_given) {
        p->kv_blocks_total = a->o.kv_blocks;
    } else if (hybrid) {
        double n = bt_account_hybrid_concurrency(a, p, left);
        p->kv_blocks_total = (int64_t)(n * (double)span) / p->block_tokens;
        p->block_bytes = p->kv_blocks_total > 0 ? left / p->kv_blocks_total : p->block_bytes;
    } else if (a->ops->rounds_up && !contiguous) {
        p->kv_blocks_total = blocks_for_tokens(max64(left, 0) / token, p->block_tokens);
    } else {
        p->kv_blocks_total = max64(left, 0) / p->block_bytes;
    }
    p->kv_pool_bytes = p->kv_blocks_total * p->block_bytes;
    p->remainder_bytes = p->kv_blocks_given ? 0 : left - p->kv_pool_bytes;
    p->host_blocks_total = a->o.host_memory_bytes / p->block_bytes;
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
static void account_once(const struct bt_account *a, struct bt_memory_plan *p)
{
    const struct bt_arch *m = a->o.arch;
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
    p->weights_bytes = a->o.weights_bytes > 0 ? a->o.weights_bytes : a->ops->weights(a, p);
    a->ops->overheads(a, p);
    p->kv_bytes_per_token = bt_arch_kv_bytes_per_token(m, p->kv, a->o.tp);
    enum bt_kv_format wide = bt_kv_format_resolve(BT_KV_DEFAULT, m);
    int64_t wide_token = bt_arch_kv_bytes_per_token(m, wide, a->o.tp);
    if (a->o.draft != NULL) {
        p->draft_kv_bytes_per_token =
            bt_arch_kv_bytes_per_token(a->o.draft, a->o.kv, bt_account_draft_tp(a));
        wide_token += bt_arch_kv_bytes_per_token(a->o.draft, wide, bt_account_draft_tp(a));
    }
    int64_t left = p->usable_bytes - p->reserved_bytes - p->weights_bytes - p->draft_bytes -
                   p->workspace_bytes;
    divide_pool(a, left, p);
    p->block_tokens_16bit = (int32_t)(p->block_bytes / wide_token);
}

static double gb(int64_t bytes)
{
    return (double)bytes / 1e9;
}

/* The card as it is sold ("24 GB" is 24 GiB of memory), or the pretended size. */
static void card_text(const struct bt_account *a, char *out, size_t out_bytes)
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
static bool would_fit(const struct bt_account *a, struct bt_memory_plan *p)
{
    if (bt_arch_check_tp(a->o.arch, a->o.tp, NULL) != BT_OK) {
        return false;
    }
    account_once(a, p);
    return p->fits;
}

/* The smallest change that fits: fewer bits a weight, then a shorter context where that was asked
 * for, then more GPUs. */
static void suggest(const struct bt_account *a, const struct bt_memory_plan *p, char *out,
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
        struct bt_account b = *a;
        b.o.weights = formats[i];
        b.o.weights_bytes = 0;
        if (bt_weight_format_bits(formats[i]) < bt_weight_format_bits(p->weights) &&
            would_fit(&b, &q)) {
            (void)snprintf(out, out_bytes, "%s would leave %.1f GB for KV",
                           bt_weight_format_name(formats[i]), gb(q.kv_pool_bytes));
            return;
        }
    }
    for (int32_t tp = 2 * a->o.tp; tp <= 16; tp *= 2) {
        struct bt_account b = *a;
        b.o.tp = tp;
        b.o.weights_bytes = 0;
        if (would_fit(&b, &q)) {
            (void)snprintf(out, out_bytes, "tp %d would leave %.1f GB for KV on each GPU", tp,
                           gb(q.kv_pool_bytes));
            return;
        }
    }
    (void)snprintf(out, out_bytes, "neither fewer bits nor tensor parallelism up to 16 cures it");
}

/* "26.0 GB of weights", or the KV of the one sequence that must fit. */
static void what_is_too_much(const struct bt_account *a, const struct bt_memory_plan *p,
                             int64_t left, char *out, size_t out_bytes)
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

static void explain(const struct bt_account *a, struct bt_memory_plan *p)
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

enum bt_act_format bt_config_activations(const struct bt_config *c, const struct bt_arch *arch,
                                         const struct bt_gpu *gpu)
{
    enum bt_act_format asked = (enum bt_act_format)c->activations;
    enum bt_act_format f = bt_act_format_resolve(asked, arch);
    bool is_float = bt_act_format_bits(f) >= 16;
    bool cpu = gpu->family == BT_GPU_CPU;
    return cpu && asked == BT_ACT_DEFAULT && is_float ? BT_ACT_FP32 : f;
}

enum bt_kv_format bt_config_kv(const struct bt_config *c, const struct bt_arch *arch,
                               const struct bt_gpu *gpu)
{
    enum bt_kv_format asked = (enum bt_kv_format)c->kv_dtype;
    if (gpu->family != BT_GPU_CPU || asked != BT_KV_DEFAULT) {
        return bt_kv_format_resolve(asked, arch);
    }
    switch ((enum bt_act_format)c->activations) {
    case BT_ACT_FP16:
        return BT_KV_FP16;
    case BT_ACT_BF16:
        return BT_KV_BF16;
    case BT_ACT_DEFAULT:
    case BT_ACT_FP32:
    case BT_ACT_INT8_DYNAMIC:
    case BT_ACT_INT8_STATIC:
    case BT_ACT_FORMATS:
        break;
    }
    return BT_KV_FP32;
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
        .activations = bt_config_activations(c, arch, gpu),
        .kv = bt_config_kv(c, arch, gpu),
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
        .host_memory_bytes = c->host_memory_bytes / c->tp,
    };
}

enum bt_code bt_memory_account(const struct bt_memory_opts *opts, struct bt_memory_plan *plan,
                               struct bt_error *err)
{
    struct bt_account a;
    BT_TRY(fill_defaults(opts, &a, err));
    account_once(&a, plan);
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
