/* Sixteen floats at once, and the order in which sums are taken.
 *
 * GCC's and Clang's vector extension: the compiler splits a vector into what the machine has, so
 * that the same source gives the same bits from SSE2 to AVX-512 (no contraction, fixed lanes). A
 * sum over k keeps 16 partial sums, lane k mod 16, and adds the lanes as a tree: the order depends
 * on the length alone, never on batch, tile or thread. Internal to engine/cpu.
 */
#ifndef BT_ENGINE_CPU_VEC_H
#define BT_ENGINE_CPU_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { BT_VEC = 16 };

typedef float bt_vec __attribute__((vector_size(64), aligned(64)));
typedef int32_t bt_veci __attribute__((vector_size(64), aligned(64)));
typedef float bt_vec_mem __attribute__((vector_size(64), aligned(4), may_alias));

/* One body, compiled for each instruction set and chosen when the program starts. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(BT_NO_CLONES)
#define BT_VEC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define BT_VEC_CLONES
#endif

#define BT_INLINE static inline __attribute__((always_inline))

#ifdef _OPENMP
#define BT_OMP(text) _Pragma(#text)
#else
#define BT_OMP(text)
#endif

/* Whether so much arithmetic is worth waking the other threads for: it takes a core half a
 * millisecond or more. Below that the wait at the end costs more than the help, most of all on a
 * machine that has other things to do. */
static inline bool bt_worth_threads(double flops)
{
    return flops > 2e7;
}

/* n rounded up to whole vectors: the stride of rows that are padded with zeros. */
static inline int32_t bt_vec_pad(int32_t n)
{
    return (n + BT_VEC - 1) / BT_VEC * BT_VEC;
}

BT_INLINE float bt_lanes_sum(const float *a)
{
    float b[8];
    for (int32_t i = 0; i < 8; i++) {
        b[i] = a[i] + a[i + 8];
    }
    float c0 = b[0] + b[4];
    float c1 = b[1] + b[5];
    float c2 = b[2] + b[6];
    float c3 = b[3] + b[7];
    return (c0 + c2) + (c1 + c3);
}

#endif
