/* berth run: text from a checkpoint by the real engine. */
#include "cli/backends.h"
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/engine.h"
#include "engine/serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    struct bt_cli *cli;
    struct bt_config config;
    struct bt_engine engine;
    struct bt_ids prompt;
    struct bt_gen_request request;
    struct bt_gen_table table;
    struct bt_decode_stream stream;
    struct bt_bytes text;
    bool live; /* the text is shown while it comes */
    enum bt_code stream_code;
    struct bt_error *err;
    int64_t first_ns, last_ns; /* of the answer's tokens */
};

/* ---- prompt ---- */

static enum bt_code read_prompt(struct run *r, struct bt_error *err)
{
    const struct bt_args *a = &r->cli->args;
    const char *text = bt_args_text(a, "prompt");
    const char *path = bt_args_text(a, "prompt-file");
    if ((text == NULL) == (path == NULL)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "one of --prompt TEXT and --prompt-file FILE is needed");
    }
    if (text != NULL) {
        return bt_engine_encode(&r->engine, text, strlen(text), "--prompt", &r->prompt, err);
    }
    return bt_engine_encode_file(&r->engine, path, &r->prompt, err);
}

/* Prompt and answer fit the context; an answer whose length was not asked for is cut to it. */
static enum bt_code fill_request(struct run *r, struct bt_error *err)
{
    const struct bt_args *a = &r->cli->args;
    const struct bt_arch *arch = &r->engine.model.config.arch;
    int32_t context = arch->max_position;
    if (r->engine.has_draft && r->engine.draft.config.arch.max_position < context) {
        context = r->engine.draft.config.arch.max_position;
    }
    if (r->config.max_model_len > 0 && r->config.max_model_len < context) {
        context = r->config.max_model_len;
    }
    int64_t want = bt_args_int(a, "max-tokens", 0);
    if (r->prompt.n >= context ||
        (r->prompt.n + want > context && bt_args_given(a, "max-tokens"))) {
        BT_FAIL(err, BT_ERR_ARG, r->prompt.n,
                "%lld tokens of prompt and %lld of answer exceed the context of %s, %d tokens",
                (long long)r->prompt.n, (long long)want, arch->name, context);
    }
    int64_t room = context - r->prompt.n;
    r->request = (struct bt_gen_request){
        .prompt = r->prompt.ids,
        .n_prompt = (int32_t)r->prompt.n,
        .max_new_tokens = (int32_t)(want < room ? want : room),
        .ignore_eos = bt_args_given(a, "ignore-eos"),
        .sampling =
            {
                .temperature = (float)bt_args_real(a, "temperature", 0),
                .top_k = (int32_t)bt_args_int(a, "top-k", 0),
                .top_p = (float)bt_args_real(a, "top-p", 1),
                .seed = (uint64_t)bt_args_int(a, "seed", 1),
            },
    };
    r->request.out = calloc((size_t)r->request.max_new_tokens, sizeof *r->request.out);
    if (r->request.out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "run: no memory for the answer");
    }
    r->table = (struct bt_gen_table){.requests = &r->request, .n = 1};
    return BT_OK;
}

/* ---- the answer ---- */

static void on_tokens(void *ctx, int64_t request, int32_t first, int32_t n, int64_t now_ns)
{
    struct run *r = ctx;
    (void)request;
    r->first_ns = first == 0 ? now_ns : r->first_ns;
    r->last_ns = now_ns;
    size_t shown = r->text.n;
    for (int32_t i = first; i < first + n && r->stream_code == BT_OK; i++) {
        r->stream_code = bt_decode_stream_push(&r->stream, r->request.out[i], &r->text, r->err);
    }
    if (r->live && r->text.n > shown) {
        (void)fwrite(r->text.p + shown, 1, r->text.n - shown, stdout);
        (void)fflush(stdout);
    }
}

/* --gpu-memory: everything that the executor holds has to fit. */
static enum bt_code check_memory(const struct run *r, const struct bt_executor *x,
                                 struct bt_error *err)
{
    struct bt_executor_memory m;
    r->engine.backend->memory(x, &m);
    int64_t weights = m.weights_bytes + m.draft_bytes, most = r->config.gpu_memory_bytes;
    int64_t all = weights + m.kv_pool_bytes + m.workspace_bytes;
    if (most > 0 && all > most) {
        BT_FAIL(err, BT_ERR_UNFIT, all,
                "%lld bytes (weights %lld, KV pool %lld, workspace %lld) do not fit "
                "--gpu-memory of %lld bytes",
                (long long)all, (long long)weights, (long long)m.kv_pool_bytes,
                (long long)m.workspace_bytes, (long long)most);
    }
    return BT_OK;
}

