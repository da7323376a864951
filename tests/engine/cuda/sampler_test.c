/* Sampling on the GPU against engine/sample.c: the same tokens for the same draws, the same
 * probabilities; and, as counts, the distributions that they promise. */
#include "engine/cuda/ops.h"
#include "engine/cuda/sampler.h"
#include "tests/engine/cuda/rig.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 4096, SLOTS = 16 };

static struct bt_cuda_arena arena;
static struct bt_rng rng;

static void start(const char *name)
{
    (void)rig_device();
    rig_rng(&rng, name);
    bt_cuda_arena_init(&arena, name);
}

static void *take_host(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);
    cr_assert_not_null(p);
    return p;
}

/* A step: both sides of it, and where its results lie. */
struct step {
    int32_t vocab, n_seqs, max_k;
    struct bt_cuda_sampler *sampler;
    struct bt_cuda_choice *choices; /* host */
    struct bt_cuda_choice *choices_here;
    float *logits; /* host, [n_rows, vocab] */
    float *logits_here;
    int32_t n_rows;
    float *draft_logits; /* host, [max_k][n_seqs, vocab] */
    float *draft_here;   /* [n_seqs, vocab] */
    float *q_here;
    int32_t *drafts, *drafts_here; /* [n_seqs, max_k] */
    struct bt_cuda_chosen *chosen, *chosen_here;
    int32_t *last_here;
    int32_t last[SLOTS];
};

static void step_init(struct step *s, int32_t vocab, int32_t n_seqs, int32_t max_k)
{
    struct bt_error err = {0};
    *s = (struct step){.vocab = vocab, .n_seqs = n_seqs, .max_k = max_k};
    s->n_rows = n_seqs * (max_k + 1);
    size_t row = (size_t)vocab;
    cr_assert_eq(bt_cuda_sampler_create(&arena, vocab, n_seqs, max_k, &s->sampler, &err), BT_OK,
                 "%s", err.msg);
    s->choices = take_host((size_t)n_seqs, sizeof *s->choices);
    s->logits = take_host((size_t)s->n_rows * row, sizeof(float));
    s->draft_logits = take_host((size_t)(max_k * n_seqs) * row, sizeof(float));
    s->drafts = take_host((size_t)(n_seqs * max_k), sizeof(int32_t));
    s->chosen = take_host((size_t)n_seqs, sizeof *s->chosen);
    int64_t row_bytes = (int64_t)vocab * 4;
    s->choices_here = rig_take(&arena, n_seqs * (int64_t)sizeof *s->choices);
    s->logits_here = rig_take(&arena, s->n_rows * row_bytes);
    s->draft_here = rig_take(&arena, n_seqs * row_bytes);
    s->q_here = rig_take(&arena, n_seqs * max_k * row_bytes);
    s->drafts_here = rig_take(&arena, n_seqs * max_k * 4);
    s->chosen_here = rig_take(&arena, n_seqs * (int64_t)sizeof *s->chosen);
    s->last_here = rig_take(&arena, (int64_t)sizeof s->last);
    for (int32_t i = 0; i < n_seqs; i++) {
        s->choices[i] = (struct bt_cuda_choice){.first_row = i * (max_k + 1),
                                                .k = max_k,
                                                .position = 1 + 3 * i,
                                                .slot = i < SLOTS ? i : -1,
                                                .force = -1.0f,
                                                .seed = bt_rng_u64(&rng)};
    }
}

static void step_fini(struct step *s)
{
    bt_cuda_sampler_destroy(s->sampler);
    free(s->choices);
    free(s->logits);
    free(s->draft_logits);
    free(s->drafts);
    free(s->chosen);
    bt_cuda_arena_fini(&arena);
}

static bool all_greedy(const struct step *s)
{
    for (int32_t i = 0; i < s->n_seqs; i++) {
        if (s->choices[i].temperature > 0.0f) {
            return false;
        }
    }
    return true;
}

