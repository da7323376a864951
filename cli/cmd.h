/* The declaration of every command; each is defined in cli/cmd_<name>.c. Threading: const data. */
#ifndef BT_CLI_CMD_H
#define BT_CLI_CMD_H

#include "cli/command.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct bt_command bt_cmd_bench;
extern const struct bt_command bt_cmd_calibrate;
extern const struct bt_command bt_cmd_compare;
extern const struct bt_command bt_cmd_db_diff;
extern const struct bt_command bt_cmd_db_export;
extern const struct bt_command bt_cmd_db_list;
extern const struct bt_command bt_cmd_db_migrate;
extern const struct bt_command bt_cmd_db_show;
extern const struct bt_command bt_cmd_db_verify;
extern const struct bt_command bt_cmd_eval;
extern const struct bt_command bt_cmd_fit;
extern const struct bt_command bt_cmd_import;
extern const struct bt_command bt_cmd_help;
extern const struct bt_command bt_cmd_memory;
extern const struct bt_command bt_cmd_plan;
extern const struct bt_command bt_cmd_plot;
extern const struct bt_command bt_cmd_quantize;
extern const struct bt_command bt_cmd_replay;
extern const struct bt_command bt_cmd_run;
extern const struct bt_command bt_cmd_simulate;
extern const struct bt_command bt_cmd_trace_convert;
extern const struct bt_command bt_cmd_trace_describe;
extern const struct bt_command bt_cmd_validate;
extern const struct bt_command bt_cmd_version;

#ifdef __cplusplus
}
#endif

#endif
