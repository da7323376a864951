#include "cli/cmd.h"
#include "cli/files.h"
#include "db/store.h"

#include <stdlib.h>
#include <string.h>

/* ---- rows of the store as documents ---- */

/* A list of objects for each section, in the order in which sections come. */
struct sections {
    json_t *doc;
    const char *only;  /* every section goes under this name; NULL: each under its own */
    bool tell_section; /* the section's own name becomes a member */
};

/* Columns that hold JSON are part of the document, without their suffix. */
static void set_text(json_t *object, const char *name, const char *text)
{
    static const char suffix[] = "_json";
    char key[128];
    size_t n = strlen(name);
    if (bt_ends_with(name, suffix) && n < sizeof key) {
        json_t *value = json_loads(text, 0, NULL);
        if (value != NULL) {
            (void)snprintf(key, sizeof key, "%.*s", (int)(n - (sizeof suffix - 1)), name);
            bt_out_set(object, key, value);
            return;
        }
    }
    bt_out_set(object, name, bt_out_text(text));
}

static void set_value(json_t *object, const struct bt_value *v)
{
    switch (v->type) {
    case BT_VALUE_NULL:
        bt_out_set(object, v->name, json_null());
        return;
    case BT_VALUE_INT:
        bt_out_set(object, v->name, bt_out_int(v->i));
        return;
    case BT_VALUE_REAL:
        bt_out_set(object, v->name, bt_out_real(v->real));
        return;
    case BT_VALUE_TEXT:
        set_text(object, v->name, v->text);
        return;
    }
}

static bool take_row(void *ctx, const char *section, const struct bt_value *values,
                     int32_t n_values)
{
    struct sections *s = ctx;
    json_t *row = bt_out_object();
    if (s->tell_section) {
        bt_out_set(row, "section", bt_out_text(section));
    }
    for (int32_t i = 0; i < n_values; i++) {
        set_value(row, &values[i]);
    }
    const char *name = s->only != NULL ? s->only : section;
    json_t *list = json_object_get(s->doc, name);
    if (list == NULL) {
        list = bt_out_list();
        bt_out_set(s->doc, name, list);
    }
    bt_out_append(list, row);
    return true;
}

static enum bt_code open_store(const struct bt_cli *cli, bool read_only, struct bt_store **store,
                               struct bt_error *err)
{
    struct bt_store_opts opts = {.path = cli->db_path, .read_only = read_only};
    return bt_store_open(&opts, store, err);
}

/* A positional argument that is a run's id. */
static enum bt_code read_run(const struct bt_cli *cli, int32_t i, int64_t *run_id,
                             struct bt_error *err)
{
    struct bt_opt opt = {.name = "run", .kind = BT_OPT_INT, .min = 1, .max = 9007199254740992.0};
    if (bt_opt_check(&opt, cli->args.positional[i], NULL) != BT_OK) {
        BT_FAIL(err, BT_ERR_ARG, 0, "'%s' is not the id of a run; `berth db list` shows them",
                cli->args.positional[i]);
    }
    *run_id = strtoll(cli->args.positional[i], NULL, 10);
    return BT_OK;
}

/* Runs a query on the store opened for reading and writes what it gives. */
typedef enum bt_code query_fn(struct bt_cli *cli, struct bt_store *store, struct sections *s,
                              struct bt_error *err);

static enum bt_code run_query(struct bt_cli *cli, query_fn *query, const char *only,
                              bool tell_section, const struct bt_out_view *view,
                              struct bt_error *err)
{
    struct bt_store *store = NULL;
    BT_TRY(open_store(cli, true, &store, err));
    struct sections s = {.doc = bt_out_object(), .only = only, .tell_section = tell_section};
    if (only != NULL) {
        bt_out_set(s.doc, only, bt_out_list());
    }
    enum bt_code code = query(cli, store, &s, err);
    bt_store_close(store);
    if (code == BT_OK) {
        code = bt_cli_write(cli, s.doc, view, err);
    }
    json_decref(s.doc);
    return code;
}

/* ---- db list ---- */

