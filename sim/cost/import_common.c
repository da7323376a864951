#include "sim/cost/import.h"
#include "sim/cost/surface.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum bt_code bt_import_begin(const struct bt_import_opts *opts, struct bt_sample_set *set,
                             struct bt_cost_sample *common, struct bt_error *err)
{
    const struct {
        const char *name;
        const char *value;
    } required[] = {{"gpu", opts->gpu},
                    {"stack", opts->stack},
                    {"source", opts->source},
                    {"licence", opts->licence}};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        if (required[i].value == NULL || required[i].value[0] == '\0') {
            BT_FAIL(err, BT_ERR_ARG, 0, "import: %s is required: nothing without provenance",
                    required[i].name);
        }
    }
    memset(common, 0, sizeof *common);
    common->spread_ns = -1;
    common->gpu = bt_sample_set_intern(set, opts->gpu);
    common->stack = bt_sample_set_intern(set, opts->stack);
    common->version = bt_sample_set_intern(set, opts->version == NULL ? "" : opts->version);
    common->source = bt_sample_set_intern(set, opts->source);
    common->licence = bt_sample_set_intern(set, opts->licence);
    common->kernel = bt_sample_set_intern(set, "");
    if (common->gpu == NULL || common->stack == NULL || common->version == NULL ||
        common->source == NULL || common->licence == NULL || common->kernel == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "import: no memory for names");
    }
    return BT_OK;
}

double bt_import_peak(const struct bt_gpu *g, const struct bt_op_format *f)
{
    if (bt_num_is_int8(f->weights) && bt_num_is_int8(f->activations)) {
        return g->int8_ops_per_s;
    }
    if (bt_num_is_fp8(f->activations) && (bt_num_is_fp8(f->weights) || f->weights == BT_NUM_NONE)) {
        return g->fp8_flops_per_s;
    }
    if (f->weights == BT_NUM_FP32 || f->activations == BT_NUM_FP32) {
        return g->fp32_flops_per_s;
    }
    return g->fp16_flops_per_s;
}

/* A rate past the dense peak is a sparse figure, a wrong unit or another GPU's file. */
static enum bt_code check_peak(const struct bt_import_text *file, const struct bt_gpu *g,
                               const struct bt_cost_sample *s, struct bt_error *err)
{
    const double slack = 1.15; /* boost clocks above the one that the data sheet's rate assumes */
    double peak = bt_import_peak(g, &s->format);
    double rate = bt_op_work(s->op, &s->format, &s->shape).flops / ((double)s->time_ns * 1e-9);
    if (s->op != BT_OP_HOST && peak > 0 && rate > peak * slack) {
        BT_FAIL(err, BT_ERR_INPUT, s->line,
                "%s:%d: %s in %lld ns is %.0f TFLOP/s, above %.0f, the dense peak of %s: a wrong "
                "unit, a sparse rate or another GPU",
                file->name, s->line, bt_op_name(s->op), (long long)s->time_ns, rate * 1e-12,
                peak * 1e-12, g->name);
    }
    return BT_OK;
}

enum bt_code bt_import_add(const struct bt_import_text *file, const struct bt_import_opts *opts,
                           struct bt_sample_set *set, struct bt_cost_sample *sample, double time,
                           double unit_ns, struct bt_import_report *report, struct bt_error *err)
{
    BT_ASSERT(unit_ns > 0);
    double ns = time * unit_ns;
    if (!(ns >= 0.5) && opts->lenient) {
        report->n_dropped++;
        (void)snprintf(report->note, sizeof report->note, "%s:%d: a time of %g dropped", file->name,
                       sample->line, time);
        return BT_OK;
    }
    if (!(ns >= 0.5)) {
        BT_FAIL(err, BT_ERR_INPUT, sample->line, "%s:%d: a time of %g, expected more than 0",
                file->name, sample->line, time);
    }
    const double longest_ns = 3600e9;
    if (ns > longest_ns) {
        BT_FAIL(err, BT_ERR_INPUT, sample->line,
                "%s:%d: one %s takes %g s, expected less than an hour", file->name, sample->line,
                bt_op_name(sample->op), ns * 1e-9);
    }
    sample->time_ns = (int64_t)llround(ns);
    if (opts->hardware != NULL) {
        BT_TRY(check_peak(file, opts->hardware, sample, err));
    }
    return bt_sample_set_add(set, sample, err);
}

