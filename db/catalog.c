#include "db/catalog.h"

#include "db/catalog_rows.h"
#include "engine/core/suggest.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char default_provider[] = "RunPod";
static const char default_term[] = "on-demand";

enum { NAMES_MAX = 1024 };

/* Next character that counts in a name, lower case; '\0' at `end`. */
static char next_char(const char **text, const char *end)
{
    while (*text < end && (**text == ' ' || **text == '-' || **text == '_')) {
        (*text)++;
    }
    return *text < end ? (char)tolower((unsigned char)*(*text)++) : '\0';
}

/* Whether name equals [alias, end), case, blanks, '-' and '_' apart. */
static bool same_name(const char *name, const char *alias, const char *end)
{
    const char *name_end = name + strlen(name);
    for (;;) {
        char a = next_char(&name, name_end);
        char b = next_char(&alias, end);
        if (a != b) {
            return false;
        }
        if (a == '\0') {
            return true;
        }
    }
}

/* A spelling, or without its owner ("meta-llama/Llama-3.1-8B" is Llama-3.1-8B too). */
static bool is_spelled(const char *name, const char *alias, const char *end)
{
    const char *slash = memchr(alias, '/', (size_t)(end - alias));
    return same_name(name, alias, end) || (slash != NULL && same_name(name, slash + 1, end));
}

static bool is_known_as(const char *name, const char *own, const char *aliases)
{
    if (is_spelled(name, own, own + strlen(own))) {
        return true;
    }
    while (*aliases != '\0') {
        size_t n = strcspn(aliases, "|");
        if (is_spelled(name, aliases, aliases + n)) {
            return true;
        }
        aliases += n + (aliases[n] == '|');
    }
    return false;
}

enum bt_code bt_catalog_open(const struct bt_gpu *extra, int32_t n_extra, struct bt_catalog **out,
                             struct bt_error *err)
{
    BT_ASSERT(n_extra >= 0 && (extra != NULL || n_extra == 0));
    *out = NULL;
    struct bt_catalog *c = calloc(1, sizeof *c);
    if (c == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "catalog: no memory");
    }
    bt_arena_init(&c->arena, 0);
    enum bt_code code = bt_catalog_read(c, n_extra, err);
    if (code != BT_OK) {
        bt_catalog_close(c);
        return code;
    }
    for (int32_t i = 0; i < n_extra; i++) {
        int32_t at = 0;
        while (at < c->n_gpus && strcmp(c->gpus[at].gpu.name, extra[i].name) != 0) {
            at++;
        }
        c->gpus[at] = (struct bt_catalog_gpu){.gpu = extra[i],
                                              .aliases = "",
                                              .source = "calibrated on this machine",
                                              .date = "",
                                              .notes = ""};
        c->n_gpus += at == c->n_gpus;
    }
    *out = c;
    return BT_OK;
}

void bt_catalog_close(struct bt_catalog *c)
{
    if (c != NULL) {
        bt_arena_fini(&c->arena);
        free(c);
    }
}

int32_t bt_catalog_n_gpus(const struct bt_catalog *c)
{
    return c->n_gpus;
}

int32_t bt_catalog_n_models(const struct bt_catalog *c)
{
    return c->n_models;
}

int32_t bt_catalog_n_prices(const struct bt_catalog *c)
{
    return c->n_prices;
}

const struct bt_catalog_gpu *bt_catalog_gpu_at(const struct bt_catalog *c, int32_t i)
{
    BT_ASSERT(i >= 0 && i < c->n_gpus);
    return &c->gpus[i];
}

const struct bt_catalog_model *bt_catalog_model_at(const struct bt_catalog *c, int32_t i)
{
    BT_ASSERT(i >= 0 && i < c->n_models);
    return &c->models[i];
}

const struct bt_price *bt_catalog_price_at(const struct bt_catalog *c, int32_t i)
{
    BT_ASSERT(i >= 0 && i < c->n_prices);
    return &c->prices[i];
}

