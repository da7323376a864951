/* Distributions of lengths and pauses: a description that a scenario fills, a sampler made of it.
 *
 * A draw is a positive real (seconds for pauses); lengths round it to whole tokens >= 1. Every draw
 * of one sampler comes from the one stream its caller passes, so that exchanging one distribution
 * moves no other.
 */
#ifndef BT_SIM_WORKLOAD_DIST_H
#define BT_SIM_WORKLOAD_DIST_H

#include "engine/core/error.h"
#include "engine/core/rng.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_dist_kind {
    BT_DIST_NONE = 0,    /* not given */
    BT_DIST_CONST,       /* value */
    BT_DIST_UNIFORM,     /* min..max; whole numbers, both ends included, where a length is drawn */
    BT_DIST_LOGNORMAL,   /* (mean, p95), (mean, sigma) or (median, sigma) */
    BT_DIST_EXPONENTIAL, /* mean */
    BT_DIST_PARETO, /* alpha and scale (its least value), density alpha*scale^alpha/x^(alpha+1) */
    BT_DIST_EMPIRICAL, /* values with weights (NULL: equal); also a PDF table */
    BT_DIST_MIXTURE,   /* parts with part weights */
};

enum {
    BT_DIST_MAX_VALUES = 1 << 20, /* entries of an empirical list */
    BT_DIST_MAX_PARTS = 64,       /* components of a mixture */
    BT_DIST_MAX_DEPTH = 4,        /* mixtures of mixtures */
    BT_MAX_TOKENS = 100000000,    /* longest prompt or output accepted anywhere */
};

/* A field that its kind does not name is 0 and ignored. */
struct bt_dist_spec {
    enum bt_dist_kind kind;
    double value;          /* const: >= 0 */
    double min, max;       /* uniform: 0 <= min <= max */
    double mean;           /* lognormal, exponential: > 0 */
    double median;         /* lognormal: > 0, with sigma, instead of mean */
    double p95;            /* lognormal: mean <= p95 <= 3.868 mean; takes the smaller sigma */
    double sigma;          /* lognormal: of the logarithm, 0..5, instead of p95 */
    double alpha, scale;   /* pareto: alpha > 0, scale > 0 */
    const double *values;  /* borrowed; empirical: n_values of them, each >= 0 */
    const double *weights; /* borrowed; >= 0 with a sum > 0, or NULL */
    int32_t n_values;      /* 1..BT_DIST_MAX_VALUES */
    const struct bt_dist_spec *parts; /* borrowed; mixture: n_parts of them */
    const double *part_weights;       /* borrowed; >= 0 with a sum > 0, or NULL */
    int32_t n_parts;                  /* 1..BT_DIST_MAX_PARTS */
    double clamp_min;                 /* every draw is raised to this; 0: none */
    double clamp_max;                 /* every draw is cut to this; 0: none */
};

struct bt_dist; /* a sampler; not changed by drawing, so it may be shared by threads */

/* Checks the description; errors are BT_ERR_INPUT and begin with `key` ("workload.prompt"). */
BT_NODISCARD enum bt_code bt_dist_validate(const struct bt_dist_spec *spec, const char *key,
                                           struct bt_error *err);

/* A sampler of a description, which is validated first and need not outlive the call. */
BT_NODISCARD enum bt_code bt_dist_create(const struct bt_dist_spec *spec, const char *key,
                                         struct bt_dist **out, struct bt_error *err);

/* Frees the sampler; NULL is allowed. */
void bt_dist_destroy(struct bt_dist *d);

/* One draw. O(log n) in the entries of a list. */
double bt_dist_draw(const struct bt_dist *d, struct bt_rng *r);

/* One draw as tokens: rounded to the nearest whole number in 1..BT_MAX_TOKENS. */
int32_t bt_dist_draw_tokens(const struct bt_dist *d, struct bt_rng *r);

/* The lognormal with this mean and 95th percentile and the smaller sigma: the root of
 * ln(p95/mean) = z*sigma - sigma^2/2 with z the normal's 95% point. Returns -1 where none exists
 * (p95 < mean or p95/mean > exp(z^2/2) = 3.868). */
double bt_lognormal_sigma(double mean, double p95);

/* Cumulative sum of n weights (NULL: all 1) scaled so that cum[n-1] == 1; the sum must be > 0.
 * cum may be weights. */
void bt_weights_accumulate(const double *weights, int32_t n, double *cum);

/* Index of the entry that u in [0, 1) falls into. */
int32_t bt_weights_pick(const double *cum, int32_t n, double u);

#ifdef __cplusplus
}
#endif

#endif
