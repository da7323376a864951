/* A scenario's hooks: each simulation gets a Lua state of its own, the hooks are looked up once. */
#include "scripts/host/sandbox.h"
#include "scripts/host/scenario.h"

#include <lauxlib.h>
#include <lua.h>

#include <stdio.h>
#include <stdlib.h>

struct script_hooks {
    struct bt_sim_hooks hooks; /* first: what callers see */
    struct bt_sandbox *box;    /* owned */
    const char *file;          /* borrowed from the scenario */
    int refs[BT_N_HOOKS];      /* registry references, LUA_NOREF where there is none */
    struct bt_error err;
};

static const char *const CALL_NAMES[BT_N_HOOKS] = {"hooks.arrival", "hooks.overload", "hooks.route",
                                                   "hooks.speculation"};

static const double NS_PER_S = 1e9;

static void set_number(lua_State *L, const char *key, double value)
{
    lua_pushnumber(L, value); /* table value */
    lua_setfield(L, -2, key); /* table */
}

static void set_integer(lua_State *L, const char *key, int64_t value)
{
    lua_pushinteger(L, value); /* table value */
    lua_setfield(L, -2, key);  /* table */
}

/* [-0, +1, e] */
static void push_state(lua_State *L, const struct bt_sched_state *s, int32_t replica,
                       int64_t now_ns)
{
    lua_createtable(L, 0, 12); /* table */
    set_integer(L, "replica", replica + 1);
    set_number(L, "time_s", (double)now_ns / NS_PER_S);
    set_integer(L, "waiting", s->n_waiting);
    set_integer(L, "running", s->n_running);
    set_integer(L, "swapped", s->n_swapped);
    set_integer(L, "max_seqs", s->max_seqs);
    set_integer(L, "tokens_waiting", s->tokens_waiting);
    set_integer(L, "kv_blocks_total", s->kv_blocks_total);
    set_integer(L, "kv_blocks_used", s->kv_blocks_used);
    set_number(L, "kv_used", (double)s->kv_blocks_used / (double)s->kv_blocks_total);
    lua_pushboolean(L, s->spec_on); /* table on */
    lua_setfield(L, -2, "speculating");
}

/* [-0, +1, e] */
static void push_request(lua_State *L, const struct bt_req_spec *r)
{
    lua_createtable(L, 0, 6); /* table */
    set_integer(L, "id", (int64_t)r->user);
    set_number(L, "arrival_s", (double)r->arrival_ns / NS_PER_S);
    set_integer(L, "prompt_tokens", r->n_prompt);
    set_integer(L, "max_new_tokens", r->max_new_tokens);
    set_integer(L, "priority", r->priority);
    set_number(L, "timeout_s", (double)r->timeout_ns / NS_PER_S);
}

/* What a call needs, passed through the protected builder of its arguments. */
struct hook_args {
    const struct bt_req_spec *request; /* NULL: none */
    const struct bt_sched_state *states;
    int32_t n_states;
    int64_t now_ns;
    int ref;
    bool list; /* a list of states instead of one */
    bool state_first;
};

static void push_states(lua_State *L, const struct hook_args *a)
{
    if (!a->list) {
        push_state(L, a->states, a->states->replica, a->now_ns);
        return;
    }
    lua_createtable(L, a->n_states, 0); /* list */
    for (int32_t i = 0; i < a->n_states; i++) {
        push_state(L, &a->states[i], i, a->now_ns); /* list state */
        lua_rawseti(L, -2, i + 1);                  /* list */
    }
}

/* Builds the arguments and calls the hook: runs protected, since pushing may run out of memory.
 * [-1, +1, e] */
static int run_hook(lua_State *L)
{
    const struct hook_args *a = lua_touserdata(L, 1);
    lua_settop(L, 0);
    luaL_checkstack(L, 8, NULL);
    lua_rawgeti(L, LUA_REGISTRYINDEX, a->ref); /* f */
    int n = 0;
    if (a->state_first) {
        push_states(L, a); /* f state */
        n++;
    }
    if (a->request != NULL) {
        push_request(L, a->request); /* f [state] request */
        n++;
    }
    if (!a->state_first) {
        push_states(L, a); /* f request states */
        n++;
    }
    lua_call(L, n, 1);
    return 1;
}

/* Leaves the hook's result on the stack; false when it failed. [-0, +1 or +0, -] */
static bool call_hook(struct script_hooks *h, enum bt_hook which, struct hook_args *a)
{
    lua_State *L = bt_sandbox_state(h->box);
    if (h->hooks.failed) {
        return false;
    }
    a->ref = h->refs[which];
    lua_pushcfunction(L, run_hook); /* f */
    lua_pushlightuserdata(L, a);    /* f args */
    if (bt_sandbox_call(h->box, 1, 1, CALL_NAMES[which], &h->err) != BT_OK) {
        h->hooks.failed = true;
        return false;
    }
    return true;
}

