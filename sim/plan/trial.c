#include "sim/plan/trial.h"

#include <math.h>
#include <stdlib.h>

static const double UNSERVED_MAX = 0.01; /* where an SLO limits a mean or a maximum */

struct watch {
    const struct bt_plan_spec *spec;
    int64_t warmup_until_ns;
    int64_t n_counted;               /* requests expected after the warm-up */
    int64_t missed[BT_MAX_SLOS];     /* so far */
    int64_t missed_max[BT_MAX_SLOS]; /* more than this many: not held */
    int64_t met[BT_MAX_SLOS];
    int64_t unservable; /* too long, or more KV than the whole pool */
    bool lost;
};

/* Share of requests that must keep a limit of this statistic. */
static double share_needed(enum bt_stat stat)
{
    switch (stat) {
    case BT_STAT_P50:
        return 0.50;
    case BT_STAT_P90:
        return 0.90;
    case BT_STAT_P95:
        return 0.95;
    case BT_STAT_P99:
        return 0.99;
    case BT_STAT_MEAN:
    case BT_STAT_MAX:
    case BT_N_STATS:
        break;
    }
    return 1 - UNSERVED_MAX;
}

/* The request's own value of a metric; -1 when it has none. */
static int64_t value_of(const struct bt_req_record *r, enum bt_slo_metric metric)
{
    switch (metric) {
    case BT_SLO_TTFT:
        return r->first_token_ns - r->arrival_ns;
    case BT_SLO_TPOT:
        return r->n_output > 1 ? (r->last_token_ns - r->first_token_ns) / (r->n_output - 1) : 0;
    case BT_SLO_ITL:
        return r->gap_max_ns < 0 ? 0 : r->gap_max_ns;
    case BT_SLO_E2E:
        return r->end_ns - r->arrival_ns;
    case BT_SLO_QUEUE:
        return r->scheduled_ns - r->arrival_ns;
    case BT_N_SLO_METRICS:
        break;
    }
    return -1;
}

static void on_record(void *ctx, const struct bt_req_record *r)
{
    struct watch *w = ctx;
    if (r->arrival_ns < w->warmup_until_ns) {
        return;
    }
    w->unservable += r->reject == BT_REJECT_OVER_LENGTH || r->reject == BT_REJECT_NEVER_FITS;
    for (int32_t i = 0; i < w->spec->n_slos; i++) {
        const struct bt_slo *slo = &w->spec->slos[i];
        bool served = r->outcome == BT_OUTCOME_FINISHED;
        /* Of a mean or maximum only the unserved count here: its value is judged as a whole. */
        bool counts_value = slo->stat != BT_STAT_MEAN && slo->stat != BT_STAT_MAX;
        bool met = served && (!counts_value || value_of(r, slo->metric) <= slo->limit_ns);
        if (met) {
            w->met[i]++;
        } else if (++w->missed[i] > w->missed_max[i]) {
            w->lost = true;
        }
    }
}

/* No statistics here: once more requests have missed than may miss in all, nothing can mend it. */
static bool should_stop(void *ctx, struct bt_metrics *metrics, int64_t now_ns)
{
    (void)metrics;
    (void)now_ns;
    return ((struct watch *)ctx)->lost;
}

static double statistic(const struct bt_summary *s, const struct bt_slo *slo)
{
    static const size_t at[BT_N_SLO_METRICS] = {
        [BT_SLO_TTFT] = offsetof(struct bt_summary, ttft),
        [BT_SLO_TPOT] = offsetof(struct bt_summary, tpot),
        [BT_SLO_ITL] = offsetof(struct bt_summary, itl),
        [BT_SLO_E2E] = offsetof(struct bt_summary, e2e),
        [BT_SLO_QUEUE] = offsetof(struct bt_summary, queue),
    };
    return bt_dist_stat((const struct bt_dist *)((const char *)s + at[slo->metric]), slo->stat);
}

