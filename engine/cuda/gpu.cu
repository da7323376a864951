/* What the GPU itself can do: the roof that steps are compared with, and its link to the host. */
#include "engine/cuda/check.cuh"
#include "engine/cuda/linear.h"
#include "engine/cuda/measure.h"
#include "engine/cuda/model.h"

#include <stdlib.h>
#include <string.h>

namespace
{

/* Reads all of it in 16-byte loads, many at once; the sum keeps the loads alive. */
__global__ void read_kernel(const uint4 *p, int64_t n, uint32_t *sink)
{
    enum { UNROLL = 8 };
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
        uint4 v[UNROLL];
#pragma unroll
        for (int32_t u = 0; u < UNROLL; u++) {
            v[u] = __ldcs(&p[i + u * stride]);
        }
#pragma unroll
        for (int32_t u = 0; u < UNROLL; u++) {
            sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        }
    }
    if (sum == 0x5eed5eed) {
        *sink = sum;
    }
}

/* Where everything that measuring takes is kept. */
struct bench {
    struct bt_cuda_device device;
    struct bt_cuda_arena arena;
    struct bt_cuda_gemm *gemm;
    cudaStream_t streams[2];
    cudaEvent_t start, done;
    void *host[2];
};

enum { REPEATS = 7 };

int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median seconds of what `launch` enqueues on the first stream. */
template <typename Launch>
enum bt_code time_of(struct bench *b, Launch launch, double *seconds, struct bt_error *err)
{
    float ms[REPEATS];
    for (int32_t i = -1; i < REPEATS; i++) {
        float one = 0;
        BT_CUDA_TRY(cudaEventRecord(b->start, b->streams[0]), err);
        BT_TRY(launch());
        BT_CUDA_TRY(cudaEventRecord(b->done, b->streams[0]), err);
        BT_CUDA_TRY(cudaEventSynchronize(b->done), err);
        BT_CUDA_TRY(cudaEventElapsedTime(&one, b->start, b->done), err);
        ms[i < 0 ? 0 : i] = one;
    }
    qsort(ms, REPEATS, sizeof *ms, compare);
    *seconds = ms[REPEATS / 2] * 1e-3;
    return BT_OK;
}

enum bt_code measure_reading(struct bench *b, double *bytes_per_s, struct bt_error *err)
{
    const int64_t most = (int64_t)4 << 30;
    int64_t bytes = b->device.free_bytes / 4 < most ? b->device.free_bytes / 4 : most;
    int32_t threads = 512;
    int32_t blocks = 4 * b->device.n_sms;
    int64_t turn = (int64_t)blocks * threads * 16 * 8;
    bytes = bytes / turn * turn; /* whole turns only: every byte is read */
    void *p;
    BT_TRY(bt_cuda_arena_take(&b->arena, bytes, &p, err));
    BT_CUDA_TRY(cudaMemset(p, 1, (size_t)bytes), err);
    double seconds = 0;
    BT_TRY(time_of(
        b,
        [&]() {
            read_kernel<<<blocks, threads, 0, b->streams[0]>>>((const uint4 *)p, bytes / 16,
                                                               (uint32_t *)p);
            return bt_cuda_check_launch("reading", err);
        },
        &seconds, err));
    *bytes_per_s = (double)bytes / seconds;
    return BT_OK;
}

enum bt_code measure_products(struct bench *b, enum bt_weight_format f, enum bt_act_format act,
                              double *ops_per_s, struct bt_error *err)
{
    enum { N = 8192, M = 4096 };
    struct bt_cuda_linear l;
    BT_TRY(bt_cuda_linear_random(b->gemm, &b->arena, N, N, f, act, false, 1, &l, err));
    void *x, *scale, *y;
    BT_TRY(bt_cuda_arena_take(&b->arena, 2 * (int64_t)M * N, &x, err));
    BT_TRY(bt_cuda_arena_take(&b->arena, 4 * (int64_t)M, &scale, err));
    BT_TRY(bt_cuda_arena_take(&b->arena, 2 * (int64_t)M * N, &y, err));
    bt_cuda_fill_random(BT_ACT_BF16, 2, x, (int64_t)M * N);
    bt_cuda_fill_random(BT_ACT_BF16, 3, scale, 2 * (int64_t)M);
    struct bt_cuda_x in = {NULL, NULL, NULL};
    if (l.int8_x) {
        in.x8 = (const int8_t *)x;
        in.x_scale = (const float *)scale;
    } else {
        in.x16 = x;
    }
    double seconds = 0;
    BT_CUDA_TRY(cudaDeviceSynchronize(), err);
    BT_TRY(time_of(
        b,
        [&]() {
            return bt_cuda_linear_run(b->gemm, &l, &in, M, y, BT_CUDA_Y_COMPUTE, b->streams[0],
                                      err);
        },
        &seconds, err));
    *ops_per_s = 2.0 * M * N * N / seconds;
    return BT_OK;
}

