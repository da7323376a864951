/* berth fit against recorded runs of vLLM 0.19, against runs whose answer is known because the
 * simulator made them, and on files that it must refuse. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS "tests/data/measured/vllm019/"
#define COLUMNS                                                                                    \
    "--columns timestamp=queued_ts:s,prompt=input_toks,output=output_toks,"                        \
    "first_token=first_token_ts,last_token=last_token_ts "
#define LLAMA                                                                                      \
    "--model llama-3.1-8b --gpu rtxpro6000 --stack vllm-0.19 --max-seqs 128 "                      \
    "--max-batched-tokens 2048 "
#define QWEN                                                                                       \
    "--model qwen3-32b --gpu rtxpro6000 --tp 2 --stack vllm-0.19 --max-seqs 128 "                  \
    "--max-batched-tokens 2048 "
#define ADA                                                                                        \
    "--model llama-3.1-8b --gpu rtx4090 --stack vllm-0.19 --max-seqs 256 "                         \
    "--max-batched-tokens 2048 --max-model-len 32768 "
#define LLAMA_RUN RUNS "rtxpro6000_llama-3.1-8b.jsonl "
#define QWEN_RUN  RUNS "rtxpro6000_qwen3-32b.jsonl "
#define ADA_RUN   RUNS "rtx4090_llama-3.1-8b.jsonl "

enum { COMMAND_BYTES = 2048 };

/* A member of the score of these requests and metric. */
static double score(const json_t *doc, const char *requests, const char *metric, const char *member)
{
    size_t i = 0;
    const json_t *row = NULL;
    json_array_foreach(json_at(doc, "scores"), i, row)
    {
        if (strcmp(json_text_at(row, "requests"), requests) == 0 &&
            strcmp(json_text_at(row, "metric"), metric) == 0) {
            return json_number_at(row, member);
        }
    }
    cr_assert(false, "no score of %s %s", requests, metric);
    return NAN;
}

static void expect_error_within(const json_t *doc, const char *requests, const char *metric,
                                double most)
{
    double error = score(doc, requests, metric, "error_fraction");
    cr_expect_leq(fabs(error), most, "%s %s is off by %g", requests, metric, error);
}

static const json_t *parameter(const json_t *doc, const char *name)
{
    return json_row(doc, "rows", "parameter", name);
}

static double value_of(const json_t *doc, const char *name)
{
    return json_number_at(parameter(doc, name), "value");
}

static double end_of_interval(const json_t *doc, const char *name, size_t end)
{
    return json_number_value(json_array_get(json_at(parameter(doc, name), "ci95"), end));
}

Test(fit, llama_on_vllm_019_from_one_overhead_of_a_hundred_requests)
{
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command,
                   "fit " LLAMA_RUN COLUMNS LLAMA "--fit-first 100 --out %s",
                   program_path("llama.fit"));
    json_t *doc = program_json(command, 0);
    expect_error_within(doc, "held out", "tpot mean", 0.03);
    expect_error_within(doc, "held out", "ttft mean", 0.10);
    expect_error_within(doc, "all", "throughput", 0.02);
    /* 300 requests of the recording: 32.46 ms, 7.10 s and 4.55 requests/s. */
    cr_expect_float_eq(score(doc, "all", "throughput", "measured"), 4.5505, 1e-3);
    cr_expect_float_eq(score(doc, "held out", "tpot mean", "measured"), 0.03228, 1e-4);
    /* The imported profile has a step's kernels: a millisecond of thirty is left over. */
    cr_expect_lt(value_of(doc, "step_overhead"), 0.002);
    cr_expect_leq(end_of_interval(doc, "step_overhead", 0), value_of(doc, "step_overhead"));
    cr_expect_geq(end_of_interval(doc, "step_overhead", 1), value_of(doc, "step_overhead"));
    cr_expect_str_eq(json_text_at(parameter(doc, "step_overhead"), "unit"), "s");
    cr_expect_str_eq(json_text_at(doc, "fit.stack"), "vllm-0.19");
    cr_expect_str_eq(json_text_at(doc, "fit.gpu"), "rtxpro6000");
    double throughput = score(doc, "all", "throughput", "fitted");
    json_decref(doc);

    (void)snprintf(command, sizeof command, "replay " LLAMA_RUN COLUMNS LLAMA "--fit %s",
                   program_path("llama.fit"));
    doc = program_json(command, 0);
    cr_expect_float_eq(json_number_at(doc, "metrics.throughput_req_per_s"), throughput, 1e-12);
    cr_expect_str_eq(json_text_at(doc, "trust.level"), "fitted");
    json_decref(doc);
}

