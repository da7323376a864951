/* Speculation changes how fast tokens come, never which: greedy answers are the plain ones, and
 * sampled ones have the target's distribution. */
#include "engine/core/rng.h"
#include "engine/model/tokenizer.h"
#include "engine/sample.h"
#include "tests/engine/cpu/engine_rig.h"
#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- greedy ---- */

/* Prompts of prompts.jsonl as tokens, cut; answers of n_new / 2 up to n_new tokens. */
static void add_prompts(struct rig_requests *r, int32_t n, int32_t n_cut, int32_t n_new)
{
    struct bt_error err = {0};
    struct bt_tokenizer *t;
    cr_assert_eq(bt_tokenizer_load_dir(rig_model_path("berth-12m"), &t, &err), BT_OK, "%s",
                 err.msg);
    FILE *f = fopen(rig_model_path("prompts.jsonl"), "r");
    cr_assert_not_null(f);
    for (int32_t i = 0; i < n; i++) {
        json_t *line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
        cr_assert_not_null(line);
        const char *text = json_string_value(json_object_get(line, "prompt"));
        struct bt_ids ids = {0};
        cr_assert_eq(bt_tokenizer_encode(t, text, strlen(text), NULL, &ids, &err), BT_OK, "%s",
                     err.msg);
        int32_t n_ids = ids.n < n_cut ? (int32_t)ids.n : n_cut;
        struct bt_gen_request *q = rig_add(r, ids.ids, n_ids, n_new - n_new * i / (2 * n));
        q->ignore_eos = false;
        bt_ids_fini(&ids);
        json_decref(line);
    }
    (void)fclose(f);
    bt_tokenizer_destroy(t);
}

static void adaptive(struct bt_sched_opts *o)
{
    o->spec.k_adaptive = true;
    o->spec.draft_cost_ratio = 0.2;
}

static void on_and_off(struct bt_sched_opts *o)
{
    o->spec.off_above_batch = 6;
    o->spec.on_below_batch = 4;
}

static void swapping(struct bt_sched_opts *o)
{
    o->preempt = BT_PREEMPT_SWAP;
}

struct speculation {
    const char *name;
    bool draft, medusa;
    int32_t self, k;
    bool tight; /* too few blocks for all at once */
    void (*tune)(struct bt_sched_opts *);
    double least_len; /* accepted_len must reach it */
};

struct spec_models {
    struct bt_model target, draft;
    struct bt_medusa medusa;
};

static void load_all(struct spec_models *s)
{
    struct bt_error err = {0};
    rig_load(&s->target, "berth-12m", NULL);
    rig_load(&s->draft, "berth-1m", NULL);
    cr_assert_eq(bt_medusa_load(&s->medusa, rig_model_path("berth-12m-medusa"), 384, &err), BT_OK,
                 "%s", err.msg);
}

static void fini_all(struct spec_models *s)
{
    bt_medusa_fini(&s->medusa);
    bt_model_fini(&s->draft);
    bt_model_fini(&s->target);
}

static void run_kind(const struct spec_models *ms, const struct speculation *s,
                     struct rig_requests *r, struct rig_outcome *out)
{
    int32_t n = (int32_t)r->table.n;
    int32_t n_need = 0;
    int32_t block = s->tight ? 4 : 16;
    for (int32_t i = 0; i < n; i++) {
        n_need += (r->requests[i].n_prompt + r->requests[i].max_new_tokens) / block + 1;
    }
    struct bt_executor_opts eo = {
        .model = &ms->target,
        .draft = s->draft ? &ms->draft : NULL,
        .medusa = s->medusa ? &ms->medusa : NULL,
        .self_layers = s->self,
        .spec_k = s->k,
        .max_seqs = n,
        .block_tokens = block,
        .n_blocks = s->tight ? n_need / 2 : n_need + n,
        .n_host_blocks = n_need,
    };
    rig_serve(&eo, r, s->tune, NULL, out);
}

