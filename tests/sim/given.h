/* Small worlds without a model: a cost model whose times are given, deployments made by hand,
 * sources that draw their requests. For tests and benchmarks. */
#ifndef BT_TESTS_SIM_GIVEN_H
#define BT_TESTS_SIM_GIVEN_H

#include "engine/core/rng.h"
#include "sim/run.h"

/* A step takes fixed + per prefill token + per decoding sequence + per context token. */
struct given_cost {
    int64_t step_ps, prefill_token_ps, decode_ps, ctx_ps, host_ns;
    int64_t copy_block_ps;
};

static inline void given_step(const void *self, const struct bt_batch *b, struct bt_cost_parts *out)
{
    const struct given_cost *c = self;
    *out = (struct bt_cost_parts){
        .time_ps = c->step_ps + c->prefill_token_ps * b->n_prefill_tokens +
                   c->decode_ps * b->n_decode + c->ctx_ps * b->decode_ctx,
        .flops = b->n_decode_tokens + b->n_prefill_tokens,
        .bytes = b->decode_ctx,
        .host_ns = c->host_ns,
    };
}

static inline void given_span(const void *self, const struct bt_batch *b, int32_t n,
                              struct bt_cost_parts *out)
{
    struct bt_batch at = *b;
    *out = (struct bt_cost_parts){0};
    for (int32_t i = 0; i < n; i++) {
        struct bt_cost_parts one;
        given_step(self, &at, &one);
        out->time_ps += one.time_ps;
        out->flops += one.flops;
        out->bytes += one.bytes;
        out->host_ns += one.host_ns;
        at.decode_ctx += at.n_decode;
    }
}

static inline int64_t given_copy(const void *self, enum bt_copy_kind kind, int32_t n_blocks)
{
    const struct given_cost *c = self;
    return kind == BT_COPY_COW ? 1000 * (int64_t)n_blocks : c->copy_block_ps * n_blocks;
}

static inline void given_destroy(void *self)
{
    (void)self;
}

static const struct bt_cost_ops given_ops = {.name = "given",
                                             .step = given_step,
                                             .span = given_span,
                                             .copy_ps = given_copy,
                                             .destroy = given_destroy};

/* A deployment of `given` times: continuous batching over n_blocks blocks of block_tokens. */
static inline struct bt_deploy given_deploy(struct given_cost *cost, int32_t max_seqs,
                                            int32_t n_blocks, int32_t block_tokens)
{
    struct bt_deploy d = {
        .cost = {.ops = &given_ops, .self = cost, .duplex_share = 1, .step_error = -1},
        .max_model_len = 1 << 20,
        .sched = {.max_seqs = max_seqs,
                  .max_batched_tokens = 1 << 20,
                  .chunked_prefill = true,
                  .max_model_len = 1 << 20,
                  .over_length = BT_OVER_REJECT,
                  .n_blocks = n_blocks,
                  .block_tokens = block_tokens,
                  .block_bytes = 1024,
                  .inflight_max = 1},
    };
    d.config.route = BT_ROUTE_LEAST_LOADED;
    return d;
}

/* Requests drawn one by one: nothing of the stream is kept. */
struct drawn_source {
    struct bt_source source;
    struct bt_rng arrival, length;
    uint64_t seed;
    int64_t n, i, t_ns;
    double gap_ns;          /* mean, exponential; 0: all at once */
    double prompt_mean;     /* exponential when > 0 .. */
    int32_t prompt, output; /* .. else fixed */
    int32_t output_range;   /* uniform in output .. output + range - 1 */
    int64_t think_ns;
    int64_t timeout_ns;
    int32_t priorities; /* classes drawn evenly; 0: one */
};

static inline enum bt_code drawn_rewind(void *self, struct bt_error *err)
{
    struct drawn_source *s = self;
    (void)err;
    bt_rng_init(&s->arrival, s->seed, "arrival", 0);
    bt_rng_init(&s->length, s->seed, "length", 0);
    s->i = 0;
    s->t_ns = 0;
    return BT_OK;
}

static inline enum bt_source_status drawn_next(void *self, struct bt_request *out,
                                               struct bt_error *err)
{
    struct drawn_source *s = self;
    (void)err;
    if (s->i == s->n) {
        return BT_SOURCE_END;
    }
    s->t_ns += (int64_t)(s->gap_ns * bt_rng_exponential(&s->arrival));
    int32_t prompt = s->prompt;
    if (s->prompt_mean > 0) {
        prompt = (int32_t)(s->prompt_mean * bt_rng_exponential(&s->length) + 0.5);
        prompt = prompt > 0 ? prompt : 1;
    }
    int32_t output = s->output;
    if (s->output_range > 1) {
        output += (int32_t)bt_rng_below(&s->length, (uint64_t)s->output_range);
    }
    *out = (struct bt_request){
        .arrival_ns = s->source.closed_users > 0 ? BT_ARRIVAL_ON_COMPLETION : s->t_ns,
        .think_ns = s->think_ns,
        .timeout_ns = s->timeout_ns,
        .id = s->i++,
        .n_prompt = prompt,
        .n_output = output,
        .priority =
            s->priorities > 0 ? (int32_t)bt_rng_below(&s->length, (uint64_t)s->priorities) : 0,
        .session = -1,
    };
    return BT_SOURCE_MORE;
}

static inline void drawn_destroy(void *self)
{
    (void)self;
}

static const struct bt_source_ops drawn_ops = {
    .name = "drawn", .next = drawn_next, .rewind = drawn_rewind, .destroy = drawn_destroy};

static inline struct bt_source *drawn_start(struct drawn_source *s)
{
    s->source.ops = &drawn_ops;
    s->source.self = s;
    (void)drawn_rewind(s, NULL);
    return &s->source;
}

#endif
