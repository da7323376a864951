/* The store's inside: prepared statements, bindings, transactions. Internal to db/store*.c. */
#ifndef BT_DB_STORE_IMPL_H
#define BT_DB_STORE_IMPL_H

#include "db/store.h"
#include "db/store_sql.h"

#include <sqlite3.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_BINDS_MAX = 24 };

struct bt_store {
    sqlite3 *db; /* owned */
    char path[BT_STORE_PATH_BYTES];
    sqlite3_stmt *stmts[BT_STATEMENTS];         /* owned */
    int8_t places[BT_STATEMENTS][BT_BINDS_MAX]; /* place of the i-th binding; 0: not looked up */
    const char *begin_file;                     /* who opened the transaction; NULL: none is open */
    int32_t begin_line;
    int32_t version_before;
    int64_t run_id; /* the run in progress; 0: none */
    bool keep_all_requests;
    int64_t requests_total;
    int64_t requests_kept;
};

struct bt_bind {
    const char *name; /* without ':' */
    enum bt_value_type type;
    int64_t i;
    double real;
    const char *text;
};

/* Shorthand for lists of bindings: integer, real (NAN is NULL), text (NULL is ''), text or NULL. */
#define BIND_INT(n, v)  ((struct bt_bind){.name = (n), .type = BT_VALUE_INT, .i = (v)})
#define BIND_REAL(n, v) bt_bind_real((n), (v))
#define BIND_TEXT(n, v) bt_bind_text((n), (v), false)
#define BIND_NULL(n, v) bt_bind_text((n), (v), true)

struct bt_bind bt_bind_real(const char *name, double v);
struct bt_bind bt_bind_text(const char *name, const char *v, bool keep_null);

/* Fills err with the path, what was tried and SQLite's reason. Returns BT_ERR_STORE. */
enum bt_code bt_store_fail(struct bt_store *s, int rc, const char *what, const char *file,
                           int32_t line, struct bt_error *err);

#define STORE_FAIL(s, rc, what, err)                                                               \
    return bt_store_fail((s), (rc), (what), __FILE__, __LINE__, (err))

/* Runs a statement that gives no rows. A binding that the statement lacks, or one that it has and
 * is not given, is a programmer's error. */
BT_NODISCARD enum bt_code bt_store_exec(struct bt_store *s, enum bt_statement id,
                                        const struct bt_bind *binds, int32_t n,
                                        struct bt_error *err);

#define STORE_EXEC(s, id, err, ...)                                                                \
    bt_store_exec(                                                                                 \
        (s), (id), (const struct bt_bind[]){__VA_ARGS__},                                          \
        (int32_t)(sizeof((const struct bt_bind[]){__VA_ARGS__}) / sizeof(struct bt_bind)), (err))

/* Called for each row; false stops. */
typedef bool (*bt_store_step_fn)(void *ctx, sqlite3_stmt *row);

BT_NODISCARD enum bt_code bt_store_query(struct bt_store *s, enum bt_statement id,
                                         const struct bt_bind *binds, int32_t n,
                                         bt_store_step_fn step, void *ctx, struct bt_error *err);

#define STORE_QUERY(s, id, step, ctx, err, ...)                                                    \
    bt_store_query(                                                                                \
        (s), (id), (const struct bt_bind[]){__VA_ARGS__},                                          \
        (int32_t)(sizeof((const struct bt_bind[]){__VA_ARGS__}) / sizeof(struct bt_bind)), (step), \
        (ctx), (err))

/* The integer in the first column of the first row; 0 when there is none. */
BT_NODISCARD enum bt_code bt_store_count(struct bt_store *s, enum bt_statement id,
                                         const struct bt_bind *binds, int32_t n, int64_t *out,
                                         struct bt_error *err);

/* A write transaction; nesting is a programmer's error. */
BT_NODISCARD enum bt_code bt_store_begin_at(struct bt_store *s, const char *file, int32_t line,
                                            struct bt_error *err);
#define STORE_BEGIN(s, err) bt_store_begin_at((s), __FILE__, __LINE__, (err))

/* Commits when code is BT_OK and rolls back otherwise; returns the first failure. */
BT_NODISCARD enum bt_code bt_store_finish(struct bt_store *s, enum bt_code code,
                                          struct bt_error *err);

/* Steps an ad-hoc statement (a PRAGMA, a whole table) row by row. */
BT_NODISCARD enum bt_code bt_store_each(struct bt_store *s, const char *sql, bt_store_step_fn step,
                                        void *ctx, struct bt_error *err);

/* Adds a provenance row. */
BT_NODISCARD enum bt_code bt_store_add_provenance(struct bt_store *s,
                                                  const struct bt_store_provenance *p,
                                                  int64_t *provenance_id, struct bt_error *err);

/* Loads the catalog when the store has none or an older one. */
BT_NODISCARD enum bt_code bt_store_load_catalog(struct bt_store *s, const struct bt_catalog *c,
                                                struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
