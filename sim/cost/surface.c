#include "sim/cost/surface.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The shape as the grid's coordinates, main one first. Returns how many; rises marks work. */
static int32_t coordinates(enum bt_op op, const struct bt_op_shape *s,
                           double at[BT_LATTICE_AXES_MAX], bool rises[BT_LATTICE_AXES_MAX])
{
    memset(rises, 0, BT_LATTICE_AXES_MAX * sizeof *rises);
    rises[0] = true;
    switch (op) {
    case BT_OP_GEMM:
        at[0] = (double)s->m;
        at[1] = (double)s->n;
        at[2] = (double)s->k;
        return 3;
    case BT_OP_ATTN_PREFILL:
    case BT_OP_ATTN_DECODE:
        at[0] = (double)(op == BT_OP_ATTN_PREFILL ? s->q_len : s->ctx);
        at[1] = (double)s->batch;
        at[2] = (double)s->kv_heads;
        at[3] = (double)s->heads / (double)s->kv_heads;
        rises[1] = true;
        return 4;
    case BT_OP_ATTN_MIXED:
        at[0] = (double)s->ctx;
        at[1] = (double)s->q_len;
        at[2] = (double)s->prefix;
        at[3] = (double)s->batch;
        rises[1] = true;
        rises[2] = true;
        rises[3] = true;
        return 4;
    case BT_OP_ALLREDUCE:
    case BT_OP_ALLGATHER:
    case BT_OP_REDUCESCATTER:
    case BT_OP_ALLTOALL:
        at[0] = (double)s->bytes;
        at[1] = (double)s->ranks;
        return 2;
    case BT_OP_QUANTIZE:
    case BT_OP_NORM:
    case BT_OP_ACTIVATION:
    case BT_OP_ROPE:
    case BT_OP_ADD:
    case BT_OP_EMBEDDING:
    case BT_OP_KV_WRITE:
    case BT_OP_SAMPLE:
        at[0] = (double)s->m;
        at[1] = (double)s->n;
        return 2;
    case BT_OP_HOST:
        at[0] = (double)s->m;
        return 1;
    case BT_OPS:
        break;
    }
    BT_ASSERT(!"operation");
    return 0;
}

int64_t *bt_op_main_coordinate(enum bt_op op, struct bt_op_shape *s)
{
    switch (op) {
    case BT_OP_ATTN_PREFILL:
        return &s->q_len;
    case BT_OP_ATTN_DECODE:
    case BT_OP_ATTN_MIXED:
        return &s->ctx;
    case BT_OP_ALLREDUCE:
    case BT_OP_ALLGATHER:
    case BT_OP_REDUCESCATTER:
    case BT_OP_ALLTOALL:
        return &s->bytes;
    case BT_OP_GEMM:
    case BT_OP_QUANTIZE:
    case BT_OP_NORM:
    case BT_OP_ACTIVATION:
    case BT_OP_ROPE:
    case BT_OP_ADD:
    case BT_OP_EMBEDDING:
    case BT_OP_KV_WRITE:
    case BT_OP_SAMPLE:
    case BT_OP_HOST:
    case BT_OPS:
        break;
    }
    return &s->m;
}

static bool is_collective(enum bt_op op)
{
    return op == BT_OP_ALLREDUCE || op == BT_OP_ALLGATHER || op == BT_OP_REDUCESCATTER ||
           op == BT_OP_ALLTOALL;
}

