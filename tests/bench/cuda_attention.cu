/* Times attention of the CUDA engine and prints CSV. Run by hand on a GPU:
 *   cuda_attention [PREFIX]
 * with PREFIX, only cases whose line begins so: "decode", "prefill,int8,40".
 *
 * Launches follow each other in a CUDA graph and walk through the layers of a pool that is larger
 * than L2, with shuffled blocks of 16 tokens: keys and values are cold. Times are medians of
 * replays. TB/s counts keys, values and scales, each once; TFLOP/s counts what the causal mask lets
 * through.
 */
#include "engine/core/rng.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/check.cuh"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

enum { BLOCK_TOKENS = 16, REPLAYS = 9 };

static const int64_t COLD_BYTES = 512ll << 20; /* of a pool, at least, unless 64 layers are less */

struct bench_case {
    const char *kind;
    enum bt_kv_format kv;
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t batch, rows, context; /* context: tokens, the rows included */
};

static void check(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(rc));
        exit(1);
    }
}

static void check(enum bt_code code, const struct bt_error &err)
{
    if (code != BT_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

/* Finite 16-bit numbers between 1/16 and 2 of either sign, of both types; as INT8 they are any byte
 * but their scales are such numbers too. */
static __global__ void fill_kernel(uint16_t *x, int64_t n, uint32_t low, uint32_t span)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += stride) {
        uint32_t h = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32) * 40503u;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
        x[i] = (uint16_t)((h & 0x8000u) | (low + (h & 0x7fffu) % span));
    }
}

static void fill(void *p, int64_t bytes, enum bt_kv_format f)
{
    bool half = f != BT_KV_BF16;
    fill_kernel<<<2048, 256>>>((uint16_t *)p, bytes / 2, half ? 0x2c00 : 0x3d80,
                               half ? 0x1400 : 0x280);
    check(cudaDeviceSynchronize(), "fill");
}

template <class T> static const T *upload(struct bt_cuda_arena *arena, const std::vector<T> &x)
{
    struct bt_error err = {};
    void *p = NULL;
    check(bt_cuda_arena_take(arena, (int64_t)(x.size() * sizeof(T)), &p, &err), err);
    check(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
    return (const T *)p;
}

static std::string name_of(const bench_case &c)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s,%s,%d,%d,%d,%d,%d,%d,", c.kind, bt_kv_format_name(c.kv),
                   c.n_heads, c.n_kv_heads, c.head_dim, c.batch, c.rows, c.context);
    return name;
}

static double seen_keys(const bench_case &c)
{
    double keys = 0.0;
    for (int32_t i = 0; i < c.rows; i++) {
        keys += c.context - c.rows + i + 1;
    }
    return keys * c.batch;
}

/* Microseconds of one launch. */
static double time_graph(struct bt_cuda_attn *attn, const struct bt_cuda_batch &b, int32_t n_layers,
                         int32_t launches, bool decode, const void *q, int32_t q_stride, void *out)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, stop;
    struct bt_error err = {};
    check(cudaStreamCreate(&stream), "stream");
    check(cudaEventCreate(&start), "event");
    check(cudaEventCreate(&stop), "event");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int32_t i = 0; i < launches; i++) {
        check(bt_cuda_attn_run(attn, &b, i % n_layers, decode, q, q_stride, out, stream, &err),
              err);
    }
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    std::vector<double> us;
    for (int32_t i = 0; i < REPLAYS; i++) {
        float ms = 0.0f;
        check(cudaEventRecord(start, stream), "record");
        check(cudaGraphLaunch(exec, stream), "launch");
        check(cudaEventRecord(stop, stream), "record");
        check(cudaEventSynchronize(stop), "replay");
        check(cudaEventElapsedTime(&ms, start, stop), "elapsed");
        us.push_back(1e3 * ms / launches);
    }
    check(cudaGraphExecDestroy(exec), "destroy");
    check(cudaGraphDestroy(graph), "destroy");
    check(cudaEventDestroy(start), "destroy");
    check(cudaEventDestroy(stop), "destroy");
    check(cudaStreamDestroy(stream), "destroy");
    std::sort(us.begin() + 1, us.end()); /* the first replay warms up */
    return us[1 + (REPLAYS - 1) / 2];
}

