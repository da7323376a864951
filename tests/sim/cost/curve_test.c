/* Compiled curves, tables and affine laws against what they are read off. */
#include "sim/cost/curve.h"

#include <criterion/criterion.h>

#include <math.h>

static double power_law(const void *ctx, int64_t x)
{
    return 5e6 * pow((double)x, *(const double *)ctx);
}

Test(curve, follows_power_laws_between_distant_knots)
{
    static const double exponents[] = {0, 0.1, 0.5, 0.9, 1, 1.5, 2};
    static const int64_t knots[] = {1, 16, 512, 65536};
    for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
        struct bt_curve c;
        cr_assert_eq(bt_curve_init(&c, knots, 4, power_law, &exponents[e], NULL), BT_OK);
        for (int64_t x = 1; x <= 65536; x += 1 + x / 37) {
            double truth = power_law(&exponents[e], x);
            cr_expect_float_eq(bt_curve_ps(&c, (double)x) / truth, 1, 0.0015, "x %lld, exponent %g",
                               (long long)x, exponents[e]);
        }
        bt_curve_fini(&c);
    }
}

Test(curve, meets_its_knots_and_goes_on_in_proportion)
{
    static const double exponent = 0.4;
    static const int64_t knots[] = {4, 8, 100};
    struct bt_curve c;
    cr_assert_eq(bt_curve_init(&c, knots, 3, power_law, &exponent, NULL), BT_OK);
    for (int32_t i = 0; i < 3; i++) {
        double truth = power_law(&exponent, knots[i]);
        cr_expect_float_eq(bt_curve_ps(&c, (double)knots[i]) / truth, 1, 1e-12);
    }
    cr_expect_float_eq(bt_curve_ps(&c, 300) / bt_curve_ps(&c, 100), 3, 1e-9);
    cr_expect_float_eq(bt_curve_ps(&c, 1), bt_curve_ps(&c, 4), 1e-9, "held below the first knot");
    bt_curve_fini(&c);
}

static double product(const void *ctx, int64_t x, int64_t y)
{
    (void)ctx;
    return 1e6 * pow((double)x, 0.7) * pow((double)y, 0.9);
}

Test(curve, plane_is_exact_for_products_of_powers)
{
    static const int64_t x[] = {1, 8, 64, 1024};
    static const int64_t y[] = {1, 4, 32};
    struct bt_plane p;
    cr_assert_eq(bt_plane_init(&p, x, 4, y, 3, product, NULL, NULL), BT_OK);
    for (int64_t i = 1; i <= 1024; i = i * 3 / 2 + 1) {
        for (int64_t k = 1; k <= 32; k++) {
            double truth = product(NULL, i, k);
            cr_expect_float_eq(bt_plane_ps(&p, (double)i, (double)k) / truth, 1, 1e-9);
        }
    }
    cr_expect_float_eq(bt_plane_ps(&p, 2048, 32) / bt_plane_ps(&p, 1024, 32), 2, 1e-9);
    cr_expect_float_eq(bt_plane_ps(&p, 64, 64) / bt_plane_ps(&p, 64, 32), 2, 1e-9);
    bt_plane_fini(&p);
}

/* 9 us and 3 ns a token of context of every sequence; 4 more ns a sequence. */
static double affine(const void *ctx, int64_t seqs, int64_t context)
{
    (void)ctx;
    return 9e6 + 4e3 * (double)seqs + 3e3 * (double)seqs * (double)context;
}

static double bent(const void *ctx, int64_t seqs, int64_t context)
{
    (void)ctx;
    double work = 3e3 * (double)seqs * (double)context;
    return fmax(9e6, work);
}

Test(affine, recovers_an_affine_law)
{
    static const int64_t seqs[] = {1, 8, 64};
    static const int64_t contexts[] = {256, 1024, 4096, 16384};
    struct bt_affine a;
    bt_affine_fit(&a, seqs, 3, contexts, 4, affine, NULL);
    cr_expect_lt(a.residual_p90, 1e-9);
    for (int64_t n = 1; n <= 64; n++) {
        double fixed, slope;
        bt_affine_at(&a, (double)n, &fixed, &slope);
        double t = fixed + slope * (double)(n * 2000);
        cr_expect_float_eq(t / affine(NULL, n, 2000), 1, 1e-9, "%lld sequences", (long long)n);
    }
}

Test(affine, states_what_a_bent_law_costs)
{
    static const int64_t seqs[] = {1};
    static const int64_t contexts[] = {256, 1024, 2048, 4096, 8192};
    struct bt_affine a;
    bt_affine_fit(&a, seqs, 1, contexts, 5, bent, NULL);
    double worst = 0;
    for (int32_t i = 0; i < 5; i++) {
        double t = a.fixed_ps[0] + a.each_ps[0] * (double)contexts[i];
        worst = fmax(worst, fabs(t / bent(NULL, 1, contexts[i]) - 1));
    }
    cr_expect_float_eq(a.residual_p90, worst, 1e-12, "P90 of five is the largest");
    cr_expect_gt(a.residual_p90, 0.02);
    cr_expect_lt(a.residual_p90, 0.25);
    cr_expect_geq(a.fixed_ps[0], 0);
    cr_expect_geq(a.each_ps[0], 0);
}

Test(affine, more_sequences_of_equal_context_never_take_less)
{
    static const int64_t seqs[] = {1, 2, 4, 16, 64, 256};
    static const int64_t contexts[] = {256, 1024, 4096};
    struct bt_affine a;
    bt_affine_fit(&a, seqs, 6, contexts, 3, bent, NULL);
    for (int64_t context = 100; context <= 20000; context *= 3) {
        double before = 0;
        for (int64_t n = 1; n <= 600; n++) {
            double fixed, slope;
            bt_affine_at(&a, (double)n, &fixed, &slope);
            double t = fixed + slope * (double)(n * context);
            cr_expect_geq(t, before * (1 - 1e-12), "%lld sequences of %lld", (long long)n,
                          (long long)context);
            before = t;
        }
    }
}
