#include "engine/core/rng.h"
#include "engine/model/model_write.h"
#include "engine/model/quantize.h"
#include "tests/engine/model/files.h"
#include "tests/engine/model/toy.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bt_error err;

enum { N = 48, K = 192, T = 600 };

/* A matrix and inputs with correlated channels, some of them large, as activations are. */
struct problem {
    struct bt_arena arena;
    float *w;
    float *x;
    struct bt_tensor dense;
    struct bt_calib_stats stats;
};

static void problem_init(struct problem *p, uint64_t seed, double outlier)
{
    struct bt_rng rng;
    bt_rng_init(&rng, seed, "problem", 0);
    bt_arena_init(&p->arena, 0);
    p->w = bt_arena_take_zeroed(&p->arena, N * K, sizeof *p->w);
    p->x = bt_arena_take_zeroed(&p->arena, T * K, sizeof *p->x);
    for (int i = 0; i < N * K; i++) {
        p->w[i] = (float)bt_rng_normal(&rng);
    }
    for (int t = 0; t < T; t++) {
        double shared[8];
        for (int s = 0; s < 8; s++) {
            shared[s] = bt_rng_normal(&rng);
        }
        for (int k = 0; k < K; k++) {
            double v = 0.5 * bt_rng_normal(&rng) + shared[k % 8] + 0.5 * shared[(k + 3) % 8];
            p->x[t * K + k] = (float)(v * (k % 37 == 5 ? outlier : 1.0));
        }
    }
    p->dense = (struct bt_tensor){BT_DTYPE_F32, N, K, p->w};
    cr_assert_eq(bt_calib_init(&p->stats, K, true, &err), BT_OK);
    /* In uneven parts of one sequence. */
    for (int t = 0; t < T;) {
        int n = T - t < 77 ? T - t : 77;
        cr_assert_eq(bt_calib_add(&p->stats, p->x + t * K, n, t, &err), BT_OK);
        t += n;
    }
}

static void problem_fini(struct problem *p)
{
    bt_calib_fini(&p->stats);
    bt_arena_fini(&p->arena);
}

Test(calib, statistics_are_the_sums_that_they_say)
{
    struct problem p;
    problem_init(&p, 1, 4);
    double worst = 0;
    for (int i = 0; i < K; i += 7) {
        for (int j = 0; j <= i; j += 3) {
            double sum = 0;
            for (int t = 0; t < T; t++) {
                sum += (double)p.x[t * K + i] * (double)p.x[t * K + j];
            }
            double d = fabs(sum - p.stats.xtx[i * K + j]);
            worst = d > worst ? d : worst;
        }
    }
    cr_expect_lt(worst, 1e-2, "%g", worst);
    double abs_sum = 0;
    float greatest = 0;
    for (int t = 0; t < T; t++) {
        abs_sum += fabs((double)p.x[t * K + 5]);
        greatest = fmaxf(greatest, fabsf(p.x[t * K + 5]));
    }
    cr_expect_float_eq(p.stats.abs_sum[5], abs_sum, 1e-9 * abs_sum);
    cr_expect_eq(p.stats.abs_max[5], greatest);
    cr_expect_eq(p.stats.n_tokens, T);
    cr_expect_eq(p.stats.max_tokens, T);
    p.x[3] = NAN;
    cr_expect_eq(bt_calib_add(&p.stats, p.x, 1, 0, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "input 3 of token 0 is not finite"), "%s", err.msg);
    cr_expect_eq(p.stats.n_tokens, T);
    problem_fini(&p);
}

static const enum bt_weight_format FORMATS[] = {
    BT_WEIGHT_INT8,     BT_WEIGHT_INT8_TENSOR, BT_WEIGHT_INT4_G128,
    BT_WEIGHT_INT4_G64, BT_WEIGHT_INT4_G32,    BT_WEIGHT_INT4_TENSOR,
};

