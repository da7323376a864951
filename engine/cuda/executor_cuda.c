#include "engine/cuda/executor_cuda.h"

#include "engine/core/rng.h"
#include "engine/cuda/executor_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- create ---- */

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static enum bt_code fill_defaults(struct bt_executor_opts *o, struct bt_error *err)
{
    if (o->compute == BT_ACT_DEFAULT) {
        bool fp16 = o->model->config.arch.compute == BT_ACT_FP16;
        o->compute = fp16 ? BT_ACT_FP16 : BT_ACT_BF16;
    }
    if (o->compute != BT_ACT_FP16 && o->compute != BT_ACT_BF16) {
        BT_FAIL(err, BT_ERR_ARG, o->compute,
                "activations %s: the CUDA executor has kernels for fp16 and bf16",
                bt_act_format_name(o->compute));
    }
    if (o->kv == BT_KV_DEFAULT) {
        o->kv = o->compute == BT_ACT_FP16 ? BT_KV_FP16 : BT_KV_BF16;
    }
    if (o->clock != BT_CLOCK_WALL) {
        BT_FAIL(err, BT_ERR_ARG, o->clock, "clock: work counts the CPU executor's thread alone");
    }
    o->n_ranks = o->n_ranks == 0 ? 1 : o->n_ranks;
    o->max_rows = o->max_rows == 0 ? BT_CUDA_PIECE_ROWS : o->max_rows;
    int32_t decode_rows = bt_cuda_bucket(o->max_seqs) * (1 + o->spec_k);
    o->max_rows = max32(o->max_rows, decode_rows);
    return BT_OK;
}

static enum bt_code load_model(struct bt_cuda_executor *e, const struct bt_model *m,
                               const char *what, struct bt_cuda_model *out, struct bt_error *err)
{
    struct bt_cuda_model_opts o = {
        .model = m,
        .gemm = e->gemm,
        .compute = e->opts.compute,
        .max_position = e->opts.max_model_len + e->opts.spec_k,
        .n_ranks = e->opts.n_ranks,
        .rank = e->opts.rank,
        .seed = 1,
        .what = what,
    };
    return bt_cuda_model_load(&o, out, err);
}

static enum bt_code load_heads(struct bt_cuda_executor *e, struct bt_error *err)
{
    const struct bt_medusa *m = e->opts.medusa;
    e->n_heads = m->n_heads;
    for (int32_t i = 0; i < m->n_heads; i++) {
        const struct bt_linear *head = &m->heads[i];
        BT_TRY(bt_cuda_linear_load(e->gemm, &e->heads_arena, &head, 1, &e->heads[i], err));
    }
    return BT_OK;
}

static enum bt_code load_models(struct bt_cuda_executor *e, struct bt_error *err)
{
    struct bt_executor_opts *o = &e->opts;
    struct bt_cuda_gemm_opts go = {.device = &e->device,
                                   .compute = o->compute,
                                   .max_rows = o->max_rows,
                                   .arena = &e->work_arena};
    BT_TRY(bt_cuda_gemm_create(&go, &e->gemm, err));
    BT_TRY(load_model(e, o->model, "weights", &e->target, err));
    e->read_bytes = bt_cuda_model_read_bytes(&e->target);
    if (o->draft != NULL) {
        BT_TRY(load_model(e, o->draft, "draft", &e->draft, err));
    }
    if (o->medusa != NULL) {
        BT_TRY(load_heads(e, err));
    }
    return BT_OK;
}

