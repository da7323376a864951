#include "engine/cuda/attention_plan.h"

#include <stdlib.h>

enum {
    MIN_GROUPS = 8, /* of KV heads */
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

int32_t bt_attn_block_heads(const struct bt_attn_shape *s)
{
    return s->n_kv_heads % 2 == 0 && s->n_kv_heads / 2 >= MIN_GROUPS ? 2 : 1;
}

int32_t bt_attn_tile_rows(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments)
{
    return s->narrow || (int64_t)n_rows * s->group <= 8 * (int64_t)n_segments ? 8 : 16;
}

int32_t bt_attn_n_shares(const struct bt_attn_shape *s, int32_t rows)
{
    return max_i32(1, s->resident[rows / 16] * bt_attn_block_heads(s) / s->n_kv_heads);
}

static int32_t max_tiles(const struct bt_attn_shape *s, int32_t rows, int32_t n_rows,
                         int32_t n_segments)
{
    int64_t apart = (int64_t)n_rows * ceil_div(s->group, rows);
    int64_t packed = (int64_t)n_rows * s->group / rows + n_segments;
    return (int32_t)(apart < packed ? apart : packed);
}

int32_t bt_attn_max_chunks(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments)
{
    int32_t long_ones = min_i32(n_segments, n_rows / (BT_ATTN_STREAM_ROWS + 1));
    return (int32_t)((int64_t)n_rows * s->group / BT_ATTN_CHUNK_ROWS) + long_ones;
}

/* A share has at most two pieces of tiles that are split: its first and its last. */
int32_t bt_attn_max_partials(const struct bt_attn_shape *s)
{
    return 2 * bt_attn_max_split_tiles(s);
}

int32_t bt_attn_max_split_tiles(const struct bt_attn_shape *s)
{
    return max_i32(bt_attn_n_shares(s, 8), bt_attn_n_shares(s, 16));
}

/* Lists that are made: of each class, and again for layers that slide if there are any. */
static int32_t n_lists(const struct bt_attn_shape *s)
{
    return s->window > 0 ? 2 * s->n_classes : s->n_classes;
}

struct bt_attn_list_at bt_attn_list_at(const struct bt_attn_shape *s, int32_t n_rows,
                                       int32_t n_segments, int32_t list)
{
    int32_t rows = bt_attn_tile_rows(s, n_rows, n_segments);
    int32_t n_shares = bt_attn_n_shares(s, rows);
    int32_t items = (max_tiles(s, rows, n_rows, n_segments) + n_shares) * ITEM_WORDS;
    int32_t chunks = bt_attn_max_chunks(s, n_rows, n_segments) * CHUNK_WORDS;
    int32_t before = list / BT_KV_CLASSES * s->n_classes + list % BT_KV_CLASSES;
    struct bt_attn_list_at at;
    at.shares = HEAD_WORDS + before * (n_shares + 1 + items + chunks);
    at.items = at.shares + n_shares + 1;
    at.chunks = at.items + items;
    at.end = at.chunks + chunks;
    return at;
}

int32_t bt_attn_plan_words(const struct bt_attn_shape *s, int32_t n_rows, int32_t n_segments)
{
    struct bt_attn_list_at first = bt_attn_list_at(s, n_rows, n_segments, 0);
    return HEAD_WORDS + n_lists(s) * (first.end - first.shares);
}

int32_t bt_attn_max_plan_words(const struct bt_attn_shape *s, int32_t max_rows,
                               int32_t max_segments)
{
    int32_t n_shares = bt_attn_max_split_tiles(s);
    int32_t items = (max_tiles(s, 8, max_rows, max_segments) + n_shares) * ITEM_WORDS;
    int32_t chunks = bt_attn_max_chunks(s, max_rows, max_segments) * CHUNK_WORDS;
    return HEAD_WORDS + n_lists(s) * (n_shares + 1 + items + chunks);
}

/* The making of one list. */
struct maker {
    const struct bt_attn_shape *s;
    const struct bt_cuda_attn_segment *segments;
    int32_t n_segments, kv_class, window;
    int32_t rows; /* of a tile */
    int32_t step; /* keys that a block takes at once */
    int32_t n_shares;
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

static int32_t steps_of(const struct maker *m, struct span k)
{
    return ceil_div(k.to - k.from, m->step);
}

/* What a share may cost: its steps, and a step more for the beginning and end of each item. */
static int32_t find_share(const struct maker *m)
{
    int64_t cost = m->n_shares; /* cuts make items too */
    int32_t deepest = 0;
    for (int32_t i = 0; i < m->n_segments; i++) {
        int32_t n = rows_streamed(m, &m->segments[i]);
        for (int32_t row0 = 0; row0 < n; row0 += m->rows) {
            int32_t steps = steps_of(m, keys_of(m, &m->segments[i], row0, m->rows));
            cost += steps + 1;
            deepest = max_i32(deepest, steps);
        }
    }
    return max_i32(ceil_div(cost, m->n_shares), ceil_div(deepest, BT_ATTN_MAX_SPLITS - 1) + 1);
}

/* What is being dealt out. */
struct dealer {
    struct bt_attn_item *items;
    int32_t *shares;
    int32_t n_items, n_partials, n_tiles;
    int32_t share; /* being filled */
    int32_t room;  /* of it */
};

/* Deals out one tile, cut where shares are full. */
static void deal_tile(const struct maker *m, struct dealer *d, int32_t share_cost,
                      struct bt_attn_item tile)
{
    int32_t first = d->n_items;
    tile.partial = d->n_partials;
    tile.tile = d->n_tiles;
    int32_t to = tile.to;
    while (tile.from < to) {
        if (d->room <= 0) {
            d->room = share_cost;
            d->shares[++d->share] = d->n_items;
        }
        int32_t steps = max_i32(1, d->room - 1);
        tile.to = min_i32(to, tile.from + steps * m->step);
        d->room -= ceil_div(tile.to - tile.from, m->step) + 1;
        d->items[d->n_items++] = tile;
        tile.from = tile.to;
        tile.split++;
    }
    for (int32_t i = first; i < d->n_items; i++) {
        d->items[i].n_splits = tile.split;
    }
    d->n_partials += tile.split > 1 ? tile.split : 0;
    d->n_tiles += tile.split > 1;
}

static void make_items(const struct maker *m, int32_t *shares, struct bt_attn_item *items)
{
    int32_t share_cost = find_share(m);
    struct dealer d = {.items = items, .shares = shares, .room = share_cost};
    shares[0] = 0;
    int32_t first_row = 0;
    for (int32_t i = 0; i < m->n_segments; i++) {
        int32_t n = rows_streamed(m, &m->segments[i]);
        for (int32_t row0 = 0; row0 < n; row0 += m->rows) {
            struct span k = keys_of(m, &m->segments[i], row0, m->rows);
            struct bt_attn_item tile = {
                .segment = i,
                .first_row = first_row,
                .n_rows = n,
                .pos0 = m->segments[i].pos0,
                .row0 = row0,
                .from = k.from,
                .to = k.to,
            };
            deal_tile(m, &d, share_cost, tile);
        }
        first_row += m->segments[i].n_rows;
    }
    BT_ASSERT(d.share < m->n_shares);
    BT_ASSERT(d.n_partials <= bt_attn_max_partials(m->s));
    BT_ASSERT(d.n_tiles <= bt_attn_max_split_tiles(m->s));
    while (d.share < m->n_shares) {
        shares[++d.share] = d.n_items;
    }
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
    int32_t first_row = 0;
    for (int32_t i = 0; i < m->n_segments; i++) {
        const struct bt_cuda_attn_segment *seg = &m->segments[i];
        bool mine = seg->kv_class == m->kv_class && !is_streamed(m, seg);
        int32_t n = mine ? seg->n_rows * m->s->group : 0;
        for (int32_t row0 = 0; row0 < n; row0 += BT_ATTN_CHUNK_ROWS) {
            struct span k = keys_of(m, seg, row0, BT_ATTN_CHUNK_ROWS);
            chunks[n_chunks++] = (struct bt_attn_chunk){
                .segment = i,
                .first_row = first_row,
                .n_rows = n,
                .pos0 = seg->pos0,
                .row0 = row0,
                .n_keys = k.to - k.from,
            };
        }
        first_row += seg->n_rows;
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
    m.n_shares = bt_attn_n_shares(s, m.rows);
    struct bt_attn_plan *head = (struct bt_attn_plan *)plan;
    *head = (struct bt_attn_plan){0};
    for (int32_t list = 0; list < BT_ATTN_LISTS; list++) {
        m.kv_class = list % BT_KV_CLASSES;
        m.window = list < BT_KV_CLASSES ? 0 : s->window;
        if (m.kv_class >= s->n_classes || (list >= BT_KV_CLASSES && s->window == 0)) {
            continue;
        }
        m.step = s->step[m.kv_class] * (BT_ATTN_WARPS / bt_attn_block_heads(s));
        struct bt_attn_list_at at = bt_attn_list_at(s, n_rows, n_segments, list);
        make_items(&m, plan + at.shares, (struct bt_attn_item *)(plan + at.items));
        head->n_chunks[list] = make_chunks(&m, (struct bt_attn_chunk *)(plan + at.chunks));
        BT_ASSERT(head->n_chunks[list] <= bt_attn_max_chunks(s, n_rows, n_segments));
        BT_ASSERT(!decode || head->n_chunks[list] == 0);
    }
}
