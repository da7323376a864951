/* The CUDA executor as a whole against the CPU's reference: every token that it gives is the
 * likeliest one by float32 arithmetic, or as good as that within the noise of 16-bit numbers; and
 * that holds however it is served. */
#include "engine/cpu/session.h"
#include "engine/cuda/backend.h"
#include "engine/cuda/executor_cuda.h"
#include "tests/engine/cpu/engine_rig.h"
#include "tests/engine/cpu/rig.h"
#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 12, SHARED = 43, NEW = 24 };

/* The model, or the smallest one where only that was carried to the GPU. */
static const char *at_hand(const char *name)
{
    return access(rig_model_path(name), R_OK) == 0 ? name : "berth-1m";
}

/* Twelve prompts of 44 to 143 tokens that begin alike. */
static void add_prompts(struct rig_requests *r, int32_t vocab)
{
    int32_t text[4096];
    rig_test_tokens(3000, 4096, text);
    for (int32_t i = 0; i < N; i++) {
        int32_t prompt[256];
        int32_t n_own = 1 + 9 * i;
        for (int32_t j = 0; j < SHARED + n_own; j++) {
            prompt[j] = (j < SHARED ? text[j] : text[300 * (i + 1) + j]) % vocab;
        }
        (void)rig_add(r, prompt, SHARED + n_own, NEW);
    }
}

struct verdict {
    double worst_gap; /* of a token's logit to the greatest */
    int32_t n_other;  /* tokens that are not the reference's */
    int32_t n;
};

/* Judges answers by the reference's logits on the very tokens. */
static struct verdict judge(const struct bt_model *m, const struct rig_requests *r)
{
    struct verdict v = {0};
    struct bt_error err = {0};
    struct bt_session *s = rig_session(m, BT_KV_FP32);
    int32_t vocab = m->config.arch.vocab;
    float *logits = calloc((size_t)NEW * (size_t)vocab, sizeof *logits);
    for (int64_t i = 0; i < r->table.n; i++) {
        const struct bt_gen_request *q = &r->requests[i];
        int32_t ids[512];
        int32_t n = q->n_prompt + q->n_out;
        for (int32_t j = 0; j < n; j++) {
            ids[j] = bt_gen_token(q, j);
        }
        cr_assert_eq(bt_cpu_session_run(s, ids, n - 1, 0, q->n_prompt - 1, logits, &err), BT_OK,
                     "%s", err.msg);
        for (int32_t j = 0; j < q->n_out; j++) {
            const float *row = logits + (size_t)j * (size_t)vocab;
            int32_t best = rig_argmax(row, vocab);
            double gap = (double)row[best] - (double)row[q->out[j]];
            v.worst_gap = gap > v.worst_gap ? gap : v.worst_gap;
            v.n_other += gap > 0;
            v.n++;
        }
    }
    free(logits);
    bt_cpu_session_destroy(s);
    return v;
}

static void one_in_flight(struct bt_sched_opts *o)
{
    o->inflight_max = 1;
}

static const struct rig_way ways[] = {
    {"all together", {.max_seqs = N, .n_blocks = 256}, NULL, false},
    {"eager", {.max_seqs = N, .n_blocks = 256, .eager = true}, NULL, false},
    {"unfused", {.max_seqs = N, .n_blocks = 256, .unfused = true}, NULL, false},
    {"tuned", {.max_seqs = N, .n_blocks = 256, .tune = true}, NULL, false},
    {"one in flight", {.max_seqs = N, .n_blocks = 256}, one_in_flight, false},
    {"one at a time", {.max_seqs = 1, .n_blocks = 64}, NULL, false},
    {"blocks of 8", {.max_seqs = 8, .n_blocks = 512, .block_tokens = 8}, NULL, false},
    {"blocks of 32", {.max_seqs = 8, .n_blocks = 128, .block_tokens = 32}, NULL, false},
    {"chunks of 16", {.max_seqs = 8, .n_blocks = 256}, rig_small_chunks, false},
    {"pieces of 24", {.max_seqs = 8, .n_blocks = 256, .max_rows = 24}, NULL, false},
    {"whole prompts", {.max_seqs = 8, .n_blocks = 256}, rig_whole_prompts, false},
    {"no prefix cache", {.max_seqs = 8, .n_blocks = 256}, rig_no_prefix_cache, false},
    {"recompute", {.max_seqs = 12, .n_blocks = 30}, NULL, true},
    {"swap", {.max_seqs = 12, .n_blocks = 30, .n_host_blocks = 200}, rig_by_swap, true},
    {"slow swap",
     {.max_seqs = 12, .n_blocks = 30, .n_host_blocks = 200, .pcie_bytes_per_s = 20000000},
     rig_by_swap,
     true},
    {"fp16", {.max_seqs = N, .n_blocks = 256, .compute = BT_ACT_FP16}, NULL, false},
    {"int8 KV", {.max_seqs = N, .n_blocks = 256, .kv = BT_KV_INT8}, NULL, false},
};

