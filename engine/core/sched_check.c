/* Every invariant of the scheduler, for tests and debug builds. */
#include "engine/core/sched_impl.h"

#include <string.h>

struct totals {
    int32_t by_state[BT_N_REQ_STATES];
    int32_t n_living, n_resident, n_copies, n_swap_out, n_host;
    int64_t pending_blocks, prompt_left;
};

static void check_request(const struct bt_sched *s, uint32_t req, struct totals *t)
{
    const struct bt_req *r = &s->reqs[req];
    bt_req_check(r);
    t->by_state[r->state]++;
    t->n_living += r->state != BT_REQ_FREE && !r->ended;
    t->n_host += r->n_host;
    int32_t n_chain = 0;
    for (int32_t b = r->host_head; b >= 0; b = s->host_next[b]) {
        n_chain++;
    }
    BT_ASSERT(n_chain == r->n_host);
    int32_t ctx = r->state == BT_REQ_SWAPPED ? r->saved_ctx : 0;
    if (r->slot >= 0) {
        const struct bt_seq *q = &s->seqs[r->slot];
        BT_ASSERT(q->req.index == req && q->user == r->user);
        t->n_resident++;
        ctx = q->ctx;
    }
    if (r->state != BT_REQ_FREE && !r->ended && ctx < r->n_prompt) {
        t->prompt_left += r->n_prompt - ctx;
    }
}

static void check_sequence(const struct bt_sched *s, int32_t slot, struct totals *t)
{
    const struct bt_seq *q = &s->seqs[slot];
    const struct bt_req *r = &s->reqs[q->req.index];
    int32_t block_tokens = bt_sched_block_tokens(s, q->kv_class);
    BT_ASSERT(r->slot == slot && s->cold[slot].key == r->key);
    BT_ASSERT(q->running == (r->state == BT_REQ_RUNNING));
    BT_ASSERT(q->n_inflight <= s->n_inflight);
    BT_ASSERT(q->n_blocks > 0 && q->n_blocks <= s->table_cap);
    BT_ASSERT(q->cap_tokens == q->n_blocks * block_tokens);
    BT_ASSERT(q->ctx >= 0 && q->ctx < q->known && q->ctx <= q->cap_tokens);
    BT_ASSERT(q->known <= q->limit && q->limit == r->n_prompt + r->max_new_tokens);
    BT_ASSERT(q->draft_ctx >= 0 && q->draft_ctx <= q->ctx);
    BT_ASSERT(r->n_prompt + r->n_delivered <= q->known || r->ended);
    bool copying = r->state == BT_REQ_SWAPPING_OUT || r->state == BT_REQ_SWAPPING_IN;
    BT_ASSERT(!copying || s->cold[slot].ticket != 0);
    BT_ASSERT(r->state != BT_REQ_RUNNING || s->cold[slot].ticket == 0);
    BT_ASSERT(r->state != BT_REQ_DRAINING || q->n_inflight > 0 || s->cold[slot].ticket != 0);
    t->n_copies += s->cold[slot].ticket != 0;
    t->n_swap_out += s->cold[slot].ticket != 0 && s->cold[slot].outward;
    t->pending_blocks += q->pending_blocks;
}

static void check_running(const struct bt_sched *s)
{
    BT_ASSERT(s->n_run >= s->n_running && s->n_run <= s->n_slots);
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_run; i++) {
        BT_ASSERT(i == 0 || s->run_key[i - 1] < s->run_key[i]);
        BT_ASSERT(s->run_key[i] == s->cold[s->run_slot[i]].key);
        n += s->seqs[s->run_slot[i]].running;
    }
    BT_ASSERT(n == s->n_running);
}

/* References by tables and copies on write make up each block's count; a block with one owner that
 * is not wholly keyed content has no other. Adds up the tokens, shared blocks once. */
static void check_blocks(const struct bt_sched *s)
{
    int32_t *refs = s->check_refs;
    memset(refs, 0, (size_t)s->opts.n_blocks * sizeof *refs);
    int64_t kv_tokens = 0;
    int32_t n_used16 = 0;
    for (int64_t id = s->next_step - s->n_inflight; id < s->next_step; id++) {
        const struct bt_plan_buf *p = bt_sched_plan_of(s, id);
        for (int32_t i = 0; i < p->n_cow; i++) {
            bool first = refs[p->cows[i].src]++ == 0;
            kv_tokens += first ? bt_sched_block_tokens(s, p->cows[i].kv_class) : 0;
            n_used16 += first ? p->cows[i].kv_class : 0;
        }
    }
    for (uint32_t req = 0; req < (uint32_t)s->n_reqs_touched; req++) {
        int32_t slot = s->reqs[req].slot;
        if (slot < 0) {
            continue;
        }
        const struct bt_seq *q = &s->seqs[slot];
        int32_t block_tokens = bt_sched_block_tokens(s, q->kv_class);
        for (int32_t i = 0; i < q->n_blocks; i++) {
            int32_t block = bt_sched_table(s, slot)[i];
            BT_ASSERT(block >= 0 && block < s->opts.n_blocks);
            int64_t in_block = (int64_t)q->ctx - (int64_t)i * block_tokens;
            in_block = in_block < 0 ? 0 : in_block < block_tokens ? in_block : block_tokens;
            /* Only blocks of finished prompt content are shared. */
            BT_ASSERT(refs[block] == 0 || (i + 1) * block_tokens <= s->reqs[req].n_keyed);
            bool first = refs[block]++ == 0;
            kv_tokens += first ? in_block : 0;
            n_used16 += first ? q->kv_class : 0;
        }
    }
    int32_t n_used = 0;
    for (int32_t b = 0; b < s->opts.n_blocks; b++) {
        BT_ASSERT(bt_kv_ref_count(s->kv, b) == refs[b]);
        n_used += refs[b] > 0;
    }
    BT_ASSERT(n_used == bt_kv_n_used(s->kv));
    BT_ASSERT(kv_tokens == s->kv_tokens);
    BT_ASSERT(n_used16 == s->n_used16);
}

void bt_sched_check(const struct bt_sched *s)
{
    struct totals t = {0};
    for (uint32_t req = 0; req < (uint32_t)s->n_reqs_touched; req++) {
        check_request(s, req, &t);
        if (s->reqs[req].slot >= 0) {
            check_sequence(s, s->reqs[req].slot, &t);
        }
    }
    BT_ASSERT(t.n_living == s->n_living);
    BT_ASSERT(t.n_resident == s->n_resident);
    BT_ASSERT(t.by_state[BT_REQ_WAITING] == s->waiting.n);
    BT_ASSERT(t.by_state[BT_REQ_SWAPPED] == s->swapped.n);
    BT_ASSERT(t.by_state[BT_REQ_RUNNING] == s->n_running);
    BT_ASSERT(t.by_state[BT_REQ_SWAPPING_IN] == s->n_swapping_in);
    BT_ASSERT(t.n_copies == s->n_copies_out);
    BT_ASSERT(t.n_swap_out == s->n_swap_out);
    BT_ASSERT(t.pending_blocks == s->pending_blocks);
    BT_ASSERT(t.prompt_left == s->tokens_waiting);
    BT_ASSERT(s->opts.n_host_blocks - bt_kv_n_host_available(s->kv) == t.n_host);
    BT_ASSERT(s->n_inflight >= 0 && s->n_inflight <= s->opts.inflight_max);
    bt_queue_check(&s->waiting);
    bt_queue_check(&s->swapped);
    bt_queue_check(&s->deadlines);
    check_running(s);
    check_blocks(s);
    bt_kv_check(s->kv);
}
