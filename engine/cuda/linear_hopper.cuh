/* Hopper's instructions that several files of the linear layers use: the copy engine and its
 * barriers, the asynchronous products' fences and operands, clusters. Internal to engine/cuda. */
#ifndef BT_ENGINE_CUDA_LINEAR_HOPPER_CUH
#define BT_ENGINE_CUDA_LINEAR_HOPPER_CUH

#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace hopper
{

/* The host's pass and that for 9.0a; other architectures have no use for what follows. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* An operand of rows of 128 bytes, swizzled in groups of 8. */
__device__ __forceinline__ uint64_t describe(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all but the newest LEFT groups of products are made. */
template <int LEFT> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Keep the compiler from moving what makes or uses a register over this point. */
__device__ __forceinline__ void pin(uint32_t &v)
{
    asm volatile("" : "+r"(v)::"memory");
}

__device__ __forceinline__ void pin(int32_t &v)
{
    asm volatile("" : "+r"(v)::"memory");
}

__device__ __forceinline__ void pin(float &v)
{
    asm volatile("" : "+f"(v)::"memory");
}

/* ---- barriers and the copy engine ---- */

__device__ __forceinline__ void barrier_init(uint32_t barrier, int32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* At the barrier that block `rank` of the cluster has at this block's address. Releases nothing but
 * what the block itself would see: with the cluster's scope, a fence for all memory comes before it
 * (twice the time of a product). */
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, int32_t rank)
{
    asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [a]; }" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again; }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, int32_t bytes,
                                          uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* A box of a matrix, its first column k and row `row`. */
__device__ __forceinline__ void tensor_copy(uint32_t dst, const CUtensorMap *map, int32_t k,
                                            int32_t row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
                 "l"(map), "r"(k), "r"(row), "r"(barrier)
                 : "memory");
}

/* To the same place of both blocks of a cluster of two, and to both blocks' barriers. */
__device__ __forceinline__ void tensor_copy_both(uint32_t dst, const CUtensorMap *map, int32_t k,
                                                 int32_t row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
                 "l"(map), "r"(k), "r"(row), "r"(barrier), "h"((uint16_t)3)
                 : "memory");
}

/* ---- clusters ---- */

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

#endif

/* The driver's function that makes tensor maps; NULL where there is none. */
inline PFN_cuTensorMapEncodeTiled_v12000 find_encode()
{
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t rc = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                      cudaEnableDefault, &result);
    return rc == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? (PFN_cuTensorMapEncodeTiled_v12000)found
               : nullptr;
}

/* A matrix [rows, columns] in boxes of box_rows x 128 bytes, swizzled, zeros beyond its ends;
 * false when the driver refuses. Rows are multiples of 16 bytes, p is aligned to 16. */
inline bool map_rows(const void *p, int64_t rows, int64_t columns, int32_t elem_bytes,
                     int32_t box_rows, CUtensorMap *map)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
    const cuuint64_t sizes[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[1] = {(cuuint64_t)(columns * elem_bytes)};
    const cuuint32_t box[2] = {(cuuint32_t)(128 / elem_bytes), (cuuint32_t)box_rows};
    const cuuint32_t apart[2] = {1, 1};
    return encode != nullptr &&
           encode(map,
                  elem_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                  2, (void *)p, sizes, strides, box, apart, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace hopper

#endif
