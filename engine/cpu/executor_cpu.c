#include "engine/core/rng.h"
#include "engine/cpu/executor_impl.h"

#include <stdlib.h>
#include <string.h>

enum { LOGIT_ROWS = 32 };

/* ---- create ---- */

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static enum bt_code need_weights(const struct bt_model *m, struct bt_error *err)
{
    if (m != NULL && bt_model_is_shape(m)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: the CPU executor needs weights", m->config.arch.name);
    }
    return BT_OK;
}

static void fill_defaults(struct bt_executor_opts *o)
{
    o->compute = o->compute == BT_ACT_DEFAULT ? BT_ACT_FP32 : o->compute;
    o->kv = o->kv == BT_KV_DEFAULT ? BT_KV_FP32 : o->kv;
    o->max_rows = o->max_rows == 0 ? BT_CPU_PIECE_ROWS : o->max_rows;
}

static enum bt_code take_pool(struct bt_cpu_executor *e, struct bt_error *err)
{
    const struct bt_executor_opts *o = &e->opts;
    const struct bt_arch *draft = o->draft == NULL ? NULL : &o->draft->config.arch;
    struct bt_block_layout *l = &e->pool.layout[0];
    BT_TRY(bt_block_layout_init(l, &o->model->config.arch, draft, o->kv, o->block_tokens, err));
    if (o->kv_16bit != BT_KV_DEFAULT && o->kv == BT_KV_INT8) {
        BT_TRY(bt_block_layout_init_16bit(&e->pool.layout[1], l, o->kv_16bit, err));
    }
    e->pool.n_blocks = o->n_blocks;
    size_t pool_bytes = (size_t)o->n_blocks * (size_t)l->block_bytes;
    size_t host_bytes = (size_t)o->n_host_blocks * (size_t)l->block_bytes;
    e->pool.blocks = bt_arena_take(&e->pool_arena, pool_bytes);
    e->host_blocks = bt_arena_take(&e->host_arena, host_bytes);
    if (e->pool.blocks == NULL || e->host_blocks == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "kv: no memory for %zu bytes of pool and %zu for swap",
                pool_bytes, host_bytes);
    }
    return bt_block_ids_init(&e->ids, &e->work_arena, o->n_blocks, o->n_host_blocks,
                             l->block_tokens, err);
}

static enum bt_code take_spec(struct bt_cpu_executor *e, struct bt_error *err)
{
    const struct bt_executor_opts *o = &e->opts;
    const struct bt_arch *a = &o->model->config.arch;
    int64_t seqs = o->max_seqs;
    if (o->spec_k == 0) {
        return BT_OK;
    }
    int32_t hidden = o->draft != NULL ? o->draft->config.arch.hidden : a->hidden;
    BT_ARENA_ARRAY(&e->work_arena, e->draft_states, seqs * hidden, err);
    BT_ARENA_ARRAY(&e->work_arena, e->drafts, seqs * o->spec_k, err);
    BT_ARENA_ARRAY(&e->work_arena, e->q, seqs * o->spec_k, err);
    BT_ARENA_ARRAY(&e->work_arena, e->drafting, seqs, err);
    if (o->medusa != NULL) {
        BT_ARENA_ARRAY(&e->work_arena, e->slot_states, seqs * a->hidden, err);
        BT_ARENA_ARRAY(&e->work_arena, e->head_states, seqs * a->hidden, err);
    }
    if (o->draft != NULL) {
        BT_TRY(bt_decoder_init(&e->draft, &e->work_arena, o->draft, &e->pool, &e->scratch,
                               BT_KV_PART_DRAFT, o->compute, err));
    }
    return BT_OK;
}

static enum bt_code take_work(struct bt_cpu_executor *e, struct bt_error *err)
{
    const struct bt_executor_opts *o = &e->opts;
    const struct bt_arch *a = &o->model->config.arch;
    struct bt_cpu_scratch_opts so = {
        .model = o->model,
        .draft = o->draft,
        .max_rows = o->max_rows,
        .max_ctx = o->max_model_len,
        .n_threads = o->n_threads,
    };
    BT_TRY(bt_cpu_scratch_init(&e->scratch, &e->work_arena, &so, err));
    BT_TRY(bt_decoder_init(&e->target, &e->work_arena, o->model, &e->pool, &e->scratch,
                           BT_KV_PART_TARGET, o->compute, err));
    BT_TRY(bt_sampler_init(&e->sampler, &e->work_arena, a->vocab, err));
    e->state_rows = o->max_seqs * (1 + o->spec_k);
    e->logit_rows = max32(LOGIT_ROWS, 1 + o->spec_k);
    BT_ARENA_ARRAY(&e->work_arena, e->states, (int64_t)e->state_rows * a->hidden, err);
    BT_ARENA_ARRAY(&e->work_arena, e->first_state, o->max_seqs, err);
    BT_ARENA_ARRAY(&e->work_arena, e->rows.segments, o->max_seqs, err);
    BT_ARENA_ARRAY(&e->work_arena, e->logits, (int64_t)e->logit_rows * a->vocab, err);
    BT_ARENA_ARRAY(&e->work_arena, e->probs, a->vocab, err);
    return take_spec(e, err);
}

