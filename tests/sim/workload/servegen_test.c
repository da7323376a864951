/* ServeGen client models: two real clients, and small ones that show a rule each. */
#include "sim/workload/client.h"
#include "sim/workload/spec.h"
#include "tests/sim/workload/same_request.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLIENTS BT_TEST_SOURCE_DIR "/tests/data/traces/servegen"

static struct bt_source *create(const struct bt_workload_spec *spec, uint64_t seed)
{
    struct bt_error err = {0};
    struct bt_source *s = NULL;
    cr_assert_eq(bt_source_create(spec, seed, &s, &err), BT_OK, "%s", err.msg);
    return s;
}

Test(servegen, real_clients_are_merged_in_order)
{
    struct bt_workload_spec spec = {.kind = BT_WORKLOAD_SERVEGEN, .dir = CLIENTS, .timeout_s = 30};
    struct bt_source *s = create(&spec, 3);
    struct bt_request q;
    int64_t before_ns = 0;
    int64_t n = 0;
    int64_t in_window[3] = {0};
    while (bt_source_next(s, &q, NULL) == BT_SOURCE_MORE) {
        cr_assert_geq(q.arrival_ns, before_ns);
        cr_assert_eq(q.id, n++);
        cr_assert_eq(q.timeout_ns, 30000000000);
        before_ns = q.arrival_ns;
        double t = (double)q.arrival_ns / 1e9;
        int w = t >= 37800 && t < 38400   ? 0
                : t >= 39600 && t < 40200 ? 1
                : t >= 40800 && t < 41400 ? 2
                                          : -1;
        cr_assert_geq(w, 0, "a request outside the clients' hours, at %g s", t);
        in_window[w]++;
        /* chunk-2's tables alone are in force in its window: 60 to 127 tokens in. */
        cr_assert(w != 2 || (q.n_prompt >= 60 && q.n_prompt <= 127));
        cr_assert(w == 2 || (q.n_prompt >= 4 && q.n_prompt <= 22009));
    }
    /* 0.425, 0.328 and 0.52 a second for 600 s: 255 (CV 3.4: wide), 197, 312. */
    cr_expect_float_eq((double)in_window[0], 255, 180);
    cr_expect_float_eq((double)in_window[1], 197, 60);
    cr_expect_float_eq((double)in_window[2], 312, 75);
    bt_source_destroy(s);
}

Test(servegen, rates_hold_on_average_and_scale_to_a_target)
{
    struct bt_workload_spec spec = {.kind = BT_WORKLOAD_SERVEGEN,
                                    .dir = CLIENTS,
                                    .start_s = 39600,
                                    .duration_s = 1800,
                                    .target_rate_per_s = 7};
    double total = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct bt_source *s = create(&spec, seed);
        struct bt_request q;
        int64_t last_ns = 0;
        while (bt_source_next(s, &q, NULL) == BT_SOURCE_MORE) {
            total += 1;
            last_ns = q.arrival_ns;
        }
        cr_expect_lt(last_ns, 1800000000000);
        bt_source_destroy(s);
    }
    cr_expect_float_eq(total / 20 / 1800, 7, 0.1, "%g", total / 20 / 1800);
}

Test(servegen, rewinds_and_stops_at_n_requests)
{
    struct bt_workload_spec spec = {
        .kind = BT_WORKLOAD_SERVEGEN, .dir = CLIENTS, .n_requests = 50, .rate_scale = 2};
    struct bt_source *s = create(&spec, 3);
    struct bt_request first[50], q;
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(bt_source_next(s, &first[i], NULL), BT_SOURCE_MORE);
    }
    cr_assert_eq(bt_source_next(s, &q, NULL), BT_SOURCE_END);
    cr_assert_eq(bt_source_rewind(s, NULL), BT_OK);
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(bt_source_next(s, &q, NULL), BT_SOURCE_MORE);
        cr_assert(same_request(&q, &first[i]));
    }
    bt_source_destroy(s);
    cr_expect_lt(first[0].arrival_ns, 20000000000000, "time is compressed");
}

/* A directory with one client of the given files. */
static const char *make_client(const char *trace, const char *dataset)
{
    static char dir[200];
    char path[300];
    snprintf(dir, sizeof dir, "%s/servegen_%ld", BT_TEST_BINARY_DIR, (long)getpid());
    mkdir(dir, 0755);
    snprintf(path, sizeof path, "%s/a-trace.csv", dir);
    FILE *f = fopen(path, "w");
    fputs(trace, f);
    fclose(f);
    snprintf(path, sizeof path, "%s/a-dataset.json", dir);
    f = fopen(path, "w");
    fputs(dataset, f);
    fclose(f);
    return dir;
}

