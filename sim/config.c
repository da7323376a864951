#include "sim/config.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const WEIGHT_NAMES[] = {"default",  "fp32",        "fp16",      "bf16",
                                           "int8",     "int8-tensor", "int4-g128", "int4-g64",
                                           "int4-g32", "int4-tensor", "fp8",       NULL};
static const char *const ACT_NAMES[] = {"default",      "fp32",        "fp16", "bf16",
                                        "int8-dynamic", "int8-static", NULL};
static const char *const KV_NAMES[] = {"default", "fp32", "fp16", "bf16", "int8", "fp8", NULL};
static const char *const LAYOUT_NAMES[] = {"paged", "contiguous", NULL};
static const char *const OVER_NAMES[] = {"reject", "truncate", "allow", NULL};
static const char *const BATCHING_NAMES[] = {"continuous", "static", NULL};
static const char *const PREEMPT_NAMES[] = {"recompute", "swap", "auto", NULL};
static const char *const GOAL_NAMES[] = {"victim-delay", "gpu-time", "free-time", NULL};
static const char *const VICTIM_NAMES[] = {"newest", "largest", "least-progress", NULL};
static const char *const ORDER_NAMES[] = {"fcfs", "priority", "shortest", NULL};
static const char *const ROUTE_NAMES[] = {"rr", "least-loaded", "prefix", NULL};

static_assert(sizeof WEIGHT_NAMES / sizeof *WEIGHT_NAMES == BT_WEIGHT_FORMATS + 1, "weight names");
static_assert(sizeof ACT_NAMES / sizeof *ACT_NAMES == BT_ACT_FORMATS + 1, "activation names");
static_assert(sizeof KV_NAMES / sizeof *KV_NAMES == BT_KV_FORMATS + 1, "KV names");

#define AT(member) offsetof(struct bt_config, member), sizeof(((struct bt_config *)0)->member)

static const double NO_MAX = 9.0e18;

