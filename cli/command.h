/* Commands of the program: what each declares, what it is given, how its outcome becomes an exit
 * status.
 *
 * A command is one file cli/cmd_<name>.c that defines a const struct bt_command and is listed in
 * cli/commands.c. Everything else (parsing, help, output form, exit status) is done here from that
 * declaration. Threading: the main thread.
 */
#ifndef BT_CLI_COMMAND_H
#define BT_CLI_COMMAND_H

#include "cli/args.h"
#include "cli/out.h"
#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_command;

/* What a running command has. */
struct bt_cli {
    const struct bt_command *command;
    struct bt_args args;
    enum bt_out_format format;
    bool quiet;
    const char *db_path; /* --db; NULL: the store's default */
    bool answer_is_no;   /* set by the command: it is done, and the answer is no (exit 1) */
};

typedef enum bt_code bt_command_fn(struct bt_cli *cli, struct bt_error *err);

struct bt_example {
    const char *line;  /* after "berth " */
    const char *words; /* what it does */
};

struct bt_command {
    const char *name;      /* "replay"; two words for "trace describe" */
    const char *arguments; /* "TRACE --model M --gpu G" */
    const char *summary;   /* one line, no full stop */
    const struct bt_example *examples;
    int32_t n_examples;
    const struct bt_opt *opts; /* its own options */
    int32_t n_opts;
    bool takes_config; /* also every option of the configuration (sim/config.h) */
    bool takes_trace;  /* also those of reading a trace (cli/run_opts.h) */
    bool takes_run;    /* also those of making a run (cli/run_opts.h) */
    int32_t min_positional, max_positional;
    const char *notes; /* shown after the options; NULL: none */
    bt_command_fn *run;
};

/* Every command in the order of the help, ended by NULL. */
extern const struct bt_command *const bt_commands[];

/* Runs the program: argv as main has it. Returns the exit status. */
int bt_cli_main(int argc, char *const *argv);

/* Exit status of an outcome: 0 done, 1 the answer is no, 2 usage, 3 bad input, 4 something missing
 * on this machine, 70 internal error. The only place that knows. */
int bt_exit_status(enum bt_code code);

/* Writes the result to stdout in the form the user asked for. */
BT_NODISCARD enum bt_code bt_cli_write(const struct bt_cli *cli, const json_t *doc,
                                       const struct bt_out_view *view, struct bt_error *err);

/* A line on stderr, "berth COMMAND: ...", unless quiet. */
void bt_cli_note(const struct bt_cli *cli, const char *fmt, ...) BT_PRINTF(2, 3);

/* The tables of options that a command takes, in the order of the help. Returns how many. */
int32_t bt_command_tables(const struct bt_command *command,
                          struct bt_opt_table tables[BT_ARGS_MAX_TABLES]);

/* The command that the first words of argv name; *n_words is how many they are (1 or 2). NULL, with
 * the error set, when there is none. */
const struct bt_command *bt_command_find(int argc, char *const *argv, int *n_words,
                                         struct bt_error *err);

/* Prints the list of commands, or those of a group ("trace"); NULL: all. */
void bt_help_print_all(FILE *f, const char *group);

/* Prints all there is to know of one command, examples first. */
void bt_help_print(FILE *f, const struct bt_command *command);

/* True when `word` is the first of two words of some command. */
bool bt_command_is_group(const char *word);

#ifdef __cplusplus
}
#endif

#endif
