/* The store: one SQLite file that holds the catalog, measurements, runs, plans and validations,
 * each with its provenance. This is the only door to it; no SQL lives outside db/.
 *
 * Life: bt_store_open .. (begin_run .. add .. end_run)* .. close. Nothing here is fatal to an
 * answer: every function returns BT_ERR_STORE with the path and SQLite's reason, and the caller
 * warns and goes on. A run is kept or lost as a whole up to the last add that returned BT_OK; what
 * a crash or a full disk cuts off stays marked "running" without an end.
 *
 * Two processes may write at once (WAL, waits up to busy_timeout_ms for the other's transaction).
 * Threading: one store, one thread at a time.
 */
#ifndef BT_DB_STORE_H
#define BT_DB_STORE_H

#include "db/catalog.h"
#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "engine/core/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_embedded; /* cmake/embedded.h */
struct bt_store;

enum {
    BT_STORE_VERSION = 2,                 /* user_version that this program knows */
    BT_STORE_APPLICATION_ID = 0x42727468, /* "Brth" */
    BT_STORE_REQUESTS_MAX = 100000,       /* kept of a run unless keep_all_requests */
    BT_STORE_PATH_BYTES = 4096,
};

struct bt_store_opts {
    const char *path;                 /* NULL: bt_store_default_path */
    const struct bt_catalog *catalog; /* borrowed for the call: loaded when new or changed; NULL */
    bool read_only;                   /* the file must exist and be of this version */
    int32_t busy_timeout_ms;          /* 0: 10,000 */
    int64_t max_pages;                /* most pages of the file (tests of a full disk); 0: none */
};

/* $BERTH_DB, else berth/berth.db under $XDG_DATA_HOME (when absolute), else under
 * ~/.local/share. BT_ERR_STORE when there is neither, or the path is too long. */
BT_NODISCARD enum bt_code bt_store_default_path(char out[BT_STORE_PATH_BYTES],
                                                struct bt_error *err);

/* Opens, creating folders and file on first use, and migrates an older store. BT_ERR_STORE: cannot
 * be opened or written, is another program's database, is damaged, or is of a newer version. */
BT_NODISCARD enum bt_code bt_store_open(const struct bt_store_opts *opts, struct bt_store **out,
                                        struct bt_error *err);

/* NULL is allowed. Aborts on statements left open (a programmer's error). */
void bt_store_close(struct bt_store *s);

const char *bt_store_path(const struct bt_store *s);

/* user_version before and after this opening; equal unless it migrated. */
void bt_store_versions(const struct bt_store *s, int32_t *before, int32_t *after);

/* ---- runs ---- */

/* Texts are borrowed for the call; NULL means "". */
struct bt_store_run {
    const char *command; /* "replay"; required */
    const char *name;
    const char *version;
    const char *commit_id;
    bool commit_dirty;
    const char *build_type;
    const char *scenario_text;
    const char *trace_name;
    const char *trace_sha256;
    uint64_t seed;
    const char *executor; /* NULL: "sim" */
    const char *stack;    /* NULL: "berth" */
    const char *device;
    const char *driver;
    bool keep_all_requests;
};

/* Starts a run: its row is on disk when this returns. One run at a time. */
BT_NODISCARD enum bt_code bt_store_begin_run(struct bt_store *s, const struct bt_store_run *run,
                                             int64_t *run_id, struct bt_error *err);

struct bt_store_summary {
    int32_t summary_index;
    const char *label;
    const char *model;
    const char *gpu;
    const char *trust;
    const char *config_json;          /* required, valid JSON */
    const char *metrics_json;         /* required, valid JSON */
    const struct bt_summary *summary; /* borrowed: gives the indexed columns */
    double cost_usd_per_h;            /* NAN: unpriced */
};

BT_NODISCARD enum bt_code bt_store_add_summary(struct bt_store *s, int64_t run_id,
                                               const struct bt_store_summary *summary,
                                               struct bt_error *err);

/* Adds n requests in order of end, in one transaction. Beyond BT_STORE_REQUESTS_MAX of a run they
 * are counted and not kept, unless keep_all_requests. */
BT_NODISCARD enum bt_code bt_store_add_requests(struct bt_store *s, int64_t run_id,
                                                int32_t summary_index,
                                                const struct bt_req_record *records, int64_t n,
                                                struct bt_error *err);

