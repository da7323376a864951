#include "tests/cases/memory_cases.h"

#include "engine/core/arena.h"
#include "engine/core/order.h"
#include "sim/hardware/stack.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double GIB = 1073741824.0;

enum { NAME_BYTES = 160 };

/* ---- texts of the table ---- */

/* First number in a text, thousands' commas passed over; NAN when there is none. */
static double first_number(const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        bool starts =
            isdigit((unsigned char)*p) != 0 || (*p == '-' && isdigit((unsigned char)p[1]) != 0);
        if (!starts) {
            continue;
        }
        char digits[64];
        size_t n = 0;
        if (*p == '-') {
            digits[n++] = *p++;
        }
        while (n + 1 < sizeof digits && (isdigit((unsigned char)*p) != 0 || *p == '.' ||
                                         (*p == ',' && isdigit((unsigned char)p[1]) != 0))) {
            if (*p != ',') {
                digits[n++] = *p;
            }
            p++;
        }
        digits[n] = '\0';
        return strtod(digits, NULL);
    }
    return NAN;
}

/* The number after the first of some words; NAN. */
static double number_after(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        const char *at = strstr(text, *words);
        if (at != NULL) {
            return first_number(at + strlen(*words));
        }
    }
    return NAN;
}

/* "131072 B/token", "22,528 B per token": the number before the words; NAN. */
static double bytes_per_token(const char *text)
{
    static const char *const words[] = {" B/token", " B per token", " B a token", NULL};
    for (size_t i = 0; words[i] != NULL; i++) {
        const char *at = strstr(text, words[i]);
        if (at == NULL) {
            continue;
        }
        const char *p = at;
        while (p > text && (isdigit((unsigned char)p[-1]) != 0 || p[-1] == ',')) {
            p--;
        }
        return p < at ? first_number(p) : NAN;
    }
    return NAN;
}

static bool has(const char *text, const char *word)
{
    return strstr(text, word) != NULL;
}

static bool has_any(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (has(text, *words)) {
            return true;
        }
    }
    return false;
}

/* ---- versions ---- */

/* When vLLM's versions came out, for rows that give a date. */
static const struct {
    int32_t month; /* year * 12 + month - 1 */
    const char *version;
} releases[] = {
    {2023 * 12 + 5, "0.1"},   {2023 * 12 + 8, "0.2.0"},  {2023 * 12 + 11, "0.2.4"},
    {2024 * 12 + 0, "0.2.7"}, {2024 * 12 + 2, "0.3.3"},  {2024 * 12 + 3, "0.4.0"},
    {2024 * 12 + 5, "0.5.0"}, {2024 * 12 + 6, "0.5.3"},  {2024 * 12 + 8, "0.6.0"},
    {2024 * 12 + 9, "0.6.3"}, {2024 * 12 + 11, "0.6.5"}, {2025 * 12 + 1, "0.7.2"},
    {2025 * 12 + 2, "0.8.0"}, {2025 * 12 + 5, "0.9.0"},  {2025 * 12 + 7, "0.10.0"},
    {2025 * 12 + 9, "0.11"},  {2025 * 12 + 11, "0.12"},  {2026 * 12 + 0, "0.14"},
    {2026 * 12 + 1, "0.15"},  {2026 * 12 + 2, "0.17"},   {2026 * 12 + 3, "0.19"},
    {2026 * 12 + 4, "0.20"},  {2026 * 12 + 5, "0.22"},   {2026 * 12 + 7, "0.26"},
    {2026 * 12 + 8, "0.28"},
};

/* "0.6.4-era V0" gives 0.6.4; "" when no version stands there. */
static void version_in(const char *text, char *out, size_t out_bytes)
{
    out[0] = '\0';
    for (const char *p = text; *p != '\0'; p++) {
        bool begins =
            isdigit((unsigned char)*p) != 0 && (p == text || !isdigit((unsigned char)p[-1]));
        size_t n = strspn(p, "0123456789");
        if (!begins || n > 2 || p[n] != '.' || isdigit((unsigned char)p[n + 1]) == 0) {
            continue;
        }
        size_t end = n + 1 + strspn(p + n + 1, "0123456789");
        if (p[end] == '.' && isdigit((unsigned char)p[end + 1]) != 0) {
            end += 1 + strspn(p + end + 1, "0123456789");
        }
        (void)snprintf(out, out_bytes, "%.*s", (int)end, p);
        return;
    }
}