static int compare_int(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int compare_keys(const struct bt_cost_sample *a, const struct bt_cost_sample *b)
{
    int c = compare_int(a->op, b->op);
    c = c != 0 ? c : compare_int(a->format.weights, b->format.weights);
    c = c != 0 ? c : compare_int(a->format.activations, b->format.activations);
    c = c != 0 ? c : compare_int(a->format.kv, b->format.kv);
    c = c != 0 ? c : strcmp(a->gpu, b->gpu);
    c = c != 0 ? c : strcmp(a->stack, b->stack);
    c = c != 0 ? c : strcmp(a->version, b->version);
    c = c != 0 ? c : compare_int(a->shape.head_dim, b->shape.head_dim);
    if (c == 0 && is_collective(a->op)) {
        c = strcmp(a->kernel, b->kernel);
    }
    if (c == 0 && a->op == BT_OP_ATTN_MIXED) {
        c = compare_int(a->shape.heads, b->shape.heads);
        c = c != 0 ? c : compare_int(a->shape.kv_heads, b->shape.kv_heads);
    }
    return c;
}

bool bt_surface_same(const struct bt_cost_sample *a, const struct bt_cost_sample *b)
{
    return compare_keys(a, b) == 0;
}

double bt_two_term_ns(const struct bt_two_term *law, struct bt_op_work work)
{
    return law->fixed_ns + work.bytes * law->ns_per_byte + work.flops * law->ns_per_flop;
}

/* Solves the n x n normal equations by Gauss with pivots; false when singular. */
static bool solve(double a[3][4], int32_t n, double *x)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t pivot = i;
        for (int32_t r = i + 1; r < n; r++) {
            pivot = fabs(a[r][i]) > fabs(a[pivot][i]) ? r : pivot;
        }
        for (int32_t c = 0; c < 4; c++) {
            double swap = a[i][c];
            a[i][c] = a[pivot][c];
            a[pivot][c] = swap;
        }
        if (fabs(a[i][i]) < 1e-9) {
            return false;
        }
        for (int32_t r = 0; r < n; r++) {
            double f = r == i ? 0 : a[r][i] / a[i][i];
            for (int32_t c = i; r != i && c < 4; c++) {
                a[r][c] -= f * a[i][c];
            }
        }
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] = a[i][3] / a[i][i];
    }
    return true;
}

/* Least squares of 1 - law/t with non-negative terms: the best of the seven sets of terms. Columns
 * are scaled to unit length first, so that the pivots' limit means the same for each. */
static struct bt_two_term fit_law(const struct bt_cost_sample *samples, int64_t n)
{
    double ata[3][3] = {{0}};
    double atb[3] = {0};
    for (int64_t i = 0; i < n; i++) {
        struct bt_op_work w = bt_op_work(samples[i].op, &samples[i].format, &samples[i].shape);
        double t = (double)samples[i].time_ns;
        double row[3] = {1 / t, w.bytes / t, w.flops / t};
        for (int32_t r = 0; r < 3; r++) {
            atb[r] += row[r];
            for (int32_t c = 0; c < 3; c++) {
                ata[r][c] += row[r] * row[c];
            }
        }
    }
    double best[3] = {0};
    double best_gain = 0; /* squares explained */
    for (int32_t terms = 1; terms < 8; terms++) {
        double a[3][4] = {{0}};
        int32_t which[3];
        int32_t k = 0;
        bool usable = true;
        for (int32_t t = 0; t < 3; t++) {
            if ((terms >> t & 1) != 0) {
                which[k++] = t;
                usable = usable && ata[t][t] > 0;
            }
        }
        for (int32_t r = 0; usable && r < k; r++) {
            for (int32_t c = 0; c < k; c++) {
                a[r][c] = ata[which[r]][which[c]] /
                          sqrt(ata[which[r]][which[r]] * ata[which[c]][which[c]]);
            }
            a[r][3] = atb[which[r]] / sqrt(ata[which[r]][which[r]]);
        }
        double x[3] = {0};
        usable = usable && solve(a, k, x);
        double gain = 0;
        for (int32_t r = 0; usable && r < k; r++) {
            usable = x[r] >= 0;
            gain += x[r] * atb[which[r]] / sqrt(ata[which[r]][which[r]]);
        }
        if (usable && gain > best_gain) {
            best_gain = gain;
            memset(best, 0, sizeof best);
            for (int32_t r = 0; r < k; r++) {
                best[which[r]] = x[r] / sqrt(ata[which[r]][which[r]]);
            }
        }
    }
    return (struct bt_two_term){best[0], best[1], best[2]};
}

