#include "sim/hardware/stack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (INT64_C(1) << 20)
#define GIB (INT64_C(1) << 30)

enum { VERSION_MAJOR = 1000, ANY_PATCH = 1000 };

#define V(major, minor) ((major)*VERSION_MAJOR + (minor))

/* What the families of an engine have in common; a family's own figures follow it. */
#define VLLM .engine = BT_STACK_VLLM, .block_tokens = 16

#define VLLM_V0                                                                                    \
    VLLM, .v0 = true, .mem_fraction = 0.90, .max_seqs = 256, .inflight = 1, .watermark = 0.01,     \
          .host_bytes = 4 * GIB

#define VLLM_V1                                                                                    \
    VLLM, .reading = BT_VLLM_SPLIT, .hidden_copies = 1, .hybrid_groups = true,                     \
          .chunked_prefill = true, .prefix_cache = true

#define TRTLLM                                                                                     \
    .engine = BT_STACK_TRTLLM, .mem_fraction = 0.90, .hidden_copies = 6,                           \
    .sampler_bytes_per_logit = 12, .context_bytes = 900 * MIB, .rank_bytes = 512 * MIB,            \
    .max_seqs = 2048, .batched_tokens = 8192, .prefix_cache = true

#define SGLANG                                                                                     \
    .engine = BT_STACK_SGLANG, .block_tokens = 1, .max_seqs = 2048, .chunked_prefill = true,       \
    .prefix_cache = true

/* In order: the first family that holds a version is its family. What the figures rest on:
 * docs/STACKS.md. */
