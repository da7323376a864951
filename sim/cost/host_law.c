#include "sim/cost/host_law.h"

#include "engine/core/order.h"
#include "sim/cost/roofline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TERMS = 4,        /* of prefill attention: sequences, KV read, query tokens, pairs */
    GRID_SEQS = 32,   /* numbers of sequences at which decode attention was measured */
    ERRORS_MAX = 512, /* compared by leaving one out */
};

static const double PS_PER_NS = 1000;
/* A product of a shape that was not measured, from the nearest one by its work. */
static const double UNMEASURED_LOG = 0.4054651081081644; /* log 1.5 */

/* One operation over tokens, at fixed other coordinates. */
struct line {
    enum bt_op op;
    struct bt_op_format format;
    int64_t n, k;
    int32_t first, n_points; /* in the sorted samples */
};

struct decode_row {
    int64_t n_seqs;
    int32_t n;
    int64_t ctx[BT_LAW_KNOTS]; /* tokens a sequence, rising */
    double ps[BT_LAW_KNOTS];   /* of all sequences */
};

struct host_law {
    struct bt_law roofline; /* owned */
    bool fused;
    struct bt_cost_sample *samples; /* owned: sorted by line, then by tokens */
    int64_t n_samples;
    struct line *lines; /* owned */
    int32_t n_lines;
    int32_t n_heads, n_kv_heads, head_dim;
    enum bt_num kv;
    int32_t n_decode;
    struct decode_row decode[GRID_SEQS];
    bool has_prefill;
    double prefill_ps[TERMS];
    double line_error, decode_error, prefill_error; /* relative, nine times in ten */
    struct bt_op_origin origins[BT_STEP_OPS];
};

void bt_host_calibration_init(struct bt_host_calibration *h)
{
    *h = (struct bt_host_calibration){.level = BT_TRUST_MEASURED};
    bt_sample_set_init(&h->samples);
}

void bt_host_calibration_fini(struct bt_host_calibration *h)
{
    bt_sample_set_fini(&h->samples);
    *h = (struct bt_host_calibration){0};
}

/* ---- lines ---- */

static int order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int compare_lines(const struct bt_cost_sample *a, const struct bt_cost_sample *b)
{
    int c = order(a->op, b->op);
    c = c != 0 ? c : order(a->format.weights, b->format.weights);
    c = c != 0 ? c : order(a->format.activations, b->format.activations);
    c = c != 0 ? c : order(a->format.kv, b->format.kv);
    c = c != 0 ? c : order(a->shape.n, b->shape.n);
    return c != 0 ? c : order(a->shape.k, b->shape.k);
}

static int compare_samples(const void *x, const void *y)
{
    const struct bt_cost_sample *a = x, *b = y;
    int c = compare_lines(a, b);
    c = c != 0 ? c : order(a->shape.m, b->shape.m);
    c = c != 0 ? c : order(a->shape.batch, b->shape.batch);
    c = c != 0 ? c : order(a->shape.ctx, b->shape.ctx);
    c = c != 0 ? c : order(a->shape.q_len, b->shape.q_len);
    c = c != 0 ? c : order(a->shape.prefix, b->shape.prefix);
    c = c != 0 ? c : order(a->shape.heads, b->shape.heads);
    c = c != 0 ? c : order(a->shape.kv_heads, b->shape.kv_heads);
    c = c != 0 ? c : order(a->shape.head_dim, b->shape.head_dim);
    return c != 0 ? c : order(a->time_ns, b->time_ns);
}

static void find_lines(struct host_law *l)
{
    for (int64_t i = 0; i < l->n_samples; i++) {
        const struct bt_cost_sample *s = &l->samples[i];
        if (i == 0 || compare_lines(s, s - 1) != 0) {
            l->lines[l->n_lines++] = (struct line){.op = s->op,
                                                   .format = s->format,
                                                   .n = s->shape.n,
                                                   .k = s->shape.k,
                                                   .first = (int32_t)i};
        }
        l->lines[l->n_lines - 1].n_points++;
    }
}

/* At m tokens; one point gives a proportion. Beyond the last point the executor works in pieces of
 * so many rows (calibration measures up to one piece). */
