/* Random worlds: every knob at random over small workloads; what must hold, holds. */
#include "sim/cost/roofline.h"
#include "tests/sim/fixtures.h"
#include "tests/sim/harness.h"

#include <string.h>

enum { WORLDS = 250, REQUESTS = 150, PREFIXES = 4, HASH_TOKENS = 8, HASHES = 6 };

static struct bt_rng rng;

static int32_t below(int32_t n)
{
    return (int32_t)bt_rng_below(&rng, (uint64_t)n);
}

static bool coin(void)
{
    return below(2) == 1;
}

static struct given_cost random_cost(void)
{
    return (struct given_cost){.step_ps = 1000 * below(30000),
                               .prefill_token_ps = 100 * below(1000),
                               .decode_ps = 1 + 1000 * below(300),
                               .ctx_ps = below(2000),
                               .host_ns = below(8000),
                               .copy_block_ps = 1 + 1000 * below(5000)};
}

static struct bt_deploy random_deploy(struct given_cost *cost)
{
    int32_t block = 1 << below(6);
    int32_t n_blocks = 2 + 400 / block + below(800 / block);
    struct bt_deploy d = given_deploy(cost, 1 + below(24), n_blocks, block);
    struct bt_sched_opts *s = &d.sched;
    d.cost.duplex_share = 0.5 + bt_rng_uniform(&rng) / 2;
    s->batching = below(4) == 0 ? BT_BATCHING_STATIC : BT_BATCHING_CONTINUOUS;
    s->max_batched_tokens = s->max_seqs + below(300);
    s->chunked_prefill = coin();
    s->max_seqs_auto = coin();
    s->over_length = (enum bt_over_length)below(3);
    s->max_model_len = 100 + below(400);
    s->n_host_blocks = below(2 * n_blocks);
    s->prefix_cache = coin();
    s->watermark_blocks = below(3);
    s->preempt = (enum bt_preempt)below(3);
    s->preempt_goal = (enum bt_preempt_goal)below(3);
    s->victim = (enum bt_victim)below(3);
    s->preempt_cost = (struct bt_preempt_cost){.recompute_ns_per_token = below(1000),
                                               .swap_out_ns_per_block = below(5000),
                                               .swap_in_ns_per_block = below(5000)};
    s->order = (enum bt_order)below(3);
    s->priority_preempts = coin();
    s->max_waiting = coin() ? 0 : 1 + below(30);
    s->window_low_ns = coin() ? 0 : below(20000);
    s->window_high_ns = s->window_low_ns + (coin() ? 0 : below(100000));
    s->inflight_max = 1 + below(3);
    if (s->batching == BT_BATCHING_CONTINUOUS && coin()) {
        s->spec = (struct bt_spec_opts){.k = 1 + below(6),
                                        .k_adaptive = coin(),
                                        .draft_cost_ratio = 0.15,
                                        .off_above_batch = below(10),
                                        .has_draft_kv = coin()};
        d.config.spec.n_acceptance = 2;
        d.config.spec.acceptance[0] = bt_rng_uniform(&rng);
        d.config.spec.acceptance[1] = bt_rng_uniform(&rng);
    }
    s->degrade = (struct bt_degrade_opts){.at_waiting = below(20), .max_new_tokens = below(20)};
    d.config.route = below(3);
    return d;
}

static int64_t random_requests(struct bt_request *q, uint64_t hashes[PREFIXES][HASHES])
{
    int64_t t_ns = 0;
    for (int32_t p = 0; p < PREFIXES; p++) {
        for (int32_t h = 0; h < HASHES; h++) {
            hashes[p][h] = 1 + bt_rng_u64(&rng) / 2;
        }
    }
    int32_t gap_ns = 1 + below(200000);
    bool share = coin(), time_out = below(3) == 0;
    for (int32_t i = 0; i < REQUESTS; i++) {
        t_ns += below(8) == 0 ? 0 : below(gap_ns);
        q[i] = (struct bt_request){.id = i,
                                   .arrival_ns = t_ns,
                                   .n_prompt = 1 + below(1 + below(300)),
                                   .n_output = 1 + below(1 + below(100)),
                                   .timeout_ns = time_out ? 1000 + below(3000000) : 0,
                                   .priority = below(4),
                                   .session = -1};
        if (share && coin()) {
            q[i].hashes = hashes[below(PREFIXES)];
            q[i].n_hashes = below(HASHES + 1);
            q[i].hash_tokens = HASH_TOKENS;
            q[i].n_prompt += q[i].n_hashes * HASH_TOKENS;
        }
    }
    return REQUESTS;
}

static int64_t n_ended;

static void check_record(void *ctx, const struct bt_req_record *r)
{
    const struct bt_request *q = (const struct bt_request *)ctx + r->user;
    n_ended++;
    cr_assert_eq(r->arrival_ns, q->arrival_ns);
    cr_assert(r->end_ns >= r->arrival_ns);
    if (r->outcome == BT_OUTCOME_FINISHED) {
        cr_assert(r->first_token_ns > r->arrival_ns && r->last_token_ns >= r->first_token_ns);
        cr_assert(r->n_output >= 1 && r->n_output <= q->n_output);
    }
    if (q->timeout_ns > 0 && r->outcome == BT_OUTCOME_FINISHED) {
        cr_assert(r->last_token_ns <= r->arrival_ns + q->timeout_ns);
    }
}

/* The second run of a world lives in memory that all worlds before have used. */
Test(worlds, every_request_ends_once_and_twice_the_same)
{
    struct bt_arena used;
    bt_arena_init(&used, 0);
    static struct bt_request q[REQUESTS];
    static uint64_t hashes[PREFIXES][HASHES];
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        bt_rng_init(&rng, seed, "worlds", 0);
        struct given_cost cost = random_cost();
        struct bt_deploy d = random_deploy(&cost);
        int64_t n = random_requests(q, hashes);
        struct bt_sim_opts o = {.deploy = &d,
                                .replicas = 1 + below(3),
                                .seed = seed,
                                .step_scale = coin() ? 0 : 0.9 + bt_rng_uniform(&rng),
                                .max_events = 2000000,
                                .on_record = check_record,
                                .ctx = q};
        static struct bt_sim_result first;
        for (int32_t again = 0; again < 2; again++) {
            struct bt_source *s = NULL;
            cr_assert_eq(bt_source_create_array(q, n, &s, NULL), BT_OK);
            o.source = s;
            o.memory = again == 0 ? NULL : &used;
            n_ended = 0;
            static struct bt_sim_result r;
            struct bt_error err = {0};
            enum bt_code code = bt_sim_run(&o, &r, &err);
            cr_assert_eq(code, BT_OK, "seed %d: %s", (int)seed, err.msg);
            cr_assert_eq(n_ended, n, "seed %d", (int)seed);
            cr_assert(r.summary.little_error < 1e-6 && r.summary.little_gauge_error < 1e-6,
                      "seed %d: %g, %g", (int)seed, r.summary.little_error,
                      r.summary.little_gauge_error);
            cr_assert(again == 0 || r.plan_hash == first.plan_hash, "seed %d", (int)seed);
            cr_assert(again == 0 || memcmp(&r.summary, &first.summary, sizeof r.summary) == 0,
                      "seed %d", (int)seed);
            first = r;
            bt_source_destroy(s);
        }
    }
    bt_arena_fini(&used);
}