/* Serves in one way; the answers are near the reference's. */
static void check_way(const struct rig_way *w, const struct bt_model *m, struct rig_requests *r,
                      double gap, double others)
{
    rig_serve_in(w, m, r);
    struct verdict v = judge(m, r);
    printf("%-24s %-16s worst gap %.3f, %d of %d tokens another\n", m->config.arch.name, w->name,
           v.worst_gap, v.n_other, v.n);
    cr_expect_leq(v.worst_gap, gap, "%s: %s: a token %.3f below the likeliest", m->config.arch.name,
                  w->name, v.worst_gap);
    cr_expect_leq(v.n_other, others * v.n, "%s: %s: %d of %d tokens", m->config.arch.name, w->name,
                  v.n_other, v.n);
}

Test(cuda_executor, tokens_are_the_references_however_they_are_served)
{
    (void)rig_device();
    rig_use(&bt_cuda_backend);
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    struct rig_requests r = {0};
    add_prompts(&r, m.config.arch.vocab);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        check_way(&ways[i], &m, &r, 0.25, 0.05);
    }
    rig_requests_fini(&r);
    bt_model_fini(&m);
}

/* With 8-bit activations 16-bit noise moves numbers by whole levels: the CPU's own 16-bit
 * arithmetic is up to 0.53 off in the fifth case. */
Test(cuda_executor, other_models_and_weights)
{
    static const struct {
        const char *name;
        struct bt_model_opts opts;
        double gap, others;
    } cases[] = {
        {"berth-12m", {0}, 0.25, 0.05},
        {"tiny-qwen3", {0}, 0.25, 0.2},
        {"berth-12m", {.weights = BT_WEIGHT_INT8}, 0.3, 0.05},
        {"berth-12m", {.weights = BT_WEIGHT_INT4_G128}, 0.3, 0.05},
        {"berth-12m",
         {.weights = BT_WEIGHT_INT8, .activations = BT_ACT_INT8_DYNAMIC, .lm_head = true},
         0.8,
         0.1},
        {"berth-12m",
         {.weights = BT_WEIGHT_INT4_G64, .activations = BT_ACT_INT8_DYNAMIC, .embeddings = true},
         0.8,
         0.1},
    };
    (void)rig_device();
    rig_use(&bt_cuda_backend);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_model m;
        rig_load(&m, at_hand(cases[i].name), &cases[i].opts);
        struct rig_requests r = {0};
        add_prompts(&r, m.config.arch.vocab);
        struct rig_way w = {.eo = {.max_seqs = 5, .n_blocks = 256}};
        w.name = bt_weight_format_name(cases[i].opts.weights);
        check_way(&w, &m, &r, cases[i].gap, cases[i].others);
        rig_requests_fini(&r);
        bt_model_fini(&m);
    }
}

Test(cuda_executor, speculation_gives_the_targets_tokens)
{
    (void)rig_device();
    rig_use(&bt_cuda_backend);
    struct bt_error err = {0};
    struct bt_model m, draft;
    struct bt_medusa medusa;
    rig_load(&m, at_hand("berth-12m"), NULL);
    rig_load(&draft, "berth-1m", NULL);
    const char *dir = rig_model_path("berth-12m-medusa");
    bool heads = access(dir, R_OK) == 0;
    cr_assert(!heads || bt_medusa_load(&medusa, dir, m.config.arch.hidden, &err) == BT_OK, "%s",
              err.msg);
    const struct rig_way spec[] = {
        {"draft, k=4", {.draft = &draft, .spec_k = 4, .max_seqs = 6, .n_blocks = 256}, NULL, false},
        {"draft, k=1", {.draft = &draft, .spec_k = 1, .max_seqs = 1, .n_blocks = 256}, NULL, false},
        {"draft, recompute",
         {.draft = &draft, .spec_k = 3, .max_seqs = 12, .n_blocks = 32},
         NULL,
         true},
        {"draft, swap",
         {.draft = &draft, .spec_k = 3, .max_seqs = 12, .n_blocks = 32, .n_host_blocks = 200},
         rig_by_swap,
         true},
        {"own layer", {.self_layers = 1, .spec_k = 2, .max_seqs = 6, .n_blocks = 256}, NULL, false},
        {"medusa",
         {.medusa = &medusa, .spec_k = 3, .max_seqs = 6, .n_blocks = 256},
         rig_small_chunks,
         false},
    };
    struct rig_requests r = {0};
    add_prompts(&r, m.config.arch.vocab);
    for (size_t i = 0; i < sizeof spec / sizeof *spec - !heads; i++) { /* the heads come last */
        check_way(&spec[i], &m, &r, 0.25, 0.05);
        int64_t proposed = 0, emitted = 0, verified = 0;
        for (int64_t k = 0; k < r.table.n; k++) {
            proposed += r.requests[k].spec.n_proposed;
            emitted += r.requests[k].spec.n_emitted;
            verified += r.requests[k].spec.n_verifications;
        }
        cr_expect(proposed > 0 && emitted > verified, "%s: %lld of %lld tokens from %lld steps",
                  spec[i].name, (long long)emitted, (long long)proposed, (long long)verified);
    }
    rig_requests_fini(&r);
    if (heads) {
        bt_medusa_fini(&medusa);
    }
    bt_model_fini(&draft);
    bt_model_fini(&m);
}