/* Answers with each kind of speculation are those without any. */
static void compare_kinds(const struct speculation *kinds, size_t n_kinds, int32_t n_prompts,
                          int32_t n_cut, int32_t n_new)
{
    struct spec_models ms;
    load_all(&ms);
    struct rig_requests r = {0};
    add_prompts(&r, n_prompts, n_cut, n_new);
    struct rig_outcome out;
    struct speculation plain = {.name = "none"};
    run_kind(&ms, &plain, &r, &out);
    free(out.summary);
    int32_t *want = rig_answers(&r);
    for (size_t i = 0; i < n_kinds; i++) {
        const struct speculation *s = &kinds[i];
        run_kind(&ms, s, &r, &out);
        int32_t bad = rig_differs(&r, want);
        cr_expect_eq(bad, -1, "%s, K = %d: request %d differs", s->name, s->k, bad);
        cr_expect_geq(out.summary->accepted_len, s->least_len, "%s: accepted_len %.3f", s->name,
                      out.summary->accepted_len);
        int64_t n_preempts = out.summary->preempt_swap + out.summary->preempt_recompute;
        cr_expect(!s->tight || n_preempts > 0, "%s: nothing was preempted", s->name);
        free(out.summary);
    }
    free(want);
    rig_requests_fini(&r);
    fini_all(&ms);
}

Test(cpu_spec, greedy_answers_are_those_without_speculation)
{
    static const struct speculation kinds[] = {
        {"draft", true, false, 0, 4, false, NULL, 1.5},
        {"medusa", false, true, 0, 3, false, NULL, 1.1},
        {"self", false, false, 3, 2, false, NULL, 1.0},
    };
    if (rig_scale() == RIG_REDUCED) {
        compare_kinds(kinds, 2, 3, 48, 24);
    } else {
        compare_kinds(kinds, 3, 16, 256, 64);
    }
}

Test(cpu_spec, control_and_preemption_change_no_token)
{
    static const struct speculation kinds[] = {
        {"draft 1", true, false, 0, 1, false, NULL, 1.2},
        {"draft, adaptive", true, false, 0, 8, false, adaptive, 1.2},
        {"draft, on and off", true, false, 0, 3, false, on_and_off, 1.2},
        {"draft, recompute", true, false, 0, 3, true, NULL, 1.2},
        {"draft, swap", true, false, 0, 3, true, swapping, 1.2},
        {"medusa, recompute", false, true, 0, 3, true, NULL, 1.0},
        {"self, swap", false, false, 1, 4, true, swapping, 1.0},
    };
    size_t n = sizeof kinds / sizeof *kinds;
    if (rig_scale() == RIG_REDUCED) {
        compare_kinds(kinds, n, 8, 24, 12);
    } else {
        compare_kinds(kinds, n, 12, 48, 32);
    }
}

/* Every K of every kind over many prompts. */
Test(cpu_spec, greedy_answers_for_every_k)
{
    if (rig_scale() != RIG_FULL) {
        return;
    }
    struct speculation kinds[19];
    size_t n = 0;
    for (int32_t k = 1; k <= 8; k++) {
        kinds[n++] = (struct speculation){.name = "draft", .draft = true, .k = k};
        kinds[n++] = (struct speculation){.name = "self", .self = 3, .k = k};
    }
    for (int32_t k = 1; k <= 3; k++) {
        kinds[n++] = (struct speculation){.name = "medusa", .medusa = true, .k = k};
    }
    compare_kinds(kinds, n, RIG_MAX_REQUESTS, 256, 64);
}

/* ---- the acceptance prompts: plans by hand, so that every window begins where the reference's
 * did ---- */

struct driven {
    struct bt_executor x;
    struct rig_requests r;
    int32_t n_blocks; /* of each sequence */
    int32_t *tables;
    struct bt_plan_seq seqs[RIG_MAX_REQUESTS];
    struct bt_result_seq rows[RIG_MAX_REQUESTS];
    struct bt_step_result result;
    int64_t step;
};

