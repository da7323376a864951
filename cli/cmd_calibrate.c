/* berth calibrate: this machine, measured for one model, into the store. */
#include "cli/backends.h"
#include "cli/build_info.h"
#include "cli/calibrate.h"
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/files.h"
#include "cli/local.h"
#include "cli/lookup.h"
#include "cli/run_opts.h"
#include "engine/cpu/host.h"
#include "sim/hardware/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAME_BYTES = 256, DATE_BYTES = 32 };

struct calibrate {
    struct bt_cli *cli;
    struct bt_config config;
    struct bt_run_opts run;
    const struct bt_backend *backend;
    bool quick;
    const char *prompts; /* NULL: acceptance is not measured */
    const char *write;   /* folder for the tables; NULL: none is written */
    struct bt_catalog *catalog;
    struct bt_engine engine;
    bool engine_open;
    struct bt_gpu host; /* what is measured: this machine's processor, or its GPU */
    struct bt_op_rows_kept ops;
    struct bt_acceptance_row acceptance[2 * BT_KINDS_MAX];
    int32_t n_acceptance;
};

/* ---- the model ---- */

static enum bt_code open_model(struct calibrate *c, struct bt_error *err)
{
    bool folder = bt_is_folder(c->config.model);
    if (c->prompts != NULL && (!folder || c->config.spec.kind == BT_SPEC_NONE)) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--prompts: acceptance is of a real model (--model DIR) that speculates (--spec "
                "draft=DIR,k=K, self=N,k=K or medusa=H)");
    }
    /* Operations take the same time whatever the numbers are. */
    struct bt_engine_opts eo = {.config = &c->config,
                                .backend = c->backend,
                                .catalog = c->catalog,
                                .seed = c->run.seed,
                                .tokenizer = c->prompts != NULL};
    BT_TRY(bt_engine_load(c->cli, &eo, &c->engine, err));
    c->engine_open = true;
    return BT_OK;
}

/* ---- measuring ---- */

static enum bt_code measure_acceptance(struct calibrate *c, struct bt_error *err)
{
    if (c->prompts == NULL) {
        return BT_OK;
    }
    enum { PROMPT = 256, OUTPUT = 64, QUICK_PROMPTS = 16 };
    int32_t context = c->engine.model.config.arch.max_position;
    struct bt_acceptance_opts o = {
        .engine = &c->engine,
        .config = &c->config,
        .prompts = c->prompts,
        .max_prompts = c->quick ? QUICK_PROMPTS : 0,
        .max_prompt_tokens = context > PROMPT + OUTPUT ? PROMPT : context / 2,
        .max_new_tokens = context > PROMPT + OUTPUT ? OUTPUT : context / 2,
        .n_threads = c->run.jobs,
        .seed = c->run.seed,
    };
    return bt_calibrate_acceptance(c->cli, &o, c->acceptance, &c->n_acceptance, err);
}

static enum bt_code measure(struct calibrate *c, struct bt_error *err)
{
    struct bt_calibrate_opts o = {
        .engine = &c->engine,
        .quick = c->quick,
        .block_tokens = c->config.kv_block_tokens,
        .memory_bytes = c->host.memory_bytes,
        .n_threads = c->run.jobs,
        .clock = c->run.clock,
    };
    BT_TRY(bt_calibrate_ops(c->cli, &o, &c->ops, err));
    return measure_acceptance(c, err);
}

/* ---- the store ---- */

