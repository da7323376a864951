/* The simulator against queueing theory: an executor that serves one request at a time is the
 * server of M/M/1 and M/D/1. BT_CUSTOMERS and BT_TOLERANCE are set by the build: a quick version
 * and the full one. */
#include "tests/sim/harness.h"

#include <math.h>

/* Waits of `n` customers at 70% load, mean service 1 ms: prompts of exponential length take 100 ns
 * a token, or every step takes 1 ms. */
static double mean_wait_ms(bool exponential)
{
    struct given_cost cost = {.step_ps = exponential ? 0 : 1000000000,
                              .prefill_token_ps = exponential ? 100000 : 0};
    struct bt_deploy d = given_deploy(&cost, 1, 2, 1 << 20);
    struct drawn_source s = {.seed = 2,
                             .n = BT_CUSTOMERS,
                             .gap_ns = 1e6 / 0.7,
                             .prompt_mean = exponential ? 10000 : 0,
                             .prompt = 10,
                             .output = 1};
    struct bt_sim_opts o = {.deploy = &d, .replicas = 1, .source = drawn_start(&s), .seed = 1};
    struct bt_sim_result *r = run_checked(&o);
    cr_expect_eq(r->summary.finished, BT_CUSTOMERS);
    cr_expect_eq(r->steps, BT_CUSTOMERS);
    cr_expect_float_eq(r->summary.gpu_busy_fraction, 0.7, 0.01);
    /* The mean number in the queue is lambda times the mean wait. */
    cr_expect_float_eq(r->summary.waiting_mean, r->summary.queue.mean_s * 700, 0.02);
    return r->summary.queue.mean_s * 1e3;
}

Test(queueing, mm1_mean_wait_is_rho_over_1_minus_rho_services)
{
    double expected = 0.7 / 0.3;
    double wait = mean_wait_ms(true);
    cr_expect(fabs(wait / expected - 1) < BT_TOLERANCE, "%.5f ms, M/M/1 says %.5f", wait, expected);
}

Test(queueing, md1_mean_wait_is_half_of_mm1)
{
    double expected = 0.7 / 0.3 / 2;
    double wait = mean_wait_ms(false);
    cr_expect(fabs(wait / expected - 1) < BT_TOLERANCE, "%.5f ms, M/D/1 says %.5f", wait, expected);
}
