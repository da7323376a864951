/* Recordings as JSON lines. */
#include "engine/model/json_file.h"
#include "engine/record.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDING_VERSION = 1 };

/* ---- the scheduler's options, field by field ---- */

enum field_type { FIELD_INT32, FIELD_INT64, FIELD_BOOL, FIELD_DOUBLE, FIELD_ENUM };

struct field {
    const char *name;
    enum field_type type;
    size_t offset;
};

#define FIELD(type, name)                                                                          \
    {                                                                                              \
#name, FIELD_##type, offsetof(struct bt_sched_opts, name)                                  \
    }

static const struct field fields[] = {
    FIELD(ENUM, batching),
    FIELD(INT32, max_seqs),
    FIELD(BOOL, max_seqs_auto),
    FIELD(INT32, max_batched_tokens),
    FIELD(BOOL, chunked_prefill),
    FIELD(INT32, max_model_len),
    FIELD(ENUM, over_length),
    FIELD(INT32, n_blocks),
    FIELD(INT32, n_host_blocks),
    FIELD(INT32, block_tokens),
    FIELD(INT32, block_tokens_16bit),
    FIELD(INT32, long_above_tokens),
    FIELD(INT64, block_bytes),
    FIELD(BOOL, prefix_cache),
    FIELD(INT32, watermark_blocks),
    FIELD(ENUM, preempt),
    FIELD(ENUM, preempt_goal),
    FIELD(ENUM, victim),
    FIELD(DOUBLE, preempt_cost.recompute_ns_per_token),
    FIELD(DOUBLE, preempt_cost.recompute_ns_per_token2),
    FIELD(DOUBLE, preempt_cost.swap_out_ns_per_block),
    FIELD(DOUBLE, preempt_cost.swap_in_ns_per_block),
    FIELD(DOUBLE, preempt_cost.swap_fixed_ns),
    FIELD(ENUM, order),
    FIELD(BOOL, priority_preempts),
    FIELD(INT32, max_requests),
    FIELD(INT32, max_waiting),
    FIELD(INT64, window_low_ns),
    FIELD(INT64, window_high_ns),
    FIELD(INT32, inflight_max),
    FIELD(INT32, spec.k),
    FIELD(BOOL, spec.k_adaptive),
    FIELD(DOUBLE, spec.draft_cost_ratio),
    FIELD(INT32, spec.off_above_batch),
    FIELD(INT32, spec.on_below_batch),
    FIELD(BOOL, spec.has_draft_kv),
    FIELD(INT32, degrade.at_waiting),
    FIELD(INT32, degrade.max_new_tokens),
};

enum { N_FIELDS = sizeof fields / sizeof *fields };

/* Enums of the options are ints here. */
_Static_assert(sizeof(enum bt_batching) == sizeof(int32_t), "enum fields are read as int32");

static json_t *field_get(const struct field *f, const struct bt_sched_opts *o)
{
    const char *at = (const char *)o + f->offset;
    int32_t i32;
    int64_t i64;
    bool flag;
    double real;
    switch (f->type) {
    case FIELD_INT32:
    case FIELD_ENUM:
        memcpy(&i32, at, sizeof i32);
        return json_integer(i32);
    case FIELD_INT64:
        memcpy(&i64, at, sizeof i64);
        return json_integer(i64);
    case FIELD_BOOL:
        memcpy(&flag, at, sizeof flag);
        return json_boolean(flag);
    case FIELD_DOUBLE:
        memcpy(&real, at, sizeof real);
        return json_real(real);
    }
    return NULL;
}

static bool field_set(const struct field *f, const json_t *v, struct bt_sched_opts *o)
{
    char *at = (char *)o + f->offset;
    json_int_t n = json_integer_value(v);
    int32_t i32 = (int32_t)n;
    int64_t i64 = n;
    bool flag = json_is_true(v);
    double real = json_number_value(v);
    switch (f->type) {
    case FIELD_INT32:
    case FIELD_ENUM:
        memcpy(at, &i32, sizeof i32);
        return json_is_integer(v) && n == i32;
    case FIELD_INT64:
        memcpy(at, &i64, sizeof i64);
        return json_is_integer(v);
    case FIELD_BOOL:
        memcpy(at, &flag, sizeof flag);
        return json_is_boolean(v);
    case FIELD_DOUBLE:
        memcpy(at, &real, sizeof real);
        return json_is_number(v);
    }
    return false;
}

/* ---- writing ---- */

static json_t *header_of(const struct bt_recording *r)
{
    json_t *sched = json_object();
    for (size_t i = 0; i < N_FIELDS; i++) {
        json_object_set_new(sched, fields[i].name, field_get(&fields[i], &r->sched));
    }
    return json_pack("{s:i,s:s,s:o}", "recording", RECORDING_VERSION, "executor", r->executor,
                     "sched", sched);
}

