/* berth import: every format into the store with its provenance, what the cost model makes of it,
 * and what it refuses. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define FIXTURES "tests/sim/cost/fixtures/"

enum { COMMAND_BYTES = 2048 };

static const json_t *row_of(const json_t *doc, const char *op)
{
    return json_row(doc, "rows", "op", op);
}

struct case_of {
    const char *args;
    const char *gpu, *stack, *op;
    double samples;
};

static const struct case_of cases[] = {
    {"aiconfigurator " FIXTURES "aic_gemm.csv --gpu l40s --stack trtllm-1.0.0", "l40s",
     "trtllm-1.0.0", "gemm", 252},
    {"aiconfigurator " FIXTURES "aic_decode.csv --gpu h200 --stack vllm-0.24.0", "h200",
     "vllm-0.24.0", "attn-decode", 46},
    {"aiconfigurator " FIXTURES "aic_nccl.csv --gpu l40s --stack nccl-2.27.3", "l40s",
     "nccl-2.27.3", "allreduce", 9},
    {"llmservingsim " FIXTURES
     "lss_dense.csv --gpu rtx4090 --stack vllm-0.19.0 --model llama-3.1-8b",
     "rtx4090", "vllm-0.19.0", "gemm", 20},
    {"llmservingsim " FIXTURES
     "lss_skew_fit.csv --gpu rtx4090 --stack vllm-0.19.0 --model llama-3.1-8b",
     "rtx4090", "vllm-0.19.0", "skew", 71},
    {"vidur " FIXTURES "vidur_mlp.csv --gpu a100", "a100-80-sxm", "vidur", "gemm", 8},
    {"frontier " FIXTURES "frontier_linear.csv --gpu h100", "h100-sxm", "vidur", "gemm", 16},
};

Test(import, every_format_comes_in_with_its_provenance)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct case_of *c = &cases[i];
        char command[COMMAND_BYTES];
        (void)snprintf(command, sizeof command,
                       "import %s --source project/of-them --licence Apache-2.0", c->args);
        json_t *doc = program_json(command, 0);
        const json_t *row = row_of(doc, c->op);
        cr_expect_str_eq(json_text_at(row, "gpu"), c->gpu, "%s", c->args);
        cr_expect_str_eq(json_text_at(row, "stack"), c->stack, "%s", c->args);
        cr_expect_eq(json_number_at(row, "samples"), c->samples, "%s: %g", c->args,
                     json_number_at(row, "samples"));
        cr_expect_eq(json_number_at(doc, "changed"), (double)json_array_size(json_at(doc, "rows")));
        char name[COMMAND_BYTES];
        (void)snprintf(name, sizeof name, "db show %s", json_text_at(row, "name"));
        json_t *shown = program_json(name, 0);
        cr_expect_str_eq(json_text_at(shown, "import.0.licence"), "Apache-2.0");
        cr_expect_eq(strncmp(json_text_at(shown, "import.0.source"), "project/of-them: ", 17), 0);
        cr_expect_eq(strlen(json_text_at(shown, "import.0.content_sha256")), 64u);
        json_decref(shown);
        json_decref(doc);
        doc = program_json(command, 0); /* again: nothing changes */
        cr_expect_eq(json_number_at(doc, "changed"), 0, "%s", c->args);
        json_decref(doc);
    }
    json_t *list = program_json("db list imports", 0);
    size_t n = json_array_size(json_at(list, "imports"));
    cr_expect_geq(n, sizeof cases / sizeof *cases);
    json_decref(list);
    cr_expect_eq(program_run("db verify").status, 0);
}

static const char *write_in(const char *folder, const char *name, const char *text)
{
    (void)mkdir(program_path(folder), 0700);
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return program_write(path, text);
}

