#include "sim/run.h"

#include "engine/core/arena.h"
#include "engine/core/rng.h"
#include "sim/des.h"
#include "sim/executor_sim.h"
#include "sim/live.h"
#include "sim/router.h"

#include <string.h>

/* Events, in order of priority at one moment: what has ended is known before what begins. */
enum event_kind {
    EVENT_STEP,    /* handle: replica; its oldest step's result is due */
    EVENT_ARRIVAL, /* handle: place of the request */
    EVENT_WAKE,    /* handle: replica */
    EVENT_SAMPLE,
};

enum {
    EVENTS_AT_ONCE_MAX = 1 << 22, /* closed loops have an event a user */
    ALIVE_MAX = 1 << 24,
    PROGRESS_EVERY = 4096, /* events between two calls of on_progress */
};

struct run;

struct replica {
    struct run *run;
    int32_t index;
    const struct bt_deploy *deploy; /* borrowed */
    struct bt_sched *sched;         /* of the run's arena */
    struct bt_executor executor;
    struct bt_step_result *results; /* [inflight_max], a ring in order of plans */
    int32_t inflight_max;
    int32_t first, n_inflight;
    int64_t wake_ns;            /* of the event that waits; INT64_MAX: none */
    int32_t spec_asked_running; /* running count when the speculation hook was asked last */
    bool dirty;                 /* something has changed: plan again */
};

/* Replicas of one deployment. */
struct group {
    int32_t first, n; /* of run.replicas */
    struct bt_router router;
};

struct run {
    struct bt_step_mix *mix; /* of the result */
    const struct bt_sim_opts *opts;
    struct bt_arena own_arena;
    struct bt_arena *arena; /* own_arena or borrowed */
    struct bt_metrics *metrics;
    struct bt_des des;
    struct bt_live live;
    struct replica *replicas; /* of the arena */
    int32_t n_replicas;
    struct group main, degraded;
    struct bt_sched_state *states; /* [n_replicas] */
    int32_t *cached;               /* [n_replicas] */
    int32_t *dirty;                /* [n_replicas]: those to plan, in order of becoming so */
    int32_t n_dirty;
    bool source_done;
    int64_t n_total;       /* requests of the source; -1: not counted */
    int64_t n_read;        /* from the source */
    int64_t n_warmup_read; /* closed loop: the warm-up ends when so many have been read; -1: no */
    int64_t n_ended, n_degraded;
    int64_t next_stop; /* ended requests at which should_stop is asked next */
    int64_t n_steps;
    int64_t end_ns;
    bool stopped;
    enum bt_code failure;  /* of a callback that cannot return one .. */
    struct bt_error error; /* .. and why */
};

static void mark_dirty(struct run *run, struct replica *r)
{
    if (!r->dirty) {
        r->dirty = true;
        run->dirty[run->n_dirty++] = r->index;
    }
}

/* Reads the next request of the source into the pool and schedules its arrival at the scheduler: at
 * its own time, or in a closed loop when its user has thought, and once the front end is done. */
static enum bt_code read_request(struct run *run, int64_t user_free_ns, struct bt_error *err)
{
    struct bt_source *source = run->opts->source;
    struct bt_request request;
    switch (bt_source_next(source, &request, err)) {
    case BT_SOURCE_END:
        run->source_done = true;
        return BT_OK;
    case BT_SOURCE_ERROR:
        return err != NULL && err->code != BT_OK ? err->code : BT_ERR_INPUT;
    case BT_SOURCE_MORE:
        break;
    }
    if (source->closed_users > 0) {
        request.arrival_ns = user_free_ns + request.think_ns;
    }
    run->n_read++;
    int32_t place = -1;
    uint64_t key = bt_sim_truth_key(run->opts->seed, request.id);
    BT_TRY(bt_live_add(&run->live, &request, key, &place, err));
    int64_t at_ns = request.arrival_ns + run->opts->deploy->frontend_ns;
    return bt_des_schedule(&run->des, at_ns, EVENT_ARRIVAL, EVENT_ARRIVAL, (uint64_t)place, err);
}

static void fail_later(struct run *run, enum bt_code code)
{
    if (run->failure == BT_OK) {
        run->failure = code;
    }
}

