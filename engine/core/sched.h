/* The scheduler: requests in, step plans out, results in, records out. Pure: no clock, no I/O, no
 * allocation after bt_sched_create. The simulator and the real engine run this same object code.
 *
 * A request is WAITING, RUNNING, SWAPPING_OUT, SWAPPED, SWAPPING_IN or DRAINING (ended or preempted
 * while steps or a copy that use its blocks are in flight); req.h has the diagram, the edges and
 * the invariants. In RUNNING a request is in prefill while ctx < known tokens - 1, else it decodes:
 * counters tell, not states.
 *
 * Order. FCFS, by priority class, or by prompt length; ties by submission. Neither admission nor
 * resuming overtakes the head of its queue. Swapped requests come before waiting ones, but for a
 * waiting one of a more urgent class. With priority_preempts a waiting request preempts running
 * ones of less urgent classes, the least urgent and newest first, if that lets it in; until their
 * blocks have come free, less urgent decodes take none. Its first token then waits for the steps in
 * flight, its victims' copies and its own prompt.
 *
 * Steps. Chunked: decodes first, one token each, then prompts in order under max_batched_tokens; a
 * newcomer is admitted when tokens of the step are left for it. Whole prompts: a step of prompts
 * alone while any may run, in order within the budget (the first always), else one of decodes.
 * Static: a batch is admitted at once, whatever its tokens, and nobody until all of it has ended;
 * the budget then binds the prompts of a step alone.
 *
 * Admission takes the blocks of all known tokens at once, when those and one token more fit into
 * what is available above the watermark (which does not bind the only resident). Decodes take a
 * block when they need it. A hit of the prefix cache covers whole blocks that were complete when
 * the request was admitted: equal prompts in flight together do not see each other. It leaves at
 * least one token to compute; where the prompt is cached to its end, the last block is copied.
 * Blocks of finished and preempted sequences stay cached until they are evicted.
 *
 * Preemption for memory takes the victim among those later in the order than the one in need (of
 * the last class, by opts.victim), first those that no step in flight uses, and none while enough
 * blocks are on their way. Recompute puts it back at its place in the queue; swap copies all its
 * blocks that hold tokens, shared ones too, frees them when the copy is done, and resumes it when
 * all of it and one token fit; without host blocks it is recomputed.
 *
 * Speculation adds K draft tokens to each decode, within the budget (half of what decodes leave
 * while prompts wait) and within free blocks: it never preempts. It is off in a sequence's first
 * step. While it is on, prompts are prefilled into the draft's KV as well.
 *
 * Planning is by token counts: with inflight_max > 1 step t+1 is planned while t runs, an
 * end-of-sequence is seen one step late, and the tokens such a step computed are discarded; an end
 * by max_new_tokens is known in time. While a step that speculates is in flight nothing is planned
 * ahead, nor is such a step planned ahead.
 *
 * Progress: the first of the order is never preempted; a request is (re)admitted only when all its
 * known tokens + 1 fit; what can never fit is rejected at submit; a lone sequence that outgrows the
 * pool fails with the tokens it has. Hence no livelock.
 *
 * It makes every bt_metrics call of a run but create, set_warmup and finish (the gauge at each
 * submit, cancel, plan and complete). Threading: one thread a
 * scheduler.
 */
#ifndef BT_ENGINE_CORE_SCHED_H
#define BT_ENGINE_CORE_SCHED_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/core/executor.h"
#include "engine/core/limits.h"
#include "engine/core/metrics.h"
#include "engine/core/spec.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_batching { BT_BATCHING_CONTINUOUS, BT_BATCHING_STATIC };
enum bt_order { BT_ORDER_FCFS, BT_ORDER_PRIORITY, BT_ORDER_SHORTEST };
enum bt_preempt { BT_PREEMPT_RECOMPUTE, BT_PREEMPT_SWAP, BT_PREEMPT_AUTO };
/* What `auto` minimises. */
enum bt_preempt_goal {
    BT_GOAL_VICTIM_DELAY, /* time until the victim may run again */
    BT_GOAL_GPU_TIME,     /* device time taken from the others */
    BT_GOAL_FREE_TIME,    /* time until the blocks are free */
};
enum bt_victim { BT_VICTIM_NEWEST, BT_VICTIM_LARGEST, BT_VICTIM_LEAST_PROGRESS };
/* When prompt + max_new_tokens pass max_model_len. */
enum bt_over_length {
    BT_OVER_REJECT,
    BT_OVER_TRUNCATE, /* the prompt keeps its first max_model_len - max_new_tokens tokens; where
                       * that is none, it keeps one and the answer is cut */
    BT_OVER_ALLOW,    /* only the pool binds */
};

/* Costs by which `auto` chooses, given by the executor's cost model. */
struct bt_preempt_cost {
    double recompute_ns_per_token;
    double recompute_ns_per_token2; /* attention grows with the square */
    double swap_out_ns_per_block, swap_in_ns_per_block;
    double swap_fixed_ns;
};

struct bt_degrade_opts {
    int32_t at_waiting;     /* when more wait at submit; 0: never */
    int32_t max_new_tokens; /* their answers are cut to this; 0: not cut */
};

struct bt_sched_opts {
    enum bt_batching batching;
    int32_t max_seqs;           /* 1 .. BT_MAX_SEQS */
    bool max_seqs_auto;         /* grows while KV is free, shrinks after preemption; <= max_seqs */
    int32_t max_batched_tokens; /* tokens a step; >= max_seqs unless static */
    bool chunked_prefill;       /* off: a prompt runs whole, in a step without decodes */
    int32_t max_model_len;      /* tokens, prompt + output */
    enum bt_over_length over_length;

