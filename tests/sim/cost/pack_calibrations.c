/* Turns measurement tables into the calibrations that ship under db/calibrations:
 *
 *   bt_pack_calibrations TABLES OUT_FOLDER
 *
 * TABLES holds aiconfigurator/, llmservingsim/ and vidur/. What is left out, and why, is said by
 * the list below. Prints a line a file: rows read, samples kept, repeats folded, rows dropped.
 */
#include "sim/cost/calib.h"
#include "sim/cost/import.h"
#include "sim/cost/surface.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum bt_code read_fn(const struct bt_import_text *, const struct bt_import_opts *,
                             struct bt_sample_set *, struct bt_import_report *, struct bt_error *);

struct table {
    const char *path; /* under TABLES */
    read_fn *read;
    const char *gpu;
    const char *stack;
    const char *version;
};

static const struct table tables[] = {
#define AIC(path, gpu, stack, version)                                                             \
    {                                                                                              \
        "aiconfigurator/" path, bt_import_aiconfigurator, gpu, stack, version                      \
    }
#define LSS(path, gpu)                                                                             \
    {                                                                                              \
        "llmservingsim/" path, bt_import_llmservingsim, gpu, "vllm", "0.19.0"                      \
    }
    AIC("a100_sxm__nccl-2.27.3.csv", "a100-80-sxm", "nccl", "2.27.3"),
    AIC("h200_sxm__nccl-2.29.2.csv", "h200", "nccl", "2.29.2"),
    AIC("l40s__nccl-2.27.3.csv", "l40s", "nccl", "2.27.3"),
    AIC("a100_sxm__trtllm-1.0.0__attn_decode__mha_hd128.csv", "a100-80-sxm", "trtllm", "1.0.0"),
    AIC("a100_sxm__trtllm-1.0.0__attn_prefill__mha_hd128.csv", "a100-80-sxm", "trtllm", "1.0.0"),
    AIC("a100_sxm__trtllm-1.0.0__gemm__bf16_int8wo_int4wo_w8a8sq.csv", "a100-80-sxm", "trtllm",
        "1.0.0"),
    AIC("a100_sxm__vllm-0.14.0__attn_decode.csv", "a100-80-sxm", "vllm", "0.14.0"),
    AIC("a100_sxm__vllm-0.14.0__attn_prefill.csv", "a100-80-sxm", "vllm", "0.14.0"),
    AIC("a100_sxm__vllm-0.14.0__gemm__bf16.csv", "a100-80-sxm", "vllm", "0.14.0"),
    AIC("h100_sxm__trtllm-1.3.0rc20__attn_decode__mha_hd128.csv", "h100-sxm", "trtllm",
        "1.3.0rc20"),
    AIC("h100_sxm__trtllm-1.3.0rc20__attn_prefill__mha_hd128.csv", "h100-sxm", "trtllm",
        "1.3.0rc20"),
    AIC("h100_sxm__vllm-0.24.0__attn_decode__hd128.csv", "h100-sxm", "vllm", "0.24.0"),
    AIC("h100_sxm__vllm-0.24.0__attn_prefill__hd128.csv", "h100-sxm", "vllm", "0.24.0"),
    AIC("h100_sxm__vllm-0.24.0__gemm__bf16_fp8__dense_subset.csv", "h100-sxm", "vllm", "0.24.0"),
    AIC("h200_sxm__trtllm-1.2.0rc5__gemm__bf16_int8wo_int4wo_w8a8sq.csv", "h200", "trtllm",
        "1.2.0rc5"),
    AIC("h200_sxm__trtllm-1.3.0rc20__attn_decode__mha_hd128.csv", "h200", "trtllm", "1.3.0rc20"),
    AIC("h200_sxm__trtllm-1.3.0rc20__attn_prefill__mha_hd128.csv", "h200", "trtllm", "1.3.0rc20"),
    AIC("h200_sxm__vllm-0.24.0__attn_decode__hd128.csv", "h200", "vllm", "0.24.0"),
    AIC("h200_sxm__vllm-0.24.0__attn_prefill__hd128.csv", "h200", "vllm", "0.24.0"),
    AIC("h200_sxm__vllm-0.24.0__custom_allreduce.csv", "h200", "vllm", "0.24.0"),
    AIC("h200_sxm__vllm-0.24.0__gemm__bf16_fp8__dense_subset.csv", "h200", "vllm", "0.24.0"),
    AIC("l40s__trtllm-1.0.0__attn_decode__hd128.csv", "l40s", "trtllm", "1.0.0"),
    AIC("l40s__trtllm-1.0.0__attn_prefill__hd128.csv", "l40s", "trtllm", "1.0.0"),
    AIC("l40s__trtllm-1.0.0__computescale.csv", "l40s", "trtllm", "1.0.0"),
    AIC("l40s__trtllm-1.0.0__gemm__bf16_fp8_int8wo_int4wo_w8a8sq.csv", "l40s", "trtllm", "1.0.0"),
    AIC("l40s__vllm-0.14.0__custom_allreduce.csv", "l40s", "vllm", "0.14.0"),
    AIC("l40s__vllm-0.24.0__gemm__bf16_fp8__dense_subset.csv", "l40s", "vllm", "0.24.0"),
    LSS("RTX4090_Llama-3.1-8B_bf16_tp1_attention.csv", "rtx4090"),
    LSS("RTX4090_Llama-3.1-8B_bf16_tp1_dense.csv", "rtx4090"),
    LSS("RTX4090_Llama-3.1-8B_bf16_tp1_per_sequence.csv", "rtx4090"),
    LSS("RTXPRO6000_Llama-3.1-8B_bf16_tp1_attention.csv", "rtxpro6000"),
    LSS("RTXPRO6000_Llama-3.1-8B_bf16_tp1_dense.csv", "rtxpro6000"),
    LSS("RTXPRO6000_Llama-3.1-8B_bf16_tp1_per_sequence.csv", "rtxpro6000"),
    {"vidur/a100_Llama-2-7b_mlp.csv", bt_import_vidur, "a100-80-sxm", "vidur", ""},
    {"vidur/h100_Llama-2-7b_mlp.csv", bt_import_vidur, "h100-sxm", "vidur", ""},
#undef AIC
#undef LSS
};