/* Another card, whose memory holds few of the requests at once: most wait a minute, and a hundred
 * and more are preempted. The pool is the derived one, 41,648 tokens for 41,408. */
Test(fit, llama_on_a_card_that_preempts_from_a_hundred_requests)
{
    json_t *doc = program_json("fit " ADA_RUN COLUMNS ADA "--fit-first 100", 0);
    expect_error_within(doc, "held out", "tpot mean", 0.03);
    expect_error_within(doc, "held out", "ttft mean", 0.10);
    expect_error_within(doc, "all", "throughput", 0.02);
    /* 300 requests of the recording in 183.6 s. */
    cr_expect_float_eq(score(doc, "all", "throughput", "measured"), 1.634, 1e-3);
    cr_expect_gt(score(doc, "held out", "ttft mean", "measured"), 60.0);
    /* No overhead is left to fit: one number still, the speed of the operations. */
    cr_expect_eq(value_of(doc, "step_overhead"), 0);
    cr_expect_float_eq(value_of(doc, "efficiency"), 1.0, 0.02);
    json_decref(doc);
    doc = program_json("fit " ADA_RUN COLUMNS ADA "--fit-first 100 --kv-blocks 2588", 0);
    expect_error_within(doc, "held out", "tpot mean", 0.03);
    expect_error_within(doc, "held out", "ttft mean", 0.10);
    expect_error_within(doc, "all", "throughput", 0.02);
    json_decref(doc);
}

/* Fits are kept in the store, and go by their names. */
Test(fit, is_kept_by_name)
{
    json_t *doc = program_json("fit " LLAMA_RUN COLUMNS LLAMA "--limit 60 --name busy", 0);
    cr_expect_str_eq(json_text_at(doc, "name"), "busy");
    double overhead = value_of(doc, "step_overhead");
    json_decref(doc);
    doc = program_json("fit " LLAMA_RUN COLUMNS LLAMA "--limit 40", 0);
    cr_expect_str_eq(json_text_at(doc, "name"), "vllm-0.19@rtxpro6000");
    json_decref(doc);
    doc = program_json("db list fits", 0);
    cr_assert_eq(json_array_size(json_at(doc, "fits")), 2u);
    cr_expect_str_eq(json_text_at(doc, "fits.0.name"), "busy");
    cr_expect_float_eq(json_number_at(doc, "fits.0.step_overhead_s"), overhead, 1e-15);
    cr_expect_eq(json_number_at(doc, "fits.0.requests"), 60);
    json_decref(doc);
    doc = program_json("db show busy", 0);
    cr_expect_str_eq(json_text_at(doc, "fit.0.source"),
                     "berth fit: rtxpro6000_llama-3.1-8b.jsonl, overhead");
    cr_expect_eq(strlen(json_text_at(doc, "fit.0.content_sha256")), 64u);
    json_decref(doc);
    doc = program_json("replay " LLAMA_RUN COLUMNS LLAMA "--limit 60 --fit busy", 0);
    cr_expect_str_eq(json_text_at(doc, "trust.level"), "fitted");
    json_decref(doc);
    struct outcome o = program_run("replay " LLAMA_RUN COLUMNS LLAMA "--fit quiet");
    cr_expect_eq(o.status, 3);
    cr_expect_not_null(strstr(o.err,
                              "--fit \"quiet\": no such file, and no fit of that name in the "
                              "store, which has busy, vllm-0.19@rtxpro6000"),
                       "%s", o.err);
}

/* Nobody measured all-reduces over this card's bus: the prediction says so, and a fit helps. */
Test(fit, qwen_on_two_cards_is_slow_by_a_fifth_and_one_efficiency_says_it_unasked)
{
    json_t *doc = program_json("replay " QWEN_RUN COLUMNS QWEN, 0);
    cr_expect_str_eq(json_text_at(doc, "trust.level"), "transferred");
    cr_expect_not_null(strstr(json_text_at(doc, "trust.weakest"), "all-reduce"));
    double bound = json_number_at(doc, "trust.step_error");
    json_decref(doc);

    doc = program_json("fit " QWEN_RUN COLUMNS QWEN "--fit-first 100", 0);
    double measured = score(doc, "held out", "tpot mean", "measured");
    double unfitted = score(doc, "held out", "tpot mean", "unfitted");
    cr_expect_lt(unfitted, 0.9 * measured);
    cr_expect_gt(unfitted * (1 + bound), measured);
    expect_error_within(doc, "held out", "tpot mean", 0.03);
    expect_error_within(doc, "held out", "ttft mean", 0.10);
    expect_error_within(doc, "all", "throughput", 0.02);
    cr_expect_float_eq(value_of(doc, "efficiency"), 0.785, 0.02);
    json_decref(doc);

    doc = program_json("fit " QWEN_RUN COLUMNS QWEN "--fit-first 100 --parameters overhead", 0);
    cr_expect_gt(value_of(doc, "step_overhead"), 0.01);
    json_decref(doc);
}

