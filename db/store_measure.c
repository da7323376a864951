/* The catalog in the store, and measurements: calibrations, acceptance, accuracy. */
#include "db/sha256.h"
#include "db/store_impl.h"

#include "cmake/embedded.h"
#include <math.h>
#include <string.h>

extern const struct bt_embedded bt_catalog_files[];

/* ---- catalog ---- */

static void catalog_hash(char out[BT_SHA256_HEX_BYTES])
{
    struct bt_sha256 h;
    bt_sha256_init(&h);
    for (const struct bt_embedded *f = bt_catalog_files; f->name != NULL; f++) {
        bt_sha256_add(&h, f->name, strlen(f->name) + 1);
        bt_sha256_add(&h, f->text, f->size_bytes);
    }
    bt_sha256_hex(&h, out);
}

static bool same_text(void *ctx, sqlite3_stmt *row)
{
    const char **text = ctx;
    if (strcmp((const char *)sqlite3_column_text(row, 0), *text) == 0) {
        *text = NULL;
    }
    return false;
}

/* `own`: replaces whatever there is; else only what came with a catalog. */
static enum bt_code put_gpu(struct bt_store *s, const struct bt_gpu *g, const char *source,
                            const char *date, const char *notes, bool own, int64_t provenance_id,
                            struct bt_error *err)
{
    return STORE_EXEC(
        s, BT_STMT_PUT_GPU, err, BIND_TEXT("name", g->name), BIND_TEXT("product", g->product),
        BIND_TEXT("family", bt_gpu_family_name(g->family)), BIND_INT("cc", g->cc),
        BIND_INT("memory_bytes", g->memory_bytes), BIND_INT("usable_bytes", g->usable_bytes),
        BIND_INT("usable_estimated", g->usable_estimated),
        BIND_REAL("mem_bytes_per_s", g->mem_bytes_per_s),
        BIND_REAL("fp32_flops_per_s", g->fp32_flops_per_s),
        BIND_REAL("fp16_flops_per_s", g->fp16_flops_per_s),
        BIND_REAL("int8_ops_per_s", g->int8_ops_per_s),
        BIND_REAL("fp8_flops_per_s", g->fp8_flops_per_s),
        BIND_REAL("int4_ops_per_s", g->int4_ops_per_s), BIND_INT("pcie_gen", g->pcie_gen),
        BIND_REAL("pcie_bytes_per_s", g->pcie_bytes_per_s),
        BIND_REAL("nvlink_bytes_per_s", g->nvlink_bytes_per_s), BIND_REAL("tdp_w", g->tdp_w),
        BIND_TEXT("source", source), BIND_TEXT("source_date", date), BIND_TEXT("notes", notes),
        BIND_INT("provenance_id", provenance_id), BIND_INT("own", own));
}

static enum bt_code put_model(struct bt_store *s, const struct bt_catalog_model *m,
                              int64_t provenance_id, struct bt_error *err)
{
    const struct bt_arch *a = &m->arch;
    return STORE_EXEC(s, BT_STMT_PUT_MODEL, err, BIND_TEXT("name", a->name),
                      BIND_TEXT("hf_id", m->hf_id), BIND_TEXT("vocab_family", a->vocab_family),
                      BIND_INT("params", m->params), BIND_INT("hidden", a->hidden),
                      BIND_INT("n_layers", a->n_layers), BIND_INT("n_heads", a->n_heads),
                      BIND_INT("n_kv_heads", a->n_kv_heads), BIND_INT("head_dim", a->head_dim),
                      BIND_INT("intermediate", a->intermediate), BIND_INT("vocab", a->vocab),
                      BIND_INT("max_position", a->max_position),
                      BIND_TEXT("checkpoint", bt_weight_format_name(a->checkpoint)),
                      BIND_TEXT("source", m->source), BIND_TEXT("source_date", m->date),
                      BIND_TEXT("notes", m->notes), BIND_INT("provenance_id", provenance_id));
}

