/* The linear layers' kernels around the products: expanding weights, scaling sums, gathering
 * columns, random numbers, and the product that takes any shape. All but the last move each byte
 * once; they are a small part of a large-m product. */
#include "engine/cuda/linear_parts.cuh"

namespace
{

constexpr int THREADS = 256;

unsigned blocks_for(int64_t n)
{
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks);
}

/* Stored integer less the zero point, of row n, stored column j; plain layouts. */
template <int BITS>
__device__ __forceinline__ int32_t stored(const struct bt_cuda_linear &l, int64_t n, int32_t j)
{
    int32_t q;
    if (BITS == 8) {
        q = ((const int8_t *)l.w)[n * l.n_in + j];
    } else {
        int32_t byte = ((const uint8_t *)l.w)[n * ((l.n_in + 1) / 2) + j / 2];
        q = (j % 2 == 0 ? byte & 15 : byte >> 4) - 8;
    }
    return l.zero == nullptr ? q : q - l.zero[n * l.n_groups + j / l.group];
}

template <class T, int BITS>
__global__ void expand_kernel(struct bt_cuda_linear l, int32_t n0, int32_t rows, T *dst)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (int64_t)rows * l.n_in) {
        return;
    }
    int64_t n = n0 + i / l.n_in;
    int32_t j = (int32_t)(i % l.n_in);
    float scale = l.scale[n * l.n_groups + j / l.group];
    dst[i] = linear_from_f32<T>((float)stored<BITS>(l, n, j) * scale);
}

/* Where the word of row n, inputs k .. k + 7 lies in the packed layout, and its group's scale and
 * zero point (both for row n): see linear_skinny.cuh. */
struct packed_place {
    int64_t word;
    int64_t scale;
    int64_t zero;
};

__host__ __device__ __forceinline__ packed_place place_of(int64_t n, int32_t k, int32_t n_in,
                                                          int32_t group, int32_t block_bytes)
{
    int64_t chunks = (n_in + 127) / 128;
    int64_t block = (n / 64 * chunks + k / 128) * block_bytes;
    int32_t row = (int32_t)(n % 64);
    int32_t half = row / 8; /* of 8 rows */
    int32_t in = k % 128;
    int32_t lane = row % 8 * 4 + in % 32 / 8;
    int32_t at_group = in / group;
    int32_t column = row % 8 * 8 + half;
    return {block + (half * 32 + lane) * 16 + in / 32 * 4,
            block + 4096 + at_group * 128 + column * 2,
            block + 4096 + 128 / group * 128 + at_group * 64 + column};
}

/* Which nibble of a word holds input e of 8: pairs four nibbles apart for 16-bit x, quadruples two
 * apart for INT8 x. */
__device__ __forceinline__ int32_t nibble_of(int32_t e, bool int8_x)
{
    return int8_x ? e % 4 * 2 + e / 4 : e % 2 * 4 + e / 2;
}

/* A thread packs 8 inputs of a row, rows and inputs beyond the matrix as zeros. */
__global__ void pack_kernel(struct bt_cuda_linear l, int32_t group, int32_t block_bytes,
                            const uint8_t *q, const float *scale, const int8_t *zero,
                            uint8_t *packed)
{
    int32_t words = (l.n_in + 127) / 128 * 16;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t n = i / words;
    int32_t k = (int32_t)(i % words) * 8;
    if (n >= (l.n_out + 63) / 64 * 64) {
        return;
    }
    bool inside = n < l.n_out && k < l.n_in;
    uint32_t word = 0;
    for (int32_t e = 0; e < 8; e++) {
        int32_t byte = inside ? q[n * (l.n_in / 2) + (k + e) / 2] : BT_QWEIGHT_ZERO4;
        word |= (uint32_t)(e % 2 == 0 ? byte & 15 : byte >> 4) << 4 * nibble_of(e, l.int8_x);
    }
    packed_place at = place_of(n, k, l.n_in, group, block_bytes);
    *(uint32_t *)(packed + at.word) = word;
    if (k % group == 0) {
        int32_t g = k / l.group < l.n_groups ? k / l.group : l.n_groups - 1;
        int64_t from = n * l.n_groups + g;
        *(__half *)(packed + at.scale) = __float2half_rn(inside ? scale[from] : 0.0f);
        if (block_bytes > 4096 + 128 / group * 128) {
            packed[at.zero] = (uint8_t)(inside && zero != nullptr ? zero[from] : 0);
        }
    }
}

