#include "engine/cuda/attention_family.cuh"

extern const attn_family attn_fp16 = family_make<ATTN_FP16>();
