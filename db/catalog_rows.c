#include "db/catalog_rows.h"

#include "cmake/embedded.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

extern const struct bt_embedded bt_catalog_files[];

static enum bt_code read_table(struct bt_catalog *c, const char *name, struct bt_csv *csv,
                               struct bt_error *err)
{
    for (const struct bt_embedded *f = bt_catalog_files; f->name != NULL; f++) {
        if (strcmp(f->name, name) == 0) {
            return bt_csv_read(&c->arena, f->text, f->size_bytes, name, csv, err);
        }
    }
    BT_FAIL(err, BT_ERR_INTERNAL, 0, "%s: not embedded", name);
}

/* A parse function's outcome as a failure of the row. */
static void check_parse(struct bt_csv_row *r, const char *column, enum bt_code code,
                        const struct bt_error *err)
{
    if (code != BT_OK) {
        bt_csv_fail(r, column, err->msg);
    }
}

static void read_curve(struct bt_csv_row *r, const struct bt_csv *curves, const char *name,
                       struct bt_pcie *p)
{
    struct bt_csv_row q = {.csv = curves, .err = r->err};
    for (q.row = 0; q.row < curves->n_rows; q.row++) {
        if (strcmp(bt_csv_text(&q, "curve"), name) != 0) {
            continue;
        }
        if (p->n_points == BT_PCIE_POINTS_MAX) {
            bt_csv_fail(&q, "copy_bytes", "too many points");
            break;
        }
        struct bt_pcie_point *pt = &p->points[p->n_points++];
        pt->copy_bytes = bt_csv_real(&q, "copy_bytes", 1, 1e12, 0);
        pt->to_device_bytes_per_s = 1e9 * bt_csv_real(&q, "to_device_gbps", 1e-3, 1e4, 0);
        pt->to_host_bytes_per_s = 1e9 * bt_csv_real(&q, "to_host_gbps", 1e-3, 1e4, 0);
        p->duplex_bytes_per_s = 1e9 * bt_csv_real(&q, "duplex_gbps", 1e-3, 1e4, 0);
        struct bt_error err = {0};
        const char *trust = bt_csv_text(&q, "trust");
        check_parse(&q, "trust", bt_trust_parse(trust, "trust", &p->trust, &err), &err);
        if (p->n_points > 1 && pt->copy_bytes <= pt[-1].copy_bytes) {
            bt_csv_fail(&q, "copy_bytes", "must rise along the curve");
        }
    }
    if (q.code != BT_OK) {
        r->code = q.code;
    } else if (p->n_points == 0) {
        bt_csv_fail(r, "pcie_curve", "there is no such curve");
    }
}

static int64_t gib(double x)
{
    return (int64_t)llround(x * 1073741824.0);
}

static void read_gpu(struct bt_csv_row *r, const struct bt_csv *curves, struct bt_catalog_gpu *out)
{
    struct bt_gpu *g = &out->gpu;
    struct bt_error err = {0};
    bt_csv_copy(r, "name", g->name, sizeof g->name);
    bt_csv_copy(r, "product", g->product, sizeof g->product);
    const char *arch = bt_csv_text(r, "arch");
    check_parse(r, "arch", bt_gpu_family_parse(arch, "arch", &g->family, &err), &err);
    g->cc = (int32_t)lround(10 * bt_csv_real(r, "cc", 1, 99, 0));
    g->memory_bytes = gib(bt_csv_real(r, "memory_gib", 1, 1e5, 0));
    g->usable_bytes = gib(bt_csv_real(r, "usable_gib", 1, 1e5, 0));
    g->usable_estimated = strcmp(bt_csv_text(r, "usable"), "estimated") == 0;
    g->mem_bytes_per_s = 1e9 * bt_csv_real(r, "mem_gbps", 1, 1e6, 0);
    g->fp32_flops_per_s = 1e12 * bt_csv_real(r, "fp32_tflops", 0, 1e5, 0);
    g->fp16_flops_per_s = 1e12 * bt_csv_real(r, "fp16_tflops", 0, 1e5, 0);
    g->int8_ops_per_s = 1e12 * bt_csv_real(r, "int8_tops", 0, 1e5, 0);
    g->fp8_flops_per_s = 1e12 * bt_csv_real(r, "fp8_tflops", 0, 1e5, 0);
    g->int4_ops_per_s = 1e12 * bt_csv_real(r, "int4_tops", 0, 1e5, 0);
    g->pcie_gen = (int32_t)bt_csv_int(r, "pcie_gen", 1, 9, 0);
    g->pcie_bytes_per_s = 1e9 * bt_csv_real(r, "pcie_gbps", 0, 1e4, 0);
    g->nvlink_bytes_per_s = 1e9 * bt_csv_real(r, "nvlink_gbps", 0, 1e5, 0);
    g->tdp_w = bt_csv_real(r, "tdp_w", 1, 1e5, 0);
    read_curve(r, curves, bt_csv_text(r, "pcie_curve"), &g->pcie);
    out->shipped = true;
    out->aliases = bt_csv_text(r, "aliases");
    out->source = bt_csv_text(r, "source");
    out->date = bt_csv_text(r, "date");
    out->notes = bt_csv_text(r, "notes");
    if (g->memory_bytes == 0 || g->usable_bytes == 0 || g->mem_bytes_per_s == 0 ||
        *out->source == '\0') {
        bt_csv_fail(r, "name", "memory, usable memory, bandwidth and source must be given");
    }
}

