/* berth quantize: a 16-bit checkpoint to int8 or int4. */
#include "cli/calib_text.h"
#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/files.h"
#include "cli/progress.h"
#include "engine/cpu/calibrate.h"
#include "engine/model/model_write.h"
#include "engine/model/quantize.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ERROR_SAMPLES = 8 }; /* samples that layers are compared on: their errors vary little */

struct quantize {
    struct bt_cli *cli;
    const char *in, *out, *scheme_name;
    struct bt_quant_scheme scheme;
    const char *calib; /* NULL: none */
    int32_t samples, length, threads;
    struct bt_calib_text text;
    struct bt_model exact, model;
    struct bt_cpu_layer_error *errors; /* owned: [n_layers]; NULL without calibration text */
    struct bt_progress progress;
};

/* ---- options ---- */

static enum bt_code read_scheme(struct quantize *q, struct bt_error *err)
{
    const struct bt_args *a = &q->cli->args;
    q->scheme_name = bt_args_text(a, "scheme");
    if (q->scheme_name == NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--scheme is missing: int8, int8-tensor, int4-{rtn,gptq,awq}[-g32|-g64|-g128], "
                "w8a8, w8a8-static, ...");
    }
    BT_TRY(bt_quant_scheme_parse(q->scheme_name, &q->scheme, err));
    struct bt_quant_scheme *s = &q->scheme;
    s->lm_head = bt_args_given(a, "lm-head");
    s->norms = bt_args_given(a, "norms");
    s->clip = s->clip && !bt_args_given(a, "no-clip");
    s->damping = bt_args_real(a, "damping", 0);
    const char *order = bt_args_text(a, "act-order");
    s->act_order = strcmp(order, "none") == 0    ? BT_ACT_ORDER_NONE
                   : strcmp(order, "group") == 0 ? BT_ACT_ORDER_GROUP
                                                 : BT_ACT_ORDER_STATIC;
    bool gptq = s->method == BT_METHOD_GPTQ;
    if (!gptq && (bt_args_given(a, "damping") || bt_args_given(a, "act-order"))) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--damping and --act-order are GPTQ's; --scheme is %s",
                q->scheme_name);
    }
    q->calib = bt_args_text(a, "calib");
    if (bt_quant_scheme_needs_calib(s) && q->calib == NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--scheme %s needs calibration text: --calib FILE",
                q->scheme_name);
    }
    q->samples = (int32_t)bt_args_int(a, "calib-samples", 128);
    q->length = (int32_t)bt_args_int(a, "calib-length", 512);
    q->threads = (int32_t)bt_args_int(a, "jobs", 0);
    return BT_OK;
}

/* Where the checkpoint goes is known to be good before anything is computed. */
static enum bt_code check_out(const struct quantize *q, struct bt_error *err)
{
    struct stat in, out;
    if (stat(q->in, &in) != 0 || !S_ISDIR(in.st_mode)) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: not a folder with a checkpoint", q->in);
    }
    if (stat(q->out, &out) != 0) {
        return BT_OK; /* the writer makes it */
    }
    if (!S_ISDIR(out.st_mode)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: is a file; OUT is a folder", q->out);
    }
    if (in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: OUT is IN; a checkpoint is not overwritten by its own",
                q->out);
    }
    char config[BT_MODEL_DIR_BYTES];
    (void)snprintf(config, sizeof config, "%s/config.json", q->out);
    if (stat(config, &out) == 0 && !bt_args_given(&q->cli->args, "force")) {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s: holds a checkpoint already; --force replaces it", q->out);
    }
    return BT_OK;
}

/* ---- the work ---- */

static void on_progress(void *ctx, double done)
{
    bt_progress_update(ctx, done, 1);
}

