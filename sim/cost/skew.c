#include "sim/cost/skew.h"

#include "sim/cost/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct row {
    int32_t beside_chunk; /* 0 or 1 */
    int64_t count_most;
    double share_most;
    double alpha;
    double weight;
};

struct rows {
    struct row *items; /* owned */
    int64_t n;
};

static enum bt_code bad_label(const struct bt_table *t, int32_t column, const char *allowed,
                              struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_INPUT, t->line, "%s:%d: %s \"%s\", expected %s", t->name, t->line,
            t->columns[column], bt_table_text(t, column), allowed);
}

/* "n<=128" */
static enum bt_code parse_count(const struct bt_table *t, int32_t column, int64_t *out,
                                struct bt_error *err)
{
    const char *text = bt_table_text(t, column);
    char *end = NULL;
    *out = strncmp(text, "n<=", 3) == 0 ? strtoll(text + 3, &end, 10) : 0;
    return *out > 0 && *end == '\0' ? BT_OK : bad_label(t, column, "n<=N", err);
}

/* "sr<=15%" or "sr>70%", which is all above. */
static enum bt_code parse_share(const struct bt_table *t, int32_t column, double *out,
                                struct bt_error *err)
{
    const char *text = bt_table_text(t, column);
    bool above = strncmp(text, "sr>", 3) == 0;
    char *end = NULL;
    double percent = 0;
    if (above || strncmp(text, "sr<=", 4) == 0) {
        percent = strtod(text + (above ? 3 : 4), &end);
    }
    if (!(percent > 0) || percent > 100 || strcmp(end, "%") != 0) {
        return bad_label(t, column, "sr<=P% or sr>P%", err);
    }
    *out = above ? 1 : percent / 100;
    return BT_OK;
}

static enum bt_code read_row(struct bt_table *t, const int32_t columns[7], struct row *out,
                             struct bt_error *err)
{
    int64_t chunk = 0;
    int64_t samples = 0;
    BT_TRY(bt_table_int(t, columns[0], 0, 1 << 30, &chunk, err));
    BT_TRY(parse_count(t, columns[1], &out->count_most, err));
    BT_TRY(parse_share(t, columns[2], &out->share_most, err));
    BT_TRY(bt_table_real(t, columns[5], &out->alpha, err));
    BT_TRY(bt_table_int(t, columns[6], 1, 1 << 30, &samples, err));
    out->beside_chunk = chunk > 0;
    out->weight = (double)samples;
    return BT_OK;
}

static enum bt_code read_rows(struct bt_table *t, struct rows *rows, struct bt_error *err)
{
    static const char *const names[] = {"pc",       "n_label", "skew_rate_label", "kv_big_label",
                                        "kp_label", "alpha",   "n_samples",       NULL};
    int32_t columns[7];
    BT_TRY(bt_table_check_columns(t, names, err));
    for (int32_t i = 0; i < 7; i++) {
        BT_TRY(bt_table_require(t, names[i], &columns[i], err));
    }
    int64_t capacity = 0;
    for (;;) {
        bool more = false;
        BT_TRY(bt_table_next(t, &more, err));
        if (!more) {
            break;
        }
        if (rows->n == capacity) {
            capacity = capacity == 0 ? 1024 : 2 * capacity;
            struct row *grown = realloc(rows->items, (size_t)capacity * sizeof *grown);
            if (grown == NULL) {
                BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %lld rows", t->name,
                        (long long)capacity);
            }
            rows->items = grown;
        }
        BT_TRY(read_row(t, columns, &rows->items[rows->n], err));
        rows->n++;
    }
    if (rows->n == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: no row in it", t->name);
    }
    return BT_OK;
}

/* Inserts value into a rising array unless it is there; false when the array is full. */
static bool insert(double *values, int32_t *n, int32_t most, double value)
{
    int32_t i = 0;
    while (i < *n && values[i] < value) {
        i++;
    }
    if (i < *n && values[i] == value) {
        return true;
    }
    if (*n == most) {
        return false;
    }
    memmove(values + i + 1, values + i, (size_t)(*n - i) * sizeof *values);
    values[i] = value;
    (*n)++;
    return true;
}

