#include "cli/cmd.h"
#include "cli/files.h"
#include "cli/run_opts.h"
#include "sim/workload/describe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* ---- trace describe ---- */

static json_t *describe_rows(const struct bt_description *d)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < d->n_rows; i++) {
        json_t *row = bt_out_object();
        double x = d->rows[i].value;
        const char *unit = d->rows[i].unit;
        /* Times and rates stay reals, so that a field keeps its type from trace to trace. */
        bool may_be_whole = strcmp(unit, "s") != 0 && strcmp(unit, "1/s") != 0;
        bool whole = may_be_whole && x > -1e15 && x < 1e15 && x == (double)(int64_t)x;
        bt_out_set(row, "field", bt_out_text(d->rows[i].name));
        bt_out_set(row, "value", whole ? bt_out_int((int64_t)x) : bt_out_real(x));
        bt_out_set(row, "unit", bt_out_text(unit));
        bt_out_append(rows, row);
    }
    return rows;
}

static const struct bt_out_column describe_columns[] = {
    {"field", "", BT_UNIT_AUTO},
    {"value", "value", BT_UNIT_NONE},
    {"unit", "", BT_UNIT_AUTO},
};
static const struct bt_out_part describe_parts[] = {
    {.kind = BT_OUT_FIELDS, .path = "trace"},
    {.kind = BT_OUT_ROWS, .path = "rows", .columns = describe_columns, .n_columns = 3},
    {.kind = BT_OUT_LINES, .path = "workload_lua", .title = "A workload like it, for a scenario"},
};
static const struct bt_out_view describe_view = {
    .parts = describe_parts, .n_parts = 3, .csv_rows = "rows"};

static enum bt_code describe(struct bt_cli *cli, const struct bt_trace *trace, struct bt_error *err)
{
    struct bt_description *d = malloc(sizeof *d);
    BT_ASSERT(d != NULL);
    char *lua = NULL;
    struct bt_error why = {0};
    enum bt_code code = bt_trace_describe(trace, d, &why);
    if (code != BT_OK) {
        (void)bt_error_set(err, code, 0, __FILE__, __LINE__, "%s: %s", cli->args.positional[0],
                           why.msg);
    }
    if (code == BT_OK) {
        code = bt_trace_fit_lua(trace, &lua, err);
    }
    if (code == BT_OK) {
        json_t *doc = bt_out_object();
        json_t *what = bt_out_object();
        bt_out_set(what, "format", bt_out_text(bt_trace_format_name(bt_trace_format_of(trace))));
        bt_out_set(doc, "trace", what);
        bt_out_set(doc, "rows", describe_rows(d));
        bt_out_set(doc, "workload_lua", bt_out_text(lua));
        code = bt_cli_write(cli, doc, &describe_view, err);
        json_decref(doc);
    }
    free(lua);
    free(d);
    return code;
}

static enum bt_code load(const struct bt_cli *cli, struct bt_trace **trace, struct bt_error *err)
{
    struct bt_trace_opts opts;
    BT_TRY(bt_trace_opts_read(&cli->args, &opts, err));
    return bt_trace_load(cli->args.positional[0], &opts, trace, err);
}

static enum bt_code run_describe(struct bt_cli *cli, struct bt_error *err)
{
    struct bt_trace *trace = NULL;
    BT_TRY(load(cli, &trace, err));
    enum bt_code code = describe(cli, trace, err);
    bt_trace_destroy(trace);
    return code;
}

/* ---- trace convert ---- */

enum target { TARGET_CSV, TARGET_JSONL, TARGET_LUA };

