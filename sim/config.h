/* One deployment and how it is served: every knob of DESIGN sections 3, 4 and 7, in one struct and
 * one table.
 *
 * The table (bt_config_fields) names each knob by key path ("kv.block_tokens"), command-line option
 * ("--block"), type, default, range, unit and help. The command line, Lua scenarios, `--set`, JSON
 * output, the documentation and the planner's search all work from it, so that a knob is added in
 * one place. Names of models, GPUs and stacks are resolved later, by whoever has the catalog.
 *
 * Threading: plain data, no shared state.
 */
#ifndef BT_SIM_CONFIG_H
#define BT_SIM_CONFIG_H

#include "engine/core/arch.h"
#include "engine/core/error.h"
#include "engine/core/limits.h"
#include "engine/core/metrics.h"
#include "engine/core/sched.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_NAME_BYTES = 128, BT_PATH_BYTES = 512, BT_TEXT_KIND_BYTES = 32, BT_AUTO = -1 };

enum bt_kv_layout { BT_KV_PAGED, BT_KV_CONTIGUOUS };
enum bt_spec_kind { BT_SPEC_NONE, BT_SPEC_DRAFT, BT_SPEC_SELF, BT_SPEC_MEDUSA };
enum bt_route { BT_ROUTE_ROUND_ROBIN, BT_ROUTE_LEAST_LOADED, BT_ROUTE_PREFIX };

struct bt_spec_config {
    enum bt_spec_kind kind;
    char draft[BT_NAME_BYTES]; /* draft model */
    int32_t self_layers;       /* self-speculation: first N layers */
    int32_t medusa_heads;
    int32_t k;
    bool k_adaptive;
    int32_t n_acceptance;             /* 0: not given */
    double acceptance[BT_MAX_SPEC_K]; /* conditional, by position; the last one holds beyond */
    double temperature;            /* of sampling: which measured acceptance is meant; 0: greedy */
    char text[BT_TEXT_KIND_BYTES]; /* .. and kind of text; empty: all that was measured */
    int32_t off_above_batch;       /* 0: never */
};

struct bt_config {
    char model[BT_PATH_BYTES];
    char stack[BT_NAME_BYTES];
    char gpu[BT_NAME_BYTES];
    int32_t tp;
    int32_t replicas;    /* BT_AUTO: the planner finds the number */
    int32_t redundancy;  /* spare replicas that are paid for and may fail: N+1 is 1 */
    int32_t weights;     /* enum bt_weight_format; 0: the checkpoint's */
    int32_t activations; /* enum bt_act_format; 0: 16-bit */
    int32_t kv_dtype;    /* enum bt_kv_format; 0: 16-bit */
    int32_t kv_block_tokens;
    int32_t kv_layout; /* enum bt_kv_layout */
    int64_t kv_blocks; /* measured pool; 0: derived */
    int32_t kv_long_above_tokens;
    int64_t gpu_memory_bytes; /* 0: the card's */
    int64_t pcie_bytes_per_s; /* 0: the card's */
    double mem_fraction;
    int32_t max_model_len; /* 0: the model's */
    int32_t over_length;   /* enum bt_over_length */

    int32_t batching; /* enum bt_batching */
    int32_t max_seqs; /* BT_AUTO: grown and shrunk by memory */
    int32_t max_batched_tokens;
    bool chunked_prefill;
    int64_t window_low_ns, window_high_ns;
    int32_t inflight;
    bool fused; /* fused kernels in the cost model */
    bool prefix_cache;

    int32_t preempt;      /* enum bt_preempt */
    int32_t preempt_goal; /* enum bt_preempt_goal */
    int32_t victim;       /* enum bt_victim */
    double watermark;     /* share of blocks kept free at admission */
    int64_t host_memory_bytes;

    struct bt_spec_config spec;

    int32_t order; /* enum bt_order */
    bool priority_preempts;
    int64_t timeout_ns; /* 0: none */
    int32_t max_waiting;
    int32_t degrade_at_waiting;
    int32_t degrade_max_tokens;
    char degrade_model[BT_PATH_BYTES]; /* "": the same model */
    int32_t degrade_replicas;

