#include "sim/plan/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct growing {
    int64_t requests_cap, hashes_cap, n_hashes;
};

static enum bt_code grow(void **p, int64_t *cap, int64_t need, size_t size, struct bt_error *err)
{
    if (need <= *cap) {
        return BT_OK;
    }
    int64_t want = *cap < 1024 ? 1024 : *cap * 2;
    want = want < need ? need : want;
    void *q = realloc(*p, (size_t)want * size);
    if (q == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for %lld items of %zu bytes",
                (long long)want, size);
    }
    *p = q;
    *cap = want;
    return BT_OK;
}

/* One request with its hashes copied; `hashes` holds an index until all have been read, because the
 * pool moves while it grows. */
static enum bt_code append(struct bt_stream *s, struct growing *g, const struct bt_request *r,
                           struct bt_error *err)
{
    BT_TRY(
        grow((void **)&s->requests, &g->requests_cap, s->n_requests + 1, sizeof *s->requests, err));
    BT_TRY(grow((void **)&s->hashes, &g->hashes_cap, g->n_hashes + r->n_hashes, sizeof *s->hashes,
                err));
    struct bt_request *to = &s->requests[s->n_requests++];
    *to = *r;
    if (r->n_hashes > 0) {
        memcpy(s->hashes + g->n_hashes, r->hashes, (size_t)r->n_hashes * sizeof *r->hashes);
        g->n_hashes += r->n_hashes;
    }
    return BT_OK;
}

static void describe(struct bt_stream *s)
{
    double prompt = 0, output = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < s->n_requests; i++) {
        struct bt_request *r = &s->requests[i];
        prompt += r->n_prompt;
        output += r->n_output;
        r->hashes = r->n_hashes > 0 ? s->hashes + at : NULL;
        at += r->n_hashes;
    }
    s->prompt_mean = prompt / (double)s->n_requests;
    s->output_mean = output / (double)s->n_requests;
    if (s->closed_users == 0) {
        s->span_ns = s->requests[s->n_requests - 1].arrival_ns - s->requests[0].arrival_ns;
        s->rate_req_per_s =
            s->span_ns > 0 ? (double)s->n_requests / ((double)s->span_ns / 1e9) : INFINITY;
    }
}

enum bt_code bt_stream_read(struct bt_source *source, struct bt_stream *out, struct bt_error *err)
{
    *out = (struct bt_stream){.closed_users = source->closed_users};
    struct growing g = {0};
    enum bt_code code = BT_OK;
    while (code == BT_OK) {
        struct bt_request r;
        enum bt_source_status status = bt_source_next(source, &r, err);
        if (status == BT_SOURCE_END) {
            break;
        }
        if (status == BT_SOURCE_ERROR) {
            code = err != NULL && err->code != BT_OK ? err->code : BT_ERR_INPUT;
        } else if (out->n_requests == BT_STREAM_MAX_REQUESTS) {
            code = bt_error_set(err, BT_ERR_LIMIT, 0, __FILE__, __LINE__,
                                "workload: longer than %d requests: give a duration_s or a limit",
                                BT_STREAM_MAX_REQUESTS);
        } else {
            code = append(out, &g, &r, err);
        }
    }
    if (code == BT_OK && out->n_requests == 0) {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                            "workload: there is no request in it");
    }
    if (code != BT_OK) {
        bt_stream_fini(out);
        return code;
    }
    describe(out);
    return BT_OK;
}

void bt_stream_fini(struct bt_stream *s)
{
    free(s->requests);
    free(s->hashes);
    *s = (struct bt_stream){0};
}

struct view_source {
    struct bt_source source;
    const struct bt_stream *stream; /* borrowed */
    struct bt_stream_view view;
    int64_t at;
};

static enum bt_source_status view_next(void *self, struct bt_request *out, struct bt_error *err)
{
    (void)err;
    struct view_source *v = self;
    if (v->at >= v->stream->n_requests) {
        return BT_SOURCE_END;
    }
    *out = v->stream->requests[v->at];
    v->at += v->view.share;
    if (v->stream->closed_users == 0) {
        out->arrival_ns = llround((double)out->arrival_ns / v->view.rate_scale);
    }
    return BT_SOURCE_MORE;
}

static enum bt_code view_rewind(void *self, struct bt_error *err)
{
    (void)err;
    ((struct view_source *)self)->at = 0;
    return BT_OK;
}

static void view_destroy(void *self)
{
    free(self);
}

static const struct bt_source_ops VIEW_OPS = {
    .name = "view", .next = view_next, .rewind = view_rewind, .destroy = view_destroy};

enum bt_code bt_stream_source(const struct bt_stream *s, const struct bt_stream_view *view,
                              struct bt_source **out, struct bt_error *err)
{
    BT_ASSERT(view->share > 0);
    BT_ASSERT(view->rate_scale > 0);
    struct view_source *v = calloc(1, sizeof *v);
    if (v == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for a source");
    }
    v->stream = s;
    v->view = *view;
    v->source.ops = &VIEW_OPS;
    v->source.self = v;
    if (s->closed_users > 0) {
        int32_t users = (s->closed_users + view->share - 1) / view->share;
        v->source.closed_users = users;
    }
    *out = &v->source;
    return BT_OK;
}

int64_t bt_stream_view_n(const struct bt_stream *s, const struct bt_stream_view *view)
{
    return (s->n_requests + view->share - 1) / view->share;
}
