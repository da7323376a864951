/* Runs numbered tasks on a few threads. Which thread runs which task is not fixed, so a task may
 * write only what is its own; the caller sees all of it when the call returns. */
#ifndef BT_SIM_PLAN_PARALLEL_H
#define BT_SIM_PLAN_PARALLEL_H

#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls task(ctx, i) for 0 <= i < n on `jobs` threads, the caller among them; tasks start in order.
 * The error of the first failing task by number is returned; tasks after a failure may not run. */
BT_NODISCARD enum bt_code bt_parallel_for(int32_t jobs, int64_t n,
                                          enum bt_code (*task)(void *ctx, int64_t i,
                                                               struct bt_error *err),
                                          void *ctx, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
