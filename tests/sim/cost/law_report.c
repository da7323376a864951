/* The error tables of docs/COST_MODEL.md, from the shipped calibrations:
 *
 *   bt_law_report
 *
 * Steps of three models on every measured GPU, by the law of that GPU's own surfaces, against the
 * roofline, another stack's surfaces of the same GPU, and what other GPUs' surfaces say. What
 * sim/cost/roofline.c states as its error is read off here. */
#include "sim/cost/roofline.h"
#include "sim/cost/surface_law.h"
#include "tests/sim/fixtures.h"
#include "tests/sim/shipped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const gpus[] = {"a100-80-sxm", "h100-sxm", "h200",
                                   "l40s",        "rtx4090",  "rtxpro6000"};
static const char *const models[] = {"llama-3.1-8b", "llama-2-13b", "llama-3.1-70b"};

struct format {
    const char *name;
    enum bt_weight_format weights;
    enum bt_act_format activations;
};

static const struct format formats[] = {
    {"16-bit", BT_WEIGHT_BF16, BT_ACT_BF16},       {"W8A16", BT_WEIGHT_INT8, BT_ACT_BF16},
    {"W8A8", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC}, {"W4A16", BT_WEIGHT_INT4_G128, BT_ACT_BF16},
    {"FP8", BT_WEIGHT_FP8, BT_ACT_BF16},
};
enum { FORMATS = sizeof formats / sizeof *formats };

enum op_class {
    CLASS_GEMM,
    CLASS_DECODE,
    CLASS_PREFILL,
    CLASS_POINTWISE,
    CLASS_COLLECTIVE,
    CLASSES
};
static const char *const class_names[CLASSES] = {"matrix products", "attention decode",
                                                 "attention prefill", "elementwise", "all-reduce"};

enum { VALUES_MAX = 8192 };

/* log(truth / estimate) of many steps, and how many lay within the stated bound. */
struct errors {
    int32_t n, covered;
    double log[VALUES_MAX];
    double bound_sum;
};

static void count(struct errors *e, double truth, double estimate, double bound)
{
    if (e->n < VALUES_MAX && truth > 0 && estimate > 0) {
        e->log[e->n++] = log(truth / estimate);
        e->covered += bound >= 0 && truth <= estimate * (1 + bound);
        e->bound_sum += bound;
    }
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(double *values, int32_t n, double p)
{
    qsort(values, (size_t)n, sizeof *values, compare_double);
    int32_t at = (int32_t)ceil(p * n) - 1;
    return values[at < 0 ? 0 : at];
}

/* Median and P90 of |estimate / truth - 1|, P90 of truth / estimate - 1, P90 of |log|, mean log. */
static void print_errors(const char *name, const char *what, struct errors *e, bool bound)
{
    if (e->n == 0) {
        return;
    }
    double *v = malloc((size_t)e->n * sizeof *v);
    if (v == NULL) {
        return;
    }
    double bias = 0;
    for (int32_t i = 0; i < e->n; i++) {
        v[i] = fabs(expm1(-e->log[i]));
        bias += e->log[i] / e->n;
    }
    double median = percentile(v, e->n, 0.5);
    double p90 = percentile(v, e->n, 0.9);
    for (int32_t i = 0; i < e->n; i++) {
        v[i] = expm1(e->log[i]);
    }
    double over = percentile(v, e->n, 0.9);
    for (int32_t i = 0; i < e->n; i++) {
        v[i] = fabs(e->log[i]);
    }
    double log_p90 = percentile(v, e->n, 0.9);
    (void)printf("| %s | %s | %d | x%.2f | %.0f%% | %.0f%% | %+.0f%% | %.2f |", name, what, e->n,
                 exp(-bias), 100 * median, 100 * p90, 100 * over, log_p90);
    if (bound) {
        (void)printf(" %.0f%% | %.0f%% |", 100 * e->bound_sum / e->n, 100.0 * e->covered / e->n);
    }
    (void)printf("\n");
    free(v);
}

static enum op_class class_of(enum bt_step_op op)
{
    switch (op) {
    case BT_STEP_QKV:
    case BT_STEP_O:
    case BT_STEP_GATE_UP:
    case BT_STEP_DOWN:
    case BT_STEP_LM_HEAD:
    case BT_STEP_MEDUSA:
        return CLASS_GEMM;
    case BT_STEP_ATTN_DECODE:
        return CLASS_DECODE;
    case BT_STEP_ATTN_PREFILL:
        return CLASS_PREFILL;
    case BT_STEP_ALL_REDUCE:
    case BT_STEP_ALL_GATHER:
        return CLASS_COLLECTIVE;
    case BT_STEP_EMBED:
    case BT_STEP_NORM:
    case BT_STEP_ADD:
    case BT_STEP_QUANTISE:
    case BT_STEP_QK_NORM:
    case BT_STEP_ROPE:
    case BT_STEP_KV_WRITE:
    case BT_STEP_ACTIVATION:
    case BT_STEP_SAMPLE:
    case BT_STEP_OPS:
        break;
    }
    return CLASS_POINTWISE;
}

static double step_ps(const struct bt_cost *c, const struct bt_batch *b)
{
    struct bt_cost_parts p;
    c->ops->step(c->self, b, &p);
    return (double)p.time_ps;
}

static void class_times(const struct bt_cost *c, const struct bt_batch *b, double out[CLASSES])
{
    struct bt_step_row rows[BT_STEP_ROWS_MAX];
    int32_t n = bt_step_cost_explain(c, b, rows);
    memset(out, 0, CLASSES * sizeof *out);
    for (int32_t i = 0; i < n; i++) {
        out[class_of(rows[i].op)] += rows[i].time_ps;
    }
}

enum { BATCHES_MAX = 64 };

static int32_t batches_of(struct bt_batch out[BATCHES_MAX])
{
    static const int32_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 192, 256};
    static const int64_t contexts[] = {512, 1024, 4096};
    static const int64_t prompts[] = {512, 1024, 2048, 4096, 8192};
    int32_t n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t c = 0; c < sizeof contexts / sizeof *contexts; c++) {
            out[n++] = fixture_decodes(sizes[i], contexts[c]);
        }
    }
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        out[n++] = fixture_prompts(1, prompts[i]);
    }
    return n;
}

