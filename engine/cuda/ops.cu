/* Row operations: all are bound by memory, so each reads its row once with 16-byte loads, keeps it
 * in registers over the reductions, and writes once. Bytes and measured times: docs/KERNELS.md.
 *
 * Compiled without contraction: where no sum over a row is involved, results are the CPU's to the
 * bit. Rows that are no multiple of 8 numbers, or lie unaligned, take the same code one number at a
 * time.
 */
#include "engine/cuda/num.cuh"
#include "engine/cuda/ops.h"

#include <cuda_runtime.h>

namespace
{

enum {
    PACK = 8,            /* numbers a thread moves at a time */
    SPLIT_THREADS = 256, /* of a block where a row may be split among blocks */
    ROPE_WARPS = 4,
    MAX_HEAD_DIM = 256,
};

/* ---- rows ---- */

template <typename T, int V> __device__ bt_pack<T, V> *packs_of(T *rows, int64_t row, int n)
{
    return reinterpret_cast<bt_pack<T, V> *>(rows + row * n);
}

template <typename T, int V>
__device__ const bt_pack<T, V> *packs_of(const T *rows, int64_t row, int n)
{
    return reinterpret_cast<const bt_pack<T, V> *>(rows + row * n);
}

__device__ int8_t to_int8(float x, float scale)
{
    float r = scale > 0.0f ? rintf(x / scale) : 0.0f;
    r = r < -127.0f ? -127.0f : r;
    r = r > 127.0f ? 127.0f : r;
    return (int8_t)r;
}

/* This thread's packs of its row: first, then every `stride`th. Blocks along y share a row. */
struct span {
    int first, stride, end;
};

__device__ span span_of(int n_packs)
{
    return {(int)(blockIdx.y * blockDim.x + threadIdx.x), (int)(gridDim.y * blockDim.x), n_packs};
}

/* Puts a row where `out` says: value(i) is its pack i, of the compute type. Values are kept in
 * registers from one pass to the next, the first KEPT of a thread, the others computed again. A
 * scale found here needs gridDim.y == 1. */
template <typename T, int V, int KEPT, typename Value>
__device__ void put_row(const bt_cuda_out &out, int64_t row, int n, Value value)
{
    span s = span_of(n / V);
    bt_pack<T, V> kept[KEPT];
    float max_abs = 0.0f;
    T *out16 = static_cast<T *>(out.out16);
    auto first_pass = [&](int i, const bt_pack<T, V> &y) {
        if (out16 != nullptr) {
            packs_of<T, V>(out16, row, n)[i] = y;
        }
        for (int j = 0; j < V; j++) {
            max_abs = fmaxf(max_abs, fabsf(bt_to_f32(y.v[j])));
        }
    };
#pragma unroll
    for (int it = 0; it < KEPT; it++) {
        int i = s.first + it * s.stride;
        if (i < s.end) {
            kept[it] = value(i);
            first_pass(i, kept[it]);
        }
    }
    for (int i = s.first + KEPT * s.stride; i < s.end; i += s.stride) {
        first_pass(i, value(i));
    }
    if (out.out8 == nullptr) {
        return;
    }
    float scale = out.static_scale;
    if (scale == 0.0f) {
        scale = bt_block_reduce(max_abs, 0.0f, bt_max_op()) / 127.0f;
        if (threadIdx.x == 0) {
            out.out_scale[row] = scale;
        }
    }
    auto second_pass = [&](int i, const bt_pack<T, V> &y) {
        bt_pack<int8_t, V> q;
        for (int j = 0; j < V; j++) {
            q.v[j] = to_int8(bt_to_f32(y.v[j]), scale);
        }
        packs_of<int8_t, V>(out.out8, row, n)[i] = q;
    };
#pragma unroll
    for (int it = 0; it < KEPT; it++) {
        int i = s.first + it * s.stride;
        if (i < s.end) {
            second_pass(i, kept[it]);
        }
    }
    for (int i = s.first + KEPT * s.stride; i < s.end; i += s.stride) {
        second_pass(i, value(i));
    }
}

/* ---- kernels ---- */

template <typename T, typename R, int V>
__global__ void embed_kernel(const int32_t *ids, const T *table, int n, R *residual)
{
    int64_t row = blockIdx.x;
    const bt_pack<T, V> *from = packs_of<T, V>(table, ids[row], n);
    span s = span_of(n / V);
    for (int i = s.first; i < s.end; i += s.stride) {
        bt_pack<T, V> x = from[i];
        bt_pack<R, V> y;
        for (int j = 0; j < V; j++) {
            y.v[j] = bt_from_f32<R>(bt_to_f32(x.v[j]));
        }
        packs_of<R, V>(residual, row, n)[i] = y;
    }
}

template <typename R, int V>
__global__ void embed_int8_kernel(const int32_t *ids, const int8_t *table, const __half *scales,
                                  int n, R *residual)
{
    int64_t row = blockIdx.x;
    int32_t id = ids[row];
    const bt_pack<int8_t, V> *from = packs_of<int8_t, V>(table, id, n);
    float scale = bt_to_f32(scales[id]);
    span s = span_of(n / V);
    for (int i = s.first; i < s.end; i += s.stride) {
        bt_pack<int8_t, V> x = from[i];
        bt_pack<R, V> y;
        for (int j = 0; j < V; j++) {
            y.v[j] = bt_from_f32<R>((float)x.v[j] * scale);
        }
        packs_of<R, V>(residual, row, n)[i] = y;
    }
}

template <typename T, typename R, int V>
__device__ bt_pack<R, V> sum_of(const bt_pack<R, V> &x, const bt_pack<T, V> &y)
{
    bt_pack<R, V> sum;
    for (int j = 0; j < V; j++) {
        sum.v[j] = bt_from_f32<R>(bt_to_f32(x.v[j]) + bt_to_f32(y.v[j]));
    }
    return sum;
}

template <typename T, typename R, int V>
__global__ void add_kernel(R *residual, const T *add, int n)
{
    int64_t row = blockIdx.x;
    span s = span_of(n / V);
    for (int i = s.first; i < s.end; i += s.stride) {
        bt_pack<R, V> *x = packs_of<R, V>(residual, row, n) + i;
        *x = sum_of(*x, packs_of<T, V>(add, row, n)[i]);
    }
}

/* One block a row. What a thread reads in the second pass, it wrote itself in the first; up to 8192
 * numbers a row that is in registers. */
template <typename T, typename R, int V>
__global__ void __launch_bounds__(BT_CUDA_MAX_THREADS)
    add_norm_kernel(R *residual, const T *add, const T *weight, float eps, int n, bt_cuda_out out)
{
    int64_t row = blockIdx.x;
    bt_pack<R, V> *x_row = packs_of<R, V>(residual, row, n);
    const bt_pack<T, V> *w_row = packs_of<T, V>(weight, 0, n);
    span s = span_of(n / V);
    float sum = 0.0f;
    auto take = [&](int i) {
        bt_pack<R, V> x = x_row[i];
        if (add != nullptr) {
            x = sum_of(x, packs_of<T, V>(add, row, n)[i]);
            x_row[i] = x;
        }
        for (int j = 0; j < V; j++) {
            float v = bt_to_f32(x.v[j]);
            sum += v * v;
        }
        return x;
    };
    bt_pack<R, V> first = {};
    bt_pack<T, V> first_w = {};
    if (s.first < s.end) {
        first_w = w_row[s.first];
        first = take(s.first);
    }
    for (int i = s.first + s.stride; i < s.end; i += s.stride) {
        (void)take(i);
    }
    float scale = 1.0f / sqrtf(bt_block_reduce(sum, 0.0f, bt_add_op()) / (float)n + eps);
    put_row<T, V, 1>(out, row, n, [&](int i) {
        bt_pack<R, V> x = i == s.first ? first : x_row[i];
        bt_pack<T, V> w = i == s.first ? first_w : w_row[i];
        bt_pack<T, V> y;
        for (int j = 0; j < V; j++) {
            float normal = bt_round<T>(bt_to_f32(x.v[j]) * scale);
            y.v[j] = bt_from_f32<T>(normal * bt_to_f32(w.v[j]));
        }
        return y;
    });
}

template <typename T, int V>
__global__ void __launch_bounds__(BT_CUDA_MAX_THREADS)
    quantise_kernel(const T *x, int n, bt_cuda_out out)
{
    const bt_pack<T, V> *x_row = packs_of<T, V>(x, blockIdx.x, n);
    put_row<T, V, 2>(out, blockIdx.x, n, [&](int i) { return x_row[i]; });
}

template <typename T> __device__ float silu(T x)
{
    float g = bt_to_f32(x);
    return bt_round<T>(g / (1.0f + bt_exp_f32(-g)));
}

template <typename T, int V>
__global__ void __launch_bounds__(BT_CUDA_MAX_THREADS)
    silu_mul_kernel(const T *gate_up, int n, bt_cuda_out out)
{
    const T *row = gate_up + (int64_t)blockIdx.x * 2 * n;
    const bt_pack<T, V> *gate = packs_of<T, V>(row, 0, n);
    const bt_pack<T, V> *up = packs_of<T, V>(row, 1, n);
    put_row<T, V, 2>(out, blockIdx.x, n, [&](int i) {
        bt_pack<T, V> g = gate[i];
        bt_pack<T, V> u = up[i];
        bt_pack<T, V> y;
        for (int j = 0; j < V; j++) {
            y.v[j] = bt_from_f32<T>(silu(g.v[j]) * bt_to_f32(u.v[j]));
        }
        return y;
    });
}

template <typename T, int V> __global__ void medusa_kernel(const T *x, const T *y, int n, T *out)
{
    int64_t row = blockIdx.x;
    span s = span_of(n / V);
    for (int i = s.first; i < s.end; i += s.stride) {
        bt_pack<T, V> a = packs_of<T, V>(x, row, n)[i];
        bt_pack<T, V> b = packs_of<T, V>(y, row, n)[i];
        for (int j = 0; j < V; j++) {
            a.v[j] = bt_from_f32<T>(silu(b.v[j]) + bt_to_f32(a.v[j]));
        }
        packs_of<T, V>(out, row, n)[i] = a;
    }
}

template <int V>
__global__ void gather_kernel(const uint16_t *x, const int32_t *rows, int n, uint16_t *out)
{
    int32_t from = rows[blockIdx.x];
    span s = span_of(n / V);
    for (int i = s.first; i < s.end; i += s.stride) {
        bt_pack<uint16_t, V> y = {};
        if (from >= 0) {
            y = packs_of<uint16_t, V>(x, from, n)[i];
        }
        packs_of<uint16_t, V>(out, blockIdx.x, n)[i] = y;
    }
}

__global__ void take_ids_kernel(int32_t *ids, const int32_t *source, const int32_t *last, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n && source[i] < 0) {
        ids[i] = last[-1 - source[i]];
    }
}

