#include "engine/cuda/attention_family.cuh"

extern const attn_family attn_int8 = family_make<ATTN_INT8>();
