#include "scripts/host/scenario.h"

#include "engine/core/rng.h"
#include "scripts/host/print_table.h"
#include "scripts/host/sandbox.h"
#include "scripts/host/table.h"
#include "scripts/host/workload_table.h"

#include <lauxlib.h>
#include <lua.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEYS = 160, SCENARIO_MAX_BYTES = 4 << 20 };

/* Keys beside the configuration's, for messages and the schema. */
static const struct {
    const char *path, *type, *range, *help;
} EXTRA_KEYS[] = {
    {"name", "text", "", "Name of the scenario."},
    {"description", "text", "", "What it shows."},
    {"seed", "integer", "0..2^53", "Seed of every random stream [1]."},
    {"warmup", "number", "0..0.9",
     "Share of the workload left out of the statistics [0.1; 0 for "
     "traces]."},
    {"variants", "list", "1..256",
     "Named changes of the configuration: { label = .., KEY = VALUE, .. }."},
    {"workload", "workload", "", "Who sends what, when (below)."},
    {"slo", "table", "",
     "Limits: METRIC = { STAT = seconds } with ttft_s, tpot_s, itl_s, e2e_s, queue_s and mean, "
     "p50, "
     "p90, p95, p99, max."},
    {"slo.memory_headroom", "number", "0..0.9",
     "Share of the KV pool that stays free at the peak."},
    {"slo.accuracy_drop_points", "number", "0..100", "Most accuracy that quantisation may cost."},
    {"budget.usd_per_h", "number", "> 0", "Most that the plan may cost an hour."},
    {"budget.cards", "integer", "1..65536", "Most GPUs that the plan may use."},
    {"price.provider", "text", "", "Whose prices rank the plan."},
    {"price.term", "text", "", "on-demand, spot or reserved [on-demand]."},
    {"price.usd_per_h", "table", "", "Prices of your own: GPU = USD an hour."},
    {"hooks", "table", "",
     "Functions: arrival(request, states), overload(state, request), route(request, states), "
     "speculation(state)."},
};
enum { N_EXTRA = sizeof EXTRA_KEYS / sizeof *EXTRA_KEYS };

static const char *const HOOK_NAMES[BT_N_HOOKS + 1] = {"arrival", "overload", "route",
                                                       "speculation", NULL};

/* State of one reading. */
struct load {
    struct bt_table_reader r;
    struct bt_scenario *s;
    /* The configuration that keys are set in: the base, or a variant's. */
    struct bt_config *config;
    struct bt_variant *variant; /* NULL: the base */
    const char *at;             /* where its keys are, for messages: "" or "variants[1]" */
};

static bool type_fits(lua_State *L, const struct bt_config_field *f, int idx)
{
    int type = lua_type(L, idx);
    bool is_auto =
        type == LUA_TSTRING && f->allows_auto && strcmp(lua_tostring(L, idx), "auto") == 0;
    switch (f->type) {
    case BT_FIELD_NAME:
    case BT_FIELD_ENUM:
        return type == LUA_TSTRING;
    case BT_FIELD_INT:
    case BT_FIELD_INT64:
    case BT_FIELD_DOUBLE:
    case BT_FIELD_DURATION:
        return type == LUA_TNUMBER || is_auto;
    case BT_FIELD_BOOL:
        return type == LUA_TBOOLEAN;
    case BT_FIELD_SIZE:
        return type == LUA_TNUMBER || type == LUA_TSTRING;
    case BT_FIELD_SPEC:
        return type == LUA_TSTRING || type == LUA_TTABLE ||
               (type == LUA_TBOOLEAN && !lua_toboolean(L, idx));
    case BT_FIELD_WINDOW:
        return type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TTABLE;
    }
    return false;
}

/* w.dynamic { low = .., high = .. }. [-0, +1, e] */
static const char *push_window(const struct load *ld, int idx, const char *path)
{
    static const char *const keys[] = {"low", "high", NULL};
    lua_State *L = ld->r.L;
    if (strcmp(bt_table_tag(&ld->r, idx), "dynamic") != 0) {
        bt_table_bad(&ld->r, path, "a number of ms or w.dynamic { low = .., high = .. }", idx);
    }
    bt_table_check_keys(&ld->r, idx, path, keys);
    double ends[2];
    for (int32_t i = 0; i < 2; i++) {
        char at[BT_KEY_PATH_BYTES];
        bt_table_path(at, path, keys[i]);
        lua_getfield(L, idx, keys[i]); /* value */
        ends[i] = bt_table_number(&ld->r, -1, at, 0, 60000);
        lua_pop(L, 1);
    }
    char text[96];
    snprintf(text, sizeof text, "%.15g..%.15g", ends[0], ends[1]);
    return lua_pushstring(L, text);
}

