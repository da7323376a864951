#include "engine/serve.h"

#include "engine/core/rng.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

struct serve {
    const struct bt_serve_opts *o;
    struct bt_arena arena;
    struct bt_sched *sched;
    struct bt_step_result result;
    struct bt_req_handle *handles; /* [n requests] */
    uint64_t **hashes;             /* [n requests]: owned, malloc, until the request ends */
    int32_t *told;                 /* [n requests]: tokens given to on_tokens */
    bool *ended;                   /* [n requests] */
    const struct bt_step_plan *plans[BT_MAX_INFLIGHT];
    int32_t n_flight; /* plans in flight, oldest first */
    int64_t zero_ns;  /* the clock's time at the start */
    int64_t last_ns;  /* time never goes back */
    int64_t n_submitted, n_ended;
    struct bt_serve_result *out;
};

/* ---- clock ---- */

static int64_t clock_ns(struct serve *s)
{
    int64_t now = bt_clock_ns(s->o->clock) - s->zero_ns;
    s->last_ns = now > s->last_ns ? now : s->last_ns;
    return s->last_ns;
}

static void sleep_until(struct serve *s, int64_t t_ns)
{
    if (s->o->clock == BT_CLOCK_WORK) {
        s->zero_ns -= t_ns - s->last_ns; /* the time of waiting has passed */
        return;
    }
    int64_t at = s->zero_ns + t_ns;
    struct timespec t = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

/* ---- prefix hashes ---- */

void bt_serve_prefix_hashes(const int32_t *prompt, int32_t n_prompt, int32_t hash_tokens,
                            uint64_t *hashes)
{
    BT_ASSERT(hash_tokens > 0);
    uint64_t h = 0;
    for (int32_t i = 0; i < n_prompt / hash_tokens; i++) {
        for (int32_t j = 0; j < hash_tokens; j++) {
            h = bt_hash_combine(h, (uint64_t)(uint32_t)prompt[i * hash_tokens + j]);
        }
        hashes[i] = h;
    }
}

int32_t bt_serve_hash_tokens(const struct bt_sched_opts *sched)
{
    int32_t a = sched->block_tokens;
    int32_t b = sched->long_above_tokens > 0 ? sched->block_tokens_16bit : 0;
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* ---- callbacks of the scheduler ---- */

static void on_tokens(void *ctx, uint64_t user, int32_t n, int64_t now_ns)
{
    struct serve *s = ctx;
    int32_t first = s->told[user];
    s->told[user] += n;
    if (s->o->on_tokens != NULL) {
        s->o->on_tokens(s->o->ctx, (int64_t)user, first, n, now_ns);
    }
}

static void on_end(void *ctx, const struct bt_req_record *record)
{
    struct serve *s = ctx;
    struct bt_gen_request *r = &s->o->requests->requests[record->user];
    BT_ASSERT(!s->ended[record->user]);
    /* What a step computed past the end was not delivered. */
    BT_ASSERT(record->n_output <= r->n_out);
    r->n_out = record->n_output;
    s->ended[record->user] = true;
    s->n_ended++;
    s->out->n_by_outcome[record->outcome]++;
    free(s->hashes[record->user]);
    s->hashes[record->user] = NULL;
    if (s->o->on_end != NULL) {
        s->o->on_end(s->o->ctx, (int64_t)record->user, record);
    }
}

/* ---- the loop ---- */

static int64_t arrival_of(const struct serve *s, int64_t i)
{
    return s->o->fast || s->o->arrivals == NULL ? 0 : s->o->arrivals[i].arrival_ns;
}

static enum bt_code submit_one(struct serve *s, int64_t i, int64_t now_ns, struct bt_error *err)
{
    struct bt_gen_request *r = &s->o->requests->requests[i];
    const struct bt_arrival *a = s->o->arrivals == NULL ? NULL : &s->o->arrivals[i];
    struct bt_req_spec spec = {
        .user = (uint64_t)i,
        .arrival_ns = arrival_of(s, i),
        .timeout_ns = a == NULL ? 0 : a->timeout_ns,
        .priority = a == NULL ? 0 : a->priority,
        .n_prompt = r->n_prompt,
        .max_new_tokens = r->max_new_tokens,
    };
    r->n_out = 0;
    r->spec = (struct bt_spec_counts){0};
    if (s->o->sched.prefix_cache) {
        spec.hash_tokens = bt_serve_hash_tokens(&s->o->sched);
        spec.n_hashes = r->n_prompt / spec.hash_tokens;
        s->hashes[i] = malloc(((size_t)spec.n_hashes + 1) * sizeof **s->hashes);
        if (s->hashes[i] == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, i, "request %lld: no memory", (long long)i);
        }
        bt_serve_prefix_hashes(r->prompt, r->n_prompt, spec.hash_tokens, s->hashes[i]);
        spec.hashes = s->hashes[i];
    }
    if (s->o->recording != NULL) {
        BT_TRY(bt_recording_submit(s->o->recording, &spec, now_ns, err));
    }
    (void)bt_sched_submit(s->sched, &spec, now_ns, &s->handles[i]);
    return BT_OK;
}

static enum bt_code submit_arrived(struct serve *s, int64_t now_ns, struct bt_error *err)
{
    while (s->n_submitted < s->o->requests->n && arrival_of(s, s->n_submitted) <= now_ns) {
        BT_TRY(submit_one(s, s->n_submitted++, now_ns, err));
    }
    return BT_OK;
}

static enum bt_code cancel_all(struct serve *s, int64_t now_ns, struct bt_error *err)
{
    for (int64_t i = 0; i < s->n_submitted; i++) {
        if (s->ended[i]) {
            continue;
        }
        if (s->o->recording != NULL) {
            BT_TRY(bt_recording_cancel(s->o->recording, (uint64_t)i, now_ns, err));
        }
        (void)bt_sched_cancel(s->sched, s->handles[i], now_ns);
    }
    s->n_ended += s->o->requests->n - s->n_submitted;
    s->n_submitted = s->o->requests->n;
    return BT_OK;
}

/* What a step in flight computed for a request that has ended meanwhile is no part of its answer.
 */
static void drop_late_tokens(struct serve *s)
{
    const struct bt_step_plan *plan = s->plans[0];
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        uint64_t user = plan->seqs[i].user;
        if (s->ended[user]) {
            s->o->requests->requests[user].n_out = s->told[user];
        }
    }
}

