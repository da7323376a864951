/* Attention of prompt chunks: 128 packed query rows of one KV head against all the keys that they
 * see, 64 at a time, in the manner of FlashAttention-2. Query heads of a KV head share a block's
 * keys and values.
 *
 * A block has 4 warps of 32 rows. The next 64 keys and values come by cp.async while these are
 * worked on; INT8 ones come to a stage of their own and are expanded to FP16, scale included, in
 * shared memory. Rows of 16-byte pieces are swizzled, so that ldmatrix meets no bank twice.
 *
 * Source: Dao 2023 (FlashAttention-2).
 */
#ifndef BT_ENGINE_CUDA_ATTENTION_CHUNKS_CUH
#define BT_ENGINE_CUDA_ATTENTION_CHUNKS_CUH

#include "engine/cuda/attention_kernels.cuh"

static constexpr int CHUNK_KEYS = 64; /* of a step */
static constexpr int CHUNK_THREADS = 32 * BT_ATTN_WARPS;

/* Shared memory of a block; arrays of 16-byte pieces. */
template <attn_kv KV, int D> struct chunk_memory {
    static constexpr int PIECES = D / 8; /* of a row of 16-bit numbers */
    static constexpr int STAGES = KV == ATTN_INT8 ? 1 : 2;
    uint4 q[BT_ATTN_CHUNK_ROWS][PIECES]; /* and the result, at the end */
    uint4 k[STAGES][CHUNK_KEYS][PIECES];
    uint4 v[STAGES][CHUNK_KEYS][PIECES];
    int64_t row[2][CHUNK_KEYS]; /* bytes from the layer's keys of block 0 */
};

template <int D> struct chunk_memory_int8 : chunk_memory<ATTN_INT8, D> {
    uint4 k8[CHUNK_KEYS][D / 16];
    uint4 v8[CHUNK_KEYS][D / 16];
    uint16_t scale[2][CHUNK_KEYS];
};

static __device__ __forceinline__ uint32_t chunk_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void chunk_copy(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(chunk_address(to)), "l"(from));
}

static __device__ __forceinline__ void chunk_commit()
{
    asm volatile("cp.async.commit_group;");
}

static __device__ __forceinline__ void chunk_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

static __device__ __forceinline__ void chunk_ldmatrix(uint32_t (&x)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(chunk_address(p))
                 : "memory");
}

static __device__ __forceinline__ void chunk_ldmatrix_transposed(uint32_t (&x)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(chunk_address(p))
                 : "memory");
}

/* Where piece c of row r lies. */
static __device__ __forceinline__ int chunk_piece(int r, int c)
{
    return c ^ (r & 7);
}

/* Maximum and sum over the 4 lanes that hold a query row. */
static __device__ __forceinline__ float chunk_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

static __device__ __forceinline__ float chunk_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* 16 INT8 times their scale as two pieces of FP16. */
static __device__ __forceinline__ void chunk_expand(uint4 x, uint16_t scale, uint4 &low,
                                                    uint4 &high)
{
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t y[8];
    __half2 factor = __half2half2(__ushort_as_half(scale));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t w = words[i / 2] ^ 0x80808080;
        uint32_t p = i % 2 ? attn_int8_pair<1>(w) : attn_int8_pair<0>(w);
        __half2 h = __hmul2(*reinterpret_cast<__half2 *>(&p), factor);
        y[i] = *reinterpret_cast<uint32_t *>(&h);
    }
    low = make_uint4(y[0], y[1], y[2], y[3]);
    high = make_uint4(y[4], y[5], y[6], y[7]);
}

/* S = Q K^T of a warp's 32 rows. */
template <attn_kv KV, int D>
static __device__ __forceinline__ void
chunk_scores(const uint4 (*q)[D / 8], const uint4 (*k)[D / 8], float (&s)[2][CHUNK_KEYS / 8][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < CHUNK_KEYS / 8; n++) {
#pragma unroll
        for (int x = 0; x < 4; x++) {
            s[0][n][x] = s[1][n][x] = 0.0f;
        }
    }
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            int r = 16 * m + lane % 16;
            chunk_ldmatrix(a[m], &q[r][chunk_piece(r, 2 * c + lane / 16)]);
        }
