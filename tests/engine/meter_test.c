#include "engine/meter.h"

#include <criterion/criterion.h>

/* An executor that counts its ends. */
static int32_t n_destroyed;
static struct bt_executor_opts made_with;

static void destroy(void *self)
{
    (void)self;
    n_destroyed++;
}

static const struct bt_executor_ops ops = {.name = "none", .destroy = destroy};

static enum bt_code create(const struct bt_executor_opts *o, struct bt_executor *out,
                           struct bt_error *err)
{
    (void)err;
    made_with = *o;
    *out = (struct bt_executor){.ops = &ops, .self = &n_destroyed};
    return BT_OK;
}

static enum bt_code create_nothing(const struct bt_executor_opts *o, struct bt_executor *out,
                                   struct bt_error *err)
{
    (void)out;
    BT_FAIL(err, BT_ERR_NOMEM, o->n_blocks, "no room for %d blocks", o->n_blocks);
}

static struct bt_meter_opts opts_of(const struct bt_model *m)
{
    return (struct bt_meter_opts){
        .model = m, .max_seqs = 3, .max_ctx = 40, .max_kv_tokens = 64, .n_threads = 1};
}

struct own {
    struct bt_meter base;
    double more;
};

Test(meter, an_executors_meter_begins_with_what_all_meters_are)
{
    struct bt_model model = {.config = {.arch = {.vocab = 100}}};
    struct bt_meter_opts o = opts_of(&model);
    struct bt_meter *m = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_meter_create(sizeof(struct own), &o, create, &m, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(((struct own *)m)->more, 0);
    cr_expect_eq(made_with.block_tokens, BT_DEFAULT_BLOCK_TOKENS);
    cr_expect_eq(made_with.n_blocks, 64 / BT_DEFAULT_BLOCK_TOKENS + 3);
    cr_expect_eq(made_with.max_model_len, 40);
    cr_expect_eq(made_with.requests, &m->load.table);
    bt_meter_destroy(m);
    cr_expect_eq(n_destroyed, 1);
    bt_meter_destroy(NULL);
}

Test(meter, a_meter_without_executor_is_none)
{
    struct bt_model model = {.config = {.arch = {.vocab = 100}}};
    struct bt_meter_opts o = opts_of(&model);
    struct bt_meter *m = (struct bt_meter *)&o;
    struct bt_error err = {0};
    cr_expect_eq(bt_meter_create(sizeof *m, &o, create_nothing, &m, &err), BT_ERR_NOMEM);
    cr_expect_str_eq(err.msg, "no room for 7 blocks");
    cr_expect_null(m);
    cr_expect_eq(n_destroyed, 0);
}

/* Seven blocks of 16 slots. */
Test(meter, shapes_are_planned_within_sequences_context_and_blocks)
{
    struct bt_model model = {.config = {.arch = {.vocab = 100}}};
    struct bt_meter_opts o = opts_of(&model);
    struct bt_meter *m = NULL;
    cr_assert_eq(bt_meter_create(sizeof *m, &o, create, &m, NULL), BT_OK);
    static const struct {
        struct bt_step_shape shape;
        bool fits;
    } cases[] = {
        {{.n_seqs = 3, .ctx = 31, .n_tokens = 1}, true},  /* 6 blocks */
        {{.n_seqs = 3, .ctx = 32, .n_tokens = 1}, false}, /* 9 */
        {{.n_seqs = 4, .ctx = 0, .n_tokens = 1}, false},  /* sequences */
        {{.n_seqs = 1, .ctx = 0, .n_tokens = 40}, true},
        {{.n_seqs = 1, .ctx = 1, .n_tokens = 40}, false}, /* context */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct bt_step_shape *s = &cases[i].shape;
        cr_expect_eq(bt_meter_fits(m, s), cases[i].fits, "case %zu", i);
        if (!cases[i].fits) {
            continue;
        }
        struct bt_step_plan plan;
        bt_meter_plan(m, s, &plan);
        cr_expect_eq(plan.n_seqs, s->n_seqs);
        cr_expect_eq(plan.n_decode_seqs, s->n_tokens == 1 ? s->n_seqs : 0);
        cr_expect_eq(plan.n_prefill_tokens, s->n_tokens == 1 ? 0 : s->n_seqs * s->n_tokens);
        for (int32_t k = 0, next = 0; k < plan.n_seqs; k++) {
            const struct bt_plan_seq *seq = &plan.seqs[k];
            cr_expect_eq(seq->ctx, s->ctx);
            cr_expect_eq(seq->n_prompt, s->ctx + s->n_tokens);
            cr_expect_eq(seq->n_blocks, (seq->n_prompt + 15) / 16);
            for (int32_t b = 0; b < seq->n_blocks; b++) {
                cr_expect_eq(seq->blocks[b], next++, "blocks are nobody else's");
            }
        }
    }
    bt_meter_destroy(m);
}

Test(meter, medians_and_spreads)
{
    int64_t odd[] = {9, 1, 5, 3, 7}, even[] = {8, 2, 4, 6};
    double spread;
    cr_expect_eq(bt_meter_median(odd, 5, &spread), 5);
    cr_expect_eq(spread, 2);
    cr_expect_eq(bt_meter_median(even, 4, &spread), 5);
    cr_expect_eq(spread, 2);
}
