#include "sim/workload/columns.h"

#include "sim/workload/dist.h"
#include "sim/workload/text.h"

#include <stdio.h>
#include <string.h>

static const char *const role_names[BT_N_ROLES] = {
    [BT_ROLE_TIMESTAMP] = "timestamp",
    [BT_ROLE_FINISH] = "finish",
    [BT_ROLE_PROMPT] = "prompt",
    [BT_ROLE_OUTPUT] = "output",
    [BT_ROLE_PRIORITY] = "priority",
    [BT_ROLE_SESSION] = "session",
    [BT_ROLE_PARENT] = "parent",
    [BT_ROLE_HASHES] = "hashes",
    [BT_ROLE_HASH_TOKENS] = "hash_tokens",
    [BT_ROLE_TIMEOUT] = "timeout",
    [BT_ROLE_TTFT] = "ttft",
    [BT_ROLE_E2E] = "e2e",
    [BT_ROLE_TPOT] = "tpot",
    [BT_ROLE_FIRST_TOKEN] = "first_token",
    [BT_ROLE_LAST_TOKEN] = "last_token",
};

struct known_name {
    enum bt_role role;
    const char *name;
};

/* Spellings that csv and jsonl are searched for when no mapping names the role. */
static const struct known_name generic_names[] = {
    {BT_ROLE_TIMESTAMP, "timestamp"},
    {BT_ROLE_TIMESTAMP, "arrival_s"},
    {BT_ROLE_TIMESTAMP, "arrival_ms"},
    {BT_ROLE_TIMESTAMP, "arrival_ns"},
    {BT_ROLE_TIMESTAMP, "arrival_time"},
    {BT_ROLE_TIMESTAMP, "arrival_time_s"},
    {BT_ROLE_TIMESTAMP, "arrival_time_ms"},
    {BT_ROLE_TIMESTAMP, "arrival_time_ns"},
    {BT_ROLE_TIMESTAMP, "Timestamp"},
    {BT_ROLE_TIMESTAMP, "TIMESTAMP"},
    {BT_ROLE_PROMPT, "prompt_tokens"},
    {BT_ROLE_PROMPT, "input_tokens"},
    {BT_ROLE_PROMPT, "input_toks"},
    {BT_ROLE_PROMPT, "input_length"},
    {BT_ROLE_PROMPT, "input_len"},
    {BT_ROLE_PROMPT, "prompt_len"},
    {BT_ROLE_PROMPT, "n_prompt"},
    {BT_ROLE_OUTPUT, "output_tokens"},
    {BT_ROLE_OUTPUT, "output_toks"},
    {BT_ROLE_OUTPUT, "output_length"},
    {BT_ROLE_OUTPUT, "output_len"},
    {BT_ROLE_OUTPUT, "completion_tokens"},
    {BT_ROLE_OUTPUT, "generated_tokens"},
    {BT_ROLE_OUTPUT, "n_output"},
    {BT_ROLE_PRIORITY, "priority"},
    {BT_ROLE_SESSION, "session"},
    {BT_ROLE_SESSION, "session_id"},
    {BT_ROLE_HASHES, "hash_ids"},
    {BT_ROLE_HASH_TOKENS, "hash_tokens"},
    {BT_ROLE_TIMEOUT, "timeout_s"},
    {BT_ROLE_TTFT, "ttft_s"},
    {BT_ROLE_E2E, "e2e_s"},
    {BT_ROLE_TPOT, "tpot_s"},
};

static const struct known_name azure_names[] = {{BT_ROLE_TIMESTAMP, "TIMESTAMP"},
                                                {BT_ROLE_PROMPT, "ContextTokens"},
                                                {BT_ROLE_OUTPUT, "GeneratedTokens"}};
static const struct known_name burstgpt_names[] = {{BT_ROLE_TIMESTAMP, "Timestamp"},
                                                   {BT_ROLE_PROMPT, "Request tokens"},
                                                   {BT_ROLE_OUTPUT, "Response tokens"},
                                                   {BT_ROLE_SESSION, "Session ID"}};
static const struct known_name mooncake_names[] = {{BT_ROLE_TIMESTAMP, "timestamp"},
                                                   {BT_ROLE_PROMPT, "input_length"},
                                                   {BT_ROLE_OUTPUT, "output_length"},
                                                   {BT_ROLE_HASHES, "hash_ids"}};
static const struct known_name qwen_names[] = {
    {BT_ROLE_TIMESTAMP, "timestamp"},  {BT_ROLE_PROMPT, "input_length"},
    {BT_ROLE_OUTPUT, "output_length"}, {BT_ROLE_HASHES, "hash_ids"},
    {BT_ROLE_SESSION, "chat_id"},      {BT_ROLE_PARENT, "parent_chat_id"}};

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof *(a)))

