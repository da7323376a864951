/* W4A16 with groups of 128 on Hopper: the tensor cores' asynchronous products (wgmma), whose left
 * operand, the expanded weights, comes from registers and whose right one, x, they read from shared
 * memory themselves. The rest (packed weights, stream-K, order of sums) is linear_skinny.cuh.
 *
 * Two warpgroups form a block of threads; each has HALVES times 64 rows of the tile and all its
 * tokens. While one expands weights or scales sums, the other keeps the tensor cores busy: they run
 * free of each other, a stage of the ring being full when the copy engine has brought its bytes and
 * empty when the last warp has let go of it. Weights come as bulk copies (a block is contiguous), x
 * by a tensor map that swizzles it and fills what lies beyond its ends with zeros. (Filling the
 * ring with cp.async took 1.4 times it: the products read through the async proxy, and the fence
 * that this needs waits for all copies under way.)
 *
 * Tokens 8 .. 128 a tile: few rows are bound by memory, many by the tensor cores, x being read from
 * L2 once for every 128 HALVES rows of weights.
 */
#include "engine/cuda/linear_hopper.cuh"
#include "engine/cuda/linear_skinny.cuh"

using namespace hopper;
using namespace skinny;

namespace
{

constexpr int GROUP_THREADS = 256;
constexpr int MAX_STAGES = 8;
constexpr int BOX_BYTES = 128; /* of a token in shared memory: half of a stage's 128 inputs */
constexpr int MAX_SPLIT = 8;   /* blocks of a cluster: what every Hopper part allows */

/* The host's pass and that for 9.0a; other architectures have no use for what follows. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define BT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BT_WGMMA_1(type)                                                                           \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32." type    \
        "." type " "                                                                               \
        "{%0, %1, %2, %3}, "                                                                       \
        "{%4, %5, %6, %7}, %8, p, 1, 1, 0; }"                                                      \
        : BT_D4(0)                                                                                 \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x), "r"(add))
#define BT_WGMMA_2(type)                                                                           \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32." type  \
        "." type " "                                                                               \
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "                                                       \
        "{%8, %9, %10, %11}, %12, p, 1, 1, 0; }"                                                   \
        : BT_D4(0), BT_D4(4)                                                                       \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x), "r"(add))
#define BT_WGMMA_4(type)                                                                           \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." type  \
        "." type " "                                                                               \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "                 \
        "{%16, %17, %18, %19}, %20, p, 1, 1, 0; }"                                                 \
        : BT_D4(0), BT_D4(4), BT_D4(8), BT_D4(12)                                                  \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x), "r"(add))
#define BT_WGMMA_8(type)                                                                           \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type  \
        "." type " "                                                                               \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "   \
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                       \
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"                                                 \
        : BT_D4(0), BT_D4(4), BT_D4(8), BT_D4(12), BT_D4(16), BT_D4(20), BT_D4(24), BT_D4(28)      \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x), "r"(add))
#define BT_WGMMA_16(type)                                                                          \
    asm volatile(                                                                                  \
        "{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type \
        "." type " "                                                                               \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "   \
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "    \
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "    \
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                                 \
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0; }"                                                 \
        : BT_D4(0), BT_D4(4), BT_D4(8), BT_D4(12), BT_D4(16), BT_D4(20), BT_D4(24), BT_D4(28),     \
          BT_D4(32), BT_D4(36), BT_D4(40), BT_D4(44), BT_D4(48), BT_D4(52), BT_D4(56), BT_D4(60)   \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x), "r"(add))

/* d = a x (+ d when add): a 64 rows x 16 inputs over the warpgroup, x by its descriptor. */
template <class T, int NT>
__device__ __forceinline__ void product(float (&d)[NT * 4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint64_t x, int add)
{
    constexpr bool BF16 = T::MAGIC == bf16_t::MAGIC;
    if constexpr (NT == 1) {
        if constexpr (BF16) {
            BT_WGMMA_1("bf16");
        } else {
            BT_WGMMA_1("f16");
        }
    } else if constexpr (NT == 2) {
        if constexpr (BF16) {
            BT_WGMMA_2("bf16");
        } else {
            BT_WGMMA_2("f16");
        }
    } else if constexpr (NT == 4) {
        if constexpr (BF16) {
            BT_WGMMA_4("bf16");
        } else {
            BT_WGMMA_4("f16");
        }
    } else if constexpr (NT == 8) {
        if constexpr (BF16) {
            BT_WGMMA_8("bf16");
        } else {
            BT_WGMMA_8("f16");
        }
    } else {
        if constexpr (BF16) {
            BT_WGMMA_16("bf16");
        } else {
            BT_WGMMA_16("f16");
        }
    }
}

/* Starts sum = w x for one block of weights, 64 rows x 128 inputs, the group's scale left out;
 * FOLD: sum += w x, the scale in the weights, which are rounded for it. */
template <class T, int NT, bool FOLD>
__device__ __forceinline__ void start(float (&sum)[NT * 4], uint32_t w, uint32_t x,
                                      const w4_group &g, int warp, int lane)
{
    uint4 a = load_16(w + (uint32_t)((warp * 2 + 0) * 32 + lane) * 16);
    uint4 b = load_16(w + (uint32_t)((warp * 2 + 1) * 32 + lane) * 16);
    const uint32_t off_a = T::offset(g.zero[0]);
    const uint32_t off_b = T::offset(g.zero[1]);
    uint32_t ea[4][4], eb[4][4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
        for (int s = 0; s < 4; s++) {
            ea[c][s] = T::sub(and_or(word_of(a, c) >> 4 * s, 0x000f000fu, T::MAGIC), off_a);
            eb[c][s] = T::sub(and_or(word_of(b, c) >> 4 * s, 0x000f000fu, T::MAGIC), off_b);
            if (FOLD) {
                ea[c][s] = T::scaled(ea[c][s], g.scale[0]);
                eb[c][s] = T::scaled(eb[c][s], g.scale[1]);
            }
            pin(ea[c][s]);
            pin(eb[c][s]);
        }
    }
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t at = x + (uint32_t)(c / 2 * NT * 8 * BOX_BYTES + c % 2 * 64);
        product<T, NT>(sum, ea[c][0], eb[c][0], ea[c][1], eb[c][1], describe(at), FOLD || c > 0);
        product<T, NT>(sum, ea[c][2], eb[c][2], ea[c][3], eb[c][3], describe(at + 32), 1);
    }
    wgmma_commit();
}

template <int NT>
__device__ __forceinline__ void add_scaled(float (&acc)[NT * 4], float (&sum)[NT * 4],
                                           const w4_group &g)
{
#pragma unroll
    for (int i = 0; i < NT * 4; i++) {
        pin(sum[i]);
        acc[i] += g.scale[i / 2 % 2] * sum[i];
    }
}

/* ---- clusters ---- */

/* Shared memory of the cluster's block `rank` at this block's address `at`. */
__device__ __forceinline__ uint4 load_remote(uint32_t at, int32_t rank)
{
    uint4 v;
    asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %4, %5; "
                 "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [a]; }"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at), "r"(rank)
                 : "memory");
    return v;
}

