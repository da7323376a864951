/* What the simulating commands share: the catalog, prices, a workload, and the planner's view of
 * them. Threading: after it is set up, everything here may be read by any number of threads.
 */
#ifndef BT_CLI_WORLD_H
#define BT_CLI_WORLD_H

#include "cli/command.h"
#include "cli/local.h"
#include "db/catalog.h"
#include "scripts/host/scenario.h"
#include "sim/plan/plan.h"
#include "sim/workload/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_world {
    struct bt_catalog *catalog; /* owned */
    struct bt_local local;      /* owned: what the store knows of this machine */
    struct bt_price_list prices;
    const struct bt_scenario *scenario; /* borrowed; NULL: the workload came by option */
    struct bt_workload_spec workload;
    struct bt_trace *trace;            /* owned; NULL: the workload is generated */
    struct bt_fit fit;                 /* of --fit */
    struct bt_embedded *texts, *skews; /* owned arrays: calibrations that the surfaces are of */
    struct bt_plan_env env;            /* owns its surfaces; config is left to the command */
    struct bt_gpu host;                /* this machine, where the store does not know it .. */
    bool has_host;                     /* .. and somebody asked for it */
};

/* Opens the catalog and takes the --price options. */
BT_NODISCARD enum bt_code bt_world_open(const struct bt_cli *cli, struct bt_world *w,
                                        struct bt_error *err);
void bt_world_close(struct bt_world *w);

/* Takes a scenario's workload and prices (--price goes before them). BT_ERR_INPUT when it has no
 * workload. The scenario is borrowed. */
BT_NODISCARD enum bt_code bt_world_use_scenario(struct bt_world *w, const struct bt_cli *cli,
                                                const struct bt_scenario *s, struct bt_error *err);

/* Loads a trace as the workload. */
BT_NODISCARD enum bt_code bt_world_use_trace(struct bt_world *w, const char *path,
                                             const struct bt_trace_opts *opts,
                                             struct bt_error *err);

/* Makes "host" known: as calibration stored it, else measured now with so many threads. */
BT_NODISCARD enum bt_code bt_world_need_host(struct bt_world *w, int32_t n_threads,
                                             struct bt_error *err);

/* Sampling period of a time series: about a thousand samples of the workload's span, a round number
 * of milliseconds. */
int64_t bt_world_sample_ns(const struct bt_world *w);

/* Whether kernels for a deployment's formats exist; BT_ERR_ARG says which does not. */
BT_NODISCARD enum bt_code bt_world_check_kernels(const struct bt_world *w,
                                                 const struct bt_deploy *d, struct bt_error *err);

/* USD an hour of all GPUs of a deployment with so many replicas, spare ones included; NAN. */
double bt_world_usd_per_h(const struct bt_world *w, const struct bt_config *c, int32_t replicas);

#ifdef __cplusplus
}
#endif

#endif