struct bt_store_sample {
    int64_t t_ns;
    int64_t running, waiting, swapped;
    int64_t kv_blocks_used, kv_blocks_cached, kv_blocks_total;
    int64_t preempts;
};

BT_NODISCARD enum bt_code bt_store_add_timeseries(struct bt_store *s, int64_t run_id,
                                                  int32_t summary_index,
                                                  const struct bt_store_sample *samples, int64_t n,
                                                  struct bt_error *err);

struct bt_store_candidate {
    const char *verdict; /* feasible, marginal, infeasible, unverified */
    const char *reason;
    const char *model;
    const char *gpu;
    int32_t replicas;
    int32_t cards;
    double cost_usd_per_h;     /* NAN: unpriced */
    double capacity_req_per_s; /* NAN: not known */
    const char *trust;
    const char *config_json;
    const char *metrics_json; /* NULL: not simulated */
};

/* Records the plan of a run with its candidates in their ranking, in one transaction. best_rank <
 * 0: none is feasible. */
BT_NODISCARD enum bt_code bt_store_add_plan(struct bt_store *s, int64_t run_id,
                                            const char *question_json,
                                            const struct bt_store_candidate *candidates, int32_t n,
                                            int32_t best_rank, struct bt_error *err);

struct bt_store_validation {
    const char *metric;
    const char *unit;
    double predicted;
    double measured;
    double noise; /* relative; NAN: unknown */
};

BT_NODISCARD enum bt_code bt_store_add_validations(struct bt_store *s, int64_t run_id,
                                                   const struct bt_store_validation *rows,
                                                   int32_t n, struct bt_error *err);

enum bt_run_status { BT_RUN_DONE, BT_RUN_FAILED, BT_RUN_STOPPED };

BT_NODISCARD enum bt_code bt_store_end_run(struct bt_store *s, int64_t run_id,
                                           enum bt_run_status status, struct bt_error *err);

/* Removes a run and all that hangs from it. BT_ERR_NOTFOUND. */
BT_NODISCARD enum bt_code bt_store_delete_run(struct bt_store *s, int64_t run_id,
                                              struct bt_error *err);

/* ---- measurements ---- */

struct bt_store_provenance {
    const char *kind;   /* shipped, measured, imported, fitted, user */
    const char *source; /* required */
    const char *source_date;
    const char *licence;
    const char *content_sha256;
};

struct bt_store_calibration {
    const char *name; /* unique; the same name replaces the session and its samples */
    const char *gpu;
    const char *stack;
    const char *stack_version;
    const char *engine_sha256;
    enum bt_trust trust; /* not roofline */
    const char *driver;
    int32_t sm_clock_mhz, mem_clock_mhz;
    double power_limit_w;
    const char *started_utc;
    const char *notes;
    struct bt_store_provenance provenance;
};

struct bt_op_sample {
    char op[32];
    enum bt_weight_format weights; /* zero: no weights */
    enum bt_act_format activations;
    enum bt_kv_format kv;
    int32_t m_tokens, n_out, k_in;
    int32_t n_seqs, context_tokens;
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t block_tokens;
    int32_t tp;
    double median_ns, spread_ns;
    int32_t n_repeats;
    int64_t bytes, flops;
};

struct bt_pcie_sample {
    const char *direction; /* to_device, to_host, duplex; static storage when read */
    int64_t copy_bytes;
    double bytes_per_s, spread_bytes_per_s;
};

struct bt_acceptance_sample {
    int32_t position; /* from 1 */
    int64_t n_proposed, n_accepted;
};

/* Writes a session with its samples in one transaction. */
BT_NODISCARD enum bt_code bt_store_add_calibration(struct bt_store *s,
                                                   const struct bt_store_calibration *session,
                                                   const struct bt_op_sample *ops, int64_t n_ops,
                                                   const struct bt_pcie_sample *pcie,
                                                   int64_t n_pcie, struct bt_error *err);

/* A session as stored, with its samples; texts and arrays lie in the arena given. */
struct bt_calibration {
    int64_t calibration_id;
    const char *name, *gpu, *stack, *stack_version, *engine_sha256, *driver, *started_utc, *source;
    enum bt_trust trust;
    int64_t n_ops;
    struct bt_op_sample *ops;
    int64_t n_pcie;
    struct bt_pcie_sample *pcie;
};