#pragma unroll
        for (int n = 0; n < CHUNK_KEYS / 16; n++) {
            uint32_t b[4];
            int r = 16 * n + lane / 16 * 8 + lane % 8;
            chunk_ldmatrix(b, &k[r][chunk_piece(r, 2 * c + lane / 8 % 2)]);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                attn_mma<attn_pack<KV>::BF16>(s[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0],
                                              b[1]);
                attn_mma<attn_pack<KV>::BF16>(s[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3],
                                              b[2], b[3]);
            }
        }
    }
}

/* O += P V. */
template <attn_kv KV, int D>
static __device__ __forceinline__ void chunk_mix(const uint32_t (&p)[2][CHUNK_KEYS / 16][4],
                                                 const uint4 (*v)[D / 8], float (&o)[2][D / 8][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < CHUNK_KEYS / 16; i++) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            int r = 16 * i + lane % 16;
            chunk_ldmatrix_transposed(b, &v[r][chunk_piece(r, 2 * n + lane / 16)]);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                attn_mma<attn_pack<KV>::BF16>(o[m][2 * n], p[m][i][0], p[m][i][1], p[m][i][2],
                                              p[m][i][3], b[0], b[1]);
                attn_mma<attn_pack<KV>::BF16>(o[m][2 * n + 1], p[m][i][0], p[m][i][1], p[m][i][2],
                                              p[m][i][3], b[2], b[3]);
            }
        }
    }
}

/* Turns scores into weights p and rescales o and sum. */
template <attn_kv KV, int D>
static __device__ __forceinline__ void
chunk_soften(float (&s)[2][CHUNK_KEYS / 8][4], float scale_log2, float (&max)[2][2],
             float (&sum)[2][2], float (&o)[2][D / 8][4], uint32_t (&p)[2][CHUNK_KEYS / 16][4])
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float high = max[m][half];
#pragma unroll
            for (int n = 0; n < CHUNK_KEYS / 8; n++) {
                high = fmaxf(high, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            }
            high = chunk_max(high);
            float base = attn_base(high) * scale_log2;
            float keep = attn_exp2(max[m][half] * scale_log2 - base);
            max[m][half] = high;
            float total = 0.0f;
#pragma unroll
            for (int n = 0; n < CHUNK_KEYS / 8; n++) {
                float x = attn_exp2(s[m][n][2 * half] * scale_log2 - base);
                float y = attn_exp2(s[m][n][2 * half + 1] * scale_log2 - base);
                total += x + y;
                p[m][n / 2][n % 2 * 2 + half] = attn_pack<KV>::of(x, y);
            }
            sum[m][half] = sum[m][half] * keep + total;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                o[m][n][2 * half] *= keep;
                o[m][n][2 * half + 1] *= keep;
            }
        }
    }
}

