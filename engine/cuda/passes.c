/* One forward pass of a step: its metadata, its graph, its tokens. */
#include "engine/cuda/executor_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DECODE_ROWS = 16, CHOICE_WORDS = sizeof(struct bt_cuda_choice) / sizeof(int32_t) };

int32_t bt_cuda_bucket(int32_t n)
{
    static const int32_t few[] = {1, 2, 4, 8};
    for (int32_t i = 0; i < 4; i++) {
        if (n <= few[i]) {
            return few[i];
        }
    }
    int32_t step = n <= 64 ? 8 : n <= 256 ? 16 : 32;
    return (n + step - 1) / step * step;
}

/* A pass being put together. */
struct shape {
    int32_t live_rows, n_rows;     /* padded */
    int32_t n_segments;            /* padded */
    int32_t live_wanted, n_wanted; /* rows of logits, padded */
    bool gathers;                  /* the wanted rows are not simply all of them */
    bool decode;                   /* no segment has more than MAX_DECODE_ROWS rows */
    bool greedy;                   /* whoever chooses a token takes the likeliest */
    bool graph;
};

/* The next n words. */
static int32_t take(int32_t *at, int32_t n)
{
    int32_t first = *at;
    *at += n;
    return first;
}

static struct bt_cuda_meta layout_of(const struct bt_cuda_pass *p, const struct shape *s)
{
    struct bt_cuda_meta m = {0};
    int32_t at = s->n_segments * CHOICE_WORDS; /* first: they hold 64-bit numbers */
    m.ids = take(&at, s->n_rows);
    m.source = take(&at, s->n_rows);
    m.position = take(&at, s->n_rows);
    m.segment = take(&at, s->n_rows);
    m.first_row = take(&at, s->n_segments + 1);
    m.pos0 = take(&at, s->n_segments);
    m.kv_class = take(&at, s->n_segments);
    m.slot = take(&at, s->n_segments);
    m.want = take(&at, s->n_wanted);
    m.plan = (at + 3) / 4 * 4; /* read in vectors */
    m.n_words = m.plan + bt_cuda_attn_plan_words(p->decoder->attn, s->n_rows, s->n_segments);
    return m;
}

int64_t bt_cuda_pass_pinned_bytes(const struct bt_cuda_executor *e, int32_t n_passes)
{
    int64_t rows = e->opts.max_rows;
    int64_t segments = e->max_segments;
    int64_t plan = bt_cuda_attn_max_plan_words(e->attn);
    if (e->draft_attn != NULL && bt_cuda_attn_max_plan_words(e->draft_attn) > plan) {
        plan = bt_cuda_attn_max_plan_words(e->draft_attn);
    }
    int64_t words =
        segments * CHOICE_WORDS + 4 * rows + 4 * segments + 1 + e->max_choice_rows + plan + 64;
    int64_t tables = segments * e->max_blocks + 64;
    return n_passes * 4 * (words + tables);
}

/* Pinned memory of the flight. When it has run out, what has been enqueued is waited for: then all
 * of it is free again. */
enum bt_code bt_cuda_take_pinned(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                 int64_t bytes, void **out, struct bt_error *err)
{
    bytes = (bytes + 255) / 256 * 256;
    BT_ASSERT(bytes <= e->pinned_cap);
    if (f->pinned_used + bytes > e->pinned_cap) {
        BT_CUDA_TRY(cudaStreamSynchronize(e->stream), err);
        f->pinned_used = 0;
    }
    *out = f->pinned + f->pinned_used;
    f->pinned_used += bytes;
    return BT_OK;
}