static enum bt_code take_pool(struct bt_cuda_executor *e, struct bt_error *err)
{
    const struct bt_executor_opts *o = &e->opts;
    const struct bt_arch *draft = o->draft == NULL ? NULL : &e->draft.arch;
    struct bt_block_layout *l = e->kv.layout;
    BT_TRY(bt_block_layout_init(&l[0], &e->target.arch, draft, o->kv, o->block_tokens, err));
    int32_t least = l[0].block_tokens;
    if (o->kv_16bit != BT_KV_DEFAULT && o->kv == BT_KV_INT8) {
        BT_TRY(bt_block_layout_init_16bit(&l[1], &l[0], o->kv_16bit, err));
        least = l[1].block_tokens;
    }
    e->max_blocks = (o->max_model_len + o->spec_k) / least + 1;
    e->max_blocks = e->max_blocks > o->n_blocks ? o->n_blocks : e->max_blocks;
    e->kv.n_blocks = o->n_blocks;
    void *p;
    BT_TRY(bt_cuda_arena_take(&e->pool_arena, o->n_blocks * l[0].block_bytes, &p, err));
    e->kv.blocks = p;
    BT_TRY(bt_cuda_swap_init(&e->swap, e->kv.blocks, l[0].block_bytes, o->n_host_blocks,
                             o->pcie_bytes_per_s, err));
    return bt_block_ids_init(&e->ids, &e->host_arena, o->n_blocks, o->n_host_blocks,
                             l[0].block_tokens, err);
}

static enum bt_code make_decoder(struct bt_cuda_executor *e, const struct bt_cuda_model *m,
                                 enum bt_kv_part_id part, struct bt_cuda_attn **attn,
                                 struct bt_cuda_decoder *d, struct bt_error *err)
{
    const struct bt_executor_opts *o = &e->opts;
    struct bt_cuda_attn_opts ao = {
        .device = &e->device,
        .kv = &e->kv,
        .part = part,
        .arch = &m->arch,
        .compute = o->compute,
        .max_rows = o->max_rows,
        .max_segments = e->max_segments,
        .max_model_len = o->max_model_len + o->spec_k,
        .arena = &e->work_arena,
    };
    BT_TRY(bt_cuda_attn_create(&ao, attn, err));
    bool wide = o->compute == BT_ACT_FP16 && m->arch.wide_residual;
    *d = (struct bt_cuda_decoder){
        .model = m,
        .gemm = e->gemm,
        .attn = *attn,
        .kv = &e->kv,
        .part = part,
        .work = &e->work,
        .types = {.compute = o->compute, .residual = wide ? BT_ACT_FP32 : o->compute},
        .comm = o->comm,
        .unfused = o->unfused,
    };
    return BT_OK;
}

/* Device memory as an array. */
#define TAKE(e, p, n, err)                                                                         \
    do {                                                                                           \
        void *taken_;                                                                              \
        BT_TRY(bt_cuda_arena_take(&(e)->work_arena, (int64_t)(n) * (int64_t)sizeof *(p), &taken_,  \
                                  (err)));                                                         \
        (p) = taken_;                                                                              \
    } while (0)

static enum bt_code take_steps(struct bt_cuda_executor *e, struct bt_error *err)
{
    const struct bt_executor_opts *o = &e->opts;
    BT_ARENA_ARRAY(&e->host_arena, e->parts, e->max_segments, err);
    BT_ARENA_ARRAY(&e->host_arena, e->piece, e->max_segments, err);
    BT_ARENA_ARRAY(&e->host_arena, e->attn_segments, e->max_segments, err);
    BT_CUDA_TRY(cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking), err);
    for (int32_t i = 0; i < BT_CUDA_EVENTS; i++) {
        BT_CUDA_TRY(cudaEventCreate(&e->started[i]), err);
        BT_CUDA_TRY(cudaEventCreate(&e->done[i]), err);
    }
    e->pinned_cap = bt_cuda_pass_pinned_bytes(e, 2 + o->spec_k);
    size_t chosen_bytes = (size_t)e->max_segments * sizeof(struct bt_cuda_chosen);
    for (int32_t i = 0; i < BT_CUDA_INFLIGHT_MAX; i++) {
        struct bt_cuda_flight *f = &e->flights[i];
        BT_CUDA_TRY(cudaMallocHost((void **)&f->pinned, (size_t)e->pinned_cap), err);
        BT_CUDA_TRY(cudaMallocHost((void **)&f->chosen, chosen_bytes), err);
        BT_ARENA_ARRAY(&e->host_arena, f->failed, o->max_seqs, err);
        e->pinned_bytes += e->pinned_cap + (int64_t)chosen_bytes;
    }
    return BT_OK;
}