/* ---- heads ---- */

/* Where a layer's keys and values lie in the blocks of a class. */
struct kv_planes {
    enum bt_kv_format format;
    int32_t block_tokens;
    int64_t at[2];  /* K, V: bytes in the block */
    int64_t scales; /* INT8: bytes from the plane to its scales */
};

struct rope_kv {
    kv_planes planes[BT_CUDA_KV_CLASSES];
    uint8_t *blocks;
    int64_t block_bytes;
    const int32_t *position, *segment, *kv_class, *block_table;
    int32_t max_blocks;
    const float *angles; /* [position][2, head_dim / 2] */
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t first_head, n_run; /* of queries, keys and values in a row */
    float eps;
};

/* One lane's share of a head: pairs (i, i + half), N neighbours of each half. */
template <int N> struct pairs {
    float a[N], b[N];
};

/* Chunk c of a lane's pairs starts at this element of the half. */
template <int N> __device__ int pair_of(int c)
{
    return ((int)threadIdx.x % BT_CUDA_WARP + c * BT_CUDA_WARP) * N;
}

template <typename T, int N, int C>
__device__ void load_head(const T *at, int half, pairs<N> (&x)[C])
{
#pragma unroll
    for (int c = 0; c < C; c++) {
        int i = pair_of<N>(c);
        bt_pack<T, N> a = {};
        bt_pack<T, N> b = {};
        if (i < half) {
            a = *reinterpret_cast<const bt_pack<T, N> *>(at + i);
            b = *reinterpret_cast<const bt_pack<T, N> *>(at + half + i);
        }
        for (int j = 0; j < N; j++) {
            x[c].a[j] = bt_to_f32(a.v[j]);
            x[c].b[j] = bt_to_f32(b.v[j]);
        }
    }
}

