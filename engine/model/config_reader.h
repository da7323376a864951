/* Typed look-ups in a JSON object that name the file and the key's path when they fail. Internal to
 * engine/model/config*.c. */
#ifndef BT_ENGINE_MODEL_CONFIG_READER_H
#define BT_ENGINE_MODEL_CONFIG_READER_H

#include "engine/core/error.h"
#include "engine/model/config.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One object and where it was found. */
struct bt_config_reader {
    const char *file;
    const char *prefix; /* "" or "rope_scaling." */
    const json_t *object;
    struct bt_error *err; /* borrowed, may be NULL */
};

/* The value of a key, or NULL when it is absent or null. */
const json_t *bt_config_key(const struct bt_config_reader *r, const char *key);

/* Integer in [min, max]; *out keeps its value (the default) when the key is absent or null. */
BT_NODISCARD enum bt_code bt_config_int(const struct bt_config_reader *r, const char *key,
                                        int32_t min, int32_t max, int32_t *out);

/* As bt_config_int, but the key must be there. */
BT_NODISCARD enum bt_code bt_config_need_int(const struct bt_config_reader *r, const char *key,
                                             int32_t min, int32_t max, int32_t *out);

/* Number in [min, max]; the default stays when absent or null. */
BT_NODISCARD enum bt_code bt_config_real(const struct bt_config_reader *r, const char *key,
                                         double min, double max, double *out);
BT_NODISCARD enum bt_code bt_config_need_real(const struct bt_config_reader *r, const char *key,
                                              double min, double max, double *out);
BT_NODISCARD enum bt_code bt_config_bool(const struct bt_config_reader *r, const char *key,
                                         bool *out);

/* String, borrowed from the object; *out keeps its value when absent or null. */
BT_NODISCARD enum bt_code bt_config_string(const struct bt_config_reader *r, const char *key,
                                           const char **out);

/* The object under a key, or sub.object == NULL when absent or null. `prefix` is its path. */
BT_NODISCARD enum bt_code bt_config_object(const struct bt_config_reader *r, const char *key,
                                           const char *prefix, struct bt_config_reader *sub);

/* Fills q from a quantization_config. */
BT_NODISCARD enum bt_code bt_config_quantization(const struct bt_config_reader *r,
                                                 struct bt_quant_config *q);

#ifdef __cplusplus
}
#endif

#endif
