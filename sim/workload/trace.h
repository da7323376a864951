/* Request traces: files of what production sent, read row by row.
 *
 * Formats: Azure 2023 and 2024 CSV, BurstGPT 1 to 3 CSV, Mooncake JSONL, Qwen-Bailian JSONL, and
 * any CSV or JSONL through a column mapping. Files may be gzip (.gz) or Zstandard (.zst)
 * compressed; CRLF, a UTF-8 mark and a missing last newline are coped with. What is malformed or
 * ambiguous is an error that names file, line and column; nothing is guessed.
 *
 * Three ways in, from the least memory to the most: bt_trace_reader (rows as the file has them,
 * memory of one row), bt_source_create_trace (requests in order of arrival, streaming when the file
 * is sorted and needs no spreading), bt_trace (a compact table, immutable, shared by threads).
 */
#ifndef BT_SIM_WORKLOAD_TRACE_H
#define BT_SIM_WORKLOAD_TRACE_H

#include "engine/core/error.h"
#include "sim/workload/source.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_trace_format {
    BT_TRACE_AUTO = 0,
    BT_TRACE_AZURE,
    BT_TRACE_BURSTGPT,
    BT_TRACE_MOONCAKE,
    BT_TRACE_QWEN,
    BT_TRACE_CSV,
    BT_TRACE_JSONL,
};

enum bt_time_unit {
    BT_TIME_AUTO = 0, /* the format's; for csv and jsonl from the text, the column's name, or the
                         size of an epoch, else an error */
    BT_TIME_ISO,      /* 2023-11-16 18:15:46.6805900, T or space, zone or none (taken as UTC) */
    BT_TIME_S,
    BT_TIME_MS,
    BT_TIME_US,
    BT_TIME_NS,
};

/* Names as on the command line ("auto", "azure", ...); NULL is never returned. */
const char *bt_trace_format_name(enum bt_trace_format f);

/* The format of a name; BT_ERR_ARG lists the names. */
BT_NODISCARD enum bt_code bt_trace_format_parse(const char *name, enum bt_trace_format *out,
                                                struct bt_error *err);

struct bt_trace_opts {
    enum bt_trace_format format;
    const char *columns;    /* borrowed; "timestamp=COL[:UNIT],prompt=COL,output=COL[,ROLE=COL...]";
                               NULL or "": by the format. Roles: timestamp, finish, prompt, output,
                               priority, session, hashes, hash_tokens, timeout, ttft, e2e, tpot,
                               first_token, last_token. UNIT: s, ms, us, ns, iso. \, \= \: \\ stand
                               for themselves in COL. */
    enum bt_time_unit unit; /* of the timestamp column */
    double rate_scale;      /* > 0; 0 means 1: arrival times are divided by it */
    double from_s;          /* >= 0: rows before this second of the trace are left out */
    double to_s;            /* > from_s: rows from this second on are left out; 0: none */
    int64_t limit;          /* at most so many requests; 0: none */
    bool keep_ticks;    /* --spread-ticks off: rows keep the coarse time they were logged with */
    uint64_t seed;      /* of the spreading */
    int64_t timeout_ns; /* of every request whose row gives none; 0: none */
};

/* Times measured where the trace was taken, -1 where a row or file has none. */
struct bt_measured {
    int64_t ttft_ns;
    int64_t e2e_ns;
    int64_t tpot_ns;
};

/* A row as the file has it. */
struct bt_trace_row {
    int64_t row;        /* 0-based, data rows only */
    int64_t line;       /* 1-based, of the row's start */
    int64_t time_ns;    /* the file's own clock (Unix time for dates) */
    int64_t timeout_ns; /* 0: none */
    int32_t n_prompt;   /* tokens, >= 0 */
    int32_t n_output;   /* tokens, >= 0; 0: the request had failed */
    int32_t priority;
    int32_t session; /* dense, in order of appearance; -1: none */
    int32_t n_hashes;
    int32_t hash_tokens;
    const uint64_t *hashes; /* borrowed: until the next row */
    struct bt_measured measured;
};

struct bt_trace_reader;

/* Opens a file and finds out its format and columns. Fails with BT_ERR_IO, BT_ERR_INPUT,
 * BT_ERR_MISSING (.zst in a build without Zstandard). */
BT_NODISCARD enum bt_code bt_trace_reader_open(const char *path, const struct bt_trace_opts *opts,
                                               struct bt_trace_reader **out, struct bt_error *err);

/* The next row in the file's order; *end is true when there is none. Filters of the options
 * (from, to, limit) and spreading do not apply here. */
BT_NODISCARD enum bt_code bt_trace_reader_next(struct bt_trace_reader *r, struct bt_trace_row *row,
                                               bool *end, struct bt_error *err);

/* What the file turned out to be. */
enum bt_trace_format bt_trace_reader_format(const struct bt_trace_reader *r);
bool bt_trace_reader_has_measured(const struct bt_trace_reader *r);
int32_t bt_trace_reader_n_sessions(const struct bt_trace_reader *r); /* so far */

void bt_trace_reader_close(struct bt_trace_reader *r);

/* What was odd, over all rows of the file. */
struct bt_trace_counts {
    int64_t rows;
    int64_t failed_in_trace;  /* zero output: not served */
    int64_t zero_prompt;      /* zero prompt, output > 0: not served */
    int64_t unsorted;         /* earlier than the row before */
    int64_t equal_times;      /* rows whose time another row has too */
    int64_t equal_times_most; /* rows of the commonest time */
    int64_t single_token;     /* output of one token: TPOT undefined */
    int64_t hash_trimmed;     /* rows with hash-blocks past the end of the prompt: cut */
    int64_t sessions;         /* distinct; 0 when the trace has none */
    int64_t max_prompt;
    int64_t max_output;
    int64_t tick_ns;       /* coarse clock found (0: none): rows are spread over it unless kept */
    int64_t first_time_ns; /* of the file's own clock */
    int64_t last_time_ns;
    bool sorted;
    bool spread; /* rows were spread over the tick */
};

struct bt_trace; /* requests in order of arrival; immutable: threads may share it */

/* Reads a whole file: 24 bytes a request, more with sessions, hashes, measured times. */
BT_NODISCARD enum bt_code bt_trace_load(const char *path, const struct bt_trace_opts *opts,
                                        struct bt_trace **out, struct bt_error *err);
void bt_trace_destroy(struct bt_trace *t);

int64_t bt_trace_n(const struct bt_trace *t);
void bt_trace_get(const struct bt_trace *t, int64_t i, struct bt_request *out);
const struct bt_trace_counts *bt_trace_counts(const struct bt_trace *t);
enum bt_trace_format bt_trace_format_of(const struct bt_trace *t);

/* True and *out filled when the trace has measured columns; id is a request's id. O(1). */
bool bt_trace_measured(const struct bt_trace *t, int64_t id, struct bt_measured *out);

/* A source over a loaded trace, which is borrowed; its own cursor, so one for each thread.
 * rate_scale 0 means 1 and multiplies the one the trace was loaded with. */
BT_NODISCARD enum bt_code bt_source_create_table(const struct bt_trace *t, double rate_scale,
                                                 struct bt_source **out, struct bt_error *err);

/* A source over a file: reads it once to learn its order, clock and oddities, then streams it; a
 * file that must be sorted or spread is loaded and owned by the source. */
BT_NODISCARD enum bt_code bt_source_create_trace(const char *path, const struct bt_trace_opts *opts,
                                                 struct bt_source **out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
