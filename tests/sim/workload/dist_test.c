/* Distributions and arrival processes against their closed forms. */
#include "engine/core/order.h"
#include "sim/workload/arrival.h"
#include "sim/workload/dist.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_DRAWS = 200000 };

struct moments {
    double mean, cv, p95;
};

static struct moments draw_moments(const struct bt_dist_spec *spec, uint64_t seed)
{
    struct bt_error err = {0};
    struct bt_dist *d = NULL;
    cr_assert_eq(bt_dist_create(spec, "workload.prompt", &d, &err), BT_OK, "%s", err.msg);
    struct bt_rng r;
    bt_rng_init(&r, seed, "prompt", 0);
    double *x = malloc(N_DRAWS * sizeof *x);
    double sum = 0.0;
    double sum2 = 0.0;
    for (int i = 0; i < N_DRAWS; i++) {
        x[i] = bt_dist_draw(d, &r);
        sum += x[i];
        sum2 += x[i] * x[i];
    }
    qsort(x, N_DRAWS, sizeof *x, bt_compare_doubles);
    struct moments m = {.mean = sum / N_DRAWS, .p95 = x[(int)(0.95 * N_DRAWS) - 1]};
    m.cv = sqrt(fmax(sum2 / N_DRAWS - m.mean * m.mean, 0.0)) / m.mean;
    free(x);
    bt_dist_destroy(d);
    return m;
}

Test(dist, moments_are_the_closed_forms)
{
    static const double values[] = {10, 20, 400};
    static const double weights[] = {1, 2, 1};
    static const struct bt_dist_spec parts[] = {
        {.kind = BT_DIST_CONST, .value = 100},
        {.kind = BT_DIST_EXPONENTIAL, .mean = 500},
    };
    static const double part_weights[] = {3, 1};
    static const struct {
        const char *name;
        struct bt_dist_spec spec;
        double mean, cv, p95; /* < 0: not compared */
    } cases[] = {
        {"const", {.kind = BT_DIST_CONST, .value = 77}, 77, 0, 77},
        {"uniform", {.kind = BT_DIST_UNIFORM, .min = 100, .max = 300}, 200, 0.288675, 290},
        {"lognormal mean p95",
         {.kind = BT_DIST_LOGNORMAL, .mean = 650, .p95 = 900},
         650,
         0.21297,
         900},
        {"lognormal wide", {.kind = BT_DIST_LOGNORMAL, .mean = 80, .p95 = 200}, 80, 0.81041, 200},
        {"lognormal median sigma",
         {.kind = BT_DIST_LOGNORMAL, .median = 300, .sigma = 0.5},
         300 * 1.1331485,
         0.532940,
         300 * 2.276168},
        {"lognormal mean sigma",
         {.kind = BT_DIST_LOGNORMAL, .mean = 300, .sigma = 0.5},
         300,
         0.532940,
         300 * 2.276168 / 1.1331485},
        {"exponential", {.kind = BT_DIST_EXPONENTIAL, .mean = 250}, 250, 1, 250 * 2.995732},
        {"pareto", {.kind = BT_DIST_PARETO, .alpha = 4, .scale = 90}, 120, 0.353553, 90 * 2.114743},
        {"empirical",
         {.kind = BT_DIST_EMPIRICAL, .values = values, .weights = weights, .n_values = 3},
         112.5,
         1.476,
         400},
        {"mixture",
         {.kind = BT_DIST_MIXTURE, .parts = parts, .part_weights = part_weights, .n_parts = 2},
         200,
         1.52069,
         -1},
        {"clamped uniform",
         {.kind = BT_DIST_UNIFORM, .min = 0, .max = 100, .clamp_min = 50, .clamp_max = 75},
         59.375,
         -1,
         75},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moments m = draw_moments(&cases[i].spec, 11);
        cr_expect_float_eq(m.mean, cases[i].mean, 0.012 * cases[i].mean, "%s: mean %g, not %g",
                           cases[i].name, m.mean, cases[i].mean);
        if (cases[i].cv >= 0) {
            cr_expect_float_eq(m.cv, cases[i].cv, 0.02 * cases[i].cv + 1e-6, "%s: cv %g, not %g",
                               cases[i].name, m.cv, cases[i].cv);
        }
        if (cases[i].p95 >= 0) {
            cr_expect_float_eq(m.p95, cases[i].p95, 0.015 * cases[i].p95, "%s: p95 %g, not %g",
                               cases[i].name, m.p95, cases[i].p95);
        }
    }
}

Test(dist, lognormal_takes_the_smaller_sigma_and_refuses_what_does_not_exist)
{
    double s = bt_lognormal_sigma(80, 200);
    cr_expect_float_eq(exp(1.6448536269514722 * s - s * s / 2), 2.5, 1e-12);
    cr_expect_lt(s, 1.6448536);
    cr_expect_float_eq(bt_lognormal_sigma(100, 100), 0.0, 1e-12);
    cr_expect_lt(bt_lognormal_sigma(100, 99), 0.0);
    cr_expect_gt(bt_lognormal_sigma(100, 386), 0.0);
    cr_expect_lt(bt_lognormal_sigma(100, 387), 0.0);
}