/* Long because its phases share the fragments and the pipeline, which live in registers. */
template <attn_kv KV, int D>
static __global__ void __launch_bounds__(CHUNK_THREADS, 2) chunk_kernel(const attn_args a)
{
    constexpr int PIECES = D / 8;
    constexpr int RAW_PIECES = KV == ATTN_INT8 ? D / 16 : D / 8; /* of a row in the pool */
    constexpr int LOADS = CHUNK_KEYS * RAW_PIECES / CHUNK_THREADS;
    extern __shared__ __align__(128) uint8_t bytes[];
    auto &mem = *reinterpret_cast<chunk_memory<KV, D> *>(bytes);
    auto &mem8 = *reinterpret_cast<chunk_memory_int8<D> *>(bytes); /* INT8 alone */

    const int index = (int)blockIdx.x / a.n_kv_heads;
    const int head = (int)blockIdx.x % a.n_kv_heads;
    const bt_attn_chunk chunk = a.chunks[index];
    if (index >= *a.n_chunks) {
        return;
    }
    const int thread = threadIdx.x;
    const int warp = thread / 32;
    const int lane = thread % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const int first_row = chunk.first_row;
    const int n_rows = chunk.n_rows;
    const int pos0 = chunk.pos0;
    const int32_t *table = a.blocks + (int64_t)chunk.segment * a.max_blocks;
    const int first_position = pos0 + chunk.row0 / a.group;
    const int last_position = pos0 + (min(chunk.row0 + BT_ATTN_CHUNK_ROWS, n_rows) - 1) / a.group;
    const int from = a.window > 0 ? max(0, first_position - a.window + 1) : 0;
    const int to = last_position + 1;
    const int n_steps = (to - from + CHUNK_KEYS - 1) / CHUNK_KEYS;
    const uint8_t *keys = a.keys + (int64_t)head * RAW_PIECES * 16;

    int64_t found = 0;
    const uint8_t *found_scale = nullptr;
    auto find_row = [&](int step) { /* by the first CHUNK_KEYS threads, of their keys */
                                    int key = min(from + step * CHUNK_KEYS + thread, to - 1);
                                    int block = key / a.block_tokens;
                                    int slot = key - block * a.block_tokens;
                                    int64_t base = table[block] * a.block_bytes;
                                    found = base + (int64_t)slot * a.n_kv_heads * RAW_PIECES * 16;
                                    found_scale =
                                        a.keys + base + a.scales + 2 * (slot * a.n_kv_heads + head);
    };
    uint16_t k_scale = 0;
    uint16_t v_scale = 0;
    auto issue = [&](int step) {
        const int64_t *row = mem.row[step % 2];
        const int c = thread % RAW_PIECES;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int r = thread / RAW_PIECES + i * (CHUNK_THREADS / RAW_PIECES);
            const uint8_t *src = keys + row[r] + 16 * c;
            if (KV == ATTN_INT8) {
                chunk_copy(&mem8.k8[r][c], src);
                chunk_copy(&mem8.v8[r][c], src + a.keys_to_values);
            } else {
                int stage = step % chunk_memory<KV, D>::STAGES;
                chunk_copy(&mem.k[stage][r][chunk_piece(r, c)], src);
                chunk_copy(&mem.v[stage][r][chunk_piece(r, c)], src + a.keys_to_values);
            }
        }
        chunk_commit();
    };

    if (thread < CHUNK_KEYS) {
        find_row(0);
        mem.row[0][thread] = found;
        if (KV == ATTN_INT8) {
            k_scale = *reinterpret_cast<const uint16_t *>(found_scale);
            v_scale = *reinterpret_cast<const uint16_t *>(found_scale + a.keys_to_values);
        }
        find_row(1);
        mem.row[1][thread] = found;
    }
    __syncthreads();
    issue(0);
