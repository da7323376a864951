#include "engine/core/metrics.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

Test(slo, parses_lists_in_seconds)
{
    struct bt_slo out[4];
    int32_t n = 0;
    struct bt_error err = {0};
    cr_assert_eq(bt_slo_parse("e2e.p95=1.5, ttft_s.p99=0.5 ,itl.max=2e-2", out, 4, &n, &err), BT_OK,
                 "%s", err.msg);
    cr_assert_eq(n, 3);
    cr_expect_eq(out[0].metric, BT_SLO_E2E);
    cr_expect_eq(out[0].stat, BT_STAT_P95);
    cr_expect_eq(out[0].limit_ns, 1500000000);
    cr_expect_eq(out[1].metric, BT_SLO_TTFT);
    cr_expect_eq(out[1].stat, BT_STAT_P99);
    cr_expect_eq(out[1].limit_ns, 500000000);
    cr_expect_eq(out[2].metric, BT_SLO_ITL);
    cr_expect_eq(out[2].stat, BT_STAT_MAX);
    cr_expect_eq(out[2].limit_ns, 20000000);
}

/* Every name that is printed can be read. */
Test(slo, names_round_trip)
{
    for (int m = 0; m < BT_N_SLO_METRICS; m++) {
        for (int s = 0; s < BT_N_STATS; s++) {
            char text[64];
            snprintf(text, sizeof text, "%s.%s=3", bt_slo_metric_name((enum bt_slo_metric)m),
                     bt_stat_name((enum bt_stat)s));
            struct bt_slo out;
            int32_t n;
            cr_assert_eq(bt_slo_parse(text, &out, 1, &n, NULL), BT_OK, "%s", text);
            cr_expect_eq((int)out.metric, m);
            cr_expect_eq((int)out.stat, s);
        }
    }
}

Test(slo, errors_name_the_part_and_what_is_allowed)
{
    static const struct {
        const char *text, *msg;
    } cases[] = {
        {"", "slo: \"\" in \"\": expected METRIC.STATISTIC=SECONDS, as in e2e.p95=1.5"},
        {"e2e.p95=1,", "slo: \"\" in \"e2e.p95=1,\": expected METRIC.STATISTIC=SECONDS, as in "
                       "e2e.p95=1.5"},
        {"e2e=1", "slo: \"e2e=1\": expected METRIC.STATISTIC=SECONDS, as in e2e.p95=1.5"},
        {"e2e.p95", "slo: \"e2e.p95\": expected METRIC.STATISTIC=SECONDS, as in e2e.p95=1.5"},
        {"e2e=1.5", "slo: \"e2e=1.5\": expected METRIC.STATISTIC=SECONDS, as in e2e.p95=1.5"},
        {"e3e.p95=1", "slo: \"e3e.p95=1\": unknown metric \"e3e\", allowed: ttft, tpot, itl, e2e, "
                      "queue"},
        {"_s.p95=1", "slo: \"_s.p95=1\": unknown metric \"_s\", allowed: ttft, tpot, itl, e2e, "
                     "queue"},
        {"e2e.p96=1", "slo: \"e2e.p96=1\": unknown statistic \"p96\", allowed: mean, p50, p90, "
                      "p95, p99, max"},
        {"e2e.p95=", "slo: \"e2e.p95=\": limit \"\" must be seconds, 1e-9..1e9"},
        {"e2e.p95=0", "slo: \"e2e.p95=0\": limit \"0\" must be seconds, 1e-9..1e9"},
        {"e2e.p95=-1", "slo: \"e2e.p95=-1\": limit \"-1\" must be seconds, 1e-9..1e9"},
        {"e2e.p95=nan", "slo: \"e2e.p95=nan\": limit \"nan\" must be seconds, 1e-9..1e9"},
        {"e2e.p95=0x1p3", "slo: \"e2e.p95=0x1p3\": limit \"0x1p3\" must be seconds, 1e-9..1e9"},
        {"e2e.p95=500ms", "slo: \"e2e.p95=500ms\": limit \"500ms\" must be seconds, 1e-9..1e9"},
        {"e2e.p95=1e10", "slo: \"e2e.p95=1e10\": limit \"1e10\" must be seconds, 1e-9..1e9"},
        {"e2e.p95=1,e2e_s.p95=2", "slo: \"e2e_s.p95=2\": e2e.p95 is given twice"},
        {"e2e.p50=1,e2e.p90=1,e2e.p95=1", "slo: \"e2e.p95=1\": at most 2 limits are allowed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_slo out[2];
        int32_t n;
        struct bt_error err = {0};
        cr_expect_eq(bt_slo_parse(cases[i].text, out, 2, &n, &err), BT_ERR_ARG, "%s",
                     cases[i].text);
        cr_expect_str_eq(err.msg, cases[i].msg);
    }
    char text[200];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct bt_slo out[2];
    int32_t n;
    struct bt_error err = {0};
    cr_expect_eq(bt_slo_parse(text, out, 2, &n, &err), BT_ERR_ARG);
}

Test(slo, enums_have_the_contract_names)
{
    static const char *const bottlenecks[] = {"arrivals", "compute", "bandwidth", "kv",
                                              "max_seqs", "pcie",    "host"};
    for (int i = 0; i < 7; i++) {
        cr_expect_str_eq(bt_bottleneck_name((enum bt_bottleneck)i), bottlenecks[i]);
    }
    static const char *const outcomes[] = {"finished", "timed_out", "rejected", "cancelled",
                                           "failed"};
    for (int i = 0; i < BT_N_OUTCOMES; i++) {
        cr_expect_str_eq(bt_outcome_name((enum bt_outcome)i), outcomes[i]);
    }
    cr_expect_str_eq(bt_reject_name(BT_REJECT_POLICY), "policy");
    cr_expect_str_eq(bt_block_reason_name(BT_BLOCK_SWAP), "swap");
}
