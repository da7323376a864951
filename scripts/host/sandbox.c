#include "scripts/host/sandbox.h"

#include "scripts/host/guards.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "cmake/embedded.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const struct bt_embedded bt_lua_modules[];

enum {
    HOOK_EVERY = 1000,          /* instructions between two looks at the budget */
    BYTES_PER_INSTRUCTION = 16, /* allocated bytes that cost as much: copies take time too */
    LARGE_BYTES = 1 << 20       /* refused at once when the budget is spent */
};

static const int64_t DEFAULT_MEMORY_BYTES = INT64_C(256) << 20;
static const int64_t DEFAULT_LOAD_INSTRUCTIONS = 200000000;
static const int64_t DEFAULT_CALL_INSTRUCTIONS = 1000000;

/* The processor's time that a call may take: instructions are counted, but one alone may compare
 * two texts of 100 MB. Ten times and more what the budget's instructions take where they are only
 * that, so that no scenario's answer depends on the machine. */
static const int64_t CPU_NS_FREE = 1000000000, CPU_NS_PER_INSTRUCTION = 100;

struct bt_sandbox {
    lua_State *L; /* owned */
    int64_t memory_max_bytes;
    int64_t memory_bytes;
    int64_t load_instructions;
    int64_t call_instructions;
    int64_t instructions_left;
    int64_t budget;     /* of the call that runs, for its message */
    int64_t cpu_end_ns; /* of this thread's time: the call is stopped then */
    char chunk[512];    /* name of the file that runs, for messages */
};

/* Lua's allocator under the memory budget. */
static void *sandbox_alloc(void *ud, void *ptr, size_t osize, size_t nsize)
{
    struct bt_sandbox *s = ud;
    int64_t old = ptr == NULL ? 0 : (int64_t)osize;
    if (nsize == 0) {
        free(ptr);
        s->memory_bytes -= old;
        return NULL;
    }
    if (nsize > (size_t)INT64_MAX / 2 || (nsize > LARGE_BYTES && s->instructions_left < 0) ||
        s->memory_bytes - old + (int64_t)nsize > s->memory_max_bytes) {
        return NULL;
    }
    void *p = realloc(ptr, nsize);
    if (p != NULL) {
        s->memory_bytes += (int64_t)nsize - old;
        s->instructions_left -= (int64_t)nsize / BYTES_PER_INSTRUCTION;
    }
    return p;
}

static struct bt_sandbox *self_of(lua_State *L)
{
    return *(struct bt_sandbox **)lua_getextraspace(L);
}

static int64_t cpu_allowed_ns(const struct bt_sandbox *s)
{
    return CPU_NS_FREE + s->budget * CPU_NS_PER_INSTRUCTION;
}

/* Processor time of this thread. */
static int64_t cpu_ns(void)
{
    struct timespec t = {0};
    int rc = clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    BT_ASSERT(rc == 0);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* [-0, +0, e] */
static void count_hook(lua_State *L, lua_Debug *ar)
{
    struct bt_sandbox *s = self_of(L);
    s->instructions_left -= HOOK_EVERY;
    bool slow = s->instructions_left >= 0 && cpu_ns() > s->cpu_end_ns;
    if (slow || s->instructions_left < 0) {
        s->instructions_left = -1;
        lua_getinfo(L, "Sl", ar);
        lua_pushfstring(L, "%s:%d: stopped after %I %s: an endless loop?", ar->short_src,
                        ar->currentline,
                        (LUAI_UACINT)(slow ? cpu_allowed_ns(s) / 1000000 : s->budget),
                        slow ? "ms" : "instructions");
        lua_error(L);
    }
}

void bt_sandbox_charge(lua_State *L, double cost, const char *what)
{
    struct bt_sandbox *s = self_of(L);
    if (!(cost <= (double)s->instructions_left)) {
        s->instructions_left = -1;
        luaL_error(L, "%s may take more steps than the %I that are allowed", what,
                   (LUAI_UACINT)s->budget);
    }
    s->instructions_left -= (int64_t)cost;
}

bool bt_sandbox_is_spent(lua_State *L)
{
    return self_of(L)->instructions_left < 0;
}

/* Message handler: makes every error a string. [-1, +1, -] */
static int error_to_text(lua_State *L)
{
    if (lua_tostring(L, 1) == NULL) {
        lua_pushfstring(L, "an error that is a %s, not a text", luaL_typename(L, 1));
    }
    return 1;
}

/* A lookup of a global that nobody defined. [-2, +0, e] */
static int undefined_read(lua_State *L)
{
    return luaL_error(L,
                      "\"%s\" is not defined (scenarios have no io, os, debug, load, print, and no "
                      "globals of their own)",
                      luaL_tolstring(L, 2, NULL));
}

/* [-3, +0, e] */
static int undefined_write(lua_State *L)
{
    return luaL_error(L, "assignment to the global \"%s\": use local", luaL_tolstring(L, 2, NULL));
}

/* Compiled-in file of a module's name, or NULL. */
static const struct bt_embedded *find_module(const char *name)
{
    static const char prefix[] = "berth.";
    const char *file = NULL;
    if (strcmp(name, "berth") == 0) {
        file = "init";
    } else if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        file = name + sizeof prefix - 1;
    } else {
        return NULL;
    }
    static const char folder[] = "lua/berth/";
    size_t n = strlen(file);
    for (const struct bt_embedded *m = bt_lua_modules; m->name != NULL; m++) {
        const char *base = m->name + sizeof folder - 1;
        if (strncmp(base, file, n) == 0 && strcmp(base + n, ".lua") == 0) {
            return m;
        }
    }
    return NULL;
}

