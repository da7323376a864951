/* The linear layers' kernels around the products: expanding weights, scaling sums, gathering
 * columns, random numbers, and the product that takes any shape. All but the last move each byte
 * once; they are a small part of a large-m product. */
#include "engine/cuda/launch.cuh"
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

/* The packed layout of INT4 (linear_skinny.cuh): blocks of 64 rows x 128 inputs, row blocks first.
 * A block holds [8 eights of rows][32 lanes] pieces of 16 bytes, lane 4 r + t of an eight for its
 * row r; then the scales [groups][8 rows of an eight][8 eights], FP16; then so the zero points, if
 * any. Word c of a piece holds eight of the inputs 32 c .. 32 c + 31: those that lane's operand of
 * the tensor cores has. */
struct packed_place {
    int64_t block; /* its first byte */
    int32_t word;  /* bytes into the block */
    int32_t nibble;
    int32_t scale; /* bytes into the block */
    int32_t zero;
};

__device__ __forceinline__ packed_place place_of(int64_t n, int32_t k, int32_t n_in, int32_t group,
                                                 bool int8_x, int32_t block_bytes)
{
    int32_t chunks = (n_in + 127) / 128;
    int32_t row = (int32_t)(n % 64);
    int32_t c = k % 128 / 32;
    int32_t in = k % 32;
    /* 16-bit: pairs, four nibbles apart; INT8: quadruples, two apart. */
    int32_t t = int8_x ? in % 16 / 4 : in % 8 / 2;
    packed_place at;
    at.block = (n / 64 * chunks + k / 128) * block_bytes;
    at.word = (row / 8 * 32 + row % 8 * 4 + t) * 16 + c * 4;
    at.nibble = int8_x ? in % 4 * 2 + in / 16 : in / 8 + in % 2 * 4;
    int32_t column = row % 8 * 8 + row / 8;
    int32_t shift = __ffs(group) - 1; /* a power of two */
    at.scale = 4096 + (k % 128 >> shift) * 128 + column * 2;
    at.zero = 4096 + (128 >> shift) * 128 + (k % 128 >> shift) * 64 + column;
    return at;
}

/* A thread makes one word: it finds its inputs by trying those of the word's 32. */
__global__ void pack_kernel(struct bt_cuda_linear l, int32_t group, int32_t block_bytes,
                            const uint8_t *q, const float *scale, const int8_t *zero,
                            uint8_t *packed)
{
    int32_t words = (l.n_in + 127) / 128 * 16;
    int64_t n = blockIdx.y * 8 + threadIdx.x / 32;
    int32_t i = (int32_t)blockIdx.x * 32 + threadIdx.x % 32;
    if (i >= words) {
        return;
    }
    int32_t k0 = i / 4 * 32;
    int32_t t = i % 4;
    int64_t row_bytes = (l.n_in + 1) / 2;
    uint32_t word = 0;
    packed_place at = {};
    for (int32_t e = 0; e < 8; e++) {
        int32_t k = k0 + (l.int8_x ? e / 4 * 16 + t * 4 + e % 4 : e / 2 * 8 + t * 2 + e % 2);
        at = place_of(n, k, l.n_in, group, l.int8_x, block_bytes);
        bool inside = n < l.n_out && k < l.n_in;
        int32_t byte = inside ? q[n * row_bytes + k / 2] : BT_QWEIGHT_ZERO4;
        word |= (uint32_t)(k % 2 == 0 ? byte & 15 : byte >> 4) << 4 * at.nibble;
    }
    uint8_t *block = packed + at.block;
    *(uint32_t *)(block + at.word) = word;
    if (k0 % group == 0 && t == 0) {
        bool inside = n < l.n_out && k0 < l.n_in;
        int32_t g = k0 / l.group < l.n_groups ? k0 / l.group : l.n_groups - 1;
        int64_t from = n * l.n_groups + g;
        *(__half *)(block + at.scale) = __float2half_rn(inside ? scale[from] : 0.0f);
        if (block_bytes > 4096 + 128 / group * 128) {
            block[at.zero] = (uint8_t)(inside && zero != nullptr ? zero[from] : 0);
        }
    }
}

/* A thread makes 8 inputs of a row, which lie in the words of 4 lanes (16-bit x) or of 2 (INT8 x);
 * rows n0 + 8 blockIdx.y .. */
