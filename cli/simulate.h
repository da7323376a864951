/* One run for replay and simulate: the deployment made, the workload served (in virtual time, or by
 * the real engine), what was asked for written to files. Threading: the main thread.
 */
#ifndef BT_CLI_SIMULATE_H
#define BT_CLI_SIMULATE_H

#include "cli/run_opts.h"
#include "cli/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A growing list of samples or records that outlives the run. */
struct bt_kept {
    struct bt_req_record *records; /* owned */
    int64_t n_records, cap_records;
    struct bt_sim_sample *samples; /* owned */
    int64_t n_samples, cap_samples;
    bool lost; /* no memory for all of them */
};

/* Keeps one more; `lost` is set when there is no memory. */
void bt_kept_record(struct bt_kept *k, const struct bt_req_record *r);
void bt_kept_sample(struct bt_kept *k, const struct bt_sim_sample *s);

struct bt_simulation {
    struct bt_deploy deploy;      /* owned */
    struct bt_deploy degrade;     /* owned; zeroed without one */
    struct bt_sim_result *result; /* owned */
    struct bt_kept kept;
    double usd_per_h;
    bool fits; /* false: deploy holds the memory plan alone, unfit the reason */
    struct bt_error unfit;
};

struct bt_simulation_opts {
    const struct bt_config *config;
    const struct bt_run_opts *run;
    double warmup;         /* resolved */
    const char *recording; /* real engine: file of the recording; NULL: none */
    int64_t records_max;   /* requests kept: the first so many that end */
    bool keep_samples;
    const char *label; /* of the progress bar */
};

/* Runs it by the executor that run->executor names; for the real engine config has gone through
 * bt_real_configure. Not fitting is BT_OK with fits == false. */
BT_NODISCARD enum bt_code bt_simulation_run(const struct bt_cli *cli, const struct bt_world *w,
                                            const struct bt_simulation_opts *opts,
                                            struct bt_simulation *out, struct bt_error *err);
void bt_simulation_fini(struct bt_simulation *s);

/* The requests as CSV: one row each, in order of end. BT_ERR_IO. */
BT_NODISCARD enum bt_code bt_simulation_write_requests(const struct bt_simulation *s,
                                                       const char *path, struct bt_error *err);

/* The state over time as CSV. BT_ERR_IO. */
BT_NODISCARD enum bt_code bt_simulation_write_samples(const struct bt_simulation *s,
                                                      const char *path, struct bt_error *err);

/* What does not fit, as a document: command, version, config, stack, fits, reason, memory. */
json_t *bt_simulation_unfit_json(const char *command, const struct bt_simulation *s,
                                 const struct bt_config *config);

#ifdef __cplusplus
}
#endif

#endif