/* Adds the cluster's sums in the order of K and writes them: each block lays its own into its ring,
 * which is done with, and makes every split'th fragment of the tile. */
template <int NT, int HALVES>
__device__ __forceinline__ void add_over_cluster(const args &p, uint32_t ring,
                                                 float (&acc)[HALVES][NT * 4], int32_t row0,
                                                 int32_t tok0, int lane)
{
    constexpr int FRAGMENTS = HALVES * NT;
    constexpr int BATCH = FRAGMENTS < 4 ? FRAGMENTS : 4;
    __syncthreads();
    const uint32_t mine = ring + threadIdx.x * 16;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
        const float *d = &acc[f / NT][f % NT * 4];
        store_16(mine + (uint32_t)f * GROUP_THREADS * 16,
                 make_uint4(__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]),
                            __float_as_uint(d[3])));
    }
    cluster_sync();
    const int32_t rank = (int32_t)blockIdx.x % p.split;
    for (int f0 = rank; f0 < FRAGMENTS; f0 += BATCH * p.split) {
        uint4 v[BATCH];
#pragma unroll 4
        for (int32_t r = 0; r < p.split; r++) {
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const int f = f0 + j * p.split;
                if (f < FRAGMENTS) {
                    uint4 u = load_remote(mine + (uint32_t)f * GROUP_THREADS * 16, r);
                    v[j] = r == 0 ? u : add_bits<W4A16>(v[j], u);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int f = f0 + j * p.split;
            if (f < FRAGMENTS) {
                write_fragment<W4A16>(p, row0 + f / NT * 64, tok0 + f % NT * 8, v[j], lane);
            }
        }
    }
    cluster_sync();
}