/* The model that LLMServingSim's profiles were taken with. */
static const struct bt_arch llama_3_1_8b = {.name = "llama-3.1-8b",
                                            .hidden = 4096,
                                            .n_layers = 32,
                                            .n_heads = 32,
                                            .n_kv_heads = 8,
                                            .head_dim = 128,
                                            .intermediate = 14336,
                                            .vocab = 128256};

static const char *source_of(read_fn *read)
{
    if (read == bt_import_aiconfigurator) {
        return "ai-dynamo/aiconfigurator";
    }
    return read == bt_import_llmservingsim ? "casys-kaist/LLMServingSim" : "microsoft/vidur";
}

static char *read_file(const char *path, size_t *size_bytes)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return NULL;
    }
    char *text = NULL;
    size_t used = 0;
    size_t capacity = 0;
    for (;;) {
        if (used == capacity) {
            capacity = capacity == 0 ? 1 << 20 : 2 * capacity;
            char *grown = realloc(text, capacity);
            if (grown == NULL) {
                break;
            }
            text = grown;
        }
        size_t n = fread(text + used, 1, capacity - used, f);
        used += n;
        if (n == 0) {
            *size_bytes = used;
            (void)fclose(f);
            return text;
        }
    }
    free(text);
    (void)fclose(f);
    return NULL;
}

/* Left out: FP8 with block scales (no format of ours), collectives but all-reduce (no plan here
 * uses them), int8 all-reduce (the same bytes), the eager all-reduce (serving engines run graphs),
 * and matrices narrower than 256 (no layer of a model at any tensor-parallel degree of ours; a
 * quarter of the tables). */
static bool is_shipped(const struct bt_cost_sample *s)
{
    enum { NARROWEST = 256 };
    if (s->format.weights == BT_NUM_FP8_BLOCK) {
        return false;
    }
    if (s->op == BT_OP_ALLGATHER || s->op == BT_OP_REDUCESCATTER || s->op == BT_OP_ALLTOALL) {
        return false;
    }
    if (s->op == BT_OP_ALLREDUCE) {
        return s->format.activations != BT_NUM_INT8 && strstr(s->kernel, "eager") == NULL;
    }
    if (s->op == BT_OP_GEMM || s->op == BT_OP_QUANTIZE) {
        return s->shape.n >= NARROWEST && (s->op != BT_OP_GEMM || s->shape.k >= NARROWEST);
    }
    return true;
}

