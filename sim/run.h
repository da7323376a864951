/* One simulation: a deployment serves a workload in virtual time.
 *
 * bt_sim_run builds `replicas` schedulers, each with its sim executor and cost model, routes the
 * source's requests to them, and advances virtual time event by event until every request has ended
 * (or a horizon or limit is reached). Same inputs, same bytes out. Threading: any number of runs at
 * once, each with its own source; the deployment and cost models are shared read-only.
 */
#ifndef BT_SIM_RUN_H
#define BT_SIM_RUN_H

#include "engine/core/arch.h"
#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "engine/core/metrics.h"
#include "engine/core/sched.h"
#include "sim/config.h"
#include "sim/cost/cost.h"
#include "sim/cost/fit.h"
#include "sim/cost/library.h"
#include "sim/cost/step_mix.h"
#include "sim/hardware/memory.h"
#include "sim/workload/source.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_SOURCE_BYTES = 192 };

/* A configuration whose names are resolved: architectures, card, memory plan, cost model, scheduler
 * options. Made by bt_deploy_init from a bt_config and what the catalog says. */
struct bt_deploy {
    struct bt_config config; /* as given, with the stack's defaults where nothing was given */
    struct bt_arch arch;     /* the target model */
    struct bt_arch draft;    /* when config.spec.kind == BT_SPEC_DRAFT */
    struct bt_gpu gpu;
    enum bt_weight_format weights; /* resolved: no BT_AUTO left */
    enum bt_act_format activations;
    enum bt_kv_format kv;
    int32_t max_model_len;
    struct bt_memory_plan memory;
    struct bt_sched_opts sched; /* per replica; metrics, callbacks, replica unset */
    struct bt_cost cost;        /* owned */
    int64_t frontend_ns;        /* from a request's arrival to the scheduler */
    /* Where config.spec.acceptance comes from, when it was looked up; empty: given. */
    char acceptance_source[BT_SOURCE_BYTES];
};

/* Resolves a configuration: formats, memory plan, cost model, scheduler options. `draft` may be
 * NULL without a draft model. The cost model is the configuration's stack's, from measured
 * surfaces; `surfaces` NULL (or a CPU): from the data sheet alone. It is borrowed during the call:
 * what the deployment keeps of it is copied. BT_ERR_UNFIT with the arithmetic in the message when
 * the model does not fit (d is zeroed but for d->memory, which holds the plan); BT_ERR_ARG for
 * values that exclude each other. Speculation without an acceptance is BT_ERR_ARG (never borrowed;
 * bt_plan_deploy looks it up).
 * Which kernels exist on which GPU and stack is the caller's to check. */
BT_NODISCARD enum bt_code bt_deploy_init(struct bt_deploy *d, const struct bt_config *config,
                                         const struct bt_arch *arch, const struct bt_arch *draft,
                                         const struct bt_gpu *gpu,
                                         struct bt_surface_library *surfaces, struct bt_error *err);

/* Makes the deployment's cost model anew with what was fitted to a run of its stack on its card;
 * nothing happens when the fit is of another stack or card. Errors as bt_deploy_init. */
BT_NODISCARD enum bt_code bt_deploy_fit(struct bt_deploy *d, struct bt_surface_library *surfaces,
                                        const struct bt_fit *fit, struct bt_error *err);

/* Puts another cost model in place of the roofline (taken over), and derives from it what the
 * scheduler knows of costs. */
void bt_deploy_set_cost(struct bt_deploy *d, struct bt_cost cost);

void bt_deploy_fini(struct bt_deploy *d);

/* Decisions that a scenario may take over; NULL members are the built-in rule. Called on scheduling
 * decisions only (an arrival, a route, a plan), never per token; must be deterministic. An answer
 * out of its range ends the run with BT_ERR_SCRIPT. */
