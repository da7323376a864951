#include "engine/cuda/linear_skinny.cuh"

using namespace skinny;

bool linear_skinny_w4a16(const args &p, bool bf16, const struct linear_skinny_place &at, bool dry,
                         cudaStream_t stream)
{
    return bf16 ? launch_for<W4A16, bf16_t>(p, at, dry, stream)
                : launch_for<W4A16, f16_t>(p, at, dry, stream);
}
