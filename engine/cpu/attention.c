#include "engine/cpu/attention.h"

#include "engine/cpu/ops.h"
#include "engine/vec.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    GROUP = 4, /* query heads that share a pass over keys and values */
    TILE = 4,  /* keys whose scores are summed up together */
};

enum bt_code bt_cpu_attn_work_init(struct bt_cpu_attn_work *w, struct bt_arena *arena,
                                   int32_t max_ctx, int32_t max_head_dim, int32_t n_threads,
                                   struct bt_error *err)
{
    *w = (struct bt_cpu_attn_work){
        .n_threads = n_threads,
        .max_ctx = max_ctx,
        .head_pad = bt_vec_pad(max_head_dim),
    };
    int64_t kv = (int64_t)n_threads * max_ctx * w->head_pad;
    BT_ARENA_ARRAY(arena, w->keys, kv, err);
    BT_ARENA_ARRAY(arena, w->values, kv, err);
    BT_ARENA_ARRAY(arena, w->scores, (int64_t)n_threads * GROUP * bt_vec_pad(max_ctx), err);
    BT_ARENA_ARRAY(arena, w->queries, (int64_t)n_threads * GROUP * w->head_pad, err);
    return BT_OK;
}

/* score[g][t] = dot(q[g], key[t]) * scale for `group` queries and nk keys from `key` on. */
BT_INLINE void score_tile(const float *q, const float *key, int32_t nk, int32_t d_pad,
                          int32_t group, float scale, float *scores, int32_t ld)
{
    bt_vec acc[GROUP][TILE];
    memset(acc, 0, sizeof acc);
    for (int32_t d = 0; d < d_pad; d += BT_VEC) {
#pragma GCC unroll 4
        for (int32_t t = 0; t < nk; t++) {
            bt_vec kv = *(const bt_vec_mem *)(key + (size_t)t * (size_t)d_pad + d);
#pragma GCC unroll 4
            for (int32_t g = 0; g < group; g++) {
                acc[g][t] += *(const bt_vec_mem *)(q + g * d_pad + d) * kv;
            }
        }
    }
#pragma GCC unroll 4
    for (int32_t g = 0; g < group; g++) {
        if (nk == TILE) {
            bt_vec4 sums = bt_lanes_sum4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]) * scale;
            memcpy(scores + g * ld, &sums, sizeof sums);
        } else {
            scores[g * ld] = bt_lanes_sum(acc[g][0]) * scale;
        }
    }
}

/* The same for n keys. */
BT_INLINE void score_keys(const float *q, const float *keys, int32_t n, int32_t d_pad,
                          int32_t group, float scale, float *scores, int32_t ld)
{
    int32_t t = 0;
    for (; t + TILE <= n; t += TILE) {
        score_tile(q, keys + (size_t)t * (size_t)d_pad, TILE, d_pad, group, scale, scores + t, ld);
    }
    for (; t < n; t++) {
        score_tile(q, keys + (size_t)t * (size_t)d_pad, 1, d_pad, group, scale, scores + t, ld);
    }
}

BT_VEC_CLONES
static void score_all(const float *q, const float *keys, int32_t n, int32_t d_pad, int32_t group,
                      float scale, float *scores, int32_t ld)
{
    switch (group) {
    case 1:
        score_keys(q, keys, n, d_pad, 1, scale, scores, ld);
        break;
    case 2:
        score_keys(q, keys, n, d_pad, 2, scale, scores, ld);
        break;
    case 3:
        score_keys(q, keys, n, d_pad, 3, scale, scores, ld);
        break;
    default:
        score_keys(q, keys, n, d_pad, 4, scale, scores, ld);
    }
}

/* Turns n scores into weights that are not yet divided by their sum; returns the sum. */
BT_VEC_CLONES
static float soften(float *s, int32_t n)
{
    float max = s[0];
    for (int32_t t = 1; t < n; t++) {
        max = s[t] > max ? s[t] : max;
    }
    for (int32_t t = 0; t < n; t++) {
        s[t] -= max;
    }
    bt_cpu_exp(s, n);
    bt_vec lanes = {0};
    int32_t t = 0;
    for (; t + BT_VEC <= n; t += BT_VEC) {
        lanes += *(const bt_vec_mem *)(s + t);
    }
    for (int32_t j = 0; t + j < n; j++) {
        lanes[j] += s[t + j];
    }
    return bt_lanes_sum(lanes);
}

/* out[g][0..15] = sum over t of weight[g][t] * value[t][0..15], for 16 of the head's dimensions. */
BT_INLINE void mix_values(const float *weights, int32_t ld, const float *values, int32_t n,
                          int32_t d_pad, int32_t group, bt_vec *out)
{
    bt_vec acc[GROUP];
    memset(acc, 0, sizeof acc);
    for (int32_t t = 0; t < n; t++) {
        bt_vec v = *(const bt_vec_mem *)(values + (size_t)t * (size_t)d_pad);
#pragma GCC unroll 4
        for (int32_t g = 0; g < group; g++) {
            acc[g] += weights[g * ld + t] * v;
        }
    }
    for (int32_t g = 0; g < group; g++) {
        out[g] = acc[g];
    }
}

BT_VEC_CLONES
static void mix_all(const float *weights, int32_t ld, const float *values, int32_t n, int32_t d_pad,
                    int32_t group, float *out)
{
    for (int32_t d = 0; d < d_pad; d += BT_VEC) {
        bt_vec part[GROUP];
        switch (group) {
        case 1:
            mix_values(weights, ld, values + d, n, d_pad, 1, part);
            break;
        case 2:
            mix_values(weights, ld, values + d, n, d_pad, 2, part);
            break;
        case 3:
            mix_values(weights, ld, values + d, n, d_pad, 3, part);
            break;
        default:
            mix_values(weights, ld, values + d, n, d_pad, 4, part);
        }
        for (int32_t g = 0; g < group; g++) {
            memcpy(out + g * d_pad + d, &part[g], sizeof part[g]);
        }
    }
}

