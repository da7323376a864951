/* Operation samples: one measured operation each, with its shape, formats, time and provenance.
 *
 * Importers (sim/cost/import.h) and shipped calibrations (sim/cost/calib.h) fill a
 * bt_sample_set; surfaces (sim/cost/surface.h) are built from it. A sample is plain data, one row
 * of the store's operation_samples table. The set owns its samples and every string they point to;
 * it belongs to one thread at a time.
 */
#ifndef BT_SIM_COST_SAMPLE_H
#define BT_SIM_COST_SAMPLE_H

#include "engine/core/arch.h"
#include "engine/core/arena.h"
#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_op {
    BT_OP_GEMM = 0,      /* m, n, k: out [m, n] = in [m, k] x weight [n, k] */
    BT_OP_ATTN_PREFILL,  /* batch, q_len, heads, kv_heads, head_dim; no KV before the chunk */
    BT_OP_ATTN_DECODE,   /* batch, ctx, heads, kv_heads, head_dim: one query token a sequence */
    BT_OP_ATTN_MIXED,    /* q_len + prefix of one prefill chunk, batch decodes of ctx each */
    BT_OP_ALLREDUCE,     /* bytes a rank holds, ranks */
    BT_OP_ALLGATHER,     /* bytes a rank ends with, ranks */
    BT_OP_REDUCESCATTER, /* bytes a rank starts with, ranks */
    BT_OP_ALLTOALL,      /* bytes a rank sends, ranks */
    BT_OP_QUANTIZE,      /* m tokens of width n: activation scales and rounding */
    BT_OP_NORM,          /* m tokens of width n, the residual's addition included where fused */
    BT_OP_ACTIVATION,    /* m tokens of width n (after the gate): SiLU(gate) * up */
    BT_OP_ROPE,          /* m tokens of width n: rotary embedding of Q and K */
    BT_OP_ADD,           /* m tokens of width n: a residual addition alone */
    BT_OP_EMBEDDING,     /* m tokens of width n: rows gathered from the embedding table */
    BT_OP_KV_WRITE,      /* m tokens of width n: K and V stored in the cache */
    BT_OP_SAMPLE,        /* m sequences over n vocabulary entries */
    BT_OP_HOST,          /* m sequences: host time a step */
    BT_OPS,
};

/* Number format of an operand as the kernel sees it. */
enum bt_num {
    BT_NUM_NONE = 0, /* the operation has no such operand */
    BT_NUM_FP32,
    BT_NUM_FP16,
    BT_NUM_BF16,
    BT_NUM_INT8,         /* one scale a channel (weights) or a token (activations) */
    BT_NUM_INT8_TENSOR,  /* one scale a tensor */
    BT_NUM_INT4_CHANNEL, /* one scale an output channel: no groups */
    BT_NUM_INT4_G128,
    BT_NUM_INT4_G64,
    BT_NUM_INT4_G32,
    BT_NUM_INT4_TENSOR,
    BT_NUM_FP8,       /* E4M3, scale a tensor, token or channel */
    BT_NUM_FP8_BLOCK, /* E4M3, 128 x 128 block scales of weights */
    BT_NUMS,
};

/* What does not apply to the operation is 0. */
struct bt_op_shape {
    int64_t m, n, k;  /* tokens, output and input width */
    int64_t batch;    /* sequences */
    int64_t q_len;    /* query tokens a sequence */
    int64_t prefix;   /* KV tokens before the chunk */
    int64_t ctx;      /* KV tokens that a decoding sequence reads, its own included */
    int64_t heads;    /* query heads on one rank */
    int64_t kv_heads; /* KV heads on one rank */
    int64_t head_dim;
    int64_t bytes; /* message of a collective */
    int64_t ranks;
};

struct bt_op_format {
    enum bt_num weights;
    enum bt_num activations;
    enum bt_num kv;
};

struct bt_cost_sample {
    enum bt_op op;
    struct bt_op_format format;
    struct bt_op_shape shape;
    int64_t time_ns;     /* median (or the only figure given), > 0 */
    int64_t spread_ns;   /* standard deviation; -1: not stated */
    int32_t line;        /* of the file it came from; 0: none */
    const char *kernel;  /* owned by the set, "" when not stated; as all strings below */
    const char *gpu;     /* catalog name */
    const char *stack;   /* "vllm", "trtllm", "nccl", ... */
    const char *version; /* of the stack; "" unknown */
    const char *source;  /* who measured, which file */
    const char *licence; /* SPDX identifier */
};

struct bt_sample_set {
    struct bt_cost_sample *samples; /* owned */
    int64_t n_samples;
    int64_t capacity;
    struct bt_arena strings;
    const char **interned; /* owned; distinct strings are few (kernels, sources) */
    int32_t n_interned;
    int32_t interned_capacity;
};

/* An empty set. Cannot fail. */
void bt_sample_set_init(struct bt_sample_set *s);
void bt_sample_set_fini(struct bt_sample_set *s);

/* A copy of text that lives as long as the set; NULL when memory is refused. */
const char *bt_sample_set_intern(struct bt_sample_set *s, const char *text);

/* Appends a sample, whose strings must already live as long as the set. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_sample_set_add(struct bt_sample_set *s,
                                            const struct bt_cost_sample *sample,
                                            struct bt_error *err);

/* "gemm", "attn-decode", ...; never NULL. */
const char *bt_op_name(enum bt_op op);
/* "bf16", "int4-channel", ..., "-" for none; never NULL. */
const char *bt_num_name(enum bt_num f);

/* Read a name as printed; BT_ERR_INPUT names `what`, the value and what is allowed. */
BT_NODISCARD enum bt_code bt_op_parse(const char *text, const char *what, enum bt_op *out,
                                      struct bt_error *err);
BT_NODISCARD enum bt_code bt_num_parse(const char *text, const char *what, enum bt_num *out,
                                       struct bt_error *err);

/* Bits of one element, scales included (a scale has 16 bits); 0 for none. */
double bt_num_bits(enum bt_num f);
/* True for formats whose products run on the INT8 (resp. FP8) tensor rate when both operands have
 * it; used to pick the data-sheet rate. */
bool bt_num_is_int8(enum bt_num f);
bool bt_num_is_fp8(enum bt_num f);
bool bt_num_is_int4(enum bt_num f);
/* FP32, FP16 or BF16. */
bool bt_num_is_float(enum bt_num f);

/* From the planner's formats; the resolved format, not DEFAULT. */
enum bt_num bt_num_from_weight(enum bt_weight_format w);
enum bt_num bt_num_from_act(enum bt_act_format a);
enum bt_num bt_num_from_kv(enum bt_kv_format kv);
/* BF16 for FP16, whose kernels take the same time; others as they are. */
enum bt_num bt_num_as_bf16(enum bt_num f);

/* Useful work of one operation: FLOPs (a multiply-add is two) and bytes that must cross device
 * memory (or, for a collective, the links of one rank), each input and output once. */
struct bt_op_work {
    double flops;
    double bytes;
};
struct bt_op_work bt_op_work(enum bt_op op, const struct bt_op_format *f,
                             const struct bt_op_shape *s);

/* Bytes of that work which a serving step never finds in a cache, because the rest of the model ran
 * since they were last read: weights, and the KV of earlier tokens. A benchmark that repeats one
 * operation may find them there: on an L40S with 96 MB of cache its small matrices and short
 * contexts run at two to four times the memory's rate. Time is at least these over that rate. */
double bt_op_cold_bytes(enum bt_op op, const struct bt_op_format *f, const struct bt_op_shape *s);

#ifdef __cplusplus
}
#endif

#endif
