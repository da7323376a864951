#include "sim/cost/roofline.h"
#include "tests/sim/fixtures.h"
#include "tests/sim/harness.h"

#include <math.h>
#include <signal.h>
#include <string.h>

enum { N_MAX = 20000 };

/* What came of each request, by the source's id. */
static struct bt_req_record records[N_MAX];
static int64_t n_records;
static uint64_t records_hash;

static void keep_record(void *ctx, const struct bt_req_record *r)
{
    (void)ctx;
    cr_assert(r->user < N_MAX);
    records[r->user] = *r;
    n_records++;
    const int64_t fields[] = {(int64_t)r->user,  r->arrival_ns, r->scheduled_ns, r->first_token_ns,
                              r->last_token_ns,  r->end_ns,     r->n_output,     r->n_cached,
                              r->n_preempt_swap, r->replica,    r->outcome};
    records_hash = bt_hash_bytes(fields, sizeof fields, records_hash);
}

static void forget_records(void)
{
    memset(records, 0, sizeof records);
    n_records = 0;
    records_hash = 0;
}

/* Deliveries of one run. */
static int64_t delivered_ns[N_MAX];
static int32_t n_delivered;

static void keep_delivery(void *ctx, uint64_t user, int32_t n_tokens, int64_t now_ns)
{
    (void)ctx;
    (void)user;
    cr_assert_eq(n_tokens, 1);
    cr_assert(n_delivered < N_MAX);
    delivered_ns[n_delivered++] = now_ns;
}

static struct bt_source *array_source(const struct bt_request *r, int64_t n)
{
    struct bt_source *s = NULL;
    cr_assert_eq(bt_source_create_array(r, n, &s, NULL), BT_OK);
    return s;
}

static struct bt_request request_at(int64_t id, int64_t arrival_ns, int32_t prompt, int32_t output)
{
    return (struct bt_request){
        .id = id, .arrival_ns = arrival_ns, .n_prompt = prompt, .n_output = output, .session = -1};
}

/* Time of each token of one request alone: host and device in turn, device ps carried. */
Test(run, batch_of_one_takes_exactly_the_cost_models_own_sum)
{
    enum { PROMPT = 333, OUTPUT = 400, CHUNK = 128 };
    struct bt_gpu gpu = fixture_a100();
    struct bt_arch arch = fixture_7b();
    struct bt_step_opts so = {.target = {.arch = &arch}, .gpu = &gpu, .fused = true};
    struct given_cost none = {0};
    struct bt_deploy d = given_deploy(&none, 8, 1000, 16);
    d.sched.max_batched_tokens = CHUNK;
    d.sched.on_tokens = keep_delivery;
    cr_assert_eq(bt_roofline_create(&so, &d.cost, NULL), BT_OK);
    struct bt_request q = request_at(0, 1000, PROMPT, OUTPUT);
    struct bt_source *s = array_source(&q, 1);
    struct bt_sim_opts o = {.deploy = &d, .replicas = 1, .source = s};
    n_delivered = 0;
    struct bt_sim_result *r = run_checked(&o);
    cr_assert_eq(n_delivered, OUTPUT);

    int64_t now_ns = 1000, carry_ps = 0, sum_ns = 0;
    int32_t token = 0;
    struct bt_cost_parts p;
    for (int32_t ctx = 0; ctx < PROMPT; ctx += CHUNK) {
        int64_t n = PROMPT - ctx < CHUNK ? PROMPT - ctx : CHUNK;
        struct bt_batch b = {.n_prefill = 1,
                             .n_prefill_tokens = (int32_t)n,
                             .prefill_pairs = n * ctx + n * (n + 1) / 2,
                             .prefill_ctx = ctx + n,
                             .n_logits = ctx + n == PROMPT};
        d.cost.ops->step(d.cost.self, &b, &p);
        now_ns += p.host_ns + (p.time_ps + carry_ps) / 1000;
        carry_ps = (p.time_ps + carry_ps) % 1000;
    }
    cr_expect_eq(delivered_ns[token], now_ns, "first token");
    cr_expect_float_eq(r->summary.ttft.mean_s, (double)(now_ns - 1000) * 1e-9, 1e-12);
    for (token = 1; token < OUTPUT; token++) {
        struct bt_batch b = fixture_decodes(1, PROMPT + token);
        d.cost.ops->step(d.cost.self, &b, &p);
        int64_t gap_ns = p.host_ns + (p.time_ps + carry_ps) / 1000;
        carry_ps = (p.time_ps + carry_ps) % 1000;
        now_ns += gap_ns;
        sum_ns += gap_ns;
        cr_assert_eq(delivered_ns[token], now_ns, "token %d", token);
    }
    cr_expect_float_eq(r->summary.itl.mean_s, (double)sum_ns * 1e-9 / (OUTPUT - 1), 1e-12);

    /* The closed form of the same decode lands on the same nanosecond. */
    struct bt_batch b = fixture_decodes(1, PROMPT + 1);
    d.cost.ops->span(d.cost.self, &b, OUTPUT - 1, &p);
    int64_t span_ns = p.host_ns + p.time_ps / 1000;
    cr_expect(llabs(span_ns - sum_ns) <= 1, "span %lld, steps %lld", (long long)span_ns,
              (long long)sum_ns);
    bt_source_destroy(s);
    bt_cost_fini(&d.cost);
}

