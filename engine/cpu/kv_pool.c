#include "engine/cpu/kv_pool.h"

#include "engine/model/dtype.h"
#include "engine/vec.h"

static uint8_t *plane_of(const struct bt_kv_pool *p, const struct bt_block_layout *l,
                         enum bt_kv_part_id part, int32_t layer, int32_t v, int32_t block)
{
    BT_DEBUG_ASSERT(block >= 0 && block < p->n_blocks);
    BT_DEBUG_ASSERT(layer >= 0 && layer < l->parts[part].n_layers);
    return p->blocks + (int64_t)block * l->block_bytes +
           bt_kv_plane_offset(&l->parts[part], layer, v);
}

static enum bt_dtype dtype_of(enum bt_kv_format f)
{
    return f == BT_KV_FP32 ? BT_DTYPE_F32 : f == BT_KV_FP16 ? BT_DTYPE_F16 : BT_DTYPE_BF16;
}

/* The scale is rounded to FP16 first, and the integers are of that scale. */
static void write_int8(const float *x, int32_t n, int8_t *dst, uint8_t *scale_at)
{
    float max_abs = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        max_abs = a > max_abs ? a : max_abs;
    }
    uint16_t stored = bt_f32_to_f16(max_abs / 127.0f);
    float scale = bt_f16_to_f32(stored);
    memcpy(scale_at, &stored, sizeof stored);
    for (int32_t i = 0; i < n; i++) {
        float r = scale > 0.0f ? rintf(x[i] / scale) : 0.0f;
        r = r < -127.0f ? -127.0f : r;
        r = r > 127.0f ? 127.0f : r;
        dst[i] = (int8_t)r;
    }
}

void bt_kv_pool_write(const struct bt_kv_pool *p, int32_t kv_class, enum bt_kv_part_id part,
                      int32_t layer, int32_t v, int32_t block, int32_t slot, const float *row)
{
    const struct bt_block_layout *l = &p->layout[kv_class];
    const struct bt_kv_part *m = &l->parts[part];
    BT_DEBUG_ASSERT(slot >= 0 && slot < l->block_tokens);
    uint8_t *plane = plane_of(p, l, part, layer, v, block);
    if (l->format != BT_KV_INT8) {
        enum bt_dtype t = dtype_of(l->format);
        int64_t at = bt_kv_element(m, slot, 0) * (int64_t)bt_dtype_bytes(t);
        bt_dtype_from_f32(t, row, plane + at, (size_t)(m->n_kv_heads * m->head_dim));
        return;
    }
    for (int32_t h = 0; h < m->n_kv_heads; h++) {
        int8_t *dst = (int8_t *)plane + bt_kv_element(m, slot, h);
        write_int8(row + (size_t)h * (size_t)m->head_dim, m->head_dim, dst,
                   plane + bt_kv_scale_offset(l, m, slot, h));
    }
}

static void read_int8(const int8_t *src, const uint8_t *scale_at, int32_t n, float *dst)
{
    uint16_t stored;
    memcpy(&stored, scale_at, sizeof stored);
    float scale = bt_f16_to_f32(stored);
    for (int32_t i = 0; i < n; i++) {
        dst[i] = (float)src[i] * scale;
    }
}

void bt_kv_pool_read(const struct bt_kv_pool *p, int32_t kv_class, enum bt_kv_part_id part,
                     int32_t layer, int32_t v, int32_t head, const int32_t *blocks, int32_t from,
                     int32_t to, float *dst, int32_t stride)
{
    const struct bt_block_layout *l = &p->layout[kv_class];
    const struct bt_kv_part *m = &l->parts[part];
    for (int32_t t = from; t < to; t++, dst += stride) {
        const uint8_t *plane = plane_of(p, l, part, layer, v, blocks[t / l->block_tokens]);
        int32_t slot = t % l->block_tokens;
        int64_t at = bt_kv_element(m, slot, head);
        if (l->format == BT_KV_INT8) {
            read_int8((const int8_t *)plane + at, plane + bt_kv_scale_offset(l, m, slot, head),
                      m->head_dim, dst);
        } else {
            enum bt_dtype d = dtype_of(l->format);
            bt_dtype_to_f32(d, plane + at * (int64_t)bt_dtype_bytes(d), dst, (size_t)m->head_dim);
        }
    }
}
