#include "sim/cost/import.h"
#include "sim/cost/table.h"

#include <string.h>

static const double us = 1e3; /* ns in time_us */
static const char OLD_TIME[] = "latency(ns)";

struct reader {
    const struct bt_import_text *file;
    const struct bt_import_opts *opts;
    struct bt_sample_set *set;
    struct bt_import_report *report;
    struct bt_table table;
    struct bt_cost_sample common;
    int32_t time;
};

/* What one rank computes of a layer for one token. */
static enum bt_code layer_shape(const struct reader *r, const char *layer, struct bt_cost_sample *s,
                                struct bt_error *err)
{
    const struct bt_arch *a = r->opts->arch;
    int64_t tp = r->opts->tp > 0 ? r->opts->tp : 1;
    int64_t q = (int64_t)a->n_heads * a->head_dim / tp;
    int64_t kv = (int64_t)a->n_kv_heads * a->head_dim / tp;
    int64_t mlp = a->intermediate / tp;
    const struct {
        const char *name;
        enum bt_op op;
        int64_t n, k; /* k: GEMM only */
    } layers[] = {
        {"qkv_proj", BT_OP_GEMM, q + 2 * kv, a->hidden},
        {"o_proj", BT_OP_GEMM, a->hidden, q},
        {"gate_up_proj", BT_OP_GEMM, 2 * mlp, a->hidden},
        {"down_proj", BT_OP_GEMM, a->hidden, mlp},
        {"lm_head", BT_OP_GEMM, a->vocab / tp, a->hidden},
        {"act_fn", BT_OP_ACTIVATION, mlp, 0},
        {"layernorm", BT_OP_NORM, a->hidden, 0},
        {"final_layernorm", BT_OP_NORM, a->hidden, 0},
        {"rotary_emb", BT_OP_ROPE, q + kv, 0},
        {"embedding", BT_OP_EMBEDDING, a->hidden, 0},
        {"sampler", BT_OP_SAMPLE, a->vocab, 0},
        /* of the first profiler's layers.csv */
        {"q_proj", BT_OP_GEMM, q, a->hidden},
        {"k_proj", BT_OP_GEMM, kv, a->hidden},
        {"v_proj", BT_OP_GEMM, kv, a->hidden},
        {"gate_proj", BT_OP_GEMM, mlp, a->hidden},
        {"up_proj", BT_OP_GEMM, mlp, a->hidden},
        {"input_layernorm", BT_OP_NORM, a->hidden, 0},
        {"post_layernorm", BT_OP_NORM, a->hidden, 0},
        {"rope", BT_OP_ROPE, q + kv, 0},
    };
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        if (strcmp(layer, layers[i].name) == 0) {
            s->op = layers[i].op;
            s->shape.n = layers[i].n;
            s->shape.k = layers[i].k;
            s->format.activations = r->opts->format;
            s->format.weights = s->op == BT_OP_GEMM ? r->opts->format : BT_NUM_NONE;
            s->kernel = bt_sample_set_intern(r->set, layer);
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, r->table.line,
            "%s:%d: layer \"%s\", expected qkv_proj (or q_proj, k_proj, v_proj), o_proj, "
            "gate_up_proj (or gate_proj, up_proj), down_proj, lm_head, act_fn, layernorm, "
            "final_layernorm, rotary_emb, embedding or sampler",
            r->table.name, r->table.line, layer);
}

static enum bt_code add_row(struct reader *r, struct bt_cost_sample *s, struct bt_error *err)
{
    double time = 0;
    BT_TRY(bt_table_real(&r->table, r->time, &time, err));
    s->line = r->table.line;
    r->report->n_rows++;
    return bt_import_add(r->file, r->opts, r->set, s, time, us, r->report, err);
}

static enum bt_code read_layers(struct reader *r, const char *count, struct bt_error *err)
{
    const char *const known[] = {"layer", count, "time_us", NULL};
    BT_TRY(bt_table_check_columns(&r->table, known, err));
    int32_t layer = 0;
    int32_t tokens = 0;
    BT_TRY(bt_table_require(&r->table, "layer", &layer, err));
    BT_TRY(bt_table_require(&r->table, count, &tokens, err));
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(&r->table, &more, err));
        if (!more) {
            return BT_OK;
        }
        struct bt_cost_sample s = r->common;
        BT_TRY(layer_shape(r, bt_table_text(&r->table, layer), &s, err));
        if (s.kernel == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a layer's name", r->file->name);
        }
        BT_TRY(bt_table_int(&r->table, tokens, 1, 1 << 30, &s.shape.m, err));
        BT_TRY(add_row(r, &s, err));
    }
}

/* The first profiler's layers.csv: nanoseconds, products apart, and attention of a single sequence
 * that its attention.csv (Vidur's form) has better. */
