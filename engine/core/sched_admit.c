/* Who comes in: prefix hits, admission of the head of the queue, resuming from swap. */
#include "engine/core/rng.h"
#include "engine/core/sched_impl.h"

/* Key of pool block i: the hash-block that holds its last token (beyond the keyed prompt the
 * request itself, whose place in the order no other ever has), its end and its class. */
static struct bt_kv_key block_key(const struct bt_sched *s, const struct bt_req *r, int32_t i,
                                  uint64_t parent)
{
    int32_t end = (i + 1) * bt_sched_block_tokens(s, r->kv_class);
    uint64_t where = (uint64_t)(uint32_t)end << 8 | r->kv_class;
    uint64_t what =
        end <= r->n_keyed ? r->hashes[(end - 1) / r->hash_tokens] : bt_hash_u64(~r->key);
    uint64_t own = bt_hash_combine(what, where);
    return (struct bt_kv_key){.own = own != 0 ? own : 1, .parent = parent};
}

static uint64_t first_parent(const struct bt_req *r)
{
    return bt_hash_u64((uint64_t)r->kv_class + 1);
}

int32_t bt_sched_prefix_peek(const struct bt_sched *s, const struct bt_req *r, int32_t max_hits,
                             int32_t *n_cached)
{
    uint64_t parent = first_parent(r);
    int32_t n = 0;
    *n_cached = 0;
    for (; n < max_hits; n++) {
        bool cached;
        struct bt_kv_key key = block_key(s, r, n, parent);
        if (bt_kv_peek(s->kv, key, &cached) == BT_KV_NONE) {
            break;
        }
        *n_cached += cached;
        parent = key.own;
    }
    return n;
}

static void publish(struct bt_sched *s, int32_t slot, int32_t from_tokens, int32_t end)
{
    struct bt_seq *q = &s->seqs[slot];
    const struct bt_req *r = &s->reqs[q->req.index];
    const int32_t *table = bt_sched_table(s, slot);
    int32_t block_tokens = bt_sched_block_tokens(s, q->kv_class);
    int32_t i = from_tokens / block_tokens;
    if ((i + 1) * block_tokens > end) {
        return;
    }
    uint64_t parent = i == 0 ? first_parent(r) : block_key(s, r, i - 1, 0).own;
    for (; (i + 1) * block_tokens <= end; i++) {
        struct bt_kv_key key = block_key(s, r, i, parent);
        bt_kv_publish(s->kv, table[i], key);
        s->draft_block[table[i]] = q->draft_ctx >= (i + 1) * block_tokens;
        parent = key.own;
    }
}

void bt_sched_publish(struct bt_sched *s, int32_t slot, int32_t from_tokens, int32_t to_tokens)
{
    int32_t n_keyed = s->reqs[s->seqs[slot].req.index].n_keyed;
    publish(s, slot, from_tokens, to_tokens < n_keyed ? to_tokens : n_keyed);
}

void bt_sched_publish_own(struct bt_sched *s, int32_t slot)
{
    if (s->opts.prefix_cache) {
        publish(s, slot, s->reqs[s->seqs[slot].req.index].n_keyed, s->seqs[slot].ctx);
    }
}

/* What admission of a request would take. */
struct fit {
    int32_t known;     /* tokens to be computed or hit */
    int32_t n_hits;    /* blocks found by content */
    int32_t n_cached;  /* of those, ones that stop being available */
    bool cow;          /* the last hit is copied: its last token must be computed */
    int32_t n_acquire; /* private blocks to take at once */
    int32_t need;      /* available blocks that it takes, room for one token more included */
};

/* KV slots that a sequence needs in order to get one token further: none for an answer's last. */
static int32_t slots_needed(int32_t known, int32_t limit)
{
    return known + 1 < limit ? known + 1 : known;
}

