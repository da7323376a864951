/* One request as a workload gives it: when it arrives and how much work it is, never its text.
 *
 * Prefix identity: hash-block j covers prompt tokens [j*hash_tokens, (j+1)*hash_tokens), the last
 * one only as far as the prompt goes. Ids are chained: equal ids at j mean that the whole prefix up
 * to and with block j is equal. A shared system prompt of P tokens is one hash-block with
 * hash_tokens = P.
 */
#ifndef BT_SIM_WORKLOAD_REQUEST_H
#define BT_SIM_WORKLOAD_REQUEST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_ARRIVAL_ON_COMPLETION = -1 }; /* arrival_ns of a closed loop's requests */

struct bt_request {
    int64_t arrival_ns;     /* from the stream's start; BT_ARRIVAL_ON_COMPLETION in a closed loop */
    int64_t think_ns;       /* closed loop: the user's pause before this request; else 0 */
    int64_t timeout_ns;     /* from arrival; 0: none */
    int64_t id;             /* 0-based number of the trace's row or of the generated request */
    int32_t n_prompt;       /* tokens, > 0 */
    int32_t n_output;       /* tokens, > 0 */
    int32_t priority;       /* 0 (most urgent) to BT_MAX_PRIORITY */
    int32_t session;        /* dense number of the conversation; -1: none */
    const uint64_t *hashes; /* borrowed: valid until the source's next call or its end */
    int32_t n_hashes;
    int32_t hash_tokens; /* tokens a hash-block covers; 0 when there are no hashes */
    int32_t kind;        /* index of the kind of text; 0 when the workload names none */
};

#ifdef __cplusplus
}
#endif

#endif
