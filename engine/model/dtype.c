#include "engine/model/dtype.h"

#include "engine/core/error.h"

#include <math.h>

struct dtype_row {
    const char *name;
    size_t bytes;
    bool is_float;
};

static const struct dtype_row DTYPES[BT_DTYPES] = {
    [BT_DTYPE_F32] = {"F32", 4, true},   [BT_DTYPE_F16] = {"F16", 2, true},
    [BT_DTYPE_BF16] = {"BF16", 2, true}, [BT_DTYPE_F8_E4M3] = {"F8_E4M3", 1, true},
    [BT_DTYPE_I8] = {"I8", 1, false},    [BT_DTYPE_I32] = {"I32", 4, false},
    [BT_DTYPE_I64] = {"I64", 8, false},  [BT_DTYPE_U8] = {"U8", 1, false},
};

const char *bt_dtype_name(enum bt_dtype t)
{
    BT_ASSERT(t >= 0 && t < BT_DTYPES);
    return DTYPES[t].name;
}

bool bt_dtype_parse(const char *name, enum bt_dtype *out)
{
    for (int i = 0; i < BT_DTYPES; i++) {
        if (strcmp(DTYPES[i].name, name) == 0) {
            *out = (enum bt_dtype)i;
            return true;
        }
    }
    return false;
}

size_t bt_dtype_bytes(enum bt_dtype t)
{
    BT_ASSERT(t >= 0 && t < BT_DTYPES);
    return DTYPES[t].bytes;
}

bool bt_dtype_is_float(enum bt_dtype t)
{
    BT_ASSERT(t >= 0 && t < BT_DTYPES);
    return DTYPES[t].is_float;
}

float bt_f8_e4m3_to_f32(uint8_t v)
{
    int exponent = (v >> 3) & 15;
    int mantissa = v & 7;
    float mag;
    if (exponent == 15 && mantissa == 7) {
        mag = NAN;
    } else if (exponent == 0) {
        mag = (float)mantissa * 0x1p-9f;
    } else {
        mag = ldexpf((float)(8 + mantissa), exponent - 10);
    }
    return (v & 0x80) != 0 ? -mag : mag;
}

BT_CLONES static void f16_to_f32(const unsigned char *src, float *restrict dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = bt_f16_to_f32(h);
    }
}

BT_CLONES static void bf16_to_f32(const unsigned char *src, float *restrict dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = bt_bf16_to_f32(h);
    }
}

void bt_dtype_to_f32(enum bt_dtype t, const void *src, float *dst, size_t n)
{
    const unsigned char *p = src;
    switch (t) {
    case BT_DTYPE_F32:
        memcpy(dst, src, n * sizeof *dst);
        return;
    case BT_DTYPE_F16:
        f16_to_f32(p, dst, n);
        return;
    case BT_DTYPE_BF16:
        bf16_to_f32(p, dst, n);
        return;
    case BT_DTYPE_F8_E4M3:
        for (size_t i = 0; i < n; i++) {
            dst[i] = bt_f8_e4m3_to_f32(p[i]);
        }
        return;
    case BT_DTYPE_I8:
        for (size_t i = 0; i < n; i++) {
            dst[i] = (float)((const int8_t *)src)[i];
        }
        return;
    case BT_DTYPE_I32:
        for (size_t i = 0; i < n; i++) {
            int32_t v;
            memcpy(&v, p + 4 * i, sizeof v);
            dst[i] = (float)v;
        }
        return;
    case BT_DTYPE_I64:
        for (size_t i = 0; i < n; i++) {
            int64_t v;
            memcpy(&v, p + 8 * i, sizeof v);
            dst[i] = (float)v;
        }
        return;
    case BT_DTYPE_U8:
        for (size_t i = 0; i < n; i++) {
            dst[i] = (float)p[i];
        }
        return;
    case BT_DTYPES:
        break;
    }
    BT_ASSERT(!"an element type");
}

void bt_dtype_from_f32(enum bt_dtype t, const float *src, void *dst, size_t n)
{
    unsigned char *p = dst;
    if (t == BT_DTYPE_F32) {
        memcpy(dst, src, n * sizeof *src);
        return;
    }
    BT_ASSERT(t == BT_DTYPE_F16 || t == BT_DTYPE_BF16);
    if (t == BT_DTYPE_F16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t h = bt_f32_to_f16(src[i]);
            memcpy(p + 2 * i, &h, sizeof h);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            uint16_t h = bt_f32_to_bf16(src[i]);
            memcpy(p + 2 * i, &h, sizeof h);
        }
    }
}
