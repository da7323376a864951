/* What the files of the linear layers share. Internal to engine/cuda.
 *
 * Shape letters as in linear.h. Every function launches in stream order and leaves the check of the
 * launch to its caller.
 */
#ifndef BT_ENGINE_CUDA_LINEAR_PARTS_CUH
#define BT_ENGINE_CUDA_LINEAR_PARTS_CUH

#include "engine/cuda/check.cuh"
#include "engine/cuda/linear.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* A 16-bit type's conversions from float, rounding to nearest even. */
template <class T> __device__ __forceinline__ T linear_from_f32(float v);
template <> __device__ __forceinline__ __nv_bfloat16 linear_from_f32<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}
template <> __device__ __forceinline__ __half linear_from_f32<__half>(float v)
{
    return __float2half_rn(v);
}

template <> __device__ __forceinline__ float linear_from_f32<float>(float v)
{
    return v;
}

/* Where results go. */
struct linear_y {
    void *p;
    int32_t ld; /* N */
    bool f32;   /* float; else the compute type */
    bool bf16;  /* the compute type is BF16; else FP16 */
    bool fours; /* rows' columns 0, 4, 8 .. are where linear_store_4 may write */
};

__device__ __forceinline__ void linear_store(const struct linear_y &y, int64_t at, float v)
{
    if (y.f32) {
        ((float *)y.p)[at] = v;
    } else if (y.bf16) {
        ((__nv_bfloat16 *)y.p)[at] = __float2bfloat16_rn(v);
    } else {
        ((__half *)y.p)[at] = __float2half_rn(v);
    }
}

/* Four neighbours: y.fours, column a multiple of 4. */
__device__ __forceinline__ void linear_store_4(const struct linear_y &y, int64_t at,
                                               const float (&v)[4])
{
    if (y.f32) {
        *(float4 *)((float *)y.p + at) = *(const float4 *)v;
    } else if (y.bf16) {
        __nv_bfloat162 two[2] = {__floats2bfloat162_rn(v[0], v[1]),
                                 __floats2bfloat162_rn(v[2], v[3])};
        *(uint2 *)((__nv_bfloat16 *)y.p + at) = *(const uint2 *)two;
    } else {
        __half2 two[2] = {__floats2half2_rn(v[0], v[1]), __floats2half2_rn(v[2], v[3])};
        *(uint2 *)((__half *)y.p + at) = *(const uint2 *)two;
    }
}

/* dst [rows, K] 16-bit (BF16 when bf16, else FP16): rows n0 .. of l as numbers times scales,
 * rounded once. */
void linear_expand(const struct bt_cuda_linear *l, bool bf16, int32_t n0, int32_t rows, void *dst,
                   cudaStream_t stream);

/* y[i, n0 + j] = acc[i, j] * x_scale * w_scale[n0 + j] + bias[n0 + j] for acc [m, rows] of int32,
 * or of float when acc_f32. x_scale NULL: x_one for every row; w_scale NULL: 1. */
void linear_finish(const void *acc, bool acc_f32, int32_t m, int32_t n0, int32_t rows,
                   const float *x_scale, float x_one, const float *w_scale, const float *bias,
                   struct linear_y y, cudaStream_t stream);

/* y[i, :] += bias for m rows. */
void linear_add_bias(const float *bias, int32_t m, struct linear_y y, cudaStream_t stream);

/* INT8 x and weights of any shape, group and zero points that are not packed: y [m, N]. */
void linear_general_int8(const struct bt_cuda_linear *l, const int8_t *x, const float *x_scale,
                         int32_t m, struct linear_y y, cudaStream_t stream);

/* dst[i, j] = src[i, perm[j]] for rows of k elements of 1 or 2 bytes. */
void linear_gather(const void *src, const int32_t *perm, int32_t m, int32_t k, int32_t elem_bytes,
                   void *dst, cudaStream_t stream);

/* dst = src as 16-bit numbers: INT8 is exact in both types. */
void linear_widen(const int8_t *src, int64_t n, bool bf16, void *dst, cudaStream_t stream);