enum bt_code bt_cuda_upload_blocks(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                   const struct bt_step_plan *plan, int32_t seq0, int32_t n_seqs,
                                   struct bt_error *err)
{
    int32_t width = 1;
    for (int32_t i = 0; i < n_seqs; i++) {
        int32_t n = plan->seqs[seq0 + i].n_blocks;
        BT_ASSERT(n <= e->max_blocks);
        width = n > width ? n : width;
    }
    void *p = NULL;
    BT_TRY(bt_cuda_take_pinned(e, f, (int64_t)n_seqs * width * (int64_t)sizeof(int32_t), &p, err));
    int32_t *table = p;
    for (int32_t i = 0; i < n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[seq0 + i];
        memcpy(table + (size_t)i * (size_t)width, ps->blocks, (size_t)ps->n_blocks * sizeof *table);
    }
    size_t row = (size_t)width * sizeof *table;
    BT_CUDA_TRY(cudaMemcpy2DAsync(e->blocks, (size_t)e->max_blocks * sizeof *table, table, row, row,
                                  (size_t)n_seqs, cudaMemcpyHostToDevice, e->stream),
                err);
    return BT_OK;
}

/* ---- metadata ---- */

static struct shape shape_of(const struct bt_cuda_executor *e, const struct bt_cuda_pass *p)
{
    struct shape s = {.n_segments = p->n_seqs, .decode = true, .greedy = true};
    for (int32_t i = 0; i < p->n_seqs; i++) {
        int32_t n = p->parts[i].to - p->parts[i].from;
        const struct bt_plan_seq *ps = &p->plan->seqs[p->seq0 + i];
        bool draws = p->parts[i].n_want > 0 && bt_cuda_request(e, ps)->sampling.temperature > 0;
        s.greedy = s.greedy && !draws;
        s.live_rows += n;
        s.live_wanted += p->parts[i].n_want;
        s.decode = s.decode && n <= MAX_DECODE_ROWS;
    }
    s.gathers = p->kind == BT_PASS_DRAFT || s.live_wanted != s.live_rows;
    s.n_rows = s.live_rows;
    s.n_wanted = p->kind == BT_PASS_DRAFT ? p->n_seqs : s.live_wanted;
    if (!p->decodes || e->opts.eager || !s.decode) {
        s.decode = false;
        return s;
    }
    int32_t n_segments = bt_cuda_bucket(p->n_seqs);
    int32_t full = 1 + e->opts.spec_k;
    int32_t each = s.live_rows <= n_segments ? 1 : s.live_rows <= 2 * n_segments ? 2 : full;
    if (p->kind == BT_PASS_TARGET) {
        each = p->plan->speculative ? full : 1;
    }
    if (each * n_segments < s.live_rows || each * n_segments > e->work.max_rows ||
        (p->kind == BT_PASS_TARGET && s.gathers)) {
        s.decode = false;
        return s;
    }
    s.graph = true;
    s.n_segments = n_segments;
    s.n_rows = each * n_segments;
    s.n_wanted = s.gathers ? n_segments : s.n_rows;
    return s;
}

/* The token at a position, or where it will be: known to the host, made by the step in flight, or a
 * draft token. */
static void token_at(const struct bt_cuda_executor *e, const struct bt_plan_seq *ps, int32_t seq_i,
                     int32_t position, int32_t *id, int32_t *source)
{
    const struct bt_gen_request *r = bt_cuda_request(e, ps);
    int32_t n_known = ps->n_prompt + ps->n_generated;
    *id = 0;
    *source = 0;
    if (position < n_known && position < r->n_prompt + r->n_out) {
        *id = bt_gen_token(r, position);
    } else if (position < n_known) {
        BT_ASSERT(position == n_known - 1 && position == r->n_prompt + r->n_out);
        *source = -1 - ps->slot;
    } else {
        BT_ASSERT(position - n_known < ps->k_spec);
        *source = -1 - (e->opts.max_seqs + seq_i * e->opts.spec_k + position - n_known);
    }
}