/* Acceptance: a number, or a list by position. [-0, +0, e] */
static void add_acceptance(const struct load *ld, luaL_Buffer *b, int idx, const char *path)
{
    lua_State *L = ld->r.L;
    int32_t n = 1;
    bool is_list = lua_type(L, idx) == LUA_TTABLE;
    if (is_list) {
        n = (int32_t)lua_rawlen(L, idx);
        if (n < 1 || n > BT_MAX_SPEC_K) {
            bt_table_bad(&ld->r, path, "a number 0..1 or a list of 1..32 of them", idx);
        }
    }
    double a[BT_MAX_SPEC_K];
    for (int32_t i = 0; i < n; i++) {
        if (is_list) {
            lua_rawgeti(L, idx, i + 1); /* value */
        } else {
            lua_pushvalue(L, idx); /* value */
        }
        a[i] = bt_table_number(&ld->r, -1, path, 0, 1);
        lua_pop(L, 1);
    }
    for (int32_t i = 0; i < n; i++) {
        char text[40];
        snprintf(text, sizeof text, "%s%.15g", i == 0 ? ",acceptance=" : ":", a[i]);
        luaL_addstring(b, text);
    }
}

/* { draft = .., k = .., acceptance = .., temperature = .., text = .., adaptive = ..,
 * off_above_batch = .. } as the option's text. [-0, +1, e] */
static const char *push_spec(const struct load *ld, int idx, const char *path)
{
    static const char *const keys[] = {"draft",           "self",        "medusa", "k",
                                       "acceptance",      "temperature", "text",   "adaptive",
                                       "off_above_batch", NULL};
    lua_State *L = ld->r.L;
    bt_table_check_keys(&ld->r, idx, path, keys);
    luaL_Buffer b;
    char text[BT_NAME_BYTES + 32];
    char acceptance_path[BT_KEY_PATH_BYTES];
    bt_table_path(acceptance_path, path, "acceptance");
    /* Values are fetched below the buffer, whose top must stay where luaL_Buffer left it. */
    int base = lua_gettop(L);
    for (int32_t i = 0; keys[i] != NULL; i++) {
        lua_getfield(L, idx, keys[i]); /* base + 1 + i */
    }
    luaL_buffinit(L, &b);
    const char *sep = "";
    for (int32_t i = 0; keys[i] != NULL; i++) {
        int at = base + 1 + i;
        if (lua_isnil(L, at)) {
            continue;
        }
        char key_path[BT_KEY_PATH_BYTES];
        bt_table_path(key_path, path, keys[i]);
        if (strcmp(keys[i], "acceptance") == 0) {
            add_acceptance(ld, &b, at, acceptance_path);
            continue;
        }
        if (strcmp(keys[i], "draft") == 0 || strcmp(keys[i], "text") == 0) {
            snprintf(text, sizeof text, "%s%s=%s", sep, keys[i],
                     bt_table_string(&ld->r, at, key_path));
        } else if (strcmp(keys[i], "temperature") == 0) {
            snprintf(text, sizeof text, "%stemperature=%.15g", sep,
                     bt_table_number(&ld->r, at, key_path, 0, INFINITY));
        } else if (strcmp(keys[i], "adaptive") == 0) {
            snprintf(text, sizeof text, "%sadaptive=%s", sep,
                     bt_table_boolean(&ld->r, at, key_path) ? "on" : "off");
        } else {
            const char *name = strcmp(keys[i], "off_above_batch") == 0 ? "off-above" : keys[i];
            snprintf(text, sizeof text, "%s%s=%" PRId64, sep, name,
                     bt_table_integer(&ld->r, at, key_path, 1, BT_MAX_SEQS));
        }
        luaL_addstring(&b, text);
        sep = ",";
    }
    luaL_pushresult(&b);
    lua_replace(L, base + 1);
    lua_settop(L, base + 1);
    return lua_tostring(L, -1);
}

/* What a field allows in the words of a scenario; the command line's differ for these three. */
static void describe(const struct bt_config_field *f, char *out, size_t n)
{
    if (f->type == BT_FIELD_BOOL) {
        snprintf(out, n, "true or false");
    } else if (f->type == BT_FIELD_WINDOW) {
        snprintf(out, n, "number %g..%g %s or w.dynamic { low = .., high = .. }", f->min, f->max,
                 f->unit);
    } else if (f->type == BT_FIELD_SPEC) {
        snprintf(out, n,
                 "false or { draft = MODEL, k = .. }, { self = LAYERS, k = .. }, { medusa = HEADS "
                 "}, each with acceptance, temperature, text, adaptive, off_above_batch");
    } else {
        bt_config_describe(f, out, n);
    }
}