/* clang-format off */
const struct bt_config_field bt_config_fields[] = {
    {"model", "model", BT_FIELD_NAME, AT(model), 0, 0, false, "", NULL, NULL,
     "Model: a catalog name, a Hugging Face config.json, or a folder that holds one."},
    {"stack", "stack", BT_FIELD_NAME, AT(stack), 0, 0, false, "", NULL, "berth",
     "Serving engine that the simulation speaks for."},
    {"gpu", "gpu", BT_FIELD_NAME, AT(gpu), 0, 0, false, "", NULL, NULL, "GPU of the catalog."},
    {"tp", "tp", BT_FIELD_INT, AT(tp), 1, 64, false, "GPUs", NULL, "1",
     "Tensor-parallel ranks of one replica."},
    {"replicas", "replicas", BT_FIELD_INT, AT(replicas), 1, 4096, true, "replicas", NULL, "1",
     "Replicas that share the traffic; auto: the planner finds the number."},
    {"redundancy", "redundancy", BT_FIELD_INT, AT(redundancy), 0, 64, false, "replicas", NULL, "0",
     "Spare replicas, paid for beyond those that the load needs (1 is N+1)."},
    {"weights", "weights", BT_FIELD_ENUM, AT(weights), 0, 0, false, "", WEIGHT_NAMES, "default",
     "Weight format; default: the checkpoint's."},
    {"activations", "activations", BT_FIELD_ENUM, AT(activations), 0, 0, false, "", ACT_NAMES,
     "default", "Activation format; default: 16-bit."},
    {"kv.dtype", "kv", BT_FIELD_ENUM, AT(kv_dtype), 0, 0, false, "", KV_NAMES, "default",
     "KV cache format; default: 16-bit."},
    {"kv.block_tokens", "block", BT_FIELD_INT, AT(kv_block_tokens), 1, BT_MAX_BLOCK_TOKENS, false,
     "tokens", NULL, "16", "Tokens in a KV block."},
    {"kv.layout", "kv-layout", BT_FIELD_ENUM, AT(kv_layout), 0, 0, false, "", LAYOUT_NAMES, "paged",
     "Paged blocks, or contiguous preallocation to the maximum length (the baseline)."},
    {"kv.blocks", "kv-blocks", BT_FIELD_INT64, AT(kv_blocks), 0, 2147483647, false, "blocks", NULL,
     "0", "Measured size of the pool; 0: derived from memory."},
    {"kv.long_above_tokens", "kv-long-above", BT_FIELD_INT, AT(kv_long_above_tokens), 0, 2147483647,
     false, "tokens", NULL, "0",
     "Sequences that may pass this length keep 16-bit KV beside an 8-bit pool; 0: none."},
    {"gpu_memory", "gpu-memory", BT_FIELD_SIZE, AT(gpu_memory_bytes), 0, NO_MAX, false, "bytes",
     NULL, "0", "Pretend a card of this memory; 0: the card's own."},
    {"pcie", "pcie", BT_FIELD_SIZE, AT(pcie_bytes_per_s), 0, NO_MAX, false, "bytes/s", NULL, "0",
     "Pretend this PCIe bandwidth one way; 0: the card's own."},
    {"mem_fraction", "mem-fraction", BT_FIELD_DOUBLE, AT(mem_fraction), 0.05, 1, false, "", NULL,
     "0.9", "Share of the GPU's memory that the engine may use."},
    {"max_model_len", "max-model-len", BT_FIELD_INT, AT(max_model_len), 0, 16777216, false,
     "tokens", NULL, "0", "Longest sequence, prompt and output; 0: the model's."},
    {"over_length", "over-length", BT_FIELD_ENUM, AT(over_length), 0, 0, false, "", OVER_NAMES,
     "reject", "What happens to requests longer than max_model_len."},
    {"batching.mode", "batching", BT_FIELD_ENUM, AT(batching), 0, 0, false, "", BATCHING_NAMES,
     "continuous", "Continuous batching, or static batches that run until all members end."},
    {"batching.max_seqs", "max-seqs", BT_FIELD_INT, AT(max_seqs), 1, BT_MAX_SEQS, true, "sequences",
     NULL, "256", "Most sequences that run together; auto: grown and shrunk by memory."},
    {"batching.max_batched_tokens", "max-batched-tokens", BT_FIELD_INT, AT(max_batched_tokens), 1,
     16777216, false, "tokens", NULL, "2048", "Token budget of a step."},
    {"batching.chunked_prefill", "chunked-prefill", BT_FIELD_BOOL, AT(chunked_prefill), 0, 1, false,
     "", NULL, "on", "Prompts may be split over steps and share them with decodes."},
    {"batching.window_ms", "window-ms", BT_FIELD_WINDOW,
     offsetof(struct bt_config, window_low_ns), 2 * sizeof(int64_t), 0, 60000, false, "ms", NULL,
     "0", "Scheduling window: fixed (5), or moving with the load (2..10)."},
    {"batching.inflight", "inflight", BT_FIELD_INT, AT(inflight), 1, BT_MAX_INFLIGHT, false,
     "steps", NULL, "1", "Steps planned before the first of them has finished."},
    {"fused", "fused", BT_FIELD_BOOL, AT(fused), 0, 1, false, "", NULL, "on",
     "Fused kernels in the cost model."},
    {"prefix_cache", "prefix-cache", BT_FIELD_BOOL, AT(prefix_cache), 0, 1, false, "", NULL, "on",
     "Share KV blocks of equal prefixes."},
    {"preempt", "preempt", BT_FIELD_ENUM, AT(preempt), 0, 0, false, "", PREEMPT_NAMES, "recompute",
     "What a preempted sequence pays: recompute, swap over PCIe, or the cheaper (auto)."},
    {"preempt_goal", "preempt-goal", BT_FIELD_ENUM, AT(preempt_goal), 0, 0, false, "", GOAL_NAMES,
     "victim-delay", "What preempt = auto minimises."},
    {"victim", "victim", BT_FIELD_ENUM, AT(victim), 0, 0, false, "", VICTIM_NAMES, "newest",
     "Which sequence is preempted."},
    {"watermark", "watermark", BT_FIELD_DOUBLE, AT(watermark), 0, 0.5, false, "", NULL, "0.01",
     "Share of KV blocks kept free at admission."},
    {"host_memory", "host-memory", BT_FIELD_SIZE, AT(host_memory_bytes), 0, NO_MAX, false, "bytes",
     NULL, "64GiB", "Host memory for swapped KV, a replica."},
    {"spec", "spec", BT_FIELD_SPEC, AT(spec), 0, 0, false, "", NULL, "none",
     "Speculation: none, draft=M,k=K[,acceptance=F], self=N,k=K or medusa=H."},
    {"policy.order", "order", BT_FIELD_ENUM, AT(order), 0, 0, false, "", ORDER_NAMES, "fcfs",
     "Order of the queue."},
    {"policy.preemptive", "preemptive", BT_FIELD_BOOL, AT(priority_preempts), 0, 1, false, "", NULL,
     "off", "A waiting request of a more urgent class preempts a running one."},
    {"policy.timeout_s", "timeout-s", BT_FIELD_DURATION, AT(timeout_ns), 0, 1e7, false, "s", NULL,
     "0", "Requests end after this, with what has been generated; 0: never."},
    {"policy.max_waiting", "max-waiting", BT_FIELD_INT, AT(max_waiting), 0, BT_MAX_REQUESTS, false,
     "requests", NULL, "0", "Requests beyond this in a replica's queue are rejected; 0: no limit."},
    {"degrade.at_waiting", "degrade-at-waiting", BT_FIELD_INT, AT(degrade_at_waiting), 0,
     BT_MAX_REQUESTS, false, "requests", NULL, "0",
     "Degrade new requests when more than this wait; 0: never."},
    {"degrade.max_tokens", "degrade-max-tokens", BT_FIELD_INT, AT(degrade_max_tokens), 0, 16777216,
     false, "tokens", NULL, "0", "Longest answer of a degraded request; 0: not cut."},
    {"degrade.model", "degrade-model", BT_FIELD_NAME, AT(degrade_model), 0, 0, false, "", NULL, "",
     "Smaller model that serves degraded requests on replicas of its own."},
    {"degrade.replicas", "degrade-replicas", BT_FIELD_INT, AT(degrade_replicas), 1, 4096, false,
     "replicas", NULL, "1", "Replicas of the smaller model."},
    {"route", "route", BT_FIELD_ENUM, AT(route), 0, 0, false, "", ROUTE_NAMES, "least-loaded",
     "How requests are shared among replicas."},
    {NULL, NULL, BT_FIELD_INT, 0, 0, 0, 0, false, NULL, NULL, NULL, NULL},
};
/* clang-format on */

