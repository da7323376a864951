/* Runs and plans into the store, each with its provenance. A store that cannot be written costs a
 * warning, never the answer. Threading: the main thread.
 */
#ifndef BT_CLI_RECORD_H
#define BT_CLI_RECORD_H

#include "cli/run_opts.h"
#include "cli/simulate.h"
#include "cli/world.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_store;
struct bt_store_validation;

/* One recording; zeroed, or made by bt_record_begin. Every call on one that has failed is a no-op.
 */
struct bt_record {
    const struct bt_cli *cli;
    struct bt_store *store; /* owned; NULL: not recording */
    int64_t run_id;
};

/* Starts the run of this command: scenario text or trace with its hash, seed, stack, commit. The
 * answer must be known to be good: nothing is recorded for bad input. */
void bt_record_begin(struct bt_record *r, const struct bt_cli *cli, const struct bt_world *w,
                     const struct bt_run_opts *run, const char *name, const char *trace_path,
                     const char *stack);

/* Summary number i of the run with its requests and samples. */
void bt_record_simulation(struct bt_record *r, int32_t i, const char *label,
                          const struct bt_simulation *s);

/* The candidates of a plan. */
void bt_record_plan(struct bt_record *r, const struct bt_plan_spec *spec,
                    const struct bt_plan_answer *a);

/* What a validation found. */
void bt_record_validations(struct bt_record *r, const struct bt_store_validation *rows, int32_t n);

/* Ends the run, tells its number on stderr, closes the store; keep false: the command has failed
 * after all, and nothing of the run is left. */
void bt_record_end(struct bt_record *r, bool keep);

#ifdef __cplusplus
}
#endif

#endif
