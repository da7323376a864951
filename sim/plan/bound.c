#include "sim/plan/bound.h"

#include "engine/core/order.h"

#include <math.h>
#include <stdlib.h>

enum { ALONE_SAMPLES = 2048 };

/* Sampled requests stand for all: their percentile must pass the limit by this much to exclude. */
static const double SAMPLE_MARGIN = 1.05;

static const double PS_PER_S = 1e12;

static double step_s(const struct bt_cost *cost, const struct bt_batch *b)
{
    struct bt_cost_parts p = {0};
    cost->ops->step(cost->self, b, &p);
    return (double)p.time_ps / PS_PER_S;
}

static struct bt_batch prefill_batch(int64_t tokens, int64_t before)
{
    return (struct bt_batch){.n_prefill = 1,
                             .n_prefill_tokens = (int32_t)tokens,
                             .prefill_pairs = tokens * before + tokens * (tokens + 1) / 2,
                             .prefill_ctx = before + tokens,
                             .n_logits = 1};
}

static struct bt_batch decode_batch(int64_t n, int64_t ctx)
{
    return (struct bt_batch){.n_decode = (int32_t)n,
                             .n_decode_tokens = (int32_t)n,
                             .decode_ctx = n * ctx,
                             .decode_ctx_long = ctx,
                             .n_logits = (int32_t)n};
}

/* Prompt tokens that a full prefix cache would serve. */
static int64_t cached_tokens(const struct bt_deploy *d, const struct bt_request *r)
{
    int64_t covered = (int64_t)r->n_hashes * r->hash_tokens;
    int64_t most = r->n_prompt - 1;
    return d->config.prefix_cache ? (covered < most ? covered : most) : 0;
}

struct alone {
    double ttft_s, e2e_s, tpot_s; /* tpot_s 0 for one token */
};

/* One request on an idle replica. */
static struct alone run_alone(const struct bt_deploy *d, const struct bt_request *r)
{
    struct alone a = {0};
    int64_t cached = cached_tokens(d, r);
    int64_t uncached = r->n_prompt - cached;
    /* Prefill in the chunks that the budget allows. */
    int64_t budget = d->sched.max_batched_tokens;
    if (!d->sched.chunked_prefill || budget < 1) {
        budget = uncached;
    }
    for (int64_t at = 0; at < uncached; at += budget) {
        int64_t n = uncached - at < budget ? uncached - at : budget;
        struct bt_batch b = prefill_batch(n, cached + at);
        a.ttft_s += step_s(&d->cost, &b);
    }
    a.e2e_s = a.ttft_s;
    if (r->n_output > 1) {
        double per_step = d->config.spec.kind == BT_SPEC_NONE ? 1 : 1 + d->config.spec.k;
        int32_t steps = (int32_t)ceil((r->n_output - 1) / per_step);
        struct bt_batch b = decode_batch(1, r->n_prompt);
        struct bt_cost_parts p = {0};
        d->cost.ops->span(d->cost.self, &b, steps, &p);
        double decode_s = (double)p.time_ps / PS_PER_S;
        a.e2e_s += decode_s;
        a.tpot_s = decode_s / (r->n_output - 1);
    }
    return a;
}

static double statistic_of(double *v, int64_t n, enum bt_stat stat)
{
    static const double ps[BT_N_STATS] = {[BT_STAT_P50] = 0.5,
                                          [BT_STAT_P90] = 0.9,
                                          [BT_STAT_P95] = 0.95,
                                          [BT_STAT_P99] = 0.99,
                                          [BT_STAT_MAX] = 1};
    qsort(v, (size_t)n, sizeof *v, bt_compare_doubles);
    if (stat == BT_STAT_MEAN) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) {
            sum += v[i];
        }
        return sum / (double)n;
    }
    int64_t rank = (int64_t)ceil(ps[stat] * (double)n);
    return v[rank < 1 ? 0 : rank - 1];
}

static void bound_latency(const struct bt_plan_spec *spec, const struct bt_deploy *d,
                          const struct bt_stream *s, struct bt_bound *out)
{
    double ttft[ALONE_SAMPLES], e2e[ALONE_SAMPLES], tpot[ALONE_SAMPLES], scratch[ALONE_SAMPLES];
    int64_t stride = (s->n_requests + ALONE_SAMPLES - 1) / ALONE_SAMPLES;
    int64_t n = 0, n_tpot = 0;
    for (int64_t i = 0; i < s->n_requests; i += stride) {
        struct alone a = run_alone(d, &s->requests[i]);
        ttft[n] = a.ttft_s;
        e2e[n++] = a.e2e_s;
        if (a.tpot_s > 0) {
            tpot[n_tpot++] = a.tpot_s;
        }
    }
    double margin = stride > 1 ? SAMPLE_MARGIN : 1;
    for (int32_t i = spec->n_slos - 1; i >= 0; i--) {
        const struct bt_slo *slo = &spec->slos[i];
        /* A request alone waits for nothing, and its gaps are its decode steps. */
        const double *from = slo->metric == BT_SLO_TTFT  ? ttft
                             : slo->metric == BT_SLO_E2E ? e2e
                                                         : tpot;
        int64_t k = from == tpot ? n_tpot : n;
        if (slo->metric == BT_SLO_QUEUE || slo->metric == BT_SLO_ITL || k == 0) {
            continue;
        }
        for (int64_t j = 0; j < k; j++) {
            scratch[j] = from[j];
        }
        double v = statistic_of(scratch, k, slo->stat);
        bool missed = v > margin * (double)slo->limit_ns / 1e9;
        if (missed || out->slo < 0) {
            out->alone_s = v;
        }
        if (missed) {
            out->slo = i;
        }
    }
}

