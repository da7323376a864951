#include "cli/args.h"

#include "engine/core/suggest.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMNS = 80, HELP_INDENT = 26, HELP_TEXT_BYTES = 512, MAX_OPTIONS = 256 };

/* ---- looking options up ---- */

static const struct bt_opt *find_opt(const struct bt_args *args, const char *name, size_t n_bytes)
{
    for (int32_t t = 0; t < args->n_tables; t++) {
        for (int32_t i = 0; i < args->tables[t].n_opts; i++) {
            const struct bt_opt *opt = &args->tables[t].opts[i];
            if (strlen(opt->name) == n_bytes && memcmp(opt->name, name, n_bytes) == 0) {
                return opt;
            }
        }
    }
    return NULL;
}

static const struct bt_opt *declared(const struct bt_args *args, const char *name)
{
    const struct bt_opt *opt = find_opt(args, name, strlen(name));
    BT_ASSERT(opt != NULL);
    return opt;
}

static enum bt_code fail_unknown(const struct bt_args *args, const char *name, int n_bytes,
                                 struct bt_error *err)
{
    const char *names[MAX_OPTIONS] = {NULL};
    int32_t n = 0;
    for (int32_t t = 0; t < args->n_tables; t++) {
        for (int32_t i = 0; i < args->tables[t].n_opts && n < MAX_OPTIONS; i++) {
            names[n++] = args->tables[t].opts[i].name;
        }
    }
    char given[BT_SUGGEST_MAX_BYTES + 1];
    (void)snprintf(given, sizeof given, "%.*s", n_bytes, name);
    const char *near_name = bt_suggest(given, names, n);
    if (near_name != NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0, "unknown option --%.*s; did you mean --%s?", n_bytes, name,
                near_name);
    }
    BT_FAIL(err, BT_ERR_ARG, 0, "unknown option --%.*s", n_bytes, name);
}

/* ---- values ---- */

static bool has_range(const struct bt_opt *opt)
{
    return opt->min != 0 || opt->max != 0;
}

/* "a whole number from 1 to 64", "a number of at least 0": what an option accepts. */
static void describe_allowed(const struct bt_opt *opt, char *buf, size_t n_bytes)
{
    if (opt->kind == BT_OPT_ENUM) {
        (void)snprintf(buf, n_bytes, "one of %s", opt->allowed);
        return;
    }
    const char *noun = opt->kind == BT_OPT_INT ? "a whole number" : "a number";
    const char *unit = opt->unit == NULL ? "" : opt->unit;
    const char *space = opt->unit == NULL ? "" : " ";
    if (!has_range(opt)) {
        (void)snprintf(buf, n_bytes, "%s", noun);
    } else if (isinf(opt->max)) {
        (void)snprintf(buf, n_bytes, "%s of at least %.15g%s%s", noun, opt->min, space, unit);
    } else {
        (void)snprintf(buf, n_bytes, "%s from %.15g to %.15g%s%s", noun, opt->min, opt->max, space,
                       unit);
    }
}

static enum bt_code fail_value(const struct bt_opt *opt, const char *text, struct bt_error *err)
{
    char allowed[HELP_TEXT_BYTES];
    describe_allowed(opt, allowed, sizeof allowed);
    BT_FAIL(err, BT_ERR_ARG, 0, "--%s: '%s' is not %s", opt->name, text, allowed);
}

static bool in_range(const struct bt_opt *opt, double x)
{
    return !has_range(opt) || (x >= opt->min && x <= opt->max);
}

static bool parse_int(const char *text, int64_t *out)
{
    const char *digits = *text == '-' || *text == '+' ? text + 1 : text;
    if (*digits == '\0' || strspn(digits, "0123456789") != strlen(digits)) {
        return false;
    }
    errno = 0;
    *out = strtoimax(text, NULL, 10);
    return errno == 0;
}

