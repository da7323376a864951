/* A step has come back: tokens are delivered, requests end, blocks and copies are given back. */
#include "engine/core/sched_impl.h"

void bt_sched_drain(struct bt_sched *s, int32_t slot)
{
    const struct bt_seq *q = &s->seqs[slot];
    if (q->n_inflight > 0 || s->cold[slot].ticket != 0) {
        return;
    }
    uint32_t req = q->req.index;
    if (s->reqs[req].ended) {
        bt_sched_slot_give_back(s, slot);
        bt_sched_free_req(s, req);
    } else {
        bt_sched_requeue(s, req);
    }
}

/* Equal deliveries in a row: a batch that decodes together gives one call to the metrics. */
struct delivery_run {
    int64_t arrival_ns, gap_ns;
    int32_t n_tokens, count;
};

static void flush_deliveries(struct bt_sched *s, struct delivery_run *d)
{
    if (d->count > 0) {
        bt_metrics_deliver(s->opts.metrics, d->arrival_ns, d->gap_ns, d->n_tokens, d->count);
        d->count = 0;
    }
}

/* Requests on either side of the warm-up's end are not mixed: the run is cut where it lies between.
 */
static void count_delivery(struct bt_sched *s, struct delivery_run *d, int64_t arrival_ns,
                           int64_t gap_ns, int32_t n_tokens)
{
    bool same = d->count > 0 && d->gap_ns == gap_ns && d->n_tokens == n_tokens &&
                (d->arrival_ns < s->warmup_until_ns) == (arrival_ns < s->warmup_until_ns);
    if (!same) {
        flush_deliveries(s, d);
        *d =
            (struct delivery_run){.arrival_ns = arrival_ns, .gap_ns = gap_ns, .n_tokens = n_tokens};
    }
    d->count++;
}

static void deliver(struct bt_sched *s, struct bt_seq *q, struct bt_req *r, int32_t n_tokens,
                    struct delivery_run *d, int64_t now_ns)
{
    int64_t gap_ns = q->last_token_ns < 0 ? -1 : now_ns - q->last_token_ns;
    q->last_token_ns = now_ns;
    r->last_token_ns = now_ns;
    if (r->first_token_ns < 0) {
        r->first_token_ns = now_ns;
    }
    r->gap_max_ns = gap_ns > r->gap_max_ns ? gap_ns : r->gap_max_ns;
    r->n_delivered += n_tokens;
    if (s->opts.metrics != NULL) {
        count_delivery(s, d, r->arrival_ns, gap_ns, n_tokens);
    }
    if (s->opts.on_tokens != NULL) {
        s->opts.on_tokens(s->opts.ctx, r->user, n_tokens, now_ns);
    }
}

/* Counts that a verification moves: the accepted tokens and the bonus token are known now, and all
 * but the last have their KV. The draft has run k steps, so its KV lacks the last draft token. */
static void verified(struct bt_sched *s, struct bt_seq *q, const struct bt_plan_seq *ps,
                     const struct bt_result_seq *rs)
{
    BT_ASSERT(rs->n_emitted >= 1 && rs->n_emitted <= 1 + ps->k_spec);
    BT_ASSERT(rs->n_accepted >= 0 && rs->n_accepted <= ps->k_spec);
    s->tokens_waiting -= q->ctx < q->n_prompt; /* the prompt's last token may be verified with */
    q->ctx += rs->n_emitted;
    q->known += rs->n_emitted;
    s->kv_tokens += rs->n_emitted;
    int32_t drafted = ps->ctx + ps->k_spec;
    q->draft_ctx = !s->opts.spec.has_draft_kv ? 0 : drafted < q->ctx ? drafted : q->ctx;
    bt_spec_observe(&s->spec, ps->k_spec, rs->n_accepted);
    if (s->opts.metrics != NULL) {
        bt_metrics_verify(s->opts.metrics, ps->k_spec, rs->n_accepted, rs->n_emitted);
    }
}

