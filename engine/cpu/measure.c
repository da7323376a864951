#include "engine/cpu/measure.h"

#include "engine/core/rng.h"

#include <stdlib.h>

enum { DEFAULT_BLOCK_TOKENS = 16 };

struct bt_cpu_meter {
    struct bt_meter_opts opts;
    struct bt_arena arena;
    struct bt_executor executor;
    struct bt_gen_table table;
    struct bt_cpu_profile profile;
    double mark_ns; /* what reading the clock adds to each operation */
    int32_t n_blocks;
    int32_t *prompt;                 /* [max_ctx] */
    int32_t *outs;                   /* [max_seqs]: one token of each answer */
    struct bt_gen_request *requests; /* [max_seqs] */
    struct bt_plan_seq *seqs;        /* [max_seqs] */
    int32_t *blocks;                 /* [n_blocks]: the identity */
    struct bt_result_seq *results;   /* [max_seqs] */
    int64_t samples[BT_STEP_PARTS + 2][BT_STEP_REPEATS_MAX]; /* operations, the rest, the step */
};

static int32_t blocks_of(const struct bt_cpu_meter *m, const struct bt_step_shape *s)
{
    return (s->ctx + s->n_tokens + m->opts.block_tokens - 1) / m->opts.block_tokens;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Median time between two marks with nothing between them. */
static double mark_cost(enum bt_clock clock)
{
    enum { MARKS = 501 };
    int64_t gaps[MARKS];
    struct bt_cpu_profile p;
    bt_cpu_profile_start(&p, clock);
    for (int32_t i = 0; i < MARKS; i++) {
        int64_t before_ns = p.last_ns;
        bt_cpu_mark(&p, BT_PART_EMBED);
        gaps[i] = p.last_ns - before_ns;
    }
    qsort(gaps, MARKS, sizeof *gaps, compare);
    return (double)gaps[MARKS / 2];
}

static enum bt_code init(struct bt_cpu_meter *m, struct bt_error *err)
{
    struct bt_meter_opts *o = &m->opts;
    o->block_tokens = o->block_tokens > 0 ? o->block_tokens : DEFAULT_BLOCK_TOKENS;
    m->n_blocks = (int32_t)(o->max_kv_tokens / o->block_tokens) + o->max_seqs;
    BT_ARENA_ARRAY(&m->arena, m->prompt, o->max_ctx, err);
    BT_ARENA_ARRAY(&m->arena, m->outs, o->max_seqs, err);
    BT_ARENA_ARRAY(&m->arena, m->requests, o->max_seqs, err);
    BT_ARENA_ARRAY(&m->arena, m->seqs, o->max_seqs, err);
    BT_ARENA_ARRAY(&m->arena, m->results, o->max_seqs, err);
    BT_ARENA_ARRAY(&m->arena, m->blocks, m->n_blocks, err);
    for (int32_t i = 0; i < o->max_ctx; i++) {
        m->prompt[i] = (int32_t)(bt_rng_at(1, (uint64_t)i) * o->model->config.arch.vocab);
    }
    for (int32_t i = 0; i < m->n_blocks; i++) {
        m->blocks[i] = i;
    }
    m->table = (struct bt_gen_table){.requests = m->requests, .n = o->max_seqs};
    struct bt_executor_opts eo = {
        .model = o->model,
        .compute = o->compute,
        .kv = o->kv,
        .block_tokens = o->block_tokens,
        .n_blocks = m->n_blocks,
        .max_seqs = o->max_seqs,
        .max_model_len = o->max_ctx,
        .n_threads = o->n_threads,
        .clock = o->clock,
        .requests = &m->table,
    };
    BT_TRY(bt_cpu_executor_create(&eo, &m->executor, err));
    bt_cpu_executor_profile(&m->executor, &m->profile);
    bt_cpu_executor_fill_kv(&m->executor);
    m->mark_ns = mark_cost(o->clock);
    return BT_OK;
}

enum bt_code bt_cpu_meter_create(const struct bt_meter_opts *opts, struct bt_cpu_meter **out,
                                 struct bt_error *err)
{
    BT_ASSERT(opts->max_seqs > 0 && opts->max_ctx > 0 && opts->max_kv_tokens > 0);
    *out = NULL;
    struct bt_cpu_meter *m = calloc(1, sizeof *m);
    if (m == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "meter: no memory");
    }
    m->opts = *opts;
    bt_arena_init(&m->arena, 0);
    enum bt_code code = init(m, err);
    if (code != BT_OK) {
        bt_cpu_meter_destroy(m);
        return code;
    }
    *out = m;
    return BT_OK;
}

void bt_cpu_meter_destroy(struct bt_cpu_meter *m)
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

