/* What a user's own benchmark measured, in the form that berth fit simulates it: the workload to
 * serve again, and the figures to meet. Threading: the main thread.
 */
#ifndef BT_CLI_FIT_TARGET_H
#define BT_CLI_FIT_TARGET_H

#include "cli/command.h"
#include "cli/world.h"
#include "sim/cost/bench.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_fit_target {
    bool per_request;                /* else the summary of a benchmark */
    struct bt_bench_run bench;       /* of a summary, or of its requests; zeroed for a trace */
    char model[BT_BENCH_NAME_BYTES]; /* as the benchmark names it; "" not stated */
    char temporary[64];              /* owned file, removed by fini; "" none */
};

/* Reads FILE: the JSON of `vllm bench serve`, or a trace (CSV, JSONL) with measured columns. Makes
 * it the world's workload. BT_ERR_INPUT when nothing was measured; BT_ERR_IO, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_fit_target_open(struct bt_fit_target *t, const struct bt_cli *cli,
                                             const char *path, struct bt_world *w,
                                             struct bt_error *err);
void bt_fit_target_fini(struct bt_fit_target *t);

#ifdef __cplusplus
}
#endif

#endif
