#include "sim/cost/bench.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

static struct bt_error err;

static enum bt_code read_vllm(const char *text, struct bt_bench_run *run)
{
    struct bt_import_text file = {text, strlen(text), "run.json"};
    bt_error_clear(&err);
    return bt_bench_read_vllm(&file, run, &err);
}

/* The form of vllm bench serve --save-result --save-detailed, with invented figures. */
#define HEAD                                                                                       \
    "{\"date\": \"20260301-120000\", \"backend\": \"vllm\", \"model_id\": \"llama\", "             \
    "\"tokenizer_id\": \"llama\", \"num_prompts\": 2, \"gpu\": \"L40S\", "
#define BODY                                                                                       \
    "\"burstiness\": 1.0, \"max_concurrency\": null, \"duration\": 4.0, \"completed\": 2, "        \
    "\"failed\": 0, \"total_input_tokens\": 300, \"total_output_tokens\": 5, "                     \
    "\"request_throughput\": 0.5, \"request_goodput\": null, \"output_throughput\": 1.25, "        \
    "\"total_token_throughput\": 76.25, "
#define TAIL                                                                                       \
    "\"input_lens\": [100, 200], \"output_lens\": [3, 2], \"ttfts\": [0.1, 0.3], "                 \
    "\"itls\": [[0.02, 0.03], [0.05]], \"start_times\": [10.5, 11.0], \"errors\": [\"\", \"\"], "  \
    "\"mean_ttft_ms\": 200.0, \"median_ttft_ms\": 200.0, \"std_ttft_ms\": 100.0, "                 \
    "\"p99_ttft_ms\": 299.0, \"p99.9_ttft_ms\": 299.9, \"mean_tpot_ms\": 37.5}"
#define GOOD HEAD "\"request_rate\": \"inf\", " BODY TAIL

Test(bench, vllm_results_are_read_in_seconds)
{
    struct bt_bench_run run;
    cr_assert_eq(read_vllm(GOOD, &run), BT_OK, "%s", err.msg);
    cr_expect_str_eq(run.model, "llama");
    cr_expect_eq(run.completed, 2);
    cr_expect(isinf(run.request_rate_per_s));
    cr_expect_eq(run.max_concurrency, 0);
    cr_expect_float_eq(run.ttft.mean_s, 0.2, 1e-12);
    cr_expect_float_eq(run.ttft.p99_s, 0.299, 1e-12);
    cr_expect(isnan(run.ttft.p90_s), "not stated");
    cr_expect_float_eq(run.tpot.mean_s, 0.0375, 1e-12);
    cr_expect(isnan(run.e2e.mean_s));
    cr_expect(isnan(run.spec_accepted_len));
    cr_assert_eq(run.n_requests, 2);
    cr_expect_eq(run.requests[1].input_tokens, 200);
    cr_expect_float_eq(run.requests[0].e2e_s, 0.15, 1e-12);
    cr_expect_float_eq(run.requests[0].start_s, 0, 1e-12);
    cr_expect_float_eq(run.requests[1].start_s, 0.5, 1e-12);
    bt_bench_run_fini(&run);
}

Test(bench, vllm_results_without_details_and_the_last_of_many)
{
    struct bt_bench_run run;
    const char *text =
        GOOD "\n" HEAD "\"request_rate\": 3.5, " BODY "\"spec_decode_acceptance_rate\": 62.5, "
             "\"spec_decode_acceptance_length\": 2.5, \"mean_ttft_ms\": 7}\n";
    cr_assert_eq(read_vllm(text, &run), BT_OK, "%s", err.msg);
    cr_expect_float_eq(run.request_rate_per_s, 3.5, 1e-12);
    cr_expect_null(run.requests);
    cr_expect_float_eq(run.spec_acceptance_fraction, 0.625, 1e-12);
    cr_expect_float_eq(run.spec_accepted_len, 2.5, 1e-12);
    bt_bench_run_fini(&run);
}

static const struct {
    const char *text;
    const char *message;
} bad_vllm[] = {
    {"", "run.json:"},
    {"[1]", "run.json: expected a JSON object"},
    {"{\"duration\": 1,}", "run.json:1: not JSON"},
    {"{\"duration\": 1}", "run.json: key \"completed\" is missing"},
    {"{\"duration\": 0}", "run.json: duration: expected a number >= 1e-09"},
    {HEAD "\"request_rate\": 0, " BODY TAIL, "request_rate: expected a number > 0 or \"inf\""},
    {HEAD "\"mean_ttft_us\": 5, " BODY TAIL, "unknown key \"mean_ttft_us\""},
    {HEAD "\"turbo\": [1], " BODY TAIL, "unknown key \"turbo\""},
    {HEAD "\"duration\": 4000, \"completed\": 2, \"total_input_tokens\": 1, "
          "\"total_output_tokens\": 5, \"request_throughput\": 0.5, \"output_throughput\": 1.25}",
     "request_throughput: 0.5 stated, 0.0005 follows"},
    {HEAD BODY "\"mean_ttft_ms\": 0.2, \"input_lens\": [1], \"output_lens\": [1], "
               "\"ttfts\": [0.2], \"itls\": [[]]}",
     "mean_ttft_ms: 0.2 stated, 200 follows"},
    {HEAD BODY "\"input_lens\": [1, 2], \"output_lens\": [1], \"ttfts\": [1], \"itls\": [[]]}",
     "output_lens: expected an array as long as input_lens"},
    {HEAD BODY "\"input_lens\": [1], \"output_lens\": [1], \"ttfts\": [-1], \"itls\": [[]]}",
     "ttfts[0]: expected a number >= 0"},
    {HEAD BODY "\"failed\": -1}", "failed: expected a number >= 0"},
};

