/* Results: one JSON document a command, written as JSON, as CSV or as tables for people.
 *
 * A command builds a jansson object (insertion order is the order of output) and hands it over;
 * which form the reader gets is not the command's business. All forms are pure functions of the
 * document, so equal documents give equal bytes. Threading: no state.
 *
 * JSON: two spaces of indent, integers as integers, doubles as the shortest decimal that reads back
 * as the same double, always with a point or an exponent; undefined values are null.
 * CSV (RFC 4180, \n line ends): the rows of the document's table, or the document as one row;
 * nested objects become dotted columns, lists of plain values numbered columns (a.0, a.1), lists of
 * objects a JSON text in one cell; null is an empty cell.
 * Tables: aligned, numbers with units taken from the name's suffix (_s, _bytes, _fraction, ...).
 */
#ifndef BT_CLI_OUT_H
#define BT_CLI_OUT_H

#include "engine/core/error.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_out_format { BT_OUT_TABLE, BT_OUT_JSON, BT_OUT_CSV };

/* How the table form prints a number. */
enum bt_unit {
    BT_UNIT_AUTO,        /* by the suffix of the name */
    BT_UNIT_NONE,        /* integers with separators, doubles with four significant digits */
    BT_UNIT_PLAIN,       /* digits alone: seeds, years, ids */
    BT_UNIT_SECONDS,     /* 1.23 s, 45.6 ms, 789 us; minutes, hours and days from 120 s on */
    BT_UNIT_NS,          /* nanoseconds, shown as seconds are */
    BT_UNIT_BYTES,       /* decimal: 819.2 kB, 26.0 GB */
    BT_UNIT_BYTES_PER_S, /* 4.02 TB/s */
    BT_UNIT_FRACTION,    /* 45.6% */
    BT_UNIT_PER_S,       /* 1,234/s */
    BT_UNIT_FLOPS,       /* 989 TFLOP/s */
    BT_UNIT_USD,         /* $1.25 */
};

/* One column of a table, or one line of a list of fields. */
struct bt_out_column {
    const char *path;  /* dotted path inside the row or object */
    const char *title; /* NULL: the path */
    enum bt_unit unit;
};

enum bt_out_part_kind {
    BT_OUT_FIELDS, /* the object at `path`: one line a member */
    BT_OUT_ROWS,   /* the list of objects at `path`: one line an object */
    BT_OUT_LINES,  /* the string or list of strings at `path`: as they are */
};

struct bt_out_part {
    enum bt_out_part_kind kind;
    const char *path;  /* dotted path inside the document; "" is the document */
    const char *title; /* printed above; NULL: none */
    const struct bt_out_column *columns;
    int32_t n_columns; /* 0: every member in the document's order */
};

/* The list of rows at a path, in a static table of parts; columns_ is an array. */
#define BT_OUT_ROWS_PART(path_, title_, columns_)                                                  \
    {                                                                                              \
        .kind = BT_OUT_ROWS, .path = (path_), .title = (title_), .columns = (columns_),            \
        .n_columns = sizeof(columns_) / sizeof *(columns_)                                         \
    }

/* The table form of a document. A part whose path is absent or empty is left out. */
struct bt_out_view {
    const struct bt_out_part *parts;
    int32_t n_parts;
    const char *csv_rows; /* path of the list whose objects are the rows of the CSV form; NULL: the
                           * first list of objects of the document, else one row */
};

/* Writes the document and flushes. `view` may be NULL: every member of the document is shown.
 * Returns BT_ERR_MISSING when the stream refuses (full disk, closed pipe), BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_out_write(FILE *f, const json_t *doc, enum bt_out_format format,
                                       const struct bt_out_view *view, struct bt_error *err);

/* Flushes a stream. Returns BT_ERR_MISSING naming `what` when it, or a write before, failed. */
BT_NODISCARD enum bt_code bt_out_flush(FILE *f, const char *what, struct bt_error *err);

/* A double for a document: null when x is not finite. Never NULL. */
json_t *bt_out_real(double x);

/* An integer for a document. Never NULL. */
json_t *bt_out_int(int64_t x);

/* A string for a document; null for NULL or bytes that are not UTF-8. Never NULL. */
json_t *bt_out_text(const char *text);

/* Adds a member to an object and takes over the reference; memory refused is fatal (abort), so that
 * commands need no error path for each member. */
void bt_out_set(json_t *object, const char *key, json_t *value);

/* Appends to a list, as bt_out_set. */
void bt_out_append(json_t *list, json_t *value);

/* A new empty object or list. Never NULL. */
json_t *bt_out_object(void);
json_t *bt_out_list(void);

/* A new object with what every command's answer begins with: command, version. Never NULL. */
json_t *bt_out_answer(const char *command);

/* The value at a dotted path; numbers index lists. NULL when absent. */
const json_t *bt_out_at(const json_t *doc, const char *path);

enum { BT_OUT_NUMBER_BYTES = 40 };

/* The shortest decimal that strtod reads back as x (finite), with a point or an exponent. */
void bt_out_shortest(char buf[BT_OUT_NUMBER_BYTES], double x);

/* The unit that a name's suffix says; BT_UNIT_NONE when it says none. */
enum bt_unit bt_unit_by_suffix(const char *name);

/* x with its unit, for people. */
void bt_unit_format(char buf[BT_OUT_NUMBER_BYTES], double x, enum bt_unit unit);

#ifdef __cplusplus
}
#endif

#endif