/* require of compiled-in modules only; each runs once. [-1, +1, e] */
static int sandbox_require(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    lua_settop(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, "berth.loaded"); /* name loaded */
    if (lua_getfield(L, 2, name) != LUA_TNIL) {         /* name loaded module */
        return 1;
    }
    const struct bt_embedded *m = find_module(name);
    if (m == NULL) {
        return luaL_error(L, "no module \"%s\"; there are berth, berth.workload and berth.slo",
                          name);
    }
    lua_pushfstring(L, "=%s", name); /* name loaded nil chunkname */
    if (luaL_loadbufferx(L, m->text, m->size_bytes, lua_tostring(L, -1), "t") != LUA_OK) {
        return lua_error(L);
    }
    lua_call(L, 0, 1);        /* name loaded nil chunkname module */
    lua_pushvalue(L, -1);     /* .. module module */
    lua_setfield(L, 2, name); /* .. module */
    return 1;
}

/* [-0, +0, e] */
static void remove_fields(lua_State *L, const char *lib, const char *const *names)
{
    lua_getglobal(L, lib); /* lib */
    for (; *names != NULL; names++) {
        lua_pushnil(L); /* lib nil */
        lua_setfield(L, -2, *names);
    }
    lua_pop(L, 1);
}

/* Opens the libraries; runs protected because memory may be refused. [-0, +0, e] */
static int open_libraries(lua_State *L)
{
    static const char *const no_string[] = {"dump", NULL};
    static const char *const no_math[] = {"random", "randomseed", NULL};
    static const char *const no_base[] = {"load",           "loadfile", "dofile", "print",
                                          "collectgarbage", "warn",     NULL};
    luaL_requiref(L, LUA_GNAME, luaopen_base, 1);
    luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
    luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
    luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
    luaL_requiref(L, LUA_UTF8LIBNAME, luaopen_utf8, 1);
    lua_settop(L, 0);
    remove_fields(L, LUA_STRLIBNAME, no_string);
    remove_fields(L, LUA_MATHLIBNAME, no_math);
    remove_fields(L, LUA_GNAME, no_base);
    bt_guards_install(L);
    lua_newtable(L); /* loaded */
    lua_setfield(L, LUA_REGISTRYINDEX, "berth.loaded");
    lua_pushcfunction(L, sandbox_require); /* require */
    lua_setglobal(L, "require");
    lua_pushglobaltable(L);               /* G */
    lua_newtable(L);                      /* G meta */
    lua_pushcfunction(L, undefined_read); /* G meta f */
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, undefined_write); /* G meta f */
    lua_setfield(L, -2, "__newindex");
    lua_pushboolean(L, 0); /* G meta false */
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2); /* G */
    lua_pop(L, 1);
    return 0;
}