static void submit(struct driven *d, int32_t n)
{
    struct bt_error err = {0};
    struct bt_step_plan plan = {
        .step_id = d->step++, .n_seqs = n, .seqs = d->seqs, .speculative = true};
    d->result.seqs = d->rows;
    cr_assert_eq(d->x.ops->submit(d->x.self, &plan, 0, &d->result, &err), BT_SUBMIT_DONE, "%s",
                 err.msg);
}

/* All prompts but their last token, in one step. */
static void prefill(struct driven *d)
{
    for (int32_t i = 0; i < (int32_t)d->r.table.n; i++) {
        int32_t n = d->r.requests[i].n_prompt;
        d->seqs[i] = (struct bt_plan_seq){
            .user = (uint64_t)i,
            .slot = i,
            .n_prompt = n,
            .n_tokens = n - 1,
            .draft_catchup = n - 1,
            .flags = BT_SEQ_START,
            .n_blocks = d->n_blocks,
            .blocks = d->tables + (size_t)i * (size_t)d->n_blocks,
        };
    }
    submit(d, (int32_t)d->r.table.n);
}

/* Verifications of up to k tokens until every answer has n_want tokens; returns the mean emitted.
 */
static double verify_all(struct driven *d, int32_t k, int32_t n_want)
{
    int64_t n_verified = 0;
    int64_t n_emitted = 0;
    int32_t n_all = (int32_t)d->r.table.n;
    int32_t draft_ctx[RIG_MAX_REQUESTS];
    for (int32_t i = 0; i < n_all; i++) {
        draft_ctx[i] = d->r.requests[i].n_prompt - 1;
    }
    for (;;) {
        int32_t n = 0;
        int32_t who[RIG_MAX_REQUESTS];
        for (int32_t i = 0; i < n_all; i++) {
            const struct bt_gen_request *q = &d->r.requests[i];
            if (q->n_out >= n_want) {
                continue;
            }
            int32_t left = n_want - q->n_out;
            int32_t ctx = q->n_prompt + q->n_out - 1;
            int32_t k_now = k < left ? k : left;
            d->seqs[n] = (struct bt_plan_seq){
                .user = (uint64_t)i,
                .slot = i,
                .n_prompt = q->n_prompt,
                .n_generated = q->n_out,
                .ctx = ctx,
                .n_tokens = 1 + k_now,
                .k_spec = k_now,
                .draft_catchup = ctx - draft_ctx[i],
                .flags = BT_SEQ_EMITS,
                .n_blocks = d->n_blocks,
                .blocks = d->tables + (size_t)i * (size_t)d->n_blocks,
            };
            draft_ctx[i] = ctx + k_now;
            who[n++] = i;
        }
        if (n == 0) {
            break;
        }
        submit(d, n);
        for (int32_t j = 0; j < n; j++) {
            n_verified++;
            n_emitted += d->rows[j].n_emitted;
            cr_assert_eq(d->rows[j].n_emitted, d->rows[j].n_accepted + 1);
            const struct bt_gen_request *q = &d->r.requests[who[j]];
            int32_t ctx = q->n_prompt + q->n_out - 1;
            draft_ctx[who[j]] = draft_ctx[who[j]] < ctx ? draft_ctx[who[j]] : ctx;
        }
    }
    return (double)n_emitted / (double)n_verified;
}

