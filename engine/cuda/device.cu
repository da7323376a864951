#include "engine/cuda/check.cuh"
#include "engine/cuda/device.h"
#include "engine/cuda/launch.cuh"
#include "engine/cuda/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_BYTES = 256, OLDEST_CC = 80 };

enum bt_code bt_cuda_fail(cudaError_t rc, const char *call, const char *file, int line,
                          struct bt_error *err)
{
    enum bt_code code = rc == cudaErrorMemoryAllocation ? BT_ERR_NOMEM : BT_ERR_CUDA;
    return bt_error_set(err, code, (int64_t)rc, file, line, "cuda: %s: %s (%s)", call,
                        cudaGetErrorString(rc), cudaGetErrorName(rc));
}

enum bt_code bt_cuda_check_launch(const char *what, struct bt_error *err)
{
    cudaError_t rc = cudaGetLastError();
    return rc == cudaSuccess ? BT_OK : bt_cuda_fail(rc, what, __FILE__, __LINE__, err);
}

bool bt_cuda_launch_overlaps(const void *kernel)
{
    static const bool overlaps = [kernel] {
        cudaFuncAttributes a = {};
        return cudaFuncGetAttributes(&a, kernel) == cudaSuccess && a.ptxVersion >= 90;
    }();
    return overlaps;
}

int32_t bt_cuda_device_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return n;
}

enum bt_code bt_cuda_device_open(int32_t ordinal, struct bt_cuda_device *d, struct bt_error *err)
{
    int32_t n = bt_cuda_device_count();
    if (ordinal < 0 || ordinal >= n) {
        BT_FAIL(err, BT_ERR_MISSING, ordinal,
                "cuda: no device %d: %d found (a GPU of compute capability 8.0 or newer and its "
                "driver are needed)",
                ordinal, n);
    }
    BT_CUDA_TRY(cudaSetDevice(ordinal), err);
    cudaDeviceProp p;
    BT_CUDA_TRY(cudaGetDeviceProperties(&p, ordinal), err);
    memset(d, 0, sizeof *d);
    (void)snprintf(d->name, sizeof d->name, "%.63s", p.name);
    d->ordinal = ordinal;
    d->cc = 10 * p.major + p.minor;
    if (d->cc < OLDEST_CC) {
        BT_FAIL(err, BT_ERR_MISSING, d->cc,
                "cuda: %s has compute capability %d.%d; 8.0 or newer is needed", d->name, p.major,
                p.minor);
    }
    d->n_sms = p.multiProcessorCount;
    d->l2_bytes = p.l2CacheSize;
    d->smem_optin = (int32_t)p.sharedMemPerBlockOptin;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    BT_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes), err);
    d->free_bytes = (int64_t)free_bytes;
    d->total_bytes = (int64_t)total_bytes;
    int driver = 0;
    BT_CUDA_TRY(cudaDriverGetVersion(&driver), err);
    d->driver = driver;
    return BT_OK;
}

void bt_cuda_arena_init(struct bt_cuda_arena *a, const char *what)
{
    memset(a, 0, sizeof *a);
    a->what = what;
}

enum bt_code bt_cuda_arena_take(struct bt_cuda_arena *a, int64_t bytes, void **out,
                                struct bt_error *err)
{
    BT_ASSERT(bytes >= 0);
    int64_t whole = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    whole = whole == 0 ? ALIGN_BYTES : whole;
    if (a->n_pieces == a->cap_pieces) {
        int32_t cap = a->cap_pieces == 0 ? 64 : 2 * a->cap_pieces;
        void **pieces = (void **)realloc(a->pieces, (size_t)cap * sizeof *pieces);
        if (pieces == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, cap, "cuda: no memory for a list of %d pieces", cap);
        }
        a->pieces = pieces;
        a->cap_pieces = cap;
    }
    void *p = NULL;
    cudaError_t rc = cudaMalloc(&p, (size_t)whole);
    if (rc == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        BT_FAIL(err, BT_ERR_NOMEM, whole,
                "cuda: %s: %.3f GB more do not fit: %.3f GB taken by it, %.3f of %.3f GB free",
                a->what, (double)whole * 1e-9, (double)a->used_bytes * 1e-9,
                (double)free_bytes * 1e-9, (double)total_bytes * 1e-9);
    }
    BT_CUDA_TRY(rc, err);
    a->pieces[a->n_pieces++] = p;
    a->used_bytes += whole;
    *out = p;
    return BT_OK;
}

void bt_cuda_arena_fini(struct bt_cuda_arena *a)
{
    for (int32_t i = 0; i < a->n_pieces; i++) {
        (void)cudaFree(a->pieces[i]);
    }
    free(a->pieces);
    bt_cuda_arena_init(a, a->what);
}