static enum bt_code put_catalog(struct bt_store *s, const struct bt_catalog *c, const char *hash,
                                struct bt_error *err)
{
    int64_t provenance_id = 0;
    struct bt_store_provenance shipped = {
        .kind = "shipped", .source = "db/catalog", .content_sha256 = hash};
    BT_TRY(bt_store_add_provenance(s, &shipped, &provenance_id, err));
    BT_TRY(bt_store_exec(s, BT_STMT_DROP_SHIPPED_PRICES, NULL, 0, err));
    BT_TRY(bt_store_exec(s, BT_STMT_DROP_SHIPPED_MODELS, NULL, 0, err));
    for (int32_t i = 0; i < bt_catalog_n_gpus(c); i++) {
        const struct bt_catalog_gpu *g = bt_catalog_gpu_at(c, i);
        if (g->shipped) {
            BT_TRY(put_gpu(s, &g->gpu, g->source, g->date, g->notes, false, provenance_id, err));
        }
    }
    BT_TRY(STORE_EXEC(s, BT_STMT_DROP_OLD_GPUS, err, BIND_INT("provenance_id", provenance_id)));
    for (int32_t i = 0; i < bt_catalog_n_models(c); i++) {
        BT_TRY(put_model(s, bt_catalog_model_at(c, i), provenance_id, err));
    }
    for (int32_t i = 0; i < bt_catalog_n_prices(c); i++) {
        const struct bt_price *p = bt_catalog_price_at(c, i);
        BT_TRY(STORE_EXEC(s, BT_STMT_PUT_PRICE, err, BIND_TEXT("gpu", p->gpu),
                          BIND_TEXT("provider", p->provider), BIND_TEXT("term", p->term),
                          BIND_REAL("usd_per_h", p->usd_per_h), BIND_TEXT("source_date", p->date),
                          BIND_TEXT("offer", p->offer), BIND_INT("provenance_id", provenance_id)));
    }
    return STORE_EXEC(s, BT_STMT_PUT_META, err, BIND_TEXT("key", "catalog_hash"),
                      BIND_TEXT("value", hash));
}

enum bt_code bt_store_load_catalog(struct bt_store *s, const struct bt_catalog *c,
                                   struct bt_error *err)
{
    char hash[BT_SHA256_HEX_BYTES];
    catalog_hash(hash);
    const char *missing = hash;
    BT_TRY(STORE_QUERY(s, BT_STMT_GET_META, same_text, &missing, err,
                       BIND_TEXT("key", "catalog_hash")));
    if (missing == NULL) {
        return BT_OK;
    }
    /* Another process may have loaded it between the look and the transaction. */
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code = STORE_QUERY(s, BT_STMT_GET_META, same_text, &missing, err,
                                    BIND_TEXT("key", "catalog_hash"));
    if (code == BT_OK && missing != NULL) {
        code = put_catalog(s, c, hash, err);
    }
    return bt_store_finish(s, code, err);
}

enum bt_code bt_store_put_gpu(struct bt_store *s, const struct bt_gpu *gpu,
                              const struct bt_store_provenance *provenance, struct bt_error *err)
{
    BT_ASSERT(strcmp(provenance->kind, "shipped") != 0);
    int64_t provenance_id = 0;
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code = bt_store_add_provenance(s, provenance, &provenance_id, err);
    if (code == BT_OK) {
        code = put_gpu(s, gpu, provenance->source, provenance->source_date, "", true, provenance_id,
                       err);
    }
    return bt_store_finish(s, code, err);
}

/* ---- reading into an arena ---- */

struct loader {
    struct bt_store *store;
    struct bt_arena *arena;
    void *items;
    int32_t n;
    int32_t max;
    enum bt_code code;
    struct bt_error *err;
};

static const char *take_text(struct loader *l, sqlite3_stmt *row, int column)
{
    char *text = bt_arena_strdup(l->arena, (const char *)sqlite3_column_text(row, column));
    if (text == NULL && l->code == BT_OK) {
        l->code = bt_error_set(l->err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "store: no memory");
    }
    return text;
}

static void copy_text(sqlite3_stmt *row, int column, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes, "%s", (const char *)sqlite3_column_text(row, column));
}

/* Formats as the store writes them: '' is the default. */
static enum bt_weight_format weight_of(struct loader *l, sqlite3_stmt *row, int column)
{
    enum bt_weight_format f = BT_WEIGHT_DEFAULT;
    const char *text = (const char *)sqlite3_column_text(row, column);
    if (*text != '\0' && l->code == BT_OK) {
        l->code = bt_weight_format_parse(text, "store: weights", &f, l->err);
    }
    return f;
}

static enum bt_act_format act_of(struct loader *l, sqlite3_stmt *row, int column)
{
    enum bt_act_format f = BT_ACT_DEFAULT;
    const char *text = (const char *)sqlite3_column_text(row, column);
    if (*text != '\0' && l->code == BT_OK) {
        l->code = bt_act_format_parse(text, "store: activations", &f, l->err);
    }
    return f;
}

