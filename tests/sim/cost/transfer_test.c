#include "db/calibrations/calibrations.h"
#include "db/catalog.h"
#include "sim/cost/calib.h"
#include "sim/cost/op_trust.h"
#include "sim/cost/transfer.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct bt_sample_set samples;
static struct bt_surface_set surfaces;
static struct bt_catalog *catalog;

static void load(const char *part)
{
    struct bt_error err = {0};
    bt_sample_set_init(&samples);
    for (const struct bt_embedded *e = bt_calibration_texts; e->name != NULL; e++) {
        struct bt_import_text file = {e->text, e->size_bytes, e->name};
        if (strstr(e->name, part) != NULL) {
            cr_assert_eq(bt_calib_read(&file, &samples, &err), BT_OK, "%s", err.msg);
        }
    }
    cr_assert_eq(bt_surface_set_init(&surfaces, &samples, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_catalog_open(NULL, 0, &catalog, &err), BT_OK, "%s", err.msg);
}

static void unload(void)
{
    bt_catalog_close(catalog);
    bt_surface_set_fini(&surfaces);
    bt_sample_set_fini(&samples);
}

TestSuite(transfer, .fini = unload);

static const struct bt_gpu *gpu(const char *name)
{
    const struct bt_catalog_gpu *g = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_catalog_find_gpu(catalog, name, "gpu", &g, &err), BT_OK, "%s", err.msg);
    return &g->gpu;
}

static const struct bt_surface *find(enum bt_op op, struct bt_op_format f, const char *name,
                                     const char *stack)
{
    for (int32_t i = 0; i < surfaces.n_surfaces; i++) {
        const struct bt_surface *s = surfaces.surfaces[i];
        if (s->op == op && s->format.weights == f.weights &&
            s->format.activations == f.activations && s->format.kv == f.kv &&
            strcmp(s->gpu, name) == 0 && strcmp(s->stack, stack) == 0) {
            return s;
        }
    }
    return NULL;
}

struct acceptance {
    const char *name;
    const char *stack;
    enum bt_op op;
    struct bt_op_format format;
    const char *target;
    const char *from[3];
    double median; /* at most */
};

#define BF16                                                                                       \
    {                                                                                              \
        BT_NUM_BF16, BT_NUM_BF16, BT_NUM_NONE                                                      \
    }
#define W8A8                                                                                       \
    {                                                                                              \
        BT_NUM_INT8, BT_NUM_INT8, BT_NUM_NONE                                                      \
    }
#define W8                                                                                         \
    {                                                                                              \
        BT_NUM_INT8, BT_NUM_BF16, BT_NUM_NONE                                                      \
    }
#define INT4                                                                                       \
    {                                                                                              \
        BT_NUM_INT4_CHANNEL, BT_NUM_BF16, BT_NUM_NONE                                              \
    }
#define ATTN                                                                                       \
    {                                                                                              \
        BT_NUM_NONE, BT_NUM_BF16, BT_NUM_BF16                                                      \
    }

static const struct acceptance gemms[] = {
    {"bf16", "trtllm", BT_OP_GEMM, BF16, "l40s", {"h200", "a100-80-sxm"}, 0.25},
    {"bf16", "vllm", BT_OP_GEMM, BF16, "l40s", {"h200", "a100-80-sxm"}, 0.25},
    {"W8A8", "trtllm", BT_OP_GEMM, W8A8, "l40s", {"h200", "a100-80-sxm"}, 0.25},
    {"W8A16", "trtllm", BT_OP_GEMM, W8, "l40s", {"h200", "a100-80-sxm"}, 0.25},
    {"INT4", "trtllm", BT_OP_GEMM, INT4, "l40s", {"h200", "a100-80-sxm"}, 0.50},
    {"bf16", "trtllm", BT_OP_GEMM, BF16, "a100-80-sxm", {"h200", "l40s"}, 0.25},
    {"bf16", "vllm", BT_OP_GEMM, BF16, "a100-80-sxm", {"h100-sxm", "h200", "l40s"}, 0.25},
    {"W8A8", "trtllm", BT_OP_GEMM, W8A8, "a100-80-sxm", {"h200", "l40s"}, 0.25},
    {"W8A16", "trtllm", BT_OP_GEMM, W8, "a100-80-sxm", {"h200", "l40s"}, 0.25},
    {"INT4", "trtllm", BT_OP_GEMM, INT4, "a100-80-sxm", {"h200", "l40s"}, 0.25},
};

