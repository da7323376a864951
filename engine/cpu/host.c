#include "engine/cpu/host.h"

#include "engine/cpu/linear.h"
#include "engine/model/quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    PROBE_IN = 1024, /* inputs and outputs of the product that is timed */
    PROBE_ROWS = 64,
    READ_BYTES = 64 << 20,
    COPY_MIN_BYTES = 1 << 16,
    COPY_MAX_BYTES = 1 << 24,
    COPY_FACTOR = 4,
};

static const int64_t PROBE_NS = 50000000; /* of one figure */

static int64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int32_t bt_host_threads(int32_t n_threads)
{
#ifdef _OPENMP
    return n_threads > 0 ? n_threads : omp_get_max_threads();
#else
    (void)n_threads;
    return 1;
#endif
}

/* ---- what the system says ---- */

static void processor(char *out, size_t n_bytes)
{
    (void)snprintf(out, n_bytes, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "model name", strlen("model name")) != 0) {
            continue;
        }
        const char *text = strchr(line, ':');
        if (text != NULL) {
            text += strspn(text, ": \t");
            (void)snprintf(out, n_bytes, "%.*s", (int)strcspn(text, "\n"), text);
        }
        break;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
}

void bt_host_describe(int32_t n_threads, char out[BT_HOST_TEXT_BYTES])
{
    char name[BT_HOST_TEXT_BYTES - 24];
    int32_t n = bt_host_threads(n_threads);
    processor(name, sizeof name);
    (void)snprintf(out, BT_HOST_TEXT_BYTES, "%s, %d thread%s", name, n, n == 1 ? "" : "s");
}

int64_t bt_host_memory_bytes(void)
{
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        FILE *f = fopen(limits[i], "r");
        char line[64] = "";
        if (f != NULL && fgets(line, sizeof line, f) != NULL) {
            long long limit = strtoll(line, NULL, 10); /* "max" reads as 0 */
            bytes = limit > 0 && limit < bytes ? limit : bytes;
        }
        if (f != NULL) {
            (void)fclose(f);
        }
    }
    return bytes;
}

/* ---- what is measured ---- */

struct probe {
    struct bt_arena arena;
    struct bt_cpu_work work;
    float *x, *y;
    uint8_t *from, *to; /* [READ_BYTES] */
    int32_t n_threads;
};

static uint64_t sum_words(const uint64_t *p, int64_t n)
{
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int64_t i = 0; i + 3 < n; i += 4) {
        s0 += p[i];
        s1 += p[i + 1];
        s2 += p[i + 2];
        s3 += p[i + 3];
    }
    return s0 + s1 + s2 + s3;
}

/* All threads read their shares of a buffer that no cache holds. */
static double read_rate(struct probe *p)
{
    int64_t words = READ_BYTES / (int64_t)sizeof(uint64_t);
    int64_t share = words / p->n_threads;
    double best = 0;
    uint64_t sink = 0;
    for (int64_t start = now_ns(), before = start; before - start < PROBE_NS;) {
#ifdef _OPENMP
#pragma omp parallel for num_threads(p->n_threads) reduction(+ : sink)
#endif
        for (int32_t i = 0; i < p->n_threads; i++) {
            sink += sum_words((const uint64_t *)(const void *)p->from + i * share, share);
        }
        int64_t after = now_ns();
        double rate = (double)(share * p->n_threads) * sizeof(uint64_t) / (double)(after - before);
        best = rate > best ? rate : best;
        before = after;
    }
    p->from[0] = (uint8_t)sink; /* keeps the sums alive */
    return best * 1e9;
}

static double product_rate(struct probe *p, const struct bt_linear *l)
{
    double best = 0;
    for (int64_t start = now_ns(), before = start; before - start < PROBE_NS;) {
        bt_cpu_linear(&p->work, l, p->x, PROBE_ROWS, p->y);
        int64_t after = now_ns();
        double rate = 2.0 * PROBE_ROWS * PROBE_IN * PROBE_IN / (double)(after - before);
        best = rate > best ? rate : best;
        before = after;
    }
    return best * 1e9;
}