static enum bt_code read_old_layers(struct reader *r, struct bt_error *err)
{
    static const char *const known[] = {"layer_name", "input",  "kv_cache",
                                        "tp_size",    OLD_TIME, NULL};
    struct bt_table *t = &r->table;
    int32_t layer = 0, tokens = 0, tp = 0;
    BT_TRY(bt_table_check_columns(t, known, err));
    BT_TRY(bt_table_require(t, "layer_name", &layer, err));
    BT_TRY(bt_table_require(t, "input", &tokens, err));
    BT_TRY(bt_table_require(t, "tp_size", &tp, err));
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(t, &more, err));
        if (!more) {
            return BT_OK;
        }
        int64_t ranks = 0;
        int64_t asked = r->opts->tp > 0 ? r->opts->tp : 1;
        BT_TRY(bt_table_int(t, tp, 1, 1 << 10, &ranks, err));
        if (ranks != asked) {
            BT_FAIL(err, BT_ERR_INPUT, t->line,
                    "%s:%d: tp_size %lld, expected %lld as the path or --tp says", t->name, t->line,
                    (long long)ranks, (long long)asked);
        }
        if (strcmp(bt_table_text(t, layer), "attn") == 0) {
            continue;
        }
        struct bt_cost_sample s = r->common;
        BT_TRY(layer_shape(r, bt_table_text(t, layer), &s, err));
        if (s.kernel == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a layer's name", r->file->name);
        }
        BT_TRY(bt_table_int(t, tokens, 1, 1 << 30, &s.shape.m, err));
        double time = 0;
        BT_TRY(bt_table_real(t, r->time, &time, err));
        s.line = t->line;
        r->report->n_rows++;
        BT_TRY(bt_import_add(r->file, r->opts, r->set, &s, time, 1, r->report, err));
    }
}

static enum bt_code read_attention(struct reader *r, struct bt_error *err)
{
    static const char *const known[] = {"prefill_chunk", "kv_prefill", "n_decode",
                                        "kv_decode",     "time_us",    NULL};
    const struct bt_table *t = &r->table;
    const struct bt_arch *a = r->opts->arch;
    int64_t tp = r->opts->tp > 0 ? r->opts->tp : 1;
    BT_TRY(bt_table_check_columns(t, known, err));
    int32_t chunk = 0;
    int32_t prefix = 0;
    int32_t decodes = 0;
    int32_t ctx = 0;
    BT_TRY(bt_table_require(t, "prefill_chunk", &chunk, err));
    BT_TRY(bt_table_require(t, "kv_prefill", &prefix, err));
    BT_TRY(bt_table_require(t, "n_decode", &decodes, err));
    BT_TRY(bt_table_require(t, "kv_decode", &ctx, err));
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(&r->table, &more, err));
        if (!more) {
            return BT_OK;
        }
        struct bt_cost_sample s = r->common;
        s.op = BT_OP_ATTN_MIXED;
        s.format.activations = r->opts->format;
        s.format.kv = r->opts->format;
        s.shape.heads = a->n_heads / tp;
        s.shape.kv_heads = a->n_kv_heads > tp ? a->n_kv_heads / tp : 1;
        s.shape.head_dim = a->head_dim;
        BT_TRY(bt_table_int(t, chunk, 0, 1 << 30, &s.shape.q_len, err));
        BT_TRY(bt_table_int(t, prefix, 0, 1 << 30, &s.shape.prefix, err));
        BT_TRY(bt_table_int(t, decodes, 0, 1 << 20, &s.shape.batch, err));
        BT_TRY(bt_table_int(t, ctx, 0, 1 << 30, &s.shape.ctx, err));
        if (s.shape.q_len == 0 && s.shape.batch == 0) {
            BT_FAIL(err, BT_ERR_INPUT, t->line,
                    "%s:%d: neither a prefill chunk nor a decode: expected one above 0", t->name,
                    t->line);
        }
        BT_TRY(add_row(r, &s, err));
    }
}

static enum bt_code read_table(struct reader *r, struct bt_error *err)
{
    const struct bt_table *t = &r->table;
    if (bt_table_find(t, "layer_name") >= 0) {
        BT_TRY(bt_table_require(t, OLD_TIME, &r->time, err));
        return read_old_layers(r, err);
    }
    if (bt_table_find(t, "prefill_chunk") < 0 && bt_table_find(t, "layer") < 0) {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: not an LLMServingSim profile: expected a column layer, layer_name or "
                "prefill_chunk",
                t->name, t->line);
    }
    if (bt_table_find(t, "time_us") < 0) {
        static const char *const any[] = {"layer",      "tokens",   "sequences", "prefill_chunk",
                                          "kv_prefill", "n_decode", "kv_decode", NULL};
        BT_TRY(bt_table_check_columns(t, any, err));
    }
    BT_TRY(bt_table_require(t, "time_us", &r->time, err));
    if (bt_table_find(t, "prefill_chunk") >= 0) {
        return read_attention(r, err);
    }
    return read_layers(r, bt_table_find(t, "sequences") >= 0 ? "sequences" : "tokens", err);
}

enum bt_code bt_import_llmservingsim(const struct bt_import_text *file,
                                     const struct bt_import_opts *opts, struct bt_sample_set *set,
                                     struct bt_import_report *report, struct bt_error *err)
{
    int64_t first = set->n_samples;
    struct reader r = {.file = file, .opts = opts, .set = set, .report = report};
    memset(report, 0, sizeof *report);
    BT_TRY(bt_import_begin(opts, set, &r.common, err));
    if (opts->arch == NULL || !bt_num_is_float(opts->format)) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "import: an LLMServingSim profile needs the model that was profiled and its "
                "format (fp32, fp16, bf16)");
    }
    BT_TRY(bt_table_open(&r.table, file->text, file->size_bytes, file->name, err));
    enum bt_code code = read_table(&r, err);
    if (code == BT_OK) {
        code = bt_import_finish(file, opts, set, first, report, err);
    }
    if (code != BT_OK) {
        set->n_samples = first;
    }
    bt_table_close(&r.table);
    return code;
}
