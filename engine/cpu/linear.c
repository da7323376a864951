#include "engine/cpu/linear.h"

#include "engine/vec.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    PANEL_ROWS = 16, /* outputs expanded at a time: with K = 4096 a panel still fits an L2 cache */
    TILE = 4,
    AHEAD = 16, /* rows of weights that are asked for before they are needed */
};

static int32_t thread_number(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

static int32_t threads_or_default(int32_t n)
{
#ifdef _OPENMP
    return n > 0 ? n : omp_get_max_threads();
#else
    (void)n;
    return 1;
#endif
}

enum bt_code bt_cpu_work_init(struct bt_cpu_work *w, struct bt_arena *arena, int32_t max_rows,
                              int32_t max_in, int32_t n_threads, struct bt_error *err)
{
    BT_ASSERT(max_rows > 0 && max_in > 0 && n_threads >= 0);
    *w = (struct bt_cpu_work){
        .n_threads = threads_or_default(n_threads),
        .max_rows = max_rows,
        .max_in = max_in,
    };
    int64_t rows_in = (int64_t)max_rows * bt_vec_pad(max_in);
    BT_ARENA_ARRAY(arena, w->gather, rows_in, err);
    BT_ARENA_ARRAY(arena, w->xq, rows_in, err);
    BT_ARENA_ARRAY(arena, w->x_scale, max_rows, err);
    BT_ARENA_ARRAY(arena, w->panel, (int64_t)w->n_threads * PANEL_ROWS * bt_vec_pad(max_in), err);
    return BT_OK;
}

/* ---- activations ---- */

BT_VEC_CLONES
float bt_cpu_quantise_row(const float *x, int32_t k, float scale, int16_t *q)
{
    if (scale == 0.0f) {
        float max_abs = 0.0f;
        for (int32_t i = 0; i < k; i++) {
            float a = fabsf(x[i]);
            max_abs = a > max_abs ? a : max_abs;
        }
        scale = max_abs / 127.0f;
        if (scale == 0.0f) {
            memset(q, 0, (size_t)k * sizeof *q);
            return 0.0f;
        }
    }
    for (int32_t i = 0; i < k; i++) {
        float r = rintf(x[i] / scale);
        r = r < -127.0f ? -127.0f : r;
        r = r > 127.0f ? 127.0f : r;
        q[i] = (int16_t)r;
    }
    return scale;
}

static void copy_row(const struct bt_linear *l, const float *x, float *dst)
{
    const int32_t *perm = l->quantised ? l->q.perm : NULL;
    if (perm == NULL) {
        memcpy(dst, x, (size_t)l->n_in * sizeof *dst);
    } else {
        for (int32_t j = 0; j < l->n_in; j++) {
            dst[j] = x[perm[j]];
        }
    }
    memset(dst + l->n_in, 0, (size_t)(bt_vec_pad(l->n_in) - l->n_in) * sizeof *dst);
}

BT_VEC_CLONES
static int32_t count_beyond(const float *x, int32_t k, float limit)
{
    int32_t n = 0;
    for (int32_t i = 0; i < k; i++) {
        n += fabsf(x[i]) > limit;
    }
    return n;
}

static bool has_int8_input(const struct bt_linear *l)
{
    return l->act == BT_ACT_INT8_DYNAMIC || l->act == BT_ACT_INT8_STATIC;
}

/* Brings m rows into the form that the products want: order of the stored columns, padded to whole
 * vectors, rounded where the layer says so. Returns the float rows. */
static const float *prepare(struct bt_cpu_work *work, const struct bt_linear *l, const float *x,
                            int32_t m)
{
    int32_t k_pad = bt_vec_pad(l->n_in);
    bool int8 = has_int8_input(l);
    if (k_pad == l->n_in && (!l->quantised || l->q.perm == NULL) && !int8) {
        return x;
    }
    float static_scale = l->act == BT_ACT_INT8_STATIC ? l->act_scale : 0.0f;
    for (int32_t i = 0; i < m; i++) {
        float *row = work->gather + (size_t)i * (size_t)k_pad;
        copy_row(l, x + (size_t)i * (size_t)l->n_in, row);
        if (!int8) {
            continue;
        }
        int16_t *q = work->xq + (size_t)i * (size_t)k_pad;
        work->x_scale[i] = bt_cpu_quantise_row(row, k_pad, static_scale, q);
        if (static_scale > 0.0f) {
            work->clip.n_values += l->n_in;
            work->clip.n_clipped += count_beyond(row, k_pad, 127.5f * static_scale);
        }
        for (int32_t j = 0; j < k_pad && !l->quantised; j++) {
            row[j] = (float)q[j] * work->x_scale[i];
        }
    }
    return work->gather;
}

/* ---- weights, one row at a time ---- */

BT_VEC_CLONES
static void expand_bf16(const uint16_t *src, float *dst, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        dst[i] = bt_bf16_to_f32(src[i]);
    }
}

