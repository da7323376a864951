#include "db/store.h"

#include "db/store_impl.h"

#include "cmake/embedded.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

extern const struct bt_embedded bt_store_migrations[];

enum { BUSY_TIMEOUT_MS = 10000, BUSY_SLEEP_MS = 20, SQLITE_NEEDED = 3038000 };

static enum bt_code join_path(char out[BT_STORE_PATH_BYTES], const char *dir, const char *rest,
                              struct bt_error *err)
{
    if (snprintf(out, BT_STORE_PATH_BYTES, "%s/%s", dir, rest) >= BT_STORE_PATH_BYTES) {
        BT_FAIL(err, BT_ERR_STORE, 0, "store: %s/%s: longer than %d bytes", dir, rest,
                BT_STORE_PATH_BYTES - 1);
    }
    return BT_OK;
}

enum bt_code bt_store_default_path(char out[BT_STORE_PATH_BYTES], struct bt_error *err)
{
    const char *given = getenv("BERTH_DB");
    if (given != NULL && *given != '\0') {
        if (snprintf(out, BT_STORE_PATH_BYTES, "%s", given) >= BT_STORE_PATH_BYTES) {
            BT_FAIL(err, BT_ERR_STORE, 0, "store: BERTH_DB is longer than %d bytes",
                    BT_STORE_PATH_BYTES - 1);
        }
        return BT_OK;
    }
    const char *data = getenv("XDG_DATA_HOME");
    if (data != NULL && *data == '/') {
        return join_path(out, data, "berth/berth.db", err);
    }
    const char *home = getenv("HOME");
    if (home == NULL || *home == '\0') {
        BT_FAIL(err, BT_ERR_STORE, 0,
                "store: none of BERTH_DB, XDG_DATA_HOME, HOME is set; give a "
                "file with --db");
    }
    return join_path(out, home, ".local/share/berth/berth.db", err);
}

/* Creates the folders above a file, as the XDG specification has them (0700). */
static enum bt_code make_folders(const char *path, struct bt_error *err)
{
    char dir[BT_STORE_PATH_BYTES];
    (void)snprintf(dir, sizeof dir, "%s", path);
    for (char *p = strchr(dir + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
            BT_FAIL(err, BT_ERR_STORE, errno, "store %s: cannot create %s: %s", path, dir,
                    strerror(errno));
        }
        *p = '/';
    }
    return BT_OK;
}

static enum bt_code exec_sql(struct bt_store *s, const char *sql, const char *what,
                             struct bt_error *err)
{
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        STORE_FAIL(s, rc, what, err);
    }
    return BT_OK;
}

static bool take_int(void *ctx, sqlite3_stmt *row)
{
    *(int64_t *)ctx = sqlite3_column_int64(row, 0);
    return false;
}

static enum bt_code read_int(struct bt_store *s, const char *sql, int64_t *out,
                             struct bt_error *err)
{
    *out = 0;
    return bt_store_each(s, sql, take_int, out, err);
}

/* WAL cannot be set while another process sets it, and the busy handler is not asked then. */
static enum bt_code set_wal(struct bt_store *s, int32_t timeout_ms, struct bt_error *err)
{
    int rc = SQLITE_BUSY;
    for (int32_t waited = 0; waited <= timeout_ms; waited += BUSY_SLEEP_MS) {
        rc = sqlite3_exec(s->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
        if ((rc & 0xff) != SQLITE_BUSY) {
            break;
        }
        (void)sqlite3_sleep(BUSY_SLEEP_MS);
    }
    if (rc != SQLITE_OK) {
        STORE_FAIL(s, rc, "write-ahead log", err);
    }
    return BT_OK;
}

/* A URI that opens a file in a folder where no log may be created. */
static void immutable_uri(const char *path, char *out, size_t out_bytes)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = (size_t)snprintf(out, out_bytes, "file:");
    for (const char *p = path; *p != '\0' && n + 16 < out_bytes; p++) {
        if (*p == '%' || *p == '?' || *p == '#') {
            out[n++] = '%';
            out[n++] = hex[(unsigned char)*p >> 4];
            out[n++] = hex[(unsigned char)*p & 15];
        } else {
            out[n++] = *p;
        }
    }
    (void)snprintf(out + n, out_bytes - n, "?immutable=1");
}