/* strtod alone would take "inf", "nan" and hexadecimal numbers. */
static bool parse_real(const char *text, double *out)
{
    if (*text == '\0' || strspn(text, "0123456789+-.eE") != strlen(text)) {
        return false;
    }
    char *end = NULL;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

/* The word of "a|b|c" that equals text. */
static bool is_allowed_word(const char *allowed, const char *text)
{
    size_t n_text = strlen(text);
    for (const char *at = allowed; *at != '\0';) {
        size_t n = strcspn(at, "|");
        if (n == n_text && memcmp(at, text, n) == 0) {
            return true;
        }
        at += n;
        at += *at == '|';
    }
    return false;
}

enum { MAX_WORDS = 32 };

static enum bt_code fail_word(const struct bt_opt *opt, const char *text, struct bt_error *err)
{
    char words[HELP_TEXT_BYTES];
    BT_ASSERT(strlen(opt->allowed) < sizeof words);
    (void)snprintf(words, sizeof words, "%s", opt->allowed);
    const char *names[MAX_WORDS] = {NULL};
    int32_t n = 0;
    for (char *at = words; n < MAX_WORDS;) {
        names[n++] = at;
        at += strcspn(at, "|");
        if (*at == '\0') {
            break;
        }
        *at++ = '\0';
    }
    const char *near_name = bt_suggest(text, names, n);
    if (near_name != NULL) {
        BT_FAIL(err, BT_ERR_ARG, 0, "--%s: '%s' is not one of %s; did you mean %s?", opt->name,
                text, opt->allowed, near_name);
    }
    return fail_value(opt, text, err);
}

enum bt_code bt_opt_check(const struct bt_opt *opt, const char *text, struct bt_error *err)
{
    BT_ASSERT(opt->kind != BT_OPT_FLAG);
    int64_t whole = 0;
    double real = 0;
    switch (opt->kind) {
    case BT_OPT_FLAG:
        break;
    case BT_OPT_TEXT:
        if (*text == '\0') {
            BT_FAIL(err, BT_ERR_ARG, 0, "--%s: the value is empty", opt->name);
        }
        break;
    case BT_OPT_INT:
        if (!parse_int(text, &whole) || !in_range(opt, (double)whole)) {
            return fail_value(opt, text, err);
        }
        break;
    case BT_OPT_REAL:
        if (!parse_real(text, &real) || !in_range(opt, real)) {
            return fail_value(opt, text, err);
        }
        break;
    case BT_OPT_ENUM:
        if (!is_allowed_word(opt->allowed, text)) {
            return fail_word(opt, text, err);
        }
        break;
    }
    return BT_OK;
}

/* ---- parsing ---- */

/* Parses the option at argv[*i]; *i is left at its last word. */
static enum bt_code parse_option(struct bt_args *args, int argc, char *const *argv, int *i,
                                 struct bt_error *err)
{
    const char *name = argv[*i] + 2;
    size_t n_name = strcspn(name, "=");
    const char *text = name[n_name] == '=' ? name + n_name + 1 : NULL;
    const struct bt_opt *opt = find_opt(args, name, n_name);
    if (opt == NULL) {
        return fail_unknown(args, name, n_name > INT32_MAX ? INT32_MAX : (int)n_name, err);
    }
    if (opt->kind == BT_OPT_FLAG) {
        if (text != NULL) {
            BT_FAIL(err, BT_ERR_ARG, 0, "--%s takes no value ('%s' given)", opt->name, text);
        }
    } else {
        if (text == NULL) {
            if (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0) {
                BT_FAIL(err, BT_ERR_ARG, 0, "--%s needs a value: --%s %s", opt->name, opt->name,
                        opt->value == NULL ? "VALUE" : opt->value);
            }
            text = argv[++*i];
        }
        BT_TRY(bt_opt_check(opt, text, err));
    }
    args->given[args->n_given++] = (struct bt_arg){.opt = opt, .text = text};
    return BT_OK;
}

static enum bt_code parse_words(struct bt_args *args, int argc, char *const *argv,
                                struct bt_error *err)
{
    bool only_positional = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (only_positional || word[0] != '-' || word[1] == '\0') {
            args->positional[args->n_positional++] = word;
        } else if (strcmp(word, "--") == 0) {
            only_positional = true;
        } else if (strcmp(word, "-h") == 0 && find_opt(args, "help", 4) != NULL) {
            args->given[args->n_given++] = (struct bt_arg){.opt = declared(args, "help")};
        } else if (word[1] == '-') {
            BT_TRY(parse_option(args, argc, argv, &i, err));
        } else {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "unknown option %s; options have two dashes, and `--` comes before arguments "
                    "that start with one",
                    word);
        }
    }
    return BT_OK;
}

enum bt_code bt_args_parse(struct bt_args *args, const struct bt_opt_table *tables,
                           int32_t n_tables, int argc, char *const *argv, struct bt_error *err)
{
    BT_ASSERT(n_tables <= BT_ARGS_MAX_TABLES);
    BT_ASSERT(argc >= 0);
    *args = (struct bt_args){.n_tables = n_tables};
    for (int32_t t = 0; t < n_tables; t++) {
        args->tables[t] = tables[t];
    }
    args->given = calloc((size_t)argc + 1, sizeof *args->given);
    args->positional = calloc((size_t)argc + 1, sizeof *args->positional);
    enum bt_code code = BT_OK;
    if (args->given == NULL || args->positional == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "no memory for %d arguments",
                            argc);
    } else {
        code = parse_words(args, argc, argv, err);
    }
    if (code != BT_OK) {
        bt_args_fini(args);
    }
    return code;
}

void bt_args_fini(struct bt_args *args)
{
    free(args->given);
    free(args->positional);
    *args = (struct bt_args){0};
}

/* ---- asking ---- */

static const char *last_given(const struct bt_args *args, const struct bt_opt *opt)
{
    for (int32_t i = args->n_given - 1; i >= 0; i--) {
        if (args->given[i].opt == opt) {
            return args->given[i].text;
        }
    }
    return opt->default_text;
}

bool bt_args_given(const struct bt_args *args, const char *name)
{
    const struct bt_opt *opt = declared(args, name);
    for (int32_t i = 0; i < args->n_given; i++) {
        if (args->given[i].opt == opt) {
            return true;
        }
    }
    return false;
}