static void remove_client(const char *dir)
{
    char path[300];
    snprintf(path, sizeof path, "%s/a-trace.csv", dir);
    remove(path);
    snprintf(path, sizeof path, "%s/a-dataset.json", dir);
    remove(path);
    rmdir(dir);
}

#define PDF(in, out) "{\"input_tokens\": \"" in "\", \"output_tokens\": \"" out "\"}"

Test(servegen, windows_without_tables_use_those_before_or_else_after)
{
    const char *dir =
        make_client("0,5,1,,0,0\r\n100,5,1,,0,0\r\n200,5,1,,0,0",
                    "{\"0\": " PDF("{}", "{}") ", \"100\": " PDF(
                        "{7: 0.5, 9: 0.5}", "{3: 1.0}") ", \"200\": " PDF("{}", "{}") "}");
    struct bt_workload_spec spec = {.kind = BT_WORKLOAD_SERVEGEN, .dir = dir};
    struct bt_source *s = create(&spec, 1);
    struct bt_request q;
    int64_t n = 0;
    int64_t sevens = 0;
    while (bt_source_next(s, &q, NULL) == BT_SOURCE_MORE) {
        n++;
        sevens += q.n_prompt == 7;
        cr_assert(q.n_prompt == 7 || q.n_prompt == 9);
        cr_assert_eq(q.n_output, 3);
    }
    cr_expect_float_eq((double)n, 1500, 160);
    cr_expect_float_eq((double)sevens / (double)n, 0.5, 0.06);
    bt_source_destroy(s);
    remove_client(dir);
}

Test(servegen, malformed_models_name_file_and_place)
{
#define GOOD "{\"0\": " PDF("{7: 1.0}", "{3: 1.0}") "}"
    static const struct {
        const char *trace, *dataset, *says;
    } cases[] = {
        {"0,1,1,Gamma,1,1\n", GOOD, "a-trace.csv: expected two windows or more"},
        {"0,1,1,Gamma,1\n", GOOD, "a-trace.csv:1: 5 fields; expected 6"},
        {"0,1,1,,0,0\n600,-1,1,,0,0\n", GOOD, "a-trace.csv:2: column rate: value \"-1\""},
        {"0,1,1,,0,0\n0,1,1,,0,0\n", GOOD, ":2: column window start: value \"0\": expected later"},
        {"0,1,1,Normal,1,1\n600,1,1,,0,0\n", GOOD,
         ":1: column distribution: value \"Normal\": expected Gamma, Weibull or nothing"},
        {"0,1,1,Gamma,0,1\n600,1,1,,0,0\n", GOOD, ":1: column shape: value \"0\""},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"0\": {}}",
         "a-dataset.json: window \"0\": input_tokens: expected a string"},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"0\": " PDF("{7: x}", "{3: 1}") "}",
         "window \"0\": input_tokens: expected a string \"{tokens: probability, ...}\", got"},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"0\": " PDF("{7: 1.0", "{3: 1}") "}", "input_tokens"},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"0\": " PDF("{7: 1}", "{}") "}", "one is empty"},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"0\": " PDF("{}", "{}") "}", "tables are empty"},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"0\": " PDF("{7: 0}", "{3: 1}") "}", "sum > 0"},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"x\": " PDF("{7: 1}", "{3: 1}") "}", "key \"x\""},
        {"0,1,1,,0,0\n600,1,1,,0,0\n", "{\"0\": ", "a-dataset.json:1:"},
        {"0,0,0,,0,0\n600,0,0,,0,0\n", GOOD, "no client sends anything"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *dir = make_client(cases[i].trace, cases[i].dataset);
        struct bt_workload_spec spec = {.kind = BT_WORKLOAD_SERVEGEN, .dir = dir};
        struct bt_error err = {0};
        struct bt_source *s = NULL;
        cr_expect_eq(bt_source_create(&spec, 1, &s, &err), BT_ERR_INPUT, "case %zu", i);
        cr_expect_not_null(strstr(err.msg, cases[i].says), "case %zu: \"%s\" lacks \"%s\"", i,
                           err.msg, cases[i].says);
        remove_client(dir);
    }
    struct bt_error err = {0};
    struct bt_source *s = NULL;
    struct bt_workload_spec spec = {.kind = BT_WORKLOAD_SERVEGEN, .dir = "not/there"};
    cr_expect_eq(bt_source_create(&spec, 1, &s, &err), BT_ERR_IO);
    spec.dir = BT_TEST_SOURCE_DIR "/cmake";
    bt_error_clear(&err);
    cr_expect_eq(bt_source_create(&spec, 1, &s, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "no NAME-trace.csv"), "%s", err.msg);
    spec.dir = CLIENTS;
    spec.start_s = 1e6;
    bt_error_clear(&err);
    cr_expect_eq(bt_source_create(&spec, 1, &s, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "workload.start_s: expected less than"), "%s", err.msg);
}