/* A request has ended: tell, give its place back, and let its user think. */
static void end_request(struct run *run, const struct bt_req_record *ended)
{
    int32_t place = (int32_t)ended->user;
    const struct bt_live_request *l = &run->live.requests[place];
    run->n_ended++;
    if (run->opts->on_record != NULL) {
        struct bt_req_record record = *ended;
        record.user = (uint64_t)l->request.id;
        record.degraded = record.degraded || l->degraded;
        run->opts->on_record(run->opts->ctx, &record);
    }
    run->n_degraded += l->degraded && !ended->degraded;
    bt_live_remove(&run->live, place);
    if (run->opts->source->closed_users > 0 && !run->source_done) {
        enum bt_code code = read_request(run, ended->end_ns, &run->error);
        if (code != BT_OK) {
            fail_later(run, code);
        }
    }
}

static void on_end(void *ctx, const struct bt_req_record *record)
{
    struct replica *r = ctx;
    end_request(r->run, record);
}

/* Refused before any scheduler has seen it. */
static void refuse(struct run *run, const struct bt_req_spec *spec, int32_t replica, int64_t now_ns)
{
    struct bt_req_record record = {
        .user = spec->user,
        .arrival_ns = spec->arrival_ns,
        .scheduled_ns = -1,
        .first_token_ns = -1,
        .last_token_ns = -1,
        .end_ns = now_ns,
        .n_prompt = spec->n_prompt,
        .priority = spec->priority,
        .replica = replica,
        .outcome = BT_OUTCOME_REJECTED,
        .reject = BT_REJECT_POLICY,
    };
    bt_metrics_arrive(run->metrics, spec->arrival_ns);
    bt_metrics_end(run->metrics, &record);
    end_request(run, &record);
}

static void gather_states(struct run *run, const struct group *g)
{
    for (int32_t i = g->first; i < g->first + g->n; i++) {
        bt_sched_get_state(run->replicas[i].sched, &run->states[i]);
    }
}

/* Replica of a group by its router. */
static int32_t route(struct run *run, struct group *g, const struct bt_req_spec *spec,
                     bool has_states)
{
    if (bt_router_reads_states(&g->router) && !has_states) {
        gather_states(run, g);
    }
    const int32_t *cached = NULL;
    if (bt_router_reads_cache(&g->router)) {
        for (int32_t i = g->first; i < g->first + g->n; i++) {
            run->cached[i] = bt_sched_cached_tokens(run->replicas[i].sched, spec);
        }
        cached = run->cached + g->first;
    }
    return g->first + bt_router_pick(&g->router, run->states + g->first, cached);
}

static bool hook_failed(struct run *run)
{
    if (run->opts->hooks != NULL && run->opts->hooks->failed) {
        fail_later(run, BT_ERR_SCRIPT);
    }
    return run->failure != BT_OK;
}

/* A hook's answer that nobody can act on ends the run. */
static void hook_out_of_range(struct run *run, const char *what, int32_t value, int32_t min,
                              int32_t max)
{
    bt_error_set(&run->error, BT_ERR_SCRIPT, value, __FILE__, __LINE__, "%s: %d is not in %d..%d",
                 what, value, min, max);
    fail_later(run, BT_ERR_SCRIPT);
}

/* Whether the arrival hook lets the request in; it may have changed it. */
static bool ask_arrival(struct run *run, struct bt_req_spec *spec, int64_t now_ns)
{
    const struct bt_sim_hooks *hooks = run->opts->hooks;
    if (hooks == NULL || hooks->arrival == NULL) {
        return true;
    }
    bool accepted =
        hooks->arrival(hooks->ctx, spec, run->states + run->main.first, run->main.n, now_ns);
    if (spec->max_new_tokens < 1) {
        hook_out_of_range(run, "hooks.arrival: max_new_tokens", spec->max_new_tokens, 1, INT32_MAX);
    }
    if (spec->priority < 0 || spec->priority > BT_MAX_PRIORITY) {
        hook_out_of_range(run, "hooks.arrival: priority", spec->priority, 0, BT_MAX_PRIORITY);
    }
    return accepted;
}

