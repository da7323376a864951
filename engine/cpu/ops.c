#include "engine/cpu/ops.h"

#include "engine/core/error.h"
#include "engine/vec.h"

BT_VEC_CLONES
void bt_cpu_round(float *x, int64_t n, enum bt_act_format round)
{
    if (round == BT_ACT_BF16) {
        for (int64_t i = 0; i < n; i++) {
            x[i] = bt_bf16_to_f32(bt_f32_to_bf16(x[i]));
        }
    } else if (round == BT_ACT_FP16) {
        for (int64_t i = 0; i < n; i++) {
            x[i] = bt_f16_to_f32(bt_f32_to_f16(x[i]));
        }
    } else {
        BT_ASSERT(round == BT_ACT_FP32);
    }
}

BT_VEC_CLONES
static float mean_square(const float *x, int32_t n)
{
    bt_vec lanes = {0};
    int32_t i = 0;
    for (; i + BT_VEC <= n; i += BT_VEC) {
        bt_vec v = *(const bt_vec_mem *)(x + i);
        lanes += v * v;
    }
    for (int32_t j = 0; i + j < n; j++) {
        lanes[j] += x[i + j] * x[i + j];
    }
    return bt_lanes_sum(lanes) / (float)n;
}

void bt_cpu_rms_norm(const float *x, int32_t m, int32_t n, const float *weight, float eps,
                     enum bt_act_format round, float *y)
{
    for (int32_t i = 0; i < m; i++) {
        const float *xi = x + (size_t)i * (size_t)n;
        float *yi = y + (size_t)i * (size_t)n;
        float scale = 1.0f / sqrtf(mean_square(xi, n) + eps);
        for (int32_t j = 0; j < n; j++) {
            yi[j] = xi[j] * scale;
        }
        bt_cpu_round(yi, n, round);
        for (int32_t j = 0; j < n; j++) {
            yi[j] *= weight[j];
        }
        bt_cpu_round(yi, n, round);
    }
}

void bt_cpu_add(float *x, const float *y, int64_t n, enum bt_act_format round)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
    bt_cpu_round(x, n, round);
}

/* e^x by x = k ln 2 + r, |r| <= ln 2 / 2, and the series to r^7 / 7!, whose error is below 1e-8.
 * Adding 1.5 2^23 rounds to an integer and leaves it in the low bits, so that nothing is converted
 * and a NaN stays one. */
BT_INLINE float exp_one(float x)
{
    const float magic = 12582912.0f;
    const float ln2_high = 0.693359375f; /* nine bits: times k it is exact */
    const float ln2_low = -2.12194440e-4f;
    float v = x < -87.3f ? -87.3f : x;
    v = v > 88.3f ? 88.3f : v;
    float t = v * 1.44269504f + magic;
    float k = t - magic;
    float r = (v - k * ln2_high) - k * ln2_low;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    float power = bt_bits_to_f32((bt_f32_to_bits(t) - bt_f32_to_bits(magic) + 127u) << 23);
    return x < -87.3f ? 0.0f : p * power;
}

BT_VEC_CLONES
void bt_cpu_exp(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        x[i] = exp_one(x[i]);
    }
}

BT_VEC_CLONES
static void silu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = x[i] / (1.0f + exp_one(-x[i]));
    }
}

void bt_cpu_silu(float *x, int64_t n, enum bt_act_format round)
{
    silu(x, n);
    bt_cpu_round(x, n, round);
}

void bt_cpu_silu_mul(float *gate, const float *up, int64_t n, enum bt_act_format round)
{
    bt_cpu_silu(gate, n, round);
    for (int64_t i = 0; i < n; i++) {
        gate[i] *= up[i];
    }
    bt_cpu_round(gate, n, round);
}

/* ---- RoPE ---- */

static const double PI = 3.14159265358979323846;

static double plain_freq(double theta, int32_t i, int32_t head_dim)
{
    return 1.0 / pow(theta, 2.0 * i / head_dim);
}