static enum bt_code generate(struct run *r, struct bt_error *err)
{
    struct bt_executor_opts eo = bt_engine_executor_opts(&r->engine, &r->config);
    int32_t slots = r->request.n_prompt + r->request.max_new_tokens + eo.spec_k;
    eo.n_blocks = slots / eo.block_tokens + 1;
    eo.max_seqs = 1;
    eo.requests = &r->table;
    eo.n_threads = (int32_t)bt_args_int(&r->cli->args, "jobs", 0);
    struct bt_executor x;
    const struct bt_backend *backend = r->engine.backend;
    BT_TRY(backend->create(&eo, &x, err));
    struct bt_serve_opts so = {
        .executor = &x,
        .sched = bt_engine_sched_opts(&r->engine, &r->config),
        .requests = &r->table,
        .on_tokens = on_tokens,
        .ctx = r,
    };
    so.sched.long_above_tokens = 0;
    so.sched.max_seqs_auto = false;
    so.sched.degrade = (struct bt_degrade_opts){0};
    so.sched.max_requests = 1;
    backend->fit_sched(&x, &so.sched);
    struct bt_serve_result result;
    enum bt_code code = check_memory(r, &x, err);
    code = code == BT_OK ? bt_serve_run(&so, &result, err) : code;
    if (code == BT_OK && backend->clipped != NULL) {
        bt_engine_tell_cover(r->cli, &r->engine.model, r->request.n_prompt + r->request.n_out,
                             backend->clipped(&x));
    }
    x.ops->destroy(x.self);
    if (code == BT_OK && r->stream_code == BT_OK) {
        r->stream_code = bt_decode_stream_finish(&r->stream, &r->text, err);
    }
    code = code == BT_OK ? r->stream_code : code;
    if (code == BT_OK && result.n_by_outcome[BT_OUTCOME_FINISHED] != 1) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s gives logits that are no numbers after %d tokens",
                r->config.model, r->request.n_out);
    }
    return code;
}

/* ---- output ---- */

static json_t *ids_json(const int32_t *ids, int32_t n)
{
    json_t *list = bt_out_list();
    for (int32_t i = 0; i < n; i++) {
        bt_out_append(list, bt_out_int(ids[i]));
    }
    return list;
}

/* Bytes that are no UTF-8 become U+FFFD: a JSON text has no place for them. */
static json_t *text_json(const struct bt_bytes *text)
{
    struct bt_bytes clean = {0};
    clean.p = malloc(3 * text->n + 1);
    BT_ASSERT(clean.p != NULL);
    for (size_t i = 0; i < text->n;) {
        size_t n = 1;
        json_t *one = NULL;
        for (; n <= 4 && i + n <= text->n && one == NULL; n += one == NULL) {
            one = json_stringn(text->p + i, n);
        }
        if (one != NULL) {
            memcpy(clean.p + clean.n, text->p + i, n);
            clean.n += n;
            i += n;
        } else {
            memcpy(clean.p + clean.n, "\xef\xbf\xbd", 3);
            clean.n += 3;
            i++;
        }
        json_decref(one);
    }
    json_t *v = json_stringn(clean.p, clean.n);
    bt_bytes_fini(&clean);
    return v;
}

static json_t *document(const struct run *r)
{
    const struct bt_gen_request *q = &r->request;
    const struct bt_spec_counts *s = &q->spec;
    int64_t accepted = 0;
    json_t *conditional = bt_out_list();
    for (int32_t i = 0; i < BT_MAX_SPEC_K && s->reached[i] > 0; i++) {
        accepted += s->accepted[i];
        bt_out_append(conditional, bt_out_real((double)s->accepted[i] / s->reached[i]));
    }
    json_t *doc = bt_out_object();
    bt_out_set(doc, "prompt_ids", ids_json(q->prompt, q->n_prompt));
    bt_out_set(doc, "ids", ids_json(q->out, q->n_out));
    bt_out_set(doc, "text", text_json(&r->text));
    bt_out_set(doc, "acceptance_rate", bt_out_real((double)accepted / s->n_proposed));
    bt_out_set(doc, "accepted_len", bt_out_real((double)s->n_emitted / s->n_verifications));
    bt_out_set(doc, "acceptance_conditional", conditional);
    return doc;
}

static void tell_speed(const struct run *r)
{
    const struct bt_gen_request *q = &r->request;
    double seconds = (double)(r->last_ns - r->first_ns) * 1e-9;
    char speed[64] = "";
    if (q->n_out > 1 && seconds > 0.0) {
        (void)snprintf(speed, sizeof speed, ", %.1f tokens/s", (q->n_out - 1) / seconds);
    }
    char spec[64] = "";
    if (q->spec.n_verifications > 0) {
        (void)snprintf(spec, sizeof spec, ", %.2f tokens a verification",
                       (double)q->spec.n_emitted / q->spec.n_verifications);
    }
    bt_cli_note(r->cli, "%d tokens of prompt, first token after %.3f s, %d tokens%s%s", q->n_prompt,
                (double)r->first_ns * 1e-9, q->n_out, speed, spec);
}