static void fill_rows(struct bt_cuda_executor *e, const struct bt_cuda_pass *p,
                      const struct shape *s, const struct bt_cuda_meta *m, int32_t *words)
{
    int32_t row = 0;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct bt_plan_seq *ps = &p->plan->seqs[p->seq0 + i];
        const struct bt_cuda_part *part = &p->parts[i];
        words[m->first_row + i] = row;
        words[m->pos0 + i] = part->from;
        words[m->kv_class + i] = ps->kv_class;
        words[m->slot + i] = ps->slot;
        e->attn_segments[i] = (struct bt_cuda_attn_segment){
            .n_rows = part->to - part->from, .pos0 = part->from, .kv_class = ps->kv_class};
        for (int32_t pos = part->from; pos < part->to; pos++, row++) {
            token_at(e, ps, p->seq0 + i, pos, &words[m->ids + row], &words[m->source + row]);
            words[m->position + row] = pos;
            words[m->segment + row] = i;
        }
    }
    for (int32_t i = p->n_seqs; i < s->n_segments; i++) {
        words[m->first_row + i] = row;
        words[m->pos0 + i] = 0;
        words[m->kv_class + i] = 0;
        words[m->slot + i] = -1;
        e->attn_segments[i] = (struct bt_cuda_attn_segment){0};
    }
    words[m->first_row + s->n_segments] = row;
    for (; row < s->n_rows; row++) {
        words[m->ids + row] = words[m->source + row] = 0;
        words[m->position + row] = words[m->segment + row] = -1;
    }
}

struct bt_cuda_choice bt_cuda_choice_of(const struct bt_cuda_executor *e,
                                        const struct bt_plan_seq *ps, int32_t first_row)
{
    const struct bt_sampling *how = &bt_cuda_request(e, ps)->sampling;
    return (struct bt_cuda_choice){
        .first_row = first_row,
        .k = ps->k_spec,
        .position = ps->n_prompt + ps->n_generated,
        .slot = ps->slot,
        .temperature = how->temperature,
        .top_k = how->top_k,
        .top_p = how->top_p,
        .force = e->opts.force_acceptance > 0 ? (float)e->opts.force_acceptance : -1.0f,
        .seed = how->seed,
    };
}

/* Which rows are wanted, and who chooses from them. */
static void fill_choices(const struct bt_cuda_executor *e, const struct bt_cuda_pass *p,
                         const struct shape *s, const struct bt_cuda_meta *m, int32_t *words)
{
    static const struct bt_cuda_choice nobody = {.first_row = -1, .slot = -1, .force = -1.0f};
    struct bt_cuda_choice *choices = (struct bt_cuda_choice *)(void *)words;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_segments; i++) {
        choices[i] = nobody;
        int32_t end = words[m->first_row + i + 1];
        int32_t n_want = i < p->n_seqs ? p->parts[i].n_want : 0;
        const struct bt_plan_seq *ps = i < p->n_seqs ? &p->plan->seqs[p->seq0 + i] : NULL;
        if (p->kind == BT_PASS_DRAFT) {
            words[m->want + i] = n_want > 0 ? end - 1 : -1;
            if (n_want > 0) {
                choices[i] = bt_cuda_choice_of(e, ps, i);
            }
            continue;
        }
        if (n_want > 0) {
            choices[i] = bt_cuda_choice_of(e, ps, n);
        }
        for (int32_t r = end - n_want; r < end; r++) {
            words[m->want + n++] = r;
        }
    }
    for (; p->kind != BT_PASS_DRAFT && n < s->n_wanted; n++) {
        words[m->want + n] = -1;
    }
}

static enum bt_code upload_meta(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                const struct bt_cuda_pass *p, const struct shape *s,
                                const struct bt_cuda_meta *m, struct bt_error *err)
{
    void *pinned = NULL;
    size_t bytes = (size_t)m->n_words * sizeof(int32_t);
    BT_TRY(bt_cuda_take_pinned(e, f, (int64_t)bytes, &pinned, err));
    int32_t *words = pinned;
    fill_rows(e, p, s, m, words);
    fill_choices(e, p, s, m, words);
    bt_cuda_attn_plan(p->decoder->attn, e->attn_segments, s->n_rows, s->n_segments, s->decode,
                      words + m->plan);
    BT_CUDA_TRY(cudaMemcpyAsync(e->meta, words, bytes, cudaMemcpyHostToDevice, e->stream), err);
    return BT_OK;
}

