/* What the real engine's executors are made from, and what they say of themselves; the same for all
 * of them. Plain data.
 */
#ifndef BT_ENGINE_EXECUTOR_OPTS_H
#define BT_ENGINE_EXECUTOR_OPTS_H

#include "engine/block_layout.h"
#include "engine/clock.h"
#include "engine/core/error.h"
#include "engine/core/sched.h"
#include "engine/gen.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_DEFAULT_BLOCK_TOKENS = 16 };

struct bt_cuda_comm;

struct bt_executor_opts {
    const struct bt_model *model;   /* bt_model_is_shape: the executor makes random weights */
    const struct bt_model *draft;   /* draft model, or NULL */
    const struct bt_medusa *medusa; /* Medusa heads, or NULL */
    int32_t self_layers;            /* self-speculation from so many layers; 0: none */
    int32_t spec_k;                 /* most draft tokens a plan asks for; 0 without speculation */

    enum bt_act_format compute; /* FP32, FP16, BF16: every result rounded to it; default: FP32 on
                                   the CPU, the model's 16-bit type on a GPU */
    enum bt_kv_format kv;       /* FP32, FP16, BF16, INT8; default: FP32 on the CPU, the compute
                                   type on a GPU */
    enum bt_kv_format kv_16bit; /* of the 16-bit class in an INT8 pool; default: no class */
    int32_t block_tokens;       /* slots a block; 0: BT_DEFAULT_BLOCK_TOKENS */
    int32_t n_blocks;           /* > 0 */
    int32_t n_host_blocks;      /* for swap */
    int32_t max_seqs;           /* > 0 */
    int32_t max_model_len;      /* tokens; 0: the model's, or the draft's if that is less */
    int32_t max_rows;           /* tokens computed at a time: larger batches run in pieces of them;
                                   0: the executor's default */
    int32_t n_threads;          /* of the CPU; 0: all that OpenMP would use */
    enum bt_clock clock;        /* of step durations; WORK: the CPU with one thread only */
    struct bt_gen_table *requests; /* shared with the serving loop; plans' `user` is the index */

    /* GPU only. */
    bool unfused;              /* every operation by itself: what fusion is worth */
    bool eager;                /* no CUDA graphs */
    bool tune;                 /* measure the kernels of each matrix and keep the fastest */
    double force_acceptance;   /* > 0: draft tokens are accepted with this conditional probability,
                                  whatever the logits say */
    int64_t gpu_memory_bytes;  /* > 0: weights, pool and workspaces take no more */
    int64_t pcie_bytes_per_s;  /* > 0: swaps take at least as long as at this rate each way */
    int32_t n_ranks, rank;     /* of tensor parallelism; 0 ranks: one */
    struct bt_cuda_comm *comm; /* borrowed: how ranks add up; NULL with one rank */
};

/* How an executor is made. */
struct bt_executor;
typedef enum bt_code bt_executor_create_fn(const struct bt_executor_opts *opts,
                                           struct bt_executor *out, struct bt_error *err);

/* Fills in the defaults that are the same everywhere and checks the rest. BT_ERR_ARG for options
 * that do not fit the models, naming value and what is allowed (two ways of speculation, a draft of
 * another vocabulary, a context longer than a model's, ...). */
BT_NODISCARD enum bt_code bt_executor_opts_check(struct bt_executor_opts *o, struct bt_error *err);

/* Fills what scheduler and executor must agree on: rows, blocks, classes (their layouts are the
 * pool's), context and draft tokens; o has gone through the check. max_batched_tokens is raised to
 * max_seqs where it is less. inflight_max is left to the executor. */
void bt_executor_fit_sched(const struct bt_executor_opts *o,
                           const struct bt_block_layout layout[BT_KV_CLASSES],
                           struct bt_sched_opts *sched);

/* Bytes by purpose, counted by the allocators. */
struct bt_executor_memory {
    int64_t weights_bytes;
    int64_t draft_bytes; /* draft model or Medusa heads */
    int64_t kv_pool_bytes;
    int64_t host_pool_bytes;
    int64_t workspace_bytes;
};

#ifdef __cplusplus
}
#endif

#endif