static_assert(sizeof bt_config_fields / sizeof *bt_config_fields - 1 <= 64, "bits of `given`");

static const double NS_PER_S = 1e9, NS_PER_MS = 1e6;

const struct bt_config_field *bt_config_find(const char *path)
{
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        if (strcmp(f->path, path) == 0) {
            return f;
        }
    }
    return NULL;
}

const struct bt_config_field *bt_config_find_option(const char *option)
{
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        if (f->option != NULL && strcmp(f->option, option) == 0) {
            return f;
        }
    }
    return NULL;
}

void bt_config_init(struct bt_config *c)
{
    *c = (struct bt_config){0};
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        if (f->def != NULL) {
            struct bt_error err = {0};
            enum bt_code code = bt_config_set(c, f, f->def, NULL, &err);
            BT_ASSERT(code == BT_OK);
        }
    }
    c->given = 0;
}

static bool parse_double(const char *text, double *out)
{
    char *end = NULL;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(v)) {
        return false;
    }
    *out = v;
    return true;
}

static bool parse_int(const char *text, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0) {
        return false;
    }
    *out = v;
    return true;
}

enum bt_code bt_parse_size(const char *text, int64_t *out, struct bt_error *err)
{
    static const struct {
        const char *suffix;
        double bytes;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"KB", 1e3},
                 {"MB", 1e6},
                 {"GB", 1e9},
                 {"TB", 1e12},
                 {"KiB", 1024.0},
                 {"MiB", 1048576.0},
                 {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0}};
    char *end = NULL;
    double v = strtod(text, &end);
    if (end != text && isfinite(v) && v >= 0) {
        while (*end == ' ') {
            end++;
        }
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            if (strcmp(end, units[i].suffix) == 0 && v * units[i].bytes <= NO_MAX) {
                *out = (int64_t)llround(v * units[i].bytes);
                return BT_OK;
            }
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "expected a size such as 24GiB (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), got \"%s\"",
            text);
}

