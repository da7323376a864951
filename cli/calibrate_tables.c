/* A GPU's operations as tables of the berth stack: into the store, and as files. A session's points
 * go into the table that is there, whose other points stay. */
#include "cli/build_info.h"
#include "cli/calibrate.h"
#include "cli/files.h"
#include "cli/local.h"
#include "db/calibrations/calibrations.h"
#include "sim/cost/calib.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 192, HEAD_BYTES = 160, SOURCE_BYTES = 256, PATH_BYTES = 4096 };

/* The cost model adds a graph's node to every kernel (sim/cost/step.h): the measured time has it.
 */
static const int64_t NODE_NS = 500;
static const int64_t LEAST_NS = 200; /* a part that takes less beside its node has no kernel */

struct tables {
    const struct bt_op_rows_kept *ops;
    const struct bt_gpu *gpu;
    const char *model, *date;
    struct bt_store *store;
    const char *folder;
    const struct bt_embedded *imports; /* of the store */
    int32_t n_imports;
    char head[HEAD_BYTES]; /* of the source: all but the models */
};

static enum bt_code take_samples(const struct tables *t, enum bt_op op, struct bt_sample_set *set,
                                 struct bt_error *err)
{
    for (int64_t i = 0; i < t->ops->n; i++) {
        const struct bt_op_sample *row = &t->ops->samples[i];
        enum bt_op of;
        BT_TRY(bt_op_parse(row->op, "op", &of, err));
        struct bt_cost_sample s = bt_local_sample(row, of);
        s.time_ns -= NODE_NS;
        if (of != op || s.time_ns < LEAST_NS) {
            continue;
        }
        s.format.weights = bt_num_as_bf16(s.format.weights);
        s.format.activations = bt_num_as_bf16(s.format.activations);
        s.format.kv = bt_num_as_bf16(s.format.kv);
        s.gpu = t->gpu->name;
        s.version = BT_VERSION;
        s.licence = "Apache-2.0";
        BT_TRY(bt_sample_set_add(set, &s, err));
    }
    return BT_OK;
}

/* ---- a table's source: "HEAD: MODEL, MODEL; HEAD: MODEL" ---- */

static bool lists(const char *at, const char *end, const char *model)
{
    size_t n = strlen(model);
    while (at < end) {
        at += strspn(at, ", ");
        size_t word = strcspn(at, ",;");
        if (word == n && strncmp(at, model, n) == 0) {
            return true;
        }
        at += word > 0 ? word : 1;
    }
    return false;
}

/* What `old` names, and this session. */
static enum bt_code add_source(const struct tables *t, const char *name, const char *old,
                               char out[SOURCE_BYTES], struct bt_error *err)
{
    const char *head = strstr(old, t->head);
    int n;
    if (head == NULL) {
        n = snprintf(out, SOURCE_BYTES, "%s%s%s: %s", old, old[0] != '\0' ? "; " : "", t->head,
                     t->model);
    } else {
        const char *models = head + strlen(t->head) + 1;
        const char *end = models + strcspn(models, ";");
        bool there = lists(models, end, t->model);
        n = snprintf(out, SOURCE_BYTES, "%.*s%s%s%s", (int)(end - old), old, there ? "" : ", ",
                     there ? "" : t->model, end);
    }
    if (n >= SOURCE_BYTES) {
        BT_FAIL(err, BT_ERR_LIMIT, n,
                "%s: its source would take %d bytes, at most %d: too many sessions in one table; "
                "begin a new one",
                name, n, SOURCE_BYTES - 1);
    }
    return BT_OK;
}

/* ---- merging ---- */

static bool same_point(const struct bt_cost_sample *a, const struct bt_cost_sample *b)
{
    return memcmp(&a->format, &b->format, sizeof a->format) == 0 &&
           memcmp(&a->shape, &b->shape, sizeof a->shape) == 0;
}

static bool is_in(const struct bt_sample_set *set, const struct bt_cost_sample *s)
{
    for (int64_t i = 0; i < set->n_samples; i++) {
        if (same_point(&set->samples[i], s)) {
            return true;
        }
    }
    return false;
}

/* Reads a table of this card, stack, version and operation, without the points of `fresh`. */
static enum bt_code read_old(const struct tables *t, enum bt_op op,
                             const struct bt_import_text *old, const struct bt_sample_set *fresh,
                             struct bt_sample_set *all, struct bt_error *err)
{
    BT_TRY(bt_calib_read(old, all, err));
    int64_t n = 0;
    for (int64_t i = 0; i < all->n_samples; i++) {
        const struct bt_cost_sample *s = &all->samples[i];
        if (s->op != op || strcmp(s->gpu, t->gpu->name) != 0 || strcmp(s->stack, "berth") != 0 ||
            strcmp(s->version, BT_VERSION) != 0) {
            BT_FAIL(err, BT_ERR_INPUT, s->line,
                    "%s: holds %s of %s %s on %s, expected %s of berth %s on %s", old->name,
                    bt_op_name(s->op), s->stack, s->version, s->gpu, bt_op_name(op), BT_VERSION,
                    t->gpu->name);
        }
        if (!is_in(fresh, s)) {
            all->samples[n++] = *s;
        }
    }
    all->n_samples = n;
    return BT_OK;
}

/* A table's text, which the caller frees: the session's points and those of `old` (text NULL:
 * none).
 */
