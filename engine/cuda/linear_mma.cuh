/* Instructions of the products for few rows: copies to shared memory, reads from it, and how each
 * pair of types multiplies. Internal to engine/cuda. */
#ifndef BT_ENGINE_CUDA_LINEAR_MMA_CUH
#define BT_ENGINE_CUDA_LINEAR_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace skinny
{

/* ---- instructions ---- */

__device__ __forceinline__ uint32_t smem_of(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void copy_16(uint32_t dst, const void *src, bool valid, uint64_t policy)
{
    int32_t bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(dst),
                 "l"(src), "r"(bytes), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void copy_x16(uint32_t dst, const void *src, bool valid)
{
    int32_t bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the newest `left` groups have come. */
__device__ __forceinline__ void wait_groups(int32_t left)
{
    switch (left) {
    case 1:
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        break;
    case 2:
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        break;
    case 3:
        asm volatile("cp.async.wait_group 3;" ::: "memory");
        break;
    default:
        asm volatile("cp.async.wait_group 4;" ::: "memory");
        break;
    }
}

__device__ __forceinline__ uint4 load_16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* Four 8 x 8 matrices of 16-bit elements; a lane gives the address of row lane % 8 of matrix
 * lane / 8. */
__device__ __forceinline__ uint4 load_matrices(uint32_t at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

__device__ __forceinline__ void store_16(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/* (a & b) | c */
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* ---- numbers: how each pair of types multiplies ---- */

struct bf16_t {
    static constexpr uint32_t MAGIC = 0x43004300u; /* 128: seven bits of fraction hold a number */
    static __device__ __forceinline__ uint32_t sub(uint32_t a, uint32_t b)
    {
        __nv_bfloat162 r = __hsub2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);
        return *(uint32_t *)&r;
    }
    /* a times a scale, rounded once: the scale is split into two numbers. */
    static __device__ __forceinline__ uint32_t scaled(uint32_t a, float scale)
    {
        __nv_bfloat162 q = *(__nv_bfloat162 *)&a;
        __nv_bfloat16 most = __float2bfloat16_rn(scale);
        __nv_bfloat16 rest = __float2bfloat16_rn(scale - __bfloat162float(most));
        __nv_bfloat162 r = __hfma2(q, {most, most}, __hmul2(q, {rest, rest}));
        return *(uint32_t *)&r;
    }
    /* 128 + 8 + zero, twice: exact. */
    static __device__ __forceinline__ uint32_t offset(int32_t zero)
    {
        __nv_bfloat162 r = __float2bfloat162_rn((float)(136 + zero));
        return *(uint32_t *)&r;
    }
    /* Four signed bytes; 128 + the low seven bits, less 128 or 256 by the sign. */
    static __device__ __forceinline__ void bytes(uint32_t w, uint32_t &lo, uint32_t &hi)
    {
        uint32_t u = __byte_perm(w, 0, 0x4140);
        uint32_t v = __byte_perm(w, 0, 0x4342);
        lo = sub(and_or(u, 0x007f007fu, MAGIC), and_or(u, 0x00800080u, MAGIC));
        hi = sub(and_or(v, 0x007f007fu, MAGIC), and_or(v, 0x00800080u, MAGIC));
    }
    static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

struct f16_t {
    static constexpr uint32_t MAGIC = 0x64006400u; /* 1024: ten bits of fraction */
    static __device__ __forceinline__ uint32_t sub(uint32_t a, uint32_t b)
    {
        __half2 r = __hsub2(*(__half2 *)&a, *(__half2 *)&b);
        return *(uint32_t *)&r;
    }
    static __device__ __forceinline__ uint32_t scaled(uint32_t a, float scale)
    {
        __half2 r = __hmul2(*(__half2 *)&a, __float2half2_rn(scale));
        return *(uint32_t *)&r;
    }
    static __device__ __forceinline__ uint32_t offset(int32_t zero)
    {
        __half2 r = __float2half2_rn((float)(1032 + zero));
        return *(uint32_t *)&r;
    }
    /* 1024 + 128 + q, less 1152. */
    static __device__ __forceinline__ void bytes(uint32_t w, uint32_t &lo, uint32_t &hi)
    {
        uint32_t u = w ^ 0x80808080u;
        lo = sub(__byte_perm(u, MAGIC, 0x7150), 0x64806480u);
        hi = sub(__byte_perm(u, MAGIC, 0x7352), 0x64806480u);
    }
    static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

__device__ __forceinline__ void mma_int8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

} // namespace skinny

#endif
