/* What a trace is like: load, burstiness, lengths, prefix reuse, oddities; a generated workload
 * fitted to it; the trace rewritten in the generic formats.
 */
#ifndef BT_SIM_WORKLOAD_DESCRIBE_H
#define BT_SIM_WORKLOAD_DESCRIBE_H

#include "engine/core/error.h"
#include "sim/workload/trace.h"

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_DESCRIBE_MAX_ROWS = 64 };

struct bt_describe_row {
    const char *name; /* static */
    double value;     /* NaN: not defined for this trace */
    const char *unit; /* static; "" for a plain number */
};

/* Lengths in tokens; percentiles are nearest-rank. */
struct bt_length_summary {
    double mean;
    int32_t min, p50, p90, p95, p99, max;
    double sigma;       /* of the lognormal with this mean and p95; -1 where none exists */
    double ks_distance; /* greatest distance of distributions, data to that lognormal; 1 without */
};

struct bt_trace_summary {
    int64_t n;
    double duration_s;      /* first to last arrival */
    double rate_per_s;      /* (n - 1) / duration; NaN for one moment */
    double rate_peak_per_s; /* of the busiest minute, windows from the first arrival */
    double interarrival_cv; /* NaN below two gaps */
    double dispersion_1s;   /* variance / mean of arrivals in whole windows; NaN below 2 windows */
    double dispersion_10s;
    double dispersion_60s;
    struct bt_length_summary prompt, output;
    double prefix_hit_fraction; /* prompt tokens an infinite cache would have; NaN: no hashes */
    double prefix_hit_block_fraction; /* the same by hash-blocks */
};

struct bt_description {
    struct bt_trace_summary summary;
    struct bt_describe_row rows[BT_DESCRIBE_MAX_ROWS];
    int32_t n_rows;
};

/* Describes the requests of a loaded trace (after its cuts and spreading) and the oddities of its
 * whole file. Fails with BT_ERR_INPUT when the trace gives no request, BT_ERR_NOMEM.
 * O(n log n). */
BT_NODISCARD enum bt_code bt_trace_describe(const struct bt_trace *t, struct bt_description *out,
                                            struct bt_error *err);

/* Writes Lua text of a generated workload like the trace: w.poisson or w.gamma by the CV of the
 * gaps, or w.diurnal when the rate of the minutes varies more than such gaps explain; lengths as
 * w.const, w.lognormal where it fits (Kolmogorov distance <= 0.08), else w.empirical of the bins'
 * means. Prefix reuse is not part of the fit; a comment says how much there was. *text is malloc'ed
 * and the caller's. */
BT_NODISCARD enum bt_code bt_trace_fit_lua(const struct bt_trace *t, char **text,
                                           struct bt_error *err);

/* Writes the requests as generic BT_TRACE_CSV or BT_TRACE_JSONL, which the readers take back
 * without a mapping: arrival_s, prompt_tokens, output_tokens and, where the trace has them,
 * priority, session, timeout_s, hash_ids, hash_tokens, ttft_s, e2e_s, tpot_s. Rows that are not
 * served are not written. Fails with BT_ERR_IO, BT_ERR_ARG (another format). */
BT_NODISCARD enum bt_code bt_trace_write(const struct bt_trace *t, enum bt_trace_format format,
                                         FILE *out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
