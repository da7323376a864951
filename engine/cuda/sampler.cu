/* Sampling without a sort, in passes over the logits that are split among blocks:
 *
 *   best     the greatest of each part of a row, and whether it holds a NaN
 *   probs    sampled rows: e^((x - best) / temperature), as engine/sample.c rounds it
 *   cut      top k and top p, one block a row: the threshold by three passes of a radix search over
 *            the bits of the probabilities. A bin of the first pass holds numbers of one exponent,
 *            so integers count its mass exactly, in any order of the atomics
 *   norm     probabilities kept, divided by their sum; for draft tokens the mass of (p - q)+
 *   choose   one block a sequence: acceptance, then the token at a draw, found in its part
 *
 * A greedy row takes part in the first and the last. Sums are double, in an order that depends on
 * the vocabulary alone: the token is the same whatever else is in the batch.
 */
#include "engine/cuda/launch.cuh"
#include "engine/cuda/num.cuh"
#include "engine/cuda/sampler.h"

#include <cuda_runtime.h>
#include <limits.h>
#include <stdlib.h>

namespace
{

enum {
    PART_THREADS = 256,
    PART_EACH = 16, /* numbers a thread */
    PART = PART_THREADS * PART_EACH,
    CUT_THREADS = 1024,
    CUT_EACH = 8, /* numbers a thread has in flight */
    DIGIT_BITS = 10,
    BINS = 1 << DIGIT_BITS, /* a probability has 30 bits: its sign and the next are 0 */
    LOW_MASK = BINS - 1,
};
static_assert((int)BINS == (int)CUT_THREADS, "a thread looks at one bin");

/* Of a part of a row. */
struct best {
    float value;
    int32_t id;  /* the lowest of the greatest */
    int32_t bad; /* a NaN; of a row also: the greatest is not finite */
};

/* Which probabilities of a row stay: those whose bits are above the threshold, and those at it up
 * to an id. */
struct cut {
    double sum; /* of what stays */
    uint32_t threshold;
    int32_t last_tie;
};

/* What a launch works on. Row j of sequence i has index i * width + j in the scratch. */
struct task {
    float *logits;
    float *q; /* [n_seqs, max_k, vocab]; the draft's side writes it */
    const bt_cuda_choice *choices;
    int32_t vocab, n_parts, width, max_k;
    int32_t draft_j; /* the draft's side: which token; -1: the target's side */
    best *bests;     /* [rows, n_parts] */
    double *sums;    /* [rows, n_parts]: of probs, then of what norm leaves */
    double *rests;   /* [rows, n_parts]: of (p - q)+ */
    cut *cuts;       /* [rows] */
};

/* ---- draws: engine/sample.h's, to the bit ---- */

__device__ uint64_t hash_u64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

__device__ uint64_t hash_combine(uint64_t a, uint64_t b)
{
    return hash_u64(hash_u64(a) ^ (b + 0x632be59bd9b4e019u));
}

__device__ double uniform(uint64_t seed, enum bt_draw purpose, int64_t position)
{
    uint64_t key = hash_combine(hash_u64(seed), (uint64_t)purpose);
    return (double)(hash_combine(key, (uint64_t)position) >> 11) * 0x1.0p-53;
}

/* ---- rows ---- */

struct row_view {
    bool live;    /* there is such a row */
    bool sampled; /* and it needs probabilities */
    int64_t at;   /* in the scratch */
    const float *from;
    float *probs;   /* where probabilities go */
    const float *q; /* to judge by; NULL: nothing to judge */
};

__device__ row_view view_of(const task &t, int32_t seq, int32_t j)
{
    const bt_cuda_choice &c = t.choices[seq];
    bool forced = c.force >= 0.0f;
    row_view v = {};
    v.at = (int64_t)seq * t.width + j;
    if (t.draft_j >= 0) {
        v.live = c.k > t.draft_j;
        v.sampled = v.live && c.temperature > 0.0f && !forced;
        v.from = t.logits + (int64_t)seq * t.vocab;
        v.probs = t.q + ((int64_t)seq * t.max_k + t.draft_j) * t.vocab;
        return v;
    }
    v.live = c.first_row >= 0 && j <= c.k;
    v.sampled = v.live && c.temperature > 0.0f;
    v.probs = t.logits + ((int64_t)c.first_row + j) * t.vocab;
    v.from = v.probs;
    if (v.sampled && !forced && j < c.k) {
        v.q = t.q + ((int64_t)seq * t.max_k + j) * t.vocab;
    }
    return v;
}

__device__ bool beats(float value, int32_t id, const best &b)
{
    return value > b.value || (value == b.value && id < b.id);
}

__device__ best warp_best(best b)
{
    for (int d = BT_CUDA_WARP / 2; d > 0; d /= 2) {
        float value = __shfl_xor_sync(0xffffffffu, b.value, d);
        int32_t id = __shfl_xor_sync(0xffffffffu, b.id, d);
        if (beats(value, id, b)) {
            b.value = value;
            b.id = id;
        }
        b.bad |= __shfl_xor_sync(0xffffffffu, b.bad, d);
    }
    return b;
}

/* Of a whole row; every warp finds it for itself. */
__device__ best best_of_row(const task &t, int64_t at)
{
    best b = {-INFINITY, INT_MAX, 0};
    for (int i = (int)threadIdx.x % BT_CUDA_WARP; i < t.n_parts; i += BT_CUDA_WARP) {
        best other = t.bests[at * t.n_parts + i];
        if (beats(other.value, other.id, b)) {
            b.value = other.value;
            b.id = other.id;
        }
        b.bad |= other.bad;
    }
    b = warp_best(b);
    b.bad |= !isfinite(b.value);
    return b;
}

/* x summed over the threads before this one; *all is the block's sum. In an order that depends on
 * blockDim alone. */
template <typename T> __device__ T sum_before(T x, T *all)
{
    __shared__ T of_warp[BT_CUDA_WARP];
    int lane = (int)threadIdx.x % BT_CUDA_WARP;
    int warp = (int)threadIdx.x / BT_CUDA_WARP;
    T sum = x;
    for (int d = 1; d < BT_CUDA_WARP; d *= 2) {
        T other = __shfl_up_sync(0xffffffffu, sum, d);
        sum = lane >= d ? sum + other : sum;
    }
    __syncthreads(); /* the last call's results have been read */
    if (lane == BT_CUDA_WARP - 1) {
        of_warp[warp] = sum;
    }
    __syncthreads();
    T before = 0;
    T total = 0;
    for (int i = 0; i < (int)blockDim.x / BT_CUDA_WARP; i++) {
        before = i < warp ? before + of_warp[i] : before;
        total += of_warp[i];
    }
    *all = total;
    T here = __shfl_up_sync(0xffffffffu, sum, 1);
    return lane > 0 ? before + here : before;
}

/* ---- best, probs, norm ---- */

/* This thread's numbers of part blockIdx.x of a row, PART_THREADS apart; beyond the row: fill. */
struct part_of_row {
    float x[PART_EACH];
    int32_t first;

