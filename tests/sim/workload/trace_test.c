/* Trace readers: the real traces, every format and oddity, malformed input. */
#include "engine/core/rng.h"
#include "sim/workload/spec.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AZURE    BT_TEST_SOURCE_DIR "/scenarios/traces/AzureLLMInferenceTrace_conv.csv"
#define TRACES   BT_TEST_SOURCE_DIR "/tests/data/traces/"
#define MOONCAKE TRACES "mooncake_500.jsonl"

static struct bt_trace *load(const char *path, const struct bt_trace_opts *opts)
{
    static const struct bt_trace_opts none;
    struct bt_error err = {0};
    struct bt_trace *t = NULL;
    cr_assert_eq(bt_trace_load(path, opts != NULL ? opts : &none, &t, &err), BT_OK, "%s: %s", path,
                 err.msg);
    return t;
}

Test(trace, azure_2023_is_read_whole)
{
    struct bt_trace *t = load(AZURE, NULL);
    const struct bt_trace_counts *c = bt_trace_counts(t);
    cr_expect_eq(bt_trace_n(t), 19366);
    cr_expect_eq(bt_trace_format_of(t), BT_TRACE_AZURE);
    cr_expect(c->sorted);
    cr_expect_eq(c->failed_in_trace, 0);
    cr_expect_eq(c->tick_ns, 0);
    struct bt_request q;
    int64_t over = 0;
    for (int64_t i = 0; i < bt_trace_n(t); i++) {
        bt_trace_get(t, i, &q);
        over += q.n_prompt + q.n_output > 4096;
    }
    cr_expect_eq(over, 1612);
    bt_trace_get(t, 1, &q);
    cr_expect_eq(q.arrival_ns, 4314579000); /* 18:15:50.9951690 - 18:15:46.6805900 */
    cr_expect_eq(q.n_prompt, 396);
    cr_expect_eq(q.n_output, 109);
    bt_trace_get(t, 19365, &q);
    cr_expect_eq(q.id, 19365);
    cr_expect_eq(q.n_output, 183);
    cr_expect_eq(q.arrival_ns, 3501721937000); /* 19:14:08.4025270: 58 min 21.7219370 s later */
    bt_trace_destroy(t);
}

static void expect_request(const struct bt_trace *t, int64_t i, int64_t arrival_ns, int32_t prompt,
                           int32_t output)
{
    struct bt_request q;
    bt_trace_get(t, i, &q);
    cr_expect_eq(q.arrival_ns, arrival_ns, "%lld: arrival %lld, not %lld", (long long)i,
                 (long long)q.arrival_ns, (long long)arrival_ns);
    cr_expect_eq(q.n_prompt, prompt, "%lld: prompt %d", (long long)i, q.n_prompt);
    cr_expect_eq(q.n_output, output, "%lld: output %d", (long long)i, q.n_output);
}

Test(trace, azure_2024_has_zones_and_fractions_of_any_length)
{
    static const char *const files[] = {TRACES "azure_2024.csv", TRACES "azure_2024.csv.gz"};
    for (size_t i = 0; i < 2; i++) {
        struct bt_trace *t = load(files[i], NULL);
        cr_assert_eq(bt_trace_n(t), 4);
        cr_expect_eq(bt_trace_format_of(t), BT_TRACE_AZURE);
        expect_request(t, 0, 0, 2162, 5);
        expect_request(t, 1, 990070000, 2399, 6);
        expect_request(t, 2, 1490070000, 76, 15);
        expect_request(t, 3, 2113526789, 2376, 4);
        bt_trace_destroy(t);
    }
}

