/* A GPU's operations as tables of the berth stack: into the store, and as files. */
#include "cli/build_info.h"
#include "cli/calibrate.h"
#include "cli/local.h"
#include "sim/cost/calib.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 192, SOURCE_BYTES = 160, PATH_BYTES = 4096 };

/* The cost model adds a graph's node to every kernel (sim/cost/step.h): the measured time has it.
 */
static const int64_t NODE_NS = 500;
static const int64_t LEAST_NS = 200;

struct tables {
    const struct bt_op_rows_kept *ops;
    const struct bt_gpu *gpu;
    const char *model, *date;
    struct bt_store *store;
    const char *folder;
    char source[SOURCE_BYTES];
};

static enum bt_code take_samples(const struct tables *t, enum bt_op op, struct bt_sample_set *set,
                                 struct bt_error *err)
{
    for (int64_t i = 0; i < t->ops->n; i++) {
        const struct bt_op_sample *row = &t->ops->samples[i];
        enum bt_op of;
        BT_TRY(bt_op_parse(row->op, "op", &of, err));
        if (of != op) {
            continue;
        }
        struct bt_cost_sample s = bt_local_sample(row, op);
        s.time_ns = s.time_ns > NODE_NS + LEAST_NS ? s.time_ns - NODE_NS : LEAST_NS;
        s.gpu = t->gpu->name;
        s.version = BT_VERSION;
        s.source = t->source;
        s.licence = "Apache-2.0";
        BT_TRY(bt_sample_set_add(set, &s, err));
    }
    return BT_OK;
}

static enum bt_code write_file(const struct tables *t, const char *name, const char *text,
                               struct bt_error *err)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", t->folder, name);
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

static enum bt_code put_table(const struct tables *t, enum bt_op op, struct bt_sample_set *set,
                              struct bt_error *err)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibrate: no memory for a table");
    }
    int64_t n_samples = set->n_samples;
    enum bt_code code = bt_calib_write(out, set->samples, n_samples, err);
    (void)fclose(out);
    char name[NAME_BYTES];
    const struct bt_op_sample *first = &t->ops->samples[0];
    (void)snprintf(name, sizeof name, "%s__berth-%s__%s__%s-%s-%s.cal", t->gpu->name, BT_VERSION,
                   bt_op_name(op), t->model, bt_weight_format_name(first->weights),
                   bt_act_format_name(first->activations));
    struct bt_store_import row = {
        .name = name,
        .format = "berth calibrate",
        .gpu = t->gpu->name,
        .stack = "berth",
        .stack_version = BT_VERSION,
        .op = bt_op_name(op),
        .model = t->model,
        .samples = n_samples,
        .error_median = NAN,
        .error_p90 = NAN,
        .text = text,
        .provenance = {.kind = "measured",
                       .source = t->source,
                       .source_date = t->date,
                       .licence = "Apache-2.0"},
    };
    if (code == BT_OK) {
        code = bt_store_put_imports(t->store, &row, 1, NULL, err);
    }
    if (code == BT_OK && t->folder != NULL) {
        code = write_file(t, name, text, err);
    }
    free(text);
    return code;
}

enum bt_code bt_calibrate_put_tables(const struct bt_op_rows_kept *ops, const struct bt_gpu *gpu,
                                     const char *model, const char *date, struct bt_store *store,
                                     const char *folder, struct bt_error *err)
{
    struct tables t = {
        .ops = ops, .gpu = gpu, .model = model, .date = date, .store = store, .folder = folder};
    (void)snprintf(t.source, sizeof t.source, "berth calibrate: %s on %s, commit %.12s, %.10s",
                   model, gpu->product, BT_BUILD_COMMIT, date);
    enum bt_code code = BT_OK;
    /* The host's time, which is hidden behind the device's, is in the store's samples alone. */
    for (int op = 0; op < BT_OP_HOST && code == BT_OK; op++) {
        struct bt_sample_set set;
        bt_sample_set_init(&set);
        code = take_samples(&t, (enum bt_op)op, &set, err);
        if (code == BT_OK && set.n_samples > 0) {
            code = put_table(&t, (enum bt_op)op, &set, err);
        }
        bt_sample_set_fini(&set);
    }
    return code;
}
