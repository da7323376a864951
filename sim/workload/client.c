#include "sim/workload/client.h"

#include "sim/workload/internal.h"
#include "sim/workload/lines.h"
#include "sim/workload/text.h"

#include <jansson.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

enum field { FIELD_START, FIELD_RATE, FIELD_CV, FIELD_KIND, FIELD_SHAPE, FIELD_SCALE, N_FIELDS };

static const char *const field_names[N_FIELDS] = {"window start", "rate",  "CV",
                                                  "distribution", "shape", "scale"};

static enum bt_code fail_field(const struct bt_lines *l, const struct bt_text *f, enum field field,
                               const char *expected, struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_INPUT, bt_lines_number(l),
            "%s:%lld: column %s: value \"%.*s\": expected %s", bt_lines_path(l),
            (long long)bt_lines_number(l), field_names[field], f->n < 60 ? f->n : 60, f->s,
            expected);
}

static bool text_is(const struct bt_text *f, const char *word)
{
    return f->n == (int32_t)strlen(word) && memcmp(f->s, word, (size_t)f->n) == 0;
}

static enum bt_code parse_window(const struct bt_lines *l, const struct bt_text *f,
                                 struct bt_client_window *w, struct bt_error *err)
{
    double shape = 0.0;
    if (!bt_parse_real(f[FIELD_START].s, f[FIELD_START].n, &w->start_s) || w->start_s < 0.0 ||
        w->start_s > BT_TIME_MAX_S) {
        return fail_field(l, &f[FIELD_START], FIELD_START, "seconds >= 0", err);
    }
    if (!bt_parse_real(f[FIELD_RATE].s, f[FIELD_RATE].n, &w->rate_per_s) || w->rate_per_s < 0.0 ||
        w->rate_per_s > BT_RATE_MAX) {
        return fail_field(l, &f[FIELD_RATE], FIELD_RATE, "requests a second >= 0", err);
    }
    bool gamma = text_is(&f[FIELD_KIND], "Gamma");
    bool weibull = text_is(&f[FIELD_KIND], "Weibull");
    if (!gamma && !weibull) {
        if (f[FIELD_KIND].n != 0) {
            return fail_field(l, &f[FIELD_KIND], FIELD_KIND, "Gamma, Weibull or nothing", err);
        }
        /* No distribution was fitted: too few requests to show anything but independence. */
        w->gap = bt_gap_of_shape(BT_ARRIVAL_POISSON, 1.0);
        return BT_OK;
    }
    double least = weibull ? 0.05 : 1e-6;
    if (!bt_parse_real(f[FIELD_SHAPE].s, f[FIELD_SHAPE].n, &shape) || shape < least ||
        shape > 1e6) {
        return fail_field(l, &f[FIELD_SHAPE], FIELD_SHAPE,
                          weibull ? "a Weibull shape 0.05 to 1e6" : "a Gamma shape 1e-6 to 1e6",
                          err);
    }
    w->gap = bt_gap_of_shape(gamma ? BT_ARRIVAL_GAMMA : BT_ARRIVAL_WEIBULL, shape);
    return BT_OK;
}

