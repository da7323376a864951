#include "engine/cuda/linear_skinny.cuh"

using namespace skinny;

/* The kernels of INT8 x, and the way from a layer to its kernel. */

bool linear_is_skinny(const struct bt_cuda_linear *l)
{
    switch (l->weights) {
    case BT_CUDA_W16:
        return l->n_in % 8 == 0;
    case BT_CUDA_W8:
        return l->n_in % 16 == 0 && l->n_groups == 1 && l->zero == NULL;
    case BT_CUDA_W4:
        return l->packed;
    }
    return false;
}

bool linear_skinny(const struct bt_cuda_linear *l, bool bf16, int32_t wk, const void *x,
                   const float *x_scale, int32_t m, struct linear_y y,
                   const struct linear_skinny_place *at, bool dry, cudaStream_t stream)
{
    BT_ASSERT(linear_is_skinny(l) && (wk == 4 || wk == 2 || wk == 1));
    BT_ASSERT((uintptr_t)x % 16 == 0);
    args p = args_of(l, wk, x, x_scale, m, y);
    switch (l->weights) {
    case BT_CUDA_W16:
        return linear_skinny_16(p, bf16, *at, dry, stream);
    case BT_CUDA_W8:
        return l->int8_x ? launch_for<W8A8, void>(p, *at, dry, stream)
                         : linear_skinny_w8a16(p, bf16, *at, dry, stream);
    case BT_CUDA_W4:
        return l->int8_x ? launch_for<W4A8, void>(p, *at, dry, stream)
                         : linear_skinny_w4a16(p, bf16, *at, dry, stream);
    }
    return false;
}