/* Long wavelengths are stretched by the factor, short ones kept, those between blended. */
static double llama3_freq(const struct bt_rope *r, double freq)
{
    double turns = r->original_max_position * freq / (2.0 * PI);
    if (turns > r->high_freq_factor) {
        return freq;
    }
    if (turns < r->low_freq_factor) {
        return freq / r->factor;
    }
    double smooth = (turns - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1.0 - smooth) * freq / r->factor + smooth * freq;
}

/* The dimension whose frequency makes so many turns over the original length. */
static double yarn_dim(const struct bt_rope *r, double turns, int32_t head_dim)
{
    return head_dim * log(r->original_max_position / (turns * 2.0 * PI)) / (2.0 * log(r->theta));
}

static double yarn_freq(const struct bt_rope *r, int32_t i, int32_t head_dim, double freq)
{
    double low = floor(yarn_dim(r, r->beta_fast, head_dim));
    double high = ceil(yarn_dim(r, r->beta_slow, head_dim));
    low = low < 0.0 ? 0.0 : low;
    high = high > head_dim - 1.0 ? head_dim - 1.0 : high;
    high = low == high ? high + 0.001 : high;
    double ramp = (i - low) / (high - low);
    ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
    return freq / r->factor * ramp + freq * (1.0 - ramp);
}

static double scaled_freq(const struct bt_rope *r, int32_t i, int32_t head_dim)
{
    double freq = plain_freq(r->theta, i, head_dim);
    switch (r->scaling) {
    case BT_ROPE_DEFAULT:
    case BT_ROPE_DYNAMIC: /* up to the original length; beyond it bt_cpu_rope_at scales theta */
        return freq;
    case BT_ROPE_LINEAR:
        return freq / r->factor;
    case BT_ROPE_LLAMA3:
        return llama3_freq(r, freq);
    case BT_ROPE_YARN:
        return yarn_freq(r, i, head_dim, freq);
    case BT_ROPE_SCALINGS:
        break;
    }
    BT_ASSERT(false);
    return 0.0;
}

void bt_cpu_rope_init(struct bt_cpu_rope *r, const struct bt_arch *a, float *inv_freq)
{
    *r = (struct bt_cpu_rope){.rope = a->rope, .head_dim = a->head_dim, .inv_freq = inv_freq};
    for (int32_t i = 0; i < a->head_dim / 2; i++) {
        inv_freq[i] = (float)scaled_freq(&a->rope, i, a->head_dim);
    }
    r->magnitude = 1.0f;
    if (a->rope.scaling == BT_ROPE_YARN) {
        double given = a->rope.attention_factor;
        r->magnitude = (float)(given != 0.0 ? given : 0.1 * log(a->rope.factor) + 1.0);
    }
}

void bt_cpu_rope_at(const struct bt_cpu_rope *r, int32_t position, float *cos_out, float *sin_out)
{
    const struct bt_rope *p = &r->rope;
    double length = position + 1.0;
    bool stretched = p->scaling == BT_ROPE_DYNAMIC && length > p->original_max_position;
    double theta = p->theta;
    if (stretched) {
        double grown = p->factor * length / p->original_max_position - (p->factor - 1.0);
        theta *= pow(grown, (double)r->head_dim / (r->head_dim - 2.0));
    }
    for (int32_t i = 0; i < r->head_dim / 2; i++) {
        float freq = stretched ? (float)plain_freq(theta, i, r->head_dim) : r->inv_freq[i];
        double angle = (double)((float)position * freq);
        cos_out[i] = (float)cos(angle) * r->magnitude;
        sin_out[i] = (float)sin(angle) * r->magnitude;
    }
}

BT_VEC_CLONES
void bt_cpu_rope_apply(float *row, int32_t n_heads, int32_t head_dim, const float *cos_row,
                       const float *sin_row)
{
    int32_t half = head_dim / 2;
    for (int32_t h = 0; h < n_heads; h++) {
        float *a = row + (size_t)h * (size_t)head_dim;
        float *b = a + half;
        for (int32_t i = 0; i < half; i++) {
            float ra = a[i] * cos_row[i] - b[i] * sin_row[i];
            float rb = b[i] * cos_row[i] + a[i] * sin_row[i];
            a[i] = ra;
            b[i] = rb;
        }
    }
}