template <typename T, int N, int C>
__device__ void norm_head(const T *weight, float eps, int half, pairs<N> (&x)[C])
{
    float sum = 0.0f;
    for (int c = 0; c < C; c++) {
        for (int j = 0; j < N; j++) {
            sum += x[c].a[j] * x[c].a[j] + x[c].b[j] * x[c].b[j];
        }
    }
    sum = bt_warp_reduce(sum, bt_add_op());
    float scale = 1.0f / sqrtf(sum / (float)(2 * half) + eps);
    for (int c = 0; c < C; c++) {
        int i = pair_of<N>(c);
        for (int j = 0; i < half && j < N; j++) {
            float wa = bt_to_f32(weight[i + j]);
            float wb = bt_to_f32(weight[half + i + j]);
            x[c].a[j] = bt_round<T>(bt_round<T>(x[c].a[j] * scale) * wa);
            x[c].b[j] = bt_round<T>(bt_round<T>(x[c].b[j] * scale) * wb);
        }
    }
}

template <typename T, int N, int C>
__device__ void rotate_head(const float *angles, int half, pairs<N> (&x)[C])
{
    for (int c = 0; c < C; c++) {
        int i = pair_of<N>(c);
        for (int j = 0; i < half && j < N; j++) {
            float cosine = angles[i + j];
            float sine = angles[half + i + j];
            float a = x[c].a[j];
            float b = x[c].b[j];
            x[c].a[j] = bt_round<T>(a * cosine - b * sine);
            x[c].b[j] = bt_round<T>(b * cosine + a * sine);
        }
    }
}

