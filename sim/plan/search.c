/* The search as a whole: candidates into groups, groups and finalists to threads, the ranking. */
#include "sim/plan/search.h"

#include "sim/plan/parallel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Requests that number so few on a replica hardly slow each other; so much larger a deployment must
 * then miss by less than this share of what the smaller one did, or growing leads nowhere. */
static const double CROWD_MIN = 1.5, GROWTH_MIN = 1.5, GROWTH_GAIN = 0.9;

enum { SEEDS_DEFAULT = 8, SEEDS_MAX = 64, FINALISTS_DEFAULT = 12 };

const char *bt_verdict_name(enum bt_verdict v)
{
    switch (v) {
    case BT_FEASIBLE:
        return "feasible";
    case BT_MARGINAL:
        return "marginal";
    case BT_INFEASIBLE:
        return "infeasible";
    case BT_UNVERIFIED:
        return "unverified";
    }
    return "?";
}

static enum bt_code deploy(const struct bt_plan_env *env, const struct bt_config *config,
                           const struct bt_arch *arch, const struct bt_arch *draft,
                           const struct bt_gpu *gpu, struct bt_deploy *d, struct bt_error *err)
{
    BT_TRY(bt_deploy_init(d, config, arch, draft, gpu, env->surfaces, err));
    enum bt_code code = BT_OK;
    if (env->fit != NULL) {
        code = bt_deploy_fit(d, env->surfaces, env->fit, err);
    }
    if (code != BT_OK) {
        bt_deploy_fini(d);
    }
    return code;
}

enum bt_code bt_plan_deploy(const struct bt_plan_env *env, const struct bt_config *config,
                            struct bt_deploy *d, struct bt_deploy *degrade, struct bt_error *err)
{
    *d = (struct bt_deploy){0};
    *degrade = (struct bt_deploy){0};
    struct bt_arch arch, draft;
    struct bt_gpu gpu;
    bool has_draft = config->spec.kind == BT_SPEC_DRAFT;
    BT_TRY(bt_config_check(config, err));
    BT_TRY(env->find_model(env->ctx, config->model, &arch, err));
    BT_TRY(env->find_gpu(env->ctx, config->gpu, &gpu, err));
    if (has_draft) {
        BT_TRY(env->find_model(env->ctx, config->spec.draft, &draft, err));
    }
    struct bt_config known = *config;
    char source[BT_SOURCE_BYTES] = "";
    if (config->spec.kind != BT_SPEC_NONE && config->spec.n_acceptance == 0 &&
        env->find_acceptance != NULL) {
        (void)env->find_acceptance(env->ctx, &arch, has_draft ? &draft : NULL, &known.spec, source,
                                   sizeof source);
    }
    BT_TRY(deploy(env, &known, &arch, has_draft ? &draft : NULL, &gpu, d, err));
    memcpy(d->acceptance_source, source, sizeof source);
    if (config->degrade_model[0] == '\0') {
        return BT_OK;
    }
    struct bt_config small = *config;
    memcpy(small.model, config->degrade_model, sizeof small.model);
    small.degrade_model[0] = '\0';
    small.degrade_at_waiting = 0;
    small.spec = (struct bt_spec_config){0};
    enum bt_code code = env->find_model(env->ctx, small.model, &arch, err);
    if (code == BT_OK) {
        code = deploy(env, &small, &arch, NULL, &gpu, degrade, err);
    }
    if (code != BT_OK) {
        bt_deploy_fini(d);
    }
    return code;
}

enum bt_code bt_search_memory_take(struct bt_search *s, struct bt_search_memory **out,
                                   struct bt_error *err)
{
    (void)pthread_mutex_lock(&s->lock);
    struct bt_search_memory *m = s->memory;
    s->memory = m != NULL ? m->next : NULL;
    (void)pthread_mutex_unlock(&s->lock);
    if (m == NULL) {
        m = calloc(1, sizeof *m);
        if (m == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for a simulation");
        }
        bt_arena_init(&m->arena, 0);
    }
    *out = m;
    return BT_OK;
}

void bt_search_memory_give(struct bt_search *s, struct bt_search_memory *memory)
{
    (void)pthread_mutex_lock(&s->lock);
    memory->next = s->memory;
    s->memory = memory;
    (void)pthread_mutex_unlock(&s->lock);
}

