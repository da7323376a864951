/* How CUDA calls are checked. Internal to engine/cuda; for C and C++. */
#ifndef BT_ENGINE_CUDA_CHECK_CUH
#define BT_ENGINE_CUDA_CHECK_CUH

#include "engine/core/error.h"

#ifdef __cplusplus
#include <cuda_runtime.h>
extern "C" {
#else
#include <cuda_runtime_api.h>
#endif

/* The call's error, with its text, as the function's result. */
#define BT_CUDA_TRY(call, err)                                                                     \
    do {                                                                                           \
        cudaError_t bt_cuda_rc_ = (call);                                                          \
        if (bt_cuda_rc_ != cudaSuccess) {                                                          \
            return bt_cuda_fail(bt_cuda_rc_, #call, __FILE__, __LINE__, (err));                    \
        }                                                                                          \
    } while (0)

/* Fills err with the call, CUDA's name for the error and its text; BT_ERR_CUDA, or BT_ERR_NOMEM
 * for cudaErrorMemoryAllocation. */
enum bt_code bt_cuda_fail(cudaError_t rc, const char *call, const char *file, int line,
                          struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
