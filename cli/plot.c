#include "cli/plot.h"

#include "cli/files.h"
#include "cli/plot_files.h"
#include "cli/spawn.h"
#include "engine/core/suggest.h"

#include "cmake/embedded.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct bt_embedded bt_plot_scripts[];

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof((a)[0])))

/* ---- kinds of figures; the scripts' own comments say what the columns mean ---- */

static const struct bt_plot_column rate_columns[] = {
    {"statistic", true}, {"rate_req_per_s", false}, {"latency_s", false},
    {"limit_s", false},  {"holds", false},          {"bottleneck", true},
};
static const struct bt_plot_column pareto_columns[] = {
    {"rank", false},          {"label", true},           {"detail", true},
    {"verdict", true},        {"cost_usd_per_h", false}, {"latency_s", false},
    {"latency_low_s", false}, {"latency_high_s", false}, {"statistic", true},
    {"limit_s", false},
};
static const struct bt_plot_column front_columns[] = {
    {"front_cost_usd_per_h", false},
    {"front_latency_s", false},
};
static const struct bt_plot_column cdf_columns[] = {
    {"run", true},       {"metric", true},   {"latency_s", false},
    {"fraction", false}, {"limit_s", false}, {"limit_fraction", false},
};
static const struct bt_plot_column sample_columns[] = {
    {"t_s", false},      {"running", false},          {"waiting", false},
    {"swapped", false},  {"kv_used_fraction", false}, {"kv_cached_fraction", false},
    {"preempts", false},
};
static const struct bt_plot_column window_columns[] = {
    {"start_s", false},
    {"end_s", false},
    {"busy_fraction", false},
    {"flops_utilization", false},
    {"bandwidth_utilization", false},
    {"ttft_max_s", false},
    {"e2e_max_s", false},
    {"bottleneck", true},
};
static const struct bt_plot_column memory_columns[] = {
    {"label", true},         {"reserved_bytes", false},  {"weights_bytes", false},
    {"draft_bytes", false},  {"workspace_bytes", false}, {"kv_bytes", false},
    {"unused_bytes", false}, {"usable_bytes", false},
};
static const struct bt_plot_column map_columns[] = {
    {"column_name", true}, {"row_name", true}, {"value_name", true}, {"column", true},
    {"row", true},         {"value", false},   {"text", true},
};

static const struct bt_plot_column scatter_columns[] = {
    {"metric", true},
    {"part", true},
    {"measured_s", false},
    {"predicted_s", false},
};

static const struct bt_plot_table rate_tables[] = {{rate_columns, COUNT(rate_columns)}};
static const struct bt_plot_table pareto_tables[] = {
    {pareto_columns, COUNT(pareto_columns)},
    {front_columns, COUNT(front_columns)},
};
static const struct bt_plot_table cdf_tables[] = {{cdf_columns, COUNT(cdf_columns)}};
static const struct bt_plot_table time_tables[] = {
    {sample_columns, COUNT(sample_columns)},
    {window_columns, COUNT(window_columns)},
};
static const struct bt_plot_table memory_tables[] = {{memory_columns, COUNT(memory_columns)}};
static const struct bt_plot_table map_tables[] = {{map_columns, COUNT(map_columns)}};
static const struct bt_plot_table scatter_tables[] = {{scatter_columns, COUNT(scatter_columns)}};

const struct bt_plot_figure bt_plot_figures[] = {
    {"rate", "latency against arrival rate, with the SLO's limit and the knee", rate_tables, 1},
    {"pareto", "cost against latency of a plan's candidates", pareto_tables, 2},
    {"cdf", "distribution of time to first token and end-to-end time", cdf_tables, 1},
    {"timeseries", "KV blocks, requests, GPU use, latency and preemptions over time", time_tables,
     2},
    {"memory", "where a GPU's memory goes, one bar a candidate", memory_tables, 1},
    {"map", "one number over two knobs: block size and preemption", map_tables, 1},
    {"scatter", "predicted against measured latency, a point a request", scatter_tables, 1},
    {NULL, NULL, NULL, 0},
};

enum { MAX_FIGURES = 16 };

