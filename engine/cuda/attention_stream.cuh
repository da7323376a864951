/* Attention that reads each key and value once, for up to 16 packed query rows: decode and
 * verification.
 *
 * The products are S^T = K q^T and O^T = V^T p^T: keys, and dimensions of values, are the 16 rows
 * of an mma; query rows are its 8 columns, so that one query head wastes least. Since the summed
 * index may be permuted, 16 bytes as they lie in memory are a lane's share of an operand: of K, 4
 * lanes read 64 bytes of a key; of V, 8 lanes read 128 bytes of a value, and two keys' values are
 * interleaved by byte_perm. p is transposed by movmatrix.
 *
 * A block has 4 warps and 1 or 2 KV heads, which its warps share out. Each warp takes keys of
 * its own in steps; steps ahead are on their way by cp.async into shared memory of its own, whole
 * lines of 128 bytes at once, 16-byte pieces swizzled so that no read meets a bank twice. Blocks
 * are as many as run at once; the plan gives each a list of items. At an item's end the warps of a
 * head are merged, and the splits of a tile by the block that ends last: in order of splits, so
 * that results do not depend on who was last.
 */
#ifndef BT_ENGINE_CUDA_ATTENTION_STREAM_CUH
#define BT_ENGINE_CUDA_ATTENTION_STREAM_CUH

#include "engine/cuda/attention_kernels.cuh"
#include "engine/cuda/launch.cuh"

static constexpr int STREAM_STAGES = 2; /* steps that are asked for at once, of a warp */
static constexpr int STREAM_BLOCKS = 3; /* of a multiprocessor, at least */

/* How a warp reads: what a lane takes of a key, of a value, of a step. */
template <attn_kv KV, int D> struct stream_shape {
    static constexpr int ELEMENT = KV == ATTN_INT8 ? 1 : 2;     /* bytes */
    static constexpr int ROW = D * ELEMENT;                     /* bytes */
    static constexpr int KEYS = ROW >= 256 ? 16 : 32;           /* of a step */
    static constexpr int PIECES = ROW / 16;                     /* of a row */
    static constexpr int K_LOADS = ROW / 64;                    /* a lane's pieces of a key */
    static constexpr int K_RUN = 16 / ELEMENT;                  /* elements of a piece */
    static constexpr int V_BYTES = ROW / 8 < 16 ? ROW / 8 : 16; /* a lane's load of a value */
    static constexpr int V_WORDS = V_BYTES / 4;
    static constexpr int V_RUN = V_BYTES / ELEMENT;
    static constexpr int V_LOADS = D / (8 * V_RUN);
    static constexpr int COPIES = KEYS * PIECES / 32; /* of a lane, for a step's keys */
};

/* Bytes to shared memory, on their way until stream_wait. Pools with odd blocks are aligned to 2
 * bytes only: theirs are there at once. */
template <int BYTES, bool ALIGNED>
static __device__ __forceinline__ void stream_copy(void *to, const uint8_t *from)
{
    if (!ALIGNED) {
        const uint16_t *src = reinterpret_cast<const uint16_t *>(from);
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++) {
            reinterpret_cast<uint16_t *>(to)[i] = src[i];
        }
        return;
    }
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address), "l"(from)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from),
                     "n"(BYTES)
                     : "memory");
    }
}

static __device__ __forceinline__ void stream_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the newest N groups are there. */
template <int N> static __device__ __forceinline__ void stream_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