static int32_t route_main(struct run *run, const struct bt_req_spec *spec, bool has_states,
                          int64_t now_ns)
{
    const struct bt_sim_hooks *hooks = run->opts->hooks;
    if (hooks != NULL && hooks->route != NULL) {
        int32_t at =
            hooks->route(hooks->ctx, spec, run->states + run->main.first, run->main.n, now_ns);
        if (at >= run->main.n) {
            hook_out_of_range(run, "hooks.route: replica", at, 0, run->main.n - 1);
            return run->main.first;
        }
        if (at >= 0) {
            return run->main.first + at;
        }
    }
    return route(run, &run->main, spec, has_states);
}

/* The overload rule at a replica's queue: the hook's, or the second deployment's. Returns the
 * replica that serves, -1 when the request is refused. */
static int32_t degrade(struct run *run, struct bt_req_spec *spec, int32_t place, int32_t at,
                       int64_t now_ns)
{
    const struct bt_sim_hooks *hooks = run->opts->hooks;
    const struct bt_config *c = &run->opts->deploy->config;
    bool hooked = hooks != NULL && hooks->overload != NULL;
    if (c->degrade_at_waiting == 0 || (!hooked && run->degraded.n == 0)) {
        return at; /* the scheduler cuts answers itself */
    }
    bt_sched_get_state(run->replicas[at].sched, &run->states[at]);
    if (run->states[at].n_waiting <= c->degrade_at_waiting) {
        return at;
    }
    int32_t most = c->degrade_max_tokens > 0 ? c->degrade_max_tokens : spec->max_new_tokens;
    if (hooked) {
        most = hooks->overload(hooks->ctx, spec, &run->states[at], now_ns);
    }
    if (most == 0) {
        return -1;
    }
    if (most < 0) {
        return at;
    }
    run->live.requests[place].degraded = most < spec->max_new_tokens || run->degraded.n > 0;
    spec->max_new_tokens = most < spec->max_new_tokens ? most : spec->max_new_tokens;
    return run->degraded.n > 0 ? route(run, &run->degraded, spec, false) : at;
}

static void arrive(struct run *run, int32_t place, int64_t now_ns)
{
    const struct bt_sim_hooks *hooks = run->opts->hooks;
    const struct bt_request *q = &run->live.requests[place].request;
    struct bt_req_spec spec = {
        .user = (uint64_t)q->id,
        .arrival_ns = q->arrival_ns,
        .timeout_ns = q->timeout_ns > 0 ? q->timeout_ns : run->opts->deploy->config.timeout_ns,
        .n_prompt = q->n_prompt,
        .max_new_tokens = q->n_output,
        .priority = q->priority,
        .hashes = q->hashes,
        .n_hashes = q->n_hashes,
        .hash_tokens = q->hash_tokens,
    };
    bool has_states = hooks != NULL && (hooks->arrival != NULL || hooks->route != NULL);
    if (has_states) {
        gather_states(run, &run->main);
    }
    bool accepted = ask_arrival(run, &spec, now_ns);
    int32_t at = run->main.first;
    if (accepted && !hook_failed(run)) {
        at = route_main(run, &spec, has_states, now_ns);
        int32_t served_at = degrade(run, &spec, place, at, now_ns);
        accepted = served_at >= 0;
        at = accepted ? served_at : at;
    }
    if (hook_failed(run)) {
        return;
    }
    spec.user = (uint64_t)place;
    if (!accepted) {
        refuse(run, &spec, at, now_ns);
        return;
    }
    struct replica *r = &run->replicas[at];
    struct bt_req_handle handle;
    if (bt_sched_submit(r->sched, &spec, now_ns, &handle) == BT_ADMIT_OK) {
        mark_dirty(run, r);
    }
}

/* Closed loop: the warm-up ends when its share of requests has been sent. */
static void end_warmup(struct run *run, int64_t now_ns)
{
    if (run->n_warmup_read >= 0 && run->n_read >= run->n_warmup_read) {
        bt_metrics_set_warmup(run->metrics, now_ns + 1);
        run->n_warmup_read = -1;
    }
}

static enum bt_code on_arrival(struct run *run, int32_t place, int64_t now_ns, struct bt_error *err)
{
    bool closed = run->opts->source->closed_users > 0;
    arrive(run, place, now_ns);
    if (closed) {
        end_warmup(run, now_ns);
        return BT_OK;
    }
    return read_request(run, now_ns, err);
}

