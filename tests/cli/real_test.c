/* berth replay --executor cpu: traces served for real. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

enum { LINE = 2048 };

static const char columns[] = "--format csv --columns timestamp=t:s,prompt=prompt,output=output "
                              "--executor cpu --jobs 1";

/* Twelve requests within a few milliseconds. */
static const char *trace(void)
{
    static char path[LINE];
    (void)snprintf(path, sizeof path, "%s",
                   program_write("t.csv", "t,prompt,output\n"
                                          "0.000,40,6\n0.001,25,9\n0.001,70,3\n0.002,16,12\n"
                                          "0.002,33,1\n0.003,48,8\n0.003,20,5\n0.004,64,7\n"
                                          "0.004,31,4\n0.005,17,10\n0.005,90,2\n0.006,50,6\n"));
    return path;
}

static json_t *replay(const char *more, int status)
{
    char line[2 * LINE];
    (void)snprintf(line, sizeof line, "replay %s %s %s", trace(), columns, more);
    return program_json(line, status);
}

Test(real, serves_every_request_with_its_lengths)
{
    json_t *doc = replay("--model tests/models/tiny-llama-mha", 0);
    cr_expect_str_eq(json_text_at(doc, "trust.level"), "measured");
    cr_expect_str_eq(json_text_at(doc, "config.gpu"), "host");
    cr_expect_eq(json_number_at(doc, "metrics.arrived"), 12);
    cr_expect_eq(json_number_at(doc, "metrics.finished"), 12);
    /* Each answer's first token comes out of its prefill. */
    cr_expect_eq(json_number_at(doc, "metrics.prefill_tokens"), 504);
    cr_expect_eq(json_number_at(doc, "metrics.decode_tokens"), 73 - 12);
    cr_expect_gt(json_number_at(doc, "metrics.ttft_s.p50"), 0);
    cr_expect_geq(json_number_at(doc, "metrics.e2e_s.max"),
                  json_number_at(doc, "metrics.ttft_s.max"));
    cr_expect_leq(json_number_at(doc, "metrics.gpu_busy_fraction"), 1);
    cr_expect_lt(json_number_at(doc, "metrics.little_error"), 1e-6);
    json_decref(doc);
}

/* Answers outgrow a small pool: somebody is preempted, by either way, and everybody ends. */
Test(real, a_small_pool_preempts_and_serves_all)
{
    static const char *const ways[] = {"recompute", "swap"};
    const char *path =
        program_write("long.csv", "t,prompt,output\n0,20,60\n0,21,60\n0,22,60\n0,23,60\n0,24,60\n");
    for (size_t i = 0; i < 2; i++) {
        char line[2 * LINE], member[64];
        (void)snprintf(line, sizeof line,
                       "replay %s %s --model tests/models/tiny-qwen3 --kv-blocks 14 --block 8 "
                       "--max-model-len 104 --preempt %s --prefix-cache off",
                       path, columns, ways[i]);
        json_t *doc = program_json(line, 0);
        cr_expect_eq(json_number_at(doc, "metrics.finished"), 5);
        cr_expect_eq(json_number_at(doc, "metrics.kv_blocks_total"), 14);
        (void)snprintf(member, sizeof member, "metrics.preempt_%s", ways[i]);
        cr_expect_gt(json_number_at(doc, member), 0, "%s", ways[i]);
        json_decref(doc);
    }
}

Test(real, writes_requests_and_a_recording)
{
    char more[3 * LINE], requests[LINE], recording[LINE];
    (void)snprintf(requests, sizeof requests, "%s", program_path("requests.csv"));
    (void)snprintf(recording, sizeof recording, "%s", program_path("run.jsonl"));
    (void)snprintf(more, sizeof more,
                   "--model tests/models/tiny-qwen2 --per-request %s --recording %s", requests,
                   recording);
    json_t *doc = replay(more, 0);
    json_decref(doc);
    FILE *f = fopen(requests, "r");
    cr_assert_not_null(f);
    char line[LINE];
    int32_t n = 0, finished = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        n++;
        finished += strstr(line, ",finished,") != NULL;
    }
    (void)fclose(f);
    cr_expect_eq(n, 13);
    cr_expect_eq(finished, 12);
    f = fopen(recording, "r");
    cr_assert_not_null(f);
    int32_t submits = 0, completes = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        submits += strncmp(line, "{\"submit\":", strlen("{\"submit\":")) == 0;
        completes += strncmp(line, "{\"complete\":", strlen("{\"complete\":")) == 0;
    }
    (void)fclose(f);
    cr_expect(strncmp(line, "{\"end\":", strlen("{\"end\":")) == 0, "%s", line);
    cr_expect_eq(submits, 12);
    cr_expect_gt(completes, 12);
    struct outcome o = program_run("db list --json");
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, "\"cpu\"") != NULL, "%s", o.out);
}

