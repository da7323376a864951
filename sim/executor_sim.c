#include "sim/executor_sim.h"

#include "engine/core/rng.h"
#include "sim/cost/skew.h"

#include <math.h>
#include <stdlib.h>

enum {
    PS_PER_NS = 1000,
    SCALE_ONE = 10000, /* step_scale in fixed point: spans stay exact sums of steps */
    FIRST_COPIES = 64,
};

struct copy {
    int64_t end_ns;
    uint32_t ticket;
};

/* One direction of the host link: copies under way or not yet told, in order of end. */
struct link {
    struct copy *ring; /* owned */
    int32_t capacity;  /* a power of two */
    int32_t first, n;
    int64_t free_ns; /* end of the last copy */
};

struct executor_sim {
    struct bt_executor_ops ops;              /* inflight_max is this executor's own */
    const struct bt_cost *cost;              /* borrowed */
    const struct bt_sim_truth *const *truth; /* borrowed */
    struct bt_step_mix *mix;                 /* borrowed; NULL: none */
    int32_t max_copies;
    int64_t scale; /* of device time, SCALE_ONE is 1 */
    int32_t n_acceptance;
    double acceptance[BT_MAX_SPEC_K];
    int64_t host_free_ns;
    int64_t device_free_ns;
    int64_t carry; /* device time not yet a nanosecond, in ps / SCALE_ONE */
    int64_t last_done_ns;
    struct link out, in;
};

uint64_t bt_sim_truth_key(uint64_t seed, int64_t id)
{
    return bt_hash_combine(bt_hash_combine(seed, bt_hash_bytes("acceptance", 10, 0)), (uint64_t)id);
}

/* The longer context of a batch of two lengths, a share BT_SKEW_USUAL_SHARE of it long, that has
 * the mean and variance of these; no longer than the longest. */
static int64_t long_context(const struct bt_step_plan *plan, int64_t sum)
{
    double mean = (double)sum / plan->n_decode_seqs;
    double squares = 0;
    int64_t longest = 0;
    for (int32_t i = 0; i < plan->n_decode_seqs; i++) {
        int64_t ctx = (int64_t)plan->seqs[i].ctx + plan->seqs[i].n_tokens;
        double off = (double)ctx - mean;
        squares += off * off;
        longest = ctx > longest ? ctx : longest;
    }
    const double apart = (1 - BT_SKEW_USUAL_SHARE) / BT_SKEW_USUAL_SHARE;
    double ctx = mean + sqrt(apart * squares / plan->n_decode_seqs);
    return ctx < (double)longest ? (int64_t)(ctx + 0.5) : longest;
}

void bt_sim_batch(const struct bt_step_plan *plan, struct bt_batch *out)
{
    struct bt_batch b = {.n_decode = plan->n_decode_seqs,
                         .n_prefill = plan->n_seqs - plan->n_decode_seqs};
    for (int32_t i = 0; i < plan->n_decode_seqs; i++) {
        const struct bt_plan_seq *s = &plan->seqs[i];
        int64_t ctx = (int64_t)s->ctx + s->n_tokens;
        b.n_decode_tokens += s->n_tokens;
        b.decode_ctx += ctx;
        b.n_draft_steps = s->k_spec > b.n_draft_steps ? s->k_spec : b.n_draft_steps;
        b.n_catchup_tokens += s->draft_catchup;
        if (s->kv_class == 1) {
            b.n_16bit++;
            b.ctx_16bit += ctx;
        }
    }
    if (b.n_decode > 0) {
        b.decode_ctx_long = long_context(plan, b.decode_ctx);
    }
    b.n_logits = b.n_decode_tokens;
    for (int32_t i = plan->n_decode_seqs; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *s = &plan->seqs[i];
        int64_t n = s->n_tokens;
        b.n_prefill_tokens += s->n_tokens;
        b.prefill_pairs += n * s->ctx + n * (n + 1) / 2;
        b.prefill_ctx += s->ctx + n;
        b.n_logits += (s->flags & BT_SEQ_EMITS) != 0;
    }
    *out = b;
}

static enum bt_code link_push(struct link *l, struct copy c, struct bt_error *err)
{
    if (l->n == l->capacity) {
        int32_t capacity = l->capacity > 0 ? 2 * l->capacity : FIRST_COPIES;
        struct copy *ring = malloc((size_t)capacity * sizeof *ring);
        if (ring == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "executor sim: no memory for %d copies", capacity);
        }
        for (int32_t i = 0; i < l->n; i++) {
            ring[i] = l->ring[(l->first + i) & (l->capacity - 1)];
        }
        free(l->ring);
        l->ring = ring;
        l->capacity = capacity;
        l->first = 0;
    }
    l->ring[(l->first + l->n++) & (l->capacity - 1)] = c;
    return BT_OK;
}