    __device__ part_of_row(const float *row, int32_t vocab, float fill)
        : first((int32_t)(blockIdx.x * PART + threadIdx.x))
    {
#pragma unroll
        for (int i = 0; i < PART_EACH; i++) {
            x[i] = id(i) < vocab ? row[id(i)] : fill;
        }
    }

    __device__ int32_t id(int i) const
    {
        return first + i * PART_THREADS;
    }
};

/* e^z for z <= 0, rounded once from double: z = k ln 2 + r, and the series to r^12 / 12!, whose
 * error is below 2e-16. */
__device__ float exp_of(double z)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52: the sum's low bits are the integer */
    z = z < -104.0 ? -104.0 : z;             /* rounds to 0 */
    double t = fma(z, 1.4426950408889634, magic);
    double k = t - magic;
    double r = fma(k, -5.497923018708371e-14, fma(k, -0.6931471805598903, z));
    double p = 1.0 / 479001600.0;
    p = fma(p, r, 1.0 / 39916800.0);
    p = fma(p, r, 1.0 / 3628800.0);
    p = fma(p, r, 1.0 / 362880.0);
    p = fma(p, r, 1.0 / 40320.0);
    p = fma(p, r, 1.0 / 5040.0);
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    int64_t scaled = __double_as_longlong(p) + (__double_as_longlong(t) << 52);
    return (float)__longlong_as_double(scaled);
}

