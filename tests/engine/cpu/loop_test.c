/* The serving loop itself: arrivals by the clock, timeouts, stopping, steps in flight. */
#include "tests/engine/cpu/engine_rig.h"
#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

/* ---- an executor that answers later ---- */

enum { DEPTH = 2, MAX_ROWS = 16, MAX_COPIES = 64 };

/* Computes when a plan is submitted, as the CPU does, but hands the result over when it is waited
 * for, as a device does. */
struct late {
    struct bt_executor cpu;
    struct bt_step_result results[DEPTH];
    struct bt_result_seq rows[DEPTH][MAX_ROWS];
    uint32_t copies[DEPTH][MAX_COPIES];
    int32_t n;      /* waiting to be handed over */
    int32_t n_most; /* most at once */
};

static enum bt_submit late_submit(void *self, const struct bt_step_plan *plan, int64_t now_ns,
                                  struct bt_step_result *result, struct bt_error *err)
{
    struct late *l = self;
    (void)result;
    if (l->n == DEPTH) {
        return BT_SUBMIT_BUSY;
    }
    l->results[l->n] = (struct bt_step_result){0};
    l->results[l->n].seqs = l->rows[l->n];
    l->results[l->n].copies_done = l->copies[l->n];
    enum bt_submit s = l->cpu.ops->submit(l->cpu.self, plan, now_ns, &l->results[l->n], err);
    l->n++;
    l->n_most = l->n > l->n_most ? l->n : l->n_most;
    return s == BT_SUBMIT_DONE ? BT_SUBMIT_QUEUED : s;
}

static enum bt_code late_wait(void *self, struct bt_step_result *result, struct bt_error *err)
{
    struct late *l = self;
    (void)err;
    cr_assert_gt(l->n, 0);
    struct bt_result_seq *seqs = result->seqs;
    uint32_t *copies = result->copies_done;
    *result = l->results[0];
    result->seqs = seqs;
    result->copies_done = copies;
    memcpy(seqs, l->rows[0], sizeof l->rows[0]);
    memcpy(copies, l->copies[0], (size_t)result->n_copies_done * sizeof *copies);
    l->n--;
    for (int32_t i = 0; i < l->n; i++) {
        l->results[i] = l->results[i + 1];
        memcpy(l->rows[i], l->rows[i + 1], sizeof l->rows[i]);
        memcpy(l->copies[i], l->copies[i + 1], sizeof l->copies[i]);
        l->results[i].seqs = l->rows[i];
        l->results[i].copies_done = l->copies[i];
    }
    return BT_OK;
}

static const struct bt_executor_ops late_ops = {
    .name = "late",
    .abi_version = BT_EXECUTOR_ABI_VERSION,
    .inflight_max = DEPTH,
    .submit = late_submit,
    .wait = late_wait,
};

/* ---- what the tests share ---- */

struct loop {
    struct bt_model m;
    struct rig_requests r;
    struct bt_executor x;
    struct bt_serve_opts so;
    struct bt_req_record records[RIG_MAX_REQUESTS];
    int32_t n_ends;
    int32_t n_tokens;
    int64_t stop_after_steps; /* 0: never */
    int64_t n_steps;
};

static void on_end(void *ctx, int64_t request, const struct bt_req_record *record)
{
    struct loop *l = ctx;
    l->records[request] = *record;
    l->n_ends++;
}

static void on_tokens(void *ctx, int64_t request, int32_t first, int32_t n, int64_t now_ns)
{
    struct loop *l = ctx;
    (void)now_ns;
    cr_assert_leq(first + n, l->r.requests[request].n_out);
    l->n_tokens += n;
}

static bool on_step(void *ctx, const struct bt_sched_state *state, int64_t n_ended, int64_t now_ns)
{
    struct loop *l = ctx;
    (void)now_ns;
    cr_assert_eq(n_ended, l->n_ends);
    cr_assert_geq(state->kv_blocks_used, 0);
    l->n_steps++;
    return l->stop_after_steps == 0 || l->n_steps < l->stop_after_steps;
}

