/* Where the memory of one GPU goes: weights, draft, workspace, what is set aside, and the KV pool.
 *
 * Every byte a program sees has one home:
 *   usable = reserved + weights + draft + workspace + KV pool + remainder
 * and what does not fit is an answer with its arithmetic, not an error. Each stack accounts in its
 * own way (memory_stacks.c; versions and their figures in stack.c). Pure and thread-safe.
 *
 * Stack vllm-X.Y: mem_fraction of TOTAL memory, less
 *   weights    as loaded: published ones, rotary angles, the allocator's rests
 *   workspace  the profile run's peak, max of
 *                T (max(3 intermediate, 2 q + 2 kv) + c hidden) b             layers; c = 3, 4 or 1
 *                seqs vocab s + T hidden b                                    sampler; s = 66, 38,
 * 14
 *              + cuBLAS + context and libraries, + the estimate of CUDA graphs since 0.21
 *   A model with sliding layers: layers of one kind share block tables in groups of equal size, and
 *   kv_tokens_total is max_concurrency x max_model_len, as the engine prints it.
 * Stack trtllm-X.Y: mem_fraction of what is FREE after weights, activations, decoder buffers and
 *   context; tokens, then blocks rounded up.
 * Stack sglang-X.Y: mem_fraction of what was free before loading, less weights; activations and
 *   graphs live in the rest (reserved).
 *
 * Stack berth:
 *   reserved   the larger of (1 - mem_fraction) of the usable memory and the CUDA context
 *   weights    bt_arch_weight_bytes of one tensor-parallel rank
 *   draft      the draft's weights (sharded like the target when its heads allow it, else a copy on
 *              each rank), or Medusa heads: hidden x hidden and a bias each, 16-bit
 *   workspace  the step's buffers for T = max(max_batched_tokens, max_seqs) tokens, b bytes an
 *              activation, r bytes a residual (4 when the model's residual leaves FP16's range):
 *                T (hidden (r + b) + max(q + 2 kv + q, 3 intermediate) b)     residual, norm, layer
 *                + T (max(hidden, q, intermediate) + 4)                       int8 activations only
 *                + max_seqs (1 + lookahead) vocab 4                           FP32 logits
 *                + max_seqs heads (head_dim + 2) 4 x 8                        split-KV partial sums
 *                + max_seqs ceil(max_model_len / block) 4                     block tables
 *              on a CPU, where the reference executor runs, its own buffers: memory_cpu.c
 *   KV pool    the rest in whole blocks; a block holds the K and V of all layers of target and
 * draft
 */
#ifndef BT_SIM_HARDWARE_MEMORY_H
#define BT_SIM_HARDWARE_MEMORY_H

#include "engine/core/arch.h"
#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "sim/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_MEMORY_TEXT_BYTES = 384 };

struct bt_memory_opts {
    const struct bt_arch *arch;     /* borrowed */
    const struct bt_arch *draft;    /* borrowed; NULL: no draft model */
    const struct bt_gpu *gpu;       /* borrowed */
    const char *stack;              /* NULL: "berth" */
    enum bt_weight_format weights;  /* zero: the checkpoint's */
    enum bt_act_format activations; /* zero: the checkpoint's 16-bit type */
    enum bt_kv_format kv;           /* zero: the checkpoint's 16-bit type; the draft's KV too */
    enum bt_weight_format draft_weights; /* zero: the draft checkpoint's */
    bool quantise_lm_head;
    int32_t medusa_heads;     /* 0: none */
    int32_t lookahead_tokens; /* KV slots a sequence keeps for draft tokens */
    int32_t tp;               /* ranks; 0: 1 */
    enum bt_kv_layout layout;
    int32_t block_tokens;       /* 0: the stack's; ignored when contiguous */
    int64_t kv_blocks;          /* a measured pool instead of the derived one; 0: derived */
    int64_t gpu_memory_bytes;   /* pretend a card of this size; 0: the card's usable memory */
    double mem_fraction;        /* (0, 1]; 0: the stack's */
    int32_t max_model_len;      /* tokens; 0: the model's, or what the pool holds if that is less */
    int32_t max_seqs;           /* 0: the stack's on this card */
    int32_t max_batched_tokens; /* 0: the stack's */
    int64_t weights_bytes; /* measured bytes of one rank instead of the derived ones; 0: derived */
    int64_t host_memory_bytes; /* of one rank, for swapped KV; 0: none */
    /* The draft is a head on the target's hidden states (EAGLE): embedding and lm_head are the
     * target's, a [hidden, 2 hidden] product joins the two. */
    bool draft_is_head;
};