#endif

/* What registers allow. */
template <int NT, int HALVES> constexpr int blocks_per_sm()
{
    return HALVES * NT >= 16 ? 1 : NT <= 2 && HALVES == 1 ? 3 : 2;
}

/* Bytes from one stage to the next. */
__host__ __device__ constexpr uint32_t stage_of(uint32_t x_bytes, int32_t w_bytes)
{
    return (x_bytes + (uint32_t)w_bytes + 1023) & ~1023u;
}

/* Long because of what skinny_kernel is. */
template <class T, int NT, int HALVES>
__global__ void __launch_bounds__(GROUP_THREADS, (blocks_per_sm<NT, HALVES>()))
    wgmma_kernel(const __grid_constant__ args p, const __grid_constant__ CUtensorMap x_map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int BLOCKS = 2 * HALVES; /* of 64 rows in a tile */
    constexpr int FRAGMENTS = HALVES * NT;
    constexpr bool FOLD = FRAGMENTS == 32; /* no registers for sums beside acc */
    constexpr int SUMS = FOLD ? 0 : FRAGMENTS <= 4 || FRAGMENTS == 16 ? HALVES : 1; /* under way */
    constexpr uint32_t X_BYTES = NT * 8 * 2 * BOX_BYTES;
    extern __shared__ uint8_t smem[];
    __shared__ int32_t is_last;
    __shared__ __align__(8) uint64_t barriers[2 * MAX_STAGES]; /* full, empty */

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const uint32_t ring = (smem_of(smem) + 1023) & ~1023u; /* as the swizzle wants it */
    const uint32_t stage_bytes = stage_of(X_BYTES, BLOCKS * p.block_bytes);
    const uint32_t full = smem_of(barriers);
    const uint32_t empty = full + MAX_STAGES * 8;
    if (threadIdx.x == 0) {
        for (int32_t s = 0; s < p.stages; s++) {
            barrier_init(full + (uint32_t)s * 8, 1);
            barrier_init(empty + (uint32_t)s * 8, GROUP_THREADS / 32);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();

    const int64_t units = (int64_t)p.row_tiles * p.tok_tiles * p.steps;
    int64_t first = (int64_t)blockIdx.x * units / gridDim.x;
    int32_t count = (int32_t)((int64_t)(blockIdx.x + 1) * units / gridDim.x - first);
    if (p.split > 0) {
        const int32_t rank = (int32_t)blockIdx.x % p.split;
        const int32_t k0 = rank * p.steps / p.split;
        first = (int64_t)((int32_t)blockIdx.x / p.split) * p.steps + k0;
        count = (rank + 1) * p.steps / p.split - k0;
    }

    uint64_t policy;
    if (p.tok_tiles == 1) {
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    } else {
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    }

    int32_t fetch_tile = (int32_t)(first / p.steps);
    int32_t fetch_step = (int32_t)(first % p.steps);
    int32_t fetched = 0;
    int32_t fetch_slot = 0;
    uint32_t fetch_parity = 1; /* of an empty slot: at first all are */
    auto fetch_x = [&](int32_t tile, int32_t step, int32_t slot) {
        const uint32_t x = ring + stage_bytes * (uint32_t)slot;
        const uint32_t barrier = full + (uint32_t)slot * 8;
        const int32_t tok0 = tile % p.tok_tiles * NT * 8;
        tensor_copy(x, &x_map, step * 128, tok0, barrier);
        tensor_copy(x + X_BYTES / 2, &x_map, step * 128 + 64, tok0, barrier);
    };
    /* The next step's; its x is left to the caller when `weights_alone`. */
    auto fetch = [&](bool weights_alone) {
        if (fetched >= count) {
            return;
        }
        const uint32_t w = ring + stage_bytes * (uint32_t)fetch_slot + X_BYTES;
        const uint32_t barrier = full + (uint32_t)fetch_slot * 8;
        const int32_t row_block = fetch_tile / p.tok_tiles * BLOCKS;
        const int32_t left = (p.n_out + 63) / 64 - row_block;
        const int32_t blocks = left < BLOCKS ? left : BLOCKS;
        barrier_wait(empty + (uint32_t)fetch_slot * 8, fetch_parity);
        barrier_expect(barrier, X_BYTES + (uint32_t)(blocks * p.block_bytes));
        for (int32_t b = 0; b < blocks; b++) {
            bulk_copy(w + (uint32_t)(b * p.block_bytes),
                      p.w + ((int64_t)(row_block + b) * p.steps + fetch_step) * p.block_bytes,
                      p.block_bytes, barrier, policy);
        }
        if (!weights_alone) {
            fetch_x(fetch_tile, fetch_step, fetch_slot);
        }
        fetched++;
        if (++fetch_slot == p.stages) {
            fetch_slot = 0;
            fetch_parity ^= 1;
        }
        if (++fetch_step == p.steps) {
            fetch_step = 0;
            fetch_tile++;
        }
    };
    /* One slot less than there are: a warpgroup may be a step ahead of the other. Weights come
     * before the kernels that make x have ended. */
    if (threadIdx.x == 0) {
        for (int32_t s = 0; s + 2 < p.stages; s++) {
            fetch(true);
        }
    }
    __syncwarp();
    bt_wait_for_previous();
    if (threadIdx.x == 0) {
        for (int32_t s = 0; s < fetched; s++) {
            const int64_t unit = first + s;
            fetch_x((int32_t)(unit / p.steps), (int32_t)(unit % p.steps), s);
        }
    }
    __syncwarp();

    float acc[HALVES][NT * 4] = {};
    int32_t tile = (int32_t)(first / p.steps);
    int32_t step = (int32_t)(first % p.steps);
    int32_t begin = step; /* of this block's part of the tile */
    int32_t slot = 0;
    uint32_t parity = 0;
    for (int32_t i = 0; i < count; i++) {
        const uint32_t x = ring + stage_bytes * (uint32_t)slot;
        const uint32_t w = x + X_BYTES + (uint32_t)(warp / 4 * HALVES * p.block_bytes);
        const uint32_t used = empty + (uint32_t)slot * 8;
        barrier_wait(full + (uint32_t)slot * 8, parity);
        if (++slot == p.stages) {
            slot = 0;
            parity ^= 1;
        }
        float sum[FOLD ? 1 : SUMS][NT * 4];
        w4_group g[HALVES];
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const uint32_t block = w + (uint32_t)(h * p.block_bytes);
            g[h] = load_group(block, 1, p.zero, 0, warp % 4, lane);
            if constexpr (FOLD) {
                start<T, NT, true>(acc[h], block, x, g[h], warp % 4, lane);
            } else {
                start<T, NT, false>(sum[h % SUMS], block, x, g[h], warp % 4, lane);
            }
            if (h == 0) {
                /* Hundreds of instructions, behind the products; step i came an iteration ago. */
                if (threadIdx.x == 0) {
                    fetch(false);
                }
                __syncwarp();
            }
            if (SUMS == 1 && HALVES == 2) {
                wgmma_wait<0>();
                add_scaled<NT>(acc[h], sum[0], g[h]);
            }
        }
        if constexpr (FOLD) {
            wgmma_wait<0>();
        } else if constexpr (SUMS == HALVES && HALVES == 2) {
            wgmma_wait<1>();
            add_scaled<NT>(acc[0], sum[0], g[0]);
            wgmma_wait<0>();
            add_scaled<NT>(acc[1], sum[1], g[1]);
        } else if constexpr (SUMS == HALVES) {
            wgmma_wait<0>();
            add_scaled<NT>(acc[0], sum[0], g[0]);
        }
        if (lane == 0) {
            barrier_arrive(used);
        }
        step++;
        if (step < p.steps && i + 1 < count) {
            continue;
        }

        if (i + 1 == count) {
            bt_let_next_begin();
        }
#pragma unroll
        for (int f = 0; f < FRAGMENTS * 4; f++) {
            pin(acc[f / (NT * 4)][f % (NT * 4)]);
        }
        /* The block's part of a tile is done: as in skinny_kernel. */
        const int32_t row0 = (tile / p.tok_tiles * BLOCKS + warp / 4 * HALVES) * 64 + warp % 4 * 16;
        const int32_t tok0 = tile % p.tok_tiles * NT * 8;
        if (p.split > 0) {
            add_over_cluster<NT, HALVES>(p, ring, acc, row0, tok0, lane);
            break;
        }
        const bool whole = begin == 0 && step == p.steps;
        constexpr int64_t PART = (int64_t)FRAGMENTS * GROUP_THREADS;
        uint4 *mine = p.partial + ((int64_t)blockIdx.x * 2 + (begin == 0)) * PART + threadIdx.x;
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
            const float *d = &acc[f / NT][f % NT * 4];
            __stcg(mine + f * GROUP_THREADS,
                   make_uint4(__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]),
                              __float_as_uint(d[3])));
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
            constexpr int BATCH = FRAGMENTS < 8 ? FRAGMENTS : 8;
            for (int f0 = 0; f0 < FRAGMENTS; f0 += BATCH) {
                const uint4 *part = p.partial + threadIdx.x + f0 * GROUP_THREADS;
                uint4 v[BATCH];
#pragma unroll
                for (int f = 0; f < BATCH; f++) {
                    v[f] = __ldcg(part + (from * 2 + 1) * PART + f * GROUP_THREADS);
                }
#pragma unroll(16 / BATCH)
                for (int32_t b = from + 1; b <= to; b++) {
#pragma unroll
                    for (int f = 0; f < BATCH; f++) {
                        v[f] =
                            add_bits<W4A16>(v[f], __ldcg(part + b * 2 * PART + f * GROUP_THREADS));
                    }
                }
#pragma unroll
                for (int f = 0; f < BATCH; f++) {
                    const int all = f0 + f;
                    write_fragment<W4A16>(p, row0 + all / NT * 64, tok0 + all % NT * 8, v[f], lane);
                }
            }
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
#pragma unroll
            for (int j = 0; j < NT * 4; j++) {
                acc[h][j] = 0.0f;
            }
        }
        begin = 0;
        if (step == p.steps) {
            step = 0;
            tile++;
        }
    }
