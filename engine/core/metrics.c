#include "engine/core/metrics.h"

#include "engine/core/samples.h"

#include <math.h>
#include <string.h>

static const int64_t DEFAULT_EXACT_MAX = 1000000;
static const int64_t DEFAULT_WINDOW_NS = INT64_C(1000000000);
static const int64_t EXACT_MAX_MOST = INT64_C(1) << 32;
static const int64_t WINDOW_NS_MOST = INT64_C(1) << 50; /* 13 days */

/* The bottleneck's thresholds; metrics.h states the rule. */
static const double COMPUTE_SATURATED = 0.6;   /* of peak FLOP/s in steps */
static const double ACTIVE_MIN = 0.8;          /* of the time, for the device to be what binds */
static const double CAUSE_MIN = 0.1;           /* of the time, or of all request-seconds */
static const double AUTO_KV_MIN = 0.5;         /* of the KV pool used */
static const double RIDGE_TOKENS_A_STEP = 200; /* FLOP per byte of weights at 16 bit */

/* What a window adds up. Times and integrals are over all replicas. */
struct window_sums {
    int64_t arrived, finished;
    int64_t preempt_swap, preempt_recompute;
    int64_t ttft_max_ns, e2e_max_ns; /* -1: none */
    /* From gauges. */
    int64_t blocked_ns[BT_N_BLOCK_REASONS]; /* by why the head waits */
    int64_t charged_ns[BT_N_BLOCK_REASONS]; /* by what that is charged to */
    double waited_ns[BT_N_BLOCK_REASONS];   /* request-ns waiting or swapped, charged likewise */
    double running_ns, waiting_ns, swapped_ns;
    double kv_used_ns, kv_total_ns;  /* blocks */
    double kv_slots_ns, kv_token_ns; /* token slots, tokens */
    /* From steps. */
    double busy_ns, host_ns, stall_ns;
    double flops, bytes;
    double fill_ns;
    double n_steps, n_tokens;
};

struct replica {
    struct bt_gauge gauge; /* since t_ns */
    enum bt_block_reason charge;
    int64_t t_ns;
};

struct bt_metrics {
    struct bt_metrics_opts opts; /* defaults filled in; slos is NULL */
    struct bt_slo slos[BT_MAX_SLOS];
    int64_t limit_ns[BT_N_SLO_METRICS]; /* tightest on each metric; INT64_MAX: none */

    struct bt_samples ttft, tpot, itl, e2e, queue;
    int64_t *scratch_values, *scratch_counts; /* owned by the arena, for sorting */

    int64_t arrived, warmup_requests, ended;
    int64_t outcomes[BT_N_OUTCOMES];
    int64_t rejects[BT_N_REJECTS];
    int64_t degraded;
    int64_t n_good, n_good_counted; /* of all; of those after the warm-up */
    int64_t first_arrival_ns, last_finish_ns;
    double out_tokens, total_tokens; /* of finished requests */
    int64_t swap_bytes, prompt_tokens, cached_tokens, recomputed_tokens;
    int64_t steps, prefill_tokens, decode_tokens;
    int64_t kv_total_now, kv_used_now, kv_used_peak;

    /* Little's law; times since the first call of arrive, so that the sums stay small. */
    int64_t base_ns, last_event_ns;
    double arrive_sum_ns, end_sum_ns;            /* of the calls */
    double ended_arrival_sum_ns, sojourn_sum_ns; /* of the records */

    int64_t spec_emitted;
    int64_t verified[BT_MAX_SPEC_K + 1][BT_MAX_SPEC_K + 1]; /* [proposed][accepted] */

    /* Windows of width_ns from origin_ns on. The one used last is remembered by its bounds. */
    int64_t origin_ns, width_ns;
    int32_t cur;
    int64_t cur_start_ns, cur_end_ns;
    struct window_sums windows[BT_MAX_WINDOWS];

    struct replica *replicas; /* owned by the arena: [n_replicas] */
};

static const struct window_sums NO_SUMS = {.ttft_max_ns = -1, .e2e_max_ns = -1};