/* convert(x) to the head that begins at `to`. */
template <int N, int C, typename E, typename Convert>
__device__ void put_head(E *to, int half, const pairs<N> (&x)[C], Convert convert)
{
    for (int c = 0; c < C; c++) {
        int i = pair_of<N>(c);
        if (i < half) {
            bt_pack<E, N> a;
            bt_pack<E, N> b;
            for (int j = 0; j < N; j++) {
                a.v[j] = convert(x[c].a[j]);
                b.v[j] = convert(x[c].b[j]);
            }
            *reinterpret_cast<bt_pack<E, N> *>(to + i) = a;
            *reinterpret_cast<bt_pack<E, N> *>(to + half + i) = b;
        }
    }
}

/* As bt_kv_pool_write: the scale is rounded to FP16 first, the integers are of that scale. */
template <int N, int C>
__device__ void put_int8_head(int8_t *to, __half *scale_at, int half, const pairs<N> (&x)[C])
{
    float max_abs = 0.0f;
    for (int c = 0; c < C; c++) {
        for (int j = 0; j < N; j++) {
            max_abs = fmaxf(max_abs, fmaxf(fabsf(x[c].a[j]), fabsf(x[c].b[j])));
        }
    }
    __half stored = __float2half_rn(bt_warp_reduce(max_abs, bt_max_op()) / 127.0f);
    if (threadIdx.x % BT_CUDA_WARP == 0) {
        *scale_at = stored;
    }
    float scale = __half2float(stored);
    put_head(to, half, x, [&](float y) { return to_int8(y, scale); });
}

template <int N, int C>
__device__ void put_in_pool(const rope_kv &p, int64_t row, int32_t pos, int32_t kv_head, int v,
                            const pairs<N> (&x)[C])
{
    int half = p.head_dim / 2;
    int32_t segment = p.segment[row];
    const kv_planes &l = p.planes[p.kv_class[segment]];
    int32_t block = p.block_table[(int64_t)segment * p.max_blocks + pos / l.block_tokens];
    uint8_t *plane = p.blocks + block * p.block_bytes + l.at[v];
    int64_t head = (int64_t)(pos % l.block_tokens) * p.n_kv_heads + kv_head;
    int64_t element = head * p.head_dim;
    if (l.format == BT_KV_INT8) {
        __half *scale_at = reinterpret_cast<__half *>(plane + l.scales) + head;
        put_int8_head(reinterpret_cast<int8_t *>(plane) + element, scale_at, half, x);
    } else if (l.format == BT_KV_FP16) {
        put_head(reinterpret_cast<__half *>(plane) + element, half, x, bt_from_f32<__half>);
    } else {
        put_head(reinterpret_cast<__nv_bfloat16 *>(plane) + element, half, x,
                 bt_from_f32<__nv_bfloat16>);
    }
}

