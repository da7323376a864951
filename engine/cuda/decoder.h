/* The decoder on the GPU: enqueues one forward pass over a batch. What it computes is
 * engine/cpu/decoder.h; rows of a batch do not see each other beyond their own sequence's KV.
 *
 * Everything is enqueued on one stream and may be captured into a graph. Decoders of one executor
 * share workspaces: their passes are ordered. Threading: one thread.
 */
#ifndef BT_ENGINE_CUDA_DECODER_H
#define BT_ENGINE_CUDA_DECODER_H

#include "engine/cuda/attention.h"
#include "engine/cuda/batch.h"
#include "engine/cuda/comm.h"
#include "engine/cuda/model.h"
#include "engine/meter.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Workspaces, device; of the compute type where nothing else is said. */
struct bt_cuda_work {
    int32_t max_rows;
    void *residual;  /* [max_rows, hidden] of the residual type */
    void *h;         /* [max_rows, hidden]: normalised */
    int8_t *x8;      /* [max_rows, widest input]: what INT8 products read */
    float *x_scale;  /* [max_rows] */
    void *qkv;       /* [max_rows, q_dim + 2 kv_dim] */
    void *attended;  /* [max_rows, q_dim] */
    void *y;         /* [max_rows, hidden]: what is added to the residual */
    void *gate_up;   /* [max_rows, 2 intermediate] */
    void *activated; /* [max_rows, intermediate] */
};

/* For models of these shapes (draft may be NULL). BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_cuda_work_init(struct bt_cuda_work *w, struct bt_cuda_arena *arena,
                                            const struct bt_arch *target,
                                            const struct bt_arch *draft, int32_t max_rows,
                                            struct bt_error *err);

struct bt_cuda_decoder {
    const struct bt_cuda_model *model; /* borrowed, as all below */
    struct bt_cuda_gemm *gemm;
    struct bt_cuda_attn *attn;
    const struct bt_cuda_kv *kv;
    enum bt_kv_part_id part;
    struct bt_cuda_work *work;
    struct bt_cuda_types types;
    struct bt_cuda_comm *comm; /* NULL: one rank */
    bool unfused;
};

/* Parts of a pass, as a mask; all but a measured one are left out while it is timed. */
#define BT_CUDA_PART(part) (1u << (part))
#define BT_CUDA_ALL_PARTS  (BT_CUDA_PART(BT_STEP_PARTS) - 1)

/* Runs the first n_layers layers and the final norm: work->h [n_rows, hidden] then holds the final
 * states. `decode` as bt_cuda_attn_plan was told. */
BT_NODISCARD enum bt_code bt_cuda_decoder_forward(struct bt_cuda_decoder *d,
                                                  const struct bt_cuda_batch *b, int32_t n_layers,
                                                  bool decode, uint32_t parts,
                                                  struct CUstream_st *stream, struct bt_error *err);

/* logits [m, vocab], float, of m final states [m, hidden]. */
BT_NODISCARD enum bt_code bt_cuda_decoder_logits(struct bt_cuda_decoder *d, const void *states,
                                                 int32_t m, float *logits,
                                                 struct CUstream_st *stream, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