static bool is_what(const struct bt_cli *cli, const char *what)
{
    return cli->args.n_positional == 1 && strcmp(cli->args.positional[0], what) == 0;
}

static enum bt_code query_named(struct bt_cli *cli, struct bt_store *store, struct sections *s,
                                struct bt_error *err)
{
    enum bt_store_list what = is_what(cli, "fits")      ? BT_LIST_FITS
                              : is_what(cli, "imports") ? BT_LIST_IMPORTS
                                                        : BT_LIST_BENCHMARKS;
    BT_TRY(bt_store_list(store, what, NULL, take_row, s, err));
    if (json_array_size(json_object_get(s->doc, s->only)) == 0) {
        bt_cli_note(cli, "there are no %s", s->only);
    }
    return BT_OK;
}

static enum bt_code query_list(struct bt_cli *cli, struct bt_store *store, struct sections *s,
                               struct bt_error *err)
{
    BT_TRY(bt_store_list_runs(store, bt_args_text(&cli->args, "command"),
                              (int32_t)bt_args_int(&cli->args, "last", 0), take_row, s, err));
    if (json_array_size(json_object_get(s->doc, "runs")) == 0) {
        bt_cli_note(cli, "there are no such runs");
    }
    return BT_OK;
}

static const struct bt_out_column list_columns[] = {
    {"run_id", "run", BT_UNIT_PLAIN},   {"command", NULL, BT_UNIT_AUTO},
    {"name", NULL, BT_UNIT_AUTO},       {"model", NULL, BT_UNIT_AUTO},
    {"gpu", NULL, BT_UNIT_AUTO},        {"stack", NULL, BT_UNIT_AUTO},
    {"executor", NULL, BT_UNIT_AUTO},   {"status", NULL, BT_UNIT_AUTO},
    {"started_utc", NULL, BT_UNIT_AUTO}};
static const struct bt_out_part list_parts[] = {BT_OUT_ROWS_PART("runs", NULL, list_columns)};
static const struct bt_out_view list_view = {.parts = list_parts, .n_parts = 1, .csv_rows = "runs"};

static const struct bt_out_column fit_columns[] = {
    {"name", NULL, BT_UNIT_AUTO},
    {"stack", NULL, BT_UNIT_AUTO},
    {"gpu", NULL, BT_UNIT_AUTO},
    {"model", NULL, BT_UNIT_AUTO},
    {"step_overhead_s", "step overhead", BT_UNIT_SECONDS},
    {"efficiency", NULL, BT_UNIT_NONE},
    {"step_error", "step error", BT_UNIT_FRACTION},
    {"requests", NULL, BT_UNIT_NONE},
    {"source", NULL, BT_UNIT_AUTO}};
static const struct bt_out_column import_columns[] = {
    {"name", NULL, BT_UNIT_AUTO},
    {"samples", NULL, BT_UNIT_NONE},
    {"error_median", "left out: median", BT_UNIT_FRACTION},
    {"error_p90", "P90", BT_UNIT_FRACTION},
    {"source", NULL, BT_UNIT_AUTO},
    {"licence", NULL, BT_UNIT_AUTO},
    {"created_utc", "imported", BT_UNIT_AUTO}};

static enum bt_code run_list(struct bt_cli *cli, struct bt_error *err)
{
    bool fits = is_what(cli, "fits"), imports = is_what(cli, "imports");
    if (fits || imports || is_what(cli, "benchmarks")) {
        struct bt_out_part part = {.kind = BT_OUT_ROWS, .path = cli->args.positional[0]};
        struct bt_out_view view = {.parts = &part, .n_parts = 1, .csv_rows = part.path};
        part.columns = fits ? fit_columns : imports ? import_columns : NULL;
        part.n_columns = fits      ? sizeof fit_columns / sizeof *fit_columns
                         : imports ? sizeof import_columns / sizeof *import_columns
                                   : 0;
        return run_query(cli, query_named, part.path, false, &view, err);
    }
    if (cli->args.n_positional == 1 && !is_what(cli, "runs")) {
        BT_FAIL(err, BT_ERR_ARG, 0, "\"%s\": expected runs, fits, imports or benchmarks",
                cli->args.positional[0]);
    }
    return run_query(cli, query_list, "runs", false, &list_view, err);
}

