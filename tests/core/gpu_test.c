#include "engine/core/gpu.h"

#include <criterion/criterion.h>

#include <math.h>

static struct bt_pcie h200(void)
{
    return (struct bt_pcie){
        .n_points = 4,
        .points = {{16384, 5.6e9, 7.9e9},
                   {327680, 38.3e9, 41.7e9},
                   {1048576, 48.7e9, 50e9},
                   {1073741824, 55.4e9, 55.3e9}},
        .duplex_bytes_per_s = 101e9,
        .trust = BT_TRUST_MEASURED,
    };
}

Test(gpu, pcie_rate_meets_the_points_and_rises_between_them)
{
    struct bt_pcie p = h200();
    for (int i = 0; i < p.n_points; i++) {
        double b = p.points[i].copy_bytes;
        cr_expect_float_eq(bt_pcie_rate(&p, b, BT_COPY_TO_DEVICE),
                           p.points[i].to_device_bytes_per_s, 1.0);
        cr_expect_float_eq(bt_pcie_rate(&p, b, BT_COPY_TO_HOST), p.points[i].to_host_bytes_per_s,
                           1.0);
    }
    double rate = 0, time = 0;
    for (double b = 512; b < 4e9; b *= 1.3) {
        double r = bt_pcie_rate(&p, b, BT_COPY_TO_DEVICE);
        cr_expect(r >= rate, "rate falls at %g", b);
        cr_expect(b / r >= time, "a larger copy takes less time at %g", b);
        rate = r;
        time = b / r;
    }
    cr_expect_float_eq(rate, 55.4e9, 1.0);
}

Test(gpu, pcie_override_keeps_the_fixed_time_of_a_copy)
{
    struct bt_pcie p = h200();
    double fixed = 16384 / 5.6e9 - 16384 / 55.4e9;
    bt_pcie_set_rate(&p, 25e9);
    cr_expect_float_eq(bt_pcie_rate(&p, 1e10, BT_COPY_TO_DEVICE), 25e9, 1.0);
    cr_expect_float_eq(16384 / bt_pcie_rate(&p, 16384, BT_COPY_TO_DEVICE) - 16384 / 25e9, fixed,
                       1e-12);
    cr_expect_float_eq(p.duplex_bytes_per_s, 101e9 * 25 / 55.4, 1e3);
    p.points[0].to_device_bytes_per_s = 60e9;
    bt_pcie_set_rate(&p, 100e9);
    cr_expect_float_eq(p.points[0].to_device_bytes_per_s, 100e9, 1.0);
}

Test(gpu, families_and_trust_round_trip)
{
    struct bt_error err = {0};
    for (int i = 0; i < BT_GPU_FAMILIES; i++) {
        enum bt_gpu_family f = BT_GPU_CPU;
        cr_expect_eq(
            bt_gpu_family_parse(bt_gpu_family_name((enum bt_gpu_family)i), "arch", &f, &err),
            BT_OK);
        cr_expect_eq((int)f, i);
    }
    enum bt_gpu_family f = BT_GPU_ADA;
    cr_expect_eq(bt_gpu_family_parse("pascal", "arch", &f, &err), BT_ERR_ARG);
    cr_expect_eq(f, BT_GPU_ADA);
    bt_error_clear(&err);
    for (int i = 0; i < BT_TRUST_LEVELS; i++) {
        enum bt_trust t = BT_TRUST_ROOFLINE;
        cr_expect_eq(bt_trust_parse(bt_trust_name((enum bt_trust)i), "trust", &t, &err), BT_OK);
        cr_expect_eq((int)t, i);
    }
    cr_expect_eq(bt_trust_min(BT_TRUST_MEASURED, BT_TRUST_TRANSFERRED), BT_TRUST_TRANSFERRED);
    enum bt_trust t = BT_TRUST_FITTED;
    cr_expect_eq(bt_trust_parse("sure", "trust", &t, &err), BT_ERR_ARG);
}

Test(gpu, a_pretended_card_is_usable_in_full)
{
    struct bt_gpu g = {.memory_bytes = 100, .usable_bytes = 90, .usable_estimated = true};
    bt_gpu_set_memory(&g, 40);
    cr_expect_eq(g.memory_bytes, 40);
    cr_expect_eq(g.usable_bytes, 40);
    cr_expect(!g.usable_estimated);
}
