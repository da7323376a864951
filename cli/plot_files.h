/* Files of a figure, for cli/plot*.c alone. Threading: none. */
#ifndef BT_CLI_PLOT_FILES_H
#define BT_CLI_PLOT_FILES_H

#include "cli/plot.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "<dir>/<name><suffix>"; dir "" gives "/<name>". BT_ERR_IO when that is too long. */
BT_NODISCARD enum bt_code bt_plot_path(char out[BT_PLOT_PATH_BYTES], const char *dir,
                                       const char *name, const char *suffix, struct bt_error *err);

/* Opens a file for writing, and ends it. BT_ERR_IO names the file and the reason. */
BT_NODISCARD enum bt_code bt_plot_create(const char *path, FILE **out, struct bt_error *err);
BT_NODISCARD enum bt_code bt_plot_close(FILE *f, const char *path, struct bt_error *err);

/* Name of a figure's files. */
static inline const char *bt_plot_stem(const struct bt_plot_opts *opts, const char *figure_name)
{
    return opts == NULL || opts->name == NULL ? figure_name : opts->name;
}

/* Draws "<dir>/<name>.tsv", which is written, as SVG and PNG, with the scripts beside it. */
BT_NODISCARD enum bt_code bt_plot_finish(struct bt_plots *p, const char *figure_name,
                                         const struct bt_plot_opts *opts, struct bt_error *err);

enum { BT_STATISTIC_BYTES = 32 };

/* "e2e.p95", as it is written after --slo. */
void bt_plot_statistic(char out[BT_STATISTIC_BYTES], const struct bt_slo *slo);

/* ---- writing a table ---- */

struct bt_plot_rows {
    FILE *f;
    char path[BT_PLOT_PATH_BYTES];
    bool in_row;
};

/* Opens the figure's file; bt_rows_finish ends it and draws it. */
BT_NODISCARD enum bt_code bt_rows_begin(struct bt_plot_rows *t, const struct bt_plots *p,
                                        const char *figure_name, const struct bt_plot_opts *opts,
                                        struct bt_error *err);
BT_NODISCARD enum bt_code bt_rows_finish(struct bt_plot_rows *t, struct bt_plots *p,
                                         const char *figure_name, const struct bt_plot_opts *opts,
                                         struct bt_error *err);

/* The line of column names of the figure's table_i-th table. */
void bt_rows_names(struct bt_plot_rows *t, const char *figure_name, int32_t table_i);

/* The next cell of a row. Text: what would end the cell, the quoting or the line, or start a
 * comment, is replaced; "" becomes "-". */
void bt_rows_text(struct bt_plot_rows *t, const char *text);
void bt_rows_real(struct bt_plot_rows *t, double x);
void bt_rows_int(struct bt_plot_rows *t, int64_t x);
/* A time in ns as seconds; NaN when it is negative: it did not happen. */
void bt_rows_ns(struct bt_plot_rows *t, int64_t ns);

void bt_rows_end_row(struct bt_plot_rows *t);
void bt_rows_end_block(struct bt_plot_rows *t);

#ifdef __cplusplus
}
#endif

#endif
