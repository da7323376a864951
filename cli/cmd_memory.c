#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/local.h"
#include "cli/lookup.h"
#include "sim/hardware/memory.h"
#include "sim/hardware/stack.h"

#include <string.h>

/* What is accounted for: the plan as configured and, beside it, the other KV layout. */
struct memory {
    struct bt_config config;
    struct bt_lookup names;
    struct bt_memory_plan plan;
    struct bt_memory_plan paged;
    struct bt_memory_plan contiguous;
};

static enum bt_code account(const struct memory *m, enum bt_kv_layout layout,
                            struct bt_memory_plan *plan, struct bt_error *err)
{
    struct bt_memory_opts opts = bt_memory_opts_of(
        &m->config, &m->names.arch, m->names.has_draft ? &m->names.draft : NULL, &m->names.gpu);
    if (layout != opts.layout) {
        opts.kv_blocks = 0; /* a measured pool belongs to the layout it was measured with */
    }
    opts.layout = layout;
    return bt_memory_account(&opts, plan, err);
}

static enum bt_code account_all(struct memory *m, struct bt_error *err)
{
    BT_TRY(account(m, (enum bt_kv_layout)m->config.kv_layout, &m->plan, err));
    BT_TRY(account(m, BT_KV_PAGED, &m->paged, err));
    return account(m, BT_KV_CONTIGUOUS, &m->contiguous, err);
}

/* ---- the flat document ---- */

static json_t *flat_document(const struct memory *m)
{
    const struct bt_memory_plan *p = &m->plan;
    json_t *doc = bt_out_object();
    bt_out_set(doc, "fits", json_boolean(p->fits));
    bt_out_set(doc, "weights_bytes", bt_out_int(p->weights_bytes));
    bt_out_set(doc, "draft_bytes", bt_out_int(p->draft_bytes));
    bt_out_set(doc, "workspace_bytes", bt_out_int(p->workspace_bytes));
    bt_out_set(doc, "reserved_bytes", bt_out_int(p->reserved_bytes));
    bt_out_set(doc, "kv_bytes_per_token", bt_out_int(p->kv_bytes_per_token));
    bt_out_set(doc, "draft_kv_bytes_per_token", bt_out_int(p->draft_kv_bytes_per_token));
    bt_out_set(doc, "kv_pool_bytes", bt_out_int(p->kv_pool_bytes));
    bt_out_set(doc, "kv_blocks_total", bt_out_int(p->kv_blocks_total));
    bt_out_set(doc, "kv_tokens_total", bt_out_int(p->kv_tokens_total));
    bt_out_set(doc, "max_concurrency", bt_out_real(p->max_concurrency));
    bt_out_set(doc, "usable_bytes", bt_out_int(p->usable_bytes));
    bt_out_set(doc, "unused_bytes", bt_out_int(p->remainder_bytes > 0 ? p->remainder_bytes : 0));
    bt_out_set(doc, "block_bytes", bt_out_int(p->block_bytes));
    bt_out_set(doc, "block_tokens", bt_out_int(p->block_tokens));
    bt_out_set(doc, "max_model_len", bt_out_int(p->max_model_len));
    bt_out_set(doc, "model", bt_out_text(m->names.arch.name));
    bt_out_set(doc, "gpu", bt_out_text(m->names.gpu.name));
    bt_out_set(doc, "tp", bt_out_int(p->tp));
    bt_out_set(doc, "weights", bt_out_text(bt_weight_format_name(p->weights)));
    bt_out_set(doc, "activations", bt_out_text(bt_act_format_name(p->activations)));
    bt_out_set(doc, "kv", bt_out_text(bt_kv_format_name(p->kv)));
    bt_out_set(doc, "stack", bt_out_text(m->config.stack));
    bt_out_set(doc, "reason", p->fits ? json_null() : bt_out_text(p->reason));
    bt_out_set(doc, "arithmetic", bt_out_text(p->arithmetic));
    return doc;
}

/* ---- the tables, which say the same in more words ---- */

enum { BAR_CELLS = 30, LINE_BYTES = 1024 };

