/* What the files of the CUDA executor share. Internal to engine/cuda.
 *
 *   executor_cuda.c  create, submit, wait
 *   passes.c         one forward pass: metadata, graphs, sampling
 *   speculate.c      draft tokens
 *   swap.c           copies of blocks
 */
#ifndef BT_ENGINE_CUDA_EXECUTOR_IMPL_H
#define BT_ENGINE_CUDA_EXECUTOR_IMPL_H

#include "engine/block_ids.h"
#include "engine/core/arena.h"
#include "engine/cuda/check.cuh"
#include "engine/cuda/decoder.h"
#include "engine/cuda/executor_cuda.h"
#include "engine/cuda/sampler.h"
#include "engine/step_work.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- swap.c ---- */

enum { BT_SWAP_OUT, BT_SWAP_IN, BT_SWAP_DIRS };

struct bt_cuda_copy {
    uint32_t ticket;
    int64_t due_ns; /* of the wall clock: no sooner */
    cudaEvent_t done;
};

struct bt_cuda_swap {
    uint8_t *device_blocks; /* borrowed: the pool */
    int64_t block_bytes;
    int32_t n_host_blocks;
    int32_t piece_blocks; /* blocks of a piece of host memory */
    int32_t n_pieces;
    uint8_t **pieces; /* owned, [n_pieces]: mapped and pinned on first use; NULL: not yet */
    int64_t host_bytes;
    int64_t bytes_per_s;           /* 0: as fast as it goes */
    int64_t free_ns[BT_SWAP_DIRS]; /* when a direction has nothing more to do at that rate */
    cudaStream_t streams[BT_SWAP_DIRS];
    struct bt_cuda_copy *copies; /* owned: outstanding, oldest first */
    int32_t n_copies, cap_copies;
    cudaEvent_t *spare; /* owned: events not in use */
    int32_t n_spare, cap_spare;
};

BT_NODISCARD enum bt_code bt_cuda_swap_init(struct bt_cuda_swap *s, uint8_t *device_blocks,
                                            int64_t block_bytes, int32_t n_host_blocks,
                                            int64_t bytes_per_s, struct bt_error *err);
void bt_cuda_swap_fini(struct bt_cuda_swap *s);
/* Starts a swap; outward ones wait for `after` (NULL: nothing). */
BT_NODISCARD enum bt_code bt_cuda_swap_start(struct bt_cuda_swap *s, const struct bt_plan_copy *c,
                                             cudaEvent_t after, struct bt_error *err);
/* Takes the tickets of copies that have ended; adds to `tickets`. */
BT_NODISCARD enum bt_code bt_cuda_swap_poll(struct bt_cuda_swap *s, uint32_t *tickets, int32_t *n,
                                            struct bt_error *err);
/* Copies on write, in order of the compute stream. */
BT_NODISCARD enum bt_code bt_cuda_swap_cow(struct bt_cuda_swap *s, const struct bt_plan_copy *c,
                                           cudaStream_t stream, struct bt_error *err);

/* ---- passes.c ---- */

/* Where a pass's metadata lies, in words from its start. */
struct bt_cuda_meta {
    int32_t ids, source, position, segment, first_row, pos0, kv_class, slot, want, plan, n_words;
};

/* One sequence's part of a pass: positions from .. to - 1; the states of its last n_want rows are
 * wanted. */
struct bt_cuda_part {
    int32_t from, to, n_want;
};

enum bt_cuda_pass_kind {
    BT_PASS_TARGET, /* the target's: tokens come out */
    BT_PASS_DRAFT,  /* draft token j comes out */
};

/* A pass over sequences seq0 .. seq0 + n_seqs - 1 of a plan. */
struct bt_cuda_pass {
    enum bt_cuda_pass_kind kind;
    int32_t j; /* DRAFT */
    struct bt_cuda_decoder *decoder;
    int32_t n_layers;
    const struct bt_step_plan *plan;
    int32_t seq0, n_seqs;
    struct bt_cuda_part *parts; /* [n_seqs] */
    bool decodes;               /* only decodes: may be a graph */
};

/* What a graph was captured for. */
struct bt_cuda_graph {
    enum bt_cuda_pass_kind kind;
    int32_t j, n_rows, n_segments;
    bool sampled; /* draft distributions are kept */
    bool greedy;  /* no sequence draws */
    int32_t n_seen;
    cudaGraphExec_t exec; /* NULL: seen, not captured yet */
};

/* ---- the executor ---- */

enum { BT_CUDA_EVENTS = 2 * BT_CUDA_INFLIGHT_MAX };

/* A step in flight. */
struct bt_cuda_flight {
    const struct bt_step_plan *plan; /* borrowed until its result is returned */
    int64_t zero_ns;                 /* the caller's clock at the wall clock's zero */
    int64_t submit_ns;               /* caller's clock */
    int64_t n;                       /* of all steps with sequences: its events' place */
    bool follows;                    /* a step was in flight when it was submitted */
    struct bt_cuda_chosen *chosen;   /* pinned, [max_seqs] */
    bool *failed;                    /* [max_seqs]: its prefix was not its own */
    uint8_t *pinned;                 /* metadata of its passes */
    int64_t pinned_used;
};