struct report {
    struct bt_surface_library *library;
    struct bt_catalog *catalog;
    struct errors roofline[FORMATS][sizeof gpus / sizeof *gpus];
    struct errors roofline_all[FORMATS];
    struct errors roofline_ops[FORMATS][CLASSES][sizeof gpus / sizeof *gpus];
    struct errors other_stack[FORMATS], other_gpu[FORMATS];
    struct errors other_gpu_each[FORMATS][sizeof gpus / sizeof *gpus];
    struct errors other_gpu_ops[FORMATS][CLASSES][sizeof gpus / sizeof *gpus];
};

/* The stack whose products of this format are measured on the GPU; NULL: none. */
static const char *measured_stack(struct report *r, const char *gpu, const struct format *f,
                                  struct bt_error *err)
{
    static const char *const stacks[] = {"vllm", "trtllm"};
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        bool fp8 = f->weights == BT_WEIGHT_FP8;
        struct bt_source_query q = {
            .op = BT_OP_GEMM,
            .format = {.weights = bt_num_from_weight(f->weights),
                       .activations = fp8 ? BT_NUM_FP8 : bt_num_from_act(f->activations)},
            .gpu = gpu,
            .stack = bt_stack_name_of(stacks[i]),
        };
        const struct bt_op_source *s = NULL;
        if (bt_surface_library_find(r->library, &q, &s, err) == BT_OK && s != NULL &&
            s->level >= BT_TRUST_IMPORTED) {
            return stacks[i];
        }
    }
    return NULL;
}

/* Whether any stack measured this elementwise operation on the GPU. */
static bool is_measured(struct report *r, const char *gpu, enum bt_op op)
{
    struct bt_source_query q = {.op = op,
                                .format = {.activations = BT_NUM_BF16},
                                .gpu = gpu,
                                .stack = bt_stack_name_of("vllm")};
    const struct bt_op_source *s = NULL;
    struct bt_error err = {0};
    return bt_surface_library_find(r->library, &q, &s, &err) == BT_OK && s != NULL &&
           s->surface != NULL;
}

/* The bound of one step. */
static double bound_of(const struct bt_cost *c, const struct bt_batch *b)
{
    struct bt_step_mix mix = {.classes = {{0}}};
    bt_step_mix_add(&mix, b);
    return bt_surface_cost_mix_error(c, &mix);
}

