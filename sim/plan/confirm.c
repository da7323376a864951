/* Stages 4 and 5 of the search: a finalist with all its replicas, over several seeds, and with
 * pessimistic step times. */
#include "sim/cost/surface_law.h"
#include "sim/plan/search.h"
#include "sim/plan/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKS_FROM = 3 };

static const double ALPHA = 0.05; /* of all looks together */

/* What the seeds said at one size. */
struct verdict_at {
    bool holds;
    bool clear;
    int32_t tried;                 /* last size of the climb */
    struct bt_trial_result missed; /* of the first seed that did not hold */
    struct bt_plan_ci ci[BT_MAX_SLOS];
};

struct finalist {
    struct bt_search *s;
    struct bt_seat *seat;
    struct bt_deploy deploy, degrade;
    struct bt_step_mix mix; /* steps of the last trial with steps as predicted */
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
                                    .clear = (n >= 2 || !spec->seeds_vary) &&
                                             (mean + half <= limit_s || mean - half > limit_s)};
        if (mean - half > limit_s) {
            answer = -1;
        } else if (mean + half > limit_s && answer > 0) {
            answer = 0;
        }
    }
    return answer;
}

/* Seed k with all replicas. */
static struct bt_trial trial_of(struct finalist *f, int32_t k, int32_t replicas, double step_scale)
{
    return (struct bt_trial){.deploy = &f->deploy,
                             .degrade_deploy =
                                 f->deploy.config.degrade_model[0] != '\0' ? &f->degrade : NULL,
                             .stream = &f->s->streams[k],
                             .replicas = replicas,
                             .rate_scale = 1,
                             .step_scale = step_scale,
                             .mix = step_scale == 1 ? &f->mix : NULL,
                             .seed = f->s->spec->seed + (uint64_t)k};
}

/* All replicas, seed after seed, until the intervals are clear or the seeds run out. */
static enum bt_code decide(struct finalist *f, int32_t replicas, double step_scale,
                           struct verdict_at *v, struct bt_summary *summary, struct bt_error *err)
{
    const struct bt_plan_spec *spec = f->s->spec;
    double values[64][BT_MAX_SLOS];
    int32_t looks = f->s->n_streams - LOOKS_FROM + 1;
    double alpha = looks > 1 ? ALPHA / looks : ALPHA;
    int32_t first_look = f->s->n_streams == 2 ? 2 : LOOKS_FROM;
    int32_t n_held = 0;
    *v = (struct verdict_at){0};
    for (int32_t k = 0; k < f->s->n_streams; k++) {
        struct bt_trial t = trial_of(f, k, replicas, step_scale);
        struct bt_trial_result r;
        BT_TRY(bt_search_trial(f->s, &t, &r, k == 0 ? summary : NULL, err));
        if (!r.holds && n_held == k) {
            v->missed = r;
        }
        if (r.stopped) {
            /* Partial statistics say nothing about intervals; one such seed in the first two, or
             * more missed than held, is an answer. */
            if (k < 2 || n_held * 2 < k + 1) {
                v->holds = v->clear = false;
                return BT_OK;
            }
            t.to_the_end = true;
            BT_TRY(bt_search_trial(f->s, &t, &r, NULL, err));
        }
        memcpy(values[k], r.slo_value_s, sizeof values[k]);
        n_held += r.holds;
        int32_t n = k + 1;
        int32_t answer = look(spec, values, n, alpha, v->ci);
        if (!spec->seeds_vary) {
            v->holds = r.holds;
            v->clear = true;
            return BT_OK;
        }
        if (n >= first_look && answer != 0 && (n_held == n || n_held == 0)) {
            v->holds = answer > 0 && n_held == n;
            v->clear = true;
            return BT_OK;
        }
        v->holds = n_held * 2 > n;
    }
    return BT_OK;
}

/* A size on trial in `least`. */
struct sizing {
    struct finalist *f;
    double step_scale;
    int32_t failed;             /* largest size known not to hold; floor - 1 */
    int32_t held;               /* least size known to hold; 0: none */
    struct verdict_at *v;       /* at `held`, or at the last size tried */
    struct bt_summary *summary; /* likewise */
};

