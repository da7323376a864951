/* The tables of docs/SILICON.md: measured end-to-end points of H200s against simulated closed
 * loops.
 *
 *   silicon_report tests/data/measured/silicon_h200_llama.csv [USERS]
 *
 * With USERS only the rows of so many users are served, and the program fails when the medians of
 * vLLM's and TensorRT-LLM's rows pass what docs/SILICON.md accepts.
 *
 * Each row is served once with its stack's defaults, its concurrency as users who ask again at
 * once, and what the row does not say (spread of lengths, requests, format of the cache) as the
 * protocol of its collection has it. Nothing of the rows is fitted here. */
#include "sim/cost/table.h"
#include "sim/run.h"
#include "sim/workload/spec.h"
#include "tests/sim/shipped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 256, TEXT_BYTES = 64, NOT_FITTED = -1, CACHED_STEPS = 7 };

/* How a collection drives its servers. */
struct protocol {
    const char *name;
    double length_low; /* lengths are uniform from this share of the stated ones to them */
    double warmup;     /* share of the requests that is not counted */
    int32_t rounds;    /* requests a user */
    enum bt_kv_format kv;
    const char *vllm, *trtllm, *sglang; /* versions where the row tells none */
};

static const struct protocol sweep = {
    .name = "dated sweep",
    .length_low = 0.8,
    .rounds = 10,
    .kv = BT_KV_FP8,
    .vllm = "vllm-0.11",
    .trtllm = "trtllm-1.1",
    .sglang = "sglang-0.5",
};
/* Its first tokens come too soon for a start of all users at once to be among them; lengths that
 * are a little uneven take users out of step, as the noise of a real server does. */
static const struct protocol steady_state = {
    .name = "steady state",
    .length_low = 0.95,
    .warmup = 0.5,
    .rounds = 10,
    .kv = BT_KV_FP8,
    .vllm = "vllm-0.12",
    .trtllm = "trtllm-1.1",
    .sglang = "sglang-0.5",
};

/* Weights in FP8 blocks of a 16-bit checkpoint: the cache is 16-bit. */
static const struct protocol block_scales = {
    .name = "fixed lengths, 16-bit cache",
    .length_low = 1,
    .rounds = 10,
    .kv = BT_KV_DEFAULT,
    .vllm = "vllm-0.12",
    .trtllm = "trtllm-1.1",
    .sglang = "sglang-0.5",
};

struct row {
    char stack[TEXT_BYTES];
    const char *model;
    const struct protocol *protocol;
    int64_t input, output, users, tp;
    double cached;           /* share of a prompt that the prefix cache holds; 0: no cache */
    double ttft_ms, tpot_ms; /* measured */
    double sim_ttft_ms, sim_tpot_ms;
    char left_out[160]; /* why; "": scored */
    enum bt_trust trust;
    double step_error;
    double running; /* sequences, mean */
};

struct report {
    struct bt_catalog *catalog;
    struct bt_surface_library *library;
    int32_t n;
    struct row rows[ROWS_MAX];
};

static struct bt_sim_result result;

static enum bt_code read_row(struct bt_table *t, struct row *r, struct bt_error *err)
{
    static const char *const wanted[] = {
        "backend", "backend_version", "model_path",     "isl", "osl", "batch_size",
        "tp_size", "silicon_ttft_ms", "silicon_tpot_ms"};
    int32_t c[sizeof wanted / sizeof *wanted];
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        BT_TRY(bt_table_require(t, wanted[i], &c[i], err));
    }
    *r = (struct row){0};
    const char *model = bt_table_text(t, c[2]);
    bool large = strstr(model, "70B") != NULL;
    r->model = large ? "llama-3.1-70b" : "llama-3.1-8b";
    const char *engine = bt_table_text(t, c[0]);
    r->protocol = large ? &sweep : strcmp(engine, "sglang") == 0 ? &block_scales : &steady_state;
    const char *stack = strcmp(engine, "vllm") == 0     ? r->protocol->vllm
                        : strcmp(engine, "trtllm") == 0 ? r->protocol->trtllm
                                                        : r->protocol->sglang;
    (void)snprintf(r->stack, sizeof r->stack, "%s", stack);
    BT_TRY(bt_table_int(t, c[3], 1, 1 << 20, &r->input, err));
    BT_TRY(bt_table_int(t, c[4], 1, 1 << 20, &r->output, err));
    BT_TRY(bt_table_int(t, c[5], 1, 4096, &r->users, err));
    BT_TRY(bt_table_int(t, c[6], 1, 8, &r->tp, err));
    BT_TRY(bt_table_real(t, c[7], &r->ttft_ms, err));
    return bt_table_real(t, c[8], &r->tpot_ms, err);
}