static json_t *headline(const struct memory *m)
{
    const struct bt_memory_plan *p = &m->plan;
    char line[LINE_BYTES];
    char ranks[32] = "";
    if (p->tp > 1) {
        (void)snprintf(ranks, sizeof ranks, "%d x ", p->tp);
    }
    (void)snprintf(line, sizeof line, "%s on %s%s (stack %s, weights %s, KV %s): %s",
                   m->names.arch.name, ranks, m->names.gpu.name, m->config.stack,
                   bt_weight_format_name(p->weights), bt_kv_format_name(p->kv),
                   p->fits ? "fits" : p->reason);
    return bt_out_text(line);
}

static json_t *bar(double share)
{
    char cells[BAR_CELLS + 1];
    int n = (int)(share * BAR_CELLS + 0.5);
    n = n < 0 ? 0 : n > BAR_CELLS ? BAR_CELLS : n;
    memset(cells, '#', (size_t)n);
    cells[n] = '\0';
    return bt_out_text(cells);
}

static json_t *part_rows(const struct bt_memory_plan *p)
{
    struct bt_memory_part parts[BT_MEMORY_PARTS];
    bt_memory_parts(p, parts);
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < BT_MEMORY_PARTS; i++) {
        if (parts[i].bytes == 0) {
            continue;
        }
        double share = (double)parts[i].bytes / (double)p->usable_bytes;
        json_t *row = bt_out_object();
        bt_out_set(row, "part", bt_out_text(parts[i].name));
        bt_out_set(row, "bytes", bt_out_int(parts[i].bytes));
        bt_out_set(row, "share_fraction", bt_out_real(share));
        bt_out_set(row, "bar", bar(share));
        bt_out_append(rows, row);
    }
    return rows;
}

/* Sequences of n_tokens that fit at once. */
static int64_t paged_sequences(const struct memory *m, int64_t n_tokens)
{
    if (!m->paged.fits) {
        return 0;
    }
    int64_t slots = n_tokens + bt_config_lookahead_tokens(&m->config);
    int64_t block = m->paged.block_tokens;
    return m->paged.kv_blocks_total / ((slots + block - 1) / block);
}

static int64_t contiguous_sequences(const struct memory *m, int64_t n_tokens)
{
    const struct bt_memory_plan *p = &m->contiguous;
    return p->fits && n_tokens <= p->max_model_len ? p->kv_blocks_total : 0;
}

/* Powers of four up to the longest sequence: paged blocks cost what a sequence has, contiguous
 * preallocation what it might grow to. */
static json_t *sequence_rows(const struct memory *m)
{
    json_t *rows = bt_out_list();
    int64_t longest = m->paged.max_model_len;
    for (int64_t n = 256; n < 4 * longest; n *= 4) {
        int64_t n_tokens = n < longest ? n : longest;
        json_t *row = bt_out_object();
        bt_out_set(row, "tokens", bt_out_int(n_tokens));
        bt_out_set(row, "paged", bt_out_int(paged_sequences(m, n_tokens)));
        bt_out_set(row, "contiguous", bt_out_int(contiguous_sequences(m, n_tokens)));
        bt_out_append(rows, row);
    }
    return rows;
}

static json_t *table_document(const struct memory *m)
{
    const struct bt_memory_plan *p = &m->plan;
    json_t *doc = bt_out_object();
    bt_out_set(doc, "headline", headline(m));
    bt_out_set(doc, "parts", part_rows(p));
    json_t *kv = bt_out_object();
    bt_out_set(kv, "kv_bytes_per_token", bt_out_int(p->kv_bytes_per_token));
    if (p->draft_kv_bytes_per_token > 0) {
        bt_out_set(kv, "draft_kv_bytes_per_token", bt_out_int(p->draft_kv_bytes_per_token));
    }
    bt_out_set(kv, "block_tokens", bt_out_int(p->block_tokens));
    bt_out_set(kv, "block_bytes", bt_out_int(p->block_bytes));
    bt_out_set(kv, "kv_blocks_total", bt_out_int(p->kv_blocks_total));
    bt_out_set(kv, "kv_tokens_total", bt_out_int(p->kv_tokens_total));
    bt_out_set(kv, "max_model_len", bt_out_int(p->max_model_len));
    bt_out_set(kv, "max_concurrency", bt_out_real(p->max_concurrency));
    bt_out_set(doc, "kv", kv);
    if (p->fits) {
        bt_out_set(doc, "sequences", sequence_rows(m));
    }
    bt_out_set(doc, "arithmetic", bt_out_text(p->arithmetic));
    return doc;
}

