#include "cli/engine.h"

#include "cli/files.h"
#include "cli/lookup.h"
#include "engine/cpu/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* So much more is cut than in calibration before it is told. */
static const double CLIP_FACTOR = 2;

static enum bt_code check_folder(const char *path, const char *what, struct bt_error *err)
{
    if (path[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0, "%s is missing: a folder with a Hugging Face checkpoint", what);
    }
    if (!bt_is_folder(path)) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "%s: \"%s\" is not a folder (a Hugging Face checkpoint: config.json, "
                "*.safetensors, tokenizer.json)",
                what, path);
    }
    return BT_OK;
}

static void tell_notes(const struct bt_cli *cli, const struct bt_model *m)
{
    for (int32_t i = 0; i < m->n_notes; i++) {
        bt_cli_note(cli, "%s", m->notes[i]);
    }
}

void bt_engine_tell_cover(const struct bt_cli *cli, const struct bt_model *m,
                          int32_t longest_tokens, struct bt_clip_counts clipped)
{
    const struct bt_calib_cover *c = &m->cover;
    if (clipped.n_values == 0) {
        return;
    }
    if (longest_tokens > c->max_tokens) {
        bt_cli_note(cli,
                    "%s: sequences of up to %d tokens, but its static activation scales come from "
                    "sequences of at most %d",
                    m->config.arch.name, longest_tokens, c->max_tokens);
    }
    double share = (double)clipped.n_clipped / (double)clipped.n_values;
    if (share > CLIP_FACTOR * c->clipped_fraction) {
        bt_cli_note(
            cli,
            "%s: %.4g%% of the values left the range of its static activation scales, %.4g%% "
            "in calibration: calibrate on text like this",
            m->config.arch.name, 100 * share, 100 * c->clipped_fraction);
    }
}

/* What was asked for where that is a float, else the backend's own: an INT8 input of the linear
 * layers leaves the rest as it is. */
static enum bt_act_format compute_of(const struct bt_backend *b, const struct bt_config *c,
                                     const struct bt_arch *arch)
{
    enum bt_act_format a = (enum bt_act_format)c->activations;
    if (a == BT_ACT_FP16 || a == BT_ACT_BF16 || a == BT_ACT_FP32) {
        return a;
    }
    if (!b->makes_weights) {
        return BT_ACT_FP32;
    }
    return arch->compute == BT_ACT_FP16 ? BT_ACT_FP16 : BT_ACT_BF16;
}

static enum bt_kv_format kv_of(const struct bt_config *c, enum bt_act_format compute)
{
    if (c->kv_dtype != BT_KV_DEFAULT) {
        return (enum bt_kv_format)c->kv_dtype;
    }
    return compute == BT_ACT_FP16 ? BT_KV_FP16 : compute == BT_ACT_BF16 ? BT_KV_BF16 : BT_KV_FP32;
}

/* Refused before the system kills the program for it. */
static enum bt_code check_memory(const struct bt_arch *arch, const struct bt_model_opts *mo,
                                 struct bt_error *err)
{
    struct bt_weight_opts o = {.quantise_lm_head = mo != NULL && mo->lm_head};
    o.format = bt_weight_format_resolve(mo == NULL ? BT_WEIGHT_DEFAULT : mo->weights, arch);
    int64_t bytes = bt_arch_weight_bytes(arch, &o).total;
    int64_t have = bt_host_memory_bytes();
    if (bytes > have / 10 * 9) {
        BT_FAIL(err, BT_ERR_NOMEM, bytes,
                "%s: %.1f GB of weights, and this machine has %.1f GB of memory (--executor cuda "
                "makes them on a GPU)",
                arch->name, (double)bytes * 1e-9, (double)have * 1e-9);
    }
    return BT_OK;
}

/* Random weights of a catalog model: its shape alone where the executor makes them. */
static enum bt_code make_random(const struct bt_engine_opts *o, const char *name,
                                const struct bt_model_opts *mo, struct bt_model *m,
                                struct bt_error *err)
{
    struct bt_arch arch;
    BT_TRY(bt_lookup_model(o->catalog, name, "model", &arch, err));
    if (!o->backend->makes_weights) {
        BT_TRY(check_memory(&arch, mo, err));
    }
    return o->backend->makes_weights ? bt_model_shape(m, &arch, mo, err)
                                     : bt_model_random(m, &arch, mo, o->seed, err);
}

