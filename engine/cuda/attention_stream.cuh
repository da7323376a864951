/* Attention that reads each key and value once, for up to 16 packed query rows: decode and
 * verification. Keys and values go from memory to registers, from there to the tensor cores.
 *
 * The products are S^T = K q^T and O^T = V^T p^T: keys, and dimensions of values, are the 16 rows
 * of an mma; query rows are its 8 columns, so that one query head wastes least. Since the summed
 * index may be permuted, 16 bytes as they lie in memory are a lane's share of an operand: of K, 4
 * lanes read 64 bytes of a key; of V, 8 lanes read 128 bytes of a value, and two keys' values are
 * interleaved by byte_perm. p is transposed by movmatrix. No shared memory until the end.
 *
 * A block has 4 warps; each takes keys of its own in steps, of one KV head. While a step's scores
 * are made the next step's keys are on their way, and the same with values. At the end the warps of
 * a head are merged, and the splits of a tile by the block that ends last: in order of splits, so
 * that results do not depend on who was last.
 */
#ifndef BT_ENGINE_CUDA_ATTENTION_STREAM_CUH
#define BT_ENGINE_CUDA_ATTENTION_STREAM_CUH

#include "engine/cuda/attention_kernels.cuh"

/* How one step of a warp lies in registers. */
template <attn_kv KV, int D> struct stream_shape {
    static constexpr int ELEMENT = KV == ATTN_INT8 ? 1 : 2; /* bytes */
    static constexpr int ROW = D * ELEMENT;                 /* bytes */
    static constexpr int KEYS = ROW >= 256 ? 16 : 32;       /* of a step */
    static constexpr int K_LOADS = ROW / 64;                /* 16 bytes each, of a lane and key */
    static constexpr int K_RUN = 16 / ELEMENT;              /* elements of such a load */
    static constexpr int V_BYTES = ROW / 8 < 16 ? ROW / 8 : 16; /* of a lane's load of a value */
    static constexpr int V_WORDS = V_BYTES / 4;
    static constexpr int V_RUN = V_BYTES / ELEMENT;
    static constexpr int V_LOADS = D / (8 * V_RUN);
    static constexpr int V_KEYS = KEYS / 4; /* values of a step that a lane reads */
};

/* WORDS 4-byte words at p. Pools with odd blocks are aligned to 2 bytes only. */
template <int WORDS, bool ALIGNED>
static __device__ __forceinline__ void stream_load(uint32_t (&x)[WORDS], const uint8_t *p)
{
    if (!ALIGNED) {
        const uint16_t *h = reinterpret_cast<const uint16_t *>(p);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            x[i] = h[2 * i] | (uint32_t)h[2 * i + 1] << 16;
        }
    } else if (WORDS == 4) {
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2 % WORDS]), "=r"(x[3 % WORDS])
                     : "l"(p));
    } else {
        asm volatile("ld.global.nc.L1::no_allocate.L2::64B.v2.u32 {%0,%1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1])
                     : "l"(p));
    }
}

static __device__ __forceinline__ uint32_t stream_transpose(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Maximum and sum over the lanes that hold the same query rows. */
static __device__ __forceinline__ float stream_max(float x)
{
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lanes));
    }
    return x;
}

static __device__ __forceinline__ float stream_sum(float x)
{
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
        x += __shfl_xor_sync(0xffffffff, x, lanes);
    }
    return x;
}

/* One warp's keys, values and their scales of a step. */
template <attn_kv KV, int D> struct stream_step {
    using shape = stream_shape<KV, D>;
    uint32_t k[shape::KEYS / 8][shape::K_LOADS][4];
    uint32_t v[shape::V_KEYS][shape::V_LOADS][shape::V_WORDS];
};

