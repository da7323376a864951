#include "engine/core/sched.h"

#include "engine/core/rng.h"
#include "engine/core/sched_impl.h"

enum { DEFAULT_MAX_REQUESTS = 131072 };

/* Fails with the option's name, its value and the range. */
#define CHECK_RANGE(err, name, value, low, high)                                                   \
    do {                                                                                           \
        if ((value) < (low) || (value) > (high)) {                                                 \
            BT_FAIL((err), BT_ERR_ARG, 0, "sched." name ": %lld must be in %lld .. %lld",          \
                    (long long)(value), (long long)(low), (long long)(high));                      \
        }                                                                                          \
    } while (0)

static enum bt_code check_batching(const struct bt_sched_opts *o, struct bt_error *err)
{
    CHECK_RANGE(err, "batching", (int)o->batching, BT_BATCHING_CONTINUOUS, BT_BATCHING_STATIC);
    CHECK_RANGE(err, "order", (int)o->order, BT_ORDER_FCFS, BT_ORDER_SHORTEST);
    CHECK_RANGE(err, "over_length", (int)o->over_length, BT_OVER_REJECT, BT_OVER_ALLOW);
    CHECK_RANGE(err, "max_seqs", o->max_seqs, 1, BT_MAX_SEQS);
    bool whole_steps = o->batching == BT_BATCHING_STATIC || !o->chunked_prefill;
    CHECK_RANGE(err, "max_batched_tokens", o->max_batched_tokens, whole_steps ? 1 : o->max_seqs,
                INT32_MAX);
    CHECK_RANGE(err, "max_model_len", o->max_model_len, 2, INT32_MAX / 2);
    CHECK_RANGE(err, "max_requests", o->max_requests, 0, BT_MAX_REQUESTS);
    CHECK_RANGE(err, "max_waiting", o->max_waiting, 0, INT32_MAX);
    CHECK_RANGE(err, "window_low_ns", o->window_low_ns, 0, INT64_MAX / 4);
    CHECK_RANGE(err, "window_high_ns", o->window_high_ns, o->window_low_ns, INT64_MAX / 4);
    CHECK_RANGE(err, "inflight_max", o->inflight_max, 1, BT_MAX_INFLIGHT);
    CHECK_RANGE(err, "degrade.at_waiting", o->degrade.at_waiting, 0, INT32_MAX);
    CHECK_RANGE(err, "degrade.max_new_tokens", o->degrade.max_new_tokens, 0, INT32_MAX);
    return BT_OK;
}

static enum bt_code check_memory(const struct bt_sched_opts *o, struct bt_error *err)
{
    CHECK_RANGE(err, "n_blocks", o->n_blocks, 1, INT32_MAX);
    CHECK_RANGE(err, "n_host_blocks", o->n_host_blocks, 0, INT32_MAX);
    CHECK_RANGE(err, "block_tokens", o->block_tokens, 1, BT_MAX_BLOCK_TOKENS);
    CHECK_RANGE(err, "long_above_tokens", o->long_above_tokens, 0, INT32_MAX);
    CHECK_RANGE(err, "block_tokens_16bit", o->block_tokens_16bit, o->long_above_tokens > 0 ? 1 : 0,
                BT_MAX_BLOCK_TOKENS);
    CHECK_RANGE(err, "block_bytes", o->block_bytes, 0, INT64_MAX);
    CHECK_RANGE(err, "watermark_blocks", o->watermark_blocks, 0, o->n_blocks);
    CHECK_RANGE(err, "preempt", (int)o->preempt, BT_PREEMPT_RECOMPUTE, BT_PREEMPT_AUTO);
    CHECK_RANGE(err, "preempt_goal", (int)o->preempt_goal, BT_GOAL_VICTIM_DELAY, BT_GOAL_FREE_TIME);
    CHECK_RANGE(err, "victim", (int)o->victim, BT_VICTIM_NEWEST, BT_VICTIM_LEAST_PROGRESS);
    CHECK_RANGE(err, "spec.k", o->spec.k, 0, BT_MAX_SPEC_K);
    CHECK_RANGE(err, "spec.off_above_batch", o->spec.off_above_batch, 0, BT_MAX_SEQS);
    CHECK_RANGE(err, "spec.on_below_batch", o->spec.on_below_batch, 0, o->spec.off_above_batch);
    if (!(o->spec.draft_cost_ratio >= 0.0)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "sched.spec.draft_cost_ratio: %g must be >= 0",
                o->spec.draft_cost_ratio);
    }
    return BT_OK;
}

