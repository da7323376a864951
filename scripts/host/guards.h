/* What the sandbox's instruction count cannot see: library functions that loop in C, errors that
 * are caught, and finalizers, which Lua runs without its hooks. */
#ifndef BT_SCRIPTS_HOST_GUARDS_H
#define BT_SCRIPTS_HOST_GUARDS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lua_State;

/* Replaces setmetatable, pcall and xpcall, and puts a price on find, match, gmatch, gsub and rep of
 * string, on insert, remove, move, sort and concat of table, and on len, offset and codepoint of
 * utf8. The libraries are open. [-0, +0, m] */
void bt_guards_install(struct lua_State *L);

/* Takes `cost` instructions off the budget of the running call; raises where it has not so many
 * left, and then nothing runs any more. `what` begins the message. [-0, +0, v] */
void bt_sandbox_charge(struct lua_State *L, double cost, const char *what);

/* Whether the running call has used its budget up. */
bool bt_sandbox_is_spent(struct lua_State *L);

#ifdef __cplusplus
}
#endif

#endif