static void run_drafts(struct step *s)
{
    int64_t bytes = (int64_t)s->n_seqs * s->vocab * 4;
    rig_write(s->choices_here, s->choices, s->n_seqs * (int64_t)sizeof *s->choices);
    rig_poison(s->q_here, bytes * s->max_k);
    rig_poison(s->drafts_here, s->n_seqs * s->max_k * 4);
    for (int32_t j = 0; j < s->max_k; j++) {
        rig_write(s->draft_here, s->draft_logits + (int64_t)j * s->n_seqs * s->vocab, bytes);
        bt_cuda_sample_draft(s->sampler, s->draft_here, s->choices_here, s->n_seqs, all_greedy(s),
                             j, s->drafts_here, s->q_here, NULL);
    }
    rig_download(s->drafts, s->drafts_here, s->n_seqs * s->max_k * 4);
}

static void run_target(struct step *s)
{
    rig_write(s->choices_here, s->choices, s->n_seqs * (int64_t)sizeof *s->choices);
    rig_write(s->logits_here, s->logits, (int64_t)s->n_rows * s->vocab * 4);
    rig_poison(s->chosen_here, s->n_seqs * (int64_t)sizeof *s->chosen);
    rig_poison(s->last_here, (int64_t)sizeof s->last);
    bt_cuda_sample(s->sampler, s->logits_here, s->choices_here, s->n_seqs, all_greedy(s),
                   s->max_k > 0 ? s->drafts_here : NULL, s->q_here, s->chosen_here, s->last_here,
                   NULL);
    rig_download(s->chosen, s->chosen_here, s->n_seqs * (int64_t)sizeof *s->chosen);
    rig_download(s->last, s->last_here, (int64_t)sizeof s->last);
}

enum shape { NORMAL, PEAKED, TIES, FLAT, FAR, SHAPES };

/* Logits as models give them, and worse. */
static void fill(float *x, int32_t n, enum shape shape)
{
    for (int32_t i = 0; i < n; i++) {
        double z = bt_rng_normal(&rng);
        double by_shape[SHAPES] = {2.5 * z, 8.0 * z, floor(1.5 * z), 1.25, 60.0 * z};
        x[i] = (float)by_shape[shape];
    }
}

static struct bt_sampling sampling_of(const struct bt_cuda_choice *c)
{
    return (struct bt_sampling){
        .temperature = c->temperature, .top_k = c->top_k, .top_p = c->top_p, .seed = c->seed};
}

/* ---- one token ---- */

static const struct how {
    float temperature;
    int32_t top_k;
    float top_p;
} hows[] = {
    {0.0f, 0, 0.0f},      {1.0f, 0, 0.0f},    {0.7f, 0, 1.0f},       {100.0f, 0, 0.0f},
    {1.0f, 1, 0.0f},      {1.0f, 5, 0.0f},    {0.8f, 50, 0.95f},     {1.0f, 0, 0.1f},
    {1.0f, 0, 0.9f},      {1.5f, 1000, 0.5f}, {1.0f, 0, 0.9999999f}, {0.01f, 40, 0.9f},
    {100.0f, 333, 0.77f}, {1.0f, 0, 1e-6f},   {1.0f, 1 << 30, 0.3f}, {2.0f, 2, 0.5f},
};
enum { N_HOWS = sizeof hows / sizeof *hows };

static void expect_probs(const struct step *s, int32_t i, const float *got, const float *want,
                         enum shape shape)
{
    const struct bt_cuda_choice *c = &s->choices[i];
    for (int32_t j = 0; j < s->vocab; j++) {
        int64_t a = 0;
        int64_t b = 0;
        memcpy(&a, &got[j], sizeof(float));
        memcpy(&b, &want[j], sizeof(float));
        cr_assert(llabs(a - b) <= 1 && (a == 0) == (b == 0),
                  "vocab %d, shape %d, T %g, k %d, p %g: p[%d] is %.9g, not %.9g", s->vocab, shape,
                  (double)c->temperature, c->top_k, (double)c->top_p, j, (double)got[j],
                  (double)want[j]);
    }
}

