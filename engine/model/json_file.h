/* JSON files read whole, with the file's name in every message, and typed look-ups in them. */
#ifndef BT_ENGINE_MODEL_JSON_FILE_H
#define BT_ENGINE_MODEL_JSON_FILE_H

#include "engine/core/error.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a JSON object from a file of at most max_bytes. Duplicate keys are errors. Returns
 * BT_ERR_NOTFOUND when there is no such file, BT_ERR_IO, BT_ERR_INPUT with line and column, or
 * BT_ERR_NOMEM. *out is a new reference. */
BT_NODISCARD enum bt_code bt_json_load_object(const char *path, int64_t max_bytes, json_t **out,
                                              struct bt_error *err);

/* Writes indented JSON; the file appears under its name only when it is complete. */
BT_NODISCARD enum bt_code bt_json_save(const char *path, const json_t *root, struct bt_error *err);

/* "string", "integer", ... of a value; "nothing" for NULL. */
const char *bt_json_type_name(const json_t *v);

/* dir/name in buf; BT_ERR_ARG when it does not fit. */
BT_NODISCARD enum bt_code bt_path_join(char *buf, size_t cap_bytes, const char *dir,
                                       const char *name, struct bt_error *err);

/* True when the path can be opened for reading. */
bool bt_path_exists(const char *path);

enum { BT_PATH_BYTES = 4096 };

#ifdef __cplusplus
}
#endif

#endif