template <class T, bool INT8_X>
__global__ void expand_packed_kernel(struct bt_cuda_linear l, int32_t block_bytes, int32_t n0,
                                     int32_t rows, T *dst)
{
    int32_t row = (int32_t)blockIdx.y * 8 + threadIdx.x / 32;
    int32_t k = ((int32_t)blockIdx.x * 32 + threadIdx.x % 32) * 8;
    if (row >= rows || k >= l.n_in) {
        return;
    }
    packed_place at = place_of(n0 + row, k, l.n_in, l.group, INT8_X, block_bytes);
    const uint8_t *block = (const uint8_t *)l.w + at.block;
    float scale = __half2float(*(const __half *)(block + at.scale));
    int32_t zero = 8 + (l.packed_zero ? (int8_t)block[at.zero] : 0);
    constexpr int PER_LANE = INT8_X ? 4 : 2;
    __align__(16) T v[8];
#pragma unroll
    for (int32_t e = 0; e < 8; e++) {
        uint32_t word = *(const uint32_t *)(block + at.word + e / PER_LANE * 16);
        int32_t q = word >> 4 * (at.nibble + e % PER_LANE * (INT8_X ? 2 : 4)) & 15;
        v[e] = linear_from_f32<T>((float)(q - zero) * scale);
    }
    *(uint4 *)(dst + (int64_t)row * l.n_in + k) = *(const uint4 *)v;
}

/* INT8 with a scale a row, K % 8 == 0: likewise. */
template <class T>
__global__ void expand_int8_kernel(struct bt_cuda_linear l, int32_t n0, int32_t rows, T *dst)
{
    int32_t row = (int32_t)blockIdx.y * 8 + threadIdx.x / 32;
    int32_t k = ((int32_t)blockIdx.x * 32 + threadIdx.x % 32) * 8;
    if (row >= rows || k >= l.n_in) {
        return;
    }
    int64_t n = n0 + row;
    float scale = l.scale[n];
    uint2 q = *(const uint2 *)((const int8_t *)l.w + n * l.n_in + k);
    __align__(16) T v[8];
#pragma unroll
    for (int32_t e = 0; e < 8; e++) {
        int8_t one = (int8_t)((e < 4 ? q.x : q.y) >> e % 4 * 8);
        v[e] = linear_from_f32<T>((float)one * scale);
    }
    *(uint4 *)(dst + (int64_t)row * l.n_in + k) = *(const uint4 *)v;
}

/* Scales of random packed weights; the rest of a block is random already. */
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

/* Four columns a thread, one after the other; a block of threads makes a part of one row. */
template <class Acc>
__global__ void finish_kernel(const Acc *acc, int32_t n0, int32_t rows, const float *x_scale,
                              float x_one, const float *w_scale, const float *bias,
                              struct linear_y y)
{
    int64_t row = blockIdx.x;
    int32_t j = ((int32_t)blockIdx.y * THREADS + threadIdx.x) * 4;
    bt_let_next_begin();
    bt_wait_for_previous();
    float scale = x_scale == nullptr ? x_one : x_scale[row];
    if (j + 4 <= rows && rows % 4 == 0 && y.fours && n0 % 4 == 0) {
        int4 bits = *(const int4 *)(acc + row * rows + j);
        const Acc *v = (const Acc *)&bits;
        __align__(16) float out[4];
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            int32_t n = n0 + j + i;
            out[i] = (float)v[i] * (w_scale == nullptr ? 1.0f : w_scale[n]) * scale;
            out[i] = bias == nullptr ? out[i] : out[i] + bias[n];
        }
        linear_store_4(y, row * y.ld + n0 + j, out);
        return;
    }
    for (; j < rows && j < (int32_t)(blockIdx.y * THREADS + threadIdx.x) * 4 + 4; j++) {
        int32_t n = n0 + j;
        float v = (float)acc[row * rows + j] * (w_scale == nullptr ? 1.0f : w_scale[n]) * scale;
        linear_store(y, row * y.ld + n, bias == nullptr ? v : v + bias[n]);
    }
}