static const struct bt_stack_family families[] = {
    {
        .name = "berth",
        .engine = BT_STACK_BERTH,
        .mem_fraction = 0.90,
        .block_tokens = 16,
        .max_seqs = 256,
        .batched_tokens = 2048,
        .chunked_prefill = true,
        .prefix_cache = true,
        .inflight = 1,
        .watermark = 0.01,
        .host_bytes = 64 * GIB,
    },
    {
        VLLM_V0,
        .name = "vLLM 0.1 to 0.2.4",
        .from = V(0, 1),
        .until = V(0, 2),
        .until_patch = 4,
        .reading = BT_VLLM_ALLOCATED,
        .hidden_copies = 3,
        .sampler_bytes_per_logit = 66,
    },
    {
        VLLM_V0,
        .name = "vLLM 0.2.5 and 0.2.6",
        .from = V(0, 2),
        .from_patch = 5,
        .until = V(0, 2),
        .until_patch = 6,
        .reading = BT_VLLM_RESERVED,
        .hidden_copies = 3,
        .sampler_bytes_per_logit = 66,
        .context_bytes = 717 * MIB,
        .rank_bytes = 1024 * MIB,
        .all_reduce_keeps = true,
    },
    {
        VLLM_V0,
        .name = "vLLM 0.2.7 to 0.5.3",
        .from = V(0, 2),
        .from_patch = 7,
        .until = V(0, 5),
        .until_patch = 3,
        .reading = BT_VLLM_RESERVED,
        .hidden_copies = 3,
        .sampler_bytes_per_logit = 38,
        .context_bytes = 717 * MIB,
        .rank_bytes = 512 * MIB,
    },
    {
        VLLM_V0,
        .name = "vLLM 0.5.4 to 0.6.2",
        .from = V(0, 5),
        .from_patch = 4,
        .until = V(0, 6),
        .until_patch = 2,
        .reading = BT_VLLM_RESERVED,
        .hidden_copies = 3,
        .sampler_bytes_per_logit = 38,
        .context_bytes = 717 * MIB,
        .rank_bytes = 512 * MIB,
        .chunk_tokens = 512,
        .chunk_above = 32768,
    },
    {
        VLLM_V0,
        .name = "vLLM 0.6.3 to 0.6.6 (V0)",
        .from = V(0, 6),
        .from_patch = 3,
        .until = V(0, 6),
        .until_patch = ANY_PATCH,
        .reading = BT_VLLM_SPLIT,
        .hidden_copies = 3,
        .sampler_bytes_per_logit = 38,
        .context_bytes = 276 * MIB,
        .rank_bytes = 128 * MIB,
        .chunk_tokens = 512,
        .chunk_above = 32768,
    },
    {
        VLLM_V0,
        .name = "vLLM 0.7 to 0.10 (V0)",
        .from = V(0, 7),
        .until = V(0, 10),
        .until_patch = ANY_PATCH,
        .reading = BT_VLLM_SPLIT,
        .hidden_copies = 4,
        .sampler_bytes_per_logit = 38,
        .context_bytes = 31 * MIB,
        .rank_bytes = 184 * MIB,
        .chunk_tokens = 2048,
        .chunk_above = 32768,
    },
    {
        VLLM_V1,
        .name = "vLLM 0.8 to 0.13",
        .from = V(0, 8),
        .until = V(0, 13),
        .until_patch = ANY_PATCH,
        .mem_fraction = 0.90,
        .sampler_bytes_per_logit = 38,
        .context_bytes = 51 * MIB,
        .rank_bytes = 51 * MIB,
        .inflight = 1,
    },
    {
        VLLM_V1,
        .name = "vLLM 0.14 to 0.16",
        .from = V(0, 14),
        .until = V(0, 16),
        .until_patch = ANY_PATCH,
        .mem_fraction = 0.90,
        .sampler_bytes_per_logit = 38,
        .context_bytes = 51 * MIB,
        .rank_bytes = 51 * MIB,
        .inflight = 2,
    },
    {
        VLLM_V1,
        .name = "vLLM 0.17 to 0.20",
        .from = V(0, 17),
        .until = V(0, 20),
        .until_patch = ANY_PATCH,
        .mem_fraction = 0.90,
        .sampler_bytes_per_logit = 14,
        .sampler_fixed_bytes = 80 * MIB,
        .context_bytes = 205 * MIB,
        .rank_bytes = 256 * MIB,
        .desktop_bytes = 400 * MIB,
        .inflight = 2,
    },
    {
        VLLM_V1,
        .name = "vLLM 0.21 to 0.30",
        .from = V(0, 21),
        .until = V(0, 30),
        .until_patch = ANY_PATCH,
        .mem_fraction = 0.92,
        .sampler_bytes_per_logit = 14,
        .sampler_fixed_bytes = 80 * MIB,
        .context_bytes = 205 * MIB,
        .rank_bytes = 256 * MIB,
        .graphs_inside = true,
        .inflight = 2,
    },
    {
        TRTLLM,
        .name = "TensorRT-LLM before 1.0 (engines)",
        .from = V(0, 5),
        .until = V(0, 21),
        .until_patch = ANY_PATCH,
        .block_tokens = 64,
        .inflight = 1,
    },
    {
        TRTLLM,
        .name = "TensorRT-LLM 1.0 to 1.4",
        .from = V(1, 0),
        .until = V(1, 4),
        .until_patch = ANY_PATCH,
        .block_tokens = 32,
        .inflight = 2,
    },
    {
        SGLANG,
        .name = "SGLang 0.3",
        .from = V(0, 3),
        .until = V(0, 3),
        .until_patch = ANY_PATCH,
        .mem_fraction = 0.88,
        .context_bytes = 450 * MIB,
        .rank_bytes = 128 * MIB,
        .inflight = 1,
    },
    {
        SGLANG,
        .name = "SGLang 0.4",
        .from = V(0, 4),
        .until = V(0, 4),
        .until_patch = ANY_PATCH,
        .mem_fraction = 0.88,
        .context_bytes = 450 * MIB,
        .rank_bytes = 128 * MIB,
        .inflight = 2,
    },
    {
        SGLANG,
        .name = "SGLang 0.5",
        .from = V(0, 5),
        .until = V(0, 5),
        .until_patch = ANY_PATCH,
        .context_bytes = 717 * MIB,
        .rank_bytes = 256 * MIB,
        .inflight = 2,
    },
};

enum { N_FAMILIES = sizeof families / sizeof *families };

static const char *const names[] = {"berth", "vllm-0.19", "trtllm-1.0", "sglang-0.5", NULL};

const char *const *bt_stack_names(void)
{
    return names;
}

struct engine_name {
    const char *name;
    enum bt_stack_engine engine;
    const char *versions; /* that are modelled, in words */
};

static const struct engine_name engine_names[] = {
    {"vllm", BT_STACK_VLLM, "vllm-0.1 to 0.30 (0.7 to 0.10 with -v0 or -v1)"},
    {"trtllm", BT_STACK_TRTLLM, "trtllm-0.5 to 0.21 and 1.0 to 1.4"},
    {"sglang", BT_STACK_SGLANG, "sglang-0.3 to 0.5"},
};

static bool holds(const struct bt_stack_family *f, int32_t version, int32_t patch)
{
    bool after = version > f->from || (version == f->from && patch >= f->from_patch);
    bool before = version < f->until || (version == f->until && patch <= f->until_patch);
    return after && before;
}

/* "0.19", "0.19.0": each part at most three digits. */
static const char *read_version(const char *p, struct bt_stack *s)
{
    int32_t *const parts[] = {&s->major, &s->minor, &s->patch};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strspn(p, "0123456789");
        if (n == 0 || n > 3) {
            return NULL;
        }
        *parts[i] = (int32_t)strtol(p, NULL, 10);
        p += n;
        bool more = *p == '.' && i + 1 < sizeof parts / sizeof *parts;
        if (!more) {
            return i == 0 ? NULL : p;
        }
        p++;
    }
    return p;
}