/* A warp a head; C chunks of 32 N pairs cover half a head. Heads past the queries are keys, then
 * values. */
template <typename T, int N, int C>
__global__ void rope_kv_kernel(rope_kv p, const T *q_norm, const T *k_norm, T *qkv)
{
    int64_t row = blockIdx.x;
    int32_t run = (int32_t)(blockIdx.y * ROPE_WARPS + threadIdx.x / BT_CUDA_WARP);
    int32_t pos = p.position[row];
    if (run >= p.n_run) {
        return;
    }
    int32_t head = p.first_head + run;
    int half = p.head_dim / 2;
    bool is_q = head < p.n_heads;
    bool is_v = head >= p.n_heads + p.n_kv_heads;
    T *at = qkv + (row * (p.n_heads + 2 * p.n_kv_heads) + head) * p.head_dim;
    pairs<N> x[C];
    load_head(at, half, x); /* before the position is looked at, which takes as long to come */
    if (pos < 0) {
        return;
    }
    const T *norm = is_q ? q_norm : k_norm;
    if (!is_v && norm != nullptr) {
        norm_head(norm, p.eps, half, x);
    }
    if (!is_v) {
        rotate_head<T>(p.angles + (int64_t)pos * p.head_dim, half, x);
    }
    if (is_q) {
        put_head(at, half, x, bt_from_f32<T>);
    } else {
        put_in_pool(p, row, pos, (head - p.n_heads) % p.n_kv_heads, is_v, x);
    }
}

/* ---- launches ---- */

/* f(T()) for the compute type. */
template <typename F> void with_compute(bt_cuda_types t, F f)
{
    BT_ASSERT(t.compute == BT_ACT_BF16 || t.compute == BT_ACT_FP16);
    if (t.compute == BT_ACT_BF16) {
        f(__nv_bfloat16());
    } else {
        f(__half());
    }
}

/* f(T(), R()) for the compute and the residual type. */
template <typename F> void with_types(bt_cuda_types t, F f)
{
    BT_ASSERT(t.residual == t.compute || t.residual == BT_ACT_FP32);
    with_compute(t, [&](auto compute) {
        if (t.residual == BT_ACT_FP32) {
            f(compute, float());
        } else {
            f(compute, compute);
        }
    });
}

template <int V> struct width {
    static constexpr int value = V;
};

/* f(width<V>()): V = PACK when rows of n numbers lie on 16-byte boundaries. */
template <typename F> void with_width(int32_t n, F f, std::initializer_list<const void *> rows)
{
    uintptr_t bits = n % PACK == 0 ? 0 : 1;
    for (const void *p : rows) {
        bits |= reinterpret_cast<uintptr_t>(p);
    }
    if (bits % 16 == 0) {
        f(width<PACK>());
    } else {
        f(width<1>());
    }
}

struct shape {
    dim3 grid, block;
};

/* Whole rows by single blocks, packs spread evenly over their threads. */
shape one_block_a_row(int32_t n_rows, int32_t n_packs)
{
    int32_t rounds = (n_packs + BT_CUDA_MAX_THREADS - 1) / BT_CUDA_MAX_THREADS;
    int32_t threads = (n_packs + rounds - 1) / rounds;
    threads = (threads + BT_CUDA_WARP - 1) / BT_CUDA_WARP * BT_CUDA_WARP;
    return {dim3((unsigned)n_rows), dim3((unsigned)threads)};
}

/* Rows split among blocks, a pack a thread. */
shape split_rows(int32_t n_rows, int32_t n_packs)
{
    int32_t splits = (n_packs + SPLIT_THREADS - 1) / SPLIT_THREADS;
    return {dim3((unsigned)n_rows, (unsigned)splits), dim3(SPLIT_THREADS)};
}

