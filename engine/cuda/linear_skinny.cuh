/* The product for few rows, in which the weights' way from memory is what takes time. Internal to
 * engine/cuda.
 *
 * The tensor cores compute (W xᵀ): 16 weight rows are the M of an mma, 8 tokens its N, so that one
 * token wastes no more than the idle lanes. Of row-major INT8 and 16-bit weights a lane's part of
 * an operand is 16 contiguous bytes of a row, and x is read likewise: the order of K inside a
 * product does not matter as long as both sides agree, so these weights need no repacking. INT4
 * weights are packed offline into blocks of 64 rows x 128 inputs, contiguous in memory together
 * with their scales and zero points, each lane's nibbles in a row and in the order in which they
 * are expanded.
 *
 * Four warps form a block of threads, side by side along the rows or (wk of them) sharing out K.
 * Weights and x stream through a ring of cp.async stages; the first stages' weights are asked for
 * before the kernel waits for those before it, which make x. All tiles' steps along K are dealt out
 * evenly over as many blocks as the GPU holds at once (stream-K), so that every SM reads the same
 * number of bytes whatever the shape; a tile that several blocks share is added up by the one that
 * comes last, always in the order of K. Results do not depend on timing.
 *
 * INT4 with 16-bit x: nibbles become 128 + q (BF16) or 1024 + q (FP16) by one LOP3, less the offset
 * and the zero point by one subtraction, exactly; a group's products are added in float and scaled
 * after, so scales keep their precision. With INT8 x the same in int32.
 */
#ifndef BT_ENGINE_CUDA_LINEAR_SKINNY_CUH
#define BT_ENGINE_CUDA_LINEAR_SKINNY_CUH

#include "engine/cuda/launch.cuh"
#include "engine/cuda/linear_mma.cuh"
#include "engine/cuda/linear_parts.cuh"

namespace skinny
{

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;

/* What is read by the kernel, by value. */
struct args {
    const uint8_t *w;
    const float *w_scale; /* [N]: W8 */
    const float *bias;    /* [N]; null: none */
    const uint8_t *x;     /* [M, K] */
    const float *x_scale; /* [M]; null: x_one */
    float x_one;
    struct linear_y y;
    int32_t m, n_out, n_in;
    int32_t row_tiles, tok_tiles, steps; /* steps of all warps' chunks along K */
    int32_t wk;                          /* warps that share out K: 1, 2, 4 */
    int32_t stages;                      /* of the ring: 3 .. 6 */
    int32_t block_bytes;                 /* of one warp's weights of one stage */
    int32_t split;                       /* linear_wgmma.cu: blocks of a cluster; 0: stream-K */
    int32_t groups;                      /* W4: groups in a chunk: 1, 2, 4 */
    bool zero;                           /* W4: there are zero points */
    uint4 *partial;                      /* [blocks of threads][2][fragments][threads] */
    int32_t *arrived;                    /* [tiles], zero before and after */
};

enum kind { W16A16, W8A16, W4A16, W8A8, W4A8 };

template <kind KIND> struct shape_of;
template <> struct shape_of<W16A16> {
    static constexpr int RB = 2, KC = 64, X_BYTES = 128;
};
template <> struct shape_of<W8A16> {
    static constexpr int RB = 2, KC = 128, X_BYTES = 256;
};
template <> struct shape_of<W4A16> {
    static constexpr int RB = 4, KC = 128, X_BYTES = 256;
};
template <> struct shape_of<W8A8> {
    static constexpr int RB = 2, KC = 128, X_BYTES = 128;
};
template <> struct shape_of<W4A8> {
    static constexpr int RB = 4, KC = 128, X_BYTES = 128;
};

/* Bytes of one warp's weights of one stage, scales apart: the same for every kind. */
constexpr int Q_BYTES = 4096;

/* x of a chunk lies in shared memory as [pieces of 16 bytes along K][tokens], pieces apart by some
 * more than the tokens take: rows of 8 tokens are what ldmatrix reads, and four pieces of two
 * tokens lie in different banks. */
template <int NT> __host__ __device__ constexpr int piece_stride()
{
    return NT * 128 + 32;
}

template <kind KIND, int NT> __host__ __device__ constexpr int x_chunk_bytes()
{
    return shape_of<KIND>::X_BYTES / 16 * piece_stride<NT>();
}

/* ---- one stage of one warp ---- */

/* Sums of a tile: [16-row blocks][8-token blocks][4], int32 where products stay whole. */
template <kind KIND> struct sum_of {
    using type = float;
};
template <> struct sum_of<W8A8> {
    using type = int32_t;
};

/* 16-bit or INT8 numbers on both sides, as they are. */
template <kind KIND, class T, int NT, class Sum>
__device__ __forceinline__ void multiply_plain(Sum (&acc)[shape_of<KIND>::RB][NT][4], uint32_t w,
                                               uint32_t x, int lane)
{
    constexpr int RB = shape_of<KIND>::RB;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        uint4 xf[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) {
            xf[t] = load_16(
                x + (uint32_t)((c * 4 + lane % 4) * piece_stride<NT>() + (t * 8 + lane / 4) * 16));
        }
#pragma unroll
        for (int r = 0; r < RB; r++) {
            uint4 a = load_16(w + (uint32_t)(((r * 2 + 0) * 2 + c) * 32 + lane) * 16);
            uint4 b = load_16(w + (uint32_t)(((r * 2 + 1) * 2 + c) * 32 + lane) * 16);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                if constexpr (KIND == W8A8) {
                    mma_int8(acc[r][t], a.x, b.x, a.y, b.y, xf[t].x, xf[t].y);
                    mma_int8(acc[r][t], a.z, b.z, a.w, b.w, xf[t].z, xf[t].w);
                } else {
                    T::mma(acc[r][t], a.x, b.x, a.y, b.y, xf[t].x, xf[t].y);
                    T::mma(acc[r][t], a.z, b.z, a.w, b.w, xf[t].z, xf[t].w);
                }
            }
        }
    }
}

