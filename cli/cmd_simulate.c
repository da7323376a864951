/* berth simulate: a scenario's configurations, once each. */
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/figures.h"
#include "cli/metrics_json.h"
#include "cli/real.h"
#include "cli/record.h"
#include "cli/run_table.h"
#include "cli/scenario_opts.h"
#include "cli/simulate.h"
#include "db/store.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 4096, LABEL_BYTES = 256, MAX_DRAWN = 12 };

struct simulate {
    struct bt_world world;
    struct bt_scenario scenario;
    struct bt_run_opts run;
    double warmup;
    struct bt_record record;
    const char *plots;                     /* NULL: no figures */
    struct bt_simulation drawn[MAX_DRAWN]; /* the first runs, kept for the figures */
    char labels[MAX_DRAWN][LABEL_BYTES];
    int32_t n_drawn;
};

/* A file for each run when there are several: "x.csv" becomes "x.3.csv". */
static void numbered(char *out, size_t n, const char *path, int64_t i, int64_t total)
{
    const char *dot = strrchr(path, '.');
    const char *slash = strrchr(path, '/');
    if (total == 1) {
        (void)snprintf(out, n, "%s", path);
    } else if (dot == NULL || (slash != NULL && dot < slash)) {
        (void)snprintf(out, n, "%s.%lld", path, (long long)i + 1);
    } else {
        (void)snprintf(out, n, "%.*s.%lld%s", (int)(dot - path), path, (long long)i + 1, dot);
    }
}

static enum bt_code write_files(const struct simulate *m, const struct bt_simulation *s, int64_t i,
                                int64_t total, struct bt_error *err)
{
    char path[BT_PATH_BYTES + 32];
    if (m->run.per_request != NULL) {
        numbered(path, sizeof path, m->run.per_request, i, total);
        BT_TRY(bt_simulation_write_requests(s, path, err));
    }
    if (m->run.timeseries != NULL) {
        numbered(path, sizeof path, m->run.timeseries, i, total);
        BT_TRY(bt_simulation_write_samples(s, path, err));
    }
    return BT_OK;
}

static json_t *one_json(const struct bt_simulation *s, const struct bt_config *config,
                        const char *label)
{
    json_t *o = s->fits
                    ? bt_run_json("simulate", &s->deploy, &s->result->summary, s->usd_per_h, true)
                    : bt_simulation_unfit_json("simulate", s, config);
    bt_out_set(o, "label", bt_out_text(label));
    return o;
}

static const char *name_of(const struct bt_scenario *s)
{
    return s->name[0] != '\0' ? s->name : "scenario";
}

/* One configuration: runs it, and adds it to the rows of the answer. */
static enum bt_code one(struct bt_cli *cli, struct simulate *m, int64_t i, int64_t total,
                        json_t *runs, json_t *remarks, struct bt_error *err)
{
    struct bt_config config;
    char label[LABEL_BYTES];
    bt_scenario_config(&m->scenario, i, &config, label, sizeof label);
    if (label[0] == '\0') {
        (void)snprintf(label, sizeof label, "%s", name_of(&m->scenario));
    }
    BT_TRY(bt_real_configure(&m->world, &m->run, &config, err));
    struct bt_simulation_opts opts = {.config = &config,
                                      .run = &m->run,
                                      .warmup = m->warmup,
                                      .records_max = m->run.per_request != NULL || m->plots != NULL
                                                         ? INT64_MAX
                                                         : BT_STORE_REQUESTS_MAX,
                                      .keep_samples = m->run.timeseries != NULL || m->plots != NULL,
                                      .label = label};
    struct bt_simulation s;
    BT_TRY(bt_simulation_run(cli, &m->world, &opts, &s, err));
    enum bt_code code = s.fits ? write_files(m, &s, i, total, err) : BT_OK;
    /* The first run tells that the input is good; what follows is recorded as it comes. */
    if (code == BT_OK && i == 0) {
        bt_record_begin(&m->record, cli, &m->world, &m->run, m->scenario.name,
                        m->scenario.workload.file, config.stack);
    }
    if (code == BT_OK) {
        bt_record_simulation(&m->record, (int32_t)i, label, &s);
    }
    if (cli->format == BT_OUT_TABLE) {
        bt_out_append(runs, bt_runs_row(label, &s));
        if (!s.fits) {
            char line[BT_ERROR_MSG_BYTES + LABEL_BYTES + 4];
            (void)snprintf(line, sizeof line, "%s: %s", label, s.unfit.msg);
            bt_out_append(remarks, bt_out_text(line));
        } else if (total == 1) {
            json_t *lines = bt_run_remarks(&s.deploy, &s.result->summary);
            json_array_extend(remarks, lines);
            json_decref(lines);
        }
    } else {
        bt_out_append(runs, one_json(&s, &config, label));
    }
    cli->answer_is_no = cli->answer_is_no || !s.fits;
    if (code == BT_OK && m->plots != NULL && m->n_drawn < MAX_DRAWN) {
        memcpy(m->labels[m->n_drawn], label, sizeof label);
        m->drawn[m->n_drawn++] = s;
    } else {
        bt_simulation_fini(&s);
    }
    return code;
}

