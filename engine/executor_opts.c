#include "engine/executor_opts.h"

#include "engine/core/limits.h"

static enum bt_code check_draft(const struct bt_executor_opts *o, struct bt_error *err)
{
    const struct bt_arch *t = &o->model->config.arch;
    int32_t n_ways = (o->draft != NULL) + (o->medusa != NULL) + (o->self_layers > 0);
    if (n_ways > 1) {
        BT_FAIL(err, BT_ERR_ARG, n_ways, "spec: one of draft model, Medusa heads and own layers");
    }
    if (o->spec_k < 0 || o->spec_k > BT_MAX_SPEC_K || (o->spec_k > 0) != (n_ways == 1)) {
        BT_FAIL(err, BT_ERR_ARG, o->spec_k,
                "spec: k = %d must be 1..%d with a source of draft "
                "tokens, 0 without",
                o->spec_k, BT_MAX_SPEC_K);
    }
    if (o->draft != NULL && o->draft->config.arch.vocab != t->vocab) {
        BT_FAIL(err, BT_ERR_ARG, o->draft->config.arch.vocab,
                "spec: the draft %s has a vocabulary of %d, the target %s one of %d",
                o->draft->config.arch.name, o->draft->config.arch.vocab, t->name, t->vocab);
    }
    if (o->self_layers < 0 || o->self_layers >= t->n_layers + (o->self_layers == 0)) {
        BT_FAIL(err, BT_ERR_ARG, o->self_layers, "spec: self = %d must be 1..%d layers of %s",
                o->self_layers, t->n_layers - 1, t->name);
    }
    if (o->medusa != NULL && o->spec_k > o->medusa->n_heads) {
        BT_FAIL(err, BT_ERR_ARG, o->spec_k, "spec: k = %d exceeds the %d Medusa heads", o->spec_k,
                o->medusa->n_heads);
    }
    if (o->medusa != NULL && o->medusa->heads[0].n_in != t->hidden) {
        BT_FAIL(err, BT_ERR_ARG, o->medusa->heads[0].n_in,
                "spec: Medusa heads of width %d on %s, whose hidden size is %d",
                o->medusa->heads[0].n_in, t->name, t->hidden);
    }
    return BT_OK;
}

static enum bt_code check_length(const struct bt_model *m, int32_t max_len, struct bt_error *err)
{
    if (m != NULL && (max_len < 1 || max_len > m->config.arch.max_position)) {
        BT_FAIL(err, BT_ERR_ARG, max_len,
                "max_model_len: %d must be 1..%d tokens, the context of %s", max_len,
                m->config.arch.max_position, m->config.arch.name);
    }
    return BT_OK;
}

enum bt_code bt_executor_opts_check(struct bt_executor_opts *o, struct bt_error *err)
{
    o->block_tokens = o->block_tokens == 0 ? BT_DEFAULT_BLOCK_TOKENS : o->block_tokens;
    BT_TRY(check_draft(o, err));
    if (o->clock == BT_CLOCK_WORK && o->n_threads != 1) {
        BT_FAIL(err, BT_ERR_ARG, o->n_threads, "clock: work counts one thread, not %d (--jobs 1)",
                o->n_threads);
    }
    if (o->max_model_len == 0) {
        o->max_model_len = o->model->config.arch.max_position;
        if (o->draft != NULL && o->draft->config.arch.max_position < o->max_model_len) {
            o->max_model_len = o->draft->config.arch.max_position;
        }
    }
    BT_TRY(check_length(o->model, o->max_model_len, err));
    BT_TRY(check_length(o->draft, o->max_model_len, err));
    if (o->n_blocks < 1 || o->n_blocks > BT_MAX_BLOCKS || o->n_host_blocks < 0 ||
        o->n_host_blocks > BT_MAX_BLOCKS) {
        BT_FAIL(err, BT_ERR_ARG, o->n_blocks,
                "kv blocks: %d and %d for swap must be 1..%d and 0..%d", o->n_blocks,
                o->n_host_blocks, BT_MAX_BLOCKS, BT_MAX_BLOCKS);
    }
    if (o->max_seqs < 1 || o->max_seqs > BT_MAX_SEQS || o->max_rows < 1) {
        BT_FAIL(err, BT_ERR_ARG, o->max_seqs, "max_seqs: %d must be 1..%d", o->max_seqs,
                BT_MAX_SEQS);
    }
    return BT_OK;
}

void bt_executor_fit_sched(const struct bt_executor_opts *o,
                           const struct bt_block_layout layout[BT_KV_CLASSES],
                           struct bt_sched_opts *sched)
{
    sched->max_seqs = o->max_seqs;
    if (sched->max_batched_tokens < o->max_seqs) {
        sched->max_batched_tokens = o->max_seqs;
    }
    sched->max_model_len = o->max_model_len;
    sched->n_blocks = o->n_blocks;
    sched->n_host_blocks = o->n_host_blocks;
    sched->block_tokens = o->block_tokens;
    sched->block_tokens_16bit = layout[1].block_tokens;
    sched->block_bytes = layout[0].block_bytes;
    sched->spec.k = o->spec_k;
    sched->spec.has_draft_kv = o->draft != NULL;
}