static double line_ps(const struct host_law *l, const struct line *t, double m)
{
    const struct bt_cost_sample *s = &l->samples[t->first];
    int32_t n = t->n_points;
    double last = (double)s[n - 1].shape.m;
    if (n == 1) {
        return PS_PER_NS * (double)s[0].time_ns * m / last;
    }
    if (m > last) {
        double pieces = floor(m / last), rest = m - pieces * last;
        double whole_ps = PS_PER_NS * (double)s[n - 1].time_ns * pieces;
        return rest > 0 ? whole_ps + line_ps(l, t, rest) : whole_ps;
    }
    if (m <= (double)s[0].shape.m) {
        return PS_PER_NS * (double)s[0].time_ns;
    }
    int32_t i = 1;
    while (i < n - 1 && (double)s[i].shape.m < m) {
        i++;
    }
    double m0 = (double)s[i - 1].shape.m, m1 = (double)s[i].shape.m;
    double t0 = (double)s[i - 1].time_ns, t1 = (double)s[i].time_ns;
    double at = m1 > m0 ? (m - m0) / (m1 - m0) : 1;
    double ns = t0 + (t1 - t0) * at;
    return PS_PER_NS * (ns > t0 * 0.5 ? ns : t0 * 0.5);
}

static bool same_bits(enum bt_num a, enum bt_num b)
{
    return a == b || (bt_num_is_float(a) && bt_num_is_float(b) && bt_num_bits(a) == bt_num_bits(b));
}

/* The line of an operation; `scale` is what its times are multiplied by. Exact shape and formats,
 * then another float input, cache or 16-bit weight, then the nearest shape by work. NULL: none. */
static const struct line *find_line(const struct host_law *l, enum bt_op op,
                                    const struct bt_op_format *f, int64_t n, int64_t k,
                                    double *scale)
{
    const struct line *best = NULL;
    double best_far = INFINITY;
    for (int32_t i = 0; i < l->n_lines; i++) {
        const struct line *t = &l->lines[i];
        bool inputs = t->format.activations == f->activations ||
                      (bt_num_is_float(t->format.activations) && bt_num_is_float(f->activations));
        if (t->op != op || !same_bits(t->format.weights, f->weights) || !inputs) {
            continue;
        }
        double work = (double)n * (double)(k > 0 ? k : 1);
        double own = (double)t->n * (double)(t->k > 0 ? t->k : 1);
        double far = t->n == n && t->k == k ? 0 : 1 + fabs(log(work / own));
        far += t->format.weights == f->weights ? 0 : 0.5;
        far += t->format.activations == f->activations ? 0 : 0.25;
        far += t->format.kv == f->kv ? 0 : 0.25;
        if (far < best_far) {
            best = t;
            best_far = far;
            *scale = work / own;
        }
    }
    return best;
}

/* ---- errors by leaving one out ---- */

static double p90(double *x, int32_t n)
{
    if (n == 0) {
        return 0;
    }
    qsort(x, (size_t)n, sizeof *x, bt_compare_doubles);
    return x[(n - 1) * 9 / 10];
}

/* Points within products' lines against the lines without them. */
static void find_line_error(struct host_law *l)
{
    double errors[ERRORS_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < l->n_lines; i++) {
        const struct line *t = &l->lines[i];
        const struct bt_cost_sample *s = &l->samples[t->first];
        for (int32_t j = 1; t->op == BT_OP_GEMM && j + 1 < t->n_points && n < ERRORS_MAX; j++) {
            double m0 = (double)s[j - 1].shape.m, m1 = (double)s[j + 1].shape.m;
            double at = ((double)s[j].shape.m - m0) / (m1 - m0);
            double t0 = (double)s[j - 1].time_ns, t1 = (double)s[j + 1].time_ns;
            errors[n++] = fabs((t0 + (t1 - t0) * at) / (double)s[j].time_ns - 1);
        }
    }
    l->line_error = p90(errors, n);
}

/* ---- attention ---- */

static bool is_ours(const struct host_law *l, const struct bt_cost_sample *s, enum bt_op op,
                    enum bt_num kv)
{
    return s->op == op && same_bits(s->format.kv, kv) && s->shape.heads == l->n_heads &&
           s->shape.kv_heads == l->n_kv_heads && s->shape.head_dim == l->head_dim;
}

