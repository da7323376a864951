/* Steps over a law that knows decode attention as a curve, chunks and decodes in one kernel, and
 * what other stacks add: overhead, a scale, kernels of their own. */
#include "engine/core/rng.h"
#include "sim/cost/step.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <math.h>

/* A law of round figures. */
struct simple {
    bool has_curve;
    double skew;
};

static const double GEMM_PS = 1e6, POINT_PS = 1e5, FIXED_PS = 2e6;

static double gemm_ps(const void *self, const struct bt_law_gemm *g)
{
    (void)self;
    return GEMM_PS + (double)g->m;
}

static double pointwise_ps(const void *self, enum bt_step_op op, int64_t m, int64_t width,
                           int64_t bytes)
{
    (void)self, (void)op, (void)width, (void)bytes;
    return POINT_PS + (double)m;
}

/* A second query token of every sequence takes half as much again. */
static double verify_share(const struct bt_law_attention *a)
{
    return 1 + 0.5 * (double)(a->tokens - a->n_seqs) / (double)a->n_seqs;
}

static void decode_ps(const void *self, const struct bt_law_attention *a, double *fixed_ps,
                      double *per_ctx_ps)
{
    (void)self;
    *fixed_ps = FIXED_PS;
    *per_ctx_ps = 100 * verify_share(a);
}

/* Time of one sequence's context, falling in slope. */
static double curve_ps(double seqs, double context)
{
    return FIXED_PS + seqs * 3000 * sqrt(context);
}

static bool decode_curve(const void *self, const struct bt_law_attention *a,
                         struct bt_law_curve *out)
{
    const struct simple *s = self;
    if (!s->has_curve) {
        return false;
    }
    cr_expect_eq(a->tokens, a->n_seqs);
    out->n = 6;
    for (int32_t i = 0; i < out->n; i++) {
        int64_t context = (int64_t)1 << (2 * i); /* 1 .. 1,024 */
        out->ctx[i] = context * a->n_seqs;
        out->ps[i] = curve_ps((double)a->n_seqs, (double)context);
    }
    out->skew = s->skew;
    return true;
}

static double prefill_ps(const void *self, const struct bt_law_attention *a)
{
    (void)self;
    return 5e6 + 10 * (double)a->pairs;
}

static double mixed_ps(const void *self, const struct bt_law_attention *p,
                       const struct bt_law_attention *d)
{
    (void)self;
    return 7e6 + 20 * (double)p->pairs + 1000 * (double)d->ctx;
}

static double collective_ps(const void *self, enum bt_step_op op, int64_t bytes, int32_t ranks)
{
    (void)self, (void)op, (void)bytes, (void)ranks;
    return 1e6;
}

static void destroy(void *self)
{
    (void)self;
}

#define SIMPLE_OPS                                                                                 \
    .name = "simple", .gemm_ps = gemm_ps, .pointwise_ps = pointwise_ps, .decode_ps = decode_ps,    \
    .prefill_ps = prefill_ps, .decode_curve = decode_curve, .collective_ps = collective_ps,        \
    .destroy = destroy

static const struct bt_law_ops split_ops = {SIMPLE_OPS};
static const struct bt_law_ops mixed_ops = {SIMPLE_OPS, .mixed_ps = mixed_ps};

/* A model, a card, and options of a step of them. */
struct bench {
    struct bt_arch arch;
    struct bt_gpu gpu;
    struct bt_step_opts opts;
};

static void start(struct bench *t)
{
    t->arch = fixture_8b();
    t->gpu = fixture_h200();
    t->opts = (struct bt_step_opts){.target = {.arch = &t->arch},
                                    .gpu = &t->gpu,
                                    .fused = true,
                                    .max_seqs = 64,
                                    .max_tokens = 128,
                                    .graph_node_ps = -1,
                                    .launch_ps = -1,
                                    .host_base_ns = -1,
                                    .host_per_seq_ns = -1};
}

static struct bt_cost create(const struct bench *t, const struct bt_law_ops *ops,
                             struct simple *law)
{
    struct bt_cost cost;
    struct bt_error err = {0};
    cr_assert_eq(
        bt_step_cost_create(&t->opts, (struct bt_law){ops, law}, (struct bt_law){0}, &cost, &err),
        BT_OK, "%s", err.msg);
    return cost;
}

static double row_ps(const struct bt_cost *c, const struct bt_batch *b, enum bt_step_op op)
{
    struct bt_step_row rows[BT_STEP_ROWS_MAX];
    int32_t n = bt_step_cost_explain(c, b, rows);
    for (int32_t i = 0; i < n; i++) {
        if (rows[i].op == op) {
            return rows[i].time_ps;
        }
    }
    return 0;
}

