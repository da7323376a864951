/* Reads and writes safetensors: one file, or shards named by an index.
 *
 * Nothing of a file is believed: header size, JSON, names, types, shapes, offsets and the file's
 * own length are checked when it is opened, so that later reads can only fail when the file changes
 * underneath. Data are read with pread into the caller's memory: a file cut while it is in use is
 * an error, not a bus error, and pread is faster than page faults for a whole model.
 *
 * Ownership: a bt_safetensors owns its file descriptors and tables; tensors are borrowed from it.
 * Threading: concurrent reads are safe; open and close are not.
 */
#ifndef BT_ENGINE_MODEL_SAFETENSORS_H
#define BT_ENGINE_MODEL_SAFETENSORS_H

#include "engine/core/error.h"
#include "engine/model/dtype.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_ST_MAX_DIMS = 8,
    BT_ST_MAX_HEADER_BYTES = 100 * 1000 * 1000, /* the format's own limit */
    BT_ST_MAX_SHARDS = 4096,                    /* far past the largest published checkpoint */
};

struct bt_st_tensor {
    const char *name; /* borrowed from the file set */
    const char *file; /* path of its file, for messages; borrowed from the file set */
    enum bt_dtype dtype;
    int32_t n_dims; /* 0: a scalar */
    int64_t shape[BT_ST_MAX_DIMS];
    int64_t n_elements;
    int64_t n_bytes;
    int64_t offset_bytes; /* from the start of the file */
    int32_t file_i;
};

struct bt_safetensors;

/* Opens one file. Returns BT_ERR_IO when it cannot be opened or read; BT_ERR_INPUT for anything
 * malformed, naming file and tensor; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_safetensors_open(const char *path, struct bt_safetensors **out,
                                              struct bt_error *err);

/* Opens what a checkpoint folder holds: model.safetensors.index.json with its shards, else
 * model.safetensors. Errors as above; also BT_ERR_INPUT for a shard that is missing, a tensor that
 * the index places in a shard which lacks it, and a tensor found in two shards. */
BT_NODISCARD enum bt_code bt_safetensors_open_dir(const char *dir, struct bt_safetensors **out,
                                                  struct bt_error *err);

/* Closes and frees; NULL is allowed. */
void bt_safetensors_close(struct bt_safetensors *st);

/* Number of tensors, and the i-th in order of names. */
int32_t bt_safetensors_count(const struct bt_safetensors *st);
const struct bt_st_tensor *bt_safetensors_at(const struct bt_safetensors *st, int32_t i);

/* The tensor of that name, or NULL. O(log n). */
const struct bt_st_tensor *bt_safetensors_find(const struct bt_safetensors *st, const char *name);

/* A value of "__metadata__" (of the first shard that has the key), or NULL. */
const char *bt_safetensors_metadata(const struct bt_safetensors *st, const char *key);

/* Reads the tensor's bytes into dst, which holds t->n_bytes. BT_ERR_IO when the file fails. */
BT_NODISCARD enum bt_code bt_safetensors_read(const struct bt_safetensors *st,
                                              const struct bt_st_tensor *t, void *dst,
                                              struct bt_error *err);

/* Reads n bytes of the tensor from offset_bytes inside it; both lie within the tensor. */
BT_NODISCARD enum bt_code bt_safetensors_read_part(const struct bt_safetensors *st,
                                                   const struct bt_st_tensor *t,
                                                   int64_t offset_bytes, int64_t n_bytes, void *dst,
                                                   struct bt_error *err);

/* Reads any element type as float into dst, which holds t->n_elements. */
BT_NODISCARD enum bt_code bt_safetensors_read_f32(const struct bt_safetensors *st,
                                                  const struct bt_st_tensor *t, float *dst,
                                                  struct bt_error *err);

/* Fails with BT_ERR_INPUT unless the tensor has exactly these dimensions. */
BT_NODISCARD enum bt_code bt_st_tensor_expect(const struct bt_st_tensor *t, int32_t n_dims,
                                              const int64_t *shape, struct bt_error *err);

/* "[8192, 384]" in buf; cut when it does not fit. Returns buf. */
const char *bt_st_shape_text(int32_t n_dims, const int64_t *shape, char *buf, size_t cap_bytes);

struct bt_st_entry {
    const char *name;
    enum bt_dtype dtype;
    int32_t n_dims;
    int64_t shape[BT_ST_MAX_DIMS];
    const void *bytes; /* dense, little-endian */
};

/* Writes one file: entries ordered by element size (so that each is aligned), then by name;
 * metadata {"format": "pt"}. The file appears under its name only when it is complete. Returns
 * BT_ERR_ARG for a repeated or empty name; BT_ERR_IO; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_safetensors_write(const char *path, const struct bt_st_entry *entries,
                                               int32_t n_entries, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