static struct fit fit_of(const struct bt_sched *s, const struct bt_req *r)
{
    int32_t block_tokens = bt_sched_block_tokens(s, r->kv_class);
    struct fit f = {.known = r->n_prompt + r->n_delivered};
    int32_t n_now = bt_sched_blocks_for_tokens(f.known, block_tokens);
    int32_t slots = slots_needed(f.known, r->n_prompt + r->max_new_tokens);
    int32_t n_all = bt_sched_blocks_for_tokens(slots, block_tokens);
    /* A sequence as large as the pool gets its turn alone, and fails when it grows past it. */
    n_all = n_all < s->table_cap ? n_all : s->table_cap;
    int32_t findable = r->lost_ctx > 0 ? f.known : r->n_keyed;
    f.n_hits = bt_sched_prefix_peek(s, r, findable / block_tokens, &f.n_cached);
    f.cow = (int64_t)f.n_hits * block_tokens == f.known;
    if (f.cow && (block_tokens == 1 || n_all == s->opts.n_blocks)) {
        /* Nothing worth copying, or no room for the copy: compute the last block anew. */
        f.cow = false;
        f.n_hits = bt_sched_prefix_peek(s, r, f.n_hits - 1, &f.n_cached);
    }
    f.n_acquire = n_now - f.n_hits + f.cow;
    f.need = n_all - f.n_hits + f.cow + f.n_cached;
    return f;
}

static int32_t watermark(const struct bt_sched *s)
{
    return s->n_resident > 0 ? s->opts.watermark_blocks : 0;
}

/* Removes what was preempted from the lists of the plan being made. */
static void lists_compact(struct bt_sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_dec; i++) {
        if (s->seqs[s->dec[i]].running) {
            s->dec_k[n] = s->dec_k[i];
            s->dec[n++] = s->dec[i];
        } else {
            s->dec_tokens -= 1 + s->dec_k[i];
        }
    }
    s->n_dec = n;
    n = 0;
    s->pre_left = 0;
    for (int32_t i = 0; i < s->n_pre; i++) {
        const struct bt_seq *q = &s->seqs[s->pre[i]];
        if (q->running) {
            s->pre_left += q->known - q->ctx;
            s->pre[n++] = s->pre[i];
        }
    }
    s->n_pre = n;
}

/* Preempts running requests of less urgent classes, last in the order first, until the head fits or
 * will fit when steps and copies in flight have ended; nothing when even all of them would not do.
 */
static void preempt_for(struct bt_sched *s, struct bt_plan_buf *p, uint64_t key, int32_t need,
                        int64_t now_ns)
{
    int64_t to_come = bt_kv_n_available(s->kv) + s->pending_blocks - s->deferred_blocks;
    int64_t gain = 0;
    int32_t n_victims = 0;
    for (int32_t i = s->n_run - 1; i >= 0; i--) {
        if (bt_order_class(s->run_key[i]) <= bt_order_class(key)) {
            break;
        }
        const struct bt_seq *q = &s->seqs[s->run_slot[i]];
        if (q->known < q->limit) {
            gain += bt_sched_exclusive_blocks(s, s->run_slot[i]);
            n_victims++;
        }
    }
    int32_t n_leaving = s->n_resident - s->n_running - s->n_swapping_in;
    int64_t target = (int64_t)need + s->opts.watermark_blocks;
    if (to_come + gain < target) {
        /* The watermark does not bind the only one: then all must go. */
        bool alone = n_victims + n_leaving == s->n_resident && to_come + gain >= need;
        target = alone ? INT64_MAX : target;
        n_victims = alone ? n_victims : 0;
    }
    int32_t rows = s->n_resident - n_leaving + 1 - s->seqs_auto.limit; /* still to be vacated */
    n_victims = rows > n_victims ? 0 : n_victims;
    for (int32_t i = s->n_run - 1; n_victims > 0 && (to_come < target || rows > 0); i--) {
        int32_t slot = s->run_slot[i];
        if (s->seqs[slot].known == s->seqs[slot].limit) {
            continue;
        }
        bt_sched_preempt(s, p, slot, now_ns);
        to_come = bt_kv_n_available(s->kv) + s->pending_blocks - s->deferred_blocks;
        rows--;
        n_victims--;
    }
    lists_compact(s);
    bt_sched_run_compact(s);
}

