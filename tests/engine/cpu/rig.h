/* What the tests of the CPU engine share: the small models, their golden numbers, short cuts that
 * fail the test on an error. */
#ifndef BT_TESTS_ENGINE_CPU_RIG_H
#define BT_TESTS_ENGINE_CPU_RIG_H

#include "engine/cpu/session.h"
#include "engine/model/model.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

/* How much of the long tests runs: little in builds without the optimiser or with sanitizers, what
 * CI has time for in optimised ones, everything with BT_FULL=1 in the environment. */
enum rig_scale { RIG_REDUCED, RIG_CI, RIG_FULL };
enum rig_scale rig_scale(void);

/* tests/models/NAME, or NAME in the folder that BT_MODELS names, in static storage (overwritten by
 * the next call). */
const char *rig_model_path(const char *name);

/* Loads tests/models/NAME; opts may be NULL. */
void rig_load(struct bt_model *m, const char *name, const struct bt_model_opts *opts);

/* A session of float32 arithmetic and KV over the model, one thread. */
struct bt_session *rig_session(const struct bt_model *m, enum bt_kv_format kv);

/* tests/models/NAME as JSON; the caller drops the reference. */
json_t *rig_json(const char *name);

/* An array of integers; *n gets its length. The caller frees. */
int32_t *rig_ids(const json_t *array, int32_t *n);

/* The index of the greatest; the first of equals. */
int32_t rig_argmax(const float *x, int32_t n);

/* Tokens [from, from + n) of test_tokens_u16.bin. */
void rig_test_tokens(int64_t from, int32_t n, int32_t *out);

#endif