static enum bt_code read_rows(struct report *r, const char *path, struct bt_error *err)
{
    FILE *f = fopen(path, "rb");
    enum { TEXT_MAX = 1 << 22 };
    char *text = malloc(TEXT_MAX);
    if (f == NULL || text == NULL) {
        free(text);
        if (f != NULL) {
            (void)fclose(f);
        }
        BT_FAIL(err, BT_ERR_IO, 0, "%s: cannot be read", path);
    }
    size_t size = fread(text, 1, TEXT_MAX, f);
    (void)fclose(f);
    struct bt_table t;
    enum bt_code code = bt_table_open(&t, text, size, path, err);
    free(text);
    BT_TRY(code);
    bool more = true;
    while (code == BT_OK && r->n < ROWS_MAX) {
        code = bt_table_next(&t, &more, err);
        if (code != BT_OK || !more) {
            break;
        }
        code = read_row(&t, &r->rows[r->n++], err);
    }
    bt_table_close(&t);
    return code;
}

static enum bt_code deploy_of(struct report *r, struct row *row, struct bt_deploy *d,
                              struct bt_error *err)
{
    const struct bt_catalog_gpu *gpu = NULL;
    const struct bt_catalog_model *model = NULL;
    BT_TRY(bt_catalog_find_gpu(r->catalog, "h200", "gpu", &gpu, err));
    BT_TRY(bt_catalog_find_model(r->catalog, row->model, "model", &model, err));
    struct bt_config c;
    bt_config_init(&c);
    (void)snprintf(c.model, sizeof c.model, "%s", row->model);
    (void)snprintf(c.gpu, sizeof c.gpu, "h200");
    (void)snprintf(c.stack, sizeof c.stack, "%s", row->stack);
    c.tp = (int32_t)row->tp;
    c.replicas = 1;
    c.weights = BT_WEIGHT_FP8;
    c.kv_dtype = row->protocol->kv;
    c.max_model_len = (int32_t)(row->input + row->output + 256);
    c.prefix_cache = row->cached > 0;
    const struct bt_config_field *inflight = bt_config_find("batching.inflight");
    BT_TRY(bt_config_set(&c, inflight, "2", NULL, err));
    const struct bt_config_field *prefix = bt_config_find("prefix_cache");
    BT_TRY(bt_config_set(&c, prefix, c.prefix_cache ? "on" : "off", NULL, err));
    return bt_deploy_init(d, &c, &model->arch, NULL, &gpu->gpu, r->library, err);
}

/* Time that a round of all users' requests takes at the data sheet's rates, one kind of work after
 * the other: prompts' operations, their all-reduces over the links, and the bytes of as many decode
 * steps as an answer has tokens. An engine may overlap a little of it, and reaches no rate in full.
 */