static void version_of_date(const char *text, char *out, size_t out_bytes)
{
    const char *year = strstr(text, "202");
    out[0] = '\0';
    if (year == NULL) {
        return;
    }
    int32_t month = (int32_t)strtol(year, NULL, 10) * 12 + 5;
    if (year[4] == '-' && isdigit((unsigned char)year[5]) != 0) {
        month += (int32_t)strtol(year + 5, NULL, 10) - 6;
    }
    for (size_t i = 0; i < sizeof releases / sizeof *releases; i++) {
        if (releases[i].month <= month) {
            (void)snprintf(out, out_bytes, "%s", releases[i].version);
        }
    }
}

/* The stack that a row speaks of; "" when none of its kind is modelled. */
static void stack_of(const char *engine, const char *version, bool has_cpu_blocks, char *out)
{
    char v[16];
    version_in(version, v, sizeof v);
    bool forks = has(engine, "aphrodite") || has(engine, "lvllm");
    out[0] = '\0';
    if (strcmp(engine, "vllm") == 0 || forks) {
        if (forks || v[0] == '\0') {
            version_of_date(version, v, sizeof v);
        }
        if (has(version, "with PR")) {
            (void)snprintf(v, sizeof v, "0.2.5"); /* the profiler of pull request 2031 */
        } else if (has(version, "before PR")) {
            (void)snprintf(v, sizeof v, "0.2.4");
        }
        double minor = v[0] != '\0' ? strtod(v + 2, NULL) : 0;
        bool v0 = has(version, "V0") || (has_cpu_blocks && !has(version, "V1"));
        if (v[0] != '\0') {
            bool late = minor >= 8; /* V0 ends with 0.10 */
            (void)snprintf(out, CASE_STACK_BYTES, "vllm-%s%s", v0 && minor > 10 ? "0.10" : v,
                           v0 && late ? "-v0" : "");
        }
    } else if (has(engine, "tensorrt")) {
        int32_t major = has(version, "1.") ? 1 : 0;
        (void)snprintf(out, CASE_STACK_BYTES, major == 1 ? "trtllm-1.0" : "trtllm-0.9");
    } else if (strcmp(engine, "sglang") == 0) {
        bool august = has(version, "2025-08") || has(version, "2025-09"); /* the first of 0.5 */
        bool old = has(version, "2024") || (has(version, "2025-0") && !august);
        (void)snprintf(out, CASE_STACK_BYTES, "sglang-%s", v[0] != '\0' ? v : old ? "0.4" : "0.5");
    }
}

/* ---- cards ---- */

static const struct {
    const char *word;
    const char *gpu;
} cards[] = {
    {"H100 NVL", "h100-nvl"},
    {"H100 PCIe", "h100-pcie"},
    {"H100", "h100-sxm"},
    {"H200", "h200"},
    {"B200", "b200"},
    {"A100 40", "a100-40-sxm"},
    {"A100", "a100-80-sxm"},
    {"A10G", "a10g"},
    {"L40S", "l40s"},
    {"L40", "l40s"},
    {"A40", "a40"},
    {"L4", "l4"},
    {"A10", "a10"},
    {"3090", "rtx3090"},
    {"4090", "rtx4090"},
    {"5090", "rtx5090"},
    {"PRO 6000", "rtxpro6000"},
    {"MI300X", "mi300x"},
};

/* What programs see of a card that only its size is told of, "80GB class": as of an A100. */
static double class_gib(const char *name)
{
    const char *at = strstr(name, "GB class");
    double size = at != NULL ? first_number(name) : NAN;
    bool one_size = strchr(name, '/') == NULL;
    return size > 0 && one_size ? size * 79.2 / 80 : NAN;
}

/* The card with the memory that the row saw, when it says so; one that is told by its size alone is
 * good enough for a row that tells nothing of the pool's bytes. */
