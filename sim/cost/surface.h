/* Measured surfaces: the time of an operation of any shape from operation samples of one GPU,
 * stack, version and number format.
 *
 * A surface is a lattice in the logarithms (sim/cost/lattice.h) over the coordinates of its
 * operation: GEMM (m; n, k), decode attention (ctx, batch; KV heads, query heads a KV head),
 * prefill attention (chunk, batch; same), mixed attention (ctx, chunk, KV before it, decodes),
 * collectives (bytes; ranks), the rest (tokens; width). Time never falls when work grows along the
 * coordinates before the semicolon; the others are shapes of the model, where a larger one may be
 * quicker (alignment). Beyond its measured range a surface goes on by its own two-term law (fixed
 * time + work / rate) and says so. Immutable after creation: threads may share it.
 */
#ifndef BT_SIM_COST_SURFACE_H
#define BT_SIM_COST_SURFACE_H

#include "engine/core/error.h"
#include "sim/cost/lattice.h"
#include "sim/cost/sample.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_SURFACE_NAME_BYTES = 64,
    BT_SURFACE_SOURCE_BYTES = 192,
};

/* t = fixed_ns + bytes * ns_per_byte + flops * ns_per_flop, all >= 0: what the samples say on the
 * whole (least squares of relative errors). */
struct bt_two_term {
    double fixed_ns;
    double ns_per_byte;
    double ns_per_flop;
};

/* Where time jumps by more than its work, in most lines at the same number of bytes: a working set
 * that leaves the last-level cache between repetitions of a benchmark. */
struct bt_surface_step {
    double bytes;    /* jump above this; 0: none found */
    double log_jump; /* >= 0 */
};

struct bt_surface {
    enum bt_op op;
    struct bt_op_format format;
    char gpu[BT_SURFACE_NAME_BYTES];
    char stack[BT_SURFACE_NAME_BYTES];
    char version[BT_SURFACE_NAME_BYTES];
    char kernel[BT_SURFACE_NAME_BYTES]; /* collectives: one surface a kernel; else of one sample */
    char source[BT_SURFACE_SOURCE_BYTES];
    char licence[BT_SURFACE_NAME_BYTES];
    int64_t head_dim; /* attention */
    int64_t heads;    /* mixed attention: its only head counts */
    int64_t kv_heads;
    int64_t n_samples;
    struct bt_two_term law;
    double floor_ns; /* the law's fixed time, at most the least time of the grid */
    struct bt_surface_step step;
    struct bt_lattice grid; /* owned; errors inside */
};

struct bt_surface_point {
    double time_ns;
    bool inside;  /* within the measured range along every coordinate */
    bool derived; /* a chunk behind KV, by its share of the pairs of the whole prompt */
};

/* Pointer to the coordinate along which an operation's work mainly grows: m, ctx, q_len, bytes. */
int64_t *bt_op_main_coordinate(enum bt_op op, struct bt_op_shape *s);

/* True when two samples belong to one surface. */
bool bt_surface_same(const struct bt_cost_sample *a, const struct bt_cost_sample *b);

/* Builds a surface from n >= 1 samples that are pairwise bt_surface_same. BT_ERR_NOMEM,
 * BT_ERR_LIMIT (too many distinct coordinates). */
BT_NODISCARD enum bt_code bt_surface_create(const struct bt_cost_sample *samples, int64_t n,
                                            struct bt_surface **out, struct bt_error *err);
void bt_surface_destroy(struct bt_surface *s);

/* Time of one operation. Head counts of mixed attention are taken as the surface's own. */
struct bt_surface_point bt_surface_eval(const struct bt_surface *s,
                                        const struct bt_op_shape *shape);

/* The shape at a node's coordinates (of s->grid.at). */
struct bt_op_shape bt_surface_shape(const struct bt_surface *s,
                                    const int64_t at[BT_LATTICE_AXES_MAX]);

/* The law's time, ns. */
double bt_two_term_ns(const struct bt_two_term *law, struct bt_op_work work);

/* Surfaces of a sample set, in order of op, format, GPU, stack, version. */
struct bt_surface_set {
    struct bt_surface **surfaces; /* owned, as what they point to */
    int32_t n_surfaces;
};

/* Builds every surface of the samples (whose order it changes). */
BT_NODISCARD enum bt_code bt_surface_set_init(struct bt_surface_set *s,
                                              struct bt_sample_set *samples, struct bt_error *err);
void bt_surface_set_fini(struct bt_surface_set *s);

/* What a planner asks for. */
struct bt_surface_query {
    enum bt_op op;
    struct bt_op_format format;
    const char *gpu;                   /* catalog name */
    const char *stack;                 /* "vllm", ...; NULL: any */
    const char *version;               /* nearest wins; NULL: the newest */
    int64_t heads, kv_heads, head_dim; /* attention: as in bt_op_shape */
};

struct bt_surface_match {
    const struct bt_surface *surface; /* NULL: none */
    bool same_version;
    bool same_format; /* else BF16 stands for FP16 (or the reverse), INT4 with one scale a channel
                         for INT4 in groups, a scale a channel for one a tensor, a 16-bit KV never
                         for another */
    bool spans_heads; /* attention: the head counts lie within what was measured */
};

/* The surface that answers a query best: by heads spanned, format, version, in that order; the
 * GPU and the operation are never exchanged. */
struct bt_surface_match bt_surface_set_find(const struct bt_surface_set *s,
                                            const struct bt_surface_query *query);

#ifdef __cplusplus
}
#endif

#endif
