/* One step: which sequences decode, which prompts advance, and the plan that says so. */
#include "engine/core/sched_impl.h"

/* What the running sequences would do next. */
struct census {
    int32_t n_dec, n_pre;
};

static struct census count_running(const struct bt_sched *s)
{
    struct census c = {0};
    for (int32_t i = 0; i < s->n_run; i++) {
        const struct bt_seq *q = &s->seqs[s->run_slot[i]];
        c.n_dec += q->known - q->ctx == 1 && q->known < q->limit;
        c.n_pre += q->known - q->ctx > 1;
    }
    return c;
}

/* Draft tokens that all sequences together may add to the step. While prompts are pending they get
 * at most half of what the decodes leave, lest speculation starve them. */
static int64_t draft_budget(const struct bt_sched *s, struct census c)
{
    if (s->opts.batching == BT_BATCHING_STATIC) {
        return INT64_MAX;
    }
    int64_t left = s->opts.max_batched_tokens - c.n_dec;
    if (left <= 0) {
        return 0;
    }
    return c.n_pre > 0 || s->waiting.n > 0 ? left / 2 : left;
}

/* Draft tokens for one sequence: no more than its answer can use, than the step has room for, and
 * than blocks are to be had without taking them from anybody. */
static int32_t draft_tokens(struct bt_sched *s, int32_t slot, int64_t *budget)
{
    struct bt_seq *q = &s->seqs[slot];
    int32_t k = s->k_plan;
    int32_t useful = q->limit - q->known - 1;
    k = k < useful ? k : useful;
    k = k < *budget ? k : (int32_t)*budget;
    if (k <= 0 || q->start) {
        return 0;
    }
    int32_t keep = s->opts.watermark_blocks + bt_sched_reserved_blocks(s, slot);
    while (q->cap_tokens < q->ctx + 1 + k) {
        bool got = q->n_blocks < s->table_cap && bt_kv_n_available(s->kv) > keep &&
                   bt_kv_acquire(s->kv, 1, bt_sched_table(s, slot) + q->n_blocks);
        if (!got) {
            k = q->cap_tokens - q->ctx - 1;
            break;
        }
        bt_sched_add_blocks(s, q, 1);
    }
    BT_DEBUG_ASSERT(k >= 0);
    *budget -= k;
    return k;
}

/* Lists who decodes, with a block for the next token, and who is in prefill. */
static void walk_running(struct bt_sched *s, struct bt_plan_buf *p, int64_t budget, int64_t now_ns)
{
    for (int32_t i = 0; i < s->n_run; i++) {
        int32_t slot = s->run_slot[i];
        struct bt_seq *q = &s->seqs[slot];
        if (!q->running || q->known >= q->limit) {
            continue; /* just preempted, or its last token is in flight */
        }
        int32_t left = q->known - q->ctx;
        if (left > 1) {
            s->pre[s->n_pre++] = slot;
            s->pre_left += left;
            continue;
        }
        if (q->ctx >= q->cap_tokens && !bt_sched_grow(s, p, slot, q->ctx + 1, now_ns)) {
            continue;
        }
        int32_t k = s->k_plan == 0 ? 0 : draft_tokens(s, slot, &budget);
        s->dec_k[s->n_dec] = k;
        s->dec[s->n_dec++] = slot;
        s->dec_tokens += 1 + k;
    }
}

static void walk_done(struct bt_sched *s)
{
    if (s->preempted && s->opts.max_seqs_auto) {
        bt_seqs_auto_preempted(&s->seqs_auto, s->n_running);
    }
    bt_sched_run_compact(s);
}

/* Hands out the token budget to the prompts in order. */
static void share_tokens(struct bt_sched *s)
{
    bool fixed = s->opts.batching == BT_BATCHING_STATIC;
    int64_t left = s->opts.max_batched_tokens - (fixed ? 0 : s->dec_tokens);
    int32_t n = 0;
    for (; n < s->n_pre && left > 0; n++) {
        const struct bt_seq *q = &s->seqs[s->pre[n]];
        int32_t want = q->known - q->ctx;
        s->pre_tokens[n] = want < left ? want : (int32_t)left;
        left -= s->pre_tokens[n];
    }
    s->n_pre = n;
}

static void step_chunked(struct bt_sched *s, struct bt_plan_buf *p, struct census c, int64_t now_ns)
{
    walk_running(s, p, draft_budget(s, c), now_ns);
    walk_done(s);
    bool memory_short = s->preempted || s->deferred_blocks > 0;
    bt_sched_admit(s, p, memory_short ? BT_ADMIT_URGENT : BT_ADMIT_ALL, now_ns);
    share_tokens(s);
}

/* Whole prompts: a step of prompts alone if there are any, in order and within the budget (the
 * first one always), else a step of decodes. */