__global__ void __launch_bounds__(PART_THREADS) best_kernel(task t)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    row_view v = view_of(t, (int32_t)blockIdx.z, (int32_t)blockIdx.y);
    if (!v.live) {
        return;
    }
    best b = {-INFINITY, INT_MAX, 0};
    part_of_row part(v.from, t.vocab, -INFINITY);
#pragma unroll
    for (int i = 0; i < PART_EACH; i++) {
        if (part.id(i) < t.vocab && beats(part.x[i], part.id(i), b)) {
            b.value = part.x[i];
            b.id = part.id(i);
        }
        b.bad |= isnan(part.x[i]);
    }
    __shared__ best of_warp[PART_THREADS / BT_CUDA_WARP];
    b = warp_best(b);
    if (threadIdx.x % BT_CUDA_WARP == 0) {
        of_warp[threadIdx.x / BT_CUDA_WARP] = b;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < PART_THREADS / BT_CUDA_WARP; i++) {
            if (beats(of_warp[i].value, of_warp[i].id, b)) {
                b.value = of_warp[i].value;
                b.id = of_warp[i].id;
            }
            b.bad |= of_warp[i].bad;
        }
        t.bests[v.at * t.n_parts + blockIdx.x] = b;
    }
}

__global__ void __launch_bounds__(PART_THREADS) probs_kernel(task t)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    row_view v = view_of(t, (int32_t)blockIdx.z, (int32_t)blockIdx.y);
    if (!v.sampled) {
        return;
    }
    part_of_row part(v.from, t.vocab, -INFINITY);
    best b = best_of_row(t, v.at);
    if (b.bad) {
        return;
    }
    double steepness = 1.0 / (double)t.choices[blockIdx.z].temperature;
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < PART_EACH; i++) {
        float p = exp_of(((double)part.x[i] - (double)b.value) * steepness);
        sum += (double)p;
        if (part.id(i) < t.vocab) {
            v.probs[part.id(i)] = p;
        }
    }
    sum = bt_block_reduce(sum, 0.0, bt_add_op());
    if (threadIdx.x == 0) {
        t.sums[v.at * t.n_parts + blockIdx.x] = sum;
    }
}

__device__ bool kept(const cut &c, float p, int32_t id)
{
    uint32_t bits = __float_as_uint(p);
    return bits > c.threshold || (bits == c.threshold && id <= c.last_tie);
}

/* A draft whose logits are no numbers proposes token 0 with certainty. */
__global__ void __launch_bounds__(PART_THREADS) norm_kernel(task t)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    row_view v = view_of(t, (int32_t)blockIdx.z, (int32_t)blockIdx.y);
    if (!v.sampled) {
        return;
    }
    part_of_row part(v.probs, t.vocab, 0.0f);
    part_of_row other(v.q, v.q != nullptr ? t.vocab : 0, 0.0f);
    bool bad = best_of_row(t, v.at).bad != 0;
    if (bad && t.draft_j < 0) {
        return;
    }
    cut c = bad ? cut{} : t.cuts[v.at];
    double one_over_sum = 1.0 / c.sum;
    double sum = 0.0;
    double rest = 0.0;
#pragma unroll
    for (int i = 0; i < PART_EACH; i++) {
        int32_t id = part.id(i);
        float p = id == 0 ? 1.0f : 0.0f;
        if (!bad) {
            p = kept(c, part.x[i], id) ? (float)((double)part.x[i] * one_over_sum) : 0.0f;
        }
        if (id < t.vocab) {
            v.probs[id] = p;
        }
        sum += (double)p;
        rest += p > other.x[i] ? (double)p - (double)other.x[i] : 0.0;
    }
    sum = bt_block_reduce(sum, 0.0, bt_add_op());
    rest = bt_block_reduce(rest, 0.0, bt_add_op());
    if (threadIdx.x == 0) {
        t.sums[v.at * t.n_parts + blockIdx.x] = sum;
        t.rests[v.at * t.n_parts + blockIdx.x] = rest;
    }
}

/* ---- cut ---- */