void bt_config_describe(const struct bt_config_field *f, char *out, size_t n)
{
    const char *or_auto = f->allows_auto ? " or auto" : "";
    const char *space = f->unit[0] != '\0' ? " " : "";
    switch (f->type) {
    case BT_FIELD_NAME:
        snprintf(out, n, "a name of 1..%zu bytes", f->size_bytes - 1);
        return;
    case BT_FIELD_INT:
    case BT_FIELD_INT64:
        snprintf(out, n, "integer %.0f..%.0f%s%s%s", f->min, f->max, space, f->unit, or_auto);
        return;
    case BT_FIELD_DOUBLE:
    case BT_FIELD_DURATION:
        snprintf(out, n, "number %g..%g%s%s", f->min, f->max, space, f->unit);
        return;
    case BT_FIELD_WINDOW:
        snprintf(out, n, "number or range %g..%g %s (\"5\" or \"2..10\")", f->min, f->max, f->unit);
        return;
    case BT_FIELD_BOOL:
        snprintf(out, n, "on or off");
        return;
    case BT_FIELD_SIZE:
        snprintf(out, n, "a size such as 24GiB (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)");
        return;
    case BT_FIELD_SPEC:
        snprintf(out, n, "none, draft=M,k=K[,acceptance=F], self=N,k=K or medusa=H");
        return;
    case BT_FIELD_ENUM:
        break;
    }
    size_t at = 0;
    for (int32_t i = 0; f->names[i] != NULL && at < n; i++) {
        const char *sep = i == 0 ? "" : f->names[i + 1] == NULL ? " or " : ", ";
        int w = snprintf(out + at, n - at, "%s%s", sep, f->names[i]);
        at += w > 0 ? (size_t)w : 0;
    }
}

static enum bt_code bad_value(const struct bt_config_field *f, const char *text, const char *where,
                              struct bt_error *err)
{
    char range[256];
    bt_config_describe(f, range, sizeof range);
    BT_FAIL(err, BT_ERR_ARG, 0, "%s: expected %s, got \"%s\"", where, range, text);
}

static bool parse_window(const struct bt_config_field *f, const char *text, int64_t out[2])
{
    char buf[64];
    if (strlen(text) >= sizeof buf) {
        return false;
    }
    strncpy(buf, text, sizeof buf - 1);
    buf[sizeof buf - 1] = '\0';
    char *dots = strstr(buf, "..");
    double low = 0, high = 0;
    if (dots != NULL) {
        *dots = '\0';
        if (!parse_double(dots + 2, &high)) {
            return false;
        }
    }
    if (!parse_double(buf, &low)) {
        return false;
    }
    if (dots == NULL) {
        high = low;
    }
    if (low < f->min || high > f->max || low > high) {
        return false;
    }
    out[0] = llround(low * NS_PER_MS);
    out[1] = llround(high * NS_PER_MS);
    return true;
}

static bool parse_bool(const char *text, bool *out)
{
    bool on = strcmp(text, "on") == 0 || strcmp(text, "true") == 0;
    bool off = strcmp(text, "off") == 0 || strcmp(text, "false") == 0;
    *out = on;
    return on || off;
}

/* Everything but sizes and speculation, whose parsers give messages of their own. */
static bool set_plain(void *at, const struct bt_config_field *f, const char *text)
{
    int64_t i = 0;
    double d = 0;
    bool is_auto = f->allows_auto && strcmp(text, "auto") == 0;
    switch (f->type) {
    case BT_FIELD_NAME:
        if (strlen(text) >= f->size_bytes || (text[0] == '\0' && f->def == NULL)) {
            return false;
        }
        memset(at, 0, f->size_bytes);
        memcpy(at, text, strlen(text));
        return true;
    case BT_FIELD_INT:
    case BT_FIELD_INT64:
        if (is_auto) {
            i = BT_AUTO;
        } else if (!parse_int(text, &i) || (double)i < f->min || (double)i > f->max) {
            return false;
        }
        if (f->type == BT_FIELD_INT) {
            *(int32_t *)at = (int32_t)i;
        } else {
            *(int64_t *)at = i;
        }
        return true;
    case BT_FIELD_DOUBLE:
    case BT_FIELD_DURATION:
        if (!parse_double(text, &d) || d < f->min || d > f->max) {
            return false;
        }
        if (f->type == BT_FIELD_DOUBLE) {
            *(double *)at = d;
        } else {
            *(int64_t *)at = llround(d * (strcmp(f->unit, "ms") == 0 ? NS_PER_MS : NS_PER_S));
        }
        return true;
    case BT_FIELD_BOOL:
        return parse_bool(text, at);
    case BT_FIELD_WINDOW:
        return parse_window(f, text, at);
    case BT_FIELD_ENUM:
        for (int32_t k = 0; f->names[k] != NULL; k++) {
            if (strcmp(f->names[k], text) == 0) {
                *(int32_t *)at = k;
                return true;
            }
        }
        return false;
    case BT_FIELD_SIZE:
    case BT_FIELD_SPEC:
        break;
    }
    return false;
}