struct bt_sim_hooks {
    void *ctx;
    /* May change the request (priority, n_output cap through max_new_tokens) or refuse it: false.
     */
    bool (*arrival)(void *ctx, struct bt_req_spec *spec, const struct bt_sched_state *states,
                    int32_t n_replicas, int64_t now_ns);
    /* Called instead of the degradation rule when a replica's queue passes degrade_at_waiting.
     * Returns the most new tokens for this request, 0 to refuse it, < 0 to leave it. A request that
     * is cut goes to the second deployment when there is one. */
    int32_t (*overload)(void *ctx, const struct bt_req_spec *spec,
                        const struct bt_sched_state *state, int64_t now_ns);
    /* Replica for a request, or < 0 for the built-in rule. */
    int32_t (*route)(void *ctx, const struct bt_req_spec *spec, const struct bt_sched_state *states,
                     int32_t n_replicas, int64_t now_ns);
    /* Whether speculation is allowed on a replica; asked when the running count has changed. */
    bool (*speculate)(void *ctx, const struct bt_sched_state *state, int64_t now_ns);
    bool failed; /* a hook sets this (and keeps its own error): the run stops with BT_ERR_SCRIPT */
};

/* One sample of the run's state over time, of all replicas together. */
struct bt_sim_sample {
    int64_t t_ns;
    int32_t running, waiting, swapped;
    int64_t kv_blocks_used, kv_blocks_cached, kv_blocks_total;
    int64_t preempts; /* so far */
};

struct bt_sim_opts {
    const struct bt_deploy *deploy; /* borrowed */
    const struct bt_deploy
        *degrade_deploy; /* borrowed: smaller model for degraded requests; NULL */
    int32_t replicas;    /* > 0: how many serve (redundancy is not simulated) */
    int32_t degrade_replicas;
    struct bt_source *source;  /* borrowed; consumed */
    uint64_t seed;             /* acceptance draws */
    double warmup_fraction;    /* of the source's span (closed loop: of its requests), 0 .. 0.9 */
    double step_scale;         /* pessimistic runs: device time x (1 + error); 0: 1 */
    const struct bt_slo *slos; /* borrowed */
    int32_t n_slos;
    struct bt_sim_hooks *hooks; /* borrowed; NULL: none */
    int64_t horizon_ns;         /* stop then, counting who still runs; 0: until all end */
    int64_t max_events;         /* BT_ERR_LIMIT beyond; 0: none */
    /* Called for each ended request, in order of end, with the source's id as its user; NULL: none.
     */
    void (*on_record)(void *ctx, const struct bt_req_record *record);
    /* Called every sample_ns of virtual time (> 0). */
    void (*on_sample)(void *ctx, const struct bt_sim_sample *sample);
    int64_t sample_ns;
    /* Called now and then with the share of the workload done, 0 .. 1; false stops the run. */
    bool (*on_progress)(void *ctx, double done);
    void *ctx;
    /* Sequential stopping: called each time `stop_every` more requests have ended; true stops the
     * run early (its summary then covers what has ended). NULL: never. */
    bool (*should_stop)(void *ctx, struct bt_metrics *metrics, int64_t now_ns);
    int64_t stop_every;
    /* Where the run's objects live; it must be empty and is reset afterwards, so that the next run
     * finds the pages mapped. Borrowed, for this run alone; NULL: memory of its own. */
    struct bt_arena *memory;
};

struct bt_sim_result {
    struct bt_step_mix mix; /* the steps of the deployment's replicas */
    struct bt_summary summary;
    uint64_t plan_hash; /* of all replicas' plans */
    int64_t events;     /* events processed */
    int64_t steps;
    int64_t end_ns; /* virtual time at the end */
    bool stopped;   /* by should_stop or on_progress */
};

/* Runs to the end. BT_ERR_INPUT from the source, BT_ERR_SCRIPT from a hook, BT_ERR_LIMIT. */
BT_NODISCARD enum bt_code bt_sim_run(const struct bt_sim_opts *opts, struct bt_sim_result *out,
                                     struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