static void run(const struct bt_cuda_device &device, const bench_case &c)
{
    struct bt_error err = {};
    struct bt_arch arch = {};
    snprintf(arch.name, sizeof arch.name, "bench");
    arch.n_heads = c.n_heads;
    arch.n_kv_heads = c.n_kv_heads;
    arch.head_dim = c.head_dim;
    arch.n_layers = 1;
    int32_t max_blocks = (c.context + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    double token = (double)bt_arch_kv_bytes_per_token(&arch, c.kv, 1);
    double layer_bytes = token * c.context * c.batch;
    int64_t want = (int64_t)((double)COLD_BYTES / layer_bytes) + 1;
    arch.n_layers = (int32_t)std::min<int64_t>(want, 64);

    struct bt_cuda_arena arena;
    bt_cuda_arena_init(&arena, "bench");
    struct bt_cuda_kv kv = {};
    check(bt_block_layout_init(&kv.layout[0], &arch, NULL, c.kv, BLOCK_TOKENS, &err), err);
    kv.n_blocks = max_blocks * c.batch;
    void *p = NULL;
    int64_t pool_bytes = kv.n_blocks * kv.layout[0].block_bytes;
    check(bt_cuda_arena_take(&arena, pool_bytes, &p, &err), err);
    fill(p, pool_bytes, c.kv);
    kv.blocks = (uint8_t *)p;

    int32_t n_rows = c.batch * c.rows;
    struct bt_cuda_attn_opts o = {};
    o.device = &device;
    o.kv = &kv;
    o.arch = &arch;
    o.compute = c.kv == BT_KV_FP16 ? BT_ACT_FP16 : BT_ACT_BF16;
    o.max_rows = n_rows;
    o.max_segments = c.batch;
    o.max_model_len = c.context;
    o.arena = &arena;
    struct bt_cuda_attn *attn = NULL;
    check(bt_cuda_attn_create(&o, &attn, &err), err);

    std::vector<struct bt_cuda_attn_segment> segments;
    std::vector<int32_t> first_row(1, 0), pos0, blocks;
    for (int32_t i = 0; i < c.batch; i++) {
        segments.push_back({c.rows, c.context - c.rows, 0});
        first_row.push_back((i + 1) * c.rows);
        pos0.push_back(c.context - c.rows);
    }
    for (int32_t i = 0; i < kv.n_blocks; i++) {
        blocks.push_back(i);
        std::swap(blocks[(size_t)i], blocks[(size_t)(bt_rng_at(1, (uint64_t)i) * (i + 1))]);
    }
    bool decode = c.rows <= 16;
    std::vector<int32_t> plan((size_t)bt_cuda_attn_plan_words(attn, n_rows, c.batch));
    bt_cuda_attn_plan(attn, segments.data(), n_rows, c.batch, decode, plan.data());

    struct bt_cuda_batch b = {};
    b.n_rows = n_rows;
    b.n_segments = c.batch;
    b.max_blocks = max_blocks;
    b.first_row = upload(&arena, first_row);
    b.pos0 = upload(&arena, pos0);
    b.kv_class = upload(&arena, std::vector<int32_t>((size_t)c.batch, 0));
    b.blocks = upload(&arena, blocks);
    b.attn_plan = upload(&arena, plan);
    int32_t q_stride = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim;
    void *q = NULL;
    void *out = NULL;
    check(bt_cuda_arena_take(&arena, 2ll * n_rows * q_stride, &q, &err), err);
    fill(q, 2ll * n_rows * q_stride, o.compute == BT_ACT_FP16 ? BT_KV_FP16 : BT_KV_BF16);
    check(bt_cuda_arena_take(&arena, 2ll * n_rows * c.n_heads * c.head_dim, &out, &err), err);

    double flops = 4.0 * seen_keys(c) * c.n_heads * c.head_dim;
    double expected_us = layer_bytes / 4e6 + flops / 4e8 + 5.0;
    int32_t launches = (int32_t)std::max(4.0, 3000.0 / expected_us);
    launches = std::max(launches, std::min(arch.n_layers, 64));
    double us = time_graph(attn, b, arch.n_layers, launches, decode, q, q_stride, out);
    printf("%s%.2f,%.3f,%.1f\n", name_of(c).c_str(), us, layer_bytes / us * 1e-6,
           flops / us * 1e-6);
    fflush(stdout);
    bt_cuda_attn_destroy(attn);
    bt_cuda_arena_fini(&arena);
}

int main(int argc, char **argv)
{
    const std::string prefix = argc > 1 ? argv[1] : "";
    struct bt_cuda_device device;
    struct bt_error err = {};
    check(bt_cuda_device_open(0, &device, &err), err);
    static const int32_t heads[][2] = {{32, 8}, {40, 40}};
    static const int32_t decodes[][2] = {{1, 1024}, {1, 8192},  {1, 32768}, {8, 1024},
                                         {8, 4096}, {32, 1024}, {32, 4096}, {128, 1024}};
    static const int32_t prompts[][2] = {{512, 512},   {1024, 1024}, {2048, 2048},
                                         {4096, 4096}, {8192, 8192}, {512, 4096}};
    static const enum bt_kv_format formats[] = {BT_KV_BF16, BT_KV_INT8};
    std::vector<bench_case> cases;
    for (auto h : heads) {
        for (auto f : formats) {
            for (auto d : decodes) {
                cases.push_back({"decode", f, h[0], h[1], 128, d[0], 1, d[1]});
            }
            for (auto d : decodes) {
                if (d[1] == 1024) {
                    cases.push_back({"verify", f, h[0], h[1], 128, d[0], 5, d[1]});
                }
            }
            for (auto p : prompts) {
                cases.push_back({"prefill", f, h[0], h[1], 128, 1, p[0], p[1]});
            }
        }
    }
    printf("# %s, driver %d\n", device.name, device.driver);
    printf("kind,kv,heads,kv_heads,head_dim,batch,rows,context,us,tb_per_s,tflop_per_s\n");
    for (const bench_case &c : cases) {
        if (name_of(c).compare(0, prefix.size(), prefix) == 0) {
            run(device, c);
        }
    }
    return 0;
}
