/* Writes a Lua value as Lua again: tables by sorted keys, constructors by their tag. */
#ifndef BT_SCRIPTS_HOST_PRINT_TABLE_H
#define BT_SCRIPTS_HOST_PRINT_TABLE_H

#include "scripts/host/table.h"

/* The value at idx as a text in the arena: `w.poisson { rate_per_s = 5 }`. `dir` is put before the
 * values of keys named file or dir. Functions and other values that cannot be written raise an
 * error. [-0, +0, e] */
const char *bt_table_print(const struct bt_table_reader *r, int idx, const char *dir);

#endif
