/* Plans are host arithmetic: tested without a GPU. */
#include "engine/core/rng.h"
#include "engine/cuda/attention_plan.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { SEGMENTS = 24, MAX_LEN = 3000, TRIES = 300 };

struct seen {
    uint8_t *by_key; /* [segment][packed row][key] how often */
    int32_t rows, keys;
};

static uint8_t *seen_at(const struct seen *s, int32_t segment, int32_t row, int32_t key)
{
    return &s->by_key[((size_t)segment * (size_t)s->rows + (size_t)row) * (size_t)s->keys +
                      (size_t)key];
}

static int32_t lowest(const struct bt_cuda_attn_segment *seg, int32_t token, int32_t window)
{
    int32_t lo = window > 0 ? seg->pos0 + token - window + 1 : 0;
    return lo > 0 ? lo : 0;
}

static int32_t first_row_of(const struct bt_cuda_attn_segment *segments, int32_t segment)
{
    int32_t row = 0;
    for (int32_t i = 0; i < segment; i++) {
        row += segments[i].n_rows;
    }
    return row;
}

/* Every key that a row sees is in one item of its tile, or its row is in one chunk; splits of a
 * tile follow each other; what is written stays within what was promised. */
static void check_list(const struct bt_attn_shape *s, const struct bt_cuda_attn_segment *segments,
                       int32_t n_segments, int32_t n_rows, int32_t list, const int32_t *plan)
{
    const struct bt_attn_plan *head = (const struct bt_attn_plan *)plan;
    struct bt_attn_list_at at = bt_attn_list_at(s, n_rows, n_segments, list);
    const struct bt_attn_item *items = (const struct bt_attn_item *)(plan + at.items);
    const struct bt_attn_chunk *chunks = (const struct bt_attn_chunk *)(plan + at.chunks);
    int32_t n_shares = bt_attn_n_shares(s, bt_attn_tile_rows(s, n_rows, n_segments));
    const int32_t *shares = plan + at.shares;
    int32_t n_items = shares[n_shares];
    cr_assert_eq(shares[0], 0);
    for (int32_t i = 0; i < n_shares; i++) {
        cr_assert_leq(shares[i], shares[i + 1]);
    }
    cr_assert_leq(at.items + n_items * (int32_t)(sizeof *items / 4), at.chunks);
    int32_t n_chunks = head->n_chunks[list];
    cr_assert_leq(n_chunks, bt_attn_max_chunks(s, n_rows, n_segments));
    int32_t kv_class = list % BT_CUDA_KV_CLASSES;
    int32_t window = list < BT_CUDA_KV_CLASSES ? 0 : s->window;
    int32_t rows = bt_attn_tile_rows(s, n_rows, n_segments);
    struct seen seen = {.rows = 64 * s->group, .keys = MAX_LEN};
    seen.by_key = calloc((size_t)n_segments * (size_t)seen.rows * MAX_LEN, 1);
    int32_t next_partial = 0;
    int32_t next_tile = 0;
    for (int32_t i = 0; i < n_items; i++) {
        const struct bt_attn_item *it = &items[i];
        cr_assert_eq(segments[it->segment].kv_class, kv_class);
        cr_assert_lt(it->from, it->to);
        cr_assert_eq(it->row0 % rows, 0);
        if (it->n_splits > 1) {
            cr_assert_eq(it->partial, next_partial);
            cr_assert_eq(it->tile, next_tile);
            cr_assert(it->split == 0 || items[i - 1].to == it->from);
            if (it->split == it->n_splits - 1) {
                next_partial += it->n_splits;
                next_tile++;
            }
        }
        int32_t n = segments[it->segment].n_rows * s->group;
        cr_assert_eq(it->n_rows, n);
        cr_assert_leq(it->n_splits, BT_ATTN_MAX_SPLITS);
        cr_assert_eq(it->pos0, segments[it->segment].pos0);
        cr_assert_eq(it->first_row, first_row_of(segments, it->segment));
        for (int32_t r = it->row0; r < it->row0 + rows && r < n; r++) {
            for (int32_t k = it->from; k < it->to; k++) {
                (*seen_at(&seen, it->segment, r, k))++;
            }
        }
    }
    cr_assert_leq(next_partial, bt_attn_max_partials(s));
    cr_assert_leq(next_tile, bt_attn_max_split_tiles(s));
    for (int32_t i = 0; i < n_chunks; i++) {
        const struct bt_attn_chunk *c = &chunks[i];
        cr_assert_eq(segments[c->segment].kv_class, kv_class);
        cr_assert(i == 0 || chunks[i - 1].n_keys >= c->n_keys);
        int32_t n = segments[c->segment].n_rows * s->group;
        cr_assert_eq(c->n_rows, n);
        cr_assert_eq(c->pos0, segments[c->segment].pos0);
        cr_assert_eq(c->first_row, first_row_of(segments, c->segment));
        for (int32_t r = c->row0; r < c->row0 + BT_ATTN_CHUNK_ROWS && r < n; r++) {
            for (int32_t k = 0; k < segments[c->segment].pos0 + r / s->group + 1; k++) {
                (*seen_at(&seen, c->segment, r, k))++;
            }
        }
    }
    for (int32_t i = 0; i < n_segments; i++) {
        for (int32_t r = 0; r < segments[i].n_rows * s->group; r++) {
            int32_t position = segments[i].pos0 + r / s->group;
            for (int32_t k = lowest(&segments[i], r / s->group, window); k <= position; k++) {
                int32_t want = segments[i].kv_class == kv_class;
                cr_assert_eq(*seen_at(&seen, i, r, k), want, "segment %d row %d key %d", i, r, k);
            }
        }
    }
    free(seen.by_key);
}

