/* The forward pass against numbers of an independent implementation. */
#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Greedy tokens from the prompt's logits on, one token at a time; fails at the first difference
 * unless the two candidates are closer than 1e-4. */
static void check_greedy(struct bt_session *s, float *logits, int32_t vocab, int32_t n_prompt,
                         const json_t *want, const char *what)
{
    struct bt_error err = {0};
    int32_t n;
    int32_t *ids = rig_ids(want, &n);
    for (int32_t i = 0; i < n; i++) {
        int32_t got = rig_argmax(logits, vocab);
        if (got != ids[i]) {
            float gap = logits[got] - logits[ids[i]];
            cr_assert_lt(gap, 1e-4f, "%s: greedy token %d is %d, expected %d, ahead by %g", what, i,
                         got, ids[i], (double)gap);
            fprintf(stderr, "%s: near-tie at greedy token %d, gap %g\n", what, i, (double)gap);
            break;
        }
        cr_assert_eq(bt_cpu_session_run(s, &got, 1, n_prompt + i, 0, logits, &err), BT_OK);
    }
    free(ids);
}

static void check_prompt(struct bt_session *s, const struct bt_model *m, const json_t *c,
                         const char *what)
{
    struct bt_error err = {0};
    int32_t vocab = m->config.arch.vocab;
    int32_t n;
    int32_t *ids = rig_ids(json_object_get(c, "ids"), &n);
    if (n > 1) {
        struct bt_score score;
        cr_assert_eq(bt_cpu_session_score(s, ids, n, &score, NULL, &err), BT_OK, "%s", err.msg);
        double want = json_number_value(json_object_get(c, "nll_sum"));
        cr_assert_lt(fabs(score.nll - want), 1e-3 * want, "%s: NLL %.4f, expected %.4f", what,
                     score.nll, want);
    }
    float *logits = calloc((size_t)vocab, sizeof *logits);
    cr_assert_eq(bt_cpu_session_run(s, ids, n, 0, n - 1, logits, &err), BT_OK, "%s", err.msg);
    const json_t *top = json_object_get(c, "last_top8_ids");
    const json_t *top_logits = json_object_get(c, "last_top8_logits");
    cr_assert_eq(json_array_size(top), 8);
    for (size_t i = 0; i < 8; i++) {
        json_int_t id = json_integer_value(json_array_get(top, i));
        double want = json_number_value(json_array_get(top_logits, i));
        cr_assert_lt(fabs((double)logits[id] - want), 1e-3,
                     "%s: logit of %d is %.5f, expected %.5f", what, (int)id, (double)logits[id],
                     want);
    }
    check_greedy(s, logits, vocab, n, json_object_get(c, "greedy32"), what);
    free(logits);
    free(ids);
}

static void check_golden(const char *name)
{
    struct bt_model m;
    rig_load(&m, name, NULL);
    struct bt_session *s = rig_session(&m, BT_KV_FP32);
    json_t *root = rig_json("golden.json");
    const json_t *cases = json_object_get(json_object_get(root, name), "cases");
    cr_assert_eq(json_array_size(cases), 16);
    size_t stride = rig_scale() == RIG_REDUCED ? 5 : 1;
    for (size_t i = 0; i < json_array_size(cases); i += stride) {
        char what[64];
        (void)snprintf(what, sizeof what, "%s case %zu", name, i);
        check_prompt(s, &m, json_array_get(cases, i), what);
    }
    json_decref(root);
    bt_cpu_session_destroy(s);
    bt_model_fini(&m);
}

Test(cpu_golden, berth_12m_gives_the_reference_tokens_logits_and_losses)
{
    check_golden("berth-12m");
}

Test(cpu_golden, berth_1m_gives_the_reference_tokens_logits_and_losses)
{
    check_golden("berth-1m");
}

/* All positions at once, then again in chunks of 7: logits at chosen positions, argmax everywhere.
 */
