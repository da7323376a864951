/* Products of many rows on Hopper: INT8 x INT8 and 16-bit x 16-bit, both operands read from shared
 * memory by the tensor cores' asynchronous products (wgmma), whose M are tokens and N outputs.
 *
 * Two warpgroups of a block multiply, one thread of a third asks for what comes next: x and weights
 * by tensor maps, a stage being 128 bytes along K. Two blocks form a cluster that has one operand
 * in common: each fetches half of it for both, so L2 is read less. Blocks stay and take tile after
 * tile; the next tile's stages come while one's results leave. INT8 sums are scaled by token and
 * channel in registers, so no int32 goes to memory. Of a gate and an up product in one, a tile may
 * have the rows of both that make the same outputs: silu(gate) * up leaves it, half the numbers,
 * and nothing reads them again.
 *
 * 2 M N K operations; L2 is read M N K (1 / TM + 1 / TN) times the element's bytes, one of the two
 * halved.
 */
#include "engine/cuda/linear_hopper.cuh"
#include "engine/cuda/linear_parts.cuh"

using namespace hopper;

namespace
{

constexpr int MULTIPLIERS = 256; /* threads: two warpgroups */
constexpr int BLOCK_THREADS = MULTIPLIERS + 128;
constexpr int STEP_BYTES = 128; /* of a stage along K */
constexpr int MAX_STAGES = 8;
constexpr int STATIC_BYTES = 1024; /* barriers, and what aligning the ring may take */

enum kind { INT8, BF16, FP16 };

template <kind KIND> struct sum_of {
    using type = float;
};
template <> struct sum_of<INT8> {
    using type = int32_t;
};

/* A tile of a block: 128 HALVES tokens x TN outputs; the cluster's blocks lie side by side along
 * the outputs and share x (SHARE_X), or along the tokens and share weights. */
template <int HALVES, int TN, bool SHARE_X> struct tile_of {
    static constexpr int TM = 128 * HALVES;
    static constexpr int X_BYTES = TM * STEP_BYTES;
    static constexpr int W_BYTES = TN * STEP_BYTES;
    static constexpr int STAGE_BYTES = X_BYTES + W_BYTES;
    static constexpr int STAGES = (227 * 1024 - STATIC_BYTES) / STAGE_BYTES < MAX_STAGES
                                      ? (227 * 1024 - STATIC_BYTES) / STAGE_BYTES
                                      : MAX_STAGES;
    static constexpr int PAIR_TOKENS = SHARE_X ? TM : 2 * TM;
    static constexpr int PAIR_ROWS = SHARE_X ? 2 * TN : TN;
    static constexpr int X_BOX = SHARE_X ? TM / 2 : TM;
    static constexpr int W_BOX = SHARE_X ? TN : TN / 2;
    static_assert(X_BOX % 8 == 0 && W_BOX % 8 == 0 && X_BOX <= 256 && W_BOX <= 256, "boxes");
    static_assert(TN % 32 == 0, "the results leave four groups of 8 outputs at a time");
};

struct args {
    const float *w_scale; /* [N]: INT8 */
    const float *bias;    /* [N]; null: none */
    const float *x_scale; /* [M]: INT8; null: x_one */
    float x_one;
    struct linear_y y;
    bool eights;         /* rows' columns 0, 8, 16 .. of 16-bit results are aligned to 16 bytes */
    int32_t m, n_out;    /* outputs that are written: with SiLU half of the weights' rows */
    int32_t token_pairs; /* of a row of pairs of tiles */
    int32_t pairs;
    int32_t steps;
};

/* The host's pass and that for 9.0a; other architectures have no use for what follows. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define BT_TEN(t)                                                                                  \
    "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t         \
    "8, %" #t "9"
#define BT_D8(c, i)                                                                                \
    c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]),         \
        c(d[i + 7])
#define BT_D32(c, i) BT_D8(c, i), BT_D8(c, i + 8), BT_D8(c, i + 16), BT_D8(c, i + 24)

/* The first 80, 128 registers of an instruction. */
#define BT_80                                                                                      \
    BT_TEN()                                                                                       \
    ", " BT_TEN(1) ", " BT_TEN(2) ", " BT_TEN(3) ", " BT_TEN(4) ", " BT_TEN(5) ", " BT_TEN(        \
        6) ", " BT_TEN(7)
#define BT_128                                                                                     \
    BT_80 ", " BT_TEN(8) ", " BT_TEN(9) ", " BT_TEN(10) ", " BT_TEN(11) ", %120, %121, %122, "     \
                                                                        "%123, %124, %125, %126, " \
                                                                        "%127"
#define BT_D80(c)  BT_D32(c, 0), BT_D32(c, 32), BT_D8(c, 64), BT_D8(c, 72)
#define BT_D128(c) BT_D32(c, 0), BT_D32(c, 32), BT_D32(c, 64), BT_D32(c, 96)

/* `next`: the numbers of the registers after the sums'. */
#define BT_PRODUCT(n, type, sums, next_x, next_w, next_add, tail, ...)                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " next_add ", 0; "                                \
                 "wgmma.mma_async.sync.aligned.m64n" n type " {" sums "}, " next_x ", " next_w     \
                 ", p" tail "; }"                                                                  \
                 : __VA_ARGS__                                                                     \
                 : "l"(x), "l"(w), "r"(add))
