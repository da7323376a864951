#include "engine/cpu/backend.h"

#include "engine/cpu/executor_cpu.h"
#include "engine/cpu/host.h"
#include "engine/cpu/measure.h"
#include "engine/cpu/session.h"

static enum bt_code session_create(const struct bt_session_opts *opts, void **session,
                                   struct bt_error *err)
{
    struct bt_cpu_session *s = NULL;
    enum bt_code code = bt_cpu_session_create(opts, &s, err);
    *session = s;
    return code;
}

static enum bt_code session_run(void *session, const int32_t *ids, int32_t n, int32_t from,
                                int32_t first, float *logits, struct bt_error *err)
{
    return bt_cpu_session_run(session, ids, n, from, first, logits, err);
}

static enum bt_code session_score(void *session, const int32_t *ids, int32_t n,
                                  struct bt_score *out, double *nll_of, struct bt_error *err)
{
    return bt_cpu_session_score(session, ids, n, out, nll_of, err);
}

static struct bt_clip_counts session_clipped(const void *session)
{
    return bt_cpu_session_clipped(session);
}

static void session_destroy(void *session)
{
    bt_cpu_session_destroy(session);
}

const struct bt_backend bt_cpu_backend = {
    .name = "cpu",
    .inflight_max = 1,
    .piece_rows = BT_CPU_PIECE_ROWS,
    .create = bt_cpu_executor_create,
    .memory = bt_cpu_executor_memory,
    .fit_sched = bt_cpu_executor_fit_sched,
    .session_create = session_create,
    .session_run = session_run,
    .session_score = session_score,
    .session_clipped = session_clipped,
    .clipped = bt_cpu_executor_clipped,
    .session_destroy = session_destroy,
    .meter_create = bt_cpu_meter_create,
    .meter_run = bt_cpu_meter_run,
    .measure = bt_host_measure,
};
