#include "sim/workload/describe.h"

#include "sim/workload/dist.h"
#include "sim/workload/internal.h"
#include "sim/workload/keymap.h"

#include <math.h>
#include <stdlib.h>

static int compare_int32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Nearest-rank percentile of sorted values. */
static int32_t percentile(const int32_t *sorted, int64_t n, double p)
{
    int64_t rank = (int64_t)ceil(p * (double)n);
    return sorted[rank < 1 ? 0 : rank - 1];
}

/* Greatest distance between the empirical distribution and the lognormal of (mu, sigma). Rounding
 * to whole tokens is honoured: the lognormal is asked at x + 1/2. */
static double lognormal_distance(const int32_t *sorted, int64_t n, double mu, double sigma)
{
    double most = 0.0;
    for (int64_t i = 0; i < n;) {
        int64_t j = i;
        while (j < n && sorted[j] == sorted[i]) {
            j++;
        }
        double below = 0.5 * erfc(-(log((double)sorted[i] - 0.5) - mu) / (sigma * sqrt(2.0)));
        double upto = 0.5 * erfc(-(log((double)sorted[i] + 0.5) - mu) / (sigma * sqrt(2.0)));
        most = fmax(most, fabs(below - (double)i / (double)n));
        most = fmax(most, fabs(upto - (double)j / (double)n));
        i = j;
    }
    return most;
}

void bt_length_summarise(int32_t *lengths, int64_t n, struct bt_length_summary *s)
{
    BT_ASSERT(n > 0);
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += lengths[i];
    }
    qsort(lengths, (size_t)n, sizeof *lengths, compare_int32);
    *s = (struct bt_length_summary){
        .mean = sum / (double)n,
        .min = lengths[0],
        .p50 = percentile(lengths, n, 0.50),
        .p90 = percentile(lengths, n, 0.90),
        .p95 = percentile(lengths, n, 0.95),
        .p99 = percentile(lengths, n, 0.99),
        .max = lengths[n - 1],
        .ks_distance = 1.0,
    };
    s->sigma = bt_lognormal_sigma(s->mean, s->p95);
    if (s->sigma > 0.0) {
        double mu = log(s->mean) - s->sigma * s->sigma / 2.0;
        s->ks_distance = lognormal_distance(lengths, n, mu, s->sigma);
    }
}

/* Variance over mean of the arrivals in the whole windows of a length. */
static double dispersion(const struct bt_trace *t, int64_t window_ns, int64_t first_ns,
                         int64_t last_ns)
{
    int64_t n_windows = (last_ns - first_ns) / window_ns;
    if (n_windows < 2) {
        return NAN;
    }
    double sum = 0.0;
    double sum2 = 0.0;
    int64_t window = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < bt_trace_n(t) && window < n_windows; i++) {
        struct bt_request q;
        bt_trace_get(t, i, &q);
        int64_t w = (q.arrival_ns - first_ns) / window_ns;
        if (w != window) {
            sum += (double)count;
            sum2 += (double)count * (double)count;
            count = 0;
            window = w;
        }
        count += w < n_windows;
    }
    if (window < n_windows) {
        sum += (double)count;
        sum2 += (double)count * (double)count;
    }
    double mean = sum / (double)n_windows;
    return (sum2 / (double)n_windows - mean * mean) / mean;
}