#endif
}

/* ---- launching ---- */

template <class T, int NT, int HALVES>
bool launch_wgmma(args p, const struct linear_skinny_place &at, bool cluster, bool dry,
                  cudaStream_t stream)
{
    constexpr int FRAGMENTS = HALVES * NT;
    p.row_tiles = (p.n_out + 128 * HALVES - 1) / (128 * HALVES);
    p.tok_tiles = (p.m + NT * 8 - 1) / (NT * 8);
    p.steps = (p.n_in + 127) / 128;
    const int32_t stage = (int32_t)stage_of(NT * 8 * 2 * BOX_BYTES, 2 * HALVES * p.block_bytes);
    const int32_t per_sm = blocks_per_sm<NT, HALVES>();
    /* 1 KB for the block itself, 1 KB to align the ring. */
    p.stages = ((at.smem_block + 1024) / per_sm - 2048 - STATIC_BYTES) / stage;
    p.stages = p.stages > MAX_STAGES ? MAX_STAGES : p.stages;
    const int64_t tiles = (int64_t)p.row_tiles * p.tok_tiles;
    const int64_t units = tiles * p.steps;
    int64_t blocks = (int64_t)at.n_sms * per_sm;
    int32_t smem = p.stages * stage + 1024;
    if (cluster) {
        p.split = (int32_t)(blocks / tiles);
        p.split = p.split < 1 ? 1 : p.split > MAX_SPLIT ? MAX_SPLIT : p.split;
        p.split = p.split < p.steps ? p.split : p.steps;
        blocks = tiles * p.split;
        const int32_t sums = FRAGMENTS * GROUP_THREADS * 16 + 1024;
        smem = smem > sums ? smem : sums;
    } else {
        blocks = blocks < units ? blocks : units;
    }
    const int64_t partial = cluster ? 0 : blocks * 2 * FRAGMENTS * GROUP_THREADS * 16;
    if (p.stages < 3 || partial > at.partial_bytes || units > INT32_MAX || tiles > at.n_arrived) {
        return false;
    }
    if (dry) {
        return true;
    }
    CUtensorMap x_map;
    if (!map_rows(p.x, p.m, p.n_in, 2, NT * 8, &x_map)) {
        return false;
    }
    p.partial = (uint4 *)at.partial;
    p.arrived = at.arrived;
    static bool allowed = false;
    if (!allowed) {
        (void)cudaFuncSetAttribute(wgmma_kernel<T, NT, HALVES>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   at.smem_block - STATIC_BYTES);
        allowed = true;
    }
    bt_launch({dim3((unsigned)blocks), dim3(GROUP_THREADS), (size_t)smem,
               dim3((unsigned)(p.split > 1 ? p.split : 1))},
              stream, wgmma_kernel<T, NT, HALVES>, p, x_map);
    return true;
}