/* S^T of the step: s[i] holds keys 16 i + g and 16 i + 8 + g, query rows 2t and 2t + 1. */
template <attn_kv KV, int D, int TILES>
static __device__ __forceinline__ void
stream_scores(const uint32_t (&k)[stream_shape<KV, D>::KEYS / 8][stream_shape<KV, D>::K_LOADS][4],
              const uint32_t (&q)[TILES][D / 16][2],
              float (&s)[TILES][stream_shape<KV, D>::KEYS / 16][4])
{
    using shape = stream_shape<KV, D>;
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            s[n][i][0] = s[n][i][1] = s[n][i][2] = s[n][i][3] = 0.0f;
        }
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            uint32_t a[4];
            if (KV == ATTN_INT8) {
                uint32_t low = k[2 * i][c / 4][c % 4] ^ 0x80808080;
                uint32_t high = k[2 * i + 1][c / 4][c % 4] ^ 0x80808080;
                a[0] = attn_int8_pair<0>(low);
                a[1] = attn_int8_pair<0>(high);
                a[2] = attn_int8_pair<1>(low);
                a[3] = attn_int8_pair<1>(high);
            } else {
                a[0] = k[2 * i][c / 2][c % 2 * 2];
                a[1] = k[2 * i + 1][c / 2][c % 2 * 2];
                a[2] = k[2 * i][c / 2][c % 2 * 2 + 1];
                a[3] = k[2 * i + 1][c / 2][c % 2 * 2 + 1];
            }
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                attn_mma<attn_pack<KV>::BF16>(s[n][i], a[0], a[1], a[2], a[3], q[n][c][0],
                                              q[n][c][1]);
            }
        }
    }
}

/* Operand V^T of 16 keys from words w of values 2t, 2t+1, 2t+8, 2t+9: rows g and g + 8 are two
 * neighbouring dimensions. HALF: the word's lower or upper such pair (INT8). */
template <attn_kv KV, int HALF>
static __device__ __forceinline__ void stream_value_operand(uint32_t (&a)[4], uint32_t w0,
                                                            uint32_t w1, uint32_t w8, uint32_t w9)
{
    if (KV == ATTN_INT8) {
        uint32_t low = __byte_perm(w0, w1, HALF ? 0x7362 : 0x5140) ^ 0x80808080;
        uint32_t high = __byte_perm(w8, w9, HALF ? 0x7362 : 0x5140) ^ 0x80808080;
        a[0] = attn_int8_pair<0>(low);
        a[1] = attn_int8_pair<1>(low);
        a[2] = attn_int8_pair<0>(high);
        a[3] = attn_int8_pair<1>(high);
    } else {
        a[0] = __byte_perm(w0, w1, 0x5410);
        a[1] = __byte_perm(w0, w1, 0x7632);
        a[2] = __byte_perm(w8, w9, 0x5410);
        a[3] = __byte_perm(w8, w9, 0x7632);
    }
}

/* O^T += V^T p^T: o[m] holds dimensions 2 m' and 2 m' + 1 of a lane's run, query rows 2t, 2t+1. */
template <attn_kv KV, int D, int TILES>
static __device__ __forceinline__ void
stream_mix(const uint32_t (&v)[stream_shape<KV, D>::V_KEYS][stream_shape<KV, D>::V_LOADS]
                              [stream_shape<KV, D>::V_WORDS],
           const uint32_t (&p)[TILES][stream_shape<KV, D>::KEYS / 16][2],
           float (&o)[TILES][D / 16][4])
{
    using shape = stream_shape<KV, D>;
    constexpr int PAIRS = 4 / (2 * shape::ELEMENT); /* pairs of dimensions in a word */
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++) {
#pragma unroll
        for (int w = 0; w < shape::V_LOADS * shape::V_WORDS; w++) {
            const int load = w / shape::V_WORDS;
            const int word = w % shape::V_WORDS;
#pragma unroll
            for (int half = 0; half < PAIRS; half++) {
                uint32_t a[4];
                if (half == 0) {
                    stream_value_operand<KV, 0>(a, v[4 * i][load][word], v[4 * i + 1][load][word],
                                                v[4 * i + 2][load][word], v[4 * i + 3][load][word]);
                } else {
                    stream_value_operand<KV, 1>(a, v[4 * i][load][word], v[4 * i + 1][load][word],
                                                v[4 * i + 2][load][word], v[4 * i + 3][load][word]);
                }
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    attn_mma<attn_pack<KV>::BF16>(o[n][w * PAIRS + half], a[0], a[1], a[2], a[3],
                                                  p[n][i][0], p[n][i][1]);
                }
            }
        }
    }
}

