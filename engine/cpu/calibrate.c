#include "engine/cpu/calibrate.h"

#include "engine/cpu/session.h"

#include <stdlib.h>
#include <string.h>

struct bt_cpu_calib {
    struct bt_cpu_samples samples;
    int32_t n_layers, hidden;
    int32_t layer;   /* whose inputs `stats` holds; -1: none yet */
    float *residual; /* owned: [n_samples, sample_tokens, hidden], before `layer` */
    struct bt_calib_stats stats[BT_CALIB_POINTS];
    enum bt_code tap_code; /* of the tap, which cannot return one */
    struct bt_error *tap_err;
};

static size_t sample_floats(const struct bt_cpu_samples *s, int32_t hidden)
{
    return (size_t)s->sample_tokens * (size_t)hidden;
}

static const int32_t *sample_ids(const struct bt_cpu_samples *s, int32_t i)
{
    return s->ids + (size_t)i * (size_t)s->sample_tokens;
}

static enum bt_code check(const struct bt_cpu_samples *s, const struct bt_arch *a,
                          struct bt_error *err)
{
    BT_ASSERT(s->n_samples > 0 && s->sample_tokens > 0);
    if (s->sample_tokens > a->max_position) {
        BT_FAIL(err, BT_ERR_ARG, s->sample_tokens,
                "calibration: samples of %d tokens, but %s has a context of %d", s->sample_tokens,
                a->name, a->max_position);
    }
    return BT_OK;
}

static enum bt_code take_residual(const struct bt_cpu_samples *s, int32_t hidden, float **out,
                                  struct bt_error *err)
{
    *out = calloc((size_t)s->n_samples * sample_floats(s, hidden), sizeof **out);
    if (*out == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory for %d samples of %d tokens",
                s->n_samples, s->sample_tokens);
    }
    return BT_OK;
}

static enum bt_code make_session(const struct bt_model *m, const struct bt_cpu_samples *s,
                                 struct bt_session **out, struct bt_error *err)
{
    struct bt_session_opts o = {.model = m, .max_ctx = s->sample_tokens, .n_threads = s->n_threads};
    return bt_cpu_session_create(&o, out, err);
}

static void tell(const struct bt_cpu_samples *s, double done)
{
    if (s->on_progress != NULL) {
        s->on_progress(s->ctx, done);
    }
}

/* ---- the source ---- */

enum bt_code bt_cpu_calib_create(const struct bt_cpu_samples *samples, const struct bt_arch *arch,
                                 struct bt_cpu_calib **out, struct bt_error *err)
{
    *out = NULL;
    BT_TRY(check(samples, arch, err));
    struct bt_cpu_calib *c = calloc(1, sizeof *c);
    if (c == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory");
    }
    *c = (struct bt_cpu_calib){
        .samples = *samples, .n_layers = arch->n_layers, .hidden = arch->hidden, .layer = -1};
    enum bt_code code = take_residual(samples, arch->hidden, &c->residual, err);
    if (code != BT_OK) {
        bt_cpu_calib_destroy(c);
        return code;
    }
    *out = c;
    return BT_OK;
}

static void drop_stats(struct bt_cpu_calib *c)
{
    for (int32_t p = 0; p < BT_CALIB_POINTS; p++) {
        bt_calib_fini(&c->stats[p]);
    }
}

void bt_cpu_calib_destroy(struct bt_cpu_calib *c)
{
    if (c != NULL) {
        drop_stats(c);
        free(c->residual);
        free(c);
    }
}

static void tap(void *user, int32_t layer, enum bt_calib_point point, const float *x,
                int32_t n_rows, int32_t position)
{
    struct bt_cpu_calib *c = user;
    if (layer == c->layer && c->tap_code == BT_OK && c->stats[point].n_in > 0) {
        c->tap_code = bt_calib_add(&c->stats[point], x, n_rows, position, c->tap_err);
    }
}

/* Runs layers first .. until - 1 over every sample. keep: what comes out is the new residual. */
static enum bt_code pass(struct bt_cpu_calib *c, const struct bt_model *m, int32_t first,
                         int32_t until, bool keep, double done, struct bt_error *err)
{
    const struct bt_cpu_samples *s = &c->samples;
    size_t floats = sample_floats(s, c->hidden);
    float *work = malloc(floats * sizeof *work);
    if (work == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory for a sample");
    }
    struct bt_session *session = NULL;
    enum bt_code code = make_session(m, s, &session, err);
    if (code == BT_OK && !keep) {
        bt_cpu_session_tap(session, tap, c);
    }
    for (int32_t i = 0; i < s->n_samples && code == BT_OK; i++) {
        float *residual = c->residual + (size_t)i * floats;
        memcpy(work, residual, floats * sizeof *work);
        code = bt_cpu_session_layers(session, sample_ids(s, i), s->sample_tokens, first, until,
                                     work, err);
        if (code == BT_OK && keep) {
            memcpy(residual, work, floats * sizeof *work);
        }
        code = code == BT_OK ? c->tap_code : code;
        tell(s, (done + 0.5 * (i + 1) / s->n_samples) / (c->n_layers + 1));
    }
    bt_cpu_session_destroy(session);
    free(work);
    return code;
}

static int32_t point_width(const struct bt_arch *a, enum bt_calib_point point)
{
    switch (point) {
    case BT_CALIB_O_IN:
        return a->n_heads * a->head_dim;
    case BT_CALIB_DOWN_IN:
        return a->intermediate;
    case BT_CALIB_ATTN_IN:
    case BT_CALIB_MLP_IN:
    case BT_CALIB_HEAD_IN:
    case BT_CALIB_POINTS:
        break;
    }
    return a->hidden;
}

