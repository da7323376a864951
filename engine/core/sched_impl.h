/* What the scheduler's files share. Internal to engine/core: users include sched.h.
 *
 * A request that holds device blocks has a slot (a row of the executor's batch) and a bt_seq with
 * what planning walks over. run_slot lists the RUNNING ones by key; a sequence that stops running
 * only clears `running`, and bt_sched_run_compact closes the gaps before any slot is used again.
 *
 *   sched.c          create, submit, cancel, timeouts, state
 *   sched_plan.c     one step: decodes, chunks, the plan and its hash
 *   sched_admit.c    prefix hits, admission, resuming from swap
 *   sched_preempt.c  victims, recompute, swap, giving back blocks
 *   sched_complete.c results: tokens, ends, copies
 *   sched_check.c    every invariant
 */
#ifndef BT_ENGINE_CORE_SCHED_IMPL_H
#define BT_ENGINE_CORE_SCHED_IMPL_H

#include "engine/core/kv.h"
#include "engine/core/policy.h"
#include "engine/core/queue.h"
#include "engine/core/req.h"
#include "engine/core/sched.h"
#include "engine/core/spec.h"

#include <assert.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A resident sequence. One cache line holds what a decode step touches: the walk visits slots in
 * order of policy, so an array of lines beats one array a field. Counts are as planned: tokens of
 * steps in flight included, draft tokens in flight not. */
struct bt_seq {
    uint64_t user;
    int64_t last_token_ns;    /* -1: none delivered */
    struct bt_req_handle req; /* its place in bt_sched.reqs */
    int32_t ctx;              /* tokens with KV */
    int32_t known;            /* prompt + generated */
    int32_t limit;            /* known tokens of the complete answer */
    int32_t cap_tokens;       /* slots in its blocks */
    int32_t n_blocks;
    int32_t n_prompt;
    int32_t draft_ctx;      /* tokens with draft KV */
    int32_t pending_blocks; /* counted in bt_sched.pending_blocks until they come free */
    uint16_t n_inflight;    /* steps */
    uint8_t kv_class;
    bool running; /* state RUNNING and listed in run_slot */
    bool start;   /* no step planned yet in this residency */
};

static_assert(sizeof(struct bt_seq) == 64, "a sequence is one cache line");

/* What a sequence needs beside its line, rarely. */
struct bt_seq_cold {
    uint64_t key;
    uint32_t ticket; /* of the outstanding swap copy; 0: none */
    bool outward;    /* that copy goes to the host */
};

/* A copy on write: the shared block keeps its reference until the step is complete. */
struct bt_cow {
    int32_t src, dst;
    uint8_t kv_class;
};

struct bt_plan_buf {
    struct bt_step_plan plan;
    struct bt_plan_seq *seqs;    /* owned by the arena; [n_slots] */
    struct bt_plan_copy *copies; /* [n_slots]: a slot has at most one copy a step */
    int32_t *host_blocks;        /* [n_host_blocks]: host sides of the swaps */
    struct bt_cow *cows;         /* [n_slots] */
    int32_t n_host_used;
    int32_t n_cow;
};

struct bt_sched {
    struct bt_sched_opts opts;
    struct bt_kv *kv;

    struct bt_req *reqs;    /* [max_requests] */
    int32_t n_reqs_touched; /* places used so far: reqs[n_reqs_touched ..] are untouched pages */
    int32_t free_head;      /* chain of free places below n_reqs_touched; -1: none */
    uint64_t next_seq;
    struct bt_queue waiting, swapped, deadlines;

    int32_t n_slots; /* min(max_seqs, n_blocks) */
    int32_t n_resident;
    int32_t table_cap;        /* blocks of the longest sequence */
    struct bt_seq *seqs;      /* [n_slots] */
    struct bt_seq_cold *cold; /* [n_slots] */
    int32_t *tables;          /* [n_slots][table_cap] */
    int32_t *free_slots;      /* stack of n_slots - n_resident */
    int32_t *run_slot;        /* [n_slots], by key */
    uint64_t *run_key;        /* [n_slots] */
    int32_t n_run;            /* entries of run_slot, gaps included */
    int32_t n_running;        /* those that are running */
    int32_t *host_next;       /* [n_host_blocks]: chains of the swapped */
    int32_t *check_refs;      /* [n_blocks]: scratch of bt_sched_check */
    uint8_t *draft_block;     /* [n_blocks]: 1 where the content has its draft KV */
    int32_t n_living;         /* requests not ended */
    int32_t n_swapping_in;    /* in that state */

    /* The plan being made. */
    int32_t *dec, *pre;  /* [n_slots]: slots that decode, slots in prefill by key */
    int32_t *dec_k;      /* [n_slots]: draft tokens of each decode */
    int32_t *pre_tokens; /* [n_slots]: tokens of each chunk */
    int32_t n_dec, n_pre;
    int64_t dec_tokens;      /* of dec, draft tokens included */
    int64_t pre_left;        /* tokens that the slots of pre still have to compute */
    int32_t k_plan;          /* draft tokens a sequence, 0: no speculation */
    int32_t deferred_blocks; /* wanted by decodes that wait for pending blocks */
    bool preempted;          /* for memory, in this plan */
    /* Blocks that an urgent head waits for, its victims being on their way out; 0: none. */
    int32_t urgent_need;
    uint32_t urgent_class;
    bool sat_out; /* a decode has left them alone in this plan */