Test(cuda_executor, perplexity_is_the_references)
{
    (void)rig_device();
    enum { TOKENS = 769 };
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, at_hand("berth-12m"), NULL);
    int32_t ids[TOKENS];
    rig_test_tokens(0, TOKENS, ids);
    struct bt_session *cpu = rig_session(&m, BT_KV_FP32);
    struct bt_score want, got;
    cr_assert_eq(bt_cpu_session_score(cpu, ids, TOKENS, &want, NULL, &err), BT_OK, "%s", err.msg);
    bt_cpu_session_destroy(cpu);
    struct bt_session_opts so = {.model = &m};
    struct bt_session *s = NULL;
    cr_assert_eq(bt_cuda_backend.session_create(&so, &s, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_cuda_backend.session_score(s, ids, TOKENS, &got, NULL, &err), BT_OK, "%s",
                 err.msg);
    bt_cuda_backend.session_destroy(s);
    cr_expect(got.finite);
    cr_expect_eq(got.n_predictions, want.n_predictions);
    double ratio = exp((got.nll - want.nll) / want.n_predictions);
    printf("perplexity %.4f of the reference's\n", ratio);
    cr_expect_leq(fabs(ratio - 1), 0.005);
    bt_model_fini(&m);
}

Test(cuda_executor, random_weights_speculate_at_a_forced_rate)
{
    (void)rig_device();
    rig_use(&bt_cuda_backend);
    struct bt_error err = {0};
    struct bt_model seed, m, draft;
    rig_load(&seed, "berth-1m", NULL);
    struct bt_model_opts int8 = {.weights = BT_WEIGHT_INT8, .activations = BT_ACT_INT8_DYNAMIC};
    cr_assert_eq(bt_model_shape(&m, &seed.config.arch, &int8, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_model_shape(&draft, &seed.config.arch, NULL, &err), BT_OK, "%s", err.msg);
    struct rig_requests r = {0};
    add_prompts(&r, m.config.arch.vocab);
    for (int64_t i = 0; i < r.table.n; i++) {
        r.requests[i].sampling.seed = (uint64_t)i;
    }
    struct bt_executor_opts eo = {.model = &m,
                                  .draft = &draft,
                                  .spec_k = 3,
                                  .force_acceptance = 0.7,
                                  .max_seqs = N,
                                  .n_blocks = 256};
    struct rig_outcome out;
    rig_serve(&eo, &r, NULL, NULL, &out);
    double first = out.summary->acceptance_conditional[0];
    cr_expect_geq(first, 0.5);
    cr_expect_leq(first, 0.9);
    free(out.summary);
    rig_requests_fini(&r);
    bt_model_fini(&seed);
}

Test(cuda_executor, what_it_cannot_do_is_named)
{
    (void)rig_device();
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    m.config.arch.head_dim = 32;
    struct rig_requests r = {0};
    struct bt_executor x;
    struct bt_error err = {0};
    struct bt_model shape;
    cr_assert_eq(bt_model_shape(&shape, &m.config.arch, NULL, &err), BT_OK, "%s", err.msg);
    struct bt_executor_opts eo = {
        .model = &shape, .max_seqs = 2, .n_blocks = 16, .requests = &r.table};
    cr_expect_eq(bt_cuda_executor_create(&eo, &x, &err), BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "32"), "%s", err.msg);
    eo.compute = BT_ACT_FP32;
    err = (struct bt_error){0};
    cr_expect_eq(bt_cuda_executor_create(&eo, &x, &err), BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "fp32"), "%s", err.msg);
    bt_model_fini(&m);
}
