#include "engine/step_work.h"

void bt_step_count_work(const struct bt_arch *target, int64_t weight_bytes,
                        const struct bt_block_layout *layout, const struct bt_step_plan *plan,
                        struct bt_step_result *result)
{
    double flops = 0.0;
    double bytes = (double)weight_bytes;
    double kv_bytes = (double)layout->block_bytes / layout->block_tokens;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        double n = ps->n_tokens;
        int64_t mean_ctx = ps->ctx + (ps->n_tokens + 1) / 2;
        flops += n * (bt_arch_linear_flops(target) + bt_arch_attention_flops(target, mean_ctx));
        if ((ps->flags & BT_SEQ_EMITS) != 0) {
            flops += (1 + ps->k_spec) * bt_arch_lm_head_flops(target);
        }
        bytes += (ps->ctx + n) * kv_bytes;
    }
    result->flops = (int64_t)flops;
    result->bytes = plan->n_seqs > 0 ? (int64_t)bytes : 0;
}

static bool ends(const struct bt_model_config *c, const struct bt_gen_request *r, int32_t token)
{
    for (int32_t i = 0; i < c->n_eos && !r->ignore_eos; i++) {
        if (c->eos_ids[i] == token) {
            return true;
        }
    }
    return false;
}

bool bt_gen_emit(const struct bt_model_config *model, struct bt_gen_request *r,
                 struct bt_result_seq *rs, int32_t token)
{
    BT_ASSERT(r->n_out < r->max_new_tokens);
    r->out[r->n_out++] = token;
    rs->n_emitted++;
    rs->eos = ends(model, r, token);
    return rs->eos;
}

void bt_gen_count_verification(struct bt_gen_request *r, int32_t k_spec,
                               const struct bt_result_seq *rs)
{
    if (k_spec > 0) {
        r->spec.n_verifications++;
        r->spec.n_proposed += k_spec;
        r->spec.n_emitted += rs->n_emitted;
    }
}
