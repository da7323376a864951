#include "tests/db/store_fixture.h"

#include <criterion/criterion.h>
#include <sqlite3.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[512];
static pid_t owner;

static void remove_dir(void)
{
    static const char *const names[] = {"a.db", "b.db", "plain.txt", "out.txt", "ro/a.db", "ro"};
    static const char *const ends[] = {"", "-wal", "-shm", "-journal"};
    if (getpid() != owner) {
        return;
    }
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/ro", dir);
    (void)chmod(path, 0700);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (size_t j = 0; j < sizeof ends / sizeof *ends; j++) {
            (void)snprintf(path, sizeof path, "%s/%s%s", dir, names[i], ends[j]);
            (void)remove(path);
        }
    }
    (void)rmdir(dir);
}

const char *bt_store_test_dir(void)
{
    if (dir[0] == '\0') {
        (void)snprintf(dir, sizeof dir, "%s/store-XXXXXX", BT_TEST_BINARY_DIR);
        cr_assert_not_null(mkdtemp(dir));
        owner = getpid();
        (void)atexit(remove_dir);
    }
    return dir;
}

const char *bt_store_test_path(const char *name)
{
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", bt_store_test_dir(), name);
    return path;
}

struct bt_store *bt_store_test_open(const char *name)
{
    struct bt_error err = {0};
    struct bt_store *s = NULL;
    struct bt_store_opts o = {.path = bt_store_test_path(name)};
    cr_assert_eq(bt_store_open(&o, &s, &err), BT_OK, "%s", err.msg);
    return s;
}

int64_t bt_store_test_run(struct bt_store *s, const char *scenario)
{
    struct bt_error err = {0};
    int64_t id = 0;
    struct bt_store_run run = {.command = "replay",
                               .name = "azure",
                               .version = "0.1.0",
                               .commit_id = "abc",
                               .build_type = "Debug",
                               .scenario_text = scenario,
                               .trace_name = "azure.csv",
                               .trace_sha256 = "00",
                               .seed = UINT64_MAX};
    cr_assert_eq(bt_store_begin_run(s, &run, &id, &err), BT_OK, "%s", err.msg);
    return id;
}

void bt_store_test_summary(struct bt_store *s, int64_t run_id, double ttft_s, int block)
{
    struct bt_error err = {0};
    struct bt_summary m = {.arrived = 10, .finished = 9, .throughput_req_per_s = 2};
    m.ttft.p95_s = ttft_s;
    m.e2e.p95_s = (double)NAN;
    m.slo_attainment_fraction = (double)NAN;
    char metrics[160];
    char config[80];
    (void)snprintf(metrics, sizeof metrics,
                   "{\"ttft_s\": {\"p95\": %g, \"mean\": 1}, \"finished\": 9, \"w\": [1, 2]}",
                   ttft_s);
    (void)snprintf(config, sizeof config, "{\"kv\": {\"block_tokens\": %d}, \"gpu\": \"l4\"}",
                   block);
    struct bt_store_summary a = {.label = "base",
                                 .model = "llama-2-7b",
                                 .gpu = "l4",
                                 .trust = "roofline",
                                 .config_json = config,
                                 .metrics_json = metrics,
                                 .summary = &m,
                                 .cost_usd_per_h = (double)NAN};
    cr_assert_eq(bt_store_add_summary(s, run_id, &a, &err), BT_OK, "%s", err.msg);
}

void bt_store_test_records(struct bt_req_record *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = (struct bt_req_record){.user = (uint64_t)i,
                                        .arrival_ns = i * 1000000,
                                        .scheduled_ns = i * 1000000 + 10,
                                        .first_token_ns = i * 1000000 + 20,
                                        .last_token_ns = -1,
                                        .end_ns = i * 1000000 + 40,
                                        .n_prompt = 100,
                                        .n_output = 1};
    }
}

int64_t bt_store_test_int(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    cr_assert_eq(sqlite3_step(stmt), SQLITE_ROW, "%s", sqlite3_errmsg(db));
    int64_t out = sqlite3_column_int64(stmt, 0);
    (void)sqlite3_finalize(stmt);
    (void)sqlite3_close(db);
    return out;
}

void bt_store_test_sql(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    (void)sqlite3_close(db);
}

bool bt_store_test_count(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)section;
    (void)values;
    (void)n;
    ++*(int32_t *)ctx;
    return true;
}