struct interval {
    double low, high; /* bytes */
    double excess;    /* growth of the logarithm of time beyond that of bytes */
};

static int compare_excess(const void *a, const void *b)
{
    double x = ((const struct interval *)a)->excess;
    double y = ((const struct interval *)b)->excess;
    return (x > y) - (x < y);
}

static int compare_lines(const void *a, const void *b)
{
    const struct bt_cost_sample *x = *(const struct bt_cost_sample *const *)a;
    const struct bt_cost_sample *y = *(const struct bt_cost_sample *const *)b;
    int c = compare_int(x->shape.batch, y->shape.batch);
    c = c != 0 ? c : compare_int(x->shape.kv_heads, y->shape.kv_heads);
    c = c != 0 ? c : compare_int(x->shape.heads, y->shape.heads);
    return c != 0 ? c : compare_int(x->shape.ctx, y->shape.ctx);
}

/* Steps from one context to the next of every line of a decode surface. Returns how many. */
static int64_t collect_intervals(const struct bt_cost_sample *samples, int64_t n,
                                 const struct bt_cost_sample **order, struct interval *out)
{
    for (int64_t i = 0; i < n; i++) {
        order[i] = &samples[i];
    }
    qsort(order, (size_t)n, sizeof *order, compare_lines);
    int64_t found = 0;
    for (int64_t i = 1; i < n; i++) {
        const struct bt_cost_sample *a = order[i - 1];
        const struct bt_cost_sample *b = order[i];
        if (a->shape.batch != b->shape.batch || a->shape.kv_heads != b->shape.kv_heads ||
            a->shape.heads != b->shape.heads || a->shape.ctx == b->shape.ctx) {
            continue;
        }
        struct interval v = {
            .low = bt_op_work(a->op, &a->format, &a->shape).bytes,
            .high = bt_op_work(b->op, &b->format, &b->shape).bytes,
        };
        v.excess = log((double)b->time_ns / (double)a->time_ns) - log(v.high / v.low);
        out[found++] = v;
    }
    return found;
}

/* A decode step may not grow faster than its bytes, but for a cache that it outgrows: where most
 * lines do so at one number of bytes, and each by a good part, that is a step. */
static enum bt_code find_step(const struct bt_cost_sample *samples, int64_t n,
                              struct bt_surface_step *out, struct bt_error *err)
{
    enum { LINES_MIN = 8 };
    const double excess_min = 0.2;
    const double share_min = 0.6;
    *out = (struct bt_surface_step){0};
    struct interval *v = malloc((size_t)n * sizeof *v);
    const struct bt_cost_sample **order = malloc((size_t)n * sizeof *order);
    if (v == NULL || order == NULL) {
        free(v);
        free((void *)order);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "surface: no memory for %lld intervals", (long long)n);
    }
    int64_t n_intervals = collect_intervals(samples, n, order, v);
    free((void *)order);
    double best_bytes = 0;
    int64_t best_jumps = 0;
    for (int64_t i = 0; i < n_intervals; i++) {
        if (v[i].excess < excess_min) {
            continue;
        }
        double bytes = sqrt(v[i].low * v[i].high);
        int64_t jumps = 0;
        int64_t across = 0;
        for (int64_t j = 0; j < n_intervals; j++) {
            bool spans = v[j].low <= bytes && bytes < v[j].high;
            across += spans;
            jumps += spans && v[j].excess >= excess_min;
        }
        if (jumps > best_jumps && (double)jumps >= share_min * (double)across) {
            best_jumps = jumps;
            best_bytes = bytes;
        }
    }
    if (best_jumps >= LINES_MIN) {
        int64_t kept = 0;
        for (int64_t j = 0; j < n_intervals; j++) {
            if (v[j].low <= best_bytes && best_bytes < v[j].high) {
                v[kept++] = v[j];
            }
        }
        qsort(v, (size_t)kept, sizeof *v, compare_excess);
        out->bytes = best_bytes;
        out->log_jump = fmax(v[kept / 2].excess, 0);
    }
    free(v);
    return BT_OK;
}