static enum bt_code draw(const struct bt_cli *cli, struct simulate *m, struct bt_error *err)
{
    const struct bt_simulation *runs[MAX_DRAWN];
    const char *labels[MAX_DRAWN];
    for (int32_t i = 0; i < m->n_drawn; i++) {
        runs[i] = &m->drawn[i];
        labels[i] = m->labels[i];
    }
    return bt_figures_runs(cli, m->plots, runs, labels, m->n_drawn, &m->run, err);
}

static enum bt_code all(struct bt_cli *cli, struct simulate *m, struct bt_error *err)
{
    int64_t total = bt_scenario_n_configs(&m->scenario);
    if (total > MAX_RUNS) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: spans %lld configurations, at most %d are simulated once each (berth plan "
                "searches)",
                m->scenario.path, (long long)total, MAX_RUNS);
    }
    json_t *doc = bt_out_answer("simulate");
    json_t *runs = bt_out_list(), *remarks = bt_out_list();
    bt_out_set(doc, "scenario", bt_out_text(m->scenario.name));
    if (cli->format == BT_OUT_TABLE) {
        const char *title = m->scenario.description;
        bt_out_set(doc, "title", bt_out_text(title[0] != '\0' ? title : name_of(&m->scenario)));
    }
    enum bt_code code = BT_OK;
    for (int64_t i = 0; i < total && code == BT_OK; i++) {
        code = one(cli, m, i, total, runs, remarks, err);
    }
    bt_out_set(doc, "runs", runs);
    if (cli->format == BT_OUT_TABLE) {
        bt_out_set(doc, "remarks", remarks);
    } else {
        json_decref(remarks);
    }
    if (code == BT_OK) {
        code = bt_cli_write(cli, doc, cli->format == BT_OUT_TABLE ? &bt_runs_view : NULL, err);
    }
    bt_record_end(&m->record, code == BT_OK);
    json_decref(doc);
    if (code == BT_OK && m->plots != NULL) {
        code = draw(cli, m, err);
    }
    for (int32_t i = 0; i < m->n_drawn; i++) {
        bt_simulation_fini(&m->drawn[i]);
    }
    return code;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct simulate *m = calloc(1, sizeof *m);
    BT_ASSERT(m != NULL);
    m->plots = bt_args_text(&cli->args, "plots");
    enum bt_code code = bt_run_opts_read(&cli->args, &m->run, err);
    if (code == BT_OK) {
        code = bt_scenario_open(cli, cli->args.positional[0], &m->scenario, err);
    }
    if (code != BT_OK) {
        free(m);
        return code;
    }
    code = bt_world_open(cli, &m->world, err);
    if (code == BT_OK) {
        code = bt_world_use_scenario(&m->world, cli, &m->scenario, err);
    }
    if (code == BT_OK) {
        bt_scenario_run_opts(cli, &m->scenario, &m->run, &m->warmup);
        code = all(cli, m, err);
    }
    bt_world_close(&m->world);
    bt_scenario_fini(&m->scenario);
    free(m);
    return bt_scenario_error(code, err);
}

static const struct bt_opt OPTS[] = {
    BT_SCENARIO_OPT_SET,
    {.name = "plots", .kind = BT_OPT_TEXT, .value = "DIR", .help = "draw the figures there"},
};

static const struct bt_example EXAMPLES[] = {
    {"simulate scenarios/evening_peak.lua", "each configuration of the scenario, side by side"},
    {"simulate scenarios/evening_peak.lua --set kv.dtype=int8 --json",
     "with one key changed, as JSON"},
};

const struct bt_command bt_cmd_simulate = {
    .name = "simulate",
    .arguments = "SCENARIO.lua [--set KEY=VALUE]",
    .summary = "run a scenario's configurations once each and report metrics",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_run = true,
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