static bool card_of(const struct bt_catalog *catalog, const char *name, double memory_gib,
                    bool must_be_exact, struct bt_gpu *out)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        const struct bt_catalog_gpu *gpu = NULL;
        if (has(name, cards[i].word) &&
            bt_catalog_find_gpu(catalog, cards[i].gpu, "gpu", &gpu, NULL) == BT_OK) {
            *out = gpu->gpu;
            if (memory_gib > 0 && memory_gib * GIB < (double)out->memory_bytes * 0.9999) {
                out->usable_bytes = (int64_t)(memory_gib * GIB);
            }
            return true;
        }
    }
    if (isnan(memory_gib) && !must_be_exact) {
        memory_gib = class_gib(name);
    }
    /* A card that the catalog lacks: its memory is all that the accounting asks for. */
    *out = (struct bt_gpu){.name = "other", .family = BT_GPU_AMPERE, .cc = 75};
    out->usable_bytes = (int64_t)(memory_gib > 0 ? memory_gib * GIB : 0);
    out->memory_bytes = out->usable_bytes;
    return memory_gib > 0;
}

/* ---- models ---- */

/* Text models behind others' names: their language part is what the KV cache is of. */
static const struct {
    const char *word;
    const char *model;
} backbones[] = {
    {"llava-v1.6-mistral-7b", "mistral-7b-v0.2"},
    {"Pixtral-12B", "mistral-nemo-12b"},
    {"Qwen2.5-VL-7B", "qwen2.5-7b"},
    {"Qwen2.5-VL-3B", "qwen2.5-3b"},
    {"Qwen2.5-VL-72B", "qwen2.5-72b"},
    {"QwQ-32B", "qwq-32b"},
    {"Phi-4", "phi-4"},
    {"wildguard", "mistral-7b"},
    {"QAnything", "qwen-7b"},
    {"Chinese-alpaca-2", "chinese-alpaca-2-7b"},
    {"TinyLlama-1.1B", "tinyllama-1.1b"},
    {"Llama-2-7B class", "llama-2-7b"},
    {"Mistral-7B based", "mistral-7b"},
};

static bool by_name(const struct bt_catalog *catalog, const char *name, struct bt_arch *out)
{
    const struct bt_catalog_model *m = NULL;
    if (bt_catalog_find_model(catalog, name, "model", &m, NULL) != BT_OK) {
        return false;
    }
    *out = m->arch;
    return true;
}

/* The name as it stands, without what is in parentheses, without the owner, and with suffixes cut
 * off at dashes, longest first. */
static bool model_of(const struct bt_catalog *catalog, const char *text, struct bt_arch *out)
{
    for (size_t i = 0; i < sizeof backbones / sizeof *backbones; i++) {
        if (has(text, backbones[i].word)) {
            return by_name(catalog, backbones[i].model, out);
        }
    }
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s", text);
    name[strcspn(name, "(,")] = '\0';
    for (size_t n = strlen(name); n > 0 && name[n - 1] == ' '; n--) {
        name[n - 1] = '\0';
    }
    const char *slash = strrchr(name, '/');
    char *tail = name + (slash != NULL ? slash - name + 1 : 0);
    if (by_name(catalog, name, out) || by_name(catalog, tail, out)) {
        return true;
    }
    for (size_t n = strlen(tail); n > 0; n--) {
        bool cut = tail[n] == '-' || tail[n] == ' ' || tail[n] == '_';
        if (cut) {
            tail[n] = '\0';
            if (by_name(catalog, tail, out)) {
                return true;
            }
        }
    }
    return false;
}

/* A model whose 16-bit weights and KV bytes a token are those of the row, when there is one only.
 */
static bool model_by_size(const struct bt_catalog *catalog, double weights_gib, double token_bytes,
                          struct bt_arch *out)
{
    const struct bt_arch *found = NULL;
    for (int32_t i = 0; weights_gib > 0 && i < bt_catalog_n_models(catalog); i++) {
        const struct bt_arch *a = &bt_catalog_model_at(catalog, i)->arch;
        struct bt_gpu gpu = {.name = "any", .family = BT_GPU_AMPERE, .cc = 80};
        gpu.usable_bytes = INT64_C(1) << 40;
        struct bt_memory_opts o = {.arch = a, .gpu = &gpu, .stack = "vllm-0.6"};
        struct bt_memory_plan p;
        if (bt_memory_account(&o, &p, NULL) == BT_OK &&
            fabs((double)p.weights_bytes / GIB / weights_gib - 1) < 1e-4 &&
            (double)p.kv_bytes_per_token == token_bytes) {
            if (found != NULL) {
                return false;
            }
            found = a;
        }
    }
    if (found != NULL) {
        *out = *found;
    }
    return found != NULL;
}