static double step_of(const struct bt_surface *s, struct bt_op_work work)
{
    return s->step.bytes > 0 && work.bytes > s->step.bytes ? s->step.log_jump : 0;
}

struct bt_op_shape bt_surface_shape(const struct bt_surface *s,
                                    const int64_t at[BT_LATTICE_AXES_MAX])
{
    struct bt_op_shape shape = {
        .head_dim = s->head_dim, .heads = s->heads, .kv_heads = s->kv_heads};
    switch (s->op) {
    case BT_OP_GEMM:
        shape.m = at[0];
        shape.n = at[1];
        shape.k = at[2];
        break;
    case BT_OP_ATTN_PREFILL:
    case BT_OP_ATTN_DECODE:
        *bt_op_main_coordinate(s->op, &shape) = at[0];
        shape.batch = at[1];
        shape.kv_heads = at[2];
        shape.heads = at[2] * at[3];
        break;
    case BT_OP_ATTN_MIXED:
        shape.ctx = at[0];
        shape.q_len = at[1];
        shape.prefix = at[2];
        shape.batch = at[3];
        break;
    case BT_OP_ALLREDUCE:
    case BT_OP_ALLGATHER:
    case BT_OP_REDUCESCATTER:
    case BT_OP_ALLTOALL:
        shape.bytes = at[0];
        shape.ranks = at[1];
        break;
    case BT_OP_QUANTIZE:
    case BT_OP_NORM:
    case BT_OP_ACTIVATION:
    case BT_OP_ROPE:
    case BT_OP_ADD:
    case BT_OP_EMBEDDING:
    case BT_OP_KV_WRITE:
    case BT_OP_SAMPLE:
    case BT_OP_HOST:
    case BT_OPS:
        shape.m = at[0];
        shape.n = at[1];
        break;
    }
    return shape;
}

/* Work of the shape at real grid coordinates; head counts are whole though their ratio may not be.
 */
static struct bt_op_work work_at(const struct bt_surface *s, const double at[BT_LATTICE_AXES_MAX])
{
    int64_t whole[BT_LATTICE_AXES_MAX];
    for (int32_t a = 0; a < BT_LATTICE_AXES_MAX; a++) {
        whole[a] = (int64_t)at[a];
    }
    struct bt_op_shape shape = bt_surface_shape(s, whole);
    if (s->op == BT_OP_ATTN_PREFILL || s->op == BT_OP_ATTN_DECODE) {
        shape.heads = (int64_t)llround(at[2] * at[3]);
    }
    return bt_op_work(s->op, &s->format, &shape);
}

static double prior(const double at[BT_LATTICE_AXES_MAX], const void *context)
{
    const struct bt_surface *s = context;
    return log(fmax(bt_two_term_ns(&s->law, work_at(s, at)), 1));
}

static void copy_name(char *out, size_t bytes, const char *text)
{
    size_t length = strlen(text);
    length = length < bytes ? length : bytes - 1;
    memcpy(out, text, length);
    out[length] = '\0';
}

static void describe(struct bt_surface *s, const struct bt_cost_sample *sample, int64_t n)
{
    s->op = sample->op;
    s->format = sample->format;
    s->head_dim = sample->shape.head_dim;
    if (s->op == BT_OP_ATTN_MIXED) {
        s->heads = sample->shape.heads;
        s->kv_heads = sample->shape.kv_heads;
    }
    s->n_samples = n;
    copy_name(s->gpu, sizeof s->gpu, sample->gpu);
    copy_name(s->stack, sizeof s->stack, sample->stack);
    copy_name(s->version, sizeof s->version, sample->version);
    copy_name(s->kernel, sizeof s->kernel, sample->kernel);
    copy_name(s->source, sizeof s->source, sample->source);
    copy_name(s->licence, sizeof s->licence, sample->licence);
}

