/* Sixteen floats at once, and the order in which sums are taken.
 *
 * GCC's and Clang's vector extension: the compiler splits a vector into what the machine has, so
 * that the same source gives the same bits from SSE2 to AVX-512 (no contraction, fixed lanes). A
 * sum over k keeps 16 partial sums, lane k mod 16, and adds the lanes as a tree: the order depends
 * on the length alone, never on batch, tile or thread. Internal to engine.
 */
#ifndef BT_ENGINE_VEC_H
#define BT_ENGINE_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { BT_VEC = 16 };

typedef float bt_vec __attribute__((vector_size(64), aligned(64)));
typedef int32_t bt_veci __attribute__((vector_size(64), aligned(64)));
typedef float bt_vec8 __attribute__((vector_size(32)));
typedef float bt_vec4 __attribute__((vector_size(16)));
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

/* The sum of a vector's lanes, as a tree: lane i + 8 to lane i, then i + 4, i + 2, i + 1. */
BT_INLINE bt_vec4 bt_quarter_sums(bt_vec a)
{
    bt_vec8 b = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
                __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
}

BT_INLINE float bt_lanes_sum(bt_vec a)
{
    bt_vec4 c = bt_quarter_sums(a);
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* The sums of four vectors' lanes, each as above. */
BT_INLINE bt_vec4 bt_lanes_sum4(bt_vec a0, bt_vec a1, bt_vec a2, bt_vec a3)
{
    bt_vec4 c0 = bt_quarter_sums(a0), c1 = bt_quarter_sums(a1);
    bt_vec4 c2 = bt_quarter_sums(a2), c3 = bt_quarter_sums(a3);
    /* Lanes 0 and 2 of two of them beside each other, and lanes 1 and 3. */
    bt_vec4 even01 = __builtin_shufflevector(c0, c1, 0, 4, 2, 6);
    bt_vec4 odd01 = __builtin_shufflevector(c0, c1, 1, 5, 3, 7);
    bt_vec4 even23 = __builtin_shufflevector(c2, c3, 0, 4, 2, 6);
    bt_vec4 odd23 = __builtin_shufflevector(c2, c3, 1, 5, 3, 7);
    bt_vec4 even = __builtin_shufflevector(even01, even23, 0, 1, 4, 5) +
                   __builtin_shufflevector(even01, even23, 2, 3, 6, 7);
    bt_vec4 odd = __builtin_shufflevector(odd01, odd23, 0, 1, 4, 5) +
                  __builtin_shufflevector(odd01, odd23, 2, 3, 6, 7);
    return even + odd;
}

#endif