static double step_ps(const struct bt_cost *c, const struct bt_batch *b)
{
    struct bt_cost_parts p;
    c->ops->step(c->self, b, &p);
    return (double)p.time_ps;
}

Test(step_curve, attention_is_straight_between_knots_and_goes_on_beyond_them)
{
    struct bench t;
    start(&t);
    struct simple law = {.has_curve = true};
    struct bt_cost c = create(&t, &split_ops, &law);
    static const double at[] = {1, 4, 10, 64, 1024, 3000};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        for (int32_t n = 1; n <= 100; n += 33) { /* past the table too */
            double low = 1;
            while (low * 4 <= at[i] && low < 256) {
                low *= 4;
            }
            double a = curve_ps(n, low), b = curve_ps(n, low * 4);
            double want = t.arch.n_layers * (a + (b - a) * (at[i] - low) / (low * 3));
            struct bt_batch batch = fixture_decodes(n, (int64_t)at[i]);
            double got = row_ps(&c, &batch, BT_STEP_ATTN_DECODE);
            /* A slope is rounded to a ps a token of context. */
            cr_expect_float_eq(got, want, 2 + n * at[i], "%d at %g: %g against %g", n, at[i], got,
                               want);
        }
    }
    bt_cost_fini(&c);
}

Test(step_curve, a_law_without_a_curve_is_affine)
{
    struct bench t;
    start(&t);
    struct simple law = {.has_curve = false};
    struct bt_cost c = create(&t, &split_ops, &law);
    struct bt_batch b = fixture_decodes(8, 1000);
    b.decode_ctx_long = 4000;
    cr_expect_float_eq(row_ps(&c, &b, BT_STEP_ATTN_DECODE),
                       t.arch.n_layers * (FIXED_PS + 100 * 8000.0), 1);
    bt_cost_fini(&c);
}

Test(step_curve, uneven_batches_take_their_share_of_the_longest)
{
    struct bench t;
    start(&t);
    struct simple law = {.has_curve = true, .skew = 0.25};
    struct bt_cost c = create(&t, &split_ops, &law);
    struct bt_batch even = fixture_decodes(16, 64), uneven = even;
    struct bt_batch longest = fixture_decodes(16, 1024);
    uneven.decode_ctx_long = 1024;
    double low = row_ps(&c, &even, BT_STEP_ATTN_DECODE);
    double high = row_ps(&c, &longest, BT_STEP_ATTN_DECODE);
    cr_expect_float_eq(row_ps(&c, &uneven, BT_STEP_ATTN_DECODE), low + 0.25 * (high - low),
                       1e-3 * low);
    bt_cost_fini(&c);
}

Test(step_curve, span_is_exactly_the_sum_of_its_steps)
{
    struct bt_rng rng;
    bt_rng_init(&rng, 5, "curve span", 0);
    for (int32_t variant = 0; variant < 4; variant++) {
        struct bench t;
        start(&t);
        if (variant % 2 == 1) {
            t.arch.sliding_window = 100;
            bt_arch_slide_layers(&t.arch, 0, t.arch.n_layers / 2);
        }
        t.opts.step_overhead_ns = 1234;
        struct simple law = {.has_curve = true, .skew = variant >= 2 ? 0.3 : 0};
        struct bt_cost c = create(&t, &split_ops, &law);
        for (int32_t round = 0; round < 200; round++) {
            int32_t n = 1 + (int32_t)bt_rng_below(&rng, 100);
            struct bt_batch b = fixture_decodes(n, 0);
            b.n_16bit = round % 2 == 0 ? 0 : (int32_t)bt_rng_below(&rng, (uint64_t)n + 1);
            b.ctx_16bit = b.n_16bit == 0 ? 0 : b.n_16bit + (int64_t)bt_rng_below(&rng, 20000);
            int64_t pool = b.n_16bit == n ? 0 : n + (int64_t)bt_rng_below(&rng, 60000);
            b.decode_ctx = b.ctx_16bit + pool;
            b.decode_ctx_long = b.decode_ctx / n + (int64_t)bt_rng_below(&rng, 1000);
            int32_t steps = 1 + (int32_t)bt_rng_below(&rng, 1500);
            struct bt_cost_parts span;
            c.ops->span(c.self, &b, steps, &span);
            int64_t sum = 0;
            for (int32_t i = 0; i < steps; i++) {
                sum += (int64_t)step_ps(&c, &b);
                b.decode_ctx += n;
                b.decode_ctx_long++;
                b.ctx_16bit += b.n_16bit;
            }
            cr_assert_eq(span.time_ps, sum, "variant %d round %d: %lld against %lld", variant,
                         round, (long long)span.time_ps, (long long)sum);
        }
        bt_cost_fini(&c);
    }
}