/* "a, b, c and 12 more", as many as fit. */
static void list_names(const char *const *names, int32_t n, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < n; i++) {
        size_t need = strlen(names[i]) + 2;
        if (used + need + sizeof " and 1000 more" >= out_bytes) {
            (void)snprintf(out + used, out_bytes - used, " and %d more", n - i);
            return;
        }
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

static enum bt_code not_known(const char *what, const char *name, const char *const *names,
                              int32_t n, struct bt_error *err)
{
    char list[BT_ERROR_MSG_BYTES - 160];
    list_names(names, n, list, sizeof list);
    const char *near = bt_suggest(name, names, n);
    BT_FAIL(err, BT_ERR_NOTFOUND, 0, "%s: \"%.60s\" is not known%s%s%s (known: %s)", what, name,
            near != NULL ? "; did you mean " : "", near != NULL ? near : "",
            near != NULL ? "?" : "", list);
}

enum bt_code bt_catalog_find_gpu(const struct bt_catalog *c, const char *name, const char *what,
                                 const struct bt_catalog_gpu **out, struct bt_error *err)
{
    const char *names[NAMES_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_gpus; i++) {
        const struct bt_catalog_gpu *g = &c->gpus[i];
        if (is_known_as(name, g->gpu.name, g->aliases) || is_known_as(name, g->gpu.product, "")) {
            *out = g;
            return BT_OK;
        }
        if (n < NAMES_MAX) {
            names[n++] = g->gpu.name;
        }
    }
    if (strcmp(name, "host") == 0) {
        BT_FAIL(err, BT_ERR_NOTFOUND, 0,
                "%s: \"host\" has not been measured; berth calibrate on this machine does it",
                what);
    }
    return not_known(what, name, names, n, err);
}

enum bt_code bt_catalog_find_model(const struct bt_catalog *c, const char *name, const char *what,
                                   const struct bt_catalog_model **out, struct bt_error *err)
{
    const char *names[NAMES_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_models; i++) {
        const struct bt_catalog_model *m = &c->models[i];
        if (is_known_as(name, m->arch.name, m->aliases) || is_known_as(name, m->hf_id, "")) {
            *out = m;
            return BT_OK;
        }
        if (n < NAMES_MAX) {
            names[n++] = m->arch.name;
        }
    }
    return not_known(what, name, names, n, err);
}

bool bt_catalog_same_vocabulary(const struct bt_arch *a, const struct bt_arch *b)
{
    return a->vocab_family[0] != '\0' && strcmp(a->vocab_family, b->vocab_family) == 0;
}

/* A rule for "vllm" holds for every version: "vllm-0.19". */
static bool is_stack(const char *rule, const char *stack)
{
    size_t n = strlen(rule);
    return strncmp(rule, stack, n) == 0 && (stack[n] == '\0' || stack[n] == '-');
}

static bool rule_applies(const struct bt_kernel_rule *k, const char *stack,
                         const struct bt_gpu *gpu)
{
    return is_stack(k->stack, stack) && (k->family < 0 || k->family == (int32_t)gpu->family) &&
           (k->min_cc == 0 || gpu->cc >= k->min_cc);
}

static enum bt_code no_rule(const struct bt_kernel_table *t, const char *stack,
                            struct bt_error *err)
{
    const char *names[NAMES_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_rules && n < NAMES_MAX; i++) {
        if (n == 0 || strcmp(names[n - 1], t->rules[i].stack) != 0) {
            names[n++] = t->rules[i].stack;
        }
    }
    return not_known("stack", stack, names, n, err);
}

enum bt_code bt_catalog_kernel(const struct bt_catalog *c, const char *stack,
                               const struct bt_gpu *gpu, enum bt_weight_format w,
                               enum bt_act_format a, bool *exists, const char **text,
                               struct bt_error *err)
{
    BT_ASSERT(w != BT_WEIGHT_DEFAULT && a != BT_ACT_DEFAULT);
    for (int32_t i = 0; i < c->gemm.n_rules; i++) {
        const struct bt_kernel_rule *k = &c->gemm.rules[i];
        if (rule_applies(k, stack, gpu) && (k->weights >> w & 1U) != 0 &&
            (k->activations >> a & 1U) != 0) {
            *exists = k->exists;
            *text = k->note;
            return BT_OK;
        }
    }
    return no_rule(&c->gemm, stack, err);
}

enum bt_code bt_catalog_kv_kernel(const struct bt_catalog *c, const char *stack,
                                  const struct bt_gpu *gpu, enum bt_kv_format kv, bool *exists,
                                  const char **text, struct bt_error *err)
{
    BT_ASSERT(kv != BT_KV_DEFAULT);
    for (int32_t i = 0; i < c->kv.n_rules; i++) {
        const struct bt_kernel_rule *k = &c->kv.rules[i];
        if (rule_applies(k, stack, gpu) && (k->kv >> kv & 1U) != 0) {
            *exists = k->exists;
            *text = k->note;
            return BT_OK;
        }
    }
    return no_rule(&c->kv, stack, err);
}

static bool is_ordinary_method(const char *method)
{
    static const char *const names[] = {"rtn", "gptq", "awq", "smoothquant", "int8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(method, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Formats of 16 bits and more lose nothing beside each other. */
static bool same_formats(const struct bt_published_accuracy *row, enum bt_weight_format w,
                         enum bt_act_format a, enum bt_kv_format kv)
{
    if (row->weight_format == BT_WEIGHT_FORMATS || row->act_format == BT_ACT_FORMATS ||
        row->kv_format == BT_KV_FORMATS) {
        return false;
    }
    bool weights = row->weight_format == w || (bt_weight_format_bits(row->weight_format) >= 16 &&
                                               bt_weight_format_bits(w) >= 16);
    bool activations = row->act_format == a ||
                       (bt_act_format_bits(row->act_format) >= 16 && bt_act_format_bits(a) >= 16);
    bool cache = row->kv_format == kv ||
                 (bt_kv_format_bits(row->kv_format) >= 16 && bt_kv_format_bits(kv) >= 16);
    return weights && activations && cache;
}

const struct bt_published_accuracy *
bt_catalog_accuracy_loss(const struct bt_catalog *c, const char *model, enum bt_weight_format w,
                         enum bt_act_format a, enum bt_kv_format kv)
{
    const struct bt_published_accuracy *worst = NULL;
    for (int32_t i = 0; i < c->n_accuracy; i++) {
        const struct bt_published_accuracy *row = &c->accuracy[i];
        if (strcmp(row->model, model) != 0 || strcmp(row->unit, "percent") != 0 ||
            !is_ordinary_method(row->method) || !same_formats(row, w, a, kv)) {
            continue;
        }
        if (worst == NULL || row->baseline - row->value > worst->baseline - worst->value) {
            worst = row;
        }
    }
    return worst;
}

/* Distinct texts of one field of the prices. */
static int32_t distinct(const struct bt_catalog *c, bool term, const char **out, int32_t max)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_prices; i++) {
        const char *text = term ? c->prices[i].term : c->prices[i].provider;
        int32_t j = 0;
        while (j < n && strcmp(out[j], text) != 0) {
            j++;
        }
        if (j == n && n < max) {
            out[n++] = text;
        }
    }
    return n;
}

/* The catalog's own spelling of a provider or term. */
static enum bt_code find_text(const struct bt_catalog *c, bool term, const char *text, char *out,
                              struct bt_error *err)
{
    const char *names[NAMES_MAX];
    int32_t n = distinct(c, term, names, NAMES_MAX);
    for (int32_t i = 0; i < n; i++) {
        if (same_name(text, names[i], names[i] + strlen(names[i]))) {
            (void)snprintf(out, BT_PROVIDER_BYTES, "%s", names[i]);
            return BT_OK;
        }
    }
    return not_known(term ? "price term" : "price provider", text, names, n, err);
}

enum bt_code bt_price_list_init(struct bt_price_list *p, const struct bt_catalog *c,
                                const char *provider, const char *term, struct bt_error *err)
{
    *p = (struct bt_price_list){.catalog = c};
    BT_TRY(find_text(c, false, provider != NULL ? provider : default_provider, p->provider, err));
    return find_text(c, true, term != NULL ? term : default_term, p->term, err);
}

enum bt_code bt_price_list_override(struct bt_price_list *p, const char *text, struct bt_error *err)
{
    const char *equals = strchr(text, '=');
    char *end = NULL;
    double usd = equals != NULL ? strtod(equals + 1, &end) : -1;
    if (equals == NULL || equals == text || end == equals + 1 || *end != '\0' || !(usd >= 0) ||
        !isfinite(usd)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "price: \"%s\" is not GPU=USD_PER_H with USD_PER_H >= 0", text);
    }
    char name[128];
    if (equals - text >= (int)sizeof name) {
        BT_FAIL(err, BT_ERR_ARG, 0, "price: \"%.40s...\": the GPU's name is too long", text);
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    const struct bt_catalog_gpu *gpu = NULL;
    BT_TRY(bt_catalog_find_gpu(p->catalog, name, "price", &gpu, err));
    int32_t i = 0;
    while (i < p->n_overrides && strcmp(p->overrides[i].gpu, gpu->gpu.name) != 0) {
        i++;
    }
    if (i == BT_PRICES_MAX_OVERRIDES) {
        BT_FAIL(err, BT_ERR_LIMIT, i, "price: at most %d GPUs can be priced by hand",
                BT_PRICES_MAX_OVERRIDES);
    }
    memcpy(p->overrides[i].gpu, gpu->gpu.name, sizeof p->overrides[i].gpu);
    p->overrides[i].usd_per_h = usd;
    p->n_overrides += i == p->n_overrides;
    return BT_OK;
}

static const double *find_override(const struct bt_price_list *p, const char *gpu)
{
    for (int32_t i = 0; i < p->n_overrides; i++) {
        if (strcmp(p->overrides[i].gpu, gpu) == 0) {
            return &p->overrides[i].usd_per_h;
        }
    }
    return NULL;
}

const struct bt_price *bt_price_list_row(const struct bt_price_list *p, const char *gpu)
{
    if (find_override(p, gpu) != NULL) {
        return NULL;
    }
    for (int32_t i = 0; i < p->catalog->n_prices; i++) {
        const struct bt_price *row = &p->catalog->prices[i];
        if (strcmp(row->gpu, gpu) == 0 && strcmp(row->provider, p->provider) == 0 &&
            strcmp(row->term, p->term) == 0) {
            return row;
        }
    }
    return NULL;
}

double bt_price_list_get(const struct bt_price_list *p, const char *gpu)
{
    const double *usd = find_override(p, gpu);
    if (usd != NULL) {
        return *usd;
    }
    const struct bt_price *row = bt_price_list_row(p, gpu);
    return row != NULL ? row->usd_per_h : (double)NAN;
}
