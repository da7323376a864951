#include "engine/cpu/backend.h"

#include "engine/cpu/executor_cpu.h"
#include "engine/cpu/host.h"
#include "engine/cpu/measure.h"
#include "engine/cpu/session.h"

const struct bt_backend bt_cpu_backend = {
    .name = "cpu",
    .inflight_max = 1,
    .piece_rows = BT_CPU_PIECE_ROWS,
    .create = bt_cpu_executor_create,
    .memory = bt_cpu_executor_memory,
    .fit_sched = bt_cpu_executor_fit_sched,
    .session_create = bt_cpu_session_create,
    .session_run = bt_cpu_session_run,
    .session_score = bt_cpu_session_score,
    .session_clipped = bt_cpu_session_clipped,
    .clipped = bt_cpu_executor_clipped,
    .session_destroy = bt_cpu_session_destroy,
    .meter_create = bt_cpu_meter_create,
    .meter_run = bt_cpu_meter_run,
    .measure = bt_host_measure,
};