static void read_rope(struct bt_csv_row *r, struct bt_rope *rope)
{
    rope->theta = bt_csv_real(r, "rope_theta", 1, 1e12, 0);
    const char *name = bt_csv_text(r, "rope_scaling");
    int32_t i = 0;
    while (i < BT_ROPE_SCALINGS &&
           strcmp(name, bt_rope_scaling_name((enum bt_rope_scaling)i)) != 0) {
        i++;
    }
    if (i == BT_ROPE_SCALINGS || i == BT_ROPE_YARN) {
        bt_csv_fail(r, "rope_scaling", "expected default, linear, dynamic or llama3");
        return;
    }
    rope->scaling = (enum bt_rope_scaling)i;
    rope->factor = bt_csv_real(r, "rope_factor", 1, 1e6, 1);
    rope->low_freq_factor = bt_csv_real(r, "rope_low", 1e-6, 1e6, 0);
    rope->high_freq_factor = bt_csv_real(r, "rope_high", 1e-6, 1e6, 0);
    rope->original_max_position = (int32_t)bt_csv_int(r, "rope_original", 1, 1 << 30, 0);
}

static void read_model(struct bt_csv_row *r, struct bt_catalog_model *out)
{
    struct bt_arch *a = &out->arch;
    struct bt_error err = {0};
    bt_csv_copy(r, "name", a->name, sizeof a->name);
    bt_csv_copy(r, "vocab_family", a->vocab_family, sizeof a->vocab_family);
    a->hidden = (int32_t)bt_csv_int(r, "hidden", 1, 1 << 20, 0);
    a->n_layers = (int32_t)bt_csv_int(r, "layers", 1, BT_ARCH_MAX_LAYERS, 0);
    a->n_heads = (int32_t)bt_csv_int(r, "heads", 1, 1 << 16, 0);
    a->n_kv_heads = (int32_t)bt_csv_int(r, "kv_heads", 1, 1 << 16, 0);
    a->head_dim = (int32_t)bt_csv_int(r, "head_dim", 1, 1 << 16, 0);
    a->intermediate = (int32_t)bt_csv_int(r, "intermediate", 1, 1 << 24, 0);
    a->vocab = (int32_t)bt_csv_int(r, "vocab", 1, 1 << 28, 0);
    a->max_position = (int32_t)bt_csv_int(r, "max_position", 1, 1 << 30, 0);
    a->tie_embeddings = bt_csv_bool(r, "tied");
    a->qkv_bias = bt_csv_bool(r, "qkv_bias");
    a->o_bias = bt_csv_bool(r, "o_bias");
    a->mlp_bias = bt_csv_bool(r, "mlp_bias");
    a->qk_norm = bt_csv_bool(r, "qk_norm");
    a->mlp_gated = bt_csv_bool(r, "mlp_gated");
    a->wide_residual = bt_csv_bool(r, "wide_residual");
    a->sliding_window = (int32_t)bt_csv_int(r, "window", 0, 1 << 30, 0);
    int32_t sliding = (int32_t)bt_csv_int(r, "window_layers", 0, a->n_layers, 0);
    read_rope(r, &a->rope);
    a->rms_eps = bt_csv_real(r, "rms_eps", 0, 0.1, 0);
    const char *format = bt_csv_text(r, "checkpoint");
    check_parse(r, "checkpoint", bt_weight_format_parse(format, "checkpoint", &a->checkpoint, &err),
                &err);
    a->compute = a->checkpoint == BT_WEIGHT_BF16   ? BT_ACT_BF16
                 : a->checkpoint == BT_WEIGHT_FP32 ? BT_ACT_FP32
                                                   : BT_ACT_FP16;
    out->aliases = bt_csv_text(r, "aliases");
    out->hf_id = bt_csv_text(r, "hf_id");
    out->params = bt_csv_int(r, "params", 1, INT64_MAX, 0);
    out->source = bt_csv_text(r, "source");
    out->date = bt_csv_text(r, "date");
    out->notes = bt_csv_text(r, "notes");
    if (r->code != BT_OK) {
        return;
    }
    /* Where only some layers slide, they are the last ones (Qwen2). */
    bt_arch_slide_layers(a, a->n_layers - sliding, a->n_layers);
    check_parse(r, "name", bt_arch_check(a, &err), &err);
}

