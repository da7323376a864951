#include "sim/cost/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 12, HALVINGS = 6, BLOCKS = 10 };

static const double STOP = 1e-4; /* of a parameter's difference step: no further progress */
/* Student's t for BLOCKS - 1 degrees of freedom, 95%. */
static const double T_BLOCKS = 2.262;
/* The two columns of the Jacobian are as good as parallel beyond this cosine. */
static const double PARALLEL = 0.9995;

struct solver {
    const struct bt_fit_problem *p;
    double *r;                      /* owned, as those below: n residuals at the present place */
    double *trial;                  /* n */
    double *columns[BT_FIT_PARAMS]; /* n: derivatives */
    int32_t evaluations;
};

static enum bt_code evaluate(struct solver *s, const double *x, double *out, struct bt_error *err)
{
    s->evaluations++;
    return s->p->residuals(s->p->ctx, x, out, err);
}

static double squares(const double *r, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += r[i] * r[i];
    }
    return sum;
}

static enum bt_code differentiate(struct solver *s, const double *x, struct bt_error *err)
{
    const struct bt_fit_problem *p = s->p;
    for (int32_t k = 0; k < p->n_params; k++) {
        double moved[BT_FIT_PARAMS];
        memcpy(moved, x, sizeof moved);
        double h = x[k] + p->step[k] <= p->upper[k] ? p->step[k] : -p->step[k];
        moved[k] += h;
        BT_TRY(evaluate(s, moved, s->trial, err));
        for (int64_t i = 0; i < p->n; i++) {
            s->columns[k][i] = (s->trial[i] - s->r[i]) / h;
        }
    }
    return BT_OK;
}

/* The least-squares step from residuals [from, until) left out; a parameter that `held` marks
 * stays. False when the columns vanish or are parallel. */
static bool linear_step(const struct solver *s, const bool held[BT_FIT_PARAMS], int64_t from,
                        int64_t until, double step[BT_FIT_PARAMS])
{
    double a[BT_FIT_PARAMS][BT_FIT_PARAMS] = {{0}};
    double b[BT_FIT_PARAMS] = {0};
    int32_t n = s->p->n_params;
    for (int64_t i = 0; i < s->p->n; i++) {
        if (i >= from && i < until) {
            continue;
        }
        for (int32_t k = 0; k < n; k++) {
            b[k] -= s->columns[k][i] * s->r[i];
            for (int32_t l = 0; l < n; l++) {
                a[k][l] += s->columns[k][i] * s->columns[l][i];
            }
        }
    }
    step[0] = step[1] = 0;
    bool both = n == 2 && !held[0] && !held[1];
    if (both) {
        double det = a[0][0] * a[1][1] - a[0][1] * a[1][0];
        if (!(a[0][0] > 0) || !(a[1][1] > 0) ||
            a[0][1] * a[0][1] > PARALLEL * PARALLEL * a[0][0] * a[1][1]) {
            return false;
        }
        step[0] = (b[0] * a[1][1] - b[1] * a[0][1]) / det;
        step[1] = (b[1] * a[0][0] - b[0] * a[1][0]) / det;
        return true;
    }
    for (int32_t k = 0; k < n; k++) {
        if (!held[k]) {
            if (!(a[k][k] > 0)) {
                return false;
            }
            step[k] = b[k] / a[k][k];
        }
    }
    return true;
}