/* Pops a result that is of no use, and fails the run. [-1, +0, -] */
static void bad_result(struct script_hooks *h, enum bt_hook which, const char *want)
{
    lua_State *L = bt_sandbox_state(h->box);
    char got[64];
    if (lua_isinteger(L, -1)) {
        (void)snprintf(got, sizeof got, "%lld", (long long)lua_tointeger(L, -1));
    } else if (lua_type(L, -1) == LUA_TNUMBER) {
        (void)snprintf(got, sizeof got, "the fraction %g", lua_tonumber(L, -1));
    } else {
        (void)snprintf(got, sizeof got, "a %s", luaL_typename(L, -1));
    }
    (void)bt_error_set(&h->err, BT_ERR_SCRIPT, 0, __FILE__, __LINE__,
                       "%s: %s: expected %s as its result, got %s", h->file, CALL_NAMES[which],
                       want, got);
    h->hooks.failed = true;
    lua_pop(L, 1);
}

/* Integer field of the table on top, in min..max; `def` when nil; false when it is anything else.
 */
static bool result_field(lua_State *L, const char *key, int64_t min, int64_t max, int32_t *inout)
{
    int is_int = 1;
    lua_pushstring(L, key);       /* table key */
    int type = lua_rawget(L, -2); /* table value */
    lua_Integer v = type == LUA_TNIL ? *inout : lua_tointegerx(L, -1, &is_int);
    lua_pop(L, 1);
    if (!is_int || v < min || v > max) {
        return false;
    }
    *inout = (int32_t)v;
    return true;
}

static bool hook_arrival(void *ctx, struct bt_req_spec *spec, const struct bt_sched_state *states,
                         int32_t n_replicas, int64_t now_ns)
{
    struct script_hooks *h = ctx;
    struct hook_args a = {
        .request = spec, .states = states, .n_states = n_replicas, .now_ns = now_ns, .list = true};
    if (!call_hook(h, BT_HOOK_ARRIVAL, &a)) {
        return true;
    }
    lua_State *L = bt_sandbox_state(h->box); /* result */
    static const char want[] = "nil, true, false, or { priority = 0..15, max_new_tokens = 1.. }";
    bool accept = true;
    if (lua_isboolean(L, -1)) {
        accept = lua_toboolean(L, -1);
    } else if (lua_istable(L, -1)) {
        int32_t priority = spec->priority, most = spec->max_new_tokens;
        if (!result_field(L, "priority", 0, BT_MAX_PRIORITY, &priority) ||
            !result_field(L, "max_new_tokens", 1, INT32_MAX, &most)) {
            bad_result(h, BT_HOOK_ARRIVAL, want);
            return true;
        }
        spec->priority = priority;
        spec->max_new_tokens = most < spec->max_new_tokens ? most : spec->max_new_tokens;
    } else if (!lua_isnil(L, -1)) {
        bad_result(h, BT_HOOK_ARRIVAL, want);
        return true;
    }
    lua_pop(L, 1);
    return accept;
}

static int32_t hook_overload(void *ctx, const struct bt_req_spec *spec,
                             const struct bt_sched_state *state, int64_t now_ns)
{
    struct script_hooks *h = ctx;
    struct hook_args a = {
        .request = spec, .states = state, .n_states = 1, .now_ns = now_ns, .state_first = true};
    if (!call_hook(h, BT_HOOK_OVERLOAD, &a)) {
        return -1;
    }
    lua_State *L = bt_sandbox_state(h->box); /* result */
    int is_int = 0;
    lua_Integer v = lua_tointegerx(L, -1, &is_int);
    int32_t answer = -1;
    if (lua_isboolean(L, -1) && !lua_toboolean(L, -1)) {
        answer = 0;
    } else if (lua_isinteger(L, -1) && v >= 1 && v <= INT32_MAX) {
        answer = (int32_t)v;
    } else if (!lua_isnil(L, -1)) {
        bad_result(h, BT_HOOK_OVERLOAD, "nil, false (refuse), or the most new tokens (1..)");
        return -1;
    }
    lua_pop(L, 1);
    return answer;
}