/* All sessions of a GPU (NULL: any) and stack (NULL: any), oldest first. */
BT_NODISCARD enum bt_code bt_store_load_calibrations(struct bt_store *s, const char *gpu,
                                                     const char *stack, struct bt_arena *arena,
                                                     struct bt_calibration **out, int32_t *n,
                                                     struct bt_error *err);

BT_NODISCARD enum bt_code
bt_store_add_acceptance(struct bt_store *s, const char *target, const char *draft,
                        double temperature, const char *text_kind,
                        const struct bt_acceptance_sample *samples, int32_t n,
                        const struct bt_store_provenance *provenance, struct bt_error *err);

/* Acceptance at one position of one pair, temperature and kind of text, summed over provenances. */
struct bt_acceptance {
    const char *target, *draft;
    double temperature;
    const char *text_kind;
    struct bt_acceptance_sample sample;
};

/* All that was measured, equal pairs, temperatures and kinds together, by position; texts lie in
 * the arena. */
BT_NODISCARD enum bt_code bt_store_load_acceptance(struct bt_store *s, struct bt_arena *arena,
                                                   struct bt_acceptance **out, int32_t *n,
                                                   struct bt_error *err);

struct bt_accuracy {
    const char *model;
    enum bt_weight_format weights;
    enum bt_act_format activations;
    enum bt_kv_format kv;
    const char *method;
    const char *metric;
    const char *unit;
    double baseline, value;
    double ci95; /* half width; NAN: unknown */
    bool published;
    struct bt_store_provenance provenance; /* only source and source_date when read */
};

BT_NODISCARD enum bt_code bt_store_add_accuracy(struct bt_store *s, const struct bt_accuracy *row,
                                                struct bt_error *err);

/* Rows of a model, oldest first; texts lie in the arena. */
BT_NODISCARD enum bt_code bt_store_load_accuracy(struct bt_store *s, const char *model,
                                                 struct bt_arena *arena, struct bt_accuracy **out,
                                                 int32_t *n, struct bt_error *err);

/* Writes a GPU of the user's own machine ("host"); replaces the one of its name. */
BT_NODISCARD enum bt_code bt_store_put_gpu(struct bt_store *s, const struct bt_gpu *gpu,
                                           const struct bt_store_provenance *provenance,
                                           struct bt_error *err);

/* GPUs that did not come with the catalog, for bt_catalog_open. */
BT_NODISCARD enum bt_code bt_store_load_gpus(struct bt_store *s, struct bt_arena *arena,
                                             struct bt_gpu **out, int32_t *n, struct bt_error *err);

/* ---- imports, fits and benchmarks ---- */

/* A table of operations of others (sim/cost/calib.h), or a skew table (op "skew"). */
struct bt_store_import {
    const char *name; /* "GPU__STACK-VERSION__OP__FILE"; unique */
    const char *format, *gpu, *stack, *stack_version, *op;
    const char *model; /* "" where shapes are in the rows */
    int64_t samples;
    double error_median, error_p90; /* leave-one-out, relative; NAN: too few points */
    const char *text;
    struct bt_store_provenance provenance;
};

/* Writes tables in one transaction: all or none. A table of a name that is there takes its place;
 * *n_changed counts those that are new or whose text or source differs (may be NULL). */
BT_NODISCARD enum bt_code bt_store_put_imports(struct bt_store *s,
                                               const struct bt_store_import *rows, int32_t n,
                                               int32_t *n_changed, struct bt_error *err);

/* Name and text of every table, skew tables (`skews`) or the others, by name and ended by a row
 * whose name is NULL. Everything lies in the arena. */
BT_NODISCARD enum bt_code bt_store_load_imports(struct bt_store *s, bool skews,
                                                struct bt_arena *arena,
                                                const struct bt_embedded **out, int32_t *n,
                                                struct bt_error *err);

/* What a run of a stack left to fit (sim/cost/fit.h). */
struct bt_store_fit {
    const char *name; /* unique; the same name is replaced */
    const char *stack, *gpu, *model;
    double step_overhead_s, efficiency, step_error;
    int64_t requests;
    struct bt_store_provenance provenance;
};