static void summarise_arrivals(const struct bt_trace *t, struct bt_trace_summary *s)
{
    const int64_t minute_ns = 60000000000;
    struct bt_request q;
    bt_trace_get(t, 0, &q);
    int64_t first_ns = q.arrival_ns;
    int64_t last_ns = first_ns;
    int64_t in_minute = 0;
    int64_t most = 0;
    int64_t minute = 0;
    double sum2 = 0.0;
    for (int64_t i = 0; i < s->n; i++) {
        bt_trace_get(t, i, &q);
        double gap_s = (double)(q.arrival_ns - last_ns) / BT_NS_PER_S;
        sum2 += gap_s * gap_s;
        last_ns = q.arrival_ns;
        int64_t m = (last_ns - first_ns) / minute_ns;
        in_minute = m == minute ? in_minute + 1 : 1;
        minute = m;
        most = in_minute > most ? in_minute : most;
    }
    s->duration_s = (double)(last_ns - first_ns) / BT_NS_PER_S;
    bool spans = s->n > 1 && s->duration_s > 0.0;
    s->rate_per_s = spans ? (double)(s->n - 1) / s->duration_s : NAN;
    /* Below a minute the mean rate is all there is. */
    s->rate_peak_per_s = s->duration_s >= 60.0 ? (double)most / 60.0 : s->rate_per_s;
    s->interarrival_cv = NAN;
    if (spans && s->n > 2) {
        double n_gaps = (double)(s->n - 1);
        double mean = s->duration_s / n_gaps;
        s->interarrival_cv = sqrt(fmax(sum2 / n_gaps - mean * mean, 0.0)) / mean;
    }
    s->dispersion_1s = dispersion(t, minute_ns / 60, first_ns, last_ns);
    s->dispersion_10s = dispersion(t, minute_ns / 6, first_ns, last_ns);
    s->dispersion_60s = dispersion(t, minute_ns, first_ns, last_ns);
}

static enum bt_code summarise_lengths(const struct bt_trace *t, struct bt_trace_summary *s,
                                      struct bt_error *err)
{
    int32_t *lengths = malloc((size_t)s->n * sizeof *lengths);
    if (lengths == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "trace: no memory for %lld lengths", (long long)s->n);
    }
    struct bt_request q;
    for (int64_t i = 0; i < s->n; i++) {
        bt_trace_get(t, i, &q);
        lengths[i] = q.n_prompt;
    }
    bt_length_summarise(lengths, s->n, &s->prompt);
    for (int64_t i = 0; i < s->n; i++) {
        bt_trace_get(t, i, &q);
        lengths[i] = q.n_output;
    }
    bt_length_summarise(lengths, s->n, &s->output);
    free(lengths);
    return BT_OK;
}

/* Prefix reuse with a cache that forgets nothing: the longest run of known blocks from the start.
 */
static enum bt_code summarise_prefixes(const struct bt_trace *t, struct bt_trace_summary *s,
                                       struct bt_error *err)
{
    struct bt_keymap seen = {0};
    int64_t n_blocks = 0;
    int64_t hit_blocks = 0;
    int64_t n_tokens = 0;
    int64_t hit_tokens = 0;
    enum bt_code code = BT_OK;
    for (int64_t i = 0; i < s->n && code == BT_OK; i++) {
        struct bt_request q;
        bt_trace_get(t, i, &q);
        int32_t hits = 0;
        while (hits < q.n_hashes && bt_keymap_find(&seen, q.hashes[hits]) >= 0) {
            hits++;
        }
        for (int32_t j = hits; j < q.n_hashes && code == BT_OK; j++) {
            code = bt_keymap_put(&seen, q.hashes[j], 1, err);
        }
        int64_t covered = (int64_t)hits * q.hash_tokens;
        n_blocks += q.n_hashes;
        hit_blocks += hits;
        n_tokens += q.n_prompt;
        hit_tokens += covered < q.n_prompt ? covered : q.n_prompt;
    }
    bt_keymap_fini(&seen);
    s->prefix_hit_fraction = n_blocks > 0 ? (double)hit_tokens / (double)n_tokens : NAN;
    s->prefix_hit_block_fraction = n_blocks > 0 ? (double)hit_blocks / (double)n_blocks : NAN;
    return code;
}

static void add_row(struct bt_description *d, const char *name, double value, const char *unit)
{
    BT_ASSERT(d->n_rows < BT_DESCRIBE_MAX_ROWS);
    d->rows[d->n_rows++] = (struct bt_describe_row){.name = name, .value = value, .unit = unit};
}

static double or_nan(double x, bool defined)
{
    return defined ? x : NAN;
}

