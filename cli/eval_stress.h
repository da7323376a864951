/* Inputs that break careless arithmetic: eval --stress. */
#ifndef BT_CLI_EVAL_STRESS_H
#define BT_CLI_EVAL_STRESS_H

#include "cli/command.h"
#include "cli/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs degenerate sequences (one token, the same token over the whole context, the first and the
 * last id in turns, ids whose embeddings are largest and smallest, random ids) and writes a row
 * for each; the answer is no when a logit is not finite. */
BT_NODISCARD enum bt_code bt_eval_stress(struct bt_cli *cli, const struct bt_engine *e,
                                         struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