enum bt_code bt_plot_find(const char *name, const struct bt_plot_figure **out, struct bt_error *err)
{
    const char *names[MAX_FIGURES] = {NULL};
    char list[BT_ERROR_MSG_BYTES / 2] = "";
    int32_t n = 0;
    for (; bt_plot_figures[n].name != NULL; n++) {
        BT_ASSERT(n < MAX_FIGURES);
        if (strcmp(bt_plot_figures[n].name, name) == 0) {
            *out = &bt_plot_figures[n];
            return BT_OK;
        }
        names[n] = bt_plot_figures[n].name;
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", n == 0 ? "" : ", ", names[n]);
    }
    const char *near_name = bt_suggest(name, names, n);
    if (near_name != NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0, "unknown figure '%s'; did you mean '%s'?", name, near_name);
    }
    BT_FAIL(err, BT_ERR_ARG, 0, "unknown figure '%s'; there are: %s", name, list);
}

/* ---- files ---- */

enum bt_code bt_plots_open(struct bt_plots *p, const char *dir, struct bt_error *err)
{
    *p = (struct bt_plots){0};
    /* A relative name that starts like an option or a pipe must not be taken for one. */
    const char *prefix = dir[0] == '/' ? "" : "./";
    int n = snprintf(p->dir, sizeof p->dir, "%s%s", prefix, dir);
    if (dir[0] == '\0' || n < 0 || (size_t)n >= sizeof p->dir) {
        BT_FAIL(err, BT_ERR_IO, 0, "'%s': expected the name of a folder, at most %d bytes", dir,
                BT_PLOT_PATH_BYTES - 3);
    }
    return bt_make_folder(p->dir, err);
}

void bt_plots_note(const struct bt_plots *p, FILE *f)
{
    if (p->no_gnuplot && p->n_figures > 0) {
        fprintf(f,
                "no gnuplot here: %s has the data and scripts of the figures, no pictures; "
                "install gnuplot-nox (Debian, Ubuntu) or gnuplot\n",
                p->dir + (p->dir[0] == '.' ? 2 : 0));
    }
}

enum bt_code bt_plot_path(char out[BT_PLOT_PATH_BYTES], const char *dir, const char *name,
                          const char *suffix, struct bt_error *err)
{
    int n = snprintf(out, BT_PLOT_PATH_BYTES, "%s/%s%s", dir, name, suffix);
    if (n < 0 || n >= BT_PLOT_PATH_BYTES) {
        BT_FAIL(err, BT_ERR_IO, 0, "%.100s...: a path of over %d bytes", dir,
                BT_PLOT_PATH_BYTES - 1);
    }
    return BT_OK;
}

enum bt_code bt_plot_close(FILE *f, const char *path, struct bt_error *err)
{
    bool failed = ferror(f) != 0;
    int error = errno;
    if (fclose(f) != 0) {
        failed = true;
        error = errno;
    }
    if (failed) {
        BT_FAIL(err, BT_ERR_IO, error, "%s: cannot be written: %s", path, strerror(error));
    }
    return BT_OK;
}

enum bt_code bt_plot_create(const char *path, FILE **out, struct bt_error *err)
{
    *out = fopen(path, "we");
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot be written: %s", path, strerror(errno));
    }
    return BT_OK;
}

/* Writes "<name>.gp" of the program's own scripts into a folder. */
static enum bt_code write_script(const char *dir, const char *name, struct bt_error *err)
{
    char path[BT_PLOT_PATH_BYTES], file[64];
    (void)snprintf(file, sizeof file, "%s.gp", name);
    BT_TRY(bt_plot_path(path, dir, file, "", err));
    const struct bt_embedded *script = bt_plot_scripts;
    while (script->name != NULL && strcmp(strrchr(script->name, '/') + 1, file) != 0) {
        script++;
    }
    BT_ASSERT(script->name != NULL);
    FILE *f = NULL;
    BT_TRY(bt_plot_create(path, &f, err));
    (void)fwrite(script->text, 1, script->size_bytes, f);
    return bt_plot_close(f, path, err);
}

static enum bt_code write_scripts(const char *dir, const struct bt_plot_figure *figure,
                                  struct bt_error *err)
{
    BT_TRY(write_script(dir, "style", err));
    return write_script(dir, figure->name, err);
}

/* ---- gnuplot ---- */

/* Runs the script in `dir`. Every path starts with "/" or "./". A picture that was begun is removed
 * when gnuplot fails. */