Test(trace, burstgpt_is_read_by_name_and_failed_rows_are_counted)
{
    struct bt_trace *t = load(TRACES "burstgpt_1.csv", NULL);
    const struct bt_trace_counts *c = bt_trace_counts(t);
    cr_expect_eq(bt_trace_format_of(t), BT_TRACE_BURSTGPT);
    cr_assert_eq(bt_trace_n(t), 3);
    cr_expect_eq(c->rows, 5);
    cr_expect_eq(c->failed_in_trace, 1);
    cr_expect_eq(c->zero_prompt, 1);
    cr_expect_eq(c->single_token, 1);
    expect_request(t, 0, 0, 472, 18);
    expect_request(t, 1, 40000000000, 1087, 230);
    expect_request(t, 2, 113000000000, 1360, 1);
    bt_trace_destroy(t);
    /* Two columns inserted in the middle; session names with a comma in them. */
    t = load(TRACES "burstgpt_3.csv", NULL);
    cr_assert_eq(bt_trace_n(t), 3);
    cr_expect_eq(bt_trace_counts(t)->sessions, 2);
    expect_request(t, 1, 7000000000, 200, 20);
    struct bt_request a, b, d;
    bt_trace_get(t, 0, &a);
    bt_trace_get(t, 1, &b);
    bt_trace_get(t, 2, &d);
    cr_expect_eq(a.session, d.session);
    cr_expect_neq(a.session, b.session);
    bt_trace_destroy(t);
}

Test(trace, qwen_turns_join_their_conversation)
{
    struct bt_trace *t = load(TRACES "qwen.jsonl", NULL);
    cr_expect_eq(bt_trace_format_of(t), BT_TRACE_QWEN);
    cr_assert_eq(bt_trace_n(t), 4);
    static const int32_t sessions[] = {0, 1, 0, 0};
    for (int64_t i = 0; i < 4; i++) {
        struct bt_request q;
        bt_trace_get(t, i, &q);
        cr_expect_eq(q.session, sessions[i]);
        cr_expect_eq(q.hash_tokens, 16);
        cr_expect_eq(q.hashes[0], 1);
    }
    expect_request(t, 1, 1250000000, 33, 7);
    expect_request(t, 3, 191000000000, 191234, 1);
    bt_trace_destroy(t);
}

/* A trace whose first blocks are also its last. */
Test(trace, one_request_with_hashes)
{
    struct bt_trace_opts opts = {.limit = 1};
    static const char *const files[] = {MOONCAKE, TRACES "qwen.jsonl"};
    for (size_t i = 0; i < 2; i++) {
        struct bt_trace *t = load(files[i], &opts);
        struct bt_request q;
        cr_assert_eq(bt_trace_n(t), 1);
        bt_trace_get(t, 0, &q);
        cr_expect_gt(q.n_hashes, 0);
        cr_expect_not_null(q.hashes);
        bt_trace_destroy(t);
    }
}

Test(trace, mooncake_ticks_are_spread_over_three_seconds_unless_kept)
{
    struct bt_trace_opts keep = {.keep_ticks = true};
    struct bt_trace *spread = load(MOONCAKE, NULL);
    struct bt_trace *kept = load(MOONCAKE, &keep);
    cr_assert_eq(bt_trace_n(spread), 500);
    cr_expect_eq(bt_trace_format_of(spread), BT_TRACE_MOONCAKE);
    cr_expect_eq(bt_trace_counts(spread)->tick_ns, 3000000000);
    cr_expect_eq(bt_trace_counts(kept)->tick_ns, 3000000000);
    cr_expect(bt_trace_counts(spread)->spread);
    cr_expect_not(bt_trace_counts(kept)->spread);
    struct bt_request a, b;
    int64_t before_ns = 0;
    double within = 0.0;
    for (int64_t i = 0; i < 500; i++) {
        bt_trace_get(spread, i, &a);
        bt_trace_get(kept, i, &b);
        cr_assert_eq(a.id, b.id, "spreading keeps the file's order");
        cr_assert_geq(a.arrival_ns, before_ns);
        cr_assert_geq(a.arrival_ns, b.arrival_ns);
        cr_assert_lt(a.arrival_ns, b.arrival_ns + 3000000000);
        cr_assert_eq(a.hash_tokens, 512);
        before_ns = a.arrival_ns;
        within += (double)(a.arrival_ns - b.arrival_ns) / 3e9;
    }
    cr_expect_float_eq(within / 500, 0.5, 0.05, "uniform over the tick: %g", within / 500);
    bt_trace_get(kept, 10, &b);
    cr_expect_eq(b.arrival_ns % 1000000, 0);
    bt_trace_destroy(spread);
    bt_trace_destroy(kept);
}

