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

static enum bt_code measure_gpu(int32_t n_threads, struct bt_gpu *out, struct bt_error *err)
{
    (void)n_threads;
    return bt_cuda_measure_gpu(out, err);
}

const struct bt_backend bt_cuda_backend = {
    .name = "cuda",
    .inflight_max = BT_CUDA_INFLIGHT_MAX,
    .makes_weights = true,
    .piece_rows = BT_CUDA_PIECE_ROWS,
    .create = bt_cuda_executor_create,
    .memory = bt_cuda_executor_memory,
    .fit_sched = bt_cuda_executor_fit_sched,
    .session_create = session_create,
    .session_run = session_run,
    .session_score = session_score,
    .session_destroy = session_destroy,
    .meter_create = bt_cuda_meter_create,
    .meter_run = bt_cuda_meter_run,
    .explain = bt_cuda_executor_explain,
    .measure = measure_gpu,
};