/* Merges the splits of a tile and writes the result: called by the block that ended last. */
template <int D, int ROWS>
static __device__ __forceinline__ void stream_merge(const attn_args &a, const bt_attn_item &item,
                                                    int head0, int n_rows, int first_row)
{
    for (int x = threadIdx.x; x < a.block_heads * ROWS * (D / 4); x += blockDim.x) {
        int d = x % (D / 4) * 4;
        int row = x / (D / 4) % ROWS;
        int head = head0 + x / (D / 4) / ROWS;
        if (item.row0 + row >= n_rows) {
            continue;
        }
        float max = -INFINITY;
        float sum = 0.0f;
        float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
        for (int split = 0; split < item.n_splits; split++) {
            int64_t at = ((int64_t)(item.partial + split) * a.n_kv_heads + head) * ROWS + row;
            float2 ml = __ldcg(&a.partial_ml[at]);
            float4 part = __ldcg(reinterpret_cast<const float4 *>(&a.partial[at * D + d]));
            float larger = fmaxf(max, ml.x);
            float keep = attn_exp2(max - attn_base(larger));
            float add = attn_exp2(ml.x - attn_base(larger));
            max = larger;
            sum = sum * keep + ml.y * add;
            o.x = o.x * keep + part.x * add;
            o.y = o.y * keep + part.y * add;
            o.z = o.z * keep + part.z * add;
            o.w = o.w * keep + part.w * add;
        }
        int r = item.row0 + row;
        int64_t to =
            ((int64_t)(first_row + r / a.group) * a.n_heads + head * a.group + r % a.group) * D + d;
        *reinterpret_cast<uint2 *>(&a.out[to]) = make_uint2(attn_out(o.x / sum, o.y / sum, a.bf16),
                                                            attn_out(o.z / sum, o.w / sum, a.bf16));
    }
}

/* Whether this block is the last of the tile's splits; the count starts anew then. */
static __device__ __forceinline__ bool stream_is_last(const attn_args &a, const bt_attn_item &item,
                                                      int head0)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t *count = &a.finished[item.tile * a.n_kv_heads + head0];
        last = atomicAdd(count, 1) == item.n_splits - 1;
        if (last) {
            *count = 0;
        }
    }
    __syncthreads();
    __threadfence();
    return last;
}