static enum bt_code load(struct quantize *q, struct bt_error *err)
{
    BT_TRY(bt_model_load(&q->exact, q->in, NULL, err));
    const struct bt_arch *a = &q->exact.config.arch;
    if (q->exact.layers[0].linear[BT_LINEAR_Q].quantised) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: is quantised already (%s); IN is a 16-bit checkpoint",
                q->in, bt_weight_format_name(a->checkpoint));
    }
    if (q->calib != NULL) {
        if (q->length > a->max_position) {
            BT_FAIL(err, BT_ERR_ARG, q->length,
                    "--calib-length: %d is not in 1..%d, the context of %s", q->length,
                    a->max_position, a->name);
        }
        BT_TRY(bt_calib_text_read(&q->text, q->calib, q->in, a->vocab, q->samples, q->length, err));
    }
    return bt_model_load(&q->model, q->in, NULL, err);
}

/* What the calibration set does not cover, before time is spent on it. */
static void warn_of_cover(const struct quantize *q)
{
    const struct bt_calib_text *t = &q->text;
    const struct bt_arch *a = &q->exact.config.arch;
    int64_t tokens = (int64_t)t->n_samples * t->sample_tokens;
    if (t->n_samples < q->samples) {
        bt_cli_note(q->cli, "%s: %d samples of %d tokens, not %d: the text has %lld tokens",
                    q->calib, t->n_samples, t->sample_tokens, q->samples,
                    (long long)t->n_text_tokens);
    }
    int32_t widest = a->intermediate > a->hidden ? a->intermediate : a->hidden;
    if (q->scheme.method == BT_METHOD_GPTQ && tokens < widest) {
        bt_cli_note(q->cli,
                    "%lld calibration tokens for layers of %d inputs: GPTQ sees less than the "
                    "inputs can do; give more samples",
                    (long long)tokens, widest);
    }
    if (q->scheme.activations == BT_ACT_INT8_STATIC && t->sample_tokens < a->max_position) {
        bt_cli_note(q->cli,
                    "static scales come from sequences of at most %d tokens; %s allows %d: longer "
                    "ones may leave the range that was seen",
                    t->sample_tokens, a->name, a->max_position);
    }
    const int32_t few_part = 8;
    if (t->n_distinct < a->vocab / few_part) {
        bt_cli_note(q->cli, "the samples use %d of %d tokens of the vocabulary", t->n_distinct,
                    a->vocab);
    }
}

static struct bt_cpu_samples samples_of(struct quantize *q, int32_t most)
{
    return (struct bt_cpu_samples){
        .ids = q->text.ids,
        .n_samples = q->text.n_samples < most ? q->text.n_samples : most,
        .sample_tokens = q->text.sample_tokens,
        .n_threads = q->threads,
        .on_progress = on_progress,
        .ctx = &q->progress,
    };
}

static enum bt_code quantise(struct quantize *q, struct bt_error *err)
{
    if (!bt_quant_scheme_needs_calib(&q->scheme)) {
        return bt_model_quantise(&q->model, &q->scheme, NULL, err);
    }
    struct bt_cpu_samples samples = samples_of(q, INT32_MAX);
    struct bt_cpu_calib *calib = NULL;
    BT_TRY(bt_cpu_calib_create(&samples, &q->model.config.arch, &calib, err));
    struct bt_calib_source source = bt_cpu_calib_source(calib);
    bt_progress_start(&q->progress, "quantise", NULL, q->cli->quiet);
    enum bt_code code = bt_model_quantise(&q->model, &q->scheme, &source, err);
    bt_progress_finish(&q->progress);
    bt_cpu_calib_destroy(calib);
    return code;
}

static enum bt_code measure(struct quantize *q, struct bt_error *err)
{
    if (q->calib == NULL) {
        return BT_OK;
    }
    q->errors = calloc((size_t)q->exact.config.arch.n_layers, sizeof *q->errors);
    if (q->errors == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "quantise: no memory");
    }
    struct bt_cpu_samples samples = samples_of(q, ERROR_SAMPLES);
    bt_progress_start(&q->progress, "compare", NULL, q->cli->quiet);
    enum bt_code code = bt_cpu_layer_errors(&q->exact, &q->model, &samples, q->errors, err);
    bt_progress_finish(&q->progress);
    return code;
}