template <class T, int HALVES>
bool launch_wgmma_for(const args &p, const struct linear_skinny_place &at, bool cluster, bool dry,
                      cudaStream_t stream)
{
    return p.m <= 8    ? launch_wgmma<T, 1, HALVES>(p, at, cluster, dry, stream)
           : p.m <= 16 ? launch_wgmma<T, 2, HALVES>(p, at, cluster, dry, stream)
           : p.m <= 32 ? launch_wgmma<T, 4, HALVES>(p, at, cluster, dry, stream)
           : p.m <= 64 ? launch_wgmma<T, 8, HALVES>(p, at, cluster, dry, stream)
                       : launch_wgmma<T, 16, HALVES>(p, at, cluster, dry, stream);
}

} // namespace

bool linear_wgmma(const struct bt_cuda_linear *l, bool bf16, int32_t halves, bool cluster,
                  const void *x, int32_t m, struct linear_y y, const struct linear_skinny_place *at,
                  bool dry, cudaStream_t stream)
{
    BT_ASSERT((halves == 1 || halves == 2) && (uintptr_t)x % 16 == 0);
    if (at->cc != 90 || !l->packed || l->group != 128 || l->int8_x) {
        return false;
    }
    args p = args_of(l, 1, x, NULL, m, y);
    if (bf16) {
        return halves == 1 ? launch_wgmma_for<bf16_t, 1>(p, *at, cluster, dry, stream)
                           : launch_wgmma_for<bf16_t, 2>(p, *at, cluster, dry, stream);
    }
    return halves == 1 ? launch_wgmma_for<f16_t, 1>(p, *at, cluster, dry, stream)
                       : launch_wgmma_for<f16_t, 2>(p, *at, cluster, dry, stream);
}
