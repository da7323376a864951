/* Descriptions, fitted workloads and rewritten traces. */
#include "sim/workload/describe.h"
#include "sim/workload/spec.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AZURE    BT_TEST_SOURCE_DIR "/scenarios/traces/AzureLLMInferenceTrace_conv.csv"
#define TRACES   BT_TEST_SOURCE_DIR "/tests/data/traces/"
#define MOONCAKE TRACES "mooncake_500.jsonl"

static struct bt_trace *load(const char *path, const struct bt_trace_opts *opts)
{
    static const struct bt_trace_opts none;
    struct bt_error err = {0};
    struct bt_trace *t = NULL;
    cr_assert_eq(bt_trace_load(path, opts != NULL ? opts : &none, &t, &err), BT_OK, "%s: %s", path,
                 err.msg);
    return t;
}

static const char *temp_path(const char *end)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/describe_%ld.%s", BT_TEST_BINARY_DIR, (long)getpid(), end);
    return path;
}

static double row(const struct bt_description *d, const char *name)
{
    for (int32_t i = 0; i < d->n_rows; i++) {
        if (strcmp(d->rows[i].name, name) == 0) {
            return d->rows[i].value;
        }
    }
    cr_assert(0, "no row %s", name);
    return NAN;
}

/* Figures computed from the file by an independent script. */
Test(describe, azure)
{
    struct bt_trace *t = load(AZURE, NULL);
    struct bt_description d;
    struct bt_error err = {0};
    cr_assert_eq(bt_trace_describe(t, &d, &err), BT_OK, "%s", err.msg);
    static const struct {
        const char *name;
        double value, tolerance;
    } expected[] = {
        {"requests", 19366, 0},
        {"duration_s", 3501.721937, 1e-06},
        {"rate_per_s", 5.5301364152832795, 1e-09},
        {"rate_peak_60s_per_s", 8.45, 1e-09},
        {"interarrival_cv", 1.0941699818437776, 1e-06},
        {"dispersion_1s", 1.3851418849785946, 1e-06},
        {"dispersion_10s", 3.856995898132027, 1e-06},
        {"dispersion_60s", 16.128259128235044, 1e-06},
        {"prompt_tokens_mean", 1154.6974078281523, 1e-09},
        {"prompt_tokens_p50", 1020, 0},
        {"prompt_tokens_p90", 2735, 0},
        {"prompt_tokens_p95", 4083, 0},
        {"prompt_tokens_p99", 4142, 0},
        {"prompt_tokens_max", 14050, 0},
        {"output_tokens_mean", 211.12594237323142, 1e-09},
        {"output_tokens_p50", 129, 0},
        {"output_tokens_p90", 424, 0},
        {"output_tokens_p95", 451, 0},
        {"output_tokens_p99", 601, 0},
        {"output_tokens_max", 1000, 0},
        {"equal_times", 0, 0},
        {"single_token_outputs", 0, 0},
        {"sorted", 1, 0},
        {"tick_s", 0, 0},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        double v = row(&d, expected[i].name);
        cr_expect_float_eq(v, expected[i].value, expected[i].tolerance, "%s: %.9g, not %.9g",
                           expected[i].name, v, expected[i].value);
    }
    cr_expect(isnan(row(&d, "prefix_hit_fraction")));
    bt_trace_destroy(t);
}

Test(describe, mooncake_reuse_of_the_first_500)
{
    struct bt_trace *t = load(MOONCAKE, NULL);
    struct bt_description d;
    cr_assert_eq(bt_trace_describe(t, &d, NULL), BT_OK);
    cr_expect_float_eq(row(&d, "prefix_hit_block_fraction"), 2283.0 / 14162, 1e-12);
    cr_expect_float_eq(row(&d, "prefix_hit_fraction"), 1167589.0 / 7124855, 1e-12);
    cr_expect_eq(row(&d, "tick_s"), 3.0);
    cr_expect_eq(row(&d, "ticks_spread"), 1.0);
    bt_trace_destroy(t);
}

