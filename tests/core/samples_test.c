#include "engine/core/order.h"
#include "engine/core/rng.h"
#include "engine/core/samples.h"

#include <criterion/criterion.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>

static struct bt_arena arena;

static void setup(void)
{
    bt_arena_init(&arena, 0);
}

static void teardown(void)
{
    bt_arena_fini(&arena);
}

TestSuite(samples, .init = setup, .fini = teardown);

static const double ps[] = {0.1, 25, 50, 50, 90, 95, 99, 100};
enum { N_PS = 8 };

/* Adds n random values (runs of equal ones, zeros, all magnitudes) and checks every percentile
 * against a sort of all of them. */
static void check_against_sort(uint64_t seed, int64_t cap, bool counted, int64_t n)
{
    struct bt_rng r;
    bt_rng_init(&r, seed, "samples", 0);
    struct bt_error err = {0};
    struct bt_samples s;
    cr_assert_eq(bt_samples_init(&s, &arena, cap, counted, &err), BT_OK, "%s", err.msg);
    int64_t *all = malloc((size_t)(n + 8) * sizeof *all);
    int64_t *scratch = malloc((size_t)cap * 2 * sizeof *scratch);
    double sum = 0;
    int64_t have = 0;
    while (have < n) {
        int64_t value = (int64_t)(bt_rng_u64(&r) >> (1 + bt_rng_below(&r, 62)));
        value = bt_rng_below(&r, 4) == 0 ? 0 : value;
        int64_t count = (int64_t)bt_rng_below(&r, 4);
        for (int64_t i = 0; i < count; i++) {
            all[have++] = value;
            sum += (double)value;
        }
        bt_samples_add(&s, value, count);
    }
    qsort(all, (size_t)have, sizeof *all, bt_compare_int64);
    bt_samples_sort(&s, scratch, scratch + cap);
    int64_t got[N_PS];
    bt_samples_percentiles(&s, ps, N_PS, got);
    cr_expect_eq(s.n, have);
    cr_expect_eq(s.max, have > 0 ? all[have - 1] : -1);
    cr_expect(fabs(s.sum - sum) <= 1e-12 * sum);
    for (int i = 0; i < N_PS; i++) {
        int64_t want = have > 0 ? all[bt_percentile_rank(have, ps[i]) - 1] : -1;
        double over = s.exact ? 0.0 : ldexp((double)want, -BT_SAMPLES_SUB_BITS);
        cr_expect(got[i] >= want && (double)(got[i] - want) <= over,
                  "seed %llu n %lld p%g: %lld against %lld", (unsigned long long)seed,
                  (long long)have, ps[i], (long long)got[i], (long long)want);
    }
    free(all);
    free(scratch);
}

Test(samples, exact_while_they_fit)
{
    static const int64_t sizes[] = {0, 1, 2, 31, 32, 33, 64, 1000, 20000};
    for (uint64_t seed = 0; seed < 9 * 8; seed++) {
        int64_t n = sizes[seed % 9];
        check_against_sort(seed, n + 8, seed / 9 % 2 == 0, n);
    }
}

Test(samples, bounded_when_they_do_not)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        check_against_sort(seed, 1 + (int64_t)seed * 50, seed % 2 == 0, 5000);
    }
}

/* 4 million gaps of a batch of 64 that steps together: one entry a step, all exact. */
Test(samples, equal_values_in_a_row_take_one_entry)
{
    struct bt_error err = {0};
    struct bt_samples s;
    cr_assert_eq(bt_samples_init(&s, &arena, 70000, true, &err), BT_OK);
    for (int64_t step = 0; step < 62500; step++) {
        for (int i = 0; i < 64; i++) {
            bt_samples_add(&s, 20000000 + step, 1);
        }
    }
    cr_expect(s.exact);
    cr_expect_eq(s.n, 4000000);
    cr_expect_eq(s.n_entries, 62500);
    int64_t *scratch = malloc(2 * 70000 * sizeof *scratch);
    bt_samples_sort(&s, scratch, scratch + 70000);
    int64_t got[N_PS];
    bt_samples_percentiles(&s, ps, N_PS, got);
    cr_expect_eq(got[2], 20000000 + 31249);
    cr_expect_eq(got[N_PS - 1], 20000000 + 62499);
    free(scratch);
}

Test(samples, adding_goes_on_after_a_sort)
{
    struct bt_error err = {0};
    struct bt_samples s;
    int64_t scratch[20], got[N_PS];
    cr_assert_eq(bt_samples_init(&s, &arena, 10, true, &err), BT_OK);
    bt_samples_add(&s, 9, 1);
    bt_samples_add(&s, 7, 2);
    bt_samples_sort(&s, scratch, scratch + 10);
    bt_samples_add(&s, 1, 5);
    bt_samples_sort(&s, scratch, scratch + 10);
    bt_samples_percentiles(&s, ps, N_PS, got);
    cr_expect_eq(got[2], 1);
    cr_expect_eq(got[4], 9);
    cr_expect_eq(s.n, 8);
}

Test(samples, percentiles_of_unsorted_samples_assert, .signal = SIGABRT)
{
    struct bt_error err = {0};
    struct bt_samples s;
    int64_t got[N_PS];
    cr_assert_eq(bt_samples_init(&s, &arena, 10, false, &err), BT_OK);
    bt_samples_add(&s, 9, 2);
    bt_samples_percentiles(&s, ps, N_PS, got);
}