static enum bt_code take_work(struct bt_cuda_executor *e, struct bt_error *err)
{
    const struct bt_executor_opts *o = &e->opts;
    const struct bt_arch *a = &e->target.arch;
    const struct bt_arch *draft = o->draft == NULL ? NULL : &e->draft.arch;
    e->max_segments = bt_cuda_bucket(o->max_seqs);
    BT_TRY(bt_cuda_work_init(&e->work, &e->work_arena, a, draft, o->max_rows, err));
    BT_TRY(make_decoder(e, &e->target, BT_KV_PART_TARGET, &e->attn, &e->target_decoder, err));
    if (draft != NULL) {
        BT_TRY(
            make_decoder(e, &e->draft, BT_KV_PART_DRAFT, &e->draft_attn, &e->draft_decoder, err));
    }
    BT_TRY(bt_cuda_sampler_create(&e->work_arena, a->vocab, e->max_segments, max32(o->spec_k, 1),
                                  &e->sampler, err));
    e->max_choice_rows = e->max_segments * (1 + o->spec_k);
    int32_t hidden = max32(a->hidden, draft == NULL ? 0 : draft->hidden);
    int64_t n_drafts = (int64_t)e->max_segments * o->spec_k;
    int64_t choices = e->max_segments * (int64_t)sizeof(struct bt_cuda_choice) / 4;
    TAKE(e, e->meta, bt_cuda_pass_pinned_bytes(e, 1) / 4 + choices, err);
    TAKE(e, e->blocks, (int64_t)e->max_segments * e->max_blocks, err);
    TAKE(e, e->logits, (int64_t)e->max_choice_rows * a->vocab, err);
    TAKE(e, e->last, o->max_seqs + n_drafts, err);
    TAKE(e, e->chosen, e->max_segments, err);
    BT_CUDA_TRY(cudaMemset(e->blocks, 0, (size_t)e->max_segments * (size_t)e->max_blocks * 4), err);
    BT_CUDA_TRY(cudaMemset(e->last, 0, (size_t)(o->max_seqs + n_drafts) * 4), err);
    e->drafts = o->spec_k > 0 ? e->last + o->max_seqs : NULL;
    BT_TRY(bt_cuda_arena_take(&e->work_arena, 2 * (int64_t)e->max_choice_rows * hidden, &e->states,
                              err));
    if (o->medusa != NULL) {
        BT_TRY(bt_cuda_arena_take(&e->work_arena, 2 * (int64_t)o->max_seqs * hidden,
                                  &e->slot_states, err));
    }
    return take_steps(e, err);
}

static void executor_destroy(void *self)
{
    struct bt_cuda_executor *e = self;
    if (e == NULL) {
        return;
    }
    (void)cudaDeviceSynchronize();
    bt_cuda_graphs_fini(e);
    bt_cuda_swap_fini(&e->swap);
    for (int32_t i = 0; i < BT_CUDA_EVENTS; i++) {
        if (e->started[i] != NULL) {
            (void)cudaEventDestroy(e->started[i]);
        }
        if (e->done[i] != NULL) {
            (void)cudaEventDestroy(e->done[i]);
        }
    }
    for (int32_t i = 0; i < BT_CUDA_INFLIGHT_MAX; i++) {
        (void)cudaFreeHost(e->flights[i].pinned);
        (void)cudaFreeHost(e->flights[i].chosen);
    }
    if (e->stream != NULL) {
        (void)cudaStreamDestroy(e->stream);
    }
    bt_cuda_sampler_destroy(e->sampler);
    bt_cuda_attn_destroy(e->attn);
    bt_cuda_attn_destroy(e->draft_attn);
    bt_cuda_model_fini(&e->target);
    bt_cuda_model_fini(&e->draft);
    bt_cuda_gemm_destroy(e->gemm);
    bt_cuda_arena_fini(&e->heads_arena);
    bt_cuda_arena_fini(&e->pool_arena);
    bt_cuda_arena_fini(&e->work_arena);
    bt_arena_fini(&e->host_arena);
    free(e);
}

/* ---- copies ---- */

/* Swaps leave on their own streams, outward ones after the steps in flight; copies on write are the
 * first of the step's compute. */