/* Squared error of a layer's weights relative to their squares. AWQ moves scales between layers:
 * then weights alone say nothing. */
static double weight_error(const struct quantize *q, int32_t layer)
{
    if (q->scheme.method == BT_METHOD_AWQ) {
        return NAN;
    }
    const struct bt_arch *a = &q->exact.config.arch;
    int32_t widest = a->intermediate > a->hidden ? a->intermediate : a->hidden;
    int32_t q_dim = a->n_heads * a->head_dim;
    widest = widest > q_dim ? widest : q_dim;
    float *rows = malloc(2 * (size_t)widest * sizeof *rows);
    if (rows == NULL) {
        return NAN;
    }
    double lost = 0, all = 0;
    for (int32_t id = 0; id < BT_LINEARS; id++) {
        const struct bt_linear *x = &q->exact.layers[layer].linear[id];
        const struct bt_linear *y = &q->model.layers[layer].linear[id];
        for (int32_t n = 0; n < x->n_out; n++) {
            bt_linear_row_f32(x, n, rows);
            bt_linear_row_f32(y, n, rows + widest);
            for (int32_t k = 0; k < x->n_in; k++) {
                double w = (double)rows[k];
                double d = (double)rows[widest + k] - w;
                lost += d * d;
                all += w * w;
            }
        }
    }
    free(rows);
    return all > 0 ? lost / all : 0;
}

/* ---- the answer ---- */

static const struct bt_out_column COLUMNS[] = {
    {"layer", NULL, BT_UNIT_PLAIN},
    {"weight_error", "weights", BT_UNIT_NONE},
    {"output_error", "output", BT_UNIT_NONE},
    {"stream_error", "all layers so far", BT_UNIT_NONE},
};
static const struct bt_out_part PARTS[] = {
    {.kind = BT_OUT_FIELDS, .path = "checkpoint"},
    BT_OUT_ROWS_PART("rows", "Squared errors, relative", COLUMNS),
};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 2, .csv_rows = "rows"};

static json_t *checkpoint_json(const struct quantize *q)
{
    const struct bt_model *m = &q->model;
    json_t *o = bt_out_object();
    bt_out_set(o, "model", bt_out_text(q->exact.config.arch.name));
    bt_out_set(o, "scheme", bt_out_text(q->scheme_name));
    bt_out_set(o, "weights", bt_out_text(bt_weight_format_name(m->config.arch.checkpoint)));
    bt_out_set(o, "weights_bytes", bt_out_int(bt_model_weight_bytes(m)));
    bt_out_set(o, "weights_bytes_before", bt_out_int(bt_model_weight_bytes(&q->exact)));
    bool used = bt_quant_scheme_needs_calib(&q->scheme);
    bt_out_set(o, "calibration_samples", used ? bt_out_int(q->text.n_samples) : json_null());
    bt_out_set(o, "calibration_tokens",
               used ? bt_out_int((int64_t)q->text.n_samples * q->text.sample_tokens) : json_null());
    return o;
}

static enum bt_code answer(const struct quantize *q, struct bt_error *err)
{
    json_t *doc = bt_out_answer("quantize");
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < q->exact.config.arch.n_layers; i++) {
        json_t *row = bt_out_object();
        bt_out_set(row, "layer", bt_out_int(i));
        bt_out_set(row, "weight_error", bt_out_real(weight_error(q, i)));
        bt_out_set(row, "output_error", bt_out_real(q->errors ? q->errors[i].output : NAN));
        bt_out_set(row, "stream_error", bt_out_real(q->errors ? q->errors[i].stream : NAN));
        bt_out_append(rows, row);
    }
    bt_out_set(doc, "checkpoint", checkpoint_json(q));
    bt_out_set(doc, "rows", rows);
    enum bt_code code = bt_cli_write(q->cli, doc, &VIEW, err);
    json_decref(doc);
    return code;
}