/* The oldest step has come back. */
static enum bt_code complete_one(struct serve *s, struct bt_error *err)
{
    drop_late_tokens(s);
    int32_t n_seqs = s->plans[0]->n_seqs;
    int64_t done_ns = s->result.done_ns > s->last_ns ? s->result.done_ns : s->last_ns;
    s->result.done_ns = done_ns;
    s->last_ns = done_ns;
    if (s->o->recording != NULL) {
        BT_TRY(bt_recording_complete(s->o->recording, n_seqs, &s->result, done_ns, err));
    }
    bt_sched_complete(s->sched, &s->result, done_ns);
    s->n_flight--;
    for (int32_t i = 0; i < s->n_flight; i++) {
        s->plans[i] = s->plans[i + 1];
    }
    s->out->n_steps++;
    if (s->o->on_step != NULL) {
        struct bt_sched_state state;
        bt_sched_get_state(s->sched, &state);
        int64_t now_ns = clock_ns(s);
        if (!s->o->on_step(s->o->ctx, &state, s->n_ended, now_ns)) {
            return cancel_all(s, now_ns, err);
        }
    }
    return BT_OK;
}

/* An executor that fails has filled err, unless there is none to fill. */
static enum bt_code failure(const struct bt_error *err)
{
    return err != NULL && err->code != BT_OK ? err->code : BT_ERR_INTERNAL;
}

static enum bt_code start_step(struct serve *s, const struct bt_step_plan *plan, int64_t now_ns,
                               struct bt_error *err)
{
    const struct bt_executor *x = s->o->executor;
    s->plans[s->n_flight++] = plan;
    switch (x->ops->submit(x->self, plan, now_ns, &s->result, err)) {
    case BT_SUBMIT_DONE:
        BT_ASSERT(s->n_flight == 1);
        return complete_one(s, err);
    case BT_SUBMIT_QUEUED:
        return BT_OK;
    case BT_SUBMIT_FAILED:
        return failure(err);
    case BT_SUBMIT_BUSY: /* the scheduler keeps to the executor's inflight_max */
        break;
    }
    BT_ASSERT(false);
    return BT_ERR_INTERNAL;
}

static enum bt_code wait_step(struct serve *s, struct bt_error *err)
{
    const struct bt_executor *x = s->o->executor;
    BT_TRY(x->ops->wait(x->self, &s->result, err));
    return complete_one(s, err);
}

