/* The engine as a whole: what it generates does not depend on how it was served. */
#include "tests/engine/cpu/engine_rig.h"
#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>

enum { N = 12, SHARED = 43, NEW = 24 };

/* Twelve prompts of 44 to 143 tokens that begin alike; every third is sampled. */
static void add_prompts(struct rig_requests *r)
{
    int32_t text[4096];
    rig_test_tokens(3000, 4096, text);
    for (int32_t i = 0; i < N; i++) {
        int32_t prompt[256];
        int32_t n_own = 1 + 9 * i;
        for (int32_t j = 0; j < SHARED + n_own; j++) {
            prompt[j] = j < SHARED ? text[j] : text[300 * (i + 1) + j];
        }
        struct bt_gen_request *q = rig_add(r, prompt, SHARED + n_own, NEW);
        if (i % 3 == 2) {
            q->sampling = (struct bt_sampling){
                .temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 7 + (uint64_t)i};
        }
    }
}

static void all_apart(struct bt_sched_opts *o)
{
    o->prefix_cache = false;
    o->max_batched_tokens = 8192;
}

static void static_batches(struct bt_sched_opts *o)
{
    o->batching = BT_BATCHING_STATIC;
}

static const struct rig_way ways[] = {
    {"one at a time", {.max_seqs = 1, .n_blocks = 64}, NULL, false},
    {"blocks of 8", {.max_seqs = 8, .n_blocks = 512, .block_tokens = 8}, NULL, false},
    {"blocks of 32", {.max_seqs = 8, .n_blocks = 128, .block_tokens = 32}, NULL, false},
    {"blocks of 7", {.max_seqs = 5, .n_blocks = 512, .block_tokens = 7}, NULL, false},
    {"chunks of 16", {.max_seqs = 8, .n_blocks = 256}, rig_small_chunks, false},
    {"pieces of 5", {.max_seqs = 8, .n_blocks = 256, .max_rows = 5}, NULL, false},
    {"whole prompts", {.max_seqs = 8, .n_blocks = 256}, rig_whole_prompts, false},
    {"static batches", {.max_seqs = 4, .n_blocks = 256}, static_batches, false},
    {"no prefix cache", {.max_seqs = 8, .n_blocks = 256}, rig_no_prefix_cache, false},
    {"two threads", {.max_seqs = 8, .n_blocks = 256, .n_threads = 2}, NULL, false},
    {"recompute", {.max_seqs = 12, .n_blocks = 30}, NULL, true},
    {"swap", {.max_seqs = 12, .n_blocks = 30, .n_host_blocks = 200}, rig_by_swap, true},
};

Test(cpu_serve, answers_do_not_depend_on_batch_blocks_chunks_sharing_swap_or_recompute)
{
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    struct rig_requests r = {0};
    add_prompts(&r);
    struct bt_executor_opts base = {.model = &m, .max_seqs = N, .n_blocks = 256};
    struct rig_outcome out;
    rig_serve(&base, &r, NULL, NULL, &out);
    free(out.summary);
    int32_t *want = rig_answers(&r);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        rig_serve_in(&ways[i], &m, &r);
        cr_expect_eq(rig_differs(&r, want), -1, "%s: request %d differs", ways[i].name,
                     rig_differs(&r, want));
    }
    free(want);
    rig_requests_fini(&r);
    bt_model_fini(&m);
}

Test(cpu_serve, answers_agree_with_a_session_of_one_sequence)
{
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    struct rig_requests r = {0};
    add_prompts(&r);
    struct bt_executor_opts base = {.model = &m, .max_seqs = N, .n_blocks = 256};
    struct rig_outcome out;
    rig_serve(&base, &r, NULL, NULL, &out);
    free(out.summary);
    struct bt_session *s = rig_session(&m, BT_KV_FP32);
    int32_t vocab = m.config.arch.vocab;
    float *logits = calloc((size_t)vocab, sizeof *logits);
    for (int32_t i = 0; i < N; i++) {
        const struct bt_gen_request *q = &r.requests[i];
        cr_assert_eq(q->n_out, NEW);
        for (int32_t j = 0; j < q->n_out && q->sampling.temperature == 0.0f; j++) {
            int32_t last = j == 0 ? 0 : q->out[j - 1];
            enum bt_code code =
                j == 0 ? bt_cpu_session_run(s, q->prompt, q->n_prompt, 0, q->n_prompt - 1, logits,
                                            &err)
                       : bt_cpu_session_run(s, &last, 1, q->n_prompt + j - 1, 0, logits, &err);
            cr_assert_eq(code, BT_OK, "%s", err.msg);
            cr_assert_eq(q->out[j], rig_argmax(logits, vocab), "request %d, token %d", i, j);
        }
    }
    free(logits);
    bt_cpu_session_destroy(s);
    rig_requests_fini(&r);
    bt_model_fini(&m);
}