template <class T>
__global__ void expand_packed_kernel(struct bt_cuda_linear l, int32_t block_bytes, int32_t n0,
                                     int32_t rows, T *dst)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int32_t words = l.n_in / 8;
    if (i >= (int64_t)rows * words) {
        return;
    }
    int32_t k = (int32_t)(i % words) * 8;
    const uint8_t *packed = (const uint8_t *)l.w;
    packed_place at = place_of(n0 + i / words, k, l.n_in, l.group, block_bytes);
    uint32_t word = *(const uint32_t *)(packed + at.word);
    float scale = __half2float(*(const __half *)(packed + at.scale));
    bool has_zero = block_bytes > 4096 + 128 / l.group * 128;
    int32_t zero = 8 + (has_zero ? (int8_t)packed[at.zero] : 0);
    __align__(16) T v[8];
#pragma unroll
    for (int32_t e = 0; e < 8; e++) {
        int32_t q = word >> 4 * nibble_of(e, l.int8_x) & 15;
        v[e] = linear_from_f32<T>((float)(q - zero) * scale);
    }
    *(uint4 *)(dst + i * 8) = *(const uint4 *)v;
}

/* Scales of random packed weights; the rest of a block is random bits already. */
__global__ void packed_scales_kernel(uint8_t *packed, int64_t n_blocks, int32_t block_bytes,
                                     float scale)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int32_t per_block = (block_bytes - 4096) / 2;
    if (i < n_blocks * per_block) {
        __half *at = (__half *)(packed + i / per_block * block_bytes + 4096);
        at[i % per_block] = __float2half_rn(scale);
    }
}

template <class Acc>
__global__ void finish_kernel(const Acc *acc, int32_t m, int32_t n0, int32_t rows,
                              const float *x_scale, float x_one, const float *w_scale,
                              const float *bias, struct linear_y y)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (int64_t)m * rows) {
        return;
    }
    int64_t row = i / rows;
    int32_t n = n0 + (int32_t)(i % rows);
    float v = (float)acc[i] * (w_scale == nullptr ? 1.0f : w_scale[n]);
    v *= x_scale == nullptr ? x_one : x_scale[row];
    linear_store(y, row * y.ld + n, bias == nullptr ? v : v + bias[n]);
}

__global__ void fill_bias_kernel(const float *bias, int64_t n, struct linear_y y)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        linear_store(y, i, bias[i % y.ld]);
    }
}

constexpr int GENERAL_ROWS = 4;

/* A warp makes GENERAL_ROWS rows of one output: lanes share a group's inputs, groups are added in
 * float in order. */
template <int BITS>
__global__ void general_int8_kernel(struct bt_cuda_linear l, const int8_t *x, const float *x_scale,
                                    int32_t m, struct linear_y y)
{
    int64_t n = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    int32_t lane = threadIdx.x % 32;
    int32_t m0 = (int32_t)blockIdx.y * GENERAL_ROWS;
    if (n >= l.n_out) {
        return;
    }
    float sum[GENERAL_ROWS] = {};
    for (int32_t g = 0; g < l.n_groups; g++) {
        int32_t part[GENERAL_ROWS] = {};
        int32_t end = (g + 1) * l.group < l.n_in ? (g + 1) * l.group : l.n_in;
        for (int32_t j = g * l.group + lane; j < end; j += 32) {
            int32_t q = stored<BITS>(l, n, j);
#pragma unroll
            for (int32_t i = 0; i < GENERAL_ROWS; i++) {
                part[i] += m0 + i < m ? q * x[(int64_t)(m0 + i) * l.n_in + j] : 0;
            }
        }
        float scale = l.scale[n * l.n_groups + g];
#pragma unroll
        for (int32_t i = 0; i < GENERAL_ROWS; i++) {
            for (int32_t step = 16; step > 0; step /= 2) {
                part[i] += __shfl_xor_sync(0xffffffffu, part[i], step);
            }
            sum[i] += (float)part[i] * scale;
        }
    }
#pragma unroll
    for (int32_t i = 0; i < GENERAL_ROWS; i++) {
        if (lane == i && m0 + i < m) {
            float v = sum[i] * (x_scale == nullptr ? l.x_scale : x_scale[m0 + i]);
            linear_store(y, (int64_t)(m0 + i) * y.ld + n, l.bias == nullptr ? v : v + l.bias[n]);
        }
    }
}

