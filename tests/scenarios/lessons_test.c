/* What the scenarios of scenarios/ teach, each lesson as numbers. evening_peak has a file of its
 * own. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text with the first occurrence of `from` replaced (owned by the caller). */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    cr_assert_not_null(at, "no %s", from);
    size_t n = strlen(text) - strlen(from) + strlen(to) + 1;
    char *out = malloc(n);
    cr_assert_not_null(out);
    (void)snprintf(out, n, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

/* ---- prefix_share ---- */

/* Blocks at the peak, measured and by arithmetic, of `users` sequences that share a prefix. */
static void expect_blocks(const json_t *doc, int users, int tokens, int shared_tokens)
{
    enum { BLOCK = 16 };
    double each = ceil((double)tokens / BLOCK), shared = shared_tokens / BLOCK;
    double alone = users * each, together = shared + users * (each - shared);
    double got_alone = run_metric(doc, "private", "kv_blocks_peak");
    double got_together = run_metric(doc, "shared", "kv_blocks_peak");
    /* Not every user's last block is filled at the same moment. */
    cr_expect_float_eq(got_alone / alone, 1, 0.01, "%g blocks, %g expected", got_alone, alone);
    cr_expect_float_eq(got_together / together, 1, 0.01, "%g blocks, %g expected", got_together,
                       together);
}

Test(prefix_share, saves_what_the_arithmetic_says)
{
    json_t *doc = program_json("simulate scenarios/prefix_share.lua", 0);
    expect_blocks(doc, 48, 816 + 64, 500);
    double hit = run_metric(doc, "shared", "prefix_hit_fraction");
    cr_expect_float_eq(hit, 496.0 / 816, 0.001, "%g", hit);
    cr_expect_eq(run_metric(doc, "private", "prefix_hit_fraction"), 0);
    cr_expect_gt(run_metric(doc, "shared", "throughput_req_per_s"),
                 1.2 * run_metric(doc, "private", "throughput_req_per_s"));
    json_decref(doc);
}

Test(prefix_share, saves_fifteen_percent_when_private_tokens_are_many)
{
    /* 500 of 3,333 tokens: 3,269 of prompt and 64 of answer. 32 users, since 48 fill the pool. */
    char *text = program_source_text("scenarios/prefix_share.lua");
    char *longer = replaced(text, "prompt = 816", "prompt = 3269");
    char *fewer = replaced(longer, "users = 48, n_requests = 1920", "users = 32, n_requests = 320");
    char args[2048];
    (void)snprintf(args, sizeof args, "simulate '%s'", program_write("long_private.lua", fewer));
    json_t *doc = program_json(args, 0);
    expect_blocks(doc, 32, 3333, 500);
    double saved = 1 - run_metric(doc, "shared", "kv_blocks_peak") /
                           run_metric(doc, "private", "kv_blocks_peak");
    cr_expect_float_eq(saved, 0.15, 0.01, "%g", saved);
    json_decref(doc);
    free(text);
    free(longer);
    free(fewer);
}

/* ---- long_context ---- */

Test(long_context, a_smaller_budget_shortens_gaps_until_documents_pay)
{
    static const char *const labels[] = {"whole", "8192", "2048", "256"};
    json_t *doc = program_json("simulate scenarios/long_context.lua", 0);
    for (int i = 1; i < 4; i++) {
        cr_expect_lt(run_metric(doc, labels[i], "itl_s.max"),
                     0.5 * run_metric(doc, labels[i - 1], "itl_s.max"), "%s", labels[i]);
    }
    cr_expect_gt(run_metric(doc, "whole", "itl_s.max"), 1.0);
    cr_expect_lt(run_metric(doc, "256", "itl_s.max"), 0.05);
    cr_expect_gt(run_metric(doc, "256", "ttft_s.p99"),
                 1.15 * run_metric(doc, "2048", "ttft_s.p99"));
    /* The 99th percentile of all gaps sees nothing of the stalls; the share of good answers does.
     */
    cr_expect_lt(run_metric(doc, "whole", "itl_s.p99"), 0.05);
    cr_expect_lt(run_metric(doc, "whole", "slo_attainment_fraction"), 0.8);
    cr_expect_gt(run_metric(doc, "2048", "slo_attainment_fraction"), 0.99);
    json_decref(doc);
}

/* ---- batch_job ---- */

Test(batch_job, the_throughput_optimum_misses_the_interactive_limit)
{
    json_t *doc = program_json("simulate scenarios/batch_job.lua", 0);
    const json_t *runs = json_at(doc, "runs"), *run, *fastest = NULL, *best_in_slo = NULL;
    double tok_fastest = 0, tok_in_slo = 0, before = 0;
    size_t i;
    json_array_foreach(runs, i, run)
    {
        double tok = json_number_at(run, "metrics.throughput_out_tok_per_s");
        cr_expect_gt(tok, before, "throughput grows with the batch");
        before = tok;
        if (tok > tok_fastest) {
            tok_fastest = tok;
            fastest = run;
        }
        if (json_number_at(run, "metrics.tpot_s.p95") <= 0.05 && tok > tok_in_slo) {
            tok_in_slo = tok;
            best_in_slo = run;
        }
    }
    cr_assert_not_null(best_in_slo);
    cr_expect_gt(json_number_at(fastest, "metrics.tpot_s.p95"), 0.05);
    cr_expect_lt(json_number_at(fastest, "metrics.slo_attainment_fraction"), 0.2);
    double best_batch = json_number_at(best_in_slo, "config.batching.max_seqs");
    cr_expect(best_batch >= 16 && best_batch <= 64, "%g", best_batch);
    cr_expect_gt(json_number_at(best_in_slo, "metrics.slo_attainment_fraction"), 0.85);
    cr_expect_lt(json_number_at(fastest, "metrics.cost_usd_per_mtok"),
                 json_number_at(best_in_slo, "metrics.cost_usd_per_mtok"));
    json_decref(doc);
}

/* ---- spec_decode ---- */

/* Throughput of a variant at a batch size, against no speculation. */
static double gain(const json_t *doc, const char *variant, int max_seqs)
{
    char off[64], on[64];
    (void)snprintf(off, sizeof off, "off batching.max_seqs=%d", max_seqs);
    (void)snprintf(on, sizeof on, "%s batching.max_seqs=%d", variant, max_seqs);
    return run_metric(doc, on, "throughput_out_tok_per_s") /
           run_metric(doc, off, "throughput_out_tok_per_s");
}

Test(spec_decode, gains_alone_loses_in_a_full_batch_and_a_switch_keeps_the_gain)
{
    json_t *doc = program_json("simulate scenarios/spec_decode.lua", 0);
    cr_expect_gt(gain(doc, "always", 1), 1.6, "%g", gain(doc, "always", 1));
    cr_expect_lt(gain(doc, "always", 128), 0.97, "%g", gain(doc, "always", 128));
    cr_expect_float_eq(gain(doc, "switch", 1), gain(doc, "always", 1), 1e-9);
    cr_expect_float_eq(gain(doc, "switch", 16), gain(doc, "always", 16), 1e-9);
    cr_expect_gt(gain(doc, "switch", 64), 0.99, "%g", gain(doc, "switch", 64));
    cr_expect_gt(gain(doc, "switch", 128), 0.99, "%g", gain(doc, "switch", 128));
    json_decref(doc);
}

Test(spec_decode, tokens_a_step_are_the_closed_form)
{
    json_t *doc = program_json("simulate scenarios/spec_decode.lua", 0);
    static const char label[] = "always batching.max_seqs=16";
    double a = 0.72, k = 4, want = (1 - pow(a, k + 1)) / (1 - a);
    double got = run_metric(doc, label, "accepted_len");
    /* Less by the last verification of each answer, which is cut at 128 tokens. */
    cr_expect_float_eq(got, want, 0.06, "%g, closed form %g", got, want);
    const json_t *list = json_at(run_labelled(doc, label), "metrics.acceptance_conditional");
    cr_assert_eq(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        double p = json_number_value(json_array_get(list, i));
        cr_expect_float_eq(p, a, 0.02, "position %zu: %g", i, p);
    }
    json_decref(doc);
}

/* ---- trace_azure ---- */

Test(trace_azure, equal_throughput_hides_who_waits)
{
    json_t *doc = program_json("simulate scenarios/trace_azure.lua", 0);
    static const char *const labels[] = {"replicas=2", "replicas=3", "replicas=4", "replicas=5"};
    for (int i = 0; i < 4; i++) {
        cr_expect_eq(run_metric(doc, labels[i], "arrived"), 19366);
        cr_expect_eq(run_metric(doc, labels[i], "finished"), 19366);
    }
    double three = run_metric(doc, labels[1], "throughput_req_per_s");
    double four = run_metric(doc, labels[2], "throughput_req_per_s");
    cr_expect_lt(run_metric(doc, labels[0], "throughput_req_per_s"), 0.8 * three);
    cr_expect_float_eq(three / four, 1, 0.005);
    cr_expect_gt(run_metric(doc, labels[1], "ttft_s.p95"), 10);
    cr_expect_lt(run_metric(doc, labels[2], "ttft_s.p95"), 1.0);
    cr_expect_lt(run_metric(doc, labels[1], "slo_attainment_fraction"), 0.7);
    cr_expect_gt(run_metric(doc, labels[2], "slo_attainment_fraction"), 0.95);
    json_decref(doc);
}

/* ---- support_13b ---- */

/* Plans a share of the scenario's search that fits a test: one parallel degree and block size, no
 * speculation, a shorter stream. The best may be marginal, so status 0 and 1 are both answers. */
static json_t *plan_support(const char *sets, int status)
{
    char *text = program_source_text("scenarios/support_13b.lua");
    char *slow =
        replaced(text, "rate_per_s = 50, duration_s = 120", "rate_per_s = 20, duration_s = 30");
    char args[2048];
    (void)snprintf(args, sizeof args,
                   "plan '%s' --set tp=1 --set kv.block_tokens=16 --set kv.dtype=int8 "
                   "--set preempt=recompute --set activations=fp16 --set spec=none %s",
                   program_write("support.lua", slow), sets);
    json_t *doc = program_json(args, status);
    free(text);
    free(slow);
    return doc;
}

Test(support_13b, memory_decides_before_speed_does)
{
    json_t *doc = plan_support("--set gpu=rtx4090 --set weights=fp16", 1);
    cr_expect(json_is_null(json_at(doc, "best")));
    const json_t *first = json_at(doc, "candidates.0");
    cr_expect_str_eq(json_text_at(first, "verdict"), "infeasible");
    cr_expect_not_null(strstr(json_text_at(first, "reason"), "26.0 GB of weights in 24 GB"), "%s",
                       json_text_at(first, "reason"));
    json_decref(doc);
}

Test(support_13b, quantised_weights_cost_less_and_every_loser_has_a_reason)
{
    json_t *doc = plan_support("--set gpu=h200", -1);
    const json_t *list = json_at(doc, "candidates"), *c;
    cr_assert_eq(json_array_size(list), 3);
    double usd_fp16 = INFINITY, usd_quantised = INFINITY, before = 0;
    size_t i;
    json_array_foreach(list, i, c)
    {
        const char *verdict = json_text_at(c, "verdict");
        cr_expect_gt(strlen(json_text_at(c, "reason")), 0, "candidate %zu has no reason", i);
        if (strcmp(verdict, "infeasible") == 0) {
            continue;
        }
        double usd = json_number_at(c, "cost_usd_per_h");
        cr_expect_leq(usd, 20, "over the budget: %g", usd);
        cr_expect_geq(usd, before, "ranked by cost");
        before = usd;
        const char *weights = json_text_at(c, "config.weights");
        double *cheapest = strcmp(weights, "fp16") == 0 ? &usd_fp16 : &usd_quantised;
        *cheapest = usd < *cheapest ? usd : *cheapest;
    }
    cr_expect_lt(usd_quantised, usd_fp16, "%g against %g", usd_quantised, usd_fp16);
    cr_expect_lt(usd_quantised, INFINITY);
    json_decref(doc);
}