/* One value as the text that bt_config_set takes; checks the Lua type against the field's. The text
 * lies in the arena. [-0, +0, e] */
static const char *value_text(const struct load *ld, const struct bt_config_field *f, int idx,
                              const char *path)
{
    lua_State *L = ld->r.L;
    idx = lua_absindex(L, idx);
    int top = lua_gettop(L);
    if (!type_fits(L, f, idx)) {
        char want[256];
        describe(f, want, sizeof want);
        bt_table_bad(&ld->r, path, want, idx);
    }
    const char *text = NULL;
    char number[48];
    switch (lua_type(L, idx)) {
    case LUA_TBOOLEAN:
        text = f->type == BT_FIELD_SPEC ? "none" : lua_toboolean(L, idx) ? "on" : "off";
        break;
    case LUA_TNUMBER:
        if (lua_isinteger(L, idx)) {
            snprintf(number, sizeof number, "%lld", (long long)lua_tointeger(L, idx));
        } else {
            snprintf(number, sizeof number, "%.17g", lua_tonumber(L, idx));
        }
        text = number;
        break;
    case LUA_TTABLE:
        text = f->type == BT_FIELD_SPEC ? push_spec(ld, idx, path) : push_window(ld, idx, path);
        break;
    default:
        text = lua_tostring(L, idx);
        break;
    }
    const char *copy = bt_table_copy(&ld->r, text);
    lua_settop(L, top);
    /* Files that a scenario names are relative to it. */
    bool is_model = f == bt_config_find("model") || f == bt_config_find("degrade.model");
    if (is_model && strchr(copy, '/') != NULL && ld->s->dir[0] != '\0') {
        FILE *probe = fopen(bt_table_file(&ld->r, ld->s->dir, copy), "rb");
        if (probe != NULL) {
            (void)fclose(probe);
            copy = bt_table_file(&ld->r, ld->s->dir, copy);
        }
    }
    return copy;
}

/* Checks a value by setting it, with the file in front of the message. [-0, +0, e] */
static void set_text(const struct load *ld, struct bt_config *c, const struct bt_config_field *f,
                     const char *text, const char *path)
{
    struct bt_error err = {0};
    if (bt_config_set(c, f, text, path, &err) != BT_OK) {
        lua_pushfstring(ld->r.L, "%s: %s", ld->r.file, err.msg);
        lua_error(ld->r.L);
    }
}

/* Whether the table at idx holds several values for a field: a list, or berth.any. */
static bool is_value_list(const struct load *ld, int idx)
{
    return lua_type(ld->r.L, idx) == LUA_TTABLE &&
           (lua_rawlen(ld->r.L, idx) > 0 || strcmp(bt_table_tag(&ld->r, idx), "any") == 0);
}

/* A dimension from a list. [-0, +0, e] */
static void read_dimension(const struct load *ld, const struct bt_config_field *f, int idx,
                           const char *path)
{
    lua_State *L = ld->r.L;
    idx = lua_absindex(L, idx);
    int top = lua_gettop(L);
    if (ld->variant != NULL) {
        bt_table_fail(&ld->r, path, "a variant takes one value, not a list");
    }
    if (strcmp(bt_table_tag(&ld->r, idx), "any") == 0) {
        lua_getfield(L, idx, "values"); /* values */
        idx = lua_gettop(L);
    }
    int32_t n = (int32_t)lua_rawlen(L, idx);
    if (n < 1 || n > 1024 || ld->s->n_dims >= BT_MAX_DIMS) {
        bt_table_bad(&ld->r, path, "a list of 1..1024 values, and at most 24 such lists", idx);
    }
    const char **values = bt_table_take(&ld->r, n, sizeof *values);
    for (int32_t i = 0; i < n; i++) {
        char at[BT_KEY_PATH_BYTES];
        snprintf(at, sizeof at, "%s[%d]", path, i + 1);
        lua_rawgeti(L, idx, i + 1); /* value */
        values[i] = value_text(ld, f, -1, at);
        struct bt_config scratch = *ld->config;
        set_text(ld, &scratch, f, values[i], at);
        for (int32_t j = 0; j < i; j++) {
            if (strcmp(values[i], values[j]) == 0) {
                bt_table_bad(&ld->r, at, "a value that is not in the list already", -1);
            }
        }
        lua_pop(L, 1);
    }
    set_text(ld, ld->config, f, values[0], path);
    if (n > 1) {
        ld->s->dims[ld->s->n_dims++] = (struct bt_dim){.field = f, .n_values = n, .values = values};
    }
    lua_settop(L, top);
}

