/* Times every kernel of the CUDA engine's linear layers on the shapes of Llama-2-13B and
 * Llama-3.1-8B, weights cold in L2, as nodes of a CUDA graph. CSV to stdout:
 *   model, layer, n, k, weights, m, kernel, us, gb_per_s, tflop_per_s, roof, off
 * us is the median of the replays a node; roof is the fraction of what memory (4269 GB/s, weights
 * read once) or the tensor cores (850 TFLOP/s 16-bit, 1740 TOP/s INT8) would allow, the H200's
 * measured ceilings; off is the relative distance to the first kernel's result.
 *
 *   cuda_linear [WEIGHTS ...]       of bf16, w8a8, w8a16, w4a16, w4a8; default: all
 *   cuda_linear once                instead, one launch of each of our kernels on a small layer,
 *                                   for compute-sanitizer
 *   cuda_linear tune [WEIGHTS ...]  instead, how long the choice of kernels takes for the 13B, and
 *                                   what is chosen
 */
#include "engine/cuda/linear.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROWS = 2048, COPIES = 8, REPLAYS = 5, NODES = 16 };

struct layer {
    const char *model, *name;
    int32_t n, k;
};

static const struct layer layers[] = {
    {"13B", "qkv", 15360, 5120},    {"13B", "o", 5120, 5120},    {"13B", "gate_up", 27648, 5120},
    {"13B", "down", 5120, 13824},   {"8B", "qkv", 6144, 4096},   {"8B", "o", 4096, 4096},
    {"8B", "gate_up", 28672, 4096}, {"8B", "down", 4096, 14336},
};

struct kind {
    const char *name;
    enum bt_weight_format weights;
    enum bt_act_format act;
};

static const struct kind kinds[] = {
    {"bf16", BT_WEIGHT_BF16, BT_ACT_BF16},
    {"w8a8", BT_WEIGHT_INT8, BT_ACT_INT8_DYNAMIC},
    {"w8a16", BT_WEIGHT_INT8, BT_ACT_BF16},
    {"w4a16", BT_WEIGHT_INT4_G128, BT_ACT_BF16},
    {"w4a8", BT_WEIGHT_INT4_G128, BT_ACT_INT8_DYNAMIC},
};

static const int32_t rows[] = {1, 8, 16, 32, 64, 128, 256, 2048};

enum { LAYERS = 8, KINDS = 5, ROWS = 8 };

static void check(int ok, const char *what, const char *why)
{
    if (!ok) {
        (void)fprintf(stderr, "cuda_linear: %s: %s\n", what, why);
        exit(1);
    }
}

static void check_cuda(cudaError_t rc, const char *what)
{
    check(rc == cudaSuccess, what, cudaGetErrorString(rc));
}

struct bench {
    struct bt_cuda_arena arena; /* inputs and outputs */
    struct bt_cuda_gemm *gemm;
    cudaStream_t stream;
    struct bt_cuda_linear layers[COPIES];
    int32_t n_copies;
    struct bt_cuda_x x;
    void *y;
    float *host; /* [MAX_ROWS, N] */
    float *first;
};

static void *take(struct bt_cuda_arena *a, int64_t bytes)
{
    struct bt_error err = {0};
    void *p = NULL;
    check(bt_cuda_arena_take(a, bytes, &p, &err) == BT_OK, "memory", err.msg);
    return p;
}

static void *random_bytes(struct bt_cuda_arena *a, size_t n, int is_bf16)
{
    uint16_t *p = malloc(n);
    uint64_t state = n;
    for (size_t i = 0; i < n / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        /* A BF16 in (-2, -1) or (1, 2), or two bytes that are not -128. */
        uint16_t v = (uint16_t)(state >> 40);
        p[i] = is_bf16 ? (uint16_t)((v & 0x807f) | 0x3f80) : (uint16_t)(v & 0x7f7f);
    }
    void *d = take(a, (int64_t)n);
    check_cuda(cudaMemcpy(d, p, n, cudaMemcpyHostToDevice), "inputs");
    free(p);
    return d;
}