const char *bt_args_text(const struct bt_args *args, const char *name)
{
    const struct bt_opt *opt = declared(args, name);
    BT_ASSERT(opt->kind != BT_OPT_FLAG);
    return last_given(args, opt);
}

int64_t bt_args_int(const struct bt_args *args, const char *name, int64_t missing)
{
    const struct bt_opt *opt = declared(args, name);
    BT_ASSERT(opt->kind == BT_OPT_INT);
    const char *text = last_given(args, opt);
    int64_t value = missing;
    if (text != NULL && text[0] != '<') {
        BT_ASSERT(parse_int(text, &value));
    }
    return value;
}

double bt_args_real(const struct bt_args *args, const char *name, double missing)
{
    const struct bt_opt *opt = declared(args, name);
    BT_ASSERT(opt->kind == BT_OPT_REAL);
    const char *text = last_given(args, opt);
    double value = missing;
    if (text != NULL && text[0] != '<') {
        BT_ASSERT(parse_real(text, &value));
    }
    return value;
}

const char *bt_args_next(const struct bt_args *args, const char *name, int32_t *at)
{
    const struct bt_opt *opt = declared(args, name);
    BT_ASSERT(opt->kind != BT_OPT_FLAG);
    while (*at < args->n_given) {
        const struct bt_arg *arg = &args->given[(*at)++];
        if (arg->opt == opt) {
            return arg->text;
        }
    }
    return NULL;
}

/* ---- help ---- */

/* Bytes up to where a line may end: a space, or after the bar of "a|b". */
static size_t piece_length(const char *text)
{
    size_t n = strcspn(text, " |");
    return text[n] == '|' ? n + 1 : n;
}

/* Prints `text` from column `column` on, wrapped and indented to HELP_INDENT. */
static void print_wrapped(FILE *f, const char *text, size_t column)
{
    bool at_start = true;
    for (const char *at = text; *at != '\0';) {
        size_t n_spaces = strspn(at, " ");
        size_t n = piece_length(at + n_spaces);
        if (!at_start && column + n_spaces + n > HELP_COLUMNS) {
            fprintf(f, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
            at += n_spaces;
            n_spaces = 0;
        }
        fprintf(f, "%.*s", (int)(n_spaces + n), at);
        column += n_spaces + n;
        at += n_spaces + n;
        at_start = false;
    }
    fputc('\n', f);
}

/* Numbers beyond this are said as "at least". */
static const double SHOWN_MAX = 1e9;

/* ", 1 to 64 GPUs"; "(a|b|c)", unless the value's name says it; a bare unit in brackets. */
static void describe_help(const struct bt_opt *opt, char *buf, size_t n_bytes)
{
    const char *unit = opt->unit == NULL ? "" : opt->unit;
    const char *space = opt->unit == NULL ? "" : " ";
    bool is_number = opt->kind == BT_OPT_INT || opt->kind == BT_OPT_REAL;
    buf[0] = '\0';
    if (opt->kind == BT_OPT_ENUM) {
        if (opt->value == NULL || strcmp(opt->value, opt->allowed) != 0) {
            (void)snprintf(buf, n_bytes, " (%s)", opt->allowed);
        }
    } else if (!is_number || !has_range(opt)) {
        if (opt->unit != NULL) {
            (void)snprintf(buf, n_bytes, " (%s)", unit);
        }
    } else if (opt->max > SHOWN_MAX) {
        (void)snprintf(buf, n_bytes, ", at least %.15g%s%s", opt->min, space, unit);
    } else {
        (void)snprintf(buf, n_bytes, ", %.15g to %.15g%s%s", opt->min, opt->max, space, unit);
    }
}

/* The default closes the line. */
static void help_text(const struct bt_opt *opt, char *buf, size_t n_bytes)
{
    char allowed[HELP_TEXT_BYTES];
    describe_help(opt, allowed, sizeof allowed);
    (void)snprintf(
        buf, n_bytes, "%s%s%s%s%s", opt->help, allowed, opt->default_text == NULL ? "" : " [",
        opt->default_text == NULL ? "" : opt->default_text, opt->default_text == NULL ? "" : "]");
}

void bt_opt_print(FILE *f, const struct bt_opt_table *table)
{
    for (int32_t i = 0; i < table->n_opts; i++) {
        const struct bt_opt *opt = &table->opts[i];
        int n = fprintf(f, "  --%s%s%s", opt->name, opt->kind == BT_OPT_FLAG ? "" : " ",
                        opt->kind == BT_OPT_FLAG ? ""
                        : opt->value == NULL     ? "VALUE"
                                                 : opt->value);
        if (n < 0 || n > HELP_INDENT - 2) {
            fputc('\n', f);
            n = 0;
        }
        fprintf(f, "%*s", HELP_INDENT - n, "");
        char text[2 * HELP_TEXT_BYTES];
        help_text(opt, text, sizeof text);
        print_wrapped(f, text, HELP_INDENT);
    }
}
