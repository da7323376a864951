/* What happens when the store cannot be written, is damaged, or its writer dies. */
#include "db/store.h"
#include "tests/db/store_fixture.h"

#include <criterion/criterion.h>
#include <sqlite3.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static enum bt_code try_open(const char *path, struct bt_error *err)
{
    struct bt_store *s = NULL;
    *err = (struct bt_error){0};
    enum bt_code code = bt_store_open(&(struct bt_store_opts){.path = path}, &s, err);
    bt_store_close(s);
    return code;
}

Test(store_failures, a_newer_version_is_refused_and_left_alone)
{
    struct bt_error err;
    bt_store_close(bt_store_test_open("a.db"));
    const char *path = bt_store_test_path("a.db");
    bt_store_test_sql(path, "PRAGMA user_version = 99");
    cr_expect_eq(try_open(path, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "version 99 is newer than this program knows"), "%s",
                       err.msg);
    cr_expect_eq(bt_store_test_int(path, "PRAGMA user_version"), 99);
}

Test(store_failures, another_programs_database_is_refused_and_left_alone)
{
    struct bt_error err;
    const char *path = bt_store_test_path("b.db");
    bt_store_test_sql(path, "CREATE TABLE theirs (x); PRAGMA application_id = 0");
    cr_expect_eq(try_open(path, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "another program's database"), "%s", err.msg);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM sqlite_schema"), 1);
}

Test(store_failures, what_is_no_database_is_refused)
{
    struct bt_error err;
    const char *path = bt_store_test_path("plain.txt");
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    for (int i = 0; i < 500; i++) {
        (void)fputs("these are notes about lunch\n", f);
    }
    (void)fclose(f);
    cr_expect_eq(try_open(path, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "not a database"), "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, "plain.txt"), "%s", err.msg);
    cr_expect_eq(try_open(bt_store_test_path("no/such/folder/a.db"), &err), BT_ERR_STORE);
    cr_expect_eq(try_open(bt_store_test_dir(), &err), BT_ERR_STORE);
}

static bool is_damage(void *ctx, const char *section, const struct bt_value *values, int32_t n)
{
    (void)n;
    *(bool *)ctx |= strcmp(section, "problem") == 0 && strcmp(values[0].text, "integrity") == 0;
    return true;
}

Test(store_failures, damage_inside_is_found_by_verify)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    const char *path = bt_store_test_path("a.db");
    int64_t run = bt_store_test_run(s, NULL);
    static struct bt_req_record records[2000];
    bt_store_test_records(records, 2000);
    cr_assert_eq(bt_store_add_requests(s, run, 0, records, 2000, &err), BT_OK);
    bt_store_close(s);
    /* Pages in the middle of the requests. */
    FILE *f = fopen(path, "r+");
    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, -3 * 4096, SEEK_END), 0);
    for (int i = 0; i < 4096; i++) {
        (void)fputc(0x5a, f);
    }
    (void)fclose(f);
    cr_assert_eq(bt_store_open(&(struct bt_store_opts){.path = path}, &s, &err), BT_OK, "%s",
                 err.msg);
    bool damaged = false;
    int32_t n = 0;
    enum bt_code code = bt_store_verify(s, is_damage, &damaged, &n, &err);
    cr_expect(damaged, "%d problems, %s %s", n, bt_code_name(code), err.msg);
    bt_store_close(s);
}

Test(store_failures, a_folder_that_cannot_be_written_is_an_error_and_can_be_read)
{
    struct bt_error err = {0};
    cr_assert_eq(mkdir(bt_store_test_path("ro"), 0700), 0);
    struct bt_store *s = bt_store_test_open("ro/a.db");
    int64_t run = bt_store_test_run(s, NULL);
    cr_assert_eq(bt_store_end_run(s, run, BT_RUN_DONE, &err), BT_OK);
    bt_store_close(s);
    cr_assert_eq(chmod(bt_store_test_path("ro/a.db"), 0400), 0);
    cr_assert_eq(chmod(bt_store_test_path("ro"), 0500), 0);
    /* The superuser writes everywhere: the test then goes on as nobody. */
    if (getuid() == 0) {
        cr_assert_eq(chmod(bt_store_test_dir(), 0755), 0);
        cr_assert_eq(chmod(bt_store_test_path("ro"), 0555), 0);
        cr_assert_eq(chmod(bt_store_test_path("ro/a.db"), 0444), 0);
        if (setuid(65534) != 0 || access(bt_store_test_path("ro/a.db"), R_OK) != 0) {
            cr_skip_test("the build folder is not open to other users");
        }
    }
    const char *path = bt_store_test_path("ro/a.db");
    cr_expect_eq(try_open(path, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, path), "%s", err.msg);
    bt_error_clear(&err);
    cr_assert_eq(bt_store_open(&(struct bt_store_opts){.path = path, .read_only = true}, &s, &err),
                 BT_OK, "%s", err.msg);
    int32_t n = 0;
    cr_assert_eq(bt_store_list_runs(s, NULL, 0, bt_store_test_count, &n, &err), BT_OK);
    cr_expect_eq(n, 1);
    struct bt_store_run more = {.command = "replay"};
    cr_expect_eq(bt_store_begin_run(s, &more, &run, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "readonly"), "%s", err.msg);
    bt_store_close(s);
}

