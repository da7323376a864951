/* Operations of an executor, measured inside its steps (CPU) or as parts of them (GPU). */
#include "cli/calibrate.h"
#include "cli/progress.h"
#include "engine/core/rng.h"
#include "engine/cpu/measure.h"
#include "engine/serve.h"
#include "sim/cost/sample.h"

#include <stdlib.h>
#include <string.h>

enum {
    BASE_CTX = 128, /* context of batches that are timed for all but attention, or half the most */
    SHAPES_MAX = 256,
    QUICK_KV_TOKENS = 1 << 14,
    FULL_KV_TOKENS = 1 << 16,
    GPU_KV_TOKENS = 1 << 17,
    GPU_CTX = 4096,
    KV_MEMORY_SHARE = 8,
    REPEATS = 3, /* at least, of a shape in a pass */
    PASSES = 3,  /* over all shapes: what disturbs the machine for a second spoils one of them */
    LOOP_REQUESTS = 8, /* of the serving loop's own time */
    LOOP_PROMPT = 16,
    LOOP_OUTPUT = 40,
};

static const int64_t QUICK_BUDGET_NS = 40000000 / PASSES; /* of one shape in a pass */
static const int64_t FULL_BUDGET_NS = 300000000 / PASSES;

static const int32_t quick_seqs[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                     12, 13, 14, 15, 16, 20, 24, 32, 48, 64};
static const int32_t full_seqs[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,  14,  15,
                                    16, 18, 20, 22, 24, 26, 28, 32, 40, 48, 64, 96, 128, 192, 256};
static const int32_t quick_decode_seqs[] = {1, 4, 16, 64};
static const int32_t full_decode_seqs[] = {1, 2, 4, 8, 16, 32, 64, 128};
static const int32_t quick_ctx[] = {16, 64, 256, 512, 1024, 2047, 4095, 8191};
static const int32_t full_ctx[] = {16,  32,   64,   128,  192,  256,  384, 512,
                                   768, 1024, 1536, 2047, 3071, 4095, 8191};
static const int32_t quick_chunks[] = {2, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512};
static const int32_t full_chunks[] = {2,   4,   8,   16,  24,  32,  48,  64,  80,  96,
                                      128, 160, 192, 224, 256, 258, 384, 512, 768, 1024};
static const int32_t prefix_chunks[] = {16, 64, 256};
static const int32_t prefixes[] = {256, 1024};
/* On a GPU, where a shape takes milliseconds. */
static const int64_t GPU_BUDGET_NS = 15000000;
static const int32_t gpu_seqs[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
static const int32_t gpu_decode_seqs[] = {1, 2, 4, 8, 16, 32, 64, 128};
static const int32_t gpu_ctx[] = {64, 256, 512, 1024, 2048, 4096};
static const int32_t gpu_chunks[] = {16,  32,  64,  96,   128,  192, 256,
                                     384, 512, 768, 1024, 1536, 2048};

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof *(array)))

/* What a shape is timed for. */
enum purpose { FOR_BATCH, FOR_DECODE, FOR_CHUNK };

struct shape {
    struct bt_step_shape step;
    enum purpose purpose;
};

struct work {
    const struct bt_calibrate_opts *o;
    const struct bt_arch *arch;
    const struct bt_backend *backend;
    struct bt_meter *meter;
    struct bt_op_rows_kept *rows;
    struct shape shapes[SHAPES_MAX];
    struct bt_step_time times[SHAPES_MAX][PASSES];
    int32_t n_shapes;
    double loop_ns; /* of the serving loop, a step */
};

/* ---- shapes ---- */

static void add_shape(struct work *w, int32_t n_seqs, int32_t ctx, int32_t n_tokens,
                      enum purpose purpose)
{
    struct bt_step_shape s = {.n_seqs = n_seqs, .ctx = ctx, .n_tokens = n_tokens};
    /* Other parts than attention do not see the context: FOR_BATCH has them. */
    s.skip = purpose == FOR_DECODE ? ~(1u << BT_PART_ATTENTION) : 0;
    bool slides = w->arch->n_sliding_layers > 0;
    bool in_window = !slides || ctx + n_tokens <= w->arch->sliding_window;
    if (bt_meter_fits(w->meter, &s) && in_window) {
        BT_ASSERT(w->n_shapes < SHAPES_MAX);
        w->shapes[w->n_shapes++] = (struct shape){s, purpose};
    }
}

