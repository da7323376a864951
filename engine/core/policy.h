/* The scheduler's rules that are arithmetic alone: order of requests, scheduling window, max_seqs
 * by memory, recompute against swap. No state of the scheduler is touched here.
 */
#ifndef BT_ENGINE_CORE_POLICY_H
#define BT_ENGINE_CORE_POLICY_H

#include "engine/core/sched.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_ORDER_SEQ_BITS = 40 }; /* 1.1e12 requests before a scheduler's numbers wrap */

/* A request's place in the order, smaller first: its class (priority, or prompt length for shortest
 * first; none for FCFS) above its number of arrival. Unique, so the order is total. */
uint64_t bt_order_key(enum bt_order order, int32_t priority, int32_t n_prompt, uint64_t seq);

/* The class part of a key: 0 for FCFS. */
static inline uint32_t bt_order_class(uint64_t key)
{
    return (uint32_t)(key >> BT_ORDER_SEQ_BITS);
}

/* Length of the scheduling window in ns: from low when nothing waits, linearly to high when as many
 * wait as may run at once (max_seqs > 0), high from there on. */
int64_t bt_window_ns(int64_t low_ns, int64_t high_ns, int32_t n_waiting, int32_t max_seqs);

/* max_seqs in force, grown and shrunk by memory: as TCP's congestion window, it doubles until the
 * first preemption, then grows by one in every GROW_STEPS steps in which it alone kept the head of
 * the queue out while memory was free; a step with a preemption for memory takes a quarter of what
 * was resident. */
struct bt_seqs_auto {
    int32_t limit; /* in force, 1 .. max */
    int32_t max;
    bool slow_start;
    int32_t wanted; /* steps since the last growth in which it alone was in the way */
};

void bt_seqs_auto_init(struct bt_seqs_auto *a, int32_t max, bool enabled);
void bt_seqs_auto_wanted(struct bt_seqs_auto *a);
void bt_seqs_auto_preempted(struct bt_seqs_auto *a, int32_t n_resident);

/* Whether swapping a victim of n_tokens in n_swap_blocks is cheaper than recomputing it, by goal:
 * VICTIM_DELAY compares its prefill with copy out and in; GPU_TIME its prefill with the fixed cost
 * of the copies, which themselves run beside compute; FREE_TIME nothing (recompute frees at once)
 * with the copy out, so it never swaps. */
bool bt_preempt_prefers_swap(enum bt_preempt_goal goal, const struct bt_preempt_cost *cost,
                             int32_t n_tokens, int32_t n_swap_blocks);

#ifdef __cplusplus
}
#endif

#endif
