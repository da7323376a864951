#include "engine/record.h"

#include <stdlib.h>
#include <string.h>

void bt_recording_init(struct bt_recording *r, const char *executor,
                       const struct bt_sched_opts *sched)
{
    *r = (struct bt_recording){.sched = *sched};
    r->sched.metrics = NULL;
    r->sched.on_end = NULL;
    r->sched.on_tokens = NULL;
    r->sched.ctx = NULL;
    size_t n = strnlen(executor, sizeof r->executor - 1);
    memcpy(r->executor, executor, n);
}

void bt_recording_fini(struct bt_recording *r)
{
    free(r->events);
    free(r->submits);
    free(r->completes);
    free(r->seqs);
    free(r->copies);
    free(r->hashes);
    *r = (struct bt_recording){0};
}

/* Room for `more` items behind n; the array may move. */
static enum bt_code reserve(void *array_at, int64_t *cap, int64_t n, int64_t more, size_t size,
                            struct bt_error *err)
{
    if (n + more <= *cap) {
        return BT_OK;
    }
    int64_t want = 2 * *cap > n + more ? 2 * *cap : n + more;
    want = want < 64 ? 64 : want;
    void *old;
    memcpy(&old, array_at, sizeof old);
    void *grown = realloc(old, (size_t)want * size);
    if (grown == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, want, "recording: no memory for %lld items", (long long)want);
    }
    memcpy(array_at, &grown, sizeof grown);
    *cap = want;
    return BT_OK;
}

static enum bt_code add_event(struct bt_recording *r, enum bt_rec_kind kind, int64_t now_ns,
                              int64_t i, struct bt_error *err)
{
    BT_TRY(reserve(&r->events, &r->cap_events, r->n_events, 1, sizeof *r->events, err));
    r->events[r->n_events++] = (struct bt_rec_event){.kind = kind, .now_ns = now_ns, .i = i};
    return BT_OK;
}

enum bt_code bt_recording_submit(struct bt_recording *r, const struct bt_req_spec *spec,
                                 int64_t now_ns, struct bt_error *err)
{
    int64_t n = spec->hashes == NULL ? 0 : spec->n_hashes;
    BT_TRY(reserve(&r->submits, &r->cap_submits, r->n_submits, 1, sizeof *r->submits, err));
    BT_TRY(reserve(&r->hashes, &r->cap_hashes, r->n_hashes, n, sizeof *r->hashes, err));
    struct bt_rec_submit *s = &r->submits[r->n_submits];
    *s = (struct bt_rec_submit){.spec = *spec, .first_hash = r->n_hashes};
    s->spec.hashes = NULL;
    s->spec.n_hashes = (int32_t)n;
    if (n > 0) {
        memcpy(r->hashes + r->n_hashes, spec->hashes, (size_t)n * sizeof *r->hashes);
    }
    r->n_hashes += n;
    return add_event(r, BT_REC_SUBMIT, now_ns, r->n_submits++, err);
}

enum bt_code bt_recording_cancel(struct bt_recording *r, uint64_t user, int64_t now_ns,
                                 struct bt_error *err)
{
    return add_event(r, BT_REC_CANCEL, now_ns, (int64_t)user, err);
}

enum bt_code bt_recording_plan(struct bt_recording *r, const struct bt_step_plan *plan,
                               int64_t now_ns, struct bt_error *err)
{
    return add_event(r, BT_REC_PLAN, now_ns, plan == NULL ? -1 : plan->step_id, err);
}