struct list {
    const int32_t *p;
    int32_t n;
};

#define LIST(array) ((struct list){(array), COUNT(array)})

static int32_t base_ctx(const struct work *w)
{
    const struct bt_arch *a = w->arch;
    bool slides = a->n_sliding_layers > 0 && a->sliding_window < a->max_position;
    int32_t half = (slides ? a->sliding_window : a->max_position) / 2;
    return half < BASE_CTX ? half : BASE_CTX;
}

static void plan_shapes(struct work *w)
{
    bool quick = w->o->quick, gpu = w->backend->makes_weights;
    struct list seqs = gpu ? LIST(gpu_seqs) : quick ? LIST(quick_seqs) : LIST(full_seqs);
    struct list decode_seqs = gpu     ? LIST(gpu_decode_seqs)
                              : quick ? LIST(quick_decode_seqs)
                                      : LIST(full_decode_seqs);
    struct list ctx = gpu ? LIST(gpu_ctx) : quick ? LIST(quick_ctx) : LIST(full_ctx);
    struct list chunks = gpu ? LIST(gpu_chunks) : quick ? LIST(quick_chunks) : LIST(full_chunks);
    for (int32_t i = 0; i < seqs.n; i++) {
        add_shape(w, seqs.p[i], base_ctx(w), 1, FOR_BATCH);
    }
    for (int32_t i = 0; i < decode_seqs.n; i++) {
        for (int32_t j = 0; j < ctx.n; j++) {
            add_shape(w, decode_seqs.p[i], ctx.p[j] - gpu, 1, FOR_DECODE);
        }
    }
    for (int32_t i = 0; i < chunks.n; i++) {
        add_shape(w, 1, 0, chunks.p[i], FOR_CHUNK);
    }
    for (int32_t i = 0; i < COUNT(prefix_chunks) && !gpu; i++) {
        for (int32_t j = 0; j < COUNT(prefixes); j++) {
            add_shape(w, 1, prefixes[j], prefix_chunks[i], FOR_CHUNK);
        }
    }
}

/* ---- samples ---- */

static bool same_key(const struct bt_op_sample *a, const struct bt_op_sample *b)
{
    return strcmp(a->op, b->op) == 0 && a->weights == b->weights &&
           a->activations == b->activations && a->kv == b->kv && a->m_tokens == b->m_tokens &&
           a->n_out == b->n_out && a->k_in == b->k_in && a->n_seqs == b->n_seqs &&
           a->context_tokens == b->context_tokens;
}

/* A place that two shapes show is their mean, weighed by repeats. */
static void blend(struct bt_op_sample *a, const struct bt_op_sample *b)
{
    double n = a->n_repeats, m = b->n_repeats;
    a->median_ns = (a->median_ns * n + b->median_ns * m) / (n + m);
    a->spread_ns = (a->spread_ns * n + b->spread_ns * m) / (n + m);
    a->n_repeats += b->n_repeats;
}

static enum bt_code keep(struct work *w, enum bt_op op, const struct bt_op_sample *sample,
                         double ns, double spread_ns, int32_t n_repeats, struct bt_error *err)
{
    struct bt_op_rows_kept *r = w->rows;
    struct bt_op_sample s = *sample;
    if (w->backend->makes_weights && ns <= 0) {
        return BT_OK; /* part of another kernel */
    }
    (void)snprintf(s.op, sizeof s.op, "%s", bt_op_name(op));
    s.median_ns = ns > 1 ? ns : 1; /* an operation that is not there takes no time: say so */
    s.spread_ns = spread_ns;
    s.n_repeats = n_repeats;
    s.block_tokens = op == BT_OP_ATTN_DECODE || op == BT_OP_ATTN_PREFILL || op == BT_OP_KV_WRITE
                         ? w->o->block_tokens
                         : 0;
    s.tp = 1;
    for (int64_t i = 0; i < r->n; i++) {
        if (same_key(&r->samples[i], &s)) {
            blend(&r->samples[i], &s);
            return BT_OK;
        }
    }
    if (r->n == r->cap) {
        int64_t cap = r->cap == 0 ? 256 : 2 * r->cap;
        struct bt_op_sample *grown = realloc(r->samples, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, cap, "calibrate: no memory for %lld samples",
                    (long long)cap);
        }
        r->samples = grown;
        r->cap = cap;
    }
    r->samples[r->n++] = s;
    return BT_OK;
}

