#include "cli/world.h"

#include "cli/fit_file.h"
#include "cli/lookup.h"
#include "db/calibrations/calibrations.h"
#include "engine/cpu/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES_WANTED = 1000 }; /* of a time series */

static enum bt_code env_find_model(void *ctx, const char *name, struct bt_arch *out,
                                   struct bt_error *err)
{
    const struct bt_world *w = ctx;
    return bt_lookup_model(w->catalog, name, "model", out, err);
}

static enum bt_code env_find_gpu(void *ctx, const char *name, struct bt_gpu *out,
                                 struct bt_error *err)
{
    const struct bt_world *w = ctx;
    if (w->has_host && strcmp(name, w->host.name) == 0) {
        *out = w->host;
        return BT_OK;
    }
    if (strcmp(name, "host") == 0 && bt_local_host(&w->local) == NULL) {
        BT_FAIL(err, BT_ERR_NOTFOUND, 0,
                "gpu: \"host\": this machine is not calibrated yet: berth calibrate --model DIR");
    }
    const struct bt_catalog_gpu *gpu = NULL;
    BT_TRY(bt_catalog_find_gpu(w->catalog, name, "gpu", &gpu, err));
    *out = gpu->gpu;
    return BT_OK;
}

static double env_gpu_price(void *ctx, const char *gpu)
{
    const struct bt_world *w = ctx;
    const struct bt_catalog_gpu *row = NULL;
    if (bt_catalog_find_gpu(w->catalog, gpu, "gpu", &row, NULL) != BT_OK) {
        return NAN;
    }
    return bt_price_list_get(&w->prices, row->gpu.name);
}

static bool env_supported(void *ctx, const char *stack, const struct bt_gpu *gpu,
                          enum bt_weight_format weights, enum bt_act_format activations,
                          enum bt_kv_format kv, char *reason, size_t reason_bytes)
{
    const struct bt_world *w = ctx;
    struct bt_error err = {0};
    bool exists = false;
    const char *text = "";
    enum bt_code code =
        bt_catalog_kernel(w->catalog, stack, gpu, weights, activations, &exists, &text, &err);
    if (code == BT_OK && exists) {
        code = bt_catalog_kv_kernel(w->catalog, stack, gpu, kv, &exists, &text, &err);
    }
    if (code != BT_OK) {
        exists = false;
        text = err.msg;
    }
    if (!exists) {
        (void)snprintf(reason, reason_bytes, "%s", text);
    }
    return exists;
}

static double env_accuracy_drop(void *ctx, const struct bt_arch *arch,
                                enum bt_weight_format weights, enum bt_act_format activations,
                                enum bt_kv_format kv, char *source, size_t source_bytes)
{
    const struct bt_world *w = ctx;
    bool full = bt_weight_format_bits(weights) >= 16 && bt_act_format_bits(activations) >= 16 &&
                bt_kv_format_bits(kv) >= 16;
    if (full) {
        (void)snprintf(source, source_bytes, "16-bit throughout");
        return 0;
    }
    const struct bt_published_accuracy *row =
        bt_catalog_accuracy_loss(w->catalog, arch->name, weights, activations, kv);
    if (row == NULL) {
        (void)snprintf(source, source_bytes, "nobody published it");
        return NAN;
    }
    (void)snprintf(source, source_bytes, "%s, %s: %s", row->metric, row->method, row->source);
    return row->baseline - row->value;
}

static bool env_find_acceptance(void *ctx, const struct bt_arch *target,
                                const struct bt_arch *draft, struct bt_spec_config *spec,
                                char *source, size_t source_bytes)
{
    const struct bt_world *w = ctx;
    return bt_local_acceptance(&w->local, target->name, draft == NULL ? "" : draft->name, spec,
                               source, source_bytes);
}

static enum bt_code env_make_source(void *ctx, uint64_t seed, struct bt_source **out,
                                    struct bt_error *err)
{
    const struct bt_world *w = ctx;
    return bt_source_create(&w->workload, seed, out, err);
}

static enum bt_code env_make_hooks(void *ctx, struct bt_sim_hooks **out, struct bt_error *err)
{
    const struct bt_world *w = ctx;
    *out = NULL;
    return w->scenario == NULL ? BT_OK : bt_scenario_make_hooks(w->scenario, out, err);
}

