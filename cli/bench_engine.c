#include "cli/bench_engine.h"

#include "cli/backends.h"
#include "cli/build_info.h"
#include "cli/config_opts.h"
#include "cli/engine.h"
#include "cli/lookup.h"
#include "cli/progress.h"
#include "engine/core/rng.h"
#include "engine/serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCHES_MAX = 16,
    REPEATS = 9,
    PROMPT = 128, /* of whole answers */
    ANSWER = 256,
};

static const int64_t BUDGET_NS = 150000000; /* of one shape */

struct bench {
    struct bt_cli *cli;
    const struct bt_backend *backend;
    struct bt_config config;
    struct bt_run_opts run;
    struct bt_catalog *catalog;
    struct bt_engine engine;
    struct bt_gpu roof;
    int32_t batches[BATCHES_MAX], n_batches;
    int32_t context, prefill;
    json_t *rows;
};

/* ---- what is measured ---- */

static enum bt_code read_batches(struct bench *b, struct bt_error *err)
{
    const char *text = bt_args_text(&b->cli->args, "batches");
    for (const char *at = text; *at != '\0'; at += *at == ',') {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || n < 1 || n > BT_MAX_SEQS ||
            b->n_batches == BATCHES_MAX) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "--batches: expected up to %d numbers 1..%d with commas between, got \"%s\"",
                    BATCHES_MAX, BT_MAX_SEQS, text);
        }
        b->batches[b->n_batches++] = (int32_t)n;
        at = end;
    }
    return BT_OK;
}

static int32_t at_most(int64_t x, int32_t most)
{
    return x < most ? (int32_t)x : most;
}

/* Bytes of the weights that a step reads: of an embedding table that is not lm_head, next to none.
 */
static double weight_bytes(const struct bench *b)
{
    const struct bt_model_config *c = &b->engine.model.config;
    struct bt_weight_opts o = {.format = c->arch.checkpoint, .quantise_lm_head = c->quant.lm_head};
    struct bt_weight_bytes w = bt_arch_weight_bytes(&c->arch, &o);
    return (double)(w.total - (c->arch.tie_embeddings ? 0 : w.embeddings));
}

static bool int8_products(const struct bench *b)
{
    return bt_act_format_bits(bt_act_format_resolve(b->engine.model.config.quant.activations,
                                                    &b->engine.model.config.arch)) == 8;
}

/* Rate of the products that the configuration runs on. */
static double peak_ops(const struct bench *b)
{
    double plain = b->backend->makes_weights ? b->roof.fp16_flops_per_s : b->roof.fp32_flops_per_s;
    return int8_products(b) ? b->roof.int8_ops_per_s : plain;
}

struct work {
    double bytes, flops;
};

static struct work work_of(const struct bench *b, const struct bt_step_shape *s)
{
    const struct bt_arch *a = &b->engine.model.config.arch;
    double n = (double)s->n_seqs * s->n_tokens;
    double kv = (double)bt_arch_kv_bytes_per_token(a, b->engine.kv, 1);
    int64_t mean_ctx = s->ctx + (s->n_tokens + 1) / 2;
    return (struct work){
        .bytes = weight_bytes(b) + (double)s->n_seqs * (s->ctx + s->n_tokens) * kv,
        .flops = n * (bt_arch_linear_flops(a) + bt_arch_attention_flops(a, mean_ctx)) +
                 s->n_seqs * bt_arch_lm_head_flops(a),
    };
}

static json_t *new_row(const struct bench *b, const char *phase, int32_t batch, int32_t context)
{
    const struct bt_model_config *c = &b->engine.model.config;
    enum bt_act_format act = int8_products(b) ? c->quant.activations : b->engine.compute;
    json_t *row = bt_out_object();
    bt_out_set(row, "phase", bt_out_text(phase));
    bt_out_set(row, "weights", bt_out_text(bt_weight_format_name(c->arch.checkpoint)));
    bt_out_set(row, "activations", bt_out_text(bt_act_format_name(act)));
    bt_out_set(row, "kv", bt_out_text(bt_kv_format_name(b->engine.kv)));
    bt_out_set(row, "batch", bt_out_int(batch));
    bt_out_set(row, "context", bt_out_int(context));
    return row;
}