static enum bt_code check_opts(const struct bt_metrics_opts *o, struct bt_error *err)
{
    if (o->n_replicas < 1 || o->n_replicas > BT_MAX_REPLICAS) {
        BT_FAIL(err, BT_ERR_ARG, o->n_replicas, "metrics.n_replicas: %d must be in 1..%d",
                o->n_replicas, BT_MAX_REPLICAS);
    }
    const struct {
        const char *name;
        int64_t value, most;
    } counts[] = {
        {"exact_max", o->exact_max, EXACT_MAX_MOST},
        {"itl_exact_max", o->itl_exact_max, EXACT_MAX_MOST},
        {"warmup_until_ns", o->warmup_until_ns, INT64_MAX},
        {"window_ns", o->window_ns, WINDOW_NS_MOST},
        {"n_slos", o->n_slos, BT_MAX_SLOS},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].value < 0 || counts[i].value > counts[i].most) {
            BT_FAIL(err, BT_ERR_ARG, counts[i].value, "metrics.%s: %lld must be in 0..%lld",
                    counts[i].name, (long long)counts[i].value, (long long)counts[i].most);
        }
    }
    if (!(o->peak_flops_per_s >= 0.0 && isfinite(o->peak_flops_per_s))) {
        BT_FAIL(err, BT_ERR_ARG, 0, "metrics.peak_flops_per_s: %g must be finite and >= 0",
                o->peak_flops_per_s);
    }
    if (!(o->peak_bytes_per_s >= 0.0 && isfinite(o->peak_bytes_per_s))) {
        BT_FAIL(err, BT_ERR_ARG, 0, "metrics.peak_bytes_per_s: %g must be finite and >= 0",
                o->peak_bytes_per_s);
    }
    for (int32_t i = 0; i < o->n_slos; i++) {
        if (o->slos[i].limit_ns <= 0) {
            BT_FAIL(err, BT_ERR_ARG, i, "metrics.slos[%d]: limit %lld ns must be > 0", i,
                    (long long)o->slos[i].limit_ns);
        }
    }
    return BT_OK;
}

static enum bt_code init_samples(struct bt_metrics *m, struct bt_arena *arena, struct bt_error *err)
{
    int64_t n = m->opts.exact_max;
    int64_t n_itl = m->opts.itl_exact_max;
    BT_TRY(bt_samples_init(&m->ttft, arena, n, false, err));
    BT_TRY(bt_samples_init(&m->tpot, arena, n, false, err));
    BT_TRY(bt_samples_init(&m->e2e, arena, n, false, err));
    BT_TRY(bt_samples_init(&m->queue, arena, n, false, err));
    BT_TRY(bt_samples_init(&m->itl, arena, n_itl, true, err));
    BT_ARENA_ARRAY_RAW(arena, m->scratch_values, n > n_itl ? n : n_itl, err);
    BT_ARENA_ARRAY_RAW(arena, m->scratch_counts, n_itl, err);
    return BT_OK;
}

enum bt_code bt_metrics_create(struct bt_arena *arena, const struct bt_metrics_opts *opts,
                               struct bt_metrics **out, struct bt_error *err)
{
    *out = NULL;
    BT_TRY(check_opts(opts, err));
    struct bt_metrics *m;
    BT_ARENA_ARRAY(arena, m, 1, err);
    m->opts = *opts;
    m->opts.slos = NULL;
    m->opts.exact_max = opts->exact_max > 0 ? opts->exact_max : DEFAULT_EXACT_MAX;
    m->opts.itl_exact_max = opts->itl_exact_max > 0 ? opts->itl_exact_max : DEFAULT_EXACT_MAX;
    m->width_ns = opts->window_ns > 0 ? opts->window_ns : DEFAULT_WINDOW_NS;
    for (int32_t i = 0; i < BT_N_SLO_METRICS; i++) {
        m->limit_ns[i] = INT64_MAX;
    }
    for (int32_t i = 0; i < opts->n_slos; i++) {
        m->slos[i] = opts->slos[i];
        int64_t *limit_ns = &m->limit_ns[m->slos[i].metric];
        *limit_ns = m->slos[i].limit_ns < *limit_ns ? m->slos[i].limit_ns : *limit_ns;
    }
    BT_TRY(init_samples(m, arena, err));
    BT_ARENA_ARRAY(arena, m->replicas, opts->n_replicas, err);
    for (int32_t i = 0; i < BT_MAX_WINDOWS; i++) {
        m->windows[i] = NO_SUMS;
    }
    *out = m;
    return BT_OK;
}

/* Windows. */

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void sums_merge(struct window_sums *a, const struct window_sums *b)
{
    a->arrived += b->arrived;
    a->finished += b->finished;
    a->preempt_swap += b->preempt_swap;
    a->preempt_recompute += b->preempt_recompute;
    a->ttft_max_ns = max_i64(a->ttft_max_ns, b->ttft_max_ns);
    a->e2e_max_ns = max_i64(a->e2e_max_ns, b->e2e_max_ns);
    for (int32_t i = 0; i < BT_N_BLOCK_REASONS; i++) {
        a->blocked_ns[i] += b->blocked_ns[i];
        a->charged_ns[i] += b->charged_ns[i];
        a->waited_ns[i] += b->waited_ns[i];
    }
    a->running_ns += b->running_ns;
    a->waiting_ns += b->waiting_ns;
    a->swapped_ns += b->swapped_ns;
    a->kv_used_ns += b->kv_used_ns;
    a->kv_total_ns += b->kv_total_ns;
    a->kv_slots_ns += b->kv_slots_ns;
    a->kv_token_ns += b->kv_token_ns;
    a->busy_ns += b->busy_ns;
    a->host_ns += b->host_ns;
    a->stall_ns += b->stall_ns;
    a->flops += b->flops;
    a->bytes += b->bytes;
    a->fill_ns += b->fill_ns;
    a->n_steps += b->n_steps;
    a->n_tokens += b->n_tokens;
}

