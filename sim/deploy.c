#include "sim/cost/host_law.h"
#include "sim/cost/roofline.h"
#include "sim/cost/stack_speed.h"
#include "sim/cost/surface_law.h"
#include "sim/hardware/stack.h"
#include "sim/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    HOST_BLOCKS_MAX = 1 << 22, /* host blocks the scheduler keeps account of */
    PROBE_TOKENS = 2048,       /* a prefill that stands for recomputation */
    PROBE_CTX = 1024,          /* context of a decode that stands for a usual step */
};

static bool has_draft_model(const struct bt_config *c)
{
    return c->spec.kind == BT_SPEC_DRAFT;
}

static enum bt_code check_draft(const struct bt_arch *arch, const struct bt_arch *draft,
                                struct bt_error *err)
{
    BT_ASSERT(draft != NULL);
    bool known = arch->vocab_family[0] != '\0' && draft->vocab_family[0] != '\0';
    if (known && strcmp(arch->vocab_family, draft->vocab_family) != 0) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "spec.draft: %s has the %s vocabulary, but %s has %s: draft tokens would mean "
                "something else",
                draft->name, draft->vocab_family, arch->name, arch->vocab_family);
    }
    if (!known && draft->vocab != arch->vocab) {
        BT_FAIL(err, BT_ERR_ARG, draft->vocab,
                "spec.draft: %s has %d vocabulary entries, but %s has %d: they cannot be the same",
                draft->name, draft->vocab, arch->name, arch->vocab);
    }
    return BT_OK;
}

static enum bt_code check_spec(const struct bt_config *c, const struct bt_arch *arch,
                               const struct bt_arch *draft, struct bt_error *err)
{
    const struct bt_spec_config *s = &c->spec;
    if (s->kind == BT_SPEC_NONE) {
        return BT_OK;
    }
    int32_t k = bt_config_lookahead_tokens(c);
    if (k < 1 || k > BT_MAX_SPEC_K) {
        BT_FAIL(err, BT_ERR_ARG, k, "spec: %d draft tokens; allowed are 1..%d", k, BT_MAX_SPEC_K);
    }
    if (s->kind == BT_SPEC_SELF && (s->self_layers < 1 || s->self_layers >= arch->n_layers)) {
        BT_FAIL(err, BT_ERR_ARG, s->self_layers,
                "spec.self: %d layers; %s with its %d layers allows 1..%d", s->self_layers,
                arch->name, arch->n_layers, arch->n_layers - 1);
    }
    if (s->n_acceptance < 1) {
        BT_FAIL(
            err, BT_ERR_ARG, 0,
            "spec.acceptance: not given, and not measured for this pair of models at temperature "
            "%g on %s text; it is never borrowed from another: measure it (berth calibrate "
            "--prompts) or give a number in [0, 1]",
            s->temperature, s->text[0] != '\0' ? s->text : "any");
    }
    for (int32_t i = 0; i < s->n_acceptance; i++) {
        if (!(s->acceptance[i] >= 0 && s->acceptance[i] <= 1)) {
            BT_FAIL(err, BT_ERR_ARG, i, "spec.acceptance: %g at position %d is not in [0, 1]",
                    s->acceptance[i], i + 1);
        }
    }
    return has_draft_model(c) ? check_draft(arch, draft, err) : BT_OK;
}

static enum bt_code plan_memory(struct bt_deploy *d, struct bt_error *err)
{
    const struct bt_config *c = &d->config;
    struct bt_memory_opts o =
        bt_memory_opts_of(c, &d->arch, has_draft_model(c) ? &d->draft : NULL, &d->gpu);
    BT_TRY(bt_memory_account(&o, &d->memory, err));
    if (!d->memory.fits) {
        BT_FAIL(err, BT_ERR_UNFIT, 0, "%s on %s %s", d->arch.name, d->gpu.name, d->memory.reason);
    }
    return BT_OK;
}

