/* What a run did: per-request latencies, counts, and time-averaged gauges, overall and by window.
 *
 * Definitions are DESIGN's (docs/METRICS.md): TTFT = first token - arrival, TPOT = (last - first) /
 * (n_out - 1), ITL = gaps between deliveries (a delivery of several tokens is one gap, then zeros),
 * E2E = finish - arrival, queue = first scheduled - arrival. Percentiles cover finished requests
 * after the warm-up; SLO attainment covers all that arrived after it.
 *
 * One bt_metrics collects a whole run, fed by the scheduler of each replica (requests, deliveries)
 * and by the loop (gauges). Percentiles are exact up to `exact_max` samples, beyond that from a
 * histogram (relative error 2^-10). Memory is taken at init; nothing is allocated later.
 * Threading: one thread.
 */
#ifndef BT_ENGINE_CORE_METRICS_H
#define BT_ENGINE_CORE_METRICS_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/core/limits.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_outcome {
    BT_OUTCOME_FINISHED,
    BT_OUTCOME_TIMED_OUT,
    BT_OUTCOME_REJECTED,
    BT_OUTCOME_CANCELLED,
    BT_OUTCOME_FAILED,
    BT_N_OUTCOMES,
};

/* Why a request was rejected; counted by reason. */
enum bt_reject {
    BT_REJECT_NONE,
    BT_REJECT_OVER_LENGTH, /* longer than max_model_len */
    BT_REJECT_NEVER_FITS,  /* more KV than the whole pool */
    BT_REJECT_QUEUE_FULL,  /* admission limit, or the request pool is full */
    BT_REJECT_POLICY,      /* a hook or the degradation rule said no */
    BT_N_REJECTS,
};

const char *bt_outcome_name(enum bt_outcome o);
const char *bt_reject_name(enum bt_reject r);

/* One request's life; times in ns, -1 where it did not happen. */
struct bt_req_record {
    uint64_t user;
    int64_t arrival_ns;
    int64_t scheduled_ns; /* first scheduled */
    int64_t first_token_ns;
    int64_t last_token_ns;
    int64_t end_ns;
    int32_t n_prompt;
    int32_t n_output; /* tokens delivered */
    int32_t n_cached; /* prompt tokens served from the prefix cache, first admission */
    int32_t n_preempt_swap;
    int32_t n_preempt_recompute;
    int32_t priority;
    int32_t replica;
    enum bt_outcome outcome;
    enum bt_reject reject;
    bool degraded;
};

/* A latency limit: metric and statistic ("e2e.p95 <= 1.5 s"). */
enum bt_slo_metric {
    BT_SLO_TTFT,
    BT_SLO_TPOT,
    BT_SLO_ITL,
    BT_SLO_E2E,
    BT_SLO_QUEUE,
    BT_N_SLO_METRICS
};
enum bt_stat {
    BT_STAT_MEAN,
    BT_STAT_P50,
    BT_STAT_P90,
    BT_STAT_P95,
    BT_STAT_P99,
    BT_STAT_MAX,
    BT_N_STATS
};

struct bt_slo {
    enum bt_slo_metric metric;
    enum bt_stat stat;
    int64_t limit_ns; /* > 0 */
};

enum { BT_MAX_SLOS = 16, BT_MAX_WINDOWS = 240 };

/* Why the head of the queue is not running. */
enum bt_block_reason {
    BT_BLOCK_NONE,   /* nothing waits */
    BT_BLOCK_KV,     /* KV memory alone */
    BT_BLOCK_SEQS,   /* max_seqs alone */
    BT_BLOCK_TOKENS, /* the step's token budget */
    BT_BLOCK_WINDOW, /* the scheduling window, or a static batch not yet over */
    BT_BLOCK_SWAP,   /* copies over PCIe */
    BT_N_BLOCK_REASONS,
};

enum bt_bottleneck {
    BT_BOTTLENECK_ARRIVALS, /* the load is light: nothing binds */
    BT_BOTTLENECK_COMPUTE,
    BT_BOTTLENECK_BANDWIDTH,
    BT_BOTTLENECK_KV,
    BT_BOTTLENECK_MAX_SEQS,
    BT_BOTTLENECK_PCIE,
    BT_BOTTLENECK_HOST,
};

const char *bt_bottleneck_name(enum bt_bottleneck b); /* as in DESIGN section 5 */

/* State of one replica between two moments; bt_metrics_advance integrates it over time. */
struct bt_gauge {
    int32_t n_running; /* resident sequences */
    int32_t n_waiting;
    int32_t n_swapped;
    int32_t kv_blocks_total;
    int32_t kv_blocks_used;  /* reference count > 0 */
    int64_t kv_slots_used;   /* token slots in used blocks */
    int64_t kv_tokens;       /* of those, slots that hold a token (shared ones once) */
    int32_t max_seqs;        /* in force (auto moves it) */
    int32_t max_seqs_config; /* the configured most */
    enum bt_block_reason block;
};

/* One step's work, added when it completes. */
struct bt_step_usage {
    int64_t start_ns, done_ns; /* device start, delivery */
    int64_t busy_ns, host_ns;
    int64_t flops, bytes;
    int32_t n_seqs;
    int32_t n_prefill_tokens;
    int32_t n_decode_tokens;
    bool swap_stall; /* a step that only waited for copies */
};