static void loop_init(struct loop *l, int32_t n_requests, int32_t n_new)
{
    struct bt_error err = {0};
    memset(l, 0, sizeof *l);
    rig_load(&l->m, "berth-1m", NULL);
    int32_t text[64];
    for (int32_t i = 0; i < n_requests; i++) {
        rig_test_tokens(2000 + 100 * i, 64, text);
        (void)rig_add(&l->r, text, 20 + i, n_new);
    }
    struct bt_executor_opts eo = {
        .model = &l->m, .max_seqs = 8, .n_blocks = 128, .requests = &l->r.table, .n_threads = 1};
    cr_assert_eq(bt_cpu_executor_create(&eo, &l->x, &err), BT_OK, "%s", err.msg);
    l->so = (struct bt_serve_opts){
        .executor = &l->x,
        .sched = {.max_batched_tokens = 64, .chunked_prefill = true},
        .requests = &l->r.table,
        .on_end = on_end,
        .on_tokens = on_tokens,
        .on_step = on_step,
        .ctx = l,
    };
    bt_cpu_executor_fit_sched(&l->x, &l->so.sched);
}

static void loop_fini(struct loop *l)
{
    l->x.ops->destroy(l->x.self);
    rig_requests_fini(&l->r);
    bt_model_fini(&l->m);
}

/* ---- tests ---- */

Test(cpu_loop, steps_in_flight_change_no_token_and_an_end_is_seen_one_step_late)
{
    struct bt_error err = {0};
    struct loop l;
    loop_init(&l, 10, 40);
    struct bt_serve_result result;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(l.n_ends, 10);
    cr_assert_eq(l.n_tokens, 400);
    /* Some answers end early: at the token that request 3 gives fifth. */
    l.m.config.n_eos = 1;
    l.m.config.eos_ids[0] = l.r.requests[3].out[4];
    for (int32_t i = 0; i < 10; i++) {
        l.r.requests[i].ignore_eos = false;
    }
    l.n_ends = l.n_tokens = 0;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    cr_assert_lt(l.r.requests[3].n_out, 40);
    int32_t *want = rig_answers(&l.r);
    int32_t n_want[10];
    for (int32_t i = 0; i < 10; i++) {
        n_want[i] = l.r.requests[i].n_out;
    }
    struct late late = {.cpu = l.x};
    struct bt_executor x = {.ops = &late_ops, .self = &late};
    struct bt_recording recording;
    l.so.executor = &x;
    l.so.recording = &recording;
    l.so.sched.inflight_max = DEPTH;
    l.n_ends = l.n_tokens = 0;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(late.n_most, DEPTH);
    cr_assert_eq(l.n_ends, 10);
    cr_assert_eq(rig_differs(&l.r, want), -1);
    for (int32_t i = 0; i < 10; i++) {
        cr_assert_eq(l.r.requests[i].n_out, n_want[i], "request %d", i);
    }
    /* And the recording replays. */
    struct bt_executor replay;
    uint64_t hash = 0;
    cr_assert_eq(bt_replay_executor_create(&recording, &replay, &err), BT_OK);
    cr_assert_eq(bt_recording_replay(&recording, &replay, NULL, &hash, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(hash, result.plan_hash);
    replay.ops->destroy(replay.self);
    bt_recording_fini(&recording);
    free(want);
    loop_fini(&l);
}

Test(cpu_loop, requests_arrive_at_their_times_and_time_out)
{
    enum { MS = 1000000 };
    struct bt_error err = {0};
    struct loop l;
    loop_init(&l, 4, 8);
    struct bt_arrival arrivals[4] = {{.arrival_ns = 0},
                                     {.arrival_ns = 30 * MS},
                                     {.arrival_ns = 30 * MS, .timeout_ns = 1},
                                     {.arrival_ns = 60 * MS}};
    l.so.arrivals = arrivals;
    struct bt_serve_result result;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    for (int32_t i = 0; i < 4; i++) {
        const struct bt_req_record *q = &l.records[i];
        cr_assert_eq(q->arrival_ns, arrivals[i].arrival_ns);
        cr_assert_geq(q->end_ns, q->arrival_ns);
        if (i == 2) {
            cr_assert_eq(q->outcome, BT_OUTCOME_TIMED_OUT);
            cr_assert_eq(l.r.requests[i].n_out, q->n_output);
        } else {
            cr_assert_eq(q->outcome, BT_OUTCOME_FINISHED);
            cr_assert_geq(q->scheduled_ns, q->arrival_ns);
            cr_assert_gt(q->first_token_ns, q->scheduled_ns);
        }
    }
    cr_assert_geq(result.end_ns, 60 * MS);
    cr_assert_eq(result.n_by_outcome[BT_OUTCOME_TIMED_OUT], 1);
    loop_fini(&l);
}

Test(cpu_loop, a_run_can_be_stopped)
{
    struct bt_error err = {0};
    struct loop l;
    loop_init(&l, 12, 40);
    l.stop_after_steps = 7;
    struct bt_serve_result result;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(result.n_steps, 7);
    cr_assert_eq(l.n_ends, 12);
    cr_assert_eq(result.n_by_outcome[BT_OUTCOME_CANCELLED], 12);
    cr_assert_gt(l.n_tokens, 0);
    cr_assert_lt(l.n_tokens, 12 * 40);
    loop_fini(&l);
}

Test(cpu_loop, what_does_not_fit_together_is_refused)
{
    struct bt_error err = {0};
    struct loop l;
    loop_init(&l, 2, 8);
    struct bt_serve_result result;
    l.so.sched.inflight_max = 2;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_ERR_ARG);
    cr_assert_str_eq(err.msg, "inflight: 2 steps, but the cpu executor takes 1");
    l.so.sched.inflight_max = 1;
    l.so.sched.over_length = BT_OVER_ALLOW;
    err = (struct bt_error){0};
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_ERR_ARG);
    l.so.sched.over_length = BT_OVER_REJECT;
    struct bt_arrival arrivals[2] = {{.arrival_ns = 5}, {.arrival_ns = 4}};
    l.so.arrivals = arrivals;
    err = (struct bt_error){0};
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_ERR_ARG);
    cr_assert_str_eq(err.msg, "request 1 arrives before the one before it");
    loop_fini(&l);
}

