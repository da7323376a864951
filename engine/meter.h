/* What measuring a step of the real engine means: its shape, its parts, their times; and what all
 * meters are. How a step is run and its parts are timed is the executor's: engine/cpu/measure.h,
 * engine/cuda/measure.h.
 *
 * Ownership: a meter owns its executor and borrows the model. Threading: one call at a time.
 */
#ifndef BT_ENGINE_METER_H
#define BT_ENGINE_METER_H

#include "engine/clock.h"
#include "engine/core/arena.h"
#include "engine/core/executor.h"
#include "engine/executor_opts.h"
#include "engine/gen.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_step_part {
    BT_PART_EMBED = 0,  /* rows of the embedding table, angles of RoPE */
    BT_PART_NORM,       /* before attention and MLP */
    BT_PART_QKV,        /* three products */
    BT_PART_ROPE,       /* norms of queries and keys too */
    BT_PART_KV_WRITE,   /* to the pool */
    BT_PART_ATTENTION,  /* over the pool */
    BT_PART_O,          /* one product */
    BT_PART_ADD,        /* to the residual stream */
    BT_PART_GATE_UP,    /* two products */
    BT_PART_ACTIVATION, /* silu(gate) * up */
    BT_PART_DOWN,       /* one product */
    BT_PART_FINAL_NORM, /* of the rows that are wanted */
    BT_PART_QUANTISE,   /* of activations, where it is an operation by itself */
    BT_PART_LM_HEAD,    /* to logits */
    BT_PART_SAMPLE,     /* from logits to tokens */
    BT_STEP_PARTS,
};

struct bt_meter_opts {
    const struct bt_model *model; /* borrowed, outlives the meter */
    enum bt_act_format compute;   /* as bt_executor_opts */
    enum bt_kv_format kv;
    int32_t block_tokens;
    int32_t max_seqs;      /* of any shape */
    int32_t max_ctx;       /* tokens of a sequence, those of the step included */
    int64_t max_kv_tokens; /* of all sequences of a shape together */
    int32_t n_threads;
    enum bt_clock clock;
    int32_t n_host_blocks; /* for swaps */
    bool only_steps;       /* parts need not be timed */

    /* GPU only, as bt_executor_opts. */
    bool unfused, tune;
};

/* n_seqs sequences with `ctx` tokens of KV each, which compute n_tokens more and give one token out
 * each. */
struct bt_step_shape {
    int32_t n_seqs;   /* > 0 */
    int32_t ctx;      /* >= 0 */
    int32_t n_tokens; /* > 0 */
    uint32_t skip; /* bit i: part i need not be timed (GPU only: the CPU times them all at once) */
    bool alone;    /* GPU only: each step after a rest, nothing before it in flight; else two are */
};

enum { BT_STEP_REPEATS_MAX = 64 };

struct bt_step_time {
    int32_t n_repeats;
    double op_ns[BT_STEP_PARTS];     /* medians of all layers together */
    double op_spread[BT_STEP_PARTS]; /* half the interquartile range */
    double rest_ns;                  /* median of the step's time outside the operations */
    double rest_spread;
    double step_ns; /* median of the whole step */
    double gap_ns;  /* of that, the device waited for the host */
    double host_ns; /* GPU: the host's time to enqueue a step, hidden behind the one before */
};

/* Plans of random tokens for shapes, within what a meter's options allow. */
struct bt_meter_load {
    int32_t max_seqs, max_ctx, block_tokens, n_blocks;
    struct bt_gen_table table;
    int32_t *prompt;                 /* [max_ctx] */
    int32_t *outs;                   /* [max_seqs]: one token of each answer */
    struct bt_gen_request *requests; /* [max_seqs] */
    struct bt_plan_seq *seqs;        /* [max_seqs] */
    int32_t *blocks;                 /* [n_blocks]: the identity */
    struct bt_result_seq *results;   /* [max_seqs] */
};

/* The first member of an executor's own meter. */
struct bt_meter {
    struct bt_meter_opts opts;
    struct bt_arena arena;
    struct bt_meter_load load;
    struct bt_executor executor;
};

/* Allocates `bytes` zeroed bytes that begin with a meter, and makes its plans and its executor;
 * options' block_tokens 0 is the default. Errors of `create`; BT_ERR_NOMEM. On failure *out is
 * NULL. */
BT_NODISCARD enum bt_code bt_meter_create(size_t bytes, const struct bt_meter_opts *opts,
                                          bt_executor_create_fn *create, struct bt_meter **out,
                                          struct bt_error *err);
/* NULL is allowed. */
void bt_meter_destroy(struct bt_meter *m);

/* Whether the shape is within the options' limits. */
bool bt_meter_fits(const struct bt_meter *m, const struct bt_step_shape *s);

/* The plan of one step, with answers begun anew; valid until the next one. */
void bt_meter_plan(struct bt_meter *m, const struct bt_step_shape *s, struct bt_step_plan *plan);

/* Median, and half the interquartile range; sorts. */
double bt_meter_median(int64_t *samples, int32_t n, double *spread);

#ifdef __cplusplus
}
#endif

#endif