Test(dist, whole_uniform_includes_both_ends_equally)
{
    struct bt_dist_spec spec = {.kind = BT_DIST_UNIFORM, .min = 3, .max = 7};
    struct bt_dist *d = NULL;
    cr_assert_eq(bt_dist_create(&spec, "k", &d, NULL), BT_OK);
    struct bt_rng r;
    bt_rng_init(&r, 5, "prompt", 0);
    int count[10] = {0};
    for (int i = 0; i < 50000; i++) {
        int32_t n = bt_dist_draw_tokens(d, &r);
        cr_assert(n >= 3 && n <= 7);
        count[n]++;
    }
    for (int n = 3; n <= 7; n++) {
        cr_expect_float_eq(count[n], 10000, 400, "%d: %d", n, count[n]);
    }
    bt_dist_destroy(d);
}

Test(dist, an_entry_of_weight_zero_is_never_drawn)
{
    double w[] = {0, 1, 0, 2, 0};
    double cum[5];
    bt_weights_accumulate(w, 5, cum);
    for (int i = 0; i < 1000; i++) {
        int32_t k = bt_weights_pick(cum, 5, i / 1000.0);
        cr_assert(k == 1 || k == 3);
    }
    cr_expect_eq(bt_weights_pick(cum, 5, nextafter(1.0, 0.0)), 3);
}

