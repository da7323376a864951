#include "sim/cost/step_trust.h"

#include <math.h>
#include <stdio.h>

enum { SOURCES_MAX = BT_STEP_ROWS_MAX };

static const double SHARE_THAT_DECIDES = 0.1;
/* What a transfer misses at one shape it makes up for at another: with a whole GPU left out, nine
 * in ten steps on each are within 0.76 of what their operations' bounds add up to (bt_law_report).
 */
static const double TRANSFERRED_SHARE = 0.8;

/* One source's part of a step's error. */
struct part {
    const void *source;
    double error; /* of the step, relative */
};

struct weakest {
    bool is_set;
    enum bt_trust level;
    double weight; /* share x error: the largest of its level is named */
    enum bt_step_op op;
    const struct bt_op_origin *origin;
};

static void count_level(struct weakest *w, const struct bt_op_origin *o, enum bt_step_op op,
                        double share)
{
    double weight = share * o->log_error;
    bool weaker = !w->is_set || o->level < w->level || (o->level == w->level && weight > w->weight);
    if (share >= SHARE_THAT_DECIDES && weaker) {
        *w = (struct weakest){true, o->level, weight, op, o};
    }
}

/* What an operation's time may be off by as a part of a step, relative. */
static double error_in_step(const struct bt_op_origin *o, double transferred_share)
{
    return expm1(o->log_error * (o->level == BT_TRUST_TRANSFERRED ? transferred_share : 1));
}

/* The sources of one step and what each may be off by, of the step. Returns how many. */
static int32_t parts_of(const struct bt_cost *cost, const struct bt_batch *b,
                        const struct bt_op_origin *target, const struct bt_op_origin *draft,
                        double transferred_share, struct weakest *weakest,
                        struct part parts[SOURCES_MAX])
{
    struct bt_step_row rows[BT_STEP_ROWS_MAX];
    int32_t n_parts = 0;
    int32_t n = bt_step_cost_explain(cost, b, rows);
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += rows[i].time_ps;
    }
    for (int32_t i = 0; i < n; i++) {
        const struct bt_op_origin *o = &(rows[i].draft ? draft : target)[rows[i].op];
        const void *source = o->source != NULL ? o->source : o;
        double share = rows[i].time_ps / sum;
        count_level(weakest, o, rows[i].op, share);
        int32_t k = 0;
        while (k < n_parts && parts[k].source != source) {
            k++;
        }
        if (k == n_parts) {
            parts[n_parts++] = (struct part){.source = source};
        }
        parts[k].error += share * error_in_step(o, transferred_share);
    }
    return n_parts;
}

/* Relative error of one step. */
static double step_error(const struct bt_cost *cost, const struct bt_batch *b,
                         const struct bt_op_origin *target, const struct bt_op_origin *draft,
                         struct weakest *weakest)
{
    struct part parts[SOURCES_MAX];
    int32_t n = parts_of(cost, b, target, draft, TRANSFERRED_SHARE, weakest, parts);
    double square = 0;
    for (int32_t k = 0; k < n; k++) {
        square += parts[k].error * parts[k].error;
    }
    return sqrt(square);
}

double bt_step_ratio_error(const struct bt_cost *a,
                           const struct bt_op_origin origins_a[BT_STEP_OPS],
                           const struct bt_cost *b,
                           const struct bt_op_origin origins_b[BT_STEP_OPS],
                           const struct bt_batch *batch)
{
    struct part of_a[SOURCES_MAX], of_b[SOURCES_MAX];
    struct weakest ignored = {0};
    /* Ratios were not tested as steps were: operations' bounds count whole. */
    int32_t n_a = parts_of(a, batch, origins_a, origins_a, 1, &ignored, of_a);
    int32_t n_b = parts_of(b, batch, origins_b, origins_b, 1, &ignored, of_b);
    double square = 0;
    for (int32_t i = 0; i < n_a; i++) {
        for (int32_t k = 0; k < n_b; k++) {
            if (of_a[i].source == of_b[k].source) {
                of_a[i].error -= of_b[k].error;
                of_b[k].error = 0;
            }
        }
        square += of_a[i].error * of_a[i].error;
    }
    for (int32_t k = 0; k < n_b; k++) {
        square += of_b[k].error * of_b[k].error;
    }
    return sqrt(square);
}

double bt_step_mix_error(const struct bt_cost *cost, const struct bt_step_mix *mix,
                         const struct bt_op_origin target[BT_STEP_OPS],
                         const struct bt_op_origin *draft)
{
    struct part all[SOURCES_MAX];
    int32_t n_all = 0;
    double total = 0;
    for (int32_t c = 0; c < BT_STEP_MIX_CLASSES; c++) {
        const struct bt_step_sum *sum = &mix->classes[c];
        if (sum->n_steps == 0) {
            continue;
        }
        struct bt_batch b = bt_step_mix_mean(sum);
        struct bt_cost_parts whole;
        struct part parts[SOURCES_MAX];
        struct weakest ignored = {0};
        int32_t n = parts_of(cost, &b, target, draft != NULL ? draft : target, TRANSFERRED_SHARE,
                             &ignored, parts);
        cost->ops->step(cost->self, &b, &whole);
        double weight = (double)whole.time_ps * (double)sum->n_steps;
        total += weight;
        for (int32_t i = 0; i < n; i++) {
            int32_t k = 0;
            while (k < n_all && all[k].source != parts[i].source) {
                k++;
            }
            if (k == n_all) {
                all[n_all++] = (struct part){.source = parts[i].source};
            }
            all[k].error += weight * parts[i].error;
        }
    }
    double square = 0;
    for (int32_t k = 0; k < n_all; k++) {
        square += all[k].error * all[k].error;
    }
    return total > 0 ? sqrt(square) / total : -1;
}

void bt_step_trust_fill(struct bt_cost *cost, const struct bt_op_origin target[BT_STEP_OPS],
                        const struct bt_op_origin *draft, int32_t max_seqs, int32_t draft_steps)
{
    static const int32_t batches[] = {1, 4, 16, 64, 128, 256};
    static const int64_t contexts[] = {1024, 4096};
    static const int64_t prompts[] = {512, 2048, 8192};
    struct weakest weakest = {0};
    const struct bt_op_origin *of_draft = draft != NULL ? draft : target;
    double worst = 0;
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        for (size_t c = 0; c < sizeof contexts / sizeof *contexts; c++) {
            int32_t n = batches[i];
            struct bt_batch b = {.n_decode = n,
                                 .n_decode_tokens = n * (1 + draft_steps),
                                 .decode_ctx = n * contexts[c],
                                 .decode_ctx_long = contexts[c],
                                 .n_logits = n * (1 + draft_steps),
                                 .n_draft_steps = draft_steps};
            if (i == 0 || n <= max_seqs) {
                worst = fmax(worst, step_error(cost, &b, target, of_draft, &weakest));
            }
        }
    }
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        int64_t q = prompts[i];
        struct bt_batch b = {.n_prefill = 1,
                             .n_prefill_tokens = (int32_t)q,
                             .prefill_pairs = q * (q + 1) / 2,
                             .prefill_ctx = q,
                             .n_logits = 1};
        worst = fmax(worst, step_error(cost, &b, target, of_draft, &weakest));
    }
    BT_ASSERT(weakest.is_set);
    cost->trust = weakest.level;
    cost->step_error = worst;
    (void)snprintf(cost->weakest, sizeof cost->weakest, "%s (%.40s)", bt_step_op_name(weakest.op),
                   weakest.origin->text);
}
