/* The measured surfaces of one process: which of them answers for an operation on a GPU and stack,
 * and what its answer is worth.
 *
 * Calibration texts are read, and surfaces built, when a GPU and operation is first asked for; what
 * is built stays, unchanged, until the library is destroyed. An operation's source is looked for in
 * this order, and says which step it was:
 *
 *   1. the stack's own surface of that GPU            measured (berth), imported (another's)
 *   2. another stack's surface of that GPU            transferred; bound: what stacks differ by
 *   3. other GPUs' surfaces through the two-term law  transferred; bound: measured GPUs left out
 *
 * Threading: lookups lock; what they return is immutable and may be read by any thread.
 */
#ifndef BT_SIM_COST_LIBRARY_H
#define BT_SIM_COST_LIBRARY_H

#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "engine/core/trust.h"
#include "sim/cost/skew.h"
#include "sim/cost/surface.h"
#include "sim/cost/transfer.h"

#include "cmake/embedded.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_surface_library;
struct bt_host_calibration;

struct bt_surface_library_opts {
    const struct bt_embedded *texts; /* calibrations, ended by name NULL; borrowed, outlive it */
    const struct bt_embedded *skews; /* "GPU__STACK-VERSION.skew" likewise; NULL: none */
    const struct bt_gpu *gpus;       /* the cards that surfaces may be of; copied */
    int32_t n_gpus;
    const struct bt_host_calibration *host; /* borrowed, outlives the library; NULL: none */
};

/* BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_surface_library_create(const struct bt_surface_library_opts *opts,
                                                    struct bt_surface_library **out,
                                                    struct bt_error *err);
/* NULL is allowed. */
void bt_surface_library_destroy(struct bt_surface_library *l);

/* The calibration of this machine's processor; NULL: none. */
const struct bt_host_calibration *bt_surface_library_host(const struct bt_surface_library *l);

/* What may not be used: to see what an answer would be without it. */
enum bt_source_without {
    BT_SOURCE_WITHOUT_NOTHING = 0,
    BT_SOURCE_WITHOUT_STACK, /* the stack's own surfaces */
    BT_SOURCE_WITHOUT_GPU,   /* every surface of the GPU */
};

enum { BT_STACK_NAME_BYTES = 32, BT_SOURCE_TEXT_BYTES = 96 };

/* "vllm-0.19" apart: "vllm" and "0.19"; "tensorrt-llm" is trtllm; "" and NULL are berth. */
struct bt_stack_name {
    char stack[BT_STACK_NAME_BYTES];
    char version[BT_STACK_NAME_BYTES]; /* "": not said */
};
struct bt_stack_name bt_stack_name_of(const char *name);

struct bt_source_query {
    enum bt_op op; /* attention: ATTN_DECODE or ATTN_PREFILL; mixed surfaces answer for both */
    struct bt_op_format format; /* FP16 and BF16 are one */
    const char *gpu;            /* catalog name */
    struct bt_stack_name stack;
    int64_t heads, kv_heads, head_dim; /* attention, of one rank */
    enum bt_source_without without;
};

/* Where an operation's times come from. */
struct bt_op_source {
    enum bt_op op;
    struct bt_op_format format;         /* as asked */
    const struct bt_surface *surface;   /* steps 1 and 2; NULL: transfer */
    const struct bt_transfer *transfer; /* step 3 */
    const struct bt_gpu *gpu;           /* the target */
    enum bt_trust level;
    double log_error; /* the true time is within exp(+-log_error), nine times in ten */
    bool same_format; /* else another stands in (surface.h) */
    char text[BT_SOURCE_TEXT_BYTES]; /* "vllm 0.24.0", "vllm 0.24.0 from h100-sxm, h200" */
};

/* *out NULL when nobody measured the operation anywhere. BT_ERR_INPUT when a calibration is
 * malformed, BT_ERR_NOMEM, BT_ERR_LIMIT. */
BT_NODISCARD enum bt_code bt_surface_library_find(struct bt_surface_library *l,
                                                  const struct bt_source_query *q,
                                                  const struct bt_op_source **out,
                                                  struct bt_error *err);

/* Time of one operation in a serving step, ns: its cold bytes come from memory (sample.h). The
 * shape is of the query's op. *inside (may be NULL) tells whether it lies within what was
 * measured. */
double bt_op_source_ns(const struct bt_op_source *s, const struct bt_op_shape *shape, bool *inside);

/* Attention of `chunks` equal prefill chunks and of decodes (batch 0: none) in one kernel, ns: what
 * the chunks add to the decodes' time, or all of it without decodes. s->surface is of mixed
 * attention; the shape's heads are those asked for. */
double bt_op_source_chunks_ns(const struct bt_op_source *s, const struct bt_op_shape *shape,
                              int64_t chunks);

/* The correction for uneven decode batches of a GPU and stack: *out is NULL where there is none.
 * BT_ERR_INPUT when its table is malformed, BT_ERR_LIMIT, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_surface_library_skew(struct bt_surface_library *l, const char *gpu,
                                                  const char *stack, const struct bt_skew **out,
                                                  struct bt_error *err);

/* Values of the main coordinate (m, context, chunk, bytes) at which the source bends: rising, at
 * most `capacity`. Returns how many. */
int32_t bt_op_source_knots(const struct bt_op_source *s, int64_t *out, int32_t capacity);

#ifdef __cplusplus
}
#endif

#endif
