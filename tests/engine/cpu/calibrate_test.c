/* Calibration: the layer-by-layer source against the model run as a whole, and errors of layers. */
#include "engine/cpu/calibrate.h"
#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

enum { SAMPLES = 3, LENGTH = 40, VOCAB = 512 };

static void make_ids(int32_t ids[SAMPLES * LENGTH])
{
    rig_test_tokens(0, SAMPLES * LENGTH, ids);
    for (int32_t i = 0; i < SAMPLES * LENGTH; i++) {
        ids[i] %= VOCAB;
    }
}

static struct bt_cpu_samples samples_of(const int32_t *ids)
{
    return (struct bt_cpu_samples){
        .ids = ids, .n_samples = SAMPLES, .sample_tokens = LENGTH, .n_threads = 1};
}

/* What a tap on the whole model sees at one place. */
struct seen {
    int32_t layer;
    enum bt_calib_point point;
    struct bt_calib_stats stats;
};

static void look(void *user, int32_t layer, enum bt_calib_point point, const float *x,
                 int32_t n_rows, int32_t position)
{
    struct seen *s = user;
    if (layer == s->layer && point == s->point) {
        struct bt_error err = {0};
        cr_assert_eq(bt_calib_add(&s->stats, x, n_rows, position, &err), BT_OK, "%s", err.msg);
    }
}

static void whole_model(const struct bt_model *m, const int32_t *ids, struct seen *s)
{
    struct bt_error err = {0};
    struct bt_session *session = rig_session(m, BT_KV_FP32);
    bt_cpu_session_tap(session, look, s);
    for (int32_t i = 0; i < SAMPLES; i++) {
        cr_assert_eq(bt_cpu_session_run(session, ids + i * LENGTH, LENGTH, 0, 0, NULL, &err), BT_OK,
                     "%s", err.msg);
    }
    bt_cpu_session_destroy(session);
}

static void expect_equal(const struct bt_calib_stats *a, const struct bt_calib_stats *b,
                         const char *where)
{
    cr_expect_eq(a->n_tokens, b->n_tokens, "%s", where);
    cr_expect_eq(a->max_tokens, b->max_tokens, "%s", where);
    cr_expect_float_eq(a->max_abs, b->max_abs, 0, "%s", where);
    for (int32_t k = 0; k < a->n_in; k++) {
        cr_assert_float_eq(a->abs_sum[k], b->abs_sum[k], 1e-9 * (1 + b->abs_sum[k]), "%s", where);
        size_t d = (size_t)k * (size_t)a->n_in + (size_t)k;
        cr_assert_float_eq(a->xtx[d], b->xtx[d], 1e-5 * (1 + b->xtx[d]), "%s", where);
    }
}

Test(cpu_calibrate, layer_by_layer_sees_what_the_whole_model_shows)
{
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, "tiny-qwen3", NULL);
    int32_t ids[SAMPLES * LENGTH];
    make_ids(ids);
    struct bt_cpu_samples samples = samples_of(ids);
    struct bt_cpu_calib *calib = NULL;
    cr_assert_eq(bt_cpu_calib_create(&samples, &m.config.arch, &calib, &err), BT_OK);
    struct bt_calib_source source = bt_cpu_calib_source(calib);
    int32_t n_layers = m.config.arch.n_layers;
    for (int32_t layer = 0; layer <= n_layers; layer++) {
        int32_t from = layer < n_layers ? BT_CALIB_ATTN_IN : BT_CALIB_HEAD_IN;
        int32_t until = layer < n_layers ? BT_CALIB_HEAD_IN : BT_CALIB_POINTS;
        for (int32_t p = from; p < until; p++) {
            const struct bt_calib_stats *got = NULL;
            struct seen want = {.layer = layer, .point = (enum bt_calib_point)p};
            cr_assert_eq(source.get(source.user, &m, layer, want.point, true, &got, &err), BT_OK);
            cr_assert_eq(bt_calib_init(&want.stats, got->n_in, true, &err), BT_OK);
            whole_model(&m, ids, &want);
            char where[64];
            (void)snprintf(where, sizeof where, "layer %d, point %d", layer, p);
            expect_equal(got, &want.stats, where);
            bt_calib_fini(&want.stats);
        }
    }
    bt_cpu_calib_destroy(calib);
    bt_model_fini(&m);
}