Test(trace, a_jittering_clock_is_found_and_order_kept)
{
    struct bt_trace *t = load(TRACES "ticks.jsonl", NULL);
    cr_expect_eq(bt_trace_n(t), 256);
    cr_expect_eq(bt_trace_counts(t)->tick_ns, 3000000000);
    int64_t before_ns = 0;
    for (int64_t i = 0; i < 256; i++) {
        struct bt_request q;
        bt_trace_get(t, i, &q);
        cr_assert_eq(q.id, i);
        cr_assert_geq(q.arrival_ns, before_ns);
        before_ns = q.arrival_ns;
    }
    bt_trace_destroy(t);
}

/* A mark at the start, semicolons, quotes with a line end inside, CRLF, an empty line, counts
 * written as 12.0, unsorted rows, no newline at the end; plain and compressed. */
Test(trace, csv_in_its_odd_forms)
{
    static const char *const files[] = {TRACES "quoted.csv", TRACES "quoted.csv.gz",
                                        TRACES "quoted.csv.zst"};
    for (size_t i = 0; i < 3; i++) {
        static const struct bt_trace_opts none;
        struct bt_error err = {0};
        struct bt_trace *t = NULL;
        enum bt_code code = bt_trace_load(files[i], &none, &t, &err);
        if (code == BT_ERR_MISSING) {
            cr_expect_not_null(strstr(err.msg, "Zstandard"));
            continue;
        }
        cr_assert_eq(code, BT_OK, "%s", err.msg);
        cr_assert_eq(bt_trace_n(t), 3);
        cr_expect_eq(bt_trace_counts(t)->unsorted, 1);
        cr_expect_not(bt_trace_counts(t)->sorted);
        expect_request(t, 0, 0, 7, 1);
        expect_request(t, 1, 500000000, 12, 3);
        expect_request(t, 2, 1000500000, 9, 2);
        struct bt_request q;
        bt_trace_get(t, 1, &q);
        cr_expect_eq(q.id, 0);
        cr_expect_eq(q.priority, 2);
        bt_trace_destroy(t);
    }
}

static const char *temp_path(void)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/workload_%ld.tmp", BT_TEST_BINARY_DIR, (long)getpid());
    return path;
}

static const char *write_temp(const char *text, size_t n)
{
    const char *path = temp_path();
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(text, 1, n, f), n);
    fclose(f);
    return path;
}

Test(trace, measured_runs_are_read_through_a_mapping)
{
    struct bt_measured m;
    struct bt_request q;
    /* arrival_time_ns says its unit, and the lengths' names are known: no mapping is needed. */
    struct bt_trace *t = load(TRACES "vllm019_sent.csv", NULL);
    cr_assert_eq(bt_trace_n(t), 59);
    expect_request(t, 1, 347938951 - 46926808, 1034, 769);
    cr_expect_not(bt_trace_measured(t, 0, &m));
    bt_trace_destroy(t);
    /* The end of each answer on a clock, and how long it took: arrival = finish - e2e. */
    struct bt_trace_opts opts = {
        .columns = "finish=record_time_monotonic_s,prompt=in_len,output=max_tokens,"
                   "ttft=first_chunk_time_s,e2e=total_chunk_time_s"};
    t = load(TRACES "burstgpt_measured.csv", &opts);
    cr_assert_eq(bt_trace_n(t), 39);
    bt_trace_get(t, 1, &q);
    cr_assert(bt_trace_measured(t, q.id, &m));
    cr_expect_eq(q.n_prompt, 1015);
    cr_expect_float_eq((double)m.ttft_ns, 0.04250488802790642e9, 1);
    cr_expect_float_eq((double)m.e2e_ns, 3.4513920806348324e9, 1);
    /* 14592661.665886952 - 3.4513920806348324 - (14592657.846643506 - 0.0326206348836422) */
    cr_expect_float_eq((double)q.arrival_ns, 0.4004720002e9, 10, "%lld", (long long)q.arrival_ns);
    bt_trace_destroy(t);
    /* Moments on one clock. */
    opts.columns = "timestamp=queued_ts:s,prompt=input_toks,output=output_toks,"
                   "first_token=first_token_ts,last_token=last_token_ts";
    t = load(TRACES "vllm019_requests.jsonl", &opts);
    cr_assert_eq(bt_trace_n(t), 40);
    bt_trace_get(t, 0, &q);
    cr_assert(bt_trace_measured(t, q.id, &m));
    cr_expect_float_eq((double)m.ttft_ns, (479748.510151426 - 479748.340626232) * 1e9, 200);
    cr_expect_float_eq((double)m.e2e_ns, (479764.054028055 - 479748.340626232) * 1e9, 200);
    cr_expect_float_eq((double)m.tpot_ns, (479764.054028055 - 479748.510151426) * 1e9 / 530, 200);
    bt_trace_destroy(t);
}