static const struct acceptance attentions[] = {
    {"prefill", "trtllm", BT_OP_ATTN_PREFILL, ATTN, "l40s", {"h200", "a100-80-sxm"}, 0.25},
    {"prefill", "trtllm", BT_OP_ATTN_PREFILL, ATTN, "a100-80-sxm", {"h200", "l40s"}, 0.25},
    {"prefill", "vllm", BT_OP_ATTN_PREFILL, ATTN, "a100-80-sxm", {"h200", "h100-sxm"}, 0.25},
    {"decode", "trtllm", BT_OP_ATTN_DECODE, ATTN, "l40s", {"h200", "a100-80-sxm"}, 0.25},
    {"decode", "vllm", BT_OP_ATTN_DECODE, ATTN, "a100-80-sxm", {"h200", "h100-sxm"}, 0.25},
};

/* Attention is judged as in serving (`cold`): the L40S tables found the KV in its cache. */
static void expect_accepted(const struct acceptance *a, bool cold)
{
    struct bt_relative relatives[3];
    int32_t n = 0;
    for (; n < 3 && a->from[n] != NULL; n++) {
        relatives[n].surface = find(a->op, a->format, a->from[n], a->stack);
        relatives[n].gpu = gpu(a->from[n]);
        cr_assert_not_null(relatives[n].surface, "%s %s", a->from[n], a->name);
    }
    const struct bt_surface *truth = find(a->op, a->format, a->target, a->stack);
    cr_assert_not_null(truth);
    struct bt_transfer t;
    struct bt_error err = {0};
    cr_assert_eq(bt_transfer_init(&t, relatives, n, gpu(a->target), &err), BT_OK, "%s", err.msg);
    struct bt_lattice_error e;
    double covered = 0;
    cr_assert_eq(bt_transfer_error(&t, truth, cold, &e, &covered, &err), BT_OK);
    (void)printf(
        "%-12s %-7s %-8s %6lld points: median %4.1f%%, P90 %5.1f%%, x%.2f covers %5.1f%%\n",
        a->target, a->stack, a->name, (long long)e.n, 100 * e.median, 100 * e.p90, exp(t.log_bound),
        100 * covered);
    cr_expect_geq(e.n, 100);
    cr_expect_leq(e.median, a->median, "%s %s: median %.3f", a->target, a->name, e.median);
    cr_expect_geq(covered, 0.90, "%s %s: covered %.3f", a->target, a->name, covered);
    cr_expect_leq(exp(t.log_bound), 4.0001, "%s %s", a->target, a->name);
}

Test(transfer, gpus_left_out_are_predicted_and_covered)
{
    load("gemm");
    for (size_t i = 0; i < sizeof gemms / sizeof gemms[0]; i++) {
        expect_accepted(&gemms[i], false);
    }
}

Test(transfer, attention_of_gpus_left_out)
{
    load("attn-");
    for (size_t i = 0; i < sizeof attentions / sizeof attentions[0]; i++) {
        expect_accepted(&attentions[i], true);
    }
}

/* What a bare share of the roof gets wrong by 3.7 to 3.9 times. */
Test(transfer, small_int4_matrices_keep_their_fixed_time)
{
    load("trtllm-1");
    const struct bt_op_format int4 = INT4;
    struct bt_relative r = {find(BT_OP_GEMM, int4, "h200", "trtllm"), gpu("h200")};
    const struct bt_surface *truth = find(BT_OP_GEMM, int4, "l40s", "trtllm");
    struct bt_transfer t;
    struct bt_error err = {0};
    cr_assert_eq(bt_transfer_init(&t, &r, 1, gpu("l40s"), &err), BT_OK, "%s", err.msg);
    cr_expect_eq(t.n_left_out, 0);
    cr_expect_float_eq(exp(t.log_bound), 4, 1e-9, "one GPU: nothing can be left out");
    for (int64_t m = 8; m <= 64; m *= 2) {
        struct bt_op_shape shape = {.m = m, .n = 4096, .k = 4096};
        double measured = bt_surface_eval(truth, &shape).time_ns;
        double share = bt_surface_eval(r.surface, &shape).time_ns * 4800 / 864;
        struct bt_transfer_point p = bt_transfer_eval(&t, &shape);
        cr_expect_gt(share / measured, 3, "the bare share at m = %lld", (long long)m);
        cr_expect_lt(p.time_ns / measured, 2, "m = %lld", (long long)m);
        cr_expect(p.low_ns < measured && measured < p.high_ns);
    }
}