Test(attention_plan, every_key_of_every_row_is_read_once)
{
    struct bt_rng rng;
    bt_rng_init(&rng, 5, "plan", 0);
    static const int32_t groups[] = {1, 4, 7, 8, 20};
    static const int32_t kv_heads[] = {1, 2, 5, 8, 40};
    for (int32_t i = 0; i < TRIES; i++) {
        struct bt_attn_shape s = {
            .group = groups[bt_rng_below(&rng, 5)],
            .n_kv_heads = kv_heads[bt_rng_below(&rng, 5)],
            .window = bt_rng_below(&rng, 2) == 0 ? 0 : 1 + (int32_t)bt_rng_below(&rng, 500),
            .n_classes = 1 + (int32_t)bt_rng_below(&rng, 2),
            .resident = {264 + (int32_t)bt_rng_below(&rng, 200), 264},
            .step = {128, 64},
            .narrow = bt_rng_below(&rng, 4) == 0,
        };
        s.no_chunks[0] = s.narrow;
        bool decode = bt_rng_below(&rng, 2) == 0;
        struct bt_cuda_attn_segment segments[SEGMENTS] = {{0}};
        int32_t live = 1 + (int32_t)bt_rng_below(&rng, i % 3 == 0 ? 3 : 8);
        int32_t n_rows = (int32_t)bt_rng_below(&rng, 5);
        for (int32_t j = 0; j < live; j++) {
            int32_t most = decode ? BT_ATTN_STREAM_ROWS : 64;
            segments[j].n_rows = i % 2 == 0 ? 1 : 1 + (int32_t)bt_rng_below(&rng, (uint64_t)most);
            segments[j].pos0 =
                (int32_t)bt_rng_below(&rng, (uint64_t)(MAX_LEN - segments[j].n_rows + 1));
            segments[j].kv_class = (int32_t)bt_rng_below(&rng, (uint64_t)s.n_classes);
            n_rows += segments[j].n_rows;
        }
        int32_t n_segments = live + (int32_t)bt_rng_below(&rng, (uint64_t)(SEGMENTS - live));
        n_segments = n_segments > n_rows ? n_rows : n_segments;
        n_segments = n_segments < live ? live : n_segments;
        int32_t words = bt_attn_plan_words(&s, n_rows, n_segments);
        cr_assert_leq(words, bt_attn_max_plan_words(&s, n_rows, n_segments));
        cr_assert_leq(words, bt_attn_max_plan_words(&s, n_rows + 3, n_segments + 2));
        int32_t *plan = malloc((size_t)(words + 1) * sizeof *plan);
        memset(plan, 0x5a, (size_t)(words + 1) * sizeof *plan);
        bt_attn_plan_make(&s, segments, n_rows, n_segments, decode, plan);
        cr_assert_eq(plan[words], 0x5a5a5a5a, "words beyond the plan were written");
        for (int32_t list = 0; list < BT_ATTN_LISTS; list++) {
            if (list % 2 < s.n_classes && (list < 2 || s.window > 0)) {
                check_list(&s, segments, n_segments, n_rows, list, plan);
            }
        }
        free(plan);
    }
}

static int32_t keys_of_share(const int32_t *plan, struct bt_attn_list_at at, int32_t share)
{
    const struct bt_attn_item *items = (const struct bt_attn_item *)(plan + at.items);
    int32_t keys = 0;
    for (int32_t i = plan[at.shares + share]; i < plan[at.shares + share + 1]; i++) {
        keys += items[i].to - items[i].from;
    }
    return keys;
}

Test(attention_plan, shares_are_even)
{
    struct bt_attn_shape s = {
        .group = 4, .n_kv_heads = 8, .n_classes = 1, .resident = {396, 264}, .step = {16, 16}};
    struct bt_cuda_attn_segment segments[32];
    int32_t total = 0;
    for (int32_t i = 0; i < 32; i++) {
        segments[i] = (struct bt_cuda_attn_segment){.n_rows = 1, .pos0 = 500 + 113 * i};
        total += segments[i].pos0 + 1;
    }
    int32_t *plan = malloc((size_t)bt_attn_plan_words(&s, 32, 32) * sizeof *plan);
    for (int32_t n = 1; n <= 32; n += 31) { /* of one, of all */
        bt_attn_plan_make(&s, segments + 32 - n, n, n, true, plan);
        struct bt_attn_list_at at = bt_attn_list_at(&s, n, n, 0);
        int32_t n_shares = bt_attn_n_shares(&s, 8);
        cr_assert_eq(n_shares, 49);
        int32_t sum = n == 1 ? segments[31].pos0 + 1 : total;
        for (int32_t i = 0; i < n_shares; i++) {
            int32_t keys = keys_of_share(plan, at, i);
            cr_expect_leq(keys, sum / n_shares + 2 * 64, "%d keys in share %d", keys, i);
        }
    }
    free(plan);
}
