#include "sim/workload/dist.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double Z95 = 1.6448536269514722; /* 95% point of the standard normal */
static const double SIGMA_MAX = 5.0;

struct bt_dist {
    enum bt_dist_kind kind;
    double a, b; /* const: a; uniform: a..b; lognormal: mu, sigma; exponential: mean;
                    pareto: scale, 1/alpha */
    double clamp_min;
    double clamp_max;
    int32_t n;              /* entries or parts */
    double *cum;            /* owned: cumulative weights */
    double *values;         /* owned: empirical */
    struct bt_dist **parts; /* owned: mixture */
};

double bt_lognormal_sigma(double mean, double p95)
{
    double log_ratio = log(p95 / mean);
    double disc = Z95 * Z95 - 2.0 * log_ratio;
    if (!(p95 >= mean) || disc < 0.0) {
        return -1.0;
    }
    /* The smaller root, in the form that does not cancel where p95 is close to the mean. */
    return 2.0 * log_ratio / (Z95 + sqrt(disc));
}

void bt_weights_accumulate(const double *weights, int32_t n, double *cum)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += weights == NULL ? 1.0 : weights[i];
        cum[i] = sum;
    }
    BT_ASSERT(sum > 0.0);
    /* The last sums divide to exactly 1, and equal neighbours are never picked. */
    for (int32_t i = 0; i < n; i++) {
        cum[i] /= sum;
    }
}

int32_t bt_weights_pick(const double *cum, int32_t n, double u)
{
    int32_t lo = 0;
    int32_t hi = n - 1;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (u < cum[mid]) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

static enum bt_code check_range(const char *key, const char *field, double x, double min,
                                double max, struct bt_error *err)
{
    if (!(x >= min && x <= max)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s.%s: expected %.15g to %.15g, got %.15g", key, field, min,
                max, x);
    }
    return BT_OK;
}

static enum bt_code check_positive(const char *key, const char *field, double x,
                                   struct bt_error *err)
{
    if (!(x > 0.0 && x <= (double)BT_MAX_TOKENS)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s.%s: expected > 0 and <= %d, got %.15g", key, field,
                BT_MAX_TOKENS, x);
    }
    return BT_OK;
}

static enum bt_code check_weights(const char *key, const char *field, const double *weights,
                                  int32_t n, struct bt_error *err)
{
    if (weights == NULL) {
        return BT_OK;
    }
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (!(weights[i] >= 0.0 && weights[i] <= 1e15)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s.%s[%d]: expected a weight >= 0, got %.15g", key,
                    field, i + 1, weights[i]);
        }
        sum += weights[i];
    }
    if (!(sum > 0.0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s.%s: expected a sum > 0, got %.15g", key, field, sum);
    }
    return BT_OK;
}

static enum bt_code check_lognormal(const struct bt_dist_spec *d, const char *key,
                                    struct bt_error *err)
{
    if ((d->mean != 0.0) == (d->median != 0.0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: a lognormal needs either mean or median", key);
    }
    if (d->median != 0.0) {
        BT_TRY(check_positive(key, "median", d->median, err));
        if (d->p95 != 0.0) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s.p95: a lognormal by median takes sigma, not p95 (got %.15g)", key, d->p95);
        }
    } else {
        BT_TRY(check_positive(key, "mean", d->mean, err));
    }
    if (d->p95 != 0.0 && d->sigma != 0.0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: a lognormal takes p95 or sigma, not both", key);
    }
    if (d->p95 == 0.0) {
        return check_range(key, "sigma", d->sigma, 0.0, SIGMA_MAX, err);
    }
    if (bt_lognormal_sigma(d->mean, d->p95) < 0.0) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s.p95: no lognormal with mean %.15g has p95 %.15g; expected p95 between the mean "
                "and 3.868 times it (%.15g)",
                key, d->mean, d->p95, d->mean * exp(Z95 * Z95 / 2.0));
    }
    return BT_OK;
}

static enum bt_code validate_at(const struct bt_dist_spec *d, const char *key, int32_t depth,
                                struct bt_error *err);