static uint64_t bit_of(const struct bt_config_field *f)
{
    return UINT64_C(1) << (f - bt_config_fields);
}

enum bt_code bt_config_set(struct bt_config *c, const struct bt_config_field *f, const char *text,
                           const char *where, struct bt_error *err)
{
    if (where == NULL) {
        where = f->path;
    }
    void *at = (char *)c + f->offset;
    if (f->type == BT_FIELD_SPEC) {
        BT_TRY(bt_spec_config_parse(text, where, at, err));
    } else {
        bool ok = f->type == BT_FIELD_SIZE ? bt_parse_size(text, at, NULL) == BT_OK
                                           : set_plain(at, f, text);
        if (!ok) {
            return bad_value(f, text, where, err);
        }
    }
    c->given |= bit_of(f);
    return BT_OK;
}

bool bt_config_is_given(const struct bt_config *c, const struct bt_config_field *f)
{
    return (c->given & bit_of(f)) != 0;
}

static enum bt_code parse_acceptance(char *value, const char *where, struct bt_spec_config *s,
                                     struct bt_error *err)
{
    s->n_acceptance = 0;
    for (char *p = value; p != NULL;) {
        char *next = strchr(p, ':');
        if (next != NULL) {
            *next++ = '\0';
        }
        double a = 0;
        if (!parse_double(p, &a) || a < 0 || a > 1 || s->n_acceptance >= BT_MAX_SPEC_K) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "%s: acceptance: expected up to %d numbers 0..1 divided by \":\", got \"%s\"",
                    where, BT_MAX_SPEC_K, p);
        }
        s->acceptance[s->n_acceptance++] = a;
        p = next;
    }
    return BT_OK;
}

/* An integer of a speculation key, 1 .. max. */
static enum bt_code spec_int(const char *where, const char *key, const char *value, int32_t max,
                             int32_t *out, struct bt_error *err)
{
    int64_t i = 0;
    if (!parse_int(value, &i) || i < 1 || i > max) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: %s: expected integer 1..%d, got \"%s\"", where, key, max,
                value);
    }
    *out = (int32_t)i;
    return BT_OK;
}

static enum bt_code spec_key(const char *where, const char *key, char *value,
                             struct bt_spec_config *s, struct bt_error *err)
{
    if (strcmp(key, "draft") == 0) {
        if (value[0] == '\0' || strlen(value) >= sizeof s->draft) {
            BT_FAIL(err, BT_ERR_ARG, 0, "%s: draft: expected a model's name, got \"%s\"", where,
                    value);
        }
        memcpy(s->draft, value, strlen(value) + 1);
        s->kind = BT_SPEC_DRAFT;
        return BT_OK;
    }
    if (strcmp(key, "self") == 0) {
        s->kind = BT_SPEC_SELF;
        return spec_int(where, key, value, BT_ARCH_MAX_LAYERS, &s->self_layers, err);
    }
    if (strcmp(key, "medusa") == 0) {
        s->kind = BT_SPEC_MEDUSA;
        return spec_int(where, key, value, BT_MAX_SPEC_K, &s->medusa_heads, err);
    }
    if (strcmp(key, "k") == 0) {
        return spec_int(where, key, value, BT_MAX_SPEC_K, &s->k, err);
    }
    if (strcmp(key, "off-above") == 0) {
        return spec_int(where, key, value, BT_MAX_SEQS, &s->off_above_batch, err);
    }
    if (strcmp(key, "acceptance") == 0) {
        return parse_acceptance(value, where, s, err);
    }
    if (strcmp(key, "temperature") == 0) {
        if (!parse_double(value, &s->temperature) || !(s->temperature >= 0)) {
            BT_FAIL(err, BT_ERR_ARG, 0, "%s: temperature: expected a number >= 0, got \"%s\"",
                    where, value);
        }
        return BT_OK;
    }
    if (strcmp(key, "text") == 0) {
        if (value[0] == '\0' || strlen(value) >= sizeof s->text) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "%s: text: expected a kind of text of at most %zu bytes, got \"%s\"", where,
                    sizeof s->text - 1, value);
        }
        memcpy(s->text, value, strlen(value) + 1);
        return BT_OK;
    }
    if (strcmp(key, "adaptive") == 0) {
        if (!parse_bool(value, &s->k_adaptive)) {
            BT_FAIL(err, BT_ERR_ARG, 0, "%s: adaptive: expected on or off, got \"%s\"", where,
                    value);
        }
        return BT_OK;
    }
    BT_FAIL(
        err, BT_ERR_ARG, 0,
        "%s: unknown key \"%s\"; allowed: draft, self, medusa, k, acceptance, temperature, text, "
        "adaptive, off-above",
        where, key);
}

