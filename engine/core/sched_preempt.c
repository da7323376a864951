/* Slots, the running list, and who must leave when memory is short.
 *
 * A sequence that wants a block takes, in this turn: a free one; one that is about to come free
 * (it then sits out this step: nobody else is preempted for it); one of a victim that comes later
 * in the order. Without such a victim it leaves itself, unless it is the first of the order; alone
 * in the pool, it fails. Victims that no step in flight uses come first. */
#include "engine/core/sched_impl.h"

int32_t bt_sched_slot_take(struct bt_sched *s, uint32_t req)
{
    struct bt_req *r = &s->reqs[req];
    BT_ASSERT(s->n_resident < s->n_slots);
    int32_t slot = s->free_slots[s->n_slots - 1 - s->n_resident++];
    r->slot = slot;
    s->cold[slot] = (struct bt_seq_cold){.key = r->key};
    s->seqs[slot] = (struct bt_seq){
        .user = r->user,
        .last_token_ns = r->last_token_ns,
        .req = {.index = req, .generation = r->generation},
        .known = r->n_prompt + r->n_delivered,
        .limit = r->n_prompt + r->max_new_tokens,
        .n_prompt = r->n_prompt,
        .kv_class = r->kv_class,
        .start = true,
    };
    return slot;
}

/* Tokens in block i of a sequence with ctx tokens. */
static int32_t tokens_in_block(int32_t ctx, int32_t i, int32_t block_tokens)
{
    int64_t n = (int64_t)ctx - (int64_t)i * block_tokens;
    return n <= 0 ? 0 : n < block_tokens ? (int32_t)n : block_tokens;
}

void bt_sched_drop_block(struct bt_sched *s, int32_t block, int32_t n_tokens, uint8_t kv_class)
{
    if (bt_kv_ref_count(s->kv, block) == 1) {
        s->kv_tokens -= n_tokens;
        s->n_used16 -= kv_class;
    }
    bt_kv_release(s->kv, block);
}

void bt_sched_slot_give_back(struct bt_sched *s, int32_t slot)
{
    struct bt_seq *q = &s->seqs[slot];
    BT_ASSERT(!q->running && q->n_inflight == 0 && s->cold[slot].ticket == 0);
    const int32_t *table = bt_sched_table(s, slot);
    int32_t block_tokens = bt_sched_block_tokens(s, q->kv_class);
    for (int32_t i = q->n_blocks - 1; i >= 0; i--) {
        bt_sched_drop_block(s, table[i], tokens_in_block(q->ctx, i, block_tokens), q->kv_class);
    }
    s->pending_blocks -= q->pending_blocks;
    q->pending_blocks = 0;
    q->n_blocks = 0;
    s->reqs[q->req.index].slot = -1;
    s->free_slots[s->n_slots - s->n_resident--] = slot;
}

void bt_sched_run_insert(struct bt_sched *s, int32_t slot)
{
    uint64_t key = s->cold[slot].key;
    BT_ASSERT(!s->seqs[slot].running && s->n_run < s->n_slots);
    int32_t i = s->n_run++;
    for (; i > 0 && s->run_key[i - 1] > key; i--) {
        s->run_key[i] = s->run_key[i - 1];
        s->run_slot[i] = s->run_slot[i - 1];
    }
    s->run_key[i] = key;
    s->run_slot[i] = slot;
    s->seqs[slot].running = true;
    s->n_running++;
}

void bt_sched_run_leave(struct bt_sched *s, int32_t slot)
{
    BT_ASSERT(s->seqs[slot].running);
    s->seqs[slot].running = false;
    s->n_running--;
}

void bt_sched_run_compact(struct bt_sched *s)
{
    if (s->n_run == s->n_running) {
        return;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_run; i++) {
        if (s->seqs[s->run_slot[i]].running) {
            s->run_slot[n] = s->run_slot[i];
            s->run_key[n] = s->run_key[i];
            n++;
        }
    }
    s->n_run = n;
    BT_DEBUG_ASSERT(n == s->n_running);
}

int32_t bt_sched_exclusive_blocks(const struct bt_sched *s, int32_t slot)
{
    const int32_t *table = bt_sched_table(s, slot);
    int32_t n = 0;
    for (int32_t i = 0; i < s->seqs[slot].n_blocks; i++) {
        n += bt_kv_ref_count(s->kv, table[i]) == 1;
    }
    return n;
}

void bt_sched_mark_pending(struct bt_sched *s, int32_t slot)
{
    struct bt_seq *q = &s->seqs[slot];
    if (q->pending_blocks == 0) {
        q->pending_blocks = bt_sched_exclusive_blocks(s, slot);
        s->pending_blocks += q->pending_blocks;
    }
}