static void step_whole(struct bt_sched *s, struct bt_plan_buf *p, struct census c, int64_t now_ns)
{
    for (int32_t i = 0; i < s->n_run; i++) {
        const struct bt_seq *q = &s->seqs[s->run_slot[i]];
        int32_t left = q->known - q->ctx;
        if (left <= 1) {
            continue;
        }
        if (s->n_pre > 0 && s->pre_left + left > s->opts.max_batched_tokens) {
            break;
        }
        s->pre[s->n_pre++] = s->run_slot[i];
        s->pre_left += left;
    }
    bt_sched_admit(s, p, BT_ADMIT_WAITING, now_ns);
    if (s->n_pre > 0) {
        int64_t sum = 0;
        int32_t n = 0;
        for (; n < s->n_pre; n++) {
            const struct bt_seq *q = &s->seqs[s->pre[n]];
            s->pre_tokens[n] = q->known - q->ctx;
            sum += s->pre_tokens[n];
            if (n > 0 && sum > s->opts.max_batched_tokens) {
                break;
            }
        }
        s->n_pre = n;
        return;
    }
    walk_running(s, p, draft_budget(s, c), now_ns);
    walk_done(s);
    if (s->preempted || s->deferred_blocks > 0) {
        s->block = s->n_swap_out > 0 && !s->preempted ? BT_BLOCK_SWAP : BT_BLOCK_KV;
    } else {
        bt_sched_resume_swapped(s, p);
    }
    s->n_pre = 0;
}

static inline uint64_t mix(uint64_t h, uint64_t x)
{
    return ((h << 23 | h >> 41) ^ x) * 0x9e3779b97f4a7c15u;
}

static inline uint64_t seq_word(const struct bt_plan_seq *ps)
{
    return (ps->user + ps->flags) * 0xff51afd7ed558ccdu +
           ((uint64_t)(uint32_t)ps->ctx << 32 | (uint32_t)ps->n_tokens) * 0xc4ceb9fe1a85ec53u +
           ((uint64_t)(uint32_t)ps->n_generated << 32 |
            (uint32_t)(ps->draft_catchup * (BT_MAX_SPEC_K + 1) + ps->k_spec));
}

static uint64_t hash_copies(const struct bt_sched *s, const struct bt_step_plan *plan, uint64_t h)
{
    for (int32_t i = 0; i < plan->n_copies; i++) {
        const struct bt_plan_copy *c = &plan->copies[i];
        h = mix(h, s->reqs[c->req.index].user);
        h = mix(h, (uint64_t)c->kind << 32 | (uint32_t)c->n_blocks);
    }
    return h;
}

/* Writes one sequence's share and moves its counts past it; draft tokens move when they return. */
static void emit_seq(struct bt_sched *s, struct bt_plan_seq *out, int32_t slot, int32_t n_tokens,
                     int32_t k)
{
    struct bt_seq *q = &s->seqs[slot];
    int32_t end = q->ctx + n_tokens - k;
    bool emits = end == q->known;
    *out = (struct bt_plan_seq){
        .req = q->req,
        .user = q->user,
        .slot = slot,
        .n_prompt = q->n_prompt,
        .n_generated = q->known - q->n_prompt,
        .ctx = q->ctx,
        .n_tokens = n_tokens,
        .k_spec = k,
        .flags = (q->start ? (uint32_t)BT_SEQ_START : 0) | (emits ? (uint32_t)BT_SEQ_EMITS : 0),
        .kv_class = q->kv_class,
        .n_blocks = q->n_blocks,
        .blocks = bt_sched_table(s, slot),
    };
    q->start = false;
    q->n_inflight++;
    if (s->k_plan > 0 && s->opts.spec.has_draft_kv && (k > 0 || end - q->ctx > 1)) {
        int32_t upto = k > 0 ? q->ctx : end;
        out->draft_catchup = upto - q->draft_ctx;
        q->draft_ctx = upto;
    }
    if (k == 0) {
        if (q->ctx < q->n_prompt) {
            s->tokens_waiting -= (end < q->n_prompt ? end : q->n_prompt) - q->ctx;
        }
        s->kv_tokens += n_tokens;
        q->ctx = end;
        q->known += emits;
        if (q->known == q->limit && s->opts.inflight_max > 1) {
            bt_sched_mark_pending(s, slot);
        }
    }
}

