/* Shares of tensor parallelism: every number of a matrix is on the rank that should have it, and
 * what the ranks compute makes the whole. */
#include "engine/core/rng.h"
#include "engine/cpu/linear.h"
#include "engine/model/shard.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

enum { MAX_K = 1024, MAX_N = 64, M = 3 };

static const struct shape {
    const char *name;
    int32_t n_out, n_in, n_ranks;
    enum bt_weight_format format;
    enum bt_act_format act;
    bool zeros;
    int32_t group; /* of the last rank's share */
} shapes[] = {
    {"fp32", 12, 64, 4, BT_WEIGHT_FP32, BT_ACT_DEFAULT, false, 0},
    {"bf16, odd", 7, 42, 2, BT_WEIGHT_BF16, BT_ACT_DEFAULT, false, 0},
    {"int8", 16, 96, 2, BT_WEIGHT_INT8, BT_ACT_DEFAULT, true, 48},
    {"int8 tensor", 16, 96, 3, BT_WEIGHT_INT8_TENSOR, BT_ACT_DEFAULT, false, 32},
    {"w8a8 static", 16, 96, 3, BT_WEIGHT_INT8, BT_ACT_INT8_STATIC, false, 32},
    {"int4 g128", 16, 512, 2, BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, true, 128},
    {"int4 g128, cut inside groups", 16, 384, 4, BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, true, 32},
    {"int4 g128, short group", 16, 864, 3, BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, true, 64},
    {"int4 g64", 16, 640, 2, BT_WEIGHT_INT4_G64, BT_ACT_DEFAULT, false, 64},
    {"int4 g32, w4a8", 16, 192, 2, BT_WEIGHT_INT4_G32, BT_ACT_INT8_STATIC, true, 32},
    {"int4 tensor, odd", 10, 42, 2, BT_WEIGHT_INT4_TENSOR, BT_ACT_DEFAULT, false, 21},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static struct bt_arena arena;
static struct bt_rng rng;

static void make_linear(struct bt_linear *l, const struct shape *s)
{
    struct bt_error err = {0};
    *l = (struct bt_linear){.n_out = s->n_out, .n_in = s->n_in, .act = s->act, .act_scale = 0.02f};
    cr_assert_eq(bt_tensor_init(&l->bias, &arena, BT_DTYPE_F32, 1, s->n_out, &err), BT_OK);
    for (int32_t n = 0; n < s->n_out; n++) {
        ((float *)l->bias.p)[n] = (float)bt_rng_normal(&rng);
    }
    if (s->format <= BT_WEIGHT_BF16) {
        enum bt_dtype t = s->format == BT_WEIGHT_FP32 ? BT_DTYPE_F32 : BT_DTYPE_BF16;
        cr_assert_eq(bt_tensor_init(&l->w, &arena, t, s->n_out, s->n_in, &err), BT_OK);
        for (int32_t i = 0; i < s->n_out * s->n_in; i++) {
            float v = (float)bt_rng_normal(&rng);
            bt_dtype_from_f32(t, &v, (char *)l->w.p + (size_t)i * bt_dtype_bytes(t), 1);
        }
        return;
    }
    l->quantised = true;
    struct bt_qweight *q = &l->q;
    cr_assert_eq(bt_qweight_init(q, &arena, s->format, s->n_out, s->n_in, BT_DTYPE_F16, &err),
                 BT_OK);
    int32_t half = q->bits == 4 ? 8 : 128;
    for (int32_t i = 0; i < s->n_out * s->n_in; i++) {
        bt_qweight_set(q, i / s->n_in, i % s->n_in,
                       (int32_t)bt_rng_below(&rng, (uint64_t)(2 * half)) - half);
    }
    int32_t n_scales = q->scale_stride == 0 ? 1 : s->n_out * q->n_groups;
    for (int32_t i = 0; i < n_scales; i++) {
        ((uint16_t *)q->scale)[i] = bt_f32_to_f16((float)(0.01 + 0.01 * bt_rng_uniform(&rng)));
    }
    if (s->zeros) {
        q->zero = bt_arena_take(&arena, (size_t)n_scales);
        for (int32_t i = 0; i < n_scales; i++) {
            q->zero[i] = (int8_t)(bt_rng_below(&rng, 15) - 7);
        }
    }
}

static void start(const char *name)
{
    bt_arena_init(&arena, 0);
    bt_rng_init(&rng, 9, name, 0);
}

Test(model_shard, inputs_keep_their_numbers_and_add_up)
{
    start("inputs");
    struct bt_error err = {0};
    for (int32_t i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct bt_linear whole;
        make_linear(&whole, s);
        struct bt_cpu_work work;
        cr_assert_eq(bt_cpu_work_init(&work, &arena, M, MAX_K, 1, &err), BT_OK);
        float x[M * MAX_K];
        float want[M * MAX_N];
        float sum[M * MAX_N] = {0};
        for (int32_t j = 0; j < M * s->n_in; j++) {
            x[j] = (float)bt_rng_normal(&rng);
        }
        bt_cpu_linear(&work, &whole, x, M, want);
        int32_t each = s->n_in / s->n_ranks;
        struct bt_linear share = {0};
        for (int32_t rank = 0; rank < s->n_ranks; rank++) {
            struct bt_shard_range r = {rank * each, each};
            cr_assert_eq(bt_linear_inputs(&whole, r, &arena, &share, &err), BT_OK, "%s: %s",
                         s->name, err.msg);
            cr_assert_null(share.bias.p);
            if (rank == 0) {
                share.bias = whole.bias;
            }
            float row[MAX_K];
            float part[MAX_K];
            for (int32_t n = 0; n < s->n_out; n++) {
                bt_linear_row_f32(&whole, n, row);
                bt_linear_row_f32(&share, n, part);
                cr_expect_arr_eq(part, row + r.from, (size_t)each * sizeof *part,
                                 "%s, rank %d, output %d", s->name, rank, n);
            }
            float mine[M * MAX_K];
            float y[M * MAX_N];
            for (int32_t m = 0; m < M; m++) {
                memcpy(mine + m * each, x + m * s->n_in + r.from, (size_t)each * sizeof *x);
            }
            bt_cpu_linear(&work, &share, mine, M, y);
            for (int32_t j = 0; j < M * s->n_out; j++) {
                sum[j] += y[j];
            }
        }
        cr_expect_eq(share.quantised ? share.q.group : 0, s->group, "%s: group %d", s->name,
                     share.q.group);
        for (int32_t j = 0; j < M * s->n_out; j++) {
            cr_expect_float_eq(sum[j], want[j], 1e-4f * (1.0f + fabsf(want[j])),
                               "%s: [%d] is %.9g, not %.9g", s->name, j, (double)sum[j],
                               (double)want[j]);
        }
    }
    bt_arena_fini(&arena);
}

Test(model_shard, outputs_are_the_whole_ones)
{
    start("outputs");
    struct bt_error err = {0};
    for (int32_t i = 0; i < N_SHAPES; i++) {
        struct bt_linear whole;
        make_linear(&whole, &shapes[i]);
        struct bt_cpu_work work;
        cr_assert_eq(bt_cpu_work_init(&work, &arena, 1, MAX_K, 1, &err), BT_OK);
        float x[MAX_K];
        float want[MAX_N];
        float y[MAX_N];
        for (int32_t j = 0; j < whole.n_in; j++) {
            x[j] = (float)bt_rng_normal(&rng);
        }
        bt_cpu_linear(&work, &whole, x, 1, want);
        for (int32_t from = 0; from < whole.n_out; from += 3) {
            int32_t n = whole.n_out - from < 3 ? whole.n_out - from : 3;
            struct bt_linear share = bt_linear_outputs(&whole, (struct bt_shard_range){from, n});
            bt_cpu_linear(&work, &share, x, 1, y);
            cr_expect_arr_eq(y, want + from, (size_t)n * sizeof *y, "%s, outputs from %d",
                             shapes[i].name, from);
        }
    }
    bt_arena_fini(&arena);
}

Test(model_shard, what_cannot_be_cut_is_refused)
{
    start("refused");
    struct bt_error err = {0};
    struct bt_linear whole;
    struct bt_linear share;
    const struct shape s = {"order", 4, 256, 2, BT_WEIGHT_INT4_G128, BT_ACT_DEFAULT, false, 0};
    make_linear(&whole, &s);
    cr_expect_eq(bt_linear_inputs(&whole, (struct bt_shard_range){8, 8}, &arena, &share, &err),
                 BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "a cut at input 8 of 256 leaves groups of 8"), "%s",
                       err.msg);
    int32_t perm[256];
    for (int32_t i = 0; i < 256; i++) {
        perm[i] = 255 - i;
    }
    whole.q.perm = perm;
    err = (struct bt_error){0};
    cr_expect_eq(bt_linear_inputs(&whole, (struct bt_shard_range){128, 128}, &arena, &share, &err),
                 BT_ERR_ARG);
    cr_expect_not_null(strstr(err.msg, "inputs 128 .. 255 of a matrix with act-order"), "%s",
                       err.msg);
    bt_arena_fini(&arena);
}

