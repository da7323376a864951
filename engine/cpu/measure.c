#include "engine/cpu/measure.h"

#include <stdlib.h>

struct bt_cpu_meter {
    struct bt_meter_opts opts;
    struct bt_arena arena;
    struct bt_executor executor;
    struct bt_cpu_profile profile;
    double mark_ns; /* what reading the clock adds to each operation */
    struct bt_meter_load load;
    int64_t samples[BT_STEP_PARTS + 2][BT_STEP_REPEATS_MAX]; /* operations, the rest, the step */
};

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
    const struct bt_meter_opts *o = &m->opts;
    BT_TRY(bt_meter_load_init(&m->load, &m->arena, o, err));
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

const struct bt_executor *bt_cpu_meter_executor(const struct bt_cpu_meter *m)
{
    return &m->executor;
}

bool bt_cpu_meter_fits(const struct bt_cpu_meter *m, const struct bt_step_shape *s)
{
    return bt_meter_load_fits(&m->load, s);
}

static enum bt_code run_once(struct bt_cpu_meter *m, const struct bt_step_shape *s, int32_t repeat,
                             struct bt_error *err)
{
    struct bt_step_plan plan;
    bt_meter_load_plan(&m->load, s, &plan);
    struct bt_step_result result = {.seqs = m->load.results};
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
        out->op_ns[op] = bt_meter_median(m->samples[op], n, &out->op_spread[op]);
    }
    double spread = 0;
    out->rest_ns = bt_meter_median(m->samples[BT_STEP_PARTS], n, &out->rest_spread);
    out->step_ns = bt_meter_median(m->samples[BT_STEP_PARTS + 1], n, &spread);
    return BT_OK;
}