/* A configuration key's value at idx. [-0, +0, e] */
static void read_field(const struct load *ld, const struct bt_config_field *f, int idx,
                       const char *path)
{
    if (is_value_list(ld, idx)) {
        read_dimension(ld, f, idx, path);
        return;
    }
    set_text(ld, ld->config, f, value_text(ld, f, idx, path), path);
    if (ld->variant != NULL) {
        ld->variant->sets |= UINT64_C(1) << (f - bt_config_fields);
    }
}

/* Whether some configuration key lies below this path ("kv" -> "kv.dtype"). */
static bool has_fields_below(const char *path)
{
    size_t n = strlen(path);
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        if (strncmp(f->path, path, n) == 0 && f->path[n] == '.') {
            return true;
        }
    }
    return false;
}

/* Names that may stand right below a prefix. */
static int32_t names_below(const char *prefix, bool top, const char **out, int32_t max,
                           char (*store)[BT_KEY_PATH_BYTES])
{
    int32_t n = 0;
    size_t len = strlen(prefix);
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL && n < max - 1; f++) {
        const char *rest = f->path;
        if (len > 0) {
            if (strncmp(rest, prefix, len) != 0 || rest[len] != '.') {
                continue;
            }
            rest += len + 1;
        }
        snprintf(store[n], BT_KEY_PATH_BYTES, "%.*s", (int)strcspn(rest, "."), rest);
        bool seen = n > 0 && strcmp(store[n], store[n - 1]) == 0;
        if (!seen) {
            out[n] = store[n];
            n++;
        }
    }
    for (int32_t i = 0; top && i < N_EXTRA && n < max - 1; i++) {
        const char *p = EXTRA_KEYS[i].path;
        snprintf(store[n], BT_KEY_PATH_BYTES, "%.*s", (int)strcspn(p, "."), p);
        if (strcmp(store[n], out[n - 1]) != 0) {
            out[n] = store[n];
            n++;
        }
    }
    out[n] = NULL;
    return n;
}

static bool is_extra(const char *key)
{
    for (int32_t i = 0; i < N_EXTRA; i++) {
        size_t n = strcspn(EXTRA_KEYS[i].path, ".");
        if (strlen(key) == n && strncmp(EXTRA_KEYS[i].path, key, n) == 0) {
            return true;
        }
    }
    return false;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Configuration keys of the table at idx, in the order of their names; other keys of the top level
 * are passed over when they are known. [-0, +0, e] */
static void read_fields(const struct load *ld, int idx, const char *prefix)
{
    lua_State *L = ld->r.L;
    idx = lua_absindex(L, idx);
    bool top = prefix[0] == '\0';
    const char *keys[MAX_KEYS];
    int32_t n = 0;
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1)) { /* key value */
        if (lua_type(L, -2) != LUA_TSTRING || n == MAX_KEYS) {
            bt_table_bad(&ld->r,
                         !top                  ? prefix
                         : ld->variant != NULL ? ld->at
                                               : "scenario",
                         "a table with named keys", idx);
        }
        keys[n++] = lua_tostring(L, -2); /* kept alive by the table */
    }
    qsort(keys, (size_t)n, sizeof *keys, compare_keys);
    for (int32_t i = 0; i < n; i++) {
        char path[BT_KEY_PATH_BYTES], shown[BT_KEY_PATH_BYTES];
        bt_table_path(path, prefix, keys[i]);
        bt_table_path(shown, ld->at, path);
        if (top && (ld->variant != NULL ? strcmp(keys[i], "label") == 0 : is_extra(keys[i]))) {
            continue;
        }
        const struct bt_config_field *f = bt_config_find(path);
        lua_getfield(L, idx, keys[i]); /* value */
        if (f != NULL) {
            read_field(ld, f, lua_gettop(L), shown);
        } else if (has_fields_below(path)) {
            if (lua_type(L, -1) != LUA_TTABLE) {
                bt_table_bad(&ld->r, shown, "a table", -1);
            }
            read_fields(ld, -1, path);
        } else {
            const char *names[MAX_KEYS];
            char store[MAX_KEYS][BT_KEY_PATH_BYTES];
            names_below(prefix, top && ld->variant == NULL, names, MAX_KEYS, store);
            bt_table_unknown(&ld->r, shown, keys[i], names);
        }
        lua_pop(L, 1);
    }
}