static void check_tokens(int32_t vocab, enum shape shape)
{
    struct step s;
    struct bt_error err = {0};
    struct bt_arena host = {0};
    struct bt_sampler cpu;
    bt_arena_init(&host, (size_t)vocab * 4 + 4096);
    cr_assert_eq(bt_sampler_init(&cpu, &host, vocab, &err), BT_OK, "%s", err.msg);
    step_init(&s, vocab, N_HOWS, 0);
    for (int32_t i = 0; i < N_HOWS; i++) {
        s.choices[i].temperature = hows[i].temperature;
        s.choices[i].top_k = hows[i].top_k;
        s.choices[i].top_p = hows[i].top_p;
    }
    fill(s.logits, N_HOWS * vocab, shape);
    run_target(&s);
    float *probs = take_host((size_t)vocab, sizeof *probs);
    float *got = take_host((size_t)vocab, sizeof *got);
    for (int32_t i = 0; i < N_HOWS; i++) {
        struct bt_sampling how = sampling_of(&s.choices[i]);
        const float *logits = s.logits + (size_t)i * (size_t)vocab;
        int32_t want = bt_sample_token(&cpu, logits, &how, s.choices[i].position, probs);
        cr_expect(s.chosen[i].n_tokens == 1 && s.chosen[i].failed == 0 &&
                      s.chosen[i].n_accepted == 0,
                  "vocab %d", vocab);
        cr_expect_eq(s.chosen[i].tokens[0], want,
                     "vocab %d, shape %d, T %g, k %d, p %g: token %d, not %d", vocab, shape,
                     (double)how.temperature, how.top_k, (double)how.top_p, s.chosen[i].tokens[0],
                     want);
        cr_expect_eq(s.last[i], s.chosen[i].tokens[0]);
        if (how.temperature > 0.0f) {
            rig_download(got, s.logits_here + (size_t)i * (size_t)vocab, (int64_t)vocab * 4);
            expect_probs(&s, i, got, probs, shape);
        }
    }
    free(probs);
    free(got);
    step_fini(&s);
    bt_arena_fini(&host);
}

Test(cuda_sampler, tokens_and_probabilities)
{
    start("tokens");
    static const int32_t vocabs[] = {1, 2, 31, 1000, 4096, 4097, 32000, 151936};
    for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++) {
        for (int32_t shape = 0; shape < SHAPES; shape++) {
            check_tokens(vocabs[i], (enum shape)shape);
        }
    }
}

/* With 2^20 equal probabilities the token is the draw's first 20 bits. */
Test(cuda_sampler, draws_are_the_hosts)
{
    start("draws");
    enum { VOCAB = 1 << 20, N = 16 };
    struct step s;
    step_init(&s, VOCAB, N, 0);
    for (int32_t i = 0; i < N; i++) {
        s.choices[i].temperature = 1.0f;
        s.choices[i].position = i % 2 == 0 ? i : (int32_t)bt_rng_below(&rng, INT32_MAX);
        s.choices[i].seed = i < 4 ? (uint64_t)i : bt_rng_u64(&rng);
    }
    fill(s.logits, N * VOCAB, FLAT);
    run_target(&s);
    for (int32_t i = 0; i < N; i++) {
        double u = bt_sample_uniform(s.choices[i].seed, BT_DRAW_TOKEN, s.choices[i].position);
        cr_expect_eq(s.chosen[i].tokens[0], (int32_t)(u * VOCAB), "seed %llu, position %d",
                     (unsigned long long)s.choices[i].seed, s.choices[i].position);
    }
    step_fini(&s);
}

Test(cuda_sampler, what_is_no_number_is_told)
{
    start("no numbers");
    enum { VOCAB = 9001, N = 12 };
    struct step s;
    step_init(&s, VOCAB, N, 0);
    fill(s.logits, N * VOCAB, NORMAL);
    static const float planted[] = {NAN, INFINITY, -INFINITY, 0.0f};
    for (int32_t i = 0; i < N; i++) {
        float *row = s.logits + (size_t)i * VOCAB;
        s.choices[i].temperature = i % 2 == 0 ? 0.0f : 1.0f;
        s.choices[i].top_k = i % 4 == 3 ? 20 : 0;
        int32_t at = (int32_t)bt_rng_below(&rng, VOCAB);
        if (i < 8) {
            row[at] = planted[i / 2];
        } else if (i < 10) {
            for (int32_t j = 0; j < VOCAB; j++) {
                row[j] = -INFINITY;
            }
        } else {
            s.choices[i].first_row = -1;
        }
    }
    run_target(&s);
    for (int32_t i = 0; i < N; i++) {
        bool bad = i < 4 || (i >= 8 && i < 10);
        cr_expect_eq(s.chosen[i].failed, bad, "sequence %d", i);
        cr_expect_eq(s.chosen[i].n_tokens, bad || i >= 10 ? 0 : 1, "sequence %d", i);
        if (bad || i >= 10) {
            uint8_t poison[4] = {RIG_POISON, RIG_POISON, RIG_POISON, RIG_POISON};
            cr_expect_arr_eq(&s.last[i], poison, 4, "sequence %d wrote its slot", i);
        }
    }
    step_fini(&s);
}

