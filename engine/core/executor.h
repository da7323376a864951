/* The seam between the scheduler and whatever runs its step plans.
 *
 * The scheduler (engine/core/sched.h) makes a step plan; an executor runs it and says what came of
 * it; the scheduler learns everything it may know from that result: tokens, ends of sequence,
 * finished copies, times. Three executors implement the ops table: sim (a cost model, virtual
 * time), cpu (reference arithmetic) and cuda. None may be told more than the plan says, so that a
 * recorded real run replayed through sim gives the identical sequence of plans.
 *
 * Ownership: a plan belongs to the scheduler and stays valid until its result has been given to
 * bt_sched_complete. A result belongs to the caller, who gives it arrays of the capacities named
 * below. Threading: one thread an executor.
 */
#ifndef BT_ENGINE_CORE_EXECUTOR_H
#define BT_ENGINE_CORE_EXECUTOR_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_EXECUTOR_ABI_VERSION = 1 };

/* A request's place in the scheduler's pool; the generation tells a reused place from the old. */
struct bt_req_handle {
    uint32_t index;
    uint32_t generation;
};

enum bt_plan_flag {
    BT_SEQ_START = 1 << 0, /* first step of this residency: the slot's old state is void */
    BT_SEQ_EMITS = 1 << 1, /* the step reaches the end of the known tokens: a token comes out */
};

/* One sequence's share of a step. Known tokens are the prompt plus what has been generated; ctx of
 * them have their KV in the pool already, and the step computes the next n_tokens. With k_spec > 0
 * the step drafts k_spec tokens first, and verifies them: n_tokens is then 1 + k_spec. */
struct bt_plan_seq {
    struct bt_req_handle req;
    uint64_t user;         /* the caller's id for the request (bt_req_spec.user) */
    int32_t slot;          /* row 0 .. max_seqs-1, fixed while the sequence is resident */
    int32_t n_prompt;      /* tokens of the prompt */
    int32_t n_generated;   /* tokens generated, as planned: those in flight are counted */
    int32_t ctx;           /* tokens with KV before this step */
    int32_t n_tokens;      /* tokens computed in this step, > 0 */
    int32_t k_spec;        /* draft tokens to propose and verify; 0: none */
    int32_t draft_catchup; /* tokens whose draft KV is computed first: the last so many before ctx
                            * (k_spec > 0), or before ctx + n_tokens (k_spec == 0); 0: none */
    uint32_t flags;        /* enum bt_plan_flag */
    int32_t kv_class;      /* 0: the pool's dtype, 1: the 16-bit class of the per-request rule */
    int32_t n_blocks;
    const int32_t *blocks; /* borrowed: block table, n_blocks pool indices in token order */
};

enum bt_copy_kind {
    BT_COPY_COW,      /* device to device, before the step's compute */
    BT_COPY_SWAP_OUT, /* device to host, after the steps already in flight */
    BT_COPY_SWAP_IN,  /* host to device */
};

struct bt_plan_copy {
    enum bt_copy_kind kind;
    uint32_t ticket; /* swaps: comes back in bt_step_result.copies_done */
    struct bt_req_handle req;
    int32_t n_blocks;
    const int32_t *src; /* borrowed: source block indices (host indices for SWAP_IN) */
    const int32_t *dst; /* borrowed: destination block indices (host indices for SWAP_OUT) */
};

/* What to run next. A plan without sequences has wait_copies set: nothing can run until a copy
 * ends; its result comes when at least one outstanding copy has ended, or at once when none is
 * outstanding any more. */
struct bt_step_plan {
    int64_t step_id; /* 0, 1, 2 ... */
    int32_t n_seqs;
    int32_t n_copies;
    const struct bt_plan_seq *seqs;    /* decodes first, then prefill chunks */
    const struct bt_plan_copy *copies; /* to be started with this step */
    int32_t n_decode_seqs;             /* seqs[0 .. n_decode_seqs-1] have n_tokens == 1 + k_spec */
    int32_t n_prefill_tokens;
    bool speculative; /* some sequence has k_spec > 0 */
    bool wait_copies;
};

struct bt_result_seq {
    int32_t n_emitted;  /* new tokens: 0 without BT_SEQ_EMITS, else 1 .. 1 + k_spec */
    int32_t n_accepted; /* draft tokens accepted, 0 .. k_spec */
    bool eos;           /* the last emitted token ends the sequence */
    bool failed;        /* the executor could not compute it (NaN, say): the request fails */
};

struct bt_step_result {
    int64_t step_id;
    int64_t start_ns;           /* the device began */
    int64_t done_ns;            /* tokens reached the host: the time given to complete */
    int64_t busy_ns;            /* device time of the step */
    int64_t host_ns;            /* host time not hidden behind the device */
    int64_t flops;              /* useful work, for utilisation; 0 when unknown */
    int64_t bytes;              /* device memory traffic; 0 when unknown */
    struct bt_result_seq *seqs; /* owned by the caller: max_seqs rows, in the plan's order */
    uint32_t *copies_done;      /* owned by the caller: tickets of swaps ended, max_copies rows */
    int32_t n_copies_done;
};

enum bt_submit {
    BT_SUBMIT_DONE,   /* the result is filled; in virtual time its done_ns may lie ahead */
    BT_SUBMIT_QUEUED, /* wait() gives the result */
    BT_SUBMIT_BUSY,   /* too many steps in flight: wait first */
    BT_SUBMIT_FAILED, /* err is filled; the executor accepts only destroy */
};

struct bt_executor_ops {
    const char *name; /* "sim", "cpu", "cuda" */
    int32_t abi_version;
    int32_t inflight_max; /* steps that may be in flight */
    /* Required. Starts a plan at now_ns. */
    enum bt_submit (*submit)(void *self, const struct bt_step_plan *plan, int64_t now_ns,
                             struct bt_step_result *result, struct bt_error *err);
    /* Required unless submit always answers DONE. Blocks for the oldest step in flight. */
    enum bt_code (*wait)(void *self, struct bt_step_result *result, struct bt_error *err);
    /* Required. Ends the executor and frees `self`. */
    void (*destroy)(void *self);
};

struct bt_executor {
    const struct bt_executor_ops *ops;
    void *self; /* owned */
};

#ifdef __cplusplus
}
#endif

#endif