/* Every query head is on one rank, with its KV head; every part of the MLP is on one. */
Test(model_shard, ranks_share_out_heads_and_mlp)
{
    static const struct {
        int32_t n_heads, n_kv_heads, n_ranks;
    } cases[] = {{40, 40, 1}, {40, 40, 8}, {32, 8, 2}, {32, 8, 8}, {32, 8, 16}, {64, 8, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ranks = cases[i].n_ranks;
        struct bt_arch a = {.n_heads = cases[i].n_heads,
                            .n_kv_heads = cases[i].n_kv_heads,
                            .head_dim = 64,
                            .intermediate = 32 * 36,
                            .hidden = 512};
        int32_t next_q = 0;
        int32_t next_mlp = 0;
        for (int32_t rank = 0; rank < ranks; rank++) {
            struct bt_shard_range q = bt_shard_range_of(&a, BT_LINEAR_Q, ranks, rank);
            struct bt_shard_range o = bt_shard_range_of(&a, BT_LINEAR_O, ranks, rank);
            struct bt_shard_range k = bt_shard_range_of(&a, BT_LINEAR_K, ranks, rank);
            struct bt_shard_range v = bt_shard_range_of(&a, BT_LINEAR_V, ranks, rank);
            struct bt_shard_range up = bt_shard_range_of(&a, BT_LINEAR_UP, ranks, rank);
            struct bt_shard_range down = bt_shard_range_of(&a, BT_LINEAR_DOWN, ranks, rank);
            cr_expect(q.from == next_q && o.from == q.from && o.n == q.n);
            cr_expect(k.from == v.from && k.n == v.n);
            cr_expect(up.from == next_mlp && down.from == up.from && down.n == up.n);
            next_q += q.n;
            next_mlp += up.n;
            int32_t group = a.n_heads / a.n_kv_heads;
            for (int32_t h = q.from / 64; h < (q.from + q.n) / 64; h++) {
                int32_t kv = h / group * 64;
                cr_expect(kv >= k.from && kv < k.from + k.n, "%d heads, %d ranks: head %d",
                          a.n_heads, ranks, h);
            }
        }
        cr_expect_eq(next_q, a.n_heads * 64);
        cr_expect_eq(next_mlp, a.intermediate);
    }
}