    struct bt_plan_buf *plans; /* [inflight_max], ring by step_id */
    int64_t next_step;
    int32_t n_inflight;
    int32_t n_copies_out; /* swap copies outstanding */
    int32_t n_swap_out;   /* of those, outward */
    uint32_t next_ticket;
    int64_t pending_blocks; /* held by sequences that are leaving: free when steps and copies end */
    int64_t n_preempts;     /* so far */
    int64_t kv_tokens;      /* slots that hold a token, shared ones once */
    int64_t tokens_waiting; /* prompt tokens not computed yet */
    int32_t n_used16;       /* used blocks of the 16-bit class */

    struct bt_spec spec;
    struct bt_seqs_auto seqs_auto;
    int64_t window_from_ns; /* first arrival since the last window; -1: none waits */
    enum bt_block_reason block;
    uint64_t plan_hash;
    int64_t warmup_until_ns; /* of the metrics, as of this step */
    int64_t now_ns;          /* of the last call: time never goes back */
};

static inline int32_t *bt_sched_table(const struct bt_sched *s, int32_t slot)
{
    return s->tables + (size_t)slot * (size_t)s->table_cap;
}

static inline int32_t bt_sched_block_tokens(const struct bt_sched *s, uint8_t kv_class)
{
    return kv_class == 0 ? s->opts.block_tokens : s->opts.block_tokens_16bit;
}

static inline int32_t bt_sched_blocks_for_tokens(int32_t n_tokens, int32_t block_tokens)
{
    return (int32_t)(((int64_t)n_tokens + block_tokens - 1) / block_tokens);
}

static inline struct bt_plan_buf *bt_sched_plan_of(const struct bt_sched *s, int64_t step_id)
{
    return &s->plans[step_id % s->opts.inflight_max];
}

/* sched.c */
void bt_sched_end_req(struct bt_sched *s, uint32_t req, enum bt_outcome outcome, int64_t now_ns);
void bt_sched_free_req(struct bt_sched *s, uint32_t req); /* the place; the request has ended */
void bt_sched_requeue(struct bt_sched *s, uint32_t req);  /* a preempted one waits again */
/* A preempted one whose known tokens have passed the whole pool can never come back: it fails. */
void bt_sched_end_outgrown(struct bt_sched *s, uint32_t req);
void bt_sched_drop_host(struct bt_sched *s, uint32_t req);
/* Ends at now_ns the requests whose deadline is before before_ns. */
void bt_sched_expire(struct bt_sched *s, int64_t before_ns, int64_t now_ns);
void bt_sched_clock_set(struct bt_sched *s, int64_t now_ns);
void bt_sched_gauge(struct bt_sched *s, int64_t now_ns);

/* sched_admit.c */
void bt_sched_resume_swapped(struct bt_sched *s, struct bt_plan_buf *p);
enum bt_admit_scope {
    BT_ADMIT_ALL,
    BT_ADMIT_WAITING, /* no swapped one comes back now */
    BT_ADMIT_URGENT,  /* memory is short: only who may preempt a running one */
};
/* Lets the head of the queue in while it fits, the swapped before the waiting. */
void bt_sched_admit(struct bt_sched *s, struct bt_plan_buf *p, enum bt_admit_scope scope,
                    int64_t now_ns);
int64_t bt_sched_window_wake_ns(const struct bt_sched *s, int64_t now_ns);
int32_t bt_sched_prefix_peek(const struct bt_sched *s, const struct bt_req *r, int32_t max_hits,
                             int32_t *n_cached);
void bt_sched_publish(struct bt_sched *s, int32_t slot, int32_t from_tokens, int32_t to_tokens);
void bt_sched_publish_own(struct bt_sched *s, int32_t slot);

/* sched_preempt.c */
int32_t bt_sched_slot_take(struct bt_sched *s, uint32_t req);
void bt_sched_slot_give_back(struct bt_sched *s,
                             int32_t slot); /* blocks and row; the request stays */
void bt_sched_run_insert(struct bt_sched *s, int32_t slot);
void bt_sched_run_leave(struct bt_sched *s, int32_t slot);
void bt_sched_run_compact(struct bt_sched *s);
void bt_sched_mark_pending(struct bt_sched *s, int32_t slot);
void bt_sched_preempt(struct bt_sched *s, struct bt_plan_buf *p, int32_t slot, int64_t now_ns);
bool bt_sched_grow(struct bt_sched *s, struct bt_plan_buf *p, int32_t slot, int32_t n_tokens,
                   int64_t now_ns);
/* Blocks that a running sequence must leave to a more urgent head that waits for them. */
int32_t bt_sched_reserved_blocks(const struct bt_sched *s, int32_t slot);
int32_t bt_sched_exclusive_blocks(const struct bt_sched *s, int32_t slot);
void bt_sched_add_blocks(struct bt_sched *s, struct bt_seq *q, int32_t n);
void bt_sched_drop_block(struct bt_sched *s, int32_t block, int32_t n_tokens, uint8_t kv_class);
void bt_sched_add_copy(struct bt_sched *s, struct bt_plan_buf *p, enum bt_copy_kind kind,
                       int32_t slot, int32_t n_blocks, const int32_t *src, const int32_t *dst);

/* sched_complete.c */
void bt_sched_drain(struct bt_sched *s,
                    int32_t slot); /* leaves when no step and no copy holds it */

#ifdef __cplusplus
}
#endif

#endif