Test(trace, json_keys_may_appear_later)
{
    static const char text[] = "{\"arrival_s\": 0, \"n_prompt\": 1, \"n_output\": 1}\n"
                               "{\"arrival_s\": 1, \"n_prompt\": 1, \"n_output\": 1, \"priority\": "
                               "3, \"session\": \"x\"}\n"
                               "{\"arrival_s\": 2, \"n_prompt\": 1, \"n_output\": 1, "
                               "\"timeout_s\": 0.5, \"session\": null}\n";
    const char *path = write_temp(text, sizeof text - 1);
    struct bt_trace_opts opts = {.timeout_ns = 9};
    struct bt_trace *t = load(path, &opts);
    struct bt_request q[3];
    for (int64_t i = 0; i < 3; i++) {
        bt_trace_get(t, i, &q[i]);
    }
    cr_expect(q[0].priority == 0 && q[1].priority == 3 && q[2].priority == 0);
    cr_expect(q[0].session == -1 && q[1].session == 0 && q[2].session == -1);
    cr_expect(q[0].timeout_ns == 9 && q[1].timeout_ns == 9 && q[2].timeout_ns == 500000000);
    bt_trace_destroy(t);
    remove(path);
}

Test(trace, units_are_told_by_name_mapping_option_or_epoch)
{
    static const struct {
        const char *name, *text, *columns;
        enum bt_time_unit unit;
        int64_t second_ns;
    } cases[] = {
        {"by name", "arrival_ms,prompt_tokens,output_tokens\n10,1,1\n12.5,1,1\n", NULL, 0, 2500000},
        {"by mapping", "t,a,b\n10,1,1\n12.5,1,1\n", "timestamp=t:us,prompt=a,output=b", 0, 2500},
        {"by option", "t,a,b\n10,1,1\n12.5,1,1\n", "timestamp=t,prompt=a,output=b", BT_TIME_S,
         2500000000},
        {"epoch s", "timestamp,n_prompt,n_output\n1700000000.25,1,1\n1700000001,1,1\n", NULL, 0,
         750000000},
        {"epoch ms", "timestamp,n_prompt,n_output\n1700000000000,1,1\n1700000000001,1,1\n", NULL, 0,
         1000000},
        {"epoch ns",
         "timestamp,n_prompt,n_output\n1700000000000000001,1,1\n1700000000000000004,1,1\n", NULL, 0,
         3},
        {"date",
         "timestamp,n_prompt,n_output\n2024-02-29T23:59:59Z,1,1\n2024-03-01T00:00:00Z,1,1\n", NULL,
         0, 1000000000},
        {"json number",
         "{\"timestamp\": 5, \"n_prompt\": 1, \"n_output\": 1}\n"
         "{\"timestamp\": 6.5, \"n_prompt\": 1, \"n_output\": 1}\n",
         "timestamp=timestamp:s", 0, 1500000000},
        {"escaped name", "\"a,b\",p,o\n1,1,1\n3,1,1\n", "timestamp=a\\,b:s,prompt=p,output=o", 0,
         2000000000},
        {"exponent", "t,a,b\n1e3,1,1\n1.5e3,1,1\n", "timestamp=t:s,prompt=a,output=b", 0,
         500000000000},
        {"tab", "arrival_s\tprompt_len\toutput_len\n1\t1\t1\n3\t1\t1\n", NULL, 0, 2000000000},
        {"negative", "arrival_s,prompt_len,output_len\n-1.5,1,1\n0.25,1,1\n", NULL, 0, 1750000000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_trace_opts opts = {.columns = cases[i].columns, .unit = cases[i].unit};
        const char *path = write_temp(cases[i].text, strlen(cases[i].text));
        struct bt_trace *t = load(path, &opts);
        struct bt_request q;
        bt_trace_get(t, 1, &q);
        cr_expect_eq(q.arrival_ns, cases[i].second_ns, "%s: %lld, not %lld", cases[i].name,
                     (long long)q.arrival_ns, (long long)cases[i].second_ns);
        bt_trace_destroy(t);
        remove(path);
    }
}

Test(trace, malformed_input_names_file_line_and_column)
{
#define HEAD "arrival_s,prompt_tokens,output_tokens\n"
#define JROW                                                                                       \
    "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
    static const struct {
        const char *text, *columns;
        enum bt_trace_format format;
        const char *says;
    } cases[] = {
        {"", NULL, 0, "the file is empty"},
        {"\n\n", NULL, 0, "the file is empty"},
        {HEAD "0,5,5\n1,x,5\n", NULL, 0,
         ":3: column prompt_tokens: value \"x\": expected a whole number 0 to 100000000"},
        {HEAD "0,5,5.5\n", NULL, 0, ":2: column output_tokens: value \"5.5\": expected a whole"},
        {HEAD "0,-5,5\n", NULL, 0, ":2: column prompt_tokens: value \"-5\""},
        {HEAD "0,,5\n", NULL, 0, ":2: column prompt_tokens: no value: expected"},
        {HEAD "0,5,999999999\n", NULL, 0, ":2: column output_tokens: value \"999999999\""},
        {HEAD "0,5\n", NULL, 0, ":2: 2 fields; expected 3 as in the header"},
        {HEAD "0,5,5,5\n", NULL, 0, ":2: 4 fields; expected 3 as in the header"},
        {HEAD "0x10,5,5\n", NULL, 0,
         ":2: column arrival_s: value \"0x10\": expected a number of s"},
        {HEAD "nan,5,5\n", NULL, 0, ":2: column arrival_s: value \"nan\""},
        {HEAD "99999999999999,5,5\n", NULL, 0, "within 146 years"},
        {HEAD "0,\"5,5\n", NULL, 0, ":2: a quoted field is not closed"},
        {HEAD "0,\"5\"5,5\n", NULL, 0, ":2: a quoted field is not closed, or followed by text"},
        {"0,5,5\n1,5,5\n", NULL, 0, ":1: expected a header with the columns' names, got numbers"},
        {"time,prompt_tokens,output_tokens\n0,1,1\n", NULL, 0,
         ":1: no column for timestamp; name it with columns timestamp=NAME. The file has: time, "},
        {"timestamp,prompt_tokens,output_tokens\n12,1,1\n", NULL, 0,
         ":2: column timestamp: value \"12\": expected a known unit; say columns "
         "timestamp=timestamp:s (or ms, us, ns)"},
        {"timestamp,prompt_tokens,output_tokens\nyesterday,1,1\n", NULL, 0,
         ":2: column timestamp: value \"yesterday\": expected a time"},
        {"timestamp,arrival_s,n_prompt,n_output\n1,1,1,1\n", NULL, 0,
         ":1: both \"timestamp\" and \"arrival_s\" could be the timestamp"},
        {"arrival_s,n_prompt,n_output,n_output\n1,1,1,1\n", NULL, 0,
         ":1: two columns are called \"n_output\""},
        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:15:46,1,1\n", NULL, 0,
         ":2: column TIMESTAMP: value \"2023-13-16 18:15:46\": expected a time YYYY-MM-DD"},
        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-02-29 18:15:46,1,1\n", NULL, 0,
         ":2: column TIMESTAMP"},
        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1234567891,1,1\n", NULL, 0,
         "up to 9 digits"},
        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46Z,1,1\n"
         "2023-11-16 18:15:47,1,1\n",
         NULL, 0, ":3: column TIMESTAMP: value \"2023-11-16 18:15:47\": expected a zone, as in"},
        {HEAD "0,5,5\n", "timestamp=nothere:s", 0,
         ":1: no column \"nothere\" (for timestamp). The file has: arrival_s, prompt_tokens"},
        {HEAD "0,5,5\n", "when=arrival_s", 0, "columns: unknown role \"when\"; expected timestamp"},
        {HEAD "0,5,5\n", "timestamp", 0, "columns: \"timestamp\": expected ROLE=COLUMN[:UNIT]"},
        {HEAD "0,5,5\n", "timestamp=arrival_s:h", 0, "expected a unit s, ms, us, ns or iso"},
        {HEAD "0,5,5\n", "ttft=arrival_s:iso", 0, "its unit is not known"},
        {"arrival_s,n_prompt,n_output,lat\n0,5,5,1\n", "e2e=lat", 0,
         ":1: column lat: its unit is not known; say columns e2e=lat:s"},
        {"arrival_s,n_prompt,n_output,lat_s\n0,5,5,-1\n", "e2e=lat_s", 0,
         ":2: column lat_s: value \"-1\": expected a duration >= 0"},
        {"arrival_s,n_prompt,n_output,priority\n0,5,5,16\n", NULL, 0,
         ":2: column priority: value \"16\": expected a whole number 0 to 15"},
        {JROW "{\"timestamp\": 1, \"input_length\": \n", NULL, 0,
         ":2: expected one JSON object a line"},
        {JROW "[1]\n", NULL, 0, ":2: expected one JSON object a line: another value"},
        {JROW "{\"timestamp\": 1, \"output_length\": 5}\n", NULL, 0,
         ":2: column input_length: no value: expected a whole number"},
        {JROW "{\"timestamp\": 1, \"input_length\": 6, \"output_length\": 5, \"hash_ids\": 7}\n",
         NULL, 0, ":2: column hash_ids: value 7: expected an array of block hashes"},
        {"{\"arrival_s\": 1, \"n_prompt\": 6, \"n_output\": 5, \"hash_ids\": [7]}\n", NULL, 0,
         "how many tokens has a hash-block? Say columns hash_tokens=COLUMN or hash_tokens=NUMBER"},
        {"[\n{\"timestamp\": 1}]\n", NULL, 0, ":1: a JSON array; expected one JSON object a line"},
        {HEAD "0,5,5\n", NULL, BT_TRACE_MOONCAKE, "format mooncake is asked for, but this is not"},
        {JROW, NULL, BT_TRACE_AZURE, "format azure is asked for, but this is JSON"},
        {"a,b,c\n1,1,1\n", NULL, BT_TRACE_AZURE, ":1: no column \"TIMESTAMP\" (for timestamp)"},
        {"\xff\xfe"
         "a\n",
         NULL, 0, ":1: the file is UTF-16; expected UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = write_temp(cases[i].text, strlen(cases[i].text));
        struct bt_trace_opts opts = {.columns = cases[i].columns, .format = cases[i].format};
        struct bt_error err = {0};
        struct bt_trace *t = NULL;
        enum bt_code code = bt_trace_load(path, &opts, &t, &err);
        cr_expect_eq(code, BT_ERR_INPUT, "case %zu: %s: \"%s\"", i, bt_code_name(code), err.msg);
        cr_expect_not_null(strstr(err.msg, cases[i].says), "case %zu: \"%s\" lacks \"%s\"", i,
                           err.msg, cases[i].says);
        cr_expect_null(t);
        if (code == BT_OK) {
            bt_trace_destroy(t);
        }
        struct bt_source *s = NULL;
        struct bt_error again = {0};
        cr_expect_neq(bt_source_create_trace(path, &opts, &s, &again), BT_OK, "case %zu", i);
        remove(path);
    }
}