static void utc_now(char out[DATE_BYTES])
{
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    (void)strftime(out, DATE_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static enum bt_code write_acceptance(const struct calibrate *c, struct bt_store *store,
                                     const struct bt_store_provenance *from, struct bt_error *err)
{
    char draft[BT_NAME_BYTES];
    bt_local_speaker(&c->config.spec, c->engine.draft.config.arch.name, draft);
    for (int32_t i = 0; i < c->n_acceptance; i++) {
        const struct bt_acceptance_row *r = &c->acceptance[i];
        if (r->n > 0) {
            BT_TRY(bt_store_add_acceptance(store, c->engine.model.config.arch.name, draft,
                                           r->temperature, r->kind, r->positions, r->n, from, err));
        }
    }
    return BT_OK;
}

static enum bt_code write_all(const struct calibrate *c, struct bt_store *store,
                              struct bt_error *err)
{
    const struct bt_engine *e = &c->engine;
    char name[NAME_BYTES], date[DATE_BYTES];
    utc_now(date);
    bool gpu = c->backend->makes_weights;
    (void)snprintf(name, sizeof name, "%s %s %s weights, %s activations, %s KV, %s", c->host.name,
                   e->model.config.arch.name,
                   bt_weight_format_name(e->model.config.arch.checkpoint),
                   bt_act_format_name(e->compute), bt_kv_format_name(e->kv), c->host.product);
    struct bt_store_provenance from = {
        .kind = "measured", .source = "berth calibrate", .source_date = date};
    struct bt_store_calibration session = {
        .name = name,
        .gpu = c->host.name,
        .stack = "berth",
        .stack_version = BT_BUILD_COMMIT,
        .engine_sha256 = bt_local_engine_hash(gpu),
        .trust = BT_TRUST_MEASURED,
        .driver = c->host.product,
        .started_utc = date,
        .notes = c->quick ? "quick" : "",
        .provenance = from,
    };
    struct bt_pcie_sample copies[2 * BT_PCIE_POINTS_MAX];
    int64_t n_copies = 0;
    for (int32_t i = 0; i < c->host.pcie.n_points; i++) {
        const struct bt_pcie_point *p = &c->host.pcie.points[i];
        copies[n_copies++] = (struct bt_pcie_sample){"to_device", (int64_t)p->copy_bytes,
                                                     p->to_device_bytes_per_s, 0};
        copies[n_copies++] =
            (struct bt_pcie_sample){"to_host", (int64_t)p->copy_bytes, p->to_host_bytes_per_s, 0};
    }
    if (!gpu) {
        BT_TRY(bt_store_put_gpu(store, &c->host, &from, err));
    }
    BT_TRY(
        bt_store_add_calibration(store, &session, c->ops.samples, c->ops.n, copies, n_copies, err));
    if (gpu) {
        BT_TRY(bt_calibrate_put_tables(&c->ops, &c->host, e->model.config.arch.name, date, store,
                                       c->write, err));
    }
    return write_acceptance(c, store, &from, err);
}

/* The store is what calibrate is for: that it cannot be written is an error. */
static enum bt_code write_store(const struct calibrate *c, struct bt_error *err)
{
    struct bt_store *store = NULL;
    struct bt_store_opts so = {.path = c->cli->db_path, .catalog = c->catalog};
    BT_TRY(bt_store_open(&so, &store, err));
    enum bt_code code = write_all(c, store, err);
    if (code == BT_OK) {
        bt_cli_note(c->cli, "%lld samples in %s", (long long)c->ops.n, bt_store_path(store));
    }
    bt_store_close(store);
    return code;
}

/* ---- the answer ---- */

static const struct bt_out_column COLUMNS[] = {
    {"op", NULL, BT_UNIT_AUTO},
    {"weights", NULL, BT_UNIT_AUTO},
    {"kv", NULL, BT_UNIT_AUTO},
    {"tokens", NULL, BT_UNIT_PLAIN},
    {"n_out", "outputs", BT_UNIT_PLAIN},
    {"k_in", "inputs", BT_UNIT_PLAIN},
    {"n_seqs", "sequences", BT_UNIT_PLAIN},
    {"context", NULL, BT_UNIT_PLAIN},
    {"median_ns", "median", BT_UNIT_NS},
    {"spread_ns", "spread", BT_UNIT_NS},
    {"gflops_per_s", "GFLOP/s", BT_UNIT_NONE},
};
static const struct bt_out_part PARTS[] = {
    {.kind = BT_OUT_FIELDS, .path = "host", .title = "This machine"},
    BT_OUT_ROWS_PART("rows", "Operations", COLUMNS),
    {.kind = BT_OUT_ROWS, .path = "acceptance", .title = "Acceptance of draft tokens"},
};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 3, .csv_rows = "rows"};

static json_t *host_json(const struct bt_gpu *g)
{
    json_t *o = bt_out_object();
    bt_out_set(o, "processor", bt_out_text(g->product));
    bt_out_set(o, "memory_bytes", bt_out_int(g->memory_bytes));
    bt_out_set(o, "read_bytes_per_s", bt_out_real(g->mem_bytes_per_s));
    bt_out_set(o, g->fp16_flops_per_s > 0 ? "fp16_flops_per_s" : "fp32_flops_per_s",
               bt_out_real(g->fp16_flops_per_s > 0 ? g->fp16_flops_per_s : g->fp32_flops_per_s));
    bt_out_set(o, "int8_ops_per_s", bt_out_real(g->int8_ops_per_s));
    bt_out_set(o, "copy_bytes_per_s", bt_out_real(g->pcie_bytes_per_s));
    return o;
}

static json_t *count_or_null(int64_t n)
{
    return n > 0 ? bt_out_int(n) : json_null();
}

static json_t *op_rows(const struct bt_op_rows_kept *ops)
{
    json_t *rows = bt_out_list();
    for (int64_t i = 0; i < ops->n; i++) {
        const struct bt_op_sample *s = &ops->samples[i];
        json_t *r = bt_out_object();
        bool weights = s->weights != BT_WEIGHT_DEFAULT, kv = s->kv != BT_KV_DEFAULT;
        bool act = s->activations != BT_ACT_DEFAULT;
        bt_out_set(r, "op", bt_out_text(s->op));
        bt_out_set(r, "weights",
                   weights ? bt_out_text(bt_weight_format_name(s->weights)) : json_null());
        bt_out_set(r, "activations",
                   act ? bt_out_text(bt_act_format_name(s->activations)) : json_null());
        bt_out_set(r, "kv", kv ? bt_out_text(bt_kv_format_name(s->kv)) : json_null());
        bt_out_set(r, "tokens", bt_out_int(s->m_tokens));
        bt_out_set(r, "n_out", count_or_null(s->n_out));
        bt_out_set(r, "k_in", count_or_null(s->k_in));
        bt_out_set(r, "n_seqs", count_or_null(s->n_seqs));
        bt_out_set(r, "context", count_or_null(s->context_tokens));
        bt_out_set(r, "median_ns", bt_out_real(s->median_ns));
        bt_out_set(r, "spread_ns", bt_out_real(s->spread_ns));
        bt_out_set(r, "repeats", bt_out_int(s->n_repeats));
        bt_out_set(r, "gflops_per_s",
                   bt_out_real(s->flops > 0 ? (double)s->flops / s->median_ns : NAN));
        bt_out_append(rows, r);
    }
    return rows;
}

static json_t *acceptance_rows(const struct calibrate *c)
{
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < c->n_acceptance; i++) {
        const struct bt_acceptance_row *a = &c->acceptance[i];
        json_t *r = bt_out_object();
        json_t *conditional = bt_out_list();
        for (int32_t k = 0; k < a->n; k++) {
            const struct bt_acceptance_sample *p = &a->positions[k];
            bt_out_append(conditional, bt_out_real((double)p->n_accepted / (double)p->n_proposed));
        }
        bt_out_set(r, "kind", bt_out_text(a->kind));
        bt_out_set(r, "temperature", bt_out_real(a->temperature));
        bt_out_set(r, "prompts", bt_out_int(a->n_prompts));
        bt_out_set(r, "accepted_len",
                   bt_out_real((double)a->n_emitted / (double)a->n_verifications));
        bt_out_set(r, "acceptance_conditional", conditional);
        bt_out_append(rows, r);
    }
    return rows;
}

