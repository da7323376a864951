/* Equality of requests by field: padding is not part of them. */
#ifndef BT_TESTS_SIM_WORKLOAD_SAME_REQUEST_H
#define BT_TESTS_SIM_WORKLOAD_SAME_REQUEST_H

#include "sim/workload/request.h"

#include <stdbool.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* True when all fields are equal; hashes by content, so both requests' must still be valid. */
static inline bool same_request(const struct bt_request *a, const struct bt_request *b)
{
    return a->arrival_ns == b->arrival_ns && a->think_ns == b->think_ns &&
           a->timeout_ns == b->timeout_ns && a->id == b->id && a->n_prompt == b->n_prompt &&
           a->n_output == b->n_output && a->priority == b->priority && a->session == b->session &&
           a->kind == b->kind && a->n_hashes == b->n_hashes && a->hash_tokens == b->hash_tokens &&
           (a->n_hashes == 0 ||
            memcmp(a->hashes, b->hashes, (size_t)a->n_hashes * sizeof *a->hashes) == 0);
}

#ifdef __cplusplus
}
#endif

#endif