template <class Y> __global__ void add_bias_kernel(const float *bias, int32_t n_out, Y *y)
{
    int32_t n = (int32_t)blockIdx.y * THREADS + threadIdx.x;
    bt_let_next_begin();
    bt_wait_for_previous();
    if (n < n_out) {
        Y *at = y + (int64_t)blockIdx.x * n_out + n;
        *at = linear_from_f32<Y>((float)*at + bias[n]);
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

/* Stored 1 .. 15 stand for -7 .. 7; 0, which would be -8, becomes one more 0. So the mean is 0: one
 * of -1/2 makes the same of all outputs, layer after layer, until FP16 overflows. */
__global__ void random_int4_kernel(uint8_t *dst, int64_t bytes, uint64_t seed)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < bytes) {
        uint32_t two = (uint32_t)(random_bits(seed, (uint64_t)i) >> 56);
        two |= (two & 0x0f) == 0 ? 0x08 : 0;
        two |= (two & 0xf0) == 0 ? 0x80 : 0;
        dst[i] = (uint8_t)two;
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
    dim3 eights((unsigned)(l->n_in + 255) / 256, (unsigned)(rows + 7) / 8);
    if (l->packed) {
        int32_t block_bytes = linear_packed_block_bytes(l->group, l->packed_zero);
        if (l->int8_x) {
            expand_packed_kernel<T, true>
                <<<eights, THREADS, 0, stream>>>(*l, block_bytes, n0, rows, (T *)dst);
        } else {
            expand_packed_kernel<T, false>
                <<<eights, THREADS, 0, stream>>>(*l, block_bytes, n0, rows, (T *)dst);
        }
    } else if (l->weights == BT_CUDA_W8 && l->n_groups == 1 && l->zero == NULL &&
               l->n_in % 8 == 0) {
        expand_int8_kernel<T><<<eights, THREADS, 0, stream>>>(*l, n0, rows, (T *)dst);
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

int32_t linear_packed_group(const struct bt_cuda_linear *l)
{
    if (l->n_in % (l->int8_x ? 16 : 8) != 0) {
        return 0;
    }
    if (l->n_groups == 1) {
        return 128;
    }
    return l->group % 128 == 0 ? 128 : l->group % 64 == 0 ? 64 : l->group % 32 == 0 ? 32 : 0;
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
    int32_t group = linear_packed_group(l);
    BT_ASSERT(group > 0);
    dim3 grid((unsigned)((l->n_in + 127) / 128 * 16 + 31) / 32, (unsigned)(l->n_out + 63) / 64 * 8);
    pack_kernel<<<grid, THREADS, 0, stream>>>(*l, group,
                                              linear_packed_block_bytes(group, zero != NULL), q,
                                              scale, zero, (uint8_t *)packed);
}

void linear_random_packed(void *dst, int64_t bytes, int32_t group, float scale, uint64_t seed,
                          cudaStream_t stream)
{
    int32_t block_bytes = linear_packed_block_bytes(group, false);
    int64_t n_blocks = bytes / block_bytes;
    linear_random_int4(dst, bytes, seed, stream);
    packed_scales_kernel<<<blocks_for(n_blocks * (block_bytes - 4096) / 2), THREADS, 0, stream>>>(
        (uint8_t *)dst, n_blocks, block_bytes, scale);
}

void linear_finish(const void *acc, bool acc_f32, int32_t m, int32_t n0, int32_t rows,
                   const float *x_scale, float x_one, const float *w_scale, const float *bias,
                   struct linear_y y, cudaStream_t stream)
{
    bt_grid g = {dim3((unsigned)m, blocks_for((rows + 3) / 4)), dim3(THREADS)};
    if (acc_f32) {
        bt_launch(g, stream, finish_kernel<float>, (const float *)acc, n0, rows, x_scale, x_one,
                  w_scale, bias, y);
    } else {
        bt_launch(g, stream, finish_kernel<int32_t>, (const int32_t *)acc, n0, rows, x_scale, x_one,
                  w_scale, bias, y);
    }
}

void linear_add_bias(const float *bias, int32_t m, struct linear_y y, cudaStream_t stream)
{
    bt_grid g = {dim3((unsigned)m, blocks_for(y.ld)), dim3(THREADS)};
    if (y.f32) {
        bt_launch(g, stream, add_bias_kernel<float>, bias, y.ld, (float *)y.p);
    } else if (y.bf16) {
        bt_launch(g, stream, add_bias_kernel<__nv_bfloat16>, bias, y.ld, (__nv_bfloat16 *)y.p);
    } else {
        bt_launch(g, stream, add_bias_kernel<__half>, bias, y.ld, (__half *)y.p);
    }
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

void linear_random_int4(void *dst, int64_t bytes, uint64_t seed, cudaStream_t stream)
{
    random_int4_kernel<<<blocks_for(bytes), THREADS, 0, stream>>>((uint8_t *)dst, bytes, seed);
}

void linear_fill_f32(float *dst, int64_t n, float value, cudaStream_t stream)
{
    fill_f32_kernel<<<blocks_for(n), THREADS, 0, stream>>>(dst, n, value);
}
