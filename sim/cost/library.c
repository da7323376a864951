#include "sim/cost/library.h"

#include "sim/cost/calib.h"
#include "sim/cost/probe.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIBRARY_GPUS_MAX = 64,
    LINES_FEW = 16, /* matrices of a GEMM surface below which others are preferred */
};

/* Surfaces of one GPU and operation. */
struct group {
    bool loaded;
    struct bt_surface_set set;
};

/* An answered question. */
struct entry {
    struct entry *next;
    struct bt_source_query q; /* gpu points into the library */
    bool found;
    struct bt_op_source source;
    struct bt_transfer transfer;
};

struct skew_entry {
    struct skew_entry *next;
    const char *name; /* borrowed: of the text */
    struct bt_skew skew;
};

struct bt_surface_library {
    const struct bt_embedded *texts;        /* borrowed */
    const struct bt_host_calibration *host; /* borrowed; NULL: none */
    const struct bt_embedded *skews;        /* borrowed; NULL: none */
    struct skew_entry *read_skews;          /* owned */
    int32_t n_gpus;
    struct bt_gpu *gpus;            /* owned */
    struct group (*groups)[BT_OPS]; /* owned: by GPU */
    struct entry *entries;          /* owned */
    pthread_mutex_t lock;
};

/* What stands in for a stack that has not measured an operation, best first: serving engines, then
 * libraries and profiles of single operations. Not our own engine, whose elementwise kernels do
 * more than others' (RoPE writes the cache, norms round). */
static const char *const stack_order[] = {"vllm", "trtllm", "sglang", "nccl", "vidur"};
enum { STACKS = sizeof stack_order / sizeof *stack_order };

/* Bound where nothing can be compared: what a bare roofline missed by in the worst case known. */
static const double UNEARNED_LOG = 1.3862943611198906; /* log 4 */

enum bt_code bt_surface_library_create(const struct bt_surface_library_opts *opts,
                                       struct bt_surface_library **out, struct bt_error *err)
{
    BT_ASSERT(opts->texts != NULL && opts->n_gpus >= 0 && opts->n_gpus <= LIBRARY_GPUS_MAX);
    *out = NULL;
    struct bt_surface_library *l = calloc(1, sizeof *l);
    size_t n = (size_t)opts->n_gpus;
    if (l != NULL) {
        l->gpus = calloc(n + 1, sizeof *l->gpus);
        l->groups = calloc(n + 1, sizeof *l->groups);
    }
    if (l == NULL || l->gpus == NULL || l->groups == NULL ||
        pthread_mutex_init(&l->lock, NULL) != 0) {
        if (l != NULL) {
            free(l->gpus);
            free(l->groups);
        }
        free(l);
        BT_FAIL(err, BT_ERR_NOMEM, opts->n_gpus, "surfaces: no memory for %d GPUs", opts->n_gpus);
    }
    memcpy(l->gpus, opts->gpus, n * sizeof *l->gpus);
    l->texts = opts->texts;
    l->host = opts->host;
    l->skews = opts->skews;
    l->n_gpus = opts->n_gpus;
    *out = l;
    return BT_OK;
}

const struct bt_host_calibration *bt_surface_library_host(const struct bt_surface_library *l)
{
    return l->host;
}

void bt_surface_library_destroy(struct bt_surface_library *l)
{
    if (l == NULL) {
        return;
    }
    for (struct entry *e = l->entries; e != NULL;) {
        struct entry *next = e->next;
        free(e);
        e = next;
    }
    for (struct skew_entry *e = l->read_skews; e != NULL;) {
        struct skew_entry *next = e->next;
        free(e);
        e = next;
    }
    for (int32_t g = 0; g < l->n_gpus; g++) {
        for (int32_t op = 0; op < BT_OPS; op++) {
            bt_surface_set_fini(&l->groups[g][op].set);
        }
    }
    (void)pthread_mutex_destroy(&l->lock);
    free(l->groups);
    free(l->gpus);
    free(l);
}

static void copy_text(char *out, size_t bytes, const char *text, size_t length)
{
    length = length < bytes ? length : bytes - 1;
    memcpy(out, text, length);
    out[length] = '\0';
}

