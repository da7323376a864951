/* Whole-engine benchmarks that users have: `vllm bench serve --save-result` and `llama-bench`.
 *
 * These are end-to-end figures, not operations: `fit` and `replay --compare` read them. Numbers are
 * kept in the file's meaning but in our units (seconds, tokens, ns). Figures that contradict each
 * other (a rate that is not count over time, a mean that is not its samples') are refused, because
 * the usual cause is another unit. One thread at a time.
 */
#ifndef BT_SIM_COST_BENCH_H
#define BT_SIM_COST_BENCH_H

#include "engine/core/error.h"
#include "sim/cost/import.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_BENCH_NAME_BYTES = 128,
    /* How far figures of one file may contradict each other. */
    BT_BENCH_DISAGREE_PERCENT = 20,
};

/* A latency as the benchmark summed it up; NAN where the file does not say. */
struct bt_bench_stat {
    double mean_s;
    double median_s;
    double std_s;
    double p90_s;
    double p95_s;
    double p99_s;
};

/* One request of --save-detailed. */
struct bt_bench_request {
    int64_t input_tokens;
    int64_t output_tokens;
    double start_s; /* on the client's clock, from the earliest; NAN: not stated */
    double ttft_s;
    double e2e_s; /* first token plus all gaps */
    bool failed;
};

struct bt_bench_run {
    char model[BT_BENCH_NAME_BYTES];
    char backend[BT_BENCH_NAME_BYTES]; /* "vllm", "openai-chat", ...; "" not stated */
    char date[BT_BENCH_NAME_BYTES];
    int64_t n_prompts;
    int64_t completed;
    int64_t failed;
    int64_t input_tokens;
    int64_t output_tokens;
    double duration_s;
    double request_rate_per_s; /* INFINITY: all at once */
    double burstiness;         /* 1: Poisson; NAN: not stated */
    int64_t max_concurrency;   /* 0: no limit */
    double throughput_req_per_s;
    double throughput_out_tok_per_s;
    double spec_acceptance_fraction; /* NAN without speculation */
    double spec_accepted_len;        /* bonus token included; NAN without */
    struct bt_bench_stat ttft, tpot, itl, e2e;
    struct bt_bench_request *requests; /* owned; NULL without --save-detailed */
    int64_t n_requests;
};

/* Reads one result object (the last one of a file made with --append-result). BT_ERR_INPUT names
 * the key, its value and what is allowed; BT_ERR_NOMEM. A failed read leaves `out` zeroed. */
BT_NODISCARD enum bt_code bt_bench_read_vllm(const struct bt_import_text *file,
                                             struct bt_bench_run *out, struct bt_error *err);
void bt_bench_run_fini(struct bt_bench_run *run);

/* One test of llama-bench: a prompt of n_prompt tokens, n_gen generated ones, or both, behind
 * n_depth tokens of KV. */
struct bt_llama_bench {
    char model_type[BT_BENCH_NAME_BYTES]; /* "llama 7B Q4_0" */
    char gpu[BT_BENCH_NAME_BYTES];
    char build_commit[32];
    char type_k[16]; /* KV formats as ggml names them */
    char type_v[16];
    int64_t model_bytes;
    int64_t n_params;
    int64_t n_prompt;
    int64_t n_gen;
    int64_t n_depth;
    int64_t n_batch;
    int64_t n_gpu_layers;
    int64_t time_ns;   /* mean of the repetitions */
    int64_t spread_ns; /* standard deviation */
    double tok_per_s;
};

struct bt_llama_bench_set {
    struct bt_llama_bench *tests; /* owned */
    int64_t n_tests;
};

/* Reads -o json, -o jsonl or -o csv, told by the first character. */
BT_NODISCARD enum bt_code bt_bench_read_llama(const struct bt_import_text *file,
                                              struct bt_llama_bench_set *out, struct bt_error *err);
void bt_llama_bench_fini(struct bt_llama_bench_set *set);

#ifdef __cplusplus
}
#endif

#endif