static enum bt_kv_format kv_of(struct loader *l, sqlite3_stmt *row, int column)
{
    enum bt_kv_format f = BT_KV_DEFAULT;
    const char *text = (const char *)sqlite3_column_text(row, column);
    if (*text != '\0' && l->code == BT_OK) {
        l->code = bt_kv_format_parse(text, "store: kv", &f, l->err);
    }
    return f;
}

static const char *weight_text(enum bt_weight_format f)
{
    return f == BT_WEIGHT_DEFAULT ? "" : bt_weight_format_name(f);
}

static const char *act_text(enum bt_act_format f)
{
    return f == BT_ACT_DEFAULT ? "" : bt_act_format_name(f);
}

static const char *kv_text(enum bt_kv_format f)
{
    return f == BT_KV_DEFAULT ? "" : bt_kv_format_name(f);
}

static bool take_gpu(void *ctx, sqlite3_stmt *row)
{
    struct loader *l = ctx;
    if (l->n == l->max) {
        return false;
    }
    struct bt_gpu *g = &((struct bt_gpu *)l->items)[l->n++];
    copy_text(row, 0, g->name, sizeof g->name);
    copy_text(row, 1, g->product, sizeof g->product);
    l->code = bt_gpu_family_parse((const char *)sqlite3_column_text(row, 2), "store: family",
                                  &g->family, l->err);
    g->cc = sqlite3_column_int(row, 3);
    g->memory_bytes = sqlite3_column_int64(row, 4);
    g->usable_bytes = sqlite3_column_int64(row, 5);
    g->usable_estimated = sqlite3_column_int(row, 6) != 0;
    g->mem_bytes_per_s = sqlite3_column_double(row, 7);
    g->fp32_flops_per_s = sqlite3_column_double(row, 8);
    g->fp16_flops_per_s = sqlite3_column_double(row, 9);
    g->int8_ops_per_s = sqlite3_column_double(row, 10);
    g->fp8_flops_per_s = sqlite3_column_double(row, 11);
    g->int4_ops_per_s = sqlite3_column_double(row, 12);
    g->pcie_gen = sqlite3_column_int(row, 13);
    g->pcie_bytes_per_s = sqlite3_column_double(row, 14);
    g->nvlink_bytes_per_s = sqlite3_column_double(row, 15);
    g->tdp_w = sqlite3_column_double(row, 16);
    return l->code == BT_OK;
}

enum { OWN_GPUS_MAX = 64 };

enum bt_code bt_store_load_gpus(struct bt_store *s, struct bt_arena *arena, struct bt_gpu **out,
                                int32_t *n, struct bt_error *err)
{
    struct bt_gpu *gpus = NULL;
    BT_ARENA_ARRAY(arena, gpus, OWN_GPUS_MAX, err);
    struct loader l = {.store = s, .arena = arena, .items = gpus, .max = OWN_GPUS_MAX, .err = err};
    BT_TRY(bt_store_query(s, BT_STMT_LOAD_GPUS, NULL, 0, take_gpu, &l, err));
    *out = gpus;
    *n = l.n;
    return l.code;
}

/* ---- calibrations ---- */

static enum bt_code add_ops(struct bt_store *s, int64_t calibration_id,
                            const struct bt_op_sample *ops, int64_t n, struct bt_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        const struct bt_op_sample *o = &ops[i];
        BT_TRY(
            STORE_EXEC(s, BT_STMT_ADD_OP_SAMPLE, err, BIND_INT("calibration_id", calibration_id),
                       BIND_TEXT("op", o->op), BIND_TEXT("weights", weight_text(o->weights)),
                       BIND_TEXT("activations", act_text(o->activations)),
                       BIND_TEXT("kv", kv_text(o->kv)), BIND_INT("m_tokens", o->m_tokens),
                       BIND_INT("n_out", o->n_out), BIND_INT("k_in", o->k_in),
                       BIND_INT("n_seqs", o->n_seqs), BIND_INT("context_tokens", o->context_tokens),
                       BIND_INT("n_heads", o->n_heads), BIND_INT("n_kv_heads", o->n_kv_heads),
                       BIND_INT("head_dim", o->head_dim), BIND_INT("block_tokens", o->block_tokens),
                       BIND_INT("tp", o->tp), BIND_REAL("median_ns", o->median_ns),
                       BIND_REAL("spread_ns", o->spread_ns), BIND_INT("n_repeats", o->n_repeats),
                       BIND_INT("bytes", o->bytes), BIND_INT("flops", o->flops)));
    }
    return BT_OK;
}