static enum bt_code build(struct bt_surface *s, const struct bt_cost_sample *samples, int64_t n,
                          struct bt_error *err)
{
    describe(s, &samples[0], n);
    s->law = fit_law(samples, n);
    if (s->op == BT_OP_ATTN_DECODE) {
        BT_TRY(find_step(samples, n, &s->step, err));
    }
    struct bt_lattice_point *points = malloc((size_t)n * sizeof *points);
    if (points == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "surface: no memory for %lld points", (long long)n);
    }
    struct bt_lattice_opts opts = {.prior = prior, .prior_context = s};
    for (int64_t i = 0; i < n; i++) {
        double at[BT_LATTICE_AXES_MAX] = {0};
        BT_ASSERT(bt_surface_same(&samples[0], &samples[i]));
        opts.n_axes = coordinates(s->op, &samples[i].shape, at, opts.rises);
        for (int32_t a = 0; a < BT_LATTICE_AXES_MAX; a++) {
            points[i].at[a] = (int64_t)at[a];
        }
        points[i].log_value = log((double)samples[i].time_ns) -
                              step_of(s, bt_op_work(s->op, &s->format, &samples[i].shape));
    }
    enum bt_code code = bt_lattice_init(&s->grid, points, n, &opts, err);
    free(points);
    if (code == BT_OK) {
        s->floor_ns = s->law.fixed_ns;
        for (int64_t i = 0; i < s->grid.n_nodes; i++) {
            s->floor_ns = fmin(s->floor_ns, exp(s->grid.value[i]));
        }
    }
    return code;
}

enum bt_code bt_surface_create(const struct bt_cost_sample *samples, int64_t n,
                               struct bt_surface **out, struct bt_error *err)
{
    BT_ASSERT(n >= 1);
    *out = NULL;
    struct bt_surface *s = calloc(1, sizeof *s);
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "surface: no memory");
    }
    enum bt_code code = build(s, samples, n, err);
    if (code != BT_OK) {
        bt_surface_destroy(s);
        return code;
    }
    *out = s;
    return BT_OK;
}

void bt_surface_destroy(struct bt_surface *s)
{
    if (s != NULL) {
        bt_lattice_fini(&s->grid);
        free(s);
    }
}

static double smallest_positive(const struct bt_lattice *g, int32_t axis)
{
    return (double)(g->at[axis][0] > 0 || g->side[axis] == 1 ? g->at[axis][0] : g->at[axis][1]);
}

/* Mixed attention without decodes lives in the plane ctx = 0, without a chunk in prefix = 0. */
static void settle_mixed(const struct bt_lattice *g, double at[BT_LATTICE_AXES_MAX])
{
    if (at[3] <= 0) {
        at[0] = 0;
        at[1] = fmax(at[1], smallest_positive(g, 1));
    } else {
        at[0] = fmax(at[0], smallest_positive(g, 0));
    }
    if (at[1] <= 0) {
        at[2] = 0;
    }
}

static double law_work(const struct bt_surface *s, const double at[BT_LATTICE_AXES_MAX])
{
    return bt_two_term_ns(&s->law, work_at(s, at)) - s->law.fixed_ns;
}

/* Beyond the grid, from the time at its edge: the fixed part stays, the rest grows (or, for shapes
 * narrower than any measured, shrinks) as the law's work does. A shape's share is taken at the
 * largest measured work, so that it is one number and time still rises with work. */