/* visit(id, p) for all of a row, coalesced, by all threads of the block. */
template <typename Visit> __device__ void for_each_prob(const float *probs, int32_t vocab, Visit f)
{
    for (int32_t base = (int32_t)threadIdx.x; base < vocab; base += CUT_EACH * CUT_THREADS) {
        float x[CUT_EACH];
#pragma unroll
        for (int i = 0; i < CUT_EACH; i++) {
            int32_t id = base + i * CUT_THREADS;
            x[i] = id < vocab ? probs[id] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < CUT_EACH; i++) {
            f(base + i * CUT_THREADS, x[i]);
        }
    }
}

/* One unit in the last place of a float with these bits. */
__device__ double unit_of(uint32_t bits)
{
    int exponent = (int)(bits >> 23);
    return ldexp(1.0, (exponent > 0 ? exponent : 1) - 150);
}

__device__ double value_of(uint32_t bits)
{
    return (double)__uint_as_float(bits);
}

/* Counts of the probabilities by their first digit, and sums of the 20 bits behind it in two
 * halves: each at most 2^10 a number, so that 2^22 numbers fit. */
struct first_counts {
    uint32_t n[BINS], high[BINS], low[BINS];
};

/* By the second digit or the third, of those that agree in the digits before. */
struct counts {
    uint32_t n[BINS], low[BINS];
};

/* How far the likeliest are kept: until they are so many or weigh so much. */
struct goal {
    bool by_mass;
    uint32_t n;
    double mass;
};

/* A place in the order of the likeliest: what lies above it. */
struct place {
    uint32_t bits; /* digits found so far */
    uint32_t n;
    double mass;
};

/* The bin in which the goal is reached, going down; the last that holds something when none does.
 * n and mass are of this thread's bin, the threadIdx.x-th from the top. */
__device__ place find_bin(const place &from, const goal &g, uint32_t n, double mass)
{
    __shared__ int32_t reached;
    __shared__ int32_t last;
    __shared__ place result;
    if (threadIdx.x == 0) {
        reached = INT_MAX;
        last = 0;
    }
    uint32_t all_n;
    double all_mass;
    uint32_t n_above = from.n + sum_before(n, &all_n);
    double mass_above = from.mass + sum_before(mass, &all_mass);
    if (n > 0) {
        bool here = g.by_mass ? mass_above + mass >= g.mass : n_above + n >= g.n;
        if (here) {
            atomicMin(&reached, (int32_t)threadIdx.x);
        }
        atomicMax(&last, (int32_t)threadIdx.x);
    }
    __syncthreads();
    if ((int32_t)threadIdx.x == (reached < INT_MAX ? reached : last)) {
        result = {from.bits << DIGIT_BITS | (BINS - 1 - threadIdx.x), n_above, mass_above};
    }
    __syncthreads();
    return result;
}

/* What of a row is kept, and what that weighs. */
struct kept_set {
    uint32_t threshold;
    uint32_t ties; /* kept of those at the threshold */
    uint32_t at;   /* how many are there */
    double mass;
};

__device__ kept_set find_kept(const float *probs, int32_t vocab, const first_counts &first,
                              counts *c, const goal &g)
{
    uint32_t bin = BINS - 1 - threadIdx.x;
    uint32_t bits = bin << 2 * DIGIT_BITS;
    double mass = first.n[bin] * value_of(bits) +
                  ((double)first.high[bin] * BINS + first.low[bin]) * unit_of(bits);
    place p = find_bin({0, 0, 0.0}, g, first.n[bin], mass);
    for (int digit = 1; digit >= 0; digit--) {
        int shift = digit * DIGIT_BITS;
        c->n[threadIdx.x] = c->low[threadIdx.x] = 0;
        __syncthreads();
        for_each_prob(probs, vocab, [&](int32_t, float x) {
            uint32_t b = __float_as_uint(x);
            if (b >> (shift + DIGIT_BITS) == p.bits && b != 0) {
                atomicAdd(&c->n[b >> shift & LOW_MASK], 1u);
                if (digit == 1) {
                    atomicAdd(&c->low[b >> shift & LOW_MASK], b & LOW_MASK);
                }
            }
        });
        __syncthreads();
        bits = (p.bits << DIGIT_BITS | bin) << shift;
        mass = c->n[bin] * value_of(bits) + c->low[bin] * unit_of(bits);
        p = find_bin(p, g, c->n[bin], mass);
    }
    kept_set k = {p.bits, 1, c->n[p.bits & LOW_MASK], 0.0};
    double each = value_of(p.bits);
    double wanted = g.by_mass ? ceil((g.mass - p.mass) / each) : (double)g.n - (double)p.n;
    k.ties = wanted < 1.0 ? 1u : wanted > (double)k.at ? k.at : (uint32_t)wanted;
    k.mass = p.mass + k.ties * each;
    return k;
}