static struct bt_step_opts step_opts(const struct bt_deploy *d)
{
    const struct bt_config *c = &d->config;
    return (struct bt_step_opts){
        .target = {.arch = &d->arch,
                   .weights = d->weights,
                   .activations = d->activations,
                   .kv = d->kv},
        .draft = {.arch = has_draft_model(c) ? &d->draft : NULL, .kv = d->kv},
        .gpu = &d->gpu,
        .tp = c->tp,
        .fused = c->fused,
        .spec = c->spec.kind,
        .spec_k = bt_config_lookahead_tokens(c),
        .self_layers = c->spec.self_layers,
        .max_tokens = c->max_batched_tokens,
        .max_seqs = bt_config_max_seqs(c),
        .block_bytes = d->memory.block_bytes,
        .pcie_bytes_per_s = c->pcie_bytes_per_s,
    };
}

/* What a stack adds to its kernels' times, and how many kernels there are. */
static enum bt_code add_stack(const struct bt_deploy *d, struct bt_step_opts *o,
                              struct bt_error *err)
{
    struct bt_stack s;
    BT_TRY(bt_stack_find(d->config.stack, &s, err));
    if (s.family->engine != BT_STACK_BERTH) {
        o->separate = true;
        o->graph_node_ps = -1; /* gaps between kernels are in the overhead of a step */
        o->launch_ps = -1;
        o->step_overhead_ns = s.family->step_overhead_ns;
        o->host_base_ns = s.family->host_base_ns > 0 ? s.family->host_base_ns : -1;
        o->host_per_seq_ns = -1;
    }
    return BT_OK;
}

/* Berth's own kernels, where they were measured on the card (the embedding's always, in one
 * format): RoPE with the KV write and the activation are kernels by themselves. */
static enum bt_code add_own_kernels(const struct bt_deploy *d, struct bt_surface_library *surfaces,
                                    struct bt_step_opts *o, struct bt_error *err)
{
    struct bt_source_query q = {.op = BT_OP_EMBEDDING,
                                .format = {.activations = BT_NUM_BF16},
                                .gpu = d->gpu.name,
                                .stack = bt_stack_name_of(d->config.stack)};
    const struct bt_op_source *s = NULL;
    if (strcmp(q.stack.stack, "berth") == 0) {
        BT_TRY(bt_surface_library_find(surfaces, &q, &s, err));
        o->separate = s != NULL && s->surface != NULL && strcmp(s->surface->stack, "berth") == 0 &&
                      strcmp(s->surface->gpu, d->gpu.name) == 0;
    }
    return BT_OK;
}

static enum bt_code make_cost(const struct bt_deploy *d, struct bt_surface_library *surfaces,
                              const struct bt_fit *fit, struct bt_cost *out, struct bt_error *err)
{
    struct bt_step_opts o = step_opts(d);
    BT_TRY(add_stack(d, &o, err));
    if (fit != NULL) {
        o.step_overhead_ns = (int64_t)(fit->step_overhead_s * 1e9 + 0.5);
        o.time_scale = 1 / fit->efficiency;
    }
    if (surfaces != NULL && d->gpu.family == BT_GPU_CPU &&
        bt_surface_library_host(surfaces) != NULL) {
        return bt_host_cost_create(bt_surface_library_host(surfaces), &o, out, err);
    }
    if (surfaces == NULL || d->gpu.family == BT_GPU_CPU) {
        return bt_roofline_create(&o, out, err);
    }
    BT_TRY(add_own_kernels(d, surfaces, &o, err));
    return bt_surface_cost_create(surfaces, d->config.stack, BT_SOURCE_WITHOUT_NOTHING, &o, out,
                                  err);
}

static double step_ns(const struct bt_cost *cost, const struct bt_batch *b)
{
    struct bt_cost_parts p;
    cost->ops->step(cost->self, b, &p);
    return (double)p.time_ps * 1e-3;
}

/* Recomputing n tokens takes a n + b n^2: from a prefill of one chunk with no context and one with
 * as much context again, which differ by chunk^2 query-key pairs. */