static void driven_init(struct driven *d, const struct bt_model *m, const struct bt_model *draft,
                        int32_t k, const json_t *prompts)
{
    struct bt_error err = {0};
    memset(d, 0, sizeof *d);
    d->n_blocks = (128 + 128 + 16) / 16;
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        int32_t n;
        int32_t *ids = rig_ids(json_object_get(json_array_get(prompts, i), "ids"), &n);
        (void)rig_add(&d->r, ids, n, 130);
        free(ids);
    }
    int32_t n_all = (int32_t)d->r.table.n * d->n_blocks;
    d->tables = calloc((size_t)n_all, sizeof *d->tables);
    for (int32_t i = 0; i < n_all; i++) {
        d->tables[i] = n_all - 1 - i;
    }
    struct bt_executor_opts eo = {
        .model = m,
        .draft = draft,
        .spec_k = k,
        .max_seqs = (int32_t)d->r.table.n,
        .n_blocks = n_all,
        .max_model_len = 512,
        .requests = &d->r.table,
        .n_threads = 1,
    };
    cr_assert_eq(bt_cpu_executor_create(&eo, &d->x, &err), BT_OK, "%s", err.msg);
}

static void driven_fini(struct driven *d)
{
    d->x.ops->destroy(d->x.self);
    free(d->tables);
    rig_requests_fini(&d->r);
}

Test(cpu_acceptance, accepted_len_by_k_is_the_reference_s)
{
    static const struct {
        int32_t k;
        const char *key;
    } cases[] = {{1, "1"}, {2, "2"}, {4, "4"}, {8, "8"}};
    struct bt_model m;
    struct bt_model draft;
    rig_load(&m, "berth-12m", NULL);
    rig_load(&draft, "berth-1m", NULL);
    json_t *root = rig_json("acceptance_prompts.json");
    const json_t *prompts = json_object_get(root, "prompts");
    cr_assert_eq(json_array_size(prompts), 38);
    if (rig_scale() == RIG_REDUCED) {
        json_decref(root);
        bt_model_fini(&draft);
        bt_model_fini(&m);
        return;
    }
    for (size_t c = rig_scale() == RIG_FULL ? 0 : 2; c < 4; c += rig_scale() == RIG_FULL ? 1 : 2) {
        struct driven d;
        driven_init(&d, &m, &draft, cases[c].k, prompts);
        prefill(&d);
        double len = verify_all(&d, cases[c].k, 128);
        const json_t *by_k = json_object_get(json_object_get(root, "by_k"), cases[c].key);
        double want = json_number_value(json_object_get(by_k, "accepted_len"));
        cr_expect_float_eq(len, want, 5.1e-5, "K = %d: accepted_len %.5f, expected %.4f",
                           cases[c].k, len, want);
        const json_t *conditional = json_object_get(by_k, "acceptance_conditional");
        struct bt_spec_counts sum = {0};
        for (int64_t i = 0; i < d.r.table.n; i++) {
            bt_spec_counts_add(&sum, &d.r.requests[i].spec);
        }
        for (int32_t j = 0; j < cases[c].k; j++) {
            double p = json_number_value(json_array_get(conditional, (size_t)j));
            cr_expect_float_eq((double)sum.accepted[j] / sum.reached[j], p, 5.1e-5,
                               "K = %d, position %d", cases[c].k, j);
        }
        for (size_t i = 0; i < json_array_size(prompts); i++) {
            int32_t n;
            int32_t *want_ids =
                rig_ids(json_object_get(json_array_get(prompts, i), "greedy128"), &n);
            cr_expect_eq(memcmp(d.r.requests[i].out, want_ids, (size_t)n * sizeof *want_ids), 0,
                         "K = %d: tokens of prompt %zu", cases[c].k, i);
            free(want_ids);
        }
        driven_fini(&d);
    }
    json_decref(root);
    bt_model_fini(&draft);
    bt_model_fini(&m);
}

/* Softmax in double. */
static void softmax(const float *logits, int32_t vocab, double *p)
{
    int32_t best = rig_argmax(logits, vocab);
    double sum = 0.0;
    for (int32_t i = 0; i < vocab; i++) {
        p[i] = exp((double)logits[i] - (double)logits[best]);
        sum += p[i];
    }
    for (int32_t i = 0; i < vocab; i++) {
        p[i] /= sum;
    }
}

