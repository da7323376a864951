/* The bottleneck rule: a table of constructed situations, and a small serving simulation of an
 * evening peak with twins that differ in one limit. */
#include "engine/core/metrics.h"
#include "engine/core/rng.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#define SEC INT64_C(1000000000)
#define MS  INT64_C(1000000)

static struct bt_arena arena;

static void setup(void)
{
    bt_arena_init(&arena, 0);
}

static void teardown(void)
{
    bt_arena_fini(&arena);
}

TestSuite(bottleneck, .init = setup, .fini = teardown);

static struct bt_metrics *create(const struct bt_metrics_opts *opts)
{
    struct bt_error err = {0};
    struct bt_metrics *m = NULL;
    cr_assert_eq(bt_metrics_create(&arena, opts, &m, &err), BT_OK, "%s", err.msg);
    return m;
}

/* One second: `blocked` of it with that gauge, the rest running alone; steps as fractions. */
struct situation {
    const char *name;
    enum bt_block_reason block;
    double blocked;
    int32_t running, waiting, swapped;
    int32_t max_seqs; /* in force, of 64; 0: 64 */
    int32_t kv_used;  /* of 100 */
    double busy, host, stall;
    double flops, bytes; /* share of the roof while busy; < 0: roofs unknown */
    int32_t tokens;      /* a step of 20 ms */
    enum bt_bottleneck want;
};