template <attn_kv KV, int D, int ROWS, bool ALIGNED>
static __global__ void __launch_bounds__(32 * ATTN_WARPS, ROWS == 8 ? 3 : 2)
    stream_kernel(const attn_args a)
{
    using shape = stream_shape<KV, D>;
    constexpr int TILES = ROWS / 8;
    constexpr int KEYS = shape::KEYS;
    constexpr int PAD = D + 4; /* floats of a row in shared memory */
    __shared__ __align__(16) float merged[ATTN_WARPS][ROWS][PAD];
    __shared__ float2 merged_ml[ATTN_WARPS][ROWS];

    const bt_attn_list *list = &reinterpret_cast<const bt_attn_plan *>(a.plan)->lists[a.list];
    const int n_groups = a.n_kv_heads / a.block_heads;
    const int index = blockIdx.x / n_groups;
    if (index >= list->n_items) {
        return;
    }
    const bt_attn_item item =
        reinterpret_cast<const bt_attn_item *>(a.plan + list->items_at)[index];
    const int head0 = (int)blockIdx.x % n_groups * a.block_heads;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const int head = head0 + warp % a.block_heads;
    const int first_row = a.first_row[item.segment];
    const int n_rows = (a.first_row[item.segment + 1] - first_row) * a.group;
    const int pos0 = a.pos0[item.segment];
    const int32_t *table = a.blocks + (int64_t)item.segment * a.max_blocks;

    /* The step's bytes: lane i finds the row of key i. */
    const int64_t token_bytes = (int64_t)a.n_kv_heads * shape::ROW;
    const uint8_t *keys = a.keys + (int64_t)head * shape::ROW;
    int64_t row = 0;
    int64_t next_row = 0;
    const uint8_t *next_scale = nullptr;
    uint16_t k_scale = 0;
    uint16_t v_scale = 0;
    stream_step<KV, D> step;
    auto find_rows = [&](int from) {
        int key = min(from + lane % KEYS, item.to - 1);
        int block = key / a.block_tokens;
        int slot = key - block * a.block_tokens;
        int64_t base = table[block] * a.block_bytes;
        next_row = base + slot * token_bytes;
        if (KV == ATTN_INT8) {
            next_scale = a.keys + base + a.scales + 2 * (slot * a.n_kv_heads + head);
        }
    };
    auto load_keys = [&]() {
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
            const uint8_t *p = keys + __shfl_sync(0xffffffff, next_row, 8 * i + g) + 16 * t;
#pragma unroll
            for (int j = 0; j < shape::K_LOADS; j++) {
                stream_load<4, ALIGNED>(step.k[i][j], p + 64 * j);
            }
        }
    };
    auto load_values = [&]() {
#pragma unroll
        for (int i = 0; i < shape::V_KEYS; i++) {
            int key = i / 4 * 16 + i % 4 / 2 * 8 + 2 * t + i % 2;
            const uint8_t *p =
                keys + a.keys_to_values + __shfl_sync(0xffffffff, row, key) + shape::V_BYTES * g;
#pragma unroll
            for (int j = 0; j < shape::V_LOADS; j++) {
                stream_load<shape::V_WORDS, ALIGNED>(step.v[i][j], p + 8 * shape::V_BYTES * j);
            }
        }
    };
    auto load_scales = [&]() {
        if (KV == ATTN_INT8) {
            k_scale = *reinterpret_cast<const uint16_t *>(next_scale);
            v_scale = *reinterpret_cast<const uint16_t *>(next_scale + a.keys_to_values);
        }
    };

    const int stride = ATTN_WARPS / a.block_heads * KEYS;
    int at = item.from + warp / a.block_heads * KEYS;
    if (at < item.to) {
        find_rows(at);
        load_scales();
        load_keys();
        row = next_row;
        load_values();
        if (at + stride < item.to) {
            find_rows(at + stride);
        }
    }

    /* Query rows: g of each tile as operand, 2t and 2t + 1 of each tile in scores and sums. */
    uint32_t q[TILES][D / 16][2];
    int position[TILES][2];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int r = item.row0 + 8 * n + g;
        bool live = r < n_rows;
        const uint16_t *src = a.q + (int64_t)(first_row + r / a.group) * a.q_stride +
                              (head * a.group + r % a.group) * D;
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            int d = c / (shape::K_RUN / 4) * 4 * shape::K_RUN + t * shape::K_RUN +
                    c % (shape::K_RUN / 4) * 4;
            uint2 x = live ? *reinterpret_cast<const uint2 *>(src + d) : make_uint2(0, 0);
            q[n][c][0] = attn_convert<KV>(x.x, a.bf16);
            q[n][c][1] = attn_convert<KV>(x.y, a.bf16);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int mine = item.row0 + 8 * n + 2 * t + j;
            position[n][j] = mine < n_rows ? pos0 + mine / a.group : -1;
        }
    }

    float o[TILES][D / 16][4];
    float max[TILES][2];
    float sum[TILES][2];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        max[n][0] = max[n][1] = -INFINITY;
        sum[n][0] = sum[n][1] = 0.0f;
#pragma unroll
        for (int m = 0; m < D / 16; m++) {
            o[n][m][0] = o[n][m][1] = o[n][m][2] = o[n][m][3] = 0.0f;
        }
    }

    for (; at < item.to; at += stride) {
        float s[TILES][KEYS / 16][4];
        stream_scores<KV, D, TILES>(step.k, q, s);
        float k_factor = a.scale_log2 * attn_scale(k_scale);
        float v_factor = attn_scale(v_scale);
        const bool more = at + stride < item.to;
        if (more) {
            load_scales();
            load_keys();
            row = next_row;
        }
        uint32_t p[TILES][KEYS / 16][2];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            float high[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int x = 0; x < KEYS / 4; x++) {
                int i = x / 4;
                int j = x % 2;
                int key = 16 * i + x % 4 / 2 * 8 + g;
                float factor =
                    KV == ATTN_INT8 ? __shfl_sync(0xffffffff, k_factor, key) : a.scale_log2;
                int from = a.window > 0 ? position[n][j] - a.window : -1;
                bool seen = at + key <= position[n][j] && at + key > from && at + key < item.to;
                s[n][i][x % 4] = seen ? s[n][i][x % 4] * factor : -INFINITY;
                high[j] = fmaxf(high[j], s[n][i][x % 4]);
            }
            float base[2];
            float keep[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float larger = fmaxf(max[n][j], stream_max(high[j]));
                base[j] = attn_base(larger);
                keep[j] = attn_exp2(max[n][j] - base[j]);
                max[n][j] = larger;
                sum[n][j] *= keep[j];
            }
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                float w[4];
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    w[x] = attn_exp2(s[n][i][x] - base[x % 2]);
                    sum[n][x % 2] += w[x];
                }
                if (KV == ATTN_INT8) {
                    float f0 = __shfl_sync(0xffffffff, v_factor, 16 * i + g);
                    float f8 = __shfl_sync(0xffffffff, v_factor, 16 * i + 8 + g);
                    w[0] *= f0;
                    w[1] *= f0;
                    w[2] *= f8;
                    w[3] *= f8;
                }
                p[n][i][0] = stream_transpose(attn_pack<KV>::of(w[0], w[1]));
                p[n][i][1] = stream_transpose(attn_pack<KV>::of(w[2], w[3]));
            }