static double least_round_ms(const struct row *r, const struct bt_deploy *d)
{
    double share = (1 + r->protocol->length_low) / 2;
    double in = (double)r->input * share;
    double out = (double)r->output * share;
    double users = (double)r->users;
    double tp = (double)r->tp;
    const struct bt_arch *a = &d->arch;
    double pairs = in * (in + 1) / 2;
    double attention = 4.0 * a->n_heads * a->head_dim * pairs * a->n_layers;
    double compute_s = (in * bt_arch_linear_flops(a) / d->gpu.fp8_flops_per_s +
                        attention / d->gpu.fp16_flops_per_s) /
                       tp;
    double moved = 2 * (tp - 1) / tp * in * a->hidden * 2 * 2 * a->n_layers;
    double links_s = tp > 1 ? moved / (d->gpu.nvlink_bytes_per_s / 2) : 0;
    double kv = users * (in + out / 2) * (double)d->memory.kv_bytes_per_token;
    double step_s = ((double)d->memory.weights_bytes + kv) / d->gpu.mem_bytes_per_s;
    return 1e3 * (users * (compute_s + links_s) + out * step_s);
}

static void check_peak(struct row *r, const struct bt_deploy *d)
{
    double out = (double)r->output * (1 + r->protocol->length_low) / 2;
    double took_ms = r->ttft_ms + out * r->tpot_ms;
    double least_ms = least_round_ms(r, d);
    double pool = (double)d->memory.kv_blocks_total * d->memory.block_tokens;
    /* Where KV memory makes users wait, the round is longer than a request. */
    bool all_run = (double)(r->users * (r->input + r->output)) <= pool;
    if (!all_run && strncmp(r->stack, "trtllm", strlen("trtllm")) == 0) {
        (void)snprintf(r->left_out, sizeof r->left_out,
                       "KV for %.0f of %lld users: TensorRT-LLM's admission is not modelled",
                       floor(pool / (double)(r->input + r->output)), (long long)r->users);
    }
    if (all_run && least_ms > took_ms) {
        (void)snprintf(r->left_out, sizeof r->left_out,
                       "exceeds the peak: %.2f s of work at data-sheet rates in %.2f s",
                       1e-3 * least_ms, 1e-3 * took_ms);
    }
}

