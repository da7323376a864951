/* Weights as the engine holds them: dense tensors and quantised matrices, and what a linear layer
 * is made of. Plain data in an arena; every executor reads them, none writes them.
 *
 * Shape letters: N outputs, K inputs, G groups of inputs that share a scale.
 */
#ifndef BT_ENGINE_MODEL_QWEIGHT_H
#define BT_ENGINE_MODEL_QWEIGHT_H

#include "engine/core/arch.h"
#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/model/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A dense matrix [rows, cols], row-major; a vector has one row. */
struct bt_tensor {
    enum bt_dtype dtype; /* F32, F16 or BF16 */
    int32_t rows;
    int32_t cols;
    void *p; /* in the model's arena; NULL: there is none */
};

/* A quantised matrix [N, K]: w[n, perm[j]] = (q[n, j] - zero[n, j / group]) * scale[n, j / group],
 * exact in float for 4-bit q and for 8-bit q with 16-bit scales.
 *
 * Columns are stored so that those of a group are neighbours. A checkpoint with act-order scatters
 * them over the inputs; then perm says which input each stored column multiplies, and an executor
 * gathers its activations by it. */
struct bt_qweight {
    int32_t n_out;        /* N */
    int32_t n_in;         /* K */
    int32_t bits;         /* 4 or 8 */
    int32_t group;        /* inputs that share a scale; K when a row or the matrix has one scale */
    int32_t n_groups;     /* G = ceil(K / group); the last may be short */
    int32_t scale_stride; /* scales from one row to the next: G, or 0 for one scale a matrix */
    uint8_t *q; /* 8 bits: int8 [N, K]. 4 bits: [N, ceil(K / 2)], column 2 i in the low half of byte
                 * i, each value + 8; a padding half is 8 */
    enum bt_dtype scale_dtype; /* F16, BF16 or F32 */
    void *scale;               /* [N, G], or one */
    int8_t *zero;              /* [N, G], signed as q is; NULL: symmetric, 0 */
    int32_t *perm;             /* [K]; NULL: the identity */
};

/* y = x Wᵀ + bias. */
struct bt_linear {
    int32_t n_out; /* N */
    int32_t n_in;  /* K */
    bool quantised;
    struct bt_tensor w;     /* [N, K] unless quantised */
    struct bt_qweight q;    /* when quantised */
    struct bt_tensor bias;  /* [1, N]; p is NULL without */
    enum bt_act_format act; /* BT_ACT_DEFAULT: x as it is; INT8_DYNAMIC; INT8_STATIC */
    float act_scale;        /* INT8_STATIC: x ~ act_scale * int8, > 0 */
};

static inline float bt_qweight_scale(const struct bt_qweight *w, int32_t n, int32_t g)
{
    size_t i = (size_t)n * (size_t)w->scale_stride + (size_t)g;
    if (w->scale_dtype == BT_DTYPE_F16) {
        return bt_f16_to_f32(((const uint16_t *)w->scale)[i]);
    }
    if (w->scale_dtype == BT_DTYPE_BF16) {
        return bt_bf16_to_f32(((const uint16_t *)w->scale)[i]);
    }
    return ((const float *)w->scale)[i];
}

/* Bytes of a row of q. */
static inline size_t bt_qweight_row_bytes(const struct bt_qweight *w)
{
    return w->bits == 4 ? ((size_t)w->n_in + 1) / 2 : (size_t)w->n_in;
}

/* The stored integer of row n, stored column j. */
static inline int32_t bt_qweight_at(const struct bt_qweight *w, int32_t n, int32_t j)
{
    const uint8_t *row = w->q + (size_t)n * bt_qweight_row_bytes(w);
    if (w->bits == 8) {
        return (int8_t)row[j];
    }
    return (j % 2 == 0 ? row[j / 2] & 15 : row[j / 2] >> 4) - 8;
}

/* Sets it; -8..7 or -128..127. Bytes of 4-bit rows must have been set to BT_QWEIGHT_ZERO4. */
static inline void bt_qweight_set(struct bt_qweight *w, int32_t n, int32_t j, int32_t value)
{
    uint8_t *row = w->q + (size_t)n * bt_qweight_row_bytes(w);
    if (w->bits == 8) {
        row[j] = (uint8_t)(int8_t)value;
    } else if (j % 2 == 0) {
        row[j / 2] = (uint8_t)((row[j / 2] & 0xf0) | (value + 8));
    } else {
        row[j / 2] = (uint8_t)((row[j / 2] & 0x0f) | (value + 8) << 4);
    }
}

enum { BT_QWEIGHT_ZERO4 = 0x88 };

/* Scale shape of a format: the group for K inputs, and whether the matrix has one scale. */
int32_t bt_qweight_group_of(enum bt_weight_format format, int32_t n_in);

/* Takes the memory of a quantised [N, K]: all q 0, scales not set, no zero points, no perm. format
 * is one of the integer formats; scales are scale_dtype. */
BT_NODISCARD enum bt_code bt_qweight_init(struct bt_qweight *w, struct bt_arena *arena,
                                          enum bt_weight_format format, int32_t n_out, int32_t n_in,
                                          enum bt_dtype scale_dtype, struct bt_error *err);

/* The format that describes it; group sizes without one give BT_WEIGHT_DEFAULT. */
enum bt_weight_format bt_qweight_format(const struct bt_qweight *w);

/* Row n as floats in the order of inputs: dst [K]. */
void bt_qweight_row_f32(const struct bt_qweight *w, int32_t n, float *dst);

/* Row n as floats in stored order (dst[j] multiplies input perm[j]): dst [K]. */
void bt_qweight_row_stored_f32(const struct bt_qweight *w, int32_t n, float *dst);

/* Row n of a linear layer's matrix as floats, dense or quantised: dst [K]. */
void bt_linear_row_f32(const struct bt_linear *l, int32_t n, float *dst);

/* Row r of a dense tensor as floats: dst [cols]. */
void bt_tensor_row_f32(const struct bt_tensor *t, int32_t r, float *dst);

/* Takes the memory of a dense [rows, cols], not set. */
BT_NODISCARD enum bt_code bt_tensor_init(struct bt_tensor *t, struct bt_arena *arena,
                                         enum bt_dtype dtype, int32_t rows, int32_t cols,
                                         struct bt_error *err);

/* Bytes of what they hold: numbers, scales, zero points, permutations, biases. */
int64_t bt_tensor_bytes(const struct bt_tensor *t);
int64_t bt_qweight_bytes(const struct bt_qweight *w);
int64_t bt_linear_bytes(const struct bt_linear *l);

/* Takes act-order in: group_of[k] in [0, G) is the group of input k. Sets w->perm to the stable
 * order by group, NULL when that is the identity. Every group must have exactly `group` members
 * (the last what is left), else BT_ERR_INPUT naming `what`. */
BT_NODISCARD enum bt_code bt_qweight_set_groups(struct bt_qweight *w, struct bt_arena *arena,
                                                const int32_t *group_of, const char *what,
                                                struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