static bool window_open(const struct bt_sched *s, int64_t now_ns, int64_t *opens_ns)
{
    if (s->opts.window_high_ns == 0 || s->window_from_ns < 0) {
        return true;
    }
    *opens_ns = s->window_from_ns + bt_window_ns(s->opts.window_low_ns, s->opts.window_high_ns,
                                                 s->waiting.n, s->seqs_auto.limit);
    return now_ns >= *opens_ns;
}

int64_t bt_sched_window_wake_ns(const struct bt_sched *s, int64_t now_ns)
{
    int64_t opens_ns = INT64_MAX;
    return s->block == BT_BLOCK_WINDOW && !window_open(s, now_ns, &opens_ns) ? opens_ns : INT64_MAX;
}

/* Tokens of the step left for a newcomer with this key: those before it in the order come first. */
static int64_t tokens_left(const struct bt_sched *s, uint64_t key)
{
    int64_t left = s->opts.max_batched_tokens - s->pre_left;
    for (int32_t i = s->n_pre - 1; i >= 0 && s->cold[s->pre[i]].key > key; i--) {
        const struct bt_seq *q = &s->seqs[s->pre[i]];
        left += q->known - q->ctx;
    }
    return s->opts.chunked_prefill ? left - s->dec_tokens : left;
}

static void take_blocks(struct bt_sched *s, struct bt_plan_buf *p, int32_t slot,
                        const struct fit *f)
{
    struct bt_seq *q = &s->seqs[slot];
    const struct bt_req *r = &s->reqs[q->req.index];
    int32_t *table = bt_sched_table(s, slot);
    int32_t block_tokens = bt_sched_block_tokens(s, q->kv_class);
    uint64_t parent = first_parent(r);
    bool draft = true;
    for (int32_t i = 0; i < f->n_hits; i++) {
        struct bt_kv_key key = block_key(s, r, i, parent);
        table[i] = bt_kv_lookup(s->kv, key);
        BT_ASSERT(table[i] != BT_KV_NONE);
        draft = draft && s->draft_block[table[i]] != 0;
        q->draft_ctx += draft ? block_tokens : 0;
        parent = key.own;
    }
    s->kv_tokens += (int64_t)f->n_cached * block_tokens;
    s->n_used16 += q->kv_class == 0 ? 0 : f->n_cached;
    q->ctx = f->n_hits * block_tokens;
    int32_t n_kept = f->n_hits - f->cow;
    int32_t shared = f->cow ? table[n_kept] : BT_KV_NONE;
    bool got = bt_kv_acquire(s->kv, f->n_acquire, table + n_kept);
    BT_ASSERT(got);
    q->n_blocks = n_kept;
    bt_sched_add_blocks(s, q, f->n_acquire);
    if (f->cow) {
        struct bt_cow *cow = &p->cows[p->n_cow++];
        *cow = (struct bt_cow){.src = shared, .dst = table[n_kept], .kv_class = q->kv_class};
        bt_sched_add_copy(s, p, BT_COPY_COW, slot, 1, &cow->src, &cow->dst);
        s->kv_tokens += block_tokens - 1;
        q->ctx--;
    }
    q->draft_ctx = q->draft_ctx < q->ctx ? q->draft_ctx : q->ctx;
}

static void pre_insert(struct bt_sched *s, int32_t slot)
{
    const struct bt_seq *q = &s->seqs[slot];
    int32_t i = s->n_pre++;
    for (; i > 0 && s->cold[s->pre[i - 1]].key > s->cold[slot].key; i--) {
        s->pre[i] = s->pre[i - 1];
    }
    s->pre[i] = slot;
    s->pre_left += q->known - q->ctx;
}