/* Blocks of the longest sequence that may be resident, look-ahead slots included. */
static int32_t longest_table(const struct bt_sched_opts *o)
{
    if (o->over_length == BT_OVER_ALLOW) {
        return o->n_blocks;
    }
    int32_t block_tokens = o->block_tokens;
    if (o->long_above_tokens > 0 && o->block_tokens_16bit < block_tokens) {
        block_tokens = o->block_tokens_16bit;
    }
    int32_t n = bt_sched_blocks_for_tokens(o->max_model_len + o->spec.k, block_tokens);
    return n < o->n_blocks ? n : o->n_blocks;
}

/* Token counts of a sequence fit in int32 with room for look-ahead. */
static int32_t table_capacity(const struct bt_sched_opts *o)
{
    int32_t longest = longest_table(o);
    int32_t block_tokens = o->block_tokens;
    if (o->long_above_tokens > 0 && o->block_tokens_16bit > block_tokens) {
        block_tokens = o->block_tokens_16bit;
    }
    int32_t most = INT32_MAX / 2 / block_tokens;
    return longest < most ? longest : most;
}

static enum bt_code take_memory(struct bt_sched *s, struct bt_arena *arena, struct bt_error *err)
{
    int32_t n = s->n_slots;
    int32_t n_host = s->opts.n_host_blocks;
    BT_ARENA_ARRAY_RAW(arena, s->reqs, s->opts.max_requests, err);
    BT_ARENA_ARRAY(arena, s->seqs, n, err);
    BT_ARENA_ARRAY(arena, s->cold, n, err);
    BT_ARENA_ARRAY_RAW(arena, s->tables, (int64_t)n * s->table_cap, err);
    BT_ARENA_ARRAY_RAW(arena, s->free_slots, n, err);
    BT_ARENA_ARRAY_RAW(arena, s->run_slot, n, err);
    BT_ARENA_ARRAY_RAW(arena, s->run_key, n, err);
    BT_ARENA_ARRAY_RAW(arena, s->host_next, n_host, err);
    BT_ARENA_ARRAY(arena, s->draft_block, s->opts.n_blocks, err);
    BT_ARENA_ARRAY_RAW(arena, s->check_refs, s->opts.n_blocks, err);
    BT_ARENA_ARRAY_RAW(arena, s->dec, n, err);
    BT_ARENA_ARRAY_RAW(arena, s->dec_k, n, err);
    BT_ARENA_ARRAY_RAW(arena, s->pre, n, err);
    BT_ARENA_ARRAY_RAW(arena, s->pre_tokens, n, err);
    BT_ARENA_ARRAY(arena, s->plans, s->opts.inflight_max, err);
    for (int32_t i = 0; i < s->opts.inflight_max; i++) {
        struct bt_plan_buf *p = &s->plans[i];
        BT_ARENA_ARRAY_RAW(arena, p->seqs, n, err);
        BT_ARENA_ARRAY_RAW(arena, p->copies, n, err);
        BT_ARENA_ARRAY_RAW(arena, p->host_blocks, n_host, err);
        BT_ARENA_ARRAY_RAW(arena, p->cows, n, err);
    }
    struct bt_req *r = s->reqs;
    int32_t cap = s->opts.max_requests;
    BT_TRY(bt_queue_init(&s->waiting, arena, cap, &r->queue_pos, sizeof *r, err));
    /* A swapped request holds at least one host block. */
    BT_TRY(bt_queue_init(&s->swapped, arena, n_host < cap ? n_host + 1 : cap, &r->queue_pos,
                         sizeof *r, err));
    return bt_queue_init(&s->deadlines, arena, cap, &r->deadline_pos, sizeof *r, err);
}

