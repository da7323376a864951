/* What one step more or less of each knob does to the best plan, and how much more it could carry.
 */
#include "sim/plan/parallel.h"
#include "sim/plan/rate.h"
#include "sim/plan/search.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHANGES = 48 };

static const double CAPACITY_WIDTH = 0.04;

struct change {
    const struct bt_config_field *field;
    char value[BT_NAME_BYTES];
    int32_t replicas;
    struct bt_config config;
    bool possible;
};

struct study {
    struct bt_search *s;
    const struct bt_seat *seat;
    struct change changes[MAX_CHANGES]; /* the last one is the plan itself */
    int32_t n;
    struct bt_plan_sensitivity results[MAX_CHANGES];
};

static void add(struct study *st, const char *path, const char *value)
{
    const struct bt_config_field *f = bt_config_find(path);
    BT_ASSERT(f != NULL);
    BT_ASSERT(st->n < MAX_CHANGES);
    const struct bt_config *base = &st->seat->c->config;
    char now[BT_PATH_BYTES];
    bt_config_get(base, f, now, sizeof now);
    if (strcmp(now, value) == 0) {
        return;
    }
    struct change *c = &st->changes[st->n];
    *c = (struct change){.field = f, .replicas = st->seat->c->replicas, .config = *base};
    snprintf(c->value, sizeof c->value, "%s", value);
    if (bt_config_set(&c->config, f, value, NULL, NULL) == BT_OK) {
        st->n++;
    }
}

static void add_scaled(struct study *st, const char *path, int64_t value, int64_t num, int64_t den)
{
    char text[32];
    int64_t v = value * num / den;
    if (v >= 1) {
        snprintf(text, sizeof text, "%" PRId64, v);
        add(st, path, text);
    }
}

static void add_replicas(struct study *st, int32_t replicas)
{
    if (replicas < 1) {
        return;
    }
    char text[32];
    snprintf(text, sizeof text, "%" PRId32, replicas);
    int32_t before = st->n;
    add(st, "replicas", text);
    if (st->n > before) {
        st->changes[before].replicas = replicas;
        st->changes[before].config.replicas = st->seat->c->config.replicas;
    }
}

static void list_changes(struct study *st)
{
    const struct bt_plan_candidate *c = st->seat->c;
    static const char *const preempts[] = {"recompute", "swap", "auto"};
    add_replicas(st, c->replicas - 1);
    add_replicas(st, c->replicas + 1);
    /* The default is 16-bit. */
    bool narrow = c->config.kv_dtype == BT_KV_INT8 || c->config.kv_dtype == BT_KV_FP8;
    add(st, "kv.dtype", narrow ? "fp16" : "int8");
    add_scaled(st, "kv.block_tokens", c->config.kv_block_tokens, 1, 2);
    add_scaled(st, "kv.block_tokens", c->config.kv_block_tokens, 2, 1);
    int64_t seqs = c->config.max_seqs == BT_AUTO ? 256 : c->config.max_seqs;
    add_scaled(st, "batching.max_seqs", seqs, 1, 2);
    add_scaled(st, "batching.max_seqs", seqs, 1, 8);
    add_scaled(st, "batching.max_batched_tokens", c->config.max_batched_tokens, 1, 4);
    add_scaled(st, "batching.max_batched_tokens", c->config.max_batched_tokens, 4, 1);
    add(st, "batching.chunked_prefill", c->config.chunked_prefill ? "off" : "on");
    add(st, "batching.window_ms", "0");
    add_scaled(st, "batching.inflight", c->config.inflight, 2, 1);
    add(st, "prefix_cache", c->config.prefix_cache ? "off" : "on");
    for (int32_t i = 0; i < 3; i++) {
        add(st, "preempt", preempts[i]);
    }
    if (c->config.spec.kind != BT_SPEC_NONE) {
        add(st, "spec", "none");
    }
}

static enum bt_code holds_with(struct study *st, const struct bt_trial *base, int32_t replicas,
                               bool *holds, struct bt_error *err)
{
    struct bt_trial t = *base;
    t.replicas = replicas;
    t.to_the_end = false;
    struct bt_trial_result r;
    BT_TRY(bt_search_trial(st->s, &t, &r, NULL, err));
    *holds = r.holds;
    return BT_OK;
}

