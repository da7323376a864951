/* A scenario file: Lua that returns a table, checked against one schema and turned into plain data.
 *
 * Keys are those of the configuration table (sim/config.h) plus name, description, seed, warmup,
 * variants, workload, slo, budget, price and hooks. A list where one value is expected is a
 * dimension to search over. Unknown keys, wrong types and values out of range are errors that name
 * the file, the key's path, the value and what is allowed.
 *
 * Threading: a loaded scenario is immutable; hooks are made for each simulation.
 */
#ifndef BT_SCRIPTS_HOST_SCENARIO_H
#define BT_SCRIPTS_HOST_SCENARIO_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/core/metrics.h"
#include "sim/config.h"
#include "sim/run.h"
#include "sim/workload/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_MAX_VARIANTS = 256, BT_MAX_PRICES = 64, BT_MAX_DIMS = 24 };

/* A key with more than one value: the values as texts of bt_config_set. */
struct bt_dim {
    const struct bt_config_field *field;
    int32_t n_values;
    const char *const *values;
};

/* A named change of the base configuration. */
struct bt_variant {
    const char *label;
    struct bt_config config; /* the base with the variant's keys set */
    /* The keys it sets: bit i for bt_config_fields[i]. */
    uint64_t sets;
};

struct bt_price_override {
    const char *gpu;
    double usd_per_h; /* of one GPU, > 0 */
};

enum bt_hook {
    BT_HOOK_ARRIVAL,
    BT_HOOK_OVERLOAD,
    BT_HOOK_ROUTE,
    BT_HOOK_SPECULATION,
    BT_N_HOOKS,
};

struct bt_scenario {
    struct bt_arena arena; /* owns every string and array below */
    const char *path;      /* as given, for messages */
    const char *dir;       /* folder that relative files are looked up in, "" for here */
    const char *text;      /* the file */
    size_t text_bytes;
    uint64_t text_hash;

    const char *name;
    const char *description; /* "" when not given */
    uint64_t seed;
    double warmup_fraction;
    struct bt_config base; /* the first value of every dimension */
    struct bt_dim dims[BT_MAX_DIMS];
    int32_t n_dims;
    struct bt_variant *variants;
    int32_t n_variants;

    bool has_workload;
    const char *workload_lua; /* the table written as Lua again, files by their full path */
    const char *slo_lua;      /* "" when there are none */
    struct bt_workload_spec workload;
    struct bt_slo slos[BT_MAX_SLOS];
    int32_t n_slos;
    double memory_headroom;      /* 0: none */
    double accuracy_drop_points; /* NAN: not asked */
    double budget_usd_per_h;     /* NAN: none */
    int32_t budget_cards;        /* 0: none */
    const char *price_provider;  /* NULL: the catalog's default */
    const char *price_term;      /* NULL: on-demand */
    struct bt_price_override prices[BT_MAX_PRICES];
    int32_t n_prices;
    bool hooks[BT_N_HOOKS]; /* which are there */
};

/* Reads and checks a file. BT_ERR_IO, BT_ERR_SCRIPT (Lua's own errors), BT_ERR_INPUT (keys and
 * values). On failure nothing is left to free. */
BT_NODISCARD enum bt_code bt_scenario_load(const char *path, struct bt_scenario *out,
                                           struct bt_error *err);

/* The same from a text; `path` names it and gives the folder. */
BT_NODISCARD enum bt_code bt_scenario_parse(const char *text, size_t text_bytes, const char *path,
                                            struct bt_scenario *out, struct bt_error *err);
void bt_scenario_fini(struct bt_scenario *s);

/* Gives a key one value in the base and every variant; it is no dimension any more. The value has
 * been checked (bt_config_set). */
void bt_scenario_fix(struct bt_scenario *s, const struct bt_config_field *f, const char *text);

/* How many configurations the scenario spans: variants (or the base) times every dimension. Values
 * of a dimension that a variant sets do not multiply that variant. Stops counting
 * a variant at INT64_MAX / BT_MAX_VARIANTS. */
int64_t bt_scenario_n_configs(const struct bt_scenario *s);

/* Configuration i of them, and a label of what tells it from the others ("" when there is one). */
void bt_scenario_config(const struct bt_scenario *s, int64_t i, struct bt_config *out, char *label,
                        size_t label_bytes);

/* Hooks for one simulation in a fresh Lua state; *out is NULL when the scenario has none. */
BT_NODISCARD enum bt_code bt_scenario_make_hooks(const struct bt_scenario *s,
                                                 struct bt_sim_hooks **out, struct bt_error *err);

/* The error that made hooks->failed true, if any. */
const struct bt_error *bt_scenario_hooks_error(const struct bt_sim_hooks *hooks);
void bt_scenario_free_hooks(struct bt_sim_hooks *hooks);

/* Prints the workload and slo fields of a scenario that repeats this one's, two spaces deep; `w` is
 * berth.workload and `slo` berth.slo there. */
void bt_scenario_print_workload(FILE *out, const struct bt_scenario *s);

/* Prints the schema as a Markdown table: every key, its type, range, default, unit and help. */
void bt_scenario_print_schema(FILE *out);

#ifdef __cplusplus
}
#endif

#endif