enum bt_code bt_sched_create(struct bt_arena *arena, const struct bt_sched_opts *opts,
                             struct bt_sched **out, struct bt_error *err)
{
    BT_ASSERT(arena != NULL && opts != NULL && out != NULL);
    *out = NULL;
    BT_TRY(check_batching(opts, err));
    BT_TRY(check_memory(opts, err));
    struct bt_sched *s;
    BT_ARENA_ARRAY(arena, s, 1, err);
    s->opts = *opts;
    if (s->opts.max_requests == 0) {
        s->opts.max_requests = DEFAULT_MAX_REQUESTS;
    }
    /* Each resident sequence owns at least one block. */
    s->n_slots = opts->max_seqs < opts->n_blocks ? opts->max_seqs : opts->n_blocks;
    s->table_cap = table_capacity(opts);
    BT_TRY(take_memory(s, arena, err));
    struct bt_kv_opts kv = {.n_blocks = opts->n_blocks,
                            .n_host_blocks = opts->n_host_blocks,
                            .prefix_cache = opts->prefix_cache};
    BT_TRY(bt_kv_create(arena, &kv, &s->kv, err));
    for (int32_t i = 0; i < s->n_slots; i++) {
        s->free_slots[i] = s->n_slots - 1 - i;
    }
    s->free_head = -1;
    s->window_from_ns = -1;
    s->now_ns = INT64_MIN;
    bt_spec_init(&s->spec, &opts->spec);
    bt_seqs_auto_init(&s->seqs_auto, s->n_slots, opts->max_seqs_auto);
    *out = s;
    return BT_OK;
}

void bt_sched_clock_set(struct bt_sched *s, int64_t now_ns)
{
    BT_ASSERT(now_ns >= s->now_ns);
    s->now_ns = now_ns;
}

void bt_sched_gauge(struct bt_sched *s, int64_t now_ns)
{
    if (s->opts.metrics == NULL) {
        return;
    }
    int32_t n_used = bt_kv_n_used(s->kv);
    struct bt_gauge g = {
        .n_running = s->n_living - s->waiting.n - s->swapped.n,
        .n_waiting = s->waiting.n,
        .n_swapped = s->swapped.n,
        .kv_blocks_total = s->opts.n_blocks,
        .kv_blocks_used = n_used,
        .kv_slots_used = (int64_t)(n_used - s->n_used16) * s->opts.block_tokens +
                         (int64_t)s->n_used16 * s->opts.block_tokens_16bit,
        .kv_tokens = s->kv_tokens,
        .max_seqs = s->seqs_auto.limit,
        .max_seqs_config = s->opts.max_seqs,
        .block = s->waiting.n + s->swapped.n == 0 ? BT_BLOCK_NONE : s->block,
    };
    bt_metrics_gauge(s->opts.metrics, s->opts.replica, now_ns, &g);
}

/* Prompt tokens that a request has still to compute. */
static int32_t prompt_left(const struct bt_sched *s, const struct bt_req *r)
{
    int32_t ctx = r->slot >= 0                 ? s->seqs[r->slot].ctx
                  : r->state == BT_REQ_SWAPPED ? r->saved_ctx
                                               : 0;
    return ctx < r->n_prompt ? r->n_prompt - ctx : 0;
}

static void free_host_blocks(struct bt_sched *s, struct bt_req *r)
{
    for (int32_t b = r->host_head; b >= 0;) {
        int32_t next = s->host_next[b];
        bt_kv_host_release(s->kv, &b, 1);
        b = next;
    }
    r->host_head = -1;
    r->n_host = 0;
}

void bt_sched_free_req(struct bt_sched *s, uint32_t req)
{
    struct bt_req *r = &s->reqs[req];
    free_host_blocks(s, r);
    bt_req_transition(r, BT_REQ_FREE);
    r->next_free = s->free_head;
    s->free_head = (int32_t)req;
}

void bt_sched_drop_host(struct bt_sched *s, uint32_t req)
{
    free_host_blocks(s, &s->reqs[req]);
}

static void deliver_record(struct bt_sched *s, const struct bt_req_record *record)
{
    if (s->opts.metrics != NULL) {
        bt_metrics_end(s->opts.metrics, record);
    }
    if (s->opts.on_end != NULL) {
        s->opts.on_end(s->opts.ctx, record);
    }
}

static void end_record(struct bt_sched *s, const struct bt_req *r, enum bt_outcome outcome,
                       int64_t now_ns)
{
    struct bt_req_record record = {
        .user = r->user,
        .arrival_ns = r->arrival_ns,
        .scheduled_ns = r->scheduled_ns,
        .first_token_ns = r->first_token_ns,
        .last_token_ns = r->last_token_ns,
        .gap_max_ns = r->gap_max_ns,
        .end_ns = now_ns,
        .n_prompt = r->n_prompt,
        .n_output = r->n_delivered,
        .n_cached = r->n_cached,
        .n_preempt_swap = r->n_preempt_swap,
        .n_preempt_recompute = r->n_preempt_recompute,
        .priority = r->priority,
        .replica = s->opts.replica,
        .outcome = outcome,
        .reject = BT_REJECT_NONE,
        .degraded = r->degraded,
    };
    deliver_record(s, &record);
}