static void read_slo(struct load *ld, int idx)
{
    static const char *const metrics[] = {
        "ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "memory_headroom", "accuracy_drop_points",
        NULL};
    static const char *const stats[] = {"mean", "p50", "p90", "p95", "p99", "max", NULL};
    lua_State *L = ld->r.L;
    struct bt_scenario *s = ld->s;
    bt_table_check_keys(&ld->r, idx, "slo", metrics);
    for (int32_t m = 0; m < BT_N_SLO_METRICS; m++) {
        char path[BT_KEY_PATH_BYTES];
        bt_table_path(path, "slo", metrics[m]);
        if (lua_getfield(L, idx, metrics[m]) == LUA_TNIL) { /* limits */
            lua_pop(L, 1);
            continue;
        }
        int limits = lua_gettop(L);
        if (lua_type(L, limits) != LUA_TTABLE) {
            bt_table_bad(&ld->r, path, "a table such as { p95 = 1.5 }", limits);
        }
        bt_table_check_keys(&ld->r, limits, path, stats);
        for (int32_t t = 0; t < BT_N_STATS; t++) {
            char at[BT_KEY_PATH_BYTES];
            bt_table_path(at, path, stats[t]);
            if (lua_getfield(L, limits, stats[t]) != LUA_TNIL) { /* limits limit */
                if (s->n_slos == BT_MAX_SLOS) {
                    bt_table_fail(&ld->r, at, "at most 16 limits");
                }
                double limit_s = bt_table_number(&ld->r, -1, at, 1e-6, 1e6);
                s->slos[s->n_slos++] = (struct bt_slo){.metric = (enum bt_slo_metric)m,
                                                       .stat = (enum bt_stat)t,
                                                       .limit_ns = llround(limit_s * 1e9)};
            }
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
    if (lua_getfield(L, idx, "memory_headroom") != LUA_TNIL) { /* value */
        s->memory_headroom = bt_table_number(&ld->r, -1, "slo.memory_headroom", 0, 0.9);
    }
    lua_pop(L, 1);
    if (lua_getfield(L, idx, "accuracy_drop_points") != LUA_TNIL) { /* value */
        s->accuracy_drop_points = bt_table_number(&ld->r, -1, "slo.accuracy_drop_points", 0, 100);
    }
    lua_pop(L, 1);
    s->slo_lua = bt_table_print(&ld->r, idx, s->dir);
}

static void read_budget(struct load *ld, int idx)
{
    static const char *const keys[] = {"usd_per_h", "cards", NULL};
    lua_State *L = ld->r.L;
    bt_table_check_keys(&ld->r, idx, "budget", keys);
    if (lua_getfield(L, idx, "usd_per_h") != LUA_TNIL) { /* value */
        ld->s->budget_usd_per_h = bt_table_number(&ld->r, -1, "budget.usd_per_h", 1e-6, 1e9);
    }
    lua_pop(L, 1);
    if (lua_getfield(L, idx, "cards") != LUA_TNIL) { /* value */
        ld->s->budget_cards = (int32_t)bt_table_integer(&ld->r, -1, "budget.cards", 1, 65536);
    }
    lua_pop(L, 1);
}

static int compare_prices(const void *a, const void *b)
{
    const struct bt_price_override *x = a, *y = b;
    return strcmp(x->gpu, y->gpu);
}

static void read_price(struct load *ld, int idx)
{
    static const char *const keys[] = {"provider", "term", "usd_per_h", NULL};
    lua_State *L = ld->r.L;
    struct bt_scenario *s = ld->s;
    bt_table_check_keys(&ld->r, idx, "price", keys);
    if (lua_getfield(L, idx, "provider") != LUA_TNIL) { /* value */
        s->price_provider = bt_table_string(&ld->r, -1, "price.provider");
    }
    lua_pop(L, 1);
    if (lua_getfield(L, idx, "term") != LUA_TNIL) { /* value */
        s->price_term = bt_table_string(&ld->r, -1, "price.term");
    }
    lua_pop(L, 1);
    if (lua_getfield(L, idx, "usd_per_h") != LUA_TNIL) { /* table */
        int table = lua_gettop(L);
        if (lua_type(L, table) != LUA_TTABLE) {
            bt_table_bad(&ld->r, "price.usd_per_h", "a table such as { h200 = 3.5 }", table);
        }
        for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) { /* gpu usd */
            if (lua_type(L, -2) != LUA_TSTRING || s->n_prices == BT_MAX_PRICES) {
                bt_table_bad(&ld->r, "price.usd_per_h", "at most 64 prices by GPU name", table);
            }
            char at[BT_KEY_PATH_BYTES];
            bt_table_path(at, "price.usd_per_h", lua_tostring(L, -2));
            s->prices[s->n_prices++] = (struct bt_price_override){
                .gpu = bt_table_string(&ld->r, -2, at),
                .usd_per_h = bt_table_number(&ld->r, -1, at, 1e-6, 1e6),
            };
        }
        qsort(s->prices, (size_t)s->n_prices, sizeof *s->prices, compare_prices);
    }
    lua_pop(L, 1);
}

static void read_hooks(struct load *ld, int idx)
{
    lua_State *L = ld->r.L;
    bt_table_check_keys(&ld->r, idx, "hooks", HOOK_NAMES);
    for (int32_t i = 0; i < BT_N_HOOKS; i++) {
        char at[BT_KEY_PATH_BYTES];
        bt_table_path(at, "hooks", HOOK_NAMES[i]);
        int type = lua_getfield(L, idx, HOOK_NAMES[i]); /* value */
        if (type != LUA_TNIL && type != LUA_TFUNCTION) {
            bt_table_bad(&ld->r, at, "a function", -1);
        }
        ld->s->hooks[i] = type == LUA_TFUNCTION;
        lua_pop(L, 1);
    }
}

static void read_variants(struct load *ld, int idx)
{
    lua_State *L = ld->r.L;
    struct bt_scenario *s = ld->s;
    lua_Integer n = lua_type(L, idx) == LUA_TTABLE ? (lua_Integer)lua_rawlen(L, idx) : 0;
    if (n < 1 || n > BT_MAX_VARIANTS) {
        bt_table_bad(&ld->r, "variants", "a list of 1..256 tables", idx);
    }
    s->n_variants = (int32_t)n;
    s->variants = bt_table_take(&ld->r, n, sizeof *s->variants);
    for (int32_t i = 0; i < n; i++) {
        char at[BT_KEY_PATH_BYTES];
        snprintf(at, sizeof at, "variants[%d]", i + 1);
        if (lua_rawgeti(L, idx, i + 1) != LUA_TTABLE) { /* variant */
            bt_table_bad(&ld->r, at, "a table { label = .., KEY = VALUE }", -1);
        }
        int variant = lua_gettop(L);
        char label[BT_KEY_PATH_BYTES];
        bt_table_path(label, at, "label");
        lua_getfield(L, variant, "label"); /* variant label */
        struct bt_variant *v = &s->variants[i];
        v->label = bt_table_string(&ld->r, -1, label);
        lua_pop(L, 1); /* variant */
        v->config = s->base;
        struct load sub = *ld;
        sub.config = &v->config;
        sub.variant = v;
        sub.at = at;
        read_fields(&sub, variant, "");
        lua_pop(L, 1);
    }
}

/* Calls `read` with the table under a top-level key, if it is there. [-0, +0, e] */
static void read_section(struct load *ld, int idx, const char *key,
                         void (*read)(struct load *, int))
{
    lua_State *L = ld->r.L;
    if (lua_getfield(L, idx, key) != LUA_TNIL) { /* value */
        if (lua_type(L, -1) != LUA_TTABLE) {
            bt_table_bad(&ld->r, key, "a table", -1);
        }
        read(ld, lua_gettop(L));
    }
    lua_pop(L, 1);
}

static void read_workload(struct load *ld, int idx)
{
    bt_workload_table_read(&ld->r, idx, "workload", ld->s->dir, &ld->s->workload);
    ld->s->has_workload = true;
    ld->s->workload_lua = bt_table_print(&ld->r, idx, ld->s->dir);
    struct bt_error err = {0};
    if (bt_workload_validate(&ld->s->workload, &err) != BT_OK) {
        lua_pushfstring(ld->r.L, "%s: %s", ld->r.file, err.msg);
        lua_error(ld->r.L);
    }
}

/* Reads the scenario table, the only argument. Light userdata upvalue: struct load. [-1, +0, e] */
static int read_scenario(lua_State *L)
{
    struct load *ld = lua_touserdata(L, 2);
    struct bt_scenario *s = ld->s;
    lua_settop(L, 1);
    if (lua_type(L, 1) != LUA_TTABLE) {
        return bt_table_bad(&ld->r, "scenario", "a file that returns a table", 1);
    }
    s->name = "";
    s->description = "";
    s->slo_lua = "";
    if (lua_getfield(L, 1, "name") != LUA_TNIL) { /* value */
        s->name = bt_table_string(&ld->r, -1, "name");
    }
    lua_pop(L, 1);
    if (lua_getfield(L, 1, "description") != LUA_TNIL) { /* value */
        s->description = bt_table_string(&ld->r, -1, "description");
    }
    lua_pop(L, 1);
    if (lua_getfield(L, 1, "seed") != LUA_TNIL) { /* value */
        s->seed = (uint64_t)bt_table_integer(&ld->r, -1, "seed", 0, INT64_C(1) << 53);
    }
    lua_pop(L, 1);
    read_section(ld, 1, "workload", read_workload);
    s->warmup_fraction = s->workload.kind == BT_WORKLOAD_TRACE ? 0 : 0.1;
    if (lua_getfield(L, 1, "warmup") != LUA_TNIL) { /* value */
        s->warmup_fraction = bt_table_number(&ld->r, -1, "warmup", 0, 0.9);
    }
    lua_pop(L, 1);
    read_fields(ld, 1, "");
    read_section(ld, 1, "variants", read_variants);
    read_section(ld, 1, "slo", read_slo);
    read_section(ld, 1, "budget", read_budget);
    read_section(ld, 1, "price", read_price);
    read_section(ld, 1, "hooks", read_hooks);
    return 0;
}

/* The scenario's arena holds its text, path and folder. */
static enum bt_code keep_text(struct bt_scenario *s, const char *text, size_t text_bytes,
                              const char *path, struct bt_error *err)
{
    char *copy = bt_arena_take(&s->arena, text_bytes + 1);
    s->path = bt_arena_strdup(&s->arena, path);
    char *dir = bt_arena_strdup(&s->arena, path);
    if (copy == NULL || s->path == NULL || dir == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for the scenario", path);
    }
    memcpy(copy, text, text_bytes);
    copy[text_bytes] = '\0';
    s->text = copy;
    s->text_bytes = text_bytes;
    s->text_hash = bt_hash_bytes(text, text_bytes, 0);
    char *slash = strrchr(dir, '/');
    if (slash == NULL) {
        dir[0] = '\0';
    } else {
        slash[slash == dir ? 1 : 0] = '\0';
    }
    s->dir = dir;
    return BT_OK;
}

static enum bt_code parse_into(struct bt_scenario *s, struct bt_sandbox *box, struct bt_error *err)
{
    lua_State *L = bt_sandbox_state(box);
    BT_TRY(bt_sandbox_run(box, s->text, s->text_bytes, s->path, err)); /* table */
    struct load ld = {
        .r = {.L = L, .arena = &s->arena, .file = s->path}, .s = s, .config = &s->base, .at = ""};
    lua_pushcfunction(L, read_scenario); /* table f */
    lua_insert(L, -2);                   /* f table */
    lua_pushlightuserdata(L, &ld);       /* f table ld */
    enum bt_code code = bt_sandbox_call(box, 2, 0, NULL, err);
    /* What the reader raises is about keys and values, not about the script. */
    if (code == BT_ERR_SCRIPT && err != NULL && err->code == BT_ERR_SCRIPT) {
        err->code = BT_ERR_INPUT;
        code = BT_ERR_INPUT;
    }
    return code;
}

enum bt_code bt_scenario_parse(const char *text, size_t text_bytes, const char *path,
                               struct bt_scenario *out, struct bt_error *err)
{
    struct bt_scenario *s = out;
    *s = (struct bt_scenario){.seed = 1, .budget_usd_per_h = NAN, .accuracy_drop_points = NAN};
    bt_arena_init(&s->arena, 0);
    bt_config_init(&s->base);
    struct bt_sandbox *box = NULL;
    enum bt_code code = keep_text(s, text, text_bytes, path, err);
    if (code == BT_OK) {
        struct bt_sandbox_opts opts = {0};
        code = bt_sandbox_create(&opts, &box, err);
    }
    if (code == BT_OK) {
        code = parse_into(s, box, err);
    }
    bt_sandbox_destroy(box);
    if (code != BT_OK) {
        bt_scenario_fini(s);
    }
    return code;
}

enum bt_code bt_scenario_load(const char *path, struct bt_scenario *out, struct bt_error *err)
{
    *out = (struct bt_scenario){0};
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot open: %s", path, strerror(errno));
    }
    char *text = malloc(SCENARIO_MAX_BYTES + 1);
    if (text == NULL) {
        (void)fclose(f);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for the scenario", path);
    }
    size_t n = fread(text, 1, SCENARIO_MAX_BYTES + 1, f);
    bool bad = ferror(f) != 0;
    int why = errno;
    (void)fclose(f);
    enum bt_code code = BT_OK;
    if (bad) {
        code = bt_error_set(err, BT_ERR_IO, why, __FILE__, __LINE__, "%s: cannot read: %s", path,
                            strerror(why));
    } else if (n > SCENARIO_MAX_BYTES) {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                            "%s: longer than %d bytes: not a scenario", path, SCENARIO_MAX_BYTES);
    } else {
        /* Some editors begin UTF-8 with a mark. */
        size_t mark = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
        code = bt_scenario_parse(text + mark, n - mark, path, out, err);
    }
    free(text);
    return code;
}

