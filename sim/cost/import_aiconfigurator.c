#include "sim/cost/import.h"
#include "sim/cost/table.h"

#include <string.h>

/* Columns of the collector's own files that say what was run, not what took how long. */
#define RUN_COLUMNS "framework", "version", "device"

static const double ms = 1e6; /* ns in the unit of every aiconfigurator latency */

struct reader {
    const struct bt_import_text *file;
    const struct bt_import_opts *opts;
    struct bt_sample_set *set;
    struct bt_import_report *report;
    struct bt_table table;
    struct bt_cost_sample common;
    int32_t latency;
    int32_t kernel; /* -1: the file has no kernel_source */
};

struct format_name {
    const char *name;
    struct bt_op_format format;
};

/* sq is TensorRT-LLM's SmoothQuant: scales a channel and a token, quantisation not timed. */
static const struct format_name gemm_formats[] = {
    {"bfloat16", {BT_NUM_BF16, BT_NUM_BF16, BT_NUM_NONE}},
    {"float16", {BT_NUM_FP16, BT_NUM_FP16, BT_NUM_NONE}},
    {"fp8", {BT_NUM_FP8, BT_NUM_FP8, BT_NUM_NONE}},
    {"fp8_block", {BT_NUM_FP8_BLOCK, BT_NUM_FP8, BT_NUM_NONE}},
    {"int8_wo", {BT_NUM_INT8, BT_NUM_BF16, BT_NUM_NONE}},
    {"int4_wo", {BT_NUM_INT4_CHANNEL, BT_NUM_BF16, BT_NUM_NONE}},
    {"sq", {BT_NUM_INT8, BT_NUM_INT8, BT_NUM_NONE}},
};

static enum bt_code parse_gemm_format(const struct bt_table *t, int32_t column,
                                      struct bt_op_format *out, struct bt_error *err)
{
    const char *text = bt_table_text(t, column);
    for (size_t i = 0; i < sizeof gemm_formats / sizeof gemm_formats[0]; i++) {
        if (strcmp(text, gemm_formats[i].name) == 0) {
            *out = gemm_formats[i].format;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, t->line,
            "%s:%d: gemm_dtype \"%s\", expected bfloat16, float16, fp8, fp8_block, int8_wo, "
            "int4_wo or sq",
            t->name, t->line, text);
}

static enum bt_code parse_num(const struct bt_table *t, int32_t column, enum bt_num *out,
                              struct bt_error *err)
{
    const char *text = bt_table_text(t, column);
    static const struct {
        const char *name;
        enum bt_num value;
    } names[] = {{"bfloat16", BT_NUM_BF16},
                 {"half", BT_NUM_FP16},
                 {"float16", BT_NUM_FP16},
                 {"fp8", BT_NUM_FP8},
                 {"int8", BT_NUM_INT8}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i].name) == 0) {
            *out = names[i].value;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, t->line,
            "%s:%d: %s \"%s\", expected bfloat16, half, float16, fp8 or int8", t->name, t->line,
            t->columns[column], text);
}

/* Adds the sample with the row's latency and kernel. */
static enum bt_code add_row(struct reader *r, struct bt_cost_sample *s, struct bt_error *err)
{
    double latency = 0;
    BT_TRY(bt_table_real(&r->table, r->latency, &latency, err));
    s->line = r->table.line;
    if (r->kernel >= 0) {
        s->kernel = bt_sample_set_intern(r->set, bt_table_text(&r->table, r->kernel));
        if (s->kernel == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a kernel's name", r->file->name);
        }
    }
    r->report->n_rows++;
    return bt_import_add(r->file, r->opts, r->set, s, latency, ms, r->report, err);
}

enum { SIZE_MAX_SHAPE = 1 << 30 };

