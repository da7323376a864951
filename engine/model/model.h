/* A model's weights in memory: loaded from a Hugging Face folder, or random ones of a given
 * architecture.
 *
 * Ownership: a bt_model owns its arena, in which everything lies. Threading: immutable once loaded
 * (quantisers change it, alone); may then be read by many threads.
 */
#ifndef BT_ENGINE_MODEL_MODEL_H
#define BT_ENGINE_MODEL_MODEL_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "engine/model/config.h"
#include "engine/model/qweight.h"

#ifdef __cplusplus
extern "C" {
#endif

enum bt_linear_id {
    BT_LINEAR_Q = 0,
    BT_LINEAR_K,
    BT_LINEAR_V,
    BT_LINEAR_O,
    BT_LINEAR_GATE,
    BT_LINEAR_UP,
    BT_LINEAR_DOWN,
    BT_LINEARS, /* how many */
};

struct bt_layer {
    struct bt_tensor attn_norm; /* [1, hidden]: input_layernorm */
    struct bt_tensor mlp_norm;  /* [1, hidden]: post_attention_layernorm */
    struct bt_tensor q_norm;    /* [1, head_dim]; p is NULL unless arch.qk_norm */
    struct bt_tensor k_norm;
    struct bt_linear linear[BT_LINEARS];
};

/* What calibrated static activation scales were found on; zero when there are none. */
struct bt_calib_cover {
    int64_t n_tokens;
    int32_t max_tokens;      /* the longest sequence */
    double clipped_fraction; /* of the inputs seen, beyond the range of their scales */
};

/* Inputs that static scales rounded, and those of them that lay beyond their scale's range. */
struct bt_clip_counts {
    int64_t n_values, n_clipped;
};

enum { BT_MODEL_MAX_NOTES = 64, BT_MODEL_DIR_BYTES = 4096 };

struct bt_model {
    struct bt_arena arena;
    struct bt_model_config config; /* arch.checkpoint and quant describe the weights as they are */
    char dir[BT_MODEL_DIR_BYTES];  /* the folder it came from; "" for random weights */
    struct bt_linear embed;        /* table [vocab, hidden]; row = token id */
    struct bt_layer *layers;       /* [arch.n_layers], in the arena */
    struct bt_tensor final_norm;   /* [1, hidden] */
    struct bt_linear lm_head;      /* [vocab, hidden]; shares embed's memory when head_is_embed */
    bool head_is_embed;
    struct bt_calib_cover cover;
    const char *notes[BT_MODEL_MAX_NOTES]; /* oddities of the checkpoint worth telling; in the arena
                                            */
    int32_t n_notes;
};

struct bt_model_opts {
    enum bt_weight_format weights;  /* default: as stored. fp32, fp16, bf16: converted (quantised
                                     * weights are expanded). An integer format: dense weights are
                                     * rounded to nearest while loading */
    enum bt_act_format activations; /* default: as the checkpoint says. int8-dynamic: every linear
                                     * layer; fp32, fp16, bf16: none is quantised; int8-static only
                                     * where the checkpoint has the scales */
    bool lm_head;                   /* an integer format applies to lm_head too */
    bool embeddings;                /* and to the embedding table (int8 a row) */
    bool norms;                     /* norm vectors are rounded to int8 and back */
};

/* Loads DIR: config.json, generation_config.json, safetensors. opts may be NULL. Returns
 * BT_ERR_INPUT with file and tensor for whatever is malformed, missing or left over; BT_ERR_IO;
 * BT_ERR_NOMEM; BT_ERR_ARG for options that do not fit the checkpoint. On failure *m is zeroed. */
BT_NODISCARD enum bt_code bt_model_load(struct bt_model *m, const char *dir,
                                        const struct bt_model_opts *opts, struct bt_error *err);

/* Random weights of an architecture, the same for the same seed: uniform with standard deviation
 * 0.02, norms 1, biases 0. opts->weights default: arch->checkpoint. */
BT_NODISCARD enum bt_code bt_model_random(struct bt_model *m, const struct bt_arch *arch,
                                          const struct bt_model_opts *opts, uint64_t seed,
                                          struct bt_error *err);

/* The shape of that model without its weights, for executors that make random ones themselves:
 * config says what they are. Takes no memory. */
BT_NODISCARD enum bt_code bt_model_shape(struct bt_model *m, const struct bt_arch *arch,
                                         const struct bt_model_opts *opts, struct bt_error *err);
static inline bool bt_model_is_shape(const struct bt_model *m)
{
    return m->layers == NULL;
}

/* Frees everything and leaves the model zeroed. */
void bt_model_fini(struct bt_model *m);

/* Makes config.arch.checkpoint and config.quant say what quantised weights are: the format and the
 * activations as given, zero points, group orders and lm_head as they are found. */
void bt_model_describe(struct bt_model *m, enum bt_weight_format weights,
                       enum bt_act_format activations);

/* Moves everything into a fresh arena, so that what is no longer used gives its memory back.
 * Returns BT_ERR_NOMEM and leaves the model as it was. */
BT_NODISCARD enum bt_code bt_model_compact(struct bt_model *m, struct bt_error *err);

/* Bytes of all weights with their scales, zero points and permutations, shared ones once. */
int64_t bt_model_weight_bytes(const struct bt_model *m);

/* "q_proj", ...; and the checkpoint's name of the layer's module,
 * "model.layers.3.self_attn.q_proj", in buf. Returns buf. */
const char *bt_linear_name(enum bt_linear_id id);
const char *bt_linear_path(int32_t layer, enum bt_linear_id id, char *buf, size_t cap_bytes);

/* Outputs and inputs of a layer's matrix. */
int32_t bt_linear_n_out(const struct bt_arch *a, enum bt_linear_id id);
int32_t bt_linear_n_in(const struct bt_arch *a, enum bt_linear_id id);

/* Keeps a note (printf form) for the user; beyond BT_MODEL_MAX_NOTES they are dropped. */
void bt_model_note(struct bt_model *m, const char *fmt, ...) BT_PRINTF(2, 3);

/* Medusa heads: head i proposes the token i + 2 ahead by lm_head(h + silu(W h + b)), h the final
 * normalised hidden state. */
enum { BT_MEDUSA_MAX_HEADS = 8 };

struct bt_medusa {
    struct bt_arena arena;
    int32_t n_heads;
    struct bt_linear heads[BT_MEDUSA_MAX_HEADS]; /* [hidden, hidden] with bias */
};

/* Loads DIR/medusa.safetensors (medusa.I.weight, medusa.I.bias) for a model of that hidden size. */
BT_NODISCARD enum bt_code bt_medusa_load(struct bt_medusa *m, const char *dir, int32_t hidden,
                                         struct bt_error *err);
void bt_medusa_fini(struct bt_medusa *m);

#ifdef __cplusplus
}
#endif

#endif
