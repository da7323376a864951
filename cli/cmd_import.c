/* berth import: others' measurements into the store. */
#include "cli/cmd.h"
#include "cli/files.h"
#include "cli/import_path.h"
#include "db/sha256.h"
#include "db/store.h"
#include "sim/cost/bench.h"
#include "sim/cost/calib.h"
#include "sim/cost/import.h"
#include "sim/cost/library.h"
#include "sim/cost/skew.h"
#include "sim/cost/surface.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    NAME_BYTES = 256,
    PATH_BYTES = 1024,
    FILES_MAX = 4096,
    DEPTH_MAX = 16,
    TABLES_MAX = 4096,
    FIGURES_MAX = 64,
};

typedef enum bt_code read_fn(const struct bt_import_text *, const struct bt_import_opts *,
                             struct bt_sample_set *, struct bt_import_report *, struct bt_error *);

struct format {
    const char *name;
    read_fn *read;           /* NULL: whole-engine figures */
    const char *stack;       /* whose times they are when nothing says so; NULL: must be said */
    const char *endings[10]; /* of the files of a folder that are read, ended by NULL */
};

static const struct format FORMATS[] = {
    {"aiconfigurator", bt_import_aiconfigurator, NULL, {".csv", ".txt"}},
    {"llmservingsim",
     bt_import_llmservingsim,
     NULL,
     {"dense.csv", "per_sequence.csv", "attention.csv", "skew_fit.csv", "layers.csv"}},
    {"vidur", bt_import_vidur, "vidur", {"mlp.csv", "attention.csv", "linear_op.csv"}},
    {"frontier", bt_import_vidur, "vidur", {"mlp.csv", "attention.csv", "linear_op.csv"}},
    {"vllm-bench", NULL, NULL, {".json"}},
    {"llama-bench", NULL, NULL, {".json", ".jsonl", ".csv"}},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

struct import {
    struct bt_cli *cli;
    const struct format *format;
    struct bt_catalog *catalog;
    struct bt_arena arena; /* names and texts of the tables */
    struct bt_store_import *tables;
    int32_t n_tables;
    json_t *rows, *skipped;

    /* the file in hand */
    const char *path, *base;
    char sha256[BT_SHA256_HEX_BYTES];
    const struct bt_gpu *gpu;
    const struct bt_arch *arch; /* NULL: not told */
    struct bt_stack_name stack;
    const char *stack_text;
    enum bt_num dtype;
    int32_t tp;
};

/* ---- what is imported from where ---- */

/* An option's value; NULL when it was not given. */
static const char *option(const struct import *m, const char *name)
{
    return bt_args_given(&m->cli->args, name) ? bt_args_text(&m->cli->args, name) : NULL;
}

static enum bt_code choose_gpu(struct import *m, const struct bt_import_path *told,
                               struct bt_error *err)
{
    const char *name = option(m, "gpu");
    const struct bt_catalog_gpu *gpu = told->gpu;
    if (name != NULL) {
        BT_TRY(bt_catalog_find_gpu(m->catalog, name, "--gpu", &gpu, err));
    }
    if (gpu == NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "%s: which card? no part of the path names one of the catalog: --gpu NAME",
                m->path);
    }
    m->gpu = &gpu->gpu;
    return BT_OK;
}

static enum bt_code choose_stack(struct import *m, const struct bt_import_path *told,
                                 struct bt_error *err)
{
    const char *text = option(m, "stack");
    text = text != NULL ? text : told->stack[0] != '\0' ? told->stack : m->format->stack;
    if (text == NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "%s: whose times? neither the path nor a meta.yaml names a stack with its version: "
                "--stack vllm-0.19.0 (or trtllm-1.0.0, sglang-0.5.1, nccl-2.27.3)",
                m->path);
    }
    if (strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789.-") != strlen(text) ||
        strlen(text) >= BT_IMPORT_STACK_BYTES) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--stack \"%s\": expected NAME-VERSION, such as vllm-0.19.0",
                text);
    }
    m->stack = bt_stack_name_of(text);
    m->stack_text = bt_arena_strdup(&m->arena, text);
    BT_ASSERT(m->stack_text != NULL);
    return BT_OK;
}