/* Starts the copy of a sequence's KV to host blocks; false when there are not enough. All of its
 * blocks that hold tokens are copied, shared ones too: the host copy then stands on its own,
 * whatever the prefix cache evicts, and the shared device blocks stay with their other owners. */
static bool swap_out(struct bt_sched *s, struct bt_plan_buf *p, int32_t slot)
{
    struct bt_seq *q = &s->seqs[slot];
    struct bt_req *r = &s->reqs[q->req.index];
    int32_t n = bt_sched_blocks_for_tokens(q->ctx, bt_sched_block_tokens(s, q->kv_class));
    int32_t *host = p->host_blocks + p->n_host_used;
    if (n == 0 || !bt_kv_host_acquire(s->kv, n, host)) {
        return false;
    }
    p->n_host_used += n;
    for (int32_t i = 0; i < n; i++) {
        s->host_next[host[i]] = i + 1 < n ? host[i + 1] : -1;
    }
    r->host_head = host[0];
    r->n_host = n;
    r->saved_ctx = q->ctx;
    r->saved_draft_ctx = q->draft_ctx;
    bt_sched_add_copy(s, p, BT_COPY_SWAP_OUT, slot, n, bt_sched_table(s, slot), host);
    s->n_swap_out++;
    return true;
}

void bt_sched_add_copy(struct bt_sched *s, struct bt_plan_buf *p, enum bt_copy_kind kind,
                       int32_t slot, int32_t n_blocks, const int32_t *src, const int32_t *dst)
{
    BT_ASSERT(p->plan.n_copies < s->n_slots);
    uint32_t ticket = 0;
    if (kind != BT_COPY_COW) {
        s->next_ticket = s->next_ticket % UINT16_MAX + 1;
        ticket = s->next_ticket << 16 | (uint32_t)slot;
        BT_ASSERT(s->cold[slot].ticket == 0);
        s->cold[slot].ticket = ticket;
        s->cold[slot].outward = kind == BT_COPY_SWAP_OUT;
        s->n_copies_out++;
        if (s->opts.metrics != NULL && kind == BT_COPY_SWAP_IN) {
            bt_metrics_swap_bytes(s->opts.metrics, n_blocks * s->opts.block_bytes);
        }
    }
    p->copies[p->plan.n_copies++] = (struct bt_plan_copy){
        .kind = kind,
        .ticket = ticket,
        .req = s->seqs[slot].req,
        .n_blocks = n_blocks,
        .src = src,
        .dst = dst,
    };
}

static bool wants_swap(const struct bt_sched *s, const struct bt_seq *q)
{
    switch (s->opts.preempt) {
    case BT_PREEMPT_RECOMPUTE:
        return false;
    case BT_PREEMPT_SWAP:
        return true;
    case BT_PREEMPT_AUTO:
        break;
    }
    int32_t n = bt_sched_blocks_for_tokens(q->ctx, bt_sched_block_tokens(s, q->kv_class));
    return bt_preempt_prefers_swap(s->opts.preempt_goal, &s->opts.preempt_cost, q->known, n);
}

void bt_sched_preempt(struct bt_sched *s, struct bt_plan_buf *p, int32_t slot, int64_t now_ns)
{
    struct bt_seq *q = &s->seqs[slot];
    struct bt_req *r = &s->reqs[q->req.index];
    bt_sched_run_leave(s, slot);
    s->n_preempts++;
    bool swap = wants_swap(s, q) && swap_out(s, p, slot);
    if (s->opts.metrics != NULL) {
        bt_metrics_preempt(s->opts.metrics, now_ns, swap,
                           swap ? r->n_host * s->opts.block_bytes : 0);
    }
    if (swap) {
        r->n_preempt_swap++;
        bt_sched_mark_pending(s, slot);
        bt_req_transition(r, BT_REQ_SWAPPING_OUT);
        return;
    }
    r->n_preempt_recompute++;
    if (q->n_inflight == 0) {
        bt_sched_requeue(s, q->req.index);
        return;
    }
    bt_sched_mark_pending(s, slot);
    bt_req_transition(r, BT_REQ_DRAINING);
}

/* Whether a is a better victim than b; both come later than the one in need, a earlier than b. */
static bool better_victim(const struct bt_sched *s, const struct bt_seq *a, const struct bt_seq *b)
{
    if ((a->n_inflight == 0) != (b->n_inflight == 0)) {
        return a->n_inflight == 0;
    }
    switch (s->opts.victim) {
    case BT_VICTIM_NEWEST:
        return false;
    case BT_VICTIM_LARGEST:
        return a->n_blocks > b->n_blocks;
    case BT_VICTIM_LEAST_PROGRESS:
        return a->known - a->n_prompt < b->known - b->n_prompt;
    }
    return false;
}

