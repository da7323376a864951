/* What a run did: per-request latencies, counts, and time-averaged gauges, overall and by window.
 *
 * One bt_metrics collects a whole run, fed by the scheduler of each replica (requests, deliveries)
 * and by the loop (steps, gauges). Memory is taken at create as untouched pages, 32 bytes a request
 * and 32 a run of gaps; a small run touches little, nothing is allocated later. Threading: one
 * thread.
 *
 * Latencies. TTFT = first token - arrival, TPOT = (last - first) / (n_out - 1), left out for one
 * token; E2E = end - arrival; queue = first scheduled - arrival. They cover finished requests that
 * arrived after the warm-up. ITL = gaps between deliveries (a delivery of several tokens is one
 * gap, then zeros), of every request that arrived after the warm-up, whatever became of it.
 * Percentiles are nearest-rank; exact up to exact_max requests (ITL: itl_exact_max runs of equal
 * gaps; a batch that steps together makes one run a step), beyond that from a histogram: then
 * rel_error is 2^-10, and a percentile is at most that much too high.
 *
 * SLOs. A request is good when it finished and its own TTFT, TPOT, largest gap, E2E and queue time
 * keep the limit of every SLO on that metric, whatever the SLO's statistic; a value that it does
 * not have (TPOT of one token) breaks nothing. Attainment = good / arrived, over all that arrived
 * after the warm-up: what was rejected, timed out, cancelled, failed or still alive has missed.
 *
 * Rates. duration = first arrival to last finish. Throughput and goodput cover the whole run,
 * warm-up included: finished (or good) requests, and the tokens of finished ones, by duration.
 *
 * Time averages cover first arrival to horizon, warm-up included, of all replicas: fractions are
 * means over replicas, running and waiting are sums. The utilisations divide by that time, idle or
 * not, and are NAN when the peak is not known. host_fraction = host / (host + busy). kv_waste = 1 -
 * tokens / slots of used blocks, batch fill = sequences / max_seqs in force, averaged by the busy
 * time of the steps.
 *
 * Little's law, the time-integral of the number in the system = the sum of the times in it, is
 * checked twice; both errors are relative, and 0 but for rounding. little_error takes the number
 * from the arrive and end calls, the times from the records: it tells of records that disagree with
 * the arrivals announced. little_gauge_error takes the number from the gauges (running + waiting +
 * swapped), so it tells of a scheduler that loses count; it needs the gauge at every change of
 * state, else it is the sampling error of the gauges. Requests still alive count until the horizon.
 *
 * The bottleneck answers "what would have to grow for requests to be served sooner?". The rule, for
 * a window and for the whole run alike, over the time of all replicas:
 *  1. compute, when steps reach 0.6 of peak FLOP/s while running and the device is active (busy,
 *     host, or stalled) for 0.8 of the time: behind a saturated device a queue fills whatever
 *     limit comes first, and a higher limit would not help.
 *  2. Waiting. Each request-second spent waiting or swapped out is charged to why the head of the
 *     queue does not run: KV, max_seqs, PCIe copies, or the device (the step's token budget). While
 *     `auto` holds max_seqs under its configured most and half of the KV pool is used, max_seqs
 *     counts as KV: it is held down for KV's sake. A stalled step charges everyone in the system to
 *     PCIe. A cause counts when it lasts 0.1 of the time, or makes up 0.1 of all request-seconds in
 *     the system; of those the largest is the bottleneck (kv, max_seqs, pcie, or the device).
 *  3. Else arrivals, when the device is inactive for over 0.2 of the time: it has room.
 *  4. Else the device: of exposed host time, FLOPs / peak and bytes / peak the one that takes the
 *     most time: host, compute or bandwidth. Where neither roof is known: host when it exceeds the
 *     busy time, else compute from 200 tokens a step on (the ridge of present GPUs at 16 bit).
 * So a full KV pool and a max_seqs limit, alike from outside, are told apart; and bandwidth gives
 * way to both, since a larger batch reads the weights no more often.
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
    int64_t gap_max_ns; /* largest gap between deliveries; -1 when there were fewer than two */
    int32_t n_prompt;
    int32_t n_output; /* tokens delivered */
    int32_t n_cached; /* prompt tokens served from the prefix cache, first admission */
    int32_t n_preempt_swap;
    int32_t n_preempt_recompute;
    int32_t priority;
    int32_t replica;
    enum bt_outcome outcome;
    enum bt_reject reject; /* BT_REJECT_NONE unless the outcome is REJECTED */
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

const char *bt_slo_metric_name(enum bt_slo_metric m);
const char *bt_stat_name(enum bt_stat s);
const char *bt_block_reason_name(enum bt_block_reason r);
const char *bt_bottleneck_name(enum bt_bottleneck b); /* compute, bandwidth, kv, max_seqs ... */

/* State of one replica from one moment on; bt_metrics_gauge integrates it over time. */
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
    int64_t start_ns, done_ns; /* device start, delivery; the work is spread evenly between */
    int64_t busy_ns, host_ns;  /* device time; host time not hidden behind the device */
    int64_t flops, bytes;      /* 0: unknown */
    int32_t n_steps;           /* equal steps given at once, whose sums the rest is; 0: one */
    int32_t n_seqs;            /* of each step */
    int32_t n_prefill_tokens;
    int32_t n_decode_tokens;
    bool swap_stall; /* it only waited for copies */
};