static enum bt_code choose_model(struct import *m, const struct bt_import_path *told,
                                 struct bt_error *err)
{
    const char *name = option(m, "model");
    const struct bt_catalog_model *model = told->model;
    if (name != NULL) {
        BT_TRY(bt_catalog_find_model(m->catalog, name, "--model", &model, err));
    }
    m->arch = model != NULL ? &model->arch : NULL;
    if (m->arch == NULL && m->format->read == bt_import_llmservingsim) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "%s: which model was profiled? no part of the path names one of the catalog: "
                "--model NAME",
                m->path);
    }
    m->tp = (int32_t)bt_args_int(&m->cli->args, "tp", told->tp > 0 ? told->tp : 1);
    const char *dtype = option(m, "dtype");
    dtype = dtype != NULL ? dtype : told->dtype[0] != '\0' ? told->dtype : "bf16";
    return bt_num_parse(dtype, "--dtype", &m->dtype, err);
}

static enum bt_code choose(struct import *m, struct bt_error *err)
{
    struct bt_import_path told;
    bt_import_path_read(m->path, m->catalog, &told);
    const char *slash = strrchr(m->path, '/');
    m->base = slash != NULL ? slash + 1 : m->path;
    BT_TRY(choose_gpu(m, &told, err));
    BT_TRY(choose_stack(m, &told, err));
    return choose_model(m, &told, err);
}

static const char *source_of(struct import *m)
{
    const char *given = option(m, "source");
    char text[NAME_BYTES];
    (void)snprintf(text, sizeof text, "%.100s: %.140s", given != NULL ? given : m->format->name,
                   m->base);
    return bt_arena_strdup(&m->arena, text);
}

static const char *licence_of(const struct import *m)
{
    const char *given = option(m, "licence");
    return given != NULL ? given : "not stated";
}

/* ---- tables of operations ---- */

static json_t *row_of(const struct import *m, const struct bt_store_import *t, int64_t n_rows)
{
    json_t *row = bt_out_object();
    bt_out_set(row, "file", bt_out_text(m->base));
    bt_out_set(row, "gpu", bt_out_text(t->gpu));
    bt_out_set(row, "stack", bt_out_text(m->stack_text));
    bt_out_set(row, "op", bt_out_text(t->op));
    bt_out_set(row, "file_rows", bt_out_int(n_rows));
    bt_out_set(row, "samples", bt_out_int(t->samples));
    bt_out_set(row, "error_median", bt_out_real(t->error_median));
    bt_out_set(row, "error_p90", bt_out_real(t->error_p90));
    bt_out_set(row, "name", bt_out_text(t->name));
    return row;
}

static enum bt_code add_table(struct import *m, const char *op, const char *text, int64_t samples,
                              double error_median, double error_p90, int64_t n_rows,
                              struct bt_error *err)
{
    if (m->n_tables == TABLES_MAX) {
        BT_FAIL(err, BT_ERR_LIMIT, TABLES_MAX, "%s: more than %d tables at once", m->path,
                TABLES_MAX);
    }
    char name[NAME_BYTES];
    bool skew = strcmp(op, "skew") == 0;
    const char *dash = m->stack.version[0] != '\0' ? "-" : "";
    (void)snprintf(name, sizeof name, "%.30s__%.30s%s%.30s%s%.30s__%.90s%s", m->gpu->name,
                   m->stack.stack, dash, m->stack.version, skew ? "" : "__", skew ? "" : op,
                   m->base, skew ? ".skew" : ".cal");
    struct bt_store_import *t = &m->tables[m->n_tables++];
    *t = (struct bt_store_import){
        .name = bt_arena_strdup(&m->arena, name),
        .format = m->format->name,
        .gpu = m->gpu->name,
        .stack = bt_arena_strdup(&m->arena, m->stack.stack),
        .stack_version = bt_arena_strdup(&m->arena, m->stack.version),
        .op = bt_arena_strdup(&m->arena, op),
        .model = m->arch != NULL && m->format->read == bt_import_llmservingsim ? m->arch->name : "",
        .samples = samples,
        .error_median = error_median,
        .error_p90 = error_p90,
        .text = bt_arena_strdup(&m->arena, text),
        .provenance = {.kind = "imported",
                       .source = source_of(m),
                       .source_date = "",
                       .licence = licence_of(m),
                       .content_sha256 = bt_arena_strdup(&m->arena, m->sha256)},
    };
    if (t->name == NULL || t->text == NULL || t->provenance.source == NULL ||
        t->provenance.content_sha256 == NULL || t->op == NULL || t->stack_version == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for its tables", m->path);
    }
    bt_out_append(m->rows, row_of(m, t, n_rows));
    return BT_OK;
}