/* INT8 weights, 16-bit x: a piece of 16 weights meets two of 8 inputs. */
template <class T, int NT>
__device__ __forceinline__ void multiply_w8a16(float (&acc)[shape_of<W8A16>::RB][NT][4], uint32_t w,
                                               uint32_t x, int lane)
{
    constexpr int RB = shape_of<W8A16>::RB;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        uint4 xf[2][NT];
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int t = 0; t < NT; t++) {
                xf[h][t] = load_16(x + (uint32_t)((c * 8 + lane % 4 * 2 + h) * piece_stride<NT>() +
                                                  (t * 8 + lane / 4) * 16));
            }
        }
#pragma unroll
        for (int r = 0; r < RB; r++) {
            uint4 a = load_16(w + (uint32_t)(((r * 2 + 0) * 2 + c) * 32 + lane) * 16);
            uint4 b = load_16(w + (uint32_t)(((r * 2 + 1) * 2 + c) * 32 + lane) * 16);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t a0, a1, a2, a3, b0, b1, b2, b3;
                T::bytes(h == 0 ? a.x : a.z, a0, a1);
                T::bytes(h == 0 ? a.y : a.w, a2, a3);
                T::bytes(h == 0 ? b.x : b.z, b0, b1);
                T::bytes(h == 0 ? b.y : b.w, b2, b3);
#pragma unroll
                for (int t = 0; t < NT; t++) {
                    T::mma(acc[r][t], a0, b0, a1, b1, xf[h][t].x, xf[h][t].y);
                    T::mma(acc[r][t], a2, b2, a3, b3, xf[h][t].z, xf[h][t].w);
                }
            }
        }
    }
}

/* The scales (as two halves: row g, row g + 8) and zero points of a row block in a group. */
struct w4_group {
    float scale[2];
    int32_t zero[2];
};

__device__ __forceinline__ w4_group load_group(uint32_t w, int32_t groups, bool zero, int group,
                                               int r, int lane)
{
    uint32_t at = w + Q_BYTES + (uint32_t)(group * 128 + (lane / 4) * 16 + r * 4);
    uint32_t pair;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at));
    float2 s = __half22float2(*(__half2 *)&pair);
    w4_group g = {{s.x, s.y}, {0, 0}};
    if (zero) {
        at = w + Q_BYTES + (uint32_t)(groups * 128 + group * 64 + (lane / 4) * 8 + r * 2);
        int16_t two;
        asm volatile("ld.shared.s16 %0, [%1];" : "=h"(two) : "r"(at));
        g.zero[0] = (int8_t)(two & 0xff);
        g.zero[1] = two >> 8;
    }
    return g;
}

