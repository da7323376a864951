#include "sim/cost/lattice.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How much an estimated node weighs in the guard against a measured one. */
static const double filled_weight = 0.02;

/* Working arrays of one build, all of n_nodes. */
struct work {
    double *raw;                           /* measured logarithm; NAN elsewhere */
    double *residual[BT_LATTICE_AXES_MAX]; /* measured minus chord along the axis; NAN where none */
    double axis_weight[BT_LATTICE_AXES_MAX];
    double axis_gap[BT_LATTICE_AXES_MAX]; /* usual width of a chord, in logarithms */
    double *estimate; /* of every node as if it were not measured; NAN: no chord */
    double *weight;
    double *scratch;
    bool *falls[BT_LATTICE_AXES_MAX]; /* a kernel switch between the node and the next: see
                                      find_switches; all false while the guard is strict */
};

static int32_t index_along(const struct bt_lattice *g, int64_t node, int32_t axis)
{
    return (int32_t)(node / g->stride[axis] % g->side[axis]);
}

static int compare_int64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int compare_magnitude(const void *a, const void *b)
{
    double x = fabs(expm1(*(const double *)a));
    double y = fabs(expm1(*(const double *)b));
    return (x > y) - (x < y);
}

struct bt_lattice_error bt_lattice_error_of(double *log_differences, int64_t n)
{
    struct bt_lattice_error e = {.n = n};
    if (n == 0) {
        return e;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += log_differences[i];
    }
    qsort(log_differences, (size_t)n, sizeof *log_differences, compare_magnitude);
    e.median = fabs(expm1(log_differences[n / 2]));
    e.p90 = fabs(expm1(log_differences[(n * 9 + 9) / 10 - 1]));
    e.p99 = fabs(expm1(log_differences[(n * 99 + 99) / 100 - 1]));
    e.log_bias = sum / (double)n;
    return e;
}

static enum bt_code build_axis(struct bt_lattice *g, int32_t axis,
                               const struct bt_lattice_point *points, int64_t n,
                               struct bt_error *err)
{
    int64_t *all = malloc((size_t)n * sizeof *all);
    if (all == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "lattice: no memory for %lld coordinates", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        all[i] = points[i].at[axis];
        BT_ASSERT(all[i] >= 0);
    }
    qsort(all, (size_t)n, sizeof *all, compare_int64);
    int64_t side = 0;
    for (int64_t i = 0; i < n; i++) {
        if (side == 0 || all[side - 1] != all[i]) {
            all[side++] = all[i];
        }
    }
    g->at[axis] = all;
    if (side > BT_LATTICE_SIDE_MAX) {
        BT_FAIL(err, BT_ERR_LIMIT, side,
                "lattice: %lld distinct coordinates on axis %d, at most %d", (long long)side, axis,
                BT_LATTICE_SIDE_MAX);
    }
    g->side[axis] = (int32_t)side;
    /* Zero is drawn one smallest step below the first positive coordinate. */
    g->shift[axis] = all[0] > 0 ? 0 : (side > 1 ? (double)all[1] : 1);
    g->log_at[axis] = malloc((size_t)side * sizeof *g->log_at[axis]);
    if (g->log_at[axis] == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "lattice: no memory for an axis");
    }
    for (int64_t i = 0; i < side; i++) {
        g->log_at[axis][i] = log((double)all[i] + g->shift[axis]);
    }
    return BT_OK;
}

static int32_t find_index(const struct bt_lattice *g, int32_t axis, int64_t at)
{
    const int64_t *found =
        bsearch(&at, g->at[axis], (size_t)g->side[axis], sizeof at, compare_int64);
    BT_ASSERT(found != NULL);
    return (int32_t)(found - g->at[axis]);
}

static enum bt_code place_points(struct bt_lattice *g, struct work *w,
                                 const struct bt_lattice_point *points, int64_t n,
                                 struct bt_error *err)
{
    int32_t *counts = calloc((size_t)g->n_nodes, sizeof *counts);
    if (counts == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "lattice: no memory for %lld nodes", (long long)g->n_nodes);
    }
    for (int64_t i = 0; i < g->n_nodes; i++) {
        w->raw[i] = NAN;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t node = 0;
        for (int32_t a = 0; a < g->n_axes; a++) {
            node += find_index(g, a, points[i].at[a]) * g->stride[a];
        }
        BT_ASSERT(isfinite(points[i].log_value));
        w->raw[node] = counts[node] == 0 ? points[i].log_value : w->raw[node] + points[i].log_value;
        counts[node]++;
    }
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (counts[i] > 0) {
            w->raw[i] /= counts[i];
            g->measured[i] = true;
            g->n_measured++;
        }
    }
    free(counts);
    return BT_OK;
}

