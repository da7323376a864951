/* Scores by window and their confidence intervals. Pure arithmetic. */
#ifndef BT_CLI_EVAL_WINDOWS_H
#define BT_CLI_EVAL_WINDOWS_H

#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_eval_windows {
    int32_t n;        /* windows */
    int32_t n_tokens; /* predictions in each */
    double *nll;      /* [n], owned: mean over the window's predictions, nats */
    double *accuracy; /* [n], owned: share of the predictions whose likeliest token was right */
};

/* BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_eval_windows_init(struct bt_eval_windows *w, int32_t n,
                                               int32_t n_tokens, struct bt_error *err);
void bt_eval_windows_fini(struct bt_eval_windows *w);

/* Window i: summed NLL and right predictions. */
void bt_eval_windows_set(struct bt_eval_windows *w, int32_t i, double nll_sum, int32_t n_correct);

/* A mean with its 95% confidence interval by Student's t; low and high are NAN for one window. */
struct bt_interval {
    double mean, low, high;
};

struct bt_interval bt_eval_nll(const struct bt_eval_windows *w);
struct bt_interval bt_eval_accuracy(const struct bt_eval_windows *w);

/* a - b, paired by window; both have the same windows. */
struct bt_interval bt_eval_delta_nll(const struct bt_eval_windows *a,
                                     const struct bt_eval_windows *b);
struct bt_interval bt_eval_delta_accuracy(const struct bt_eval_windows *a,
                                          const struct bt_eval_windows *b);

/* The 0.975 quantile of Student's t with df >= 1 degrees of freedom, within 0.001. */
double bt_student_975(int32_t df);

#ifdef __cplusplus
}
#endif

#endif