static enum bt_code compute(struct quantize *q, struct bt_error *err)
{
    BT_TRY(quantise(q, err));
    BT_TRY(measure(q, err));
    BT_TRY(bt_model_write(&q->model, q->out, err));
    return answer(q, err);
}

/* The folder is made first: that it cannot be is known before time is spent. */
static enum bt_code work(struct quantize *q, struct bt_error *err)
{
    BT_TRY(load(q, err));
    if (q->calib != NULL) {
        warn_of_cover(q);
    }
    bool made = !bt_is_folder(q->out);
    BT_TRY(bt_make_folder(q->out, err));
    enum bt_code code = compute(q, err);
    if (code != BT_OK && made) {
        (void)rmdir(q->out); /* stays where something was written */
    }
    return code;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct quantize q = {.cli = cli, .in = cli->args.positional[0], .out = cli->args.positional[1]};
    BT_TRY(read_scheme(&q, err));
    BT_TRY(check_out(&q, err));
    enum bt_code code = work(&q, err);
    bt_calib_text_fini(&q.text);
    bt_model_fini(&q.exact);
    bt_model_fini(&q.model);
    free(q.errors);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "scheme",
     .kind = BT_OPT_TEXT,
     .value = "S",
     .help = "int8, int8-tensor, int4-{rtn,gptq,awq}[-g32|-g64|-g128], int4-tensor, w8a8, "
             "w8a8-static, w4a8-{rtn,gptq,awq}"},
    {.name = "calib",
     .kind = BT_OPT_TEXT,
     .value = "FILE",
     .help = "calibration text: plain text, or token ids in a .bin of uint16"},
    {.name = "calib-samples",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "128",
     .min = 1,
     .max = 1 << 20,
     .help = "samples taken from it, evenly spread"},
    {.name = "calib-length",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "512",
     .min = 1,
     .max = 1 << 20,
     .unit = "tokens",
     .help = "length of a sample"},
    {.name = "lm-head", .kind = BT_OPT_FLAG, .help = "quantise lm_head too"},
    {.name = "norms", .kind = BT_OPT_FLAG, .help = "round norm vectors to int8 and back"},
    {.name = "no-clip", .kind = BT_OPT_FLAG, .help = "GPTQ, AWQ: scales from the greatest weight"},
    {.name = "act-order",
     .kind = BT_OPT_ENUM,
     .value = "HOW",
     .default_text = "static",
     .allowed = "static|none|group",
     .help = "GPTQ: which columns come first, and whether groups follow"},
    {.name = "damping",
     .kind = BT_OPT_REAL,
     .value = "F",
     .default_text = "0.01",
     .min = 1e-6,
     .max = 1,
     .help = "GPTQ: share of the mean diagonal that is added to it"},
    BT_ENGINE_OPT_JOBS,
    {.name = "force", .kind = BT_OPT_FLAG, .help = "replace a checkpoint that OUT holds"},
};

static const struct bt_example EXAMPLES[] = {
    {"quantize models/llama-3.2-1b out --scheme int8", "int8 weights, one scale an output channel"},
    {"quantize models/llama-3.2-1b out --scheme int4-gptq-g128 --calib text.txt",
     "int4 in groups of 128, errors made up for on the text"},
    {"quantize models/llama-3.2-1b out --scheme w8a8-static --calib text.txt --calib-samples 512 "
     "--calib-length 2048",
     "int8 weights and activations, whose scales the text gives"},
};

const struct bt_command bt_cmd_quantize = {
    .name = "quantize",
    .arguments = "IN OUT --scheme S",
    .summary = "a 16-bit checkpoint to int8 or int4, as other engines load it",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .min_positional = 2,
    .max_positional = 2,
    .run = run,
};