static enum bt_weight_format format_of(const struct bt_linear *l)
{
    if (l->quantised) {
        return bt_qweight_format(&l->q);
    }
    return l->w.dtype == BT_DTYPE_F16    ? BT_WEIGHT_FP16
           : l->w.dtype == BT_DTYPE_BF16 ? BT_WEIGHT_BF16
                                         : BT_WEIGHT_FP32;
}

/* A matrix as a sample tells it. */
struct matrix {
    enum bt_weight_format weights;
    enum bt_act_format activations;
    int32_t n_in;
};

/* One of the layers' matrices (BT_LINEARS: lm_head), of a model or of one that is only a shape. */
static struct matrix matrix_of(const struct work *w, enum bt_linear_id id)
{
    const struct bt_model *m = &w->o->engine->model;
    const struct bt_model_config *c = &m->config;
    bool head = id == BT_LINEARS;
    struct matrix x = {.n_in = head ? c->arch.hidden : bt_linear_n_in(&c->arch, id)};
    if (bt_model_is_shape(m)) {
        bool integer = c->quant.weights != BT_WEIGHT_DEFAULT && (!head || c->quant.lm_head);
        enum bt_weight_format plain =
            w->o->engine->compute == BT_ACT_FP16 ? BT_WEIGHT_FP16 : BT_WEIGHT_BF16;
        x.weights = integer ? c->quant.weights : plain;
        x.activations = integer ? c->quant.activations : BT_ACT_DEFAULT;
    } else {
        const struct bt_linear *l = head ? &m->lm_head : &m->layers[0].linear[id];
        x.weights = format_of(l);
        x.activations = l->act;
    }
    if (x.activations == BT_ACT_DEFAULT) {
        x.activations = w->o->engine->compute;
    }
    return x;
}

/* The formats that change what an operation does. On a GPU the norm and the activation round for
 * the product that reads them, RoPE writes the cache, and attention is told by what it computes in;
 * on the CPU products round and the write is a part by itself. */
static void label(const struct work *w, enum bt_op op, struct bt_op_sample *s)
{
    bool gpu = w->backend->makes_weights;
    bool attends = op == BT_OP_ATTN_DECODE || op == BT_OP_ATTN_PREFILL;
    if (gpu && op == BT_OP_NORM) {
        s->activations = matrix_of(w, BT_LINEAR_Q).activations;
    } else if (gpu && op == BT_OP_ACTIVATION) {
        s->activations = matrix_of(w, BT_LINEAR_DOWN).activations;
    } else if (gpu || !attends) {
        s->activations = w->o->engine->compute;
    }
    if (attends || op == BT_OP_KV_WRITE || (gpu && op == BT_OP_ROPE)) {
        s->kv = w->o->engine->kv;
    }
}

/* `with` (BT_STEP_PARTS: nothing) is what the product's input needs by itself. */
static enum bt_code keep_gemm(struct work *w, enum bt_linear_id id, int32_t m, int32_t n,
                              const struct bt_step_time *t, enum bt_step_part op,
                              enum bt_step_part with, int32_t per, struct bt_error *err)
{
    struct matrix x = matrix_of(w, id);
    struct bt_op_sample s = {
        .weights = x.weights,
        .activations = x.activations,
        .m_tokens = m,
        .n_out = n,
        .k_in = x.n_in,
        .flops = 2 * (int64_t)m * n * x.n_in,
    };
    double ns = t->op_ns[op] + (with == BT_STEP_PARTS ? 0 : t->op_ns[with]);
    s.bytes = bt_weight_matrix_bytes(n, x.n_in, s.weights);
    return keep(w, BT_OP_GEMM, &s, ns / per, t->op_spread[op] / per, t->n_repeats, err);
}

