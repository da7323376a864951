/* The production trace that ships, on four A100s with Llama-2-7B. */
#include "sim/run.h"
#include "sim/workload/trace.h"
#include "tests/sim/fixtures.h"

#include <criterion/criterion.h>

#include <stdio.h>

#define TRACE BT_TEST_SOURCE_DIR "/scenarios/traces/AzureLLMInferenceTrace_conv.csv"

static struct bt_sim_result *replay(enum bt_over_length over_length)
{
    static struct bt_sim_result result;
    struct bt_error err = {0};
    struct bt_config c;
    bt_config_init(&c);
    snprintf(c.model, sizeof c.model, "llama-2-7b");
    snprintf(c.gpu, sizeof c.gpu, "a100-80-sxm");
    c.weights = BT_WEIGHT_FP16;
    c.max_seqs = 128;
    c.max_batched_tokens = 512;
    c.over_length = (int32_t)over_length;
    struct bt_arch arch = fixture_7b();
    struct bt_gpu gpu = fixture_a100();
    struct bt_deploy d;
    cr_assert_eq(bt_deploy_init(&d, &c, &arch, NULL, &gpu, NULL, &err), BT_OK, "%s", err.msg);
    struct bt_trace_opts trace = {0};
    struct bt_source *source = NULL;
    cr_assert_eq(bt_source_create_trace(TRACE, &trace, &source, &err), BT_OK, "%s", err.msg);
    struct bt_sim_opts o = {.deploy = &d, .replicas = 4, .source = source, .seed = 1};
    cr_assert_eq(bt_sim_run(&o, &result, &err), BT_OK, "%s", err.msg);
    bt_source_destroy(source);
    bt_deploy_fini(&d);
    const struct bt_summary *s = &result.summary;
    cr_expect_eq(s->arrived, 19366);
    cr_expect_eq(s->arrived, s->finished + s->timed_out + s->rejected + s->cancelled + s->failed);
    cr_expect(s->little_error < 1e-6 && s->little_gauge_error < 1e-6);
    return &result;
}

Test(replay, allowed_lengths_all_finish)
{
    struct bt_sim_result *r = replay(BT_OVER_ALLOW);
    const struct bt_summary *s = &r->summary;
    cr_expect_eq(s->finished, 19366);
    /* Tokens of the trace, counted apart: 22,361,870 in prompts, 4,088,665 in answers, of which the
     * first one comes from the prompt's last step. A chunk of one token counts as a decode. */
    cr_expect_eq(s->prefill_tokens + s->decode_tokens, 22361870 + 4088665 - 19366);
    cr_expect(s->prefill_tokens <= 22361870 && s->prefill_tokens > 22361870 - 19366);
    cr_expect_float_eq(s->throughput_out_tok_per_s * s->duration_s, 4088665, 1);
    cr_expect_eq(s->recomputed_tokens, 0);
    cr_expect(s->ttft.p50_s > 0.02 && s->ttft.p50_s < 0.2, "%.4f s", s->ttft.p50_s);
    /* An A100 reads 13.5 GB of weights in 7.4 ms at the best. */
    cr_expect(s->tpot.p50_s > 0.0074 && s->tpot.p50_s < 0.03, "%.4f s", s->tpot.p50_s);
}

Test(replay, longer_ones_than_the_model_are_counted_as_rejected)
{
    const struct bt_summary *s = &replay(BT_OVER_REJECT)->summary;
    cr_expect_eq(s->rejected, 1612);
    cr_expect_eq(s->rejected_by[BT_REJECT_OVER_LENGTH], 1612);
    cr_expect_eq(s->finished, 19366 - 1612);
}