static void launch(struct bench *b, int32_t kernel, int32_t copy, int32_t m, enum bt_cuda_y type)
{
    struct bt_error err = {0};
    check(bt_cuda_linear_run_with(b->gemm, kernel, &b->layers[copy], &b->x, m, b->y, type,
                                  b->stream, &err) == BT_OK,
          "run", err.msg);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median microseconds of a launch. */
static double time_kernel(struct bench *b, int32_t kernel, int32_t m)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t at[2];
    check_cuda(cudaEventCreate(&at[0]), "event");
    check_cuda(cudaEventCreate(&at[1]), "event");
    check_cuda(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int32_t i = 0; i < NODES; i++) {
        launch(b, kernel, i % b->n_copies, m, BT_CUDA_Y_COMPUTE);
    }
    check_cuda(cudaStreamEndCapture(b->stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
    float us[REPLAYS];
    for (int32_t r = -1; r < REPLAYS; r++) {
        check_cuda(cudaEventRecord(at[0], b->stream), "event");
        check_cuda(cudaGraphLaunch(exec, b->stream), "graph");
        check_cuda(cudaEventRecord(at[1], b->stream), "event");
        check_cuda(cudaStreamSynchronize(b->stream), "replay");
        float ms = 0.0f;
        check_cuda(cudaEventElapsedTime(&ms, at[0], at[1]), "event");
        us[r < 0 ? 0 : r] = ms * 1e3f / (float)NODES;
    }
    check_cuda(cudaGraphExecDestroy(exec), "graph");
    check_cuda(cudaGraphDestroy(graph), "graph");
    check_cuda(cudaEventDestroy(at[0]), "event");
    check_cuda(cudaEventDestroy(at[1]), "event");
    qsort(us, REPLAYS, sizeof us[0], by_value);
    return (double)us[REPLAYS / 2];
}

/* Relative distance to the result of the first kernel that ran this m, which it becomes. */
static double compare(struct bench *b, int32_t kernel, int32_t m, int32_t n, int is_first)
{
    size_t count = (size_t)m * (size_t)n;
    float *to = is_first ? b->first : b->host;
    launch(b, kernel, 0, m, BT_CUDA_Y_F32);
    check_cuda(cudaMemcpyAsync(to, b->y, count * sizeof *to, cudaMemcpyDeviceToHost, b->stream),
               "result");
    check_cuda(cudaStreamSynchronize(b->stream), "result");
    double off = 0.0;
    double size = 0.0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)to[i] - (double)b->first[i];
        off += d * d;
        size += (double)b->first[i] * (double)b->first[i];
    }
    return sqrt(off / size);
}

static void time_layer(struct bench *b, const struct layer *l, const struct kind *k)
{
    const struct bt_cuda_linear *w = &b->layers[0];
    for (int32_t r = 0; r < ROWS; r++) {
        int32_t m = rows[r];
        int is_first = 1;
        for (int32_t kernel = 0; kernel < bt_cuda_linear_kernels(); kernel++) {
            const char *name = bt_cuda_linear_kernel_name(b->gemm, kernel, w, m);
            /* What is hopeless there: kernels for few rows with thousands, the general one. */
            int few = kernel > 0 && strncmp(name == NULL ? "" : name, "tiles", 5) != 0;
            if (name == NULL || (m > 256 && few) || strcmp(name, "general") == 0) {
                continue;
            }
            double off = m <= 128 ? compare(b, kernel, m, l->n, is_first) : 0.0;
            is_first = 0;
            double s = time_kernel(b, kernel, m) * 1e-6;
            double flops = 2.0 * m * l->n * l->k;
            double bytes = (double)w->bytes;
            double peak = k->act == BT_ACT_INT8_DYNAMIC ? 1740e12 : 850e12;
            double roof = fmax(bytes / 4269e9, flops / peak);
            (void)printf("%s,%s,%d,%d,%s,%d,%s,%.2f,%.0f,%.1f,%.3f,%.1e\n", l->model, l->name, l->n,
                         l->k, k->name, m, name, s * 1e6, bytes / s * 1e-9, flops / s * 1e-12,
                         roof / s, off);
        }
        (void)fflush(stdout);
    }
}

static void bench_layer(const struct bt_cuda_device *device, const struct layer *l,
                        const struct kind *k)
{
    struct bench b = {0};
    struct bt_error err = {0};
    bt_cuda_arena_init(&b.arena, "bench");
    check_cuda(cudaStreamCreate(&b.stream), "stream");
    struct bt_cuda_gemm_opts o = {
        .device = device, .compute = BT_ACT_BF16, .max_rows = MAX_ROWS, .arena = &b.arena};
    check(bt_cuda_gemm_create(&o, &b.gemm, &err) == BT_OK, "gemm", err.msg);
    int64_t bytes = 0;
    while (b.n_copies < 2 || (b.n_copies < COPIES && bytes < 4 * device->l2_bytes)) {
        struct bt_cuda_linear *at = &b.layers[b.n_copies++];
        check(bt_cuda_linear_random(b.gemm, &b.arena, l->n, l->k, k->weights, k->act, false,
                                    (uint64_t)b.n_copies, at, &err) == BT_OK,
              "weights", err.msg);
        bytes += at->bytes;
    }
    size_t rows_in = (size_t)MAX_ROWS * (size_t)l->k;
    size_t rows_out = (size_t)MAX_ROWS * (size_t)l->n;
    float *scale = malloc(MAX_ROWS * sizeof *scale);
    for (int32_t i = 0; i < MAX_ROWS; i++) {
        scale[i] = 0.01f + 1e-5f * (float)i;
    }
    void *d_scale = take(&b.arena, MAX_ROWS * 4);
    check_cuda(cudaMemcpy(d_scale, scale, MAX_ROWS * 4, cudaMemcpyHostToDevice), "inputs");
    free(scale);
    b.x = (struct bt_cuda_x){.x16 = random_bytes(&b.arena, rows_in * 2, 1),
                             .x8 = random_bytes(&b.arena, rows_in, 0),
                             .x_scale = d_scale};
    b.y = take(&b.arena, (int64_t)rows_out * 4);
    b.host = malloc(rows_out * 4);
    b.first = malloc(rows_out * 4);
    time_layer(&b, l, k);
    free(b.host);
    free(b.first);
    bt_cuda_gemm_destroy(b.gemm);
    bt_cuda_arena_fini(&b.arena);
    check_cuda(cudaStreamDestroy(b.stream), "stream");
}