static void env_free_hooks(void *ctx, struct bt_sim_hooks *hooks)
{
    (void)ctx;
    bt_scenario_free_hooks(hooks);
}

static enum bt_code take_prices(struct bt_world *w, const struct bt_cli *cli, const char *provider,
                                const char *term, struct bt_error *err)
{
    BT_TRY(bt_price_list_init(&w->prices, w->catalog, provider, term, err));
    for (int32_t i = 0; w->scenario != NULL && i < w->scenario->n_prices; i++) {
        char text[160];
        (void)snprintf(text, sizeof text, "%s=%.17g", w->scenario->prices[i].gpu,
                       w->scenario->prices[i].usd_per_h);
        BT_TRY(bt_price_list_override(&w->prices, text, err));
    }
    int32_t at = 0;
    for (const char *text; (text = bt_args_next(&cli->args, "price", &at)) != NULL;) {
        BT_TRY(bt_price_list_override(&w->prices, text, err));
    }
    return BT_OK;
}

/* How much of a calibration's name tells card, stack, version and operation:
 * "h200__vllm-0.24.0__gemm" of "h200__vllm-0.24.0__gemm__2.cal". */
static size_t table_length(const char *name)
{
    const char *stack = strstr(name, "__");
    const char *op = stack != NULL ? strstr(stack + 2, "__") : NULL;
    return op != NULL ? (size_t)(op + 2 - name) + strcspn(op + 2, "_.") : strlen(name);
}

static bool same_table(const char *a, const char *b)
{
    size_t n = table_length(a);
    return n == table_length(b) && strncmp(a, b, n) == 0;
}

/* Imported texts, and the shipped ones that no import is instead of; ended by a row without name.
 */
static struct bt_embedded *all_texts(const struct bt_embedded *imports, int32_t n_imports,
                                     const struct bt_embedded *shipped, bool replace)
{
    int32_t n_shipped = 0;
    while (shipped[n_shipped].name != NULL) {
        n_shipped++;
    }
    struct bt_embedded *out = calloc((size_t)(n_imports + n_shipped) + 1, sizeof *out);
    if (out == NULL) {
        return NULL;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < n_imports; i++) {
        out[n++] = imports[i];
    }
    for (int32_t i = 0; i < n_shipped; i++) {
        bool replaced = false;
        for (int32_t k = 0; replace && k < n_imports; k++) {
            replaced = replaced || same_table(imports[k].name, shipped[i].name);
        }
        if (!replaced) {
            out[n++] = shipped[i];
        }
    }
    return out;
}

/* What was imported and what ships; surfaces are built when they are first asked for. */
static enum bt_code open_surfaces(struct bt_world *w, struct bt_error *err)
{
    w->texts = all_texts(w->local.imports, w->local.n_imports, bt_calibration_texts, true);
    w->skews = all_texts(w->local.skews, w->local.n_skews, bt_skew_texts, false);
    if (w->texts == NULL || w->skews == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "surfaces: no memory for their texts");
    }
    int32_t n = bt_catalog_n_gpus(w->catalog);
    struct bt_gpu *gpus = calloc((size_t)n, sizeof *gpus);
    if (gpus == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, n, "surfaces: no memory for %d GPUs", n);
    }
    for (int32_t i = 0; i < n; i++) {
        gpus[i] = bt_catalog_gpu_at(w->catalog, i)->gpu;
    }
    struct bt_surface_library_opts opts = {
        .texts = w->texts,
        .skews = w->skews,
        .gpus = gpus,
        .n_gpus = n,
        .host = w->local.host.samples.n_samples > 0 ? &w->local.host : NULL};
    enum bt_code code = bt_surface_library_create(&opts, &w->env.surfaces, err);
    free(gpus);
    return code;
}

enum bt_code bt_world_open(const struct bt_cli *cli, struct bt_world *w, struct bt_error *err)
{
    *w = (struct bt_world){
        .env = {.ctx = w,
                .find_model = env_find_model,
                .find_gpu = env_find_gpu,
                .gpu_price = env_gpu_price,
                .supported = env_supported,
                .accuracy_drop = env_accuracy_drop,
                .find_acceptance = env_find_acceptance,
                .make_source = env_make_source,
                .make_hooks = env_make_hooks,
                .free_hooks = env_free_hooks},
    };
    bt_local_read(&w->local, cli);
    enum bt_code code = bt_catalog_open(w->local.gpus, w->local.n_gpus, &w->catalog, err);
    if (code == BT_OK) {
        code = open_surfaces(w, err);
    }
    if (code == BT_OK) {
        code = take_prices(w, cli, NULL, NULL, err);
    }
    const char *fit = bt_args_text(&cli->args, "fit");
    if (code == BT_OK && fit != NULL) {
        code = bt_fit_find(cli, fit, &w->fit, err);
        w->env.fit = &w->fit;
    }
    if (code != BT_OK) {
        bt_world_close(w);
    }
    return code;
}

