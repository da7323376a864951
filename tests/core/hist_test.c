#include "engine/core/hist.h"
#include "engine/core/order.h"
#include "engine/core/rng.h"

#include <criterion/criterion.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct bt_arena arena;

static void setup(void)
{
    bt_arena_init(&arena, 0);
}

static void teardown(void)
{
    bt_arena_fini(&arena);
}

TestSuite(hist, .init = setup, .fini = teardown);

static void init(struct bt_hist *h, int32_t sub_bits)
{
    struct bt_error err = {0};
    cr_assert_eq(bt_hist_init(h, &arena, sub_bits, &err), BT_OK, "%s", err.msg);
}

Test(hist, init_reports_range_and_memory)
{
    struct bt_hist h;
    for (int32_t bits = -1; bits <= 15; bits += 16) {
        struct bt_error err = {0};
        cr_expect_eq(bt_hist_init(&h, &arena, bits, &err), BT_ERR_ARG);
        cr_expect_not_null(strstr(err.msg, "must be in 1..14"));
    }
    struct bt_error err = {0};
    arena.failnext = 1;
    cr_expect_eq(bt_hist_init(&h, &arena, 8, &err), BT_ERR_NOMEM);
    init(&h, 8);
    cr_expect_eq(h.n_buckets, (64 - 8) * 256);
}

Test(hist, negative_value_asserts, .signal = SIGABRT)
{
    struct bt_hist h;
    init(&h, 8);
    bt_hist_record(&h, -1, 1);
}

Test(hist, empty_has_no_percentile)
{
    struct bt_hist h;
    init(&h, 8);
    cr_expect_eq(bt_hist_percentile(&h, 50), -1);
    bt_hist_record(&h, 5, 0);
    cr_expect_eq(bt_hist_percentile(&h, 50), -1);
    cr_expect_eq(h.max, -1);
}

Test(hist, rank_is_nearest_rank)
{
    cr_expect_eq(bt_percentile_rank(1, 50), 1);
    cr_expect_eq(bt_percentile_rank(4, 50), 2);
    cr_expect_eq(bt_percentile_rank(5, 50), 3);
    cr_expect_eq(bt_percentile_rank(100, 95), 95);
    cr_expect_eq(bt_percentile_rank(101, 95), 96);
    cr_expect_eq(bt_percentile_rank(1000, 99.9), 999);
    cr_expect_eq(bt_percentile_rank(7, 100), 7);
    cr_expect_eq(bt_percentile_rank(7, 1e-9), 1);
    for (int64_t n = 1; n < 5000; n++) { /* against integer arithmetic */
        for (int p = 1; p <= 100; p++) {
            cr_assert_eq(bt_percentile_rank(n, p), (n * p + 99) / 100);
        }
    }
}

/* Every bucket edge: a lone value's bucket ends at most 2^-bits above it. The maximum would hide
 * the bucket's end, so a second, larger value carries it. */
Test(hist, bucket_bounds_hold_at_every_edge)
{
    for (int32_t bits = 1; bits <= 14; bits++) {
        struct bt_hist h;
        init(&h, bits);
        for (int32_t e = 0; e < 63; e++) {
            for (int64_t d = -2; d <= 2; d++) {
                int64_t v = (INT64_C(1) << e) + d;
                if (v < 0) {
                    continue;
                }
                bt_hist_reset(&h);
                bt_hist_record(&h, v, 1);
                bt_hist_record(&h, INT64_MAX, 1);
                int64_t got = bt_hist_percentile(&h, 50);
                cr_assert_geq(got, v, "bits %d value %lld", bits, (long long)v);
                cr_assert_leq((double)(got - v), ldexp((double)v, -bits), "bits %d value %lld",
                              bits, (long long)v);
                if (v < INT64_C(2) << bits) {
                    cr_assert_eq(got, v, "small values are exact");
                }
                cr_assert_eq(bt_hist_percentile(&h, 100), INT64_MAX);
            }
        }
    }
}

Test(hist, percentiles_agree_with_a_sort_within_the_stated_error)
{
    enum { N = 20000 };
    static const double ps[] = {0.01, 1, 10, 50, 90, 95, 99, 99.9, 100};
    int64_t *v = malloc(N * sizeof *v);
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct bt_rng r;
        bt_rng_init(&r, seed, "hist", 0);
        int32_t bits = 1 + (int32_t)bt_rng_below(&r, 14);
        struct bt_hist h;
        init(&h, bits);
        double sum = 0;
        for (int i = 0; i < N; i++) {
            double x = seed % 2 ? exp(10.0 + 4.0 * bt_rng_normal(&r)) : 1e9 * bt_rng_uniform(&r);
            v[i] = (int64_t)x;
            sum += (double)v[i];
            bt_hist_record(&h, v[i], 1);
        }
        qsort(v, N, sizeof *v, bt_compare_int64);
        cr_expect_eq(h.n, N);
        cr_expect_eq(h.max, v[N - 1]);
        cr_expect_float_eq(h.sum, sum, 1e-9 * sum);
        for (size_t k = 0; k < sizeof ps / sizeof *ps; k++) {
            int64_t exact = v[bt_percentile_rank(N, ps[k]) - 1];
            int64_t got = bt_hist_percentile(&h, ps[k]);
            cr_expect(got >= exact && (double)(got - exact) <= ldexp((double)exact, -bits),
                      "seed %llu bits %d p%g: %lld against %lld", (unsigned long long)seed, bits,
                      ps[k], (long long)got, (long long)exact);
        }
    }
    free(v);
}

Test(hist, merge_equals_recording_into_one)
{
    struct bt_hist a, b, both;
    init(&a, 7);
    init(&b, 7);
    init(&both, 7);
    struct bt_rng r;
    bt_rng_init(&r, 5, "hist", 0);
    bt_hist_merge(&a, &b);
    cr_expect_eq(a.n, 0);
    for (int i = 0; i < 5000; i++) {
        int64_t v = (int64_t)bt_rng_below(&r, UINT64_C(1) << bt_rng_below(&r, 40));
        int64_t count = (int64_t)bt_rng_below(&r, 4);
        bt_hist_record(i % 3 ? &a : &b, v, count);
        bt_hist_record(&both, v, count);
    }
    bt_hist_merge(&a, &b);
    cr_expect_eq(a.n, both.n);
    cr_expect_eq(a.max, both.max);
    cr_expect_float_eq(a.sum, both.sum, 1e-9 * both.sum);
    cr_expect_eq(memcmp(a.counts, both.counts, (size_t)a.n_buckets * sizeof *a.counts), 0);
    bt_hist_reset(&a);
    cr_expect_eq(a.n, 0);
    for (int32_t i = 0; i < a.n_buckets; i++) {
        cr_assert_eq(a.counts[i], 0);
    }
}

Test(hist, merge_of_different_precision_asserts, .signal = SIGABRT)
{
    struct bt_hist a, b;
    init(&a, 7);
    init(&b, 8);
    bt_hist_merge(&a, &b);
}
