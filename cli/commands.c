#include "cli/cmd.h"
#include "cli/command.h"

const struct bt_command *const bt_commands[] = {
    &bt_cmd_memory, &bt_cmd_trace_describe, &bt_cmd_trace_convert,
    &bt_cmd_help,   &bt_cmd_version,        NULL,
};