/* A run of the simulator with a known overhead and efficiency; its requests in `csv`. */
static void serve_known(const char *csv)
{
    char command[COMMAND_BYTES];
    const char *fit = program_write(
        "known.fit", "{\"format\": \"berth fit 1\", \"stack\": \"vllm-0.19\", \"gpu\": "
                     "\"rtxpro6000\", \"step_overhead_s\": 0.003, \"efficiency\": 0.9, "
                     "\"step_error\": 0.02}\n");
    (void)snprintf(command, sizeof command,
                   "replay " LLAMA_RUN COLUMNS LLAMA "--limit 150 --fit %s --per-request %s", fit,
                   csv);
    json_decref(program_json(command, 0));
}

#define OWN_COLUMNS                                                                                \
    "--columns timestamp=arrival_s,prompt=prompt_tokens,output=output_tokens,ttft=ttft_s,"         \
    "e2e=e2e_s "

Test(fit, finds_what_was_put_in)
{
    char csv[COMMAND_BYTES / 2], command[COMMAND_BYTES];
    (void)snprintf(csv, sizeof csv, "%s", program_path("known.csv"));
    serve_known(csv);
    (void)snprintf(command, sizeof command, "fit %s " OWN_COLUMNS LLAMA "--parameters both", csv);
    json_t *doc = program_json(command, 0);
    cr_expect_float_eq(value_of(doc, "step_overhead"), 0.003, 0.0002);
    cr_expect_float_eq(value_of(doc, "efficiency"), 0.9, 0.006);
    expect_error_within(doc, "all", "tpot mean", 0.002);
    json_decref(doc);
}

/* The requests of `csv` as vllm bench serve --save-result (--save-detailed) would tell them. */
static json_t *bench_of(const char *csv, bool detailed)
{
    FILE *f = fopen(csv, "r");
    cr_assert_not_null(f);
    char line[1024];
    cr_assert_not_null(fgets(line, sizeof line, f));
    json_t *inputs = json_array(), *outputs = json_array(), *ttfts = json_array(),
           *gaps = json_array(), *starts = json_array(), *errors = json_array();
    double sums[3] = {0}, last = 0;
    int64_t n = 0, n_in = 0, n_out = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        double arrival, end, ttft, tpot, e2e;
        long prompt, output;
        cr_assert_eq(sscanf(line, "%*d,finished,%lf,%*f,%*f,%*f,%lf,%lf,%lf,%lf,%ld,%ld", &arrival,
                            &end, &ttft, &tpot, &e2e, &prompt, &output),
                     7, "%s", line);
        json_t *own = json_array();
        for (long i = 1; i < output; i++) {
            json_array_append_new(own, json_real(tpot));
        }
        json_array_append_new(inputs, json_integer(prompt));
        json_array_append_new(outputs, json_integer(output));
        json_array_append_new(ttfts, json_real(ttft));
        json_array_append_new(gaps, own);
        json_array_append_new(starts, json_real(arrival + 1000));
        json_array_append_new(errors, json_string(""));
        sums[0] += ttft;
        sums[1] += tpot;
        sums[2] += e2e;
        n++;
        n_in += prompt;
        n_out += output;
        last = fmax(last, end);
    }
    (void)fclose(f);
    double ms = 1e3 / (double)n;
    json_t *doc =
        json_pack("{s:s,s:s,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "model_id",
                  "meta-llama/Llama-3.1-8B", "backend", "vllm", "num_prompts", (int)n, "completed",
                  (int)n, "total_input_tokens", (int)n_in, "total_output_tokens", (int)n_out,
                  "duration", last, "request_rate", 10.0, "burstiness", 1.0, "request_throughput",
                  (double)n / last, "output_throughput", (double)n_out / last, "mean_ttft_ms",
                  sums[0] * ms, "mean_tpot_ms", sums[1] * ms, "mean_e2el_ms", sums[2] * ms);
    cr_assert_not_null(doc);
    json_t *lists[] = {inputs, outputs, ttfts, gaps, starts, errors};
    const char *const names[] = {"input_lens", "output_lens", "ttfts",
                                 "itls",       "start_times", "errors"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (detailed) {
            cr_assert_eq(json_object_set(doc, names[i], lists[i]), 0);
        }
        json_decref(lists[i]);
    }
    return doc;
}