static void write_submit(FILE *f, const struct bt_recording *r, const struct bt_rec_event *e)
{
    const struct bt_rec_submit *s = &r->submits[e->i];
    const struct bt_req_spec *q = &s->spec;
    (void)fprintf(f,
                  "{\"submit\":%" PRIu64 ",\"now\":%" PRId64 ",\"arrival\":%" PRId64
                  ",\"timeout\":%" PRId64 ",\"prompt\":%d,\"max_new\":%d,\"priority\":%d",
                  q->user, e->now_ns, q->arrival_ns, q->timeout_ns, q->n_prompt, q->max_new_tokens,
                  q->priority);
    if (q->n_hashes > 0) {
        (void)fprintf(f, ",\"hash_tokens\":%d,\"hashes\":[", q->hash_tokens);
        for (int32_t i = 0; i < q->n_hashes; i++) {
            (void)fprintf(f, "%s\"%016" PRIx64 "\"", i > 0 ? "," : "",
                          r->hashes[s->first_hash + i]);
        }
        (void)fprintf(f, "]");
    }
    (void)fprintf(f, "}\n");
}

static void write_complete(FILE *f, const struct bt_recording *r, const struct bt_rec_event *e)
{
    const struct bt_rec_complete *c = &r->completes[e->i];
    const struct bt_step_result *q = &c->result;
    (void)fprintf(f,
                  "{\"complete\":%" PRId64 ",\"now\":%" PRId64 ",\"start\":%" PRId64
                  ",\"busy\":%" PRId64 ",\"host\":%" PRId64 ",\"flops\":%" PRId64
                  ",\"bytes\":%" PRId64 ",\"seqs\":[",
                  q->step_id, e->now_ns, q->start_ns, q->busy_ns, q->host_ns, q->flops, q->bytes);
    for (int32_t i = 0; i < c->n_seqs; i++) {
        const struct bt_result_seq *s = &r->seqs[c->first_seq + i];
        (void)fprintf(f, "%s[%d,%d,%d,%d]", i > 0 ? "," : "", s->n_emitted, s->n_accepted, s->eos,
                      s->failed);
    }
    (void)fprintf(f, "],\"copies\":[");
    for (int32_t i = 0; i < q->n_copies_done; i++) {
        (void)fprintf(f, "%s%" PRIu32, i > 0 ? "," : "", r->copies[c->first_copy + i]);
    }
    (void)fprintf(f, "]}\n");
}

static void write_events(FILE *f, const struct bt_recording *r)
{
    for (int64_t i = 0; i < r->n_events; i++) {
        const struct bt_rec_event *e = &r->events[i];
        switch (e->kind) {
        case BT_REC_SUBMIT:
            write_submit(f, r, e);
            break;
        case BT_REC_CANCEL:
            (void)fprintf(f, "{\"cancel\":%" PRId64 ",\"now\":%" PRId64 "}\n", e->i, e->now_ns);
            break;
        case BT_REC_PLAN:
            (void)fprintf(f, "{\"plan\":%" PRId64 ",\"now\":%" PRId64 "}\n", e->i, e->now_ns);
            break;
        case BT_REC_COMPLETE:
            write_complete(f, r, e);
            break;
        }
    }
    (void)fprintf(f, "{\"end\":%" PRId64 ",\"plan_hash\":\"%016" PRIx64 "\"}\n", r->end_ns,
                  r->plan_hash);
}

enum bt_code bt_recording_write(const struct bt_recording *r, const char *path,
                                struct bt_error *err)
{
    json_t *header = header_of(r);
    char *text = header == NULL ? NULL : json_dumps(header, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(header);
    if (text == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory", path);
    }
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        free(text);
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot be written: %s", path, strerror(errno));
    }
    (void)fprintf(f, "%s\n", text);
    free(text);
    write_events(f, r);
    bool bad = ferror(f) != 0;
    bad = fclose(f) != 0 || bad;
    if (bad) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: writing failed: %s", path, strerror(errno));
    }
    return BT_OK;
}

/* ---- reading ---- */

struct reader {
    struct bt_recording *r;
    const char *path;
    int64_t line;
    const json_t *object; /* of the line */
    struct bt_result_seq *seqs;
    uint32_t *copies;
    uint64_t *hashes;
    size_t cap;
    bool ended;
};

static enum bt_code need_int(const struct reader *p, const char *key, int64_t min, int64_t max,
                             int64_t *out, struct bt_error *err)
{
    const json_t *v = json_object_get(p->object, key);
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) {
        BT_FAIL(err, BT_ERR_INPUT, p->line,
                "%s:%lld: \"%s\" must be an integer in %lld..%lld, found %s", p->path,
                (long long)p->line, key, (long long)min, (long long)max, bt_json_type_name(v));
    }
    *out = json_integer_value(v);
    return BT_OK;
}

