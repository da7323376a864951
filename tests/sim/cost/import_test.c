#include "sim/cost/calib.h"
#include "sim/cost/import.h"
#include "sim/cost/skew.h"
#include "sim/cost/surface.h"
#include "sim/cost/table.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct bt_arch llama_8b = {.name = "llama-3.1-8b",
                                        .hidden = 4096,
                                        .n_layers = 32,
                                        .n_heads = 32,
                                        .n_kv_heads = 8,
                                        .head_dim = 128,
                                        .intermediate = 14336,
                                        .vocab = 128256};

static struct bt_import_opts common_opts(void)
{
    return (struct bt_import_opts){.gpu = "l40s",
                                   .stack = "trtllm",
                                   .version = "1.0.0",
                                   .source = "fixture",
                                   .licence = "Apache-2.0"};
}

static char *read_fixture(const char *name, size_t *size)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/sim/cost/fixtures/%s", BT_TEST_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "%s", path);
    char *text = malloc(1 << 20);
    *size = fread(text, 1, 1 << 20, f);
    (void)fclose(f);
    return text;
}

typedef enum bt_code read_fn(const struct bt_import_text *, const struct bt_import_opts *,
                             struct bt_sample_set *, struct bt_import_report *, struct bt_error *);

static struct bt_sample_set set;
static struct bt_import_report report;
static struct bt_error err;

static enum bt_code import_fixture(read_fn *read, const char *name,
                                   const struct bt_import_opts *opts)
{
    struct bt_import_text file = {.name = name};
    char *text = read_fixture(name, &file.size_bytes);
    file.text = text;
    enum bt_code code = read(&file, opts, &set, &report, &err);
    free(text);
    return code;
}

static enum bt_code import_text(read_fn *read, const char *text, const struct bt_import_opts *opts)
{
    struct bt_import_text file = {text, strlen(text), "bad.csv"};
    bt_error_clear(&err);
    return read(&file, opts, &set, &report, &err);
}

static const struct bt_cost_sample *find(enum bt_op op, enum bt_num weights, int64_t m, int64_t n,
                                         int64_t k)
{
    for (int64_t i = 0; i < set.n_samples; i++) {
        const struct bt_cost_sample *s = &set.samples[i];
        if (s->op == op && s->format.weights == weights && s->shape.m == m && s->shape.n == n &&
            s->shape.k == k) {
            return s;
        }
    }
    return NULL;
}

static void set_up(void)
{
    bt_sample_set_init(&set);
    memset(&report, 0, sizeof report);
    bt_error_clear(&err);
}

static void tear_down(void)
{
    bt_sample_set_fini(&set);
}

TestSuite(import, .init = set_up, .fini = tear_down);

Test(import, aiconfigurator_gemm_is_milliseconds_and_formats_are_told_apart)
{
    struct bt_import_opts opts = common_opts();
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_gemm.csv", &opts), BT_OK, "%s",
                 err.msg);
    cr_expect_eq(report.n_rows, 252);
    cr_expect_eq(report.n_samples, 252);
    cr_expect_eq(report.n_merged, 0);
    const struct bt_cost_sample *s = find(BT_OP_GEMM, BT_NUM_INT4_CHANNEL, 16, 4096, 4096);
    cr_assert_not_null(s);
    cr_expect_eq(s->format.activations, BT_NUM_BF16);
    cr_expect_str_eq(s->gpu, "l40s");
    cr_expect_str_eq(s->licence, "Apache-2.0");
    s = find(BT_OP_GEMM, BT_NUM_INT8, 16, 4096, 4096);
    cr_assert_not_null(s);
    cr_expect_eq(s->format.activations, BT_NUM_INT8, "sq is W8A8");
    s = find(BT_OP_GEMM, BT_NUM_BF16, 8192, 4096, 4096);
    cr_assert_not_null(s);
    double tflops = 2.0 * 8192 * 4096 * 4096 / (double)s->time_ns * 1e-3;
    cr_expect(tflops > 100 && tflops < 362, "%.0f TFLOP/s on an L40S: the unit is ms", tflops);
}