enum bt_code bt_spec_config_parse(const char *text, const char *where, struct bt_spec_config *out,
                                  struct bt_error *err)
{
    struct bt_spec_config s = {0};
    if (strcmp(text, "none") == 0 || strcmp(text, "off") == 0 || strcmp(text, "false") == 0) {
        *out = s;
        return BT_OK;
    }
    char buf[512];
    if (strlen(text) >= sizeof buf) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: longer than %zu bytes", where, sizeof buf - 1);
    }
    memcpy(buf, text, strlen(text) + 1);
    for (char *p = buf; p != NULL;) {
        char *next = strchr(p, ',');
        if (next != NULL) {
            *next++ = '\0';
        }
        char *eq = strchr(p, '=');
        if (eq == NULL) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "%s: expected none, draft=M,k=K[,acceptance=F], self=N,k=K or medusa=H, got "
                    "\"%s\"",
                    where, text);
        }
        *eq = '\0';
        BT_TRY(spec_key(where, p, eq + 1, &s, err));
        p = next;
    }
    if (s.kind == BT_SPEC_NONE) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: \"%s\" says neither draft, self nor medusa", where, text);
    }
    if (s.kind == BT_SPEC_MEDUSA) {
        if (s.k > s.medusa_heads) {
            BT_FAIL(err, BT_ERR_ARG, 0, "%s: k: expected at most one a head (%d), got %d", where,
                    s.medusa_heads, s.k);
        }
        s.k = s.k == 0 ? s.medusa_heads : s.k;
    }
    if (s.k == 0) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "%s: k (draft tokens a verification, 1..%d) is missing in "
                "\"%s\"",
                where, BT_MAX_SPEC_K, text);
    }
    *out = s;
    return BT_OK;
}

