/* A stream of requests: what drives the simulator and the real engine alike.
 *
 * Open loop (closed_users == 0): arrival_ns never falls from one request to the next. Closed loop
 * (closed_users = N > 0): requests come without arrival times; the caller gives each idle user the
 * next one with arrival = completion of the user's last request + think_ns (first request: the
 * start + think_ns).
 *
 * Threading: a source belongs to one thread. What it reads (an array, a struct bt_trace) is not
 * changed by it and may be shared by the sources of many threads.
 */
#ifndef BT_SIM_WORKLOAD_SOURCE_H
#define BT_SIM_WORKLOAD_SOURCE_H

#include "engine/core/error.h"
#include "sim/workload/request.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_source_status {
    BT_SOURCE_MORE,  /* *out holds a request */
    BT_SOURCE_END,   /* no more requests; *out untouched */
    BT_SOURCE_ERROR, /* *err says what; *out untouched */
};

struct bt_source_ops {
    const char *name; /* "array", "generated", "trace", "servegen" */
    /* Required. */
    enum bt_source_status (*next)(void *self, struct bt_request *out, struct bt_error *err);
    /* Required. Starts the same stream again. */
    enum bt_code (*rewind)(void *self, struct bt_error *err);
    /* Required. Frees self, the struct bt_source included. */
    void (*destroy)(void *self);
};

struct bt_source {
    const struct bt_source_ops *ops;
    void *self;           /* owned */
    int32_t closed_users; /* 0: open loop */
};

/* The next request. */
enum bt_source_status bt_source_next(struct bt_source *s, struct bt_request *out,
                                     struct bt_error *err);

/* Starts the same stream again from its first request. */
BT_NODISCARD enum bt_code bt_source_rewind(struct bt_source *s, struct bt_error *err);

/* Frees the source; NULL is allowed. */
void bt_source_destroy(struct bt_source *s);

/* A source over n requests in non-decreasing order of arrival_ns (asserted); the array and the
 * hashes it points to are borrowed and outlive the source. Fails with BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_source_create_array(const struct bt_request *requests, int64_t n,
                                                 struct bt_source **out, struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
