/* From packed projections to rotated queries and the KV pool, in one reading of the row. A group of
 * lanes has a head; with heads of 128 and 64 a lane moves 16 bytes of each half at a time, so that
 * enough loads are in flight to fill the memory's pipe.
 *
 * Compiled without contraction: but for the sum of a norm, results are the CPU's to the bit.
 */
#include "engine/cuda/launch.cuh"
#include "engine/cuda/num.cuh"
#include "engine/cuda/ops.h"

#include <cuda_runtime.h>

namespace
{

enum { WARPS = 4, MAX_HEAD_DIM = 256, WIDE = 8 };

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

/* How a head lies in a group of G lanes: each has C chunks of N neighbours in either half. */
template <int N, int G, int C> struct lanes {
    static constexpr int n = N, group = G, chunks = C, heads_a_warp = BT_CUDA_WARP / G;
};

/* A lane's share of a head: pairs (i, i + half). */
template <typename L> struct share {
    bt_pack<float, L::n> a[L::chunks], b[L::chunks];
};

template <typename L> __device__ int lane_in_group()
{
    return (int)threadIdx.x % L::group;
}

/* Where chunk c of this lane starts in the half. */
template <typename L> __device__ int start_of(int c)
{
    return (lane_in_group<L>() + c * L::group) * L::n;
}

template <typename L, typename Op> __device__ float group_reduce(float x, Op op)
{
    int first = (int)threadIdx.x % BT_CUDA_WARP / L::group * L::group;
    uint32_t mask = (uint32_t)(((uint64_t)1 << L::group) - 1) << first;
    for (int d = L::group / 2; d > 0; d /= 2) {
        x = op(x, __shfl_xor_sync(mask, x, d));
    }
    return x;
}

template <typename L, typename T> __device__ void load_pairs(const T *from, int half, share<L> *x)
{
#pragma unroll
    for (int c = 0; c < L::chunks; c++) {
        int i = start_of<L>(c);
        bt_pack<T, L::n> a = {};
        bt_pack<T, L::n> b = {};
        if (i < half) {
            a = *reinterpret_cast<const bt_pack<T, L::n> *>(from + i);
            b = *reinterpret_cast<const bt_pack<T, L::n> *>(from + half + i);
        }
        for (int j = 0; j < L::n; j++) {
            x->a[c].v[j] = bt_to_f32(a.v[j]);
            x->b[c].v[j] = bt_to_f32(b.v[j]);
        }
    }
}

template <typename E> struct to_16bit {
    template <int N> __device__ bt_pack<E, N> operator()(const bt_pack<float, N> &x) const
    {
        bt_pack<E, N> y;
        for (int j = 0; j < N; j++) {
            y.v[j] = bt_from_f32<E>(x.v[j]);
        }
        return y;
    }
};

/* convert(x) to the head that begins at `to`. */
template <typename L, typename E, typename Convert>
__device__ void put_pairs(E *to, int half, const share<L> &x, Convert convert)
{
#pragma unroll
    for (int c = 0; c < L::chunks; c++) {
        int i = start_of<L>(c);
        if (i < half) {
            *reinterpret_cast<bt_pack<E, L::n> *>(to + i) = convert(x.a[c]);
            *reinterpret_cast<bt_pack<E, L::n> *>(to + half + i) = convert(x.b[c]);
        }
    }
}

/* f(a, b) for each pair of numbers of two shares. */
template <typename L, typename F> __device__ void for_pairs(share<L> *x, const share<L> &y, F f)
{
#pragma unroll
    for (int c = 0; c < L::chunks; c++) {
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            f(x->a[c].v[j], x->b[c].v[j], y.a[c].v[j], y.b[c].v[j]);
        }
    }
}

template <typename T, typename L>
__device__ void norm_head(const T *weight, float eps, int half, share<L> *x)
{
    share<L> w;
    load_pairs<L>(weight, half, &w);
    float sum = 0.0f;
    for_pairs(x, w, [&](float a, float b, float, float) { sum += a * a + b * b; });
    sum = group_reduce<L>(sum, bt_add_op());
    float scale = 1.0f / sqrtf(sum / (float)(2 * half) + eps);
    for_pairs(x, w, [&](float &a, float &b, float wa, float wb) {
        a = bt_round<T>(bt_round<T>(a * scale) * wa);
        b = bt_round<T>(bt_round<T>(b * scale) * wb);
    });
}

template <typename T, typename L> __device__ void rotate_head(const share<L> &angles, share<L> *x)
{
    for_pairs(x, angles, [&](float &a, float &b, float cosine, float sine) {
        float ra = a * cosine - b * sine;
        float rb = b * cosine + a * sine;
        a = bt_round<T>(ra);
        b = bt_round<T>(rb);
    });
}

/* As bt_kv_pool_write: the scale is rounded to FP16 first, the integers are of that scale. */
template <typename L>
__device__ void put_int8_head(int8_t *to, __half *scale_at, int half, share<L> *x)
{
    float max_abs = 0.0f;
    for_pairs(x, *x, [&](float a, float b, float, float) {
        max_abs = fmaxf(max_abs, fmaxf(fabsf(a), fabsf(b)));
    });
    __half stored = __float2half_rn(group_reduce<L>(max_abs, bt_max_op()) / 127.0f);
    if (lane_in_group<L>() == 0) {
        *scale_at = stored;
    }
    put_pairs(to, half, *x, bt_int8_scale(__half2float(stored)));
}