#define BT_PRODUCT_OF(TN, type, c, tail)                                                           \
    if constexpr (TN == 160) {                                                                     \
        BT_PRODUCT("160", type, BT_80, "%80", "%81", "%82", tail, BT_D80(c));                      \
    } else {                                                                                       \
        BT_PRODUCT("256", type, BT_128, "%128", "%129", "%130", tail, BT_D128(c));                 \
    }

/* d = x wᵀ (+ d when add): 64 tokens x TN outputs x 32 bytes along K, over the warpgroup. */
template <kind KIND, int TN, class Sum>
__device__ __forceinline__ void product(Sum (&d)[TN / 2], uint64_t x, uint64_t w, int add)
{
    static_assert(TN == 160 || TN == 256, "a product's outputs");
    if constexpr (KIND == INT8) {
        BT_PRODUCT_OF(TN, "k32.s32.s8.s8", "+r", "")
    } else if constexpr (KIND == BF16) {
        BT_PRODUCT_OF(TN, "k16.f32.bf16.bf16", "+f", ", 1, 1, 0, 0")
    } else {
        BT_PRODUCT_OF(TN, "k16.f32.f16.f16", "+f", ", 1, 1, 0, 0")
    }
}

/* Two neighbours, rounded to the compute type. */
__device__ __forceinline__ uint32_t pack(const struct linear_y &y, float a, float b)
{
    if (y.bf16) {
        __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
        return *(const uint32_t *)&two;
    }
    __half2 two = __floats2half2_rn(a, b);
    return *(const uint32_t *)&two;
}

/* Lane q of each four: of v[j], which holds columns 2 q and 2 q + 1 of group j of 8, to all 8
 * columns of group q. */
__device__ __forceinline__ void transpose(uint32_t (&v)[4], int lane)
{
    const bool odd = (lane & 1) != 0;
    uint32_t r0 = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 1);
    uint32_t r1 = __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 1);
    v[0] = odd ? r0 : v[0];
    v[1] = odd ? v[1] : r0;
    v[2] = odd ? r1 : v[2];
    v[3] = odd ? v[3] : r1;
    const bool high = (lane & 2) != 0;
    r0 = __shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 2);
    r1 = __shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 2);
    v[0] = high ? r0 : v[0];
    v[1] = high ? r1 : v[1];
    v[2] = high ? v[2] : r0;
    v[3] = high ? v[3] : r1;
}

__device__ __forceinline__ float round_16(const struct linear_y &y, float x)
{
    return y.bf16 ? __bfloat162float(__float2bfloat16_rn(x)) : __half2float(__float2half_rn(x));
}

/* silu(gate) * up, all rounded as by products and bt_cuda_silu_mul, but for the last bits of e^x.
 */
__device__ __forceinline__ float silu_mul(const struct linear_y &y, float gate, float up)
{
    const float g = round_16(y, gate);
    return round_16(y, __fdividef(g, 1.0f + __expf(-g))) * round_16(y, up);
}

/* Writes a warpgroup's sums: HALVES times 64 tokens from `token0` on, from output n0 on TN, or with
 * SILU half as many. */