static enum bt_code check_vocabulary(const struct bt_engine *e, const char *draft_dir,
                                     struct bt_error *err)
{
    if (e->tokenizer == NULL) {
        return BT_OK;
    }
    struct bt_tokenizer *other = NULL;
    struct bt_error ignored = {0};
    if (bt_tokenizer_load_dir(draft_dir, &other, &ignored) == BT_ERR_NOTFOUND) {
        return BT_OK; /* weights alone: the sizes of the vocabularies are compared later */
    }
    if (other == NULL) {
        *err = ignored;
        return ignored.code;
    }
    bool same = bt_tokenizer_vocab_hash(other) == bt_tokenizer_vocab_hash(e->tokenizer);
    bt_tokenizer_destroy(other);
    if (!same) {
        BT_FAIL(
            err, BT_ERR_ARG, 0,
            "--spec: the tokenizer of the draft \"%s\" has another vocabulary than the target's",
            draft_dir);
    }
    return BT_OK;
}

static enum bt_code load_draft(const struct bt_cli *cli, const struct bt_engine_opts *o,
                               struct bt_engine *e, struct bt_error *err)
{
    const struct bt_config *c = o->config;
    if (o->catalog != NULL && !bt_is_folder(c->spec.draft)) {
        BT_TRY(make_random(o, c->spec.draft, NULL, &e->draft, err));
        e->has_draft = true;
        return BT_OK;
    }
    BT_TRY(check_folder(c->spec.draft, "--spec: draft", err));
    BT_TRY(check_vocabulary(e, c->spec.draft, err));
    BT_TRY(bt_model_load(&e->draft, c->spec.draft, NULL, err));
    e->has_draft = true;
    tell_notes(cli, &e->draft);
    return BT_OK;
}

static enum bt_code load_medusa(const struct bt_engine_opts *o, struct bt_engine *e,
                                struct bt_error *err)
{
    char path[4096];
    const char *dir = o->medusa_dir;
    if (dir == NULL) {
        dir = o->config->model;
        size_t n = strlen(dir);
        while (n > 1 && dir[n - 1] == '/') {
            n--;
        }
        (void)snprintf(path, sizeof path, "%.*s/medusa.safetensors", (int)n, dir);
        struct stat st;
        if (stat(path, &st) != 0) {
            (void)snprintf(path, sizeof path, "%.*s-medusa", (int)n, dir);
            dir = path;
        }
    }
    BT_TRY(check_folder(dir, "--medusa", err));
    BT_TRY(bt_medusa_load(&e->medusa, dir, e->model.config.arch.hidden, err));
    e->has_medusa = true;
    if (o->config->spec.medusa_heads > e->medusa.n_heads) {
        BT_FAIL(err, BT_ERR_ARG, o->config->spec.medusa_heads,
                "--spec: medusa = %d, but \"%s\" has %d heads", o->config->spec.medusa_heads, dir,
                e->medusa.n_heads);
    }
    return BT_OK;
}

static enum bt_code load_all(const struct bt_cli *cli, const struct bt_engine_opts *o,
                             struct bt_engine *e, struct bt_error *err)
{
    const struct bt_config *c = o->config;
    e->backend = o->backend;
    e->random = o->catalog != NULL && c->model[0] != '\0' && !bt_is_folder(c->model);
    if (!e->random) {
        BT_TRY(check_folder(c->model, "--model", err));
    }
    if (o->tokenizer) {
        BT_TRY(bt_tokenizer_load_dir(c->model, &e->tokenizer, err));
    }
    struct bt_model_opts mo = {
        .weights = (enum bt_weight_format)c->weights,
        .activations = (enum bt_act_format)c->activations,
        .lm_head = o->lm_head,
        .embeddings = o->embeddings,
        .norms = o->norms,
    };
    BT_TRY(e->random ? make_random(o, c->model, &mo, &e->model, err)
                     : bt_model_load(&e->model, c->model, &mo, err));
    tell_notes(cli, &e->model);
    e->compute = compute_of(o->backend, c, &e->model.config.arch);
    e->kv = kv_of(c, e->compute);
    if (c->spec.kind == BT_SPEC_DRAFT) {
        BT_TRY(load_draft(cli, o, e, err));
    }
    if (c->spec.kind == BT_SPEC_MEDUSA) {
        BT_TRY(load_medusa(o, e, err));
    }
    return BT_OK;
}

enum bt_code bt_engine_load(const struct bt_cli *cli, const struct bt_engine_opts *opts,
                            struct bt_engine *e, struct bt_error *err)
{
    memset(e, 0, sizeof *e);
    enum bt_code code = load_all(cli, opts, e, err);
    if (code != BT_OK) {
        bt_engine_fini(e);
    }
    return code;
}

void bt_engine_fini(struct bt_engine *e)
{
    bt_tokenizer_destroy(e->tokenizer);
    if (e->has_medusa) {
        bt_medusa_fini(&e->medusa);
    }
    if (e->has_draft) {
        bt_model_fini(&e->draft);
    }
    bt_model_fini(&e->model);
    memset(e, 0, sizeof *e);
}

