/* The serving loop: the one that owns the clock. Requests arrive by the monotonic clock at their
 * times (or all at once), the scheduler plans, an executor runs the plans, and every call is
 * written into a recording when one is wanted.
 *
 * Ownership: everything given is borrowed for the run. Threading: the calling thread; callbacks
 * come from it.
 */
#ifndef BT_ENGINE_SERVE_H
#define BT_ENGINE_SERVE_H

#include "engine/clock.h"
#include "engine/core/error.h"
#include "engine/core/executor.h"
#include "engine/core/sched.h"
#include "engine/gen.h"
#include "engine/record.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* When a request of the table arrives; row i belongs to request i. */
struct bt_arrival {
    int64_t arrival_ns; /* from the start of the run; not decreasing from row to row */
    int64_t timeout_ns; /* from arrival; 0: none */
    int32_t priority;
};

struct bt_serve_opts {
    const struct bt_executor *executor;
    /* metrics is used; on_end, on_tokens, ctx and replica are the loop's own. */
    struct bt_sched_opts sched;
    struct bt_gen_table *requests;     /* n_out and spec are set anew */
    const struct bt_arrival *arrivals; /* NULL: all arrive at once, without timeout */
    enum bt_clock clock;               /* WORK: waits are skipped; the executor's is the same */
    bool fast;                         /* all arrive at once, whatever their times */
    struct bt_recording *recording;    /* initialised by the loop; may be NULL */

    /* Each may be NULL. Tokens `first` .. first + n - 1 of the request's answer are there. */
    void (*on_tokens)(void *ctx, int64_t request, int32_t first, int32_t n, int64_t now_ns);
    void (*on_end)(void *ctx, int64_t request, const struct bt_req_record *record);
    /* After each step; false stops the run: what lives is cancelled, what has not arrived is left.
     */
    bool (*on_step)(void *ctx, const struct bt_sched_state *state, int64_t n_ended, int64_t now_ns);
    void *ctx;
};

struct bt_serve_result {
    int64_t n_steps;
    int64_t end_ns; /* of the last call of the scheduler: the horizon of the metrics */
    uint64_t plan_hash;
    int64_t n_by_outcome[BT_N_OUTCOMES];
};

/* Runs until every request has ended. Returns BT_ERR_ARG for options that do not fit together (the
 * scheduler's own checks; arrivals out of order; more steps in flight than the executor takes),
 * BT_ERR_NOMEM, or the executor's error. */
BT_NODISCARD enum bt_code bt_serve_run(const struct bt_serve_opts *opts,
                                       struct bt_serve_result *result, struct bt_error *err);

/* Chained content hashes of a prompt: hash j covers tokens 0 .. (j + 1) * hash_tokens - 1. Fills
 * n_prompt / hash_tokens of them. */
void bt_serve_prefix_hashes(const int32_t *prompt, int32_t n_prompt, int32_t hash_tokens,
                            uint64_t *hashes);

/* Tokens a hash should cover so that blocks of both classes end at one. */
int32_t bt_serve_hash_tokens(const struct bt_sched_opts *sched);

#ifdef __cplusplus
}
#endif

#endif