static enum bt_code keep_plain(struct work *w, enum bt_op as, int32_t m, int32_t width,
                               const struct bt_step_time *t, enum bt_step_part op, int32_t per,
                               struct bt_error *err)
{
    struct bt_op_sample s = {.m_tokens = m, .n_out = width};
    label(w, as, &s);
    return keep(w, as, &s, t->op_ns[op] / per, t->op_spread[op] / per, t->n_repeats, err);
}

static enum bt_code keep_attention(struct work *w, const struct shape *s,
                                   const struct bt_step_time *t, struct bt_error *err)
{
    const struct bt_arch *a = w->arch;
    enum bt_op op = s->purpose == FOR_DECODE ? BT_OP_ATTN_DECODE : BT_OP_ATTN_PREFILL;
    struct bt_op_sample x = {
        .m_tokens = s->step.n_seqs * s->step.n_tokens,
        .n_seqs = s->step.n_seqs,
        .context_tokens = s->step.ctx + s->step.n_tokens,
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
    };
    if (s->purpose == FOR_BATCH) {
        return BT_OK; /* one context of many: no line over contexts comes of it */
    }
    label(w, op, &x);
    return keep(w, op, &x, t->op_ns[BT_PART_ATTENTION] / a->n_layers,
                t->op_spread[BT_PART_ATTENTION] / a->n_layers, t->n_repeats, err);
}

static enum bt_code keep_all(struct work *w, const struct shape *s, const struct bt_step_time *t,
                             struct bt_error *err)
{
    const struct bt_arch *a = w->arch;
    enum bt_step_part none = BT_STEP_PARTS;
    int32_t layers = a->n_layers;
    int32_t m = s->step.n_seqs * s->step.n_tokens;
    int32_t rows = s->step.n_seqs;
    int32_t q_dim = a->n_heads * a->head_dim, kv_dim = a->n_kv_heads * a->head_dim;
    int32_t up = (a->mlp_gated ? 2 : 1) * a->intermediate;
    if (s->purpose == FOR_DECODE || m > w->backend->piece_rows) {
        /* FOR_BATCH has the rest; that of a large m is several pieces, measured as such. */
        return keep_attention(w, s, t, err);
    }
    BT_TRY(keep_gemm(w, BT_LINEAR_Q, m, q_dim + 2 * kv_dim, t, BT_PART_QKV, none, layers, err));
    BT_TRY(keep_gemm(w, BT_LINEAR_O, m, a->hidden, t, BT_PART_O, BT_PART_QUANTISE, layers, err));
    BT_TRY(keep_gemm(w, BT_LINEAR_UP, m, up, t, BT_PART_GATE_UP, none, layers, err));
    BT_TRY(keep_gemm(w, BT_LINEAR_DOWN, m, a->hidden, t, BT_PART_DOWN, none, layers, err));
    BT_TRY(keep_gemm(w, BT_LINEARS, rows, a->vocab, t, BT_PART_LM_HEAD, none, 1, err));
    BT_TRY(keep_plain(w, BT_OP_EMBEDDING, m, a->hidden, t, BT_PART_EMBED, 1, err));
    BT_TRY(keep_plain(w, BT_OP_NORM, m, a->hidden, t, BT_PART_NORM, 2 * layers, err));
    BT_TRY(keep_plain(w, BT_OP_ADD, m, a->hidden, t, BT_PART_ADD, 2 * layers, err));
    BT_TRY(keep_plain(w, BT_OP_ROPE, m, q_dim + kv_dim, t, BT_PART_ROPE, layers, err));
    BT_TRY(keep_plain(w, BT_OP_KV_WRITE, m, 2 * kv_dim, t, BT_PART_KV_WRITE, layers, err));
    BT_TRY(keep_plain(w, BT_OP_ACTIVATION, m, a->intermediate, t, BT_PART_ACTIVATION, layers, err));
    BT_TRY(keep_plain(w, BT_OP_SAMPLE, rows, a->vocab, t, BT_PART_SAMPLE, 1, err));
    BT_TRY(keep_attention(w, s, t, err));
    struct bt_op_sample host = {.m_tokens = rows};
    if (s->purpose == FOR_CHUNK) {
        return BT_OK;
    }
    if (w->backend->makes_weights) {
        return keep(w, BT_OP_HOST, &host, t->host_ns, 0, t->n_repeats, err);
    }
    double rest_ns = t->rest_ns + t->op_ns[BT_PART_FINAL_NORM] + w->loop_ns;
    return keep(w, BT_OP_HOST, &host, rest_ns, t->rest_spread, t->n_repeats, err);
}