void bt_world_close(struct bt_world *w)
{
    bt_trace_destroy(w->trace);
    bt_surface_library_destroy(w->env.surfaces);
    free(w->texts);
    free(w->skews);
    bt_catalog_close(w->catalog);
    bt_local_fini(&w->local);
    *w = (struct bt_world){0};
}

/* A trace is read once and shared by every simulation. */
static enum bt_code load_trace(struct bt_world *w, const char *path,
                               const struct bt_trace_opts *opts, struct bt_error *err)
{
    BT_TRY(bt_trace_load(path, opts, &w->trace, err));
    if (bt_trace_n(w->trace) == 0) {
        const struct bt_trace_counts *c = bt_trace_counts(w->trace);
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: no request to serve (%lld rows: %lld failed, %lld without a prompt; the rest "
                "is outside of --from and --to)",
                path, (long long)c->rows, (long long)c->failed_in_trace, (long long)c->zero_prompt);
    }
    w->workload.trace_table = w->trace;
    return BT_OK;
}

enum bt_code bt_world_use_scenario(struct bt_world *w, const struct bt_cli *cli,
                                   const struct bt_scenario *s, struct bt_error *err)
{
    w->scenario = s;
    if (!s->has_workload) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: workload: missing", s->path);
    }
    w->workload = s->workload;
    BT_TRY(take_prices(w, cli, s->price_provider, s->price_term, err));
    if (s->workload.kind == BT_WORKLOAD_TRACE) {
        BT_TRY(load_trace(w, s->workload.file, &s->workload.trace, err));
    }
    return BT_OK;
}

enum bt_code bt_world_use_trace(struct bt_world *w, const char *path,
                                const struct bt_trace_opts *opts, struct bt_error *err)
{
    w->workload = (struct bt_workload_spec){.kind = BT_WORKLOAD_TRACE};
    return load_trace(w, path, opts, err);
}

enum bt_code bt_world_check_kernels(const struct bt_world *w, const struct bt_deploy *d,
                                    struct bt_error *err)
{
    char reason[256] = "";
    if (!w->env.supported(w->env.ctx, d->config.stack, &d->gpu, d->weights, d->activations, d->kv,
                          reason, sizeof reason)) {
        BT_FAIL(err, BT_ERR_ARG, 0, "weights %s, activations %s, kv %s on %s: no such kernel: %s",
                bt_weight_format_name(d->weights), bt_act_format_name(d->activations),
                bt_kv_format_name(d->kv), d->gpu.name, reason);
    }
    return BT_OK;
}

int64_t bt_world_sample_ns(const struct bt_world *w)
{
    double span_s = w->workload.duration_s;
    if (w->trace != NULL && bt_trace_n(w->trace) > 0) {
        struct bt_request last;
        bt_trace_get(w->trace, bt_trace_n(w->trace) - 1, &last);
        span_s = (double)last.arrival_ns / 1e9;
    }
    double scale = w->workload.rate_scale > 0 ? w->workload.rate_scale : 1;
    double ms = ceil(span_s / scale / SAMPLES_WANTED * 1e3);
    return (int64_t)(ms < 10 ? 10 : ms) * 1000000;
}

enum bt_code bt_world_need_host(struct bt_world *w, int32_t n_threads, struct bt_error *err)
{
    struct bt_error unknown = {0};
    if (w->env.find_gpu(w->env.ctx, "host", &w->host, &unknown) == BT_OK) {
        return BT_OK;
    }
    BT_TRY(bt_host_measure(n_threads, &w->host, err));
    w->has_host = true;
    return BT_OK;
}

double bt_world_usd_per_h(const struct bt_world *w, const struct bt_config *c, int32_t replicas)
{
    return w->env.gpu_price(w->env.ctx, c->gpu) * c->tp * (replicas + c->redundancy);
}
