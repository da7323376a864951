#include "sim/cost/import.h"
#include "sim/cost/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double ms = 1e6; /* ns in every time_stats column */

/* The model's dimensions on one rank, from the row itself. */
struct dims {
    int64_t tokens, hidden, heads, kv_heads, head_dim, mlp;
    int64_t gated; /* 1 or 0 */
};

struct reader {
    const struct bt_import_text *file;
    const struct bt_import_opts *opts;
    struct bt_sample_set *set;
    struct bt_import_report *report;
    struct bt_table table;
    struct bt_cost_sample common;
    enum bt_num format;
};

static const char stats_prefix[] = "time_stats.";

/* Columns that describe the run but do not change a shape. */
static const char *const ignored[] = {
    "use_qk_norm",
    "attn_output_gate",
    "padded_n_embd",
    "model_arch",
    "padded_n_expanded_embd",
    "is_step2_mini",
    "share_expert_dim",
    "share_q_dim",
    "measurement_type",
    "quant_signature",
    "profiling_precision",
    "model_architecture_profile",
    "vocab_size",
    "block_size",
    "max_model_len",
    "attention_backend",
    "is_mixed_batch",
    "mode",
    "seq_lens",
    "total_tokens",
    "max_seq_len",
    "min_seq_len",
    "avg_seq_len",
    "equal_seq_len",
    "seq_len_variance",
    "seq_len_std",
    "seq_len_cv",
    "chunk_start_token",
    "chunk_end_token",
    "is_chunked_prefill_sample",
    "prefill_seq_lens",
    "prefill_kv_cache_sizes",
    "decode_kv_cache_sizes",
    "total_batch_size",
    "total_decode_tokens",
    "batch_composition_ratio",
    "decode_batch_size",
};
static const char *const used[] = {
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "use_gated_mlp",
    "num_tokens",
    "n_q_head",
    "batch_size",
    "num_tensor_parallel_workers",
    "kv_cache_size",
    "is_prefill",
    "prefill_chunk_size",
    "num_prefill_seqs",
    "total_prefill_tokens",
    "num_decode_seqs",
    "is_true_mixed_batch",
    "decode_avg_kv_cache_size",
};
static const char *const operations[] = {
    "emb",
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "mlp_act",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_down_proj",
    "add",
    "attn_prefill",
    "attn_decode",
    "post_attention_layernorm",
    "attn_input_reshape",
    "attn_kv_cache_save",
    "attn_output_reshape",
};
static const char *const statistics[] = {"min", "max", "mean", "median", "std", "count"};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool is_listed(const char *name, size_t length, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(list[i]) == length && memcmp(list[i], name, length) == 0) {
            return true;
        }
    }
    return false;
}

static enum bt_code check_columns(const struct bt_table *t, struct bt_error *err)
{
    for (int32_t i = 0; i < t->n_columns; i++) {
        const char *name = t->columns[i];
        bool known = is_listed(name, strlen(name), ignored, COUNT(ignored)) ||
                     is_listed(name, strlen(name), used, COUNT(used));
        if (strncmp(name, stats_prefix, sizeof stats_prefix - 1) == 0) {
            const char *op = name + sizeof stats_prefix - 1;
            const char *dot = strrchr(op, '.');
            known = dot != NULL &&
                    is_listed(op, (size_t)(dot - op), operations, COUNT(operations)) &&
                    is_listed(dot + 1, strlen(dot + 1), statistics, COUNT(statistics));
        }
        if (!known) {
            BT_FAIL(err, BT_ERR_INPUT, t->line,
                    "%s:%d: unknown column \"%s\"; a Vidur profile has time_stats.OP.{min, max, "
                    "mean, median, std, count} in ms, num_tokens, n_embd, n_head, ...",
                    t->name, t->line, name);
        }
    }
    return BT_OK;
}

/* Adds time_stats.OP as `op` of shape; a field left empty was not measured. */
static enum bt_code add_op(struct reader *r, const char *name, enum bt_op op,
                           const struct bt_op_shape *shape, struct bt_error *err)
{
    struct bt_table *t = &r->table;
    char column[96];
    (void)snprintf(column, sizeof column, "%s%s.median", stats_prefix, name);
    int32_t median = bt_table_find(t, column);
    if (median < 0 || bt_table_text(t, median)[0] == '\0') {
        return BT_OK;
    }
    struct bt_cost_sample s = r->common;
    s.op = op;
    s.shape = *shape;
    s.line = t->line;
    s.format.activations = r->format;
    s.format.weights = op == BT_OP_GEMM ? r->format : BT_NUM_NONE;
    bool attends = op == BT_OP_ATTN_PREFILL || op == BT_OP_ATTN_DECODE || op == BT_OP_ATTN_MIXED;
    s.format.kv = attends ? r->format : BT_NUM_NONE;
    s.kernel = bt_sample_set_intern(r->set, name);
    if (s.kernel == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for an operation's name", r->file->name);
    }
    double time = 0;
    double spread = 0;
    BT_TRY(bt_table_real(t, median, &time, err));
    (void)snprintf(column, sizeof column, "%s%s.std", stats_prefix, name);
    int32_t std = bt_table_find(t, column);
    if (std >= 0 && bt_table_text(t, std)[0] != '\0') {
        BT_TRY(bt_table_real(t, std, &spread, err));
        s.spread_ns = (int64_t)llround(fabs(spread) * ms);
    }
    return bt_import_add(r->file, r->opts, r->set, &s, time, ms, r->report, err);
}

