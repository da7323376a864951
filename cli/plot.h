/* Figures: results as tables of tab-separated values, the gnuplot script that draws each kind of
 * table, and the pictures that gnuplot makes of them, SVG and PNG.
 *
 * A figure in a folder is NAME.tsv, its script (and style.gp, which all share) beside it, NAME.svg
 * and NAME.png. Whoever has gnuplot draws it again with
 *   gnuplot -c FOLDER/rate.gp FOLDER/rate.tsv out.svg [SUBJECT]
 * gnuplot is run without a shell. Without gnuplot the tables and scripts are written all the same:
 * `no_gnuplot` says so, and bt_plots_note prints the one line that tells what to install.
 *
 * Tables: a line that starts with "#" and a space names the columns (units are suffixes: _s,
 * _bytes, _fraction, _usd_per_h); NaN is an unknown number; in names a tab or line end becomes a
 * space and a double quote a single one. Two empty lines separate blocks. Same input, same bytes.
 * Threading: one thread at a time.
 */
#ifndef BT_CLI_PLOT_H
#define BT_CLI_PLOT_H

#include "engine/core/error.h"
#include "engine/core/metrics.h"
#include "sim/hardware/memory.h"
#include "sim/plan/plan.h"
#include "sim/run.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- kinds of figures ---- */

struct bt_plot_column {
    const char *name;
    bool is_text; /* else a number, or NaN */
};

/* Rows under one line of column names. */
struct bt_plot_table {
    const struct bt_plot_column *columns;
    int32_t n_columns;
};

struct bt_plot_figure {
    const char *name;    /* "rate"; its script is scripts/plot/rate.gp */
    const char *summary; /* one line, no full stop */
    const struct bt_plot_table *tables;
    int32_t n_tables; /* the first must have rows; the others come after it, and may be left out */
};

/* Every kind, ended by one whose name is NULL. */
extern const struct bt_plot_figure bt_plot_figures[];

/* The kind of that name. BT_ERR_ARG names those there are, with "did you mean". */
BT_NODISCARD enum bt_code bt_plot_find(const char *name, const struct bt_plot_figure **out,
                                       struct bt_error *err);

/* Checks that a file holds the figure's tables. BT_ERR_IO; BT_ERR_INPUT names file:line, the
 * column, the value and what is expected. */
BT_NODISCARD enum bt_code bt_plot_check(const struct bt_plot_figure *figure, const char *path,
                                        struct bt_error *err);

/* Draws a checked file to `out`, whose suffix .svg or .png decides the form (BT_ERR_ARG otherwise).
 * `subject` stands under the heading: what is drawn; NULL: nothing. BT_ERR_MISSING names the
 * package when there is no gnuplot; BT_ERR_IO with gnuplot's own message when it fails. */
BT_NODISCARD enum bt_code bt_plot_draw(const struct bt_plot_figure *figure, const char *data,
                                       const char *out, const char *subject, struct bt_error *err);

/* ---- a folder of figures ---- */

enum { BT_PLOT_PATH_BYTES = 4096 };

struct bt_plots {
    char dir[BT_PLOT_PATH_BYTES];
    bool no_gnuplot;   /* looked for, and not there */
    int32_t n_figures; /* written so far */
};

/* Makes the folder, with those above it. BT_ERR_IO names what is in the way. */
BT_NODISCARD enum bt_code bt_plots_open(struct bt_plots *p, const char *dir, struct bt_error *err);

/* Prints one line when pictures are missing for want of gnuplot. */
void bt_plots_note(const struct bt_plots *p, FILE *f);

/* What the functions below take in common. */
struct bt_plot_opts {
    const char *name;    /* of the files, without a suffix or "/"; NULL: the figure's */
    const char *subject; /* what is drawn: model, GPU, traffic; NULL: nothing */
};

/* Each function writes one figure; all borrow their input for the call. What has nothing to draw
 * (no probe, no candidate with cost and latency, no request) writes no file and is BT_OK. BT_ERR_IO
 * when a file cannot be written or gnuplot fails. */

/* "rate": latency against arrival rate, a curve for each of n_slos > 0 SLOs. */
BT_NODISCARD enum bt_code bt_plot_rate(struct bt_plots *p, const struct bt_plot_opts *opts,
                                       const struct bt_max_rate *rate, const struct bt_slo *slos,
                                       int32_t n_slos, struct bt_error *err);

/* "pareto": cost against the first SLO's statistic, of the candidates that are priced and were
 * simulated with all their replicas. n_slos > 0. */