#pragma unroll 4
    for (int x = thread; x < BT_ATTN_CHUNK_ROWS * PIECES; x += CHUNK_THREADS) {
        int r = x / PIECES;
        int c = x % PIECES;
        int row = chunk.row0 + r;
        uint4 piece = make_uint4(0, 0, 0, 0);
        if (row < n_rows) {
            const uint16_t *src = a.q + (int64_t)(first_row + row / a.group) * a.q_stride +
                                  (head * a.group + row % a.group) * D + 8 * c;
            piece = *reinterpret_cast<const uint4 *>(src);
            piece.x = attn_convert<KV>(piece.x, a.bf16);
            piece.y = attn_convert<KV>(piece.y, a.bf16);
            piece.z = attn_convert<KV>(piece.z, a.bf16);
            piece.w = attn_convert<KV>(piece.w, a.bf16);
        }
        mem.q[r][chunk_piece(r, c)] = piece;
    }

    float o[2][D / 8][4];
    float max[2][2];
    float sum[2][2];
    int position[2][2]; /* of rows g and g + 8 of each 16 */
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = chunk.row0 + 32 * warp + 16 * m + 8 * half + g;
            position[m][half] = row < n_rows ? pos0 + row / a.group : -1;
            max[m][half] = -INFINITY;
            sum[m][half] = 0.0f;
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0.0f;
        }
    }
    /* What the warp's rows see at most. */
    const int warp_row0 = chunk.row0 + 32 * warp;
    const int warp_to =
        warp_row0 < n_rows ? pos0 + (min(warp_row0 + 32, n_rows) - 1) / a.group + 1 : 0;

    for (int step = 0; step < n_steps; step++) {
        const int stage = step % chunk_memory<KV, D>::STAGES;
        if (KV == ATTN_INT8 && thread < CHUNK_KEYS) {
            mem8.scale[0][thread] = k_scale;
            mem8.scale[1][thread] = v_scale;
        }
        chunk_wait();
        __syncthreads();
        if (KV == ATTN_INT8) {
            const int c = thread % RAW_PIECES;
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                int r = thread / RAW_PIECES + i * (CHUNK_THREADS / RAW_PIECES);
                uint4 low;
                uint4 high;
                chunk_expand(mem8.k8[r][c], mem8.scale[0][r], low, high);
                mem.k[0][r][chunk_piece(r, 2 * c)] = low;
                mem.k[0][r][chunk_piece(r, 2 * c + 1)] = high;
                chunk_expand(mem8.v8[r][c], mem8.scale[1][r], low, high);
                mem.v[0][r][chunk_piece(r, 2 * c)] = low;
                mem.v[0][r][chunk_piece(r, 2 * c + 1)] = high;
            }
            __syncthreads();
        }
        if (step + 1 < n_steps) {
            issue(step + 1);
            if (KV == ATTN_INT8 && thread < CHUNK_KEYS) {
                k_scale = *reinterpret_cast<const uint16_t *>(found_scale);
                v_scale = *reinterpret_cast<const uint16_t *>(found_scale + a.keys_to_values);
            }
        }
        if (thread < CHUNK_KEYS) {
            find_row(step + 2);
        }
        const int at = from + step * CHUNK_KEYS;
        if (at < warp_to) {
            float s[2][CHUNK_KEYS / 8][4];
            chunk_scores<KV, D>(&mem.q[32 * warp], mem.k[stage], s);
            if (at + CHUNK_KEYS - 1 > first_position ||
                (a.window > 0 && at <= last_position - a.window)) {
#pragma unroll
                for (int m = 0; m < 2; m++) {
#pragma unroll
                    for (int x = 0; x < CHUNK_KEYS / 2; x++) {
                        int p = position[m][x % 4 / 2];
                        int key = at + x / 4 * 8 + 2 * t + x % 2;
                        bool seen = key <= p && (a.window == 0 || key > p - a.window);
                        s[m][x / 4][x % 4] = seen ? s[m][x / 4][x % 4] : -INFINITY;
                    }
                }
            }
            uint32_t p[2][CHUNK_KEYS / 16][4];
            chunk_soften<KV, D>(s, a.scale_log2, max, sum, o, p);
            chunk_mix<KV, D>(p, mem.v[stage], o);
        }
        if (thread < CHUNK_KEYS) {
            mem.row[step % 2][thread] = found;
        }
    }

    /* Through shared memory, each warp its own rows, so that 16 bytes are written at once. */
    __syncwarp();
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = chunk_sum(sum[m][half]);
            float inverse = total > 0.0f ? 1.0f / total : 0.0f;
            int r = 32 * warp + 16 * m + 8 * half + g;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                reinterpret_cast<uint32_t *>(&mem.q[r][chunk_piece(r, n)])[t] =
                    attn_out(o[m][n][2 * half] * inverse, o[m][n][2 * half + 1] * inverse, a.bf16);
            }
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int x = lane; x < 32 * PIECES; x += 32) {
        int r = 32 * warp + x / PIECES;
        int c = x % PIECES;
        int row = chunk.row0 + r;
        if (row < n_rows) {
            uint16_t *dst = a.out +
                            ((int64_t)(first_row + row / a.group) * a.n_heads + head * a.group +
                             row % a.group) *
                                D +
                            8 * c;
            *reinterpret_cast<uint4 *>(dst) = mem.q[r][chunk_piece(r, c)];
        }
    }
}

template <attn_kv KV, int D> static constexpr int chunk_bytes()
{
    return KV == ATTN_INT8 ? sizeof(chunk_memory_int8<D>) : sizeof(chunk_memory<KV, D>);
}

#endif
