#include "sim/workload/arrival.h"

#include <math.h>

static double weibull_cv(double shape)
{
    double m1 = tgamma(1.0 + 1.0 / shape);
    double m2 = tgamma(1.0 + 2.0 / shape);
    double excess = m2 / (m1 * m1) - 1.0;
    return excess > 0.0 ? sqrt(excess) : 0.0;
}

double bt_weibull_shape(double cv)
{
    BT_ASSERT(cv >= BT_ARRIVAL_CV_MIN);
    BT_ASSERT(cv <= BT_ARRIVAL_CV_MAX);
    double lo = 0.1;   /* CV 430 */
    double hi = 200.0; /* CV 0.0064 */
    for (int32_t i = 0; i < 200 && lo < hi; i++) {
        double mid = 0.5 * (lo + hi);
        if (weibull_cv(mid) > cv) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return 0.5 * (lo + hi);
}

struct bt_gap bt_gap_of_shape(enum bt_arrival_kind kind, double shape)
{
    BT_ASSERT(kind != BT_ARRIVAL_CLOSED);
    struct bt_gap g = {.kind = kind, .shape = shape, .scale = 1.0};
    if (kind == BT_ARRIVAL_GAMMA) {
        BT_ASSERT(shape > 0.0);
        g.scale = 1.0 / shape;
    } else if (kind == BT_ARRIVAL_WEIBULL) {
        BT_ASSERT(shape > 0.0);
        g.scale = 1.0 / tgamma(1.0 + 1.0 / shape);
    }
    return g;
}

struct bt_gap bt_gap_of_cv(enum bt_arrival_kind kind, double cv)
{
    double shape = 1.0;
    if (kind == BT_ARRIVAL_GAMMA) {
        shape = 1.0 / (cv * cv);
    } else if (kind == BT_ARRIVAL_WEIBULL) {
        shape = bt_weibull_shape(cv);
    }
    return bt_gap_of_shape(kind, shape);
}

double bt_gap_draw(const struct bt_gap *g, struct bt_rng *r)
{
    switch (g->kind) {
    case BT_ARRIVAL_POISSON:
        return bt_rng_exponential(r);
    case BT_ARRIVAL_GAMMA:
        return g->scale * bt_rng_gamma(r, g->shape);
    case BT_ARRIVAL_WEIBULL:
        return g->scale * pow(bt_rng_exponential(r), 1.0 / g->shape);
    case BT_ARRIVAL_CONSTANT:
    case BT_ARRIVAL_CLOSED:
        break;
    }
    return 1.0;
}

double bt_gap_draw_first(const struct bt_gap *g, struct bt_rng *r)
{
    /* The residual of a renewal process is a uniform share of a length-biased gap. */
    switch (g->kind) {
    case BT_ARRIVAL_POISSON:
        return bt_rng_exponential(r);
    case BT_ARRIVAL_GAMMA:
        return bt_rng_uniform(r) * g->scale * bt_rng_gamma(r, g->shape + 1.0);
    case BT_ARRIVAL_WEIBULL:
        return bt_rng_uniform(r) * g->scale *
               pow(bt_rng_gamma(r, 1.0 + 1.0 / g->shape), 1.0 / g->shape);
    case BT_ARRIVAL_CONSTANT:
    case BT_ARRIVAL_CLOSED:
        break;
    }
    return 0.0;
}

void bt_rate_walk_init(struct bt_rate_walk *w, const struct bt_rate_point *points, int32_t n_points,
                       double period_s)
{
    BT_ASSERT(n_points >= 1);
    BT_ASSERT(points[0].t_s == 0.0);
    BT_ASSERT(period_s == 0.0 || period_s >= points[n_points - 1].t_s);
    *w = (struct bt_rate_walk){.points = points, .n_points = n_points, .period_s = period_s};
}

/* End of the current segment and the rates at the cursor and at that end. */
static double segment_end(const struct bt_rate_walk *w, double *rate_at, double *rate_end)
{
    const struct bt_rate_point *a = &w->points[w->segment_i];
    if (w->segment_i + 1 == w->n_points) {
        *rate_at = *rate_end = a->rate_per_s;
        return w->period_s > 0.0 ? w->period_s : INFINITY;
    }
    const struct bt_rate_point *b = a + 1;
    double span = b->t_s - a->t_s;
    double f = span > 0.0 ? (w->at_s - a->t_s) / span : 1.0;
    *rate_at = a->rate_per_s + (b->rate_per_s - a->rate_per_s) * f;
    *rate_end = b->rate_per_s;
    return b->t_s;
}

bool bt_rate_walk_advance(struct bt_rate_walk *w, double work, double limit_s, double *t_s)
{
    BT_ASSERT(work >= 0.0);
    while (w->cycle_s + w->at_s <= limit_s) {
        double r0, r1;
        double end = segment_end(w, &r0, &r1);
        double span = end - w->at_s;
        double area = isinf(span) ? (r0 > 0.0 ? INFINITY : 0.0) : 0.5 * (r0 + r1) * span;
        if (work <= area && (area > 0.0 || work == 0.0)) {
            double slope = isinf(span) || span <= 0.0 ? 0.0 : (r1 - r0) / span;
            /* The root of r0 x + slope x^2 / 2 = work in the form that does not cancel. */
            double root = r0 + sqrt(fmax(r0 * r0 + 2.0 * slope * work, 0.0));
            double step = root > 0.0 ? 2.0 * work / root : 0.0;
            w->at_s = fmin(w->at_s + step, end);
            *t_s = w->cycle_s + w->at_s;
            return *t_s <= limit_s;
        }
        if (isinf(span)) {
            return false;
        }
        work -= area;
        w->at_s = end;
        w->segment_i++;
        if (w->segment_i == w->n_points) {
            w->segment_i = 0;
            w->cycle_s += w->period_s;
            w->at_s = 0.0;
        }
    }
    return false;
}
