/* Times of the GPU's small operations and of sampling, fused and not. Prints CSV:
 *
 *   op     what ran; "a + b": one after the other, the unfused form of the line before
 *   model  whose shapes
 *   rows   tokens; of sampling: rows of logits
 *   n      numbers of a row of the result
 *   l2     warm: the same buffers each time, as between the kernels of a step; cold: buffers that
 *          the cache no longer holds
 *   us     median of the repeats, of one replay of a graph of many launches, divided by them
 *   gb_s   the bytes that must move, by that time
 *
 * Results are checked by tests/engine/cuda/ops_test.c and sampler_test.c.
 */
#include "engine/core/rng.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/sampler.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 7, MAX_ROWS = 2048, LAYERS = 1, BLOCK_TOKENS = 16, K = 4, MAX_SEQS = 128 };

static const int64_t RING_BYTES = (int64_t)512 << 20; /* several times the L2 cache */

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "cuda_ops: %s: %s\n", what, why);
    exit(1);
}

static void check(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess) {
        fail(what, cudaGetErrorString(rc));
    }
}

static void must(enum bt_code code, const struct bt_error *err)
{
    if (code != BT_OK) {
        fail("set-up", err->msg);
    }
}

static struct bt_cuda_arena arena;
static cudaStream_t stream;

static void *take(int64_t bytes)
{
    struct bt_error err = {0};
    void *p = NULL;
    must(bt_cuda_arena_take(&arena, bytes, &p, &err), &err);
    return p;
}

static void *upload(const void *src, int64_t bytes)
{
    void *p = take(bytes);
    check(cudaMemcpy(p, src, (size_t)bytes, cudaMemcpyHostToDevice), "upload");
    return p;
}

static const struct model {
    const char *name;
    int32_t hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab;
} models[] = {
    {"llama-2-13b", 5120, 40, 40, 128, 13824, 32000},
    {"llama-3.1-8b", 4096, 32, 8, 128, 14336, 128256},
};

/* Everything on the device. Inputs come from one ring, outputs go to another. */
struct bench {
    const struct model *m;
    struct bt_cuda_types t;
    uint8_t *in, *out;
    int64_t at; /* in both rings */
    void *weight;
    float *scales;
    int32_t *ids;
    struct bt_cuda_kv kv;
    struct bt_cuda_batch batch;
    struct bt_cuda_rope rope;
    struct bt_cuda_sampler *sampler;
    struct bt_cuda_choice *choices;
    float *fresh_logits, *logits, *q;
    int32_t *drafts, *last;
    struct bt_cuda_chosen *chosen;
    int32_t rows;
    bool greedy;
};

typedef void op_fn(struct bench *b);

static void *input(struct bench *b, int64_t offset)
{
    return b->in + b->at + offset;
}

static struct bt_cuda_out output(struct bench *b, bool int8)
{
    struct bt_cuda_out o = {0};
    if (int8) {
        o.out8 = (int8_t *)b->out + b->at;
        o.out_scale = b->scales;
    } else {
        o.out16 = b->out + b->at;
    }
    return o;
}

static void run_embed(struct bench *b)
{
    bt_cuda_embed(b->t, b->ids, b->rows, b->in, NULL, b->m->hidden, b->out + b->at, stream);
}

static void add_norm(struct bench *b, bool add, bool int8)
{
    int64_t bytes = (int64_t)b->rows * b->m->hidden * 2;
    bt_cuda_add_norm(b->t, input(b, 0), add ? input(b, bytes) : NULL, b->weight, 1e-5f, b->rows,
                     b->m->hidden, output(b, int8), stream);
}

static void run_add_norm(struct bench *b)
{
    add_norm(b, true, false);
}

static void add(struct bench *b)
{
    int64_t bytes = (int64_t)b->rows * b->m->hidden * 2;
    bt_cuda_add(b->t, input(b, 0), input(b, bytes), b->rows, b->m->hidden, stream);
}

static void run_add_then_norm(struct bench *b)
{
    add(b);
    add_norm(b, false, false);
}

static void run_add_norm_int8(struct bench *b)
{
    add_norm(b, true, true);
}

static void quantise(struct bench *b, int32_t n)
{
    /* Of what was just put there, to behind it. */
    struct bt_cuda_out o = output(b, true);
    o.out8 += (int64_t)b->rows * n * 2;
    bt_cuda_quantise(b->t, b->out + b->at, b->rows, n, o, stream);
}

static void run_add_norm_then_quantise(struct bench *b)
{
    add(b);
    add_norm(b, false, false);
    quantise(b, b->m->hidden);
}

static void silu(struct bench *b, bool int8)
{
    bt_cuda_silu_mul(b->t, input(b, 0), b->rows, b->m->intermediate, output(b, int8), stream);
}

