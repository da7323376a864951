/* Speculation control: on or off by the size of the decode batch, and how many draft tokens.
 *
 * On/off has hysteresis: off when more than off_above_batch sequences decode, on again when at most
 * on_below_batch do. K is fixed, or chosen to maximise the expected tokens of a verification per
 * unit of time, (1 + sum_{i<=K} p_1 .. p_i) / (1 + K c), where p_i is the probability that draft
 * token i is accepted given that all before it were, and c is the cost of a draft step in target
 * steps (Leviathan et al. 2023, sec. 3.3, with measured p_i instead of one alpha). p_i is the
 * quotient of counts that forget with a half-life of about 700 verifications, and starts from a
 * prior of a few observations; a position never reached takes the estimate before it.
 *
 * Pure arithmetic without libm: the same results on every machine. Threading: one thread.
 */
#ifndef BT_ENGINE_CORE_SPEC_H
#define BT_ENGINE_CORE_SPEC_H

#include "engine/core/limits.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_spec_opts {
    int32_t k;               /* 0: no speculation; <= BT_MAX_SPEC_K */
    bool k_adaptive;         /* K moves in 1 .. k to maximise the expected gain */
    double draft_cost_ratio; /* c: draft step time / target step time, for the adaptive K; >= 0 */
    int32_t off_above_batch; /* off when more sequences decode; 0: never */
    int32_t on_below_batch;  /* on again when at most so many do; 0: off_above_batch * 3/4 */
    bool has_draft_kv;       /* a draft model keeps KV of its own: catch-up after an off phase */
};

struct bt_spec {
    struct bt_spec_opts opts;
    bool allowed; /* by the caller (a hook) */
    bool on;      /* by the size of the batch */
    int32_t k;    /* in force when on, 1 .. opts.k */
    int32_t until_update;
    double reached[BT_MAX_SPEC_K];  /* decayed: verifications that reached draft token i */
    double accepted[BT_MAX_SPEC_K]; /* decayed: of those, token i accepted */
};

void bt_spec_init(struct bt_spec *c, const struct bt_spec_opts *opts);

/* K for a step in which n_decode sequences decode: 0 when off. Moves the on/off state. */
int32_t bt_spec_decide(struct bt_spec *c, int32_t n_decode);

/* One verification of k draft tokens, of which the first n_accepted were accepted. */
void bt_spec_observe(struct bt_spec *c, int32_t k, int32_t n_accepted);

/* Estimated probability that draft token i (0-based) is accepted when all before it were. */
double bt_spec_conditional(const struct bt_spec *c, int32_t i);

/* The K in 1 .. k_max that maximises expected tokens per time for these estimates. */
int32_t bt_spec_best_k(const struct bt_spec *c, int32_t k_max, double draft_cost_ratio);

#ifdef __cplusplus
}
#endif

#endif
