#include "engine/cuda/backend.h"

#include "engine/cuda/executor_cuda.h"
#include "engine/cuda/measure.h"

static enum bt_code session_create(const struct bt_session_opts *opts, void **session,
                                   struct bt_error *err)
{
    struct bt_cuda_session *s = NULL;
    enum bt_code code = bt_cuda_session_create(opts, &s, err);
    *session = s;
    return code;
}

static enum bt_code session_run(void *session, const int32_t *ids, int32_t n, int32_t from,
                                int32_t first, float *logits, struct bt_error *err)
{
    return bt_cuda_session_run(session, ids, n, from, first, logits, err);
}

static enum bt_code session_score(void *session, const int32_t *ids, int32_t n,
                                  struct bt_score *out, double *nll_of, struct bt_error *err)
{
    return bt_cuda_session_score(session, ids, n, out, nll_of, err);
}

static void session_destroy(void *session)
{
    bt_cuda_session_destroy(session);
}

static enum bt_code meter_create(const struct bt_meter_opts *opts, void **meter,
                                 struct bt_error *err)
{
    struct bt_cuda_meter *m = NULL;
    enum bt_code code = bt_cuda_meter_create(opts, &m, err);
    *meter = m;
    return code;
}

static bool meter_fits(const void *meter, const struct bt_step_shape *s)
{
    return bt_cuda_meter_fits(meter, s);
}

static enum bt_code meter_run(void *meter, const struct bt_step_shape *s, int32_t min_repeats,
                              int64_t budget_ns, struct bt_step_time *out, struct bt_error *err)
{
    return bt_cuda_meter_run(meter, s, min_repeats, budget_ns, out, err);
}

static void meter_explain(const void *meter, FILE *f)
{
    bt_cuda_executor_explain(bt_cuda_meter_executor(meter), f);
}

static const struct bt_executor *meter_executor(const void *meter)
{
    return bt_cuda_meter_executor(meter);
}

static void meter_destroy(void *meter)
{
    bt_cuda_meter_destroy(meter);
}

static enum bt_code measure_gpu(int32_t n_threads, struct bt_gpu *out, struct bt_error *err)
{
    (void)n_threads;
    return bt_cuda_measure_gpu(out, err);
}

const struct bt_backend bt_cuda_backend = {
    .name = "cuda",
    .inflight_max = BT_CUDA_INFLIGHT_MAX,
    .makes_weights = true,
    .piece_rows = BT_CUDA_DEFAULT_ROWS,
    .create = bt_cuda_executor_create,
    .memory = bt_cuda_executor_memory,
    .fit_sched = bt_cuda_executor_fit_sched,
    .session_create = session_create,
    .session_run = session_run,
    .session_score = session_score,
    .session_destroy = session_destroy,
    .meter_create = meter_create,
    .meter_fits = meter_fits,
    .meter_run = meter_run,
    .meter_explain = meter_explain,
    .meter_executor = meter_executor,
    .meter_destroy = meter_destroy,
    .measure = measure_gpu,
};