static enum bt_code named_int(const struct bt_table *t, const char *column, int64_t min,
                              int64_t *out, struct bt_error *err)
{
    int32_t c = 0;
    BT_TRY(bt_table_require(t, column, &c, err));
    return bt_table_int(t, c, min, 1 << 30, out, err);
}

static enum bt_code named_bool(const struct bt_table *t, const char *column, bool *out,
                               struct bt_error *err)
{
    int32_t c = bt_table_find(t, column);
    const char *text = c < 0 ? "" : bt_table_text(t, c);
    *out = strcmp(text, "True") == 0;
    if (!*out && text[0] != '\0' && strcmp(text, "False") != 0) {
        BT_FAIL(err, BT_ERR_INPUT, t->line, "%s:%d: %s \"%s\", expected True or False", t->name,
                t->line, column, text);
    }
    return BT_OK;
}

static enum bt_code read_dims(const struct bt_table *t, const char *heads_column, struct dims *d,
                              struct bt_error *err)
{
    int64_t tp = 0;
    int64_t heads = 0;
    int64_t kv_heads = 0;
    BT_TRY(named_int(t, "num_tensor_parallel_workers", 1, &tp, err));
    BT_TRY(named_int(t, "n_embd", 1, &d->hidden, err));
    BT_TRY(named_int(t, heads_column, 1, &heads, err));
    BT_TRY(named_int(t, "n_kv_head", 1, &kv_heads, err));
    if (heads % tp != 0 || d->hidden % heads != 0) {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: %lld heads do not divide by %lld workers, or n_embd %lld by them", t->name,
                t->line, (long long)heads, (long long)tp, (long long)d->hidden);
    }
    d->head_dim = d->hidden / heads;
    d->heads = heads / tp;
    d->kv_heads = kv_heads > tp ? kv_heads / tp : 1;
    if (bt_table_find(t, "n_expanded_embd") >= 0) {
        bool gated = false;
        BT_TRY(named_int(t, "n_expanded_embd", 1, &d->mlp, err));
        BT_TRY(named_bool(t, "use_gated_mlp", &gated, err));
        d->mlp /= tp;
        d->gated = gated;
    }
    return BT_OK;
}

static enum bt_code read_linear_row(struct reader *r, struct bt_error *err)
{
    struct dims d = {0};
    BT_TRY(read_dims(&r->table, "n_head", &d, err));
    BT_TRY(named_int(&r->table, "num_tokens", 1, &d.tokens, err));
    int64_t q = d.heads * d.head_dim;
    int64_t kv = d.kv_heads * d.head_dim;
    const struct {
        const char *name;
        enum bt_op op;
        int64_t n, k;
    } ops[] = {
        {"attn_pre_proj", BT_OP_GEMM, q + 2 * kv, d.hidden},
        {"attn_post_proj", BT_OP_GEMM, d.hidden, q},
        {"mlp_up_proj", BT_OP_GEMM, (1 + d.gated) * d.mlp, d.hidden},
        {"mlp_down_proj", BT_OP_GEMM, d.hidden, d.mlp},
        {"input_layernorm", BT_OP_NORM, d.hidden, 0},
        {"post_attention_layernorm", BT_OP_NORM, d.hidden, 0},
        {"mlp_act", BT_OP_ACTIVATION, d.mlp, 0},
        {"attn_rope", BT_OP_ROPE, q + kv, 0},
        {"emb", BT_OP_EMBEDDING, d.hidden, 0},
        {"add", BT_OP_ADD, d.hidden, 0},
    };
    for (size_t i = 0; i < COUNT(ops); i++) {
        struct bt_op_shape shape = {.m = d.tokens, .n = ops[i].n, .k = ops[i].k};
        BT_TRY(add_op(r, ops[i].name, ops[i].op, &shape, err));
    }
    return BT_OK;
}