static enum bt_code read_gemm(struct reader *r, struct bt_error *err)
{
    static const char *const known[] = {"op_name", "kernel_source", "gemm_dtype", "m", "n",
                                        "k",       "latency",       RUN_COLUMNS,  NULL};
    BT_TRY(bt_table_check_columns(&r->table, known, err));
    int32_t dtype = 0;
    int32_t m = 0;
    int32_t n = 0;
    int32_t k = 0;
    BT_TRY(bt_table_require(&r->table, "gemm_dtype", &dtype, err));
    BT_TRY(bt_table_require(&r->table, "m", &m, err));
    BT_TRY(bt_table_require(&r->table, "n", &n, err));
    BT_TRY(bt_table_require(&r->table, "k", &k, err));
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(&r->table, &more, err));
        if (!more) {
            return BT_OK;
        }
        struct bt_cost_sample s = r->common;
        s.op = BT_OP_GEMM;
        BT_TRY(parse_gemm_format(&r->table, dtype, &s.format, err));
        BT_TRY(bt_table_int(&r->table, m, 1, SIZE_MAX_SHAPE, &s.shape.m, err));
        BT_TRY(bt_table_int(&r->table, n, 1, SIZE_MAX_SHAPE, &s.shape.n, err));
        BT_TRY(bt_table_int(&r->table, k, 1, SIZE_MAX_SHAPE, &s.shape.k, err));
        BT_TRY(add_row(r, &s, err));
    }
}

struct attention_columns {
    int32_t batch, isl, heads, kv_heads, head_dim, attn_dtype, kv_dtype, step;
};

/* step counts generated tokens: 0 is a prefill of isl tokens; a decode step's sequence holds
 * isl (1 where the column is absent) + step tokens. */
static enum bt_code read_attention_row(struct reader *r, const struct attention_columns *c,
                                       struct bt_cost_sample *s, struct bt_error *err)
{
    const struct bt_table *t = &r->table;
    int64_t isl = 1;
    int64_t step = 0;
    BT_TRY(bt_table_int(t, c->batch, 1, SIZE_MAX_SHAPE, &s->shape.batch, err));
    BT_TRY(bt_table_int(t, c->heads, 1, 4096, &s->shape.heads, err));
    BT_TRY(bt_table_int(t, c->kv_heads, 1, s->shape.heads, &s->shape.kv_heads, err));
    BT_TRY(bt_table_int(t, c->head_dim, 1, 4096, &s->shape.head_dim, err));
    BT_TRY(bt_table_int(t, c->step, 0, SIZE_MAX_SHAPE, &step, err));
    BT_TRY(parse_num(t, c->attn_dtype, &s->format.activations, err));
    BT_TRY(parse_num(t, c->kv_dtype, &s->format.kv, err));
    if (c->isl >= 0) {
        BT_TRY(bt_table_int(t, c->isl, 1, SIZE_MAX_SHAPE, &isl, err));
    }
    if (s->shape.heads % s->shape.kv_heads != 0) {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: num_heads %lld is no multiple of num_key_value_heads %lld", t->name,
                t->line, (long long)s->shape.heads, (long long)s->shape.kv_heads);
    }
    if (step == 0) {
        s->op = BT_OP_ATTN_PREFILL;
        s->shape.q_len = isl;
    } else {
        s->op = BT_OP_ATTN_DECODE;
        s->shape.ctx = isl + step;
    }
    return add_row(r, s, err);
}

static enum bt_code read_attention(struct reader *r, struct bt_error *err)
{
    static const char *const known[] = {"op_name",        "kernel_source",
                                        "batch_size",     "isl",
                                        "num_heads",      "num_key_value_heads",
                                        "head_dim",       "attn_dtype",
                                        "kv_cache_dtype", "step",
                                        "beam_width",     "latency",
                                        RUN_COLUMNS,      NULL};
    const struct bt_table *t = &r->table;
    BT_TRY(bt_table_check_columns(t, known, err));
    struct attention_columns c = {.isl = bt_table_find(t, "isl")};
    BT_TRY(bt_table_require(t, "batch_size", &c.batch, err));
    BT_TRY(bt_table_require(t, "num_heads", &c.heads, err));
    BT_TRY(bt_table_require(t, "num_key_value_heads", &c.kv_heads, err));
    BT_TRY(bt_table_require(t, "head_dim", &c.head_dim, err));
    BT_TRY(bt_table_require(t, "attn_dtype", &c.attn_dtype, err));
    BT_TRY(bt_table_require(t, "kv_cache_dtype", &c.kv_dtype, err));
    BT_TRY(bt_table_require(t, "step", &c.step, err));
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(&r->table, &more, err));
        if (!more) {
            return BT_OK;
        }
        struct bt_cost_sample s = r->common;
        BT_TRY(read_attention_row(r, &c, &s, err));
    }
}