static enum bt_code open_read_only(struct bt_store *s, struct bt_error *err)
{
    int64_t version = 0;
    int rc = sqlite3_open_v2(s->path, &s->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK &&
        read_int(s, "SELECT count(*) FROM sqlite_schema", &version, NULL) == BT_OK) {
        return BT_OK;
    }
    struct stat st;
    if (stat(s->path, &st) != 0) {
        BT_FAIL(err, BT_ERR_STORE, errno, "store %s: %s", s->path, strerror(errno));
    }
    char uri[3 * BT_STORE_PATH_BYTES];
    immutable_uri(s->path, uri, sizeof uri);
    (void)sqlite3_close(s->db);
    s->db = NULL;
    rc = sqlite3_open_v2(uri, &s->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI,
                         NULL);
    if (rc != SQLITE_OK) {
        STORE_FAIL(s, rc, "open", err);
    }
    return BT_OK;
}

static enum bt_code open_file(struct bt_store *s, const struct bt_store_opts *opts,
                              struct bt_error *err)
{
    int32_t timeout_ms = opts->busy_timeout_ms > 0 ? opts->busy_timeout_ms : BUSY_TIMEOUT_MS;
    if (opts->read_only) {
        BT_TRY(open_read_only(s, err));
    } else {
        int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
        int rc = sqlite3_open_v2(s->path, &s->db, flags, NULL);
        if (rc != SQLITE_OK) {
            STORE_FAIL(s, rc, "open", err);
        }
    }
    (void)sqlite3_extended_result_codes(s->db, 1);
    (void)sqlite3_busy_timeout(s->db, timeout_ms);
    BT_TRY(exec_sql(s, "PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON", "settings", err));
    if (opts->max_pages > 0) {
        char sql[64];
        (void)snprintf(sql, sizeof sql, "PRAGMA max_page_count = %lld", (long long)opts->max_pages);
        BT_TRY(exec_sql(s, sql, "settings", err));
    }
    return BT_OK;
}

/* Refuses what is not a store of ours, or of a later program. */
static enum bt_code check_identity(struct bt_store *s, int64_t *version, struct bt_error *err)
{
    int64_t application = 0;
    int64_t tables = 0;
    BT_TRY(read_int(s, "SELECT count(*) FROM sqlite_schema", &tables, err));
    BT_TRY(read_int(s, "PRAGMA application_id", &application, err));
    BT_TRY(read_int(s, "PRAGMA user_version", version, err));
    if (application != BT_STORE_APPLICATION_ID && (application != 0 || tables != 0)) {
        BT_FAIL(err, BT_ERR_STORE, application,
                "store %s: this is another program's database (application id %lld)", s->path,
                (long long)application);
    }
    if (*version > BT_STORE_VERSION) {
        BT_FAIL(err, BT_ERR_STORE, *version,
                "store %s: version %lld is newer than this program knows (%d)", s->path,
                (long long)*version, BT_STORE_VERSION);
    }
    return BT_OK;
}

/* Number of "migrations/0007_name.sql". */
static int32_t migration_number(const char *name)
{
    const char *base = strrchr(name, '/');
    long n = strtol(base != NULL ? base + 1 : name, NULL, 10);
    BT_ASSERT(n > 0 && n < 10000);
    return (int32_t)n;
}

/* One step of migration in a transaction of its own; another process may have done it before. */
static enum bt_code migrate_one(struct bt_store *s, const struct bt_embedded *file,
                                struct bt_error *err)
{
    int32_t n = migration_number(file->name);
    int64_t version = 0;
    BT_TRY(exec_sql(s, "BEGIN IMMEDIATE", "migrate", err));
    enum bt_code code = check_identity(s, &version, err);
    if (code == BT_OK && version < n) {
        char sql[128];
        (void)snprintf(sql, sizeof sql, "PRAGMA user_version = %d; PRAGMA application_id = %d", n,
                       BT_STORE_APPLICATION_ID);
        code = exec_sql(s, file->text, file->name, err);
        if (code == BT_OK) {
            code = exec_sql(s, sql, file->name, err);
        }
    }
    if (code == BT_OK) {
        code = exec_sql(s, "COMMIT", file->name, err);
    }
    if (code != BT_OK && sqlite3_get_autocommit(s->db) == 0) {
        (void)exec_sql(s, "ROLLBACK", "migrate", NULL);
    }
    return code;
}