/* The victim among the least urgent class of those later in the order than `key`; -1: none. A
 * sequence whose last token is in flight leaves by itself and is none. */
static int32_t pick_victim(const struct bt_sched *s, uint64_t key)
{
    int32_t best = -1;
    uint32_t class = 0;
    for (int32_t i = s->n_run - 1; i >= 0 && s->run_key[i] > key; i--) {
        int32_t slot = s->run_slot[i];
        const struct bt_seq *q = &s->seqs[slot];
        if (!q->running || q->known == q->limit) {
            continue;
        }
        uint32_t of = s->opts.order == BT_ORDER_PRIORITY ? bt_order_class(s->run_key[i]) : 0;
        if (best < 0) {
            best = slot;
            class = of;
        } else if (of != class) {
            break;
        } else if (better_victim(s, q, &s->seqs[best])) {
            best = slot;
        }
        if (s->opts.victim == BT_VICTIM_NEWEST && s->seqs[best].n_inflight == 0) {
            break;
        }
    }
    return best;
}

static bool is_first_running(const struct bt_sched *s, int32_t slot)
{
    for (int32_t i = 0; i < s->n_run; i++) {
        if (s->seqs[s->run_slot[i]].running) {
            return s->run_slot[i] == slot;
        }
    }
    return false;
}

/* No block is to be had for the sequence and nobody later can leave: what becomes of it. */
static void out_of_blocks(struct bt_sched *s, struct bt_plan_buf *p, int32_t slot, int64_t now_ns)
{
    struct bt_seq *q = &s->seqs[slot];
    if (q->n_inflight > 0) {
        return; /* its step in flight may be its last: it sits out until that is known */
    }
    if (s->n_resident == 1) {
        bt_sched_end_req(s, q->req.index, BT_OUTCOME_FAILED, now_ns);
        return;
    }
    /* A sequence on its way in can only become a victim once it is in; those leaving need time. */
    if (is_first_running(s, slot)) {
        return;
    }
    s->preempted = true;
    bt_sched_preempt(s, p, slot, now_ns);
}

int32_t bt_sched_reserved_blocks(const struct bt_sched *s, int32_t slot)
{
    bool waits = s->urgent_need > 0 && s->waiting.n > 0 &&
                 bt_order_class(bt_queue_top(&s->waiting).key) <= s->urgent_class;
    return waits && bt_order_class(s->cold[slot].key) > s->urgent_class ? s->urgent_need : 0;
}

bool bt_sched_grow(struct bt_sched *s, struct bt_plan_buf *p, int32_t slot, int32_t n_tokens,
                   int64_t now_ns)
{
    struct bt_seq *q = &s->seqs[slot];
    int32_t block_tokens = bt_sched_block_tokens(s, q->kv_class);
    int32_t want = bt_sched_blocks_for_tokens(n_tokens, block_tokens) - q->n_blocks;
    if (want <= 0) {
        return true;
    }
    if (q->n_blocks + want > s->table_cap) {
        if (q->n_inflight == 0) {
            bt_sched_end_req(s, q->req.index, BT_OUTCOME_FAILED, now_ns);
        }
        return false;
    }
    int32_t reserved = bt_sched_reserved_blocks(s, slot);
    if (reserved > 0 && want + reserved > bt_kv_n_available(s->kv)) {
        s->sat_out = true; /* until the urgent one is in */
        return false;
    }
    while (want > bt_kv_n_available(s->kv)) {
        if (want + s->deferred_blocks <= bt_kv_n_available(s->kv) + s->pending_blocks) {
            s->deferred_blocks += want;
            return false;
        }
        int32_t victim = pick_victim(s, s->cold[slot].key);
        if (victim < 0) {
            out_of_blocks(s, p, slot, now_ns);
            return false;
        }
        s->preempted = true;
        bt_sched_preempt(s, p, victim, now_ns);
    }
    bool got = bt_kv_acquire(s->kv, want, bt_sched_table(s, slot) + q->n_blocks);
    BT_ASSERT(got);
    bt_sched_add_blocks(s, q, want);
    return true;
}

void bt_sched_add_blocks(struct bt_sched *s, struct bt_seq *q, int32_t n)
{
    q->n_blocks += n;
    q->cap_tokens = q->n_blocks * bt_sched_block_tokens(s, q->kv_class);
    s->n_used16 += q->kv_class == 0 ? 0 : n;
}