static bool import_table(const struct table *t, const char *folder, struct bt_sample_set *set)
{
    char path[1024];
    char source[BT_SURFACE_SOURCE_BYTES];
    const char *base = strrchr(t->path, '/') + 1;
    (void)snprintf(path, sizeof path, "%s/%s", folder, t->path);
    (void)snprintf(source, sizeof source, "%s: %s", source_of(t->read), base);
    struct bt_import_text file = {.name = base};
    char *text = read_file(path, &file.size_bytes);
    if (text == NULL) {
        (void)fprintf(stderr, "%s: cannot be read\n", path);
        return false;
    }
    file.text = text;
    struct bt_import_opts opts = {
        .gpu = t->gpu,
        .stack = t->stack,
        .version = t->version,
        .source = source,
        .licence = t->read == bt_import_aiconfigurator ? "Apache-2.0" : "MIT",
        /* The blocks of the one NCCL table that names them stand in this order. */
        .collective_order = "allgather,alltoall,reducescatter,allreduce",
        .lenient = true,
        .arch = t->read == bt_import_llmservingsim ? &llama_3_1_8b : NULL,
        .format = t->read == bt_import_llmservingsim ? BT_NUM_BF16 : BT_NUM_FP16,
    };
    struct bt_import_report report;
    struct bt_error err = {0};
    enum bt_code code = t->read(&file, &opts, set, &report, &err);
    free(text);
    if (code != BT_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return false;
    }
    (void)printf("%s: %lld rows, %lld samples, %lld repeats, %lld dropped%s%s\n", base,
                 (long long)report.n_rows, (long long)report.n_samples, (long long)report.n_merged,
                 (long long)report.n_dropped, report.note[0] != '\0' ? "; " : "", report.note);
    return true;
}

static int compare_files(const void *a, const void *b)
{
    const struct bt_cost_sample *x = a;
    const struct bt_cost_sample *y = b;
    int c = strcmp(x->gpu, y->gpu);
    c = c != 0 ? c : strcmp(x->stack, y->stack);
    c = c != 0 ? c : strcmp(x->version, y->version);
    c = c != 0 ? c : (int)x->op - (int)y->op;
    c = c != 0 ? c : strcmp(x->source, y->source);
    return c != 0 ? c : (x->line > y->line) - (x->line < y->line);
}

/* One file holds one GPU, stack, version and operation; two tables of one are two files. */
static bool write_file(struct bt_cost_sample *s, int64_t n, const char *folder, int32_t part)
{
    char path[1024];
    char suffix[16] = "";
    const char *dash = s->version[0] == '\0' ? "" : "-";
    if (part > 0) {
        (void)snprintf(suffix, sizeof suffix, "__%d", part + 1);
    }
    (void)snprintf(path, sizeof path, "%s/%s__%s%s%s__%s%s.cal", folder, s->gpu, s->stack, dash,
                   s->version, bt_op_name(s->op), suffix);
    FILE *out = fopen(path, "wb");
    if (out == NULL) {
        (void)fprintf(stderr, "%s: cannot be written\n", path);
        return false;
    }
    struct bt_error err = {0};
    enum bt_code code = bt_calib_write(out, s, n, &err);
    if (fclose(out) != 0 || code != BT_OK) {
        (void)fprintf(stderr, "%s: %s\n", path, err.msg);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        (void)fprintf(stderr, "usage: %s TABLES OUT_FOLDER\n", argv[0]);
        return 2;
    }
    struct bt_sample_set set;
    bt_sample_set_init(&set);
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof tables / sizeof tables[0]; i++) {
        ok = import_table(&tables[i], argv[1], &set);
    }
    int64_t n = 0;
    for (int64_t i = 0; i < set.n_samples; i++) {
        if (is_shipped(&set.samples[i])) {
            set.samples[n++] = set.samples[i];
        }
    }
    if (n > 0) {
        qsort(set.samples, (size_t)n, sizeof *set.samples, compare_files);
    }
    int32_t part = 0;
    for (int64_t i = 0; ok && i < n;) {
        const struct bt_cost_sample *first = &set.samples[i];
        int64_t end = i + 1;
        while (end < n && set.samples[end].op == first->op &&
               strcmp(set.samples[end].source, first->source) == 0) {
            end++;
        }
        const struct bt_cost_sample *last = i == 0 ? NULL : &set.samples[i - 1];
        bool again = last != NULL && last->op == first->op && strcmp(last->gpu, first->gpu) == 0 &&
                     strcmp(last->stack, first->stack) == 0 &&
                     strcmp(last->version, first->version) == 0;
        part = again ? part + 1 : 0;
        ok = write_file(set.samples + i, end - i, argv[2], part);
        i = end;
    }
    (void)printf("%lld samples of %lld shipped\n", (long long)n, (long long)set.n_samples);
    bt_sample_set_fini(&set);
    return ok ? 0 : 1;
}
