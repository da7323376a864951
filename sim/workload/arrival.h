/* Arrival times: renewal processes (Poisson, Gamma, Weibull, constant) under a rate that may
 * change.
 *
 * Gaps of mean 1 are drawn in "operational time", which is the integral of the rate, and mapped to
 * real time by inverting that integral in closed form. A rate that changes in the middle of a gap
 * is therefore honoured exactly, and the coefficient of variation is that of the gaps in
 * operational time. The first gap comes from the equilibrium (residual) distribution, so that the
 * process is stationary: rate x duration arrivals are expected whatever the CV. Source: Cox,
 * Renewal Theory (1962), sec. 2.2 (equilibrium) and Cinlar (1975), sec. 4.7 (time change).
 */
#ifndef BT_SIM_WORKLOAD_ARRIVAL_H
#define BT_SIM_WORKLOAD_ARRIVAL_H

#include "engine/core/error.h"
#include "engine/core/rng.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_arrival_kind {
    BT_ARRIVAL_POISSON = 0, /* exponential gaps */
    BT_ARRIVAL_GAMMA,       /* Gamma gaps of coefficient of variation cv */
    BT_ARRIVAL_WEIBULL,     /* Weibull gaps of coefficient of variation cv */
    BT_ARRIVAL_CONSTANT,    /* equal gaps, the first request at 0 */
    BT_ARRIVAL_CLOSED,      /* users who wait for their answer: no arrival times */
};

#define BT_ARRIVAL_CV_MIN 0.01
#define BT_ARRIVAL_CV_MAX 100.0
#define BT_RATE_MAX       1e9 /* per second: one a nanosecond */

/* Between two points the rate is linear, after the last one it is the last one's. */
struct bt_rate_point {
    double t_s; /* from the stream's start; the first is 0, then increasing or equal (step) */
    double rate_per_s; /* >= 0 */
};

/* Gaps of mean 1. */
struct bt_gap {
    enum bt_arrival_kind kind; /* not CLOSED */
    double shape;              /* Gamma, Weibull */
    double scale;              /* makes the mean 1 */
};

/* Shape of the Weibull with this coefficient of variation, by bisection to full precision;
 * BT_ARRIVAL_CV_MIN <= cv <= BT_ARRIVAL_CV_MAX. */
double bt_weibull_shape(double cv);

/* Gaps of a kind with a coefficient of variation (ignored by POISSON and CONSTANT). */
struct bt_gap bt_gap_of_cv(enum bt_arrival_kind kind, double cv);

/* Gaps of a kind with a given shape > 0. */
struct bt_gap bt_gap_of_shape(enum bt_arrival_kind kind, double shape);

/* A gap. */
double bt_gap_draw(const struct bt_gap *g, struct bt_rng *r);

/* The time from an arbitrary moment to the next arrival; CONSTANT gives 0. */
double bt_gap_draw_first(const struct bt_gap *g, struct bt_rng *r);

/* Walks along a rate profile: a cursor in real and operational time. */
struct bt_rate_walk {
    const struct bt_rate_point *points; /* borrowed */
    int32_t n_points;
    int32_t segment_i; /* the segment that starts at points[segment_i] */
    double period_s;   /* > 0: the profile repeats */
    double cycle_s;    /* start of the current repetition */
    double at_s;       /* within the repetition */
};

/* Starts at time 0. n_points >= 1, points as described above; period_s 0 or >= the last t_s. */
void bt_rate_walk_init(struct bt_rate_walk *w, const struct bt_rate_point *points, int32_t n_points,
                       double period_s);

/* Moves on by `work` >= 0 of operational time (expected arrivals) and gives the real time in *t_s.
 * False when the rate stays 0 for ever, or t_s passes limit_s. Amortised O(1). */
bool bt_rate_walk_advance(struct bt_rate_walk *w, double work, double limit_s, double *t_s);

#ifdef __cplusplus
}
#endif

#endif
