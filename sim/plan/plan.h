/* The capacity search: which configuration, how many replicas, at what price, meets the SLOs.
 *
 * A question is a list of candidate configurations, a workload, SLOs, a budget and
 * prices. The answer lists every candidate with a verdict, its cost and a reason. How it is found:
 *
 *  1. Memory and kernels: what does not fit or does not exist is infeasible, with the arithmetic.
 *  2. Analytic bound: a lower bound on replicas (compute, bandwidth, KV residence) and on latency
 *     (a request alone). What the bound excludes by budget or SLO is infeasible without simulation.
 *     The bound is optimistic by construction: it may only exclude what a simulation would exclude.
 *  3. One replica is simulated on its share of the stream (every N-th request of the real stream),
 *     with sequential stopping; the least N that holds the SLOs is found by bisection with common
 *     random numbers. Within a group of candidates that differ in second-order knobs only, those
 *     that cannot beat the group's best are stopped early, and say so.
 *  4. The finalists run with all replicas and routing, over several seeds, until the confidence
 *     interval of each SLO statistic is clear of its limit (alpha spent over the looks), or the
 *     seeds run out: then the answer says that it is not clear.
 *  5. Finalists run again with step times scaled by 1 + error: feasible only if that holds too,
 *     marginal if only the central run does, unverified where accuracy is asked for and unknown.
 *
 * Candidates are shared among threads; the answer does not depend on how many.
 */
#ifndef BT_SIM_PLAN_PLAN_H
#define BT_SIM_PLAN_PLAN_H

#include "engine/core/arch.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "engine/core/metrics.h"
#include "engine/core/trust.h"
#include "sim/config.h"
#include "sim/run.h"
#include "sim/workload/source.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_PLAN_MAX_CANDIDATES = 200000, BT_REASON_BYTES = 320 };

/* What the planner asks of its surroundings (the catalog lives in db, which sim never sees). All
 * functions are called from several threads at once and must only read. */
struct bt_plan_env {
    void *ctx;
    /* Measured surfaces; NULL: cost models come from the data sheet alone. */
    struct bt_surface_library *surfaces;
    const struct bt_fit *fit; /* borrowed; to a run of the stack; NULL: none */
    /* Candidate i of bt_plan_spec.n_candidates. */
    void (*config)(void *ctx, int64_t i, struct bt_config *out);
    /* Architecture of a model's name, config.json or folder. */
    enum bt_code (*find_model)(void *ctx, const char *name, struct bt_arch *out,
                               struct bt_error *err);
    enum bt_code (*find_gpu)(void *ctx, const char *name, struct bt_gpu *out, struct bt_error *err);
    /* USD an hour of one GPU; NAN when unpriced. */
    double (*gpu_price)(void *ctx, const char *gpu);
    /* Whether a kernel for these formats exists on this GPU and stack; false fills `reason`. */
    bool (*supported)(void *ctx, const char *stack, const struct bt_gpu *gpu,
                      enum bt_weight_format w, enum bt_act_format a, enum bt_kv_format kv,
                      char *reason, size_t reason_bytes);
    /* Accuracy lost by these formats against 16-bit, in points of the unit that `source` names; NAN
     * when nobody measured it for this model. 0 for 16-bit. */
    double (*accuracy_drop)(void *ctx, const struct bt_arch *arch, enum bt_weight_format w,
                            enum bt_act_format a, enum bt_kv_format kv, char *source,
                            size_t source_bytes);
    /* Fills spec->acceptance with what was measured for exactly this target, speculation,
     * temperature and kind of text, and names it; false: nobody measured it. `draft` is NULL
     * without a draft model. May be NULL. */
    bool (*find_acceptance)(void *ctx, const struct bt_arch *target, const struct bt_arch *draft,
                            struct bt_spec_config *spec, char *source, size_t source_bytes);
    /* A fresh source of the workload. `seed` varies over repetitions for generated load; a trace is
     * the same for each. */
    enum bt_code (*make_source)(void *ctx, uint64_t seed, struct bt_source **out,
                                struct bt_error *err);
    /* Hooks for one simulation (a fresh Lua state each); *out NULL: none. The function may be NULL.
     */
    enum bt_code (*make_hooks)(void *ctx, struct bt_sim_hooks **out, struct bt_error *err);
    void (*free_hooks)(void *ctx, struct bt_sim_hooks *hooks);
};

/* Resolves a configuration's names and its acceptance, and makes its deployment, and that of the
 * smaller model for degraded requests where it names one (else *degrade is zeroed). Both are to be
 * ended by bt_deploy_fini; on failure there is nothing to end. Errors as those of env and
 * bt_deploy_init. */
BT_NODISCARD enum bt_code bt_plan_deploy(const struct bt_plan_env *env,
                                         const struct bt_config *config, struct bt_deploy *deploy,
                                         struct bt_deploy *degrade, struct bt_error *err);

struct bt_plan_spec {
    int64_t n_candidates; /* 1 .. BT_PLAN_MAX_CANDIDATES */
    uint64_t seed;
    double warmup_fraction;
    const struct bt_slo *slos;
    int32_t n_slos;              /* > 0 */
    double memory_headroom;      /* share of the KV pool that must stay free at the peak; 0: none */
    double accuracy_drop_points; /* most that may be lost; NAN: not asked */
    double budget_usd_per_h;     /* NAN: none */
    int32_t budget_cards;        /* 0: none */
    int32_t jobs;                /* threads, >= 1 */
    int32_t seeds_max;           /* repetitions of a finalist; 0: 8 */
    int32_t finalists_max;       /* 0: 12 */
    bool seeds_vary;             /* the workload is drawn anew for each seed (a trace is not) */
    bool exhaustive;             /* find the least replicas of every candidate: slower */
    /* Share of the work done, 0 .. 1, with candidates so far; called from one thread at a time. */
    void (*on_progress)(void *ctx, double done, int32_t n_done, int32_t n_candidates);
    void *progress_ctx;
};