/* The grid of the format, from the definition. */
Test(rtn, every_weight_is_the_nearest_point_of_its_grid)
{
    struct problem p;
    problem_init(&p, 2, 1);
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
        struct bt_qweight q;
        int32_t bits = bt_weight_format_bits(FORMATS[f]);
        int32_t hi = bits == 4 ? 7 : 127;
        int32_t lo = bits == 4 ? -8 : -127;
        cr_assert_eq(bt_quantise_rtn(&p.arena, &p.dense, FORMATS[f], false, NULL, "w", &q, &err),
                     BT_OK);
        cr_expect_eq(bt_qweight_format(&q), FORMATS[f]);
        for (int n = 0; n < N; n++) {
            for (int k = 0; k < K; k++) {
                int first = q.scale_stride == 0 ? 0 : n * K + k / q.group * q.group;
                int last = q.scale_stride == 0                   ? N * K
                           : k / q.group * q.group + q.group > K ? n * K + K
                                                                 : first + q.group;
                float m = 0;
                for (int i = first; i < last && (q.scale_stride != 0 || k == 0); i++) {
                    m = fmaxf(m, fabsf(p.w[i]));
                }
                float scale = bt_qweight_scale(&q, n, k / q.group);
                if (m > 0) {
                    cr_assert_eq(scale, bt_f16_to_f32(bt_f32_to_f16(m / (float)hi)));
                }
                float exact = p.w[n * K + k] / scale;
                int32_t got = bt_qweight_at(&q, n, k);
                cr_assert(got >= lo && got <= hi);
                cr_assert(fabsf((float)got - exact) <= 0.5f || got == hi || got == lo, "%d for %g",
                          got, (double)exact);
            }
        }
    }
    problem_fini(&p);
}

Test(rtn, extreme_weights_give_finite_scales)
{
    static const float rows[][4] = {
        {0, 0, 0, 0},         {1e-30f, -1e-30f, 0, 0},   {3e38f, -3e38f, 1, 0},
        {65504.0f, -1, 1, 0}, {1e-7f, 2e-7f, -1e-7f, 0},
    };
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct bt_tensor dense = {BT_DTYPE_F32, 1, 4, (void *)(uintptr_t)rows[i]};
            struct bt_qweight q;
            float out[4];
            cr_assert_eq(bt_quantise_rtn(&arena, &dense, FORMATS[f], true, NULL, "w", &q, &err),
                         BT_OK);
            bt_qweight_row_f32(&q, 0, out);
            for (int k = 0; k < 4; k++) {
                cr_expect(isfinite(out[k]), "row %zu, column %d", i, k);
            }
            cr_expect(bt_qweight_scale(&q, 0, 0) > 0);
        }
        float nan_row[] = {1, NAN};
        struct bt_tensor dense = {BT_DTYPE_F32, 1, 2, nan_row};
        struct bt_qweight q;
        bt_error_clear(&err);
        cr_expect_eq(bt_quantise_rtn(&arena, &dense, FORMATS[f], false, NULL, "layer 3", &q, &err),
                     BT_ERR_INPUT);
        cr_expect_not_null(strstr(err.msg, "layer 3: weight [0, 1] is not finite"), "%s", err.msg);
    }
    bt_arena_fini(&arena);
}

Test(rtn, clipping_never_loses_more)
{
    struct problem p;
    problem_init(&p, 3, 1);
    double plain;
    double clipped;
    struct bt_qweight q;
    cr_assert_eq(
        bt_quantise_rtn(&p.arena, &p.dense, BT_WEIGHT_INT4_G64, false, NULL, "w", &q, &err), BT_OK);
    cr_assert_eq(bt_quant_output_error(&p.dense, &q, &p.stats, &plain, &err), BT_OK);
    cr_assert_eq(bt_quantise_rtn(&p.arena, &p.dense, BT_WEIGHT_INT4_G64, true, NULL, "w", &q, &err),
                 BT_OK);
    cr_assert_eq(bt_quant_output_error(&p.dense, &q, &p.stats, &clipped, &err), BT_OK);
    cr_expect_lt(clipped, plain, "%g against %g", clipped, plain);
    problem_fini(&p);
}

