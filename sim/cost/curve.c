#include "sim/cost/curve.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Segment of a rising axis that holds x: its lower node, and how far along. Beyond the ends the end
 * nodes; *beyond is what x exceeds the last node by. */
static int32_t segment(const double *at, int32_t n, double x, double *share, double *beyond)
{
    *share = 0;
    *beyond = 0;
    if (n == 1 || x <= at[0]) {
        *beyond = n == 1 && x > at[0] ? x - at[0] : 0;
        return 0;
    }
    if (x >= at[n - 1]) {
        *beyond = x - at[n - 1];
        *share = 1;
        return n - 2;
    }
    int32_t low = 0;
    int32_t high = n - 1;
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (at[mid] <= x) {
            low = mid;
        } else {
            high = mid;
        }
    }
    *share = (x - at[low]) / (at[low + 1] - at[low]);
    return low;
}

/* Parts into which a power law between two knots is cut: a chord of exponent e over a logarithmic
 * distance L misses it by e (e - 1) L^2 / 8 at most. Whole coordinates need no finer nodes. */
static int32_t parts_between(double x0, double x1, double ps0, double ps1)
{
    const double accuracy = 0.001;
    double distance = log(x1 / x0);
    double exponent = log(ps1 / ps0) / distance;
    double parts = ceil(distance * sqrt(fabs(exponent * (exponent - 1)) / (8 * accuracy)));
    return (int32_t)fmax(fmin(parts, x1 - x0), 1);
}

static void fill_curve(struct bt_curve *c, const int64_t *knots, const double *values, int32_t n)
{
    int32_t at = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        double x0 = (double)knots[i];
        double step = log((double)knots[i + 1] / x0);
        double rise = log(values[i + 1] / values[i]);
        int32_t parts = parts_between(x0, (double)knots[i + 1], values[i], values[i + 1]);
        bool whole = parts >= (int32_t)fmin((double)(knots[i + 1] - knots[i]), INT32_MAX);
        for (int32_t k = 0; k < parts; k++) {
            double share = whole ? log((x0 + k) / x0) / step : (double)k / parts;
            c->x[at] = whole ? x0 + k : x0 * exp(step * share);
            c->ps[at++] = values[i] * exp(rise * share);
        }
    }
    c->x[at] = (double)knots[n - 1];
    c->ps[at] = values[n - 1];
    BT_ASSERT(at + 1 == c->n);
}

enum bt_code bt_curve_init(struct bt_curve *c, const int64_t *knots, int32_t n,
                           double (*ps)(const void *ctx, int64_t x), const void *ctx,
                           struct bt_error *err)
{
    BT_ASSERT(n >= 1 && n <= BT_CURVE_NODES_MAX);
    *c = (struct bt_curve){.n = 1};
    double values[BT_CURVE_NODES_MAX];
    for (int32_t i = 0; i < n; i++) {
        BT_ASSERT(knots[i] > (i > 0 ? knots[i - 1] : 0));
        values[i] = fmax(ps(ctx, knots[i]), 1);
        c->n +=
            i > 0 ? parts_between((double)knots[i - 1], (double)knots[i], values[i - 1], values[i])
                  : 0;
    }
    c->x = malloc((size_t)c->n * 2 * sizeof *c->x);
    if (c->x == NULL) {
        int32_t nodes = c->n;
        *c = (struct bt_curve){0};
        BT_FAIL(err, BT_ERR_NOMEM, nodes, "cost model: no memory for a curve of %d nodes", nodes);
    }
    c->ps = c->x + c->n;
    fill_curve(c, knots, values, n);
    return BT_OK;
}

void bt_curve_fini(struct bt_curve *c)
{
    free(c->x);
    *c = (struct bt_curve){0};
}

double bt_curve_ps(const struct bt_curve *c, double x)
{
    double share, beyond;
    int32_t i = segment(c->x, c->n, x, &share, &beyond);
    if (beyond > 0) {
        return c->ps[c->n - 1] * x / c->x[c->n - 1];
    }
    return share > 0 ? c->ps[i] + (c->ps[i + 1] - c->ps[i]) * share : c->ps[i];
}

enum bt_code bt_plane_init(struct bt_plane *g, const int64_t *x, int32_t n_x, const int64_t *y,
                           int32_t n_y, double (*ps)(const void *ctx, int64_t x, int64_t y),
                           const void *ctx, struct bt_error *err)
{
    BT_ASSERT(n_x >= 1 && n_x <= BT_PLANE_SIDE_MAX && n_y >= 1 && n_y <= BT_PLANE_SIDE_MAX);
    *g = (struct bt_plane){.n_x = n_x, .n_y = n_y};
    g->log_ps = malloc((size_t)n_x * (size_t)n_y * sizeof *g->log_ps);
    if (g->log_ps == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "cost model: no memory for a table of %d by %d", n_x, n_y);
    }
    for (int32_t k = 0; k < n_y; k++) {
        g->log_y[k] = log((double)y[k]);
    }
    for (int32_t i = 0; i < n_x; i++) {
        g->log_x[i] = log((double)x[i]);
        for (int32_t k = 0; k < n_y; k++) {
            g->log_ps[i * n_y + k] = log(fmax(ps(ctx, x[i], y[k]), 1));
        }
    }
    return BT_OK;
}