enum bt_code bt_recording_complete(struct bt_recording *r, int32_t n_seqs,
                                   const struct bt_step_result *result, int64_t now_ns,
                                   struct bt_error *err)
{
    int64_t n_copies = result->n_copies_done;
    BT_TRY(reserve(&r->completes, &r->cap_completes, r->n_completes, 1, sizeof *r->completes, err));
    BT_TRY(reserve(&r->seqs, &r->cap_seqs, r->n_seqs, n_seqs, sizeof *r->seqs, err));
    BT_TRY(reserve(&r->copies, &r->cap_copies, r->n_copies, n_copies, sizeof *r->copies, err));
    struct bt_rec_complete *c = &r->completes[r->n_completes];
    *c = (struct bt_rec_complete){
        .result = *result,
        .n_seqs = n_seqs,
        .first_seq = r->n_seqs,
        .first_copy = r->n_copies,
    };
    c->result.seqs = NULL;
    c->result.copies_done = NULL;
    if (n_seqs > 0) {
        memcpy(r->seqs + r->n_seqs, result->seqs, (size_t)n_seqs * sizeof *r->seqs);
    }
    if (n_copies > 0) {
        memcpy(r->copies + r->n_copies, result->copies_done, (size_t)n_copies * sizeof *r->copies);
    }
    r->n_seqs += n_seqs;
    r->n_copies += n_copies;
    return add_event(r, BT_REC_COMPLETE, now_ns, r->n_completes++, err);
}

/* ---- the replay executor ---- */

struct replay_executor {
    const struct bt_recording *recording; /* borrowed */
    int64_t n_submitted, n_waited;
};

static enum bt_submit replay_submit(void *self, const struct bt_step_plan *plan, int64_t now_ns,
                                    struct bt_step_result *result, struct bt_error *err)
{
    struct replay_executor *e = self;
    const struct bt_recording *r = e->recording;
    (void)now_ns;
    (void)result;
    if (e->n_submitted == r->n_completes) {
        (void)bt_error_set(err, BT_ERR_INPUT, plan->step_id, __FILE__, __LINE__,
                           "recording: step %lld was not recorded", (long long)plan->step_id);
        return BT_SUBMIT_FAILED;
    }
    const struct bt_rec_complete *c = &r->completes[e->n_submitted];
    if (c->n_seqs != plan->n_seqs || c->result.step_id != plan->step_id) {
        (void)bt_error_set(err, BT_ERR_INPUT, plan->step_id, __FILE__, __LINE__,
                           "recording: step %lld has %d sequences, recorded were %d in step %lld",
                           (long long)plan->step_id, plan->n_seqs, c->n_seqs,
                           (long long)c->result.step_id);
        return BT_SUBMIT_FAILED;
    }
    e->n_submitted++;
    return BT_SUBMIT_QUEUED;
}

static enum bt_code replay_wait(void *self, struct bt_step_result *result, struct bt_error *err)
{
    struct replay_executor *e = self;
    const struct bt_recording *r = e->recording;
    if (e->n_waited == e->n_submitted) {
        BT_FAIL(err, BT_ERR_INTERNAL, 0, "recording: no step is in flight");
    }
    const struct bt_rec_complete *c = &r->completes[e->n_waited++];
    struct bt_result_seq *seqs = result->seqs;
    uint32_t *copies = result->copies_done;
    *result = c->result;
    result->seqs = seqs;
    result->copies_done = copies;
    if (c->n_seqs > 0) {
        memcpy(seqs, r->seqs + c->first_seq, (size_t)c->n_seqs * sizeof *seqs);
    }
    if (c->result.n_copies_done > 0) {
        memcpy(copies, r->copies + c->first_copy, (size_t)c->result.n_copies_done * sizeof *copies);
    }
    return BT_OK;
}

static void replay_destroy(void *self)
{
    free(self);
}

static const struct bt_executor_ops replay_ops = {
    .name = "replay",
    .abi_version = BT_EXECUTOR_ABI_VERSION,
    .inflight_max = BT_MAX_INFLIGHT,
    .submit = replay_submit,
    .wait = replay_wait,
    .destroy = replay_destroy,
};

enum bt_code bt_replay_executor_create(const struct bt_recording *r, struct bt_executor *out,
                                       struct bt_error *err)
{
    struct replay_executor *e = calloc(1, sizeof *e);
    if (e == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "replay: no memory");
    }
    e->recording = r;
    *out = (struct bt_executor){.ops = &replay_ops, .self = e};
    return BT_OK;
}

/* ---- replay ---- */

struct replay {
    const struct bt_recording *r;
    const struct bt_executor *executor;
    struct bt_arena arena;
    struct bt_sched *sched;
    struct bt_req_handle *handles; /* [n_submits], by row */
    struct bt_step_result result;
};

