/* Statements, bindings and transactions of the store. */
#include "db/store_impl.h"

#include <math.h>
#include <string.h>

struct bt_bind bt_bind_real(const char *name, double v)
{
    return (struct bt_bind){
        .name = name, .type = isnan(v) ? BT_VALUE_NULL : BT_VALUE_REAL, .real = v};
}

struct bt_bind bt_bind_text(const char *name, const char *v, bool keep_null)
{
    if (v == NULL && keep_null) {
        return (struct bt_bind){.name = name, .type = BT_VALUE_NULL};
    }
    return (struct bt_bind){.name = name, .type = BT_VALUE_TEXT, .text = v != NULL ? v : ""};
}

enum bt_code bt_store_fail(struct bt_store *s, int rc, const char *what, const char *file,
                           int32_t line, struct bt_error *err)
{
    const char *reason = s->db != NULL ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc);
    if (s->begin_file != NULL) {
        return bt_error_set(err, BT_ERR_STORE, rc, file, line,
                            "store %s: %.60s: %s (transaction of %s:%d)", s->path, what, reason,
                            s->begin_file, s->begin_line);
    }
    return bt_error_set(err, BT_ERR_STORE, rc, file, line, "store %s: %.60s: %s", s->path, what,
                        reason);
}

/* Place of the i-th binding of a statement. The order of bindings at a call never changes, so it is
 * looked up once. */
static int place_of(struct bt_store *s, enum bt_statement id, int32_t i, const char *name)
{
    int8_t *place = &s->places[id][i];
    if (*place == 0) {
        char full[64];
        (void)snprintf(full, sizeof full, ":%s", name);
        *place = (int8_t)sqlite3_bind_parameter_index(s->stmts[id], full);
    }
    BT_ASSERT(*place > 0); /* the statement has no such parameter */
    return *place;
}

static enum bt_code bind_all(struct bt_store *s, enum bt_statement id, const struct bt_bind *binds,
                             int32_t n, struct bt_error *err)
{
    sqlite3_stmt *stmt = s->stmts[id];
    BT_ASSERT(sqlite3_bind_parameter_count(stmt) == n);
    for (int32_t i = 0; i < n; i++) {
        const struct bt_bind *b = &binds[i];
        int place = place_of(s, id, i, b->name);
        int rc = SQLITE_OK;
        switch (b->type) {
        case BT_VALUE_NULL:
            rc = sqlite3_bind_null(stmt, place);
            break;
        case BT_VALUE_INT:
            rc = sqlite3_bind_int64(stmt, place, b->i);
            break;
        case BT_VALUE_REAL:
            rc = sqlite3_bind_double(stmt, place, b->real);
            break;
        case BT_VALUE_TEXT:
            rc = sqlite3_bind_text(stmt, place, b->text, -1, SQLITE_STATIC);
            break;
        }
        if (rc != SQLITE_OK) {
            STORE_FAIL(s, rc, sqlite3_sql(stmt), err);
        }
    }
    return BT_OK;
}

static enum bt_code step_all(struct bt_store *s, sqlite3_stmt *stmt, bt_store_step_fn step,
                             void *ctx, struct bt_error *err)
{
    int rc = sqlite3_step(stmt);
    while (rc == SQLITE_ROW) {
        BT_ASSERT(step != NULL); /* a statement that gives rows needs someone who takes them */
        if (!step(ctx, stmt)) {
            return BT_OK;
        }
        rc = sqlite3_step(stmt);
    }
    if (rc != SQLITE_DONE) {
        STORE_FAIL(s, rc, sqlite3_sql(stmt), err);
    }
    return BT_OK;
}

enum bt_code bt_store_query(struct bt_store *s, enum bt_statement id, const struct bt_bind *binds,
                            int32_t n, bt_store_step_fn step, void *ctx, struct bt_error *err)
{
    sqlite3_stmt *stmt = s->stmts[id];
    BT_ASSERT(sqlite3_stmt_busy(stmt) == 0);
    enum bt_code code = bind_all(s, id, binds, n, err);
    if (code == BT_OK) {
        code = step_all(s, stmt, step, ctx, err);
    }
    (void)sqlite3_reset(stmt);
    (void)sqlite3_clear_bindings(stmt);
    return code;
}

enum bt_code bt_store_exec(struct bt_store *s, enum bt_statement id, const struct bt_bind *binds,
                           int32_t n, struct bt_error *err)
{
    return bt_store_query(s, id, binds, n, NULL, NULL, err);
}

static bool take_count(void *ctx, sqlite3_stmt *row)
{
    *(int64_t *)ctx = sqlite3_column_int64(row, 0);
    return false;
}

enum bt_code bt_store_count(struct bt_store *s, enum bt_statement id, const struct bt_bind *binds,
                            int32_t n, int64_t *out, struct bt_error *err)
{
    *out = 0;
    return bt_store_query(s, id, binds, n, take_count, out, err);
}

enum bt_code bt_store_begin_at(struct bt_store *s, const char *file, int32_t line,
                               struct bt_error *err)
{
    BT_ASSERT(s->begin_file == NULL);
    BT_TRY(bt_store_exec(s, BT_STMT_BEGIN, NULL, 0, err));
    s->begin_file = file;
    s->begin_line = line;
    return BT_OK;
}

enum bt_code bt_store_finish(struct bt_store *s, enum bt_code code, struct bt_error *err)
{
    BT_ASSERT(s->begin_file != NULL);
    if (code == BT_OK) {
        code = bt_store_exec(s, BT_STMT_COMMIT, NULL, 0, err);
    }
    /* SQLite rolls back by itself when the disk is full. */
    if (code != BT_OK && sqlite3_get_autocommit(s->db) == 0) {
        enum bt_code rolled = bt_store_exec(s, BT_STMT_ROLLBACK, NULL, 0, NULL);
        BT_ASSERT(rolled == BT_OK);
    }
    s->begin_file = NULL;
    s->begin_line = 0;
    return code;
}

enum bt_code bt_store_each(struct bt_store *s, const char *sql, bt_store_step_fn step, void *ctx,
                           struct bt_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &stmt, NULL);
    if (rc != SQLITE_OK) {
        STORE_FAIL(s, rc, sql, err);
    }
    enum bt_code code = step_all(s, stmt, step, ctx, err);
    (void)sqlite3_finalize(stmt);
    return code;
}

enum bt_code bt_store_add_provenance(struct bt_store *s, const struct bt_store_provenance *p,
                                     int64_t *provenance_id, struct bt_error *err)
{
    BT_TRY(STORE_EXEC(s, BT_STMT_ADD_PROVENANCE, err, BIND_TEXT("kind", p->kind),
                      BIND_TEXT("source", p->source), BIND_TEXT("source_date", p->source_date),
                      BIND_TEXT("licence", p->licence),
                      BIND_TEXT("content_sha256", p->content_sha256)));
    *provenance_id = sqlite3_last_insert_rowid(s->db);
    return BT_OK;
}
