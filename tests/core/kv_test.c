#include "engine/core/kv.h"
#include "engine/core/limits.h"
#include "engine/core/rng.h"

#include <criterion/criterion.h>

#include <signal.h>
#include <string.h>

static struct bt_arena arena;

static struct bt_kv *pool(int32_t n_blocks, int32_t n_host, bool cache)
{
    struct bt_kv_opts opts = {.n_blocks = n_blocks, .n_host_blocks = n_host, .prefix_cache = cache};
    struct bt_kv *kv = NULL;
    struct bt_error err = {0};
    cr_assert_eq(bt_kv_create(&arena, &opts, &kv, &err), BT_OK, "%s", err.msg);
    return kv;
}

static void setup(void)
{
    bt_arena_init(&arena, 0);
}

static void teardown(void)
{
    bt_arena_fini(&arena);
}

TestSuite(kv, .init = setup, .fini = teardown);

static struct bt_kv_key key_of(uint64_t own)
{
    return (struct bt_kv_key){.own = own, .parent = own / 3 + 1};
}

Test(kv, create_names_the_bad_count)
{
    static const struct {
        const char *name;
        struct bt_kv_opts opts;
        const char *msg;
    } cases[] = {
        {"zero", {.n_blocks = 0}, "kv.n_blocks: 0 must be in 1..67108864"},
        {"negative", {.n_blocks = -3}, "kv.n_blocks: -3 must be in 1..67108864"},
        {"huge", {.n_blocks = BT_MAX_BLOCKS + 1}, "kv.n_blocks: 67108865 must be in 1..67108864"},
        {"host",
         {.n_blocks = 1, .n_host_blocks = -1},
         "kv.n_host_blocks: -1 must be in 0..67108864"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bt_error err = {0};
        struct bt_kv *kv = NULL;
        cr_expect_eq(bt_kv_create(&arena, &cases[i].opts, &kv, &err), BT_ERR_ARG, "%s",
                     cases[i].name);
        cr_expect_null(kv);
        cr_expect_str_eq(err.msg, cases[i].msg);
    }
}

Test(kv, every_refused_allocation_is_reported)
{
    struct bt_kv_opts opts = {.n_blocks = 10, .n_host_blocks = 4, .prefix_cache = true};
    int32_t n_failed = 0;
    for (int32_t at = 1;; at++) {
        struct bt_error err = {0};
        struct bt_kv *kv = NULL;
        arena.failnext = at;
        enum bt_code code = bt_kv_create(&arena, &opts, &kv, &err);
        if (code == BT_OK) {
            cr_expect_not_null(kv);
            bt_kv_check(kv);
            break;
        }
        n_failed++;
        cr_assert_eq(code, BT_ERR_NOMEM);
        cr_expect_null(kv);
        cr_expect_not_null(strstr(err.msg, "no memory"));
    }
    cr_expect_eq(n_failed, 7);
}

Test(kv, acquire_is_all_or_nothing)
{
    struct bt_kv *kv = pool(5, 0, true);
    int32_t b[6];
    cr_expect_not(bt_kv_acquire(kv, 6, b));
    cr_expect_eq(bt_kv_n_available(kv), 5);
    cr_expect(bt_kv_acquire(kv, 0, b));
    cr_assert(bt_kv_acquire(kv, 5, b));
    cr_expect_eq(bt_kv_n_used(kv), 5);
    cr_expect_not(bt_kv_acquire(kv, 1, b));
    bt_kv_release_n(kv, b, 5);
    cr_expect_eq(bt_kv_n_available(kv), 5);
    bt_kv_check(kv);
}

Test(kv, double_release_asserts, .signal = SIGABRT)
{
    struct bt_kv *kv = pool(2, 0, true);
    int32_t b[1];
    cr_assert(bt_kv_acquire(kv, 1, b));
    bt_kv_release(kv, b[0]);
    bt_kv_release(kv, b[0]);
}

Test(kv, release_of_a_cached_block_asserts, .signal = SIGABRT)
{
    struct bt_kv *kv = pool(2, 0, true);
    int32_t b[1];
    cr_assert(bt_kv_acquire(kv, 1, b));
    cr_assert(bt_kv_publish(kv, b[0], key_of(9)));
    bt_kv_release(kv, b[0]);
    bt_kv_release(kv, b[0]);
}

Test(kv, block_outside_the_pool_asserts, .signal = SIGABRT)
{
    bt_kv_release(pool(2, 0, true), 2);
}

Test(kv, retain_of_a_free_block_asserts, .signal = SIGABRT)
{
    bt_kv_retain(pool(2, 0, true), 0);
}

Test(kv, second_key_of_a_used_block_asserts, .signal = SIGABRT)
{
    struct bt_kv *kv = pool(2, 0, true);
    int32_t b[1];
    cr_assert(bt_kv_acquire(kv, 1, b));
    cr_assert(bt_kv_publish(kv, b[0], key_of(9)));
    (void)bt_kv_publish(kv, b[0], key_of(10));
}

Test(kv, double_host_release_asserts, .signal = SIGABRT)
{
    struct bt_kv *kv = pool(2, 2, true);
    int32_t b[1];
    cr_assert(bt_kv_host_acquire(kv, 1, b));
    bt_kv_host_release(kv, b, 1);
    bt_kv_host_release(kv, b, 1);
}

Test(kv, both_words_of_a_key_must_agree)
{
    struct bt_kv *kv = pool(4, 0, true);
    int32_t b[2];
    struct bt_kv_key k0 = {.own = 77, .parent = 1}, k1 = {.own = 77, .parent = 2};
    cr_assert(bt_kv_acquire(kv, 2, b));
    cr_assert(bt_kv_publish(kv, b[0], k0));
    bool cached = true;
    cr_expect_eq(bt_kv_peek(kv, k1, &cached), BT_KV_NONE);
    cr_expect_not(cached);
    cr_expect_eq(bt_kv_lookup(kv, k1), BT_KV_NONE);
    cr_assert(bt_kv_publish(kv, b[1], k1));
    cr_expect_eq(bt_kv_lookup(kv, k0), b[0]);
    cr_expect_eq(bt_kv_lookup(kv, k1), b[1]);
    cr_expect_eq(bt_kv_ref_count(kv, b[0]), 2);
    bt_kv_check(kv);
}

Test(kv, the_older_block_stays_the_known_one)
{
    struct bt_kv *kv = pool(4, 0, true);
    int32_t b[2];
    cr_assert(bt_kv_acquire(kv, 2, b));
    cr_expect(bt_kv_publish(kv, b[0], key_of(5)));
    cr_expect(bt_kv_publish(kv, b[0], key_of(5)), "the same key again");
    cr_expect_not(bt_kv_publish(kv, b[1], key_of(5)));
    bt_kv_release(kv, b[1]);
    cr_expect_eq(bt_kv_n_cached(kv), 0, "the younger twin has no key: it is free, not cached");
    bt_kv_release(kv, b[0]);
    cr_expect_eq(bt_kv_n_cached(kv), 1);
    bt_kv_check(kv);
}

/* A sequence of four full blocks is released; as memory is needed the deepest goes first, so what
 * remains is always a usable prefix. */
Test(kv, deeper_blocks_are_evicted_first)
{
    struct bt_kv *kv = pool(4, 0, true);
    int32_t b[4], got[1];
    cr_assert(bt_kv_acquire(kv, 4, b));
    for (int i = 0; i < 4; i++) {
        cr_assert(bt_kv_publish(kv, b[i], key_of((uint64_t)i + 1)));
    }
    bt_kv_release_n(kv, b, 4);
    cr_expect_eq(bt_kv_n_cached(kv), 4);
    for (int left = 3; left >= 0; left--) {
        cr_assert(bt_kv_acquire(kv, 1, got));
        cr_expect_eq(got[0], b[left]);
        for (int i = 0; i < 4; i++) {
            bool cached;
            int32_t at = bt_kv_peek(kv, key_of((uint64_t)i + 1), &cached);
            cr_expect_eq(at, i < left ? b[i] : BT_KV_NONE);
            cr_expect_eq(cached, i < left);
        }
        bt_kv_check(kv);
    }
}

Test(kv, a_lookup_renews_a_cached_block)
{
    struct bt_kv *kv = pool(2, 0, true);
    int32_t b[2], got[1];
    cr_assert(bt_kv_acquire(kv, 2, b));
    cr_assert(bt_kv_publish(kv, b[0], key_of(1)));
    cr_assert(bt_kv_publish(kv, b[1], key_of(2)));
    bt_kv_release(kv, b[0]);
    bt_kv_release(kv, b[1]);
    bool cached;
    cr_expect_eq(bt_kv_peek(kv, key_of(1), &cached), b[0]); /* a peek does not renew */
    cr_expect_eq(bt_kv_lookup(kv, key_of(1)), b[0]);
    bt_kv_release(kv, b[0]);
    cr_assert(bt_kv_acquire(kv, 1, got));
    cr_expect_eq(got[0], b[1]);
}

Test(kv, without_prefix_cache_nothing_is_kept)
{
    struct bt_kv *kv = pool(2, 0, false);
    int32_t b[1];
    bool cached;
    cr_assert(bt_kv_acquire(kv, 1, b));
    cr_expect_not(bt_kv_publish(kv, b[0], key_of(1)));
    bt_kv_release(kv, b[0]);
    cr_expect_eq(bt_kv_n_cached(kv), 0);
    cr_expect_eq(bt_kv_lookup(kv, key_of(1)), BT_KV_NONE);
    cr_expect_eq(bt_kv_peek(kv, key_of(1), &cached), BT_KV_NONE);
    bt_kv_cache_clear(kv);
    bt_kv_check(kv);
}

/* Random operations against a model that knows nothing of lists or hashing. */

enum { MODEL_BLOCKS = 40, MODEL_KEYS = 24, N_SEQUENCES = 10000, N_OPS = 60 };

struct model {
    int32_t n_blocks;
    int32_t ref[MODEL_BLOCKS];
    uint64_t key[MODEL_BLOCKS];     /* 0: none */
    int64_t released[MODEL_BLOCKS]; /* when it became cached */
    int64_t clock;
    int32_t n_host;
    bool host[MODEL_BLOCKS];
};

static int32_t model_count(const struct model *m, bool used, bool cached)
{
    int32_t n = 0;
    for (int32_t b = 0; b < m->n_blocks; b++) {
        n += (used && m->ref[b] > 0) || (cached && m->ref[b] == 0 && m->key[b] != 0);
    }
    return n;
}

static int32_t model_find(const struct model *m, uint64_t key)
{
    for (int32_t b = 0; b < m->n_blocks; b++) {
        if (m->key[b] == key) {
            return b;
        }
    }
    return BT_KV_NONE;
}

static int32_t model_oldest_cached(const struct model *m)
{
    int32_t oldest = BT_KV_NONE;
    for (int32_t b = 0; b < m->n_blocks; b++) {
        if (m->ref[b] == 0 && m->key[b] != 0 &&
            (oldest == BT_KV_NONE || m->released[b] < m->released[oldest])) {
            oldest = b;
        }
    }
    return oldest;
}

static void do_acquire(struct bt_kv *kv, struct model *m, int32_t n)
{
    int32_t out[MODEL_BLOCKS + 1];
    int32_t n_used = model_count(m, true, false);
    bool fits = n <= m->n_blocks - n_used;
    cr_assert_eq(bt_kv_acquire(kv, n, out), fits);
    for (int32_t i = 0; fits && i < n; i++) {
        bool has_free = m->n_blocks > model_count(m, true, true);
        cr_assert_eq(m->ref[out[i]], 0);
        if (has_free) {
            cr_assert_eq(m->key[out[i]], 0, "a free block comes before a cached one");
        } else {
            cr_assert_eq(out[i], model_oldest_cached(m));
        }
        m->ref[out[i]] = 1;
        m->key[out[i]] = 0;
    }
}

static void do_release(struct bt_kv *kv, struct model *m, int32_t b)
{
    bt_kv_release(kv, b);
    if (--m->ref[b] == 0) {
        m->released[b] = ++m->clock;
    }
}

static void do_lookup(struct bt_kv *kv, struct model *m, uint64_t key)
{
    int32_t want = model_find(m, key);
    bool cached;
    cr_assert_eq(bt_kv_peek(kv, key_of(key), &cached), want);
    cr_assert_eq(cached, want != BT_KV_NONE && m->ref[want] == 0);
    cr_assert_eq(bt_kv_lookup(kv, key_of(key)), want);
    if (want != BT_KV_NONE) {
        m->ref[want]++;
    }
}

static void do_host(struct bt_kv *kv, struct model *m, struct bt_rng *r)
{
    int32_t got[MODEL_BLOCKS];
    int32_t n_free = 0;
    for (int32_t b = 0; b < m->n_host; b++) {
        n_free += !m->host[b];
    }
    cr_assert_eq(bt_kv_n_host_available(kv), n_free);
    int32_t n = (int32_t)bt_rng_below(r, 4);
    bool fits = n <= n_free;
    cr_assert_eq(bt_kv_host_acquire(kv, n, got), fits);
    for (int32_t i = 0; fits && i < n; i++) {
        cr_assert(got[i] >= 0 && got[i] < m->n_host && !m->host[got[i]]);
        m->host[got[i]] = true;
    }
    for (int32_t b = 0; b < m->n_host; b++) {
        if (m->host[b] && bt_rng_below(r, 3) == 0) {
            bt_kv_host_release(kv, &b, 1);
            m->host[b] = false;
        }
    }
}

static void do_clear(struct bt_kv *kv, struct model *m)
{
    bt_kv_cache_clear(kv);
    memset(m->key, 0, sizeof m->key);
}

static void random_op(struct bt_kv *kv, struct model *m, struct bt_rng *r)
{
    int32_t b = (int32_t)bt_rng_below(r, (uint64_t)m->n_blocks);
    uint64_t key = 1 + bt_rng_below(r, MODEL_KEYS);
    uint64_t what = bt_rng_below(r, 100);
    if (what < 25) {
        do_acquire(kv, m, (int32_t)bt_rng_below(r, (uint64_t)m->n_blocks / 2 + 2));
    } else if (what < 55) {
        if (m->ref[b] > 0) {
            do_release(kv, m, b);
        }
    } else if (what < 62) {
        if (m->ref[b] > 0) {
            bt_kv_retain(kv, b);
            m->ref[b]++;
        }
    } else if (what < 77) {
        if (m->ref[b] > 0 && m->key[b] == 0) {
            bool is_new = model_find(m, key) == BT_KV_NONE;
            cr_assert_eq(bt_kv_publish(kv, b, key_of(key)), is_new);
            m->key[b] = is_new ? key : 0;
        }
    } else if (what < 92) {
        do_lookup(kv, m, key);
    } else if (what < 99) {
        do_host(kv, m, r);
    } else {
        do_clear(kv, m);
    }
}

Test(kv, random_operations_agree_with_a_naive_model)
{
    for (uint64_t seed = 0; seed < N_SEQUENCES; seed++) {
        struct bt_rng r;
        bt_rng_init(&r, seed, "kv", 0);
        struct model m = {0};
        m.n_blocks = 1 + (int32_t)bt_rng_below(&r, MODEL_BLOCKS);
        m.n_host = (int32_t)bt_rng_below(&r, 8);
        bt_arena_fini(&arena);
        bt_arena_init(&arena, 0);
        struct bt_kv *kv = pool(m.n_blocks, m.n_host, true);
        size_t used_bytes = arena.used_bytes;
        for (int op = 0; op < N_OPS; op++) {
            random_op(kv, &m, &r);
            cr_assert_eq(bt_kv_n_used(kv), model_count(&m, true, false), "seed %llu op %d",
                         (unsigned long long)seed, op);
            cr_assert_eq(bt_kv_n_cached(kv), model_count(&m, false, true), "seed %llu op %d",
                         (unsigned long long)seed, op);
            if (op % 8 == 0) {
                bt_kv_check(kv);
            }
        }
        for (int32_t b = 0; b < m.n_blocks; b++) {
            cr_assert_eq(bt_kv_ref_count(kv, b), m.ref[b], "seed %llu", (unsigned long long)seed);
            while (m.ref[b] > 0) {
                do_release(kv, &m, b);
            }
        }
        bt_kv_check(kv);
        cr_assert_eq(bt_kv_n_available(kv), m.n_blocks, "seed %llu leaks",
                     (unsigned long long)seed);
        cr_assert_eq(arena.used_bytes, used_bytes, "allocates after create");
    }
}

/* A table at its fullest, with keys that crowd into few home slots, emptied in random order:
 * backward shift must keep every remaining key findable. */
Test(kv, crowded_keys_stay_findable_through_deletion)
{
    enum { N = 256 };
    struct bt_kv *kv = pool(N, 0, true);
    struct bt_rng r;
    bt_rng_init(&r, 3, "kv", 0);
    int32_t b[N];
    for (int round = 0; round < 200; round++) {
        cr_assert(bt_kv_acquire(kv, N, b));
        for (uint64_t i = 0; i < N; i++) {
            struct bt_kv_key k = {.own = 1 + i % 5, .parent = (uint64_t)round * N + i};
            cr_assert(bt_kv_publish(kv, b[i], k));
        }
        for (uint64_t i = N - 1; i > 0; i--) {
            uint64_t j = bt_rng_below(&r, i + 1);
            int32_t t = b[i];
            b[i] = b[j];
            b[j] = t;
        }
        bt_kv_release_n(kv, b, N);
        int32_t half[N / 2];
        cr_assert(bt_kv_acquire(kv, N / 2, half));
        bt_kv_check(kv);
        bt_kv_release_n(kv, half, N / 2);
    }
}