/* The largest leave-one-out errors among the surfaces of samples of one operation. */
static enum bt_code judge(struct bt_sample_set *samples, double *median, double *p90,
                          struct bt_error *err)
{
    struct bt_surface_set set;
    *median = NAN;
    *p90 = NAN;
    BT_TRY(bt_surface_set_init(&set, samples, err));
    for (int32_t i = 0; i < set.n_surfaces; i++) {
        const struct bt_lattice_error *e = &set.surfaces[i]->grid.along;
        if (e->n > 0) {
            *median = fmax(*median, e->median);
            *p90 = fmax(*p90, e->p90);
        }
    }
    bt_surface_set_fini(&set);
    return BT_OK;
}

static enum bt_code add_operation(struct import *m, const struct bt_sample_set *all, enum bt_op op,
                                  int64_t n_rows, struct bt_error *err)
{
    struct bt_sample_set some;
    bt_sample_set_init(&some);
    enum bt_code code = BT_OK;
    for (int64_t i = 0; code == BT_OK && i < all->n_samples; i++) {
        if (all->samples[i].op == op) {
            code = bt_sample_set_add(&some, &all->samples[i], err);
        }
    }
    double median = NAN, p90 = NAN;
    char *text = NULL;
    size_t size = 0;
    FILE *out = NULL;
    if (code == BT_OK && some.n_samples > 0) {
        code = judge(&some, &median, &p90, err);
    }
    if (code == BT_OK && some.n_samples > 0) {
        out = open_memstream(&text, &size);
        BT_ASSERT(out != NULL);
        code = bt_calib_write(out, some.samples, some.n_samples, err);
        (void)fclose(out);
    }
    if (code == BT_OK && text != NULL) {
        code = add_table(m, bt_op_name(op), text, some.n_samples, median, p90, n_rows, err);
    }
    free(text);
    bt_sample_set_fini(&some);
    return code;
}

static void tell(const struct import *m, const struct bt_import_report *r)
{
    if (r->n_merged > 0) {
        bt_cli_note(m->cli, "%s: %lld repeats folded into their medians", m->base,
                    (long long)r->n_merged);
    }
    if (r->n_dropped > 0 || r->note[0] != '\0') {
        bt_cli_note(m->cli, "%s: %lld rows dropped; %s", m->base, (long long)r->n_dropped, r->note);
    }
}

static enum bt_code import_table(struct import *m, const struct bt_import_text *file,
                                 struct bt_error *err)
{
    struct bt_import_opts opts = {
        .gpu = m->gpu->name,
        .stack = m->stack.stack,
        .version = m->stack.version,
        .source = source_of(m),
        .licence = licence_of(m),
        .collective_order = option(m, "collective-order"),
        .lenient = bt_args_given(&m->cli->args, "lenient"),
        .hardware = m->gpu,
        .arch = m->arch,
        .tp = m->tp,
        .format = m->dtype,
    };
    struct bt_sample_set samples;
    bt_sample_set_init(&samples);
    struct bt_import_report report;
    enum bt_code code = m->format->read(file, &opts, &samples, &report, err);
    for (int32_t op = 0; code == BT_OK && op < BT_OPS; op++) {
        code = add_operation(m, &samples, (enum bt_op)op, report.n_rows, err);
    }
    if (code == BT_OK) {
        tell(m, &report);
    }
    bt_sample_set_fini(&samples);
    return code;
}

