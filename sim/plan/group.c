/* Stage 3 of the search: one group of candidates, which share model, GPU, tensor parallelism and
 * formats of the weights and activations, and so the price of a replica. */
#include "sim/plan/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum bt_code set_aside(struct bt_seat *seat, enum bt_plan_stage stage)
{
    seat->open = false;
    seat->c->stage = stage;
    seat->c->verdict = BT_INFEASIBLE;
    return BT_OK;
}

/* Replicas that the budget allows beside the spare ones. */
static int32_t affordable(const struct bt_plan_spec *spec, const struct bt_seat *seat)
{
    const struct bt_config *c = &seat->c->config;
    double most = BT_MAX_REPLICAS;
    if (!isnan(spec->budget_usd_per_h) && !isnan(seat->price)) {
        most = fmin(most, floor(spec->budget_usd_per_h / (seat->price * c->tp) + 1e-9));
    }
    if (spec->budget_cards > 0) {
        most = fmin(most, (double)(spec->budget_cards / c->tp));
    }
    return (int32_t)most - c->redundancy;
}

/* Formats: whether a kernel exists and the accuracy is known. True when the seat stays open. */
static bool check_formats(struct bt_search *s, struct bt_seat *seat, const struct bt_deploy *d)
{
    struct bt_plan_candidate *c = seat->c;
    char text[160] = "";
    if (!s->env->supported(s->env->ctx, c->config.stack, &d->gpu, d->weights, d->activations, d->kv,
                           text, sizeof text)) {
        snprintf(c->reason, sizeof c->reason, "no such kernel: %s", text);
        (void)set_aside(seat, BT_STAGE_KERNEL);
        return false;
    }
    c->accuracy_drop = s->env->accuracy_drop(s->env->ctx, &d->arch, d->weights, d->activations,
                                             d->kv, text, sizeof text);
    if (!isnan(s->spec->accuracy_drop_points) && c->accuracy_drop > s->spec->accuracy_drop_points) {
        snprintf(c->reason, sizeof c->reason, "loses %.2f points of accuracy, %.2f allowed (%s)",
                 c->accuracy_drop, s->spec->accuracy_drop_points, text);
        (void)set_aside(seat, BT_STAGE_ACCURACY);
        return false;
    }
    return true;
}

/* Memory, formats, budget and bound of one seat; leaves it open when a simulation must decide. */
static enum bt_code examine(struct bt_search *s, struct bt_seat *seat, struct bt_error *err)
{
    struct bt_plan_candidate *c = seat->c;
    struct bt_deploy d, degrade;
    struct bt_error why = {0};
    enum bt_code code = bt_plan_deploy(s->env, &c->config, &d, &degrade, &why);
    if (code == BT_ERR_NOMEM || code == BT_ERR_NOTFOUND || code == BT_ERR_IO ||
        code == BT_ERR_INPUT) {
        if (err != NULL && err->code == BT_OK) {
            *err = why;
        }
        return code;
    }
    c->memory = d.memory;
    if (code == BT_OK) {
        c->config = d.config; /* with the stack's defaults */
    }
    if (code != BT_OK) {
        snprintf(c->reason, sizeof c->reason, "%.*s", BT_REASON_BYTES - 1, why.msg);
        return set_aside(seat, code == BT_ERR_UNFIT ? BT_STAGE_MEMORY : BT_STAGE_CONFIG);
    }
    c->trust = d.cost.trust;
    c->step_error = d.cost.step_error;
    snprintf(c->trust_op, sizeof c->trust_op, "%s", d.cost.weakest);
    seat->price = s->env->gpu_price(s->env->ctx, c->config.gpu);
    bool open = check_formats(s, seat, &d);
    if (open) {
        seat->replicas_max = affordable(s->spec, seat);
        struct bt_bound b;
        bt_bound_compute(s->spec, &d, &s->streams[0], &b);
        seat->replicas_min = b.replicas;
        if (b.slo >= 0) {
            char name[32];
            const struct bt_slo *slo = &s->spec->slos[b.slo];
            snprintf(name, sizeof name, "%s.%s", bt_slo_metric_name(slo->metric),
                     bt_stat_name(slo->stat));
            snprintf(c->reason, sizeof c->reason,
                     "even alone on an idle replica %s is %.3g s, limit %.3g s", name, b.alone_s,
                     (double)slo->limit_ns / 1e9);
            (void)set_aside(seat, BT_STAGE_BOUND);
        } else if (c->config.replicas != BT_AUTO && c->config.replicas > seat->replicas_max) {
            snprintf(c->reason, sizeof c->reason, "%d replicas of %d GPUs are over the budget",
                     c->config.replicas, c->config.tp);
            (void)set_aside(seat, BT_STAGE_BUDGET);
        } else if (seat->replicas_max < 1) {
            snprintf(c->reason, sizeof c->reason,
                     "not even one replica of %d GPUs (and %d spare) is within the budget",
                     c->config.tp, c->config.redundancy);
            (void)set_aside(seat, BT_STAGE_BUDGET);
        } else if (seat->replicas_min > seat->replicas_max) {
            snprintf(c->reason, sizeof c->reason,
                     "%s alone needs at least %d replicas, the budget allows %d", b.binding,
                     seat->replicas_min, seat->replicas_max);
            (void)set_aside(seat, BT_STAGE_BOUND);
        }
    }
    bt_deploy_fini(&d);
    bt_deploy_fini(&degrade);
    return BT_OK;
}

