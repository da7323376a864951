/* The kernels of one KV format, as a table. Each format's is made in a file of its own, so that
 * they compile side by side. Internal to engine/cuda. */
#ifndef BT_ENGINE_CUDA_ATTENTION_FAMILY_CUH
#define BT_ENGINE_CUDA_ATTENTION_FAMILY_CUH

#include "engine/cuda/attention_stream.cuh"
#include "engine/cuda/attention_wgmma.cuh"

template <attn_kv KV, int D> static cudaError_t family_ready_of(bool *wgmma)
{
    cudaError_t rc = cudaFuncSetAttribute(
        &chunk_kernel<KV, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, chunk_bytes<KV, D>());
    return rc == cudaSuccess ? wgmma_built<KV, D>(wgmma) : rc;
}

template <attn_kv KV> static cudaError_t family_ready(int32_t head_dim, bool *wgmma)
{
    return head_dim == 64 ? family_ready_of<KV, 64>(wgmma) : family_ready_of<KV, 128>(wgmma);
}

template <attn_kv KV, int D>
static cudaError_t family_resident_of(int32_t rows, bool aligned, int *blocks)
{
    auto kernel = stream_kernel_of<KV, D>(rows, aligned);
    int bytes = stream_bytes<KV, D>(rows);
    cudaError_t rc =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rc != cudaSuccess) {
        return rc;
    }
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, 32 * BT_ATTN_WARPS,
                                                         (size_t)bytes);
}

template <attn_kv KV>
static cudaError_t family_resident(int32_t head_dim, int32_t rows, bool aligned, int *blocks)
{
    return head_dim == 64 ? family_resident_of<KV, 64>(rows, aligned, blocks)
                          : family_resident_of<KV, 128>(rows, aligned, blocks);
}

template <attn_kv KV>
static void family_stream(const attn_args &a, int32_t head_dim, int32_t rows, bool aligned,
                          int32_t blocks, cudaStream_t stream)
{
    auto kernel = head_dim == 64 ? stream_kernel_of<KV, 64>(rows, aligned)
                                 : stream_kernel_of<KV, 128>(rows, aligned);
    int bytes = head_dim == 64 ? stream_bytes<KV, 64>(rows) : stream_bytes<KV, 128>(rows);
    bt_launch({dim3((unsigned)blocks), dim3(32 * BT_ATTN_WARPS), (size_t)bytes}, stream, kernel, a);
}

template <attn_kv KV, int D>
static void family_chunks_of(const attn_args &a, bool wgmma, int32_t blocks, cudaStream_t stream)
{
    if (wgmma) {
        wgmma_kernel<KV, D><<<blocks, WGMMA_THREADS, wgmma_bytes<D>(), stream>>>(a);
    } else {
        chunk_kernel<KV, D><<<blocks, CHUNK_THREADS, chunk_bytes<KV, D>(), stream>>>(a);
    }
}

template <attn_kv KV>
static void family_chunks(const attn_args &a, int32_t head_dim, bool wgmma, int32_t blocks,
                          cudaStream_t stream)
{
    if (head_dim == 64) {
        family_chunks_of<KV, 64>(a, wgmma, blocks, stream);
    } else {
        family_chunks_of<KV, 128>(a, wgmma, blocks, stream);
    }
}

template <attn_kv KV> static constexpr attn_family family_make()
{
    return {stream_shape<KV, 64>::KEYS, stream_shape<KV, 128>::KEYS, family_ready<KV>,
            family_resident<KV>,        family_stream<KV>,           family_chunks<KV>};
}

#endif