/* `fit` may be NULL. */
static enum bt_code serve(struct report *r, struct row *row, const struct bt_fit *fit,
                          struct bt_error *err)
{
    struct bt_deploy d;
    struct bt_error why = {0};
    enum bt_code code = deploy_of(r, row, &d, &why);
    if (code != BT_OK) {
        (void)snprintf(row->left_out, sizeof row->left_out, "%.150s", why.msg);
        return BT_OK;
    }
    if (fit != NULL) {
        BT_TRY(bt_deploy_fit(&d, r->library, fit, err));
    }
    row->trust = d.cost.trust;
    row->step_error = d.cost.step_error;
    double low = row->protocol->length_low;
    struct bt_workload_spec w = {
        .kind = BT_WORKLOAD_GENERATED,
        .arrival = BT_ARRIVAL_CLOSED,
        .users = (int32_t)row->users,
        .n_requests = row->users * row->protocol->rounds,
        .prompt = {.kind = BT_DIST_UNIFORM,
                   .min = floor((double)row->input * low),
                   .max = (double)row->input},
        .output = {.kind = BT_DIST_UNIFORM,
                   .min = floor((double)row->output * low),
                   .max = (double)row->output},
    };
    struct bt_prefix_spec known = {
        .weight = 1, .tokens = (int32_t)floor((double)row->input * low * row->cached)};
    if (row->cached > 0) {
        w.prefixes = &known;
        w.n_prefixes = 1;
    }
    struct bt_source *source = NULL;
    code = bt_source_create(&w, 1, &source, err);
    if (code == BT_OK) {
        struct bt_sim_opts o = {.deploy = &d,
                                .replicas = 1,
                                .source = source,
                                .seed = 1,
                                .warmup_fraction = row->protocol->warmup};
        code = bt_sim_run(&o, &result, err);
    }
    if (code == BT_OK) {
        row->sim_ttft_ms = 1e3 * result.summary.ttft.mean_s;
        row->sim_tpot_ms = 1e3 * result.summary.tpot.mean_s;
        row->running = result.summary.running_mean;
        check_peak(row, &d);
    }
    bt_source_destroy(source);
    bt_deploy_fini(&d);
    return code;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and P90 of |predicted / measured - 1|, median of predicted / measured. */
struct score {
    int32_t n;
    double tpot_median, tpot_p90, tpot_ratio;
    double ttft_median, ttft_p90, ttft_ratio;
};

static double at_share(double *v, int32_t n, double p)
{
    qsort(v, (size_t)n, sizeof *v, compare_double);
    int32_t i = (int32_t)ceil(p * n) - 1;
    return v[i < 0 ? 0 : i];
}

/* Stack "": vLLM and TensorRT-LLM. Users 0: any; NOT_FITTED: those that no constant was fitted to.
 */
static bool is_of(const struct row *r, const char *stack, const char *model, int64_t users)
{
    bool of_stack = stack[0] != '\0' ? strncmp(r->stack, stack, strlen(stack)) == 0
                                     : strncmp(r->stack, "sglang", strlen("sglang")) != 0;
    bool of_users =
        users == 0 || r->users == users || (users == NOT_FITTED && r->users != 8 && r->users != 16);
    return r->left_out[0] == '\0' && of_stack && (model == NULL || strcmp(r->model, model) == 0) &&
           of_users;
}

static struct score score_of(const struct report *r, const char *stack, const char *model,
                             int64_t users)
{
    double tpot[ROWS_MAX], ttft[ROWS_MAX], tpot_ratio[ROWS_MAX], ttft_ratio[ROWS_MAX];
    struct score s = {0};
    for (int32_t i = 0; i < r->n; i++) {
        const struct row *w = &r->rows[i];
        if (is_of(w, stack, model, users)) {
            tpot_ratio[s.n] = w->sim_tpot_ms / w->tpot_ms;
            ttft_ratio[s.n] = w->sim_ttft_ms / w->ttft_ms;
            tpot[s.n] = fabs(tpot_ratio[s.n] - 1);
            ttft[s.n] = fabs(ttft_ratio[s.n] - 1);
            s.n++;
        }
    }
    if (s.n > 0) {
        s.tpot_median = at_share(tpot, s.n, 0.5);
        s.tpot_p90 = at_share(tpot, s.n, 0.9);
        s.tpot_ratio = at_share(tpot_ratio, s.n, 0.5);
        s.ttft_median = at_share(ttft, s.n, 0.5);
        s.ttft_p90 = at_share(ttft, s.n, 0.9);
        s.ttft_ratio = at_share(ttft_ratio, s.n, 0.5);
    }
    return s;
}

static void print_score(const char *stack, const char *model, const char *users, struct score s)
{
    if (s.n > 0) {
        (void)printf("| %s | %s | %s | %d | %.1f%% | %.1f%% | %.2f | %.1f%% | %.1f%% | %.2f |\n",
                     stack, model, users, s.n, 100 * s.tpot_median, 100 * s.tpot_p90, s.tpot_ratio,
                     100 * s.ttft_median, 100 * s.ttft_p90, s.ttft_ratio);
    }
}

static void print_scores(const struct report *r)
{
    static const char *const stacks[] = {"vllm", "trtllm", "sglang"};
    static const char *const models[] = {"llama-3.1-8b", "llama-3.1-70b"};
    static const int64_t users[] = {4, 8, 16, 32, 64, 128};
    (void)printf("| stack | model | users | rows | TPOT median | P90 | predicted over measured | "
                 "TTFT median | P90 | predicted over measured |\n"
                 "| --- | --- | --- | --: | --: | --: | --: | --: | --: | --: |\n");
    for (size_t s = 0; s < sizeof stacks / sizeof *stacks; s++) {
        for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
            print_score(stacks[s], models[m], "all", score_of(r, stacks[s], models[m], 0));
        }
        for (size_t u = 0; u < sizeof users / sizeof *users; u++) {
            char text[16];
            (void)snprintf(text, sizeof text, "%lld", (long long)users[u]);
            print_score(stacks[s], "llama-3.1-70b", text,
                        score_of(r, stacks[s], "llama-3.1-70b", users[u]));
        }
    }
    for (size_t u = 0; u < sizeof users / sizeof *users; u++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%lld", (long long)users[u]);
        print_score("vllm and trtllm", "both", text, score_of(r, "", NULL, users[u]));
    }
    print_score("vllm and trtllm", "both", "all", score_of(r, "", NULL, 0));
    print_score("vllm and trtllm", "both", "all but 8 and 16", score_of(r, "", NULL, NOT_FITTED));
}