Test(gptq, loses_less_of_the_output_than_rounding_in_every_order)
{
    static const enum bt_act_order orders[] = {BT_ACT_ORDER_STATIC, BT_ACT_ORDER_NONE,
                                               BT_ACT_ORDER_GROUP};
    static const enum bt_weight_format formats[] = {BT_WEIGHT_INT4_G128, BT_WEIGHT_INT4_G64,
                                                    BT_WEIGHT_INT4_G32};
    struct problem p;
    problem_init(&p, 4, 6);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct bt_qweight q;
        double rtn;
        cr_assert_eq(bt_quantise_rtn(&p.arena, &p.dense, formats[f], false, NULL, "w", &q, &err),
                     BT_OK);
        cr_assert_eq(bt_quant_output_error(&p.dense, &q, &p.stats, &rtn, &err), BT_OK);
        for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
            struct bt_quant_scheme s = {
                .weights = formats[f], .method = BT_METHOD_GPTQ, .act_order = orders[o]};
            double gptq;
            cr_assert_eq(bt_quantise_gptq(&p.arena, &p.dense, &p.stats, &s, "w", &q, &err), BT_OK,
                         "%s", err.msg);
            cr_assert_eq(bt_quant_output_error(&p.dense, &q, &p.stats, &gptq, &err), BT_OK);
            cr_expect_lt(gptq, 0.5 * rtn, "%s, order %zu: %g against %g",
                         bt_weight_format_name(formats[f]), o, gptq, rtn);
            double clipped;
            s.clip = true;
            cr_assert_eq(bt_quantise_gptq(&p.arena, &p.dense, &p.stats, &s, "w", &q, &err), BT_OK);
            cr_assert_eq(bt_quant_output_error(&p.dense, &q, &p.stats, &clipped, &err), BT_OK);
            cr_expect_lt(clipped, gptq, "order %zu: %g against %g", o, clipped, gptq);
            cr_expect_eq(q.perm != NULL, orders[o] == BT_ACT_ORDER_GROUP);
        }
    }
    problem_fini(&p);
}

/* With inputs that are not correlated there is nothing to make up for: GPTQ rounds to nearest. */
Test(gptq, equals_rounding_on_independent_inputs)
{
    struct problem p;
    struct bt_qweight a;
    struct bt_qweight b;
    struct bt_quant_scheme s = {.weights = BT_WEIGHT_INT4_G64, .method = BT_METHOD_GPTQ};
    problem_init(&p, 5, 1);
    for (size_t i = 0; i < K; i++) {
        for (size_t j = 0; j <= i; j++) {
            p.stats.xtx[i * K + j] = i == j ? 1.0 + (double)i : 0.0;
        }
    }
    cr_assert_eq(bt_quantise_gptq(&p.arena, &p.dense, &p.stats, &s, "w", &a, &err), BT_OK);
    cr_assert_eq(bt_quantise_rtn(&p.arena, &p.dense, s.weights, false, NULL, "w", &b, &err), BT_OK);
    cr_expect_arr_eq(a.q, b.q, N * bt_qweight_row_bytes(&a));
    problem_fini(&p);
}

Test(gptq, survives_inputs_that_were_never_seen_or_are_copies)
{
    struct problem p;
    struct bt_quant_scheme s = {.weights = BT_WEIGHT_INT4_G64, .method = BT_METHOD_GPTQ};
    struct bt_qweight q;
    float row[K];
    problem_init(&p, 6, 1);
    bt_calib_fini(&p.stats);
    cr_assert_eq(bt_calib_init(&p.stats, K, true, &err), BT_OK);
    for (int t = 0; t < T; t++) {
        for (int k = 0; k < K; k++) { /* rank 1, and a quarter of the inputs silent */
            p.x[t * K + k] = k % 4 == 0 ? 0.0f : p.x[t * K];
        }
    }
    cr_assert_eq(bt_calib_add(&p.stats, p.x, T, 0, &err), BT_OK);
    cr_assert_eq(bt_quantise_gptq(&p.arena, &p.dense, &p.stats, &s, "w", &q, &err), BT_OK, "%s",
                 err.msg);
    for (int n = 0; n < N; n++) {
        bt_qweight_row_f32(&q, n, row);
        for (int k = 0; k < K; k++) {
            cr_assert(isfinite(row[k]));
        }
    }
    p.w[7] = INFINITY;
    cr_expect_eq(bt_quantise_gptq(&p.arena, &p.dense, &p.stats, &s, "w", &q, &err), BT_ERR_INPUT);
    problem_fini(&p);
}