/* INT4 [N, K] in its plain layout, row by row, to the packed one (linear_skinny.cuh) with blocks of
 * linear_packed_block_bytes. scale [N, G]; zero may be NULL. The layer's fields other
 * than w are set; l->group is that of `scale`. */
void linear_pack(const struct bt_cuda_linear *l, const uint8_t *q, const float *scale,
                 const int8_t *zero, void *packed, cudaStream_t stream);

/* Inputs that share a scale in the packed layout: 128, 64 or 32; 0 when it cannot hold the layer's
 * groups, or rows of x are not whole pieces of 16 bytes. */
int32_t linear_packed_group(const struct bt_cuda_linear *l);
int32_t linear_packed_block_bytes(int32_t packed_group, bool zero);
/* Of a whole matrix. */
int64_t linear_packed_bytes(int32_t n_out, int32_t n_in, int32_t packed_group, bool zero);

/* Workspaces of the kernels for few rows, and what they ask of the device. */
struct linear_skinny_place {
    int32_t cc; /* compute capability, as in bt_cuda_device */
    int32_t n_sms;
    int32_t smem_block; /* bytes of shared memory that a block of threads may use */
    void *partial;
    int64_t partial_bytes;
    int32_t *arrived; /* zeros */
    int32_t n_arrived;
};

/* The product for few rows (linear_skinny.cuh); `wk` (1, 2, 4) of its warps share out K. x is INT8
 * or 16-bit as l->int8_x says; linear_is_skinny(l). False: it does not fit. `dry`: only asks. */
bool linear_skinny(const struct bt_cuda_linear *l, bool bf16, int32_t wk, const void *x,
                   const float *x_scale, int32_t m, struct linear_y y,
                   const struct linear_skinny_place *at, bool dry, cudaStream_t stream);
bool linear_is_skinny(const struct bt_cuda_linear *l);

/* The same product for packed INT4 with groups of 128, 16-bit x and Hopper (linear_wgmma.cu), in
 * tiles of 128 `halves` (1, 2) rows of weights; tiles' steps dealt out evenly, or (cluster) each
 * tile made by a cluster of blocks that share out K. False: the layer or the GPU is another, or it
 * does not fit. */
bool linear_wgmma(const struct bt_cuda_linear *l, bool bf16, int32_t halves, bool cluster,
                  const void *x, int32_t m, struct linear_y y, const struct linear_skinny_place *at,
                  bool dry, cudaStream_t stream);

/* The product for many rows on Hopper, weights and x of the same type: 16-bit, or INT8 with a scale
 * a row (linear_tiles.cu), in tiles of 256 tokens x 160 `outputs` or 128 x 256. x_scale as in
 * linear_skinny. False: the layer or the GPU is another. */
bool linear_tiles(const struct bt_cuda_linear *l, bool bf16, int32_t outputs, const void *x,
                  const float *x_scale, int32_t m, struct linear_y y,
                  const struct linear_skinny_place *at, bool dry, cudaStream_t stream);

/* y [M, N / 2] = silu(x gateᵀ) * (x upᵀ) of a 16-bit layer whose rows are the gate's, then the up
 * product's, in one kernel. False: the layer is another, or it does not pay. */
bool linear_tiles_silu(const struct bt_cuda_linear *l, bool bf16, const void *x, int32_t m,
                       struct linear_y y, const struct linear_skinny_place *at, bool dry,
                       cudaStream_t stream);

/* Numbers from a counter-based generator: 16-bit uniform in (-bound, bound), bytes uniform in
 * -127 .. 127, or two 4-bit numbers a byte, -7 .. 7, of variance 17.5. */
void linear_random_16(void *dst, int64_t n, bool bf16, float bound, uint64_t seed,
                      cudaStream_t stream);
void linear_random_int8(int8_t *dst, int64_t n, uint64_t seed, cudaStream_t stream);
void linear_random_int4(void *dst, int64_t bytes, uint64_t seed, cudaStream_t stream);
/* Packed INT4 without zero points, every scale the same. */
void linear_random_packed(void *dst, int64_t bytes, int32_t group, float scale, uint64_t seed,
                          cudaStream_t stream);
void linear_fill_f32(float *dst, int64_t n, float value, cudaStream_t stream);

#endif