static int compare_int(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* By everything but time and main coordinate; then by that; then by line. */
static int compare_series(const struct bt_cost_sample *a, const struct bt_cost_sample *b)
{
    int c = compare_int(a->op, b->op);
    c = c != 0 ? c : compare_int(a->format.weights, b->format.weights);
    c = c != 0 ? c : compare_int(a->format.activations, b->format.activations);
    c = c != 0 ? c : compare_int(a->format.kv, b->format.kv);
    c = c != 0 ? c : strcmp(a->kernel, b->kernel);
    struct bt_op_shape p = a->shape;
    struct bt_op_shape q = b->shape;
    *bt_op_main_coordinate(a->op, &p) = 0;
    *bt_op_main_coordinate(b->op, &q) = 0;
    const int64_t fa[] = {p.m,   p.n,     p.k,        p.batch,    p.q_len, p.prefix,
                          p.ctx, p.heads, p.kv_heads, p.head_dim, p.bytes, p.ranks};
    const int64_t fb[] = {q.m,   q.n,     q.k,        q.batch,    q.q_len, q.prefix,
                          q.ctx, q.heads, q.kv_heads, q.head_dim, q.bytes, q.ranks};
    for (size_t i = 0; c == 0 && i < sizeof fa / sizeof fa[0]; i++) {
        c = compare_int(fa[i], fb[i]);
    }
    return c;
}

static int64_t main_value(const struct bt_cost_sample *s)
{
    struct bt_op_shape shape = s->shape;
    return *bt_op_main_coordinate(s->op, &shape);
}

static int compare_samples(const void *a, const void *b)
{
    const struct bt_cost_sample *x = a;
    const struct bt_cost_sample *y = b;
    int c = compare_series(x, y);
    c = c != 0 ? c : compare_int(main_value(x), main_value(y));
    c = c != 0 ? c : compare_int(x->time_ns, y->time_ns);
    return c != 0 ? c : compare_int(x->line, y->line);
}

/* Folds samples[begin..end), one point, times rising, into its median. */
static enum bt_code fold_repeats(const struct bt_import_text *file,
                                 const struct bt_import_opts *opts, struct bt_cost_sample *samples,
                                 int64_t n, struct bt_cost_sample *out,
                                 struct bt_import_report *report, struct bt_error *err)
{
    const struct bt_cost_sample *low = &samples[0];
    const struct bt_cost_sample *high = &samples[n - 1];
    double percent = 100.0 * ((double)high->time_ns / (double)low->time_ns - 1);
    if (percent > BT_IMPORT_DUPLICATE_PERCENT) {
        if (!opts->lenient) {
            BT_FAIL(err, BT_ERR_INPUT, high->line,
                    "%s:%d: the %s of line %d again, %lld ns against %lld ns: repeats may differ "
                    "by %d%%, these differ by %.0f%%",
                    file->name, high->line, bt_op_name(high->op), low->line,
                    (long long)high->time_ns, (long long)low->time_ns, BT_IMPORT_DUPLICATE_PERCENT,
                    percent);
        }
        (void)snprintf(report->note, sizeof report->note,
                       "%s:%d: repeats line %d and differs by %.0f%%: median taken", file->name,
                       high->line, low->line, percent);
    }
    int64_t median = samples[n / 2].time_ns;
    if (n % 2 == 0) {
        median = (samples[n / 2 - 1].time_ns + median) / 2;
    }
    report->n_merged += n - 1;
    *out = samples[0];
    out->time_ns = median;
    return BT_OK;
}

static enum bt_code check_units(const struct bt_import_text *file, const struct bt_cost_sample *s,
                                int64_t n, struct bt_error *err)
{
    for (int64_t i = 1; i + 1 < n; i++) {
        if (compare_series(&s[i - 1], &s[i]) != 0 || compare_series(&s[i], &s[i + 1]) != 0) {
            continue;
        }
        double left = (double)s[i].time_ns / (double)s[i - 1].time_ns;
        double right = (double)s[i].time_ns / (double)s[i + 1].time_ns;
        const double factor = BT_IMPORT_UNIT_FACTOR;
        if ((left > factor && right > factor) || (left < 1 / factor && right < 1 / factor)) {
            BT_FAIL(err, BT_ERR_INPUT, s[i].line,
                    "%s:%d: mixed units: %lld ns between %lld and %lld ns of its neighbours (lines "
                    "%d and %d); at most a factor of %d is believed",
                    file->name, s[i].line, (long long)s[i].time_ns, (long long)s[i - 1].time_ns,
                    (long long)s[i + 1].time_ns, s[i - 1].line, s[i + 1].line,
                    BT_IMPORT_UNIT_FACTOR);
        }
    }
    return BT_OK;
}

enum bt_code bt_import_finish(const struct bt_import_text *file, const struct bt_import_opts *opts,
                              struct bt_sample_set *set, int64_t first,
                              struct bt_import_report *report, struct bt_error *err)
{
    struct bt_cost_sample *s = set->samples + first;
    int64_t n = set->n_samples - first;
    if (n == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: no sample in it", file->name);
    }
    qsort(s, (size_t)n, sizeof *s, compare_samples);
    int64_t kept = 0;
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        while (end < n && compare_series(&s[i], &s[end]) == 0 &&
               main_value(&s[i]) == main_value(&s[end])) {
            end++;
        }
        struct bt_cost_sample folded;
        BT_TRY(fold_repeats(file, opts, s + i, end - i, &folded, report, err));
        s[kept++] = folded;
        i = end;
    }
    set->n_samples = first + kept;
    BT_TRY(check_units(file, s, kept, err));
    report->n_samples += kept;
    return BT_OK;
}
