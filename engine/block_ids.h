/* Which tokens' KV lies in the blocks of a pool, kept on the host beside it: what a shared prefix
 * is verified by. Threading: one thread.
 */
#ifndef BT_ENGINE_BLOCK_IDS_H
#define BT_ENGINE_BLOCK_IDS_H

#include "engine/core/arena.h"
#include "engine/core/executor.h"
#include "engine/gen.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_block_ids {
    int32_t slots;   /* ids a block */
    int32_t *device; /* [n_blocks][slots]; -1: nobody's */
    int32_t *host;   /* [n_host_blocks][slots] */
};

BT_NODISCARD enum bt_code bt_block_ids_init(struct bt_block_ids *b, struct bt_arena *arena,
                                            int32_t n_blocks, int32_t n_host_blocks, int32_t slots,
                                            struct bt_error *err);

/* Moves what is known of the content of copied blocks. */
void bt_block_ids_copy(struct bt_block_ids *b, const struct bt_plan_copy *c);

/* Notes the token at a position of a sequence, whose blocks have block_tokens slots. */
static inline void bt_block_ids_note(struct bt_block_ids *b, const struct bt_plan_seq *ps,
                                     int32_t block_tokens, int32_t position, int32_t id)
{
    int64_t block = ps->blocks[position / block_tokens];
    b->device[block * b->slots + position % block_tokens] = id;
}

/* Whether the blocks of a starting sequence hold the KV of its own tokens. */
bool bt_block_ids_are_own(const struct bt_block_ids *b, const struct bt_plan_seq *ps,
                          const struct bt_gen_request *r, int32_t block_tokens);

#ifdef __cplusplus
}
#endif

#endif
