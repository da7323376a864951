/* Attention of prompt chunks by Hopper's warpgroup products (compute capability 9.0a): what
 * attention_chunks.cuh computes, 128 packed query rows against 64 keys at a time.
 *
 * A block has two warpgroups of 64 rows that compute and one that fetches: pages are too short for
 * the bulk copy engine, so its threads use cp.async, whose end arrives at a stage's barrier by
 * itself, or expand INT8 to FP16, scale included. The fence between these writes and the products'
 * reads is the reader's: in the thread that copies it would wait for all copies under way. A
 * warpgroup's next scores are made while it turns these into weights, and the two warpgroups take
 * turns by themselves. Built for other targets the kernel is a
 * stub without shared memory; wgmma_built tells.
 *
 * Shared memory is in the 128-byte swizzle of wgmma: rows of 64 numbers, 16-byte piece c of row r
 * at c ^ (r % 8); a row of 128 dimensions is two such, 64 rows apart.
 *
 * Source: Shah et al. 2024 (FlashAttention-3).
 */
#ifndef BT_ENGINE_CUDA_ATTENTION_WGMMA_CUH
#define BT_ENGINE_CUDA_ATTENTION_WGMMA_CUH

#include "engine/cuda/attention_chunks.cuh"

static constexpr int WGMMA_STAGES = 4;
static constexpr int WGMMA_THREADS = 384; /* two warpgroups that compute, one that fetches */

/* 64 rows of D numbers. */
template <int D> struct wgmma_tile {
    uint4 pieces[D / 64][64][8];
};

template <int D> struct wgmma_memory {
    wgmma_tile<D> q[2]; /* and the result, at the end */
    wgmma_tile<D> k[WGMMA_STAGES];
    wgmma_tile<D> v[WGMMA_STAGES];
};

/* The kernel's dynamic shared memory: 1023 bytes more, to align by. */
template <int D> static constexpr int wgmma_bytes()
{
    return sizeof(wgmma_memory<D>) + 1023;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int D>
static __device__ __forceinline__ uint4 &wgmma_piece(wgmma_tile<D> &t, int r, int c)
{
    return t.pieces[c / 8][r][(c ^ r) & 7];
}

/* An operand's place: bytes between 8-row groups along the summed index (keys of V) or the other
 * one are always 1024; `halves`: bytes between 64 columns, where they are not the summed index. */
static __device__ __forceinline__ uint64_t wgmma_operand(const void *p, uint32_t halves)
{
    uint64_t address = (chunk_address(p) & 0x3ffff) >> 4;
    return address | (uint64_t)(halves >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

static __device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all but the newest N groups of products are made. */
template <int N> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving uses of x across a product in flight. */
template <int N> static __device__ __forceinline__ void wgmma_hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(x[i])::"memory");
    }
}

#define WGMMA_SS_64(type)                                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                  \
                 "%0,%1,%2,%3,%4,%5,%6,%7,"                                                        \
                 "%8,%9,%10,%11,%12,%13,%14,%15,"                                                  \
                 "%16,%17,%18,%19,%20,%21,%22,%23,"                                                \
                 "%24,%25,%26,%27,%28,%29,%30,%31"                                                 \
                 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"                                                \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),         \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),       \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),   \
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),   \
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),   \
                   "+f"(d[30]), "+f"(d[31])                                                        \
                 : "l"(a), "l"(b), "r"(add))