static void double_width(struct bt_metrics *m)
{
    for (int32_t i = 0; i < BT_MAX_WINDOWS / 2; i++) {
        struct window_sums pair = m->windows[2 * i];
        sums_merge(&pair, &m->windows[2 * i + 1]);
        m->windows[i] = pair;
    }
    for (int32_t i = BT_MAX_WINDOWS / 2; i < BT_MAX_WINDOWS; i++) {
        m->windows[i] = NO_SUMS;
    }
    m->width_ns *= 2;
}

/* The window that t_ns lies in; [cur_start_ns, cur_end_ns) are its bounds afterwards. What lies
 * before the first window counts as its first moment. */
static struct window_sums *window_at(struct bt_metrics *m, int64_t t_ns)
{
    if (t_ns >= m->cur_start_ns && t_ns < m->cur_end_ns) {
        return &m->windows[m->cur];
    }
    BT_ASSERT(m->arrived > 0);
    int64_t since_ns = max_i64(t_ns - m->origin_ns, 0);
    while (since_ns / m->width_ns >= BT_MAX_WINDOWS) {
        double_width(m);
    }
    m->cur = (int32_t)(since_ns / m->width_ns);
    m->cur_start_ns = m->origin_ns + m->cur * m->width_ns;
    m->cur_end_ns = m->cur_start_ns + m->width_ns;
    return &m->windows[m->cur];
}

/* Requests. */

void bt_metrics_arrive(struct bt_metrics *m, int64_t arrival_ns)
{
    BT_ASSERT(arrival_ns >= 0);
    if (m->arrived == 0) {
        m->first_arrival_ns = m->base_ns = arrival_ns;
        m->origin_ns = arrival_ns - arrival_ns % m->width_ns;
    }
    m->arrived++;
    m->first_arrival_ns = min_i64(m->first_arrival_ns, arrival_ns);
    m->warmup_requests += arrival_ns < m->opts.warmup_until_ns;
    m->last_event_ns = max_i64(m->last_event_ns, arrival_ns);
    m->arrive_sum_ns += (double)(arrival_ns - m->base_ns);
    window_at(m, arrival_ns)->arrived++;
}

void bt_metrics_set_warmup(struct bt_metrics *m, int64_t until_ns)
{
    BT_ASSERT(m->warmup_requests == m->arrived && until_ns >= 0);
    m->opts.warmup_until_ns = until_ns;
}

int64_t bt_metrics_warmup_until_ns(const struct bt_metrics *m)
{
    return m->opts.warmup_until_ns;
}

void bt_metrics_deliver(struct bt_metrics *m, int64_t arrival_ns, int64_t gap_ns, int32_t n_tokens,
                        int64_t count)
{
    BT_DEBUG_ASSERT(n_tokens > 0);
    BT_DEBUG_ASSERT(gap_ns >= -1);
    if (arrival_ns < m->opts.warmup_until_ns) {
        return;
    }
    if (gap_ns >= 0) {
        bt_samples_add(&m->itl, gap_ns, count);
    }
    if (n_tokens > 1) {
        bt_samples_add(&m->itl, 0, (n_tokens - 1) * count);
    }
}

static int64_t tpot_ns(const struct bt_req_record *r)
{
    return r->n_output < 2 ? -1 : (r->last_token_ns - r->first_token_ns) / (r->n_output - 1);
}

static bool is_good(const struct bt_metrics *m, const struct bt_req_record *r)
{
    return r->outcome == BT_OUTCOME_FINISHED &&
           r->first_token_ns - r->arrival_ns <= m->limit_ns[BT_SLO_TTFT] &&
           tpot_ns(r) <= m->limit_ns[BT_SLO_TPOT] && r->gap_max_ns <= m->limit_ns[BT_SLO_ITL] &&
           r->end_ns - r->arrival_ns <= m->limit_ns[BT_SLO_E2E] &&
           r->scheduled_ns - r->arrival_ns <= m->limit_ns[BT_SLO_QUEUE];
}

