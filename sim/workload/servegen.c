/* ServeGen workloads: the sum of many clients' streams, merged in order of arrival. */
#include "sim/workload/client.h"
#include "sim/workload/internal.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A client at work: its place in its windows and its next arrival. */
struct runner {
    struct bt_client client;
    struct bt_rng arrival, prompt, output;
    int64_t window_i;
    double at_s;     /* of the recording */
    int64_t next_ns; /* from the cut's start */
};

struct servegen {
    struct bt_source base;
    uint64_t seed;
    struct runner *runners; /* owned */
    int32_t n_runners;
    double from_s, to_s;
    double rate_factor;
    double rate_scale;
    int64_t n_requests, n_given;
    int64_t timeout_ns;
    int32_t *heap; /* owned: runners by (next_ns, index) */
    int32_t n_heap;
};

static bool earlier(const struct servegen *s, int32_t a, int32_t b)
{
    int64_t x = s->runners[a].next_ns;
    int64_t y = s->runners[b].next_ns;
    return x != y ? x < y : a < b;
}

/* Lets the runner at place i of the heap sink to where it belongs. */
static void sink(struct servegen *s, int32_t i)
{
    int32_t moved = s->heap[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= s->n_heap) {
            break;
        }
        if (child + 1 < s->n_heap && earlier(s, s->heap[child + 1], s->heap[child])) {
            child++;
        }
        if (!earlier(s, s->heap[child], moved)) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = moved;
}

/* Moves a runner to its next arrival: a gap of the window in which it begins, spent at each
 * window's own rate. False when the recording or the cut ends before it. */
static bool advance(const struct servegen *s, struct runner *r, bool first)
{
    const struct bt_client *c = &r->client;
    double work = -1.0;
    while (r->window_i < c->n_windows) {
        const struct bt_client_window *w = &c->windows[r->window_i];
        double rate = w->rate_per_s * s->rate_factor;
        r->at_s = fmax(r->at_s, w->start_s);
        if (r->at_s >= s->to_s) {
            return false;
        }
        if (rate > 0.0 && r->at_s < w->end_s) {
            if (work < 0.0) {
                work = first ? bt_gap_draw_first(&w->gap, &r->arrival)
                             : bt_gap_draw(&w->gap, &r->arrival);
            }
            double area = rate * (w->end_s - r->at_s);
            if (work < area) {
                r->at_s += work / rate;
                if (r->at_s >= s->to_s) {
                    return false;
                }
                r->next_ns = bt_ns_of_s(r->at_s - s->from_s);
                return true;
            }
            work -= area;
        }
        r->at_s = w->end_s;
        r->window_i++;
    }
    return false;
}

static enum bt_source_status servegen_next(void *self, struct bt_request *out, struct bt_error *err)
{
    (void)err;
    struct servegen *s = self;
    if (s->n_heap == 0 || (s->n_requests > 0 && s->n_given == s->n_requests)) {
        return BT_SOURCE_END;
    }
    int32_t client_i = s->heap[0];
    struct runner *r = &s->runners[client_i];
    const struct bt_client_lengths *lengths = bt_client_lengths_at(&r->client, r->at_s);
    *out = (struct bt_request){
        .arrival_ns = bt_ns_scaled(r->next_ns, s->rate_scale),
        .timeout_ns = s->timeout_ns,
        .id = s->n_given++,
        .n_prompt = bt_dist_draw_tokens(lengths->prompt, &r->prompt),
        .n_output = bt_dist_draw_tokens(lengths->output, &r->output),
        .session = -1,
    };
    if (!advance(s, r, false)) {
        s->heap[0] = s->heap[--s->n_heap];
    }
    if (s->n_heap > 0) {
        sink(s, 0);
    }
    return BT_SOURCE_MORE;
}

static enum bt_code servegen_rewind(void *self, struct bt_error *err)
{
    (void)err;
    struct servegen *s = self;
    s->n_heap = 0;
    s->n_given = 0;
    for (int32_t i = 0; i < s->n_runners; i++) {
        struct runner *r = &s->runners[i];
        bt_rng_init(&r->arrival, s->seed, "workload.arrival", (uint64_t)i);
        bt_rng_init(&r->prompt, s->seed, "workload.prompt", (uint64_t)i);
        bt_rng_init(&r->output, s->seed, "workload.output", (uint64_t)i);
        r->window_i = 0;
        r->at_s = s->from_s;
        while (r->window_i < r->client.n_windows &&
               r->client.windows[r->window_i].end_s <= s->from_s) {
            r->window_i++;
        }
        if (advance(s, r, true)) {
            s->heap[s->n_heap++] = i;
        }
    }
    for (int32_t i = s->n_heap / 2 - 1; i >= 0; i--) {
        sink(s, i);
    }
    return BT_OK;
}

static void servegen_destroy(void *self)
{
    struct servegen *s = self;
    for (int32_t i = 0; i < s->n_runners; i++) {
        bt_client_fini(&s->runners[i].client);
    }
    free(s->runners);
    free(s->heap);
    free(s);
}