struct bt_metrics_opts {
    int32_t n_replicas;        /* 1 .. BT_MAX_REPLICAS */
    int64_t exact_max;         /* requests kept for exact percentiles; 0: 1,000,000 */
    int64_t itl_exact_max;     /* runs of equal gaps kept likewise; 0: 1,000,000 */
    int64_t warmup_until_ns;   /* requests that arrive before this are left out; 0: none */
    double peak_flops_per_s;   /* of one replica; 0: unknown */
    double peak_bytes_per_s;   /* of one replica; 0: unknown */
    const struct bt_slo *slos; /* copied */
    int32_t n_slos;            /* 0 .. BT_MAX_SLOS */
    int64_t window_ns; /* first width of the time windows; they double when too many; 0: 1 s */
};

struct bt_dist {
    int64_t n;
    double mean_s, p50_s, p90_s, p95_s, p99_s, max_s; /* NAN when n == 0 */
    double rel_error;                                 /* 0 when exact */
};

struct bt_window {
    int64_t start_ns, end_ns; /* the last one ends with the horizon */
    int64_t arrived, finished;
    double busy_fraction, flops_utilization, bandwidth_utilization;
    double kv_used_fraction;                         /* mean */
    double running_mean, waiting_mean, swapped_mean; /* sums over replicas */
    double kv_blocked_fraction, seqs_blocked_fraction, swap_stall_fraction, host_fraction;
    int64_t preempt_swap, preempt_recompute;
    int64_t ttft_max_ns, e2e_max_ns; /* of those finished or timed out in the window; -1: none */
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
    int64_t kv_blocks_total, kv_blocks_peak; /* sums over replicas; the peak at one moment */
    double kv_waste_fraction, kv_used_fraction, gpu_busy_fraction, flops_utilization;
    double bandwidth_utilization, batch_fill, kv_blocked_fraction, seqs_blocked_fraction;
    double swap_stall_fraction, host_fraction, prefix_hit_fraction;
    double running_mean, waiting_mean, swapped_mean;
    double little_error, little_gauge_error;
    int64_t steps, prefill_tokens, decode_tokens, recomputed_tokens;
    int64_t spec_proposed, spec_accepted, spec_verifications, spec_emitted;
    double acceptance_rate, accepted_len;         /* NAN without speculation */
    double acceptance_conditional[BT_MAX_SPEC_K]; /* NAN where never reached */
    enum bt_bottleneck bottleneck;
    int32_t n_windows;
    struct bt_window windows[BT_MAX_WINDOWS];
};

struct bt_metrics;

/* BT_ERR_ARG names the option, its value and what is allowed; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_metrics_create(struct bt_arena *arena,
                                            const struct bt_metrics_opts *opts,
                                            struct bt_metrics **out, struct bt_error *err);

/* A request arrived (before any admission decision). Call once for each, with the intended arrival
 * that its record will have. */
void bt_metrics_arrive(struct bt_metrics *m, int64_t arrival_ns);

/* Moves the end of the warm-up, where it is known only while the run goes on: every request so far
 * arrived in it, and until_ns lies after the last of them. */
void bt_metrics_set_warmup(struct bt_metrics *m, int64_t until_ns);

/* The end of the warm-up as known now: deliveries on either side of it must not be given as one. */
int64_t bt_metrics_warmup_until_ns(const struct bt_metrics *m);

/* A delivery of n_tokens to a request, gap_ns after its delivery before (-1 for the first: no ITL).
 * `count` equal deliveries in a row may be given at once. */
void bt_metrics_deliver(struct bt_metrics *m, int64_t arrival_ns, int64_t gap_ns, int32_t n_tokens,
                        int64_t count);

/* A request ended, whatever the outcome. Asserts that the record's times are in order. */
void bt_metrics_end(struct bt_metrics *m, const struct bt_req_record *r);

/* A preemption: by swap, with the bytes that go out, or by recompute (bytes 0). */
void bt_metrics_preempt(struct bt_metrics *m, int64_t now_ns, bool swap, int64_t bytes);

/* Bytes that come back in. */
void bt_metrics_swap_bytes(struct bt_metrics *m, int64_t bytes);

/* A prompt was admitted for the first time, with so many of its tokens cached. */
void bt_metrics_prefix(struct bt_metrics *m, int64_t prompt_tokens, int64_t cached_tokens);

/* Tokens whose KV had to be computed again after a preemption. */
void bt_metrics_recompute(struct bt_metrics *m, int64_t tokens);

/* One verification: of k draft tokens, 1 .. BT_MAX_SPEC_K, the first n_accepted were accepted and
 * n_emitted tokens delivered. */
void bt_metrics_verify(struct bt_metrics *m, int32_t k, int32_t n_accepted, int32_t n_emitted);

/* Work of a completed step of a replica. */
void bt_metrics_step(struct bt_metrics *m, int32_t replica, const struct bt_step_usage *u);

/* The replica's state from now_ns on; the state before is integrated up to now_ns. Times of one
 * replica do not decrease. */
void bt_metrics_gauge(struct bt_metrics *m, int32_t replica, int64_t now_ns,
                      const struct bt_gauge *g);

/* Integrates up to the horizon and computes the summary; `running` and `waiting` are what is still
 * alive (swapped ones run). Asserts conservation: arrived = sum of outcomes + running + waiting.
 * The run may go on, and finish be called again with a later horizon. O(samples). */
void bt_metrics_finish(struct bt_metrics *m, int64_t horizon_ns, int64_t running, int64_t waiting,
                       struct bt_summary *out);

/* The statistic of a distribution in seconds. */
double bt_dist_stat(const struct bt_dist *d, enum bt_stat s);

/* Parses "e2e.p95=1.5,ttft.p99=0.5" (seconds > 0): ttft, tpot, itl, e2e or queue, with or without
 * _s; mean, p50, p90, p95, p99 or max; none twice. BT_ERR_ARG names the part and what is allowed.
 */
BT_NODISCARD enum bt_code bt_slo_parse(const char *text, struct bt_slo *out, int32_t max,
                                       int32_t *n, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