static enum bt_code start_copies(struct bt_cuda_executor *e, const struct bt_step_plan *plan,
                                 struct bt_error *err)
{
    static const enum bt_copy_kind order[] = {BT_COPY_SWAP_OUT, BT_COPY_SWAP_IN, BT_COPY_COW};
    cudaEvent_t before = e->n_steps == 0 ? NULL : e->done[(e->n_steps - 1) % BT_CUDA_EVENTS];
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        for (int32_t i = 0; i < plan->n_copies; i++) {
            const struct bt_plan_copy *c = &plan->copies[i];
            if (c->kind != order[k]) {
                continue;
            }
            BT_TRY(c->kind == BT_COPY_COW ? bt_cuda_swap_cow(&e->swap, c, e->stream, err)
                                          : bt_cuda_swap_start(&e->swap, c, before, err));
            bt_block_ids_copy(&e->ids, c);
        }
    }
    return BT_OK;
}

/* ---- one step ---- */

static int32_t slots_of(const struct bt_cuda_executor *e, const struct bt_plan_seq *ps)
{
    return e->kv.layout[ps->kv_class].block_tokens;
}

/* Checks a starting sequence's prefix, and notes whose KV the step writes, as far as it is known.
 */
static bool note_seq(struct bt_cuda_executor *e, const struct bt_plan_seq *ps)
{
    struct bt_gen_request *r = bt_cuda_request(e, ps);
    bool starts = (ps->flags & BT_SEQ_START) != 0;
    BT_ASSERT(ps->k_spec <= e->opts.spec_k && ps->slot < e->opts.max_seqs);
    if (starts && ps->n_prompt < r->n_prompt) {
        r->n_prompt = ps->n_prompt; /* the scheduler has cut it to the model's length */
    }
    BT_ASSERT(r->n_prompt == ps->n_prompt && r->n_out <= ps->n_generated);
    bool failed = starts && !bt_block_ids_are_own(&e->ids, ps, r, slots_of(e, ps));
    for (int32_t i = 0; i < ps->n_tokens - ps->k_spec; i++) {
        int32_t pos = ps->ctx + i;
        int32_t id = pos < r->n_prompt + r->n_out ? bt_gen_token(r, pos) : -1;
        bt_block_ids_note(&e->ids, ps, slots_of(e, ps), pos, id);
    }
    return failed;
}

/* The target's pass over all sequences of a plan. */
static struct bt_cuda_pass target_pass(struct bt_cuda_executor *e, const struct bt_step_plan *plan,
                                       struct bt_cuda_part *parts)
{
    return (struct bt_cuda_pass){.kind = BT_PASS_TARGET,
                                 .decoder = &e->target_decoder,
                                 .n_layers = e->target.arch.n_layers,
                                 .plan = plan,
                                 .n_seqs = plan->n_seqs,
                                 .parts = parts,
                                 .decodes = plan->n_prefill_tokens == 0};
}

static enum bt_code run_target(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                               const struct bt_step_plan *plan, struct bt_error *err)
{
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        bool emits = (ps->flags & BT_SEQ_EMITS) != 0;
        e->parts[i] = (struct bt_cuda_part){
            .from = ps->ctx, .to = ps->ctx + ps->n_tokens, .n_want = emits ? 1 + ps->k_spec : 0};
    }
    struct bt_cuda_pass p = target_pass(e, plan, e->parts);
    return bt_cuda_pass_run(e, f, &p, err);
}

static enum bt_code run_step(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                             const struct bt_step_plan *plan, struct bt_error *err)
{
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        f->failed[i] = note_seq(e, &plan->seqs[i]);
    }
    f->pinned_used = 0;
    f->n = e->n_steps++;
    BT_CUDA_TRY(cudaEventRecord(e->started[f->n % BT_CUDA_EVENTS], e->stream), err);
    BT_TRY(bt_cuda_upload_blocks(e, f, plan, 0, plan->n_seqs, err));
    if (e->opts.spec_k > 0) {
        BT_TRY(bt_cuda_speculate(e, f, plan, err));
    }
    BT_TRY(run_target(e, f, plan, err));
    BT_CUDA_TRY(cudaMemcpyAsync(f->chosen, e->chosen, (size_t)plan->n_seqs * sizeof *f->chosen,
                                cudaMemcpyDeviceToHost, e->stream),
                err);
    BT_CUDA_TRY(cudaEventRecord(e->done[f->n % BT_CUDA_EVENTS], e->stream), err);
    return BT_OK;
}