template <class T, int NT>
__device__ __forceinline__ void multiply_w4a16(float (&acc)[shape_of<W4A16>::RB][NT][4], uint32_t w,
                                               uint32_t x, int32_t groups, bool zero, int lane)
{
    constexpr int RB = shape_of<W4A16>::RB;
    constexpr int PART = NT < 4 ? NT : 4; /* tokens whose inputs fit in registers */
#pragma unroll
    for (int t0 = 0; t0 < NT; t0 += PART) {
        uint4 xf[4][PART];
#pragma unroll
        for (int c = 0; c < 4; c++) {
#pragma unroll
            for (int t = 0; t < PART; t++) {
                xf[c][t] = load_matrices(x + (uint32_t)((c * 4 + lane / 8) * piece_stride<NT>() +
                                                        ((t0 + t) * 8 + lane % 8) * 16));
            }
        }
#pragma unroll
        for (int r = 0; r < RB; r++) {
            uint4 a = load_16(w + (uint32_t)((r * 2 + 0) * 32 + lane) * 16);
            uint4 b = load_16(w + (uint32_t)((r * 2 + 1) * 32 + lane) * 16);
            float sum[PART][4] = {};
            w4_group g = load_group(w, groups, zero, 0, r, lane);
            uint32_t off_a = T::offset(g.zero[0]);
            uint32_t off_b = T::offset(g.zero[1]);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t ea[4], eb[4];
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    ea[s] = T::sub(and_or(word_of(a, c) >> 4 * s, 0x000f000fu, T::MAGIC), off_a);
                    eb[s] = T::sub(and_or(word_of(b, c) >> 4 * s, 0x000f000fu, T::MAGIC), off_b);
                }
#pragma unroll
                for (int t = 0; t < PART; t++) {
                    T::mma(sum[t], ea[0], eb[0], ea[1], eb[1], xf[c][t].x, xf[c][t].y);
                    T::mma(sum[t], ea[2], eb[2], ea[3], eb[3], xf[c][t].z, xf[c][t].w);
                }
                if (c == 3 || groups == 4 || (groups == 2 && c == 1)) {
#pragma unroll
                    for (int t = 0; t < PART; t++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            acc[r][t0 + t][i] += g.scale[i / 2] * sum[t][i];
                            sum[t][i] = 0.0f;
                        }
                    }
                    if (c < 3) {
                        g = load_group(w, groups, zero, groups == 4 ? c + 1 : 1, r, lane);
                        off_a = T::offset(g.zero[0]);
                        off_b = T::offset(g.zero[1]);
                    }
                }
            }
        }
    }
}

/* Nibbles of a word as bytes q - 8 - zero: inputs 0 .. 3, then 4 .. 7. add: four bytes 0x78 - zero.
 */
__device__ __forceinline__ void nibbles_int8(uint32_t w, uint32_t add, uint32_t &lo, uint32_t &hi)
{
    lo = ((w & 0x0f0f0f0fu) + add) ^ 0x80808080u;
    hi = ((w >> 4 & 0x0f0f0f0fu) + add) ^ 0x80808080u;
}

template <int NT>
__device__ __forceinline__ void multiply_w4a8(float (&acc)[shape_of<W4A8>::RB][NT][4], uint32_t w,
                                              uint32_t x, int32_t groups, bool zero, int lane)
{
    constexpr int RB = shape_of<W4A8>::RB;
    constexpr int PART = NT < 4 ? NT : 4;
#pragma unroll
    for (int t0 = 0; t0 < NT; t0 += PART) {
        uint4 xf[2][PART];
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int t = 0; t < PART; t++) {
                xf[c][t] = load_matrices(x + (uint32_t)((c * 4 + lane / 8) * piece_stride<NT>() +
                                                        ((t0 + t) * 8 + lane % 8) * 16));
            }
        }
#pragma unroll
        for (int r = 0; r < RB; r++) {
            uint4 a = load_16(w + (uint32_t)((r * 2 + 0) * 32 + lane) * 16);
            uint4 b = load_16(w + (uint32_t)((r * 2 + 1) * 32 + lane) * 16);
            int32_t sum[PART][4] = {};
            w4_group g = load_group(w, groups, zero, 0, r, lane);
            uint32_t add_a = 0x78787878u - 0x01010101u * (uint32_t)g.zero[0];
            uint32_t add_b = 0x78787878u - 0x01010101u * (uint32_t)g.zero[1];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t a0, a1, b0, b1;
                nibbles_int8(word_of(a, c), add_a, a0, a1);
                nibbles_int8(word_of(b, c), add_b, b0, b1);
#pragma unroll
                for (int t = 0; t < PART; t++) {
                    const uint4 &v = xf[c / 2][t];
                    mma_int8(sum[t], a0, b0, a1, b1, c % 2 == 0 ? v.x : v.z,
                             c % 2 == 0 ? v.y : v.w);
                }
                if (c == 3 || groups == 4 || (groups == 2 && c == 1)) {
#pragma unroll
                    for (int t = 0; t < PART; t++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            acc[r][t0 + t][i] += g.scale[i / 2] * (float)sum[t][i];
                            sum[t][i] = 0;
                        }
                    }
                    if (c < 3) {
                        g = load_group(w, groups, zero, groups == 4 ? c + 1 : 1, r, lane);
                        add_a = 0x78787878u - 0x01010101u * (uint32_t)g.zero[0];
                        add_b = 0x78787878u - 0x01010101u * (uint32_t)g.zero[1];
                    }
                }
            }
        }
    }
}