void bt_plane_fini(struct bt_plane *g)
{
    free(g->log_ps);
    *g = (struct bt_plane){0};
}

double bt_plane_ps(const struct bt_plane *g, double x, double y)
{
    double share_x, share_y, beyond_x, beyond_y;
    int32_t i = segment(g->log_x, g->n_x, log(x), &share_x, &beyond_x);
    int32_t k = segment(g->log_y, g->n_y, log(y), &share_y, &beyond_y);
    int32_t next_k = g->n_y > 1 ? k + 1 : k;
    const double *low = g->log_ps + i * g->n_y;
    const double *high = g->n_x > 1 ? low + g->n_y : low;
    double at_low = low[k] + (low[next_k] - low[k]) * share_y;
    double at_high = high[k] + (high[next_k] - high[k]) * share_y;
    return exp(at_low + (at_high - at_low) * share_x + beyond_x + beyond_y);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { FIT_CONTEXTS_MAX = 24 };

/* Least squares of (fixed + each x context) / t - 1, both kept from being negative. */
static void fit_node(const int64_t *contexts, const double *t, int32_t n, double *fixed,
                     double *each)
{
    double s1 = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
    for (int32_t i = 0; i < n; i++) {
        double u = 1 / t[i];
        double v = (double)contexts[i] / t[i];
        s1 += u * u;
        sx += u * v;
        sxx += v * v;
        sy += u;
        sxy += v;
    }
    double det = s1 * sxx - sx * sx;
    *fixed = det > 0 ? (sy * sxx - sxy * sx) / det : sy / s1;
    *each = det > 0 ? (s1 * sxy - sx * sy) / det : 0;
    if (*fixed < 0) {
        *fixed = 0;
        *each = sxy / sxx;
    } else if (*each < 0) {
        *each = 0;
        *fixed = sy / s1;
    }
}

void bt_affine_fit(struct bt_affine *a, const int64_t *seqs, int32_t n_seqs,
                   const int64_t *contexts, int32_t n_contexts,
                   double (*ps)(const void *ctx, int64_t seqs, int64_t context), const void *ctx)
{
    BT_ASSERT(n_seqs >= 1 && n_seqs <= BT_AFFINE_NODES_MAX);
    BT_ASSERT(n_contexts >= 1 && n_contexts <= FIT_CONTEXTS_MAX);
    *a = (struct bt_affine){.n = n_seqs};
    double residuals[BT_AFFINE_NODES_MAX * FIT_CONTEXTS_MAX];
    int32_t n = 0;
    for (int32_t s = 0; s < n_seqs; s++) {
        double t[FIT_CONTEXTS_MAX];
        for (int32_t i = 0; i < n_contexts; i++) {
            t[i] = fmax(ps(ctx, seqs[s], contexts[i]), 1);
        }
        a->seqs[s] = (double)seqs[s];
        fit_node(contexts, t, n_contexts, &a->fixed_ps[s], &a->each_ps[s]);
        if (s > 0) { /* more sequences never take less */
            a->fixed_ps[s] = fmax(a->fixed_ps[s], a->fixed_ps[s - 1]);
            a->each_ps[s] = fmax(a->each_ps[s], a->each_ps[s - 1]);
        }
        for (int32_t i = 0; i < n_contexts; i++) {
            double affine = a->fixed_ps[s] + a->each_ps[s] * (double)contexts[i];
            residuals[n++] = fabs(affine / t[i] - 1);
        }
    }
    qsort(residuals, (size_t)n, sizeof *residuals, compare_double);
    a->residual_p90 = residuals[(n * 9 + 9) / 10 - 1];
}

void bt_affine_at(const struct bt_affine *a, double seqs, double *fixed_ps, double *per_ctx_ps)
{
    double share, beyond;
    int32_t i = segment(a->seqs, a->n, seqs, &share, &beyond);
    int32_t next = a->n > 1 ? i + 1 : i;
    double fixed = a->fixed_ps[i] + (a->fixed_ps[next] - a->fixed_ps[i]) * share;
    double each = a->each_ps[i] + (a->each_ps[next] - a->each_ps[i]) * share;
    if (beyond > 0) { /* as many more rounds of the last node's work */
        each *= seqs / a->seqs[a->n - 1];
        fixed *= seqs / a->seqs[a->n - 1];
    }
    *fixed_ps = fixed;
    *per_ctx_ps = each / seqs;
}