static enum bt_code need_i32(const struct reader *p, const char *key, int64_t min, int32_t *out,
                             struct bt_error *err)
{
    int64_t v;
    BT_TRY(need_int(p, key, min, INT32_MAX, &v, err));
    *out = (int32_t)v;
    return BT_OK;
}

static enum bt_code need_array(struct reader *p, const char *key, const json_t **out,
                               struct bt_error *err)
{
    const json_t *v = json_object_get(p->object, key);
    if (!json_is_array(v)) {
        BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%lld: \"%s\" must be an array, found %s", p->path,
                (long long)p->line, key, bt_json_type_name(v));
    }
    size_t n = json_array_size(v);
    if (n > p->cap) {
        size_t cap = n * 2;
        struct bt_result_seq *seqs = realloc(p->seqs, cap * sizeof *seqs);
        p->seqs = seqs != NULL ? seqs : p->seqs;
        uint32_t *copies = realloc(p->copies, cap * sizeof *copies);
        p->copies = copies != NULL ? copies : p->copies;
        uint64_t *hashes = realloc(p->hashes, cap * sizeof *hashes);
        p->hashes = hashes != NULL ? hashes : p->hashes;
        if (seqs == NULL || copies == NULL || hashes == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, p->line, "%s:%lld: no memory", p->path, (long long)p->line);
        }
        p->cap = cap;
    }
    *out = v;
    return BT_OK;
}

static enum bt_code read_hex(const struct reader *p, const json_t *v, const char *key,
                             uint64_t *out, struct bt_error *err)
{
    const char *text = json_string_value(v);
    char *end = NULL;
    if (text != NULL && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16) {
        *out = strtoull(text, &end, 16);
        return BT_OK;
    }
    BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%lld: \"%s\": expected 16 hexadecimal digits", p->path,
            (long long)p->line, key);
}

static enum bt_code read_header(struct reader *p, struct bt_error *err)
{
    int64_t version;
    BT_TRY(need_int(p, "recording", RECORDING_VERSION, RECORDING_VERSION, &version, err));
    const char *executor = json_string_value(json_object_get(p->object, "executor"));
    const json_t *sched = json_object_get(p->object, "sched");
    if (executor == NULL || !json_is_object(sched)) {
        BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%lld: expected \"executor\" and \"sched\"", p->path,
                (long long)p->line);
    }
    struct bt_sched_opts o = {0};
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *v = json_object_get(sched, fields[i].name);
        if (!field_set(&fields[i], v, &o)) {
            BT_FAIL(err, BT_ERR_INPUT, p->line, "%s:%lld: sched.%s: %s does not fit", p->path,
                    (long long)p->line, fields[i].name, bt_json_type_name(v));
        }
    }
    bt_recording_init(p->r, executor, &o);
    return BT_OK;
}

static enum bt_code read_submit(struct reader *p, int64_t now_ns, struct bt_error *err)
{
    struct bt_req_spec q = {0};
    int64_t user;
    BT_TRY(need_int(p, "submit", 0, INT64_MAX, &user, err));
    q.user = (uint64_t)user;
    BT_TRY(need_int(p, "arrival", 0, now_ns, &q.arrival_ns, err));
    BT_TRY(need_int(p, "timeout", 0, INT64_MAX, &q.timeout_ns, err));
    BT_TRY(need_i32(p, "prompt", 1, &q.n_prompt, err));
    BT_TRY(need_i32(p, "max_new", 1, &q.max_new_tokens, err));
    BT_TRY(need_i32(p, "priority", 0, &q.priority, err));
    if (json_object_get(p->object, "hashes") != NULL) {
        const json_t *hashes;
        BT_TRY(need_i32(p, "hash_tokens", 1, &q.hash_tokens, err));
        BT_TRY(need_array(p, "hashes", &hashes, err));
        for (size_t i = 0; i < json_array_size(hashes); i++) {
            BT_TRY(read_hex(p, json_array_get(hashes, i), "hashes", &p->hashes[i], err));
        }
        q.hashes = p->hashes;
        q.n_hashes = (int32_t)json_array_size(hashes);
    }
    return bt_recording_submit(p->r, &q, now_ns, err);
}

