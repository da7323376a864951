#include "cli/simulate.h"

#include "cli/config_opts.h"
#include "cli/progress.h"
#include "cli/real.h"
#include "sim/cost/surface_law.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the callbacks of a run need. */
struct watcher {
    struct bt_kept *kept;
    struct bt_progress progress;
    int64_t records_max;
};

static bool grow(void **p, int64_t *cap, int64_t n, size_t size)
{
    if (n < *cap) {
        return true;
    }
    int64_t want = *cap == 0 ? 1024 : *cap * 2;
    void *q = realloc(*p, (size_t)want * size);
    if (q == NULL) {
        return false;
    }
    *p = q;
    *cap = want;
    return true;
}

void bt_kept_record(struct bt_kept *k, const struct bt_req_record *r)
{
    if (!grow((void **)&k->records, &k->cap_records, k->n_records, sizeof *k->records)) {
        k->lost = true;
        return;
    }
    k->records[k->n_records++] = *r;
}

void bt_kept_sample(struct bt_kept *k, const struct bt_sim_sample *sample)
{
    if (!grow((void **)&k->samples, &k->cap_samples, k->n_samples, sizeof *k->samples)) {
        k->lost = true;
        return;
    }
    k->samples[k->n_samples++] = *sample;
}

static void on_record(void *ctx, const struct bt_req_record *r)
{
    struct watcher *w = ctx;
    if (w->kept->n_records < w->records_max) {
        bt_kept_record(w->kept, r);
    }
}

static void on_sample(void *ctx, const struct bt_sim_sample *sample)
{
    struct watcher *w = ctx;
    bt_kept_sample(w->kept, sample);
}

static bool on_progress(void *ctx, double done)
{
    struct watcher *w = ctx;
    bt_progress_update(&w->progress, done, 1);
    return true;
}

static enum bt_code run(const struct bt_cli *cli, const struct bt_world *w,
                        const struct bt_simulation_opts *opts, struct bt_simulation *out,
                        struct bt_error *err)
{
    struct watcher watcher = {.kept = &out->kept, .records_max = opts->records_max};
    bt_progress_start(&watcher.progress, opts->label, NULL, cli->quiet);
    struct bt_source *source = NULL;
    struct bt_sim_hooks *hooks = NULL;
    enum bt_code code = w->env.make_source(w->env.ctx, opts->run->seed, &source, err);
    if (code == BT_OK) {
        code = w->env.make_hooks(w->env.ctx, &hooks, err);
    }
    bool degrades = opts->config->degrade_model[0] != '\0';
    if (code == BT_OK) {
        struct bt_sim_opts sim = {
            .deploy = &out->deploy,
            .degrade_deploy = degrades ? &out->degrade : NULL,
            .degrade_replicas = degrades ? opts->config->degrade_replicas : 0,
            .replicas = opts->config->replicas == BT_AUTO ? 1 : opts->config->replicas,
            .source = source,
            .seed = opts->run->seed,
            .warmup_fraction = opts->warmup,
            .step_scale = 1,
            .slos = opts->run->slos,
            .n_slos = opts->run->n_slos,
            .hooks = hooks,
            .on_record = on_record,
            .on_sample = opts->keep_samples ? on_sample : NULL,
            .sample_ns = opts->keep_samples ? bt_world_sample_ns(w) : 0,
            .on_progress = on_progress,
            .ctx = &watcher,
        };
        code = bt_sim_run(&sim, out->result, err);
        if (code == BT_OK) { /* of the steps that it was made of */
            out->deploy.cost.step_error =
                bt_surface_cost_mix_error(&out->deploy.cost, &out->result->mix);
        }
        if (code == BT_ERR_SCRIPT && hooks != NULL && bt_scenario_hooks_error(hooks)->msg[0]) {
            *err = *bt_scenario_hooks_error(hooks);
        }
    }
    bt_progress_finish(&watcher.progress);
    bt_scenario_free_hooks(hooks);
    bt_source_destroy(source);
    return code;
}

/* The same by the engine on this machine. */
static enum bt_code run_real(const struct bt_cli *cli, const struct bt_world *w,
                             const struct bt_simulation_opts *opts, struct bt_simulation *out,
                             struct bt_error *err)
{
    struct bt_real real;
    BT_TRY(bt_real_open(cli, w, opts->config, opts->run, &real, err));
    if (!real.fits) {
        out->unfit = real.unfit;
        return BT_OK;
    }
    struct bt_recording recording = {0};
    bool keep = opts->recording != NULL;
    enum bt_code code = bt_real_serve(&real, cli, w, opts, keep ? &recording : NULL, out, err);
    if (code == BT_OK && keep) {
        code = bt_recording_write(&recording, opts->recording, err);
    }
    bt_recording_fini(&recording);
    bt_real_close(&real);
    if (code != BT_OK) {
        bt_simulation_fini(out);
    }
    return code;
}

