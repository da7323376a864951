/* The parts of the capacity search that its files share. */
#ifndef BT_SIM_PLAN_SEARCH_H
#define BT_SIM_PLAN_SEARCH_H

#include "sim/plan/bound.h"
#include "sim/plan/trial.h"

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A candidate on its way. */
struct bt_seat {
    struct bt_plan_candidate *c; /* borrowed from the answer */
    int64_t number;              /* in the order given: the last tie-break */
    double price;                /* USD an hour of one GPU; NAN */
    int32_t replicas_min;        /* by the bound */
    int32_t replicas_max;        /* by the budget */
    bool open;                   /* still in the race */
    double first_slo_s;          /* first SLO's statistic at c->replicas, for ties */
};

struct bt_search {
    const struct bt_plan_spec *spec;
    const struct bt_plan_env *env;
    struct bt_stream *streams; /* one a seed; owned */
    int32_t n_streams;
    struct bt_seat *seats; /* owned */
    int64_t n_seats;
    int64_t *order;       /* seats by group; owned */
    int64_t *group_start; /* n_groups + 1 indices into order; owned */
    int64_t n_groups;

    pthread_mutex_t lock;            /* of what follows */
    struct bt_search_memory *memory; /* owned: not in use at the moment */
    int64_t simulations;
    int64_t n_settled;
};

/* Memory for one simulation at a time, kept from one to the next: as many of these as threads. */
struct bt_search_memory {
    struct bt_arena arena;
    struct bt_search_memory *next;
};

/* One that nobody uses, or a new one; BT_ERR_NOMEM. To be given back. */
BT_NODISCARD enum bt_code bt_search_memory_take(struct bt_search *s, struct bt_search_memory **out,
                                                struct bt_error *err);
void bt_search_memory_give(struct bt_search *s, struct bt_search_memory *memory);

/* Counts a simulation and runs it. */
BT_NODISCARD enum bt_code bt_search_trial(struct bt_search *s, const struct bt_trial *t,
                                          struct bt_trial_result *out, struct bt_summary *summary,
                                          struct bt_error *err);

/* Whether growing still helps one candidate; starts zeroed. */
struct bt_growth {
    int32_t replicas; /* of the trial remembered; 0: none yet */
    int32_t broken_slo;
    double badness;
};

/* After a trial that does not hold: *futile says that no number of replicas can mend it. Either
 * requests that no replica may serve are too many, or requests are nearly alone on their replicas
 * and yet a far smaller number of these did as well. A trial that was stopped may be run to its end
 * into *r. */
BT_NODISCARD enum bt_code bt_search_is_futile(struct bt_search *s, struct bt_growth *g,
                                              const struct bt_trial *t, struct bt_trial_result *r,
                                              bool *futile, struct bt_error *err);

/* One more candidate is settled: tells the caller's progress. */
void bt_search_settled(struct bt_search *s, int64_t n);

/* Sets replicas, cards and cost of a candidate. */
void bt_search_price(struct bt_seat *seat, int32_t replicas);

/* "e2e.p95 1.83 s > 1.5 s", or what else a trial broke. */
void bt_search_describe(const struct bt_plan_spec *spec, const struct bt_trial_result *r, char *out,
                        size_t out_bytes);

/* Stage 3: finds the least replicas of each member of group g on one replica's share. */
BT_NODISCARD enum bt_code bt_search_group(struct bt_search *s, int64_t g, struct bt_error *err);

/* Stages 4 and 5 for one seat: all replicas, several seeds, pessimistic step times. */
BT_NODISCARD enum bt_code bt_search_confirm(struct bt_search *s, struct bt_seat *seat,
                                            struct bt_error *err);

/* What one step of each knob does to a confirmed candidate, and its capacity. */
BT_NODISCARD enum bt_code bt_search_sensitivity(struct bt_search *s, struct bt_seat *seat,
                                                struct bt_plan_answer *answer,
                                                struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