/* The id of the n-th (from 1) of those whose bits are given; a warp counts a stretch of ids. */
__device__ int32_t nth_tie(const float *probs, int32_t vocab, uint32_t bits, uint32_t n)
{
    __shared__ uint32_t of_warp[BT_CUDA_WARP];
    __shared__ int32_t result;
    int lane = (int)threadIdx.x % BT_CUDA_WARP;
    int warp = (int)threadIdx.x / BT_CUDA_WARP;
    int32_t stretch = (vocab + BT_CUDA_WARP - 1) / BT_CUDA_WARP;
    int32_t first = warp * stretch;
    int32_t end = first + stretch < vocab ? first + stretch : vocab;
    auto ties_at = [&](int32_t base) {
        int32_t id = base + lane;
        return __ballot_sync(0xffffffffu, id < end && __float_as_uint(probs[id]) == bits);
    };
    uint32_t count = 0;
    for (int32_t base = first; base < end; base += BT_CUDA_WARP) {
        count += (uint32_t)__popc(ties_at(base));
    }
    if (lane == 0) {
        of_warp[warp] = count;
    }
    __syncthreads();
    uint32_t before = 0;
    for (int i = 0; i < warp; i++) {
        before += of_warp[i];
    }
    if (before < n && n <= before + count) {
        for (int32_t base = first; base < end && before < n; base += BT_CUDA_WARP) {
            uint32_t ties = ties_at(base);
            uint32_t mine = before + (uint32_t)__popc(ties << (BT_CUDA_WARP - 1 - lane));
            if ((ties >> lane & 1u) != 0 && mine == n) {
                result = base + lane;
            }
            before += (uint32_t)__popc(ties);
        }
    }
    __syncthreads();
    return result;
}

__global__ void __launch_bounds__(CUT_THREADS) cut_kernel(task t)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    row_view v = view_of(t, (int32_t)blockIdx.y, (int32_t)blockIdx.x);
    if (!v.sampled || best_of_row(t, v.at).bad) {
        return;
    }
    const bt_cuda_choice &c = t.choices[blockIdx.y];
    bool cut_k = c.top_k > 0 && c.top_k < t.vocab;
    bool cut_p = c.top_p > 0.0f && c.top_p < 1.0f;
    if (!cut_k && !cut_p) {
        double sum = (int32_t)threadIdx.x < t.n_parts ? t.sums[v.at * t.n_parts + threadIdx.x] : 0;
        sum = bt_block_reduce(sum, 0.0, bt_add_op());
        if (threadIdx.x == 0) {
            t.cuts[v.at] = {sum, 0, INT_MAX};
        }
        return;
    }
    __shared__ first_counts first;
    __shared__ counts later;
    first.n[threadIdx.x] = first.high[threadIdx.x] = first.low[threadIdx.x] = 0;
    __syncthreads();
    for_each_prob(v.probs, t.vocab, [&](int32_t, float x) {
        uint32_t b = __float_as_uint(x);
        if (b != 0) { /* many are 0, and weigh nothing */
            atomicAdd(&first.n[b >> 2 * DIGIT_BITS], 1u);
            atomicAdd(&first.high[b >> 2 * DIGIT_BITS], b >> DIGIT_BITS & LOW_MASK);
            atomicAdd(&first.low[b >> 2 * DIGIT_BITS], b & LOW_MASK);
        }
    });
    __syncthreads();
    kept_set k = {};
    if (cut_k) {
        k = find_kept(v.probs, t.vocab, first, &later, {false, (uint32_t)c.top_k, 0.0});
    } else {
        uint32_t bits = threadIdx.x << 2 * DIGIT_BITS;
        double mass =
            first.n[threadIdx.x] * value_of(bits) +
            ((double)first.high[threadIdx.x] * BINS + first.low[threadIdx.x]) * unit_of(bits);
        k.mass = bt_block_reduce(mass, 0.0, bt_add_op());
    }
    if (cut_p) {
        k = find_kept(v.probs, t.vocab, first, &later, {true, 0, (double)c.top_p * k.mass});
    }
    int32_t last_tie = INT_MAX;
    if (k.ties < k.at) {
        last_tie = nth_tie(v.probs, t.vocab, k.threshold, k.ties);
    }
    if (threadIdx.x == 0) {
        t.cuts[v.at] = {k.mass, k.threshold, last_tie};
    }
}

