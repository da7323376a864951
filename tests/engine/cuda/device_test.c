#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

#include <string.h>

Test(device, a_device_that_is_not_there_is_named)
{
    struct bt_cuda_device d;
    struct bt_error err = {0};
    cr_assert_eq(bt_cuda_device_open(64, &d, &err), BT_ERR_MISSING);
    cr_assert_not_null(strstr(err.msg, "no device 64"), "%s", err.msg);
}

Test(device, it_is_described)
{
    const struct bt_cuda_device *d = rig_device();
    cr_expect_geq(d->cc, 80);
    cr_expect_gt(d->n_sms, 0);
    cr_expect_gt(d->free_bytes, 0);
    cr_expect_leq(d->free_bytes, d->total_bytes);
}

Test(device, the_arena_counts_and_says_what_does_not_fit)
{
    const struct bt_cuda_device *d = rig_device();
    struct bt_cuda_arena a;
    bt_cuda_arena_init(&a, "test");
    struct bt_error err = {0};
    void *p = NULL;
    cr_assert_eq(bt_cuda_arena_take(&a, 1000, &p, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(a.used_bytes, 1024);
    cr_assert_eq(bt_cuda_arena_take(&a, 0, &p, &err), BT_OK, "%s", err.msg);
    cr_expect_not_null(p);
    cr_assert_eq(bt_cuda_arena_take(&a, d->total_bytes, &p, &err), BT_ERR_NOMEM);
    cr_expect_not_null(strstr(err.msg, "cuda: test: "), "%s", err.msg);
    bt_cuda_arena_fini(&a);
    cr_expect_eq(a.used_bytes, 0);
}