static void check_record(const struct bt_req_record *r)
{
    BT_ASSERT((unsigned)r->outcome < BT_N_OUTCOMES);
    BT_ASSERT((unsigned)r->reject < BT_N_REJECTS);
    BT_ASSERT((r->outcome == BT_OUTCOME_REJECTED) == (r->reject != BT_REJECT_NONE));
    BT_ASSERT(r->arrival_ns >= 0);
    BT_ASSERT(r->end_ns >= r->arrival_ns);
    BT_ASSERT(r->scheduled_ns == -1 || r->scheduled_ns >= r->arrival_ns);
    BT_ASSERT(r->n_output >= 0);
    BT_ASSERT((r->n_output > 0) == (r->first_token_ns != -1));
    if (r->n_output > 0) {
        BT_ASSERT(r->first_token_ns >= r->scheduled_ns);
        BT_ASSERT(r->last_token_ns >= r->first_token_ns);
        BT_ASSERT(r->end_ns >= r->last_token_ns);
        BT_ASSERT(r->gap_max_ns >= -1);
    }
    if (r->outcome == BT_OUTCOME_FINISHED) {
        BT_ASSERT(r->n_output > 0);
        BT_ASSERT(r->scheduled_ns != -1);
    }
}

static void add_latencies(struct bt_metrics *m, const struct bt_req_record *r)
{
    bt_samples_add(&m->ttft, r->first_token_ns - r->arrival_ns, 1);
    bt_samples_add(&m->e2e, r->end_ns - r->arrival_ns, 1);
    bt_samples_add(&m->queue, r->scheduled_ns - r->arrival_ns, 1);
    if (r->n_output >= 2) {
        bt_samples_add(&m->tpot, tpot_ns(r), 1);
    }
}

void bt_metrics_end(struct bt_metrics *m, const struct bt_req_record *r)
{
    check_record(r);
    BT_ASSERT(m->ended < m->arrived);
    m->ended++;
    m->outcomes[r->outcome]++;
    m->rejects[r->reject]++;
    m->degraded += r->degraded;
    m->last_event_ns = max_i64(m->last_event_ns, r->end_ns);
    m->end_sum_ns += (double)(r->end_ns - m->base_ns);
    m->ended_arrival_sum_ns += (double)(r->arrival_ns - m->base_ns);
    m->sojourn_sum_ns += (double)(r->end_ns - r->arrival_ns);

    struct window_sums *w = window_at(m, r->end_ns);
    bool finished = r->outcome == BT_OUTCOME_FINISHED;
    if (finished || r->outcome == BT_OUTCOME_TIMED_OUT) {
        w->e2e_max_ns = max_i64(w->e2e_max_ns, r->end_ns - r->arrival_ns);
        if (r->first_token_ns != -1) {
            w->ttft_max_ns = max_i64(w->ttft_max_ns, r->first_token_ns - r->arrival_ns);
        }
    }
    if (!finished) {
        return;
    }
    w->finished++;
    m->last_finish_ns = max_i64(m->last_finish_ns, r->end_ns);
    m->out_tokens += r->n_output;
    m->total_tokens += (double)r->n_prompt + r->n_output;
    bool good = is_good(m, r);
    m->n_good += good;
    if (r->arrival_ns >= m->opts.warmup_until_ns) {
        m->n_good_counted += good;
        add_latencies(m, r);
    }
}

void bt_metrics_preempt(struct bt_metrics *m, int64_t now_ns, bool swap, int64_t bytes)
{
    BT_ASSERT(bytes >= 0);
    struct window_sums *w = window_at(m, now_ns);
    w->preempt_swap += swap;
    w->preempt_recompute += !swap;
    m->swap_bytes += bytes;
}

void bt_metrics_swap_bytes(struct bt_metrics *m, int64_t bytes)
{
    BT_ASSERT(bytes >= 0);
    m->swap_bytes += bytes;
}

void bt_metrics_prefix(struct bt_metrics *m, int64_t prompt_tokens, int64_t cached_tokens)
{
    BT_ASSERT(cached_tokens >= 0);
    BT_ASSERT(cached_tokens <= prompt_tokens);
    m->prompt_tokens += prompt_tokens;
    m->cached_tokens += cached_tokens;
}

void bt_metrics_recompute(struct bt_metrics *m, int64_t tokens)
{
    BT_ASSERT(tokens >= 0);
    m->recomputed_tokens += tokens;
}

void bt_metrics_verify(struct bt_metrics *m, int32_t k, int32_t n_accepted, int32_t n_emitted)
{
    BT_ASSERT(k >= 1 && k <= BT_MAX_SPEC_K);
    BT_ASSERT(n_accepted >= 0 && n_accepted <= k);
    BT_ASSERT(n_emitted >= 0 && n_emitted <= n_accepted + 1);
    m->verified[k][n_accepted]++;
    m->spec_emitted += n_emitted;
}

/* Steps and gauges. */

