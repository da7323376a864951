#include "cli/out.h"

#include "cli/out_forms.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- building documents ---- */

static json_t *checked(json_t *value)
{
    BT_ASSERT(value != NULL);
    return value;
}

json_t *bt_out_real(double x)
{
    return isfinite(x) ? checked(json_real(x)) : json_null();
}

json_t *bt_out_int(int64_t x)
{
    return checked(json_integer(x));
}

json_t *bt_out_text(const char *text)
{
    json_t *value = text == NULL ? NULL : json_string(text);
    return value == NULL ? json_null() : value;
}

json_t *bt_out_object(void)
{
    return checked(json_object());
}

json_t *bt_out_list(void)
{
    return checked(json_array());
}

json_t *bt_out_answer(const char *command)
{
    json_t *doc = bt_out_object();
    bt_out_set(doc, "command", bt_out_text(command));
    bt_out_set(doc, "version", bt_out_text(BT_VERSION));
    return doc;
}

void bt_out_set(json_t *object, const char *key, json_t *value)
{
    BT_ASSERT(json_object_set_new(object, key, value) == 0);
}

void bt_out_append(json_t *list, json_t *value)
{
    BT_ASSERT(json_array_append_new(list, value) == 0);
}

const json_t *bt_out_at(const json_t *doc, const char *path)
{
    while (doc != NULL && *path != '\0') {
        size_t n = strcspn(path, ".");
        if (json_is_array(doc)) {
            char *end = NULL;
            unsigned long i = strtoul(path, &end, 10);
            doc = end == path + n ? json_array_get(doc, i) : NULL;
        } else {
            char key[128];
            BT_ASSERT(n < sizeof key);
            memcpy(key, path, n);
            key[n] = '\0';
            doc = json_object_get(doc, key);
        }
        path += n;
        path += *path == '.';
    }
    return doc;
}

/* ---- numbers ---- */

void bt_out_shortest(char buf[BT_OUT_NUMBER_BYTES], double x)
{
    BT_ASSERT(isfinite(x));
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) {
            break;
        }
    }
    /* %g turns to exponents as soon as they pass the digits: 2e+01 for 20. */
    double whole = fabs(x);
    if (strchr(buf, 'e') != NULL && whole >= 1 && whole < 1e15) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.0f", x);
    }
    if (strpbrk(buf, ".e") == NULL) {
        size_t n = strlen(buf);
        memcpy(buf + n, ".0", 3);
    }
}

/* ---- writing ---- */

enum bt_code bt_out_flush(FILE *f, const char *what, struct bt_error *err)
{
    errno = 0;
    if (fflush(f) != 0 || ferror(f)) {
        int why = errno;
        BT_FAIL(err, BT_ERR_MISSING, why, "%s cannot be written: %s", what,
                why == 0 ? "write error" : strerror(why));
    }
    return BT_OK;
}

enum bt_code bt_out_write(FILE *f, const json_t *doc, enum bt_out_format format,
                          const struct bt_out_view *view, struct bt_error *err)
{
    BT_ASSERT(json_is_object(doc));
    switch (format) {
    case BT_OUT_JSON:
        bt_out_json(f, doc);
        break;
    case BT_OUT_CSV:
        BT_TRY(bt_out_csv(f, doc, view == NULL ? NULL : view->csv_rows, err));
        break;
    case BT_OUT_TABLE:
        bt_out_table(f, doc, view);
        break;
    }
    return bt_out_flush(f, "the result", err);
}
