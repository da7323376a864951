/* The figures of --plots DIR, by command. Each function opens the folder, draws what its input
 * gives, and notes on stderr where they are. BT_ERR_IO. Threading: the main thread.
 */
#ifndef BT_CLI_FIGURES_H
#define BT_CLI_FIGURES_H

#include "cli/plot.h"
#include "cli/run_opts.h"
#include "cli/simulate.h"
#include "cli/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* replay: latencies, state over time, memory. */
BT_NODISCARD enum bt_code bt_figures_run(const struct bt_cli *cli, const char *dir,
                                         const struct bt_simulation *s,
                                         const struct bt_run_opts *run, struct bt_error *err);

/* replay --max-rate: latency against rate. */
BT_NODISCARD enum bt_code bt_figures_rate(const struct bt_cli *cli, const char *dir,
                                          const char *subject, const struct bt_max_rate *rate,
                                          const struct bt_run_opts *run, struct bt_error *err);

/* simulate: latencies of all runs in one figure, state over time of each, memory side by side. */
BT_NODISCARD enum bt_code bt_figures_runs(const struct bt_cli *cli, const char *dir,
                                          const struct bt_simulation *const *runs,
                                          const char *const *labels, int32_t n,
                                          const struct bt_run_opts *run, struct bt_error *err);

/* plan: cost against latency, memory of the confirmed, and of the first plan its latencies, state
 * over time, latency against rate, and P99 over block size and preemption. */
BT_NODISCARD enum bt_code bt_figures_plan(const struct bt_cli *cli, const char *dir,
                                          const struct bt_world *w, const struct bt_plan_spec *spec,
                                          const struct bt_run_opts *run,
                                          const struct bt_plan_answer *a, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