static enum bt_weight_format weights_of(const char *quant)
{
    static const char *const four[] = {"int4", "4-bit", "awq", "gptq", "w4a16", "nvfp4", NULL};
    static const char *const eight[] = {"fp8", "FP8", NULL};
    if (has_any(quant, four)) {
        return BT_WEIGHT_INT4_G128;
    }
    return has_any(quant, eight) ? BT_WEIGHT_FP8
           : has(quant, "q8_0")  ? BT_WEIGHT_INT8
                                 : BT_WEIGHT_DEFAULT;
}

static enum bt_kv_format kv_of(const char *kv)
{
    return has(kv, "fp8") ? BT_KV_FP8 : has(kv, "int8") ? BT_KV_INT8 : BT_KV_DEFAULT;
}

/* ---- one row ---- */

/* What a row states, NAN or empty where it does not. */
struct stated {
    const char *engine, *version, *model, *quant, *kv, *gpu, *notes;
    double memory_gib, utilisation, max_len, block, weights_gib, kv_gib, tokens, gpu_blocks;
    double cpu_blocks, tp, seqs, batched, token_bytes;
    bool utilisation_default;
};

static void read_stated(struct bt_csv_row *r, struct stated *s)
{
    static const char *const seq_words[] = {"max_num_seqs ", "maxBatch ", "max_batch_size ", NULL};
    static const char *const token_words[] = {"batched tokens ", "max_num_batched_tokens ",
                                              "maxNumTokens ",
                                              "activation profile at max_model_len ", NULL};
    static const char *const len_words[] = {"max_model_len ", NULL};
    const char *weights = bt_csv_text(r, "weights_gib");
    const char *utilisation = bt_csv_text(r, "gpu_mem_util");
    *s = (struct stated){
        .engine = bt_csv_text(r, "engine"),
        .version = bt_csv_text(r, "version"),
        .model = bt_csv_text(r, "model"),
        .quant = bt_csv_text(r, "quant"),
        .kv = bt_csv_text(r, "kv_dtype"),
        .gpu = bt_csv_text(r, "gpu"),
        .notes = bt_csv_text(r, "notes"),
        .memory_gib = first_number(bt_csv_text(r, "gpu_mem_gib")),
        .utilisation = first_number(utilisation),
        .utilisation_default = has(utilisation, "default"),
        .max_len = first_number(bt_csv_text(r, "max_model_len")),
        .block = first_number(bt_csv_text(r, "block_size")),
        .weights_gib = has(weights, "MB") ? NAN : first_number(weights),
        .kv_gib = first_number(bt_csv_text(r, "kv_gib")),
        .tokens = first_number(bt_csv_text(r, "kv_tokens")),
        .gpu_blocks = first_number(bt_csv_text(r, "gpu_blocks")),
        .cpu_blocks = first_number(bt_csv_text(r, "cpu_blocks")),
        .tp = first_number(bt_csv_text(r, "tp")),
    };
    s->seqs = number_after(s->notes, seq_words);
    s->batched = number_after(s->notes, token_words);
    if (isnan(s->max_len)) {
        s->max_len = number_after(s->notes, len_words);
    }
    if (isnan(s->tokens) && !isnan(s->gpu_blocks) && !isnan(s->block)) {
        s->tokens = s->gpu_blocks * s->block;
    }
    if (has(bt_csv_text(r, "kv_gib"), "MiB") || has(bt_csv_text(r, "kv_gib"), "K 0")) {
        s->kv_gib = NAN;
    }
    s->token_bytes = bytes_per_token(s->notes);
    if (isnan(s->token_bytes)) {
        s->token_bytes = bytes_per_token(s->model);
    }
}

static void assume(struct memory_case *c, const char *text)
{
    size_t n = strlen(c->assumed);
    (void)snprintf(c->assumed + n, sizeof c->assumed - n, "%s%s", n > 0 ? ", " : "", text);
}

