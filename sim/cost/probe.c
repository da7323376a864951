#include "sim/cost/probe.h"

#include <math.h>
#include <stdlib.h>

enum { HEAD_DIM = 128 };

/* Products of a layer: QKV, O, gate and up, down. */
struct layer {
    int64_t n[BT_PROBE_SHAPES_MAX];
    int64_t k[BT_PROBE_SHAPES_MAX];
};

static const struct layer layers[] = {
    {{6144, 4096, 28672, 4096}, {4096, 4096, 4096, 14336}},  /* Llama-3.1-8B */
    {{15360, 5120, 27648, 5120}, {5120, 5120, 5120, 13824}}, /* Llama-2-13B */
    {{10240, 8192, 57344, 8192}, {8192, 8192, 8192, 28672}}, /* Llama-3.1-70B */
};

static int32_t gemm_probes(struct bt_probe *out)
{
    static const int64_t ms[] = {1, 4, 16, 32, 64, 128, 256, 512, 2048, 8192};
    int32_t n = 0;
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
            struct bt_probe *p = &out[n++];
            p->n_shapes = BT_PROBE_SHAPES_MAX;
            for (int32_t s = 0; s < BT_PROBE_SHAPES_MAX; s++) {
                p->shapes[s] =
                    (struct bt_op_shape){.m = ms[i], .n = layers[l].n[s], .k = layers[l].k[s]};
            }
        }
    }
    return n;
}

static int32_t attention_probes(enum bt_op op, int64_t kv_heads, int64_t group,
                                struct bt_probe *out)
{
    static const int64_t batches[] = {1, 8, 32, 64, 128};
    static const int64_t contexts[] = {512, 1024, 2048, 4096, 8192};
    static const int64_t chunks[] = {128, 256, 512, 1024, 2048, 4096, 8192};
    static const int64_t sequences[] = {1, 2, 4};
    bool decode = op != BT_OP_ATTN_PREFILL;
    size_t n_outer =
        decode ? sizeof batches / sizeof *batches : sizeof sequences / sizeof *sequences;
    size_t n_inner = decode ? sizeof contexts / sizeof *contexts : sizeof chunks / sizeof *chunks;
    int32_t n = 0;
    for (size_t i = 0; i < n_outer; i++) {
        for (size_t j = 0; j < n_inner; j++) {
            out[n++] = (struct bt_probe){
                .n_shapes = 1,
                .shapes = {{.batch = decode ? batches[i] : sequences[i],
                            .ctx = decode ? contexts[j] : 0,
                            .q_len = decode ? 0 : chunks[j],
                            .heads = kv_heads * group,
                            .kv_heads = kv_heads,
                            .head_dim = HEAD_DIM}},
            };
        }
    }
    return n;
}

static int32_t collective_probes(struct bt_probe *out)
{
    static const int64_t ranks[] = {2, 4, 8};
    int32_t n = 0;
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
        for (int64_t bytes = 8192; bytes <= (int64_t)128 << 20; bytes *= 4) {
            out[n++] =
                (struct bt_probe){.n_shapes = 1, .shapes = {{.bytes = bytes, .ranks = ranks[r]}}};
        }
    }
    return n;
}

static int32_t elementwise_probes(enum bt_op op, struct bt_probe *out)
{
    static const int64_t ms[] = {1, 8, 32, 128, 512, 2048, 8192};
    static const int64_t widths[] = {4096, 8192};
    int32_t n = 0;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
            if (op == BT_OP_SAMPLE && ms[i] > 512) {
                continue;
            }
            int64_t width = op == BT_OP_SAMPLE ? 32 * widths[w] : widths[w];
            out[n++] = (struct bt_probe){.n_shapes = 1, .shapes = {{.m = ms[i], .n = width}}};
        }
    }
    return n;
}

int32_t bt_probes_of(enum bt_op op, int64_t kv_heads, int64_t group,
                     struct bt_probe out[BT_PROBES_MAX])
{
    const int64_t usual_kv_heads = 8;
    const int64_t usual_group = 4;
    switch (op) {
    case BT_OP_GEMM:
        return gemm_probes(out);
    case BT_OP_ATTN_PREFILL:
    case BT_OP_ATTN_DECODE:
    case BT_OP_ATTN_MIXED:
        return attention_probes(op, kv_heads > 0 ? kv_heads : usual_kv_heads,
                                group > 0 ? group : usual_group, out);
    case BT_OP_ALLREDUCE:
    case BT_OP_ALLGATHER:
    case BT_OP_REDUCESCATTER:
    case BT_OP_ALLTOALL:
        return collective_probes(out);
    case BT_OP_QUANTIZE:
    case BT_OP_NORM:
    case BT_OP_ACTIVATION:
    case BT_OP_ROPE:
    case BT_OP_ADD:
    case BT_OP_EMBEDDING:
    case BT_OP_KV_WRITE:
    case BT_OP_SAMPLE:
        return elementwise_probes(op, out);
    case BT_OP_HOST:
    case BT_OPS:
        break;
    }
    return 0;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sum_of(const struct bt_probe *p, bt_probe_time *ns, const void *law, bool *known)
{
    double sum = 0;
    for (int32_t i = 0; i < p->n_shapes; i++) {
        bool here = true;
        sum += ns(law, &p->shapes[i], &here);
        *known = *known && here;
    }
    return sum;
}

struct bt_probe_error bt_probe_compare(enum bt_op op, int64_t kv_heads, int64_t group,
                                       bt_probe_time *estimate, const void *estimate_law,
                                       bt_probe_time *truth, const void *truth_law)
{
    struct bt_probe probes[BT_PROBES_MAX];
    double logs[BT_PROBES_MAX];
    struct bt_probe_error e = {0};
    int32_t n = bt_probes_of(op, kv_heads, group, probes);
    BT_ASSERT(n <= BT_PROBES_MAX);
    for (int32_t i = 0; i < n; i++) {
        bool known = true;
        double a = sum_of(&probes[i], estimate, estimate_law, &known);
        double b = sum_of(&probes[i], truth, truth_law, &known);
        if (known) {
            double difference = log(b / a);
            e.log_bias += difference;
            logs[e.n++] = fabs(difference);
        }
    }
    if (e.n == 0) {
        return e;
    }
    e.log_bias /= e.n;
    qsort(logs, (size_t)e.n, sizeof *logs, compare_double);
    e.log_median = logs[(e.n - 1) / 2];
    e.log_p90 = logs[(e.n * 9 + 9) / 10 - 1];
    return e;
}