static void free_memory(struct bt_search *s)
{
    while (s->memory != NULL) {
        struct bt_search_memory *m = s->memory;
        s->memory = m->next;
        bt_arena_fini(&m->arena);
        free(m);
    }
}

enum bt_code bt_search_trial(struct bt_search *s, const struct bt_trial *t,
                             struct bt_trial_result *out, struct bt_summary *summary,
                             struct bt_error *err)
{
    (void)pthread_mutex_lock(&s->lock);
    s->simulations++;
    (void)pthread_mutex_unlock(&s->lock);
    struct bt_search_memory *memory = NULL;
    BT_TRY(bt_search_memory_take(s, &memory, err));
    struct bt_trial trial = *t;
    trial.memory = &memory->arena;
    enum bt_code code = bt_trial_run(s->spec, s->env, &trial, out, summary, err);
    bt_search_memory_give(s, memory);
    return code;
}

/* What more replicas should lessen. */
static double badness_of(const struct bt_plan_spec *spec, const struct bt_trial_result *r)
{
    if (r->broken_slo < 0) {
        return r->kv_peak_fraction;
    }
    enum bt_stat stat = spec->slos[r->broken_slo].stat;
    double v = stat == BT_STAT_MEAN || stat == BT_STAT_MAX ? r->slo_value_s[r->broken_slo]
                                                           : 1 - r->met_fraction[r->broken_slo];
    return isnan(v) ? INFINITY : v;
}

enum bt_code bt_search_is_futile(struct bt_search *s, struct bt_growth *g, const struct bt_trial *t,
                                 struct bt_trial_result *r, bool *futile, struct bt_error *err)
{
    *futile = r->hopeless;
    if (r->hopeless || r->crowd > CROWD_MIN || t->replicas < GROWTH_MIN * g->replicas) {
        return BT_OK;
    }
    if (r->stopped) {
        struct bt_trial whole = *t;
        whole.to_the_end = true;
        BT_TRY(bt_search_trial(s, &whole, r, NULL, err));
    }
    double badness = badness_of(s->spec, r);
    *futile = r->hopeless || (g->replicas > 0 && g->broken_slo == r->broken_slo &&
                              badness >= GROWTH_GAIN * g->badness);
    *g = (struct bt_growth){t->replicas, r->broken_slo, badness};
    return BT_OK;
}

