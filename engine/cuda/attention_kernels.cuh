/* What the attention kernels share: their arguments, tensor-core products, conversions. Internal to
 * engine/cuda.
 *
 * Products are mma.sync m16n8k16 with float sums. Of 8 x 8 pieces of its operands a lane holds,
 * with g = lane / 4 and t = lane % 4: A [16, 16]  a0: row g, columns 2t, 2t+1; a1: row g + 8; a2,
 * a3: the same, 8 columns on B [16, 8]   b0: rows 2t, 2t+1 of column g; b1: 8 rows on C [16, 8] c0,
 * c1: row g, columns 2t, 2t+1; c2, c3: row g + 8 The index that a product sums over may be permuted
 * at will, if A and B agree.
 */
#ifndef BT_ENGINE_CUDA_ATTENTION_KERNELS_CUH
#define BT_ENGINE_CUDA_ATTENTION_KERNELS_CUH

#include "engine/cuda/attention_plan.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* How a KV class stores elements. Products are of BF16 for BF16, else of FP16, which holds every
 * INT8. */
enum attn_kv { ATTN_BF16, ATTN_FP16, ATTN_INT8 };

/* By value to kernels. */
struct attn_args {
    const uint8_t *keys;    /* of the layer in block 0 */
    int64_t keys_to_values; /* bytes */
    int64_t block_bytes;
    int64_t scales; /* bytes from a block's keys to their scales; INT8 */
    int32_t block_tokens;
    int32_t n_kv_heads;
    int32_t n_heads;
    int32_t group; /* query heads a KV head */
    int32_t window;
    float scale_log2;    /* log2(e) / sqrt(head_dim) */
    bool bf16;           /* q and out; else FP16 */
    bool decode;         /* the pass writes no keys before a segment's first position */
    int32_t block_heads; /* KV heads of a block of the streaming kernel */
    int32_t max_blocks;
    int32_t q_stride;
    const int32_t *blocks; /* as bt_cuda_batch */
    const int32_t *shares; /* of the plan's list, as are the following */
    const struct bt_attn_item *items;
    const int32_t *n_chunks; /* a launch may have more blocks */
    const struct bt_attn_chunk *chunks;
    const uint16_t *q;
    uint16_t *out;
    float *partial;     /* [partial][n_kv_heads][rows of a tile][head_dim] */
    float2 *partial_ml; /* [partial][n_kv_heads][rows of a tile]: log2 of the maximum, sum */
    int32_t *finished;  /* [tile][n_kv_heads]; zeros between launches */
};

/* The kernels of one KV format. rows: 8 or 16, of a tile. aligned: every row of the pool starts at
 * a multiple of 16 bytes. */
struct attn_family {
    int32_t step_64, step_128; /* keys that a warp of the streaming kernel takes at once */
    /* Readies the chunk kernels; whether the one by wgmma is there for this device. */
    cudaError_t (*ready)(int32_t head_dim, bool *wgmma);
    /* Readies the streaming kernel; blocks of it that one multiprocessor holds. */
    cudaError_t (*resident)(int32_t head_dim, int32_t rows, bool aligned, int *blocks);
    void (*stream)(const attn_args &a, int32_t head_dim, int32_t rows, bool aligned, int32_t blocks,
                   cudaStream_t stream);
    void (*chunks)(const attn_args &a, int32_t head_dim, bool wgmma, int32_t blocks,
                   cudaStream_t stream);
};

extern const attn_family attn_bf16, attn_fp16, attn_int8;

/* The 16-bit type of products with a KV format. */
template <attn_kv KV> struct attn_pack;

template <> struct attn_pack<ATTN_BF16> {
    static constexpr bool BF16 = true;
    static __device__ __forceinline__ uint32_t of(float x, float y)
    {
        __nv_bfloat162 p = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<uint32_t *>(&p);
    }
};

template <> struct attn_pack<ATTN_FP16> {
    static constexpr bool BF16 = false;
    static __device__ __forceinline__ uint32_t of(float x, float y)
    {
        __half2 p = __floats2half2_rn(x, y);
        return *reinterpret_cast<uint32_t *>(&p);
    }
};

template <> struct attn_pack<ATTN_INT8> : attn_pack<ATTN_FP16> {
};

static __device__ __forceinline__ float2 attn_unpack(uint32_t p, bool bf16)
{
    if (bf16) {
        return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&p));
    }
    return __half22float2(*reinterpret_cast<__half2 *>(&p));
}

/* Two numbers of the compute type as two of the products' type. */
template <attn_kv KV> static __device__ __forceinline__ uint32_t attn_convert(uint32_t p, bool bf16)
{
    if (bf16 == attn_pack<KV>::BF16) {
        return p;
    }
    float2 f = attn_unpack(p, bf16);
    return attn_pack<KV>::of(f.x, f.y);
}

static __device__ __forceinline__ uint32_t attn_out(float x, float y, bool bf16)
{
    return bf16 ? attn_pack<ATTN_BF16>::of(x, y) : attn_pack<ATTN_FP16>::of(x, y);
}

/* c += a b */
template <bool BF16>
static __device__ __forceinline__ void attn_mma(float (&c)[4], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    if (BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

/* 2^x to 2 units in the last place; 0 for -infinity. */
static __device__ __forceinline__ float attn_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A maximum to subtract: 0 where no key has been seen, so that -infinity stays what it is. */
static __device__ __forceinline__ float attn_base(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* Bytes {1, 0} or {3, 2} of x as two FP16, each byte being an INT8 plus 128: 1024 + byte is
 * assembled from bits, and 1152 taken off. */
template <int HIGH> static __device__ __forceinline__ uint32_t attn_int8_pair(uint32_t x)
{
    uint32_t p = __byte_perm(x, 0x64646464, HIGH ? 0x4342 : 0x4140);
    uint32_t bias = 0x64806480;
    __half2 h = __hsub2(*reinterpret_cast<__half2 *>(&p), *reinterpret_cast<__half2 *>(&bias));
    return *reinterpret_cast<uint32_t *>(&h);
}

static __device__ __forceinline__ float attn_scale(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

#endif
