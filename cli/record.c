#include "cli/record.h"

#include "cli/backends.h"
#include "cli/build_info.h"
#include "cli/config_opts.h"
#include "cli/metrics_json.h"
#include "cli/plan_json.h"
#include "db/sha256.h"
#include "db/store.h"
#include "engine/cpu/host.h"

#include <stdlib.h>
#include <string.h>

/* Says what went wrong, once, and records no more. */
static void give_up(struct bt_record *r, const struct bt_error *err)
{
    bt_cli_note(r->cli, "not recorded: %s", err->msg);
    bt_store_close(r->store);
    r->store = NULL;
}

static bool ok(struct bt_record *r, enum bt_code code, const struct bt_error *err)
{
    if (code != BT_OK) {
        give_up(r, err);
    }
    return code == BT_OK;
}

void bt_record_begin(struct bt_record *r, const struct bt_cli *cli, const struct bt_world *w,
                     const struct bt_run_opts *run, const char *name, const char *trace_path,
                     const char *stack)
{
    *r = (struct bt_record){.cli = cli};
    struct bt_error err = {0};
    struct bt_store_opts opts = {.path = cli->db_path, .catalog = w->catalog};
    if (!ok(r, bt_store_open(&opts, &r->store, &err), &err)) {
        return;
    }
    char hash[BT_SHA256_HEX_BYTES] = "";
    if (trace_path != NULL && !bt_sha256_file(trace_path, hash)) {
        hash[0] = '\0';
    }
    const char *slash = trace_path == NULL ? NULL : strrchr(trace_path, '/');
    bool real = run->executor != BT_EXECUTOR_SIM;
    bool cuda = run->executor == BT_EXECUTOR_CUDA;
    char device[BT_HOST_TEXT_BYTES] = "";
    if (cuda) {
        (void)snprintf(device, sizeof device, "%s", bt_backend_gpu_product());
    } else if (real) {
        bt_host_describe(run->jobs, device);
    }
    struct bt_store_run row = {
        .command = cli->command->name,
        .name = name,
        .version = BT_VERSION,
        .commit_id = BT_BUILD_COMMIT,
        .commit_dirty = BT_BUILD_DIRTY != 0,
        .build_type = BT_BUILD_TYPE,
        .scenario_text = w->scenario == NULL ? NULL : w->scenario->text,
        .trace_name = slash == NULL ? trace_path : slash + 1,
        .trace_sha256 = hash,
        .seed = run->seed,
        .executor = cuda   ? "cuda"
                    : real ? "cpu"
                           : NULL,
        .device = real ? device : NULL,
        .stack = stack,
        .keep_all_requests = run->per_request != NULL,
    };
    (void)ok(r, bt_store_begin_run(r->store, &row, &r->run_id, &err), &err);
}

static bool add_samples(struct bt_record *r, int32_t i, const struct bt_kept *k)
{
    if (k->n_samples == 0) {
        return true;
    }
    struct bt_store_sample *rows = calloc((size_t)k->n_samples, sizeof *rows);
    struct bt_error err = {0};
    if (rows == NULL) {
        return true;
    }
    for (int64_t j = 0; j < k->n_samples; j++) {
        const struct bt_sim_sample *s = &k->samples[j];
        rows[j] = (struct bt_store_sample){.t_ns = s->t_ns,
                                           .running = s->running,
                                           .waiting = s->waiting,
                                           .swapped = s->swapped,
                                           .kv_blocks_used = s->kv_blocks_used,
                                           .kv_blocks_cached = s->kv_blocks_cached,
                                           .kv_blocks_total = s->kv_blocks_total,
                                           .preempts = s->preempts};
    }
    enum bt_code code = bt_store_add_timeseries(r->store, r->run_id, i, rows, k->n_samples, &err);
    free(rows);
    return ok(r, code, &err);
}

/* A document as a text; the caller frees it. Never NULL. */
static char *dump(json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    BT_ASSERT(text != NULL);
    return text;
}