Test(run, two_steps_in_flight_hide_the_host)
{
    struct given_cost cost = {.step_ps = 10000000, .host_ns = 4000};
    struct bt_request q = request_at(0, 0, 1, 5);
    const struct {
        int32_t inflight;
        int64_t ns[5];
    } cases[] = {{1, {14000, 28000, 42000, 56000, 70000}},
                 {2, {14000, 24000, 34000, 44000, 54000}}};
    for (int32_t i = 0; i < 2; i++) {
        struct bt_deploy d = given_deploy(&cost, 4, 100, 16);
        d.sched.inflight_max = cases[i].inflight;
        d.sched.on_tokens = keep_delivery;
        struct bt_source *s = array_source(&q, 1);
        struct bt_sim_opts o = {.deploy = &d, .replicas = 1, .source = s};
        n_delivered = 0;
        struct bt_sim_result *r = run_checked(&o);
        cr_assert_eq(n_delivered, 5);
        for (int32_t t = 0; t < 5; t++) {
            cr_expect_eq(delivered_ns[t], cases[i].ns[t], "inflight %d token %d: %lld",
                         cases[i].inflight, t, (long long)delivered_ns[t]);
        }
        cr_expect_float_eq(r->summary.host_fraction, i == 0 ? 4.0 / 14 : 4.0 / 54, 1e-9);
        bt_source_destroy(s);
    }
}

/* A load heavy enough to queue, preempt and share. */
static struct drawn_source heavy_source(int64_t n)
{
    return (struct drawn_source){.seed = 9,
                                 .n = n,
                                 .gap_ns = 120000,
                                 .prompt_mean = 60,
                                 .output = 5,
                                 .output_range = 60,
                                 .priorities = 3};
}

static struct given_cost heavy_cost(void)
{
    return (struct given_cost){.step_ps = 20000000,
                               .prefill_token_ps = 50000,
                               .decode_ps = 100000,
                               .ctx_ps = 1000,
                               .host_ns = 2000,
                               .copy_block_ps = 400000};
}

static struct bt_deploy heavy_deploy(struct given_cost *cost)
{
    struct bt_deploy d = given_deploy(cost, 16, 80, 8);
    d.sched.max_batched_tokens = 256;
    d.sched.prefix_cache = true;
    return d;
}

