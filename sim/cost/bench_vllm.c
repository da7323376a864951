#include "sim/cost/bench.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    json_t *root; /* borrowed */
    const char *name;
};

/* Keys of the format whose figures are not taken. Metadata that users add (--metadata K=V) is text.
 */
static const char *const ignored[] = {
    "endpoint_type",
    "label",
    "tokenizer_id",
    "best_of",
    "total_token_throughput",
    "request_goodput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
    "latencies",
    "queue_times",
    "generated_texts",
    "ramp_up_strategy",
    "ramp_up_start_rps",
    "ramp_up_end_rps",
    "rps_change_events",
    "spec_decode_num_drafts",
    "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens",
    "spec_decode_per_position_acceptance_rates",
    "request_goodput:",
    "goodput",
};
static const char *const used[] = {
    "model_id",
    "backend",
    "date",
    "num_prompts",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "duration",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "request_throughput",
    "output_throughput",
    "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "errors",
};
static const char *const stats[] = {
    "ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool is_listed(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, list[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* mean_ttft_ms, p99_itl_ms, p99.9_e2el_ms, ... */
static bool is_stat_key(const char *key)
{
    const char *metric = strchr(key, '_');
    size_t length = strlen(key);
    if (metric == NULL || length < 4 || strcmp(key + length - 3, "_ms") != 0) {
        return false;
    }
    size_t head = (size_t)(metric - key);
    bool known = (head == 4 && memcmp(key, "mean", 4) == 0) ||
                 (head == 6 && memcmp(key, "median", 6) == 0) ||
                 (head == 3 && memcmp(key, "std", 3) == 0) ||
                 (key[0] == 'p' && head > 1 && strspn(key + 1, "0123456789.") == head - 1);
    for (size_t i = 0; known && i < COUNT(stats); i++) {
        size_t n = strlen(stats[i]);
        if (strncmp(metric + 1, stats[i], n) == 0 && strcmp(metric + 1 + n, "_ms") == 0) {
            return true;
        }
    }
    return false;
}

static enum bt_code check_keys(const struct reader *r, struct bt_error *err)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(r->root, key, value)
    {
        bool probe = strncmp(key, "probe_", 6) == 0 || strncmp(key, "diffusion_", 10) == 0;
        if (!json_is_string(value) && !json_is_null(value) && !probe && !is_stat_key(key) &&
            !is_listed(key, used, COUNT(used)) && !is_listed(key, ignored, COUNT(ignored))) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: unknown key \"%s\"; a vllm bench serve result has duration (s), "
                    "completed, request_throughput, mean_ttft_ms, ttfts (s), ...",
                    r->name, key);
        }
    }
    return BT_OK;
}

/* A number >= min, or `absent` where the key is missing or null. */
static enum bt_code get_number(const struct reader *r, const char *key, double min, double absent,
                               double *out, struct bt_error *err)
{
    const json_t *v = json_object_get(r->root, key);
    *out = absent;
    if (v == NULL || json_is_null(v)) {
        return BT_OK;
    }
    if (!json_is_number(v) || !(json_number_value(v) >= min)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected a number >= %g", r->name, key, min);
    }
    *out = json_number_value(v);
    return BT_OK;
}

static enum bt_code need_number(const struct reader *r, const char *key, double min, double *out,
                                struct bt_error *err)
{
    BT_TRY(get_number(r, key, min, NAN, out, err));
    if (isnan(*out)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: key \"%s\" is missing", r->name, key);
    }
    return BT_OK;
}

static enum bt_code need_count(const struct reader *r, const char *key, int64_t min, int64_t *out,
                               struct bt_error *err)
{
    double value = 0;
    BT_TRY(need_number(r, key, (double)min, &value, err));
    if (value != floor(value)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: %g, expected a whole number", r->name, key, value);
    }
    *out = (int64_t)value;
    return BT_OK;
}

static void get_text(const struct reader *r, const char *key, char out[BT_BENCH_NAME_BYTES])
{
    const char *text = json_string_value(json_object_get(r->root, key));
    (void)snprintf(out, BT_BENCH_NAME_BYTES, "%s", text == NULL ? "" : text);
}

static enum bt_code get_rate(const struct reader *r, double *out, struct bt_error *err)
{
    const json_t *v = json_object_get(r->root, "request_rate");
    *out = INFINITY;
    if (json_is_string(v) && strcmp(json_string_value(v), "inf") == 0) {
        return BT_OK;
    }
    if (v != NULL && (!json_is_number(v) || !(json_number_value(v) > 0))) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: request_rate: expected a number > 0 or \"inf\"",
                r->name);
    }
    *out = v == NULL ? INFINITY : json_number_value(v);
    return BT_OK;
}