static enum bt_code add_decode(struct host_law *l, const struct bt_cost_sample *s,
                               struct bt_error *err)
{
    int32_t i = 0;
    while (i < l->n_decode && l->decode[i].n_seqs != s->shape.batch) {
        i++;
    }
    if (i == GRID_SEQS || (i < l->n_decode && l->decode[i].n == BT_LAW_KNOTS)) {
        BT_FAIL(err, BT_ERR_LIMIT, i,
                "calibration of host: decode attention at more than %d numbers of sequences or %d "
                "contexts",
                GRID_SEQS, BT_LAW_KNOTS);
    }
    if (i == l->n_decode) {
        l->decode[l->n_decode++] = (struct decode_row){.n_seqs = s->shape.batch};
    }
    struct decode_row *r = &l->decode[i];
    r->ctx[r->n] = s->shape.ctx; /* samples are sorted: contexts rise within a number */
    r->ps[r->n++] = PS_PER_NS * (double)s->time_ns;
    return BT_OK;
}

static int compare_rows(const void *a, const void *b)
{
    return order(((const struct decode_row *)a)->n_seqs, ((const struct decode_row *)b)->n_seqs);
}

/* A row at a context of its range or beyond, linear. */
static double row_ps(const struct decode_row *r, double ctx)
{
    if (r->n == 1) {
        return r->ps[0];
    }
    int32_t i = 1;
    while (i < r->n - 1 && (double)r->ctx[i] < ctx) {
        i++;
    }
    double at = (ctx - (double)r->ctx[i - 1]) / (double)(r->ctx[i] - r->ctx[i - 1]);
    double ps = r->ps[i - 1] + (r->ps[i] - r->ps[i - 1]) * at;
    return ps > 0 ? ps : 0;
}

/* Decode attention of n sequences at equal contexts: linear in n between rows, in proportion beyond
 * the last. */
static double decode_at(const struct host_law *l, double n, double ctx)
{
    int32_t i = 0;
    while (i < l->n_decode - 1 && (double)l->decode[i].n_seqs < n) {
        i++;
    }
    const struct decode_row *high = &l->decode[i];
    double at_high = row_ps(high, ctx);
    if (i == 0 || n >= (double)high->n_seqs) {
        return at_high * n / (double)high->n_seqs;
    }
    const struct decode_row *low = &l->decode[i - 1];
    double at = (n - (double)low->n_seqs) / (double)(high->n_seqs - low->n_seqs);
    double at_low = row_ps(low, ctx);
    return at_low + (at_high - at_low) * at;
}

/* Solves the normal equations of the terms in use by elimination; false: singular. */
static bool solve(double a[TERMS][TERMS + 1], const bool used[TERMS], double x[TERMS])
{
    for (int32_t c = 0; c < TERMS; c++) {
        if (!used[c]) {
            continue;
        }
        if (!(fabs(a[c][c]) > 1e-12)) {
            return false;
        }
        for (int32_t r = 0; r < TERMS; r++) {
            double f = a[r][c] / a[c][c];
            for (int32_t k = 0; used[r] && r != c && k <= TERMS; k++) {
                a[r][k] -= f * a[c][k];
            }
        }
    }
    for (int32_t c = 0; c < TERMS; c++) {
        x[c] = used[c] ? a[c][TERMS] / a[c][c] : 0;
    }
    return true;
}

static void prefill_terms(double seqs, double ctx, double tokens, double pairs, double t[TERMS])
{
    t[0] = seqs;
    t[1] = ctx;
    t[2] = tokens;
    t[3] = pairs;
}

static void sample_terms(const struct bt_cost_sample *s, double t[TERMS])
{
    bool decode = s->op == BT_OP_ATTN_DECODE;
    double n = (double)s->shape.batch;
    double q = decode ? 1 : (double)s->shape.q_len;
    double prefix = decode ? (double)(s->shape.ctx - 1) : (double)s->shape.prefix;
    prefill_terms(n, n * (prefix + q), n * q, n * (q * prefix + q * (q + 1) / 2), t);
}

/* Least squares of relative errors; a term that comes out negative is left out. Each column is
 * scaled by its size, so that the pivots compare. */