Test(cuda_sampler, a_vocabulary_beyond_the_limit_is_refused)
{
    start("limit");
    struct bt_cuda_sampler *s = NULL;
    struct bt_error err = {0};
    cr_expect_eq(bt_cuda_sampler_create(&arena, (1 << 20) + 1, 1, 0, &s, &err), BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "1048577 tokens; at most 1048576"), "%s", err.msg);
    cr_expect_null(s);
    bt_cuda_arena_fini(&arena);
}

/* ---- speculation ---- */

/* What engine/cpu's speculate.c and verify.c do with the logits of a sequence. */
struct twin {
    struct bt_arena host;
    struct bt_sampler cpu;
    float *p, *q;
};

static void twin_init(struct twin *t, int32_t vocab)
{
    struct bt_error err = {0};
    *t = (struct twin){0};
    bt_arena_init(&t->host, (size_t)vocab * 4 + 4096);
    cr_assert_eq(bt_sampler_init(&t->cpu, &t->host, vocab, &err), BT_OK, "%s", err.msg);
    t->p = take_host((size_t)vocab, sizeof(float));
    t->q = take_host((size_t)vocab, sizeof(float));
}

static void twin_fini(struct twin *t)
{
    free(t->p);
    free(t->q);
    bt_arena_fini(&t->host);
}

/* Draft token j of a sequence, and q. */
static int32_t twin_draft(struct twin *t, const struct step *s, int32_t i, int32_t j)
{
    const struct bt_cuda_choice *c = &s->choices[i];
    struct bt_sampling how = sampling_of(c);
    const float *logits = s->draft_logits + (size_t)(j * s->n_seqs + i) * (size_t)s->vocab;
    if (c->temperature == 0.0f || c->force >= 0.0f) {
        int32_t token = bt_sample_argmax(logits, s->vocab);
        return token < 0 ? 0 : token;
    }
    if (!bt_sample_probs(&t->cpu, logits, &how, t->q)) {
        memset(t->q, 0, (size_t)s->vocab * sizeof(float));
        t->q[0] = 1.0f;
        return 0;
    }
    return bt_sample_at(t->q, s->vocab, bt_sample_uniform(c->seed, BT_DRAW_DRAFT, c->position + j));
}

static struct bt_cuda_chosen twin_verify(struct twin *t, const struct step *s, int32_t i)
{
    const struct bt_cuda_choice *c = &s->choices[i];
    struct bt_sampling how = sampling_of(c);
    struct bt_cuda_chosen out = {0};
    bool more = true;
    for (int32_t j = 0; j <= c->k && more; j++) {
        const float *logits = s->logits + (size_t)(c->first_row + j) * (size_t)s->vocab;
        int32_t token = bt_sample_argmax(logits, s->vocab);
        bool judged = j < c->k;
        more = false;
        if (token < 0) {
            out.failed = 1;
            break;
        }
        double accept = bt_sample_uniform(c->seed, BT_DRAW_ACCEPT, c->position + j);
        double other =
            bt_sample_uniform(c->seed, judged ? BT_DRAW_RESIDUAL : BT_DRAW_TOKEN, c->position + j);
        int32_t proposed = judged ? twin_draft(t, s, i, j) : -1;
        if (c->temperature > 0.0f) {
            cr_assert(bt_sample_probs(&t->cpu, logits, &how, t->p));
        }
        if (judged && c->force >= 0.0f) {
            more = accept < (double)c->force;
        } else if (judged && c->temperature > 0.0f) {
            more = bt_sample_accepts(t->p, t->q, proposed, accept);
        } else if (judged) {
            more = token == proposed;
        }
        if (more) {
            token = proposed;
        } else if (c->temperature > 0.0f && judged && c->force < 0.0f) {
            token = bt_sample_residual(t->p, t->q, s->vocab, other);
        } else if (c->temperature > 0.0f) {
            token = bt_sample_at(t->p, s->vocab, other);
        }
        out.tokens[out.n_tokens++] = token;
        out.n_accepted += more;
    }
    return out;
}

