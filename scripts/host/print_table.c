#include "scripts/host/print_table.h"

#include "scripts/host/workload_table.h"

#include <lauxlib.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEYS = 64, MAX_DEPTH = 8 };

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A text as a Lua literal. [-0, +0, -] */
static void print_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\') {
            fputc('\\', f);
        }
        fputc(*p == '\n' ? ' ' : *p, f);
    }
    fputc('"', f);
}

/* The shortest decimal that reads back as the same double. */
static void print_number(FILE *f, double x)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) {
            break;
        }
    }
    fputs(text, f);
}

struct printer {
    const struct bt_table_reader *r;
    const char *dir;
    FILE *f;
    const char *trouble; /* what could not be written; NULL: nothing so far */
};

/* A file by its full path, so that the text means the same from anywhere; one that is not there
 * stays as it was given. */
static void print_file(const struct printer *p, const char *name)
{
    const char *path = bt_table_file(p->r, p->dir, name);
    char *full = realpath(path, NULL);
    print_text(p->f, full != NULL ? full : path);
    free(full);
}

static void print_value(struct printer *p, int idx, const char *key, int depth);

/* The list part, then the named keys in order. [-0, +0, -] */
static void print_members(struct printer *p, int idx, int depth)
{
    lua_State *L = p->r->L;
    const char *sep = " ";
    lua_Integer n = (lua_Integer)lua_rawlen(L, idx);
    for (lua_Integer i = 1; i <= n && p->trouble == NULL; i++) {
        fputs(sep, p->f);
        lua_rawgeti(L, idx, i); /* value */
        print_value(p, lua_gettop(L), "", depth + 1);
        lua_pop(L, 1);
        sep = ", ";
    }
    const char *keys[MAX_KEYS];
    int32_t n_keys = 0;
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1)) { /* key value */
        if (lua_type(L, -2) == LUA_TSTRING && strcmp(lua_tostring(L, -2), "__berth") != 0) {
            if (n_keys == MAX_KEYS) {
                p->trouble = "a table of over 64 keys";
                continue;
            }
            keys[n_keys++] = lua_tostring(L, -2);
        }
    }
    qsort(keys, (size_t)n_keys, sizeof *keys, compare_keys);
    for (int32_t i = 0; i < n_keys && p->trouble == NULL; i++) {
        fprintf(p->f, "%s%s = ", sep, keys[i]);
        lua_pushstring(L, keys[i]);
        lua_rawget(L, idx); /* value */
        print_value(p, lua_gettop(L), keys[i], depth + 1);
        lua_pop(L, 1);
        sep = ", ";
    }
    fputs(" }", p->f);
}

static void print_value(struct printer *p, int idx, const char *key, int depth)
{
    lua_State *L = p->r->L;
    bool is_file = strcmp(key, "file") == 0 || strcmp(key, "dir") == 0;
    switch (lua_type(L, idx)) {
    case LUA_TBOOLEAN:
        fputs(lua_toboolean(L, idx) ? "true" : "false", p->f);
        return;
    case LUA_TNUMBER:
        if (lua_isinteger(L, idx)) {
            fprintf(p->f, "%lld", (long long)lua_tointeger(L, idx));
        } else {
            print_number(p->f, lua_tonumber(L, idx));
        }
        return;
    case LUA_TSTRING:
        if (is_file) {
            print_file(p, lua_tostring(L, idx));
        } else {
            print_text(p->f, lua_tostring(L, idx));
        }
        return;
    case LUA_TTABLE: {
        const char *tag = bt_table_tag(p->r, idx);
        if (depth > MAX_DEPTH) {
            p->trouble = "tables nested too deep";
            return;
        }
        if (strcmp(tag, "slo") == 0) {
            fputs("slo {", p->f);
        } else {
            fprintf(p->f, "%s%s%s{", tag[0] == '\0' ? "" : "w.", tag, tag[0] == '\0' ? "" : " ");
        }
        print_members(p, idx, depth);
        return;
    }
    default:
        p->trouble = luaL_typename(L, idx);
        return;
    }
}

const char *bt_table_print(const struct bt_table_reader *r, int idx, const char *dir)
{
    char *text = NULL;
    size_t n = 0;
    struct printer p = {.r = r, .dir = dir, .f = open_memstream(&text, &n)};
    if (p.f == NULL) {
        luaL_error(r->L, "%s: no memory", r->file);
        return "";
    }
    luaL_checkstack(r->L, 4 * MAX_DEPTH + 8, NULL);
    print_value(&p, lua_absindex(r->L, idx), "", 0);
    bool bad = fclose(p.f) != 0;
    const char *copy = bad || p.trouble != NULL ? NULL : bt_arena_strdup(r->arena, text);
    free(text);
    if (copy == NULL) {
        luaL_error(r->L, "%s: cannot be written again: %s", r->file,
                   p.trouble != NULL ? p.trouble : "no memory");
    }
    return copy;
}