/* Draft and target side by side over a text. */
struct pair {
    struct bt_model target, draft;
    struct bt_session *target_s, *draft_s;
    int32_t vocab;
    float *t, *q;    /* [128, vocab] logits of both */
    double *pt, *pq; /* [vocab] */
};

static void pair_init(struct pair *p)
{
    rig_load(&p->target, "berth-12m", NULL);
    rig_load(&p->draft, "berth-1m", NULL);
    p->target_s = rig_session(&p->target, BT_KV_FP32);
    p->draft_s = rig_session(&p->draft, BT_KV_FP32);
    p->vocab = p->target.config.arch.vocab;
    p->t = calloc((size_t)p->vocab * 128, sizeof *p->t);
    p->q = calloc((size_t)p->vocab * 128, sizeof *p->q);
    p->pt = calloc((size_t)p->vocab, sizeof *p->pt);
    p->pq = calloc((size_t)p->vocab, sizeof *p->pq);
}

static void pair_fini(struct pair *p)
{
    free(p->t);
    free(p->q);
    free(p->pt);
    free(p->pq);
    bt_cpu_session_destroy(p->target_s);
    bt_cpu_session_destroy(p->draft_s);
    bt_model_fini(&p->draft);
    bt_model_fini(&p->target);
}

/* Logits of both for each token of the answer, given prompt and the answer before it. */
static void pair_run(struct pair *p, const int32_t *prompt, int32_t n, const int32_t *answer,
                     int32_t n_answer)
{
    struct bt_error err = {0};
    int32_t ids[512];
    cr_assert_leq(n + n_answer, 512);
    memcpy(ids, prompt, (size_t)n * sizeof *ids);
    memcpy(ids + n, answer, (size_t)n_answer * sizeof *ids);
    int32_t n_run = n + n_answer - 1;
    cr_assert_eq(bt_cpu_session_run(p->target_s, ids, n_run, 0, n - 1, p->t, &err), BT_OK);
    cr_assert_eq(bt_cpu_session_run(p->draft_s, ids, n_run, 0, n - 1, p->q, &err), BT_OK);
}

static double overlap_at(struct pair *p, int32_t j)
{
    double sum = 0.0;
    softmax(p->t + (size_t)j * (size_t)p->vocab, p->vocab, p->pt);
    softmax(p->q + (size_t)j * (size_t)p->vocab, p->vocab, p->pq);
    for (int32_t v = 0; v < p->vocab; v++) {
        sum += p->pt[v] < p->pq[v] ? p->pt[v] : p->pq[v];
    }
    return sum;
}

Test(cpu_acceptance, the_draft_agrees_where_the_reference_says)
{
    struct pair p;
    pair_init(&p);
    json_t *root = rig_json("acceptance_prompts.json");
    const json_t *prompts = json_object_get(root, "prompts");
    int64_t n_agree = 0;
    int64_t n_all = 0;
    size_t stride = rig_scale() == RIG_REDUCED ? 13 : 1;
    for (size_t i = 0; i < json_array_size(prompts); i += stride) {
        const json_t *c = json_array_get(prompts, i);
        int32_t n;
        int32_t n_out;
        int32_t n_agrees;
        int32_t *prompt = rig_ids(json_object_get(c, "ids"), &n);
        int32_t *out = rig_ids(json_object_get(c, "greedy128"), &n_out);
        int32_t *agree = rig_ids(json_object_get(c, "agree"), &n_agrees);
        cr_assert(n_out == 128 && n_agrees == 128);
        pair_run(&p, prompt, n, out, n_out);
        for (int32_t j = 0; j < n_out; j++) {
            const float *tj = p.t + (size_t)j * (size_t)p.vocab;
            const float *qj = p.q + (size_t)j * (size_t)p.vocab;
            cr_assert_eq(rig_argmax(tj, p.vocab), out[j], "prompt %zu token %d", i, j);
            bool same = rig_argmax(qj, p.vocab) == out[j];
            cr_assert_eq(same, agree[j] != 0, "prompt %zu position %d", i, j);
            n_agree += same;
            n_all++;
        }
        free(prompt);
        free(out);
        free(agree);
    }
    if (stride == 1) {
        cr_expect_float_eq((double)n_agree / (double)n_all, 0.5979, 5.1e-5);
    }
    json_decref(root);
    pair_fini(&p);
}

