/* One scheduler, several executors: the plans of a real run, replayed from its recording, are the
 * same plans. The run has preemption by swap, prefix hits, speculation and timeouts. */
#include "tests/engine/cpu/engine_rig.h"
#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 20, SHARED = 64 };

static void tune(struct bt_sched_opts *o)
{
    o->preempt = BT_PREEMPT_SWAP;
    o->max_batched_tokens = 64;
    o->spec.off_above_batch = 10;
    o->spec.on_below_batch = 8;
    o->spec.k_adaptive = true;
    o->spec.draft_cost_ratio = 0.3;
}

/* Serves twenty requests with a common prefix on a pool too small for them. */
static void real_run(struct bt_recording *recording, struct bt_summary *summary)
{
    struct bt_model m;
    struct bt_model draft;
    rig_load(&m, "berth-1m", NULL);
    struct bt_model_opts coarse = {.weights = BT_WEIGHT_INT4_G32};
    rig_load(&draft, "berth-1m", &coarse); /* near enough to be right, far enough to be wrong */
    struct rig_requests r = {0};
    int32_t text[2048];
    rig_test_tokens(9000, 2048, text);
    for (int32_t i = 0; i < N; i++) {
        int32_t prompt[256];
        int32_t n = SHARED + 5 + 3 * i;
        for (int32_t j = 0; j < n; j++) {
            prompt[j] = j < SHARED ? text[j] : text[j + 61 * i];
        }
        struct bt_gen_request *q = rig_add(&r, prompt, n, 24);
        q->ignore_eos = i % 2 == 0;
        if (i % 3 == 0) {
            q->sampling = (struct bt_sampling){.temperature = 1.0f, .seed = (uint64_t)i};
        }
    }
    struct bt_executor_opts eo = {
        .model = &m,
        .draft = &draft,
        .spec_k = 3,
        .max_seqs = N,
        .n_blocks = 48,
        .n_host_blocks = 200,
    };
    struct rig_outcome out;
    rig_serve(&eo, &r, tune, recording, &out);
    *summary = *out.summary;
    free(out.summary);
    rig_requests_fini(&r);
    bt_model_fini(&draft);
    bt_model_fini(&m);
}

static enum bt_code replay(const struct bt_recording *r, uint64_t *hash, struct bt_error *err)
{
    struct bt_executor x;
    cr_assert_eq(bt_replay_executor_create(r, &x, err), BT_OK);
    enum bt_code code = bt_recording_replay(r, &x, NULL, hash, err);
    x.ops->destroy(x.self);
    return code;
}

Test(cpu_replay, a_recorded_run_makes_the_same_plans_again)
{
    struct bt_error err = {0};
    struct bt_recording recording;
    struct bt_summary *summary = calloc(1, sizeof *summary);
    real_run(&recording, summary);
    cr_assert_gt(summary->preempt_swap, 0);
    cr_assert_gt(summary->prefix_hit_fraction, 0.0);
    cr_assert_gt(summary->spec_accepted, 0);
    cr_assert_lt(summary->spec_accepted, summary->spec_proposed);
    cr_assert_gt(recording.n_completes, 20);
    uint64_t hash = 0;
    cr_assert_eq(replay(&recording, &hash, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(hash, recording.plan_hash);
    cr_assert_neq(hash, 0);

    /* Through a file. */
    char path[512];
    (void)snprintf(path, sizeof path, "%s/recording_test.jsonl", BT_TEST_BINARY_DIR);
    struct bt_recording again;
    cr_assert_eq(bt_recording_write(&recording, path, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_recording_read(&again, path, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(again.n_events, recording.n_events);
    cr_assert_eq(memcmp(&again.sched, &recording.sched, sizeof again.sched), 0);
    hash = 0;
    cr_assert_eq(replay(&again, &hash, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(hash, recording.plan_hash);

    /* One accepted token more, and the plans are others. */
    for (int64_t i = 0; i < again.n_seqs; i++) {
        struct bt_result_seq *s = &again.seqs[i];
        if (s->n_accepted == 0 && s->n_emitted == 1 && i > again.n_seqs / 2) {
            s->eos = true;
            break;
        }
    }
    hash = 0;
    enum bt_code code = replay(&again, &hash, &err);
    cr_assert(code != BT_OK || hash != recording.plan_hash);
    bt_recording_fini(&again);
    bt_recording_fini(&recording);
    free(summary);
    (void)remove(path);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    (void)fputs(text, f);
    (void)fclose(f);
}

Test(cpu_replay, a_damaged_recording_is_refused_with_its_line)
{
    struct bt_recording r;
    struct bt_sched_opts o = {.max_seqs = 1};
    struct bt_error err = {0};
    char path[512];
    char text[4096];
    (void)snprintf(path, sizeof path, "%s/recording_bad_test.jsonl", BT_TEST_BINARY_DIR);
    bt_recording_init(&r, "cpu", &o);
    cr_assert_eq(bt_recording_write(&r, path, &err), BT_OK, "%s", err.msg);
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 512, f);
    (void)fclose(f);
    text[n] = '\0';
    char *second = strchr(text, '\n') + 1;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"{\"plan\":0}\n", ":2: \"now\" must be an integer"},
        {"{\"plan\":-2,\"now\":0}\n", ":2: \"plan\" must be an integer in -1.."},
        {"{\"submit\":0,\"now\":5,\"arrival\":6}\n", ":2: \"arrival\" must be an integer in 0..5"},
        {"{\"complete\":0,\"now\":5,\"start\":0,\"busy\":1,\"host\":0,\"flops\":0,\"bytes\":0,"
         "\"seqs\":[[1,0]],\"copies\":[]}\n",
         ":2: seqs[0]: expected"},
        {"nonsense\n", ":2: not a JSON object"},
        {"", "ends after line 1"},
        {"{\"end\":0,\"plan_hash\":\"xyz\"}\n", ":2: \"plan_hash\": expected 16 hexadecimal"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_recording bad;
        memcpy(second, cases[i].line, strlen(cases[i].line) + 1);
        write_text(path, text);
        err = (struct bt_error){0};
        cr_assert_eq(bt_recording_read(&bad, path, &err), BT_ERR_INPUT, "case %zu", i);
        cr_assert_not_null(strstr(err.msg, cases[i].says), "\"%s\" does not say \"%s\"", err.msg,
                           cases[i].says);
    }
    write_text(path, "{\"recording\":2}\n");
    err = (struct bt_error){0};
    cr_assert_eq(bt_recording_read(&r, path, &err), BT_ERR_INPUT);
    cr_assert_not_null(strstr(err.msg, ":1: \"recording\" must be an integer in 1..1"));
    (void)remove(path);
    err = (struct bt_error){0};
    cr_assert_eq(bt_recording_read(&r, path, &err), BT_ERR_IO);
}
