#include "scripts/host/guards.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include <math.h>
#include <string.h>

/* ---- errors that are caught ---- */

/* An exhausted budget is not an error that a script may catch: loops round pcall would never end.
 * [-0, +0, v] */
static void rethrow_if_spent(lua_State *L, int rc)
{
    if (rc != LUA_OK && bt_sandbox_is_spent(L)) {
        lua_error(L);
    }
}

/* pcall(f, ...) [-n, +m, v] */
static int guarded_pcall(lua_State *L)
{
    luaL_checkany(L, 1);
    int rc = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0); /* results or message */
    rethrow_if_spent(L, rc);
    luaL_checkstack(L, 1, "too many results");
    lua_pushboolean(L, rc == LUA_OK);
    lua_insert(L, 1);
    return lua_gettop(L);
}

/* xpcall(f, handler, ...); the handler is called when f has been left: called inside, it would be
 * called again for errors of its own. [-n, +m, v] */
static int guarded_xpcall(lua_State *L)
{
    luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_pushvalue(L, 1); /* f handler ... f */
    lua_remove(L, 1);    /* handler ... f */
    lua_insert(L, 2);    /* handler f ... */
    int rc = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0);
    rethrow_if_spent(L, rc);
    lua_pushboolean(L, rc == LUA_OK);
    if (rc == LUA_OK) {
        lua_replace(L, 1); /* true results */
        return lua_gettop(L);
    }
    lua_insert(L, 1); /* false handler message */
    lua_call(L, 1, 1);
    return 2;
}

/* ---- finalizers ---- */

/* setmetatable(t, meta) without finalizers: Lua runs them with its hooks off, so that nothing could
 * stop one. A field that comes later marks no object. [-n, +1, v] */
static int guarded_setmetatable(lua_State *L)
{
    int type = lua_type(L, 2);
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_argexpected(L, type == LUA_TNIL || type == LUA_TTABLE, 2, "nil or table");
    if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL) {
        return luaL_error(L, "cannot change a protected metatable");
    }
    if (type == LUA_TTABLE) {
        lua_pushliteral(L, "__gc");
        if (lua_rawget(L, 2) != LUA_TNIL) {
            return luaL_error(L, "setmetatable: scenarios have no finalizers (__gc)");
        }
    }
    lua_settop(L, 2);
    lua_setmetatable(L, 1);
    return 1;
}

/* ---- loops in C ---- */

enum { COMPARES_PER_INSTRUCTION = 8 };

/* Items of a pattern that may match more or less: each may be tried at every length. */
static double n_choices(const char *pattern, size_t n)
{
    double choices = 0;
    for (size_t i = 0; i < n; i++) {
        if (pattern[i] == '%') {
            i++;
            choices += i < n && (pattern[i] == 'b' || (pattern[i] >= '1' && pattern[i] <= '9'));
        } else {
            choices +=
                pattern[i] == '*' || pattern[i] == '+' || pattern[i] == '-' || pattern[i] == '?';
        }
    }
    return choices;
}

/* Steps of matching at every start, at worst. */
static double pattern_cost(lua_State *L, bool may_be_plain)
{
    size_t n_text, n_pattern;
    (void)luaL_checklstring(L, 1, &n_text);
    const char *pattern = luaL_checklstring(L, 2, &n_pattern);
    bool plain = may_be_plain && lua_toboolean(L, 4);
    double at_each = (double)n_pattern / COMPARES_PER_INSTRUCTION;
    double choices = plain ? 0 : n_choices(pattern, n_pattern);
    return ((double)n_text + 1) * (at_each + pow((double)n_text + 1, choices));
}

static double find_cost(lua_State *L)
{
    return pattern_cost(L, true);
}

static double match_cost(lua_State *L)
{
    return pattern_cost(L, false);
}

static double rep_cost(lua_State *L)
{
    return (double)luaL_checkinteger(L, 2);
}

/* With a position the items behind it move. */
static double shift_cost(lua_State *L)
{
    return (double)luaL_len(L, 1);
}

static double move_cost(lua_State *L)
{
    return (double)luaL_checkinteger(L, 3) - (double)luaL_checkinteger(L, 2);
}

/* Comparisons of a quicksort. */
static double sort_cost(lua_State *L)
{
    double n = (double)luaL_len(L, 1);
    return n * log2(n + 2);
}

static double concat_cost(lua_State *L)
{
    lua_Integer first = luaL_optinteger(L, 3, 1);
    lua_Integer last = lua_isnoneornil(L, 4) ? luaL_len(L, 1) : luaL_checkinteger(L, 4);
    return (double)last - (double)first;
}

static double text_cost(lua_State *L)
{
    size_t n;
    (void)luaL_checklstring(L, 1, &n);
    return (double)n / COMPARES_PER_INSTRUCTION;
}

static const struct guard {
    const char *library, *name;
    double (*cost)(lua_State *L); /* reads the arguments, leaves the stack [-0, +0, v] */
    int from_args;                /* fewer arguments cost nothing */
} GUARDS[] = {
    {LUA_STRLIBNAME, "find", find_cost, 2},       {LUA_STRLIBNAME, "match", match_cost, 2},
    {LUA_STRLIBNAME, "gmatch", match_cost, 2},    {LUA_STRLIBNAME, "gsub", match_cost, 2},
    {LUA_STRLIBNAME, "rep", rep_cost, 2},         {LUA_TABLIBNAME, "insert", shift_cost, 3},
    {LUA_TABLIBNAME, "remove", shift_cost, 2},    {LUA_TABLIBNAME, "move", move_cost, 4},
    {LUA_TABLIBNAME, "sort", sort_cost, 1},       {LUA_TABLIBNAME, "concat", concat_cost, 1},
    {LUA_UTF8LIBNAME, "len", text_cost, 1},       {LUA_UTF8LIBNAME, "offset", text_cost, 1},
    {LUA_UTF8LIBNAME, "codepoint", text_cost, 1},
};

/* Upvalues: the library's function, the index of its guard. [-n, +m, v] */
static int guarded(lua_State *L)
{
    const struct guard *g = &GUARDS[lua_tointeger(L, lua_upvalueindex(2))];
    if (lua_gettop(L) >= g->from_args) {
        double cost = g->cost(L);
        if (cost > 0) {
            lua_pushfstring(L, "%s.%s", g->library, g->name);
            bt_sandbox_charge(L, cost, lua_tostring(L, -1));
            lua_pop(L, 1);
        }
    }
    lua_pushvalue(L, lua_upvalueindex(1)); /* args f */
    lua_insert(L, 1);                      /* f args */
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    return lua_gettop(L);
}

void bt_guards_install(lua_State *L)
{
    static const luaL_Reg base[] = {{"pcall", guarded_pcall},
                                    {"xpcall", guarded_xpcall},
                                    {"setmetatable", guarded_setmetatable},
                                    {NULL, NULL}};
    lua_pushglobaltable(L); /* G */
    luaL_setfuncs(L, base, 0);
    for (size_t i = 0; i < sizeof GUARDS / sizeof GUARDS[0]; i++) {
        lua_getfield(L, -1, GUARDS[i].library); /* G lib */
        lua_getfield(L, -1, GUARDS[i].name);    /* G lib f */
        lua_pushinteger(L, (lua_Integer)i);     /* G lib f i */
        lua_pushcclosure(L, guarded, 2);        /* G lib guarded */
        lua_setfield(L, -2, GUARDS[i].name);    /* G lib */
        lua_pop(L, 1);                          /* G */
    }
    lua_pop(L, 1);
}
