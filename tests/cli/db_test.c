/* berth db on a store with two runs, as the built program answers. */
#include "tests/db/store_fixture.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { COMMAND_BYTES = 2048, OUTPUT_BYTES = 1 << 16 };

static char output[OUTPUT_BYTES];

/* Runs "berth ARGS --db STORE", with stderr beside stdout; returns the exit status. */
static int berth(const char *args)
{
    char command[COMMAND_BYTES];
    (void)snprintf(command, sizeof command, "'%s/berth' %s --db '%s' 2>&1", BT_TEST_BINARY_DIR,
                   args, bt_store_test_path("a.db"));
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t n = fread(output, 1, sizeof output - 1, pipe);
    output[n] = '\0';
    int status = pclose(pipe);
    cr_assert(WIFEXITED(status), "%s", args);
    return WEXITSTATUS(status);
}

static void expect(const char *args, int status, const char *text)
{
    cr_expect_eq(berth(args), status, "%s: %s", args, output);
    cr_expect_str_eq(output, text, "%s gave:\n%s", args, output);
}

static void expect_part(const char *args, int status, const char *part)
{
    cr_expect_eq(berth(args), status, "%s: %s", args, output);
    cr_expect_not_null(strstr(output, part), "%s gave:\n%s", args, output);
}

/* Runs 1 and 2 differ in block size and TTFT; run 1 has three requests. */
static void make_store(void)
{
    struct bt_store *s = bt_store_test_open("a.db");
    struct bt_error err = {0};
    for (int i = 1; i <= 2; i++) {
        int64_t id = bt_store_test_run(s, "return {}");
        cr_assert_eq(id, i);
        bt_store_test_summary(s, id, 0.5 * i, 8 * i);
        if (i == 1) {
            struct bt_req_record records[3];
            bt_store_test_records(records, 3);
            cr_assert_eq(bt_store_add_requests(s, id, 0, records, 3, &err), BT_OK, "%s", err.msg);
        }
        cr_assert_eq(bt_store_end_run(s, id, BT_RUN_DONE, &err), BT_OK, "%s", err.msg);
    }
    bt_store_close(s);
}

Test(cli_db, list_shows_the_newest_first)
{
    make_store();
    expect_part("db list --csv", 0, "run_id,command,name,status,started_utc,");
    const char *newest = strstr(output, "\n2,replay,azure,done,");
    const char *oldest = strstr(output, "\n1,replay,azure,done,");
    cr_expect_not_null(newest, "%s", output);
    cr_expect_not_null(oldest, "%s", output);
    cr_expect_lt(newest, oldest);
    expect_part("db list", 0, "run  command  name   model       gpu");
    cr_expect_eq(berth("db list --last 1 --csv"), 0);
    cr_expect_null(strstr(output, "\n1,"), "%s", output);
    expect("db list --command plan --json", 0,
           "berth db list: there are no such runs\n{\n  \"runs\": []\n}\n");
}

Test(cli_db, show_embeds_configuration_and_metrics)
{
    make_store();
    expect_part("db show 1 --json", 0, "\"block_tokens\": 8");
    cr_expect_not_null(strstr(output, "\"p95\": 0.5"), "%s", output);
    cr_expect_not_null(strstr(output, "\"command\": \"replay\""), "%s", output);
    cr_expect_null(strstr(output, "_json"), "%s", output);
    expect_part("db show 3", 3, "run 3 is not in ");
    expect_part("db show x", 3, "no fit, import or benchmark \"x\"");
    expect_part("db show 0", 2, "'0' is not the id of a run");
}

Test(cli_db, diff_shows_what_differs)
{
    make_store();
    expect("db diff 1 2 --csv", 0,
           "section,summary_index,path,a,b,difference,ratio\n"
           "config,0,kv.block_tokens,8,16,8,2.0\n"
           "metric,0,ttft_s.p95,0.5,1,0.5,2.0\n");
    expect("db diff 1 1 --json", 0, "{\n  \"rows\": []\n}\n");
    expect_part("db diff 1", 2, "an argument is missing: berth db diff RUN RUN");
}

Test(cli_db, export_writes_tables)
{
    make_store();
    cr_expect_eq(berth("db export requests --run 1"), 0);
    int lines = 0;
    for (const char *at = output; *at != '\0'; at++) {
        lines += *at == '\n';
    }
    cr_expect_eq(lines, 4, "%s", output);
    cr_expect_eq(berth("db export runs --json"), 0);
    cr_expect_eq(output[0], '[', "%s", output);
    expect_part("db export request", 3, "did you mean requests?");
    expect_part("db export requests --run 1 >/dev/full", 4, "");
}

Test(cli_db, verify_tells_a_damaged_store)
{
    make_store();
    expect("db verify", 0, "problems  0\n");
    bt_store_test_sql(bt_store_test_path("a.db"),
                      "UPDATE runs SET scenario_text = 'return { 1 }' WHERE run_id = 1");
    expect_part("db verify", 1, "problems  1\n");
    expect_part("db verify --json", 1, "\"section\": \"problem\"");
}

Test(cli_db, migrate_creates_and_refuses_what_is_newer)
{
    expect_part("db list", 3, "No such file or directory");
    expect("db migrate --quiet --csv", 0, "version_before,version\n0,2\n");
    expect("db migrate --quiet --csv", 0, "version_before,version\n2,2\n");
    expect_part("db export gpus", 0, "\nh200,");
    bt_store_test_sql(bt_store_test_path("a.db"), "PRAGMA user_version = 99");
    expect_part("db migrate", 3, "99");
    expect_part("db list", 3, "99");
}
