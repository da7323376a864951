/* Names of the metrics' enums and the parser of SLO lists. */
#include "engine/core/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const metric_names[BT_N_SLO_METRICS] = {"ttft", "tpot", "itl", "e2e", "queue"};
static const char *const stat_names[BT_N_STATS] = {"mean", "p50", "p90", "p95", "p99", "max"};

const char *bt_outcome_name(enum bt_outcome o)
{
    static const char *const names[BT_N_OUTCOMES] = {"finished", "timed_out", "rejected",
                                                     "cancelled", "failed"};
    BT_ASSERT((unsigned)o < BT_N_OUTCOMES);
    return names[o];
}

const char *bt_reject_name(enum bt_reject r)
{
    static const char *const names[BT_N_REJECTS] = {"none", "over_length", "never_fits",
                                                    "queue_full", "policy"};
    BT_ASSERT((unsigned)r < BT_N_REJECTS);
    return names[r];
}

const char *bt_slo_metric_name(enum bt_slo_metric m)
{
    BT_ASSERT((unsigned)m < BT_N_SLO_METRICS);
    return metric_names[m];
}

const char *bt_stat_name(enum bt_stat s)
{
    BT_ASSERT((unsigned)s < BT_N_STATS);
    return stat_names[s];
}

const char *bt_block_reason_name(enum bt_block_reason r)
{
    static const char *const names[BT_N_BLOCK_REASONS] = {"none",   "kv",     "max_seqs",
                                                          "tokens", "window", "swap"};
    BT_ASSERT((unsigned)r < BT_N_BLOCK_REASONS);
    return names[r];
}

const char *bt_bottleneck_name(enum bt_bottleneck b)
{
    static const char *const names[] = {"arrivals", "compute", "bandwidth", "kv",
                                        "max_seqs", "pcie",    "host"};
    BT_ASSERT((size_t)b < sizeof names / sizeof *names);
    return names[b];
}

double bt_dist_stat(const struct bt_dist *d, enum bt_stat s)
{
    const double stats[BT_N_STATS] = {d->mean_s, d->p50_s, d->p90_s, d->p95_s, d->p99_s, d->max_s};
    BT_ASSERT((unsigned)s < BT_N_STATS);
    return stats[s];
}

/* The longest limit, so that nanoseconds stay far from INT64_MAX. */
static const double LIMIT_S_MAX = 1e9;

enum { PART_BYTES = 64 };

static int32_t name_index(const char *name, size_t n, const char *const *names, int32_t n_names)
{
    for (int32_t i = 0; i < n_names; i++) {
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) {
            return i;
        }
    }
    return -1;
}

/* One part, "e2e.p95=1.5", without blanks around it. */
static enum bt_code parse_part(const char *part, struct bt_slo *out, struct bt_error *err)
{
    const char *dot = strchr(part, '.');
    const char *eq = strchr(part, '=');
    if (dot == NULL || eq == NULL || eq < dot) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "slo: \"%s\": expected METRIC.STATISTIC=SECONDS, as in e2e.p95=1.5", part);
    }
    size_t n = (size_t)(dot - part);
    if (n > 2 && memcmp(dot - 2, "_s", 2) == 0) {
        n -= 2;
    }
    int32_t metric = name_index(part, n, metric_names, BT_N_SLO_METRICS);
    if (metric < 0) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "slo: \"%s\": unknown metric \"%.*s\", allowed: ttft, tpot, "
                "itl, e2e, queue",
                part, (int)(dot - part), part);
    }
    n = (size_t)(eq - dot - 1);
    int32_t stat = name_index(dot + 1, n, stat_names, BT_N_STATS);
    if (stat < 0) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "slo: \"%s\": unknown statistic \"%.*s\", allowed: mean, p50, "
                "p90, p95, p99, max",
                part, (int)n, dot + 1);
    }
    /* strtod alone would take blanks, hexadecimals, "inf" and "nan". */
    const char *number = eq + 1;
    char *end = NULL;
    double limit_s = strtod(number, &end);
    bool plain = number[0] != '\0' && strspn(number, "0123456789.eE+-") == strlen(number);
    if (!plain || *end != '\0' || !(limit_s >= 1e-9 && limit_s <= LIMIT_S_MAX)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "slo: \"%s\": limit \"%s\" must be seconds, 1e-9..1e9", part,
                number);
    }
    *out = (struct bt_slo){.metric = (enum bt_slo_metric)metric,
                           .stat = (enum bt_stat)stat,
                           .limit_ns = (int64_t)llround(limit_s * 1e9)};
    return BT_OK;
}

enum bt_code bt_slo_parse(const char *text, struct bt_slo *out, int32_t max, int32_t *n,
                          struct bt_error *err)
{
    *n = 0;
    for (const char *p = text;; p++) {
        p += strspn(p, " \t");
        size_t len = strcspn(p, ",");
        const char *next = p + len;
        while (len > 0 && (p[len - 1] == ' ' || p[len - 1] == '\t')) {
            len--;
        }
        char part[PART_BYTES];
        if (len == 0 || len >= sizeof part) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "slo: \"%.*s\" in \"%s\": expected "
                    "METRIC.STATISTIC=SECONDS, as in e2e.p95=1.5",
                    (int)len, p, text);
        }
        memcpy(part, p, len);
        part[len] = '\0';
        struct bt_slo slo;
        BT_TRY(parse_part(part, &slo, err));
        for (int32_t i = 0; i < *n; i++) {
            if (out[i].metric == slo.metric && out[i].stat == slo.stat) {
                BT_FAIL(err, BT_ERR_ARG, 0, "slo: \"%s\": %s.%s is given twice", part,
                        metric_names[slo.metric], stat_names[slo.stat]);
            }
        }
        if (*n == max) {
            BT_FAIL(err, BT_ERR_ARG, max, "slo: \"%s\": at most %d limits are allowed", part, max);
        }
        out[(*n)++] = slo;
        p = next;
        if (*p == '\0') {
            return BT_OK;
        }
    }
}
