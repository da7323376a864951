/* A one-layer Llama checkpoint small enough to write in every format: hidden 64, 4 heads, 2 KV
 * heads, head dim 16, intermediate 96 (so that groups of 64 end in a short one), vocabulary 32. */
#ifndef BT_TESTS_ENGINE_MODEL_TOY_H
#define BT_TESTS_ENGINE_MODEL_TOY_H

#include "engine/core/arena.h"
#include "engine/core/rng.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"

enum { TOY_MAX_ENTRIES = 128 };

struct toy {
    struct bt_arena arena;
    struct bt_rng rng;
    struct bt_st_entry entries[TOY_MAX_ENTRIES];
    int32_t n;
};

/* An empty checkpoint; toy_fini frees it. */
void toy_init(struct toy *t, uint64_t seed);
void toy_fini(struct toy *t);

/* Memory that lives as long as the toy, zeroed. */
void *toy_take(struct toy *t, size_t n, size_t size);

/* Adds a tensor; cols 0 makes a vector of `rows`. The bytes are not copied. */
void toy_add(struct toy *t, const char *name, enum bt_dtype dtype, int64_t rows, int64_t cols,
             const void *bytes);

/* The entry of that name, or NULL. */
struct bt_st_entry *toy_find(struct toy *t, const char *name);

/* Takes the entry out. */
void toy_remove(struct toy *t, const char *name);

/* Adds embeddings, norms and lm_head (F32, normal numbers). */
void toy_add_frame(struct toy *t);

/* Adds all of the layer's matrices, dense, F32. */
void toy_add_dense(struct toy *t);

/* Writes config.json (extra: text before its closing brace, such as a quantization_config) and
 * model.safetensors to the test's folder. Returns the folder. */
const char *toy_write(struct toy *t, const char *extra);

/* Architecture of the toy. */
struct bt_arch toy_arch(void);

#endif
