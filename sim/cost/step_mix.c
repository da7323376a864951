#include "sim/cost/step_mix.h"

#include "engine/core/error.h"

void bt_step_mix_add(struct bt_step_mix *mix, const struct bt_batch *b)
{
    int32_t size = 0;
    while (size + 1 < BT_STEP_MIX_SIZES && b->n_decode >> size > 0) {
        size++;
    }
    struct bt_step_sum *s = &mix->classes[2 * size + (b->n_prefill_tokens > 0)];
    s->n_steps++;
    s->n_decode += b->n_decode;
    s->n_decode_tokens += b->n_decode_tokens;
    s->decode_ctx += b->decode_ctx;
    s->decode_ctx_long += b->decode_ctx_long;
    s->n_prefill += b->n_prefill;
    s->n_prefill_tokens += b->n_prefill_tokens;
    s->prefill_pairs += b->prefill_pairs;
    s->prefill_ctx += b->prefill_ctx;
    s->n_logits += b->n_logits;
    s->n_draft_steps += b->n_draft_steps;
    s->n_catchup_tokens += b->n_catchup_tokens;
}

/* Rounded, and at least one where there was any. */
static int64_t mean(int64_t sum, int64_t n)
{
    int64_t m = (sum + n / 2) / n;
    return m == 0 && sum > 0 ? 1 : m;
}

struct bt_batch bt_step_mix_mean(const struct bt_step_sum *s)
{
    BT_ASSERT(s->n_steps > 0);
    int64_t n = s->n_steps;
    struct bt_batch b = {
        .n_decode = (int32_t)mean(s->n_decode, n),
        .n_decode_tokens = (int32_t)mean(s->n_decode_tokens, n),
        .decode_ctx = mean(s->decode_ctx, n),
        .decode_ctx_long = mean(s->decode_ctx_long, n),
        .n_prefill = (int32_t)mean(s->n_prefill, n),
        .n_prefill_tokens = (int32_t)mean(s->n_prefill_tokens, n),
        .prefill_pairs = mean(s->prefill_pairs, n),
        .prefill_ctx = mean(s->prefill_ctx, n),
        .n_logits = (int32_t)mean(s->n_logits, n),
        .n_draft_steps = (int32_t)mean(s->n_draft_steps, n),
        .n_catchup_tokens = (int32_t)mean(s->n_catchup_tokens, n),
    };
    /* Means that were rounded apart. */
    b.n_decode_tokens = b.n_decode_tokens > b.n_decode ? b.n_decode_tokens : b.n_decode;
    b.decode_ctx = b.decode_ctx > b.n_decode_tokens ? b.decode_ctx : b.n_decode_tokens;
    b.n_prefill = b.n_prefill < b.n_prefill_tokens ? b.n_prefill : b.n_prefill_tokens;
    b.prefill_ctx = b.prefill_ctx > b.n_prefill_tokens ? b.prefill_ctx : b.n_prefill_tokens;
    int64_t least = (int64_t)b.n_prefill_tokens;
    b.prefill_pairs = b.prefill_pairs > least ? b.prefill_pairs : least;
    return b;
}