static enum bt_code add_calibration(struct bt_store *s, const struct bt_store_calibration *c,
                                    const struct bt_op_sample *ops, int64_t n_ops,
                                    const struct bt_pcie_sample *pcie, int64_t n_pcie,
                                    struct bt_error *err)
{
    int64_t provenance_id = 0;
    BT_TRY(bt_store_add_provenance(s, &c->provenance, &provenance_id, err));
    BT_TRY(STORE_EXEC(s, BT_STMT_DROP_CALIBRATION, err, BIND_TEXT("name", c->name)));
    BT_TRY(STORE_EXEC(
        s, BT_STMT_ADD_CALIBRATION, err, BIND_TEXT("name", c->name), BIND_TEXT("gpu", c->gpu),
        BIND_TEXT("stack", c->stack), BIND_TEXT("stack_version", c->stack_version),
        BIND_TEXT("engine_sha256", c->engine_sha256), BIND_TEXT("trust", bt_trust_name(c->trust)),
        BIND_TEXT("driver", c->driver), BIND_INT("sm_clock_mhz", c->sm_clock_mhz),
        BIND_INT("mem_clock_mhz", c->mem_clock_mhz), BIND_REAL("power_limit_w", c->power_limit_w),
        BIND_TEXT("started_utc", c->started_utc), BIND_TEXT("notes", c->notes),
        BIND_INT("provenance_id", provenance_id)));
    int64_t id = sqlite3_last_insert_rowid(s->db);
    BT_TRY(add_ops(s, id, ops, n_ops, err));
    for (int64_t i = 0; i < n_pcie; i++) {
        BT_TRY(STORE_EXEC(s, BT_STMT_ADD_PCIE_SAMPLE, err, BIND_INT("calibration_id", id),
                          BIND_TEXT("direction", pcie[i].direction),
                          BIND_INT("copy_bytes", pcie[i].copy_bytes),
                          BIND_REAL("bytes_per_s", pcie[i].bytes_per_s),
                          BIND_REAL("spread_bytes_per_s", pcie[i].spread_bytes_per_s)));
    }
    return BT_OK;
}

enum bt_code bt_store_add_calibration(struct bt_store *s, const struct bt_store_calibration *c,
                                      const struct bt_op_sample *ops, int64_t n_ops,
                                      const struct bt_pcie_sample *pcie, int64_t n_pcie,
                                      struct bt_error *err)
{
    BT_TRY(STORE_BEGIN(s, err));
    return bt_store_finish(s, add_calibration(s, c, ops, n_ops, pcie, n_pcie, err), err);
}

static bool take_op(void *ctx, sqlite3_stmt *row)
{
    struct loader *l = ctx;
    if (l->n == l->max) {
        return false;
    }
    struct bt_op_sample *o = &((struct bt_op_sample *)l->items)[l->n++];
    copy_text(row, 0, o->op, sizeof o->op);
    o->weights = weight_of(l, row, 1);
    o->activations = act_of(l, row, 2);
    o->kv = kv_of(l, row, 3);
    int32_t *const axes[] = {&o->m_tokens,       &o->n_out,   &o->k_in,       &o->n_seqs,
                             &o->context_tokens, &o->n_heads, &o->n_kv_heads, &o->head_dim,
                             &o->block_tokens,   &o->tp};
    for (int i = 0; i < 10; i++) {
        *axes[i] = sqlite3_column_int(row, 4 + i);
    }
    o->median_ns = sqlite3_column_double(row, 14);
    o->spread_ns = sqlite3_column_double(row, 15);
    o->n_repeats = sqlite3_column_int(row, 16);
    o->bytes = sqlite3_column_int64(row, 17);
    o->flops = sqlite3_column_int64(row, 18);
    return l->code == BT_OK;
}

static bool take_pcie(void *ctx, sqlite3_stmt *row)
{
    static const char *const directions[] = {"to_device", "to_host", "duplex"};
    struct loader *l = ctx;
    if (l->n == l->max) {
        return false;
    }
    struct bt_pcie_sample *p = &((struct bt_pcie_sample *)l->items)[l->n++];
    const char *text = (const char *)sqlite3_column_text(row, 0);
    for (size_t i = 0; i < sizeof directions / sizeof *directions; i++) {
        if (strcmp(text, directions[i]) == 0) {
            p->direction = directions[i];
        }
    }
    p->copy_bytes = sqlite3_column_int64(row, 1);
    p->bytes_per_s = sqlite3_column_double(row, 2);
    p->spread_bytes_per_s = sqlite3_column_double(row, 3);
    return true;
}

