#include "db/calibrations/calibrations.h"
#include "sim/cost/calib.h"
#include "sim/cost/surface.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static double flat_prior(const double at[BT_LATTICE_AXES_MAX], const void *context)
{
    (void)context;
    return log(1 + at[0]);
}

/* A law that chords follow exactly: log t linear in the logarithms. */
static double power_law(int64_t m, int64_t n)
{
    return 3 + 0.7 * log((double)m) + 0.4 * log((double)n);
}

static int64_t power_points(struct bt_lattice_point *points, int32_t skip)
{
    int64_t k = 0;
    for (int32_t i = 0; i < 10; i++) {
        for (int32_t j = 0; j < 6; j++) {
            if (i * 6 + j != skip) {
                int64_t m = INT64_C(1) << i;
                int64_t n = INT64_C(64) << j;
                points[k++] = (struct bt_lattice_point){.at = {m, n}, .log_value = power_law(m, n)};
            }
        }
    }
    return k;
}

Test(lattice, power_laws_are_exact_with_and_without_a_hole)
{
    struct bt_lattice_opts opts = {.n_axes = 2, .rises = {true}, .prior = flat_prior};
    for (int32_t skip = -1; skip < 60; skip += 7) {
        struct bt_lattice_point points[60];
        struct bt_lattice g;
        struct bt_error err = {0};
        int64_t n = power_points(points, skip);
        cr_assert_eq(bt_lattice_init(&g, points, n, &opts, &err), BT_OK, "%s", err.msg);
        cr_expect_lt(g.along.p99, 1e-9);
        double inside[BT_LATTICE_AXES_MAX] = {100, 300};
        if (skip == -1) {
            cr_expect_float_eq(bt_lattice_eval(&g, inside, NULL), power_law(100, 300), 1e-9);
        }
        bt_lattice_fini(&g);
    }
}

Test(lattice, the_guard_removes_falls_and_clamps)
{
    const struct bt_lattice_point points[] = {{.at = {1}, .log_value = 1.0},
                                              {.at = {2}, .log_value = 1.4},
                                              {.at = {4}, .log_value = 1.2},
                                              {.at = {8}, .log_value = 2.0},
                                              {.at = {16}, .log_value = 1.9}};
    struct bt_lattice_opts opts = {.n_axes = 1, .rises = {true}, .prior = flat_prior};
    struct bt_lattice g;
    struct bt_error err = {0};
    cr_assert_eq(bt_lattice_init(&g, points, 5, &opts, &err), BT_OK);
    double last = -INFINITY;
    for (double m = 1; m <= 16; m += 0.25) {
        double at[BT_LATTICE_AXES_MAX] = {m};
        double v = bt_lattice_eval(&g, at, NULL);
        cr_expect_geq(v, last - 1e-12, "falls at %g", m);
        last = v;
    }
    double at[BT_LATTICE_AXES_MAX] = {99};
    double clamped[BT_LATTICE_AXES_MAX];
    cr_expect_float_eq(bt_lattice_eval(&g, at, clamped), 1.95, 1e-9, "the pooled pair's mean");
    cr_expect_eq(clamped[0], 16);
    bt_lattice_fini(&g);
}

Test(lattice, too_long_an_axis_is_refused)
{
    static struct bt_lattice_point points[BT_LATTICE_SIDE_MAX + 1];
    for (int32_t i = 0; i <= BT_LATTICE_SIDE_MAX; i++) {
        points[i] = (struct bt_lattice_point){.at = {i + 1}, .log_value = i};
    }
    struct bt_lattice_opts opts = {.n_axes = 1, .rises = {true}, .prior = flat_prior};
    struct bt_lattice g;
    struct bt_error err = {0};
    cr_expect_eq(bt_lattice_init(&g, points, BT_LATTICE_SIDE_MAX + 1, &opts, &err), BT_ERR_LIMIT);
    cr_expect_eq(g.n_nodes, 0, "a failed init leaves zeroes");
}

