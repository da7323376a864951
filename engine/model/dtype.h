/* Element types of tensors on disk and in memory, and their conversion to and from float.
 *
 * Pure and thread-safe. Narrowing rounds to nearest, ties to even; a value beyond the range of F16
 * becomes an infinity.
 */
#ifndef BT_ENGINE_MODEL_DTYPE_H
#define BT_ENGINE_MODEL_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Compiles a hot loop for several instruction sets and picks one when the program starts. Results
 * are the same bits whichever runs: contraction is off, and sums have a fixed order.
 * AddressSanitizer starts too late for the resolvers that this needs. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define BT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BT_CLONES
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum bt_dtype {
    BT_DTYPE_F32 = 0,
    BT_DTYPE_F16,
    BT_DTYPE_BF16,
    BT_DTYPE_F8_E4M3, /* 4 exponent bits, bias 7, no infinities, NaN is S.1111.111 */
    BT_DTYPE_I8,
    BT_DTYPE_I32,
    BT_DTYPE_I64,
    BT_DTYPE_U8,
    BT_DTYPES, /* how many */
};

/* Name as safetensors writes it ("BF16"). Never NULL. */
const char *bt_dtype_name(enum bt_dtype t);

/* Reads such a name; false when it is none of the supported ones. */
bool bt_dtype_parse(const char *name, enum bt_dtype *out);

/* Bytes of one element. */
size_t bt_dtype_bytes(enum bt_dtype t);

/* True for F32, F16, BF16 and F8_E4M3. */
bool bt_dtype_is_float(enum bt_dtype t);

/* n elements of any type to float, exact except for integers beyond 2^24. src needs no alignment;
 * src and dst do not overlap. */
void bt_dtype_to_f32(enum bt_dtype t, const void *src, float *dst, size_t n);

/* n floats to F32, F16 or BF16. dst needs no alignment. */
void bt_dtype_from_f32(enum bt_dtype t, const float *src, void *dst, size_t n);

static inline float bt_bits_to_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bt_f32_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float bt_bf16_to_f32(uint16_t h)
{
    return bt_bits_to_f32((uint32_t)h << 16);
}

static inline uint16_t bt_f32_to_bf16(float f)
{
    uint32_t bits = bt_f32_to_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u); /* a NaN stays one when its low bits are cut */
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Branch-free: exponent and mantissa are placed in a float and scaled by 2^112, which also makes
 * subnormals right; infinities and NaNs overflow the exponent and are put back. */
static inline float bt_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t bits = bt_f32_to_bits(bt_bits_to_f32(rest) * 0x1p+112f);
    bits |= rest >= 0x0f800000u ? 0x7f800000u : 0u;
    return bt_bits_to_f32(bits | sign);
}

static inline uint16_t bt_f32_to_f16(float f)
{
    uint32_t bits = bt_f32_to_bits(f);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (mag >= 0x477ff000u) { /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (mag < 0x38800000u) { /* subnormal: adding 0.5 leaves the rounded multiple of 2^-24 */
        float rounded = bt_bits_to_f32(mag) + 0.5f;
        return (uint16_t)(sign | (bt_f32_to_bits(rounded) - 0x3f000000u));
    }
    uint32_t round = 0x0fffu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u + round) >> 13));
}

float bt_f8_e4m3_to_f32(uint8_t v);

#ifdef __cplusplus
}
#endif

#endif