static void fit_prefill(struct host_law *l, const struct bt_cost_sample *const *s, int32_t n)
{
    bool used[TERMS] = {true, true, true, true};
    double x[TERMS] = {0}, size[TERMS] = {0};
    for (int32_t i = 0; i < n; i++) {
        double t[TERMS];
        sample_terms(s[i], t);
        for (int32_t c = 0; c < TERMS; c++) {
            size[c] = fmax(size[c], t[c] / (double)s[i]->time_ns);
        }
    }
    for (int32_t round = 0; round < TERMS; round++) {
        double a[TERMS][TERMS + 1] = {{0}};
        for (int32_t i = 0; i < n; i++) {
            double t[TERMS];
            sample_terms(s[i], t);
            for (int32_t r = 0; r < TERMS; r++) {
                double tr = t[r] / (double)s[i]->time_ns / size[r];
                for (int32_t c = 0; c < TERMS; c++) {
                    a[r][c] += tr * t[c] / (double)s[i]->time_ns / size[c];
                }
                a[r][TERMS] += tr;
            }
        }
        int32_t worst = -1;
        if (!solve(a, used, x)) {
            worst = 0;
            while (worst < TERMS - 1 && !used[worst]) {
                worst++;
            }
        }
        for (int32_t c = 0; c < TERMS; c++) {
            if (used[c] && x[c] < 0 && (worst < 0 || x[c] < x[worst])) {
                worst = c;
            }
        }
        if (worst < 0) {
            break;
        }
        used[worst] = false;
        x[worst] = 0;
    }
    double errors[ERRORS_MAX];
    int32_t n_errors = 0;
    for (int32_t c = 0; c < TERMS; c++) {
        l->prefill_ps[c] = PS_PER_NS * fmax(x[c], 0) / size[c];
    }
    for (int32_t i = 0; i < n && n_errors < ERRORS_MAX; i++) {
        double t[TERMS], ps = 0;
        sample_terms(s[i], t);
        for (int32_t c = 0; c < TERMS; c++) {
            ps += l->prefill_ps[c] * t[c];
        }
        errors[n_errors++] = fabs(ps / PS_PER_NS / (double)s[i]->time_ns - 1);
    }
    l->prefill_error = p90(errors, n_errors);
    l->has_prefill = true;
}

/* Interior contexts of each row against the row without them. */
static void find_decode_error(struct host_law *l)
{
    double errors[ERRORS_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < l->n_decode; i++) {
        const struct decode_row *r = &l->decode[i];
        for (int32_t j = 1; j + 1 < r->n && n < ERRORS_MAX; j++) {
            double at =
                (double)(r->ctx[j] - r->ctx[j - 1]) / (double)(r->ctx[j + 1] - r->ctx[j - 1]);
            double ps = r->ps[j - 1] + (r->ps[j + 1] - r->ps[j - 1]) * at;
            errors[n++] = fabs(ps / r->ps[j] - 1);
        }
    }
    l->decode_error = p90(errors, n);
}

static enum bt_code make_attention(struct host_law *l, enum bt_num kv, struct bt_error *err)
{
    const struct bt_cost_sample **chunks = calloc((size_t)l->n_samples + 1, sizeof(void *));
    if (chunks == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration of host: no memory");
    }
    int32_t n = 0;
    bool has_chunks = false;
    enum bt_code code = BT_OK;
    for (int64_t i = 0; i < l->n_samples && code == BT_OK; i++) {
        const struct bt_cost_sample *s = &l->samples[i];
        bool decode = is_ours(l, s, BT_OP_ATTN_DECODE, kv);
        bool prefill = is_ours(l, s, BT_OP_ATTN_PREFILL, kv);
        if (decode) {
            code = add_decode(l, s, err);
        }
        /* A decode of one sequence is a chunk of one token. */
        if (prefill || (decode && s->shape.batch == 1)) {
            chunks[n++] = s;
            has_chunks = has_chunks || prefill;
        }
    }
    if (code == BT_OK && has_chunks) {
        fit_prefill(l, chunks, n);
    }
    qsort(l->decode, (size_t)l->n_decode, sizeof *l->decode, compare_rows);
    find_decode_error(l);
    free(chunks);
    return code;
}

/* ---- the law ---- */

static double pointwise_of(const struct host_law *l, enum bt_op op, int64_t m, int64_t width,
                           bool *known)
{
    struct bt_op_format f = {.activations = BT_NUM_FP32,
                             .kv = op == BT_OP_KV_WRITE ? l->kv : BT_NUM_NONE};
    double scale = 1;
    const struct line *t = find_line(l, op, &f, width, 0, &scale);
    *known = t != NULL;
    return t == NULL ? 0 : line_ps(l, t, (double)m) * scale;
}

