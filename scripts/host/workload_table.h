/* Turns a workload table (berth.workload's constructors) into a struct bt_workload_spec. */
#ifndef BT_SCRIPTS_HOST_WORKLOAD_TABLE_H
#define BT_SCRIPTS_HOST_WORKLOAD_TABLE_H

#include "scripts/host/table.h"
#include "sim/workload/spec.h"

#include <stdio.h>

/* Reads the table at idx; `dir` is put before relative file names. Raises Lua errors that name the
 * key's path. Ranges that need more than one key are left to bt_workload_validate. [-0, +0, e] */
void bt_workload_table_read(const struct bt_table_reader *r, int idx, const char *path,
                            const char *dir, struct bt_workload_spec *out);

/* Prints the constructors, their keys and ranges as a Markdown table. */
void bt_workload_table_print_schema(FILE *out);

/* "dir/file", or the file alone when it is absolute or dir is empty. [-0, +0, e] */
const char *bt_table_file(const struct bt_table_reader *r, const char *dir, const char *file);

#endif
