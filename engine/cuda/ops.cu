/* Row operations: all are bound by memory, so each reads its row once with 16-byte loads, keeps it
 * in registers over the reductions, and writes once. Bytes and measured times: docs/KERNELS.md.
 *
 * Compiled without contraction: where no sum over a row is involved, results are the CPU's to the
 * bit. Rows that are no multiple of 8 numbers, or lie unaligned, take the same code one number at a
 * time.
 */
#include "engine/cuda/launch.cuh"
#include "engine/cuda/num.cuh"
#include "engine/cuda/ops.h"

#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace
{

enum {
    PACK = 8,            /* numbers a thread moves at a time */
    KEPT = 4,            /* packs of a result that a thread keeps between passes */
    NORM_KEPT = 2,       /* packs of a residual */
    ROW_THREADS = 512,   /* of a block that has whole rows, at most */
    ROW_BLOCKS = 2,      /* of those that must fit a multiprocessor */
    SPLIT_THREADS = 256, /* of a block where a row may be split among blocks */
    /* Clusters pay in long rows that are few: their barriers cost a microsecond, and many rows fill
     * the device by themselves. */
    MAX_CLUSTER = 8,
    CLUSTER_PACKS = 1024,
    CLUSTER_ROWS = 64,
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

/* This thread's packs of its row: first, then every `stride`th. Blocks along y share a row. */
struct span {
    int first, stride, end;
};

__device__ span span_of(int n_packs)
{
    return {(int)(blockIdx.y * blockDim.x + threadIdx.x), (int)(gridDim.y * blockDim.x), n_packs};
}

/* The greatest of x over the blocks that share a row: one, or a cluster of them. */
__device__ float row_max(float x)
{
    x = bt_block_reduce(x, 0.0f, bt_max_op());
#if __CUDA_ARCH__ >= 900
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    if (cluster.num_blocks() > 1) {
        __shared__ float of_block;
        if (threadIdx.x == 0) {
            of_block = x;
        }
        cluster.sync();
        for (unsigned i = 0; i < cluster.num_blocks(); i++) {
            x = fmaxf(x, *cluster.map_shared_rank(&of_block, i));
        }
        cluster.sync(); /* nobody's memory ends while another reads it */
    }
#endif
    return x;
}

/* Has the compiler keep a pack as it is from here on, not the floats that it has seen it become. */
template <typename P> __device__ void stay_packed(P *p)
{
    if constexpr (sizeof(P) % sizeof(uint32_t) == 0) {
        uint32_t *words = reinterpret_cast<uint32_t *>(p);
#pragma unroll
        for (size_t i = 0; i < sizeof(P) / sizeof(uint32_t); i++) {
            asm volatile("" : "+r"(words[i]));
        }
    }
}

/* f(i, n) for every pack i of this thread; n counts them, a constant for the first KEPT. */
template <int KEPT, typename F> __device__ void for_packs(int n_packs, F f)
{
    span s = span_of(n_packs);
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        int i = s.first + n * s.stride;
        if (i < s.end) {
            f(i, n);
        }
    }
    for (int i = s.first + KEPT * s.stride; i < s.end; i += s.stride) {
        f(i, KEPT);
    }
}

/* Puts a row where `out` says: value(i, n) is its pack i, of the compute type. The first KEPT of a
 * thread stay in registers from one pass to the next, others are computed again. A scale found here
 * needs the row in one block or one cluster. */
template <typename T, int V, typename Value>
__device__ void put_row(const bt_cuda_out &out, int64_t row, int n, Value value)
{
    bt_pack<T, V> kept[KEPT];
    float max_abs = 0.0f;
    T *out16 = static_cast<T *>(out.out16);
    for_packs<KEPT>(n / V, [&](int i, int which) {
        bt_pack<T, V> y = value(i, which);
        if (which < KEPT) {
            kept[which] = y;
        }
        if (out16 != nullptr) {
            packs_of<T, V>(out16, row, n)[i] = y;
        }
        for (int j = 0; j < V; j++) {
            max_abs = fmaxf(max_abs, fabsf(bt_to_f32(y.v[j])));
        }
    });
    if (out.out8 == nullptr) {
        return;
    }
    for (int i = 0; i < KEPT; i++) {
        stay_packed(&kept[i]);
    }
    float scale = out.static_scale;
    if (scale == 0.0f) {
        scale = row_max(max_abs) / 127.0f;
        if (blockIdx.y == 0 && threadIdx.x == 0) {
            out.out_scale[row] = scale;
        }
    }
    bt_int8_scale to_int8(scale);
    for_packs<KEPT>(n / V, [&](int i, int which) {
        bt_pack<T, V> y = which < KEPT ? kept[which < KEPT ? which : 0] : value(i, which);
        packs_of<int8_t, V>(out.out8, row, n)[i] = to_int8(y);
    });
}

/* ---- kernels ---- */

template <typename T, typename R, int V>
__global__ void embed_kernel(const int32_t *ids, const T *table, int n, R *residual)
{
    bt_let_next_begin();
    bt_wait_for_previous();
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
    bt_let_next_begin();
    bt_wait_for_previous();
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
    bt_let_next_begin();
    bt_wait_for_previous();
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
__global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)
    add_norm_kernel(R *residual, const T *add, const T *weight, float eps, int n, bt_cuda_out out)
{
    int64_t row = blockIdx.x;
    bt_pack<R, V> *x_row = packs_of<R, V>(residual, row, n);
    const bt_pack<T, V> *w_row = packs_of<T, V>(weight, 0, n);
    bt_pack<R, V> x[NORM_KEPT];
    bt_pack<T, V> w[NORM_KEPT];
    bt_let_next_begin();
    for_packs<NORM_KEPT>(n / V, [&](int i, int which) {
        if (which < NORM_KEPT) {
            w[which] = w_row[i];
        }
    });
    bt_wait_for_previous();
    float sum = 0.0f;
    for_packs<NORM_KEPT>(n / V, [&](int i, int which) {
        bt_pack<R, V> here = x_row[i];
        if (add != nullptr) {
            here = sum_of(here, packs_of<T, V>(add, row, n)[i]);
            x_row[i] = here;
        }
        if (which < NORM_KEPT) {
            x[which] = here;
        }
        for (int j = 0; j < V; j++) {
            float v = bt_to_f32(here.v[j]);
            sum += v * v;
        }
    });
    for (int i = 0; i < NORM_KEPT; i++) {
        stay_packed(&x[i]);
    }
    float scale = 1.0f / sqrtf(bt_block_reduce(sum, 0.0f, bt_add_op()) / (float)n + eps);
    put_row<T, V>(out, row, n, [&](int i, int which) {
        int kept = which < NORM_KEPT ? which : 0;
        bt_pack<R, V> here = which < NORM_KEPT ? x[kept] : x_row[i];
        bt_pack<T, V> weights = which < NORM_KEPT ? w[kept] : w_row[i];
        bt_pack<T, V> y;
        for (int j = 0; j < V; j++) {
            float normal = bt_round<T>(bt_to_f32(here.v[j]) * scale);
            y.v[j] = bt_from_f32<T>(normal * bt_to_f32(weights.v[j]));
        }
        return y;
    });
}

template <typename T, int V>
__global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)
    quantise_kernel(const T *x, int n, bt_cuda_out out)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    const bt_pack<T, V> *x_row = packs_of<T, V>(x, blockIdx.x, n);
    put_row<T, V>(out, blockIdx.x, n, [&](int i, int) { return x_row[i]; });
}

