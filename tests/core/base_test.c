#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/core/rng.h"

#include <criterion/criterion.h>

#include <math.h>
#include <signal.h>
#include <string.h>

Test(error, first_failure_wins)
{
    struct bt_error err = {0};
    cr_expect_eq(bt_error_set(&err, BT_ERR_ARG, 7, "a.c", 1, "k: %d must be > 0", -1), BT_ERR_ARG);
    cr_expect_eq(bt_error_set(&err, BT_ERR_IO, 8, "b.c", 2, "later"), BT_ERR_IO);
    cr_expect_eq(err.code, BT_ERR_ARG);
    cr_expect_eq(err.detail, 7);
    cr_expect_str_eq(err.msg, "k: -1 must be > 0");
}

Test(error, assert_aborts, .signal = SIGABRT)
{
    BT_ASSERT(1 + 1 == 3);
}

Test(arena, takes_are_aligned_zeroed_and_capped)
{
    struct bt_arena a;
    bt_arena_init(&a, 1 << 20);
    for (size_t i = 0; i < 100; i++) {
        unsigned char *p = bt_arena_take_zeroed(&a, i, 3);
        cr_assert_not_null(p);
        cr_assert_eq((uintptr_t)p % 64, 0);
        for (size_t j = 0; j < 3 * i; j++) {
            cr_assert_eq(p[j], 0);
        }
        memset(p, 0xa5, 3 * i);
    }
    cr_expect_null(bt_arena_take(&a, 1 << 20));
    cr_expect_null(bt_arena_take_zeroed(&a, SIZE_MAX / 2, 4));
    a.failnext = 2;
    cr_expect_not_null(bt_arena_take(&a, 1));
    cr_expect_null(bt_arena_take(&a, 1));
    bt_arena_fini(&a);
    cr_expect_null(a.head);
}

Test(arena, memory_is_used_again_and_zeroed_memory_is_zero)
{
    enum { LIVES = 40, BIG = 1 << 20 };
    struct bt_arena a;
    bt_arena_init(&a, 0);
    const void *seen[LIVES] = {0};
    for (size_t life = 0; life < LIVES; life++) {
        unsigned char *raw = bt_arena_take(&a, 100 + life * 50);
        size_t bytes[] = {1 + life, BIG, 3 * life + 7, 80 * 1024};
        seen[life] = raw;
        memset(raw, 0xff, 100 + life * 50);
        for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
            unsigned char *p = bt_arena_take_zeroed(&a, bytes[i], 1);
            for (size_t k = 0; k < bytes[i]; k++) {
                cr_assert_eq(p[k], 0, "life %zu, byte %zu of %zu", life, k, bytes[i]);
            }
            memset(p, 0xff, bytes[i]);
        }
        cr_assert_geq(a.used_bytes, (size_t)BIG);
        bt_arena_reset(&a);
        cr_assert_eq(a.used_bytes, 0);
    }
    int32_t n_same = 0;
    for (size_t life = 1; life < LIVES; life++) {
        n_same += seen[life] == seen[0];
    }
    cr_expect_gt(n_same, LIVES / 2);
    bt_arena_fini(&a);
    cr_expect_null(a.spare);
}

Test(arena, chunks_without_use_are_freed_after_some_lives)
{
    struct bt_arena a;
    bt_arena_init(&a, 0);
    cr_assert_not_null(bt_arena_take(&a, 1 << 20));
    int32_t life = 0;
    do {
        bt_arena_reset(&a);
        life++;
    } while (a.spare != NULL && life < 100);
    cr_expect(life > 2 && life < 100, "freed after %d lives", life);
    bt_arena_fini(&a);
}

Test(rng, streams_are_independent_and_repeatable)
{
    struct bt_rng a, b, c;
    bt_rng_init(&a, 1, "arrival", 0);
    bt_rng_init(&b, 1, "arrival", 0);
    bt_rng_init(&c, 1, "length", 0);
    int same_other = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = bt_rng_u64(&a);
        cr_assert_eq(x, bt_rng_u64(&b));
        same_other += x == bt_rng_u64(&c);
    }
    cr_expect_eq(same_other, 0);
}

/* Means and variances within five standard errors of n draws. */
Test(rng, moments_match)
{
    struct bt_rng r;
    bt_rng_init(&r, 42, "test", 0);
    enum { N = 200000 };
    static const double shapes[] = {0.25, 0.9, 1.0, 4.0};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        double sum = 0, sq = 0;
        for (int i = 0; i < N; i++) {
            double x = bt_rng_gamma(&r, shapes[k]);
            sum += x;
            sq += x * x;
        }
        double mean = sum / N;
        double var = sq / N - mean * mean;
        cr_expect(fabs(mean - shapes[k]) < 5.0 * sqrt(shapes[k] / N), "shape %g mean %g", shapes[k],
                  mean);
        cr_expect(fabs(var / shapes[k] - 1.0) < 0.05, "shape %g var %g", shapes[k], var);
    }
    double sum = 0, sq = 0;
    for (int i = 0; i < N; i++) {
        double x = bt_rng_normal(&r);
        sum += x;
        sq += x * x;
    }
    cr_expect(fabs(sum / N) < 5.0 / sqrt(N));
    cr_expect(fabs(sq / N - 1.0) < 0.03);
    uint64_t counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        counts[bt_rng_below(&r, 7)]++;
    }
    for (int i = 0; i < 7; i++) {
        cr_expect(fabs((double)counts[i] - 10000.0) < 500.0);
    }
}
