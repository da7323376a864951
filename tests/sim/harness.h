/* A run of the simulator with the checks that hold for every run. */
#ifndef BT_TESTS_SIM_HARNESS_H
#define BT_TESTS_SIM_HARNESS_H

#include "tests/sim/given.h"

#include <criterion/criterion.h>

/* Runs and checks what holds for every run: conservation is asserted inside, Little's law here. */
static inline struct bt_sim_result *run_checked(const struct bt_sim_opts *o)
{
    static struct bt_sim_result result;
    struct bt_error err = {0};
    enum bt_code code = bt_sim_run(o, &result, &err);
    cr_assert_eq(code, BT_OK, "%s", err.msg);
    cr_expect(result.summary.little_error < 1e-6, "Little's law is off by %g",
              result.summary.little_error);
    cr_expect(result.summary.little_gauge_error < 1e-6, "gauges are off by %g",
              result.summary.little_gauge_error);
    return &result;
}

#endif
