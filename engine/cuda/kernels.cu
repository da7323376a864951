/* The executor's own small kernels: random numbers for weights that nobody reads, and the states
 * that Medusa continues from. */
#include "engine/cuda/executor_impl.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace
{

__device__ uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

template <typename T> __device__ T to16(float x);
template <> __device__ __half to16(float x)
{
    return __float2half_rn(x);
}
template <> __device__ __nv_bfloat16 to16(float x)
{
    return __float2bfloat16_rn(x);
}

/* Four numbers a thread and turn, from one hash. */
template <typename T> __global__ void fill_random_kernel(uint64_t seed, T *out, int64_t n)
{
    const float half_width = 0.034641016f; /* of a uniform distribution with deviation 0.02 */
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; 4 * i < n; i += stride) {
        uint64_t bits = mix(seed + 0x9e3779b97f4a7c15ull * (uint64_t)(i + 1));
        for (int32_t j = 0; j < 4 && 4 * i + j < n; j++) {
            float u = ((float)(bits >> 16 * j & 0xffff) + 0.5f - 32768.0f) / 32768.0f;
            out[4 * i + j] = to16<T>(u * half_width);
        }
    }
}

__global__ void keep_states_kernel(const uint16_t *states, int32_t hidden, const int32_t *first_row,
                                   const int32_t *slot, const struct bt_cuda_choice *choices,
                                   const struct bt_cuda_chosen *chosen, uint16_t *out)
{
    int32_t i = blockIdx.x;
    if (slot[i] < 0 || first_row[i + 1] == first_row[i]) {
        return;
    }
    int32_t row = first_row[i + 1] - 1;
    if (choices[i].first_row >= 0 && chosen[i].n_tokens > 0) {
        row += chosen[i].n_tokens - 1 - choices[i].k;
    }
    for (int32_t j = threadIdx.x; j < hidden; j += blockDim.x) {
        out[(size_t)slot[i] * hidden + j] = states[(size_t)row * hidden + j];
    }
}

} // namespace

void bt_cuda_fill_random(enum bt_act_format compute, uint64_t seed, void *out, int64_t n)
{
    enum { BLOCKS = 1024, THREADS = 256 };
    if (compute == BT_ACT_FP16) {
        fill_random_kernel<<<BLOCKS, THREADS>>>(seed, (__half *)out, n);
    } else {
        fill_random_kernel<<<BLOCKS, THREADS>>>(seed, (__nv_bfloat16 *)out, n);
    }
}

void bt_cuda_keep_states(const void *states, int32_t hidden, const int32_t *first_row,
                         const int32_t *slot, const struct bt_cuda_choice *choices,
                         const struct bt_cuda_chosen *chosen, int32_t n_segments, void *out,
                         struct CUstream_st *stream)
{
    keep_states_kernel<<<n_segments, 256, 0, stream>>>((const uint16_t *)states, hidden, first_row,
                                                       slot, choices, chosen, (uint16_t *)out);
}