static enum bt_code import_skew(struct import *m, const struct bt_import_text *file,
                                struct bt_error *err)
{
    struct bt_skew skew;
    BT_TRY(bt_skew_read(file, &skew, err));
    int64_t rows = -1; /* the header */
    for (const char *line = file->text; line != NULL && *line != '\0';) {
        rows += *line != '#';
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return add_table(m, "skew", file->text, rows, NAN, NAN, rows, err);
}

/* ---- whole-engine figures ---- */

struct figures {
    struct bt_store_figure rows[FIGURES_MAX];
    int32_t n;
};

static void add_figure(struct figures *f, const char *test, const char *metric, const char *unit,
                       double value)
{
    if (isfinite(value) && f->n < FIGURES_MAX) {
        f->rows[f->n++] = (struct bt_store_figure){test, metric, unit, value};
    }
}

static void add_stat(struct figures *f, const char *test, const char *const names[4],
                     const struct bt_bench_stat *s)
{
    const double values[4] = {s->mean_s, s->median_s, s->p90_s, s->p99_s};
    for (int32_t i = 0; i < 4; i++) {
        add_figure(f, test, names[i], "s", values[i]);
    }
}

static void figures_of_vllm(const struct bt_bench_run *b, const char *test, struct figures *f)
{
    static const char *const names[4][4] = {
        {"ttft mean", "ttft p50", "ttft p90", "ttft p99"},
        {"tpot mean", "tpot p50", "tpot p90", "tpot p99"},
        {"itl mean", "itl p50", "itl p90", "itl p99"},
        {"e2e mean", "e2e p50", "e2e p90", "e2e p99"},
    };
    add_stat(f, test, names[0], &b->ttft);
    add_stat(f, test, names[1], &b->tpot);
    add_stat(f, test, names[2], &b->itl);
    add_stat(f, test, names[3], &b->e2e);
    add_figure(f, test, "throughput", "requests/s", b->throughput_req_per_s);
    add_figure(f, test, "output", "tokens/s", b->throughput_out_tok_per_s);
    add_figure(f, test, "completed", "requests", (double)b->completed);
    add_figure(f, test, "failed", "requests", (double)b->failed);
    add_figure(f, test, "prompt tokens", "tokens", (double)b->input_tokens);
    add_figure(f, test, "output tokens", "tokens", (double)b->output_tokens);
    add_figure(f, test, "duration", "s", b->duration_s);
}

static void vllm_test(const struct bt_bench_run *b, char *out, size_t bytes)
{
    if (b->max_concurrency > 0) {
        (void)snprintf(out, bytes, "%lld requests, %lld users", (long long)b->n_prompts,
                       (long long)b->max_concurrency);
    } else if (isfinite(b->request_rate_per_s)) {
        (void)snprintf(out, bytes, "%lld requests, %g/s", (long long)b->n_prompts,
                       b->request_rate_per_s);
    } else {
        (void)snprintf(out, bytes, "%lld requests at once", (long long)b->n_prompts);
    }
}

static enum bt_code store_benchmark(struct import *m, struct bt_store *store, const char *model,
                                    const struct figures *f, struct bt_error *err)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s %.60s %.60s %.100s", m->format->name, m->gpu->name,
                   m->stack_text, m->base);
    struct bt_store_provenance from = {.kind = "imported",
                                       .source = source_of(m),
                                       .source_date = "",
                                       .licence = licence_of(m),
                                       .content_sha256 = m->sha256};
    BT_TRY(bt_store_put_benchmark(store, name, m->format->name, model, m->gpu->name, m->stack_text,
                                  &from, f->rows, f->n, err));
    for (int32_t i = 0; i < f->n; i++) {
        json_t *row = bt_out_object();
        bt_out_set(row, "file", bt_out_text(m->base));
        bt_out_set(row, "model", bt_out_text(model));
        bt_out_set(row, "test", bt_out_text(f->rows[i].test));
        bt_out_set(row, "metric", bt_out_text(f->rows[i].metric));
        bt_out_set(row, "value", bt_out_real(f->rows[i].value));
        bt_out_set(row, "unit", bt_out_text(f->rows[i].unit));
        bt_out_append(m->rows, row);
    }
    return BT_OK;
}