template <typename T, int V>
__device__ bt_pack<T, V> silu_mul(const bt_pack<T, V> &gate, const bt_pack<T, V> &up)
{
    bt_pack<T, V> y;
    for (int j = 0; j < V; j++) {
        float g = bt_round<T>(bt_silu(bt_to_f32(gate.v[j])));
        y.v[j] = bt_from_f32<T>(g * bt_to_f32(up.v[j]));
    }
    return y;
}

/* To 16 bits alone: half the registers of the next, so twice the loads in flight. */
template <typename T, int V> __global__ void silu_mul_16bit_kernel(const T *gate_up, int n, T *out)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    const T *row = gate_up + (int64_t)blockIdx.x * 2 * n;
    span s = span_of(n / V);
    for (int i = s.first; i < s.end; i += s.stride) {
        packs_of<T, V>(out, blockIdx.x, n)[i] =
            silu_mul(packs_of<T, V>(row, 0, n)[i], packs_of<T, V>(row, 1, n)[i]);
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)
    silu_mul_kernel(const T *gate_up, int n, bt_cuda_out out)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    const T *row = gate_up + (int64_t)blockIdx.x * 2 * n;
    const bt_pack<T, V> *gate = packs_of<T, V>(row, 0, n);
    const bt_pack<T, V> *up = packs_of<T, V>(row, 1, n);
    put_row<T, V>(out, blockIdx.x, n, [&](int i, int) { return silu_mul(gate[i], up[i]); });
}