Test(import, aiconfigurator_attention_counts_the_new_token)
{
    struct bt_import_opts opts = common_opts();
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_decode.csv", &opts), BT_OK, "%s",
                 err.msg);
    bool found = false;
    for (int64_t i = 0; i < set.n_samples; i++) {
        const struct bt_cost_sample *s = &set.samples[i];
        cr_expect_eq(s->op, BT_OP_ATTN_DECODE);
        cr_expect_eq(s->shape.heads, 32);
        cr_expect_eq(s->shape.kv_heads, 8);
        cr_expect_eq(s->format.kv, BT_NUM_BF16);
        cr_expect_eq(s->shape.ctx & (s->shape.ctx - 1), 0, "steps are 2^k - 1, contexts 2^k");
        found = found || (s->shape.ctx == 1024 && s->shape.batch == 32);
        cr_expect_str_eq(s->kernel, "vllm_flash_attn_fa3");
    }
    cr_expect(found);
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_prefill.csv", &opts), BT_OK, "%s",
                 err.msg);
    cr_expect_eq(report.n_samples, 4);
    cr_expect_eq(set.samples[set.n_samples - 1].op, BT_OP_ATTN_PREFILL);
}

Test(import, message_size_is_elements)
{
    struct bt_import_opts opts = common_opts();
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_nccl.csv", &opts), BT_OK, "%s",
                 err.msg);
    int64_t reduces = 0;
    for (int64_t i = 0; i < set.n_samples; i++) {
        const struct bt_cost_sample *s = &set.samples[i];
        int64_t width = s->format.activations == BT_NUM_FP16 ? 2 : 1;
        cr_expect(s->shape.bytes >= 512 && s->shape.bytes <= 4096 * width);
        reduces += s->op == BT_OP_ALLREDUCE;
    }
    cr_expect_eq(reduces, 9);
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_custom_allreduce.csv", &opts), BT_OK,
                 "%s", err.msg);
    cr_expect_eq(report.n_samples, 6);
    cr_expect_eq(report.n_merged, 0, "graph and eager are kernels, not repeats");
}

Test(import, collectives_without_names_need_an_order)
{
    struct bt_import_opts opts = common_opts();
    cr_expect_eq(import_fixture(bt_import_aiconfigurator, "aic_nccl_unnamed.csv", &opts),
                 BT_ERR_INPUT);
    cr_expect(strstr(err.msg, "no op_name column") != NULL, "%s", err.msg);
    bt_error_clear(&err);
    opts.collective_order = "allgather,alltoall,reducescatter,allreduce";
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_nccl_unnamed.csv", &opts), BT_OK,
                 "%s", err.msg);
    int64_t n[BT_OPS] = {0};
    for (int64_t i = 0; i < set.n_samples; i++) {
        n[set.samples[i].op]++;
        if (set.samples[i].op == BT_OP_ALLREDUCE && set.samples[i].shape.bytes == 512 &&
            set.samples[i].format.activations == BT_NUM_FP16) {
            cr_expect_eq(set.samples[i].time_ns, 6050, "the fourth block");
        }
    }
    cr_expect_eq(n[BT_OP_ALLGATHER], 9);
    cr_expect_eq(n[BT_OP_ALLTOALL], 9);
    cr_expect_eq(n[BT_OP_REDUCESCATTER], 9);
    cr_expect_eq(n[BT_OP_ALLREDUCE], 9);
    opts.collective_order = "allgather,allreduce";
    cr_expect_eq(import_fixture(bt_import_aiconfigurator, "aic_nccl_unnamed.csv", &opts),
                 BT_ERR_INPUT);
    cr_expect_eq(set.n_samples, 36, "a failed import leaves the set as it was");
}

