#include "engine/core/policy.h"

#include "engine/core/error.h"

enum { SEQS_START = 8, GROW_STEPS = 8, CLASS_BITS = 64 - BT_ORDER_SEQ_BITS };

uint64_t bt_order_key(enum bt_order order, int32_t priority, int32_t n_prompt, uint64_t seq)
{
    BT_ASSERT(seq < (uint64_t)1 << BT_ORDER_SEQ_BITS);
    uint64_t class = 0;
    switch (order) {
    case BT_ORDER_FCFS:
        break;
    case BT_ORDER_PRIORITY:
        class = (uint64_t)priority;
        break;
    case BT_ORDER_SHORTEST:
        class = (uint64_t)n_prompt;
        break;
    }
    const uint64_t class_max = ((uint64_t)1 << CLASS_BITS) - 1;
    return (class < class_max ? class : class_max) << BT_ORDER_SEQ_BITS | seq;
}

int64_t bt_window_ns(int64_t low_ns, int64_t high_ns, int32_t n_waiting, int32_t max_seqs)
{
    BT_DEBUG_ASSERT(high_ns >= low_ns && max_seqs > 0 && n_waiting >= 0);
    if (n_waiting >= max_seqs) {
        return high_ns;
    }
    return low_ns + (high_ns - low_ns) / max_seqs * n_waiting;
}

void bt_seqs_auto_init(struct bt_seqs_auto *a, int32_t max, bool enabled)
{
    *a = (struct bt_seqs_auto){
        .limit = enabled && max > SEQS_START ? SEQS_START : max,
        .max = max,
        .slow_start = true,
    };
}

void bt_seqs_auto_wanted(struct bt_seqs_auto *a)
{
    if (a->limit >= a->max) {
        return;
    }
    if (a->slow_start) {
        a->limit = a->limit <= a->max / 2 ? a->limit * 2 : a->max;
    } else if (++a->wanted >= GROW_STEPS) {
        a->wanted = 0;
        a->limit++;
    }
}

void bt_seqs_auto_preempted(struct bt_seqs_auto *a, int32_t n_resident)
{
    int32_t base = n_resident < a->limit ? n_resident : a->limit;
    int32_t limit = base - base / 4;
    a->limit = limit > 1 ? limit : 1;
    a->slow_start = false;
    a->wanted = 0;
}

bool bt_preempt_prefers_swap(enum bt_preempt_goal goal, const struct bt_preempt_cost *cost,
                             int32_t n_tokens, int32_t n_swap_blocks)
{
    double n = n_tokens;
    double recompute_ns = n * cost->recompute_ns_per_token + n * n * cost->recompute_ns_per_token2;
    double out_ns = n_swap_blocks * cost->swap_out_ns_per_block + cost->swap_fixed_ns;
    double in_ns = n_swap_blocks * cost->swap_in_ns_per_block + cost->swap_fixed_ns;
    switch (goal) {
    case BT_GOAL_VICTIM_DELAY:
        return out_ns + in_ns < recompute_ns;
    case BT_GOAL_GPU_TIME:
        return 2.0 * cost->swap_fixed_ns < recompute_ns;
    case BT_GOAL_FREE_TIME:
        break;
    }
    return false;
}