/* ---- choose ---- */

/* The part of a row in which the sums of parts pass x; *before: what lies before it. The last that
 * weighs something when none does. Every warp finds it for itself. */
__device__ int32_t find_part(const double *parts, int32_t n_parts, double x, double *before)
{
    int lane = (int)threadIdx.x % BT_CUDA_WARP;
    double carry = 0.0;
    int32_t last = 0;
    double before_last = 0.0;
    for (int32_t base = 0; base < n_parts; base += BT_CUDA_WARP) {
        double own = base + lane < n_parts ? parts[base + lane] : 0.0;
        double sum = own;
        for (int d = 1; d < BT_CUDA_WARP; d *= 2) {
            double other = __shfl_up_sync(0xffffffffu, sum, d);
            sum = lane >= d ? sum + other : sum;
        }
        double left = __shfl_up_sync(0xffffffffu, sum, 1);
        left = carry + (lane > 0 ? left : 0.0);
        uint32_t weighs = __ballot_sync(0xffffffffu, own > 0.0);
        uint32_t passed = __ballot_sync(0xffffffffu, own > 0.0 && x < carry + sum);
        if (weighs != 0) {
            int which = passed != 0 ? __ffs((int)passed) - 1 : 31 - __clz((int)weighs);
            last = base + which;
            before_last = __shfl_sync(0xffffffffu, left, which);
        }
        if (passed != 0) {
            break;
        }
        carry += __shfl_sync(0xffffffffu, sum, BT_CUDA_WARP - 1);
    }
    *before = before_last;
    return last;
}

/* The first id whose weights, summed in order of ids, pass x; the last that weighs something when
 * rounding lets none. */
template <typename Weight>
__device__ int32_t find_id(const task &t, const double *parts, double x, Weight weight)
{
    __shared__ int32_t found;
    __shared__ int32_t last;
    if (threadIdx.x == 0) {
        found = INT_MAX;
        last = 0;
    }
    double before;
    int32_t part = find_part(parts, t.n_parts, x, &before);
    int32_t first = part * PART + (int32_t)threadIdx.x * PART_EACH;
    double w[PART_EACH];
    double own = 0.0;
    for (int i = 0; i < PART_EACH; i++) {
        w[i] = first + i < t.vocab ? weight(first + i) : 0.0;
        own += w[i];
    }
    double all;
    double sum = before + sum_before(own, &all);
    for (int i = 0; i < PART_EACH; i++) {
        if (w[i] > 0.0) {
            sum += w[i];
            atomicMax(&last, first + i);
            if (x < sum) {
                atomicMin(&found, first + i);
                break;
            }
        }
    }
    __syncthreads();
    int32_t id = found < INT_MAX ? found : last;
    __syncthreads(); /* before the next call sets them */
    return id;
}

/* The token at u of the row's probabilities. */
__device__ int32_t draw_at(const task &t, const row_view &v, double u)
{
    return find_id(t, t.sums + v.at * t.n_parts, u, [&](int32_t i) { return (double)v.probs[i]; });
}

/* In place of a rejected draft token: from (p - q)+. */
__device__ int32_t draw_rest(const task &t, const row_view &v, double u)
{
    const double *rests = t.rests + v.at * t.n_parts;
    double own = (int32_t)threadIdx.x < t.n_parts ? rests[threadIdx.x] : 0.0;
    double total = bt_block_reduce(own, 0.0, bt_add_op());
    if (total <= 0.0) {
        return draw_at(t, v, u);
    }
    return find_id(t, rests, u * total, [&](int32_t i) {
        float p = v.probs[i];
        float q = v.q[i];
        return p > q ? (double)p - (double)q : 0.0;
    });
}