/* ---- kernels ---- */

static const struct bt_cuda_choice *choices_of(const struct bt_cuda_executor *e)
{
    return (const struct bt_cuda_choice *)(const void *)e->meta;
}

static void choose(struct bt_cuda_executor *e, const struct bt_cuda_pass *p, const struct shape *s)
{
    size_t at = (size_t)p->seq0 * (size_t)e->opts.spec_k;
    size_t vocab = (size_t)e->config.arch.vocab;
    float *q = e->q == NULL ? NULL : e->q + at * vocab;
    int32_t *drafts = e->drafts == NULL ? NULL : e->drafts + at;
    if (p->kind == BT_PASS_TARGET) {
        bt_cuda_sample(e->sampler, e->logits, choices_of(e), s->n_segments, s->greedy,
                       p->plan->speculative ? drafts : NULL, q, e->chosen + p->seq0, e->last,
                       e->stream);
    } else if (p->kind == BT_PASS_DRAFT) {
        bt_cuda_sample_draft(e->sampler, e->logits, choices_of(e), s->n_segments, s->greedy, p->j,
                             drafts, q, e->stream);
    }
}

static enum bt_code enqueue(struct bt_cuda_executor *e, const struct bt_cuda_pass *p,
                            const struct shape *s, const struct bt_cuda_meta *m, uint32_t parts,
                            struct bt_error *err)
{
    struct bt_cuda_decoder *d = p->decoder;
    int32_t *ids = e->meta + m->ids;
    struct bt_cuda_batch b = {
        .n_rows = s->n_rows,
        .n_segments = s->n_segments,
        .max_blocks = e->max_blocks,
        .ids = ids,
        .position = e->meta + m->position,
        .segment = e->meta + m->segment,
        .first_row = e->meta + m->first_row,
        .pos0 = e->meta + m->pos0,
        .kv_class = e->meta + m->kv_class,
        .blocks = e->blocks,
        .attn_plan = e->meta + m->plan,
    };
    if ((parts & BT_CUDA_PART(BT_PART_EMBED)) != 0) {
        bt_cuda_take_ids(ids, e->meta + m->source, e->last, s->n_rows, e->stream);
    }
    BT_TRY(bt_cuda_decoder_forward(d, &b, p->n_layers, s->decode, parts, e->stream, err));
    if (s->n_wanted > 0 && (parts & BT_CUDA_PART(BT_PART_LM_HEAD)) != 0) {
        const void *states = e->work.h;
        if (s->gathers) {
            bt_cuda_gather(e->work.h, e->meta + m->want, s->n_wanted, d->model->arch.hidden,
                           e->states, e->stream);
            states = e->states;
        }
        BT_TRY(bt_cuda_decoder_logits(d, states, s->n_wanted, e->logits, e->stream, err));
    }
    if ((parts & BT_CUDA_PART(BT_PART_SAMPLE)) != 0) {
        choose(e, p, s);
        if (e->slot_states != NULL && p->kind == BT_PASS_TARGET) {
            bt_cuda_keep_states(e->work.h, d->model->arch.hidden, b.first_row, e->meta + m->slot,
                                choices_of(e), e->chosen + p->seq0, s->n_segments, e->slot_states,
                                e->stream);
        }
    }
    return bt_cuda_check_launch("pass", err);
}

/* ---- graphs ---- */

