/* Whole steps of a GPU that was left out: within the bound that is stated, nine times in ten. */
#include "sim/cost/surface_law.h"
#include "tests/sim/fixtures.h"
#include "tests/sim/shipped.h"

#include <criterion/criterion.h>

struct measured {
    const char *gpu, *stack;
    enum bt_weight_format weights;
    enum bt_act_format activations;
};

/* The widest format of each kind on each card that somebody measured it on. */
static const struct measured cases[] = {
    {"a100-80-sxm", "vllm", BT_WEIGHT_BF16, BT_ACT_BF16},
    {"h100-sxm", "vllm", BT_WEIGHT_BF16, BT_ACT_BF16},
    {"h200", "vllm", BT_WEIGHT_BF16, BT_ACT_BF16},
    {"l40s", "vllm", BT_WEIGHT_BF16, BT_ACT_BF16},
    {"rtx4090", "vllm", BT_WEIGHT_BF16, BT_ACT_BF16},
    {"rtxpro6000", "vllm", BT_WEIGHT_BF16, BT_ACT_BF16},
    {"a100-80-sxm", "trtllm", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC},
    {"h200", "trtllm", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC},
    {"l40s", "trtllm", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC},
    {"a100-80-sxm", "trtllm", BT_WEIGHT_INT4_G128, BT_ACT_BF16},
    {"h200", "trtllm", BT_WEIGHT_INT4_G128, BT_ACT_BF16},
    {"l40s", "trtllm", BT_WEIGHT_INT4_G128, BT_ACT_BF16},
    {"h100-sxm", "vllm", BT_WEIGHT_FP8, BT_ACT_BF16},
    {"h200", "vllm", BT_WEIGHT_FP8, BT_ACT_BF16},
    {"l40s", "vllm", BT_WEIGHT_FP8, BT_ACT_BF16},
};

struct tally {
    int32_t n, covered;
};

static void count(struct tally *t, const struct bt_cost *truth, const struct bt_cost *estimate,
                  const struct bt_batch *b)
{
    struct bt_cost_parts real, told;
    struct bt_step_mix mix = {.classes = {{0}}};
    bt_step_mix_add(&mix, b);
    truth->ops->step(truth->self, b, &real);
    estimate->ops->step(estimate->self, b, &told);
    double bound = bt_surface_cost_mix_error(estimate, &mix);
    cr_expect(bound > 0 && bound <= 1.1 * estimate->step_error, "%g of %g", bound,
              estimate->step_error);
    t->n++;
    t->covered += (double)real.time_ps <= (double)told.time_ps * (1 + bound);
}

static void measure(struct bt_surface_library *l, const struct bt_catalog *catalog,
                    const struct measured *m, const char *model, struct tally *t)
{
    const struct bt_catalog_gpu *gpu = NULL;
    const struct bt_catalog_model *row = NULL;
    cr_assert_eq(bt_catalog_find_gpu(catalog, m->gpu, "gpu", &gpu, NULL), BT_OK);
    cr_assert_eq(bt_catalog_find_model(catalog, model, "model", &row, NULL), BT_OK);
    struct bt_step_opts o = {
        .target = {.arch = &row->arch, .weights = m->weights, .activations = m->activations},
        .gpu = &gpu->gpu,
        .fused = true,
        .max_tokens = 64,
        .max_seqs = 256};
    struct bt_cost truth, estimate;
    cr_assert_eq(bt_surface_cost_create(l, m->stack, BT_SOURCE_WITHOUT_NOTHING, &o, &truth, NULL),
                 BT_OK);
    cr_assert_eq(bt_surface_cost_create(l, m->stack, BT_SOURCE_WITHOUT_GPU, &o, &estimate, NULL),
                 BT_OK);
    for (int32_t n = 1; n <= 256; n *= 2) {
        for (int64_t ctx = 512; ctx <= 4096; ctx *= 2) {
            struct bt_batch b = fixture_decodes(n, ctx);
            count(t, &truth, &estimate, &b);
        }
    }
    for (int64_t q = 512; q <= 8192; q *= 2) {
        struct bt_batch b = fixture_prompts(1, q);
        count(t, &truth, &estimate, &b);
    }
    bt_cost_fini(&truth);
    bt_cost_fini(&estimate);
}

Test(step_cover, steps_of_a_gpu_left_out_keep_their_bound)
{
    struct bt_catalog *catalog = NULL;
    struct bt_surface_library *l = NULL;
    cr_assert_eq(shipped_open(&catalog, &l, NULL), BT_OK);
    static const char *const models[] = {"llama-3.1-8b", "llama-2-13b", "llama-3.1-70b"};
    struct tally all = {0, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tally t = {0, 0};
        for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
            measure(l, catalog, &cases[i], models[k], &t);
        }
        cr_expect_geq(t.covered, 0.85 * t.n, "%s, %s weights: %d of %d", cases[i].gpu,
                      bt_weight_format_name(cases[i].weights), t.covered, t.n);
        all.n += t.n;
        all.covered += t.covered;
    }
    cr_expect_geq(all.covered, 0.9 * all.n, "%d of %d", all.covered, all.n);
    bt_surface_library_destroy(l);
    bt_catalog_close(catalog);
}
