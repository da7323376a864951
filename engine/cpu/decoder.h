/* The decoder on the CPU: tokens of many sequences in, final hidden states and logits out, keys and
 * values in the paged pool. The specification that every other executor is compared with.
 *
 * A batch is a list of segments, each consecutive tokens of one sequence whose earlier tokens have
 * their KV in the pool. Batches of any size run in pieces of max_rows tokens; a token's result
 * depends on its sequence alone, to the bit, whatever the batch, the pieces, the block size or the
 * number of threads.
 *
 * Ownership: memory from the arena given at init; model and pool are borrowed. Threading: one call
 * at a time.
 */
#ifndef BT_ENGINE_CPU_DECODER_H
#define BT_ENGINE_CPU_DECODER_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/cpu/attention.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/profile.h"
#include "engine/model/model.h"
#include "engine/model/quantize.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch that the decoders of one executor share. */
struct bt_cpu_scratch {
    struct bt_cpu_work work;
    struct bt_cpu_attn_work attn;
    int32_t max_rows;
    float *x;      /* [max_rows, hidden]: the residual stream */
    float *h;      /* [max_rows, max(hidden, q_dim)]: normalised input, attention output */
    float *y;      /* [max_rows, hidden]: what is added to the residual */
    float *q;      /* [max_rows, q_dim] */
    float *k, *v;  /* [max_rows, kv_dim] */
    float *gate;   /* [max_rows, intermediate] */
    float *up;     /* [max_rows, intermediate] */
    float *angles; /* [max_rows][2, head_dim / 2]: cos and sin */
    struct bt_cpu_segment *segments; /* [max_rows]: of one piece */
};

struct bt_cpu_scratch_opts {
    const struct bt_model *model; /* borrowed only during init */
    const struct bt_model *draft; /* may be NULL; its shapes fit too */
    int32_t max_rows;             /* > 0 */
    int32_t max_ctx;              /* longest sequence, tokens */
    int32_t n_threads;            /* 0: all that OpenMP would use */
};

BT_NODISCARD enum bt_code bt_cpu_scratch_init(struct bt_cpu_scratch *s, struct bt_arena *arena,
                                              const struct bt_cpu_scratch_opts *o,
                                              struct bt_error *err);

/* Called with what linear layers read, one call a segment and point: x [n_rows, K] of the
 * sequence's tokens from `position` on. For layer and point see bt_calib_point. */
typedef void (*bt_cpu_tap_fn)(void *user, int32_t layer, enum bt_calib_point point, const float *x,
                              int32_t n_rows, int32_t position);

struct bt_decoder {
    const struct bt_model *model;   /* borrowed */
    const struct bt_kv_pool *pool;  /* borrowed */
    struct bt_cpu_scratch *scratch; /* borrowed */
    enum bt_kv_part_id part;        /* the model's share of a block */
    enum bt_act_format round;       /* compute type: FP32, or 16-bit to round every result to */
    enum bt_act_format residual;    /* of the residual stream: FP32 where FP16 would overflow */
    struct bt_cpu_rope rope;
    float *norms;      /* every norm vector as floats */
    bt_cpu_tap_fn tap; /* may be NULL */
    void *tap_user;
    struct bt_cpu_profile *profile; /* borrowed; NULL: none */
};

/* compute: FP32, FP16 or BF16. Returns BT_ERR_ARG for a model this decoder does not know,
 * BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_decoder_init(struct bt_decoder *d, struct bt_arena *arena,
                                          const struct bt_model *model,
                                          const struct bt_kv_pool *pool,
                                          struct bt_cpu_scratch *scratch, enum bt_kv_part_id part,
                                          enum bt_act_format compute, struct bt_error *err);

struct bt_cpu_batch {
    int32_t n_rows;
    int32_t n_segments;
    const int32_t *ids;                    /* [n_rows] token ids, within the vocabulary */
    const struct bt_cpu_segment *segments; /* cover the rows in order */
    const int32_t *out_row; /* [n_rows]: row of `out` for the token's state, -1: not wanted */
    float *out;             /* [.., hidden]: final normalised hidden states */
    int32_t first_layer;    /* > 0: those before it have run, and residual says what came out */
    float
        *residual; /* [n_rows, hidden]: read when first_layer > 0, and written; may be NULL else */
};

/* Runs layers first_layer .. n_layers - 1 (n_layers <= the model's), writes their KV and the wanted
 * states. */
void bt_decoder_forward(struct bt_decoder *d, const struct bt_cpu_batch *batch, int32_t n_layers);

/* logits [m, vocab] of m final states. */
void bt_decoder_logits(struct bt_decoder *d, const float *states, int32_t m, float *logits);

#ifdef __cplusplus
}
#endif

#endif