#pragma unroll
            for (int m = 0; m < D / 16; m++) {
                o[n][m][0] *= keep[0];
                o[n][m][1] *= keep[1];
                o[n][m][2] *= keep[0];
                o[n][m][3] *= keep[1];
            }
        }
        stream_mix<KV, D, TILES>(step.v, p, o);
        if (more) {
            load_values();
            if (at + 2 * stride < item.to) {
                find_rows(at + 2 * stride);
            }
        }
    }

    /* The warps of a head are merged through shared memory. */
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float total = stream_sum(sum[n][j]);
            if (g == 0) {
                merged_ml[warp][8 * n + 2 * t + j] = make_float2(max[n][j], total);
            }
#pragma unroll
            for (int m = 0; m < D / 16; m++) {
                int d = m / (shape::V_RUN / 2) * 8 * shape::V_RUN + g * shape::V_RUN +
                        m % (shape::V_RUN / 2) * 2;
                float *to = &merged[warp][8 * n + 2 * t + j][d];
                *reinterpret_cast<float2 *>(to) = make_float2(o[n][m][j], o[n][m][2 + j]);
            }
        }
    }
    __syncthreads();
    for (int x = threadIdx.x; x < a.block_heads * ROWS * (D / 4); x += blockDim.x) {
        int d = x % (D / 4) * 4;
        int tile_row = x / (D / 4) % ROWS;
        int h = x / (D / 4) / ROWS;
        int r = item.row0 + tile_row;
        if (r >= n_rows) {
            continue;
        }
        float high = -INFINITY;
        for (int w = h; w < ATTN_WARPS; w += a.block_heads) {
            high = fmaxf(high, merged_ml[w][tile_row].x);
        }
        float total = 0.0f;
        float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int w = h; w < ATTN_WARPS; w += a.block_heads) {
            float2 ml = merged_ml[w][tile_row];
            float add = attn_exp2(ml.x - attn_base(high));
            float4 part = *reinterpret_cast<const float4 *>(&merged[w][tile_row][d]);
            total += ml.y * add;
            sums.x += part.x * add;
            sums.y += part.y * add;
            sums.z += part.z * add;
            sums.w += part.w * add;
        }
        if (item.n_splits > 1) {
            int64_t to =
                ((int64_t)(item.partial + item.split) * a.n_kv_heads + head0 + h) * ROWS + tile_row;
            *reinterpret_cast<float4 *>(&a.partial[to * D + d]) = sums;
            if (d == 0) {
                a.partial_ml[to] = make_float2(high, total);
            }
        } else {
            int64_t to = ((int64_t)(first_row + r / a.group) * a.n_heads + (head0 + h) * a.group +
                          r % a.group) *
                             D +
                         d;
            *reinterpret_cast<uint2 *>(&a.out[to]) =
                make_uint2(attn_out(sums.x / total, sums.y / total, a.bf16),
                           attn_out(sums.z / total, sums.w / total, a.bf16));
        }
    }
    if (item.n_splits > 1 && stream_is_last(a, item, head0)) {
        stream_merge<D, ROWS>(a, item, head0, n_rows, first_row);
    }
}

/* Pools that are not aligned have tiles of 8 rows only. */
template <attn_kv KV, int D>
static auto stream_kernel_of(int32_t rows, bool aligned) -> void (*)(attn_args)
{
    if (!aligned) {
        return &stream_kernel<KV, D, 8, false>;
    }
    return rows == 8 ? &stream_kernel<KV, D, 8, true> : &stream_kernel<KV, D, 16, true>;
}

#endif