static int32_t hook_route(void *ctx, const struct bt_req_spec *spec,
                          const struct bt_sched_state *states, int32_t n_replicas, int64_t now_ns)
{
    struct script_hooks *h = ctx;
    struct hook_args a = {
        .request = spec, .states = states, .n_states = n_replicas, .now_ns = now_ns, .list = true};
    if (!call_hook(h, BT_HOOK_ROUTE, &a)) {
        return -1;
    }
    lua_State *L = bt_sandbox_state(h->box); /* result */
    int32_t answer = -1;
    if (lua_isinteger(L, -1) && lua_tointeger(L, -1) >= 1 && lua_tointeger(L, -1) <= n_replicas) {
        answer = (int32_t)lua_tointeger(L, -1) - 1;
    } else if (!lua_isnil(L, -1)) {
        bad_result(h, BT_HOOK_ROUTE, "nil or the number of a replica (1 is the first)");
        return -1;
    }
    lua_pop(L, 1);
    return answer;
}

static bool hook_speculate(void *ctx, const struct bt_sched_state *state, int64_t now_ns)
{
    struct script_hooks *h = ctx;
    struct hook_args a = {.states = state, .n_states = 1, .now_ns = now_ns, .state_first = true};
    if (!call_hook(h, BT_HOOK_SPECULATION, &a)) {
        return true;
    }
    lua_State *L = bt_sandbox_state(h->box); /* result */
    bool on = true;
    if (lua_isboolean(L, -1)) {
        on = lua_toboolean(L, -1);
    } else if (!lua_isnil(L, -1)) {
        bad_result(h, BT_HOOK_SPECULATION, "true, false or nil");
        return true;
    }
    lua_pop(L, 1);
    return on;
}

/* Takes references to the hook functions of the scenario's table, the only argument. [-1, +0, e] */
static int take_refs(lua_State *L)
{
    static const char *const names[BT_N_HOOKS] = {"arrival", "overload", "route", "speculation"};
    struct script_hooks *h = lua_touserdata(L, 2);
    lua_getfield(L, 1, "hooks"); /* table h hooks */
    for (int32_t i = 0; i < BT_N_HOOKS; i++) {
        if (lua_getfield(L, -1, names[i]) == LUA_TFUNCTION) { /* .. hooks f */
            h->refs[i] = luaL_ref(L, LUA_REGISTRYINDEX);      /* .. hooks */
        } else {
            lua_pop(L, 1);
        }
    }
    return 0;
}

enum bt_code bt_scenario_make_hooks(const struct bt_scenario *s, struct bt_sim_hooks **out,
                                    struct bt_error *err)
{
    *out = NULL;
    bool any = false;
    for (int32_t i = 0; i < BT_N_HOOKS; i++) {
        any = any || s->hooks[i];
    }
    if (!any) {
        return BT_OK;
    }
    struct script_hooks *h = calloc(1, sizeof *h);
    if (h == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for hooks", s->path);
    }
    h->file = s->path;
    for (int32_t i = 0; i < BT_N_HOOKS; i++) {
        h->refs[i] = LUA_NOREF;
    }
    struct bt_sandbox_opts opts = {0};
    enum bt_code code = bt_sandbox_create(&opts, &h->box, err);
    if (code == BT_OK) {
        code = bt_sandbox_run(h->box, s->text, s->text_bytes, s->path, err); /* table */
    }
    if (code == BT_OK) {
        lua_State *L = bt_sandbox_state(h->box);
        lua_pushcfunction(L, take_refs); /* table f */
        lua_insert(L, -2);               /* f table */
        lua_pushlightuserdata(L, h);     /* f table h */
        code = bt_sandbox_call(h->box, 2, 0, "hooks", err);
    }
    if (code != BT_OK) {
        bt_scenario_free_hooks(&h->hooks);
        return code;
    }
    h->hooks = (struct bt_sim_hooks){
        .ctx = h,
        .arrival = h->refs[BT_HOOK_ARRIVAL] != LUA_NOREF ? hook_arrival : NULL,
        .overload = h->refs[BT_HOOK_OVERLOAD] != LUA_NOREF ? hook_overload : NULL,
        .route = h->refs[BT_HOOK_ROUTE] != LUA_NOREF ? hook_route : NULL,
        .speculate = h->refs[BT_HOOK_SPECULATION] != LUA_NOREF ? hook_speculate : NULL,
    };
    *out = &h->hooks;
    return BT_OK;
}

const struct bt_error *bt_scenario_hooks_error(const struct bt_sim_hooks *hooks)
{
    const struct script_hooks *h = (const struct script_hooks *)(const void *)hooks;
    return &h->err;
}

void bt_scenario_free_hooks(struct bt_sim_hooks *hooks)
{
    if (hooks != NULL) {
        struct script_hooks *h = (struct script_hooks *)(void *)hooks;
        bt_sandbox_destroy(h->box);
        free(h);
    }
}
