/* From hidden states to tokens: sampling, verification of draft tokens, ends of sequence. */
#include "engine/cpu/executor_impl.h"

#include <string.h>

enum verdict { ACCEPTED, REPLACED, BROKEN };

/* Judges draft token j by the target's logits after the tokens before it. */
static enum verdict judge(struct bt_cpu_executor *e, const struct bt_plan_seq *ps, int32_t seq_i,
                          int32_t j, const float *logits, int32_t *token)
{
    const struct bt_sampling *how = &bt_cpu_request(e, ps)->sampling;
    int32_t vocab = e->sampler.vocab;
    int32_t proposed = bt_cpu_drafts(e, seq_i)[j];
    if (how->temperature == 0.0f) {
        *token = bt_sample_argmax(logits, vocab);
        return *token < 0 ? BROKEN : *token == proposed ? ACCEPTED : REPLACED;
    }
    if (!bt_sample_probs(&e->sampler, logits, how, e->probs)) {
        return BROKEN;
    }
    const float *q = bt_cpu_q(e, seq_i)[j];
    int64_t position = ps->ctx + 1 + j;
    double u = bt_sample_uniform(how->seed, BT_DRAW_ACCEPT, position);
    if (bt_sample_accepts(e->probs, q, proposed, u)) {
        *token = proposed;
        return ACCEPTED;
    }
    u = bt_sample_uniform(how->seed, BT_DRAW_RESIDUAL, position);
    *token = bt_sample_residual(e->probs, q, vocab, u);
    return REPLACED;
}

/* Tokens of one sequence from the logits of its last 1 + k_spec rows. */
static void emit_seq(struct bt_cpu_executor *e, const struct bt_plan_seq *ps, int32_t seq_i,
                     const float *logits, struct bt_result_seq *rs)
{
    struct bt_gen_request *r = bt_cpu_request(e, ps);
    size_t vocab = (size_t)e->sampler.vocab;
    bool more = true;
    for (int32_t j = 0; j < ps->k_spec && more; j++) {
        int32_t token;
        enum verdict v = judge(e, ps, seq_i, j, logits + (size_t)j * vocab, &token);
        if (v == BROKEN) {
            rs->failed = true;
            return;
        }
        r->spec.reached[j]++;
        r->spec.accepted[j] += v == ACCEPTED;
        rs->n_accepted += v == ACCEPTED;
        more = !bt_gen_emit(&e->opts.model->config, r, rs, token) && v == ACCEPTED;
    }
    if (more) {
        int64_t position = (int64_t)ps->ctx + ps->n_tokens;
        int32_t token = bt_sample_token(&e->sampler, logits + (size_t)ps->k_spec * vocab,
                                        &r->sampling, position, e->probs);
        if (token < 0) {
            rs->failed = true;
            return;
        }
        (void)bt_gen_emit(&e->opts.model->config, r, rs, token);
    }
    bt_gen_count_verification(r, ps->k_spec, rs);
}

/* Medusa continues from the state of the last token whose KV counts. */
static void keep_state(struct bt_cpu_executor *e, const struct bt_plan_seq *ps, int32_t first_state,
                       const struct bt_result_seq *rs)
{
    size_t hidden = (size_t)e->opts.model->config.arch.hidden;
    int32_t row = first_state + (rs->n_emitted > 0 ? rs->n_emitted - 1 : 0);
    memcpy(e->slot_states + (size_t)ps->slot * hidden, e->states + (size_t)row * hidden,
           hidden * sizeof *e->states);
}

void bt_cpu_emit(struct bt_cpu_executor *e, const struct bt_step_plan *plan,
                 struct bt_step_result *result)
{
    size_t vocab = (size_t)e->sampler.vocab;
    size_t hidden = (size_t)e->opts.model->config.arch.hidden;
    int32_t first = 0; /* state of the first row of logits */
    int32_t n_ready = 0;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        struct bt_result_seq *rs = &result->seqs[i];
        if ((ps->flags & BT_SEQ_EMITS) != 0) {
            int32_t state = e->first_state[i];
            int32_t n = 1 + ps->k_spec;
            if (state + n > first + n_ready) {
                /* The next rows: as many as fit, whole sequences only. */
                first = state;
                n_ready = 0;
                for (int32_t j = i; j < plan->n_seqs; j++) {
                    bool emits = (plan->seqs[j].flags & BT_SEQ_EMITS) != 0;
                    int32_t more = emits ? 1 + plan->seqs[j].k_spec : 0;
                    if (n_ready + more > e->logit_rows) {
                        break;
                    }
                    n_ready += more;
                }
                bt_decoder_logits(&e->target, e->states + (size_t)first * hidden, n_ready,
                                  e->logits);
            }
            if (!rs->failed) {
                emit_seq(e, ps, i, e->logits + (size_t)(state - first) * vocab, rs);
            }
            bt_cpu_mark(e->target.profile, BT_PART_SAMPLE);
        }
        if (e->opts.medusa != NULL) {
            keep_state(e, ps, e->first_state[i], rs);
        }
    }
}
