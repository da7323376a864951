#include "engine/cpu/session.h"

#include "engine/cpu/executor_cpu.h"

#include <stdlib.h>

enum { SCORE_ROWS = 32 };

struct cpu_session {
    struct bt_arena arena;
    struct bt_kv_pool pool;
    struct bt_cpu_scratch scratch;
    struct bt_decoder decoder;
    int32_t max_ctx;
    int32_t *blocks;  /* [max_ctx / block_tokens, rounded up]: the identity */
    int32_t *out_row; /* [max_ctx] */
    float *states;    /* [max_ctx, hidden] */
    float *logits;    /* [SCORE_ROWS, vocab] */
};

static enum bt_code take_pool(struct cpu_session *s, const struct bt_session_opts *o,
                              struct bt_error *err)
{
    enum bt_kv_format kv = o->kv == BT_KV_DEFAULT ? BT_KV_FP32 : o->kv;
    int32_t block_tokens = o->block_tokens == 0 ? BT_DEFAULT_BLOCK_TOKENS : o->block_tokens;
    struct bt_block_layout *l = &s->pool.layout[0];
    BT_TRY(bt_block_layout_init(l, &o->model->config.arch, NULL, kv, block_tokens, err));
    s->pool.n_blocks = (s->max_ctx + block_tokens - 1) / block_tokens;
    BT_ARENA_ARRAY(&s->arena, s->blocks, s->pool.n_blocks, err);
    for (int32_t i = 0; i < s->pool.n_blocks; i++) {
        s->blocks[i] = i;
    }
    BT_ARENA_ARRAY(&s->arena, s->pool.blocks, s->pool.n_blocks * l->block_bytes, err);
    return BT_OK;
}

static enum bt_code session_init(struct cpu_session *s, const struct bt_session_opts *o,
                                 struct bt_error *err)
{
    const struct bt_arch *a = &o->model->config.arch;
    s->max_ctx = o->max_ctx == 0 ? a->max_position : o->max_ctx;
    if (s->max_ctx < 1 || s->max_ctx > a->max_position) {
        BT_FAIL(err, BT_ERR_ARG, s->max_ctx,
                "context: %d tokens must be 1..%d, which %s was made for", s->max_ctx,
                a->max_position, a->name);
    }
    bt_arena_init(&s->arena, 0);
    BT_TRY(take_pool(s, o, err));
    struct bt_cpu_scratch_opts so = {
        .model = o->model,
        .max_rows = o->max_rows == 0 ? BT_CPU_PIECE_ROWS : o->max_rows,
        .max_ctx = s->max_ctx,
        .n_threads = o->n_threads,
    };
    BT_TRY(bt_cpu_scratch_init(&s->scratch, &s->arena, &so, err));
    enum bt_act_format compute = o->compute == BT_ACT_DEFAULT ? BT_ACT_FP32 : o->compute;
    BT_TRY(bt_decoder_init(&s->decoder, &s->arena, o->model, &s->pool, &s->scratch,
                           BT_KV_PART_TARGET, compute, err));
    BT_ARENA_ARRAY(&s->arena, s->out_row, s->max_ctx, err);
    BT_ARENA_ARRAY(&s->arena, s->states, (int64_t)s->max_ctx * a->hidden, err);
    BT_ARENA_ARRAY(&s->arena, s->logits, (int64_t)SCORE_ROWS * a->vocab, err);
    return BT_OK;
}

enum bt_code bt_cpu_session_create(const struct bt_session_opts *opts, struct bt_session **out,
                                   struct bt_error *err)
{
    *out = NULL;
    struct cpu_session *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "session: no memory");
    }
    enum bt_code code = session_init(s, opts, err);
    if (code != BT_OK) {
        bt_cpu_session_destroy((struct bt_session *)s);
        return code;
    }
    *out = (struct bt_session *)s;
    return BT_OK;
}

struct bt_clip_counts bt_cpu_session_clipped(const struct bt_session *session)
{
    const struct cpu_session *s = (const struct cpu_session *)session;
    return s->scratch.work.clip;
}