static enum bt_code import_vllm_bench(struct import *m, const struct bt_import_text *file,
                                      struct bt_store *store, struct bt_error *err)
{
    struct bt_bench_run run;
    BT_TRY(bt_bench_read_vllm(file, &run, err));
    char test[96];
    struct figures f = {.n = 0};
    vllm_test(&run, test, sizeof test);
    figures_of_vllm(&run, test, &f);
    enum bt_code code = store_benchmark(m, store, run.model, &f, err);
    bt_bench_run_fini(&run);
    return code;
}

static enum bt_code import_llama_bench(struct import *m, const struct bt_import_text *file,
                                       struct bt_store *store, struct bt_error *err)
{
    struct bt_llama_bench_set set;
    BT_TRY(bt_bench_read_llama(file, &set, err));
    struct figures f = {.n = 0};
    char tests[FIGURES_MAX][96];
    enum bt_code code = BT_OK;
    if (2 * set.n_tests > FIGURES_MAX) {
        code = bt_error_set(err, BT_ERR_LIMIT, set.n_tests, __FILE__, __LINE__,
                            "%s: %lld tests, at most %d", m->path, (long long)set.n_tests,
                            FIGURES_MAX / 2);
    }
    for (int64_t i = 0; code == BT_OK && i < set.n_tests; i++) {
        const struct bt_llama_bench *t = &set.tests[i];
        (void)snprintf(tests[i], sizeof tests[i], "%lld in, %lld out behind %lld, batch %lld",
                       (long long)t->n_prompt, (long long)t->n_gen, (long long)t->n_depth,
                       (long long)t->n_batch);
        add_figure(&f, tests[i], "time", "s", (double)t->time_ns / 1e9);
        add_figure(&f, tests[i], "rate", "tokens/s", t->tok_per_s);
    }
    if (code == BT_OK) {
        code = store_benchmark(m, store, set.n_tests > 0 ? set.tests[0].model_type : "", &f, err);
    }
    bt_llama_bench_fini(&set);
    return code;
}

/* ---- files ---- */

static bool is_skew(const struct import *m)
{
    return m->format->read == bt_import_llmservingsim && bt_ends_with(m->base, "skew_fit.csv");
}

static enum bt_code import_file(struct import *m, const char *path, struct bt_store *store,
                                struct bt_error *err)
{
    m->path = path;
    BT_TRY(choose(m, err));
    char *text = NULL;
    size_t n_bytes = 0;
    BT_TRY(bt_read_file(path, &text, &n_bytes, err));
    bt_sha256_text(text, n_bytes, m->sha256);
    struct bt_import_text file = {text, n_bytes, path};
    enum bt_code code = is_skew(m)                ? import_skew(m, &file, err)
                        : m->format->read != NULL ? import_table(m, &file, err)
                        : strcmp(m->format->name, "vllm-bench") == 0
                            ? import_vllm_bench(m, &file, store, err)
                            : import_llama_bench(m, &file, store, err);
    free(text);
    return code;
}

static bool is_wanted(const struct format *f, const char *name)
{
    for (int32_t i = 0; f->endings[i] != NULL; i++) {
        if (bt_ends_with(name, f->endings[i])) {
            return true;
        }
    }
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct files {
    char *paths[FILES_MAX]; /* owned */
    int32_t n;
};

/* The files of a folder and below that look like the format's. */
static enum bt_code walk(struct import *m, const char *folder, int32_t depth, struct files *f,
                         struct bt_error *err)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", folder, strerror(errno));
    }
    enum bt_code code = BT_OK;
    for (struct dirent *e; code == BT_OK && (e = readdir(dir)) != NULL;) {
        char path[PATH_BYTES];
        struct stat st;
        bool fits = snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < (int)sizeof path;
        if (e->d_name[0] == '.' || !fits || stat(path, &st) != 0) {
            continue;
        }
        if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX) {
            code = walk(m, path, depth + 1, f, err);
        } else if (S_ISREG(st.st_mode) && is_wanted(m->format, e->d_name) && f->n < FILES_MAX) {
            f->paths[f->n] = strdup(path);
            BT_ASSERT(f->paths[f->n] != NULL);
            f->n++;
        } else if (S_ISREG(st.st_mode)) {
            bt_out_append(m->skipped, bt_out_text(path));
        }
    }
    (void)closedir(dir);
    return code;
}