static const struct situation situations[] = {
    {.name = "idle", .running = 0, .busy = 0.1, .bytes = 0.6, .want = BT_BOTTLENECK_ARRIVALS},
    {.name = "light load", .running = 1, .busy = 0.7, .bytes = 0.6, .want = BT_BOTTLENECK_ARRIVALS},
    {.name = "busy decode",
     .running = 20,
     .busy = 0.97,
     .flops = 0.2,
     .bytes = 0.6,
     .want = BT_BOTTLENECK_BANDWIDTH},
    {.name = "busy prefill",
     .running = 20,
     .busy = 0.97,
     .flops = 0.5,
     .bytes = 0.3,
     .want = BT_BOTTLENECK_COMPUTE},
    {.name = "small model, slow host",
     .running = 20,
     .busy = 0.5,
     .host = 0.45,
     .flops = 0.1,
     .bytes = 0.4,
     .want = BT_BOTTLENECK_HOST},
    {.name = "kv full",
     .block = BT_BLOCK_KV,
     .blocked = 0.9,
     .running = 12,
     .waiting = 40,
     .kv_used = 99,
     .busy = 0.98,
     .flops = 0.1,
     .bytes = 0.7,
     .want = BT_BOTTLENECK_KV},
    {.name = "its twin, max_seqs",
     .block = BT_BLOCK_SEQS,
     .blocked = 0.9,
     .running = 12,
     .waiting = 40,
     .kv_used = 40,
     .busy = 0.98,
     .flops = 0.1,
     .bytes = 0.7,
     .want = BT_BOTTLENECK_MAX_SEQS},
    {.name = "kv full, one waits all the time",
     .block = BT_BLOCK_KV,
     .blocked = 1.0,
     .running = 60,
     .waiting = 1,
     .kv_used = 99,
     .busy = 0.98,
     .bytes = 0.7,
     .want = BT_BOTTLENECK_KV},
    {.name = "kv full for a moment, many wait",
     .block = BT_BLOCK_KV,
     .blocked = 0.05,
     .running = 12,
     .waiting = 100,
     .kv_used = 99,
     .busy = 0.98,
     .bytes = 0.7,
     .want = BT_BOTTLENECK_KV},
    {.name = "kv full for a moment, few wait",
     .block = BT_BLOCK_KV,
     .blocked = 0.05,
     .running = 12,
     .waiting = 2,
     .kv_used = 99,
     .busy = 0.98,
     .bytes = 0.7,
     .want = BT_BOTTLENECK_BANDWIDTH},
    {.name = "auto holds max_seqs down for kv",
     .block = BT_BLOCK_SEQS,
     .blocked = 0.9,
     .running = 12,
     .waiting = 40,
     .max_seqs = 12,
     .kv_used = 85,
     .busy = 0.98,
     .bytes = 0.7,
     .want = BT_BOTTLENECK_KV},
    {.name = "auto has not grown max_seqs yet",
     .block = BT_BLOCK_SEQS,
     .blocked = 0.9,
     .running = 12,
     .waiting = 40,
     .max_seqs = 12,
     .kv_used = 20,
     .busy = 0.98,
     .bytes = 0.7,
     .want = BT_BOTTLENECK_MAX_SEQS},
    {.name = "a queue behind a saturated device",
     .block = BT_BLOCK_SEQS,
     .blocked = 1.0,
     .running = 64,
     .waiting = 400,
     .kv_used = 60,
     .busy = 0.99,
     .flops = 0.65,
     .bytes = 0.3,
     .want = BT_BOTTLENECK_COMPUTE},
    {.name = "the token budget",
     .block = BT_BLOCK_TOKENS,
     .blocked = 0.6,
     .running = 30,
     .waiting = 20,
     .busy = 0.97,
     .flops = 0.5,
     .bytes = 0.2,
     .want = BT_BOTTLENECK_COMPUTE},
    {.name = "waiting for copies",
     .block = BT_BLOCK_SWAP,
     .blocked = 0.5,
     .running = 6,
     .swapped = 12,
     .kv_used = 90,
     .busy = 0.6,
     .bytes = 0.6,
     .want = BT_BOTTLENECK_PCIE},
    {.name = "stalled by copies while kv is named",
     .block = BT_BLOCK_KV,
     .blocked = 0.2,
     .running = 6,
     .waiting = 3,
     .swapped = 3,
     .kv_used = 90,
     .busy = 0.4,
     .stall = 0.5,
     .bytes = 0.6,
     .want = BT_BOTTLENECK_PCIE},
    {.name = "a static batch not yet over",
     .block = BT_BLOCK_WINDOW,
     .blocked = 0.9,
     .running = 12,
     .waiting = 40,
     .busy = 0.98,
     .bytes = 0.6,
     .want = BT_BOTTLENECK_BANDWIDTH},
    {.name = "a scheduling window at light load",
     .block = BT_BLOCK_WINDOW,
     .blocked = 0.2,
     .running = 1,
     .waiting = 1,
     .busy = 0.3,
     .bytes = 0.6,
     .want = BT_BOTTLENECK_ARRIVALS},
    {.name = "roofs unknown, decode",
     .running = 20,
     .busy = 0.97,
     .flops = -1,
     .tokens = 20,
     .want = BT_BOTTLENECK_BANDWIDTH},
    {.name = "roofs unknown, prefill",
     .running = 20,
     .busy = 0.97,
     .flops = -1,
     .tokens = 512,
     .want = BT_BOTTLENECK_COMPUTE},
    {.name = "roofs unknown, host",
     .running = 20,
     .busy = 0.4,
     .host = 0.5,
     .flops = -1,
     .tokens = 20,
     .want = BT_BOTTLENECK_HOST},
};

Test(bottleneck, each_situation_has_its_name)
{
    for (size_t i = 0; i < sizeof situations / sizeof *situations; i++) {
        const struct situation *c = &situations[i];
        bool known = c->flops >= 0;
        struct bt_metrics *m = create(&(struct bt_metrics_opts){
            .n_replicas = 1,
            .exact_max = 10,
            .itl_exact_max = 10,
            .peak_flops_per_s = known ? 1e14 : 0,
            .peak_bytes_per_s = known ? 1e12 : 0,
        });
        struct bt_gauge g = {.n_running = c->running,
                             .n_waiting = c->waiting,
                             .n_swapped = c->swapped,
                             .kv_blocks_total = 100,
                             .kv_blocks_used = c->kv_used,
                             .max_seqs = c->max_seqs > 0 ? c->max_seqs : 64,
                             .max_seqs_config = 64,
                             .block = c->block};
        int32_t n = c->running + c->waiting + c->swapped;
        for (int32_t k = 0; k < n + 1; k++) {
            bt_metrics_arrive(m, 0);
        }
        bt_metrics_gauge(m, 0, 0, &g);
        g.n_waiting = g.n_swapped = 0;
        g.block = BT_BLOCK_NONE;
        bt_metrics_gauge(m, 0, (int64_t)(c->blocked * 1e9), &g);
        struct bt_step_usage u = {
            .done_ns = SEC,
            .busy_ns = (int64_t)(c->busy * 1e9),
            .host_ns = (int64_t)(c->host * 1e9),
            .flops = known ? (int64_t)(c->flops * c->busy * 1e14) : 0,
            .bytes = known ? (int64_t)(c->bytes * c->busy * 1e12) : 0,
            .n_steps = 50,
            .n_seqs = c->running,
            .n_decode_tokens = 50 * c->tokens,
        };
        bt_metrics_step(m, 0, &u);
        if (c->stall > 0) {
            struct bt_step_usage stall = {.done_ns = (int64_t)(c->stall * 1e9), .swap_stall = true};
            bt_metrics_step(m, 0, &stall);
        }
        struct bt_summary *s = bt_arena_take(&arena, sizeof *s);
        bt_metrics_finish(m, SEC, n + 1, 0, s);
        cr_expect_eq(s->bottleneck, c->want, "%s: %s, expected %s", c->name,
                     bt_bottleneck_name(s->bottleneck), bt_bottleneck_name(c->want));
        cr_expect_eq(s->windows[0].bottleneck, c->want, "%s, window", c->name);
    }
}