/* Where a head of a token goes in the pool. */
struct place {
    enum bt_kv_format format;
    uint8_t *plane;
    int64_t head, scales;
};

__device__ place place_of(const rope_kv &p, int64_t row, int32_t pos, int32_t kv_head, int v)
{
    int32_t segment = p.segment[row];
    const kv_planes &l = p.planes[p.kv_class[segment]];
    int32_t block = p.block_table[(int64_t)segment * p.max_blocks + pos / l.block_tokens];
    int64_t head = (int64_t)(pos % l.block_tokens) * p.n_kv_heads + kv_head;
    return {l.format, p.blocks + block * p.block_bytes + l.at[v], head, l.scales};
}

template <typename L> __device__ void put_in_pool(const place &to, int32_t head_dim, share<L> *x)
{
    int half = head_dim / 2;
    int64_t element = to.head * head_dim;
    if (to.format == BT_KV_INT8) {
        __half *scale_at = reinterpret_cast<__half *>(to.plane + to.scales) + to.head;
        put_int8_head(reinterpret_cast<int8_t *>(to.plane) + element, scale_at, half, x);
    } else if (to.format == BT_KV_FP16) {
        put_pairs(reinterpret_cast<__half *>(to.plane) + element, half, *x, to_16bit<__half>());
    } else {
        put_pairs(reinterpret_cast<__nv_bfloat16 *>(to.plane) + element, half, *x,
                  to_16bit<__nv_bfloat16>());
    }
}

/* Heads past the queries are keys, then values. */
template <typename T, typename L>
__global__ void __launch_bounds__(WARPS *BT_CUDA_WARP)
    rope_kv_kernel(rope_kv p, const T *q_norm, const T *k_norm, T *qkv)
{
    int64_t row = blockIdx.x;
    int32_t run = (int32_t)(blockIdx.y * WARPS * BT_CUDA_WARP + threadIdx.x) / L::group;
    bt_let_next_begin();
    int32_t pos = p.position[row];
    if (run >= p.n_run || pos < 0) {
        bt_wait_for_previous();
        return;
    }
    int32_t head = p.first_head + run;
    int half = p.head_dim / 2;
    bool is_q = head < p.n_heads;
    bool is_v = head >= p.n_heads + p.n_kv_heads;
    T *at = qkv + (row * (p.n_heads + 2 * p.n_kv_heads) + head) * p.head_dim;
    place to = {};
    if (!is_q) {
        to = place_of(p, row, pos, (head - p.n_heads) % p.n_kv_heads, is_v);
    }
    share<L> angles;
    if (!is_v) {
        load_pairs<L>(p.angles + (int64_t)pos * p.head_dim, half, &angles);
    }
    bt_wait_for_previous();
    share<L> x;
    load_pairs<L>(at, half, &x);
    if (!is_v) {
        const T *norm = is_q ? q_norm : k_norm;
        if (norm != nullptr) {
            norm_head(norm, p.eps, half, &x);
        }
        rotate_head<T>(angles, &x);
    }
    if (is_q) {
        put_pairs(at, half, x, to_16bit<T>());
    } else {
        put_in_pool(to, p.head_dim, &x);
    }
}

kv_planes planes_of(const struct bt_block_layout *l, enum bt_kv_part_id part, int32_t layer)
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

/* Whether lanes can move whole packs: every head begins on a multiple of 16 bytes. */
bool lies_wide(const rope_kv &p, const void *q_norm, const void *k_norm, const void *qkv)
{
    uint64_t bits = (uint64_t)p.block_bytes;
    for (const kv_planes &l : p.planes) {
        bits |= (uint64_t)l.at[0] | (uint64_t)l.at[1];
    }
    for (const void *at : {(const void *)p.blocks, (const void *)p.angles, q_norm, k_norm, qkv}) {
        bits |= reinterpret_cast<uintptr_t>(at);
    }
    return bits % 16 == 0;
}

template <typename T, typename L>
void launch(const rope_kv &p, int32_t n_rows, const void *q_norm, const void *k_norm, void *qkv,
            cudaStream_t stream)
{
    int32_t heads_a_block = WARPS * L::heads_a_warp;
    dim3 grid((unsigned)n_rows, (unsigned)((p.n_run + heads_a_block - 1) / heads_a_block));
    bt_launch({grid, dim3(WARPS * BT_CUDA_WARP)}, stream, rope_kv_kernel<T, L>, p,
              static_cast<const T *>(q_norm), static_cast<const T *>(k_norm),
              static_cast<T *>(qkv));
}

} // namespace

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
    bool wide = lies_wide(p, q_norm, k_norm, qkv);
    bt_with_compute(t.compute, [&](auto compute) {
        using T = decltype(compute);
        if (wide && p.head_dim == 128) {
            launch<T, lanes<WIDE, 8, 1>>(p, b->n_rows, q_norm, k_norm, qkv, stream);
        } else if (wide && p.head_dim == 64) {
            launch<T, lanes<WIDE, 4, 1>>(p, b->n_rows, q_norm, k_norm, qkv, stream);
        } else {
            constexpr int chunks = MAX_HEAD_DIM / 2 / BT_CUDA_WARP;
            launch<T, lanes<1, BT_CUDA_WARP, chunks>>(p, b->n_rows, q_norm, k_norm, qkv, stream);
        }
    });
}