static enum bt_code answer(const struct calibrate *c, struct bt_error *err)
{
    json_t *doc = bt_out_answer("calibrate");
    bt_out_set(doc, "model", bt_out_text(c->engine.model.config.arch.name));
    bt_out_set(doc, "host", host_json(&c->host));
    bt_out_set(doc, "rows", op_rows(&c->ops));
    if (c->n_acceptance > 0) {
        bt_out_set(doc, "acceptance", acceptance_rows(c));
    }
    enum bt_code code = bt_cli_write(c->cli, doc, &VIEW, err);
    json_decref(doc);
    return code;
}

/* ---- the command ---- */

static enum bt_code check(struct calibrate *c, struct bt_error *err)
{
    if (c->config.model[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--model is missing: a folder with a checkpoint, or a catalog name (random weights "
                "of that architecture)");
    }
    BT_TRY(bt_backend_find(c->run.executor == BT_EXECUTOR_CUDA ? BT_EXECUTOR_CUDA : BT_EXECUTOR_CPU,
                           &c->backend, err));
    if (!c->backend->makes_weights && c->config.gpu[0] != '\0' &&
        strcmp(c->config.gpu, "host") != 0) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--gpu %s: the CPU executor measures host, this machine's processor (--executor "
                "cuda measures its GPU)",
                c->config.gpu);
    }
    if (c->write != NULL && !c->backend->makes_weights) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--write: tables are of a GPU (--executor cuda)");
    }
    if (c->run.clock == BT_CLOCK_WORK && c->run.jobs != 1) {
        BT_FAIL(err, BT_ERR_ARG, c->run.jobs, "--clock work: counts one thread: --jobs 1");
    }
    return BT_OK;
}