Test(import, llmservingsim_is_microseconds_with_the_model_s_shapes)
{
    struct bt_import_opts opts = common_opts();
    cr_expect_eq(import_fixture(bt_import_llmservingsim, "lss_dense.csv", &opts), BT_ERR_ARG);
    bt_error_clear(&err);
    opts.arch = &llama_8b;
    opts.format = BT_NUM_BF16;
    cr_assert_eq(import_fixture(bt_import_llmservingsim, "lss_dense.csv", &opts), BT_OK, "%s",
                 err.msg);
    const struct bt_cost_sample *s = find(BT_OP_GEMM, BT_NUM_BF16, 1, 28672, 4096);
    cr_assert_not_null(s, "gate_up_proj");
    double gb_per_s = 2.0 * 28672 * 4096 / (double)s->time_ns;
    cr_expect(gb_per_s > 600 && gb_per_s < 1008, "%.0f GB/s on an RTX 4090: the unit is us",
              gb_per_s);
    cr_expect_not_null(find(BT_OP_GEMM, BT_NUM_BF16, 1, 6144, 4096), "qkv_proj");
    cr_expect_not_null(find(BT_OP_ACTIVATION, BT_NUM_NONE, 1, 14336, 0));
    cr_assert_eq(import_fixture(bt_import_llmservingsim, "lss_per_sequence.csv", &opts), BT_OK,
                 "%s", err.msg);
    cr_expect_not_null(find(BT_OP_GEMM, BT_NUM_BF16, 16, 128256, 4096), "lm_head");
    cr_expect_not_null(find(BT_OP_SAMPLE, BT_NUM_NONE, 16, 128256, 0));
    cr_assert_eq(import_fixture(bt_import_llmservingsim, "lss_attention.csv", &opts), BT_OK, "%s",
                 err.msg);
    cr_expect_eq(report.n_samples, 9);
    opts.tp = 2;
    cr_assert_eq(import_fixture(bt_import_llmservingsim, "lss_dense.csv", &opts), BT_OK, "%s",
                 err.msg);
    cr_expect_not_null(find(BT_OP_GEMM, BT_NUM_BF16, 1, 4096, 2048), "o_proj of one of two ranks");
}

Test(import, the_first_profiler_s_layers_are_nanoseconds)
{
    static const char text[] = "layer_name,input,kv_cache,tp_size,latency(ns)\n"
                               "q_proj,1,0,1,16078\nk_proj,1,0,1,8275\nrope,1,0,1,26853\n"
                               "attn,1,0,1,5810\ngate_proj,1,0,1,41769\n";
    struct bt_import_opts opts = common_opts();
    opts.arch = &llama_8b;
    opts.format = BT_NUM_BF16;
    cr_assert_eq(import_text(bt_import_llmservingsim, text, &opts), BT_OK, "%s", err.msg);
    cr_expect_eq(set.n_samples, 4, "attention comes from attention.csv");
    const struct bt_cost_sample *k = find(BT_OP_GEMM, BT_NUM_BF16, 1, 1024, 4096);
    cr_assert_not_null(k);
    cr_expect_eq(k->time_ns, 8275);
    opts.tp = 2;
    cr_expect_eq(import_text(bt_import_llmservingsim, text, &opts), BT_ERR_INPUT);
    cr_expect(strstr(err.msg, "bad.csv:2: tp_size 1, expected 2") != NULL, "%s", err.msg);
}

Test(import, vidur_and_frontier_take_shapes_from_their_rows)
{
    struct bt_import_opts opts = common_opts();
    cr_assert_eq(import_fixture(bt_import_vidur, "vidur_mlp.csv", &opts), BT_OK, "%s", err.msg);
    const struct bt_cost_sample *s = find(BT_OP_GEMM, BT_NUM_FP16, 4096, 12288, 4096);
    cr_assert_not_null(s, "attn_pre_proj");
    cr_expect(s->spread_ns > 0);
    cr_expect_not_null(find(BT_OP_GEMM, BT_NUM_FP16, 4096, 22016, 4096), "gate and up");
    cr_expect_not_null(find(BT_OP_ADD, BT_NUM_NONE, 4096, 4096, 0));
    cr_assert_eq(import_fixture(bt_import_vidur, "frontier_linear.csv", &opts), BT_OK, "%s",
                 err.msg);
    cr_expect_not_null(find(BT_OP_GEMM, BT_NUM_FP16, 128, 12288, 4096));
    cr_expect_eq(import_fixture(bt_import_vidur, "frontier_attention.csv", &opts), BT_ERR_INPUT,
                 "real repeats that disagree");
    bt_error_clear(&err);
    opts.lenient = true;
    cr_assert_eq(import_fixture(bt_import_vidur, "frontier_attention.csv", &opts), BT_OK, "%s",
                 err.msg);
    int64_t n[BT_OPS] = {0};
    for (int64_t i = 0; i < set.n_samples; i++) {
        n[set.samples[i].op]++;
        if (set.samples[i].op == BT_OP_ATTN_MIXED) {
            cr_expect_eq(set.samples[i].shape.prefix, 64, "a chunk behind 64 cached tokens");
        }
    }
    cr_expect(n[BT_OP_ATTN_DECODE] > 4);
    cr_expect(n[BT_OP_ATTN_PREFILL] > 2);
    cr_expect_eq(n[BT_OP_ATTN_MIXED], 1);
}

