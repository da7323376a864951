#include "sim/cost/transfer.h"

#include "sim/cost/import.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the catalog does not hold. MHz: the data sheet's tensor rate over (processors x operations a
 * cycle). Last-level cache: data sheets. */
static const struct {
    const char *name;
    double mhz;
    double cache_mb;
} chips[] = {
    {"rtx3090", 1695, 6},      {"rtx4090", 2520, 72},     {"rtx5090", 2407, 96},
    {"rtxpro6000", 2430, 128}, {"a10", 1695, 6},          {"a10g", 1710, 6},
    {"l4", 2040, 48},          {"l40s", 2490, 96},        {"a40", 1740, 6},
    {"a100-40-sxm", 1410, 40}, {"a100-80-sxm", 1410, 40}, {"a100-80-pcie", 1410, 40},
    {"h100-pcie", 1620, 50},   {"h100-sxm", 1830, 50},    {"h100-nvl", 1545, 50},
    {"h200", 1830, 50},        {"b200", 1855, 126},       {"mi300x", 2100, 256},
};

double bt_transfer_clock(const struct bt_gpu *g)
{
    for (size_t i = 0; i < sizeof chips / sizeof chips[0]; i++) {
        if (strcmp(g->name, chips[i].name) == 0) {
            return chips[i].mhz * 1e6;
        }
    }
    static const double family_mhz[BT_GPU_FAMILIES] = {
        [BT_GPU_CPU] = 3000,    [BT_GPU_AMPERE] = 1600,    [BT_GPU_ADA] = 2500,
        [BT_GPU_HOPPER] = 1800, [BT_GPU_BLACKWELL] = 2200, [BT_GPU_CDNA3] = 2100,
    };
    BT_ASSERT((uint32_t)g->family < BT_GPU_FAMILIES);
    return family_mhz[g->family] * 1e6;
}

static double cache_bytes(const struct bt_gpu *g)
{
    for (size_t i = 0; i < sizeof chips / sizeof chips[0]; i++) {
        if (strcmp(g->name, chips[i].name) == 0) {
            return chips[i].cache_mb * 1e6;
        }
    }
    return 40e6;
}

static bool is_collective(enum bt_op op)
{
    return op == BT_OP_ALLREDUCE || op == BT_OP_ALLGATHER || op == BT_OP_REDUCESCATTER ||
           op == BT_OP_ALLTOALL;
}

/* What an operation's bytes cross: device memory, or one way of the links between GPUs. */
static double bytes_rate(const struct bt_gpu *g, enum bt_op op)
{
    if (!is_collective(op)) {
        return g->mem_bytes_per_s;
    }
    return g->nvlink_bytes_per_s > 0 ? g->nvlink_bytes_per_s / 2 : g->pcie_bytes_per_s;
}

/* Kinship of architectures, as kernels go: one code path in a family; the same instructions (mma of
 * sm_8x and consumer Blackwell) across Ampere, Ada and sm_120; others apart. */
static double kinship(const struct bt_gpu *a, const struct bt_gpu *b)
{
    enum { SM_80 = 80, SM_90 = 90, SM_120 = 120 };
    if (a->family == b->family && (a->family != BT_GPU_BLACKWELL || a->cc == b->cc)) {
        return 9;
    }
    bool a_mma = (a->cc >= SM_80 && a->cc < SM_90) || a->cc >= SM_120;
    bool b_mma = (b->cc >= SM_80 && b->cc < SM_90) || b->cc >= SM_120;
    return a_mma && b_mma ? 2 : 1;
}

struct roofs {
    double bytes_ns; /* at full rate */
    double flops_ns;
};

static struct roofs roofs_of(const struct bt_gpu *g, const struct bt_surface *s,
                             const struct bt_op_shape *shape)
{
    struct bt_op_work w = bt_op_work(s->op, &s->format, shape);
    double peak = bt_import_peak(g, &s->format);
    if (s->op == BT_OP_ATTN_PREFILL) {
        /* Q, K and V were just written: what the cache holds does not come from memory. */
        w.bytes = fmax(w.bytes - cache_bytes(g), 0);
    }
    return (struct roofs){
        .bytes_ns = w.bytes / bytes_rate(g, s->op) * 1e9,
        .flops_ns = peak > 0 ? w.flops / peak * 1e9 : 0,
    };
}

