#include "cli/command.h"

#include "cli/config_opts.h"
#include "cli/run_opts.h"
#include "engine/core/suggest.h"

#include <stdarg.h>
#include <string.h>

enum {
    EXIT_DONE = 0,
    EXIT_NO = 1,
    EXIT_USAGE = 2,
    EXIT_INPUT = 3,
    EXIT_MISSING = 4,
    EXIT_BUG = 70
};

static const struct bt_opt common_opts[] = {
    {.name = "json", .kind = BT_OPT_FLAG, .help = "print the result as JSON"},
    {.name = "csv", .kind = BT_OPT_FLAG, .help = "print the result as CSV"},
    {.name = "quiet", .kind = BT_OPT_FLAG, .help = "no progress bar and no notes on stderr"},
    {.name = "db",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .default_text = "<$BERTH_DB, else ~/.local/share/berth/berth.db>",
     .help = "the store"},
    {.name = "help", .kind = BT_OPT_FLAG, .help = "print this help"},
};

int bt_exit_status(enum bt_code code)
{
    switch (code) {
    case BT_OK:
        return EXIT_DONE;
    case BT_ERR_UNFIT:
        return EXIT_NO;
    case BT_ERR_ARG:
        return EXIT_USAGE;
    case BT_ERR_INPUT:
    case BT_ERR_IO:
    case BT_ERR_NOTFOUND:
    case BT_ERR_STORE:
    case BT_ERR_SCRIPT:
    case BT_ERR_LIMIT:
        return EXIT_INPUT;
    case BT_ERR_MISSING:
    case BT_ERR_NOMEM:
    case BT_ERR_CUDA:
        return EXIT_MISSING;
    case BT_ERR_INTERNAL:
        return EXIT_BUG;
    }
    return EXIT_BUG;
}

int32_t bt_command_tables(const struct bt_command *command,
                          struct bt_opt_table tables[BT_ARGS_MAX_TABLES])
{
    int32_t n = 0;
    if (command->n_opts > 0) {
        tables[n++] = (struct bt_opt_table){
            .title = "Options", .opts = command->opts, .n_opts = command->n_opts};
    }
    if (command->takes_run) {
        tables[n++] = bt_run_opt_table();
    }
    if (command->takes_trace) {
        tables[n++] = bt_trace_opt_table();
    }
    if (command->takes_config) {
        tables[n++] = bt_config_opt_table();
    }
    tables[n++] = (struct bt_opt_table){.title = "Options of every command",
                                        .opts = common_opts,
                                        .n_opts = sizeof common_opts / sizeof common_opts[0]};
    return n;
}

/* ---- finding a command ---- */

static bool is_named(const struct bt_command *command, int argc, char *const *argv, int *n_words)
{
    size_t n_first = strcspn(command->name, " ");
    if (strlen(argv[0]) != n_first || memcmp(argv[0], command->name, n_first) != 0) {
        return false;
    }
    *n_words = 1;
    if (command->name[n_first] == '\0') {
        return true;
    }
    *n_words = 2;
    return argc > 1 && strcmp(argv[1], command->name + n_first + 1) == 0;
}

bool bt_command_is_group(const char *word)
{
    size_t n = strlen(word);
    for (int32_t i = 0; bt_commands[i] != NULL; i++) {
        const char *name = bt_commands[i]->name;
        if (strncmp(name, word, n) == 0 && name[n] == ' ') {
            return true;
        }
    }
    return false;
}

enum { MAX_COMMANDS = 64, NAME_BYTES = 64 };

/* The names that fit at this place: second words of `group`, or first words. */
static int32_t candidate_names(const char *group, char buf[MAX_COMMANDS][NAME_BYTES],
                               const char *names[MAX_COMMANDS])
{
    int32_t n = 0;
    size_t n_group = group == NULL ? 0 : strlen(group);
    for (int32_t i = 0; bt_commands[i] != NULL && n < MAX_COMMANDS; i++) {
        const char *name = bt_commands[i]->name;
        if (group == NULL) {
            (void)snprintf(buf[n], NAME_BYTES, "%.*s", (int)strcspn(name, " "), name);
        } else if (strncmp(name, group, n_group) == 0 && name[n_group] == ' ') {
            (void)snprintf(buf[n], NAME_BYTES, "%s", name + n_group + 1);
        } else {
            continue;
        }
        names[n] = buf[n];
        n++;
    }
    return n;
}

/* The names joined by commas, each once. */
static void join_names(const char *const *names, int32_t n, char *list, size_t list_bytes)
{
    size_t used = 0;
    list[0] = '\0';
    for (int32_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) {
            int m = snprintf(list + used, list_bytes - used, "%s%s", i == 0 ? "" : ", ", names[i]);
            BT_ASSERT(m > 0 && (size_t)m < list_bytes - used);
            used += (size_t)m;
        }
    }
}

/* word NULL: nothing follows the group's name. */
static void set_unknown(const char *group, const char *word, struct bt_error *err)
{
    char buf[MAX_COMMANDS][NAME_BYTES];
    const char *names[MAX_COMMANDS] = {NULL};
    int32_t n = candidate_names(group, buf, names);
    char list[BT_ERROR_MSG_BYTES / 2];
    join_names(names, n, list, sizeof list);
    if (word == NULL) {
        (void)bt_error_set(err, BT_ERR_ARG, 0, __FILE__, __LINE__, "%s: which of %s?", group, list);
        return;
    }
    const char *near_name = bt_suggest(word, names, n);
    const char *space = group == NULL ? "" : " ";
    group = group == NULL ? "" : group;
    if (near_name != NULL) {
        (void)bt_error_set(err, BT_ERR_ARG, 0, __FILE__, __LINE__,
                           "unknown command '%s%s%s'; did you mean '%s%s%s'?", group, space, word,
                           group, space, near_name);
    } else {
        (void)bt_error_set(err, BT_ERR_ARG, 0, __FILE__, __LINE__,
                           "unknown command '%s%s%s'; there are: %s", group, space, word, list);
    }
}

