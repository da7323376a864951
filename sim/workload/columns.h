/* Which column (CSV) or key (JSONL) plays which role in a trace. */
#ifndef BT_SIM_WORKLOAD_COLUMNS_H
#define BT_SIM_WORKLOAD_COLUMNS_H

#include "sim/workload/trace.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_role {
    BT_ROLE_TIMESTAMP, /* arrival */
    BT_ROLE_FINISH,    /* end of the request; with e2e instead of timestamp */
    BT_ROLE_PROMPT,
    BT_ROLE_OUTPUT,
    BT_ROLE_PRIORITY,
    BT_ROLE_SESSION,
    BT_ROLE_PARENT, /* Qwen-Bailian: chat_id of the turn before; -1 for a first turn */
    BT_ROLE_HASHES,
    BT_ROLE_HASH_TOKENS,
    BT_ROLE_TIMEOUT,
    BT_ROLE_TTFT,
    BT_ROLE_E2E,
    BT_ROLE_TPOT,
    BT_ROLE_FIRST_TOKEN, /* moment, on the timestamp's clock */
    BT_ROLE_LAST_TOKEN,
    BT_N_ROLES,
};

enum { BT_COLUMN_NAME_BYTES = 128, BT_MAX_COLUMNS = 1024 };

struct bt_column {
    bool given;
    char name[BT_COLUMN_NAME_BYTES];
    enum bt_time_unit unit;
    int32_t index; /* CSV: 0-based; -1: not in the header */
};

struct bt_columns {
    struct bt_column role[BT_N_ROLES];
    int32_t hash_tokens; /* > 0: of every row; 0: from the hash_tokens column */
};

/* Name of a role as in the column mapping. */
const char *bt_role_name(enum bt_role role);

/* The format that the names of a header or of the first object tell. */
enum bt_trace_format bt_columns_detect(const char *const *names, int32_t n, bool json);

/* Fills the roles: the format's own names (csv, jsonl: the known spellings found among `names`;
 * jsonl: also keys that only later rows may have), then the user's mapping over them. `where`
 * ("file:1") begins the messages. Fails with BT_ERR_INPUT: a mapping that is malformed or names a
 * column that is not there (csv), a role that is required and not found, two spellings for one
 * role. */
BT_NODISCARD enum bt_code bt_columns_bind(struct bt_columns *c, enum bt_trace_format format,
                                          const struct bt_trace_opts *opts,
                                          const char *const *names, int32_t n, const char *where,
                                          struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
