/* Scattered positive measurements on a grid of at most four axes, in the logarithm.
 *
 * Axes are the distinct coordinates of the points. A node without a measurement is estimated from
 * the chords between the nearest measured nodes on both sides along every axis, each corrected by
 * what the same chord misses on neighbouring lines (kernel switches and tile edges repeat from line
 * to line) and weighted by how well chords along that axis predict; outside the measured hull a
 * prior law carries the nearest values on. A guard then makes the values rise along the axes marked
 * as work (isotonic regression), and evaluation is multilinear in the logarithms, so that it rises
 * too. Where this strict guard predicts worse than BT_LATTICE_STRICT_* (a library that truly
 * switches to a faster kernel at a larger size), the guard lets values fall at such switches, if
 * that predicts better: two measured nodes on either side, or the neighbouring lines, must agree.
 *
 * Every measured node is also estimated as if it were absent; the differences are the grid's
 * leave-one-out error. Immutable after creation: threads may share it.
 */
#ifndef BT_SIM_COST_LATTICE_H
#define BT_SIM_COST_LATTICE_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BT_LATTICE_STRICT_MEDIAN 0.06
#define BT_LATTICE_STRICT_P90    0.18 /* a tenth below what surfaces are accepted by */

enum {
    BT_LATTICE_AXES_MAX = 4,
    BT_LATTICE_SIDE_MAX = 512, /* distinct coordinates of an axis; the longest measured has 261 */
    BT_LATTICE_NODES_MAX = 1 << 20, /* 8 MiB an array of doubles */
};

struct bt_lattice_point {
    int64_t at[BT_LATTICE_AXES_MAX]; /* >= 0; axis 0 is the main one */
    double log_value;
};

/* Logarithm of the expected value at real coordinates: only its differences matter. */
typedef double bt_lattice_prior(const double at[BT_LATTICE_AXES_MAX], const void *context);

struct bt_lattice_opts {
    int32_t n_axes;
    bool rises[BT_LATTICE_AXES_MAX]; /* axes of work: the guard holds along them */
    bt_lattice_prior *prior;         /* required */
    const void *prior_context;       /* borrowed during creation */
};

/* Distribution of |exp(difference of logarithms) - 1|. With n = 0 nothing could be left out: the
 * zeroes beside it say nothing. */
struct bt_lattice_error {
    int64_t n;
    double median; /* 0.05: five per cent */
    double p90;
    double p99;
    double log_bias; /* mean difference, estimate minus measurement */
};

struct bt_lattice {
    int32_t n_axes;
    int32_t side[BT_LATTICE_AXES_MAX];
    int64_t stride[BT_LATTICE_AXES_MAX];
    int64_t *at[BT_LATTICE_AXES_MAX];    /* owned: coordinates, rising */
    double *log_at[BT_LATTICE_AXES_MAX]; /* owned */
    double shift[BT_LATTICE_AXES_MAX];   /* added before the logarithm: axes that hold 0 */
    int64_t n_nodes;
    int64_t n_measured;
    double *value;  /* owned: guarded logarithms */
    bool *measured; /* owned */
    bool corrected; /* chords are corrected by neighbouring lines: it predicted better */
    bool switches;  /* the guard lets values fall where measured kernel switches do: see below */
    double guard_median; /* median |exp(guarded - measured) - 1| over measured nodes */

    struct bt_lattice_error along;    /* one point absent, inside along axis 0, guard included */
    struct bt_lattice_error off_main; /* a coordinate of axis 0 absent: chords along it alone */
    struct bt_lattice_error off_rest; /* a line along axis 0 absent: chords along the others */
};

/* Builds a grid from n >= 1 points; points that coincide are averaged. BT_ERR_LIMIT when the axes
 * are too long, BT_ERR_NOMEM. A failed init leaves the grid zeroed. */
BT_NODISCARD enum bt_code bt_lattice_init(struct bt_lattice *g,
                                          const struct bt_lattice_point *points, int64_t n,
                                          const struct bt_lattice_opts *opts, struct bt_error *err);
void bt_lattice_fini(struct bt_lattice *g);

/* Logarithm at real coordinates clamped to the grid; `clamped` (may be NULL) receives them.
 * Complexity: 2^axes nodes and a binary search an axis. */
double bt_lattice_eval(const struct bt_lattice *g, const double at[BT_LATTICE_AXES_MAX],
                       double clamped[BT_LATTICE_AXES_MAX]);

/* Distribution of n differences (sorted in place by size). */
struct bt_lattice_error bt_lattice_error_of(double *log_differences, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
