/* Generated load: every attribute of a request is drawn from a random stream of its own. */
#include "sim/workload/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONVERSATION_HASH_TOKENS = 16, /* prefix identity of a conversation's growing prompt */
};

/* The rest of a conversation after the turn that was given out last. */
struct conversation {
    int64_t next_ns; /* unscaled */
    int64_t session; /* also breaks ties of next_ns */
    int32_t n_turns_left;
    int32_t n_context; /* tokens said so far, prompt and answers */
    int32_t prefix_i;
    int32_t class_i;
    int32_t kind;
};

struct streams {
    struct bt_rng arrival, prompt, output, priority, prefix, kind, think, turns, turn_gap;
};

struct generated {
    struct bt_source base;
    uint64_t seed;
    double rate_scale;
    double duration_s; /* INFINITY: none */
    int64_t n_requests;
    bool flat; /* one constant rate: times without a walk */
    double rate_per_s;
    struct bt_gap gap;
    struct bt_rate_point *points; /* owned */
    int32_t n_points;
    double period_s;
    struct bt_dist *prompt, *output, *think, *turns, *turn_gap; /* owned */
    int32_t n_prefixes, n_classes, n_kinds;
    double *prefix_cum, *class_cum, *kind_cum; /* owned */
    int32_t *prefix_tokens;                    /* owned */
    uint64_t *prefix_ids;                      /* owned: one hash a group */
    struct bt_class_spec *classes;             /* owned */
    int64_t *class_timeout_ns;                 /* owned */
    int64_t timeout_ns;
    uint64_t session_key; /* names conversations' hashes */
    /* State. */
    struct streams rng;
    struct bt_rate_walk walk;
    double work; /* flat: operational time of the last arrival */
    bool started;
    bool arrivals_ended;
    bool fresh_known;
    int64_t fresh_ns; /* next arrival that starts a request or conversation; unscaled */
    int64_t n_given;
    int64_t n_sessions;
    struct conversation *heap; /* owned: by (next_ns, session) */
    int64_t n_heap, heap_cap;
    uint64_t *hashes; /* owned: of the request given last */
    int64_t hashes_cap;
};

static bool earlier(const struct conversation *a, const struct conversation *b)
{
    return a->next_ns != b->next_ns ? a->next_ns < b->next_ns : a->session < b->session;
}

static enum bt_code heap_push(struct generated *g, struct conversation c, struct bt_error *err)
{
    BT_TRY(bt_array_grow((void **)&g->heap, &g->heap_cap, g->n_heap + 1, sizeof *g->heap, err));
    int64_t i = g->n_heap++;
    while (i > 0 && earlier(&c, &g->heap[(i - 1) / 2])) {
        g->heap[i] = g->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    g->heap[i] = c;
    return BT_OK;
}

static struct conversation heap_pop(struct generated *g)
{
    BT_ASSERT(g->n_heap > 0);
    struct conversation top = g->heap[0];
    struct conversation c = g->heap[--g->n_heap];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= g->n_heap) {
            break;
        }
        if (child + 1 < g->n_heap && earlier(&g->heap[child + 1], &g->heap[child])) {
            child++;
        }
        if (!earlier(&g->heap[child], &c)) {
            break;
        }
        g->heap[i] = g->heap[child];
        i = child;
    }
    g->heap[i] = c;
    return top;
}

/* Finds the next fresh arrival unless it is known or there is none. */
static void find_fresh(struct generated *g)
{
    if (g->fresh_known || g->arrivals_ended) {
        return;
    }
    double gap = g->started ? bt_gap_draw(&g->gap, &g->rng.arrival)
                            : bt_gap_draw_first(&g->gap, &g->rng.arrival);
    g->started = true;
    double limit_s = fmin(g->duration_s, BT_TIME_MAX_S);
    double t_s = 0.0;
    bool some = true;
    if (g->flat) {
        g->work += gap;
        t_s = g->work / g->rate_per_s;
        some = t_s <= limit_s;
    } else {
        some = bt_rate_walk_advance(&g->walk, gap, limit_s, &t_s);
    }
    if (!some || t_s >= g->duration_s) {
        g->arrivals_ended = true;
        return;
    }
    g->fresh_known = true;
    g->fresh_ns = bt_ns_of_s(t_s);
}

static int32_t pick(const double *cum, int32_t n, struct bt_rng *r)
{
    return n == 0 ? 0 : bt_weights_pick(cum, n, bt_rng_uniform(r));
}

