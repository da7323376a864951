#include "cli/config_opts.h"

#include "cli/out.h"
#include "engine/core/suggest.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = 96, HELP_BYTES = 256, ALLOWED_BYTES = 192, KEY_BYTES = 128 };

/* Ranges end here when the table says "no limit". */
static const double NO_LIMIT = 1e18;

struct texts {
    char help[HELP_BYTES];
    char allowed[ALLOWED_BYTES];
};

static void join_names(const char *const *names, char *out, size_t n_bytes)
{
    size_t at = 0;
    for (int32_t i = 0; names[i] != NULL; i++) {
        int n = snprintf(out + at, n_bytes - at, "%s%s", i == 0 ? "" : "|", names[i]);
        BT_ASSERT(n > 0);
        BT_ASSERT((size_t)n < n_bytes - at);
        at += (size_t)n;
    }
}

/* The table's sentences become lines of help: no capital, no full stop. */
static void help_of(const struct bt_config_field *f, char *out)
{
    (void)snprintf(out, HELP_BYTES, "%s", f->help);
    size_t n = strlen(out);
    if (n > 0 && out[n - 1] == '.') {
        out[n - 1] = '\0';
    }
    bool is_word =
        out[0] >= 'A' && out[0] <= 'Z' && (out[1] == ' ' || (out[1] >= 'a' && out[1] <= 'z'));
    if (is_word) {
        out[0] = (char)(out[0] - 'A' + 'a');
    }
}

static void set_range(struct bt_opt *opt, const struct bt_config_field *f, enum bt_opt_kind kind)
{
    opt->kind = kind;
    opt->min = f->min;
    opt->max = f->max >= NO_LIMIT ? INFINITY : f->max;
}

/* Where the option's own check would say less than the configuration's (auto, sizes, speculation),
 * it is a text that bt_config_set checks. */
static struct bt_opt make_opt(const struct bt_config_field *f, struct texts *texts)
{
    help_of(f, texts->help);
    struct bt_opt opt = {.name = f->option,
                         .kind = BT_OPT_TEXT,
                         .help = texts->help,
                         .default_text = f->def != NULL && f->def[0] != '\0' ? f->def : NULL,
                         .unit = f->unit[0] == '\0' ? NULL : f->unit};
    switch (f->type) {
    case BT_FIELD_NAME:
        opt.value = "NAME";
        break;
    case BT_FIELD_INT:
    case BT_FIELD_INT64:
        opt.value = f->allows_auto ? "N|auto" : "N";
        if (!f->allows_auto) {
            set_range(&opt, f, BT_OPT_INT);
        }
        break;
    case BT_FIELD_DOUBLE:
    case BT_FIELD_DURATION:
        opt.value = "F";
        set_range(&opt, f, BT_OPT_REAL);
        break;
    case BT_FIELD_BOOL:
        opt.kind = BT_OPT_ENUM;
        opt.value = "on|off";
        opt.allowed = "on|off";
        break;
    case BT_FIELD_ENUM:
        opt.kind = BT_OPT_ENUM;
        join_names(f->names, texts->allowed, sizeof texts->allowed);
        opt.value = "WORD";
        opt.allowed = texts->allowed;
        break;
    case BT_FIELD_SIZE:
        opt.value = "SIZE";
        opt.unit = NULL;
        break;
    case BT_FIELD_SPEC:
        opt.value = "HOW";
        break;
    case BT_FIELD_WINDOW:
        opt.value = "F|F..F";
        break;
    }
    return opt;
}

struct bt_opt_table bt_config_opt_table(void)
{
    static struct bt_opt opts[MAX_FIELDS];
    static struct texts texts[MAX_FIELDS];
    static int32_t n = 0;
    if (n == 0) {
        for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
            BT_ASSERT(n < MAX_FIELDS);
            if (f->option != NULL) {
                opts[n] = make_opt(f, &texts[n]);
                n++;
            }
        }
    }
    return (struct bt_opt_table){.title = "Configuration", .opts = opts, .n_opts = n};
}

