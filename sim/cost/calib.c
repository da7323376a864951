#include "sim/cost/calib.h"

#include "sim/cost/surface.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORD_BYTES = 256,
    COLUMNS_MAX = 512,
    KEYS_MAX = 6,
    FIELDS = 12,
};

static const struct {
    const char *name;
    size_t offset;
} fields[FIELDS] = {
    {"m", offsetof(struct bt_op_shape, m)},
    {"n", offsetof(struct bt_op_shape, n)},
    {"k", offsetof(struct bt_op_shape, k)},
    {"batch", offsetof(struct bt_op_shape, batch)},
    {"q_len", offsetof(struct bt_op_shape, q_len)},
    {"prefix", offsetof(struct bt_op_shape, prefix)},
    {"ctx", offsetof(struct bt_op_shape, ctx)},
    {"heads", offsetof(struct bt_op_shape, heads)},
    {"kv_heads", offsetof(struct bt_op_shape, kv_heads)},
    {"head_dim", offsetof(struct bt_op_shape, head_dim)},
    {"bytes", offsetof(struct bt_op_shape, bytes)},
    {"ranks", offsetof(struct bt_op_shape, ranks)},
};

static int64_t *field_of(struct bt_op_shape *s, int32_t field)
{
    return (int64_t *)(void *)((char *)s + fields[field].offset);
}

static int64_t field_value(const struct bt_op_shape *s, int32_t field)
{
    return *(const int64_t *)(const void *)((const char *)s + fields[field].offset);
}

struct parser {
    const char *cursor;
    const char *end;
    const char *name;
    int32_t line;
    struct bt_sample_set *set;
    struct bt_cost_sample common; /* of the file, then of the section */
    bool has_op;
    bool in_section;
    int32_t column_field; /* -1: no columns yet */
    int64_t columns[COLUMNS_MAX];
    int32_t n_columns;
    int32_t row_fields[KEYS_MAX];
    int32_t n_row_fields; /* 0: no rows line yet */
};

/* Next word of the current line; false at its end. */
static bool next_word(struct parser *p, char word[WORD_BYTES])
{
    while (p->cursor < p->end && *p->cursor == ' ') {
        p->cursor++;
    }
    size_t n = 0;
    while (p->cursor < p->end && *p->cursor != ' ' && *p->cursor != '\n' && *p->cursor != '\r') {
        if (n + 1 < WORD_BYTES) {
            word[n++] = *p->cursor;
        }
        p->cursor++;
    }
    word[n] = '\0';
    return n > 0;
}

static void rest_of_line(struct parser *p, char text[WORD_BYTES])
{
    while (p->cursor < p->end && *p->cursor == ' ') {
        p->cursor++;
    }
    size_t n = 0;
    while (p->cursor < p->end && *p->cursor != '\n' && *p->cursor != '\r') {
        if (n + 1 < WORD_BYTES) {
            text[n++] = *p->cursor;
        }
        p->cursor++;
    }
    text[n] = '\0';
}

static void end_line(struct parser *p)
{
    while (p->cursor < p->end && *p->cursor != '\n') {
        p->cursor++;
    }
    if (p->cursor < p->end) {
        p->cursor++;
    }
    p->line++;
}

static enum bt_code parse_count(const struct parser *p, const char *word, int64_t min, int64_t *out,
                                struct bt_error *err)
{
    char *end = NULL;
    *out = strtoll(word, &end, 10);
    if (end == word || *end != '\0' || *out < min || *out > INT64_C(1) << 50) {
        BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%d: \"%s\", expected a whole number >= %lld",
                p->name, p->line, word, (long long)min);
    }
    return BT_OK;
}