Test(run, equal_work_gives_equal_bytes)
{
    struct given_cost cost = heavy_cost();
    uint64_t hashes[2], plans[2];
    struct bt_summary first;
    for (int32_t i = 0; i < 2; i++) {
        struct bt_deploy d = heavy_deploy(&cost);
        struct drawn_source s = heavy_source(3000);
        struct bt_sim_opts o = {.deploy = &d,
                                .replicas = 3,
                                .source = drawn_start(&s),
                                .seed = 4,
                                .on_record = keep_record};
        forget_records();
        struct bt_sim_result *r = run_checked(&o);
        cr_expect_eq(n_records, 3000);
        cr_expect_eq(r->summary.finished, 3000);
        hashes[i] = records_hash;
        plans[i] = r->plan_hash;
        if (i == 0) {
            first = r->summary;
        } else {
            cr_expect_eq(memcmp(&first, &r->summary, sizeof first), 0);
        }
    }
    cr_expect_eq(hashes[0], hashes[1]);
    cr_expect_eq(plans[0], plans[1]);
}

Test(run, policies_change_service_and_not_the_workload)
{
    static struct bt_req_record base[N_MAX];
    struct given_cost cost = heavy_cost();
    const struct {
        const char *name;
        enum bt_preempt preempt;
        enum bt_order order;
        int32_t max_seqs, inflight, replicas;
        bool chunked;
    } cases[] = {
        {"base", BT_PREEMPT_RECOMPUTE, BT_ORDER_FCFS, 16, 1, 1, true},
        {"swap", BT_PREEMPT_SWAP, BT_ORDER_FCFS, 16, 1, 1, true},
        {"auto", BT_PREEMPT_AUTO, BT_ORDER_PRIORITY, 16, 2, 1, true},
        {"shortest", BT_PREEMPT_RECOMPUTE, BT_ORDER_SHORTEST, 8, 1, 2, true},
        {"whole prompts", BT_PREEMPT_SWAP, BT_ORDER_PRIORITY, 4, 2, 3, false},
    };
    uint64_t plans[5];
    for (int32_t i = 0; i < 5; i++) {
        struct bt_deploy d = heavy_deploy(&cost);
        d.sched.preempt = cases[i].preempt;
        d.sched.n_host_blocks = 1000;
        d.sched.order = cases[i].order;
        d.sched.max_seqs = cases[i].max_seqs;
        d.sched.inflight_max = cases[i].inflight;
        d.sched.chunked_prefill = cases[i].chunked;
        d.sched.preempt_cost = (struct bt_preempt_cost){.recompute_ns_per_token = 50,
                                                        .swap_out_ns_per_block = 400,
                                                        .swap_in_ns_per_block = 400};
        struct drawn_source s = heavy_source(2000);
        struct bt_sim_opts o = {.deploy = &d,
                                .replicas = cases[i].replicas,
                                .source = drawn_start(&s),
                                .on_record = keep_record};
        forget_records();
        struct bt_sim_result *r = run_checked(&o);
        plans[i] = r->plan_hash;
        cr_expect_eq(r->summary.finished, 2000, "%s", cases[i].name);
        if (i == 0) {
            memcpy(base, records, sizeof base);
            cr_expect(r->summary.preempt_recompute > 0);
        }
        if (cases[i].preempt == BT_PREEMPT_SWAP && i == 1) {
            cr_expect(r->summary.preempt_swap > 0, "%s", cases[i].name);
        }
        for (int32_t q = 0; q < 2000; q++) {
            cr_assert_eq(records[q].arrival_ns, base[q].arrival_ns, "%s: request %d", cases[i].name,
                         q);
            cr_assert_eq(records[q].n_prompt, base[q].n_prompt);
            cr_assert_eq(records[q].n_output, base[q].n_output);
        }
        for (int32_t j = 0; j < i; j++) {
            cr_expect_neq(plans[i], plans[j], "%s plans as %s", cases[i].name, cases[j].name);
        }
    }
}

/* Two sequences, a pool that holds only one of them to the end: the newer one gives way. Block 4
 * tokens, 5 blocks; prompts 8 and 4, outputs 8. */