static json_t *fit_bench(const char *csv, bool detailed, const char *parameters)
{
    char command[COMMAND_BYTES];
    json_t *bench = bench_of(csv, detailed);
    char *text = json_dumps(bench, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(bench);
    cr_assert_not_null(text);
    (void)snprintf(command, sizeof command, "fit %s " LLAMA "--parameters %s",
                   program_write("bench.json", text), parameters);
    free(text);
    return program_json(command, 0);
}

Test(fit, reads_vllm_bench_serve)
{
    char csv[COMMAND_BYTES / 2];
    (void)snprintf(csv, sizeof csv, "%s", program_path("known.csv"));
    serve_known(csv);
    json_t *doc = fit_bench(csv, true, "both");
    cr_expect_float_eq(value_of(doc, "step_overhead"), 0.003, 0.0002);
    cr_expect_float_eq(value_of(doc, "efficiency"), 0.9, 0.006);
    cr_expect_eq(json_number_at(doc, "fit.requests"), 150);
    json_decref(doc);
    /* Means alone: even lengths at the rate stand for the run, and there is no interval. */
    doc = fit_bench(csv, false, "one");
    cr_expect_float_eq(value_of(doc, "efficiency"), 0.85, 0.1);
    cr_expect(isnan(end_of_interval(doc, "efficiency", 0)) ||
              json_is_null(json_array_get(json_at(parameter(doc, "efficiency"), "ci95"), 0)));
    json_decref(doc);
}

Test(fit, refuses_what_it_cannot_use)
{
    program_refuses("fit " LLAMA_RUN LLAMA "--columns "
                    "timestamp=queued_ts:s,prompt=input_toks,output=output_toks",
                    3, "no measured times: name their columns");
    program_refuses("fit " LLAMA_RUN COLUMNS LLAMA "--limit 5", 3, "a fit needs at least 10");
    program_refuses("fit nowhere.json " LLAMA, 3, "nowhere.json: cannot read");
    program_refuses("fit " LLAMA_RUN COLUMNS LLAMA "--slo ttft.p99=1", 2,
                    "--slo: means nothing to a fit");
    program_refuses("fit " LLAMA_RUN COLUMNS LLAMA "--parameters speed", 2, "--parameters");
}

static void expect_bad_fit(const char *text, const char *message)
{
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command, "replay " LLAMA_RUN COLUMNS LLAMA "--fit %s",
                   program_write("bad.fit", text));
    program_refuses(command, 3, message);
}

#define HEAD "{\"format\": \"berth fit 1\", \"stack\": \"vllm-0.19\", \"gpu\": \"rtxpro6000\", "

Test(fit, bad_files_of_a_fit_are_named)
{
    expect_bad_fit("{\n\"format\": \n", "bad.fit:3: not JSON");
    expect_bad_fit("{\"format\": \"berth fit 2\"}", "bad.fit: format: expected \"berth fit 1\"");
    expect_bad_fit("[]", "bad.fit: format: expected");
    expect_bad_fit("{\"format\": \"berth fit 1\", \"stack\": \"\"}", "bad.fit: stack: expected");
    expect_bad_fit(HEAD "\"efficiency\": 1, \"step_error\": 0.1}", "bad.fit: step_overhead_s:");
    expect_bad_fit(HEAD "\"step_overhead_s\": -1, \"efficiency\": 1, \"step_error\": 0.1}",
                   "step_overhead_s: expected a number in 0..10, got -1");
    expect_bad_fit(HEAD "\"step_overhead_s\": 0, \"efficiency\": \"1\", \"step_error\": 0.1}",
                   "efficiency: expected a number in 0.01..100");
    expect_bad_fit(HEAD "\"step_overhead_s\": 0, \"efficiency\": 1}", "step_error: expected");
}

/* A fit says nothing of another stack or card. */
Test(fit, holds_for_its_stack_and_card_alone)
{
    char command[COMMAND_BYTES];
    const char *fit =
        program_write("other.fit", HEAD "\"step_overhead_s\": 0.05, \"efficiency\": 0.5, "
                                        "\"step_error\": 0.1}");
    char base[] = "replay " LLAMA_RUN COLUMNS "--model llama-3.1-8b --gpu rtxpro6000 --stack "
                  "vllm-0.18 --limit 50 ";
    json_t *without = program_json(base, 0);
    (void)snprintf(command, sizeof command, "%s --fit %s", base, fit);
    json_t *with = program_json(command, 0);
    cr_expect(json_equal(json_at(with, "metrics"), json_at(without, "metrics")));
    json_decref(with);
    json_decref(without);
}