/* Measured time, but never below what its cold bytes take on that GPU. */
static double cold_time(const struct bt_surface *s, const struct bt_gpu *g,
                        const struct bt_op_shape *shape, bool *inside)
{
    struct bt_surface_point p = bt_surface_eval(s, shape);
    *inside = *inside && p.inside;
    double cold = bt_op_cold_bytes(s->op, &s->format, shape);
    return fmax(p.time_ns, cold / g->mem_bytes_per_s * 1e9);
}

/* Shape of a grid's node: the inverse of the surface's coordinates. */
static struct bt_op_shape shape_of_node(const struct bt_surface *s, int64_t node)
{
    const struct bt_lattice *g = &s->grid;
    int64_t at[BT_LATTICE_AXES_MAX] = {0};
    for (int32_t a = 0; a < g->n_axes; a++) {
        at[a] = g->at[a][node / g->stride[a] % g->side[a]];
    }
    return bt_surface_shape(s, at);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Shares of both roofs that the largest work reaches: high percentiles over the measured nodes, so
 * that one lucky node does not set them. */
static enum bt_code find_shares(const struct bt_relative *r, double *memory, double *rate,
                                struct bt_error *err)
{
    const double percentile = 0.97;
    const double memory_most = 0.95; /* above it the working set sat in a cache */
    const struct bt_lattice *g = &r->surface->grid;
    double *shares = malloc((size_t)g->n_nodes * 2 * sizeof *shares);
    if (shares == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "transfer: no memory for %lld nodes", (long long)g->n_nodes);
    }
    double *rates = shares + g->n_nodes;
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (!g->measured[i]) {
            continue;
        }
        struct bt_op_shape shape = shape_of_node(r->surface, i);
        struct roofs roof = roofs_of(r->gpu, r->surface, &shape);
        bool inside = true;
        double t = cold_time(r->surface, r->gpu, &shape, &inside);
        shares[n] = roof.bytes_ns / t;
        rates[n] = roof.flops_ns / t;
        n++;
    }
    qsort(shares, (size_t)n, sizeof *shares, compare_double);
    qsort(rates, (size_t)n, sizeof *rates, compare_double);
    int64_t at = (int64_t)(percentile * (double)(n - 1));
    *memory = fmin(shares[at], memory_most);
    *rate = fmin(rates[at], 1);
    free(shares);
    return BT_OK;
}

/* One relative's word on the target's time. */
static double predict_from(const struct bt_transfer *t, int32_t i, const struct bt_op_shape *shape,
                           bool *inside)
{
    const struct bt_relative *r = &t->relatives[i];
    double time = cold_time(r->surface, r->gpu, shape, inside);
    if (r->surface->op == BT_OP_HOST) {
        return time; /* the host's, not the GPU's */
    }
    struct roofs here = roofs_of(r->gpu, r->surface, shape);
    struct roofs there = roofs_of(t->target, r->surface, shape);
    double rate = t->rate_share[i] > 0 ? t->rate_share[i] : 1;
    double memory = t->memory_share[i] > 0 ? t->memory_share[i] : 1;
    double core = fmax(here.bytes_ns / memory, here.flops_ns / rate);
    double target_core = fmax(there.bytes_ns / memory, there.flops_ns / rate);
    double cycles = is_collective(r->surface->op)
                        ? 1
                        : bt_transfer_clock(r->gpu) / bt_transfer_clock(t->target);
    /* Quicker than the shares allow (a cache): the same advantage is taken over. */
    double excess = time > core ? (time - core) * cycles + target_core : time / core * target_core;
    if (bytes_rate(r->gpu, r->surface->op) >= bytes_rate(t->target, r->surface->op)) {
        return excess;
    }
    const struct bt_two_term *law = &r->surface->law;
    struct bt_op_work w = bt_op_work(r->surface->op, &r->surface->format, shape);
    double bytes_ratio = here.bytes_ns > 0 ? there.bytes_ns / here.bytes_ns : 1;
    double flops_ratio = here.flops_ns > 0 ? there.flops_ns / here.flops_ns : 1;
    double by_law = law->fixed_ns * cycles + w.bytes * law->ns_per_byte * bytes_ratio +
                    w.flops * law->ns_per_flop * flops_ratio;
    return sqrt(excess * fmax(by_law, 1));
}

