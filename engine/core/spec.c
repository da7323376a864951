#include "engine/core/spec.h"

#include "engine/core/error.h"

enum { UPDATE_EVERY = 16 }; /* verifications between two choices of K */

static const double DECAY = 1.0 - 1.0 / 1024.0; /* half-life 710 verifications */
static const double PRIOR_REACHED = 8.0;
static const double PRIOR_ACCEPTED = 5.6; /* 0.7: the middle of published draft models */
/* Below this much evidence a position is judged by the one before it. */
static const double MIN_REACHED = 4.0;

void bt_spec_init(struct bt_spec *c, const struct bt_spec_opts *opts)
{
    BT_ASSERT(opts->k >= 0 && opts->k <= BT_MAX_SPEC_K);
    *c = (struct bt_spec){.opts = *opts, .allowed = true, .on = opts->k > 0};
    if (c->opts.on_below_batch == 0) {
        c->opts.on_below_batch = c->opts.off_above_batch * 3 / 4;
    }
    c->reached[0] = PRIOR_REACHED;
    c->accepted[0] = PRIOR_ACCEPTED;
    c->k = opts->k;
    if (opts->k_adaptive && opts->k > 0) {
        c->k = bt_spec_best_k(c, opts->k, opts->draft_cost_ratio);
    }
    c->until_update = UPDATE_EVERY;
}

int32_t bt_spec_decide(struct bt_spec *c, int32_t n_decode)
{
    if (c->opts.k == 0) {
        return 0;
    }
    if (c->opts.off_above_batch > 0) {
        if (c->on && n_decode > c->opts.off_above_batch) {
            c->on = false;
        } else if (!c->on && n_decode <= c->opts.on_below_batch) {
            c->on = true;
        }
    }
    return c->on && c->allowed ? c->k : 0;
}

void bt_spec_observe(struct bt_spec *c, int32_t k, int32_t n_accepted)
{
    BT_DEBUG_ASSERT(k > 0 && k <= BT_MAX_SPEC_K && n_accepted >= 0 && n_accepted <= k);
    if (!c->opts.k_adaptive) {
        return;
    }
    for (int32_t i = 0; i < k && i <= n_accepted; i++) {
        c->reached[i] = c->reached[i] * DECAY + 1.0;
        c->accepted[i] = c->accepted[i] * DECAY + (i < n_accepted ? 1.0 : 0.0);
    }
    if (--c->until_update == 0) {
        c->until_update = UPDATE_EVERY;
        c->k = bt_spec_best_k(c, c->opts.k, c->opts.draft_cost_ratio);
    }
}

double bt_spec_conditional(const struct bt_spec *c, int32_t i)
{
    BT_ASSERT(i >= 0 && i < BT_MAX_SPEC_K);
    while (i > 0 && c->reached[i] < MIN_REACHED) {
        i--;
    }
    return c->accepted[i] / c->reached[i];
}

int32_t bt_spec_best_k(const struct bt_spec *c, int32_t k_max, double draft_cost_ratio)
{
    double all_accepted = 1.0;
    double tokens = 1.0;
    double best_gain = 0.0;
    int32_t best_k = 1;
    for (int32_t k = 1; k <= k_max; k++) {
        all_accepted *= bt_spec_conditional(c, k - 1);
        tokens += all_accepted;
        double gain = tokens / (1.0 + k * draft_cost_ratio);
        if (gain > best_gain) {
            best_gain = gain;
            best_k = k;
        }
    }
    return best_k;
}