/* ---- the ring ---- */

/* Where one warp's weights of tile row `row_tile`, chunk `chunk` come from, into `dst`. */
template <kind KIND>
__device__ __forceinline__ void fetch_weights(const args &p, uint32_t dst, int32_t row0,
                                              int32_t chunk, int lane, uint64_t policy)
{
    if constexpr (KIND == W4A16 || KIND == W4A8) {
        int32_t chunks = (p.n_in + 127) / 128;
        if (row0 >= p.n_out || chunk >= chunks) {
            return;
        }
        const uint8_t *src = p.w + ((int64_t)(row0 / 64) * chunks + chunk) * p.block_bytes;
#pragma unroll
        for (int i = 0; i < Q_BYTES / 512; i++) {
            copy_16(dst + (uint32_t)(i * 32 + lane) * 16, src + (i * 32 + lane) * 16, true, policy);
        }
        for (int32_t i = Q_BYTES / 16 + lane; i < p.block_bytes / 16; i += 32) {
            copy_16(dst + (uint32_t)i * 16, src + i * 16, true, policy);
        }
    } else {
        int64_t row_bytes = (int64_t)p.n_in * (KIND == W16A16 ? 2 : 1);
        int64_t at = (int64_t)chunk * 128 + (lane % 4) * 16;
#pragma unroll
        for (int i = 0; i < 2 * shape_of<KIND>::RB; i++) {
            int32_t row = row0 + i * 8 + lane / 4;
            row = row < p.n_out ? row : p.n_out - 1;
            const uint8_t *src = p.w + row * row_bytes;
#pragma unroll
            for (int c = 0; c < 2; c++) {
                bool valid = at + c * 64 < row_bytes;
                copy_16(dst + (uint32_t)((i * 2 + c) * 32 + lane) * 16,
                        src + (valid ? at + c * 64 : 0), valid, policy);
            }
        }
    }
}

/* x of the tile's tokens, all chunks of a step. */
template <kind KIND, int NT, int N_THREADS>
__device__ __forceinline__ void fetch_x(const args &p, uint32_t dst, int32_t tok0, int32_t step,
                                        int32_t wk)
{
    constexpr int X_BYTES = shape_of<KIND>::X_BYTES;
    constexpr int PIECES = X_BYTES / 16; /* of a token in a chunk */
    int32_t tokens = p.m - tok0 < NT * 8 ? p.m - tok0 : NT * 8;
    int64_t row_bytes = (int64_t)p.n_in * (KIND == W8A8 || KIND == W4A8 ? 1 : 2);
    int32_t shift = __ffs(PIECES * wk) - 1; /* pieces of a token: a power of two */
    for (int32_t i = threadIdx.x; i < tokens << shift; i += N_THREADS) {
        int32_t token = i >> shift;
        int32_t j = i - (token << shift);
        int64_t at = (int64_t)step * wk * X_BYTES + (int64_t)j * 16;
        bool valid = at < row_bytes;
        copy_x16(dst + (uint32_t)(j / PIECES * x_chunk_bytes<KIND, NT>() +
                                  j % PIECES * piece_stride<NT>() + token * 16),
                 p.x + (tok0 + token) * row_bytes + (valid ? at : 0), valid);
    }
}

/* x of the first `n` steps from unit `first` on, into their stages by ordinary loads: for few
 * pieces, which then do not have to wait for the weights that were asked for before them. */
