/* A generation request as an executor needs it: the tokens, how to sample, and where the answer
 * goes. The scheduler counts tokens and never sees one; `user` in its plans is an index into the
 * table of these that executor and serving loop share.
 *
 * Ownership: the caller's; the executor appends to `out`. Threading: one thread.
 */
#ifndef BT_ENGINE_GEN_H
#define BT_ENGINE_GEN_H

#include "engine/core/limits.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_sampling {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* only the k likeliest; 0: all */
    float top_p;       /* only the likeliest that together reach p; 0 or 1: all */
    uint64_t seed;
};

/* What verifications of a request came to. Conditional acceptance at i is accepted / reached. */
struct bt_spec_counts {
    int32_t n_verifications;
    int32_t n_proposed;
    int32_t n_emitted;               /* bonus tokens included */
    int32_t reached[BT_MAX_SPEC_K];  /* verifications in which draft token i was judged */
    int32_t accepted[BT_MAX_SPEC_K]; /* of those, accepted */
};

struct bt_gen_request {
    const int32_t *prompt; /* borrowed, [n_prompt], ids within the vocabulary */
    int32_t n_prompt;      /* > 0 */
    int32_t max_new_tokens;
    bool ignore_eos; /* the answer has max_new_tokens tokens, whatever they are */
    struct bt_sampling sampling;
    const char *kind; /* borrowed; kind of text, for acceptance by kind; may be NULL */

    int32_t *out;  /* borrowed, [max_new_tokens] */
    int32_t n_out; /* tokens in it */
    struct bt_spec_counts spec;
};

struct bt_gen_table {
    struct bt_gen_request *requests; /* borrowed; may move between steps, not within one */
    int64_t n;
};

/* Token i of prompt and answer. */
static inline int32_t bt_gen_token(const struct bt_gen_request *r, int32_t i)
{
    return i < r->n_prompt ? r->prompt[i] : r->out[i - r->n_prompt];
}

/* Adds the counts of one request to a sum, of all requests or of those of a kind. */
static inline void bt_spec_counts_add(struct bt_spec_counts *sum, const struct bt_spec_counts *one)
{
    sum->n_verifications += one->n_verifications;
    sum->n_proposed += one->n_proposed;
    sum->n_emitted += one->n_emitted;
    for (int32_t i = 0; i < BT_MAX_SPEC_K; i++) {
        sum->reached[i] += one->reached[i];
        sum->accepted[i] += one->accepted[i];
    }
}

#ifdef __cplusplus
}
#endif

#endif