/* Useful FLOPs and KV bytes of a batch, for sums over the stream. */
static double flops_of(const struct bt_cost *cost, const struct bt_batch *b)
{
    struct bt_cost_parts p = {0};
    cost->ops->step(cost->self, b, &p);
    return (double)p.flops;
}

static void raise_bound(struct bt_bound *out, double replicas, const char *what)
{
    double n = ceil(replicas - 1e-9);
    if (n > out->replicas) {
        out->replicas = n > BT_MAX_REPLICAS ? BT_MAX_REPLICAS : (int32_t)n;
        out->binding = what;
    }
}

static void bound_replicas(const struct bt_plan_spec *spec, const struct bt_deploy *d,
                           const struct bt_stream *s, struct bt_bound *out)
{
    if (s->closed_users > 0) {
        return;
    }
    double slack_s = 0;
    for (int32_t i = 0; i < spec->n_slos; i++) {
        if (spec->slos[i].metric == BT_SLO_E2E) {
            slack_s = fmax(slack_s, (double)spec->slos[i].limit_ns / 1e9);
        }
    }
    /* Without a limit on E2E the last answers may take as long as they like. */
    double span_s = (double)s->span_ns / 1e9;
    span_s += slack_s > 0 ? slack_s : span_s;
    double prefill_flops = 0, decode_flops = 0, kv_read = 0, kv_held = 0;
    struct bt_batch one = decode_batch(1, 1);
    double shortest_step_s = step_s(&d->cost, &one);
    double per_step = d->config.spec.kind == BT_SPEC_NONE ? 1 : 1 + d->config.spec.k;
    double flops_per_decode = flops_of(&d->cost, &one);
    struct bt_batch chunk = prefill_batch(1024, 0);
    double flops_per_prefill = flops_of(&d->cost, &chunk) / 1024;
    for (int64_t i = 0; i < s->n_requests; i++) {
        const struct bt_request *r = &s->requests[i];
        if (r->n_prompt + r->n_output > d->max_model_len &&
            d->config.over_length != BT_OVER_ALLOW) {
            continue;
        }
        double uncached = (double)(r->n_prompt - cached_tokens(d, r));
        double steps = (r->n_output - 1) / per_step;
        prefill_flops += uncached * flops_per_prefill;
        decode_flops += (r->n_output - 1) * flops_per_decode;
        kv_read += steps * r->n_prompt;
        /* Shared prefixes may be held once for all. */
        kv_held += (uncached + 0.5 * r->n_output) * steps * shortest_step_s;
    }
    /* A verification of 1 + k tokens computes as much a token; attention's share grows with the
     * prompt and is left out. */
    double flops = prefill_flops + decode_flops;
    double kv_bytes = kv_read * (double)d->memory.kv_bytes_per_token * d->config.tp;
    if (d->arch.sliding_window > 0) {
        kv_bytes = 0;
        kv_held = 0;
    }
    if (d->cost.peak_flops_per_s > 0) {
        raise_bound(out, flops / (d->cost.peak_flops_per_s * span_s), "compute");
    }
    if (d->cost.peak_bytes_per_s > 0) {
        raise_bound(out, kv_bytes / (d->cost.peak_bytes_per_s * span_s), "KV bandwidth");
    }
    raise_bound(out, kv_held / ((double)d->memory.kv_tokens_total * span_s), "KV memory");
}

void bt_bound_compute(const struct bt_plan_spec *spec, const struct bt_deploy *deploy,
                      const struct bt_stream *stream, struct bt_bound *out)
{
    *out = (struct bt_bound){.replicas = 1, .binding = "", .slo = -1, .alone_s = NAN};
    bound_latency(spec, deploy, stream, out);
    bound_replicas(spec, deploy, stream, out);
}

/* Mean tokens of a verification: accepted ones and the bonus. */
static double tokens_per_verification(double a, int32_t k)
{
    double sum = 1, p = 1;
    for (int32_t i = 0; i < k; i++) {
        p *= a;
        sum += p;
    }
    return sum;
}

double bt_break_even_acceptance(const struct bt_deploy *deploy, double batch, double context)
{
    const struct bt_spec_config *spec = &deploy->config.spec;
    if (spec->kind == BT_SPEC_NONE) {
        return NAN;
    }
    int64_t n = batch < 1 ? 1 : llround(batch);
    struct bt_batch plain = decode_batch(n, llround(context));
    struct bt_batch verify = plain;
    verify.n_decode_tokens = (int32_t)(n * (1 + spec->k));
    verify.n_logits = verify.n_decode_tokens;
    verify.n_draft_steps = spec->k;
    double ratio = step_s(&deploy->cost, &verify) / step_s(&deploy->cost, &plain);
    if (ratio <= 1) {
        return 0;
    }
    if (ratio >= 1 + spec->k) {
        return NAN;
    }
    double low = 0, high = 1;
    for (int32_t i = 0; i < 60; i++) {
        double mid = 0.5 * (low + high);
        if (tokens_per_verification(mid, spec->k) < ratio) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return 0.5 * (low + high);
}