static enum bt_code turn(struct serve *s, struct bt_error *err)
{
    int64_t now_ns = clock_ns(s);
    BT_TRY(submit_arrived(s, now_ns, err));
    const struct bt_step_plan *plan;
    int64_t wake_ns;
    bool ready = bt_sched_plan(s->sched, now_ns, &plan, &wake_ns) == BT_PLAN_READY;
    if (s->o->recording != NULL) {
        BT_TRY(bt_recording_plan(s->o->recording, ready ? plan : NULL, now_ns, err));
    }
    if (ready) {
        return start_step(s, plan, now_ns, err);
    }
    if (s->n_flight > 0) {
        return wait_step(s, err);
    }
    if (s->n_ended == s->o->requests->n) {
        return BT_OK;
    }
    if (s->n_submitted < s->o->requests->n && arrival_of(s, s->n_submitted) < wake_ns) {
        wake_ns = arrival_of(s, s->n_submitted);
    }
    BT_ASSERT(wake_ns < INT64_MAX); /* else nothing would ever happen again */
    if (wake_ns > now_ns) {
        sleep_until(s, wake_ns);
    }
    return BT_OK;
}

static enum bt_code check_opts(const struct bt_serve_opts *o, struct bt_error *err)
{
    if (o->sched.inflight_max > o->executor->ops->inflight_max) {
        BT_FAIL(err, BT_ERR_ARG, o->sched.inflight_max,
                "inflight: %d steps, but the %s executor takes %d", o->sched.inflight_max,
                o->executor->ops->name, o->executor->ops->inflight_max);
    }
    if (o->sched.over_length == BT_OVER_ALLOW) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "over-length: \"allow\" needs a simulation; a model has no "
                "positions beyond its context (reject, truncate)");
    }
    for (int64_t i = 1; i < o->requests->n && o->arrivals != NULL; i++) {
        if (o->arrivals[i].arrival_ns < o->arrivals[i - 1].arrival_ns) {
            BT_FAIL(err, BT_ERR_ARG, i, "request %lld arrives before the one before it",
                    (long long)i);
        }
    }
    for (int64_t i = 0; i < o->requests->n; i++) {
        const struct bt_gen_request *r = &o->requests->requests[i];
        if (r->n_prompt < 1 || r->max_new_tokens < 1) {
            BT_FAIL(err, BT_ERR_ARG, i,
                    "request %lld: %d tokens of prompt and %d of answer must "
                    "be 1 or more",
                    (long long)i, r->n_prompt, r->max_new_tokens);
        }
    }
    return BT_OK;
}

static enum bt_code serve_init(struct serve *s, struct bt_error *err)
{
    const struct bt_serve_opts *o = s->o;
    BT_TRY(check_opts(o, err));
    struct bt_sched_opts so = o->sched;
    so.on_end = on_end;
    so.on_tokens = on_tokens;
    so.ctx = s;
    so.replica = 0;
    BT_TRY(bt_sched_create(&s->arena, &so, &s->sched, err));
    if (o->recording != NULL) {
        bt_recording_init(o->recording, o->executor->ops->name, &so);
    }
    BT_ARENA_ARRAY(&s->arena, s->result.seqs, so.max_seqs, err);
    BT_ARENA_ARRAY(&s->arena, s->result.copies_done, bt_sched_max_copies(s->sched), err);
    BT_ARENA_ARRAY(&s->arena, s->handles, o->requests->n, err);
    BT_ARENA_ARRAY(&s->arena, s->hashes, o->requests->n, err);
    BT_ARENA_ARRAY(&s->arena, s->told, o->requests->n, err);
    BT_ARENA_ARRAY(&s->arena, s->ended, o->requests->n, err);
    return BT_OK;
}

enum bt_code bt_serve_run(const struct bt_serve_opts *opts, struct bt_serve_result *result,
                          struct bt_error *err)
{
    struct serve s = {.o = opts, .out = result};
    *result = (struct bt_serve_result){0};
    bt_arena_init(&s.arena, 0);
    enum bt_code code = serve_init(&s, err);
    s.zero_ns = bt_clock_ns(opts->clock);
    while (code == BT_OK && (s.n_ended < opts->requests->n || s.n_flight > 0)) {
        code = turn(&s, err);
    }
    result->end_ns = s.last_ns;
    if (code == BT_OK) {
        result->plan_hash = bt_sched_plan_hash(s.sched);
        if (opts->recording != NULL) {
            opts->recording->end_ns = s.last_ns;
            opts->recording->plan_hash = result->plan_hash;
        }
    }
    for (int64_t i = 0; s.hashes != NULL && i < opts->requests->n; i++) {
        free(s.hashes[i]);
    }
    bt_arena_fini(&s.arena);
    return code;
}
