/* Quantisers: 16-bit weights to int8 and int4.
 *
 * All use one grid. int8: scale = fp16(max|w| / 127), q in [-127, 127]. int4: scale =
 * fp16(max|w| / 7), q in [-8, 7]. One scale for a matrix, an output channel, or a group of 32, 64
 * or 128 inputs. q = round to nearest, ties to even, of w / scale.
 *
 * GPTQ and AWQ need to know what the layers' inputs look like. Whoever can run the model gives that
 * through bt_calib_source; this module runs nothing.
 *
 * Shape letters: N outputs, K inputs, T tokens, G groups.
 */
#ifndef BT_ENGINE_MODEL_QUANTIZE_H
#define BT_ENGINE_MODEL_QUANTIZE_H

#include "engine/core/error.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- statistics of activations ---- */

/* Places in the model whose activations feed linear layers. */
enum bt_calib_point {
    BT_CALIB_ATTN_IN = 0, /* normalised input of q, k, v: [hidden] */
    BT_CALIB_O_IN,        /* attention output, input of o: [n_heads * head_dim] */
    BT_CALIB_MLP_IN,      /* normalised input of gate and up: [hidden] */
    BT_CALIB_DOWN_IN,     /* silu(gate) * up, input of down: [intermediate] */
    BT_CALIB_HEAD_IN, /* final normalised state, input of lm_head: [hidden]; layer is n_layers */
    BT_CALIB_POINTS,  /* how many */
};

/* Bins of |x|: its exponent and six bits of its mantissa. */
enum { BT_CALIB_MAGNITUDES = 1 << 14 };

/* What was seen at one point. */
struct bt_calib_stats {
    int32_t n_in;        /* K */
    int64_t n_tokens;    /* T, tokens added so far */
    double *xtx;         /* [K, K] row-major: sum over tokens of x xᵀ; only the lower triangle
                          * (column <= row) is kept; NULL when not asked for; owned, malloc */
    double *abs_sum;     /* [K] sum of |x|; owned, malloc */
    float *abs_max;      /* [K] greatest |x|; owned, malloc */
    int64_t *magnitudes; /* [BT_CALIB_MAGNITUDES]: how many |x| lie in each;
                          * owned, malloc */
    float max_abs;       /* greatest of abs_max */
    int32_t max_tokens;  /* the longest sequence added, tokens */
};

/* Takes the memory; xtx only when with_xtx. Returns BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_calib_init(struct bt_calib_stats *s, int32_t n_in, bool with_xtx,
                                        struct bt_error *err);

/* Adds n_tokens rows x [n_tokens, K] of one sequence (a part of it, in order). `position` is the
 * index of the first in its sequence. Not finite values return BT_ERR_INPUT and add nothing. */
BT_NODISCARD enum bt_code bt_calib_add(struct bt_calib_stats *s, const float *x, int32_t n_tokens,
                                       int32_t position, struct bt_error *err);

/* The static int8 scale that loses least in squares on the inputs seen: rounding against what lies
 * beyond 127 scales and is cut. 1 when all inputs were 0. *n_clipped: inputs beyond the range. */
float bt_calib_static_scale(const struct bt_calib_stats *s, int64_t *n_clipped);

/* d XᵀX dᵀ: the sum over the tokens seen of (x . d)^2, d [K]. xtx must be there. O(K^2). */
double bt_calib_quadratic(const struct bt_calib_stats *s, const float *d);

/* Frees and zeroes. */
void bt_calib_fini(struct bt_calib_stats *s);

/* Gives the statistics at (layer, point) for the model in its present state. Quantisers ask in the
 * order of computation and change what lies behind a point only after asking for it (AWQ asks for
 * all four points of a layer first). So a source may run the model anew to see the effect of what
 * has been quantised already, or answer from one run of the unquantised model. *out is borrowed
 * until the next call. */
typedef enum bt_code (*bt_calib_get_fn)(void *user, const struct bt_model *m, int32_t layer,
                                        enum bt_calib_point point, bool with_xtx,
                                        const struct bt_calib_stats **out, struct bt_error *err);

struct bt_calib_source {
    bt_calib_get_fn get;
    void *user; /* borrowed */
};

/* ---- schemes ---- */

enum bt_quant_method {
    BT_METHOD_RTN = 0, /* round to nearest */
    BT_METHOD_GPTQ,    /* Frantar et al. 2022: errors are made up for by the columns not done yet */
    BT_METHOD_AWQ,     /* Lin et al. 2023: input channels that matter are scaled up first */
};

enum bt_act_order {
    BT_ACT_ORDER_STATIC = 0, /* columns by falling Hessian diagonal; groups as they lie */
    BT_ACT_ORDER_NONE,       /* columns as they lie */
    BT_ACT_ORDER_GROUP,      /* columns by falling diagonal, and groups follow that order (g_idx) */
};

