/* Log-linear histogram of non-negative int64 values (nanoseconds, tokens) with a bounded relative
 * error, as HdrHistogram: buckets are linear within each power of two.
 *
 * With sub_bits = 8 a percentile is at most 1/256 (0.4%) above the true value, and the structure
 * takes (64 - 8) * 256 counts of 8 bytes at most, untouched pages included. Threading: one thread.
 */
#ifndef BT_ENGINE_CORE_HIST_H
#define BT_ENGINE_CORE_HIST_H

#include "engine/core/arena.h"
#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_hist {
    int64_t n;        /* values recorded */
    int64_t max;      /* largest, exact; -1 when empty */
    double sum;       /* of the exact values */
    int32_t sub_bits; /* 1 .. 14 */
    int32_t n_buckets;
    bool cleared;    /* counts are initialised */
    int64_t *counts; /* owned by the arena */
};

/* sub_bits 1 .. 14; relative error 2^-sub_bits. */
BT_NODISCARD enum bt_code bt_hist_init(struct bt_hist *h, struct bt_arena *arena, int32_t sub_bits,
                                       struct bt_error *err);

/* Records `count` times `value` (>= 0; count >= 0). */
void bt_hist_record(struct bt_hist *h, int64_t value, int64_t count);

/* Adds b's counts to a; both have the same sub_bits. */
void bt_hist_merge(struct bt_hist *a, const struct bt_hist *b);

/* Rank, 1 .. n, of the nearest-rank percentile 0 < p <= 100 of n > 0 values in ascending order. */
int64_t bt_percentile_rank(int64_t n, double p);

/* Nearest-rank percentile, 0 < p <= 100: an upper bound of the bucket, never above max. -1 when
 * empty. */
int64_t bt_hist_percentile(const struct bt_hist *h, double p);

/* Forgets everything. */
void bt_hist_reset(struct bt_hist *h);

#ifdef __cplusplus
}
#endif

#endif
