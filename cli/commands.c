#include "cli/cmd.h"
#include "cli/command.h"

/* clang-format off */
const struct bt_command *const bt_commands[] = {
    &bt_cmd_plan,
    &bt_cmd_simulate,
    &bt_cmd_replay,
    &bt_cmd_memory,
    &bt_cmd_trace_describe,
    &bt_cmd_trace_convert,
    &bt_cmd_run,
    &bt_cmd_eval,
    &bt_cmd_fit,
    &bt_cmd_import,
    &bt_cmd_compare,
    &bt_cmd_bench,
    &bt_cmd_quantize,
    &bt_cmd_calibrate,
    &bt_cmd_validate,
    &bt_cmd_db_list,
    &bt_cmd_db_show,
    &bt_cmd_db_diff,
    &bt_cmd_db_export,
    &bt_cmd_db_verify,
    &bt_cmd_db_migrate,
    &bt_cmd_plot,
    &bt_cmd_help,
    &bt_cmd_version,
    NULL,
};
/* clang-format on */