void bt_spec_config_format(const struct bt_spec_config *s, char *out, size_t out_bytes)
{
    int n = 0;
    switch (s->kind) {
    case BT_SPEC_NONE:
        snprintf(out, out_bytes, "none");
        return;
    case BT_SPEC_DRAFT:
        n = snprintf(out, out_bytes, "draft=%s,k=%d", s->draft, s->k);
        break;
    case BT_SPEC_SELF:
        n = snprintf(out, out_bytes, "self=%d,k=%d", s->self_layers, s->k);
        break;
    case BT_SPEC_MEDUSA:
        n = snprintf(out, out_bytes, "medusa=%d,k=%d", s->medusa_heads, s->k);
        break;
    }
    size_t at = n > 0 ? (size_t)n : 0;
    for (int32_t i = 0; i < s->n_acceptance && at < out_bytes; i++) {
        n = snprintf(out + at, out_bytes - at, "%s%.9g", i == 0 ? ",acceptance=" : ":",
                     s->acceptance[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    if (s->temperature > 0 && at < out_bytes) {
        n = snprintf(out + at, out_bytes - at, ",temperature=%.9g", s->temperature);
        at += n > 0 ? (size_t)n : 0;
    }
    if (s->text[0] != '\0' && at < out_bytes) {
        n = snprintf(out + at, out_bytes - at, ",text=%s", s->text);
        at += n > 0 ? (size_t)n : 0;
    }
    if (s->k_adaptive && at < out_bytes) {
        n = snprintf(out + at, out_bytes - at, ",adaptive=on");
        at += n > 0 ? (size_t)n : 0;
    }
    if (s->off_above_batch > 0 && at < out_bytes) {
        snprintf(out + at, out_bytes - at, ",off-above=%d", s->off_above_batch);
    }
}

void bt_config_get(const struct bt_config *c, const struct bt_config_field *f, char *out,
                   size_t out_bytes)
{
    const void *at = (const char *)c + f->offset;
    switch (f->type) {
    case BT_FIELD_NAME:
        snprintf(out, out_bytes, "%s", (const char *)at);
        return;
    case BT_FIELD_INT:
        if (f->allows_auto && *(const int32_t *)at == BT_AUTO) {
            snprintf(out, out_bytes, "auto");
        } else {
            snprintf(out, out_bytes, "%" PRId32, *(const int32_t *)at);
        }
        return;
    case BT_FIELD_INT64:
    case BT_FIELD_SIZE:
        snprintf(out, out_bytes, "%" PRId64, *(const int64_t *)at);
        return;
    case BT_FIELD_DOUBLE:
        snprintf(out, out_bytes, "%.15g", *(const double *)at);
        return;
    case BT_FIELD_DURATION:
        snprintf(out, out_bytes, "%.15g",
                 (double)*(const int64_t *)at /
                     (strcmp(f->unit, "ms") == 0 ? NS_PER_MS : NS_PER_S));
        return;
    case BT_FIELD_BOOL:
        snprintf(out, out_bytes, "%s", *(const bool *)at ? "on" : "off");
        return;
    case BT_FIELD_ENUM:
        snprintf(out, out_bytes, "%s", f->names[*(const int32_t *)at]);
        return;
    case BT_FIELD_SPEC:
        bt_spec_config_format(at, out, out_bytes);
        return;
    case BT_FIELD_WINDOW:
        break;
    }
    const int64_t *w = at;
    if (w[0] == w[1]) {
        snprintf(out, out_bytes, "%.15g", (double)w[0] / NS_PER_MS);
    } else {
        snprintf(out, out_bytes, "%.15g..%.15g", (double)w[0] / NS_PER_MS,
                 (double)w[1] / NS_PER_MS);
    }
}

/* Another stack than berth has defaults of its own. */
static bool brings_defaults(const struct bt_config *c)
{
    return c->stack[0] != '\0' && strcmp(c->stack, "berth") != 0;
}

bool bt_config_is_default(const struct bt_config *c, const struct bt_config_field *f)
{
    if (f->def == NULL) {
        return false;
    }
    if (bt_config_is_given(c, f) && brings_defaults(c)) {
        return false;
    }
    struct bt_config d;
    bt_config_init(&d);
    char mine[BT_PATH_BYTES], theirs[BT_PATH_BYTES];
    bt_config_get(c, f, mine, sizeof mine);
    bt_config_get(&d, f, theirs, sizeof theirs);
    return strcmp(mine, theirs) == 0;
}

enum bt_code bt_config_check(const struct bt_config *c, struct bt_error *err)
{
    if (c->model[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0, "model: missing (a catalog name, a config.json or a folder)");
    }
    if (c->gpu[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0, "gpu: missing (a GPU of the catalog)");
    }
    const struct bt_config_field *budget = bt_config_find("batching.max_batched_tokens");
    bool known = !brings_defaults(c) || bt_config_is_given(c, budget);
    if (c->batching == BT_BATCHING_CONTINUOUS && c->max_seqs != BT_AUTO && known &&
        c->max_batched_tokens < c->max_seqs) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "batching.max_batched_tokens: expected at least batching.max_seqs (%d), got %d",
                c->max_seqs, c->max_batched_tokens);
    }
    if (c->kv_long_above_tokens > 0 && c->kv_dtype != BT_KV_INT8 && c->kv_dtype != BT_KV_FP8) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "kv.long_above_tokens: expected 0 unless kv.dtype is int8 or fp8, got %d",
                c->kv_long_above_tokens);
    }
    if (c->kv_layout == BT_KV_CONTIGUOUS && c->kv_long_above_tokens > 0) {
        BT_FAIL(err, BT_ERR_ARG, 0, "kv.long_above_tokens: expected 0 with kv.layout contiguous");
    }
    if (c->spec.kind != BT_SPEC_NONE && c->batching == BT_BATCHING_STATIC) {
        BT_FAIL(err, BT_ERR_ARG, 0, "spec: expected none with batching.mode static");
    }
    if (c->degrade_model[0] != '\0' && c->degrade_at_waiting == 0) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "degrade.at_waiting: expected > 0 when degrade.model is given, got 0");
    }
    return BT_OK;
}