Test(store_failures, read_only_needs_a_store_of_this_version)
{
    struct bt_error err = {0};
    struct bt_store *s = NULL;
    struct bt_store_opts o = {.path = bt_store_test_path("a.db"), .read_only = true};
    cr_expect_eq(bt_store_open(&o, &s, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "No such file"), "%s", err.msg);
    bt_error_clear(&err);
    bt_store_close(bt_store_test_open("a.db"));
    bt_store_test_sql(bt_store_test_path("a.db"), "PRAGMA user_version = 0");
    cr_expect_eq(bt_store_open(&o, &s, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "must be migrated"), "%s", err.msg);
}

Test(store_failures, a_full_disk_costs_the_run_and_no_more)
{
    struct bt_error err = {0};
    struct bt_store *s = bt_store_test_open("a.db");
    int64_t first = bt_store_test_run(s, NULL);
    static struct bt_req_record records[20000];
    bt_store_test_records(records, 20000);
    cr_assert_eq(bt_store_add_requests(s, first, 0, records, 10, &err), BT_OK);
    cr_assert_eq(bt_store_end_run(s, first, BT_RUN_DONE, &err), BT_OK);
    bt_store_close(s);
    const char *path = bt_store_test_path("a.db");
    int64_t pages = bt_store_test_int(path, "PRAGMA page_count");
    struct bt_store_opts o = {.path = path, .max_pages = pages + 20};
    cr_assert_eq(bt_store_open(&o, &s, &err), BT_OK, "%s", err.msg);
    int64_t run = bt_store_test_run(s, NULL);
    cr_expect_eq(bt_store_add_requests(s, run, 0, records, 20000, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "disk is full"), "%s", err.msg);
    cr_expect_eq(err.detail & 0xff, SQLITE_FULL);
    bt_error_clear(&err);
    /* The store goes on, and what had been written is whole. */
    cr_assert_eq(bt_store_add_requests(s, run, 0, records, 5, &err), BT_OK, "%s", err.msg);
    cr_assert_eq(bt_store_end_run(s, run, BT_RUN_FAILED, &err), BT_OK, "%s", err.msg);
    int32_t n = -1;
    cr_assert_eq(bt_store_verify(s, bt_store_test_count, &(int32_t){0}, &n, &err), BT_OK);
    cr_expect_eq(n, 0);
    bt_store_close(s);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM requests"), 15);
}

/* A child is killed in the middle of a transaction: a run before it is whole, its own has no end.
 */