/* By --as, else by the end of the output's name. */
static enum bt_code find_target(const struct bt_cli *cli, enum target *out, struct bt_error *err)
{
    static const char *const names[] = {"csv", "jsonl", "lua"};
    static const char *const suffixes[] = {".csv", ".jsonl", ".lua"};
    const char *as = bt_args_text(&cli->args, "as");
    const char *path = cli->args.positional[1];
    for (int i = 0; i < 3; i++) {
        if (as == NULL ? bt_ends_with(path, suffixes[i]) : strcmp(as, names[i]) == 0) {
            *out = (enum target)i;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "'%s' does not end in .csv, .jsonl or .lua: say which with --as csv|jsonl|lua", path);
}

static enum bt_code write_target(const struct bt_trace *trace, enum target target, FILE *f,
                                 const char *what, struct bt_error *err)
{
    if (target == TARGET_LUA) {
        char *lua = NULL;
        BT_TRY(bt_trace_fit_lua(trace, &lua, err));
        (void)fputs(lua, f);
        free(lua);
    } else {
        enum bt_trace_format format = target == TARGET_CSV ? BT_TRACE_CSV : BT_TRACE_JSONL;
        enum bt_code code = bt_trace_write(trace, format, f, err);
        if (code != BT_OK) {
            /* Room is what is missing; the input was fine. */
            return code == BT_ERR_IO ? BT_ERR_MISSING : code;
        }
    }
    return bt_out_flush(f, what, err);
}

/* Into a new file beside it that takes its name when whole: a failure leaves the old one. */
static enum bt_code write_file(const struct bt_trace *trace, enum target target, const char *path,
                               struct bt_error *err)
{
    char part[PATH_BYTES];
    int n = snprintf(part, sizeof part, "%s.part", path);
    if (n < 0 || (size_t)n >= sizeof part) {
        BT_FAIL(err, BT_ERR_ARG, 0, "the output's name is longer than %d bytes", PATH_BYTES - 6);
    }
    FILE *f = fopen(part, "w");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", part, strerror(errno));
    }
    enum bt_code code = write_target(trace, target, f, path, err);
    if (fclose(f) != 0 && code == BT_OK) {
        code = bt_error_set(err, BT_ERR_MISSING, errno, __FILE__, __LINE__, "%s: %s", path,
                            strerror(errno));
    }
    if (code == BT_OK && rename(part, path) != 0) {
        code = bt_error_set(err, BT_ERR_IO, errno, __FILE__, __LINE__, "%s: %s", path,
                            strerror(errno));
    }
    if (code != BT_OK) {
        (void)remove(part);
    }
    return code;
}

static enum bt_code run_convert(struct bt_cli *cli, struct bt_error *err)
{
    enum target target = TARGET_CSV;
    BT_TRY(find_target(cli, &target, err));
    struct bt_trace *trace = NULL;
    BT_TRY(load(cli, &trace, err));
    const char *path = cli->args.positional[1];
    enum bt_code code = strcmp(path, "-") == 0
                            ? write_target(trace, target, stdout, "the result", err)
                            : write_file(trace, target, path, err);
    if (code == BT_OK) {
        bt_cli_note(cli, "%lld requests", (long long)bt_trace_n(trace));
    }
    bt_trace_destroy(trace);
    return code;
}

static const struct bt_example describe_examples[] = {
    {"trace describe scenarios/traces/AzureLLMInferenceTrace_conv.csv",
     "Rate, burstiness and lengths of an hour of production traffic."},
    {"trace describe mooncake.jsonl --from 0 --to 600 --json",
     "The first ten minutes of a trace with block hashes: how much of the prompts is shared?"},
    {"trace describe log.csv --format csv --columns timestamp=start:ms,prompt=in,output=out",
     "A log of your own, by its columns."},
};

const struct bt_command bt_cmd_trace_describe = {
    .name = "trace describe",
    .arguments = "FILE",
    .summary = "rate, burstiness, lengths, prefix reuse and oddities of a trace",
    .examples = describe_examples,
    .n_examples = sizeof describe_examples / sizeof describe_examples[0],
    .takes_trace = true,
    .min_positional = 1,
    .max_positional = 1,
    .run = run_describe,
};

static const struct bt_example convert_examples[] = {
    {"trace convert BurstGPT_1.csv burst.csv --to 3600",
     "The first hour of a BurstGPT trace in the generic format."},
    {"trace convert AzureLLMInferenceTrace_conv.csv workload.lua",
     "A generated workload fitted to the trace, as a scenario's Lua."},
    {"trace convert trace.jsonl.gz - --as jsonl --limit 1000",
     "The first thousand requests to stdout."},
};

static const struct bt_opt convert_opts[] = {
    {.name = "as",
     .kind = BT_OPT_ENUM,
     .value = "FORMAT",
     .allowed = "csv|jsonl|lua",
     .help = "what to write; without it, as OUT ends"},
};

const struct bt_command bt_cmd_trace_convert = {
    .name = "trace convert",
    .arguments = "FILE OUT",
    .summary = "a trace in the generic CSV or JSONL, or a Lua workload fitted to it",
    .examples = convert_examples,
    .n_examples = sizeof convert_examples / sizeof convert_examples[0],
    .opts = convert_opts,
    .n_opts = sizeof convert_opts / sizeof convert_opts[0],
    .takes_trace = true,
    .min_positional = 2,
    .max_positional = 2,
    .run = run_convert,
};
