#include "engine/cuda/linear_skinny.cuh"

using namespace skinny;

/* The kernels of INT8 x, and the way from a layer to its kernel. */

static args args_of(const struct bt_cuda_linear *l, int32_t wn, const void *x, const float *x_scale,
                    int32_t m, struct linear_y y)
{
    args p = {};
    p.w = (const uint8_t *)l->w;
    p.w_scale = l->scale;
    p.bias = l->bias;
    p.x = (const uint8_t *)x;
    p.x_scale = x_scale;
    p.x_one = l->x_scale;
    p.y = y;
    p.m = m;
    p.n_out = l->n_out;
    p.n_in = l->n_in;
    p.wn = wn;
    p.block_bytes = Q_BYTES;
    if (l->packed) {
        p.block_bytes = linear_packed_block_bytes(l->group, l->packed_zero);
        p.groups = 128 / l->group;
        p.zero = l->packed_zero;
    }
    return p;
}

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

bool linear_skinny(const struct bt_cuda_linear *l, bool bf16, int32_t wn, const void *x,
                   const float *x_scale, int32_t m, struct linear_y y,
                   const struct linear_skinny_place *at, cudaStream_t stream)
{
    BT_ASSERT(linear_is_skinny(l) && (wn == 4 || wn == 2 || wn == 1));
    BT_ASSERT((uintptr_t)x % 16 == 0);
    args p = args_of(l, wn, x, x_scale, m, y);
    switch (l->weights) {
    case BT_CUDA_W16:
        return linear_skinny_16(p, bf16, *at, stream);
    case BT_CUDA_W8:
        return l->int8_x ? launch_for<W8A8, void>(p, *at, stream)
                         : linear_skinny_w8a16(p, bf16, *at, stream);
    case BT_CUDA_W4:
        return l->int8_x ? launch_for<W4A8, void>(p, *at, stream)
                         : linear_skinny_w4a16(p, bf16, *at, stream);
    }
    return false;
}