template <typename T, int V> __global__ void medusa_kernel(const T *x, const T *y, int n, T *out)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    int64_t row = blockIdx.x;
    span s = span_of(n / V);
    for (int i = s.first; i < s.end; i += s.stride) {
        bt_pack<T, V> a = packs_of<T, V>(x, row, n)[i];
        bt_pack<T, V> b = packs_of<T, V>(y, row, n)[i];
        for (int j = 0; j < V; j++) {
            a.v[j] = bt_from_f32<T>(bt_round<T>(bt_silu(bt_to_f32(b.v[j]))) + bt_to_f32(a.v[j]));
        }
        packs_of<T, V>(out, row, n)[i] = a;
    }
}

template <int V>
__global__ void gather_kernel(const uint16_t *x, const int32_t *rows, int n, uint16_t *out)
{
    bt_let_next_begin();
    bt_wait_for_previous();
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
    bt_let_next_begin();
    bt_wait_for_previous();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n && source[i] < 0) {
        ids[i] = last[-1 - source[i]];
    }
}

/* ---- launches ---- */

/* f(T(), R()) for the compute and the residual type. */
template <typename F> void with_types(bt_cuda_types t, F f)
{
    BT_ASSERT(t.residual == t.compute || t.residual == BT_ACT_FP32);
    bt_with_compute(t.compute, [&](auto compute) {
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

int32_t threads_for(int32_t n_packs)
{
    return (n_packs + BT_CUDA_WARP - 1) / BT_CUDA_WARP * BT_CUDA_WARP;
}

/* Whole rows by single blocks, packs spread evenly over their threads: two a thread in long rows,
 * so that a multiprocessor has room for several blocks. */
bt_grid one_block_a_row(int32_t n_rows, int32_t n_packs)
{
    int32_t rounds = (n_packs + ROW_THREADS - 1) / ROW_THREADS;
    rounds = rounds < 2 && n_packs > ROW_THREADS / 2 ? 2 : rounds;
    int32_t threads = threads_for((n_packs + rounds - 1) / rounds);
    return {dim3((unsigned)n_rows), dim3((unsigned)threads)};
}

/* Rows split among blocks, a pack a thread. */
bt_grid split_rows(int32_t n_rows, int32_t n_packs)
{
    int32_t splits = (n_packs + SPLIT_THREADS - 1) / SPLIT_THREADS;
    return {dim3((unsigned)n_rows, (unsigned)splits), dim3(SPLIT_THREADS)};
}

bool has_clusters()
{
    static const int major = [] {
        int device = 0;
        int value = 0;
        (void)cudaGetDevice(&device);
        (void)cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, device);
        return value;
    }();
    return major >= 9;
}

bt_grid shape_of(const bt_cuda_out &out, int32_t n_rows, int32_t n_packs)
{
    BT_ASSERT(out.out16 != nullptr || out.out8 != nullptr);
    if (out.out8 == nullptr || out.static_scale > 0.0f) {
        return split_rows(n_rows, n_packs);
    }
    BT_ASSERT(out.out_scale != nullptr);
    int32_t blocks = (n_packs + SPLIT_THREADS - 1) / SPLIT_THREADS;
    blocks = blocks < MAX_CLUSTER ? blocks : MAX_CLUSTER;
    if (n_packs <= CLUSTER_PACKS || n_rows > CLUSTER_ROWS || !has_clusters()) {
        return one_block_a_row(n_rows, n_packs);
    }
    bt_grid g = one_block_a_row(n_rows, (n_packs + blocks - 1) / blocks);
    g.blocks.y = (unsigned)blocks;
    g.cluster.y = (unsigned)blocks;
    return g;
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
                       bt_grid g = split_rows(n_rows, hidden / V);
                       R *to = static_cast<R *>(residual);
                       if (table_scale != nullptr) {
                           bt_launch(g, stream, embed_int8_kernel<R, V>, ids,
                                     static_cast<const int8_t *>(table),
                                     static_cast<const __half *>(table_scale), hidden, to);
                       } else {
                           bt_launch(g, stream, embed_kernel<T, R, V>, ids,
                                     static_cast<const T *>(table), hidden, to);
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
                       bt_launch(one_block_a_row(n_rows, n / V), stream, add_norm_kernel<T, R, V>,
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
                       bt_launch(split_rows(n_rows, n / V), stream, add_kernel<T, R, V>,
                                 static_cast<R *>(residual), static_cast<const T *>(add), n);
                   },
                   {residual, add});
    });
}