enum { MOONCAKE_HASH_TOKENS = 512, QWEN_HASH_TOKENS = 16 };

const char *bt_role_name(enum bt_role role)
{
    BT_ASSERT(role < BT_N_ROLES);
    return role_names[role];
}

static int32_t find_name(const char *const *names, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool has_all(const char *const *names, int32_t n, const struct known_name *known,
                    int32_t n_known)
{
    for (int32_t i = 0; i < n_known; i++) {
        if (known[i].role != BT_ROLE_SESSION && find_name(names, n, known[i].name) < 0) {
            return false;
        }
    }
    return true;
}

enum bt_trace_format bt_columns_detect(const char *const *names, int32_t n, bool json)
{
    if (json) {
        if (has_all(names, n, qwen_names, COUNT(qwen_names))) {
            return BT_TRACE_QWEN;
        }
        /* A hash_tokens key says how long blocks are: not Mooncake's implied 512. */
        bool mooncake = has_all(names, n, mooncake_names, COUNT(mooncake_names)) &&
                        find_name(names, n, "hash_tokens") < 0;
        return mooncake ? BT_TRACE_MOONCAKE : BT_TRACE_JSONL;
    }
    if (has_all(names, n, azure_names, COUNT(azure_names))) {
        return BT_TRACE_AZURE;
    }
    if (has_all(names, n, burstgpt_names, COUNT(burstgpt_names))) {
        return BT_TRACE_BURSTGPT;
    }
    return BT_TRACE_CSV;
}

static enum bt_code set_role(struct bt_columns *c, enum bt_role role, const char *name,
                             enum bt_time_unit unit, const char *where, struct bt_error *err)
{
    struct bt_column *col = &c->role[role];
    int len = snprintf(col->name, sizeof col->name, "%s", name);
    if (len < 0 || len >= (int)sizeof col->name) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: column \"%.40s...\": names have at most %d bytes", where,
                name, BT_COLUMN_NAME_BYTES - 1);
    }
    col->given = true;
    col->unit = unit;
    col->index = -1;
    return BT_OK;
}

/* Copies up to an unescaped stop character; *s is left at it or at the end. */
static bool take_word(const char **s, const char *stops, char *word, size_t word_bytes)
{
    size_t n = 0;
    while (**s != '\0' && strchr(stops, **s) == NULL) {
        if (**s == '\\' && (*s)[1] != '\0') {
            ++*s;
        }
        if (n + 1 >= word_bytes) {
            return false;
        }
        word[n++] = *(*s)++;
    }
    word[n] = '\0';
    return true;
}

/* One "ROLE=COL[:UNIT]" of the user's mapping; *s is left after its comma. */
static enum bt_code take_mapping(struct bt_columns *c, const char **s, const char *all,
                                 struct bt_error *err)
{
    char role_text[32];
    char name[BT_COLUMN_NAME_BYTES];
    enum bt_time_unit unit = BT_TIME_AUTO;
    if (!take_word(s, "=,", role_text, sizeof role_text) || **s != '=') {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "columns: \"%s\": expected ROLE=COLUMN[:UNIT], separated by commas", all);
    }
    ++*s;
    if (!take_word(s, ",:", name, sizeof name) || name[0] == '\0') {
        BT_FAIL(err, BT_ERR_INPUT, 0, "columns: %s: expected a column name of 1 to %d bytes",
                role_text, BT_COLUMN_NAME_BYTES - 1);
    }
    if (**s == ':') {
        char unit_text[16];
        ++*s;
        if (!take_word(s, ",", unit_text, sizeof unit_text) ||
            !bt_unit_parse(unit_text, (int64_t)strlen(unit_text), &unit)) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "columns: %s=%s: expected a unit s, ms, us, ns or iso after the colon (a colon "
                    "in a name is written \\:)",
                    role_text, name);
        }
    }
    if (**s == ',') {
        ++*s;
    }
    for (int32_t role = 0; role < BT_N_ROLES; role++) {
        if (role != BT_ROLE_PARENT && strcmp(role_names[role], role_text) == 0) {
            return set_role(c, (enum bt_role)role, name, unit, "columns", err);
        }
    }
    BT_FAIL(err, BT_ERR_INPUT, 0,
            "columns: unknown role \"%s\"; expected timestamp, finish, prompt, output, priority, "
            "session, hashes, hash_tokens, timeout, ttft, e2e, tpot, first_token or last_token",
            role_text);
}

