/* Numbers, times and CSV fields from text, exactly: no locale, no rounding through a double. */
#ifndef BT_SIM_WORKLOAD_TEXT_H
#define BT_SIM_WORKLOAD_TEXT_H

#include "sim/workload/trace.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_text {
    char *s; /* borrowed, not NUL-terminated in general */
    int32_t n;
};

/* Splits a CSV record at sep into at most cap fields, unquoting in place ("" inside quotes is one
 * quote). Returns the number of fields in the record (it may pass cap: the rest is not stored), or
 * -1 for a quote that is not closed or is followed by text. */
int32_t bt_csv_split(char *s, int64_t n, char sep, struct bt_text *out, int32_t cap);

/* Whole numbers, also written as 12.0 (tools that store integers as floats). False for anything
 * else or beyond int64. */
bool bt_parse_whole(const char *s, int32_t n, int64_t *out);

/* A decimal number of the unit (S, MS, US or NS; sign, fraction and exponent allowed) as
 * nanoseconds, rounded to the nearest. False when malformed or beyond int64. */
bool bt_parse_time(const char *s, int32_t n, enum bt_time_unit unit, int64_t *out_ns);

/* YYYY-MM-DD, T or blank, HH:MM:SS, up to 9 fractional digits, then nothing, Z, +HH, +HHMM or
 * +HH:MM, as nanoseconds of Unix time (UTC when no zone is given); years 1900 to 2110. False when
 * malformed. */
bool bt_parse_iso(const char *s, int32_t n, int64_t *out_ns, bool *has_zone);

/* True when the text is a decimal number; *value is its approximate value. */
bool bt_parse_real(const char *s, int32_t n, double *value);

/* The unit that a column's name ends in: arrival_time_ns, "latency (ms)", t_s, duration_seconds;
 * AUTO when it ends in none. */
enum bt_time_unit bt_unit_of_name(const char *name);

/* s, ms, us, ns, iso, auto. False for others. */
bool bt_unit_parse(const char *s, int64_t n, enum bt_time_unit *out);
const char *bt_unit_name(enum bt_time_unit u);

#ifdef __cplusplus
}
#endif

#endif