static double within(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* Moves along the step as far as the sum of squares falls; false: nowhere. */
static enum bt_code descend(struct solver *s, double x[BT_FIT_PARAMS],
                            const double step[BT_FIT_PARAMS], bool *moved, struct bt_error *err)
{
    const struct bt_fit_problem *p = s->p;
    double best = squares(s->r, p->n);
    double share = 1;
    *moved = false;
    for (int32_t i = 0; i < HALVINGS && !*moved; i++, share /= 2) {
        double to[BT_FIT_PARAMS] = {0};
        double way = 0;
        for (int32_t k = 0; k < p->n_params; k++) {
            to[k] = within(x[k] + share * step[k], p->lower[k], p->upper[k]);
            way = fmax(way, fabs(to[k] - x[k]) / p->step[k]);
        }
        if (way < STOP) {
            return BT_OK;
        }
        BT_TRY(evaluate(s, to, s->trial, err));
        if (squares(s->trial, p->n) < best) {
            memcpy(x, to, sizeof to);
            memcpy(s->r, s->trial, (size_t)p->n * sizeof *s->r);
            *moved = true;
        }
    }
    return BT_OK;
}

static void find_held(const struct solver *s, const double *x, bool held[BT_FIT_PARAMS])
{
    const struct bt_fit_problem *p = s->p;
    for (int32_t k = 0; k < p->n_params; k++) {
        double slope = 0;
        for (int64_t i = 0; i < p->n; i++) {
            slope += s->columns[k][i] * s->r[i];
        }
        held[k] = (x[k] <= p->lower[k] && slope > 0) || (x[k] >= p->upper[k] && slope < 0);
    }
}

/* Spread of the answer over runs of residuals left out. */
static void intervals(const struct solver *s, const double *x, const bool held[BT_FIT_PARAMS],
                      struct bt_fit_answer *out)
{
    const struct bt_fit_problem *p = s->p;
    double sum[BT_FIT_PARAMS] = {0};
    double sum2[BT_FIT_PARAMS] = {0};
    int32_t n = 0;
    for (int32_t b = 0; b < BLOCKS; b++) {
        double step[BT_FIT_PARAMS];
        if (linear_step(s, held, p->n * b / BLOCKS, p->n * (b + 1) / BLOCKS, step)) {
            for (int32_t k = 0; k < p->n_params; k++) {
                sum[k] += step[k];
                sum2[k] += step[k] * step[k];
            }
            n++;
        }
    }
    for (int32_t k = 0; k < p->n_params; k++) {
        double variance = n > 1 ? fmax(sum2[k] - sum[k] * sum[k] / n, 0) * (n - 1) / n : 0;
        double half = T_BLOCKS * sqrt(variance);
        out->low[k] = within(x[k] - half, p->lower[k], p->upper[k]);
        out->high[k] = within(x[k] + half, p->lower[k], p->upper[k]);
        out->at_bound[k] = held[k];
    }
}

static enum bt_code solve(struct solver *s, double x[BT_FIT_PARAMS], struct bt_fit_answer *out,
                          struct bt_error *err)
{
    const struct bt_fit_problem *p = s->p;
    BT_TRY(evaluate(s, x, s->r, err));
    bool held[BT_FIT_PARAMS] = {false, false};
    bool moved = true;
    for (int32_t round = 0; round < ROUNDS && moved; round++) {
        double step[BT_FIT_PARAMS];
        BT_TRY(differentiate(s, x, err));
        find_held(s, x, held);
        if (!linear_step(s, held, 0, 0, step)) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "fit: the run does not tell the parameters apart; fit fewer of them");
        }
        BT_TRY(descend(s, x, step, &moved, err));
    }
    intervals(s, x, held, out);
    memcpy(out->value, x, sizeof out->value);
    out->rms = sqrt(squares(s->r, p->n) / (double)p->n);
    out->evaluations = s->evaluations;
    return BT_OK;
}

enum bt_code bt_fit_solve(const struct bt_fit_problem *p, const double start[BT_FIT_PARAMS],
                          struct bt_fit_answer *out, struct bt_error *err)
{
    BT_ASSERT(p->n_params >= 1 && p->n_params <= BT_FIT_PARAMS);
    BT_ASSERT(p->n > p->n_params);
    *out = (struct bt_fit_answer){0};
    size_t n = (size_t)p->n;
    double *memory = calloc(n * (2 + BT_FIT_PARAMS), sizeof *memory);
    if (memory == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "fit: no memory for %zu residuals", n);
    }
    struct solver s = {
        .p = p, .r = memory, .trial = memory + n, .columns = {memory + 2 * n, memory + 3 * n}};
    double x[BT_FIT_PARAMS] = {0};
    for (int32_t k = 0; k < p->n_params; k++) {
        x[k] = within(start[k], p->lower[k], p->upper[k]);
    }
    enum bt_code code = solve(&s, x, out, err);
    free(memory);
    return code;
}