static enum bt_code get_stat(const struct reader *r, const char *metric, struct bt_bench_stat *out,
                             struct bt_error *err)
{
    const struct {
        const char *head;
        double *value;
    } parts[] = {{"mean", &out->mean_s}, {"median", &out->median_s}, {"std", &out->std_s},
                 {"p90", &out->p90_s},   {"p95", &out->p95_s},       {"p99", &out->p99_s}};
    for (size_t i = 0; i < COUNT(parts); i++) {
        char key[64];
        (void)snprintf(key, sizeof key, "%s_%s_ms", parts[i].head, metric);
        BT_TRY(get_number(r, key, 0, NAN, parts[i].value, err));
        *parts[i].value *= 1e-3;
    }
    return BT_OK;
}

static enum bt_code check_close(const struct reader *r, const char *what, double said,
                                double follows, struct bt_error *err)
{
    double ratio = said / follows;
    const double most = 1 + BT_BENCH_DISAGREE_PERCENT / 100.0;
    if (follows > 0 && said > 0 && (ratio > most || ratio < 1 / most)) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: %s: %g stated, %g follows from the other figures: mixed units? At most %d%% "
                "apart is believed",
                r->name, what, said, follows, BT_BENCH_DISAGREE_PERCENT);
    }
    return BT_OK;
}

static enum bt_code element(const struct reader *r, const json_t *array, const char *key, size_t i,
                            double *out, struct bt_error *err)
{
    const json_t *v = json_array_get(array, i);
    if (!json_is_number(v) || !(json_number_value(v) >= 0)) {
        BT_FAIL(err, BT_ERR_INPUT, (int64_t)i, "%s: %s[%zu]: expected a number >= 0", r->name, key,
                i);
    }
    *out = json_number_value(v);
    return BT_OK;
}

static enum bt_code read_request(const struct reader *r, const json_t *const arrays[4], size_t i,
                                 struct bt_bench_request *out, struct bt_error *err)
{
    double input = 0;
    double output = 0;
    BT_TRY(element(r, arrays[0], "input_lens", i, &input, err));
    BT_TRY(element(r, arrays[1], "output_lens", i, &output, err));
    BT_TRY(element(r, arrays[2], "ttfts", i, &out->ttft_s, err));
    out->input_tokens = (int64_t)input;
    out->output_tokens = (int64_t)output;
    out->e2e_s = out->ttft_s;
    const json_t *gaps = json_array_get(arrays[3], i);
    for (size_t k = 0; k < json_array_size(gaps); k++) {
        double gap = 0;
        BT_TRY(element(r, gaps, "itls", k, &gap, err));
        out->e2e_s += gap;
    }
    out->start_s = NAN;
    const json_t *starts = json_object_get(r->root, "start_times");
    if (json_is_array(starts)) {
        BT_TRY(element(r, starts, "start_times", i, &out->start_s, err));
    }
    const char *error = json_string_value(json_array_get(json_object_get(r->root, "errors"), i));
    out->failed = error != NULL && error[0] != '\0';
    return BT_OK;
}

static enum bt_code read_requests(const struct reader *r, struct bt_bench_run *out,
                                  struct bt_error *err)
{
    static const char *const keys[4] = {"input_lens", "output_lens", "ttfts", "itls"};
    const json_t *arrays[4];
    for (size_t k = 0; k < 4; k++) {
        arrays[k] = json_object_get(r->root, keys[k]);
        if (arrays[k] == NULL) {
            return BT_OK; /* without --save-detailed */
        }
        if (!json_is_array(arrays[k]) || json_array_size(arrays[k]) != json_array_size(arrays[0])) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: %s: expected an array as long as input_lens",
                    r->name, keys[k]);
        }
    }
    size_t n = json_array_size(arrays[0]);
    out->requests = calloc(n > 0 ? n : 1, sizeof *out->requests);
    if (out->requests == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for %zu requests", r->name, n);
    }
    double first = INFINITY;
    double ttft = 0;
    int64_t good = 0;
    for (size_t i = 0; i < n; i++) {
        BT_TRY(read_request(r, arrays, i, &out->requests[i], err));
        out->n_requests++;
        first = fmin(first, out->requests[i].start_s);
        if (!out->requests[i].failed) {
            ttft += out->requests[i].ttft_s;
            good++;
        }
    }
    for (size_t i = 0; i < n; i++) {
        out->requests[i].start_s -= first;
    }
    return good == 0 ? BT_OK
                     : check_close(r, "mean_ttft_ms", out->ttft.mean_s * 1e3,
                                   ttft / (double)good * 1e3, err);
}