void bt_record_simulation(struct bt_record *r, int32_t i, const char *label,
                          const struct bt_simulation *s)
{
    if (r->store == NULL || !s->fits) {
        return;
    }
    struct bt_error err = {0};
    char *config = dump(bt_config_json(&s->deploy.config));
    char *metrics = dump(bt_metrics_json(&s->result->summary, s->usd_per_h, true));
    struct bt_store_summary row = {.summary_index = i,
                                   .label = label,
                                   .model = s->deploy.arch.name,
                                   .gpu = s->deploy.gpu.name,
                                   .trust = bt_trust_name(s->deploy.cost.trust),
                                   .config_json = config,
                                   .metrics_json = metrics,
                                   .summary = &s->result->summary,
                                   .cost_usd_per_h = s->usd_per_h};
    bool good = ok(r, bt_store_add_summary(r->store, r->run_id, &row, &err), &err);
    free(config);
    free(metrics);
    if (good) {
        good = ok(
            r,
            bt_store_add_requests(r->store, r->run_id, i, s->kept.records, s->kept.n_records, &err),
            &err);
    }
    if (good) {
        (void)add_samples(r, i, &s->kept);
    }
}

static json_t *question(const struct bt_plan_spec *spec)
{
    json_t *o = bt_out_object();
    json_t *slos = bt_out_object();
    for (int32_t i = 0; i < spec->n_slos; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%s.%s", bt_slo_metric_name(spec->slos[i].metric),
                       bt_stat_name(spec->slos[i].stat));
        bt_out_set(slos, name, bt_out_real((double)spec->slos[i].limit_ns / 1e9));
    }
    bt_out_set(o, "slo_s", slos);
    bt_out_set(o, "memory_headroom", bt_out_real(spec->memory_headroom));
    bt_out_set(o, "accuracy_drop_points", bt_out_real(spec->accuracy_drop_points));
    bt_out_set(o, "budget_usd_per_h", bt_out_real(spec->budget_usd_per_h));
    bt_out_set(o, "budget_cards", bt_out_int(spec->budget_cards));
    bt_out_set(o, "seed", bt_out_int((int64_t)spec->seed));
    return o;
}

void bt_record_plan(struct bt_record *r, const struct bt_plan_spec *spec,
                    const struct bt_plan_answer *a)
{
    if (r->store == NULL) {
        return;
    }
    size_t n = (size_t)a->n_candidates;
    struct bt_store_candidate *rows = calloc(n, sizeof *rows);
    char **texts = calloc(2 * n, sizeof(char *));
    BT_ASSERT(rows != NULL && texts != NULL);
    for (int32_t i = 0; i < a->n_candidates; i++) {
        const struct bt_plan_candidate *c = &a->candidates[i];
        texts[2 * i] = dump(bt_config_json(&c->config));
        if (c->summary != NULL && c->summary->finished > 0) {
            texts[2 * i + 1] = dump(bt_metrics_json(c->summary, c->cost_usd_per_h, false));
        }
        rows[i] = (struct bt_store_candidate){.verdict = bt_verdict_name(c->verdict),
                                              .reason = c->reason,
                                              .model = c->config.model,
                                              .gpu = c->config.gpu,
                                              .replicas = c->replicas,
                                              .cards = c->cards,
                                              .cost_usd_per_h = c->cost_usd_per_h,
                                              .capacity_req_per_s = c->capacity_req_per_s,
                                              .trust = bt_trust_name(c->trust),
                                              .config_json = texts[2 * i],
                                              .metrics_json = texts[2 * i + 1]};
    }
    struct bt_error err = {0};
    char *asked = dump(question(spec));
    (void)ok(r, bt_store_add_plan(r->store, r->run_id, asked, rows, a->n_candidates, a->best, &err),
             &err);
    free(asked);
    for (size_t i = 0; i < 2 * n; i++) {
        free(texts[i]);
    }
    free(texts);
    free(rows);
}

void bt_record_validations(struct bt_record *r, const struct bt_store_validation *rows, int32_t n)
{
    struct bt_error err = {0};
    if (r->store != NULL && n > 0) {
        (void)ok(r, bt_store_add_validations(r->store, r->run_id, rows, n, &err), &err);
    }
}

void bt_record_end(struct bt_record *r, bool keep)
{
    if (r->store == NULL) {
        return;
    }
    struct bt_error err = {0};
    enum bt_code code = keep ? bt_store_end_run(r->store, r->run_id, BT_RUN_DONE, &err)
                             : bt_store_delete_run(r->store, r->run_id, &err);
    if (ok(r, code, &err)) {
        if (keep) {
            bt_cli_note(r->cli, "recorded as run %lld", (long long)r->run_id);
        }
        bt_store_close(r->store);
    }
    r->store = NULL;
}
