#include "tests/core/sched_rig.h"

#include "engine/core/kv.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static const uint64_t POISON = 0xdeadbeefdeadbeefu;

#define RIG_ASSERT(rig, cond)                                                                      \
    cr_assert((cond), "seed %llu, step %lld: %s", (unsigned long long)(rig)->seed,                 \
              (long long)(rig)->n_steps, #cond)

static void on_end(void *ctx, const struct bt_req_record *record)
{
    struct rig *rig = ctx;
    struct rig_user *u = &rig->users[record->user];
    u->n_ends++;
    u->record = *record;
    if (rig->trace != NULL) {
        fprintf(rig->trace, "%lld us end %llu %s, %d tokens, %d cached, %d swaps, %d recomputes\n",
                (long long)(rig->now_ns / 1000), (unsigned long long)record->user,
                bt_outcome_name(record->outcome), record->n_output, record->n_cached,
                record->n_preempt_swap, record->n_preempt_recompute);
    }
}

static void on_tokens(void *ctx, uint64_t user, int32_t n_tokens, int64_t now_ns)
{
    struct rig *rig = ctx;
    struct rig_user *u = &rig->users[user];
    RIG_ASSERT(rig, u->n_ends == 0 && now_ns == rig->now_ns && n_tokens > 0);
    u->first_step = u->n_tokens == 0 ? rig->n_completed : u->first_step;
    u->n_tokens += n_tokens;
}

void rig_init(struct rig *rig, const struct bt_sched_opts *opts, uint64_t seed)
{
    memset(rig, 0, sizeof *rig);
    rig->seed = seed;
    rig->accept_percent = 100;
    bt_rng_init(&rig->rng, seed, "executor", 0);
    bt_arena_init(&rig->arena, 0);
    struct bt_error err = {0};
    struct bt_metrics_opts mo = {.n_replicas = 1, .exact_max = 1024, .itl_exact_max = 1024};
    cr_assert_eq(bt_metrics_create(&rig->arena, &mo, &rig->metrics, &err), BT_OK, "%s", err.msg);
    rig->opts = *opts;
    rig->opts.metrics = rig->metrics;
    rig->opts.on_end = on_end;
    rig->opts.on_tokens = on_tokens;
    rig->opts.ctx = rig;
    cr_assert_eq(bt_sched_create(&rig->arena, &rig->opts, &rig->sched, &err), BT_OK, "%s", err.msg);
    int32_t b16 = opts->block_tokens_16bit;
    rig->slot_stride = opts->block_tokens > b16 ? opts->block_tokens : b16;
    size_t n = (size_t)opts->n_blocks * (size_t)rig->slot_stride;
    size_t n_host = (size_t)opts->n_host_blocks * (size_t)rig->slot_stride;
    rig->device = calloc(n, sizeof *rig->device);
    rig->draft = calloc(n, sizeof *rig->draft);
    rig->written_step = calloc(n, sizeof *rig->written_step);
    rig->host = calloc(n_host + 1, sizeof *rig->host);
    rig->host_draft = calloc(n_host + 1, sizeof *rig->host_draft);
    for (int32_t i = 0; i < BT_MAX_INFLIGHT; i++) {
        rig->results[i] = calloc((size_t)opts->max_seqs, sizeof *rig->results[i]);
    }
}

void rig_fini(struct rig *rig)
{
    for (int32_t i = 0; i < BT_MAX_INFLIGHT; i++) {
        free(rig->results[i]);
    }
    free(rig->device);
    free(rig->draft);
    free(rig->written_step);
    free(rig->host);
    free(rig->host_draft);
    bt_arena_fini(&rig->arena);
}

int32_t rig_add(struct rig *rig, int64_t submit_ns, int32_t n_prompt, int32_t max_new,
                int32_t true_output)
{
    cr_assert_lt(rig->n_users, RIG_MAX_USERS);
    int32_t i = rig->n_users++;
    rig->users[i] = (struct rig_user){
        .spec = {.user = (uint64_t)i,
                 .arrival_ns = submit_ns,
                 .n_prompt = n_prompt,
                 .max_new_tokens = max_new},
        .true_output = true_output,
        .submit_ns = submit_ns,
    };
    return i;
}

void rig_share(struct rig *rig, int32_t user, uint64_t shared_id, int32_t n_shared,
               int32_t hash_tokens)
{
    struct rig_user *u = &rig->users[user];
    int32_t n = (u->spec.n_prompt + hash_tokens - 1) / hash_tokens;
    n = n < 64 ? n : 64;
    uint64_t h = (uint64_t)hash_tokens; /* ids of another cut never agree */
    for (int32_t j = 0; j < n; j++) {
        bool shared = (j + 1) * hash_tokens <= n_shared;
        h = bt_hash_combine(h, shared ? shared_id : bt_hash_combine(77, (uint64_t)user));
        u->hashes[j] = h;
    }
    u->spec.hashes = u->hashes;
    u->spec.n_hashes = n;
    u->spec.hash_tokens = hash_tokens;
}

/* Identity of a request's token at position p. */
static uint64_t token_id(const struct rig_user *u, int32_t p, int32_t kv_class)
{
    const struct bt_req_spec *spec = &u->spec;
    uint64_t at = (uint64_t)(uint32_t)p << 8 | (uint32_t)kv_class;
    if (spec->hashes != NULL && p < spec->n_hashes * spec->hash_tokens && p < spec->n_prompt) {
        return bt_hash_combine(spec->hashes[p / spec->hash_tokens], at);
    }
    return bt_hash_combine(bt_hash_u64(spec->user + 1000003), at);
}

void rig_submit(struct rig *rig, int32_t user)
{
    struct rig_user *u = &rig->users[user];
    RIG_ASSERT(rig, !u->submitted);
    u->submitted = true;
    u->submit_step = rig->n_completed;
    u->rejected = bt_sched_submit(rig->sched, &u->spec, rig->now_ns, &u->handle) == BT_ADMIT_REJECT;
    RIG_ASSERT(rig, u->rejected == (u->n_ends == 1));
    rig->n_submitted++;
}

static size_t slot_at(const struct rig *rig, int32_t block, int32_t slot)
{
    return (size_t)block * (size_t)rig->slot_stride + (size_t)slot;
}

static int32_t block_tokens(const struct rig *rig, int32_t kv_class)
{
    return kv_class == 0 ? rig->opts.block_tokens : rig->opts.block_tokens_16bit;
}

static int64_t step_time(struct rig *rig)
{
    return rig->random ? (int64_t)bt_rng_below(&rig->rng, 2000) + 1 : RIG_STEP_NS;
}

static int64_t copy_time(struct rig *rig)
{
    return rig->random ? (int64_t)bt_rng_below(&rig->rng, 6000) : RIG_COPY_NS;
}

static void copy_block(const struct rig *rig, const uint64_t *from, int32_t src, uint64_t *to,
                       int32_t dst)
{
    size_t bytes = (size_t)rig->slot_stride * sizeof *from;
    memcpy(to + slot_at(rig, dst, 0), from + slot_at(rig, src, 0), bytes);
}

static void start_copies(struct rig *rig, const struct bt_step_plan *plan)
{
    for (int32_t i = 0; i < plan->n_copies; i++) {
        const struct bt_plan_copy *c = &plan->copies[i];
        if (c->kind == BT_COPY_COW) {
            copy_block(rig, rig->device, c->src[0], rig->device, c->dst[0]);
            copy_block(rig, rig->draft, c->src[0], rig->draft, c->dst[0]);
            continue;
        }
        int32_t k = 0;
        while (k < RIG_MAX_COPIES && rig->copies[k].live) {
            k++;
        }
        cr_assert(k < RIG_MAX_COPIES && c->n_blocks <= RIG_MAX_COPY_BLOCKS);
        struct rig_copy *rc = &rig->copies[k];
        *rc = (struct rig_copy){.copy = *c, .live = true};
        memcpy(rc->src, c->src, (size_t)c->n_blocks * sizeof *c->src);
        memcpy(rc->dst, c->dst, (size_t)c->n_blocks * sizeof *c->dst);
        int64_t start = rig->now_ns;
        if (c->kind == BT_COPY_SWAP_OUT && rig->device_free_ns > start) {
            start = rig->device_free_ns; /* after the steps already in flight */
        }
        rc->done_ns = start + copy_time(rig);
    }
}

/* Copies move their bytes as late as allowed. */
static void finish_copies(struct rig *rig, struct bt_step_result *result)
{
    for (int32_t k = 0; k < RIG_MAX_COPIES; k++) {
        struct rig_copy *rc = &rig->copies[k];
        if (!rc->live || rc->done_ns > result->done_ns) {
            continue;
        }
        bool out = rc->copy.kind == BT_COPY_SWAP_OUT;
        for (int32_t i = 0; i < rc->copy.n_blocks; i++) {
            copy_block(rig, out ? rig->device : rig->host, rc->src[i],
                       out ? rig->host : rig->device, rc->dst[i]);
            copy_block(rig, out ? rig->draft : rig->host_draft, rc->src[i],
                       out ? rig->host_draft : rig->draft, rc->dst[i]);
        }
        rc->live = false;
        result->copies_done[result->n_copies_done++] = rc->copy.ticket;
    }
}

static void draft_seq(struct rig *rig, const struct bt_plan_seq *ps, const struct rig_user *u,
                      int32_t n_good)
{
    int32_t bt = block_tokens(rig, ps->kv_class);
    int32_t upto = ps->k_spec > 0 ? ps->ctx : ps->ctx + ps->n_tokens;
    for (int32_t p = upto - ps->draft_catchup; p < upto; p++) {
        RIG_ASSERT(rig, p >= 0);
        rig->draft[slot_at(rig, ps->blocks[p / bt], p % bt)] = token_id(u, p, ps->kv_class);
    }
    if (ps->k_spec == 0) {
        return;
    }
    for (int32_t p = 0; p < ps->ctx && rig->opts.spec.has_draft_kv; p++) {
        RIG_ASSERT(rig, rig->draft[slot_at(rig, ps->blocks[p / bt], p % bt)] ==
                            token_id(u, p, ps->kv_class));
    }
    for (int32_t i = 0; i < ps->k_spec; i++) {
        int32_t p = ps->ctx + i;
        rig->draft[slot_at(rig, ps->blocks[p / bt], p % bt)] =
            i < n_good ? token_id(u, p, ps->kv_class) : POISON;
    }
}

static void compute_seq(struct rig *rig, const struct bt_step_plan *plan,
                        const struct bt_plan_seq *ps, struct bt_result_seq *rs)
{
    struct rig_user *u = &rig->users[ps->user];
    int32_t bt = block_tokens(rig, ps->kv_class);
    RIG_ASSERT(rig, ps->n_tokens > 0 && ps->n_blocks * bt >= ps->ctx + ps->n_tokens);
    RIG_ASSERT(rig, ps->n_prompt <= u->spec.n_prompt);
    for (int32_t p = 0; p < ps->ctx; p++) {
        RIG_ASSERT(rig, rig->device[slot_at(rig, ps->blocks[p / bt], p % bt)] ==
                            token_id(u, p, ps->kv_class));
    }
    int32_t known = ps->n_prompt + ps->n_generated;
    bool emits = (ps->flags & BT_SEQ_EMITS) != 0;
    RIG_ASSERT(rig, emits == (ps->ctx + ps->n_tokens - ps->k_spec == known));
    *rs = (struct bt_result_seq){0};
    if (emits) {
        int32_t accepted = 0;
        while (accepted < ps->k_spec &&
               (int32_t)bt_rng_below(&rig->rng, 100) < rig->accept_percent) {
            accepted++;
        }
        int32_t left = u->true_output - ps->n_generated;
        rs->n_accepted = accepted;
        rs->n_emitted = accepted + 1;
        if (left >= 1 && rs->n_emitted >= left) {
            rs->n_emitted = left;
            rs->eos = true;
        }
    }
    int32_t n_good = ps->k_spec > 0 ? rs->n_emitted : ps->n_tokens;
    for (int32_t i = 0; i < ps->n_tokens; i++) {
        int32_t p = ps->ctx + i;
        size_t at = slot_at(rig, ps->blocks[p / bt], p % bt);
        RIG_ASSERT(rig, rig->written_step[at] != plan->step_id + 1);
        rig->written_step[at] = plan->step_id + 1;
        rig->device[at] = i < n_good ? token_id(u, p, ps->kv_class) : POISON;
    }
    draft_seq(rig, ps, u, n_good);
}

static int32_t user_of(const struct rig *rig, struct bt_req_handle h)
{
    for (int32_t i = 0; i < rig->n_users; i++) {
        const struct rig_user *u = &rig->users[i];
        if (u->submitted && u->handle.index == h.index && u->handle.generation == h.generation) {
            return i;
        }
    }
    return -1;
}

static void trace_plan(const struct rig *rig, const struct bt_step_plan *plan)
{
    static const char *const kinds[] = {"cow", "out", "in"};
    fprintf(rig->trace, "%lld us step %lld%s%s:", (long long)(rig->now_ns / 1000),
            (long long)plan->step_id, plan->speculative ? " spec" : "",
            plan->wait_copies ? " wait" : "");
    for (int32_t i = 0; i < plan->n_copies; i++) {
        const struct bt_plan_copy *c = &plan->copies[i];
        fprintf(rig->trace, " %s(%d x%d)", kinds[c->kind], user_of(rig, c->req), c->n_blocks);
    }
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        fprintf(rig->trace, "%s %llu@%d+%d", i == plan->n_decode_seqs ? " |" : "",
                (unsigned long long)ps->user, ps->ctx, ps->n_tokens);
        if (ps->k_spec > 0) {
            fprintf(rig->trace, "k%d", ps->k_spec);
        }
        if (ps->draft_catchup > 0) {
            fprintf(rig->trace, "d%d", ps->draft_catchup);
        }
        fprintf(rig->trace, "%s%s", ps->flags & BT_SEQ_START ? "s" : "",
                ps->flags & BT_SEQ_EMITS ? "!" : "");
    }
    fprintf(rig->trace, "\n");
}