static double carry_on(const struct bt_surface *s, const bool rises[BT_LATTICE_AXES_MAX],
                       const double at[BT_LATTICE_AXES_MAX], const double edge[BT_LATTICE_AXES_MAX],
                       double edge_ns)
{
    const struct bt_lattice *g = &s->grid;
    double shape[BT_LATTICE_AXES_MAX] = {0};
    double edge_shape[BT_LATTICE_AXES_MAX] = {0};
    double grown[BT_LATTICE_AXES_MAX] = {0};
    for (int32_t a = 0; a < g->n_axes; a++) {
        double top = (double)g->at[a][g->side[a] - 1];
        shape[a] = rises[a] ? top : at[a];
        edge_shape[a] = rises[a] ? top : edge[a];
        grown[a] = rises[a] ? at[a] : edge[a];
    }
    double share = 1;
    if (law_work(s, edge_shape) > 0 && law_work(s, edge) > 0) {
        share =
            law_work(s, shape) / law_work(s, edge_shape) * law_work(s, grown) / law_work(s, edge);
    }
    return s->floor_ns + (edge_ns - s->floor_ns) * share;
}

static double prefill_pairs(double q, double prefix)
{
    return q * prefix + q * (q + 1) / 2;
}

struct bt_surface_point bt_surface_eval(const struct bt_surface *s, const struct bt_op_shape *shape)
{
    double at[BT_LATTICE_AXES_MAX] = {0};
    double clamped[BT_LATTICE_AXES_MAX] = {0};
    bool rises[BT_LATTICE_AXES_MAX];
    (void)coordinates(s->op, shape, at, rises);
    struct bt_surface_point p = {.inside = true};
    if (s->op == BT_OP_ATTN_MIXED) {
        settle_mixed(&s->grid, at);
    }
    double share = 1;
    if (s->op == BT_OP_ATTN_PREFILL && shape->prefix > 0) {
        struct bt_op_shape alone = *shape;
        alone.prefix = 0;
        double floor_ns = bt_surface_eval(s, &alone).time_ns;
        at[0] += (double)shape->prefix;
        share =
            prefill_pairs((double)shape->q_len, (double)shape->prefix) / prefill_pairs(at[0], 0);
        p.derived = true;
        p.time_ns = floor_ns;
    }
    double log_ns = bt_lattice_eval(&s->grid, at, clamped);
    struct bt_op_work here = work_at(s, at);
    for (int32_t a = 0; a < s->grid.n_axes; a++) {
        p.inside = p.inside && clamped[a] == at[a];
    }
    double ns = exp(log_ns);
    if (!p.inside) {
        ns = carry_on(s, rises, at, clamped, ns);
    }
    p.time_ns = fmax(p.time_ns, share * ns * exp(step_of(s, here)));
    return p;
}

static int compare_key_pointers(const void *a, const void *b)
{
    const struct bt_cost_sample *x = a;
    const struct bt_cost_sample *y = b;
    int c = compare_keys(x, y);
    return c != 0 ? c : compare_int(x->line, y->line);
}

enum bt_code bt_surface_set_init(struct bt_surface_set *s, struct bt_sample_set *samples,
                                 struct bt_error *err)
{
    memset(s, 0, sizeof *s);
    int64_t n = samples->n_samples;
    if (n == 0) {
        return BT_OK;
    }
    qsort(samples->samples, (size_t)n, sizeof *samples->samples, compare_key_pointers);
    int32_t groups = 1;
    for (int64_t i = 1; i < n; i++) {
        groups += !bt_surface_same(&samples->samples[i - 1], &samples->samples[i]);
    }
    s->surfaces = calloc((size_t)groups, sizeof *s->surfaces);
    if (s->surfaces == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "surface: no memory for %d surfaces", groups);
    }
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        while (end < n && bt_surface_same(&samples->samples[i], &samples->samples[end])) {
            end++;
        }
        enum bt_code code =
            bt_surface_create(samples->samples + i, end - i, &s->surfaces[s->n_surfaces], err);
        if (code != BT_OK) {
            bt_surface_set_fini(s);
            return code;
        }
        s->n_surfaces++;
        i = end;
    }
    return BT_OK;
}

void bt_surface_set_fini(struct bt_surface_set *s)
{
    for (int32_t i = 0; i < s->n_surfaces; i++) {
        bt_surface_destroy(s->surfaces[i]);
    }
    free(s->surfaces);
    memset(s, 0, sizeof *s);
}