static void ask_speculation(struct run *run, struct replica *r, int64_t now_ns)
{
    const struct bt_sim_hooks *hooks = run->opts->hooks;
    if (hooks == NULL || hooks->speculate == NULL || r->deploy->sched.spec.k == 0) {
        return;
    }
    struct bt_sched_state *state = &run->states[r->index];
    bt_sched_get_state(r->sched, state);
    if (state->n_running != r->spec_asked_running) {
        r->spec_asked_running = state->n_running;
        bt_sched_allow_spec(r->sched, hooks->speculate(hooks->ctx, state, now_ns));
        (void)hook_failed(run);
    }
}

static enum bt_code submit_plan(struct run *run, struct replica *r, const struct bt_step_plan *plan,
                                int64_t now_ns, struct bt_error *err)
{
    int32_t at = r->first + r->n_inflight;
    at -= at >= r->inflight_max ? r->inflight_max : 0;
    struct bt_step_result *result = &r->results[at];
    switch (r->executor.ops->submit(r->executor.self, plan, now_ns, result, err)) {
    case BT_SUBMIT_DONE:
        break;
    case BT_SUBMIT_QUEUED:
    case BT_SUBMIT_BUSY:
        BT_ASSERT(!"virtual time knows every result at once");
        break;
    case BT_SUBMIT_FAILED:
        return err != NULL && err->code != BT_OK ? err->code : BT_ERR_INTERNAL;
    }
    r->n_inflight++;
    run->n_steps++;
    return bt_des_schedule(&run->des, result->done_ns, EVENT_STEP, EVENT_STEP, (uint64_t)r->index,
                           err);
}

/* Plans and submits until the replica has nothing more to do now. */
static enum bt_code pump(struct run *run, struct replica *r, int64_t now_ns, struct bt_error *err)
{
    r->dirty = false;
    ask_speculation(run, r, now_ns);
    while (r->n_inflight < r->inflight_max) {
        const struct bt_step_plan *plan = NULL;
        int64_t wake_ns = INT64_MAX;
        switch (bt_sched_plan(r->sched, now_ns, &plan, &wake_ns)) {
        case BT_PLAN_READY:
            BT_TRY(submit_plan(run, r, plan, now_ns, err));
            continue;
        case BT_PLAN_WAIT:
            if (wake_ns < r->wake_ns) {
                r->wake_ns = wake_ns;
                BT_TRY(bt_des_schedule(&run->des, wake_ns, EVENT_WAKE, EVENT_WAKE,
                                       (uint64_t)r->index, err));
            }
            return BT_OK;
        case BT_PLAN_IDLE:
            return BT_OK;
        }
    }
    return BT_OK;
}

static void complete_step(struct run *run, struct replica *r, int64_t now_ns)
{
    BT_ASSERT(r->n_inflight > 0);
    const struct bt_step_result *result = &r->results[r->first];
    BT_ASSERT(result->done_ns == now_ns);
    r->first = r->first + 1 < r->inflight_max ? r->first + 1 : 0;
    r->n_inflight--;
    bt_sched_complete(r->sched, result, now_ns);
    mark_dirty(run, r);
}

static void sample(struct run *run, int64_t now_ns)
{
    struct bt_sim_sample s = {.t_ns = now_ns};
    for (int32_t i = 0; i < run->n_replicas; i++) {
        struct bt_sched_state state;
        bt_sched_get_state(run->replicas[i].sched, &state);
        s.running += state.n_running;
        s.waiting += state.n_waiting;
        s.swapped += state.n_swapped;
        s.kv_blocks_used += state.kv_blocks_used;
        s.kv_blocks_cached += state.kv_blocks_cached;
        s.kv_blocks_total += state.kv_blocks_total;
        s.preempts += state.n_preempts;
    }
    run->opts->on_sample(run->opts->ctx, &s);
}