static const struct bt_out_column part_columns[] = {
    {"part", "", BT_UNIT_AUTO},
    {"bytes", "bytes", BT_UNIT_BYTES},
    {"share_fraction", "of usable", BT_UNIT_FRACTION},
    {"bar", "", BT_UNIT_AUTO},
};
static const struct bt_out_column sequence_columns[] = {
    {"tokens", "tokens", BT_UNIT_NONE},
    {"paged", "paged", BT_UNIT_NONE},
    {"contiguous", "contiguous", BT_UNIT_NONE},
};
static const struct bt_out_part view_parts[] = {
    {.kind = BT_OUT_LINES, .path = "headline"},
    {.kind = BT_OUT_ROWS, .path = "parts", .columns = part_columns, .n_columns = 4},
    {.kind = BT_OUT_FIELDS, .path = "kv", .title = "KV cache"},
    {.kind = BT_OUT_ROWS,
     .path = "sequences",
     .title = "Sequences that fit at once, by length",
     .columns = sequence_columns,
     .n_columns = 3},
    {.kind = BT_OUT_LINES, .path = "arithmetic"},
};
static const struct bt_out_view view = {.parts = view_parts,
                                        .n_parts = sizeof view_parts / sizeof view_parts[0]};

static enum bt_code run_with_catalog(struct bt_cli *cli, const struct bt_catalog *catalog,
                                     struct bt_error *err)
{
    struct memory m = {0};
    bt_config_init(&m.config);
    BT_TRY(bt_config_apply(&cli->args, &m.config, err));
    BT_TRY(bt_lookup_config(catalog, &m.config, &m.names, err));
    struct bt_gpu card = m.names.gpu;
    if (m.config.gpu_memory_bytes > 0) {
        bt_gpu_set_memory(&card, m.config.gpu_memory_bytes);
    }
    BT_TRY(bt_stack_apply(&m.config, &card, m.names.arch.max_position, err));
    BT_TRY(account_all(&m, err));
    cli->answer_is_no = !m.plan.fits;
    json_t *doc = cli->format == BT_OUT_TABLE ? table_document(&m) : flat_document(&m);
    enum bt_code code = bt_cli_write(cli, doc, &view, err);
    json_decref(doc);
    return code;
}

static enum bt_code run_memory(struct bt_cli *cli, struct bt_error *err)
{
    struct bt_local local;
    bt_local_read(&local, cli);
    struct bt_catalog *catalog = NULL;
    enum bt_code code = bt_catalog_open(local.gpus, local.n_gpus, &catalog, err);
    if (code == BT_OK) {
        code = run_with_catalog(cli, catalog, err);
        bt_catalog_close(catalog);
    }
    bt_local_fini(&local);
    return code;
}

static const struct bt_example examples[] = {
    {"memory --model llama-2-13b --gpu rtx4090 --weights int4-g128",
     "What is left for KV when a 13B model is squeezed into 24 GB?"},
    {"memory --model llama-2-13b --gpu l40s --kv int8",
     "How many more sequences fit with an 8-bit KV cache?"},
    {"memory --model ./my-model --gpu h200 --tp 2 --json",
     "A Hugging Face folder on two GPUs, as JSON."},
};

const struct bt_command bt_cmd_memory = {
    .name = "memory",
    .arguments = "--model M --gpu G",
    .summary = "where the GPU's memory goes, and how many sequences fit",
    .examples = examples,
    .n_examples = sizeof examples / sizeof examples[0],
    .takes_config = true,
    .notes = "Figures are those of one GPU. Exit status 1: it does not fit, with the arithmetic.\n",
    .run = run_memory,
};