/* The row, which `rows` owns. */
static json_t *add_step(struct bench *b, const char *phase, const struct bt_step_shape *s,
                        const struct bt_step_time *t)
{
    struct work w = work_of(b, s);
    double seconds = t->step_ns * 1e-9;
    double floor_s = fmax(w.bytes / b->roof.mem_bytes_per_s, w.flops / peak_ops(b));
    json_t *row = new_row(b, phase, s->n_seqs, s->ctx + s->n_tokens);
    bt_out_set(row, "ms", bt_out_real(seconds * 1e3));
    bt_out_set(row, "tok_per_s", bt_out_real(s->n_seqs * s->n_tokens / seconds));
    bt_out_set(row, "bytes", bt_out_real(w.bytes));
    bt_out_set(row, "flops", bt_out_real(w.flops));
    bt_out_set(row, "roof_fraction", bt_out_real(floor_s / seconds));
    bt_out_set(row, "host_gap_fraction", bt_out_real(t->gap_ns / t->step_ns));
    bt_out_append(b->rows, row);
    return row;
}

/* ---- steps ---- */

static enum bt_code open_meter(struct bench *b, int32_t max_batch, struct bt_meter **meter,
                               struct bt_error *err)
{
    int64_t block = b->config.kv_block_tokens;
    int64_t decode = max_batch * ((b->context + block) / block + 1) * block;
    struct bt_meter_opts mo = {
        .n_host_blocks = (int32_t)((b->context + block - 1) / block), /* of a sequence */
        .model = &b->engine.model,
        .compute = b->engine.compute,
        .kv = b->engine.kv,
        .block_tokens = b->config.kv_block_tokens,
        .max_seqs = max_batch,
        .max_ctx = b->context > b->prefill ? b->context : b->prefill,
        .max_kv_tokens = decode > b->prefill ? decode : b->prefill,
        .n_threads = b->run.jobs,
        .clock = b->run.clock,
        .only_steps = true,
        .unfused = !b->config.fused,
        .tune = true,
    };
    return b->backend->meter_create(&mo, meter, err);
}

/* The largest batch whose KV fits goes first; those that do not are told. */
static enum bt_code open_largest(struct bench *b, struct bt_meter **meter, struct bt_error *err)
{
    enum bt_code code = BT_ERR_NOMEM;
    while (code == BT_ERR_NOMEM && b->n_batches > 0) {
        struct bt_error why = {0};
        code = open_meter(b, b->batches[b->n_batches - 1], meter, &why);
        if (code == BT_ERR_NOMEM && b->n_batches > 1) {
            bt_cli_note(b->cli, "batch %d is left out: %s", b->batches[--b->n_batches], why.msg);
        } else if (code != BT_OK) {
            *err = why;
            return code;
        }
    }
    return code;
}

static enum bt_code run_shape(struct bench *b, struct bt_meter *meter, const char *phase,
                              const struct bt_step_shape *s, struct bt_error *err)
{
    struct bt_step_time t;
    if (!bt_meter_fits(meter, s)) {
        return BT_OK;
    }
    BT_TRY(b->backend->meter_run(meter, s, REPEATS, BUDGET_NS, &t, err));
    (void)add_step(b, phase, s, &t);
    return BT_OK;
}

/* A prompt that comes to a card at rest, and prompts one after the other, which the card's power
 * limit may slow down. */
static enum bt_code run_prefill(struct bench *b, struct bt_meter *meter, struct bt_error *err)
{
    struct bt_step_shape shape = {.n_seqs = 1, .n_tokens = b->prefill, .alone = true};
    struct bt_step_time alone, sustained;
    if (!bt_meter_fits(meter, &shape)) {
        return BT_OK;
    }
    BT_TRY(b->backend->meter_run(meter, &shape, REPEATS, BUDGET_NS, &alone, err));
    if (!b->backend->makes_weights) {
        (void)add_step(b, "prefill", &shape, &alone);
        return BT_OK;
    }
    shape.alone = false;
    BT_TRY(b->backend->meter_run(meter, &shape, REPEATS, BUDGET_NS, &sustained, err));
    json_t *row = add_step(b, "prefill", &shape, &alone);
    bt_out_set(row, "sustained_ms", bt_out_real(sustained.step_ns * 1e-6));
    return BT_OK;
}

