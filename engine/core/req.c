#include "engine/core/req.h"

#include "engine/core/error.h"

static const char *const STATE_NAMES[BT_N_REQ_STATES] = {
    [BT_REQ_FREE] = "FREE",         [BT_REQ_WAITING] = "WAITING",
    [BT_REQ_RUNNING] = "RUNNING",   [BT_REQ_SWAPPING_OUT] = "SWAPPING_OUT",
    [BT_REQ_SWAPPED] = "SWAPPED",   [BT_REQ_SWAPPING_IN] = "SWAPPING_IN",
    [BT_REQ_DRAINING] = "DRAINING",
};

/* Row: from; a set bit: a legal `to`. */
static const uint8_t EDGES[BT_N_REQ_STATES] = {
    [BT_REQ_FREE] = 1u << BT_REQ_WAITING,
    [BT_REQ_WAITING] = 1u << BT_REQ_RUNNING | 1u << BT_REQ_FREE,
    [BT_REQ_RUNNING] = 1u << BT_REQ_WAITING | 1u << BT_REQ_DRAINING | 1u << BT_REQ_SWAPPING_OUT |
                       1u << BT_REQ_FREE,
    [BT_REQ_SWAPPING_OUT] = 1u << BT_REQ_SWAPPED | 1u << BT_REQ_DRAINING,
    [BT_REQ_SWAPPED] = 1u << BT_REQ_SWAPPING_IN | 1u << BT_REQ_FREE,
    [BT_REQ_SWAPPING_IN] = 1u << BT_REQ_RUNNING | 1u << BT_REQ_DRAINING,
    [BT_REQ_DRAINING] = 1u << BT_REQ_WAITING | 1u << BT_REQ_FREE,
};

_Static_assert(BT_N_REQ_STATES <= 8, "EDGES holds a row in 8 bits");

const char *bt_req_state_name(enum bt_req_state state)
{
    BT_ASSERT((uint32_t)state < BT_N_REQ_STATES);
    return STATE_NAMES[state];
}

bool bt_req_edge_legal(enum bt_req_state from, enum bt_req_state to)
{
    return (EDGES[from] >> to & 1u) != 0;
}

void bt_req_transition(struct bt_req *r, enum bt_req_state to)
{
    BT_ASSERT(bt_req_edge_legal(r->state, to));
    r->state = to;
}

/* What holds in every state but FREE. */
static void check_living(const struct bt_req *r)
{
    BT_ASSERT(r->n_prompt > 0);
    BT_ASSERT(r->max_new_tokens > 0);
    BT_ASSERT(r->n_delivered >= 0 && r->n_delivered <= r->max_new_tokens);
    BT_ASSERT(r->n_keyed >= 0 && r->n_keyed <= r->n_prompt);
    BT_ASSERT((r->n_delivered > 0) == (r->first_token_ns >= 0));
    BT_ASSERT(r->first_token_ns <= r->last_token_ns);
    BT_ASSERT(r->admitted == (r->scheduled_ns >= 0));
    BT_ASSERT((r->n_host > 0) == (r->host_head >= 0));
}

void bt_req_check(const struct bt_req *r)
{
    if (r->state != BT_REQ_FREE) {
        check_living(r);
    }
    switch (r->state) {
    case BT_REQ_FREE:
        BT_ASSERT(r->slot == -1 && r->queue_pos == -1 && r->deadline_pos == -1 && r->n_host == 0);
        break;
    case BT_REQ_WAITING:
        BT_ASSERT(r->slot == -1 && r->queue_pos >= 0 && r->n_host == 0 && !r->ended);
        break;
    case BT_REQ_RUNNING:
        BT_ASSERT(r->slot >= 0 && r->queue_pos == -1 && r->n_host == 0 && !r->ended);
        BT_ASSERT(r->admitted && r->n_delivered < r->max_new_tokens);
        break;
    case BT_REQ_SWAPPING_OUT:
    case BT_REQ_SWAPPING_IN:
        BT_ASSERT(r->slot >= 0 && r->queue_pos == -1 && r->n_host > 0 && !r->ended);
        BT_ASSERT(r->n_preempt_swap > 0);
        break;
    case BT_REQ_SWAPPED:
        BT_ASSERT(r->slot == -1 && r->queue_pos >= 0 && r->n_host > 0 && !r->ended);
        BT_ASSERT(r->saved_ctx > 0);
        break;
    case BT_REQ_DRAINING:
        BT_ASSERT(r->slot >= 0 && r->queue_pos == -1);
        BT_ASSERT(!r->ended || r->deadline_pos == -1);
        break;
    case BT_N_REQ_STATES:
        BT_ASSERT(false);
    }
}