static void check_plan(struct rig *rig, const struct bt_step_plan *plan)
{
    RIG_ASSERT(rig, plan->n_seqs > 0 || plan->wait_copies);
    RIG_ASSERT(rig, plan->n_seqs <= rig->opts.max_seqs);
    RIG_ASSERT(rig, plan->n_copies <= bt_sched_max_copies(rig->sched));
    RIG_ASSERT(rig, plan->n_decode_seqs <= plan->n_seqs);
    int64_t n_tokens = 0;
    int32_t n_prefill = 0;
    bool slot_used[64] = {false};
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        n_tokens += ps->n_tokens;
        if (i < plan->n_decode_seqs) {
            RIG_ASSERT(rig, ps->n_tokens == 1 + ps->k_spec);
        } else {
            RIG_ASSERT(rig, ps->k_spec == 0);
            n_prefill += ps->n_tokens;
        }
        RIG_ASSERT(rig, ps->slot >= 0 && ps->slot < rig->opts.max_seqs && ps->slot < 64);
        RIG_ASSERT(rig, !slot_used[ps->slot]);
        slot_used[ps->slot] = true;
    }
    RIG_ASSERT(rig, n_prefill == plan->n_prefill_tokens);
    if (rig->opts.batching == BT_BATCHING_CONTINUOUS && rig->opts.chunked_prefill) {
        RIG_ASSERT(rig, n_tokens <= rig->opts.max_batched_tokens);
    }
    if (!rig->opts.chunked_prefill) {
        RIG_ASSERT(rig, plan->n_decode_seqs == 0 || plan->n_decode_seqs == plan->n_seqs);
    }
}