Test(import, compute_scale)
{
    struct bt_import_opts opts = common_opts();
    cr_expect_eq(import_fixture(bt_import_aiconfigurator, "aic_computescale.csv", &opts),
                 BT_ERR_INPUT, "the real table has a time of 0");
    cr_expect(strstr(err.msg, "aic_computescale.csv:3: a time of 0") != NULL, "%s", err.msg);
    opts.lenient = true;
    bt_error_clear(&err);
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_computescale.csv", &opts), BT_OK,
                 "%s", err.msg);
    cr_expect_eq(report.n_dropped, 1);
    cr_expect_eq(set.samples[0].op, BT_OP_QUANTIZE);
    cr_expect_eq(set.samples[0].format.activations, BT_NUM_FP8);
}

#define GEMM_HEADER "gemm_dtype,m,n,k,latency\n"

struct bad {
    const char *name;
    read_fn *read;
    const char *text;
    const char *message; /* must be part of the error */
};

static const struct bad bad_tables[] = {
    {"empty", bt_import_aiconfigurator, "", "bad.csv: empty"},
    {"no rows", bt_import_aiconfigurator, GEMM_HEADER, "bad.csv: no sample in it"},
    {"unknown format", bt_import_aiconfigurator, "a,b\n1,2\n",
     "bad.csv:1: not an aiconfigurator table"},
    {"unknown column", bt_import_aiconfigurator,
     "gemm_dtype,m,n,k,latency,power\nsq,1,64,64,0.1,3\n", "bad.csv:1: unknown column \"power\""},
    {"microseconds by name", bt_import_aiconfigurator,
     "gemm_dtype,m,n,k,latency_us\nsq,1,64,64,100\n", "unknown column \"latency_us\""},
    {"missing column", bt_import_aiconfigurator, "gemm_dtype,m,n,latency\nsq,1,64,0.1\n",
     "bad.csv:1: column \"k\" is missing"},
    {"repeated column", bt_import_aiconfigurator, "gemm_dtype,m,m,k,latency\nsq,1,1,64,0.1\n",
     "column \"m\" appears twice"},
    {"zero time", bt_import_aiconfigurator, GEMM_HEADER "sq,1,64,64,0.1\nsq,2,64,64,0\n",
     "bad.csv:3: a time of 0, expected more than 0"},
    {"negative time", bt_import_aiconfigurator, GEMM_HEADER "sq,1,64,64,-0.5\n",
     "bad.csv:2: a time of -0.5"},
    {"not a number", bt_import_aiconfigurator, GEMM_HEADER "sq,1,64,64,fast\n",
     "bad.csv:2: latency: \"fast\" is not a finite number"},
    {"infinite", bt_import_aiconfigurator, GEMM_HEADER "sq,1,64,64,inf\n",
     "latency: \"inf\" is not a finite number"},
    {"shape of half a token", bt_import_aiconfigurator, GEMM_HEADER "sq,1.5,64,64,0.1\n",
     "m: \"1.5\", expected a whole number 1 .. "},
    {"shape of nothing", bt_import_aiconfigurator, GEMM_HEADER "sq,1,0,64,0.1\n",
     "n: \"0\", expected a whole number 1 .. "},
    {"dtype", bt_import_aiconfigurator, GEMM_HEADER "int3_wo,1,64,64,0.1\n",
     "gemm_dtype \"int3_wo\", expected bfloat16"},
    {"short row", bt_import_aiconfigurator, GEMM_HEADER "sq,1,64,64\n",
     "bad.csv:2: 4 fields, the header has 5"},
    {"repeats disagree", bt_import_aiconfigurator,
     GEMM_HEADER "sq,1,64,64,0.100\nsq,2,64,64,0.1\nsq,1,64,64,0.125\n",
     "bad.csv:4: the gemm of line 2 again, 125000 ns against 100000 ns: repeats may differ by 20%"},
    {"one row in microseconds", bt_import_aiconfigurator,
     GEMM_HEADER "sq,1,64,64,0.011\nsq,2,64,64,11.2\nsq,4,64,64,0.012\n",
     "bad.csv:3: mixed units: 11200000 ns between 11000 and 12000 ns"},
    {"an hour", bt_import_aiconfigurator, GEMM_HEADER "sq,1,64,64,4000000000\n",
     "expected less than an hour"},
    {"heads", bt_import_aiconfigurator,
     "batch_size,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,step,latency\n"
     "1,32,5,128,bfloat16,bfloat16,1,0.01\n",
     "num_heads 32 is no multiple of num_key_value_heads 5"},
    {"not a profile", bt_import_llmservingsim, "a,b\n1,2\n", "not an LLMServingSim profile"},
    {"layer", bt_import_llmservingsim, "layer,tokens,time_us\nmoe_gate,1,3\n",
     "bad.csv:2: layer \"moe_gate\", expected qkv_proj"},
    {"profile in ms", bt_import_llmservingsim, "layer,tokens,latency\nqkv_proj,1,3\n",
     "unknown column \"latency\""},
    {"no work", bt_import_llmservingsim,
     "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,0,0,5\n",
     "bad.csv:2: neither a prefill chunk nor a decode"},
    {"vidur column", bt_import_vidur,
     "time_stats.moe.median,n_head,n_kv_head,n_embd,num_tokens\n1,2,3,4,5\n",
     "unknown column \"time_stats.moe.median\""},
    {"vidur flag", bt_import_vidur,
     "time_stats.add.median,n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,num_tokens,"
     "num_tensor_parallel_workers\n1,32,32,4096,11008,yes,1,1\n",
     "use_gated_mlp \"yes\", expected True or False"},
    {"vidur heads", bt_import_vidur,
     "time_stats.add.median,n_head,n_kv_head,n_embd,num_tokens,num_tensor_parallel_workers\n"
     "1,32,32,4096,1,3\n",
     "32 heads do not divide by 3 workers"},
};