Test(trace, broken_files_are_errors)
{
    static const struct bt_trace_opts none;
    struct bt_trace *t = NULL;
    struct bt_error err = {0};
    cr_expect_eq(bt_trace_load(TRACES "not_there.csv", &none, &t, &err), BT_ERR_IO);
    cr_expect_not_null(strstr(err.msg, "cannot open"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_trace_load(TRACES, &none, &t, &err), BT_ERR_IO, "a directory: %s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_trace_load(TRACES "truncated.csv.gz", &none, &t, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "damaged gzip data: it ends early"), "%s", err.msg);
    bt_error_clear(&err);
    static const char zero[] = "arrival_s,n_prompt,n_output\n1,\0,1\n";
    const char *path = write_temp(zero, sizeof zero - 1);
    cr_expect_eq(bt_trace_load(path, &none, &t, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, ":2: a NUL byte"), "%s", err.msg);
    remove(path);
}

Test(trace, thousands_of_equal_times_keep_the_order_of_the_file)
{
    enum { ROWS = 6000 };
    char *text = malloc(64 + ROWS * 24);
    size_t n = (size_t)snprintf(text, 64, "arrival_s,n_prompt,n_output\n");
    for (int i = 0; i < ROWS; i++) {
        /* The first row is late, so that everything is sorted. */
        n += (size_t)snprintf(text + n, 24, "%d,%d,1\n", i == 0 ? 9 : 3, i + 1);
    }
    const char *path = write_temp(text, n);
    free(text);
    struct bt_trace *t = load(path, NULL);
    cr_expect_eq(bt_trace_counts(t)->unsorted, 1);
    cr_expect_eq(bt_trace_counts(t)->equal_times, ROWS - 1);
    cr_expect_eq(bt_trace_counts(t)->equal_times_most, ROWS - 1);
    cr_expect_eq(bt_trace_counts(t)->tick_ns, 0, "two times tell no tick");
    for (int64_t i = 0; i + 1 < ROWS; i++) {
        struct bt_request q;
        bt_trace_get(t, i, &q);
        cr_assert_eq(q.arrival_ns, 0);
        cr_assert_eq(q.n_prompt, i + 2);
    }
    bt_trace_destroy(t);
    remove(path);
}

/* Files with bytes changed, cut or doubled are read or refused, never more (run under the address
 * sanitizer, this is the readers' fuzz test). */
Test(trace, damaged_files_are_read_or_refused)
{
    static const char *const files[] = {TRACES "quoted.csv",        TRACES "azure_2024.csv",
                                        TRACES "qwen.jsonl",        TRACES "burstgpt_3.csv",
                                        TRACES "azure_2024.csv.gz", TRACES "quoted.csv.zst"};
    static const char bytes[] = "\"\",;:{}[]\\\n\r-+.eE09 \xef\x00\xff";
    struct bt_rng r;
    bt_rng_init(&r, 2026, "damage", 0);
    int read = 0;
    int refused = 0;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        static char text[4096], damaged[8192];
        FILE *in = fopen(files[f], "rb");
        cr_assert_not_null(in);
        size_t n = fread(text, 1, sizeof text, in);
        fclose(in);
        for (int i = 0; i < 400; i++) {
            size_t m = n;
            memcpy(damaged, text, n);
            for (uint64_t k = 1 + bt_rng_below(&r, 3); k > 0; k--) {
                damaged[bt_rng_below(&r, m)] = bytes[bt_rng_below(&r, sizeof bytes - 1)];
            }
            if (bt_rng_below(&r, 4) == 0) {
                m = bt_rng_below(&r, n + 1);
            } else if (bt_rng_below(&r, 4) == 0) {
                memcpy(damaged + n, text, n);
                m = 2 * n;
            }
            const char *path = write_temp(damaged, m);
            static const struct bt_trace_opts none;
            struct bt_error err = {0};
            struct bt_trace *t = NULL;
            enum bt_code code = bt_trace_load(path, &none, &t, &err);
            cr_assert(code == BT_OK || code == BT_ERR_INPUT || code == BT_ERR_MISSING, "%s",
                      err.msg);
            cr_assert(code == BT_OK || err.msg[0] != '\0');
            read += code == BT_OK;
            refused += code != BT_OK;
            bt_trace_destroy(t);
            remove(path);
        }
    }
    cr_expect_gt(read, 100);
    cr_expect_gt(refused, 500);
}

/* The stream and the table are the same requests, whatever the cuts. */
Test(trace, streaming_gives_what_the_table_gives)
{
    static const char *const files[] = {AZURE, MOONCAKE, TRACES "quoted.csv", TRACES "qwen.jsonl",
                                        TRACES "burstgpt_1.csv"};
    static const struct bt_trace_opts cuts[] = {
        {0},
        {.rate_scale = 2.5, .timeout_ns = 7},
        {.from_s = 0.4, .to_s = 900, .limit = 300},
        {.keep_ticks = true, .from_s = 2},
    };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            struct bt_error err = {0};
            struct bt_source *s = NULL;
            struct bt_trace *t = load(files[f], &cuts[k]);
            cr_assert_eq(bt_source_create_trace(files[f], &cuts[k], &s, &err), BT_OK, "%s",
                         err.msg);
            for (int round = 0; round < 2; round++) {
                struct bt_request a, b;
                for (int64_t i = 0; i < bt_trace_n(t); i++) {
                    cr_assert_eq(bt_source_next(s, &a, &err), BT_SOURCE_MORE);
                    bt_trace_get(t, i, &b);
                    cr_assert_eq(a.arrival_ns, b.arrival_ns, "%zu %zu %lld", f, k, (long long)i);
                    cr_assert_eq(a.id, b.id);
                    cr_assert_eq(a.timeout_ns, b.timeout_ns);
                    cr_assert(a.n_prompt == b.n_prompt && a.n_output == b.n_output);
                    cr_assert(a.n_hashes == b.n_hashes && a.session == b.session);
                    cr_assert(a.n_hashes == 0 ||
                              memcmp(a.hashes, b.hashes, (size_t)a.n_hashes * sizeof(uint64_t)) ==
                                  0);
                }
                cr_assert_eq(bt_source_next(s, &a, &err), BT_SOURCE_END);
                cr_assert_eq(bt_source_rewind(s, &err), BT_OK);
            }
            bt_source_destroy(s);
            bt_trace_destroy(t);
        }
    }
}