void bt_sched_end_req(struct bt_sched *s, uint32_t req, enum bt_outcome outcome, int64_t now_ns)
{
    struct bt_req *r = &s->reqs[req];
    BT_ASSERT(r->state != BT_REQ_FREE && !r->ended);
    s->tokens_waiting -= prompt_left(s, r);
    s->n_living--;
    r->ended = true;
    if (r->deadline_pos >= 0) {
        bt_queue_remove(&s->deadlines, req);
    }
    switch (r->state) {
    case BT_REQ_WAITING:
        bt_queue_remove(&s->waiting, req);
        bt_sched_free_req(s, req);
        break;
    case BT_REQ_SWAPPED:
        bt_queue_remove(&s->swapped, req);
        bt_sched_free_req(s, req);
        break;
    case BT_REQ_RUNNING:
        bt_sched_run_leave(s, r->slot);
        if (s->seqs[r->slot].n_inflight == 0) {
            bt_sched_slot_give_back(s, r->slot);
            bt_sched_free_req(s, req);
            break;
        }
        bt_sched_mark_pending(s, r->slot);
        bt_req_transition(r, BT_REQ_DRAINING);
        break;
    case BT_REQ_SWAPPING_IN:
        s->n_swapping_in--;
        bt_sched_mark_pending(s, r->slot);
        bt_req_transition(r, BT_REQ_DRAINING);
        break;
    case BT_REQ_SWAPPING_OUT:
        bt_req_transition(r, BT_REQ_DRAINING);
        break;
    case BT_REQ_DRAINING:
        break;
    case BT_REQ_FREE:
    case BT_N_REQ_STATES:
        BT_ASSERT(false);
    }
    end_record(s, r, outcome, now_ns);
}

void bt_sched_requeue(struct bt_sched *s, uint32_t req)
{
    struct bt_req *r = &s->reqs[req];
    s->tokens_waiting += r->n_prompt - prompt_left(s, r);
    r->lost_ctx = s->seqs[r->slot].ctx;
    bt_sched_publish_own(s, r->slot);
    bt_sched_slot_give_back(s, r->slot);
    bt_req_transition(r, BT_REQ_WAITING);
    bt_queue_push(&s->waiting, r->key, req);
    bt_sched_end_outgrown(s, req);
}

void bt_sched_end_outgrown(struct bt_sched *s, uint32_t req)
{
    const struct bt_req *r = &s->reqs[req];
    int64_t room = (int64_t)s->table_cap * bt_sched_block_tokens(s, r->kv_class);
    if (r->n_prompt + r->n_delivered > room) {
        bt_sched_end_req(s, req, BT_OUTCOME_FAILED, s->now_ns);
    }
}

void bt_sched_expire(struct bt_sched *s, int64_t before_ns, int64_t now_ns)
{
    while (s->deadlines.n > 0) {
        struct bt_queue_item top = bt_queue_top(&s->deadlines);
        if ((int64_t)top.key >= before_ns) {
            break;
        }
        bt_sched_end_req(s, top.id, BT_OUTCOME_TIMED_OUT, now_ns);
    }
}

/* Lengths as the scheduler will use them, by the over-length and degradation rules. */
struct shape {
    int32_t n_prompt, max_new_tokens;
    uint8_t kv_class;
    bool degraded;
    enum bt_reject reject;
};

