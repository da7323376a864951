/* Private to sim/hardware/memory*.c: how one stack accounts. */
#ifndef BT_SIM_HARDWARE_MEMORY_IMPL_H
#define BT_SIM_HARDWARE_MEMORY_IMPL_H

#include "sim/hardware/memory.h"
#include "sim/hardware/stack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options with their defaults filled in and checked. */
struct bt_account {
    struct bt_memory_opts o;
    bool max_model_len_given;
    struct bt_stack stack;
    const struct bt_account_ops *ops;
};

struct bt_account_ops {
    /* Bytes of the weights as the stack holds them. */
    int64_t (*weights)(const struct bt_account *a, const struct bt_memory_plan *p);
    /* Fills reserved_bytes, workspace_bytes and draft_bytes of a plan whose usable and weight bytes
     * are known. */
    void (*overheads)(const struct bt_account *a, struct bt_memory_plan *p);
    bool rounds_up; /* the last block may pass the pool's end */
};

extern const struct bt_account_ops bt_account_berth;
extern const struct bt_account_ops bt_account_vllm;
extern const struct bt_account_ops bt_account_trtllm;
extern const struct bt_account_ops bt_account_sglang;

/* The draft is sharded like the target when it can be, else each rank holds all of it. */
int32_t bt_account_draft_tp(const struct bt_account *a);

/* The draft model's weights as published, or the Medusa heads'. */
int64_t bt_account_draft(const struct bt_account *a);

/* The workspace of stack berth where the GPU is this machine's CPU, but for the four bytes that the
 * executor keeps for each KV slot, and for one thread. */
int64_t bt_account_cpu_workspace(const struct bt_account *a);

/* Sequences of max_model_len (and the look-ahead) that a pool of `bytes` holds when layers with and
 * without a window have block tables of their own, as vLLM's V1 pairs them. */
double bt_account_hybrid_concurrency(const struct bt_account *a, const struct bt_memory_plan *p,
                                     int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
