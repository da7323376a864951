/* The figure "pareto". */
#include "cli/plot_files.h"
#include "engine/core/arch.h"

#include <math.h>
#include <stdlib.h>

struct spot {
    double cost, latency;
};

static int by_cost(const void *a, const void *b)
{
    const struct spot *x = a, *y = b;
    if (x->cost != y->cost) {
        return x->cost < y->cost ? -1 : 1;
    }
    return x->latency < y->latency ? -1 : x->latency > y->latency;
}

/* The spots that are faster than all that cost less or the same. */
static void put_front(struct bt_plot_rows *t, struct spot *spots, int32_t n)
{
    qsort(spots, (size_t)n, sizeof spots[0], by_cost);
    double best = INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (spots[i].latency < best) {
            best = spots[i].latency;
            bt_rows_real(t, spots[i].cost);
            bt_rows_real(t, spots[i].latency);
            bt_rows_end_row(t);
        }
    }
}

static void put_points(struct bt_plot_rows *t, const struct bt_plot_point *points, int32_t n,
                       const char *statistic, int64_t limit_ns)
{
    for (int32_t i = 0; i < n; i++) {
        const struct bt_plot_point *point = &points[i];
        bt_rows_int(t, point->rank);
        bt_rows_text(t, point->label);
        bt_rows_text(t, point->detail);
        bt_rows_text(t, point->verdict);
        bt_rows_real(t, point->cost_usd_per_h);
        bt_rows_real(t, point->latency_s);
        bt_rows_real(t, point->low_s);
        bt_rows_real(t, point->high_s);
        bt_rows_text(t, statistic);
        bt_rows_ns(t, limit_ns);
        bt_rows_end_row(t);
    }
}

enum bt_code bt_plot_points(struct bt_plots *p, const struct bt_plot_opts *opts,
                            const struct bt_plot_point *points, int32_t n, const char *statistic,
                            int64_t limit_ns, struct bt_error *err)
{
    if (n == 0) {
        return BT_OK;
    }
    struct spot *spots = calloc((size_t)n, sizeof spots[0]);
    if (spots == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "figure pareto: no memory for %d candidates", n);
    }
    for (int32_t i = 0; i < n; i++) {
        BT_ASSERT(isfinite(points[i].cost_usd_per_h) && isfinite(points[i].latency_s));
        spots[i] = (struct spot){points[i].cost_usd_per_h, points[i].latency_s};
    }
    struct bt_plot_rows t;
    enum bt_code code = bt_rows_begin(&t, p, "pareto", opts, err);
    if (code == BT_OK) {
        bt_rows_names(&t, "pareto", 0);
        put_points(&t, points, n, statistic, limit_ns);
        bt_rows_end_block(&t);
        bt_rows_names(&t, "pareto", 1);
        put_front(&t, spots, n);
        code = bt_rows_finish(&t, p, "pareto", opts, err);
    }
    free(spots);
    return code;
}

/* ---- from a plan's answer ---- */

enum { LABEL_BYTES = 320 };

static double latency_of(const struct bt_plan_candidate *c)
{
    bool over_seeds = c->ci[0].n_seeds > 0 && isfinite(c->ci[0].mean_s);
    return over_seeds ? c->ci[0].mean_s : c->summary->slo_value_s[0];
}

static bool has_point(const struct bt_plan_candidate *c)
{
    return c->summary != NULL && isfinite(c->cost_usd_per_h) && isfinite(latency_of(c));
}

/* "2 × l40s, int8, KV int8". */
static void label_of(char out[LABEL_BYTES], const struct bt_plan_candidate *c)
{
    (void)snprintf(out, LABEL_BYTES, "%d × %s, %s, KV %s", c->cards, c->config.gpu,
                   bt_weight_format_name(c->memory.weights), bt_kv_format_name(c->memory.kv));
}

/* "TP 2, int8-dynamic, block 16, swap, draft k4": the knobs that a plan varies most. */
static void detail_of(char out[LABEL_BYTES], const struct bt_plan_candidate *c)
{
    char tp[32] = "", act[64] = "", preempt[BT_NAME_BYTES], spec[32] = "";
    if (c->config.tp > 1) {
        (void)snprintf(tp, sizeof tp, "TP %d, ", c->config.tp);
    }
    if (c->memory.activations == BT_ACT_INT8_DYNAMIC ||
        c->memory.activations == BT_ACT_INT8_STATIC) {
        (void)snprintf(act, sizeof act, "%s, ", bt_act_format_name(c->memory.activations));
    }
    bt_config_get(&c->config, bt_config_find("preempt"), preempt, sizeof preempt);
    if (c->config.spec.kind != BT_SPEC_NONE) {
        (void)snprintf(spec, sizeof spec, ", %s k%d",
                       c->config.spec.kind == BT_SPEC_DRAFT  ? "draft"
                       : c->config.spec.kind == BT_SPEC_SELF ? "self"
                                                             : "medusa",
                       c->config.spec.k);
    }
    (void)snprintf(out, LABEL_BYTES, "%s%sblock %d, %s%s", tp, act, c->config.kv_block_tokens,
                   preempt, spec);
}

enum bt_code bt_plot_pareto(struct bt_plots *p, const struct bt_plot_opts *opts,
                            const struct bt_plan_answer *answer, const struct bt_slo *slos,
                            int32_t n_slos, struct bt_error *err)
{
    BT_ASSERT(n_slos > 0);
    size_t n_most = answer->n_candidates > 0 ? (size_t)answer->n_candidates : 1;
    struct bt_plot_point *points = calloc(n_most, sizeof points[0]);
    char(*labels)[LABEL_BYTES] = calloc(2 * n_most, sizeof labels[0]);
    enum bt_code code = BT_OK;
    if (points == NULL || labels == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__,
                            "figure pareto: no memory for %zu candidates", n_most);
    }
    int32_t n = 0;
    for (int32_t i = 0; i < answer->n_candidates && code == BT_OK; i++) {
        const struct bt_plan_candidate *c = &answer->candidates[i];
        if (!has_point(c)) {
            continue;
        }
        bool has_ci = c->ci[0].n_seeds > 1;
        label_of(labels[2 * n], c);
        detail_of(labels[2 * n + 1], c);
        points[n] = (struct bt_plot_point){.rank = i + 1,
                                           .label = labels[2 * n],
                                           .detail = labels[2 * n + 1],
                                           .verdict = bt_verdict_name(c->verdict),
                                           .cost_usd_per_h = c->cost_usd_per_h,
                                           .latency_s = latency_of(c),
                                           .low_s = has_ci ? c->ci[0].low_s : NAN,
                                           .high_s = has_ci ? c->ci[0].high_s : NAN};
        n++;
    }
    if (code == BT_OK) {
        char statistic[BT_STATISTIC_BYTES];
        bt_plot_statistic(statistic, &slos[0]);
        code = bt_plot_points(p, opts, points, n, statistic, slos[0].limit_ns, err);
    }
    free(labels);
    free(points);
    return code;
}
