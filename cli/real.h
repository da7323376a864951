/* A workload served for real: the engine on this machine behind the answers of replay, simulate and
 * validate.
 *
 * Requests arrive by the wall clock at the workload's times; prompts are random tokens (equal where
 * the workload says that prefixes are shared), answers have the workload's lengths. Scheduler
 * options, memory plan and metrics are those of the simulation of the same configuration.
 *
 * Ownership: the struct owns models and executor. Threading: the main thread; OpenMP inside.
 */
#ifndef BT_CLI_REAL_H
#define BT_CLI_REAL_H

#include "cli/engine.h"
#include "cli/simulate.h"
#include "engine/gen.h"
#include "engine/record.h"
#include "engine/serve.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_real {
    struct bt_config config; /* what runs: the card is this machine, the pool is bounded */
    struct bt_engine engine;
    struct bt_executor executor;
    struct bt_gen_table table; /* shared by the executor and the loop */
    struct bt_error unfit;     /* when the configuration does not fit */
    bool fits;
};

/* The real engine's card where none was given: "host", or the card of the catalog that the GPU
 * calls itself ("NVIDIA H200" is h200); left empty where the catalog does not know it. */
void bt_real_default_gpu(const struct bt_world *w, const struct bt_run_opts *run,
                         struct bt_config *c);

/* Does nothing for the simulator. Makes a configuration one of this machine: the card is "host"
 * (measured now unless the store knows it) or the GPU that is here, the pool no larger than
 * max_seqs sequences can use, swap space within a quarter of the host's memory, as many steps in
 * flight as the executor takes unless given. BT_ERR_ARG for what only a simulation can do: other
 * cards, several replicas, a stack, more steps in flight, degradation to another model;
 * BT_ERR_MISSING without a CUDA engine or a GPU for it. */
BT_NODISCARD enum bt_code bt_real_configure(struct bt_world *w, const struct bt_run_opts *run,
                                            struct bt_config *c, struct bt_error *err);

/* Loads the models and makes the executor; config has gone through bt_real_configure. Not fitting
 * is BT_OK with fits == false. */
BT_NODISCARD enum bt_code bt_real_open(const struct bt_cli *cli, const struct bt_world *w,
                                       const struct bt_config *config,
                                       const struct bt_run_opts *run, struct bt_real *r,
                                       struct bt_error *err);
void bt_real_close(struct bt_real *r);

/* Serves the workload once. out as bt_simulation_run leaves it, its deployment's trust "measured".
 * recording may be NULL. BT_ERR_ARG for a closed loop. */
BT_NODISCARD enum bt_code bt_real_serve(struct bt_real *r, const struct bt_cli *cli,
                                        const struct bt_world *w,
                                        const struct bt_simulation_opts *opts,
                                        struct bt_recording *recording, struct bt_simulation *out,
                                        struct bt_error *err);

/* The deployment of a configuration whose acceptance need not be known: the engine finds it. */
BT_NODISCARD enum bt_code bt_real_deploy(const struct bt_world *w, const struct bt_config *c,
                                         struct bt_deploy *d, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
