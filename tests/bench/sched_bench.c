/* The scheduler's own speed: host time of a sequence in a step, and of a step.
 *
 * Every case runs one scheduler, submits, admissions and prefill included, against an executor that
 * answers at once: each sequence that is due emits one token. Times are of the processor, so that a
 * busy machine shows less. Prints a JSON object a case: median of the repeats and their spread. A
 * case's name as argument runs that one alone.
 */
#include "engine/core/order.h"
#include "engine/core/rng.h"
#include "engine/core/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 5, OUTPUT = 200, PROMPT = 300 };

struct bench_case {
    const char *name;
    int32_t batch;
    int32_t n_requests;
    int32_t n_blocks; /* 0: plenty */
    bool prefix;
    bool metrics;
    int32_t k;
};

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "sched_bench: %s\n", what);
    exit(1);
}

struct counts {
    int64_t steps, seq_steps, finished;
};

static void on_end(void *ctx, const struct bt_req_record *record)
{
    struct counts *c = ctx;
    c->finished += record->outcome == BT_OUTCOME_FINISHED;
}

static void answer(const struct bt_step_plan *plan, struct bt_step_result *result, int64_t t)
{
    result->step_id = plan->step_id;
    result->start_ns = t;
    result->done_ns = t + 20000000;
    result->busy_ns = 20000000;
    for (int32_t i = 0; i < plan->n_seqs; i++) {
        const struct bt_plan_seq *ps = &plan->seqs[i];
        bool emits = (ps->flags & BT_SEQ_EMITS) != 0;
        result->seqs[i] = (struct bt_result_seq){.n_emitted = emits};
    }
}

/* Time of one whole run in ns. */
static double run_once(const struct bench_case *b, struct counts *c)
{
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct bt_error err = {0};
    struct bt_metrics *metrics = NULL;
    struct bt_metrics_opts mo = {.n_replicas = 1};
    if (b->metrics && bt_metrics_create(&arena, &mo, &metrics, &err) != BT_OK) {
        die(err.msg);
    }
    *c = (struct counts){0};
    struct bt_sched_opts o = {
        .max_seqs = b->batch,
        .max_batched_tokens = b->batch + 2048,
        .chunked_prefill = true,
        .max_model_len = 4096,
        .n_blocks = b->n_blocks != 0 ? b->n_blocks : b->batch * 64,
        .block_tokens = 16,
        .prefix_cache = b->prefix,
        .inflight_max = 1,
        .spec.k = b->k,
        .metrics = metrics,
        .on_end = on_end,
        .ctx = c,
    };
    struct bt_sched *s;
    if (bt_sched_create(&arena, &o, &s, &err) != BT_OK) {
        die(err.msg);
    }
    struct bt_result_seq *rows = calloc((size_t)b->batch, sizeof *rows);
    uint32_t *tickets = calloc((size_t)b->batch, sizeof *tickets);
    struct bt_step_result result = {.seqs = rows, .copies_done = tickets};
    uint64_t hashes[PROMPT / 16];
    for (uint64_t i = 0; i < PROMPT / 16; i++) {
        hashes[i] = bt_hash_u64(i);
    }
    struct bt_req_handle h;
    int64_t t = 0;
    int32_t submitted = 0;
    double start = now_ns();
    for (;;) {
        struct bt_sched_state state;
        bt_sched_get_state(s, &state);
        for (; submitted < b->n_requests && state.n_waiting < 4; submitted++, state.n_waiting++) {
            struct bt_req_spec spec = {
                .user = (uint64_t)submitted,
                .arrival_ns = t,
                .n_prompt = PROMPT,
                .max_new_tokens = OUTPUT + submitted % 64,
                .hashes = b->prefix ? hashes : NULL,
                .n_hashes = PROMPT / 16,
                .hash_tokens = 16,
            };
            (void)bt_sched_submit(s, &spec, t, &h);
        }
        const struct bt_step_plan *plan;
        int64_t wake_ns;
        if (bt_sched_plan(s, t, &plan, &wake_ns) != BT_PLAN_READY) {
            break;
        }
        c->steps++;
        c->seq_steps += plan->n_seqs;
        answer(plan, &result, t);
        t = result.done_ns;
        bt_sched_complete(s, &result, t);
    }
    double spent = now_ns() - start;
    free(rows);
    free(tickets);
    bt_arena_fini(&arena);
    return spent;
}

int main(int argc, char **argv)
{
    static const struct bench_case cases[] = {
        {.name = "decode_1", .batch = 1, .n_requests = 500},
        {.name = "decode_8", .batch = 8, .n_requests = 2000},
        {.name = "decode_64", .batch = 64, .n_requests = 8000},
        {.name = "decode_256", .batch = 256, .n_requests = 20000},
        {.name = "decode_1024", .batch = 1024, .n_requests = 40000},
        {.name = "metrics_1", .batch = 1, .n_requests = 500, .metrics = true},
        {.name = "metrics_256", .batch = 256, .n_requests = 20000, .metrics = true},
        {.name = "prefix_256", .batch = 256, .n_requests = 20000, .prefix = true, .metrics = true},
        {.name = "preempt_256",
         .batch = 256,
         .n_requests = 20000,
         .n_blocks = 4000,
         .metrics = true},
        {.name = "speculative_64", .batch = 64, .n_requests = 8000, .k = 4, .metrics = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) != 0) {
            continue;
        }
        double ns[REPEATS];
        struct counts c = {0};
        for (int32_t r = 0; r < REPEATS; r++) {
            double spent = run_once(&cases[i], &c);
            ns[r] = spent / (double)c.seq_steps;
            if (c.finished != cases[i].n_requests) {
                die("a request was lost");
            }
        }
        qsort(ns, REPEATS, sizeof *ns, bt_compare_doubles);
        printf("{\"case\": \"%s\", \"ns_per_seq_step\": %.2f, \"spread\": %.2f, \"ns_per_step\": "
               "%.1f, \"steps\": %lld, \"seqs_per_step\": %.1f}\n",
               cases[i].name, ns[REPEATS / 2], ns[REPEATS - 1] - ns[0],
               ns[REPEATS / 2] * (double)c.seq_steps / (double)c.steps, (long long)c.steps,
               (double)c.seq_steps / (double)c.steps);
    }
    return 0;
}
