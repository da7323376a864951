#include "cli/real.h"

#include "cli/backends.h"
#include "cli/progress.h"
#include "engine/core/rng.h"
#include "engine/cpu/host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the configuration ---- */

static enum bt_code refuse(const char *option, const char *value, const char *why,
                           struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_ARG, 0, "--%s %s: the real engine %s; a simulation can do that", option,
            value, why);
}

static enum bt_code check_config(const struct bt_config *c, const struct bt_backend *backend,
                                 struct bt_error *err)
{
    char n[32];
    if (!backend->makes_weights && strcmp(c->gpu, "host") != 0) {
        return refuse("gpu", c->gpu, "runs on host, this machine's processor", err);
    }
    if (backend->makes_weights && (c->gpu[0] == '\0' || strcmp(c->gpu, "host") == 0)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--gpu: which card of the catalog is \"%s\"?",
                bt_backend_gpu_product());
    }
    if (c->replicas != 1) {
        (void)snprintf(n, sizeof n, "%d", c->replicas);
        return refuse("replicas", c->replicas == BT_AUTO ? "auto" : n, "is one replica", err);
    }
    if (c->tp != 1) {
        (void)snprintf(n, sizeof n, "%d", c->tp);
        return refuse("tp", n, "has one processor or GPU", err);
    }
    if (strcmp(c->stack, "berth") != 0 && c->stack[0] != '\0') {
        return refuse("stack", c->stack, "is berth", err);
    }
    if (c->inflight > backend->inflight_max) {
        char why[64];
        (void)snprintf(n, sizeof n, "%d", c->inflight);
        (void)snprintf(why, sizeof why, "(%s) has at most %d in flight", backend->name,
                       backend->inflight_max);
        return refuse("inflight", n, why, err);
    }
    if (c->degrade_model[0] != '\0') {
        return refuse("degrade-model", c->degrade_model, "serves one model", err);
    }
    return BT_OK;
}

static enum bt_code check_hooks(const struct bt_world *w, struct bt_error *err)
{
    struct bt_sim_hooks *hooks = NULL;
    BT_TRY(w->env.make_hooks(w->env.ctx, &hooks, err));
    if (hooks != NULL) {
        w->env.free_hooks(w->env.ctx, hooks);
        BT_FAIL(err, BT_ERR_ARG, 0, "hooks: the real engine asks none; a simulation does");
    }
    return BT_OK;
}

/* Blocks that max_seqs sequences of the longest kind can use: a larger pool changes nothing but the
 * bookkeeping of it. */
static int64_t useful_blocks(const struct bt_deploy *d)
{
    int64_t span = (int64_t)d->max_model_len + bt_config_lookahead_tokens(&d->config);
    int64_t block = d->memory.block_tokens;
    return bt_config_max_seqs(&d->config) * ((span + block - 1) / block);
}

enum bt_code bt_real_deploy(const struct bt_world *w, const struct bt_config *c,
                            struct bt_deploy *d, struct bt_error *err)
{
    struct bt_config known = *c;
    if (known.spec.kind != BT_SPEC_NONE && known.spec.n_acceptance == 0) {
        known.spec.n_acceptance = 1; /* any: the engine does not ask for it */
        known.spec.acceptance[0] = 0.5;
    }
    struct bt_deploy none;
    BT_TRY(bt_plan_deploy(&w->env, &known, d, &none, err));
    d->config.spec = c->spec;
    return BT_OK;
}

void bt_real_default_gpu(const struct bt_world *w, const struct bt_run_opts *run,
                         struct bt_config *c)
{
    if (c->gpu[0] != '\0' || run->executor == BT_EXECUTOR_SIM) {
        return;
    }
    if (run->executor == BT_EXECUTOR_CPU) {
        (void)snprintf(c->gpu, sizeof c->gpu, "host");
        return;
    }
    const struct bt_catalog_gpu *card = NULL;
    if (bt_catalog_find_gpu(w->catalog, bt_backend_gpu_product(), "gpu", &card, NULL) == BT_OK) {
        (void)snprintf(c->gpu, sizeof c->gpu, "%s", card->gpu.name);
    }
}