static enum bt_code run_loaded(struct run *r, struct bt_error *err)
{
    BT_TRY(read_prompt(r, err));
    BT_TRY(fill_request(r, err));
    bt_decode_stream_init(&r->stream, r->engine.tokenizer, true);
    r->live = r->cli->format == BT_OUT_TABLE;
    BT_TRY(generate(r, err));
    tell_speed(r);
    if (r->live) {
        (void)fputc('\n', stdout);
        return bt_out_flush(stdout, "stdout", err);
    }
    json_t *doc = document(r);
    enum bt_code code = bt_cli_write(r->cli, doc, NULL, err);
    json_decref(doc);
    return code;
}

/* Options of a deployment that one request on the CPU could only ignore. */
static enum bt_code check_deployment(const struct bt_config *c, struct bt_error *err)
{
    const char *option = c->kv_blocks > 0   ? "kv-blocks"
                         : c->tp > 1        ? "tp"
                         : c->replicas != 1 ? "replicas"
                                            : NULL;
    if (option != NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--%s: one request on the CPU has all of it and a pool of its own; `berth replay "
                "--executor cpu` serves many under a configuration",
                option);
    }
    return BT_OK;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct run r = {.cli = cli, .err = err};
    bt_config_init(&r.config);
    BT_TRY(bt_config_apply(&cli->args, &r.config, err));
    const struct bt_backend *backend;
    BT_TRY(bt_backend_of_args(&cli->args, &backend, err));
    if (strcmp(bt_args_text(&cli->args, "executor"), "cpu") == 0) {
        BT_TRY(check_deployment(&r.config, err));
    }
    struct bt_engine_opts eo = {
        .config = &r.config,
        .backend = backend,
        .tokenizer = true,
        .medusa_dir =
            bt_args_given(&cli->args, "medusa") ? bt_args_text(&cli->args, "medusa") : NULL,
    };
    BT_TRY(bt_engine_load(cli, &eo, &r.engine, err));
    enum bt_code code = run_loaded(&r, err);
    free(r.request.out);
    bt_ids_fini(&r.prompt);
    bt_bytes_fini(&r.text);
    bt_engine_fini(&r.engine);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "prompt", .kind = BT_OPT_TEXT, .value = "TEXT", .help = "what to continue"},
    {.name = "prompt-file",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "the prompt from a file; - is stdin"},
    {.name = "max-tokens",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "128",
     .min = 1,
     .max = 1 << 24,
     .unit = "tokens",
     .help = "length of the answer"},
    {.name = "ignore-eos", .kind = BT_OPT_FLAG, .help = "go on after an end-of-sequence token"},
    {.name = "temperature",
     .kind = BT_OPT_REAL,
     .value = "T",
     .default_text = "0",
     .min = 0,
     .max = 1000,
     .help = "0 takes the likeliest token; 1 samples the model's own distribution"},
    {.name = "top-k",
     .kind = BT_OPT_INT,
     .value = "K",
     .default_text = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "sample among the K likeliest tokens; 0: all"},
    {.name = "top-p",
     .kind = BT_OPT_REAL,
     .value = "P",
     .default_text = "1",
     .min = 1e-9,
     .max = 1,
     .help = "sample among the likeliest tokens that together reach P"},
    {.name = "seed",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "1",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "seed of the sampling"},
    {.name = "medusa",
     .kind = BT_OPT_TEXT,
     .value = "DIR",
     .default_text = "<the model's folder, else MODEL-medusa>",
     .help = "folder of the heads for --spec medusa=H"},
    BT_ENGINE_OPT_EXECUTOR,
    BT_ENGINE_OPT_JOBS,
};

static const struct bt_example EXAMPLES[] = {
    {"run --model ./berth-12m --prompt \"The capital of France is\" --max-tokens 32",
     "continue a text with the likeliest tokens"},
    {"run --model ./berth-12m --prompt-file story.txt --temperature 0.8 --top-p 0.95 --seed 7",
     "sample; the same seed gives the same text"},
    {"run --model ./berth-12m --prompt Hello --spec draft=./berth-1m,k=4 --json",
     "the same tokens by speculation, with its acceptance"},
};

const struct bt_command bt_cmd_run = {
    .name = "run",
    .arguments = "--model DIR --prompt TEXT",
    .summary = "generate text from a Hugging Face checkpoint with the real engine",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_config = true,
    .notes = "On the CPU, activations and KV cache are float32 unless --activations and --kv say\n"
             "otherwise; on a GPU the checkpoint's 16-bit type. The text goes to stdout as it "
             "comes; speed goes to stderr.\n",
    .run = run,
};