/* A serving loop small enough to check by eye: every step gives each resident sequence a token; a
 * sequence holds `blocks` KV blocks while it is resident. Step time = fixed (weights) + per
 * sequence, as decode does. */
struct serving {
    int32_t max_seqs, n_blocks;
};

enum { PEAK_N = 6000, SEQ_TOKENS = 100, SEQ_BLOCKS = 20 };

/* Two minutes at 4 requests a second, two at 13, four at 4. */
static int32_t peak_arrivals(int64_t *t)
{
    struct bt_rng r;
    bt_rng_init(&r, 18, "arrival", 0);
    int32_t n = 0;
    for (double now_s = 0;;) {
        double rate = now_s >= 120 && now_s < 240 ? 13.0 : 4.0;
        now_s += bt_rng_exponential(&r) / rate;
        if (now_s >= 480) {
            return n;
        }
        cr_assert_lt(n, PEAK_N);
        t[n++] = (int64_t)(now_s * 1e9);
    }
}

struct seq {
    int64_t arrival_ns, scheduled_ns, first_ns, last_ns;
    int32_t n_tokens;
};

static void serve_gauge(struct bt_metrics *m, const struct serving *c, int64_t now_ns,
                        int32_t n_run, int32_t n_wait)
{
    struct bt_gauge g = {.n_running = n_run,
                         .n_waiting = n_wait,
                         .kv_blocks_total = c->n_blocks,
                         .kv_blocks_used = n_run * SEQ_BLOCKS,
                         .kv_slots_used = (int64_t)n_run * SEQ_BLOCKS * 16,
                         .kv_tokens = (int64_t)n_run * SEQ_BLOCKS * 15,
                         .max_seqs = c->max_seqs,
                         .max_seqs_config = c->max_seqs};
    if (n_wait > 0) {
        g.block = n_run == c->max_seqs ? BT_BLOCK_SEQS : BT_BLOCK_KV;
    }
    bt_metrics_gauge(m, 0, now_ns, &g);
}

