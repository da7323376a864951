#include "cli/metrics_json.h"

#include "cli/config_opts.h"

#include <math.h>

static json_t *dist_json(const struct bt_dist *d)
{
    json_t *o = bt_out_object();
    bt_out_set(o, "mean", bt_out_real(d->mean_s));
    bt_out_set(o, "p50", bt_out_real(d->p50_s));
    bt_out_set(o, "p90", bt_out_real(d->p90_s));
    bt_out_set(o, "p95", bt_out_real(d->p95_s));
    bt_out_set(o, "p99", bt_out_real(d->p99_s));
    bt_out_set(o, "max", bt_out_real(d->max_s));
    if (d->rel_error > 0) {
        bt_out_set(o, "percentile_error", bt_out_real(d->rel_error));
    }
    return o;
}

static void set_real(json_t *o, const char *key, double x)
{
    bt_out_set(o, key, bt_out_real(x));
}

static void set_int(json_t *o, const char *key, int64_t x)
{
    bt_out_set(o, key, bt_out_int(x));
}

static json_t *window_json(const struct bt_window *w)
{
    json_t *o = bt_out_object();
    set_real(o, "start_s", (double)w->start_ns / 1e9);
    set_real(o, "end_s", (double)w->end_ns / 1e9);
    bt_out_set(o, "bottleneck", bt_out_text(bt_bottleneck_name(w->bottleneck)));
    set_int(o, "arrived", w->arrived);
    set_int(o, "finished", w->finished);
    set_real(o, "running_mean", w->running_mean);
    set_real(o, "waiting_mean", w->waiting_mean);
    set_real(o, "swapped_mean", w->swapped_mean);
    set_real(o, "kv_used_fraction", w->kv_used_fraction);
    set_real(o, "gpu_busy_fraction", w->busy_fraction);
    set_real(o, "flops_utilization", w->flops_utilization);
    set_real(o, "bandwidth_utilization", w->bandwidth_utilization);
    set_real(o, "kv_blocked_fraction", w->kv_blocked_fraction);
    set_real(o, "seqs_blocked_fraction", w->seqs_blocked_fraction);
    set_real(o, "swap_stall_fraction", w->swap_stall_fraction);
    set_int(o, "preempt_swap", w->preempt_swap);
    set_int(o, "preempt_recompute", w->preempt_recompute);
    set_real(o, "ttft_max_s", w->ttft_max_ns < 0 ? NAN : (double)w->ttft_max_ns / 1e9);
    set_real(o, "e2e_max_s", w->e2e_max_ns < 0 ? NAN : (double)w->e2e_max_ns / 1e9);
    return o;
}

static void set_counts(json_t *o, const struct bt_summary *s)
{
    set_int(o, "arrived", s->arrived);
    set_int(o, "finished", s->finished);
    set_int(o, "timed_out", s->timed_out);
    set_int(o, "rejected", s->rejected);
    set_int(o, "cancelled", s->cancelled);
    set_int(o, "failed", s->failed);
    set_int(o, "running", s->running);
    set_int(o, "waiting", s->waiting);
    set_int(o, "degraded", s->degraded);
    json_t *by = bt_out_object();
    for (int32_t r = BT_REJECT_NONE + 1; r < BT_N_REJECTS; r++) {
        set_int(by, bt_reject_name((enum bt_reject)r), s->rejected_by[r]);
    }
    bt_out_set(o, "rejected_by", by);
    set_int(o, "warmup_requests", s->warmup_requests);
}

static void set_resources(json_t *o, const struct bt_summary *s)
{
    set_int(o, "preempt_swap", s->preempt_swap);
    set_int(o, "preempt_recompute", s->preempt_recompute);
    set_int(o, "swap_bytes", s->swap_bytes);
    set_int(o, "kv_blocks_total", s->kv_blocks_total);
    set_int(o, "kv_blocks_peak", s->kv_blocks_peak);
    set_real(o, "kv_used_fraction", s->kv_used_fraction);
    set_real(o, "kv_waste_fraction", s->kv_waste_fraction);
    set_real(o, "gpu_busy_fraction", s->gpu_busy_fraction);
    set_real(o, "host_fraction", s->host_fraction);
    set_real(o, "flops_utilization", s->flops_utilization);
    set_real(o, "bandwidth_utilization", s->bandwidth_utilization);
    set_real(o, "batch_fill", s->batch_fill);
    set_real(o, "running_mean", s->running_mean);
    set_real(o, "waiting_mean", s->waiting_mean);
    set_real(o, "swapped_mean", s->swapped_mean);
    set_real(o, "kv_blocked_fraction", s->kv_blocked_fraction);
    set_real(o, "seqs_blocked_fraction", s->seqs_blocked_fraction);
    set_real(o, "swap_stall_fraction", s->swap_stall_fraction);
    set_real(o, "prefix_hit_fraction", s->prefix_hit_fraction);
    bt_out_set(o, "bottleneck", bt_out_text(bt_bottleneck_name(s->bottleneck)));
}