static struct bt_sample_set samples;
static struct bt_surface_set surfaces;

/* Surfaces of the shipped calibrations whose name has `part` in it; NULL: of all. */
static void load(const char *part)
{
    struct bt_error err = {0};
    bt_sample_set_init(&samples);
    for (const struct bt_embedded *e = bt_calibration_texts; e->name != NULL; e++) {
        struct bt_import_text file = {e->text, e->size_bytes, e->name};
        if (part == NULL || strstr(e->name, part) != NULL) {
            cr_assert_eq(bt_calib_read(&file, &samples, &err), BT_OK, "%s", err.msg);
        }
    }
    cr_assert_eq(bt_surface_set_init(&surfaces, &samples, &err), BT_OK, "%s", err.msg);
    cr_assert_gt(surfaces.n_surfaces, 0);
}

static void unload(void)
{
    bt_surface_set_fini(&surfaces);
    bt_sample_set_fini(&samples);
}

TestSuite(surface, .fini = unload);

static const struct bt_surface *find(enum bt_op op, enum bt_num weights, enum bt_num activations,
                                     const char *gpu, const char *stack)
{
    for (int32_t i = 0; i < surfaces.n_surfaces; i++) {
        const struct bt_surface *s = surfaces.surfaces[i];
        if (s->op == op && s->format.weights == weights && s->format.activations == activations &&
            strcmp(s->gpu, gpu) == 0 && strcmp(s->stack, stack) == 0) {
            return s;
        }
    }
    cr_assert_fail("no surface of %s, %s, %s", bt_op_name(op), gpu, stack);
    return NULL;
}

/* The acceptance of the surfaces: with one point absent, by GPU, stack and format, along the main
 * coordinate. Printed, so that docs/SURFACES.md can be checked against it. */
static void expect_leave_one_out(const struct bt_surface *s)
{
    const struct bt_lattice_error *e = &s->grid.along;
    char name[256];
    (void)snprintf(name, sizeof name, "%s %s-%s %s %s/%s/%s", s->gpu, s->stack, s->version,
                   bt_op_name(s->op), bt_num_name(s->format.weights),
                   bt_num_name(s->format.activations), bt_num_name(s->format.kv));
    (void)printf("%-60s %6lld points: median %4.1f%%, P90 %5.1f%%\n", name, (long long)e->n,
                 100 * e->median, 100 * e->p90);
    cr_expect_geq(e->n, 20, "%s: enough to judge by", name);
    cr_expect_leq(e->median, 0.06, "%s: median %.3f", name, e->median);
    cr_expect_leq(e->p90, 0.20, "%s: P90 %.3f", name, e->p90);
    cr_expect_leq(fabs(e->log_bias), 0.03, "%s: bias %.3f", name, e->log_bias);
    cr_expect_leq(s->grid.guard_median, 0.03, "%s: the guard moves %.3f", name,
                  s->grid.guard_median);
}

static void expect_rising(const struct bt_surface *s)
{
    double last = 0;
    for (int64_t x = 1; x <= 40000; x += 1 + x / 16) {
        struct bt_op_shape shape = {.m = x,
                                    .n = 5000,
                                    .k = 5000,
                                    .batch = 4,
                                    .q_len = s->op == BT_OP_ATTN_MIXED ? 100 : x,
                                    .ctx = x,
                                    .heads = 28,
                                    .kv_heads = 4,
                                    .head_dim = 128,
                                    .bytes = 4096 * x,
                                    .ranks = 2};
        double t = bt_surface_eval(s, &shape).time_ns;
        cr_expect(t > 0 && isfinite(t));
        cr_expect_geq(t, last * (1 - 1e-9), "%s %s %s %s falls at %lld: %g %g", s->gpu, s->stack,
                      bt_op_name(s->op), bt_num_name(s->format.weights), (long long)x, last, t);
        last = t;
    }
}

