/* Command lines: options declared in tables, parsed, checked, and asked for by name.
 *
 * A struct bt_opt says all there is to know of an option; parsing, range checks, "did you mean" and
 * the help text come from it. A command line is checked against the tables of one command together
 * (its own, those every command has, those of the configuration). The parsed bt_args borrows argv
 * and the tables, and owns one small array. Threading: one thread at a time.
 *
 * Forms: --opt value, --opt=value, --flag, -h, `--` before positional arguments that start with a
 * dash, `-` as a positional argument. The last of repeated options wins unless it `repeats`.
 */
#ifndef BT_CLI_ARGS_H
#define BT_CLI_ARGS_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_opt_kind {
    BT_OPT_FLAG, /* present or not; takes no value */
    BT_OPT_TEXT, /* anything but the empty string */
    BT_OPT_INT,  /* a whole number in [min, max] */
    BT_OPT_REAL, /* a finite decimal number in [min, max] */
    BT_OPT_ENUM, /* one of `allowed` */
};

struct bt_opt {
    const char *name; /* without dashes */
    enum bt_opt_kind kind;
    const char *value;        /* what the value is called in the help: "FILE", "N" */
    const char *default_text; /* NULL: none; a valid value otherwise, or a description in <> */
    const char *allowed;      /* BT_OPT_ENUM: "a|b|c" */
    double min, max;          /* BT_OPT_INT and _REAL, inclusive; both 0: any */
    const char *unit;         /* NULL: none */
    const char *help;         /* one line, no full stop */
    bool repeats;             /* every value counts, in the order given */
};

struct bt_opt_table {
    const char *title; /* heading in the help */
    const struct bt_opt *opts;
    int32_t n_opts;
};

struct bt_arg {
    const struct bt_opt *opt;
    const char *text; /* borrowed from argv; NULL for a flag */
};

enum { BT_ARGS_MAX_TABLES = 8 };

struct bt_args {
    struct bt_opt_table tables[BT_ARGS_MAX_TABLES];
    int32_t n_tables;
    struct bt_arg *given; /* owned, in the order given */
    int32_t n_given;
    const char **positional; /* owned array of borrowed strings */
    int32_t n_positional;
};

/* Parses argv[0..argc) (program and command names already removed) against n_tables tables.
 * On failure returns BT_ERR_ARG with a message that names the option, the value and what is allowed
 * (or BT_ERR_NOMEM), and leaves `args` zeroed. */
BT_NODISCARD enum bt_code bt_args_parse(struct bt_args *args, const struct bt_opt_table *tables,
                                        int32_t n_tables, int argc, char *const *argv,
                                        struct bt_error *err);

/* Frees what bt_args_parse took; a zeroed bt_args is fine. */
void bt_args_fini(struct bt_args *args);

/* True when the option was given. The name must be declared, as in every call below. */
bool bt_args_given(const struct bt_args *args, const char *name);

/* The last value given, else the default, else NULL. */
const char *bt_args_text(const struct bt_args *args, const char *name);

/* The value of a BT_OPT_INT: the last given, else the default, else `missing`. */
int64_t bt_args_int(const struct bt_args *args, const char *name, int64_t missing);

/* The value of a BT_OPT_REAL: the last given, else the default, else `missing`. */
double bt_args_real(const struct bt_args *args, const char *name, double missing);

/* Walks every value of an option in the order given: start with *at = 0; NULL after the last. */
const char *bt_args_next(const struct bt_args *args, const char *name, int32_t *at);

/* Checks `text` against the option. BT_ERR_ARG names "--name", the value and what is allowed. */
BT_NODISCARD enum bt_code bt_opt_check(const struct bt_opt *opt, const char *text,
                                       struct bt_error *err);

/* Prints the options of one table, aligned, wrapped at 80 columns: name, value, help, what is
 * allowed, unit, default in brackets. */
void bt_opt_print(FILE *f, const struct bt_opt_table *table);

#ifdef __cplusplus
}
#endif

#endif