/* The folders of LLMServingSim's profiler tell all there is to know. */
Test(import, a_folder_tells_card_model_format_and_version)
{
    char *dense = program_source_text(FIXTURES "lss_dense.csv");
    char *mixed = program_source_text(FIXTURES "lss_attention.csv");
    (void)mkdir(program_path("perf"), 0700);
    (void)mkdir(program_path("perf/RTX5090"), 0700);
    (void)mkdir(program_path("perf/RTX5090/meta-llama"), 0700);
    (void)mkdir(program_path("perf/RTX5090/meta-llama/Llama-3.1-8B"), 0700);
    (void)write_in("perf/RTX5090/meta-llama/Llama-3.1-8B/bf16", "meta.yaml",
                   "profiler_version: 1.0.0\nvllm_version: 0.19.0\n");
    (void)write_in("perf/RTX5090/meta-llama/Llama-3.1-8B/bf16/tp2", "dense.csv", dense);
    (void)write_in("perf/RTX5090/meta-llama/Llama-3.1-8B/bf16/tp2", "attention.csv", mixed);
    (void)write_in("perf/RTX5090/meta-llama/Llama-3.1-8B/bf16/tp2", "moe.csv", "not ours\n");
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command, "import llmservingsim %s", program_path("perf"));
    json_t *doc = program_json(command, 0);
    const json_t *gemm = row_of(doc, "gemm");
    cr_expect_str_eq(json_text_at(gemm, "gpu"), "rtx5090");
    cr_expect_str_eq(json_text_at(gemm, "stack"), "vllm-0.19.0");
    cr_expect_eq(json_array_size(json_at(doc, "skipped")), 2u); /* meta.yaml and moe.csv */
    json_decref(doc);
    free(dense);
    free(mixed);
    /* A card that nobody measured now has a table of its own. */
    json_t *with = program_json("replay tests/data/measured/vllm019/rtxpro6000_llama-3.1-8b.jsonl "
                                "--columns timestamp=queued_ts:s,prompt=input_toks,output="
                                "output_toks --limit 5 --model llama-3.1-8b --gpu rtx5090 --tp 2 "
                                "--stack vllm-0.19",
                                0);
    cr_expect_str_eq(json_text_at(with, "trust.level"), "transferred", "all-reduce is not in it");
    cr_expect_not_null(strstr(json_text_at(with, "trust.weakest"), "all-reduce"), "%s",
                       json_text_at(with, "trust.weakest"));
    json_decref(with);
}

/* Twice the times of the shipped tables: what is imported is what answers. */
Test(import, an_import_takes_the_shipped_table_s_place)
{
    static const char replay[] =
        "replay tests/data/measured/vllm019/rtxpro6000_llama-3.1-8b.jsonl --columns "
        "timestamp=queued_ts:s,prompt=input_toks,output=output_toks --limit 20 --model "
        "llama-3.1-8b --gpu rtx4090 --stack vllm-0.19";
    json_t *doc = program_json(replay, 0);
    double before = json_number_at(doc, "metrics.tpot_s.mean");
    cr_expect_str_eq(json_text_at(doc, "trust.level"), "imported");
    json_decref(doc);
    char text[1 << 14];
    size_t n = (size_t)snprintf(text, sizeof text, "layer,tokens,time_us\n");
    static const struct {
        const char *layer;
        double fixed_us, per_token_us;
    } layers[] = {{"qkv_proj", 120, 0.7},
                  {"o_proj", 90, 0.5},
                  {"gate_up_proj", 550, 3},
                  {"down_proj", 280, 1.5}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        for (int32_t m = 1; m <= 2048; m *= 2) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%s,%d,%g\n", layers[i].layer, m,
                                  layers[i].fixed_us + layers[i].per_token_us * m);
        }
    }
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command,
                   "import llmservingsim %s --gpu rtx4090 --stack vllm-0.19.0 --model "
                   "llama-3.1-8b",
                   program_write("slow_dense.csv", text));
    doc = program_json(command, 0);
    cr_expect_lt(json_number_at(row_of(doc, "gemm"), "error_median"), 0.06);
    json_decref(doc);
    doc = program_json(replay, 0);
    double after = json_number_at(doc, "metrics.tpot_s.mean");
    cr_expect(after > 1.5 * before && after < 2.5 * before, "%g after %g", after, before);
    cr_expect_str_eq(json_text_at(doc, "trust.level"), "imported");
    json_decref(doc);
}

