/* Linear layers on the GPU: y = x Wᵀ + bias for 16-bit, INT8 and INT4 weights, with 16-bit or INT8
 * activations: W16A16, W8A16, W8A8, W4A16, W4A8. What each combination means is
 * engine/cpu/linear.h; sums here are float (16-bit products) or int32 (INT8 products), in an order
 * that depends on shape, m and kernel, never on what else is in the batch.
 *
 * Several layers that read the same input (q, k, v; gate, up) are one matrix here, their outputs
 * side by side. Weights are packed once for the kernels; for each shape and range of m the fastest
 * kernel is found by measuring, when a gemm is tuned.
 *
 * Shape letters: M rows (tokens), N outputs, K inputs, G groups of inputs that share a scale.
 * Ownership: device memory belongs to the arena given. Threading: one thread, one stream at a time
 * for one bt_cuda_gemm.
 */
#ifndef BT_ENGINE_CUDA_LINEAR_H
#define BT_ENGINE_CUDA_LINEAR_H

#include "engine/cuda/device.h"
#include "engine/model/qweight.h"

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_cuda_weights { BT_CUDA_W16, BT_CUDA_W8, BT_CUDA_W4 };

/* One matrix [N, K] on the device, in the layout of its kernels. */
struct bt_cuda_linear {
    int32_t n_out; /* N, of all parts */
    int32_t n_in;  /* K */
    enum bt_cuda_weights weights;
    int32_t group;       /* W8, W4: inputs that share a scale, K for one a row */
    int32_t n_groups;    /* G = ceil(K / group) */
    bool int8_x;         /* x is read as INT8 (W8A8, W4A8) */
    bool packed;         /* W4: in the order of the tensor cores' operands, scales inside; group is
                          * 128, 64 or 32 then */
    bool packed_zero;    /* zero points too */
    float x_scale;       /* > 0: static scale of x; 0: one a token, found at run time */
    const int32_t *perm; /* [K] device: stored column j multiplies input perm[j]; NULL: in order */
    void *w;             /* numbers: of the compute type [N, K], int8 [N, K], or 4-bit */
    float *scale;        /* [N, G]; NULL: W16, packed */
    int8_t *zero;        /* [N, G] zero points; NULL: symmetric, packed */
    float *bias;         /* [N]; NULL: none */
    int64_t bytes;       /* of all of these */
    int32_t shape;       /* row of the gemm's table of shapes */
};

/* Rows that a linear layer reads: exactly one of x16 and x8 is used, as the layer's int8_x says. */
struct bt_cuda_x {
    const void *x16;      /* [M, K] of the compute type */
    const int8_t *x8;     /* [M, K] */
    const float *x_scale; /* [M]: x = x_scale * x8; used when the layer's x_scale is 0 */
};

enum bt_cuda_y { BT_CUDA_Y_COMPUTE, BT_CUDA_Y_F32 };

struct bt_cuda_gemm; /* handles, workspaces and the table of choices */

struct bt_cuda_gemm_opts {
    const struct bt_cuda_device *device; /* borrowed */
    enum bt_act_format compute;          /* BF16 or FP16: of x16, W16 and y */
    int32_t max_rows;                    /* M of any call */
    struct bt_cuda_arena *arena;         /* borrowed: workspaces */
};

BT_NODISCARD enum bt_code bt_cuda_gemm_create(const struct bt_cuda_gemm_opts *o,
                                              struct bt_cuda_gemm **out, struct bt_error *err);
void bt_cuda_gemm_destroy(struct bt_cuda_gemm *g);

/* Packs `parts` (1 .. 3 layers of one K, format and activations) into one matrix and uploads it
 * through pinned staging. Any N, K and group the loader accepts is accepted: shapes that the fast
 * kernels do not take run on a general one. Act-order must be the same in all parts, else
 * BT_ERR_ARG. */
BT_NODISCARD enum bt_code bt_cuda_linear_load(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                                              const struct bt_linear *const *parts, int32_t n_parts,
                                              struct bt_cuda_linear *out, struct bt_error *err);

/* Random weights made on the device: mean 0, standard deviation 0.02, no bias unless asked;
 * format is FP16/BF16, INT8 or INT4_G128/64/32, act 16-bit or INT8_DYNAMIC. */
BT_NODISCARD enum bt_code bt_cuda_linear_random(struct bt_cuda_gemm *g, struct bt_cuda_arena *arena,
                                                int32_t n_out, int32_t n_in,
                                                enum bt_weight_format format,
                                                enum bt_act_format act, bool bias, uint64_t seed,
                                                struct bt_cuda_linear *out, struct bt_error *err);

/* Measures every kernel that can run each shape known so far, for m = 1, 2, 4, 8, 16, ..,
 * max_rows, as a step runs it (in a graph, a row operation before it, weights cold in L2), and
 * keeps the fastest. Without it the choice is by rule. Not while a graph is captured, nor while
 * products are under way. */
BT_NODISCARD enum bt_code bt_cuda_gemm_tune(struct bt_cuda_gemm *g, struct bt_error *err);

/* Prints the table of choices: shape, m, kernel, us (that it adds to the row operation before it),
 * GB/s, TFLOP/s. */
void bt_cuda_gemm_explain(const struct bt_cuda_gemm *g, FILE *f);

/* y [M, N] = x Wᵀ + bias, in stream order; may be captured into a graph. y and x do not overlap;
 * x is 16-byte aligned; 0 < m <= max_rows. */
BT_NODISCARD enum bt_code bt_cuda_linear_run(struct bt_cuda_gemm *g, const struct bt_cuda_linear *l,
                                             const struct bt_cuda_x *x, int32_t m, void *y,
                                             enum bt_cuda_y y_type, struct CUstream_st *stream,
                                             struct bt_error *err);

/* y [M, N / 2] of the compute type = silu(gate) * up, where x16 Wᵀ [M, N] is gate, then up: in one
 * kernel. `fuses_silu`: there is one for the layer and m rows, and it pays; else it is for
 * bt_cuda_linear_run and bt_cuda_silu_mul to do. x, y and m as there. */
bool bt_cuda_linear_fuses_silu(const struct bt_cuda_gemm *g, const struct bt_cuda_linear *l,
                               int32_t m);
BT_NODISCARD enum bt_code bt_cuda_linear_silu(struct bt_cuda_gemm *g,
                                              const struct bt_cuda_linear *l, const void *x16,
                                              int32_t m, void *y, struct CUstream_st *stream,
                                              struct bt_error *err);

/* For tests and benches: the kernels by number, 0 .. bt_cuda_linear_kernels() - 1. The name is NULL
 * when a kernel cannot run the layer with m rows; run_with is bt_cuda_linear_run with one that can.
 */
int32_t bt_cuda_linear_kernels(void);
const char *bt_cuda_linear_kernel_name(const struct bt_cuda_gemm *g, int32_t kernel,
                                       const struct bt_cuda_linear *l, int32_t m);
BT_NODISCARD enum bt_code bt_cuda_linear_run_with(struct bt_cuda_gemm *g, int32_t kernel,
                                                  const struct bt_cuda_linear *l,
                                                  const struct bt_cuda_x *x, int32_t m, void *y,
                                                  enum bt_cuda_y y_type, struct CUstream_st *stream,
                                                  struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