/* When a copy of `alone_ns` that starts at start_ns ends. While the other direction is busy, the
 * copy that came first keeps its rate and this one has what the duplex rate leaves. */
static int64_t copy_end_ns(int64_t start_ns, int64_t alone_ns, int64_t other_free_ns,
                           double duplex_share)
{
    int64_t overlap_ns = other_free_ns - start_ns;
    if (overlap_ns <= 0 || duplex_share >= 1) {
        return start_ns + alone_ns;
    }
    double rate = 2 * duplex_share - 1;
    int64_t done_ns = (int64_t)((double)overlap_ns * rate);
    if (done_ns < alone_ns) {
        return start_ns + overlap_ns + (alone_ns - done_ns);
    }
    return start_ns + (int64_t)((double)alone_ns / rate);
}

static enum bt_code start_copy(struct executor_sim *e, const struct bt_plan_copy *c, int64_t now_ns,
                               struct bt_error *err)
{
    bool out = c->kind == BT_COPY_SWAP_OUT;
    struct link *mine = out ? &e->out : &e->in;
    const struct link *other = out ? &e->in : &e->out;
    int64_t ps = e->cost->ops->copy_ps(e->cost->self, c->kind, c->n_blocks);
    int64_t start_ns = now_ns > mine->free_ns ? now_ns : mine->free_ns;
    if (out && start_ns < e->device_free_ns) {
        start_ns = e->device_free_ns;
    }
    mine->free_ns = copy_end_ns(start_ns, (ps + PS_PER_NS - 1) / PS_PER_NS, other->free_ns,
                                e->cost->duplex_share);
    return link_push(mine, (struct copy){mine->free_ns, c->ticket}, err);
}

/* Swaps join their queues; copies on write are device time of this step. */
static enum bt_code start_copies(struct executor_sim *e, const struct bt_step_plan *plan,
                                 int64_t now_ns, int64_t *cow_ps, struct bt_error *err)
{
    int32_t n_cow = 0;
    for (int32_t i = 0; i < plan->n_copies; i++) {
        const struct bt_plan_copy *c = &plan->copies[i];
        if (c->kind == BT_COPY_COW) {
            n_cow += c->n_blocks;
        } else {
            BT_TRY(start_copy(e, c, now_ns, err));
        }
    }
    *cow_ps = n_cow > 0 ? e->cost->ops->copy_ps(e->cost->self, BT_COPY_COW, n_cow) : 0;
    return BT_OK;
}

static void tell_copies(struct executor_sim *e, struct link *l, struct bt_step_result *r)
{
    while (l->n > 0 && l->ring[l->first].end_ns <= r->done_ns && r->n_copies_done < e->max_copies) {
        r->copies_done[r->n_copies_done++] = l->ring[l->first].ticket;
        l->first = (l->first + 1) & (l->capacity - 1);
        l->n--;
    }
}

static int64_t first_copy_end_ns(const struct executor_sim *e)
{
    int64_t out_ns = e->out.n > 0 ? e->out.ring[e->out.first].end_ns : INT64_MAX;
    int64_t in_ns = e->in.n > 0 ? e->in.ring[e->in.first].end_ns : INT64_MAX;
    return out_ns < in_ns ? out_ns : in_ns;
}

static int32_t draw_accepted(const struct executor_sim *e, const struct bt_plan_seq *s,
                             uint64_t key)
{
    int32_t n = 0;
    while (n < s->k_spec) {
        int32_t at = n < e->n_acceptance ? n : e->n_acceptance - 1;
        double u = bt_rng_at(key, (uint64_t)s->n_generated + (uint64_t)n);
        if (at < 0 || u >= e->acceptance[at]) {
            break;
        }
        n++;
    }
    return n;
}

static void emit_tokens(const struct executor_sim *e, const struct bt_step_plan *plan,
                        struct bt_result_seq *out)
{
    const struct bt_sim_truth *truth = *e->truth;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *s = &plan->seqs[i];
        out[i] = (struct bt_result_seq){0};
        if ((s->flags & BT_SEQ_EMITS) == 0) {
            continue;
        }
        const struct bt_sim_truth *t = &truth[s->user];
        int32_t accepted = s->k_spec > 0 ? draw_accepted(e, s, t->key) : 0;
        int32_t emitted = accepted + 1;
        int32_t left = t->n_output - s->n_generated;
        if (emitted >= left) {
            /* A step planned before the end was known may lie past it: left <= 0. */
            emitted = left > 1 ? left : 1;
            accepted = accepted < emitted ? accepted : emitted;
            out[i].eos = true;
        }
        out[i].n_emitted = emitted;
        out[i].n_accepted = accepted;
    }
}

