/* The figure "pareto", from a plan's answer. */
#include "cli/plot_files.h"
#include "engine/core/arch.h"

#include <math.h>
#include <stdlib.h>

struct point {
    double cost, latency;
};

static double latency_of(const struct bt_plan_candidate *c)
{
    bool over_seeds = c->ci[0].n_seeds > 0 && isfinite(c->ci[0].mean_s);
    return over_seeds ? c->ci[0].mean_s : c->summary->slo_value_s[0];
}

static bool has_point(const struct bt_plan_candidate *c)
{
    return c->summary != NULL && isfinite(c->cost_usd_per_h) && isfinite(latency_of(c));
}

/* "2 × l40s (TP 2), int8, KV int8". */
static void put_candidate(struct bt_plot_rows *t, const struct bt_plan_candidate *c)
{
    char label[2 * BT_NAME_BYTES + 64], tp[32] = "";
    if (c->config.tp > 1) {
        (void)snprintf(tp, sizeof tp, " (TP %d)", c->config.tp);
    }
    (void)snprintf(label, sizeof label, "%d × %s%s, %s, KV %s", c->cards, c->config.gpu, tp,
                   bt_weight_format_name(c->memory.weights), bt_kv_format_name(c->memory.kv));
    bt_rows_text(t, label);
}

static int by_cost(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    if (x->cost != y->cost) {
        return x->cost < y->cost ? -1 : 1;
    }
    return x->latency < y->latency ? -1 : x->latency > y->latency;
}

/* The points, sorted by cost, that are faster than all that cost less or the same. */
static void put_front(struct bt_plot_rows *t, struct point *points, int32_t n)
{
    qsort(points, (size_t)n, sizeof points[0], by_cost);
    double best = INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (points[i].latency < best) {
            best = points[i].latency;
            bt_rows_real(t, points[i].cost);
            bt_rows_real(t, points[i].latency);
            bt_rows_end_row(t);
        }
    }
}

static int32_t put_candidates(struct bt_plot_rows *t, const struct bt_plan_answer *answer,
                              const struct bt_slo *slo, struct point *points)
{
    int32_t n = 0;
    for (int32_t i = 0; i < answer->n_candidates; i++) {
        const struct bt_plan_candidate *c = &answer->candidates[i];
        if (!has_point(c)) {
            continue;
        }
        points[n++] = (struct point){.cost = c->cost_usd_per_h, .latency = latency_of(c)};
        bool has_ci = c->ci[0].n_seeds > 1;
        bt_rows_int(t, i + 1);
        put_candidate(t, c);
        bt_rows_text(t, bt_verdict_name(c->verdict));
        bt_rows_real(t, c->cost_usd_per_h);
        bt_rows_real(t, latency_of(c));
        bt_rows_real(t, has_ci ? c->ci[0].low_s : NAN);
        bt_rows_real(t, has_ci ? c->ci[0].high_s : NAN);
        bt_rows_statistic(t, slo);
        bt_rows_ns(t, slo->limit_ns);
        bt_rows_end_row(t);
    }
    return n;
}

enum bt_code bt_plot_pareto(struct bt_plots *p, const struct bt_plot_opts *opts,
                            const struct bt_plan_answer *answer, const struct bt_slo *slos,
                            int32_t n_slos, struct bt_error *err)
{
    BT_ASSERT(n_slos > 0);
    int32_t n_drawn = 0;
    for (int32_t i = 0; i < answer->n_candidates; i++) {
        n_drawn += has_point(&answer->candidates[i]);
    }
    if (n_drawn == 0) {
        return BT_OK;
    }
    struct point *points = calloc((size_t)n_drawn, sizeof points[0]);
    if (points == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "figure pareto: no memory for %d candidates", n_drawn);
    }
    struct bt_plot_rows t;
    enum bt_code code = bt_rows_begin(&t, p, "pareto", opts, err);
    if (code == BT_OK) {
        bt_rows_names(&t, "pareto", 0);
        int32_t n = put_candidates(&t, answer, &slos[0], points);
        bt_rows_end_block(&t);
        bt_rows_names(&t, "pareto", 1);
        put_front(&t, points, n);
        code = bt_rows_finish(&t, p, "pareto", opts, err);
    }
    free(points);
    return code;
}