static enum bt_submit executor_submit(void *self, const struct bt_step_plan *plan, int64_t now_ns,
                                      struct bt_step_result *result, struct bt_error *err)
{
    struct bt_cuda_executor *e = self;
    (void)result;
    if (e->n_flight == BT_CUDA_INFLIGHT_MAX) {
        return BT_SUBMIT_BUSY;
    }
    struct bt_cuda_flight *f = &e->flights[(e->first_flight + e->n_flight) % BT_CUDA_INFLIGHT_MAX];
    f->plan = plan;
    f->submit_ns = now_ns;
    f->zero_ns = now_ns - bt_clock_ns(BT_CLOCK_WALL);
    f->follows = e->n_flight > 0;
    f->n = -1;
    enum bt_code code = start_copies(e, plan, err);
    if (code == BT_OK && plan->n_seqs > 0) {
        code = run_step(e, f, plan, err);
    }
    if (code != BT_OK) {
        return BT_SUBMIT_FAILED;
    }
    e->n_flight++;
    return BT_SUBMIT_QUEUED;
}

/* ---- results ---- */

/* Appends the tokens of one sequence; those of a verification up to an end of sequence. */
static void emit_seq(struct bt_cuda_executor *e, const struct bt_plan_seq *ps,
                     const struct bt_cuda_chosen *c, struct bt_result_seq *rs)
{
    struct bt_gen_request *r = bt_cuda_request(e, ps);
    if ((ps->flags & BT_SEQ_EMITS) == 0 || rs->failed) {
        return;
    }
    if (c->failed != 0) {
        rs->failed = true;
        return;
    }
    BT_ASSERT(c->n_tokens >= 1 && c->n_tokens <= 1 + ps->k_spec);
    bool more = true;
    for (int32_t j = 0; j < c->n_tokens && more; j++) {
        if (j < ps->k_spec) {
            r->spec.reached[j]++;
            r->spec.accepted[j] += j < c->n_accepted;
            rs->n_accepted += j < c->n_accepted;
        }
        more = !bt_gen_emit(&e->config, r, rs, c->tokens[j]);
        if (j + 1 < c->n_tokens && more) { /* its KV was written with the verification */
            int32_t pos = ps->n_prompt + ps->n_generated + j;
            bt_block_ids_note(&e->ids, ps, slots_of(e, ps), pos, c->tokens[j]);
        }
    }
    bt_gen_count_verification(r, ps->k_spec, rs);
}

/* Tokens that were in flight when later steps were submitted are known now. */
static void note_later(struct bt_cuda_executor *e)
{
    for (int32_t k = 1; k < e->n_flight; k++) {
        const struct bt_step_plan *plan =
            e->flights[(e->first_flight + k) % BT_CUDA_INFLIGHT_MAX].plan;
        for (int32_t i = 0; i < plan->n_seqs; i++) {
            const struct bt_plan_seq *ps = &plan->seqs[i];
            const struct bt_gen_request *r = bt_cuda_request(e, ps);
            int32_t pos = ps->n_prompt + ps->n_generated - 1;
            bool computed = pos >= ps->ctx && pos < ps->ctx + ps->n_tokens;
            if (computed && ps->n_generated > 0 && ps->n_generated <= r->n_out) {
                bt_block_ids_note(&e->ids, ps, slots_of(e, ps), pos, bt_gen_token(r, pos));
            }
        }
    }
}