struct bt_memory_plan {
    /* A block is left for KV; where a max_model_len was asked for, one sequence of it (plus
     * look-ahead) has room. A pool that was given is believed. */
    bool fits;
    int64_t weights_bytes;
    int64_t draft_bytes;
    int64_t workspace_bytes;
    int64_t reserved_bytes;
    int64_t kv_bytes_per_token;       /* of the target, one rank */
    int64_t draft_kv_bytes_per_token; /* of the draft; 0 without one */
    int64_t kv_pool_bytes;            /* whole blocks; 0 when nothing fits */
    int64_t kv_blocks_total;          /* contiguous: sequences of max_model_len */
    int64_t kv_tokens_total;
    int64_t host_blocks_total; /* of one rank, in host memory */
    double max_concurrency;    /* sequences of max_model_len (+ lookahead) that the pool holds */

    int64_t usable_bytes;    /* what a program sees, or gpu_memory_bytes */
    int64_t remainder_bytes; /* less than a block; negative: what is missing when it does not fit */
    int64_t block_bytes;
    int32_t block_tokens;
    int32_t block_tokens_16bit; /* tokens of the 16-bit class in a block of the same bytes */
    int32_t max_model_len;      /* in force */
    bool max_model_len_lowered; /* below the model's because the pool holds no more */
    bool kv_blocks_given;
    int32_t tp;
    enum bt_weight_format weights; /* resolved */
    enum bt_act_format activations;
    enum bt_kv_format kv;
    struct bt_weight_bytes weight_parts;
    char reason[BT_MEMORY_TEXT_BYTES]; /* "" when it fits; "does not fit: 26.0 GB of weights ..." */
    char arithmetic[BT_MEMORY_TEXT_BYTES]; /* the sum, term by term */
};

/* A part of the stacked picture, in order from the bottom. */
struct bt_memory_part {
    const char *name; /* "weights", "draft", "workspace", "kv", "reserved", "unused" */
    int64_t bytes;
};

enum { BT_MEMORY_PARTS = 6 };

/* Draft tokens that one verification may bring: KV slots a sequence keeps for them; 0 without
 * speculation. */
int32_t bt_config_lookahead_tokens(const struct bt_config *c);

/* Most sequences that run together; where max_seqs is auto, as far as it may grow. */
int32_t bt_config_max_seqs(const struct bt_config *c);

/* Activations and KV cache on a card, resolved. Where nothing was asked for they are 16-bit, but on
 * a CPU, whose arithmetic is float32, FP32 (int8 inputs of linear layers leave the rest FP32). */
enum bt_act_format bt_config_activations(const struct bt_config *c, const struct bt_arch *arch,
                                         const struct bt_gpu *gpu);
enum bt_kv_format bt_config_kv(const struct bt_config *c, const struct bt_arch *arch,
                               const struct bt_gpu *gpu);

/* The accounting that a configuration asks for; arch, draft (NULL unless the configuration names a
 * draft model) and gpu are borrowed, and so is the configuration's stack. */
struct bt_memory_opts bt_memory_opts_of(const struct bt_config *c, const struct bt_arch *arch,
                                        const struct bt_arch *draft, const struct bt_gpu *gpu);

/* Accounts for one rank's GPU. BT_ERR_ARG names the option that is out of its range, a stack that
 * is not known, or a tp that the model cannot be shared by; not fitting is plan->fits == false. */
BT_NODISCARD enum bt_code bt_memory_account(const struct bt_memory_opts *opts,
                                            struct bt_memory_plan *plan, struct bt_error *err);

/* The parts of a plan; their sum is usable_bytes unless it does not fit or the pool was given. */
void bt_memory_parts(const struct bt_memory_plan *plan, struct bt_memory_part out[BT_MEMORY_PARTS]);

#ifdef __cplusplus
}
#endif

#endif