Test(step_curve, verification_takes_as_much_more_as_the_law_says)
{
    struct bench t;
    start(&t);
    struct simple law = {.has_curve = true};
    struct bt_cost c = create(&t, &split_ops, &law);
    for (int32_t n = 8; n <= 80; n += 72) { /* in the table and past it */
        struct bt_batch plain = fixture_decodes(n, 256), verify = plain, least = plain;
        verify.n_decode_tokens = 3 * n;
        least.decode_ctx = n;
        double base = row_ps(&c, &least, BT_STEP_ATTN_DECODE);
        double ps = row_ps(&c, &plain, BT_STEP_ATTN_DECODE);
        cr_expect_float_eq(row_ps(&c, &verify, BT_STEP_ATTN_DECODE), base + 2 * (ps - base), 2);
    }
    bt_cost_fini(&c);
}

Test(step_curve, chunks_and_decodes_share_a_kernel)
{
    struct bench t;
    start(&t);
    struct simple law = {.has_curve = true};
    struct bt_cost c = create(&t, &mixed_ops, &law), split = create(&t, &split_ops, &law);
    struct bt_batch b = fixture_decodes(16, 500);
    b.n_prefill = 1;
    b.n_prefill_tokens = 100;
    b.prefill_pairs = 5050;
    b.prefill_ctx = 100;
    double want = t.arch.n_layers * (7e6 + 20 * 5050.0 + 1000 * 8000.0);
    cr_expect_float_eq(row_ps(&c, &b, BT_STEP_ATTN_PREFILL), want, 1);
    cr_expect_eq(row_ps(&c, &b, BT_STEP_ATTN_DECODE), 0);
    double apart =
        row_ps(&split, &b, BT_STEP_ATTN_PREFILL) + row_ps(&split, &b, BT_STEP_ATTN_DECODE);
    cr_expect_float_eq(step_ps(&c, &b) - step_ps(&split, &b), want - apart, 2);
    /* Decodes alone have their curve. */
    struct bt_batch decodes = fixture_decodes(16, 500);
    cr_expect_eq(step_ps(&c, &decodes), step_ps(&split, &decodes));
    bt_cost_fini(&c);
    bt_cost_fini(&split);
}

Test(step_curve, scale_counts_for_operations_and_overhead_for_steps)
{
    struct bench t;
    start(&t);
    struct simple law = {.has_curve = true};
    struct bt_cost plain = create(&t, &mixed_ops, &law);
    t.opts.time_scale = 1.25;
    t.opts.step_overhead_ns = 700;
    struct bt_cost slow = create(&t, &mixed_ops, &law);
    struct bt_batch b[2] = {fixture_decodes(16, 500), fixture_decodes(16, 500)};
    b[1].n_prefill = 2;
    b[1].n_prefill_tokens = 100;
    b[1].prefill_pairs = 3000;
    b[1].prefill_ctx = 100;
    for (int32_t i = 0; i < 2; i++) {
        cr_expect_float_eq(step_ps(&slow, &b[i]), 1.25 * step_ps(&plain, &b[i]) + 700e3,
                           1e-4 * step_ps(&plain, &b[i]));
    }
    bt_cost_fini(&plain);
    bt_cost_fini(&slow);
}

Test(step_curve, other_stacks_have_kernels_of_their_own)
{
    struct bench t;
    start(&t);
    struct simple law = {.has_curve = true};
    struct bt_cost fused = create(&t, &split_ops, &law);
    t.opts.separate = true;
    struct bt_cost separate = create(&t, &split_ops, &law);
    struct bt_batch b = fixture_decodes(4, 100);
    cr_expect_eq(row_ps(&fused, &b, BT_STEP_ROPE), 0);
    cr_expect_eq(row_ps(&fused, &b, BT_STEP_ACTIVATION), 0);
    cr_expect_float_eq(row_ps(&separate, &b, BT_STEP_ROPE), t.arch.n_layers * (POINT_PS + 4), 1);
    cr_expect_float_eq(row_ps(&separate, &b, BT_STEP_ACTIVATION), t.arch.n_layers * (POINT_PS + 4),
                       1);
    bt_cost_fini(&fused);
    bt_cost_fini(&separate);
}