/* Mean of sum min(p, q) over a text of 128 tokens for each prompt that the target writes at
 * temperature 1. */
static double overlap_of(struct pair *p, const json_t *prompts, size_t stride, uint64_t seed)
{
    struct rig_requests r = {0};
    for (size_t i = 0; i < json_array_size(prompts); i += stride) {
        int32_t n;
        int32_t *ids = rig_ids(json_object_get(json_array_get(prompts, i), "ids"), &n);
        struct bt_gen_request *q = rig_add(&r, ids, n, 128);
        q->sampling = (struct bt_sampling){.temperature = 1.0f, .seed = seed + i};
        free(ids);
    }
    struct bt_executor_opts eo = {.model = &p->target, .max_seqs = 38, .n_blocks = 700};
    struct rig_outcome out;
    rig_serve(&eo, &r, NULL, NULL, &out);
    free(out.summary);
    double overlap = 0.0;
    for (int64_t i = 0; i < r.table.n; i++) {
        const struct bt_gen_request *q = &r.requests[i];
        pair_run(p, q->prompt, q->n_prompt, q->out, q->n_out);
        for (int32_t j = 0; j < q->n_out; j++) {
            overlap += overlap_at(p, j) / q->n_out;
        }
    }
    overlap /= (double)r.table.n;
    rig_requests_fini(&r);
    return overlap;
}

/* Expected acceptance at temperature 1. Half a set of texts has a standard error of 0.011, eight
 * sets one of 0.003. */
Test(cpu_acceptance, overlap_of_draft_and_target_is_the_reference_s)
{
    if (rig_scale() == RIG_REDUCED) {
        return;
    }
    struct pair p;
    pair_init(&p);
    json_t *root = rig_json("acceptance_prompts.json");
    bool full = rig_scale() == RIG_FULL;
    int32_t n_sets = full ? 8 : 1;
    double overlap = 0.0;
    for (int32_t i = 0; i < n_sets; i++) {
        uint64_t seed = 100 + 1000 * (uint64_t)i;
        overlap += overlap_of(&p, json_object_get(root, "prompts"), full ? 1 : 2, seed) / n_sets;
    }
    cr_expect_float_eq(overlap, 0.506, full ? 0.01 : 0.03, "acceptance at T = 1: %.4f", overlap);
    json_decref(root);
    pair_fini(&p);
}

/* ---- the rejection rule ---- */

/* Pearson's statistic of counts against expected probabilities. */
static double chi_square(const int64_t *count, const double *p, int32_t n, int64_t total)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        double want = p[i] * (double)total;
        sum += ((double)count[i] - want) * ((double)count[i] - want) / want;
    }
    return sum;
}

/* What chi-square with 31 and with 50 degrees of freedom exceeds with probability 1e-4. */
static const double limit_31 = 69.1057;
static const double limit_50 = 95.9687;

static void random_distribution(struct bt_rng *rng, int32_t n, double sharpness, float *p)
{
    double sum = 0.0;
    double w[64];
    for (int32_t i = 0; i < n; i++) {
        w[i] = exp(sharpness * bt_rng_normal(rng)) + 0.02;
        sum += w[i];
    }
    for (int32_t i = 0; i < n; i++) {
        p[i] = (float)(w[i] / sum);
    }
}

enum rule { RULE_RIGHT, RULE_ALWAYS_RESAMPLES_TARGET, RULE_ACCEPTS_TOO_MUCH };

