/* berth compare: two recorded runs side by side. */
#include "cli/cmd.h"
#include "db/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SUMMARIES = 256 };

/* What is compared, in this order; paths into the metrics. */
static const struct {
    const char *path, *unit;
} METRICS[] = {
    {"ttft_s.mean", "s"},
    {"ttft_s.p50", "s"},
    {"ttft_s.p95", "s"},
    {"ttft_s.p99", "s"},
    {"tpot_s.mean", "s"},
    {"tpot_s.p95", "s"},
    {"tpot_s.p99", "s"},
    {"itl_s.p99", "s"},
    {"e2e_s.mean", "s"},
    {"e2e_s.p50", "s"},
    {"e2e_s.p95", "s"},
    {"e2e_s.p99", "s"},
    {"queue_s.mean", "s"},
    {"queue_s.p99", "s"},
    {"throughput_req_per_s", "1/s"},
    {"throughput_out_tok_per_s", "tokens/s"},
    {"goodput_req_per_s", "1/s"},
    {"slo_attainment_fraction", "1"},
    {"arrived", "requests"},
    {"finished", "requests"},
    {"timed_out", "requests"},
    {"rejected", "requests"},
    {"failed", "requests"},
    {"degraded", "requests"},
    {"preempt_swap", "1"},
    {"preempt_recompute", "1"},
    {"swap_bytes", "bytes"},
    {"kv_used_fraction", "1"},
    {"kv_blocks_peak", "blocks"},
    {"kv_waste_fraction", "1"},
    {"gpu_busy_fraction", "1"},
    {"flops_utilization", "1"},
    {"bandwidth_utilization", "1"},
    {"batch_fill", "1"},
    {"kv_blocked_fraction", "1"},
    {"seqs_blocked_fraction", "1"},
    {"swap_stall_fraction", "1"},
    {"prefix_hit_fraction", "1"},
    {"acceptance_rate", "1"},
    {"accepted_len", "tokens"},
    {"cost_usd_per_h", "USD/h"},
    {"cost_usd_per_mtok", "USD/Mtok"},
};

struct side {
    int64_t run_id;
    int32_t n;
    json_t *metrics[MAX_SUMMARIES]; /* owned */
    char *labels[MAX_SUMMARIES];    /* owned */
};

static bool take_summary(void *ctx, const char *section, const struct bt_value *values,
                         int32_t n_values)
{
    struct side *s = ctx;
    if (strcmp(section, "summary") != 0 || s->n == MAX_SUMMARIES) {
        return true;
    }
    const char *metrics = NULL, *label = "";
    for (int32_t i = 0; i < n_values; i++) {
        if (values[i].type == BT_VALUE_TEXT && strcmp(values[i].name, "metrics_json") == 0) {
            metrics = values[i].text;
        } else if (values[i].type == BT_VALUE_TEXT && strcmp(values[i].name, "label") == 0) {
            label = values[i].text;
        }
    }
    json_t *doc = metrics == NULL ? NULL : json_loads(metrics, 0, NULL);
    if (doc != NULL) {
        s->labels[s->n] = strdup(label);
        s->metrics[s->n++] = doc;
    }
    return true;
}

static double number_at(const json_t *doc, const char *path)
{
    const json_t *v = bt_out_at(doc, path);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void add_rows(json_t *rows, const struct side *a, const struct side *b, int32_t i)
{
    bool several = a->n > 1 || b->n > 1;
    for (size_t k = 0; k < sizeof METRICS / sizeof *METRICS; k++) {
        double x = number_at(a->metrics[i], METRICS[k].path);
        double y = number_at(b->metrics[i], METRICS[k].path);
        if (isnan(x) && isnan(y)) {
            continue;
        }
        json_t *row = bt_out_object();
        if (several) {
            bt_out_set(row, "label", bt_out_text(a->labels[i]));
        }
        bt_out_set(row, "metric", bt_out_text(METRICS[k].path));
        bt_out_set(row, "unit", bt_out_text(METRICS[k].unit));
        bt_out_set(row, "a", bt_out_real(x));
        bt_out_set(row, "b", bt_out_real(y));
        bt_out_set(row, "difference", bt_out_real(y - x));
        bt_out_set(row, "ratio", bt_out_real(y / x));
        bt_out_append(rows, row);
    }
}

static enum bt_code read_side(struct bt_store *store, const char *text, struct side *s,
                              struct bt_error *err)
{
    char *end = NULL;
    s->run_id = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || s->run_id < 1) {
        BT_FAIL(err, BT_ERR_ARG, 0, "'%s' is not the id of a run; `berth db list` shows them",
                text);
    }
    BT_TRY(bt_store_show_run(store, s->run_id, take_summary, s, err));
    if (s->n == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "run %s holds no metrics to compare", text);
    }
    return BT_OK;
}

static void free_side(struct side *s)
{
    for (int32_t i = 0; i < s->n; i++) {
        json_decref(s->metrics[i]);
        free(s->labels[i]);
    }
    free(s);
}

static const struct bt_out_part PARTS[] = {{.kind = BT_OUT_ROWS, .path = "rows"}};
static const struct bt_out_view VIEW = {.parts = PARTS, .n_parts = 1, .csv_rows = "rows"};

static enum bt_code compare(struct bt_cli *cli, struct bt_store *store, struct side *a,
                            struct side *b, struct bt_error *err)
{
    BT_TRY(read_side(store, cli->args.positional[0], a, err));
    BT_TRY(read_side(store, cli->args.positional[1], b, err));
    json_t *doc = bt_out_object();
    json_t *rows = bt_out_list();
    for (int32_t i = 0; i < a->n && i < b->n; i++) {
        add_rows(rows, a, b, i);
    }
    if (a->n != b->n) {
        bt_cli_note(cli,
                    "run %lld has %d configurations and run %lld has %d: the first %d are "
                    "compared",
                    (long long)a->run_id, a->n, (long long)b->run_id, b->n,
                    a->n < b->n ? a->n : b->n);
    }
    bt_out_set(doc, "rows", rows);
    enum bt_code code = bt_cli_write(cli, doc, &VIEW, err);
    json_decref(doc);
    return code;
}

static enum bt_code run(struct bt_cli *cli, struct bt_error *err)
{
    struct bt_store *store = NULL;
    struct bt_store_opts opts = {.path = cli->db_path, .read_only = true};
    BT_TRY(bt_store_open(&opts, &store, err));
    struct side *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    BT_ASSERT(a != NULL && b != NULL);
    enum bt_code code = compare(cli, store, a, b, err);
    free_side(a);
    free_side(b);
    bt_store_close(store);
    return code;
}

static const struct bt_example EXAMPLES[] = {
    {"compare 12 13", "latency, throughput, memory and cost of two runs, with their ratio"},
};

const struct bt_command bt_cmd_compare = {
    .name = "compare",
    .arguments = "RUN RUN",
    .summary = "two recorded runs side by side, metric by metric",
    .examples = EXAMPLES,
    .n_examples = sizeof EXAMPLES / sizeof *EXAMPLES,
    .min_positional = 2,
    .max_positional = 2,
    .run = run,
};