/* The names as a list for messages, cut to what fits. */
static const char *join(const char *const *names, int32_t n, char *buf, size_t buf_bytes)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int32_t i = 0; i < n; i++) {
        int len = snprintf(buf + at, buf_bytes - at, "%s%s", i > 0 ? ", " : "", names[i]);
        if (len < 0 || (size_t)len >= buf_bytes - at) {
            break;
        }
        at += (size_t)len;
    }
    return buf;
}

static enum bt_code bind_known(struct bt_columns *c, const struct known_name *known,
                               int32_t n_known, bool required, const char *const *names, int32_t n,
                               const char *where, struct bt_error *err)
{
    for (int32_t i = 0; i < n_known; i++) {
        enum bt_role role = known[i].role;
        bool found = find_name(names, n, known[i].name) >= 0;
        bool mapped = c->role[role].given && c->role[role].index == -2;
        if (mapped || (!found && (!required || role == BT_ROLE_SESSION))) {
            continue;
        }
        if (c->role[role].given) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: both \"%s\" and \"%s\" could be the %s; name one with columns %s=...",
                    where, c->role[role].name, known[i].name, role_names[role], role_names[role]);
        }
        BT_TRY(set_role(c, role, known[i].name, BT_TIME_AUTO, where, err));
    }
    return BT_OK;
}

/* A JSON object may leave out what it has not: these are looked for in every row, also when the
 * first one, which tells the names, is without them. */
static enum bt_code bind_later_keys(struct bt_columns *c, const char *where, struct bt_error *err)
{
    static const struct known_name keys[] = {{BT_ROLE_PRIORITY, "priority"},
                                             {BT_ROLE_SESSION, "session"},
                                             {BT_ROLE_TIMEOUT, "timeout_s"}};
    for (int32_t i = 0; i < COUNT(keys); i++) {
        if (!c->role[keys[i].role].given) {
            BT_TRY(set_role(c, keys[i].role, keys[i].name, BT_TIME_AUTO, where, err));
        }
    }
    return BT_OK;
}

static enum bt_code bind_format(struct bt_columns *c, enum bt_trace_format format,
                                const char *const *names, int32_t n, const char *where,
                                struct bt_error *err)
{
    switch (format) {
    case BT_TRACE_AZURE:
        return bind_known(c, azure_names, COUNT(azure_names), true, names, n, where, err);
    case BT_TRACE_BURSTGPT:
        return bind_known(c, burstgpt_names, COUNT(burstgpt_names), true, names, n, where, err);
    case BT_TRACE_MOONCAKE:
        c->hash_tokens = MOONCAKE_HASH_TOKENS;
        return bind_known(c, mooncake_names, COUNT(mooncake_names), true, names, n, where, err);
    case BT_TRACE_QWEN:
        c->hash_tokens = QWEN_HASH_TOKENS;
        return bind_known(c, qwen_names, COUNT(qwen_names), true, names, n, where, err);
    case BT_TRACE_AUTO:
    case BT_TRACE_CSV:
    case BT_TRACE_JSONL:
        break;
    }
    BT_TRY(bind_known(c, generic_names, COUNT(generic_names), false, names, n, where, err));
    return format == BT_TRACE_JSONL ? bind_later_keys(c, where, err) : BT_OK;
}

static void set_units(struct bt_columns *c, enum bt_trace_format format, enum bt_time_unit unit)
{
    struct bt_column *t = &c->role[BT_ROLE_TIMESTAMP];
    if (unit != BT_TIME_AUTO) {
        t->unit = unit;
    }
    if (t->unit == BT_TIME_AUTO) {
        bool mooncake = format == BT_TRACE_MOONCAKE;
        bool seconds = format == BT_TRACE_BURSTGPT || format == BT_TRACE_QWEN;
        t->unit = mooncake                   ? BT_TIME_MS
                  : seconds                  ? BT_TIME_S
                  : format == BT_TRACE_AZURE ? BT_TIME_ISO
                                             : BT_TIME_AUTO;
    }
    for (int32_t role = 0; role < BT_N_ROLES; role++) {
        struct bt_column *col = &c->role[role];
        if (col->given && col->unit == BT_TIME_AUTO) {
            col->unit = bt_unit_of_name(col->name);
        }
    }
    /* Moments without a unit of their own are on the timestamp's clock. */
    static const enum bt_role moments[] = {BT_ROLE_FINISH, BT_ROLE_FIRST_TOKEN, BT_ROLE_LAST_TOKEN};
    for (int32_t i = 0; i < COUNT(moments); i++) {
        if (c->role[moments[i]].unit == BT_TIME_AUTO) {
            c->role[moments[i]].unit = t->unit;
        }
    }
}

