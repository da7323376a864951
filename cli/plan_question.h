/* The question that `plan TRACE --model M --slo S` asks, written as a scenario: so that there is
 * one way to plan, and the question can be kept and changed. */
#ifndef BT_CLI_PLAN_QUESTION_H
#define BT_CLI_PLAN_QUESTION_H

#include "cli/command.h"
#include "cli/run_opts.h"
#include "db/catalog.h"
#include "sim/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lua text of a scenario from options: the trace, the model, the limits, the budget; GPUs, tensor
 * parallelism and formats are searched over unless given. *out is malloc'ed. BT_ERR_ARG. */
BT_NODISCARD enum bt_code bt_plan_question(const struct bt_cli *cli,
                                           const struct bt_catalog *catalog,
                                           const struct bt_run_opts *run, char **out,
                                           struct bt_error *err);

/* A configuration's keys that differ from the defaults as Lua fields, two spaces deep. */
void bt_config_print_lua(FILE *f, const struct bt_config *c);

#ifdef __cplusplus
}
#endif

#endif
