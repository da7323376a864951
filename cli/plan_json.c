#include "cli/plan_json.h"

#include "cli/config_opts.h"
#include "cli/metrics_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *stage_name(enum bt_plan_stage stage)
{
    switch (stage) {
    case BT_STAGE_CONFIG:
        return "configuration";
    case BT_STAGE_KERNEL:
        return "kernel";
    case BT_STAGE_MEMORY:
        return "memory";
    case BT_STAGE_ACCURACY:
        return "accuracy";
    case BT_STAGE_BOUND:
        return "bound";
    case BT_STAGE_BUDGET:
        return "budget";
    case BT_STAGE_SLO:
        return "slo";
    case BT_STAGE_DOMINATED:
        return "dominated";
    case BT_STAGE_FINAL:
        return "confirmed";
    }
    return "?";
}

static void slo_name(char *out, size_t n, const struct bt_slo *slo)
{
    (void)snprintf(out, n, "%s.%s", bt_slo_metric_name(slo->metric), bt_stat_name(slo->stat));
}

static json_t *ci_json(const struct bt_plan_candidate *c, const struct bt_plan_spec *spec)
{
    json_t *o = bt_out_object();
    for (int32_t i = 0; i < spec->n_slos; i++) {
        char name[32];
        slo_name(name, sizeof name, &spec->slos[i]);
        json_t *ci = bt_out_object();
        bt_out_set(ci, "limit_s", bt_out_real((double)spec->slos[i].limit_ns / 1e9));
        bt_out_set(ci, "mean_s", bt_out_real(c->ci[i].mean_s));
        bt_out_set(ci, "low_s", bt_out_real(c->ci[i].low_s));
        bt_out_set(ci, "high_s", bt_out_real(c->ci[i].high_s));
        bt_out_set(ci, "n_seeds", bt_out_int(c->ci[i].n_seeds));
        bt_out_set(ci, "clear", json_boolean(c->ci[i].clear));
        bt_out_set(o, name, ci);
    }
    return o;
}

static json_t *memory_json(const struct bt_memory_plan *p)
{
    json_t *o = bt_out_object();
    bt_out_set(o, "fits", json_boolean(p->fits));
    bt_out_set(o, "weights_bytes", bt_out_int(p->weights_bytes));
    bt_out_set(o, "draft_bytes", bt_out_int(p->draft_bytes));
    bt_out_set(o, "workspace_bytes", bt_out_int(p->workspace_bytes));
    bt_out_set(o, "reserved_bytes", bt_out_int(p->reserved_bytes));
    bt_out_set(o, "kv_pool_bytes", bt_out_int(p->kv_pool_bytes));
    bt_out_set(o, "kv_tokens_total", bt_out_int(p->kv_tokens_total));
    return o;
}

json_t *bt_plan_candidate_json(const struct bt_plan_candidate *c, const struct bt_plan_spec *spec)
{
    json_t *o = bt_out_object();
    bt_out_set(o, "config", bt_config_json(&c->config));
    bt_out_set(o, "verdict", bt_out_text(bt_verdict_name(c->verdict)));
    bt_out_set(o, "reason", bt_out_text(c->reason));
    bt_out_set(o, "stage", bt_out_text(stage_name(c->stage)));
    bt_out_set(o, "replicas", c->replicas > 0 ? bt_out_int(c->replicas) : json_null());
    bt_out_set(o, "replicas_paid", c->replicas > 0 ? bt_out_int(c->replicas_paid) : json_null());
    bt_out_set(o, "cards", c->replicas > 0 ? bt_out_int(c->cards) : json_null());
    bt_out_set(o, "cost_usd_per_h", bt_out_real(c->cost_usd_per_h));
    bt_out_set(o, "cost_usd_per_mtok", bt_out_real(c->cost_usd_per_mtok));
    bt_out_set(o, "cost_usd_per_1k_req", bt_out_real(c->cost_usd_per_1k_req));
    bt_out_set(o, "capacity_req_per_s", bt_out_real(c->capacity_req_per_s));
    bt_out_set(o, "headroom", bt_out_real(c->headroom));
    bool ran = c->summary != NULL && c->summary->finished > 0;
    bt_out_set(o, "bottleneck",
               c->replicas > 0 ? bt_out_text(bt_bottleneck_name(c->bottleneck)) : json_null());
    json_t *trust = bt_out_object();
    bt_out_set(trust, "level", bt_out_text(bt_trust_name(c->trust)));
    bt_out_set(trust, "weakest", bt_out_text(c->trust_op));
    bt_out_set(trust, "step_error", bt_out_real(c->step_error < 0 ? NAN : c->step_error));
    bt_out_set(o, "trust", trust);
    bt_out_set(o, "accuracy_drop_points", bt_out_real(c->accuracy_drop));
    bt_out_set(o, "acceptance_break_even", bt_out_real(c->acceptance_break_even));
    if (c->acceptance_source[0] != '\0') {
        bt_out_set(o, "acceptance_source", bt_out_text(c->acceptance_source));
    }
    bt_out_set(o, "price_break_even_usd_per_h", bt_out_real(c->price_break_even_usd_per_h));
    bt_out_set(o, "memory", memory_json(&c->memory));
    json_t *metrics = json_null();
    if (ran) {
        metrics = bt_metrics_json(c->summary, c->cost_usd_per_h, false);
        bt_out_set(metrics, "ci95", ci_json(c, spec));
    }
    bt_out_set(o, "metrics", metrics);
    return o;
}