/* Least replicas for a change that does not hold with `failed` of them; 0: over twice as many. */
static enum bt_code replicas_needed(struct study *st, const struct bt_trial *base, int32_t failed,
                                    int32_t *out, struct bt_error *err)
{
    int32_t most = 2 * failed, held = 0;
    *out = 0;
    for (int32_t step = 1; held == 0 && failed < most; step *= 2) {
        int32_t n = most - failed < step ? most : failed + step;
        bool holds = false;
        BT_TRY(holds_with(st, base, n, &holds, err));
        held = holds ? n : 0;
        failed = holds ? failed : n;
    }
    while (held - failed > 1) {
        int32_t mid = failed + (held - failed) / 2;
        bool holds = false;
        BT_TRY(holds_with(st, base, mid, &holds, err));
        held = holds ? mid : held;
        failed = holds ? failed : mid;
    }
    *out = held;
    return BT_OK;
}

static enum bt_code capacity(struct study *st, const struct bt_trial *base, double *out,
                             struct bt_error *err)
{
    struct bt_search_memory *memory = NULL;
    BT_TRY(bt_search_memory_take(st->s, &memory, err));
    struct bt_trial t = *base;
    t.memory = &memory->arena;
    struct bt_max_rate rate;
    enum bt_code code = bt_rate_search(st->s->spec, st->s->env, &t, CAPACITY_WIDTH, &rate, err);
    bt_search_memory_give(st->s, memory);
    *out = rate.rate_req_per_s;
    return code;
}

static enum bt_code study_task(void *ctx, int64_t i, struct bt_error *err)
{
    struct study *st = ctx;
    struct change *c = &st->changes[i];
    struct bt_plan_sensitivity *out = &st->results[i];
    out->field = c->field;
    memcpy(out->value, c->value, sizeof out->value);
    out->slo_value_s = out->capacity_req_per_s = out->cost_usd_per_h = NAN;
    struct bt_deploy d, degrade;
    struct bt_error why = {0};
    enum bt_code code = bt_plan_deploy(st->s->env, &c->config, &d, &degrade, &why);
    char text[160];
    c->possible =
        code == BT_OK && st->s->env->supported(st->s->env->ctx, c->config.stack, &d.gpu, d.weights,
                                               d.activations, d.kv, text, sizeof text);
    if (code == BT_ERR_NOMEM) {
        *err = why;
        return code;
    }
    if (!c->possible) {
        bt_deploy_fini(&d);
        bt_deploy_fini(&degrade);
        return BT_OK;
    }
    struct bt_trial t = {.deploy = &d,
                         .degrade_deploy = d.config.degrade_model[0] != '\0' ? &degrade : NULL,
                         .stream = &st->s->streams[0],
                         .replicas = c->replicas,
                         .rate_scale = 1,
                         .step_scale = 1,
                         .seed = st->s->spec->seed,
                         .to_the_end = true};
    struct bt_trial_result r;
    code = bt_search_trial(st->s, &t, &r, NULL, err);
    if (code == BT_OK) {
        out->holds = r.holds;
        out->slo_value_s = r.slo_value_s[0];
    }
    if (code == BT_OK && st->s->streams[0].closed_users == 0) {
        code = capacity(st, &t, &out->capacity_req_per_s, err);
    }
    int32_t needed = c->replicas;
    if (code == BT_OK && !r.holds) {
        code = replicas_needed(st, &t, c->replicas, &needed, err);
    }
    if (needed > 0) {
        out->cost_usd_per_h = st->seat->price * (needed + c->config.redundancy) * c->config.tp;
    }
    bt_deploy_fini(&d);
    bt_deploy_fini(&degrade);
    return code;
}

enum bt_code bt_search_sensitivity(struct bt_search *s, struct bt_seat *seat,
                                   struct bt_plan_answer *answer, struct bt_error *err)
{
    struct study *st = calloc(1, sizeof *st);
    if (st == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for the sensitivity");
    }
    st->s = s;
    st->seat = seat;
    list_changes(st);
    int32_t n_changes = st->n;
    st->changes[st->n++] = (struct change){.field = bt_config_find("replicas"),
                                           .replicas = seat->c->replicas,
                                           .config = seat->c->config};
    enum bt_code code = bt_parallel_for(s->spec->jobs, st->n, study_task, st, err);
    if (code == BT_OK) {
        answer->sensitivity = calloc((size_t)st->n, sizeof *answer->sensitivity);
        if (answer->sensitivity == NULL) {
            code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__,
                                "plan: no memory for the sensitivity");
        }
    }
    for (int32_t i = 0; code == BT_OK && i < n_changes; i++) {
        if (st->changes[i].possible) {
            answer->sensitivity[answer->n_sensitivity++] = st->results[i];
        }
    }
    if (code == BT_OK) {
        double capacity = st->results[n_changes].capacity_req_per_s;
        seat->c->capacity_req_per_s = capacity;
        seat->c->headroom = capacity / answer->rate_req_per_s - 1;
    }
    free(st);
    return code;
}
