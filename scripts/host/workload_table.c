#include "scripts/host/workload_table.h"

#include "engine/core/limits.h"

#include <lauxlib.h>

#include <math.h>
#include <string.h>

enum key_type {
    KEY_NUMBER,
    KEY_INTEGER,   /* int32_t */
    KEY_INTEGER64, /* int64_t */
    KEY_OFF_FLAG,  /* bool that is stored negated */
    KEY_TEXT,
    KEY_FILE, /* relative to the scenario */
    KEY_DIST,
    KEY_POINTS,
    KEY_CLASSES,
    KEY_PREFIX, /* one group from shared_prefix_tokens */
    KEY_PREFIXES,
    KEY_KINDS,
    KEY_FORMAT,
};

/* Which constructors take a key. */
enum {
    IN_POISSON = 1 << 0,
    IN_GAMMA = 1 << 1,
    IN_WEIBULL = 1 << 2,
    IN_CONSTANT = 1 << 3,
    IN_DIURNAL = 1 << 4,
    IN_CLOSED = 1 << 5,
    IN_SERVEGEN = 1 << 6,
    IN_TRACE = 1 << 7,
    IN_OPEN = IN_POISSON | IN_GAMMA | IN_WEIBULL | IN_CONSTANT | IN_DIURNAL,
    IN_GENERATED = IN_OPEN | IN_CLOSED,
    IN_ALL = IN_GENERATED | IN_SERVEGEN | IN_TRACE,
};

struct kind_row {
    const char *name;
    int32_t bit;
    enum bt_workload_kind kind;
    enum bt_arrival_kind arrival;
    const char *help;
};