enum bt_verdict { BT_FEASIBLE, BT_MARGINAL, BT_INFEASIBLE, BT_UNVERIFIED };
const char *bt_verdict_name(enum bt_verdict v);

/* Why a candidate was put aside, for counting and colouring; the text is in `reason`. */
enum bt_plan_stage {
    BT_STAGE_CONFIG,    /* values that exclude each other */
    BT_STAGE_KERNEL,    /* no such kernel */
    BT_STAGE_MEMORY,    /* does not fit */
    BT_STAGE_ACCURACY,  /* loses more than allowed */
    BT_STAGE_BOUND,     /* excluded by the analytic bound */
    BT_STAGE_BUDGET,    /* needs more than the budget */
    BT_STAGE_SLO,       /* simulated: misses an SLO at any affordable size */
    BT_STAGE_DOMINATED, /* simulated: holds, or might, but not cheaper than its group's best */
    BT_STAGE_FINAL,     /* confirmed with all replicas, or refused there */
};

struct bt_plan_ci {
    double mean_s, low_s, high_s; /* of an SLO's statistic over seeds */
    int32_t n_seeds;
    bool clear; /* the interval does not hold the limit */
};

/* What one step more or less of a knob does to the best plan. */
struct bt_plan_sensitivity {
    const struct bt_config_field *field;
    char value[BT_NAME_BYTES]; /* the changed value */
    bool holds;                /* the SLOs hold with the same replicas */
    double slo_value_s;        /* first SLO's statistic */
    double capacity_req_per_s; /* highest sustainable rate */
    double cost_usd_per_h;     /* of the replicas it would need; NAN when unpriced */
};

struct bt_plan_candidate {
    struct bt_config config;
    enum bt_verdict verdict;
    enum bt_plan_stage stage;
    char reason[BT_REASON_BYTES];
    int32_t replicas;           /* that serve */
    int32_t replicas_paid;      /* with redundancy */
    int32_t cards;              /* GPUs in all */
    double cost_usd_per_h;      /* NAN when unpriced */
    double cost_usd_per_mtok;   /* of output tokens; NAN */
    double cost_usd_per_1k_req; /* NAN */
    double capacity_req_per_s;  /* highest rate that holds the SLOs with these replicas; NAN */
    double headroom;            /* capacity / rate - 1; NAN */
    bool simulated;
    struct bt_summary *summary; /* owned by the answer; NULL unless simulated with all replicas */
    struct bt_plan_ci ci[BT_MAX_SLOS];
    enum bt_bottleneck bottleneck;
    enum bt_trust trust;
    char trust_op[64];            /* the weakest operation */
    double step_error;            /* relative bound of step times used for the pessimistic run */
    double accuracy_drop;         /* NAN unknown */
    double acceptance_break_even; /* conditional acceptance at which speculation neither gains nor
                                     loses; NAN without speculation */
    char acceptance_source[BT_SOURCE_BYTES]; /* as bt_deploy's, once confirmed */
    double price_break_even_usd_per_h;       /* GPU price at which it ties the best; NAN */
    struct bt_memory_plan memory;
};

struct bt_plan_answer {
    int32_t n_candidates;
    struct bt_plan_candidate *candidates; /* owned; ranked: verdict, cost, then order of search */
    int32_t best; /* first of the ranking, whose verdict tells how sure it is; -1: none may serve */
    int32_t n_priced;      /* unpriced candidates come after these */
    double rate_req_per_s; /* mean arrival rate of the workload */
    int32_t n_sensitivity;
    struct bt_plan_sensitivity *sensitivity; /* owned */
    int64_t simulations;                     /* runs made */
};

/* Searches. BT_OK with best == -1 when all are infeasible: that is an answer. */
BT_NODISCARD enum bt_code bt_plan_search(const struct bt_plan_spec *spec,
                                         const struct bt_plan_env *env, struct bt_plan_answer *out,
                                         struct bt_error *err);
void bt_plan_answer_fini(struct bt_plan_answer *a);

/* Highest rate that one configuration holds, by bisection with common random numbers over
 * time-compressed copies of the same stream; each probe is one simulation. */
struct bt_rate_probe {
    double rate_req_per_s;
    bool holds;
    double slo_value_s[BT_MAX_SLOS];
    double met_fraction[BT_MAX_SLOS]; /* of all requests, those within the limit */
    enum bt_bottleneck bottleneck;
};
struct bt_max_rate {
    double rate_req_per_s; /* highest that holds; 0: none does */
    double first_bad_req_per_s;
    int32_t n_probes;
    struct bt_rate_probe probes[64]; /* in order of rate */
    double unservable_fraction;      /* requests that no rate could serve: too long */
    bool hopeless;                   /* .. and they alone break an SLO */
    int32_t broken_slo;              /* index of the SLO that breaks first */
    enum bt_bottleneck bottleneck;   /* at the first rate that breaks */
};
BT_NODISCARD enum bt_code bt_plan_max_rate(const struct bt_plan_spec *spec,
                                           const struct bt_plan_env *env,
                                           const struct bt_deploy *deploy,
                                           const struct bt_deploy *degrade_deploy, int32_t replicas,
                                           double relative_width, struct bt_max_rate *out,
                                           struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