static void admit_now(struct bt_sched *s, struct bt_plan_buf *p, uint32_t req, const struct fit *f,
                      int64_t now_ns)
{
    struct bt_req *r = &s->reqs[req];
    bt_queue_remove(&s->waiting, req);
    s->urgent_need = 0;
    int32_t slot = bt_sched_slot_take(s, req);
    struct bt_seq *q = &s->seqs[slot];
    take_blocks(s, p, slot, f);
    s->tokens_waiting -= q->ctx < r->n_prompt ? q->ctx : r->n_prompt;
    if (!r->admitted) {
        r->admitted = true;
        r->scheduled_ns = now_ns;
        r->n_cached = q->ctx;
        if (s->opts.metrics != NULL) {
            bt_metrics_prefix(s->opts.metrics, r->n_prompt, q->ctx);
        }
    } else if (s->opts.metrics != NULL && r->lost_ctx > q->ctx) {
        bt_metrics_recompute(s->opts.metrics, r->lost_ctx - q->ctx);
    }
    bt_req_transition(r, BT_REQ_RUNNING);
    bt_sched_run_insert(s, slot);
    if (q->known - q->ctx > 1) {
        pre_insert(s, slot);
    } else if (s->opts.chunked_prefill) {
        s->dec_k[s->n_dec] = 0;
        s->dec[s->n_dec++] = slot;
        s->dec_tokens++;
    }
}

static bool memory_fits(const struct bt_sched *s, int32_t need)
{
    return need + watermark(s) <= bt_kv_n_available(s->kv);
}

static enum bt_block_reason memory_reason(const struct bt_sched *s, int32_t need)
{
    bool copies =
        s->n_swap_out > 0 && need + watermark(s) <= bt_kv_n_available(s->kv) + s->pending_blocks;
    return copies ? BT_BLOCK_SWAP : BT_BLOCK_KV;
}

/* Whether the rules that are not about memory and rows let this one in. */
static enum bt_block_reason gate_of(const struct bt_sched *s, const struct bt_req *r,
                                    bool batch_open, int64_t now_ns)
{
    int64_t opens_ns;
    if (!batch_open || (!r->admitted && !window_open(s, now_ns, &opens_ns))) {
        return BT_BLOCK_WINDOW;
    }
    bool any_tokens = s->opts.batching == BT_BATCHING_STATIC || tokens_left(s, r->key) > 0 ||
                      (!s->opts.chunked_prefill && s->n_pre == 0);
    return any_tokens ? BT_BLOCK_NONE : BT_BLOCK_TOKENS;
}

/* Without chunks a prompt must fit whole into the step, or be alone in it. */
static bool whole_prompt_fits(const struct bt_sched *s, const struct bt_req *r, const struct fit *f)
{
    if (s->opts.chunked_prefill || s->opts.batching == BT_BATCHING_STATIC || s->n_pre == 0) {
        return true;
    }
    int64_t left = f->known - (int64_t)f->n_hits * bt_sched_block_tokens(s, r->kv_class);
    return left <= 1 || left <= tokens_left(s, r->key);
}

/* Whether the head of the queue is of a more urgent class than the last of those running. */
static bool may_preempt(const struct bt_sched *s)
{
    return s->opts.order == BT_ORDER_PRIORITY && s->opts.priority_preempts && s->waiting.n > 0 &&
           s->n_run > 0 &&
           bt_order_class(bt_queue_top(&s->waiting).key) < bt_order_class(s->run_key[s->n_run - 1]);
}

static enum bt_block_reason try_admit(struct bt_sched *s, struct bt_plan_buf *p, uint32_t req,
                                      bool batch_open, int64_t now_ns)
{
    const struct bt_req *r = &s->reqs[req];
    enum bt_block_reason gate = gate_of(s, r, batch_open, now_ns);
    if (gate != BT_BLOCK_NONE) {
        return gate;
    }
    struct fit f = fit_of(s, r);
    bool row = s->n_resident < s->seqs_auto.limit;
    if ((!row || !memory_fits(s, f.need)) && s->opts.order == BT_ORDER_PRIORITY &&
        s->opts.priority_preempts) {
        preempt_for(s, p, r->key, f.need, now_ns);
        s->urgent_need = may_preempt(s) ? f.need + s->opts.watermark_blocks : 0;
        s->urgent_class = bt_order_class(r->key);
        f = fit_of(s, r);
        row = s->n_resident < s->seqs_auto.limit;
    }
    if (!memory_fits(s, f.need)) {
        return memory_reason(s, f.need);
    }
    if (!row) {
        if (f.need + watermark(s) + s->n_running < bt_kv_n_available(s->kv)) {
            bt_seqs_auto_wanted(&s->seqs_auto);
        }
        return BT_BLOCK_SEQS;
    }
    if (!whole_prompt_fits(s, r, &f)) {
        return BT_BLOCK_TOKENS;
    }
    admit_now(s, p, req, &f, now_ns);
    return BT_BLOCK_NONE;
}

