/* A trace rewritten as generic CSV or JSONL. */
#include "sim/workload/describe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

/* Columns that the trace has beside time and lengths. */
struct shape {
    bool priority, session, timeout, hashes, measured;
};

static struct shape find_shape(const struct bt_trace *t)
{
    struct shape s = {0};
    struct bt_measured m;
    for (int64_t i = 0; i < bt_trace_n(t); i++) {
        struct bt_request q;
        bt_trace_get(t, i, &q);
        s.priority = s.priority || q.priority != 0;
        s.session = s.session || q.session >= 0;
        s.timeout = s.timeout || q.timeout_ns > 0;
        s.hashes = s.hashes || q.n_hashes > 0;
        s.measured = s.measured || bt_trace_measured(t, q.id, &m);
    }
    return s;
}

/* Seconds with all nine digits, exactly. */
static void put_seconds(FILE *out, int64_t ns)
{
    fprintf(out, "%" PRId64 ".%09" PRId64, ns / 1000000000, ns % 1000000000);
}

/* Ids as signed numbers: JSON integers are. The readers take them back to the same 64 bits. */
static void put_hashes(FILE *out, const struct bt_request *q, const char *separator)
{
    for (int32_t i = 0; i < q->n_hashes; i++) {
        fprintf(out, "%s%" PRId64, i > 0 ? separator : "", (int64_t)q->hashes[i]);
    }
}

static void put_csv(FILE *out, const struct bt_trace *t, const struct bt_request *q,
                    const struct shape *s)
{
    put_seconds(out, q->arrival_ns);
    fprintf(out, ",%d,%d", q->n_prompt, q->n_output);
    if (s->priority) {
        fprintf(out, ",%d", q->priority);
    }
    if (s->session) {
        q->session >= 0 ? fprintf(out, ",%d", q->session) : fputc(',', out);
    }
    if (s->timeout) {
        fputc(',', out);
        put_seconds(out, q->timeout_ns);
    }
    if (s->hashes) {
        fputc(',', out);
        put_hashes(out, q, " ");
        fprintf(out, ",%d", q->hash_tokens);
    }
    struct bt_measured m;
    if (s->measured && bt_trace_measured(t, q->id, &m)) {
        const int64_t times[] = {m.ttft_ns, m.e2e_ns, m.tpot_ns};
        for (int32_t i = 0; i < 3; i++) {
            fputc(',', out);
            if (times[i] >= 0) {
                put_seconds(out, times[i]);
            }
        }
    }
    fputc('\n', out);
}

static void put_jsonl(FILE *out, const struct bt_trace *t, const struct bt_request *q,
                      const struct shape *s)
{
    static const char *const names[] = {"ttft_s", "e2e_s", "tpot_s"};
    fputs("{\"arrival_s\": ", out);
    put_seconds(out, q->arrival_ns);
    fprintf(out, ", \"prompt_tokens\": %d, \"output_tokens\": %d", q->n_prompt, q->n_output);
    if (s->priority) {
        fprintf(out, ", \"priority\": %d", q->priority);
    }
    if (s->session) {
        fputs(", \"session\": ", out);
        q->session >= 0 ? fprintf(out, "%d", q->session) : fputs("null", out);
    }
    if (s->timeout) {
        fputs(", \"timeout_s\": ", out);
        put_seconds(out, q->timeout_ns);
    }
    if (s->hashes) {
        fputs(", \"hash_ids\": [", out);
        put_hashes(out, q, ", ");
        fprintf(out, "], \"hash_tokens\": %d", q->hash_tokens);
    }
    struct bt_measured m;
    if (s->measured && bt_trace_measured(t, q->id, &m)) {
        const int64_t times[] = {m.ttft_ns, m.e2e_ns, m.tpot_ns};
        for (int32_t i = 0; i < 3; i++) {
            fprintf(out, ", \"%s\": ", names[i]);
            if (times[i] >= 0) {
                put_seconds(out, times[i]);
            } else {
                fputs("null", out);
            }
        }
    }
    fputs("}\n", out);
}

enum bt_code bt_trace_write(const struct bt_trace *t, enum bt_trace_format format, FILE *out,
                            struct bt_error *err)
{
    if (format != BT_TRACE_CSV && format != BT_TRACE_JSONL) {
        BT_FAIL(err, BT_ERR_ARG, 0, "trace: can be written as csv or jsonl, not %s",
                bt_trace_format_name(format));
    }
    struct shape s = find_shape(t);
    if (format == BT_TRACE_CSV) {
        fprintf(out, "arrival_s,prompt_tokens,output_tokens%s%s%s%s%s\n",
                s.priority ? ",priority" : "", s.session ? ",session" : "",
                s.timeout ? ",timeout_s" : "", s.hashes ? ",hash_ids,hash_tokens" : "",
                s.measured ? ",ttft_s,e2e_s,tpot_s" : "");
    }
    for (int64_t i = 0; i < bt_trace_n(t); i++) {
        struct bt_request q;
        bt_trace_get(t, i, &q);
        if (format == BT_TRACE_CSV) {
            put_csv(out, t, &q, &s);
        } else {
            put_jsonl(out, t, &q, &s);
        }
    }
    if (fflush(out) != 0 || ferror(out)) {
        BT_FAIL(err, BT_ERR_IO, errno, "trace: cannot write: %s", strerror(errno));
    }
    return BT_OK;
}