static const struct bt_stack_family *find_family(enum bt_stack_engine engine,
                                                 const struct bt_stack *s, const char *suffix)
{
    bool wants_v0 = strcmp(suffix, "-v0") == 0;
    bool wants_v1 = strcmp(suffix, "-v1") == 0;
    if (suffix[0] != '\0' && (engine != BT_STACK_VLLM || !(wants_v0 || wants_v1))) {
        return NULL;
    }
    int32_t version = V(s->major, s->minor);
    bool v0_by_default = version < V(0, 8);
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const struct bt_stack_family *f = &families[i];
        bool v0 = wants_v0 || (!wants_v1 && v0_by_default);
        if (f->engine == engine && holds(f, version, s->patch) &&
            (engine != BT_STACK_VLLM || f->v0 == v0)) {
            return f;
        }
    }
    return NULL;
}

enum bt_code bt_stack_find(const char *name, struct bt_stack *out, struct bt_error *err)
{
    *out = (struct bt_stack){.family = &families[0]};
    if (name == NULL || name[0] == '\0' || strcmp(name, "berth") == 0) {
        return BT_OK;
    }
    for (size_t i = 0; i < sizeof engine_names / sizeof *engine_names; i++) {
        size_t n = strlen(engine_names[i].name);
        if (strncmp(name, engine_names[i].name, n) != 0 || (name[n] != '-' && name[n] != '\0')) {
            continue;
        }
        const char *rest = name[n] == '-' ? read_version(name + n + 1, out) : NULL;
        if (rest == NULL) {
            BT_FAIL(
                err, BT_ERR_ARG, 0,
                "stack: \"%s\" lacks its version, which decides memory and defaults; there are %s",
                name, engine_names[i].versions);
        }
        out->family = find_family(engine_names[i].engine, out, rest);
        if (out->family == NULL) {
            BT_FAIL(err, BT_ERR_ARG, 0,
                    "stack: \"%s\" is no version that is modelled; there are %s", name,
                    engine_names[i].versions);
        }
        return BT_OK;
    }
    BT_FAIL(err, BT_ERR_ARG, 0,
            "stack: \"%s\" is not known; known: %s, %s, %s, %s and other versions of these", name,
            names[0], names[1], names[2], names[3]);
}

/* vLLM's larger defaults are for cards of 70 GiB and more, the A100 left out. */
static bool is_large_for_vllm(const struct bt_gpu *gpu)
{
    return gpu->usable_bytes >= 70 * GIB && gpu->family != BT_GPU_AMPERE;
}

/* SGLang's chunk by the card's memory; until 0.4 two sizes of card. */
static int32_t sglang_chunk(const struct bt_stack_family *f, const struct bt_gpu *gpu)
{
    if (f->mem_fraction > 0) {
        return gpu->usable_bytes < 25 * GIB ? 2048 : 8192;
    }
    if (gpu->usable_bytes < 35 * GIB) {
        return 2048;
    }
    if (gpu->usable_bytes < 60 * GIB) {
        return 4096;
    }
    return gpu->usable_bytes < 160 * GIB ? 8192 : 16384;
}

/* Largest decode batch that SGLang captures as a graph. */
static int32_t sglang_graph_seqs(const struct bt_gpu *gpu, int32_t tp)
{
    if (gpu->usable_bytes < 20 * GIB) {
        return 8;
    }
    if (gpu->usable_bytes < 35 * GIB) {
        return tp < 4 ? 24 : 80;
    }
    if (gpu->usable_bytes < 60 * GIB) {
        return tp < 4 ? 32 : 160;
    }
    return gpu->usable_bytes < 160 * GIB && tp < 4 ? 256 : 512;
}

/* SGLang's static share: all but what it expects activations and graphs to take, in MiB. */
static double sglang_fraction(const struct bt_gpu *gpu, int32_t chunk, int32_t tp)
{
    double card = (double)gpu->usable_bytes / (double)MIB;
    double reserved = 512 + 1.5 * (chunk > 2048 ? chunk : 2048) + 2.0 * sglang_graph_seqs(gpu, tp) +
                      tp / 8.0 * 1024;
    if (card > 60 * 1024 && reserved < 10 * 1024) {
        reserved = 10 * 1024;
    }
    double fraction = round((card - reserved) / card * 1000) / 1000;
    return fraction > 0.05 ? fraction : 0.05;
}