static enum bt_code run_steps(struct bench *b, struct bt_meter *meter, struct bt_error *err)
{
    struct bt_progress progress;
    bt_progress_start(&progress, "bench", "shapes", b->cli->quiet);
    enum bt_code code = run_prefill(b, meter, err);
    for (int32_t i = 0; i < b->n_batches && code == BT_OK; i++) {
        struct bt_step_shape s = {.n_seqs = b->batches[i], .ctx = b->context - 1, .n_tokens = 1};
        bt_progress_update(&progress, i + 1, b->n_batches + 1);
        code = run_shape(b, meter, "decode", &s, err);
    }
    bt_progress_finish(&progress);
    return code;
}

/* ---- swaps ---- */

/* One copy of a whole sequence's blocks, which are no neighbours on the device. */
static enum bt_code copy_once(const struct bt_executor *x, enum bt_copy_kind kind,
                              const int32_t *device, const int32_t *host, int32_t n, int64_t *ns,
                              struct bt_error *err)
{
    uint32_t done[1];
    bool out = kind == BT_COPY_SWAP_OUT;
    struct bt_plan_copy copy = {.kind = kind,
                                .ticket = 1,
                                .n_blocks = n,
                                .src = out ? device : host,
                                .dst = out ? host : device};
    struct bt_step_plan plan = {.n_copies = 1, .copies = &copy, .wait_copies = true};
    struct bt_step_result result = {.copies_done = done};
    int64_t began_ns = bt_clock_ns(BT_CLOCK_WALL);
    enum bt_submit how = x->ops->submit(x->self, &plan, began_ns, &result, err);
    if (how == BT_SUBMIT_QUEUED) {
        BT_TRY(x->ops->wait(x->self, &result, err));
    } else if (how != BT_SUBMIT_DONE) {
        return err->code != BT_OK ? err->code : BT_ERR_INTERNAL;
    }
    BT_ASSERT(result.n_copies_done == 1);
    *ns = bt_clock_ns(BT_CLOCK_WALL) - began_ns;
    return BT_OK;
}

/* A sequence of the context's length out and in again; the first time pins the host's memory. */
static enum bt_code run_swaps(struct bench *b, struct bt_meter *meter, struct bt_error *err)
{
    enum { SWAPS = 7 };
    const struct bt_executor *x = &meter->executor;
    int32_t n = meter->opts.n_host_blocks;
    int32_t *device = malloc((size_t)n * 2 * sizeof *device), *host = device + n;
    if (device == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, n, "bench: no memory");
    }
    int64_t ns[2][SWAPS];
    for (int32_t i = 0; i < n; i++) {
        device[i] = 2 * i < meter->load.n_blocks ? 2 * i : i;
        host[i] = i;
    }
    enum bt_code code = BT_OK;
    for (int32_t i = -1; i < SWAPS && code == BT_OK; i++) {
        int32_t at = i < 0 ? 0 : i;
        code = copy_once(x, BT_COPY_SWAP_OUT, device, host, n, &ns[0][at], err);
        code =
            code == BT_OK ? copy_once(x, BT_COPY_SWAP_IN, device, host, n, &ns[1][at], err) : code;
    }
    free(device);
    BT_TRY(code);
    const struct bt_arch *a = &b->engine.model.config.arch;
    double bytes = (double)n * b->config.kv_block_tokens *
                   (double)bt_arch_kv_bytes_per_token(a, b->engine.kv, 1);
    for (int32_t i = 0; i < 2; i++) {
        double spread;
        double s = bt_meter_median(ns[i], SWAPS, &spread) * 1e-9;
        json_t *row = new_row(b, i == 0 ? "swap-out" : "swap-in", 1, n * b->config.kv_block_tokens);
        bt_out_set(row, "ms", bt_out_real(s * 1e3));
        bt_out_set(row, "tok_per_s", bt_out_real(n * b->config.kv_block_tokens / s));
        bt_out_set(row, "bytes", bt_out_real(bytes));
        bt_out_set(row, "gbps", bt_out_real(bytes / s * 1e-9));
        bt_out_append(b->rows, row);
    }
    return BT_OK;
}