/* The chord at `node` along `axis` between the nearest measured nodes on both sides. */
static bool chord(const struct bt_lattice *g, const double *raw, int64_t node, int32_t axis,
                  double *value, double *gap)
{
    int32_t i = index_along(g, node, axis);
    int32_t low = i - 1;
    int32_t high = i + 1;
    while (low >= 0 && isnan(raw[node - (i - low) * g->stride[axis]])) {
        low--;
    }
    while (high < g->side[axis] && isnan(raw[node + (high - i) * g->stride[axis]])) {
        high++;
    }
    if (low < 0 || high >= g->side[axis]) {
        return false;
    }
    const double *x = g->log_at[axis];
    double a = raw[node - (i - low) * g->stride[axis]];
    double b = raw[node + (high - i) * g->stride[axis]];
    *gap = x[high] - x[low];
    *value = a + (b - a) * (x[i] - x[low]) / *gap;
    return true;
}

/* What chords along `axis` miss on the lines beside the node's: shrunk mean of their residuals. */
static double correction(const struct bt_lattice *g, const struct work *w, int64_t node,
                         int32_t axis)
{
    double sum = 0;
    int32_t n = 0;
    for (int32_t b = 0; b < g->n_axes; b++) {
        int32_t i = index_along(g, node, b);
        for (int32_t side = -1; b != axis && side <= 1; side += 2) {
            if (i + side < 0 || i + side >= g->side[b]) {
                continue;
            }
            double r = w->residual[axis][node + side * g->stride[b]];
            if (!isnan(r)) {
                sum += r;
                n++;
            }
        }
    }
    return sum / (n + 1);
}

/* Residuals of plain chords, and the weight and usual width of each axis. */
static void measure_axes(const struct bt_lattice *g, struct work *w, bool corrected)
{
    const double worst = 0.5; /* a kernel switch says little of the points without one */
    for (int32_t a = 0; a < g->n_axes; a++) {
        double gaps = 0;
        int64_t n = 0;
        for (int64_t i = 0; i < g->n_nodes; i++) {
            double value = 0;
            double gap = 0;
            w->residual[a][i] = NAN;
            if (g->measured[i] && chord(g, w->raw, i, a, &value, &gap)) {
                w->residual[a][i] = w->raw[i] - value;
                gaps += gap;
                n++;
            }
        }
        double squares = 0;
        for (int64_t i = 0; i < g->n_nodes; i++) {
            if (!isnan(w->residual[a][i])) {
                double r = w->residual[a][i] - (corrected ? correction(g, w, i, a) : 0);
                r = fmin(fabs(r), worst);
                squares += r * r;
            }
        }
        w->axis_weight[a] = n == 0 ? 0 : 1 / (squares / (double)n + 1e-6);
        w->axis_gap[a] = n == 0 ? 1 : gaps / (double)n;
    }
}

/* Estimate of a node from all axes but `without` (-1: none left out); NAN when no axis spans it. */
static double estimate(const struct bt_lattice *g, const struct work *w, int64_t node,
                       int32_t without, bool corrected)
{
    double sum = 0;
    double weights = 0;
    for (int32_t a = 0; a < g->n_axes; a++) {
        double value = 0;
        double gap = 0;
        if (a == without || !chord(g, w->raw, node, a, &value, &gap)) {
            continue;
        }
        if (corrected) {
            value += correction(g, w, node, a);
        }
        double wide = gap / w->axis_gap[a];
        double weight = w->axis_weight[a] / fmax(wide * wide, 0.25);
        sum += value * weight;
        weights += weight;
    }
    return weights > 0 ? sum / weights : NAN;
}

static void estimate_all(const struct bt_lattice *g, struct work *w, bool corrected)
{
    measure_axes(g, w, corrected);
    for (int64_t i = 0; i < g->n_nodes; i++) {
        w->estimate[i] = estimate(g, w, i, -1, corrected);
    }
}

