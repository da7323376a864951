#include "tests/engine/cuda/rig.h"

#include "engine/clock.h"

#include <criterion/criterion.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

const struct bt_cuda_device *rig_device(void)
{
    static struct bt_cuda_device device;
    if (bt_cuda_device_count() == 0) {
        /* CTest looks for the mark; Criterion would show the reason only when asked to. */
        printf("BT_SKIP no GPU here: scripts/gpu runs this on a machine that has one\n");
        fflush(stdout);
        cr_skip_test("no GPU here");
    }
    struct bt_error err = {0};
    cr_assert_eq(bt_cuda_device_open(0, &device, &err), BT_OK, "%s", err.msg);
    return &device;
}

static void check(cudaError_t rc, const char *what)
{
    cr_assert_eq(rc, cudaSuccess, "%s: %s", what, cudaGetErrorString(rc));
}

void *rig_take(struct bt_cuda_arena *a, int64_t bytes)
{
    struct bt_error err = {0};
    void *p = NULL;
    cr_assert_eq(bt_cuda_arena_take(a, bytes, &p, &err), BT_OK, "%s", err.msg);
    rig_poison(p, bytes);
    return p;
}

void *rig_upload(struct bt_cuda_arena *a, const void *src, int64_t bytes)
{
    void *p = rig_take(a, bytes);
    rig_write(p, src, bytes);
    return p;
}

void rig_write(void *device, const void *src, int64_t bytes)
{
    check(cudaMemcpy(device, src, (size_t)bytes, cudaMemcpyHostToDevice), "upload");
    check(cudaDeviceSynchronize(), "upload"); /* streams of their own do not wait for it */
}

void rig_poison(void *device, int64_t bytes)
{
    check(cudaMemset(device, RIG_POISON, (size_t)bytes), "poison");
}

void rig_download(void *dst, const void *device, int64_t bytes)
{
    check(cudaDeviceSynchronize(), "kernels before a download");
    check(cudaMemcpy(dst, device, (size_t)bytes, cudaMemcpyDeviceToHost), "download");
}

void rig_rng(struct bt_rng *rng, const char *name)
{
    const char *given = getenv("BT_TEST_SEED");
    uint64_t seed =
        given != NULL ? strtoull(given, NULL, 10) : (uint64_t)bt_clock_ns(BT_CLOCK_WALL);
    printf("%s: BT_TEST_SEED=%llu\n", name, (unsigned long long)seed);
    bt_rng_init(rng, seed, name, 0);
}