/* Equal prefixes of the trace are equal tokens: the cache finds them. */
Test(real, shared_prefixes_are_shared)
{
    const char *path = program_write(
        "mooncake.jsonl",
        "{\"timestamp\":0,\"input_length\":600,\"output_length\":2,\"hash_ids\":[1,2]}\n"
        "{\"timestamp\":400,\"input_length\":700,\"output_length\":2,\"hash_ids\":[1,3]}\n");
    char line[2 * LINE];
    (void)snprintf(line, sizeof line,
                   "replay %s --executor cpu --jobs 1 --model tests/models/berth-1m "
                   "--max-batched-tokens 800",
                   path);
    json_t *doc = program_json(line, 0);
    cr_expect_eq(json_number_at(doc, "metrics.finished"), 2);
    cr_expect_float_eq(json_number_at(doc, "metrics.prefix_hit_fraction"), 512.0 / 1300, 1e-9);
    json_decref(doc);
}

Test(real, speculates_with_layers_of_its_own_and_with_a_draft)
{
    static const char *const ways[] = {
        "--model tests/models/tiny-llama-mha --spec self=1,k=2",
        "--model tests/models/berth-12m --spec draft=tests/models/berth-1m,k=3 --limit 4",
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        json_t *doc = replay(ways[i], 0);
        cr_expect_eq(json_number_at(doc, "metrics.finished"), i == 0 ? 12 : 4);
        cr_expect_geq(json_number_at(doc, "metrics.accepted_len"), 1);
        json_decref(doc);
    }
}

static const struct bad {
    const char *args, *message;
    int status;
} bad[] = {
    {"--model llama-2-7b", "is not a folder", 2},
    {"--model tests/models/tiny-qwen2 --gpu h200", "runs on host", 2},
    {"--model tests/models/tiny-qwen2 --replicas 2", "is one replica", 2},
    {"--model tests/models/tiny-qwen2 --inflight 2", "at most 1 in flight", 2},
    {"--model tests/models/tiny-qwen2 --stack vllm-0.19", "is berth", 2},
    {"--model tests/models/tiny-qwen2 --over-length allow", "no positions beyond", 2},
    {"--model tests/models/tiny-qwen2 --max-rate --slo e2e.p95=1", "many runs of the trace", 2},
    {"--model tests/models/tiny-qwen2 --spec draft=tests/models/berth-1m,k=2", "vocabulary", 2},
    {"--model tests/models/tiny-qwen2 --kv fp8", "fp8", 2},
    {"--model tests/models/tiny-qwen2 --gpu-memory 1MB", "does not fit", 1},
};

/* Without a CUDA engine in the program, and without a GPU, it is the same exit status. */
Test(real, without_a_gpu_the_cuda_executor_is_missing)
{
    static const char *const commands[] = {
        "run --model tests/models/berth-1m --prompt a --executor cuda",
        "eval --model tests/models/berth-1m --tokens tests/models/test_tokens_u16.bin "
        "--executor cuda",
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        struct outcome o = program_run(commands[i]);
        if (o.status == 0) {
            cr_skip_test("this machine has a GPU and the program an engine for it");
        }
        cr_expect_eq(o.status, 4, "%s gave %d: %s", commands[i], o.status, o.err);
        cr_expect_not_null(strstr(o.err, "--executor cuda"), "%s", o.err);
    }
}

Test(real, what_the_engine_cannot_do_is_told)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[2 * LINE];
        (void)snprintf(line, sizeof line, "replay %s %s %s", trace(), columns, bad[i].args);
        struct outcome o = program_run(line);
        cr_expect_eq(o.status, bad[i].status, "%s gave %d: %s", line, o.status, o.err);
        bool told = strstr(o.err, bad[i].message) != NULL || strstr(o.out, bad[i].message) != NULL;
        cr_expect(told, "%s: %s%s", line, o.err, o.out);
    }
}