static enum bt_code fill_times(struct bt_cuda_executor *e, const struct bt_cuda_flight *f,
                               struct bt_step_result *result, struct bt_error *err)
{
    float ms = 0;
    cudaEvent_t start = e->started[f->n % BT_CUDA_EVENTS];
    BT_CUDA_TRY(cudaEventElapsedTime(&ms, start, e->done[f->n % BT_CUDA_EVENTS]), err);
    result->busy_ns = (int64_t)((double)ms * 1e6);
    result->done_ns = bt_clock_ns(BT_CLOCK_WALL) + f->zero_ns;
    result->start_ns = result->done_ns - result->busy_ns;
    result->start_ns = result->start_ns < f->submit_ns ? f->submit_ns : result->start_ns;
    result->start_ns = result->start_ns < e->last_done_ns && e->last_done_ns <= result->done_ns
                           ? e->last_done_ns
                           : result->start_ns;
    e->last_done_ns = result->done_ns;
    result->host_ns = result->start_ns - f->submit_ns;
    if (f->follows && f->n > 0) {
        BT_CUDA_TRY(cudaEventElapsedTime(&ms, e->done[(f->n - 1) % BT_CUDA_EVENTS], start), err);
        result->host_ns = (int64_t)((double)ms * 1e6);
    }
    return BT_OK;
}

/* A plan without sequences comes back when a copy has ended, or when none is left. */
static enum bt_code wait_copies(struct bt_cuda_executor *e, const struct bt_cuda_flight *f,
                                struct bt_step_result *result, struct bt_error *err)
{
    static const struct timespec pause = {.tv_nsec = 20000};
    BT_TRY(bt_cuda_swap_poll(&e->swap, result->copies_done, &result->n_copies_done, err));
    while (result->n_copies_done == 0 && e->swap.n_copies > 0) {
        (void)nanosleep(&pause, NULL);
        BT_TRY(bt_cuda_swap_poll(&e->swap, result->copies_done, &result->n_copies_done, err));
    }
    result->start_ns = f->submit_ns;
    result->done_ns = bt_clock_ns(BT_CLOCK_WALL) + f->zero_ns;
    result->busy_ns = result->host_ns = 0;
    result->flops = result->bytes = 0;
    return BT_OK;
}

static enum bt_code executor_wait(void *self, struct bt_step_result *result, struct bt_error *err)
{
    struct bt_cuda_executor *e = self;
    BT_ASSERT(e->n_flight > 0);
    struct bt_cuda_flight *f = &e->flights[e->first_flight];
    const struct bt_step_plan *plan = f->plan;
    result->step_id = plan->step_id;
    result->n_copies_done = 0;
    if (plan->n_seqs == 0) {
        BT_TRY(wait_copies(e, f, result, err));
    } else {
        BT_CUDA_TRY(cudaEventSynchronize(e->done[f->n % BT_CUDA_EVENTS]), err);
        for (int32_t i = 0; i < plan->n_seqs; i++) {
            result->seqs[i] = (struct bt_result_seq){.failed = f->failed[i]};
            emit_seq(e, &plan->seqs[i], &f->chosen[i], &result->seqs[i]);
        }
        note_later(e);
        BT_TRY(bt_cuda_swap_poll(&e->swap, result->copies_done, &result->n_copies_done, err));
        BT_TRY(fill_times(e, f, result, err));
        bt_step_count_work(&e->config.arch, e->read_bytes, &e->kv.layout[0], plan, result);
    }
    e->first_flight = (e->first_flight + 1) % BT_CUDA_INFLIGHT_MAX;
    e->n_flight--;
    return BT_OK;
}

static const struct bt_executor_ops cuda_ops = {
    .name = "cuda",
    .abi_version = BT_EXECUTOR_ABI_VERSION,
    .inflight_max = BT_CUDA_INFLIGHT_MAX,
    .submit = executor_submit,
    .wait = executor_wait,
    .destroy = executor_destroy,
};

static enum bt_code create(struct bt_cuda_executor *e, struct bt_error *err)
{
    BT_TRY(fill_defaults(&e->opts, err));
    BT_TRY(bt_executor_opts_check(&e->opts, err));
    BT_TRY(bt_cuda_device_open(0, &e->device, err));
    BT_TRY(load_models(e, err));
    BT_TRY(take_pool(e, err));
    BT_TRY(take_work(e, err));
    if (e->opts.tune) {
        BT_TRY(bt_cuda_gemm_tune(e->gemm, err));
    }
    int64_t taken = e->target.arena.used_bytes + e->draft.arena.used_bytes +
                    e->heads_arena.used_bytes + e->pool_arena.used_bytes + e->work_arena.used_bytes;
    if (e->opts.gpu_memory_bytes > 0 && taken > e->opts.gpu_memory_bytes) {
        BT_FAIL(err, BT_ERR_NOMEM, taken,
                "gpu-memory: weights, pool and workspaces take %.3f GB, %.3f GB are allowed",
                (double)taken * 1e-9, (double)e->opts.gpu_memory_bytes * 1e-9);
    }
    BT_CUDA_TRY(cudaDeviceSynchronize(), err);
    return BT_OK;
}

