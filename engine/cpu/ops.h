/* The decoder's small operations on rows of floats: what each one computes, exactly.
 *
 * `round` is the compute type: with BF16 or FP16 every stored result is rounded to it, as an engine
 * that keeps 16-bit activations would; FP32 leaves it. Pure; threading: no shared state.
 */
#ifndef BT_ENGINE_CPU_OPS_H
#define BT_ENGINE_CPU_OPS_H

#include "engine/core/arch.h"
#include "engine/model/qweight.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds n floats to the type and back; FP32: nothing happens. */
void bt_cpu_round(float *x, int64_t n, enum bt_act_format round);

/* y [m, n] = x / sqrt(mean(x²) + eps) * weight. As Hugging Face does, the normalised value is
 * rounded to the compute type before the weight multiplies it. x and y may be the same. */
void bt_cpu_rms_norm(const float *x, int32_t m, int32_t n, const float *weight, float eps,
                     enum bt_act_format round, float *y);

/* x += y, rounded. */
void bt_cpu_add(float *x, const float *y, int64_t n, enum bt_act_format round);

/* gate = silu(gate) * up; silu(g) = g / (1 + exp(-g)). */
void bt_cpu_silu_mul(float *gate, const float *up, int64_t n, enum bt_act_format round);

/* x = silu(x). */
void bt_cpu_silu(float *x, int64_t n, enum bt_act_format round);

/* e^x for each of n values, within 2 ulp; 0 below -87.3. x is padded to whole vectors. */
void bt_cpu_exp(float *x, int32_t n);

/* What RoPE needs that does not depend on the position. */
struct bt_cpu_rope {
    struct bt_rope rope;
    int32_t head_dim;
    float *inv_freq; /* [head_dim / 2], radians a token; in the caller's memory */
    float magnitude; /* of cos and sin: yarn's attention factor, else 1 */
};

/* Fills inv_freq, in float32 as Hugging Face's tables. Source: Su et al. 2021; Peng et al. 2023
 * (yarn); the llama3 rule of Llama 3.1. */
void bt_cpu_rope_init(struct bt_cpu_rope *r, const struct bt_arch *a, float *inv_freq);

/* cos and sin [head_dim / 2] of a position. Dynamic scaling takes a base that depends on the
 * position alone: that of a sequence which ends there, so that chunks do not matter. */
void bt_cpu_rope_at(const struct bt_cpu_rope *r, int32_t position, float *cos_out, float *sin_out);

/* Rotates each of n_heads heads [head_dim] of a row in halves: (a, b) -> (a c - b s, b c + a s). */
void bt_cpu_rope_apply(float *row, int32_t n_heads, int32_t head_dim, const float *cos_row,
                       const float *sin_row);

#ifdef __cplusplus
}
#endif

#endif