static enum bt_code read_seqs(struct reader *p, const json_t *seqs, struct bt_error *err)
{
    for (size_t i = 0; i < json_array_size(seqs); i++) {
        int v[4];
        json_t *row = json_array_get(seqs, i);
        if (json_array_size(row) != 4 ||
            json_unpack(row, "[iiii]", &v[0], &v[1], &v[2], &v[3]) != 0 || v[0] < 0 || v[1] < 0 ||
            v[0] > BT_MAX_SPEC_K + 1 || v[1] > BT_MAX_SPEC_K) {
            BT_FAIL(err, BT_ERR_INPUT, p->line,
                    "%s:%lld: seqs[%zu]: expected [emitted, accepted, eos, failed]", p->path,
                    (long long)p->line, i);
        }
        p->seqs[i] = (struct bt_result_seq){
            .n_emitted = v[0], .n_accepted = v[1], .eos = v[2] != 0, .failed = v[3] != 0};
    }
    return BT_OK;
}

static enum bt_code read_complete(struct reader *p, int64_t now_ns, struct bt_error *err)
{
    struct bt_step_result q = {.done_ns = now_ns};
    const json_t *seqs;
    const json_t *copies;
    BT_TRY(need_int(p, "complete", 0, INT64_MAX, &q.step_id, err));
    BT_TRY(need_int(p, "start", 0, now_ns, &q.start_ns, err));
    BT_TRY(need_int(p, "busy", 0, INT64_MAX, &q.busy_ns, err));
    BT_TRY(need_int(p, "host", 0, INT64_MAX, &q.host_ns, err));
    BT_TRY(need_int(p, "flops", 0, INT64_MAX, &q.flops, err));
    BT_TRY(need_int(p, "bytes", 0, INT64_MAX, &q.bytes, err));
    BT_TRY(need_array(p, "seqs", &seqs, err));
    BT_TRY(need_array(p, "copies", &copies, err));
    BT_TRY(read_seqs(p, seqs, err));
    for (size_t i = 0; i < json_array_size(copies); i++) {
        p->copies[i] = (uint32_t)json_integer_value(json_array_get(copies, i));
    }
    q.seqs = p->seqs;
    q.copies_done = p->copies;
    q.n_copies_done = (int32_t)json_array_size(copies);
    return bt_recording_complete(p->r, (int32_t)json_array_size(seqs), &q, now_ns, err);
}

static enum bt_code read_line(struct reader *p, struct bt_error *err)
{
    if (p->line == 1) {
        return read_header(p, err);
    }
    if (json_object_get(p->object, "end") != NULL) {
        p->ended = true;
        BT_TRY(need_int(p, "end", 0, INT64_MAX, &p->r->end_ns, err));
        const json_t *hash = json_object_get(p->object, "plan_hash");
        return read_hex(p, hash, "plan_hash", &p->r->plan_hash, err);
    }
    int64_t now_ns;
    int64_t v;
    BT_TRY(need_int(p, "now", 0, INT64_MAX, &now_ns, err));
    if (json_object_get(p->object, "submit") != NULL) {
        return read_submit(p, now_ns, err);
    }
    if (json_object_get(p->object, "complete") != NULL) {
        return read_complete(p, now_ns, err);
    }
    if (json_object_get(p->object, "cancel") != NULL) {
        BT_TRY(need_int(p, "cancel", 0, INT64_MAX, &v, err));
        return bt_recording_cancel(p->r, (uint64_t)v, now_ns, err);
    }
    BT_TRY(need_int(p, "plan", -1, INT64_MAX, &v, err));
    struct bt_step_plan plan = {.step_id = v};
    return bt_recording_plan(p->r, v < 0 ? NULL : &plan, now_ns, err);
}

static enum bt_code read_lines(struct reader *p, FILE *f, struct bt_error *err)
{
    char *text = NULL;
    size_t cap = 0;
    enum bt_code code = BT_OK;
    ssize_t n;
    while (code == BT_OK && !p->ended && (n = getline(&text, &cap, f)) > 0) {
        json_error_t e;
        p->line++;
        json_t *object = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &e);
        p->object = object;
        if (!json_is_object(object)) {
            code = bt_error_set(err, BT_ERR_INPUT, p->line, __FILE__, __LINE__,
                                "%s:%lld: not a JSON object: %s", p->path, (long long)p->line,
                                object == NULL ? e.text : "expected {");
        } else {
            code = read_line(p, err);
        }
        json_decref(object);
    }
    free(text);
    if (code == BT_OK && !p->ended) {
        code = bt_error_set(err, BT_ERR_INPUT, p->line, __FILE__, __LINE__,
                            "%s: ends after line %lld without its \"end\"", p->path,
                            (long long)p->line);
    }
    return code;
}

enum bt_code bt_recording_read(struct bt_recording *r, const char *path, struct bt_error *err)
{
    *r = (struct bt_recording){0};
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot be read: %s", path, strerror(errno));
    }
    struct reader p = {.r = r, .path = path};
    enum bt_code code = read_lines(&p, f, err);
    (void)fclose(f);
    free(p.seqs);
    free(p.copies);
    free(p.hashes);
    if (code != BT_OK) {
        bt_recording_fini(r);
    }
    return code;
}
