/* Writes a model as a Hugging Face folder that other engines load: dense weights as they are,
 * quantised ones as compressed-tensors (pack-quantized int4, int-quantized int8). */
#ifndef BT_ENGINE_MODEL_MODEL_WRITE_H
#define BT_ENGINE_MODEL_MODEL_WRITE_H

#include "engine/core/error.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes OUT_DIR (made if missing): config.json is the source folder's with quantization_config
 * replaced, model.safetensors in one file, and copies of the tokenizer's and generation's files;
 * berth_calibration.json says what static activation scales were found on. Returns BT_ERR_ARG for a
 * model that has no source folder, equals it, or that the format cannot hold (quantised
 * embeddings); BT_ERR_IO; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_model_write(const struct bt_model *m, const char *out_dir,
                                         struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
