#include "sim/cost/stack_speed.h"

#include <string.h>

/* Shares of the dense rate that products hold on an H200 under its 700 W, on random data, after
 * seconds without a pause: 688 of 989 TFLOP/s in BF16, 1,311 of 1,979 in FP8 (PyTorch 2.11's
 * cuBLAS, m = 2,048 and 8,192, driver 580.159, 2026-11-29; after a pause 797 and 1,509, on zeros
 * 912 and 1,586). The H100 SXM is the same chip with the same limit. */
static const double HOPPER_16BIT = 0.695;
static const double HOPPER_FP8 = 0.663;
/* Fitted to the rows of 8 and 16 users in docs/SILICON.md, and scored on the others. */
static const double VLLM_FP8 = 0.55;
static const double TRTLLM_FP8_STAND_IN = 0.80;
static const int64_t FRONTEND_NS = 15000000;

struct bt_stack_speed bt_stack_speed_of(const char *stack, const struct bt_gpu *gpu)
{
    struct bt_stack_name name = bt_stack_name_of(stack);
    bool sxm = strcmp(gpu->name, "h200") == 0 || strcmp(gpu->name, "h100-sxm") == 0;
    bool vllm = strcmp(name.stack, "vllm") == 0;
    bool trtllm = strcmp(name.stack, "trtllm") == 0;
    struct bt_stack_speed s = {.fp8_stand_in = 1};
    if (sxm) {
        s.most_flops_16bit = HOPPER_16BIT * gpu->fp16_flops_per_s;
        s.most_flops_fp8 = (vllm ? VLLM_FP8 : HOPPER_FP8) * gpu->fp8_flops_per_s;
    }
    if (trtllm && gpu->family == BT_GPU_HOPPER) {
        s.fp8_stand_in = TRTLLM_FP8_STAND_IN;
    }
    if (strcmp(name.stack, "berth") != 0) {
        s.frontend_ns = FRONTEND_NS;
    }
    return s;
}