shape shape_of(const bt_cuda_out &out, int32_t n_rows, int32_t n_packs)
{
    BT_ASSERT(out.out16 != nullptr || out.out8 != nullptr);
    bool finds_scale = out.out8 != nullptr && out.static_scale == 0.0f;
    BT_ASSERT(!finds_scale || out.out_scale != nullptr);
    return finds_scale ? one_block_a_row(n_rows, n_packs) : split_rows(n_rows, n_packs);
}

} // namespace

void bt_cuda_embed(struct bt_cuda_types t, const int32_t *ids, int32_t n_rows, const void *table,
                   const void *table_scale, int32_t hidden, void *residual,
                   struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && hidden > 0);
    with_types(t, [&](auto compute, auto wide) {
        using T = decltype(compute);
        using R = decltype(wide);
        with_width(hidden,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       shape s = split_rows(n_rows, hidden / V);
                       R *to = static_cast<R *>(residual);
                       if (table_scale != nullptr) {
                           embed_int8_kernel<R, V><<<s.grid, s.block, 0, stream>>>(
                               ids, static_cast<const int8_t *>(table),
                               static_cast<const __half *>(table_scale), hidden, to);
                       } else {
                           embed_kernel<T, R, V><<<s.grid, s.block, 0, stream>>>(
                               ids, static_cast<const T *>(table), hidden, to);
                       }
                   },
                   {table, residual});
    });
}

void bt_cuda_add_norm(struct bt_cuda_types t, void *residual, const void *add, const void *weight,
                      float eps, int32_t n_rows, int32_t n, struct bt_cuda_out out,
                      struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0);
    BT_ASSERT(out.out16 != nullptr || out.out8 != nullptr);
    with_types(t, [&](auto compute, auto wide) {
        using T = decltype(compute);
        using R = decltype(wide);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       shape s = one_block_a_row(n_rows, n / V);
                       add_norm_kernel<T, R, V><<<s.grid, s.block, 0, stream>>>(
                           static_cast<R *>(residual), static_cast<const T *>(add),
                           static_cast<const T *>(weight), eps, n, out);
                   },
                   {residual, add, weight, out.out16, out.out8});
    });
}

void bt_cuda_add(struct bt_cuda_types t, void *residual, const void *add, int32_t n_rows, int32_t n,
                 struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0);
    with_types(t, [&](auto compute, auto wide) {
        using T = decltype(compute);
        using R = decltype(wide);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       shape s = split_rows(n_rows, n / V);
                       add_kernel<T, R, V><<<s.grid, s.block, 0, stream>>>(
                           static_cast<R *>(residual), static_cast<const T *>(add), n);
                   },
                   {residual, add});
    });
}

void bt_cuda_quantise(struct bt_cuda_types t, const void *x16, int32_t n_rows, int32_t n,
                      struct bt_cuda_out out, struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0 && out.out8 != nullptr);
    with_compute(t, [&](auto compute) {
        using T = decltype(compute);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       shape s = shape_of(out, n_rows, n / V);
                       quantise_kernel<T, V>
                           <<<s.grid, s.block, 0, stream>>>(static_cast<const T *>(x16), n, out);
                   },
                   {x16, out.out16, out.out8});
    });
}

void bt_cuda_silu_mul(struct bt_cuda_types t, const void *gate_up, int32_t n_rows, int32_t n,
                      struct bt_cuda_out out, struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0);
    with_compute(t, [&](auto compute) {
        using T = decltype(compute);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       shape s = shape_of(out, n_rows, n / V);
                       silu_mul_kernel<T, V><<<s.grid, s.block, 0, stream>>>(
                           static_cast<const T *>(gate_up), n, out);
                   },
                   {gate_up, out.out16, out.out8});
    });
}

void bt_cuda_medusa_add(struct bt_cuda_types t, const void *x, const void *y, int32_t n_rows,
                        int32_t n, void *out, struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0);
    with_compute(t, [&](auto compute) {
        using T = decltype(compute);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       shape s = split_rows(n_rows, n / V);
                       medusa_kernel<T, V><<<s.grid, s.block, 0, stream>>>(
                           static_cast<const T *>(x), static_cast<const T *>(y), n,
                           static_cast<T *>(out));
                   },
                   {x, y, out});
    });
}

