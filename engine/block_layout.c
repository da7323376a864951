#include "engine/block_layout.h"

#include <stddef.h>

static int64_t plane_bytes(const struct bt_block_layout *l, const struct bt_kv_part *p)
{
    int64_t head_bytes = (int64_t)p->head_dim * bt_kv_format_bits(l->format) / 8;
    int64_t scale_bytes = l->format == BT_KV_INT8 ? 2 : 0;
    return (int64_t)l->block_tokens * p->n_kv_heads * (head_bytes + scale_bytes);
}

/* Bytes of one slot through all layers of both parts. */
static int64_t place_parts(struct bt_block_layout *l)
{
    int64_t at = 0;
    for (int32_t i = 0; i < BT_KV_PARTS; i++) {
        struct bt_kv_part *p = &l->parts[i];
        p->offset_bytes = at;
        p->plane_bytes = plane_bytes(l, p);
        at += 2 * p->n_layers * p->plane_bytes;
    }
    return at;
}

static struct bt_kv_part part_of(const struct bt_arch *a)
{
    return (struct bt_kv_part){
        .n_layers = a->n_layers,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
    };
}

enum bt_code bt_block_layout_init(struct bt_block_layout *l, const struct bt_arch *target,
                                  const struct bt_arch *draft, enum bt_kv_format format,
                                  int32_t block_tokens, struct bt_error *err)
{
    if (block_tokens < 1) {
        BT_FAIL(err, BT_ERR_ARG, block_tokens, "block: %d tokens must be 1 or more", block_tokens);
    }
    if (format == BT_KV_DEFAULT || format == BT_KV_FP8) {
        BT_FAIL(err, BT_ERR_ARG, format, "kv: \"%s\" has no executor (fp32, fp16, bf16, int8)",
                bt_kv_format_name(format));
    }
    *l = (struct bt_block_layout){.format = format, .block_tokens = block_tokens};
    l->parts[BT_KV_PART_TARGET] = part_of(target);
    if (draft != NULL) {
        l->parts[BT_KV_PART_DRAFT] = part_of(draft);
    }
    l->block_bytes = place_parts(l);
    return BT_OK;
}

enum bt_code bt_block_layout_init_16bit(struct bt_block_layout *l,
                                        const struct bt_block_layout *pool,
                                        enum bt_kv_format format, struct bt_error *err)
{
    BT_ASSERT(format == BT_KV_FP16 || format == BT_KV_BF16);
    *l = *pool;
    l->format = format;
    l->block_tokens = 1;
    int64_t token_bytes = place_parts(l);
    l->block_tokens = (int32_t)(pool->block_bytes / token_bytes);
    if (l->block_tokens < 1) {
        BT_FAIL(err, BT_ERR_ARG, pool->block_tokens,
                "block: %d tokens of %s take %lld bytes, less than one 16-bit token (%lld)",
                pool->block_tokens, bt_kv_format_name(pool->format), (long long)pool->block_bytes,
                (long long)token_bytes);
    }
    (void)place_parts(l);
    l->block_bytes = pool->block_bytes;
    return BT_OK;
}