static enum bt_code replay_create(struct replay *p, const struct bt_replay_opts *opts,
                                  struct bt_error *err)
{
    struct bt_sched_opts so = p->r->sched;
    if (opts != NULL) {
        so.metrics = opts->metrics;
        so.on_end = opts->on_end;
        so.ctx = opts->ctx;
    }
    BT_TRY(bt_sched_create(&p->arena, &so, &p->sched, err));
    BT_ARENA_ARRAY(&p->arena, p->handles, p->r->n_submits, err);
    BT_ARENA_ARRAY(&p->arena, p->result.seqs, so.max_seqs, err);
    BT_ARENA_ARRAY(&p->arena, p->result.copies_done, bt_sched_max_copies(p->sched), err);
    return BT_OK;
}

static void replay_one_submit(struct replay *p, int64_t row, int64_t now_ns)
{
    const struct bt_rec_submit *s = &p->r->submits[row];
    struct bt_req_spec spec = s->spec;
    spec.hashes = spec.n_hashes > 0 ? p->r->hashes + s->first_hash : NULL;
    (void)bt_sched_submit(p->sched, &spec, now_ns, &p->handles[row]);
}

static void replay_one_cancel(struct replay *p, int64_t user, int64_t now_ns)
{
    for (int64_t i = 0; i < p->r->n_submits; i++) {
        if (p->r->submits[i].spec.user == (uint64_t)user) {
            (void)bt_sched_cancel(p->sched, p->handles[i], now_ns);
        }
    }
}

static enum bt_code replay_one_plan(struct replay *p, int64_t event, int64_t step, int64_t now_ns,
                                    struct bt_error *err)
{
    const struct bt_step_plan *plan;
    int64_t wake_ns;
    bool ready = bt_sched_plan(p->sched, now_ns, &plan, &wake_ns) == BT_PLAN_READY;
    int64_t got = ready ? plan->step_id : -1;
    if (got != step) {
        BT_FAIL(err, BT_ERR_INPUT, event, "recording: event %lld planned step %lld, replayed %lld",
                (long long)event, (long long)step, (long long)got);
    }
    if (!ready) {
        return BT_OK;
    }
    const struct bt_executor *x = p->executor;
    enum bt_submit s = x->ops->submit(x->self, plan, now_ns, &p->result, err);
    if (s == BT_SUBMIT_FAILED) {
        return err == NULL || err->code == BT_OK ? BT_ERR_INTERNAL : err->code;
    }
    BT_ASSERT(s == BT_SUBMIT_QUEUED);
    return BT_OK;
}

static enum bt_code replay_event(struct replay *p, int64_t i, struct bt_error *err)
{
    const struct bt_rec_event *e = &p->r->events[i];
    switch (e->kind) {
    case BT_REC_SUBMIT:
        replay_one_submit(p, e->i, e->now_ns);
        return BT_OK;
    case BT_REC_CANCEL:
        replay_one_cancel(p, e->i, e->now_ns);
        return BT_OK;
    case BT_REC_PLAN:
        return replay_one_plan(p, i, e->i, e->now_ns, err);
    case BT_REC_COMPLETE:
        BT_TRY(p->executor->ops->wait(p->executor->self, &p->result, err));
        bt_sched_complete(p->sched, &p->result, e->now_ns);
        return BT_OK;
    }
    BT_ASSERT(false);
    return BT_ERR_INTERNAL;
}

enum bt_code bt_recording_replay(const struct bt_recording *r, const struct bt_executor *executor,
                                 const struct bt_replay_opts *opts, uint64_t *plan_hash,
                                 struct bt_error *err)
{
    struct replay p = {.r = r, .executor = executor};
    bt_arena_init(&p.arena, 0);
    enum bt_code code = replay_create(&p, opts, err);
    for (int64_t i = 0; i < r->n_events && code == BT_OK; i++) {
        code = replay_event(&p, i, err);
    }
    if (code == BT_OK) {
        *plan_hash = bt_sched_plan_hash(p.sched);
    }
    bt_arena_fini(&p.arena);
    return code;
}