static void derive_preempt_cost(struct bt_deploy *d)
{
    int64_t n =
        d->config.max_batched_tokens < PROBE_TOKENS ? d->config.max_batched_tokens : PROBE_TOKENS;
    struct bt_batch b = {.n_prefill = 1,
                         .n_prefill_tokens = (int32_t)n,
                         .prefill_pairs = n * (n + 1) / 2,
                         .prefill_ctx = n};
    double first_ns = step_ns(&d->cost, &b);
    b.prefill_pairs += n * n;
    b.prefill_ctx += n;
    double pair_ns = (step_ns(&d->cost, &b) - first_ns) / ((double)n * (double)n);
    const struct bt_cost_ops *ops = d->cost.ops;
    d->sched.preempt_cost = (struct bt_preempt_cost){
        .recompute_ns_per_token = first_ns / (double)n - pair_ns * (double)n / 2,
        .recompute_ns_per_token2 = pair_ns / 2,
        .swap_out_ns_per_block = (double)ops->copy_ps(d->cost.self, BT_COPY_SWAP_OUT, 1) * 1e-3,
        .swap_in_ns_per_block = (double)ops->copy_ps(d->cost.self, BT_COPY_SWAP_IN, 1) * 1e-3,
    };
}

/* A draft step over a target step, one sequence at a usual context. */
static double draft_cost_ratio(const struct bt_cost *cost, int32_t k)
{
    struct bt_batch b = {.n_decode = 1,
                         .n_decode_tokens = 1 + k,
                         .decode_ctx = PROBE_CTX,
                         .decode_ctx_long = PROBE_CTX,
                         .n_logits = 1 + k};
    double verify_ns = step_ns(cost, &b);
    b.n_draft_steps = k;
    return (step_ns(cost, &b) - verify_ns) / k / verify_ns;
}

static void derive_costs(struct bt_deploy *d)
{
    derive_preempt_cost(d);
    if (d->config.spec.kind != BT_SPEC_NONE) {
        d->sched.spec.draft_cost_ratio =
            draft_cost_ratio(&d->cost, bt_config_lookahead_tokens(&d->config));
    }
}

/* Host blocks: each rank swaps its own share, and the host's memory holds them all. */
static enum bt_code host_blocks(const struct bt_deploy *d, int32_t *out, struct bt_error *err)
{
    const struct bt_config *c = &d->config;
    *out = 0;
    if (c->preempt == BT_PREEMPT_RECOMPUTE) {
        return BT_OK;
    }
    int64_t bytes = d->memory.block_bytes * d->memory.tp;
    int64_t n = c->host_memory_bytes / bytes;
    if (n < 1) {
        BT_FAIL(err, BT_ERR_ARG, n,
                "host-memory: %lld bytes hold no KV block of %lld; swap needs at least one",
                (long long)c->host_memory_bytes, (long long)bytes);
    }
    *out = (int32_t)(n < HOST_BLOCKS_MAX ? n : HOST_BLOCKS_MAX);
    return BT_OK;
}

static enum bt_code fill_sched(struct bt_deploy *d, struct bt_error *err)
{
    const struct bt_config *c = &d->config;
    const struct bt_memory_plan *m = &d->memory;
    bool contiguous = c->kv_layout == BT_KV_CONTIGUOUS;
    int32_t n_host = 0;
    BT_TRY(host_blocks(d, &n_host, err));
    if (m->kv_blocks_total > INT32_MAX) {
        BT_FAIL(err, BT_ERR_ARG, 0, "kv-blocks: %lld blocks; at most %d are managed",
                (long long)m->kv_blocks_total, INT32_MAX);
    }
    bool long_class = c->kv_long_above_tokens > 0 && bt_kv_format_bits(d->kv) == 8;
    int32_t n_blocks = (int32_t)m->kv_blocks_total;
    d->sched = (struct bt_sched_opts){
        .batching = (enum bt_batching)c->batching,
        .max_seqs = bt_config_max_seqs(c),
        .max_seqs_auto = c->max_seqs == BT_AUTO,
        .max_batched_tokens = c->max_batched_tokens,
        .chunked_prefill = c->chunked_prefill,
        .max_model_len = d->max_model_len,
        .over_length = (enum bt_over_length)c->over_length,
        .n_blocks = n_blocks,
        .n_host_blocks = n_host,
        .block_tokens = m->block_tokens,
        .block_tokens_16bit = long_class ? m->block_tokens_16bit : 0,
        .long_above_tokens = long_class ? c->kv_long_above_tokens : 0,
        .block_bytes = m->block_bytes * m->tp,
        .prefix_cache = c->prefix_cache && !contiguous,
        .watermark_blocks = contiguous ? 0 : (int32_t)ceil(c->watermark * n_blocks),
        .preempt = (enum bt_preempt)c->preempt,
        .preempt_goal = (enum bt_preempt_goal)c->preempt_goal,
        .victim = (enum bt_victim)c->victim,
        .order = (enum bt_order)c->order,
        .priority_preempts = c->priority_preempts,
        .max_waiting = c->max_waiting,
        .window_low_ns = c->window_low_ns,
        .window_high_ns = c->window_high_ns,
        .inflight_max = c->inflight,
        .spec = {.k = bt_config_lookahead_tokens(c),
                 .k_adaptive = c->spec.k_adaptive,
                 .off_above_batch = c->spec.off_above_batch,
                 .has_draft_kv = has_draft_model(c)},
    };
    if (c->degrade_model[0] == '\0') {
        d->sched.degrade = (struct bt_degrade_opts){.at_waiting = c->degrade_at_waiting,
                                                    .max_new_tokens = c->degrade_max_tokens};
    }
    return BT_OK;
}