/* The card of the catalog that was measured: named, or known by what it calls itself. */
static enum bt_code name_card(struct calibrate *c, struct bt_error *err)
{
    const struct bt_catalog_gpu *card = NULL;
    const char *name = c->config.gpu[0] != '\0' ? c->config.gpu : c->host.product;
    BT_TRY(bt_catalog_find_gpu(c->catalog, name, "--gpu", &card, err));
    (void)snprintf(c->host.name, sizeof c->host.name, "%s", card->gpu.name);
    c->host.family = card->gpu.family;
    return BT_OK;
}

/* The folder is made first: that it cannot be is known before time is spent. */
static enum bt_code work(struct calibrate *c, struct bt_error *err)
{
    char text[BT_HOST_TEXT_BYTES];
    if (c->write != NULL) {
        BT_TRY(bt_make_folder(c->write, err));
    }
    BT_TRY(bt_catalog_open(NULL, 0, &c->catalog, err));
    c->host.family = BT_GPU_CPU;
    BT_TRY(open_model(c, err));
    BT_TRY(c->backend->measure(c->run.jobs, &c->host, err));
    if (c->backend->makes_weights) {
        BT_TRY(name_card(c, err));
    } else {
        bt_host_describe(c->run.jobs, text);
        (void)snprintf(c->host.product, sizeof c->host.product, "%.*s",
                       (int)sizeof c->host.product - 1, text);
    }
    BT_TRY(measure(c, err));
    BT_TRY(write_store(c, err));
    return answer(c, err);
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct calibrate *c = calloc(1, sizeof *c);
    BT_ASSERT(c != NULL);
    c->cli = cli;
    c->quick = bt_args_given(&cli->args, "quick");
    c->prompts = bt_args_text(&cli->args, "prompts");
    c->write = bt_args_text(&cli->args, "write");
    bt_config_init(&c->config);
    enum bt_code code = bt_config_apply(&cli->args, &c->config, err);
    code = code == BT_OK ? bt_run_opts_read(&cli->args, &c->run, err) : code;
    code = code == BT_OK ? bt_run_opts_only_steps(&cli->args, err) : code;
    code = code == BT_OK ? check(c, err) : code;
    code = code == BT_OK ? work(c, err) : code;
    if (c->engine_open) {
        bt_engine_fini(&c->engine);
    }
    bt_catalog_close(c->catalog);
    free(c->ops.samples);
    free(c);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "quick", .kind = BT_OPT_FLAG, .help = "fewer shapes, contexts and repeats"},
    {.name = "prompts",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "measure acceptance too, on JSON lines of prompt and kind of text"},
    {.name = "write",
     .kind = BT_OPT_TEXT,
     .value = "DIR",
     .help = "put the GPU's operations into the tables there too: other formats and models stay"},
};

static const struct bt_example EXAMPLES[] = {
    {"calibrate --model models/llama-3.2-1b", "this machine for that checkpoint; then --gpu host"},
    {"calibrate --model llama-3.2-1b --weights int4-g128 --quick",
     "random weights of a catalog model, in a minute"},
    {"calibrate --model llama-3.1-8b --weights int8 --executor cuda --write tables",
     "this machine's GPU, for simulations of that card"},
    {"calibrate --model models/big --spec draft=models/small,k=4 --prompts prompts.jsonl",
     "and how many draft tokens are accepted, by kind of text"},
};

const struct bt_command bt_cmd_calibrate = {
    .name = "calibrate",
    .arguments = "--model DIR|NAME",
    .summary = "measure this machine's operations into the store, for --gpu host or its own GPU",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_config = true,
    .takes_run = true,
    .min_positional = 0,
    .max_positional = 0,
    .notes = "Without --executor cuda the CPU is measured.\n",
    .run = run,
};
