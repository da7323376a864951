#include "sim/live.h"

#include <stdlib.h>
#include <string.h>

enum { LIVE_FIRST = 256, HASHES_FIRST = 16 };

void bt_live_init(struct bt_live *l, int32_t capacity_max)
{
    BT_ASSERT(capacity_max > 0);
    *l = (struct bt_live){.capacity_max = capacity_max, .free_head = -1};
}

void bt_live_fini(struct bt_live *l)
{
    for (int32_t i = 0; i < l->n_touched; i++) {
        free(l->requests[i].hashes);
    }
    free(l->requests);
    free(l->truth);
    *l = (struct bt_live){0};
}

static enum bt_code grow(struct bt_live *l, struct bt_error *err)
{
    if (l->capacity == l->capacity_max) {
        BT_FAIL(err, BT_ERR_LIMIT, l->n, "simulation: more than %d requests are alive at once",
                l->capacity_max);
    }
    int32_t capacity = l->capacity == 0 ? LIVE_FIRST : 2 * l->capacity;
    if (capacity > l->capacity_max) {
        capacity = l->capacity_max;
    }
    struct bt_sim_truth *truth = realloc(l->truth, (size_t)capacity * sizeof *truth);
    if (truth != NULL) {
        l->truth = truth;
    }
    struct bt_live_request *requests = realloc(l->requests, (size_t)capacity * sizeof *requests);
    if (requests != NULL) {
        l->requests = requests;
    }
    if (truth == NULL || requests == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "simulation: no memory for %d requests alive at once",
                capacity);
    }
    l->capacity = capacity;
    return BT_OK;
}

static enum bt_code copy_hashes(struct bt_live_request *r, const struct bt_request *request,
                                struct bt_error *err)
{
    int32_t n = request->n_hashes;
    if (n == 0) {
        r->request.hashes = NULL;
        return BT_OK;
    }
    if (n > r->hashes_capacity) {
        int32_t capacity = r->hashes_capacity > 0 ? r->hashes_capacity : HASHES_FIRST;
        while (capacity < n) {
            capacity = capacity > INT32_MAX / 2 ? n : 2 * capacity;
        }
        uint64_t *hashes = realloc(r->hashes, (size_t)capacity * sizeof *hashes);
        if (hashes == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "simulation: no memory for %d prefix hashes", n);
        }
        r->hashes = hashes;
        r->hashes_capacity = capacity;
    }
    memcpy(r->hashes, request->hashes, (size_t)n * sizeof *r->hashes);
    r->request.hashes = r->hashes;
    return BT_OK;
}

enum bt_code bt_live_add(struct bt_live *l, const struct bt_request *request, uint64_t key,
                         int32_t *place, struct bt_error *err)
{
    int32_t at = l->free_head;
    if (at < 0) {
        if (l->n_touched == l->capacity) {
            BT_TRY(grow(l, err));
        }
        at = l->n_touched++;
        l->requests[at] = (struct bt_live_request){.next_free = l->free_head};
        l->free_head = at;
    }
    struct bt_live_request *r = &l->requests[at];
    r->request = *request;
    BT_TRY(copy_hashes(r, request, err));
    l->free_head = r->next_free;
    r->degraded = false;
    l->truth[at] = (struct bt_sim_truth){.key = key, .n_output = request->n_output};
    l->n++;
    *place = at;
    return BT_OK;
}

void bt_live_remove(struct bt_live *l, int32_t place)
{
    BT_ASSERT(place >= 0 && place < l->n_touched && l->n > 0);
    l->requests[place].next_free = l->free_head;
    l->free_head = place;
    l->n--;
}
