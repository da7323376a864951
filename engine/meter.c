#include "engine/meter.h"

#include "engine/core/order.h"
#include "engine/core/rng.h"

#include <stdlib.h>

static enum bt_code load_init(struct bt_meter_load *l, struct bt_arena *arena,
                              const struct bt_meter_opts *o, struct bt_error *err)
{
    BT_ASSERT(o->max_seqs > 0 && o->max_ctx > 0 && o->max_kv_tokens > 0);
    *l = (struct bt_meter_load){
        .max_seqs = o->max_seqs,
        .max_ctx = o->max_ctx,
        .block_tokens = o->block_tokens > 0 ? o->block_tokens : BT_DEFAULT_BLOCK_TOKENS,
    };
    l->n_blocks = (int32_t)(o->max_kv_tokens / l->block_tokens) + o->max_seqs;
    BT_ARENA_ARRAY(arena, l->prompt, o->max_ctx, err);
    BT_ARENA_ARRAY(arena, l->outs, o->max_seqs, err);
    BT_ARENA_ARRAY(arena, l->requests, o->max_seqs, err);
    BT_ARENA_ARRAY(arena, l->seqs, o->max_seqs, err);
    BT_ARENA_ARRAY(arena, l->results, o->max_seqs, err);
    BT_ARENA_ARRAY(arena, l->blocks, l->n_blocks, err);
    for (int32_t i = 0; i < o->max_ctx; i++) {
        l->prompt[i] = (int32_t)(bt_rng_at(1, (uint64_t)i) * o->model->config.arch.vocab);
    }
    for (int32_t i = 0; i < l->n_blocks; i++) {
        l->blocks[i] = i;
    }
    l->table = (struct bt_gen_table){.requests = l->requests, .n = o->max_seqs};
    return BT_OK;
}

static enum bt_code init(struct bt_meter *m, bt_executor_create_fn *create, struct bt_error *err)
{
    const struct bt_meter_opts *o = &m->opts;
    BT_TRY(load_init(&m->load, &m->arena, o, err));
    struct bt_executor_opts eo = {
        .model = o->model,
        .compute = o->compute,
        .kv = o->kv,
        .block_tokens = m->load.block_tokens,
        .n_blocks = m->load.n_blocks,
        .n_host_blocks = o->n_host_blocks,
        .max_seqs = o->max_seqs,
        .max_model_len = o->max_ctx,
        .n_threads = o->n_threads,
        .clock = o->clock,
        .requests = &m->load.table,
        .unfused = o->unfused,
        .tune = o->tune,
    };
    return create(&eo, &m->executor, err);
}

enum bt_code bt_meter_create(size_t bytes, const struct bt_meter_opts *opts,
                             bt_executor_create_fn *create, struct bt_meter **out,
                             struct bt_error *err)
{
    BT_ASSERT(bytes >= sizeof **out);
    *out = NULL;
    struct bt_meter *m = calloc(1, bytes);
    if (m == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "meter: no memory");
    }
    m->opts = *opts;
    bt_arena_init(&m->arena, 0);
    enum bt_code code = init(m, create, err);
    if (code != BT_OK) {
        bt_meter_destroy(m);
        return code;
    }
    *out = m;
    return BT_OK;
}

void bt_meter_destroy(struct bt_meter *m)
{
    if (m == NULL) {
        return;
    }
    if (m->executor.ops != NULL) {
        m->executor.ops->destroy(m->executor.self);
    }
    bt_arena_fini(&m->arena);
    free(m);
}

static int32_t blocks_of(const struct bt_meter_load *l, const struct bt_step_shape *s)
{
    return (s->ctx + s->n_tokens + l->block_tokens - 1) / l->block_tokens;
}

bool bt_meter_fits(const struct bt_meter *m, const struct bt_step_shape *s)
{
    const struct bt_meter_load *l = &m->load;
    BT_ASSERT(s->n_seqs > 0 && s->ctx >= 0 && s->n_tokens > 0);
    return s->n_seqs <= l->max_seqs && s->ctx + s->n_tokens <= l->max_ctx &&
           (int64_t)s->n_seqs * blocks_of(l, s) <= l->n_blocks;
}

void bt_meter_plan(struct bt_meter *m, const struct bt_step_shape *s, struct bt_step_plan *plan)
{
    struct bt_meter_load *l = &m->load;
    int32_t n_blocks = blocks_of(l, s);
    for (int32_t i = 0; i < s->n_seqs; i++) {
        l->requests[i] = (struct bt_gen_request){.prompt = l->prompt,
                                                 .n_prompt = s->ctx + s->n_tokens,
                                                 .max_new_tokens = 1,
                                                 .ignore_eos = true,
                                                 .out = &l->outs[i]};
        l->seqs[i] = (struct bt_plan_seq){
            .user = (uint64_t)i,
            .slot = i,
            .n_prompt = s->ctx + s->n_tokens,
            .ctx = s->ctx,
            .n_tokens = s->n_tokens,
            .flags = BT_SEQ_EMITS,
            .n_blocks = n_blocks,
            .blocks = l->blocks + (size_t)i * (size_t)n_blocks,
        };
    }
    *plan = (struct bt_step_plan){.n_seqs = s->n_seqs, .seqs = l->seqs};
    if (s->n_tokens == 1) {
        plan->n_decode_seqs = s->n_seqs;
    } else {
        plan->n_prefill_tokens = s->n_seqs * s->n_tokens;
    }
}

double bt_meter_median(int64_t *samples, int32_t n, double *spread)
{
    qsort(samples, (size_t)n, sizeof *samples, bt_compare_int64);
    *spread = (double)(samples[3 * n / 4] - samples[n / 4]) / 2;
    return (double)(samples[n / 2] + samples[(n - 1) / 2]) / 2;
}