struct bt_cuda_executor {
    struct bt_executor_opts opts;
    struct bt_cuda_device device;
    struct bt_model_config config; /* the target's */
    int32_t n_heads;               /* Medusa's */
    struct bt_cuda_arena work_arena, pool_arena;
    struct bt_arena host_arena; /* bookkeeping */
    struct bt_cuda_gemm *gemm;
    struct bt_cuda_model target, draft;
    int64_t read_bytes; /* of the target's weights, a step */
    struct bt_cuda_linear heads[BT_MEDUSA_MAX_HEADS];
    struct bt_cuda_arena heads_arena;
    struct bt_cuda_kv kv;
    struct bt_cuda_attn *attn, *draft_attn;
    struct bt_cuda_work work;
    struct bt_cuda_decoder target_decoder, draft_decoder;
    struct bt_cuda_sampler *sampler;
    struct bt_cuda_swap swap;
    struct bt_block_ids ids;
    int64_t pinned_bytes; /* pinned host memory beside the swap pool */

    int32_t max_segments;    /* max_seqs, padded */
    int32_t max_blocks;      /* of a sequence */
    int32_t max_choice_rows; /* rows of logits */
    int32_t *meta;           /* device: metadata of the pass that runs */
    int32_t *blocks;         /* device: [max_segments, max_blocks] */
    void *states;            /* device: [max_choice_rows, hidden]: gathered */
    void *slot_states;       /* device: [max_seqs, hidden]: Medusa's */
    float *logits;           /* device: [max_choice_rows, vocab] */
    int32_t *last; /* device: [max_seqs] last token of a slot, then drafts [max_segments, spec_k] */
    int32_t *drafts;               /* into last */
    float *q;                      /* device: [max_segments, spec_k, vocab]; NULL until needed */
    struct bt_cuda_chosen *chosen; /* device: [max_segments] */

    cudaStream_t stream;
    struct bt_cuda_flight flights[BT_CUDA_INFLIGHT_MAX];
    int32_t first_flight, n_flight;
    int64_t pinned_cap; /* bytes of a flight's pinned metadata */
    /* Rings by number of step; longer than what is in flight, so that a step's can be compared with
     * those of the step before. */
    cudaEvent_t started[BT_CUDA_EVENTS], done[BT_CUDA_EVENTS];
    int64_t n_steps;              /* with sequences, submitted */
    int64_t last_done_ns;         /* caller's clock */
    struct bt_cuda_graph *graphs; /* owned, malloc */
    int32_t n_graphs, cap_graphs;
    struct bt_cuda_part *parts, *piece;         /* [max_seqs] scratch */
    struct bt_cuda_attn_segment *attn_segments; /* [max_segments] scratch */
};

static inline struct bt_gen_request *bt_cuda_request(const struct bt_cuda_executor *e,
                                                     const struct bt_plan_seq *ps)
{
    BT_ASSERT(ps->user < (uint64_t)e->opts.requests->n);
    return &e->opts.requests->requests[ps->user];
}

/* Segments of a padded batch: 1, 2, 4, then multiples of 8 up to 64, of 16 up to 256, of 32. */
int32_t bt_cuda_bucket(int32_t n);

/* passes.c: enqueues a pass of the flight, in pieces where it has more rows than fit. The plan's
 * block tables are on the device. p->parts is changed. */
BT_NODISCARD enum bt_code bt_cuda_pass_run(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                           const struct bt_cuda_pass *p, struct bt_error *err);
/* The block tables of a plan's sequences seq0 .. to the device. */
BT_NODISCARD enum bt_code bt_cuda_upload_blocks(struct bt_cuda_executor *e,
                                                struct bt_cuda_flight *f,
                                                const struct bt_step_plan *plan, int32_t seq0,
                                                int32_t n_seqs, struct bt_error *err);
/* Pinned memory of a flight, for one copy to the device. */
BT_NODISCARD enum bt_code bt_cuda_take_pinned(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                              int64_t bytes, void **out, struct bt_error *err);
/* How a sequence chooses its tokens. */
struct bt_cuda_choice bt_cuda_choice_of(const struct bt_cuda_executor *e,
                                        const struct bt_plan_seq *ps, int32_t first_row);
/* Bytes of pinned memory that n_passes of a step may need. */
int64_t bt_cuda_pass_pinned_bytes(const struct bt_cuda_executor *e, int32_t n_passes);
void bt_cuda_graphs_fini(struct bt_cuda_executor *e);
/* Times one part of a pass; see executor_cuda.h. */
BT_NODISCARD enum bt_code bt_cuda_pass_time(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                            const struct bt_cuda_pass *p, enum bt_step_part part,
                                            int32_t n_repeats, int64_t *ns, struct bt_error *err);

/* speculate.c: draft tokens of every sequence with k_spec > 0, after the draft's catch-up. */
BT_NODISCARD enum bt_code bt_cuda_speculate(struct bt_cuda_executor *e, struct bt_cuda_flight *f,
                                            const struct bt_step_plan *plan, struct bt_error *err);

/* kernels.cu: Medusa continues from the state of the last token whose KV counts: out[slot[i]] = the
 * row of states [.., hidden] of segment i's last accepted token, or of its last row where it
 * emitted none. */
void bt_cuda_keep_states(const void *states, int32_t hidden, const int32_t *first_row,
                         const int32_t *slot, const struct bt_cuda_choice *choices,
                         const struct bt_cuda_chosen *chosen, int32_t n_segments, void *out,
                         struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
