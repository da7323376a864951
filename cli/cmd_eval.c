/* berth eval: perplexity and next-token accuracy, against a baseline, and under stress. */
#include "cli/backends.h"
#include "cli/cmd.h"
#include "cli/config_opts.h"
#include "cli/engine.h"
#include "cli/eval_file.h"
#include "cli/eval_stress.h"
#include "cli/eval_windows.h"
#include "cli/files.h"
#include "cli/progress.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LOGITS_ROWS = 32 };

struct eval {
    struct bt_cli *cli;
    struct bt_config config;
    struct bt_engine engine;
    struct bt_ids tokens;
    int32_t window;
    int32_t n_windows;
    struct bt_eval_windows scores, baseline;
    bool has_baseline;
};

/* ---- what to score ---- */

static enum bt_code read_tokens(struct eval *e, struct bt_error *err)
{
    const char *text = bt_args_text(&e->cli->args, "text");
    const char *path = bt_args_text(&e->cli->args, "tokens");
    if ((text == NULL) == (path == NULL)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "one of --text FILE, --tokens FILE.bin and --stress is needed");
    }
    if (path != NULL) {
        return bt_read_token_file(path, &e->tokens, err);
    }
    return bt_engine_encode_file(&e->engine, text, &e->tokens, err);
}

/* A text shorter than a window is one window of what there is. */
static enum bt_code cut_windows(struct eval *e, struct bt_error *err)
{
    int32_t context = e->engine.model.config.arch.max_position;
    if (e->window > context) {
        BT_FAIL(err, BT_ERR_ARG, e->window, "--window: %d tokens exceed the context of %s, %d",
                e->window, e->engine.model.config.arch.name, context);
    }
    if (e->tokens.n < 2) {
        BT_FAIL(err, BT_ERR_INPUT, e->tokens.n, "eval: %lld token has nothing to predict",
                (long long)e->tokens.n);
    }
    if (e->tokens.n <= e->window) {
        e->window = (int32_t)e->tokens.n - 1;
    }
    int64_t n = (e->tokens.n - 1) / e->window;
    int64_t limit = bt_args_int(&e->cli->args, "limit", n);
    e->n_windows = (int32_t)(limit < n ? limit : n);
    return BT_OK;
}

/* ---- scoring ---- */

/* A session of a window's length on a model; the backend's session_destroy ends it. */
static enum bt_code open_session(const struct eval *e, const struct bt_engine *engine,
                                 struct bt_session **out, struct bt_error *err)
{
    struct bt_session_opts so = {
        .model = &engine->model,
        .compute = engine->compute,
        .kv = engine->kv,
        .max_ctx = e->window,
        .n_threads = (int32_t)bt_args_int(&e->cli->args, "jobs", 0),
    };
    return engine->backend->session_create(&so, out, err);
}

static enum bt_code score_all(struct eval *e, const struct bt_engine *engine, const char *label,
                              struct bt_eval_windows *out, struct bt_error *err)
{
    const struct bt_backend *backend = engine->backend;
    struct bt_session *s;
    BT_TRY(open_session(e, engine, &s, err));
    struct bt_progress bar;
    bt_progress_start(&bar, label, "windows", e->cli->quiet);
    enum bt_code code = bt_eval_windows_init(out, e->n_windows, e->window, err);
    for (int32_t i = 0; i < e->n_windows && code == BT_OK; i++) {
        struct bt_score score;
        bt_progress_update(&bar, i, e->n_windows);
        code = backend->session_score(s, e->tokens.ids + (int64_t)i * e->window, e->window + 1,
                                      &score, NULL, err);
        if (code == BT_OK && !score.finite) {
            code = bt_error_set(err, BT_ERR_INPUT, i, __FILE__, __LINE__,
                                "%s: logits of window %d are no finite numbers",
                                engine->model.config.arch.name, i);
        }
        if (code == BT_OK) {
            bt_eval_windows_set(out, i, score.nll, score.n_correct);
        }
    }
    bt_progress_finish(&bar);
    if (backend->session_clipped != NULL) {
        bt_engine_tell_cover(e->cli, &engine->model, e->window, backend->session_clipped(s));
    }
    backend->session_destroy(s);
    return code;
}

static enum bt_code write_rows(struct eval *e, struct bt_session *s, FILE *f, float *logits,
                               struct bt_error *err)
{
    size_t vocab = (size_t)e->engine.model.config.arch.vocab;
    for (int32_t i = 0; i < e->window; i += LOGITS_ROWS) {
        int32_t n = e->window - i < LOGITS_ROWS ? e->window - i : LOGITS_ROWS;
        BT_TRY(e->engine.backend->session_run(s, e->tokens.ids + i, n, i, 0, logits, err));
        (void)fwrite(logits, sizeof *logits, (size_t)n * vocab, f); /* errors stay with f */
    }
    return BT_OK;
}