static void step_add(struct window_sums *w, const struct bt_step_usage *u, double n_steps,
                     double fill, double share)
{
    w->busy_ns += (double)u->busy_ns * share;
    w->host_ns += (double)u->host_ns * share;
    w->stall_ns += u->swap_stall ? (double)(u->done_ns - u->start_ns) * share : 0.0;
    w->flops += (double)u->flops * share;
    w->bytes += (double)u->bytes * share;
    w->fill_ns += (double)u->busy_ns * share * fill;
    w->n_steps += n_steps * share;
    w->n_tokens += (double)(u->n_prefill_tokens + u->n_decode_tokens) * share;
}

void bt_metrics_step(struct bt_metrics *m, int32_t replica, const struct bt_step_usage *u)
{
    BT_ASSERT(replica >= 0 && replica < m->opts.n_replicas);
    BT_ASSERT(u->done_ns >= u->start_ns);
    BT_ASSERT(u->busy_ns >= 0 && u->host_ns >= 0);
    int32_t n_steps = u->n_steps > 0 ? u->n_steps : 1;
    m->steps += n_steps;
    m->prefill_tokens += u->n_prefill_tokens;
    m->decode_tokens += u->n_decode_tokens;
    int32_t max_seqs = m->replicas[replica].gauge.max_seqs;
    double fill = max_seqs > 0 ? (double)u->n_seqs / max_seqs : 0.0;
    struct window_sums *w = window_at(m, u->start_ns);
    if (u->done_ns <= m->cur_end_ns) {
        step_add(w, u, n_steps, fill, 1.0);
        return;
    }
    double per_ns = 1.0 / (double)(u->done_ns - u->start_ns);
    for (int64_t from_ns = u->start_ns; from_ns < u->done_ns;) {
        w = window_at(m, from_ns);
        int64_t to_ns = min_i64(u->done_ns, m->cur_end_ns);
        step_add(w, u, n_steps, fill, (double)(to_ns - from_ns) * per_ns);
        from_ns = to_ns;
    }
}

static void gauge_add(struct window_sums *w, const struct replica *r, int64_t dt_ns)
{
    const struct bt_gauge *g = &r->gauge;
    double dt = (double)dt_ns;
    w->blocked_ns[g->block] += dt_ns;
    w->charged_ns[r->charge] += dt_ns;
    w->waited_ns[r->charge] += (double)(g->n_waiting + g->n_swapped) * dt;
    w->running_ns += g->n_running * dt;
    w->waiting_ns += g->n_waiting * dt;
    w->swapped_ns += g->n_swapped * dt;
    w->kv_used_ns += g->kv_blocks_used * dt;
    w->kv_total_ns += g->kv_blocks_total * dt;
    w->kv_slots_ns += (double)g->kv_slots_used * dt;
    w->kv_token_ns += (double)g->kv_tokens * dt;
}

/* Nothing has happened before the first arrival, so the integrals start there. */
static void integrate(struct bt_metrics *m, struct replica *r, int64_t now_ns)
{
    BT_ASSERT(now_ns >= r->t_ns);
    int64_t from_ns = max_i64(r->t_ns, m->first_arrival_ns);
    r->t_ns = now_ns;
    while (m->arrived > 0 && from_ns < now_ns) {
        struct window_sums *w = window_at(m, from_ns);
        int64_t to_ns = min_i64(now_ns, m->cur_end_ns);
        gauge_add(w, r, to_ns - from_ns);
        from_ns = to_ns;
    }
}

static enum bt_block_reason charge_of(const struct bt_gauge *g)
{
    bool held = g->block == BT_BLOCK_SEQS && g->max_seqs < g->max_seqs_config;
    bool kv_used = g->kv_blocks_used >= AUTO_KV_MIN * g->kv_blocks_total;
    return held && kv_used ? BT_BLOCK_KV : g->block;
}

void bt_metrics_gauge(struct bt_metrics *m, int32_t replica, int64_t now_ns,
                      const struct bt_gauge *g)
{
    BT_ASSERT(replica >= 0 && replica < m->opts.n_replicas);
    BT_ASSERT((unsigned)g->block < BT_N_BLOCK_REASONS);
    BT_ASSERT(g->kv_blocks_used >= 0 && g->kv_blocks_used <= g->kv_blocks_total);
    BT_ASSERT(g->kv_tokens <= g->kv_slots_used);
    struct replica *r = &m->replicas[replica];
    integrate(m, r, now_ns);
    m->kv_total_now += g->kv_blocks_total - r->gauge.kv_blocks_total;
    m->kv_used_now += g->kv_blocks_used - r->gauge.kv_blocks_used;
    m->kv_used_peak = max_i64(m->kv_used_peak, m->kv_used_now);
    r->gauge = *g;
    r->charge = charge_of(g);
}

/* The summary. */

static double ratio(double a, double b)
{
    return b > 0.0 ? a / b : 0.0;
}

/* Share of a roof that `work` done in ns takes; NAN when the roof is not known. */
static double roof_share(double work, double peak_per_s, double ns)
{
    return peak_per_s > 0.0 ? ratio(work, peak_per_s * ns * 1e-9) : NAN;
}