static enum bt_code check_empirical(const struct bt_dist_spec *d, const char *key,
                                    struct bt_error *err)
{
    if (d->n_values < 1 || d->n_values > BT_DIST_MAX_VALUES || d->values == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s.values: expected 1 to %d values, got %d", key,
                BT_DIST_MAX_VALUES, d->n_values);
    }
    for (int32_t i = 0; i < d->n_values; i++) {
        if (!(d->values[i] >= 0.0 && d->values[i] <= (double)BT_MAX_TOKENS)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s.values[%d]: expected 0 to %d, got %.15g", key, i + 1,
                    BT_MAX_TOKENS, d->values[i]);
        }
    }
    return check_weights(key, "weights", d->weights, d->n_values, err);
}

static enum bt_code check_mixture(const struct bt_dist_spec *d, const char *key, int32_t depth,
                                  struct bt_error *err)
{
    if (depth == BT_DIST_MAX_DEPTH) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: mixtures may be nested at most %d deep", key,
                BT_DIST_MAX_DEPTH);
    }
    if (d->n_parts < 1 || d->n_parts > BT_DIST_MAX_PARTS || d->parts == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: a mixture needs 1 to %d parts, got %d", key,
                BT_DIST_MAX_PARTS, d->n_parts);
    }
    for (int32_t i = 0; i < d->n_parts; i++) {
        char part_key[192];
        snprintf(part_key, sizeof part_key, "%s[%d]", key, i + 1);
        BT_TRY(validate_at(&d->parts[i], part_key, depth + 1, err));
    }
    return check_weights(key, "weights", d->part_weights, d->n_parts, err);
}

static enum bt_code check_clamps(const struct bt_dist_spec *d, const char *key,
                                 struct bt_error *err)
{
    BT_TRY(check_range(key, "clamp_min", d->clamp_min, 0.0, BT_MAX_TOKENS, err));
    BT_TRY(check_range(key, "clamp_max", d->clamp_max, 0.0, BT_MAX_TOKENS, err));
    if (d->clamp_max > 0.0 && d->clamp_min > d->clamp_max) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s.clamp_min: expected <= clamp_max (%.15g), got %.15g", key,
                d->clamp_max, d->clamp_min);
    }
    return BT_OK;
}

static enum bt_code validate_at(const struct bt_dist_spec *d, const char *key, int32_t depth,
                                struct bt_error *err)
{
    BT_TRY(check_clamps(d, key, err));
    switch (d->kind) {
    case BT_DIST_NONE:
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: a distribution is required", key);
    case BT_DIST_CONST:
        return check_range(key, "value", d->value, 0.0, BT_MAX_TOKENS, err);
    case BT_DIST_UNIFORM:
        BT_TRY(check_range(key, "min", d->min, 0.0, BT_MAX_TOKENS, err));
        return check_range(key, "max", d->max, d->min, BT_MAX_TOKENS, err);
    case BT_DIST_LOGNORMAL:
        return check_lognormal(d, key, err);
    case BT_DIST_EXPONENTIAL:
        return check_positive(key, "mean", d->mean, err);
    case BT_DIST_PARETO:
        BT_TRY(check_range(key, "alpha", d->alpha, 0.01, 1000.0, err));
        return check_positive(key, "scale", d->scale, err);
    case BT_DIST_EMPIRICAL:
        return check_empirical(d, key, err);
    case BT_DIST_MIXTURE:
        return check_mixture(d, key, depth, err);
    }
    BT_FAIL(err, BT_ERR_INPUT, 0, "%s: unknown kind of distribution %d", key, (int)d->kind);
}

enum bt_code bt_dist_validate(const struct bt_dist_spec *spec, const char *key,
                              struct bt_error *err)
{
    return validate_at(spec, key, 0, err);
}

void bt_dist_destroy(struct bt_dist *d)
{
    if (d == NULL) {
        return;
    }
    for (int32_t i = 0; d->parts != NULL && i < d->n; i++) {
        bt_dist_destroy(d->parts[i]);
    }
    free(d->parts);
    free(d->values);
    free(d->cum);
    free(d);
}

static void fill_lognormal(const struct bt_dist_spec *spec, struct bt_dist *d)
{
    d->b = spec->p95 != 0.0 ? bt_lognormal_sigma(spec->mean, spec->p95) : spec->sigma;
    d->a = spec->median != 0.0 ? log(spec->median) : log(spec->mean) - d->b * d->b / 2.0;
}

