#include "engine/cpu/measure.h"

struct cpu_meter {
    struct bt_meter base;
    struct bt_cpu_profile profile;
    double mark_ns; /* what reading the clock adds to each operation */
    int64_t samples[BT_STEP_PARTS + 2][BT_STEP_REPEATS_MAX]; /* operations, the rest, the step */
};

/* Median time between two marks with nothing between them. */
static double mark_cost(enum bt_clock clock)
{
    enum { MARKS = 501 };
    int64_t gaps[MARKS];
    double spread;
    struct bt_cpu_profile p;
    bt_cpu_profile_start(&p, clock);
    for (int32_t i = 0; i < MARKS; i++) {
        int64_t before_ns = p.last_ns;
        bt_cpu_mark(&p, BT_PART_EMBED);
        gaps[i] = p.last_ns - before_ns;
    }
    return bt_meter_median(gaps, MARKS, &spread);
}

enum bt_code bt_cpu_meter_create(const struct bt_meter_opts *opts, struct bt_meter **out,
                                 struct bt_error *err)
{
    BT_TRY(bt_meter_create(sizeof(struct cpu_meter), opts, bt_cpu_executor_create, out, err));
    struct cpu_meter *m = (struct cpu_meter *)*out;
    bt_cpu_executor_profile(&m->base.executor, &m->profile);
    bt_cpu_executor_fill_kv(&m->base.executor);
    m->mark_ns = mark_cost(opts->clock);
    return BT_OK;
}

static enum bt_code run_once(struct cpu_meter *m, const struct bt_step_shape *s, int32_t repeat,
                             struct bt_error *err)
{
    const struct bt_executor *x = &m->base.executor;
    enum bt_clock clock = m->base.opts.clock;
    struct bt_step_plan plan;
    bt_meter_plan(&m->base, s, &plan);
    struct bt_step_result result = {.seqs = m->base.load.results};
    bt_cpu_profile_start(&m->profile, clock);
    int64_t began_ns = m->profile.last_ns;
    if (x->ops->submit(x->self, &plan, 0, &result, err) != BT_SUBMIT_DONE) {
        return err != NULL && err->code != BT_OK ? err->code : BT_ERR_INTERNAL;
    }
    int64_t step_ns = bt_clock_ns(clock) - began_ns;
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

enum bt_code bt_cpu_meter_run(struct bt_meter *meter, const struct bt_step_shape *shape,
                              int32_t min_repeats, int64_t budget_ns, struct bt_step_time *out,
                              struct bt_error *err)
{
    struct cpu_meter *m = (struct cpu_meter *)meter;
    enum bt_clock clock = meter->opts.clock;
    BT_ASSERT(bt_meter_fits(meter, shape));
    BT_ASSERT(min_repeats > 0 && min_repeats <= BT_STEP_REPEATS_MAX);
    BT_TRY(run_once(m, shape, 0, err));
    int64_t began_ns = bt_clock_ns(clock);
    int32_t n = 0;
    while (n < min_repeats ||
           (n < BT_STEP_REPEATS_MAX && bt_clock_ns(clock) - began_ns < budget_ns)) {
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