static enum bt_code parse_collective(const char *text, const char *where, int32_t line,
                                     enum bt_op *out, struct bt_error *err)
{
    static const struct {
        const char *name;
        enum bt_op op;
    } names[] = {{"all_reduce", BT_OP_ALLREDUCE},
                 {"allreduce", BT_OP_ALLREDUCE},
                 {"all_gather", BT_OP_ALLGATHER},
                 {"allgather", BT_OP_ALLGATHER},
                 {"reduce_scatter", BT_OP_REDUCESCATTER},
                 {"reducescatter", BT_OP_REDUCESCATTER},
                 {"alltoall", BT_OP_ALLTOALL}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i].name) == 0) {
            *out = names[i].op;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, line,
            "%s:%d: collective \"%s\", expected all_gather, alltoall, reduce_scatter or all_reduce",
            where, line, text);
}

enum { COLLECTIVES_MAX = 4 };

struct collective_blocks {
    enum bt_op order[COLLECTIVES_MAX];
    int32_t n;
    int32_t current;  /* block that the row is in; -1 before the first */
    int64_t ranks;    /* of the current block */
    enum bt_num num;  /* of the last row */
    int64_t elements; /* of the last row */
};

static enum bt_code parse_order(const char *text, const char *where, struct collective_blocks *b,
                                struct bt_error *err)
{
    while (*text != '\0') {
        char word[32] = {0};
        size_t length = strcspn(text, ",");
        if (length >= sizeof word || b->n == COLLECTIVES_MAX) {
            BT_FAIL(err, BT_ERR_ARG, 0, "%s: collective order \"%s\", expected at most %d names",
                    where, text, COLLECTIVES_MAX);
        }
        memcpy(word, text, length);
        BT_TRY(parse_collective(word, where, 0, &b->order[b->n], err));
        b->n++;
        text += length + (text[length] == ',');
    }
    return BT_OK;
}

/* Without op_name a file is a run of blocks: sizes rise through the 16-bit rows, then through the
 * int8 rows, of one collective; then the next collective starts. */
static enum bt_code block_of_row(const struct bt_table *t, struct collective_blocks *b,
                                 const struct bt_cost_sample *s, enum bt_num num, int64_t elements,
                                 enum bt_op *out, struct bt_error *err)
{
    bool new_ranks = b->current < 0 || s->shape.ranks != b->ranks;
    bool same_kind = !new_ranks && num == b->num;
    if (new_ranks) {
        b->current = 0;
    } else if ((same_kind && elements <= b->elements) || (!same_kind && num != BT_NUM_INT8)) {
        b->current++;
    }
    b->ranks = s->shape.ranks;
    b->num = num;
    b->elements = elements;
    if (b->current >= b->n) {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: block %d of %lld ranks, but the collective order names %d", t->name,
                t->line, b->current + 1, (long long)b->ranks, b->n);
    }
    *out = b->order[b->current];
    return BT_OK;
}

static enum bt_code read_collective(struct reader *r, const char *dtype_name, struct bt_error *err)
{
    static const char *const known[] = {
        "kernel_source", "op_name", "nccl_dtype", "allreduce_dtype", "num_gpus",
        "message_size",  "latency", "backend",    RUN_COLUMNS,       NULL};
    const struct bt_table *t = &r->table;
    BT_TRY(bt_table_check_columns(t, known, err));
    int32_t op_name = bt_table_find(t, "op_name");
    int32_t dtype = 0;
    int32_t gpus = 0;
    int32_t size = 0;
    BT_TRY(bt_table_require(t, dtype_name, &dtype, err));
    BT_TRY(bt_table_require(t, "num_gpus", &gpus, err));
    BT_TRY(bt_table_require(t, "message_size", &size, err));
    bool is_custom = strcmp(dtype_name, "allreduce_dtype") == 0;
    struct collective_blocks blocks = {.current = -1};
    if (!is_custom && op_name < 0) {
        if (r->opts->collective_order == NULL) {
            BT_FAIL(err, BT_ERR_INPUT, t->line,
                    "%s:%d: no op_name column: its blocks are different collectives; say which, in "
                    "order (--collective-order)",
                    t->name, t->line);
        }
        BT_TRY(parse_order(r->opts->collective_order, t->name, &blocks, err));
    }
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(&r->table, &more, err));
        if (!more) {
            return BT_OK;
        }
        struct bt_cost_sample s = r->common;
        int64_t elements = 0;
        enum bt_num num = BT_NUM_NONE;
        BT_TRY(parse_num(t, dtype, &num, err));
        BT_TRY(bt_table_int(t, gpus, 2, 1 << 20, &s.shape.ranks, err));
        BT_TRY(bt_table_int(t, size, 1, INT64_C(1) << 40, &elements, err));
        s.format.activations = num;
        s.shape.bytes = (int64_t)((double)elements * bt_num_bits(num) / 8);
        if (is_custom) {
            s.op = BT_OP_ALLREDUCE;
        } else if (op_name >= 0) {
            BT_TRY(parse_collective(bt_table_text(t, op_name), t->name, t->line, &s.op, err));
        } else {
            BT_TRY(block_of_row(t, &blocks, &s, num, elements, &s.op, err));
        }
        BT_TRY(add_row(r, &s, err));
    }
}