enum bt_code bt_real_configure(struct bt_world *w, const struct bt_run_opts *run,
                               struct bt_config *c, struct bt_error *err)
{
    const int64_t share = 4;
    if (run->executor == BT_EXECUTOR_SIM) {
        return BT_OK;
    }
    const struct bt_backend *backend;
    BT_TRY(bt_backend_find(run->executor, &backend, err));
    bt_real_default_gpu(w, run, c);
    int64_t memory_bytes = bt_host_memory_bytes();
    if (!backend->makes_weights) {
        BT_TRY(bt_world_need_host(w, run->jobs, err));
    }
    BT_TRY(check_config(c, backend, err));
    BT_TRY(check_hooks(w, err));
    if (!bt_config_is_given(c, bt_config_find_option("inflight"))) {
        c->inflight = backend->inflight_max;
    }
    if (!bt_config_is_given(c, bt_config_find_option("host-memory")) &&
        c->host_memory_bytes > memory_bytes / share) {
        c->host_memory_bytes = memory_bytes / share;
    }
    struct bt_deploy d;
    struct bt_error why = {0};
    enum bt_code code = bt_real_deploy(w, c, &d, &why);
    if (code == BT_ERR_UNFIT) {
        return BT_OK; /* whoever opens it says so */
    }
    if (code != BT_OK) {
        *err = why;
        return code;
    }
    if (c->kv_blocks == 0 && d.memory.kv_blocks_total > useful_blocks(&d)) {
        c->kv_blocks = useful_blocks(&d);
    }
    bt_deploy_fini(&d);
    return BT_OK;
}

/* ---- open and close ---- */

static enum bt_code make_executor(struct bt_real *r, const struct bt_deploy *d,
                                  const struct bt_run_opts *run, struct bt_error *err)
{
    const struct bt_backend *backend = r->engine.backend;
    struct bt_executor_opts o = bt_engine_executor_opts(&r->engine, &r->config);
    o.block_tokens = d->sched.block_tokens;
    o.n_blocks = d->sched.n_blocks;
    o.n_host_blocks = d->sched.n_host_blocks;
    o.max_seqs = d->sched.max_seqs;
    o.max_model_len = d->sched.max_model_len;
    o.n_threads = run->jobs;
    o.clock = run->clock;
    o.requests = &r->table;
    o.max_rows = backend->makes_weights ? r->config.max_batched_tokens : 0;
    o.tune = true;
    return backend->create(&o, &r->executor, err);
}

enum bt_code bt_real_open(const struct bt_cli *cli, const struct bt_world *w,
                          const struct bt_config *config, const struct bt_run_opts *run,
                          struct bt_real *r, struct bt_error *err)
{
    *r = (struct bt_real){.config = *config};
    struct bt_deploy d;
    struct bt_error why = {0};
    enum bt_code code = bt_real_deploy(w, config, &d, &why);
    if (code == BT_ERR_UNFIT) {
        r->unfit = why;
        return BT_OK;
    }
    if (code != BT_OK) {
        *err = why;
        return code;
    }
    r->fits = true;
    const struct bt_backend *backend = NULL;
    code = bt_backend_find(run->executor, &backend, err);
    struct bt_engine_opts eo = {.config = &r->config,
                                .backend = backend,
                                .catalog =
                                    backend == NULL || !backend->makes_weights ? NULL : w->catalog,
                                .seed = run->seed};
    if (code == BT_OK) {
        code = bt_engine_load(cli, &eo, &r->engine, err);
    }
    if (code == BT_OK) {
        code = make_executor(r, &d, run, err);
    }
    bt_deploy_fini(&d);
    if (code != BT_OK) {
        bt_real_close(r);
    }
    return code;
}

void bt_real_close(struct bt_real *r)
{
    if (r->executor.ops != NULL) {
        r->executor.ops->destroy(r->executor.self);
    }
    if (r->fits) {
        bt_engine_fini(&r->engine);
    }
    *r = (struct bt_real){0};
}

/* ---- requests ---- */

struct load {
    struct bt_gen_request *requests;
    struct bt_arrival *arrivals;
    int64_t *ids; /* the workload's numbers of the requests */
    int64_t n, cap;
};

static void load_fini(struct load *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        free((void *)l->requests[i].prompt);
        free(l->requests[i].out);
    }
    free(l->requests);
    free(l->arrivals);
    free(l->ids);
    *l = (struct load){0};
}

static bool load_grow(struct load *l)
{
    if (l->n < l->cap) {
        return true;
    }
    int64_t cap = l->cap == 0 ? 256 : 2 * l->cap;
    size_t n = (size_t)cap;
    struct bt_gen_request *requests = realloc(l->requests, n * sizeof *requests);
    l->requests = requests != NULL ? requests : l->requests;
    struct bt_arrival *arrivals = realloc(l->arrivals, n * sizeof *arrivals);
    l->arrivals = arrivals != NULL ? arrivals : l->arrivals;
    int64_t *ids = realloc(l->ids, n * sizeof *ids);
    l->ids = ids != NULL ? ids : l->ids;
    bool good = requests != NULL && arrivals != NULL && ids != NULL;
    l->cap = good ? cap : l->cap;
    return good;
}