enum bt_code bt_config_apply(const struct bt_args *args, struct bt_config *c, struct bt_error *err)
{
    struct bt_opt_table table = bt_config_opt_table();
    for (int32_t i = 0; i < args->n_given; i++) {
        const struct bt_arg *arg = &args->given[i];
        if (arg->opt >= table.opts && arg->opt < table.opts + table.n_opts) {
            char where[KEY_BYTES];
            (void)snprintf(where, sizeof where, "--%s", arg->opt->name);
            BT_TRY(bt_config_set(c, bt_config_find_option(arg->opt->name), arg->text, where, err));
        }
    }
    return BT_OK;
}

const struct bt_config_field *bt_config_field_named(const char *key, const char *where,
                                                    struct bt_error *err)
{
    const struct bt_config_field *f = bt_config_find(key);
    if (f == NULL) {
        f = bt_config_find_option(key);
    }
    if (f != NULL) {
        return f;
    }
    const char *names[2 * MAX_FIELDS] = {NULL};
    int32_t n = 0;
    for (f = bt_config_fields; f->path != NULL; f++) {
        names[n++] = f->path;
        names[n++] = f->option;
    }
    const char *near_name = bt_suggest(key, names, n);
    (void)bt_error_set(err, BT_ERR_ARG, 0, __FILE__, __LINE__, "%s: unknown key '%s'%s%s%s", where,
                       key, near_name == NULL ? "" : "; did you mean '",
                       near_name == NULL ? "" : near_name, near_name == NULL ? "" : "'?");
    return NULL;
}

enum bt_code bt_config_apply_set(const char *text, struct bt_config *c, struct bt_error *err)
{
    size_t n_key = strcspn(text, "=");
    char key[KEY_BYTES], where[KEY_BYTES + 16];
    if (text[n_key] == '\0' || n_key == 0 || n_key >= sizeof key) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--set: '%s' is not KEY=VALUE", text);
    }
    memcpy(key, text, n_key);
    key[n_key] = '\0';
    const struct bt_config_field *f = bt_config_field_named(key, "--set", err);
    if (f == NULL) {
        return BT_ERR_ARG;
    }
    (void)snprintf(where, sizeof where, "--set %s", key);
    return bt_config_set(c, f, text + n_key + 1, where, err);
}

/* ---- the document ---- */

static json_t *value_json(const struct bt_config *c, const struct bt_config_field *f)
{
    char text[BT_PATH_BYTES];
    bt_config_get(c, f, text, sizeof text);
    switch (f->type) {
    case BT_FIELD_INT:
    case BT_FIELD_INT64:
    case BT_FIELD_SIZE:
        return strcmp(text, "auto") == 0 ? bt_out_text(text)
                                         : bt_out_int(strtoimax(text, NULL, 10));
    case BT_FIELD_DOUBLE:
    case BT_FIELD_DURATION:
        return bt_out_real(strtod(text, NULL));
    case BT_FIELD_BOOL:
        return json_boolean(strcmp(text, "on") == 0);
    case BT_FIELD_WINDOW:
        return strstr(text, "..") != NULL ? bt_out_text(text) : bt_out_real(strtod(text, NULL));
    case BT_FIELD_NAME:
    case BT_FIELD_ENUM:
    case BT_FIELD_SPEC:
        break;
    }
    return text[0] == '\0' ? json_null() : bt_out_text(text);
}

json_t *bt_config_json(const struct bt_config *c)
{
    json_t *doc = bt_out_object();
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        json_t *object = doc;
        const char *name = f->path;
        const char *dot = strchr(f->path, '.');
        if (dot != NULL) {
            char group[KEY_BYTES];
            (void)snprintf(group, sizeof group, "%.*s", (int)(dot - f->path), f->path);
            object = json_object_get(doc, group);
            if (object == NULL) {
                object = bt_out_object();
                bt_out_set(doc, group, object);
            }
            name = dot + 1;
        }
        bt_out_set(object, name, value_json(c, f));
    }
    return doc;
}
