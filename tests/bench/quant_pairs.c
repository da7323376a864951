/* The table of docs/QUANT_PAIRS.md: reported runs that differ only in quantisation, against the
 * same two runs simulated.
 *
 *   quant_pairs tests/data/cases/quant_pairs.csv
 *
 * The pairs are rows of a collection of reported benchmarks (ids in the first columns). Lengths are
 * drawn around the stated means as ShareGPT's vary. */
#include "sim/cost/surface_law.h"
#include "sim/cost/table.h"
#include "sim/run.h"
#include "sim/workload/spec.h"
#include "tests/sim/shipped.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PAIRS_MAX = 64, TEXT_BYTES = 96 };

static const double ALL_AT_ONCE_PER_S = 1e6;

struct pair {
    char plain[16], quantised[16], stack[32], model[64], gpu[32];
    char formats[3][16]; /* weights, activations, kv */
    double input, output;
    int64_t users, requests; /* users 0: all at once */
    double plain_tok_per_s, quantised_tok_per_s;
    char note[TEXT_BYTES];
};

struct side {
    struct bt_deploy deploy;
    double tok_per_s, running;
    char trust[80];
};

struct report {
    struct bt_catalog *catalog;
    struct bt_surface_library *library;
};

static struct bt_sim_result result;

static void take(char *out, size_t bytes, const struct bt_table *t, int32_t c)
{
    (void)snprintf(out, bytes, "%s", bt_table_text(t, c));
}

static enum bt_code read_pair(struct bt_table *t, struct pair *p, struct bt_error *err)
{
    static const char *const names[] = {"plain",
                                        "quantised",
                                        "stack",
                                        "model",
                                        "gpu",
                                        "weights",
                                        "activations",
                                        "kv",
                                        "input_tokens",
                                        "output_tokens",
                                        "users",
                                        "requests",
                                        "plain_tok_per_s",
                                        "quantised_tok_per_s",
                                        "note"};
    int32_t c[sizeof names / sizeof *names];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        BT_TRY(bt_table_require(t, names[i], &c[i], err));
    }
    *p = (struct pair){0};
    take(p->plain, sizeof p->plain, t, c[0]);
    take(p->quantised, sizeof p->quantised, t, c[1]);
    take(p->stack, sizeof p->stack, t, c[2]);
    take(p->model, sizeof p->model, t, c[3]);
    take(p->gpu, sizeof p->gpu, t, c[4]);
    for (int32_t i = 0; i < 3; i++) {
        take(p->formats[i], sizeof p->formats[i], t, c[5 + i]);
    }
    take(p->note, sizeof p->note, t, c[14]);
    BT_TRY(bt_table_real(t, c[8], &p->input, err));
    BT_TRY(bt_table_real(t, c[9], &p->output, err));
    BT_TRY(bt_table_int(t, c[10], 0, 1 << 20, &p->users, err));
    BT_TRY(bt_table_int(t, c[11], 1, 1 << 20, &p->requests, err));
    BT_TRY(bt_table_real(t, c[12], &p->plain_tok_per_s, err));
    return bt_table_real(t, c[13], &p->quantised_tok_per_s, err);
}

static enum bt_code set_formats(struct bt_config *c, const struct pair *p, struct bt_error *err)
{
    static const char *const paths[] = {"weights", "activations", "kv.dtype"};
    for (int32_t i = 0; i < 3; i++) {
        const struct bt_config_field *f = bt_config_find(paths[i]);
        BT_ASSERT(f != NULL);
        if (strcmp(p->formats[i], "default") != 0) {
            BT_TRY(bt_config_set(c, f, p->formats[i], NULL, err));
        }
    }
    return BT_OK;
}

static struct bt_workload_spec workload_of(const struct pair *p)
{
    struct bt_workload_spec w = {
        .kind = BT_WORKLOAD_GENERATED,
        .arrival = p->users > 0 ? BT_ARRIVAL_CLOSED : BT_ARRIVAL_CONSTANT,
        .users = (int32_t)p->users,
        .n_requests = p->requests,
        .prompt = {.kind = BT_DIST_LOGNORMAL, .mean = p->input, .sigma = 1, .clamp_max = 2000},
        .output = {.kind = BT_DIST_LOGNORMAL, .mean = p->output, .sigma = 1, .clamp_max = 2000},
    };
    w.rate_per_s = p->users > 0 ? 0 : ALL_AT_ONCE_PER_S;
    return w;
}