static double copy_rate(struct probe *p, size_t n_bytes)
{
    double best = 0;
    size_t at = 0;
    for (int64_t start = now_ns(), before = start; before - start < PROBE_NS / 5;) {
        memcpy(p->to + at, p->from + at, n_bytes);
        at = at + 2 * n_bytes <= READ_BYTES ? at + n_bytes : 0;
        int64_t after = now_ns();
        double rate = (double)n_bytes / (double)(after - before);
        best = rate > best ? rate : best;
        before = after;
    }
    return best * 1e9;
}

static enum bt_code measure_products(struct probe *p, struct bt_gpu *g, struct bt_error *err)
{
    struct bt_linear l = {.n_out = PROBE_IN, .n_in = PROBE_IN};
    BT_TRY(bt_tensor_init(&l.w, &p->arena, BT_DTYPE_F32, PROBE_IN, PROBE_IN, err));
    for (int32_t i = 0; i < PROBE_IN * PROBE_IN; i++) {
        ((float *)l.w.p)[i] = (float)(i % 7) - 3.0f;
    }
    for (int32_t i = 0; i < PROBE_IN * PROBE_ROWS; i++) {
        p->x[i] = (float)(i % 5) - 2.0f;
    }
    g->fp32_flops_per_s = product_rate(p, &l);
    struct bt_linear q = l;
    BT_TRY(bt_quantise_rtn(&p->arena, &l.w, BT_WEIGHT_INT8, false, NULL, "probe", &q.q, err));
    q.quantised = true;
    q.act = BT_ACT_INT8_DYNAMIC;
    g->int8_ops_per_s = product_rate(p, &q);
    return BT_OK;
}

static enum bt_code measure(struct probe *p, struct bt_gpu *g, struct bt_error *err)
{
    BT_TRY(bt_cpu_work_init(&p->work, &p->arena, PROBE_ROWS, PROBE_IN, p->n_threads, err));
    BT_ARENA_ARRAY(&p->arena, p->x, PROBE_ROWS * PROBE_IN, err);
    BT_ARENA_ARRAY(&p->arena, p->y, PROBE_ROWS * PROBE_IN, err);
    BT_ARENA_ARRAY(&p->arena, p->from, READ_BYTES, err);
    BT_ARENA_ARRAY(&p->arena, p->to, READ_BYTES, err);
    memset(p->from, 1, READ_BYTES);
    memset(p->to, 1, READ_BYTES);
    g->mem_bytes_per_s = read_rate(p);
    BT_TRY(measure_products(p, g, err));
    for (size_t n = COPY_MIN_BYTES; n <= COPY_MAX_BYTES; n *= COPY_FACTOR) {
        double rate = copy_rate(p, n);
        g->pcie.points[g->pcie.n_points++] = (struct bt_pcie_point){
            .copy_bytes = (double)n, .to_device_bytes_per_s = rate, .to_host_bytes_per_s = rate};
        g->pcie_bytes_per_s = rate;
        g->pcie.duplex_bytes_per_s = rate; /* one thread copies: the directions take turns */
    }
    g->pcie.trust = BT_TRUST_MEASURED;
    return BT_OK;
}

enum bt_code bt_host_measure(int32_t n_threads, struct bt_gpu *out, struct bt_error *err)
{
    *out = (struct bt_gpu){
        .name = "host", .family = BT_GPU_CPU, .memory_bytes = bt_host_memory_bytes()};
    out->usable_bytes = out->memory_bytes;
    char name[BT_GPU_PRODUCT_BYTES];
    processor(name, sizeof name);
    (void)snprintf(out->product, sizeof out->product, "%s", name);
    struct probe p = {.n_threads = bt_host_threads(n_threads)};
    bt_arena_init(&p.arena, 0);
    enum bt_code code = measure(&p, out, err);
    bt_arena_fini(&p.arena);
    return code;
}