static void check_logits(const struct bt_model *m, const json_t *ids_json, const json_t *want,
                         const char *what)
{
    struct bt_error err = {0};
    struct bt_session *s = rig_session(m, BT_KV_FP32);
    size_t vocab = (size_t)m->config.arch.vocab;
    int32_t n;
    int32_t *ids = rig_ids(ids_json, &n);
    float *logits = calloc((size_t)n * vocab, sizeof *logits);
    float *chunked = calloc((size_t)n * vocab, sizeof *chunked);
    cr_assert_eq(bt_cpu_session_run(s, ids, n, 0, 0, logits, &err), BT_OK, "%s", err.msg);
    for (int32_t i = 0; i < n; i += 7) {
        int32_t step = n - i < 7 ? n - i : 7;
        cr_assert_eq(bt_cpu_session_run(s, ids + i, step, i, 0, chunked + (size_t)i * vocab, &err),
                     BT_OK);
    }
    cr_assert_eq(memcmp(logits, chunked, (size_t)n * vocab * sizeof *logits), 0,
                 "%s: chunks of 7 give other logits", what);
    const char *pos;
    json_t *row;
    json_t *at = json_object_get(want, "logits_at");
    cr_assert_eq(json_object_size(at), 5);
    json_object_foreach(at, pos, row)
    {
        const float *got = logits + (size_t)strtol(pos, NULL, 10) * vocab;
        for (size_t i = 0; i < json_array_size(row); i++) {
            double v = json_number_value(json_array_get(row, i));
            cr_assert_lt(fabs((double)got[i] - v), 1e-3, "%s: position %s, logit %zu: %f for %f",
                         what, pos, i, (double)got[i], v);
        }
    }
    const json_t *argmax = json_object_get(want, "argmax");
    cr_assert_eq((int32_t)json_array_size(argmax), n);
    for (int32_t i = 0; i < n; i++) {
        json_int_t v = json_integer_value(json_array_get(argmax, (size_t)i));
        cr_assert_eq(rig_argmax(logits + (size_t)i * vocab, (int32_t)vocab), v, "%s: argmax at %d",
                     what, i);
    }
    free(chunked);
    free(logits);
    free(ids);
    bt_cpu_session_destroy(s);
}

Test(cpu_golden, every_architecture_gives_the_reference_logits)
{
    static const char *const names[] = {"tiny-llama-mha", "tiny-llama3-rope", "tiny-qwen2",
                                        "tiny-qwen3", "tiny-mistral-swa"};
    json_t *root = rig_json("golden_tiny.json");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct bt_model m;
        rig_load(&m, names[i], NULL);
        const json_t *want = json_object_get(root, names[i]);
        check_logits(&m, json_object_get(want, "ids"), want, names[i]);
        bt_model_fini(&m);
    }
    json_decref(root);
}

Test(cpu_golden, every_packing_gives_the_logits_of_its_weights)
{
    static const char *const names[] = {"tiny-gptq-v1-sym", "tiny-gptq-v1-asym", "tiny-awq",
                                        "tiny-ct-w4a16", "tiny-ct-w8a8"};
    struct bt_model_opts opts = {.activations = BT_ACT_FP32};
    json_t *ids = rig_json("golden_tiny.json");
    json_t *root = rig_json("quantised/golden_quantised.json");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "quantised/%s", names[i]);
        struct bt_model m;
        rig_load(&m, path, &opts);
        cr_assert(m.layers[0].linear[BT_LINEAR_Q].quantised, "%s", names[i]);
        check_logits(&m, json_object_get(json_object_get(ids, "tiny-llama3-rope"), "ids"),
                     json_object_get(root, names[i]), names[i]);
        bt_model_fini(&m);
    }
    json_decref(root);
    json_decref(ids);
}

/* By the time of the processor, so that a busy machine does not matter. */
static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

