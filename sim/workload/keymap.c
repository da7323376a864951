#include "sim/workload/keymap.h"

#include "engine/core/rng.h"

#include <stdlib.h>
#include <string.h>

/* The place of a mixed key, or the free place where it belongs. */
static int64_t place(const uint64_t *keys, int64_t cap, uint64_t mixed)
{
    int64_t i = (int64_t)(mixed & (uint64_t)(cap - 1));
    while (keys[i] != 0 && keys[i] != mixed) {
        i = (i + 1) & (cap - 1);
    }
    return i;
}

int32_t bt_keymap_find(const struct bt_keymap *m, uint64_t key)
{
    uint64_t mixed = bt_hash_u64(key); /* a bijection: equal means equal */
    if (mixed == 0) {
        return m->has_zero ? m->zero_value : -1;
    }
    if (m->n == 0) {
        return -1;
    }
    int64_t i = place(m->keys, m->cap, mixed);
    return m->keys[i] == 0 ? -1 : m->values[i];
}

static enum bt_code grow(struct bt_keymap *m, struct bt_error *err)
{
    int64_t cap = m->cap == 0 ? 1024 : m->cap * 2;
    uint64_t *keys = calloc((size_t)cap, sizeof *keys);
    int32_t *values = malloc((size_t)cap * sizeof *values);
    if (keys == NULL || values == NULL) {
        free(keys);
        free(values);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "trace: no memory for %lld names", (long long)cap);
    }
    for (int64_t i = 0; i < m->cap; i++) {
        if (m->keys[i] != 0) {
            int64_t at = place(keys, cap, m->keys[i]);
            keys[at] = m->keys[i];
            values[at] = m->values[i];
        }
    }
    free(m->keys);
    free(m->values);
    m->keys = keys;
    m->values = values;
    m->cap = cap;
    return BT_OK;
}

enum bt_code bt_keymap_put(struct bt_keymap *m, uint64_t key, int32_t value, struct bt_error *err)
{
    BT_ASSERT(value >= 0);
    uint64_t mixed = bt_hash_u64(key);
    if (mixed == 0) {
        m->has_zero = true;
        m->zero_value = value;
        return BT_OK;
    }
    if (m->n >= m->cap / 2) {
        BT_TRY(grow(m, err));
    }
    int64_t i = place(m->keys, m->cap, mixed);
    m->n += m->keys[i] == 0;
    m->keys[i] = mixed;
    m->values[i] = value;
    return BT_OK;
}

void bt_keymap_fini(struct bt_keymap *m)
{
    free(m->keys);
    free(m->values);
    memset(m, 0, sizeof *m);
}