/* The logits of the first window, for comparison with another engine's. */
static enum bt_code write_logits(struct eval *e, const char *path, struct bt_error *err)
{
    struct bt_session *s;
    BT_TRY(open_session(e, &e->engine, &s, err));
    FILE *f = fopen(path, "wb");
    int why = errno;
    float *logits =
        calloc((size_t)LOGITS_ROWS * (size_t)e->engine.model.config.arch.vocab, sizeof *logits);
    enum bt_code code = BT_OK;
    if (logits == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "%s: no memory", path);
    } else if (f != NULL) {
        code = write_rows(e, s, f, logits, err);
    }
    bool bad = f == NULL || ferror(f) != 0;
    bad = (f != NULL && fclose(f) != 0) || bad;
    if (code == BT_OK && bad) {
        code = bt_error_set(err, BT_ERR_IO, why, __FILE__, __LINE__, "%s: cannot write: %s", path,
                            strerror(f == NULL ? why : errno));
    }
    free(logits);
    e->engine.backend->session_destroy(s);
    return code;
}

/* The baseline is a checkpoint as it is, its arithmetic and KV too. */
static enum bt_code score_checkpoint(struct eval *e, const char *dir, struct bt_error *err)
{
    struct bt_config c;
    bt_config_init(&c);
    if (strlen(dir) >= sizeof c.model) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--baseline: the path is longer than %zu bytes",
                sizeof c.model - 1);
    }
    memcpy(c.model, dir, strlen(dir) + 1);
    struct bt_engine_opts eo = {.config = &c, .backend = e->engine.backend};
    struct bt_engine base;
    BT_TRY(bt_engine_load(e->cli, &eo, &base, err));
    const struct bt_arch *arch = &base.model.config.arch;
    enum bt_code code = BT_OK;
    if (arch->vocab != e->engine.model.config.arch.vocab) {
        code = bt_error_set(err, BT_ERR_ARG, arch->vocab, __FILE__, __LINE__,
                            "--baseline: %s has a vocabulary of %d, the model one of %d",
                            arch->name, arch->vocab, e->engine.model.config.arch.vocab);
    }
    if (code == BT_OK) {
        code = score_all(e, &base, "baseline", &e->baseline, err);
    }
    bt_engine_fini(&base);
    return code;
}

/* A file holds scores that were written before. */
static enum bt_code score_baseline(struct eval *e, const char *path, struct bt_error *err)
{
    struct stat st;
    bool is_file = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    enum bt_code code =
        is_file ? bt_eval_file_read(path, e->n_windows, e->window, e->tokens.ids, &e->baseline, err)
                : score_checkpoint(e, path, err);
    e->has_baseline = code == BT_OK;
    return code;
}

/* ---- output ---- */

static json_t *interval_json(const struct bt_interval *v)
{
    json_t *list = bt_out_list();
    bt_out_append(list, bt_out_real(v->low));
    bt_out_append(list, bt_out_real(v->high));
    return list;
}

static json_t *document(const struct eval *e)
{
    struct bt_interval nll = bt_eval_nll(&e->scores);
    struct bt_interval accuracy = bt_eval_accuracy(&e->scores);
    json_t *doc = bt_out_object();
    bt_out_set(doc, "perplexity", bt_out_real(exp(nll.mean)));
    bt_out_set(doc, "nll", bt_out_real(nll.mean));
    bt_out_set(doc, "n_tokens", bt_out_int((int64_t)e->n_windows * e->window));
    bt_out_set(doc, "ci95", interval_json(&nll));
    bt_out_set(doc, "accuracy_fraction", bt_out_real(accuracy.mean));
    bt_out_set(doc, "accuracy_ci95", interval_json(&accuracy));
    bt_out_set(doc, "n_windows", bt_out_int(e->n_windows));
    bt_out_set(doc, "window_tokens", bt_out_int(e->window));
    if (e->has_baseline) {
        struct bt_interval base = bt_eval_nll(&e->baseline);
        struct bt_interval delta = bt_eval_delta_nll(&e->scores, &e->baseline);
        struct bt_interval points = bt_eval_delta_accuracy(&e->scores, &e->baseline);
        bt_out_set(doc, "baseline_perplexity", bt_out_real(exp(base.mean)));
        bt_out_set(doc, "delta_nll", bt_out_real(delta.mean));
        bt_out_set(doc, "delta_ci95", interval_json(&delta));
        bt_out_set(doc, "delta_accuracy_fraction", bt_out_real(points.mean));
        bt_out_set(doc, "delta_accuracy_ci95", interval_json(&points));
    }
    return doc;
}