enum bt_plan_status rig_plan(struct rig *rig, const struct bt_step_plan **plan, int64_t *wake_ns)
{
    enum bt_plan_status status = bt_sched_plan(rig->sched, rig->now_ns, plan, wake_ns);
    if (rig->check) {
        bt_sched_check(rig->sched);
    }
    if (status != BT_PLAN_READY) {
        RIG_ASSERT(rig, *plan == NULL);
        return status;
    }
    check_plan(rig, *plan);
    RIG_ASSERT(rig, rig->n_flight < rig->opts.inflight_max);
    if (rig->trace != NULL) {
        trace_plan(rig, *plan);
    }
    int32_t at = rig->n_flight++;
    start_copies(rig, *plan);
    rig->plans[at] = *plan;
    for (int32_t i = 0; i < (*plan)->n_seqs; i++) {
        compute_seq(rig, *plan, &(*plan)->seqs[i], &rig->results[at][i]);
    }
    int64_t start = rig->now_ns > rig->device_free_ns ? rig->now_ns : rig->device_free_ns;
    int64_t done = start + step_time(rig);
    if ((*plan)->wait_copies) {
        done = INT64_MAX;
        for (int32_t k = 0; k < RIG_MAX_COPIES; k++) {
            const struct rig_copy *rc = &rig->copies[k];
            if (rc->live && rc->done_ns < done) {
                done = rc->done_ns;
            }
        }
        RIG_ASSERT(rig, done != INT64_MAX);
        done = done > start ? done : start;
    }
    rig->done_ns[at] = done;
    rig->device_free_ns = done;
    rig->n_steps++;
    return status;
}