static const struct bt_opt list_opts[] = {
    {.name = "command",
     .kind = BT_OPT_TEXT,
     .value = "NAME",
     .help = "only the runs of this command"},
    {.name = "last",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "20",
     .min = 0,
     .max = 2147483647,
     .help = "the newest so many; 0: all"},
};
static const struct bt_example list_examples[] = {
    {"db list", "The newest runs."},
    {"db list --command plan --last 0 --csv", "Every plan ever made, as CSV."},
    {"db list fits", "What was fitted to runs; imports and benchmarks likewise."},
};

const struct bt_command bt_cmd_db_list = {
    .name = "db list",
    .arguments = "[runs|fits|imports|benchmarks]",
    .summary = "runs in the store, newest first; or fits, imports, benchmarks",
    .examples = list_examples,
    .n_examples = 3,
    .max_positional = 1,
    .opts = list_opts,
    .n_opts = 2,
    .run = run_list,
};

/* ---- db show ---- */

static enum bt_code query_show(struct bt_cli *cli, struct bt_store *store, struct sections *s,
                               struct bt_error *err)
{
    int64_t run_id = 0;
    const char *what = cli->args.positional[0];
    if (strspn(what, "0123456789") != strlen(what)) {
        return bt_store_show_named(store, what, take_row, s, err);
    }
    BT_TRY(read_run(cli, 0, &run_id, err));
    return bt_store_show_run(store, run_id, take_row, s, err);
}

static enum bt_code run_show(struct bt_cli *cli, struct bt_error *err)
{
    static const struct bt_out_view view = {.csv_rows = "summary"};
    return run_query(cli, query_show, NULL, false, cli->format == BT_OUT_CSV ? &view : NULL, err);
}

static const struct bt_example show_examples[] = {
    {"db show 12", "What was asked in run 12, of what, and what came out."},
    {"db show vllm-0.19@h200", "A fit, an import or a benchmark by its name."},
};

const struct bt_command bt_cmd_db_show = {
    .name = "db show",
    .arguments = "RUN|NAME",
    .summary = "all there is of a run but its requests; or a fit, import or benchmark",
    .examples = show_examples,
    .n_examples = 2,
    .min_positional = 1,
    .max_positional = 1,
    .run = run_show,
};

/* ---- db diff ---- */

static enum bt_code query_diff(struct bt_cli *cli, struct bt_store *store, struct sections *s,
                               struct bt_error *err)
{
    int64_t a = 0, b = 0;
    BT_TRY(read_run(cli, 0, &a, err));
    BT_TRY(read_run(cli, 1, &b, err));
    return bt_store_diff_runs(store, a, b, take_row, s, err);
}

static enum bt_code run_diff(struct bt_cli *cli, struct bt_error *err)
{
    static const struct bt_out_part parts[] = {{.kind = BT_OUT_ROWS, .path = "rows"}};
    static const struct bt_out_view view = {.parts = parts, .n_parts = 1, .csv_rows = "rows"};
    return run_query(cli, query_diff, "rows", true, &view, err);
}

static const struct bt_example diff_examples[] = {
    {"db diff 12 13", "What differs between two runs: configuration first, then metrics."},
};

const struct bt_command bt_cmd_db_diff = {
    .name = "db diff",
    .arguments = "RUN RUN",
    .summary = "configuration and metrics in which two runs differ",
    .examples = diff_examples,
    .n_examples = 1,
    .min_positional = 2,
    .max_positional = 2,
    .run = run_diff,
};

/* ---- db export ---- */

static enum bt_code export_to(struct bt_cli *cli, struct bt_store *store, FILE *f, const char *what,
                              struct bt_error *err)
{
    enum bt_code code =
        bt_store_export(store, cli->args.positional[0], bt_args_int(&cli->args, "run", 0),
                        cli->format == BT_OUT_JSON ? BT_EXPORT_JSON : BT_EXPORT_CSV, f, err);
    if (code == BT_ERR_IO) {
        return BT_ERR_MISSING; /* room is what is missing */
    }
    BT_TRY(code);
    return bt_out_flush(f, what, err);
}