BT_VEC_CLONES
static void expand_f16(const uint16_t *src, float *dst, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        dst[i] = bt_f16_to_f32(src[i]);
    }
}

/* Stored integers of columns from .. from + n - 1, less the zero point; from is even. */
BT_VEC_CLONES
static void unpack_int4(const uint8_t *row, int32_t from, int32_t n, int32_t zero, int16_t *dst)
{
    const uint8_t *src = row + from / 2;
    int16_t off = (int16_t)(8 + zero);
    int32_t i = 0;
    for (; i < n / 2; i++) {
        dst[2 * i] = (int16_t)((src[i] & 15) - off);
        dst[2 * i + 1] = (int16_t)((src[i] >> 4) - off);
    }
    if (n % 2 != 0) {
        dst[n - 1] = (int16_t)((src[i] & 15) - off);
    }
}

BT_VEC_CLONES
static void unpack_int8(const int8_t *src, int32_t n, int32_t zero, int16_t *dst)
{
    for (int32_t i = 0; i < n; i++) {
        dst[i] = (int16_t)(src[i] - zero);
    }
}

BT_VEC_CLONES
static void scale_ints(const int16_t *src, float scale, float *dst, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        dst[i] = (float)src[i] * scale;
    }
}

static int32_t group_end(const struct bt_qweight *w, int32_t g)
{
    int32_t end = (g + 1) * w->group;
    return end < w->n_in ? end : w->n_in;
}

static void unpack_group(const struct bt_qweight *w, int32_t n, int32_t g, int16_t *dst)
{
    const uint8_t *row = w->q + (size_t)n * bt_qweight_row_bytes(w);
    int32_t from = g * w->group;
    int32_t count = group_end(w, g) - from;
    int32_t zero = w->zero == NULL ? 0 : w->zero[(size_t)n * (size_t)w->n_groups + (size_t)g];
    if (w->bits == 8) {
        unpack_int8((const int8_t *)row + from, count, zero, dst);
    } else if (from % 2 == 0) {
        unpack_int4(row, from, count, zero, dst);
    } else {
        for (int32_t j = 0; j < count; j++) {
            dst[j] = (int16_t)(bt_qweight_at(w, n, from + j) - zero);
        }
    }
}

static void expand_quantised(const struct bt_qweight *w, int32_t n, float *dst)
{
    enum { PART = 256 };
    int16_t part[PART];
    for (int32_t g = 0; g < w->n_groups; g++) {
        float scale = bt_qweight_scale(w, n, g);
        int32_t from = g * w->group;
        int32_t count = group_end(w, g) - from;
        if (count <= PART) {
            unpack_group(w, n, g, part);
            scale_ints(part, scale, dst + from, count);
            continue;
        }
        int32_t zero = w->zero == NULL ? 0 : w->zero[(size_t)n * (size_t)w->n_groups + (size_t)g];
        const uint8_t *row = w->q + (size_t)n * bt_qweight_row_bytes(w);
        for (int32_t j = from; j < from + count; j += PART) {
            int32_t step = from + count - j < PART ? from + count - j : PART;
            if (w->bits == 8) {
                unpack_int8((const int8_t *)row + j, step, zero, part);
            } else {
                for (int32_t i = 0; i < step; i++) {
                    part[i] = (int16_t)(bt_qweight_at(w, n, j + i) - zero);
                }
            }
            scale_ints(part, scale, dst + j, step);
        }
    }
}

/* Asks for stored row n0 while others are worked on: a core that waits for each row of weights
 * reads memory at half of its speed. */
