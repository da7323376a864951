#include "engine/core/samples.h"

#include <string.h>

enum { DIGIT_BITS = 8, N_DIGITS = 1 << DIGIT_BITS, INSERTION_MAX = 32 };

enum bt_code bt_samples_init(struct bt_samples *s, struct bt_arena *arena, int64_t cap,
                             bool counted, struct bt_error *err)
{
    BT_ASSERT(cap > 0);
    *s = (struct bt_samples){.cap = cap, .max = -1, .exact = true, .sorted = true};
    BT_ARENA_ARRAY_RAW(arena, s->values, cap, err);
    if (counted) {
        BT_ARENA_ARRAY_RAW(arena, s->counts, cap, err);
    }
    return bt_hist_init(&s->hist, arena, BT_SAMPLES_SUB_BITS, err);
}

static void move_to_hist(struct bt_samples *s)
{
    for (int64_t i = 0; i < s->n_entries; i++) {
        bt_hist_record(&s->hist, s->values[i], s->counts != NULL ? s->counts[i] : 1);
    }
    bt_hist_record(&s->hist, 0, s->n_zero);
    s->n_entries = 0;
    s->exact = false;
}

static void append(struct bt_samples *s, int64_t value, int64_t count)
{
    int64_t n_new = s->counts != NULL ? 1 : count;
    if (n_new > s->cap - s->n_entries) {
        move_to_hist(s);
        bt_hist_record(&s->hist, value, count);
        return;
    }
    if (s->counts != NULL) {
        s->counts[s->n_entries] = count;
    }
    for (int64_t i = 0; i < n_new; i++) {
        s->values[s->n_entries++] = value;
    }
    s->sorted = false;
}

void bt_samples_add(struct bt_samples *s, int64_t value, int64_t count)
{
    BT_ASSERT(value >= 0);
    BT_ASSERT(count >= 0);
    if (count == 0) {
        return;
    }
    s->n += count;
    s->sum += (double)value * (double)count;
    s->max = value > s->max ? value : s->max;
    if (!s->exact) {
        bt_hist_record(&s->hist, value, count);
    } else if (value == 0) {
        s->n_zero += count;
    } else if (s->counts != NULL && s->n_entries > 0 && s->values[s->n_entries - 1] == value) {
        s->counts[s->n_entries - 1] += count;
    } else {
        append(s, value, count);
    }
}

static void insertion_sort(int64_t *v, int64_t *c, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        int64_t value = v[i];
        int64_t count = c != NULL ? c[i] : 1;
        int64_t j = i;
        for (; j > 0 && v[j - 1] > value; j--) {
            v[j] = v[j - 1];
            if (c != NULL) {
                c[j] = c[j - 1];
            }
        }
        v[j] = value;
        if (c != NULL) {
            c[j] = count;
        }
    }
}

/* One stable pass by the digit at `shift`. False when all digits are equal: nothing was moved. */
static bool radix_pass(const int64_t *v, const int64_t *c, int64_t n, int shift, int64_t *v_out,
                       int64_t *c_out)
{
    int64_t at[N_DIGITS] = {0};
    for (int64_t i = 0; i < n; i++) {
        at[(v[i] >> shift) & (N_DIGITS - 1)]++;
    }
    if (at[(v[0] >> shift) & (N_DIGITS - 1)] == n) {
        return false;
    }
    int64_t start = 0;
    for (int32_t d = 0; d < N_DIGITS; d++) {
        int64_t n_digit = at[d];
        at[d] = start;
        start += n_digit;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t to = at[(v[i] >> shift) & (N_DIGITS - 1)]++;
        v_out[to] = v[i];
        if (c != NULL) {
            c_out[to] = c[i];
        }
    }
    return true;
}

void bt_samples_sort(struct bt_samples *s, int64_t *scratch_values, int64_t *scratch_counts)
{
    BT_ASSERT(s->counts == NULL || scratch_counts != NULL);
    if (s->sorted || !s->exact) {
        return;
    }
    int64_t n = s->n_entries;
    if (n <= INSERTION_MAX) {
        insertion_sort(s->values, s->counts, n);
        s->sorted = true;
        return;
    }
    int64_t *v = s->values, *v_out = scratch_values;
    int64_t *c = s->counts, *c_out = scratch_counts;
    for (int shift = 0; shift < 63 && s->max >> shift > 0; shift += DIGIT_BITS) {
        if (radix_pass(v, c, n, shift, v_out, c_out)) {
            int64_t *v_was = v, *c_was = c;
            v = v_out;
            v_out = v_was;
            c = c != NULL ? c_out : NULL;
            c_out = c_was;
        }
    }
    if (v != s->values) {
        memcpy(s->values, v, (size_t)n * sizeof *v);
        if (c != NULL) {
            memcpy(s->counts, c, (size_t)n * sizeof *c);
        }
    }
    s->sorted = true;
}

void bt_samples_percentiles(const struct bt_samples *s, const double *p, int32_t n_p, int64_t *out)
{
    BT_ASSERT(s->sorted || !s->exact);
    int64_t entry = -1;
    int64_t seen = s->n_zero; /* values up to and with the entry */
    for (int32_t i = 0; i < n_p; i++) {
        BT_ASSERT(i == 0 || p[i] >= p[i - 1]);
        if (s->n == 0) {
            out[i] = -1;
        } else if (!s->exact) {
            out[i] = bt_hist_percentile(&s->hist, p[i]);
        } else {
            int64_t rank = bt_percentile_rank(s->n, p[i]);
            while (seen < rank) {
                entry++;
                seen += s->counts != NULL ? s->counts[entry] : 1;
            }
            out[i] = entry < 0 ? 0 : s->values[entry];
        }
    }
}
