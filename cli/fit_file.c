#include "cli/fit_file.h"

#include "db/store.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char FORMAT[] = "berth fit 1";

json_t *bt_fit_json(const struct bt_fit *fit, const char *model, const char *source,
                    int64_t n_requests)
{
    json_t *doc = bt_out_object();
    bt_out_set(doc, "format", bt_out_text(FORMAT));
    bt_out_set(doc, "stack", bt_out_text(fit->stack));
    bt_out_set(doc, "gpu", bt_out_text(fit->gpu));
    bt_out_set(doc, "model", bt_out_text(model));
    bt_out_set(doc, "step_overhead_s", bt_out_real(fit->step_overhead_s));
    bt_out_set(doc, "efficiency", bt_out_real(fit->efficiency));
    bt_out_set(doc, "step_error", bt_out_real(fit->step_error));
    bt_out_set(doc, "source", bt_out_text(source));
    bt_out_set(doc, "requests", bt_out_int(n_requests));
    return doc;
}

enum bt_code bt_fit_write(const json_t *doc, const char *path, struct bt_error *err)
{
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    enum bt_code code = bt_out_write(f, doc, BT_OUT_JSON, NULL, err);
    if (fclose(f) != 0 && code == BT_OK) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    return code;
}

static enum bt_code read_text(const json_t *doc, const char *path, const char *key, char *out,
                              size_t out_bytes, struct bt_error *err)
{
    const char *text = json_string_value(json_object_get(doc, key));
    if (text == NULL || text[0] == '\0' || strlen(text) >= out_bytes) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected a text of 1..%zu bytes", path, key,
                out_bytes - 1);
    }
    memcpy(out, text, strlen(text) + 1);
    return BT_OK;
}

static enum bt_code read_real(const json_t *doc, const char *path, const char *key, double min,
                              double max, double *out, struct bt_error *err)
{
    const json_t *value = json_object_get(doc, key);
    *out = json_number_value(value);
    if (!json_is_number(value) || !(*out >= min && *out <= max)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected a number in %g..%g, got %g", path, key, min,
                max, *out);
    }
    return BT_OK;
}

static enum bt_code read_fit(const json_t *doc, const char *path, struct bt_fit *out,
                             struct bt_error *err)
{
    const char *format = json_string_value(json_object_get(doc, "format"));
    if (format == NULL || strcmp(format, FORMAT) != 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: format: expected \"%s\" (made by berth fit --out)", path,
                FORMAT);
    }
    BT_TRY(read_text(doc, path, "stack", out->stack, sizeof out->stack, err));
    BT_TRY(read_text(doc, path, "gpu", out->gpu, sizeof out->gpu, err));
    BT_TRY(read_real(doc, path, "step_overhead_s", 0, 10, &out->step_overhead_s, err));
    BT_TRY(read_real(doc, path, "efficiency", 0.01, 100, &out->efficiency, err));
    return read_real(doc, path, "step_error", 0, 10, &out->step_error, err);
}

enum bt_code bt_fit_read(const char *path, struct bt_fit *out, struct bt_error *err)
{
    *out = (struct bt_fit){0};
    json_error_t why;
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", path, strerror(errno));
    }
    json_t *doc = json_loadf(f, 0, &why);
    (void)fclose(f);
    if (doc == NULL) {
        BT_FAIL(err, BT_ERR_INPUT, why.line, "%s:%d: not JSON: %s", path, why.line, why.text);
    }
    enum bt_code code = read_fit(doc, path, out, err);
    json_decref(doc);
    return code;
}

struct finding {
    const char *name;
    struct bt_fit fit;
    bool found;
    char others[256]; /* names of the fits there are */
};

static bool take_fit(void *ctx, const char *section, const struct bt_value *values,
                     int32_t n_values)
{
    (void)section;
    struct finding *f = ctx;
    struct bt_fit fit = {.efficiency = 1};
    const char *name = "";
    for (int32_t i = 0; i < n_values; i++) {
        const struct bt_value *v = &values[i];
        if (strcmp(v->name, "name") == 0) {
            name = v->text;
        } else if (strcmp(v->name, "stack") == 0) {
            (void)snprintf(fit.stack, sizeof fit.stack, "%s", v->text);
        } else if (strcmp(v->name, "gpu") == 0) {
            (void)snprintf(fit.gpu, sizeof fit.gpu, "%s", v->text);
        } else if (strcmp(v->name, "step_overhead_s") == 0) {
            fit.step_overhead_s = v->real;
        } else if (strcmp(v->name, "efficiency") == 0) {
            fit.efficiency = v->real;
        } else if (strcmp(v->name, "step_error") == 0) {
            fit.step_error = v->real;
        }
    }
    size_t n = strlen(f->others);
    (void)snprintf(f->others + n, sizeof f->others - n, "%s%s", n > 0 ? ", " : "", name);
    if (strcmp(name, f->name) == 0) {
        f->fit = fit;
        f->found = true;
    }
    return !f->found;
}

enum bt_code bt_fit_find(const struct bt_cli *cli, const char *text, struct bt_fit *out,
                         struct bt_error *err)
{
    struct stat st;
    if (stat(text, &st) == 0) {
        return bt_fit_read(text, out, err);
    }
    *out = (struct bt_fit){0};
    struct finding f = {.name = text};
    struct bt_store *store = NULL;
    struct bt_store_opts opts = {.path = cli->db_path, .read_only = true};
    struct bt_error none = {0}; /* no store: no fits */
    if (bt_store_open(&opts, &store, &none) == BT_OK) {
        enum bt_code code = bt_store_list(store, BT_LIST_FITS, NULL, take_fit, &f, err);
        bt_store_close(store);
        BT_TRY(code);
    }
    if (!f.found) {
        BT_FAIL(err, BT_ERR_NOTFOUND, 0,
                "--fit \"%s\": no such file, and no fit of that name in the "
                "store%s%s (berth fit makes them)",
                text, f.others[0] != '\0' ? ", which has " : "", f.others);
    }
    *out = f.fit;
    return BT_OK;
}