Test(describe, oddities_are_counted)
{
    struct bt_trace *t = load(TRACES "burstgpt_1.csv", NULL);
    struct bt_description d;
    cr_assert_eq(bt_trace_describe(t, &d, NULL), BT_OK);
    cr_expect_eq(row(&d, "rows"), 5);
    cr_expect_eq(row(&d, "requests"), 3);
    cr_expect_eq(row(&d, "failed_in_trace"), 1);
    cr_expect_eq(row(&d, "zero_prompt"), 1);
    cr_expect_eq(row(&d, "single_token_outputs"), 1);
    cr_expect_eq(row(&d, "sorted"), 1);
    cr_expect(isnan(row(&d, "dispersion_60s")), "one whole minute tells nothing");
    bt_trace_destroy(t);
    struct bt_trace_opts beyond = {.from_s = 1e6};
    struct bt_error err = {0};
    t = load(AZURE, &beyond);
    cr_expect_eq(bt_trace_describe(t, &d, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "no request to describe (19366 rows"), "%s", err.msg);
    bt_trace_destroy(t);
}

/* Requests drawn from a known workload, written as a trace and read back. */
static struct bt_trace *trace_of(const struct bt_workload_spec *spec)
{
    struct bt_error err = {0};
    struct bt_source *s = NULL;
    cr_assert_eq(bt_source_create(spec, 3, &s, &err), BT_OK, "%s", err.msg);
    const char *path = temp_path("csv");
    FILE *f = fopen(path, "w");
    fputs("arrival_ns,n_prompt,n_output\n", f);
    struct bt_request q;
    while (bt_source_next(s, &q, &err) == BT_SOURCE_MORE) {
        fprintf(f, "%lld,%d,%d\n", (long long)q.arrival_ns, q.n_prompt, q.n_output);
    }
    fclose(f);
    bt_source_destroy(s);
    struct bt_trace *t = load(path, NULL);
    remove(path);
    return t;
}

Test(fit, finds_the_workload_that_a_trace_was_drawn_from)
{
    struct bt_workload_spec spec = {
        .kind = BT_WORKLOAD_GENERATED,
        .arrival = BT_ARRIVAL_GAMMA,
        .rate_per_s = 20,
        .cv = 2.5,
        .duration_s = 2000,
        .prompt = {.kind = BT_DIST_LOGNORMAL, .mean = 650, .p95 = 1500},
        .output = {.kind = BT_DIST_CONST, .value = 64},
    };
    struct bt_trace *t = trace_of(&spec);
    char *text = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_trace_fit_lua(t, &text, &err), BT_OK, "%s", err.msg);
    double rate, cv, duration, mean;
    int p95;
    cr_assert_eq(sscanf(text,
                        "w.gamma { rate_per_s = %lf, cv = %lf, duration_s = %lf, "
                        "prompt = w.lognormal { mean = %lf, p95 = %d }, output = w.const(64),",
                        &rate, &cv, &duration, &mean, &p95),
                 5, "%s", text);
    cr_expect_float_eq(rate, 20, 0.8);
    cr_expect_float_eq(cv, 2.5, 0.1);
    cr_expect_float_eq(mean, 650, 10);
    cr_expect_float_eq(p95, 1500, 45);
    cr_expect_eq(text[strlen(text) - 2], '}');
    free(text);
    bt_trace_destroy(t);
    spec.arrival = BT_ARRIVAL_POISSON;
    t = trace_of(&spec);
    cr_assert_eq(bt_trace_fit_lua(t, &text, &err), BT_OK);
    cr_expect_eq(strncmp(text, "w.poisson {", 11), 0, "%s", text);
    free(text);
    bt_trace_destroy(t);
    /* Two minds: no lognormal fits, and the list keeps the mean. */
    static const struct bt_dist_spec parts[] = {
        {.kind = BT_DIST_CONST, .value = 100}, {.kind = BT_DIST_UNIFORM, .min = 3000, .max = 4000}};
    spec.prompt = (struct bt_dist_spec){.kind = BT_DIST_MIXTURE, .parts = parts, .n_parts = 2};
    t = trace_of(&spec);
    cr_assert_eq(bt_trace_fit_lua(t, &text, &err), BT_OK);
    const char *values = strstr(text, "prompt = w.empirical {\n    values = { ");
    const char *weights = strstr(text, "weights = { ");
    cr_assert(values != NULL && weights != NULL, "%s", text);
    values = strchr(strchr(values, '{') + 1, '{') + 1;
    weights = strchr(weights, '{') + 1;
    double sum = 0;
    double n = 0;
    for (;;) {
        char *v_end, *w_end;
        double v = strtod(values, &v_end);
        double w = strtod(weights, &w_end);
        if (v_end == values || w_end == weights) {
            break;
        }
        sum += v * w;
        n += w;
        values = v_end + 1;
        weights = w_end + 1;
    }
    struct bt_description d;
    cr_assert_eq(bt_trace_describe(t, &d, &err), BT_OK);
    cr_expect_eq(n, (double)bt_trace_n(t));
    cr_expect_float_eq(sum / n, d.summary.prompt.mean, 1e-3 * sum / n);
    free(text);
    bt_trace_destroy(t);
}

