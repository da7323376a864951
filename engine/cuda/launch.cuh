/* Launching kernels that may begin before the one before them in the stream has ended (programmatic
 * dependent launch). Internal to engine/cuda.
 *
 * A grid that bt_launch launches comes onto the multiprocessors as soon as every block of its
 * predecessor has called bt_let_next_begin or has ended, and there is room. bt_wait_for_previous
 * returns when the predecessor has ended and what it wrote can be seen. Every kernel so launched
 * keeps two rules:
 *
 *   Before it waits, a thread touches only what no kernel writes: weights, tables, and the metadata
 *   of a batch but for its ids, which come by a copy, and copies are not overtaken. Writing counts
 *   as touching: a predecessor may still read.
 *   Every block waits, also one that has nothing to do. So a grid's end implies the end of all
 *   grids before it, and whatever is launched plainly, copied or recorded is ordered as ever.
 *
 * No block waits for one that has not begun: a grid begins when all blocks of its predecessor are
 * there. A captured launch keeps its kind of edge in the graph. Code compiled for less than compute
 * capability 9.0 is launched plainly; there the two functions do nothing.
 */
#ifndef BT_ENGINE_CUDA_LAUNCH_CUH
#define BT_ENGINE_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

__device__ __forceinline__ void bt_wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void bt_let_next_begin()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Whether the engine's kernels, of which `kernel` is one, run as code for 9.0 or newer. */
bool bt_cuda_launch_overlaps(const void *kernel);

struct bt_grid {
    dim3 blocks, threads;
    size_t smem_bytes;
    dim3 cluster; /* blocks of one; ones: there are none */
};

/* The launch's error is left for the caller's check (bt_cuda_check_launch). */
template <typename... Params, typename... Args>
void bt_launch(const bt_grid &g, cudaStream_t stream, void (*kernel)(Params...), Args... args)
{
    cudaLaunchAttribute attributes[2] = {};
    unsigned n = 0;
    if (bt_cuda_launch_overlaps(reinterpret_cast<const void *>(kernel))) {
        attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (g.cluster.x * g.cluster.y * g.cluster.z > 1) {
        attributes[n].id = cudaLaunchAttributeClusterDimension;
        attributes[n++].val.clusterDim = {g.cluster.x, g.cluster.y, g.cluster.z};
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = g.blocks;
    config.blockDim = g.threads;
    config.dynamicSmemBytes = g.smem_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = n;
    (void)cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

#endif