enum bt_code bt_cuda_executor_create(const struct bt_executor_opts *opts, struct bt_executor *out,
                                     struct bt_error *err)
{
    struct bt_cuda_executor *e = calloc(1, sizeof *e);
    if (e == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "executor: no memory");
    }
    e->opts = *opts;
    e->config = opts->model->config;
    bt_arena_init(&e->host_arena, 0);
    bt_cuda_arena_init(&e->work_arena, "workspaces");
    bt_cuda_arena_init(&e->pool_arena, "kv pool");
    bt_cuda_arena_init(&e->heads_arena, "Medusa heads");
    enum bt_code code = create(e, err);
    if (code != BT_OK) {
        executor_destroy(e);
        return code;
    }
    *out = (struct bt_executor){.ops = &cuda_ops, .self = e};
    return BT_OK;
}

/* ---- questions ---- */

static struct bt_cuda_executor *executor_of(const struct bt_executor *x)
{
    BT_ASSERT(x->ops == &cuda_ops);
    return x->self;
}

void bt_cuda_executor_memory(const struct bt_executor *x, struct bt_executor_memory *out)
{
    const struct bt_cuda_executor *e = executor_of(x);
    *out = (struct bt_executor_memory){
        .weights_bytes = e->target.arena.used_bytes,
        .draft_bytes = e->draft.arena.used_bytes + e->heads_arena.used_bytes,
        .kv_pool_bytes = e->pool_arena.used_bytes,
        .host_pool_bytes = e->swap.host_bytes,
        .workspace_bytes = e->work_arena.used_bytes,
    };
}

void bt_cuda_executor_explain(const struct bt_executor *x, FILE *f)
{
    bt_cuda_gemm_explain(executor_of(x)->gemm, f);
}

void bt_cuda_executor_fit_sched(const struct bt_executor *x, struct bt_sched_opts *sched)
{
    const struct bt_cuda_executor *e = executor_of(x);
    bt_executor_fit_sched(&e->opts, e->kv.layout, sched);
    if (sched->inflight_max < 1 || sched->inflight_max > BT_CUDA_INFLIGHT_MAX) {
        sched->inflight_max = BT_CUDA_INFLIGHT_MAX;
    }
}

/* ---- measuring ---- */

static void random_plane(const struct bt_block_layout *l, const struct bt_kv_part *part,
                         uint64_t seed, uint8_t *plane)
{
    int64_t n = (int64_t)l->block_tokens * part->n_kv_heads * part->head_dim;
    for (int64_t i = 0; i < n; i++) {
        float u = (float)bt_rng_at(seed, (uint64_t)i) - 0.5f;
        if (l->format == BT_KV_INT8) {
            ((int8_t *)plane)[i] = (int8_t)(254.0f * u);
        } else {
            bt_dtype_from_f32(l->format == BT_KV_FP16 ? BT_DTYPE_F16 : BT_DTYPE_BF16, &u,
                              plane + 2 * i, 1);
        }
    }
    int64_t n_scales = l->format == BT_KV_INT8 ? (int64_t)l->block_tokens * part->n_kv_heads : 0;
    for (int64_t i = 0; i < n_scales; i++) {
        ((uint16_t *)(void *)(plane + n))[i] = bt_f32_to_f16(1.0f / 254.0f);
    }
}