#define WGMMA_RS_64(type)                                                                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                  \
                 "%0,%1,%2,%3,%4,%5,%6,%7,"                                                        \
                 "%8,%9,%10,%11,%12,%13,%14,%15,"                                                  \
                 "%16,%17,%18,%19,%20,%21,%22,%23,"                                                \
                 "%24,%25,%26,%27,%28,%29,%30,%31"                                                 \
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"                                        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),         \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),       \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),   \
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),   \
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),   \
                   "+f"(d[30]), "+f"(d[31])                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define WGMMA_RS_128(type)                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                 \
                 "%0,%1,%2,%3,%4,%5,%6,%7,"                                                        \
                 "%8,%9,%10,%11,%12,%13,%14,%15,"                                                  \
                 "%16,%17,%18,%19,%20,%21,%22,%23,"                                                \
                 "%24,%25,%26,%27,%28,%29,%30,%31,"                                                \
                 "%32,%33,%34,%35,%36,%37,%38,%39,"                                                \
                 "%40,%41,%42,%43,%44,%45,%46,%47,"                                                \
                 "%48,%49,%50,%51,%52,%53,%54,%55,"                                                \
                 "%56,%57,%58,%59,%60,%61,%62,%63"                                                 \
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"                                        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),         \
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),       \
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),   \
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),   \
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),   \
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),   \
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),   \
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),   \
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),   \
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),   \
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/* d = a b, or d += a b: scores of 64 rows and 64 keys, 16 dimensions. */
template <bool BF16>
static __device__ __forceinline__ void wgmma_scores(float (&d)[32], uint64_t a, uint64_t b, int add)
{
    if (BF16) {
        WGMMA_SS_64("bf16");
    } else {
        WGMMA_SS_64("f16");
    }
}

/* d += a b: weights of 64 rows and 16 keys by values of 64 or 128 dimensions. */
template <bool BF16>
static __device__ __forceinline__ void wgmma_mix(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
    if (BF16) {
        WGMMA_RS_64("bf16");
    } else {
        WGMMA_RS_64("f16");
    }
}

template <bool BF16>
static __device__ __forceinline__ void wgmma_mix(float (&d)[64], const uint32_t (&a)[4], uint64_t b)
{
    if (BF16) {
        WGMMA_RS_128("bf16");
    } else {
        WGMMA_RS_128("f16");
    }
}

static __device__ __forceinline__ void wgmma_barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(chunk_address(b)), "r"(count)
                 : "memory");
}

static __device__ __forceinline__ void wgmma_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(chunk_address(b)) : "memory");
}

/* Once all copies (cp.async) that this thread has asked for have come. */
static __device__ __forceinline__ void wgmma_arrive_copied(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(chunk_address(b))
                 : "memory");
}

/* Until the phase of this parity is over. */
static __device__ __forceinline__ void wgmma_await(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}\n" ::"r"(chunk_address(b)),
                 "r"(parity)
                 : "memory");
}

/* What ordinary stores and cp.async wrote, here or before a barrier that was awaited, is there for
 * wgmma to read. */
static __device__ __forceinline__ void wgmma_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

struct wgmma_barriers {
    uint64_t full[WGMMA_STAGES];
    uint64_t empty[WGMMA_STAGES];
};

/* What a block is about. */
struct wgmma_work {
    bt_attn_chunk chunk;
    int head;
    int from, to; /* keys */
    int n_steps;
};

/* The third warpgroup: keys and values of all steps, in order. Lane i knows where keys i and i + 32
 * of a step lie.
 * Long because one loop keeps the addresses of all copies in registers. */