static enum bt_code migrate(struct bt_store *s, const struct bt_store_opts *opts,
                            struct bt_error *err)
{
    int64_t version = 0;
    BT_TRY(check_identity(s, &version, err));
    s->version_before = (int32_t)version;
    if (opts->read_only) {
        if (version != BT_STORE_VERSION) {
            BT_FAIL(err, BT_ERR_STORE, version,
                    "store %s: version %lld must be migrated to %d before it is read", s->path,
                    (long long)version, BT_STORE_VERSION);
        }
        return BT_OK;
    }
    int32_t timeout_ms = opts->busy_timeout_ms > 0 ? opts->busy_timeout_ms : BUSY_TIMEOUT_MS;
    BT_TRY(set_wal(s, timeout_ms, err));
    BT_TRY(exec_sql(s, "PRAGMA synchronous = NORMAL", "settings", err));
    for (const struct bt_embedded *f = bt_store_migrations; f->name != NULL; f++) {
        if (version < migration_number(f->name)) {
            BT_TRY(migrate_one(s, f, err));
        }
    }
    return BT_OK;
}

static enum bt_code prepare_all(struct bt_store *s, struct bt_error *err)
{
    static const char *const texts[BT_STATEMENTS] = {
#define X(id, sql) [BT_STMT_##id] = sql,
        BT_STORE_STATEMENTS(X)
#undef X
    };
    for (int32_t i = 0; i < BT_STATEMENTS; i++) {
        const char *tail = NULL;
        int rc =
            sqlite3_prepare_v3(s->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT, &s->stmts[i], &tail);
        if (rc != SQLITE_OK) {
            STORE_FAIL(s, rc, texts[i], err);
        }
        BT_ASSERT(*tail == '\0');
        BT_ASSERT(sqlite3_bind_parameter_count(s->stmts[i]) <= BT_BINDS_MAX);
    }
    return BT_OK;
}

static enum bt_code open_into(struct bt_store *s, const struct bt_store_opts *opts,
                              struct bt_error *err)
{
    if (sqlite3_libversion_number() < SQLITE_NEEDED) {
        BT_FAIL(err, BT_ERR_STORE, sqlite3_libversion_number(),
                "store: SQLite %s is too old; 3.38 or later is needed", sqlite3_libversion());
    }
    if (opts->path == NULL) {
        BT_TRY(bt_store_default_path(s->path, err));
    } else if (snprintf(s->path, sizeof s->path, "%s", opts->path) >= BT_STORE_PATH_BYTES) {
        BT_FAIL(err, BT_ERR_STORE, 0, "store %.80s...: longer than %d bytes", opts->path,
                BT_STORE_PATH_BYTES - 1);
    }
    if (opts->path == NULL && !opts->read_only && getenv("BERTH_DB") == NULL) {
        BT_TRY(make_folders(s->path, err));
    }
    BT_TRY(open_file(s, opts, err));
    BT_TRY(migrate(s, opts, err));
    BT_TRY(prepare_all(s, err));
    if (opts->catalog != NULL && !opts->read_only) {
        BT_TRY(bt_store_load_catalog(s, opts->catalog, err));
    }
    return BT_OK;
}

enum bt_code bt_store_open(const struct bt_store_opts *opts, struct bt_store **out,
                           struct bt_error *err)
{
    *out = NULL;
    struct bt_store *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "store: no memory");
    }
    enum bt_code code = open_into(s, opts, err);
    if (code != BT_OK) {
        bt_store_close(s);
        return code;
    }
    *out = s;
    return BT_OK;
}

void bt_store_close(struct bt_store *s)
{
    if (s == NULL) {
        return;
    }
    for (int32_t i = 0; i < BT_STATEMENTS; i++) {
        (void)sqlite3_finalize(s->stmts[i]);
    }
    int rc = sqlite3_close(s->db);
    BT_ASSERT(rc == SQLITE_OK);
    free(s);
}

const char *bt_store_path(const struct bt_store *s)
{
    return s->path;
}

void bt_store_versions(const struct bt_store *s, int32_t *before, int32_t *after)
{
    *before = s->version_before;
    *after = BT_STORE_VERSION;
}