static const struct bt_source_ops servegen_ops = {.name = "servegen",
                                                  .next = servegen_next,
                                                  .rewind = servegen_rewind,
                                                  .destroy = servegen_destroy};

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        free(names[i]);
    }
    free(names);
}

/* Adds the client's name if the file is a client's trace. */
static enum bt_code add_name(const char *file, char ***names, int64_t *n, int64_t *cap,
                             struct bt_error *err)
{
    static const char suffix[] = "-trace.csv";
    size_t len = strlen(file);
    size_t suffix_len = sizeof suffix - 1;
    if (len <= suffix_len || strcmp(file + len - suffix_len, suffix) != 0) {
        return BT_OK;
    }
    BT_TRY(bt_array_grow((void **)names, cap, *n + 1, sizeof **names, err));
    char *name = strndup(file, len - suffix_len);
    if (name == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload.dir: no memory for a name");
    }
    (*names)[(*n)++] = name;
    return BT_OK;
}

/* Names of the clients in a directory, sorted so that the stream does not depend on its order. */
static enum bt_code list_clients(const char *dir, char ***names, int64_t *n, struct bt_error *err)
{
    *names = NULL;
    *n = 0;
    int64_t cap = 0;
    DIR *d = opendir(dir);
    if (d == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "workload.dir: cannot open %s: %s", dir, strerror(errno));
    }
    enum bt_code code = BT_OK;
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (e == NULL) {
            if (errno != 0) {
                code = bt_error_set(err, BT_ERR_IO, errno, __FILE__, __LINE__,
                                    "workload.dir: cannot list %s: %s", dir, strerror(errno));
            }
            break;
        }
        code = add_name(e->d_name, names, n, &cap, err);
        if (code != BT_OK) {
            break;
        }
    }
    closedir(d);
    if (code == BT_OK && *n == 0) {
        code = bt_error_set(err, BT_ERR_INPUT, 0, __FILE__, __LINE__,
                            "workload.dir: no NAME-trace.csv in %s", dir);
    }
    if (code != BT_OK) {
        free_names(*names, *n);
        *names = NULL;
        return code;
    }
    qsort(*names, (size_t)*n, sizeof **names, compare_names);
    return BT_OK;
}

static enum bt_code load_clients(struct servegen *s, const char *dir, char **names, int64_t n,
                                 struct bt_error *err)
{
    s->runners = calloc((size_t)n, sizeof *s->runners);
    s->heap = calloc((size_t)n, sizeof *s->heap);
    if (s->runners == NULL || s->heap == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload.dir: no memory for %lld clients", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        s->n_runners = (int32_t)i + 1;
        BT_TRY(bt_client_load(&s->runners[i].client, dir, names[i], err));
    }
    return BT_OK;
}

/* The cut and the factor that brings its mean rate to the one asked for. */
static enum bt_code set_cut(struct servegen *s, const struct bt_workload_spec *spec,
                            struct bt_error *err)
{
    double end_s = 0.0;
    for (int32_t i = 0; i < s->n_runners; i++) {
        const struct bt_client *c = &s->runners[i].client;
        end_s = fmax(end_s, c->windows[c->n_windows - 1].end_s);
    }
    s->from_s = spec->start_s;
    s->to_s = spec->duration_s > 0.0 ? fmin(spec->start_s + spec->duration_s, end_s) : end_s;
    if (s->from_s >= end_s) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "workload.start_s: expected less than the recording's %.15g s, got %.15g", end_s,
                s->from_s);
    }
    s->rate_factor = 1.0;
    double expected = 0.0;
    for (int32_t i = 0; i < s->n_runners; i++) {
        expected += bt_client_expected(&s->runners[i].client, s->from_s, s->to_s);
    }
    if (!(expected > 0.0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "workload.start_s: no client sends anything from second %.15g to %.15g", s->from_s,
                s->to_s);
    }
    if (spec->target_rate_per_s > 0.0) {
        s->rate_factor = spec->target_rate_per_s * (s->to_s - s->from_s) / expected;
    }
    return BT_OK;
}

enum bt_code bt_source_create_servegen(const struct bt_workload_spec *spec, uint64_t seed,
                                       struct bt_source **out, struct bt_error *err)
{
    char **names;
    int64_t n;
    BT_TRY(list_clients(spec->dir, &names, &n, err));
    struct servegen *s = calloc(1, sizeof *s);
    if (s == NULL) {
        free_names(names, n);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "workload: no memory for a source");
    }
    s->base = (struct bt_source){.ops = &servegen_ops, .self = s};
    s->seed = seed;
    s->rate_scale = spec->rate_scale > 0.0 ? spec->rate_scale : 1.0;
    s->n_requests = spec->n_requests;
    s->timeout_ns = bt_ns_of_s(spec->timeout_s);
    enum bt_code code = load_clients(s, spec->dir, names, n, err);
    free_names(names, n);
    if (code == BT_OK) {
        code = set_cut(s, spec, err);
    }
    if (code == BT_OK) {
        code = servegen_rewind(s, err);
    }
    if (code != BT_OK) {
        servegen_destroy(s);
        return code;
    }
    *out = &s->base;
    return BT_OK;
}
