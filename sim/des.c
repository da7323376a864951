#include "sim/des.h"

#include <stdlib.h>

enum { DES_ARITY = 4, DES_FIRST_CAPACITY = 64 };

static bool comes_before(const struct bt_event *a, const struct bt_event *b)
{
    if (a->t_ns != b->t_ns) {
        return a->t_ns < b->t_ns;
    }
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    return a->seq < b->seq;
}

enum bt_code bt_des_init(struct bt_des *d, int64_t capacity_max, int64_t events_max,
                         struct bt_error *err)
{
    BT_ASSERT(capacity_max > 0 && events_max >= 0);
    int64_t capacity = capacity_max < DES_FIRST_CAPACITY ? capacity_max : DES_FIRST_CAPACITY;
    *d = (struct bt_des){
        .capacity = capacity, .capacity_max = capacity_max, .events_max = events_max};
    d->heap = malloc((size_t)capacity * sizeof *d->heap);
    if (d->heap == NULL) {
        *d = (struct bt_des){0};
        BT_FAIL(err, BT_ERR_NOMEM, 0, "event queue: no memory for %lld events",
                (long long)capacity);
    }
    return BT_OK;
}

void bt_des_fini(struct bt_des *d)
{
    free(d->heap);
    *d = (struct bt_des){0};
}

static enum bt_code grow(struct bt_des *d, struct bt_error *err)
{
    if (d->capacity == d->capacity_max) {
        BT_FAIL(err, BT_ERR_LIMIT, d->n, "event queue: more than %lld events wait at once",
                (long long)d->capacity_max);
    }
    int64_t capacity = d->capacity > d->capacity_max / 2 ? d->capacity_max : 2 * d->capacity;
    struct bt_event *heap = realloc(d->heap, (size_t)capacity * sizeof *heap);
    if (heap == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "event queue: no memory for %lld events",
                (long long)capacity);
    }
    d->heap = heap;
    d->capacity = capacity;
    return BT_OK;
}

enum bt_code bt_des_schedule(struct bt_des *d, int64_t t_ns, int32_t priority, int32_t kind,
                             uint64_t handle, struct bt_error *err)
{
    BT_ASSERT(t_ns >= d->now_ns);
    if (d->n == d->capacity) {
        BT_TRY(grow(d, err));
    }
    struct bt_event e = {
        .t_ns = t_ns, .seq = d->next_seq++, .handle = handle, .priority = priority, .kind = kind};
    int64_t i = d->n++;
    while (i > 0) {
        int64_t parent = (i - 1) / DES_ARITY;
        if (!comes_before(&e, &d->heap[parent])) {
            break;
        }
        d->heap[i] = d->heap[parent];
        i = parent;
    }
    d->heap[i] = e;
    return BT_OK;
}

int64_t bt_des_next_ns(const struct bt_des *d)
{
    return d->n > 0 ? d->heap[0].t_ns : INT64_MAX;
}

/* Puts e where the root was taken, and lets it sink. */
static void sift_down(struct bt_des *d, struct bt_event e)
{
    int64_t i = 0;
    for (;;) {
        int64_t first = DES_ARITY * i + 1;
        if (first >= d->n) {
            break;
        }
        int64_t last = first + DES_ARITY < d->n ? first + DES_ARITY : d->n;
        int64_t least = first;
        for (int64_t c = first + 1; c < last; c++) {
            if (comes_before(&d->heap[c], &d->heap[least])) {
                least = c;
            }
        }
        if (!comes_before(&d->heap[least], &e)) {
            break;
        }
        d->heap[i] = d->heap[least];
        i = least;
    }
    d->heap[i] = e;
}

enum bt_code bt_des_take(struct bt_des *d, struct bt_event *out, bool *got, struct bt_error *err)
{
    *got = false;
    if (d->n == 0) {
        return BT_OK;
    }
    if (d->events_max > 0 && d->n_taken == d->events_max) {
        BT_FAIL(err, BT_ERR_LIMIT, d->n_taken,
                "simulation: stopped after %lld events, at %.3f s of virtual time",
                (long long)d->n_taken, (double)d->now_ns * 1e-9);
    }
    *out = d->heap[0];
    *got = true;
    BT_ASSERT(out->t_ns >= d->now_ns);
    d->now_ns = out->t_ns;
    d->n_taken++;
    struct bt_event last = d->heap[--d->n];
    if (d->n > 0) {
        sift_down(d, last);
    }
    return BT_OK;
}