void bt_scenario_fini(struct bt_scenario *s)
{
    bt_arena_fini(&s->arena);
    *s = (struct bt_scenario){0};
}

static void fix_one(struct bt_config *c, const struct bt_config_field *f, const char *text)
{
    enum bt_code code = bt_config_set(c, f, text, NULL, NULL);
    BT_ASSERT(code == BT_OK);
}

void bt_scenario_fix(struct bt_scenario *s, const struct bt_config_field *f, const char *text)
{
    fix_one(&s->base, f, text);
    for (int32_t i = 0; i < s->n_variants; i++) {
        fix_one(&s->variants[i].config, f, text);
    }
    int32_t kept = 0;
    for (int32_t d = 0; d < s->n_dims; d++) {
        if (s->dims[d].field != f) {
            s->dims[kept++] = s->dims[d];
        }
    }
    s->n_dims = kept;
}

static bool variant_sets(const struct bt_variant *v, const struct bt_config_field *f)
{
    return v != NULL && (v->sets >> (f - bt_config_fields) & 1) != 0;
}

/* Configurations of one variant (NULL: the base); what is more counts as `most`. */
static int64_t n_of_variant(const struct bt_scenario *s, const struct bt_variant *v)
{
    const int64_t most = INT64_MAX / BT_MAX_VARIANTS;
    int64_t n = 1;
    for (int32_t d = 0; d < s->n_dims; d++) {
        int32_t n_values = variant_sets(v, s->dims[d].field) ? 1 : s->dims[d].n_values;
        n = n > most / n_values ? most : n * n_values;
    }
    return n;
}