void rig_complete(struct rig *rig)
{
    RIG_ASSERT(rig, rig->n_flight > 0);
    const struct bt_step_plan *plan = rig->plans[0];
    uint32_t tickets[RIG_MAX_COPIES];
    struct bt_step_result result = {
        .step_id = plan->step_id,
        .start_ns = rig->done_ns[0] - 1,
        .done_ns = rig->done_ns[0],
        .busy_ns = 1,
        .seqs = rig->results[0],
        .copies_done = tickets,
    };
    rig->now_ns = rig->now_ns > rig->done_ns[0] ? rig->now_ns : rig->done_ns[0];
    finish_copies(rig, &result);
    rig->n_completed++;
    bt_sched_complete(rig->sched, &result, rig->now_ns);
    struct bt_result_seq *used = rig->results[0];
    rig->n_flight--;
    for (int32_t i = 0; i < rig->n_flight; i++) {
        rig->plans[i] = rig->plans[i + 1];
        rig->done_ns[i] = rig->done_ns[i + 1];
        rig->results[i] = rig->results[i + 1];
    }
    rig->results[rig->n_flight] = used;
    if (rig->check) {
        bt_sched_check(rig->sched);
    }
}

/* The next moment at which a user does something. */
static int64_t next_user_ns(const struct rig *rig)
{
    int64_t t = INT64_MAX;
    for (int32_t i = 0; i < rig->n_users; i++) {
        const struct rig_user *u = &rig->users[i];
        if (!u->submitted && u->submit_ns < t) {
            t = u->submit_ns;
        }
        if (u->submitted && u->n_ends == 0 && u->cancel_ns > 0 && u->cancel_ns < t) {
            t = u->cancel_ns;
        }
    }
    return t;
}

