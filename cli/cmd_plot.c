#include "cli/cmd.h"
#include "cli/plot.h"

static enum bt_code draw_file(struct bt_cli *cli, struct bt_error *err)
{
    const char *const *words = cli->args.positional;
    const struct bt_plot_figure *figure = NULL;
    BT_TRY(bt_plot_find(words[0], &figure, err));
    BT_TRY(bt_plot_check(figure, words[1], err));
    return bt_plot_draw(figure, words[1], words[2], bt_args_text(&cli->args, "subject"), err);
}

static enum bt_code run_plot(struct bt_cli *cli, struct bt_error *err)
{
    return draw_file(cli, err);
}

static const struct bt_opt opts[] = {
    {.name = "subject",
     .kind = BT_OPT_TEXT,
     .value = "TEXT",
     .help = "a line under the heading: what is drawn"},
};

static const struct bt_example examples[] = {
    {"plot rate plots/rate.tsv knee.svg --subject 'llama-2-13b on 2 l40s'",
     "Draws one figure from its table, as `--plots` writes it."},
    {"plot map my-sweep.tsv map.png", "Draws a table of your own; the columns are below."},
};

const struct bt_command bt_cmd_plot = {
    .name = "plot",
    .arguments = "FIGURE DATA.tsv OUT.svg|OUT.png",
    .summary = "one figure, drawn by gnuplot from a table",
    .examples = examples,
    .n_examples = sizeof examples / sizeof examples[0],
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
    .min_positional = 3,
    .max_positional = 3,
    .notes =
        "Figures\n"
        "  rate        latency against arrival rate, with the SLO's limit and the knee\n"
        "  pareto      cost against latency of a plan's candidates\n"
        "  cdf         distribution of time to first token and end-to-end time\n"
        "  timeseries  KV blocks, requests, GPU use, latency and preemptions over time\n"
        "  memory      where a GPU's memory goes, one bar a candidate\n"
        "  map         one number over two knobs: block size and preemption\n"
        "\nTables have tabs between columns; the first line is \"# \" and the columns' names. A\n"
        "wrong one is answered with the names that are expected. Exit status 4: no gnuplot here.\n",
    .run = run_plot,
};
