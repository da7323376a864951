#include "cli/out_forms.h"

#include <stdlib.h>

/* jansson escapes the string; its own dump of reals has a fixed number of digits. */
static void write_string(FILE *f, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    BT_ASSERT(text != NULL);
    (void)fputs(text, f);
    free(text);
}

static void write_key(FILE *f, const char *key)
{
    json_t *text = json_string(key);
    BT_ASSERT(text != NULL);
    write_string(f, text);
    json_decref(text);
}

static void write_value(FILE *f, const json_t *value, int depth);

enum { COMPACT = -1 }; /* depth of a text on one line */

static void write_break(FILE *f, int depth)
{
    if (depth != COMPACT) {
        fprintf(f, "\n%*s", 2 * depth, "");
    }
}

static int deeper(int depth)
{
    return depth == COMPACT ? COMPACT : depth + 1;
}

static void write_object(FILE *f, const json_t *object, int depth)
{
    if (json_object_size(object) == 0) {
        (void)fputs("{}", f);
        return;
    }
    fputc('{', f);
    bool first = true;
    /* jansson's iterators take a plain pointer and do not write through it. */
    json_t *walked = (json_t *)object;
    for (void *it = json_object_iter(walked); it != NULL; it = json_object_iter_next(walked, it)) {
        if (!first) {
            fputc(',', f);
        }
        first = false;
        write_break(f, deeper(depth));
        write_key(f, json_object_iter_key(it));
        (void)fputs(depth == COMPACT ? ":" : ": ", f);
        write_value(f, json_object_iter_value(it), deeper(depth));
    }
    write_break(f, depth);
    fputc('}', f);
}

static bool is_plain_list(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_object(item) || json_is_array(item)) {
            return false;
        }
    }
    return true;
}

/* A list of plain values stays on one line: token ids would fill screens otherwise. */
static void write_list(FILE *f, const json_t *list, int depth)
{
    bool plain = is_plain_list(list);
    fputc('[', f);
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (i > 0) {
            (void)fputs(plain && depth != COMPACT ? ", " : ",", f);
        }
        if (!plain) {
            write_break(f, deeper(depth));
        }
        write_value(f, json_array_get(list, i), deeper(depth));
    }
    if (!plain) {
        write_break(f, depth);
    }
    fputc(']', f);
}

static void write_value(FILE *f, const json_t *value, int depth)
{
    char number[BT_OUT_NUMBER_BYTES];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(f, value, depth);
        return;
    case JSON_ARRAY:
        write_list(f, value, depth);
        return;
    case JSON_STRING:
        write_string(f, value);
        return;
    case JSON_INTEGER:
        fprintf(f, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return;
    case JSON_REAL:
        bt_out_shortest(number, json_real_value(value));
        (void)fputs(number, f);
        return;
    case JSON_TRUE:
        (void)fputs("true", f);
        return;
    case JSON_FALSE:
        (void)fputs("false", f);
        return;
    case JSON_NULL:
        (void)fputs("null", f);
        return;
    }
}

void bt_out_json(FILE *f, const json_t *doc)
{
    write_value(f, doc, 0);
    fputc('\n', f);
}

void bt_out_json_compact(FILE *f, const json_t *value)
{
    write_value(f, value, COMPACT);
}
