#include "sim/cost/bench.h"
#include "sim/cost/table.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A field of one test by name, from JSON or CSV. */
struct source {
    const json_t *object;         /* NULL: CSV */
    const struct bt_table *table; /* NULL: JSON */
    const char *name;             /* of the file */
    int64_t index;                /* test, from 0 */
};

static const char *text_of(const struct source *s, const char *key)
{
    if (s->object != NULL) {
        const char *text = json_string_value(json_object_get(s->object, key));
        return text == NULL ? "" : text;
    }
    int32_t column = bt_table_find(s->table, key);
    return column < 0 ? "" : bt_table_text(s->table, column);
}

static enum bt_code number_of(const struct source *s, const char *key, bool required, double min,
                              double *out, struct bt_error *err)
{
    *out = 0;
    bool found = false;
    if (s->object != NULL) {
        const json_t *v = json_object_get(s->object, key);
        found = v != NULL && !json_is_null(v);
        if (found && !json_is_number(v)) {
            BT_FAIL(err, BT_ERR_INPUT, s->index, "%s: [%lld].%s: expected a number", s->name,
                    (long long)s->index, key);
        }
        *out = json_number_value(v);
    } else {
        int32_t column = bt_table_find(s->table, key);
        found = column >= 0;
        if (found) {
            BT_TRY(bt_table_real(s->table, column, out, err));
        }
    }
    if (!found && required) {
        BT_FAIL(err, BT_ERR_INPUT, s->index, "%s: [%lld]: \"%s\" is missing", s->name,
                (long long)s->index, key);
    }
    if (found && !(*out >= min)) {
        BT_FAIL(err, BT_ERR_INPUT, s->index, "%s: [%lld].%s: %g, expected >= %g", s->name,
                (long long)s->index, key, *out, min);
    }
    return BT_OK;
}

static enum bt_code count_of(const struct source *s, const char *key, bool required, double min,
                             int64_t *out, struct bt_error *err)
{
    double value = 0;
    BT_TRY(number_of(s, key, required, min, &value, err));
    *out = (int64_t)value;
    return BT_OK;
}

static enum bt_code read_test(const struct source *s, struct bt_llama_bench *t,
                              struct bt_error *err)
{
    memset(t, 0, sizeof *t);
    (void)snprintf(t->model_type, sizeof t->model_type, "%s", text_of(s, "model_type"));
    (void)snprintf(t->gpu, sizeof t->gpu, "%s", text_of(s, "gpu_info"));
    (void)snprintf(t->build_commit, sizeof t->build_commit, "%s", text_of(s, "build_commit"));
    (void)snprintf(t->type_k, sizeof t->type_k, "%s", text_of(s, "type_k"));
    (void)snprintf(t->type_v, sizeof t->type_v, "%s", text_of(s, "type_v"));
    const struct {
        const char *key;
        bool required;
        double min;
        int64_t *out;
    } counts[] = {
        {"model_size", true, 1, &t->model_bytes},
        {"model_n_params", true, 1, &t->n_params},
        {"n_prompt", true, 0, &t->n_prompt},
        {"n_gen", true, 0, &t->n_gen},
        {"n_depth", false, 0, &t->n_depth},
        {"n_batch", true, 1, &t->n_batch},
        {"avg_ns", true, 1, &t->time_ns},
        {"stddev_ns", true, 0, &t->spread_ns},
        {"n_gpu_layers", false, -1, &t->n_gpu_layers},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        BT_TRY(count_of(s, counts[i].key, counts[i].required, counts[i].min, counts[i].out, err));
    }
    BT_TRY(number_of(s, "avg_ts", true, 0, &t->tok_per_s, err));
    int64_t tokens = t->n_prompt + t->n_gen;
    if (tokens == 0) {
        BT_FAIL(err, BT_ERR_INPUT, s->index, "%s: [%lld]: n_prompt and n_gen are both 0", s->name,
                (long long)s->index);
    }
    double follows = (double)tokens / ((double)t->time_ns * 1e-9);
    double ratio = t->tok_per_s / follows;
    const double most = 1 + BT_BENCH_DISAGREE_PERCENT / 100.0;
    if (ratio > most || ratio < 1 / most) {
        BT_FAIL(err, BT_ERR_INPUT, s->index,
                "%s: [%lld]: avg_ts %g, but %lld tokens in avg_ns are %g a second: mixed units? At "
                "most %d%% apart is believed",
                s->name, (long long)s->index, t->tok_per_s, (long long)tokens, follows,
                BT_BENCH_DISAGREE_PERCENT);
    }
    return BT_OK;
}