static enum bt_code read_computescale(struct reader *r, struct bt_error *err)
{
    static const char *const known[] = {"op_name", "m", "k", "quant_dtype", "latency", NULL};
    const struct bt_table *t = &r->table;
    BT_TRY(bt_table_check_columns(t, known, err));
    int32_t dtype = 0;
    int32_t m = 0;
    int32_t k = 0;
    BT_TRY(bt_table_require(t, "quant_dtype", &dtype, err));
    BT_TRY(bt_table_require(t, "m", &m, err));
    BT_TRY(bt_table_require(t, "k", &k, err));
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(&r->table, &more, err));
        if (!more) {
            return BT_OK;
        }
        struct bt_cost_sample s = r->common;
        s.op = BT_OP_QUANTIZE;
        BT_TRY(parse_num(t, dtype, &s.format.activations, err));
        BT_TRY(bt_table_int(t, m, 1, SIZE_MAX_SHAPE, &s.shape.m, err));
        BT_TRY(bt_table_int(t, k, 1, SIZE_MAX_SHAPE, &s.shape.n, err));
        BT_TRY(add_row(r, &s, err));
    }
}

static enum bt_code read_table(struct reader *r, struct bt_error *err)
{
    const struct bt_table *t = &r->table;
    r->kernel = bt_table_find(t, "kernel_source");
    enum bt_code (*rows)(struct reader *, struct bt_error *) = NULL;
    const char *collective = NULL;
    if (bt_table_find(t, "gemm_dtype") >= 0) {
        rows = read_gemm;
    } else if (bt_table_find(t, "attn_dtype") >= 0) {
        rows = read_attention;
    } else if (bt_table_find(t, "quant_dtype") >= 0) {
        rows = read_computescale;
    } else if (bt_table_find(t, "nccl_dtype") >= 0) {
        collective = "nccl_dtype";
    } else if (bt_table_find(t, "allreduce_dtype") >= 0) {
        collective = "allreduce_dtype";
    } else {
        BT_FAIL(err, BT_ERR_INPUT, t->line,
                "%s:%d: not an aiconfigurator table: expected a column gemm_dtype, attn_dtype, "
                "quant_dtype, nccl_dtype or allreduce_dtype",
                t->name, t->line);
    }
    /* Checked before "latency" is asked for, so that latency_us is named as what it is. */
    if (bt_table_find(t, "latency") < 0) {
        static const char *const any[] = {"kernel_source",
                                          "gemm_dtype",
                                          "m",
                                          "n",
                                          "k",
                                          "batch_size",
                                          "isl",
                                          "num_heads",
                                          "num_key_value_heads",
                                          "head_dim",
                                          "attn_dtype",
                                          "step",
                                          "kv_cache_dtype",
                                          "op_name",
                                          "quant_dtype",
                                          "nccl_dtype",
                                          "allreduce_dtype",
                                          "num_gpus",
                                          "backend",
                                          "message_size",
                                          RUN_COLUMNS,
                                          NULL};
        BT_TRY(bt_table_check_columns(t, any, err));
    }
    BT_TRY(bt_table_require(t, "latency", &r->latency, err));
    return rows != NULL ? rows(r, err) : read_collective(r, collective, err);
}

enum bt_code bt_import_aiconfigurator(const struct bt_import_text *file,
                                      const struct bt_import_opts *opts, struct bt_sample_set *set,
                                      struct bt_import_report *report, struct bt_error *err)
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