template <kind KIND, int HALVES, int TN, bool SILU, class Sum>
__device__ __forceinline__ void write_tile(const args &p, const Sum (&sum)[HALVES][TN / 2],
                                           int32_t token0, int32_t n0, int warp, int lane)
{
    float x_scale[HALVES][2];
#pragma unroll
    for (int i = 0; i < 2 * HALVES; i++) {
        const int32_t t = token0 + i / 2 * 64 + warp * 16 + i % 2 * 8 + lane / 4;
        x_scale[i / 2][i % 2] =
            KIND != INT8 || p.x_scale == nullptr || t >= p.m ? p.x_one : p.x_scale[t];
    }
#pragma unroll
    for (int c0 = 0; c0 < (SILU ? TN / 16 : TN / 8); c0 += 4) {
        float w_scale[4][2], bias[4][2];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            /* What is read in vain is not written: no branch parts the loads. */
            int32_t n = n0 + (c0 + i / 2) * 8 + lane % 4 * 2 + i % 2;
            n = n < p.n_out ? n : p.n_out - 1;
            w_scale[i / 2][i % 2] = KIND == INT8 ? p.w_scale[n] : 1.0f;
            bias[i / 2][i % 2] = p.bias == nullptr ? 0.0f : p.bias[n];
        }
#pragma unroll
        for (int h = 0; h < 2 * HALVES; h++) {
            const int32_t t = token0 + h / 2 * 64 + warp * 16 + h % 2 * 8 + lane / 4;
            float v[4][2];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = (c0 + i / 2) * 4 + h % 2 * 2 + i % 2;
                float one = (float)sum[h / 2][at];
                if constexpr (SILU) {
                    one = silu_mul(p.y, one, (float)sum[h / 2][at + TN / 4]);
                }
                if constexpr (KIND == INT8) {
                    one = one * w_scale[i / 2][i % 2] * x_scale[h / 2][h % 2];
                }
                v[i / 2][i % 2] = p.bias == nullptr ? one : one + bias[i / 2][i % 2];
            }
            if (p.eights) {
                uint32_t two[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    two[j] = pack(p.y, v[j][0], v[j][1]);
                }
                transpose(two, lane);
                const int32_t n = n0 + (c0 + lane % 4) * 8;
                if (t < p.m && n < p.n_out) {
                    *(uint4 *)((uint16_t *)p.y.p + (int64_t)t * p.y.ld + n) =
                        make_uint4(two[0], two[1], two[2], two[3]);
                }
                continue;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int32_t n = n0 + (c0 + i / 2) * 8 + lane % 4 * 2 + i % 2;
                if (t < p.m && n < p.n_out) {
                    linear_store(p.y, (int64_t)t * p.y.ld + n, v[i / 2][i % 2]);
                }
            }
        }
    }
}

#endif