template <int WORDS>
static __device__ __forceinline__ void stream_read(uint32_t (&x)[WORDS], const uint8_t *from)
{
    if (WORDS == 4) {
        uint4 y = *reinterpret_cast<const uint4 *>(from);
        x[0] = y.x, x[1] = y.y, x[2 % WORDS] = y.z, x[3 % WORDS] = y.w;
    } else {
        uint2 y = *reinterpret_cast<const uint2 *>(from);
        x[0] = y.x, x[1] = y.y;
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

/* Where piece c of row r lies in a step's keys, and in its values. Lanes of a quarter warp read 4
 * pieces of 2 neighbouring keys; 2 pieces of each second value. */
template <int PIECES> static __device__ __forceinline__ int stream_key_piece(int r, int c)
{
    return r * PIECES + (PIECES < 8 ? c : c ^ (r & 1) << 2);
}

template <int PIECES> static __device__ __forceinline__ int stream_value_piece(int r, int c)
{
    return r * PIECES + (PIECES < 8 ? c : c ^ (r >> 1 & 3) << 1);
}

/* S^T of the step: s[i] holds keys 16 i + g and 16 i + 8 + g, query rows 2t and 2t + 1. */
template <attn_kv KV, int D, int TILES>
static __device__ __forceinline__ void
stream_scores(const uint4 *k, const uint32_t (&q)[TILES][D / 16][2],
              float (&s)[TILES][stream_shape<KV, D>::KEYS / 16][4])
{
    using shape = stream_shape<KV, D>;
    constexpr int STEPS = D / 16 / shape::K_LOADS; /* mma steps that a piece serves */
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            s[n][i][0] = s[n][i][1] = s[n][i][2] = s[n][i][3] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < shape::K_LOADS; j++) {
            const uint4 low = k[stream_key_piece<shape::PIECES>(16 * i + g, 4 * j + t)];
            const uint4 high = k[stream_key_piece<shape::PIECES>(16 * i + 8 + g, 4 * j + t)];
            const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w},
                                          {high.x, high.y, high.z, high.w}};
#pragma unroll
            for (int c = 0; c < STEPS; c++) {
                uint32_t a[4];
                if (KV == ATTN_INT8) {
                    uint32_t x = words[0][c % 4] ^ 0x80808080;
                    uint32_t y = words[1][c % 4] ^ 0x80808080;
                    a[0] = attn_int8_pair<0>(x);
                    a[1] = attn_int8_pair<0>(y);
                    a[2] = attn_int8_pair<1>(x);
                    a[3] = attn_int8_pair<1>(y);
                } else {
                    a[0] = words[0][c % 2 * 2];
                    a[1] = words[1][c % 2 * 2];
                    a[2] = words[0][c % 2 * 2 + 1];
                    a[3] = words[1][c % 2 * 2 + 1];
                }
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    attn_mma<attn_pack<KV>::BF16>(s[n][i], a[0], a[1], a[2], a[3],
                                                  q[n][j * STEPS + c][0], q[n][j * STEPS + c][1]);
                }
            }
        }
    }
}

/* Operand V^T of 16 keys from words w of values 2t, 2t+1, 2t+8, 2t+9: rows g and g + 8 are two
 * neighbouring dimensions. half: the word's lower or upper such pair (INT8). */