struct bt_stack_name bt_stack_name_of(const char *name)
{
    struct bt_stack_name s = {{0}, {0}};
    if (name == NULL || name[0] == '\0') {
        name = "berth";
    }
    const char *dash = NULL;
    for (const char *p = name; *p != '\0' && dash == NULL; p++) {
        dash = *p == '-' && p[1] >= '0' && p[1] <= '9' ? p : NULL;
    }
    size_t length = dash == NULL ? strlen(name) : (size_t)(dash - name);
    copy_text(s.stack, sizeof s.stack, name, length);
    if (strcmp(s.stack, "tensorrt-llm") == 0) {
        copy_text(s.stack, sizeof s.stack, "trtllm", strlen("trtllm"));
    }
    if (dash != NULL) {
        copy_text(s.version, sizeof s.version, dash + 1, strlen(dash + 1));
    }
    return s;
}

static enum bt_code load(struct bt_surface_library *l, int32_t gpu, enum bt_op op,
                         const struct bt_surface_set **out, struct bt_error *err)
{
    struct group *g = &l->groups[gpu][op];
    *out = &g->set;
    if (g->loaded) {
        return BT_OK;
    }
    struct bt_sample_set samples;
    bt_sample_set_init(&samples);
    enum bt_code code = bt_calib_read_texts(l->texts, l->gpus[gpu].name, op, &samples, err);
    if (code == BT_OK) {
        code = bt_surface_set_init(&g->set, &samples, err);
    }
    bt_sample_set_fini(&samples);
    g->loaded = code == BT_OK;
    return code;
}