Test(awq, scales_up_what_matters_and_loses_less)
{
    struct problem p;
    struct bt_qweight q;
    float scale[K];
    double plain;
    double scaled;
    problem_init(&p, 7, 30);
    const struct bt_tensor *matrices[] = {&p.dense};
    cr_assert_eq(bt_awq_search(matrices, 1, &p.stats, BT_WEIGHT_INT4_G64, NULL, scale, &err),
                 BT_OK);
    cr_expect_gt(scale[5], 2 * scale[6]);
    cr_assert_eq(
        bt_quantise_rtn(&p.arena, &p.dense, BT_WEIGHT_INT4_G64, false, NULL, "w", &q, &err), BT_OK);
    cr_assert_eq(bt_quant_output_error(&p.dense, &q, &p.stats, &plain, &err), BT_OK);
    /* The scaled problem: w s on inputs x / s. */
    for (int i = 0; i < N * K; i++) {
        p.w[i] *= scale[i % K];
    }
    for (int i = 0; i < K; i++) {
        for (int j = 0; j <= i; j++) {
            p.stats.xtx[i * K + j] /= (double)scale[i] * (double)scale[j];
        }
    }
    cr_assert_eq(
        bt_quantise_rtn(&p.arena, &p.dense, BT_WEIGHT_INT4_G64, false, NULL, "w", &q, &err), BT_OK);
    cr_assert_eq(bt_quant_output_error(&p.dense, &q, &p.stats, &scaled, &err), BT_OK);
    cr_expect_lt(scaled, 0.7 * plain, "%g against %g", scaled, plain);
    problem_fini(&p);
}

Test(awq, tied_inputs_share_a_scale)
{
    struct problem p;
    float scale[K];
    int32_t tie_of[K];
    problem_init(&p, 8, 30);
    const struct bt_tensor *matrices[] = {&p.dense};
    for (int k = 0; k < K; k++) {
        tie_of[k] = k % (K / 2);
    }
    cr_assert_eq(bt_awq_search(matrices, 1, &p.stats, BT_WEIGHT_INT4_G64, tie_of, scale, &err),
                 BT_OK);
    for (int k = 0; k < K / 2; k++) {
        cr_expect_eq(scale[k], scale[k + K / 2]);
    }
    problem_fini(&p);
}

/* ---- whole models ---- */

/* Statistics of the toy's points made up once: large where k is a multiple of 11. */
struct made_up {
    struct bt_calib_stats stats[BT_CALIB_POINTS];
    int32_t asked;
};

static void made_up_init(struct made_up *u)
{
    static const int32_t widths[BT_CALIB_POINTS] = {64, 64, 64, 96, 64};
    struct bt_rng rng;
    memset(u, 0, sizeof *u);
    for (int p = 0; p < BT_CALIB_POINTS; p++) {
        bt_rng_init(&rng, 9, "made up", (uint64_t)p);
        cr_assert_eq(bt_calib_init(&u->stats[p], widths[p], true, &err), BT_OK);
        static float x[300 * 96];
        for (int i = 0; i < 300 * widths[p]; i++) {
            x[i] = (float)(bt_rng_normal(&rng) * (i % widths[p] % 11 == 0 ? 20 : 1));
        }
        cr_assert_eq(bt_calib_add(&u->stats[p], x, 300, 0, &err), BT_OK);
    }
}

static void made_up_fini(struct made_up *u)
{
    for (int p = 0; p < BT_CALIB_POINTS; p++) {
        bt_calib_fini(&u->stats[p]);
    }
}

static enum bt_code made_up_get(void *user, const struct bt_model *m, int32_t layer,
                                enum bt_calib_point point, bool with_xtx,
                                const struct bt_calib_stats **out, struct bt_error *e)
{
    struct made_up *u = user;
    (void)m;
    (void)with_xtx;
    (void)e;
    cr_assert_eq(layer, point == BT_CALIB_HEAD_IN ? 1 : 0);
    cr_assert_eq((int)point, u->asked++, "points are asked for in the order of computation");
    *out = &u->stats[point];
    return BT_OK;
}

static void load_toy(struct toy *t, struct bt_model *m)
{
    toy_init(t, 4);
    toy_add_frame(t);
    toy_add_dense(t);
    cr_assert_eq(bt_model_load(m, toy_write(t, ""), NULL, &err), BT_OK, "%s", err.msg);
}