/* Mean clipped error of the estimates of measured nodes: what the variants are compared by. */
static double score(const struct bt_lattice *g, const struct work *w)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (g->measured[i] && !isnan(w->estimate[i])) {
            sum += fmin(fabs(w->estimate[i] - w->raw[i]), 0.3);
            n++;
        }
    }
    return n == 0 ? 0 : sum / (double)n;
}

static void node_coordinates(const struct bt_lattice *g, int64_t node,
                             double at[BT_LATTICE_AXES_MAX])
{
    for (int32_t a = 0; a < BT_LATTICE_AXES_MAX; a++) {
        at[a] = a < g->n_axes ? (double)g->at[a][index_along(g, node, a)] : 0;
    }
}

/* Nodes that no chord spans: neighbours carried on by the prior, ring by ring. */
static void fill_outside(struct bt_lattice *g, struct work *w, const struct bt_lattice_opts *opts)
{
    double *prior = w->weight;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        double at[BT_LATTICE_AXES_MAX];
        node_coordinates(g, i, at);
        prior[i] = opts->prior(at, opts->prior_context);
        BT_ASSERT(isfinite(prior[i]));
    }
    for (bool changed = true; changed;) {
        changed = false;
        memcpy(w->scratch, g->value, (size_t)g->n_nodes * sizeof *g->value);
        for (int64_t i = 0; i < g->n_nodes; i++) {
            if (!isnan(w->scratch[i])) {
                continue;
            }
            double sum = 0;
            int32_t n = 0;
            for (int32_t a = 0; a < g->n_axes; a++) {
                int32_t at = index_along(g, i, a);
                for (int32_t side = -1; side <= 1; side += 2) {
                    int64_t j = i + side * g->stride[a];
                    if (at + side >= 0 && at + side < g->side[a] && !isnan(w->scratch[j])) {
                        sum += w->scratch[j] + prior[i] - prior[j];
                        n++;
                    }
                }
            }
            if (n > 0) {
                g->value[i] = sum / n;
                changed = true;
            }
        }
    }
}

/* By how much a fall must exceed noise to be a switch. */
static const double switch_fall = 0.1;

/* Two measured nodes on either side agree: both before well above both behind. */
static bool is_lasting_fall(const struct bt_lattice *g, const double *raw, int64_t node,
                            int32_t axis)
{
    int64_t stride = g->stride[axis];
    int32_t at = index_along(g, node, axis);
    double lowest = INFINITY;
    double highest = -INFINITY;
    int32_t before = 0;
    int32_t behind = 0;
    for (int32_t k = at; k >= 0 && before < 2; k--) {
        double v = raw[node - (at - k) * stride];
        before += !isnan(v);
        lowest = fmin(lowest, v);
    }
    for (int32_t k = at + 1; k < g->side[axis] && behind < 2; k++) {
        double v = raw[node + (k - at) * stride];
        behind += !isnan(v);
        highest = fmax(highest, v);
    }
    return before == 2 && behind == 2 && lowest > highest + switch_fall;
}

/* Three quarters of the neighbouring lines (at least two) fall at the same place. */
static bool is_shared_fall(const struct bt_lattice *g, const double *raw, int64_t node,
                           int32_t axis)
{
    int64_t stride = g->stride[axis];
    if (index_along(g, node, axis) + 1 == g->side[axis] ||
        !(raw[node] > raw[node + stride] + switch_fall)) {
        return false;
    }
    int32_t lines = 0;
    int32_t fall = 0;
    for (int32_t b = 0; b < g->n_axes; b++) {
        int32_t i = index_along(g, node, b);
        for (int32_t side = -1; b != axis && side <= 1; side += 2) {
            if (i + side < 0 || i + side >= g->side[b]) {
                continue;
            }
            int64_t other = node + side * g->stride[b];
            if (!isnan(raw[other]) && !isnan(raw[other + stride])) {
                lines++;
                fall += raw[other] > raw[other + stride] + switch_fall;
            }
        }
    }
    return lines >= 2 && 4 * fall >= 3 * lines;
}

