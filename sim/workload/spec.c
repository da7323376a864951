#include "sim/workload/spec.h"

#include "engine/core/limits.h"
#include "sim/workload/internal.h"

#include <math.h>
#include <stdlib.h>

int64_t bt_ns_of_s(double s)
{
    BT_ASSERT(s >= 0.0);
    BT_ASSERT(s <= BT_TIME_MAX_S);
    return llround(s * BT_NS_PER_S);
}

int64_t bt_ns_scaled(int64_t t_ns, double scale)
{
    if (scale == 1.0) {
        return t_ns;
    }
    double t = floor((double)t_ns / scale);
    return t < BT_TIME_MAX_S * BT_NS_PER_S ? (int64_t)t : (int64_t)(BT_TIME_MAX_S * BT_NS_PER_S);
}

enum bt_code bt_array_grow(void **items, int64_t *cap, int64_t need, size_t item_bytes,
                           struct bt_error *err)
{
    if (need <= *cap) {
        return BT_OK;
    }
    int64_t new_cap = *cap < 64 ? 64 : *cap + *cap / 2;
    if (new_cap < need) {
        new_cap = need;
    }
    void *p = realloc(*items, (size_t)new_cap * item_bytes);
    if (p == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for %lld items of %zu bytes",
                (long long)new_cap, item_bytes);
    }
    *items = p;
    *cap = new_cap;
    return BT_OK;
}

/* Expects min <= x <= max, or with `open` min < x. */
static const double REQUESTS_MAX = 1e9;

static enum bt_code check(const char *key, double x, double min, double max, int open,
                          struct bt_error *err)
{
    if (x <= max && (open ? x > min : x >= min)) {
        return BT_OK;
    }
    BT_FAIL(err, BT_ERR_INPUT, 0, "workload.%s: expected %s %.15g and <= %.15g, got %.15g", key,
            open ? ">" : ">=", min, max, x);
}

static enum bt_code check_points(const struct bt_workload_spec *s, struct bt_error *err)
{
    if (s->n_points < 1 || s->n_points > BT_WORKLOAD_MAX_POINTS) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.points: expected 1 to %d points, got %d",
                BT_WORKLOAD_MAX_POINTS, s->n_points);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < s->n_points; i++) {
        double t = s->points[i].t_s;
        double rate = s->points[i].rate_per_s;
        double before = i == 0 ? 0.0 : s->points[i - 1].t_s;
        if (!(t >= before && t <= BT_TIME_MAX_S) || (i == 0 && t != 0.0)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.points[%d].t_s: expected %s, got %.15g", i + 1,
                    i == 0 ? "0 (the profile starts at 0)" : "a time not before the last point's",
                    t);
        }
        if (!(rate >= 0.0 && rate <= BT_RATE_MAX)) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "workload.points[%d].rate_per_s: expected 0 to %g, got %.15g", i + 1,
                    BT_RATE_MAX, rate);
        }
        sum += rate;
    }
    if (!(sum > 0.0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.points: the rate is 0 everywhere");
    }
    double last = s->points[s->n_points - 1].t_s;
    if (s->period_s != 0.0 && !(s->period_s > 0.0 && s->period_s >= last)) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "workload.period_s: expected 0 or >= the last point's time (%.15g), got %.15g",
                last, s->period_s);
    }
    if (s->period_s > 0.0 && bt_workload_mean_rate(s) <= 0.0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.points: the rate is 0 over the whole period");
    }
    return BT_OK;
}

static enum bt_code check_arrivals(const struct bt_workload_spec *s, struct bt_error *err)
{
    switch (s->arrival) {
    case BT_ARRIVAL_CLOSED:
        BT_TRY(check("users", s->users, 1, BT_WORKLOAD_MAX_USERS, 0, err));
        if (s->think_s.kind != BT_DIST_NONE) {
            BT_TRY(bt_dist_validate(&s->think_s, "workload.think_s", err));
        }
        if (s->rate_per_s != 0.0 || s->points != NULL) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "workload.rate_per_s: a closed loop has no rate; its users' answers set it");
        }
        if (s->n_requests == 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.n_requests: a closed loop needs it (> 0)");
        }
        return BT_OK;
    case BT_ARRIVAL_GAMMA:
    case BT_ARRIVAL_WEIBULL:
        BT_TRY(check("cv", s->cv, BT_ARRIVAL_CV_MIN, BT_ARRIVAL_CV_MAX, 0, err));
        break;
    case BT_ARRIVAL_POISSON:
    case BT_ARRIVAL_CONSTANT:
        break;
    }
    if (s->points == NULL) {
        return check("rate_per_s", s->rate_per_s, 0.0, BT_RATE_MAX, 1, err);
    }
    if (s->rate_per_s != 0.0) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "workload.rate_per_s: not together with a rate profile (points); got %.15g",
                s->rate_per_s);
    }
    return check_points(s, err);
}