template <kind KIND, int NT, int N_THREADS>
__device__ __forceinline__ void load_x(const args &p, uint32_t ring, uint32_t stage_bytes,
                                       int64_t first, int32_t n)
{
    constexpr int PIECES = shape_of<KIND>::X_BYTES / 16;
    int64_t row_bytes = (int64_t)p.n_in * (KIND == W8A8 || KIND == W4A8 ? 1 : 2);
    int32_t shift = __ffs(PIECES * p.wk) - 1;
    int32_t in_stage = p.m << shift;
    for (int32_t i = threadIdx.x; i < n * in_stage; i += N_THREADS) {
        int32_t stage = i / in_stage;
        int32_t token = i % in_stage >> shift;
        int32_t j = i % in_stage - (token << shift);
        int64_t at = (first + stage) % p.steps * p.wk * shape_of<KIND>::X_BYTES + (int64_t)j * 16;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (at < row_bytes) {
            v = __ldcg((const uint4 *)(p.x + token * row_bytes + at));
        }
        store_16(ring + stage_bytes * (uint32_t)stage +
                     (uint32_t)(WARPS * p.block_bytes + j / PIECES * x_chunk_bytes<KIND, NT>() +
                                j % PIECES * piece_stride<NT>() + token * 16),
                 v);
    }
}

/* ---- results ---- */

/* One fragment (16 rows x 8 tokens) of sums to y. Lanes of four neighbouring rows exchange their
 * four sums first, so that each has four rows of one token. */
template <kind KIND>
__device__ __forceinline__ void write_fragment(const args &p, int32_t row, int32_t token, uint4 v,
                                               int lane)
{
    const bool odd = (lane & 4) != 0;
    uint32_t r0 = __shfl_xor_sync(0xffffffffu, odd ? v.x : v.y, 4);
    uint32_t r1 = __shfl_xor_sync(0xffffffffu, odd ? v.z : v.w, 4);
    v = odd ? make_uint4(r0, v.y, r1, v.w) : make_uint4(v.x, r0, v.z, r1);
    const bool lower = (lane & 8) != 0;
    r0 = __shfl_xor_sync(0xffffffffu, lower ? v.x : v.z, 8);
    r1 = __shfl_xor_sync(0xffffffffu, lower ? v.y : v.w, 8);
    v = lower ? make_uint4(r0, r1, v.z, v.w) : make_uint4(v.x, v.y, r0, r1);

    const int32_t n = row + (lower ? 8 : 0) + (lane & 16) / 4;
    const int32_t t = token + lane % 4 * 2 + (odd ? 1 : 0);
    if (t >= p.m || n >= p.n_out) {
        return;
    }
    const uint32_t bits[4] = {v.x, v.y, v.z, v.w};
    float x_scale = 1.0f;
    if constexpr (KIND == W8A8 || KIND == W4A8) {
        x_scale = p.x_scale == nullptr ? p.x_one : p.x_scale[t];
    }
    __align__(16) float sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t at = n + i < p.n_out ? n + i : n;
        sum[i] = KIND == W8A8 ? (float)(int32_t)bits[i] : __uint_as_float(bits[i]);
        if constexpr (KIND == W8A8 || KIND == W8A16) {
            sum[i] *= p.w_scale[at];
        }
        if constexpr (KIND == W8A8 || KIND == W4A8) {
            sum[i] *= x_scale;
        }
        sum[i] = p.bias == nullptr ? sum[i] : sum[i] + p.bias[at];
    }
    const int64_t to = (int64_t)t * p.y.ld + n;
    if (p.y.fours) {
        linear_store_4(p.y, to, sum);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (n + i < p.n_out) {
            linear_store(p.y, to + i, sum[i]);
        }
    }
}

template <kind KIND> __device__ __forceinline__ uint4 add_bits(uint4 a, uint4 b)
{
    if constexpr (KIND == W8A8) {
        return make_uint4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    } else {
        return make_uint4(__float_as_uint(__uint_as_float(a.x) + __uint_as_float(b.x)),
                          __float_as_uint(__uint_as_float(a.y) + __uint_as_float(b.y)),
                          __float_as_uint(__uint_as_float(a.z) + __uint_as_float(b.z)),
                          __float_as_uint(__uint_as_float(a.w) + __uint_as_float(b.w)));
    }
}

template <class Sum> __device__ __forceinline__ uint4 bits_of(const Sum (&v)[4])
{
    static_assert(sizeof(Sum) == 4, "a fragment is four words");
    return *(const uint4 *)&v;
}

/* ---- the kernel ---- */