static void read_price(struct bt_csv_row *r, struct bt_price *p)
{
    p->gpu = bt_csv_text(r, "gpu");
    p->provider = bt_csv_text(r, "provider");
    p->term = bt_csv_text(r, "term");
    p->usd_per_h = bt_csv_real(r, "usd_per_h", 1e-6, 1e6, 0);
    p->date = bt_csv_text(r, "date");
    p->offer = bt_csv_text(r, "offer");
    if (*p->provider == '\0' || *p->term == '\0' || *p->date == '\0' || p->usd_per_h == 0) {
        bt_csv_fail(r, "gpu", "provider, term, usd_per_h and date must be given");
    }
}

/* Bit mask of "a|b|c" or "*": of each name, the number that `parse` gives. */
static uint32_t read_set(struct bt_csv_row *r, const char *column,
                         bool (*parse)(const char *name, int32_t *out))
{
    const char *text = bt_csv_text(r, column);
    if (strcmp(text, "*") == 0) {
        return UINT32_MAX;
    }
    uint32_t set = 0;
    while (*text != '\0') {
        char name[32];
        size_t n = strcspn(text, "|");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, text);
        int32_t i = 0;
        if (!parse(name, &i)) {
            bt_csv_fail(r, column, "no such format");
            return 0;
        }
        set |= UINT32_C(1) << i;
        text += n + (text[n] == '|');
    }
    return set;
}

static bool parse_weight(const char *name, int32_t *out)
{
    enum bt_weight_format f = BT_WEIGHT_DEFAULT;
    enum bt_code code = bt_weight_format_parse(name, "", &f, NULL);
    *out = (int32_t)f;
    return code == BT_OK;
}

static bool parse_act(const char *name, int32_t *out)
{
    enum bt_act_format f = BT_ACT_DEFAULT;
    enum bt_code code = bt_act_format_parse(name, "", &f, NULL);
    *out = (int32_t)f;
    return code == BT_OK;
}

static bool parse_kv(const char *name, int32_t *out)
{
    enum bt_kv_format f = BT_KV_DEFAULT;
    enum bt_code code = bt_kv_format_parse(name, "", &f, NULL);
    *out = (int32_t)f;
    return code == BT_OK;
}

static void read_rule(struct bt_csv_row *r, bool gemm, struct bt_kernel_rule *k)
{
    *k = (struct bt_kernel_rule){.family = -1};
    k->stack = bt_csv_text(r, "stack");
    const char *arch = bt_csv_text(r, "arch");
    if (strcmp(arch, "*") != 0) {
        struct bt_error err = {0};
        enum bt_gpu_family family = BT_GPU_CPU;
        check_parse(r, "arch", bt_gpu_family_parse(arch, "arch", &family, &err), &err);
        k->family = (int32_t)family;
    }
    k->min_cc = (int32_t)lround(10 * bt_csv_real(r, "min_cc", 0, 99, 0));
    if (gemm) {
        k->weights = read_set(r, "weights", parse_weight);
        k->activations = read_set(r, "activations", parse_act);
    } else {
        k->kv = read_set(r, "kv", parse_kv);
    }
    k->exists = bt_csv_bool(r, "exists");
    k->note = bt_csv_text(r, "note");
}

static enum bt_code read_rules(struct bt_catalog *c, const char *name, bool gemm,
                               struct bt_kernel_table *t, struct bt_error *err)
{
    struct bt_csv csv;
    BT_TRY(read_table(c, name, &csv, err));
    BT_ARENA_ARRAY(&c->arena, t->rules, csv.n_rows, err);
    struct bt_csv_row r = {.csv = &csv, .err = err};
    for (r.row = 0; r.row < csv.n_rows; r.row++) {
        read_rule(&r, gemm, &t->rules[r.row]);
    }
    t->n_rules = csv.n_rows;
    return r.code;
}