/* ---- the serving loop ---- */

/* Median time from the end of a step to the plan of the next. */
static double gap_of(const struct bt_recording *r)
{
    int64_t *gaps = calloc((size_t)r->n_events + 1, sizeof *gaps);
    if (gaps == NULL) {
        return 0;
    }
    int64_t n = 0;
    for (int64_t i = 1; i < r->n_events; i++) {
        const struct bt_rec_event *e = &r->events[i];
        if (e->kind == BT_REC_PLAN && e->i >= 0 && r->events[i - 1].kind == BT_REC_COMPLETE) {
            gaps[n++] = e->now_ns - r->events[i - 1].now_ns;
        }
    }
    double spread;
    double gap = n > 0 ? bt_meter_median(gaps, (int32_t)n, &spread) : 0;
    free(gaps);
    return gap;
}

static enum bt_code serve_loop(struct work *w, struct bt_gen_table *table, struct bt_error *err)
{
    const struct bt_engine *e = w->o->engine;
    struct bt_executor_opts eo = {
        .model = &e->model,
        .compute = e->compute,
        .kv = e->kv,
        .block_tokens = w->o->block_tokens,
        .n_blocks = LOOP_REQUESTS * ((LOOP_PROMPT + LOOP_OUTPUT) / w->o->block_tokens + 2),
        .max_seqs = LOOP_REQUESTS,
        .max_model_len = LOOP_PROMPT + LOOP_OUTPUT,
        .n_threads = w->o->n_threads,
        .clock = w->o->clock,
        .requests = table,
    };
    struct bt_executor x = {0};
    BT_TRY(w->backend->create(&eo, &x, err));
    struct bt_serve_opts so = {
        .executor = &x,
        .sched = {.max_batched_tokens = LOOP_REQUESTS * LOOP_PROMPT, .chunked_prefill = true},
        .requests = table,
        .clock = w->o->clock,
        .fast = true};
    w->backend->fit_sched(&x, &so.sched);
    struct bt_recording recording = {0};
    so.recording = &recording;
    struct bt_serve_result result;
    enum bt_code code = bt_serve_run(&so, &result, err);
    w->loop_ns = code == BT_OK ? gap_of(&recording) : 0;
    bt_recording_fini(&recording);
    x.ops->destroy(x.self);
    return code;
}

static enum bt_code measure_loop(struct work *w, struct bt_error *err)
{
    struct bt_gen_request requests[LOOP_REQUESTS];
    int32_t prompt[LOOP_PROMPT], out[LOOP_REQUESTS][LOOP_OUTPUT];
    if (w->arch->max_position < LOOP_PROMPT + LOOP_OUTPUT) {
        return BT_OK;
    }
    for (int32_t i = 0; i < LOOP_PROMPT; i++) {
        prompt[i] = (int32_t)(bt_rng_at(2, (uint64_t)i) * w->arch->vocab);
    }
    for (int32_t i = 0; i < LOOP_REQUESTS; i++) {
        requests[i] = (struct bt_gen_request){.prompt = prompt,
                                              .n_prompt = LOOP_PROMPT,
                                              .max_new_tokens = LOOP_OUTPUT,
                                              .ignore_eos = true,
                                              .out = out[i]};
    }
    struct bt_gen_table table = {.requests = requests, .n = LOOP_REQUESTS};
    return serve_loop(w, &table, err);
}