struct bt_executor_opts bt_engine_executor_opts(const struct bt_engine *e,
                                                const struct bt_config *c)
{
    struct bt_executor_opts o = {
        .model = &e->model,
        .draft = e->has_draft ? &e->draft : NULL,
        .medusa = e->has_medusa ? &e->medusa : NULL,
        .compute = e->compute,
        .kv = e->kv,
        .block_tokens = c->kv_block_tokens,
        .max_model_len = c->max_model_len,
        .unfused = !c->fused,
        .gpu_memory_bytes = c->gpu_memory_bytes,
        .pcie_bytes_per_s = c->pcie_bytes_per_s,
    };
    if (e->random && c->spec.n_acceptance > 0) {
        o.force_acceptance = c->spec.acceptance[0];
    }
    if (e->kv == BT_KV_INT8 && c->kv_long_above_tokens > 0) {
        o.kv_16bit = e->model.config.arch.compute == BT_ACT_FP16 ? BT_KV_FP16 : BT_KV_BF16;
    }
    switch (c->spec.kind) {
    case BT_SPEC_NONE:
        break;
    case BT_SPEC_DRAFT:
        o.spec_k = c->spec.k;
        break;
    case BT_SPEC_SELF:
        o.self_layers = c->spec.self_layers;
        o.spec_k = c->spec.k;
        break;
    case BT_SPEC_MEDUSA:
        o.spec_k = c->spec.medusa_heads;
        break;
    }
    return o;
}

/* Cost of a draft token in tokens of the target, by FLOPs: what the adaptive K weighs. */
static double draft_cost(const struct bt_engine *e, const struct bt_config *c)
{
    const struct bt_arch *t = &e->model.config.arch;
    double target = bt_arch_linear_flops(t) + bt_arch_lm_head_flops(t);
    double draft = bt_arch_lm_head_flops(t);
    if (e->has_draft) {
        const struct bt_arch *d = &e->draft.config.arch;
        draft = bt_arch_linear_flops(d) + bt_arch_lm_head_flops(d);
    } else if (c->spec.kind == BT_SPEC_SELF) {
        draft += bt_arch_linear_flops(t) * c->spec.self_layers / t->n_layers;
    }
    return draft / target;
}

struct bt_sched_opts bt_engine_sched_opts(const struct bt_engine *e, const struct bt_config *c)
{
    struct bt_sched_opts o = {
        .batching = (enum bt_batching)c->batching,
        .max_seqs_auto = c->max_seqs == BT_AUTO,
        .max_batched_tokens = c->max_batched_tokens,
        .chunked_prefill = c->chunked_prefill,
        .over_length = (enum bt_over_length)c->over_length,
        .long_above_tokens = e->kv == BT_KV_INT8 ? c->kv_long_above_tokens : 0,
        .prefix_cache = c->prefix_cache,
        .preempt = (enum bt_preempt)c->preempt,
        .preempt_goal = (enum bt_preempt_goal)c->preempt_goal,
        .victim = (enum bt_victim)c->victim,
        .order = (enum bt_order)c->order,
        .priority_preempts = c->priority_preempts,
        .max_waiting = c->max_waiting,
        .window_low_ns = c->window_low_ns,
        .window_high_ns = c->window_high_ns,
        .degrade = {.at_waiting = c->degrade_at_waiting, .max_new_tokens = c->degrade_max_tokens},
    };
    if (c->spec.kind != BT_SPEC_NONE) {
        o.spec.k_adaptive = c->spec.k_adaptive;
        o.spec.draft_cost_ratio = draft_cost(e, c);
        o.spec.off_above_batch = c->spec.off_above_batch;
    }
    return o;
}

enum bt_code bt_engine_encode(const struct bt_engine *e, const char *text, size_t n_bytes,
                              const char *what, struct bt_ids *out, struct bt_error *err)
{
    BT_TRY(bt_tokenizer_encode(e->tokenizer, text, n_bytes, NULL, out, err));
    if (out->n == 0) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: the text is empty", what);
    }
    int32_t vocab = e->model.config.arch.vocab;
    for (int64_t i = 0; i < out->n; i++) {
        if (out->ids[i] >= vocab) {
            BT_FAIL(err, BT_ERR_INPUT, out->ids[i],
                    "%s: the tokenizer gives id %d, but the model has %d rows", what, out->ids[i],
                    vocab);
        }
    }
    return BT_OK;
}

enum bt_code bt_engine_encode_file(const struct bt_engine *e, const char *path, struct bt_ids *out,
                                   struct bt_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    BT_TRY(bt_read_file(path, &text, &n_bytes, err));
    enum bt_code code = bt_engine_encode(e, text, n_bytes, path, out, err);
    free(text);
    return code;
}