static void print_rows(const struct report *r)
{
    (void)printf(
        "\n| stack | model | tp | in | out | users | TPOT ms | predicted | | TTFT ms | "
        "predicted | | running | step error | |\n| --- | --- | --: | --: | --: | --: | --: "
        "| --: | --: | --: | --: | --: | --: | --: | --- |\n");
    for (int32_t i = 0; i < r->n; i++) {
        const struct row *w = &r->rows[i];
        (void)printf("| %s | %s | %lld | %lld | %lld | %lld | %.2f | %.2f | %+.0f%% | %.0f | %.0f "
                     "| %+.0f%% | %.0f | %.0f%% | %s |\n",
                     w->stack, w->model, (long long)w->tp, (long long)w->input,
                     (long long)w->output, (long long)w->users, w->tpot_ms, w->sim_tpot_ms,
                     100 * (w->sim_tpot_ms / w->tpot_ms - 1), w->ttft_ms, w->sim_ttft_ms,
                     100 * (w->sim_ttft_ms / w->ttft_ms - 1), w->running, 100 * w->step_error,
                     w->left_out);
    }
}

static enum bt_code run(struct report *r, const char *path, int64_t users, struct bt_error *err)
{
    BT_TRY(read_rows(r, path, err));
    BT_TRY(shipped_open(&r->catalog, &r->library, err));
    int32_t kept = 0;
    for (int32_t i = 0; i < r->n; i++) {
        if (users == 0 || r->rows[i].users == users) {
            r->rows[kept++] = r->rows[i];
        }
    }
    r->n = kept;
    for (int32_t i = 0; i < r->n; i++) {
        BT_TRY(serve(r, &r->rows[i], NULL, err));
    }
    return BT_OK;
}

/* ---- SGLang, which has no tables of its own: fitted to every other row, scored on the rest ----
 */

static bool is_fitted_row(const struct report *r, int32_t i)
{
    int32_t before = 0;
    for (int32_t k = 0; k < i; k++) {
        before += is_of(&r->rows[k], "sglang", NULL, 0);
    }
    return is_of(&r->rows[i], "sglang", NULL, 0) && before % 2 == 0;
}

static struct bt_fit fit_of(double efficiency)
{
    struct bt_fit f = {.stack = "sglang-0.5", .gpu = "h200", .efficiency = efficiency};
    return f;
}

struct fitting {
    struct report *report;
};

static enum bt_code residuals(void *ctx, const double *params, double *out, struct bt_error *err)
{
    struct report *r = ((struct fitting *)ctx)->report;
    struct bt_fit fit = fit_of(params[0]);
    int64_t n = 0;
    for (int32_t i = 0; i < r->n; i++) {
        if (is_fitted_row(r, i)) {
            struct row row = r->rows[i];
            BT_TRY(serve(r, &row, &fit, err));
            out[n++] = log(row.sim_tpot_ms / row.tpot_ms);
        }
    }
    return BT_OK;
}

static void print_fit(const char *of, struct report *r, bool fitted)
{
    struct report part = {.n = 0};
    for (int32_t i = 0; i < r->n; i++) {
        if (is_of(&r->rows[i], "sglang", NULL, 0) && is_fitted_row(r, i) == fitted) {
            part.rows[part.n++] = r->rows[i];
        }
    }
    print_score("sglang", of, "all", score_of(&part, "sglang", NULL, 0));
}

