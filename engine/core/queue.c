#include "engine/core/queue.h"

static int32_t *pos_of(const struct bt_queue *q, uint32_t id)
{
    return (int32_t *)(void *)(q->pos + (size_t)id * q->pos_stride);
}

static void place(struct bt_queue *q, int32_t at, struct bt_queue_item item)
{
    q->items[at] = item;
    *pos_of(q, item.id) = at;
}

static void sift_up(struct bt_queue *q, int32_t at, struct bt_queue_item item)
{
    while (at > 0) {
        int32_t parent = (at - 1) / 2;
        if (q->items[parent].key <= item.key) {
            break;
        }
        place(q, at, q->items[parent]);
        at = parent;
    }
    place(q, at, item);
}

static void sift_down(struct bt_queue *q, int32_t at, struct bt_queue_item item)
{
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= q->n) {
            break;
        }
        if (child + 1 < q->n && q->items[child + 1].key < q->items[child].key) {
            child++;
        }
        if (item.key <= q->items[child].key) {
            break;
        }
        place(q, at, q->items[child]);
        at = child;
    }
    place(q, at, item);
}

enum bt_code bt_queue_init(struct bt_queue *q, struct bt_arena *arena, int32_t cap, int32_t *pos,
                           size_t pos_stride, struct bt_error *err)
{
    BT_ASSERT(cap > 0);
    *q = (struct bt_queue){.cap = cap, .pos = (char *)pos, .pos_stride = pos_stride};
    BT_ARENA_ARRAY_RAW(arena, q->items, cap, err);
    return BT_OK;
}

void bt_queue_push(struct bt_queue *q, uint64_t key, uint32_t id)
{
    BT_ASSERT(q->n < q->cap);
    BT_ASSERT(*pos_of(q, id) == -1);
    sift_up(q, q->n++, (struct bt_queue_item){.key = key, .id = id});
}

void bt_queue_remove(struct bt_queue *q, uint32_t id)
{
    int32_t at = *pos_of(q, id);
    BT_ASSERT(at >= 0 && at < q->n);
    BT_ASSERT(q->items[at].id == id);
    *pos_of(q, id) = -1;
    struct bt_queue_item last = q->items[--q->n];
    if (at == q->n) {
        return;
    }
    if (at > 0 && last.key < q->items[(at - 1) / 2].key) {
        sift_up(q, at, last);
    } else {
        sift_down(q, at, last);
    }
}

void bt_queue_check(const struct bt_queue *q)
{
    BT_ASSERT(q->n >= 0 && q->n <= q->cap);
    for (int32_t i = 0; i < q->n; i++) {
        BT_ASSERT(*pos_of(q, q->items[i].id) == i);
        BT_ASSERT(i == 0 || q->items[(i - 1) / 2].key <= q->items[i].key);
    }
}
