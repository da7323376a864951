/* Runs and what hangs from them: summaries, requests, time series, plans, validations. */
#include "db/sha256.h"
#include "db/store_impl.h"

#include <math.h>
#include <string.h>

enum bt_code bt_store_begin_run(struct bt_store *s, const struct bt_store_run *run, int64_t *run_id,
                                struct bt_error *err)
{
    BT_ASSERT(run->command != NULL);
    char hash[BT_SHA256_HEX_BYTES] = "";
    if (run->scenario_text != NULL) {
        bt_sha256_text(run->scenario_text, strlen(run->scenario_text), hash);
    }
    BT_TRY(STORE_EXEC(
        s, BT_STMT_ADD_RUN, err, BIND_TEXT("command", run->command), BIND_TEXT("name", run->name),
        BIND_TEXT("version", run->version), BIND_TEXT("commit_id", run->commit_id),
        BIND_INT("commit_dirty", run->commit_dirty), BIND_TEXT("build_type", run->build_type),
        BIND_TEXT("scenario_text", run->scenario_text), BIND_TEXT("scenario_sha256", hash),
        BIND_TEXT("trace_name", run->trace_name), BIND_TEXT("trace_sha256", run->trace_sha256),
        BIND_INT("seed", (int64_t)run->seed),
        BIND_TEXT("executor", run->executor != NULL ? run->executor : "sim"),
        BIND_TEXT("stack", run->stack != NULL ? run->stack : "berth"),
        BIND_TEXT("device", run->device), BIND_TEXT("driver", run->driver)));
    *run_id = sqlite3_last_insert_rowid(s->db);
    s->run_id = *run_id;
    s->keep_all_requests = run->keep_all_requests;
    s->requests_total = 0;
    s->requests_kept = 0;
    return BT_OK;
}

enum bt_code bt_store_add_summary(struct bt_store *s, int64_t run_id,
                                  const struct bt_store_summary *a, struct bt_error *err)
{
    const struct bt_summary *m = a->summary;
    BT_ASSERT(m != NULL);
    return STORE_EXEC(
        s, BT_STMT_ADD_SUMMARY, err, BIND_INT("run_id", run_id),
        BIND_INT("summary_index", a->summary_index), BIND_TEXT("label", a->label),
        BIND_TEXT("model", a->model), BIND_TEXT("gpu", a->gpu), BIND_TEXT("trust", a->trust),
        BIND_TEXT("config_json", a->config_json), BIND_TEXT("metrics_json", a->metrics_json),
        BIND_INT("arrived", m->arrived), BIND_INT("finished", m->finished),
        BIND_REAL("throughput_req_per_s", m->throughput_req_per_s),
        BIND_REAL("throughput_out_tok_per_s", m->throughput_out_tok_per_s),
        BIND_REAL("slo_attainment_fraction", m->slo_attainment_fraction),
        BIND_REAL("ttft_s_p95", m->ttft.p95_s), BIND_REAL("ttft_s_p99", m->ttft.p99_s),
        BIND_REAL("tpot_s_mean", m->tpot.mean_s), BIND_REAL("e2e_s_p95", m->e2e.p95_s),
        BIND_REAL("e2e_s_p99", m->e2e.p99_s), BIND_REAL("gpu_busy_fraction", m->gpu_busy_fraction),
        BIND_REAL("cost_usd_per_h", a->cost_usd_per_h),
        BIND_TEXT("bottleneck", bt_bottleneck_name(m->bottleneck)));
}

/* A time that did not happen is NULL. */
static struct bt_bind bind_time(const char *name, int64_t t_ns)
{
    return (struct bt_bind){
        .name = name, .type = t_ns < 0 ? BT_VALUE_NULL : BT_VALUE_INT, .i = t_ns};
}