static void judge(const struct bt_plan_spec *spec, const struct watch *w, int32_t n_simulated,
                  bool stopped, const struct bt_summary *s, struct bt_trial_result *out)
{
    out->holds = true;
    out->broken_slo = -1;
    out->stopped = stopped;
    out->bottleneck = s->bottleneck;
    out->crowd = (s->running_mean + s->waiting_mean + s->swapped_mean) / n_simulated;
    out->unservable_fraction = w->n_counted > 0 ? (double)w->unservable / (double)w->n_counted : 0;
    out->kv_peak_fraction =
        s->kv_blocks_total > 0 ? (double)s->kv_blocks_peak / (double)s->kv_blocks_total : 0;
    for (int32_t i = 0; i < spec->n_slos; i++) {
        const struct bt_slo *slo = &spec->slos[i];
        double v = statistic(s, slo);
        out->slo_value_s[i] = v;
        out->met_fraction[i] = w->n_counted > 0 ? (double)w->met[i] / (double)w->n_counted : NAN;
        /* A statistic of nothing (no request finished) keeps no limit; TPOT of one-token answers
         * does. */
        bool kept = isnan(v) ? slo->metric == BT_SLO_TPOT || slo->metric == BT_SLO_ITL
                             : v <= (double)slo->limit_ns / 1e9;
        /* Of a run that was stopped only what has missed counts: the rest might yet have kept the
         * limit. */
        int64_t missed = stopped ? w->missed[i] : w->n_counted - w->met[i];
        bool broken = missed > w->missed_max[i] || (!stopped && !kept);
        if (broken && out->broken_slo < 0) {
            out->broken_slo = i;
            out->hopeless = w->unservable > w->missed_max[i];
            out->holds = false;
        }
    }
    if (out->holds && spec->memory_headroom > 0 &&
        out->kv_peak_fraction > 1 - spec->memory_headroom) {
        out->holds = false;
        out->headroom_broken = true;
    }
}

static int64_t warmup_until(const struct bt_plan_spec *spec, const struct bt_trial *t)
{
    const struct bt_stream *s = t->stream;
    if (s->closed_users > 0 || spec->warmup_fraction <= 0) {
        return 0;
    }
    double first = (double)s->requests[0].arrival_ns;
    return llround((first + spec->warmup_fraction * (double)s->span_ns) / t->rate_scale);
}

/* Requests of the view that count. */
static int64_t count_after(const struct bt_trial *t, const struct bt_stream_view *view,
                           int64_t until_ns)
{
    const struct bt_stream *s = t->stream;
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_requests; i += view->share) {
        int64_t at = llround((double)s->requests[i].arrival_ns / view->rate_scale);
        n += s->closed_users > 0 || at >= until_ns;
    }
    return n;
}

enum bt_code bt_trial_run(const struct bt_plan_spec *spec, const struct bt_plan_env *env,
                          const struct bt_trial *trial, struct bt_trial_result *out,
                          struct bt_summary *summary, struct bt_error *err)
{
    *out = (struct bt_trial_result){.broken_slo = -1};
    struct bt_stream_view view = {.share = trial->one_share ? trial->replicas : 1,
                                  .rate_scale = trial->rate_scale};
    struct watch w = {.spec = spec, .warmup_until_ns = warmup_until(spec, trial)};
    w.n_counted = count_after(trial, &view, w.warmup_until_ns);
    for (int32_t i = 0; i < spec->n_slos; i++) {
        double may_miss = (1 - share_needed(spec->slos[i].stat)) * (double)w.n_counted;
        w.missed_max[i] = (int64_t)floor(may_miss + 1e-9);
    }
    struct bt_source *source = NULL;
    struct bt_sim_result *result = calloc(1, sizeof *result);
    struct bt_sim_hooks *hooks = NULL;
    enum bt_code code = BT_OK;
    if (result == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "plan: no memory");
    }
    if (code == BT_OK) {
        code = bt_stream_source(trial->stream, &view, &source, err);
    }
    if (code == BT_OK && env->make_hooks != NULL) {
        code = env->make_hooks(env->ctx, &hooks, err);
    }
    if (code == BT_OK) {
        struct bt_sim_opts opts = {
            .deploy = trial->deploy,
            .degrade_deploy = trial->degrade_deploy,
            .replicas = trial->one_share ? 1 : trial->replicas,
            .degrade_replicas =
                trial->degrade_deploy != NULL ? trial->deploy->config.degrade_replicas : 0,
            .source = source,
            .seed = trial->seed,
            .warmup_fraction = spec->warmup_fraction,
            .step_scale = trial->step_scale,
            .slos = spec->slos,
            .n_slos = spec->n_slos,
            .hooks = hooks,
            .on_record = on_record,
            .ctx = &w,
            .should_stop = trial->to_the_end ? NULL : should_stop,
            .stop_every = 1,
            .memory = trial->memory,
        };
        code = bt_sim_run(&opts, result, err);
    }
    if (code == BT_OK) {
        judge(spec, &w, trial->one_share ? 1 : trial->replicas, result->stopped, &result->summary,
              out);
        if (summary != NULL) {
            *summary = result->summary;
        }
        if (trial->mix != NULL) {
            *trial->mix = result->mix;
        }
    }
    if (hooks != NULL) {
        env->free_hooks(env->ctx, hooks);
    }
    bt_source_destroy(source);
    free(result);
    return code;
}
