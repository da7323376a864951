/* Figures of a run that the store holds. Threading: the main thread. */
#ifndef BT_CLI_PLOT_RUN_H
#define BT_CLI_PLOT_RUN_H

#include "cli/plot.h"
#include "db/store.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_plot_recorded {
    int64_t run_id;
    const char *figure;        /* cdf, timeseries or pareto; NULL: each that the run has rows for */
    const struct bt_slo *slos; /* limits of a cdf */
    int32_t n_slos;
    const char *subject; /* NULL: the run's command and name */
};

/* Draws into an open folder: "cdf" of the requests kept, a curve a configuration (at most 8);
 * "timeseries" of each configuration that has one ("timeseries-2" is the second's); "pareto" of a
 * plan's candidates. BT_ERR_NOTFOUND when there is no such run, or it holds nothing for the figure
 * asked for; BT_ERR_ARG for a figure that no run holds. */
BT_NODISCARD enum bt_code bt_plot_recorded_run(struct bt_plots *p, struct bt_store *store,
                                               const struct bt_plot_recorded *what,
                                               struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