    int32_t n_blocks;
    int32_t n_host_blocks;
    int32_t block_tokens;       /* tokens a block of the pool's dtype */
    int32_t block_tokens_16bit; /* of the 16-bit class in a block of the same bytes; 0: no class */
    int32_t long_above_tokens;  /* sequences that may pass this are of the 16-bit class; 0: none */
    int64_t block_bytes;        /* for swap accounting */
    bool prefix_cache;
    int32_t watermark_blocks; /* kept free at admission, so that decodes can grow */

    enum bt_preempt preempt;
    enum bt_preempt_goal preempt_goal;
    enum bt_victim victim;
    struct bt_preempt_cost preempt_cost;

    enum bt_order order;
    bool priority_preempts; /* a waiting request of a more urgent class preempts a running one */
    int32_t max_requests;   /* waiting + resident; 0: 131,072 */
    int32_t max_waiting;    /* admission limit; 0: none */
    int64_t window_low_ns;  /* newcomers wait so long from the first arrival on when few wait .. */
    int64_t window_high_ns; /* .. and so long when max_seqs wait (equal: fixed; both 0: none) */
    int32_t inflight_max;   /* 1 .. BT_MAX_INFLIGHT */
    struct bt_spec_opts spec;
    struct bt_degrade_opts degrade;

    int32_t replica;            /* number in records and metrics */
    struct bt_metrics *metrics; /* borrowed, may be NULL */
    /* Called when a request has ended; may be NULL. Must not call the scheduler. */
    void (*on_end)(void *ctx, const struct bt_req_record *record);
    /* Called for each delivery; NULL costs nothing. */
    void (*on_tokens)(void *ctx, uint64_t user, int32_t n_tokens, int64_t now_ns);
    void *ctx;
};

struct bt_req_spec {
    uint64_t user;
    int64_t arrival_ns;     /* intended arrival; <= now at submit */
    int64_t timeout_ns;     /* from arrival; 0: none. What has been generated is delivered */
    int32_t n_prompt;       /* > 0 */
    int32_t max_new_tokens; /* > 0; the scheduler does not know where an answer really ends */
    int32_t priority;       /* 0 (most urgent) .. BT_MAX_PRIORITY */
    /* Content of the prompt: hash-block j covers tokens [j * hash_tokens, (j+1) * hash_tokens), ids
     * are chained. Borrowed until the request has ended. NULL: unique content. */
    const uint64_t *hashes;
    int32_t n_hashes;
    int32_t hash_tokens;
};

enum bt_admit { BT_ADMIT_OK, BT_ADMIT_REJECT };

enum bt_plan_status {
    BT_PLAN_READY, /* *plan is to be submitted; ask again while fewer than inflight_max are alive */
    BT_PLAN_IDLE,  /* nothing to do until a submit or a complete */
    BT_PLAN_WAIT,  /* likewise, and again at *wake_ns: a window opens or a deadline is reached */
};

struct bt_sched;

/* Takes all memory from the arena. BT_ERR_ARG names the option, its value and what is allowed. */
BT_NODISCARD enum bt_code bt_sched_create(struct bt_arena *arena, const struct bt_sched_opts *opts,
                                          struct bt_sched **out, struct bt_error *err);

/* A request arrives. On BT_ADMIT_REJECT it has ended already (record delivered, *handle void). */
enum bt_admit bt_sched_submit(struct bt_sched *s, const struct bt_req_spec *spec, int64_t now_ns,
                              struct bt_req_handle *handle);

/* Ends a request early; its tokens so far are in the record. False when it has ended already. */
bool bt_sched_cancel(struct bt_sched *s, struct bt_req_handle h, int64_t now_ns);

/* Plans the next step, and ends what has passed its deadline. At most inflight_max plans are alive;
 * with so many there is none. *wake_ns is set whatever the answer: the next deadline or opening of
 * the window, INT64_MAX for none; steps may well be in flight then. */
enum bt_plan_status bt_sched_plan(struct bt_sched *s, int64_t now_ns,
                                  const struct bt_step_plan **plan, int64_t *wake_ns);

/* Takes the result of the oldest plan alive; now_ns = result->done_ns. The plan is void after.
 * Deadlines before now_ns come first: tokens that arrive after one are not delivered. */
void bt_sched_complete(struct bt_sched *s, const struct bt_step_result *result, int64_t now_ns);

/* State as the routers, hooks and gauges see it. */
struct bt_sched_state {
    int32_t replica; /* opts.replica */
    int32_t n_waiting, n_running, n_swapped;
    int32_t max_seqs; /* in force */
    int32_t kv_blocks_total, kv_blocks_used, kv_blocks_cached;
    int32_t n_inflight;
    int64_t tokens_waiting; /* prompt tokens not yet computed, of waiting and running requests */
    int64_t kv_tokens;
    int64_t n_preempts; /* so far */
    bool spec_on;
    enum bt_block_reason block;
};
void bt_sched_get_state(const struct bt_sched *s, struct bt_sched_state *out);

/* Prompt tokens of this content that the prefix cache holds now (for prefix-aware routing). */
int32_t bt_sched_cached_tokens(const struct bt_sched *s, const struct bt_req_spec *spec);

/* Live changes by hooks: speculation allowed or not; nothing else moves. */
void bt_sched_allow_spec(struct bt_sched *s, bool allowed);

/* Capacity of the result arrays a caller must own for this scheduler. */
int32_t bt_sched_max_copies(const struct bt_sched *s);

/* Running hash of every plan made (requests, tokens, contexts, copies): the proof of sharing. */
uint64_t bt_sched_plan_hash(const struct bt_sched *s);

/* Asserts every invariant of requests, queues and pool. O(everything): tests and debug builds. */
void bt_sched_check(const struct bt_sched *s);

#ifdef __cplusplus
}
#endif

#endif
