/* Stages 4 and 5 of the search: a finalist with all its replicas, over several seeds, and with
 * pessimistic step times. */
#include "sim/plan/search.h"
#include "sim/plan/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKS_FROM = 3, TRIES_MAX = 24 };

static const double ALPHA = 0.05; /* of all looks together */

/* What the seeds said at one size. */
struct verdict_at {
    bool holds;
    bool clear;
    bool seen;                    /* a whole run was made: summary and statistics are there */
    struct bt_trial_result first; /* of the first seed */
    struct bt_plan_ci ci[BT_MAX_SLOS];
};

struct finalist {
    struct bt_search *s;
    struct bt_seat *seat;
    struct bt_deploy deploy, degrade;
};

/* Confidence intervals over the seeds so far: +1 all clear of their limits and held, -1 some limit
 * is clearly missed, 0 not clear. */
static int32_t look(const struct bt_plan_spec *spec, double (*values)[BT_MAX_SLOS], int32_t n,
                    double alpha, struct bt_plan_ci *ci)
{
    int32_t answer = 1;
    for (int32_t i = 0; i < spec->n_slos; i++) {
        double sum = 0, sq = 0;
        for (int32_t k = 0; k < n; k++) {
            sum += values[k][i];
        }
        double mean = sum / n;
        for (int32_t k = 0; k < n; k++) {
            sq += (values[k][i] - mean) * (values[k][i] - mean);
        }
        double half = n >= 2 ? bt_mean_half_width(sqrt(sq / (n - 1)), n, alpha) : 0;
        double limit_s = (double)spec->slos[i].limit_ns / 1e9;
        ci[i] = (struct bt_plan_ci){.mean_s = mean,
                                    .low_s = mean - half,
                                    .high_s = mean + half,
                                    .n_seeds = n,
                                    .clear = mean + half <= limit_s || mean - half > limit_s};
        if (mean - half > limit_s) {
            answer = -1;
        } else if (mean + half > limit_s && answer > 0) {
            answer = 0;
        }
    }
    return answer;
}

/* All replicas, seed after seed, until the intervals are clear or the seeds run out. */
static enum bt_code decide(struct finalist *f, int32_t replicas, double step_scale,
                           struct verdict_at *v, struct bt_summary *summary, struct bt_error *err)
{
    const struct bt_plan_spec *spec = f->s->spec;
    double values[64][BT_MAX_SLOS];
    int32_t looks = f->s->n_streams - LOOKS_FROM + 1;
    double alpha = looks > 1 ? ALPHA / looks : ALPHA;
    int32_t n_held = 0;
    *v = (struct verdict_at){0};
    for (int32_t k = 0; k < f->s->n_streams; k++) {
        struct bt_trial t = {.deploy = &f->deploy,
                             .degrade_deploy =
                                 f->deploy.config.degrade_model[0] != '\0' ? &f->degrade : NULL,
                             .stream = &f->s->streams[k],
                             .replicas = replicas,
                             .rate_scale = 1,
                             .step_scale = step_scale,
                             .seed = spec->seed + (uint64_t)k};
        struct bt_trial_result r;
        BT_TRY(bt_search_trial(f->s, &t, &r, k == 0 ? summary : NULL, err));
        if (k == 0) {
            v->first = r;
        }
        if (r.stopped) {
            /* Partial statistics say nothing about intervals; one such seed in the first two, or
             * more missed than held, is an answer. */
            if (k < 2 || n_held * 2 < k + 1) {
                return BT_OK;
            }
            memcpy(r.slo_value_s, values[0], sizeof r.slo_value_s);
            r.holds = false;
        }
        memcpy(values[k], r.slo_value_s, sizeof values[k]);
        n_held += r.holds;
        v->seen = true;
        int32_t n = k + 1;
        int32_t answer = look(spec, values, n, alpha, v->ci);
        if (f->s->n_streams < LOOKS_FROM) {
            v->holds = r.holds;
            v->clear = true;
            continue;
        }
        if (n >= LOOKS_FROM && answer != 0 && (n_held == n || n_held == 0)) {
            v->holds = answer > 0 && n_held == n;
            v->clear = true;
            return BT_OK;
        }
        v->holds = n_held * 2 > n;
    }
    return BT_OK;
}

/* Least size from `from` on that holds with this step scale; 0: none within the budget. */
static enum bt_code least(struct finalist *f, int32_t from, double step_scale, int32_t *replicas,
                          struct verdict_at *v, struct bt_summary *summary, struct bt_error *err)
{
    bool fixed = f->seat->c->config.replicas != BT_AUTO;
    int32_t most = fixed ? from : f->seat->replicas_max;
    int32_t n = from, failed = from - 1, step = 1;
    *replicas = 0;
    /* Climb in growing steps .. */
    for (int32_t i = 0; i < TRIES_MAX; i++) {
        BT_TRY(decide(f, n, step_scale, v, summary, err));
        if (v->holds) {
            *replicas = n;
            break;
        }
        if (n >= most) {
            return BT_OK;
        }
        failed = n;
        n = most - n < step ? most : n + step;
        step *= 2;
    }
    /* .. and close the gap by bisection. */
    while (*replicas > 0 && *replicas - failed > 1) {
        int32_t mid = failed + (*replicas - failed) / 2;
        struct verdict_at w;
        struct bt_summary *scratch = malloc(sizeof *scratch);
        if (scratch == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for a summary");
        }
        enum bt_code code = decide(f, mid, step_scale, &w, scratch, err);
        if (code == BT_OK && w.holds) {
            *replicas = mid;
            *v = w;
            *summary = *scratch;
        } else {
            failed = mid;
        }
        free(scratch);
        if (code != BT_OK) {
            return code;
        }
    }
    return BT_OK;
}

