/* The highest rate that a configuration holds: bisection over time-compressed copies of the same
 * stream, so that every probe sees the same requests in the same order. */
#include "sim/plan/rate.h"

#include <math.h>
#include <string.h>

enum { MAX_PROBES = 40 };

struct hunt {
    const struct bt_plan_spec *spec;
    const struct bt_plan_env *env;
    struct bt_trial trial;
    struct bt_max_rate *out;
};

/* Keeps the probes in order of rate. */
static void insert_probe(struct bt_max_rate *out, const struct bt_rate_probe *p)
{
    int32_t at = out->n_probes;
    while (at > 0 && out->probes[at - 1].rate_req_per_s > p->rate_req_per_s) {
        at--;
    }
    memmove(&out->probes[at + 1], &out->probes[at],
            (size_t)(out->n_probes - at) * sizeof out->probes[0]);
    out->probes[at] = *p;
    out->n_probes++;
}

static enum bt_code probe(struct hunt *h, double scale, bool *holds, struct bt_error *err)
{
    h->trial.rate_scale = scale;
    h->trial.to_the_end = false;
    struct bt_trial_result r;
    BT_TRY(bt_trial_run(h->spec, h->env, &h->trial, &r, NULL, err));
    if (r.stopped) {
        /* Plots want the latency past the knee, not that of the part that was run. */
        h->trial.to_the_end = true;
        BT_TRY(bt_trial_run(h->spec, h->env, &h->trial, &r, NULL, err));
    }
    struct bt_rate_probe p = {.rate_req_per_s = scale * h->trial.stream->rate_req_per_s,
                              .holds = r.holds,
                              .bottleneck = r.bottleneck};
    memcpy(p.slo_value_s, r.slo_value_s, sizeof p.slo_value_s);
    memcpy(p.met_fraction, r.met_fraction, sizeof p.met_fraction);
    h->out->unservable_fraction = r.unservable_fraction;
    h->out->hopeless = h->out->hopeless || r.hopeless;
    insert_probe(h->out, &p);
    bool first_bad = !r.holds && !(h->out->first_bad_req_per_s <= p.rate_req_per_s);
    if (first_bad) {
        h->out->first_bad_req_per_s = p.rate_req_per_s;
        h->out->broken_slo = r.broken_slo;
        h->out->bottleneck = r.bottleneck;
    }
    if (r.holds && p.rate_req_per_s > h->out->rate_req_per_s) {
        h->out->rate_req_per_s = p.rate_req_per_s;
    }
    *holds = r.holds;
    return BT_OK;
}

enum bt_code bt_rate_search(const struct bt_plan_spec *spec, const struct bt_plan_env *env,
                            const struct bt_trial *trial, double relative_width,
                            struct bt_max_rate *out, struct bt_error *err)
{
    *out = (struct bt_max_rate){.first_bad_req_per_s = NAN, .broken_slo = -1};
    if (trial->stream->closed_users > 0 || !isfinite(trial->stream->rate_req_per_s)) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "--max-rate: expected requests that arrive by the clock, got %s",
                trial->stream->closed_users > 0 ? "a closed loop" : "one moment of arrival");
    }
    struct hunt h = {.spec = spec, .env = env, .trial = *trial, .out = out};
    double good = 0, bad = 0;
    double scale = 1;
    /* Doubling or halving brackets the edge. */
    while (out->n_probes < MAX_PROBES && (good == 0 || bad == 0) && !out->hopeless) {
        bool holds = false;
        BT_TRY(probe(&h, scale, &holds, err));
        if (holds) {
            good = scale;
            scale *= 2;
        } else {
            bad = scale;
            scale /= 2;
        }
        if (scale < 1e-4 || scale > 1e6) {
            break;
        }
    }
    if (good == 0 || bad == 0) {
        return BT_OK;
    }
    while (bad / good > 1 + relative_width && out->n_probes < MAX_PROBES) {
        bool holds = false;
        double mid = sqrt(good * bad);
        BT_TRY(probe(&h, mid, &holds, err));
        if (holds) {
            good = mid;
        } else {
            bad = mid;
        }
    }
    return BT_OK;
}

enum bt_code bt_plan_max_rate(const struct bt_plan_spec *spec, const struct bt_plan_env *env,
                              const struct bt_deploy *deploy,
                              const struct bt_deploy *degrade_deploy, int32_t replicas,
                              double relative_width, struct bt_max_rate *out, struct bt_error *err)
{
    struct bt_source *source = NULL;
    BT_TRY(env->make_source(env->ctx, spec->seed, &source, err));
    struct bt_stream stream;
    enum bt_code code = bt_stream_read(source, &stream, err);
    bt_source_destroy(source);
    if (code != BT_OK) {
        return code;
    }
    struct bt_arena memory;
    bt_arena_init(&memory, 0);
    struct bt_trial trial = {.deploy = deploy,
                             .degrade_deploy = degrade_deploy,
                             .stream = &stream,
                             .replicas = replicas,
                             .rate_scale = 1,
                             .step_scale = 1,
                             .seed = spec->seed,
                             .memory = &memory};
    code = bt_rate_search(spec, env, &trial, relative_width, out, err);
    bt_arena_fini(&memory);
    bt_stream_fini(&stream);
    return code;
}