static enum bt_block_reason try_resume(struct bt_sched *s, struct bt_plan_buf *p, uint32_t req)
{
    struct bt_req *r = &s->reqs[req];
    int32_t block_tokens = bt_sched_block_tokens(s, r->kv_class);
    int32_t known = r->n_prompt + r->n_delivered;
    int32_t slots = slots_needed(known, r->n_prompt + r->max_new_tokens);
    int32_t need = bt_sched_blocks_for_tokens(slots, block_tokens);
    need = need < s->table_cap ? need : s->table_cap;
    if (!memory_fits(s, need)) {
        return memory_reason(s, need);
    }
    if (s->n_resident >= s->seqs_auto.limit) {
        return BT_BLOCK_SEQS;
    }
    bt_queue_remove(&s->swapped, req);
    int32_t slot = bt_sched_slot_take(s, req);
    struct bt_seq *q = &s->seqs[slot];
    int32_t *host = p->host_blocks + p->n_host_used;
    int32_t n = bt_sched_blocks_for_tokens(known, block_tokens);
    bool got = bt_kv_acquire(s->kv, n, bt_sched_table(s, slot));
    BT_ASSERT(got);
    bt_sched_add_blocks(s, q, n);
    q->ctx = r->saved_ctx;
    q->draft_ctx = r->saved_draft_ctx;
    s->kv_tokens += q->ctx;
    int32_t n_host = 0;
    for (int32_t b = r->host_head; b >= 0; b = s->host_next[b]) {
        host[n_host++] = b;
    }
    BT_ASSERT(n_host == r->n_host);
    p->n_host_used += n_host;
    bt_sched_add_copy(s, p, BT_COPY_SWAP_IN, slot, n_host, host, bt_sched_table(s, slot));
    s->n_swapping_in++;
    bt_req_transition(r, BT_REQ_SWAPPING_IN);
    return BT_BLOCK_NONE;
}

void bt_sched_resume_swapped(struct bt_sched *s, struct bt_plan_buf *p)
{
    while (s->swapped.n > 0) {
        enum bt_block_reason why = try_resume(s, p, bt_queue_top(&s->swapped).id);
        if (why != BT_BLOCK_NONE) {
            s->block = why;
            return;
        }
    }
}

void bt_sched_admit(struct bt_sched *s, struct bt_plan_buf *p, enum bt_admit_scope scope,
                    int64_t now_ns)
{
    bool batch_open =
        s->opts.batching == BT_BATCHING_CONTINUOUS || (s->n_resident == 0 && s->swapped.n == 0);
    bool window_used = false;
    s->urgent_need = 0;
    s->block = BT_BLOCK_NONE;
    while (s->block == BT_BLOCK_NONE) {
        /* A static batch takes its own back before it may end and another start. */
        bool urgent = batch_open && s->swapped.n > 0 && s->waiting.n > 0 &&
                      s->opts.order == BT_ORDER_PRIORITY &&
                      bt_order_class(bt_queue_top(&s->waiting).key) <
                          bt_order_class(bt_queue_top(&s->swapped).key);
        if (scope == BT_ADMIT_URGENT && !may_preempt(s)) {
            s->block = s->n_swap_out > 0 && !s->preempted ? BT_BLOCK_SWAP : BT_BLOCK_KV;
        } else if (s->swapped.n > 0 && !urgent) {
            s->block = scope == BT_ADMIT_ALL ? try_resume(s, p, bt_queue_top(&s->swapped).id)
                                             : BT_BLOCK_SWAP;
        } else if (s->waiting.n > 0) {
            uint32_t req = bt_queue_top(&s->waiting).id;
            bool fresh = !s->reqs[req].admitted;
            s->block = try_admit(s, p, req, batch_open, now_ns);
            window_used = window_used || (fresh && s->block == BT_BLOCK_NONE);
        } else {
            break;
        }
    }
    if (window_used) {
        s->window_from_ns = s->waiting.n > 0 ? now_ns : -1;
    }
}
