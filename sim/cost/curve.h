/* Times compiled for quick asking: a curve over one coordinate, a table over two, and the affine
 * law of decode attention by the number of sequences. Read off surfaces that are linear in the
 * logarithms; beyond their last node they go on in proportion to the coordinate. Plain data,
 * immutable after it is filled. */
#ifndef BT_SIM_COST_CURVE_H
#define BT_SIM_COST_CURVE_H

#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CURVE_NODES_MAX = 600, BT_PLANE_SIDE_MAX = 48 };

/* Linear between its nodes, which lie so close that a power law between two knots is met within
 * 0.1%: that spares a logarithm and an exponential an evaluation. */
struct bt_curve {
    int32_t n;
    double *x;  /* owned: rising */
    double *ps; /* owned, in the same block */
};

/* Reads f off at the n >= 1 rising positive knots. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_curve_init(struct bt_curve *c, const int64_t *knots, int32_t n,
                                        double (*ps)(const void *ctx, int64_t x), const void *ctx,
                                        struct bt_error *err);
void bt_curve_fini(struct bt_curve *c);
/* x > 0. */
double bt_curve_ps(const struct bt_curve *c, double x);

/* f(x, y), logarithmic along both. */
struct bt_plane {
    int32_t n_x, n_y;
    double log_x[BT_PLANE_SIDE_MAX];
    double log_y[BT_PLANE_SIDE_MAX];
    double *log_ps; /* owned: [x][y] */
};
BT_NODISCARD enum bt_code bt_plane_init(struct bt_plane *g, const int64_t *x, int32_t n_x,
                                        const int64_t *y, int32_t n_y,
                                        double (*ps)(const void *ctx, int64_t x, int64_t y),
                                        const void *ctx, struct bt_error *err);
void bt_plane_fini(struct bt_plane *g);
double bt_plane_ps(const struct bt_plane *g, double x, double y);

enum { BT_AFFINE_NODES_MAX = 32 };

/* fixed(n) + slope(n) x total context for n sequences: least squares of relative errors at each
 * node of n; between nodes, times at equal contexts a sequence are linear in n, so that they rise.
 */
struct bt_affine {
    int32_t n;
    double seqs[BT_AFFINE_NODES_MAX];
    double fixed_ps[BT_AFFINE_NODES_MAX];
    double each_ps[BT_AFFINE_NODES_MAX]; /* a token of context of every sequence */
    double residual_p90;                 /* |affine / f - 1| over what it was fitted to */
};
/* ps(ctx, seqs, context): time at equal contexts. Contexts are rising. */
void bt_affine_fit(struct bt_affine *a, const int64_t *seqs, int32_t n_seqs,
                   const int64_t *contexts, int32_t n_contexts,
                   double (*ps)(const void *ctx, int64_t seqs, int64_t context), const void *ctx);
void bt_affine_at(const struct bt_affine *a, double seqs, double *fixed_ps, double *per_ctx_ps);

#ifdef __cplusplus
}
#endif

#endif