static bool take_calibration(void *ctx, sqlite3_stmt *row)
{
    struct loader *l = ctx;
    if (l->n == l->max) {
        return false;
    }
    struct bt_calibration *c = &((struct bt_calibration *)l->items)[l->n++];
    c->calibration_id = sqlite3_column_int64(row, 0);
    const char **const texts[] = {&c->name,          &c->gpu,    &c->stack,       &c->stack_version,
                                  &c->engine_sha256, &c->driver, &c->started_utc, &c->source};
    for (int i = 0; i < 8; i++) {
        *texts[i] = take_text(l, row, 1 + i);
    }
    if (l->code == BT_OK) {
        l->code = bt_trust_parse((const char *)sqlite3_column_text(row, 9), "store: trust",
                                 &c->trust, l->err);
    }
    return l->code == BT_OK;
}

/* The samples of one session. */
static enum bt_code load_samples(struct bt_store *s, struct bt_arena *arena,
                                 struct bt_calibration *c, struct bt_error *err)
{
    const struct bt_bind id[] = {BIND_INT("calibration_id", c->calibration_id)};
    BT_TRY(bt_store_count(s, BT_STMT_COUNT_OP_SAMPLES, id, 1, &c->n_ops, err));
    BT_TRY(bt_store_count(s, BT_STMT_COUNT_PCIE_SAMPLES, id, 1, &c->n_pcie, err));
    BT_ARENA_ARRAY(arena, c->ops, c->n_ops, err);
    BT_ARENA_ARRAY(arena, c->pcie, c->n_pcie, err);
    struct loader ops = {
        .store = s, .arena = arena, .items = c->ops, .max = (int32_t)c->n_ops, .err = err};
    BT_TRY(bt_store_query(s, BT_STMT_LOAD_OP_SAMPLES, id, 1, take_op, &ops, err));
    BT_TRY(ops.code);
    struct loader pcie = {
        .store = s, .arena = arena, .items = c->pcie, .max = (int32_t)c->n_pcie, .err = err};
    return bt_store_query(s, BT_STMT_LOAD_PCIE_SAMPLES, id, 1, take_pcie, &pcie, err);
}

enum bt_code bt_store_load_calibrations(struct bt_store *s, const char *gpu, const char *stack,
                                        struct bt_arena *arena, struct bt_calibration **out,
                                        int32_t *n, struct bt_error *err)
{
    const struct bt_bind binds[] = {BIND_TEXT("gpu", gpu), BIND_TEXT("stack", stack)};
    int64_t count = 0;
    struct bt_calibration *items = NULL;
    BT_TRY(bt_store_count(s, BT_STMT_COUNT_CALIBRATIONS, binds, 2, &count, err));
    BT_ARENA_ARRAY(arena, items, count, err);
    struct loader l = {
        .store = s, .arena = arena, .items = items, .max = (int32_t)count, .err = err};
    BT_TRY(bt_store_query(s, BT_STMT_LOAD_CALIBRATIONS, binds, 2, take_calibration, &l, err));
    BT_TRY(l.code);
    for (int32_t i = 0; i < l.n; i++) {
        BT_TRY(load_samples(s, arena, &items[i], err));
    }
    *out = items;
    *n = l.n;
    return BT_OK;
}

/* ---- acceptance and accuracy ---- */

enum bt_code bt_store_add_acceptance(struct bt_store *s, const char *target, const char *draft,
                                     double temperature, const char *text_kind,
                                     const struct bt_acceptance_sample *samples, int32_t n,
                                     const struct bt_store_provenance *provenance,
                                     struct bt_error *err)
{
    int64_t provenance_id = 0;
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code = bt_store_add_provenance(s, provenance, &provenance_id, err);
    for (int32_t i = 0; i < n && code == BT_OK; i++) {
        code =
            STORE_EXEC(s, BT_STMT_ADD_ACCEPTANCE, err, BIND_TEXT("target", target),
                       BIND_TEXT("draft", draft), BIND_REAL("temperature", temperature),
                       BIND_TEXT("text_kind", text_kind), BIND_INT("position", samples[i].position),
                       BIND_INT("n_proposed", samples[i].n_proposed),
                       BIND_INT("n_accepted", samples[i].n_accepted),
                       BIND_INT("provenance_id", provenance_id));
    }
    return bt_store_finish(s, code, err);
}