Test(run, swap_and_recompute_by_hand)
{
    const struct bt_request q[] = {request_at(0, 0, 8, 8), request_at(1, 0, 4, 8)};
    struct given_cost cost = {.step_ps = 10000000, .copy_block_ps = 7000000};
    struct bt_sim_result *r;
    struct bt_sim_opts o = {.replicas = 1, .on_record = keep_record};
    for (int32_t swap = 0; swap < 2; swap++) {
        struct bt_deploy d = given_deploy(&cost, 4, 5, 4);
        d.sched.preempt = swap ? BT_PREEMPT_SWAP : BT_PREEMPT_RECOMPUTE;
        d.sched.n_host_blocks = 8;
        struct bt_source *s = array_source(q, 2);
        o.deploy = &d;
        o.source = s;
        forget_records();
        r = run_checked(&o);
        /* Steps at 10, 20, ... us. Both prefill in step 1, tokens come at its end. Request 0 holds
         * 2 blocks up to context 8, then 3 (tokens 9 to 12), then 4 (13 to 16); request 1 holds 1,
         * then 2 (5 to 8), then 3. Step 2 makes them 3 + 2 = 5 blocks; step 6 needs one more for
         * each (contexts 13 and 9), so request 1 leaves with 5 of its 8 tokens out. */
        cr_expect_eq(records[0].n_preempt_swap + records[0].n_preempt_recompute, 0);
        cr_expect_eq(records[1].n_preempt_swap, swap);
        cr_expect_eq(records[1].n_preempt_recompute, 1 - swap);
        if (swap) {
            /* 2 blocks go out from 50 to 64, and nobody runs before they are free: request 0 has
             * its last tokens at 74, 84 and 94. It holds 4 of the 5 blocks until then, so the copy
             * back runs from 94 to 108; three more steps. */
            cr_expect_eq(records[0].end_ns, 94000);
            cr_expect_eq(r->summary.preempt_swap, 1);
            cr_expect_eq(r->summary.swap_bytes, 2 * 2 * 1024);
            cr_expect_eq(records[1].end_ns, 108000 + 30000);
        } else {
            /* Its blocks are free at once; request 0 ends at 80. Then its 9 known tokens are
             * computed again in one step, which gives token 6. */
            cr_expect_eq(records[0].end_ns, 80000);
            cr_expect_eq(r->summary.preempt_recompute, 1);
            cr_expect_eq(r->summary.swap_bytes, 0);
            cr_expect_eq(records[1].end_ns, 80000 + 30000);
        }
        cr_expect_eq(records[1].n_output, 8);
        bt_source_destroy(s);
    }
}

/* N users, each thinks Z and waits R: N = X (R + Z). */
Test(run, closed_loop_obeys_the_response_time_law)
{
    struct given_cost cost = {.step_ps = 1000000000, .decode_ps = 20000000};
    for (int32_t users = 1; users <= 64; users *= 8) {
        struct bt_deploy d = given_deploy(&cost, 8, 1000, 16);
        struct drawn_source s = {.source = {.closed_users = users},
                                 .seed = 1,
                                 .n = 6000,
                                 .prompt = 10,
                                 .output = 10,
                                 .think_ns = 50000000};
        struct bt_sim_opts o = {.deploy = &d, .replicas = 1, .source = drawn_start(&s)};
        struct bt_sim_result *r = run_checked(&o);
        cr_expect_eq(r->summary.finished, 6000);
        double x = r->summary.throughput_req_per_s;
        double n = x * (r->summary.e2e.mean_s + 0.05);
        cr_expect(fabs(n / users - 1) < 0.015, "%d users: X (R + Z) = %.3f", users, n);
        if (users == 1) {
            /* Alone: 10 steps of 1 ms, 9 of them with a decode, then 50 ms of thought. */
            cr_expect_float_eq(r->summary.e2e.mean_s, 0.01018, 1e-9);
        }
    }
}

Test(run, closed_loop_excludes_its_warmup_by_requests)
{
    struct given_cost cost = {.step_ps = 1000000};
    struct bt_deploy d = given_deploy(&cost, 4, 1000, 16);
    struct drawn_source s = {.source = {.closed_users = 3}, .n = 1000, .prompt = 10, .output = 2};
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 1, .source = drawn_start(&s), .warmup_fraction = 0.2};
    struct bt_sim_result *r = run_checked(&o);
    cr_expect_eq(r->summary.finished, 1000);
    cr_expect(llabs(r->summary.warmup_requests - 200) <= 6, "%lld",
              (long long)r->summary.warmup_requests);
    cr_expect_eq(r->summary.e2e.n, 1000 - r->summary.warmup_requests);
}

