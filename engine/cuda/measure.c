#include "engine/cuda/measure.h"

#include <time.h>

struct cuda_meter {
    struct bt_meter base;
    int64_t samples[4][BT_STEP_REPEATS_MAX]; /* step, gap, part, enqueueing */
};

enum bt_code bt_cuda_meter_create(const struct bt_meter_opts *opts, struct bt_meter **out,
                                  struct bt_error *err)
{
    BT_TRY(bt_meter_create(sizeof(struct cuda_meter), opts, bt_cuda_executor_create, out, err));
    enum bt_code code = bt_cuda_executor_fill_kv(&(*out)->executor, err);
    if (code != BT_OK) {
        bt_meter_destroy(*out);
        *out = NULL;
    }
    return code;
}

static enum bt_code submit(struct bt_meter *m, const struct bt_step_plan *plan,
                           struct bt_error *err)
{
    struct bt_step_result none = {0};
    const struct bt_executor *x = &m->executor;
    int64_t now_ns = bt_clock_ns(BT_CLOCK_WALL);
    if (x->ops->submit(x->self, plan, now_ns, &none, err) != BT_SUBMIT_QUEUED) {
        return err != NULL && err->code != BT_OK ? err->code : BT_ERR_INTERNAL;
    }
    return BT_OK;
}

/* Waits for the oldest step and forgets its tokens, as the next one is to make the same. */
static enum bt_code wait(struct bt_meter *m, const struct bt_step_shape *s,
                         struct bt_step_result *result, struct bt_error *err)
{
    const struct bt_executor *x = &m->executor;
    *result = (struct bt_step_result){.seqs = m->load.results};
    BT_TRY(x->ops->wait(x->self, result, err));
    for (int32_t i = 0; i < s->n_seqs; i++) {
        m->load.requests[i].n_out = 0;
    }
    return BT_OK;
}

/* Steps with two in flight; the first ones warm up. */
static enum bt_code run_steps(struct cuda_meter *m, const struct bt_step_shape *s,
                              const struct bt_step_plan *plan, int32_t min_repeats,
                              int64_t budget_ns, int32_t *n, struct bt_error *err)
{
    enum { WARM = 3 };
    struct bt_step_result result;
    int64_t began_ns = bt_clock_ns(BT_CLOCK_WALL);
    int64_t before_ns = 0;
    bool more = true;
    *n = 0;
    BT_TRY(submit(&m->base, plan, err));
    int64_t submit_ns = 0; /* the last one's */
    for (int32_t i = 0; more; i++) {
        more = i < WARM || *n + 1 < min_repeats ||
               (*n + 1 < BT_STEP_REPEATS_MAX && bt_clock_ns(BT_CLOCK_WALL) - began_ns < budget_ns);
        if (more) {
            submit_ns = bt_clock_ns(BT_CLOCK_WALL);
            BT_TRY(submit(&m->base, plan, err));
            submit_ns = bt_clock_ns(BT_CLOCK_WALL) - submit_ns;
        }
        BT_TRY(wait(&m->base, s, &result, err));
        if (i >= WARM) {
            m->samples[0][*n] = result.done_ns - before_ns;
            m->samples[3][*n] = submit_ns;
            m->samples[1][(*n)++] = result.host_ns;
        }
        before_ns = result.done_ns;
    }
    return BT_OK;
}

/* Steps each of which comes to a card at rest, as cool and as fast as it is under little load: from
 * the call that submits it to its tokens. The first one warms up. */
static enum bt_code run_alone(struct cuda_meter *m, const struct bt_step_shape *s,
                              const struct bt_step_plan *plan, int32_t repeats, int32_t *n,
                              struct bt_error *err)
{
    static const struct timespec REST = {.tv_nsec = 200000000};
    struct bt_step_result result;
    for (int32_t i = 0; i <= repeats; i++) {
        (void)nanosleep(&REST, NULL);
        int64_t began_ns = bt_clock_ns(BT_CLOCK_WALL);
        BT_TRY(submit(&m->base, plan, err));
        int64_t submitted_ns = bt_clock_ns(BT_CLOCK_WALL);
        BT_TRY(wait(&m->base, s, &result, err));
        *n = i > 0 ? i : 1;
        m->samples[0][*n - 1] = result.done_ns - began_ns;
        m->samples[1][*n - 1] = result.host_ns;
        m->samples[3][*n - 1] = submitted_ns - began_ns;
    }
    return BT_OK;
}

enum bt_code bt_cuda_meter_run(struct bt_meter *meter, const struct bt_step_shape *shape,
                               int32_t min_repeats, int64_t budget_ns, struct bt_step_time *out,
                               struct bt_error *err)
{
    struct cuda_meter *m = (struct cuda_meter *)meter;
    BT_ASSERT(bt_meter_fits(meter, shape));
    BT_ASSERT(min_repeats > 0 && min_repeats <= BT_STEP_REPEATS_MAX);
    struct bt_step_plan plan;
    int32_t n = 0;
    double spread;
    *out = (struct bt_step_time){0};
    bt_meter_plan(meter, shape, &plan);
    if (shape->alone) {
        BT_TRY(run_alone(m, shape, &plan, min_repeats, &n, err));
    } else {
        BT_TRY(run_steps(m, shape, &plan, min_repeats, budget_ns, &n, err));
    }
    out->n_repeats = n;
    out->step_ns = bt_meter_median(m->samples[0], n, &out->rest_spread);
    out->gap_ns = bt_meter_median(m->samples[1], n, &spread);
    out->host_ns = bt_meter_median(m->samples[3], n, &spread);
    out->rest_ns = out->step_ns;
    for (int32_t part = 0; part < BT_STEP_PARTS && !meter->opts.only_steps; part++) {
        if ((shape->skip & 1u << part) != 0) {
            continue;
        }
        BT_TRY(bt_cuda_executor_time_part(&meter->executor, &plan, (enum bt_step_part)part,
                                          min_repeats, m->samples[2], err));
        out->op_ns[part] = bt_meter_median(m->samples[2], min_repeats, &out->op_spread[part]);
        out->rest_ns -= out->op_ns[part];
    }
    out->rest_ns = out->rest_ns > 0 ? out->rest_ns : 0;
    return BT_OK;
}
