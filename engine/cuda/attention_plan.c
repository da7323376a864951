#include "engine/cuda/attention_plan.h"

#include <stdlib.h>

enum {
    WARPS = 4,        /* of a block of the streaming kernel */
    FEW_SEGMENTS = 8, /* up to here a block takes one KV head, and its warps share the keys */
    MAX_SPLITS = 128, /* of a tile: as many as its merge reads in little time */
    ITEM_WORDS = sizeof(struct bt_attn_item) / sizeof(int32_t),
    CHUNK_WORDS = sizeof(struct bt_attn_chunk) / sizeof(int32_t),
    HEAD_WORDS = sizeof(struct bt_attn_plan) / sizeof(int32_t),
};

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t ceil_div(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

int32_t bt_attn_block_heads(const struct bt_attn_shape *s, int32_t n_segments)
{
    if (n_segments <= FEW_SEGMENTS || s->n_kv_heads % 2 != 0) {
        return 1;
    }
    return s->n_kv_heads % 4 != 0 ? 2 : 4;
}

int32_t bt_attn_tile_rows(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments)
{
    return s->narrow || (int64_t)n_rows * s->group <= 8 * (int64_t)n_segments ? 8 : 16;
}

/* Items that fill the device once. */
static int32_t split_target(const struct bt_attn_shape *s, int32_t rows, int32_t n_segments)
{
    int32_t blocks_per_item = s->n_kv_heads / bt_attn_block_heads(s, n_segments);
    return max_i32(1, s->resident[rows / 16] / blocks_per_item);
}

static int32_t max_split_target(const struct bt_attn_shape *s)
{
    return max_i32(split_target(s, 8, INT32_MAX), split_target(s, 16, INT32_MAX));
}

static int32_t max_tiles(const struct bt_attn_shape *s, int32_t rows, int32_t n_rows,
                         int32_t n_segments)
{
    int64_t apart = (int64_t)n_rows * ceil_div(s->group, rows);
    int64_t packed = (int64_t)n_rows * s->group / rows + n_segments;
    return (int32_t)(apart < packed ? apart : packed);
}

int32_t bt_attn_max_items(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments)
{
    int32_t rows = bt_attn_tile_rows(s, n_rows, n_segments);
    return max_tiles(s, rows, n_rows, n_segments) + split_target(s, rows, n_segments);
}

int32_t bt_attn_max_chunks(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments)
{
    int32_t long_ones = min_i32(n_segments, n_rows / (BT_ATTN_STREAM_ROWS + 1));
    return (int32_t)((int64_t)n_rows * s->group / BT_ATTN_CHUNK_ROWS) + long_ones;
}

/* A tile that is split has more keys than total / target: there are fewer than `target` of them,
 * with fewer than twice as many splits. */
int32_t bt_attn_max_partials(const struct bt_attn_shape *s)
{
    return 2 * max_split_target(s);
}

int32_t bt_attn_max_split_tiles(const struct bt_attn_shape *s)
{
    return max_split_target(s);
}

int32_t bt_attn_plan_words(const struct bt_attn_shape *s, int32_t max_rows, int32_t max_segments)
{
    int32_t items = max_tiles(s, 8, max_rows, max_segments) + max_split_target(s);
    int32_t chunks = bt_attn_max_chunks(s, max_rows, max_segments);
    return HEAD_WORDS + 2 * s->n_classes * (items * ITEM_WORDS + chunks * CHUNK_WORDS);
}

/* The making of one list. */
struct maker {
    const struct bt_attn_shape *s;
    const struct bt_cuda_attn_segment *segments;
    int32_t n_segments, kv_class, window;
    int32_t rows;    /* of a tile */
    int32_t target;  /* items that fill the device */
    int32_t step;    /* keys that a block takes at once */
    int32_t longest; /* keys of a split */
};

struct span {
    int32_t from, to; /* keys */
};

/* What packed rows row0 .. row0 + rows - 1 of a segment see. */
static struct span keys_of(const struct maker *m, const struct bt_cuda_attn_segment *seg,
                           int32_t row0, int32_t rows)
{
    int32_t first = row0 / m->s->group;
    int32_t last = min_i32((row0 + rows - 1) / m->s->group, seg->n_rows - 1);
    struct span k = {.from = 0, .to = seg->pos0 + last + 1};
    if (m->window > 0) {
        k.from = max_i32(0, seg->pos0 + first - m->window + 1);
    }
    return k;
}

static bool is_streamed(const struct maker *m, const struct bt_cuda_attn_segment *seg)
{
    return seg->n_rows <= BT_ATTN_STREAM_ROWS || m->s->no_chunks[seg->kv_class];
}

/* Packed rows that the streaming kernel takes of a segment, in this list. */
static int32_t rows_streamed(const struct maker *m, const struct bt_cuda_attn_segment *seg)
{
    return seg->kv_class == m->kv_class && is_streamed(m, seg) ? seg->n_rows * m->s->group : 0;
}

static void find_split_length(struct maker *m)
{
    int64_t total = 0;
    int32_t deepest = 0;
    for (int32_t i = 0; i < m->n_segments; i++) {
        int32_t n = rows_streamed(m, &m->segments[i]);
        for (int32_t row0 = 0; row0 < n; row0 += m->rows) {
            struct span k = keys_of(m, &m->segments[i], row0, m->rows);
            total += k.to - k.from;
            deepest = max_i32(deepest, k.to - k.from);
        }
    }
    int32_t keys = max_i32(ceil_div(total, m->target), ceil_div(deepest, MAX_SPLITS));
    m->longest = max_i32(1, ceil_div(keys, m->step)) * m->step;
}

static int32_t make_items(const struct maker *m, struct bt_attn_item *items)
{
    int32_t n_items = 0;
    int32_t n_partials = 0;
    int32_t n_tiles = 0;
    for (int32_t i = 0; i < m->n_segments; i++) {
        int32_t n = rows_streamed(m, &m->segments[i]);
        for (int32_t row0 = 0; row0 < n; row0 += m->rows) {
            struct span k = keys_of(m, &m->segments[i], row0, m->rows);
            int32_t n_keys = k.to - k.from;
            int32_t even = ceil_div(n_keys, ceil_div(n_keys, m->longest));
            int32_t length = ceil_div(even, m->step) * m->step;
            int32_t n_splits = ceil_div(n_keys, length);
            for (int32_t split = 0; split < n_splits; split++) {
                items[n_items++] = (struct bt_attn_item){
                    .segment = i,
                    .row0 = row0,
                    .from = k.from + split * length,
                    .to = min_i32(k.to, k.from + (split + 1) * length),
                    .split = split,
                    .n_splits = n_splits,
                    .partial = n_partials,
                    .tile = n_tiles,
                };
            }
            n_partials += n_splits > 1 ? n_splits : 0;
            n_tiles += n_splits > 1;
        }
    }
    BT_ASSERT(n_partials <= bt_attn_max_partials(m->s));
    BT_ASSERT(n_tiles <= bt_attn_max_split_tiles(m->s));
    return n_items;
}

static int longest_first(const void *a, const void *b)
{
    const struct bt_attn_chunk *x = (const struct bt_attn_chunk *)a;
    const struct bt_attn_chunk *y = (const struct bt_attn_chunk *)b;
    if (x->n_keys != y->n_keys) {
        return x->n_keys > y->n_keys ? -1 : 1;
    }
    if (x->segment != y->segment) {
        return x->segment < y->segment ? -1 : 1;
    }
    return x->row0 < y->row0 ? -1 : x->row0 > y->row0;
}

static int32_t make_chunks(const struct maker *m, struct bt_attn_chunk *chunks)
{
    int32_t n_chunks = 0;
    for (int32_t i = 0; i < m->n_segments; i++) {
        const struct bt_cuda_attn_segment *seg = &m->segments[i];
        if (seg->kv_class != m->kv_class || is_streamed(m, seg)) {
            continue;
        }
        for (int32_t row0 = 0; row0 < seg->n_rows * m->s->group; row0 += BT_ATTN_CHUNK_ROWS) {
            struct span k = keys_of(m, seg, row0, BT_ATTN_CHUNK_ROWS);
            chunks[n_chunks++] =
                (struct bt_attn_chunk){.segment = i, .row0 = row0, .n_keys = k.to - k.from};
        }
    }
    qsort(chunks, (size_t)n_chunks, sizeof *chunks, longest_first);
    return n_chunks;
}

void bt_attn_plan_make(const struct bt_attn_shape *s, const struct bt_cuda_attn_segment *segments,
                       int32_t n_rows, int32_t n_segments, bool decode, int32_t *plan)
{
    struct maker m = {
        .s = s,
        .segments = segments,
        .n_segments = n_segments,
        .rows = bt_attn_tile_rows(s, n_rows, n_segments),
    };
    m.target = split_target(s, m.rows, n_segments);
    struct bt_attn_plan *head = (struct bt_attn_plan *)plan;
    *head = (struct bt_attn_plan){0};
    int32_t at = HEAD_WORDS;
    for (int32_t list = 0; list < BT_ATTN_LISTS; list++) {
        m.kv_class = list % BT_CUDA_KV_CLASSES;
        m.window = list < BT_CUDA_KV_CLASSES ? 0 : s->window;
        if (m.kv_class >= s->n_classes || (list >= BT_CUDA_KV_CLASSES && s->window == 0)) {
            continue;
        }
        m.step = s->quantum[m.kv_class] * WARPS / bt_attn_block_heads(s, n_segments);
        struct bt_attn_list *l = &head->lists[list];
        find_split_length(&m);
        l->items_at = at;
        l->n_items = make_items(&m, (struct bt_attn_item *)(plan + at));
        BT_ASSERT(l->n_items <= bt_attn_max_items(s, n_rows, n_segments));
        at += l->n_items * ITEM_WORDS;
        l->chunks_at = at;
        l->n_chunks = make_chunks(&m, (struct bt_attn_chunk *)(plan + at));
        BT_ASSERT(!decode || l->n_chunks == 0);
        BT_ASSERT(l->n_chunks <= bt_attn_max_chunks(s, n_rows, n_segments));
        at += l->n_chunks * CHUNK_WORDS;
    }
}