static void costs(struct bt_plan_candidate *c)
{
    const struct bt_summary *s = c->summary;
    c->cost_usd_per_mtok = NAN;
    c->cost_usd_per_1k_req = NAN;
    if (!isnan(c->cost_usd_per_h) && s->throughput_req_per_s > 0) {
        double usd_per_s = c->cost_usd_per_h / 3600;
        c->cost_usd_per_mtok = usd_per_s / s->throughput_out_tok_per_s * 1e6;
        c->cost_usd_per_1k_req = usd_per_s / s->throughput_req_per_s * 1e3;
    }
}

/* "e2e.p95 1.21 s of 1.5 s". */
static void describe_held(const struct bt_plan_spec *spec, const struct bt_plan_ci *ci, char *out,
                          size_t n)
{
    size_t at = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < spec->n_slos && at + 1 < n; i++) {
        const struct bt_slo *slo = &spec->slos[i];
        int w = snprintf(out + at, n - at, "%s%s.%s %.3g s of %.3g s", i == 0 ? "" : ", ",
                         bt_slo_metric_name(slo->metric), bt_stat_name(slo->stat), ci[i].mean_s,
                         (double)slo->limit_ns / 1e9);
        at += w > 0 ? (size_t)w : 0;
    }
}

/* The outcome in words and as a verdict. */
static void conclude(struct finalist *f, int32_t central, int32_t safe, const struct verdict_at *v)
{
    struct bt_plan_candidate *c = f->seat->c;
    const struct bt_plan_spec *spec = f->s->spec;
    char held[200];
    describe_held(spec, v->ci, held, sizeof held);
    bool unknown = !isnan(spec->accuracy_drop_points) && isnan(c->accuracy_drop);
    int32_t percent = (int32_t)lround(100 * c->step_error);
    if (safe > 0 && v->clear) {
        c->verdict = unknown ? BT_UNVERIFIED : BT_FEASIBLE;
        int w = snprintf(c->reason, sizeof c->reason, "%s; holds with steps %d%% slower", held,
                         percent);
        if (safe > central && w > 0 && (size_t)w < sizeof c->reason) {
            snprintf(c->reason + w, sizeof c->reason - (size_t)w,
                     " (%d replicas if they are as predicted)", central);
        }
    } else if (safe > 0) {
        c->verdict = BT_MARGINAL;
        snprintf(c->reason, sizeof c->reason,
                 "%s; the interval over %d seeds is not clear of the limit", held,
                 v->ci[0].n_seeds);
    } else {
        c->verdict = BT_MARGINAL;
        snprintf(c->reason, sizeof c->reason,
                 c->step_error < 0 ? "%s; the error of the step times is unknown"
                                   : "%s; does not hold with steps %d%% slower within the budget",
                 held, percent);
    }
    if (unknown) {
        size_t at = strlen(c->reason);
        snprintf(c->reason + at, sizeof c->reason - at,
                 "; accuracy of these formats on this model is unknown");
    }
}

static enum bt_code confirm(struct finalist *f, struct bt_error *err)
{
    struct bt_plan_candidate *c = f->seat->c;
    struct verdict_at v;
    int32_t central = 0;
    c->stage = BT_STAGE_FINAL;
    c->simulated = true;
    BT_TRY(least(f, c->replicas, 1, &central, &v, c->summary, err));
    if (central == 0) {
        char text[160];
        bt_search_describe(f->s->spec, &v.first, text, sizeof text);
        snprintf(c->reason, sizeof c->reason,
                 "held on one replica's share, but with all replicas and routing %s", text);
        c->verdict = BT_INFEASIBLE;
        f->seat->open = false;
        costs(c);
        return BT_OK;
    }
    int32_t safe = 0;
    if (c->step_error >= 0) {
        struct verdict_at w;
        struct bt_summary *scratch = malloc(sizeof *scratch);
        if (scratch == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for a summary");
        }
        enum bt_code code = least(f, central, 1 + c->step_error, &safe, &w, scratch, err);
        free(scratch);
        if (code != BT_OK) {
            return code;
        }
    }
    int32_t size = safe > 0 ? safe : central;
    if (size != central) {
        BT_TRY(decide(f, size, 1, &v, c->summary, err));
    }
    bt_search_price(f->seat, size);
    memcpy(c->ci, v.ci, sizeof c->ci);
    c->bottleneck = c->summary->bottleneck;
    f->seat->first_slo_s = v.ci[0].mean_s;
    costs(c);
    double context = f->s->streams[0].prompt_mean + 0.5 * f->s->streams[0].output_mean;
    c->acceptance_break_even =
        bt_break_even_acceptance(&f->deploy, c->summary->running_mean / size, context);
    conclude(f, central, safe, &v);
    return BT_OK;
}

enum bt_code bt_search_confirm(struct bt_search *s, struct bt_seat *seat, struct bt_error *err)
{
    struct finalist f = {.s = s, .seat = seat};
    seat->c->summary = calloc(1, sizeof *seat->c->summary);
    if (seat->c->summary == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for a summary");
    }
    BT_TRY(bt_plan_deploy(s->env, &seat->c->config, &f.deploy, &f.degrade, err));
    enum bt_code code = confirm(&f, err);
    bt_deploy_fini(&f.deploy);
    bt_deploy_fini(&f.degrade);
    bt_search_settled(s, 0);
    return code;
}
