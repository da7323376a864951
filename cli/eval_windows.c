#include "cli/eval_windows.h"

#include <math.h>
#include <stdlib.h>

enum bt_code bt_eval_windows_init(struct bt_eval_windows *w, int32_t n, int32_t n_tokens,
                                  struct bt_error *err)
{
    *w = (struct bt_eval_windows){.n = n, .n_tokens = n_tokens};
    w->nll = calloc((size_t)n, sizeof *w->nll);
    w->accuracy = calloc((size_t)n, sizeof *w->accuracy);
    if (w->nll == NULL || w->accuracy == NULL) {
        bt_eval_windows_fini(w);
        BT_FAIL(err, BT_ERR_NOMEM, n, "eval: no memory for %d windows", n);
    }
    return BT_OK;
}

void bt_eval_windows_fini(struct bt_eval_windows *w)
{
    free(w->nll);
    free(w->accuracy);
    *w = (struct bt_eval_windows){0};
}

void bt_eval_windows_set(struct bt_eval_windows *w, int32_t i, double nll_sum, int32_t n_correct)
{
    BT_ASSERT(i >= 0 && i < w->n);
    w->nll[i] = nll_sum / w->n_tokens;
    w->accuracy[i] = (double)n_correct / w->n_tokens;
}

double bt_student_975(int32_t df)
{
    BT_ASSERT(df >= 1);
    static const double few[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306};
    if (df <= (int32_t)(sizeof few / sizeof *few)) {
        return few[df - 1];
    }
    /* Expansion in 1 / df around the normal quantile; Abramowitz and Stegun 26.7.5. */
    double z = 1.959964;
    double z3 = z * z * z;
    double z5 = z3 * z * z;
    double z7 = z5 * z * z;
    double n = df;
    return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

/* Interval of the mean of x - y; y may be NULL. */
static struct bt_interval interval_of(const double *x, const double *y, int32_t n)
{
    double mean = 0.0;
    for (int32_t i = 0; i < n; i++) {
        mean += (x[i] - (y == NULL ? 0.0 : y[i])) / n;
    }
    if (n < 2) {
        return (struct bt_interval){mean, NAN, NAN};
    }
    double squares = 0.0;
    for (int32_t i = 0; i < n; i++) {
        double d = x[i] - (y == NULL ? 0.0 : y[i]) - mean;
        squares += d * d;
    }
    double half = bt_student_975(n - 1) * sqrt(squares / (n - 1) / n);
    return (struct bt_interval){mean, mean - half, mean + half};
}

struct bt_interval bt_eval_nll(const struct bt_eval_windows *w)
{
    return interval_of(w->nll, NULL, w->n);
}

struct bt_interval bt_eval_accuracy(const struct bt_eval_windows *w)
{
    return interval_of(w->accuracy, NULL, w->n);
}

struct bt_interval bt_eval_delta_nll(const struct bt_eval_windows *a,
                                     const struct bt_eval_windows *b)
{
    BT_ASSERT(a->n == b->n && a->n_tokens == b->n_tokens);
    return interval_of(a->nll, b->nll, a->n);
}

struct bt_interval bt_eval_delta_accuracy(const struct bt_eval_windows *a,
                                          const struct bt_eval_windows *b)
{
    BT_ASSERT(a->n == b->n && a->n_tokens == b->n_tokens);
    return interval_of(a->accuracy, b->accuracy, a->n);
}
