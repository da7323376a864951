/* What a GPU is, as plain data: memory, rates, links. The catalog fills it, the simulator reads it.
 *
 * Rates are dense (no structured sparsity) and accumulate in FP32 (INT32 for integers). Everything
 * here is pure and thread-safe.
 */
#ifndef BT_ENGINE_CORE_GPU_H
#define BT_ENGINE_CORE_GPU_H

#include "engine/core/error.h"
#include "engine/core/trust.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_gpu_family {
    BT_GPU_CPU = 0, /* the machine's own processor ("host") */
    BT_GPU_AMPERE,
    BT_GPU_ADA,
    BT_GPU_HOPPER,
    BT_GPU_BLACKWELL,
    BT_GPU_CDNA3,
    BT_GPU_FAMILIES,
};

enum bt_copy_dir {
    BT_COPY_TO_DEVICE = 0,
    BT_COPY_TO_HOST,
};

enum {
    BT_GPU_NAME_BYTES = 32,
    BT_GPU_PRODUCT_BYTES = 64,
    BT_PCIE_POINTS_MAX = 24,
};

/* Rate of one copy of copy_bytes between pinned host memory and the device, alone on the link. */
struct bt_pcie_point {
    double copy_bytes; /* rising along the curve */
    double to_device_bytes_per_s;
    double to_host_bytes_per_s;
};

struct bt_pcie {
    int32_t n_points; /* 0: no link (a CPU) */
    struct bt_pcie_point points[BT_PCIE_POINTS_MAX];
    double duplex_bytes_per_s; /* both directions at once, together, large copies */
    enum bt_trust trust;       /* measured on this GPU, or transferred from another */
};

struct bt_gpu {
    char name[BT_GPU_NAME_BYTES];       /* "a100-80-sxm" */
    char product[BT_GPU_PRODUCT_BYTES]; /* "A100 80 GB SXM" */
    enum bt_gpu_family family;
    int32_t cc; /* compute capability x 10: 89 is 8.9; 0 for what is not NVIDIA's */
    int64_t memory_bytes;
    int64_t usable_bytes;  /* what a program sees in all */
    bool usable_estimated; /* no log at hand: derived from a relative */
    double mem_bytes_per_s;
    double fp32_flops_per_s; /* dense rates; 0: the hardware has no such unit */
    double fp16_flops_per_s; /* BF16 too */
    double int8_ops_per_s;
    double fp8_flops_per_s;
    double int4_ops_per_s;
    int32_t pcie_gen;
    double pcie_bytes_per_s;   /* one way, by the standard */
    double nvlink_bytes_per_s; /* both ways together, to all peers; 0: none */
    double tdp_w;
    struct bt_pcie pcie;
};

/* "ampere", ..., "cpu"; never NULL. */
const char *bt_gpu_family_name(enum bt_gpu_family f);
BT_NODISCARD enum bt_code bt_gpu_family_parse(const char *text, const char *what,
                                              enum bt_gpu_family *out, struct bt_error *err);

/* Bytes per second of one copy of copy_bytes (> 0) in direction dir: linear in the logarithms
 * between the curve's points, the last point's rate above it, the first segment's slope below it.
 * The curve has at least one point. */
double bt_pcie_rate(const struct bt_pcie *p, double copy_bytes, enum bt_copy_dir dir);

/* Scales the curve so that its largest copies reach bytes_per_s (> 0) towards the device, keeping
 * the fixed time of a copy; the duplex rate follows in proportion. */
void bt_pcie_set_rate(struct bt_pcie *p, double bytes_per_s);

/* Pretends a card of `bytes` memory (> 0): usable memory becomes all of it. */
void bt_gpu_set_memory(struct bt_gpu *g, int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