/* Eight prompts that share 500 tokens: the pool holds the shared blocks once. */
Test(cpu_serve, a_shared_prefix_takes_the_memory_that_arithmetic_says)
{
    enum { PREFIX = 500, OWN = 20, ANSWER = 12, SEQS = 8, BLOCK = 16 };
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    int32_t text[PREFIX + OWN * SEQS];
    rig_test_tokens(0, PREFIX + OWN * SEQS, text);
    int64_t peak[2];
    double hits[2];
    int32_t *want = NULL;
    for (int32_t cache = 0; cache < 2; cache++) {
        struct rig_requests r = {0};
        for (int32_t i = 0; i < SEQS; i++) {
            int32_t prompt[PREFIX + OWN];
            for (int32_t j = 0; j < PREFIX + OWN; j++) {
                prompt[j] = j < PREFIX ? text[j] : text[j + OWN * i];
            }
            /* With whole prompts the first is computed alone, and the rest find its blocks. */
            (void)rig_add(&r, prompt, PREFIX + OWN, ANSWER);
        }
        struct bt_executor_opts eo = {.model = &m, .max_seqs = SEQS, .n_blocks = 512};
        struct rig_outcome out;
        rig_serve(&eo, &r, cache == 0 ? all_apart : rig_whole_prompts, NULL, &out);
        peak[cache] = out.summary->kv_blocks_peak;
        hits[cache] = out.summary->prefix_hit_fraction;
        free(out.summary);
        if (cache == 0) {
            want = rig_answers(&r);
        } else {
            cr_assert_eq(rig_differs(&r, want), -1);
        }
        rig_requests_fini(&r);
    }
    int32_t each = (PREFIX + OWN + ANSWER - 1 + BLOCK - 1) / BLOCK;
    int32_t shared = PREFIX / BLOCK;
    cr_assert_eq(peak[0], SEQS * each, "without sharing: %lld", (long long)peak[0]);
    cr_assert_eq(peak[1], shared + SEQS * (each - shared), "with sharing: %lld",
                 (long long)peak[1]);
    cr_assert_eq(hits[0], 0.0);
    double prompt = (double)(PREFIX + OWN) * SEQS;
    cr_assert_float_eq(hits[1], (SEQS - 1) * shared * BLOCK / prompt, 1e-9, "hits %f", hits[1]);
    free(want);
    bt_model_fini(&m);
}

Test(cpu_serve, a_prefix_that_is_another_one_is_found_out)
{
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    struct rig_requests r = {0};
    int32_t text[64];
    rig_test_tokens(0, 64, text);
    (void)rig_add(&r, text, 48, 4);
    text[20]++;
    (void)rig_add(&r, text, 48, 4);
    struct bt_executor_opts eo = {
        .model = &m, .max_seqs = 2, .n_blocks = 16, .requests = &r.table, .n_threads = 1};
    struct bt_executor x;
    cr_assert_eq(bt_cpu_executor_create(&eo, &x, &err), BT_OK, "%s", err.msg);
    int32_t blocks[4] = {3, 7, 1, 0};
    struct bt_result_seq rows[2];
    struct bt_step_result result = {.seqs = rows};
    struct bt_plan_seq seq = {.user = 0,
                              .n_prompt = 48,
                              .n_tokens = 48,
                              .flags = BT_SEQ_START | BT_SEQ_EMITS,
                              .n_blocks = 4,
                              .blocks = blocks};
    struct bt_step_plan plan = {.n_seqs = 1, .seqs = &seq};
    cr_assert_eq(x.ops->submit(x.self, &plan, 0, &result, &err), BT_SUBMIT_DONE);
    cr_assert(!rows[0].failed);
    cr_assert_eq(rows[0].n_emitted, 1);
    /* The same blocks given to a request with another token 20, as a colliding hash would. */
    seq.user = 1;
    seq.slot = 1;
    seq.ctx = 32;
    seq.n_tokens = 16;
    plan.step_id = 1;
    cr_assert_eq(x.ops->submit(x.self, &plan, 0, &result, &err), BT_SUBMIT_DONE);
    cr_assert(rows[0].failed);
    cr_assert_eq(r.requests[1].n_out, 0);
    x.ops->destroy(x.self);
    rig_requests_fini(&r);
    bt_model_fini(&m);
}