static enum bt_code run_gnuplot(const char *dir, const struct bt_plot_figure *figure,
                                const char *data, const char *out, const char *subject,
                                struct bt_error *err)
{
    char script[BT_PLOT_PATH_BYTES], said[BT_SPAWN_SAID_BYTES];
    BT_TRY(bt_plot_path(script, dir, figure->name, ".gp", err));
    /* -d: the user's own start-up files would change the picture. */
    const char *const argv[] = {"gnuplot", "-d", "-c", script, data, out, subject, NULL};
    int status = 0;
    BT_TRY(bt_spawn((char *const *)argv, &status, said, err));
    if (status != 0) {
        (void)unlink(out);
        BT_FAIL(err, BT_ERR_IO, status, "gnuplot could not draw %s: %s", out,
                said[0] == '\0' ? "it says nothing" : said);
    }
    return BT_OK;
}

static enum bt_code draw_in(const char *dir, const struct bt_plot_figure *figure, const char *data,
                            const char *out, const char *subject, struct bt_error *err)
{
    char safe_data[BT_PLOT_PATH_BYTES], safe_out[BT_PLOT_PATH_BYTES];
    BT_TRY(bt_plot_path(safe_data, data[0] == '/' ? "" : ".", data + (data[0] == '/'), "", err));
    BT_TRY(bt_plot_path(safe_out, out[0] == '/' ? "" : ".", out + (out[0] == '/'), "", err));
    BT_TRY(write_scripts(dir, figure, err));
    return run_gnuplot(dir, figure, safe_data, safe_out, subject == NULL ? "" : subject, err);
}

/* Removes the folder of a script that was only needed once. */
static void remove_scripts(const char *dir, const struct bt_plot_figure *figure)
{
    char path[BT_PLOT_PATH_BYTES];
    if (bt_plot_path(path, dir, figure->name, ".gp", NULL) == BT_OK) {
        (void)unlink(path);
    }
    if (bt_plot_path(path, dir, "style.gp", "", NULL) == BT_OK) {
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

enum bt_code bt_plot_draw(const struct bt_plot_figure *figure, const char *data, const char *out,
                          const char *subject, struct bt_error *err)
{
    if (!bt_ends_with(out, ".svg") && !bt_ends_with(out, ".png")) {
        BT_FAIL(err, BT_ERR_ARG, 0, "'%s': expected a name that ends in .svg or .png", out);
    }
    const char *tmp = getenv("TMPDIR");
    char dir[BT_PLOT_PATH_BYTES];
    BT_TRY(bt_plot_path(dir, tmp == NULL || tmp[0] != '/' ? "/tmp" : tmp, "berth-XXXXXX", "", err));
    if (mkdtemp(dir) == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot be made: %s", dir, strerror(errno));
    }
    enum bt_code code = draw_in(dir, figure, data, out, subject, err);
    remove_scripts(dir, figure);
    if (code == BT_ERR_MISSING && err != NULL) {
        bt_error_clear(err);
        BT_FAIL(err, BT_ERR_MISSING, 0,
                "there is no gnuplot here; install gnuplot-nox (Debian, Ubuntu) or gnuplot");
    }
    return code;
}

enum bt_code bt_plot_finish(struct bt_plots *p, const char *figure_name,
                            const struct bt_plot_opts *opts, struct bt_error *err)
{
    const struct bt_plot_figure *figure = NULL;
    BT_TRY(bt_plot_find(figure_name, &figure, err));
    const char *name = bt_plot_stem(opts, figure_name);
    const char *subject = opts == NULL || opts->subject == NULL ? "" : opts->subject;
    BT_TRY(write_scripts(p->dir, figure, err));
    p->n_figures++;
    static const char *const suffixes[] = {".svg", ".png"};
    char data[BT_PLOT_PATH_BYTES], out[BT_PLOT_PATH_BYTES];
    BT_TRY(bt_plot_path(data, p->dir, name, ".tsv", err));
    for (size_t i = 0; i < 2 && !p->no_gnuplot; i++) {
        struct bt_error own = {0};
        BT_TRY(bt_plot_path(out, p->dir, name, suffixes[i], err));
        enum bt_code code = run_gnuplot(p->dir, figure, data, out, subject, &own);
        if (code == BT_ERR_MISSING) {
            p->no_gnuplot = true;
        } else if (code != BT_OK) {
            BT_FAIL(err, code, own.detail, "%s", own.msg);
        }
    }
    return BT_OK;
}
