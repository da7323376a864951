/* Scenarios as commands take them: loaded, changed by --set, their errors as bad input.
 * Threading: the main thread. */
#ifndef BT_CLI_SCENARIO_OPTS_H
#define BT_CLI_SCENARIO_OPTS_H

#include "cli/command.h"
#include "cli/run_opts.h"
#include "scripts/host/scenario.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row of an option table: --set KEY=VALUE. */
#define BT_SCENARIO_OPT_SET                                                                        \
    {                                                                                              \
        .name = "set", .kind = BT_OPT_TEXT, .value = "KEY=VALUE",                                  \
        .help = "give a key of the scenario's configuration this value", .repeats = true,          \
    }

/* Whether a file's name is a scenario's: it ends in .lua. */
bool bt_scenario_path(const char *path);

/* Loads a scenario and applies --set: the key then has that value everywhere, and is no dimension
 * any more. */
BT_NODISCARD enum bt_code bt_scenario_open(const struct bt_cli *cli, const char *path,
                                           struct bt_scenario *out, struct bt_error *err);

/* What options leave open the scenario decides: seed, SLOs, warm-up. */
void bt_scenario_run_opts(const struct bt_cli *cli, const struct bt_scenario *s,
                          struct bt_run_opts *run, double *warmup);

/* A value that a scenario's file gave and that is wrong is bad input, not usage. */
enum bt_code bt_scenario_error(enum bt_code code, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
