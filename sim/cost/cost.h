/* The cost model's seam: what a batch costs on one replica, in picoseconds of device time.
 *
 * A cost model answers for a batch described by its sums only. For decode steps the time is
 * piecewise affine in total context, so that n steps of one fixed batch, each adding one token to
 * every sequence, have a closed form: span(batch, n) equals the n single steps exactly. Callers
 * turn picoseconds into integer nanoseconds by carrying the remainder along, so that jumping n
 * steps and stepping them land on the same nanosecond.
 */
#ifndef BT_SIM_COST_COST_H
#define BT_SIM_COST_COST_H

#include "engine/core/error.h"
#include "engine/core/executor.h"
#include "engine/core/trust.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A batch by its sums. Decode sequences have one query token each, or 1 + k when verifying. */
struct bt_batch {
    int32_t n_decode;         /* decoding sequences */
    int32_t n_decode_tokens;  /* their query tokens: n_decode, or more when verifying */
    int64_t decode_ctx;       /* sum over them of KV tokens read, the new ones included */
    int64_t decode_ctx_long;  /* of the long ones, were there but two lengths (skew) */
    int32_t n_prefill;        /* sequences with a prefill chunk */
    int32_t n_prefill_tokens; /* query tokens of the chunks */
    int64_t prefill_pairs;    /* sum over chunks of query-key pairs (causal) */
    int64_t prefill_ctx;      /* sum over chunks of KV tokens read (before + chunk) */
    int32_t n_logits;         /* rows of lm_head and sampling */
    int32_t n_draft_steps;    /* draft forward passes of one token a decoding sequence (K) */
    int32_t n_catchup_tokens; /* draft prefill tokens after a phase without speculation */
    int32_t n_16bit;          /* decoding sequences whose KV is of the 16-bit class .. */
    int64_t ctx_16bit;        /* .. and their KV tokens (part of decode_ctx) */
};

struct bt_cost_parts {
    int64_t time_ps; /* device time */
    int64_t flops;   /* useful operations */
    int64_t bytes;   /* device memory traffic */
    int64_t host_ns; /* host time a step (planning, launching, sampling's return) */
};

struct bt_cost_ops {
    const char *name;
    /* Required. One step of this batch. */
    void (*step)(const void *self, const struct bt_batch *b, struct bt_cost_parts *out);
    /* Required. n >= 1 decode-only steps of this batch (no prefill, no speculation), starting at
     * b->decode_ctx; sequence contexts grow by one each step. Sums of n calls of step, exactly. */
    void (*span)(const void *self, const struct bt_batch *b, int32_t n, struct bt_cost_parts *out);
    /* Required. Time of copying n_blocks >= 0 blocks, ps: to the host or from it over the link with
     * nothing else on it, or from one place on the device to another (copy on write). */
    int64_t (*copy_ps)(const void *self, enum bt_copy_kind kind, int32_t n_blocks);
    void (*destroy)(void *self); /* Required. */
};

enum { BT_COST_NAME_BYTES = 64 };

struct bt_cost {
    const struct bt_cost_ops *ops;
    void *self;              /* owned; immutable after creation: threads may share it */
    double peak_flops_per_s; /* of one replica, for utilisation */
    double peak_bytes_per_s;
    /* Rate of the host link with both directions busy over the sum of the rates of each alone,
     * 0.5 (half duplex) .. 1. */
    double duplex_share;
    enum bt_trust trust;              /* of the weakest operation .. */
    char weakest[BT_COST_NAME_BYTES]; /* .. and its name */
    double step_error;     /* relative bound of a step's time, the worst step; < 0: unknown */
    bool step_error_by_op; /* its operations' bounds tell that of any step (surface_cost) */
};

/* Frees the model; a zeroed struct is allowed. */
void bt_cost_fini(struct bt_cost *c);

#ifdef __cplusplus
}
#endif

#endif
