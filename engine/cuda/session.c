/* One sequence on the GPU, for scoring texts. */
#include "engine/cuda/measure.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 64, PIECE = 512 }; /* rows of logits at a time come with places for sequences */

struct cuda_session {
    struct bt_arena arena;
    struct bt_executor executor;
    int32_t max_ctx, vocab, piece;
    int32_t *ids;    /* [max_ctx]: the sequence */
    int32_t *blocks; /* the identity */
    int32_t n_blocks;
    float *logits; /* [piece, vocab] */
    struct bt_gen_request request;
    struct bt_gen_table table;
};

static enum bt_code init(struct cuda_session *s, const struct bt_session_opts *o,
                         struct bt_error *err)
{
    const struct bt_arch *a = &o->model->config.arch;
    int32_t block = o->block_tokens == 0 ? BT_DEFAULT_BLOCK_TOKENS : o->block_tokens;
    s->max_ctx = o->max_ctx == 0 ? a->max_position : o->max_ctx;
    s->vocab = a->vocab;
    s->piece = o->max_rows == 0 ? PIECE : o->max_rows;
    s->n_blocks = (s->max_ctx + block - 1) / block;
    BT_ARENA_ARRAY(&s->arena, s->ids, s->max_ctx, err);
    BT_ARENA_ARRAY(&s->arena, s->blocks, s->n_blocks, err);
    BT_ARENA_ARRAY(&s->arena, s->logits, (int64_t)s->piece * s->vocab, err);
    for (int32_t i = 0; i < s->n_blocks; i++) {
        s->blocks[i] = i;
    }
    s->table = (struct bt_gen_table){.requests = &s->request, .n = 1};
    struct bt_executor_opts eo = {
        .model = o->model,
        .compute = o->compute,
        .kv = o->kv,
        .block_tokens = block,
        .n_blocks = s->n_blocks,
        .max_seqs = SEQUENCES,
        .max_model_len = s->max_ctx,
        .max_rows = s->piece,
        .requests = &s->table,
    };
    return bt_cuda_executor_create(&eo, &s->executor, err);
}

enum bt_code bt_cuda_session_create(const struct bt_session_opts *opts, struct bt_session **out,
                                    struct bt_error *err)
{
    *out = NULL;
    struct cuda_session *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "session: no memory");
    }
    bt_arena_init(&s->arena, 0);
    enum bt_code code = init(s, opts, err);
    if (code != BT_OK) {
        bt_cuda_session_destroy((struct bt_session *)s);
        return code;
    }
    *out = (struct bt_session *)s;
    return BT_OK;
}

void bt_cuda_session_destroy(struct bt_session *session)
{
    struct cuda_session *s = (struct cuda_session *)session;
    if (s != NULL) {
        if (s->executor.ops != NULL) {
            s->executor.ops->destroy(s->executor.self);
        }
        bt_arena_fini(&s->arena);
        free(s);
    }
}

enum bt_code bt_cuda_session_run(struct bt_session *session, const int32_t *ids, int32_t n,
                                 int32_t from, int32_t first, float *logits, struct bt_error *err)
{
    struct cuda_session *s = (struct cuda_session *)session;
    BT_ASSERT(first >= 0);
    BT_TRY(bt_session_check(ids, n, from, s->max_ctx, s->vocab, err));
    memcpy(s->ids + from, ids, (size_t)n * sizeof *ids);
    s->request = (struct bt_gen_request){.prompt = s->ids, .n_prompt = from + n};
    int32_t rows = 0;
    for (int32_t at = 0; at < n; at += rows) {
        rows = n - at < s->piece ? n - at : s->piece;
        struct bt_plan_seq seq = {
            .n_prompt = from + n,
            .ctx = from + at,
            .n_tokens = rows,
            .n_blocks = s->n_blocks,
            .blocks = s->blocks,
        };
        struct bt_step_plan plan = {.n_seqs = 1, .seqs = &seq, .n_prefill_tokens = rows};
        int32_t skip = first > at ? first - at : 0;
        float *to = logits == NULL || skip >= rows
                        ? NULL
                        : logits + (size_t)(at + skip - first) * (size_t)s->vocab;
        BT_TRY(bt_cuda_executor_logits(&s->executor, &plan, skip, to, err));
    }
    return BT_OK;
}

enum bt_code bt_cuda_session_score(struct bt_session *session, const int32_t *ids, int32_t n,
                                   struct bt_score *out, double *nll_of, struct bt_error *err)
{
    struct cuda_session *s = (struct cuda_session *)session;
    BT_ASSERT(n >= 2);
    *out = (struct bt_score){.finite = true};
    BT_TRY(bt_session_check(ids + n - 1, 1, n - 1, n, s->vocab, err)); /* predicted, not computed */
    for (int32_t i = 0; i < n - 1; i += s->piece) {
        int32_t rows = n - 1 - i < s->piece ? n - 1 - i : s->piece;
        BT_TRY(bt_cuda_session_run(session, ids + i, rows, i, 0, s->logits, err));
        bt_score_rows(s->logits, rows, s->vocab, ids + i + 1, out,
                      nll_of == NULL ? NULL : nll_of + i);
    }
    return BT_OK;
}