__global__ void __launch_bounds__(PART_THREADS)
    choose_kernel(task t, const int32_t *drafts, bt_cuda_chosen *chosen, int32_t *last)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    int32_t seq = (int32_t)blockIdx.x;
    const bt_cuda_choice c = t.choices[seq];
    bt_cuda_chosen *out = &chosen[seq];
    int32_t n_accepted = 0;
    int32_t n = 0;
    int32_t token = 0;
    bool failed = false;
    for (bool more = c.first_row >= 0; more;) {
        int32_t j = n;
        row_view v = view_of(t, seq, j);
        best b = best_of_row(t, v.at);
        failed = b.bad != 0;
        if (failed) {
            break;
        }
        int64_t position = (int64_t)c.position + j;
        bool judged = j < c.k;
        bool accepted = false;
        if (judged) {
            int32_t d = drafts[(int64_t)seq * t.max_k + j];
            double u = uniform(c.seed, BT_DRAW_ACCEPT, position);
            if (c.force >= 0.0f) {
                accepted = u < (double)c.force;
            } else if (v.sampled) {
                accepted = u * (double)v.q[d] < (double)v.probs[d];
            } else {
                accepted = b.id == d;
            }
            token = d;
        }
        if (!accepted && !v.sampled) {
            token = b.id;
        } else if (!accepted) {
            enum bt_draw purpose = judged ? BT_DRAW_RESIDUAL : BT_DRAW_TOKEN;
            double u = uniform(c.seed, purpose, position);
            token = v.q != nullptr ? draw_rest(t, v, u) : draw_at(t, v, u);
        }
        if (threadIdx.x == 0) {
            out->tokens[n] = token;
        }
        n++;
        n_accepted += accepted;
        more = accepted;
    }
    if (threadIdx.x == 0) {
        out->n_tokens = n;
        out->n_accepted = n_accepted;
        out->failed = failed;
        if (n > 0 && c.slot >= 0) {
            last[c.slot] = token;
        }
    }
}

__global__ void __launch_bounds__(PART_THREADS) choose_draft_kernel(task t, int32_t *drafts)
{
    bt_let_next_begin();
    bt_wait_for_previous();
    int32_t seq = (int32_t)blockIdx.x;
    const bt_cuda_choice c = t.choices[seq];
    row_view v = view_of(t, seq, 0);
    if (!v.live) {
        return;
    }
    best b = best_of_row(t, v.at);
    int32_t token = b.bad ? 0 : b.id;
    if (v.sampled) {
        int64_t position = (int64_t)c.position + t.draft_j;
        token = draw_at(t, v, uniform(c.seed, BT_DRAW_DRAFT, position));
    }
    if (threadIdx.x == 0) {
        drafts[(int64_t)seq * t.max_k + t.draft_j] = token;
    }
}

} // namespace

/* ---- launches ---- */

struct bt_cuda_sampler {
    int32_t vocab, n_parts, max_seqs, max_k;
    best *bests; /* device, as the others: of the caller's arena */
    double *sums;
    double *rests;
    cut *cuts;
};

static enum bt_code take_scratch(struct bt_cuda_sampler *s, struct bt_cuda_arena *arena,
                                 struct bt_error *err)
{
    int64_t rows = (int64_t)s->max_seqs * (s->max_k + 1);
    int64_t parts = rows * s->n_parts;
    void *p = NULL;
    BT_TRY(bt_cuda_arena_take(arena, parts * (int64_t)sizeof *s->bests, &p, err));
    s->bests = static_cast<best *>(p);
    BT_TRY(bt_cuda_arena_take(arena, parts * (int64_t)sizeof *s->sums, &p, err));
    s->sums = static_cast<double *>(p);
    BT_TRY(bt_cuda_arena_take(arena, parts * (int64_t)sizeof *s->rests, &p, err));
    s->rests = static_cast<double *>(p);
    BT_TRY(bt_cuda_arena_take(arena, rows * (int64_t)sizeof *s->cuts, &p, err));
    s->cuts = static_cast<cut *>(p);
    return BT_OK;
}

