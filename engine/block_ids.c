#include "engine/block_ids.h"

#include <string.h>

enum bt_code bt_block_ids_init(struct bt_block_ids *b, struct bt_arena *arena, int32_t n_blocks,
                               int32_t n_host_blocks, int32_t slots, struct bt_error *err)
{
    *b = (struct bt_block_ids){.slots = slots};
    BT_ARENA_ARRAY(arena, b->device, (int64_t)n_blocks * slots, err);
    BT_ARENA_ARRAY(arena, b->host, (int64_t)n_host_blocks * slots, err);
    memset(b->device, 0xff, (size_t)n_blocks * (size_t)slots * sizeof *b->device);
    return BT_OK;
}

void bt_block_ids_copy(struct bt_block_ids *b, const struct bt_plan_copy *c)
{
    const int32_t *src = c->kind == BT_COPY_SWAP_IN ? b->host : b->device;
    int32_t *dst = c->kind == BT_COPY_SWAP_OUT ? b->host : b->device;
    size_t slots = (size_t)b->slots;
    for (int32_t i = 0; i < c->n_blocks; i++) {
        memcpy(dst + (size_t)c->dst[i] * slots, src + (size_t)c->src[i] * slots,
               slots * sizeof *dst);
    }
}

bool bt_block_ids_are_own(const struct bt_block_ids *b, const struct bt_plan_seq *ps,
                          const struct bt_gen_request *r, int32_t block_tokens)
{
    for (int32_t i = 0; i < ps->ctx; i++) {
        int64_t block = ps->blocks[i / block_tokens];
        if (b->device[block * b->slots + i % block_tokens] != bt_gen_token(r, i)) {
            return false;
        }
    }
    return true;
}
