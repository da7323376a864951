#include "cli/cmd.h"
#include "cli/command.h"
#include "scripts/host/scenario.h"

#include <string.h>

void bt_help_print_all(FILE *f, const char *group)
{
    if (group == NULL) {
        (void)fputs("Berth plans, prices and proves capacity for LLM inference.\n\n"
                    "  berth COMMAND [ARGUMENTS] [--json | --csv] [--quiet] [--db FILE]\n\n",
                    f);
    }
    size_t n_group = group == NULL ? 0 : strlen(group);
    for (int32_t i = 0; bt_commands[i] != NULL; i++) {
        const struct bt_command *command = bt_commands[i];
        if (group == NULL ||
            (strncmp(command->name, group, n_group) == 0 && command->name[n_group] == ' ')) {
            fprintf(f, "  %-16s%s\n", command->name, command->summary);
        }
    }
    (void)fputs(
        "\n`berth help COMMAND` shows examples and every option, `berth help scenario` every "
        "key of a scenario.\n",
        f);
}

static void print_positional_usage(FILE *f, const struct bt_command *command)
{
    fprintf(f, "Usage\n  berth %s%s%s [options]\n", command->name,
            command->arguments[0] == '\0' ? "" : " ", command->arguments);
}

void bt_help_print(FILE *f, const struct bt_command *command)
{
    fprintf(f, "berth %s: %s\n\n", command->name, command->summary);
    if (command->n_examples > 0) {
        (void)fputs("Examples\n", f);
    }
    for (int32_t i = 0; i < command->n_examples; i++) {
        fprintf(f, "  # %s\n  berth %s\n\n", command->examples[i].words, command->examples[i].line);
    }
    print_positional_usage(f, command);
    struct bt_opt_table tables[BT_ARGS_MAX_TABLES];
    int32_t n_tables = bt_command_tables(command, tables);
    for (int32_t i = 0; i < n_tables; i++) {
        fprintf(f, "\n%s\n", tables[i].title);
        bt_opt_print(f, &tables[i]);
    }
    if (command->notes != NULL) {
        fprintf(f, "\n%s", command->notes);
    }
}

static enum bt_code run_help(struct bt_cli *cli, struct bt_error *err)
{
    if (cli->args.n_positional == 0) {
        bt_help_print_all(stdout, NULL);
        return BT_OK;
    }
    const char *const *words = cli->args.positional;
    if (cli->args.n_positional == 1 &&
        (strcmp(words[0], "scenario") == 0 || strcmp(words[0], "scenarios") == 0)) {
        bt_scenario_print_schema(stdout);
        return BT_OK;
    }
    if (cli->args.n_positional == 1 && bt_command_is_group(words[0])) {
        bt_help_print_all(stdout, words[0]);
        return BT_OK;
    }
    int n_words = 0;
    const struct bt_command *command =
        bt_command_find(cli->args.n_positional, (char *const *)words, &n_words, err);
    if (command == NULL) {
        return err->code;
    }
    bt_help_print(stdout, command);
    return BT_OK;
}

static const struct bt_example examples[] = {
    {"help replay", "Examples and options of one command."},
    {"help trace", "The commands of a group."},
    {"help scenario", "Every key of a scenario file, as a Markdown table."},
};

const struct bt_command bt_cmd_help = {
    .name = "help",
    .arguments = "[COMMAND | scenario]",
    .summary = "examples and options of a command",
    .examples = examples,
    .n_examples = sizeof examples / sizeof examples[0],
    .max_positional = 2,
    .run = run_help,
};

static enum bt_code run_version(struct bt_cli *cli, struct bt_error *err)
{
    json_t *doc = bt_out_object();
    bt_out_set(doc, "version", bt_out_text(BT_VERSION));
    static const struct bt_out_part parts[] = {{.kind = BT_OUT_LINES, .path = "line"}};
    static const struct bt_out_view view = {.parts = parts, .n_parts = 1};
    if (cli->format == BT_OUT_TABLE) {
        bt_out_set(doc, "line", bt_out_text("berth " BT_VERSION));
    }
    enum bt_code code = bt_cli_write(cli, doc, &view, err);
    json_decref(doc);
    return code;
}

const struct bt_command bt_cmd_version = {
    .name = "version",
    .arguments = "",
    .summary = "the program's version",
    .run = run_version,
};