/* The whole accounting, when card, model and stack are known. */
static bool predict_full(const struct bt_catalog *catalog, const struct stated *s,
                         struct memory_case *c)
{
    struct bt_arch arch, head;
    struct bt_gpu gpu;
    struct bt_stack stack;
    if (!model_of(catalog, s->model, &arch) &&
        !model_by_size(catalog, s->weights_gib, s->token_bytes, &arch)) {
        return false;
    }
    (void)snprintf(c->model, sizeof c->model, "%s", arch.name);
    if (c->stack[0] == '\0' || bt_stack_find(c->stack, &stack, NULL) != BT_OK ||
        !card_of(catalog, s->gpu, s->memory_gib, s->kv_gib > 0, &gpu)) {
        return false;
    }
    struct bt_memory_opts o = {
        .arch = &arch,
        .gpu = &gpu,
        .stack = c->stack,
        .weights = weights_of(s->quant),
        .kv = kv_of(s->kv),
        .tp = s->tp > 1 ? (int32_t)s->tp : 1,
        .block_tokens = s->block > 0 ? (int32_t)s->block : 0,
        .mem_fraction = s->utilisation > 0 && s->utilisation <= 1 ? s->utilisation : 0,
        .max_model_len = s->max_len > 0 ? (int32_t)s->max_len : 0,
        .max_seqs = s->seqs > 0 ? (int32_t)s->seqs : 0,
        .max_batched_tokens = s->batched > 0 ? (int32_t)s->batched : 0,
        .host_memory_bytes = stack.family->host_bytes,
    };
    if (has(s->model, "EAGLE")) {
        head = arch;
        head.n_layers = 1;
        o.draft = &head;
        o.draft_is_head = true;
    }
    struct bt_memory_plan p;
    if (bt_memory_account(&o, &p, NULL) != BT_OK) {
        return false;
    }
    c->weights_gib = (double)p.weights_bytes / GIB;
    if (s->weights_gib > 0) {
        o.weights_bytes = (int64_t)(s->weights_gib * GIB);
        if (bt_memory_account(&o, &p, NULL) != BT_OK) {
            return false;
        }
    } else {
        assume(c, "weights derived");
    }
    if (isnan(s->utilisation)) {
        assume(c, s->utilisation_default ? "the stack's utilisation" : "utilisation not stated");
    }
    if (isnan(s->max_len)) {
        assume(c, "the model's length");
    }
    if (isnan(s->memory_gib) && !isnan(class_gib(s->gpu))) {
        assume(c, "a card of that size");
    }
    c->tokens = (double)p.kv_tokens_total;
    c->cpu_blocks = (double)p.host_blocks_total;
    c->predicted_refused = p.kv_tokens_total == 0;
    return true;
}