static void failing(const struct bt_executor_opts *eo, const char *part)
{
    struct bt_error err = {0};
    struct bt_executor x;
    cr_assert_eq(bt_cpu_executor_create(eo, &x, &err), BT_ERR_ARG);
    cr_assert_not_null(strstr(err.msg, part), "\"%s\" does not say \"%s\"", err.msg, part);
}

Test(cpu_serve, options_that_do_not_fit_are_named)
{
    struct bt_model m;
    struct bt_model other;
    rig_load(&m, "berth-1m", NULL);
    rig_load(&other, "tiny-llama-mha", NULL);
    struct bt_executor_opts ok = {.model = &m, .max_seqs = 2, .n_blocks = 16};
    struct bt_executor_opts o = ok;
    o.max_model_len = 4096;
    failing(&o, "max_model_len: 4096 must be 1..2048 tokens, the context of berth-1m");
    o = ok;
    o.draft = &other;
    o.spec_k = 4;
    o.max_model_len = 512;
    failing(&o,
            "the draft tiny-llama-mha has a vocabulary of 512, the target berth-1m one of 8192");
    o = ok;
    o.self_layers = 2;
    o.spec_k = 1;
    failing(&o, "self = 2 must be 1..1 layers");
    o = ok;
    o.spec_k = 4;
    failing(&o, "k = 4 must be 1..32 with a source of draft tokens");
    o = ok;
    o.kv = BT_KV_FP8;
    failing(&o, "kv: \"fp8\" has no executor");
    o = ok;
    o.n_blocks = 0;
    failing(&o, "kv blocks: 0");
    bt_model_fini(&other);
    bt_model_fini(&m);
}

/* 16-bit and INT8 KV, and 16-bit arithmetic: near the float32 answer, and still independent of how
 * requests were served. */
Test(cpu_serve, narrow_kv_is_as_independent_of_the_schedule)
{
    static const struct bt_executor_opts kinds[] = {
        {.kv = BT_KV_FP16},
        {.kv = BT_KV_BF16, .compute = BT_ACT_BF16},
        {.kv = BT_KV_INT8, .kv_16bit = BT_KV_FP16},
    };
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct rig_requests r = {0};
        add_prompts(&r);
        struct bt_executor_opts eo = kinds[i];
        eo.model = &m;
        eo.max_seqs = N;
        eo.n_blocks = 256;
        struct rig_outcome out;
        rig_serve(&eo, &r, NULL, NULL, &out);
        free(out.summary);
        int32_t *want = rig_answers(&r);
        eo.max_seqs = 8;
        eo.n_blocks = 30;
        eo.n_host_blocks = 100;
        rig_serve(&eo, &r, rig_by_swap, NULL, &out);
        cr_assert_gt(out.summary->preempt_swap, 0);
        cr_assert_eq(rig_differs(&r, want), -1, "kind %zu", i);
        free(out.summary);
        free(want);
        rig_requests_fini(&r);
    }
    bt_model_fini(&m);
}

static void long_ones_16bit(struct bt_sched_opts *o)
{
    o->long_above_tokens = 112;
}

Test(cpu_serve, long_sequences_stay_16bit_in_an_int8_pool)
{
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    struct rig_requests r = {0};
    add_prompts(&r);
    struct bt_executor_opts eo = {.model = &m, .max_seqs = N, .n_blocks = 300, .kv = BT_KV_FP16};
    struct rig_outcome out;
    rig_serve(&eo, &r, NULL, NULL, &out);
    free(out.summary);
    int32_t *fp16 = rig_answers(&r);
    eo.kv = BT_KV_INT8;
    eo.kv_16bit = BT_KV_FP16;
    rig_serve(&eo, &r, NULL, NULL, &out);
    free(out.summary);
    int32_t *int8 = rig_answers(&r);
    rig_serve(&eo, &r, long_ones_16bit, NULL, &out);
    free(out.summary);
    for (int32_t i = 0; i < N; i++) {
        const struct bt_gen_request *q = &r.requests[i];
        const int32_t *want = q->n_prompt + NEW > 112 ? fp16 : int8;
        cr_expect_eq(memcmp(q->out, want + (size_t)i * RIG_MAX_LEN, NEW * sizeof *want), 0,
                     "request %d of %d tokens", i, q->n_prompt + NEW);
    }
    free(fp16);
    free(int8);
    rig_requests_fini(&r);
    bt_model_fini(&m);
}
