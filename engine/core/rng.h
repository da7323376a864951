/* Random numbers that are the same everywhere: named streams split from one master seed.
 *
 * A stream is (seed, name, index): drawing more from one stream never moves another, so a change of
 * policy cannot change the workload. The generator is xoshiro256++ (Blackman and Vigna 2019) seeded
 * through splitmix64; the counter form (bt_rng_at) gives the draw of (stream, position) directly.
 * All results use integer arithmetic and IEEE doubles without contraction; exp/log/cos come from
 * libm, so that they are equal for equal libm. Threading: a stream belongs to one thread.
 */
#ifndef BT_ENGINE_CORE_RNG_H
#define BT_ENGINE_CORE_RNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_rng {
    uint64_t s[4];
};

/* 64-bit mixing function (splitmix64 finaliser): a bijection with good avalanche. */
uint64_t bt_hash_u64(uint64_t x);

/* Combines two hashes; order matters. */
uint64_t bt_hash_combine(uint64_t a, uint64_t b);

/* FNV-1a over bytes, finished by bt_hash_u64. */
uint64_t bt_hash_bytes(const void *p, uint64_t n_bytes, uint64_t seed);

/* Starts the stream `name` (a literal such as "arrival") number `index` of the master seed. */
void bt_rng_init(struct bt_rng *r, uint64_t seed, const char *name, uint64_t index);

/* 64 uniform bits. */
uint64_t bt_rng_u64(struct bt_rng *r);

/* Uniform in [0, 1): 53 bits. */
double bt_rng_uniform(struct bt_rng *r);

/* Uniform integer in [0, n), n > 0, unbiased (Lemire 2019). */
uint64_t bt_rng_below(struct bt_rng *r, uint64_t n);

/* Exponential with mean 1. */
double bt_rng_exponential(struct bt_rng *r);

/* Standard normal (Box-Muller, one value a call: two uniforms are used every time). */
double bt_rng_normal(struct bt_rng *r);

/* Gamma with the given shape > 0 and scale 1 (Marsaglia and Tsang 2000; boosted below shape 1). */
double bt_rng_gamma(struct bt_rng *r, double shape);

/* Uniform in [0, 1) for position `at` of a stream named by `key`: no state. */
double bt_rng_at(uint64_t key, uint64_t at);

#ifdef __cplusplus
}
#endif

#endif