Test(import, benchmarks_are_kept_as_figures)
{
    const char *path = program_write(
        "bench.json",
        "{\"date\": \"20260801-101010\", \"backend\": \"vllm\", \"model_id\": "
        "\"meta-llama/Llama-3.1-8B\", \"num_prompts\": 100, \"request_rate\": 4.0, "
        "\"burstiness\": 1.0, \"max_concurrency\": null, \"duration\": 25.0, \"completed\": 100, "
        "\"total_input_tokens\": 51200, \"total_output_tokens\": 12800, \"request_throughput\": "
        "4.0, \"output_throughput\": 512.0, \"total_token_throughput\": 2560.0, \"mean_ttft_ms\": "
        "80.0, \"median_ttft_ms\": 75.0, \"p99_ttft_ms\": 140.0, \"mean_tpot_ms\": 12.0, "
        "\"median_tpot_ms\": 11.5, \"p99_tpot_ms\": 15.0, \"mean_itl_ms\": 12.0, "
        "\"median_itl_ms\": 11.0, \"p99_itl_ms\": 30.0}");
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command, "import vllm-bench %s --gpu h200 --stack vllm-0.19",
                   path);
    json_t *doc = program_json(command, 0);
    cr_expect_geq(json_array_size(json_at(doc, "rows")), 10u);
    json_decref(doc);
    doc = program_json("db show \"vllm-bench h200 vllm-0.19 bench.json\"", 0);
    size_t i = 0, seen = 0;
    const json_t *row = NULL;
    json_array_foreach(json_at(doc, "figure"), i, row)
    {
        if (strcmp(json_text_at(row, "metric"), "ttft mean") == 0) {
            cr_expect_float_eq(json_number_at(row, "value"), 0.080, 1e-9);
            cr_expect_str_eq(json_text_at(row, "unit"), "s");
            cr_expect_str_eq(json_text_at(row, "test"), "100 requests, 4/s");
            seen++;
        }
    }
    cr_expect_eq(seen, 1u);
    json_decref(doc);

    path = program_write("llama.csv",
                         "build_commit,build_number,gpu_info,model_filename,model_type,model_size,"
                         "model_n_params,n_batch,n_gpu_layers,type_k,type_v,n_prompt,n_gen,n_depth,"
                         "avg_ns,stddev_ns,avg_ts,stddev_ts\n"
                         "\"abc\",\"1\",\"RTX 4090\",\"m.gguf\",\"llama 7B Q4_0\",\"3825065984\","
                         "\"6738415616\",\"2048\",\"99\",\"f16\",\"f16\",\"512\",\"0\",\"0\","
                         "\"40000000\",\"100000\",\"12800\",\"30\"\n");
    (void)snprintf(command, sizeof command, "import llama-bench %s --gpu rtx4090 --stack llama.cpp",
                   path);
    doc = program_json(command, 0);
    cr_expect_eq(json_array_size(json_at(doc, "rows")), 2u);
    cr_expect_float_eq(json_number_at(json_at(doc, "rows"), "1.value"), 12800, 1e-9);
    json_decref(doc);
    doc = program_json("db list benchmarks", 0);
    cr_expect_eq(json_array_size(json_at(doc, "benchmarks")), 2u);
    json_decref(doc);
}

static void expect_bad_table(const char *text, const char *message)
{
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command,
                   "import aiconfigurator %s --gpu l40s --stack trtllm-1.0.0",
                   program_write("bad.csv", text));
    program_refuses(command, 3, message);
}

#define HEADER "gemm_dtype,m,n,k,latency\n"

Test(import, what_cannot_be_believed_is_named)
{
    expect_bad_table("gemm_dtype,m,n,k,latency,power\nsq,1,64,64,0.1,3\n",
                     "bad.csv:1: unknown column \"power\"");
    expect_bad_table("gemm_dtype,m,n,k,latency_us\nsq,1,64,64,100\n", "unknown column");
    expect_bad_table(HEADER "sq,1,64,64,0.1\nsq,2,64,64,0\n", "bad.csv:3: a time of 0");
    expect_bad_table(HEADER "sq,1,64,64,-1\n", "bad.csv:2: a time of -1");
    expect_bad_table(HEADER "sq,1,64,64,0.1\nsq,1,64,64,0.125\n", "repeats may differ by 20%");
    expect_bad_table(HEADER "sq,1,64,64,0.011\nsq,2,64,64,11\nsq,4,64,64,0.012\n", "mixed units");
    expect_bad_table(HEADER "bfloat16,8192,8192,8192,0.5\n", "above 362, the dense peak of l40s");
    program_refuses("import aiconfigurator " FIXTURES "aic_nccl_unnamed.csv --gpu l40s --stack "
                    "nccl-2.27.3",
                    3, "say which, in order (--collective-order)");
    program_refuses("import aiconfigurator " FIXTURES "aic_gemm.csv --stack trtllm-1.0.0", 2,
                    "which card? no part of the path names one of the catalog: --gpu NAME");
    program_refuses("import aiconfigurator " FIXTURES "aic_gemm.csv --gpu l40", 3,
                    "\"l40\" is not known");
    program_refuses("import aiconfigurator " FIXTURES "aic_gemm.csv --gpu l40s", 2,
                    "whose times? neither the path nor a meta.yaml names a stack");
    program_refuses("import llmservingsim " FIXTURES
                    "lss_dense.csv --gpu rtx4090 --stack vllm-0.19.0",
                    2, "which model was profiled?");
    program_refuses("import sheets x.csv", 2, "format \"sheets\": expected aiconfigurator");
    program_refuses("import vidur nowhere.csv --gpu a100", 3, "nowhere.csv: cannot read");
    /* All or nothing: the good file before the bad one is not kept either. */
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command,
                   "import aiconfigurator " FIXTURES "aic_gemm.csv %s --gpu l40s --stack "
                   "trtllm-1.0.0",
                   program_write("bad.csv", HEADER "sq,1,64,64,-1\n"));
    program_refuses(command, 3, "a time of -1");
    json_t *list = program_json("db list imports", 0);
    cr_expect_eq(json_array_size(json_at(list, "imports")), 0u);
    json_decref(list);
}