static void check_speculation(int32_t vocab, int32_t n_seqs, enum shape shape)
{
    enum { K = 4 };
    struct step s;
    struct twin t;
    twin_init(&t, vocab);
    step_init(&s, vocab, n_seqs, K);
    fill(s.logits, s.n_rows * vocab, shape);
    fill(s.draft_logits, K * n_seqs * vocab, shape);
    for (int32_t i = 0; i < n_seqs; i++) {
        struct bt_cuda_choice *c = &s.choices[i];
        c->temperature = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1.0f : 0.6f;
        c->top_k = i % 5 == 1 ? 20 : 0;
        c->top_p = i % 4 == 1 ? 0.9f : 0.0f;
        c->k = i % 7 == 6 ? 2 : i % 7 == 5 ? 0 : K;
        c->force = i % 6 == 5 || i % 6 == 3 ? 0.72f : -1.0f;
        for (int32_t j = 0; j < K; j++) {
            /* Drafts that are the target with noise: some are accepted. */
            float *draft = s.draft_logits + (size_t)(j * n_seqs + i) * (size_t)vocab;
            const float *target = s.logits + (size_t)(c->first_row + j) * (size_t)vocab;
            for (int32_t v = 0; v < vocab && i % 8 != 7; v++) {
                draft[v] = i % 8 == 6 ? target[v] : target[v] + 0.3f * draft[v];
            }
        }
        if (i == 10) { /* a draft that gives no number, and a target later */
            s.draft_logits[(size_t)i * (size_t)vocab] = NAN;
            s.logits[(size_t)(c->first_row + 1) * (size_t)vocab] = NAN;
        }
    }
    run_drafts(&s);
    int64_t accepted = 0;
    for (int32_t i = 0; i < n_seqs; i++) {
        for (int32_t j = 0; j < K; j++) {
            int32_t got = s.drafts[i * K + j];
            if (j < s.choices[i].k) {
                int32_t want = twin_draft(&t, &s, i, j);
                cr_expect_eq(got, want, "vocab %d, shape %d, sequence %d: draft %d is %d, not %d",
                             vocab, shape, i, j, got, want);
            } else {
                cr_expect_eq((uint32_t)got, 0x01010101u * RIG_POISON, "draft %d of %d", j, i);
            }
        }
    }
    run_target(&s);
    for (int32_t i = 0; i < n_seqs; i++) {
        struct bt_cuda_chosen want = twin_verify(&t, &s, i);
        const struct bt_cuda_chosen *got = &s.chosen[i];
        cr_assert(got->n_tokens == want.n_tokens && got->n_accepted == want.n_accepted &&
                      got->failed == want.failed,
                  "vocab %d, shape %d, sequence %d: %d tokens, %d accepted, failed %d; not %d, %d, "
                  "%d",
                  vocab, shape, i, got->n_tokens, got->n_accepted, got->failed, want.n_tokens,
                  want.n_accepted, want.failed);
        for (int32_t j = 0; j < want.n_tokens; j++) {
            cr_expect_eq(got->tokens[j], want.tokens[j],
                         "vocab %d, shape %d, sequence %d: token %d is %d, not %d", vocab, shape, i,
                         j, got->tokens[j], want.tokens[j]);
        }
        accepted += want.n_accepted;
    }
    cr_expect(accepted > 0 || vocab == 1, "nothing was accepted");
    twin_fini(&t);
    step_fini(&s);
}

Test(cuda_sampler, speculation_is_the_cpus)
{
    start("speculation");
    for (int32_t shape = 0; shape < SHAPES; shape++) {
        check_speculation(100, 200, (enum shape)shape);
        check_speculation(5003, 48, (enum shape)shape);
    }
    check_speculation(1, 24, NORMAL);
    check_speculation(128256, 24, NORMAL);
}