static json_t *sensitivity_json(const struct bt_plan_answer *a)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < a->n_sensitivity; i++) {
        const struct bt_plan_sensitivity *s = &a->sensitivity[i];
        json_t *row = bt_out_object();
        bt_out_set(row, "key", bt_out_text(s->field->path));
        bt_out_set(row, "value", bt_out_text(s->value));
        bt_out_set(row, "holds", json_boolean(s->holds));
        bt_out_set(row, "slo_value_s", bt_out_real(s->slo_value_s));
        bt_out_set(row, "capacity_req_per_s", bt_out_real(s->capacity_req_per_s));
        bt_out_set(row, "cost_usd_per_h", bt_out_real(s->cost_usd_per_h));
        bt_out_append(rows, row);
    }
    return rows;
}

json_t *bt_plan_json(const struct bt_scenario *s, const struct bt_plan_spec *spec,
                     const struct bt_plan_answer *a)
{
    json_t *o = bt_out_answer("plan");
    bt_out_set(o, "scenario", bt_out_text(s->name));
    bt_out_set(o, "stack", bt_out_text(s->base.stack));
    bt_out_set(o, "rate_req_per_s", bt_out_real(a->rate_req_per_s));
    bt_out_set(o, "best",
               a->best >= 0 ? bt_plan_candidate_json(&a->candidates[a->best], spec) : json_null());
    json_t *list = bt_out_list();
    for (int32_t i = 0; i < a->n_candidates; i++) {
        bt_out_append(list, bt_plan_candidate_json(&a->candidates[i], spec));
    }
    bt_out_set(o, "candidates", list);
    bt_out_set(o, "sensitivity", sensitivity_json(a));
    bt_out_set(o, "simulations", bt_out_int(a->simulations));
    return o;
}

/* ---- tables ---- */

/* "int4-g128", "int8 x int8-dynamic", "default". */
static void formats(char *out, size_t n, const struct bt_plan_candidate *c)
{
    const char *w = bt_weight_format_name(c->memory.weights);
    const char *a = bt_act_format_name(c->memory.activations);
    bool plain = bt_act_format_bits(c->memory.activations) >= 16;
    (void)snprintf(out, n, plain ? "%s" : "%s x %s", w, a);
}

static json_t *candidate_row(const struct bt_plan_candidate *c, int32_t rank)
{
    json_t *row = bt_out_object();
    char text[160];
    bt_out_set(row, "rank", bt_out_int(rank));
    bt_out_set(row, "verdict", bt_out_text(bt_verdict_name(c->verdict)));
    if (c->config.redundancy > 0) {
        (void)snprintf(text, sizeof text, "%d+%d x %s", c->replicas * c->config.tp,
                       c->config.redundancy * c->config.tp, c->config.gpu);
    } else {
        (void)snprintf(text, sizeof text, "%d x %s", c->replicas * c->config.tp, c->config.gpu);
    }
    bt_out_set(row, "cards", bt_out_text(text));
    bt_out_set(row, "tp", bt_out_int(c->config.tp));
    formats(text, sizeof text, c);
    bt_out_set(row, "weights", bt_out_text(text));
    (void)snprintf(text, sizeof text, "%s b%d", bt_kv_format_name(c->memory.kv),
                   c->config.kv_block_tokens);
    bt_out_set(row, "kv", bt_out_text(text));
    char preempt[BT_NAME_BYTES];
    bt_config_get(&c->config, bt_config_find("preempt"), preempt, sizeof preempt);
    bt_out_set(row, "preempt", bt_out_text(preempt));
    if (c->config.spec.kind == BT_SPEC_NONE) {
        (void)snprintf(text, sizeof text, "-");
    } else {
        (void)snprintf(text, sizeof text, "%s k%d",
                       c->config.spec.kind == BT_SPEC_DRAFT  ? c->config.spec.draft
                       : c->config.spec.kind == BT_SPEC_SELF ? "self"
                                                             : "medusa",
                       c->config.spec.k);
    }
    bt_out_set(row, "spec", bt_out_text(text));
    bt_out_set(row, "cost_usd_per_h", bt_out_real(c->cost_usd_per_h));
    bt_out_set(row, "cost_usd_per_mtok", bt_out_real(c->cost_usd_per_mtok));
    bt_out_set(row, "bottleneck", bt_out_text(bt_bottleneck_name(c->bottleneck)));
    bt_out_set(row, "reason", bt_out_text(c->reason));
    return row;
}

