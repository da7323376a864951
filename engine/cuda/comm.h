/* Ranks of tensor parallelism adding up what they computed, through NCCL.
 *
 * A rank is an executor on its own GPU; ranks live in one process (bt_cuda_comm_create_all, a
 * thread each) or in several (bt_cuda_comm_create with an id that rank 0 made and handed out). All
 * ranks run the same plans: weights are shared out (engine/model/shard.h), each adds up after o and
 * down; norms, lm_head and sampling are the same everywhere, so that every rank chooses the same
 * tokens.
 *
 * NCCL is looked for when more than one rank is wanted, never before: programs start without it. A
 * build without its header has one rank alone. One rank is NULL, everywhere.
 */
#ifndef BT_ENGINE_CUDA_COMM_H
#define BT_ENGINE_CUDA_COMM_H

#include "engine/core/arch.h"
#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
struct bt_cuda_comm;

/* Names a group of ranks that meet; plain bytes, to be handed over by any road. */
struct bt_cuda_comm_id {
    char bytes[128];
};

/* By rank 0. BT_ERR_MISSING without NCCL, naming what was looked for; BT_ERR_CUDA. */
BT_NODISCARD enum bt_code bt_cuda_comm_make_id(struct bt_cuda_comm_id *id, struct bt_error *err);

/* Meets the others, on the calling thread's device; returns when all n_ranks are there. One rank
 * gives NULL. Errors as above. */
BT_NODISCARD enum bt_code bt_cuda_comm_create(int32_t n_ranks, int32_t rank,
                                              const struct bt_cuda_comm_id *id,
                                              struct bt_cuda_comm **out, struct bt_error *err);

/* All ranks of one process: out [n_ranks], rank i on device devices[i]. On failure all are NULL. */
BT_NODISCARD enum bt_code bt_cuda_comm_create_all(int32_t n_ranks, const int32_t *devices,
                                                  struct bt_cuda_comm **out, struct bt_error *err);

void bt_cuda_comm_destroy(struct bt_cuda_comm *c);

/* Adds up x [n], device, in place over the ranks, in stream order; may be captured. type: BF16,
 * FP16 or FP32. c NULL: nothing happens. All ranks must call it, in the same order. */
BT_NODISCARD enum bt_code bt_cuda_comm_add(struct bt_cuda_comm *c, void *x, int64_t n,
                                           enum bt_act_format type, struct CUstream_st *stream,
                                           struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