static enum bt_code eval_loaded(struct eval *e, struct bt_error *err)
{
    BT_TRY(read_tokens(e, err));
    BT_TRY(cut_windows(e, err));
    BT_TRY(score_all(e, &e->engine, "eval", &e->scores, err));
    const char *baseline = bt_args_text(&e->cli->args, "baseline");
    if (baseline != NULL) {
        BT_TRY(score_baseline(e, baseline, err));
    }
    const char *logits = bt_args_text(&e->cli->args, "logits");
    if (logits != NULL) {
        BT_TRY(write_logits(e, logits, err));
    }
    const char *scores = bt_args_text(&e->cli->args, "scores");
    if (scores != NULL) {
        BT_TRY(bt_eval_file_write(scores, &e->scores, e->tokens.ids, err));
    }
    json_t *doc = document(e);
    enum bt_code code = bt_cli_write(e->cli, doc, NULL, err);
    json_decref(doc);
    return code;
}

/* "lm-head,embeddings,norms", any of them. */
static enum bt_code read_also(const char *text, struct bt_engine_opts *o, struct bt_error *err)
{
    for (const char *at = text; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, ",");
        if (n == 7 && strncmp(at, "lm-head", n) == 0) {
            o->lm_head = true;
        } else if (n == 10 && strncmp(at, "embeddings", n) == 0) {
            o->embeddings = true;
        } else if (n == 5 && strncmp(at, "norms", n) == 0) {
            o->norms = true;
        } else {
            BT_FAIL(err, BT_ERR_ARG, 0, "--also: \"%.*s\" is not one of lm-head, embeddings, norms",
                    (int)n, at);
        }
        at += n + (at[n] == ',');
    }
    return BT_OK;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct eval e = {.cli = cli, .window = (int32_t)bt_args_int(&cli->args, "window", 0)};
    bt_config_init(&e.config);
    BT_TRY(bt_config_apply(&cli->args, &e.config, err));
    const struct bt_backend *backend;
    BT_TRY(bt_backend_of_args(&cli->args, &backend, err));
    struct bt_engine_opts eo = {
        .config = &e.config, .backend = backend, .tokenizer = bt_args_given(&cli->args, "text")};
    BT_TRY(read_also(bt_args_text(&cli->args, "also"), &eo, err));
    e.config.spec = (struct bt_spec_config){0};
    BT_TRY(bt_engine_load(cli, &eo, &e.engine, err));
    enum bt_code code = bt_args_given(&cli->args, "stress") ? bt_eval_stress(cli, &e.engine, err)
                                                            : eval_loaded(&e, err);
    bt_eval_windows_fini(&e.scores);
    bt_eval_windows_fini(&e.baseline);
    bt_ids_fini(&e.tokens);
    bt_engine_fini(&e.engine);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "text", .kind = BT_OPT_TEXT, .value = "FILE", .help = "text to score; - is stdin"},
    {.name = "tokens",
     .kind = BT_OPT_TEXT,
     .value = "FILE.bin",
     .help = "token ids to score, two bytes each, little-endian"},
    {.name = "window",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "1024",
     .min = 1,
     .max = 1 << 24,
     .unit = "tokens",
     .help = "predictions a window; positions start from 0 in each"},
    {.name = "limit",
     .kind = BT_OPT_INT,
     .value = "N",
     .min = 1,
     .max = 1 << 30,
     .help = "at most so many windows"},
    {.name = "baseline",
     .kind = BT_OPT_TEXT,
     .value = "DIR|FILE",
     .help = "compare with a checkpoint, window by window, or with what --scores wrote of one"},
    {.name = "logits",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "write the first window's logits: float32, a row of the vocabulary a prediction"},
    {.name = "scores", .kind = BT_OPT_TEXT, .value = "FILE", .help = "write each window's score"},
    {.name = "also",
     .kind = BT_OPT_TEXT,
     .value = "PARTS",
     .help = "an integer --weights rounds these too: lm-head,embeddings,norms"},
    {.name = "stress",
     .kind = BT_OPT_FLAG,
     .help = "run extreme and degenerate inputs and look for NaN and overflow"},
    BT_ENGINE_OPT_EXECUTOR,
    BT_ENGINE_OPT_JOBS,
};

static const struct bt_example EXAMPLES[] = {
    {"eval --model ./berth-12m --tokens test_tokens_u16.bin",
     "perplexity over windows of 1024 tokens"},
    {"eval --model ./berth-12m --weights int4-g128 --baseline ./berth-12m --text test.txt",
     "what rounding to INT4 costs, with a confidence interval"},
    {"eval --model ./berth-12m --kv int8 --stress", "does any input break the 8-bit KV cache?"},
};

const struct bt_command bt_cmd_eval = {
    .name = "eval",
    .arguments = "--model DIR --text FILE",
    .summary = "perplexity and accuracy of a checkpoint, and what a quantisation costs",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .takes_config = true,
    .notes =
        "Window i is tokens [N i, N i + N], the last one incomplete is left out. nll is nats a\n"
        "token; intervals are Student's over windows, the difference paired by window.\n"
        "Activations and KV cache are float32 on the CPU, the checkpoint's 16-bit type on a GPU,\n"
        "unless --activations and --kv say otherwise.\n"
        "--stress: exit status 1 when a logit is not finite.\n",
    .run = run,
};
