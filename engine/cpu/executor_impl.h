/* What the files of the CPU executor share. Internal to engine/cpu.
 *
 *   executor_cpu.c   create, copies, one step
 *   speculate.c      draft tokens
 *   verify.c         from states to tokens: sampling, acceptance, ends
 */
#ifndef BT_ENGINE_CPU_EXECUTOR_IMPL_H
#define BT_ENGINE_CPU_EXECUTOR_IMPL_H

#include "engine/block_ids.h"
#include "engine/cpu/decoder.h"
#include "engine/cpu/executor_cpu.h"
#include "engine/sample.h"
#include "engine/step_work.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a batch being put together; grows as plans need. */
struct bt_cpu_rows {
    int32_t n_rows, cap_rows;
    int32_t n_segments;
    int32_t *ids;                    /* owned, malloc, [cap_rows] */
    int32_t *out_row;                /* owned, malloc, [cap_rows] */
    struct bt_cpu_segment *segments; /* [max_seqs] */
};

struct bt_cpu_executor {
    struct bt_executor_opts opts;
    struct bt_arena pool_arena, host_arena, work_arena;
    struct bt_kv_pool pool;
    uint8_t *host_blocks;
    struct bt_block_ids ids;
    struct bt_cpu_scratch scratch;
    struct bt_decoder target;
    struct bt_decoder draft;
    struct bt_cpu_profile pulse; /* read by nobody: its marks read the work clock */
    struct bt_sampler sampler;
    struct bt_cpu_rows rows;
    int32_t state_rows;   /* capacity of states */
    float *states;        /* [state_rows, hidden]: emitting rows from 0 on, others from the end */
    int32_t *first_state; /* [max_seqs]: of each sequence of the plan; -1: none */
    float *draft_states;  /* [max_seqs, hidden of who drafts] */
    float *head_states;   /* [max_seqs, hidden]: Medusa's input, one head at a time */
    float *slot_states;   /* [max_seqs, hidden], by slot: the last token's state, for Medusa */
    int32_t logit_rows;
    float *logits;   /* [logit_rows, vocab] */
    float *probs;    /* [vocab]: the target's distribution */
    int32_t *drafts; /* [max_seqs][spec_k]: of each sequence of the plan */
    float **q;       /* [max_seqs][spec_k]: distributions that they were drawn from; NULL: greedy */
    float *q_memory; /* owned, malloc: grows with the sampled draft tokens of a step */
    int64_t q_cap;   /* rows of q_memory, [vocab] each */
    int32_t *drafting; /* [max_seqs]: plan indices of those that draft in the present pass */
};

static inline struct bt_gen_request *bt_cpu_request(const struct bt_cpu_executor *e,
                                                    const struct bt_plan_seq *ps)
{
    BT_ASSERT(ps->user < (uint64_t)e->opts.requests->n);
    return &e->opts.requests->requests[ps->user];
}

static inline int32_t *bt_cpu_drafts(const struct bt_cpu_executor *e, int32_t seq_i)
{
    return e->drafts + (size_t)seq_i * (size_t)e->opts.spec_k;
}

static inline float **bt_cpu_q(const struct bt_cpu_executor *e, int32_t seq_i)
{
    return e->q + (size_t)seq_i * (size_t)e->opts.spec_k;
}

/* executor_cpu.c: adds positions from .. to - 1 of a sequence; the state of the last goes to row
 * `want` of the output, -1: of none. Tokens beyond the known ones are draft tokens. */
BT_NODISCARD enum bt_code bt_cpu_rows_add(struct bt_cpu_executor *e, const struct bt_plan_seq *ps,
                                          int32_t seq_i, int32_t from, int32_t to, int32_t want,
                                          struct bt_error *err);

/* speculate.c: fills drafts and q of every sequence with k_spec > 0, after the draft's catch-up. */
BT_NODISCARD enum bt_code bt_cpu_speculate(struct bt_cpu_executor *e,
                                           const struct bt_step_plan *plan, struct bt_error *err);

/* verify.c: tokens of every sequence that emits, from the states of the target's pass. */
void bt_cpu_emit(struct bt_cpu_executor *e, const struct bt_step_plan *plan,
                 struct bt_step_result *result);

#ifdef __cplusplus
}
#endif

#endif