static const struct kind_row KINDS[] = {
    {"poisson", IN_POISSON, BT_WORKLOAD_GENERATED, BT_ARRIVAL_POISSON, "Independent arrivals."},
    {"gamma", IN_GAMMA, BT_WORKLOAD_GENERATED, BT_ARRIVAL_GAMMA,
     "Bursty arrivals: Gamma gaps of coefficient of variation cv."},
    {"weibull", IN_WEIBULL, BT_WORKLOAD_GENERATED, BT_ARRIVAL_WEIBULL,
     "Bursty arrivals: Weibull gaps of coefficient of variation cv."},
    {"constant", IN_CONSTANT, BT_WORKLOAD_GENERATED, BT_ARRIVAL_CONSTANT, "Equal gaps."},
    {"diurnal", IN_DIURNAL, BT_WORKLOAD_GENERATED, BT_ARRIVAL_POISSON,
     "Arrivals under a rate profile, linear between its points (Gamma gaps when cv is given)."},
    {"closed", IN_CLOSED, BT_WORKLOAD_GENERATED, BT_ARRIVAL_CLOSED,
     "N users, each of whom waits for the answer, thinks, and asks again."},
    {"servegen", IN_SERVEGEN, BT_WORKLOAD_SERVEGEN, BT_ARRIVAL_POISSON,
     "ServeGen's models of production clients."},
    {"trace", IN_TRACE, BT_WORKLOAD_TRACE, BT_ARRIVAL_POISSON, "A recorded trace."},
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

struct key_row {
    const char *name;
    enum key_type type;
    size_t offset; /* in struct bt_workload_spec */
    double min, max;
    int32_t in;
    const char *help;
};

#define AT(member) offsetof(struct bt_workload_spec, member)

static const struct key_row KEYS[] = {
    {"rate_per_s", KEY_NUMBER, AT(rate_per_s), 1e-9, BT_RATE_MAX,
     IN_POISSON | IN_GAMMA | IN_WEIBULL | IN_CONSTANT, "Mean arrivals a second."},
    {"cv", KEY_NUMBER, AT(cv), BT_ARRIVAL_CV_MIN, BT_ARRIVAL_CV_MAX,
     IN_GAMMA | IN_WEIBULL | IN_DIURNAL, "Coefficient of variation of the gaps (1 is Poisson)."},
    {"points", KEY_POINTS, AT(points), 0, 0, IN_DIURNAL,
     "Rate profile: list of { t_s = .., rate_per_s = .. }, times increasing from 0."},
    {"period_s", KEY_NUMBER, AT(period_s), 0, 1e9, IN_DIURNAL, "The profile repeats after this."},
    {"users", KEY_INTEGER, AT(users), 1, BT_WORKLOAD_MAX_USERS, IN_CLOSED, "Users."},
    {"think_s", KEY_DIST, AT(think_s), 0, 0, IN_CLOSED,
     "Pause between an answer and the user's next request: number or distribution."},
    {"duration_s", KEY_NUMBER, AT(duration_s), 0, 1e9, IN_GENERATED | IN_SERVEGEN,
     "Length of the stream."},
    {"n_requests", KEY_INTEGER64, AT(n_requests), 0, 1e12, IN_GENERATED | IN_SERVEGEN,
     "Number of requests."},
    {"prompt", KEY_DIST, AT(prompt), 0, 0, IN_GENERATED,
     "Prompt tokens, the shared prefix included: number or distribution."},
    {"output", KEY_DIST, AT(output), 0, 0, IN_GENERATED, "Output tokens: number or distribution."},
    {"shared_prefix_tokens", KEY_PREFIX, AT(prefixes), 0, BT_MAX_TOKENS, IN_GENERATED,
     "Tokens at the start of every prompt that are the same."},
    {"prefixes", KEY_PREFIXES, AT(prefixes), 0, 0, IN_GENERATED,
     "Groups of requests with a common prefix: list of { weight = .., tokens = .. }."},
    {"timeout_s", KEY_NUMBER, AT(timeout_s), 0, 1e9, IN_ALL, "Timeout of each request; 0: none."},
    {"classes", KEY_CLASSES, AT(classes), 0, 0, IN_GENERATED,
     "Priority classes: list of { share = .., priority = 0 (first) .. 15, timeout_s = .. }."},
    {"kinds", KEY_KINDS, AT(kind_shares), 0, 0, IN_GENERATED, "Shares of kinds of text: list."},
    {"turns", KEY_DIST, AT(turns), 0, 0, IN_OPEN,
     "Turns of a conversation; each prompt holds all that was said before."},
    {"turn_gap_s", KEY_DIST, AT(turn_gap_s), 0, 0, IN_OPEN, "From one turn to the next."},
    {"rate_scale", KEY_NUMBER, AT(rate_scale), 1e-6, 1e6, IN_ALL,
     "Time compression: 2 sends the same requests twice as fast."},
    {"dir", KEY_FILE, AT(dir), 0, 0, IN_SERVEGEN, "Folder of the client models."},
    {"start_s", KEY_NUMBER, AT(start_s), 0, 1e9, IN_SERVEGEN, "Start of the cut."},
    {"target_rate_per_s", KEY_NUMBER, AT(target_rate_per_s), 0, BT_RATE_MAX, IN_SERVEGEN,
     "Scale the clients' rates to this mean; 0: as recorded."},
    {"file", KEY_FILE, AT(file), 0, 0, IN_TRACE, "The trace."},
    {"format", KEY_FORMAT, AT(trace.format), 0, 0, IN_TRACE,
     "auto, azure, burstgpt, mooncake, qwen, csv or jsonl."},
    {"columns", KEY_TEXT, AT(trace.columns), 0, 0, IN_TRACE,
     "Column mapping: \"timestamp=COL,prompt=COL,output=COL,...\"."},
    {"from_s", KEY_NUMBER, AT(trace.from_s), 0, 1e12, IN_TRACE, "Leave out what is earlier."},
    {"to_s", KEY_NUMBER, AT(trace.to_s), 0, 1e12, IN_TRACE, "Leave out what is later; 0: nothing."},
    {"limit", KEY_INTEGER64, AT(trace.limit), 0, 1e12, IN_TRACE, "Most requests; 0: all."},
    {"spread_ticks", KEY_OFF_FLAG, AT(trace.keep_ticks), 0, 0, IN_TRACE,
     "Spread rows of a coarse clock over its tick (true unless said)."},
};
enum { N_KEYS = sizeof KEYS / sizeof *KEYS };

const char *bt_table_file(const struct bt_table_reader *r, const char *dir, const char *file)
{
    if (file[0] == '/' || dir[0] == '\0') {
        return file;
    }
    const char *joined = lua_pushfstring(r->L, "%s/%s", dir, file);
    const char *copy = bt_table_copy(r, joined);
    lua_pop(r->L, 1);
    return copy;
}

/* Number of items of a list of 1 .. max items. [-0, +0, e] */
static int32_t list_length(const struct bt_table_reader *r, int idx, const char *path, int32_t max)
{
    lua_Integer n = lua_type(r->L, idx) == LUA_TTABLE ? (lua_Integer)lua_rawlen(r->L, idx) : 0;
    if (n < 1 || n > max) {
        char want[64];
        snprintf(want, sizeof want, "a list of 1..%d items", max);
        bt_table_bad(r, path, want, idx);
    }
    return (int32_t)n;
}

/* Path of item i (0-based) of a list, as Lua counts: "prefixes[1]". */
static void item_path(char out[BT_KEY_PATH_BYTES], const char *path, int32_t i)
{
    snprintf(out, BT_KEY_PATH_BYTES, "%.*s[%d]", BT_KEY_PATH_BYTES - 16, path, i + 1);
}

/* A list of numbers >= 0 in the arena. [-0, +0, e] */
static double *read_numbers(const struct bt_table_reader *r, int idx, const char *path, int32_t max,
                            int32_t *n)
{
    idx = lua_absindex(r->L, idx);
    *n = list_length(r, idx, path, max);
    double *out = bt_table_take(r, *n, sizeof *out);
    for (int32_t i = 0; i < *n; i++) {
        char at[BT_KEY_PATH_BYTES];
        item_path(at, path, i);
        lua_rawgeti(r->L, idx, i + 1); /* value */
        out[i] = bt_table_number(r, -1, at, 0, 1e15);
        lua_pop(r->L, 1);
    }
    return out;
}

struct dist_row {
    const char *name;
    enum bt_dist_kind kind;
    const char *keys[6];
};

static const struct dist_row DISTS[] = {
    {"const", BT_DIST_CONST, {"value", NULL}},
    {"uniform", BT_DIST_UNIFORM, {"min", "max", NULL}},
    {"lognormal", BT_DIST_LOGNORMAL, {"mean", "median", "p95", "sigma", NULL}},
    {"exponential", BT_DIST_EXPONENTIAL, {"mean", NULL}},
    {"pareto", BT_DIST_PARETO, {"alpha", "scale", NULL}},
    {"empirical", BT_DIST_EMPIRICAL, {"values", "weights", NULL}},
    {"mixture", BT_DIST_MIXTURE, {"parts", "weights", NULL}},
};
enum { N_DISTS = sizeof DISTS / sizeof *DISTS };

static const struct {
    const char *name;
    size_t offset;
} DIST_NUMBERS[] = {
    {"value", offsetof(struct bt_dist_spec, value)},
    {"mean", offsetof(struct bt_dist_spec, mean)},
    {"median", offsetof(struct bt_dist_spec, median)},
    {"p95", offsetof(struct bt_dist_spec, p95)},
    {"sigma", offsetof(struct bt_dist_spec, sigma)},
    {"alpha", offsetof(struct bt_dist_spec, alpha)},
    {"scale", offsetof(struct bt_dist_spec, scale)},
    {"clamp_min", offsetof(struct bt_dist_spec, clamp_min)},
    {"clamp_max", offsetof(struct bt_dist_spec, clamp_max)},
};

static void read_dist(const struct bt_table_reader *r, int idx, const char *path,
                      struct bt_dist_spec *out, int32_t depth);

static void read_parts(const struct bt_table_reader *r, int idx, const char *path,
                       struct bt_dist_spec *out, int32_t depth)
{
    out->n_parts = list_length(r, idx, path, BT_DIST_MAX_PARTS);
    struct bt_dist_spec *parts = bt_table_take(r, out->n_parts, sizeof *parts);
    for (int32_t i = 0; i < out->n_parts; i++) {
        char at[BT_KEY_PATH_BYTES];
        item_path(at, path, i);
        lua_rawgeti(r->L, idx, i + 1); /* part */
        read_dist(r, lua_gettop(r->L), at, &parts[i], depth + 1);
        lua_pop(r->L, 1);
    }
    out->parts = parts;
}

/* The lists of an empirical distribution or a mixture. [-0, +0, e] */
static void read_dist_lists(const struct bt_table_reader *r, int idx, const char *path,
                            struct bt_dist_spec *out, int32_t depth)
{
    lua_State *L = r->L;
    char at[BT_KEY_PATH_BYTES];
    int32_t n_weights = 0;
    double *weights = NULL;
    bt_table_path(at, path, "weights");
    if (lua_getfield(L, idx, "weights") != LUA_TNIL) { /* weights */
        weights = read_numbers(r, -1, at, BT_DIST_MAX_VALUES, &n_weights);
    }
    lua_pop(L, 1);
    int32_t n = 0;
    if (out->kind == BT_DIST_EMPIRICAL) {
        char values_path[BT_KEY_PATH_BYTES];
        bt_table_path(values_path, path, "values");
        lua_getfield(L, idx, "values"); /* values */
        out->values = read_numbers(r, -1, values_path, BT_DIST_MAX_VALUES, &out->n_values);
        out->weights = weights;
        n = out->n_values;
    } else {
        char parts_path[BT_KEY_PATH_BYTES];
        bt_table_path(parts_path, path, "parts");
        lua_getfield(L, idx, "parts"); /* parts */
        read_parts(r, lua_gettop(L), parts_path, out, depth);
        out->part_weights = weights;
        n = out->n_parts;
    }
    lua_pop(L, 1);
    if (weights != NULL && n_weights != n) {
        char message[96];
        snprintf(message, sizeof message, "expected %d weights, one an item, got %d", n, n_weights);
        bt_table_fail(r, at, message);
    }
}

static void read_dist(const struct bt_table_reader *r, int idx, const char *path,
                      struct bt_dist_spec *out, int32_t depth)
{
    lua_State *L = r->L;
    if (lua_type(L, idx) == LUA_TNUMBER) {
        out->kind = BT_DIST_CONST;
        out->value = bt_table_number(r, idx, path, 0, 1e15);
        return;
    }
    const char *tag = bt_table_tag(r, idx);
    const struct dist_row *row = NULL;
    for (int32_t i = 0; i < N_DISTS; i++) {
        if (strcmp(tag, DISTS[i].name) == 0) {
            row = &DISTS[i];
        }
    }
    if (row == NULL || depth > BT_DIST_MAX_DEPTH) {
        bt_table_bad(r, path,
                     "a number or a distribution (w.const, w.uniform, w.lognormal, w.exponential, "
                     "w.pareto, w.empirical, w.mixture)",
                     idx);
        return;
    }
    const char *allowed[10];
    int32_t n = 0;
    for (; row->keys[n] != NULL; n++) {
        allowed[n] = row->keys[n];
    }
    /* min and max are the ends of a uniform, and clamp every other distribution. */
    if (row->kind != BT_DIST_UNIFORM) {
        allowed[n++] = "min";
        allowed[n++] = "max";
    }
    allowed[n] = NULL;
    bt_table_check_keys(r, idx, path, allowed);
    out->kind = row->kind;
    if (row->kind == BT_DIST_EMPIRICAL || row->kind == BT_DIST_MIXTURE) {
        read_dist_lists(r, idx, path, out, depth);
    }
    for (size_t i = 0; i < sizeof DIST_NUMBERS / sizeof *DIST_NUMBERS; i++) {
        char at[BT_KEY_PATH_BYTES];
        bt_table_path(at, path, DIST_NUMBERS[i].name);
        if (lua_getfield(L, idx, DIST_NUMBERS[i].name) != LUA_TNIL) { /* value */
            *(double *)((char *)out + DIST_NUMBERS[i].offset) = bt_table_number(r, -1, at, 0, 1e15);
        }
        lua_pop(L, 1);
    }
    static const char *const ends[] = {"min", "max"};
    for (int32_t i = 0; i < 2; i++) {
        char at[BT_KEY_PATH_BYTES];
        bt_table_path(at, path, ends[i]);
        if (lua_getfield(L, idx, ends[i]) != LUA_TNIL) { /* value */
            double v = bt_table_number(r, -1, at, 0, 1e15);
            double *to = row->kind == BT_DIST_UNIFORM
                             ? (i == 0 ? &out->min : &out->max)
                             : (i == 0 ? &out->clamp_min : &out->clamp_max);
            *to = v;
        }
        lua_pop(L, 1);
    }
}

/* Number of an item's field, `def` when it is not there; NAN: it must be. [-0, +0, e] */
static double item_number(const struct bt_table_reader *r, int idx, const char *path,
                          const char *key, double min, double max, double def)
{
    char at[BT_KEY_PATH_BYTES];
    bt_table_path(at, path, key);
    double v = def;
    if (lua_getfield(r->L, idx, key) != LUA_TNIL || isnan(def)) { /* value */
        v = bt_table_number(r, -1, at, min, max);
    }
    lua_pop(r->L, 1);
    return v;
}

static void read_points(const struct bt_table_reader *r, int idx, const char *path,
                        struct bt_workload_spec *out)
{
    static const char *const keys[] = {"t_s", "rate_per_s", NULL};
    out->n_points = list_length(r, idx, path, BT_WORKLOAD_MAX_POINTS);
    struct bt_rate_point *p = bt_table_take(r, out->n_points, sizeof *p);
    for (int32_t i = 0; i < out->n_points; i++) {
        char at[BT_KEY_PATH_BYTES];
        item_path(at, path, i);
        if (lua_rawgeti(r->L, idx, i + 1) != LUA_TTABLE) { /* item */
            bt_table_bad(r, at, "{ t_s = .., rate_per_s = .. }", -1);
        }
        int item = lua_gettop(r->L);
        bt_table_check_keys(r, item, at, keys);
        p[i].t_s = item_number(r, item, at, "t_s", 0, 1e12, NAN);
        p[i].rate_per_s = item_number(r, item, at, "rate_per_s", 0, BT_RATE_MAX, NAN);
        lua_pop(r->L, 1);
    }
    out->points = p;
}

static void read_classes(const struct bt_table_reader *r, int idx, const char *path,
                         struct bt_workload_spec *out)
{
    static const char *const keys[] = {"share", "priority", "timeout_s", NULL};
    out->n_classes = list_length(r, idx, path, BT_WORKLOAD_MAX_CLASSES);
    struct bt_class_spec *c = bt_table_take(r, out->n_classes, sizeof *c);
    for (int32_t i = 0; i < out->n_classes; i++) {
        char at[BT_KEY_PATH_BYTES];
        item_path(at, path, i);
        if (lua_rawgeti(r->L, idx, i + 1) != LUA_TTABLE) { /* item */
            bt_table_bad(r, at, "{ share = .., priority = .. }", -1);
        }
        int item = lua_gettop(r->L);
        bt_table_check_keys(r, item, at, keys);
        c[i].share = item_number(r, item, at, "share", 0, 1e9, NAN);
        char priority[BT_KEY_PATH_BYTES];
        bt_table_path(priority, at, "priority");
        lua_getfield(r->L, item, "priority"); /* item priority */
        c[i].priority = (int32_t)bt_table_integer(r, -1, priority, 0, BT_MAX_PRIORITY);
        lua_pop(r->L, 1); /* item */
        c[i].timeout_s = item_number(r, item, at, "timeout_s", 0, 1e9, 0);
        lua_pop(r->L, 1);
    }
    out->classes = c;
}

static void read_prefixes(const struct bt_table_reader *r, int idx, const char *path,
                          struct bt_workload_spec *out)
{
    static const char *const keys[] = {"weight", "tokens", NULL};
    out->n_prefixes = list_length(r, idx, path, BT_WORKLOAD_MAX_PREFIXES);
    struct bt_prefix_spec *p = bt_table_take(r, out->n_prefixes, sizeof *p);
    for (int32_t i = 0; i < out->n_prefixes; i++) {
        char at[BT_KEY_PATH_BYTES];
        item_path(at, path, i);
        if (lua_rawgeti(r->L, idx, i + 1) != LUA_TTABLE) { /* item */
            bt_table_bad(r, at, "{ weight = .., tokens = .. }", -1);
        }
        int item = lua_gettop(r->L);
        bt_table_check_keys(r, item, at, keys);
        p[i].weight = item_number(r, item, at, "weight", 0, 1e9, 1);
        char tokens[BT_KEY_PATH_BYTES];
        bt_table_path(tokens, at, "tokens");
        lua_getfield(r->L, item, "tokens"); /* item tokens */
        p[i].tokens = (int32_t)bt_table_integer(r, -1, tokens, 0, BT_MAX_TOKENS);
        lua_pop(r->L, 2);
    }
    out->prefixes = p;
}

/* The value at the top of the stack into its field. [-0, +0, e] */
static void read_key(const struct bt_table_reader *r, const struct key_row *k, const char *path,
                     const char *dir, struct bt_workload_spec *out)
{
    int idx = lua_gettop(r->L);
    void *at = (char *)out + k->offset;
    struct bt_error err = {0};
    switch (k->type) {
    case KEY_NUMBER:
        *(double *)at = bt_table_number(r, idx, path, k->min, k->max);
        return;
    case KEY_INTEGER:
        *(int32_t *)at = (int32_t)bt_table_integer(r, idx, path, (int64_t)k->min, (int64_t)k->max);
        return;
    case KEY_INTEGER64:
        *(int64_t *)at = bt_table_integer(r, idx, path, (int64_t)k->min, (int64_t)k->max);
        return;
    case KEY_OFF_FLAG:
        *(bool *)at = !bt_table_boolean(r, idx, path);
        return;
    case KEY_TEXT:
        *(const char **)at = bt_table_string(r, idx, path);
        return;
    case KEY_FILE:
        *(const char **)at = bt_table_file(r, dir, bt_table_string(r, idx, path));
        return;
    case KEY_DIST:
        read_dist(r, idx, path, at, 0);
        return;
    case KEY_POINTS:
        read_points(r, idx, path, out);
        return;
    case KEY_CLASSES:
        read_classes(r, idx, path, out);
        return;
    case KEY_PREFIX: {
        struct bt_prefix_spec *p = bt_table_take(r, 1, sizeof *p);
        p->weight = 1;
        p->tokens = (int32_t)bt_table_integer(r, idx, path, (int64_t)k->min, (int64_t)k->max);
        out->prefixes = p;
        out->n_prefixes = 1;
        return;
    }
    case KEY_PREFIXES:
        if (out->n_prefixes > 0) {
            bt_table_fail(r, path, "give either shared_prefix_tokens or prefixes");
        }
        read_prefixes(r, idx, path, out);
        return;
    case KEY_KINDS:
        out->kind_shares = read_numbers(r, idx, path, BT_WORKLOAD_MAX_KINDS, &out->n_kinds);
        return;
    case KEY_FORMAT:
        if (bt_trace_format_parse(bt_table_string(r, idx, path), at, &err) != BT_OK) {
            bt_table_fail(r, path, err.msg);
        }
        return;
    }
}

void bt_workload_table_read(const struct bt_table_reader *r, int idx, const char *path,
                            const char *dir, struct bt_workload_spec *out)
{
    idx = lua_absindex(r->L, idx);
    const char *tag = bt_table_tag(r, idx);
    const struct kind_row *kind = NULL;
    for (int32_t i = 0; i < N_KINDS; i++) {
        if (strcmp(tag, KINDS[i].name) == 0) {
            kind = &KINDS[i];
        }
    }
    if (kind == NULL) {
        bt_table_bad(r, path,
                     "a workload (w.poisson, w.gamma, w.weibull, w.constant, w.diurnal, w.closed, "
                     "w.servegen, w.trace of berth.workload)",
                     idx);
        return;
    }
    *out = (struct bt_workload_spec){.kind = kind->kind, .arrival = kind->arrival};
    const char *allowed[N_KEYS + 1];
    int32_t n = 0;
    for (int32_t i = 0; i < N_KEYS; i++) {
        if ((KEYS[i].in & kind->bit) != 0) {
            allowed[n++] = KEYS[i].name;
        }
    }
    allowed[n] = NULL;
    bt_table_check_keys(r, idx, path, allowed);
    for (int32_t i = 0; i < N_KEYS; i++) {
        char at[BT_KEY_PATH_BYTES];
        bt_table_path(at, path, KEYS[i].name);
        if (lua_getfield(r->L, idx, KEYS[i].name) != LUA_TNIL) { /* value */
            read_key(r, &KEYS[i], at, dir, out);
        }
        lua_pop(r->L, 1);
    }
    if (kind->bit == IN_DIURNAL && out->cv > 0) {
        out->arrival = BT_ARRIVAL_GAMMA;
    }
}

void bt_workload_table_print_schema(FILE *out)
{
    fprintf(out, "| constructor | what it is |\n| --- | --- |\n");
    for (int32_t i = 0; i < N_KINDS; i++) {
        fprintf(out, "| `w.%s { .. }` | %s |\n", KINDS[i].name, KINDS[i].help);
    }
    fprintf(out, "\n| key | constructors | range | what it is |\n| --- | --- | --- | --- |\n");
    for (int32_t i = 0; i < N_KEYS; i++) {
        const struct key_row *k = &KEYS[i];
        fprintf(out, "| `%s` | ", k->name);
        const char *sep = "";
        for (int32_t j = 0; j < N_KINDS; j++) {
            if ((k->in & KINDS[j].bit) != 0) {
                fprintf(out, "%s%s", sep, KINDS[j].name);
                sep = ", ";
            }
        }
        if (k->max > k->min) {
            fprintf(out, " | %.10g..%.10g | %s |\n", k->min, k->max, k->help);
        } else {
            fprintf(out, " | | %s |\n", k->help);
        }
    }
    fprintf(out,
            "\n| distribution | keys (every one but uniform takes min and max, which clamp) |\n"
            "| --- | --- |\n");
    for (int32_t i = 0; i < N_DISTS; i++) {
        fprintf(out, "| `w.%s` | ", DISTS[i].name);
        for (int32_t j = 0; DISTS[i].keys[j] != NULL; j++) {
            fprintf(out, "%s%s", j == 0 ? "" : ", ", DISTS[i].keys[j]);
        }
        fprintf(out, " |\n");
    }
}