/* Longer than the model: cut to it, prompt's end first, and answered. */
Test(cpu_loop, prompts_beyond_the_context_are_truncated_or_rejected)
{
    struct bt_error err = {0};
    struct loop l;
    loop_init(&l, 2, 16);
    l.so.sched.max_model_len = 30;
    struct bt_serve_result result;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(result.n_by_outcome[BT_OUTCOME_REJECTED], 2);
    l.so.sched.over_length = BT_OVER_TRUNCATE;
    l.n_ends = 0;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(result.n_by_outcome[BT_OUTCOME_FINISHED], 2);
    for (int32_t i = 0; i < 2; i++) {
        cr_assert_eq(l.r.requests[i].n_prompt, 14);
        cr_assert_eq(l.r.requests[i].n_out, 16);
    }
    loop_fini(&l);
}

Test(cpu_loop, logits_that_are_no_numbers_fail_the_request)
{
    struct bt_error err = {0};
    struct loop l;
    loop_init(&l, 3, 8);
    uint16_t *row = l.m.embed.w.p;
    cr_assert_eq(l.m.embed.w.dtype, BT_DTYPE_BF16);
    row[0] = 0x7fc0; /* a NaN in the row of id 0, which lm_head shares */
    l.r.requests[1].sampling = (struct bt_sampling){.temperature = 1.0f, .seed = 1};
    struct bt_serve_result result;
    cr_assert_eq(bt_serve_run(&l.so, &result, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(result.n_by_outcome[BT_OUTCOME_FAILED], 3);
    cr_assert_eq(l.n_tokens, 0);
    loop_fini(&l);
}