static enum bt_code check_required(const struct bt_columns *c, const char *const *names, int32_t n,
                                   const char *where, struct bt_error *err)
{
    char list[256];
    bool has_time = c->role[BT_ROLE_TIMESTAMP].given || c->role[BT_ROLE_FINISH].given;
    const char *lacks = !has_time                        ? "timestamp"
                        : !c->role[BT_ROLE_PROMPT].given ? "prompt"
                        : !c->role[BT_ROLE_OUTPUT].given ? "output"
                                                         : NULL;
    if (lacks != NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: no column for %s; name it with columns %s=NAME. The file has: %s", where,
                lacks, lacks, join(names, n, list, sizeof list));
    }
    if (!c->role[BT_ROLE_TIMESTAMP].given && !c->role[BT_ROLE_E2E].given) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "columns: finish needs e2e too (arrival = finish - e2e), or give timestamp");
    }
    if (c->role[BT_ROLE_HASHES].given && c->hash_tokens == 0 &&
        !c->role[BT_ROLE_HASH_TOKENS].given) {
        BT_FAIL(
            err, BT_ERR_INPUT, 0,
            "%s: column %s: how many tokens has a hash-block? Say columns hash_tokens=COLUMN or "
            "hash_tokens=NUMBER",
            where, c->role[BT_ROLE_HASHES].name);
    }
    static const enum bt_role spans[] = {BT_ROLE_TIMEOUT, BT_ROLE_TTFT, BT_ROLE_E2E, BT_ROLE_TPOT};
    for (int32_t i = 0; i < COUNT(spans); i++) {
        const struct bt_column *col = &c->role[spans[i]];
        if (col->given && (col->unit == BT_TIME_AUTO || col->unit == BT_TIME_ISO)) {
            BT_FAIL(err, BT_ERR_INPUT, 0,
                    "%s: column %s: its unit is not known; say columns %s=%s:s (or ms, us, ns)",
                    where, col->name, role_names[spans[i]], col->name);
        }
    }
    return BT_OK;
}

/* Positions in a CSV header; a hash_tokens "column" that is a number is a constant. */
static enum bt_code bind_positions(struct bt_columns *c, bool json, const char *const *names,
                                   int32_t n, const char *where, struct bt_error *err)
{
    char list[256];
    struct bt_column *ht = &c->role[BT_ROLE_HASH_TOKENS];
    int64_t constant;
    if (ht->given && find_name(names, n, ht->name) < 0 &&
        bt_parse_whole(ht->name, (int32_t)strlen(ht->name), &constant)) {
        if (constant < 1 || constant > BT_MAX_TOKENS) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "columns: hash_tokens=%s: expected 1 to %d", ht->name,
                    BT_MAX_TOKENS);
        }
        c->hash_tokens = (int32_t)constant;
        ht->given = false;
    }
    for (int32_t role = 0; role < BT_N_ROLES; role++) {
        struct bt_column *col = &c->role[role];
        if (!col->given || json) {
            continue;
        }
        col->index = find_name(names, n, col->name);
        if (col->index < 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: no column \"%s\" (for %s). The file has: %s", where,
                    col->name, role_names[role], join(names, n, list, sizeof list));
        }
        if (find_name(names + col->index + 1, n - col->index - 1, col->name) >= 0) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s: two columns are called \"%s\" (for %s)", where,
                    col->name, role_names[role]);
        }
    }
    return BT_OK;
}

enum bt_code bt_columns_bind(struct bt_columns *c, enum bt_trace_format format,
                             const struct bt_trace_opts *opts, const char *const *names, int32_t n,
                             const char *where, struct bt_error *err)
{
    memset(c, 0, sizeof *c);
    const char *s = opts->columns != NULL ? opts->columns : "";
    while (*s != '\0') {
        BT_TRY(take_mapping(c, &s, opts->columns, err));
    }
    for (int32_t role = 0; role < BT_N_ROLES; role++) {
        /* -2: the user's own choice, which the known names leave alone. */
        c->role[role].index = c->role[role].given ? -2 : -1;
    }
    if (c->role[BT_ROLE_FINISH].given && !c->role[BT_ROLE_TIMESTAMP].given) {
        c->role[BT_ROLE_TIMESTAMP].given = true;
        c->role[BT_ROLE_TIMESTAMP].index = -2;
        BT_TRY(bind_format(c, format, names, n, where, err));
        c->role[BT_ROLE_TIMESTAMP].given = false;
    } else {
        BT_TRY(bind_format(c, format, names, n, where, err));
    }
    set_units(c, format, opts->unit);
    bool json = format == BT_TRACE_MOONCAKE || format == BT_TRACE_QWEN || format == BT_TRACE_JSONL;
    BT_TRY(check_required(c, names, n, where, err));
    return bind_positions(c, json, names, n, where, err);
}
