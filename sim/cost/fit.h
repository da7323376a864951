/* What a run of a stack says of its steps beyond its kernels: a fixed time a step, and the share of
 * their measured speed that its operations reach. And the small least-squares solver that finds
 * them.
 */
#ifndef BT_SIM_COST_FIT_H
#define BT_SIM_COST_FIT_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_FIT_NAME_BYTES = 128, BT_FIT_PARAMS = 2 };

struct bt_fit {
    char stack[BT_FIT_NAME_BYTES]; /* holds for this stack .. */
    char gpu[BT_FIT_NAME_BYTES];   /* .. on this GPU only */
    double step_overhead_s;        /* >= 0; in place of the stack's own */
    double efficiency;             /* > 0: operations take 1 / efficiency of their measured time */
    double step_error;             /* what the fitted run's steps are still off by, relative */
};

/* n residuals of one or two parameters; each evaluation is a simulation. */
struct bt_fit_problem {
    int32_t n_params;
    double lower[BT_FIT_PARAMS], upper[BT_FIT_PARAMS];
    double step[BT_FIT_PARAMS]; /* of finite differences, > 0 */
    int64_t n;                  /* > n_params */
    enum bt_code (*residuals)(void *ctx, const double *params, double *out, struct bt_error *err);
    void *ctx;
};

struct bt_fit_answer {
    double value[BT_FIT_PARAMS];
    double low[BT_FIT_PARAMS]; /* of the 95% interval */
    double high[BT_FIT_PARAMS];
    bool at_bound[BT_FIT_PARAMS];
    double rms;          /* of the residuals that remain */
    int32_t evaluations; /* of the residuals */
};

/* Minimises the sum of squares by damped Gauss-Newton steps within the bounds. The interval comes
 * from leaving out each of ten runs of consecutive residuals in turn: neighbours share steps and
 * are not independent. BT_ERR_ARG when the residuals do not tell the parameters apart; errors of
 * residuals; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_fit_solve(const struct bt_fit_problem *p,
                                       const double start[BT_FIT_PARAMS], struct bt_fit_answer *out,
                                       struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