/* Random tokens. A token inside a hash-block is a function of the block's identity, so that equal
 * prefixes are equal tokens. */
static void fill_prompt(int32_t *prompt, const struct bt_request *q, uint64_t seed, int32_t vocab)
{
    uint64_t own = bt_hash_combine(bt_hash_bytes("prompt", 6, seed), (uint64_t)q->id);
    for (int32_t i = 0; i < q->n_prompt; i++) {
        uint64_t key = own;
        if (q->hash_tokens > 0 && i / q->hash_tokens < q->n_hashes) {
            key = q->hashes[i / q->hash_tokens];
        }
        prompt[i] = (int32_t)(bt_rng_at(key, (uint64_t)i) * vocab);
    }
}

static enum bt_code load_add(struct load *l, const struct bt_request *q, uint64_t seed,
                             int32_t vocab, int64_t timeout_ns, struct bt_error *err)
{
    int32_t *prompt = malloc((size_t)q->n_prompt * sizeof *prompt);
    int32_t *out = malloc((size_t)q->n_output * sizeof *out);
    if (prompt == NULL || out == NULL || !load_grow(l)) {
        free(prompt);
        free(out);
        BT_FAIL(err, BT_ERR_NOMEM, l->n, "request %lld: no memory for its tokens",
                (long long)q->id);
    }
    fill_prompt(prompt, q, seed, vocab);
    l->requests[l->n] = (struct bt_gen_request){.prompt = prompt,
                                                .n_prompt = q->n_prompt,
                                                .max_new_tokens = q->n_output,
                                                .ignore_eos = true,
                                                .out = out};
    l->arrivals[l->n] = (struct bt_arrival){
        .arrival_ns = q->arrival_ns,
        .timeout_ns = q->timeout_ns > 0 ? q->timeout_ns : timeout_ns,
        .priority = q->priority,
    };
    l->ids[l->n++] = q->id;
    return BT_OK;
}

static enum bt_code load_all(struct load *l, const struct bt_world *w, const struct bt_real *r,
                             uint64_t seed, struct bt_error *err)
{
    struct bt_source *source = NULL;
    BT_TRY(w->env.make_source(w->env.ctx, seed, &source, err));
    enum bt_code code = BT_OK;
    if (source->closed_users > 0) {
        code = bt_error_set(err, BT_ERR_ARG, source->closed_users, __FILE__, __LINE__,
                            "workload: a closed loop needs the simulator; the real engine serves "
                            "arrivals by the clock");
    }
    struct bt_request q;
    while (code == BT_OK) {
        enum bt_source_status status = bt_source_next(source, &q, err);
        if (status == BT_SOURCE_END) {
            break;
        }
        code = status == BT_SOURCE_ERROR ? err->code
                                         : load_add(l, &q, seed, r->engine.model.config.arch.vocab,
                                                    r->config.timeout_ns, err);
    }
    bt_source_destroy(source);
    if (code == BT_OK && l->n == 0) {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__, "workload: no request in it");
    }
    return code;
}

/* ---- one run ---- */

struct watcher {
    struct bt_simulation *out;
    const struct load *load;
    int64_t records_max;
    int64_t sample_ns, next_sample_ns; /* 0: no samples */
    struct bt_progress progress;
};

static void on_end(void *ctx, int64_t request, const struct bt_req_record *record)
{
    struct watcher *w = ctx;
    if (w->out->kept.n_records < w->records_max) {
        struct bt_req_record r = *record;
        r.user = (uint64_t)w->load->ids[request];
        bt_kept_record(&w->out->kept, &r);
    }
}

static bool on_step(void *ctx, const struct bt_sched_state *s, int64_t n_ended, int64_t now_ns)
{
    struct watcher *w = ctx;
    bt_progress_update(&w->progress, (double)n_ended, (double)w->load->n);
    if (w->sample_ns > 0 && now_ns >= w->next_sample_ns) {
        struct bt_sim_sample sample = {.t_ns = now_ns,
                                       .running = s->n_running,
                                       .waiting = s->n_waiting,
                                       .swapped = s->n_swapped,
                                       .kv_blocks_used = s->kv_blocks_used,
                                       .kv_blocks_cached = s->kv_blocks_cached,
                                       .kv_blocks_total = s->kv_blocks_total,
                                       .preempts = s->n_preempts};
        bt_kept_sample(&w->out->kept, &sample);
        w->next_sample_ns = now_ns - now_ns % w->sample_ns + w->sample_ns;
    }
    return true;
}