static void find_switches(const struct bt_lattice *g, const bool *rises, struct work *w)
{
    for (int32_t a = 0; a < g->n_axes; a++) {
        for (int64_t i = 0; rises[a] && i < g->n_nodes; i++) {
            w->falls[a][i] = is_lasting_fall(g, w->raw, i, a) || is_shared_fall(g, w->raw, i, a);
        }
    }
}

/* Isotonic regression of one line in place: pools neighbours that fall (weighted means). */
static void pool_line(double *value, const double *weight, const bool *falls, int64_t stride,
                      int32_t side)
{
    double mean[BT_LATTICE_SIDE_MAX];
    double mass[BT_LATTICE_SIDE_MAX];
    int32_t length[BT_LATTICE_SIDE_MAX];
    int32_t blocks = 0;
    int32_t first = 0; /* block that the current kernel starts with */
    for (int32_t i = 0; i < side; i++) {
        mean[blocks] = value[i * stride];
        mass[blocks] = weight[i * stride];
        length[blocks] = 1;
        if (i > 0 && falls[(i - 1) * stride]) {
            first = blocks;
        }
        blocks++;
        while (blocks > first + 1 && mean[blocks - 2] > mean[blocks - 1]) {
            double m = mass[blocks - 2] + mass[blocks - 1];
            mean[blocks - 2] =
                (mean[blocks - 2] * mass[blocks - 2] + mean[blocks - 1] * mass[blocks - 1]) / m;
            mass[blocks - 2] = m;
            length[blocks - 2] += length[blocks - 1];
            blocks--;
        }
    }
    int32_t i = 0;
    for (int32_t b = 0; b < blocks; b++) {
        for (int32_t k = 0; k < length[b]; k++) {
            value[i++ * stride] = mean[b];
        }
    }
}

/* Alternating regressions along the axes of work, then running maxima for what is left. */
static void guard(const struct bt_lattice *g, const struct work *w, const bool *rises,
                  double *value, const double *weight)
{
    int32_t n_rising = 0;
    for (int32_t a = 0; a < g->n_axes; a++) {
        n_rising += rises[a] && g->side[a] > 1;
    }
    int32_t rounds = n_rising > 1 ? 6 : n_rising;
    for (int32_t round = 0; round < rounds; round++) {
        for (int32_t a = 0; a < g->n_axes; a++) {
            for (int64_t i = 0; rises[a] && i < g->n_nodes; i++) {
                if (index_along(g, i, a) == 0) {
                    pool_line(value + i, weight + i, w->falls[a] + i, g->stride[a], g->side[a]);
                }
            }
        }
    }
    for (int32_t a = 0; a < g->n_axes; a++) {
        for (int64_t i = 0; rises[a] && i < g->n_nodes; i++) {
            if (index_along(g, i, a) > 0 && !w->falls[a][i - g->stride[a]]) {
                value[i] = fmax(value[i], value[i - g->stride[a]]);
            }
        }
    }
}

/* Errors of one point absent, with the guard: a ninth (or third, or eighty-first) of the nodes at
 * a time gives way to its estimates, never two that are neighbours along an axis of work. */
static void leave_one_out(struct bt_lattice *g, struct work *w, const struct bt_lattice_opts *opts,
                          const double *filled, double *differences)
{
    enum { APART = 3, ROUNDS_MAX = 9 };
    int32_t rounds = 1;
    for (int32_t a = 0; a < g->n_axes; a++) {
        rounds *= opts->rises[a] ? APART : 1;
    }
    /* Four axes of work: a ninth of the points stands for all. */
    rounds = rounds < ROUNDS_MAX ? rounds : ROUNDS_MAX;
    int64_t n = 0;
    for (int32_t round = 0; round < rounds; round++) {
        memcpy(w->scratch, filled, (size_t)g->n_nodes * sizeof *filled);
        for (int64_t i = 0; i < g->n_nodes; i++) {
            w->weight[i] = g->measured[i] ? 1 : filled_weight;
        }
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < g->n_nodes; i++) {
                int32_t digits = round;
                bool chosen = g->measured[i] && !isnan(w->residual[0][i]);
                for (int32_t a = 0; chosen && a < g->n_axes; a++) {
                    if (opts->rises[a]) {
                        chosen = index_along(g, i, a) % APART == digits % APART;
                        digits /= APART;
                    }
                }
                if (chosen && pass == 0) {
                    w->scratch[i] = w->estimate[i];
                    w->weight[i] = filled_weight;
                } else if (chosen) {
                    differences[n++] = w->scratch[i] - w->raw[i];
                }
            }
            if (pass == 0) {
                guard(g, w, opts->rises, w->scratch, w->weight);
            }
        }
    }
    g->along = bt_lattice_error_of(differences, n);
}

