#include "sim/cost/fit.h"

#include <criterion/criterion.h>

#include <math.h>

enum { N = 200 };

/* y = overhead + work_i / efficiency, with errors that alternate. */
struct line {
    double overhead, efficiency, noise;
    bool same_work;
    bool fixed_efficiency;
};

static double work_of(const struct line *l, int64_t i)
{
    return l->same_work ? 0.02 : 0.01 + 0.0002 * (double)(i % 50);
}

static enum bt_code log_ratios(void *ctx, const double *x, double *out, struct bt_error *err)
{
    const struct line *l = ctx;
    (void)err;
    for (int64_t i = 0; i < N; i++) {
        double work = work_of(l, i);
        double truth = l->overhead + work / l->efficiency;
        truth *= 1 + l->noise * (double)((i * 7919) % 13 - 6) / 6.0;
        double efficiency = l->fixed_efficiency ? 1 : x[1];
        out[i] = log((x[0] + work / efficiency) / truth);
    }
    return BT_OK;
}

static struct bt_fit_problem problem_of(struct line *l, int32_t n_params)
{
    return (struct bt_fit_problem){.n_params = n_params,
                                   .lower = {0, 0.2},
                                   .upper = {0.1, 2},
                                   .step = {1e-4, 0.01},
                                   .n = N,
                                   .residuals = log_ratios,
                                   .ctx = l};
}

Test(fit, both_parameters_are_found)
{
    struct line l = {.overhead = 0.0031, .efficiency = 0.87};
    struct bt_fit_problem p = problem_of(&l, 2);
    struct bt_fit_answer a;
    struct bt_error err = {0};
    double start[BT_FIT_PARAMS] = {0, 1};
    cr_assert_eq(bt_fit_solve(&p, start, &a, &err), BT_OK, "%s", err.msg);
    cr_expect_float_eq(a.value[0], 0.0031, 1e-6);
    cr_expect_float_eq(a.value[1], 0.87, 1e-4);
    cr_expect_lt(a.rms, 1e-5);
    cr_expect_lt(a.evaluations, 60);
}

Test(fit, the_interval_covers_the_truth_and_grows_with_noise)
{
    double width[2];
    for (int32_t i = 0; i < 2; i++) {
        struct line l = {.overhead = 0.004, .efficiency = 0.9, .noise = i == 0 ? 0.01 : 0.05};
        struct bt_fit_problem p = problem_of(&l, 2);
        struct bt_fit_answer a;
        double start[BT_FIT_PARAMS] = {0, 1};
        cr_assert_eq(bt_fit_solve(&p, start, &a, NULL), BT_OK);
        cr_expect_leq(a.low[0], 0.004);
        cr_expect_geq(a.high[0], 0.004);
        cr_expect_leq(a.low[1], 0.9);
        cr_expect_geq(a.high[1], 0.9);
        width[i] = a.high[0] - a.low[0];
    }
    cr_expect_gt(width[1], 2 * width[0]);
}

Test(fit, a_parameter_stays_at_its_bound)
{
    /* Kernels alone are slower than the run: no overhead explains it. */
    struct line l = {.overhead = 0, .efficiency = 1.2, .fixed_efficiency = true};
    struct bt_fit_problem p = problem_of(&l, 1);
    struct bt_fit_answer a;
    double start[BT_FIT_PARAMS] = {0.002, 1};
    cr_assert_eq(bt_fit_solve(&p, start, &a, NULL), BT_OK);
    cr_expect_float_eq(a.value[0], 0, 1e-12);
    cr_expect(a.at_bound[0]);
}

Test(fit, what_cannot_be_told_apart_is_said)
{
    struct line l = {.overhead = 0.003, .efficiency = 0.9, .same_work = true};
    struct bt_fit_problem p = problem_of(&l, 2);
    struct bt_fit_answer a;
    struct bt_error err = {0};
    double start[BT_FIT_PARAMS] = {0, 1};
    cr_expect_eq(bt_fit_solve(&p, start, &a, &err), BT_ERR_ARG);
    cr_expect(err.msg[0] != '\0');
}

static enum bt_code failing(void *ctx, const double *x, double *out, struct bt_error *err)
{
    (void)ctx;
    (void)x;
    (void)out;
    BT_FAIL(err, BT_ERR_INPUT, 7, "no such run");
}

Test(fit, errors_of_a_run_come_through)
{
    struct line l = {0};
    struct bt_fit_problem p = problem_of(&l, 1);
    p.residuals = failing;
    struct bt_fit_answer a;
    struct bt_error err = {0};
    double start[BT_FIT_PARAMS] = {0, 1};
    cr_expect_eq(bt_fit_solve(&p, start, &a, &err), BT_ERR_INPUT);
    cr_expect_str_eq(err.msg, "no such run");
}