Test(store_failures, a_crash_loses_at_most_the_run_in_progress)
{
    struct bt_error err = {0};
    bt_store_close(bt_store_test_open("a.db"));
    const char *path = bt_store_test_path("a.db");
    int ready[2];
    cr_assert_eq(pipe(ready), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct bt_store *s = NULL;
        int64_t run = 0;
        struct bt_store_run r = {.command = "replay", .keep_all_requests = true};
        static struct bt_req_record records[1000];
        bt_store_test_records(records, 1000);
        bool ok = bt_store_open(&(struct bt_store_opts){.path = path}, &s, &err) == BT_OK &&
                  bt_store_begin_run(s, &r, &run, &err) == BT_OK &&
                  bt_store_add_requests(s, run, 0, records, 100, &err) == BT_OK &&
                  bt_store_end_run(s, run, BT_RUN_DONE, &err) == BT_OK &&
                  bt_store_begin_run(s, &r, &run, &err) == BT_OK;
        (void)!write(ready[1], ok ? "y" : "n", 1);
        while (ok) {
            ok = bt_store_add_requests(s, run, 0, records, 1000, &err) == BT_OK;
        }
        _exit(1);
    }
    char answer = '?';
    cr_assert_eq(read(ready[0], &answer, 1), 1);
    cr_assert_eq(answer, 'y');
    /* Some transactions happen; the kill comes within one of them with near certainty. */
    while (bt_store_test_int(path, "SELECT count(*) FROM requests WHERE run_id = 2") == 0) {
        (void)sqlite3_sleep(1);
    }
    cr_assert_eq(kill(child, SIGKILL), 0);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    struct bt_store *s = bt_store_test_open("a.db");
    int32_t n = -1;
    int32_t rows = 0;
    cr_assert_eq(bt_store_verify(s, bt_store_test_count, &rows, &n, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(n, 0);
    cr_expect_eq(rows, 1, "one notice: the run that was cut off");
    bt_store_close(s);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM requests WHERE run_id = 1"), 100);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) % 1000 FROM requests WHERE run_id = 2"),
                 0, "half a transaction is visible");
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM runs WHERE status = 'running'"), 1);
}

/* Two processes open a new store at once and write their runs side by side. */
Test(store_failures, two_processes_write_at_once)
{
    enum { N_CHILDREN = 2, N_RUNS = 15 };
    struct bt_error err = {0};
    const char *path = bt_store_test_path("a.db");
    struct bt_catalog *c = NULL;
    cr_assert_eq(bt_catalog_open(NULL, 0, &c, &err), BT_OK);
    pid_t children[N_CHILDREN];
    for (int k = 0; k < N_CHILDREN; k++) {
        children[k] = fork();
        cr_assert_geq(children[k], 0);
        if (children[k] == 0) {
            struct bt_store *s = NULL;
            struct bt_store_opts o = {.path = path, .catalog = c};
            static struct bt_req_record records[200];
            bt_store_test_records(records, 200);
            enum bt_code code = bt_store_open(&o, &s, &err);
            for (int i = 0; i < N_RUNS && code == BT_OK; i++) {
                struct bt_store_run r = {.command = "replay", .seed = (uint64_t)k};
                int64_t run = 0;
                code = bt_store_begin_run(s, &r, &run, &err);
                code = code == BT_OK ? bt_store_add_requests(s, run, 0, records, 200, &err) : code;
                code = code == BT_OK ? bt_store_end_run(s, run, BT_RUN_DONE, &err) : code;
            }
            if (code != BT_OK) {
                (void)fprintf(stderr, "%s\n", err.msg);
            }
            bt_store_close(s);
            _exit(code == BT_OK ? 0 : 1);
        }
    }
    for (int k = 0; k < N_CHILDREN; k++) {
        int status = -1;
        cr_assert_eq(waitpid(children[k], &status, 0), children[k]);
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    bt_catalog_close(c);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM runs WHERE status = 'done'"),
                 N_CHILDREN * N_RUNS);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM requests"),
                 N_CHILDREN * N_RUNS * 200);
    cr_expect_eq(bt_store_test_int(path, "SELECT count(*) FROM provenance"), 1,
                 "the catalog was loaded once");
}

Test(store_failures, a_writer_waits_and_then_says_who_is_in_the_way)
{
    struct bt_error err = {0};
    bt_store_close(bt_store_test_open("a.db"));
    const char *path = bt_store_test_path("a.db");
    sqlite3 *other = NULL;
    cr_assert_eq(sqlite3_open(path, &other), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    struct bt_store *s = NULL;
    struct bt_store_opts o = {.path = path, .busy_timeout_ms = 50};
    cr_assert_eq(bt_store_open(&o, &s, &err), BT_OK, "%s", err.msg);
    struct bt_store_run r = {.command = "replay"};
    int64_t run = 0;
    cr_expect_eq(bt_store_begin_run(s, &r, &run, &err), BT_ERR_STORE);
    cr_expect_not_null(strstr(err.msg, "locked"), "%s", err.msg);
    cr_assert_eq(sqlite3_exec(other, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    bt_error_clear(&err);
    cr_assert_eq(bt_store_begin_run(s, &r, &run, &err), BT_OK, "%s", err.msg);
    bt_store_close(s);
    (void)sqlite3_close(other);
}