/* Confirmed candidates, ranked. */
static json_t *ranking(const struct bt_plan_answer *a, int32_t most)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0, n = 0; i < a->n_candidates && n < most; i++) {
        if (a->candidates[i].simulated) {
            bt_out_append(rows, candidate_row(&a->candidates[i], ++n));
        }
    }
    return rows;
}

/* The others: how many of each GPU fell at which stage, with the first one's reason. */
static json_t *losers(const struct bt_plan_answer *a)
{
    json_t *rows = bt_out_list();
    enum { MAX_KINDS = 512 };
    struct {
        const struct bt_plan_candidate *first;
        int32_t n;
    } kinds[MAX_KINDS];
    int32_t n_kinds = 0;
    for (int32_t i = 0; i < a->n_candidates; i++) {
        const struct bt_plan_candidate *c = &a->candidates[i];
        if (c->simulated) {
            continue;
        }
        int32_t k = 0;
        for (; k < n_kinds; k++) {
            const struct bt_plan_candidate *f = kinds[k].first;
            if (f->stage == c->stage && strcmp(f->config.gpu, c->config.gpu) == 0) {
                break;
            }
        }
        if (k == MAX_KINDS) {
            continue;
        }
        if (k == n_kinds) {
            kinds[n_kinds].first = c;
            kinds[n_kinds++].n = 0;
        }
        kinds[k].n++;
    }
    for (int32_t k = 0; k < n_kinds; k++) {
        const struct bt_plan_candidate *c = kinds[k].first;
        char text[96];
        json_t *row = bt_out_object();
        bt_out_set(row, "gpu", bt_out_text(c->config.gpu));
        formats(text, sizeof text, c);
        bt_out_set(row, "weights", bt_out_text(text));
        bt_out_set(row, "n", bt_out_int(kinds[k].n));
        bt_out_set(row, "stage", bt_out_text(stage_name(c->stage)));
        bt_out_set(row, "reason", bt_out_text(c->reason));
        bt_out_append(rows, row);
    }
    return rows;
}

static void add_line(json_t *lines, const char *text)
{
    bt_out_append(lines, bt_out_text(text));
}

static json_t *best_lines(const struct bt_plan_answer *a)
{
    json_t *lines = bt_out_list();
    char line[512];
    if (a->best < 0) {
        add_line(lines, "No plan is feasible.");
        return lines;
    }
    const struct bt_plan_candidate *c = &a->candidates[a->best];
    if (c->verdict != BT_FEASIBLE) {
        add_line(lines, "No plan is feasible beyond doubt; this one comes nearest:");
    }
    char weights[96], preempt[BT_NAME_BYTES];
    formats(weights, sizeof weights, c);
    bt_config_get(&c->config, bt_config_find("preempt"), preempt, sizeof preempt);
    char spare[48] = "";
    if (c->config.redundancy > 0) {
        (void)snprintf(spare, sizeof spare, " and %d spare", c->config.redundancy);
    }
    (void)snprintf(line, sizeof line,
                   "%s: %d replicas%s of %d x %s: weights %s, KV %s in blocks of %d, preemption "
                   "by %s",
                   bt_verdict_name(c->verdict), c->replicas, spare, c->config.tp, c->config.gpu,
                   weights, bt_kv_format_name(c->memory.kv), c->config.kv_block_tokens, preempt);
    add_line(lines, line);
    (void)snprintf(line, sizeof line,
                   "cost: $%.2f/h, $%.3f per million output tokens, $%.3f per 1,000 requests",
                   c->cost_usd_per_h, c->cost_usd_per_mtok, c->cost_usd_per_1k_req);
    if (!isnan(c->cost_usd_per_h)) {
        add_line(lines, line);
    }
    if (!isnan(c->capacity_req_per_s)) {
        (void)snprintf(line, sizeof line,
                       "headroom: holds up to %.3g requests/s, %+.0f%% over the %.3g asked for; "
                       "bottleneck then and now: %s",
                       c->capacity_req_per_s, 100 * c->headroom, a->rate_req_per_s,
                       bt_bottleneck_name(c->bottleneck));
        add_line(lines, line);
    }
    if (!isnan(c->acceptance_break_even)) {
        (void)snprintf(line, sizeof line,
                       "speculation pays from a conditional acceptance of %.2f at this batch",
                       c->acceptance_break_even);
        add_line(lines, line);
    }
    if (c->acceptance_source[0] != '\0') {
        (void)snprintf(line, sizeof line, "acceptance: %s", c->acceptance_source);
        add_line(lines, line);
    }
    if (c->step_error >= 0) {
        (void)snprintf(line, sizeof line,
                       "trust: %s (weakest: %s); step times within %.0f%%, tested with steps that "
                       "much slower",
                       bt_trust_name(c->trust), c->trust_op, 100 * c->step_error);
    } else {
        (void)snprintf(line, sizeof line,
                       "trust: %s (weakest: %s); no bound on the error of step times",
                       bt_trust_name(c->trust), c->trust_op);
    }
    add_line(lines, line);
    return lines;
}