static enum bt_code check_classes(const struct bt_workload_spec *s, struct bt_error *err)
{
    if (s->n_classes < 0 || s->n_classes > BT_WORKLOAD_MAX_CLASSES) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.classes: expected at most %d, got %d",
                BT_WORKLOAD_MAX_CLASSES, s->n_classes);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < s->n_classes; i++) {
        const struct bt_class_spec *c = &s->classes[i];
        if (!(c->share >= 0.0 && c->share <= 1e15)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.classes[%d].share: expected >= 0, got %.15g",
                    i + 1, c->share);
        }
        if (c->priority < 0 || c->priority > BT_MAX_PRIORITY) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.classes[%d].priority: expected 0 to %d, got %d",
                    i + 1, BT_MAX_PRIORITY, c->priority);
        }
        if (!(c->timeout_s >= 0.0 && c->timeout_s <= BT_TIME_MAX_S)) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "workload.classes[%d].timeout_s: expected 0 (none) to %g, got %.15g", i + 1,
                    BT_TIME_MAX_S, c->timeout_s);
        }
        sum += c->share;
    }
    if (s->n_classes > 0 && !(sum > 0.0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.classes: the shares' sum must be > 0");
    }
    return BT_OK;
}

static enum bt_code check_prefixes(const struct bt_workload_spec *s, struct bt_error *err)
{
    if (s->n_prefixes < 0 || s->n_prefixes > BT_WORKLOAD_MAX_PREFIXES) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.prefixes: expected at most %d, got %d",
                BT_WORKLOAD_MAX_PREFIXES, s->n_prefixes);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < s->n_prefixes; i++) {
        const struct bt_prefix_spec *p = &s->prefixes[i];
        if (!(p->weight >= 0.0 && p->weight <= 1e15)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.prefixes[%d].weight: expected >= 0, got %.15g",
                    i + 1, p->weight);
        }
        if (p->tokens < 0 || p->tokens >= BT_MAX_TOKENS) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.prefixes[%d].tokens: expected 0 to %d, got %d",
                    i + 1, BT_MAX_TOKENS - 1, p->tokens);
        }
        sum += p->weight;
    }
    if (s->n_prefixes > 0 && !(sum > 0.0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.prefixes: the weights' sum must be > 0");
    }
    return BT_OK;
}

static enum bt_code check_kinds(const struct bt_workload_spec *s, struct bt_error *err)
{
    if (s->n_kinds < 0 || s->n_kinds > BT_WORKLOAD_MAX_KINDS) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.kinds: expected at most %d, got %d",
                BT_WORKLOAD_MAX_KINDS, s->n_kinds);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < s->n_kinds; i++) {
        if (!(s->kind_shares[i] >= 0.0 && s->kind_shares[i] <= 1e15)) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.kinds[%d]: expected a share >= 0, got %.15g",
                    i + 1, s->kind_shares[i]);
        }
        sum += s->kind_shares[i];
    }
    if (s->n_kinds > 0 && !(sum > 0.0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.kinds: the shares' sum must be > 0");
    }
    return BT_OK;
}

/* A slip of the keyboard makes a stream that no machine comes to the end of. */
static enum bt_code check_size(const struct bt_workload_spec *s, struct bt_error *err)
{
    double n = s->n_requests > 0 ? (double)s->n_requests : INFINITY;
    double rate = bt_workload_mean_rate(s);
    if (rate >= 0 && s->duration_s > 0) {
        double scale = s->rate_scale > 0 ? s->rate_scale : 1;
        n = fmin(n, rate / scale * s->duration_s);
    }
    if (isfinite(n) && n > REQUESTS_MAX) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "workload: %.3g requests; at most %g: a lower rate, a shorter duration_s, or "
                "n_requests",
                n, REQUESTS_MAX);
    }
    return BT_OK;
}

static enum bt_code check_generated(const struct bt_workload_spec *s, struct bt_error *err)
{
    BT_TRY(check_arrivals(s, err));
    if (s->duration_s == 0.0 && s->n_requests == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "workload: expected duration_s or n_requests, which end the stream");
    }
    BT_TRY(bt_dist_validate(&s->prompt, "workload.prompt", err));
    BT_TRY(bt_dist_validate(&s->output, "workload.output", err));
    BT_TRY(check_prefixes(s, err));
    BT_TRY(check_classes(s, err));
    BT_TRY(check_kinds(s, err));
    if (s->turns.kind != BT_DIST_NONE) {
        if (s->arrival == BT_ARRIVAL_CLOSED) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "workload.turns: conversations need an open loop, not closed users");
        }
        BT_TRY(bt_dist_validate(&s->turns, "workload.turns", err));
        BT_TRY(bt_dist_validate(&s->turn_gap_s, "workload.turn_gap_s", err));
    }
    return check_size(s, err);
}

