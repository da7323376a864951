/* A Lua 5.4 state in which a scenario can compute, and nothing else.
 *
 * Allowed: the base library without load, dofile, loadfile, print and collectgarbage; string
 * without dump; table; utf8; math without random and randomseed; `require` of the compiled-in
 * berth.* modules. Reading or writing an undefined global is an error. Text chunks only. Each call
 * has an instruction budget, which no script can catch the end of, and which what is allocated,
 * matched and moved counts towards (guards.h); the state has a memory budget. No finalizers.
 *
 * Threading: one thread a state; any number of states.
 */
#ifndef BT_SCRIPTS_HOST_SANDBOX_H
#define BT_SCRIPTS_HOST_SANDBOX_H

#include "engine/core/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lua_State;
struct bt_sandbox;

struct bt_sandbox_opts {
    int64_t memory_bytes;      /* 0: 256 MiB */
    int64_t load_instructions; /* while the file runs; 0: 200 million */
    int64_t call_instructions; /* of one hook call; 0: 1 million */
};

/* Makes a state. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_sandbox_create(const struct bt_sandbox_opts *opts,
                                            struct bt_sandbox **out, struct bt_error *err);
void bt_sandbox_destroy(struct bt_sandbox *s);

/* The state, for reading results. Borrowed. */
struct lua_State *bt_sandbox_state(struct bt_sandbox *s);

/* Runs a chunk and leaves its one result on the stack [-0, +1 on BT_OK, +0 else]. BT_ERR_SCRIPT
 * with "chunk:line: message". `chunk` names it in messages. */
BT_NODISCARD enum bt_code bt_sandbox_run(struct bt_sandbox *s, const char *text, size_t text_bytes,
                                         const char *chunk, struct bt_error *err);

/* Calls the function below its n_args arguments on the stack [-(n_args + 1), +n_results on BT_OK,
 * +0 else] under the call budget. `what` names it in messages ("hooks.overload"). */
BT_NODISCARD enum bt_code bt_sandbox_call(struct bt_sandbox *s, int n_args, int n_results,
                                          const char *what, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