enum bt_code bt_sandbox_create(const struct bt_sandbox_opts *opts, struct bt_sandbox **out,
                               struct bt_error *err)
{
    struct bt_sandbox *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "Lua: no memory for a state");
    }
    s->memory_max_bytes = opts->memory_bytes > 0 ? opts->memory_bytes : DEFAULT_MEMORY_BYTES;
    s->load_instructions =
        opts->load_instructions > 0 ? opts->load_instructions : DEFAULT_LOAD_INSTRUCTIONS;
    s->call_instructions =
        opts->call_instructions > 0 ? opts->call_instructions : DEFAULT_CALL_INSTRUCTIONS;
    s->budget = s->instructions_left = s->load_instructions;
    s->L = lua_newstate(sandbox_alloc, s);
    if (s->L == NULL) {
        free(s);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "Lua: no memory for a state");
    }
    *(struct bt_sandbox **)lua_getextraspace(s->L) = s;
    lua_pushcfunction(s->L, open_libraries);
    if (lua_pcall(s->L, 0, 0, 0) != LUA_OK) {
        bt_sandbox_destroy(s);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "Lua: no memory for the libraries");
    }
    *out = s;
    return BT_OK;
}

void bt_sandbox_destroy(struct bt_sandbox *s)
{
    if (s != NULL) {
        lua_close(s->L);
        free(s);
    }
}

struct lua_State *bt_sandbox_state(struct bt_sandbox *s)
{
    return s->L;
}

/* What a message lacks of the file's name: most say "file:line" themselves, where Lua may have
 * cut a long name to its end. */
static const char *missing_file(const struct bt_sandbox *s, const char *text)
{
    bool cut = strncmp(text, "...", 3) == 0;
    return cut || strncmp(text, s->chunk, strlen(s->chunk)) == 0 ? "" : s->chunk;
}

/* The one protected call. [-(n_args + 1), +n_results or +0, -] */
static enum bt_code script_call(struct bt_sandbox *s, int n_args, int n_results, int64_t budget,
                                const char *what, struct bt_error *err)
{
    lua_State *L = s->L;
    int base = lua_gettop(L) - n_args; /* the function */
    lua_pushcfunction(L, error_to_text);
    lua_insert(L, base); /* handler function args */
    s->budget = budget;
    s->instructions_left = budget;
    s->cpu_end_ns = cpu_ns() + cpu_allowed_ns(s);
    lua_sethook(L, count_hook, LUA_MASKCOUNT, HOOK_EVERY);
    int rc = lua_pcall(L, n_args, n_results, base);
    lua_sethook(L, NULL, 0, 0);
    if (rc != LUA_OK) {
        const char *text = rc != LUA_ERRMEM           ? lua_tostring(L, -1)
                           : s->instructions_left < 0 ? "stopped: too much memory was copied"
                                                      : "out of the scenario's memory budget";
        const char *file = missing_file(s, text);
        enum bt_code code = bt_error_set(err, BT_ERR_SCRIPT, rc, __FILE__, __LINE__, "%s%s%s%s%s",
                                         file, file[0] == '\0' ? "" : ": ",
                                         what == NULL ? "" : what, what == NULL ? "" : ": ", text);
        lua_settop(L, base - 1);
        return code;
    }
    lua_remove(L, base);
    return BT_OK;
}

enum bt_code bt_sandbox_run(struct bt_sandbox *s, const char *text, size_t text_bytes,
                            const char *chunk, struct bt_error *err)
{
    char name[sizeof s->chunk + 1];
    (void)snprintf(s->chunk, sizeof s->chunk, "%s", chunk);
    (void)snprintf(name, sizeof name, "@%s", s->chunk);
    s->instructions_left = s->load_instructions;
    if (luaL_loadbufferx(s->L, text, text_bytes, name, "t") != LUA_OK) {
        /* Syntax errors say where they are, a refused binary chunk does not. */
        const char *why = lua_tostring(s->L, -1);
        const char *file = missing_file(s, why);
        enum bt_code code = BT_ERR_SCRIPT;
        (void)bt_error_set(err, code, 0, __FILE__, __LINE__, "%s%s%s", file,
                           file[0] == '\0' ? "" : ": ", why);
        lua_pop(s->L, 1);
        return code;
    }
    return script_call(s, 0, 1, s->load_instructions, NULL, err);
}

enum bt_code bt_sandbox_call(struct bt_sandbox *s, int n_args, int n_results, const char *what,
                             struct bt_error *err)
{
    return script_call(s, n_args, n_results, s->call_instructions, what, err);
}