static void fetch_row(const struct bt_linear *l, int32_t n0)
{
    enum { LINE = 64 };
    const char *from = l->quantised ? (const char *)l->q.q : l->w.p;
    size_t bytes =
        l->quantised ? bt_qweight_row_bytes(&l->q) : (size_t)l->n_in * bt_dtype_bytes(l->w.dtype);
    from += (size_t)n0 * bytes;
    for (size_t i = 0; i < bytes; i += LINE) {
        __builtin_prefetch(from + i, 0, 2);
    }
}

/* Rows n0 .. n0 + rows - 1 as floats, padded with zeros; in place where they lie so already. */
static const float *expand_panel(const struct bt_linear *l, int32_t n0, int32_t rows, float *panel)
{
    int32_t k = l->n_in;
    int32_t k_pad = bt_vec_pad(k);
    if (!l->quantised && l->w.dtype == BT_DTYPE_F32 && k_pad == k) {
        return (const float *)l->w.p + (size_t)n0 * (size_t)k;
    }
    for (int32_t i = 0; i < rows; i++) {
        float *dst = panel + (size_t)i * (size_t)k_pad;
        size_t at = (size_t)(n0 + i) * (size_t)k;
        if (n0 + i + AHEAD < l->n_out) {
            fetch_row(l, n0 + i + AHEAD);
        }
        if (l->quantised) {
            expand_quantised(&l->q, n0 + i, dst);
        } else if (l->w.dtype == BT_DTYPE_BF16) {
            expand_bf16((const uint16_t *)l->w.p + at, dst, k);
        } else if (l->w.dtype == BT_DTYPE_F16) {
            expand_f16((const uint16_t *)l->w.p + at, dst, k);
        } else {
            memcpy(dst, (const float *)l->w.p + at, (size_t)k * sizeof *dst);
        }
        memset(dst + k, 0, (size_t)(k_pad - k) * sizeof *dst);
    }
    return panel;
}

/* ---- products ---- */

/* out[i * ldo + j] = dot(x row i, w row j), for mr x nr of them. */
BT_INLINE void dot_tile(const float *x, const float *w, int32_t k_pad, int32_t mr, int32_t nr,
                        float *out, int64_t ldo)
{
    bt_vec acc[TILE][TILE];
    memset(acc, 0, sizeof acc);
    for (int32_t k = 0; k < k_pad; k += BT_VEC) {
        bt_vec xv[TILE];
#pragma GCC unroll 4
        for (int32_t i = 0; i < mr; i++) {
            xv[i] = *(const bt_vec_mem *)(x + (size_t)i * (size_t)k_pad + k);
        }
#pragma GCC unroll 4
        for (int32_t j = 0; j < nr; j++) {
            bt_vec wv = *(const bt_vec_mem *)(w + (size_t)j * (size_t)k_pad + k);
#pragma GCC unroll 4
            for (int32_t i = 0; i < mr; i++) {
                acc[i][j] += xv[i] * wv;
            }
        }
    }
#pragma GCC unroll 4
    for (int32_t i = 0; i < mr; i++) {
        if (nr == TILE) {
            bt_vec4 sums = bt_lanes_sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
            memcpy(out + i * ldo, &sums, sizeof sums);
        } else {
            BT_ASSERT(nr == 1);
            out[i * ldo] = bt_lanes_sum(acc[i][0]);
        }
    }
}

/* mr rows of x against a panel. */
BT_INLINE void dot_rows(const float *x, int32_t mr, const float *w, int32_t rows, int32_t k_pad,
                        float *y, int64_t ldy)
{
    int32_t j = 0;
    for (; j + TILE <= rows; j += TILE) {
        dot_tile(x, w + (size_t)j * (size_t)k_pad, k_pad, mr, TILE, y + j, ldy);
    }
    for (; j < rows; j++) {
        dot_tile(x, w + (size_t)j * (size_t)k_pad, k_pad, mr, 1, y + j, ldy);
    }
}