bool bt_cpu_meter_fits(const struct bt_cpu_meter *m, const struct bt_step_shape *s)
{
    BT_ASSERT(s->n_seqs > 0 && s->ctx >= 0 && s->n_tokens > 0);
    return s->n_seqs <= m->opts.max_seqs && s->ctx + s->n_tokens <= m->opts.max_ctx &&
           (int64_t)s->n_seqs * blocks_of(m, s) <= m->n_blocks;
}

static void make_plan(struct bt_cpu_meter *m, const struct bt_step_shape *s,
                      struct bt_step_plan *plan)
{
    int32_t n_blocks = blocks_of(m, s);
    for (int32_t i = 0; i < s->n_seqs; i++) {
        m->requests[i] = (struct bt_gen_request){.prompt = m->prompt,
                                                 .n_prompt = s->ctx + s->n_tokens,
                                                 .max_new_tokens = 1,
                                                 .ignore_eos = true,
                                                 .out = &m->outs[i]};
        m->seqs[i] = (struct bt_plan_seq){
            .user = (uint64_t)i,
            .slot = i,
            .n_prompt = s->ctx + s->n_tokens,
            .ctx = s->ctx,
            .n_tokens = s->n_tokens,
            .flags = BT_SEQ_EMITS,
            .n_blocks = n_blocks,
            .blocks = m->blocks + (size_t)i * (size_t)n_blocks,
        };
    }
    *plan = (struct bt_step_plan){.n_seqs = s->n_seqs, .seqs = m->seqs};
    if (s->n_tokens == 1) {
        plan->n_decode_seqs = s->n_seqs;
    } else {
        plan->n_prefill_tokens = s->n_seqs * s->n_tokens;
    }
}

static enum bt_code run_once(struct bt_cpu_meter *m, const struct bt_step_shape *s, int32_t repeat,
                             struct bt_error *err)
{
    struct bt_step_plan plan;
    make_plan(m, s, &plan);
    struct bt_step_result result = {.seqs = m->results};
    bt_cpu_profile_start(&m->profile, m->opts.clock);
    int64_t began_ns = m->profile.last_ns;
    if (m->executor.ops->submit(m->executor.self, &plan, 0, &result, err) != BT_SUBMIT_DONE) {
        return err != NULL && err->code != BT_OK ? err->code : BT_ERR_INTERNAL;
    }
    int64_t step_ns = bt_clock_ns(m->opts.clock) - began_ns;
    int64_t rest_ns = step_ns;
    for (int32_t op = 0; op < BT_STEP_PARTS; op++) {
        int64_t marks_ns = (int64_t)(m->mark_ns * m->profile.n[op]);
        int64_t ns = m->profile.ns[op] - marks_ns;
        m->samples[op][repeat] = ns > 0 ? ns : 0;
        rest_ns -= m->profile.ns[op];
        step_ns -= marks_ns;
    }
    m->samples[BT_STEP_PARTS][repeat] = rest_ns;
    m->samples[BT_STEP_PARTS + 1][repeat] = step_ns;
    return BT_OK;
}

static double median_of(int64_t *samples, int32_t n, double *spread)
{
    qsort(samples, (size_t)n, sizeof *samples, compare);
    *spread = (double)(samples[3 * n / 4] - samples[n / 4]) / 2;
    return (double)(samples[n / 2] + samples[(n - 1) / 2]) / 2;
}

enum bt_code bt_cpu_meter_run(struct bt_cpu_meter *m, const struct bt_step_shape *shape,
                              int32_t min_repeats, int64_t budget_ns, struct bt_step_time *out,
                              struct bt_error *err)
{
    BT_ASSERT(bt_cpu_meter_fits(m, shape));
    BT_ASSERT(min_repeats > 0 && min_repeats <= BT_STEP_REPEATS_MAX);
    BT_TRY(run_once(m, shape, 0, err));
    int64_t began_ns = bt_clock_ns(m->opts.clock);
    int32_t n = 0;
    while (n < min_repeats ||
           (n < BT_STEP_REPEATS_MAX && bt_clock_ns(m->opts.clock) - began_ns < budget_ns)) {
        BT_TRY(run_once(m, shape, n++, err));
    }
    *out = (struct bt_step_time){.n_repeats = n};
    for (int32_t op = 0; op < BT_STEP_PARTS; op++) {
        out->op_ns[op] = median_of(m->samples[op], n, &out->op_spread[op]);
    }
    double spread = 0;
    out->rest_ns = median_of(m->samples[BT_STEP_PARTS], n, &out->rest_spread);
    out->step_ns = median_of(m->samples[BT_STEP_PARTS + 1], n, &spread);
    return BT_OK;
}
