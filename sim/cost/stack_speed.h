/* What serving adds to the times that kernels take alone, by stack and card.
 *
 * Benchmarks of operations run in bursts, often on data of few set bits; a server that multiplies
 * without a pause meets the card's power limit. And an engine has a front end, and kernels of its
 * own where another's stand in. Each figure is a constant with its source: docs/SILICON.md. Pure;
 * thread-safe.
 */
#ifndef BT_SIM_COST_STACK_SPEED_H
#define BT_SIM_COST_STACK_SPEED_H

#include "engine/core/gpu.h"
#include "sim/cost/library.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_stack_speed {
    /* Most FLOP/s that matrix products hold in serving; 0: not known, no limit. */
    double most_flops_16bit;
    double most_flops_fp8;
    /* FP8 products over those of the stack that stands in; 1 where none does. */
    double fp8_stand_in;
    /* From a request's arrival at the server to the scheduler, and from a token to the client. */
    int64_t frontend_ns;
};

/* Of a stack ("vllm-0.19"; NULL: berth) on a card. */
struct bt_stack_speed bt_stack_speed_of(const char *stack, const struct bt_gpu *gpu);

#ifdef __cplusplus
}
#endif

#endif