/* What an architecture is that is none of ours, by the model's name. */
static const char *kind_of_model(const char *name)
{
    static const struct {
        const char *word, *kind;
    } kinds[] = {
        {"Kimi-Linear", "a mixture of experts with linear attention"},
        {"Kimi", "a mixture of experts with latent attention (MLA)"},
        {"DeepSeek-V", "a mixture of experts with latent attention (MLA)"},
        {"GLM-5", "a mixture of experts with latent attention (MLA)"},
        {"Qwen3.5", "linear and full attention in turn"},
        {"Qwen3.6", "a mixture of experts with linear and full attention in turn"},
        {"Qwen3.8", "a mixture of experts with linear and full attention in turn"},
        {"MiniMax", "a mixture of experts"},
        {"Mixtral", "a mixture of experts"},
        {"Scout", "a mixture of experts"},
        {"gpt-oss", "a mixture of experts"},
        {"A3B", "a mixture of experts"},
        {"A22B", "a mixture of experts"},
        {"gemma", "layers of two head sizes and windows"},
        {"Cohere", "not in the catalog"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (has(name, kinds[i].word)) {
            return kinds[i].kind;
        }
    }
    return name[0] == '\0' || name[0] == '(' ? "unnamed" : "not in the catalog";
}

static void say_why_not(const struct stated *s, struct memory_case *c)
{
    if (c->model[0] == '\0') {
        (void)snprintf(c->reason, sizeof c->reason,
                       "no architecture of ours (%s), and no KV bytes a token are stated",
                       kind_of_model(s->model));
    } else {
        (void)snprintf(c->reason, sizeof c->reason, "%s",
                       c->stack[0] == '\0' ? "an engine that is not modelled"
                                           : "the card's memory is not stated");
    }
}

/* What is written in a row where a prediction misses, by what it tells of itself. */
static void explain(const struct stated *s, struct memory_case *c)
{
    struct bt_stack stack;
    bool modelled = bt_stack_find(c->stack, &stack, NULL) == BT_OK && c->stack[0] != '\0';
    static const char *const vision[] = {"VL", "llava", "ixtral", "vision", "gemma", NULL};
    static const char *const shared[] = {"unified", "other tenants", "other processes", NULL};
    const char *reason = "settings of the profile run (token budget, sequences) are not stated";
    if (has_any(s->model, vision)) {
        reason = "multimodal: the vision encoder's part of the profile run is not modelled";
    } else if (has_any(s->notes, shared)) {
        reason = "memory is shared with others, which no setting tells";
    } else if (s->gpu[0] == '\0' || has(s->gpu, "class")) {
        reason = "the card is not named";
    } else if (has(s->engine, "aphrodite") || has(s->engine, "lvllm")) {
        reason = "a fork: its profile run differs from vLLM's of the time";
    } else if (isnan(s->utilisation) && !s->utilisation_default) {
        reason = "utilisation is not stated";
    } else if (c->predicted_refused && isnan(s->weights_gib)) {
        reason = "neither weights nor their format are stated; 16-bit ones would not fit";
    } else if (modelled && stack.family->engine == BT_STACK_TRTLLM) {
        reason = "the limits that the engine was built for (batch, tokens) are not stated";
    } else if (modelled && stack.family->reading == BT_VLLM_RESERVED) {
        reason = "before 0.6.3 the allocator's whole cache counts, which fragments swell";
    }
    (void)snprintf(c->reason, sizeof c->reason, "%s", reason);
}

static void predict(const struct bt_catalog *catalog, const struct stated *s, struct memory_case *c)
{
    bool known = predict_full(catalog, s, c);
    bool settings = s->utilisation > 0 && s->max_len > 0 && s->weights_gib > 0 &&
                    !isnan(s->tokens) && s->gpu[0] != '\0';
    if (known && settings) {
        c->basis = CASE_COMPLETE;
    } else if (known && (isnan(s->kv_gib) || s->kv_gib <= 0 || s->utilisation > 0)) {
        c->basis = CASE_FULL;
    } else {
        struct bt_arch arch;
        int32_t tp = s->tp > 1 ? (int32_t)s->tp : 1;
        double token = s->token_bytes;
        if (isnan(token) && model_of(catalog, s->model, &arch)) {
            token = (double)bt_arch_kv_bytes_per_token(
                &arch, bt_kv_format_resolve(kv_of(s->kv), &arch), tp);
        }
        if (s->kv_gib > 0 && token > 0) {
            double block = s->block > 0 ? s->block : 1;
            c->basis = CASE_POOL;
            c->assumed[0] = '\0';
            assume(c, "KV GiB as stated");
            c->tokens = floor(s->kv_gib * GIB / (token * block)) * block;
        } else if (known) {
            c->basis = CASE_FULL;
        } else {
            c->basis = CASE_NOTHING;
            say_why_not(s, c);
        }
    }
}

static void fill_case(const struct bt_catalog *catalog, struct bt_csv_row *r, struct memory_case *c)
{
    struct stated s;
    read_stated(r, &s);
    *c = (struct memory_case){.error = NAN, .weights_stated_gib = s.weights_gib};
    (void)snprintf(c->id, sizeof c->id, "%s", bt_csv_text(r, "id"));
    stack_of(s.engine, s.version, s.cpu_blocks > 0, c->stack);
    predict(catalog, &s, c);
    c->refused = s.tokens <= 0 || s.kv_gib < 0;
    c->cpu_blocks_stated = s.cpu_blocks > 0 ? s.cpu_blocks : 0;
    c->tokens_stated = s.tokens > 0 ? s.tokens : 0;
    if (c->basis != CASE_NOTHING && c->tokens_stated > 0) {
        c->error = c->tokens / c->tokens_stated - 1;
        if (fabs(c->error) > 0.10) {
            explain(&s, c);
        }
    }
}

static char *read_file(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f == NULL || fseek(f, 0, SEEK_END) != 0) {
        goto done;
    }
    long size = ftell(f);
    if (size < 0 || fseek(f, 0, SEEK_SET) != 0) {
        goto done;
    }
    text = malloc((size_t)size + 1);
    if (text != NULL) {
        *n_bytes = fread(text, 1, (size_t)size, f);
        text[*n_bytes] = '\0';
    }
done:
    if (f != NULL) {
        (void)fclose(f);
    }
    return text;
}