static double predict(const struct bt_transfer *t, const struct bt_op_shape *shape, bool *inside)
{
    double sum = 0;
    *inside = true;
    for (int32_t i = 0; i < t->n_relatives; i++) {
        sum += t->weight[i] * log(predict_from(t, i, shape, inside));
    }
    const struct bt_surface *s = t->relatives[0].surface;
    double cold = bt_op_cold_bytes(s->op, &s->format, shape);
    return fmax(exp(sum), cold / t->target->mem_bytes_per_s * 1e9);
}

static enum bt_code check_relatives(const struct bt_relative *r, int32_t n,
                                    const struct bt_gpu *target, struct bt_error *err)
{
    for (int32_t i = 1; i < n; i++) {
        const struct bt_surface *a = r[0].surface;
        const struct bt_surface *b = r[i].surface;
        if (a->op != b->op || a->format.weights != b->format.weights ||
            a->format.activations != b->format.activations || a->format.kv != b->format.kv) {
            BT_FAIL(err, BT_ERR_ARG, i,
                    "transfer to %s: surfaces of %s and %s, or of different formats, expected one "
                    "operation and format",
                    target->name, bt_op_name(a->op), bt_op_name(b->op));
        }
    }
    const struct bt_op_format *f = &r[0].surface->format;
    bool multiplies = r[0].surface->op == BT_OP_GEMM || r[0].surface->op == BT_OP_ATTN_PREFILL ||
                      r[0].surface->op == BT_OP_ATTN_DECODE || r[0].surface->op == BT_OP_ATTN_MIXED;
    if (multiplies && !(bt_import_peak(target, f) > 0)) {
        BT_FAIL(err, BT_ERR_NOTFOUND, 0, "%s has no unit that multiplies %s by %s", target->name,
                bt_num_name(f->weights), bt_num_name(f->activations));
    }
    return BT_OK;
}

/* Collectives over NVLink say nothing of those over PCIe. */
static bool same_links(const struct bt_gpu *a, const struct bt_gpu *b, const struct bt_surface *s)
{
    return !is_collective(s->op) || (a->nvlink_bytes_per_s > 0) == (b->nvlink_bytes_per_s > 0);
}

/* Without the bound; surfaces of the target itself are left aside. */
static enum bt_code init_point(struct bt_transfer *t, const struct bt_relative *relatives,
                               int32_t n, const struct bt_gpu *target, struct bt_error *err)
{
    memset(t, 0, sizeof *t);
    t->target = target;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct bt_gpu *g = relatives[i].gpu;
        if (strcmp(g->name, target->name) == 0 || !same_links(g, target, relatives[i].surface)) {
            continue;
        }
        if (t->n_relatives == BT_TRANSFER_RELATIVES_MAX) {
            BT_FAIL(err, BT_ERR_LIMIT, n, "transfer to %s: more than %d surfaces", target->name,
                    BT_TRANSFER_RELATIVES_MAX);
        }
        int32_t k = t->n_relatives++;
        enum bt_op op = relatives[i].surface->op;
        t->relatives[k] = relatives[i];
        t->weight[k] = kinship(g, target);
        if (bytes_rate(g, op) < bytes_rate(target, op)) {
            t->weight[k] /= 3; /* its fixed part is hidden */
        }
        BT_TRY(find_shares(&relatives[i], &t->memory_share[k], &t->rate_share[k], err));
        sum += t->weight[k];
        t->nearest = t->weight[k] > t->weight[t->nearest] ? k : t->nearest;
    }
    if (t->n_relatives == 0) {
        BT_FAIL(err, BT_ERR_NOTFOUND, 0, "transfer to %s: no other GPU has this operation measured",
                target->name);
    }
    for (int32_t i = 0; i < t->n_relatives; i++) {
        t->weight[i] /= sum;
    }
    return BT_OK;
}

/* Errors on the measured nodes of `truth`; *log_p95 receives the 95th percentile of |log|. */
static enum bt_code measure(const struct bt_transfer *t, const struct bt_surface *truth, bool cold,
                            struct bt_lattice_error *out, double *log_p95, double *covered,
                            struct bt_error *err)
{
    const struct bt_lattice *g = &truth->grid;
    double *differences = malloc((size_t)g->n_nodes * sizeof *differences);
    if (differences == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "transfer: no memory for %lld nodes", (long long)g->n_nodes);
    }
    int64_t n = 0;
    int64_t within = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (!g->measured[i]) {
            continue;
        }
        struct bt_op_shape shape = shape_of_node(truth, i);
        bool inside = true;
        double estimate = predict(t, &shape, &inside);
        if (inside) { /* beyond a relative's range two errors would mix */
            double measured = cold ? cold_time(truth, t->target, &shape, &inside)
                                   : bt_surface_eval(truth, &shape).time_ns;
            differences[n] = log(estimate / measured);
            within += fabs(differences[n]) <= t->log_bound;
            n++;
        }
    }
    *out = bt_lattice_error_of(differences, n);
    *covered = n > 0 ? (double)within / (double)n : 0;
    for (int64_t i = 0; i < n; i++) {
        differences[i] = fabs(differences[i]);
    }
    qsort(differences, (size_t)n, sizeof *differences, compare_double);
    *log_p95 = n > 0 ? differences[(n * 19 + 19) / 20 - 1] : 0;
    free(differences);
    return BT_OK;
}