/* Tiles in units of a step: block b takes [b U / G, (b + 1) U / G). The block that holds unit u: */
__device__ __forceinline__ int32_t owner_of(int64_t unit, int64_t units, int64_t blocks)
{
    return (int32_t)(((unit + 1) * blocks - 1) / units);
}

/* Blocks of threads that an SM may hold: what the registers of their sums allow. */
template <int NT> constexpr int most_per_sm()
{
    return NT <= 2 ? 3 : 2;
}

/* Long because one loop holds what all its parts share: the ring, the place in the tiles, the sums.
 */
template <kind KIND, class T, int NT>
__global__ void __launch_bounds__(THREADS, most_per_sm<NT>())
    skinny_kernel(const __grid_constant__ args p)
{
    using Sum = typename sum_of<KIND>::type;
    constexpr int RB = shape_of<KIND>::RB;
    constexpr int FRAGMENTS = RB * NT;
    constexpr int X_CHUNK = x_chunk_bytes<KIND, NT>();
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ int32_t is_last;

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int32_t wk = p.wk;
    const int32_t wn = WARPS / wk;
    const int32_t warp_n = warp % wn;
    const int32_t warp_k = warp / wn;
    const int32_t chunks = (p.n_in + shape_of<KIND>::KC - 1) / shape_of<KIND>::KC;
    const uint32_t ring = smem_of(smem);
    const uint32_t stage_bytes = (uint32_t)(WARPS * p.block_bytes + wk * X_CHUNK);
    const uint32_t exchange = ring + stage_bytes * (uint32_t)p.stages;

    const int64_t units = (int64_t)p.row_tiles * p.tok_tiles * p.steps;
    const int64_t first = (int64_t)blockIdx.x * units / gridDim.x;
    const int32_t count = (int32_t)((int64_t)(blockIdx.x + 1) * units / gridDim.x - first);

    uint64_t policy;
    if (p.tok_tiles == 1) {
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    } else {
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    }

    struct fetch {
        int32_t tile, step, slot;
    };
    auto advance = [&](fetch &f) {
        f.slot = f.slot + 1 == p.stages ? 0 : f.slot + 1;
        if (++f.step == p.steps) {
            f.step = 0;
            f.tile++;
        }
    };
    auto fetch_w = [&](const fetch &f) {
        fetch_weights<KIND>(
            p, ring + stage_bytes * (uint32_t)f.slot + (uint32_t)(warp * p.block_bytes),
            (f.tile / p.tok_tiles * wn + warp_n) * 16 * RB, f.step * wk + warp_k, lane, policy);
    };
    auto fetch_inputs = [&](const fetch &f) {
        fetch_x<KIND, NT, THREADS>(
            p, ring + stage_bytes * (uint32_t)f.slot + (uint32_t)(WARPS * p.block_bytes),
            f.tile % p.tok_tiles * NT * 8, f.step, wk);
    };
    const int32_t ahead = count < p.stages - 1 ? count : p.stages - 1;
    const bool few = (int64_t)ahead * p.m * wk * shape_of<KIND>::X_BYTES <= 2 * 16 * THREADS;
    fetch next = {(int32_t)(first / p.steps), (int32_t)(first % p.steps), 0};
    fetch next_x = next;
    for (int32_t s = 0; s < ahead; s++) {
        fetch_w(next);
        advance(next);
        if (few) {
            commit();
        }
    }
    bt_wait_for_previous();
    if (few) {
        load_x<KIND, NT, THREADS>(p, ring, stage_bytes, first, ahead);
    }
    for (int32_t s = few ? ahead : 0; s + 1 < p.stages; s++) {
        if (s < ahead) {
            fetch_inputs(next_x);
            advance(next_x);
        }
        commit();
    }

    Sum acc[RB][NT][4] = {};
    int32_t tile = (int32_t)(first / p.steps);
    int32_t step = (int32_t)(first % p.steps);
    int32_t begin = step; /* of this block's part of the tile */
    int32_t slot = 0;
    for (int32_t i = 0; i < count; i++) {
        wait_groups(p.stages - 2);
        __syncthreads();
        if (i + p.stages - 1 < count) {
            fetch_w(next);
            fetch_inputs(next);
            advance(next);
        }
        commit();
        const int32_t row0 = (tile / p.tok_tiles * wn + warp_n) * 16 * RB;
        const uint32_t w = ring + stage_bytes * (uint32_t)slot + (uint32_t)(warp * p.block_bytes);
        const uint32_t x = ring + stage_bytes * (uint32_t)slot +
                           (uint32_t)(WARPS * p.block_bytes + warp_k * X_CHUNK);
        slot = slot + 1 == p.stages ? 0 : slot + 1;
        if (row0 < p.n_out && step * wk + warp_k < chunks) {
            if constexpr (KIND == W4A16) {
                multiply_w4a16<T, NT>(acc, w, x, p.groups, p.zero, lane);
            } else if constexpr (KIND == W4A8) {
                multiply_w4a8<NT>(acc, w, x, p.groups, p.zero, lane);
            } else if constexpr (KIND == W8A16) {
                multiply_w8a16<T, NT>(acc, w, x, lane);
            } else {
                multiply_plain<KIND, T, NT>(acc, w, x, lane);
            }
        }
        step++;
        if (step < p.steps && i + 1 < count) {
            continue;
        }

        if (i + 1 == count) {
            bt_let_next_begin();
        }
        /* The block's part of a tile is done and goes to memory, from where the block that is last
         * (the only one, when the part is the whole tile) adds up and writes the tile. Fragment f
         * of the tile's row strip warp_n is handled by the warp f % wk of it. */
        const int32_t tok0 = tile % p.tok_tiles * NT * 8;
        const bool whole = begin == 0 && step == p.steps;
        uint4 *mine = p.partial + ((int64_t)blockIdx.x * 2 + (begin == 0)) * FRAGMENTS * THREADS +
                      warp_n * FRAGMENTS * 32 + lane;
        if (wk == 1) {
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
                __stcg(mine + f * 32, bits_of(acc[f / NT][f % NT]));
            }
        } else {
            __syncthreads();
            uint32_t at = exchange + (uint32_t)(warp * FRAGMENTS * 32 + lane) * 16;
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) {
                store_16(at + (uint32_t)f * 512, bits_of(acc[f / NT][f % NT]));
            }
            __syncthreads();
            for (int f = warp_k; f < FRAGMENTS; f += wk) {
                at = exchange + (uint32_t)((warp_n * FRAGMENTS + f) * 32 + lane) * 16;
                uint4 v = load_16(at);
                for (int32_t k = 1; k < wk; k++) {
                    at += (uint32_t)(wn * FRAGMENTS * 512);
                    v = add_bits<KIND>(v, load_16(at));
                }
                __stcg(mine + f * 32, v);
            }
        }
        int32_t from = (int32_t)blockIdx.x;
        int32_t to = from;
        if (!whole) {
            const int64_t unit0 = (int64_t)tile * p.steps;
            from = owner_of(unit0, units, gridDim.x);
            to = owner_of(unit0 + p.steps - 1, units, gridDim.x);
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) {
                is_last = atomicAdd(&p.arrived[tile], 1) == to - from;
                if (is_last != 0) {
                    p.arrived[tile] = 0;
                }
            }
            __syncthreads();
            __threadfence();
        }
        if (whole || is_last != 0) {
            /* The first part begins at 0 and so lies in its block's second place. Several
             * fragments and parts at a time, so that their loads overlap. */
            constexpr int BATCH = FRAGMENTS < 8 ? FRAGMENTS : 8;
            const int64_t block = (int64_t)2 * FRAGMENTS * THREADS;
            for (int f0 = warp_k; f0 < FRAGMENTS; f0 += BATCH * wk) {
                const uint4 *at = p.partial + (warp_n * FRAGMENTS + f0) * 32 + lane;
                uint4 v[BATCH];
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    if (f0 + j * wk < FRAGMENTS) {
                        v[j] = __ldcg(at + from * block + FRAGMENTS * THREADS + j * wk * 32);
                    }
                }
#pragma unroll(16 / BATCH)
                for (int32_t b = from + 1; b <= to; b++) {
                    uint4 u[BATCH];
#pragma unroll
                    for (int j = 0; j < BATCH; j++) {
                        if (f0 + j * wk < FRAGMENTS) {
                            u[j] = __ldcg(at + b * block + j * wk * 32);
                        }
                    }
#pragma unroll
                    for (int j = 0; j < BATCH; j++) {
                        v[j] = add_bits<KIND>(v[j], u[j]);
                    }
                }
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    const int f = f0 + j * wk;
                    if (f < FRAGMENTS) {
                        write_fragment<KIND>(p, row0 + f / NT * 16, tok0 + f % NT * 8, v[j], lane);
                    }
                }
            }
        }
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                acc[f / NT][f % NT][j] = 0;
            }
        }
        begin = 0;
        if (step == p.steps) {
            step = 0;
            tile++;
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- launching ---- */

constexpr int32_t STATIC_BYTES = 256;

/* What does not depend on tiles. */
inline args args_of(const struct bt_cuda_linear *l, int32_t wk, const void *x, const float *x_scale,
                    int32_t m, struct linear_y y)
{
    args p = {};
    p.w = (const uint8_t *)l->w;
    p.w_scale = l->scale;
    p.bias = l->bias;
    p.x = (const uint8_t *)x;
    p.x_scale = x_scale;
    p.x_one = l->x_scale;
    p.y = y;
    p.m = m;
    p.n_out = l->n_out;
    p.n_in = l->n_in;
    p.wk = wk;
    p.block_bytes = Q_BYTES;
    if (l->packed) {
        p.block_bytes = linear_packed_block_bytes(l->group, l->packed_zero);
        p.groups = 128 / l->group;
        p.zero = l->packed_zero;
    }
    return p;
}

/* Launches unless `dry`; false when the GPU's shared memory or the workspaces do not suffice. */
template <kind KIND, class T, int NT>
bool launch(args p, const struct linear_skinny_place &at, bool dry, cudaStream_t stream)
{
    constexpr int FRAGMENTS = shape_of<KIND>::RB * NT;
    const int32_t row_tile = WARPS / p.wk * 16 * shape_of<KIND>::RB;
    const int32_t step = shape_of<KIND>::KC * p.wk;
    p.row_tiles = (p.n_out + row_tile - 1) / row_tile;
    p.tok_tiles = (p.m + NT * 8 - 1) / (NT * 8);
    p.steps = (p.n_in + step - 1) / step;
    const int32_t exchange = p.wk > 1 ? WARPS * FRAGMENTS * 512 : 0;
    const int32_t stage = WARPS * p.block_bytes + p.wk * x_chunk_bytes<KIND, NT>();
    /* A block of threads takes 1 KB for itself beside what it asks for. */
    int32_t per_sm = most_per_sm<NT>() + 1;
    do {
        per_sm--;
        p.stages = ((at.smem_block + 1024) / per_sm - 1024 - STATIC_BYTES - exchange) / stage;
    } while (p.stages < 3 && per_sm > 1);
    p.stages = p.stages > 6 ? 6 : p.stages;
    const int64_t units = (int64_t)p.row_tiles * p.tok_tiles * p.steps;
    int64_t blocks = (int64_t)at.n_sms * per_sm;
    blocks = blocks < units ? blocks : units;
    const int64_t partial = blocks * 2 * FRAGMENTS * THREADS * 16;
    if (p.stages < 3 || partial > at.partial_bytes || units > INT32_MAX ||
        (int64_t)p.row_tiles * p.tok_tiles > at.n_arrived) {
        return false;
    }
    if (dry) {
        return true;
    }
    p.partial = (uint4 *)at.partial;
    p.arrived = at.arrived;
    static bool allowed = false;
    if (!allowed) {
        (void)cudaFuncSetAttribute(skinny_kernel<KIND, T, NT>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   at.smem_block - STATIC_BYTES);
        allowed = true;
    }
    bt_launch({dim3((unsigned)blocks), dim3(THREADS), (size_t)(p.stages * stage + exchange)},
              stream, skinny_kernel<KIND, T, NT>, p);
    return true;
}

/* By the fewest tokens that hold m; INT4 has no registers for more than 32. */
template <kind KIND, class T>
bool launch_for(const args &p, const struct linear_skinny_place &at, bool dry, cudaStream_t stream)
{
    constexpr int MOST = KIND == W4A16 || KIND == W4A8 ? 4 : 8;
    return p.m <= 8    ? launch<KIND, T, 1>(p, at, dry, stream)
           : p.m <= 16 ? launch<KIND, T, 2>(p, at, dry, stream)
           : p.m <= 32 ? launch<KIND, T, 4>(p, at, dry, stream)
                       : launch<KIND, T, MOST>(p, at, dry, stream);
}

} // namespace skinny

bool linear_skinny_16(const skinny::args &p, bool bf16, const struct linear_skinny_place &at,
                      bool dry, cudaStream_t stream);
bool linear_skinny_w8a16(const skinny::args &p, bool bf16, const struct linear_skinny_place &at,
                         bool dry, cudaStream_t stream);
bool linear_skinny_w4a16(const skinny::args &p, bool bf16, const struct linear_skinny_place &at,
                         bool dry, cudaStream_t stream);

#endif