template <attn_kv KV, int D>
static __device__ __forceinline__ void wgmma_fetch(const attn_args &a, const wgmma_work &w,
                                                   wgmma_memory<D> &mem, wgmma_barriers &bar)
{
    constexpr int ROW = KV == ATTN_INT8 ? D : 2 * D; /* bytes */
    constexpr int PIECES = ROW / 16;
    constexpr int LOADS = CHUNK_KEYS * PIECES / 128; /* of a thread, for the keys of a step */
    const int thread = threadIdx.x % 128;
    const int lane = thread % 32;
    const int c = thread % PIECES;
    const int32_t *table = a.blocks + (int64_t)w.chunk.segment * a.max_blocks;
    const uint8_t *keys = a.keys + (int64_t)w.head * ROW + 16 * c;
    int64_t row[2];
    int64_t scale[2];
    auto find = [&](int step) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int key = min(w.from + step * CHUNK_KEYS + 32 * i + lane, w.to - 1);
            int block = key / a.block_tokens;
            int slot = key - block * a.block_tokens;
            int64_t base = table[block] * a.block_bytes;
            row[i] = base + (int64_t)slot * a.n_kv_heads * ROW;
            scale[i] = base + a.scales + 2 * (slot * a.n_kv_heads + w.head);
        }
    };
    auto await_empty = [&](int step) {
        if (step >= WGMMA_STAGES) {
            wgmma_await(&bar.empty[step % WGMMA_STAGES], (step / WGMMA_STAGES + 1) % 2);
        }
    };
    find(0);
    if (KV != ATTN_INT8) {
        for (int step = 0; step < w.n_steps; step++) {
            await_empty(step);
            auto &k = mem.k[step % WGMMA_STAGES];
            auto &v = mem.v[step % WGMMA_STAGES];
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                int r = (128 * i + thread) / PIECES;
                int64_t at = __shfl_sync(0xffffffff, row[i / (LOADS / 2)], r % 32);
                chunk_copy(&wgmma_piece<D>(k, r, c), keys + at);
                chunk_copy(&wgmma_piece<D>(v, r, c), keys + at + a.keys_to_values);
            }
            wgmma_arrive_copied(&bar.full[step % WGMMA_STAGES]);
            find(step + 1);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        return;
    }
    uint4 raw[2][LOADS];
    uint16_t factor[2][LOADS];
    auto load = [&]() {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int r = (128 * i + thread) / PIECES;
            int64_t at = __shfl_sync(0xffffffff, row[i / (LOADS / 2)], r % 32);
            int64_t s = __shfl_sync(0xffffffff, scale[i / (LOADS / 2)], r % 32);
#pragma unroll
            for (int x = 0; x < 2; x++) {
                raw[x][i] = *reinterpret_cast<const uint4 *>(keys + at + x * a.keys_to_values);
                factor[x][i] =
                    *reinterpret_cast<const uint16_t *>(a.keys + s + x * a.keys_to_values);
            }
        }
    };
    load();
    for (int step = 0; step < w.n_steps; step++) {
        find(step + 1);
        await_empty(step);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int r = (128 * i + thread) / PIECES;
#pragma unroll
            for (int x = 0; x < 2; x++) {
                auto &tile = x == 0 ? mem.k[step % WGMMA_STAGES] : mem.v[step % WGMMA_STAGES];
                chunk_expand(raw[x][i], factor[x][i], wgmma_piece<D>(tile, r, 2 * c),
                             wgmma_piece<D>(tile, r, 2 * c + 1));
            }
        }
        wgmma_arrive(&bar.full[step % WGMMA_STAGES]);
        load();
    }
}

/* A warpgroup that computes: 64 of the chunk's rows. A thread has rows g and g + 8 of its warp's
 * 16.
 * Long because its phases share the fragments of one warpgroup, which live in registers. */
template <attn_kv KV, int D>
static __device__ __forceinline__ void wgmma_compute(const attn_args &a, const wgmma_work &w,
                                                     wgmma_memory<D> &mem, wgmma_barriers &bar)
{
    constexpr bool BF16 = attn_pack<KV>::BF16;
    constexpr int PIECES = D / 8;
    const int group = threadIdx.x / 128;
    const int thread = threadIdx.x % 128;
    const int lane = thread % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const bt_attn_chunk &chunk = w.chunk;
    const int row0 = chunk.row0 + 64 * group;
    auto &q = mem.q[group];
    auto sync_group = [&]() { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); };

