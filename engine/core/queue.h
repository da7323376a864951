/* An indexed binary heap of request places: smallest key first, any member removable in O(log n).
 *
 * Keys lie in the heap beside the ids, so that sifting touches no request; each move writes the
 * member's position through `pos`, which points into the first request's position field and steps
 * by `pos_stride` bytes. Capacity is fixed at init. Threading: one thread.
 */
#ifndef BT_ENGINE_CORE_QUEUE_H
#define BT_ENGINE_CORE_QUEUE_H

#include "engine/core/arena.h"
#include "engine/core/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_queue_item {
    uint64_t key;
    uint32_t id;
};

struct bt_queue {
    int32_t n;
    int32_t cap;
    struct bt_queue_item *items; /* owned by the arena; [cap] */
    char *pos;                   /* borrowed: position of member 0; -1 when it is not inside */
    size_t pos_stride;           /* bytes between the positions of members i and i + 1 */
};

/* An empty heap for at most cap members with ids 0 .. cap-1; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_queue_init(struct bt_queue *q, struct bt_arena *arena, int32_t cap,
                                        int32_t *pos, size_t pos_stride, struct bt_error *err);

/* Adds a member that is not inside. Equal keys come out in an order that depends on the sequence of
 * calls alone. */
void bt_queue_push(struct bt_queue *q, uint64_t key, uint32_t id);

/* The member with the smallest key; the heap must not be empty. */
static inline struct bt_queue_item bt_queue_top(const struct bt_queue *q)
{
    BT_DEBUG_ASSERT(q->n > 0);
    return q->items[0];
}

/* Takes a member out; it must be inside. */
void bt_queue_remove(struct bt_queue *q, uint32_t id);

/* Asserts the heap order and every position. O(n). */
void bt_queue_check(const struct bt_queue *q);

#ifdef __cplusplus
}
#endif

#endif
