/* What the sources of sim/workload share among themselves; nobody else includes it. */
#ifndef BT_SIM_WORKLOAD_INTERNAL_H
#define BT_SIM_WORKLOAD_INTERNAL_H

#include "sim/workload/describe.h"
#include "sim/workload/spec.h"
#include "sim/workload/tick.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BT_NS_PER_S 1e9

/* Longest time any arrival may have: 146 years, half of int64, so that sums do not overflow. */
#define BT_TIME_MAX_S 4.6e9

/* Seconds, 0 <= s <= BT_TIME_MAX_S, as nanoseconds. */
int64_t bt_ns_of_s(double s);

/* t / scale, rounded down; exact for scale 1. */
int64_t bt_ns_scaled(int64_t t_ns, double scale);

/* Makes room for one more item in a growing array: *items of item_bytes each, *cap of them. */
BT_NODISCARD enum bt_code bt_array_grow(void **items, int64_t *cap, int64_t need, size_t item_bytes,
                                        struct bt_error *err);

/* Adds a row to the counts; false when it is not served. *last_ns carries the row's time on. */
bool bt_trace_count_row(struct bt_trace_counts *c, const struct bt_trace_row *row,
                        int64_t *last_ns);

/* Equal times and the tick of a sorted trace's served rows. */
void bt_trace_counts_finish(struct bt_trace_counts *c, const struct bt_tick_finder *f);

/* Hash-blocks that lie within the row's prompt. */
int32_t bt_trace_trim_hashes(const struct bt_trace_row *row);

BT_NODISCARD enum bt_code bt_trace_check_opts(const struct bt_trace_opts *o, struct bt_error *err);

/* Sorts n > 0 lengths and sums them up. */
void bt_length_summarise(int32_t *lengths, int64_t n, struct bt_length_summary *s);

/* The summary alone of bt_trace_describe. */
BT_NODISCARD enum bt_code bt_trace_summarise(const struct bt_trace *t, struct bt_trace_summary *s,
                                             struct bt_error *err);

/* A source that takes the table over on success. */
BT_NODISCARD enum bt_code bt_source_create_owned_table(struct bt_trace *t, struct bt_source **out,
                                                       struct bt_error *err);

BT_NODISCARD enum bt_code bt_source_create_generated(const struct bt_workload_spec *spec,
                                                     uint64_t seed, struct bt_source **out,
                                                     struct bt_error *err);
BT_NODISCARD enum bt_code bt_source_create_servegen(const struct bt_workload_spec *spec,
                                                    uint64_t seed, struct bt_source **out,
                                                    struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
