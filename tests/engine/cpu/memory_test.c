/* What the executor's allocators count is what the accounting of `berth memory` predicts. */
#include "sim/hardware/memory.h"
#include "tests/engine/cpu/engine_rig.h"
#include "tests/engine/cpu/rig.h"

#include <criterion/criterion.h>

#include <stdlib.h>

static double total_of(const struct bt_executor_memory *m)
{
    return (double)(m->weights_bytes + m->draft_bytes + m->kv_pool_bytes + m->workspace_bytes);
}

struct setting {
    const char *name;
    enum bt_weight_format weights;
    enum bt_kv_format kv;
    bool draft, medusa;
    int32_t k, max_seqs, block, blocks, max_len;
};

static const struct setting settings[] = {
    {"plain", BT_WEIGHT_DEFAULT, BT_KV_BF16, false, false, 0, 8, 16, 512, 0},
    {"int8 all through", BT_WEIGHT_INT8, BT_KV_INT8, false, false, 0, 64, 8, 2000, 1024},
    {"int4, float32 KV", BT_WEIGHT_INT4_G128, BT_KV_FP32, false, false, 0, 1, 32, 64, 2048},
    {"with a draft", BT_WEIGHT_FP32, BT_KV_FP16, true, false, 4, 16, 16, 512, 2048},
    {"with Medusa heads", BT_WEIGHT_BF16, BT_KV_FP16, false, true, 3, 32, 16, 512, 512},
};

Test(cpu_memory, counters_are_what_the_accounting_predicts)
{
    struct bt_error err = {0};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const struct setting *s = &settings[i];
        struct bt_model m;
        struct bt_model draft = {0};
        struct bt_medusa medusa = {0};
        struct bt_model_opts mo = {.weights = s->weights};
        rig_load(&m, "berth-12m", &mo);
        if (s->draft) {
            rig_load(&draft, "berth-1m", NULL);
        }
        if (s->medusa) {
            cr_assert_eq(bt_medusa_load(&medusa, rig_model_path("berth-12m-medusa"), 384, &err),
                         BT_OK);
        }
        struct bt_gen_table table = {0};
        struct bt_executor_opts eo = {
            .model = &m,
            .draft = s->draft ? &draft : NULL,
            .medusa = s->medusa ? &medusa : NULL,
            .spec_k = s->k,
            .kv = s->kv,
            .block_tokens = s->block,
            .n_blocks = s->blocks,
            .max_seqs = s->max_seqs,
            .max_model_len = s->max_len,
            .n_threads = 1,
            .requests = &table,
        };
        struct bt_executor x;
        cr_assert_eq(bt_cpu_executor_create(&eo, &x, &err), BT_OK, "%s", err.msg);
        struct bt_executor_memory got;
        bt_cpu_executor_memory(&x, &got);
        x.ops->destroy(x.self);

        struct bt_gpu host = {.name = "host",
                              .family = BT_GPU_CPU,
                              .memory_bytes = INT64_C(4) << 30,
                              .usable_bytes = INT64_C(4) << 30};
        struct bt_memory_opts opts = {
            .arch = &m.config.arch,
            .draft = s->draft ? &draft.config.arch : NULL,
            .gpu = &host,
            .weights = s->weights,
            .kv = s->kv,
            .medusa_heads = s->medusa ? 3 : 0,
            .lookahead_tokens = s->k,
            .block_tokens = s->block,
            .kv_blocks = s->blocks,
            .max_model_len = s->max_len,
            .max_seqs = s->max_seqs,
        };
        struct bt_memory_plan want;
        cr_assert_eq(bt_memory_account(&opts, &want, &err), BT_OK, "%s", err.msg);
        cr_expect_eq(got.kv_pool_bytes, want.kv_pool_bytes, "%s: pool %lld, predicted %lld",
                     s->name, (long long)got.kv_pool_bytes, (long long)want.kv_pool_bytes);
        cr_expect_eq(got.weights_bytes, want.weights_bytes, "%s: weights %lld, predicted %lld",
                     s->name, (long long)got.weights_bytes, (long long)want.weights_bytes);
        double error = (double)(got.workspace_bytes - want.workspace_bytes);
        cr_expect_lt(error, 0.1 * (double)want.workspace_bytes,
                     "%s: workspace %lld, predicted %lld", s->name, (long long)got.workspace_bytes,
                     (long long)want.workspace_bytes);
        double predicted = (double)(want.weights_bytes + want.draft_bytes + want.kv_pool_bytes +
                                    want.workspace_bytes);
        double share = total_of(&got) / predicted - 1.0;
        cr_log_info("%s: %.0f bytes, %+.2f%% of what was predicted", s->name, total_of(&got),
                    100 * share);
        cr_expect(share > -0.02 && share < 0.02, "%s: %.0f bytes, predicted %.0f", s->name,
                  total_of(&got), predicted);
        bt_medusa_fini(&medusa);
        if (s->draft) {
            bt_model_fini(&draft);
        }
        bt_model_fini(&m);
    }
}
