#include "cli/out.h"
#include "cli/plot_files.h"

#include <math.h>
#include <string.h>

enum bt_code bt_rows_begin(struct bt_plot_rows *t, const struct bt_plots *p,
                           const char *figure_name, const struct bt_plot_opts *opts,
                           struct bt_error *err)
{
    *t = (struct bt_plot_rows){0};
    BT_TRY(bt_plot_path(t->path, p->dir, bt_plot_stem(opts, figure_name), ".tsv", err));
    return bt_plot_create(t->path, &t->f, err);
}

enum bt_code bt_rows_finish(struct bt_plot_rows *t, struct bt_plots *p, const char *figure_name,
                            const struct bt_plot_opts *opts, struct bt_error *err)
{
    BT_TRY(bt_plot_close(t->f, t->path, err));
    return bt_plot_finish(p, figure_name, opts, err);
}

void bt_rows_names(struct bt_plot_rows *t, const char *figure_name, int32_t table_i)
{
    const struct bt_plot_figure *figure = bt_plot_figures;
    while (strcmp(figure->name, figure_name) != 0) {
        figure++;
    }
    const struct bt_plot_table *table = &figure->tables[table_i];
    for (int32_t i = 0; i < table->n_columns; i++) {
        fprintf(t->f, "%s%s", i == 0 ? "# " : "\t", table->columns[i].name);
    }
    (void)fputc('\n', t->f);
}

static void next_cell(struct bt_plot_rows *t)
{
    if (t->in_row) {
        (void)fputc('\t', t->f);
    }
    t->in_row = true;
}

void bt_rows_end_row(struct bt_plot_rows *t)
{
    (void)fputc('\n', t->f);
    t->in_row = false;
}

void bt_rows_end_block(struct bt_plot_rows *t)
{
    (void)fputs("\n\n", t->f);
}

void bt_rows_text(struct bt_plot_rows *t, const char *text)
{
    next_cell(t);
    if (text == NULL || text[0] == '\0') {
        text = "-";
    }
    for (const char *at = text; *at != '\0'; at++) {
        char c = *at;
        if ((unsigned char)c < ' ' || c == 127 || (at == text && c == '#')) {
            c = ' ';
        }
        (void)fputc(c == '"' ? '\'' : c, t->f);
    }
}

void bt_rows_real(struct bt_plot_rows *t, double x)
{
    next_cell(t);
    if (isfinite(x)) {
        char buf[BT_OUT_NUMBER_BYTES];
        bt_out_shortest(buf, x);
        (void)fputs(buf, t->f);
    } else {
        (void)fputs("NaN", t->f);
    }
}

void bt_rows_int(struct bt_plot_rows *t, int64_t x)
{
    next_cell(t);
    fprintf(t->f, "%lld", (long long)x);
}

void bt_rows_ns(struct bt_plot_rows *t, int64_t ns)
{
    bt_rows_real(t, ns < 0 ? NAN : (double)ns / 1e9);
}

void bt_plot_statistic(char out[BT_STATISTIC_BYTES], const struct bt_slo *slo)
{
    (void)snprintf(out, BT_STATISTIC_BYTES, "%s.%s", bt_slo_metric_name(slo->metric),
                   bt_stat_name(slo->stat));
}
