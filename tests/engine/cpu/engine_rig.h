/* A whole engine for tests: executor, requests with random or given prompts, the serving loop. */
#ifndef BT_TESTS_ENGINE_CPU_ENGINE_RIG_H
#define BT_TESTS_ENGINE_CPU_ENGINE_RIG_H

#include "engine/backend.h"
#include "engine/cpu/executor_cpu.h"
#include "engine/serve.h"

enum { RIG_MAX_REQUESTS = 64, RIG_MAX_LEN = 2048 };

struct rig_requests {
    struct bt_gen_request requests[RIG_MAX_REQUESTS];
    struct bt_gen_table table;
};

/* Adds a request with a copy of the prompt; fails the test when there are too many. */
struct bt_gen_request *rig_add(struct rig_requests *r, const int32_t *prompt, int32_t n_prompt,
                               int32_t max_new);
void rig_requests_fini(struct rig_requests *r);

struct rig_outcome {
    struct bt_serve_result serve;
    struct bt_summary *summary; /* owned: free */
    struct bt_executor_memory memory;
    uint64_t tokens_hash; /* of all answers */
};

/* What rig_serve makes its executors with from now on; the CPU's until then. */
void rig_use(const struct bt_backend *b);

/* Serves the requests at once; every one must finish. tune (may be NULL) changes the scheduler's
 * options, which are otherwise: continuous, chunked, 256 tokens a step, prefix cache on. */
void rig_serve(const struct bt_executor_opts *eo, struct rig_requests *r,
               void (*tune)(struct bt_sched_opts *), struct bt_recording *recording,
               struct rig_outcome *out);

/* A way of serving, in which answers must be those of any other way. */
struct rig_way {
    const char *name;
    struct bt_executor_opts eo; /* but for the model */
    void (*tune)(struct bt_sched_opts *);
    bool preempts; /* must: the pool is small */
};

/* Serves in that way; that what it is to preempt is preempted, is checked. */
void rig_serve_in(const struct rig_way *w, const struct bt_model *m, struct rig_requests *r);

/* For rig_way.tune. */
void rig_small_chunks(struct bt_sched_opts *o); /* 16 tokens a step */
void rig_whole_prompts(struct bt_sched_opts *o);
void rig_no_prefix_cache(struct bt_sched_opts *o);
void rig_by_swap(struct bt_sched_opts *o);

/* Copies the answers, so that another run can be compared with them. */
int32_t *rig_answers(const struct rig_requests *r);

/* The first request whose answer differs from the copy, or -1. */
int32_t rig_differs(const struct rig_requests *r, const int32_t *answers);

#endif
