#include "engine/core/gpu.h"

#include <math.h>
#include <string.h>

static const char *const family_names[BT_GPU_FAMILIES] = {
    [BT_GPU_CPU] = "cpu",       [BT_GPU_AMPERE] = "ampere",       [BT_GPU_ADA] = "ada",
    [BT_GPU_HOPPER] = "hopper", [BT_GPU_BLACKWELL] = "blackwell", [BT_GPU_CDNA3] = "cdna3",
};

const char *bt_gpu_family_name(enum bt_gpu_family f)
{
    BT_ASSERT((uint32_t)f < BT_GPU_FAMILIES);
    return family_names[f];
}

enum bt_code bt_gpu_family_parse(const char *text, const char *what, enum bt_gpu_family *out,
                                 struct bt_error *err)
{
    for (int32_t i = 0; i < BT_GPU_FAMILIES; i++) {
        if (strcmp(text, family_names[i]) == 0) {
            *out = (enum bt_gpu_family)i;
            return BT_OK;
        }
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "%s: \"%s\" is not one of cpu, ampere, ada, hopper, blackwell, cdna3", what, text);
}

static double point_rate(const struct bt_pcie_point *p, enum bt_copy_dir dir)
{
    return dir == BT_COPY_TO_DEVICE ? p->to_device_bytes_per_s : p->to_host_bytes_per_s;
}

double bt_pcie_rate(const struct bt_pcie *p, double copy_bytes, enum bt_copy_dir dir)
{
    BT_ASSERT(p->n_points > 0 && p->n_points <= BT_PCIE_POINTS_MAX);
    BT_ASSERT(copy_bytes > 0);
    const struct bt_pcie_point *last = &p->points[p->n_points - 1];
    if (copy_bytes >= last->copy_bytes || p->n_points == 1) {
        return point_rate(last, dir);
    }
    int32_t i = 0;
    while (i + 2 < p->n_points && copy_bytes > p->points[i + 1].copy_bytes) {
        i++;
    }
    const struct bt_pcie_point *a = &p->points[i];
    const struct bt_pcie_point *b = &p->points[i + 1];
    double slope =
        log(point_rate(b, dir) / point_rate(a, dir)) / log(b->copy_bytes / a->copy_bytes);
    return point_rate(a, dir) * pow(copy_bytes / a->copy_bytes, slope);
}

/* Rate of a copy when the link's own share of its time changes from bytes/from to bytes/to. */
static double rescale(double copy_bytes, double rate, double from, double to)
{
    double t = copy_bytes / rate + copy_bytes * (1.0 / to - 1.0 / from);
    /* Measured points above the curve's end leave no fixed time: they scale in proportion. */
    return t > copy_bytes / to ? copy_bytes / t : to;
}

void bt_pcie_set_rate(struct bt_pcie *p, double bytes_per_s)
{
    BT_ASSERT(bytes_per_s > 0 && p->n_points > 0);
    struct bt_pcie_point end = p->points[p->n_points - 1];
    double share = bytes_per_s / end.to_device_bytes_per_s;
    for (int32_t i = 0; i < p->n_points; i++) {
        struct bt_pcie_point *q = &p->points[i];
        q->to_device_bytes_per_s = rescale(q->copy_bytes, q->to_device_bytes_per_s,
                                           end.to_device_bytes_per_s, bytes_per_s);
        q->to_host_bytes_per_s = rescale(q->copy_bytes, q->to_host_bytes_per_s,
                                         end.to_host_bytes_per_s, end.to_host_bytes_per_s * share);
    }
    p->duplex_bytes_per_s *= share;
}

void bt_gpu_set_memory(struct bt_gpu *g, int64_t bytes)
{
    BT_ASSERT(bytes > 0);
    g->memory_bytes = bytes;
    g->usable_bytes = bytes;
    g->usable_estimated = false;
}
