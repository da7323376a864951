/* A generated workload fitted to a trace, as Lua text. */
#include "sim/workload/describe.h"
#include "sim/workload/internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const double LOGNORMAL_KS_MAX = 0.08;
static const double POISSON_CV_SLACK = 0.05;
/* A rate profile is written when the minutes' dispersion passes this many times cv^2, which is
 * what renewal arrivals of a constant rate give. */
static const double PROFILE_DISPERSION = 2.0;

enum { PROFILE_MAX_POINTS = 48, PROFILE_MIN_WINDOWS = 10 };

/* Text that grows; after a failure it stays as it is. */
struct text {
    char *s; /* owned */
    int64_t n, cap;
    enum bt_code code;
    struct bt_error *err; /* borrowed */
};

static void add(struct text *t, const char *fmt, ...) BT_PRINTF(2, 3);

static void add(struct text *t, const char *fmt, ...)
{
    if (t->code != BT_OK) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    char piece[256];
    int n = vsnprintf(piece, sizeof piece, fmt, args);
    va_end(args);
    BT_ASSERT(n >= 0);
    BT_ASSERT((size_t)n < sizeof piece);
    t->code = bt_array_grow((void **)&t->s, &t->cap, t->n + n + 1, 1, t->err);
    if (t->code == BT_OK) {
        memcpy(t->s + t->n, piece, (size_t)n + 1);
        t->n += n;
    }
}

struct bin_edge {
    double upto, step;
};

/* Bins get finer towards the tail, where latency is decided. */
static const struct bin_edge bin_edges[] = {{0.90, 0.025}, {0.99, 0.01}, {1.0, 0.0025}};

static void add_empirical(struct text *t, const int32_t *sorted, int64_t n)
{
    char weights[1024];
    size_t at = 0;
    int64_t i = 0;
    double q = 0.0;
    const char *comma = "";
    add(t, "w.empirical {\n    values = { ");
    for (size_t e = 0; e < sizeof bin_edges / sizeof *bin_edges; e++) {
        while (q < bin_edges[e].upto - 1e-9) {
            q += bin_edges[e].step;
            int64_t end = llround(q * (double)n);
            end = end > n ? n : end;
            if (end <= i) {
                continue;
            }
            double sum = 0.0;
            for (int64_t j = i; j < end; j++) {
                sum += sorted[j];
            }
            add(t, "%s%.6g", comma, sum / (double)(end - i));
            int len =
                snprintf(weights + at, sizeof weights - at, "%s%lld", comma, (long long)(end - i));
            BT_ASSERT(len > 0);
            BT_ASSERT((size_t)len < sizeof weights - at);
            at += (size_t)len;
            comma = ", ";
            i = end;
        }
    }
    BT_ASSERT(i == n);
    /* A piece of text is short; the weights go in by parts. */
    add(t, " },\n    weights = { ");
    for (size_t from = 0; from < at; from += 200) {
        add(t, "%.200s", weights + from);
    }
    add(t, " },\n  }");
}

static void add_lengths(struct text *t, const char *key, const int32_t *sorted, int64_t n,
                        const struct bt_length_summary *s)
{
    add(t, "  %s = ", key);
    if (s->min == s->max) {
        add(t, "w.const(%d)", s->min);
    } else if (s->sigma > 0.0 && s->ks_distance <= LOGNORMAL_KS_MAX) {
        add(t, "w.lognormal { mean = %.6g, p95 = %d }", s->mean, s->p95);
    } else {
        add_empirical(t, sorted, n);
    }
    add(t, ",\n");
}

/* The rate in windows of equal length as a profile through their middles, and the CV of the gaps
 * with each counted at its window's rate. */