struct bt_metrics_opts {
    int32_t n_replicas;        /* > 0 */
    int64_t exact_max;         /* samples kept for exact percentiles; 0: 1,000,000 */
    int64_t warmup_until_ns;   /* requests that arrive before this are left out; 0: none */
    double peak_flops_per_s;   /* of one replica; 0: unknown */
    double peak_bytes_per_s;   /* of one replica; 0: unknown */
    const struct bt_slo *slos; /* borrowed */
    int32_t n_slos;            /* <= BT_MAX_SLOS */
    int64_t window_ns; /* first width of the time windows; they double when too many; 0: 1 s */
};

struct bt_dist {
    int64_t n;
    double mean_s, p50_s, p90_s, p95_s, p99_s, max_s; /* NAN when n == 0 */
    double rel_error;                                 /* 0 when exact */
};

struct bt_window {
    int64_t start_ns, end_ns;
    int64_t arrived, finished;
    double busy_fraction, flops_utilization, bandwidth_utilization;
    double kv_used_fraction; /* mean */
    double running_mean, waiting_mean, swapped_mean;
    double kv_blocked_fraction, seqs_blocked_fraction, swap_stall_fraction, host_fraction;
    int64_t preempt_swap, preempt_recompute;
    int64_t ttft_max_ns, e2e_max_ns; /* of requests that ended in the window; -1: none */
    enum bt_bottleneck bottleneck;
};

/* The answer; JSON names are DESIGN section 5's. */
struct bt_summary {
    struct bt_dist ttft, tpot, itl, e2e, queue;
    int64_t arrived, finished, timed_out, rejected, cancelled, failed, running, waiting, degraded;
    int64_t rejected_by[BT_N_REJECTS];
    int64_t warmup_requests; /* left out of the distributions */
    double duration_s;       /* first arrival to last finish */
    double throughput_req_per_s, throughput_out_tok_per_s, throughput_total_tok_per_s;
    double goodput_req_per_s, slo_attainment_fraction; /* NAN without SLOs */
    double slo_value_s[BT_MAX_SLOS];                   /* the measured statistic of each SLO */
    int64_t preempt_swap, preempt_recompute, swap_bytes;
    int64_t kv_blocks_total, kv_blocks_peak;
    double kv_waste_fraction, kv_used_fraction, gpu_busy_fraction, flops_utilization;
    double bandwidth_utilization, batch_fill, kv_blocked_fraction, seqs_blocked_fraction;
    double swap_stall_fraction, host_fraction, prefix_hit_fraction;
    double running_mean, waiting_mean; /* time averages over all replicas */
    double little_error; /* |L - lambda W| / L over all that ended; see docs/METRICS.md */
    int64_t steps, prefill_tokens, decode_tokens, recomputed_tokens;
    int64_t spec_proposed, spec_accepted, spec_verifications, spec_emitted;
    double acceptance_rate, accepted_len;
    double acceptance_conditional[BT_MAX_SPEC_K]; /* NAN where never reached */
    enum bt_bottleneck bottleneck;
    int32_t n_windows;
    struct bt_window windows[BT_MAX_WINDOWS];
};

struct bt_metrics;

BT_NODISCARD enum bt_code bt_metrics_create(struct bt_arena *arena,
                                            const struct bt_metrics_opts *opts,
                                            struct bt_metrics **out, struct bt_error *err);

/* A request arrived (before any admission decision). Call once for each. */
void bt_metrics_arrive(struct bt_metrics *m, int64_t now_ns);

/* A delivery of n_tokens to a request, gap_ns after its delivery before (-1 for the first: no ITL).
 * `count` equal deliveries in a row may be given at once. */
void bt_metrics_deliver(struct bt_metrics *m, int64_t arrival_ns, int64_t gap_ns, int32_t n_tokens,
                        int64_t count);

/* A request ended, whatever the outcome. */
void bt_metrics_end(struct bt_metrics *m, const struct bt_req_record *r);

void bt_metrics_preempt(struct bt_metrics *m, int64_t now_ns, bool swap, int64_t bytes);
void bt_metrics_swap_bytes(struct bt_metrics *m, int64_t bytes);
void bt_metrics_prefix(struct bt_metrics *m, int64_t prompt_tokens, int64_t cached_tokens);
void bt_metrics_recompute(struct bt_metrics *m, int64_t tokens);

/* One verification: proposed k draft tokens, accepted the first n_accepted. */
void bt_metrics_verify(struct bt_metrics *m, int32_t k, int32_t n_accepted, int32_t n_emitted);

/* Work of a completed step of a replica. */
void bt_metrics_step(struct bt_metrics *m, int32_t replica, const struct bt_step_usage *u);

/* The replica's state from now_ns on; the state before is integrated up to now_ns. */
void bt_metrics_gauge(struct bt_metrics *m, int32_t replica, int64_t now_ns,
                      const struct bt_gauge *g);

/* Closes the integrals at the horizon and computes the summary; `running` and `waiting` are what is
 * still alive. Asserts conservation: arrived = sum of outcomes + running + waiting. */
void bt_metrics_finish(struct bt_metrics *m, int64_t horizon_ns, int64_t running, int64_t waiting,
                       struct bt_summary *out);

/* The statistic of a distribution in seconds. */
double bt_dist_stat(const struct bt_dist *d, enum bt_stat s);

/* Parses "e2e.p95=1.5,ttft.p99=0.5" (seconds); BT_ERR_ARG names the part and what is allowed. */
BT_NODISCARD enum bt_code bt_slo_parse(const char *text, struct bt_slo *out, int32_t max,
                                       int32_t *n, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