static void complete_seq(struct bt_sched *s, const struct bt_plan_seq *ps,
                         const struct bt_result_seq *rs, struct delivery_run *d, int64_t now_ns)
{
    struct bt_seq *q = &s->seqs[ps->slot];
    struct bt_req *r = &s->reqs[q->req.index];
    BT_ASSERT(q->req.index == ps->req.index && q->n_inflight > 0);
    q->n_inflight--;
    if (r->ended) {
        bt_sched_drain(s, ps->slot); /* what the step computed for it is discarded */
        return;
    }
    if (rs->failed) {
        bt_sched_end_req(s, q->req.index, BT_OUTCOME_FAILED, now_ns);
        if (r->state == BT_REQ_DRAINING) {
            bt_sched_drain(s, ps->slot);
        }
        return;
    }
    if (ps->k_spec > 0) {
        verified(s, q, ps, rs);
    } else {
        BT_ASSERT(rs->n_emitted == ((ps->flags & BT_SEQ_EMITS) != 0));
    }
    if (ps->ctx < ps->n_prompt) {
        bt_sched_publish(s, ps->slot, ps->ctx, ps->ctx + ps->n_tokens);
    }
    if (rs->n_emitted > 0) {
        deliver(s, q, r, rs->n_emitted, d, now_ns);
        if (rs->eos || r->n_delivered == r->max_new_tokens) {
            bt_sched_end_req(s, q->req.index, BT_OUTCOME_FINISHED, now_ns);
        }
    }
    if (r->state == BT_REQ_DRAINING) {
        bt_sched_drain(s, ps->slot);
    }
}

static void copy_done(struct bt_sched *s, uint32_t ticket)
{
    int32_t slot = (int32_t)(ticket & UINT16_MAX);
    BT_ASSERT(slot < s->n_slots && ticket != 0 && s->cold[slot].ticket == ticket);
    s->cold[slot].ticket = 0;
    s->n_copies_out--;
    uint32_t req = s->seqs[slot].req.index;
    struct bt_req *r = &s->reqs[req];
    bool outward = s->cold[slot].outward;
    s->n_swap_out -= outward;
    switch (r->state) {
    case BT_REQ_SWAPPING_OUT:
        bt_sched_slot_give_back(s, slot);
        bt_req_transition(r, BT_REQ_SWAPPED);
        bt_queue_push(&s->swapped, r->key, req);
        bt_sched_end_outgrown(s, req);
        break;
    case BT_REQ_SWAPPING_IN:
        bt_sched_drop_host(s, req);
        s->n_swapping_in--;
        bt_req_transition(r, BT_REQ_RUNNING);
        bt_sched_run_insert(s, slot);
        break;
    case BT_REQ_DRAINING:
        bt_sched_drain(s, slot);
        break;
    case BT_REQ_FREE:
    case BT_REQ_WAITING:
    case BT_REQ_RUNNING:
    case BT_REQ_SWAPPED:
    case BT_N_REQ_STATES:
        BT_ASSERT(false);
    }
}

static void count_step(struct bt_sched *s, const struct bt_step_plan *plan,
                       const struct bt_step_result *result)
{
    if (s->opts.metrics == NULL) {
        return;
    }
    int32_t n_decode = 0;
    for (int32_t i = 0; i < plan->n_decode_seqs; i++) {
        n_decode += plan->seqs[i].n_tokens;
    }
    struct bt_step_usage u = {
        .start_ns = result->start_ns,
        .done_ns = result->done_ns,
        .busy_ns = result->busy_ns,
        .host_ns = result->host_ns,
        .flops = result->flops,
        .bytes = result->bytes,
        .n_seqs = plan->n_seqs,
        .n_prefill_tokens = plan->n_prefill_tokens,
        .n_decode_tokens = n_decode,
        .swap_stall = plan->wait_copies,
    };
    bt_metrics_step(s->opts.metrics, s->opts.replica, &u);
}

void bt_sched_complete(struct bt_sched *s, const struct bt_step_result *result, int64_t now_ns)
{
    BT_ASSERT(s->n_inflight > 0);
    BT_ASSERT(result->step_id == s->next_step - s->n_inflight);
    bt_sched_clock_set(s, now_ns);
    bt_sched_expire(s, now_ns, now_ns); /* tokens that come after the deadline are not delivered */
    struct bt_plan_buf *p = bt_sched_plan_of(s, result->step_id);
    s->n_inflight--;
    struct delivery_run d = {0};
    if (s->opts.metrics != NULL) {
        s->warmup_until_ns = bt_metrics_warmup_until_ns(s->opts.metrics);
    }
    for (int32_t i = 0; i < p->plan.n_seqs; i++) {
        complete_seq(s, &p->plan.seqs[i], &result->seqs[i], &d, now_ns);
    }
    flush_deliveries(s, &d);
    for (int32_t i = 0; i < p->n_cow; i++) {
        const struct bt_cow *c = &p->cows[i];
        bt_sched_drop_block(s, c->src, bt_sched_block_tokens(s, c->kv_class), c->kv_class);
    }
    p->n_cow = 0;
    for (int32_t i = 0; i < result->n_copies_done; i++) {
        copy_done(s, result->copies_done[i]);
    }
    count_step(s, &p->plan, result);
    bt_sched_run_compact(s);
    bt_sched_gauge(s, now_ns);
}