static double gemm_ps(const void *self, const struct bt_law_gemm *g)
{
    const struct host_law *l = self;
    struct bt_op_format f = {.weights = bt_num_from_weight(g->weights),
                             .activations = bt_num_from_act(g->activations)};
    double scale = 1;
    const struct line *t = find_line(l, BT_OP_GEMM, &f, g->n, g->k, &scale);
    double ps = t != NULL ? line_ps(l, t, (double)g->m) * scale
                          : l->roofline.ops->gemm_ps(l->roofline.self, g);
    if (g->op == BT_STEP_GATE_UP && l->fused) {
        bool known = false;
        ps += pointwise_of(l, BT_OP_ACTIVATION, g->m, g->n / 2, &known);
    }
    return ps;
}

static double pointwise_ps(const void *self, enum bt_step_op op, int64_t m, int64_t width,
                           int64_t bytes)
{
    const struct host_law *l = self;
    bool known = false, more = false;
    double ps = 0;
    switch (op) {
    case BT_STEP_EMBED:
        ps = pointwise_of(l, BT_OP_EMBEDDING, m, width, &known);
        break;
    case BT_STEP_NORM:
        ps = pointwise_of(l, BT_OP_NORM, m, width, &known);
        ps += l->fused ? pointwise_of(l, BT_OP_ADD, m, width, &more) : 0;
        break;
    case BT_STEP_ADD:
        ps = pointwise_of(l, BT_OP_ADD, m, width, &known);
        break;
    case BT_STEP_KV_WRITE:
        /* A fused step asks for the traffic's share: with it and without. RoPE is part of it. */
        ps = bytes > 0 ? pointwise_of(l, BT_OP_KV_WRITE, m, width, &known) : 0;
        if (bytes > 0 && l->fused) {
            int64_t qk = (int64_t)(l->n_heads + l->n_kv_heads) * l->head_dim;
            ps += pointwise_of(l, BT_OP_ROPE, m, qk, &more);
        }
        known = known || bytes == 0;
        break;
    case BT_STEP_ROPE:
        ps = pointwise_of(l, BT_OP_ROPE, m, width, &known);
        break;
    case BT_STEP_ACTIVATION:
        ps = pointwise_of(l, BT_OP_ACTIVATION, m, width, &known);
        break;
    case BT_STEP_SAMPLE:
        ps = pointwise_of(l, BT_OP_SAMPLE, m, width, &known);
        break;
    case BT_STEP_QUANTISE: /* part of the products that read it */
    case BT_STEP_QK_NORM:  /* part of RoPE */
        known = l->n_lines > 0;
        break;
    case BT_STEP_QKV:
    case BT_STEP_ATTN_DECODE:
    case BT_STEP_ATTN_PREFILL:
    case BT_STEP_O:
    case BT_STEP_GATE_UP:
    case BT_STEP_DOWN:
    case BT_STEP_ALL_REDUCE:
    case BT_STEP_LM_HEAD:
    case BT_STEP_ALL_GATHER:
    case BT_STEP_MEDUSA:
    case BT_STEP_OPS:
        break;
    }
    return known ? ps : l->roofline.ops->pointwise_ps(l->roofline.self, op, m, width, bytes);
}

static bool decode_curve(const void *self, const struct bt_law_attention *a,
                         struct bt_law_curve *out)
{
    const struct host_law *l = self;
    if (l->n_decode == 0 || a->tokens > a->n_seqs) {
        return false;
    }
    const struct decode_row *widest = &l->decode[0];
    for (int32_t i = 1; i < l->n_decode; i++) {
        widest = l->decode[i].n > widest->n ? &l->decode[i] : widest;
    }
    if (widest->n < 2) {
        return false;
    }
    *out = (struct bt_law_curve){.n = widest->n};
    double before = 0;
    for (int32_t i = 0; i < widest->n; i++) {
        out->ctx[i] = a->n_seqs * widest->ctx[i];
        out->ps[i] = fmax(decode_at(l, (double)a->n_seqs, (double)widest->ctx[i]), before);
        before = out->ps[i];
    }
    return true;
}

/* Several query tokens a sequence are small chunks; else the line through the first and the last
 * measured contexts. */
