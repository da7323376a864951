#include "engine/core/rng.h"

#include "engine/core/error.h"

#include <math.h>
#include <string.h>

static const double TWO_POW_MINUS_53 = 0x1.0p-53;
static const double TWO_PI = 6.283185307179586476925286766559;

uint64_t bt_hash_u64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t bt_hash_combine(uint64_t a, uint64_t b)
{
    return bt_hash_u64(bt_hash_u64(a) ^ (b + 0x632be59bd9b4e019u));
}

uint64_t bt_hash_bytes(const void *p, uint64_t n_bytes, uint64_t seed)
{
    const unsigned char *c = p;
    uint64_t h = 0xcbf29ce484222325u ^ bt_hash_u64(seed);
    for (uint64_t i = 0; i < n_bytes; i++) {
        h = (h ^ c[i]) * 0x100000001b3u;
    }
    return bt_hash_u64(h);
}

void bt_rng_init(struct bt_rng *r, uint64_t seed, const char *name, uint64_t index)
{
    uint64_t h = bt_hash_combine(bt_hash_bytes(name, strlen(name), seed), index);
    for (int32_t i = 0; i < 4; i++) {
        h = bt_hash_u64(h);
        r->s[i] = h;
    }
    BT_ASSERT((r->s[0] | r->s[1] | r->s[2] | r->s[3]) != 0);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t bt_rng_u64(struct bt_rng *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotl(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double bt_rng_uniform(struct bt_rng *r)
{
    return (double)(bt_rng_u64(r) >> 11) * TWO_POW_MINUS_53;
}

uint64_t bt_rng_below(struct bt_rng *r, uint64_t n)
{
    BT_ASSERT(n > 0);
    /* Rejects the draws below 2^64 mod n, which would be counted once too often. */
    uint64_t reject_below = (0 - n) % n;
    for (;;) {
        uint64_t x = bt_rng_u64(r);
        if (x >= reject_below) {
            return x % n;
        }
    }
}

double bt_rng_exponential(struct bt_rng *r)
{
    return -log(1.0 - bt_rng_uniform(r));
}

double bt_rng_normal(struct bt_rng *r)
{
    double u = 1.0 - bt_rng_uniform(r);
    double v = bt_rng_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(TWO_PI * v);
}

double bt_rng_gamma(struct bt_rng *r, double shape)
{
    BT_ASSERT(shape > 0.0);
    double boost = 1.0;
    if (shape < 1.0) {
        boost = pow(1.0 - bt_rng_uniform(r), 1.0 / shape);
        shape += 1.0;
    }
    double d = shape - 1.0 / 3.0;
    double c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        double x = bt_rng_normal(r);
        double t = 1.0 + c * x;
        if (t <= 0.0) {
            continue;
        }
        double v = t * t * t;
        double u = 1.0 - bt_rng_uniform(r);
        if (log(u) < 0.5 * x * x + d - d * v + d * log(v)) {
            return boost * d * v;
        }
    }
}

double bt_rng_at(uint64_t key, uint64_t at)
{
    return (double)(bt_hash_combine(key, at) >> 11) * TWO_POW_MINUS_53;
}