/* 2: the same; 1: stands in; 0: another thing. */
static int32_t format_fit(enum bt_num wanted, enum bt_num have)
{
    if (wanted == have) {
        return 2;
    }
    bool wanted_16 = wanted == BT_NUM_FP16 || wanted == BT_NUM_BF16;
    bool have_16 = have == BT_NUM_FP16 || have == BT_NUM_BF16;
    return (wanted_16 && have_16) || (bt_num_is_int4(wanted) && bt_num_is_int4(have)) ||
           (bt_num_is_int8(wanted) && bt_num_is_int8(have));
}

static int32_t formats_fit(const struct bt_op_format *wanted, const struct bt_op_format *have)
{
    int32_t w = format_fit(wanted->weights, have->weights);
    int32_t a = format_fit(wanted->activations, have->activations);
    int32_t kv = format_fit(wanted->kv, have->kv);
    int32_t least = w < a ? w : a;
    return least < kv ? least : kv;
}

static bool spans_heads(const struct bt_surface *s, const struct bt_surface_query *q)
{
    if (s->op == BT_OP_ATTN_MIXED) {
        return s->heads == q->heads && s->kv_heads == q->kv_heads;
    }
    if (s->op != BT_OP_ATTN_PREFILL && s->op != BT_OP_ATTN_DECODE) {
        return true;
    }
    const struct bt_lattice *g = &s->grid;
    double group = (double)q->heads / (double)(q->kv_heads > 0 ? q->kv_heads : 1);
    return q->kv_heads >= g->at[2][0] && q->kv_heads <= g->at[2][g->side[2] - 1] &&
           group >= (double)g->at[3][0] && group <= (double)g->at[3][g->side[3] - 1];
}

/* Distance of versions by their first two numbers ("0.19.0", "1.2.0rc5"); newest when none is
 * asked for. */
static double version_distance(const char *wanted, const char *have)
{
    double numbers[2][2] = {{0}};
    const char *texts[2] = {wanted == NULL ? "" : wanted, have};
    for (int32_t i = 0; i < 2; i++) {
        char *end = NULL;
        numbers[i][0] = (double)strtol(texts[i], &end, 10);
        numbers[i][1] = *end == '.' ? (double)strtol(end + 1, NULL, 10) : 0;
    }
    double have_value = numbers[1][0] * 1000 + numbers[1][1];
    double wanted_value = numbers[0][0] * 1000 + numbers[0][1];
    return wanted == NULL ? -have_value : fabs(have_value - wanted_value);
}

struct bt_surface_match bt_surface_set_find(const struct bt_surface_set *s,
                                            const struct bt_surface_query *query)
{
    struct bt_surface_match best = {0};
    int32_t best_fit = 0;
    double best_distance = 0;
    for (int32_t i = 0; i < s->n_surfaces; i++) {
        const struct bt_surface *c = s->surfaces[i];
        int32_t fit = formats_fit(&query->format, &c->format);
        if (c->op != query->op || strcmp(c->gpu, query->gpu) != 0 || fit == 0 ||
            (query->stack != NULL && strcmp(c->stack, query->stack) != 0) ||
            (query->head_dim > 0 && c->head_dim > 0 && c->head_dim != query->head_dim)) {
            continue;
        }
        bool spans = spans_heads(c, query);
        double distance = version_distance(query->version, c->version);
        bool better = best.surface == NULL || spans > best.spans_heads ||
                      (spans == best.spans_heads &&
                       (fit > best_fit || (fit == best_fit && distance < best_distance)));
        if (better) {
            best = (struct bt_surface_match){
                .surface = c,
                .same_version = query->version == NULL || distance == 0,
                .same_format = fit == 2,
                .spans_heads = spans,
            };
            best_fit = fit;
            best_distance = distance;
        }
    }
    return best;
}
