#include "cli/backends.h"

#include "engine/cpu/backend.h"

#include <string.h>

#ifdef BT_HAVE_CUDA
#include "engine/cuda/backend.h"
#include "engine/cuda/device.h"

static enum bt_code find_cuda(const struct bt_backend **out, struct bt_error *err)
{
    struct bt_cuda_device d;
    struct bt_error why = {0};
    if (bt_cuda_device_open(0, &d, &why) != BT_OK) {
        BT_FAIL(err, BT_ERR_MISSING, 0, "--executor cuda: %s", why.msg);
    }
    *out = &bt_cuda_backend;
    return BT_OK;
}

const char *bt_backend_gpu_product(void)
{
    static struct bt_cuda_device d;
    struct bt_error why = {0};
    return bt_cuda_device_open(0, &d, &why) == BT_OK ? d.name : "";
}
#else
static enum bt_code find_cuda(const struct bt_backend **out, struct bt_error *err)
{
    (void)out;
    BT_FAIL(
        err, BT_ERR_MISSING, 0,
        "--executor cuda: this program was built without the CUDA engine; with the CUDA toolkit "
        "(nvcc) at hand: cmake --preset cuda && cmake --build --preset cuda");
}

const char *bt_backend_gpu_product(void)
{
    return "";
}
#endif

enum bt_code bt_backend_find(enum bt_executor_kind kind, const struct bt_backend **out,
                             struct bt_error *err)
{
    BT_ASSERT(kind != BT_EXECUTOR_SIM);
    if (kind == BT_EXECUTOR_CUDA) {
        return find_cuda(out, err);
    }
    *out = &bt_cpu_backend;
    return BT_OK;
}

enum bt_code bt_backend_of_args(const struct bt_args *args, const struct bt_backend **out,
                                struct bt_error *err)
{
    bool cuda = strcmp(bt_args_text(args, "executor"), "cuda") == 0;
    return bt_backend_find(cuda ? BT_EXECUTOR_CUDA : BT_EXECUTOR_CPU, out, err);
}

const struct bt_backend *bt_backend_best(void)
{
    const struct bt_backend *best = NULL;
    struct bt_error why = {0};
    return find_cuda(&best, &why) == BT_OK ? best : &bt_cpu_backend;
}