static bool take_acceptance(void *ctx, sqlite3_stmt *row)
{
    struct loader *l = ctx;
    if (l->n == l->max) {
        return false;
    }
    struct bt_acceptance *a = &((struct bt_acceptance *)l->items)[l->n++];
    a->target = take_text(l, row, 0);
    a->draft = take_text(l, row, 1);
    a->temperature = sqlite3_column_double(row, 2);
    a->text_kind = take_text(l, row, 3);
    a->sample.position = sqlite3_column_int(row, 4);
    a->sample.n_proposed = sqlite3_column_int64(row, 5);
    a->sample.n_accepted = sqlite3_column_int64(row, 6);
    return l->code == BT_OK;
}

enum bt_code bt_store_load_acceptance(struct bt_store *s, struct bt_arena *arena,
                                      struct bt_acceptance **out, int32_t *n, struct bt_error *err)
{
    int64_t count = 0;
    struct bt_acceptance *items = NULL;
    BT_TRY(bt_store_count(s, BT_STMT_COUNT_ACCEPTANCE, NULL, 0, &count, err));
    BT_ARENA_ARRAY(arena, items, count, err);
    struct loader l = {
        .store = s, .arena = arena, .items = items, .max = (int32_t)count, .err = err};
    BT_TRY(bt_store_query(s, BT_STMT_LOAD_ACCEPTANCE, NULL, 0, take_acceptance, &l, err));
    BT_TRY(l.code);
    *out = items;
    *n = l.n;
    return BT_OK;
}

enum bt_code bt_store_add_accuracy(struct bt_store *s, const struct bt_accuracy *a,
                                   struct bt_error *err)
{
    int64_t provenance_id = 0;
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code = bt_store_add_provenance(s, &a->provenance, &provenance_id, err);
    if (code == BT_OK) {
        code = STORE_EXEC(s, BT_STMT_ADD_ACCURACY, err, BIND_TEXT("model", a->model),
                          BIND_TEXT("weights", weight_text(a->weights)),
                          BIND_TEXT("activations", act_text(a->activations)),
                          BIND_TEXT("kv", kv_text(a->kv)), BIND_TEXT("method", a->method),
                          BIND_TEXT("metric", a->metric), BIND_TEXT("unit", a->unit),
                          BIND_REAL("baseline", a->baseline), BIND_REAL("value", a->value),
                          BIND_REAL("ci95", a->ci95),
                          BIND_TEXT("kind", a->published ? "published" : "measured"),
                          BIND_INT("provenance_id", provenance_id));
    }
    return bt_store_finish(s, code, err);
}

static bool take_accuracy(void *ctx, sqlite3_stmt *row)
{
    struct loader *l = ctx;
    if (l->n == l->max) {
        return false;
    }
    struct bt_accuracy *a = &((struct bt_accuracy *)l->items)[l->n++];
    a->weights = weight_of(l, row, 0);
    a->activations = act_of(l, row, 1);
    a->kv = kv_of(l, row, 2);
    a->method = take_text(l, row, 3);
    a->metric = take_text(l, row, 4);
    a->unit = take_text(l, row, 5);
    a->baseline = sqlite3_column_double(row, 6);
    a->value = sqlite3_column_double(row, 7);
    a->ci95 =
        sqlite3_column_type(row, 8) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(row, 8);
    a->published = strcmp((const char *)sqlite3_column_text(row, 9), "published") == 0;
    a->provenance.source = take_text(l, row, 10);
    a->provenance.source_date = take_text(l, row, 11);
    return l->code == BT_OK;
}

enum bt_code bt_store_load_accuracy(struct bt_store *s, const char *model, struct bt_arena *arena,
                                    struct bt_accuracy **out, int32_t *n, struct bt_error *err)
{
    const struct bt_bind binds[] = {BIND_TEXT("model", model)};
    int64_t count = 0;
    struct bt_accuracy *items = NULL;
    BT_TRY(bt_store_count(s, BT_STMT_COUNT_ACCURACY, binds, 1, &count, err));
    BT_ARENA_ARRAY(arena, items, count, err);
    struct loader l = {
        .store = s, .arena = arena, .items = items, .max = (int32_t)count, .err = err};
    BT_TRY(bt_store_query(s, BT_STMT_LOAD_ACCURACY, binds, 1, take_accuracy, &l, err));
    BT_TRY(l.code);
    char *name = bt_arena_strdup(arena, model);
    for (int32_t i = 0; i < l.n; i++) {
        items[i].model = name;
    }
    *out = items;
    *n = l.n;
    return BT_OK;
}