static enum bt_code read_windows(struct bt_client *c, struct bt_lines *l, struct bt_error *err)
{
    for (;;) {
        char *text;
        int64_t n;
        BT_TRY(bt_lines_next(l, true, &text, &n, err));
        if (text == NULL) {
            break;
        }
        if (n == 0) {
            continue;
        }
        struct bt_text f[N_FIELDS];
        int32_t n_fields = bt_csv_split(text, n, ',', f, N_FIELDS);
        if (n_fields != N_FIELDS) {
            BT_FAIL(err, BT_ERR_INPUT, bt_lines_number(l),
                    "%s:%lld: %d fields; expected 6: window start, rate, CV, distribution, shape, "
                    "scale",
                    bt_lines_path(l), (long long)bt_lines_number(l), n_fields);
        }
        struct bt_client_window w = {0};
        BT_TRY(parse_window(l, f, &w, err));
        if (c->n_windows > 0) {
            struct bt_client_window *before = &c->windows[c->n_windows - 1];
            if (w.start_s <= before->start_s) {
                return fail_field(l, &f[FIELD_START], FIELD_START, "later than the window before",
                                  err);
            }
            before->end_s = w.start_s;
        }
        BT_TRY(
            bt_array_grow((void **)&c->windows, &c->windows_cap, c->n_windows + 1, sizeof w, err));
        c->windows[c->n_windows++] = w;
    }
    if (c->n_windows < 2) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: expected two windows or more, which tell their length",
                bt_lines_path(l));
    }
    struct bt_client_window *last = &c->windows[c->n_windows - 1];
    last->end_s = last->start_s + (last->start_s - last[-1].start_s);
    return BT_OK;
}

struct pdf {
    double *values, *weights; /* owned */
    int64_t n, values_cap, weights_cap;
};

/* Takes a number up to a stop character. */
static bool take_real(const char **s, char stop_a, char stop_b, double *v)
{
    const char *begin = *s;
    while (**s != '\0' && **s != stop_a && **s != stop_b) {
        ++*s;
    }
    return bt_parse_real(begin, (int32_t)(*s - begin), v);
}

/* A Python literal {tokens: probability, ...}; false when it is not one. */
static bool parse_pdf(const char *s, struct pdf *p, enum bt_code *code, struct bt_error *err)
{
    *code = BT_OK;
    if (*s++ != '{') {
        return false;
    }
    while (*s == ' ') {
        s++;
    }
    while (*s != '}') {
        double tokens, weight;
        if (!take_real(&s, ':', '}', &tokens) || *s != ':') {
            return false;
        }
        s++;
        if (!take_real(&s, ',', '}', &weight) || tokens < 0.0 || tokens > BT_MAX_TOKENS ||
            weight < 0.0) {
            return false;
        }
        *code =
            bt_array_grow((void **)&p->values, &p->values_cap, p->n + 1, sizeof *p->values, err);
        if (*code == BT_OK) {
            *code = bt_array_grow((void **)&p->weights, &p->weights_cap, p->n + 1,
                                  sizeof *p->weights, err);
        }
        if (*code != BT_OK) {
            return false;
        }
        p->values[p->n] = tokens;
        p->weights[p->n++] = weight;
        if (*s == ',') {
            s++;
            while (*s == ' ') {
                s++;
            }
        } else if (*s != '}') {
            return false;
        }
    }
    return s[1] == '\0';
}

static enum bt_code read_pdf(const char *path, const char *window, json_t *entry, const char *field,
                             struct bt_dist **out, struct bt_error *err)
{
    const char *text = json_string_value(json_object_get(entry, field));
    struct pdf p = {0};
    enum bt_code code = BT_OK;
    if (text == NULL || !parse_pdf(text, &p, &code, err)) {
        if (code == BT_OK) {
            code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                                "%s: window \"%s\": %s: expected a string \"{tokens: probability, "
                                "...}\", got %s%.40s%s",
                                path, window, field, text != NULL ? "\"" : "",
                                text != NULL ? text : "none", text != NULL ? "\"" : "");
        }
        goto done;
    }
    if (p.n == 0) {
        goto done;
    }
    struct bt_dist_spec spec = {
        .kind = BT_DIST_EMPIRICAL,
        .values = p.values,
        .weights = p.weights,
        .n_values = (int32_t)(p.n < BT_DIST_MAX_VALUES ? p.n : BT_DIST_MAX_VALUES + 1)};
    char key[PATH_BYTES + 128];
    snprintf(key, sizeof key, "%s: window \"%.40s\": %s", path, window, field);
    code = bt_dist_create(&spec, key, out, err);