template <attn_kv KV>
static __device__ __forceinline__ void
stream_value_operand(uint32_t (&a)[4], uint32_t w0, uint32_t w1, uint32_t w8, uint32_t w9, int half)
{
    if (KV == ATTN_INT8) {
        uint32_t low = __byte_perm(w0, w1, half ? 0x7362 : 0x5140) ^ 0x80808080;
        uint32_t high = __byte_perm(w8, w9, half ? 0x7362 : 0x5140) ^ 0x80808080;
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
stream_mix(const uint4 *v, const uint32_t (&p)[TILES][stream_shape<KV, D>::KEYS / 16][2],
           float (&o)[TILES][D / 16][4])
{
    using shape = stream_shape<KV, D>;
    constexpr int PAIRS = 4 / (2 * shape::ELEMENT); /* pairs of dimensions in a word */
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < shape::KEYS / 16; i++) {
#pragma unroll
        for (int j = 0; j < shape::V_LOADS; j++) {
            uint32_t w[4][shape::V_WORDS]; /* of 4 keys */
#pragma unroll
            for (int x = 0; x < 4; x++) {
                int r = 16 * i + x / 2 * 8 + 2 * t + x % 2;
                int c = (8 * j + g) * shape::V_BYTES / 16;
                const uint4 *from = &v[stream_value_piece<shape::PIECES>(r, c)];
                stream_read<shape::V_WORDS>(w[x], reinterpret_cast<const uint8_t *>(from) +
                                                      g * shape::V_BYTES % 16);
            }
#pragma unroll
            for (int word = 0; word < shape::V_WORDS; word++) {
#pragma unroll
                for (int half = 0; half < PAIRS; half++) {
                    uint32_t a[4];
                    stream_value_operand<KV>(a, w[0][word], w[1][word], w[2][word], w[3][word],
                                             half);
                    const int m = (j * shape::V_WORDS + word) * PAIRS + half;
#pragma unroll
                    for (int n = 0; n < TILES; n++) {
                        attn_mma<attn_pack<KV>::BF16>(o[n][m], a[0], a[1], a[2], a[3], p[n][i][0],
                                                      p[n][i][1]);
                    }
                }
            }
        }
    }
}

/* Where a packed row's head lies in out. */
static __device__ __forceinline__ int64_t stream_out(const attn_args &a, const bt_attn_item &item,
                                                     int head, int row)
{
    return (int64_t)(item.first_row + row / a.group) * a.n_heads + head * a.group + row % a.group;
}

static __device__ __forceinline__ void stream_add(float4 &o, float keep, const float4 &part,
                                                  float add)
{
    o.x = o.x * keep + part.x * add;
    o.y = o.y * keep + part.y * add;
    o.z = o.z * keep + part.z * add;
    o.w = o.w * keep + part.w * add;
}

static __device__ __forceinline__ void stream_write(uint16_t *to, const float4 &o, float sum,
                                                    bool bf16)
{
    *reinterpret_cast<uint2 *>(to) =
        make_uint2(attn_out(o.x / sum, o.y / sum, bf16), attn_out(o.z / sum, o.w / sum, bf16));
}

/* Merges the splits of a tile and writes the result: called by the block that ended last. A warp
 * takes a row: its lanes find the weights of all splits, then 4 dimensions each of their sum. */
template <int D, int ROWS>
static __device__ __forceinline__ void stream_merge(const attn_args &a, const bt_attn_item &item,
                                                    int head0)
{
    constexpr int MOST = BT_ATTN_MAX_SPLITS / 32; /* splits of a lane */
    const int lane = threadIdx.x % 32;
    const int live = min(ROWS, item.n_rows - item.row0);
    for (int x = threadIdx.x / 32; x < a.block_heads * live; x += BT_ATTN_WARPS) {
        const int row = x % live;
        const int head = head0 + x / live;
        const int64_t at = ((int64_t)item.partial * a.n_kv_heads + head) * ROWS + row;
        const int64_t stride = (int64_t)a.n_kv_heads * ROWS;
        float2 ml[MOST];
        float max = -INFINITY;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            int split = 32 * i + lane;
            ml[i] = split < item.n_splits ? __ldcg(&a.partial_ml[at + split * stride])
                                          : make_float2(-INFINITY, 0.0f);
            max = fmaxf(max, ml[i].x);
        }
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, lanes));
        }
        float sum = 0.0f;
        float weight[MOST];
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            weight[i] = attn_exp2(ml[i].x - attn_base(max));
            sum += ml[i].y * weight[i];
        }
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, lanes);
        }
        const int d = lane % (D / 4) * 4;
        float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            const int n = min(32, item.n_splits - 32 * i);
#pragma unroll 8
            for (int j = 0; j < n; j++) {
                float add = __shfl_sync(0xffffffff, weight[i], j);
                const float *from = &a.partial[(at + (32 * i + j) * stride) * D + d];
                stream_add(o, 1.0f, __ldcg(reinterpret_cast<const float4 *>(from)), add);
            }
        }
        if (lane < D / 4) {
            stream_write(&a.out[stream_out(a, item, head, item.row0 + row) * D + d], o, sum,
                         a.bf16);
        }
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