/* The device is what binds: which part of it. */
static enum bt_bottleneck device_part(const struct bt_metrics *m, const struct window_sums *s)
{
    double compute_ns = ratio(s->flops, m->opts.peak_flops_per_s * 1e-9);
    double bandwidth_ns = ratio(s->bytes, m->opts.peak_bytes_per_s * 1e-9);
    double roof_ns = fmax(compute_ns, bandwidth_ns);
    if (roof_ns <= 0.0) {
        if (s->host_ns > s->busy_ns) {
            return BT_BOTTLENECK_HOST;
        }
        return s->n_tokens >= RIDGE_TOKENS_A_STEP * s->n_steps ? BT_BOTTLENECK_COMPUTE
                                                               : BT_BOTTLENECK_BANDWIDTH;
    }
    if (s->host_ns > roof_ns) {
        return BT_BOTTLENECK_HOST;
    }
    return compute_ns > bandwidth_ns ? BT_BOTTLENECK_COMPUTE : BT_BOTTLENECK_BANDWIDTH;
}

/* time_ns: of all replicas. metrics.h states the rule, by the same numbers. */
static enum bt_bottleneck bottleneck_of(const struct bt_metrics *m, const struct window_sums *s,
                                        double time_ns)
{
    double active_ns = s->busy_ns + s->host_ns + s->stall_ns;
    bool active = active_ns > 0.0 && active_ns >= ACTIVE_MIN * time_ns;
    double flops_share = roof_share(s->flops, m->opts.peak_flops_per_s, s->busy_ns);
    if (active && flops_share >= COMPUTE_SATURATED) {
        return BT_BOTTLENECK_COMPUTE;
    }
    double in_system_ns = s->running_ns + s->waiting_ns + s->swapped_ns;
    double stalled_ns = ratio(s->stall_ns, time_ns) * in_system_ns;
    const struct {
        enum bt_bottleneck name;
        double lasts_ns, waited_ns;
    } causes[] = {
        {BT_BOTTLENECK_KV, (double)s->charged_ns[BT_BLOCK_KV], s->waited_ns[BT_BLOCK_KV]},
        {BT_BOTTLENECK_MAX_SEQS, (double)s->charged_ns[BT_BLOCK_SEQS], s->waited_ns[BT_BLOCK_SEQS]},
        {BT_BOTTLENECK_PCIE, fmax((double)s->charged_ns[BT_BLOCK_SWAP], s->stall_ns),
         fmax(s->waited_ns[BT_BLOCK_SWAP], stalled_ns)},
        {BT_BOTTLENECK_BANDWIDTH, (double)s->charged_ns[BT_BLOCK_TOKENS],
         s->waited_ns[BT_BLOCK_TOKENS]}, /* the device: its part is told below */
    };
    enum bt_bottleneck cause = BT_BOTTLENECK_ARRIVALS;
    double waited_ns = 0.0;
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++) {
        bool counts = causes[i].lasts_ns >= CAUSE_MIN * time_ns ||
                      causes[i].waited_ns >= CAUSE_MIN * in_system_ns;
        if (counts && causes[i].waited_ns > waited_ns) {
            cause = causes[i].name;
            waited_ns = causes[i].waited_ns;
        }
    }
    if (cause == BT_BOTTLENECK_BANDWIDTH || (cause == BT_BOTTLENECK_ARRIVALS && active)) {
        return device_part(m, s);
    }
    return cause;
}

static void summarize_window(const struct bt_metrics *m, int32_t i, int64_t horizon_ns,
                             struct bt_window *out)
{
    const struct window_sums *s = &m->windows[i];
    int64_t start_ns = m->origin_ns + i * m->width_ns;
    int64_t end_ns = min_i64(start_ns + m->width_ns, horizon_ns);
    /* Until the first arrival nothing is integrated. */
    double span_ns = (double)(end_ns - max_i64(start_ns, m->first_arrival_ns));
    double time_ns = span_ns * m->opts.n_replicas;
    *out = (struct bt_window){
        .start_ns = start_ns,
        .end_ns = end_ns,
        .arrived = s->arrived,
        .finished = s->finished,
        .busy_fraction = ratio(s->busy_ns, time_ns),
        .flops_utilization = roof_share(s->flops, m->opts.peak_flops_per_s, time_ns),
        .bandwidth_utilization = roof_share(s->bytes, m->opts.peak_bytes_per_s, time_ns),
        .kv_used_fraction = ratio(s->kv_used_ns, s->kv_total_ns),
        .running_mean = ratio(s->running_ns, span_ns),
        .waiting_mean = ratio(s->waiting_ns, span_ns),
        .swapped_mean = ratio(s->swapped_ns, span_ns),
        .kv_blocked_fraction = ratio((double)s->blocked_ns[BT_BLOCK_KV], time_ns),
        .seqs_blocked_fraction = ratio((double)s->blocked_ns[BT_BLOCK_SEQS], time_ns),
        .swap_stall_fraction = ratio(s->stall_ns, time_ns),
        .host_fraction = ratio(s->host_ns, s->host_ns + s->busy_ns),
        .preempt_swap = s->preempt_swap,
        .preempt_recompute = s->preempt_recompute,
        .ttft_max_ns = s->ttft_max_ns,
        .e2e_max_ns = s->e2e_max_ns,
        .bottleneck = bottleneck_of(m, s, time_ns),
    };
}