int64_t bt_scenario_n_configs(const struct bt_scenario *s)
{
    if (s->n_variants == 0) {
        return n_of_variant(s, NULL);
    }
    int64_t n = 0;
    for (int32_t i = 0; i < s->n_variants; i++) {
        n += n_of_variant(s, &s->variants[i]);
    }
    return n;
}

void bt_scenario_config(const struct bt_scenario *s, int64_t i, struct bt_config *out, char *label,
                        size_t label_bytes)
{
    BT_ASSERT(i >= 0);
    const struct bt_variant *v = NULL;
    *out = s->base;
    for (int32_t k = 0; k < s->n_variants; k++) {
        v = &s->variants[k];
        int64_t n = n_of_variant(s, v);
        if (i < n) {
            break;
        }
        i -= n;
    }
    if (v != NULL) {
        *out = v->config;
    }
    size_t at = 0;
    int w = snprintf(label, label_bytes, "%s", v == NULL ? "" : v->label);
    at += w > 0 ? (size_t)w : 0;
    /* The last dimension moves fastest. */
    int64_t rest = n_of_variant(s, v);
    BT_ASSERT(i < rest);
    for (int32_t d = 0; d < s->n_dims; d++) {
        const struct bt_dim *dim = &s->dims[d];
        if (variant_sets(v, dim->field)) {
            continue;
        }
        rest /= dim->n_values;
        const char *value = dim->values[i / rest % dim->n_values];
        enum bt_code code = bt_config_set(out, dim->field, value, NULL, NULL);
        BT_ASSERT(code == BT_OK);
        if (at < label_bytes) {
            w = snprintf(label + at, label_bytes - at, "%s%s=%s", at == 0 ? "" : " ",
                         dim->field->path, value);
            at += w > 0 ? (size_t)w : 0;
        }
    }
}