Test(run, open_loop_excludes_its_warmup_by_time)
{
    struct given_cost cost = {.step_ps = 1000000};
    struct bt_deploy d = given_deploy(&cost, 4, 1000, 16);
    struct bt_request q[11];
    for (int32_t i = 0; i <= 10; i++) {
        q[i] = request_at(i, 1000000 + i * 100000, 4, 2);
    }
    struct bt_source *s = array_source(q, 11);
    struct bt_sim_opts o = {.deploy = &d, .replicas = 1, .source = s, .warmup_fraction = 0.35};
    struct bt_sim_result *r = run_checked(&o);
    cr_expect_eq(r->summary.warmup_requests, 4); /* before 1.35 ms */
    cr_expect_eq(r->summary.e2e.n, 7);
    bt_source_destroy(s);
}

Test(run, replicas_divide_the_load)
{
    struct given_cost cost = heavy_cost();
    double e2e_s[3] = {0};
    for (int32_t i = 0; i < 3; i++) {
        int32_t replicas = 1 << i;
        struct bt_deploy d = given_deploy(&cost, 16, 200, 16);
        struct drawn_source s = heavy_source(4000);
        s.gap_ns = 200000.0 / replicas;
        struct bt_sim_opts o = {.deploy = &d,
                                .replicas = replicas,
                                .source = drawn_start(&s),
                                .on_record = keep_record};
        forget_records();
        struct bt_sim_result *r = run_checked(&o);
        int64_t by_replica[4] = {0};
        for (int32_t q = 0; q < 4000; q++) {
            by_replica[records[q].replica]++;
        }
        for (int32_t j = 0; j < replicas; j++) {
            cr_expect(by_replica[j] > 4000 / replicas * 9 / 10, "replica %d of %d served %lld", j,
                      replicas, (long long)by_replica[j]);
        }
        e2e_s[i] = r->summary.e2e.mean_s;
    }
    /* Twice the machines at twice the load queue less, and serve as fast. */
    cr_expect(e2e_s[1] < e2e_s[0] && e2e_s[2] < e2e_s[1]);
    cr_expect(e2e_s[2] > 0.5 * e2e_s[0]);
}

Test(run, prefix_routing_keeps_sessions_together)
{
    enum { SESSIONS = 40, TURNS = 8, BLOCK = 16, BLOCKS = 20 };
    static struct bt_request q[SESSIONS * TURNS];
    static uint64_t hashes[SESSIONS][BLOCKS];
    for (int32_t i = 0; i < SESSIONS; i++) {
        for (int32_t b = 0; b < BLOCKS; b++) {
            hashes[i][b] = bt_hash_u64((uint64_t)(i * BLOCKS + b + 1));
        }
    }
    for (int32_t i = 0; i < SESSIONS * TURNS; i++) {
        q[i] = request_at(i, (int64_t)i * 3000000, BLOCK * BLOCKS + 5, 4);
        q[i].hashes = hashes[i % SESSIONS];
        q[i].n_hashes = BLOCKS;
        q[i].hash_tokens = BLOCK;
    }
    struct given_cost cost = {.step_ps = 1000000, .prefill_token_ps = 1000000};
    double hit[3];
    for (int32_t rule = 0; rule < 3; rule++) {
        struct bt_deploy d = given_deploy(&cost, 8, 500, BLOCK);
        d.sched.prefix_cache = true;
        d.config.route = rule;
        struct bt_source *s = array_source(q, SESSIONS * TURNS);
        struct bt_sim_opts o = {.deploy = &d, .replicas = 3, .source = s};
        hit[rule] = run_checked(&o)->summary.prefix_hit_fraction;
        bt_source_destroy(s);
    }
    cr_expect(hit[BT_ROUTE_PREFIX] > 0.8, "prefix: %.3f", hit[BT_ROUTE_PREFIX]);
    cr_expect(hit[BT_ROUTE_PREFIX] > hit[BT_ROUTE_ROUND_ROBIN] + 0.1, "%.3f against %.3f",
              hit[BT_ROUTE_PREFIX], hit[BT_ROUTE_ROUND_ROBIN]);
}