static enum bt_code read_run(const struct reader *r, struct bt_bench_run *out, struct bt_error *err)
{
    double number = 0;
    BT_TRY(check_keys(r, err));
    get_text(r, "model_id", out->model);
    get_text(r, "backend", out->backend);
    if (out->backend[0] == '\0') {
        get_text(r, "endpoint_type", out->backend);
    }
    get_text(r, "date", out->date);
    BT_TRY(need_number(r, "duration", 1e-9, &out->duration_s, err));
    BT_TRY(need_count(r, "completed", 1, &out->completed, err));
    BT_TRY(need_count(r, "total_input_tokens", 1, &out->input_tokens, err));
    BT_TRY(need_count(r, "total_output_tokens", 1, &out->output_tokens, err));
    BT_TRY(get_number(r, "num_prompts", 1, (double)out->completed, &number, err));
    out->n_prompts = (int64_t)number;
    BT_TRY(get_number(r, "failed", 0, 0, &number, err));
    out->failed = (int64_t)number;
    BT_TRY(get_number(r, "max_concurrency", 1, 0, &number, err));
    out->max_concurrency = (int64_t)number;
    BT_TRY(get_number(r, "burstiness", 0, NAN, &out->burstiness, err));
    BT_TRY(get_rate(r, &out->request_rate_per_s, err));
    BT_TRY(need_number(r, "request_throughput", 0, &out->throughput_req_per_s, err));
    BT_TRY(need_number(r, "output_throughput", 0, &out->throughput_out_tok_per_s, err));
    BT_TRY(get_number(r, "spec_decode_acceptance_rate", 0, NAN, &number, err));
    out->spec_acceptance_fraction = number / 100; /* vLLM writes per cent */
    BT_TRY(get_number(r, "spec_decode_acceptance_length", 0, NAN, &out->spec_accepted_len, err));
    BT_TRY(get_stat(r, "ttft", &out->ttft, err));
    BT_TRY(get_stat(r, "tpot", &out->tpot, err));
    BT_TRY(get_stat(r, "itl", &out->itl, err));
    BT_TRY(get_stat(r, "e2el", &out->e2e, err));
    BT_TRY(check_close(r, "request_throughput", out->throughput_req_per_s,
                       (double)out->completed / out->duration_s, err));
    BT_TRY(check_close(r, "output_throughput", out->throughput_out_tok_per_s,
                       (double)out->output_tokens / out->duration_s, err));
    return read_requests(r, out, err);
}

/* The last object of a text that holds one, or one a line (--append-result). */
static json_t *last_object(const struct bt_import_text *file, struct bt_error *err)
{
    json_error_t why = {0};
    json_t *last = NULL;
    size_t at = 0;
    while (at < file->size_bytes) {
        json_t *next =
            json_loadb(file->text + at, file->size_bytes - at, JSON_DISABLE_EOF_CHECK, &why);
        if (next == NULL) {
            break;
        }
        json_decref(last);
        last = next;
        at += (size_t)why.position;
        while (at < file->size_bytes && strchr(" \r\n\t", file->text[at]) != NULL) {
            at++;
        }
    }
    if (at < file->size_bytes || last == NULL) {
        (void)bt_error_set(err, BT_ERR_INPUT, why.line, __FILE__, __LINE__, "%s:%d: not JSON: %s",
                           file->name, why.line, why.text);
        json_decref(last);
        return NULL;
    }
    if (!json_is_object(last)) {
        (void)bt_error_set(err, BT_ERR_INPUT, 1, __FILE__, __LINE__,
                           "%s: expected a JSON object, the result of vllm bench serve",
                           file->name);
        json_decref(last);
        return NULL;
    }
    return last;
}

enum bt_code bt_bench_read_vllm(const struct bt_import_text *file, struct bt_bench_run *out,
                                struct bt_error *err)
{
    memset(out, 0, sizeof *out);
    json_t *root = last_object(file, err);
    if (root == NULL) {
        return BT_ERR_INPUT;
    }
    struct reader r = {root, file->name};
    enum bt_code code = read_run(&r, out, err);
    json_decref(root);
    if (code != BT_OK) {
        bt_bench_run_fini(out);
    }
    return code;
}

void bt_bench_run_fini(struct bt_bench_run *run)
{
    free(run->requests);
    memset(run, 0, sizeof *run);
}
