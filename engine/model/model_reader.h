/* What the parts of the checkpoint loader share: model_load.c drives, qread.c reads quantised
 * matrices. Internal to engine/model. */
#ifndef BT_ENGINE_MODEL_MODEL_READER_H
#define BT_ENGINE_MODEL_MODEL_READER_H

#include "engine/model/model.h"
#include "engine/model/safetensors.h"

enum { MODEL_NAME_BYTES = 256 };

struct model_reader {
    struct bt_model *m;
    const struct bt_safetensors *st;
    const char *path; /* of the folder, for messages */
    bool *used;       /* [bt_safetensors_count]: tensors that found their place */
    struct bt_model_opts opts;
    struct bt_quant_config quant;
    bool told_version; /* the note on a wrong GPTQ version was given */
    bool told_zeros;   /* the note on zero points in a symmetric checkpoint was given */
    bool told_dense;   /* the note on layers left dense was given */
};

/* The tensor base + suffix, marked as used; NULL when there is none. */
const struct bt_st_tensor *model_find(struct model_reader *r, const char *base, const char *suffix);

/* The same, but BT_ERR_INPUT when there is none. */
enum bt_code model_need(struct model_reader *r, const char *base, const char *suffix,
                        const struct bt_st_tensor **out, struct bt_error *err);

/* Reads a float tensor of shape [cols] (rows == 1 and vector) or [rows, cols] into the arena, in
 * the type that the options ask for. */
enum bt_code model_read_dense(struct model_reader *r, struct bt_arena *arena,
                              const struct bt_st_tensor *t, int32_t rows, int32_t cols, bool vector,
                              struct bt_tensor *out, struct bt_error *err);

/* Reads base's quantised matrix [N, K] as the checkpoint's layout lays it. *found is false, and
 * nothing else happens, when the module is not quantised. */
enum bt_code model_read_quantised(struct model_reader *r, const char *base, struct bt_linear *l,
                                  bool *found, struct bt_error *err);

#endif