static struct bt_cuda_graph *find_graph(struct bt_cuda_executor *e, const struct bt_cuda_pass *p,
                                        const struct shape *s)
{
    struct bt_cuda_graph key = {.kind = p->kind,
                                .j = p->kind == BT_PASS_DRAFT ? p->j : 0,
                                .n_rows = s->n_rows,
                                .n_segments = s->n_segments,
                                .sampled = e->q != NULL,
                                .greedy = s->greedy};
    for (int32_t i = 0; i < e->n_graphs; i++) {
        struct bt_cuda_graph *g = &e->graphs[i];
        if (g->kind == key.kind && g->j == key.j && g->n_rows == key.n_rows &&
            g->n_segments == key.n_segments && g->sampled == key.sampled &&
            g->greedy == key.greedy) {
            return g;
        }
    }
    if (e->n_graphs == e->cap_graphs) {
        int32_t cap = e->cap_graphs == 0 ? 32 : 2 * e->cap_graphs;
        struct bt_cuda_graph *grown = realloc(e->graphs, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            return NULL; /* the pass runs without */
        }
        e->graphs = grown;
        e->cap_graphs = cap;
    }
    e->graphs[e->n_graphs] = key;
    return &e->graphs[e->n_graphs++];
}

void bt_cuda_graphs_fini(struct bt_cuda_executor *e)
{
    for (int32_t i = 0; i < e->n_graphs; i++) {
        if (e->graphs[i].exec != NULL) {
            (void)cudaGraphExecDestroy(e->graphs[i].exec);
        }
    }
    free(e->graphs);
    e->graphs = NULL;
    e->n_graphs = e->cap_graphs = 0;
}

/* `repeats` runs of the pass's parts, one after the other, as one graph. */
static enum bt_code capture(struct bt_cuda_executor *e, const struct bt_cuda_pass *p,
                            const struct shape *s, const struct bt_cuda_meta *m, uint32_t parts,
                            int32_t repeats, cudaGraphExec_t *out, struct bt_error *err)
{
    BT_CUDA_TRY(cudaStreamBeginCapture(e->stream, cudaStreamCaptureModeThreadLocal), err);
    enum bt_code code = BT_OK;
    for (int32_t i = 0; i < repeats && code == BT_OK; i++) {
        code = enqueue(e, p, s, m, parts, err);
    }
    cudaGraph_t graph = NULL;
    cudaError_t rc = cudaStreamEndCapture(e->stream, &graph);
    if (code == BT_OK && rc == cudaSuccess) {
        rc = cudaGraphInstantiate(out, graph, 0);
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    if (code == BT_OK && rc != cudaSuccess) {
        code = bt_cuda_fail(rc, "graph of a step", __FILE__, __LINE__, err);
    }
    return code;
}

static enum bt_code run_piece(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                              const struct bt_cuda_pass *p, struct bt_error *err)
{
    struct shape s = shape_of(e, p);
    BT_ASSERT(s.n_rows <= e->work.max_rows && s.n_segments <= e->max_segments &&
              s.n_wanted <= e->max_choice_rows);
    struct bt_cuda_meta m = layout_of(p, &s);
    BT_TRY(upload_meta(e, f, p, &s, &m, err));
    struct bt_cuda_graph *g = s.graph ? find_graph(e, p, &s) : NULL;
    /* The first run of a shape is plain: kernels are loaded, not captured while loading. */
    if (g == NULL || g->n_seen++ == 0) {
        return enqueue(e, p, &s, &m, BT_CUDA_ALL_PARTS, err);
    }
    if (g->exec == NULL) {
        BT_TRY(capture(e, p, &s, &m, BT_CUDA_ALL_PARTS, 1, &g->exec, err));
    }
    BT_CUDA_TRY(cudaGraphLaunch(g->exec, e->stream), err);
    return BT_OK;
}

/* Cuts the next piece from what is left of a pass, from sequence p->seq0 on. Rows that are wanted
 * together stay together. */
static void next_piece(const struct bt_cuda_executor *e, struct bt_cuda_pass *p,
                       struct bt_cuda_part *left, int32_t n_seqs)
{
    int32_t room = e->work.max_rows;
    p->n_seqs = 0;
    for (int32_t i = p->seq0; i < n_seqs && room > 0; i++) {
        struct bt_cuda_part *part = &left[i];
        int32_t n = part->to - part->from;
        int32_t take = n <= room ? n : n - room < part->n_want ? n - part->n_want : room;
        take = take > room ? room : take;
        if (take <= 0 && n > 0) {
            break;
        }
        p->parts[p->n_seqs++] =
            (struct bt_cuda_part){part->from, part->from + take, take == n ? part->n_want : 0};
        part->from += take;
        if (take < n) {
            break;
        }
        room -= take;
    }
    BT_ASSERT(p->n_seqs > 0);
}

enum bt_code bt_cuda_pass_run(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                              const struct bt_cuda_pass *p, struct bt_error *err)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        rows += p->parts[i].to - p->parts[i].from;
    }
    if (rows == 0) {
        return BT_OK;
    }
    if (rows <= e->work.max_rows) {
        return run_piece(e, f, p, err);
    }
    struct bt_cuda_pass piece = *p;
    piece.parts = e->piece;
    piece.decodes = false;
    while (piece.seq0 < p->n_seqs) {
        next_piece(e, &piece, p->parts, p->n_seqs);
        BT_TRY(bt_cuda_upload_blocks(e, f, p->plan, piece.seq0, piece.n_seqs, err));
        BT_TRY(run_piece(e, f, &piece, err));
        piece.seq0 += piece.n_seqs - 1;
        piece.seq0 += p->parts[piece.seq0].from == p->parts[piece.seq0].to;
    }
    return bt_cuda_upload_blocks(e, f, p->plan, 0, p->n_seqs, err);
}

