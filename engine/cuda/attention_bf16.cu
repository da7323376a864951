#include "engine/cuda/attention_family.cuh"

extern const attn_family attn_bf16 = family_make<ATTN_BF16>();