static enum bt_code merge(const struct tables *t, enum bt_op op, const struct bt_import_text *old,
                          const struct bt_sample_set *fresh, char **text, int64_t *n_samples,
                          struct bt_error *err)
{
    struct bt_sample_set all;
    char source[SOURCE_BYTES];
    const char *was = "";
    bt_sample_set_init(&all);
    enum bt_code code = BT_OK;
    if (old->text != NULL) {
        code = read_old(t, op, old, fresh, &all, err);
        was = code == BT_OK ? all.samples[0].source : "";
    }
    code = code == BT_OK ? add_source(t, old->name, was, source, err) : code;
    for (int64_t i = 0; code == BT_OK && i < fresh->n_samples; i++) {
        code = bt_sample_set_add(&all, &fresh->samples[i], err);
    }
    for (int64_t i = 0; i < all.n_samples; i++) {
        all.samples[i].source = source;
    }
    size_t n = 0;
    FILE *out = code == BT_OK ? open_memstream(text, &n) : NULL;
    if (out != NULL) {
        code = bt_calib_write(out, all.samples, all.n_samples, err);
        (void)fclose(out);
    } else if (code == BT_OK) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "%s: no memory", old->name);
    }
    *n_samples = all.n_samples;
    bt_sample_set_fini(&all);
    return code;
}

/* ---- a folder's file ---- */

static enum bt_code write_file(const char *path, const char *text, struct bt_error *err)
{
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    bool bad = fputs(text, f) < 0;
    if (fclose(f) != 0 || bad) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    return BT_OK;
}

static enum bt_code put_file(const struct tables *t, enum bt_op op, const char *name,
                             const struct bt_sample_set *fresh, struct bt_error *err)
{
    char path[PATH_BYTES];
    char *was = NULL, *text = NULL;
    int64_t n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", t->folder, name);
    struct bt_import_text old = {.name = path};
    if (access(path, F_OK) == 0) {
        BT_TRY(bt_read_file(path, &was, &old.size_bytes, err));
        old.text = was;
    }
    enum bt_code code = merge(t, op, &old, fresh, &text, &n, err);
    if (code == BT_OK) {
        code = write_file(path, text, err);
    }
    free(text);
    free(was);
    return code;
}

/* ---- the store's table ---- */

/* The store's text of that name, else the shipped one, which an import is instead of. */
static struct bt_import_text stored(const struct tables *t, const char *name)
{
    for (int32_t i = 0; i < t->n_imports; i++) {
        if (strcmp(t->imports[i].name, name) == 0) {
            return (struct bt_import_text){t->imports[i].text, t->imports[i].size_bytes, name};
        }
    }
    for (const struct bt_embedded *e = bt_calibration_texts; e->name != NULL; e++) {
        if (strcmp(e->name, name) == 0) {
            return (struct bt_import_text){e->text, e->size_bytes, name};
        }
    }
    return (struct bt_import_text){.name = name};
}

static enum bt_code put_import(const struct tables *t, enum bt_op op, const char *name,
                               const struct bt_sample_set *fresh, struct bt_error *err)
{
    char source[SOURCE_BYTES];
    char *text = NULL;
    struct bt_import_text old = stored(t, name);
    struct bt_store_import row = {
        .name = name,
        .format = "berth calibrate",
        .gpu = t->gpu->name,
        .stack = "berth",
        .stack_version = BT_VERSION,
        .op = bt_op_name(op),
        .model = "",
        .error_median = NAN,
        .error_p90 = NAN,
        .provenance = {.kind = "measured",
                       .source = source,
                       .source_date = t->date,
                       .licence = "Apache-2.0"},
    };
    (void)snprintf(source, sizeof source, "%s: %s", t->head, t->model);
    enum bt_code code = merge(t, op, &old, fresh, &text, &row.samples, err);
    row.text = text;
    code = code == BT_OK ? bt_store_put_imports(t->store, &row, 1, NULL, err) : code;
    free(text);
    return code;
}

/* ---- all of them ---- */

static enum bt_code put_table(const struct tables *t, enum bt_op op, struct bt_error *err)
{
    char name[NAME_BYTES];
    struct bt_sample_set fresh;
    bt_sample_set_init(&fresh);
    (void)snprintf(name, sizeof name, "%s__berth-%s__%s.cal", t->gpu->name, BT_VERSION,
                   bt_op_name(op));
    enum bt_code code = take_samples(t, op, &fresh, err);
    if (code == BT_OK && fresh.n_samples > 0) {
        code = put_import(t, op, name, &fresh, err);
        if (code == BT_OK && t->folder != NULL) {
            code = put_file(t, op, name, &fresh, err);
        }
    }
    bt_sample_set_fini(&fresh);
    return code;
}

enum bt_code bt_calibrate_put_tables(const struct bt_op_rows_kept *ops, const struct bt_gpu *gpu,
                                     const char *model, const char *date, struct bt_store *store,
                                     const char *folder, struct bt_error *err)
{
    struct tables t = {
        .ops = ops, .gpu = gpu, .model = model, .date = date, .store = store, .folder = folder};
    struct bt_arena arena;
    bt_arena_init(&arena, 0);
    (void)snprintf(t.head, sizeof t.head, "berth calibrate on %s, commit %.12s, %.10s",
                   gpu->product, BT_BUILD_COMMIT, date);
    enum bt_code code = bt_store_load_imports(store, false, &arena, &t.imports, &t.n_imports, err);
    /* The host's time, which is hidden behind the device's, is in the store's samples alone. */
    for (int op = 0; op < BT_OP_HOST && code == BT_OK; op++) {
        code = put_table(&t, (enum bt_op)op, err);
    }
    bt_arena_fini(&arena);
    return code;
}