static enum bt_code parse_field(const struct parser *p, const char *word, int32_t *out,
                                struct bt_error *err)
{
    for (int32_t i = 0; i < FIELDS; i++) {
        if (strcmp(word, fields[i].name) == 0) {
            *out = i;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, p->line,
            "%s:%d: shape field \"%s\", expected m, n, k, batch, q_len, prefix, ctx, heads, "
            "kv_heads, head_dim, bytes or ranks",
            p->name, p->line, word);
}

static enum bt_code parse_name(struct parser *p, const char **out, struct bt_error *err)
{
    char text[WORD_BYTES];
    rest_of_line(p, text);
    *out = bt_sample_set_intern(p->set, text);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a name", p->name);
    }
    return BT_OK;
}

static enum bt_code parse_section(struct parser *p, struct bt_error *err)
{
    const struct bt_cost_sample *c = &p->common;
    if (!p->has_op || c->gpu[0] == '\0' || c->stack[0] == '\0' || c->source[0] == '\0' ||
        c->licence[0] == '\0') {
        BT_FAIL(err, BT_ERR_INPUT, p->line,
                "%s:%d: a section before gpu, stack, op, source and licence are given", p->name,
                p->line);
    }
    enum bt_num *const out[] = {&p->common.format.weights, &p->common.format.activations,
                                &p->common.format.kv};
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++) {
        char word[WORD_BYTES];
        (void)next_word(p, word);
        char where[WORD_BYTES + 16];
        (void)snprintf(where, sizeof where, "%s:%d", p->name, p->line);
        BT_TRY(bt_num_parse(word, where, out[i], err));
    }
    p->common.shape = (struct bt_op_shape){0};
    p->column_field = -1;
    p->n_columns = 0;
    p->n_row_fields = 0;
    p->in_section = true;
    return parse_name(p, &p->common.kernel, err);
}

static enum bt_code parse_columns(struct parser *p, struct bt_error *err)
{
    char word[WORD_BYTES];
    (void)next_word(p, word);
    BT_TRY(parse_field(p, word, &p->column_field, err));
    p->n_columns = 0;
    while (next_word(p, word)) {
        if (p->n_columns == COLUMNS_MAX) {
            BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%d: more than %d columns", p->name, p->line,
                    COLUMNS_MAX);
        }
        BT_TRY(parse_count(p, word, 0, &p->columns[p->n_columns], err));
        p->n_columns++;
    }
    return BT_OK;
}

static enum bt_code parse_rows(struct parser *p, struct bt_error *err)
{
    char word[WORD_BYTES];
    p->n_row_fields = 0;
    while (next_word(p, word)) {
        if (p->n_row_fields == KEYS_MAX) {
            BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%d: more than %d row fields", p->name, p->line,
                    KEYS_MAX);
        }
        BT_TRY(parse_field(p, word, &p->row_fields[p->n_row_fields], err));
        p->n_row_fields++;
    }
    return BT_OK;
}

static enum bt_code parse_times(struct parser *p, const char *first, struct bt_error *err)
{
    if (!p->in_section || p->column_field < 0 || p->n_row_fields == 0) {
        BT_FAIL(err, BT_ERR_INPUT, p->line,
                "%s:%d: \"%s\", expected gpu, stack, version, op, source, licence, section, fixed, "
                "columns or rows; times follow section, columns and rows",
                p->name, p->line, first);
    }
    struct bt_cost_sample s = p->common;
    s.line = p->line;
    char word[WORD_BYTES];
    (void)snprintf(word, sizeof word, "%s", first);
    for (int32_t i = 0; i < p->n_row_fields; i++) {
        BT_TRY(parse_count(p, word, 0, field_of(&s.shape, p->row_fields[i]), err));
        (void)next_word(p, word);
    }
    int32_t column = 0;
    for (; word[0] != '\0'; (void)next_word(p, word)) {
        if (column == p->n_columns) {
            BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%d: more times than the %d columns", p->name,
                    p->line, p->n_columns);
        }
        if (strcmp(word, "-") != 0) {
            *field_of(&s.shape, p->column_field) = p->columns[column];
            BT_TRY(parse_count(p, word, 1, &s.time_ns, err));
            BT_TRY(bt_sample_set_add(p->set, &s, err));
        }
        column++;
    }
    return BT_OK;
}

