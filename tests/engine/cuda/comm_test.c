/* Ranks adding up: one alone everywhere, several where there are as many GPUs. */
#include "engine/cuda/comm.h"
#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>

Test(cuda_comm, one_rank_is_nobody_and_adds_nothing)
{
    struct bt_error err = {0};
    struct bt_cuda_comm *c = (struct bt_cuda_comm *)&err;
    cr_assert_eq(bt_cuda_comm_create(1, 0, NULL, &c, &err), BT_OK);
    cr_expect_null(c);
    int32_t device = 0;
    c = (struct bt_cuda_comm *)&err;
    cr_assert_eq(bt_cuda_comm_create_all(1, &device, &c, &err), BT_OK);
    cr_expect_null(c);
    float x = 3.0f;
    cr_expect_eq(bt_cuda_comm_add(NULL, &x, 1, BT_ACT_FP32, NULL, &err), BT_OK);
    cr_expect_eq(x, 3.0f);
    bt_cuda_comm_destroy(NULL);
}

Test(cuda_comm, an_id_is_made_or_what_is_missing_is_named)
{
    struct bt_error err = {0};
    struct bt_cuda_comm_id id = {{0}};
    static const struct bt_cuda_comm_id nothing;
    enum bt_code code = bt_cuda_comm_make_id(&id, &err);
    if (code == BT_OK) {
        cr_expect_neq(memcmp(&id, &nothing, sizeof id), 0);
    } else {
        cr_expect_eq(code, BT_ERR_MISSING, "%s", err.msg);
        cr_expect_not_null(strstr(err.msg, "several ranks need NCCL"), "%s", err.msg);
    }
}

enum { N_RANKS = 2, N = 1000 };

struct rank {
    struct bt_cuda_comm *comm;
    int32_t device;
    float got[N];
    enum bt_code code;
};

static void *add_up(void *arg)
{
    struct rank *r = arg;
    struct bt_error err = {0};
    void *x = NULL;
    float mine[N];
    for (int32_t i = 0; i < N; i++) {
        mine[i] = (float)(i + 1000 * r->device);
    }
    bool good = cudaSetDevice(r->device) == cudaSuccess &&
                cudaMalloc(&x, sizeof mine) == cudaSuccess &&
                cudaMemcpy(x, mine, sizeof mine, cudaMemcpyHostToDevice) == cudaSuccess;
    r->code = good ? bt_cuda_comm_add(r->comm, x, N, BT_ACT_FP32, NULL, &err) : BT_ERR_INTERNAL;
    (void)cudaMemcpy(r->got, x, sizeof r->got, cudaMemcpyDeviceToHost);
    (void)cudaFree(x);
    return NULL;
}

Test(cuda_comm, ranks_of_one_process_add_up)
{
    (void)rig_device();
    if (bt_cuda_device_count() < N_RANKS) {
        cr_skip_test("one GPU: two ranks need two");
    }
    struct bt_error err = {0};
    const int32_t devices[N_RANKS] = {0, 1};
    struct bt_cuda_comm *comms[N_RANKS];
    cr_assert_eq(bt_cuda_comm_create_all(N_RANKS, devices, comms, &err), BT_OK, "%s", err.msg);
    static struct rank ranks[N_RANKS];
    pthread_t threads[N_RANKS];
    for (int32_t i = 0; i < N_RANKS; i++) {
        ranks[i] = (struct rank){.comm = comms[i], .device = i};
        cr_assert_eq(pthread_create(&threads[i], NULL, add_up, &ranks[i]), 0);
    }
    for (int32_t i = 0; i < N_RANKS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
        cr_assert_eq(ranks[i].code, BT_OK);
        for (int32_t j = 0; j < N; j++) {
            cr_assert_eq(ranks[i].got[j], (float)(2 * j + 1000), "rank %d [%d]", i, j);
        }
    }
    for (int32_t i = 0; i < N_RANKS; i++) {
        bt_cuda_comm_destroy(comms[i]);
    }
}