void bt_scenario_print_workload(FILE *out, const struct bt_scenario *s)
{
    fprintf(out, "  workload = %s,\n", s->workload_lua);
    if (s->slo_lua[0] != '\0') {
        fprintf(out, "  slo = %s,\n", s->slo_lua);
    }
}

void bt_scenario_print_schema(FILE *out)
{
    fprintf(out, "| key | allowed | default | what it is |\n| --- | --- | --- | --- |\n");
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        char range[256];
        describe(f, range, sizeof range);
        bool is_switch = f->type == BT_FIELD_BOOL || f->type == BT_FIELD_SPEC;
        const char *def = f->def == NULL                           ? "must be given"
                          : is_switch && strcmp(f->def, "on") == 0 ? "true"
                          : is_switch                              ? "false"
                                                                   : f->def;
        fprintf(out, "| `%s` | %s | %s | %s |\n", f->path, range, def, f->help);
    }
    for (int32_t i = 0; i < N_EXTRA; i++) {
        fprintf(out, "| `%s` | %s%s%s | | %s |\n", EXTRA_KEYS[i].path, EXTRA_KEYS[i].type,
                EXTRA_KEYS[i].range[0] == '\0' ? "" : " ", EXTRA_KEYS[i].range, EXTRA_KEYS[i].help);
    }
    fprintf(out, "\n");
    bt_workload_table_print_schema(out);
}