static enum bt_code bench_steps(struct bench *b, FILE **explain, char **text, size_t *n,
                                struct bt_error *err)
{
    struct bt_meter *meter = NULL;
    BT_TRY(open_largest(b, &meter, err));
    enum bt_code code = run_steps(b, meter, err);
    code = code == BT_OK ? run_swaps(b, meter, err) : code;
    if (code == BT_OK && bt_args_given(&b->cli->args, "explain") && b->backend->explain != NULL) {
        *explain = open_memstream(text, n);
        if (*explain != NULL) {
            b->backend->explain(&meter->executor, *explain);
        }
    }
    bt_meter_destroy(meter);
    return code;
}

/* ---- whole answers ---- */

struct watch {
    int32_t n_waiting;      /* requests without a token */
    int64_t from_ns, to_ns; /* of the tokens that count: after all first ones, before an end */
    int64_t n_tokens, n_steps;
    int64_t last_step_ns;
    bool ended; /* somebody has: the batch is no longer whole */
};

static void on_end(void *ctx, int64_t request, const struct bt_req_record *record)
{
    struct watch *w = ctx;
    (void)request;
    (void)record;
    w->ended = true;
}

static void on_tokens(void *ctx, int64_t request, int32_t first, int32_t n, int64_t now_ns)
{
    struct watch *w = ctx;
    (void)request;
    if (first == 0) {
        w->n_waiting--;
        w->from_ns = now_ns;
        w->n_tokens = w->n_steps = 0;
    } else if (w->n_waiting == 0 && !w->ended && now_ns > w->from_ns) {
        w->n_tokens += n;
        w->n_steps += now_ns != w->last_step_ns;
        w->last_step_ns = now_ns;
        w->to_ns = now_ns;
    }
}

struct answers {
    double tok_per_s, step_s, accepted_len;
};

static enum bt_code serve(struct bench *b, int32_t batch, bool speculate, struct bt_gen_table *t,
                          struct answers *out, struct bt_error *err)
{
    struct bt_executor_opts eo = bt_engine_executor_opts(&b->engine, &b->config);
    if (!speculate) {
        eo.draft = NULL;
        eo.medusa = NULL;
        eo.self_layers = eo.spec_k = 0;
    }
    eo.max_seqs = batch;
    eo.n_blocks = batch * ((PROMPT + ANSWER + eo.spec_k) / eo.block_tokens + 2);
    eo.max_model_len = PROMPT + ANSWER;
    eo.n_threads = b->run.jobs;
    eo.requests = t;
    eo.tune = true;
    struct bt_executor x = {0};
    BT_TRY(b->backend->create(&eo, &x, err));
    struct watch watch = {.n_waiting = batch};
    struct bt_serve_opts so = {.executor = &x,
                               .sched = bt_engine_sched_opts(&b->engine, &b->config),
                               .requests = t,
                               .fast = true,
                               .on_tokens = on_tokens,
                               .on_end = on_end,
                               .ctx = &watch};
    so.sched.max_seqs_auto = false;
    if (!speculate) {
        so.sched.spec = (struct bt_spec_opts){0};
    }
    b->backend->fit_sched(&x, &so.sched);
    struct bt_serve_result result;
    enum bt_code code = bt_serve_run(&so, &result, err);
    x.ops->destroy(x.self);
    double seconds = (double)(watch.to_ns - watch.from_ns) * 1e-9;
    struct bt_spec_counts sum = {0};
    for (int64_t i = 0; i < t->n; i++) {
        bt_spec_counts_add(&sum, &t->requests[i].spec);
    }
    *out = (struct answers){
        .tok_per_s = (double)watch.n_tokens / seconds,
        .step_s = seconds / (double)watch.n_steps,
        .accepted_len = (double)sum.n_emitted / sum.n_verifications,
    };
    return code;
}