static enum bt_code dispatch(struct run *run, const struct bt_event *e, struct bt_error *err)
{
    struct replica *r = &run->replicas[e->kind == EVENT_ARRIVAL ? 0 : e->handle];
    switch ((enum event_kind)e->kind) {
    case EVENT_STEP:
        complete_step(run, r, e->t_ns);
        break;
    case EVENT_ARRIVAL:
        BT_TRY(on_arrival(run, (int32_t)e->handle, e->t_ns, err));
        break;
    case EVENT_WAKE:
        if (e->t_ns == r->wake_ns) {
            r->wake_ns = INT64_MAX;
        }
        mark_dirty(run, r);
        break;
    case EVENT_SAMPLE:
        sample(run, e->t_ns);
        if (run->des.n > 0 || run->n_dirty > 0) {
            return bt_des_schedule(&run->des, e->t_ns + run->opts->sample_ns, EVENT_SAMPLE,
                                   EVENT_SAMPLE, 0, err);
        }
        break;
    }
    if (run->failure != BT_OK) {
        if (err != NULL && err->code == BT_OK) {
            *err = run->error;
        }
        return run->failure;
    }
    return BT_OK;
}

/* Whether a callback wants the run to end. */
static bool wants_stop(struct run *run, int64_t now_ns)
{
    const struct bt_sim_opts *o = run->opts;
    if (o->should_stop != NULL && run->n_ended >= run->next_stop) {
        run->next_stop = run->n_ended + o->stop_every;
        if (o->should_stop(o->ctx, run->metrics, now_ns)) {
            return true;
        }
    }
    if (o->on_progress != NULL && run->des.n_taken % PROGRESS_EVERY == 0) {
        double done = run->n_total > 0 ? (double)run->n_ended / (double)run->n_total : 1;
        if (o->horizon_ns > 0) {
            double elapsed = (double)now_ns / (double)o->horizon_ns;
            done = elapsed > done ? elapsed : done;
        }
        return !o->on_progress(o->ctx, done < 1 ? done : 1);
    }
    return false;
}

/* Plans for everyone to whom something has happened, once all events of this moment are through. */
static enum bt_code pump_dirty(struct run *run, int64_t now_ns, struct bt_error *err)
{
    for (int32_t i = 0; i < run->n_dirty; i++) {
        BT_TRY(pump(run, &run->replicas[run->dirty[i]], now_ns, err));
    }
    run->n_dirty = 0;
    return BT_OK;
}

static enum bt_code loop(struct run *run, struct bt_error *err)
{
    int64_t horizon_ns = run->opts->horizon_ns > 0 ? run->opts->horizon_ns : INT64_MAX;
    for (;;) {
        int64_t next_ns = bt_des_next_ns(&run->des);
        if (run->n_dirty > 0 && next_ns > run->des.now_ns) {
            BT_TRY(pump_dirty(run, run->des.now_ns, err));
            if (run->failure != BT_OK) {
                return run->failure;
            }
            continue;
        }
        if (next_ns >= horizon_ns) {
            run->end_ns =
                next_ns == INT64_MAX && horizon_ns == INT64_MAX ? run->des.now_ns : horizon_ns;
            return BT_OK;
        }
        struct bt_event e;
        bool got = false;
        BT_TRY(bt_des_take(&run->des, &e, &got, err));
        BT_ASSERT(got);
        BT_TRY(dispatch(run, &e, err));
        if (wants_stop(run, e.t_ns)) {
            run->stopped = true;
            run->end_ns = e.t_ns;
            return BT_OK;
        }
    }
}

/* Counts the source's requests and their span, where somebody wants shares of them. */
static enum bt_code survey_source(struct run *run, int64_t *warmup_ns, struct bt_error *err)
{
    const struct bt_sim_opts *o = run->opts;
    *warmup_ns = 0;
    run->n_total = -1;
    run->n_warmup_read = -1;
    if (o->warmup_fraction <= 0 && o->on_progress == NULL) {
        return BT_OK;
    }
    struct bt_request request;
    int64_t first_ns = 0, last_ns = 0;
    run->n_total = 0;
    enum bt_source_status status;
    while ((status = bt_source_next(o->source, &request, err)) == BT_SOURCE_MORE) {
        first_ns = run->n_total == 0 ? request.arrival_ns : first_ns;
        last_ns = request.arrival_ns;
        run->n_total++;
    }
    if (status == BT_SOURCE_ERROR) {
        return err != NULL && err->code != BT_OK ? err->code : BT_ERR_INPUT;
    }
    BT_TRY(bt_source_rewind(o->source, err));
    if (o->warmup_fraction > 0 && o->source->closed_users > 0) {
        run->n_warmup_read = (int64_t)((double)run->n_total * o->warmup_fraction);
        *warmup_ns = INT64_MAX;
    } else if (o->warmup_fraction > 0) {
        *warmup_ns = first_ns + (int64_t)((double)(last_ns - first_ns) * o->warmup_fraction);
    }
    return BT_OK;
}