static void executor_destroy(void *self)
{
    struct bt_cpu_executor *e = self;
    if (e == NULL) {
        return;
    }
    free(e->rows.ids);
    free(e->rows.out_row);
    free(e->q_memory);
    bt_arena_fini(&e->pool_arena);
    bt_arena_fini(&e->host_arena);
    bt_arena_fini(&e->work_arena);
    free(e);
}

/* ---- copies ---- */

/* Moves blocks and what is known of their content. */
static void copy_blocks(struct bt_cpu_executor *e, const struct bt_plan_copy *c)
{
    size_t block_bytes = (size_t)e->pool.layout[0].block_bytes;
    const uint8_t *src = c->kind == BT_COPY_SWAP_IN ? e->host_blocks : e->pool.blocks;
    uint8_t *dst = c->kind == BT_COPY_SWAP_OUT ? e->host_blocks : e->pool.blocks;
    for (int32_t i = 0; i < c->n_blocks; i++) {
        memcpy(dst + (size_t)c->dst[i] * block_bytes, src + (size_t)c->src[i] * block_bytes,
               block_bytes);
    }
    bt_block_ids_copy(&e->ids, c);
}

static void run_copies(struct bt_cpu_executor *e, const struct bt_step_plan *plan,
                       struct bt_step_result *result)
{
    static const enum bt_copy_kind order[] = {BT_COPY_SWAP_OUT, BT_COPY_SWAP_IN, BT_COPY_COW};
    result->n_copies_done = 0;
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        for (int32_t i = 0; i < plan->n_copies; i++) {
            const struct bt_plan_copy *c = &plan->copies[i];
            if (c->kind != order[k]) {
                continue;
            }
            copy_blocks(e, c);
            if (c->kind != BT_COPY_COW) {
                result->copies_done[result->n_copies_done++] = c->ticket;
            }
        }
    }
}

/* ---- one step ---- */

static enum bt_code rows_reserve(struct bt_cpu_rows *r, int32_t n_rows, struct bt_error *err)
{
    if (n_rows <= r->cap_rows) {
        return BT_OK;
    }
    int32_t cap = max32(n_rows, 2 * r->cap_rows);
    int32_t *ids = realloc(r->ids, (size_t)cap * sizeof *ids);
    r->ids = ids != NULL ? ids : r->ids;
    int32_t *out_row = realloc(r->out_row, (size_t)cap * sizeof *out_row);
    r->out_row = out_row != NULL ? out_row : r->out_row;
    if (ids == NULL || out_row == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, n_rows, "step: no memory for %d tokens", n_rows);
    }
    r->cap_rows = cap;
    return BT_OK;
}

static int32_t token_at(const struct bt_cpu_executor *e, const struct bt_plan_seq *ps,
                        int32_t seq_i, int32_t position)
{
    int32_t n_known = ps->n_prompt + ps->n_generated;
    if (position < n_known) {
        return bt_gen_token(bt_cpu_request(e, ps), position);
    }
    BT_ASSERT(position - n_known < ps->k_spec);
    return bt_cpu_drafts(e, seq_i)[position - n_known];
}

enum bt_code bt_cpu_rows_add(struct bt_cpu_executor *e, const struct bt_plan_seq *ps, int32_t seq_i,
                             int32_t from, int32_t to, int32_t want, struct bt_error *err)
{
    struct bt_cpu_rows *r = &e->rows;
    BT_ASSERT(from >= 0 && from < to && r->n_segments < e->opts.max_seqs);
    BT_TRY(rows_reserve(r, r->n_rows + to - from, err));
    r->segments[r->n_segments++] = (struct bt_cpu_segment){
        .first_row = r->n_rows,
        .n_rows = to - from,
        .pos0 = from,
        .kv_class = ps->kv_class,
        .blocks = ps->blocks,
    };
    for (int32_t i = from; i < to; i++) {
        r->ids[r->n_rows] = token_at(e, ps, seq_i, i);
        r->out_row[r->n_rows++] = i == to - 1 ? want : -1;
    }
    return BT_OK;
}