Test(dist, bad_descriptions_name_the_key_the_value_and_what_is_allowed)
{
    static const double negative[] = {1, -2};
    static const double ones[] = {1, 1};
    static const struct bt_dist_spec bad_part[] = {{.kind = BT_DIST_CONST, .value = 1},
                                                   {.kind = BT_DIST_EXPONENTIAL}};
    static const struct {
        struct bt_dist_spec spec;
        const char *says;
    } cases[] = {
        {{0}, "workload.prompt: a distribution is required"},
        {{.kind = BT_DIST_CONST, .value = -1}, "workload.prompt.value: expected 0 to"},
        {{.kind = BT_DIST_CONST, .value = NAN}, "workload.prompt.value: expected 0 to"},
        {{.kind = BT_DIST_UNIFORM, .min = 9, .max = 8}, "workload.prompt.max: expected 9 to"},
        {{.kind = BT_DIST_LOGNORMAL, .mean = 100, .p95 = 400}, "workload.prompt.p95: no lognormal"},
        {{.kind = BT_DIST_LOGNORMAL, .mean = 100, .p95 = 90}, "workload.prompt.p95: no lognormal"},
        {{.kind = BT_DIST_LOGNORMAL, .sigma = 1}, "either mean or median"},
        {{.kind = BT_DIST_LOGNORMAL, .mean = 1, .median = 1}, "either mean or median"},
        {{.kind = BT_DIST_LOGNORMAL, .mean = 1, .p95 = 2, .sigma = 1}, "p95 or sigma, not both"},
        {{.kind = BT_DIST_EXPONENTIAL, .mean = 0}, "workload.prompt.mean: expected > 0"},
        {{.kind = BT_DIST_PARETO, .alpha = 0, .scale = 1}, "workload.prompt.alpha"},
        {{.kind = BT_DIST_EMPIRICAL}, "workload.prompt.values: expected 1 to"},
        {{.kind = BT_DIST_EMPIRICAL, .values = negative, .n_values = 2},
         "workload.prompt.values[2]: expected 0 to 100000000, got -2"},
        {{.kind = BT_DIST_EMPIRICAL, .values = ones, .weights = negative, .n_values = 2},
         "workload.prompt.weights[2]: expected a weight >= 0, got -2"},
        {{.kind = BT_DIST_MIXTURE, .parts = bad_part, .n_parts = 2},
         "workload.prompt[2].mean: expected > 0"},
        {{.kind = BT_DIST_CONST, .value = 5, .clamp_min = 9, .clamp_max = 8},
         "workload.prompt.clamp_min: expected <= clamp_max (8), got 9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_error err = {0};
        cr_expect_eq(bt_dist_validate(&cases[i].spec, "workload.prompt", &err), BT_ERR_INPUT,
                     "case %zu", i);
        cr_expect_not_null(strstr(err.msg, cases[i].says), "case %zu: \"%s\" lacks \"%s\"", i,
                           err.msg, cases[i].says);
    }
}

Test(gap, mean_is_one_and_cv_is_as_asked)
{
    static const struct {
        enum bt_arrival_kind kind;
        double cv, expected_cv;
    } cases[] = {
        {BT_ARRIVAL_POISSON, 0, 1},     {BT_ARRIVAL_GAMMA, 0.3, 0.3}, {BT_ARRIVAL_GAMMA, 3, 3},
        {BT_ARRIVAL_WEIBULL, 0.5, 0.5}, {BT_ARRIVAL_WEIBULL, 2, 2},   {BT_ARRIVAL_CONSTANT, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_gap g = bt_gap_of_cv(cases[i].kind, cases[i].cv);
        struct bt_rng r;
        bt_rng_init(&r, 3, "arrival", 0);
        double sum = 0.0;
        double sum2 = 0.0;
        const int n = 400000;
        for (int j = 0; j < n; j++) {
            double x = bt_gap_draw(&g, &r);
            sum += x;
            sum2 += x * x;
        }
        double mean = sum / n;
        double cv = sqrt(fmax(sum2 / n - mean * mean, 0.0)) / mean;
        cr_expect_float_eq(mean, 1.0, 0.006 * fmax(1.0, cases[i].expected_cv), "%zu: %g", i, mean);
        cr_expect_float_eq(cv, cases[i].expected_cv, 0.025 * cases[i].expected_cv, "%zu: %g", i,
                           cv);
    }
}

Test(gap, weibull_shape_inverts_the_cv)
{
    static const double cvs[] = {0.01, 0.1, 0.5, 1.0, 2.0, 5.1919, 50.0, 100.0};
    for (size_t i = 0; i < sizeof cvs / sizeof *cvs; i++) {
        double k = bt_weibull_shape(cvs[i]);
        double m1 = tgamma(1 + 1 / k);
        cr_expect_float_eq(sqrt(tgamma(1 + 2 / k) / (m1 * m1) - 1), cvs[i], 1e-7 * cvs[i] + 1e-9);
    }
    cr_expect_float_eq(bt_weibull_shape(1.0), 1.0, 1e-9);
}

/* Without the equilibrium first gap a CV of 5 would give (CV^2 - 1)/2 = 12 arrivals too many. */
Test(gap, a_bursty_stream_is_stationary_from_its_start)
{
    static const enum bt_arrival_kind kinds[] = {BT_ARRIVAL_GAMMA, BT_ARRIVAL_WEIBULL};
    for (int k = 0; k < 2; k++) {
        struct bt_gap g = bt_gap_of_cv(kinds[k], 5.0);
        int64_t arrivals = 0;
        const int n_streams = 20000;
        const double horizon = 20.0;
        for (int i = 0; i < n_streams; i++) {
            struct bt_rng r;
            bt_rng_init(&r, 9, "arrival", (uint64_t)i);
            double t = bt_gap_draw_first(&g, &r);
            while (t < horizon) {
                arrivals++;
                t += bt_gap_draw(&g, &r);
            }
        }
        cr_expect_float_eq((double)arrivals / n_streams, horizon, 0.5, "%d: %g", k,
                           (double)arrivals / n_streams);
    }
}

Test(rate_walk, inverts_the_integral_of_a_profile)
{
    /* 0 to 10 a second over 10 s, steady for 10 s, a step to nothing for 5 s, then 4 a second. */
    static const struct bt_rate_point points[] = {{0, 0},  {10, 10}, {20, 10},
                                                  {20, 0}, {25, 0},  {25, 4}};
    static const struct {
        double work, t;
    } cases[] = {{12.5, 5}, {50, 10}, {100, 15}, {150, 20}, {152, 25.5}, {190, 35}};
    struct bt_rate_walk w;
    bt_rate_walk_init(&w, points, 6, 0.0);
    double before = 0.0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double t = -1;
        cr_assert(bt_rate_walk_advance(&w, cases[i].work - before, INFINITY, &t));
        cr_expect_float_eq(t, cases[i].t, 1e-9, "%zu: %g", i, t);
        before = cases[i].work;
    }
}

Test(rate_walk, repeats_with_its_period_and_ends_where_the_rate_stays_zero)
{
    static const struct bt_rate_point tooth[] = {{0, 0}, {1, 2}};
    struct bt_rate_walk w;
    double t = -1;
    bt_rate_walk_init(&w, tooth, 2, 1.0); /* one arrival a period, at 1, 2, 3 ... */
    cr_assert(bt_rate_walk_advance(&w, 2.25, INFINITY, &t));
    cr_expect_float_eq(t, 2.5, 1e-9);
    cr_assert(bt_rate_walk_advance(&w, 1.0, INFINITY, &t));
    cr_expect_float_eq(t, 3.5, 1e-9);
    cr_expect_not(bt_rate_walk_advance(&w, 100.0, 10.0, &t));
    static const struct bt_rate_point stops[] = {{0, 5}, {2, 0}};
    bt_rate_walk_init(&w, stops, 2, 0.0);
    cr_assert(bt_rate_walk_advance(&w, 5.0, INFINITY, &t));
    cr_expect_float_eq(t, 2.0, 1e-7);
    cr_expect_not(bt_rate_walk_advance(&w, 0.1, INFINITY, &t));
}