/* Builds a sampler of a validated description; NULL when memory is refused. */
static struct bt_dist *build(const struct bt_dist_spec *spec)
{
    struct bt_dist *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return NULL;
    }
    d->kind = spec->kind;
    d->clamp_min = spec->clamp_min;
    d->clamp_max = spec->clamp_max > 0.0 ? spec->clamp_max : (double)BT_MAX_TOKENS;
    switch (spec->kind) {
    case BT_DIST_NONE:
        break;
    case BT_DIST_CONST:
        d->a = spec->value;
        break;
    case BT_DIST_UNIFORM:
        d->a = spec->min;
        d->b = spec->max;
        break;
    case BT_DIST_LOGNORMAL:
        fill_lognormal(spec, d);
        break;
    case BT_DIST_EXPONENTIAL:
        d->a = spec->mean;
        break;
    case BT_DIST_PARETO:
        d->a = spec->scale;
        d->b = 1.0 / spec->alpha;
        break;
    case BT_DIST_EMPIRICAL:
        d->n = spec->n_values;
        d->cum = calloc((size_t)d->n, sizeof *d->cum);
        d->values = calloc((size_t)d->n, sizeof *d->values);
        if (d->cum == NULL || d->values == NULL) {
            goto fail;
        }
        for (int32_t i = 0; i < d->n; i++) {
            d->values[i] = spec->values[i];
        }
        bt_weights_accumulate(spec->weights, d->n, d->cum);
        break;
    case BT_DIST_MIXTURE:
        d->n = spec->n_parts;
        d->cum = calloc((size_t)d->n, sizeof *d->cum);
        d->parts = calloc((size_t)d->n, sizeof(struct bt_dist *));
        if (d->cum == NULL || d->parts == NULL) {
            goto fail;
        }
        bt_weights_accumulate(spec->part_weights, d->n, d->cum);
        for (int32_t i = 0; i < d->n; i++) {
            d->parts[i] = build(&spec->parts[i]);
            if (d->parts[i] == NULL) {
                goto fail;
            }
        }
        break;
    }
    return d;
fail:
    bt_dist_destroy(d);
    return NULL;
}

enum bt_code bt_dist_create(const struct bt_dist_spec *spec, const char *key, struct bt_dist **out,
                            struct bt_error *err)
{
    BT_TRY(bt_dist_validate(spec, key, err));
    struct bt_dist *d = build(spec);
    if (d == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for the distribution", key);
    }
    *out = d;
    return BT_OK;
}

/* A draw before clamping; whole makes a uniform one a whole number with both ends included. */
static double draw(const struct bt_dist *d, struct bt_rng *r, int whole)
{
    double x = 0.0;
    switch (d->kind) {
    case BT_DIST_NONE:
        break;
    case BT_DIST_CONST:
        x = d->a;
        break;
    case BT_DIST_UNIFORM:
        if (whole) {
            double lo = ceil(d->a);
            double span = fmax(floor(d->b) - lo, 0.0) + 1.0;
            x = lo + floor(bt_rng_uniform(r) * span);
        } else {
            x = d->a + (d->b - d->a) * bt_rng_uniform(r);
        }
        break;
    case BT_DIST_LOGNORMAL:
        x = exp(d->a + d->b * bt_rng_normal(r));
        break;
    case BT_DIST_EXPONENTIAL:
        x = d->a * bt_rng_exponential(r);
        break;
    case BT_DIST_PARETO:
        x = d->a * exp(d->b * bt_rng_exponential(r));
        break;
    case BT_DIST_EMPIRICAL:
        x = d->values[bt_weights_pick(d->cum, d->n, bt_rng_uniform(r))];
        break;
    case BT_DIST_MIXTURE:
        x = draw(d->parts[bt_weights_pick(d->cum, d->n, bt_rng_uniform(r))], r, whole);
        break;
    }
    return fmin(fmax(x, d->clamp_min), d->clamp_max);
}

double bt_dist_draw(const struct bt_dist *d, struct bt_rng *r)
{
    return draw(d, r, 0);
}

int32_t bt_dist_draw_tokens(const struct bt_dist *d, struct bt_rng *r)
{
    int32_t n = (int32_t)lround(draw(d, r, 1));
    return n < 1 ? 1 : n;
}