Test(transfer, what_cannot_be_said_is_refused)
{
    load("gemm");
    struct bt_transfer t;
    struct bt_error err = {0};
    const struct bt_op_format fp8 = {BT_NUM_FP8, BT_NUM_FP8, BT_NUM_NONE};
    const struct bt_op_format bf16 = BF16;
    struct bt_relative r[2] = {{find(BT_OP_GEMM, fp8, "h200", "vllm"), gpu("h200")},
                               {find(BT_OP_GEMM, bf16, "h200", "vllm"), gpu("h200")}};
    cr_expect_eq(bt_transfer_init(&t, r, 1, gpu("a100-80-sxm"), &err), BT_ERR_NOTFOUND);
    cr_expect(strstr(err.msg, "a100-80-sxm has no unit that multiplies fp8 by fp8") != NULL, "%s",
              err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_transfer_init(&t, r, 2, gpu("l40s"), &err), BT_ERR_ARG);
    bt_error_clear(&err);
    cr_expect_eq(bt_transfer_init(&t, r, 1, gpu("h200"), &err), BT_ERR_NOTFOUND);
    cr_expect(strstr(err.msg, "no other GPU") != NULL, "%s", err.msg);
}

Test(transfer, links_decide_who_is_a_relative_of_a_collective)
{
    load("nccl");
    const struct bt_op_format fp16 = {BT_NUM_NONE, BT_NUM_FP16, BT_NUM_NONE};
    struct bt_relative r[2] = {
        {find(BT_OP_ALLREDUCE, fp16, "h200", "nccl"), gpu("h200")},
        {find(BT_OP_ALLREDUCE, fp16, "a100-80-sxm", "nccl"), gpu("a100-80-sxm")}};
    struct bt_transfer t;
    struct bt_error err = {0};
    cr_expect_eq(bt_transfer_init(&t, r, 2, gpu("l40s"), &err), BT_ERR_NOTFOUND);
    bt_error_clear(&err);
    cr_assert_eq(bt_transfer_init(&t, r, 2, gpu("h100-sxm"), &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(t.relatives[t.nearest].gpu->name, "h200", "the same family first");
}

Test(op_trust, the_weakest_operation_is_named)
{
    struct bt_op_trust t = bt_op_trust_best();
    bt_op_trust_count(&t, BT_TRUST_IMPORTED, BT_OP_GEMM, 0.05, "aiconfigurator");
    cr_expect_eq(t.level, BT_TRUST_IMPORTED);
    bt_op_trust_count(&t, BT_TRUST_TRANSFERRED, BT_OP_ATTN_DECODE, 0.4, "from h200");
    bt_op_trust_count(&t, BT_TRUST_MEASURED, BT_OP_NORM, 0.9, "here");
    cr_expect_eq(t.level, BT_TRUST_TRANSFERRED);
    cr_expect_eq(t.op, BT_OP_ATTN_DECODE);
    cr_expect_str_eq(t.note, "from h200");
    bt_op_trust_count(&t, BT_TRUST_TRANSFERRED, BT_OP_GEMM, 0.6, "from a100");
    cr_expect_eq(t.op, BT_OP_GEMM, "of equals, the larger error");
    bt_op_trust_count(&t, BT_TRUST_ROOFLINE, BT_OP_ALLREDUCE, 0.1, "data sheet");
    cr_expect_eq(t.op, BT_OP_ALLREDUCE);
}
