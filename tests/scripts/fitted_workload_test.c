/* The workload that `trace describe` fits is Lua that a scenario takes, and it is like the trace.
 */
#include "scripts/host/scenario.h"
#include "sim/workload/describe.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_int32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void expect_like(const char *what, int32_t *lengths, int64_t n,
                        const struct bt_length_summary *expected)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += lengths[i];
    }
    qsort(lengths, (size_t)n, sizeof *lengths, compare_int32);
    double mean = sum / (double)n;
    double p95 = lengths[(int64_t)ceil(0.95 * (double)n) - 1];
    cr_expect_float_eq(mean, expected->mean, 0.04 * expected->mean, "%s: mean %g, not %g", what,
                       mean, expected->mean);
    cr_expect_float_eq(p95, expected->p95, 0.08 * expected->p95, "%s: p95 %g, not %d", what, p95,
                       expected->p95);
}

Test(fitted_workload, is_lua_and_draws_what_the_trace_holds)
{
    static const char *const files[] = {
        BT_TEST_SOURCE_DIR "/scenarios/traces/AzureLLMInferenceTrace_conv.csv",
        BT_TEST_SOURCE_DIR "/tests/data/traces/mooncake_500.jsonl",
    };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        static const struct bt_trace_opts none;
        struct bt_error err = {0};
        struct bt_trace *t = NULL;
        struct bt_description d;
        char *fitted = NULL;
        cr_assert_eq(bt_trace_load(files[f], &none, &t, &err), BT_OK, "%s", err.msg);
        cr_assert_eq(bt_trace_describe(t, &d, &err), BT_OK, "%s", err.msg);
        cr_assert_eq(bt_trace_fit_lua(t, &fitted, &err), BT_OK, "%s", err.msg);
        static char text[32768];
        int n_text = snprintf(text, sizeof text,
                              "local w = require 'berth.workload'\n"
                              "return { model = 'm', gpu = 'h200', workload =\n%s}\n",
                              fitted);
        cr_assert(n_text > 0 && n_text < (int)sizeof text);
        struct bt_scenario s;
        cr_assert_eq(bt_scenario_parse(text, (size_t)n_text, "s.lua", &s, &err), BT_OK, "%s\n%s",
                     err.msg, text);
        /* The mean of many streams, as the cut of Mooncake is short. */
        enum { CAP = 200000, SEEDS = 8 };
        static int32_t prompt[CAP], output[CAP];
        int64_t n = 0;
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            struct bt_source *source = NULL;
            struct bt_request q;
            cr_assert_eq(bt_source_create(&s.workload, seed, &source, &err), BT_OK, "%s", err.msg);
            while (bt_source_next(source, &q, &err) == BT_SOURCE_MORE) {
                cr_assert_lt(n, CAP);
                prompt[n] = q.n_prompt;
                output[n++] = q.n_output;
            }
            bt_source_destroy(source);
        }
        double per_stream = (double)n / SEEDS;
        cr_expect_float_eq(per_stream, (double)d.summary.n, 0.05 * (double)d.summary.n,
                           "%s: %g requests, not %lld", files[f], per_stream,
                           (long long)d.summary.n);
        expect_like("prompt", prompt, n, &d.summary.prompt);
        expect_like("output", output, n, &d.summary.output);
        bt_scenario_fini(&s);
        free(fitted);
        bt_trace_destroy(t);
    }
}