static enum bt_code fit_sglang(struct report *r, struct bt_error *err)
{
    struct fitting f = {.report = r};
    struct bt_fit_problem p = {.n_params = 1,
                               .lower = {0.2},
                               .upper = {2},
                               .step = {0.01},
                               .residuals = residuals,
                               .ctx = &f};
    for (int32_t i = 0; i < r->n; i++) {
        p.n += is_fitted_row(r, i);
    }
    if (p.n < 2) {
        return BT_OK;
    }
    const double start[BT_FIT_PARAMS] = {1};
    struct bt_fit_answer a;
    BT_TRY(bt_fit_solve(&p, start, &a, err));
    (void)printf(
        "\nSGLang: efficiency %.3f (%.3f to %.3f), fitted to the TPOT of every other row\n\n"
        "| stack | rows | users | rows | TPOT median | P90 | predicted over measured | "
        "TTFT median | P90 | predicted over measured |\n"
        "| --- | --- | --- | --: | --: | --: | --: | --: | --: | --: |\n",
        a.value[0], a.low[0], a.high[0]);
    print_fit("fitted, before", r, true);
    print_fit("held out, before", r, false);
    struct bt_fit fit = fit_of(a.value[0]);
    for (int32_t i = 0; i < r->n; i++) {
        if (is_of(&r->rows[i], "sglang", NULL, 0)) {
            BT_TRY(serve(r, &r->rows[i], &fit, err));
        }
    }
    print_fit("fitted, after", r, true);
    print_fit("held out, after", r, false);
    return BT_OK;
}

/* ---- rows whose prompts cannot all have been computed ---- */

/* Share of the prompts' tokens that TPOT says were found in the cache. */
static enum bt_code find_cached(struct report *r, struct row *row, struct bt_error *err)
{
    double low = 0;
    double high = 1;
    for (int32_t i = 0; i < CACHED_STEPS; i++) {
        row->cached = (low + high) / 2;
        BT_TRY(serve(r, row, NULL, err));
        if (row->sim_tpot_ms > row->tpot_ms) {
            low = row->cached;
        } else {
            high = row->cached;
        }
    }
    return BT_OK;
}

static enum bt_code print_cached(struct report *r, struct bt_error *err)
{
    (void)printf("\n| tp | in | out | users | TPOT ms | cached, for that TPOT | TTFT ms | "
                 "predicted, with that cached | |\n| --: | --: | --: | --: | --: | --: | --: | --: "
                 "| --: |\n");
    for (int32_t i = 0; i < r->n; i++) {
        if (r->rows[i].protocol != &steady_state) {
            continue;
        }
        struct row w = r->rows[i];
        BT_TRY(find_cached(r, &w, err));
        (void)printf("| %lld | %lld | %lld | %lld | %.2f | %.2f | %.0f | %.0f | %+.0f%% |\n",
                     (long long)w.tp, (long long)w.input, (long long)w.output, (long long)w.users,
                     w.tpot_ms, w.cached, w.ttft_ms, w.sim_ttft_ms,
                     100 * (w.sim_ttft_ms / w.ttft_ms - 1));
    }
    return BT_OK;
}

static bool is_accepted(const struct report *r)
{
    const double most_tpot = 0.10;
    const double most_ttft = 0.25;
    struct score s = score_of(r, "", NULL, 0);
    return s.n > 0 && s.tpot_median <= most_tpot && s.ttft_median <= most_ttft;
}

int main(int argc, char **argv)
{
    struct bt_error err = {0};
    struct report *r = calloc(1, sizeof *r);
    int64_t users = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    if (argc < 2 || argc > 3 || r == NULL || run(r, argv[1], users, &err) != BT_OK) {
        (void)fprintf(stderr, "silicon_report: %s\n", argc < 2 ? "a file is missing" : err.msg);
        return 1;
    }
    print_scores(r);
    print_rows(r);
    if (users == 0 && (fit_sglang(r, &err) != BT_OK || print_cached(r, &err) != BT_OK)) {
        (void)fprintf(stderr, "silicon_report: %s\n", err.msg);
        return 1;
    }
    bool accepted = users == 0 || is_accepted(r);
    bt_surface_library_destroy(r->library);
    bt_catalog_close(r->catalog);
    free(r);
    return accepted ? 0 : 1;
}