Test(run, a_horizon_counts_who_is_left)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    struct drawn_source s = heavy_source(3000);
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 1, .source = drawn_start(&s), .horizon_ns = 50000000};
    struct bt_sim_result *r = run_checked(&o);
    const struct bt_summary *m = &r->summary;
    cr_expect_eq(r->end_ns, 50000000);
    cr_expect(m->running > 0 && m->waiting > 0);
    cr_expect_eq(m->arrived, m->finished + m->timed_out + m->rejected + m->cancelled + m->failed +
                                 m->running + m->waiting);
}

Test(run, an_empty_source_is_an_empty_answer)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    struct drawn_source s = heavy_source(0);
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 2, .source = drawn_start(&s), .warmup_fraction = 0.1};
    struct bt_sim_result *r = run_checked(&o);
    cr_expect_eq(r->summary.arrived, 0);
    cr_expect_eq(r->steps, 0);
    cr_expect_eq(r->end_ns, 0);
}

Test(run, an_event_limit_is_an_error)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    struct drawn_source s = heavy_source(3000);
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 1, .source = drawn_start(&s), .max_events = 1000};
    static struct bt_sim_result r;
    struct bt_error err = {0};
    cr_expect_eq(bt_sim_run(&o, &r, &err), BT_ERR_LIMIT);
    cr_expect_eq(strncmp(err.msg, "simulation: stopped after 1000 events", 37), 0, "%s", err.msg);
}

struct watch {
    int64_t calls;
    double done;
    int32_t samples, most_running;
    int64_t last_sample_ns;
};

static bool stop_at_third(void *ctx, struct bt_metrics *m, int64_t now_ns)
{
    (void)m;
    (void)now_ns;
    struct watch *w = ctx;
    return ++w->calls == 3;
}

static bool watch_progress(void *ctx, double done)
{
    struct watch *w = ctx;
    cr_assert(done >= w->done && done <= 1);
    w->done = done;
    w->calls++;
    return true;
}

static void watch_sample(void *ctx, const struct bt_sim_sample *s)
{
    struct watch *w = ctx;
    cr_assert(w->samples == 0 || s->t_ns == w->last_sample_ns + 1000000);
    cr_assert(s->kv_blocks_used <= s->kv_blocks_total);
    w->last_sample_ns = s->t_ns;
    w->most_running = s->running > w->most_running ? s->running : w->most_running;
    w->samples++;
}

Test(run, sequential_stopping_progress_and_samples)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    struct drawn_source s = heavy_source(3000);
    struct watch w = {0};
    struct bt_sim_opts o = {.deploy = &d,
                            .replicas = 2,
                            .source = drawn_start(&s),
                            .should_stop = stop_at_third,
                            .stop_every = 100,
                            .ctx = &w};
    struct bt_sim_result *r = run_checked(&o);
    cr_expect(r->stopped);
    cr_expect(r->summary.finished >= 300 && r->summary.finished < 320, "%lld",
              (long long)r->summary.finished);

    w = (struct watch){0};
    o.should_stop = NULL;
    o.on_progress = watch_progress;
    o.on_sample = watch_sample;
    o.sample_ns = 1000000;
    o.source = drawn_start(&s);
    r = run_checked(&o);
    cr_expect(w.calls > 5 && w.done > 0.8, "%lld calls, %.2f", (long long)w.calls, w.done);
    cr_expect_float_eq(w.samples, (double)r->end_ns / 1e6, 2);
    cr_expect(w.most_running > 8 && w.most_running <= 32);
}

/* Hooks that refuse every fourth, send the rest by parity, and cut what is overloaded. */
static bool hook_arrival(void *ctx, struct bt_req_spec *spec, const struct bt_sched_state *states,
                         int32_t n, int64_t now_ns)
{
    (void)ctx;
    (void)now_ns;
    cr_assert(n == 2 && states[0].kv_blocks_total > 0);
    return spec->user % 4 != 3;
}

