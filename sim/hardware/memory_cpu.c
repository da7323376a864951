/* What the CPU executor takes beside weights and pool: engine/cpu's buffers, which hold 256 tokens
 * at a time in float32 whatever the step's size. A test compares this with the executor's own
 * counters. */
#include "sim/hardware/memory_impl.h"

enum {
    ROWS = 256,      /* tokens computed at a time */
    PANEL_ROWS = 16, /* rows of a weight matrix expanded at a time */
    LOGIT_ROWS = 32, /* rows of logits held at a time */
    HEAD_GROUP = 4,  /* query heads that share a pass over the keys */
    LANES = 16,      /* rows are padded to so many floats */
    SEGMENT_BYTES = 24,
};

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t pad(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* The larger of target and draft in each extent. */
struct extents {
    int64_t hidden, q, kv, intermediate, head_dim;
};

static void stretch(struct extents *e, const struct bt_arch *m)
{
    if (m == NULL) {
        return;
    }
    e->hidden = max64(e->hidden, m->hidden);
    e->q = max64(e->q, (int64_t)m->n_heads * m->head_dim);
    e->kv = max64(e->kv, (int64_t)m->n_kv_heads * m->head_dim);
    e->intermediate = max64(e->intermediate, m->intermediate);
    e->head_dim = max64(e->head_dim, m->head_dim);
}

static int64_t norm_bytes(const struct bt_arch *m)
{
    int64_t layer = 2 * (int64_t)m->hidden + (m->qk_norm ? 2 * (int64_t)m->head_dim : 0);
    return 4 * (layer * m->n_layers + m->hidden + m->head_dim / 2);
}

int64_t bt_account_cpu_workspace(const struct bt_account *a)
{
    const struct bt_arch *m = a->o.arch;
    struct extents e = {0};
    stretch(&e, m);
    stretch(&e, a->o.draft);
    int64_t in = pad(max64(max64(e.hidden, e.q), e.intermediate));
    int64_t d = pad(e.head_dim);
    int64_t ctx = a->o.max_model_len;
    int64_t k = a->o.lookahead_tokens;
    int64_t seqs = a->o.max_seqs;

    int64_t bytes = ROWS * (in * 6 + 4) + PANEL_ROWS * in * 4;
    bytes += 4 * (2 * ctx * d + HEAD_GROUP * (pad(ctx) + d));
    int64_t row = 2 * e.hidden + max64(e.hidden, e.q) + e.q + 2 * e.kv + 2 * e.intermediate;
    bytes += ROWS * ((row + e.head_dim) * 4 + SEGMENT_BYTES);
    bytes += norm_bytes(m) + (a->o.draft == NULL ? 0 : norm_bytes(a->o.draft));
    bytes += seqs * ((1 + k) * m->hidden * 4 + SEGMENT_BYTES + 4);
    bytes += (max64(LOGIT_ROWS, 1 + k) + 2) * m->vocab * 4;
    if (k > 0) {
        int64_t drafter = a->o.draft != NULL ? a->o.draft->hidden : m->hidden;
        bytes += seqs * (drafter * 4 + k * 12 + 4);
        bytes += a->o.medusa_heads > 0 ? 2 * seqs * m->hidden * 4 : 0;
    }
    return bytes;
}