void bt_cuda_gather(const void *x16, const int32_t *rows, int32_t n_rows, int32_t n, void *out16,
                    struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0);
    with_width(n,
               [&](auto w) {
                   constexpr int V = decltype(w)::value;
                   shape s = split_rows(n_rows, n / V);
                   gather_kernel<V><<<s.grid, s.block, 0, stream>>>(
                       static_cast<const uint16_t *>(x16), rows, n, static_cast<uint16_t *>(out16));
               },
               {x16, out16});
}

void bt_cuda_take_ids(int32_t *ids, const int32_t *source, const int32_t *last, int32_t n_rows,
                      struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0);
    unsigned blocks = (unsigned)((n_rows + SPLIT_THREADS - 1) / SPLIT_THREADS);
    take_ids_kernel<<<blocks, SPLIT_THREADS, 0, stream>>>(ids, source, last, n_rows);
}

static kv_planes planes_of(const struct bt_block_layout *l, enum bt_kv_part_id part, int32_t layer)
{
    const struct bt_kv_part *m = &l->parts[part];
    kv_planes p = {};
    p.format = l->format;
    p.block_tokens = l->block_tokens;
    p.at[0] = bt_kv_plane_offset(m, layer, 0);
    p.at[1] = bt_kv_plane_offset(m, layer, 1);
    p.scales = bt_kv_scale_offset(l, m, 0, 0);
    return p;
}

void bt_cuda_rope_kv(struct bt_cuda_types t, const struct bt_cuda_kv *kv, enum bt_kv_part_id part,
                     int32_t layer, const struct bt_cuda_batch *b, struct bt_cuda_rope rope,
                     const void *q_norm, const void *k_norm, float eps, int32_t n_heads, void *qkv,
                     bool write_q, bool write_kv, struct CUstream_st *stream)
{
    const struct bt_kv_part *m = &kv->layout[0].parts[part];
    BT_ASSERT(layer >= 0 && layer < m->n_layers && b->n_rows > 0 && (write_q || write_kv));
    BT_ASSERT(m->head_dim % 2 == 0 && m->head_dim <= MAX_HEAD_DIM);
    rope_kv p = {};
    for (int c = 0; c < BT_CUDA_KV_CLASSES; c++) {
        const struct bt_block_layout *l = &kv->layout[c];
        if (l->block_tokens > 0) {
            BT_ASSERT(l->format == BT_KV_INT8 || l->format == BT_KV_FP16 ||
                      l->format == BT_KV_BF16);
            p.planes[c] = planes_of(l, part, layer);
        }
    }
    p.blocks = kv->blocks;
    p.block_bytes = kv->layout[0].block_bytes;
    p.position = b->position;
    p.segment = b->segment;
    p.kv_class = b->kv_class;
    p.block_table = b->blocks;
    p.max_blocks = b->max_blocks;
    p.angles = rope.table;
    p.n_heads = n_heads;
    p.n_kv_heads = m->n_kv_heads;
    p.head_dim = m->head_dim;
    p.first_head = write_q ? 0 : n_heads;
    p.n_run = (write_kv ? n_heads + 2 * m->n_kv_heads : n_heads) - p.first_head;
    p.eps = eps;
    dim3 grid((unsigned)b->n_rows, (unsigned)((p.n_run + ROPE_WARPS - 1) / ROPE_WARPS));
    dim3 block(ROPE_WARPS * BT_CUDA_WARP);
    with_compute(t, [&](auto compute) {
        using T = decltype(compute);
        const T *q_weight = static_cast<const T *>(q_norm);
        const T *k_weight = static_cast<const T *>(k_norm);
        T *x = static_cast<T *>(qkv);
        if (p.head_dim == 4 * BT_CUDA_WARP) {
            rope_kv_kernel<T, 2, 1><<<grid, block, 0, stream>>>(p, q_weight, k_weight, x);
        } else {
            rope_kv_kernel<T, 1, MAX_HEAD_DIM / 2 / BT_CUDA_WARP>
                <<<grid, block, 0, stream>>>(p, q_weight, k_weight, x);
        }
    });
}