static int32_t hook_route(void *ctx, const struct bt_req_spec *spec,
                          const struct bt_sched_state *states, int32_t n, int64_t now_ns)
{
    (void)ctx;
    (void)states;
    (void)n;
    (void)now_ns;
    return (int32_t)(spec->user % 2);
}

static int32_t hook_overload(void *ctx, const struct bt_req_spec *spec,
                             const struct bt_sched_state *state, int64_t now_ns)
{
    (void)ctx;
    (void)spec;
    (void)now_ns;
    return state->n_waiting > 12 ? 0 : 2;
}

Test(run, hooks_refuse_route_and_cut)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    d.config.degrade_at_waiting = 4;
    struct drawn_source s = heavy_source(2000);
    s.gap_ns = 30000;
    struct bt_sim_hooks hooks = {
        .arrival = hook_arrival, .route = hook_route, .overload = hook_overload};
    struct bt_sim_opts o = {.deploy = &d,
                            .replicas = 2,
                            .source = drawn_start(&s),
                            .hooks = &hooks,
                            .on_record = keep_record};
    forget_records();
    struct bt_sim_result *r = run_checked(&o);
    cr_expect_eq(n_records, 2000);
    int64_t refused = 0, degraded = 0;
    for (int32_t i = 0; i < 2000; i++) {
        bool rejected = records[i].outcome == BT_OUTCOME_REJECTED;
        cr_assert(i % 4 != 3 || rejected);
        cr_assert(rejected || records[i].replica == i % 2);
        cr_assert(!records[i].degraded || rejected || records[i].n_output == 2);
        refused += rejected;
        degraded += records[i].degraded;
    }
    cr_expect(refused > 500 && degraded > 10, "%lld refused, %lld degraded", (long long)refused,
              (long long)degraded);
    cr_expect_eq(r->summary.rejected_by[BT_REJECT_POLICY], refused);
    cr_expect_eq(r->summary.degraded, degraded);
}

static bool hook_fails(void *ctx, struct bt_req_spec *spec, const struct bt_sched_state *states,
                       int32_t n, int64_t now_ns)
{
    (void)states;
    (void)n;
    (void)now_ns;
    struct bt_sim_hooks *hooks = ctx;
    hooks->failed = spec->user == 20;
    return true;
}

Test(run, a_failed_hook_stops_the_run)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    struct drawn_source s = heavy_source(100);
    struct bt_sim_hooks hooks = {.arrival = hook_fails};
    hooks.ctx = &hooks;
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 1, .source = drawn_start(&s), .hooks = &hooks};
    static struct bt_sim_result r;
    cr_expect_eq(bt_sim_run(&o, &r, NULL), BT_ERR_SCRIPT);
}

static int32_t hook_route_beyond(void *ctx, const struct bt_req_spec *spec,
                                 const struct bt_sched_state *states, int32_t n, int64_t now_ns)
{
    (void)ctx;
    (void)states;
    (void)now_ns;
    return spec->user == 3 ? n : -1;
}

static bool hook_no_tokens(void *ctx, struct bt_req_spec *spec, const struct bt_sched_state *states,
                           int32_t n, int64_t now_ns)
{
    (void)ctx;
    (void)states;
    (void)n;
    (void)now_ns;
    spec->max_new_tokens = 0;
    return true;
}

Test(run, a_hooks_answer_out_of_range_stops_the_run_and_is_named)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    struct drawn_source s = heavy_source(100);
    struct bt_sim_hooks route = {.route = hook_route_beyond}, arrival = {.arrival = hook_no_tokens};
    static struct bt_sim_result r;
    struct bt_error err = {0};
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 2, .source = drawn_start(&s), .hooks = &route};
    cr_expect_eq(bt_sim_run(&o, &r, &err), BT_ERR_SCRIPT);
    cr_expect_str_eq(err.msg, "hooks.route: replica: 2 is not in 0..1");
    bt_error_clear(&err);
    o.hooks = &arrival;
    o.source = drawn_start(&s);
    cr_expect_eq(bt_sim_run(&o, &r, &err), BT_ERR_SCRIPT);
    cr_expect_str_eq(err.msg, "hooks.arrival: max_new_tokens: 0 is not in 1..2147483647");
}