/* The target's pass over every sequence of the plan; states of the rows that are wanted. */
static enum bt_code run_target(struct bt_cpu_executor *e, const struct bt_step_plan *plan,
                               struct bt_error *err)
{
    struct bt_cpu_rows *r = &e->rows;
    r->n_rows = r->n_segments = 0;
    int32_t n_states = 0;
    int32_t n_other = 0;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        int32_t first = r->n_rows;
        BT_TRY(bt_cpu_rows_add(e, ps, i, ps->ctx, ps->ctx + ps->n_tokens, -1, err));
        for (int32_t j = 0; j < ps->n_tokens; j++) {
            bt_block_ids_note(&e->ids, ps, e->pool.layout[ps->kv_class].block_tokens, ps->ctx + j,
                              r->ids[first + j]);
        }
        e->first_state[i] = -1;
        if ((ps->flags & BT_SEQ_EMITS) != 0) {
            e->first_state[i] = n_states;
            for (int32_t j = ps->n_tokens - 1 - ps->k_spec; j < ps->n_tokens; j++) {
                r->out_row[first + j] = n_states++;
            }
        } else if (e->opts.medusa != NULL) {
            e->first_state[i] = e->state_rows - ++n_other;
            r->out_row[first + ps->n_tokens - 1] = e->first_state[i];
        }
    }
    BT_ASSERT(n_states + n_other <= e->state_rows);
    struct bt_cpu_batch batch = {
        .n_rows = r->n_rows,
        .n_segments = r->n_segments,
        .ids = r->ids,
        .segments = r->segments,
        .out_row = r->out_row,
        .out = e->states,
    };
    bt_decoder_forward(&e->target, &batch, e->opts.model->config.arch.n_layers);
    return BT_OK;
}

static enum bt_code run_step(struct bt_cpu_executor *e, const struct bt_step_plan *plan,
                             struct bt_step_result *result, struct bt_error *err)
{
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        BT_ASSERT(ps->k_spec <= e->opts.spec_k && ps->slot < e->opts.max_seqs);
        struct bt_gen_request *r = bt_cpu_request(e, ps);
        bool starts = (ps->flags & BT_SEQ_START) != 0;
        if (starts && ps->n_prompt < r->n_prompt) {
            r->n_prompt = ps->n_prompt; /* the scheduler has cut it to the model's length */
        }
        BT_ASSERT(r->n_prompt == ps->n_prompt && r->n_out == ps->n_generated);
        result->seqs[i] = (struct bt_result_seq){
            .failed = starts && !bt_block_ids_are_own(&e->ids, ps, r,
                                                      e->pool.layout[ps->kv_class].block_tokens)};
    }
    if (plan->n_seqs == 0) {
        return BT_OK;
    }
    if (e->opts.spec_k > 0) {
        BT_TRY(bt_cpu_speculate(e, plan, err));
    }
    BT_TRY(run_target(e, plan, err));
    bt_cpu_emit(e, plan, result);
    return BT_OK;
}

static enum bt_submit executor_submit(void *self, const struct bt_step_plan *plan, int64_t now_ns,
                                      struct bt_step_result *result, struct bt_error *err)
{
    struct bt_cpu_executor *e = self;
    int64_t began_ns = bt_clock_ns(e->opts.clock);
    result->step_id = plan->step_id;
    run_copies(e, plan, result);
    if (run_step(e, plan, result, err) != BT_OK) {
        return BT_SUBMIT_FAILED;
    }
    bt_step_count_work(&e->opts.model->config.arch, bt_model_weight_bytes(e->opts.model),
                       &e->pool.layout[0], plan, result);
    result->busy_ns = bt_clock_ns(e->opts.clock) - began_ns;
    result->host_ns = 0;
    result->start_ns = now_ns;
    result->done_ns = now_ns + result->busy_ns;
    return BT_SUBMIT_DONE;
}

static const struct bt_executor_ops cpu_ops = {
    .name = "cpu",
    .abi_version = BT_EXECUTOR_ABI_VERSION,
    .inflight_max = 1,
    .submit = executor_submit,
    .destroy = executor_destroy,
};

