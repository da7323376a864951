/* The GPU as the engine sees it: what it is, and memory taken from it once.
 *
 * Everything on the device is taken at creation from a bt_cuda_arena, which counts bytes; no kernel
 * launch of a step allocates. These headers are C: streams travel as the CUDA runtime's own opaque
 * pointers, so that only engine/cuda includes CUDA's headers.
 *
 * Errors: a failed CUDA call is BT_ERR_CUDA with the call, CUDA's name for the error and the
 * place; a missing device or a driver that is too old is BT_ERR_MISSING; memory that does not
 * suffice is BT_ERR_NOMEM with what was asked and what is free.
 */
#ifndef BT_ENGINE_CUDA_DEVICE_H
#define BT_ENGINE_CUDA_DEVICE_H

#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* what cudaStream_t points to */

struct bt_cuda_device {
    char name[64];
    int32_t ordinal;
    int32_t cc;    /* compute capability, 10 * major + minor: 80, 86, 89, 90 */
    int32_t n_sms; /* streaming multiprocessors */
    int64_t l2_bytes;
    int64_t total_bytes;
    int64_t free_bytes; /* when it was asked */
    int32_t driver;     /* as cudaDriverGetVersion gives it: 13000 */
    int32_t smem_optin; /* most bytes of shared memory a block may ask for */
};

/* How many devices there are; 0 where there is no driver. Never fails. */
int32_t bt_cuda_device_count(void);

/* Makes `ordinal` the calling thread's device and describes it. Returns BT_ERR_MISSING when there
 * is none, or when its compute capability is below 8.0. */
BT_NODISCARD enum bt_code bt_cuda_device_open(int32_t ordinal, struct bt_cuda_device *d,
                                              struct bt_error *err);

/* Device memory, taken piece by piece and given back at once. Pieces are 256-byte aligned. */
struct bt_cuda_arena {
    const char *what;   /* borrowed: "weights", "kv pool"; named in errors */
    int64_t used_bytes; /* what was asked for, rounded up to the alignment */
    int32_t n_pieces, cap_pieces;
    void **pieces; /* owned, malloc: cudaMalloc'ed */
};

void bt_cuda_arena_init(struct bt_cuda_arena *a, const char *what);
/* 0 bytes give a valid pointer too. The memory is not set. */
BT_NODISCARD enum bt_code bt_cuda_arena_take(struct bt_cuda_arena *a, int64_t bytes, void **out,
                                             struct bt_error *err);
void bt_cuda_arena_fini(struct bt_cuda_arena *a);

#ifdef __cplusplus
}
#endif

#endif
