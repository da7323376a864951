#include "engine/core/hist.h"

#include <math.h>
#include <string.h>

enum { SUB_BITS_MAX = 14, VALUE_BITS = 63 };

/* Values below 2^(sub_bits + 1) have a bucket each; above, a bucket is 2^shift wide and starts at
 * (its number within the power of two) << shift, so its width is at most 2^-sub_bits of its start.
 */
static int32_t bucket_shift(int32_t sub_bits, int64_t value)
{
    int32_t top = VALUE_BITS - __builtin_clzll((unsigned long long)value | 1);
    return top > sub_bits ? top - sub_bits : 0;
}

static int64_t bucket_of(int32_t sub_bits, int64_t value)
{
    int32_t shift = bucket_shift(sub_bits, value);
    return ((int64_t)shift << sub_bits) + (value >> shift);
}

/* Largest value of a bucket. */
static int64_t bucket_last(int32_t sub_bits, int64_t bucket)
{
    int64_t row = bucket >> sub_bits;
    int64_t shift = row > 1 ? row - 1 : 0;
    uint64_t first = (uint64_t)(bucket - (shift << sub_bits)) << shift;
    return (int64_t)(first + (UINT64_C(1) << shift) - 1);
}

enum bt_code bt_hist_init(struct bt_hist *h, struct bt_arena *arena, int32_t sub_bits,
                          struct bt_error *err)
{
    *h = (struct bt_hist){.max = -1};
    if (sub_bits < 1 || sub_bits > SUB_BITS_MAX) {
        BT_FAIL(err, BT_ERR_ARG, sub_bits, "hist.sub_bits: %d must be in 1..%d", sub_bits,
                SUB_BITS_MAX);
    }
    int32_t n_buckets = (VALUE_BITS + 1 - sub_bits) << sub_bits;
    BT_ARENA_ARRAY_RAW(arena, h->counts, n_buckets, err);
    h->sub_bits = sub_bits;
    h->n_buckets = n_buckets;
    return BT_OK;
}

/* Most histograms are never used: the counts are cleared when the first value comes. */
static void clear_once(struct bt_hist *h)
{
    if (!h->cleared) {
        memset(h->counts, 0, (size_t)h->n_buckets * sizeof *h->counts);
        h->cleared = true;
    }
}

void bt_hist_record(struct bt_hist *h, int64_t value, int64_t count)
{
    BT_ASSERT(value >= 0);
    BT_ASSERT(count >= 0);
    if (count == 0) {
        return;
    }
    clear_once(h);
    h->counts[bucket_of(h->sub_bits, value)] += count;
    h->n += count;
    h->sum += (double)value * (double)count;
    h->max = value > h->max ? value : h->max;
}

void bt_hist_merge(struct bt_hist *a, const struct bt_hist *b)
{
    BT_ASSERT(a->sub_bits == b->sub_bits);
    if (b->n == 0) {
        return;
    }
    clear_once(a);
    int64_t last = bucket_of(b->sub_bits, b->max);
    for (int64_t i = 0; i <= last; i++) {
        a->counts[i] += b->counts[i];
    }
    a->n += b->n;
    a->sum += b->sum;
    a->max = b->max > a->max ? b->max : a->max;
}

int64_t bt_percentile_rank(int64_t n, double p)
{
    BT_ASSERT(n > 0);
    BT_ASSERT(p > 0.0 && p <= 100.0);
    /* The product comes first: for whole p it is exact, and so is a quotient that is whole. */
    double rank = ceil(p * (double)n / 100.0);
    return rank < 1.0 ? 1 : rank > (double)n ? n : (int64_t)rank;
}

int64_t bt_hist_percentile(const struct bt_hist *h, double p)
{
    if (h->n == 0) {
        return -1;
    }
    int64_t rank = bt_percentile_rank(h->n, p);
    int64_t seen = 0;
    for (int64_t i = 0; i < h->n_buckets; i++) {
        seen += h->counts[i];
        if (seen >= rank) {
            int64_t last = bucket_last(h->sub_bits, i);
            return last < h->max ? last : h->max;
        }
    }
    BT_ASSERT(seen == h->n); /* the rank is at most n, so the loop has returned */
    return h->max;
}

void bt_hist_reset(struct bt_hist *h)
{
    if (h->n > 0) {
        size_t n_touched = (size_t)bucket_of(h->sub_bits, h->max) + 1;
        memset(h->counts, 0, n_touched * sizeof *h->counts);
    }
    h->n = 0;
    h->max = -1;
    h->sum = 0.0;
}
