/* Reading Lua tables strictly: helpers shared by the files that turn a scenario into data.
 * Nothing here may leave the protected calls that its users run in: errors are raised as Lua errors
 * with "file: key.path: expected ..., got ..." and caught there.
 */
#ifndef BT_SCRIPTS_HOST_TABLE_H
#define BT_SCRIPTS_HOST_TABLE_H

#include "engine/core/arena.h"

#include <lua.h>

#include <stdbool.h>
#include <stdint.h>

enum { BT_KEY_PATH_BYTES = 192 };

/* What is read, and where it goes. */
struct bt_table_reader {
    lua_State *L;
    struct bt_arena *arena; /* borrowed: strings and arrays are copied into it */
    const char *file;       /* for messages */
};

/* Raises "file: path: expected WANT, got VALUE" about the value at idx. [-0, +0, e] */
int bt_table_bad(const struct bt_table_reader *r, const char *path, const char *want, int idx);

/* Raises "file: path: MESSAGE". [-0, +0, e] */
int bt_table_fail(const struct bt_table_reader *r, const char *path, const char *message);

/* Raises that the key is unknown, with the nearest of `names` (ended by NULL). [-0, +0, e] */
int bt_table_unknown(const struct bt_table_reader *r, const char *path, const char *key,
                     const char *const *names);

/* Checks that the table at idx has string keys among `names` only ("__berth" is passed over).
 * [-0, +0, e] */
void bt_table_check_keys(const struct bt_table_reader *r, int idx, const char *path,
                         const char *const *names);

/* Value of a number at idx in min..max (inclusive). [-0, +0, e] */
double bt_table_number(const struct bt_table_reader *r, int idx, const char *path, double min,
                       double max);
int64_t bt_table_integer(const struct bt_table_reader *r, int idx, const char *path, int64_t min,
                         int64_t max);
bool bt_table_boolean(const struct bt_table_reader *r, int idx, const char *path);
/* A copy of the string at idx. [-0, +0, e] */
const char *bt_table_string(const struct bt_table_reader *r, int idx, const char *path);

/* The constructor's tag of the table at idx ("poisson"), or "". [-0, +0, -] */
const char *bt_table_tag(const struct bt_table_reader *r, int idx);

/* Writes "prefix.key" (or "key" when the prefix is empty). */
void bt_table_path(char out[BT_KEY_PATH_BYTES], const char *prefix, const char *key);

/* Zeroed memory from the arena; raises when refused. [-0, +0, e] */
void *bt_table_take(const struct bt_table_reader *r, int64_t n, size_t size);

/* A copy of a text in the arena; raises when refused. [-0, +0, e] */
const char *bt_table_copy(const struct bt_table_reader *r, const char *text);

#endif