/* y[i * ldy + j] for m rows of x and `rows` rows of w. */
BT_VEC_CLONES
static void dot_panel(const float *x, int32_t m, const float *w, int32_t rows, int32_t k_pad,
                      float *y, int64_t ldy)
{
    int32_t i = 0;
    for (; i + TILE <= m; i += TILE) {
        dot_rows(x + (size_t)i * (size_t)k_pad, TILE, w, rows, k_pad, y + i * ldy, ldy);
    }
    x += (size_t)i * (size_t)k_pad;
    y += i * ldy;
    switch (m - i) {
    case 1:
        dot_rows(x, 1, w, rows, k_pad, y, ldy);
        break;
    case 2:
        dot_rows(x, 2, w, rows, k_pad, y, ldy);
        break;
    case 3:
        dot_rows(x, 3, w, rows, k_pad, y, ldy);
        break;
    default:
        break;
    }
}

BT_VEC_CLONES
static int32_t dot_ints(const int16_t *a, const int16_t *b, int32_t n)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += (int32_t)a[i] * (int32_t)b[i];
    }
    return sum;
}

static void int_panel(const struct bt_cpu_work *work, const struct bt_linear *l, int32_t n0,
                      int32_t rows, int32_t m, int16_t *panel, float *y)
{
    const struct bt_qweight *w = &l->q;
    size_t k_pad = (size_t)bt_vec_pad(l->n_in);
    for (int32_t j = 0; j < rows; j++) {
        for (int32_t g = 0; g < w->n_groups; g++) {
            unpack_group(w, n0 + j, g, panel + (size_t)g * (size_t)w->group);
        }
        for (int32_t i = 0; i < m; i++) {
            const int16_t *xq = work->xq + (size_t)i * k_pad;
            float sum = 0.0f;
            for (int32_t g = 0; g < w->n_groups; g++) {
                int32_t from = g * w->group;
                int32_t part = dot_ints(xq + from, panel + from, group_end(w, g) - from);
                sum += (float)part * bt_qweight_scale(w, n0 + j, g);
            }
            y[(size_t)i * (size_t)l->n_out + (size_t)(n0 + j)] = sum * work->x_scale[i];
        }
    }
}

static void add_bias(const struct bt_linear *l, int32_t m, float *y)
{
    float part[256];
    for (int32_t n0 = 0; n0 < l->n_out; n0 += 256) {
        int32_t n = l->n_out - n0 < 256 ? l->n_out - n0 : 256;
        size_t at = (size_t)n0 * bt_dtype_bytes(l->bias.dtype);
        bt_dtype_to_f32(l->bias.dtype, (const char *)l->bias.p + at, part, (size_t)n);
        for (int32_t i = 0; i < m; i++) {
            float *row = y + (size_t)i * (size_t)l->n_out + n0;
            for (int32_t j = 0; j < n; j++) {
                row[j] += part[j];
            }
        }
    }
}

void bt_cpu_linear(struct bt_cpu_work *work, const struct bt_linear *l, const float *x, int32_t m,
                   float *y)
{
    BT_ASSERT(m > 0 && m <= work->max_rows);
    BT_ASSERT(l->n_in <= work->max_in);
    const float *rows_in = prepare(work, l, x, m);
    bool ints = has_int8_input(l) && l->quantised;
    int32_t k_pad = bt_vec_pad(l->n_in);
    int32_t n_panels = (l->n_out + PANEL_ROWS - 1) / PANEL_ROWS;
    size_t panel_floats = (size_t)PANEL_ROWS * (size_t)bt_vec_pad(work->max_in);
    bool large = bt_worth_threads(2.0 * m * l->n_out * l->n_in);
    (void)large; /* without OpenMP */
    BT_OMP(omp parallel for num_threads(work->n_threads) schedule(static) if (large))
    for (int32_t p = 0; p < n_panels; p++) {
        float *panel = work->panel + (size_t)thread_number() * panel_floats;
        int32_t n0 = p * PANEL_ROWS;
        int32_t rows = l->n_out - n0 < PANEL_ROWS ? l->n_out - n0 : PANEL_ROWS;
        if (ints) {
            int_panel(work, l, n0, rows, m, (int16_t *)(void *)panel, y);
        } else {
            const float *w = expand_panel(l, n0, rows, panel);
            dot_panel(rows_in, m, w, rows, k_pad, y + n0, l->n_out);
        }
    }
    if (l->bias.p != NULL) {
        add_bias(l, m, y);
    }
}