static enum bt_code init_results(struct run *run, struct replica *r, struct bt_error *err)
{
    int32_t max_seqs = r->deploy->sched.max_seqs;
    int32_t max_copies = bt_sched_max_copies(r->sched);
    BT_ARENA_ARRAY(run->arena, r->results, r->inflight_max, err);
    for (int32_t i = 0; i < r->inflight_max; i++) {
        BT_ARENA_ARRAY_RAW(run->arena, r->results[i].seqs, max_seqs, err);
        BT_ARENA_ARRAY_RAW(run->arena, r->results[i].copies_done, max_copies, err);
    }
    return BT_OK;
}

static enum bt_code init_replica(struct run *run, struct replica *r, bool degraded,
                                 struct bt_error *err)
{
    const struct bt_sim_opts *o = run->opts;
    struct bt_sched_opts s = r->deploy->sched;
    s.replica = r->index;
    s.metrics = run->metrics;
    s.on_end = on_end;
    s.ctx = r;
    if (degraded || (o->hooks != NULL && o->hooks->overload != NULL)) {
        s.degrade = (struct bt_degrade_opts){0};
    }
    BT_TRY(bt_sched_create(run->arena, &s, &r->sched, err));
    r->inflight_max = s.inflight_max > 0 ? s.inflight_max : 1;
    r->wake_ns = INT64_MAX;
    r->spec_asked_running = -1;
    BT_TRY(init_results(run, r, err));
    const struct bt_spec_config *spec = &r->deploy->config.spec;
    struct bt_sim_executor_opts e = {
        .cost = &r->deploy->cost,
        .truth = (const struct bt_sim_truth *const *)&run->live.truth,
        .mix = degraded ? NULL : run->mix,
        .inflight_max = r->inflight_max,
        .max_copies = bt_sched_max_copies(r->sched),
        .step_scale = o->step_scale,
        .n_acceptance = spec->n_acceptance,
    };
    memcpy(e.acceptance, spec->acceptance, sizeof e.acceptance);
    return bt_sim_executor_create(&e, &r->executor, err);
}

static enum bt_code init_replicas(struct run *run, struct bt_error *err)
{
    const struct bt_sim_opts *o = run->opts;
    int32_t n_degraded = o->degrade_deploy != NULL ? o->degrade_replicas : 0;
    int32_t n = o->replicas + n_degraded;
    BT_ARENA_ARRAY(run->arena, run->replicas, n, err);
    BT_ARENA_ARRAY(run->arena, run->states, n, err);
    BT_ARENA_ARRAY(run->arena, run->cached, n, err);
    BT_ARENA_ARRAY(run->arena, run->dirty, n, err);
    run->n_replicas = n;
    enum bt_route rule = (enum bt_route)o->deploy->config.route;
    run->main =
        (struct group){.n = o->replicas, .router = {.rule = rule, .n_replicas = o->replicas}};
    run->degraded = (struct group){
        .first = o->replicas, .n = n_degraded, .router = {.rule = rule, .n_replicas = n_degraded}};
    for (int32_t i = 0; i < n; i++) {
        struct replica *r = &run->replicas[i];
        bool degraded = i >= o->replicas;
        r->run = run;
        r->index = i;
        r->deploy = degraded ? o->degrade_deploy : o->deploy;
        BT_TRY(init_replica(run, r, degraded, err));
    }
    return BT_OK;
}

