/* A growing map from 64-bit keys to int32 numbers: sessions by their name, hash-blocks seen. */
#ifndef BT_SIM_WORKLOAD_KEYMAP_H
#define BT_SIM_WORKLOAD_KEYMAP_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed is empty. */
struct bt_keymap {
    uint64_t *keys;  /* owned; 0 marks a free place, so keys are stored mixed */
    int32_t *values; /* owned */
    int64_t n, cap;
    bool has_zero;
    int32_t zero_value;
};

/* The value of a key, or -1. */
int32_t bt_keymap_find(const struct bt_keymap *m, uint64_t key);

/* Sets the value (>= 0) of a key. Fails with BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_keymap_put(struct bt_keymap *m, uint64_t key, int32_t value,
                                        struct bt_error *err);

void bt_keymap_fini(struct bt_keymap *m);

#ifdef __cplusplus
}
#endif

#endif