void bt_cpu_session_destroy(struct bt_session *session)
{
    struct cpu_session *s = (struct cpu_session *)session;
    if (s != NULL) {
        bt_arena_fini(&s->arena);
        free(s);
    }
}

/* Checks the tokens and wants the states of first .. n - 1. */
static enum bt_code take_ids(struct cpu_session *s, const int32_t *ids, int32_t n, int32_t from,
                             int32_t first, struct bt_error *err)
{
    const struct bt_arch *a = &s->decoder.model->config.arch;
    BT_ASSERT(first >= 0);
    BT_TRY(bt_session_check(ids, n, from, s->max_ctx, a->vocab, err));
    for (int32_t i = 0; i < n; i++) {
        s->out_row[i] = i < first ? -1 : i - first;
    }
    return BT_OK;
}

/* Leaves the states of tokens first .. n - 1 in s->states. */
static enum bt_code states_of(struct cpu_session *s, const int32_t *ids, int32_t n, int32_t from,
                              int32_t first, struct bt_error *err)
{
    const struct bt_arch *a = &s->decoder.model->config.arch;
    BT_TRY(take_ids(s, ids, n, from, first, err));
    struct bt_cpu_segment seg = {.n_rows = n, .pos0 = from, .blocks = s->blocks};
    struct bt_cpu_batch batch = {
        .n_rows = n,
        .n_segments = 1,
        .ids = ids,
        .segments = &seg,
        .out_row = s->out_row,
        .out = s->states,
    };
    bt_decoder_forward(&s->decoder, &batch, a->n_layers);
    return BT_OK;
}

enum bt_code bt_cpu_session_run(struct bt_session *session, const int32_t *ids, int32_t n,
                                int32_t from, int32_t first, float *logits, struct bt_error *err)
{
    struct cpu_session *s = (struct cpu_session *)session;
    BT_TRY(states_of(s, ids, n, from, logits == NULL ? n : first, err));
    if (logits != NULL && first < n) {
        bt_decoder_logits(&s->decoder, s->states, n - first, logits);
    }
    return BT_OK;
}

enum bt_code bt_cpu_session_layers(struct bt_session *session, const int32_t *ids, int32_t n,
                                   int32_t first, int32_t until, float *residual,
                                   struct bt_error *err)
{
    struct cpu_session *s = (struct cpu_session *)session;
    BT_TRY(take_ids(s, ids, n, 0, n, err));
    struct bt_cpu_segment seg = {.n_rows = n, .blocks = s->blocks};
    struct bt_cpu_batch batch = {
        .n_rows = n,
        .n_segments = 1,
        .ids = ids,
        .segments = &seg,
        .out_row = s->out_row,
        .out = s->states,
        .first_layer = first,
        .residual = residual,
    };
    bt_decoder_forward(&s->decoder, &batch, until);
    return BT_OK;
}

enum bt_code bt_cpu_session_score(struct bt_session *session, const int32_t *ids, int32_t n,
                                  struct bt_score *out, double *nll_of, struct bt_error *err)
{
    struct cpu_session *s = (struct cpu_session *)session;
    const struct bt_arch *a = &s->decoder.model->config.arch;
    BT_ASSERT(n >= 2);
    *out = (struct bt_score){.finite = true};
    BT_TRY(bt_session_check(ids + n - 1, 1, n - 1, n, a->vocab, err)); /* predicted, not computed */
    BT_TRY(states_of(s, ids, n - 1, 0, 0, err));
    for (int32_t i = 0; i < n - 1; i += SCORE_ROWS) {
        int32_t rows = n - 1 - i < SCORE_ROWS ? n - 1 - i : SCORE_ROWS;
        bt_decoder_logits(&s->decoder, s->states + (size_t)i * (size_t)a->hidden, rows, s->logits);
        bt_score_rows(s->logits, rows, a->vocab, ids + i + 1, out,
                      nll_of == NULL ? NULL : nll_of + i);
    }
    return BT_OK;
}

void bt_cpu_session_tap(struct bt_session *session, bt_cpu_tap_fn tap, void *user)
{
    struct cpu_session *s = (struct cpu_session *)session;
    s->decoder.tap = tap;
    s->decoder.tap_user = user;
}
