/* Step durations: what a recording measured beside what a cost model says of the same steps, by
 * kind of step. Threading: no state. */
#ifndef BT_CLI_STEP_DIFF_H
#define BT_CLI_STEP_DIFF_H

#include "engine/record.h"
#include "sim/cost/cost.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Steps by what they do, and decodes by how many sequences they have. */
enum { BT_STEP_KINDS = 12 };

struct bt_step_kind {
    int64_t n;
    double measured_s, predicted_s; /* sums */
    double tokens;                  /* query tokens, sum */
    double abs_error_s;             /* sum of |predicted - measured| */
};

struct bt_step_diff {
    struct bt_step_kind kinds[BT_STEP_KINDS];
};

/* Adds a recording's steps: replays it through a scheduler of its own, which makes the same plans.
 * Measured is the executor's time of a step; predicted is device and host time. Errors as
 * bt_recording_replay. */
BT_NODISCARD enum bt_code bt_step_diff_add(struct bt_step_diff *d, const struct bt_recording *r,
                                           const struct bt_cost *cost, struct bt_error *err);

/* A list of {kind, steps, tokens_mean, measured_s, predicted_s, error_fraction, abs_error_fraction}
 * in order of kind, means of a step; kinds that do not occur are left out. */
json_t *bt_step_diff_json(const struct bt_step_diff *d);

#ifdef __cplusplus
}
#endif

#endif