enum bt_code bt_cuda_executor_fill_kv(const struct bt_executor *x, struct bt_error *err)
{
    struct bt_cuda_executor *e = executor_of(x);
    const struct bt_block_layout *l = &e->kv.layout[0];
    uint8_t *block = calloc(1, (size_t)l->block_bytes);
    if (block == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, l->block_bytes, "cuda: no memory for a block");
    }
    for (int32_t p = 0; p < BT_KV_PARTS; p++) {
        const struct bt_kv_part *part = &l->parts[p];
        for (int32_t i = 0; i < 2 * part->n_layers; i++) {
            random_plane(l, part, (uint64_t)(i % 2),
                         block + bt_kv_plane_offset(part, i / 2, i % 2));
        }
    }
    enum bt_code code = bt_cuda_upload(e->kv.blocks, block, l->block_bytes, err);
    free(block);
    /* The others are copies, twice as many at a time. */
    for (int64_t n = 1; n < e->kv.n_blocks && code == BT_OK; n *= 2) {
        int64_t more = n < e->kv.n_blocks - n ? n : e->kv.n_blocks - n;
        cudaError_t rc = cudaMemcpy(e->kv.blocks + n * l->block_bytes, e->kv.blocks,
                                    (size_t)(more * l->block_bytes), cudaMemcpyDeviceToDevice);
        if (rc != cudaSuccess) {
            code = bt_cuda_fail(rc, "filling the pool", __FILE__, __LINE__, err);
        }
    }
    return code;
}

/* A flight for passes outside of service. */
static struct bt_cuda_flight *idle_flight(struct bt_cuda_executor *e)
{
    BT_ASSERT(e->n_flight == 0);
    struct bt_cuda_flight *f = &e->flights[e->first_flight];
    f->pinned_used = 0;
    return f;
}

enum bt_code bt_cuda_executor_time_part(const struct bt_executor *x,
                                        const struct bt_step_plan *plan, enum bt_step_part part,
                                        int32_t n_repeats, int64_t *ns, struct bt_error *err)
{
    struct bt_cuda_executor *e = executor_of(x);
    struct bt_cuda_flight *f = idle_flight(e);
    BT_TRY(bt_cuda_upload_blocks(e, f, plan, 0, plan->n_seqs, err));
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        e->parts[i] = (struct bt_cuda_part){ps->ctx, ps->ctx + ps->n_tokens, 1 + ps->k_spec};
    }
    struct bt_cuda_pass p = target_pass(e, plan, e->parts);
    return bt_cuda_pass_time(e, f, &p, part, n_repeats, ns, err);
}

enum bt_code bt_cuda_executor_logits(const struct bt_executor *x, const struct bt_step_plan *plan,
                                     int32_t first, float *logits, struct bt_error *err)
{
    struct bt_cuda_executor *e = executor_of(x);
    struct bt_cuda_flight *f = idle_flight(e);
    const struct bt_plan_seq *ps = &plan->seqs[0];
    BT_ASSERT(plan->n_seqs == 1 && ps->n_tokens <= e->work.max_rows);
    BT_TRY(bt_cuda_upload_blocks(e, f, plan, 0, 1, err));
    struct bt_cuda_part part = {.from = ps->ctx, .to = ps->ctx + ps->n_tokens};
    struct bt_cuda_pass p = target_pass(e, plan, &part);
    p.decodes = false; /* no graph: scoring runs a size once */
    BT_TRY(bt_cuda_pass_run(e, f, &p, err));
    size_t hidden = (size_t)e->target.arch.hidden;
    size_t vocab = (size_t)e->target.arch.vocab;
    for (int32_t i = first; i < ps->n_tokens && logits != NULL; i += e->max_choice_rows) {
        int32_t n = ps->n_tokens - i;
        n = n < e->max_choice_rows ? n : e->max_choice_rows;
        const uint16_t *states = (const uint16_t *)e->work.h + (size_t)i * hidden;
        BT_TRY(bt_cuda_decoder_logits(&e->target_decoder, states, n, e->logits, e->stream, err));
        BT_CUDA_TRY(cudaMemcpyAsync(logits + (size_t)(i - first) * vocab, e->logits,
                                    (size_t)n * vocab * sizeof *logits, cudaMemcpyDeviceToHost,
                                    e->stream),
                    err);
    }
    BT_CUDA_TRY(cudaStreamSynchronize(e->stream), err);
    return BT_OK;
}
