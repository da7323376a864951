/* What an operation's estimate is worth inside a step.
 *
 * A step does not ask for one point of a surface: it sums an operation's kernels (the four products
 * of a layer at one m, say), so that errors of single points partly cancel. Probes are such sums
 * for the shapes that models of 7 to 70 billion parameters ask for; the error of an estimate is
 * taken on them. Pure; thread-safe.
 */
#ifndef BT_SIM_COST_PROBE_H
#define BT_SIM_COST_PROBE_H

#include "sim/cost/sample.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_PROBE_SHAPES_MAX = 4, BT_PROBES_MAX = 64 };

/* One sum: the shapes that a step asks for together. */
struct bt_probe {
    int32_t n_shapes;
    struct bt_op_shape shapes[BT_PROBE_SHAPES_MAX];
};

/* The probes of an operation; for attention those of `group` query heads a KV head and so many KV
 * heads (0: 4 and 8) of 128 elements. Returns how many. */
int32_t bt_probes_of(enum bt_op op, int64_t kv_heads, int64_t group,
                     struct bt_probe out[BT_PROBES_MAX]);

/* Time of one shape, ns; *known false when the law has no say there. */
typedef double bt_probe_time(const void *law, const struct bt_op_shape *shape, bool *known);

/* How the truth lies about the estimate: |log(truth / estimate)| over the probes that both know. */
struct bt_probe_error {
    int32_t n; /* probes compared; 0: none, the rest is 0 */
    double log_median;
    double log_p90;
    double log_bias; /* mean of log(truth / estimate) */
};
struct bt_probe_error bt_probe_compare(enum bt_op op, int64_t kv_heads, int64_t group,
                                       bt_probe_time *estimate, const void *estimate_law,
                                       bt_probe_time *truth, const void *truth_law);

#ifdef __cplusplus
}
#endif

#endif
