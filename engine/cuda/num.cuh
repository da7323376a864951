/* Numbers on the device: 16-bit types, vectors of them, and sums over a block. Internal to
 * engine/cuda.
 *
 * Files that must match the CPU to the bit are compiled with --fmad=false, as the CPU's are with
 * -ffp-contract=off.
 */
#ifndef BT_ENGINE_CUDA_NUM_CUH
#define BT_ENGINE_CUDA_NUM_CUH

#include "engine/core/arch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

enum { BT_CUDA_WARP = 32 };

__device__ inline float bt_to_f32(float x)
{
    return x;
}

__device__ inline float bt_to_f32(__half x)
{
    return __half2float(x);
}

__device__ inline float bt_to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

/* To nearest, ties to even; beyond the range of FP16: infinity. */
template <typename T> __device__ inline T bt_from_f32(float x);

template <> __device__ inline float bt_from_f32<float>(float x)
{
    return x;
}

template <> __device__ inline __half bt_from_f32<__half>(float x)
{
    return __float2half_rn(x);
}

template <> __device__ inline __nv_bfloat16 bt_from_f32<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* x rounded to T. */
template <typename T> __device__ inline float bt_round(float x)
{
    return bt_to_f32(bt_from_f32<T>(x));
}

/* V neighbours, moved by the widest loads that 16-byte alignment allows. */
template <typename T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) bt_pack {
    T v[V];
};

/* e^x as engine/cpu/ops.c takes it, operation by operation. */
__device__ inline float bt_exp_f32(float x)
{
    const float magic = 12582912.0f;
    float v = x < -87.3f ? -87.3f : x;
    v = v > 88.3f ? 88.3f : v;
    float t = __fadd_rn(__fmul_rn(v, 1.44269504f), magic);
    float k = __fsub_rn(t, magic);
    float r = __fsub_rn(__fsub_rn(v, __fmul_rn(k, 0.693359375f)), __fmul_rn(k, -2.12194440e-4f));
    float p = 1.0f / 5040.0f;
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6.0f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    uint32_t bits = (__float_as_uint(t) - __float_as_uint(magic) + 127u) << 23;
    return x < -87.3f ? 0.0f : __fmul_rn(p, __uint_as_float(bits));
}

/* a / b, rounded to nearest, of a quotient found by a reciprocal that is nearly 1 / b: twice
 * brought closer by its exact remainder, without the branches of a division. For numbers whose
 * remainders do not run out of exponents. */
__device__ inline float bt_divide_by(float a, float b, float reciprocal)
{
    float q = __fmul_rn(a, reciprocal);
    q = __fmaf_rn(__fmaf_rn(-b, q, a), reciprocal, q);
    return __fmaf_rn(__fmaf_rn(-b, q, a), reciprocal, q);
}

/* silu(g) as the CPU has it; for every 16-bit g that is tested to be so, to the bit. */
__device__ inline float bt_silu(float g)
{
    float d = __fadd_rn(1.0f, bt_exp_f32(-g));
    float reciprocal;
    asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(d));
    return copysignf(bt_divide_by(g, d, reciprocal), g);
}

/* Rounding to INT8 by a scale as the CPU does: rint(x / scale) within +-127; 0 by scale 0. */
struct bt_int8_scale {
    float scale, reciprocal;
    bool tiny; /* too small for remainders */

    __device__ explicit bt_int8_scale(float s)
        : scale(s > 0.0f && s < INFINITY ? s : 0.0f),
          reciprocal(scale > 0.0f ? 1.0f / scale : 0.0f), tiny(scale > 0.0f && scale < 0x1p-80f)
    {
    }

    template <typename T, int V>
    __device__ bt_pack<int8_t, V> operator()(const bt_pack<T, V> &x) const
    {
        const float magic = 12582912.0f; /* the sum's low byte is the integer */
        bt_pack<int8_t, V> q;
        for (int j = 0; j < V; j++) {
            float v = bt_to_f32(x.v[j]);
            float y = tiny ? v / scale : bt_divide_by(v, scale, reciprocal);
            float sum = fminf(fmaxf(y, -127.0f), 127.0f) + magic;
            q.v[j] = (int8_t)(__float_as_uint(sum) & 0xff);
        }
        return q;
    }
};

/* f(T()) for the compute type. */
template <typename F> void bt_with_compute(enum bt_act_format compute, F f)
{
    BT_ASSERT(compute == BT_ACT_BF16 || compute == BT_ACT_FP16);
    if (compute == BT_ACT_BF16) {
        f(__nv_bfloat16());
    } else {
        f(__half());
    }
}

struct bt_add_op {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

struct bt_max_op {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};

template <typename T, typename Op> __device__ inline T bt_warp_reduce(T x, Op op)
{
    for (int d = BT_CUDA_WARP / 2; d > 0; d /= 2) {
        x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
    }
    return x;
}

/* The reduction of x over the block, in every thread, in an order that depends on blockDim alone.
 * blockDim.x is a multiple of 32; neutral leaves op's other argument as it is. */
template <typename T, typename Op> __device__ inline T bt_block_reduce(T x, T neutral, Op op)
{
    __shared__ T of_warp[BT_CUDA_WARP];
    int lane = (int)threadIdx.x % BT_CUDA_WARP;
    int warp = (int)threadIdx.x / BT_CUDA_WARP;
    x = bt_warp_reduce(x, op);
    __syncthreads(); /* the last call's results have been read */
    if (lane == 0) {
        of_warp[warp] = x;
    }
    __syncthreads();
    int n_warps = (int)blockDim.x / BT_CUDA_WARP;
    return bt_warp_reduce(lane < n_warps ? of_warp[lane] : neutral, op);
}

#endif
