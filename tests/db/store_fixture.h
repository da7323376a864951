/* Stores of the tests of db: temporary folders, runs and rows as an example. */
#ifndef BT_TESTS_DB_STORE_FIXTURE_H
#define BT_TESTS_DB_STORE_FIXTURE_H

#include "db/store.h"

#include <stdbool.h>

/* A fresh folder below the build folder; static storage, one a process, removed at exit. */
const char *bt_store_test_dir(void);

/* dir/name in one of four rotating static buffers. */
const char *bt_store_test_path(const char *name);

/* Opens a store there; the test fails when it cannot. */
struct bt_store *bt_store_test_open(const char *name);

/* A run with a scenario. */
int64_t bt_store_test_run(struct bt_store *s, const char *scenario);

/* A summary with one number in its metrics and one in its configuration. */
void bt_store_test_summary(struct bt_store *s, int64_t run_id, double ttft_s, int block);

/* n finished requests, 1 ms apart. */
void bt_store_test_records(struct bt_req_record *out, int64_t n);

/* The first integer that a query gives, by a connection of its own. */
int64_t bt_store_test_int(const char *path, const char *sql);

/* Runs SQL by a connection of its own; the test fails when it is refused. */
void bt_store_test_sql(const char *path, const char *sql);

/* A row callback that counts into an int32_t. */
bool bt_store_test_count(void *ctx, const char *section, const struct bt_value *values, int32_t n);

#endif