/* One token by speculation from q for target p; the wrong rules are planted mistakes. */
static int32_t speculate_once(const float *p, const float *q, int32_t n, uint64_t seed, int64_t at,
                              enum rule rule)
{
    int32_t d = bt_sample_at(q, n, bt_sample_uniform(seed, BT_DRAW_DRAFT, at));
    double u = bt_sample_uniform(seed, BT_DRAW_ACCEPT, at);
    u = rule == RULE_ACCEPTS_TOO_MUCH ? 0.98 * u : u;
    if (bt_sample_accepts(p, q, d, u)) {
        return d;
    }
    double v = bt_sample_uniform(seed, BT_DRAW_RESIDUAL, at);
    return rule == RULE_ALWAYS_RESAMPLES_TARGET ? bt_sample_at(p, n, v)
                                                : bt_sample_residual(p, q, n, v);
}

static double chi_of_rule(const float *p, const float *q, uint64_t seed, enum rule rule)
{
    enum { SYMBOLS = 32, DRAWS = 1000000 };
    int64_t count[SYMBOLS] = {0};
    double want[SYMBOLS];
    double sum = 0.0;
    for (int32_t i = 0; i < SYMBOLS; i++) {
        sum += (double)p[i];
    }
    for (int32_t i = 0; i < SYMBOLS; i++) {
        want[i] = (double)p[i] / sum;
    }
    for (int64_t i = 0; i < DRAWS; i++) {
        count[speculate_once(p, q, SYMBOLS, seed, i, rule)]++;
    }
    return chi_square(count, want, SYMBOLS, DRAWS);
}

Test(cpu_rejection, a_million_draws_have_the_target_s_distribution_and_wrong_rules_do_not)
{
    struct bt_rng rng;
    bt_rng_init(&rng, 11, "test", 0);
    for (uint64_t i = 0; i < 3; i++) {
        float p[32];
        float q[32];
        random_distribution(&rng, 32, 0.5 + 0.5 * (double)i, p);
        random_distribution(&rng, 32, 0.5 + 0.5 * (double)i, q);
        double right = chi_of_rule(p, q, i, RULE_RIGHT);
        cr_expect_lt(right, limit_31, "pair %d: chi-square %.1f", (int)i, right);
        double resampled = chi_of_rule(p, q, i, RULE_ALWAYS_RESAMPLES_TARGET);
        cr_expect_gt(resampled, limit_31, "pair %d: %.1f passes", (int)i, resampled);
        double lenient = chi_of_rule(p, q, i, RULE_ACCEPTS_TOO_MUCH);
        cr_expect_gt(lenient, limit_31, "pair %d: %.1f passes", (int)i, lenient);
    }
}

/* The whole engine: many sampled answers to one prompt, each request with its own seed. The second
 * token (the first that a draft proposes) given the first is compared with the target's softmax,
 * its likeliest tokens one by one and the rest together. */
