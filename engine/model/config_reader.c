#include "engine/model/config_reader.h"

#include <stdio.h>
#include <stdlib.h>

#define READER_FAIL(r, key, ...)                                                                   \
    do {                                                                                           \
        return fail_with((r), (key), json_object_get((r)->object, (key)), __LINE__, __VA_ARGS__);  \
    } while (0)

/* "file: prefix.key: expected WHAT, got VALUE". */
static enum bt_code fail_with(const struct bt_config_reader *r, const char *key,
                              const json_t *value, int32_t line, const char *what)
{
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    enum bt_code code =
        text == NULL
            ? bt_error_set(r->err, BT_ERR_INPUT, 0, __FILE__, line,
                           "%s: %s%s: missing; expected %s", r->file, r->prefix, key, what)
            : bt_error_set(r->err, BT_ERR_INPUT, 0, __FILE__, line,
                           "%s: %s%s: expected %s, got %.80s", r->file, r->prefix, key, what, text);
    free(text);
    return code;
}

const json_t *bt_config_key(const struct bt_config_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->object, key);
    return json_is_null(v) ? NULL : v;
}

enum bt_code bt_config_int(const struct bt_config_reader *r, const char *key, int32_t min,
                           int32_t max, int32_t *out)
{
    const json_t *v = bt_config_key(r, key);
    if (v == NULL) {
        return BT_OK;
    }
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < min || i > max) {
        char what[64];
        (void)snprintf(what, sizeof what, "an integer %d..%d", min, max);
        READER_FAIL(r, key, what);
    }
    *out = (int32_t)i;
    return BT_OK;
}

enum bt_code bt_config_need_int(const struct bt_config_reader *r, const char *key, int32_t min,
                                int32_t max, int32_t *out)
{
    if (bt_config_key(r, key) == NULL) {
        char what[64];
        (void)snprintf(what, sizeof what, "an integer %d..%d", min, max);
        READER_FAIL(r, key, what);
    }
    return bt_config_int(r, key, min, max, out);
}

enum bt_code bt_config_real(const struct bt_config_reader *r, const char *key, double min,
                            double max, double *out)
{
    const json_t *v = bt_config_key(r, key);
    if (v == NULL) {
        return BT_OK;
    }
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max)) {
        char what[64];
        (void)snprintf(what, sizeof what, "a number %g..%g", min, max);
        READER_FAIL(r, key, what);
    }
    *out = x;
    return BT_OK;
}

enum bt_code bt_config_need_real(const struct bt_config_reader *r, const char *key, double min,
                                 double max, double *out)
{
    if (bt_config_key(r, key) == NULL) {
        char what[64];
        (void)snprintf(what, sizeof what, "a number %g..%g", min, max);
        READER_FAIL(r, key, what);
    }
    return bt_config_real(r, key, min, max, out);
}

enum bt_code bt_config_bool(const struct bt_config_reader *r, const char *key, bool *out)
{
    const json_t *v = bt_config_key(r, key);
    if (v == NULL) {
        return BT_OK;
    }
    if (!json_is_boolean(v)) {
        READER_FAIL(r, key, "true or false");
    }
    *out = json_is_true(v);
    return BT_OK;
}

enum bt_code bt_config_string(const struct bt_config_reader *r, const char *key, const char **out)
{
    const json_t *v = bt_config_key(r, key);
    if (v == NULL) {
        return BT_OK;
    }
    if (!json_is_string(v)) {
        READER_FAIL(r, key, "a string");
    }
    *out = json_string_value(v);
    return BT_OK;
}

enum bt_code bt_config_object(const struct bt_config_reader *r, const char *key, const char *prefix,
                              struct bt_config_reader *sub)
{
    const json_t *v = bt_config_key(r, key);
    *sub = (struct bt_config_reader){.file = r->file, .prefix = prefix, .object = v, .err = r->err};
    if (v != NULL && !json_is_object(v)) {
        READER_FAIL(r, key, "an object");
    }
    return BT_OK;
}
