/* Runs as tables for people: one run in full, or several side by side. Threading: no state. */
#ifndef BT_CLI_RUN_TABLE_H
#define BT_CLI_RUN_TABLE_H

#include "cli/command.h"
#include "cli/out.h"
#include "cli/simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The document behind bt_run_view, of a run that fits; `title` heads it. */
json_t *bt_run_table(const char *title, const struct bt_simulation *s, const struct bt_slo *slos,
                     int32_t n_slos);
extern const struct bt_out_view bt_run_view;

/* One row of bt_runs_view's list "runs". */
json_t *bt_runs_row(const char *label, const struct bt_simulation *s);
extern const struct bt_out_view bt_runs_view;

#ifdef __cplusplus
}
#endif

#endif