Test(cpu_rejection, speculated_tokens_of_the_model_have_its_distribution)
{
    enum { TOP = 50, BATCH = 64, PROMPT_LEN = 24 };
    struct bt_error err = {0};
    struct bt_model m;
    rig_load(&m, "berth-1m", NULL);
    int32_t vocab = m.config.arch.vocab;
    int32_t prompt[PROMPT_LEN];
    rig_test_tokens(5000, PROMPT_LEN, prompt);
    float *logits = calloc((size_t)vocab, sizeof *logits);
    double *p = calloc((size_t)vocab, sizeof *p);
    struct bt_session *s = rig_session(&m, BT_KV_FP32);
    cr_assert_eq(bt_cpu_session_run(s, prompt, PROMPT_LEN, 0, PROMPT_LEN - 1, logits, &err), BT_OK);
    softmax(logits, vocab, p);
    bt_cpu_session_destroy(s);
    int32_t top[TOP];
    double want[TOP + 1] = {0};
    double rest = 1.0;
    for (int32_t i = 0; i < TOP; i++) {
        int32_t best = 0;
        for (int32_t v = 0; v < vocab; v++) {
            bool taken = false;
            for (int32_t j = 0; j < i; j++) {
                taken = taken || top[j] == v;
            }
            best = !taken && (p[v] > p[best] || best == 0) ? v : best;
        }
        top[i] = best;
        want[i] = p[best];
        rest -= p[best];
    }
    want[TOP] = rest;

    /* Plans by hand: the prompt but its last token once, then one verification a draw, always from
     * the same context: nothing that is drawn is kept. */
    struct rig_requests r = {0};
    for (int32_t i = 0; i < BATCH; i++) {
        (void)rig_add(&r, prompt, PROMPT_LEN, 8);
    }
    struct bt_executor_opts eo = {
        .model = &m,
        .self_layers = 1,
        .spec_k = 1,
        .max_seqs = BATCH,
        .n_blocks = 2 * BATCH,
        .max_model_len = 64,
        .requests = &r.table,
        .n_threads = 1,
    };
    struct bt_executor x;
    cr_assert_eq(bt_cpu_executor_create(&eo, &x, &err), BT_OK, "%s", err.msg);
    int32_t tables[BATCH][2];
    struct bt_plan_seq seqs[BATCH];
    struct bt_result_seq rows[BATCH];
    struct bt_step_result result = {.seqs = rows};
    for (int32_t i = 0; i < BATCH; i++) {
        tables[i][0] = 2 * i;
        tables[i][1] = 2 * i + 1;
        seqs[i] = (struct bt_plan_seq){.user = (uint64_t)i,
                                       .slot = i,
                                       .n_prompt = PROMPT_LEN,
                                       .n_tokens = PROMPT_LEN - 1,
                                       .flags = BT_SEQ_START,
                                       .n_blocks = 2,
                                       .blocks = tables[i]};
    }
    struct bt_step_plan plan = {.n_seqs = BATCH, .seqs = seqs};
    cr_assert_eq(x.ops->submit(x.self, &plan, 0, &result, &err), BT_SUBMIT_DONE, "%s", err.msg);
    int32_t n_rounds = rig_scale() == RIG_REDUCED ? 40 : 160;
    int64_t count[TOP + 1] = {0};
    int64_t n_accepted = 0;
    plan.speculative = true;
    for (int32_t round = 0; round < n_rounds; round++) {
        for (int32_t i = 0; i < BATCH; i++) {
            r.requests[i].n_out = 0;
            r.requests[i].sampling =
                (struct bt_sampling){.temperature = 1.0f, .seed = (uint64_t)(round * BATCH + i)};
            seqs[i].ctx = PROMPT_LEN - 1;
            seqs[i].n_tokens = 2;
            seqs[i].k_spec = 1;
            seqs[i].flags = BT_SEQ_EMITS;
        }
        plan.step_id++;
        cr_assert_eq(x.ops->submit(x.self, &plan, 0, &result, &err), BT_SUBMIT_DONE, "%s", err.msg);
        for (int32_t i = 0; i < BATCH; i++) {
            int32_t bin = TOP;
            for (int32_t j = 0; j < TOP; j++) {
                bin = r.requests[i].out[0] == top[j] ? j : bin;
            }
            count[bin]++;
            n_accepted += rows[i].n_accepted;
        }
    }
    double chi = chi_square(count, want, TOP + 1, n_rounds * BATCH);
    cr_expect_lt(chi, limit_50, "chi-square %.1f", chi);
    cr_expect_gt(n_accepted, 0);
    cr_expect_lt(n_accepted, n_rounds * BATCH);
    x.ops->destroy(x.self);
    rig_requests_fini(&r);
    free(logits);
    free(p);
    bt_model_fini(&m);
}