static const char *const SCHEMES[] = {
    "int8",          "int8-tensor",  "int4-rtn",      "int4-rtn-g32", "int4-gptq-g64",
    "int4-gptq-g32", "int4-awq-g32", "w8a8",          "w8a8-static",  "int4-tensor",
    "w4a8-rtn-g32",  "w4a8-awq-g64", "w4a8-gptq-g32",
};

/* In memory, in the file and read back: the same numbers and the same activation scales. */
Test(quantise, every_scheme_writes_what_it_made)
{
    for (size_t i = 0; i < sizeof SCHEMES / sizeof *SCHEMES; i++) {
        for (int head = 0; head < 2; head++) {
            struct bt_quant_scheme s;
            struct toy t;
            struct bt_model m;
            struct bt_model again;
            struct made_up u;
            struct bt_calib_source source = {made_up_get, &u};
            char out[512];
            bt_error_clear(&err);
            cr_assert_eq(bt_quant_scheme_parse(SCHEMES[i], &s, &err), BT_OK, "%s", err.msg);
            s.lm_head = head == 1;
            s.norms = head == 1;
            made_up_init(&u);
            load_toy(&t, &m);
            cr_assert_eq(bt_model_quantise(&m, &s, &source, &err), BT_OK, "%s: %s", SCHEMES[i],
                         err.msg);
            snprintf(out, sizeof out, "%s/out", bt_test_dir());
            cr_assert_eq(bt_model_write(&m, out, &err), BT_OK, "%s: %s", SCHEMES[i], err.msg);
            cr_assert_eq(bt_model_load(&again, out, NULL, &err), BT_OK, "%s: %s", SCHEMES[i],
                         err.msg);
            for (int id = 0; id <= BT_LINEARS; id++) {
                const struct bt_linear *a = id == BT_LINEARS ? &m.lm_head : &m.layers[0].linear[id];
                const struct bt_linear *b =
                    id == BT_LINEARS ? &again.lm_head : &again.layers[0].linear[id];
                cr_expect_eq(a->quantised, id < BT_LINEARS || head == 1);
                cr_expect(a->act == b->act && a->act_scale == b->act_scale, "%s", SCHEMES[i]);
                for (int32_t n = 0; n < a->n_out; n++) {
                    float ra[96];
                    float rb[96];
                    bt_linear_row_f32(a, n, ra);
                    bt_linear_row_f32(b, n, rb);
                    cr_assert_arr_eq(ra, rb, (size_t)a->n_in * sizeof *ra, "%s", SCHEMES[i]);
                }
            }
            cr_expect_eq(again.config.arch.checkpoint, s.weights, "%s", SCHEMES[i]);
            cr_expect_eq(again.config.quant.activations, s.activations, "%s", SCHEMES[i]);
            if (s.activations == BT_ACT_INT8_STATIC) {
                cr_expect_eq(again.cover.n_tokens, 300);
                cr_expect_eq(again.cover.max_tokens, 300);
                int64_t n_clipped;
                cr_expect_eq(again.layers[0].linear[BT_LINEAR_DOWN].act_scale,
                             bt_calib_static_scale(&u.stats[BT_CALIB_DOWN_IN], &n_clipped));
                cr_expect_eq(again.cover.clipped_fraction, m.cover.clipped_fraction);
            }
            bt_model_fini(&m);
            bt_model_fini(&again);
            made_up_fini(&u);
            toy_fini(&t);
        }
    }
}

/* AWQ moves scales between what follows one another: products that matter must not change. Without
 * rounding (the weights are far finer than int4's grid here: compared before quantising is not
 * possible, so the folded factors are recovered from norm and matrix) the norm times any column is
 * what it was. */
