#include "db/store.h"
#include "tests/db/store_fixture.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

Test(store, default_path_follows_the_environment)
{
    char path[BT_STORE_PATH_BYTES];
    struct bt_error err = {0};
    setenv("HOME", "/people/ada", 1);
    setenv("XDG_DATA_HOME", "/data", 1);
    setenv("BERTH_DB", "x/y.db", 1);
    cr_assert_eq(bt_store_default_path(path, &err), BT_OK);
    cr_expect_str_eq(path, "x/y.db");
    unsetenv("BERTH_DB");
    cr_assert_eq(bt_store_default_path(path, &err), BT_OK);
    cr_expect_str_eq(path, "/data/berth/berth.db");
    setenv("XDG_DATA_HOME", "relative/is/ignored", 1);
    cr_assert_eq(bt_store_default_path(path, &err), BT_OK);
    cr_expect_str_eq(path, "/people/ada/.local/share/berth/berth.db");
    unsetenv("XDG_DATA_HOME");
    unsetenv("HOME");
    cr_expect_eq(bt_store_default_path(path, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "BERTH_DB"), "%s", err.msg);
}

Test(store, is_created_with_folders_on_first_use_and_opened_again)
{
    setenv("XDG_DATA_HOME", bt_store_test_dir(), 1);
    unsetenv("BERTH_DB");
    struct bt_error err = {0};
    struct bt_store *s = NULL;
    int32_t before = -1;
    int32_t after = -1;
    cr_assert_eq(bt_store_open(&(struct bt_store_opts){0}, &s, &err), BT_OK, "%s", err.msg);
    bt_store_versions(s, &before, &after);
    cr_expect_eq(before, 0);
    cr_expect_eq(after, BT_STORE_VERSION);
    char path[BT_STORE_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s", bt_store_path(s));
    bt_store_close(s);
    cr_expect_eq(bt_store_test_int(path, "PRAGMA application_id"), BT_STORE_APPLICATION_ID);
    cr_expect_eq(bt_store_test_int(path, "PRAGMA user_version"), BT_STORE_VERSION);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM pragma_table_list WHERE "
                                         "schema = 'main' AND type = 'table' AND strict = 0 "
                                         "AND name NOT LIKE 'sqlite_%'"),
                 0, "a table is not STRICT");
    cr_assert_eq(bt_store_open(&(struct bt_store_opts){0}, &s, &err), BT_OK, "%s", err.msg);
    bt_store_versions(s, &before, &after);
    cr_expect_eq(before, BT_STORE_VERSION);
    bt_store_close(s);
    (void)remove(path);
    *strrchr(path, '/') = '\0';
    (void)remove(path);
}

