#include "cli/step_diff.h"

#include "cli/out.h"
#include "engine/core/limits.h"
#include "sim/executor_sim.h"

#include <math.h>
#include <string.h>

static const char *const kind_names[BT_STEP_KINDS] = {
    "decode 1",     "decode 2-4", "decode 5-8", "decode 9-16", "decode 17-32",    "decode 33-64",
    "decode 65 on", "prefill",    "mixed",      "verify",      "verify, prefill", NULL,
};

enum { KIND_PREFILL = 7, KIND_MIXED, KIND_VERIFY, KIND_VERIFY_MIXED };

static int32_t kind_of(const struct bt_step_plan *plan, const struct bt_batch *b)
{
    if (plan->speculative) {
        return b->n_prefill > 0 ? KIND_VERIFY_MIXED : KIND_VERIFY;
    }
    if (b->n_prefill > 0) {
        return b->n_decode > 0 ? KIND_MIXED : KIND_PREFILL;
    }
    int32_t kind = b->n_decode > 1;
    for (int32_t most = 4; kind > 0 && kind < KIND_PREFILL - 1 && b->n_decode > most; most *= 2) {
        kind++;
    }
    return kind;
}

/* What the cost model says of a step that is in flight. */
struct predicted {
    int32_t kind; /* -1: nothing is computed */
    double s, tokens;
};

/* An executor that looks on while another one answers. */
struct watch {
    const struct bt_executor *inner; /* borrowed */
    const struct bt_cost *cost;      /* borrowed */
    struct bt_step_diff *diff;
    struct predicted flight[BT_MAX_INFLIGHT]; /* oldest first */
    int32_t n_flight;
};

static struct predicted predict(const struct bt_cost *cost, const struct bt_step_plan *plan)
{
    if (plan->n_seqs == 0) {
        return (struct predicted){.kind = -1};
    }
    struct bt_batch b;
    struct bt_cost_parts parts;
    bt_sim_batch(plan, &b);
    cost->ops->step(cost->self, &b, &parts);
    return (struct predicted){
        .kind = kind_of(plan, &b),
        .s = (double)parts.time_ps * 1e-12 + (double)parts.host_ns * 1e-9,
        .tokens = b.n_decode_tokens + b.n_prefill_tokens,
    };
}

static enum bt_submit submit(void *self, const struct bt_step_plan *plan, int64_t now_ns,
                             struct bt_step_result *result, struct bt_error *err)
{
    struct watch *w = self;
    enum bt_submit s = w->inner->ops->submit(w->inner->self, plan, now_ns, result, err);
    if (s == BT_SUBMIT_QUEUED) {
        BT_ASSERT(w->n_flight < BT_MAX_INFLIGHT);
        w->flight[w->n_flight++] = predict(w->cost, plan);
    }
    return s;
}

static enum bt_code wait(void *self, struct bt_step_result *result, struct bt_error *err)
{
    struct watch *w = self;
    BT_TRY(w->inner->ops->wait(w->inner->self, result, err));
    BT_ASSERT(w->n_flight > 0);
    struct predicted p = w->flight[0];
    w->n_flight--;
    memmove(w->flight, w->flight + 1, (size_t)w->n_flight * sizeof p);
    if (p.kind >= 0) {
        struct bt_step_kind *k = &w->diff->kinds[p.kind];
        double measured = (double)result->busy_ns * 1e-9;
        k->n++;
        k->measured_s += measured;
        k->predicted_s += p.s;
        k->tokens += p.tokens;
        k->abs_error_s += fabs(p.s - measured);
    }
    return BT_OK;
}

static void destroy(void *self)
{
    (void)self; /* on the caller's stack */
}

enum bt_code bt_step_diff_add(struct bt_step_diff *d, const struct bt_recording *r,
                              const struct bt_cost *cost, struct bt_error *err)
{
    struct bt_executor inner = {0};
    BT_TRY(bt_replay_executor_create(r, &inner, err));
    struct watch watch = {.inner = &inner, .cost = cost, .diff = d};
    struct bt_executor_ops ops = {.name = "diff",
                                  .abi_version = BT_EXECUTOR_ABI_VERSION,
                                  .inflight_max = inner.ops->inflight_max,
                                  .submit = submit,
                                  .wait = wait,
                                  .destroy = destroy};
    struct bt_executor x = {.ops = &ops, .self = &watch};
    uint64_t hash = 0;
    enum bt_code code = bt_recording_replay(r, &x, NULL, &hash, err);
    inner.ops->destroy(inner.self);
    if (code == BT_OK && hash != r->plan_hash) {
        BT_FAIL(err, BT_ERR_INTERNAL, 0, "steps: the replayed plans differ from the recorded ones");
    }
    return code;
}

json_t *bt_step_diff_json(const struct bt_step_diff *d)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < BT_STEP_KINDS; i++) {
        const struct bt_step_kind *k = &d->kinds[i];
        if (k->n == 0) {
            continue;
        }
        double n = (double)k->n;
        json_t *row = bt_out_object();
        bt_out_set(row, "kind", bt_out_text(kind_names[i]));
        bt_out_set(row, "steps", bt_out_int(k->n));
        bt_out_set(row, "tokens_mean", bt_out_real(k->tokens / n));
        bt_out_set(row, "measured_s", bt_out_real(k->measured_s / n));
        bt_out_set(row, "predicted_s", bt_out_real(k->predicted_s / n));
        bt_out_set(row, "error_fraction", bt_out_real(k->predicted_s / k->measured_s - 1));
        bt_out_set(row, "abs_error_fraction", bt_out_real(k->abs_error_s / k->measured_s));
        bt_out_append(rows, row);
    }
    return rows;
}