/* Fills the prefix identity of a single request: its group's shared tokens. */
static void set_shared_prefix(struct generated *g, int32_t prefix_i, struct bt_request *q)
{
    q->hashes = NULL;
    q->n_hashes = 0;
    q->hash_tokens = 0;
    if (g->n_prefixes > 0 && g->prefix_tokens[prefix_i] > 0) {
        q->hashes = &g->prefix_ids[prefix_i];
        q->n_hashes = 1;
        q->hash_tokens = g->prefix_tokens[prefix_i];
    }
}

/* Fills the prefix identity of a turn: whole blocks of the prompt, the group's within its shared
 * prefix, the conversation's own after it. */
static enum bt_code set_conversation_prefix(struct generated *g, const struct conversation *c,
                                            struct bt_request *q, struct bt_error *err)
{
    int32_t n = q->n_prompt / CONVERSATION_HASH_TOKENS;
    BT_TRY(bt_array_grow((void **)&g->hashes, &g->hashes_cap, n, sizeof *g->hashes, err));
    int32_t shared = g->n_prefixes > 0 ? g->prefix_tokens[c->prefix_i] : 0;
    int32_t n_shared = shared / CONVERSATION_HASH_TOKENS;
    uint64_t own = bt_hash_combine(g->session_key, (uint64_t)c->session);
    for (int32_t j = 0; j < n; j++) {
        uint64_t base = j < n_shared ? g->prefix_ids[c->prefix_i] : own;
        g->hashes[j] = bt_hash_combine(base, (uint64_t)j);
    }
    q->hashes = n > 0 ? g->hashes : NULL;
    q->n_hashes = n;
    q->hash_tokens = n > 0 ? CONVERSATION_HASH_TOKENS : 0;
    return BT_OK;
}

static int32_t add_tokens(int32_t a, int32_t b)
{
    return a > BT_MAX_TOKENS - b ? BT_MAX_TOKENS : a + b;
}

/* Draws the lengths of a request whose group, class and kind are chosen. */
static void draw_lengths(struct generated *g, int32_t prefix_i, int32_t n_context,
                         struct bt_request *q)
{
    int32_t said = bt_dist_draw_tokens(g->prompt, &g->rng.prompt);
    int32_t shared = g->n_prefixes > 0 ? g->prefix_tokens[prefix_i] : 0;
    if (n_context > 0) {
        q->n_prompt = add_tokens(n_context, said);
    } else {
        q->n_prompt = said > shared ? said : shared + 1;
    }
    q->n_output = bt_dist_draw_tokens(g->output, &g->rng.output);
}

static struct conversation draw_conversation(struct generated *g)
{
    struct conversation c = {
        .next_ns = g->fresh_ns,
        .session = g->n_sessions,
        .prefix_i = pick(g->prefix_cum, g->n_prefixes, &g->rng.prefix),
        .class_i = pick(g->class_cum, g->n_classes, &g->rng.priority),
        .kind = pick(g->kind_cum, g->n_kinds, &g->rng.kind),
        .n_turns_left = 1,
    };
    if (g->turns != NULL) {
        c.n_turns_left = bt_dist_draw_tokens(g->turns, &g->rng.turns);
        g->n_sessions++;
    }
    return c;
}

static enum bt_source_status give(struct generated *g, struct conversation *c,
                                  struct bt_request *out, struct bt_error *err)
{
    struct bt_request q = {.id = g->n_given, .kind = c->kind, .session = -1};
    draw_lengths(g, c->prefix_i, c->n_context, &q);
    q.timeout_ns = g->timeout_ns;
    if (g->n_classes > 0) {
        q.priority = g->classes[c->class_i].priority;
        if (g->class_timeout_ns[c->class_i] > 0) {
            q.timeout_ns = g->class_timeout_ns[c->class_i];
        }
    }
    if (g->base.closed_users > 0) {
        q.arrival_ns = BT_ARRIVAL_ON_COMPLETION;
        if (g->think != NULL) {
            q.think_ns = bt_ns_of_s(fmin(bt_dist_draw(g->think, &g->rng.think), BT_TIME_MAX_S));
        }
    } else {
        q.arrival_ns = bt_ns_scaled(c->next_ns, g->rate_scale);
    }
    if (g->turns == NULL) {
        set_shared_prefix(g, c->prefix_i, &q);
    } else {
        /* Dense session numbers pass int32 only after two thousand million conversations. */
        q.session = (int32_t)(c->session & INT32_MAX);
        if (set_conversation_prefix(g, c, &q, err) != BT_OK) {
            return BT_SOURCE_ERROR;
        }
        c->n_context = add_tokens(q.n_prompt, q.n_output);
        double gap_s = fmin(bt_dist_draw(g->turn_gap, &g->rng.turn_gap), BT_TIME_MAX_S);
        c->next_ns += bt_ns_of_s(gap_s);
        c->n_turns_left--;
        bool in_time = (double)c->next_ns < g->duration_s * BT_NS_PER_S &&
                       (double)c->next_ns < BT_TIME_MAX_S * BT_NS_PER_S;
        if (c->n_turns_left > 0 && in_time && heap_push(g, *c, err) != BT_OK) {
            return BT_SOURCE_ERROR;
        }
    }
    g->n_given++;
    *out = q;
    return BT_SOURCE_MORE;
}