static enum bt_code parse_line(struct parser *p, struct bt_error *err)
{
    char word[WORD_BYTES];
    if (!next_word(p, word) || word[0] == '#') {
        return BT_OK;
    }
    const struct {
        const char *key;
        const char **value;
    } names[] = {{"gpu", &p->common.gpu},
                 {"stack", &p->common.stack},
                 {"version", &p->common.version},
                 {"source", &p->common.source},
                 {"licence", &p->common.licence}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(word, names[i].key) == 0) {
            return parse_name(p, names[i].value, err);
        }
    }
    if (strcmp(word, "op") == 0) {
        char where[WORD_BYTES + 16];
        (void)snprintf(where, sizeof where, "%s:%d", p->name, p->line);
        (void)next_word(p, word);
        p->has_op = true;
        return bt_op_parse(word, where, &p->common.op, err);
    }
    if (strcmp(word, "section") == 0) {
        return parse_section(p, err);
    }
    if (strcmp(word, "fixed") == 0) {
        int32_t field = 0;
        (void)next_word(p, word);
        BT_TRY(parse_field(p, word, &field, err));
        (void)next_word(p, word);
        return parse_count(p, word, 0, field_of(&p->common.shape, field), err);
    }
    if (strcmp(word, "columns") == 0) {
        return parse_columns(p, err);
    }
    if (strcmp(word, "rows") == 0) {
        return parse_rows(p, err);
    }
    return parse_times(p, word, err);
}

static const char signature[] = "# berth calibration 1\n";

enum bt_code bt_calib_read(const struct bt_import_text *file, struct bt_sample_set *set,
                           struct bt_error *err)
{
    if (file->size_bytes < sizeof signature - 1 ||
        memcmp(file->text, signature, sizeof signature - 1) != 0) {
        BT_FAIL(err, BT_ERR_INPUT, 1, "%s:1: not a calibration: expected \"# berth calibration 1\"",
                file->name);
    }
    struct parser *p = calloc(1, sizeof *p);
    const char *empty = bt_sample_set_intern(set, "");
    if (p == NULL || empty == NULL) {
        free(p);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory", file->name);
    }
    int64_t before = set->n_samples;
    p->cursor = file->text;
    p->end = file->text + file->size_bytes;
    p->name = file->name;
    p->line = 1;
    p->set = set;
    p->column_field = -1;
    p->common.spread_ns = -1;
    p->common.gpu = p->common.stack = p->common.version = empty;
    p->common.source = p->common.licence = p->common.kernel = empty;
    enum bt_code code = BT_OK;
    while (code == BT_OK && p->cursor < p->end) {
        code = parse_line(p, err);
        end_line(p);
    }
    if (code == BT_OK && set->n_samples == before) {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__, "%s: no sample in it",
                            file->name);
    }
    if (code != BT_OK) {
        set->n_samples = before;
    }
    free(p);
    return code;
}

static bool is_part(const char *name, size_t length, const char *wanted)
{
    return strlen(wanted) == length && memcmp(name, wanted, length) == 0;
}

/* GPU__STACK-VERSION__OP[__N].cal */
static bool is_wanted(const char *name, const char *gpu, enum bt_op op)
{
    const char *stack = strstr(name, "__");
    BT_ASSERT(stack != NULL);
    const char *operation = strstr(stack + 2, "__");
    BT_ASSERT(operation != NULL);
    operation += 2;
    size_t length = strcspn(operation, "_.");
    return (gpu == NULL || is_part(name, (size_t)(stack - name), gpu)) &&
           (op == BT_OPS || is_part(operation, length, bt_op_name(op)));
}