static struct shape shape_of(const struct bt_sched *s, const struct bt_req_spec *spec)
{
    const struct bt_sched_opts *o = &s->opts;
    struct shape h = {.n_prompt = spec->n_prompt, .max_new_tokens = spec->max_new_tokens};
    if (o->degrade.at_waiting > 0 && s->waiting.n > o->degrade.at_waiting &&
        o->degrade.max_new_tokens > 0 && h.max_new_tokens > o->degrade.max_new_tokens) {
        h.max_new_tokens = o->degrade.max_new_tokens;
        h.degraded = true;
    }
    int64_t total = (int64_t)h.n_prompt + h.max_new_tokens;
    if (total > o->max_model_len && o->over_length == BT_OVER_REJECT) {
        h.reject = BT_REJECT_OVER_LENGTH;
        return h;
    }
    if (total > o->max_model_len && o->over_length == BT_OVER_TRUNCATE) {
        if (h.max_new_tokens >= o->max_model_len) {
            h.max_new_tokens = o->max_model_len - 1;
        }
        int32_t room = o->max_model_len - h.max_new_tokens;
        h.n_prompt = h.n_prompt < room ? h.n_prompt : room;
        total = (int64_t)h.n_prompt + h.max_new_tokens;
    }
    /* The KV of the last token of an answer is never needed. */
    h.kv_class = o->long_above_tokens > 0 && total > o->long_above_tokens;
    int64_t first = (int64_t)h.n_prompt + (h.max_new_tokens > 1);
    if (first > (int64_t)s->table_cap * bt_sched_block_tokens(s, h.kv_class)) {
        h.reject = BT_REJECT_NEVER_FITS;
        return h;
    }
    if (total > INT32_MAX) {
        h.max_new_tokens = INT32_MAX - h.n_prompt;
    }
    bool full = s->n_reqs_touched == o->max_requests && s->free_head < 0;
    if (full || (o->max_waiting > 0 && s->waiting.n >= o->max_waiting)) {
        h.reject = BT_REJECT_QUEUE_FULL;
    }
    return h;
}

static int32_t keyed_tokens(const struct bt_sched *s, const struct bt_req_spec *spec,
                            int32_t n_prompt, uint8_t kv_class)
{
    if (!s->opts.prefix_cache || spec->hashes == NULL) {
        return 0;
    }
    int64_t known = (int64_t)spec->n_hashes * spec->hash_tokens;
    int32_t n = known < n_prompt ? (int32_t)known : n_prompt;
    return n - n % bt_sched_block_tokens(s, kv_class);
}

static uint32_t req_take(struct bt_sched *s)
{
    if (s->free_head < 0) {
        s->reqs[s->n_reqs_touched] = (struct bt_req){0};
        return (uint32_t)s->n_reqs_touched++;
    }
    uint32_t req = (uint32_t)s->free_head;
    s->free_head = s->reqs[req].next_free;
    return req;
}

static void req_fill(struct bt_sched *s, struct bt_req *r, const struct bt_req_spec *spec,
                     const struct shape *h)
{
    int64_t timeout = spec->timeout_ns;
    *r = (struct bt_req){
        .state = BT_REQ_FREE,
        .generation = r->generation + 1,
        .key = bt_order_key(s->opts.order, spec->priority, h->n_prompt, s->next_seq++),
        .user = spec->user,
        .arrival_ns = spec->arrival_ns,
        .deadline_ns = timeout > 0 && spec->arrival_ns <= INT64_MAX - timeout
                           ? spec->arrival_ns + timeout
                           : INT64_MAX,
        .scheduled_ns = -1,
        .first_token_ns = -1,
        .last_token_ns = -1,
        .gap_max_ns = -1,
        .hashes = spec->hashes,
        .n_hashes = spec->n_hashes,
        .hash_tokens = spec->hash_tokens,
        .n_prompt = h->n_prompt,
        .max_new_tokens = h->max_new_tokens,
        .n_keyed = keyed_tokens(s, spec, h->n_prompt, h->kv_class),
        .slot = -1,
        .host_head = -1,
        .queue_pos = -1,
        .deadline_pos = -1,
        .priority = (uint8_t)spec->priority,
        .kv_class = h->kv_class,
        .degraded = h->degraded,
    };
}