/* Parts that a pass runs once rather than once a layer are repeated, so that the launch of the
 * graph does not count for much. */
static int32_t repeats_of(enum bt_step_part part)
{
    enum { ONCE_REPEATS = 8 };
    bool once = part == BT_PART_EMBED || part == BT_PART_FINAL_NORM || part == BT_PART_LM_HEAD ||
                part == BT_PART_SAMPLE;
    return once ? ONCE_REPEATS : 1;
}

enum bt_code bt_cuda_pass_time(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                               const struct bt_cuda_pass *p, enum bt_step_part part,
                               int32_t n_repeats, int64_t *ns, struct bt_error *err)
{
    struct shape s = shape_of(e, p);
    struct bt_cuda_meta m = layout_of(p, &s);
    BT_TRY(upload_meta(e, f, p, &s, &m, err));
    BT_TRY(enqueue(e, p, &s, &m, BT_CUDA_PART(part), err));
    int32_t repeats = repeats_of(part);
    cudaGraphExec_t exec = NULL;
    BT_TRY(capture(e, p, &s, &m, BT_CUDA_PART(part), repeats, &exec, err));
    enum bt_code code = BT_OK;
    for (int32_t i = -1; i < n_repeats && code == BT_OK; i++) {
        float ms = 0;
        cudaError_t rc = cudaEventRecord(e->started[0], e->stream);
        rc = rc == cudaSuccess ? cudaGraphLaunch(exec, e->stream) : rc;
        rc = rc == cudaSuccess ? cudaEventRecord(e->done[0], e->stream) : rc;
        rc = rc == cudaSuccess ? cudaEventSynchronize(e->done[0]) : rc;
        rc = rc == cudaSuccess ? cudaEventElapsedTime(&ms, e->started[0], e->done[0]) : rc;
        if (rc != cudaSuccess) {
            code = bt_cuda_fail(rc, "timing a part of a step", __FILE__, __LINE__, err);
        } else if (i >= 0) {
            ns[i] = (int64_t)((double)ms * 1e6 / repeats);
        }
    }
    (void)cudaGraphExecDestroy(exec);
    return code;
}
