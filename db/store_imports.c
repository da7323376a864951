/* Others' tables and benchmarks, and fits to the user's own runs. */
#include "db/store_impl.h"

#include "cmake/embedded.h"

static bool same(void *ctx, sqlite3_stmt *row)
{
    *(bool *)ctx = sqlite3_column_int(row, 0) != 0;
    return false;
}

static enum bt_code put_import(struct bt_store *s, const struct bt_store_import *r, bool *changed,
                               struct bt_error *err)
{
    bool known = false;
    BT_TRY(STORE_QUERY(s, BT_STMT_FIND_IMPORT, same, &known, err, BIND_TEXT("name", r->name),
                       BIND_TEXT("text", r->text), BIND_TEXT("source", r->provenance.source),
                       BIND_TEXT("licence", r->provenance.licence)));
    *changed = !known;
    if (known) {
        return BT_OK;
    }
    int64_t provenance_id = 0;
    BT_TRY(bt_store_add_provenance(s, &r->provenance, &provenance_id, err));
    BT_TRY(STORE_EXEC(s, BT_STMT_DROP_IMPORT, err, BIND_TEXT("name", r->name)));
    return STORE_EXEC(s, BT_STMT_ADD_IMPORT, err, BIND_TEXT("name", r->name),
                      BIND_TEXT("format", r->format), BIND_TEXT("gpu", r->gpu),
                      BIND_TEXT("stack", r->stack), BIND_TEXT("stack_version", r->stack_version),
                      BIND_TEXT("op", r->op), BIND_TEXT("model", r->model),
                      BIND_INT("samples", r->samples), BIND_REAL("error_median", r->error_median),
                      BIND_REAL("error_p90", r->error_p90), BIND_TEXT("text", r->text),
                      BIND_INT("provenance_id", provenance_id));
}

enum bt_code bt_store_put_imports(struct bt_store *s, const struct bt_store_import *rows, int32_t n,
                                  int32_t *n_changed, struct bt_error *err)
{
    int32_t count = 0;
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code = BT_OK;
    for (int32_t i = 0; code == BT_OK && i < n; i++) {
        bool changed = false;
        code = put_import(s, &rows[i], &changed, err);
        count += changed;
    }
    if (n_changed != NULL) {
        *n_changed = count;
    }
    return bt_store_finish(s, code, err);
}

struct texts {
    struct bt_arena *arena;
    struct bt_embedded *rows;
    int32_t n, max;
    bool failed;
};

static bool take_text(void *ctx, sqlite3_stmt *row)
{
    struct texts *t = ctx;
    if (t->n == t->max) {
        return false;
    }
    struct bt_embedded *e = &t->rows[t->n++];
    e->name = bt_arena_strdup(t->arena, (const char *)sqlite3_column_text(row, 0));
    e->text = bt_arena_strdup(t->arena, (const char *)sqlite3_column_text(row, 1));
    e->size_bytes = (size_t)sqlite3_column_bytes(row, 1);
    t->failed = t->failed || e->name == NULL || e->text == NULL;
    return !t->failed;
}

enum bt_code bt_store_load_imports(struct bt_store *s, bool skews, struct bt_arena *arena,
                                   const struct bt_embedded **out, int32_t *n, struct bt_error *err)
{
    int64_t count = 0;
    struct bt_bind which = BIND_INT("skews", skews);
    BT_TRY(bt_store_count(s, BT_STMT_COUNT_IMPORTS, &which, 1, &count, err));
    struct texts t = {.arena = arena, .max = (int32_t)count};
    t.rows = bt_arena_take(arena, ((size_t)count + 1) * sizeof *t.rows);
    if (t.rows != NULL) {
        BT_TRY(bt_store_query(s, BT_STMT_LOAD_IMPORTS, &which, 1, take_text, &t, err));
    }
    if (t.rows == NULL || t.failed) {
        BT_FAIL(err, BT_ERR_NOMEM, count, "store: no memory for %lld imported tables",
                (long long)count);
    }
    t.rows[t.n] = (struct bt_embedded){0};
    *out = t.rows;
    *n = t.n;
    return BT_OK;
}

enum bt_code bt_store_put_fit(struct bt_store *s, const struct bt_store_fit *f,
                              struct bt_error *err)
{
    int64_t provenance_id = 0;
    BT_TRY(STORE_BEGIN(s, err));
    enum bt_code code = bt_store_add_provenance(s, &f->provenance, &provenance_id, err);
    if (code == BT_OK) {
        code = STORE_EXEC(
            s, BT_STMT_PUT_FIT, err, BIND_TEXT("name", f->name), BIND_TEXT("stack", f->stack),
            BIND_TEXT("gpu", f->gpu), BIND_TEXT("model", f->model),
            BIND_REAL("step_overhead_s", f->step_overhead_s),
            BIND_REAL("efficiency", f->efficiency), BIND_REAL("step_error", f->step_error),
            BIND_INT("requests", f->requests), BIND_INT("provenance_id", provenance_id));
    }
    return bt_store_finish(s, code, err);
}

static enum bt_code add_benchmark(struct bt_store *s, const char *name, const char *format,
                                  const char *model, const char *gpu, const char *stack,
                                  const struct bt_store_provenance *provenance,
                                  const struct bt_store_figure *figures, int32_t n,
                                  struct bt_error *err)
{
    int64_t provenance_id = 0;
    BT_TRY(bt_store_add_provenance(s, provenance, &provenance_id, err));
    BT_TRY(STORE_EXEC(s, BT_STMT_DROP_BENCHMARK, err, BIND_TEXT("name", name)));
    BT_TRY(STORE_EXEC(s, BT_STMT_ADD_BENCHMARK, err, BIND_TEXT("name", name),
                      BIND_TEXT("format", format), BIND_TEXT("model", model), BIND_TEXT("gpu", gpu),
                      BIND_TEXT("stack", stack), BIND_INT("provenance_id", provenance_id)));
    int64_t id = sqlite3_last_insert_rowid(s->db);
    for (int32_t i = 0; i < n; i++) {
        BT_TRY(
            STORE_EXEC(s, BT_STMT_ADD_FIGURE, err, BIND_INT("benchmark_id", id),
                       BIND_TEXT("test", figures[i].test), BIND_TEXT("metric", figures[i].metric),
                       BIND_TEXT("unit", figures[i].unit), BIND_REAL("value", figures[i].value)));
    }
    return BT_OK;
}

enum bt_code bt_store_put_benchmark(struct bt_store *s, const char *name, const char *format,
                                    const char *model, const char *gpu, const char *stack,
                                    const struct bt_store_provenance *provenance,
                                    const struct bt_store_figure *figures, int32_t n,
                                    struct bt_error *err)
{
    BT_TRY(STORE_BEGIN(s, err));
    return bt_store_finish(
        s, add_benchmark(s, name, format, model, gpu, stack, provenance, figures, n, err), err);
}