static enum bt_code run_export(struct bt_cli *cli, struct bt_error *err)
{
    struct bt_store *store = NULL;
    BT_TRY(open_store(cli, true, &store, err));
    enum bt_code code = export_to(cli, store, stdout, "the result", err);
    bt_store_close(store);
    return code;
}

static const struct bt_opt export_opts[] = {
    {.name = "run",
     .kind = BT_OPT_INT,
     .value = "ID",
     .min = 1,
     .max = 9007199254740992.0,
     .help = "only the rows of this run"},
};
static const struct bt_example export_examples[] = {
    {"db export requests --run 12", "Every request of a run, as CSV."},
    {"db export gpus --json", "The GPUs of the store, as JSON."},
};

const struct bt_command bt_cmd_db_export = {
    .name = "db export",
    .arguments = "TABLE",
    .summary = "a table of the store as CSV, or as JSON",
    .examples = export_examples,
    .n_examples = 2,
    .opts = export_opts,
    .n_opts = 1,
    .min_positional = 1,
    .max_positional = 1,
    .notes = "A name that is no table gets the list of tables.\n",
    .run = run_export,
};

/* ---- db verify ---- */

static enum bt_code query_verify(struct bt_cli *cli, struct bt_store *store, struct sections *s,
                                 struct bt_error *err)
{
    int32_t n = 0;
    BT_TRY(bt_store_verify(store, take_row, s, &n, err));
    cli->answer_is_no = n > 0;
    bt_out_set(s->doc, "problems", bt_out_int(n));
    return BT_OK;
}

static enum bt_code run_verify(struct bt_cli *cli, struct bt_error *err)
{
    static const struct bt_out_column columns[] = {{"problems", NULL, BT_UNIT_NONE}};
    static const struct bt_out_part parts[] = {
        {.kind = BT_OUT_ROWS, .path = "rows"},
        {.kind = BT_OUT_FIELDS, .path = "", .columns = columns, .n_columns = 1}};
    static const struct bt_out_view view = {.parts = parts, .n_parts = 2, .csv_rows = "rows"};
    return run_query(cli, query_verify, "rows", true, &view, err);
}

static const struct bt_example verify_examples[] = {
    {"db verify", "Is the store sound? Exit status 1: no."},
};

const struct bt_command bt_cmd_db_verify = {
    .name = "db verify",
    .arguments = "",
    .summary = "checks the store: file, keys, hashes, runs that never ended",
    .examples = verify_examples,
    .n_examples = 1,
    .run = run_verify,
};

/* ---- db migrate ---- */

static enum bt_code migrate(struct bt_cli *cli, const struct bt_catalog *catalog,
                            struct bt_error *err)
{
    struct bt_store_opts opts = {.path = cli->db_path, .catalog = catalog};
    struct bt_store *store = NULL;
    BT_TRY(bt_store_open(&opts, &store, err));
    int32_t before = 0, after = 0;
    bt_store_versions(store, &before, &after);
    bt_cli_note(cli, "%s", bt_store_path(store));
    bt_store_close(store);
    json_t *doc = bt_out_object();
    bt_out_set(doc, "version_before", bt_out_int(before));
    bt_out_set(doc, "version", bt_out_int(after));
    enum bt_code code = bt_cli_write(cli, doc, NULL, err);
    json_decref(doc);
    return code;
}

static enum bt_code run_migrate(struct bt_cli *cli, struct bt_error *err)
{
    struct bt_catalog *catalog = NULL;
    BT_TRY(bt_catalog_open(NULL, 0, &catalog, err));
    enum bt_code code = migrate(cli, catalog, err);
    bt_catalog_close(catalog);
    return code;
}

static const struct bt_example migrate_examples[] = {
    {"db migrate --db old.db", "Brings an older store up to this program; makes a new one."},
};

const struct bt_command bt_cmd_db_migrate = {
    .name = "db migrate",
    .arguments = "",
    .summary = "creates the store, or brings it up to this program's version",
    .examples = migrate_examples,
    .n_examples = 1,
    .run = run_migrate,
};