Test(surface, every_shipped_surface_predicts_what_is_left_out_and_rises)
{
    load(NULL);
    int32_t switches = 0;
    for (int32_t i = 0; i < surfaces.n_surfaces; i++) {
        const struct bt_surface *s = surfaces.surfaces[i];
        expect_leave_one_out(s);
        if (s->grid.switches) {
            (void)printf("  falls at kernel switches\n");
            /* Weight-only GEMM of TensorRT-LLM, its two decode kernels on an L40S, small layers;
             * our own tuner's choice changes with the rows. */
            bool known =
                strcmp(s->stack, "berth") == 0 || s->op == BT_OP_EMBEDDING || s->op == BT_OP_ROPE ||
                (s->op == BT_OP_ATTN_DECODE && strcmp(s->gpu, "l40s") == 0) ||
                (s->op == BT_OP_GEMM && strcmp(s->stack, "trtllm") == 0 &&
                 !bt_num_is_float(s->format.weights) && bt_num_is_float(s->format.activations));
            cr_expect(known, "%s %s", s->gpu, bt_op_name(s->op));
            switches++;
        } else {
            expect_rising(s);
        }
    }
    cr_expect_gt(switches, 0);
    cr_expect_geq(surfaces.n_surfaces, 60);
}

Test(surface, a_measured_point_is_given_back)
{
    load("h200__trtllm-1.2.0rc5__gemm");
    const struct bt_surface *s = find(BT_OP_GEMM, BT_NUM_BF16, BT_NUM_BF16, "h200", "trtllm");
    struct bt_op_shape shape = {.m = 1, .n = 16384, .k = 5120};
    struct bt_surface_point p = bt_surface_eval(s, &shape);
    cr_expect(p.inside);
    cr_expect_float_eq(p.time_ns, 41000, 2000, "%.0f ns: 41 us measured", p.time_ns);
}

/* What does not lie between measurements goes on by work, and says so. */
Test(surface, beyond_the_range_work_decides)
{
    load("h200__vllm-0.24.0__gemm");
    const struct bt_surface *s = find(BT_OP_GEMM, BT_NUM_BF16, BT_NUM_BF16, "h200", "vllm");
    struct bt_op_shape shape = {.m = 16384, .n = 16384, .k = 16384};
    struct bt_surface_point at = bt_surface_eval(s, &shape);
    shape.n *= 4;
    struct bt_surface_point beyond = bt_surface_eval(s, &shape);
    cr_expect(at.inside && !beyond.inside);
    cr_expect_float_eq(beyond.time_ns / at.time_ns, 4, 0.2);
}

/* A cache that the benchmark's working set outgrows: found at one size on the L40S. */
Test(surface, the_cache_step_of_the_l40s_is_found)
{
    load("attn-decode");
    const struct bt_surface *s = NULL;
    for (int32_t i = 0; i < surfaces.n_surfaces; i++) {
        const struct bt_surface *c = surfaces.surfaces[i];
        if (c->format.kv == BT_NUM_BF16 && strcmp(c->gpu, "l40s") == 0) {
            s = c;
        } else if (strcmp(c->gpu, "h200") == 0) {
            cr_expect_eq(c->step.bytes, 0, "none on an H200");
        }
    }
    cr_assert_not_null(s);
    cr_expect(s->step.bytes > 96e6 && s->step.bytes < 280e6, "%.3g bytes", s->step.bytes);
    cr_expect(s->step.log_jump > 0.3 && s->step.log_jump < 1.2);
}

/* A chunk behind cached tokens: the share of pairs of the whole prompt, never less than alone. */
Test(surface, chunks_behind_a_prefix_cost_their_pairs)
{
    load("h200__vllm-0.24.0__attn-prefill");
    const struct bt_surface *s = find(BT_OP_ATTN_PREFILL, BT_NUM_NONE, BT_NUM_BF16, "h200", "vllm");
    struct bt_op_shape whole = {
        .batch = 1, .q_len = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128};
    double sum = 0;
    for (int64_t at = 0; at < 8192; at += 2048) {
        struct bt_op_shape chunk = whole;
        chunk.q_len = 2048;
        chunk.prefix = at;
        struct bt_surface_point p = bt_surface_eval(s, &chunk);
        cr_expect_eq(p.derived, at > 0);
        sum += p.time_ns;
    }
    double t = bt_surface_eval(s, &whole).time_ns;
    cr_expect(sum >= t && sum < 1.4 * t, "chunks %.0f ns, whole %.0f ns", sum, t);
}