/* Answers of one batch with and without speculation, and what the times of their steps would make
 * of the acceptance that came about. */
static enum bt_code bench_answers(struct bench *b, int32_t batch, struct bt_error *err)
{
    struct bt_gen_request *requests = calloc((size_t)batch, sizeof *requests);
    int32_t *ids = calloc((size_t)batch * (PROMPT + ANSWER), sizeof *ids);
    if (requests == NULL || ids == NULL) {
        free(requests);
        free(ids);
        BT_FAIL(err, BT_ERR_NOMEM, batch, "bench: no memory for %d requests", batch);
    }
    for (int32_t i = 0; i < batch; i++) {
        int32_t *prompt = ids + (size_t)i * (PROMPT + ANSWER);
        for (int32_t j = 0; j < PROMPT; j++) {
            prompt[j] =
                (int32_t)(bt_rng_at((uint64_t)i, (uint64_t)j) * b->engine.model.config.arch.vocab);
        }
        requests[i] = (struct bt_gen_request){.prompt = prompt,
                                              .n_prompt = PROMPT,
                                              .max_new_tokens = ANSWER,
                                              .ignore_eos = true,
                                              .sampling = {.seed = b->run.seed + (uint64_t)i},
                                              .out = prompt + PROMPT};
    }
    struct bt_gen_table table = {.requests = requests, .n = batch};
    struct answers plain = {0}, spec = {0};
    enum bt_code code = serve(b, batch, false, &table, &plain, err);
    code = code == BT_OK ? serve(b, batch, true, &table, &spec, err) : code;
    free(requests);
    free(ids);
    BT_TRY(code);
    for (int32_t i = 0; i < 2; i++) {
        const struct answers *a = i == 0 ? &plain : &spec;
        json_t *row = new_row(b, i == 0 ? "generate" : "speculate", batch, PROMPT + ANSWER);
        bt_out_set(row, "ms", bt_out_real(a->step_s * 1e3));
        bt_out_set(row, "tok_per_s", bt_out_real(a->tok_per_s));
        bt_out_set(row, "accepted_len", bt_out_real(i == 0 ? NAN : a->accepted_len));
        bt_out_set(row, "speed_up", bt_out_real(a->tok_per_s / plain.tok_per_s));
        bt_out_set(row, "speed_up_predicted",
                   bt_out_real(i == 0 ? NAN : a->accepted_len * plain.step_s / a->step_s));
        bt_out_append(b->rows, row);
    }
    return BT_OK;
}

/* ---- the answer ---- */

static const struct bt_out_column COLUMNS[] = {
    {"phase", NULL, BT_UNIT_AUTO},
    {"weights", NULL, BT_UNIT_AUTO},
    {"activations", NULL, BT_UNIT_AUTO},
    {"kv", NULL, BT_UNIT_AUTO},
    {"batch", NULL, BT_UNIT_PLAIN},
    {"context", NULL, BT_UNIT_PLAIN},
    {"ms", NULL, BT_UNIT_NONE},
    {"sustained_ms", "one after another, ms", BT_UNIT_NONE},
    {"tok_per_s", "tokens/s", BT_UNIT_NONE},
    {"bytes", NULL, BT_UNIT_BYTES},
    {"roof_fraction", "of the roof", BT_UNIT_FRACTION},
    {"host_gap_fraction", "host gap", BT_UNIT_FRACTION},
    {"gbps", "GB/s", BT_UNIT_NONE},
    {"accepted_len", "accepted", BT_UNIT_NONE},
    {"speed_up", "speed-up", BT_UNIT_NONE},
    {"speed_up_predicted", "predicted", BT_UNIT_NONE},
};
static const struct bt_out_part PARTS[] = {
    {.kind = BT_OUT_FIELDS, .path = "roof", .title = "This machine"},
    BT_OUT_ROWS_PART("rows", "Steps", COLUMNS),
    {.kind = BT_OUT_LINES, .path = "explain"},
};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 3, .csv_rows = "rows"};