Test(store, catalog_is_loaded_once_and_kept_beside_own_gpus)
{
    struct bt_error err = {0};
    struct bt_catalog *c = NULL;
    struct bt_store *s = NULL;
    cr_assert_eq(bt_catalog_open(NULL, 0, &c, &err), BT_OK);
    struct bt_store_opts o = {.path = bt_store_test_path("a.db"), .catalog = c};
    char path[1024];
    (void)snprintf(path, sizeof path, "%s", o.path);
    cr_assert_eq(bt_store_open(&o, &s, &err), BT_OK, "%s", err.msg);
    int32_t n = 0;
    cr_assert_eq(bt_store_read_table(s, "gpus", 0, bt_store_test_count, &n, &err), BT_OK);
    cr_expect_eq(n, bt_catalog_n_gpus(c));
    n = 0;
    cr_assert_eq(bt_store_read_table(s, "models", 0, bt_store_test_count, &n, &err), BT_OK);
    cr_expect_eq(n, bt_catalog_n_models(c));
    n = 0;
    cr_assert_eq(bt_store_read_table(s, "prices", 0, bt_store_test_count, &n, &err), BT_OK);
    cr_expect_eq(n, bt_catalog_n_prices(c));

    struct bt_gpu host = {.name = "host",
                          .product = "test processor",
                          .memory_bytes = 1000,
                          .usable_bytes = 900,
                          .mem_bytes_per_s = 2e10,
                          .fp32_flops_per_s = 1e11};
    struct bt_gpu l4 = bt_catalog_gpu_at(c, 0)->gpu;
    l4.mem_bytes_per_s = 123e9;
    struct bt_store_provenance measured = {.kind = "measured", .source = "berth calibrate"};
    cr_assert_eq(bt_store_put_gpu(s, &host, &measured, &err), BT_OK, "%s", err.msg);
    host.mem_bytes_per_s = 3e10;
    cr_assert_eq(bt_store_put_gpu(s, &host, &measured, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_put_gpu(s, &l4, &measured, &err), BT_OK, "%s", err.msg);
    bt_store_close(s);

    /* A program with another catalog loads it again; what the user measured stays. */
    bt_store_test_sql(path, "UPDATE meta SET value = 'old'");
    cr_assert_eq(bt_store_open(&o, &s, &err), BT_OK, "%s", err.msg);
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct bt_gpu *own = NULL;
    cr_assert_eq(bt_store_load_gpus(s, &arena, &own, &n, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(n, 2);
    cr_expect_str_eq(own[0].name, "host");
    cr_expect_float_eq(own[0].mem_bytes_per_s, 3e10, 1);
    cr_expect_eq(own[0].family, BT_GPU_CPU);
    cr_expect_str_eq(own[1].name, l4.name);
    cr_expect_float_eq(own[1].mem_bytes_per_s, 123e9, 1);
    n = 0;
    cr_assert_eq(bt_store_read_table(s, "prices", 0, bt_store_test_count, &n, &err), BT_OK);
    cr_expect_eq(n, bt_catalog_n_prices(c));
    bt_arena_fini(&arena);
    bt_store_close(s);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM provenance WHERE kind = 'shipped'"),
                 2);
    bt_catalog_close(c);
}

struct text_sink {
    char text[8192];
};

/* "section name=value name=value\n" of the columns asked for in tests. */
static bool sink_row(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    struct text_sink *t = ctx;
    size_t used = strlen(t->text);
    used += (size_t)snprintf(t->text + used, sizeof t->text - used, "%s", section);
    for (int32_t i = 0; i < n; i++) {
        const struct bt_value *v = &values[i];
        switch (v->type) {
        case BT_VALUE_NULL:
            used += (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=-", v->name);
            break;
        case BT_VALUE_INT:
            used += (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=%lld", v->name,
                                     (long long)v->i);
            break;
        case BT_VALUE_REAL:
            used +=
                (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=%g", v->name, v->real);
            break;
        case BT_VALUE_TEXT:
            used +=
                (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=%s", v->name, v->text);
            break;
        }
    }
    (void)snprintf(t->text + used, sizeof t->text - used, "\n");
    return true;
}

Test(store, a_run_with_its_results_comes_back)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    int64_t run = bt_store_test_run(s, "return { }");
    bt_store_test_summary(s, run, 0.5, 16);
    struct bt_req_record records[3];
    bt_store_test_records(records, 3);
    records[2].scheduled_ns = -1;
    records[2].outcome = BT_OUTCOME_REJECTED;
    records[2].reject = BT_REJECT_OVER_LENGTH;
    cr_assert_eq(bt_store_add_requests(s, run, 0, records, 3, &err), BT_OK, "%s", err.msg);
    struct bt_store_sample samples[2] = {{.t_ns = 0, .running = 1}, {.t_ns = 100, .waiting = 7}};
    cr_assert_eq(bt_store_add_timeseries(s, run, 0, samples, 2, &err), BT_OK, "%s", err.msg);
    struct bt_store_validation v = {"ttft_s.p95", "s", 1.0, 1.1, (double)NAN};
    cr_assert_eq(bt_store_add_validations(s, run, &v, 1, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_end_run(s, run, BT_RUN_DONE, &err), BT_OK, "%s", err.msg);

    struct text_sink t = {""};
    cr_assert_eq(bt_store_list_runs(s, NULL, 0, sink_row, &t, &err), BT_OK);
    cr_expect_not_null(strstr(t.text, "run run_id=1 command=replay name=azure status=done"), "%s",
                       t.text);
    cr_expect_not_null(strstr(t.text, "model=llama-2-7b gpu=l4 commit_id=abc"), "%s", t.text);
    t.text[0] = '\0';
    cr_assert_eq(bt_store_list_runs(s, "plan", 0, sink_row, &t, &err), BT_OK);
    cr_expect_str_eq(t.text, "");
    cr_assert_eq(bt_store_show_run(s, run, sink_row, &t, &err), BT_OK, "%s", err.msg);
    cr_expect_not_null(strstr(t.text, "scenario_text=return { }"), "%s", t.text);
    cr_expect_not_null(strstr(t.text, "seed=-1"), "%s", t.text);
    cr_expect_not_null(strstr(t.text, "ttft_s_p95=0.5"), "%s", t.text);
    cr_expect_not_null(strstr(t.text, "e2e_s_p95=-"), "%s", t.text);
    cr_expect_not_null(strstr(t.text, "requests_total=3 requests_kept=3"), "%s", t.text);
    cr_expect_not_null(strstr(t.text, "measured=1.1 noise=-"), "%s", t.text);
    t.text[0] = '\0';
    cr_assert_eq(bt_store_read_table(s, "requests", run, sink_row, &t, &err), BT_OK);
    cr_expect_not_null(strstr(t.text, "request_index=2 user_id=2 arrival_ns=2000000 "
                                      "scheduled_ns=- first_token_ns=2000020 last_token_ns=-"),
                       "%s", t.text);
    cr_expect_eq(bt_store_read_table(s, "gpus", run, sink_row, &t, &err), BT_ERR_ARG);
    bt_error_clear(&err);
    cr_expect_eq(bt_store_read_table(s, "request", 0, sink_row, &t, &err), BT_ERR_NOTFOUND);
    cr_expect_not_null(strstr(err.msg, "did you mean requests?"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_store_show_run(s, 99, sink_row, &t, &err), BT_ERR_NOTFOUND);
    cr_expect_not_null(strstr(err.msg, "the newest is 1"), "%s", err.msg);
    bt_error_clear(&err);
    cr_assert_eq(bt_store_delete_run(s, run, &err), BT_OK, "%s", err.msg);
    int32_t n = 0;
    cr_assert_eq(bt_store_read_table(s, "requests", 0, bt_store_test_count, &n, &err), BT_OK);
    cr_expect_eq(n, 0, "results without their run");
    cr_expect_eq(bt_store_delete_run(s, run, &err), BT_ERR_NOTFOUND);
    bt_error_clear(&err);
    cr_expect_eq(bt_store_show_run(s, run, sink_row, &t, &err), BT_ERR_NOTFOUND);
    cr_expect_not_null(strstr(err.msg, "no runs yet"), "%s", err.msg);
    bt_store_close(s);
}

Test(store, requests_beyond_the_limit_are_counted_and_not_kept)
{
    enum { N = BT_STORE_REQUESTS_MAX + 500 };
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    struct bt_req_record *records = calloc(N, sizeof *records);
    cr_assert_not_null(records);
    bt_store_test_records(records, N);
    int64_t run = bt_store_test_run(s, NULL);
    cr_assert_eq(bt_store_add_requests(s, run, 0, records, N - 100, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_add_requests(s, run, 1, records, 100, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_end_run(s, run, BT_RUN_DONE, &err), BT_OK);
    int32_t n = 0;
    cr_assert_eq(bt_store_verify(s, bt_store_test_count, &(int32_t){0}, &n, &err), BT_OK);
    cr_expect_eq(n, 0);
    bt_store_close(s);
    const char *path = bt_store_test_path("a.db");
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM requests"), BT_STORE_REQUESTS_MAX);
    cr_expect_eq(bt_store_test_int(path, "SELECT requests_total FROM runs"), N);
    free(records);
}

Test(store, plans_keep_their_ranking)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    int64_t run = bt_store_test_run(s, NULL);
    struct bt_store_candidate c[] = {
        {.verdict = "feasible",
         .gpu = "l4",
         .replicas = 2,
         .cards = 3,
         .cost_usd_per_h = 1.32,
         .capacity_req_per_s = 60,
         .config_json = "{}",
         .metrics_json = "{\"a\": 1}"},
        {.verdict = "infeasible",
         .reason = "does not fit",
         .gpu = "l4",
         .cost_usd_per_h = (double)NAN,
         .capacity_req_per_s = (double)NAN,
         .config_json = "{}"},
    };
    cr_assert_eq(bt_store_add_plan(s, run, "{\"slo\": 1}", c, 2, 0, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_end_run(s, run, BT_RUN_DONE, &err), BT_OK);
    struct text_sink t = {""};
    cr_assert_eq(bt_store_show_run(s, run, sink_row, &t, &err), BT_OK);
    cr_expect_not_null(strstr(t.text, "n_candidates=2 n_feasible=1 best_rank=0"), "%s", t.text);
    cr_expect_not_null(strstr(t.text, "rank=1 verdict=infeasible reason=does not fit"), "%s",
                       t.text);
    cr_expect_not_null(strstr(t.text, "cost_usd_per_h=- capacity_req_per_s=-"), "%s", t.text);

    /* A candidate that the schema refuses takes the whole plan with it. */
    run = bt_store_test_run(s, NULL);
    c[1].verdict = "perhaps";
    cr_expect_eq(bt_store_add_plan(s, run, "{}", c, 2, -1, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "CHECK constraint failed"), "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, "transaction of "), "%s", err.msg);
    bt_error_clear(&err);
    int32_t n = 0;
    cr_assert_eq(bt_store_read_table(s, "plan_candidates", run, bt_store_test_count, &n, &err),
                 BT_OK);
    cr_expect_eq(n, 0);
    n = 0;
    cr_assert_eq(bt_store_read_table(s, "plans", run, bt_store_test_count, &n, &err), BT_OK);
    cr_expect_eq(n, 0);
    bt_store_close(s);
}

Test(store, results_without_a_run_are_refused)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    struct bt_summary m = {0};
    struct bt_store_summary a = {.config_json = "{}", .metrics_json = "{}", .summary = &m};
    cr_expect_eq(bt_store_add_summary(s, 42, &a, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "FOREIGN KEY"), "%s", err.msg);
    bt_error_clear(&err);
    int64_t run = bt_store_test_run(s, NULL);
    a.metrics_json = "{nan}";
    cr_expect_eq(bt_store_add_summary(s, run, &a, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "malformed JSON"), "%s", err.msg);
    bt_store_close(s);
}

Test(store, differences_of_two_runs)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    int64_t a = bt_store_test_run(s, NULL);
    bt_store_test_summary(s, a, 0.5, 16);
    cr_assert_eq(bt_store_end_run(s, a, BT_RUN_DONE, &err), BT_OK);
    int64_t b = bt_store_test_run(s, NULL);
    bt_store_test_summary(s, b, 0.75, 32);
    cr_assert_eq(bt_store_end_run(s, b, BT_RUN_DONE, &err), BT_OK);
    struct text_sink t = {""};
    cr_assert_eq(bt_store_diff_runs(s, a, b, sink_row, &t, &err), BT_OK, "%s", err.msg);
    cr_expect_str_eq(t.text,
                     "config summary_index=0 path=kv.block_tokens a=16 b=32 difference=16 ratio=2\n"
                     "metric summary_index=0 path=ttft_s.p95 a=0.5 b=0.75 difference=0.25 "
                     "ratio=1.5\n");
    t.text[0] = '\0';
    cr_assert_eq(bt_store_diff_runs(s, a, a, sink_row, &t, &err), BT_OK);
    cr_expect_str_eq(t.text, "");
    cr_expect_eq(bt_store_diff_runs(s, a, 77, sink_row, &t, &err), BT_ERR_NOTFOUND);
    bt_store_close(s);
}

Test(store, exports_as_csv_and_json)
{
    static char text[4096];
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    int64_t run = bt_store_test_run(s, "a, \"b\"\n\t\\");
    bt_store_test_summary(s, run, 0.1, 16);
    cr_assert_eq(bt_store_end_run(s, run, BT_RUN_DONE, &err), BT_OK);
    const char *path = bt_store_test_path("out.txt");
    FILE *f = fopen(path, "w+");
    cr_assert_not_null(f);
    cr_assert_eq(bt_store_export(s, "summaries", run, BT_EXPORT_JSON, f, &err), BT_OK);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    cr_expect_not_null(strstr(text, "[\n  {\"run_id\": 1, "), "%s", text);
    cr_expect_not_null(strstr(text, "\"config_json\": {\"kv\":{\"block_tokens\":16}"), "%s", text);
    cr_expect_not_null(strstr(text, "\"cost_usd_per_h\": null"), "%s", text);
    cr_expect_not_null(strstr(text, "\"ttft_s_p95\": 0.1,"), "%s", text);
    (void)fclose(f);
    f = fopen(path, "w+");
    cr_assert_eq(bt_store_export(s, "runs", 0, BT_EXPORT_CSV, f, &err), BT_OK);
    cr_assert_eq(bt_store_export(s, "plans", 0, BT_EXPORT_JSON, f, &err), BT_OK);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    cr_expect(strncmp(text, "run_id,command,name,status,", 27) == 0, "%s", text);
    cr_expect_not_null(strstr(text, ",\"a, \"\"b\"\"\n\t\\\","), "%s", text);
    cr_expect_not_null(strstr(text, "[]\n"), "%s", text);
    (void)fclose(f);
    f = fopen("/dev/full", "w");
    if (f != NULL) {
        cr_expect_eq(bt_store_export(s, "runs", 0, BT_EXPORT_JSON, f, &err), BT_ERR_IO);
        (void)fclose(f);
    }
    bt_store_close(s);
}

Test(store, calibrations_come_back_and_replace_their_namesakes)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    struct bt_store_calibration c = {.name = "h200-gemm",
                                     .gpu = "h200",
                                     .stack = "trtllm-1.2.0rc5",
                                     .trust = BT_TRUST_IMPORTED,
                                     .started_utc = "2026-08-21",
                                     .provenance = {.kind = "imported",
                                                    .source = "ai-dynamo/aiconfigurator",
                                                    .licence = "Apache-2.0"}};
    struct bt_op_sample ops[] = {
        {.op = "gemm",
         .weights = BT_WEIGHT_INT4_TENSOR,
         .activations = BT_ACT_BF16,
         .m_tokens = 8,
         .n_out = 5120,
         .k_in = 13824,
         .median_ns = 31900,
         .n_repeats = 1,
         .bytes = 1000},
        {.op = "attn_decode",
         .kv = BT_KV_FP8,
         .n_seqs = 32,
         .context_tokens = 1024,
         .n_heads = 40,
         .n_kv_heads = 40,
         .head_dim = 128,
         .median_ns = 5e5,
         .spread_ns = 100},
    };
    struct bt_pcie_sample pcie[] = {{"to_host", 16384, 7.9e9, 0}, {"to_device", 16384, 5.6e9, 1e8}};
    cr_assert_eq(bt_store_add_calibration(s, &c, ops, 2, pcie, 2, &err), BT_OK, "%s", err.msg);
    ops[0].median_ns = 30000;
    cr_assert_eq(bt_store_add_calibration(s, &c, ops, 2, pcie, 1, &err), BT_OK, "%s", err.msg);
    c.name = "other";
    c.gpu = "l40s";
    cr_assert_eq(bt_store_add_calibration(s, &c, ops, 1, NULL, 0, &err), BT_OK, "%s", err.msg);
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct bt_calibration *found = NULL;
    int32_t n = 0;
    cr_assert_eq(bt_store_load_calibrations(s, NULL, NULL, &arena, &found, &n, &err), BT_OK);
    cr_expect_eq(n, 2);
    cr_assert_eq(bt_store_load_calibrations(s, "h200", "trtllm-1.2.0rc5", &arena, &found, &n, &err),
                 BT_OK, "%s", err.msg);
    cr_assert_eq(n, 1);
    cr_expect_eq(found->trust, BT_TRUST_IMPORTED);
    cr_expect_str_eq(found->source, "ai-dynamo/aiconfigurator");
    cr_assert_eq(found->n_ops, 2);
    cr_expect_str_eq(found->ops[0].op, "attn_decode");
    cr_expect_eq(found->ops[0].kv, BT_KV_FP8);
    cr_expect_eq(found->ops[0].weights, BT_WEIGHT_DEFAULT);
    cr_expect_eq(found->ops[0].head_dim, 128);
    cr_expect_eq(found->ops[1].weights, BT_WEIGHT_INT4_TENSOR);
    cr_expect_float_eq(found->ops[1].median_ns, 30000, 1e-9);
    cr_expect_eq(found->ops[1].k_in, 13824);
    cr_assert_eq(found->n_pcie, 1);
    cr_expect_str_eq(found->pcie[0].direction, "to_host");
    /* The same shape twice in one session is a mistake of whoever measured. */
    struct bt_op_sample twice[] = {ops[0], ops[0]};
    cr_expect_eq(bt_store_add_calibration(s, &c, twice, 2, NULL, 0, &err), BT_ERR_STORE);
    bt_error_clear(&err);
    cr_assert_eq(bt_store_load_calibrations(s, "l40s", NULL, &arena, &found, &n, &err), BT_OK);
    cr_expect_eq(n, 1, "the session before it is still there");
    bt_arena_fini(&arena);
    bt_store_close(s);
}

Test(store, acceptance_and_accuracy_are_never_of_another_pair)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    struct bt_store_provenance p = {.kind = "measured", .source = "berth calibrate"};
    struct bt_acceptance_sample a[] = {{1, 100, 60}, {2, 60, 36}};
    struct bt_acceptance *out = NULL;
    struct bt_arena texts;
    int32_t n = 0;
    bt_arena_init(&texts, 0);
    cr_assert_eq(bt_store_add_acceptance(s, "t", "d", 0, "code", a, 2, &p, &err), BT_OK);
    cr_assert_eq(bt_store_add_acceptance(s, "t", "d", 0, "code", a, 1, &p, &err), BT_OK);
    cr_assert_eq(bt_store_add_acceptance(s, "t", "d", 0, "prose", a, 1, &p, &err), BT_OK);
    cr_assert_eq(bt_store_load_acceptance(s, &texts, &out, &n, &err), BT_OK);
    cr_assert_eq(n, 3);
    cr_expect_str_eq(out[0].text_kind, "code");
    cr_expect_eq(out[0].sample.n_proposed, 200);
    cr_expect_eq(out[1].sample.position, 2);
    cr_expect_eq(out[1].sample.n_accepted, 36);
    cr_expect_str_eq(out[2].text_kind, "prose");
    cr_expect_eq(out[2].sample.n_proposed, 100);
    bt_arena_fini(&texts);
    a[0].n_accepted = 101;
    cr_expect_eq(bt_store_add_acceptance(s, "t", "d", 0, "code", a, 1, &p, &err), BT_ERR_STORE);
    bt_error_clear(&err);

    struct bt_accuracy acc = {.model = "llama-2-13b",
                              .weights = BT_WEIGHT_INT4_G128,
                              .method = "gptq",
                              .metric = "perplexity wikitext2",
                              .unit = "points",
                              .baseline = 4.88,
                              .value = 4.99,
                              .ci95 = (double)NAN,
                              .published = true,
                              .provenance = {.kind = "imported", .source = "a paper"}};
    cr_assert_eq(bt_store_add_accuracy(s, &acc, &err), BT_OK, "%s", err.msg);
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    struct bt_accuracy *rows = NULL;
    cr_assert_eq(bt_store_load_accuracy(s, "llama-2-13b", &arena, &rows, &n, &err), BT_OK);
    cr_assert_eq(n, 1);
    cr_expect_eq(rows->weights, BT_WEIGHT_INT4_G128);
    cr_expect(isnan(rows->ci95) && rows->published);
    cr_expect_str_eq(rows->provenance.source, "a paper");
    cr_assert_eq(bt_store_load_accuracy(s, "llama-2-7b", &arena, &rows, &n, &err), BT_OK);
    cr_expect_eq(n, 0);
    bt_arena_fini(&arena);
    bt_store_close(s);
}

Test(store, verify_finds_what_was_tampered_with)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    const char *path = bt_store_test_path("a.db");
    int64_t run = bt_store_test_run(s, "return 1");
    struct bt_req_record r[2];
    bt_store_test_records(r, 2);
    cr_assert_eq(bt_store_add_requests(s, run, 0, r, 2, &err), BT_OK);
    struct text_sink t = {""};
    int32_t n = -1;
    cr_assert_eq(bt_store_verify(s, sink_row, &t, &n, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(n, 0);
    cr_expect_not_null(strstr(t.text, "notice check=runs cut off detail=run 1 (replay"), "%s",
                       t.text);
    cr_assert_eq(bt_store_end_run(s, run, BT_RUN_DONE, &err), BT_OK);
    bt_store_test_sql(path, "UPDATE runs SET scenario_text = 'return 2';"
                            "DELETE FROM requests WHERE request_index = 1;"
                            "INSERT INTO validations VALUES (77, 'm', 's', 1, 1, NULL)");
    t.text[0] = '\0';
    cr_assert_eq(bt_store_verify(s, sink_row, &t, &n, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(n, 3, "%s", t.text);
    cr_expect_not_null(strstr(t.text, "check=scenario hash detail=run 1"), "%s", t.text);
    cr_expect_not_null(strstr(t.text, "detail=run 1: 2 rows are recorded, 1 are there"), "%s",
                       t.text);
    cr_expect_not_null(strstr(t.text, "a row of validations refers to a row of runs"), "%s",
                       t.text);
    bt_store_close(s);
}