BT_NODISCARD enum bt_code bt_plot_pareto(struct bt_plots *p, const struct bt_plot_opts *opts,
                                         const struct bt_plan_answer *answer,
                                         const struct bt_slo *slos, int32_t n_slos,
                                         struct bt_error *err);

/* One candidate of a figure "pareto". */
struct bt_plot_point {
    int32_t rank;        /* from 1 */
    const char *label;   /* "2 × l40s, int8, KV int8" */
    const char *detail;  /* what else tells it apart: "block 16, swap"; NULL: nothing */
    const char *verdict; /* feasible, marginal, infeasible, unverified */
    double cost_usd_per_h;
    double latency_s, low_s, high_s; /* low and high: confidence interval, or NAN */
};

/* "pareto" from points in order of rank, all with a cost and a latency. `statistic` as in
 * "e2e.p95"; limit_ns < 0: none. */
BT_NODISCARD enum bt_code bt_plot_points(struct bt_plots *p, const struct bt_plot_opts *opts,
                                         const struct bt_plot_point *points, int32_t n,
                                         const char *statistic, int64_t limit_ns,
                                         struct bt_error *err);

/* Latencies of one run, in ns, each array ascending. */
struct bt_plot_run {
    const char *name;
    const int64_t *ttft_ns;
    int64_t n_ttft;
    const int64_t *e2e_ns;
    int64_t n_e2e;
    int64_t *memory; /* owned: what bt_plot_run_init took; else NULL */
};

/* Sorts the latencies of a run's finished requests; the first n_warmup that arrived are left out,
 * as in its summary (warmup_requests). The name is borrowed. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_plot_run_init(struct bt_plot_run *run, const char *name,
                                           const struct bt_req_record *records, int64_t n,
                                           int64_t n_warmup, struct bt_error *err);
void bt_plot_run_fini(struct bt_plot_run *run);

/* "cdf": distribution of TTFT and E2E. Past 1,000 requests a curve keeps as many of them, half of
 * those in the top tenth. */
BT_NODISCARD enum bt_code bt_plot_cdf(struct bt_plots *p, const struct bt_plot_opts *opts,
                                      const struct bt_plot_run *runs, int32_t n_runs,
                                      const struct bt_slo *slos, int32_t n_slos,
                                      struct bt_error *err);

/* "timeseries": KV blocks, requests, use of the GPU, latency, preemptions, bottleneck. Past 2,000
 * samples, of each stretch of time the one with the fullest KV and that with the longest queue
 * stay. n_windows may be 0. */
BT_NODISCARD enum bt_code bt_plot_timeseries(struct bt_plots *p, const struct bt_plot_opts *opts,
                                             const struct bt_sim_sample *samples, int64_t n_samples,
                                             const struct bt_window *windows, int32_t n_windows,
                                             struct bt_error *err);

struct bt_plot_bar {
    const char *label;
    const struct bt_memory_plan *plan;
};

/* "memory": where a GPU's memory goes, one bar each, from top to bottom. */
BT_NODISCARD enum bt_code bt_plot_memory(struct bt_plots *p, const struct bt_plot_opts *opts,
                                         const struct bt_plot_bar *bars, int32_t n_bars,
                                         struct bt_error *err);

enum { BT_PLOT_MAP_MAX = 24 }; /* columns, and rows */

struct bt_plot_map {
    const char *column_name, *row_name, *value_name; /* "KV block (tokens)" */
    int32_t n_columns, n_rows;                       /* 1 .. BT_PLOT_MAP_MAX */
    const char *const *columns;                      /* labels, each once */
    const char *const *rows;
    const double *values;     /* [n_rows][n_columns]; NAN: no number */
    const char *const *texts; /* [n_rows][n_columns], what stands in a cell; NULL: the number */
};

/* "map": one number over two knobs, such as block size and preemption policy. */
BT_NODISCARD enum bt_code bt_plot_map(struct bt_plots *p, const struct bt_plot_opts *opts,
                                      const struct bt_plot_map *map, struct bt_error *err);

/* Requests of one metric ("ttft", "tpot", "e2e") and part ("fitted", "held out"). */
struct bt_plot_pairs {
    const char *metric, *part;
    const double *measured_s, *predicted_s; /* [n]; a pair without both (NAN) is left out */
    int64_t n;
};

/* "scatter": predicted against measured latencies. Pairs of one metric stand together. */
BT_NODISCARD enum bt_code bt_plot_scatter(struct bt_plots *p, const struct bt_plot_opts *opts,
                                          const struct bt_plot_pairs *pairs, int32_t n_pairs,
                                          struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