static void run_silu(struct bench *b)
{
    silu(b, false);
}

static void run_silu_int8(struct bench *b)
{
    silu(b, true);
}

static void run_silu_then_quantise(struct bench *b)
{
    silu(b, false);
    quantise(b, b->m->intermediate);
}

static void rope(struct bench *b, int32_t kv_class, bool q, bool kv)
{
    struct bt_cuda_kv pool = b->kv;
    pool.layout[0] = b->kv.layout[kv_class];
    pool.layout[0].block_bytes = b->kv.layout[0].block_bytes;
    bt_cuda_rope_kv(b->t, &pool, BT_KV_PART_TARGET, 0, &b->batch, b->rope, NULL, NULL, 1e-5f,
                    b->m->n_heads, input(b, 0), q, kv, stream);
}

static void run_rope(struct bench *b)
{
    rope(b, 0, true, true);
}

static void run_rope_halves(struct bench *b)
{
    rope(b, 0, true, false);
    rope(b, 0, false, true);
}

static void run_rope_int8(struct bench *b)
{
    rope(b, 1, true, true);
}

static void run_gather(struct bench *b)
{
    bt_cuda_gather(input(b, 0), b->ids, b->rows, b->m->hidden, b->out + b->at, stream);
}

/* ---- sampling ---- */

static void copy_logits(struct bench *b)
{
    size_t bytes = (size_t)b->rows * (size_t)b->m->vocab * sizeof(float);
    check(cudaMemcpyAsync(b->logits, b->fresh_logits, bytes, cudaMemcpyDeviceToDevice, stream),
          "copy");
}

static void run_sample(struct bench *b)
{
    copy_logits(b);
    bt_cuda_sample(b->sampler, b->logits, b->choices, b->rows, b->greedy, NULL, NULL, b->chosen,
                   b->last, stream);
}

static void run_verify(struct bench *b)
{
    copy_logits(b);
    bt_cuda_sample(b->sampler, b->logits, b->choices, b->rows / (K + 1), b->greedy, b->drafts, b->q,
                   b->chosen, b->last, stream);
}

/* ---- timing ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one call, `step` bytes of the rings further each time; 0: the same buffers. */
static double time_us(struct bench *b, op_fn *op, int64_t step, int32_t launches)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from;
    cudaEvent_t to;
    struct bt_error err = {0};
    check(cudaEventCreate(&from), "event");
    check(cudaEventCreate(&to), "event");
    b->at = 0;
    op(b); /* loads the kernel, outside the capture */
    check(cudaStreamSynchronize(stream), "first run");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int32_t i = 0; i < launches; i++) {
        op(b);
        b->at = step > 0 && b->at + 2 * step <= RING_BYTES ? b->at + step : 0;
    }
    must(bt_cuda_check_launch("launch", &err), &err);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    float ms[REPEATS];
    for (int32_t i = -1; i < REPEATS; i++) {
        check(cudaEventRecord(from, stream), "event");
        check(cudaGraphLaunch(exec, stream), "graph");
        check(cudaEventRecord(to, stream), "event");
        check(cudaEventSynchronize(to), "run");
        check(cudaEventElapsedTime(&ms[i < 0 ? 0 : i], from, to), "time");
    }
    check(cudaGraphExecDestroy(exec), "graph");
    check(cudaGraphDestroy(graph), "graph");
    check(cudaEventDestroy(from), "event");
    check(cudaEventDestroy(to), "event");
    qsort(ms, REPEATS, sizeof *ms, by_value);
    return (double)ms[REPEATS / 2] * 1e3 / launches;
}

static void print_row(const struct bench *b, const char *op, int32_t n, bool cold, double us,
                      int64_t bytes)
{
    printf("%s,%s,%d,%d,%s,%.3f,%.1f\n", op, b->m->name, b->rows, n, cold ? "cold" : "warm", us,
           (double)bytes / us * 1e-3);
    fflush(stdout);
}

/* Bytes a call moves at least, and room it takes in a ring, of n numbers a row. */
struct op {
    const char *name;
    op_fn *run;
    int64_t n, bytes, room;
};