json_t *bt_plan_table(const struct bt_scenario *s, const struct bt_plan_spec *spec,
                      const struct bt_plan_answer *a, int32_t rows)
{
    (void)spec;
    json_t *doc = bt_out_object();
    char line[1024];
    (void)snprintf(line, sizeof line,
                   "%s: %s, stack %s, %.4g requests/s; %d candidates, %lld "
                   "simulations",
                   s->name[0] == '\0' ? "plan" : s->name, s->base.model, s->base.stack,
                   a->rate_req_per_s, a->n_candidates, (long long)a->simulations);
    bt_out_set(doc, "title", bt_out_text(line));
    bt_out_set(doc, "best", best_lines(a));
    bt_out_set(doc, "ranking", ranking(a, rows));
    bt_out_set(doc, "losers", losers(a));
    bt_out_set(doc, "sensitivity", sensitivity_json(a));
    return doc;
}

static const struct bt_out_column RANK_COLUMNS[] = {
    {"rank", "#", BT_UNIT_PLAIN},           {"verdict", "verdict", BT_UNIT_AUTO},
    {"cards", "GPUs", BT_UNIT_AUTO},        {"tp", "tp", BT_UNIT_PLAIN},
    {"weights", "weights", BT_UNIT_AUTO},   {"kv", "KV", BT_UNIT_AUTO},
    {"preempt", "preempt", BT_UNIT_AUTO},   {"spec", "speculation", BT_UNIT_AUTO},
    {"cost_usd_per_h", "$/h", BT_UNIT_USD}, {"cost_usd_per_mtok", "$/Mtok", BT_UNIT_USD},
    {"bottleneck", "limit", BT_UNIT_AUTO},  {"reason", "why", BT_UNIT_AUTO},
};
static const struct bt_out_column LOSER_COLUMNS[] = {
    {"gpu", "GPU", BT_UNIT_AUTO},
    {"weights", "weights", BT_UNIT_AUTO},
    {"n", "candidates", BT_UNIT_PLAIN},
    {"stage", "fell at", BT_UNIT_AUTO},
    {"reason", "first of them", BT_UNIT_AUTO},
};
static const struct bt_out_column SENSITIVITY_COLUMNS[] = {
    {"key", "change", BT_UNIT_AUTO},
    {"value", "to", BT_UNIT_AUTO},
    {"holds", "holds", BT_UNIT_AUTO},
    {"slo_value_s", "first SLO", BT_UNIT_SECONDS},
    {"capacity_req_per_s", "capacity req/s", BT_UNIT_NONE},
    {"cost_usd_per_h", "$/h needed", BT_UNIT_USD},
};
static const struct bt_out_part PARTS[] = {
    {.kind = BT_OUT_LINES, .path = "title"},
    {.kind = BT_OUT_LINES, .path = "best"},
    BT_OUT_ROWS_PART("ranking", "Ranking", RANK_COLUMNS),
    BT_OUT_ROWS_PART("losers", "Why the others lose", LOSER_COLUMNS),
    BT_OUT_ROWS_PART("sensitivity",
                     "What one change does to the first plan, with steps as predicted",
                     SENSITIVITY_COLUMNS),
};
const struct bt_out_view bt_plan_view = {.parts = PARTS, .n_parts = 5, .csv_rows = "candidates"};