static enum bt_code append(struct bt_llama_bench_set *set, const struct source *s,
                           struct bt_error *err)
{
    struct bt_llama_bench test;
    BT_TRY(read_test(s, &test, err));
    struct bt_llama_bench *grown =
        realloc(set->tests, (size_t)(set->n_tests + 1) * sizeof *set->tests);
    if (grown == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %lld tests", s->name,
                (long long)set->n_tests + 1);
    }
    set->tests = grown;
    set->tests[set->n_tests++] = test;
    return BT_OK;
}

static enum bt_code read_csv(const struct bt_import_text *file, struct bt_llama_bench_set *out,
                             struct bt_error *err)
{
    struct bt_table t;
    BT_TRY(bt_table_open(&t, file->text, file->size_bytes, file->name, err));
    enum bt_code code = BT_OK;
    for (bool more = true; code == BT_OK && more;) {
        code = bt_table_next(&t, &more, err);
        if (code == BT_OK && more) {
            struct source s = {.table = &t, .name = file->name, .index = out->n_tests};
            code = append(out, &s, err);
        }
    }
    bt_table_close(&t);
    return code;
}

/* An array of tests, or one test a line. */
static enum bt_code read_json(const struct bt_import_text *file, struct bt_llama_bench_set *out,
                              struct bt_error *err)
{
    size_t at = 0;
    while (at < file->size_bytes) {
        json_error_t why = {0};
        json_t *value =
            json_loadb(file->text + at, file->size_bytes - at, JSON_DISABLE_EOF_CHECK, &why);
        if (value == NULL) {
            BT_FAIL(err, BT_ERR_INPUT, why.line, "%s:%d: not JSON: %s", file->name, why.line,
                    why.text);
        }
        enum bt_code code = BT_OK;
        size_t n = json_is_array(value) ? json_array_size(value) : 1;
        for (size_t i = 0; code == BT_OK && i < n; i++) {
            const json_t *object = json_is_array(value) ? json_array_get(value, i) : value;
            struct source s = {.object = object, .name = file->name, .index = out->n_tests};
            code = json_is_object(object)
                       ? append(out, &s, err)
                       : bt_error_set(err, BT_ERR_INPUT, s.index, __FILE__, __LINE__,
                                      "%s: [%lld]: expected an object, a test of llama-bench",
                                      file->name, (long long)s.index);
        }
        json_decref(value);
        BT_TRY(code);
        at += (size_t)why.position;
        while (at < file->size_bytes && strchr(" \r\n\t", file->text[at]) != NULL) {
            at++;
        }
    }
    return BT_OK;
}

enum bt_code bt_bench_read_llama(const struct bt_import_text *file, struct bt_llama_bench_set *out,
                                 struct bt_error *err)
{
    memset(out, 0, sizeof *out);
    size_t at = 0;
    while (at < file->size_bytes && strchr(" \r\n\t", file->text[at]) != NULL) {
        at++;
    }
    bool json = at < file->size_bytes && (file->text[at] == '[' || file->text[at] == '{');
    enum bt_code code = json ? read_json(file, out, err) : read_csv(file, out, err);
    if (code == BT_OK && out->n_tests == 0) {
        code =
            bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__, "%s: no test in it", file->name);
    }
    if (code != BT_OK) {
        bt_llama_bench_fini(out);
    }
    return code;
}

void bt_llama_bench_fini(struct bt_llama_bench_set *set)
{
    free(set->tests);
    memset(set, 0, sizeof *set);
}