static void compare(struct report *r, int32_t f, size_t g, const struct bt_cost *truth,
                    const struct bt_cost *roof, const struct bt_cost *stack,
                    const struct bt_cost *other)
{
    struct bt_batch batches[BATCHES_MAX];
    int32_t n = batches_of(batches);
    bool elementwise = is_measured(r, gpus[g], BT_OP_NORM);
    for (int32_t i = 0; i < n; i++) {
        double t = step_ps(truth, &batches[i]);
        double bare = step_ps(roof, &batches[i]);
        count(&r->roofline[f][g], t, bare, roof->step_error);
        count(&r->roofline_all[f], t, bare, roof->step_error);
        count(&r->other_stack[f], t, step_ps(stack, &batches[i]), bound_of(stack, &batches[i]));
        double bound = bound_of(other, &batches[i]);
        count(&r->other_gpu[f], t, step_ps(other, &batches[i]), bound);
        count(&r->other_gpu_each[f][g], t, step_ps(other, &batches[i]), bound);
        double a[CLASSES], b[CLASSES];
        class_times(truth, &batches[i], a);
        class_times(roof, &batches[i], b);
        double o[CLASSES];
        class_times(other, &batches[i], o);
        for (int32_t c = CLASS_GEMM; c <= CLASS_POINTWISE; c++) {
            bool known = c != CLASS_POINTWISE || elementwise;
            if (known && (f == 0 || c == CLASS_GEMM)) {
                count(&r->roofline_ops[f][c][g], a[c], b[c], -1);
                count(&r->other_gpu_ops[f][c][g], a[c], o[c], -1);
            }
        }
    }
}

static enum bt_code measure(struct report *r, int32_t f, size_t g, const char *model,
                            const char *stack, struct bt_error *err)
{
    const struct bt_catalog_gpu *gpu = NULL;
    const struct bt_catalog_model *row = NULL;
    BT_TRY(bt_catalog_find_gpu(r->catalog, gpus[g], "gpu", &gpu, err));
    BT_TRY(bt_catalog_find_model(r->catalog, model, "model", &row, err));
    struct bt_step_opts o = {
        .target = {.arch = &row->arch,
                   .weights = formats[f].weights,
                   .activations = formats[f].activations},
        .gpu = &gpu->gpu,
        .fused = true,
        .max_tokens = 64, /* few steps are asked for: tables would cost more */
        .max_seqs = 8,
    };
    struct bt_cost truth = {0}, roof = {0}, other_stack = {0}, other_gpu = {0};
    enum bt_code code =
        bt_surface_cost_create(r->library, stack, BT_SOURCE_WITHOUT_NOTHING, &o, &truth, err);
    if (code == BT_OK) {
        code = bt_roofline_create(&o, &roof, err);
    }
    if (code == BT_OK) {
        code = bt_surface_cost_create(r->library, stack, BT_SOURCE_WITHOUT_STACK, &o, &other_stack,
                                      err);
    }
    if (code == BT_OK) {
        code =
            bt_surface_cost_create(r->library, stack, BT_SOURCE_WITHOUT_GPU, &o, &other_gpu, err);
    }
    if (code == BT_OK) {
        compare(r, f, g, &truth, &roof, &other_stack, &other_gpu);
    }
    bt_cost_fini(&truth);
    bt_cost_fini(&roof);
    bt_cost_fini(&other_stack);
    bt_cost_fini(&other_gpu);
    return code;
}