template <class T>
__global__ void gather_kernel(const T *src, const int32_t *perm, int64_t n, int32_t k, T *dst)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        int32_t j = (int32_t)(i % k);
        dst[i] = src[i - j + perm[j]];
    }
}

template <class T> __global__ void widen_kernel(const int8_t *src, int64_t n, T *dst)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        dst[i] = linear_from_f32<T>((float)src[i]);
    }
}

/* 64 random bits of a counter (the finaliser of SplitMix64). */
__device__ __forceinline__ uint64_t random_bits(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0xd1342543de82ef95u + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

template <class T> __global__ void random_16_kernel(T *dst, int64_t n, float bound, uint64_t seed)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        float unit = (float)(random_bits(seed, (uint64_t)i) >> 40) * 0x1p-24f;
        dst[i] = linear_from_f32<T>((2.0f * unit - 1.0f) * bound);
    }
}

__global__ void random_int8_kernel(int8_t *dst, int64_t n, uint64_t seed)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        dst[i] = (int8_t)((int32_t)((random_bits(seed, (uint64_t)i) >> 32) % 255u) - 127);
    }
}

__global__ void random_bits_kernel(uint8_t *dst, int64_t n, uint64_t seed)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        dst[i] = (uint8_t)(random_bits(seed, (uint64_t)i) >> 56);
    }
}

__global__ void fill_f32_kernel(float *dst, int64_t n, float value)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) {
        dst[i] = value;
    }
}

template <class T>
void expand_to(const struct bt_cuda_linear *l, int32_t n0, int32_t rows, void *dst,
               cudaStream_t stream)
{
    unsigned blocks = blocks_for((int64_t)rows * l->n_in);
    if (l->packed) {
        expand_packed_kernel<T><<<blocks_for((int64_t)rows * l->n_in / 8), THREADS, 0, stream>>>(
            *l, linear_packed_block_bytes(l->group, l->packed_zero), n0, rows, (T *)dst);
    } else if (l->weights == BT_CUDA_W8) {
        expand_kernel<T, 8><<<blocks, THREADS, 0, stream>>>(*l, n0, rows, (T *)dst);
    } else {
        expand_kernel<T, 4><<<blocks, THREADS, 0, stream>>>(*l, n0, rows, (T *)dst);
    }
}

} // namespace

void linear_expand(const struct bt_cuda_linear *l, bool bf16, int32_t n0, int32_t rows, void *dst,
                   cudaStream_t stream)
{
    BT_ASSERT(l->weights != BT_CUDA_W16 && n0 >= 0 && n0 + rows <= l->n_out);
    if (bf16) {
        expand_to<__nv_bfloat16>(l, n0, rows, dst, stream);
    } else {
        expand_to<__half>(l, n0, rows, dst, stream);
    }
}

int32_t linear_packed_group(int32_t n_in, int32_t group, int32_t n_groups)
{
    if (n_in % 8 != 0) {
        return 0;
    }
    if (n_groups == 1) {
        return 128;
    }
    return group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : group % 32 == 0 ? 32 : 0;
}

int32_t linear_packed_block_bytes(int32_t packed_group, bool zero)
{
    return 4096 + 128 / packed_group * (zero ? 192 : 128);
}

int64_t linear_packed_bytes(int32_t n_out, int32_t n_in, int32_t packed_group, bool zero)
{
    int64_t blocks = (int64_t)((n_out + 63) / 64) * ((n_in + 127) / 128);
    return blocks * linear_packed_block_bytes(packed_group, zero);
}

void linear_pack(const struct bt_cuda_linear *l, const uint8_t *q, const float *scale,
                 const int8_t *zero, void *packed, cudaStream_t stream)
{
    int32_t group = linear_packed_group(l->n_in, l->group, l->n_groups);
    BT_ASSERT(group > 0);
    int64_t words = (int64_t)((l->n_out + 63) / 64 * 64) * ((l->n_in + 127) / 128 * 16);
    pack_kernel<<<blocks_for(words), THREADS, 0, stream>>>(
        *l, group, linear_packed_block_bytes(group, zero != NULL), q, scale, zero,
        (uint8_t *)packed);
}