/* The source follows the model: once a layer is changed, the next one sees it. */
Test(cpu_calibrate, the_next_layer_sees_what_the_last_one_became)
{
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, "tiny-llama-mha", NULL);
    int32_t ids[SAMPLES * LENGTH];
    make_ids(ids);
    struct bt_cpu_samples samples = samples_of(ids);
    struct bt_cpu_calib *calib = NULL;
    cr_assert_eq(bt_cpu_calib_create(&samples, &m.config.arch, &calib, &err), BT_OK);
    struct bt_calib_source source = bt_cpu_calib_source(calib);
    const struct bt_calib_stats *got = NULL;
    cr_assert_eq(source.get(source.user, &m, 0, BT_CALIB_ATTN_IN, false, &got, &err), BT_OK);
    struct bt_tensor *down = &m.layers[0].linear[BT_LINEAR_DOWN].w;
    memset(down->p, 0, (size_t)bt_tensor_bytes(down));
    cr_assert_eq(source.get(source.user, &m, 1, BT_CALIB_ATTN_IN, false, &got, &err), BT_OK);
    struct seen want = {.layer = 1, .point = BT_CALIB_ATTN_IN};
    cr_assert_eq(bt_calib_init(&want.stats, got->n_in, false, &err), BT_OK);
    whole_model(&m, ids, &want);
    cr_expect_float_eq(got->max_abs, want.stats.max_abs, 0);
    bt_calib_fini(&want.stats);
    bt_cpu_calib_destroy(calib);
    bt_model_fini(&m);
}

Test(cpu_calibrate, errors_of_layers_are_zero_for_the_same_model_and_fall_with_bits)
{
    struct bt_error err = {0};
    struct bt_model exact, q;
    rig_load(&exact, "tiny-llama-mha", NULL);
    int32_t ids[SAMPLES * LENGTH];
    make_ids(ids);
    struct bt_cpu_samples samples = samples_of(ids);
    struct bt_cpu_layer_error e[8];
    cr_assert_leq(exact.config.arch.n_layers, 8);
    cr_assert_eq(bt_cpu_layer_errors(&exact, &exact, &samples, e, &err), BT_OK);
    for (int32_t l = 0; l < exact.config.arch.n_layers; l++) {
        cr_expect_float_eq(e[l].output, 0, 0);
        cr_expect_float_eq(e[l].stream, 0, 0);
    }
    static const char *const schemes[] = {"int8", "int4-rtn-g32", "int4-tensor"};
    double before = 0;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        struct bt_quant_scheme s;
        cr_assert_eq(bt_quant_scheme_parse(schemes[i], &s, &err), BT_OK);
        rig_load(&q, "tiny-llama-mha", NULL);
        cr_assert_eq(bt_model_quantise(&q, &s, NULL, &err), BT_OK);
        cr_assert_eq(bt_cpu_layer_errors(&exact, &q, &samples, e, &err), BT_OK);
        cr_expect_gt(e[1].output, before, "%s", schemes[i]);
        cr_expect_gt(e[1].stream, 0, "%s", schemes[i]);
        cr_expect_lt(e[1].output, 1, "%s", schemes[i]);
        before = e[1].output;
        bt_model_fini(&q);
    }
    bt_model_fini(&exact);
}

Test(cpu_calibrate, samples_longer_than_the_context_are_refused)
{
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, "tiny-llama-mha", NULL);
    int32_t id = 0;
    struct bt_cpu_samples samples = {
        .ids = &id, .n_samples = 1, .sample_tokens = m.config.arch.max_position + 1};
    struct bt_cpu_calib *calib = NULL;
    cr_expect_eq(bt_cpu_calib_create(&samples, &m.config.arch, &calib, &err), BT_ERR_ARG);
    cr_expect(strstr(err.msg, "context") != NULL, "%s", err.msg);
    cr_expect_null(calib);
    bt_model_fini(&m);
}