/* ---- distributions ---- */

enum { SMALL = 6, DRAWS = 60000 };

/* Sum of (seen - expected)² / expected. */
static double chi_square(const int64_t *seen, const double *p, int64_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < SMALL; i++) {
        double expected = p[i] * (double)n;
        sum += ((double)seen[i] - expected) * ((double)seen[i] - expected) / expected;
    }
    return sum;
}

/* Counts the first tokens of DRAWS verifications of one draft token. With `lie`, the judge is told
 * that the draft was drawn evenly. */
static int64_t count_first(const double *p, const double *q, bool lie, int64_t *seen)
{
    struct step s;
    step_init(&s, SMALL, MAX_SEQS, 1);
    float *even = take_host((size_t)MAX_SEQS * SMALL, sizeof *even);
    for (int32_t i = 0; i < MAX_SEQS; i++) {
        s.choices[i].temperature = 1.0f;
        for (int32_t v = 0; v < SMALL; v++) {
            s.logits[(2 * i) * SMALL + v] = s.logits[(2 * i + 1) * SMALL + v] = (float)log(p[v]);
            s.draft_logits[i * SMALL + v] = (float)log(q[v]);
            even[i * SMALL + v] = 1.0f / SMALL;
        }
    }
    memset(seen, 0, SMALL * sizeof *seen);
    int64_t n = 0;
    while (n < DRAWS) {
        for (int32_t i = 0; i < MAX_SEQS; i++) {
            s.choices[i].seed = bt_rng_u64(&rng);
        }
        run_drafts(&s);
        if (lie) {
            rig_write(s.q_here, even, (int64_t)MAX_SEQS * SMALL * 4);
        }
        run_target(&s);
        for (int32_t i = 0; i < MAX_SEQS; i++, n++) {
            seen[s.chosen[i].tokens[0]]++;
        }
    }
    free(even);
    step_fini(&s);
    return n;
}

Test(cuda_sampler, rejection_leaves_the_targets_distribution)
{
    start("rejection");
    static const double p[SMALL] = {0.40, 0.25, 0.15, 0.10, 0.07, 0.03};
    static const double q[SMALL] = {0.10, 0.45, 0.05, 0.20, 0.15, 0.05};
    int64_t seen[SMALL];
    /* 5 degrees of freedom: beyond 32 once in 170 000 runs. */
    int64_t n = count_first(p, q, false, seen);
    double chi = chi_square(seen, p, n);
    cr_expect_lt(chi, 32.0, "chi-square %.1f", chi);
    /* The wrong rule is found out by the same count. */
    n = count_first(p, q, true, seen);
    chi = chi_square(seen, p, n);
    cr_expect_gt(chi, 320.0, "a judge that does not know q passes: chi-square %.1f", chi);
}

Test(cuda_sampler, forced_acceptance_is_conditional)
{
    start("forced");
    enum { K = 4 };
    struct step s;
    step_init(&s, SMALL, MAX_SEQS, K);
    fill(s.logits, s.n_rows * SMALL, NORMAL);
    fill(s.draft_logits, K * MAX_SEQS * SMALL, NORMAL);
    for (int32_t i = 0; i < MAX_SEQS; i++) {
        s.choices[i].temperature = i % 2 == 0 ? 0.0f : 1.0f;
        s.choices[i].force = 0.72f;
    }
    run_drafts(&s);
    run_target(&s);
    int64_t reached[K] = {0};
    int64_t accepted[K] = {0};
    for (int32_t i = 0; i < MAX_SEQS; i++) {
        cr_assert_eq(s.chosen[i].n_tokens, s.chosen[i].n_accepted + 1);
        for (int32_t j = 0; j < K && j <= s.chosen[i].n_accepted; j++) {
            reached[j]++;
            accepted[j] += j < s.chosen[i].n_accepted;
        }
    }
    for (int32_t j = 0; j < K; j++) {
        double rate = (double)accepted[j] / (double)reached[j];
        double deviation = sqrt(0.72 * 0.28 / (double)reached[j]);
        cr_expect_float_eq(rate, 0.72, 5.0 * deviation, "draft %d: %.4f of %lld", j, rate,
                           (long long)reached[j]);
    }
    step_fini(&s);
}