void linear_random_packed(void *dst, int64_t bytes, int32_t group, float scale, uint64_t seed,
                          cudaStream_t stream)
{
    int32_t block_bytes = linear_packed_block_bytes(group, false);
    int64_t n_blocks = bytes / block_bytes;
    linear_random_bits(dst, bytes, seed, stream);
    packed_scales_kernel<<<blocks_for(n_blocks * (block_bytes - 4096) / 2), THREADS, 0, stream>>>(
        (uint8_t *)dst, n_blocks, block_bytes, scale);
}

void linear_finish(const void *acc, bool acc_f32, int32_t m, int32_t n0, int32_t rows,
                   const float *x_scale, float x_one, const float *w_scale, const float *bias,
                   struct linear_y y, cudaStream_t stream)
{
    unsigned blocks = blocks_for((int64_t)m * rows);
    if (acc_f32) {
        finish_kernel<float><<<blocks, THREADS, 0, stream>>>((const float *)acc, m, n0, rows,
                                                             x_scale, x_one, w_scale, bias, y);
    } else {
        finish_kernel<int32_t><<<blocks, THREADS, 0, stream>>>((const int32_t *)acc, m, n0, rows,
                                                               x_scale, x_one, w_scale, bias, y);
    }
}

void linear_fill_bias(const float *bias, int32_t m, struct linear_y y, cudaStream_t stream)
{
    int64_t n = (int64_t)m * y.ld;
    fill_bias_kernel<<<blocks_for(n), THREADS, 0, stream>>>(bias, n, y);
}

void linear_general_int8(const struct bt_cuda_linear *l, const int8_t *x, const float *x_scale,
                         int32_t m, struct linear_y y, cudaStream_t stream)
{
    BT_ASSERT(l->weights != BT_CUDA_W16 && !l->packed);
    dim3 grid((unsigned)((l->n_out + THREADS / 32 - 1) / (THREADS / 32)),
              (unsigned)((m + GENERAL_ROWS - 1) / GENERAL_ROWS));
    if (l->weights == BT_CUDA_W8) {
        general_int8_kernel<8><<<grid, THREADS, 0, stream>>>(*l, x, x_scale, m, y);
    } else {
        general_int8_kernel<4><<<grid, THREADS, 0, stream>>>(*l, x, x_scale, m, y);
    }
}

void linear_gather(const void *src, const int32_t *perm, int32_t m, int32_t k, int32_t elem_bytes,
                   void *dst, cudaStream_t stream)
{
    int64_t n = (int64_t)m * k;
    if (elem_bytes == 1) {
        gather_kernel<<<blocks_for(n), THREADS, 0, stream>>>((const uint8_t *)src, perm, n, k,
                                                             (uint8_t *)dst);
    } else {
        BT_ASSERT(elem_bytes == 2);
        gather_kernel<<<blocks_for(n), THREADS, 0, stream>>>((const uint16_t *)src, perm, n, k,
                                                             (uint16_t *)dst);
    }
}

void linear_widen(const int8_t *src, int64_t n, bool bf16, void *dst, cudaStream_t stream)
{
    if (bf16) {
        widen_kernel<<<blocks_for(n), THREADS, 0, stream>>>(src, n, (__nv_bfloat16 *)dst);
    } else {
        widen_kernel<<<blocks_for(n), THREADS, 0, stream>>>(src, n, (__half *)dst);
    }
}

void linear_random_16(void *dst, int64_t n, bool bf16, float bound, uint64_t seed,
                      cudaStream_t stream)
{
    if (bf16) {
        random_16_kernel<<<blocks_for(n), THREADS, 0, stream>>>((__nv_bfloat16 *)dst, n, bound,
                                                                seed);
    } else {
        random_16_kernel<<<blocks_for(n), THREADS, 0, stream>>>((__half *)dst, n, bound, seed);
    }
}

void linear_random_int8(int8_t *dst, int64_t n, uint64_t seed, cudaStream_t stream)
{
    random_int8_kernel<<<blocks_for(n), THREADS, 0, stream>>>(dst, n, seed);
}

void linear_random_bits(void *dst, int64_t bytes, uint64_t seed, cudaStream_t stream)
{
    random_bits_kernel<<<blocks_for(bytes), THREADS, 0, stream>>>((uint8_t *)dst, bytes, seed);
}

void linear_fill_f32(float *dst, int64_t n, float value, cudaStream_t stream)
{
    fill_f32_kernel<<<blocks_for(n), THREADS, 0, stream>>>(dst, n, value);
}
