/* One sequence on a model, for evaluation, calibration and tests: a decoder with a KV pool of its
 * own. Serving many requests is executor_cpu.h.
 *
 * Ownership: a session owns its memory and borrows the model. Threading: one call at a time.
 */
#ifndef BT_ENGINE_CPU_SESSION_H
#define BT_ENGINE_CPU_SESSION_H

#include "engine/cpu/decoder.h"
#include "engine/score.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns BT_ERR_ARG for a context beyond the model's or a format without arithmetic; BT_ERR_NOMEM.
 */
BT_NODISCARD enum bt_code bt_cpu_session_create(const struct bt_session_opts *opts,
                                                struct bt_session **out, struct bt_error *err);
void bt_cpu_session_destroy(struct bt_session *s);

/* Computes n tokens at positions from .. from + n - 1; those before are in the pool (from 0 starts
 * anew). logits, [n - first, vocab] or NULL, gets the rows of tokens first .. n - 1. Returns
 * BT_ERR_ARG for ids outside the vocabulary or a sequence beyond max_ctx. */
BT_NODISCARD enum bt_code bt_cpu_session_run(struct bt_session *s, const int32_t *ids, int32_t n,
                                             int32_t from, int32_t first, float *logits,
                                             struct bt_error *err);

/* What static activation scales have met so far. */
struct bt_clip_counts bt_cpu_session_clipped(const struct bt_session *s);

/* Runs layers first .. until - 1 alone on a whole sequence of n tokens from position 0. residual
 * [n, hidden]: what the layers before `first` gave (not read when first is 0), and what these give.
 * first == until, the model's layers, only taps the final normalised states. Errors as run. */
BT_NODISCARD enum bt_code bt_cpu_session_layers(struct bt_session *s, const int32_t *ids, int32_t n,
                                                int32_t first, int32_t until, float *residual,
                                                struct bt_error *err);

/* Scores ids [n], n >= 2: token i is predicted from those before it. Errors as run. nll_of, [n - 1]
 * or NULL, gets each prediction's share. */
BT_NODISCARD enum bt_code bt_cpu_session_score(struct bt_session *s, const int32_t *ids, int32_t n,
                                               struct bt_score *out, double *nll_of,
                                               struct bt_error *err);

/* Calls tap with the inputs of all linear layers from now on; NULL ends it. */
void bt_cpu_session_tap(struct bt_session *s, bt_cpu_tap_fn tap, void *user);

#ifdef __cplusplus
}
#endif

#endif
