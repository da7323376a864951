/* Draft tokens: by a draft model, by the target's own first layers, or by Medusa heads. */
#include "engine/cpu/executor_impl.h"

#include <stdlib.h>
#include <string.h>

/* Gives every sampled draft token of the plan a row for its distribution. */
static enum bt_code take_q(struct bt_cpu_executor *e, const struct bt_step_plan *plan,
                           struct bt_error *err)
{
    int64_t n = 0;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        n += bt_cpu_request(e, ps)->sampling.temperature > 0.0f ? ps->k_spec : 0;
    }
    size_t vocab = (size_t)e->sampler.vocab;
    if (n > e->q_cap) {
        float *grown = realloc(e->q_memory, (size_t)n * vocab * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, n, "step: no memory for %lld draft distributions",
                    (long long)n);
        }
        e->q_memory = grown;
        e->q_cap = n;
    }
    n = 0;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        bool sampled = bt_cpu_request(e, ps)->sampling.temperature > 0.0f;
        for (int32_t j = 0; j < ps->k_spec; j++) {
            bt_cpu_q(e, i)[j] = sampled ? e->q_memory + (size_t)n++ * vocab : NULL;
        }
    }
    return BT_OK;
}

/* Draft token j of sequence seq_i from its logits. A draft that gives no number proposes token 0
 * with certainty: the verification stays exact. */
static void choose(struct bt_cpu_executor *e, const struct bt_plan_seq *ps, int32_t seq_i,
                   int32_t j, const float *logits)
{
    const struct bt_sampling *how = &bt_cpu_request(e, ps)->sampling;
    int32_t vocab = e->sampler.vocab;
    float *q = bt_cpu_q(e, seq_i)[j];
    int32_t token;
    if (q == NULL) {
        token = bt_sample_argmax(logits, vocab);
    } else if (bt_sample_probs(&e->sampler, logits, how, q)) {
        double u = bt_sample_uniform(how->seed, BT_DRAW_DRAFT, ps->ctx + 1 + j);
        token = bt_sample_at(q, vocab, u);
    } else {
        memset(q, 0, (size_t)vocab * sizeof *q);
        q[0] = 1.0f;
        token = 0;
    }
    bt_cpu_drafts(e, seq_i)[j] = token < 0 ? 0 : token;
}

/* Draft token j of the n sequences in e->drafting from their states. */
static void choose_all(struct bt_cpu_executor *e, struct bt_decoder *d,
                       const struct bt_step_plan *plan, const float *states, int32_t n, int32_t j)
{
    size_t hidden = (size_t)d->model->config.arch.hidden;
    for (int32_t i = 0; i < n; i += e->logit_rows) {
        int32_t rows = n - i < e->logit_rows ? n - i : e->logit_rows;
        bt_decoder_logits(d, states + (size_t)i * hidden, rows, e->logits);
        for (int32_t r = 0; r < rows; r++) {
            int32_t seq_i = e->drafting[i + r];
            choose(e, &plan->seqs[seq_i], seq_i, j,
                   e->logits + (size_t)r * (size_t)e->sampler.vocab);
        }
    }
}

static void forward(struct bt_cpu_executor *e, struct bt_decoder *d, int32_t n_layers)
{
    const struct bt_cpu_rows *r = &e->rows;
    if (r->n_rows == 0) {
        return;
    }
    struct bt_cpu_batch batch = {
        .n_rows = r->n_rows,
        .n_segments = r->n_segments,
        .ids = r->ids,
        .segments = r->segments,
        .out_row = r->out_row,
        .out = e->draft_states,
    };
    bt_decoder_forward(d, &batch, n_layers);
}

/* k passes, one token a sequence each; the first one brings along what the draft has missed, and
 * prompts in prefill. */
static enum bt_code draft_passes(struct bt_cpu_executor *e, struct bt_decoder *d, int32_t n_layers,
                                 const struct bt_step_plan *plan, struct bt_error *err)
{
    for (int32_t j = 0; j == 0 || j < e->opts.spec_k; j++) {
        int32_t n = 0;
        e->rows.n_rows = e->rows.n_segments = 0;
        for (int32_t i = 0; i < plan->n_seqs; i++) {
            const struct bt_plan_seq *ps = &plan->seqs[i];
            int32_t missed = j == 0 ? ps->draft_catchup : 0;
            if (ps->k_spec > j) {
                BT_TRY(bt_cpu_rows_add(e, ps, i, ps->ctx + j - missed, ps->ctx + j + 1, n, err));
                e->drafting[n++] = i;
            } else if (missed > 0) {
                int32_t end = ps->ctx + ps->n_tokens;
                BT_TRY(bt_cpu_rows_add(e, ps, i, end - missed, end, -1, err));
            }
        }
        forward(e, d, n_layers);
        choose_all(e, d, plan, e->draft_states, n, j);
        if (n == 0) {
            break;
        }
    }
    return BT_OK;
}

/* Head j: lm_head(h + silu(W_j h + b_j)). */
static void medusa_passes(struct bt_cpu_executor *e, const struct bt_step_plan *plan)
{
    size_t hidden = (size_t)e->opts.model->config.arch.hidden;
    enum bt_act_format round = e->opts.compute;
    for (int32_t j = 0; j < e->opts.spec_k; j++) {
        int32_t n = 0;
        for (int32_t i = 0; i < plan->n_seqs; i++) {
            if (plan->seqs[i].k_spec > j) {
                const float *state = e->slot_states + (size_t)plan->seqs[i].slot * hidden;
                memcpy(e->draft_states + (size_t)n * hidden, state, hidden * sizeof *state);
                e->drafting[n++] = i;
            }
        }
        for (int32_t i = 0; i < n; i += e->scratch.max_rows) {
            int32_t m = n - i < e->scratch.max_rows ? n - i : e->scratch.max_rows;
            const float *h = e->draft_states + (size_t)i * hidden;
            float *y = e->head_states + (size_t)i * hidden;
            bt_cpu_linear(&e->scratch.work, &e->opts.medusa->heads[j], h, m, y);
            bt_cpu_round(y, (int64_t)m * (int64_t)hidden, round);
            bt_cpu_silu(y, (int64_t)m * (int64_t)hidden, round);
            bt_cpu_add(y, h, (int64_t)m * (int64_t)hidden, round);
        }
        choose_all(e, &e->target, plan, e->head_states, n, j);
    }
}

enum bt_code bt_cpu_speculate(struct bt_cpu_executor *e, const struct bt_step_plan *plan,
                              struct bt_error *err)
{
    BT_TRY(take_q(e, plan, err));
    if (e->opts.draft != NULL) {
        int32_t n_layers = e->opts.draft->config.arch.n_layers;
        return draft_passes(e, &e->draft, n_layers, plan, err);
    }
    if (!plan->speculative) {
        return BT_OK;
    }
    if (e->opts.self_layers > 0) {
        return draft_passes(e, &e->target, e->opts.self_layers, plan, err);
    }
    medusa_passes(e, plan);
    return BT_OK;
}