static void set_speculation(json_t *o, const struct bt_summary *s)
{
    set_real(o, "acceptance_rate", s->acceptance_rate);
    set_real(o, "accepted_len", s->accepted_len);
    json_t *list = bt_out_list();
    for (int32_t i = 0; i < BT_MAX_SPEC_K && !isnan(s->acceptance_conditional[i]); i++) {
        if (s->spec_verifications > 0) {
            bt_out_append(list, bt_out_real(s->acceptance_conditional[i]));
        }
    }
    bt_out_set(o, "acceptance_conditional", list);
}

json_t *bt_metrics_json(const struct bt_summary *s, double usd_per_h, bool windows)
{
    json_t *o = bt_out_object();
    bt_out_set(o, "ttft_s", dist_json(&s->ttft));
    bt_out_set(o, "tpot_s", dist_json(&s->tpot));
    bt_out_set(o, "itl_s", dist_json(&s->itl));
    bt_out_set(o, "e2e_s", dist_json(&s->e2e));
    bt_out_set(o, "queue_s", dist_json(&s->queue));
    set_real(o, "duration_s", s->duration_s);
    set_real(o, "throughput_req_per_s", s->throughput_req_per_s);
    set_real(o, "throughput_out_tok_per_s", s->throughput_out_tok_per_s);
    set_real(o, "throughput_total_tok_per_s", s->throughput_total_tok_per_s);
    set_real(o, "goodput_req_per_s", s->goodput_req_per_s);
    set_real(o, "slo_attainment_fraction", s->slo_attainment_fraction);
    set_counts(o, s);
    set_resources(o, s);
    set_speculation(o, s);
    set_int(o, "steps", s->steps);
    set_int(o, "prefill_tokens", s->prefill_tokens);
    set_int(o, "decode_tokens", s->decode_tokens);
    set_int(o, "recomputed_tokens", s->recomputed_tokens);
    set_real(o, "little_error", s->little_error);
    set_real(o, "cost_usd_per_h", usd_per_h);
    double tok_per_h = s->throughput_out_tok_per_s * 3600;
    set_real(o, "cost_usd_per_mtok", tok_per_h > 0 ? usd_per_h / tok_per_h * 1e6 : NAN);
    if (windows) {
        json_t *list = bt_out_list();
        for (int32_t i = 0; i < s->n_windows; i++) {
            bt_out_append(list, window_json(&s->windows[i]));
        }
        bt_out_set(o, "windows", list);
    }
    return o;
}

json_t *bt_trust_json(const struct bt_cost *cost)
{
    json_t *o = bt_out_object();
    bt_out_set(o, "level", bt_out_text(bt_trust_name(cost->trust)));
    bt_out_set(o, "weakest", bt_out_text(cost->weakest));
    bt_out_set(o, "step_error", bt_out_real(cost->step_error < 0 ? NAN : cost->step_error));
    return o;
}

json_t *bt_run_json(const char *command, const struct bt_deploy *deploy,
                    const struct bt_summary *summary, double usd_per_h, bool windows)
{
    json_t *o = bt_out_answer(command);
    bt_out_set(o, "config", bt_config_json(&deploy->config));
    bt_out_set(o, "stack", bt_out_text(deploy->config.stack));
    bt_out_set(o, "trust", bt_trust_json(&deploy->cost));
    if (deploy->acceptance_source[0] != '\0') {
        bt_out_set(o, "acceptance_source", bt_out_text(deploy->acceptance_source));
    }
    bt_out_set(o, "metrics", bt_metrics_json(summary, usd_per_h, windows));
    return o;
}

json_t *bt_run_remarks(const struct bt_deploy *deploy, const struct bt_summary *s)
{
    json_t *lines = bt_out_list();
    char line[320];
    (void)snprintf(line, sizeof line,
                   "bottleneck: %s (device busy %.0f%%, KV in use %.0f%%, head of queue blocked by "
                   "KV %.0f%%, by max_seqs %.0f%% of the time)",
                   bt_bottleneck_name(s->bottleneck), 100 * s->gpu_busy_fraction,
                   100 * s->kv_used_fraction, 100 * s->kv_blocked_fraction,
                   100 * s->seqs_blocked_fraction);
    bt_out_append(lines, bt_out_text(line));
    if (deploy->cost.step_error >= 0) {
        (void)snprintf(line, sizeof line,
                       "trust: %s, weakest in %s; step times within %.0f%%; stack %s",
                       bt_trust_name(deploy->cost.trust), deploy->cost.weakest,
                       100 * deploy->cost.step_error, deploy->config.stack);
    } else {
        (void)snprintf(line, sizeof line,
                       "trust: %s, weakest in %s; no bound on the error of step times; stack %s",
                       bt_trust_name(deploy->cost.trust), deploy->cost.weakest,
                       deploy->config.stack);
    }
    bt_out_append(lines, bt_out_text(line));
    if (deploy->acceptance_source[0] != '\0') {
        (void)snprintf(line, sizeof line, "acceptance: %s", deploy->acceptance_source);
        bt_out_append(lines, bt_out_text(line));
    }
    return lines;
}