struct head_scratch {
    float *keys, *values, *scores, *queries;
};

/* One query token, the `group` query heads from head h0 on. Keys start at token `base`. */
static void attend_heads(const struct bt_cpu_attn_work *w, const struct bt_cpu_attn *a,
                         const struct head_scratch *s, int32_t row, int32_t position, int32_t base,
                         int32_t h0, int32_t group)
{
    int32_t d = a->pool->layout[0].parts[a->part].head_dim;
    int32_t d_pad = bt_vec_pad(d);
    int32_t ld = bt_vec_pad(w->max_ctx);
    int32_t lo = a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
    int32_t n = position - lo + 1;
    size_t at = ((size_t)row * (size_t)a->n_heads + (size_t)h0) * (size_t)d;
    for (int32_t g = 0; g < group; g++) {
        float *q = s->queries + g * d_pad;
        memset(q + d, 0, (size_t)(d_pad - d) * sizeof *q);
        memcpy(q, a->q + at + (size_t)(g * d), (size_t)d * sizeof *q);
    }
    const float *keys = s->keys + (size_t)(lo - base) * (size_t)d_pad;
    const float *values = s->values + (size_t)(lo - base) * (size_t)d_pad;
    score_all(s->queries, keys, n, d_pad, group, 1.0f / sqrtf((float)d), s->scores, ld);
    float sum[GROUP];
    for (int32_t g = 0; g < group; g++) {
        sum[g] = soften(s->scores + g * ld, n);
    }
    mix_all(s->scores, ld, values, n, d_pad, group, s->queries);
    for (int32_t g = 0; g < group; g++) {
        float *out = a->out + at + (size_t)(g * d);
        for (int32_t i = 0; i < d; i++) {
            out[i] = s->queries[g * d_pad + i] / sum[g];
        }
    }
}

static void zero_padding(float *x, int32_t n, int32_t d, int32_t d_pad)
{
    for (int32_t t = 0; t < n && d < d_pad; t++) {
        memset(x + (size_t)t * (size_t)d_pad + d, 0, (size_t)(d_pad - d) * sizeof *x);
    }
}

/* One KV head of one segment: its keys and values are read once for all queries. */
static void attend_kv_head(const struct bt_cpu_attn_work *w, const struct bt_cpu_attn *a,
                           const struct bt_cpu_segment *seg, int32_t kv_head,
                           const struct head_scratch *s)
{
    const struct bt_kv_part *m = &a->pool->layout[seg->kv_class].parts[a->part];
    int32_t d_pad = bt_vec_pad(m->head_dim);
    int32_t base = a->window > 0 && seg->pos0 >= a->window ? seg->pos0 - a->window + 1 : 0;
    int32_t end = seg->pos0 + seg->n_rows;
    zero_padding(s->keys, end - base, m->head_dim, d_pad);
    zero_padding(s->values, end - base, m->head_dim, d_pad);
    bt_kv_pool_read(a->pool, seg->kv_class, a->part, a->layer, 0, kv_head, seg->blocks, base, end,
                    s->keys, d_pad);
    bt_kv_pool_read(a->pool, seg->kv_class, a->part, a->layer, 1, kv_head, seg->blocks, base, end,
                    s->values, d_pad);
    int32_t per_kv = a->n_heads / m->n_kv_heads;
    for (int32_t i = 0; i < seg->n_rows; i++) {
        for (int32_t g = 0; g < per_kv; g += GROUP) {
            int32_t group = per_kv - g < GROUP ? per_kv - g : GROUP;
            attend_heads(w, a, s, seg->first_row + i, seg->pos0 + i, base, kv_head * per_kv + g,
                         group);
        }
    }
}

void bt_cpu_attend(struct bt_cpu_attn_work *w, const struct bt_cpu_attn *a,
                   const struct bt_cpu_segment *segments, int32_t n_segments)
{
    int32_t n_kv_heads = a->pool->layout[0].parts[a->part].n_kv_heads;
    int64_t n_tasks = (int64_t)n_segments * n_kv_heads;
    BT_ASSERT(bt_vec_pad(a->pool->layout[0].parts[a->part].head_dim) <= w->head_pad);
    double flops = 0.0;
    for (int32_t i = 0; i < n_segments; i++) {
        double ctx = segments[i].pos0 + segments[i].n_rows;
        flops += 4.0 * segments[i].n_rows * ctx * a->n_heads * w->head_pad;
    }
    bool large = bt_worth_threads(flops);
    (void)large; /* without OpenMP */
    BT_OMP(omp parallel for num_threads(w->n_threads) schedule(dynamic) if (large))
    for (int64_t task = 0; task < n_tasks; task++) {
        const struct bt_cpu_segment *seg = &segments[task / n_kv_heads];
        BT_ASSERT(seg->pos0 + seg->n_rows <= w->max_ctx);
#ifdef _OPENMP
        size_t thread = (size_t)omp_get_thread_num();
#else
        size_t thread = 0;
#endif
        size_t kv = thread * (size_t)w->max_ctx * (size_t)w->head_pad;
        struct head_scratch s = {
            .keys = w->keys + kv,
            .values = w->values + kv,
            .scores = w->scores + thread * GROUP * (size_t)bt_vec_pad(w->max_ctx),
            .queries = w->queries + thread * GROUP * (size_t)w->head_pad,
        };
        attend_kv_head(w, a, seg, (int32_t)(task % n_kv_heads), &s);
    }
}
