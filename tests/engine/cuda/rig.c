#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

const struct bt_cuda_device *rig_device(void)
{
    static struct bt_cuda_device device;
    if (bt_cuda_device_count() == 0) {
        cr_skip_test("no GPU here: scripts/gpu runs this on a machine that has one");
    }
    struct bt_error err = {0};
    cr_assert_eq(bt_cuda_device_open(0, &device, &err), BT_OK, "%s", err.msg);
    return &device;
}
