/* Trace readers: the real traces, every format and oddity, malformed input. */
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