enum bt_code bt_cpu_executor_create(const struct bt_executor_opts *opts, struct bt_executor *out,
                                    struct bt_error *err)
{
    struct bt_cpu_executor *e = calloc(1, sizeof *e);
    if (e == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "executor: no memory");
    }
    e->opts = *opts;
    bt_arena_init(&e->pool_arena, 0);
    bt_arena_init(&e->host_arena, 0);
    bt_arena_init(&e->work_arena, 0);
    fill_defaults(&e->opts);
    enum bt_code code = bt_executor_opts_check(&e->opts, err);
    code = code == BT_OK ? need_weights(opts->model, err) : code;
    code = code == BT_OK ? need_weights(opts->draft, err) : code;
    code = code == BT_OK ? take_pool(e, err) : code;
    code = code == BT_OK ? take_work(e, err) : code;
    if (opts->clock == BT_CLOCK_WORK) {
        bt_cpu_profile_start(&e->pulse, opts->clock);
        e->target.profile = e->draft.profile = &e->pulse;
    }
    if (code != BT_OK) {
        executor_destroy(e);
        return code;
    }
    *out = (struct bt_executor){.ops = &cpu_ops, .self = e};
    return BT_OK;
}

static const struct bt_cpu_executor *executor_of(const struct bt_executor *x)
{
    BT_ASSERT(x->ops == &cpu_ops);
    return x->self;
}

void bt_cpu_executor_memory(const struct bt_executor *x, struct bt_executor_memory *out)
{
    const struct bt_cpu_executor *e = executor_of(x);
    int64_t draft = 0;
    if (e->opts.draft != NULL) {
        draft = bt_model_weight_bytes(e->opts.draft);
    } else if (e->opts.medusa != NULL) {
        draft = (int64_t)e->opts.medusa->arena.used_bytes;
    }
    size_t rows = (size_t)e->rows.cap_rows * 2 * sizeof(int32_t);
    size_t q = (size_t)e->q_cap * (size_t)e->sampler.vocab * sizeof(float);
    *out = (struct bt_executor_memory){
        .weights_bytes = bt_model_weight_bytes(e->opts.model),
        .draft_bytes = draft,
        .kv_pool_bytes = (int64_t)e->pool_arena.used_bytes,
        .host_pool_bytes = (int64_t)e->host_arena.used_bytes,
        .workspace_bytes = (int64_t)(e->work_arena.used_bytes + rows + q),
    };
}

struct bt_clip_counts bt_cpu_executor_clipped(const struct bt_executor *x)
{
    return executor_of(x)->scratch.work.clip;
}

void bt_cpu_executor_profile(const struct bt_executor *x, struct bt_cpu_profile *profile)
{
    BT_ASSERT(x->ops == &cpu_ops);
    struct bt_cpu_executor *e = x->self;
    e->target.profile = profile;
}

/* One block's keys and values, by the pool's own writer; the others are its copies. */
void bt_cpu_executor_fill_kv(const struct bt_executor *x)
{
    const struct bt_cpu_executor *e = executor_of(x);
    const struct bt_block_layout *l = &e->pool.layout[0];
    size_t block_bytes = (size_t)l->block_bytes;
    for (int32_t p = 0; p < BT_KV_PARTS; p++) {
        const struct bt_kv_part *part = &l->parts[p];
        int32_t width = part->n_kv_heads * part->head_dim;
        for (int32_t i = 0; i < part->n_layers * 2 * l->block_tokens; i++) {
            int32_t slot = i / (2 * part->n_layers);
            int32_t layer = i / 2 % part->n_layers;
            float *row = e->logits; /* scratch, wider than a row: a vocabulary is */
            BT_ASSERT(width <= e->logit_rows * e->sampler.vocab);
            for (int32_t k = 0; k < width; k++) {
                row[k] = (float)bt_rng_at((uint64_t)i, (uint64_t)k) - 0.5f;
            }
            bt_kv_pool_write(&e->pool, 0, (enum bt_kv_part_id)p, layer, i % 2, 0, slot, row);
        }
    }
    for (int32_t b = 1; b < e->pool.n_blocks; b++) {
        memcpy(e->pool.blocks + (size_t)b * block_bytes, e->pool.blocks, block_bytes);
    }
}

void bt_cpu_executor_fit_sched(const struct bt_executor *x, struct bt_sched_opts *sched)
{
    const struct bt_cpu_executor *e = executor_of(x);
    bt_executor_fit_sched(&e->opts, e->pool.layout, sched);
    sched->inflight_max = cpu_ops.inflight_max;
}