Test(bench, bad_vllm_results_are_named)
{
    for (size_t i = 0; i < sizeof bad_vllm / sizeof bad_vllm[0]; i++) {
        struct bt_bench_run run;
        cr_expect_eq(read_vllm(bad_vllm[i].text, &run), BT_ERR_INPUT, "%zu", i);
        cr_expect(strstr(err.msg, bad_vllm[i].message) != NULL, "\"%s\" lacks \"%s\"", err.msg,
                  bad_vllm[i].message);
        cr_expect_null(run.requests);
    }
}

#define TEST                                                                                       \
    "{\"build_commit\": \"8cf427ff\", \"gpu_info\": \"RTX 4080\", \"model_type\": \"qwen2 7B\", "  \
    "\"model_size\": 4677120000, \"model_n_params\": 7615616512, \"n_batch\": 2048, "              \
    "\"type_k\": \"f16\", \"type_v\": \"f16\", \"n_gpu_layers\": -1, \"n_prompt\": 512, "          \
    "\"n_gen\": 0, \"n_depth\": 0, \"avg_ns\": 72135640, \"stddev_ns\": 1453752, "                 \
    "\"avg_ts\": 7100.0, \"stddev_ts\": 140.3, \"samples_ns\": [1, 2]}"
#define CSV                                                                                        \
    "build_commit,gpu_info,model_type,model_size,model_n_params,n_batch,type_k,type_v,n_prompt,"   \
    "n_gen,avg_ns,stddev_ns,avg_ts,stddev_ts\n"

static enum bt_code read_llama(const char *text, struct bt_llama_bench_set *set)
{
    struct bt_import_text file = {text, strlen(text), "lb"};
    bt_error_clear(&err);
    return bt_bench_read_llama(&file, set, &err);
}

Test(bench, llama_bench_json_jsonl_and_csv)
{
    static const char *const forms[] = {
        "[" TEST ", " TEST "]\n",
        TEST "\n" TEST "\n",
        CSV
        "\"8cf427ff\",\"RTX 4080\",\"qwen2 7B\",\"4677120000\",\"7615616512\",\"2048\",\"f16\","
        "\"f16\",\"512\",\"0\",\"72135640\",\"1453752\",\"7100.0\",\"140.3\"\n"
        "8cf427ff,RTX 4080,qwen2 7B,4677120000,7615616512,2048,f16,f16,0,128,1076767880,9449585,"
        "118.88,1.04\n",
    };
    for (size_t i = 0; i < 3; i++) {
        struct bt_llama_bench_set set;
        cr_assert_eq(read_llama(forms[i], &set), BT_OK, "%s", err.msg);
        cr_assert_eq(set.n_tests, 2);
        cr_expect_str_eq(set.tests[0].model_type, "qwen2 7B");
        cr_expect_eq(set.tests[0].n_prompt, 512);
        cr_expect_eq(set.tests[0].time_ns, 72135640);
        cr_expect_eq(set.tests[0].spread_ns, 1453752);
        cr_expect_str_eq(set.tests[0].gpu, "RTX 4080");
        cr_expect_eq(set.tests[1].n_gen, i == 2 ? 128 : 0);
        bt_llama_bench_fini(&set);
    }
}

static const struct {
    const char *text;
    const char *message;
} bad_llama[] = {
    {"", "lb: empty"},
    {"[]", "lb: no test in it"},
    {"[3]", "lb: [0]: expected an object"},
    {"[{\"n_gen\": 1}]", "lb: [0]: \"model_size\" is missing"},
    {"[{\"model_size\": \"4 GiB\"}]", "lb: [0].model_size: expected a number"},
    {CSV "a,b,c,1,1,1,f,f,0,0,5,0,1,0\n", "n_prompt and n_gen are both 0"},
    {CSV "a,b,c,1,1,1,f,f,512,0,72135,0,7100,0\n", "avg_ts 7100, but 512 tokens in avg_ns are"},
    {CSV "a,b,c,1,1,1,f,f,512,0,0,0,7100,0\n", "[0].avg_ns: 0, expected >= 1"},
};

Test(bench, bad_llama_bench_files_are_named)
{
    for (size_t i = 0; i < sizeof bad_llama / sizeof bad_llama[0]; i++) {
        struct bt_llama_bench_set set;
        cr_expect_eq(read_llama(bad_llama[i].text, &set), BT_ERR_INPUT, "%zu", i);
        cr_expect(strstr(err.msg, bad_llama[i].message) != NULL, "\"%s\" lacks \"%s\"", err.msg,
                  bad_llama[i].message);
        cr_expect_null(set.tests);
    }
}
