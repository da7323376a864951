/* The planner's answer as a document, and as tables for people. Threading: no state. */
#ifndef BT_CLI_PLAN_JSON_H
#define BT_CLI_PLAN_JSON_H

#include "cli/out.h"
#include "scripts/host/scenario.h"
#include "sim/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One candidate: config, verdict, reason, replicas, capacity, metrics with ci95, costs, trust. */
json_t *bt_plan_candidate_json(const struct bt_plan_candidate *c, const struct bt_plan_spec *spec);

/* The whole answer: command, version, scenario, stack, best, candidates, sensitivity. */
json_t *bt_plan_json(const struct bt_scenario *s, const struct bt_plan_spec *spec,
                     const struct bt_plan_answer *a);

/* The document behind bt_plan_view; at most `rows` candidates. */
json_t *bt_plan_table(const struct bt_scenario *s, const struct bt_plan_spec *spec,
                      const struct bt_plan_answer *a, int32_t rows);
extern const struct bt_out_view bt_plan_view;

#ifdef __cplusplus
}
#endif

#endif