static enum bt_code resolve(struct bt_deploy *d, struct bt_surface_library *surfaces,
                            struct bt_error *err)
{
    const struct bt_config *c = &d->config;
    d->weights = bt_weight_format_resolve((enum bt_weight_format)c->weights, &d->arch);
    d->activations = bt_config_activations(c, &d->arch, &d->gpu);
    d->kv = bt_config_kv(c, &d->arch, &d->gpu);
    BT_TRY(check_spec(c, &d->arch, has_draft_model(c) ? &d->draft : NULL, err));
    BT_TRY(bt_arch_check_tp(&d->arch, c->tp, err));
    BT_TRY(plan_memory(d, err));
    d->max_model_len = d->memory.max_model_len;
    BT_TRY(fill_sched(d, err));
    BT_TRY(make_cost(d, surfaces, NULL, &d->cost, err));
    d->frontend_ns = bt_stack_speed_of(c->stack, &d->gpu).frontend_ns;
    derive_costs(d);
    return BT_OK;
}

enum bt_code bt_deploy_init(struct bt_deploy *d, const struct bt_config *config,
                            const struct bt_arch *arch, const struct bt_arch *draft,
                            const struct bt_gpu *gpu, struct bt_surface_library *surfaces,
                            struct bt_error *err)
{
    *d = (struct bt_deploy){.config = *config, .arch = *arch, .gpu = *gpu};
    if (has_draft_model(config)) {
        BT_ASSERT(draft != NULL);
        d->draft = *draft;
    }
    enum bt_code code = bt_config_check(config, err);
    if (config->gpu_memory_bytes > 0) {
        bt_gpu_set_memory(&d->gpu, config->gpu_memory_bytes);
    }
    if (code == BT_OK) {
        code = bt_stack_apply(&d->config, &d->gpu, arch->max_position, err);
    }
    if (code == BT_OK) {
        code = resolve(d, surfaces, err);
    }
    if (code != BT_OK) {
        struct bt_memory_plan memory = d->memory;
        bt_cost_fini(&d->cost);
        *d = (struct bt_deploy){.memory = memory};
    }
    return code;
}

enum bt_code bt_deploy_fit(struct bt_deploy *d, struct bt_surface_library *surfaces,
                           const struct bt_fit *fit, struct bt_error *err)
{
    if (strcmp(fit->stack, d->config.stack) != 0 || strcmp(fit->gpu, d->gpu.name) != 0) {
        return BT_OK;
    }
    struct bt_cost cost;
    BT_TRY(make_cost(d, surfaces, fit, &cost, err));
    /* A run of one's own bounds a step better than its operations do. */
    if (cost.trust > BT_TRUST_FITTED) {
        cost.trust = BT_TRUST_FITTED;
        (void)snprintf(cost.weakest, sizeof cost.weakest, "step overhead, fitted to a run");
    }
    cost.step_error = fit->step_error;
    cost.step_error_by_op = false;
    bt_deploy_set_cost(d, cost);
    return BT_OK;
}

void bt_deploy_set_cost(struct bt_deploy *d, struct bt_cost cost)
{
    bt_cost_fini(&d->cost);
    d->cost = cost;
    derive_costs(d);
}

void bt_deploy_fini(struct bt_deploy *d)
{
    bt_cost_fini(&d->cost);
    *d = (struct bt_deploy){0};
}