/* Copies of `bytes` each, about 64 MiB of them, one after the other. */
enum bt_code time_copies(struct bench *b, void *device, size_t bytes, bool to_device, double *rate,
                         struct bt_error *err)
{
    const size_t total = (size_t)64 << 20;
    size_t n = total / bytes < 1 ? 1 : total / bytes > 256 ? 256 : total / bytes;
    double seconds = 0;
    BT_TRY(time_of(
        b,
        [&]() {
            for (size_t i = 0; i < n; i++) {
                char *d = (char *)device + i * bytes;
                char *h = (char *)b->host[0] + i * bytes;
                BT_CUDA_TRY(
                    cudaMemcpyAsync(to_device ? d : h, to_device ? h : d, bytes,
                                    to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                    b->streams[0]),
                    err);
            }
            return BT_OK;
        },
        &seconds, err));
    *rate = (double)(n * bytes) / seconds;
    return BT_OK;
}

enum bt_code measure_duplex(struct bench *b, void *device, size_t bytes, double *rate,
                            struct bt_error *err)
{
    double seconds = 0;
    char *d = (char *)device;
    BT_TRY(time_of(
        b,
        [&]() {
            BT_CUDA_TRY(cudaStreamWaitEvent(b->streams[1], b->start, 0), err);
            BT_CUDA_TRY(
                cudaMemcpyAsync(d, b->host[0], bytes, cudaMemcpyHostToDevice, b->streams[0]), err);
            BT_CUDA_TRY(cudaMemcpyAsync(b->host[1], d + bytes, bytes, cudaMemcpyDeviceToHost,
                                        b->streams[1]),
                        err);
            cudaEvent_t both;
            BT_CUDA_TRY(cudaEventCreateWithFlags(&both, cudaEventDisableTiming), err);
            BT_CUDA_TRY(cudaEventRecord(both, b->streams[1]), err);
            BT_CUDA_TRY(cudaStreamWaitEvent(b->streams[0], both, 0), err);
            BT_CUDA_TRY(cudaEventDestroy(both), err);
            return BT_OK;
        },
        &seconds, err));
    *rate = 2.0 * (double)bytes / seconds;
    return BT_OK;
}

enum bt_code measure_link(struct bench *b, struct bt_pcie *out, struct bt_error *err)
{
    static const size_t sizes[] = {16 << 10, 64 << 10, 160 << 10, 320 << 10,
                                   1 << 20,  4 << 20,  16 << 20,  64 << 20};
    const size_t most = (size_t)64 << 20;
    void *device;
    BT_TRY(bt_cuda_arena_take(&b->arena, 2 * (int64_t)most, &device, err));
    for (int32_t i = 0; i < 2; i++) {
        BT_CUDA_TRY(cudaMallocHost(&b->host[i], most), err);
        memset(b->host[i], 1, most);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct bt_pcie_point *p = &out->points[out->n_points++];
        p->copy_bytes = (double)sizes[i];
        BT_TRY(time_copies(b, device, sizes[i], true, &p->to_device_bytes_per_s, err));
        BT_TRY(time_copies(b, device, sizes[i], false, &p->to_host_bytes_per_s, err));
    }
    out->trust = BT_TRUST_MEASURED;
    return measure_duplex(b, device, most, &out->duplex_bytes_per_s, err);
}

enum bt_code measure(struct bench *b, struct bt_gpu *out, struct bt_error *err)
{
    BT_TRY(bt_cuda_device_open(0, &b->device, err));
    for (int32_t i = 0; i < 2; i++) {
        BT_CUDA_TRY(cudaStreamCreateWithFlags(&b->streams[i], cudaStreamNonBlocking), err);
    }
    BT_CUDA_TRY(cudaEventCreate(&b->start), err);
    BT_CUDA_TRY(cudaEventCreate(&b->done), err);
    struct bt_cuda_gemm_opts go;
    memset(&go, 0, sizeof go);
    go.device = &b->device;
    go.compute = BT_ACT_BF16;
    go.max_rows = 4096;
    go.arena = &b->arena;
    BT_TRY(bt_cuda_gemm_create(&go, &b->gemm, err));
    memcpy(out->product, b->device.name, sizeof b->device.name);
    out->cc = b->device.cc;
    out->memory_bytes = out->usable_bytes = b->device.total_bytes;
    BT_TRY(measure_reading(b, &out->mem_bytes_per_s, err));
    BT_TRY(measure_products(b, BT_WEIGHT_BF16, BT_ACT_DEFAULT, &out->fp16_flops_per_s, err));
    BT_TRY(measure_products(b, BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC, &out->int8_ops_per_s, err));
    BT_TRY(measure_link(b, &out->pcie, err));
    out->pcie_bytes_per_s = out->pcie.points[out->pcie.n_points - 1].to_device_bytes_per_s;
    return BT_OK;
}

} // namespace

enum bt_code bt_cuda_measure_gpu(struct bt_gpu *out, struct bt_error *err)
{
    struct bench b;
    memset(&b, 0, sizeof b);
    memset(out, 0, sizeof *out);
    bt_cuda_arena_init(&b.arena, "measuring");
    enum bt_code code = measure(&b, out, err);
    for (int32_t i = 0; i < 2; i++) {
        (void)cudaFreeHost(b.host[i]);
        if (b.streams[i] != NULL) {
            (void)cudaStreamDestroy(b.streams[i]);
        }
    }
    if (b.start != NULL) {
        (void)cudaEventDestroy(b.start);
    }
    if (b.done != NULL) {
        (void)cudaEventDestroy(b.done);
    }
    if (b.gemm != NULL) {
        bt_cuda_gemm_destroy(b.gemm);
    }
    bt_cuda_arena_fini(&b.arena);
    return code;
}