/* ---- all of it ---- */

static enum bt_code make_meter(struct work *w, struct bt_error *err)
{
    const struct bt_engine *e = w->o->engine;
    int64_t token = bt_arch_kv_bytes_per_token(w->arch, e->kv, 1);
    int64_t most = w->o->memory_bytes / KV_MEMORY_SHARE / token;
    bool gpu = w->backend->makes_weights;
    int64_t wanted = gpu ? GPU_KV_TOKENS : w->o->quick ? QUICK_KV_TOKENS : FULL_KV_TOKENS;
    int32_t largest =
        w->o->quick && !gpu ? quick_seqs[COUNT(quick_seqs) - 1] : full_seqs[COUNT(full_seqs) - 1];
    most = gpu ? 3 * most : most;
    struct bt_meter_opts mo = {
        .model = &e->model,
        .compute = e->compute,
        .kv = e->kv,
        .block_tokens = w->o->block_tokens,
        .max_seqs = largest,
        .max_ctx = gpu && w->arch->max_position > GPU_CTX ? GPU_CTX : w->arch->max_position,
        .max_kv_tokens = most < wanted ? most : wanted,
        .n_threads = w->o->n_threads,
        .clock = w->o->clock,
        .tune = true,
    };
    return w->backend->meter_create(&mo, &w->meter, err);
}

static int compare_steps(const void *a, const void *b)
{
    double x = ((const struct bt_step_time *)a)->step_ns;
    double y = ((const struct bt_step_time *)b)->step_ns;
    return (x > y) - (x < y);
}

/* Every shape once a pass, forth and back, so that each comes after its like: behind a long prefill
 * a few steps are slow, until the weights are back in the caches. The middle one of its passes is
 * kept. */
static enum bt_code run_shapes(const struct bt_cli *cli, struct work *w, struct bt_error *err)
{
    struct bt_progress progress;
    int64_t budget_ns = w->backend->makes_weights ? GPU_BUDGET_NS
                        : w->o->quick             ? QUICK_BUDGET_NS
                                                  : FULL_BUDGET_NS;
    bt_progress_start(&progress, "calibrate", "shapes", cli->quiet);
    enum bt_code code = BT_OK;
    int32_t passes = w->backend->makes_weights ? 1 : PASSES; /* a GPU is nobody else's */
    for (int32_t i = 0; i < passes * w->n_shapes && code == BT_OK; i++) {
        int32_t pass = i / w->n_shapes, at = i % w->n_shapes;
        int32_t shape = pass % 2 == 0 ? at : w->n_shapes - 1 - at;
        code = w->backend->meter_run(w->meter, &w->shapes[shape].step, REPEATS, budget_ns,
                                     &w->times[shape][pass], err);
        bt_progress_update(&progress, (double)(i + 1) / passes, w->n_shapes);
    }
    for (int32_t i = 0; i < w->n_shapes && code == BT_OK; i++) {
        qsort(w->times[i], (size_t)passes, sizeof *w->times[i], compare_steps);
        code = keep_all(w, &w->shapes[i], &w->times[i][passes / 2], err);
    }
    bt_progress_finish(&progress);
    return code;
}

enum bt_code bt_calibrate_ops(const struct bt_cli *cli, const struct bt_calibrate_opts *opts,
                              struct bt_op_rows_kept *out, struct bt_error *err)
{
    struct work *w = calloc(1, sizeof *w);
    if (w == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "calibrate: no memory");
    }
    *w = (struct work){.o = opts,
                       .backend = opts->engine->backend,
                       .arch = &opts->engine->model.config.arch,
                       .rows = out};
    /* On a GPU the loop's time is hidden behind the device's. */
    enum bt_code code = w->backend->makes_weights ? BT_OK : measure_loop(w, err);
    if (code == BT_OK) {
        code = make_meter(w, err);
    }
    if (code == BT_OK) {
        plan_shapes(w);
        code = run_shapes(cli, w, err);
    }
    bt_meter_destroy(w->meter);
    free(w);
    return code;
}