static enum bt_code find_classes(const struct rows *rows, const char *name, struct bt_skew *out,
                                 struct bt_error *err)
{
    double counts[BT_SKEW_COUNTS_MAX];
    for (int64_t i = 0; i < rows->n; i++) {
        const struct row *r = &rows->items[i];
        if (!insert(counts, &out->n_counts, BT_SKEW_COUNTS_MAX, (double)r->count_most) ||
            !insert(out->share_most, &out->n_shares, BT_SKEW_SHARES_MAX, r->share_most)) {
            BT_FAIL(err, BT_ERR_LIMIT, 0, "%s: more than %d classes of decodes or %d of shares",
                    name, BT_SKEW_COUNTS_MAX, BT_SKEW_SHARES_MAX);
        }
    }
    for (int32_t i = 0; i < out->n_counts; i++) {
        out->count_most[i] = (int64_t)counts[i];
    }
    return BT_OK;
}

static int compare_alpha(const void *a, const void *b)
{
    double x = ((const struct row *)a)->alpha;
    double y = ((const struct row *)b)->alpha;
    return (x > y) - (x < y);
}

static bool is_in_class(const struct row *r, int32_t beside_chunk, int64_t count, double share)
{
    return r->beside_chunk == beside_chunk && r->count_most == count &&
           (share < 0 || r->share_most == share);
}

/* Weighted median over the rows (rising alpha) of a class; share < 0: of every share. */
static double class_median(const struct rows *rows, int32_t beside_chunk, int64_t count,
                           double share)
{
    double total = 0;
    for (int64_t i = 0; i < rows->n; i++) {
        bool in = is_in_class(&rows->items[i], beside_chunk, count, share);
        total += in ? rows->items[i].weight : 0;
    }
    double below = 0;
    for (int64_t i = 0; i < rows->n; i++) {
        const struct row *r = &rows->items[i];
        if (is_in_class(r, beside_chunk, count, share)) {
            below += r->weight;
            if (below >= total / 2) {
                return fmin(fmax(r->alpha, 0), 1);
            }
        }
    }
    return NAN;
}

enum bt_code bt_skew_read(const struct bt_import_text *file, struct bt_skew *out,
                          struct bt_error *err)
{
    memset(out, 0, sizeof *out);
    struct bt_table t;
    struct rows rows = {0};
    BT_TRY(bt_table_open(&t, file->text, file->size_bytes, file->name, err));
    enum bt_code code = read_rows(&t, &rows, err);
    if (code == BT_OK) {
        code = find_classes(&rows, file->name, out, err);
    }
    if (code == BT_OK) {
        qsort(rows.items, (size_t)rows.n, sizeof *rows.items, compare_alpha);
        for (int32_t c = 0; c < 2; c++) {
            for (int32_t i = 0; i < out->n_counts; i++) {
                for (int32_t k = 0; k <= out->n_shares; k++) {
                    double share = k < out->n_shares ? out->share_most[k] : -1;
                    int32_t column = k < out->n_shares ? k : BT_SKEW_SHARES_MAX;
                    out->alpha[c][i][column] = class_median(&rows, c, out->count_most[i], share);
                }
            }
        }
    }
    free(rows.items);
    bt_table_close(&t);
    if (code != BT_OK) {
        memset(out, 0, sizeof *out);
    }
    return code;
}

double bt_skew_alpha(const struct bt_skew *s, int64_t chunk, int64_t n_decode, double share)
{
    BT_ASSERT(n_decode >= 1);
    if (s->n_counts == 0) {
        return 0;
    }
    int32_t c = chunk > 0;
    int32_t i = 0;
    while (i + 1 < s->n_counts && s->count_most[i] < n_decode) {
        i++;
    }
    int32_t k = BT_SKEW_SHARES_MAX;
    if (share >= 0) {
        k = 0;
        while (k + 1 < s->n_shares && s->share_most[k] < share) {
            k++;
        }
    }
    double alpha = s->alpha[c][i][k];
    if (isnan(alpha)) {
        alpha = s->alpha[c][i][BT_SKEW_SHARES_MAX];
    }
    return isnan(alpha) ? 0 : alpha;
}