enum bt_admit bt_sched_submit(struct bt_sched *s, const struct bt_req_spec *spec, int64_t now_ns,
                              struct bt_req_handle *handle)
{
    BT_ASSERT(spec->n_prompt > 0 && spec->max_new_tokens > 0);
    BT_ASSERT(spec->priority >= 0 && spec->priority <= BT_MAX_PRIORITY);
    BT_ASSERT(spec->arrival_ns >= 0 && spec->arrival_ns <= now_ns && spec->timeout_ns >= 0);
    BT_ASSERT(spec->hashes == NULL || (spec->n_hashes >= 0 && spec->hash_tokens > 0));
    bt_sched_clock_set(s, now_ns);
    if (s->opts.metrics != NULL) {
        bt_metrics_arrive(s->opts.metrics, spec->arrival_ns);
    }
    struct shape h = shape_of(s, spec);
    if (h.reject != BT_REJECT_NONE) {
        struct bt_req_record record = {
            .user = spec->user,
            .arrival_ns = spec->arrival_ns,
            .scheduled_ns = -1,
            .first_token_ns = -1,
            .last_token_ns = -1,
            .gap_max_ns = -1,
            .end_ns = now_ns,
            .n_prompt = spec->n_prompt,
            .priority = spec->priority,
            .replica = s->opts.replica,
            .outcome = BT_OUTCOME_REJECTED,
            .reject = h.reject,
            .degraded = h.degraded,
        };
        deliver_record(s, &record);
        return BT_ADMIT_REJECT;
    }
    uint32_t req = req_take(s);
    struct bt_req *r = &s->reqs[req];
    req_fill(s, r, spec, &h);
    bt_req_transition(r, BT_REQ_WAITING);
    if (s->waiting.n == 0 || s->window_from_ns < 0) {
        s->window_from_ns = now_ns;
    }
    if (s->waiting.n == 0) {
        s->block = BT_BLOCK_NONE;
    }
    bt_queue_push(&s->waiting, r->key, req);
    if (r->deadline_ns != INT64_MAX) {
        bt_queue_push(&s->deadlines, (uint64_t)r->deadline_ns, req);
    }
    s->n_living++;
    s->tokens_waiting += r->n_prompt;
    *handle = (struct bt_req_handle){.index = req, .generation = r->generation};
    bt_sched_gauge(s, now_ns);
    return BT_ADMIT_OK;
}

bool bt_sched_cancel(struct bt_sched *s, struct bt_req_handle h, int64_t now_ns)
{
    bt_sched_clock_set(s, now_ns);
    BT_ASSERT(h.index < (uint32_t)s->n_reqs_touched);
    struct bt_req *r = &s->reqs[h.index];
    if (r->generation != h.generation || r->state == BT_REQ_FREE || r->ended) {
        return false;
    }
    bt_sched_end_req(s, h.index, BT_OUTCOME_CANCELLED, now_ns);
    bt_sched_run_compact(s);
    bt_sched_gauge(s, now_ns);
    return true;
}

void bt_sched_get_state(const struct bt_sched *s, struct bt_sched_state *out)
{
    *out = (struct bt_sched_state){
        .replica = s->opts.replica,
        .n_waiting = s->waiting.n,
        .n_running = s->n_living - s->waiting.n - s->swapped.n,
        .n_swapped = s->swapped.n,
        .max_seqs = s->seqs_auto.limit,
        .kv_blocks_total = s->opts.n_blocks,
        .kv_blocks_used = bt_kv_n_used(s->kv),
        .kv_blocks_cached = bt_kv_n_cached(s->kv),
        .n_inflight = s->n_inflight,
        .tokens_waiting = s->tokens_waiting,
        .kv_tokens = s->kv_tokens,
        .n_preempts = s->n_preempts,
        .spec_on = s->spec.on && s->spec.allowed,
        .block = s->waiting.n + s->swapped.n == 0 ? BT_BLOCK_NONE : s->block,
    };
}

int32_t bt_sched_cached_tokens(const struct bt_sched *s, const struct bt_req_spec *spec)
{
    struct shape h = shape_of(s, spec);
    struct bt_req r = {
        .hashes = spec->hashes,
        .n_hashes = spec->n_hashes,
        .hash_tokens = spec->hash_tokens,
        .n_prompt = h.n_prompt,
        .n_keyed = keyed_tokens(s, spec, h.n_prompt, h.kv_class),
        .kv_class = h.kv_class,
    };
    int32_t n_cached;
    int32_t block_tokens = bt_sched_block_tokens(s, h.kv_class);
    int32_t n = bt_sched_prefix_peek(s, &r, r.n_keyed / block_tokens, &n_cached) * block_tokens;
    return n < h.n_prompt ? n : h.n_prompt - 1;
}

void bt_sched_allow_spec(struct bt_sched *s, bool allowed)
{
    s->spec.allowed = allowed;
}

int32_t bt_sched_max_copies(const struct bt_sched *s)
{
    return s->n_slots;
}

uint64_t bt_sched_plan_hash(const struct bt_sched *s)
{
    return s->plan_hash;
}