static void summarize_dist(const struct bt_metrics *m, struct bt_samples *s, struct bt_dist *out)
{
    static const double ps[] = {50.0, 90.0, 95.0, 99.0};
    int64_t ns[4];
    bt_samples_sort(s, m->scratch_values, m->scratch_counts);
    bt_samples_percentiles(s, ps, 4, ns);
    *out =
        (struct bt_dist){.n = s->n, .rel_error = s->exact ? 0.0 : ldexp(1.0, -BT_SAMPLES_SUB_BITS)};
    bool empty = s->n == 0;
    out->mean_s = empty ? NAN : s->sum / (double)s->n * 1e-9;
    out->p50_s = empty ? NAN : (double)ns[0] * 1e-9;
    out->p90_s = empty ? NAN : (double)ns[1] * 1e-9;
    out->p95_s = empty ? NAN : (double)ns[2] * 1e-9;
    out->p99_s = empty ? NAN : (double)ns[3] * 1e-9;
    out->max_s = empty ? NAN : (double)s->max * 1e-9;
}

static void summarize_latencies(struct bt_metrics *m, struct bt_summary *out)
{
    summarize_dist(m, &m->ttft, &out->ttft);
    summarize_dist(m, &m->tpot, &out->tpot);
    summarize_dist(m, &m->itl, &out->itl);
    summarize_dist(m, &m->e2e, &out->e2e);
    summarize_dist(m, &m->queue, &out->queue);
    const struct bt_dist *dists[BT_N_SLO_METRICS] = {&out->ttft, &out->tpot, &out->itl, &out->e2e,
                                                     &out->queue};
    for (int32_t i = 0; i < m->opts.n_slos; i++) {
        out->slo_value_s[i] = bt_dist_stat(dists[m->slos[i].metric], m->slos[i].stat);
    }
}

static void summarize_counts(const struct bt_metrics *m, struct bt_summary *out)
{
    out->arrived = m->arrived;
    out->finished = m->outcomes[BT_OUTCOME_FINISHED];
    out->timed_out = m->outcomes[BT_OUTCOME_TIMED_OUT];
    out->rejected = m->outcomes[BT_OUTCOME_REJECTED];
    out->cancelled = m->outcomes[BT_OUTCOME_CANCELLED];
    out->failed = m->outcomes[BT_OUTCOME_FAILED];
    memcpy(out->rejected_by, m->rejects, sizeof out->rejected_by);
    out->rejected_by[BT_REJECT_NONE] = 0;
    out->degraded = m->degraded;
    out->warmup_requests = m->warmup_requests;
    out->swap_bytes = m->swap_bytes;
    out->kv_blocks_total = m->kv_total_now;
    out->kv_blocks_peak = m->kv_used_peak;
    out->steps = m->steps;
    out->prefill_tokens = m->prefill_tokens;
    out->decode_tokens = m->decode_tokens;
    out->recomputed_tokens = m->recomputed_tokens;
    out->prefix_hit_fraction = ratio((double)m->cached_tokens, (double)m->prompt_tokens);
    if (out->finished > 0) {
        out->duration_s = (double)(m->last_finish_ns - m->first_arrival_ns) * 1e-9;
    }
    out->throughput_req_per_s = ratio((double)out->finished, out->duration_s);
    out->throughput_out_tok_per_s = ratio(m->out_tokens, out->duration_s);
    out->throughput_total_tok_per_s = ratio(m->total_tokens, out->duration_s);
    bool has_slos = m->opts.n_slos > 0;
    int64_t n_counted = m->arrived - m->warmup_requests;
    out->goodput_req_per_s = has_slos ? ratio((double)m->n_good, out->duration_s) : NAN;
    out->slo_attainment_fraction =
        has_slos && n_counted > 0 ? (double)m->n_good_counted / (double)n_counted : NAN;
}

