/* A workload held in memory, so that the planner's many simulations read one copy: the whole of it,
 * or every N-th request, at any speed.
 *
 * Threading: immutable once read; each source over it has its own cursor.
 */
#ifndef BT_SIM_PLAN_STREAM_H
#define BT_SIM_PLAN_STREAM_H

#include "engine/core/arena.h"
#include "engine/core/error.h"
#include "sim/workload/source.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_STREAM_MAX_REQUESTS = 20000000 };

struct bt_stream {
    struct bt_request *requests; /* owned */
    int64_t n_requests;
    uint64_t *hashes; /* owned */
    int32_t closed_users;
    int64_t span_ns;       /* first to last arrival; 0 in a closed loop */
    double rate_req_per_s; /* n / span; 0 in a closed loop */
    double prompt_mean, output_mean;
};

/* Reads a source to its end. BT_ERR_INPUT from the source; BT_ERR_LIMIT when it is longer than
 * BT_STREAM_MAX_REQUESTS or has no end; BT_ERR_INPUT when it is empty. */
BT_NODISCARD enum bt_code bt_stream_read(struct bt_source *source, struct bt_stream *out,
                                         struct bt_error *err);
void bt_stream_fini(struct bt_stream *s);

struct bt_stream_view {
    int32_t share;     /* one request of so many, the first of each; > 0 */
    double rate_scale; /* arrival times are divided by it; > 0 */
};

/* A source over a view; the stream is borrowed. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_stream_source(const struct bt_stream *s,
                                           const struct bt_stream_view *view,
                                           struct bt_source **out, struct bt_error *err);

/* Requests of a view. */
int64_t bt_stream_view_n(const struct bt_stream *s, const struct bt_stream_view *view);

#ifdef __cplusplus
}
#endif

#endif
