/* A cost model assembled from the operations of a step: implements the seam of sim/cost/cost.h over
 * any law (sim/cost/law.h).
 *
 * Times are tabulated per number of tokens, of logit rows and of decoding sequences when the model
 * is made, in integer picoseconds, so that a step costs a few additions and a span of decode steps
 * is the exact sum of its steps. Beyond the tables the same functions are evaluated on the spot.
 * Formulas: docs/COST_MODEL.md.
 *
 * Sliding-window layers read at most `window` tokens a sequence. A batch is known by its sums only,
 * so min(sum of contexts, sequences x window) stands for the sum of the minima: exact while all
 * contexts lie on one side of the window, an upper bound where they lie on both.
 */
#ifndef BT_SIM_COST_STEP_H
#define BT_SIM_COST_STEP_H

#include "engine/core/arch.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "sim/config.h"
#include "sim/cost/cost.h"
#include "sim/cost/law.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One model on one replica: what it computes and in which formats. */
struct bt_step_model {
    const struct bt_arch *arch;     /* borrowed during creation */
    enum bt_weight_format weights;  /* zero: the checkpoint's */
    enum bt_act_format activations; /* zero: the checkpoint's compute type */
    enum bt_kv_format kv;           /* zero: the checkpoint's compute type */
    bool quantise_lm_head;          /* else lm_head is 16-bit */
};

struct bt_step_opts {
    struct bt_step_model target;
    struct bt_step_model draft; /* BT_SPEC_DRAFT; arch NULL otherwise */
    const struct bt_gpu *gpu;   /* borrowed during creation */
    int32_t tp;                 /* ranks; 0: 1 */
    bool fused;                 /* fused kernels (DESIGN section 4) */
    enum bt_spec_kind spec;
    int32_t spec_k;      /* most draft tokens a step */
    int32_t self_layers; /* BT_SPEC_SELF: layers of the draft, 1 .. n_layers */
    /* Sizes of the tables; larger steps are computed on the spot. */
    int32_t max_tokens; /* tokens a step; 0: 2048 */
    int32_t max_seqs;   /* 0: 256 */
    /* Host link: bytes of one block (all layers, one rank: one contiguous copy). */
    int64_t block_bytes;
    int64_t pcie_bytes_per_s; /* override of the link's rate; 0: the card's */
    /* Launches and host time; negative: none, zero: the defaults of docs/COST_MODEL.md. */
    int64_t graph_node_ps;   /* a kernel inside a CUDA graph (decode-only steps) */
    int64_t launch_ps;       /* a kernel launched by the host (steps with prefill) */
    int64_t host_base_ns;    /* host time a step .. */
    int64_t host_per_seq_ns; /* .. and for each sequence in it */
    double peak_flops_per_s; /* of one rank, for utilisation */
    /* RoPE, q/k norms and the activation run in kernels of their own: other stacks than berth, and
     * berth where its own kernels were measured. */
    bool separate;
    double time_scale; /* of every operation, for a fitted efficiency: 1 / efficiency; 0: 1 */
    int64_t step_overhead_ns; /* device idle between steps, however many are in flight; 0: none */
    double device_copy_share; /* of memory bandwidth, of copies inside the device; 0: 0.9 */
};

/* Makes the model. Takes the laws over, also on failure (draft_law.ops may be NULL unless a draft
 * model speculates). Trust is the caller's to fill. BT_ERR_ARG, BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_step_cost_create(const struct bt_step_opts *opts, struct bt_law law,
                                              struct bt_law draft_law, struct bt_cost *out,
                                              struct bt_error *err);

/* The target's law, borrowed. `cost` was made by bt_step_cost_create. */
const struct bt_law *bt_step_cost_law(const struct bt_cost *cost);
/* The draft model's likewise; NULL: there is none. */
const struct bt_law *bt_step_cost_draft_law(const struct bt_cost *cost);

/* Ranks that share the draft: the target's when its heads allow it, else each rank has a copy: 1.
 */
int32_t bt_step_draft_tp(const struct bt_step_opts *o);

/* One operation's share of a step. */
struct bt_step_row {
    enum bt_step_op op;
    bool draft;       /* of the draft's passes */
    int32_t launches; /* kernels in the step */
    double time_ps;   /* launches included */
};

enum { BT_STEP_ROWS_MAX = 2 * BT_STEP_OPS };

/* Which operations make up the time of this step, in order of execution; only those that take part.
 * Their sum is the step's time but for its overhead and rounding, unless the launches of a step
 * with prefill take longer. `cost` was made by bt_step_cost_create. Returns the number of rows. */
int32_t bt_step_cost_explain(const struct bt_cost *cost, const struct bt_batch *b,
                             struct bt_step_row rows[BT_STEP_ROWS_MAX]);

#ifdef __cplusplus
}
#endif

#endif