/* Shared memory of a block. */
template <attn_kv KV, int D, int ROWS> struct stream_memory {
    using shape = stream_shape<KV, D>;
    static constexpr int STAGES = STREAM_STAGES;
    struct step {
        uint4 keys[shape::KEYS * shape::PIECES];
        uint4 values[shape::KEYS * shape::PIECES];
        uint32_t scales[2][KV == ATTN_INT8 ? 32 : 0]; /* the 4 bytes that each key's is in */
    };
    union {
        struct step steps[BT_ATTN_WARPS][STAGES];
        struct {
            float sums[BT_ATTN_WARPS][ROWS][D + 4];
            float2 ml[BT_ATTN_WARPS][ROWS];
        } merged;
    };
};

/* Long because its phases share the fragments and the pipeline, which live in registers. */
template <attn_kv KV, int D, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void stream_item(const attn_args &a, const bt_attn_item &item,
                                                   int head0, stream_memory<KV, D, ROWS> &mem)
{
    using shape = stream_shape<KV, D>;
    using memory = stream_memory<KV, D, ROWS>;
    constexpr int TILES = ROWS / 8;
    constexpr int KEYS = shape::KEYS;
    constexpr int STAGES = memory::STAGES;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const int head = head0 + warp % a.block_heads;
    const int stride = BT_ATTN_WARPS / a.block_heads * KEYS;
    const int32_t *table = a.blocks + (int64_t)item.segment * a.max_blocks;
    const uint8_t *keys = a.keys + (int64_t)head * shape::ROW;
    const int64_t token_bytes = (int64_t)a.n_kv_heads * shape::ROW;

    /* Where the next step to ask for lies: lane i knows of key i. */
    struct place {
        int64_t row;
        const uint8_t *scale;
    };
    auto find = [&](int from) -> place {
        int key = min(from + lane % KEYS, item.to - 1);
        int block = key / a.block_tokens;
        int slot = key - block * a.block_tokens;
        int64_t base = table[block] * a.block_bytes;
        return {base + slot * token_bytes,
                a.keys + base + a.scales + 2 * (slot * a.n_kv_heads + head)};
    };
    uint32_t odd_scale = 0; /* bit i: stage i's scale is the upper half of its 4 bytes */
    auto ask = [&](int stage, const place &of) {
        auto &to = mem.steps[warp][stage];
        const int c = lane % shape::PIECES;
#pragma unroll
        for (int i = 0; i < shape::COPIES; i++) {
            int r = (32 * i + lane) / shape::PIECES;
            const uint8_t *from = keys + __shfl_sync(0xffffffff, of.row, r) + 16 * c;
            stream_copy<16, ALIGNED>(&to.keys[stream_key_piece<shape::PIECES>(r, c)], from);
            stream_copy<16, ALIGNED>(&to.values[stream_value_piece<shape::PIECES>(r, c)],
                                     from + a.keys_to_values);
        }
        if (KV == ATTN_INT8) {
            uint32_t odd = ALIGNED ? (uint32_t)((uintptr_t)of.scale / 2 % 2) : 0;
            odd_scale = (odd_scale & ~(1u << stage)) | odd << stage;
            const uint8_t *from = of.scale - 2 * odd;
            stream_copy<ALIGNED ? 4 : 2, ALIGNED>(&to.scales[0][lane], from);
            stream_copy<ALIGNED ? 4 : 2, ALIGNED>(&to.scales[1][lane], from + a.keys_to_values);
        }
    };

    int at = item.from + warp / a.block_heads * KEYS;
    place places[STAGES + 1];
#pragma unroll
    for (int stage = 0; stage <= STAGES; stage++) {
        places[stage] = at + stage * stride < item.to ? find(at + stage * stride) : place();
    }
    /* A decode's keys before its own were there before the pass began. */
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        if (!a.decode || at + stage * stride + KEYS > item.pos0) {
            bt_wait_for_previous();
        }
        if (at + stage * stride < item.to) {
            ask(stage, places[stage]);
        }
        stream_commit();
    }
    bt_wait_for_previous();
    place next = places[STAGES];

    /* Query rows: g of each tile as operand, 2t and 2t + 1 of each tile in scores and sums. */
    uint32_t q[TILES][D / 16][2];
    int position[TILES][2];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int r = item.row0 + 8 * n + g;
        bool live = r < item.n_rows;
        const uint16_t *src = a.q + (int64_t)(item.first_row + r / a.group) * a.q_stride +
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
            position[n][j] = mine < item.n_rows ? item.pos0 + mine / a.group : -1;
        }
    }
    /* Steps of keys in [all_from, all_to) are seen by every row. */
    const int last_row = min(item.row0 + ROWS, item.n_rows) - 1;
    const int all_to = min(item.to, item.pos0 + item.row0 / a.group + 1);
    const int all_from = a.window > 0 ? item.pos0 + last_row / a.group - a.window + 1 : 0;

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

    for (int stage = 0; at < item.to; at += stride, stage = stage + 1 == STAGES ? 0 : stage + 1) {
        const auto &step = mem.steps[warp][stage];
        stream_wait<STAGES - 1>();
        __syncwarp();
        float s[TILES][KEYS / 16][4];
        stream_scores<KV, D, TILES>(step.keys, q, s);
        float k_factor = a.scale_log2;
        float v_factor = 1.0f;
        if (KV == ATTN_INT8) {
            const int shift = 16 * (odd_scale >> stage & 1);
            k_factor *= attn_scale((uint16_t)(step.scales[0][lane] >> shift));
            v_factor = attn_scale((uint16_t)(step.scales[1][lane] >> shift));
        }
        const bool all = at >= all_from && at + KEYS <= all_to;
        uint32_t p[TILES][KEYS / 16][2];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            float high[2] = {-INFINITY, -INFINITY};
            if (KV == ATTN_INT8) {
#pragma unroll
                for (int x = 0; x < KEYS / 8; x++) {
                    float factor = __shfl_sync(0xffffffff, k_factor, 8 * x + g);
                    s[n][x / 2][x % 2 * 2] *= factor;
                    s[n][x / 2][x % 2 * 2 + 1] *= factor;
                }
            }
            if (!all) {
#pragma unroll
                for (int x = 0; x < KEYS / 4; x++) {
                    int key = at + 16 * (x / 4) + x % 4 / 2 * 8 + g;
                    int last = position[n][x % 2];
                    bool seen =
                        key <= last && key < item.to && (a.window == 0 || key > last - a.window);
                    s[n][x / 4][x % 4] = seen ? s[n][x / 4][x % 4] : -INFINITY;
                }
            }
#pragma unroll
            for (int x = 0; x < KEYS / 4; x++) {
                high[x % 2] = fmaxf(high[x % 2], s[n][x / 4][x % 4]);
            }
            /* INT8's scores are scaled, others are when they are raised. */
            const float scale_log2 = KV == ATTN_INT8 ? 1.0f : a.scale_log2;
            float base[2];
            float keep[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float larger = fmaxf(max[n][j], stream_max(high[j]));
                base[j] = attn_base(larger) * scale_log2;
                keep[j] = attn_exp2(max[n][j] * scale_log2 - base[j]);
                max[n][j] = larger;
                sum[n][j] *= keep[j];
            }
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                float w[4];
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    w[x] = attn_exp2(s[n][i][x] * scale_log2 - base[x % 2]);
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
        stream_mix<KV, D, TILES>(step.values, p, o);
        __syncwarp();
        if (at + STAGES * stride < item.to) {
            ask(stage, next);
            if (at + (STAGES + 1) * stride < item.to) {
                next = find(at + (STAGES + 1) * stride);
            }
        }
        stream_commit();
    }

    /* The warps are merged through shared memory, where the steps were. */
    __syncthreads();
    const float to_log2 = KV == ATTN_INT8 ? 1.0f : a.scale_log2;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float total = stream_sum(sum[n][j]);
            if (g == 0) {
                mem.merged.ml[warp][8 * n + 2 * t + j] = make_float2(max[n][j] * to_log2, total);
            }