static int32_t gpu_index(const struct bt_surface_library *l, const char *name)
{
    for (int32_t i = 0; i < l->n_gpus; i++) {
        if (strcmp(l->gpus[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool is_attention(enum bt_op op)
{
    return op == BT_OP_ATTN_DECODE || op == BT_OP_ATTN_PREFILL;
}

static struct bt_surface_query surface_query(const struct bt_source_query *q, enum bt_op op,
                                             const char *gpu, const char *stack)
{
    return (struct bt_surface_query){
        .op = op,
        .format = q->format,
        .gpu = gpu,
        .stack = stack,
        .version = strcmp(stack, q->stack.stack) == 0 && q->stack.version[0] != '\0'
                       ? q->stack.version
                       : NULL,
        .heads = q->heads,
        .kv_heads = q->kv_heads,
        .head_dim = q->head_dim,
    };
}

/* A stack's surface of a GPU for the query; heads that nobody spans are allowed when `any_heads`.
 * The mixed surface of one model answers for attention whatever its heads, scaled by the work. */
static enum bt_code find_of_stack(struct bt_surface_library *l, const struct bt_source_query *q,
                                  int32_t gpu, const char *stack, bool any_heads,
                                  struct bt_surface_match *out, struct bt_error *err)
{
    const struct bt_surface_set *set = NULL;
    struct bt_surface_query sq = surface_query(q, q->op, l->gpus[gpu].name, stack);
    *out = (struct bt_surface_match){0};
    BT_TRY(load(l, gpu, q->op, &set, err));
    struct bt_surface_match m = bt_surface_set_find(set, &sq);
    if (m.surface != NULL && (m.spans_heads || any_heads || !is_attention(q->op))) {
        *out = m;
        return BT_OK;
    }
    if (is_attention(q->op)) {
        sq.op = BT_OP_ATTN_MIXED;
        BT_TRY(load(l, gpu, BT_OP_ATTN_MIXED, &set, err));
        *out = bt_surface_set_find(set, &sq);
    }
    return BT_OK;
}

/* Time of a surface in serving: heads of a one-model surface scaled, cold bytes from memory. */
struct served {
    const struct bt_surface *surface;
    const struct bt_gpu *gpu;
    enum bt_op op;
    const struct bt_op_format *format;
};

static double two_term_work(const struct bt_surface *s, const struct bt_op_shape *shape)
{
    return bt_two_term_ns(&s->law, bt_op_work(s->op, &s->format, shape)) - s->law.fixed_ns;
}

/* Mixed attention was measured on one model: beyond its fixed time it grows with the work. */
static double mixed_ns(const struct served *v, const struct bt_op_shape *asked, bool *inside)
{
    const struct bt_surface *s = v->surface;
    struct bt_op_shape shape = *asked;
    double chunks = 1;
    if (v->op == BT_OP_ATTN_PREFILL) { /* its batch is of decodes beside one chunk */
        chunks = (double)asked->batch;
        shape.batch = 0;
        shape.ctx = 0;
    } else {
        shape.q_len = 0;
        shape.prefix = 0;
    }
    struct bt_op_shape own = shape;
    own.heads = s->heads;
    own.kv_heads = s->kv_heads;
    own.head_dim = s->head_dim;
    struct bt_surface_point p = bt_surface_eval(s, &own);
    double base = two_term_work(s, &own);
    double more = p.time_ns > s->floor_ns ? p.time_ns - s->floor_ns : 0;
    *inside = p.inside && chunks == 1 && asked->heads == s->heads && asked->kv_heads == s->kv_heads;
    return p.time_ns - more + more * chunks * (base > 0 ? two_term_work(s, &shape) / base : 1);
}

double bt_op_source_chunks_ns(const struct bt_op_source *source, const struct bt_op_shape *shape,
                              int64_t chunks)
{
    const struct bt_surface *s = source->surface;
    BT_ASSERT(s != NULL && s->op == BT_OP_ATTN_MIXED && chunks > 0);
    struct bt_op_shape own = *shape;
    own.heads = s->heads;
    own.kv_heads = s->kv_heads;
    own.head_dim = s->head_dim;
    double all = bt_surface_eval(s, &own).time_ns;
    struct bt_op_shape chunk = own;
    chunk.batch = 0;
    chunk.ctx = 0;
    double alone = fmax(bt_surface_eval(s, &chunk).time_ns - s->floor_ns, 0);
    own.q_len = 0;
    own.prefix = 0;
    double base = own.batch > 0 ? bt_surface_eval(s, &own).time_ns : s->floor_ns;
    /* That the decodes leave their own kernel is paid once, whatever the number of chunks. */
    double first = fmax(all - base, 0);
    double more = first + (double)(chunks - 1) * fmin(alone, first);
    double own_work = two_term_work(s, &chunk);
    chunk.heads = shape->heads;
    chunk.kv_heads = shape->kv_heads;
    chunk.head_dim = shape->head_dim;
    double asked_work = two_term_work(s, &chunk);
    return more * (own_work > 0 ? asked_work / own_work : 1) + (shape->batch > 0 ? 0 : base);
}

static double served_ns(const struct served *v, const struct bt_op_shape *shape, bool *inside)
{
    bool here = true;
    double ns = 0;
    if (v->surface->op == BT_OP_ATTN_MIXED) {
        ns = mixed_ns(v, shape, &here);
    } else {
        struct bt_surface_point p = bt_surface_eval(v->surface, shape);
        ns = p.time_ns;
        here = p.inside;
    }
    if (inside != NULL) {
        *inside = here;
    }
    double cold = bt_op_cold_bytes(v->op, v->format, shape);
    return fmax(ns, cold / v->gpu->mem_bytes_per_s * 1e9);
}

double bt_op_source_ns(const struct bt_op_source *s, const struct bt_op_shape *shape, bool *inside)
{
    if (s->surface != NULL) {
        struct served v = {s->surface, s->gpu, s->op, &s->format};
        return served_ns(&v, shape, inside);
    }
    struct bt_transfer_point p = bt_transfer_eval(s->transfer, shape);
    if (inside != NULL) {
        *inside = p.inside;
    }
    double cold = bt_op_cold_bytes(s->op, &s->format, shape);
    return fmax(p.time_ns, cold / s->gpu->mem_bytes_per_s * 1e9);
}

/* Law of a surface for the probes, which knows what was measured. */
static double probe_served(const void *law, const struct bt_op_shape *shape, bool *known)
{
    return served_ns(law, shape, known);
}

static bool spans(const struct bt_surface *s, int64_t kv_heads, int64_t group)
{
    if (!is_attention(s->op)) {
        return true;
    }
    const struct bt_lattice *g = &s->grid;
    return kv_heads >= g->at[2][0] && kv_heads <= g->at[2][g->side[2] - 1] &&
           group >= g->at[3][0] && group <= g->at[3][g->side[3] - 1];
}

/* Heads at which two surfaces can be compared: the query's, else those of MHA. */
static bool common_heads(const struct bt_source_query *q, const struct bt_surface *a,
                         const struct bt_surface *b, int64_t *kv_heads, int64_t *group)
{
    const int64_t mha_heads = 32;
    *kv_heads = q->kv_heads > 0 ? q->kv_heads : 1;
    *group = q->heads / *kv_heads;
    if (spans(a, *kv_heads, *group) && spans(b, *kv_heads, *group)) {
        return true;
    }
    *kv_heads = mha_heads;
    *group = 1;
    return spans(a, mha_heads, 1) && spans(b, mha_heads, 1);
}

static bool same_16(enum bt_num a, enum bt_num b)
{
    bool both = (a == BT_NUM_FP16 || a == BT_NUM_BF16) && (b == BT_NUM_FP16 || b == BT_NUM_BF16);
    return a == b || both;
}

static bool same_format(const struct bt_op_format *a, const struct bt_op_format *b)
{
    return same_16(a->weights, b->weights) && same_16(a->activations, b->activations) &&
           same_16(a->kv, b->kv);
}

/* Largest difference, on one GPU, of a surface of `stack` and one of another (of `asked`, if that
 * stack is measured there), of the same format; -1: no two to compare. */
static enum bt_code spread_on(struct bt_surface_library *l, const struct bt_source_query *q,
                              int32_t gpu, enum bt_op op, const char *stack, bool any_format,
                              double *log_spread, struct bt_error *err)
{
    const struct bt_surface_set *set = NULL;
    BT_TRY(load(l, gpu, op, &set, err));
    *log_spread = -1;
    for (int32_t i = 0; i < set->n_surfaces; i++) {
        const struct bt_surface *a = set->surfaces[i];
        if (strcmp(a->stack, stack) != 0 || (!any_format && !same_format(&a->format, &q->format))) {
            continue;
        }
        for (int32_t k = 0; k < set->n_surfaces; k++) {
            const struct bt_surface *b = set->surfaces[k];
            int64_t kv_heads, group;
            if (strcmp(b->stack, stack) == 0 || !same_format(&a->format, &b->format) ||
                !common_heads(q, a, b, &kv_heads, &group)) {
                continue;
            }
            struct served x = {a, &l->gpus[gpu], op, &a->format};
            struct served y = {b, &l->gpus[gpu], op, &b->format};
            struct bt_probe_error e =
                bt_probe_compare(op, kv_heads, group, probe_served, &x, probe_served, &y);
            if (e.n > 0) {
                *log_spread = fmax(*log_spread, e.log_p90);
            }
        }
    }
    return BT_OK;
}

/* What stacks differ by: on the GPU in this format, on it in any, then on all others. */
static enum bt_code stack_spread(struct bt_surface_library *l, const struct bt_source_query *q,
                                 int32_t gpu, const struct bt_surface *s, double *out,
                                 struct bt_error *err)
{
    for (int32_t any = 0; any < 2; any++) {
        BT_TRY(spread_on(l, q, gpu, s->op, s->stack, any != 0, out, err));
        if (*out >= 0) {
            return BT_OK;
        }
    }
    for (int32_t any = 0; any < 2; any++) {
        double worst = -1;
        for (int32_t g = 0; g < l->n_gpus; g++) {
            double here = -1;
            if (g != gpu) {
                BT_TRY(spread_on(l, q, g, s->op, s->stack, any != 0, &here, err));
            }
            worst = fmax(worst, here);
        }
        if (worst >= 0) {
            *out = worst;
            return BT_OK;
        }
    }
    *out = log(1.5); /* nobody measured this operation on two stacks of one GPU */
    return BT_OK;
}

static void describe_surface(struct bt_op_source *out, const struct bt_surface *s, bool own,
                             const char *asked)
{
    (void)snprintf(out->text, sizeof out->text, "%.30s%s%.30s%s%.24s", s->stack,
                   s->version[0] == '\0' ? "" : " ", s->version, own ? "" : " for ",
                   own ? "" : asked);
}

static double own_error(const struct bt_surface_match *m)
{
    const struct bt_lattice *g = &m->surface->grid;
    double e = g->along.p90;
    if (!m->spans_heads && g->off_rest.n > 0) {
        e = fmax(e, g->off_rest.p90);
    }
    return log1p(e);
}

static enum bt_code from_own(struct bt_surface_library *l, int32_t gpu, struct entry *e,
                             struct bt_error *err)
{
    const struct bt_source_query *q = &e->q;
    struct bt_surface_match m;
    BT_TRY(find_of_stack(l, q, gpu, q->stack.stack, false, &m, err));
    if (m.surface == NULL) {
        return BT_OK;
    }
    bool ours = strcmp(q->stack.stack, "berth") == 0;
    e->found = true;
    e->source.surface = m.surface;
    e->source.level = ours ? BT_TRUST_MEASURED : BT_TRUST_IMPORTED;
    e->source.same_format = same_format(&m.surface->format, &q->format);
    e->source.log_error = own_error(&m);
    if (!m.spans_heads) {
        e->source.level = BT_TRUST_TRANSFERRED; /* another model's attention, scaled */
    }
    describe_surface(&e->source, m.surface, true, "");
    return BT_OK;
}

static enum bt_code from_other_stack(struct bt_surface_library *l, int32_t gpu, struct entry *e,
                                     struct bt_error *err)
{
    const struct bt_source_query *q = &e->q;
    struct bt_surface_match best = {0};
    for (int32_t any_heads = 0; any_heads < 2 && best.surface == NULL; any_heads++) {
        for (int32_t i = 0; i < STACKS && best.surface == NULL; i++) {
            if (strcmp(stack_order[i], q->stack.stack) != 0 || any_heads) {
                BT_TRY(find_of_stack(l, q, gpu, stack_order[i], any_heads != 0, &best, err));
            }
        }
    }
    if (best.surface == NULL) {
        return BT_OK;
    }
    double spread = 0;
    BT_TRY(stack_spread(l, q, gpu, best.surface, &spread, err));
    double own = own_error(&best);
    e->found = true;
    e->source.surface = best.surface;
    e->source.level = BT_TRUST_TRANSFERRED;
    e->source.same_format = same_format(&best.surface->format, &q->format);
    e->source.log_error = sqrt(own * own + spread * spread);
    describe_surface(&e->source, best.surface, false, q->stack.stack);
    return BT_OK;
}

static bool has_few_lines(const struct bt_surface *s)
{
    return s->op == BT_OP_GEMM && s->grid.side[1] * s->grid.side[2] < LINES_FEW;
}

/* Surfaces of one stack on other GPUs, all of the format of the first. */
static enum bt_code relatives_of(struct bt_surface_library *l, const struct bt_source_query *q,
                                 int32_t gpu, const char *stack, bool few,
                                 struct bt_relative out[BT_TRANSFER_RELATIVES_MAX], int32_t *n,
                                 struct bt_error *err)
{
    *n = 0;
    for (int32_t g = 0; g < l->n_gpus && *n < BT_TRANSFER_RELATIVES_MAX; g++) {
        if (g == gpu) {
            continue;
        }
        const struct bt_surface_set *set = NULL;
        BT_TRY(load(l, g, q->op, &set, err));
        struct bt_surface_query sq = surface_query(q, q->op, l->gpus[g].name, stack);
        struct bt_surface_match m = bt_surface_set_find(set, &sq);
        if (m.surface == NULL || (!few && has_few_lines(m.surface)) ||
            (is_attention(q->op) && !m.spans_heads)) {
            continue;
        }
        const struct bt_op_format *f = &m.surface->format;
        const struct bt_op_format *first = *n > 0 ? &out[0].surface->format : f;
        if (f->weights == first->weights && f->activations == first->activations &&
            f->kv == first->kv) {
            out[(*n)++] = (struct bt_relative){m.surface, &l->gpus[g]};
        }
    }
    return BT_OK;
}

/* Every measured GPU's operations predicted without its surfaces, summed as steps sum them: the
 * worst GPU's 90th percentile of |log|, and how many GPUs were left out (bt_law_report, second
 * table). */
struct left_out {
    double log_p90;
    int32_t n_gpus;
};

static struct left_out left_out_gemm(const struct bt_op_format *f)
{
    bool int8_inputs = bt_num_is_int8(f->activations);
    if (bt_num_is_fp8(f->weights)) {
        return (struct left_out){0.22, 3};
    }
    if (bt_num_is_int4(f->weights)) {
        return (struct left_out){0.46, 3};
    }
    if (bt_num_is_int8(f->weights)) {
        return int8_inputs ? (struct left_out){0.41, 3} : (struct left_out){0.21, 3};
    }
    return (struct left_out){0.28, 6};
}

static double transfer_error(enum bt_op op, const struct bt_op_format *f)
{
    struct left_out l = {UNEARNED_LOG, 1};
    if (op == BT_OP_GEMM) {
        l = left_out_gemm(f);
    } else if (op == BT_OP_ATTN_DECODE) {
        l = (struct left_out){0.54, 6};
    } else if (op == BT_OP_ATTN_PREFILL) {
        l = (struct left_out){0.47, 6};
    } else if (op >= BT_OP_QUANTIZE && op <= BT_OP_SAMPLE) {
        l = (struct left_out){0.67, 4};
    }
    /* Few GPUs left out say less of a further one. */
    return fmin(l.log_p90 * (1 + 1.0 / l.n_gpus), UNEARNED_LOG);
}

static void describe_transfer(struct bt_op_source *out, const struct bt_transfer *t)
{
    const struct bt_surface *s = t->relatives[t->nearest].surface;
    int length = snprintf(out->text, sizeof out->text, "%.20s from %.24s", s->stack, s->gpu);
    int32_t others = t->n_relatives - 1;
    if (others > 0 && length > 0 && (size_t)length < sizeof out->text) {
        (void)snprintf(out->text + length, sizeof out->text - (size_t)length, " and %d more",
                       others);
    }
}

static enum bt_code from_other_gpus(struct bt_surface_library *l, int32_t gpu, struct entry *e,
                                    struct bt_error *err)
{
    const struct bt_source_query *q = &e->q;
    struct bt_relative best[BT_TRANSFER_RELATIVES_MAX];
    int32_t n_best = 0;
    for (int32_t few = 0; few < 2 && n_best == 0; few++) {
        /* The stack's own first, if more than one GPU tells; then whoever measured most. */
        for (int32_t i = -1; i < STACKS; i++) {
            const char *stack = i < 0 ? q->stack.stack : stack_order[i];
            struct bt_relative r[BT_TRANSFER_RELATIVES_MAX];
            int32_t n = 0;
            BT_TRY(relatives_of(l, q, gpu, stack, few != 0, r, &n, err));
            if (n > n_best) {
                memcpy(best, r, sizeof r);
                n_best = n;
            }
            if (i < 0 && n >= 2) {
                break;
            }
        }
    }
    if (n_best == 0) {
        return BT_OK;
    }
    struct bt_error why = {0};
    enum bt_code code = bt_transfer_init_point(&e->transfer, best, n_best, &l->gpus[gpu], &why);
    if (code == BT_ERR_NOTFOUND) {
        return BT_OK; /* no unit for the format, or other links: nobody can tell */
    }
    e->source.log_error = transfer_error(q->op, &q->format);
    if (code != BT_OK) {
        BT_FAIL(err, code, 0, "%s", why.msg[0] != '\0' ? why.msg : "transfer: no memory");
    }
    e->found = true;
    e->source.transfer = &e->transfer;
    e->source.level = BT_TRUST_TRANSFERRED;
    e->source.same_format = same_format(&best[0].surface->format, &q->format);
    describe_transfer(&e->source, &e->transfer);
    return BT_OK;
}

static bool same_query(const struct bt_source_query *a, const struct bt_source_query *b)
{
    return a->op == b->op && a->format.weights == b->format.weights &&
           a->format.activations == b->format.activations && a->format.kv == b->format.kv &&
           strcmp(a->gpu, b->gpu) == 0 && strcmp(a->stack.stack, b->stack.stack) == 0 &&
           strcmp(a->stack.version, b->stack.version) == 0 && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->without == b->without;
}

static enum bt_code answer(struct bt_surface_library *l, int32_t gpu,
                           const struct bt_source_query *q, struct entry **out,
                           struct bt_error *err)
{
    for (struct entry *e = l->entries; e != NULL; e = e->next) {
        if (same_query(&e->q, q)) {
            *out = e;
            return BT_OK;
        }
    }
    struct entry *e = calloc(1, sizeof *e);
    if (e == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "surfaces: no memory");
    }
    e->q = *q;
    e->q.gpu = l->gpus[gpu].name;
    e->source = (struct bt_op_source){.op = q->op, .format = q->format, .gpu = &l->gpus[gpu]};
    enum bt_code code = BT_OK;
    if (q->without == BT_SOURCE_WITHOUT_NOTHING) {
        code = from_own(l, gpu, e, err);
    }
    if (code == BT_OK && !e->found && q->without != BT_SOURCE_WITHOUT_GPU) {
        code = from_other_stack(l, gpu, e, err);
    }
    if (code == BT_OK && !e->found) {
        code = from_other_gpus(l, gpu, e, err);
    }
    if (code != BT_OK) {
        free(e);
        return code;
    }
    e->next = l->entries;
    l->entries = e;
    *out = e;
    return BT_OK;
}

enum bt_code bt_surface_library_find(struct bt_surface_library *l, const struct bt_source_query *q,
                                     const struct bt_op_source **out, struct bt_error *err)
{
    *out = NULL;
    int32_t gpu = gpu_index(l, q->gpu);
    if (gpu < 0) {
        return BT_OK;
    }
    struct bt_source_query asked = *q;
    asked.format.weights = bt_num_as_bf16(q->format.weights);
    asked.format.activations = bt_num_as_bf16(q->format.activations);
    asked.format.kv = bt_num_as_bf16(q->format.kv);
    if (!is_attention(q->op)) {
        asked.heads = asked.kv_heads = asked.head_dim = 0;
    }
    struct entry *e = NULL;
    (void)pthread_mutex_lock(&l->lock);
    enum bt_code code = answer(l, gpu, &asked, &e, err);
    (void)pthread_mutex_unlock(&l->lock);
    if (code == BT_OK && e->found) {
        *out = &e->source;
    }
    return code;
}

/* The text of "GPU__STACK-..."; NULL. */
static const struct bt_embedded *skew_text(const struct bt_embedded *texts, const char *gpu,
                                           const char *stack)
{
    size_t n = strlen(gpu);
    size_t k = strlen(stack);
    for (const struct bt_embedded *e = texts; e != NULL && e->name != NULL; e++) {
        if (strncmp(e->name, gpu, n) == 0 && strncmp(e->name + n, "__", 2) == 0 &&
            strncmp(e->name + n + 2, stack, k) == 0 && e->name[n + 2 + k] == '-') {
            return e;
        }
    }
    return NULL;
}

static enum bt_code read_skew(struct bt_surface_library *l, const struct bt_embedded *text,
                              const struct bt_skew **out, struct bt_error *err)
{
    struct skew_entry *e = l->read_skews;
    while (e != NULL && e->name != text->name) {
        e = e->next;
    }
    if (e == NULL) {
        e = calloc(1, sizeof *e);
        if (e == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "surfaces: no memory");
        }
        struct bt_import_text file = {text->text, text->size_bytes, text->name};
        e->name = text->name;
        enum bt_code code = bt_skew_read(&file, &e->skew, err);
        if (code != BT_OK) {
            free(e);
            return code;
        }
        e->next = l->read_skews;
        l->read_skews = e;
    }
    *out = &e->skew;
    return BT_OK;
}

enum bt_code bt_surface_library_skew(struct bt_surface_library *l, const char *gpu,
                                     const char *stack, const struct bt_skew **out,
                                     struct bt_error *err)
{
    *out = NULL;
    const struct bt_embedded *text = skew_text(l->skews, gpu, stack);
    if (text == NULL) {
        return BT_OK;
    }
    (void)pthread_mutex_lock(&l->lock);
    enum bt_code code = read_skew(l, text, out, err);
    (void)pthread_mutex_unlock(&l->lock);
    return code;
}

int32_t bt_op_source_knots(const struct bt_op_source *s, int64_t *out, int32_t capacity)
{
    BT_ASSERT(capacity >= 8);
    int32_t n = 0;
    if (s->surface != NULL) {
        const struct bt_lattice *g = &s->surface->grid;
        for (int32_t i = 0; i < g->side[0] && n < capacity; i++) {
            out[n++] = g->at[0][i];
        }
        return n;
    }
    /* Each power of two and half way to the next. */
    for (int64_t at = 1; at <= (int64_t)1 << 17 && n + 1 < capacity; at *= 2) {
        out[n++] = at;
        if (at > 1) {
            out[n++] = at + at / 2;
        }
    }
    return n;
}
