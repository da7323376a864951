/* Every capacity of engine/core, with its unit and reason. */
#ifndef BT_ENGINE_CORE_LIMITS_H
#define BT_ENGINE_CORE_LIMITS_H

enum {
    BT_MAX_SEQS = 65536,           /* sequences in one step: far past any engine's max_num_seqs */
    BT_MAX_INFLIGHT = 8,           /* steps planned but not finished; engines use 1 or 2 */
    BT_MAX_SPEC_K = 32,            /* draft tokens proposed at once */
    BT_MAX_BLOCK_TOKENS = 1 << 20, /* contiguous layout: a block is a whole sequence */
    BT_MAX_BLOCKS = 1 << 26,       /* KV blocks of a pool: 2^30 tokens at 16 a block */
    BT_MAX_PRIORITY = 15,          /* priority classes 0 (most urgent) to 15 */
    BT_MAX_REPLICAS = 1 << 16,     /* replicas of one run */
    BT_MAX_REQUESTS = 1 << 24,     /* requests resident in one scheduler */
};

#endif
