/* Options that commands share beside the configuration: how a trace is read, and how a run is made.
 * Threading: the main thread.
 */
#ifndef BT_CLI_RUN_OPTS_H
#define BT_CLI_RUN_OPTS_H

#include "cli/args.h"
#include "engine/clock.h"
#include "engine/core/metrics.h"
#include "sim/workload/trace.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_executor_kind { BT_EXECUTOR_SIM, BT_EXECUTOR_CPU, BT_EXECUTOR_CUDA };

struct bt_run_opts {
    struct bt_slo slos[BT_MAX_SLOS];
    int32_t n_slos;
    double warmup; /* share of the span, 0 .. 0.9; NAN: not given */
    uint64_t seed;
    int32_t jobs;            /* threads, >= 1 */
    const char *per_request; /* borrowed file name; NULL: none */
    const char *timeseries;  /* borrowed file name; NULL: none */
    enum bt_executor_kind executor;
    enum bt_clock clock; /* of the real engine */
};

/* --format, --columns, --rate-scale, --from, --to, --limit, --spread-ticks. */
struct bt_opt_table bt_trace_opt_table(void);

/* --slo, --warmup, --seed, --jobs, --price, --per-request, --timeseries, --executor, --clock, ...
 */
struct bt_opt_table bt_run_opt_table(void);

/* Reads the options of bt_trace_opt_table; texts are borrowed from args. The seed of spreading is
 * left 0. BT_ERR_ARG when --to is not after --from. */
BT_NODISCARD enum bt_code bt_trace_opts_read(const struct bt_args *args, struct bt_trace_opts *out,
                                             struct bt_error *err);

/* Reads the options of bt_run_opt_table but --price, which bt_price_list_override takes; --jobs
 * defaults to this machine's cores. BT_ERR_ARG names the option. */
BT_NODISCARD enum bt_code bt_run_opts_read(const struct bt_args *args, struct bt_run_opts *out,
                                           struct bt_error *err);

/* For a command that measures steps and serves no requests: BT_ERR_ARG when an option was given
 * that is about requests or prices. */
BT_NODISCARD enum bt_code bt_run_opts_only_steps(const struct bt_args *args, struct bt_error *err);

/* For a command that simulates: BT_ERR_MISSING when another executor was asked for. */
BT_NODISCARD enum bt_code bt_run_opts_only_sim(const struct bt_run_opts *run, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