static enum bt_code serve(const struct report *r, const struct pair *p, bool quantised,
                          struct side *out, struct bt_error *err)
{
    const struct bt_catalog_gpu *gpu = NULL;
    const struct bt_catalog_model *model = NULL;
    BT_TRY(bt_catalog_find_gpu(r->catalog, p->gpu, "gpu", &gpu, err));
    BT_TRY(bt_catalog_find_model(r->catalog, p->model, "model", &model, err));
    struct bt_config c;
    bt_config_init(&c);
    (void)snprintf(c.model, sizeof c.model, "%s", p->model);
    (void)snprintf(c.gpu, sizeof c.gpu, "%s", p->gpu);
    (void)snprintf(c.stack, sizeof c.stack, "%s", p->stack);
    c.replicas = 1;
    if (quantised) {
        BT_TRY(set_formats(&c, p, err));
    }
    struct bt_deploy *d = &out->deploy;
    BT_TRY(bt_deploy_init(d, &c, &model->arch, NULL, &gpu->gpu, r->library, err));
    struct bt_workload_spec w = workload_of(p);
    struct bt_source *source = NULL;
    enum bt_code code = bt_source_create(&w, 1, &source, err);
    if (code == BT_OK) {
        struct bt_sim_opts o = {.deploy = d, .replicas = 1, .source = source, .seed = 1};
        code = bt_sim_run(&o, &result, err);
    }
    if (code == BT_OK) {
        /* Prompts and answers, as the reports count. */
        out->tok_per_s =
            result.summary.throughput_out_tok_per_s * (p->input + p->output) / p->output;
        out->running = result.summary.running_mean;
        (void)snprintf(out->trust, sizeof out->trust, "%s: %.60s", bt_trust_name(d->cost.trust),
                       d->cost.weakest);
    }
    bt_source_destroy(source);
    return code;
}

static enum bt_code print_pair(const struct report *r, const struct pair *p, struct bt_error *err)
{
    struct side a = {0}, b = {0};
    enum bt_code code = serve(r, p, false, &a, err);
    if (code == BT_OK) {
        code = serve(r, p, true, &b, err);
    }
    if (code != BT_OK) {
        bt_deploy_fini(&a.deploy);
        bt_deploy_fini(&b.deploy);
        return code;
    }
    /* The step that the run mostly makes. */
    double users = fmax(round(sqrt(a.running * b.running)), 1);
    int64_t ctx = (int64_t)(users * (p->input + p->output / 2));
    struct bt_batch usual = {.n_decode = (int32_t)users,
                             .n_decode_tokens = (int32_t)users,
                             .decode_ctx = ctx,
                             .decode_ctx_long = (int64_t)(p->input + p->output / 2),
                             .n_logits = (int32_t)users};
    double error = bt_surface_cost_ratio_error(&a.deploy.cost, &b.deploy.cost, &usual);
    bt_deploy_fini(&a.deploy);
    bt_deploy_fini(&b.deploy);
    double said = p->quantised_tok_per_s / p->plain_tok_per_s;
    double ratio = b.tok_per_s / a.tok_per_s;
    double low = ratio / (1 + error);
    double high = ratio * (1 + error);
    const char *verdict = low < 1 && high > 1         ? "cannot tell"
                          : (ratio > 1) == (said > 1) ? "right side"
                                                      : "wrong side";
    (void)printf(
        "| %s, %s | %s | %s | %s | %s/%s/%s | %.2f | %.2f | %.2f to %.2f | %s | %.0f, %.0f | "
        "%.0f, %.0f | %s | %s |\n",
        p->plain, p->quantised, p->stack, p->model, p->gpu, p->formats[0], p->formats[1],
        p->formats[2], said, ratio, low, high, verdict, p->plain_tok_per_s, a.tok_per_s,
        p->quantised_tok_per_s, b.tok_per_s, b.trust, p->note);
    return BT_OK;
}

static enum bt_code run(struct report *r, const char *path, struct bt_error *err)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_IO, 0, "%s: cannot be read", path);
    }
    size_t size = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    BT_TRY(shipped_open(&r->catalog, &r->library, err));
    struct bt_table t;
    BT_TRY(bt_table_open(&t, text, size, path, err));
    bool more = true;
    enum bt_code code = BT_OK;
    while (code == BT_OK) {
        struct pair p;
        code = bt_table_next(&t, &more, err);
        if (code != BT_OK || !more) {
            break;
        }
        code = read_pair(&t, &p, err);
        if (code == BT_OK) {
            code = print_pair(r, &p, err);
        }
    }
    bt_table_close(&t);
    return code;
}

int main(int argc, char **argv)
{
    struct bt_error err = {0};
    struct report r = {0};
    (void)printf("| reports | stack | model | GPU | weights/activations/KV | reported ratio | "
                 "predicted | within | verdict | 16-bit tok/s, predicted | quantised, predicted | "
                 "trust | |\n| --- | --- | --- | --- | --- | --: | --: | --: | --- | --: | --: | "
                 "--- | --- |\n");
    if (argc != 2 || run(&r, argv[1], &err) != BT_OK) {
        (void)fprintf(stderr, "quant_pairs: %s\n", argc != 2 ? "one file expected" : err.msg);
        return 1;
    }
    bt_surface_library_destroy(r.library);
    bt_catalog_close(r.catalog);
    return 0;
}