static void measure_errors(struct bt_lattice *g, struct work *w, const struct bt_lattice_opts *opts,
                           const double *filled, double *differences)
{
    leave_one_out(g, w, opts, filled, differences);
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (!isnan(w->residual[0][i])) {
            differences[n++] = -w->residual[0][i];
        }
    }
    g->off_main = bt_lattice_error_of(differences, n);
    n = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        double e = g->measured[i] ? estimate(g, w, i, 0, false) : NAN;
        if (!isnan(e)) {
            differences[n++] = e - w->raw[i];
        }
    }
    g->off_rest = bt_lattice_error_of(differences, n);
    n = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (g->measured[i]) {
            differences[n++] = g->value[i] - w->raw[i];
        }
    }
    g->guard_median = bt_lattice_error_of(differences, n).median;
}

static void forget_switches(const struct bt_lattice *g, struct work *w)
{
    for (int32_t a = 0; a < g->n_axes; a++) {
        memset(w->falls[a], 0, (size_t)g->n_nodes * sizeof *w->falls[a]);
    }
}

static void guard_and_measure(struct bt_lattice *g, struct work *w,
                              const struct bt_lattice_opts *opts, const double *filled,
                              double *differences)
{
    memcpy(g->value, filled, (size_t)g->n_nodes * sizeof *filled);
    for (int64_t i = 0; i < g->n_nodes; i++) {
        w->weight[i] = g->measured[i] ? 1 : filled_weight;
    }
    guard(g, w, opts->rises, g->value, w->weight);
    measure_errors(g, w, opts, filled, differences);
}

static enum bt_code take(double **out, int64_t n, struct bt_error *err)
{
    *out = malloc((size_t)n * sizeof **out);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "lattice: no memory for %lld nodes", (long long)n);
    }
    return BT_OK;
}

static enum bt_code take_work(struct bt_lattice *g, struct work *w, struct bt_error *err)
{
    BT_TRY(take(&w->raw, g->n_nodes, err));
    BT_TRY(take(&w->estimate, g->n_nodes, err));
    BT_TRY(take(&w->weight, g->n_nodes, err));
    BT_TRY(take(&w->scratch, g->n_nodes, err));
    for (int32_t a = 0; a < g->n_axes; a++) {
        BT_TRY(take(&w->residual[a], g->n_nodes, err));
        w->falls[a] = calloc((size_t)g->n_nodes, sizeof *w->falls[a]);
        if (w->falls[a] == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "lattice: no memory for %lld nodes",
                    (long long)g->n_nodes);
        }
    }
    BT_TRY(take(&g->value, g->n_nodes, err));
    g->measured = calloc((size_t)g->n_nodes, sizeof *g->measured);
    if (g->measured == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "lattice: no memory for %lld nodes", (long long)g->n_nodes);
    }
    return BT_OK;
}

static void give_work(struct work *w)
{
    free(w->raw);
    free(w->estimate);
    free(w->weight);
    free(w->scratch);
    for (int32_t a = 0; a < BT_LATTICE_AXES_MAX; a++) {
        free(w->residual[a]);
        free(w->falls[a]);
    }
}

static enum bt_code build_values(struct bt_lattice *g, struct work *w,
                                 const struct bt_lattice_opts *opts, struct bt_error *err)
{
    estimate_all(g, w, false);
    double plain = score(g, w);
    estimate_all(g, w, true);
    g->corrected = score(g, w) <= plain;
    if (!g->corrected) {
        estimate_all(g, w, false);
    }
    for (int64_t i = 0; i < g->n_nodes; i++) {
        g->value[i] = g->measured[i] ? w->raw[i] : w->estimate[i];
    }
    fill_outside(g, w, opts);
    double *filled = NULL;
    double *differences = NULL;
    enum bt_code code = take(&filled, g->n_nodes, err);
    if (code == BT_OK) {
        code = take(&differences, g->n_nodes, err);
    }
    if (code == BT_OK) {
        memcpy(filled, g->value, (size_t)g->n_nodes * sizeof *filled);
        guard_and_measure(g, w, opts, filled, differences);
        if (g->along.median > BT_LATTICE_STRICT_MEDIAN || g->along.p90 > BT_LATTICE_STRICT_P90) {
            struct bt_lattice_error strict = g->along;
            find_switches(g, opts->rises, w);
            guard_and_measure(g, w, opts, filled, differences);
            g->switches = g->along.p90 < strict.p90;
            if (!g->switches) {
                forget_switches(g, w);
                guard_and_measure(g, w, opts, filled, differences);
            }
        }
    }
    free(filled);
    free(differences);
    return code;
}