const struct bt_command *bt_command_find(int argc, char *const *argv, int *n_words,
                                         struct bt_error *err)
{
    BT_ASSERT(argc > 0);
    for (int32_t i = 0; bt_commands[i] != NULL; i++) {
        if (is_named(bt_commands[i], argc, argv, n_words)) {
            return bt_commands[i];
        }
    }
    if (bt_command_is_group(argv[0])) {
        set_unknown(argv[0], argc > 1 ? argv[1] : NULL, err);
    } else {
        set_unknown(NULL, argv[0], err);
    }
    return NULL;
}

/* ---- running ---- */

void bt_cli_note(const struct bt_cli *cli, const char *fmt, ...)
{
    if (cli->quiet) {
        return;
    }
    fprintf(stderr, "berth %s: ", cli->command->name);
    va_list args;
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

enum bt_code bt_cli_write(const struct bt_cli *cli, const json_t *doc,
                          const struct bt_out_view *view, struct bt_error *err)
{
    return bt_out_write(stdout, doc, cli->format, view, err);
}

static enum bt_code check_positional(const struct bt_cli *cli, struct bt_error *err)
{
    const struct bt_command *command = cli->command;
    int32_t n = cli->args.n_positional;
    if (n < command->min_positional) {
        BT_FAIL(err, BT_ERR_ARG, 0, "an argument is missing: berth %s %s", command->name,
                command->arguments);
    }
    if (n > command->max_positional) {
        BT_FAIL(err, BT_ERR_ARG, 0, "'%s' is one argument too many: berth %s%s%s",
                cli->args.positional[command->max_positional], command->name,
                command->arguments[0] == '\0' ? "" : " ", command->arguments);
    }
    return BT_OK;
}

static enum bt_code read_common(struct bt_cli *cli, struct bt_error *err)
{
    bool json = bt_args_given(&cli->args, "json"), csv = bt_args_given(&cli->args, "csv");
    if (json && csv) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--json and --csv exclude each other");
    }
    cli->format = json ? BT_OUT_JSON : csv ? BT_OUT_CSV : BT_OUT_TABLE;
    cli->quiet = bt_args_given(&cli->args, "quiet");
    if (bt_args_given(&cli->args, "db")) {
        cli->db_path = bt_args_text(&cli->args, "db");
    }
    return BT_OK;
}

static enum bt_code run_command(struct bt_cli *cli, int argc, char *const *argv,
                                struct bt_error *err)
{
    struct bt_opt_table tables[BT_ARGS_MAX_TABLES];
    int32_t n_tables = bt_command_tables(cli->command, tables);
    BT_TRY(bt_args_parse(&cli->args, tables, n_tables, argc, argv, err));
    if (bt_args_given(&cli->args, "help")) {
        bt_help_print(stdout, cli->command);
        return BT_OK;
    }
    BT_TRY(read_common(cli, err));
    BT_TRY(check_positional(cli, err));
    return cli->command->run(cli, err);
}

/* Messages quote what files hold: control characters would steer the terminal. */
static void print_message(FILE *f, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == 0x7f || (c < 0x20 && c != '\n')) {
            fprintf(f, "\\x%02x", c);
        } else {
            fputc(c, f);
        }
    }
    fputc('\n', f);
}

/* The message is on stderr in every form of output, and also when quiet. */
static int report(const struct bt_command *command, const struct bt_error *err, enum bt_code code)
{
    const char *space = command == NULL ? "" : " ";
    const char *name = command == NULL ? "" : command->name;
    fprintf(stderr, "berth%s%s: ", space, name);
    print_message(stderr, err->code == BT_OK ? bt_code_name(code) : err->msg);
    if (code == BT_ERR_ARG) {
        bool is_help = command == NULL || strcmp(name, "help") == 0;
        fprintf(stderr, "See `berth help%s%s`.\n", is_help ? "" : " ", is_help ? "" : name);
    }
    return bt_exit_status(code);
}

int bt_cli_main(int argc, char *const *argv)
{
    struct bt_error err = {0};
    if (argc < 2) {
        bt_help_print_all(stderr, NULL);
        return EXIT_USAGE;
    }
    char *const help[] = {"help", NULL}, *const version[] = {"version", NULL};
    int n_words = 0;
    struct bt_cli cli = {0};
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        cli.command = bt_command_find(1, help, &n_words, &err);
    } else if (strcmp(argv[1], "--version") == 0) {
        cli.command = bt_command_find(1, version, &n_words, &err);
    } else {
        cli.command = bt_command_find(argc - 1, argv + 1, &n_words, &err);
    }
    if (cli.command == NULL) {
        return report(NULL, &err, BT_ERR_ARG);
    }
    enum bt_code code = run_command(&cli, argc - 1 - n_words, argv + 1 + n_words, &err);
    if (code == BT_OK) {
        code = bt_out_flush(stdout, "stdout", &err);
    }
    bt_args_fini(&cli.args);
    if (code != BT_OK) {
        return report(cli.command, &err, code);
    }
    return cli.answer_is_no ? EXIT_NO : EXIT_DONE;
}