static struct bt_summary *serve(const struct serving *c)
{
    static int64_t arrival[PEAK_N];
    static struct seq run[1024];
    int32_t n = peak_arrivals(arrival);
    struct bt_metrics *m = create(&(struct bt_metrics_opts){
        .n_replicas = 1, .peak_flops_per_s = 3e14, .peak_bytes_per_s = 2e12, .window_ns = 5 * SEC});
    int32_t n_arrived = 0, n_admitted = 0, n_run = 0;
    int64_t now_ns = 0;
    while (n_arrived < n || n_run > 0) {
        if (n_run == 0 && n_admitted == n_arrived) {
            now_ns = arrival[n_arrived];
        }
        while (n_arrived < n && arrival[n_arrived] <= now_ns) {
            bt_metrics_arrive(m, arrival[n_arrived++]);
        }
        while (n_admitted < n_arrived && n_run < c->max_seqs &&
               (n_run + 1) * SEQ_BLOCKS <= c->n_blocks) {
            run[n_run++] =
                (struct seq){.arrival_ns = arrival[n_admitted++], .scheduled_ns = now_ns};
        }
        serve_gauge(m, c, now_ns, n_run, n_arrived - n_admitted);
        struct bt_step_usage u = {.start_ns = now_ns,
                                  .done_ns = now_ns + 13 * MS + n_run * MS / 5,
                                  .flops = (int64_t)(n_run * 2.6e10),
                                  .bytes = (int64_t)(1.4e10 + n_run * 2.5e8),
                                  .n_seqs = n_run,
                                  .n_decode_tokens = n_run};
        u.busy_ns = u.done_ns - u.start_ns;
        now_ns = u.done_ns;
        bt_metrics_step(m, 0, &u);
        for (int32_t i = n_run - 1; i >= 0; i--) {
            run[i].first_ns = run[i].n_tokens == 0 ? now_ns : run[i].first_ns;
            if (++run[i].n_tokens == SEQ_TOKENS) {
                struct bt_req_record r = {.arrival_ns = run[i].arrival_ns,
                                          .scheduled_ns = run[i].scheduled_ns,
                                          .first_token_ns = run[i].first_ns,
                                          .last_token_ns = now_ns,
                                          .end_ns = now_ns,
                                          .gap_max_ns = 13 * MS,
                                          .n_output = SEQ_TOKENS};
                bt_metrics_end(m, &r);
                run[i] = run[--n_run];
            }
        }
    }
    struct bt_summary *s = bt_arena_take(&arena, sizeof *s);
    bt_metrics_finish(m, now_ns, 0, 0, s);
    return s;
}

/* KV for 20 sequences against max_seqs 20: the same latencies, other names, in the peak's windows
 * only. More KV (or seats) cures it. */
Test(bottleneck, an_evening_peak_is_told_from_its_twin)
{
    static const struct {
        const char *name;
        struct serving config;
        enum bt_bottleneck want;
    } twins[] = {
        {"kv", {.max_seqs = 256, .n_blocks = 20 * SEQ_BLOCKS}, BT_BOTTLENECK_KV},
        {"max_seqs", {.max_seqs = 20, .n_blocks = 256 * SEQ_BLOCKS}, BT_BOTTLENECK_MAX_SEQS},
    };
    struct bt_summary *cured =
        serve(&(struct serving){.max_seqs = 256, .n_blocks = 40 * SEQ_BLOCKS});
    double e2e_p99_s[2];
    for (int k = 0; k < 2; k++) {
        struct bt_summary *s = serve(&twins[k].config);
        e2e_p99_s[k] = s->e2e.p99_s;
        cr_expect_eq(s->bottleneck, twins[k].want, "%s: overall %s", twins[k].name,
                     bt_bottleneck_name(s->bottleneck));
        int32_t n_peak = 0;
        for (int32_t i = 0; i < s->n_windows; i++) {
            const struct bt_window *w = &s->windows[i];
            double blocked = k == 0 ? w->kv_blocked_fraction : w->seqs_blocked_fraction;
            cr_expect_eq(k == 1 ? w->kv_blocked_fraction : w->seqs_blocked_fraction, 0.0);
            if (blocked > 0.3) {
                cr_expect_eq(w->bottleneck, twins[k].want, "%s: window %d %s", twins[k].name, i,
                             bt_bottleneck_name(w->bottleneck));
                n_peak++;
            }
            if (blocked < 0.02) {
                cr_expect_neq(w->bottleneck, twins[k].want, "%s: window %d", twins[k].name, i);
            }
        }
        cr_expect(n_peak >= 20 && n_peak <= 40, "%d windows", n_peak);
        cr_expect_gt(s->e2e.p99_s, 3 * cured->e2e.p99_s);
        cr_expect_lt(s->flops_utilization, 0.5);
        cr_expect_lt(s->bandwidth_utilization, 0.7);
        cr_expect_lt(s->little_error, 1e-9);
    }
    cr_expect_float_eq(e2e_p99_s[0], e2e_p99_s[1], 1e-9);
    cr_expect_neq(cured->bottleneck, BT_BOTTLENECK_KV);
    cr_expect_lt(cured->kv_blocked_fraction, 0.02);
}