static void add_profile(struct text *t, const struct bt_trace *trace,
                        const struct bt_trace_summary *s, double window_s, int32_t n_windows)
{
    double count[PROFILE_MAX_POINTS] = {0};
    struct bt_request q;
    bt_trace_get(trace, 0, &q);
    int64_t first_ns = q.arrival_ns;
    for (int64_t i = 0; i < s->n; i++) {
        bt_trace_get(trace, i, &q);
        int32_t w = (int32_t)((double)(q.arrival_ns - first_ns) / BT_NS_PER_S / window_s);
        count[w < n_windows ? w : n_windows - 1] += 1.0;
    }
    double sum = 0.0;
    double sum2 = 0.0;
    int64_t last_ns = first_ns;
    for (int64_t i = 1; i < s->n; i++) {
        bt_trace_get(trace, i, &q);
        int32_t w = (int32_t)((double)(last_ns - first_ns) / BT_NS_PER_S / window_s);
        double rate = count[w < n_windows ? w : n_windows - 1] / window_s;
        double x = (double)(q.arrival_ns - last_ns) / BT_NS_PER_S * rate;
        sum += x;
        sum2 += x * x;
        last_ns = q.arrival_ns;
    }
    double mean = sum / (double)(s->n - 1);
    double cv = sqrt(fmax(sum2 / (double)(s->n - 1) - mean * mean, 0.0)) / mean;
    cv = fmin(fmax(cv, BT_ARRIVAL_CV_MIN), BT_ARRIVAL_CV_MAX);
    add(t, "w.diurnal {\n  points = {\n    { t_s = 0, rate_per_s = %.6g },\n", count[0] / window_s);
    for (int32_t w = 0; w < n_windows; w++) {
        add(t, "    { t_s = %.6g, rate_per_s = %.6g },\n", (w + 0.5) * window_s,
            count[w] / window_s);
    }
    add(t, "  },\n  cv = %.3g, duration_s = %.6g,\n", cv, s->duration_s);
}

static void add_arrivals(struct text *t, const struct bt_trace *trace,
                         const struct bt_trace_summary *s)
{
    if (!(s->rate_per_s > 0.0)) {
        /* All at one moment: as many, as close together as the clock tells. */
        add(t, "w.constant {\n  rate_per_s = %.6g, n_requests = %lld,\n", BT_RATE_MAX,
            (long long)s->n);
        return;
    }
    double cv = isnan(s->interarrival_cv) ? 1.0 : s->interarrival_cv;
    int32_t n_windows = (int32_t)fmin(s->duration_s / 60.0, PROFILE_MAX_POINTS);
    if (n_windows >= PROFILE_MIN_WINDOWS && s->dispersion_60s > PROFILE_DISPERSION * cv * cv) {
        add_profile(t, trace, s, s->duration_s / n_windows, n_windows);
        return;
    }
    if (fabs(cv - 1.0) <= POISSON_CV_SLACK) {
        add(t, "w.poisson {\n  rate_per_s = %.6g, duration_s = %.6g,\n", s->rate_per_s,
            s->duration_s);
    } else if (cv < BT_ARRIVAL_CV_MIN) {
        add(t, "w.constant {\n  rate_per_s = %.6g, n_requests = %lld,\n", s->rate_per_s,
            (long long)s->n);
    } else {
        add(t, "w.gamma {\n  rate_per_s = %.6g, cv = %.3g, duration_s = %.6g,\n", s->rate_per_s,
            fmin(cv, BT_ARRIVAL_CV_MAX), s->duration_s);
    }
}

enum bt_code bt_trace_fit_lua(const struct bt_trace *trace, char **out, struct bt_error *err)
{
    struct bt_trace_summary s;
    BT_TRY(bt_trace_summarise(trace, &s, err));
    struct text t = {.err = err};
    int32_t *lengths = malloc((size_t)s.n * sizeof *lengths);
    if (lengths == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "trace: no memory for %lld lengths", (long long)s.n);
    }
    if (!isnan(s.prefix_hit_fraction)) {
        add(&t,
            "-- Not in this fit: %.1f%% of the trace's prompt tokens repeat an earlier prefix.\n",
            100.0 * s.prefix_hit_fraction);
    }
    add_arrivals(&t, trace, &s);
    for (int32_t side = 0; side < 2; side++) {
        struct bt_length_summary l;
        for (int64_t i = 0; i < s.n; i++) {
            struct bt_request q;
            bt_trace_get(trace, i, &q);
            lengths[i] = side == 0 ? q.n_prompt : q.n_output;
        }
        bt_length_summarise(lengths, s.n, &l);
        add_lengths(&t, side == 0 ? "prompt" : "output", lengths, s.n, &l);
    }
    add(&t, "}\n");
    free(lengths);
    if (t.code != BT_OK) {
        free(t.s);
        return t.code;
    }
    *out = t.s;
    return BT_OK;
}