enum bt_code bt_calib_read_texts(const struct bt_embedded *texts, const char *gpu, enum bt_op op,
                                 struct bt_sample_set *set, struct bt_error *err)
{
    for (const struct bt_embedded *e = texts; e->name != NULL; e++) {
        struct bt_import_text file = {e->text, e->size_bytes, e->name};
        if (is_wanted(e->name, gpu, op)) {
            BT_TRY(bt_calib_read(&file, set, err));
        }
    }
    return BT_OK;
}

/* Fields that start a row, by operation; the main coordinate runs along it. */
static int32_t row_fields(enum bt_op op, int32_t out[KEYS_MAX])
{
    const char *names[KEYS_MAX] = {"n"};
    if (op == BT_OP_GEMM) {
        names[1] = "k";
    } else if (op == BT_OP_ATTN_PREFILL || op == BT_OP_ATTN_DECODE) {
        names[0] = "batch";
        names[1] = "heads";
        names[2] = "kv_heads";
    } else if (op == BT_OP_ATTN_MIXED) {
        names[0] = "q_len";
        names[1] = "prefix";
        names[2] = "batch";
    } else if (op == BT_OP_ALLREDUCE || op == BT_OP_ALLGATHER || op == BT_OP_REDUCESCATTER ||
               op == BT_OP_ALLTOALL) {
        names[0] = "ranks";
    }
    int32_t n = 0;
    for (int32_t i = 0; i < KEYS_MAX && names[i] != NULL; i++) {
        for (int32_t f = 0; f < FIELDS; f++) {
            if (strcmp(names[i], fields[f].name) == 0) {
                out[n++] = f;
            }
        }
    }
    return n;
}

static int32_t main_field(enum bt_op op)
{
    struct bt_op_shape s;
    ptrdiff_t offset = (char *)bt_op_main_coordinate(op, &s) - (char *)&s;
    for (int32_t f = 0; f < FIELDS; f++) {
        if ((ptrdiff_t)fields[f].offset == offset) {
            return f;
        }
    }
    BT_ASSERT(!"main coordinate is a field");
    return 0;
}

