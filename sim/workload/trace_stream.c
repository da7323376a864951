/* A trace streamed from its file: one pass to learn about it, then row by row. */
#include "sim/workload/internal.h"
#include "sim/workload/tick.h"
#include "sim/workload/trace.h"

#include <stdlib.h>
#include <string.h>

struct stream {
    struct bt_source base;
    char *path;                /* owned */
    char *columns;             /* owned; NULL when none */
    struct bt_trace_opts opts; /* columns points to the copy */
    struct bt_trace_counts counts;
    struct bt_trace_reader *reader; /* owned */
    double scale;
    int64_t from_ns, to_ns; /* to_ns INT64_MAX: none */
    int64_t n_given;
};

static enum bt_code scan(const char *path, const struct bt_trace_opts *opts,
                         struct bt_trace_counts *c, struct bt_error *err)
{
    struct bt_trace_reader *r;
    BT_TRY(bt_trace_reader_open(path, opts, &r, err));
    struct bt_tick_finder *finder = malloc(sizeof *finder);
    enum bt_code code = BT_OK;
    if (finder == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "%s: no memory", path);
        goto done;
    }
    bt_tick_init(finder);
    memset(c, 0, sizeof *c);
    int64_t last_ns = 0;
    for (;;) {
        struct bt_trace_row row;
        bool end;
        code = bt_trace_reader_next(r, &row, &end, err);
        if (code != BT_OK || end) {
            break;
        }
        if (bt_trace_count_row(c, &row, &last_ns) && c->sorted) {
            bt_tick_add(finder, row.time_ns);
        }
    }
    c->sessions = bt_trace_reader_n_sessions(r);
    if (c->sorted) {
        bt_trace_counts_finish(c, finder);
    }
done:
    free(finder);
    bt_trace_reader_close(r);
    return code;
}

static enum bt_source_status stream_next(void *self, struct bt_request *out, struct bt_error *err)
{
    struct stream *s = self;
    while (s->opts.limit == 0 || s->n_given < s->opts.limit) {
        struct bt_trace_row row;
        bool end;
        if (bt_trace_reader_next(s->reader, &row, &end, err) != BT_OK) {
            return BT_SOURCE_ERROR;
        }
        if (end) {
            return BT_SOURCE_END;
        }
        int64_t t_ns = row.time_ns - s->counts.first_time_ns;
        if (t_ns >= s->to_ns) {
            return BT_SOURCE_END;
        }
        if (t_ns < s->from_ns || row.n_output == 0 || row.n_prompt == 0) {
            continue;
        }
        int32_t n_hashes = bt_trace_trim_hashes(&row);
        *out = (struct bt_request){
            .arrival_ns = bt_ns_scaled(t_ns - s->from_ns, s->scale),
            .timeout_ns = row.timeout_ns > 0 ? row.timeout_ns : s->opts.timeout_ns,
            .id = row.row,
            .n_prompt = row.n_prompt,
            .n_output = row.n_output,
            .priority = row.priority,
            .session = row.session,
            .hashes = n_hashes > 0 ? row.hashes : NULL,
            .n_hashes = n_hashes,
            .hash_tokens = n_hashes > 0 ? row.hash_tokens : 0,
        };
        s->n_given++;
        return BT_SOURCE_MORE;
    }
    return BT_SOURCE_END;
}

static enum bt_code stream_rewind(void *self, struct bt_error *err)
{
    struct stream *s = self;
    bt_trace_reader_close(s->reader);
    s->reader = NULL;
    s->n_given = 0;
    return bt_trace_reader_open(s->path, &s->opts, &s->reader, err);
}

static void stream_destroy(void *self)
{
    struct stream *s = self;
    bt_trace_reader_close(s->reader);
    free(s->path);
    free(s->columns);
    free(s);
}

static const struct bt_source_ops stream_ops = {
    .name = "trace", .next = stream_next, .rewind = stream_rewind, .destroy = stream_destroy};

static enum bt_code create_stream(const char *path, const struct bt_trace_opts *opts,
                                  const struct bt_trace_counts *counts, struct bt_source **out,
                                  struct bt_error *err)
{
    struct stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for a source");
    }
    s->base = (struct bt_source){.ops = &stream_ops, .self = s};
    s->opts = *opts;
    s->counts = *counts;
    s->scale = opts->rate_scale > 0.0 ? opts->rate_scale : 1.0;
    s->from_ns = bt_ns_of_s(opts->from_s);
    s->to_ns = opts->to_s > 0.0 ? bt_ns_of_s(opts->to_s) : INT64_MAX;
    s->path = strdup(path);
    s->columns = strdup(opts->columns != NULL ? opts->columns : "");
    s->opts.columns = s->columns;
    enum bt_code code = BT_OK;
    if (s->path == NULL || s->columns == NULL) {
        code = bt_error_set(err, BT_ERR_NOMEM, 0, __FILE__, __LINE__, "%s: no memory", path);
    } else {
        code = stream_rewind(s, err);
    }
    if (code != BT_OK) {
        stream_destroy(s);
        return code;
    }
    *out = &s->base;
    return BT_OK;
}

enum bt_code bt_source_create_trace(const char *path, const struct bt_trace_opts *opts,
                                    struct bt_source **out, struct bt_error *err)
{
    BT_TRY(bt_trace_check_opts(opts, err));
    struct bt_trace_counts counts;
    BT_TRY(scan(path, opts, &counts, err));
    bool spread = counts.tick_ns > 0 && !opts->keep_ticks;
    if (counts.sorted && !spread) {
        return create_stream(path, opts, &counts, out, err);
    }
    struct bt_trace *table;
    BT_TRY(bt_trace_load(path, opts, &table, err));
    enum bt_code code = bt_source_create_owned_table(table, out, err);
    if (code != BT_OK) {
        bt_trace_destroy(table);
    }
    return code;
}
