/* The few statistics that the planner's decisions rest on. */
#ifndef BT_SIM_PLAN_STATS_H
#define BT_SIM_PLAN_STATS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* P(T <= t) of Student's t with n >= 1 degrees of freedom.
 * Source: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4. */
double bt_student_cdf(double t, int32_t n);

/* t with P(T <= t) = p, 0.5 < p < 1: by bisection to 1e-10. */
double bt_student_quantile(double p, int32_t n);

/* Half width of the two-sided interval of confidence 1 - alpha for the mean of n >= 2 values with
 * this sample standard deviation. */
double bt_mean_half_width(double sd, int32_t n, double alpha);

#ifdef __cplusplus
}
#endif

#endif
