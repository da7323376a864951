#include "scripts/host/table.h"

#include "engine/core/suggest.h"

#include <lauxlib.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

void bt_table_path(char out[BT_KEY_PATH_BYTES], const char *prefix, const char *key)
{
    snprintf(out, BT_KEY_PATH_BYTES, "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".", key);
}

/* Pushes a value as a message shows it: strings quoted, tables by their type. [-0, +1, e] */
static const char *push_value(lua_State *L, int idx)
{
    switch (lua_type(L, idx)) {
    case LUA_TSTRING:
        return lua_pushfstring(L, "\"%s\"", lua_tostring(L, idx));
    case LUA_TNUMBER:
    case LUA_TBOOLEAN:
    case LUA_TNIL:
        return luaL_tolstring(L, idx, NULL);
    default:
        return lua_pushfstring(L, "a %s", luaL_typename(L, idx));
    }
}

int bt_table_bad(const struct bt_table_reader *r, const char *path, const char *want, int idx)
{
    const char *got = push_value(r->L, idx);
    lua_pushfstring(r->L, "%s: %s: expected %s, got %s", r->file, path, want, got);
    return lua_error(r->L);
}

int bt_table_fail(const struct bt_table_reader *r, const char *path, const char *message)
{
    lua_pushfstring(r->L, "%s: %s: %s", r->file, path, message);
    return lua_error(r->L);
}

int bt_table_unknown(const struct bt_table_reader *r, const char *path, const char *key,
                     const char *const *names)
{
    int32_t n = 0;
    while (names[n] != NULL) {
        n++;
    }
    const char *near = bt_suggest(key, names, n);
    if (near != NULL) {
        lua_pushfstring(r->L, "%s: %s: unknown key; did you mean \"%s\"?", r->file, path, near);
        return lua_error(r->L);
    }
    luaL_Buffer b;
    luaL_buffinit(r->L, &b);
    luaL_addstring(&b, r->file);
    luaL_addstring(&b, ": ");
    luaL_addstring(&b, path);
    luaL_addstring(&b, ": unknown key; allowed: ");
    for (int32_t i = 0; i < n; i++) {
        luaL_addstring(&b, i == 0 ? "" : ", ");
        luaL_addstring(&b, names[i]);
    }
    luaL_pushresult(&b);
    return lua_error(r->L);
}

void bt_table_check_keys(const struct bt_table_reader *r, int idx, const char *path,
                         const char *const *names)
{
    lua_State *L = r->L;
    idx = lua_absindex(L, idx);
    /* lua_next has no fixed order: the least offending key is reported. */
    char worst[BT_KEY_PATH_BYTES] = "";
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1)) { /* key value */
        if (lua_type(L, -2) != LUA_TSTRING) {
            lua_pushfstring(L, "a table with named keys only");
            bt_table_bad(r, path, lua_tostring(L, -1), -3);
        }
        const char *key = lua_tostring(L, -2);
        bool known = strcmp(key, "__berth") == 0;
        for (int32_t i = 0; names[i] != NULL && !known; i++) {
            known = strcmp(key, names[i]) == 0;
        }
        if (!known && (worst[0] == '\0' || strcmp(key, worst) < 0)) {
            snprintf(worst, sizeof worst, "%s", key);
        }
    }
    if (worst[0] != '\0') {
        char full[BT_KEY_PATH_BYTES];
        bt_table_path(full, path, worst);
        bt_table_unknown(r, full, worst, names);
    }
}

double bt_table_number(const struct bt_table_reader *r, int idx, const char *path, double min,
                       double max)
{
    double v = lua_type(r->L, idx) == LUA_TNUMBER ? lua_tonumber(r->L, idx) : NAN;
    if (!(v >= min && v <= max)) {
        char want[96];
        snprintf(want, sizeof want, "number %.9g..%.9g", min, max);
        bt_table_bad(r, path, want, idx);
    }
    return v;
}

int64_t bt_table_integer(const struct bt_table_reader *r, int idx, const char *path, int64_t min,
                         int64_t max)
{
    int is_int = 0;
    lua_Integer v = lua_type(r->L, idx) == LUA_TNUMBER ? lua_tointegerx(r->L, idx, &is_int) : 0;
    if (!is_int || v < min || v > max) {
        char want[96];
        snprintf(want, sizeof want, "integer %lld..%lld", (long long)min, (long long)max);
        bt_table_bad(r, path, want, idx);
    }
    return v;
}

bool bt_table_boolean(const struct bt_table_reader *r, int idx, const char *path)
{
    if (lua_type(r->L, idx) != LUA_TBOOLEAN) {
        bt_table_bad(r, path, "true or false", idx);
    }
    return lua_toboolean(r->L, idx);
}

const char *bt_table_string(const struct bt_table_reader *r, int idx, const char *path)
{
    size_t n = 0;
    const char *text = lua_type(r->L, idx) == LUA_TSTRING ? lua_tolstring(r->L, idx, &n) : NULL;
    if (text == NULL || strlen(text) != n) {
        bt_table_bad(r, path, "a text", idx);
    }
    return bt_table_copy(r, text);
}

const char *bt_table_tag(const struct bt_table_reader *r, int idx)
{
    if (lua_type(r->L, idx) != LUA_TTABLE) {
        return "";
    }
    lua_pushstring(r->L, "__berth");
    lua_rawget(r->L, idx < 0 ? idx - 1 : idx);
    const char *tag = lua_type(r->L, -1) == LUA_TSTRING ? lua_tostring(r->L, -1) : "";
    lua_pop(r->L, 1); /* the table still holds the string */
    return tag;
}

void *bt_table_take(const struct bt_table_reader *r, int64_t n, size_t size)
{
    void *p = bt_arena_take_zeroed(r->arena, (size_t)n, size);
    if (p == NULL) {
        luaL_error(r->L, "%s: no memory", r->file);
    }
    return p;
}

const char *bt_table_copy(const struct bt_table_reader *r, const char *text)
{
    const char *copy = bt_arena_strdup(r->arena, text);
    if (copy == NULL) {
        luaL_error(r->L, "%s: no memory", r->file);
    }
    return copy;
}