static enum bt_code add_request(struct bt_store *s, int64_t run_id, int32_t summary_index,
                                const struct bt_req_record *r, struct bt_error *err)
{
    return STORE_EXEC(
        s, BT_STMT_ADD_REQUEST, err, BIND_INT("run_id", run_id),
        BIND_INT("summary_index", summary_index), BIND_INT("request_index", s->requests_kept),
        BIND_INT("user_id", (int64_t)r->user), BIND_INT("arrival_ns", r->arrival_ns),
        bind_time("scheduled_ns", r->scheduled_ns), bind_time("first_token_ns", r->first_token_ns),
        bind_time("last_token_ns", r->last_token_ns), BIND_INT("end_ns", r->end_ns),
        BIND_INT("n_prompt", r->n_prompt), BIND_INT("n_output", r->n_output),
        BIND_INT("n_cached", r->n_cached), BIND_INT("n_preempt_swap", r->n_preempt_swap),
        BIND_INT("n_preempt_recompute", r->n_preempt_recompute), BIND_INT("priority", r->priority),
        BIND_INT("replica", r->replica), BIND_TEXT("outcome", bt_outcome_name(r->outcome)),
        BIND_TEXT("reject", r->reject == BT_REJECT_NONE ? "" : bt_reject_name(r->reject)),
        BIND_INT("degraded", r->degraded));
}

static enum bt_code add_requests(struct bt_store *s, int64_t run_id, int32_t summary_index,
                                 const struct bt_req_record *records, int64_t n,
                                 struct bt_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        s->requests_total++;
        if (s->keep_all_requests || s->requests_kept < BT_STORE_REQUESTS_MAX) {
            BT_TRY(add_request(s, run_id, summary_index, &records[i], err));
            s->requests_kept++;
        }
    }
    return STORE_EXEC(s, BT_STMT_COUNT_REQUESTS, err, BIND_INT("total", s->requests_total),
                      BIND_INT("kept", s->requests_kept), BIND_INT("run_id", run_id));
}

enum bt_code bt_store_add_requests(struct bt_store *s, int64_t run_id, int32_t summary_index,
                                   const struct bt_req_record *records, int64_t n,
                                   struct bt_error *err)
{
    BT_ASSERT(run_id == s->run_id); /* only the run in progress takes requests */
    int64_t total = s->requests_total;
    int64_t kept = s->requests_kept;
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code =
        bt_store_finish(s, add_requests(s, run_id, summary_index, records, n, err), err);
    if (code != BT_OK) {
        s->requests_total = total;
        s->requests_kept = kept;
    }
    return code;
}

static enum bt_code add_samples(struct bt_store *s, int64_t run_id, int32_t summary_index,
                                const struct bt_store_sample *samples, int64_t n,
                                struct bt_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        const struct bt_store_sample *p = &samples[i];
        BT_TRY(STORE_EXEC(
            s, BT_STMT_ADD_SAMPLE, err, BIND_INT("run_id", run_id),
            BIND_INT("summary_index", summary_index), BIND_INT("t_ns", p->t_ns),
            BIND_INT("running", p->running), BIND_INT("waiting", p->waiting),
            BIND_INT("swapped", p->swapped), BIND_INT("kv_blocks_used", p->kv_blocks_used),
            BIND_INT("kv_blocks_cached", p->kv_blocks_cached),
            BIND_INT("kv_blocks_total", p->kv_blocks_total), BIND_INT("preempts", p->preempts)));
    }
    return BT_OK;
}

enum bt_code bt_store_add_timeseries(struct bt_store *s, int64_t run_id, int32_t summary_index,
                                     const struct bt_store_sample *samples, int64_t n,
                                     struct bt_error *err)
{
    BT_TRY(STORE_BEGIN(s, err));
    return bt_store_finish(s, add_samples(s, run_id, summary_index, samples, n, err), err);
}