static int compare_int(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* Sections (kernels of one GEMM surface mix in a section under the first one's name), then rows,
 * then columns. */
static int compare_for_writing(const void *a, const void *b)
{
    const struct bt_cost_sample *x = a;
    const struct bt_cost_sample *y = b;
    int c = compare_int(x->format.weights, y->format.weights);
    c = c != 0 ? c : compare_int(x->format.activations, y->format.activations);
    c = c != 0 ? c : compare_int(x->format.kv, y->format.kv);
    c = c != 0 ? c : compare_int(x->shape.head_dim, y->shape.head_dim);
    if (c == 0 && !bt_surface_same(x, y)) {
        c = strcmp(x->kernel, y->kernel);
        c = c != 0 ? c : compare_int(x->shape.heads, y->shape.heads);
        c = c != 0 ? c : compare_int(x->shape.kv_heads, y->shape.kv_heads);
    }
    int32_t keys[KEYS_MAX];
    int32_t n_keys = row_fields(x->op, keys);
    for (int32_t i = 0; c == 0 && i < n_keys; i++) {
        c = compare_int(field_value(&x->shape, keys[i]), field_value(&y->shape, keys[i]));
    }
    int32_t column = main_field(x->op);
    c = c != 0 ? c : compare_int(field_value(&x->shape, column), field_value(&y->shape, column));
    return c != 0 ? c : compare_int(x->time_ns, y->time_ns);
}

static int compare_values(const void *a, const void *b)
{
    return compare_int(*(const int64_t *)a, *(const int64_t *)b);
}

static bool same_row(const struct bt_cost_sample *a, const struct bt_cost_sample *b,
                     const int32_t *keys, int32_t n_keys)
{
    for (int32_t i = 0; i < n_keys; i++) {
        if (field_value(&a->shape, keys[i]) != field_value(&b->shape, keys[i])) {
            return false;
        }
    }
    return true;
}

static void write_row(FILE *out, const struct bt_cost_sample *s, int64_t n, const int64_t *columns,
                      int64_t n_columns)
{
    int32_t keys[KEYS_MAX];
    int32_t n_keys = row_fields(s->op, keys);
    int32_t column = main_field(s->op);
    for (int32_t i = 0; i < n_keys; i++) {
        (void)fprintf(out, "%s%lld", i == 0 ? "" : " ", (long long)field_value(&s->shape, keys[i]));
    }
    int64_t at = 0;
    for (int64_t c = 0; c < n_columns && at < n; c++) {
        if (field_value(&s[at].shape, column) != columns[c]) {
            (void)fprintf(out, " -");
            continue;
        }
        /* Points that coincide (one shape, several layers): the middle one. */
        int64_t end = at + 1;
        while (end < n && field_value(&s[end].shape, column) == columns[c]) {
            end++;
        }
        (void)fprintf(out, " %lld", (long long)s[(at + end - 1) / 2].time_ns);
        at = end;
    }
    (void)fprintf(out, "\n");
}

static void write_section(FILE *out, const struct bt_cost_sample *s, int64_t n, int64_t *columns)
{
    int32_t keys[KEYS_MAX];
    int32_t n_keys = row_fields(s->op, keys);
    int32_t column = main_field(s->op);
    (void)fprintf(out, "section %s %s %s %s\n", bt_num_name(s->format.weights),
                  bt_num_name(s->format.activations), bt_num_name(s->format.kv), s->kernel);
    for (int32_t f = 0; f < FIELDS; f++) {
        bool is_key = f == column;
        for (int32_t i = 0; i < n_keys; i++) {
            is_key = is_key || keys[i] == f;
        }
        if (!is_key && field_value(&s->shape, f) != 0) {
            (void)fprintf(out, "fixed %s %lld\n", fields[f].name,
                          (long long)field_value(&s->shape, f));
        }
    }
    for (int64_t i = 0; i < n; i++) {
        columns[i] = field_value(&s[i].shape, column);
    }
    qsort(columns, (size_t)n, sizeof *columns, compare_values);
    int64_t n_columns = 0;
    (void)fprintf(out, "columns %s", fields[column].name);
    for (int64_t i = 0; i < n; i++) {
        if (n_columns == 0 || columns[n_columns - 1] != columns[i]) {
            columns[n_columns++] = columns[i];
            (void)fprintf(out, " %lld", (long long)columns[i]);
        }
    }
    (void)fprintf(out, "\nrows");
    for (int32_t i = 0; i < n_keys; i++) {
        (void)fprintf(out, " %s", fields[keys[i]].name);
    }
    (void)fprintf(out, "\n");
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        while (end < n && same_row(&s[i], &s[end], keys, n_keys)) {
            end++;
        }
        write_row(out, s + i, end - i, columns, n_columns);
        i = end;
    }
}

enum bt_code bt_calib_write(FILE *out, struct bt_cost_sample *samples, int64_t n,
                            struct bt_error *err)
{
    BT_ASSERT(n >= 1);
    int64_t *columns = malloc((size_t)n * sizeof *columns);
    if (columns == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory for %lld columns", (long long)n);
    }
    qsort(samples, (size_t)n, sizeof *samples, compare_for_writing);
    const struct bt_cost_sample *s = &samples[0];
    (void)fprintf(out, "%sgpu %s\nstack %s\nversion %s\nop %s\nsource %s\nlicence %s\n", signature,
                  s->gpu, s->stack, s->version, bt_op_name(s->op), s->source, s->licence);
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        while (end < n && bt_surface_same(&samples[i], &samples[end])) {
            end++;
        }
        write_section(out, samples + i, end - i, columns);
        i = end;
    }
    free(columns);
    if (ferror(out) != 0) {
        BT_FAIL(err, BT_ERR_IO, 0, "calibration of %s, %s: cannot be written", s->gpu, s->stack);
    }
    return BT_OK;
}