Test(trace, cuts_and_rate_scale)
{
    struct bt_trace_opts opts = {.from_s = 60, .to_s = 120, .rate_scale = 2};
    struct bt_trace *all = load(AZURE, NULL);
    struct bt_trace *cut = load(AZURE, &opts);
    struct bt_request q, c;
    int64_t n = 0;
    for (int64_t i = 0; i < bt_trace_n(all); i++) {
        bt_trace_get(all, i, &q);
        if (q.arrival_ns < 60000000000 || q.arrival_ns >= 120000000000) {
            continue;
        }
        bt_trace_get(cut, n++, &c);
        cr_assert_eq(c.id, q.id);
        cr_assert_eq(c.arrival_ns, (q.arrival_ns - 60000000000) / 2);
    }
    cr_expect_eq(n, bt_trace_n(cut));
    cr_expect_gt(n, 10);
    /* Two cursors over one table, and a scale of the source's own. */
    struct bt_source *a = NULL;
    struct bt_source *b = NULL;
    cr_assert_eq(bt_source_create_table(cut, 0, &a, NULL), BT_OK);
    cr_assert_eq(bt_source_create_table(cut, 5, &b, NULL), BT_OK);
    for (int64_t i = 0; i < n; i++) {
        cr_assert_eq(bt_source_next(a, &q, NULL), BT_SOURCE_MORE);
        cr_assert_eq(bt_source_next(b, &c, NULL), BT_SOURCE_MORE);
        cr_assert_eq(q.id, c.id);
        cr_assert(llabs(q.arrival_ns / 5 - c.arrival_ns) <= 1);
    }
    bt_source_destroy(a);
    bt_source_destroy(b);
    bt_trace_destroy(cut);
    bt_trace_destroy(all);
}

Test(trace, bad_options_are_errors)
{
    static const struct {
        struct bt_trace_opts opts;
        const char *says;
    } cases[] = {{{.rate_scale = -1}, "rate_scale: expected > 0"},
                 {{.from_s = -1}, "from: expected 0 to"},
                 {{.from_s = 5, .to_s = 5}, "to: expected more than from (5 s), got 5"},
                 {{.limit = -1}, "limit: expected >= 0, got -1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_error err = {0};
        struct bt_trace *t = NULL;
        cr_expect_eq(bt_trace_load(AZURE, &cases[i].opts, &t, &err), BT_ERR_ARG);
        cr_expect_not_null(strstr(err.msg, cases[i].says), "%s", err.msg);
    }
    struct bt_error err = {0};
    enum bt_trace_format f;
    cr_expect_eq(bt_trace_format_parse("moonkake", &f, &err), BT_ERR_ARG);
    cr_expect_eq(bt_trace_format_parse("qwen", &f, NULL), BT_OK);
    cr_expect_eq(f, BT_TRACE_QWEN);
}