Test(quantise, awq_folding_leaves_the_function_alone)
{
    struct bt_quant_scheme s;
    struct toy t;
    struct bt_model before;
    struct bt_model after;
    struct made_up u;
    struct bt_calib_source source = {made_up_get, &u};
    double moved = 0;
    cr_assert_eq(bt_quant_scheme_parse("int4-awq-g32", &s, &err), BT_OK);
    s.clip = false;
    made_up_init(&u);
    load_toy(&t, &before);
    cr_assert_eq(bt_model_load(&after, before.dir, NULL, &err), BT_OK);
    cr_assert_eq(bt_model_quantise(&after, &s, &source, &err), BT_OK, "%s", err.msg);
    const float *norm0 = before.layers[0].attn_norm.p;
    const float *norm1 = after.layers[0].attn_norm.p;
    for (int32_t n = 0; n < 64; n++) {
        float w0[64];
        float w1[64];
        float greatest[2] = {0, 0};
        bt_linear_row_f32(&before.layers[0].linear[BT_LINEAR_Q], n, w0);
        bt_linear_row_f32(&after.layers[0].linear[BT_LINEAR_Q], n, w1);
        for (int k = 0; k < 64; k++) {
            float scaled = w0[k] * norm0[k] / norm1[k];
            greatest[k / 32] = fmaxf(greatest[k / 32], fabsf(scaled));
        }
        for (int k = 0; k < 64; k++) {
            /* The quantised column is within half a step of the folded one. */
            double folded = (double)(w0[k] * norm0[k] / norm1[k]);
            double step = (double)greatest[k / 32] / 7;
            cr_expect_lt(fabs((double)w1[k] - folded), 0.505 * step, "row %d, column %d", n, k);
            moved = fmax(moved, fabs(log((double)(norm0[k] / norm1[k]))));
        }
    }
    cr_expect_gt(moved, 0.3, "the search moved nothing");
    bt_model_fini(&before);
    bt_model_fini(&after);
    made_up_fini(&u);
    toy_fini(&t);
}

Test(quantise, embeddings_and_norms_only_when_asked)
{
    struct toy t;
    struct bt_model m;
    struct bt_quant_scheme s = {.embeddings = true, .norms = true};
    load_toy(&t, &m);
    cr_assert_eq(bt_model_quantise(&m, &s, NULL, &err), BT_OK, "%s", err.msg);
    cr_expect(m.embed.quantised && m.embed.q.bits == 8 && m.embed.q.n_groups == 1);
    cr_expect(!m.layers[0].linear[BT_LINEAR_Q].quantised && !m.lm_head.quantised);
    float m_abs = 0;
    const float *norm = m.final_norm.p;
    for (int k = 0; k < 64; k++) {
        m_abs = fmaxf(m_abs, fabsf(norm[k]));
    }
    float scale = bt_quant_scale(m_abs, 127);
    for (int k = 0; k < 64; k++) {
        cr_expect_float_eq(norm[k] / scale, rintf(norm[k] / scale), 1e-3);
    }
    cr_expect_eq(bt_model_write(&m, bt_test_path(bt_test_dir(), "out"), &err), BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "quantised embeddings cannot be written"), "%s", err.msg);
    bt_model_fini(&m);
    toy_fini(&t);
}

Test(quantise, frees_what_it_replaced)
{
    struct bt_model m;
    struct bt_quant_scheme s;
    cr_assert_eq(bt_quant_scheme_parse("int4-rtn-g64", &s, &err), BT_OK);
    cr_assert_eq(bt_model_load(&m, bt_test_model("berth-1m"), NULL, &err), BT_OK);
    cr_assert_eq(bt_model_quantise(&m, &s, NULL, &err), BT_OK, "%s", err.msg);
    double bytes = (double)bt_model_weight_bytes(&m);
    cr_expect_lt(fabs((double)m.arena.used_bytes / bytes - 1), 0.01);
    bt_model_fini(&m);
}