static void summarize_spec(const struct bt_metrics *m, struct bt_summary *out)
{
    int64_t reached[BT_MAX_SPEC_K] = {0};
    int64_t accepted[BT_MAX_SPEC_K] = {0};
    for (int32_t k = 1; k <= BT_MAX_SPEC_K; k++) {
        for (int32_t a = 0; a <= k; a++) {
            int64_t n = m->verified[k][a];
            out->spec_verifications += n;
            out->spec_proposed += n * k;
            out->spec_accepted += n * a;
            for (int32_t i = 0; n > 0 && i <= a && i < k; i++) {
                reached[i] += n;
                accepted[i] += i < a ? n : 0;
            }
        }
    }
    out->spec_emitted = m->spec_emitted;
    bool none = out->spec_verifications == 0;
    out->acceptance_rate = none ? NAN : (double)out->spec_accepted / (double)out->spec_proposed;
    out->accepted_len = none ? NAN : (double)out->spec_emitted / (double)out->spec_verifications;
    for (int32_t i = 0; i < BT_MAX_SPEC_K; i++) {
        out->acceptance_conditional[i] =
            reached[i] == 0 ? NAN : (double)accepted[i] / (double)reached[i];
    }
}

static void summarize_little(const struct bt_metrics *m, const struct window_sums *all,
                             int64_t horizon_ns, struct bt_summary *out)
{
    double alive_until_ns = (double)(m->arrived - m->ended) * (double)(horizon_ns - m->base_ns);
    /* The integral of the number in the system: each end takes from it what lies after the end. */
    double area_ns = m->end_sum_ns + alive_until_ns - m->arrive_sum_ns;
    double sojourn_ns = m->sojourn_sum_ns;
    if (m->arrived > m->ended) {
        sojourn_ns += alive_until_ns - (m->arrive_sum_ns - m->ended_arrival_sum_ns);
    }
    double gauge_ns = all->running_ns + all->waiting_ns + all->swapped_ns;
    out->little_error = ratio(fabs(area_ns - sojourn_ns), fmax(area_ns, sojourn_ns));
    out->little_gauge_error = ratio(fabs(gauge_ns - sojourn_ns), fmax(gauge_ns, sojourn_ns));
}

static void summarize_time(struct bt_metrics *m, int64_t horizon_ns, struct bt_summary *out)
{
    struct window_sums all = NO_SUMS;
    double span_ns = 0.0;
    if (m->arrived > 0) {
        span_ns = (double)(horizon_ns - m->first_arrival_ns);
        (void)window_at(m, max_i64(horizon_ns - 1, m->origin_ns));
        out->n_windows = m->cur + 1;
    }
    for (int32_t i = 0; i < out->n_windows; i++) {
        sums_merge(&all, &m->windows[i]);
        summarize_window(m, i, horizon_ns, &out->windows[i]);
    }
    double time_ns = span_ns * m->opts.n_replicas;
    out->preempt_swap = all.preempt_swap;
    out->preempt_recompute = all.preempt_recompute;
    out->kv_waste_fraction = ratio(all.kv_slots_ns - all.kv_token_ns, all.kv_slots_ns);
    out->kv_used_fraction = ratio(all.kv_used_ns, all.kv_total_ns);
    out->gpu_busy_fraction = ratio(all.busy_ns, time_ns);
    out->flops_utilization = roof_share(all.flops, m->opts.peak_flops_per_s, time_ns);
    out->bandwidth_utilization = roof_share(all.bytes, m->opts.peak_bytes_per_s, time_ns);
    out->batch_fill = ratio(all.fill_ns, all.busy_ns);
    out->kv_blocked_fraction = ratio((double)all.blocked_ns[BT_BLOCK_KV], time_ns);
    out->seqs_blocked_fraction = ratio((double)all.blocked_ns[BT_BLOCK_SEQS], time_ns);
    out->swap_stall_fraction = ratio(all.stall_ns, time_ns);
    out->host_fraction = ratio(all.host_ns, all.host_ns + all.busy_ns);
    out->running_mean = ratio(all.running_ns, span_ns);
    out->waiting_mean = ratio(all.waiting_ns, span_ns);
    out->swapped_mean = ratio(all.swapped_ns, span_ns);
    out->bottleneck = bottleneck_of(m, &all, time_ns);
    summarize_little(m, &all, horizon_ns, out);
}

void bt_metrics_finish(struct bt_metrics *m, int64_t horizon_ns, int64_t running, int64_t waiting,
                       struct bt_summary *out)
{
    BT_ASSERT(running >= 0 && waiting >= 0);
    BT_ASSERT(m->arrived == m->ended + running + waiting);
    BT_ASSERT(m->arrived == 0 || horizon_ns >= m->last_event_ns);
    for (int32_t i = 0; i < m->opts.n_replicas; i++) {
        integrate(m, &m->replicas[i], horizon_ns);
    }
    memset(out, 0, sizeof *out);
    out->running = running;
    out->waiting = waiting;
    summarize_counts(m, out);
    summarize_latencies(m, out);
    summarize_spec(m, out);
    summarize_time(m, horizon_ns, out);
}
