#include "cli/cmd.h"
#include "cli/plot.h"
#include "cli/plot_run.h"

#include <stdlib.h>

static enum bt_code draw_file(struct bt_cli *cli, const struct bt_plot_figure *figure,
                              struct bt_error *err)
{
    const char *const *words = cli->args.positional;
    BT_TRY(bt_plot_check(figure, words[1], err));
    return bt_plot_draw(figure, words[1], words[2], bt_args_text(&cli->args, "subject"), err);
}

/* A run's id; -1 when the word is none. */
static int64_t run_id_of(const char *word)
{
    struct bt_opt opt = {.name = "run", .kind = BT_OPT_INT, .min = 1, .max = 9007199254740992.0};
    return bt_opt_check(&opt, word, NULL) == BT_OK ? strtoll(word, NULL, 10) : -1;
}

static enum bt_code draw_stored(struct bt_cli *cli, const struct bt_plot_recorded *what,
                                const char *dir, struct bt_error *err)
{
    struct bt_store *store = NULL;
    struct bt_plots p;
    struct bt_store_opts store_opts = {.path = cli->db_path, .read_only = true};
    BT_TRY(bt_store_open(&store_opts, &store, err));
    enum bt_code code = bt_plots_open(&p, dir, err);
    if (code == BT_OK) {
        code = bt_plot_recorded_run(&p, store, what, err);
    }
    bt_store_close(store);
    if (code == BT_OK && p.no_gnuplot) {
        BT_FAIL(err, BT_ERR_MISSING, 0,
                "no gnuplot here: %s has the data and scripts, no pictures; install gnuplot-nox "
                "(Debian, Ubuntu) or gnuplot",
                dir);
    }
    return code;
}

static enum bt_code draw_run(struct bt_cli *cli, int64_t run_id, struct bt_error *err)
{
    struct bt_slo slos[BT_MAX_SLOS];
    struct bt_plot_recorded what = {
        .run_id = run_id, .slos = slos, .subject = bt_args_text(&cli->args, "subject")};
    const char *dir = bt_args_text(&cli->args, "out");
    const char *slo = bt_args_text(&cli->args, "slo");
    if (cli->args.n_positional > 2) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "'%s' is one argument too many: berth plot RUN [FIGURE] --out DIR",
                cli->args.positional[2]);
    }
    if (dir == NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--out is missing: the folder for the figures of run %lld",
                (long long)run_id);
    }
    if (cli->args.n_positional == 2) {
        const struct bt_plot_figure *figure = NULL;
        BT_TRY(bt_plot_find(cli->args.positional[1], &figure, err));
        what.figure = figure->name;
    }
    if (slo != NULL) {
        BT_TRY(bt_slo_parse(slo, slos, BT_MAX_SLOS, &what.n_slos, err));
    }
    return draw_stored(cli, &what, dir, err);
}

static enum bt_code run_plot(struct bt_cli *cli, struct bt_error *err)
{
    int64_t run_id = run_id_of(cli->args.positional[0]);
    if (run_id >= 0) {
        return draw_run(cli, run_id, err);
    }
    const struct bt_plot_figure *figure = NULL;
    BT_TRY(bt_plot_find(cli->args.positional[0], &figure, err));
    if (cli->args.n_positional < 3) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "an argument is missing: berth plot %s DATA.tsv OUT.svg|OUT.png", figure->name);
    }
    return draw_file(cli, figure, err);
}

static const struct bt_opt opts[] = {
    {.name = "subject",
     .kind = BT_OPT_TEXT,
     .value = "TEXT",
     .help = "a line under the heading: what is drawn"},
    {.name = "out", .kind = BT_OPT_TEXT, .value = "DIR", .help = "folder for the figures of a run"},
    {.name = "slo",
     .kind = BT_OPT_TEXT,
     .value = "LIST",
     .help = "limits to mark in a run's cdf, as in e2e.p95=1.5,ttft.p99=0.5"},
};

static const struct bt_example examples[] = {
    {"plot rate plots/rate.tsv knee.svg --subject 'llama-2-13b on 2 l40s'",
     "Draws one figure from its table, as `--plots` writes it."},
    {"plot 12 --out plots", "All that the store holds of run 12; `berth db list` shows the runs."},
    {"plot 12 cdf --out plots --slo e2e.p95=1.5", "One figure of a run, with a limit marked."},
    {"plot map my-sweep.tsv map.png", "Draws a table of your own; the columns are below."},
};

const struct bt_command bt_cmd_plot = {
    .name = "plot",
    .arguments = "FIGURE DATA.tsv OUT.svg|OUT.png | RUN [FIGURE] --out DIR",
    .summary = "a figure of a table, or the figures of a recorded run, by gnuplot",
    .examples = examples,
    .n_examples = sizeof examples / sizeof examples[0],
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
    .min_positional = 1,
    .max_positional = 3,
    .notes =
        "Figures\n"
        "  rate        latency against arrival rate, with the SLO's limit and the knee\n"
        "  pareto      cost against latency of a plan's candidates\n"
        "  cdf         distribution of time to first token and end-to-end time\n"
        "  timeseries  KV blocks, requests, GPU use, latency and preemptions over time\n"
        "  memory      where a GPU's memory goes, one bar a candidate\n"
        "  map         one number over two knobs: block size and preemption\n"
        "  scatter     predicted against measured latency, a point a request\n"
        "A run has cdf, timeseries and pareto, as far as its requests, its state over time or its\n"
        "candidates were recorded.\n"
        "\nTables have tabs between columns; the first line is \"# \" and the columns' names. A\n"
        "wrong one is answered with the names that are expected. Exit status 4: no gnuplot here.\n",
    .run = run_plot,
};