/* How far the target's bandwidth lies outside what the relatives span, in the logarithm. */
static double beyond_span(const struct bt_transfer *t)
{
    enum bt_op op = t->relatives[0].surface->op;
    double low = INFINITY;
    double high = 0;
    for (int32_t i = 0; i < t->n_relatives; i++) {
        low = fmin(low, bytes_rate(t->relatives[i].gpu, op));
        high = fmax(high, bytes_rate(t->relatives[i].gpu, op));
    }
    double rate = bytes_rate(t->target, op);
    return fmax(fmax(log(low / rate), log(rate / high)), 0);
}

/* Every other measured GPU predicted from the rest. */
static enum bt_code earn_bound(struct bt_transfer *t, struct bt_error *err)
{
    /* What a bare roofline missed by in the worst case known: the most that is claimed not to know,
     * and what stands in when only one GPU is measured, so that nothing can be left out. */
    const double unearned = 4;
    const double least = 0.10;
    double worst = 0;
    for (int32_t i = 0; i < t->n_relatives; i++) {
        const struct bt_relative *out = &t->relatives[i];
        struct bt_transfer rest;
        struct bt_error ignored = {0};
        if (init_point(&rest, t->relatives, t->n_relatives, out->gpu, &ignored) != BT_OK) {
            continue; /* its GPU is the only one */
        }
        struct bt_lattice_error e;
        double log_p95 = 0;
        double covered = 0;
        BT_TRY(measure(&rest, out->surface, true, &e, &log_p95, &covered, err));
        bool seen = false;
        for (int32_t k = 0; k < i; k++) {
            seen = seen || strcmp(t->relatives[k].gpu->name, out->gpu->name) == 0;
        }
        worst = fmax(worst, log_p95);
        t->median = fmax(t->median, e.median);
        t->n_left_out += e.n > 0 && !seen;
    }
    t->log_bound = log(unearned);
    if (t->n_left_out > 0) {
        /* Few GPUs left out say less of a further one, least of one outside their span. */
        t->log_bound = fmin(fmax(worst, least) * (1 + 1.0 / (double)t->n_left_out + beyond_span(t)),
                            log(unearned));
    }
    return BT_OK;
}

enum bt_code bt_transfer_init(struct bt_transfer *t, const struct bt_relative *relatives, int32_t n,
                              const struct bt_gpu *target, struct bt_error *err)
{
    BT_ASSERT(n >= 1);
    BT_TRY(check_relatives(relatives, n, target, err));
    BT_TRY(init_point(t, relatives, n, target, err));
    return earn_bound(t, err);
}

enum bt_code bt_transfer_init_point(struct bt_transfer *t, const struct bt_relative *relatives,
                                    int32_t n, const struct bt_gpu *target, struct bt_error *err)
{
    BT_ASSERT(n >= 1);
    BT_TRY(check_relatives(relatives, n, target, err));
    return init_point(t, relatives, n, target, err);
}

struct bt_transfer_point bt_transfer_eval(const struct bt_transfer *t,
                                          const struct bt_op_shape *shape)
{
    struct bt_transfer_point p = {0};
    p.time_ns = predict(t, shape, &p.inside);
    p.low_ns = p.time_ns * exp(-t->log_bound);
    p.high_ns = p.time_ns * exp(t->log_bound);
    return p;
}

enum bt_code bt_transfer_error(const struct bt_transfer *t, const struct bt_surface *truth,
                               bool cold, struct bt_lattice_error *out, double *covered,
                               struct bt_error *err)
{
    double log_p95 = 0;
    double share = 0;
    BT_TRY(measure(t, truth, cold, out, &log_p95, &share, err));
    if (covered != NULL) {
        *covered = share;
    }
    return BT_OK;
}