static void users_act(struct rig *rig)
{
    for (int32_t i = 0; i < rig->n_users; i++) {
        struct rig_user *u = &rig->users[i];
        if (!u->submitted && u->submit_ns <= rig->now_ns) {
            rig_submit(rig, i);
        }
        if (u->submitted && u->n_ends == 0 && u->cancel_ns > 0 && u->cancel_ns <= rig->now_ns) {
            RIG_ASSERT(rig, bt_sched_cancel(rig->sched, u->handle, rig->now_ns));
            RIG_ASSERT(rig, !bt_sched_cancel(rig->sched, u->handle, rig->now_ns));
        }
    }
}

bool rig_run(struct rig *rig, int64_t max_turns)
{
    for (int64_t turn = 0; turn < max_turns; turn++) {
        users_act(rig);
        const struct bt_step_plan *plan;
        int64_t wake_ns;
        while (rig_plan(rig, &plan, &wake_ns) == BT_PLAN_READY) {
        }
        int64_t t = next_user_ns(rig);
        bool by_step = rig->n_flight > 0 && rig->done_ns[0] <= t && rig->done_ns[0] <= wake_ns;
        if (by_step) {
            rig_complete(rig);
            continue;
        }
        t = wake_ns < t ? wake_ns : t;
        if (t == INT64_MAX) {
            return true;
        }
        RIG_ASSERT(rig, t >= rig->now_ns);
        rig->now_ns = t;
    }
    return false;
}

void rig_check_ends(const struct rig *rig)
{
    for (int32_t i = 0; i < rig->n_users; i++) {
        const struct rig_user *u = &rig->users[i];
        const struct bt_req_record *r = &u->record;
        if (!u->submitted) {
            continue;
        }
        RIG_ASSERT(rig, u->n_ends == 1);
        RIG_ASSERT(rig, r->n_output == u->n_tokens);
        RIG_ASSERT(rig, r->outcome != BT_OUTCOME_REJECTED || r->n_output == 0);
        if (r->outcome == BT_OUTCOME_FINISHED) {
            int32_t want =
                u->true_output < u->spec.max_new_tokens ? u->true_output : u->spec.max_new_tokens;
            RIG_ASSERT(rig, r->n_output == want || r->degraded ||
                                rig->opts.over_length == BT_OVER_TRUNCATE);
            RIG_ASSERT(rig,
                       u->spec.timeout_ns == 0 || r->end_ns - r->arrival_ns <= u->spec.timeout_ns);
        }
        if (r->outcome == BT_OUTCOME_TIMED_OUT) {
            RIG_ASSERT(rig,
                       u->spec.timeout_ns > 0 && r->end_ns - r->arrival_ns >= u->spec.timeout_ns);
        }
    }
}