/* A share of fewer requests may be a lucky one: all replicas are run instead. */
enum { SHARE_MIN = 64 };

static struct bt_trial share_of(const struct bt_search *s, const struct bt_deploy *d,
                                const struct bt_deploy *degrade, int32_t replicas)
{
    const struct bt_stream *stream = &s->streams[0];
    return (struct bt_trial){.deploy = d,
                             .degrade_deploy = d->config.degrade_model[0] != '\0' ? degrade : NULL,
                             .stream = stream,
                             .replicas = replicas,
                             .one_share = stream->n_requests / replicas >= SHARE_MIN,
                             .rate_scale = 1,
                             .step_scale = 1,
                             .seed = s->spec->seed};
}

/* One replica's share, central step times, first seed. */
static enum bt_code try_share(struct bt_search *s, struct bt_seat *seat, const struct bt_deploy *d,
                              const struct bt_deploy *degrade, int32_t replicas,
                              struct bt_trial_result *r, struct bt_error *err)
{
    struct bt_trial t = share_of(s, d, degrade, replicas);
    BT_TRY(bt_search_trial(s, &t, r, NULL, err));
    seat->c->bottleneck = r->bottleneck;
    return BT_OK;
}

/* Least replicas in (low, high] that hold, where high is known to and low is known not to. */
static enum bt_code bisect(struct bt_search *s, struct bt_seat *seat, const struct bt_deploy *d,
                           const struct bt_deploy *degrade, int32_t low, int32_t high,
                           struct bt_error *err)
{
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        struct bt_trial_result r;
        BT_TRY(try_share(s, seat, d, degrade, mid, &r, err));
        if (r.holds) {
            high = mid;
            seat->first_slo_s = r.slo_value_s[0];
        } else {
            low = mid;
        }
    }
    bt_search_price(seat, high);
    return BT_OK;
}

/* Why no size will do. */
static void refuse(const struct bt_search *s, struct bt_seat *seat, const struct bt_trial_result *r,
                   int32_t replicas, bool futile)
{
    char text[160];
    bt_search_describe(s->spec, r, text, sizeof text);
    bt_search_price(seat, replicas);
    bool fixed = seat->c->config.replicas != BT_AUTO;
    if (r->hopeless) {
        snprintf(seat->c->reason, sizeof seat->c->reason, "%s, with any number of replicas", text);
    } else {
        snprintf(seat->c->reason, sizeof seat->c->reason, "%s with %d replicas%s", text, replicas,
                 futile  ? ", hardly one request on each: more do not help"
                 : fixed ? ""
                         : ", all that the budget allows");
    }
}

/* From replicas_min upwards in growing steps to the first that holds, then back by bisection. */
static enum bt_code climb(struct bt_search *s, struct bt_seat *seat, const struct bt_deploy *d,
                          const struct bt_deploy *degrade, struct bt_error *err)
{
    bool fixed = seat->c->config.replicas != BT_AUTO;
    int32_t low = seat->replicas_min - 1;
    int32_t n = fixed ? seat->c->config.replicas : seat->replicas_min;
    int32_t step = 1;
    struct bt_growth growth = {0};
    for (;;) {
        struct bt_trial_result r;
        BT_TRY(try_share(s, seat, d, degrade, n, &r, err));
        if (r.holds) {
            seat->first_slo_s = r.slo_value_s[0];
            if (fixed) {
                bt_search_price(seat, n);
                return BT_OK;
            }
            return bisect(s, seat, d, degrade, low, n, err);
        }
        struct bt_trial t = share_of(s, d, degrade, n);
        bool futile = false;
        if (!fixed && n < seat->replicas_max) {
            BT_TRY(bt_search_is_futile(s, &growth, &t, &r, &futile, err));
        }
        if (fixed || n >= seat->replicas_max || futile) {
            refuse(s, seat, &r, n, futile);
            return set_aside(seat, BT_STAGE_SLO);
        }
        low = n;
        n = seat->replicas_max - n < step ? seat->replicas_max : n + step;
        step *= 2;
    }
}

