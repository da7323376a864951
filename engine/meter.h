/* What measuring a step of the real engine means: its shape, its parts, their times. The meters are
 * engine/cpu/measure.h and engine/cuda/measure.h. Plain data.
 */
#ifndef BT_ENGINE_METER_H
#define BT_ENGINE_METER_H

#include "engine/clock.h"
#include "engine/core/arch.h"
#include "engine/model/model.h"

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
    BT_PART_ATTENTION,  /* */
    BT_PART_O,          /* */
    BT_PART_ADD,        /* to the residual stream */
    BT_PART_GATE_UP,    /* two products */
    BT_PART_ACTIVATION, /* silu(gate) * up */
    BT_PART_DOWN,       /* */
    BT_PART_FINAL_NORM, /* of the rows that are wanted */
    BT_PART_LM_HEAD,    /* */
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
};

/* n_seqs sequences with `ctx` tokens of KV each, which compute n_tokens more and give one token out
 * each. */
struct bt_step_shape {
    int32_t n_seqs;   /* > 0 */
    int32_t ctx;      /* >= 0 */
    int32_t n_tokens; /* > 0 */
};

enum { BT_STEP_REPEATS_MAX = 64 };

struct bt_step_time {
    int32_t n_repeats;
    double op_ns[BT_STEP_PARTS];     /* medians of all layers together */
    double op_spread[BT_STEP_PARTS]; /* half the interquartile range */
    double rest_ns;                  /* median of the step's time outside the operations */
    double rest_spread;
    double step_ns; /* median of the whole step */
};

#ifdef __cplusplus
}
#endif

#endif