void bt_search_settled(struct bt_search *s, int64_t n)
{
    (void)pthread_mutex_lock(&s->lock);
    s->n_settled += n;
    if (s->spec->on_progress != NULL) {
        s->spec->on_progress(s->spec->progress_ctx, (double)s->n_settled / (double)s->n_seats,
                             (int32_t)s->n_settled, (int32_t)s->n_seats);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

void bt_search_price(struct bt_seat *seat, int32_t replicas)
{
    struct bt_plan_candidate *c = seat->c;
    c->replicas = replicas;
    c->replicas_paid = replicas + c->config.redundancy;
    c->cards = c->replicas_paid * c->config.tp;
    c->cost_usd_per_h = seat->price * c->cards;
}

void bt_search_describe(const struct bt_plan_spec *spec, const struct bt_trial_result *r, char *out,
                        size_t out_bytes)
{
    if (r->headroom_broken) {
        snprintf(out, out_bytes, "KV memory peaks at %.0f%%, at most %.0f%% allowed",
                 100 * r->kv_peak_fraction, 100 * (1 - spec->memory_headroom));
        return;
    }
    if (r->broken_slo < 0) {
        snprintf(out, out_bytes, "the limits hold");
        return;
    }
    const struct bt_slo *slo = &spec->slos[r->broken_slo];
    if (r->hopeless) {
        snprintf(
            out, out_bytes,
            "%s.%s cannot hold: %s%.1f%% of the requests are over max_model_len or the KV pool",
            bt_slo_metric_name(slo->metric), bt_stat_name(slo->stat), r->stopped ? "at least " : "",
            100 * r->unservable_fraction);
        return;
    }
    double limit_s = (double)slo->limit_ns / 1e9;
    double v = r->slo_value_s[r->broken_slo];
    const char *metric = bt_slo_metric_name(slo->metric), *stat = bt_stat_name(slo->stat);
    if (r->stopped || isnan(v) || v <= limit_s) {
        snprintf(out, out_bytes, "misses %s.%s <= %.3g s (too few requests within it)", metric,
                 stat, limit_s);
    } else {
        snprintf(out, out_bytes, "misses %s.%s: %.3g s > %.3g s", metric, stat, v, limit_s);
    }
}

/* Order of the knobs that make a group; 0 when two configurations are of one. */
static int compare_group(const struct bt_config *a, const struct bt_config *b)
{
    int by = strcmp(a->model, b->model);
    by = by != 0 ? by : strcmp(a->stack, b->stack);
    by = by != 0 ? by : strcmp(a->gpu, b->gpu);
    by = by != 0 ? by : (a->tp > b->tp) - (a->tp < b->tp);
    by = by != 0 ? by : (a->redundancy > b->redundancy) - (a->redundancy < b->redundancy);
    by = by != 0 ? by : (a->weights > b->weights) - (a->weights < b->weights);
    return by != 0 ? by : (a->activations > b->activations) - (a->activations < b->activations);
}

static int compare_seats(const void *a, const void *b)
{
    const struct bt_seat *x = a, *y = b;
    int by = compare_group(&x->c->config, &y->c->config);
    return by != 0 ? by : (x->number > y->number) - (x->number < y->number);
}

static enum bt_code make_groups(struct bt_search *s, struct bt_error *err)
{
    s->order = calloc((size_t)s->n_seats, sizeof *s->order);
    s->group_start = calloc((size_t)s->n_seats + 1, sizeof *s->group_start);
    if (s->order == NULL || s->group_start == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for %lld candidates", (long long)s->n_seats);
    }
    qsort(s->seats, (size_t)s->n_seats, sizeof *s->seats, compare_seats);
    for (int64_t i = 0; i < s->n_seats; i++) {
        s->order[i] = i;
        if (i == 0 || compare_group(&s->seats[i - 1].c->config, &s->seats[i].c->config) != 0) {
            s->group_start[s->n_groups++] = i;
        }
    }
    s->group_start[s->n_groups] = s->n_seats;
    return BT_OK;
}

static enum bt_code read_streams(struct bt_search *s, struct bt_error *err)
{
    int32_t want = s->spec->seeds_max > 0 ? s->spec->seeds_max : SEEDS_DEFAULT;
    want = want > SEEDS_MAX ? SEEDS_MAX : want;
    if (!s->spec->seeds_vary) {
        want = 1;
    }
    s->streams = calloc((size_t)want, sizeof *s->streams);
    if (s->streams == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for %d workloads", want);
    }
    for (int32_t i = 0; i < want; i++) {
        struct bt_source *source = NULL;
        BT_TRY(s->env->make_source(s->env->ctx, s->spec->seed + (uint64_t)i, &source, err));
        enum bt_code code = bt_stream_read(source, &s->streams[i], err);
        bt_source_destroy(source);
        if (code != BT_OK) {
            return code;
        }
        s->n_streams++;
    }
    return BT_OK;
}

static enum bt_code group_task(void *ctx, int64_t i, struct bt_error *err)
{
    return bt_search_group(ctx, i, err);
}

/* Cheaper first; unpriced last; then fewer cards, a better first SLO, the order given. */
static int compare_cost(const struct bt_seat *x, const struct bt_seat *y)
{
    const struct bt_plan_candidate *a = x->c, *b = y->c;
    bool pa = !isnan(a->cost_usd_per_h), pb = !isnan(b->cost_usd_per_h);
    if (pa != pb) {
        return pa ? -1 : 1;
    }
    if (pa && a->cost_usd_per_h != b->cost_usd_per_h) {
        return a->cost_usd_per_h < b->cost_usd_per_h ? -1 : 1;
    }
    if (a->cards != b->cards) {
        return a->cards < b->cards ? -1 : 1;
    }
    if (x->first_slo_s != y->first_slo_s) {
        return x->first_slo_s < y->first_slo_s ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static int compare_finalists(const void *a, const void *b)
{
    return compare_cost(*(struct bt_seat *const *)a, *(struct bt_seat *const *)b);
}

struct finals {
    struct bt_search *s;
    struct bt_seat **seats; /* one a group, cheapest first */
};

static enum bt_code final_task(void *ctx, int64_t i, struct bt_error *err)
{
    struct finals *f = ctx;
    return bt_search_confirm(f->s, f->seats[i], err);
}

/* Best of a group, or NULL. */
static struct bt_seat *group_best(const struct bt_search *s, int64_t g)
{
    struct bt_seat *best = NULL;
    for (int64_t i = s->group_start[g]; i < s->group_start[g + 1]; i++) {
        struct bt_seat *seat = &s->seats[s->order[i]];
        if (seat->open && (best == NULL || compare_cost(seat, best) < 0)) {
            best = seat;
        }
    }
    return best;
}

/* What held on one share but was not taken further says why. */
static void explain_rest(const struct bt_search *s, const struct bt_seat *const *finalists,
                         int64_t n)
{
    for (int64_t i = 0; i < s->n_seats; i++) {
        const struct bt_seat *seat = &s->seats[i];
        bool final = false;
        for (int64_t k = 0; k < n; k++) {
            final = final || finalists[k] == seat;
        }
        if (!seat->open || final) {
            continue;
        }
        struct bt_plan_candidate *c = seat->c;
        bool unknown = !isnan(s->spec->accuracy_drop_points) && isnan(c->accuracy_drop);
        c->stage = BT_STAGE_DOMINATED;
        c->verdict = unknown ? BT_UNVERIFIED : BT_MARGINAL;
        snprintf(c->reason, sizeof c->reason,
                 "holds on one replica's share (first SLO at %.3g s); not confirmed: its group or "
                 "another has a better one",
                 seat->first_slo_s);
    }
}

static enum bt_code run_finals(struct bt_search *s, struct bt_seat **seats, int64_t *n,
                               struct bt_error *err)
{
    *n = 0;
    for (int64_t g = 0; g < s->n_groups; g++) {
        struct bt_seat *best = group_best(s, g);
        if (best != NULL) {
            seats[(*n)++] = best;
        }
    }
    qsort(seats, (size_t)*n, sizeof(struct bt_seat *), compare_finalists);
    int64_t most = s->spec->finalists_max > 0 ? s->spec->finalists_max : FINALISTS_DEFAULT;
    *n = *n < most ? *n : most;
    struct finals f = {.s = s, .seats = seats};
    return bt_parallel_for(s->spec->jobs, *n, final_task, &f, err);
}

static int32_t verdict_rank(enum bt_verdict v)
{
    switch (v) {
    case BT_FEASIBLE:
        return 0;
    case BT_UNVERIFIED:
        return 1;
    case BT_MARGINAL:
        return 2;
    case BT_INFEASIBLE:
        break;
    }
    return 3;
}

/* What may serve before what may not; confirmed before unconfirmed; verdict, cost, order given. */
static int compare_ranked(const void *a, const void *b)
{
    const struct bt_seat *x = a, *y = b;
    bool ox = x->c->verdict == BT_INFEASIBLE, oy = y->c->verdict == BT_INFEASIBLE;
    if (ox != oy) {
        return ox ? 1 : -1;
    }
    if (x->c->simulated != y->c->simulated) {
        return x->c->simulated ? -1 : 1;
    }
    if (!ox) {
        int32_t vx = verdict_rank(x->c->verdict), vy = verdict_rank(y->c->verdict);
        return vx != vy ? vx - vy : compare_cost(x, y);
    }
    /* How far it came. */
    if (x->c->stage != y->c->stage) {
        return x->c->stage > y->c->stage ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static enum bt_code rank(struct bt_search *s, struct bt_plan_answer *out, struct bt_error *err)
{
    qsort(s->seats, (size_t)s->n_seats, sizeof *s->seats, compare_ranked);
    struct bt_plan_candidate *ranked = calloc((size_t)s->n_seats, sizeof *ranked);
    if (ranked == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for %lld candidates", (long long)s->n_seats);
    }
    out->best = -1;
    for (int64_t i = 0; i < s->n_seats; i++) {
        ranked[i] = *s->seats[i].c;
        out->n_priced += !isnan(s->seats[i].price);
    }
    if (ranked[0].simulated && ranked[0].verdict != BT_INFEASIBLE) {
        out->best = 0;
    }
    free(out->candidates);
    out->candidates = ranked;
    for (int64_t i = 0; i < s->n_seats; i++) {
        s->seats[i].c = &ranked[i];
    }
    double best_usd = out->best >= 0 ? ranked[out->best].cost_usd_per_h : NAN;
    for (int64_t i = 0; i < s->n_seats; i++) {
        ranked[i].price_break_even_usd_per_h =
            ranked[i].cards > 0 && i != out->best ? best_usd / ranked[i].cards : NAN;
    }
    return BT_OK;
}

static enum bt_code make_seats(struct bt_search *s, struct bt_plan_answer *out,
                               struct bt_error *err)
{
    const struct bt_plan_spec *spec = s->spec;
    if (spec->n_candidates < 1 || spec->n_candidates > BT_PLAN_MAX_CANDIDATES) {
        BT_FAIL(err, BT_ERR_ARG, 0, "plan: expected 1..%d candidates, got %lld",
                BT_PLAN_MAX_CANDIDATES, (long long)spec->n_candidates);
    }
    if (spec->n_slos < 1) {
        BT_FAIL(err, BT_ERR_ARG, 0, "plan: expected at least one SLO on latency, got none");
    }
    s->n_seats = spec->n_candidates;
    s->seats = calloc((size_t)s->n_seats, sizeof *s->seats);
    out->candidates = calloc((size_t)s->n_seats, sizeof *out->candidates);
    if (s->seats == NULL || out->candidates == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for %lld candidates", (long long)s->n_seats);
    }
    out->n_candidates = (int32_t)s->n_seats;
    for (int64_t i = 0; i < s->n_seats; i++) {
        struct bt_plan_candidate *c = &out->candidates[i];
        s->env->config(s->env->ctx, i, &c->config);
        c->cost_usd_per_h = c->cost_usd_per_mtok = c->cost_usd_per_1k_req = NAN;
        c->capacity_req_per_s = c->headroom = c->accuracy_drop = NAN;
        c->acceptance_break_even = c->price_break_even_usd_per_h = NAN;
        s->seats[i] = (struct bt_seat){.c = c, .number = i, .price = NAN, .open = true};
    }
    return BT_OK;
}

static enum bt_code search(struct bt_search *s, struct bt_plan_answer *out, struct bt_error *err)
{
    BT_TRY(make_seats(s, out, err));
    BT_TRY(read_streams(s, err));
    out->rate_req_per_s = s->streams[0].rate_req_per_s;
    BT_TRY(make_groups(s, err));
    BT_TRY(bt_parallel_for(s->spec->jobs, s->n_groups, group_task, s, err));
    struct bt_seat **finalists = calloc((size_t)s->n_groups, sizeof(struct bt_seat *));
    if (finalists == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for the finalists");
    }
    int64_t n_finalists = 0;
    enum bt_code code = run_finals(s, finalists, &n_finalists, err);
    if (code == BT_OK) {
        explain_rest(s, (const struct bt_seat *const *)finalists, n_finalists);
    }
    free(finalists);
    BT_TRY(code);
    BT_TRY(rank(s, out, err));
    if (out->best >= 0) {
        BT_TRY(bt_search_sensitivity(s, &s->seats[0], out, err));
    }
    out->simulations = s->simulations;
    return BT_OK;
}

enum bt_code bt_plan_search(const struct bt_plan_spec *spec, const struct bt_plan_env *env,
                            struct bt_plan_answer *out, struct bt_error *err)
{
    *out = (struct bt_plan_answer){.best = -1};
    struct bt_search s = {.spec = spec, .env = env};
    if (pthread_mutex_init(&s.lock, NULL) != 0) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for a lock");
    }
    enum bt_code code = search(&s, out, err);
    for (int32_t i = 0; i < s.n_streams; i++) {
        bt_stream_fini(&s.streams[i]);
    }
    free_memory(&s);
    free(s.streams);
    free(s.seats);
    free(s.order);
    free(s.group_start);
    (void)pthread_mutex_destroy(&s.lock);
    if (code != BT_OK) {
        bt_plan_answer_fini(out);
    }
    return code;
}

void bt_plan_answer_fini(struct bt_plan_answer *a)
{
    for (int32_t i = 0; i < a->n_candidates && a->candidates != NULL; i++) {
        free(a->candidates[i].summary);
    }
    free(a->candidates);
    free(a->sensitivity);
    *a = (struct bt_plan_answer){.best = -1};
}