static enum bt_code read_gpus(struct bt_catalog *c, int32_t n_extra, struct bt_error *err)
{
    struct bt_csv csv;
    struct bt_csv curves;
    BT_TRY(read_table(c, "catalog/gpus.csv", &csv, err));
    BT_TRY(read_table(c, "catalog/pcie.csv", &curves, err));
    BT_ARENA_ARRAY(&c->arena, c->gpus, csv.n_rows + n_extra, err);
    struct bt_csv_row r = {.csv = &csv, .err = err};
    for (r.row = 0; r.row < csv.n_rows; r.row++) {
        read_gpu(&r, &curves, &c->gpus[r.row]);
    }
    c->n_gpus = csv.n_rows;
    return r.code;
}

static enum bt_code read_models(struct bt_catalog *c, struct bt_error *err)
{
    struct bt_csv csv;
    BT_TRY(read_table(c, "catalog/models.csv", &csv, err));
    BT_ARENA_ARRAY(&c->arena, c->models, csv.n_rows, err);
    struct bt_csv_row r = {.csv = &csv, .err = err};
    for (r.row = 0; r.row < csv.n_rows; r.row++) {
        read_model(&r, &c->models[r.row]);
    }
    c->n_models = csv.n_rows;
    return r.code;
}

/* A published format that no enum names is not an error here: it is kept as text. */
static void read_formats(struct bt_published_accuracy *a)
{
    a->weight_format = BT_WEIGHT_FORMATS;
    a->act_format = BT_ACT_FORMATS;
    a->kv_format = BT_KV_FORMATS;
    (void)!bt_weight_format_parse(a->weights, "weights", &a->weight_format, NULL);
    (void)!bt_act_format_parse(a->activations, "activations", &a->act_format, NULL);
    (void)!bt_kv_format_parse(a->kv, "kv", &a->kv_format, NULL);
}

static enum bt_code read_accuracy(struct bt_catalog *c, struct bt_error *err)
{
    struct bt_csv csv;
    BT_TRY(read_table(c, "catalog/accuracy.csv", &csv, err));
    BT_ARENA_ARRAY(&c->arena, c->accuracy, csv.n_rows, err);
    struct bt_csv_row r = {.csv = &csv, .err = err};
    for (; r.row < csv.n_rows; r.row++) {
        struct bt_published_accuracy *a = &c->accuracy[r.row];
        a->model = bt_csv_text(&r, "model");
        a->weights = bt_csv_text(&r, "weights");
        a->activations = bt_csv_text(&r, "activations");
        a->kv = bt_csv_text(&r, "kv");
        a->method = bt_csv_text(&r, "method");
        a->metric = bt_csv_text(&r, "metric");
        a->unit = bt_csv_text(&r, "unit");
        a->baseline = bt_csv_real(&r, "baseline", 0, 1e9, NAN);
        a->value = bt_csv_real(&r, "value", 0, 1e9, NAN);
        a->source = bt_csv_text(&r, "source");
        a->date = bt_csv_text(&r, "date");
        a->notes = bt_csv_text(&r, "notes");
        read_formats(a);
    }
    c->n_accuracy = csv.n_rows;
    return r.code;
}

static enum bt_code read_prices(struct bt_catalog *c, struct bt_error *err)
{
    struct bt_csv csv;
    BT_TRY(read_table(c, "catalog/prices.csv", &csv, err));
    BT_ARENA_ARRAY(&c->arena, c->prices, csv.n_rows, err);
    struct bt_csv_row r = {.csv = &csv, .err = err};
    for (r.row = 0; r.row < csv.n_rows; r.row++) {
        read_price(&r, &c->prices[r.row]);
    }
    c->n_prices = csv.n_rows;
    return r.code;
}

enum bt_code bt_catalog_read(struct bt_catalog *c, int32_t n_extra, struct bt_error *err)
{
    BT_TRY(read_gpus(c, n_extra, err));
    BT_TRY(read_models(c, err));
    BT_TRY(read_prices(c, err));
    BT_TRY(read_accuracy(c, err));
    BT_TRY(read_rules(c, "catalog/kernels.csv", true, &c->gemm, err));
    return read_rules(c, "catalog/kernels_kv.csv", false, &c->kv, err);
}