int32_t bt_stack_batched_tokens(const struct bt_stack *s, const struct bt_gpu *gpu,
                                int32_t max_model_len)
{
    const struct bt_stack_family *f = s->family;
    if (f->batched_tokens > 0) {
        return f->batched_tokens;
    }
    if (f->engine == BT_STACK_SGLANG) {
        return sglang_chunk(f, gpu);
    }
    if (f->v0) {
        bool chunked = f->chunk_above > 0 && max_model_len > f->chunk_above;
        return chunked ? f->chunk_tokens : max_model_len > 2048 ? max_model_len : 2048;
    }
    return is_large_for_vllm(gpu) ? 8192 : 2048;
}

int32_t bt_stack_max_seqs(const struct bt_stack *s, const struct bt_gpu *gpu)
{
    if (s->family->max_seqs > 0) {
        return s->family->max_seqs;
    }
    return is_large_for_vllm(gpu) ? 1024 : 256;
}

/* SGLang's static share until 0.4: less for more ranks. */
static double sglang_fraction_of_ranks(double alone, int32_t tp)
{
    static const struct {
        int32_t tp;
        double less;
    } steps[] = {{16, 0.09}, {8, 0.07}, {4, 0.03}, {2, 0.01}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (tp >= steps[i].tp) {
            return alone - steps[i].less;
        }
    }
    return alone;
}

double bt_stack_mem_fraction(const struct bt_stack *s, const struct bt_gpu *gpu,
                             int32_t batched_tokens, int32_t tp)
{
    const struct bt_stack_family *f = s->family;
    if (f->engine != BT_STACK_SGLANG) {
        return f->mem_fraction;
    }
    return f->mem_fraction > 0 ? sglang_fraction_of_ranks(f->mem_fraction, tp)
                               : sglang_fraction(gpu, batched_tokens, tp);
}

int32_t bt_stack_graphs(const struct bt_stack *s, int32_t max_seqs)
{
    if (s->family->engine != BT_STACK_VLLM || s->family->v0) {
        return 0;
    }
    /* 1, 2, 4, then every 8 up to 256, every 16 up to 512, at most twice the sequences: for mixed
     * steps; and those up to the sequences again for steps of decodes alone. */
    int32_t most = 2 * max_seqs < 512 ? 2 * max_seqs : 512;
    int32_t n = 0;
    for (int32_t size = 1; size <= most; size += size < 4     ? size
                                                 : size < 8   ? 4
                                                 : size < 256 ? 8
                                                              : 16) {
        n += size <= max_seqs ? 2 : 1;
    }
    return n;
}

static bool given(const struct bt_config *c, const char *path)
{
    return bt_config_is_given(c, bt_config_find(path));
}

enum bt_code bt_stack_apply(struct bt_config *c, const struct bt_gpu *gpu, int32_t max_position,
                            struct bt_error *err)
{
    struct bt_stack s;
    BT_TRY(bt_stack_find(c->stack, &s, err));
    const struct bt_stack_family *f = s.family;
    if (f->engine == BT_STACK_BERTH) {
        return BT_OK;
    }
    int32_t len = c->max_model_len > 0 ? c->max_model_len : max_position;
    if (!given(c, "batching.max_batched_tokens")) {
        c->max_batched_tokens = bt_stack_batched_tokens(&s, gpu, len);
    }
    if (!given(c, "batching.max_seqs")) {
        int32_t seqs = bt_stack_max_seqs(&s, gpu);
        c->max_seqs = seqs < c->max_batched_tokens ? seqs : c->max_batched_tokens;
    }
    if (c->max_seqs > c->max_batched_tokens) {
        BT_FAIL(err, BT_ERR_ARG, c->max_seqs,
                "batching.max_seqs: %d is more than the %d tokens that %s plans in a step on %s; "
                "give batching.max_batched_tokens",
                c->max_seqs, c->max_batched_tokens, c->stack, gpu->name);
    }
    if (!given(c, "batching.chunked_prefill")) {
        c->chunked_prefill =
            f->chunked_prefill || (f->v0 && f->chunk_above > 0 && len > f->chunk_above);
    }
    if (!given(c, "batching.inflight")) {
        c->inflight = c->spec.kind == BT_SPEC_NONE ? f->inflight : 1;
    }
    if (!given(c, "mem_fraction")) {
        c->mem_fraction = bt_stack_mem_fraction(&s, gpu, c->max_batched_tokens, c->tp);
    }
    if (!given(c, "kv.block_tokens")) {
        c->kv_block_tokens = f->block_tokens;
    }
    if (!given(c, "prefix_cache")) {
        c->prefix_cache = f->prefix_cache;
    }
    if (!given(c, "watermark")) {
        c->watermark = f->watermark;
    }
    if (!given(c, "host_memory") && f->host_bytes > 0) {
        c->host_memory_bytes = f->host_bytes * c->tp;
    }
    return BT_OK;
}