enum bt_code bt_cuda_sampler_create(struct bt_cuda_arena *arena, int32_t vocab, int32_t max_seqs,
                                    int32_t max_k, struct bt_cuda_sampler **out,
                                    struct bt_error *err)
{
    BT_ASSERT(vocab > 0 && max_seqs > 0 && max_k >= 0 && max_k <= BT_MAX_SPEC_K);
    *out = NULL;
    int32_t most = PART * PART_THREADS; /* a thread looks at one part's sum */
    if (vocab > most) {
        BT_FAIL(err, BT_ERR_ARG, vocab, "sampler: a vocabulary of %d tokens; at most %d", vocab,
                most);
    }
    bt_cuda_sampler *s = static_cast<bt_cuda_sampler *>(calloc(1, sizeof *s));
    if (s == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, (int64_t)sizeof *s, "sampler: no memory");
    }
    s->vocab = vocab;
    s->n_parts = (vocab + PART - 1) / PART;
    s->max_seqs = max_seqs;
    s->max_k = max_k;
    enum bt_code code = take_scratch(s, arena, err);
    if (code != BT_OK) {
        free(s);
        return code;
    }
    *out = s;
    return BT_OK;
}

void bt_cuda_sampler_destroy(struct bt_cuda_sampler *s)
{
    free(s);
}

static task task_of(const struct bt_cuda_sampler *s, float *logits,
                    const struct bt_cuda_choice *choices, float *q)
{
    task t = {};
    t.logits = logits;
    t.q = q;
    t.choices = choices;
    t.vocab = s->vocab;
    t.n_parts = s->n_parts;
    t.max_k = s->max_k;
    t.width = 1;
    t.draft_j = -1;
    t.bests = s->bests;
    t.sums = s->sums;
    t.rests = s->rests;
    t.cuts = s->cuts;
    return t;
}

/* What the choice is made from: the greatest of each row, and probabilities unless all are greedy.
 */
static void launch_probs(const task &t, int32_t n_seqs, bool greedy, cudaStream_t stream)
{
    dim3 parts((unsigned)t.n_parts, (unsigned)t.width, (unsigned)n_seqs);
    bt_launch({parts, dim3(PART_THREADS)}, stream, best_kernel, t);
    if (!greedy) {
        dim3 rows((unsigned)t.width, (unsigned)n_seqs);
        bt_launch({parts, dim3(PART_THREADS)}, stream, probs_kernel, t);
        bt_launch({rows, dim3(CUT_THREADS)}, stream, cut_kernel, t);
        bt_launch({parts, dim3(PART_THREADS)}, stream, norm_kernel, t);
    }
}

void bt_cuda_sample(struct bt_cuda_sampler *s, float *logits, const struct bt_cuda_choice *choices,
                    int32_t n_seqs, bool greedy, const int32_t *drafts, const float *q,
                    struct bt_cuda_chosen *chosen, int32_t *last, struct CUstream_st *stream)
{
    BT_ASSERT(n_seqs > 0 && n_seqs <= s->max_seqs);
    task t = task_of(s, logits, choices, const_cast<float *>(q)); /* the target's side reads it */
    t.width = drafts != NULL ? s->max_k + 1 : 1;
    launch_probs(t, n_seqs, greedy, stream);
    bt_launch({dim3((unsigned)n_seqs), dim3(PART_THREADS)}, stream, choose_kernel, t, drafts,
              chosen, last);
}

void bt_cuda_sample_draft(struct bt_cuda_sampler *s, const float *logits,
                          const struct bt_cuda_choice *choices, int32_t n_seqs, bool greedy,
                          int32_t j, int32_t *drafts, float *q, struct CUstream_st *stream)
{
    BT_ASSERT(n_seqs > 0 && n_seqs <= s->max_seqs && j >= 0 && j < s->max_k);
    task t = task_of(s, const_cast<float *>(logits), choices, q); /* the draft's side reads them */
    t.draft_j = j;
    launch_probs(t, n_seqs, greedy, stream);
    bt_launch({dim3((unsigned)n_seqs), dim3(PART_THREADS)}, stream, choose_draft_kernel, t, drafts);
}