/* Host, then device; fills the times of a step that computes. */
static void run_step(struct executor_sim *e, const struct bt_step_plan *plan, int64_t now_ns,
                     int64_t cow_ps, struct bt_step_result *r)
{
    struct bt_batch batch;
    struct bt_cost_parts parts;
    bt_sim_batch(plan, &batch);
    e->cost->ops->step(e->cost->self, &batch, &parts);
    if (e->mix != NULL) {
        bt_step_mix_add(e->mix, &batch);
    }
    int64_t host_start_ns = now_ns > e->host_free_ns ? now_ns : e->host_free_ns;
    e->host_free_ns = host_start_ns + parts.host_ns;
    int64_t idle_from_ns = now_ns > e->device_free_ns ? now_ns : e->device_free_ns;
    int64_t start_ns = idle_from_ns > e->host_free_ns ? idle_from_ns : e->host_free_ns;
    int64_t device = (parts.time_ps + cow_ps) * e->scale + e->carry;
    int64_t unit = (int64_t)PS_PER_NS * SCALE_ONE;
    e->carry = device % unit;
    e->device_free_ns = start_ns + device / unit;
    r->start_ns = start_ns;
    r->done_ns = e->device_free_ns;
    r->busy_ns = device / unit;
    r->host_ns = start_ns - idle_from_ns;
    r->flops = parts.flops;
    r->bytes = parts.bytes;
    emit_tokens(e, plan, r->seqs);
}

static enum bt_submit submit(void *self, const struct bt_step_plan *plan, int64_t now_ns,
                             struct bt_step_result *r, struct bt_error *err)
{
    struct executor_sim *e = self;
    int64_t cow_ps = 0;
    if (start_copies(e, plan, now_ns, &cow_ps, err) != BT_OK) {
        return BT_SUBMIT_FAILED;
    }
    r->step_id = plan->step_id;
    r->n_copies_done = 0;
    if (plan->n_seqs > 0) {
        run_step(e, plan, now_ns, cow_ps, r);
    } else {
        int64_t until_ns = plan->wait_copies ? first_copy_end_ns(e) : now_ns;
        BT_ASSERT(until_ns < INT64_MAX); /* what would it wait for? */
        r->start_ns = now_ns;
        r->done_ns = until_ns > now_ns ? until_ns : now_ns;
        r->busy_ns = 0;
        r->host_ns = 0;
        r->flops = 0;
        r->bytes = 0;
    }
    /* Results are due in the order of their plans. */
    r->done_ns = r->done_ns > e->last_done_ns ? r->done_ns : e->last_done_ns;
    e->last_done_ns = r->done_ns;
    tell_copies(e, &e->out, r);
    tell_copies(e, &e->in, r);
    return BT_SUBMIT_DONE;
}

static void destroy(void *self)
{
    struct executor_sim *e = self;
    free(e->out.ring);
    free(e->in.ring);
    free(e);
}

enum bt_code bt_sim_executor_create(const struct bt_sim_executor_opts *opts,
                                    struct bt_executor *out, struct bt_error *err)
{
    BT_ASSERT(opts->inflight_max >= 1 && opts->inflight_max <= BT_MAX_INFLIGHT);
    BT_ASSERT(opts->n_acceptance >= 0 && opts->n_acceptance <= BT_MAX_SPEC_K);
    BT_ASSERT(opts->step_scale >= 0);
    struct executor_sim *e = calloc(1, sizeof *e);
    if (e == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "executor sim: no memory");
    }
    double scale = opts->step_scale > 0 ? opts->step_scale : 1;
    *e = (struct executor_sim){
        .ops = {.name = "sim",
                .abi_version = BT_EXECUTOR_ABI_VERSION,
                .inflight_max = opts->inflight_max,
                .submit = submit,
                .destroy = destroy},
        .cost = opts->cost,
        .truth = opts->truth,
        .mix = opts->mix,
        .max_copies = opts->max_copies,
        .scale = (int64_t)(scale * SCALE_ONE + 0.5),
        .n_acceptance = opts->n_acceptance,
    };
    for (int32_t i = 0; i < opts->n_acceptance; i++) {
        e->acceptance[i] = opts->acceptance[i];
    }
    *out = (struct bt_executor){.ops = &e->ops, .self = e};
    return BT_OK;
}