/* Long because fetching and multiplying are the two sides of one ring. */
template <kind KIND, int HALVES, int TN, bool SHARE_X, bool SILU>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    tiles_kernel(const __grid_constant__ args p, const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap w_map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using tile = tile_of<HALVES, TN, SHARE_X>;
    static_assert(!SILU || (!SHARE_X && KIND != INT8), "SiLU: a block fetches gate, the other up");
    constexpr int STAGES = tile::STAGES;
    extern __shared__ uint8_t smem[];
    __shared__ __align__(8) uint64_t barriers[2 * MAX_STAGES]; /* full, empty */
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int32_t rank = (int32_t)blockIdx.x % 2;
    const uint32_t ring = ((uint32_t)__cvta_generic_to_shared(smem) + 1023) & ~1023u;
    const uint32_t full = (uint32_t)__cvta_generic_to_shared(barriers);
    const uint32_t empty = full + MAX_STAGES * 8;
    if (threadIdx.x == 0) {
        for (int32_t s = 0; s < STAGES; s++) {
            barrier_init(full + (uint32_t)s * 8, 1);
            barrier_init(empty + (uint32_t)s * 8, 2 * MULTIPLIERS / 32); /* both blocks' warps */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();

    int32_t slot = 0;
    if (threadIdx.x >= MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        uint32_t parity = 1; /* of an empty slot: at first all are */
        if (threadIdx.x == MULTIPLIERS) {
            for (int32_t i = (int32_t)blockIdx.x / 2; i < p.pairs; i += (int32_t)gridDim.x / 2) {
                const int32_t token0 =
                    i % p.token_pairs * tile::PAIR_TOKENS + (SHARE_X ? 0 : rank * tile::TM);
                const int32_t n0 = i / p.token_pairs * tile::PAIR_ROWS + (SHARE_X ? rank * TN : 0);
                const int32_t w_row = SILU ? n0 / 2 + rank * p.n_out : n0 + rank * tile::W_BOX;
                for (int32_t step = 0; step < p.steps; step++) {
                    const uint32_t x = ring + (uint32_t)(slot * tile::STAGE_BYTES);
                    const uint32_t w = x + tile::X_BYTES;
                    const uint32_t barrier = full + (uint32_t)slot * 8;
                    const int32_t k = step * (KIND == INT8 ? STEP_BYTES : STEP_BYTES / 2);
                    barrier_wait(empty + (uint32_t)slot * 8, parity);
                    barrier_expect(barrier, tile::STAGE_BYTES);
                    if constexpr (SHARE_X) {
                        tensor_copy(w, &w_map, k, n0, barrier);
                        tensor_copy_both(x + (uint32_t)(rank * tile::X_BOX * STEP_BYTES), &x_map, k,
                                         token0 + rank * tile::X_BOX, barrier);
                    } else {
                        tensor_copy(x, &x_map, k, token0, barrier);
                        tensor_copy_both(w + (uint32_t)(rank * tile::W_BOX * STEP_BYTES), &w_map, k,
                                         w_row, barrier);
                    }
                    if (++slot == STAGES) {
                        slot = 0;
                        parity ^= 1;
                    }
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        uint32_t parity = 0;
        for (int32_t i = (int32_t)blockIdx.x / 2; i < p.pairs; i += (int32_t)gridDim.x / 2) {
            typename sum_of<KIND>::type sum[HALVES][TN / 2];
            uint32_t used = 0; /* the step before's slot */
            for (int32_t step = 0; step < p.steps; step++) {
                const uint32_t x = ring + (uint32_t)(slot * tile::STAGE_BYTES) +
                                   (uint32_t)(warp / 4 * HALVES * 64 * STEP_BYTES);
                const uint32_t w = ring + (uint32_t)(slot * tile::STAGE_BYTES + tile::X_BYTES);
                barrier_wait(full + (uint32_t)slot * 8, parity);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < STEP_BYTES / 32; k++) {
#pragma unroll
                    for (int h = 0; h < HALVES; h++) {
                        product<KIND, TN>(sum[h],
                                          describe(x + (uint32_t)(h * 64 * STEP_BYTES + k * 32)),
                                          describe(w + (uint32_t)(k * 32)), step + k > 0);
                    }
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (step > 0 && lane < 2) {
                    barrier_arrive_at(used, lane);
                }
                used = empty + (uint32_t)slot * 8;
                if (++slot == STAGES) {
                    slot = 0;
                    parity ^= 1;
                }
            }
            wgmma_wait<0>();
            if (lane < 2) {
                barrier_arrive_at(used, lane);
            }
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
#pragma unroll
                for (int j = 0; j < TN / 2; j++) {
                    pin(sum[h][j]);
                }
            }
            const int32_t token0 = i % p.token_pairs * tile::PAIR_TOKENS +
                                   (SHARE_X ? 0 : rank * tile::TM) + warp / 4 * HALVES * 64;
            const int32_t n0 = i / p.token_pairs * tile::PAIR_ROWS + (SHARE_X ? rank * TN : 0);
            write_tile<KIND, HALVES, TN, SILU>(p, sum, token0, SILU ? n0 / 2 : n0, warp % 4, lane);
        }
    }
    /* The other block may still write to this one's memory, and arrive at its barriers. */
    cluster_sync();
#endif
}

template <kind KIND, int HALVES, int TN, bool SHARE_X, bool SILU>
bool launch(args p, const struct bt_cuda_linear *l, const void *x, int32_t n_sms,
            cudaStream_t stream)
{
    using tile = tile_of<HALVES, TN, SHARE_X>;
    constexpr int ELEM_BYTES = KIND == INT8 ? 1 : 2;
    constexpr int SMEM = tile::STAGES * tile::STAGE_BYTES + 1024 - 2 * MAX_STAGES * 8;
    CUtensorMap x_map, w_map;
    if (!map_rows(x, p.m, l->n_in, ELEM_BYTES, tile::X_BOX, &x_map) ||
        !map_rows(l->w, l->n_out, l->n_in, ELEM_BYTES, tile::W_BOX, &w_map)) {
        return false;
    }
    p.token_pairs = (p.m + tile::PAIR_TOKENS - 1) / tile::PAIR_TOKENS;
    p.pairs = (l->n_out + tile::PAIR_ROWS - 1) / tile::PAIR_ROWS * p.token_pairs;
    p.steps = (l->n_in * ELEM_BYTES + STEP_BYTES - 1) / STEP_BYTES;
    static bool allowed = false;
    if (!allowed) {
        (void)cudaFuncSetAttribute(tiles_kernel<KIND, HALVES, TN, SHARE_X, SILU>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM);
        allowed = true;
    }
    cudaLaunchAttribute shape = {};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(2 * (p.pairs < n_sms / 2 ? p.pairs : n_sms / 2)));
    config.blockDim = dim3(BLOCK_THREADS);
    config.dynamicSmemBytes = SMEM;
    config.stream = stream;
    config.attrs = &shape;
    config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, tiles_kernel<KIND, HALVES, TN, SHARE_X, SILU>, p, x_map,
                             w_map);
    return true;
}

template <kind KIND>
bool launch_for(const args &p, const struct bt_cuda_linear *l, const void *x, int32_t outputs,
                int32_t n_sms, cudaStream_t stream)
{
    return outputs == 160 ? launch<KIND, 2, 160, true, false>(p, l, x, n_sms, stream)
                          : launch<KIND, 1, 256, false, false>(p, l, x, n_sms, stream);
}

} // namespace

bool linear_tiles(const struct bt_cuda_linear *l, bool bf16, int32_t outputs, const void *x,
                  const float *x_scale, int32_t m, struct linear_y y,
                  const struct linear_skinny_place *at, bool dry, cudaStream_t stream)
{
    BT_ASSERT(outputs == 160 || outputs == 256);
    BT_ASSERT((uintptr_t)x % 16 == 0);
    bool int8 = l->weights == BT_CUDA_W8 && l->int8_x && l->n_groups == 1 && l->zero == NULL;
    bool same = int8 || (l->weights == BT_CUDA_W16 && !l->int8_x);
    if (at->cc != 90 || !same || l->n_in % (int8 ? 16 : 8) != 0) {
        return false;
    }
    if (dry) {
        return true;
    }
    args p = {};
    p.w_scale = l->scale;
    p.bias = l->bias;
    p.x_scale = x_scale;
    p.x_one = l->x_scale;
    p.y = y;
    p.eights = !y.f32 && y.fours && l->n_out % 8 == 0;
    p.m = m;
    p.n_out = l->n_out;
    return int8   ? launch_for<INT8>(p, l, x, outputs, at->n_sms, stream)
           : bf16 ? launch_for<BF16>(p, l, x, outputs, at->n_sms, stream)
                  : launch_for<FP16>(p, l, x, outputs, at->n_sms, stream);
}

bool linear_tiles_silu(const struct bt_cuda_linear *l, bool bf16, const void *x, int32_t m,
                       struct linear_y y, const struct linear_skinny_place *at, bool dry,
                       cudaStream_t stream)
{
    /* Fewer rows than these leave SMs without a tile in the last round. */
    constexpr int32_t LEAST_ROWS = 1024;
    if (at->cc != 90 || m < LEAST_ROWS || l->weights != BT_CUDA_W16 || l->int8_x ||
        l->bias != nullptr || l->perm != nullptr || l->n_in % 8 != 0 || l->n_out % 2 != 0) {
        return false;
    }
    if (dry) {
        return true;
    }
    args p = {};
    p.x_one = 1.0f;
    p.y = y;
    p.eights = y.fours && l->n_out % 16 == 0;
    p.m = m;
    p.n_out = l->n_out / 2;
    return bf16 ? launch<BF16, 1, 256, false, true>(p, l, x, at->n_sms, stream)
                : launch<FP16, 1, 256, false, true>(p, l, x, at->n_sms, stream);
}