static void build(struct bt_sched *s, struct bt_plan_buf *p)
{
    struct bt_step_plan *plan = &p->plan;
    uint64_t h = s->plan_hash;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_dec; i++, n++) {
        emit_seq(s, &p->seqs[n], s->dec[i], 1 + s->dec_k[i], s->dec_k[i]);
        plan->speculative = plan->speculative || s->dec_k[i] > 0;
        h = mix(h, seq_word(&p->seqs[n]));
    }
    plan->n_decode_seqs = n;
    for (int32_t i = 0; i < s->n_pre; i++, n++) {
        emit_seq(s, &p->seqs[n], s->pre[i], s->pre_tokens[i], 0);
        plan->n_prefill_tokens += s->pre_tokens[i];
        h = mix(h, seq_word(&p->seqs[n]));
    }
    plan->n_seqs = n;
    if (plan->n_copies > 0) {
        h = hash_copies(s, plan, h);
    }
    s->plan_hash = mix(h, (uint64_t)(uint32_t)n << 32 | (uint32_t)plan->n_copies);
}

static void make_step(struct bt_sched *s, struct bt_plan_buf *p, struct census c, int64_t now_ns)
{
    s->n_dec = s->n_pre = 0;
    s->dec_tokens = s->pre_left = 0;
    s->deferred_blocks = 0;
    s->preempted = s->sat_out = false;
    p->n_host_used = p->n_cow = 0;
    p->plan = (struct bt_step_plan){
        .step_id = s->next_step,
        .seqs = p->seqs,
        .copies = p->copies,
    };
    if (s->opts.chunked_prefill) {
        step_chunked(s, p, c, now_ns);
    } else {
        step_whole(s, p, c, now_ns);
    }
    BT_DEBUG_ASSERT(s->n_run == s->n_running);
}

/* Makes a step, again while it is empty for a reason that has passed: who fails for want of memory
 * makes room for those turned away before; and what is kept for an urgent head that nothing on its
 * way will let in is kept in vain. False when there is nothing to do. */
static bool make_some_step(struct bt_sched *s, struct bt_plan_buf *p, struct census c,
                           int64_t now_ns)
{
    for (;;) {
        int32_t n_living = s->n_living;
        make_step(s, p, c, now_ns);
        if (s->n_dec + s->n_pre + p->plan.n_copies > 0) {
            return true;
        }
        bool in_vain = s->sat_out && s->n_inflight == 0 && s->n_copies_out == 0;
        if (!in_vain && s->n_living == n_living) {
            return false;
        }
        s->urgent_need = 0;
    }
}

/* Whether a plan may be made on top of those in flight: speculation is neither looked past nor
 * started before the tokens it would build on are known. Decides K for the step. */
static bool may_plan(struct bt_sched *s, struct census *c)
{
    if (s->n_inflight >= s->opts.inflight_max) {
        return false;
    }
    if (s->opts.spec.k == 0) {
        return true;
    }
    if (s->n_inflight > 0 && bt_sched_plan_of(s, s->next_step - 1)->plan.speculative) {
        return false;
    }
    *c = count_running(s);
    s->k_plan = bt_spec_decide(&s->spec, c->n_dec);
    return s->k_plan == 0 || s->n_inflight == 0;
}

static int64_t next_wake_ns(const struct bt_sched *s, int64_t now_ns)
{
    int64_t wake = bt_sched_window_wake_ns(s, now_ns);
    if (s->deadlines.n > 0 && (int64_t)bt_queue_top(&s->deadlines).key < wake) {
        wake = (int64_t)bt_queue_top(&s->deadlines).key;
    }
    return wake;
}

enum bt_plan_status bt_sched_plan(struct bt_sched *s, int64_t now_ns,
                                  const struct bt_step_plan **plan, int64_t *wake_ns)
{
    *plan = NULL;
    bt_sched_clock_set(s, now_ns);
    bt_sched_expire(s, now_ns + 1, now_ns);
    bt_sched_run_compact(s);
    struct census c = {0};
    bool ready = false;
    struct bt_plan_buf *p = bt_sched_plan_of(s, s->next_step);
    if (s->n_living + s->n_copies_out > 0 && may_plan(s, &c)) {
        ready = make_some_step(s, p, c, now_ns);
        p->plan.wait_copies = s->n_dec + s->n_pre == 0;
        ready = ready || (s->n_inflight == 0 && s->n_copies_out > 0);
        /* Nothing in flight, nothing coming back and nothing runnable: only a gate may hold it. */
        BT_ASSERT(ready || s->n_inflight > 0 || s->n_living == 0 ||
                  bt_sched_window_wake_ns(s, now_ns) != INT64_MAX);
    }
    if (ready) {
        build(s, p);
        s->next_step++;
        s->n_inflight++;
        *plan = &p->plan;
    }
    *wake_ns = next_wake_ns(s, now_ns);
    bt_sched_gauge(s, now_ns);
    if (ready) {
        return BT_PLAN_READY;
    }
    return *wake_ns != INT64_MAX ? BT_PLAN_WAIT : BT_PLAN_IDLE;
}