static void decode_ps(const void *self, const struct bt_law_attention *a, double *fixed_ps,
                      double *per_ctx_ps)
{
    const struct host_law *l = self;
    double n = (double)a->n_seqs;
    if (a->tokens > a->n_seqs && l->has_prefill) {
        double q = (double)a->tokens / n;
        *fixed_ps = l->prefill_ps[0] * n + l->prefill_ps[2] * (double)a->tokens;
        *per_ctx_ps = l->prefill_ps[1] + l->prefill_ps[3] * q;
        return;
    }
    struct bt_law_curve c;
    struct bt_law_attention plain = *a;
    plain.tokens = a->n_seqs;
    if (!decode_curve(l, &plain, &c)) {
        l->roofline.ops->decode_ps(l->roofline.self, a, fixed_ps, per_ctx_ps);
        return;
    }
    double slope = (c.ps[c.n - 1] - c.ps[0]) / (double)(c.ctx[c.n - 1] - c.ctx[0]);
    *per_ctx_ps = slope;
    *fixed_ps = fmax(c.ps[0] - slope * (double)c.ctx[0], 0);
}

static double prefill_ps(const void *self, const struct bt_law_attention *a)
{
    const struct host_law *l = self;
    if (!l->has_prefill) {
        return l->roofline.ops->prefill_ps(l->roofline.self, a);
    }
    double t[TERMS], ps = 0;
    prefill_terms((double)a->n_seqs, (double)a->ctx, (double)a->tokens, (double)a->pairs, t);
    for (int32_t c = 0; c < TERMS; c++) {
        ps += l->prefill_ps[c] * t[c];
    }
    return ps;
}

static double collective_ps(const void *self, enum bt_step_op op, int64_t bytes, int32_t ranks)
{
    const struct host_law *l = self;
    return l->roofline.ops->collective_ps(l->roofline.self, op, bytes, ranks);
}

static void destroy(void *self)
{
    struct host_law *l = self;
    if (l->roofline.ops != NULL) {
        l->roofline.ops->destroy(l->roofline.self);
    }
    free(l->samples);
    free(l->lines);
    free(l);
}

static const struct bt_law_ops host_ops = {
    .name = "host",
    .gemm_ps = gemm_ps,
    .pointwise_ps = pointwise_ps,
    .decode_ps = decode_ps,
    .prefill_ps = prefill_ps,
    .decode_curve = decode_curve,
    .collective_ps = collective_ps,
    .destroy = destroy,
};

/* ---- where times come from ---- */

struct maker {
    const struct bt_host_calibration *h;
    struct host_law *law;
    enum bt_weight_format weights, head_weights;
    enum bt_act_format activations, head_activations;
};

static void note(struct maker *m, enum bt_step_op op, bool known, bool exact, double error)
{
    struct bt_op_origin *o = &m->law->origins[op];
    if (!known) {
        enum bt_weight_format w = op == BT_STEP_LM_HEAD ? m->head_weights : m->weights;
        *o = (struct bt_op_origin){.level = BT_TRUST_ROOFLINE,
                                   .log_error = bt_roofline_log_error(op, w, m->activations)};
        (void)snprintf(o->text, sizeof o->text, "data sheet");
        return;
    }
    *o = (struct bt_op_origin){.source = m->law,
                               .level = exact ? m->h->level
                                              : bt_trust_min(m->h->level, BT_TRUST_TRANSFERRED),
                               .log_error = exact ? log1p(error) : UNMEASURED_LOG};
    (void)snprintf(o->text, sizeof o->text, "%s%s", m->h->text, exact ? "" : ", other shapes");
}

static void note_gemm(struct maker *m, enum bt_step_op op, int64_t n, int64_t k)
{
    bool head = op == BT_STEP_LM_HEAD;
    struct bt_op_format f = {.weights = bt_num_from_weight(head ? m->head_weights : m->weights),
                             .activations =
                                 bt_num_from_act(head ? m->head_activations : m->activations)};
    double scale = 1;
    const struct line *t = find_line(m->law, BT_OP_GEMM, &f, n, k, &scale);
    note(m, op, t != NULL, t != NULL && t->n == n && t->k == k, m->law->line_error);
}

static void note_pointwise(struct maker *m, enum bt_step_op op, enum bt_op measured, int64_t width)
{
    bool known = false;
    (void)pointwise_of(m->law, measured, 1, width, &known);
    note(m, op, known, true, m->law->line_error);
}