static enum bt_code start_arrivals(struct run *run, struct bt_error *err)
{
    int32_t n = run->opts->source->closed_users;
    for (int32_t i = 0; i < (n > 0 ? n : 1) && !run->source_done; i++) {
        BT_TRY(read_request(run, 0, err));
    }
    if (run->opts->on_sample != NULL) {
        return bt_des_schedule(&run->des, 0, EVENT_SAMPLE, EVENT_SAMPLE, 0, err);
    }
    return BT_OK;
}

static enum bt_code init(struct run *run, struct bt_error *err)
{
    const struct bt_sim_opts *o = run->opts;
    int64_t warmup_ns = 0;
    BT_TRY(survey_source(run, &warmup_ns, err));
    BT_TRY(bt_des_init(&run->des, EVENTS_AT_ONCE_MAX, o->max_events, err));
    bt_live_init(&run->live, ALIVE_MAX);
    struct bt_metrics_opts m = {
        .n_replicas = o->replicas + (o->degrade_deploy != NULL ? o->degrade_replicas : 0),
        .warmup_until_ns = warmup_ns,
        .peak_flops_per_s = o->deploy->cost.peak_flops_per_s,
        .peak_bytes_per_s = o->deploy->cost.peak_bytes_per_s,
        .slos = o->slos,
        .n_slos = o->n_slos,
    };
    BT_TRY(bt_metrics_create(run->arena, &m, &run->metrics, err));
    BT_TRY(init_replicas(run, err));
    run->next_stop = o->stop_every;
    return start_arrivals(run, err);
}

/* Nothing is left to happen: then everybody must have ended. */
static enum bt_code check_drained(const struct run *run, struct bt_error *err)
{
    if (run->opts->horizon_ns == 0 && !run->stopped && run->live.n > 0) {
        BT_FAIL(err, BT_ERR_INTERNAL, run->live.n,
                "simulation: %d requests wait for ever at %.3f s of virtual time", run->live.n,
                (double)run->des.now_ns * 1e-9);
    }
    return BT_OK;
}

static void finish(struct run *run, struct bt_sim_result *out)
{
    int64_t running = 0, waiting = 0;
    uint64_t hash = 0;
    for (int32_t i = 0; i < run->n_replicas; i++) {
        struct bt_sched_state s;
        bt_sched_get_state(run->replicas[i].sched, &s);
        running += s.n_running + s.n_swapped;
        waiting += s.n_waiting;
        hash = bt_hash_combine(hash, bt_sched_plan_hash(run->replicas[i].sched));
    }
    bt_metrics_finish(run->metrics, run->end_ns, running, waiting, &out->summary);
    out->summary.degraded += run->n_degraded;
    out->plan_hash = hash;
    out->events = run->des.n_taken;
    out->steps = run->n_steps;
    out->end_ns = run->end_ns;
    out->stopped = run->stopped;
}

static void fini(struct run *run)
{
    for (int32_t i = 0; i < run->n_replicas; i++) {
        struct bt_executor *e = &run->replicas[i].executor;
        if (e->ops != NULL) {
            e->ops->destroy(e->self);
        }
    }
    bt_live_fini(&run->live);
    bt_des_fini(&run->des);
    bt_arena_fini(&run->own_arena);
    if (run->arena != &run->own_arena) {
        bt_arena_reset(run->arena);
    }
}

enum bt_code bt_sim_run(const struct bt_sim_opts *opts, struct bt_sim_result *out,
                        struct bt_error *err)
{
    BT_ASSERT(opts->deploy != NULL && opts->source != NULL && opts->replicas > 0);
    BT_ASSERT(opts->on_sample == NULL || opts->sample_ns > 0);
    BT_ASSERT(opts->should_stop == NULL || opts->stop_every > 0);
    BT_ASSERT(opts->warmup_fraction >= 0 && opts->warmup_fraction <= 0.9);
    struct run run = {.opts = opts, .mix = &out->mix};
    bt_arena_init(&run.own_arena, 0);
    run.arena = opts->memory != NULL ? opts->memory : &run.own_arena;
    memset(out, 0, sizeof *out);
    enum bt_code code = init(&run, err);
    if (code == BT_OK) {
        code = loop(&run, err);
    }
    if (code == BT_OK) {
        code = check_drained(&run, err);
    }
    if (code == BT_OK) {
        finish(&run, out);
    }
    fini(&run);
    return code;
}