Test(surface, int8_beats_bf16_in_prefill_and_int4_does_not)
{
    load("l40s__trtllm-1.0.0__gemm");
    struct bt_op_shape shape = {.m = 2048, .n = 28672, .k = 4096};
    const enum bt_num formats[3][2] = {
        {BT_NUM_BF16, BT_NUM_BF16}, {BT_NUM_INT8, BT_NUM_INT8}, {BT_NUM_INT4_CHANNEL, BT_NUM_BF16}};
    double ns[3];
    for (int32_t i = 0; i < 3; i++) {
        ns[i] = bt_surface_eval(find(BT_OP_GEMM, formats[i][0], formats[i][1], "l40s", "trtllm"),
                                &shape)
                    .time_ns;
    }
    cr_expect_lt(ns[1], 0.6 * ns[0]);
    cr_expect_gt(ns[2], 0.85 * ns[0]);
}

Test(surface, the_nearest_surface_is_found_and_what_differs_is_said)
{
    struct bt_error err = {0};
    bt_sample_set_init(&samples);
    cr_assert_eq(bt_calib_read_texts(bt_calibration_texts, "h200", BT_OPS, &samples, &err), BT_OK);
    int64_t n = samples.n_samples;
    cr_assert_eq(bt_surface_set_init(&surfaces, &samples, &err), BT_OK);
    for (int32_t i = 0; i < surfaces.n_surfaces; i++) {
        cr_expect_str_eq(surfaces.surfaces[i]->gpu, "h200");
    }
    struct bt_surface_query q = {.op = BT_OP_GEMM,
                                 .format = {BT_NUM_INT4_G128, BT_NUM_FP16, BT_NUM_NONE},
                                 .gpu = "h200",
                                 .stack = "trtllm",
                                 .version = "1.2.1"};
    struct bt_surface_match m = bt_surface_set_find(&surfaces, &q);
    cr_assert_not_null(m.surface);
    cr_expect_eq(m.surface->format.weights, BT_NUM_INT4_CHANNEL);
    cr_expect(!m.same_format && m.same_version && m.spans_heads);
    q.stack = "vllm";
    cr_expect_null(bt_surface_set_find(&surfaces, &q).surface, "no INT4 of vLLM there");

    struct bt_surface_query a = {.op = BT_OP_ATTN_DECODE,
                                 .format = {BT_NUM_NONE, BT_NUM_BF16, BT_NUM_BF16},
                                 .gpu = "h200",
                                 .heads = 40,
                                 .kv_heads = 40,
                                 .head_dim = 128};
    m = bt_surface_set_find(&surfaces, &a);
    cr_assert_not_null(m.surface);
    cr_expect_str_eq(m.surface->stack, "trtllm", "the newest that measured multi-head attention");
    cr_expect(m.spans_heads && m.same_format);
    a.heads = 28;
    a.kv_heads = 4;
    m = bt_surface_set_find(&surfaces, &a);
    cr_expect_str_eq(m.surface->stack, "vllm");
    cr_expect(m.spans_heads);
    a.format.kv = BT_NUM_INT8;
    m = bt_surface_set_find(&surfaces, &a);
    cr_expect_str_eq(m.surface->stack, "berth");
    a.stack = "vllm";
    cr_expect_null(bt_surface_set_find(&surfaces, &a).surface, "FP8 KV is not INT8 KV");

    cr_assert_eq(bt_calib_read_texts(bt_calibration_texts, "rtx4090", BT_OP_SAMPLE, &samples, &err),
                 BT_OK);
    cr_expect_eq(samples.n_samples - n, 40, "forty batches");
}