/* Tokens of the longest request that was served. */
static int32_t longest(const struct load *l)
{
    int32_t most = 0;
    for (int64_t i = 0; i < l->n; i++) {
        int32_t n = l->requests[i].n_prompt + l->requests[i].n_out;
        most = n > most ? n : most;
    }
    return most;
}

/* What the answer says of its own worth. */
static void measured_trust(struct bt_cost *cost)
{
    cost->trust = BT_TRUST_MEASURED;
    cost->step_error = 0;
    (void)snprintf(cost->weakest, sizeof cost->weakest, "this run");
}

static enum bt_code serve(struct bt_real *r, const struct bt_cli *cli, const struct bt_world *w,
                          const struct bt_simulation_opts *opts, const struct load *load,
                          struct bt_recording *recording, struct bt_simulation *out,
                          struct bt_arena *arena, struct bt_error *err)
{
    const struct bt_run_opts *run = opts->run;
    int64_t span_ns = load->arrivals[load->n - 1].arrival_ns;
    struct bt_metrics_opts mo = {
        .n_replicas = 1,
        .warmup_until_ns = (int64_t)(opts->warmup * (double)span_ns),
        .peak_flops_per_s = out->deploy.cost.peak_flops_per_s,
        .peak_bytes_per_s = out->deploy.cost.peak_bytes_per_s,
        .slos = run->slos,
        .n_slos = run->n_slos,
    };
    struct bt_metrics *metrics = NULL;
    BT_TRY(bt_metrics_create(arena, &mo, &metrics, err));
    struct watcher watcher = {.out = out,
                              .load = load,
                              .records_max = opts->records_max,
                              .sample_ns = opts->keep_samples ? bt_world_sample_ns(w) : 0};
    struct bt_serve_opts so = {
        .executor = &r->executor,
        .sched = out->deploy.sched,
        .requests = &r->table,
        .arrivals = load->arrivals,
        .clock = run->clock,
        .recording = recording,
        .on_end = on_end,
        .on_step = on_step,
        .ctx = &watcher,
    };
    so.sched.metrics = metrics;
    r->engine.backend->fit_sched(&r->executor, &so.sched);
    struct bt_serve_result result;
    bt_progress_start(&watcher.progress, opts->label, "requests", cli->quiet);
    enum bt_code code = bt_serve_run(&so, &result, err);
    bt_progress_finish(&watcher.progress);
    if (code == BT_OK && r->engine.backend->clipped != NULL) {
        bt_engine_tell_cover(cli, &r->engine.model, longest(load),
                             r->engine.backend->clipped(&r->executor));
    }
    if (code == BT_OK) {
        bt_metrics_finish(metrics, result.end_ns, 0, 0, &out->result->summary);
        out->result->plan_hash = result.plan_hash;
        out->result->steps = result.n_steps;
        out->result->end_ns = result.end_ns;
    }
    return code;
}

enum bt_code bt_real_serve(struct bt_real *r, const struct bt_cli *cli, const struct bt_world *w,
                           const struct bt_simulation_opts *opts, struct bt_recording *recording,
                           struct bt_simulation *out, struct bt_error *err)
{
    BT_ASSERT(r->fits);
    *out = (struct bt_simulation){.usd_per_h = NAN, .fits = true};
    out->result = calloc(1, sizeof *out->result);
    if (out->result == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "no memory for a run");
    }
    struct load load = {0};
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    enum bt_code code = bt_real_deploy(w, &r->config, &out->deploy, err);
    if (code == BT_OK) {
        code = load_all(&load, w, r, opts->run->seed, err);
    }
    if (code == BT_OK) {
        r->table = (struct bt_gen_table){.requests = load.requests, .n = load.n};
        code = serve(r, cli, w, opts, &load, recording, out, &arena, err);
        r->table = (struct bt_gen_table){0};
    }
    measured_trust(&out->deploy.cost);
    bt_arena_fini(&arena);
    load_fini(&load);
    if (code != BT_OK) {
        bt_simulation_fini(out);
        return code;
    }
    if (out->kept.lost) {
        bt_cli_note(cli, "no memory to keep every request: what is written is cut");
    }
    return BT_OK;
}