static void once(const struct bt_cuda_device *device, const struct kind *k)
{
    static const int32_t few[] = {5, 12, 20, 40, 100};
    struct bench b = {0};
    struct bt_error err = {0};
    bt_cuda_arena_init(&b.arena, "bench");
    struct bt_cuda_gemm_opts o = {
        .device = device, .compute = BT_ACT_BF16, .max_rows = 128, .arena = &b.arena};
    check(bt_cuda_gemm_create(&o, &b.gemm, &err) == BT_OK, "gemm", err.msg);
    check(bt_cuda_linear_random(b.gemm, &b.arena, 328, 1168, k->weights, k->act, true, 1,
                                &b.layers[0], &err) == BT_OK,
          "weights", err.msg);
    b.x = (struct bt_cuda_x){.x16 = random_bytes(&b.arena, 128 * 1168 * 2, 1),
                             .x8 = random_bytes(&b.arena, 128 * 1168, 0),
                             .x_scale = random_bytes(&b.arena, 128 * 4, 1)};
    b.y = take(&b.arena, 128 * 328 * 4);
    for (int32_t i = 0; i < 5; i++) {
        for (int32_t kernel = 1; kernel < bt_cuda_linear_kernels(); kernel++) {
            if (bt_cuda_linear_kernel_name(b.gemm, kernel, &b.layers[0], few[i]) != NULL) {
                launch(&b, kernel, 0, few[i], BT_CUDA_Y_COMPUTE);
            }
        }
    }
    check_cuda(cudaDeviceSynchronize(), k->name);
    bt_cuda_gemm_destroy(b.gemm);
    bt_cuda_arena_fini(&b.arena);
}

/* Chooses kernels for all layers of the 13B and prints the choice. */
static void tune(const struct bt_cuda_device *device, const struct kind *k)
{
    struct bt_cuda_arena arena;
    struct bt_error err = {0};
    bt_cuda_arena_init(&arena, "bench");
    struct bt_cuda_gemm_opts o = {
        .device = device, .compute = BT_ACT_BF16, .max_rows = MAX_ROWS, .arena = &arena};
    struct bt_cuda_gemm *g = NULL;
    check(bt_cuda_gemm_create(&o, &g, &err) == BT_OK, "gemm", err.msg);
    for (int32_t i = 0; i < LAYERS && strcmp(layers[i].model, "13B") == 0; i++) {
        for (int32_t copy = 0; copy < COPIES; copy++) {
            struct bt_cuda_linear l;
            check(bt_cuda_linear_random(g, &arena, layers[i].n, layers[i].k, k->weights, k->act,
                                        false, (uint64_t)copy, &l, &err) == BT_OK,
                  "weights", err.msg);
        }
    }
    struct timespec from;
    struct timespec to;
    (void)timespec_get(&from, TIME_UTC);
    check(bt_cuda_gemm_tune(g, &err) == BT_OK, "tune", err.msg);
    (void)timespec_get(&to, TIME_UTC);
    (void)printf("%s: chosen in %.2f s\n", k->name,
                 (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
    bt_cuda_gemm_explain(g, stdout);
    bt_cuda_gemm_destroy(g);
    bt_cuda_arena_fini(&arena);
}

int main(int argc, char **argv)
{
    struct bt_cuda_device device;
    struct bt_error err = {0};
    check(bt_cuda_device_open(0, &device, &err) == BT_OK, "device", err.msg);
    if (argc > 1 && strcmp(argv[1], "once") == 0) {
        for (int32_t k = 0; k < KINDS; k++) {
            once(&device, &kinds[k]);
        }
        return 0;
    }
    int only_tune = argc > 1 && strcmp(argv[1], "tune") == 0;
    if (!only_tune) {
        (void)printf("model,layer,n,k,weights,m,kernel,us,gb_per_s,tflop_per_s,roof,off\n");
    }
    for (int32_t k = 0; k < KINDS; k++) {
        int wanted = argc == 1 + only_tune;
        for (int32_t i = 1 + only_tune; i < argc; i++) {
            wanted = wanted || strcmp(argv[i], kinds[k].name) == 0;
        }
        if (wanted && only_tune) {
            tune(&device, &kinds[k]);
        }
        for (int32_t l = 0; l < LAYERS && wanted && !only_tune; l++) {
            bench_layer(&device, &layers[l], &kinds[k]);
        }
    }
    return 0;
}