Test(import, bad_tables_are_named)
{
    struct bt_import_opts opts = common_opts();
    opts.arch = &llama_8b;
    opts.format = BT_NUM_BF16;
    for (size_t i = 0; i < sizeof bad_tables / sizeof bad_tables[0]; i++) {
        const struct bad *b = &bad_tables[i];
        cr_expect_eq(import_text(b->read, b->text, &opts), BT_ERR_INPUT, "%s", b->name);
        cr_expect(strstr(err.msg, b->message) != NULL, "%s: \"%s\" lacks \"%s\"", b->name, err.msg,
                  b->message);
        cr_expect_eq(set.n_samples, 0, "%s", b->name);
    }
}

Test(import, lenient_takes_medians_drops_zeros_and_says_so)
{
    struct bt_import_opts opts = common_opts();
    opts.lenient = true;
    cr_assert_eq(import_text(bt_import_aiconfigurator,
                             GEMM_HEADER "sq,1,64,64,0.1\nsq,1,64,64,0.2\nsq,1,64,64,0.11\n"
                                         "sq,2,64,64,0\n",
                             &opts),
                 BT_OK, "%s", err.msg);
    cr_expect_eq(set.n_samples, 1);
    cr_expect_eq(set.samples[0].time_ns, 110000);
    cr_expect_eq(report.n_merged, 2);
    cr_expect_eq(report.n_dropped, 1);
    cr_expect(strstr(report.note, "differs by 100%") != NULL, "%s", report.note);
}

Test(import, crlf_and_a_missing_last_newline_are_read)
{
    struct bt_import_opts opts = common_opts();
    cr_assert_eq(import_text(bt_import_aiconfigurator,
                             "# note\r\ngemm_dtype,m,n,k,latency\r\n\r\nsq,1,64,64,0.1\r\n"
                             "\"sq\",2,64,64,0.1",
                             &opts),
                 BT_OK, "%s", err.msg);
    cr_expect_eq(set.n_samples, 2);
}

Test(import, rates_above_the_dense_peak_are_refused)
{
    struct bt_gpu gpu = {.name = "l40s", .fp16_flops_per_s = 362.05e12, .int8_ops_per_s = 733e12};
    struct bt_import_opts opts = common_opts();
    opts.hardware = &gpu;
    cr_expect_eq(import_fixture(bt_import_aiconfigurator, "aic_gemm.csv", &opts), BT_OK, "%s",
                 err.msg);
    bt_error_clear(&err);
    const char *sparse = GEMM_HEADER "bfloat16,8192,8192,8192,1.6\n"; /* 687 TFLOP/s */
    cr_expect_eq(import_text(bt_import_aiconfigurator, sparse, &opts), BT_ERR_INPUT);
    cr_expect(strstr(err.msg, "687 TFLOP/s, above 362, the dense peak of l40s") != NULL, "%s",
              err.msg);
}