/* All-reduce of 8 KiB to 64 MiB over 2, 4 and 8 ranks. */
static enum bt_code measure_collectives(struct report *r, struct bt_error *err)
{
    for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
        const struct bt_catalog_gpu *gpu = NULL;
        BT_TRY(bt_catalog_find_gpu(r->catalog, gpus[g], "gpu", &gpu, err));
        struct bt_law law;
        BT_TRY(bt_roofline_law_create(&gpu->gpu, &law, err));
        const char *const stacks[] = {"vllm", "nccl"};
        for (size_t s = 0; s < sizeof stacks / sizeof *stacks; s++) {
            struct bt_source_query q = {.op = BT_OP_ALLREDUCE,
                                        .format = {.activations = BT_NUM_BF16},
                                        .gpu = gpus[g],
                                        .stack = bt_stack_name_of(stacks[s])};
            const struct bt_op_source *source = NULL;
            enum bt_code code = bt_surface_library_find(r->library, &q, &source, err);
            for (int32_t ranks = 2; code == BT_OK && source != NULL &&
                                    source->level >= BT_TRUST_IMPORTED && ranks <= 8;
                 ranks *= 2) {
                for (int64_t bytes = 8192; bytes <= (int64_t)64 << 20; bytes *= 2) {
                    struct bt_op_shape shape = {.bytes = bytes, .ranks = ranks};
                    double ns = bt_op_source_ns(source, &shape, NULL);
                    double bare =
                        law.ops->collective_ps(law.self, BT_STEP_ALL_REDUCE, bytes, ranks);
                    count(&r->roofline_ops[0][CLASS_COLLECTIVE][g], 1000 * ns, bare, -1);
                }
            }
            if (code != BT_OK) {
                law.ops->destroy(law.self);
                return code;
            }
        }
        law.ops->destroy(law.self);
    }
    return BT_OK;
}

static void print_ops(struct errors e[FORMATS][CLASSES][sizeof gpus / sizeof *gpus],
                      const char *head, const char *rule)
{
    (void)printf(head, "operation", "format and GPU");
    (void)printf("\n%s\n", rule);
    for (int32_t c = CLASS_GEMM; c < CLASSES; c++) {
        for (int32_t f = 0; f < FORMATS; f++) {
            for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
                char name[64];
                (void)snprintf(name, sizeof name, "%s, %s", formats[f].name, gpus[g]);
                print_errors(class_names[c], name, &e[f][c][g], false);
            }
        }
    }
}

static void print(struct report *r)
{
    const char *head = "| %s | %s | steps | estimate over measured | median | P90 | measured over "
                       "estimate, P90 | P90 of \\|log\\| |";
    const char *rule = "| --- | --- | --: | --: | --: | --: | --: | --: |";
    (void)printf("## Roofline against the GPU's own surfaces\n\n");
    (void)printf(head, "format", "GPU");
    (void)printf("\n%s\n", rule);
    for (int32_t f = 0; f < FORMATS; f++) {
        for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
            print_errors(formats[f].name, gpus[g], &r->roofline[f][g], false);
        }
        print_errors(formats[f].name, "all", &r->roofline_all[f], false);
    }
    (void)printf("\n");
    (void)printf("## Operations by the roofline\n\n");
    print_ops(r->roofline_ops, head, rule);
    (void)printf("\n## Operations without the GPU's surfaces\n\n");
    print_ops(r->other_gpu_ops, head, rule);
    (void)printf("\n## Without the stack's own surfaces; without the GPU's\n\n");
    (void)printf(head, "left out", "format");
    (void)printf(" stated bound | within it |\n%s --: | --: |\n", rule);
    for (int32_t f = 0; f < FORMATS; f++) {
        print_errors("the stack", formats[f].name, &r->other_stack[f], true);
    }
    for (int32_t f = 0; f < FORMATS; f++) {
        for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
            char name[64];
            (void)snprintf(name, sizeof name, "all of %s", gpus[g]);
            print_errors(name, formats[f].name, &r->other_gpu_each[f][g], true);
        }
        print_errors("all of the GPU", formats[f].name, &r->other_gpu[f], true);
    }
}

static enum bt_code run(struct report *r, struct bt_error *err)
{
    BT_TRY(shipped_open(&r->catalog, &r->library, err));
    for (int32_t f = 0; f < FORMATS; f++) {
        for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
            const char *stack = measured_stack(r, gpus[g], &formats[f], err);
            for (size_t m = 0; stack != NULL && m < sizeof models / sizeof *models; m++) {
                BT_TRY(measure(r, f, g, models[m], stack, err));
            }
        }
    }
    return measure_collectives(r, err);
}

int main(void)
{
    struct bt_error err = {0};
    struct report *r = calloc(1, sizeof *r);
    if (r == NULL || run(r, &err) != BT_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    print(r);
    bt_surface_library_destroy(r->library);
    bt_catalog_close(r->catalog);
    free(r);
    return 0;
}