BT_NODISCARD enum bt_code bt_store_put_fit(struct bt_store *s, const struct bt_store_fit *fit,
                                           struct bt_error *err);

struct bt_store_figure {
    const char *test, *metric, *unit;
    double value; /* finite */
};

/* A benchmark's figures; the same name is replaced. */
BT_NODISCARD enum bt_code bt_store_put_benchmark(struct bt_store *s, const char *name,
                                                 const char *format, const char *model,
                                                 const char *gpu, const char *stack,
                                                 const struct bt_store_provenance *provenance,
                                                 const struct bt_store_figure *figures, int32_t n,
                                                 struct bt_error *err);

/* ---- reading ---- */

enum bt_value_type { BT_VALUE_NULL, BT_VALUE_INT, BT_VALUE_REAL, BT_VALUE_TEXT };

struct bt_value {
    const char *name; /* column */
    enum bt_value_type type;
    int64_t i;
    double real;
    const char *text; /* borrowed for the call */
};

/* One row of an answer; false stops. `section` is the table it is of. */
typedef bool (*bt_store_row_fn)(void *ctx, const char *section, const struct bt_value *values,
                                int32_t n_values);

/* The newest runs (limit 0: all) of a command (NULL: any): run_id, command, name, status,
 * started_utc, stack, executor, model, gpu, commit_id. */
BT_NODISCARD enum bt_code bt_store_list_runs(struct bt_store *s, const char *command, int32_t limit,
                                             bt_store_row_fn row, void *ctx, struct bt_error *err);

/* Everything of a run but its requests and time series: sections run, summary, plan, candidate,
 * validation. BT_ERR_NOTFOUND names the newest run. */
BT_NODISCARD enum bt_code bt_store_show_run(struct bt_store *s, int64_t run_id, bt_store_row_fn row,
                                            void *ctx, struct bt_error *err);

enum bt_store_list { BT_LIST_FITS, BT_LIST_IMPORTS, BT_LIST_BENCHMARKS };

/* All fits (section "fit"), imports ("import") or benchmarks ("benchmark") with their provenance,
 * by name; `name` NULL: all, else that one. An import comes without its text. */
BT_NODISCARD enum bt_code bt_store_list(struct bt_store *s, enum bt_store_list what,
                                        const char *name, bt_store_row_fn row, void *ctx,
                                        struct bt_error *err);

/* A fit, an import or a benchmark of this name, in this order, with a benchmark's figures (section
 * "figure"). BT_ERR_NOTFOUND. */
BT_NODISCARD enum bt_code bt_store_show_named(struct bt_store *s, const char *name,
                                              bt_store_row_fn row, void *ctx, struct bt_error *err);

/* Numbers of the metrics of two runs that differ, and configuration values that differ: section
 * "config" or "metric"; summary_index, path, a, b, difference, ratio (NULL where one is missing).
 */
BT_NODISCARD enum bt_code bt_store_diff_runs(struct bt_store *s, int64_t a, int64_t b,
                                             bt_store_row_fn row, void *ctx, struct bt_error *err);

/* Rows of a table, whole (run_id 0) or of one run. BT_ERR_NOTFOUND names the tables. */
BT_NODISCARD enum bt_code bt_store_read_table(struct bt_store *s, const char *table, int64_t run_id,
                                              bt_store_row_fn row, void *ctx, struct bt_error *err);

enum bt_export_format { BT_EXPORT_CSV, BT_EXPORT_JSON };

/* Writes a table (as bt_store_read_table) to a stream: CSV with a header, or a JSON array of
 * objects. BT_ERR_IO when the stream refuses. */
BT_NODISCARD enum bt_code bt_store_export(struct bt_store *s, const char *table, int64_t run_id,
                                          enum bt_export_format format, FILE *out,
                                          struct bt_error *err);

/* Checks the file: SQLite's own integrity, foreign keys, schema version, hashes of scenario texts,
 * runs that never ended, counts of kept requests. Rows: section "problem", check, detail. *n is how
 * many; a run cut off is reported (section "notice") and is no problem. */
BT_NODISCARD enum bt_code bt_store_verify(struct bt_store *s, bt_store_row_fn row, void *ctx,
                                          int32_t *n, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
