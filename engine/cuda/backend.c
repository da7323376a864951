#include "engine/cuda/backend.h"

#include "engine/cuda/executor_cuda.h"
#include "engine/cuda/measure.h"

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
    .session_create = bt_cuda_session_create,
    .session_run = bt_cuda_session_run,
    .session_score = bt_cuda_session_score,
    .session_destroy = bt_cuda_session_destroy,
    .meter_create = bt_cuda_meter_create,
    .meter_run = bt_cuda_meter_run,
    .explain = bt_cuda_executor_explain,
    .measure = measure_gpu,
};
