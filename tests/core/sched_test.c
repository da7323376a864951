#include "tests/core/sched_rig.h"

#include <criterion/criterion.h>

#include <string.h>

static struct bt_sched_opts base_opts(void)
{
    return (struct bt_sched_opts){
        .max_seqs = 8,
        .max_batched_tokens = 64,
        .chunked_prefill = true,
        .max_model_len = 256,
        .n_blocks = 64,
        .block_tokens = 16,
        .block_bytes = 1024,
        .prefix_cache = true,
        .inflight_max = 1,
        .max_requests = 64,
    };
}

Test(core_sched, one_request_prefills_in_chunks_then_decodes)
{
    struct rig rig;
    struct bt_sched_opts o = base_opts();
    rig_init(&rig, &o, 1);
    rig.check = true;
    rig_add(&rig, 0, 100, 5, 5);
    cr_assert(rig_run(&rig, 1000));
    rig_check_ends(&rig);
    cr_expect_eq(rig.n_steps, 6); /* 64 + 36 tokens, then four decodes */
    cr_expect_eq(rig.users[0].record.outcome, BT_OUTCOME_FINISHED);
    cr_expect_eq(rig.users[0].record.first_token_ns, 2000000);
    cr_expect_eq(rig.users[0].record.end_ns, 6000000);
    rig_fini(&rig);
}
