/* The steps of a run in classes, and what their time is worth. */
#include "sim/cost/roofline.h"
#include "sim/cost/step_mix.h"
#include "sim/cost/step_trust.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <math.h>

Test(step_mix, classes_hold_the_means_of_their_steps)
{
    struct bt_step_mix mix = {.classes = {{0}}};
    struct bt_batch a = fixture_decodes(33, 1000), b = fixture_decodes(63, 2000),
                    c = fixture_decodes(64, 500);
    bt_step_mix_add(&mix, &a);
    bt_step_mix_add(&mix, &b);
    bt_step_mix_add(&mix, &c);
    c.n_prefill = 1;
    c.n_prefill_tokens = 512;
    c.prefill_pairs = 512 * 513 / 2;
    c.prefill_ctx = 512;
    bt_step_mix_add(&mix, &c);
    int32_t n_classes = 0;
    int64_t n_steps = 0;
    for (int32_t i = 0; i < BT_STEP_MIX_CLASSES; i++) {
        const struct bt_step_sum *s = &mix.classes[i];
        n_classes += s->n_steps > 0;
        n_steps += s->n_steps;
        if (s->n_steps == 2) {
            struct bt_batch mean = bt_step_mix_mean(s);
            cr_expect_eq(mean.n_decode, 48);
            cr_expect_eq(mean.decode_ctx, (33 * 1000 + 63 * 2000 + 1) / 2);
            cr_expect_eq(mean.n_prefill_tokens, 0);
        }
    }
    cr_expect_eq(n_classes, 3);
    cr_expect_eq(n_steps, 4);
}

/* Attention grows with context: a run of long contexts rests on it more than one of short ones. */
Test(step_mix, the_bound_is_of_the_steps_that_were_served)
{
    struct bt_arch arch = fixture_8b();
    struct bt_gpu gpu = fixture_h200();
    struct bt_step_opts o = {.target = {.arch = &arch}, .gpu = &gpu, .fused = true};
    struct bt_cost c;
    cr_assert_eq(bt_roofline_create(&o, &c, NULL), BT_OK);
    struct bt_op_origin origins[BT_STEP_OPS];
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        origins[op] =
            (struct bt_op_origin){.level = BT_TRUST_IMPORTED, .log_error = log(1.02), .text = "x"};
    }
    origins[BT_STEP_ATTN_DECODE].log_error = log(2);
    struct bt_step_mix none = {.classes = {{0}}}, brief = none, lengthy = none, both = none;
    cr_expect_eq(bt_step_mix_error(&c, &none, origins, NULL), -1);
    struct bt_batch near = fixture_decodes(16, 64), far = fixture_decodes(16, 32768);
    for (int32_t i = 0; i < 10; i++) {
        bt_step_mix_add(&brief, &near);
        bt_step_mix_add(&lengthy, &far);
        bt_step_mix_add(&both, i % 2 == 0 ? &near : &far);
    }
    double small = bt_step_mix_error(&c, &brief, origins, NULL);
    double large = bt_step_mix_error(&c, &lengthy, origins, NULL);
    double middle = bt_step_mix_error(&c, &both, origins, NULL);
    cr_expect_lt(small, 0.2);
    cr_expect_gt(large, 0.5);
    cr_expect_leq(large, 1);
    cr_expect(middle > small && middle < large, "%g, %g, %g", small, middle, large);
    bt_cost_fini(&c);
}