void bt_cuda_quantise(struct bt_cuda_types t, const void *x16, int32_t n_rows, int32_t n,
                      struct bt_cuda_out out, struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0 && out.out8 != nullptr);
    bt_with_compute(t.compute, [&](auto compute) {
        using T = decltype(compute);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       bt_launch(shape_of(out, n_rows, n / V), stream, quantise_kernel<T, V>,
                                 static_cast<const T *>(x16), n, out);
                   },
                   {x16, out.out16, out.out8});
    });
}

void bt_cuda_silu_mul(struct bt_cuda_types t, const void *gate_up, int32_t n_rows, int32_t n,
                      struct bt_cuda_out out, struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0);
    bt_with_compute(t.compute, [&](auto compute) {
        using T = decltype(compute);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       bt_grid g = shape_of(out, n_rows, n / V);
                       const T *from = static_cast<const T *>(gate_up);
                       if (out.out8 != nullptr) {
                           bt_launch(g, stream, silu_mul_kernel<T, V>, from, n, out);
                       } else {
                           bt_launch(g, stream, silu_mul_16bit_kernel<T, V>, from, n,
                                     static_cast<T *>(out.out16));
                       }
                   },
                   {gate_up, out.out16, out.out8});
    });
}

void bt_cuda_medusa_add(struct bt_cuda_types t, const void *x, const void *y, int32_t n_rows,
                        int32_t n, void *out, struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0 && n > 0);
    bt_with_compute(t.compute, [&](auto compute) {
        using T = decltype(compute);
        with_width(n,
                   [&](auto w) {
                       constexpr int V = decltype(w)::value;
                       bt_launch(split_rows(n_rows, n / V), stream, medusa_kernel<T, V>,
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
                   bt_launch(split_rows(n_rows, n / V), stream, gather_kernel<V>,
                             static_cast<const uint16_t *>(x16), rows, n,
                             static_cast<uint16_t *>(out16));
               },
               {x16, out16});
}

void bt_cuda_take_ids(int32_t *ids, const int32_t *source, const int32_t *last, int32_t n_rows,
                      struct CUstream_st *stream)
{
    BT_ASSERT(n_rows > 0);
    unsigned blocks = (unsigned)((n_rows + SPLIT_THREADS - 1) / SPLIT_THREADS);
    bt_launch({dim3(blocks), dim3(SPLIT_THREADS)}, stream, take_ids_kernel, ids, source, last,
              n_rows);
}