#pragma unroll
            for (int m = 0; m < D / 16; m++) {
                int d = m / (shape::V_RUN / 2) * 8 * shape::V_RUN + g * shape::V_RUN +
                        m % (shape::V_RUN / 2) * 2;
                float *to = &mem.merged.sums[warp][8 * n + 2 * t + j][d];
                *reinterpret_cast<float2 *>(to) = make_float2(o[n][m][j], o[n][m][2 + j]);
            }
        }
    }
    __syncthreads();
    for (int x = threadIdx.x; x < a.block_heads * ROWS * (D / 4); x += blockDim.x) {
        int d = x % (D / 4) * 4;
        int tile_row = x / (D / 4) % ROWS;
        int of = x / (D / 4) / ROWS;
        if (item.row0 + tile_row >= item.n_rows) {
            continue;
        }
        float high = -INFINITY;
        for (int w = of; w < BT_ATTN_WARPS; w += a.block_heads) {
            high = fmaxf(high, mem.merged.ml[w][tile_row].x);
        }
        float total = 0.0f;
        float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int w = of; w < BT_ATTN_WARPS; w += a.block_heads) {
            float2 ml = mem.merged.ml[w][tile_row];
            float add = attn_exp2(ml.x - attn_base(high));
            total += ml.y * add;
            stream_add(sums, 1.0f,
                       *reinterpret_cast<const float4 *>(&mem.merged.sums[w][tile_row][d]), add);
        }
        if (item.n_splits > 1) {
            int64_t to = ((int64_t)(item.partial + item.split) * a.n_kv_heads + head0 + of) * ROWS +
                         tile_row;
            *reinterpret_cast<float4 *>(&a.partial[to * D + d]) = sums;
            if (d == 0) {
                a.partial_ml[to] = make_float2(high, total);
            }
        } else {
            int64_t to = stream_out(a, item, head0 + of, item.row0 + tile_row) * D + d;
            stream_write(&a.out[to], sums, total, a.bf16);
        }
    }
    if (item.n_splits > 1 && stream_is_last(a, item, head0)) {
        stream_merge<D, ROWS>(a, item, head0);
    }
}

template <attn_kv KV, int D, int ROWS, bool ALIGNED>
static __global__ void __launch_bounds__(32 * BT_ATTN_WARPS, STREAM_BLOCKS)
    stream_kernel(const attn_args a)
{
    extern __shared__ __align__(128) uint8_t bytes[];
    auto &mem = *reinterpret_cast<stream_memory<KV, D, ROWS> *>(bytes);
    const int n_groups = a.n_kv_heads / a.block_heads;
    const int share = (int)blockIdx.x / n_groups;
    const int head0 = (int)blockIdx.x % n_groups * a.block_heads;
    bt_let_next_begin();
    const int end = a.shares[share + 1];
    for (int i = a.shares[share]; i < end; i++) {
        const bt_attn_item item = a.items[i];
        stream_item<KV, D, ROWS, ALIGNED>(a, item, head0, mem);
        __syncthreads();
    }
    bt_wait_for_previous(); /* so does a block without items */
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

template <attn_kv KV, int D> static int stream_bytes(int32_t rows)
{
    return rows == 8 ? sizeof(stream_memory<KV, D, 8>) : sizeof(stream_memory<KV, D, 16>);
}

#endif