static enum bt_code check_trace(const struct bt_workload_spec *s, struct bt_error *err)
{
    if (s->trace_table == NULL && (s->file == NULL || s->file[0] == '\0')) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload.file: a trace file is required");
    }
    if (s->trace.rate_scale != 0.0) {
        BT_TRY(check("rate_scale", s->trace.rate_scale, 0.0, 1e9, 1, err));
    }
    BT_TRY(check("from_s", s->trace.from_s, 0.0, BT_TIME_MAX_S, 0, err));
    BT_TRY(check("limit", (double)s->trace.limit, 0.0, 9e15, 0, err));
    if (s->trace.to_s != 0.0) {
        BT_TRY(check("to_s", s->trace.to_s, s->trace.from_s, BT_TIME_MAX_S, 1, err));
    }
    return BT_OK;
}

enum bt_code bt_workload_validate(const struct bt_workload_spec *spec, struct bt_error *err)
{
    if (spec->rate_scale != 0.0) {
        BT_TRY(check("rate_scale", spec->rate_scale, 0.0, 1e9, 1, err));
    }
    BT_TRY(check("duration_s", spec->duration_s, 0.0, BT_TIME_MAX_S, 0, err));
    BT_TRY(check("n_requests", (double)spec->n_requests, 0.0, 9e15, 0, err));
    BT_TRY(check("timeout_s", spec->timeout_s, 0.0, BT_TIME_MAX_S, 0, err));
    switch (spec->kind) {
    case BT_WORKLOAD_NONE:
        BT_FAIL(err, BT_ERR_INPUT, 0, "workload: none is given");
    case BT_WORKLOAD_GENERATED:
        return check_generated(spec, err);
    case BT_WORKLOAD_SERVEGEN:
        if (spec->dir == NULL || spec->dir[0] == '\0') {
            BT_FAIL(err, BT_ERR_INPUT, 0, "workload.dir: a directory of client models is required");
        }
        BT_TRY(check("start_s", spec->start_s, 0.0, BT_TIME_MAX_S, 0, err));
        return check("target_rate_per_s", spec->target_rate_per_s, 0.0, BT_RATE_MAX, 0, err);
    case BT_WORKLOAD_TRACE:
        return check_trace(spec, err);
    }
    BT_FAIL(err, BT_ERR_INPUT, 0, "workload: unknown kind %d", (int)spec->kind);
}

enum bt_code bt_source_create(const struct bt_workload_spec *spec, uint64_t seed,
                              struct bt_source **out, struct bt_error *err)
{
    BT_TRY(bt_workload_validate(spec, err));
    if (spec->kind == BT_WORKLOAD_GENERATED) {
        return bt_source_create_generated(spec, seed, out, err);
    }
    if (spec->kind == BT_WORKLOAD_SERVEGEN) {
        return bt_source_create_servegen(spec, seed, out, err);
    }
    if (spec->trace_table != NULL) {
        return bt_source_create_table(spec->trace_table, spec->rate_scale, out, err);
    }
    struct bt_trace_opts opts = spec->trace;
    double own = opts.rate_scale > 0.0 ? opts.rate_scale : 1.0;
    opts.rate_scale = own * (spec->rate_scale > 0.0 ? spec->rate_scale : 1.0);
    opts.seed = seed;
    if (opts.timeout_ns == 0) {
        opts.timeout_ns = bt_ns_of_s(spec->timeout_s);
    }
    return bt_source_create_trace(spec->file, &opts, out, err);
}

double bt_workload_mean_rate(const struct bt_workload_spec *spec)
{
    if (spec->kind != BT_WORKLOAD_GENERATED || spec->arrival == BT_ARRIVAL_CLOSED) {
        return -1.0;
    }
    double scale = spec->rate_scale > 0.0 ? spec->rate_scale : 1.0;
    if (spec->points == NULL) {
        return spec->rate_per_s * scale;
    }
    double last = spec->points[spec->n_points - 1].t_s;
    double horizon = spec->period_s > 0.0     ? spec->period_s
                     : spec->duration_s > 0.0 ? spec->duration_s
                                              : last;
    if (horizon <= 0.0) {
        return spec->points[spec->n_points - 1].rate_per_s * scale;
    }
    double area = 0.0;
    for (int32_t i = 0; i < spec->n_points; i++) {
        const struct bt_rate_point *a = &spec->points[i];
        bool is_last = i + 1 == spec->n_points;
        double t1 = is_last ? horizon : spec->points[i + 1].t_s;
        double r1 = is_last ? a->rate_per_s : spec->points[i + 1].rate_per_s;
        if (a->t_s >= horizon || t1 <= a->t_s) {
            continue;
        }
        if (t1 > horizon) {
            r1 = a->rate_per_s + (r1 - a->rate_per_s) * (horizon - a->t_s) / (t1 - a->t_s);
            t1 = horizon;
        }
        area += 0.5 * (a->rate_per_s + r1) * (t1 - a->t_s);
    }
    return area / horizon * scale;
}
