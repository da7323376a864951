/* A test bench for the scheduler: an executor whose times, ends and acceptances a test scripts or
 * draws at random, and that keeps the content of every KV slot, device, draft and host. A token of
 * a request has an identity; each step checks that every slot below ctx holds the right one. So a
 * block freed too early, shared wrongly, written twice or swapped to the wrong place is seen. */
#ifndef BT_TESTS_CORE_SCHED_RIG_H
#define BT_TESTS_CORE_SCHED_RIG_H

#include "engine/core/rng.h"
#include "engine/core/sched.h"

#include <stdio.h>

enum { RIG_MAX_USERS = 96, RIG_MAX_COPIES = 16, RIG_MAX_COPY_BLOCKS = 192 };

/* Times unless drawn at random. */
static const int64_t RIG_STEP_NS = 1000000;
static const int64_t RIG_COPY_NS = 2500000;

/* What the test knows of a request; `user` in the scheduler is its index. */
struct rig_user {
    struct bt_req_spec spec;
    int32_t true_output; /* the executor ends it there; > max_new_tokens: never by itself */
    int64_t submit_ns;
    int64_t cancel_ns;               /* 0: never */
    int64_t submit_step, first_step; /* steps completed at its submit, at its first token */
    struct bt_req_handle handle;
    bool submitted;
    bool rejected;
    int32_t n_ends; /* records delivered: exactly one */
    struct bt_req_record record;
    int32_t n_tokens; /* by on_tokens */
    uint64_t hashes[64];
};

struct rig_copy {
    struct bt_plan_copy copy; /* src and dst point into the plan or the tables */
    int32_t src[RIG_MAX_COPY_BLOCKS], dst[RIG_MAX_COPY_BLOCKS];
    int64_t done_ns;
    bool live;
};

struct rig {
    struct bt_arena arena;
    struct bt_sched_opts opts;
    struct bt_sched *sched;
    struct bt_metrics *metrics;
    int64_t now_ns;
    int64_t device_free_ns;
    struct bt_rng rng;
    bool random;            /* draw times */
    int32_t accept_percent; /* of draft tokens, one by one */

    struct rig_user users[RIG_MAX_USERS];
    int32_t n_users, n_submitted;

    /* Steps in flight, oldest first. */
    const struct bt_step_plan *plans[BT_MAX_INFLIGHT];
    int64_t done_ns[BT_MAX_INFLIGHT];
    struct bt_result_seq *results[BT_MAX_INFLIGHT];
    int32_t n_flight;
    int64_t n_steps, n_completed;
    struct rig_copy copies[RIG_MAX_COPIES];

    /* Content of [block][slot]: token identities. */
    uint64_t *device, *draft, *host, *host_draft;
    int64_t *written_step; /* [block][slot]: the last step that wrote it */
    int32_t slot_stride;   /* slots a block */
    FILE *trace;           /* plans as text; NULL: none */
    uint64_t seed;
    bool check; /* bt_sched_check after each call */
};

/* Creates the scheduler with metrics and callbacks of the rig; fails the test on an error. */
void rig_init(struct rig *rig, const struct bt_sched_opts *opts, uint64_t seed);
void rig_fini(struct rig *rig);

/* Adds a user; n_shared prompt tokens come from the prefix named by shared_id. */
int32_t rig_add(struct rig *rig, int64_t submit_ns, int32_t n_prompt, int32_t max_new,
                int32_t true_output);
void rig_share(struct rig *rig, int32_t user, uint64_t shared_id, int32_t n_shared,
               int32_t hash_tokens);
void rig_submit(struct rig *rig, int32_t user);

/* Plans once; runs the plan; returns the status. *plan stays valid until rig_complete. */
enum bt_plan_status rig_plan(struct rig *rig, const struct bt_step_plan **plan, int64_t *wake_ns);

/* Completes the oldest step in flight at its time. */
void rig_complete(struct rig *rig);

/* One turn at a time until everybody has ended: submits what is due, plans as far as allowed, then
 * goes to the next moment. False when more than max_turns would be needed. */
bool rig_run(struct rig *rig, int64_t max_turns);

/* Asserts that each submitted user ended once, with the tokens it should have. */
void rig_check_ends(const struct rig *rig);

#endif