static json_t *roof_json(const struct bench *b)
{
    const struct bt_gpu *g = &b->roof;
    double plain = b->backend->makes_weights ? g->fp16_flops_per_s : g->fp32_flops_per_s;
    json_t *o = bt_out_object();
    bt_out_set(o, "product", bt_out_text(g->product));
    bt_out_set(o, "read_gbps", bt_out_real(g->mem_bytes_per_s * 1e-9));
    bt_out_set(o, "gemm_tflops", bt_out_real(plain * 1e-12));
    bt_out_set(o, "gemm_int8_tops", bt_out_real(g->int8_ops_per_s * 1e-12));
    if (g->pcie.n_points > 0) {
        const struct bt_pcie_point *p = &g->pcie.points[g->pcie.n_points - 1];
        bt_out_set(o, "to_device_gbps", bt_out_real(p->to_device_bytes_per_s * 1e-9));
        bt_out_set(o, "to_host_gbps", bt_out_real(p->to_host_bytes_per_s * 1e-9));
    }
    return o;
}

static enum bt_code answer(struct bench *b, const char *explain, struct bt_error *err)
{
    json_t *doc = bt_out_answer("bench");
    bt_out_set(doc, "model", bt_out_text(b->engine.model.config.arch.name));
    bt_out_set(doc, "executor", bt_out_text(b->backend->name));
    bt_out_set(doc, "roof", roof_json(b));
    bt_out_set(doc, "rows", json_incref(b->rows));
    if (explain != NULL) {
        bt_out_set(doc, "explain", bt_out_text(explain));
    }
    enum bt_code code = bt_cli_write(b->cli, doc, &VIEW, err);
    json_decref(doc);
    return code;
}

static enum bt_code work(struct bench *b, struct bt_error *err)
{
    FILE *explain = NULL;
    char *text = NULL;
    size_t n = 0;
    BT_TRY(bt_catalog_open(NULL, 0, &b->catalog, err));
    struct bt_engine_opts eo = {.config = &b->config,
                                .backend = b->backend,
                                .catalog = b->catalog,
                                .seed = b->run.seed,
                                .lm_head = bt_args_given(&b->cli->args, "quantise-lm-head")};
    BT_TRY(bt_engine_load(b->cli, &eo, &b->engine, err));
    int32_t longest = b->engine.model.config.arch.max_position;
    b->context = at_most(bt_args_int(&b->cli->args, "context", 0), longest);
    b->prefill = at_most(bt_args_int(&b->cli->args, "prefill", 0), longest);
    enum bt_code code = b->backend->measure(b->run.jobs, &b->roof, err);
    code = code == BT_OK ? bench_steps(b, &explain, &text, &n, err) : code;
    if (explain != NULL) {
        (void)fclose(explain);
    }
    bool spec = b->config.spec.kind != BT_SPEC_NONE;
    for (int32_t i = 0; i < b->n_batches && spec && code == BT_OK; i++) {
        code = bench_answers(b, b->batches[i], err);
    }
    code = code == BT_OK ? answer(b, text, err) : code;
    free(text);
    bt_engine_fini(&b->engine);
    return code;
}

enum bt_code bt_bench_engine(struct bt_cli *cli, struct bt_error *err)
{
    struct bench b = {.cli = cli, .backend = bt_backend_best()};
    bt_config_init(&b.config);
    BT_TRY(bt_config_apply(&cli->args, &b.config, err));
    BT_TRY(bt_run_opts_read(&cli->args, &b.run, err));
    BT_TRY(bt_run_opts_only_steps(&cli->args, err));
    if (b.run.executor != BT_EXECUTOR_SIM) {
        BT_TRY(bt_backend_find(b.run.executor, &b.backend, err));
    }
    BT_TRY(read_batches(&b, err));
    if (b.config.model[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--model is missing: a folder with a checkpoint, or a catalog name (random weights "
                "of that architecture); --sim measures the simulator");
    }
    if (cli->args.n_positional > 0) {
        BT_FAIL(err, BT_ERR_ARG, 0, "bench: a trace (%s) goes with --sim", cli->args.positional[0]);
    }
    b.rows = bt_out_list();
    enum bt_code code = work(&b, err);
    json_decref(b.rows);
    bt_catalog_close(b.catalog);
    return code;
}