Test(run, overload_flows_to_the_second_deployment)
{
    struct given_cost cost = heavy_cost();
    struct given_cost fast = {.step_ps = 5000000};
    struct bt_deploy d = heavy_deploy(&cost), small = heavy_deploy(&fast);
    struct drawn_source s = heavy_source(2000);
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 1, .source = drawn_start(&s), .on_record = keep_record};
    double alone_s = run_checked(&o)->summary.e2e.p99_s;
    d.config.degrade_at_waiting = 5;
    d.config.degrade_max_tokens = 10;
    o.degrade_deploy = &small;
    o.degrade_replicas = 1;
    o.source = drawn_start(&s);
    forget_records();
    struct bt_sim_result *r = run_checked(&o);
    int64_t degraded = 0;
    for (int32_t i = 0; i < 2000; i++) {
        cr_assert_eq(records[i].degraded, records[i].replica == 1);
        cr_assert(!records[i].degraded || records[i].n_output <= 10);
        degraded += records[i].degraded;
    }
    cr_expect(degraded > 100 && degraded < 1900);
    cr_expect_eq(r->summary.degraded, degraded);
    cr_expect(r->summary.e2e.p99_s < 0.5 * alone_s);
}

Test(run, timeouts_give_partial_answers_and_are_not_finished)
{
    struct given_cost cost = heavy_cost();
    struct bt_deploy d = heavy_deploy(&cost);
    struct drawn_source s = heavy_source(2000);
    s.timeout_ns = 3000000;
    struct bt_sim_opts o = {
        .deploy = &d, .replicas = 1, .source = drawn_start(&s), .on_record = keep_record};
    forget_records();
    struct bt_sim_result *r = run_checked(&o);
    cr_expect(r->summary.timed_out > 100);
    cr_expect_eq(r->summary.finished + r->summary.timed_out, 2000);
    for (int32_t i = 0; i < 2000; i++) {
        cr_assert(records[i].outcome != BT_OUTCOME_FINISHED ||
                  records[i].end_ns - records[i].arrival_ns <= 3000000 + 200000);
    }
}

Test(run, speculation_serves_the_same_answers_faster)
{
    struct given_cost cost = {.step_ps = 20000000, .decode_ps = 10000};
    double e2e_s[2];
    for (int32_t spec = 0; spec < 2; spec++) {
        struct bt_deploy d = given_deploy(&cost, 8, 400, 16);
        struct drawn_source s = {
            .seed = 3, .n = 500, .gap_ns = 2e6, .prompt = 30, .output = 20, .output_range = 80};
        if (spec) {
            d.sched.spec = (struct bt_spec_opts){.k = 4, .draft_cost_ratio = 0.1};
            d.config.spec.n_acceptance = 1;
            d.config.spec.acceptance[0] = 0.72;
        }
        struct bt_sim_opts o = {
            .deploy = &d, .replicas = 1, .source = drawn_start(&s), .on_record = keep_record};
        struct bt_sim_result *r = run_checked(&o);
        cr_expect_eq(r->summary.finished, 500);
        e2e_s[spec] = r->summary.e2e.mean_s;
        if (spec) {
            /* (1 - a^5) / (1 - a) tokens a verification, but for the ends of answers. */
            double expected = (1 - pow(0.72, 5)) / (1 - 0.72);
            cr_expect(fabs(r->summary.accepted_len / expected - 1) < 0.05, "%.3f, closed form %.3f",
                      r->summary.accepted_len, expected);
            cr_expect_float_eq(r->summary.acceptance_conditional[0], 0.72, 0.02);
            cr_expect_float_eq(r->summary.acceptance_conditional[3], 0.72, 0.03);
        }
    }
    cr_expect(e2e_s[1] < 0.5 * e2e_s[0], "%.4f against %.4f s", e2e_s[1], e2e_s[0]);
}