Test(fit, a_rate_that_changes_becomes_a_profile)
{
    static const struct bt_rate_point day[] = {{0, 2}, {1800, 30}, {3600, 2}};
    struct bt_workload_spec spec = {
        .kind = BT_WORKLOAD_GENERATED,
        .points = day,
        .n_points = 3,
        .duration_s = 3600,
        .prompt = {.kind = BT_DIST_CONST, .value = 10},
        .output = {.kind = BT_DIST_CONST, .value = 10},
    };
    struct bt_trace *t = trace_of(&spec);
    char *text = NULL;
    cr_assert_eq(bt_trace_fit_lua(t, &text, NULL), BT_OK);
    cr_expect_eq(strncmp(text, "w.diurnal {", 11), 0, "%s", text);
    const char *cv = strstr(text, "cv = ");
    cr_assert_not_null(cv);
    cr_expect_float_eq(strtod(cv + 5, NULL), 1.0, 0.05);
    free(text);
    bt_trace_destroy(t);
}

Test(write, a_rewritten_trace_reads_back_the_same)
{
    static const struct {
        const char *path;
        const char *columns;
    } files[] = {
        {AZURE, NULL},
        {MOONCAKE, NULL},
        {TRACES "qwen.jsonl", NULL},
        {TRACES "quoted.csv", NULL},
        {TRACES "burstgpt_measured.csv",
         "finish=record_time_monotonic_s,prompt=in_len,output=max_tokens,"
         "ttft=first_chunk_time_s,e2e=total_chunk_time_s"},
    };
    static const enum bt_trace_format formats[] = {BT_TRACE_CSV, BT_TRACE_JSONL};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        for (size_t k = 0; k < 2; k++) {
            struct bt_trace_opts opts = {.columns = files[f].columns};
            struct bt_error err = {0};
            struct bt_trace *t = load(files[f].path, &opts);
            const char *path = temp_path("out");
            FILE *out = fopen(path, "w");
            cr_assert_eq(bt_trace_write(t, formats[k], out, &err), BT_OK, "%s", err.msg);
            fclose(out);
            struct bt_trace *back = load(path, NULL);
            remove(path);
            cr_expect_eq(bt_trace_format_of(back), formats[k]);
            cr_assert_eq(bt_trace_n(back), bt_trace_n(t));
            struct bt_request first;
            bt_trace_get(t, 0, &first);
            for (int64_t i = 0; i < bt_trace_n(t); i++) {
                struct bt_request a, b;
                bt_trace_get(t, i, &a);
                bt_trace_get(back, i, &b);
                cr_assert_eq(b.arrival_ns, a.arrival_ns - first.arrival_ns);
                cr_assert(a.n_prompt == b.n_prompt && a.n_output == b.n_output);
                cr_assert(a.priority == b.priority && a.n_hashes == b.n_hashes);
                cr_assert((a.session < 0) == (b.session < 0));
                cr_assert(a.n_hashes == 0 ||
                          memcmp(a.hashes, b.hashes, (size_t)a.n_hashes * sizeof(uint64_t)) == 0);
                struct bt_measured x = {0};
                struct bt_measured y = {0};
                cr_assert_eq(bt_trace_measured(t, a.id, &x), bt_trace_measured(back, b.id, &y));
                cr_assert(x.ttft_ns == y.ttft_ns && x.e2e_ns == y.e2e_ns && x.tpot_ns == y.tpot_ns);
            }
            bt_trace_destroy(back);
            bt_trace_destroy(t);
        }
    }
    struct bt_error err = {0};
    struct bt_trace *t = load(AZURE, NULL);
    cr_expect_eq(bt_trace_write(t, BT_TRACE_AZURE, stdout, &err), BT_ERR_ARG);
    bt_trace_destroy(t);
}