static enum bt_source_status generated_next(void *self, struct bt_request *out,
                                            struct bt_error *err)
{
    struct generated *g = self;
    if (g->n_requests > 0 && g->n_given == g->n_requests) {
        return BT_SOURCE_END;
    }
    if (g->base.closed_users > 0) {
        struct conversation c = draw_conversation(g);
        return give(g, &c, out, err);
    }
    find_fresh(g);
    if (g->n_heap > 0 && (!g->fresh_known || g->heap[0].next_ns <= g->fresh_ns)) {
        struct conversation c = heap_pop(g);
        return give(g, &c, out, err);
    }
    if (!g->fresh_known) {
        return BT_SOURCE_END;
    }
    struct conversation c = draw_conversation(g);
    g->fresh_known = false;
    return give(g, &c, out, err);
}

static enum bt_code generated_rewind(void *self, struct bt_error *err)
{
    (void)err;
    struct generated *g = self;
    bt_rng_init(&g->rng.arrival, g->seed, "workload.arrival", 0);
    bt_rng_init(&g->rng.prompt, g->seed, "workload.prompt", 0);
    bt_rng_init(&g->rng.output, g->seed, "workload.output", 0);
    bt_rng_init(&g->rng.priority, g->seed, "workload.priority", 0);
    bt_rng_init(&g->rng.prefix, g->seed, "workload.prefix", 0);
    bt_rng_init(&g->rng.kind, g->seed, "workload.kind", 0);
    bt_rng_init(&g->rng.think, g->seed, "workload.think", 0);
    bt_rng_init(&g->rng.turns, g->seed, "workload.turns", 0);
    bt_rng_init(&g->rng.turn_gap, g->seed, "workload.turn_gap", 0);
    if (g->n_points > 0) {
        bt_rate_walk_init(&g->walk, g->points, g->n_points, g->period_s);
    }
    g->work = 0.0;
    g->started = g->arrivals_ended = g->fresh_known = false;
    g->fresh_ns = 0;
    g->n_given = g->n_sessions = g->n_heap = 0;
    return BT_OK;
}

static void generated_destroy(void *self)
{
    struct generated *g = self;
    bt_dist_destroy(g->prompt);
    bt_dist_destroy(g->output);
    bt_dist_destroy(g->think);
    bt_dist_destroy(g->turns);
    bt_dist_destroy(g->turn_gap);
    free(g->points);
    free(g->prefix_cum);
    free(g->class_cum);
    free(g->kind_cum);
    free(g->prefix_tokens);
    free(g->prefix_ids);
    free(g->classes);
    free(g->class_timeout_ns);
    free(g->heap);
    free(g->hashes);
    free(g);
}

static const struct bt_source_ops generated_ops = {.name = "generated",
                                                   .next = generated_next,
                                                   .rewind = generated_rewind,
                                                   .destroy = generated_destroy};

static enum bt_code alloc(void *pointer, int64_t n, size_t item_bytes, struct bt_error *err)
{
    void *p = calloc((size_t)n, item_bytes);
    if (p == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for %lld items of %zu bytes",
                (long long)n, item_bytes);
    }
    memcpy(pointer, &p, sizeof p);
    return BT_OK;
}