done:
    free(p.values);
    free(p.weights);
    return code;
}

static int compare_lengths(const void *a, const void *b)
{
    double x = ((const struct bt_client_lengths *)a)->start_s;
    double y = ((const struct bt_client_lengths *)b)->start_s;
    return (x > y) - (x < y);
}

static enum bt_code read_lengths(struct bt_client *c, const char *path, json_t *root,
                                 struct bt_error *err)
{
    const char *window;
    json_t *entry;
    bool any = false;
    if (!json_is_object(root)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: expected an object of windows", path);
    }
    json_object_foreach(root, window, entry)
    {
        double start_s;
        if (!bt_parse_real(window, (int32_t)strlen(window), &start_s) || start_s < 0.0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: key \"%.40s\": expected a window start in seconds",
                    path, window);
        }
        BT_TRY(bt_array_grow((void **)&c->lengths, &c->lengths_cap, c->n_lengths + 1,
                             sizeof *c->lengths, err));
        struct bt_client_lengths *w = &c->lengths[c->n_lengths++];
        *w = (struct bt_client_lengths){.start_s = start_s};
        BT_TRY(read_pdf(path, window, entry, "input_tokens", &w->prompt, err));
        BT_TRY(read_pdf(path, window, entry, "output_tokens", &w->output, err));
        if ((w->prompt == NULL) != (w->output == NULL)) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: window \"%.40s\": input_tokens and output_tokens: one is empty, the other "
                    "is not",
                    path, window);
        }
        any = any || w->prompt != NULL;
    }
    if (!any) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: all length tables are empty", path);
    }
    qsort(c->lengths, (size_t)c->n_lengths, sizeof *c->lengths, compare_lengths);
    return BT_OK;
}

enum bt_code bt_client_load(struct bt_client *c, const char *dir, const char *name,
                            struct bt_error *err)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s-trace.csv", dir, name) >= (int)sizeof path) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%.200s: the path is too long", dir);
    }
    struct bt_lines *l;
    BT_TRY(bt_lines_open(path, &l, err));
    enum bt_code code = read_windows(c, l, err);
    bt_lines_close(l);
    BT_TRY(code);
    if (snprintf(path, sizeof path, "%s/%s-dataset.json", dir, name) >= (int)sizeof path) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%.200s: the path is too long", dir);
    }
    json_error_t e;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (root == NULL) {
        BT_FAIL(err, e.line < 0 ? BT_ERR_IO : BT_ERR_INPUT, e.line, "%s:%d: %s", path,
                e.line < 0 ? 0 : e.line, e.text);
    }
    code = read_lengths(c, path, root, err);
    json_decref(root);
    return code;
}

void bt_client_fini(struct bt_client *c)
{
    for (int64_t i = 0; i < c->n_lengths; i++) {
        bt_dist_destroy(c->lengths[i].prompt);
        bt_dist_destroy(c->lengths[i].output);
    }
    free(c->lengths);
    free(c->windows);
    memset(c, 0, sizeof *c);
}

double bt_client_expected(const struct bt_client *c, double from_s, double to_s)
{
    double n = 0.0;
    for (int64_t i = 0; i < c->n_windows; i++) {
        const struct bt_client_window *w = &c->windows[i];
        double span = fmin(w->end_s, to_s) - fmax(w->start_s, from_s);
        n += span > 0.0 ? span * w->rate_per_s : 0.0;
    }
    return n;
}

const struct bt_client_lengths *bt_client_lengths_at(const struct bt_client *c, double t_s)
{
    const struct bt_client_lengths *found = NULL;
    for (int64_t i = 0; i < c->n_lengths; i++) {
        const struct bt_client_lengths *w = &c->lengths[i];
        if (w->prompt == NULL) {
            continue;
        }
        if (found != NULL && w->start_s > t_s) {
            break;
        }
        found = w;
    }
    BT_ASSERT(found != NULL);
    return found;
}
