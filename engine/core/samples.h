/* A distribution of non-negative int64 values: exact while they fit, then a histogram.
 *
 * Values are appended; equal ones in a row share an entry where entries have counts, and zeros only
 * count, so that the gaps of a batch that steps together take one entry a step. When the entries
 * are full all of them move into a log-linear histogram, for good. Memory is taken at init as
 * untouched pages: 8 bytes an entry, 16 with counts. Threading: one thread.
 */
#ifndef BT_ENGINE_CORE_SAMPLES_H
#define BT_ENGINE_CORE_SAMPLES_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/core/hist.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_SAMPLES_SUB_BITS = 10 }; /* of the histogram: relative error 2^-10 */

struct bt_samples {
    int64_t n; /* values, zeros included */
    int64_t n_zero;
    int64_t n_entries, cap;
    int64_t *values; /* owned by the arena: [cap], > 0 */
    int64_t *counts; /* owned by the arena: [cap]; NULL: one each */
    int64_t max;     /* -1 when empty */
    double sum;
    bool exact;  /* false: the entries have moved into hist */
    bool sorted; /* entries ascend */
    struct bt_hist hist;
};

/* cap > 0 entries; with counts or without. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_samples_init(struct bt_samples *s, struct bt_arena *arena, int64_t cap,
                                          bool counted, struct bt_error *err);

/* Adds `value` >= 0 `count` >= 0 times. Amortised O(1). */
void bt_samples_add(struct bt_samples *s, int64_t value, int64_t count);

/* Sorts the entries; percentiles need it. Scratch: as many items as there are entries, and as many
 * counts unless the samples have none. O(entries). Adding may go on afterwards. */
void bt_samples_sort(struct bt_samples *s, int64_t *scratch_values, int64_t *scratch_counts);

/* Nearest-rank percentiles of the sorted samples: out[i] for p[i] in (0, 100], ascending; -1 when
 * empty. Exact, or at most 2^-10 too high. */
void bt_samples_percentiles(const struct bt_samples *s, const double *p, int32_t n_p, int64_t *out);

#ifdef __cplusplus
}
#endif

#endif