    int32_t route; /* enum bt_route */

    uint64_t given; /* bit i: field i of the table was set by bt_config_set */
};

enum bt_field_type {
    BT_FIELD_NAME,     /* char[], free text (model, GPU, stack) */
    BT_FIELD_INT,      /* int32_t in [min, max] */
    BT_FIELD_INT64,    /* int64_t in [min, max] */
    BT_FIELD_DOUBLE,   /* double in [min, max] */
    BT_FIELD_BOOL,     /* on|off, true|false */
    BT_FIELD_ENUM,     /* int32_t, one of `names` */
    BT_FIELD_SIZE,     /* int64_t bytes: 24GiB, 64GB, 1024 */
    BT_FIELD_DURATION, /* int64_t ns; text in the field's unit (s or ms) */
    BT_FIELD_WINDOW,   /* two int64_t ns, low then high; text "5" or "2..10" in ms */
    BT_FIELD_SPEC, /* struct bt_spec_config: none|draft=M,k=K[,acceptance=F]|self=N,k=K|medusa=H */
};

struct bt_config_field {
    const char *path;   /* Lua key path */
    const char *option; /* command-line option without "--"; NULL: none */
    enum bt_field_type type;
    size_t offset;
    size_t size_bytes;
    double min, max;          /* numbers, in the field's unit */
    bool allows_auto;         /* "auto" means BT_AUTO */
    const char *unit;         /* "tokens", "ms", "bytes/s", ""; never NULL */
    const char *const *names; /* enums: names by value, ended by NULL */
    const char *def;          /* default as text; NULL: must be given */
    const char *help;         /* one sentence */
};

/* Ends with path == NULL. */
extern const struct bt_config_field bt_config_fields[];

/* Field by key path or by option name; NULL when unknown. */
const struct bt_config_field *bt_config_find(const char *path);
const struct bt_config_field *bt_config_find_option(const char *option);

/* What a field allows, in words: "integer 1..64 GPUs", "recompute, swap or auto". */
void bt_config_describe(const struct bt_config_field *f, char *out, size_t out_bytes);

/* All defaults. */
void bt_config_init(struct bt_config *c);

/* Sets one field from text. BT_ERR_ARG: "kv.block_tokens: expected integer 1..1048576, got \"x\"".
 * `where` prefixes the message (an option's name or "file.lua: "); NULL: the path. */
BT_NODISCARD enum bt_code bt_config_set(struct bt_config *c, const struct bt_config_field *f,
                                        const char *text, const char *where, struct bt_error *err);

/* Whether bt_config_set has set the field: a stack's defaults are for the others. */
bool bt_config_is_given(const struct bt_config *c, const struct bt_config_field *f);

/* The field's value as text that bt_config_set takes; enums by name, sizes in bytes. */
void bt_config_get(const struct bt_config *c, const struct bt_config_field *f, char *out,
                   size_t out_bytes);

/* Whether the field has its default. With another stack than berth, which brings its own defaults,
 * a field that was given does not. */
bool bt_config_is_default(const struct bt_config *c, const struct bt_config_field *f);

/* Checks that need more than one field (window low <= high, max_batched_tokens >= max_seqs ...). */
BT_NODISCARD enum bt_code bt_config_check(const struct bt_config *c, struct bt_error *err);

/* Parses "none", "draft=M,k=K[,acceptance=F[:F...]]", "self=N,k=K", "medusa=H"; further keys
 * adaptive=on|off, off-above=B; temperature=T and text=KIND say which measured acceptance is meant
 * where none is given. Several acceptances, divided by colons, are by position. */
BT_NODISCARD enum bt_code bt_spec_config_parse(const char *text, const char *where,
                                               struct bt_spec_config *out, struct bt_error *err);
void bt_spec_config_format(const struct bt_spec_config *s, char *out, size_t out_bytes);

/* Parses "24GiB", "1.5 GB", "4096": B, KB, MB, GB, TB, KiB, MiB, GiB, TiB. */
BT_NODISCARD enum bt_code bt_parse_size(const char *text, int64_t *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