Test(quantise, refuses_what_does_not_fit)
{
    static const struct {
        const char *name;
        struct bt_quant_scheme s;
        bool twice;
        const char *message;
    } rows[] = {
        {"needs calibration",
         {.weights = BT_WEIGHT_INT4_G32, .method = BT_METHOD_GPTQ},
         false,
         "needs calibration text"},
        {"static needs calibration",
         {.weights = BT_WEIGHT_INT8, .activations = BT_ACT_INT8_STATIC},
         false,
         "needs calibration text"},
        {"GPTQ of int8",
         {.weights = BT_WEIGHT_INT8, .method = BT_METHOD_GPTQ},
         false,
         "GPTQ and AWQ make int4 groups only"},
        {"to bf16", {.weights = BT_WEIGHT_BF16}, false, "expected an int8 or int4 format"},
        {"int8 activations alone",
         {.activations = BT_ACT_INT8_DYNAMIC},
         false,
         "need a weight format"},
        {"twice", {.weights = BT_WEIGHT_INT8}, true, "is quantised already (int8)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct toy t;
        struct bt_model m;
        load_toy(&t, &m);
        bt_error_clear(&err);
        if (rows[i].twice) {
            cr_assert_eq(bt_model_quantise(&m, &rows[i].s, NULL, &err), BT_OK);
        }
        cr_expect_eq(bt_model_quantise(&m, &rows[i].s, NULL, &err), BT_ERR_ARG, "%s", rows[i].name);
        cr_expect_not_null(strstr(err.msg, rows[i].message), "%s: %s", rows[i].name, err.msg);
        bt_model_fini(&m);
        toy_fini(&t);
    }
}

Test(quantise, scheme_names_are_exact)
{
    static const char *const bad[] = {"",         "int4",           "int4-gptq-", "int4-gptq-g16",
                                      "int8-g64", "int4-gptq-g64x", "w8a8-g64",   "INT8"};
    struct bt_quant_scheme s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bt_error_clear(&err);
        cr_expect_eq(bt_quant_scheme_parse(bad[i], &s, &err), BT_ERR_ARG, "%s", bad[i]);
        cr_expect_not_null(strstr(err.msg, "expected int8"));
    }
    cr_expect_eq(bt_quant_scheme_parse("int4-gptq", &s, &err), BT_OK);
    cr_expect(s.weights == BT_WEIGHT_INT4_G128 && s.method == BT_METHOD_GPTQ && s.clip);
    cr_expect_eq(bt_quant_scheme_parse("int4-rtn-g64", &s, &err), BT_OK);
    cr_expect(s.weights == BT_WEIGHT_INT4_G64 && s.method == BT_METHOD_RTN && !s.clip);
    cr_expect_eq(bt_quant_scheme_parse("int4-awq-g32", &s, &err), BT_OK);
    cr_expect(s.weights == BT_WEIGHT_INT4_G32 && s.method == BT_METHOD_AWQ && s.clip);
}

/* Summed squares that an int8 scale loses on values, by rounding each. */
static double squares_lost(const float *x, int32_t n, float scale)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double r = fmin(127, fmax(-127, rint((double)x[i] / (double)scale)));
        sum += pow((double)x[i] - r * (double)scale, 2);
    }
    return sum;
}

/* The scale loses about as little as the best of a fine search, with outliers and without. */
Test(quantise, static_scales_weigh_rounding_against_what_is_cut)
{
    enum { TOKENS = 200, WIDTH = 32, VALUES = TOKENS * WIDTH };
    static float x[VALUES];
    static const float outliers[] = {0.0f, 30.0f, 3000.0f};
    for (size_t o = 0; o < sizeof outliers / sizeof *outliers; o++) {
        err = (struct bt_error){0};
        struct bt_calib_stats stats;
        cr_assert_eq(bt_calib_init(&stats, WIDTH, false, &err), BT_OK);
        for (int32_t i = 0; i < VALUES; i++) {
            double sum = 0;
            for (int32_t j = 0; j < 12; j++) {
                sum += bt_rng_at(o + 1, (uint64_t)(12 * i + j)) - 0.5;
            }
            x[i] = (float)sum; /* near to normal */
        }
        x[7] += outliers[o];
        cr_assert_eq(bt_calib_add(&stats, x, TOKENS, 0, &err), BT_OK);
        int64_t n_clipped = -1, beyond = 0;
        float scale = bt_calib_static_scale(&stats, &n_clipped);
        double best = INFINITY;
        for (int32_t i = 0; i <= 400; i++) {
            best = fmin(best,
                        squares_lost(x, VALUES, stats.max_abs / 127.0f * exp2f((float)-i / 32.0f)));
        }
        double lost = squares_lost(x, VALUES, scale);
        cr_expect_leq(lost, 1.08 * best, "outlier %g: %g, best %g", (double)outliers[o], lost,
                      best);
        for (int32_t i = 0; i < VALUES; i++) {
            beyond += fabsf(x[i]) > 127.5f * scale;
        }
        cr_expect_leq(llabs((long long)(n_clipped - beyond)), VALUES / 500, "%lld of %lld",
                      (long long)n_clipped, (long long)beyond);
        bt_calib_fini(&stats);
    }
}