static enum bt_code try_size(struct sizing *z, int32_t replicas, struct bt_error *err)
{
    struct verdict_at w;
    struct bt_summary *scratch = malloc(sizeof *scratch);
    if (scratch == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for a summary");
    }
    enum bt_code code = decide(z->f, replicas, z->step_scale, &w, scratch, err);
    if (code == BT_OK) {
        if (w.holds || z->held == 0) {
            *z->v = w;
            *z->summary = *scratch;
        }
        if (w.holds) {
            z->held = replicas;
        } else {
            z->failed = replicas;
        }
    }
    free(scratch);
    return code;
}

/* From `from` upwards in growing steps until one holds. */
static enum bt_code climb(struct sizing *z, int32_t from, int32_t most, struct bt_error *err)
{
    int32_t step = 1;
    for (int32_t n = from;;) {
        BT_TRY(try_size(z, n, err));
        z->v->tried = n;
        if (z->held > 0 || n >= most) {
            return BT_OK;
        }
        n = most - n < step ? most : n + step;
        step *= 2;
    }
}

/* Sizes worth trying above one that should do, with steps so much slower: twice the work in
 * proportion, and some for small numbers. Where more would be needed it is not capacity that lacks,
 * but speed for a lone request. */
static int32_t most_of(const struct finalist *f, int32_t from, double step_scale)
{
    double most = ceil(from * step_scale * step_scale) + from + 2;
    return most < f->seat->replicas_max ? (int32_t)most : f->seat->replicas_max;
}

/* Least size of at least `floor` that holds with this step scale; *replicas 0: none within the
 * budget and reason. One replica's share named `from`: routing may need more, or fewer. */
static enum bt_code least(struct finalist *f, int32_t from, int32_t floor, double step_scale,
                          int32_t *replicas, struct verdict_at *v, struct bt_summary *summary,
                          struct bt_error *err)
{
    bool fixed = f->seat->c->config.replicas != BT_AUTO;
    struct sizing z = {.f = f,
                       .step_scale = step_scale,
                       .failed = fixed ? from - 1 : floor - 1,
                       .v = v,
                       .summary = summary};
    *replicas = 0;
    BT_TRY(climb(&z, from, fixed ? from : most_of(f, from, step_scale), err));
    /* Most shares are right, or nearly: down in growing steps .. */
    for (int32_t step = 1; z.held == from && from - step > z.failed; step *= 2) {
        from -= step;
        BT_TRY(try_size(&z, from, err));
    }
    /* .. and the gap closed by bisection. */
    while (z.held - z.failed > 1) {
        BT_TRY(try_size(&z, z.failed + (z.held - z.failed) / 2, err));
    }
    *replicas = z.held;
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
static void conclude(struct finalist *f, int32_t central, int32_t safe, int32_t tried,
                     const struct verdict_at *v)
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
                 v->ci[0].n_seeds > 1 ? "%s; the interval over %d seeds is not clear of the limit"
                                      : "%s; %d seed alone has no interval",
                 held, v->ci[0].n_seeds);
    } else {
        c->verdict = BT_MARGINAL;
        snprintf(c->reason, sizeof c->reason,
                 c->step_error < 0
                     ? "%s; the error of the step times is unknown"
                     : "%s; does not hold with steps %d%% slower on up to %d replicas",
                 held, percent, tried);
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
    BT_TRY(least(f, c->replicas, f->seat->replicas_min, 1, &central, &v, c->summary, err));
    if (central == 0) {
        char text[160];
        bt_search_describe(f->s->spec, &v.missed, text, sizeof text);
        snprintf(c->reason, sizeof c->reason,
                 "held on one replica's share, but with all replicas and routing %s; up to %d "
                 "replicas were tried",
                 text, v.tried);
        bt_search_price(f->seat, v.tried);
        c->verdict = BT_INFEASIBLE;
        f->seat->open = false;
        costs(c);
        return BT_OK;
    }
    c->step_error = bt_surface_cost_mix_error(&f->deploy.cost, &f->mix);
    int32_t safe = 0;
    struct verdict_at w = {0};
    if (c->step_error >= 0) {
        struct bt_summary *scratch = malloc(sizeof *scratch);
        if (scratch == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for a summary");
        }
        enum bt_code code = least(f, central, central, 1 + c->step_error, &safe, &w, scratch, err);
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
    memcpy(c->acceptance_source, f->deploy.acceptance_source, sizeof c->acceptance_source);
    conclude(f, central, safe, w.tried, &v);
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