Test(cpu_speed, berth_12m_decodes_100_tokens_a_second_on_one_core)
{
    enum { TOKENS = 64 };
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, "berth-12m", NULL);
    struct bt_session *s = rig_session(&m, BT_KV_FP32);
    float *logits = calloc((size_t)m.config.arch.vocab, sizeof *logits);
    int32_t ids[256 + TOKENS];
    rig_test_tokens(0, 256 + TOKENS, ids);
    cr_assert_eq(bt_cpu_session_run(s, ids, 256, 0, 255, logits, &err), BT_OK);
    double from = cpu_s();
    for (int32_t i = 256; i < 256 + TOKENS; i++) {
        cr_assert_eq(bt_cpu_session_run(s, ids + i, 1, i, 0, logits, &err), BT_OK);
    }
    double rate = TOKENS / (cpu_s() - from);
    cr_log_info("%.0f tokens a second", rate);
    if (rig_scale() != RIG_REDUCED) {
        cr_expect_gt(rate, 100.0, "%.0f tokens a second", rate);
    }
    free(logits);
    bt_cpu_session_destroy(s);
    bt_model_fini(&m);
}

/* The first windows of the test stream against the reference's losses; returns the perplexity. */
static double check_windows(const char *name, const char *key, const struct bt_model_opts *opts,
                            int32_t n_windows)
{
    enum { WINDOW = 1024 };
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, name, opts);
    struct bt_session *s = rig_session(&m, BT_KV_FP32);
    json_t *root = rig_json("window_nll.json");
    const json_t *want = json_object_get(root, key);
    if (rig_scale() == RIG_FULL) {
        n_windows = (int32_t)json_array_size(want);
    } else if (rig_scale() == RIG_REDUCED) {
        n_windows = 1;
    }
    double nll = 0.0;
    int32_t ids[WINDOW + 1];
    for (int32_t i = 0; i < n_windows; i++) {
        struct bt_score score;
        rig_test_tokens((int64_t)i * WINDOW, WINDOW + 1, ids);
        cr_assert_eq(bt_cpu_session_score(s, ids, WINDOW + 1, &score, NULL, &err), BT_OK);
        cr_assert_eq(score.n_predictions, WINDOW);
        nll += score.nll;
        double w = json_number_value(json_array_get(want, (size_t)i));
        cr_assert_lt(fabs(score.nll - w), 1e-3 * w, "%s window %d: NLL %.3f, expected %.3f", key, i,
                     score.nll, w);
    }
    json_decref(root);
    bt_cpu_session_destroy(s);
    bt_model_fini(&m);
    return exp(nll / ((double)n_windows * WINDOW));
}

Test(cpu_windows, berth_12m_loses_what_the_reference_loses)
{
    double perplexity = check_windows("berth-12m", "berth-12m", NULL, 8);
    if (rig_scale() == RIG_FULL) {
        cr_expect_float_eq(perplexity, 17.678, 0.01, "perplexity %.4f", perplexity);
    }
}

Test(cpu_windows, berth_1m_loses_what_the_reference_loses)
{
    double perplexity = check_windows("berth-1m", "berth-1m", NULL, 8);
    if (rig_scale() == RIG_FULL) {
        cr_expect_float_eq(perplexity, 50.541, 0.01, "perplexity %.4f", perplexity);
    }
}

/* This checkpoint is too large to be kept with the tests: BT_MODELS names the folder it is in. */
Test(cpu_windows, the_checkpoint_trained_for_int4_loses_what_the_reference_loses)
{
    if (getenv("BT_MODELS") == NULL) {
        cr_skip_test("BT_MODELS is not set");
    }
    (void)check_windows("berth-12m-qat-int4", "berth-12m-qat-int4", NULL, 2);
}

Test(cpu_windows, int4_loses_what_the_reference_loses)
{
    struct bt_model_opts opts = {.weights = BT_WEIGHT_INT4_G128};
    (void)check_windows("berth-12m", "berth-12m int4-g128 rtn", &opts, 2);
}
