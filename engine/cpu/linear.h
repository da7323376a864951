/* Linear layers on the CPU: y = x Wᵀ + bias for dense, int8 and int4 weights, with float or int8
 * activations.
 *
 * What each combination means, exactly:
 *   float activations     W is expanded to float (exact), and the dot product over the inputs is
 *                         taken in float in the order of vec.h.
 *   int8 activations      x is rounded to int8, per token (scale max|x| / 127) or by the layer's
 *                         static scale; products with integer weights are summed in int32 inside a
 *                         group of inputs, groups are added in float in order. With dense weights
 *                         the rounded x takes the float path.
 * Rows are independent and each output has one order of summation: neither batch, tile nor number
 * of threads changes a bit.
 *
 * Shape letters: M rows (tokens), N outputs, K inputs. Threading: one call at a time for one
 * bt_cpu_work; inside, OpenMP shares the outputs.
 */
#ifndef BT_ENGINE_CPU_LINEAR_H
#define BT_ENGINE_CPU_LINEAR_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/model/model.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch of the linear layers; everything in the arena it was made in. */
struct bt_cpu_work {
    int32_t n_threads; /* > 0 */
    int32_t max_rows;  /* M of any call */
    int32_t max_in;    /* K of any call */
    float *gather;     /* [max_rows, K padded]: rows that must be padded, permuted or rounded */
    int16_t *xq;       /* [max_rows, K padded]: rounded activations */
    float *x_scale;    /* [max_rows] */
    float *panel;      /* [n_threads][16, K padded]: expanded weights */
    struct bt_clip_counts clip;
};

/* Takes the memory; n_threads 0 means all that OpenMP would use. Returns BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_cpu_work_init(struct bt_cpu_work *w, struct bt_arena *arena,
                                           int32_t max_rows, int32_t max_in, int32_t n_threads,
                                           struct bt_error *err);

/* y [M, N] = x [M, K] Wᵀ + bias. x and y are dense and do not overlap; 0 < m <= max_rows. */
void bt_cpu_linear(struct bt_cpu_work *work, const struct bt_linear *l, const float *x, int32_t m,
                   float *y);

/* Rounds one row to int8: q [k] in [-127, 127]. scale 0 asks for max|x| / 127. Returns the scale;
 * 0 when the row is all zeros. */
float bt_cpu_quantise_row(const float *x, int32_t k, float scale, int16_t *q);

#ifdef __cplusplus
}
#endif

#endif
