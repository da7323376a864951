/* Orders of numbers, for qsort. */
#ifndef BT_ENGINE_CORE_ORDER_H
#define BT_ENGINE_CORE_ORDER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline int bt_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline int bt_compare_int64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

#ifdef __cplusplus
}
#endif

#endif