/* One prefill batch of equal chunks, with or without KV before them. */
static enum bt_code add_prefill(struct reader *r, const struct dims *d, int64_t batch, int64_t q,
                                int64_t prefix, struct bt_error *err)
{
    struct bt_op_shape s = {.batch = batch,
                            .q_len = q,
                            .prefix = prefix,
                            .heads = d->heads,
                            .kv_heads = d->kv_heads,
                            .head_dim = d->head_dim};
    if (prefix == 0) {
        return add_op(r, "attn_prefill", BT_OP_ATTN_PREFILL, &s, err);
    }
    if (batch != 1) {
        return BT_OK; /* several chunks with KV before them: no operation of ours has that shape */
    }
    s.batch = 0;
    return add_op(r, "attn_prefill", BT_OP_ATTN_MIXED, &s, err);
}

static enum bt_code add_decode(struct reader *r, const struct dims *d, int64_t batch,
                               int64_t cached, struct bt_error *err)
{
    struct bt_op_shape s = {.batch = batch,
                            .ctx = cached + 1,
                            .heads = d->heads,
                            .kv_heads = d->kv_heads,
                            .head_dim = d->head_dim};
    return add_op(r, "attn_decode", BT_OP_ATTN_DECODE, &s, err);
}

static enum bt_code read_attention_row(struct reader *r, struct bt_error *err)
{
    const struct bt_table *t = &r->table;
    struct dims d = {0};
    bool mixed = false;
    bool prefill = false;
    BT_TRY(read_dims(t, bt_table_find(t, "n_q_head") >= 0 ? "n_q_head" : "n_head", &d, err));
    BT_TRY(named_bool(t, "is_true_mixed_batch", &mixed, err));
    BT_TRY(named_bool(t, "is_prefill", &prefill, err));
    int64_t batch = 0;
    int64_t q = 0;
    int64_t cached = 0;
    if (mixed) {
        /* One launch for the prefills, one for the decodes, each timed: two samples. */
        int64_t tokens = 0;
        BT_TRY(named_int(t, "num_prefill_seqs", 1, &batch, err));
        BT_TRY(named_int(t, "total_prefill_tokens", 1, &tokens, err));
        if (tokens % batch == 0) {
            BT_TRY(add_prefill(r, &d, batch, tokens / batch, 0, err));
        }
        BT_TRY(named_int(t, "num_decode_seqs", 1, &batch, err));
        BT_TRY(named_int(t, "decode_avg_kv_cache_size", 0, &cached, err));
        return add_decode(r, &d, batch, cached, err);
    }
    BT_TRY(named_int(t, "batch_size", 1, &batch, err));
    BT_TRY(named_int(t, "kv_cache_size", 0, &cached, err));
    BT_TRY(named_int(t, "prefill_chunk_size", 0, &q, err));
    if (prefill) {
        BT_TRY(add_prefill(r, &d, batch, q, cached, err));
    } else {
        BT_TRY(add_decode(r, &d, batch, cached, err));
    }
    struct bt_op_shape save = {.m = batch * (prefill ? q : 1), .n = 2 * d.kv_heads * d.head_dim};
    return add_op(r, "attn_kv_cache_save", BT_OP_KV_WRITE, &save, err);
}

static enum bt_code read_precision(struct reader *r, struct bt_error *err)
{
    const struct bt_table *t = &r->table;
    int32_t column = bt_table_find(t, "profiling_precision");
    r->format = r->opts->format != BT_NUM_NONE ? r->opts->format : BT_NUM_FP16;
    if (column < 0) {
        return BT_OK;
    }
    const char *text = bt_table_text(t, column);
    if (strcmp(text, "FP16") == 0) {
        r->format = BT_NUM_FP16;
    } else if (strcmp(text, "BF16") == 0) {
        r->format = BT_NUM_BF16;
    } else {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: profiling_precision \"%s\", expected FP16 or BF16", t->name, t->line, text);
    }
    return BT_OK;
}

static enum bt_code read_table(struct reader *r, struct bt_error *err)
{
    const struct bt_table *t = &r->table;
    BT_TRY(check_columns(t, err));
    bool linear = bt_table_find(t, "num_tokens") >= 0;
    if (!linear && bt_table_find(t, "prefill_chunk_size") < 0) {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: not a Vidur profile: expected a column num_tokens or prefill_chunk_size",
                t->name, t->line);
    }
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(&r->table, &more, err));
        if (!more) {
            return BT_OK;
        }
        r->report->n_rows++;
        BT_TRY(read_precision(r, err));
        BT_TRY(linear ? read_linear_row(r, err) : read_attention_row(r, err));
    }
}

enum bt_code bt_import_vidur(const struct bt_import_text *file, const struct bt_import_opts *opts,
                             struct bt_sample_set *set, struct bt_import_report *report,
                             struct bt_error *err)
{
    int64_t first = set->n_samples;
    struct reader r = {.file = file, .opts = opts, .set = set, .report = report};
    memset(report, 0, sizeof *report);
    BT_TRY(bt_import_begin(opts, set, &r.common, err));
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