static enum bt_code import_path(struct import *m, const char *path, struct bt_store *store,
                                struct bt_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", path, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode)) {
        return import_file(m, path, store, err);
    }
    struct files f = {.n = 0};
    enum bt_code code = walk(m, path, 0, &f, err);
    if (code == BT_OK && f.n == 0) {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                            "%s: no file in it is named as %s's are (*%s, ...)", path,
                            m->format->name, m->format->endings[0]);
    }
    qsort(f.paths, (size_t)f.n, sizeof *f.paths, by_text);
    for (int32_t i = 0; i < f.n; i++) {
        if (code == BT_OK) {
            code = import_file(m, f.paths[i], store, err);
        }
        free(f.paths[i]);
    }
    return code;
}

/* ---- the command ---- */

static enum bt_code choose_format(struct import *m, struct bt_error *err)
{
    const char *name = m->cli->args.positional[0];
    for (int32_t i = 0; i < N_FORMATS; i++) {
        if (strcmp(name, FORMATS[i].name) == 0) {
            m->format = &FORMATS[i];
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "format \"%s\": expected aiconfigurator, llmservingsim, vidur, frontier, vllm-bench or "
            "llama-bench",
            name);
}

static const struct bt_out_column TABLES[] = {
    {"file", NULL, BT_UNIT_AUTO},           {"gpu", NULL, BT_UNIT_AUTO},
    {"stack", NULL, BT_UNIT_AUTO},          {"op", "operation", BT_UNIT_AUTO},
    {"samples", NULL, BT_UNIT_NONE},        {"error_median", "left out: median", BT_UNIT_FRACTION},
    {"error_p90", "P90", BT_UNIT_FRACTION},
};
static const struct bt_out_column FIGURES[] = {
    {"file", NULL, BT_UNIT_AUTO},   {"model", NULL, BT_UNIT_AUTO}, {"test", NULL, BT_UNIT_AUTO},
    {"metric", NULL, BT_UNIT_AUTO}, {"value", NULL, BT_UNIT_NONE}, {"unit", NULL, BT_UNIT_AUTO},
};

static enum bt_code answer(struct import *m, int32_t n_changed, struct bt_error *err)
{
    bool tables = m->format->read != NULL;
    struct bt_out_part part = {.kind = BT_OUT_ROWS,
                               .path = "rows",
                               .columns = tables ? TABLES : FIGURES,
                               .n_columns = tables ? sizeof TABLES / sizeof *TABLES
                                                   : sizeof FIGURES / sizeof *FIGURES};
    struct bt_out_view view = {.parts = &part, .n_parts = 1, .csv_rows = "rows"};
    json_t *doc = bt_out_answer("import");
    bt_out_set(doc, "format", bt_out_text(m->format->name));
    bt_out_set(doc, "rows", json_incref(m->rows));
    bt_out_set(doc, "skipped", json_incref(m->skipped));
    if (tables) {
        bt_out_set(doc, "changed", bt_out_int(n_changed));
        bt_cli_note(m->cli, "%d tables, %d of them new or changed", m->n_tables, n_changed);
    }
    if (json_array_size(m->skipped) > 0) {
        bt_cli_note(m->cli, "%zu files are not named as this format's are, and were not read",
                    json_array_size(m->skipped));
    }
    enum bt_code code = bt_cli_write(m->cli, doc, &view, err);
    json_decref(doc);
    return code;
}

static enum bt_code work(struct import *m, struct bt_error *err)
{
    struct bt_store *store = NULL;
    BT_TRY(choose_format(m, err));
    BT_TRY(bt_catalog_open(NULL, 0, &m->catalog, err));
    struct bt_store_opts so = {.path = m->cli->db_path, .catalog = m->catalog};
    BT_TRY(bt_store_open(&so, &store, err));
    enum bt_code code = BT_OK;
    for (int32_t i = 1; code == BT_OK && i < m->cli->args.n_positional; i++) {
        code = import_path(m, m->cli->args.positional[i], store, err);
    }
    int32_t n_changed = 0;
    if (code == BT_OK && m->n_tables > 0) {
        code = bt_store_put_imports(store, m->tables, m->n_tables, &n_changed, err);
    }
    bt_store_close(store);
    return code == BT_OK ? answer(m, n_changed, err) : code;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct import m = {.cli = cli, .rows = bt_out_list(), .skipped = bt_out_list()};
    bt_arena_init(&m.arena, 0);
    m.tables = calloc(TABLES_MAX, sizeof *m.tables);
    BT_ASSERT(m.tables != NULL);
    enum bt_code code = work(&m, err);
    bt_catalog_close(m.catalog);
    bt_arena_fini(&m.arena);
    free(m.tables);
    json_decref(m.rows);
    json_decref(m.skipped);
    return code;
}

static const struct bt_opt OPTS[] = {
    {.name = "gpu",
     .kind = BT_OPT_TEXT,
     .value = "NAME",
     .default_text = "<the path's>",
     .help = "the card that was measured"},
    {.name = "stack",
     .kind = BT_OPT_TEXT,
     .value = "NAME-VERSION",
     .default_text = "<the path's>",
     .help = "the engine or library whose kernels were measured, as vllm-0.19.0"},
    {.name = "model",
     .kind = BT_OPT_TEXT,
     .value = "NAME",
     .default_text = "<the path's>",
     .help = "llmservingsim: the model that was profiled"},
    {.name = "tp",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "<the path's, else 1>",
     .min = 1,
     .max = 64,
     .unit = "ranks",
     .help = "llmservingsim: tensor parallelism that was profiled"},
    {.name = "dtype",
     .kind = BT_OPT_TEXT,
     .value = "FORMAT",
     .default_text = "<the path's, else bf16>",
     .help = "llmservingsim: number format that was profiled: fp32, fp16 or bf16"},
    {.name = "source",
     .kind = BT_OPT_TEXT,
     .value = "TEXT",
     .help = "where the files come from: project, address, commit"},
    {.name = "licence",
     .kind = BT_OPT_TEXT,
     .value = "SPDX",
     .default_text = "<not stated>",
     .help = "their licence"},
    {.name = "collective-order",
     .kind = BT_OPT_TEXT,
     .value = "LIST",
     .help = "aiconfigurator: collectives of a table without op_name, in the order of its blocks, "
             "as allgather,alltoall,reducescatter,allreduce"},
    {.name = "lenient",
     .kind = BT_OPT_FLAG,
     .help = "drop times of 0, and take the median of repeats that differ by more than 20%, "
             "instead of refusing the file"},
};

static const struct bt_example EXAMPLES[] = {
    {"import llmservingsim profiler/perf/RTX4090/meta-llama/Llama-3.1-8B --licence MIT",
     "a profile with its folders, which tell card, model, format and tensor parallelism"},
    {"import aiconfigurator h200_sxm/vllm/0.24.0/gemm_perf.txt --source ai-dynamo/aiconfigurator",
     "one table of operations"},
    {"import vidur mlp.csv --gpu a100 --licence MIT", "a file whose path says nothing"},
    {"import vllm-bench run.json --gpu h200 --stack vllm-0.19", "figures, for db show and fit"},
};

const struct bt_command bt_cmd_import = {
    .name = "import",
    .arguments = "FORMAT PATH...",
    .summary = "others' measurements into the store, for the cost model",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .opts = OPTS,
    .n_opts = sizeof OPTS / sizeof *OPTS,
    .min_positional = 2,
    .max_positional = 1024,
    .notes =
        "FORMAT is aiconfigurator, llmservingsim, vidur, frontier, vllm-bench or llama-bench.\n"
        "All tables are taken or none. A table takes the place of the shipped one of the same\n"
        "card, stack, version and operation; importing a file again changes nothing.\n",
    .run = run,
};
