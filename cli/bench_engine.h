/* Speed of the real engine: steps of prefill and decode over batch sizes, beside what the hardware
 * could do at most; and whole answers with and without speculation. Threading: the main thread.
 */
#ifndef BT_CLI_BENCH_ENGINE_H
#define BT_CLI_BENCH_ENGINE_H

#include "cli/command.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs berth bench without --sim. Errors of the engine; BT_ERR_ARG for options that do not fit. */
BT_NODISCARD enum bt_code bt_bench_engine(struct bt_cli *cli, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