/* Goes on to a layer: what lies before it is quantised by now. */
static enum bt_code enter_layer(struct bt_cpu_calib *c, const struct bt_model *m, int32_t layer,
                                bool with_xtx, struct bt_error *err)
{
    int32_t from = c->layer < 0 ? 0 : c->layer;
    drop_stats(c);
    if (layer > from) {
        BT_TRY(pass(c, m, from, layer, true, from + 0.5, err));
    }
    c->layer = layer;
    bool head = layer == c->n_layers;
    for (int32_t p = 0; p < BT_CALIB_POINTS; p++) {
        if ((p == BT_CALIB_HEAD_IN) == head) {
            int32_t width = point_width(&m->config.arch, (enum bt_calib_point)p);
            BT_TRY(bt_calib_init(&c->stats[p], width, with_xtx, err));
        }
    }
    c->tap_err = err;
    return pass(c, m, layer, head ? layer : layer + 1, false, layer, err);
}

static enum bt_code get(void *user, const struct bt_model *m, int32_t layer,
                        enum bt_calib_point point, bool with_xtx, const struct bt_calib_stats **out,
                        struct bt_error *err)
{
    struct bt_cpu_calib *c = user;
    BT_ASSERT(layer >= c->layer && layer <= c->n_layers);
    if (layer > c->layer) {
        BT_TRY(enter_layer(c, m, layer, with_xtx, err));
    }
    *out = &c->stats[point];
    BT_ASSERT((*out)->n_in > 0 && (!with_xtx || (*out)->xtx != NULL));
    return BT_OK;
}

struct bt_calib_source bt_cpu_calib_source(struct bt_cpu_calib *c)
{
    return (struct bt_calib_source){.get = get, .user = c};
}

/* ---- errors of layers ---- */

struct compared {
    struct bt_session *exact, *quantised;
    float *x;     /* [sample]: the exact stream */
    float *y;     /* [sample]: the quantised layer on the exact stream */
    float *own;   /* [sample]: the quantised stream */
    float *input; /* [sample]: the exact stream before the layer */
};

static double squares(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (b == NULL ? 0 : (double)b[i]);
        sum += d * d;
    }
    return sum;
}

struct sums {
    double lost, added, strayed, stream;
};

static enum bt_code compare_sample(struct compared *c, const int32_t *ids, int32_t n,
                                   int32_t n_layers, size_t floats, struct sums *sums,
                                   struct bt_error *err)
{
    size_t bytes = floats * sizeof *c->x;
    for (int32_t l = 0; l < n_layers; l++) {
        if (l == 0) {
            /* The embedding may be quantised too: it belongs to the first layer. */
            memset(c->input, 0, bytes);
        } else {
            memcpy(c->input, c->x, bytes);
        }
        memcpy(c->y, c->x, bytes);
        BT_TRY(bt_cpu_session_layers(c->exact, ids, n, l, l + 1, c->x, err));
        BT_TRY(bt_cpu_session_layers(c->quantised, ids, n, l, l + 1, c->y, err));
        BT_TRY(bt_cpu_session_layers(c->quantised, ids, n, l, l + 1, c->own, err));
        sums[l].lost += squares(c->y, c->x, floats);
        sums[l].added += squares(c->x, c->input, floats);
        sums[l].strayed += squares(c->own, c->x, floats);
        sums[l].stream += squares(c->x, NULL, floats);
    }
    return BT_OK;
}

static enum bt_code compare_all(struct compared *c, const struct bt_model *exact,
                                const struct bt_model *quantised, const struct bt_cpu_samples *s,
                                struct sums *sums, struct bt_error *err)
{
    const struct bt_arch *a = &exact->config.arch;
    size_t floats = sample_floats(s, a->hidden);
    BT_TRY(make_session(exact, s, &c->exact, err));
    BT_TRY(make_session(quantised, s, &c->quantised, err));
    c->x = malloc(4 * floats * sizeof *c->x);
    if (c->x == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory for a sample");
    }
    c->y = c->x + floats;
    c->own = c->y + floats;
    c->input = c->own + floats;
    for (int32_t i = 0; i < s->n_samples; i++) {
        memset(c->x, 0, floats * sizeof *c->x);
        BT_TRY(
            compare_sample(c, sample_ids(s, i), s->sample_tokens, a->n_layers, floats, sums, err));
        tell(s, (double)(i + 1) / s->n_samples);
    }
    return BT_OK;
}

enum bt_code bt_cpu_layer_errors(const struct bt_model *exact, const struct bt_model *quantised,
                                 const struct bt_cpu_samples *samples,
                                 struct bt_cpu_layer_error *out, struct bt_error *err)
{
    int32_t n_layers = exact->config.arch.n_layers;
    BT_ASSERT(quantised->config.arch.n_layers == n_layers);
    BT_ASSERT(quantised->config.arch.hidden == exact->config.arch.hidden);
    BT_TRY(check(samples, &exact->config.arch, err));
    struct sums *sums = calloc((size_t)n_layers, sizeof *sums);
    if (sums == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration: no memory");
    }
    struct compared c = {0};
    enum bt_code code = compare_all(&c, exact, quantised, samples, sums, err);
    for (int32_t l = 0; l < n_layers && code == BT_OK; l++) {
        out[l] = (struct bt_cpu_layer_error){.output = sums[l].lost / sums[l].added,
                                             .stream = sums[l].strayed / sums[l].stream};
    }
    bt_cpu_session_destroy(c.exact);
    bt_cpu_session_destroy(c.quantised);
    free(c.x);
    free(sums);
    return code;
}