Test(import, provenance_is_required)
{
    struct bt_import_opts opts = common_opts();
    opts.licence = NULL;
    cr_expect_eq(import_text(bt_import_aiconfigurator, GEMM_HEADER "sq,1,64,64,0.1\n", &opts),
                 BT_ERR_ARG);
    cr_expect(strstr(err.msg, "licence is required") != NULL, "%s", err.msg);
}

static char *write_calibration(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    cr_assert_not_null(out);
    cr_assert_eq(bt_calib_write(out, set.samples, set.n_samples, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(fclose(out), 0);
    return text;
}

Test(import, calibrations_are_read_back_as_written)
{
    struct bt_import_opts opts = common_opts();
    cr_assert_eq(import_fixture(bt_import_aiconfigurator, "aic_gemm.csv", &opts), BT_OK);
    int64_t n = set.n_samples;
    char *text = write_calibration();
    struct bt_import_text file = {text, strlen(text), "x.cal"};
    struct bt_sample_set again;
    bt_sample_set_init(&again);
    cr_assert_eq(bt_calib_read(&file, &again, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(again.n_samples, n);
    for (int64_t i = 0; i < n; i++) {
        const struct bt_cost_sample *a = &set.samples[i];
        const struct bt_cost_sample *b = &again.samples[i];
        cr_expect_eq(a->time_ns, b->time_ns);
        cr_expect(bt_surface_same(a, b));
        cr_expect_eq(memcmp(&a->shape, &b->shape, sizeof a->shape), 0);
        cr_expect_str_eq(a->source, b->source);
    }
    bt_sample_set_fini(&again);
    free(text);
}

#define CAL_HEAD                                                                                   \
    "# berth calibration 1\ngpu h200\nstack s\nversion 1\nop gemm\nsource x\nlicence MIT\n"

static const struct {
    const char *text;
    const char *message;
} bad_calibrations[] = {
    {"gpu h200\n", "bad.cal:1: not a calibration"},
    {"# berth calibration 1\nsection bf16 bf16 -\n", "bad.cal:2: a section before gpu"},
    {CAL_HEAD "section bf17 bf16 -\n", "bad.cal:8: \"bf17\" is not a number format"},
    {CAL_HEAD "section bf16 bf16 -\ncolumns q 1 2\n", "shape field \"q\", expected m, n, k"},
    {CAL_HEAD "section bf16 bf16 -\ncolumns m 1 2\nrows n k\n64 64 1 2 3\n",
     "bad.cal:11: more times than the 2 columns"},
    {CAL_HEAD "section bf16 bf16 -\ncolumns m 1 2\nrows n k\n64 64 1 x\n",
     "bad.cal:11: \"x\", expected a whole number >= 1"},
    {CAL_HEAD "section bf16 bf16 -\ncolumns m 1 2\nrows n k\n64 64 0\n",
     "\"0\", expected a whole number >= 1"},
    {CAL_HEAD "12 13\n", "bad.cal:8: \"12\", expected gpu, stack"},
    {CAL_HEAD, "bad.cal: no sample in it"},
    {"# berth calibration 1\nop multiply\n", "\"multiply\" is not an operation"},
};

Test(import, bad_calibrations_are_named)
{
    for (size_t i = 0; i < sizeof bad_calibrations / sizeof bad_calibrations[0]; i++) {
        const char *text = bad_calibrations[i].text;
        struct bt_import_text file = {text, strlen(text), "bad.cal"};
        bt_error_clear(&err);
        cr_expect_eq(bt_calib_read(&file, &set, &err), BT_ERR_INPUT, "%zu", i);
        cr_expect(strstr(err.msg, bad_calibrations[i].message) != NULL, "\"%s\" lacks \"%s\"",
                  err.msg, bad_calibrations[i].message);
        cr_expect_eq(set.n_samples, 0);
    }
}

Test(import, skew_tables_give_medians_held_to_a_share)
{
    struct bt_import_text file = {.name = "lss_skew_fit.csv"};
    char *text = read_fixture(file.name, &file.size_bytes);
    file.text = text;
    struct bt_skew skew;
    cr_assert_eq(bt_skew_read(&file, &skew, &err), BT_OK, "%s", err.msg);
    free(text);
    for (int64_t n = 1; n < 300; n += 7) {
        for (double share = -1; share <= 1; share += 0.25) {
            double alpha = bt_skew_alpha(&skew, n % 2, n, share);
            cr_expect(alpha >= 0 && alpha <= 1);
        }
    }
    const char *two = "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n"
                      "0,n<=8,sr<=40%,kvB<=1k,kp=0,0.1,1\n0,n<=8,sr<=40%,kvB<=4k,kp=0,0.3,5\n"
                      "0,n<=8,sr>70%,kvB<=4k,kp=0,4.9,4\n64,n<=16,sr>70%,kvB<=4k,kp=0,-2,4\n";
    struct bt_import_text small = {two, strlen(two), "two.csv"};
    cr_assert_eq(bt_skew_read(&small, &skew, &err), BT_OK, "%s", err.msg);
    cr_expect_float_eq(bt_skew_alpha(&skew, 0, 3, 0.2), 0.3, 1e-12);
    cr_expect_float_eq(bt_skew_alpha(&skew, 0, 3, 0.9), 1, 1e-12);
    cr_expect_float_eq(bt_skew_alpha(&skew, 0, 3, -1), 0.3, 1e-12, "the median of all");
    cr_expect_float_eq(bt_skew_alpha(&skew, 5, 900, 0.9), 0, 1e-12, "never below 0");
    cr_expect_float_eq(bt_skew_alpha(&skew, 5, 3, 0.9), 0, 1e-12, "nobody measured that");
}

static const struct {
    const char *row;
    const char *message;
} bad_skews[] = {
    {"0,n<8,sr<=5%,kvB<=1k,kp=0,0.1,1\n", "bad.csv:2: n_label \"n<8\", expected n<=N"},
    {"0,n<=8,sr=5%,kvB<=1k,kp=0,0.1,1\n", "skew_rate_label \"sr=5%\", expected sr<=P% or sr>P%"},
    {"0,n<=8,sr<=5%,kvB<=1k,kp=0,x,1\n", "alpha: \"x\" is not a finite number"},
    {"0,n<=8,sr<=5%,kvB<=1k,kp=0,0.1,0\n", "n_samples: \"0\", expected a whole number 1 .. "},
    {"", "bad.csv: no row in it"},
};

Test(import, bad_skew_tables_are_named)
{
    for (size_t i = 0; i < sizeof bad_skews / sizeof bad_skews[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text,
                       "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n%s",
                       bad_skews[i].row);
        struct bt_import_text file = {text, strlen(text), "bad.csv"};
        struct bt_skew skew;
        bt_error_clear(&err);
        cr_expect_eq(bt_skew_read(&file, &skew, &err), BT_ERR_INPUT, "%zu", i);
        cr_expect(strstr(err.msg, bad_skews[i].message) != NULL, "%s", err.msg);
    }
}

/* db/catalog/accuracy.csv: every row has a source, a date and numbers of its unit. */
Test(import, published_accuracy_is_sourced)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/db/catalog/accuracy.csv", BT_TEST_SOURCE_DIR);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    static char text[1 << 17];
    size_t size = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    struct bt_table t;
    cr_assert_eq(bt_table_open(&t, text, size, "accuracy.csv", &err), BT_OK, "%s", err.msg);
    static const char *const columns[] = {"model",  "weights", "activations", "kv",
                                          "method", "metric",  "unit",        "baseline",
                                          "value",  "source",  "date",        "notes"};
    cr_assert_eq(t.n_columns, 12);
    int64_t rows = 0;
    for (bool more = true; more;) {
        cr_assert_eq(bt_table_next(&t, &more, &err), BT_OK, "%s", err.msg);
        for (int32_t c = 0; more && c < 11; c++) {
            cr_expect_str_eq(t.columns[c], columns[c]);
            cr_expect_str_neq(bt_table_text(&t, c), "", "line %d: %s", t.line, columns[c]);
        }
        if (more) {
            double baseline = 0;
            double value = 0;
            cr_assert_eq(bt_table_real(&t, 7, &baseline, &err), BT_OK, "%s", err.msg);
            cr_assert_eq(bt_table_real(&t, 8, &value, &err), BT_OK, "%s", err.msg);
            bool perplexity = strcmp(bt_table_text(&t, 6), "perplexity") == 0;
            cr_expect(value > (perplexity ? 1 : 0) && value < 110, "line %d", t.line);
            cr_expect(value < 4 * baseline, "line %d", t.line);
            rows++;
        }
    }
    cr_expect_geq(rows, 40);
    bt_table_close(&t);
}
