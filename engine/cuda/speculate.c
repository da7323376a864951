/* Draft tokens: by a draft model, by the target's own first layers, or by Medusa heads. */
#include "engine/cuda/executor_impl.h"

/* k passes, one token a sequence each; the first one brings along what the draft has missed, and
 * prompts in prefill. */
static enum bt_code draft_passes(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                 struct bt_cuda_decoder *d, int32_t n_layers,
                                 const struct bt_step_plan *plan, struct bt_error *err)
{
    struct bt_cuda_pass p = {.kind = BT_PASS_DRAFT,
                             .decoder = d,
                             .n_layers = n_layers,
                             .plan = plan,
                             .n_seqs = plan->n_seqs,
                             .parts = e->parts,
                             .decodes = plan->n_prefill_tokens == 0};
    int32_t n_drafting = 1;
    for (p.j = 0; p.j < e->opts.spec_k && n_drafting > 0; p.j++) {
        n_drafting = 0;
        for (int32_t i = 0; i < plan->n_seqs; i++) {
            const struct bt_plan_seq *ps = &plan->seqs[i];
            int32_t missed = p.j == 0 ? ps->draft_catchup : 0;
            e->parts[i] = (struct bt_cuda_part){0};
            if (ps->k_spec > p.j) {
                e->parts[i] = (struct bt_cuda_part){ps->ctx + p.j - missed, ps->ctx + p.j + 1, 1};
                n_drafting++;
            } else if (missed > 0) {
                int32_t end = ps->ctx + ps->n_tokens;
                e->parts[i] = (struct bt_cuda_part){end - missed, end, 0};
            }
        }
        BT_TRY(bt_cuda_pass_run(e, f, &p, err));
    }
    return BT_OK;
}

/* Head j: lm_head(h + silu(W_j h + b_j)). Every sequence of the plan has a row. */
static enum bt_code medusa_passes(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                  const struct bt_step_plan *plan, struct bt_error *err)
{
    int32_t hidden = e->target.arch.hidden;
    int32_t n = plan->n_seqs;
    void *pinned = NULL;
    int64_t choice_bytes = n * (int64_t)sizeof(struct bt_cuda_choice);
    int64_t bytes = choice_bytes + n * (int64_t)sizeof(int32_t);
    BT_TRY(bt_cuda_take_pinned(e, f, bytes, &pinned, err));
    struct bt_cuda_choice *choices = pinned;
    int32_t *slots = (int32_t *)(void *)((char *)pinned + choice_bytes);
    bool greedy = true;
    for (int32_t i = 0; i < n; i++) {
        choices[i] = bt_cuda_choice_of(e, &plan->seqs[i], i);
        greedy = greedy && choices[i].temperature <= 0;
        slots[i] = plan->seqs[i].slot;
    }
    BT_CUDA_TRY(cudaMemcpyAsync(e->meta, pinned, (size_t)bytes, cudaMemcpyHostToDevice, e->stream),
                err);
    const int32_t *device_slots = (const int32_t *)(void *)((char *)e->meta + choice_bytes);
    bt_cuda_gather(e->slot_states, device_slots, n, hidden, e->states, e->stream);
    struct bt_cuda_types types = e->target_decoder.types;
    for (int32_t j = 0; j < e->opts.spec_k; j++) {
        struct bt_cuda_x x = {.x16 = e->states};
        BT_TRY(bt_cuda_linear_run(e->gemm, &e->heads[j], &x, n, e->work.y, BT_CUDA_Y_COMPUTE,
                                  e->stream, err));
        bt_cuda_medusa_add(types, e->states, e->work.y, n, hidden, e->work.h, e->stream);
        BT_TRY(bt_cuda_decoder_logits(&e->target_decoder, e->work.h, n, e->logits, e->stream, err));
        bt_cuda_sample_draft(e->sampler, e->logits, (const void *)e->meta, n, greedy, j, e->drafts,
                             e->q, e->stream);
    }
    return bt_cuda_check_launch("Medusa heads", err);
}

/* Sampled draft tokens keep their distributions; the memory is taken when it is first needed. */
static enum bt_code take_q(struct bt_cuda_executor *e, const struct bt_step_plan *plan,
                           struct bt_error *err)
{
    bool sampled = false;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        sampled = sampled || (ps->k_spec > 0 && bt_cuda_request(e, ps)->sampling.temperature > 0);
    }
    if (!sampled || e->q != NULL || e->opts.force_acceptance > 0) {
        return BT_OK;
    }
    void *p = NULL;
    int64_t n = (int64_t)e->max_segments * e->opts.spec_k * e->config.arch.vocab;
    BT_TRY(bt_cuda_arena_take(&e->work_arena, n * (int64_t)sizeof(float), &p, err));
    e->q = p;
    return BT_OK;
}

enum bt_code bt_cuda_speculate(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                               const struct bt_step_plan *plan, struct bt_error *err)
{
    BT_TRY(take_q(e, plan, err));
    if (e->draft_attn != NULL) {
        int32_t n_layers = e->draft.arch.n_layers;
        return draft_passes(e, f, &e->draft_decoder, n_layers, plan, err);
    }
    if (!plan->speculative) {
        return BT_OK;
    }
    if (e->opts.self_layers > 0) {
        return draft_passes(e, f, &e->target_decoder, e->opts.self_layers, plan, err);
    }
    return medusa_passes(e, f, plan, err);
}
