/* Serving stacks and their versions: whose memory accounting, scheduler defaults and overheads a
 * simulation speaks for.
 *
 * A stack is named NAME-VERSION ("vllm-0.19", "trtllm-1.0", "sglang-0.5.3"), or "berth" alone;
 * vLLM's two engines of 0.6 to 0.10 are told apart by a suffix ("vllm-0.8-v0"), without it 0.8 and
 * later are V1. A version belongs to a family that behaves alike. Sources of every figure:
 * docs/STACKS.md. Everything here is pure and thread-safe.
 */
#ifndef BT_SIM_HARDWARE_STACK_H
#define BT_SIM_HARDWARE_STACK_H

#include "engine/core/error.h"
#include "engine/core/gpu.h"
#include "sim/config.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_stack_engine { BT_STACK_BERTH = 0, BT_STACK_VLLM, BT_STACK_TRTLLM, BT_STACK_SGLANG };

/* How vLLM reads off what is left for KV. */
enum bt_vllm_reading {
    BT_VLLM_ALLOCATED, /* what the framework allocated at most; nothing else counts */
    BT_VLLM_RESERVED,  /* what the card lost: the allocator's cache and the context too */
    BT_VLLM_SPLIT,     /* weights, activation peak and what others allocated, each measured */
};

/* Versions that account alike. */
struct bt_stack_family {
    const char *name;
    enum bt_stack_engine engine;
    int32_t from, until; /* major * 1000 + minor, until included; patches below */
    int32_t from_patch;  /* of `from` */
    int32_t until_patch; /* of `until` */
    bool v0;             /* vLLM's first engine */

    double mem_fraction; /* 0: SGLang 0.5's, by the card */
    enum bt_vllm_reading reading;
    /* The profile run: T tokens through the model, then the sampler on as many rows as sequences.
     * Eager layers hold three (later four) copies of the hidden states beside the MLP's tensors,
     * compiled ones a single one. */
    int32_t hidden_copies;
    int32_t sampler_bytes_per_logit;
    int64_t sampler_fixed_bytes;
    int64_t context_bytes; /* what is not the framework's: context, libraries, kernels */
    int64_t rank_bytes;    /* the same that tensor parallelism adds */
    int64_t desktop_bytes; /* the same on a GeForce card: what displays take meanwhile */
    bool all_reduce_keeps; /* inputs of all all-reduces of a pass stay allocated */
    bool graphs_inside;    /* CUDA graphs are estimated and taken from the pool */
    bool hybrid_groups;    /* sliding-window layers get block tables of their own */

    int32_t block_tokens;
    int32_t max_seqs;       /* 0: by the card */
    int32_t batched_tokens; /* 0: by the card */
    int32_t chunk_tokens;   /* v0: budget once the model's length passes chunk_above .. */
    int32_t chunk_above;    /* .. tokens; 0: chunked prefill is always on */
    bool chunked_prefill;
    bool prefix_cache;
    int32_t inflight;
    double watermark;
    int64_t host_bytes; /* swap space of one GPU; 0: none */

    /* Beside its kernels: what the device waits for between steps, however many are in flight, and
     * the host's work on a step, which hides behind the device when more than one is. */
    int64_t step_overhead_ns;
    int64_t host_base_ns;
};

struct bt_stack {
    int32_t major, minor, patch; /* 0 for berth */
    const struct bt_stack_family *family;
};

/* Reads a stack's name; NULL or "" is berth. BT_ERR_ARG: `stack: "vllm" ...; known: ...`. */
BT_NODISCARD enum bt_code bt_stack_find(const char *name, struct bt_stack *out,
                                        struct bt_error *err);

/* Fills in the configuration's stack's defaults for a card, where a key was not given
 * (bt_config_set). Keys that the stack has nothing to say on are left. BT_ERR_ARG: the stack is not
 * known. Applying twice changes nothing. */
BT_NODISCARD enum bt_code bt_stack_apply(struct bt_config *c, const struct bt_gpu *gpu,
                                         int32_t max_position, struct bt_error *err);

/* Token budget and most sequences of a stack on a card, for a model of so many positions. */
int32_t bt_stack_batched_tokens(const struct bt_stack *s, const struct bt_gpu *gpu,
                                int32_t max_model_len);
int32_t bt_stack_max_seqs(const struct bt_stack *s, const struct bt_gpu *gpu);

/* The stack's share of memory; SGLang derives it from the card, its chunk and tp. */
double bt_stack_mem_fraction(const struct bt_stack *s, const struct bt_gpu *gpu,
                             int32_t batched_tokens, int32_t tp);

/* CUDA graphs that are captured for so many sequences at most. */
int32_t bt_stack_graphs(const struct bt_stack *s, int32_t max_seqs);

/* One name of each stack, ended by NULL: what messages and completions list. */
const char *const *bt_stack_names(void);

#ifdef __cplusplus
}
#endif

#endif