enum bt_code bt_lattice_init(struct bt_lattice *g, const struct bt_lattice_point *points, int64_t n,
                             const struct bt_lattice_opts *opts, struct bt_error *err)
{
    BT_ASSERT(n >= 1 && opts->prior != NULL);
    BT_ASSERT(opts->n_axes >= 1 && opts->n_axes <= BT_LATTICE_AXES_MAX);
    memset(g, 0, sizeof *g);
    g->n_axes = opts->n_axes;
    struct work w = {0};
    enum bt_code code = BT_OK;
    for (int32_t a = 0; code == BT_OK && a < g->n_axes; a++) {
        code = build_axis(g, a, points, n, err);
    }
    g->n_nodes = 1;
    for (int32_t a = 0; code == BT_OK && a < g->n_axes; a++) {
        g->stride[a] = g->n_nodes;
        g->n_nodes *= g->side[a];
        if (g->n_nodes > BT_LATTICE_NODES_MAX) {
            code = bt_error_set(err, BT_ERR_LIMIT, g->n_nodes, __FILE__, __LINE__,
                                "lattice: more than %d nodes", BT_LATTICE_NODES_MAX);
        }
    }
    if (code == BT_OK) {
        code = take_work(g, &w, err);
    }
    if (code == BT_OK) {
        code = place_points(g, &w, points, n, err);
    }
    if (code == BT_OK) {
        code = build_values(g, &w, opts, err);
    }
    give_work(&w);
    if (code != BT_OK) {
        bt_lattice_fini(g);
    }
    return code;
}

void bt_lattice_fini(struct bt_lattice *g)
{
    for (int32_t a = 0; a < BT_LATTICE_AXES_MAX; a++) {
        free(g->at[a]);
        free(g->log_at[a]);
    }
    free(g->value);
    free(g->measured);
    memset(g, 0, sizeof *g);
}

double bt_lattice_eval(const struct bt_lattice *g, const double at[BT_LATTICE_AXES_MAX],
                       double clamped[BT_LATTICE_AXES_MAX])
{
    int64_t base = 0;
    double share[BT_LATTICE_AXES_MAX] = {0};
    int32_t spanned[BT_LATTICE_AXES_MAX];
    int32_t n_spanned = 0;
    for (int32_t a = 0; a < g->n_axes; a++) {
        double low = (double)g->at[a][0];
        double high = (double)g->at[a][g->side[a] - 1];
        double x = fmin(fmax(at[a], low), high);
        if (clamped != NULL) {
            clamped[a] = x;
        }
        double log_x = log(x + g->shift[a]);
        const double *axis = g->log_at[a];
        int32_t i = 0;
        int32_t end = g->side[a] - 1;
        while (end - i > 1) {
            int32_t middle = (i + end) / 2;
            if (axis[middle] <= log_x) {
                i = middle;
            } else {
                end = middle;
            }
        }
        if (g->side[a] > 1) {
            share[a] = fmin(fmax((log_x - axis[i]) / (axis[i + 1] - axis[i]), 0), 1);
        }
        base += i * g->stride[a];
        if (share[a] > 0) {
            spanned[n_spanned++] = a;
        }
    }
    double sum = 0;
    for (int32_t corner = 0; corner < 1 << n_spanned; corner++) {
        double weight = 1;
        int64_t node = base;
        for (int32_t s = 0; s < n_spanned; s++) {
            int32_t a = spanned[s];
            bool high = (corner >> s & 1) != 0;
            weight *= high ? share[a] : 1 - share[a];
            node += high ? g->stride[a] : 0;
        }
        sum += weight * g->value[node];
    }
    return sum;
}