/* Cells of a line: where each begins; a comma inside quotes divides nothing. Returns how many. */
static int32_t cells_of(const char *line, size_t n, size_t *starts, int32_t max)
{
    int32_t cells = 1;
    bool quoted = false;
    starts[0] = 0;
    for (size_t i = 0; i < n; i++) {
        quoted = line[i] == '"' ? !quoted : quoted;
        if (line[i] == ',' && !quoted && cells < max) {
            starts[cells++] = i + 1;
        }
    }
    return cells;
}

/* The file's column `source` has commas that nobody quoted: a row with cells too many gets its
 * second cell put in quotes, so far as it must reach. */
static char *quote_sources(const char *text, size_t n_bytes, size_t *out_bytes)
{
    enum { MAX_CELLS = 64 };
    char *out = malloc(2 * n_bytes + 1);
    int32_t n_header = 0;
    size_t at = 0;
    for (size_t i = 0; out != NULL && i < n_bytes;) {
        size_t n = strcspn(text + i, "\n");
        size_t starts[MAX_CELLS];
        int32_t cells = cells_of(text + i, n, starts, MAX_CELLS);
        n_header = n_header == 0 ? cells : n_header;
        if (cells > n_header) {
            size_t from = starts[1];
            size_t until = starts[2 + cells - n_header] - 1;
            memcpy(out + at, text + i, from);
            at += from;
            out[at++] = '"';
            memcpy(out + at, text + i + from, until - from);
            at += until - from;
            out[at++] = '"';
            memcpy(out + at, text + i + until, n - until);
            at += n - until;
        } else {
            memcpy(out + at, text + i, n);
            at += n;
        }
        out[at++] = '\n';
        i += n + 1;
    }
    *out_bytes = at;
    return out;
}

enum bt_code memory_cases_read(const char *path, const struct bt_catalog *catalog,
                               struct memory_cases *out, struct bt_error *err)
{
    *out = (struct memory_cases){0};
    size_t n_bytes = 0;
    char *raw = read_file(path, &n_bytes);
    char *text = raw != NULL ? quote_sources(raw, n_bytes, &n_bytes) : NULL;
    free(raw);
    if (text == NULL) {
        BT_FAIL(err, BT_ERR_IO, 0, "%s: cannot be read", path);
    }
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct bt_csv csv;
    enum bt_code code = bt_csv_read(&arena, text, n_bytes, path, &csv, err);
    if (code == BT_OK) {
        out->rows = calloc((size_t)csv.n_rows + 1, sizeof *out->rows);
        if (out->rows == NULL) {
            code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "%s: no memory", path);
        }
    }
    for (int32_t i = 0; code == BT_OK && i < csv.n_rows; i++) {
        struct bt_csv_row r = {.csv = &csv, .row = i, .err = err};
        fill_case(catalog, &r, &out->rows[i]);
        out->n = i + 1;
        code = r.code;
    }
    bt_arena_fini(&arena);
    free(text);
    if (code != BT_OK) {
        memory_cases_free(out);
    }
    return code;
}

void memory_cases_free(struct memory_cases *c)
{
    free(c->rows);
    *c = (struct memory_cases){0};
}

/* ---- what comes of it ---- */

double memory_cases_median(const struct memory_cases *c, enum case_basis basis)
{
    double *errors = calloc((size_t)c->n + 1, sizeof *errors);
    int32_t n = 0;
    for (int32_t i = 0; errors != NULL && i < c->n; i++) {
        if (c->rows[i].basis == basis && !isnan(c->rows[i].error)) {
            errors[n++] = fabs(c->rows[i].error);
        }
    }
    double median = NAN;
    if (n > 0) {
        qsort(errors, (size_t)n, sizeof *errors, bt_compare_doubles);
        median = n % 2 == 1 ? errors[n / 2] : (errors[n / 2 - 1] + errors[n / 2]) / 2;
    }
    free(errors);
    return median;
}

const struct memory_case *memory_cases_worst(const struct memory_cases *c, enum case_basis basis)
{
    const struct memory_case *worst = NULL;
    for (int32_t i = 0; i < c->n; i++) {
        const struct memory_case *row = &c->rows[i];
        if (row->basis == basis && !isnan(row->error) &&
            (worst == NULL || fabs(row->error) > fabs(worst->error))) {
            worst = row;
        }
    }
    return worst;
}