struct bt_quant_scheme {
    enum bt_weight_format weights;  /* an integer format; DEFAULT: only what is asked below */
    enum bt_quant_method method;    /* GPTQ and AWQ: int4 groups only */
    enum bt_act_format activations; /* DEFAULT (16-bit), INT8_DYNAMIC or INT8_STATIC */
    bool clip;                      /* search the clipping of each scale that loses least */
    bool lm_head;                   /* quantise lm_head too (always to nearest) */
    bool embeddings;                /* quantise the embedding table, int8 a row */
    bool norms;                     /* round norm vectors to int8 and back */
    enum bt_act_order act_order;    /* GPTQ */
    double damping;                 /* GPTQ: share of the mean diagonal added to it; 0 means 0.01 */
};

/* Reads a scheme's name: int8, int8-tensor, int4-{rtn,gptq,awq}[-g32|-g64|-g128] (g128),
 * int4-tensor, w8a8 (dynamic activations), w8a8-static, w4a8-{rtn,gptq,awq}[-gN]. GPTQ and AWQ come
 * with clip. Returns BT_ERR_ARG with what is allowed. */
BT_NODISCARD enum bt_code bt_quant_scheme_parse(const char *text, struct bt_quant_scheme *out,
                                                struct bt_error *err);

/* True when the scheme needs a calibration source. */
bool bt_quant_scheme_needs_calib(const struct bt_quant_scheme *s);

/* Quantises a model in place, layer by layer; config.arch.checkpoint and config.quant follow.
 * calib may be NULL when the scheme needs none. Returns BT_ERR_ARG when the model is quantised
 * already, or the scheme does not fit its shapes; BT_ERR_INPUT for weights or statistics that are
 * not finite, naming the layer; BT_ERR_NOMEM; whatever the source returns. A model left half done
 * by an error is fit for bt_model_fini only. */
BT_NODISCARD enum bt_code bt_model_quantise(struct bt_model *m, const struct bt_quant_scheme *s,
                                            const struct bt_calib_source *calib,
                                            struct bt_error *err);

/* ---- the pieces ---- */

/* Rounds every norm vector to int8 (one scale a vector) and back to its own type. */
void bt_model_round_norms(struct bt_model *m);

/* fp16 scale of a group whose greatest magnitude is max_abs, for q up to q_max: never 0, never
 * infinite. */
float bt_quant_scale(float max_abs, int32_t q_max);

/* The scale of n weights that share one, of bits 4 or 8. With clip the greatest magnitude may be
 * cut down to half, where that loses least: squared error, weighed by weight_of [n] (NULL: evenly).
 */
float bt_quant_group_scale(const float *w, const float *weight_of, int32_t n, bool clip,
                           int32_t bits);

/* The integer nearest to w / scale (ties to even), kept within [lo, hi], which are small: adding
 * 1.5 * 2^23 leaves no room for a fraction. */
static inline int32_t bt_quant_round(float w, float scale, int32_t lo, int32_t hi)
{
    const float room = 0x1.8p23f;
    float q = w / scale;
    q = q < (float)lo ? (float)lo : q;
    q = q > (float)hi ? (float)hi : q;
    return (int32_t)((q + room) - room);
}

/* Rounds a dense [N, K] to nearest in an integer format; weight_of [K] (may be NULL) weighs the
 * squared error of each input in the search when clip. Returns BT_ERR_INPUT for weights that are
 * not finite, naming `what`. */
BT_NODISCARD enum bt_code bt_quantise_rtn(struct bt_arena *arena, const struct bt_tensor *dense,
                                          enum bt_weight_format format, bool clip,
                                          const float *weight_of, const char *what,
                                          struct bt_qweight *out, struct bt_error *err);

/* GPTQ of a dense [N, K] with the statistics of its input; xtx is there. */
BT_NODISCARD enum bt_code bt_quantise_gptq(struct bt_arena *arena, const struct bt_tensor *dense,
                                           const struct bt_calib_stats *stats,
                                           const struct bt_quant_scheme *s, const char *what,
                                           struct bt_qweight *out, struct bt_error *err);

/* AWQ's search at one point: the n dense matrices [N_i, K] share the input. Channel k is multiplied
 * by scale[k] in the weights and divided by it in the activations; scales come from powers of the
 * mean |x| and the power that loses least wins. tie_of [K] (may be NULL) names the channel that
 * feeds input k: inputs with the same one share a scale. scale [K] is written; all 1 where nothing
 * is gained. */
BT_NODISCARD enum bt_code bt_awq_search(const struct bt_tensor *const *matrices, int32_t n,
                                        const struct bt_calib_stats *stats,
                                        enum bt_weight_format format, const int32_t *tie_of,
                                        float *scale, struct bt_error *err);

/* Squared error of the layer's outputs on the calibration inputs, relative to the outputs' own
 * squares: sum over rows of d XᵀX dᵀ, d = w' - w, over the same sum of w. */
BT_NODISCARD enum bt_code bt_quant_output_error(const struct bt_tensor *dense,
                                                const struct bt_qweight *q,
                                                const struct bt_calib_stats *stats, double *out,
                                                struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