#pragma unroll 4
    for (int x = thread; x < 64 * PIECES; x += 128) {
        int r = x / PIECES;
        int c = x % PIECES;
        int row = row0 + r;
        uint4 piece = make_uint4(0, 0, 0, 0);
        if (row < chunk.n_rows) {
            const uint16_t *src = a.q + (int64_t)(chunk.first_row + row / a.group) * a.q_stride +
                                  (w.head * a.group + row % a.group) * D + 8 * c;
            piece = *reinterpret_cast<const uint4 *>(src);
            piece.x = attn_convert<KV>(piece.x, a.bf16);
            piece.y = attn_convert<KV>(piece.y, a.bf16);
            piece.z = attn_convert<KV>(piece.z, a.bf16);
            piece.w = attn_convert<KV>(piece.w, a.bf16);
        }
        wgmma_piece<D>(q, r, c) = piece;
    }
    wgmma_publish();
    sync_group();

    int position[2];
    float max[2];
    float sum[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + thread / 32 * 16 + 8 * half + g;
        position[half] = row < chunk.n_rows ? chunk.pos0 + row / a.group : -1;
        max[half] = -INFINITY;
        sum[half] = 0.0f;
    }
    /* The warpgroup's first and last position; steps up to the last. */
    const int first = chunk.pos0 + row0 / a.group;
    const int last = chunk.pos0 + (min(row0 + 64, chunk.n_rows) - 1) / a.group;
    const int mine = row0 < chunk.n_rows ? (last - w.from) / CHUNK_KEYS + 1 : 0;

    float o[D / 2];
    float s[CHUNK_KEYS / 2];