static enum bt_code init_arrivals(struct generated *g, const struct bt_workload_spec *spec,
                                  struct bt_error *err)
{
    if (spec->arrival == BT_ARRIVAL_CLOSED) {
        g->base.closed_users = spec->users;
        return BT_OK;
    }
    g->gap = bt_gap_of_cv(spec->arrival, spec->cv);
    g->flat = spec->points == NULL;
    g->rate_per_s = spec->rate_per_s;
    if (!g->flat) {
        BT_TRY(alloc(&g->points, spec->n_points, sizeof *g->points, err));
        memcpy(g->points, spec->points, (size_t)spec->n_points * sizeof *g->points);
        g->n_points = spec->n_points;
        g->period_s = spec->period_s;
    }
    return BT_OK;
}

static enum bt_code init_dists(struct generated *g, const struct bt_workload_spec *spec,
                               struct bt_error *err)
{
    BT_TRY(bt_dist_create(&spec->prompt, "workload.prompt", &g->prompt, err));
    BT_TRY(bt_dist_create(&spec->output, "workload.output", &g->output, err));
    if (spec->arrival == BT_ARRIVAL_CLOSED && spec->think_s.kind != BT_DIST_NONE) {
        BT_TRY(bt_dist_create(&spec->think_s, "workload.think_s", &g->think, err));
    }
    if (spec->turns.kind != BT_DIST_NONE) {
        BT_TRY(bt_dist_create(&spec->turns, "workload.turns", &g->turns, err));
        BT_TRY(bt_dist_create(&spec->turn_gap_s, "workload.turn_gap_s", &g->turn_gap, err));
    }
    return BT_OK;
}

static enum bt_code init_groups(struct generated *g, const struct bt_workload_spec *spec,
                                struct bt_error *err)
{
    int32_t n = g->n_prefixes = spec->n_prefixes;
    if (n > 0) {
        BT_TRY(alloc(&g->prefix_cum, n, sizeof *g->prefix_cum, err));
        BT_TRY(alloc(&g->prefix_tokens, n, sizeof *g->prefix_tokens, err));
        BT_TRY(alloc(&g->prefix_ids, n, sizeof *g->prefix_ids, err));
        for (int32_t i = 0; i < n; i++) {
            g->prefix_cum[i] = spec->prefixes[i].weight;
            g->prefix_tokens[i] = spec->prefixes[i].tokens;
            g->prefix_ids[i] = bt_hash_combine(bt_hash_bytes("prefix", 6, g->seed), (uint64_t)i);
        }
        bt_weights_accumulate(g->prefix_cum, n, g->prefix_cum);
    }
    n = g->n_classes = spec->n_classes;
    if (n > 0) {
        BT_TRY(alloc(&g->class_cum, n, sizeof *g->class_cum, err));
        BT_TRY(alloc(&g->classes, n, sizeof *g->classes, err));
        BT_TRY(alloc(&g->class_timeout_ns, n, sizeof *g->class_timeout_ns, err));
        for (int32_t i = 0; i < n; i++) {
            g->classes[i] = spec->classes[i];
            g->class_cum[i] = spec->classes[i].share;
            g->class_timeout_ns[i] = bt_ns_of_s(spec->classes[i].timeout_s);
        }
        bt_weights_accumulate(g->class_cum, n, g->class_cum);
    }
    n = g->n_kinds = spec->n_kinds;
    if (n > 0) {
        BT_TRY(alloc(&g->kind_cum, n, sizeof *g->kind_cum, err));
        bt_weights_accumulate(spec->kind_shares, n, g->kind_cum);
    }
    return BT_OK;
}

enum bt_code bt_source_create_generated(const struct bt_workload_spec *spec, uint64_t seed,
                                        struct bt_source **out, struct bt_error *err)
{
    struct generated *g = calloc(1, sizeof *g);
    if (g == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for a source");
    }
    g->base = (struct bt_source){.ops = &generated_ops, .self = g};
    g->seed = seed;
    g->session_key = bt_hash_bytes("session", 7, seed);
    g->rate_scale = spec->rate_scale > 0.0 ? spec->rate_scale : 1.0;
    g->duration_s = spec->duration_s > 0.0 ? spec->duration_s : INFINITY;
    g->n_requests = spec->n_requests;
    g->timeout_ns = bt_ns_of_s(spec->timeout_s);
    enum bt_code code = init_arrivals(g, spec, err);
    if (code == BT_OK) {
        code = init_dists(g, spec, err);
    }
    if (code == BT_OK) {
        code = init_groups(g, spec, err);
    }
    if (code == BT_OK) {
        code = generated_rewind(g, err);
    }
    if (code != BT_OK) {
        generated_destroy(g);
        return code;
    }
    *out = &g->base;
    return BT_OK;
}