/* A member that must beat `best` replicas to matter. */
static enum bt_code challenge(struct bt_search *s, struct bt_seat *seat, const struct bt_deploy *d,
                              const struct bt_deploy *degrade, int32_t best, struct bt_error *err)
{
    if (seat->replicas_min > best) {
        snprintf(seat->c->reason, sizeof seat->c->reason,
                 "needs at least %d replicas; its group's best needs %d", seat->replicas_min, best);
        return set_aside(seat, BT_STAGE_DOMINATED);
    }
    struct bt_trial_result r;
    BT_TRY(try_share(s, seat, d, degrade, best, &r, err));
    if (!r.holds) {
        char text[160];
        bt_search_describe(s->spec, &r, text, sizeof text);
        bt_search_price(seat, best);
        snprintf(seat->c->reason, sizeof seat->c->reason,
                 "%s with %d replicas, which are enough for its group's best", text, best);
        return set_aside(seat, BT_STAGE_DOMINATED);
    }
    seat->first_slo_s = r.slo_value_s[0];
    int32_t low = seat->replicas_min - 1;
    /* Most ties are ties: one step down settles them. */
    if (best - 1 > low) {
        double at_best = seat->first_slo_s;
        BT_TRY(try_share(s, seat, d, degrade, best - 1, &r, err));
        if (r.holds) {
            seat->first_slo_s = r.slo_value_s[0];
            return bisect(s, seat, d, degrade, low, best - 1, err);
        }
        seat->first_slo_s = at_best;
    }
    bt_search_price(seat, best);
    return BT_OK;
}

/* The roomiest first: a good best early spares work. */
static int compare_room(const void *a, const void *b)
{
    const struct bt_seat *const *x = a, *const *y = b;
    int64_t rx = (*x)->c->memory.kv_tokens_total, ry = (*y)->c->memory.kv_tokens_total;
    if (rx != ry) {
        return rx < ry ? 1 : -1;
    }
    return ((*x)->number > (*y)->number) - ((*x)->number < (*y)->number);
}

static enum bt_code race(struct bt_search *s, struct bt_seat **members, int64_t n,
                         struct bt_error *err)
{
    int32_t best = 0; /* none yet */
    for (int64_t i = 0; i < n; i++) {
        struct bt_seat *seat = members[i];
        if (seat->open) {
            struct bt_deploy d, degrade;
            BT_TRY(bt_plan_deploy(s->env, &seat->c->config, &d, &degrade, err));
            bool free_size = seat->c->config.replicas == BT_AUTO;
            enum bt_code code = best == 0 || s->spec->exhaustive || !free_size
                                    ? climb(s, seat, &d, &degrade, err)
                                    : challenge(s, seat, &d, &degrade, best, err);
            bt_deploy_fini(&d);
            bt_deploy_fini(&degrade);
            if (code != BT_OK) {
                return code;
            }
            if (seat->open && (best == 0 || seat->c->replicas < best)) {
                best = seat->c->replicas;
            }
        }
        bt_search_settled(s, 1);
    }
    return BT_OK;
}

enum bt_code bt_search_group(struct bt_search *s, int64_t g, struct bt_error *err)
{
    int64_t n = s->group_start[g + 1] - s->group_start[g];
    struct bt_seat **members = calloc((size_t)n, sizeof(struct bt_seat *));
    if (members == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for %lld candidates", (long long)n);
    }
    enum bt_code code = BT_OK;
    for (int64_t i = 0; i < n && code == BT_OK; i++) {
        members[i] = &s->seats[s->order[s->group_start[g] + i]];
        code = examine(s, members[i], err);
    }
    if (code == BT_OK) {
        qsort(members, (size_t)n, sizeof(struct bt_seat *), compare_room);
        code = race(s, members, n, err);
    }
    free(members);
    return code;
}