#pragma unroll
    for (int i = 0; i < D / 2; i++) {
        o[i] = 0.0f;
    }
    auto make_scores = [&](int step) {
        wgmma_await(&bar.full[step % WGMMA_STAGES], step / WGMMA_STAGES % 2);
        wgmma_publish();
        auto &k = mem.k[step % WGMMA_STAGES];
        wgmma_hold(s);
        wgmma_begin();
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            wgmma_scores<BF16>(s, wgmma_operand(&q.pieces[c / 4][0][c % 4 * 2], 16),
                               wgmma_operand(&k.pieces[c / 4][0][c % 4 * 2], 16), c != 0);
        }
        wgmma_end();
    };
    auto leave = [&](int step) {
        __syncwarp();
        if (lane == 0) {
            wgmma_arrive(&bar.empty[step % WGMMA_STAGES]);
        }
    };

    /* Scores to weights, o to their maximum. Waits for the former step's products between. */
    uint32_t p[CHUNK_KEYS / 16][4];
    auto soften = [&](int step) {
        const int at = w.from + step * CHUNK_KEYS;
        if (at + CHUNK_KEYS - 1 > first || (a.window > 0 && at <= last - a.window)) {
#pragma unroll
            for (int i = 0; i < CHUNK_KEYS / 2; i++) {
                int of = position[i % 4 / 2];
                int key = at + i / 4 * 8 + 2 * t + i % 2;
                bool seen = key <= of && (a.window == 0 || key > of - a.window);
                s[i] = seen ? s[i] : -INFINITY;
            }
        }
        float keep[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float high = max[half];
#pragma unroll
            for (int n = 0; n < CHUNK_KEYS / 8; n++) {
                high = fmaxf(high, fmaxf(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
            }
            high = chunk_max(high);
            float base = attn_base(high) * a.scale_log2;
            keep[half] = attn_exp2(max[half] * a.scale_log2 - base);
            max[half] = high;
            float total = 0.0f;
#pragma unroll
            for (int n = 0; n < CHUNK_KEYS / 8; n++) {
#pragma unroll
                for (int x = 4 * n + 2 * half; x < 4 * n + 2 * half + 2; x++) {
                    s[x] = attn_exp2(s[x] * a.scale_log2 - base);
                    total += s[x];
                }
            }
            sum[half] = sum[half] * keep[half] + total;
        }
        wgmma_wait<0>();
        wgmma_hold(o);
        if (step > 0) {
            leave(step - 1);
        }
#pragma unroll
        for (int i = 0; i < CHUNK_KEYS / 16; i++) {
#pragma unroll
            for (int x = 0; x < 4; x++) {
                p[i][x] = attn_pack<KV>::of(s[8 * i + 2 * x], s[8 * i + 2 * x + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            o[i] *= keep[i % 4 / 2];
        }
        wgmma_hold(o);
    };
    auto mix = [&](int step) {
        auto &v = mem.v[step % WGMMA_STAGES];
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < CHUNK_KEYS / 16; i++) {
            wgmma_mix<BF16>(o, p[i], wgmma_operand(&v.pieces[0][16 * i][0], 64 * 128));
        }
        wgmma_end();
    };
    if (mine > 0) {
        make_scores(0);
        wgmma_wait<0>();
        wgmma_hold(s);
        for (int step = 0; step < mine - 1; step++) {
            soften(step);
            make_scores(step + 1);
            mix(step);
            wgmma_wait<1>(); /* the scores */
            wgmma_hold(s);
        }
        soften(mine - 1);
        mix(mine - 1);
        wgmma_wait<0>();
        wgmma_hold(o);
        leave(mine - 1);
    }
    for (int step = mine; step < w.n_steps; step++) {
        wgmma_await(&bar.full[step % WGMMA_STAGES], step / WGMMA_STAGES % 2);
        leave(step);
    }

    /* Through shared memory, each warp its own rows, so that 16 bytes are written at once. */
    sync_group();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = chunk_sum(sum[half]);
        float inverse = total > 0.0f ? 1.0f / total : 0.0f;
        int r = thread / 32 * 16 + 8 * half + g;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            reinterpret_cast<uint32_t *>(&wgmma_piece<D>(q, r, n))[t] =
                attn_out(o[4 * n + 2 * half] * inverse, o[4 * n + 2 * half + 1] * inverse, a.bf16);
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int x = lane; x < 16 * PIECES; x += 32) {
        int r = thread / 32 * 16 + x / PIECES;
        int c = x % PIECES;
        int row = row0 + r;
        if (row < chunk.n_rows) {
            uint16_t *dst = a.out +
                            ((int64_t)(chunk.first_row + row / a.group) * a.n_heads +
                             w.head * a.group + row % a.group) *
                                D +
                            8 * c;
            *reinterpret_cast<uint4 *>(dst) = wgmma_piece<D>(q, r, c);
        }
    }
}

#endif

template <attn_kv KV, int D>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1) wgmma_kernel(const attn_args a)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t bytes[];
    __shared__ wgmma_barriers bar;
    auto &mem =
        *reinterpret_cast<wgmma_memory<D> *>(bytes + (1024 - (chunk_address(bytes) & 1023)) % 1024);
    const int index = (int)blockIdx.x / a.n_kv_heads;
    wgmma_work w;
    w.chunk = a.chunks[index];
    if (index >= *a.n_chunks) {
        return;
    }
    w.head = (int)blockIdx.x % a.n_kv_heads;
    const int first = w.chunk.pos0 + w.chunk.row0 / a.group;
    w.from = a.window > 0 ? max(0, first - a.window + 1) : 0;
    w.to =
        w.chunk.pos0 + (min(w.chunk.row0 + BT_ATTN_CHUNK_ROWS, w.chunk.n_rows) - 1) / a.group + 1;
    w.n_steps = (w.to - w.from + CHUNK_KEYS - 1) / CHUNK_KEYS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WGMMA_STAGES; i++) {
            wgmma_barrier_init(&bar.full[i], 128);
            wgmma_barrier_init(&bar.empty[i], 8); /* warps that compute */
        }
    }
    __syncthreads();
    if (threadIdx.x / 128 == 2) {
        wgmma_fetch<KV, D>(a, w, mem, bar);
    } else {
        wgmma_compute<KV, D>(a, w, mem, bar);
    }
#endif
}

/* Whether the kernel was built for the current device; readies it. */
template <attn_kv KV, int D> static cudaError_t wgmma_built(bool *built)
{
    cudaFuncAttributes f;
    cudaError_t rc = cudaFuncGetAttributes(&f, wgmma_kernel<KV, D>);
    *built = rc == cudaSuccess && f.sharedSizeBytes > 0;
    if (!*built) {
        return rc;
    }
    return cudaFuncSetAttribute(wgmma_kernel<KV, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                wgmma_bytes<D>());
}

#endif