static enum bt_code add_candidates(struct bt_store *s, int64_t run_id,
                                   const struct bt_store_candidate *candidates, int32_t n,
                                   struct bt_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        const struct bt_store_candidate *c = &candidates[i];
        BT_TRY(STORE_EXEC(
            s, BT_STMT_ADD_CANDIDATE, err, BIND_INT("run_id", run_id), BIND_INT("rank", i),
            BIND_TEXT("verdict", c->verdict), BIND_TEXT("reason", c->reason),
            BIND_TEXT("model", c->model), BIND_TEXT("gpu", c->gpu),
            BIND_INT("replicas", c->replicas), BIND_INT("cards", c->cards),
            BIND_REAL("cost_usd_per_h", c->cost_usd_per_h),
            BIND_REAL("capacity_req_per_s", c->capacity_req_per_s), BIND_TEXT("trust", c->trust),
            BIND_TEXT("config_json", c->config_json), BIND_NULL("metrics_json", c->metrics_json)));
    }
    return BT_OK;
}

enum bt_code bt_store_add_plan(struct bt_store *s, int64_t run_id, const char *question_json,
                               const struct bt_store_candidate *candidates, int32_t n,
                               int32_t best_rank, struct bt_error *err)
{
    BT_ASSERT(best_rank < n);
    int32_t feasible = 0;
    for (int32_t i = 0; i < n; i++) {
        feasible += strcmp(candidates[i].verdict, "feasible") == 0;
    }
    struct bt_bind best = {
        .name = "best_rank", .type = best_rank < 0 ? BT_VALUE_NULL : BT_VALUE_INT, .i = best_rank};
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code =
        STORE_EXEC(s, BT_STMT_ADD_PLAN, err, BIND_INT("run_id", run_id),
                   BIND_TEXT("question_json", question_json), BIND_INT("n_candidates", n),
                   BIND_INT("n_feasible", feasible), best);
    if (code == BT_OK) {
        code = add_candidates(s, run_id, candidates, n, err);
    }
    return bt_store_finish(s, code, err);
}

static enum bt_code add_validations(struct bt_store *s, int64_t run_id,
                                    const struct bt_store_validation *rows, int32_t n,
                                    struct bt_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        const struct bt_store_validation *v = &rows[i];
        BT_TRY(STORE_EXEC(s, BT_STMT_ADD_VALIDATION, err, BIND_INT("run_id", run_id),
                          BIND_TEXT("metric", v->metric), BIND_TEXT("unit", v->unit),
                          BIND_REAL("predicted", v->predicted), BIND_REAL("measured", v->measured),
                          BIND_REAL("noise", v->noise)));
    }
    return BT_OK;
}

enum bt_code bt_store_add_validations(struct bt_store *s, int64_t run_id,
                                      const struct bt_store_validation *rows, int32_t n,
                                      struct bt_error *err)
{
    BT_TRY(STORE_BEGIN(s, err));
    return bt_store_finish(s, add_validations(s, run_id, rows, n, err), err);
}

enum bt_code bt_store_end_run(struct bt_store *s, int64_t run_id, enum bt_run_status status,
                              struct bt_error *err)
{
    static const char *const names[] = {
        [BT_RUN_DONE] = "done", [BT_RUN_FAILED] = "failed", [BT_RUN_STOPPED] = "stopped"};
    if (s->run_id == run_id) {
        s->run_id = 0;
    }
    return STORE_EXEC(s, BT_STMT_END_RUN, err, BIND_TEXT("status", names[status]),
                      BIND_INT("run_id", run_id));
}

enum bt_code bt_store_delete_run(struct bt_store *s, int64_t run_id, struct bt_error *err)
{
    BT_TRY(STORE_EXEC(s, BT_STMT_DELETE_RUN, err, BIND_INT("run_id", run_id)));
    if (sqlite3_changes(s->db) == 0) {
        BT_FAIL(err, BT_ERR_NOTFOUND, run_id, "run %lld is not in the store", (long long)run_id);
    }
    if (s->run_id == run_id) {
        s->run_id = 0;
    }
    return BT_OK;
}