static void note_all(struct maker *m, const struct bt_arch *a)
{
    struct bt_arch_shard s = bt_arch_shard(a, 1);
    int64_t h = a->hidden;
    for (int32_t op = 0; op < BT_STEP_OPS; op++) {
        note(m, (enum bt_step_op)op, false, false, 0);
    }
    note_gemm(m, BT_STEP_QKV, s.q_dim + 2 * (int64_t)s.kv_dim, h);
    note_gemm(m, BT_STEP_O, h, s.q_dim);
    note_gemm(m, BT_STEP_GATE_UP, (a->mlp_gated ? 2 : 1) * (int64_t)s.intermediate, h);
    note_gemm(m, BT_STEP_DOWN, h, s.intermediate);
    note_gemm(m, BT_STEP_LM_HEAD, s.vocab, h);
    note_gemm(m, BT_STEP_MEDUSA, h, h);
    note_pointwise(m, BT_STEP_EMBED, BT_OP_EMBEDDING, h);
    note_pointwise(m, BT_STEP_NORM, BT_OP_NORM, h);
    note_pointwise(m, BT_STEP_ADD, BT_OP_ADD, h);
    note_pointwise(m, BT_STEP_QUANTISE, BT_OP_NORM, h);
    note_pointwise(m, BT_STEP_QK_NORM, BT_OP_ROPE, s.q_dim + s.kv_dim);
    note_pointwise(m, BT_STEP_ROPE, BT_OP_ROPE, s.q_dim + s.kv_dim);
    note_pointwise(m, BT_STEP_KV_WRITE, BT_OP_KV_WRITE, 2 * (int64_t)s.kv_dim);
    note_pointwise(m, BT_STEP_ACTIVATION, BT_OP_ACTIVATION, s.intermediate);
    note_pointwise(m, BT_STEP_SAMPLE, BT_OP_SAMPLE, s.vocab);
    note(m, BT_STEP_ATTN_DECODE, m->law->n_decode > 0, true, m->law->decode_error);
    note(m, BT_STEP_ATTN_PREFILL, m->law->has_prefill, true, m->law->prefill_error);
}

static bool same_place(const struct bt_cost_sample *a, const struct bt_cost_sample *b)
{
    const struct bt_op_shape *x = &a->shape, *y = &b->shape;
    return compare_lines(a, b) == 0 && x->m == y->m && x->batch == y->batch && x->ctx == y->ctx &&
           x->q_len == y->q_len && x->prefix == y->prefix && x->heads == y->heads &&
           x->kv_heads == y->kv_heads && x->head_dim == y->head_dim;
}

/* Sorted samples of one place (two models that share a shape) become one, their mean. */
static int64_t merge(struct bt_cost_sample *s, int64_t n)
{
    int64_t n_out = 0;
    for (int64_t i = 0; i < n;) {
        int64_t j = i;
        double sum = 0;
        while (j < n && same_place(&s[i], &s[j])) {
            sum += (double)s[j++].time_ns;
        }
        s[n_out] = s[i];
        s[n_out++].time_ns = (int64_t)(sum / (double)(j - i) + 0.5);
        i = j;
    }
    return n_out;
}

static enum bt_code take_samples(struct host_law *l, const struct bt_sample_set *set,
                                 struct bt_error *err)
{
    size_t n = (size_t)set->n_samples;
    l->samples = calloc(n + 1, sizeof *l->samples);
    l->lines = calloc(n + 1, sizeof *l->lines);
    if (l->samples == NULL || l->lines == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, set->n_samples,
                "calibration of host: no memory for %lld samples", (long long)set->n_samples);
    }
    if (n > 0) {
        memcpy(l->samples, set->samples, n * sizeof *l->samples);
        qsort(l->samples, n, sizeof *l->samples, compare_samples);
    }
    l->n_samples = merge(l->samples, set->n_samples);
    find_lines(l);
    find_line_error(l);
    return BT_OK;
}