static void time_ops(struct bench *b)
{
    const struct model *m = b->m;
    int64_t h = m->hidden;
    int64_t f = m->intermediate;
    int64_t q = (int64_t)m->n_heads * m->head_dim;
    int64_t kv = (int64_t)2 * m->n_kv_heads * m->head_dim;
    const struct op ops[] = {
        {"embed", run_embed, h, 4 * h, 4 * h},
        {"silu_mul", run_silu, f, 6 * f, 4 * f},
        {"silu_mul_int8", run_silu_int8, f, 5 * f, 4 * f},
        {"silu_mul + quantise", run_silu_then_quantise, f, 5 * f, 4 * f},
        {"rope_kv", run_rope, q + kv, 4 * (q + kv), 2 * (q + kv)},
        {"rope_q + rope_kv", run_rope_halves, q + kv, 4 * (q + kv), 2 * (q + kv)},
        {"rope_kv_int8", run_rope_int8, q + kv, 4 * q + 3 * kv, 2 * (q + kv)},
        {"gather", run_gather, h, 4 * h, 2 * h},
        /* Last: residuals grow. */
        {"add_norm", run_add_norm, h, 8 * h, 4 * h},
        {"add + norm", run_add_then_norm, h, 8 * h, 4 * h},
        {"add_norm_int8", run_add_norm_int8, h, 7 * h, 4 * h},
        {"add + norm + quantise", run_add_norm_then_quantise, h, 7 * h, 4 * h},
    };
    static const int32_t all_rows[] = {1, 8, 32, 128, MAX_ROWS};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        for (size_t r = 0; r < sizeof all_rows / sizeof *all_rows; r++) {
            b->rows = b->batch.n_rows = all_rows[r];
            int32_t launches = all_rows[r] > 128 ? 20 : 100;
            int64_t bytes = ops[i].bytes * b->rows;
            int64_t step = (ops[i].room * b->rows + 255) / 256 * 256;
            /* Few rows would meet their own earlier buffers in the cache. */
            int64_t apart = RING_BYTES / launches / 256 * 256;
            double us = time_us(b, ops[i].run, 0, launches);
            print_row(b, ops[i].name, (int32_t)ops[i].n, false, us, bytes);
            us = time_us(b, ops[i].run, step > apart ? step : apart, launches);
            print_row(b, ops[i].name, (int32_t)ops[i].n, true, us, bytes);
        }
    }
}

static void time_sampling(struct bench *b)
{
    static const struct {
        const char *name;
        float temperature;
        int32_t top_k;
        float top_p;
        int32_t k;
    } hows[] = {
        {"sample greedy", 0.0f, 0, 0.0f, 0},
        {"sample temperature", 1.0f, 0, 0.0f, 0},
        {"sample top_k 50", 1.0f, 50, 0.0f, 0},
        {"sample top_p 0.9", 1.0f, 0, 0.9f, 0},
        {"sample top_k 50 top_p 0.9", 1.0f, 50, 0.9f, 0},
        {"verify greedy k 4", 0.0f, 0, 0.0f, K},
        {"verify temperature k 4", 1.0f, 0, 0.0f, K},
    };
    static const int32_t all_seqs[] = {1, 8, 32, MAX_SEQS};
    struct bt_cuda_choice choices[MAX_SEQS];
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
        for (size_t r = 0; r < sizeof all_seqs / sizeof *all_seqs; r++) {
            int32_t k = hows[i].k;
            for (int32_t s = 0; s < MAX_SEQS; s++) {
                choices[s] = (struct bt_cuda_choice){.first_row = s * (k + 1),
                                                     .k = k,
                                                     .position = s,
                                                     .slot = s,
                                                     .temperature = hows[i].temperature,
                                                     .top_k = hows[i].top_k,
                                                     .top_p = hows[i].top_p,
                                                     .force = -1.0f,
                                                     .seed = (uint64_t)s};
            }
            check(cudaMemcpy(b->choices, choices, sizeof choices, cudaMemcpyHostToDevice),
                  "choices");
            b->rows = all_seqs[r] * (k + 1);
            b->greedy = hows[i].temperature <= 0.0f;
            int64_t bytes = (int64_t)b->rows * b->m->vocab * 4;
            double us = time_us(b, k > 0 ? run_verify : run_sample, 0, 20);
            us -= time_us(b, copy_logits, 0, 20);
            print_row(b, hows[i].name, b->m->vocab, false, us, bytes);
        }
    }
}

/* ---- set-up ---- */

