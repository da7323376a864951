#include "tests/engine/cpu/engine_rig.h"

#include "engine/core/rng.h"
#include "engine/cpu/backend.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

struct bt_gen_request *rig_add(struct rig_requests *r, const int32_t *prompt, int32_t n_prompt,
                               int32_t max_new)
{
    cr_assert_lt(r->table.n, RIG_MAX_REQUESTS);
    int32_t *copy = calloc((size_t)n_prompt, sizeof *copy);
    memcpy(copy, prompt, (size_t)n_prompt * sizeof *copy);
    r->table.requests = r->requests;
    struct bt_gen_request *q = &r->requests[r->table.n++];
    *q = (struct bt_gen_request){
        .prompt = copy,
        .n_prompt = n_prompt,
        .max_new_tokens = max_new,
        .ignore_eos = true,
        .out = calloc((size_t)max_new, sizeof(int32_t)),
    };
    return q;
}

void rig_requests_fini(struct rig_requests *r)
{
    for (int64_t i = 0; i < r->table.n; i++) {
        free((void *)(uintptr_t)r->requests[i].prompt);
        free(r->requests[i].out);
    }
    memset(r, 0, sizeof *r);
}

static const struct bt_backend *backend = &bt_cpu_backend;

void rig_use(const struct bt_backend *b)
{
    backend = b;
}

void rig_serve(const struct bt_executor_opts *eo, struct rig_requests *r,
               void (*tune)(struct bt_sched_opts *), struct bt_recording *recording,
               struct rig_outcome *out)
{
    struct bt_error err = {0};
    struct bt_executor_opts o = *eo;
    o.requests = &r->table;
    o.n_threads = o.n_threads == 0 ? 1 : o.n_threads;
    struct bt_executor x;
    cr_assert_eq(backend->create(&o, &x, &err), BT_OK, "%s", err.msg);
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct bt_metrics_opts mo = {.n_replicas = 1, .exact_max = 1024, .itl_exact_max = 1 << 16};
    struct bt_metrics *metrics;
    cr_assert_eq(bt_metrics_create(&arena, &mo, &metrics, &err), BT_OK, "%s", err.msg);
    struct bt_serve_opts so = {
        .executor = &x,
        .sched = {.max_batched_tokens = 256,
                  .chunked_prefill = true,
                  .prefix_cache = true,
                  .max_requests = RIG_MAX_REQUESTS,
                  .metrics = metrics},
        .requests = &r->table,
        .fast = true,
        .recording = recording,
    };
    backend->fit_sched(&x, &so.sched);
    if (tune != NULL) {
        tune(&so.sched);
    }
    cr_assert_eq(bt_serve_run(&so, &out->serve, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(out->serve.n_by_outcome[BT_OUTCOME_FINISHED], r->table.n);
    out->summary = calloc(1, sizeof *out->summary);
    bt_metrics_finish(metrics, out->serve.end_ns, 0, 0, out->summary);
    backend->memory(&x, &out->memory);
    out->tokens_hash = 0;
    for (int64_t i = 0; i < r->table.n; i++) {
        const struct bt_gen_request *q = &r->requests[i];
        out->tokens_hash =
            bt_hash_bytes(q->out, (size_t)q->n_out * sizeof *q->out, out->tokens_hash);
    }
    bt_arena_fini(&arena);
    x.ops->destroy(x.self);
}

void rig_small_chunks(struct bt_sched_opts *o)
{
    o->max_batched_tokens = 16;
}

void rig_whole_prompts(struct bt_sched_opts *o)
{
    o->chunked_prefill = false;
}

void rig_no_prefix_cache(struct bt_sched_opts *o)
{
    o->prefix_cache = false;
}

void rig_by_swap(struct bt_sched_opts *o)
{
    o->preempt = BT_PREEMPT_SWAP;
}

void rig_serve_in(const struct rig_way *w, const struct bt_model *m, struct rig_requests *r)
{
    struct bt_executor_opts eo = w->eo;
    struct rig_outcome out;
    eo.model = m;
    rig_serve(&eo, r, w->tune, NULL, &out);
    int64_t n = out.summary->preempt_recompute + out.summary->preempt_swap;
    cr_expect(!w->preempts || n > 0, "%s: nothing was preempted", w->name);
    cr_expect(w->tune != rig_by_swap || out.summary->preempt_swap > 0, "%s: nothing was swapped",
              w->name);
    free(out.summary);
}

int32_t *rig_answers(const struct rig_requests *r)
{
    int32_t *copy = calloc((size_t)RIG_MAX_REQUESTS * RIG_MAX_LEN, sizeof *copy);
    for (int64_t i = 0; i < r->table.n; i++) {
        const struct bt_gen_request *q = &r->requests[i];
        memcpy(copy + i * RIG_MAX_LEN, q->out, (size_t)q->n_out * sizeof *copy);
    }
    return copy;
}

int32_t rig_differs(const struct rig_requests *r, const int32_t *answers)
{
    for (int64_t i = 0; i < r->table.n; i++) {
        const struct bt_gen_request *q = &r->requests[i];
        size_t bytes = (size_t)q->n_out * sizeof *q->out;
        if (memcmp(answers + i * RIG_MAX_LEN, q->out, bytes) != 0) {
            return (int32_t)i;
        }
    }
    return -1;
}