static void add_load_rows(struct bt_description *d)
{
    const struct bt_trace_summary *s = &d->summary;
    add_row(d, "requests", (double)s->n, "");
    add_row(d, "duration_s", s->duration_s, "s");
    add_row(d, "rate_per_s", s->rate_per_s, "1/s");
    add_row(d, "rate_peak_60s_per_s", s->rate_peak_per_s, "1/s");
    add_row(d, "interarrival_cv", s->interarrival_cv, "");
    add_row(d, "dispersion_1s", s->dispersion_1s, "");
    add_row(d, "dispersion_10s", s->dispersion_10s, "");
    add_row(d, "dispersion_60s", s->dispersion_60s, "");
}

static void add_length_rows(struct bt_description *d)
{
    const struct bt_length_summary *p = &d->summary.prompt;
    const struct bt_length_summary *o = &d->summary.output;
    add_row(d, "prompt_tokens_mean", p->mean, "tokens");
    add_row(d, "prompt_tokens_p50", p->p50, "tokens");
    add_row(d, "prompt_tokens_p90", p->p90, "tokens");
    add_row(d, "prompt_tokens_p95", p->p95, "tokens");
    add_row(d, "prompt_tokens_p99", p->p99, "tokens");
    add_row(d, "prompt_tokens_max", p->max, "tokens");
    add_row(d, "prompt_lognormal_sigma", or_nan(p->sigma, p->sigma >= 0.0), "");
    add_row(d, "prompt_lognormal_distance", or_nan(p->ks_distance, p->sigma > 0.0), "");
    add_row(d, "output_tokens_mean", o->mean, "tokens");
    add_row(d, "output_tokens_p50", o->p50, "tokens");
    add_row(d, "output_tokens_p90", o->p90, "tokens");
    add_row(d, "output_tokens_p95", o->p95, "tokens");
    add_row(d, "output_tokens_p99", o->p99, "tokens");
    add_row(d, "output_tokens_max", o->max, "tokens");
    add_row(d, "output_lognormal_sigma", or_nan(o->sigma, o->sigma >= 0.0), "");
    add_row(d, "output_lognormal_distance", or_nan(o->ks_distance, o->sigma > 0.0), "");
    add_row(d, "prefix_hit_fraction", d->summary.prefix_hit_fraction, "");
    add_row(d, "prefix_hit_block_fraction", d->summary.prefix_hit_block_fraction, "");
}

static void add_oddity_rows(struct bt_description *d, const struct bt_trace_counts *c)
{
    add_row(d, "rows", (double)c->rows, "");
    add_row(d, "failed_in_trace", (double)c->failed_in_trace, "");
    add_row(d, "zero_prompt", (double)c->zero_prompt, "");
    add_row(d, "single_token_outputs", (double)c->single_token, "");
    add_row(d, "sorted", c->sorted, "");
    add_row(d, "unsorted_rows", (double)c->unsorted, "");
    add_row(d, "equal_times", (double)c->equal_times, "");
    add_row(d, "equal_times_most", (double)c->equal_times_most, "");
    add_row(d, "tick_s", (double)c->tick_ns / BT_NS_PER_S, "s");
    add_row(d, "ticks_spread", c->spread, "");
    add_row(d, "hash_trimmed", (double)c->hash_trimmed, "");
    add_row(d, "sessions", (double)c->sessions, "");
}

enum bt_code bt_trace_summarise(const struct bt_trace *t, struct bt_trace_summary *s,
                                struct bt_error *err)
{
    *s = (struct bt_trace_summary){.n = bt_trace_n(t)};
    if (s->n == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "no request to describe (%lld rows, %lld failed, %lld without a prompt; the "
                "rest is cut off)",
                (long long)bt_trace_counts(t)->rows, (long long)bt_trace_counts(t)->failed_in_trace,
                (long long)bt_trace_counts(t)->zero_prompt);
    }
    summarise_arrivals(t, s);
    BT_TRY(summarise_lengths(t, s, err));
    return summarise_prefixes(t, s, err);
}

enum bt_code bt_trace_describe(const struct bt_trace *t, struct bt_description *out,
                               struct bt_error *err)
{
    *out = (struct bt_description){.n_rows = 0};
    BT_TRY(bt_trace_summarise(t, &out->summary, err));
    add_load_rows(out);
    add_length_rows(out);
    add_oddity_rows(out, bt_trace_counts(t));
    return BT_OK;
}