enum bt_code bt_simulation_run(const struct bt_cli *cli, const struct bt_world *w,
                               const struct bt_simulation_opts *opts, struct bt_simulation *out,
                               struct bt_error *err)
{
    if (opts->run->executor != BT_EXECUTOR_SIM) {
        *out = (struct bt_simulation){.usd_per_h = NAN};
        return run_real(cli, w, opts, out, err);
    }
    *out = (struct bt_simulation){.usd_per_h = NAN};
    out->result = calloc(1, sizeof *out->result);
    if (out->result == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "no memory for a run");
    }
    enum bt_code code =
        bt_plan_deploy(&w->env, opts->config, &out->deploy, &out->degrade, &out->unfit);
    if (code == BT_ERR_UNFIT) {
        return BT_OK;
    }
    if (code != BT_OK) {
        *err = out->unfit;
    }
    if (code == BT_OK) {
        out->fits = true;
        code = bt_world_check_kernels(w, &out->deploy, err);
    }
    if (code == BT_OK) {
        code = run(cli, w, opts, out, err);
    }
    if (code != BT_OK) {
        bt_simulation_fini(out);
        return code;
    }
    int32_t replicas = opts->config->replicas == BT_AUTO ? 1 : opts->config->replicas;
    out->usd_per_h = bt_world_usd_per_h(w, opts->config, replicas);
    if (out->kept.lost) {
        bt_cli_note(cli, "no memory to keep every request: what is written is cut");
    }
    return BT_OK;
}

void bt_simulation_fini(struct bt_simulation *s)
{
    bt_deploy_fini(&s->deploy);
    bt_deploy_fini(&s->degrade);
    free(s->result);
    free(s->kept.records);
    free(s->kept.samples);
    *s = (struct bt_simulation){0};
}

static enum bt_code close_file(FILE *f, const char *path, struct bt_error *err)
{
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    return BT_OK;
}

static void print_time(FILE *f, int64_t ns)
{
    if (ns >= 0) {
        fprintf(f, ",%.9f", (double)ns / 1e9);
    } else {
        fprintf(f, ",");
    }
}

enum bt_code bt_simulation_write_requests(const struct bt_simulation *s, const char *path,
                                          struct bt_error *err)
{
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    fprintf(f, "request,outcome,arrival_s,scheduled_s,first_token_s,last_token_s,end_s,ttft_s,"
               "tpot_s,e2e_s,prompt_tokens,output_tokens,cached_tokens,preempt_swap,"
               "preempt_recompute,priority,replica,degraded\n");
    for (int64_t i = 0; i < s->kept.n_records; i++) {
        const struct bt_req_record *r = &s->kept.records[i];
        fprintf(f, "%llu,%s", (unsigned long long)r->user, bt_outcome_name(r->outcome));
        print_time(f, r->arrival_ns);
        print_time(f, r->scheduled_ns);
        print_time(f, r->first_token_ns);
        print_time(f, r->last_token_ns);
        print_time(f, r->end_ns);
        print_time(f, r->first_token_ns < 0 ? -1 : r->first_token_ns - r->arrival_ns);
        print_time(f, r->n_output < 2 ? -1
                                      : (r->last_token_ns - r->first_token_ns) / (r->n_output - 1));
        print_time(f, r->end_ns - r->arrival_ns);
        fprintf(f, ",%d,%d,%d,%d,%d,%d,%d,%d\n", r->n_prompt, r->n_output, r->n_cached,
                r->n_preempt_swap, r->n_preempt_recompute, r->priority, r->replica, r->degraded);
    }
    return close_file(f, path, err);
}

enum bt_code bt_simulation_write_samples(const struct bt_simulation *s, const char *path,
                                         struct bt_error *err)
{
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    fprintf(f, "time_s,running,waiting,swapped,kv_blocks_used,kv_blocks_cached,kv_blocks_total,"
               "preemptions\n");
    for (int64_t i = 0; i < s->kept.n_samples; i++) {
        const struct bt_sim_sample *x = &s->kept.samples[i];
        fprintf(f, "%.9f,%d,%d,%d,%lld,%lld,%lld,%lld\n", (double)x->t_ns / 1e9, x->running,
                x->waiting, x->swapped, (long long)x->kv_blocks_used,
                (long long)x->kv_blocks_cached, (long long)x->kv_blocks_total,
                (long long)x->preempts);
    }
    return close_file(f, path, err);
}

json_t *bt_simulation_unfit_json(const char *command, const struct bt_simulation *s,
                                 const struct bt_config *config)
{
    json_t *o = bt_out_answer(command);
    bt_out_set(o, "config", bt_config_json(config));
    bt_out_set(o, "stack", bt_out_text(config->stack));
    bt_out_set(o, "fits", json_false());
    bt_out_set(o, "reason", bt_out_text(s->unfit.msg));
    return o;
}