enum bt_code bt_host_law_create(const struct bt_host_calibration *h, const struct bt_gpu *gpu,
                                const struct bt_step_model *model, bool fused, struct bt_law *out,
                                struct bt_error *err)
{
    *out = (struct bt_law){0};
    struct host_law *l = calloc(1, sizeof *l);
    if (l == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibration of host: no memory");
    }
    const struct bt_arch *a = model->arch;
    l->fused = fused;
    l->n_heads = a->n_heads;
    l->n_kv_heads = a->n_kv_heads;
    l->head_dim = a->head_dim;
    l->kv = bt_num_from_kv(bt_kv_format_resolve(model->kv, a));
    enum bt_code code = bt_roofline_law_create(gpu, &l->roofline, err);
    code = code == BT_OK ? take_samples(l, &h->samples, err) : code;
    code = code == BT_OK ? make_attention(l, l->kv, err) : code;
    if (code != BT_OK) {
        destroy(l);
        return code;
    }
    enum bt_weight_format w = bt_weight_format_resolve(model->weights, a);
    enum bt_act_format act = bt_act_format_resolve(model->activations, a);
    struct maker m = {
        .h = h,
        .law = l,
        .weights = w,
        .head_weights = model->quantise_lm_head || w == BT_WEIGHT_FP32 ? w : BT_WEIGHT_FP16,
        .activations = act,
        .head_activations = bt_act_format_bits(act) == 8 ? BT_ACT_FP16 : act,
    };
    note_all(&m, a);
    *out = (struct bt_law){.ops = &host_ops, .self = l};
    return BT_OK;
}

const struct bt_op_origin *bt_host_law_origins(const struct bt_law *law)
{
    BT_ASSERT(law->ops == &host_ops);
    return ((const struct host_law *)law->self)->origins;
}

/* ---- the cost model ---- */

/* Time beside the operations: base + each x sequences, least squares of relative errors. */
static void fit_host(const struct bt_sample_set *set, int64_t *base_ns, int64_t *each_ns)
{
    double s0 = 0, s1 = 0, s2 = 0, t0 = 0, t1 = 0;
    for (int64_t i = 0; i < set->n_samples; i++) {
        const struct bt_cost_sample *s = &set->samples[i];
        if (s->op != BT_OP_HOST) {
            continue;
        }
        double w = 1 / (double)s->time_ns;
        double m = (double)s->shape.m;
        s0 += w * w;
        s1 += w * w * m;
        s2 += w * w * m * m;
        t0 += w;
        t1 += w * m;
    }
    double det = s0 * s2 - s1 * s1;
    double each = det > 1e-9 * s0 * s2 ? (s0 * t1 - s1 * t0) / det : 0;
    each = fmax(each, 0);
    double base = s0 > 0 ? (t0 - each * s1) / s0 : 0;
    *base_ns = (int64_t)(fmax(base, 0) + 0.5);
    *each_ns = (int64_t)(each + 0.5);
}

enum bt_code bt_host_cost_create(const struct bt_host_calibration *h,
                                 const struct bt_step_opts *opts, struct bt_cost *out,
                                 struct bt_error *err)
{
    *out = (struct bt_cost){0};
    struct bt_step_opts o = *opts;
    BT_TRY(bt_roofline_check_units(&o, err));
    o.graph_node_ps = -1; /* no kernels are launched */
    o.launch_ps = -1;
    fit_host(&h->samples, &o.host_base_ns, &o.host_per_seq_ns);
    o.host_base_ns = o.host_base_ns > 0 ? o.host_base_ns : -1;
    o.host_per_seq_ns = o.host_per_seq_ns > 0 ? o.host_per_seq_ns : -1;
    if (!(o.peak_flops_per_s > 0)) {
        o.peak_flops_per_s = bt_roofline_peak(&o);
    }
    struct bt_law law = {0}, draft = {0};
    BT_TRY(bt_host_law_create(h, o.gpu, &o.target, o.fused, &law, err));
    bool has_draft = o.spec == BT_SPEC_DRAFT;
    if (has_draft) {
        enum bt_code code = bt_host_law_create(h, o.gpu, &o.draft, o.fused, &draft, err);
        if (code != BT_OK) {
            law.ops->destroy(law.self);
            return code;
        }
    }
    const struct bt_op_origin *target = bt_host_law_origins(&law);
    const struct bt_op_origin *of_draft = has_draft ? bt_host_law_origins(&draft) : NULL;
    BT_TRY(bt_step_cost_create(&o, law, draft, out, err));
    bt_step_trust_fill(out, target, of_draft, o.max_seqs, o.spec == BT_SPEC_NONE ? 0 : o.spec_k);
    return BT_OK;
}