static void fill_ring(struct bench *b, struct bt_rng *rng)
{
    /* A megabyte of bf16 numbers, over and over. */
    enum { N = 1 << 19 };
    uint16_t *x = malloc(N * sizeof *x);
    if (x == NULL) {
        fail("set-up", "no memory");
    }
    for (int32_t i = 0; i < N; i++) {
        float f = (float)bt_rng_normal(rng);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
    b->in = take(RING_BYTES);
    b->out = take(RING_BYTES);
    for (int64_t at = 0; at < RING_BYTES; at += (int64_t)N * 2) {
        check(cudaMemcpy(b->in + at, x, N * sizeof *x, cudaMemcpyHostToDevice), "ring");
    }
    b->weight = upload(x, (int64_t)b->m->intermediate * 2);
    b->scales = take(MAX_ROWS * 4);
    free(x);
}

/* MAX_ROWS sequences of one token each. */
static void make_batch(struct bench *b, struct bt_rng *rng)
{
    struct bt_error err = {0};
    struct bt_arch a = {.n_layers = LAYERS,
                        .n_heads = b->m->n_heads,
                        .n_kv_heads = b->m->n_kv_heads,
                        .head_dim = b->m->head_dim};
    must(bt_block_layout_init(&b->kv.layout[0], &a, NULL, BT_KV_BF16, BLOCK_TOKENS, &err), &err);
    must(bt_block_layout_init(&b->kv.layout[1], &a, NULL, BT_KV_INT8, BLOCK_TOKENS, &err), &err);
    b->kv.n_blocks = MAX_ROWS;
    b->kv.blocks = take(MAX_ROWS * b->kv.layout[0].block_bytes);
    static int32_t ids[MAX_ROWS];
    static int32_t position[MAX_ROWS];
    static int32_t segment[MAX_ROWS];
    static int32_t zeros[MAX_ROWS];
    for (int32_t i = 0; i < MAX_ROWS; i++) {
        ids[i] = (int32_t)bt_rng_below(rng, MAX_ROWS);
        position[i] = (int32_t)bt_rng_below(rng, BLOCK_TOKENS);
        segment[i] = i;
    }
    b->ids = upload(ids, sizeof ids);
    b->batch = (struct bt_cuda_batch){.n_segments = MAX_ROWS, .max_blocks = 1};
    b->batch.position = upload(position, sizeof position);
    b->batch.segment = upload(segment, sizeof segment);
    b->batch.blocks = b->batch.segment;
    b->batch.kv_class = upload(zeros, sizeof zeros);
    float angles[BLOCK_TOKENS * 128];
    for (int32_t i = 0; i < BLOCK_TOKENS * 64; i++) {
        double angle = 6.0 * bt_rng_uniform(rng);
        angles[i / 64 * 128 + i % 64] = (float)cos(angle);
        angles[i / 64 * 128 + 64 + i % 64] = (float)sin(angle);
    }
    b->rope = (struct bt_cuda_rope){upload(angles, sizeof angles), BLOCK_TOKENS};
}

static void make_sampling(struct bench *b, struct bt_rng *rng)
{
    struct bt_error err = {0};
    int64_t rows = MAX_SEQS * (K + 1);
    int64_t row_bytes = (int64_t)b->m->vocab * 4;
    must(bt_cuda_sampler_create(&arena, b->m->vocab, MAX_SEQS, K, &b->sampler, &err), &err);
    b->choices = take(MAX_SEQS * (int64_t)sizeof *b->choices);
    b->fresh_logits = take(rows * row_bytes);
    b->logits = take(rows * row_bytes);
    b->q = take(MAX_SEQS * K * row_bytes);
    check(cudaMemset(b->q, 0, (size_t)(MAX_SEQS * K * row_bytes)), "q"); /* accepts everything */
    b->drafts = take(MAX_SEQS * K * 4);
    check(cudaMemset(b->drafts, 0, MAX_SEQS * K * 4), "drafts");
    b->last = take(MAX_SEQS * 4);
    b->chosen = take(MAX_SEQS * (int64_t)sizeof *b->chosen);
    float *x = malloc((size_t)row_bytes);
    if (x == NULL) {
        fail("set-up", "no memory");
    }
    for (int32_t i = 0; i < b->m->vocab; i++) {
        x[i] = (float)(2.5 * bt_rng_normal(rng));
    }
    x[0] = 12.0f; /* token 0 is the likeliest, as the drafts say */
    for (int64_t r = 0; r < rows; r++) {
        check(cudaMemcpy(b->fresh_logits + r * b->m->vocab, x, (size_t)row_bytes,
                         cudaMemcpyHostToDevice),
              "logits");
    }
    free(x);
}

int main(void)
{
    struct bt_cuda_device device;
    struct bt_error err = {0};
    must(bt_cuda_device_open(0, &device, &err), &err);
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    printf("op,model,rows,n,l2,us,gb_s\n");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct bench b = {.m = &models[i], .t = {BT_ACT_BF16, BT_ACT_BF16}};
        struct bt_rng rng;
        bt_rng_init(&rng, 1, "cuda_ops", i);
        bt_cuda_arena_init(&arena, "bench");
        fill_ring(&b, &rng);
        make_batch(&b, &rng);
        make_sampling(&b, &rng);
        time_ops(&b);
        time_sampling(&b);
        bt_cuda_sampler_destroy(b.sampler);
        bt_cuda_arena_fini(&arena);
    }
    return 0;
}
